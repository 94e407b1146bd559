/* The backward pass on Hopper: bf16 elements, D = 64 or 128. It computes the same as
 * attention_flash_backward.cu, in two kernels for the same reason: every sum stays in registers and
 * has one order, and nothing is added in memory. The 7 matmuls instead of 5 should cost less here
 * than adding dQ between blocks: at S = 1024 these additions move 450 MB to and from L2 for each
 * layer of a model with 12 heads and 32 sequences.
 *
 *     queries   64 to a warpgroup, keys from the diagonal to the left
 *     tensor cores   dP(3)  C(2)   dQ += dS(3) K(3)   dP(2)  C(1)   dQ += dS(2) K(2) ...
 *     other units    ..... dS(3)        P(2)          ..... dS(2)        P(1)
 *
 *     keys      64 to a warpgroup, queries from the diagonal down
 *     tensor cores   C'  dP'  dV += P' dout   dK += dS' Q   C'  dP' ...
 *     other units         P'  .............   dS'                P'
 *
 * With D = 64, 3 warpgroups of queries have no registers for C and P at once: C and dP of a tile
 * are begun together, and dS waits for both. Meanwhile another warpgroup's matmuls run.
 *
 * A first kernel computes two numbers of each row that both kernels need: lse log2(e) and out .
 * dout. Beyond the end of a sequence, up to whole slabs, they are zeros. There q and dout arrive as
 * zeros, too, so such rows add nothing.
 *
 * Cycles of a warpgroup for 64 x 64 scores, D = 128; a multiprocessor has two warpgroups. Tensor
 * cores take 32 cycles for m64n64k16 in dense bf16. Shared memory gives 128 bytes a cycle, and a
 * matmul of scores that reads 2 KB of A and 2 KB of B takes all of them; with 32 columns it waits
 * for A, 24 cycles instead of 16. Instructions are those of one of the 4 schedulers, which issues
 * one a cycle.
 *
 *                 tensor cores   what they read   exponentials   instructions
 *     queries              768              640            256            280
 *     keys                1024              768            256            410
 *
 * B = 16, S = 2048, H = 6: 50,688 of these on 132 multiprocessors are 0.69 million cycles, 405 us
 * at 1.7 GHz. An H200 took 700 us, with the first kernel (bench/results/h200-kernels.json); and 792
 * us when keys met 32 queries at once (1280 cycles instead of 1024), dS was computed beside no
 * matmul of its warpgroup, and keys of a part were fetched after the part before was done.
 */
#include "layers/attention_sm90.cuh"
#include "layers/cuda/sizes.h"

namespace {

/* --- two numbers of each row */

enum { ROW_THREADS = 256 };

static_assert(SLAB == static_cast<int>(ATTENTION_ROWS), "whole slabs");

/* lse log2(e) and out . dout of 64 rows of a head, next to each other: the kernel of keys loads
 * those of two columns at a time. */
struct RowStats {
    float lse[SLAB], delta[SLAB];
};

__host__ __device__ __forceinline__ int slabs(const Attention &a) {
    return (static_cast<int>(a.S) + SLAB - 1) / SLAB;
}

/* Writes rows[B H, slabs]. D / 8 lanes share a row of out and dout, 16 bytes each. */
template <int D>
__global__ void __launch_bounds__(ROW_THREADS)
    row_statistics(RowStats *rows, const bf16 *out, const bf16 *dout, const float *lse,
                   Attention a) {
    constexpr int LANES = D / CHUNK;
    int64_t i = static_cast<int64_t>(blockIdx.x) * (ROW_THREADS / LANES) +
                static_cast<int>(threadIdx.x) / LANES;
    int64_t h = i % a.H, n = slabs(a) * SLAB, at = i / a.H % n, b = i / (a.H * n);
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
    if (b < a.B && this_lane() % LANES == 0) {
        RowStats &to = rows[(b * a.H + h) * slabs(a) + at / SLAB];
        to.lse[at % SLAB] = is ? lse[(b * a.H + h) * a.S + at] * LOG2_E : 0;
        to.delta[at % SLAB] = is ? sum : 0;
    }
}

/* Index of the statistics of head h of the part's sequence, from `row` on. */
template <class P>
__device__ __forceinline__ int stats_at(const Attention &a, const P &part, int h, int row) {
    return (part.b * static_cast<int>(a.H) + h) * slabs(a) + row / SLAB;
}

/* Masks keys that come after their queries. The lane's rows are `row` and `row` + 8; its columns
 * begin with `column`. */
template <int J, Side ROWS_ARE>
__device__ __forceinline__ void leave_out(Fragment<J> &p, int row, int column) {
#pragma unroll
    for (int i = 0; i < J * 4; i++) {
        int r = row + i % 4 / 2 * 8, c = column + i / 4 * COLUMNS + i % 2;
        if (ROWS_ARE == QUERIES ? c > r : r > c) p[i / 4][i % 4] = 0;
    }
}

/* Shared memory: for each warpgroup two sets of two boxes of its own, which hold what is fetched
 * for it and later what it stores; the ring's slots; STATS_ more bytes per slot; barriers. */
template <int D, int WGS, int SLOT, int STATS_, int SLOTS_> struct Layout {
    using OwnBox = Box<D, SLAB>;
    static constexpr int SLOTS = SLOTS_, RING = 2 * Sets::N * WGS * OwnBox::BYTES,
                         STATS = RING + SLOTS * SLOT, BARRIERS = STATS + SLOTS * STATS_,
                         KEPT = BARRIERS + (Sets::N + 2 * SLOTS) * 8,
                         BYTES = KEPT + TileScheduler::BYTES;
    Shared begin;
    __device__ __forceinline__ OwnBox own(int group, unsigned n, int i) const {
        return {begin +
                (2 * (Sets::N * group + static_cast<int>(n % Sets::N)) + i) * OwnBox::BYTES};
    }
    __device__ __forceinline__ Shared slot(int i) const { return begin + RING + i * SLOT; }
    __device__ __forceinline__ static int stats(int i) { return STATS + i * STATS_; } // its offset
    __device__ __forceinline__ Sets own_sets() const { return {begin + BARRIERS}; }
    __device__ __forceinline__ Ring<SLOTS> ring() const {
        return {begin + BARRIERS + Sets::N * 8, 0, 0};
    }
    /* Called by the block's first thread. */
    __device__ __forceinline__ void make() const {
        ring().make(WGS * 4);
        own_sets().make();
        mbarrier_fence();
    }
};

/* Distance back in the ring, after a part that filled `filled` slots, of a slot that no warpgroup
 * releases before TMA has read its stores of the previous part: a warpgroup skips at most
 * `passed` slots, then waits for its stores. A warpgroup without rows in a part does not wait, but
 * has no rows in later parts either. */
__device__ __forceinline__ int not_before_stored(int filled, int passed) {
    return filled > passed ? filled - passed : 1;
}

struct Maps {
    CUtensorMap own, own_dout, tiles, tiles_dout,
        out; // of qkv and dout by 64 rows; of both by the rows of a tile; of dqkv
};

/* --- dQ */

/* Slots hold K(n), V(n), K(n-1), ... */
template <int D, int KEYS, int WGS>
using QueryLayout = Layout<D, WGS, Box<D, KEYS>::BYTES, 0, D == 64 ? 8 : 6>;

/* The producer of the kernel for dQ: for each piece of work fetches q and dout of all warpgroups,
 * then K and V of each tile from the diagonal to the left. */
template <int D, int KEYS, int WGS>
__device__ __forceinline__ void fetch_keys(const Maps &maps, const Attention &a,
                                           const QueryLayout<D, KEYS, WGS> &at,
                                           const TileScheduler &scheduler) {
    constexpr int PANELS = D / PANEL;
    auto ring = at.ring();
    auto own = at.own_sets();
    int filled = 0;
    for (unsigned n = 0;; n++) {
        int piece = scheduler.fetch(n);
        Part<WGS> part(a, piece);
        own.producer_acquire(ring, n, not_before_stored(filled, 2 * (WGS - 1) * SLAB / KEYS + 1),
                             piece < scheduler.count ? part.slabs() * 2 * Box<D, SLAB>::BYTES : 0);
        if (piece >= scheduler.count) break;
        int g = part.h / sharing(a);
        for (int j = 0; j < WGS; j++) {
            int row = part.row(j);
            if (!part.has(j)) continue;
            fetch_box(at.own(j, n, 0).at, maps.own, own.here(n), PANELS, part.h, row, part.b);
            fetch_box(at.own(j, n, 1).at, maps.own_dout, own.here(n), PANELS, part.h, row, part.b);
        }
        for (int tile = part.last(KEYS); tile >= 0; tile--)
            for (int head : {key_head(a, g), value_head(a, g)}) {
                ring.producer_acquire(Box<D, KEYS>::BYTES);
                fetch_box(at.slot(ring.slot), maps.tiles, ring.full(), PANELS, head, tile * KEYS,
                          part.b);
                ring.next();
            }
        filled = 2 * part.last(KEYS) + 2;
    }
}

/* A warpgroup's operands and registers for its 64 queries. row: the first of this lane's two
 * queries. */
template <int D, int KEYS> struct Queries {
    Box<D, SLAB> q, dout;
    int row;
    float lse[2], delta[2], scale;
    Fragment<KEYS / COLUMNS> s, p, dp;
    Operand<1, KEYS> ds;
    __device__ __forceinline__ Queries(Box<D, SLAB> q_, Box<D, SLAB> dout_, int row_,
                                       const RowStats &stats, float scale_)
        : q(q_), dout(dout_), row(row_), scale(scale_) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            lse[i] = stats.lse[row % SLAB + i * 8];
            delta[i] = stats.delta[row % SLAB + i * 8];
        }
    }
    __device__ __forceinline__ void begin_s(Shared k) {
        wgmma_fence();
        begin_scores<D, KEYS>(s, q, {k});
        wgmma_commit();
    }
    __device__ __forceinline__ void begin_dp(Shared v) {
        wgmma_fence();
        begin_scores<D, KEYS>(dp, dout, {v});
        wgmma_commit();
    }
    /* P from S. mask: on the diagonal, where the tile begins with `key`, P of later keys becomes
     * 0. */
    __device__ __forceinline__ void weights() {
#pragma unroll
        for (int i = 0; i < KEYS / COLUMNS * 4; i++)
            p[i / 4][i % 4] = exp2_fast(fmaf(s[i / 4][i % 4], scale, -lse[i % 4 / 2]));
    }
    __device__ __forceinline__ void mask(int key) {
        leave_out<KEYS / COLUMNS, QUERIES>(p, row, key + this_lane() % 4 * 2);
    }
    /* dS from P and dP; then begins dQ += dS K. */
    __device__ __forceinline__ void begin_dq(Fragment<D / COLUMNS> &dq, Shared k) {
#pragma unroll
        for (int i = 0; i < KEYS / COLUMNS * 4; i++)
            p[i / 4][i % 4] *= dp[i / 4][i % 4] - delta[i % 4 / 2];
        round_to<KEYS>(ds, p);
        wgmma_fence();
        begin_sum<D, KEYS>(dq, ds, {k});
        wgmma_commit();
    }
};

/* Sums dQ over the keys of tiles `first` .. 0. S of the next tile is begun before dS is computed,
 * so S and P take registers at the same time. */
template <int D, int KEYS, class At, class Slots>
__device__ __forceinline__ void sum_ahead(Fragment<D / COLUMNS> &dq, Queries<D, KEYS> &of,
                                          const At &at, Slots &ring, int first) {
    static_assert(At::SLOTS >= 4, "the ring holds K of two tiles and V between them");
    int k = ring.consumer_wait(), before = -1; // before: the slot of keys that a matmul still reads
    of.begin_s(at.slot(k));
    wgmma_wait<0>(of.s);
    wait_stored();
    of.weights();
    of.mask(first * KEYS);
#pragma unroll 1
    for (int tile = first; tile > 0; tile--) {
        int v = ring.consumer_wait();
        of.begin_dp(at.slot(v));
        wgmma_wait<1>(dq);
        if (before >= 0) ring.consumer_release(before);
        int next = ring.consumer_wait();
        of.begin_s(at.slot(next));
        wgmma_wait<1>(of.dp);
        ring.consumer_release(v);
        of.begin_dq(dq, at.slot(k));
        before = k, k = next;
        wgmma_wait<1>(of.s);
        of.weights();
    }
    int v = ring.consumer_wait();
    of.begin_dp(at.slot(v));
    wgmma_wait<0>(of.dp, dq);
    if (before >= 0) ring.consumer_release(before);
    ring.consumer_release(v);
    of.begin_dq(dq, at.slot(k));
    wgmma_wait<0>(dq);
    ring.consumer_release(k);
}

/* As sum_ahead, but each tile is finished before S of the next one is begun: fewer registers. */
template <int D, int KEYS, class At, class Slots>
__device__ __forceinline__ void sum_in_turn(Fragment<D / COLUMNS> &dq, Queries<D, KEYS> &of,
                                            const At &at, Slots &ring, int first) {
    int before = -1;
#pragma unroll 1
    for (int tile = first; tile >= 0; tile--) {
        int k = ring.consumer_wait();
        of.begin_s(at.slot(k));
        int v = ring.consumer_wait();
        of.begin_dp(at.slot(v));
        wgmma_wait<1>(of.s, dq);
        if (before >= 0)
            ring.consumer_release(before);
        else
            wait_stored();
        of.weights();
        if (tile == first) of.mask(tile * KEYS);
        wgmma_wait<0>(of.dp);
        ring.consumer_release(v);
        of.begin_dq(dq, at.slot(k));
        before = k;
    }
    wgmma_wait<0>(dq);
    ring.consumer_release(before);
}

/* Sums dQ of 64 queries over the keys that they attend to. */
template <int D, int KEYS, int WGS>
__device__ __forceinline__ void sum_keys(Fragment<D / COLUMNS> &dq, const Part<WGS> &part,
                                         const QueryLayout<D, KEYS, WGS> &at,
                                         Ring<QueryLayout<D, KEYS, WGS>::SLOTS> &ring, int group,
                                         unsigned n, const RowStats &stats, float scale) {
    int row0 = part.row(group), first = row0 / KEYS;
    Queries<D, KEYS> of(at.own(group, n, 0), at.own(group, n, 1), row0 + this_row(), stats, scale);
    for (int i = part.last(KEYS); i > first; i--) ring.skip(), ring.skip();
    if (D == 64)
        sum_in_turn<D, KEYS>(dq, of, at, ring, first);
    else
        sum_ahead<D, KEYS>(dq, of, at, ring, first);
}

template <int D, int KEYS, int WGS>
__global__ void __launch_bounds__(Roles<WGS>::THREADS, 1)
    sm90_gradient_of_queries(const __grid_constant__ Maps maps, const RowStats *rows, Attention a,
                             int *taken, float scale) {
    QueryLayout<D, KEYS, WGS> at = {shared_address(dynamic_shared<char>())};
    TileScheduler scheduler = {Part<WGS>::count(a), taken, at.KEPT};
    if (threadIdx.x == 0) at.make();
    __syncthreads();
    int group = this_group();
    if (group == WGS) {
        Roles<WGS>::few();
        if (threadIdx.x == WGS * GROUP) fetch_keys<D, KEYS, WGS>(maps, a, at, scheduler);
        return;
    }
    Roles<WGS>::many();
    auto ring = at.ring();
#pragma unroll 1
    for (unsigned n = 0;; n++) {
        at.own_sets().consumer_wait(n);
        int piece = scheduler.get(n);
        if (piece >= scheduler.count) break;
        Part<WGS> part(a, piece);
        if (!part.has(group)) {
            for (int j = part.last(KEYS); j >= 0; j--) ring.skip(), ring.skip();
            continue;
        }
        Fragment<D / COLUMNS> dq = {};
        sum_keys<D, KEYS, WGS>(dq, part, at, ring, group, n,
                               rows[stats_at(a, part, part.h, part.row(group))], scale);
        store_box<D>(maps.out, at.own(group, n, 0), dq, scale * LN_2, scale * LN_2, part.h,
                     part.row(group), part.b);
    }
    wait_stored();
}

/* --- dK and dV */

/* A slot holds ROWS queries, their dout, and their statistics. */
template <int D, int ROWS> struct QueryTile {
    static_assert(ROWS == SLAB, "statistics come by whole slabs");
    static constexpr int DOUT = Box<D, ROWS>::BYTES, BYTES = 2 * DOUT, STATS = sizeof(RowStats);
};
template <int D, int ROWS, int WGS>
using KeyLayout =
    Layout<D, WGS, QueryTile<D, ROWS>::BYTES, QueryTile<D, ROWS>::STATS, D == 64 ? 4 : 3>;
/* With D = 128, sums, scores and operands take 224 registers per thread. */
template <int D, int WGS> using KeyRoles = Roles<WGS, D == 64 ? 32 : 24>;
template <int WGS> using KeyPart = Part<WGS, KEYS_AND_VALUES>;

/* The producer of the kernel for dK and dV: for each piece of work fetches K and V of all
 * warpgroups, then q, dout and statistics of tiles of queries from the diagonal down, head by
 * head. */
template <int D, int ROWS, int WGS>
__device__ __forceinline__ void fetch_queries(const Maps &maps, const RowStats *rows,
                                              const Attention &a, const KeyLayout<D, ROWS, WGS> &at,
                                              const TileScheduler &scheduler) {
    using T = QueryTile<D, ROWS>;
    constexpr int PANELS = D / PANEL;
    int share = sharing(a);
    auto ring = at.ring();
    auto own = at.own_sets();
    int filled = 0;
    for (unsigned n = 0;; n++) {
        int piece = scheduler.fetch(n);
        KeyPart<WGS> part(a, piece);
        own.producer_acquire(ring, n, not_before_stored(filled, (WGS - 1) * SLAB / ROWS),
                             piece < scheduler.count ? part.slabs() * 2 * Box<D, SLAB>::BYTES : 0);
        if (piece >= scheduler.count) break;
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
                ring.producer_acquire(T::BYTES + T::STATS);
                fetch_box(slot, maps.tiles, ring.full(), PANELS, h, row, part.b);
                fetch_box(slot + T::DOUT, maps.tiles_dout, ring.full(), PANELS, h, row, part.b);
                bulk_load(at.begin + at.stats(ring.slot), rows + stats_at(a, part, h, row),
                          T::STATS, ring.full());
                ring.next();
            }
        filled = share * ((part.S - part.row0 + ROWS - 1) / ROWS);
    }
}

/* Adds to dK and dV of 64 keys what the queries of a slot contribute. Begins both sums. The sums of
 * the slot before are done by then, and its slot, `before`, is released. */
template <int D, int ROWS, int WGS>
__device__ __forceinline__ void
add_queries(Fragment<D / COLUMNS> &dk, Fragment<D / COLUMNS> &dv, const KeyLayout<D, ROWS, WGS> &at,
            const Ring<KeyLayout<D, ROWS, WGS>::SLOTS> &ring, int slot, int before, int group,
            unsigned n, int key, int row0, bool masked, float scale) {
    using T = QueryTile<D, ROWS>;
    Box<D, ROWS> q = {at.slot(slot)}, dout = {at.slot(slot) + T::DOUT};
    const auto *stats = reinterpret_cast<const RowStats *>(dynamic_shared<char>() + at.stats(slot));
    const auto *lse = reinterpret_cast<const float2 *>(stats->lse),
               *delta = reinterpret_cast<const float2 *>(stats->delta);
    Fragment<ROWS / COLUMNS> p, dp;
    Operand<1, ROWS> x, y;
    wgmma_fence();
    begin_scores<D, ROWS>(p, at.own(group, n, 0), q);
    wgmma_commit();
    begin_scores<D, ROWS>(dp, at.own(group, n, 1), dout);
    wgmma_commit();
    wgmma_wait<1>(p, dk, dv);
    if (before >= 0)
        ring.consumer_release(before);
    else
        wait_stored();
#pragma unroll
    for (int j = 0; j < ROWS / COLUMNS; j++) { // a lane has two columns of each fragment
        float2 of = lse[j * COLUMNS / 2 + this_lane() % 4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[j][i] = exp2_fast(fmaf(p[j][i], scale, -(i % 2 ? of.y : of.x)));
    }
    if (masked) leave_out<ROWS / COLUMNS, KEYS_AND_VALUES>(p, key, row0 + this_lane() % 4 * 2);
    round_to<ROWS>(x, p);
    wgmma_fence();
    begin_sum<D, ROWS>(dv, x, dout);
    wgmma_commit();
    wgmma_wait<1>(dp);
#pragma unroll
    for (int j = 0; j < ROWS / COLUMNS; j++) {
        float2 of = delta[j * COLUMNS / 2 + this_lane() % 4];
#pragma unroll
        for (int i = 0; i < 4; i++) p[j][i] *= dp[j][i] - (i % 2 ? of.y : of.x);
    }
    round_to<ROWS>(y, p);
    wgmma_fence();
    begin_sum<D, ROWS>(dk, y, q);
    wgmma_commit();
    if (D == 128) wgmma_wait<1>(dv); // the operand x may then be overwritten for the next tile
}

/* Sums dK and dV of 64 keys over the queries of all heads that share these keys. */
template <int D, int ROWS, int WGS>
__device__ __forceinline__ void
sum_queries(Fragment<D / COLUMNS> &dk, Fragment<D / COLUMNS> &dv, const KeyPart<WGS> &part,
            const KeyLayout<D, ROWS, WGS> &at, Ring<KeyLayout<D, ROWS, WGS>::SLOTS> &ring,
            int group, unsigned n, const Attention &a, float scale) {
    // A warpgroup holds one slot while it skips the slots of the next head that come before its
    // keys, and takes one more.
    static_assert(KeyLayout<D, ROWS, WGS>::SLOTS >= 2 + (WGS - 1) * SLAB / ROWS,
                  "else it waits for itself");
    int key0 = part.row(group), before = -1;
#pragma unroll 1
    for (int h = 0; h < sharing(a); h++)
#pragma unroll 1
        for (int row = part.row0; row < part.S; row += ROWS) {
            if (row < key0) { // these queries come before all of the keys
                ring.skip();
                continue;
            }
            int slot = ring.consumer_wait();
            add_queries<D, ROWS, WGS>(dk, dv, at, ring, slot, before, group, n, key0 + this_row(),
                                      row, row < key0 + SLAB, scale);
            before = slot;
        }
    wgmma_wait<0>(dk, dv);
    ring.consumer_release(before);
}

template <int D, int ROWS, int WGS>
__global__ void __launch_bounds__(KeyRoles<D, WGS>::THREADS, 1)
    sm90_gradient_of_keys(const __grid_constant__ Maps maps, const RowStats *rows, Attention a,
                          int *taken, float scale) {
    KeyLayout<D, ROWS, WGS> at = {shared_address(dynamic_shared<char>())};
    TileScheduler scheduler = {KeyPart<WGS>::count(a), taken, at.KEPT};
    if (threadIdx.x == 0) at.make();
    __syncthreads();
    int group = this_group();
    if (group == WGS) {
        KeyRoles<D, WGS>::few();
        if (threadIdx.x == WGS * GROUP) fetch_queries<D, ROWS, WGS>(maps, rows, a, at, scheduler);
        return;
    }
    KeyRoles<D, WGS>::many();
    auto ring = at.ring();
#pragma unroll 1
    for (unsigned n = 0;; n++) {
        at.own_sets().consumer_wait(n);
        int piece = scheduler.get(n);
        if (piece >= scheduler.count) break;
        KeyPart<WGS> part(a, piece);
        int row = part.row(group);
        if (!part.has(group)) {
            for (int j = 0; j < sharing(a); j++)
                for (int r = part.row0; r < part.S; r += ROWS) ring.skip();
            continue;
        }
        Fragment<D / COLUMNS> dk = {}, dv = {};
        sum_queries<D, ROWS, WGS>(dk, dv, part, at, ring, group, n, a, scale);
        float f = scale * LN_2;
        store_box<D>(maps.out, at.own(group, n, 0), dk, f, f, key_head(a, part.h), row, part.b);
        store_box<D>(maps.out, at.own(group, n, 1), dv, 1, 1, value_head(a, part.h), row, part.b);
    }
    wait_stored();
}

/* --- launchers */

template <int D, int KEYS, int QUERY_WGS, int ROWS, int KEY_WGS>
void launch_backward(const Attention &a, bf16 *dqkv, const bf16 *dout, const bf16 *qkv,
                     const RowStats *rows) {
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
           KeyRoles<D, KEY_WGS>::THREADS, (KeyLayout<D, ROWS, KEY_WGS>::BYTES), maps, rows, a,
           device_zeros(), scale);
}

} // namespace

void sm90_backward(const Attention &a, bf16 *dqkv, const bf16 *dout, const bf16 *qkv,
                   const bf16 *out, const float *lse) {
    int64_t n = a.B * a.H * slabs(a) * SLAB;
    auto *rows = static_cast<RowStats *>(a.workspace);
    LAUNCH((a.D == 64 ? row_statistics<64> : row_statistics<128>),
           blocks_for(n * a.D, ROW_THREADS * CHUNK), ROW_THREADS, 0, rows, out, dout, lse, a);
    (a.D == 64 ? launch_backward<64, 64, 3, 64, 2>
               : launch_backward<128, 64, 2, 64, 2>)(a, dqkv, dout, qkv, rows);
}
