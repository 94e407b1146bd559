#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "data/stamp.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/comm/ranks.h"
#include "parallel/plan/calibrate_parts.h"
#include "parallel/plan/quantity.h"

static const double works_share = 0.5;   // of the time, at most; collectives get the rest
static const double latency_share = 0.5; // of the collectives' time, at most, for the small sizes
static const double end_share = 0.9;     // of the budget: when collectives are to be done
// bytes of a work's operands; a larger work is not measured
static const size_t most_operands = 1u << 30;
// bytes of the operands' window: at most of all ranks together; at least of each rank
static const size_t most_window = 256u << 20, least_window = 32u << 20;

typedef struct Bench {
    const CalibrateWhere *where;
    const CalibrateList *list;
    Work *work;   // listed works that the table lacks
    CollJob *job; // listed collectives that the table lacks
    int n_works, n_jobs;
    int measured;     // the first of the works
    WorkMemory bytes; // for works
    size_t n_memory;  // bytes for works and collectives
    Arena memory;
    Meter meter;
    Calibration *c;
} Bench;

/* ---- what the table lacks */

/* To measure slowdowns matmuls of about a millisecond each run beside a collective of at most
 * BESIDE_BYTES. */
enum { BESIDE_BYTES = 4 << 20, BESIDE_TIMES = 5, BESIDE_TRIES = 2 };
static const Work matmul_beside = {.kind = WORK_MATMUL, .rows = 128, .K = 512, .N = 512};

/* Sets b->work to the works that the table lacks, or has with less than half of their rows; and
 * b->bytes to the memory for them. */
static void find_works(Bench *b) {
    size_t all = 0, most = 0, window = most_window / (size_t)world_size(b->where->world);
    b->work = mem_calloc((size_t)b->list->n_works + 1, sizeof *b->work);
    for (int i = 0; i < b->list->n_works; i++) {
        const Work *w = &b->list->work[i];
        const WorkCost *have = calibration_find_work(b->c, w);
        WorkMemory bytes = calibrate_work_memory(b->where, w);
        if (bytes.operands > most_operands || w->rows < 1) continue;
        all += bytes.operands;
        if (have && have->work.rows * 2 >= w->rows) continue;
        most = max_size(most, bytes.operands);
        b->bytes.workspace = max_size(b->bytes.workspace, bytes.workspace);
        b->work[b->n_works++] = *w;
    }
    window = max_size(window, least_window);
    b->bytes.operands = max_size(min_size(all, window), most);
}

/* Lists the works and collectives that the table lacks, and plans memory for them. False: the table
 * lacks nothing. */
static bool find_missing(Bench *b) {
    WorkMemory beside = calibrate_work_memory(b->where, &matmul_beside);
    b->n_memory =
        beside.workspace + beside.operands + (size_t)calibrate_collective_bytes(BESIDE_BYTES);
    find_works(b);
    b->n_memory = max_size(b->n_memory, b->bytes.workspace + b->bytes.operands);
    b->job = calibrate_jobs(b->c, b->where->machine, b->list, &b->n_jobs);
    for (int i = 0; i < b->n_jobs; i++) {
        int64_t most = calibrate_size(&b->job[i], b->where->machine, INFINITY, 1);
        b->n_memory = max_size(b->n_memory, (size_t)calibrate_collective_bytes(most));
    }
    return b->n_jobs > 0 || b->n_works > 0;
}

/* ---- collectives, and matmuls beside them */

/* A collective, and matmuls that take a little longer than the collective. */
typedef struct Beside {
    Bench *b;
    Comm *comm;
    CollOp op;
    int64_t bytes;
    int matmuls;
} Beside;

/* Seconds of the collective alone, of the matmuls alone, and of both at once: each the least of
 * `times` measurements, as other programs only add time. The three alternate. */
enum { COMMUNICATES, COMPUTES, BOTH, N_BESIDE };
static void beside_seconds(const Beside *x, int times, double least[N_BESIDE]) {
    const CalibrateWhere *w = x->b->where;
    WorkMemory bytes = calibrate_work_memory(w, &matmul_beside);
    char *operands = x->b->memory.base + bytes.workspace, *beside = operands + bytes.operands;
    for (int i = 0; i < N_BESIDE * times; i++) {
        int which = i % N_BESIDE;
        coll_barrier(world_comm(w->world));
        double begin = now_s();
        Ticket t = {0};
        if (which != COMPUTES) t = calibrate_collective_start(x->comm, x->op, x->bytes, beside);
        for (int k = 0; which != COMMUNICATES && k < x->matmuls; k++)
            work_run(&matmul_beside, w->kernels, w->team, operands, x->b->memory.base);
        coll_wait(t);
        double s = now_s() - begin;
        least[which] = i < N_BESIDE ? s : fmin(least[which], s);
    }
    for (int i = 0; i < N_BESIDE; i++) least[i] = meter_agree(&x->b->meter, least[i]).mean;
}

/* A collective of C seconds and kernels of W > C seconds take C + W - h C together: h C seconds of
 * the collective were hidden. So kernels ran at a share h of their speed beside it, and the
 * slowdown is 1 / h. */
static double measure_slowdown(Bench *b, Comm *comm, CollOp op, int64_t bytes) {
    const double nothing = 100;
    Beside x = {.b = b, .comm = comm, .op = op, .bytes = bytes, .matmuls = 1};
    double least[N_BESIDE];
    beside_seconds(&x, BESIDE_TRIES, least);
    x.matmuls = (int)(1.2 * least[COMMUNICATES] / least[COMPUTES]) + 1;
    beside_seconds(&x, BESIDE_TIMES, least);
    double C = least[COMMUNICATES], W = least[COMPUTES];
    double hidden = fmin(fmax(C + W - least[BOTH], C / nothing), C);
    return C / hidden;
}

/* Collective over the world. Splits it into g and its siblings; returns this rank's group. */
static Comm *comm_at(World *w, const CollGroup *g) {
    int rank = world_rank(w), base = rank, index = 0;
    const Placement *p = &g->place;
    for (int i = 0; i < p->n; i++) {
        int coordinate = rank / p->stride[i] % p->size[i];
        base -= coordinate * p->stride[i];
        index = index * p->size[i] + coordinate;
    }
    Comm *c = world_split(w, base, index, g->label);
    assert(comm_size(c) == g->size);
    return c;
}

/* Calibration.slowdown of groups inside a node, or across nodes: measured with the largest listed
 * collective, or with so much of it as takes some 10 ms. (A small one spends most of its time on
 * handshakes.) 0 if no such collective is listed. 100, nothing is hidden, in two cases: between
 * threads, whose collectives do not progress beside kernels; and inside a node whose ranks share
 * cores, as the copies need the cores that compute. */
static double slowdown_of(Bench *b, bool across) {
    const double nothing = 100, some = 10e-3; // seconds of the collective
    double seconds;
    if (!b->where->world->backend->polled || (b->c->oversubscription > 1 && !across))
        return nothing;
    const ListedCollective *l = calibrate_largest(b->list, b->where->machine, across);
    if (!l) return 0;
    int64_t most = min_i64(l->most, BESIDE_BYTES);
    while (most > COLL_SMALL && calibration_collective(b->c, &l->group, l->op, most, &seconds) &&
           seconds > some)
        most /= 2;
    meter_progress(&b->meter, "kernels beside %s of %d ranks", coll_op_name(l->op), l->group.size);
    Comm *comm = comm_at(b->where->world, &l->group);
    double slowdown = measure_slowdown(b, comm, l->op, most);
    comm_free(comm);
    return slowdown;
}

static void measure_size(Bench *b, CollJob *job, int64_t bytes) {
    char text[64];
    meter_progress(&b->meter, "%s of %d ranks, %s", coll_op_name(job->cost.op), job->group.size,
                   quantity_short((double)bytes, AS_BYTES, "KiB", text));
    calibrate_collective(&b->meter, &job->group, job->comm, bytes, b->memory.base, &job->cost);
}

/* Measures small sizes, job after job, until the time is up. Returns how many jobs. */
static int measure_latencies(Bench *b, double until) {
    int n = 0;
    for (; n < b->n_jobs && b->meter.elapsed < until; n++) {
        CollJob *job = &b->job[n];
        double begin = b->meter.elapsed;
        for (int i = 0; i < n && !job->borrowed; i++) {
            job->borrowed = machine_alike(b->where->machine, &b->job[i].group, &job->group);
            if (job->borrowed) job->comm = b->job[i].comm, job->group = b->job[i].group;
        }
        if (!job->borrowed) job->comm = comm_at(b->where->world, &job->group);
        job->cost.place = job->group.place;
        measure_size(b, job, COLL_SMALL);
        job->wall = b->meter.elapsed - begin;
    }
    return n;
}

/* Measures large sizes of the first n jobs, each with an equal share of the time that is left. The
 * time that a job took corrects the prediction for the next (`slow`). If the shares are too small
 * the last jobs are left out. */
static void measure_bandwidths(Bench *b, int n, double until) {
    const Machine *m = b->where->machine;
    const CollBackend *backend = b->where->world->backend;
    int64_t size[COLL_POINTS];
    double slow = 1;
    for (int i = 0; i < n; i++) {
        CollJob *job = &b->job[i];
        double seconds = 0, left = until - b->meter.elapsed;
        while (n > i && (seconds = calibrate_seconds(job, left / (n - i))) == 0) n--;
        if (n == i) return;
        int64_t largest = calibrate_size(job, m, seconds, slow);
        int n_sizes = calibrate_points(job, largest, backend, size);
        for (int k = 0; k < n_sizes; k++) measure_size(b, job, size[k]);
        double took = job->cost.seconds[job->cost.n - 1] - job->cost.seconds[0],
               expected = fmax(seconds, job->cost.seconds[0] / 2);
        if (largest < job->cost.most) slow = fmin(fmax(slow * took / expected, 0.1), 100);
    }
}

static void measure_collectives(Bench *b) {
    const double reserve = 0.1; // of the time, for slowdown_of
    double until = end_share * b->where->budget, left = until - b->meter.elapsed;
    int n = measure_latencies(b, b->meter.elapsed + latency_share * left);
    measure_bandwidths(b, n, until - reserve * left);
    for (int i = 0; i < n; i++) {
        CollJob *job = &b->job[i];
        calibrate_extend(&job->cost, b->where->machine);
        calibration_add_collective(b->c, &job->cost);
        if (!job->borrowed) comm_free(job->comm);
    }
    calibrate_fill(b->c, b->where->machine, b->list);
    for (int across = 0; across < 2; across++)
        if (b->c->slowdown[across] == 0) b->c->slowdown[across] = slowdown_of(b, across);
}

/* Adds entries for works for which there was no time, from the nearest measured work of their kind.
 * A kind of which no work was measured stays missing: it is priced by the description, and the next
 * run measures it. */
static void derive_works(Bench *b) {
    double seconds;
    for (int i = b->measured; i < b->n_works; i++) {
        const Work *w = &b->work[i];
        if (!calibration_work(b->c, w, &seconds)) continue;
        calibration_add_work(
            b->c, &(WorkCost){.work = *w, .per_row = seconds / (double)w->rows, .derived = true});
    }
}

/* ---- all of it */

/* Did the time suffice for at most one of several kernels, or for no size of a collective beyond
 * its latency? Then other programs had the processor, or it is very slow. Warns on rank 0. */
static bool cut_short(const Bench *b) {
    bool bandwidth = false, wanted = false;
    for (int i = 0; i < b->n_jobs; i++) {
        const CollCost *c = &b->job[i].cost;
        bandwidth |= (double)c->measured > c->bytes[0];
        wanted |= (double)c->most > fmax(COLL_SMALL, c->bytes[0]);
    }
    if ((b->measured > 1 || b->n_works <= b->measured) && (bandwidth || !wanted)) return false;
    if (world_rank(b->where->world) == 0)
        warn("%d of %d kernels and %s bandwidth were measured in %.0f s: other programs keep this "
             "machine busy, or it is very slow; the next run measures again",
             b->measured, b->n_works, bandwidth ? "a collective's" : "no collective's",
             b->c->seconds);
    return true;
}

static void measure(Bench *b) {
    const CalibrateWhere *w = b->where;
    b->memory = arena_block("calibration", NULL, b->n_memory);
    meter_start(&b->meter, w, b->c->oversubscription > 1);
    b->measured = calibrate_works(&b->meter, b->work, b->n_works, b->memory.base, b->bytes,
                                  works_share, w->budget, b->c);
    derive_works(b);
    measure_collectives(b);
    meter_agree(&b->meter, 0);
    b->c->seconds = b->meter.elapsed;
    stamp_time(b->c->measured, sizeof b->c->measured);
    group_broadcast(&b->meter.all, b->c->measured, sizeof b->c->measured);
    meter_end(&b->meter);
    arena_free(&b->memory);
}

void calibrate(Calibration *c, const CalibrateWhere *w, const CalibrateList *list) {
    Bench b = {.where = w, .list = list, .c = c};
    if (find_missing(&b)) {
        measure(&b);
        if (!cut_short(&b) && world_rank(w->world) == 0) calibration_save(c, w->key);
    } else {
        calibrate_fill(c, w->machine, list); // entries for groups that lie like those in the table
    }
    mem_free(b.work), mem_free(b.job);
}

bool calibrate_derived(Calibration *c, const Machine *described, const CalibrateList *list) {
    double seconds;
    for (int i = 0; i < list->n_works; i++)
        if (!calibration_work(c, &list->work[i], &seconds)) return false;
    return calibrate_fill(c, described, list);
}
