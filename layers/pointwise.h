/* pointwise -- elementwise activations of a vector of lanes, for activation.c and the epilogues of
 * matmul.c: one function and one slope for each kind. pointwise.cuh has the same for CUDA,
 * base/config.c their names.
 *
 *   gelu(x) = x/2 (1 + tanh u) = x sigmoid(2u),   u = sqrt(2/pi) (x + 0.044715 x^3)
 *
 * The second form costs one exponential and keeps the relative accuracy of small results (1 + tanh
 * u cancels at x < 0).
 */
#ifndef LAYERS_POINTWISE_H
#define LAYERS_POINTWISE_H

#include "base/config.h"
#include "base/simd.h"

static inline vf gelu(vf x) {
    vf inner = vf_fma(x * x, vf_set1(2 * 0.7978845608f * 0.044715f), vf_set1(2 * 0.7978845608f));
    return x * vf_sigmoid(x * inner);
}

/* d gelu / dx = s + x s (1 - s) d(2u)/dx with s = sigmoid(2u). */
static inline vf gelu_slope(vf x) {
    // beyond 12 the slope is 0 or 1, but x^3 may be infinite
    vf t = vf_min(vf_set1(12.0f), vf_max(vf_set1(-12.0f), x));
    vf t2 = t * t;
    vf inner = vf_fma(t2, vf_set1(2 * 0.7978845608f * 0.044715f), vf_set1(2 * 0.7978845608f));
    vf slope = vf_fma(t2, vf_set1(6 * 0.7978845608f * 0.044715f), vf_set1(2 * 0.7978845608f));
    vf rest, s = vf_sigmoid_rest(t * inner, &rest);
    return vf_fma(t * (s * rest), slope, s);
}

/* max(x, 0)^2: So et al., "Primer", 2021. NaN stays NaN: of 0 and NaN vf_max gives the second. */
static inline vf relu2(vf x) {
    vf up = vf_max(vf_set1(0), x);
    return up * up;
}
static inline vf relu2_slope(vf x) {
    return vf_set1(2) * vf_max(vf_set1(0), x);
}

static inline vf pointwise(ActKind act, vf x) {
    switch (act) {
    case ACT_RELU2:
        return relu2(x);
    case ACT_GELU:
    case ACT_SWIGLU: // has kernels of its own
        break;
    }
    return gelu(x);
}
static inline vf pointwise_slope(ActKind act, vf x) {
    switch (act) {
    case ACT_RELU2:
        return relu2_slope(x);
    case ACT_GELU:
    case ACT_SWIGLU:
        break;
    }
    return gelu_slope(x);
}

#endif
