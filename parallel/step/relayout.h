/* relayout -- changes the layout of a model during training, in memory.
 *
 * Weights and moments are copied from one Model to another one of the same config, whose Grid has
 * the same ranks in another layout. Bits do not change. Each logical tensor is gathered on every
 * rank in chunks, and each rank keeps its new shard of the chunk:
 *
 *                 rank 0        rank 1        rank 2
 *     from        a b . .       . . c d       . . c d       for example z3: c d is replicated
 *     chunk       a b 0 0       0 0 c d       0 0 0 0       elements first held by this rank
 *     all_reduce  a b c d       a b c d       a b c d       integers: a sum with zeros is exact
 *     to          a . c .       . b . d       . b . d
 *
 * Each rank receives about twice the weights and moments of the whole model, whatever the layouts,
 * and needs 16 MiB beside both models. Direct exchanges between pairs of ranks would send less, but
 * need a plan for every pair of layouts. That is not worth it for an operation that a run does a
 * few times at most.
 */
#ifndef PARALLEL_STEP_RELAYOUT_H
#define PARALLEL_STEP_RELAYOUT_H

#include "parallel/step/model.h"

enum { RELAYOUT_CHUNK = 1 << 22 }; // elements of a chunk (4 bytes each)

/* Collective over the world. Copies weights and moments. Both models are allocated, for training,
 * on grids of the same world without local steps. */
void relayout(Model *to, const Model *from);
/* Collective over the world. Changes m and its grid g to layout l (layout.exact is kept), to the B
 * and recompute of `shape`, and to the threads of `team`: allocates a new grid and new buffers and
 * copies weights and moments. Returns false, on all ranks alike, if the memory is too small for
 * both states or for the new model; then m and g are unchanged. */
bool relayout_model(Model *m, Grid *g, const Layout *l, const ModelShape *shape, Team *team);

#endif
