/* relayout -- a model in the middle of its training changes its layout, in memory.
 *
 * Weights and moments go from one Model to another of the same config, on other Grids of the same
 * ranks; bits do not change. A logical tensor is gathered on every rank chunk by chunk, and each
 * chunk sharded again:
 *
 *                 rank 0        rank 1        rank 2
 *     from        a b . .       . . c d       . . c d       z3, say: c d is held twice
 *     chunk       a b 0 0       0 0 c d       0 0 0 0       what a rank is the first to hold
 *     all_reduce  a b c d       a b c d       a b c d       integers: a sum with zeros is exact
 *     to          a . c .       . b . d       . b . d
 *
 * Each rank receives about twice the weights and moments of the whole model, whatever the layouts;
 * beside both models it takes 16 MiB. Less would go round if every pair of ranks exchanged what one
 * has and the other lacks: another plan for every pair of layouts, for something that is done a few
 * times in a run at most.
 */
#ifndef PARALLEL_STEP_RELAYOUT_H
#define PARALLEL_STEP_RELAYOUT_H

#include "parallel/step/model.h"

enum { RELAYOUT_PIECE = 1 << 22 }; // numbers that go round at a time

/* Collective over the world. Both models are allocated, for training, and on grids of the same
 * world where replicas take no local steps. What `to` held is lost; `from` stays as it is. */
void relayout(Model *to, const Model *from);
/* Collective over the world. m, whose grid is g, goes over to layout l (whose exact stays as it
 * was) and to B, recompute and threads as `shape` and `team` say: g and all buffers are made anew,
 * weights and moments move. False, on all ranks alike, where the memory does not hold both states
 * or not the new model: then nothing has changed. */
bool relayout_model(Model *m, Grid *g, const Layout *l, const ModelShape *shape, Team *team);

#endif
