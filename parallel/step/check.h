/* check -- one rank and the mesh train the same steps: do they agree, and where do they first
 * differ? (--check-tp)
 *
 * Rank 0 holds two whole models besides its part of the mesh's. The first is the reference. The
 * second trains the same with smaller micro-batches and another instruction set, so it takes the
 * same sums in another order: ten times its distance from the reference is what the mesh is
 * allowed, and never less than a few units in the last place. In every step are compared
 *
 *     the tensors of the first micro-batch, in the order of the list (StepHook of run.h)
 *     loss, gradient norm, every gradient, every parameter after the update
 *
 * each rank what it holds, copies too, and of both halves; then the mesh goes on with the
 * reference's parameters, so that every step is measured by itself.
 *
 * A tensor of the mesh and one of the reference are compared when they are one value of the model
 * (StepTensor.value) and no sum is pending: what lies between are collectives, chunks and halves,
 * which do not change a value. The reference runs without fusion, so each of its values is in
 * memory. The first tensor that differs is explained by the list: it is a partial sum when its sum
 * along an axis is the reference; else the collectives that lie between it and the tensors that
 * agree are named.
 */
#ifndef PARALLEL_STEP_CHECK_H
#define PARALLEL_STEP_CHECK_H

#include <stdio.h>

#include "parallel/step/model.h"

typedef struct CheckJob {
    int64_t steps;
    int64_t sequences; // of a step, over the whole mesh
    void *ctx;
    /* Collective over g. The parameters before the first step. */
    void (*load)(void *ctx, TensorTable *t, Team *team, const Group *g);
    /* Local. Sequences [first, first + n) of a step; those from `sequences` on have no targets. */
    void (*batch)(void *ctx, int64_t step, int64_t first, int64_t n, int32_t *inputs,
                  int32_t *targets);
    /* Local. The update of a step (0, 1, ...), but for its clipping. */
    AdamW (*rule)(void *ctx, int64_t step);
    double clip;  // 0: never
    double limit; // of waiting while ranks talk (world_set_limit); not while rank 0 works alone
} CheckJob;

/* Local. Prints what rank 0 of a planned model needs besides it, and dies with status 1 when that
 * does not fit with the parts of `ranks` ranks on this node. */
void check_memory(const Model *m, int ranks, FILE *f);
/* Collective over the mesh; m is allocated, check_run loads it. Rank 0 prints the table of
 * differences and, when something differs, one line that names the first tensor and what is missing
 * there. True, on all ranks, when all agrees; stops after the first step that does not. */
bool check_run(Model *m, const CheckJob *job, FILE *f);

#endif
