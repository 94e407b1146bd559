#include "parallel/plan/gpu_matmul.h"

#include <math.h>

/* Tiles of layers/matmul_sm90.cu, the widest first. */
static const MatmulTile tiles[] = {{128, 256, 64}, {128, 192, 64}, {128, 128, 64}};
enum { N_TILES = sizeof tiles / sizeof *tiles };

/* ---- constants of a GPU ---- */

/* Launch to first step: barriers, the first boxes from memory; the last stores. With a launch that
 * overlaps the kernel before: half of it. */
static const double fill = 2e-6;

/* Bytes of shared memory in a cycle of a multiprocessor. */
static const double shared_rate = 128;

/* Time of a step relative to one that FLOPs bound. In 16 of k a warpgroup's 64 rows take n/2 cycles
 * of the tensor cores, which read 64 + n rows of 32 bytes; TMA writes m + n rows. 128 x 256 just
 * fits. Tiles that read more are bound by shared memory, but under a limit of power the clock rises
 * where tensor cores wait: half is taken back. Published: 128 x 128 reaches 0.9 of 128 x 256. */
static double slower(const MatmulTile *t) {
    double m = t->m, n = t->n;
    double bytes = 32 * (m / 64 * (64 + n) + m + n), cycles = m * n / 128;
    return 1 + 0.5 * fmax(0, bytes / cycles / shared_rate - 1);
}

/* Instructions for an element of y, of a thread: scale, round, pack, store through shared memory;
 * tanh is an exponential, a reciprocal and what surrounds them. */
static double slots(const Work *w) {
    double n = 4;
    if (w->flags & WORK_ADDEND) n += 2;
    if (w->flags & WORK_BIAS && w->kind != WORK_DW) n += 1;
    if (w->flags & WORK_EPI_ACT) n += 16;
    if (w->flags & WORK_EPI_DACT) n += 20;
    return n;
}

/* Bytes for an element of y: stored, addend and aux. */
static double element_bytes(const Work *w) {
    double word = w->flags & WORK_WORDS ? 2 : 4, y = w->kind == WORK_DW ? 4 : word;
    double aux = w->flags & (WORK_EPI_ACT | WORK_EPI_DACT) ? word : 0;
    return y * (w->flags & WORK_ADDEND ? 2 : 1) + aux;
}

/* ---- a multiprocessor ---- */

/* Seconds of one multiprocessor while all compute. */
static void set_rates(GpuMatmul *g, const Machine *m, const Work *w) {
    double elements = (double)g->tile.m * g->tile.n, sms = m->sms;
    double issue = m->flops[0] / 2 / sms;   // a multiply-add of fp32 is an instruction
    double port = 2 * m->memory_rate / sms; // L2 has about twice the rate of memory
    g->step = 2 * elements * g->tile.k * slower(&g->tile) * sms / m->flops[1];
    g->epilogue = elements * fmax(slots(w) / issue, element_bytes(w) / port);
    g->slot = elements * sizeof(float) / port;
    g->memory = work_bytes(w) / m->memory_rate;
}

/* What the busiest worker does. */
typedef struct Load {
    int64_t steps, epilogues, slots; // slots: of fp32 sums, written or read
} Load;

static int64_t over(int64_t n, int64_t by) {
    return (n + by - 1) / by;
}

/* The worker of last parts reads the slots of the others, after they have been written, in each
 * round. */
static Load split_load(int64_t n, int64_t steps, int workers, int parts) {
    int64_t rounds = over(n * parts, workers);
    return (Load){rounds * over(steps, parts), rounds, parts > 1 ? rounds * parts : 0};
}

/* Two tiles a worker at most, then whole waves; or shares of less than a tile. */
static Load stream_load(int64_t n, int64_t steps, int workers) {
    int64_t whole = n / workers - 1, rest = n % workers;
    if (rest == 0) return split_load(n, steps, workers, 1);
    if (n > workers)
        return (Load){over((workers + rest) * steps, workers) + whole * steps, whole + 2, 2};
    int64_t of_steps = n * steps / MATMUL_LEAST_STEPS, of_tiles = n * MATMUL_MOST_SHARES;
    int64_t shares = of_steps < of_tiles ? of_steps : of_tiles;
    shares = shares < n ? n : shares < workers ? shares : workers;
    int64_t parts = over(shares, n) + (shares % n != 0);
    return (Load){over(n * steps, shares), 1, parts > 1 ? parts : 0};
}

/* ---- the fastest ---- */

bool gpu_matmul_is(const Machine *m, const Work *w) {
    return m->sms > 0 && w->kind <= WORK_DW && (w->flags & WORK_BF16) != 0 && work_flops(w) > 0;
}

void gpu_matmul_sizes(const Work *w, int64_t size[3]) {
    size[0] = w->kind == WORK_DW ? w->a : w->rows;
    size[1] = w->kind == WORK_DX ? w->a : w->b;
    size[2] = w->kind == WORK_XW ? w->a : w->kind == WORK_DX ? w->b : w->rows;
}

/* Takes g with that load where it is faster than the best. */
static void take(GpuMatmul *best, GpuMatmul *g, const Load *l, const Machine *m, const Work *w) {
    const MatmulTile *t = &g->tile;
    g->seconds = fill + (double)l->steps * g->step + (double)l->epilogues * g->epilogue +
                 (double)l->slots * g->slot;
    g->seconds = fmax(g->seconds, g->memory);
    if (best->seconds > 0 && g->seconds >= best->seconds) return;
    *best = *g;
    best->busy = work_flops(w) / (2.0 * t->m * t->n * t->k * (double)l->steps * (double)m->sms);
}

static void take_kind(GpuMatmul *best, const Machine *m, const Work *w, MatmulKind kind) {
    int64_t size[3];
    gpu_matmul_sizes(w, size);
    for (int i = 0; i < N_TILES; i++) {
        GpuMatmul g = {.kind = kind, .tile = tiles[i], .parts = 1};
        int64_t n = over(size[0], g.tile.m) * over(size[1], g.tile.n),
                steps = over(size[2], g.tile.k);
        set_rates(&g, m, w);
        g.tiles = n, g.waves = (double)n / m->sms;
        Load l = kind == MATMUL_STREAM_K ? stream_load(n, steps, m->sms)
                                         : split_load(n, steps, m->sms, 1);
        if (kind != MATMUL_SPLIT_K) take(best, &g, &l, m, w);
        // more parts than fill a wave are not tried
        for (g.parts = 2; kind == MATMUL_SPLIT_K && (g.parts == 2 || n * g.parts <= m->sms);
             g.parts++) {
            if (g.parts > steps) break;
            l = split_load(n, steps, m->sms, g.parts);
            take(best, &g, &l, m, w);
        }
    }
}

GpuMatmul gpu_matmul_of_kind(const Machine *m, const Work *w, MatmulKind kind) {
    GpuMatmul best = {.seconds = 0};
    take_kind(&best, m, w, kind);
    return best;
}

GpuMatmul gpu_matmul(const Machine *m, const Work *w) {
    GpuMatmul best = {.seconds = 0};
    for (int kind = MATMUL_DATA_PARALLEL; kind <= MATMUL_STREAM_K; kind++)
        take_kind(&best, m, w, (MatmulKind)kind);
    return best;
}

double gpu_matmul_seconds(const Machine *m, const Work *w) {
    static _Thread_local struct {
        Work w;
        double flops[2], memory_rate, seconds;
        int sms;
    } known[512], *at;
    uint64_t h = ((uint64_t)w->rows * 31 + (uint64_t)w->a) * 31 + (uint64_t)w->b;
    h = ((h * 31 + w->flags) * 31 + w->kind) * 0x9e3779b97f4a7c15u;
    at = &known[h >> 55];
    if (at->w.rows == w->rows && work_alike(&at->w, w) && at->sms == m->sms &&
        at->flops[0] == m->flops[0] && at->flops[1] == m->flops[1] &&
        at->memory_rate == m->memory_rate)
        return at->seconds;
    at->w = *w, at->sms = m->sms, at->memory_rate = m->memory_rate;
    at->flops[0] = m->flops[0], at->flops[1] = m->flops[1];
    return at->seconds = gpu_matmul(m, w).seconds;
}

MatmulSchedule gpu_matmul_schedule(const Machine *m, const Work *w, const GpuMatmul *g) {
    int64_t size[3];
    gpu_matmul_sizes(w, size);
    return matmul_schedule(size[0], size[1], size[2], g->tile, m->sms, g->kind, g->parts);
}
