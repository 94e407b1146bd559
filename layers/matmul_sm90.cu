/* The matmul of a linear layer on Hopper: the last of the kernels of matmul.cu, after
 * matmul_sm80.cu.
 *
 *     y[M, N] = a[M, K] b[K, N]     bf16 operands, read as they are stored; fp32 sums
 *
 * The roofline. Tensor cores of an H100 or H200 do 2,048 multiply-adds in a cycle: 132 x 2,048 x 2
 * x 1.83 GHz = 989 TFLOP/s. In that cycle shared memory gives 128 bytes to a multiprocessor, L2
 * some 44.
 *
 * What this kernel adds, with the bound that each step removes; its code is named in brackets.
 * fast.cu (github.com/pranjalssh/fast.cu, 2024) has a kernel for each of the first six steps as
 * reference: the TFLOP/s are those that it publishes for an H100 at 4096^3. There a thread for each
 * element reaches 2, tiles in shared memory 32. The kernel of this file reached 742 at 8192^3 on an
 * H200, and cuBLASLt's best 727, at 1.5 GHz, the H200's clock at its limit of 700 W.
 *
 *     1  tensor cores, wgmma [begin_step]: a step along k of a tile of 64 x 64 is
 *        copied, then multiplied: the wait for the copy                                     317
 *     2  a ring of steps that one thread fetches [fetch_all] while others multiply.
 *        Then L2: 64 bytes for tiles of 128 x 128; and shared memory, 160                   498
 *     3  tiles of 128 x 256 of two warpgroups [Kind]: L2 48, shared memory 80 of 128
 *        cycles, tensor cores all of them; 128 sums a thread, as many as fit                610
 *     4  persistent blocks [compute_all]: the ring is filled during epilogues, in an
 *        order of tiles that are close together in y, so that L2 has them [matmul_tile_at]  704
 *     5  clusters of two blocks that fetch b once, half each [fetch_half]: L2 32            734
 *     6  the epilogue by boxes that TMA stores, beside the next tile [Out]                  758
 *     7  PINGPONG [wait_turn]: one warpgroup multiplies while the other is in its
 *        epilogue: for short sums, where that is a third of a tile's time
 *     8  split-K or Stream-K [matmul_next, Parts]: no wave that is partly filled
 *
 * The roofline of a tile of 128 x N. wgmma multiplies 64 x N x 16 in N / 2 cycles, and reads 2 KB
 * of a and 32 N bytes of b from shared memory: 80 of 128 cycles for N = 256, 32 of 32 for N = 64.
 * From L2 come (128 + N) x 64 elements for 128 x N x 64 multiply-adds, which take 4 N cycles; in a
 * cluster (128 + N / 2) x 64.
 *
 * A block has a multiprocessor for itself and is persistent. One of its threads begins copies (TMA)
 * into a ring of steps along k; two warpgroups multiply. COOPERATIVE: both warpgroups have the same
 * tile, 64 rows each, and share the fetched b. The ring is filled while they are in their epilogue.
 *
 *     fetches    | tile 0 ............. | tile 1 ............ | tile 2
 *     computes     | tile 0, rows 0-63  | epilogue | tile 1, rows 0-63  | epilogue
 *     computes     | tile 0, rows 64-127| epilogue | tile 1, rows 64-127| epilogue
 *
 * A cluster of two blocks has a tile of 256 x N, 128 rows each. Each block fetches its rows of a
 * and half of each step of b, which TMA writes into the shared memory of both. So two blocks fill a
 * slot, and a slot is empty when the warps of both have released it: each warp arrives at the
 * barriers of both. Neither block may end before the other, which may still write into its shared
 * memory. Rows of the second block beyond y arrive as zeros, and are not stored.
 *
 *     block 0    a, rows 0-127      b, first half    -> both
 *     block 1    a, rows 128-255    b, second half   -> both
 *
 * With K = 768 a tile of 128 x 256 is 12 steps, 12,300 cycles; GELU of its elements takes another
 * 4,000 (two special functions each, 16 a cycle). PINGPONG hides these 4,000: tiles of 128 x 192 or
 * 128 x 128, each computed by one warpgroup, whose epilogue overlaps with the other's
 * multiplication. Beside the sums of 192 columns there are registers for two values of an
 * activation at a time, beside those of 128 for eight and more.
 *
 *     fetches    | tile 0 ... | tile 1 ... | tile 2 ... | tile 3 ...
 *     computes     | tile 0   | epilogue   | tile 2     | epilogue
 *     computes                | tile 1     | epilogue   | tile 3   | epilogue
 *
 * Operands come in both orders, which the descriptors of wgmma express; nothing is transposed:
 *
 *     forward   y = x w           a K_MAJOR, b MN_MAJOR    dgrad   dx = dy w'     both K_MAJOR
 *     head      logits = x wte'   both K_MAJOR             wgrad   dw += x' dy    both MN_MAJOR
 *
 * The epilogue writes boxes of 16 rows x 128 bytes, two or four per warp, which TMA stores while
 * the next ones are filled. Addend or aux may be read into a box before. Sums begin with the bias.
 * Gradients of weights are floats, and TMA adds them to y: one addition per element, so the order
 * of additions cannot vary.
 *
 * The gradient of a bias, columns of dy summed over k, is computed with the gradient of the weight:
 * warps of the producer warpgroup add the columns while dy lies in the ring as b. That saves a pass
 * over dy.
 *
 * Rows of y may lie in other ranks' memory, one block of rows per rank (RowBlocks): a map for each
 * block says where TMA stores its boxes. This rank's own block comes last, so that the blocks that
 * other ranks wait for are stored first. Or copy engines fetch blocks of a from other ranks during
 * the matmul: the producer waits for the flag of each block, and begins with this rank's own block.
 * These copies need no multiprocessor, so a waiting kernel does not block them. Source: Chang et
 * al., FLUX (2024).
 *
 * The schedule says which tile, and which part of its k, a block computes (cuda/matmul_schedule.h).
 * The parts of a divided k are added to the sums of the last part, in the order of k (Parts).
 */
#include "layers/matmul_sm90.cuh"

#include <algorithm>

extern "C" {
#include "layers/cuda/matmul_configs.h"
#include "layers/matmul_sm90.h"
}

namespace {

struct Maps {
    CUtensorMap a, b, beside, y[MOST_BLOCKS];
    Rows rows;
};

/* The worker of the schedule: this block, or its cluster. */
__device__ __forceinline__ int this_worker(int blocks) {
    return static_cast<int>(blockIdx.x) / blocks;
}

/* The producer: fetches all steps of all parts of this block. */
template <class K>
__device__ __forceinline__ void fetch_all(const Maps &maps, const MatmulSchedule &s,
                                          const Layout<K> &at) {
    auto ring = at.ring();
    unsigned seen = 0;
    for (MatmulPart p = matmul_begin(&s, this_worker(at.blocks)); matmul_next(&s, &p);) {
        int m = maps.rows.at(at.row(p.tile_m));
        maps.rows.wait(m, seen);
        for (int k = p.k_begin; k < p.k_end; k++) {
            auto b = at.b(ring.slot);
            ring.producer_acquire(Layout<K>::STEP);
            at.a(ring.slot).fetch(maps.a, ring.full(), m, k * DEPTH);
            if (at.blocks == PAIR)
                b.fetch_half(maps.b, ring.full(), p.tile_n * K::N, k * DEPTH, at.rank);
            else
                b.fetch(maps.b, ring.full(), p.tile_n * K::N, k * DEPTH);
            ring.next();
        }
    }
}

/* Begins c (+)= one step, for the rows of this warpgroup, from `row` of the tile on. */
template <class K>
__device__ __forceinline__ void begin_step(typename K::Sums &c, const Layout<K> &at, int slot,
                                           int row, bool add) {
    using LA = typename Layout<K>::OperandA;
    using LB = typename Layout<K>::OperandB;
    Matrix a = at.a(slot).matrix(row), b = at.b(slot).matrix(0);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < DEPTH / 16; i++)
#pragma unroll
        for (int slab = 0; slab < K::SLABS; slab++)
            wgmma<K::A, K::B>(c[slab], matrix_on(LA::step(a, i), slab * SLAB * PANEL_ROW),
                              LB::step(b, i), add || i > 0);
    wgmma_commit();
}

/* PINGPONG: a warpgroup begins to multiply when the other one has begun its last step. By then the
 * other one has taken all of its slots, so for each barrier of the ring the next phase is the one
 * that this warpgroup waits for. */
enum { TURN = GROUPS + 2 }; // the first barrier after those of group_sync
template <class K> __device__ __forceinline__ void wait_turn() {
    if (K::PINGPONG_TILES) barrier_sync(TURN + this_group(), GROUPS * GROUP);
}
template <class K> __device__ __forceinline__ void give_turn() {
    if (K::PINGPONG_TILES) barrier_arrive(TURN + 1 - this_group(), GROUPS * GROUP);
}

/* c (+)= the next `steps` steps of the ring. The first step stands before the loop, so that ptxas
 * sees that only matmuls write c in the loop. */
template <class K>
__device__ __forceinline__ void multiply(typename K::Sums &c, const Layout<K> &at,
                                         Ring<Layout<K>::SLOTS> &ring, int row, int steps,
                                         bool add) {
    wait_turn<K>();
    int before = ring.consumer_wait();
    begin_step(c, at, before, row, add);
#pragma unroll 1
    for (int k = 1; k < steps; k++) {
        int slot = ring.consumer_wait();
        begin_step(c, at, slot, row, true);
        wgmma_wait<1>();
        ring.consumer_release_all(before, at.blocks);
        before = slot;
    }
    give_turn<K>();
    if constexpr (K::SLABS == 1)
        wgmma_wait<0>(c[0]);
    else
        wgmma_wait<0>(c[0], c[1]);
    ring.consumer_release_all(before, at.blocks);
}

/* The boxes of a warp, used in turn. Its threads fill a box and TMA stores it, so no warp waits for
 * another. */
template <class K> struct Out {
    /* Addend or aux is read into the box that follows the filled one by AHEAD. */
    static constexpr int BOXES = Layout<K>::BOXES, AHEAD = BOXES / 2;
    const Layout<K> &at;
    int used; // number of boxes stored so far
    __device__ __forceinline__ bool leads() const { return this_lane() == 0; }
    /* The first of this warp's 16 rows among the warpgroup's 64. */
    __device__ __forceinline__ int row() const { return this_warp() % 4 * OUT_ROWS; }
    __device__ __forceinline__ Shared box() const { return at.box(this_warp(), used % BOXES); }
    /* Begins to read addend or aux into the box after `ahead` others. Its last store was so many
     * boxes ago that up to AHEAD - 1 later stores may be in flight. */
    __device__ __forceinline__ void read(const CUtensorMap &map, int ahead, int m, int n) const {
        if (!leads()) return;
        int i = (used + ahead) % BOXES;
        tma_wait<AHEAD - 1>();
        mbarrier_expect(at.here(this_warp(), i), Layout<K>::BOX);
        tma_load(at.box(this_warp(), i), map, at.here(this_warp(), i), n, m + row());
    }
    /* Waits until the box has been read into. A kernel reads into all boxes or into none, so the
     * phase of a box's barrier is the number of its uses. */
    __device__ __forceinline__ void wait_read() const {
        mbarrier_wait(at.here(this_warp(), used % BOXES), used / BOXES & 1);
    }
    /* Waits until TMA has read the last store from the next box, so that it may be overwritten. */
    __device__ __forceinline__ void wait_empty() const {
        if (leads()) tma_wait<BOXES - 1>();
        __syncwarp();
    }
    __device__ __forceinline__ void store(const CUtensorMap &map, int m, int n, bool adds) {
        fence_async();
        __syncwarp();
        if (leads() && adds) tma_add(map, box(), n, m + row());
        if (leads() && !adds) tma_store(map, box(), n, m + row());
        if (leads()) tma_commit();
        used++;
    }
};

/* The boxes of this warp's rows in a tile of `panels` panels of 64 columns from n on, and SLABS x
 * 64 rows from m on: from left to right, slab by slab. */
template <class K> struct Boxes {
    int m, n, panels;
    __device__ __forceinline__ Boxes(const EpilogueArgs &e, int row, int column)
        : m(row), n(column), panels(min(K::N, e.N - column + PANEL - 1) / PANEL) {}
    __device__ __forceinline__ void read(const Maps &maps, const Out<K> &out, int ahead,
                                         int i) const {
        int slab = i / panels;
        if (slab < K::SLABS)
            out.read(maps.beside, ahead, m + slab * SLAB, n + (i - slab * panels) * PANEL);
    }
};

/* The epilogue of a slab. Rows and columns beyond y are not written. */
template <class K>
__device__ __forceinline__ void finish_with(const Fragment<K::J> &c, const Maps &maps,
                                            const EpilogueArgs &e, Out<K> &out,
                                            const Boxes<K> &boxes, int slab) {
    int m = boxes.m + slab * SLAB, block = m / maps.rows.stored;
#pragma unroll
    for (int i = 0; i < K::N / PANEL; i++) {
        int n = boxes.n + i * PANEL;
        if (n >= e.N) break;
        if (e.reads) {
            boxes.read(maps, out, Out<K>::AHEAD, slab * boxes.panels + i + Out<K>::AHEAD);
            out.wait_read();
        } else {
            out.wait_empty();
        }
        if (e.writes_aux) {
            fill_box(out.box(), c, i * PANEL / COLUMNS,
                     with_constants(e, EPI_NONE, ACT_GELU, false));
            out.store(maps.beside, m, n, false);
            out.wait_empty();
        }
        fill_box(out.box(), c, i * PANEL / COLUMNS, e);
        out.store(maps.y[block], m - block * maps.rows.stored, n, false);
    }
}
/* The epilogue with elementwise activation e.act, which is A or comes after A in ActKind: each
 * activation has code of its own. ACT_SWIGLU, the last of ActKind, is not elementwise. */
template <class K, int A>
__device__ __forceinline__ void finish_act(const Fragment<K::J> &c, const Maps &maps,
                                           const EpilogueArgs &e, Out<K> &out,
                                           const Boxes<K> &boxes, int slab) {
    constexpr auto ACT = static_cast<ActKind>(A);
    if (A + 1 < ACT_SWIGLU && e.act != ACT)
        finish_act<K, A + 1 < ACT_SWIGLU ? A + 1 : A>(c, maps, e, out, boxes, slab);
    else if (e.epilogue == EPI_ACT)
        finish_with(c, maps, with_constants(e, EPI_ACT, ACT, false), out, boxes, slab);
    else
        finish_with(c, maps, with_constants(e, EPI_DACT, ACT, true), out, boxes, slab);
}
template <class K>
__device__ __forceinline__ void finish(bf16, const Fragment<K::J> &c, const Maps &maps,
                                       const EpilogueArgs &e, Out<K> &out, const Boxes<K> &boxes,
                                       int slab) {
    if constexpr (K::N < 256) { // matmul_worker gives epilogues to narrower tiles only
        if (e.epilogue != EPI_NONE) return finish_act<K, 0>(c, maps, e, out, boxes, slab);
    }
    if (e.reads)
        finish_with(c, maps, with_constants(e, EPI_NONE, ACT_GELU, true), out, boxes, slab);
    else
        finish_with(c, maps, with_constants(e, EPI_NONE, ACT_GELU, false), out, boxes, slab);
}
template <class K>
__device__ __forceinline__ void finish(float, const Fragment<K::J> &c, const Maps &maps,
                                       const EpilogueArgs &e, Out<K> &out, const Boxes<K> &boxes,
                                       int slab) {
    constexpr int WIDE = OutBox<float>::WIDE;
#pragma unroll
    for (int i = 0; i < K::N / WIDE; i++) {
        int n = boxes.n + i * WIDE;
        if (n >= e.N) break;
        out.wait_empty();
        fill_box_of_floats(out.box(), c, i * WIDE / COLUMNS);
        out.store(maps.y[0], boxes.m + slab * SLAB, n, e.adds);
    }
}

/* Computes a part of a tile, for this warpgroup's rows, from `row` on. */
template <class K>
__device__ __forceinline__ void compute(typename K::Sums &c, const MatmulPart &p, const Maps &maps,
                                        const EpilogueArgs &e, const PartsOf<K> &parts,
                                        const Layout<K> &at, Ring<Layout<K>::SLOTS> &ring,
                                        Out<K> &out, int row) {
    int m = maps.rows.at(at.row(p.tile_m)) + row, n = p.tile_n * K::N;
    bool last = p.part == p.parts - 1, biased = e.bias && p.part == 0;
    Boxes<K> boxes(e, m, n);
    for (int i = 0; i < Out<K>::AHEAD && e.reads && last; i++) boxes.read(maps, out, i, i);
    if (biased) {
#pragma unroll
        for (int i = 0; i < K::SLABS; i++) begin_with_bias(c[i], e, n);
    }
    multiply(c, at, ring, row, p.k_end - p.k_begin, biased);
    if (!last) {
#pragma unroll
        for (int i = 0; i < K::SLABS; i++)
            parts.store_partial(c[i], at.share(p.share), row / SLAB + i);
        return;
    }
#pragma unroll
    for (int i = 0; i < K::SLABS; i++) {
        int slab = row / SLAB + i;
        for (int share = p.share - p.part; share < p.share; share++)
            parts.add_partial(c[i], at.share(share), slab);
        finish(typename K::Y(), c[i], maps, e, out, boxes, i);
    }
}

/* The gradient of a bias, where b is dy. Two warps of the producer warpgroup add the columns of
 * steps of b, 4 columns per lane, beside the warpgroups that multiply. All tiles of a column have
 * the same b, so the blocks of that column share its steps. If one block added all of them it would
 * be late, and all would wait for it: a matmul and the sums together read more from shared memory
 * than there is time for. */
enum { SUMMING = 2, LANE_COLUMNS = 4, WARP_COLUMNS = WARP * LANE_COLUMNS };
template <class K>
__device__ __forceinline__ void sum_columns(const MatmulSchedule &s, const EpilogueArgs &e,
                                            const Layout<K> &at, int warp) {
    auto ring = at.ring();
    int column = warp * WARP_COLUMNS + this_lane() * LANE_COLUMNS, in = column % PANEL;
    int offset = column / PANEL * Layout<K>::OperandB::BOX_BYTES + in * 2;
#pragma unroll 1
    for (MatmulPart p = matmul_begin(&s, this_worker(at.blocks)); matmul_next(&s, &p);) {
        int by = p.tile_m * at.blocks + at.rank;
        float sum[LANE_COLUMNS] = {};
#pragma unroll 1
        for (int k = p.k_begin; k < p.k_end; k++) {
            int slot = ring.consumer_wait();
            Shared from = at.b(slot).at + offset;
            bool mine = k % e.summing == by && column < K::N;
#pragma unroll 8
            for (int row = 0; row < DEPTH && mine; row++) {
                unsigned pair[2];
                load_shared(pair, flipped(from, row % 8 * 16) + row * PANEL_ROW);
                sum[0] += low_of(pair[0]), sum[1] += high_of(pair[0]);
                sum[2] += low_of(pair[1]), sum[3] += high_of(pair[1]);
            }
            __syncwarp();
            ring.consumer_release_all(slot, at.blocks);
        }
        for (int i = 0; i < LANE_COLUMNS && column < K::N; i++)
            store_column_sum(e, p, by, p.tile_n * K::N + column + i, sum[i]);
    }
}

/* A consumer: its rows of all tiles of the block or, PINGPONG, every second tile. */
template <class K>
__device__ __forceinline__ void compute_all(const Maps &maps, const MatmulSchedule &s,
                                            const EpilogueArgs &e, const PartsOf<K> &parts,
                                            const Layout<K> &at, int group) {
    auto ring = at.ring();
    Out<K> out = {at, 0};
    int turn = 0;
    if (group == 1) give_turn<K>(); // the first turn is the other warpgroup's
#pragma unroll 1
    for (MatmulPart p = matmul_begin(&s, this_worker(at.blocks)); matmul_next(&s, &p); turn ^= 1) {
        typename K::Sums c;
        if (K::PINGPONG_TILES && turn != group)
            ring.advance(p.k_end - p.k_begin);
        else
            compute(c, p, maps, e, parts, at, ring, out, K::PINGPONG_TILES ? 0 : group * SLAB);
    }
    if (out.leads()) tma_wait<0>();
}

template <class K>
__global__ void __launch_bounds__(K::Threads::THREADS, 1)
    sm90_matmul(const __grid_constant__ Maps maps, MatmulSchedule s, EpilogueArgs e, float *slots,
                int *flags) {
    Layout<K> at = {shared_address(dynamic_shared<char>()), cluster_rank(), cluster_size()};
    bool sums = K::WIDE && e.columns;
    if (threadIdx.x == 0) at.make_barriers(sums ? SUMMING : 0);
    __syncthreads();
    if (at.blocks > 1) cluster_sync(); // until the other block's barriers are initialized, too
    int group = this_group();
    if (group == GROUPS) {
        K::Threads::few();
        int warp = this_warp() % 4;
        if (threadIdx.x == GROUPS * GROUP) fetch_all(maps, s, at);
        if (K::WIDE && sums && warp >= 1 && warp <= SUMMING) sum_columns(s, e, at, warp - 1);
    } else {
        K::Threads::many();
        compute_all<K>(maps, s, e, {slots, flags}, at, group);
    }
    if (at.blocks > 1) cluster_sync(); // until the other block writes into this one no more
}

/* --- launchers */

/* Gradients of weights have long sums, so their epilogues need not be hidden. */
template <int WIDTH, class Y>
constexpr KernelSchedule kernel_schedule = WIDTH <= MATMUL_PINGPONG && sizeof(Y) == sizeof(bf16)
                                               ? PINGPONG
                                               : COOPERATIVE;

/* Rates of a multiprocessor of an H100 or H200 per cycle, for the order of configs: 4 N cycles for
 * 128 x N x 64 multiply-adds, four warps that issue, bytes from L2. */
MatmulGpu gpu() {
    return {device_sms(), 4096, 128, 44, 0, static_cast<int>(device_shared())};
}

Rows rows_of(const Matmul *p) {
    const RowBlocks *r = p->blocks;
    if (!r) return {0, INT32_MAX, INT32_MAX, 1, nullptr, 0};
    int all = static_cast<int>(p->M), each = static_cast<int>(r->rows), first = r->first * each;
    if (r->matrix == BLOCKS_OF_Y) return {first, all, each, 1, nullptr, 0};
    return {first, all, INT32_MAX, each, r->flags, r->ready_value};
}

template <class K> void run(const Matmul *p, const MatmulSchedule &s, int blocks) {
    const RowBlocks *r = p->blocks;
    EpilogueArgs e = epilogue_args(p);
    begin_columns(p, s, s.tiles_m * blocks, e);
    const Act *beside = p->epilogue == EPI_NONE ? p->addend : p->aux;
    Maps maps = {
        Operand<K::A, ROWS>::map(p->a, p->M, p->K, K::A == K_MAJOR ? p->a_row : p->a_col),
        Operand<K::B, K::N>::map(p->b, p->N, p->K, K::B == K_MAJOR ? p->b_col : p->b_row, blocks),
        OutBox<typename K::Y>::map(beside ? beside : p->y, p->M, p->N, p->ldy),
        {OutBox<typename K::Y>::map(p->y, p->M, p->N, p->ldy)},
        rows_of(p)};
    for (int i = 0; r && r->matrix == BLOCKS_OF_Y && i < r->n; i++)
        maps.y[i] = OutBox<typename K::Y>::map(r->begin(r->ctx, i), r->rows, p->N, p->ldy);
    int n = std::min(s.workers, matmul_shares(&s)) * blocks;
    LAUNCH_CLUSTERS(static_cast<unsigned>(blocks), sm90_matmul<K>, static_cast<unsigned>(n),
                    K::Threads::THREADS, Layout<K>::BYTES, maps, s, e,
                    static_cast<float *>(p->workspace), device_zeros());
    add_columns(p, e);
}

template <Major A, Major B, class Y>
void run(const Matmul *p, const MatmulSchedule &s, const MatmulConfig &w) {
    if (w.width == 256)
        run<Kind<256, A, B, Y, kernel_schedule<256, Y>>>(p, s, w.blocks);
    else if (w.width == 192)
        run<Kind<192, A, B, Y, kernel_schedule<192, Y>>>(p, s, w.blocks);
    else
        run<Kind<128, A, B, Y, kernel_schedule<128, Y>>>(p, s, w.blocks);
}

const char *refuses_blocks(const Matmul *p) {
    const RowBlocks *r = p->blocks;
    if (!r) return nullptr;
    bool here = r->matrix == BLOCKS_OF_Y || (r->matrix == BLOCKS_OF_A && r->flags);
    if (!here || p->wide) return "blocks of rows without flags";
    if (r->n > MOST_BLOCKS) return "too many blocks of rows";
    return r->rows % ROWS ? "blocks of rows end within tiles" : nullptr;
}

/* TMA stores whole chunks of 16 bytes: after a row that ends within a chunk there may only be
 * padding. */
const char *refuses_ends(const Matmul *p) {
    int64_t chunk = p->wide ? 4 : 8;
    return p->N % chunk && !p->padded ? "rows of y end within 16 bytes of others" : nullptr;
}

} // namespace

extern "C" const char *matmul_sm90_refuses(const Matmul *p, size_t elem_bytes) {
    if (!device_is_sm90()) return "the device is not of capability 9.0";
    const char *why = matmul_refuses(p, elem_bytes);
    if (!why) why = refuses_ends(p);
    return why ? why : refuses_blocks(p);
}

extern "C" int matmul_sm90_configs(const Matmul *p, int number[MATMUL_CONFIGS]) {
    MatmulGpu g = gpu();
    return matmul_configs(p, MATMUL_SM90, &g, number);
}

extern "C" void matmul_sm90(const Matmul *p, int number) {
    MatmulGpu g = gpu();
    MatmulConfig w;
    MatmulSchedule s = matmul_schedule_of(p, MATMUL_SM90, &g, number, &w);
    if (p->wide) return run<MN_MAJOR, MN_MAJOR, float>(p, s, w);
    if (p->b_row == 1) return run<K_MAJOR, K_MAJOR, bf16>(p, s, w);
    run<K_MAJOR, MN_MAJOR, bf16>(p, s, w);
}
