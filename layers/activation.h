/* activation -- elementwise activations (pointwise.h) and SwiGLU, forward and backward, and the
 * gradient of a bias.
 *
 *   gelu    y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))              Hendrycks, Gimpel 2016
 *   swiglu  y[T,F] = silu(gate) * up; a row of x[T,2F] is gate, then up    Shazeer 2020
 */
#ifndef LAYERS_ACTIVATION_H
#define LAYERS_ACTIVATION_H

#include <stdint.h>

#include "base/config.h"
#include "base/team.h"
#include "layers/act.h"

/* Local. y[n] = act(x); dx[n] = dy act'(x), where dx may be dy. act: not ACT_SWIGLU. */
void act_forward(Team *t, ActKind act, Act *y, const Act *x, int64_t n);
void act_backward(Team *t, ActKind act, Act *dx, const Act *dy, const Act *x, int64_t n);
void swiglu_forward(Team *t, Act *y, const Act *x, int64_t T, int64_t F);
void swiglu_backward(Team *t, Act *dx, const Act *dy, const Act *x, int64_t T, int64_t F);
/* Local. dbias[N] += column sums of dy[T,N], by fixed panels of tokens, added in order: the same
 * bits for any number of threads. */
void bias_backward(Team *t, float *dbias, const Act *dy, int64_t T, int64_t N);

/* Local. y[T,N] += addend[T,N] + bias[N]; either may be NULL. The epilogue of a row-parallel
 * matmul, whose sum is complete only after its reduction. */
void bias_residual(Team *t, Act *y, const Act *addend, const float *bias, int64_t T, int64_t N);
/* Local, CPU only. One row of bias_residual, on the calling thread. */
void bias_residual_row(float *y, const float *addend, const float *bias, int64_t N);

#endif
