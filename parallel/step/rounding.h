/* rounding -- words that products read, made of masters by chance (Rounding of layers/adamw.h)
 * where ModelShape.stochastic says so. After each step they are a function of the masters, the seed
 * and that step: the same on every mesh, however masters are cut, and made again when a run goes
 * on.
 */
#ifndef PARALLEL_STEP_ROUNDING_H
#define PARALLEL_STEP_ROUNDING_H

#include "base/arena.h"
#include "layers/adamw.h"

typedef struct Model Model;

/* Of a Model. */
typedef struct WordRounding {
    int64_t step; // that has made the words, or is to make them
    // [tensors] on the device: of the tensor, of each column of its block; NULL: to the nearest
    int32_t **column;
} WordRounding;

/* Local. Cuts the device's part out of an arena; fills it in; frees the host's. Of model_plan,
 * model_allocate and model_free. */
void rounding_room(Model *m, Arena *a);
void rounding_make(Model *m);
void rounding_free(Model *m);
/* Local. How AdamW makes the words of its part of tensor i: of r, or NULL. */
const Rounding *rounding_of(const Model *m, int i, Rounding *r);

#endif
