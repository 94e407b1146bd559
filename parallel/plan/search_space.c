/* The enumeration of candidates: for all sizes of the axes all flags, for these all micro-batches
 * and recompute, for these all stages of ZeRO. */
#include <string.h>

#include "base/minmax.h"
#include "parallel/plan/search_parts.h"

typedef struct Walk {
    const Space *s;
    const NamedScheme *scheme;
    Candidate candidate;
    int32_t number;
    void (*f)(const Candidate *candidate, void *ctx);
    void *ctx;
} Walk;

/* Local steps need two replicas or more, with equally many micro-batches each. */
static bool shares_equal(const Walk *w, int64_t data_parallel) {
    int64_t sequences = w->s->shape.batch / w->s->shape.model.S;
    return !w->s->shape.local_steps ||
           (w->candidate.size[AXIS_D] > 1 && sequences % (w->candidate.micro * data_parallel) == 0);
}

/* Stages of ZeRO. The search does not try zero3, which shards weights over d as z does:
 * d4.z2+zero3 is z8. Replicas that take local steps shard no state. */
static void each_zero(Walk *w) {
    const Layout *only = w->s->only;
    bool none = w->candidate.size[AXIS_D] == 1 || w->s->shape.local_steps;
    int most = none ? 0 : 2;
    for (int zero = only ? only->zero : 0; zero <= (only ? only->zero : most); zero++) {
        w->candidate.zero = (uint8_t)zero;
        w->candidate.number = w->number++;
        w->f(&w->candidate, w->ctx);
    }
}

/* Sequences of a micro-batch: powers of two, and all sequences that a coordinate of d x z has in a
 * step, or as many of them as a micro-batch may have. For each: recompute. */
static void each_micro(Walk *w) {
    const Space *s = w->s;
    int64_t data_parallel = (int64_t)w->candidate.size[AXIS_D] * w->candidate.size[AXIS_Z];
    int64_t share = (s->shape.batch / s->shape.model.S + data_parallel - 1) / data_parallel,
            fixed = s->shape.model.B;
    share = min_i64(share, max_i64(MICRO_TOKENS / s->shape.model.S, 1));
    if (!s->free_micro && fixed < share) share = fixed;
    int least = s->free_recompute ? RECOMPUTE_NONE : (int)s->shape.model.recompute,
        most = s->free_recompute ? RECOMPUTE_FULL : least;
    for (int64_t n = s->free_micro ? 1 : share; n < 2 * share; n *= 2) {
        w->candidate.micro = (int32_t)min_i64(n, share);
        for (int r = least; r <= most && shares_equal(w, data_parallel); r++) {
            w->candidate.recompute = (uint8_t)r;
            each_zero(w);
        }
    }
}

/* Ranks along x or y, at most, of a candidate with stay=y: each of its matmuls has as many panels,
 * which make its list long. */
enum { MOST_PANELS = 32 };

/* Flags that change the layout. With the others a candidate would occur twice. */
static int flags_with_effect(int X, int Y) {
    return (X > 1 ? FLAG_SP : 0) | (Y > 1 ? FLAG_HEADS : 0) | (X * Y > 1 ? FLAG_STAY : 0);
}

static void each_flags(Walk *w) {
    static const int flags[] = {0, FLAG_SP, FLAG_HEADS, FLAG_SP | FLAG_HEADS, FLAG_STAY};
    int X = w->candidate.size[AXIS_X], Y = w->candidate.size[AXIS_Y], all = flags_with_effect(X, Y);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (flags[i] == FLAG_STAY && (X > MOST_PANELS || Y > MOST_PANELS)) continue;
        if (w->scheme ? flags[i] != (candidate_flags(&w->scheme->flags) & all)
                      : (flags[i] & ~all) != 0)
            continue;
        w->candidate.flags = (uint8_t)flags[i];
        each_micro(w);
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

uint8_t candidate_flags(const Layout *l) {
    return (uint8_t)((l->sp ? FLAG_SP : 0) | (l->heads ? FLAG_HEADS : 0) |
                     (l->stay ? FLAG_STAY : 0));
}

bool scheme_has(const NamedScheme *f, const Layout *l) {
    int all = flags_with_effect(l->size[AXIS_X], l->size[AXIS_Y]);
    return has_sizes(f, l->size) && candidate_flags(l) == (candidate_flags(&f->flags) & all);
}

void candidate_each(const Space *s, const NamedScheme *scheme,
                    void (*f)(const Candidate *candidate, void *ctx), void *ctx) {
    Walk w = {.s = s, .scheme = scheme, .candidate.schedule = ANY_SCHEDULE, .f = f, .ctx = ctx};
    if (s->only) {
        memcpy(w.candidate.size, s->only->size, sizeof w.candidate.size);
        w.candidate.flags = candidate_flags(s->only);
        each_micro(&w);
        return;
    }
    int *size = w.candidate.size;
    for (int d = 1; d <= s->p; d++)
        for (int z = 1; s->p % d == 0 && z <= s->p / d; z++)
            for (int x = 1; s->p / d % z == 0 && x <= s->p / d / z; x++) {
                if (s->p / d / z % x) continue;
                size[AXIS_D] = d, size[AXIS_Z] = z, size[AXIS_X] = x;
                size[AXIS_Y] = s->p / d / z / x;
                if (scheme && !has_sizes(scheme, size)) continue;
                each_flags(&w);
            }
}

const Overlap schedules[N_SCHEDULES] = {{.bulk = false},
                                        {.bulk = true},
                                        {.bulk = true, .chunks = 2},
                                        {.bulk = true, .chunks = 4},
                                        {.bulk = true, .ring = true},
                                        {.bulk = true, .halves = true}};

int candidate_schedules(const Space *s, const Candidate *candidate, Candidate out[N_SCHEDULES]) {
    Layout l = {.sp = candidate->flags & FLAG_SP, .stay = candidate->flags & FLAG_STAY};
    bool tensor = candidate->size[AXIS_X] * candidate->size[AXIS_Y] > 1,
         even = candidate->micro % 2 == 0;
    int n = 0;
    memcpy(l.size, candidate->size, sizeof l.size);
    if (!s->free_overlap) {
        out[0] = *candidate, out[0].schedule = 0;
        return !s->shape.model.overlap.halves || even;
    }
    for (uint8_t i = 0; i < N_SCHEDULES; i++) {
        const Overlap *o = &schedules[i];
        if ((o->bulk && s->p == 1) || (o->halves && !(tensor && even)) || overlap_idle(o, &l))
            continue;
        out[n] = *candidate, out[n++].schedule = i;
    }
    return n;
}

Choice candidate_choice(const Space *s, const Candidate *candidate) {
    bool known = s->free_overlap && candidate->schedule < N_SCHEDULES;
    Choice c = {.layout = layout_of_sizes(candidate->size),
                .micro = candidate->micro,
                .recompute = (Recompute)candidate->recompute,
                .overlap = known ? schedules[candidate->schedule] : s->shape.model.overlap};
    c.layout.sp = candidate->flags & FLAG_SP;
    c.layout.heads = candidate->flags & FLAG_HEADS;
    c.layout.stay = candidate->flags & FLAG_STAY;
    c.layout.zero = candidate->zero;
    c.layout.exact = s->exact;
    return c;
}

PriceShape candidate_shape(const Space *s, const Choice *c) {
    PriceShape p = s->shape;
    p.model.B = c->micro;
    p.model.recompute = c->recompute;
    p.model.overlap = c->overlap;
    return p;
}
