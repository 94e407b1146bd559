/* adamw -- AdamW with decoupled weight decay, and the sum of squares that the gradient norm is made
 * of.
 *
 *   g = grad * grad_scale;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
 *   param = param (1 - lr * decay) - lr * (m / (1 - b1^step)) / (sqrt(v / (1 - b2^step)) + eps)
 *
 * Order of operations as torch.optim.AdamW. Source: Loshchilov, Hutter, "Decoupled weight decay
 * regularization", 2019.
 */
#ifndef LAYERS_ADAMW_H
#define LAYERS_ADAMW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/team.h"

typedef struct AdamW {
    double lr, beta1, beta2, eps, weight_decay; // double: 1 - beta2 of a float has lost five digits
    double grad_scale;                          // clipping factor
    int64_t step;                               // 1 for the first update
} AdamW;

/* Local. One pass over n elements. decay: whether weight_decay applies to this tensor. */
void adamw(Team *t, const AdamW *o, float *param, float *m, float *v, const float *grad, int64_t n,
           bool decay);
/* Local. Sum of x[i]^2 over fixed panels, in double: the same value for any number of threads. */
double sum_of_squares(Team *t, const float *x, int64_t n);

#endif
