#include "base/opt.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/die.h"
#include "base/minmax.h"
#include "base/opt_file.h"
#include "base/version.h"

enum { MAX_OPTIONS = 256, MAX_NAME = 64 };
static struct {
    const Opt *row;
    bool on_command_line; // given on the command line, which wins over files
} given[MAX_OPTIONS];
static int n_given;
static const OptForeign *foreign;

void opt_set_foreign(const OptForeign *rows) {
    foreign = rows;
}

/* The least number of insertions, deletions, substitutions and swaps of neighbours that turn a into
 * b, of which the first MAX_NAME characters count. */
static int edit_distance(const char *a, const char *b) {
    int d[MAX_NAME + 1][MAX_NAME + 1];
    int la = (int)strnlen(a, MAX_NAME), lb = (int)strnlen(b, MAX_NAME);
    for (int i = 0; i <= la; i++) d[i][0] = i;
    for (int j = 0; j <= lb; j++) d[0][j] = j;
    for (int i = 1; i <= la; i++)
        for (int j = 1; j <= lb; j++) {
            int change = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            d[i][j] = (int)min_i64(min_i64(d[i - 1][j], d[i][j - 1]) + 1, change);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = (int)min_i64(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[la][lb];
}

const char *opt_nearest(const char *word, const char *const *candidates, int n) {
    int len = (int)strlen(word), best = len < 3 ? 1 : len < 5 ? 2 : 3; // a smaller distance is near
    const char *found = NULL;
    for (int i = 0; i < n; i++) {
        int d = edit_distance(word, candidates[i]);
        if (len >= 3 && strncmp(word, candidates[i], (size_t)len) == 0) d = 0; // an abbreviation
        if (d < best) best = d, found = candidates[i];
    }
    return found;
}

const Opt *opt_find(const Opt *table, const char *name) {
    for (const Opt *o = table; o->help; o++)
        if (o->name && strcmp(o->name, name) == 0) return o;
    return NULL;
}

static bool parse_choice(const Opt *o, const char *value, char *why, size_t n_why) {
    const char *p = o->arg;
    for (int i = 0; *p; i++) {
        size_t n = strcspn(p, "|");
        if (strlen(value) == n && strncmp(p, value, n) == 0) {
            *(int *)o->value = i;
            return true;
        }
        p += n + (p[n] == '|');
    }
    snprintf(why, n_why, "--%s takes %s, not \"%s\"", o->name, o->arg, value);
    return false;
}

static bool parse_bool(const Opt *o, const char *value, char *why, size_t n_why) {
    static const char *const yes[] = {"1", "true", "yes", "on"}, *const no[] = {"0", "false", "no",
                                                                                "off"};
    for (int i = 0; i < 4; i++) {
        if (strcasecmp(value, yes[i]) == 0) return *(bool *)o->value = true, true;
        if (strcasecmp(value, no[i]) == 0) return *(bool *)o->value = false, true;
    }
    snprintf(why, n_why, "--%s is a switch: 0 or 1, not \"%s\"", o->name, value);
    return false;
}

double opt_prefix(const char **p) {
    static const char letters[] = "KMGT";
    char letter = **p == 'k' ? 'K' : **p;
    const char *found = letter ? strchr(letters, letter) : NULL;
    double scale = 1;
    if (!found) return 1;
    bool binary = (*p)[1] == 'i';
    for (const char *c = letters; c <= found; c++) scale *= binary ? 1024 : 1000;
    *p += binary ? 2 : 1;
    return scale;
}

/* Sets an option of type OPT_INT, which may have a unit (opt_prefix), or OPT_FLOAT. */
static bool parse_number(const Opt *o, const char *value, char *why, size_t n_why) {
    char *end;
    errno = 0;
    double x = strtod(value, &end);
    const char *rest = end;
    bool whole = o->type == OPT_INT;
    if (whole && end > value) x *= opt_prefix(&rest);
    if (end == value || *rest || errno == ERANGE || isnan(x) || (whole && x != floor(x))) {
        snprintf(why, n_why, "--%s takes a %s, not \"%s\"", o->name,
                 whole ? "whole number" : "number", value);
        return false;
    }
    if (x < o->min || x > o->max) {
        snprintf(why, n_why, "--%s must be between %.10g and %.10g, not %s", o->name, o->min,
                 o->max, value);
        return false;
    }
    if (whole)
        *(int64_t *)o->value = (int64_t)x;
    else
        *(double *)o->value = x;
    return true;
}

bool opt_set(const Opt *o, const char *value, char *why, size_t n_why) {
    switch (o->type) {
    case OPT_STR:
    case OPT_CONFIG:
        *(const char **)o->value = value;
        if (*value || !*o->default_text) return true; // without a default, empty is "not given"
        snprintf(why, n_why, "--%s is empty: %s is needed", o->name, o->arg);
        return false;
    case OPT_BOOL:
        return parse_bool(o, value, why, n_why);
    case OPT_CHOICE:
        return parse_choice(o, value, why, n_why);
    case OPT_INT:
    case OPT_FLOAT:
        return parse_number(o, value, why, n_why);
    case OPT_GROUP:
        break;
    }
    return false;
}

const char *opt_number(double x, char *buf, size_t n) {
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buf, n, "%.*g", digits, x);
        if (strtod(buf, NULL) == x) break;
    }
    return buf;
}

const char *opt_text(const Opt *o, char *buf, size_t n) {
    switch (o->type) {
    case OPT_INT:
        snprintf(buf, n, "%lld", (long long)*(int64_t *)o->value);
        break;
    case OPT_FLOAT:
        opt_number(*(double *)o->value, buf, n);
        break;
    case OPT_STR:
    case OPT_CONFIG:
        return *(const char **)o->value;
    case OPT_BOOL:
        snprintf(buf, n, "%d", *(bool *)o->value);
        break;
    case OPT_CHOICE: {
        const char *p = o->arg;
        for (int i = *(int *)o->value; i > 0; i--) p = strchr(p, '|') + 1;
        snprintf(buf, n, "%.*s", (int)strcspn(p, "|"), p);
        break;
    }
    case OPT_GROUP:
        buf[0] = 0;
        break;
    }
    return buf;
}

/* The index of an option in given[]; n_given where it was not given. */
static int find_given(const Opt *o) {
    int i = 0;
    while (i < n_given && given[i].row != o) i++;
    return i;
}

bool opt_given(const Opt *o) {
    return find_given(o) < n_given;
}

static void set_given(const Opt *o, bool on_command_line) {
    int i = find_given(o);
    if (i == MAX_OPTIONS) die("option table: more than %d rows", MAX_OPTIONS);
    given[i].row = o, given[i].on_command_line = on_command_line;
    if (i == n_given) n_given++;
}

bool opt_changed(const Opt *o) {
    char now[64];
    if (o->type == OPT_FLOAT) return *(double *)o->value != strtod(o->default_text, NULL);
    return strcmp(opt_text(o, now, sizeof now), o->default_text) != 0;
}

/* Is `name` in a list of names, joined by spaces? */
static bool in_list(const char *list, const char *name) {
    size_t n = strlen(name), len;
    for (const char *p = list; *p; p += len + strspn(p + len, " ")) {
        len = strcspn(p, " ");
        if (len == n && strncmp(p, name, n) == 0) return true;
    }
    return false;
}

/* For an option `name` of another program: writes its counterpart in this program to why, with the
 * typed value where the counterpart takes it. False: no row of `foreign` has that name. */
static bool foreign_text(const Opt *table, const char *name, const char *value, char *why,
                         size_t n_why) {
    const OptForeign *r = foreign;
    char row_name[MAX_NAME], ignored[512];
    while (r && r->names && !in_list(r->names, name)) r++;
    if (!r || !r->names) return false;
    if (!r->option) {
        snprintf(why, n_why, "not supported: %s", r->note);
        return true;
    }
    snprintf(row_name, sizeof row_name, "%.*s", (int)strcspn(r->option, " "), r->option);
    const Opt *o = opt_find(table, row_name);
    const char *space = strchr(r->option, ' ');
    bool alone = !o || o->type == OPT_BOOL || space;
    if (!alone && !(value && opt_set(o, value, ignored, sizeof ignored))) value = o->arg;
    int here = (int)strlen(r->option);
    bool number = space && r->option[here - 1] == 'N' && value && *value &&
                  !value[strspn(value, "0123456789")];
    snprintf(why, n_why, "here it is --%.*s%s%s%s%s%s", here - number, r->option, alone ? "" : " ",
             alone && !number ? "" : value, r->note ? " (" : "", r->note ? r->note : "",
             r->note ? ")" : "");
    return true;
}

/* Writes to why the message of an unknown option: this program's name for it, or the nearest
 * one. */
static void unknown_text(const Opt *table, const char *typed, const char *name, const char *value,
                         char *why, size_t n_why) {
    const char *names[MAX_OPTIONS], *near;
    char here[512];
    int n = 0, len = (int)strcspn(typed, "=");
    for (const Opt *o = table; o->help && n < MAX_OPTIONS; o++)
        if (o->name) names[n++] = o->name;
    if (foreign_text(table, name, value, here, sizeof here))
        snprintf(why, n_why, "unknown option %.*s: %s", len, typed, here);
    else if ((near = opt_nearest(name, names, n)))
        snprintf(why, n_why, "unknown option %.*s: did you mean --%s? (--help lists all)", len,
                 typed, near);
    else
        snprintf(why, n_why, "unknown option %.*s (--help lists all)", len, typed);
}

/* Splits "some_name=value" into a name with dashes and the value (NULL without '='). */
static const char *split(const char *arg, char name[MAX_NAME]) {
    const char *eq = strchr(arg, '=');
    size_t n = eq ? (size_t)(eq - arg) : strlen(arg);
    if (n >= MAX_NAME) n = MAX_NAME - 1;
    for (size_t i = 0; i < n; i++) name[i] = arg[i] == '_' ? '-' : arg[i];
    name[n] = 0;
    return eq ? eq + 1 : NULL;
}

/* The row of a name. "no-NAME" without a value is the row of the switch NAME, and sets *value to
 * 0. */
static const Opt *find_row(const Opt *table, const char *name, const char **value) {
    const Opt *o = opt_find(table, name);
    if (o || *value || strncmp(name, "no-", 3) != 0) return o;
    o = opt_find(table, name + 3);
    if (!o || o->type != OPT_BOOL) return NULL;
    *value = "0";
    return o;
}

/* Sets one option from a file; false and the reason when it is wrong. The same option on the
 * command line wins, wherever it stands. In a record, an option with its default counts as not
 * given. */
static bool take_pair(const Opt *table, const OptPair *p, bool record, char *why, size_t n_why) {
    char name[MAX_NAME];
    const char *value = p->value;
    split(p->name + (strncmp(p->name, "--", 2) == 0 ? 2 : 0), name);
    const Opt *o = find_row(table, name, &value);
    if (o && o->type == OPT_CONFIG) {
        if (!record) snprintf(why, n_why, "a file of options names no other one");
        return record;
    }
    if (!o) {
        unknown_text(table, p->name, name, value, why, n_why);
        return false;
    }
    if (!value && o->type == OPT_BOOL) value = "1";
    if (!value) {
        snprintf(why, n_why, "%s needs a value: %s", o->name, o->arg);
        return false;
    }
    int i = find_given(o);
    if (i < n_given && given[i].on_command_line) return true;
    if (!opt_set(o, value, why, n_why)) return false;
    if (!record || opt_changed(o)) set_given(o, false);
    return true;
}

/* Reads a file of options, sets what it names, and keeps its strings. Dies on anything wrong. */
static void take_file(const Opt *table, const char *path) {
    static OptFile kept[MAX_OPTIONS]; // strings of options point into these
    static int n_kept;
    char why[1024];
    Err e;
    if (n_kept == MAX_OPTIONS) die_usage("more than %d files of options", MAX_OPTIONS);
    OptFile *f = &kept[n_kept++];
    if (!opt_file_read(path, f, &e)) die_usage("%s", e.text);
    for (int i = 0; i < f->n; i++)
        if (!take_pair(table, &f->pair[i], f->record, why, sizeof why))
            die_usage("%s:%d: %s", f->path, f->pair[i].line, why);
}

/* --help, --help=man, --help=words, --version: the first process of a job prints; all exit. */
static void answer(const Opt *table, const char *arg, const char *usage) {
    bool help = strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0,
         man = strcmp(arg, "--help=man") == 0, words = strcmp(arg, "--help=words") == 0,
         version = strcmp(arg, "--version") == 0 && !opt_find(table, "version");
    if (!help && !man && !words && !version) return;
    if (die_is_copy()) exit(0);
    if (help) opt_print_help(table, usage, stdout);
    if (man) opt_print_man(table, usage, stdout);
    if (words) opt_print_words(table, stdout);
    if (version) printf("%.*s %s\n", (int)strcspn(usage, ":"), usage, version_commit());
    exit(0);
}

/* Sets the option at argv[i] to its value; returns the index of the last argument that it used. */
static int take_option(const Opt *table, int argc, char **argv, int i) {
    char why[1024], name[MAX_NAME];
    bool one_dash = argv[i][1] != '-';
    const char *typed = argv[i], *value = split(typed + (one_dash ? 0 : 2), name);
    const Opt *o = one_dash ? NULL : find_row(table, name, &value);
    if (!o && !value && i + 1 < argc && argv[i + 1][0] != '-') value = argv[i + 1];
    if (!o && one_dash && !foreign_text(table, name, value, why, sizeof why))
        die_usage("\"%s\" is no option: options begin with -- (--help lists all)", typed);
    if (!o) {
        unknown_text(table, typed, name, value, why, sizeof why);
        die_usage("%s", why);
    }
    if (!value && o->type == OPT_BOOL) value = "1";
    bool next = i + 1 < argc && argv[i + 1][0] != '-';
    if (!value && !next && o->type == OPT_CHOICE && o->max > 0) value = strrchr(o->arg, '|') + 1;
    if (!value && ++i == argc) die_usage("--%s needs a value: --%s %s", o->name, o->name, o->arg);
    if (!value) value = argv[i];
    if (!opt_set(o, value, why, sizeof why)) die_usage("%s", why);
    set_given(o, true);
    if (o->type == OPT_CONFIG) take_file(table, value);
    return i;
}

int opt_parse_files(const Opt *table, int argc, char **argv, const char *usage) {
    char why[512];
    int n = 0;
    n_given = 0;
    for (const Opt *o = table; o->help; o++)
        if (o->type != OPT_GROUP && !opt_set(o, o->default_text, why, sizeof why))
            die("option table: %s", why);
    int i = 1;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
        answer(table, argv[i], usage);
        if (argv[i][0] == '-' && argv[i][1])
            i = take_option(table, argc, argv, i);
        else
            argv[++n] = argv[i];
    }
    while (++i < argc) argv[++n] = argv[i]; // files, also where their names begin with a dash
    return n;
}

void opt_parse(const Opt *table, int argc, char **argv, const char *usage) {
    if (opt_parse_files(table, argc, argv, usage))
        die_usage("\"%s\" is no option: options begin with --; put a pattern of files in quotes, "
                  "or the shell replaces it by the files (--help lists all)",
                  argv[1]);
}
