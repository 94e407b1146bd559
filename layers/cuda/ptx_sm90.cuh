/* ptx_sm90 -- instructions that only devices of capability 9.0 have: barriers in shared memory,
 * copies of boxes of tensors, matmuls of warpgroups. Files that include this one are called *_sm90*
 * and are compiled for sm_90a alone. The tests use an emulation,
 * tests/emu/include/layers/cuda/ptx_sm90.cuh.
 *
 * mbarrier: a counter of 8 bytes in shared memory. A phase is complete when as many arrivals have
 * come as init said, and as many bytes as these arrivals expect; then the next phase begins by
 * itself. A thread waits for the parity of a phase. A new barrier is in phase 0, so a wait for
 * parity 1 returns at once.
 *
 * TMA: one thread begins the copy of a box of a tensor, which a map describes that the host has
 * made (tensor_map.h). Elements outside of the tensor arrive as zeros and are not written back; the
 * barrier counts the bytes of the whole box. The maps here have the swizzle of 128 bytes: bits 4-6
 * of an address (the chunk of 16 bytes) are XORed with bits 7-9 (the row of 128 bytes), as in
 * layers/attention_flash.cuh.
 *
 * wgmma m64nNk16: D[64, N] (+)= A[64, 16] B[16, N], bf16 in, fp32 sums, by the 4 warps of a
 * warpgroup. Warp w has rows 16 w to 16 w + 15 of A and D, in the fragments of mma m16n8k16
 * (ptx.cuh): d[j] are a lane's 4 floats of columns 8 j .. 8 j + 7. A lies in registers, or in
 * shared memory like B. A Matrix describes an operand in shared memory: K_MAJOR, rows of A (columns
 * of B) contiguous along k; or MN_MAJOR, contiguous along m or n.
 *
 *     K_MAJOR    64 elements along k in a row of 128 bytes, 8 rows in a group of 1024; `stride` to
 *                the next group of 8 of m or n
 *     MN_MAJOR   64 elements along m or n in a row of 128 bytes, 8 rows in a group; `stride` to the
 *                next group of 8 of k, `leading` to the next 64 of m or n
 *
 * A matmul is in flight until a wgmma_wait for it: before that its accumulators may not be read.
 *
 * Clusters: blocks that are launched together, run at the same time, and reach each other's shared
 * memory. A copy may write one box into several of them at once (multicast): the box is fetched
 * from L2 once, arrives at the same address in each block, and counts for the barrier at the same
 * address in each.
 */
#ifndef LAYERS_CUDA_PTX_SM90_CUH
#define LAYERS_CUDA_PTX_SM90_CUH

#include <cuda.h>

#include "layers/cuda/ptx.cuh"

/* --- mbarrier */

__device__ __forceinline__ void mbarrier_init(Shared at, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
/* By the thread that made barriers, before other threads use them: makes them visible to copies,
 * too. */
__device__ __forceinline__ void mbarrier_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(Shared at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
/* Arrives, and adds n_bytes to the bytes that this phase expects from copies. */
__device__ __forceinline__ void mbarrier_expect(Shared at, int n_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(n_bytes)
                 : "memory");
}
__device__ __forceinline__ void mbarrier_wait(Shared at, int parity) {
    unsigned done;
    do {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
                     "selp.u32 %0, 1, 0, p;}"
                     : "=r"(done)
                     : "r"(at), "r"(parity)
                     : "memory");
    } while (!done);
}

/* Arrives at the barrier at address `at` of block `rank` of the cluster. The arrival says that this
 * warp has read a slot; it orders no writes of this warp for the other block. So it is a release at
 * the scope of this block, PTX's default, as in CUTLASS (ClusterBarrier::arrive). A release at the
 * scope of the cluster would be a barrier for all memory of this thread (MEMBAR.ALL.GPU), which
 * took half of the time of a matmul. */
__device__ __forceinline__ void mbarrier_arrive_at(Shared at, int rank) {
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(at),
                 "r"(rank)
                 : "memory");
}

/* --- copies, begun by one thread */

/* Makes this thread's writes to shared memory visible to copies and matmuls that begin after the
 * next barrier. */
__device__ __forceinline__ void fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Makes global memory, as this thread sees it, visible to the copies that it begins from now on. */
__device__ __forceinline__ void fence_async_global() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* Begins to copy the box at these coordinates, innermost first, to shared memory. The box is
 * complete when the barrier's phase is. */
__device__ __forceinline__ void tma_load(Shared to, const CUtensorMap &map, Shared barrier, int c0,
                                         int c1) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(&map), "r"(barrier), "r"(c0), "r"(c1)
                 : "memory");
}
__device__ __forceinline__ void tma_load(Shared to, const CUtensorMap &map, Shared barrier, int c0,
                                         int c1, int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}
/* As tma_load, into each block of the cluster in the mask, 1 << rank. */
__device__ __forceinline__ void tma_multicast(Shared to, const CUtensorMap &map, Shared barrier,
                                              unsigned mask, int c0, int c1) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(to),
                 "l"(&map), "r"(barrier), "h"(static_cast<uint16_t>(mask)), "r"(c0), "r"(c1)
                 : "memory");
}
/* Begins to copy n_bytes contiguous bytes, a multiple of 16, from and to addresses that are
 * multiples of 16. */
__device__ __forceinline__ void bulk_load(Shared to, const void *from, int n_bytes,
                                          Shared barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(n_bytes), "r"(barrier)
                 : "memory");
}

/* Begins to store a box. tma_commit makes a group of this thread's stores since the last commit. */
__device__ __forceinline__ void tma_store(const CUtensorMap &map, Shared from, int c0, int c1) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
        "r"(from), "r"(c0), "r"(c1)
        : "memory");
}
__device__ __forceinline__ void tma_store(const CUtensorMap &map, Shared from, int c0, int c1,
                                          int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], "
                 "[%1];" ::"l"(&map),
                 "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}
/* As tma_store, but y += box, of floats, each sum rounded to nearest. */
__device__ __forceinline__ void tma_add(const CUtensorMap &map, Shared from, int c0, int c1) {
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group "
                 "[%0, {%2, %3}], [%1];" ::"l"(&map),
                 "r"(from), "r"(c0), "r"(c1)
                 : "memory");
}
__device__ __forceinline__ void tma_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Waits until all groups of this thread but the last LEFT have read their boxes. */
template <int LEFT> __device__ __forceinline__ void tma_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}

/* --- clusters */

/* This block's rank in its cluster, and the number of blocks: 0 and 1 in a launch without
 * clusters. */
__device__ __forceinline__ int cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return static_cast<int>(rank);
}
__device__ __forceinline__ int cluster_size() {
    unsigned n;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return static_cast<int>(n);
}
/* A barrier of all threads of all blocks of the cluster: all see what any wrote before. */
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}

/* --- threads */

/* By all warps of a warpgroup: gives registers back, or takes more, so that a thread has N from now
 * on; 24 .. 256 by 8. */
template <int N> __device__ __forceinline__ void registers_at_most() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void registers_at_least() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* Barrier `id`, 1 .. 15, of n threads, which are whole warps. sync waits for all of them; arrive
 * does not wait. */
__device__ __forceinline__ void barrier_sync(int id, int n) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}
__device__ __forceinline__ void barrier_arrive(int id, int n) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory");
}

/* Loads two registers from shared memory; stores two floats to it. */
__device__ __forceinline__ void load_shared(unsigned (&r)[2], Shared at) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
}
__device__ __forceinline__ void store_shared(Shared at, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}
/* Stores 4 matrices of 8 x 8 from registers to shared memory: the inverse of ldmatrix. */
__device__ __forceinline__ void stmatrix(Shared row, const unsigned (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* --- wgmma: all warps of a warpgroup */

using Matrix = uint64_t;
enum Major { K_MAJOR = 0, MN_MAJOR = 1 };

/* The descriptor of a matrix that begins at `at`, in rows of 128 bytes, swizzled; the strides are
 * bytes. */
__device__ __forceinline__ Matrix matrix_at(Shared at, int leading, int stride) {
    return static_cast<Matrix>(at >> 4 & 0x3fff) | static_cast<Matrix>(leading >> 4) << 16 |
           static_cast<Matrix>(stride >> 4) << 32 | Matrix(1) << 62;
}
/* The descriptor of the matrix n_bytes further on. */
__device__ __forceinline__ Matrix matrix_on(Matrix m, int n_bytes) {
    return m + static_cast<Matrix>(n_bytes >> 4);
}

/* Before the first matmul after a write to registers that it uses: makes the write visible. */
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/* Makes a group of the matmuls begun since the last commit. */
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Tells the compiler that these accumulators change here: their values from before may not be
 * used. */
template <int J> __device__ __forceinline__ void wgmma_settle(float (&d)[J][4]) {
#pragma unroll
    for (int i = 0; i < J * 4; i++) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}
/* Waits until all groups but the last LEFT are done; d are the accumulators of these groups. */
template <int LEFT, class... D> __device__ __forceinline__ void wgmma_wait(D &...d) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
    (wgmma_settle(d), ...);
}

/* Ends the kernel if the condition is true, which it never is. The condition's operands are
 * computed in front of what follows: ptxas moves arithmetic behind a wgmma_wait that does not
 * depend on it, so that it no longer overlaps with the matmul; it moves none across a branch. */
__device__ __forceinline__ void stop_if(bool never) {
    if (never) asm volatile("trap;");
}

/* x, hidden from the compiler: what depends on x is computed here, in registers that are free here,
 * and not once in front of a loop. */
__device__ __forceinline__ unsigned anew(unsigned x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* Begins d (+)= a b; `add` selects +=. The instruction for n columns names its n / 2 accumulators
 * one by one and after them its operands: D_ and ACC_ are their lists. Each n that is used has a
 * line below, for A in shared memory or in registers. */
// clang-format off
#define D_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define D_32 D_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, " \
    "%31"
#define D_64 D_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
    "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define D_96 D_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, " \
    "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define D_128 D_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, " \
    "%109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, " \
    "%123, %124, %125, %126, %127"
#define ACC(j)    "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define ACC_4(j)  ACC(j), ACC(j + 1), ACC(j + 2), ACC(j + 3)
#define ACC_8(j)  ACC_4(j), ACC_4(j + 4)
#define ACC_16(j) ACC_8(j), ACC_8(j + 8)
#define LIST(...)  __VA_ARGS__ // one argument
#define WGMMA(N, D, ADD, OPERANDS)                                                                 \
    "{.reg .pred p; setp.ne.b32 p, " ADD ", 0;"                                                    \
    "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" D "}, " OPERANDS ";}"
#define WGMMA_SHARED(N, ACCS, D, A_, B_, ADD, MAJOR_A, MAJOR_B)                                    \
    template <Major A, Major B>                                                                    \
    __device__ __forceinline__ void wgmma(float (&d)[N / 8][4], Matrix a, Matrix b, bool add) {    \
        asm volatile(WGMMA(N, D, ADD, A_ ", " B_ ", p, 1, 1, " MAJOR_A ", " MAJOR_B)               \
                     : ACCS                                                                        \
                     : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(A)),       \
                       "n"(static_cast<int>(B)));                                                  \
    }
#define WGMMA_REGISTERS(N, ACCS, D, A0, A1, A2, A3, B_, ADD, MAJOR_B)                              \
    template <Major B>                                                                             \
    __device__ __forceinline__ void wgmma(float (&d)[N / 8][4], const unsigned (&a)[4], Matrix b,  \
                                          bool add) {                                              \
        asm volatile(WGMMA(N, D, ADD, "{" A0 ", " A1 ", " A2 ", " A3 "}, " B_ ", p, 1, 1, "        \
                           MAJOR_B)                                                                \
                     : ACCS                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                         \
                       "r"(static_cast<int>(add)), "n"(static_cast<int>(B)));                      \
    }
WGMMA_SHARED(32, LIST(ACC_4(0)), D_16, "%16", "%17", "%18", "%19", "%20")
WGMMA_SHARED(64, LIST(ACC_8(0)), D_32, "%32", "%33", "%34", "%35", "%36")
WGMMA_SHARED(128, LIST(ACC_16(0)), D_64, "%64", "%65", "%66", "%67", "%68")
WGMMA_SHARED(192, LIST(ACC_16(0), ACC_8(16)), D_96, "%96", "%97", "%98", "%99", "%100")
WGMMA_SHARED(256, LIST(ACC_16(0), ACC_16(16)), D_128, "%128", "%129", "%130", "%131", "%132")
WGMMA_REGISTERS(64, LIST(ACC_8(0)), D_32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
WGMMA_REGISTERS(128, LIST(ACC_16(0)), D_64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
#undef WGMMA_REGISTERS
#undef WGMMA_SHARED
#undef WGMMA
#undef LIST
#undef ACC_16
#undef ACC_8
#undef ACC_4
#undef ACC
#undef D_128
#undef D_96
#undef D_64
#undef D_32
#undef D_16
// clang-format on

#endif
