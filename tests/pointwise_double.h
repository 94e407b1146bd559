/* pointwise_double -- elementwise activations and their slopes in double: the references for the
 * kernels and for the epilogues of matmuls. */
#ifndef TESTS_POINTWISE_DOUBLE_H
#define TESTS_POINTWISE_DOUBLE_H

#include <math.h>

#include "base/config.h"

enum { N_POINTWISE = ACT_SWIGLU }; // the kinds before ACT_SWIGLU are elementwise

/* The gate of SwiGLU: x sigmoid(x). */
static inline double silu_of(double x) {
    return x > 0 ? x / (1 + exp(-x)) : x * exp(x) / (1 + exp(x));
}
static inline double silu_slope_of(double x) {
    double s = 1 / (1 + exp(-x));
    return s * (1 + x * (1 - s));
}

/* GELU is x/2 (1 + tanh u) = x sigmoid(2u), here without the cancellation of the first form. */
static inline double act_of(ActKind act, double x) {
    if (act == ACT_RELU2) return x > 0 ? x * x : 0;
    double u = sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x);
    return x * (u > 0 ? 1 / (1 + exp(-2 * u)) : exp(2 * u) / (1 + exp(2 * u)));
}
static inline double act_slope_of(ActKind act, double x) {
    if (act == ACT_RELU2) return x > 0 ? 2 * x : 0;
    double k = sqrt(2 / acos(-1)), u = k * (x + 0.044715 * x * x * x), th = tanh(u);
    return 0.5 * (1 + th) + 0.5 * x * (1 - th * th) * k * (1 + 3 * 0.044715 * x * x);
}

#endif
