/* cuda_runtime -- the emulator under CUDA's names, for g++ instead of nvcc and the toolkit's
 * header. It declares only what this program uses, so other uses of CUDA do not compile. */
#ifndef TESTS_EMU_CUDA_RUNTIME_H
#define TESTS_EMU_CUDA_RUNTIME_H

#include <cmath>
#include <cstdint>
#include <cstring>

extern "C" {
#include "tests/emu/emu.h"
#include "tests/emu/runtime.h"
}

/* Shared variables come from shared<T>() of launch.cuh, which poisons them. `__shared__` is not
 * defined here. */
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

#define threadIdx (emu_at.thread)
#define blockIdx  (emu_at.block)
#define blockDim  (emu_at.block_dim)
#define gridDim   (emu_at.grid_dim)

struct dim3 : uint3 {
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : uint3{x_, y_, z_} {}
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}

#include "tests/emu/include/emu_math.h"
#include "tests/emu/include/emu_warp.h"

#endif
