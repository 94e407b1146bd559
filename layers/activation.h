/* activation -- GELU (tanh form) and SwiGLU, forward and backward, and the gradient of a bias.
 *
 *   gelu    y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))                      Hendrycks,
 * Gimpel 2016 swiglu  y[T,F] = silu(gate) * up, x[T, 2F] holds gate then up in each row Shazeer
 * 2020
 */
#ifndef LAYERS_ACTIVATION_H
#define LAYERS_ACTIVATION_H

#include <stdint.h>

#include "base/team.h"
#include "layers/act.h"

void gelu_forward(Team *t, Act *y, const Act *x, int64_t n);
void gelu_backward(Team *t, Act *dx, const Act *dy, const Act *x, int64_t n); // dx may be dy
void swiglu_forward(Team *t, Act *y, const Act *x, int64_t T, int64_t F);
void swiglu_backward(Team *t, Act *dx, const Act *dy, const Act *x, int64_t T, int64_t F);
/* Local. dbias[N] += column sums of dy[T,N], by fixed panels of tokens added in order. */
void bias_backward(Team *t, float *dbias, const Act *dy, int64_t T, int64_t N);

/* Local. y[T,N] += addend[T,N] + bias[N]; either may be NULL: what a product's epilogue does, for
 * sums that were not complete when the product ended. */
void bias_residual(Team *t, Act *y, const Act *addend, const float *bias, int64_t T, int64_t N);
/* Local. One row of it, by the thread that calls. On the CPU. */
void bias_residual_row(float *y, const float *addend, const float *bias, int64_t N);

#endif
