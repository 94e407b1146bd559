/* rounding -- stochastic rounding of the bf16 copies that matmuls read (layers/adamw.h: Rounding),
 * where ModelShape.stochastic is set. After each step the copies are a function of the master
 * weights, the seed and that step: the same on every mesh, however the master weights are sharded,
 * and the same again when a run is resumed.
 */
#ifndef PARALLEL_STEP_ROUNDING_H
#define PARALLEL_STEP_ROUNDING_H

#include "base/arena.h"
#include "layers/adamw.h"

typedef struct Model Model;

/* Of a Model. */
typedef struct CastRounding {
    int64_t step; // in which the copies were rounded, or will be
    // [tensors] on the device: of the tensor, of each column of its block; NULL: to the nearest
    int32_t **column;
} CastRounding;

/* Local. Cuts the device's part out of an arena; fills it in; frees the host's. Of model_plan,
 * model_allocate and model_free. */
void rounding_allocate(Model *m, Arena *a);
void rounding_make(Model *m);
void rounding_free(Model *m);
/* Local. How AdamW rounds the copy of its part of tensor i: r filled in, or NULL. */
const Rounding *rounding_of(const Model *m, int i, Rounding *r);

#endif
