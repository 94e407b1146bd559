/* cuda_bf16 -- bfloat16: the upper half of a float, rounded to nearest, ties to even. */
#ifndef TESTS_EMU_CUDA_BF16_H
#define TESTS_EMU_CUDA_BF16_H

#include <cuda_runtime.h>

struct alignas(2) __nv_bfloat16 {
    uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 x) {
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    unsigned u = __float_as_uint(x);
    if ((u & 0x7fffffff) > 0x7f800000) return {0x7fff}; // NaN
    return {static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

#endif
