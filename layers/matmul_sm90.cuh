/* matmul_sm90 -- the parts of a matmul on Hopper: a step of k in shared memory, the sums of a
 * warpgroup, and the boxes through which finished sums are stored. matmul_sm90.cu puts them
 * together.
 */
#ifndef LAYERS_MATMUL_SM90_CUH
#define LAYERS_MATMUL_SM90_CUH

#include "layers/cuda/matmul_epilogue.cuh"
#include "layers/cuda/warpgroups_sm90.cuh"

extern "C" {
#include "layers/cuda/matmul_cost.h"
#include "layers/cuda/tensor_map.h"
}

/* A block computes tiles of ROWS x N in steps of DEPTH along k, with two warpgroups. */
enum { GROUPS = 2, ROWS = GROUPS * SLAB, DEPTH = MATMUL_DEPTH };
static_assert(int{ROWS} == MATMUL_ROWS, "as they are priced");

/* Or a PAIR of blocks, a cluster, computes tiles of 2 ROWS x N: each block computes its own ROWS
 * rows, and both use the same b. */
enum { PAIR = MATMUL_PAIR };

/* The variants of the kernel, with CUTLASS's names. COOPERATIVE: both warpgroups work on the same
 * tile, 64 rows each. PINGPONG: each warpgroup has every second tile for itself, and is in its
 * epilogue while the other multiplies. */
enum KernelSchedule { COOPERATIVE, PINGPONG };
template <int WIDTH, Major MAJOR_A, Major MAJOR_B, class TYPE, KernelSchedule SCHEDULE>
struct Kind {
    static constexpr int N = WIDTH, J = N / COLUMNS, SLABS = SCHEDULE == COOPERATIVE ? 1 : GROUPS;
    static constexpr Major A = MAJOR_A, B = MAJOR_B;
    static constexpr bool PINGPONG_TILES = SCHEDULE == PINGPONG,
                          WIDE = sizeof(TYPE) == sizeof(float);
    // with fp32 y, b is summed, too, by warps of the producer
    using Threads = Roles<GROUPS, WIDE ? 64 : 40>;
    using Y = TYPE;
    using Sums = Fragment<J>[SLABS]; // of a warpgroup: SLABS x 64 rows x N
};

/* A step of one operand in shared memory: EXTENT along m or n, DEPTH along k. K_MAJOR is one box of
 * EXTENT rows, MN_MAJOR a box of DEPTH rows for each 64 of m or n. Rows are 128 bytes, swizzled.
 * Elements outside of the operand arrive as zeros. */
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
    /* Fetches the part of block `rank` of a PAIR: half of the rows of each box, into both
     * blocks. */
    __device__ __forceinline__ void fetch_half(const CUtensorMap &map, Shared barrier, int mn,
                                               int k, int rank) const {
        int row = rank * (BOX_ROWS / PAIR);
#pragma unroll
        for (int i = 0; i < BOXES; i++)
            tma_multicast(at + i * BOX_BYTES + row * PANEL_ROW, map, barrier, (1 << PAIR) - 1,
                          MAJOR == K_MAJOR ? k : mn + i * PANEL, (MAJOR == K_MAJOR ? mn : k) + row);
    }
    /* The operand of wgmma from row or column `first` on, a multiple of 64. step: 16 i further
     * along k. */
    __device__ __forceinline__ Matrix matrix(int first) const {
        return matrix_at(at + first * PANEL_ROW, BOX_BYTES, 8 * PANEL_ROW);
    }
    __device__ __forceinline__ static Matrix step(Matrix m, int i) {
        return matrix_on(m, MAJOR == K_MAJOR ? i * 32 : i * 16 * PANEL_ROW);
    }
    /* blocks: number of blocks of a cluster that fetch a box together. */
    static CUtensorMap map(const void *x, int64_t extent, int64_t K, int64_t ld, int blocks = 1) {
        TensorShape s = {2, {K, extent}, {1, ld}, {DEPTH, BOX_ROWS / blocks}, false};
        if (MAJOR == MN_MAJOR) s.size[0] = extent, s.size[1] = K;
        return tensor_map(x, &s);
    }
};

/* The threads that hold the sums of 64 rows. */
struct SlabThreads {
    static constexpr int N = GROUP, PIECES = GROUPS;
    __device__ __forceinline__ static unsigned index() { return threadIdx.x % GROUP; }
    __device__ __forceinline__ static void sync() { group_sync(); }
};
template <class K> using PartsOf = Parts<K::J, SlabThreads>;

/* Boxes of y, and of addend or aux, which are read or written beside y. A box belongs to one warp:
 * the 16 rows whose sums the warp holds, of 128 bytes, which are 64 elements of bf16 or 32
 * floats. */
enum { OUT_ROWS = SLAB / 4 };
template <class Y> struct OutBox {
    static constexpr int WIDE = PANEL_ROW / static_cast<int>(sizeof(Y)),
                         BYTES = OUT_ROWS * PANEL_ROW;
    static CUtensorMap map(const void *y, int64_t M, int64_t N, int64_t ld) {
        TensorShape s = {2, {N, M}, {1, ld}, {WIDE, OUT_ROWS}, sizeof(Y) == sizeof(float)};
        return tensor_map(y, &s);
    }
};

/* Rows of a or y in blocks of whole tiles (RowBlocks). Tiles begin with the rows of block `first`,
 * and wrap around. */
enum { MOST_BLOCKS = 8 };
struct Rows {
    int first, all;        // the first row to compute; number of rows
    int stored, copied;    // rows per block of y; rows per block of a
    const uint32_t *flags; // flags of the blocks of a; NULL: all blocks are in place
    uint32_t ready_value;  // value of a flag whose block is in place
    __device__ __forceinline__ int at(int m) const {
        return m + first < all ? m + first : m + first - all;
    }
    /* Called by the producer: waits until the block of a with this row is in place. `seen` has a
     * bit for each block that was waited for, so that each flag is polled only once. */
    __device__ __forceinline__ void wait(int m, unsigned &seen) const {
        if (!flags || seen >> m / copied & 1) return;
        seen |= 1u << m / copied;
        flag_wait_system(flags + m / copied, ready_value);
        fence_async_global();
    }
};

/* Shared memory: a ring of steps; for each warp two boxes, or four where they take no step from the
 * ring; barriers. */
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
    int rank, blocks; // rank of this block in its cluster, and size of the cluster
    __device__ __forceinline__ OperandA a(int slot) const { return {begin + slot * STEP}; }
    __device__ __forceinline__ OperandB b(int slot) const {
        return {begin + slot * STEP + OperandA::BYTES};
    }
    __device__ __forceinline__ Shared box(int warp, int i) const {
        return begin + SLOTS * STEP + (warp * BOXES + i) * BOX;
    }
    /* The barrier of a box into which addend or aux is read. */
    __device__ __forceinline__ Shared here(int warp, int i) const {
        return begin + BARRIERS + (2 * SLOTS + warp * BOXES + i) * 8;
    }
    __device__ __forceinline__ Ring<SLOTS> ring() const { return {begin + BARRIERS, 0, 0}; }
    /* row: the first row of y of this block in tile_m. share: the number of this block's part of a
     * share of the schedule. */
    __device__ __forceinline__ int row(int tile_m) const { return (tile_m * blocks + rank) * ROWS; }
    __device__ __forceinline__ int share(int share) const { return share * blocks + rank; }
    __device__ __forceinline__ void make_barriers(int more_consumers) const {
        ring().make(((K::PINGPONG_TILES ? 1 : GROUPS) * 4 + more_consumers) * blocks);
        for (int i = 0; i < WARPS * BOXES; i++) mbarrier_init(here(0, i), 1);
        mbarrier_fence();
    }
};

/* Writes 64 columns of c from accumulator j0 on into a box, with the epilogue; the box may hold
 * what was read beside y. */
template <int J>
__device__ __forceinline__ void fill_box(Shared box, const Fragment<J> &c, int j0,
                                         const EpilogueArgs &e) {
    int lane = this_lane(), r = lane % 16;
    Shared at = box + r * PANEL_ROW + ((lane / 16) ^ r % 8) * 16;
#pragma unroll
    for (int i = 0; i < PANEL / 16; i++) { // 16 columns are two chunks of 8, of 2 x 8 rows each
        const float(&x)[4] = c[j0 + 2 * i], (&y)[4] = c[j0 + 2 * i + 1];
        unsigned in[4] = {};
        if (e.reads) ldmatrix(in, flipped(at, i * 32));
        unsigned out[4] = {
            apply_epilogue_pair(e, x[0], x[1], in[0]), apply_epilogue_pair(e, x[2], x[3], in[1]),
            apply_epilogue_pair(e, y[0], y[1], in[2]), apply_epilogue_pair(e, y[2], y[3], in[3])};
        stmatrix(flipped(at, i * 32), out);
    }
}
/* Writes 32 columns of c from accumulator j0 on into a box, as floats. */
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
