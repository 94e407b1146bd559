/* matmul_cost -- predicted time of a bf16 matmul on a GPU from its schedule (matmul_schedule.h).
 * One model for two uses: the planner's prices, in seconds (parallel/plan/gpu_matmul.h), and the
 * order in which configs of matmul_sm80.cu and matmul_sm90.cu are timed, in cycles.
 *
 *     time = fill + steps x step + epilogues x epilogue + slots x slot
 *
 *   steps      along k of the busiest worker: whole waves, whole tiles, whole steps
 *   step       2 m n k FLOPs at the rate of one multiprocessor, longer where L2 or shared memory
 *              gives operands more slowly than tensor cores take them
 *   epilogue   of a tile: instructions for each element, or its bytes to and from L2. Where
 *              epilogues overlap with steps of other tiles, only the last one counts
 *   slot       fp32 sums of a part, written to L2 by one worker or read by another (split-K,
 *              Stream-K)
 *   fill       from the launch to the first step, and from the last one to the end
 *
 * So the efficiency of a shape depends on its waves, not on FLOPs alone. Constants are those of
 * data sheets and of published kernels. An H200, whose clock drops at its limit of power, took 17 %
 * longer than predicted at the median of 92 matmuls (15 % of the measured time, docs/gpu.md).
 * Source of the form: Osama et al., "Stream-K", PPoPP 2023, appendix A.1.
 */
#ifndef LAYERS_CUDA_MATMUL_COST_H
#define LAYERS_CUDA_MATMUL_COST_H

#include "layers/cuda/matmul_schedule.h"
#include "layers/matmul.h"

/* Rates of a GPU per unit of time, each of one multiprocessor. */
typedef struct MatmulGpu {
    int sms;
    double flops; // FLOPs of tensor cores
    double issue; // instructions of single threads
    double port;  // bytes from and to L2
    double fill;  // time of launch and end
    int shared;   // bytes of shared memory that a block may have
} MatmulGpu;

/* y[M,N] = epilogue(a[M,K] b[K,N] + bias + addend). */
typedef struct MatmulJob {
    int64_t M, N, K;
    int y_bytes, aux_bytes; // bytes of an element; aux_bytes 0: none
    bool addend, bias;
    Epilogue epilogue;
} MatmulJob;

/* A worker of a kernel: a block or a cluster. */
typedef struct MatmulWorker {
    MatmulTile tile;
    double sms;    // its multiprocessors: those of a cluster; 1/2 where two blocks share one
    double slower; // time of a step relative to one that is bound by FLOPs
    bool hidden;   // epilogues overlap with steps of other tiles
    int pieces;    // flags per share
} MatmulWorker;

typedef struct MatmulCost {
    MatmulSchedule schedule;
    int64_t steps, epilogues, slots; // numbers of the busiest worker
    double step, epilogue, slot;     // time of each
    double time;                     // of the whole matmul, with fill
} MatmulCost;

/* ---- an element of y ---- */

/* Instructions of a thread for an element of y: scale, round, pack, store through shared memory. A
 * tanh is an exponential, a reciprocal and some more. */
static inline double matmul_instructions(const MatmulJob *j) {
    double act = j->epilogue == EPI_ACT ? 16 : j->epilogue == EPI_DACT ? 20 : 0;
    return 4 + (j->addend ? 2 : 0) + (j->bias ? 1 : 0) + act;
}
/* Bytes per element of y: the store, addend and aux. */
static inline double matmul_element_bytes(const MatmulJob *j) {
    return j->y_bytes * (j->addend ? 2 : 1) + j->aux_bytes;
}

static inline MatmulJob matmul_job(const Matmul *p) {
    int aux_bytes = p->epilogue != EPI_NONE && p->aux ? 2 : 0;
    MatmulJob j = {
        p->M,       p->N, p->K, p->wide ? 4 : 2, aux_bytes, p->addend != NULL, p->bias != NULL,
        p->epilogue};
    return j;
}

/* ---- a worker ---- */

/* Counts steps, epilogues and slots of the busiest worker. In each round of shares the worker of a
 * last part reads the slots of the other parts, after they have been written. */
static inline void matmul_count(MatmulCost *c) {
    const MatmulSchedule *s = &c->schedule;
    int64_t n = s->workers, whole = (matmul_tiles(s) - s->streamed + n - 1) / n;
    c->steps = whole * s->steps, c->epilogues = whole, c->slots = 0;
    if (s->divided == 0) return;
    int64_t rounds = (s->divided + n - 1) / n, line = (int64_t)s->streamed * s->steps;
    int64_t parts = (s->divided + s->streamed - 1) / s->streamed + (s->divided % s->streamed != 0);
    c->steps += rounds * ((line + s->divided - 1) / s->divided);
    c->epilogues += rounds * ((s->streamed + s->divided - 1) / s->divided);
    if (parts > 1) c->slots = rounds * parts;
}

/* Local, pure. False where split-K would have less than two parts or more parts than steps, and
 * where sums of parts have no room in the workspace. */
static inline bool matmul_cost(MatmulCost *c, const MatmulGpu *g, const MatmulJob *j,
                               const MatmulWorker *w, MatmulKind kind, int parts) {
    double elements = (double)w->tile.m * w->tile.n, sms = w->sms;
    int workers = (int)(g->sms / sms);
    if (workers < 1) return false;
    c->schedule = matmul_schedule(j->M, j->N, j->K, w->tile, workers, kind, parts);
    if (kind == MATMUL_SPLIT_K && (!c->schedule.divided || parts > c->schedule.steps)) return false;
    if (!matmul_has_room(&c->schedule, &w->tile, w->pieces)) return false;
    double issued = matmul_instructions(j) / g->issue, moved = matmul_element_bytes(j) / g->port;
    c->step = 2 * elements * w->tile.k * w->slower / (g->flops * sms);
    c->epilogue = elements * (issued > moved ? issued : moved) / sms;
    c->slot = elements * (double)sizeof(float) / (g->port * sms);
    matmul_count(c);
    double steps = (double)c->steps * c->step, ends = (double)c->epilogues * c->epilogue;
    if (w->hidden) // two warpgroups or blocks alternate between steps and epilogue
        c->time = (ends > steps ? (steps + ends) / 2 : steps) + c->epilogue;
    else
        c->time = steps + ends;
    c->time += g->fill + (double)c->slots * c->slot;
    return true;
}

/* ---- configs to compute it ---- */

/* Tiles of a block are MATMUL_ROWS x a width.
 *
 *     matmul_sm90.cu  MATMUL_DEPTH of k a step. A cluster of MATMUL_PAIR blocks has as many rows in
 *                     each and fetches b once. Tiles of width MATMUL_PINGPONG or less whose y is
 *                     bf16 have the ping-pong schedule
 *     matmul_sm80.cu  MATMUL_DEPTH_SM80 of k a step; sums are kept in MATMUL_PIECES_SM80 pieces.
 *                     Two blocks of width 128 share a multiprocessor whose shared memory holds
 *                     both: one is in its epilogue while the other multiplies
 */
typedef enum MatmulKernel { MATMUL_SM90, MATMUL_SM80 } MatmulKernel;
enum { MATMUL_ROWS = 128, MATMUL_PAIR = 2, MATMUL_PINGPONG = 192 };
enum { MATMUL_DEPTH = 64, MATMUL_DEPTH_SM80 = 32, MATMUL_PIECES_SM80 = 4 };

/* Is the number of steps of all tiles small enough for a schedule, with every config? */
static inline bool matmul_is_countable(int64_t M, int64_t N, int64_t K) {
    double m = (double)(M / MATMUL_ROWS + 1), n = (double)(N / 128 + 1);
    return m * n * (double)(K / MATMUL_DEPTH_SM80 + 1) <= INT32_MAX;
}

typedef struct MatmulConfig {
    MatmulKernel kernel;
    MatmulKind kind;
    int width, blocks; // columns of a tile; blocks of a cluster, or 1
    int parts;         // parts of a tile with split-K; else 1
} MatmulConfig;

/* The number of a config encodes the whole config; it is kept in files (matmul_choices.h). */
enum { MATMUL_NUMBER_SM80 = 80 << 16 }; // above all numbers of matmul_sm90.cu
static inline int matmul_config_number(const MatmulConfig *w) {
    return w->width + 1024 * (int)w->kind + 4096 * (w->blocks - 1) + 8192 * (w->parts - 1) +
           (w->kernel == MATMUL_SM80 ? MATMUL_NUMBER_SM80 : 0);
}
static inline MatmulConfig matmul_config(int number) {
    bool sm80 = number >= MATMUL_NUMBER_SM80;
    int n = sm80 ? number - MATMUL_NUMBER_SM80 : number;
    MatmulConfig w = {sm80 ? MATMUL_SM80 : MATMUL_SM90, (MatmulKind)(n / 1024 % 4), n % 1024,
                      1 + n / 4096 % 2, 1 + n / 8192};
    return w;
}

/* The i-th config of a kernel: kind by kind, single blocks before clusters. Configs of split-K have
 * parts = 1, to be chosen later. False: there is no i-th config. */
static inline bool matmul_config_at(MatmulConfig *w, MatmulKernel kernel, int i) {
    bool sm90 = kernel == MATMUL_SM90;
    int widths = sm90 ? 3 : 2, most_blocks = sm90 ? MATMUL_PAIR : 1;
    w->kernel = kernel, w->kind = (MatmulKind)(i / (widths * most_blocks));
    w->width = 256 - i % widths * (sm90 ? 64 : 128);
    w->blocks = 1 + i / widths % most_blocks, w->parts = 1;
    return i < (MATMUL_STREAM_K + 1) * widths * most_blocks;
}

/* Time of a step relative to one that is bound by FLOPs, from the bytes per cycle of a
 * multiprocessor. Shared memory gives 128: in 16 of k a warpgroup's 64 rows take n/2 cycles of the
 * tensor cores, which read 64 + n rows of 32 bytes, while TMA writes m + n rows. L2 gives 44; this
 * value makes a cluster worth the 4 % that published kernels gain. A block fetches m rows, and its
 * part of the n columns; 128 x 256 in a cluster just fits. Where tensor cores wait, the clock rises
 * under a limit of power, so half of the slowdown counts. Published: 128 x 128 reaches 0.9 of 128 x
 * 256. */
static inline double matmul_slower(int width, int blocks) {
    double m = MATMUL_ROWS, n = width, cycles = m * n / 128;
    double shared = 32 * (m / 64 * (64 + n) + m + n) / cycles / 128;
    double l2 = 32 * (m + n / blocks) / cycles / 44, most = shared > l2 ? shared : l2;
    return most > 1 ? 1 + 0.5 * (most - 1) : 1;
}

/* Bytes of shared memory of a block of matmul_sm80.cu, for its rows and for each of its columns:
 * four steps of bf16, and 16 x 64 floats for each 64 x 64 of the tile. */
enum {
    MATMUL_SHARED_ROWS = 4 * MATMUL_DEPTH_SM80 * MATMUL_ROWS * 2,
    MATMUL_SHARED_COLUMN = 4 * MATMUL_DEPTH_SM80 * 2 + MATMUL_ROWS / 64 * 16 * 4
};
/* Number of these blocks that share a multiprocessor; 0: none fits. All are resident at once, as
 * split-K in several rounds requires (matmul_schedule.h). */
static inline int matmul_sharing(const MatmulGpu *g, int width) {
    int fit = g->shared / (MATMUL_SHARED_ROWS + width * MATMUL_SHARED_COLUMN), most = 256 / width;
    return fit < most ? fit : most;
}

/* Local, pure. The worker of a config. False where no block fits into shared memory, and for
 * activations in tiles of 256 columns of matmul_sm90.cu: a warpgroup's 128 sums per thread leave no
 * registers for them. */
static inline bool matmul_worker(MatmulWorker *x, const MatmulGpu *g, const MatmulJob *j,
                                 const MatmulConfig *w) {
    bool sm80 = w->kernel == MATMUL_SM80;
    int sharing = sm80 ? matmul_sharing(g, w->width) : 1;
    x->tile.m = MATMUL_ROWS * w->blocks, x->tile.n = w->width;
    x->tile.k = sm80 ? MATMUL_DEPTH_SM80 : MATMUL_DEPTH;
    x->sms = (double)w->blocks / (sharing > 0 ? sharing : 1);
    x->slower = sm80 ? 1 : matmul_slower(w->width, w->blocks);
    x->hidden = sm80 ? sharing > 1 : w->width <= MATMUL_PINGPONG && j->y_bytes == 2;
    x->pieces = sm80 ? MATMUL_PIECES_SM80 : w->blocks * MATMUL_ROWS / 64;
    return sharing > 0 && (sm80 || w->width < 256 || j->epilogue == EPI_NONE);
}

/* Local, pure. matmul_cost of config w, and its worker in x. With split-K and w->parts = 1 it finds
 * the fastest number of parts and sets w->parts; numbers above 2 that fill more than a wave are not
 * tried. */
static inline bool matmul_cost_of_config(MatmulCost *c, MatmulWorker *x, const MatmulGpu *g,
                                         const MatmulJob *j, MatmulConfig *w) {
    MatmulCost one;
    bool any = false, more = true;
    if (!matmul_worker(x, g, j, w)) return false;
    if (w->kind != MATMUL_SPLIT_K || w->parts > 1)
        return matmul_cost(c, g, j, x, w->kind, w->parts);
    for (int n = 2; more && matmul_cost(&one, g, j, x, w->kind, n); n++) {
        if (!any || one.time < c->time) *c = one, w->parts = n;
        any = true;
        more = (int64_t)matmul_tiles(&one.schedule) * (n + 1) <= one.schedule.workers;
    }
    return any;
}

#endif
