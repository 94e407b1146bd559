/* update -- the end of a step: loss and gradient norm over all ranks, and AdamW.
 *
 * On the host a function returns when its numbers are computed. On a device losses and squares of
 * gradients are summed in device memory, over the mesh too, and the host waits once in a step, for
 * two numbers:
 *
 *     host      batch, forward, backward, sums, update |waits|  log, batch, forward ...
 *     device         forward | backward | sums | update        | forward ...
 *                                              ^ here the wait ends
 *
 * So the device updates while the host writes the log and enqueues the next step. Decisions that
 * depend on these two numbers are made on the device: the factor for clipping, and whether a step
 * is skipped because a sum is not finite.
 */
#ifndef PARALLEL_STEP_UPDATE_H
#define PARALLEL_STEP_UPDATE_H

#include "base/arena.h"
#include "layers/adamw.h"
#include "layers/exact.h"

typedef struct Model Model;

/* A running sum of losses; with --exact an integer of several words. */
typedef union LossSum {
    double sum;
    int64_t wide[WIDE];
} LossSum;

/* Sums over all ranks; with local steps the norm is of one replica's gradients. */
typedef struct StepSums {
    double loss, norm; // sum of losses; norm of the gradients, every parameter counted once
} StepSums;

/* State of the end of a step of a Model. */
typedef struct StepEnd {
    LossSum losses; // on the host: running sum of this rank
    // on a device: [0] running sum of this rank, [1] sum over the mesh; else NULL
    LossSum *device_losses;
    Totals *copy; // on a device: pinned host memory to which the device copies its sums
    Arena memory; // memory of copy
    Totals sums;  // on the host: sums over all ranks
    // arguments of the update that runs
    const AdamW *rule;
    double clip;
    AdamWTensor batch[ADAMW_TENSORS]; // on a device: tensors that one kernel will update
    int n_batch;
} StepEnd;

/* The running sum of the losses of every model_step and model_loss. model_loss_sum, local: its
 * address, in the memory of the kernels. model_zero_losses, local: sets it to zero;
 * model_zero_grads does so, too. model_add_losses, local: adds n losses. model_losses, collective
 * over d x z: its sum over all coordinates, the same on all ranks and, with --exact, on all
 * meshes. */
LossSum *model_loss_sum(Model *m);
void model_zero_losses(Model *m);
void model_add_losses(Model *m, const float *losses, int64_t n);
double model_losses(Model *m);

/* model_sums_begin, collective over the mesh, after the last model_step: computes the sums of the
 * step. model_sums_end, local: on a device waits for them. */
void model_sums_begin(Model *m);
StepSums model_sums_end(Model *m);
/* Collective over the mesh: model_sums_begin, then model_sums_end. */
StepSums model_sums(Model *m);
/* Collective over the mesh. Casts the weights to the bf16 copies that matmuls read. Needed after
 * weights were changed by anything but AdamW. */
void model_cast(Model *m);
/* Collective over the mesh, after model_sums_begin, before or after model_sums_end. One AdamW step
 * on every tensor. If the gradient norm is larger than clip, gradients are scaled to it, as
 * torch.nn.utils.clip_grad_norm_ does; clip 0: no clipping. If a sum is not finite, nothing is
 * changed. */
void model_update_clipped(Model *m, const AdamW *o, double clip);

#endif
