#include "parallel/whatif.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/opt.h"
#include "parallel/search_parts.h"

static const struct {
    const char *name;
    Quantity as;
    const char *words;
} numbers[] = {
    [VARY_NODES] = {"nodes", AS_COUNT, "nodes"},
    [VARY_BATCH] = {"batch", AS_NUMBER, "tokens of a step"},
    [VARY_SEQ] = {"seq", AS_COUNT, "positions of a sequence"},
    [VARY_LAYERS] = {"layers", AS_COUNT, "layers"},
    [VARY_CHANNELS] = {"channels", AS_COUNT, "channels"},
    [VARY_FLOPS] = {"flops", AS_FLOPS, "what a rank's products reach"},
    [VARY_MEMORY] = {"memory", AS_BYTES, "memory of a rank"},
    [VARY_MEMORY_RATE] = {"memory_rate", AS_RATE, "memory bandwidth of a rank"},
    [VARY_CALL] = {"call", AS_SECONDS, "time of a kernel's call"},
    [VARY_LATENCY] = {"latency", AS_SECONDS, "latency of the outermost level"},
    [VARY_LEVEL] = {"", AS_LINK, ""},
};

/* ---- one value */

static void set_nodes(Space *s, Machine *m, int nodes) {
    m->nodes = nodes;
    m->ranks = s->p = nodes * m->ranks_per_node;
    for (int l = 0; l < m->n_levels; l++)
        if (m->level[l].ranks > m->ranks || l == m->n_levels - 1) m->level[l].ranks = m->ranks;
}

/* As many heads as their size allows; the MLP and the key heads keep their shares. */
static bool set_channels(Config *c, int64_t channels, Err *e) {
    int64_t heads = channels / config_head_size(c), each = c->heads / c->kv_heads;
    c->ffn = (int64_t)llround((double)c->ffn * (double)channels / (double)c->channels);
    c->channels = channels, c->heads = heads;
    c->kv_heads = heads % each ? heads : heads / each;
    return config_check(c, e);
}

/* A step of so many sequences as there were, or as many as the batch makes. */
static bool set_seq(Space *s, int64_t seq, Err *e) {
    int64_t batch = s->shape.batch / seq * seq;
    if (batch == 0)
        return err(e, "seq %" PRId64 ": a batch of %" PRId64 " tokens is less than one sequence",
                   seq, s->shape.batch);
    s->shape.S = s->shape.config.seq = seq;
    s->shape.batch = batch;
    return true;
}

static bool apply(const WhatIf *w, double x, Space *s, Machine *m, Err *e) {
    *s = w->space, *m = w->machine;
    Level *level = &m->level[w->kind == VARY_LEVEL ? w->level : m->n_levels - 1];
    double faster = x / m->flops[s->shape.bf16];
    switch (w->kind) {
    case VARY_NODES:
        if (x * m->ranks_per_node > MAX_COUNT)
            return err(e, "nodes %.0f: more than %d ranks", x, MAX_COUNT);
        set_nodes(s, m, (int)x);
        break;
    case VARY_BATCH:
        s->shape.batch = (int64_t)x;
        break;
    case VARY_SEQ:
        return set_seq(s, (int64_t)x, e);
    case VARY_LAYERS:
        s->shape.config.layers = (int64_t)x;
        break;
    case VARY_CHANNELS:
        return set_channels(&s->shape.config, (int64_t)x, e);
    case VARY_FLOPS:
        m->flops[0] *= faster, m->flops[1] *= faster;
        break;
    case VARY_MEMORY:
        m->memory = (int64_t)x;
        break;
    case VARY_MEMORY_RATE:
        m->memory_rate = x;
        break;
    case VARY_CALL:
        m->call = x;
        break;
    case VARY_LATENCY:
        level->latency = x;
        break;
    case VARY_LEVEL:
        level->port_rate *= x / level->rank_rate;
        level->rank_rate = x;
    }
    return true;
}

/* ---- the values */

static bool unknown(const WhatIf *w, const char *name, Err *e) {
    const char *names[N_VARY + MAX_LEVELS];
    char all[256] = "";
    int n = 0;
    for (int i = 0; i < N_VARY; i++) names[n++] = numbers[i].name;
    for (int i = 0; i < w->machine.n_levels; i++) names[n++] = w->machine.level[i].name;
    for (int i = 0; i < n; i++) {
        size_t at = strlen(all);
        snprintf(all + at, sizeof all - at, " %s", names[i]);
    }
    const char *near = opt_nearest(name, names, n);
    if (near) return err(e, "unknown number \"%.40s\": did you mean %s?", name, near);
    return err(e, "unknown number \"%.40s\": one of%s", name, all);
}

static bool find_number(WhatIf *w, const char *name, Err *e) {
    int i = 0, l = 0;
    while (i < N_VARY && strcasecmp(numbers[i].name, name) != 0) i++;
    w->kind = (VaryKind)i;
    if (i == N_VARY) {
        while (l < w->machine.n_levels && strcasecmp(w->machine.level[l].name, name) != 0) l++;
        if (l == w->machine.n_levels) return unknown(w, name, e);
        w->level = l;
    }
    snprintf(w->name, sizeof w->name, "%s",
             i == N_VARY ? w->machine.level[l].name : numbers[i].name);
    return true;
}

/* LOW and HIGH. A unit may be written once, at the end (not so the k of a number); rates of levels without one are
 * bits, as networks are sold. */
static bool read_ends(WhatIf *w, const char *text, double *low, double *high, Err *e) {
    char first[64], last[64];
    const char *dots = strstr(text, "..");
    Quantity as = numbers[w->kind].as;
    if (!dots || strlen(text) > 40)
        return err(e, "%s=%.40s: LOW..HIGH is needed, each %s", w->name, text,
                   quantity_example(as));
    snprintf(first, sizeof first, "%.*s", (int)(dots - text), text);
    snprintf(last, sizeof last, "%s", dots + 2);
    if (as != AS_NUMBER && !first[strspn(first, "0123456789.")])
        strcat(first, last + strspn(last, "0123456789."));
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
static double rounded(const WhatIf *w, double x) {
    Quantity as = numbers[w->kind].as;
    double unit = w->kind == VARY_BATCH      ? (double)w->space.shape.S
                  : w->kind == VARY_CHANNELS ? (double)config_head_size(&w->space.shape.config)
                                             : 1;
    if (as != AS_COUNT && as != AS_NUMBER) return x;
    return fmax(1, round(x / unit)) * unit;
}

static void put(WhatIf *w, double x) {
    x = rounded(w, x);
    if (w->n == 0 || x > w->value[w->n - 1]) w->value[w->n++] = x;
}

bool whatif_vary(WhatIf *w, const char *text, int points, Err *e) {
    char name[24];
    const char *equals = strchr(text, '=');
    double low, high;
    w->n = 0;
    if (!equals || equals - text >= (int)sizeof name)
        return err(e, "\"%.60s\": NAME=LOW..HIGH is needed, like network=10Gb/s..1600Gb/s", text);
    snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
    if (!find_number(w, name, e) || !read_ends(w, equals + 1, &low, &high, e)) return false;
    if (points > 1)
        for (int i = 0; i < points; i++) put(w, low * pow(high / low, i / (points - 1.0)));
    else
        for (double x = low; x < high; x *= 2) put(w, x);
    put(w, high);
    for (int i = 0; i < w->n; i++) {
        Space s;
        Machine m;
        if (!apply(w, w->value[i], &s, &m, e)) return false;
    }
    return true;
}

/* ---- the search */

static bool search_only(const Space *s, const Machine *m, const char *layout, Choice *out,
                        bool *has, Err *e) {
    Space one = *s;
    Layout only;
    if (!layout_parse(&only, layout, s->p, e)) return false;
    one.only = &only;
    *has = search_best(&one, m, out, 1, NULL) == 1;
    return true;
}

static bool is_named(const char *scheme) {
    for (int i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i].name, scheme) == 0) return true;
    return false;
}

bool whatif_at(const WhatIf *w, int i, WhatIfPoint *out, Err *e) {
    Space *s = &out->space;
    Machine *m = &out->machine;
    memset(out, 0, sizeof *out);
    if (!apply(w, w->value[i], s, m, e)) return false;
    if (strcmp(w->layout, "auto") == 0)
        out->found = search_best(s, m, &out->best, 1, NULL) == 1;
    else if (!search_only(s, m, w->layout, &out->best, &out->found, e))
        return false;
    for (int k = 0; k < w->n_schemes; k++) {
        Choice *c = &out->scheme[k];
        if (is_named(w->scheme[k]))
            out->has[k] = search_preset(s, m, w->scheme[k], c) && c->fits;
        else if (!search_only(s, m, w->scheme[k], c, &out->has[k], e))
            return false;
    }
    return true;
}

/* ---- words */

const char *whatif_value(const WhatIf *w, int i, char buf[64]) {
    return quantity_short(w->value[i], numbers[w->kind].as, w->like, buf);
}

const char *whatif_words(const WhatIf *w, char buf[64]) {
    const char *words = numbers[w->kind].words;
    snprintf(buf, 64, *words ? "%s" : "bandwidth of a rank: %s", *words ? words : w->name);
    return buf;
}

const char *whatif_form(const WhatIf *w, const Choice *c, char buf[96]) {
    char spec[64], words[OVERLAP_TEXT];
    bool none = overlap_equal(&c->overlap, &(Overlap){0});
    snprintf(buf, 96, "%s%s%s", layout_print(&c->layout, spec), none ? "" : " ",
             none ? "" : overlap_print(&c->overlap, words));
    if (w->kind != VARY_NODES) return buf;
    char *digits = buf + 1;
    size_t n = strspn(digits, "0123456789");
    memmove(digits, digits + n, strlen(digits + n) + 1);
    return buf;
}
