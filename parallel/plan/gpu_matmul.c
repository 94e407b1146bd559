#include "parallel/plan/gpu_matmul.h"

#include <math.h>

/* Launch to first step: barriers, the first boxes from memory; the last stores. With a launch that
 * overlaps the kernel before: half of it. */
static const double fill = 2e-6;

/* A multiprocessor while all compute: a multiply-add of fp32 is an instruction, and L2 has about
 * twice the rate of memory. */
static MatmulGpu gpu_of(const Machine *m) {
    double sms = m->sms;
    return (MatmulGpu){.sms = m->sms,
                       .flops = m->flops[1] / sms,
                       .issue = m->flops[0] / 2 / sms,
                       .port = 2 * m->memory_rate / sms,
                       .fill = fill};
}

static MatmulJob job_of(const Work *w) {
    int64_t size[3];
    gpu_matmul_sizes(w, size);
    int word = w->flags & WORK_BF16_STORED ? 2 : 4;
    Epilogue e = w->flags & WORK_EPI_ACT ? EPI_ACT : w->flags & WORK_EPI_DACT ? EPI_DACT : EPI_NONE;
    return (MatmulJob){.M = size[0],
                       .N = size[1],
                       .K = size[2],
                       .y_word = w->kind == WORK_DW ? 4 : word,
                       .aux_word = e == EPI_NONE ? 0 : word,
                       .addend = (w->flags & WORK_ADDEND) != 0,
                       .bias = w->flags & WORK_BIAS && w->kind != WORK_DW,
                       .epilogue = e};
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

/* Takes the way where it is faster than the best. */
static void take(GpuMatmul *best, const Machine *m, const Work *w, MatmulWay way) {
    MatmulGpu gpu = gpu_of(m);
    MatmulJob job = job_of(w);
    MatmulCost c = {.time = 0};
    if (!matmul_cost_of_way(&c, &gpu, &job, &way)) return;
    double memory = work_bytes(w) / m->memory_rate, seconds = fmax(c.time, memory);
    if (best->seconds > 0 && seconds >= best->seconds) return;
    MatmulTile tile = {MATMUL_ROWS, way.width, MATMUL_DEPTH};
    double flops = 2.0 * tile.m * tile.n * tile.k * (double)c.steps * (double)m->sms;
    int64_t tiles = (int64_t)matmul_tiles(&c.schedule) * way.blocks;
    *best = (GpuMatmul){.kind = way.kind,
                        .tile = tile,
                        .blocks = way.blocks,
                        .parts = way.parts,
                        .tiles = tiles,
                        .waves = (double)tiles / m->sms,
                        .busy = work_flops(w) / flops,
                        .seconds = seconds,
                        .step = c.step,
                        .epilogue = c.epilogue,
                        .slot = c.slot,
                        .memory = memory};
}

static void take_kind(GpuMatmul *best, const Machine *m, const Work *w, MatmulKind kind) {
    for (int blocks = 1; blocks <= MATMUL_PAIR; blocks++)
        for (int i = 0; i < MATMUL_WIDTHS; i++)
            take(best, m, w, (MatmulWay){kind, matmul_widths[i], blocks, 1});
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
    MatmulTile t = {g->tile.m * g->blocks, g->tile.n, g->tile.k};
    return matmul_schedule(size[0], size[1], size[2], t, m->sms / g->blocks, g->kind, g->parts);
}
