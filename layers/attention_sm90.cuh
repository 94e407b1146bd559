/* attention_sm90 -- what forward and backward of attention on Hopper share: boxes of heads in
 * shared memory, matmuls of a warpgroup's 64 rows with a box, and the order in which blocks take
 * the work. Boxes come through a ring (cuda/warpgroups_sm90.cuh); a warpgroup that does not need a
 * box releases its slot at once.
 *
 * A box is rows x D elements of a head, as D / 64 panels of rows of 128 bytes, swizzled
 * (ptx_sm90.cuh). It is a K_MAJOR matrix with its rows along m or n, and also, for a sum over its
 * rows, an MN_MAJOR matrix. Rows beyond the sequence arrive as zeros and are not written back.
 */
#ifndef LAYERS_ATTENTION_SM90_CUH
#define LAYERS_ATTENTION_SM90_CUH

#include <algorithm>

#include "layers/attention_flash.cuh"
#include "layers/cuda/warpgroups_sm90.cuh"

extern "C" {
#include "layers/cuda/tensor_map.h"
}

/* A box of ROWS tokens of a head, by its address in shared memory. */
template <int D, int ROWS> struct Box {
    static constexpr int BYTES = ROWS * D * 2, PANEL_BYTES = ROWS * PANEL_ROW, GROUP_BYTES = 1024;
    Shared at;
    /* The box as the rows of A, or the columns of B. step: elements 16 k to 16 k + 15 of each
     * row. */
    __device__ __forceinline__ static Matrix step(Matrix m, int k) {
        return matrix_on(m, k / 4 * PANEL_BYTES + k % 4 * 32);
    }
    __device__ __forceinline__ Matrix rows() const { return matrix_at(at, 0, GROUP_BYTES); }
    /* The box as the rows of B, for a sum over its rows. sum_step: rows 16 k to 16 k + 15. */
    __device__ __forceinline__ static Matrix sum_step(Matrix m, int k) {
        return matrix_on(m, k * 2 * GROUP_BYTES);
    }
    __device__ __forceinline__ Matrix sum() const {
        return matrix_at(at, PANEL_BYTES, GROUP_BYTES);
    }
};

/* Begins c = a b': 64 rows of a times all rows of b. */
template <int D, int ROWS>
__device__ __forceinline__ void begin_scores(Fragment<ROWS / COLUMNS> &c, Box<D, SLAB> a,
                                             Box<D, ROWS> b) {
    Matrix x = a.rows(), y = b.rows();
#pragma unroll
    for (int k = 0; k < D / 16; k++) wgmma<K_MAJOR, K_MAJOR>(c, a.step(x, k), b.step(y, k), k > 0);
}

/* Begins o += p b: p[64, ROWS] in registers, summed over the rows of b. */
template <int D, int ROWS>
__device__ __forceinline__ void begin_sum(Fragment<D / COLUMNS> &o, const Operand<1, ROWS> &p,
                                          Box<D, ROWS> b) {
    Matrix y = b.sum();
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++) wgmma<MN_MAJOR>(o, p[0][k], b.sum_step(y, k), true);
}

/* Rounds accumulators to bf16: the operand of a sum. */
template <int N>
__device__ __forceinline__ void round_to(Operand<1, N> &p, const Fragment<N / COLUMNS> &c) {
#pragma unroll
    for (int i = 0; i < N / 16 * 4; i++) {
        const float *pair = &c[i / 4 * 2 + i % 4 / 2][i % 2 * 2];
        p[0][i / 4][i % 4] = pair_of(pair[0], pair[1]);
    }
}

/* A piece of work is WGS slabs of 64 rows of a head, one per warpgroup. Slabs of queries are
 * counted from the end of the sequence, those of keys from its beginning, so that the piece that
 * may lack slabs is the shortest one. The longest pieces of all heads come first, so that all
 * blocks end at about the same time. The next longest follow in the reverse order of heads: keys of
 * the last heads may still lie in L2.
 *
 *     head       0  1  2  3
 *     longest    0  1  2  3
 *     next       7  6  5  4
 *     shortest   8  9 10 11
 *
 * In GPT-2's shapes no block gets more than 1.02 times its share of tiles, as
 * tests/test_cuda_attention_order.cu simulates.
 */
enum Side { QUERIES, KEYS_AND_VALUES };
template <int WGS, Side SIDE = QUERIES> struct Part {
    // h: head of queries, or of keys. row0: first row, may be negative. S: rows of the sequence
    int b, h, row0, S;
    __host__ __device__ __forceinline__ Part(const Attention &a, int piece)
        : S(static_cast<int>(a.S)) {
        int all = heads(a), each = all / static_cast<int>(a.B), longer = piece / all,
            head = piece % all;
        if (longer % 2) head = all - 1 - head;
        row0 = SIDE == QUERIES ? ((S + SLAB - 1) / SLAB - (longer + 1) * WGS) * SLAB
                               : longer * WGS * SLAB;
        b = head / each, h = head % each;
    }
    __host__ __device__ __forceinline__ static int heads(const Attention &a) {
        return static_cast<int>(a.B * (SIDE == QUERIES ? a.H : a.Hkv));
    }
    __host__ __device__ __forceinline__ static int pieces(const Attention &a) {
        return static_cast<int>((a.S + WGS * SLAB - 1) / (WGS * SLAB));
    }
    __host__ __device__ __forceinline__ static int count(const Attention &a) {
        return pieces(a) * heads(a);
    }
    static unsigned blocks(const Attention &a) {
        return static_cast<unsigned>(std::min(count(a), device_sms()));
    }
    /* The first row of a warpgroup. has: does the warpgroup have rows in this piece? */
    __host__ __device__ __forceinline__ int row(int group) const { return row0 + group * SLAB; }
    __host__ __device__ __forceinline__ bool has(int group) const {
        return row(group) >= 0 && row(group) < S;
    }
    __device__ __forceinline__ int slabs() const {
        int n = 0;
        for (int j = 0; j < WGS; j++) n += has(j);
        return n;
    }
    /* For queries: the last tile of `keys` keys that a row of this piece attends to. */
    __device__ __forceinline__ int last(int keys) const { return (row(WGS) - 1) / keys; }
};

/* Query heads that share one key head. Divided in 32 bits: a division in 64 bits is a function
 * call, for which a thread that fetches has too few registers. */
__device__ __forceinline__ int sharing(const Attention &a) {
    return static_cast<int>(a.H) / static_cast<int>(a.Hkv);
}

/* The number of key head g, and of value head g, as packed_head counts heads. */
__device__ __forceinline__ int key_head(const Attention &a, int g) {
    return static_cast<int>(a.H) + g;
}
__device__ __forceinline__ int value_head(const Attention &a, int g) {
    return static_cast<int>(a.H + a.Hkv) + g;
}

/* Begins to fetch the box of head h (as packed_head counts heads) of sequence b from token `row`
 * on. */
__device__ __forceinline__ void fetch_box(Shared to, const CUtensorMap &map, Shared barrier,
                                          int panels, int h, int row, int b) {
    tma_load(to, map, barrier, 0, row, h * panels, b);
}

/* Waits until TMA has read what this warpgroup stored from its boxes. */
__device__ __forceinline__ void wait_stored() {
    if (threadIdx.x % GROUP == 0) tma_wait<0>();
}

/* Stores a warpgroup's accumulators of 64 rows, times f0 and f1 (rows of the upper and lower half
 * of each 16), rounded, into head h from token `row` on. They go through `box`, which belongs to
 * the warpgroup and which it no longer reads. TMA may read the box until wait_stored. */
template <int D>
__device__ __forceinline__ void store_box(const CUtensorMap &map, Box<D, SLAB> box,
                                          const Fragment<D / COLUMNS> &o, float f0, float f1, int h,
                                          int row, int b) {
    int lane = this_lane(), r = this_warp() % 4 * 16 + lane % 16;
    Shared at = box.at + r * PANEL_ROW + ((lane / 16) ^ r % 8) * 16;
    group_sync();
#pragma unroll
    for (int j = 0; j < D / 16; j++) { // 16 columns are two chunks of 8, of 2 x 8 rows each
        const float(&x)[4] = o[2 * j], (&y)[4] = o[2 * j + 1];
        unsigned pair[4] = {pair_of(x[0] * f0, x[1] * f0), pair_of(x[2] * f1, x[3] * f1),
                            pair_of(y[0] * f0, y[1] * f0), pair_of(y[2] * f1, y[3] * f1)};
        stmatrix(flipped(at, j % 4 * 32) + j / 4 * Box<D, SLAB>::PANEL_BYTES, pair);
    }
    fence_async();
    group_sync();
    if (threadIdx.x % GROUP == 0) {
        tma_store(map, box.at, 0, row, h * (D / PANEL), b);
        tma_commit();
    }
}

/* The map of boxes of `rows` tokens of heads[B, S, n_heads D]. */
inline CUtensorMap map_of_heads(const void *heads, const Attention &a, int64_t n_heads, int rows) {
    int64_t stride = n_heads * a.D;
    TensorShape s = {4,
                     {PANEL, a.S, stride / PANEL, a.B},
                     {1, stride, PANEL, a.S * stride},
                     {PANEL, rows, static_cast<int>(a.D) / PANEL, 1},
                     false};
    return tensor_map(heads, &s);
}

#endif
