#include "parallel/plan/gpu_matmul.h"

#include <math.h>

/* Seconds of a kernel outside of its steps: before the first step barriers and the first boxes from
 * memory, after the last one the last stores. Half of their sum, as a launch overlaps the kernel
 * before. */
static const double fill = 2e-6;

/* Newer GPUs of data centers are priced by Hopper's tiles, all others by those of an A100. */
static MatmulKernel kernel_of(const Machine *m) {
    return m->capability >= 90 && m->capability < 120 ? MATMUL_SM90 : MATMUL_SM80;
}

bool gpu_matmul_runs(const Machine *m) {
    return kernel_of(m) == MATMUL_SM90 ? m->capability / 10 == 9 : m->capability >= 80;
}

const char *gpu_matmul_tiles(const Machine *m, char buf[80]) {
    if (gpu_matmul_runs(m)) return NULL;
    snprintf(buf, 80, "the tiles of matmul_sm%d.cu, which capability %d.%d does not run",
             kernel_of(m) == MATMUL_SM90 ? 90 : 80, m->capability / 10, m->capability % 10);
    return buf;
}

/* Bytes of shared memory that a block may have. Source: CUDA C++ Programming Guide, "Technical
 * Specifications per Compute Capability". */
static int shared_of(int capability) {
    int kib = capability >= 120 || capability == 86 || capability == 89 ? 99
              : capability >= 90                                        ? 227
              : capability >= 80                                        ? 163
              : capability == 75                                        ? 64
                                                                        : 96;
    return kib << 10;
}

/* Rates of one multiprocessor while all compute. An fp32 multiply-add is one instruction, so
 * `issue` is half of fp32's FLOP/s. L2 has about twice the rate of memory. */
static MatmulGpu gpu_of(const Machine *m) {
    double sms = m->sms;
    return (MatmulGpu){.sms = m->sms,
                       .flops = m->flops[1] / sms,
                       .issue = m->flops[0] / 2 / sms,
                       .port = 2 * m->memory_rate / sms,
                       .fill = fill,
                       .shared = shared_of(m->capability)};
}

static MatmulJob job_of(const Work *w) {
    int64_t size[3];
    gpu_matmul_sizes(w, size);
    int elem_bytes = w->flags & WORK_BF16_STORED ? 2 : 4;
    Epilogue e = w->flags & WORK_EPI_ACT ? EPI_ACT : w->flags & WORK_EPI_DACT ? EPI_DACT : EPI_NONE;
    return (MatmulJob){.M = size[0],
                       .N = size[1],
                       .K = size[2],
                       .y_bytes = w->kind == WORK_WGRAD ? 4 : elem_bytes,
                       .aux_bytes = e == EPI_NONE ? 0 : elem_bytes,
                       .addend = (w->flags & WORK_ADDEND) != 0,
                       .bias = w->flags & WORK_BIAS && w->kind != WORK_WGRAD,
                       .epilogue = e};
}

/* ---- the fastest ---- */

bool gpu_matmul_is(const Machine *m, const Work *w) {
    int64_t size[3];
    if (m->sms == 0 || w->kind > WORK_WGRAD || !(w->flags & WORK_BF16) || work_flops(w) == 0)
        return false;
    gpu_matmul_sizes(w, size);
    return matmul_is_countable(size[0], size[1], size[2]);
}

void gpu_matmul_sizes(const Work *w, int64_t size[3]) {
    size[0] = w->kind == WORK_WGRAD ? w->K : w->rows;
    size[1] = w->kind == WORK_DGRAD ? w->K : w->N;
    size[2] = w->kind == WORK_MATMUL ? w->K : w->kind == WORK_DGRAD ? w->N : w->rows;
}

/* The fastest config of kinds from .. to; of equally fast ones the first. */
static GpuMatmul fastest(const Machine *m, const Work *w, MatmulKind from, MatmulKind to) {
    MatmulGpu gpu = gpu_of(m);
    MatmulJob job = job_of(w);
    GpuMatmul best = {.seconds = 0}, g = {.memory = work_bytes(w) / m->memory_rate};
    for (int i = 0; matmul_config_at(&g.config, kernel_of(m), i); i++) {
        if (g.config.kind < from || g.config.kind > to) continue;
        if (!matmul_cost_of_config(&g.cost, &g.worker, &gpu, &job, &g.config)) continue;
        g.seconds = fmax(g.cost.time, g.memory);
        if (best.seconds == 0 || g.seconds < best.seconds) best = g;
    }
    return best;
}

GpuMatmul gpu_matmul_of_kind(const Machine *m, const Work *w, MatmulKind kind) {
    return fastest(m, w, kind, kind);
}

GpuMatmul gpu_matmul(const Machine *m, const Work *w) {
    return fastest(m, w, MATMUL_DATA_PARALLEL, MATMUL_STREAM_K);
}

double gpu_matmul_seconds(const Machine *m, const Work *w) {
    static _Thread_local struct {
        Work w;
        double flops[2], memory_rate, seconds;
        int sms, capability;
    } known[512], *at;
    uint64_t h = ((uint64_t)w->rows * 31 + (uint64_t)w->K) * 31 + (uint64_t)w->N;
    h = ((h * 31 + w->flags) * 31 + w->kind) * 0x9e3779b97f4a7c15u;
    at = &known[h >> 55];
    if (at->w.rows == w->rows && work_alike(&at->w, w) && at->sms == m->sms &&
        at->capability == m->capability && at->flops[0] == m->flops[0] &&
        at->flops[1] == m->flops[1] && at->memory_rate == m->memory_rate)
        return at->seconds;
    at->w = *w, at->sms = m->sms, at->capability = m->capability, at->memory_rate = m->memory_rate;
    at->flops[0] = m->flops[0], at->flops[1] = m->flops[1];
    return at->seconds = gpu_matmul(m, w).seconds;
}
