#include "base/opt.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/die.h"

enum { MAX_OPTIONS = 256, MAX_NAME = 64 };
static const Opt *given[MAX_OPTIONS]; // rows that appeared on the command line
static int n_given;

static int min3(int a, int b, int c) {
    return a < b ? (a < c ? a : c) : (b < c ? b : c);
}

/* Levenshtein distance of two words of at most MAX_NAME letters. */
static int edit_distance(const char *a, const char *b) {
    int row[MAX_NAME + 1];
    int la = (int)strnlen(a, MAX_NAME), lb = (int)strnlen(b, MAX_NAME);
    for (int j = 0; j <= lb; j++) row[j] = j;
    for (int i = 1; i <= la; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= lb; j++) {
            int up = row[j];
            row[j] = min3(up + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = up;
        }
    }
    return row[lb];
}

const char *opt_nearest(const char *word, const char *const *candidates, int n) {
    int len = (int)strlen(word), best = len / 2 + 1; // farther than half the word is no help
    const char *found = NULL;
    for (int i = 0; i < n; i++) {
        int d = edit_distance(word, candidates[i]);
        if (len >= 3 && strncmp(word, candidates[i], (size_t)len) == 0) d = 0; // an abbreviation
        if (d < best) best = d, found = candidates[i];
    }
    return found;
}

const Opt *opt_find(const Opt *table, const char *name) {
    for (const Opt *o = table; o->name || o->type == OPT_GROUP; o++)
        if (o->name && strcmp(o->name, name) == 0) return o;
    return NULL;
}

static bool parse_choice(const Opt *o, const char *value, char *why, size_t n_why) {
    const char *p = o->arg;
    for (int i = 0; *p; i++) {
        size_t n = strcspn(p, "|");
        if (strlen(value) == n && strncmp(p, value, n) == 0) {
            *(int *)o->at = i;
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
        if (strcmp(value, yes[i]) == 0) return *(bool *)o->at = true, true;
        if (strcmp(value, no[i]) == 0) return *(bool *)o->at = false, true;
    }
    snprintf(why, n_why, "--%s is a switch: 0 or 1, not \"%s\"", o->name, value);
    return false;
}

static bool parse_number(const Opt *o, const char *value, char *why, size_t n_why) {
    char *end;
    errno = 0;
    double x = strtod(value, &end);
    bool whole = o->type == OPT_INT;
    if (end == value || *end || errno == ERANGE || isnan(x) || (whole && x != floor(x))) {
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
        *(int64_t *)o->at = (int64_t)x;
    else
        *(double *)o->at = x;
    return true;
}

bool opt_set(const Opt *o, const char *value, char *why, size_t n_why) {
    switch (o->type) {
    case OPT_STR:
        *(const char **)o->at = value;
        return true;
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
        snprintf(buf, n, "%lld", (long long)*(int64_t *)o->at);
        break;
    case OPT_FLOAT:
        opt_number(*(double *)o->at, buf, n);
        break;
    case OPT_STR:
        snprintf(buf, n, "%s", *(const char **)o->at);
        break;
    case OPT_BOOL:
        snprintf(buf, n, "%d", *(bool *)o->at);
        break;
    case OPT_CHOICE: {
        const char *p = o->arg;
        for (int i = *(int *)o->at; i > 0; i--) p = strchr(p, '|') + 1;
        snprintf(buf, n, "%.*s", (int)strcspn(p, "|"), p);
        break;
    }
    case OPT_GROUP:
        buf[0] = 0;
        break;
    }
    return buf;
}

bool opt_given(const Opt *o) {
    for (int i = 0; i < n_given; i++)
        if (given[i] == o) return true;
    return false;
}

bool opt_changed(const Opt *o) {
    char now[4096];
    if (o->type == OPT_GROUP) return false;
    if (o->type == OPT_FLOAT) return *(double *)o->at != strtod(o->standard, NULL);
    return strcmp(opt_text(o, now, sizeof now), o->standard) != 0;
}

void opt_print_help(const Opt *table, const char *usage, FILE *f) {
    fprintf(f, "%s", usage);
    for (const Opt *o = table; o->name || o->type == OPT_GROUP; o++) {
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
        if (o->standard[0] && !(o->type == OPT_BOOL && strcmp(o->standard, "0") == 0))
            fprintf(f, " [%s]", o->standard);
        fprintf(f, "\n");
    }
}

void opt_print_values(const Opt *table, FILE *f) {
    char text[4096];
    for (const Opt *o = table; o->name || o->type == OPT_GROUP; o++) {
        if (o->type == OPT_GROUP) continue;
        opt_text(o, text, sizeof text);
        fprintf(f, "  %-18s %s%s\n", o->name, text[0] ? text : "-", opt_changed(o) ? "  *" : "");
    }
}

static _Noreturn void unknown_option(const Opt *table, const char *name) {
    const char *names[MAX_OPTIONS];
    int n = 0;
    for (const Opt *o = table; (o->name || o->type == OPT_GROUP) && n < MAX_OPTIONS; o++)
        if (o->name) names[n++] = o->name;
    const char *near = opt_nearest(name, names, n);
    if (near) die_usage("unknown option --%s: did you mean --%s? (--help lists all)", name, near);
    die_usage("unknown option --%s (--help lists all)", name);
}

/* Splits "--some_name=value" into a name with dashes and the value (NULL without '='). */
static const char *split(const char *arg, char name[MAX_NAME]) {
    const char *eq = strchr(arg, '=');
    size_t n = eq ? (size_t)(eq - arg) : strlen(arg);
    if (n >= MAX_NAME) n = MAX_NAME - 1;
    for (size_t i = 0; i < n; i++) name[i] = arg[i] == '_' ? '-' : arg[i];
    name[n] = 0;
    return eq ? eq + 1 : NULL;
}

void opt_parse(const Opt *table, int argc, char **argv, const char *usage) {
    char why[512], name[MAX_NAME];
    n_given = 0;
    for (const Opt *o = table; o->name || o->type == OPT_GROUP; o++)
        if (o->type != OPT_GROUP && !opt_set(o, o->standard, why, sizeof why))
            die("option table: %s", why);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            opt_print_help(table, usage, stdout);
            exit(0);
        }
        if (strncmp(argv[i], "--", 2) != 0)
            die_usage("\"%s\" is no option: options begin with -- (--help lists all)", argv[i]);
        const char *value = split(argv[i] + 2, name);
        const Opt *o = opt_find(table, name);
        if (!o && strncmp(name, "no-", 3) == 0 && !value) {
            o = opt_find(table, name + 3);
            if (o && o->type == OPT_BOOL)
                value = "0";
            else
                o = NULL;
        }
        if (!o) unknown_option(table, name);
        if (opt_given(o)) die_usage("--%s is given twice", o->name);
        if (!value && o->type == OPT_BOOL) value = "1";
        if (!value && ++i == argc)
            die_usage("--%s needs a value: --%s %s", o->name, o->name, o->arg);
        if (!value) value = argv[i];
        if (!opt_set(o, value, why, sizeof why)) die_usage("%s", why);
        if (n_given == MAX_OPTIONS) die("option table: more than %d rows", MAX_OPTIONS);
        given[n_given++] = o;
    }
}
