/* product_plan -- between the matmuls of a table and cuBLASLt: a plan for each shape
 * (products.h). */
#ifndef LAYERS_CUDA_PRODUCT_PLAN_H
#define LAYERS_CUDA_PRODUCT_PLAN_H

#include "layers/cuda/products.h"
#include "layers/cuda/sizes.h"

typedef struct ProductPlan ProductPlan;
/* What the library has done of a matmul: nothing; addend + a b; all of it, but that a bias'
 * gradient is not yet added. */
typedef enum ProductDone { DONE_NOTHING, DONE_SUM, DONE_ALL } ProductDone;

/* Local. The plan of p with elements of so many bytes, or NULL when the library cannot be asked. */
ProductPlan *product_plan(const Product *p, size_t elem_bytes);
/* Local. Runs it. sums: N floats where p has the gradient of a bias. */
ProductDone product_plan_run(ProductPlan *plan, const Product *p, float *sums);
/* Local. The way of matmul_sm90 or matmul_sm80, whichever serves, that is faster than the library;
 * 0: none. */
int product_plan_way(const ProductPlan *plan);
/* What is left of p when the library has done that much; elem_bytes: bytes of an activation;
 * way: of the own kernel. */
typedef void ProductRest(const Product *p, size_t elem_bytes, ProductDone done, int way,
                         const float *sums);
/* Local. Takes the best algorithm, once for a plan: the one that was chosen before
 * (product_choices.h), or by time. Of those that do all of it; and where y is floats, which a pass
 * of its own does not round once more, of those that do the sum alone, with the rest. */
void product_plan_time(ProductPlan *plan, const Product *p, float *sums, ProductRest *rest);

/* Of the calling thread. */
ProductCounts *product_counts_mine(void);

#endif
