/* exact -- the step under --exact: the same bits on every mesh.
 *
 * Wherever a mesh may cut a sum, its terms are whole numbers on a grid (layers/exact.h), parts are
 * added as integers, in any order, and the sum becomes a float once:
 *
 *   sum over                    terms                      parts are added over
 *   K of a product              panels of K                y of x w, x of dy w'
 *   tokens, of x' dy            panels of a sequence       micro-batches, d, z (and x with stay=y)
 *   features of a norm          elements                   y
 *   tokens of dgamma, db        elements                   micro-batches, d, z, x
 *   vocabulary of the softmax   exponentials               x, y
 *   losses, squared gradients   elements                   d, z; all ranks
 *
 * Blocks are whole numbers of panels, so a mesh may leave ranks with more padding than without
 * --exact; key heads are never copied. What has no sum over a cut dimension (attention,
 * activations, AdamW) is done as ever. Gradients are kept as integers beside the floats that they
 * become at the end of a step.
 */
#ifndef PARALLEL_STEP_EXACT_H
#define PARALLEL_STEP_EXACT_H

#include "parallel/step/program.h"

/* Local, pure. The tokens of a chunk of the head, of T, must be whole sequences: rounds rows up. */
int64_t exact_head_rows(int64_t rows, int64_t S, int64_t T);

/* Local. y_64 = a b of p, or y_64 += a b: a sum of a linear layer, WHAT_Y over the features of x,
 * WHAT_DX over those of dy, WHAT_DW over tokens. Its terms are those that have one rank on every
 * mesh. */
void exact_product(Model *m, LinearKind kind, What what, Product p, int64_t *y, bool fresh);
/* Local, pure. The grid of that sum. */
int exact_exponent(const Model *m, What what);

/* Collective over d x z. Adds the losses of tokens to those of the step (or evaluation); their sum
 * over the mesh. */
void exact_add_losses(Model *m, const float *losses, int64_t n);
double exact_loss_total(Model *m);

#endif
