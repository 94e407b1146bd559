/* matmul_sm90 -- the parts of a matmul on Hopper: a step of k in shared memory, the sums of a
 * warpgroup, and the boxes through which finished sums leave. matmul_sm90.cu puts them together.
 */
#ifndef LAYERS_MATMUL_SM90_CUH
#define LAYERS_MATMUL_SM90_CUH

#include "layers/cuda/matmul_ends.cuh"
#include "layers/cuda/warpgroups_sm90.cuh"

extern "C" {
#include "layers/cuda/matmul_cost.h"
#include "layers/cuda/tensor_map.h"
}

/* A block computes tiles of ROWS x N in steps of DEPTH along k, by two warpgroups. */
enum { GROUPS = 2, ROWS = GROUPS * SLAB, DEPTH = MATMUL_DEPTH };
static_assert(int{ROWS} == MATMUL_ROWS, "as they are priced");

/* Or a PAIR of blocks, a cluster, computes tiles of 2 ROWS x N: each its own rows, with b in
 * common. */
enum { PAIR = MATMUL_PAIR };

/* What a kernel computes, and how. TOGETHER: both warpgroups work on one tile, 64 rows each.
 * IN_TURNS: each has every second tile for itself, and is in its epilogue while the other
 * multiplies. */
enum Share { TOGETHER, IN_TURNS };
template <int WIDTH, Major MAJOR_A, Major MAJOR_B, class TYPE, Share SHARE> struct Kind {
    static constexpr int N = WIDTH, J = N / COLUMNS, SLABS = SHARE == TOGETHER ? 1 : GROUPS;
    static constexpr Major A = MAJOR_A, B = MAJOR_B;
    static constexpr bool TURNS = SHARE == IN_TURNS, WIDE = sizeof(TYPE) == sizeof(float);
    using Threads = Roles<GROUPS, WIDE ? 64 : 40>; // of floats, b is summed, too
    using Y = TYPE;
    using Sums = Fragment<J>[SLABS]; // of a warpgroup: 64 rows x N each
};

/* A step of one operand: EXTENT of m or n, DEPTH of k. K_MAJOR is one box of EXTENT rows, MN_MAJOR
 * a box of DEPTH rows for each 64 of m or n; rows are 128 bytes, swizzled. What lies outside of the
 * operand arrives as zeros. */
template <Major MAJOR, int EXTENT> struct Operand {
    static constexpr int BOXES = MAJOR == K_MAJOR ? 1 : (EXTENT + PANEL - 1) / PANEL;
    static constexpr int BOX_ROWS = MAJOR == K_MAJOR ? EXTENT : DEPTH;
    static constexpr int BOX_BYTES = BOX_ROWS * PANEL_ROW, BYTES = BOXES * BOX_BYTES;
    Shared at;
    __device__ __forceinline__ void fetch(const CUtensorMap &map, Shared barrier, int mn,
                                          int k) const {
#pragma unroll
        for (int i = 0; i < BOXES; i++)
            tma_load(at + i * BOX_BYTES, map, barrier, MAJOR == K_MAJOR ? k : mn + i * PANEL,
                     MAJOR == K_MAJOR ? mn : k);
    }
    /* The part of this block, `rank` of a PAIR: half of the rows of each box, for both. */
    __device__ __forceinline__ void fetch_half(const CUtensorMap &map, Shared barrier, int mn,
                                               int k, int rank) const {
        int row = rank * (BOX_ROWS / PAIR);
#pragma unroll
        for (int i = 0; i < BOXES; i++)
            tma_multicast(at + i * BOX_BYTES + row * PANEL_ROW, map, barrier, (1 << PAIR) - 1,
                          MAJOR == K_MAJOR ? k : mn + i * PANEL, (MAJOR == K_MAJOR ? mn : k) + row);
    }
    /* For wgmma: from row or column `first` on, a multiple of 64; and 16 i of k further on. */
    __device__ __forceinline__ Matrix matrix(int first) const {
        return matrix_at(at + first * PANEL_ROW, BOX_BYTES, 8 * PANEL_ROW);
    }
    __device__ __forceinline__ static Matrix step(Matrix m, int i) {
        return matrix_on(m, MAJOR == K_MAJOR ? i * 32 : i * 16 * PANEL_ROW);
    }
    /* blocks: of a cluster that fetch it together. */
    static CUtensorMap map(const void *x, int64_t extent, int64_t K, int64_t ld, int blocks = 1) {
        TensorShape s = {2, {K, extent}, {1, ld}, {DEPTH, BOX_ROWS / blocks}, false};
        if (MAJOR == MN_MAJOR) s.size[0] = extent, s.size[1] = K;
        return tensor_map(x, &s);
    }
};

/* The threads that have the sums of 64 rows. */
struct SlabThreads {
    static constexpr int N = GROUP, PIECES = GROUPS;
    __device__ __forceinline__ static unsigned index() { return threadIdx.x % GROUP; }
    __device__ __forceinline__ static void meet() { group_sync(); }
};
template <class K> using PartsOf = Parts<K::J, SlabThreads>;

/* Boxes of y, and of what is read or written beside y, each of one warp: the 16 rows that it has
 * the sums of, of 128 bytes, 64 elements of bf16 or 32 floats. */
enum { OUT_ROWS = SLAB / 4 };
template <class Y> struct OutBox {
    static constexpr int WIDE = PANEL_ROW / static_cast<int>(sizeof(Y)),
                         BYTES = OUT_ROWS * PANEL_ROW;
    static CUtensorMap map(const void *y, int64_t M, int64_t N, int64_t ld) {
        TensorShape s = {2, {N, M}, {1, ld}, {WIDE, OUT_ROWS}, sizeof(Y) == sizeof(float)};
        return tensor_map(y, &s);
    }
};

/* Rows of a or y in blocks of whole tiles (RowBlocks): tiles begin with those of some block, and go
 * around. */
enum { MOST_BLOCKS = 8 };
struct Rows {
    int first, all;        // the first row; how many
    int stored, copied;    // rows of a block of y, of a
    const uint32_t *flags; // of blocks of a; NULL: all are here
    uint32_t said;
    __device__ __forceinline__ int at(int m) const {
        return m + first < all ? m + first : m + first - all;
    }
    /* Of the thread that fetches: this row of a is here. `seen` has a bit for each block that was
     * waited for: who wrote a flag may be busy writing others. */
    __device__ __forceinline__ void wait(int m, unsigned &seen) const {
        if (!flags || seen >> m / copied & 1) return;
        seen |= 1u << m / copied;
        flag_wait_system(flags + m / copied, said);
        fence_async_global();
    }
};

/* Shared memory: a ring of steps, two boxes or, where they cost no step, four for each warp,
 * barriers. */
template <class K> struct Layout {
    using OperandA = Operand<K::A, ROWS>;
    using OperandB = Operand<K::B, K::N>;
    static constexpr int STEP = OperandA::BYTES + OperandB::BYTES, WARPS = GROUPS * 4,
                         BOX = OutBox<typename K::Y>::BYTES, MOST = (227 << 10) - 1024,
                         SLOTS = (MOST - WARPS * 2 * BOX) / STEP,
                         BOXES = MOST - SLOTS * STEP < WARPS * 4 * BOX ? 2 : 4,
                         BARRIERS = SLOTS * STEP + WARPS * BOXES * BOX,
                         BYTES = BARRIERS + (2 * SLOTS + WARPS * BOXES) * 8;
    Shared begin;
    int rank, blocks; // of the cluster
    __device__ __forceinline__ OperandA a(int slot) const { return {begin + slot * STEP}; }
    __device__ __forceinline__ OperandB b(int slot) const {
        return {begin + slot * STEP + OperandA::BYTES};
    }
    __device__ __forceinline__ Shared box(int warp, int i) const {
        return begin + SLOTS * STEP + (warp * BOXES + i) * BOX;
    }
    /* What a box is to begin with is here. */
    __device__ __forceinline__ Shared here(int warp, int i) const {
        return begin + BARRIERS + (2 * SLOTS + warp * BOXES + i) * 8;
    }
    __device__ __forceinline__ Ring<SLOTS> ring() const { return {begin + BARRIERS, 0, 0}; }
    /* The first row of y that is this block's in tile_m; its part of a share of the schedule. */
    __device__ __forceinline__ int row(int tile_m) const { return (tile_m * blocks + rank) * ROWS; }
    __device__ __forceinline__ int share(int share) const { return share * blocks + rank; }
    __device__ __forceinline__ void make_barriers(int more_takers) const {
        ring().make(((K::TURNS ? 1 : GROUPS) * 4 + more_takers) * blocks);
        for (int i = 0; i < WARPS * BOXES; i++) mbarrier_init(here(0, i), 1);
        mbarrier_fence();
    }
};

/* 64 columns of c from accumulator j0 on into a box, which may hold what was read. */
template <int J>
__device__ __forceinline__ void fill_box(Shared box, const Fragment<J> &c, int j0, const Ends &e) {
    int lane = this_lane(), r = lane % 16;
    Shared at = box + r * PANEL_ROW + ((lane / 16) ^ r % 8) * 16;
#pragma unroll
    for (int i = 0; i < PANEL / 16; i++) { // 16 columns are two chunks, of 2 x 8 rows each
        const float(&x)[4] = c[j0 + 2 * i], (&y)[4] = c[j0 + 2 * i + 1];
        unsigned in[4] = {};
        if (e.reads) ldmatrix(in, flipped(at, i * 32));
        unsigned out[4] = {end_pair(e, x[0], x[1], in[0]), end_pair(e, x[2], x[3], in[1]),
                           end_pair(e, y[0], y[1], in[2]), end_pair(e, y[2], y[3], in[3])};
        stmatrix(flipped(at, i * 32), out);
    }
}
/* 32 columns as floats. */
template <int J>
__device__ __forceinline__ void fill_box_of_floats(Shared box, const Fragment<J> &c, int j0) {
    int lane = this_lane(), r = lane / 4;
    Shared at = box + r * PANEL_ROW + ((lane % 4 / 2) ^ r % 8) * 16 + lane % 2 * 8;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float(&x)[4] = c[j0 + i];
        store_shared(flipped(at, i * 32), x[0], x[1]);
        store_shared(flipped(at, i * 32) + 8 * PANEL_ROW, x[2], x[3]);
    }
}

#endif
