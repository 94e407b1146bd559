/* adamw -- AdamW with decoupled weight decay, and the sum of squares for the gradient norm.
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

/* Sums over a step: losses, squares of gradients. */
typedef struct Totals {
    double losses, squares;
} Totals;

/* An update decided on the device, so that the host need not wait for the gradient norm.
 * adamw_begin(now, totals, clip) of the table writes it on the device, from totals in device
 * memory. grad_scale = clip / (norm + 1e-6) if norm = sqrt(totals->squares) > clip > 0, else 1. If
 * a total is not finite, updates that read this change nothing. */
typedef struct AdamWNow {
    float grad_scale;
    bool finite;
} AdamWNow;

typedef struct AdamW {
    double lr, beta1, beta2, eps, weight_decay; // double: 1 - beta2 in float loses five digits
    double grad_scale;                          // clipping factor
    int64_t step;                               // 1 for the first update
    // CUDA only:
    const AdamWNow *now; // on the device; replaces grad_scale
    void *cast;          // [n] bf16 copy of param, which matmuls read
} AdamW;

/* CUDA only: one of the tensors that a single kernel updates. cast: as in AdamW, or NULL. */
enum { ADAMW_TENSORS = 64 };
typedef struct AdamWTensor {
    float *param, *m, *v;
    const float *grad;
    void *cast;
    int64_t n;
    bool decay;
} AdamWTensor;

/* Local. One pass over n elements. decay: does weight_decay apply to this tensor? */
void adamw(Team *t, const AdamW *o, float *param, float *m, float *v, const float *grad, int64_t n,
           bool decay);
/* Local. Sum of x[i]^2 over fixed panels, in double: the same value for any number of threads. */
double sum_of_squares(Team *t, const float *x, int64_t n);

#endif
