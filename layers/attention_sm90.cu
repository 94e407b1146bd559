/* The forward pass on Hopper: bf16 elements, D = 64 or 128. It computes the same as
 * attention_flash.cu. Here matmuls are those of warpgroups, and are in flight while the same
 * threads compute the softmax of other scores:
 *
 *     tensor cores    C(3)            C(2)   O += P(3) V(3)   C(1)   O += P(2) V(2)   ...
 *     other units          P(3)  ...................   P(2)  ...................  P(1)
 *
 * A warpgroup has 64 queries. It begins C of the next tile and the sum of the previous tile
 * together. It waits for C, and computes maxima and weights while the sum is in flight; only then O
 * is rescaled to the new maximum. Each warpgroup begins with the tile on its own diagonal, the only
 * one with a mask. So for S = 1024 94 % of what is computed with tiles of 64 keys is needed, and 89
 * % with 128.
 *
 * A warpgroup that has finished its part of a piece of work goes on with the next piece while other
 * warpgroups still compute. Meanwhile its queries and the first keys have been fetched, and TMA
 * stores its output.
 *
 * Sizes. D = 64: exponentials take as long as matmuls, so many warpgroups should be in different
 * phases. 4 of them leave 112 registers per thread, with tiles of 64 keys, and share what is
 * fetched. Long sequences, where the diagonal matters little, take 3 with tiles of 128 keys: fewer
 * waits. D = 128: O alone takes 64 registers, so 2 warpgroups.
 */
#include "layers/attention_sm90.cuh"

namespace {

/* Shared memory: per warpgroup two sets of a box of queries, and a box of output; the ring of tiles
 * of keys and values; barriers; numbers of pieces. */
template <int D, int KEYS, int WGS> struct Layout {
    using Queries = Box<D, SLAB>;
    using Tile = Box<D, KEYS>;
    using Own = Sets;
    static constexpr int SLOTS = D == 64 ? 512 / KEYS : 4, OUT = 2 * WGS * Queries::BYTES,
                         TILES = 3 * WGS * Queries::BYTES, BARRIERS = TILES + SLOTS * Tile::BYTES,
                         KEPT = BARRIERS + (2 + 2 * SLOTS) * 8, BYTES = KEPT + TileScheduler::BYTES;
    Shared begin;
    __device__ __forceinline__ Queries queries(int group, unsigned n) const {
        return {begin + (2 * group + static_cast<int>(n % 2)) * Queries::BYTES};
    }
    __device__ __forceinline__ Queries out(int group) const {
        return {begin + OUT + group * Queries::BYTES};
    }
    __device__ __forceinline__ Tile tile(int slot) const {
        return {begin + TILES + slot * Tile::BYTES};
    }
    __device__ __forceinline__ Own own() const { return {begin + BARRIERS}; }
    __device__ __forceinline__ Ring<SLOTS> ring() const { return {begin + BARRIERS + 2 * 8, 0, 0}; }
};

struct Maps {
    CUtensorMap queries, keys, out;
};

/* The producer: for each piece of work fetches the queries of all warpgroups, then tiles of keys
 * and values from the diagonal to the left, K of a tile before V of the previous one. */
template <int D, int KEYS, int WGS>
__device__ __forceinline__ void fetch_all(const Maps &maps, const Attention &a,
                                          const Layout<D, KEYS, WGS> &at,
                                          const TileScheduler &scheduler) {
    constexpr int PANELS = D / PANEL;
    auto ring = at.ring();
    auto own = at.own();
    int filled = 0;
    for (unsigned n = 0;; n++) {
        int piece = scheduler.fetch(n);
        Part<WGS> part(a, piece);
        own.producer_acquire(ring, n, filled + 1,
                             piece < scheduler.count ? part.slabs() * Box<D, SLAB>::BYTES : 0);
        if (piece >= scheduler.count) break;
        int g = part.h / sharing(a), last = part.last(KEYS);
        int k = key_head(a, g), v = value_head(a, g);
        auto fetch = [&](int head, int tile) {
            ring.producer_acquire(Box<D, KEYS>::BYTES);
            fetch_box(at.tile(ring.slot).at, maps.keys, ring.full(), PANELS, head, tile * KEYS,
                      part.b);
            ring.next();
        };
        for (int j = 0; j < WGS; j++)
            if (part.has(j))
                fetch_box(at.queries(j, n).at, maps.queries, own.here(n), PANELS, part.h,
                          part.row(j), part.b);
        fetch(k, last);
        for (int tile = last; tile > 0; tile--) fetch(k, tile - 1), fetch(v, tile);
        fetch(v, 0);
        filled = 2 * last + 2;
    }
}

/* A lane's registers for its two rows. */
template <int D> struct Rows {
    Fragment<D / COLUMNS> o;
    float max[2], sum[2]; // sum: over this lane's columns only
};

/* Turns scores into weights relative to a new maximum. correction: the factor that rescales older
 * sums to the new maximum. */
template <int D, int KEYS>
__device__ __forceinline__ void softmax(Fragment<KEYS / COLUMNS> &c, Rows<D> &w,
                                        float (&correction)[2], float scale) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float max = w.max[half];
#pragma unroll
        for (int i = 0; i < KEYS / COLUMNS * 2; i++) max = fmaxf(max, c[i / 2][half * 2 + i % 2]);
        max = quad_max(max);
        correction[half] = exp2_fast((w.max[half] - max) * scale);
        float sum = w.sum[half] * correction[half];
        w.max[half] = max;
#pragma unroll
        for (int i = 0; i < KEYS / COLUMNS * 2; i++) {
            float &x = c[i / 2][half * 2 + i % 2];
            x = exp2_fast(fmaf(x, scale, -max * scale));
            sum += x;
        }
        w.sum[half] = sum;
    }
}

/* Masks keys that come after this lane's rows, `row` and `row` + 8; the tile begins with key0. */
template <int KEYS>
__device__ __forceinline__ void mask(Fragment<KEYS / COLUMNS> &c, int row, int key0) {
#pragma unroll
    for (int i = 0; i < KEYS / COLUMNS * 4; i++)
        if (key0 + i / 4 * COLUMNS + this_lane() % 4 * 2 + i % 2 > row + i % 4 / 2 * 8)
            c[i / 4][i % 4] = -INFINITY;
}

/* Computes the rows of warpgroup `group` in a piece, from the tiles of the ring: K(last), K(last -
 * 1), V(last), K(last - 2), V(last - 1), ..., K(0), V(1), V(0). */
template <int D, int KEYS, int WGS>
__device__ __forceinline__ void
attend(Rows<D> &w, const Part<WGS> &part, const Layout<D, KEYS, WGS> &at,
       Ring<Layout<D, KEYS, WGS>::SLOTS> &ring, int group, unsigned n, float scale) {
    int row0 = part.row(group), tile = row0 / KEYS, last = part.last(KEYS);
    Box<D, SLAB> q = at.queries(group, n);
    Fragment<KEYS / COLUMNS> c;
    Operand<1, KEYS> p;
    float correction[2];
    for (int i = last; i > tile; i--) { // tiles that only other warpgroups need
        ring.skip();
        if (i < last) ring.skip();
    }
    int k = ring.consumer_wait();
    wgmma_fence();
    begin_scores<D, KEYS>(c, q, at.tile(k));
    wgmma_commit();
    wgmma_wait<0>(c);
    ring.consumer_release(k);
    if (tile < last) ring.skip();
    mask<KEYS>(c, row0 + this_row(), tile * KEYS);
    softmax<D, KEYS>(c, w, correction, scale);
    round_to<KEYS>(p, c);
#pragma unroll 1
    for (; tile > 0; tile--) {
        k = ring.consumer_wait();
        wgmma_fence();
        begin_scores<D, KEYS>(c, q, at.tile(k));
        wgmma_commit();
        int v = ring.consumer_wait();
        wgmma_fence();
        begin_sum<D, KEYS>(w.o, p, at.tile(v));
        wgmma_commit();
        wgmma_wait<1>(c);
        ring.consumer_release(k);
        softmax<D, KEYS>(c, w, correction, scale);
        stop_if(w.sum[0] + w.sum[1] < 0); // never true: keeps the exponentials in front of the wait
        wgmma_wait<0>(w.o);
        ring.consumer_release(v);
#pragma unroll
        for (int i = 0; i < D / COLUMNS * 4; i++) w.o[i / 4][i % 4] *= correction[i % 4 / 2];
        round_to<KEYS>(p, c);
    }
    int v = ring.consumer_wait();
    wgmma_fence();
    begin_sum<D, KEYS>(w.o, p, at.tile(v));
    wgmma_commit();
    wgmma_wait<0>(w.o);
    ring.consumer_release(v);
}

/* A consumer: the rows of warpgroup `group` in all pieces of the block's work. */
template <int D, int KEYS, int WGS>
__device__ __forceinline__ void attend_all(const Maps &maps, float *lse, const Attention &a,
                                           const Layout<D, KEYS, WGS> &at,
                                           const TileScheduler &scheduler, int group, float scale) {
    auto ring = at.ring();
#pragma unroll 1
    for (unsigned n = 0;; n++) {
        at.own().consumer_wait(n);
        int piece = scheduler.get(n);
        if (piece >= scheduler.count) break;
        Part<WGS> part(a, piece);
        if (!part.has(group)) {
            int tile = part.last(KEYS); // all tiles of the piece are for others
            do ring.skip(), ring.skip();
            while (tile-- > 0);
            continue;
        }
        Rows<D> w = {};
        w.max[0] = w.max[1] = -INFINITY;
        attend(w, part, at, ring, group, n, scale);
        part = Part<WGS>(a, scheduler.get(n)); // computed again: no registers are free to keep it
        int row0 = part.row(group), row = row0 + this_row();
        float f[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = quad_sum(w.sum[half]);
            f[half] = 1 / sum;
            if (this_lane() % 4 == 0 && row + half * 8 < a.S)
                lse[(part.b * a.H + part.h) * a.S + row + half * 8] =
                    (w.max[half] * scale + log2f(sum)) * LN_2;
        }
        wait_stored();
        store_box<D>(maps.out, at.out(group), w.o, f[0], f[1], part.h, row0, part.b);
    }
    wait_stored();
}

template <int D, int KEYS, int WGS>
__global__ void __launch_bounds__(Roles<WGS>::THREADS, 1)
    sm90_forward_tiles(const __grid_constant__ Maps maps, float *lse, Attention a, int *taken,
                       float scale) {
    Layout<D, KEYS, WGS> at = {shared_address(dynamic_shared<char>())};
    TileScheduler scheduler = {Part<WGS>::count(a), taken, at.KEPT};
    if (threadIdx.x == 0) {
        at.ring().make(WGS * 4);
        at.own().make();
        mbarrier_fence();
    }
    __syncthreads();
    int group = this_group();
    if (group == WGS) {
        Roles<WGS>::few();
        if (threadIdx.x == WGS * GROUP) fetch_all(maps, a, at, scheduler);
    } else {
        Roles<WGS>::many();
        attend_all(maps, lse, a, at, scheduler, group, scale);
    }
}

template <int D, int KEYS, int WGS>
void launch_forward(const Attention &a, bf16 *out, float *lse, const bf16 *qkv) {
    int64_t packed = a.H + 2 * a.Hkv;
    Maps maps = {map_of_heads(qkv, a, packed, SLAB), map_of_heads(qkv, a, packed, KEYS),
                 map_of_heads(out, a, a.H, SLAB)};
    LAUNCH((sm90_forward_tiles<D, KEYS, WGS>), Part<WGS>::blocks(a), Roles<WGS>::THREADS,
           (Layout<D, KEYS, WGS>::BYTES), maps, lse, a, device_zeros(),
           LOG2_E / sqrtf(static_cast<float>(D)));
}

enum { LONG = 2048 };

} // namespace

void sm90_forward(const Attention &a, bf16 *out, float *lse, const bf16 *qkv) {
    if (a.D == 128)
        launch_forward<128, 128, 2>(a, out, lse, qkv);
    else if (a.S < LONG)
        launch_forward<64, 64, 4>(a, out, lse, qkv);
    else
        launch_forward<64, 128, 3>(a, out, lse, qkv);
}
