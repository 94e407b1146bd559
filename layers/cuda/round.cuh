/* round -- floats that become words: to the nearest, or by chance (Rounding of layers/adamw.h). */
#ifndef LAYERS_CUDA_ROUND_CUH
#define LAYERS_CUDA_ROUND_CUH

#include "layers/cuda/vec.cuh"

extern "C" {
#include "layers/adamw.h"
}

/* A word that depends on all bits of (seed, step, index): the finalizer of SplitMix64 (Steele, Lea,
 * Flood 2014). */
__device__ __forceinline__ uint32_t chance(uint64_t seed, int64_t step, int64_t index) {
    uint64_t z = seed + static_cast<uint64_t>(step) * 0xd1342543de82ef95u +
                 static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
}

/* Of the 16 bits that are cut off, as many parts in 65536 round up. */
__device__ __forceinline__ float by_chance(float x, uint32_t bits) {
    if (!(fabsf(x) < 3e38f)) return x;
    return __uint_as_float((__float_as_uint(x) + (bits & 0xffff)) & 0xffff0000u);
}

template <int W>
__device__ __forceinline__ void round_words(Words<float, W> &y, const float (&x)[W],
                                            const Rounding &, int64_t) {
#pragma unroll
    for (int j = 0; j < W; j++) y.at[j] = x[j];
}
/* x[W]: elements i, i + 1, ... of a call. r.column NULL: to the nearest. */
template <int W>
__device__ __forceinline__ void round_words(Words<bf16, W> &y, const float (&x)[W],
                                            const Rounding &r, int64_t i) {
    int64_t row = 0, col = 0;
    if (r.column) row = (r.begin + i) / r.width, col = (r.begin + i) % r.width;
#pragma unroll
    for (int j = 0; j < W; j++) {
        float v = x[j];
        if (r.column) {
            int64_t index = (r.row + row) * r.cols + r.column[col];
            v = by_chance(v, chance(r.seed, r.step, index));
            if (++col == r.width) col = 0, row++;
        }
        from_float(y.at[j], v);
    }
}

#endif
