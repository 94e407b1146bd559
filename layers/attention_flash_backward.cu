/* The backward pass by tiles, for bf16 elements and D = 64 or 128, in two kernels. In the first a
 * block has 64 queries and sums dQ over the keys. In the second a block has 64 keys and sums dK and
 * dV over the queries of all heads that share these keys. Each sum stays in registers and has one
 * order, so no sums lie in memory and there is no atomic addition. The price: both kernels compute
 * the scores and dP, which makes 7 matmuls of tiles instead of 5.
 *
 *     queries   C = Q K'    dP = dout V'    dS = P (dP - delta)     dQ += dS K
 *     keys      C' = K Q'   dP' = V dout'   dS' = P' (dP' - delta)  dK += dS' Q    dV += P' dout
 *
 * With keys as rows, the second kernel has P' and dS' as accumulators, which are the operands of
 * its sums (ptx.cuh): only the tiles themselves go through shared memory. P = exp2(scale C - lse
 * log2(e)); no maximum is needed. */
#include "layers/attention_flash.cuh"

namespace {

enum { WARPS = TILE / 16, THREADS = WARPS * WARP };
/* Rows of a tile that are computed at a time: as many as registers allow. */
template <int D> constexpr int AT_ONCE = D == 64 ? TILE : TILE / 2;

struct Gradients {
    bf16 *dqkv;
    const bf16 *dout, *qkv;
    const float *lse, *delta;
};

/* --- dQ: tiles of keys from the diagonal to the left, two stages */

/* Registers of a warp for its 16 queries. */
template <int D> struct Queries {
    Operand<1, D> q, dout;
    Sums<1, D> dq;
    float lse[2], delta[2]; // of this lane's two rows; lse times log2(e)
};

/* Adds to dQ what AT_ONCE keys from key0 on contribute. row: the first of this lane's two
 * queries. */
template <int D, bool MASKED>
__device__ __forceinline__ void add_keys(Queries<D> &w, KeyStage<D> t, int row, int key0,
                                         float scale) {
    constexpr int N = AT_ONCE<D>;
    Scores<1, N> c = {}, dp = {};
    times_transposed<D, 1, N>(c, w.q, t.k);
    times_transposed<D, 1, N>(dp, w.dout, t.v);
#pragma unroll
    for (int i = 0; i < N / COLUMNS * 4; i++) {
        int half = i % 4 / 2, key = key0 + i / 4 * COLUMNS + this_lane() % 4 * 2 + i % 2;
        float &x = c[0][i / 4][i % 4];
        float p = exp2_fast(fmaf(x, scale, -w.lse[half]));
        x = MASKED && key > row + half * 8 ? 0 : p * (dp[0][i / 4][i % 4] - w.delta[half]);
    }
    Operand<1, N> ds;
    to_operand<1, N>(ds, c);
    times<D, 1, N>(w.dq, ds, t.k);
}

template <int D, bool MASKED>
__device__ __forceinline__ void add_tile(Queries<D> &w, KeyStage<D> t, int row, int key0,
                                         float scale) {
#pragma unroll 1
    for (int i = 0; i < TILE; i += AT_ONCE<D>)
        add_keys<D, MASKED>(w, {t.k.from(i), t.v.from(i)}, row, key0 + i, scale);
}

template <int D>
__global__ void __launch_bounds__(THREADS)
    gradient_of_queries(Gradients x, Attention a, float scale) {
    int S = static_cast<int>(a.S), tiles = (S + TILE - 1) / TILE;
    int tile = tiles - 1 - static_cast<int>(blockIdx.x) % tiles;
    int64_t head = blockIdx.x / static_cast<unsigned>(tiles), b = head / a.H, h = head % a.H;
    int64_t stride = packed_stride(a), g = h / (a.H / a.Hkv);
    const bf16 *k = packed_head(x.qkv, a, b, a.H + g), *v = k + a.Hkv * D;
    int first = tile * TILE + this_warp() * 16, row = first + this_lane() / 4;

    KeyTiles<D, THREADS> keys = {k, v, stride, S, tile, 0};
    keys.begin(tile);
    Queries<D> w = {};
    load_rows<D>(w.q[0], packed_head(x.qkv, a, b, h), stride, first, S);
    load_rows<D>(w.dout[0], out_head(x.dout, a, b, h), a.H * D, first, S);
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (row + half * 8 < S) {
            w.lse[half] = x.lse[head * S + row + half * 8] * LOG2_E;
            w.delta[half] = x.delta[head * S + row + half * 8];
        }
    add_tile<D, true>(w, keys.next(), row, tile * TILE, scale);
#pragma unroll 1
    while (--keys.tile >= 0) add_tile<D, false>(w, keys.next(), row, keys.tile * TILE, scale);
    float f = scale * LN_2;
    store_rows<D>(packed_head(x.dqkv, a, b, h), stride, first, S, w.dq[0], f, f);
}

/* --- dK and dV: tiles of queries from the diagonal down, head after head, two stages */

template <int D> struct QueryStage {
    static constexpr int BYTES = 2 * Tile<D>::BYTES + 2 * TILE * 4;
    Tile<D> q, dout;
    float *lse, *delta; // [TILE]
};
/* Stage i of the queries. The stages lie in shared memory after the tiles of this block's keys and
 * values. */
template <int D> __device__ __forceinline__ QueryStage<D> query_stage(int i) {
    constexpr int N = Tile<D>::BYTES;
    auto *begin = dynamic_shared<char>() + 2 * N + i * QueryStage<D>::BYTES;
    auto *statistics = reinterpret_cast<float *>(begin + 2 * N);
    return {{shared_address(begin)}, {shared_address(begin + N)}, statistics, statistics + TILE};
}

template <int D>
__device__ __forceinline__ void fetch_queries(QueryStage<D> t, const Gradients &x,
                                              const Attention &a, int64_t head, int row0) {
    int64_t b = head / a.H, h = head % a.H;
    int S = static_cast<int>(a.S), i = static_cast<int>(threadIdx.x);
    fetch<D, THREADS>(t.q, packed_head(x.qkv, a, b, h), packed_stride(a), row0, S);
    fetch<D, THREADS>(t.dout, out_head(x.dout, a, b, h), a.H * D, row0, S);
    const float *from = (i < TILE ? x.lse : x.delta) + head * S + row0 + i % TILE;
    copy_async<4>(shared_address((i < TILE ? t.lse : t.delta) + i % TILE), from,
                  row0 + i % TILE < S);
    copy_commit();
}

template <int D> struct Keys { Sums<1, D> dk, dv; };

/* Adds to dK and dV what AT_ONCE queries from row0 on contribute. key: the first of this lane's two
 * keys. */
template <int D, bool MASKED>
__device__ __forceinline__ void add_queries(Keys<D> &w, Tile<D> k, Tile<D> v, QueryStage<D> t,
                                            int key, int row0, float scale) {
    constexpr int N = AT_ONCE<D>;
    Scores<1, N> c = {}, dp = {};
    times_transposed<D, N>(c, k, this_warp() * 16, t.q);
    times_transposed<D, N>(dp, v, this_warp() * 16, t.dout);
#pragma unroll
    for (int j = 0; j < N / COLUMNS; j++) {
        int column = j * COLUMNS + this_lane() % 4 * 2;
        float2 lse = *reinterpret_cast<const float2 *>(t.lse + column);
        float2 delta = *reinterpret_cast<const float2 *>(t.delta + column);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float p = exp2_fast(fmaf(c[0][j][i], scale, -LOG2_E * (i % 2 ? lse.y : lse.x)));
            if (MASKED && key + i / 2 * 8 > row0 + column + i % 2) p = 0;
            c[0][j][i] = p;
            dp[0][j][i] = p * (dp[0][j][i] - (i % 2 ? delta.y : delta.x));
        }
    }
    Operand<1, N> p;
    to_operand<1, N>(p, c);
    times<D, 1, N>(w.dv, p, t.dout);
    to_operand<1, N>(p, dp);
    times<D, 1, N>(w.dk, p, t.q);
}

template <int D, bool MASKED>
__device__ __forceinline__ void add_tile(Keys<D> &w, Tile<D> k, Tile<D> v, QueryStage<D> t, int key,
                                         int row0, float scale) {
#pragma unroll 1
    for (int i = 0; i < TILE; i += AT_ONCE<D>)
        add_queries<D, MASKED>(w, k, v, {t.q.from(i), t.dout.from(i), t.lse + i, t.delta + i}, key,
                               row0 + i, scale);
}

template <int D>
__global__ void __launch_bounds__(THREADS) gradient_of_keys(Gradients x, Attention a, float scale) {
    int S = static_cast<int>(a.S), tiles = (S + TILE - 1) / TILE;
    int first_tile = static_cast<int>(blockIdx.x) % tiles, key0 = first_tile * TILE;
    int64_t bg = blockIdx.x / static_cast<unsigned>(tiles), b = bg / a.Hkv, g = bg % a.Hkv;
    int64_t stride = packed_stride(a), group = a.H / a.Hkv, head = b * a.H + g * group;
    const int64_t end = head + group;
    Shared begin = shared_address(dynamic_shared<char>());
    Tile<D> k = {begin}, v = {begin + Tile<D>::BYTES};
    const bf16 *keys = packed_head(x.qkv, a, b, a.H + g);
    int first = key0 + this_warp() * 16, key = first + this_lane() / 4;

    fetch<D, THREADS>(k, keys, stride, key0, S);
    fetch<D, THREADS>(v, keys + a.Hkv * D, stride, key0, S);
    int tile = first_tile, at = 0;
    fetch_queries<D>(query_stage<D>(0), x, a, head, tile * TILE);
    Keys<D> w = {};
    // waits until this tile is complete for all threads, and begins to copy the next one, which may
    // belong to the next head
    auto next = [&]() {
        copy_wait<0>();
        __syncthreads();
        QueryStage<D> now = query_stage<D>(at);
        at ^= 1;
        bool last = tile == tiles - 1;
        if (!last || head + 1 < end)
            fetch_queries<D>(query_stage<D>(at), x, a, head + last,
                             (last ? first_tile : tile + 1) * TILE);
        return now;
    };
#pragma unroll 1
    for (; head < end; head++) {
        tile = first_tile;
        add_tile<D, true>(w, k, v, next(), key, tile * TILE, scale);
#pragma unroll 1
        for (tile++; tile < tiles; tile++)
            add_tile<D, false>(w, k, v, next(), key, tile * TILE, scale);
    }
    float f = scale * LN_2;
    bf16 *dkeys = packed_head(x.dqkv, a, b, a.H + g);
    store_rows<D>(dkeys, stride, first, S, w.dk[0], f, f);
    store_rows<D>(dkeys + a.Hkv * D, stride, first, S, w.dv[0], 1, 1);
}

template <int D> void launch_backward(const Attention &a, const Gradients &x) {
    unsigned tiles = blocks_for(a.S, TILE);
    float scale = LOG2_E / sqrtf(static_cast<float>(D));
    LAUNCH(gradient_of_queries<D>, tiles * static_cast<unsigned>(a.B * a.H), THREADS,
           2 * KeyStage<D>::BYTES, x, a, scale);
    LAUNCH(gradient_of_keys<D>, tiles * static_cast<unsigned>(a.B * a.Hkv), THREADS,
           2 * Tile<D>::BYTES + 2 * QueryStage<D>::BYTES, x, a, scale);
}

} // namespace

void flash_backward(const Attention &a, bf16 *dqkv, const bf16 *dout, const bf16 *qkv,
                    const float *lse, const float *delta) {
    Gradients x = {dqkv, dout, qkv, lse, delta};
    (a.D == 64 ? launch_backward<64> : launch_backward<128>)(a, x);
}
