/* check -- trains the same steps on the mesh and on one rank, compares the results, and names the
 * first tensor that differs (--check-tp).
 *
 * Beside its shard of the mesh's model rank 0 holds the whole model, the reference. Each step
 * compares
 *
 *     the tensors of the first micro-batch, in the order of the list (StepHook of run.h)
 *     loss, every gradient
 *     gradient norm and every parameter after the update, from the reference's gradients
 *
 * on every rank, replicas and both half batches included. The difference of a tensor is the RMS of
 * its differences on a rank, relative to the RMS of the whole tensor. Accepted is a constant of
 * each dtype (check.c), as in torch.testing.assert_close. After the comparison of a gradient the
 * mesh continues with the reference's, so that rounding does not add up over steps.
 *
 * A tensor of the mesh is compared with a tensor of the reference if both are the same value of the
 * model (StepTensor.value) and no sum is pending: collectives, chunks and halves move a value
 * without changing it. The reference runs without fusion, so each of its values is in memory. For
 * the first tensor that differs the list gives an explanation. If its sum along an axis equals the
 * reference, the tensor is a partial sum that was not reduced. Else the collectives between the
 * last tensors that agree and this tensor are named.
 */
#ifndef PARALLEL_STEP_CHECK_H
#define PARALLEL_STEP_CHECK_H

#include <stdio.h>

#include "parallel/step/model.h"

typedef struct CheckJob {
    int64_t steps;
    int64_t sequences; // of a step, over the whole mesh
    void *ctx;         // first argument of the functions below
    /* Collective over g. Fills in the parameters before the first step. */
    void (*load)(void *ctx, TensorTable *t, Team *team, const Group *g);
    /* Local. Fills in sequences [first, first + n) of a step. Sequences from number `sequences` on
     * are padding: their targets are -1. */
    void (*batch)(void *ctx, int64_t step, int64_t first, int64_t n, int32_t *inputs,
                  int32_t *targets);
    /* Local. Hyperparameters of the update of a step (0, 1, ...). */
    AdamW (*rule)(void *ctx, int64_t step);
    double clip;  // largest norm of the gradients; 0: no clipping
    double limit; // seconds that a collective may wait (world_set_limit), except while rank 0
                  // computes alone
} CheckJob;

/* Local. m is planned. Prints the memory that a check needs beside m. Dies with status 1 if this
 * memory and the models of `ranks` ranks do not fit on this node. */
void check_memory(const Model *m, int ranks, FILE *f);
/* Collective over the mesh. m is allocated; check_run loads its parameters. Rank 0 prints the table
 * of differences and, if something differs, one line that names the first tensor that differs and
 * the likely cause. Stops after the first step with a difference. Returns, on all ranks alike, true
 * if there was none. */
bool check_run(Model *m, const CheckJob *job, FILE *f);

#endif
