/* matmul_plan -- plans by which cuBLASLt does matmuls, one for each shape (matmuls.h). */
#ifndef LAYERS_CUDA_MATMUL_PLAN_H
#define LAYERS_CUDA_MATMUL_PLAN_H

#include "layers/cuda/matmuls.h"
#include "layers/cuda/sizes.h"

typedef struct MatmulPlan MatmulPlan;
/* The part of a matmul that the library has done: nothing; addend + a b; or all, except that the
 * gradient of a bias is not added yet. */
typedef enum MatmulDone { DONE_NOTHING, DONE_SUM, DONE_ALL } MatmulDone;

/* Local. The plan of p, with elements of elem_bytes; NULL where the library is not to be used. */
MatmulPlan *matmul_plan(const Matmul *p, size_t elem_bytes);
/* Local. Shall the library do p as two matmuls, part[0] and then part[1]? */
bool matmul_plan_parts(const Matmul *p, size_t elem_bytes, Matmul part[2]);
/* Local. Runs the plan. sums: N floats for the column sums where p has bias_grad, else NULL. */
MatmulDone matmul_plan_run(MatmulPlan *plan, const Matmul *p, float *sums);
/* Local. The config of the own kernel (matmul_sm90 or matmul_sm80) if it is faster than the
 * library; 0: it is not. */
int matmul_plan_config(const MatmulPlan *plan);
/* Does the rest of p after the library has done `done` of it. elem_bytes: bytes of an activation;
 * config: of the own kernel. */
typedef void MatmulRest(const Matmul *p, size_t elem_bytes, MatmulDone done, int config,
                        const float *sums);
/* Local. Chooses the fastest algorithm, once for a plan: the one chosen before (matmul_choices.h),
 * or by time. Candidates are the algorithms that do all of p. Where y is floats, algorithms that do
 * the sum alone are candidates, too, timed with the pass that does the rest: with bf16 that pass
 * would round a second time. */
void matmul_plan_time(MatmulPlan *plan, const Matmul *p, float *sums, MatmulRest *rest);

/* The counts of the calling thread. */
MatmulCounts *matmul_counts_mine(void);

#endif
