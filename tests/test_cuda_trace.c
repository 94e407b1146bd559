/* Two steps of GPUs as --trace sees them: marks in the streams of kernels and of collectives. */
#include "base/debug.h"
#include "parallel/plan/trace.h"
#include "tests/emu/calls.h"
#include "tests/mesh_run.h"
#include "tests/test.h"

static const double tick = 1e-6; // that times between events may be wrong: they are floats of ms

/* Steps: one that is counted beside those that are traced, the first of which is the third. */
enum { RANKS = 2, UNTRACED = 1, FIRST = 2, STEPS = FIRST + TRACE_STEPS };

typedef struct Traced {
    int ranks;
    Trace t[RANKS];
    EmuCalls begin[STEPS + 1], end[STEPS + 1]; // of a step, by all ranks
    int kernels[RANKS];                        // of the lists
    int sends[RANKS];                          // predicted
} Traced;

static void note(World *w, EmuCalls *calls) {
    coll_barrier(world_comm(w));
    if (world_rank(w) == 0) *calls = emu_calls;
    coll_barrier(world_comm(w));
}

static void trace_some(Model *m, int step, void *ctx) {
    Traced *all = ctx;
    World *w = m->grid->world;
    Trace *t = &all->t[world_rank(w)];
    int which = step - FIRST;
    all->kernels[world_rank(w)] = mesh_kernels(m);
    if (which >= 0 && which < TRACE_STEPS) trace_end(t, m, w);
    note(w, &all->end[step]);
    if (which + 1 >= 0 && which + 1 < TRACE_STEPS) trace_begin(t, which + 1, step + 2, m, w);
    note(w, &all->begin[step + 1]);
}

/* What a step of each rank has, and room for it. */
static void predict(Traced *all, const MeshRun *r) {
    for (int rank = 0; rank < all->ranks; rank++) {
        all->sends[rank] = mesh_collectives(r, rank);
        trace_create(&all->t[rank], 4096, 4096);
    }
}

/* How ranks are: peers, on one device or two; or by NCCL, with one each. */
typedef struct Case {
    const char *layout, *overlap;
    int devices;
    bool nccl, late, bf16;
    unsigned shuffle;
} Case;

static MeshRun run_with(const Case *c, Traced *all) {
    MeshRun r = {
        .model = "layers=1,heads=2,channels=8,vocab=13,seq=4",
        .layout = c->layout,
        .overlap = c->overlap,
        .sequences = 4,
        .S = 4,
        .steps = STEPS,
        .cuda = true,
        .emu = {.late = c->late, .shuffle = c->shuffle, .devices = c->devices, .apart = c->nccl},
        .bf16 = c->bf16};
    if (all) predict(all, &r), r.after = trace_some, r.ctx = all;
    mesh_run(&r);
    return r;
}

/* Steps take the bits that they take untraced; spans are to be looked at. */
static bool trace(const Case *c, Traced *all) {
    *all = (Traced){.ranks = strcmp(c->layout, "d1") == 0 ? 1 : RANKS};
    OWNED(mesh_run_free) MeshRun plain = run_with(c, NULL), r = run_with(c, all);
    return mesh_same_bits(&plain, &r);
}

static const Case cases[] = {{"d1", NULL, 1, false, true, true, 0},
                             {"x2", "bulk", 1, false, false, true, 0},
                             {"x2+sp", "bulk+ring", 1, false, true, false, 5},
                             {"d2+zero1", "bulk", 2, false, true, true, 0},
                             {"x2", "bulk+halves", 2, true, false, false, 0},
                             {"d2+zero1", "bulk", 2, true, true, true, 3}};

/* The first thing that is wrong with a rank's spans; NULL: nothing. They are those of two streams,
 * in each of which one begins when the one before it has ended. */
static const char *wrong_spans(const Traced *all, int rank) {
    const Trace *t = &all->t[rank];
    int kernels[TRACE_STEPS] = {0}, collectives[TRACE_STEPS] = {0};
    double own = 0, urgent = 0, error = t->device_error + tick;
    for (int64_t i = 0; i < t->n; i++) {
        const TraceSpan *s = &t->span[i];
        double *busy = s->label ? &urgent : &own;
        if (s->begin < t->step[s->step].begin - error || s->end > t->step[s->step].end + error)
            return "is outside of its step";
        if (s->end < s->begin) return "ends before it begins";
        if (s->begin < *busy - tick) return "begins before the one before it in its stream ends";
        *busy = s->end;
        (s->label ? collectives : kernels)[s->step]++;
        if (!s->label) continue;
        if (s->wait < t->step[s->step].begin - error || s->waited > t->step[s->step].end + error)
            return "is waited for outside of its step";
        if (s->started != s->begin || s->waited < s->wait) return "ends its wait before it begins";
        if (s->waited < s->end - tick) return "is complete after it was waited for";
    }
    for (int i = 0; i < TRACE_STEPS; i++) {
        if (kernels[i] != all->kernels[rank]) return "of a kernel lacks, or is too much";
        if (collectives[i] != all->sends[rank]) return "of a collective lacks, or is too much";
    }
    if (error > 1e-2) return "is of a clock that is not right";
    return t->lost ? "was lost" : NULL;
}

/* Waits, allocations and times of a traced step, beside those of one that is not. */
static const char *wrong_calls(const Traced *all, int step) {
    const EmuCalls *begin = &all->begin[step], *end = &all->end[step],
                   *begin_0 = &all->begin[UNTRACED], *end_0 = &all->end[UNTRACED];
    int64_t kernels = 0, sends = 0, waits = end_0->waits - begin_0->waits;
    for (int r = 0; r < all->ranks; r++) kernels += all->kernels[r], sends += all->sends[r];
    if (end_0->times != begin_0->times) return "is timed that nobody traces";
    if (end->waits - begin->waits != waits + all->ranks) return "waits more than once more";
    if (end->memory != begin->memory || end->objects != begin->objects) return "allocates";
    if (end->launches - begin->launches != end_0->launches - begin_0->launches)
        return "does something else";
    if (end->times - begin->times != 2 * kernels + 2 * sends) return "has other times";
    if (end->urgent_times - begin->urgent_times != 2 * sends)
        return "has other times in the stream of collectives";
    return NULL;
}

TEST_EMULATED(cuda_trace_has_every_kernel_and_collective_and_waits_once_more_in_a_step) {
    for (int i = 0; i < N_OF(cases);
         i += BASE_DEBUG && !test_long() ? 3 : 1) { // sanitizers are slow
        Traced all;
        if (!trace(&cases[i], &all)) test_fail("case %d: other bits", i);
        for (int r = 0; r < all.ranks; r++) {
            const char *wrong = wrong_spans(&all, r);
            if (wrong) test_fail("case %d, rank %d: a span %s", i, r, wrong);
        }
        for (int step = FIRST; step < STEPS; step++) {
            const char *wrong = wrong_calls(&all, step);
            if (wrong) test_fail("case %d: step %d %s", i, step, wrong);
        }
        for (int r = 0; r < all.ranks; r++) trace_free(&all.t[r]);
    }
}
