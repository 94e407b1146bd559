#include "parallel/plan/whatif_vary.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/minmax.h"
#include "base/opt.h"
#include "parallel/plan/plan.h"
#include "parallel/plan/search_parts.h"

static const struct {
    const char *name;
    Quantity as;
} numbers[] = {
    [VARY_BATCH] = {"batch", AS_NUMBER},  [VARY_SEQ] = {"seq", AS_COUNT},
    [VARY_LAYERS] = {"layers", AS_COUNT}, [VARY_CHANNELS] = {"channels", AS_COUNT},
    [VARY_FLOPS] = {"flops", AS_FLOPS},
};

/* ---- one value */

/* The size of a head stays; the numbers of heads and of key heads and the MLP grow alike. */
static bool set_channels(Config *c, int64_t channels, Err *e) {
    int64_t heads = c->heads * channels / c->channels, each = c->heads / c->kv_heads;
    c->ffn = (int64_t)llround((double)c->ffn * (double)channels / (double)c->channels);
    c->channels = channels, c->heads = heads;
    c->kv_heads = heads % each ? heads : heads / each;
    return config_check(c, e);
}

/* The batch keeps its tokens, rounded down to whole sequences of the new length. */
static bool set_seq(Space *s, int64_t seq, Err *e) {
    int64_t batch = s->shape.batch / seq * seq;
    if (batch == 0)
        return err(e, "seq %" PRId64 ": a batch of %" PRId64 " tokens is less than one sequence",
                   seq, s->shape.batch);
    s->shape.model.S = s->shape.model.config.seq = seq;
    s->shape.batch = batch;
    return true;
}

static bool apply(const WhatIf *w, double x, Space *s, Machine *m, Err *e) {
    *s = w->space, *m = w->machine;
    Level *level = &m->level[w->level];
    double faster = x / m->flops[s->shape.model.bf16];
    switch (w->kind) {
    case VARY_BATCH:
        s->shape.batch = (int64_t)x;
        break;
    case VARY_SEQ:
        return set_seq(s, (int64_t)x, e);
    case VARY_LAYERS:
        s->shape.model.config.layers = (int64_t)x;
        break;
    case VARY_CHANNELS:
        return set_channels(&s->shape.model.config, (int64_t)x, e);
    case VARY_FLOPS:
        m->flops[0] *= faster, m->flops[1] *= faster;
        break;
    case VARY_LEVEL:
        level->port_rate *= x / level->rank_rate;
        level->rank_rate = x;
        break;
    case VARY_MACHINE:
        if (!machine_set(m, w->number, x, e)) return false;
        s->p = m->ranks;
    }
    return true;
}

/* ---- the values */

enum { MAX_OF_MACHINE = 32, MAX_NAMES = N_VARY + MAX_LEVELS + 2 + MAX_OF_MACHINE };

static bool unknown(const WhatIf *w, const char *name, Err *e) {
    const char *names[MAX_NAMES];
    MachineNumber of[MAX_OF_MACHINE];
    char all[384] = "";
    int n = 0, of_levels = 0;
    for (int i = 0; i < N_VARY; i++) names[n++] = numbers[i].name;
    for (int i = 0; i < w->machine.n_levels; i++) names[n++] = w->machine.level[i].name;
    names[n++] = "latency", names[n++] = "port_rate";
    for (int i = 0; i < MAX_OF_MACHINE && machine_number(&w->machine, i, &of[i]); i++) {
        of_levels += strchr(of[i].name, '.') != NULL; // the levels' numbers come last
        names[n++] = of[i].name;
    }
    size_t stem = strlen(name) > 5 ? strlen(name) - 5 : 0;
    for (int i = 0; i < w->machine.n_levels && strcasecmp(name + stem, ".rate") == 0; i++) {
        const char *level = w->machine.level[i].name;
        if (strlen(level) == stem && strncasecmp(name, level, stem) == 0)
            return err(e, "unknown number \"%.40s\": %s alone is its rate", name, level);
    }
    const char *near = opt_nearest(name, names, n);
    if (near) return err(e, "unknown number \"%.40s\": did you mean %s?", name, near);
    for (int i = 0; i < n - of_levels; i++) {
        size_t at = strlen(all);
        snprintf(all + at, sizeof all - at, " %s", names[i]);
    }
    return err(e, "unknown number \"%.40s\": one of%s, or of a level, like %s", name, all,
               names[n - 1]);
}

/* A number of the description; latency and port_rate alone are those of the outermost level. */
static bool find_machine(WhatIf *w, const char *name) {
    const Level *outer = &w->machine.level[w->machine.n_levels - 1];
    char full[64];
    MachineNumber number;
    bool of_outer = strcasecmp(name, "latency") == 0 || strcasecmp(name, "port_rate") == 0;
    snprintf(full, sizeof full, "%s%s%s", of_outer ? outer->name : "", of_outer ? "." : "", name);
    for (int i = 0; machine_number(&w->machine, i, &number); i++) {
        if (strcasecmp(number.name, full) != 0) continue;
        w->kind = VARY_MACHINE, w->number = i, w->as = number.as;
        snprintf(w->name, sizeof w->name, "%s", of_outer ? name : number.name);
        w->ranks_vary = strcmp(w->name, "nodes") == 0 || strcmp(w->name, "ranks_per_node") == 0;
        return true;
    }
    return false;
}

static bool find_number(WhatIf *w, const char *name, Err *e) {
    w->ranks_vary = false;
    for (int i = 0; i < N_VARY; i++) {
        if (strcasecmp(numbers[i].name, name) != 0) continue;
        w->kind = (VaryKind)i, w->as = numbers[i].as;
        snprintf(w->name, sizeof w->name, "%s", numbers[i].name);
        return true;
    }
    if (find_machine(w, name)) return true;
    for (int l = 0; l < w->machine.n_levels; l++) {
        if (strcasecmp(w->machine.level[l].name, name) != 0) continue;
        w->kind = VARY_LEVEL, w->level = l, w->as = AS_LINK;
        snprintf(w->name, sizeof w->name, "%s", w->machine.level[l].name);
        return true;
    }
    return unknown(w, name, e);
}

/* Reads LOW and HIGH. The unit may be given once, at the end; but the k of a whole number holds for
 * that number alone. Rates of levels without a unit are in bits, as networks are sold. */
static bool read_ends(WhatIf *w, const char *text, double *low, double *high, Err *e) {
    char first[64], last[64], *unit, *rest;
    const char *dots = strstr(text, "..");
    Quantity as = w->as;
    if (!dots || strlen(text) > 40)
        return err(e, "%s=%.40s: LOW..HIGH is needed, each %s", w->name, text,
                   quantity_example(as));
    snprintf(first, sizeof first, "%.*s", (int)(dots - text), text);
    snprintf(last, sizeof last, "%s", dots + 2);
    strtod(first, &rest), strtod(last, &unit);
    if (as != AS_NUMBER && !*rest) strcat(first, unit);
    for (int i = 0; i < 2 && as == AS_LINK; i++) {
        char *end = i ? last : first;
        if (!strstr(end, "/s")) strcat(end, "b/s");
    }
    snprintf(w->like, sizeof w->like, "%s", last);
    for (int i = 0; i < 2; i++)
        if (!quantity_read(i ? high : low, as, i ? last : first) || !(*(i ? high : low) > 0))
            return err(e, "%s=%.40s: \"%.40s\" should be %s", w->name, text, i ? last : first,
                       quantity_example(as));
    return *low <= *high || err(e, "%s=%.40s: the higher end comes last", w->name, text);
}

/* Batches are whole sequences, channels whole heads. */
static int64_t unit_of(const WhatIf *w) {
    if (w->kind == VARY_BATCH) return w->space.shape.model.S;
    const Config *c = &w->space.shape.model.config;
    return w->kind == VARY_CHANNELS ? max_i64(1, c->channels / c->heads) : 1;
}

static double rounded(const WhatIf *w, double x) {
    double unit = (double)unit_of(w);
    if (w->as != AS_COUNT && w->as != AS_NUMBER) return x;
    return fmax(1, round(x / unit)) * unit;
}

/* Adds a value, unless rounding makes it equal to the last one. */
static void put(WhatIf *w, double x) {
    x = rounded(w, x);
    if (w->n == 0 || x > w->value[w->n - 1])
        w->value[w->n++] = x;
    else
        w->merged++;
}

/* Lists the values; the last one is HIGH, rounded as all values are. False: there are too many, or
 * LOW and HIGH differ and all values are rounded to the same one. */
static bool put_all(WhatIf *w, double low, double high, int points, Err *e) {
    char unit[64];
    w->n = w->merged = 0;
    if (points == 1 && low < high)
        return err(e, "%s: LOW and HIGH differ, --points 1 is a single value", w->name);
    if (points > 1)
        for (int i = 0; i + 1 < points; i++) put(w, low * pow(high / low, i / (points - 1.0)));
    else
        for (double x = low; x < high && w->n < WHATIF_POINTS; x *= 2) put(w, x);
    if (w->n == WHATIF_POINTS)
        return err(e, "%s: LOW doubles more than %d times up to HIGH; --points N takes N values",
                   w->name, WHATIF_POINTS - 1);
    put(w, high);
    if (w->n > 1 || low == high) return true;
    return err(e, "%s=%g..%g: all of it is %.0f, as %s are whole", w->name, low, high, w->value[0],
               whatif_unit(w, unit));
}

bool whatif_vary(WhatIf *w, const char *text, int points, Err *e) {
    char name[40];
    const char *equals = strchr(text, '=');
    double low, high;
    if (!equals || equals - text >= (int)sizeof name)
        return err(e, "\"%.60s\": NAME=LOW..HIGH is needed, like network=10Gb/s..1600Gb/s", text);
    snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
    if (!find_number(w, name, e) || !read_ends(w, equals + 1, &low, &high, e)) return false;
    if (!put_all(w, low, high, points, e)) return false;
    for (int i = 0; i < w->n; i++) {
        Space s;
        Machine m;
        if (!apply(w, w->value[i], &s, &m, e)) return false;
    }
    return true;
}

/* ---- the search */

/* The best choice of a layout, or of all ("auto"). *has: one fits. */
static bool find_best(const Space *s, const Machine *m, const char *layout, Choice *out, bool *has,
                      Err *e) {
    Choice best[PLAN_TOP];
    Space one = *s;
    Layout only;
    if (strcmp(layout, "auto") != 0) {
        if (!layout_parse(&only, layout, s->p, e)) return false;
        one.only = &only;
    }
    *has = plan_best(&one, m, best) > 0;
    if (*has) *out = best[0];
    return true;
}

static const NamedScheme *named(const char *scheme) {
    for (int i = 0; i < N_SCHEMES; i++)
        if (strcmp(named_schemes[i].name, scheme) == 0) return &named_schemes[i];
    return NULL;
}

bool whatif_at(const WhatIf *w, int i, WhatIfPoint *out, Err *e) {
    Space *s = &out->space;
    Machine *m = &out->machine;
    memset(out, 0, sizeof *out);
    if (!apply(w, w->value[i], s, m, e)) return false;
    if (!find_best(s, m, w->layout, &out->best, &out->found, e)) return false;
    for (int k = 0; k < w->n_schemes; k++) {
        Choice *c = &out->scheme[k];
        const NamedScheme *f = named(w->scheme[k]);
        if (f && search_scheme(s, m, f, NULL, c)) {
            search_reprice(s, m, c, 1);
            out->has[k] = c->fits;
        }
        if (!f && !find_best(s, m, w->scheme[k], c, &out->has[k], e)) return false;
        bool faster = out->has[k] && c->price.seconds < out->best.price.seconds;
        if (faster && strcmp(w->layout, "auto") == 0) out->best = *c; // as in plan_search
    }
    return true;
}

/* ---- texts */

const char *whatif_value(const WhatIf *w, int i, char buf[64]) {
    return quantity_short(w->value[i], w->as, w->like, buf);
}

const char *whatif_unit(const WhatIf *w, char buf[64]) {
    const char *what = w->kind == VARY_BATCH      ? "sequences of "
                       : w->kind == VARY_CHANNELS ? "heads of "
                                                  : "";
    snprintf(buf, 64, "%s", w->name);
    if (*what) snprintf(buf, 64, "%s%" PRId64, what, unit_of(w));
    return w->as == AS_COUNT || w->as == AS_NUMBER ? buf : strcpy(buf, "");
}

const char *whatif_form(const WhatIf *w, const Choice *c, char buf[96]) {
    char spec[64], flags[OVERLAP_TEXT];
    bool none = overlap_equal(&c->overlap, &(Overlap){0});
    snprintf(buf, 96, "%s%s%s", layout_print(&c->layout, spec), none ? "" : " ",
             none ? "" : overlap_print(&c->overlap, flags));
    if (!w->ranks_vary) return buf;
    char *digits = buf + 1;
    size_t n = strspn(digits, "0123456789");
    memmove(digits, digits + n, strlen(digits + n) + 1);
    return buf;
}
