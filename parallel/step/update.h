/* update -- the end of a step: gradients become complete, what the step is judged by, AdamW.
 *
 * Where kernels compute on the host, a number is there when its function returns. Where they
 * compute on a device, losses and squares are added up there, over the mesh too, and the host waits
 * once in a step, for two numbers:
 *
 *     host      batch, forward, backward, sums, update |waits|  record, batch, forward ...
 *     device         forward | backward | sums | update        | forward ...
 *                                              ^ here the wait ends
 *
 * So the device updates while the host writes its record and puts in the next step. What the host
 * would decide by those numbers the device decides: how to clip, and that a step whose sums are not
 * finite changes nothing.
 */
#ifndef PARALLEL_STEP_UPDATE_H
#define PARALLEL_STEP_UPDATE_H

#include "base/arena.h"
#include "layers/adamw.h"
#include "layers/exact.h"

typedef struct Model Model;

/* A sum of losses in the making: with --exact a wide one. */
typedef union LossSum {
    double sum;
    int64_t wide[WIDE];
} LossSum;

/* Of all ranks; of one replica where replicas take local steps. */
typedef struct StepSums {
    double loss, norm; // the sum of losses; of the gradients, every parameter counted once
} StepSums;

/* Of a Model: sums in the making. */
typedef struct StepEnd {
    LossSum losses; // of this rank
    LossSum *there; // [2], on the device: in place of that, over the mesh; NULL: kernels are the
                    // host's
    Totals *copy;   // in pinned memory of the host: where the device copies its sums
    Arena memory;   // of copy
    Totals sums;    // on the host: of all
    // of the update that runs:
    const AdamW *rule;
    double clip;
    AdamWTensor waiting[ADAMW_TENSORS]; // on the device: for a kernel of all of them
    int n_waiting;
} StepEnd;

/* The losses of every model_step and model_loss are added up: local, from zero, which
 * model_zero_grads does too; n more of them; collective over d x z, their sum over all coordinates,
 * the same on all ranks and, with --exact, on all meshes. Local: the sum of this rank so far, where
 * kernels compute. */
LossSum *model_loss_sum(Model *m);
void model_zero_losses(Model *m);
void model_add_losses(Model *m, const float *losses, int64_t n);
double model_losses(Model *m);

/* Collective over the mesh, after the last model_step: begins the sums of the step. Local: waits
 * for them. */
void model_sums_begin(Model *m);
StepSums model_sums_end(Model *m);
/* Collective over the mesh: both. */
StepSums model_sums(Model *m);
/* Collective over the mesh. Casts the weights to the bf16 copies that matmuls read, after weights
 * came from elsewhere than AdamW. */
void model_cast(Model *m);
/* Collective over the mesh, after model_sums_begin; may come before model_sums_end. One AdamW step
 * on every tensor. Gradients whose norm is larger than clip (0: none) are scaled to it, as
 * torch.nn.utils.clip_grad_norm_ does. Changes nothing where a sum is not finite. */
void model_update_clipped(Model *m, const AdamW *o, double clip);

#endif
