/* pointwise -- the sigmoid, and activations that take one number each; formulas as in
 * pointwise.h. */
#ifndef LAYERS_POINTWISE_CUH
#define LAYERS_POINTWISE_CUH

#include <cfloat>

#include "layers/cuda/ptx.cuh"
#include "layers/cuda/vec.cuh"

extern "C" {
#include "base/config.h"
}

/* s = 1 / (1 + e^-x), and rest = 1 - s without the cancellation. Where s is 0, rest is 0, too, and
 * not infinity times 0. NaN stays NaN. */
__device__ __forceinline__ float sigmoid(float x, float &rest) {
    float e = exp2_fast(-LOG2_E * x), s = reciprocal_fast(1.0f + e);
    rest = fminf(e, FLT_MAX) * s;
    return s;
}
__device__ __forceinline__ float sigmoid(float x) {
    return reciprocal_fast(1.0f + exp2_fast(-LOG2_E * x));
}

/* 2u = x (A + B x^2): pointwise.h */
constexpr float GELU_A = 2 * 0.7978845608f, GELU_B = GELU_A * 0.044715f;

__device__ __forceinline__ float gelu(float x) {
    return x * sigmoid(x * fmaf(x * x, GELU_B, GELU_A));
}

/* d gelu / dx = s + x s (1 - s) d(2u)/dx with s = sigmoid(2u). */
__device__ __forceinline__ float gelu_slope(float x) {
    // beyond +-9 the slope is 0 or 1, but x^3 may be infinite
    float t = fminf(9.0f, fmaxf(-9.0f, x));
    float t2 = t * t, rest, s = sigmoid(t * fmaf(t2, GELU_B, GELU_A), rest);
    return fmaf(t * (s * rest), fmaf(t2, 3 * GELU_B, GELU_A), s);
}

/* NaN stays NaN: fmaxf(0, NaN) is 0. */
__device__ __forceinline__ float relu2(float x) {
    return x < 0 ? 0 : x * x;
}
__device__ __forceinline__ float relu2_slope(float x) {
    return x < 0 ? 0 : 2 * x;
}

__device__ __forceinline__ float pointwise(ActKind act, float x) {
    switch (act) {
    case ACT_RELU2:
        return relu2(x);
    case ACT_GELU:
    case ACT_SWIGLU: // ACT_SWIGLU has kernels of its own
        break;
    }
    return gelu(x);
}
__device__ __forceinline__ float pointwise_slope(ActKind act, float x) {
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
