/* The matmul of a linear layer on Hopper: the ladder of product.cu goes on here, on tensor cores.
 *
 *     y[M, N] = a[M, K] b[K, N]     bf16 operands as they lie in memory, fp32 sums
 *
 *                                                bound by            intended on an H200
 *     product.cu   a thread for each element     loads from L1       2 TFLOP/s
 *                  tiles in shared memory        fp32 units          67 at most
 *     here         tensor cores                  tensor cores        989 at most, some 800 with
 *                                                                    the clock that power leaves
 *
 * The roofline of a tile. wgmma multiplies 64 x N x 16 in N / 2 cycles. It reads 2 KB of a and 32 N
 * bytes of b from shared memory, 128 bytes a cycle: N = 256 keeps it busy for 80 of 128 cycles, N =
 * 64 for 32 of 32. What comes from L2, (128 + N) x 64 elements for 128 x N x 64 multiply-adds, is
 * 48 bytes a cycle and multiprocessor with N = 256, 64 with N = 128; L2 has some 64 for all 132 at
 * once. So tiles are as wide as registers allow: 128 x 256 has 128 accumulators for each of 256
 * threads.
 *
 * A block is one multiprocessor's, and stays. Its warpgroups:
 *
 *     fetches    step 0 | step 1 | step 2 | ...                       | steps of the next tile ...
 *     computes          | rows 0-63:   step 0 | step 1 | ... | last   | epilogue | next tile ...
 *     computes          | rows 64-127: step 0 | step 1 | ... | last   | epilogue | next tile ...
 *
 * One thread begins the copies (TMA) into a ring of steps, which it fills while the others are in
 * their epilogue: the first steps of the next tile are there when they come back. Both warpgroups
 * that compute read the whole step of b, and each its own half of a. While a matmul is in flight,
 * the next one is begun; the slot of the one before is then empty.
 *
 * Operands come in both orders, which the descriptors of wgmma know; nothing is transposed:
 *
 *     forward   y = x w        a K_MAJOR, b MN_MAJOR       dgrad   dx = dy w'      both K_MAJOR
 *     head      logits = x wte'       both K_MAJOR         wgrad   dw += x' dy     both MN_MAJOR
 *
 * The epilogue goes by boxes of 64 rows x 128 bytes, two to a warpgroup, which TMA copies while the
 * next one is filled. A box may begin with what is read beside y: the addend of a residual, or aux.
 * Sums begin with the bias. Gradients of weights are floats, and TMA adds them to y (one addition
 * for each element: no order that could change).
 *
 * Which tile, and which part of its k, is the schedule's (cuda/matmul_schedule.h).
 */
#include "layers/matmul_sm90.cuh"

#include <algorithm>

extern "C" {
#include "layers/cuda/sizes.h"
#include "layers/matmul_sm90.h"
}

namespace {

struct Maps {
    CUtensorMap a, b, y, beside;
};

/* The thread that fetches: all steps of all parts of this block. */
template <int N, Major A, Major B>
__device__ __forceinline__ void fetch_all(const Maps &maps, const MatmulSchedule &s,
                                          const Layout<N, A, B> &at) {
    auto ring = at.ring();
    for (MatmulPart p = matmul_begin(&s, static_cast<int>(blockIdx.x)); matmul_next(&s, &p);)
        for (int k = p.k_begin; k < p.k_end; k++) {
            ring.open(Layout<N, A, B>::STEP);
            at.a(ring.slot).fetch(maps.a, ring.full(), p.tile_m * ROWS, k * DEPTH);
            at.b(ring.slot).fetch(maps.b, ring.full(), p.tile_n * N, k * DEPTH);
            ring.next();
        }
}

/* c (+)= a step, begun: the rows of this warpgroup. */
template <int N, Major A, Major B>
__device__ __forceinline__ void begin_step(Fragment<N / COLUMNS> &c, const Layout<N, A, B> &at,
                                           int slot, int group, bool add) {
    Matrix a = at.a(slot).matrix(group * SLAB), b = at.b(slot).matrix(0);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < DEPTH / 16; i++)
        wgmma<A, B>(c, Operand<A, ROWS>::step(a, i), Operand<B, N>::step(b, i), add || i > 0);
    wgmma_commit();
}

/* c (+)= the next steps of the ring. The first stands before the loop: ptxas then sees that nothing
 * but matmuls writes c in it. */
template <int N, Major A, Major B>
__device__ __forceinline__ void multiply(Fragment<N / COLUMNS> &c, const Layout<N, A, B> &at,
                                         Ring<Layout<N, A, B>::SLOTS> &ring, int group, int steps,
                                         bool add) {
    int before = ring.take();
    begin_step(c, at, before, group, add);
#pragma unroll 1
    for (int k = 1; k < steps; k++) {
        int slot = ring.take();
        begin_step(c, at, slot, group, true);
        wgmma_wait<1>();
        ring.give(before);
        before = slot;
    }
    wgmma_wait<0>(c);
    ring.give(before);
}

/* The boxes of a warpgroup, between its threads and TMA. */
template <int N, Major A, Major B> struct Out {
    const Layout<N, A, B> &at;
    int group;
    unsigned parity; // of each box's barrier
    __device__ __forceinline__ bool leads() const { return threadIdx.x % GROUP == 0; }
    __device__ __forceinline__ Shared box(int i) const { return at.box(group, i % 2); }
    /* Box i begins with what lies beside y, from row m and column n on. The stores from it have
     * been read. */
    __device__ __forceinline__ void read(const CUtensorMap &map, int i, int m, int n) const {
        if (!leads()) return;
        tma_wait<0>();
        mbarrier_expect(at.here(group, i % 2), OutBox<bf16>::BYTES);
        tma_load(box(i), map, at.here(group, i % 2), n, m);
    }
    __device__ __forceinline__ void wait_read(int i) {
        mbarrier_wait(at.here(group, i % 2), static_cast<int>(parity >> i % 2 & 1));
        parity ^= 1u << i % 2;
    }
    /* Box i may be written: the store before the last has been read. */
    __device__ __forceinline__ void wait_empty() const {
        if (leads()) tma_wait<1>();
        group_sync();
    }
    __device__ __forceinline__ void store(const CUtensorMap &map, int i, int m, int n,
                                          bool adds) const {
        fence_async();
        group_sync();
        if (!leads()) return;
        if (adds)
            tma_add(map, box(i), n, m);
        else
            tma_store(map, box(i), n, m);
        tma_commit();
    }
};

/* The epilogue of 64 rows from m on, columns from n0 on. */
template <int N, Major A, Major B>
__device__ __forceinline__ void finish(bf16, const Fragment<N / COLUMNS> &c, const Maps &maps,
                                       const Ends &e, Out<N, A, B> &out, int m, int n0) {
#pragma unroll
    for (int i = 0; i < N / PANEL; i++) {
        int n = n0 + i * PANEL;
        if (n >= e.N) break;
        if (e.reads) {
            if (i + 1 < N / PANEL && n + PANEL < e.N) out.read(maps.beside, i + 1, m, n + PANEL);
            out.wait_read(i);
        } else {
            out.wait_empty();
        }
        if (e.writes_aux) { // box 0 has aux, box 1 y
            fill_box(out.box(0), c, i * PANEL / COLUMNS, e, true);
            out.store(maps.beside, 0, m, n, false);
            out.wait_empty();
        }
        int box = e.writes_aux ? 1 : i;
        fill_box(out.box(box), c, i * PANEL / COLUMNS, e, false);
        out.store(maps.y, box, m, n, false);
    }
}
template <int N, Major A, Major B>
__device__ __forceinline__ void finish(float, const Fragment<N / COLUMNS> &c, const Maps &maps,
                                       const Ends &e, Out<N, A, B> &out, int m, int n0) {
    constexpr int WIDE = OutBox<float>::WIDE;
#pragma unroll
    for (int i = 0; i < N / WIDE; i++) {
        if (n0 + i * WIDE >= e.N) break;
        out.wait_empty();
        fill_box_of_floats(out.box(i), c, i * WIDE / COLUMNS);
        out.store(maps.y, i, m, n0 + i * WIDE, e.adds);
    }
}

template <int N, Major A, Major B, class Y>
__device__ __forceinline__ void compute_all(const Maps &maps, const MatmulSchedule &s,
                                            const Ends &e, const Parts<N / COLUMNS> &parts,
                                            const Layout<N, A, B> &at, int group) {
    auto ring = at.ring();
    Out<N, A, B> out = {at, group, 0};
#pragma unroll 1
    for (MatmulPart p = matmul_begin(&s, static_cast<int>(blockIdx.x)); matmul_next(&s, &p);) {
        int m = p.tile_m * ROWS + group * SLAB, n = p.tile_n * N;
        bool last = p.part == p.parts - 1, biased = e.bias && p.part == 0;
        Fragment<N / COLUMNS> c;
        if (e.reads && last) out.read(maps.beside, 0, m, n);
        if (biased) begin_with_bias(c, e, n);
        multiply(c, at, ring, group, p.k_end - p.k_begin, biased);
        if (!last) {
            parts.leave(c, p.share, group);
            continue;
        }
        for (int share = p.share - p.part; share < p.share; share++) parts.collect(c, share, group);
        finish(Y(), c, maps, e, out, m, n);
    }
    if (out.leads()) tma_wait<0>();
}

template <int N, Major A, Major B, class Y>
__global__ void __launch_bounds__(Roles<GROUPS, 40>::THREADS, 1)
    sm90_matmul(const __grid_constant__ Maps maps, MatmulSchedule s, Ends e, float *slots,
                int *flags) {
    Layout<N, A, B> at = {shared_address(dynamic_shared<char>())};
    if (threadIdx.x == 0) at.make_barriers();
    __syncthreads();
    int group = this_group();
    if (group == GROUPS) {
        Roles<GROUPS, 40>::few();
        if (threadIdx.x == GROUPS * GROUP) fetch_all(maps, s, at);
    } else {
        Roles<GROUPS, 40>::many();
        compute_all<N, A, B, Y>(maps, s, e, {slots, flags}, at, group);
    }
}

/* --- launchers */

enum { MOST_SHARES = 1024 }; // of a schedule whose tiles are divided

/* What a schedule costs the worker that has the most, in columns and steps: a step of N columns
 * takes as long as wgmma needs for it; an epilogue, or leaving and collecting sums, some steps
 * more. Intended, not measured. */
int64_t cost_of(const MatmulSchedule &s, int n) {
    constexpr int64_t EPILOGUE = 2, FIX_UP = 4;
    int64_t shares = matmul_shares(&s), most = 0;
    int whole = static_cast<int>((shares - s.divided + s.workers - 1) / s.workers);
    if (s.divided > 0) {
        int64_t each = static_cast<int64_t>(s.streamed) * s.steps / s.divided + 1;
        most = (s.divided + s.workers - 1) / s.workers * (each + FIX_UP);
    }
    return (most + whole * s.steps + (whole + (s.divided > 0)) * EPILOGUE) * n;
}

/* The cheapest width of tiles and schedule; their order decides where two cost the same. */
int choose(const Product *p, MatmulSchedule *chosen) {
    static const int widths[] = {256, 192, 128};
    static const MatmulKind kinds[] = {MATMUL_DATA_PARALLEL, MATMUL_STREAM_K};
    int64_t least = INT64_MAX;
    int width = 0;
    for (int n : widths)
        for (MatmulKind kind : kinds) {
            MatmulTile t = {ROWS, n, DEPTH};
            MatmulSchedule s = matmul_schedule(p->M, p->N, p->K, t, device_sms(), kind, 1);
            int64_t cost = cost_of(s, n);
            bool fits = s.divided <= MOST_SHARES && matmul_workspace(&s, &t) <= PRODUCT_WORKSPACE;
            if (cost < least && fits) least = cost, width = n, *chosen = s;
        }
    return width;
}

Ends ends_of(const Product *p) {
    bool reads = !p->wide && (p->addend || p->epilogue == EPI_DACT);
    return {
        reinterpret_cast<const bf16 *>(p->bias), static_cast<int>(p->N), p->epilogue, p->act, reads,
        p->epilogue == EPI_ACT && p->aux,        p->wide && p->addend};
}

/* The flags of this rank, zero between matmuls. */
thread_local int *rank_flags;
void free_flags() {
    device_free(rank_flags);
    rank_flags = nullptr;
}
int *flags_of_rank() {
    constexpr size_t BYTES = MOST_SHARES * GROUPS * sizeof(int);
    if (rank_flags) return rank_flags;
    rank_flags = static_cast<int *>(device_alloc(BYTES));
    device_zero(rank_flags, BYTES);
    device_at_close(free_flags);
    return rank_flags;
}

template <int N, Major A, Major B, class Y> void run(const Product *p, const MatmulSchedule &s) {
    const Act *beside = p->epilogue == EPI_NONE ? p->addend : p->aux;
    Maps maps = {
        Operand<A, ROWS>::map(p->a, p->M, p->K, A == K_MAJOR ? p->a_row : p->a_col),
        Operand<B, N>::map(p->b, p->N, p->K, B == K_MAJOR ? p->b_col : p->b_row),
        OutBox<Y>::map(p->y, p->M, p->N, p->ldy),
        OutBox<Y>::map(beside ? beside : p->y, p->M, p->N, p->ldy),
    };
    LAUNCH((sm90_matmul<N, A, B, Y>), std::min(s.workers, matmul_shares(&s)),
           (Roles<GROUPS, 40>::THREADS), (Layout<N, A, B>::BYTES), maps, s, ends_of(p),
           static_cast<float *>(p->workspace), flags_of_rank());
}

template <Major A, Major B, class Y> void run(const Product *p) {
    MatmulSchedule s;
    switch (choose(p, &s)) {
    case 256:
        return run<256, A, B, Y>(p, s);
    case 192:
        return run<192, A, B, Y>(p, s);
    default:
        return run<128, A, B, Y>(p, s);
    }
}

bool k_major_a(const Product *p) {
    return p->a_col == 1;
}
bool k_major_b(const Product *p) {
    return p->b_row == 1;
}

/* As TMA wants addresses and the distances of rows. */
bool aligned(const void *x, int64_t ld, size_t word) {
    return reinterpret_cast<uintptr_t>(x) % 16 == 0 && static_cast<size_t>(ld) * word % 16 == 0;
}

} // namespace

extern "C" const char *matmul_sm90_refuses(const Product *p, size_t word) {
    size_t y_word = p->wide ? sizeof(float) : word;
    if (!device_is_sm90()) return "the device is not of capability 9.0";
    if (word != sizeof(bf16)) return "activations are not bf16";
    if (p->M < 1 || p->N < 1 || p->K < 1) return "there is nothing to multiply";
    if (std::max({p->M, p->N, p->K}) > INT32_MAX / 2) return "a dimension is too large";
    if (p->wide && (k_major_a(p) || k_major_b(p))) return "no gradient of weights lies like that";
    if (!p->wide && !k_major_a(p)) return "a lies along m, and y is bf16";
    if (p->wide && (p->bias || p->epilogue != EPI_NONE)) return "fp32 sums with an epilogue";
    if (p->wide && p->addend && p->addend != p->y) return "fp32 sums with an addend beside y";
    if (p->addend && p->epilogue != EPI_NONE) return "an addend beside an activation";
    if (p->bias && (p->N % 2 || reinterpret_cast<uintptr_t>(p->bias) % 4))
        return "the bias does not lie in pairs";
    bool lies = aligned(p->a, k_major_a(p) ? p->a_row : p->a_col, word) &&
                aligned(p->b, k_major_b(p) ? p->b_col : p->b_row, word) &&
                aligned(p->y, p->ldy, y_word) && aligned(p->addend, 0, y_word) &&
                aligned(p->aux, 0, word);
    return lies ? nullptr : "rows do not begin at multiples of 16 bytes";
}

extern "C" void matmul_sm90(const Product *p) {
    if (p->wide)
        run<MN_MAJOR, MN_MAJOR, float>(p);
    else if (k_major_b(p))
        run<K_MAJOR, K_MAJOR, bf16>(p);
    else
        run<K_MAJOR, MN_MAJOR, bf16>(p);
}
