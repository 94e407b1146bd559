/* The enumeration of candidates: for all sizes of the axes all flags, for these all micro-batches
 * and recompute, for these all stages of ZeRO. */
#include <string.h>

#include "base/minmax.h"
#include "parallel/plan/search_parts.h"

typedef struct Walk {
    const Space *s;
    const NamedScheme *scheme;
    Candidate candidate;
    void (*f)(const Candidate *candidate, void *ctx);
    void *ctx;
} Walk;

/* Local steps need two replicas or more, with equally many micro-batches each. */
static bool shares_equal(const Walk *w, int64_t data_parallel) {
    const Choice *c = &w->candidate.c;
    int64_t sequences = w->s->shape.batch / w->s->shape.model.S;
    return !w->s->shape.local_steps ||
           (c->layout.size[AXIS_D] > 1 && sequences % (c->micro * data_parallel) == 0);
}

/* Stages of ZeRO. The search does not try zero3, which shards weights over d as z does:
 * d4.z2+zero3 is z8. Replicas that take local steps shard no state. */
static void each_zero(Walk *w) {
    const Layout *only = w->s->only;
    Layout *l = &w->candidate.c.layout;
    bool none = l->size[AXIS_D] == 1 || w->s->shape.local_steps;
    int most = only ? only->zero : none ? 0 : 2;
    for (l->zero = only ? only->zero : 0; l->zero <= most; l->zero++) {
        w->f(&w->candidate, w->ctx);
        w->candidate.number += N_SCHEDULES;
    }
}

/* Sequences of a micro-batch: powers of two, and all sequences that a coordinate of d x z has in a
 * step, or as many of them as a micro-batch may have. For each: recompute. */
static void each_micro(Walk *w) {
    const Space *s = w->s;
    Choice *c = &w->candidate.c;
    int64_t data_parallel = (int64_t)c->layout.size[AXIS_D] * c->layout.size[AXIS_Z];
    int64_t share = div_up(s->shape.batch / s->shape.model.S, data_parallel),
            fixed = s->shape.model.B;
    share = min_i64(share, max_i64(MICRO_TOKENS / s->shape.model.S, 1));
    if (!s->free_micro && fixed < share) share = fixed;
    int least = s->free_recompute ? RECOMPUTE_NONE : (int)s->shape.model.recompute,
        most = s->free_recompute ? RECOMPUTE_FULL : least;
    for (int64_t n = s->free_micro ? 1 : share; n < 2 * share; n *= 2) {
        c->micro = min_i64(n, share);
        for (int r = least; r <= most && shares_equal(w, data_parallel); r++) {
            c->recompute = (Recompute)r;
            each_zero(w);
        }
    }
}

/* Ranks along x or y, at most, of a candidate with stay=y: each of its matmuls has as many panels,
 * which make its list long. */
enum { MOST_PANELS = 32 };

/* Sets those of the flags sp, heads and stay that change a layout of l's sizes. With the others a
 * candidate would occur twice. */
static void set_flags(Layout *l, const Layout *flags) {
    bool x = l->size[AXIS_X] > 1, y = l->size[AXIS_Y] > 1;
    l->sp = flags->sp && x, l->heads = flags->heads && y, l->stay = flags->stay && (x || y);
}

static bool same_flags(const Layout *a, const Layout *b) {
    return a->sp == b->sp && a->heads == b->heads && a->stay == b->stay;
}

static void each_flags(Walk *w) {
    static const Layout all[] = {
        {.sp = false}, {.sp = true}, {.heads = true}, {.sp = true, .heads = true}, {.stay = true}};
    Layout *l = &w->candidate.c.layout;
    bool many = l->size[AXIS_X] > MOST_PANELS || l->size[AXIS_Y] > MOST_PANELS;
    int n = w->scheme ? 1 : (int)(sizeof all / sizeof *all);
    for (int i = 0; i < n; i++) {
        const Layout *flags = w->scheme ? &w->scheme->flags : &all[i];
        set_flags(l, flags);
        if ((w->scheme || same_flags(l, flags)) && !(l->stay && many)) each_micro(w);
    }
}

/* Do these sizes fit a named scheme: 1 outside of its axes, all alike if it has a single size? */
static bool has_sizes(const NamedScheme *f, const int size[N_AXES]) {
    int first = 0; // size of the scheme's first axis
    for (int axis = 0; axis < N_AXES; axis++) {
        bool has = strchr(f->axes, "dzxy"[axis]) != NULL;
        if (!has && size[axis] > 1) return false;
        if (has && f->sizes == 1 && first > 0 && size[axis] != first) return false;
        if (has) first = size[axis];
    }
    return true;
}

bool scheme_has(const NamedScheme *f, const Layout *l) {
    Layout own = *l;
    set_flags(&own, &f->flags);
    return has_sizes(f, l->size) && same_flags(&own, l);
}

void candidate_each(const Space *s, const NamedScheme *scheme,
                    void (*f)(const Candidate *candidate, void *ctx), void *ctx) {
    Walk w = {.s = s, .scheme = scheme, .f = f, .ctx = ctx};
    Layout *l = &w.candidate.c.layout;
    w.candidate.c.overlap = s->shape.model.overlap, w.candidate.any = true;
    if (s->only) {
        *l = *s->only, l->exact = s->exact;
        l->factors = layout_of_sizes(l->size).factors;
        each_micro(&w);
        return;
    }
    for (int d = 1; d <= s->p; d++)
        for (int z = 1; s->p % d == 0 && z <= s->p / d; z++)
            for (int x = 1; s->p / d % z == 0 && x <= s->p / d / z; x++) {
                if (s->p / d / z % x) continue;
                const int size[N_AXES] = {d, z, x, s->p / d / z / x};
                if (scheme && !has_sizes(scheme, size)) continue;
                *l = layout_of_sizes(size), l->exact = s->exact;
                each_flags(&w);
            }
}

int candidate_schedules(const Space *s, const Candidate *candidate, Candidate out[N_SCHEDULES]) {
    static const Overlap schedules[N_SCHEDULES] = {{.bulk = false},
                                                   {.bulk = true},
                                                   {.bulk = true, .chunks = 2},
                                                   {.bulk = true, .chunks = 4},
                                                   {.bulk = true, .ring = true},
                                                   {.bulk = true, .halves = true}};
    const Layout *l = &candidate->c.layout;
    bool tensor = l->size[AXIS_X] * l->size[AXIS_Y] > 1, even = candidate->c.micro % 2 == 0;
    int n = 0;
    if (!s->free_overlap) {
        out[0] = *candidate, out[0].any = false;
        return !s->shape.model.overlap.halves || even;
    }
    for (int i = 0; i < N_SCHEDULES; i++) {
        const Overlap *o = &schedules[i];
        if ((o->bulk && s->p == 1) || (o->halves && !(tensor && even)) || overlap_idle(o, l))
            continue;
        out[n] = *candidate, out[n].any = false;
        out[n].c.overlap = *o, out[n++].number += i;
    }
    return n;
}

PriceShape candidate_shape(const Space *s, const Choice *c) {
    PriceShape p = s->shape;
    p.model.B = c->micro;
    p.model.recompute = c->recompute;
    p.model.overlap = c->overlap;
    return p;
}
