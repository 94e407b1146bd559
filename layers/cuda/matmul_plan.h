/* matmul_plan -- between the matmuls of a table and cuBLASLt: a plan for each shape
 * (matmuls.h). */
#ifndef LAYERS_CUDA_MATMUL_PLAN_H
#define LAYERS_CUDA_MATMUL_PLAN_H

#include "layers/cuda/matmuls.h"
#include "layers/cuda/sizes.h"

typedef struct MatmulPlan MatmulPlan;
/* What the library has done of a matmul: nothing; addend + a b; all of it, but that a bias'
 * gradient is not yet added. */
typedef enum MatmulDone { DONE_NOTHING, DONE_SUM, DONE_ALL } MatmulDone;

/* Local. The plan of p with elements of so many bytes, or NULL when the library cannot be asked. */
MatmulPlan *matmul_plan(const Matmul *p, size_t elem_bytes);
/* Local. Is p, which the library is asked for, done as part[0] and then part[1]? */
bool matmul_plan_parts(const Matmul *p, size_t elem_bytes, Matmul part[2]);
/* Local. Runs it. sums: N floats where p has the gradient of a bias. */
MatmulDone matmul_plan_run(MatmulPlan *plan, const Matmul *p, float *sums);
/* Local. The config of matmul_sm90 or matmul_sm80, whichever serves, that is faster than the
 * library; 0: none. */
int matmul_plan_config(const MatmulPlan *plan);
/* What is left of p when the library has done that much; elem_bytes: bytes of an activation;
 * config: of the own kernel. */
typedef void MatmulRest(const Matmul *p, size_t elem_bytes, MatmulDone done, int config,
                        const float *sums);
/* Local. Takes the best algorithm, once for a plan: the one that was chosen before
 * (matmul_choices.h), or by time. Of those that do all of it; and where y is floats, which a pass
 * of its own does not round once more, of those that do the sum alone, with the rest. */
void matmul_plan_time(MatmulPlan *plan, const Matmul *p, float *sums, MatmulRest *rest);

/* Of the calling thread. */
MatmulCounts *matmul_counts_mine(void);

#endif
