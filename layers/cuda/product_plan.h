/* product_plan -- between the products of a table and cuBLASLt: a plan for each shape (products.h). */
#ifndef LAYERS_CUDA_PRODUCT_PLAN_H
#define LAYERS_CUDA_PRODUCT_PLAN_H

#include "layers/cuda/products.h"
#include "layers/cuda/sizes.h"

typedef struct ProductPlan ProductPlan;
/* What the library has done of a product: nothing; addend + a b; all of it. */
typedef enum ProductDone { DONE_NOTHING, DONE_SUM, DONE_ALL } ProductDone;

/* Local. The plan of p in words of so many bytes, or NULL when the library cannot be asked. */
ProductPlan *product_plan(const Product *p, size_t word);
/* Local. Must the bias be in words of activations, and not in fp32? */
bool product_plan_rounds_bias(const ProductPlan *plan);
/* Local. Runs it; `bias` is p->bias in the words that the plan wants. */
ProductDone product_plan_run(ProductPlan *plan, const Product *p, const void *bias);
/* Local. Times the algorithms and takes the best; once for a plan. */
void product_plan_time(ProductPlan *plan, const Product *p, const void *bias);

/* Of the calling thread. */
ProductCounts *product_counts_mine(void);

#endif
