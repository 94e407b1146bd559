/* norm -- layer norm and RMS norm over the C features of each token.
 *
 *   layer  y = (x - mean) * rstd * gamma + beta      rstd = 1 / sqrt(mean((x - mean)^2) + eps)
 *   rms    y = x * rstd * gamma                      rstd = 1 / sqrt(mean(x^2) + eps)
 *
 * RMS norm uses no mean: it may be NULL.
 * Source: Ba, Kiros, Hinton 2016; Zhang, Sennrich 2019.
 */
#ifndef LAYERS_NORM_H
#define LAYERS_NORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/team.h"

typedef struct Norm {
    NormKind kind;
    int64_t T, C;
    float eps;
    const float *gamma, *beta; // [C]; beta NULL: none
    float *dgamma, *dbeta;     // [C], accumulated by backward; dbeta NULL: none
    void *workspace;           // norm_workspace() bytes, for backward
} Norm;

size_t norm_workspace(int64_t T, int64_t C);
/* Local. y[T,C], mean[T], rstd[T]; mean and rstd may be NULL (nothing is kept). y may be x. */
void norm_forward(Team *t, const Norm *n, float *y, float *mean, float *rstd, const float *x);
/* Local. dx[T,C] += gradient (the residual stream's gradient is already there); dgamma, dbeta += by
 * fixed panels of tokens. */
void norm_backward(Team *t, const Norm *n, float *dx, const float *dy, const float *x,
                   const float *mean, const float *rstd);

#endif
