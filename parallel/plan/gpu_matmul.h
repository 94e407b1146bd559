/* gpu_matmul -- predicted time of a bf16 matmul on a GPU, from its schedule
 * (layers/cuda/matmul_schedule.h).
 *
 *     seconds = max(bytes / memory rate,
 *                   fill + steps x step + epilogues x epilogue + sums of parts x slot)
 *
 *   steps      along k of the busiest multiprocessor: whole waves, whole tiles, whole steps
 *   step       2 m n k FLOPs at the rate of one multiprocessor; small tiles read more operands from
 *              shared memory for each FLOP
 *   epilogue   of a tile: instructions for each element, or its bytes to and from L2
 *   slot       fp32 sums of a part, written to L2 by one worker and read by another (split-K,
 *              Stream-K)
 *   fill       from the launch to the first step, and from the last one to the end
 *
 * So the efficiency of a shard depends on its waves and on its shape, not on FLOPs alone. Nothing
 * of it was measured: constants are those of data sheets and of published kernels (gpu_matmul.c).
 * Source of the form: Osama et al., "Stream-K", PPoPP 2023, appendix A.1.
 */
#ifndef PARALLEL_PLAN_GPU_MATMUL_H
#define PARALLEL_PLAN_GPU_MATMUL_H

#include "layers/cuda/matmul_schedule.h"
#include "parallel/plan/machine.h"

typedef struct GpuMatmul {
    MatmulKind kind;
    MatmulTile tile;
    int parts;      // of a tile with split-K; else 1
    int64_t tiles;  // of y
    double waves;   // tiles over multiprocessors
    double busy;    // useful FLOPs over those of all multiprocessors in so many steps; the rest is
                    // lost to quantisation
    double seconds; // without the call
    double step, epilogue, slot, memory; // seconds of each; memory: of all bytes
} GpuMatmul;

/* Local, pure. Is it a matmul that is priced here: bf16, no size 0, on a GPU whose multiprocessors
 * are known? */
bool gpu_matmul_is(const Machine *m, const Work *w);
/* Local, pure. The fastest tile of a kind of schedule; with split-K also the number of parts, at
 * least 2 (seconds 0: K is one step). */
GpuMatmul gpu_matmul_of_kind(const Machine *m, const Work *w, MatmulKind kind);
/* Local, pure. The fastest of all kinds; of equal ones the simpler. */
GpuMatmul gpu_matmul(const Machine *m, const Work *w);
/* Local. Its seconds; those of the last shapes are remembered, as a search asks for few shapes many
 * times. */
double gpu_matmul_seconds(const Machine *m, const Work *w);
/* Local, pure. M, N and K of y[M,N] = a[M,K] b[K,N]. */
void gpu_matmul_sizes(const Work *w, int64_t size[3]);
MatmulSchedule gpu_matmul_schedule(const Machine *m, const Work *w, const GpuMatmul *g);

#endif
