/* outer -- the outer loop of data parallelism: replicas take H local steps, then an outer
 * step averages them.
 *
 *   a replica   the ranks of one coordinate of d, with their own model theta_d and moments
 *   a step      an ordinary step on the replica's 1/D of the batch. Gradients are summed over z and
 *               x, not over d; each replica has its own gradient norm and clipping
 *   outer step  every H steps, over all D replicas and for every parameter:
 *
 *                   delta    = anchor - mean over d of theta_d
 *                   velocity = momentum * velocity + delta
 *                   anchor   = anchor - rate * (delta + momentum * velocity)
 *                   theta_d  = anchor
 *
 * With different settings this formula is several methods of the literature:
 *
 *   --sync-every 1                      no outer step: gradients are averaged in every step
 *   H, rate 1, momentum 0               parameter averaging, local SGD (Zhang et al. 2016, Stich
 *                                       2019)
 *   H = 500, rate 0.7, momentum 0.9     DiLoCo (Douillard et al. 2023, algorithm 1): delta is the
 *                                       gradient of SGD with Nesterov's momentum as
 *                                       torch.optim.SGD(nesterov=True) writes it
 *   N fragments                         streaming DiLoCo's schedule (Douillard et al. 2025):
 *                                       the tensors form N fragments of about equal size; fragment
 *                                       f is averaged after each step with
 *                                       step mod H = ((f+1) H / N) mod H. The same bytes, in
 *                                       bursts of about 1/N
 *
 * The update is computed as mean + (1 - rate) delta - rate momentum velocity. The formula is the
 * same; with rate 1 and momentum 0 the result is the mean itself, bit for bit.
 *
 * In an outer step a rank receives 2 (D-1)/D times its parameters: as much as the gradients of one
 * step with H = 1. So the traffic over d is 1/H of that. Besides, every step sums the loss and
 * averages the norm over the replicas, 8 bytes each. Outer steps do not overlap with computation.
 *
 * The anchor is the model of the run. It is evaluated and sampled (outer_swap exchanges it with the
 * parameters and back, so training is not affected). A save first averages all fragments and the
 * moments, then writes the anchor; training continues from these averages. So a resumed run has the
 * same bits as the run that saved. --save-every is rounded up to whole periods of H. A signal and
 * the last step cause an outer step at once.
 */
#ifndef PARALLEL_STEP_OUTER_H
#define PARALLEL_STEP_OUTER_H

#include "parallel/step/model.h"

typedef struct Outer {
    int64_t every; // H; with H = 1 the functions below do nothing
    int fragments; // N <= H
    float rate, momentum;
    int64_t averaged; // the last step after which all fragments were averaged
} Outer;

/* Local. The value of ModelShape.outer: number of copies of the parameters beside the model. */
int outer_copies(const Outer *o);

/* Local. Copies the parameters, as initialised or as loaded after `step` steps, to the anchor. All
 * replicas must have the same parameters. */
void outer_begin(Outer *o, Model *m, int64_t step);
/* Collective over the mesh, after the update of each step (1, 2, ...). Makes the outer step of the
 * fragments that are due after this step. */
void outer_step(const Outer *o, Model *m, int64_t step);
/* Local, pure. Number of floats of fragment f, which its outer step sums over the replicas. The
 * model may be planned only, without memory. */
int64_t outer_floats(const Outer *o, const Model *m, int f);
/* Collective over the mesh, after outer_step of the same step: makes the outer step of all other
 * fragments. Further calls in the same step do nothing. */
void outer_average(Outer *o, Model *m, int64_t step);
/* Collective over the mesh, before a save. AdamW's moments become their means over the replicas. */
void outer_mean_moments(Model *m);
/* Local. Exchanges parameters and anchor. A second call restores both. */
void outer_swap(Model *m);
/* Collective over the mesh. The mean of x over the replicas. */
double outer_mean(Model *m, double x);

#endif
