/* attention_sm90 -- what the passes of attention on Hopper share: boxes of heads in shared memory,
 * a ring of them (cuda/warpgroups_sm90.cuh), matmuls of a warpgroup's 64 rows with a box. What a
 * warpgroup has no use for it gives back at once.
 *
 * A box is rows x D elements of a head, as D / 64 panels of rows of 128 bytes, swizzled
 * (ptx_sm90.cuh): both a K_MAJOR matrix with its rows along m or n, and, for a sum over its rows,
 * an MN_MAJOR matrix. Rows beyond the sequence arrive as zeros and are not written back.
 */
#ifndef LAYERS_ATTENTION_SM90_CUH
#define LAYERS_ATTENTION_SM90_CUH

#include <algorithm>

#include "layers/attention_flash.cuh"
#include "layers/cuda/warpgroups_sm90.cuh"

extern "C" {
#include "layers/cuda/tensor_map.h"
}

/* ROWS tokens of a head. */
template <int D, int ROWS> struct Box {
    static constexpr int BYTES = ROWS * D * 2, PANEL_BYTES = ROWS * PANEL_ROW, GROUP_BYTES = 1024;
    Shared at;
    /* As the rows of A, or the columns of B: from `row` on, a multiple of 8; elements 16 k to 16 k
     * + 15 of them. */
    __device__ __forceinline__ static Matrix step(Matrix m, int k) {
        return matrix_on(m, k / 4 * PANEL_BYTES + k % 4 * 32);
    }
    __device__ __forceinline__ Matrix rows() const { return matrix_at(at, 0, GROUP_BYTES); }
    /* As the rows of B: a sum over rows 16 k to 16 k + 15. */
    __device__ __forceinline__ static Matrix sum_step(Matrix m, int k) {
        return matrix_on(m, k * 2 * GROUP_BYTES);
    }
    __device__ __forceinline__ Matrix sum() const {
        return matrix_at(at, PANEL_BYTES, GROUP_BYTES);
    }
};

/* c = a b', begun: 64 rows of a times all rows of b. */
template <int D, int ROWS>
__device__ __forceinline__ void begin_scores(Fragment<ROWS / COLUMNS> &c, Box<D, SLAB> a,
                                             Box<D, ROWS> b) {
    Matrix x = a.rows(), y = b.rows();
#pragma unroll
    for (int k = 0; k < D / 16; k++) wgmma<K_MAJOR, K_MAJOR>(c, a.step(x, k), b.step(y, k), k > 0);
}

/* o += p b, begun: p[64, ROWS] in registers, summed over the rows of b. */
template <int D, int ROWS>
__device__ __forceinline__ void begin_sum(Fragment<D / COLUMNS> &o, const Operand<1, ROWS> &p,
                                          Box<D, ROWS> b) {
    Matrix y = b.sum();
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++) wgmma<MN_MAJOR>(o, p[0][k], b.sum_step(y, k), true);
}

/* Accumulators, rounded, as the operand of a sum. */
template <int N>
__device__ __forceinline__ void round_to(Operand<1, N> &p, const Fragment<N / COLUMNS> &c) {
#pragma unroll
    for (int i = 0; i < N / 16 * 4; i++) {
        const float *pair = &c[i / 4 * 2 + i % 4 / 2][i % 2 * 2];
        p[0][i / 4][i % 4] = pair_of(pair[0], pair[1]);
    }
}

/* Pieces of work: WGS slabs of 64 rows of a head, of queries counted from its end, of keys from its
 * begin; a piece that lacks slabs is the shortest. The longest of all heads come first, so that all
 * blocks end at about the same time. The next go back through the heads: keys of the last ones may
 * still lie in L2.
 *
 *     head       0  1  2  3
 *     longest    0  1  2  3
 *     next       7  6  5  4
 *     shortest   8  9 10 11
 *
 * GPT-2's shapes give no block more than 1.02 times its share of tiles, as simulated by
 * tests/test_cuda_attention_order.cu.
 */
enum Side { QUERIES, KEYS_AND_VALUES };
template <int WGS, Side SIDE = QUERIES> struct Part {
    int b, h, row0, S; // h: among the heads of its side; row0 may be before the sequence
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
    /* The first row of a warpgroup; has it any? */
    __host__ __device__ __forceinline__ int row(int group) const { return row0 + group * SLAB; }
    __host__ __device__ __forceinline__ bool has(int group) const {
        return row(group) >= 0 && row(group) < S;
    }
    __device__ __forceinline__ int slabs() const {
        int n = 0;
        for (int j = 0; j < WGS; j++) n += has(j);
        return n;
    }
    /* Of queries: the last tile of `keys` that one of the rows sees. */
    __device__ __forceinline__ int last(int keys) const { return (row(WGS) - 1) / keys; }
};

/* How many heads of queries share one of keys. In 32 bits: a division in 64 is a
 * call, for which a thread that fetches has too few registers. */
__device__ __forceinline__ int sharing(const Attention &a) {
    return static_cast<int>(a.H) / static_cast<int>(a.Hkv);
}

/* Which of a head's key and value heads, as packed_head counts them. */
__device__ __forceinline__ int key_head(const Attention &a, int g) {
    return static_cast<int>(a.H) + g;
}
__device__ __forceinline__ int value_head(const Attention &a, int g) {
    return static_cast<int>(a.H + a.Hkv) + g;
}

/* The box of head h, counted as packed_head does, of sequence b from token `row` on. */
__device__ __forceinline__ void fetch_box(Shared to, const CUtensorMap &map, Shared barrier,
                                          int panels, int h, int row, int b) {
    tma_load(to, map, barrier, 0, row, h * panels, b);
}

/* Of a warpgroup: what it stored was read from its boxes. */
__device__ __forceinline__ void wait_stored() {
    if (threadIdx.x % GROUP == 0) tma_wait<0>();
}

/* Accumulators of the 64 rows of a warpgroup, times a factor per row, rounded, through a box of its
 * own, which it reads no more, into a head from token `row` on. The box is read until
 * wait_stored. */
template <int D>
__device__ __forceinline__ void store_box(const CUtensorMap &map, Box<D, SLAB> box,
                                          const Fragment<D / COLUMNS> &o, float f0, float f1, int h,
                                          int row, int b) {
    int lane = this_lane(), r = this_warp() % 4 * 16 + lane % 16;
    Shared at = box.at + r * PANEL_ROW + ((lane / 16) ^ r % 8) * 16;
    group_sync();
#pragma unroll
    for (int j = 0; j < D / 16; j++) { // 16 columns are two chunks, of 2 x 8 rows each
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

/* Boxes of `rows` tokens of heads[B, S, n D]. */
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
