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

/* What a step is judged by, as sums: of its losses, of the squares of its gradients. */
typedef struct Totals {
    double losses, squares;
} Totals;

/* Of an update that the device decides about, as the host does not wait to learn its norm: adamw_begin(o, now, totals, clip)
 * of the table writes it, on the device, from totals that lie there too. grad_scale is clip / (norm + 1e-6) where
 * norm = sqrt(totals->squares) is larger than clip, else 1 (as it is with clip 0); where a total is not finite, no update
 * that reads this changes anything. */
typedef struct AdamWNow {
    float grad_scale;
    bool finite;
} AdamWNow;

/* How floats become bf16 words, where it is not to the nearest: up with the probability of what rounding down cuts off
 * (stochastic rounding: what is too small for a word to hold is not lost, in the mean). The chance is a function of seed, step
 * and the element's number in the whole tensor, so a word does not depend on who makes it. The elements of a call are
 * begin, begin + 1, ... of a block of rows of `width`, which holds, from row `row` of the tensor on, its columns column[]. */
typedef struct Rounding {
    uint64_t seed;
    int64_t step;
    int64_t begin, width, row, cols; // cols: of the tensor
    const int32_t *column;           // [width], on the device
} Rounding;

typedef struct AdamW {
    double lr, beta1, beta2, eps, weight_decay; // double: 1 - beta2 of a float has lost five digits
    double grad_scale;                          // clipping factor
    int64_t step;                               // 1 for the first update
    // CUDA; elsewhere none of them is set.
    const AdamWNow *now;      // of the device: instead of grad_scale
    void *words;              // [n] a copy of param in words of storage, which products read
    const Rounding *rounding; // of words; NULL: to the nearest
} AdamW;

/* Local. One pass over n elements. decay: whether weight_decay applies to this tensor. */
void adamw(Team *t, const AdamW *o, float *param, float *m, float *v, const float *grad, int64_t n,
           bool decay);
/* Local. Sum of x[i]^2 over fixed panels, in double: the same value for any number of threads. */
double sum_of_squares(Team *t, const float *x, int64_t n);

#endif
