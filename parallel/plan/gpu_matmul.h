/* gpu_matmul -- predicted time of a bf16 matmul on a GPU: that of the fastest config to compute it
 * (layers/cuda/matmul_cost.h), at the rates of a described machine, or that of its bytes. The
 * configs are those of matmul_sm90.cu or matmul_sm80.cu, by the machine's compute capability. They
 * stand for other kernels where neither is meant for the machine: of capabilities 10.x and 11.x
 * those of matmul_sm90.cu, below 8.0 those of matmul_sm80.cu.
 */
#ifndef PARALLEL_PLAN_GPU_MATMUL_H
#define PARALLEL_PLAN_GPU_MATMUL_H

#include "layers/cuda/matmul_cost.h"
#include "parallel/plan/machine.h"

typedef struct GpuMatmul {
    MatmulConfig config;
    MatmulWorker worker;
    MatmulCost cost;        // in seconds
    double memory, seconds; // of all bytes; of the matmul without the call, 0: none
} GpuMatmul;

/* Local, pure. Is it a matmul that is priced here: bf16, no size 0, of countable steps
 * (matmul_cost.h), on a GPU whose multiprocessors are known? */
bool gpu_matmul_is(const Machine *m, const Work *w);
/* Local, pure. The file of the kernel whose tiles prices go by; does it run on such a GPU? */
const char *gpu_matmul_kernel(const Machine *m);
bool gpu_matmul_runs(const Machine *m);
/* Local, pure. The fastest tile of a kind of schedule; with split-K also the number of parts, at
 * least 2 (none: K is one step). */
GpuMatmul gpu_matmul_of_kind(const Machine *m, const Work *w, MatmulKind kind);
/* Local, pure. The fastest of all kinds; of equal ones the simpler. */
GpuMatmul gpu_matmul(const Machine *m, const Work *w);
/* Local. Its seconds; those of the last shapes are remembered, as a search asks for few shapes many
 * times. */
double gpu_matmul_seconds(const Machine *m, const Work *w);
/* Local, pure. M, N and K of y[M,N] = a[M,K] b[K,N]. */
void gpu_matmul_sizes(const Work *w, int64_t size[3]);

#endif
