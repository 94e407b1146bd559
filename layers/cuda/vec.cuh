/* vec -- elements in memory and the 128 bits that a thread moves at once; sums over a warp and over
 * a block.
 *
 * E is the type in memory, float or bf16; arithmetic is in float. A thread that takes W = width<E>
 * elements, 16 bytes, from an address that is a multiple of 16 uses the widest access there is, and
 * a warp then moves 512 contiguous bytes. W = 1 serves what is not aligned.
 */
#ifndef LAYERS_CUDA_VEC_CUH
#define LAYERS_CUDA_VEC_CUH

#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <type_traits>

using bf16 = __nv_bfloat16;

template <class E> constexpr int width = 16 / static_cast<int>(sizeof(E));
enum { WARP = 32, FULL = -1 }; // lanes; the mask of all of them
constexpr float LOG2_E = 1.4426950408889634f;

/* Also for the host, which reads results of a device. */
__host__ __device__ __forceinline__ float to_float(float x) {
    return x;
}
__host__ __device__ __forceinline__ float to_float(bf16 x) {
    return __bfloat162float(x);
}
__device__ __forceinline__ void from_float(float &y, float x) {
    y = x;
}
__device__ __forceinline__ void from_float(bf16 &y, float x) {
    y = __float2bfloat16_rn(x);
}

/* Two floats rounded to a pair of bf16 in a register. */
__device__ __forceinline__ unsigned pair_of(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    unsigned bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

/* The two floats of a pair of bf16 in a register. The upper one needs one instruction, a mask; the
 * compiler would shift it down and up again. */
__device__ __forceinline__ float low_of(unsigned pair) {
    return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_of(unsigned pair) {
    return __uint_as_float(pair & 0xffff0000);
}

/* W elements that one instruction moves. */
template <class E, int W> struct alignas(sizeof(E) * W) Vec { E elem[W]; };

/* x[W] = the elements of w. */
template <class E, int W>
__device__ __forceinline__ void unpack(float (&x)[W], const Vec<E, W> &w) {
#pragma unroll
    for (int i = 0; i < W; i++) x[i] = to_float(w.elem[i]);
}
template <> __device__ __forceinline__ void unpack(float (&x)[8], const Vec<bf16, 8> &w) {
    unsigned pairs[4];
    memcpy(pairs, &w, sizeof pairs);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = low_of(pairs[i]), x[2 * i + 1] = high_of(pairs[i]);
    }
}

/* w = the elements x[W], rounded to E, two by one instruction. */
template <class E, int W> __device__ __forceinline__ void pack(Vec<E, W> &w, const float (&x)[W]) {
#pragma unroll
    for (int i = 0; i < W; i++) from_float(w.elem[i], x[i]);
}
template <> __device__ __forceinline__ void pack(Vec<bf16, 8> &w, const float (&x)[8]) {
    unsigned pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = pair_of(x[2 * i], x[2 * i + 1]);
    memcpy(&w, pairs, sizeof pairs);
}

/* x[W] = p[0 .. W) */
template <class E, int W> __device__ __forceinline__ void load(float (&x)[W], const E *p) {
    Vec<E, W> w = *reinterpret_cast<const Vec<E, W> *>(p);
    unpack(x, w);
}
template <class E, int W> __device__ __forceinline__ void store(E *p, const float (&x)[W]) {
    Vec<E, W> w;
    pack(w, x);
    *reinterpret_cast<Vec<E, W> *>(p) = w;
}

/* Can a row of n elements at p, and the rows that follow it, be moved W at a time? */
template <class E> bool whole_words(const void *p, int64_t n) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && n % width<E> == 0;
}

/* Calls launch(w) with w elements at a time: W where all are aligned, else 1. In the lambda w is a
 * constant: LAUNCH((kernel<E, w>), ...). */
template <class E, class Launch> void by_words(bool aligned, Launch launch) {
    if (aligned)
        launch(std::integral_constant<int, width<E>>());
    else
        launch(std::integral_constant<int, 1>());
}
/* Calls launch(w, first, count) for n elements: W at a time and, for the remainder, one at a
 * time. */
template <int W, class Launch> void by_words_and_rest(bool aligned, int64_t n, Launch launch) {
    int64_t whole = aligned ? n / W * W : 0;
    if (whole) launch(std::integral_constant<int, W>(), 0, whole);
    if (whole < n) launch(std::integral_constant<int, 1>(), whole, n - whole);
}
/* Fills a table of kernels from the launchers for its type of activations. */
template <template <class> class Launchers, class Table>
void fill_by_type(Table *table, bool is_bf16) {
    if (is_bf16)
        Launchers<bf16>::fill(table);
    else
        Launchers<float>::fill(table);
}

__device__ __forceinline__ int this_lane() {
    return static_cast<int>(threadIdx.x) % WARP;
}
__device__ __forceinline__ int this_warp() {
    return static_cast<int>(threadIdx.x) / WARP;
}

/* The number of blocks of `each` elements that cover n. */
inline unsigned blocks_for(int64_t n, int64_t each) {
    return static_cast<unsigned>((n + each - 1) / each);
}

/* Sums and maxima over the lanes of a warp; all lanes get the result. */
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) x += __shfl_xor_sync(static_cast<unsigned>(FULL), x, d);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2)
        x = fmaxf(x, __shfl_xor_sync(static_cast<unsigned>(FULL), x, d));
    return x;
}

/* The same over the 4 lanes that share a row of a fragment (ptx.cuh). */
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(static_cast<unsigned>(FULL), x, 1));
    return fmaxf(x, __shfl_xor_sync(static_cast<unsigned>(FULL), x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(static_cast<unsigned>(FULL), x, 1);
    return x + __shfl_xor_sync(static_cast<unsigned>(FULL), x, 2);
}

/* Sums of N numbers over the threads of a block, in the order of the warps; all threads get the
 * result. Two calls in a row need two BlockSums; a third may use the first again. */
template <int N> struct BlockSums { float of[WARP][N]; };
template <int N> __device__ __forceinline__ void block_sum(float (&x)[N], BlockSums<N> &s) {
    int warps = static_cast<int>(blockDim.x) / WARP;
#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i] = warp_sum(x[i]);
        if (this_lane() == 0) s.of[this_warp()][i] = x[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i] = 0;
        for (int w = 0; w < warps; w++) x[i] += s.of[w][i];
    }
}

#endif
