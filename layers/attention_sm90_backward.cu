/* The backward pass on Hopper: bf16 elements, D = 64 or 128. What is computed is that of
 * attention_flash_backward.cu, in two kernels for the same reason: every sum stays in registers and
 * has one order, nothing is added in memory. The 7 matmuls instead of 5 should cost less here than
 * adding up dQ between blocks: at S = 1024 that is 450 MB to and from L2 for each layer of a model
 * with 12 heads and 32 sequences.
 *
 *     queries   64 to a warpgroup, keys from the diagonal to the left
 *     tensor cores   C  dP  dQ += dS K   C  dP  dQ += dS K ...
 *     other units        P  dS               P  dS
 *
 *     keys      64 to a warpgroup, queries from the diagonal down
 *     tensor cores   C'  dP'  dV += P' dout   dK += dS' Q   C'  dP' ...
 *     other units         P'  .............   dS'                P'
 *
 * A first kernel works out what both need of a row, {lse log2(e), out . dout}, side by side; beyond
 * the end of a sequence, up to whole tiles, zeros: as q and dout arrive as zeros there, nothing
 * comes of such rows.
 */
#include "layers/attention_sm90.cuh"
#include "layers/cuda/sizes.h"

namespace {

/* --- what is known of a row */

enum { ROW_THREADS = 256 };

static_assert(SLAB == static_cast<int>(ATTENTION_ROWS), "whole slabs");

__host__ __device__ __forceinline__ int64_t padded(int64_t S) {
    return (S + SLAB - 1) / SLAB * SLAB;
}

/* rows[B H, padded S]. D / 8 lanes have a row of out and dout, 16 bytes each. */
template <int D>
__global__ void __launch_bounds__(ROW_THREADS)
    row_statistics(float2 *rows, const bf16 *out, const bf16 *dout, const float *lse, Attention a) {
    constexpr int LANES = D / CHUNK;
    int64_t i = static_cast<int64_t>(blockIdx.x) * (ROW_THREADS / LANES) +
                static_cast<int>(threadIdx.x) / LANES;
    int64_t h = i % a.H, at = i / a.H % padded(a.S), b = i / (a.H * padded(a.S));
    bool is = b < a.B && at < a.S;
    float sum = 0;
    if (is) {
        int64_t word = ((b * a.S + at) * a.H + h) * D + this_lane() % LANES * CHUNK;
        float x[CHUNK], y[CHUNK];
        load(x, out + word);
        load(y, dout + word);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) sum += x[j] * y[j];
    }
#pragma unroll
    for (int j = LANES / 2; j > 0; j /= 2)
        sum += __shfl_xor_sync(static_cast<unsigned>(FULL), sum, j);
    if (b < a.B && this_lane() % LANES == 0)
        rows[(b * a.H + h) * padded(a.S) + at] =
            is ? make_float2(lse[(b * a.H + h) * a.S + at] * LOG2_E, sum) : make_float2(0, 0);
}

/* Leaves out keys behind queries: the lane's rows are `row` and `row` + 8, its columns begin with
 * `column`. */
template <int J, Side ROWS_ARE>
__device__ __forceinline__ void leave_out(Fragment<J> &p, int row, int column) {
#pragma unroll
    for (int i = 0; i < J * 4; i++) {
        int r = row + i % 4 / 2 * 8, c = column + i / 4 * COLUMNS + i % 2;
        if (ROWS_ARE == QUERIES ? c > r : r > c) p[i / 4][i % 4] = 0;
    }
}

/* A warpgroup's own boxes: BUFFERS sets of two that are fetched, and N that are stored; then the
 * ring's slots. */
template <int D, int WGS, int N, int SLOT, int SLOTS_, int BUFFERS> struct Layout {
    using OwnBox = Box<D, SLAB>;
    using Own = Sets<BUFFERS>;
    static constexpr int SLOTS = SLOTS_, OUT = 2 * BUFFERS * WGS * OwnBox::BYTES,
                         RING = OUT + N * WGS * OwnBox::BYTES, BARRIERS = RING + SLOTS * SLOT,
                         KEPT = BARRIERS + (BUFFERS + 2 * SLOTS) * 8, BYTES = KEPT + Pieces::BYTES;
    Shared begin;
    __device__ __forceinline__ OwnBox own(int group, unsigned n, int i) const {
        return {begin +
                (2 * (BUFFERS * group + static_cast<int>(n % BUFFERS)) + i) * OwnBox::BYTES};
    }
    __device__ __forceinline__ OwnBox out(int group, int i) const {
        return {begin + OUT + (N * group + i) * OwnBox::BYTES};
    }
    __device__ __forceinline__ Shared slot(int i) const { return begin + RING + i * SLOT; }
    __device__ __forceinline__ Own own_sets() const { return {begin + BARRIERS}; }
    __device__ __forceinline__ Ring<SLOTS> ring() const {
        return {begin + BARRIERS + BUFFERS * 8, 0, 0};
    }
    /* Of the block's first thread. */
    __device__ __forceinline__ void make() const {
        ring().make(WGS * 4);
        own_sets().make();
        mbarrier_fence();
    }
};

struct Maps {
    CUtensorMap own, own_dout, tiles, tiles_dout,
        out; // of qkv or dout by 64 rows, and by a tile's; of dqkv
};

/* --- dQ */

/* Slots hold K(n), V(n), K(n-1), ... */
template <int D, int KEYS, int WGS>
using QueryLayout = Layout<D, WGS, 1, Box<D, KEYS>::BYTES, D == 64 ? 8 : 4, 2>;

template <int D, int KEYS, int WGS>
__device__ __forceinline__ void fetch_keys(const Maps &maps, const Attention &a,
                                           const QueryLayout<D, KEYS, WGS> &at,
                                           const Pieces &pieces) {
    constexpr int PANELS = D / PANEL;
    auto ring = at.ring();
    auto own = at.own_sets();
    int filled = 0;
    for (unsigned n = 0;; n++) {
        int piece = pieces.take(n);
        Part<WGS> part(a, piece);
        own.open(ring, n, filled,
                 piece < pieces.count ? part.slabs() * 2 * Box<D, SLAB>::BYTES : 0);
        if (piece >= pieces.count) break;
        int g = part.h / static_cast<int>(a.H / a.Hkv);
        for (int j = 0; j < WGS; j++) {
            int row = part.row(j);
            if (!part.has(j)) continue;
            fetch_box(at.own(j, n, 0).at, maps.own, own.here(n), PANELS, part.h, row, part.b);
            fetch_box(at.own(j, n, 1).at, maps.own_dout, own.here(n), PANELS, part.h, row, part.b);
        }
        for (int tile = part.last(KEYS); tile >= 0; tile--)
            for (int head : {key_head(a, g), value_head(a, g)}) {
                ring.open(Box<D, KEYS>::BYTES);
                fetch_box(at.slot(ring.slot), maps.tiles, ring.full(), PANELS, head, tile * KEYS,
                          part.b);
                ring.next();
            }
        filled = 2 * part.last(KEYS) + 2;
    }
}

/* The sum over the keys that 64 queries see, `row` the first of this lane's two. */
template <int D, int KEYS, int WGS>
__device__ __forceinline__ void sum_keys(Fragment<D / COLUMNS> &dq, const Part<WGS> &part,
                                         const QueryLayout<D, KEYS, WGS> &at,
                                         Ring<QueryLayout<D, KEYS, WGS>::SLOTS> &ring, int group,
                                         int n, const float2 *rows, float scale) {
    int row0 = part.row(group), row = row0 + this_row(), first = row0 / KEYS;
    Box<D, SLAB> q = at.own(group, n, 0), dout = at.own(group, n, 1);
    float2 of[2] = {rows[row], rows[row + 8]};
    Fragment<KEYS / COLUMNS> p, dp;
    Operand<1, KEYS> ds;
    int before = -1; // the slot of the keys that a sum still reads
    for (int i = part.last(KEYS); i > first; i--) ring.skip(), ring.skip();
#pragma unroll 1
    for (int tile = first; tile >= 0; tile--) {
        int k = ring.take();
        wgmma_fence();
        begin_scores<D, KEYS>(p, q, {at.slot(k)});
        wgmma_commit();
        int v = ring.take();
        wgmma_fence();
        begin_scores<D, KEYS>(dp, dout, {at.slot(v)});
        wgmma_commit();
        wgmma_wait<1>(p, dq);
        if (before >= 0) ring.give(before);
#pragma unroll
        for (int i = 0; i < KEYS / COLUMNS * 4; i++)
            p[i / 4][i % 4] = exp2_fast(fmaf(p[i / 4][i % 4], scale, -of[i % 4 / 2].x));
        if (tile == first)
            leave_out<KEYS / COLUMNS, QUERIES>(p, row, tile * KEYS + this_lane() % 4 * 2);
        wgmma_wait<0>(dp);
        ring.give(v);
#pragma unroll
        for (int i = 0; i < KEYS / COLUMNS * 4; i++)
            p[i / 4][i % 4] *= dp[i / 4][i % 4] - of[i % 4 / 2].y;
        round_to<KEYS>(ds, p);
        wgmma_fence();
        begin_sum<D, KEYS>(dq, ds, {at.slot(k)});
        wgmma_commit();
        before = k;
    }
    wgmma_wait<0>(dq);
    ring.give(before);
}

template <int D, int KEYS, int WGS>
__global__ void __launch_bounds__(Roles<WGS>::THREADS, 1)
    sm90_gradient_of_queries(const __grid_constant__ Maps maps, const float2 *rows, Attention a,
                             int *taken, float scale) {
    QueryLayout<D, KEYS, WGS> at = {shared_address(dynamic_shared<char>())};
    Pieces pieces = {Part<WGS>::count(a), taken, at.KEPT};
    if (threadIdx.x == 0) at.make();
    __syncthreads();
    int group = this_group();
    if (group == WGS) {
        Roles<WGS>::few();
        if (threadIdx.x == WGS * GROUP) fetch_keys<D, KEYS, WGS>(maps, a, at, pieces);
        return;
    }
    Roles<WGS>::many();
    auto ring = at.ring();
#pragma unroll 1
    for (unsigned n = 0;; n++) {
        at.own_sets().take(n);
        int piece = pieces.part(n);
        if (piece >= pieces.count) break;
        Part<WGS> part(a, piece);
        if (!part.has(group)) {
            for (int j = part.last(KEYS); j >= 0; j--) ring.skip(), ring.skip();
            continue;
        }
        Fragment<D / COLUMNS> dq = {};
        sum_keys<D, KEYS, WGS>(dq, part, at, ring, group, n,
                               rows + (part.b * a.H + part.h) * padded(a.S), scale);
        store_box<D>(maps.out, at.out(group, 0), dq, scale * LN_2, scale * LN_2, part.h,
                     part.row(group), part.b);
    }
    if (threadIdx.x % GROUP == 0) tma_wait<0>();
}

/* --- dK and dV */

/* A slot holds ROWS queries, their dout, and what is known of them. */
template <int D, int ROWS> struct QueryTile {
    static constexpr int DOUT = Box<D, ROWS>::BYTES, KNOWN = 2 * DOUT, FILLED = KNOWN + ROWS * 8,
                         BYTES = (FILLED + 1023) / 1024 * 1024;
};
/* With D = 128 there is no room for a second set of keys and values. */
template <int D, int ROWS, int WGS>
using KeyLayout = Layout<D, WGS, 2, QueryTile<D, ROWS>::BYTES, 4, D == 64 ? 2 : 1>;
template <int WGS> using KeyPart = Part<WGS, KEYS_AND_VALUES>;

template <int D, int ROWS, int WGS>
__device__ __forceinline__ void fetch_queries(const Maps &maps, const float2 *rows,
                                              const Attention &a, const KeyLayout<D, ROWS, WGS> &at,
                                              const Pieces &pieces) {
    using T = QueryTile<D, ROWS>;
    constexpr int PANELS = D / PANEL;
    int share = static_cast<int>(a.H / a.Hkv);
    auto ring = at.ring();
    auto own = at.own_sets();
    int filled = 0;
    for (unsigned n = 0;; n++) {
        int piece = pieces.take(n);
        KeyPart<WGS> part(a, piece);
        own.open(ring, n, filled,
                 piece < pieces.count ? part.slabs() * 2 * Box<D, SLAB>::BYTES : 0);
        if (piece >= pieces.count) break;
        for (int j = 0; j < WGS; j++) {
            int row = part.row(j);
            if (!part.has(j)) continue;
            fetch_box(at.own(j, n, 0).at, maps.own, own.here(n), PANELS, key_head(a, part.h), row,
                      part.b);
            fetch_box(at.own(j, n, 1).at, maps.own, own.here(n), PANELS, value_head(a, part.h), row,
                      part.b);
        }
        for (int h = part.h * share; h < (part.h + 1) * share; h++)
            for (int row = part.row0; row < part.S; row += ROWS) {
                Shared slot = at.slot(ring.slot);
                ring.open(T::FILLED);
                fetch_box(slot, maps.tiles, ring.full(), PANELS, h, row, part.b);
                fetch_box(slot + T::DOUT, maps.tiles_dout, ring.full(), PANELS, h, row, part.b);
                bulk_load(slot + T::KNOWN, rows + (part.b * a.H + h) * padded(a.S) + row, ROWS * 8,
                          ring.full());
                ring.next();
            }
        filled = share * ((part.S - part.row0 + ROWS - 1) / ROWS);
    }
}

/* What the queries of a slot add to the sums of 64 keys. Begins both sums; those of the tile before
 * are done, and `before`, its slot, is given back. */
template <int D, int ROWS, int WGS>
__device__ __forceinline__ void
add_queries(Fragment<D / COLUMNS> &dk, Fragment<D / COLUMNS> &dv, const KeyLayout<D, ROWS, WGS> &at,
            const Ring<KeyLayout<D, ROWS, WGS>::SLOTS> &ring, int slot, int before, int group,
            unsigned n, int key, int row0, bool masked, float scale) {
    using T = QueryTile<D, ROWS>;
    Box<D, ROWS> q = {at.slot(slot)}, dout = {at.slot(slot) + T::DOUT};
    const auto *known = reinterpret_cast<const float4 *>(
        dynamic_shared<char>() + KeyLayout<D, ROWS, WGS>::RING + slot * T::BYTES + T::KNOWN);
    Fragment<ROWS / COLUMNS> p, dp;
    Operand<1, ROWS> x, y;
    wgmma_fence();
    begin_scores<D, ROWS>(p, at.own(group, n, 0), q);
    wgmma_commit();
    begin_scores<D, ROWS>(dp, at.own(group, n, 1), dout);
    wgmma_commit();
    wgmma_wait<1>(p, dk, dv);
    if (before >= 0) ring.give(before);
#pragma unroll
    for (int j = 0; j < ROWS / COLUMNS; j++) { // two columns to a lane: {lse, delta, lse, delta}
        float4 of = known[j * COLUMNS / 2 + this_lane() % 4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[j][i] = exp2_fast(fmaf(p[j][i], scale, -(i % 2 ? of.z : of.x)));
    }
    if (masked) leave_out<ROWS / COLUMNS, KEYS_AND_VALUES>(p, key, row0 + this_lane() % 4 * 2);
    round_to<ROWS>(x, p);
    wgmma_fence();
    begin_sum<D, ROWS>(dv, x, dout);
    wgmma_commit();
    wgmma_wait<1>(dp);
#pragma unroll
    for (int j = 0; j < ROWS / COLUMNS; j++) {
        float4 of = known[j * COLUMNS / 2 + this_lane() % 4];
#pragma unroll
        for (int i = 0; i < 4; i++) p[j][i] *= dp[j][i] - (i % 2 ? of.w : of.y);
    }
    round_to<ROWS>(y, p);
    wgmma_fence();
    begin_sum<D, ROWS>(dk, y, q);
    wgmma_commit();
}

template <int D, int ROWS, int WGS>
__device__ __forceinline__ void
sum_queries(Fragment<D / COLUMNS> &dk, Fragment<D / COLUMNS> &dv, const KeyPart<WGS> &part,
            const KeyLayout<D, ROWS, WGS> &at, Ring<KeyLayout<D, ROWS, WGS>::SLOTS> &ring,
            int group, unsigned n, const Attention &a, float scale) {
    // a warpgroup keeps a slot while it passes over those of the next head that come before its
    // keys, and takes one more
    static_assert(KeyLayout<D, ROWS, WGS>::SLOTS >= 2 + (WGS - 1) * SLAB / ROWS,
                  "else it waits for itself");
    int key0 = part.row(group), before = -1;
#pragma unroll 1
    for (int h = 0; h < static_cast<int>(a.H / a.Hkv); h++)
#pragma unroll 1
        for (int row = part.row0; row < part.S; row += ROWS) {
            if (row < key0) { // these come before all of the keys
                ring.skip();
                continue;
            }
            int slot = ring.take();
            add_queries<D, ROWS, WGS>(dk, dv, at, ring, slot, before, group, n, key0 + this_row(),
                                      row, row < key0 + SLAB, scale);
            before = slot;
        }
    wgmma_wait<0>(dk, dv);
    ring.give(before);
}

template <int D, int ROWS, int WGS>
__global__ void __launch_bounds__(Roles<WGS>::THREADS, 1)
    sm90_gradient_of_keys(const __grid_constant__ Maps maps, const float2 *rows, Attention a,
                          int *taken, float scale) {
    KeyLayout<D, ROWS, WGS> at = {shared_address(dynamic_shared<char>())};
    Pieces pieces = {KeyPart<WGS>::count(a), taken, at.KEPT};
    if (threadIdx.x == 0) at.make();
    __syncthreads();
    int group = this_group();
    if (group == WGS) {
        Roles<WGS>::few();
        if (threadIdx.x == WGS * GROUP) fetch_queries<D, ROWS, WGS>(maps, rows, a, at, pieces);
        return;
    }
    Roles<WGS>::many();
    auto ring = at.ring();
#pragma unroll 1
    for (unsigned n = 0;; n++) {
        at.own_sets().take(n);
        int piece = pieces.part(n);
        if (piece >= pieces.count) break;
        KeyPart<WGS> part(a, piece);
        int row = part.row(group);
        if (!part.has(group)) {
            for (int j = 0; j < static_cast<int>(a.H / a.Hkv); j++)
                for (int r = part.row0; r < part.S; r += ROWS) ring.skip();
            continue;
        }
        Fragment<D / COLUMNS> dk = {}, dv = {};
        sum_queries<D, ROWS, WGS>(dk, dv, part, at, ring, group, n, a, scale);
        float f = scale * LN_2;
        store_box<D>(maps.out, at.out(group, 0), dk, f, f, key_head(a, part.h), row, part.b);
        store_box<D>(maps.out, at.out(group, 1), dv, 1, 1, value_head(a, part.h), row, part.b);
    }
    if (threadIdx.x % GROUP == 0) tma_wait<0>();
}

/* --- launchers */

template <int D, int KEYS, int QUERY_WGS, int ROWS, int KEY_WGS>
void launch_backward(const Attention &a, bf16 *dqkv, const bf16 *dout, const bf16 *qkv,
                     const float2 *rows) {
    float scale = LOG2_E / sqrtf(static_cast<float>(D));
    int64_t packed = a.H + 2 * a.Hkv;
    CUtensorMap own = map_of_heads(qkv, a, packed, SLAB),
                own_dout = map_of_heads(dout, a, a.H, SLAB),
                out = map_of_heads(dqkv, a, packed, SLAB);
    Maps maps = {own, own_dout, map_of_heads(qkv, a, packed, KEYS), own_dout, out};
    LAUNCH((sm90_gradient_of_queries<D, KEYS, QUERY_WGS>), Part<QUERY_WGS>::blocks(a),
           Roles<QUERY_WGS>::THREADS, (QueryLayout<D, KEYS, QUERY_WGS>::BYTES), maps, rows, a,
           device_zeros(), scale);
    maps.tiles = map_of_heads(qkv, a, packed, ROWS),
    maps.tiles_dout = map_of_heads(dout, a, a.H, ROWS);
    LAUNCH((sm90_gradient_of_keys<D, ROWS, KEY_WGS>), KeyPart<KEY_WGS>::blocks(a),
           Roles<KEY_WGS>::THREADS, (KeyLayout<D, ROWS, KEY_WGS>::BYTES), maps, rows, a,
           device_zeros(), scale);
}

} // namespace

void sm90_backward(const Attention &a, bf16 *dqkv, const bf16 *dout, const bf16 *qkv,
                   const bf16 *out, const float *lse) {
    int64_t n = a.B * a.H * padded(a.S);
    auto *rows = static_cast<float2 *>(a.workspace);
    LAUNCH((a.D == 64 ? row_statistics<64> : row_statistics<128>),
           blocks_for(n * a.D, ROW_THREADS * CHUNK), ROW_THREADS, 0, rows, out, dout, lse, a);
    (a.D == 64 ? launch_backward<64, 64, 3, 64, 2>
               : launch_backward<128, 64, 2, 32, 2>)(a, dqkv, dout, qkv, rows);
}
