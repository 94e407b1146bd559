/* ptx -- instructions that the language lacks: matmuls of a warp, loads of their fragments,
 * asynchronous copies.
 *
 * All assembly is here and in ptx_sm90.cuh. The tests have an emulation of this file
 * (tests/emu/include/layers/cuda/ptx.cuh), which says in C++ what each function does.
 *
 * The matmul of a warp, mma m16n8k16: D[16, 8] += A[16, 16] B[16, 8], bf16 in, fp32 sums. No lane
 * holds a row: the lanes share the matrices in parts, the fragments. With g = lane / 4 and t = lane
 * % 4, a register holds a pair of neighbours:
 *
 *     A, 4 registers              k = 2t, 2t+1  k = 2t+8, 2t+9     D, 4 floats  n = 2t   n = 2t+1
 *                       row g         a[0]          a[2]                  row g    d[0]     d[1]
 *                       row g+8       a[1]          a[3]                  row g+8  d[2]     d[3]
 *     B, 2 registers    column g       b0             b1
 *
 * So two D of neighbouring columns, rounded to bf16, are the A of a matmul that sums over these
 * columns: the weights of attention go from one matmul into the next without leaving their lanes.
 *
 * ldmatrix fetches four 8 x 8 matrices of bf16 from shared memory. Lane i gives the address of row
 * i % 8 of matrix i / 8, 16 bytes. Register r of a lane becomes elements (g, 2t), (g, 2t+1) of
 * matrix r, and with .trans (2t, g), (2t+1, g). Without .trans, matrices are stored as A's rows or
 * B's columns; with .trans, as B's rows.
 */
#ifndef LAYERS_CUDA_PTX_CUH
#define LAYERS_CUDA_PTX_CUH

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

/* An address in shared memory, half as long as a pointer; + counts bytes. */
using Shared = unsigned;
__device__ __forceinline__ Shared shared_address(const void *p) {
    return static_cast<Shared>(__cvta_generic_to_shared(p));
}

/* The address with these bits flipped. */
__device__ __forceinline__ Shared flipped(Shared at, int bits) {
    return at ^ static_cast<Shared>(bits);
}

/* d += a b. All lanes of the warp. */
__device__ __forceinline__ void mma_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                         unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* All lanes of the warp. */
__device__ __forceinline__ void ldmatrix(unsigned (&r)[4], Shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_trans(unsigned (&r)[4], Shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

/* Begins a copy of 16 bytes, aligned to 16, from global to shared memory. The first n_bytes are
 * copied; the others become zeros, and are not read. The bytes are undefined until this thread has
 * waited; other threads need a barrier after its wait. Bypasses L1, as a block fetches each byte
 * once. */
__device__ __forceinline__ void copy_async_first(Shared to, const void *from, int n_bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n_bytes)
                 : "memory");
}
/* As copy_async_first, of 4 or 16 bytes: copies all of them, or without `there` sets all to
 * zero. */
template <int BYTES>
__device__ __forceinline__ void copy_async(Shared to, const void *from, bool there) {
    static_assert(BYTES == 4 || BYTES == 16, "what is used");
    int n = there ? BYTES : 0;
    if constexpr (BYTES == 16)
        copy_async_first(to, from, n);
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(n)
                     : "memory");
}
/* Makes a group of the copies begun since the last commit. */
__device__ __forceinline__ void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until all groups of this thread but the last LEFT have arrived. */
template <int LEFT> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* Writes x to pinned memory of the host, after all earlier writes of this thread: the host may read
 * it while the kernel runs. */
__device__ __forceinline__ void store_for_host(uint32_t *to, uint32_t x) {
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

/* Flags between blocks. flag_signal writes x to *flag, after all earlier writes of this thread and
 * of those that it has met at a barrier. flag_wait waits for x, and then sees these writes. */
__device__ __forceinline__ void flag_signal(int *flag, int x) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(x) : "memory");
}
__device__ __forceinline__ void flag_wait(const int *flag, int x) {
    int is;
    do {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(is) : "l"(flag) : "memory");
    } while (is != x);
}

/* As flag_wait, for a flag that a copy engine, another device or the host writes. */
__device__ __forceinline__ void flag_wait_system(const uint32_t *flag, uint32_t x) {
    uint32_t is;
    do {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(is) : "l"(flag) : "memory");
    } while (is != x);
}

/* 2^x with an error of up to 2 units in the last place; 0 where the result would be subnormal. */
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* 1 / x with an error of up to 1 unit in the last place. An IEEE division calls a function where x
 * is not normal, and ptxas keeps calls in their order: the values of a thread would be computed one
 * after the other. */
__device__ __forceinline__ float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
