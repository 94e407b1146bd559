/* outer -- the outer loop of data parallelism: replicas take H local steps, then an outer
 * step averages them.
 *
 *   a replica   the ranks of one coordinate of d: a model theta_d, and moments, of its own
 *   a step      an ordinary one on the replica's own 1/D of the batch: its gradients are summed
 *               over z and x, their norm and the clipping are its own
 *   outer step  every H steps, over all D replicas and for every parameter:
 *
 *                   delta    = anchor - mean over d of theta_d
 *                   velocity = momentum * velocity + delta
 *                   anchor   = anchor - rate * (delta + momentum * velocity)
 *                   theta_d  = anchor
 *
 * One formula, and its settings are the methods of the literature:
 *
 *   --sync-every 1                      no outer step: gradients are averaged, in every step
 *   H, rate 1, momentum 0               parameter averaging, local SGD (Zhang et al. 2016, Stich
 *                                       2019)
 *   H = 500, rate 0.7, momentum 0.9     DiLoCo (Douillard et al. 2023, algorithm 1): delta is the
 *                                       gradient of SGD with Nesterov's momentum as
 *                                       torch.optim.SGD(nesterov=True) writes it
 *   N fragments                         streaming DiLoCo's schedule (Douillard et al. 2025):
 *                                       tensors in N groups of about equal size; group f is
 *                                       averaged after the steps that leave (f+1) H / N when
 *                                       divided by H. Same bytes, in bursts of about 1/N
 *
 * The update is computed as mean + (1 - rate) delta - rate momentum velocity, which is the same and
 * leaves the mean itself, bit for bit, where rate is 1 and momentum 0.
 *
 * Each outer step receives 2 (D-1)/D of a rank's parameters, what the gradients of one step cost
 * with H = 1: so 1/H of the bytes, less often. Beside them every step averages the loss and the
 * norm that are printed over the replicas, 8 bytes each. Nothing here overlaps with computing.
 *
 * The anchor is the model of the run: it is what is evaluated and sampled (outer_swap: training
 * does not notice) and, once all fragments are averaged, what is saved and exported. A save
 * averages all of them and the moments, and training goes on from those, so that a run resumed from
 * it is the run that saved, bit for bit. --save-every is rounded up to whole periods of H; a
 * signal and the last step make an outer step where they come.
 */
#ifndef PARALLEL_STEP_OUTER_H
#define PARALLEL_STEP_OUTER_H

#include "parallel/step/model.h"

typedef struct Outer {
    int64_t every; // H; with 1 nothing below does anything
    int fragments; // N <= H
    float rate, momentum;
    int64_t averaged; // step after which all fragments were averaged last
} Outer;

/* Local. What ModelShape.outer has to be. */
int outer_copies(const Outer *o);

/* Local. The parameters, as initialised or read after `step` steps, become the anchor; alike on all
 * replicas. */
void outer_begin(Outer *o, Model *m, int64_t step);
/* Collective over the mesh, after the update of each step (the first one is 1). Averages the
 * fragments whose turn it is. */
void outer_step(const Outer *o, Model *m, int64_t step);
/* Local, pure. Floats of the parameters of fragment f, which its outer step sums over the replicas;
 * of a model without memory, too. */
int64_t outer_floats(const Outer *o, const Model *m, int f);
/* Collective over the mesh, after outer_step: averages the fragments that outer_step did not. Once
 * a step: further calls do nothing. */
void outer_average(Outer *o, Model *m, int64_t step);
/* Collective over the mesh. The moments of AdamW become their means over the replicas: what a save
 * keeps. */
void outer_mean_moments(Model *m);
/* Local. Exchanges parameters and anchor; twice is nothing. */
void outer_swap(Model *m);
/* Collective over the mesh. The mean over the replicas of a number that each of them has. */
double outer_mean(Model *m, double x);

#endif
