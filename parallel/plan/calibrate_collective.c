/* Measures one collective: on all sibling groups at once, each size first with data whose result is
 * known. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "parallel/comm/coll_backend.h"
#include "parallel/plan/calibrate_parts.h"

enum { REPEATS = 4, STREAM = 4 }; // timed calls; calls under way at once (run_stream)

const ListedCollective *calibrate_largest(const CalibrateList *list, const Machine *m,
                                          bool across) {
    const ListedCollective *largest = NULL;
    for (int i = 0; i < list->n_collectives; i++) {
        const ListedCollective *l = &list->collective[i];
        if (machine_across(m, &l->group) == across && (!largest || l->most > largest->most))
            largest = l;
    }
    return largest;
}

/* A collective that is called again and again. */
typedef struct TimedCall {
    Comm *comm;
    CollCall call;
    int64_t n; // floats of the whole tensor
} TimedCall;

/* memory: the whole tensor and, behind it, a block (or a second tensor). all_reduce and broadcast
 * work in place, as in training. */
static TimedCall timed_call(Comm *c, CollOp op, int64_t bytes, void *memory) {
    int64_t size = comm_size(c), n = bytes / (int64_t)sizeof(float);
    int64_t block = !coll_has_blocks(op) ? n : n / size > 0 ? n / size : 1;
    int64_t whole = coll_has_blocks(op) ? block * size : n;
    float *all = memory, *beside = all + (whole + 31) / 32 * 32;
    bool gather = op == COLL_ALL_GATHER, in_place = op == COLL_ALL_REDUCE || op == COLL_BROADCAST;
    return (TimedCall){.comm = c,
                       .n = whole,
                       .call = {.op = op,
                                .type = COLL_F32,
                                .rows = 1,
                                .cols = block,
                                .root = op == COLL_SHIFT ? 1 : 0,
                                .src = gather ? beside : all,
                                .dst = gather || in_place ? all : beside,
                                .what = "calibration"}};
}

int64_t calibrate_collective_bytes(int64_t bytes) {
    return 2 * (bytes + 4096); // 4096: a block has a float at least, of up to 1000 ranks
}

static void run_once(void *ctx) {
    const TimedCall *s = ctx;
    coll_run(s->comm, &s->call);
}

bool calibrate_far(double latency) {
    return latency > 1e-3;
}

int calibrate_calls(double latency) {
    return 2 + (calibrate_far(latency) ? STREAM : 0);
}

/* Several calls under way at once. They open TCP's window, which takes a while where latency is
 * high; in training many collectives keep it open. */
static void run_stream(void *ctx) {
    const TimedCall *s = ctx;
    Ticket t[STREAM];
    for (int i = 0; i < STREAM; i++) t[i] = coll_start(s->comm, &s->call);
    for (int i = 0; i < STREAM; i++) coll_wait(t[i]);
}

Ticket calibrate_collective_start(Comm *c, CollOp op, int64_t bytes, void *memory) {
    TimedCall s = timed_call(c, op, bytes, memory);
    return coll_start(c, &s.call);
}

/* Element i of rank r's data; and its sum over the group. Small integers: sums are exact. */
static float value(int64_t i, int r) {
    return (float)(i % 251 + r);
}
static float sum_of_values(int64_t i, int size) {
    return (float)(i % 251 * size + size * (size - 1) / 2);
}

/* Fills the destination with -1, which no result has, then the source with value(). */
static void fill(const TimedCall *s) {
    const CollCall *call = &s->call;
    int me = comm_rank(s->comm), size = comm_size(s->comm);
    int64_t block = call->cols, first = call->op == COLL_ALL_GATHER ? me * block : 0;
    int64_t n_src = call->op == COLL_REDUCE_SCATTER ? block * size : block,
            n_dst = call->op == COLL_ALL_GATHER ? block * size : block;
    float *src = (float *)(uintptr_t)call->src, *dst = call->dst;
    for (int64_t i = 0; i < n_dst; i++) dst[i] = -1;
    bool brings = call->op != COLL_BROADCAST || me == call->root;
    for (int64_t i = 0; i < n_src && brings; i++) src[i] = value(first + i, me);
}

/* Has this rank the result that follows from value()? */
static bool data_right(const TimedCall *s) {
    const CollCall *call = &s->call;
    int me = comm_rank(s->comm), size = comm_size(s->comm);
    int64_t block = call->cols, wrong = 0;
    const float *dst = call->dst;
    if (call->op == COLL_REDUCE && me != call->root) return true;
    if (call->op == COLL_ALL_GATHER) {
        for (int r = 0; r < size; r++)
            for (int64_t i = r * block; i < (r + 1) * block; i++) wrong += dst[i] != value(i, r);
        return wrong == 0;
    }
    int64_t first = call->op == COLL_REDUCE_SCATTER ? me * block : 0;
    bool taken = call->op == COLL_BROADCAST || call->op == COLL_SHIFT;
    int from = call->op == COLL_SHIFT ? (me - call->root + size) % size : call->root;
    for (int64_t i = 0; i < block; i++)
        wrong += dst[i] != (taken ? value(i, from) : sum_of_values(first + i, size));
    return wrong == 0;
}

/* Runs the collective once; returns its seconds. Ends the job when a rank has wrong data. */
static double check(Meter *m, TimedCall *s, const CollGroup *g) {
    fill(s);
    double seconds = meter_once(m, run_once, s, false).slowest;
    bool mine = data_right(s);
    if (meter_agree(m, mine ? 0 : 1).slowest == 0) return seconds;
    char who[160] = "";
    size_t at = 0;
    for (int r = 0; r < m->all.size; r++)
        if (m->rank[2 * r] > 0 && at < sizeof who - 16)
            at += (size_t)snprintf(who + at, sizeof who - at, "%s%d", at ? ", " : "", r);
    if (m->all.rank > 0) ranks_follow(m->where->world);
    die("%s of %" PRId64 " bytes along %s (groups of %d ranks) brings wrong data to rank %s: the "
        "network or its software is broken; try another one",
        coll_op_name(s->call.op), s->n * (int64_t)sizeof(float), g->label, g->size, who);
}

void calibrate_collective(Meter *m, const CollGroup *g, Comm *c, int64_t bytes, void *memory,
                          CollCost *cost) {
    TimedCall s = timed_call(c, cost->op, bytes, memory);
    double last = cost->n > 0 ? cost->seconds[cost->n - 1] : 0;
    bytes = s.n * (int64_t)sizeof(float); // at least a float for each rank
    if (bytes <= cost->measured) return;
    double about = check(m, &s, g), seconds = about;
    memset(memory, 0, (size_t)calibrate_collective_bytes(bytes)); // repeated sums in place stay 0
    if (calibrate_far(last)) meter_once(m, run_stream, &s, false);
    seconds = fmin(seconds, meter_run(m, run_once, &s, about, REPEATS, false).slowest);
    cost->bytes[cost->n] = (double)bytes;
    cost->seconds[cost->n++] = fmax(seconds, last);
    cost->measured = bytes;
}
