/* pointwise -- elementwise activations of a vector of lanes, for activation.c and the epilogues of
 * matmul.c: one function and one slope for each kind. pointwise.cuh has the same for CUDA,
 * base/config.c their names.
 *
 *   gelu(x) = x/2 (1 + tanh u) = x / (1 + e^-2u),   u = sqrt(2/pi) (x + 0.044715 x^3)
 *
 * The second form costs one exponential and keeps the relative accuracy of small results (1 + tanh
 * u cancels at x < 0).
 */
#ifndef LAYERS_POINTWISE_H
#define LAYERS_POINTWISE_H

#include "base/config.h"
#include "base/simd.h"

/* e^-2u, as a power of 2. x from -GELU_FAR on, below which gelu stays at -1.1e-36: the power is at
 * most 2^123, so that 1 / (1 + e^-2u) is no denormal number, and at least the 2^-125 of vf_exp2. */
#define GELU_FAR 9.9f
static inline vf gelu_exp(vf x) {
    const float k = -2 * 0.7978845608f * LOG2_E;
    return vf_exp2(x * vf_fma(x * x, vf_set1(k * 0.044715f), vf_set1(k)));
}

static inline vf gelu(vf x) {
    vf low = vf_max(vf_set1(-GELU_FAR), x); // operand order keeps NaN
    return low / (vf_set1(1.0f) + gelu_exp(low));
}

/* d gelu / dx = s + x s (1 - s) d(2u)/dx with s = 1 / (1 + e^-2u). */
static inline vf gelu_slope(vf x) {
    // beyond GELU_FAR the slope is 1, below -GELU_FAR 0 but for 1e-34; x^3 may be infinite
    vf t = vf_min(vf_set1(GELU_FAR), vf_max(vf_set1(-GELU_FAR), x)), e = gelu_exp(t);
    vf s = vf_set1(1.0f) / (vf_set1(1.0f) + e);
    vf slope = vf_fma(t * t, vf_set1(6 * 0.7978845608f * 0.044715f), vf_set1(2 * 0.7978845608f));
    return vf_fma(t * (s * (e * s)), slope, s);
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
