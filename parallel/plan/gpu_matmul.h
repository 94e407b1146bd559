/* gpu_matmul -- predicted time of a bf16 matmul on a GPU: the time of the fastest config
 * (layers/cuda/matmul_cost.h) at the rates of a described machine, or the time of its bytes if that
 * is longer. The configs are those of matmul_sm90.cu or matmul_sm80.cu, by the machine's compute
 * capability. For capabilities that run neither kernel they stand for other kernels': those of
 * matmul_sm90.cu for 10.x and 11.x, those of matmul_sm80.cu below 8.0.
 */
#ifndef PARALLEL_PLAN_GPU_MATMUL_H
#define PARALLEL_PLAN_GPU_MATMUL_H

#include "layers/cuda/matmul_cost.h"
#include "parallel/plan/machine.h"

typedef struct GpuMatmul {
    MatmulConfig config;
    MatmulWorker worker;
    MatmulCost cost; // in seconds
    double memory;   // seconds of all bytes
    double seconds;  // of the matmul without its launch; 0: no config computes it
} GpuMatmul;

/* Local, pure. Is w a matmul that this model prices: bf16, no size 0, of countable steps
 * (matmul_cost.h), on a GPU whose multiprocessors are known? */
bool gpu_matmul_is(const Machine *m, const Work *w);
/* Local, pure. Does the kernel whose tiles are used run on the GPU? gpu_matmul_tiles: if it does
 * not, the words "the tiles of matmul_sm80.cu, which capability 7.0 does not run"; else NULL. */
bool gpu_matmul_runs(const Machine *m);
const char *gpu_matmul_tiles(const Machine *m, char buf[80]);
/* Local, pure. The fastest config of a kind of schedule; with split-K at least 2 parts (none if K
 * is a single step). */
GpuMatmul gpu_matmul_of_kind(const Machine *m, const Work *w, MatmulKind kind);
/* Local, pure. The fastest config of all kinds; of equally fast ones the simpler. */
GpuMatmul gpu_matmul(const Machine *m, const Work *w);
/* Local. gpu_matmul(m, w).seconds. Remembers the last shapes, as a search asks for few shapes many
 * times. */
double gpu_matmul_seconds(const Machine *m, const Work *w);
/* Local, pure. M, N and K of y[M,N] = a[M,K] b[K,N]. */
void gpu_matmul_sizes(const Work *w, int64_t size[3]);

#endif
