/* The forward pass by tiles, for bf16 elements and D = 64 or 128.
 *
 *                      keys, 64 to a tile
 *              +-------+-------+-------+-------+
 *     warp 0   |   3   |   2   |   1 \ |       |    A block has WARPS warps (4) of SLABS slabs
 *     warp 1   |   3   |   2   |   1   \       |    (2) of 16 queries. It goes from the diagonal
 *     warp 2   |   3   |   2   |   1   |  0 \  |    to the left (0, 1, ...): first tiles with
 *     warp 3   |   3   |   2   |   1   |  0    \    masked keys, then tiles without. A warp skips
 *              +-------+-------+-------+-------+    tiles that none of its queries sees.
 *
 *     scores    C = Q K'                               a lane has two rows of a slab: l/4, l/4 + 8
 *     softmax   P = exp2(scale (C - max))              max over the row so far: 4 lanes share a row
 *     output    O = O exp2(scale (max before - max)) + P V
 *
 * scale = log2(e) / sqrt(D), so a weight is one multiply-add and one exp2. Q, C, P and O stay in
 * registers (ptx.cuh: how C becomes the operand P). While a tile is computed with, K and V of the
 * next tile are copied. One barrier per tile serves two purposes: the copied tile is complete, and
 * no warp reads the other stage any more.
 *
 * The blocks of a head start with the longest, and head follows head: the keys of the head stay in
 * L2, and the last blocks are short. */
#include "layers/attention_flash.cuh"

namespace {

/* Registers of a warp for its queries. */
template <int D, int SLABS> struct Queries {
    Operand<SLABS, D> q;
    Sums<SLABS, D> o;
    // of this lane's rows, in units of C; sum: over this lane's columns only
    float max[SLABS][2], sum[SLABS][2];
};

/* Turns the scores of one row into weights relative to the new maximum, and rescales o and sum to
 * it. */
template <int D, int SLABS>
__device__ __forceinline__ void softmax_row(Scores<SLABS, TILE> &c, Queries<D, SLABS> &w, int s,
                                            int half, float scale) {
    float max = w.max[s][half];
#pragma unroll
    for (int i = 0; i < TILE / COLUMNS * 2; i++) max = fmaxf(max, c[s][i / 2][half * 2 + i % 2]);
    max = quad_max(max);
    float correction = exp2_fast((w.max[s][half] - max) * scale), sum = w.sum[s][half] * correction;
    w.max[s][half] = max;
#pragma unroll
    for (int i = 0; i < TILE / COLUMNS * 2; i++) {
        float &x = c[s][i / 2][half * 2 + i % 2];
        x = exp2_fast(fmaf(x, scale, -max * scale));
        sum += x;
    }
    w.sum[s][half] = sum;
#pragma unroll
    for (int i = 0; i < D / COLUMNS * 2; i++) w.o[s][i / 2][half * 2 + i % 2] *= correction;
}

/* Adds one tile of keys and values, which begins with token key0. row: the first query of this
 * lane. */
template <int D, int SLABS, bool MASKED>
__device__ __forceinline__ void attend(Queries<D, SLABS> &w, KeyStage<D> t, int row, int key0,
                                       float scale) {
    Scores<SLABS, TILE> c = {};
    times_transposed<D, SLABS, TILE>(c, w.q, t.k);
#pragma unroll
    for (int i = 0; i < SLABS * 2; i++) {
        int s = i / 2, half = i % 2, at = row + s * 16 + half * 8;
        if (MASKED) {
#pragma unroll
            for (int j = 0; j < TILE / COLUMNS * 2; j++)
                if (key0 + j / 2 * COLUMNS + this_lane() % 4 * 2 + j % 2 > at)
                    c[s][j / 2][half * 2 + j % 2] = -INFINITY;
        }
        softmax_row<D, SLABS>(c, w, s, half, scale);
    }
    Operand<SLABS, TILE> p;
    to_operand<SLABS, TILE>(p, c);
    times<D, SLABS, TILE>(w.o, p, t.v);
}

template <int D, int SLABS, int WARPS>
__global__ void __launch_bounds__(WARPS *WARP)
    forward(bf16 *out, float *lse, const bf16 *qkv, Attention a, float scale) {
    constexpr int SLAB = SLABS * 16, ROWS = WARPS * SLAB, THREADS = WARPS * WARP;
    int S = static_cast<int>(a.S), blocks = (S + ROWS - 1) / ROWS;
    int row0 = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * ROWS;
    int64_t head = blockIdx.x / static_cast<unsigned>(blocks), b = head / a.H, h = head % a.H;
    int64_t stride = packed_stride(a), g = h / (a.H / a.Hkv);
    const bf16 *k = packed_head(qkv, a, b, a.H + g), *v = k + a.Hkv * D;
    int first = row0 + this_warp() * SLAB, row = first + this_lane() / 4;

    KeyTiles<D, THREADS> keys = {k, v, stride, S, (min(row0 + ROWS, S) - 1) / TILE, 0};
    int &tile = keys.tile;
    keys.begin(tile);
    Queries<D, SLABS> w = {};
#pragma unroll
    for (int s = 0; s < SLABS; s++) {
        load_rows<D>(w.q[s], packed_head(qkv, a, b, h), stride, first + s * 16, S);
        w.max[s][0] = w.max[s][1] = -INFINITY;
    }
#pragma unroll 1
    for (; tile >= row0 / TILE; tile--) {
        KeyStage<D> now = keys.next();
        if (tile * TILE < first + SLAB) attend<D, SLABS, true>(w, now, row, tile * TILE, scale);
    }
#pragma unroll 1
    for (; tile >= 0; tile--) attend<D, SLABS, false>(w, keys.next(), row, tile * TILE, scale);

#pragma unroll
    for (int s = 0; s < SLABS; s++) {
        float sum[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = row + s * 16 + half * 8;
            sum[half] = quad_sum(w.sum[s][half]);
            if (this_lane() % 4 == 0 && r < S)
                lse[head * S + r] = (w.max[s][half] * scale + log2f(sum[half])) * LN_2;
        }
        store_rows<D>(out_head(out, a, b, h), a.H * D, first + s * 16, S, w.o[s], 1 / sum[0],
                      1 / sum[1]);
    }
}

template <int D, int SLABS, int WARPS>
void launch_forward(const Attention &a, bf16 *out, float *lse, const bf16 *qkv) {
    unsigned blocks = blocks_for(a.S, WARPS * SLABS * 16) * static_cast<unsigned>(a.B * a.H);
    LAUNCH((forward<D, SLABS, WARPS>), blocks, WARPS * WARP, 2 * KeyStage<D>::BYTES, out, lse, qkv,
           a, LOG2_E / sqrtf(static_cast<float>(D)));
}

} // namespace

bool flash_serves(const Attention &a, const void *x, const void *y) {
    return (a.D == 64 || a.D == 128) && a.S < INT32_MAX - 256 && whole_words<bf16>(x, a.D) &&
           whole_words<bf16>(y, a.D);
}

/* Short sequences take 64 queries per block: with 128 a large part of the tiles would lie beyond
 * the diagonal or the end. Longer sequences take 128, so that a fetched tile serves more queries.
 * For D = 64 a warp has two slabs; for D = 128 these do not fit into registers, so the block has
 * twice the warps. */
void flash_forward(const Attention &a, bf16 *out, float *lse, const bf16 *qkv) {
    bool is_short = a.S <= 256;
    if (a.D == 64)
        (is_short ? launch_forward<64, 1, 4> : launch_forward<64, 2, 4>)(a, out, lse, qkv);
    else
        (is_short ? launch_forward<128, 1, 4> : launch_forward<128, 1, 8>)(a, out, lse, qkv);
}
