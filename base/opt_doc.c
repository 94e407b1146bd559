/* Prints a table of options: as --help, as a man page, as words that a shell completes. */
#include <assert.h>
#include <string.h>

#include "base/opt.h"
#include "base/version.h"

/* Does the help show the default? Not an empty one, nor that a switch is off. */
static bool shows_default(const Opt *o) {
    return o->default_text[0] && !(o->type == OPT_BOOL && strcmp(o->default_text, "0") == 0);
}

void opt_print_help(const Opt *table, const char *usage, FILE *f) {
    fprintf(f, "%s", usage);
    for (const Opt *o = table; o->help; o++) {
        if (o->type == OPT_GROUP) {
            fprintf(f, "\n%s\n", o->help);
            continue;
        }
        char left[128];
        snprintf(left, sizeof left, "--%s%s%s", o->name, o->type == OPT_BOOL ? "" : " ",
                 o->type == OPT_BOOL ? "" : o->arg);
        fprintf(f, "  %-30s ", left);
        if (strlen(left) > 30) fprintf(f, "\n  %-30s ", "");
        fprintf(f, "%s", o->help);
        if (shows_default(o)) fprintf(f, " [%s]", o->default_text);
        fprintf(f, "\n");
    }
}

/* Writes a text so that roff prints it unchanged. A plain - would become a hyphen, so it is
 * escaped. A \, and a . or ' at the beginning of a line, would be commands: no text of help has
 * them. */
static void put_roff(FILE *f, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool begins = i == 0 || s[i - 1] == '\n';
        assert(s[i] != '\\' && !(begins && strchr(".'", s[i])));
        if (s[i] == '-') fputc('\\', f);
        fputc(s[i], f);
    }
}

static void put_row(FILE *f, const Opt *o) {
    fputs(".TP\n\\fB", f);
    put_roff(f, "--", 2);
    put_roff(f, o->name, strlen(o->name));
    fputs("\\fR", f);
    if (o->type != OPT_BOOL)
        fputs(" \\fI", f), put_roff(f, o->arg, strlen(o->arg)), fputs("\\fR", f);
    fputc('\n', f);
    put_roff(f, o->help, strlen(o->help));
    if (shows_default(o))
        fputs(" [", f), put_roff(f, o->default_text, strlen(o->default_text)), fputc(']', f);
    fputc('\n', f);
}

void opt_print_man(const Opt *table, const char *usage, FILE *f) {
    size_t name = strcspn(usage, ":\n"), line = strcspn(usage, "\n");
    size_t what = name + strspn(usage + name, ": ");
    fprintf(f, ".TH %.*s 1 \"\" \"%s\"\n.SH NAME\n%.*s \\- ", (int)name, usage, version_commit(),
            (int)name, usage);
    put_roff(f, usage + what, line > what ? line - what : 0);
    fputs("\n.SH SYNOPSIS\n.nf\n", f);
    const char *rest = usage + line + strspn(usage + line, "\n");
    put_roff(f, rest, strlen(rest));
    fputs(".fi\n.SH OPTIONS\n", f);
    for (const Opt *o = table; o->help; o++)
        if (o->type == OPT_GROUP)
            fprintf(f, ".SS %s\n", o->help);
        else
            put_row(f, o);
}

void opt_print_words(const Opt *table, FILE *f) {
    for (const Opt *o = table; o->help; o++) {
        if (o->type == OPT_GROUP) continue;
        fprintf(f, "--%s", o->name);
        for (const char *p = o->type == OPT_CHOICE ? o->arg : ""; *p; p += *p == '|') {
            fprintf(f, " %.*s", (int)strcspn(p, "|"), p);
            p += strcspn(p, "|");
        }
        fputc('\n', f);
    }
    fputs("--help\n--version\n", f);
}
