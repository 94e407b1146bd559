/* The matmul of a linear layer on tensor cores from Ampere on: the third of the kernels of
 * matmul.cu, before matmul_sm90.cu.
 *
 *     y[M, N] = a[M, K] b[K, N]     bf16 operands, read as they are stored; fp32 sums
 *
 * The roofline. Tensor cores of an A100 do 1,024 multiply-adds in a cycle: 108 x 1,024 x 2 x 1.41
 * GHz = 312 TFLOP/s. In that cycle shared memory gives 128 bytes to a multiprocessor, L2 some 47.
 *
 *     tile of a warp    64 x 64 over 16     64 cycles      4 KB of shared memory     64 of 128
 *     tile of a block   128 x 128 over 32   512 cycles    16 KB from L2              32 of 47
 *                       128 x 256 over 32   1,024 cycles  24 KB from L2              24 of 47
 *
 * So tensor cores bound the kernel, except in waves that are not full (cuda/matmul_cost.h). On an
 * H100 or H200 mma.sync reaches some 63 % of 989 TFLOP/s, which is why matmul_sm90.cu exists. This
 * kernel was measured only on an H200, not on a device without a better kernel: 144 to 360 TFLOP/s
 * in the matmuls of four GPT-2 models, and 301 for M = N = K = 8192, where matmul_sm90.cu reached
 * 742 (bench/results/h200-kernels.json).
 *
 * What this kernel adds to the tiles of matmul.cu, with the bound that each step removes; its code
 * is named in brackets. For tiles of fp32, Boehm ("How to Optimize a CUDA Matmul Kernel for
 * cuBLAS-like Performance", 2022) has a kernel for each such step.
 *
 *     mma.sync [multiply_step]: a warp multiplies 16 x 8 x 16 from registers. With one such
 *         accumulator it reads 768 bytes for 2,048 multiply-adds: 384 in a cycle, of 128
 *     64 x 64 of y to a warp [Sums], 128 registers of each lane: 4 KB for 65,536, 64 in a cycle
 *     ldmatrix [Operand] reads 8 rows of 16 bytes at once. Rows in a column of a tile lie in the
 *         same banks, which takes 8 times as long; so the chunks of a row are permuted
 *     cp.async [fetch_step] writes past registers into a ring of STAGES steps of k: three steps
 *         are in flight while one is multiplied, and no warp waits for memory
 *     two blocks of 128 x 128 on a multiprocessor [BLOCKS]: one is in its epilogue while the
 *         other multiplies. Or one of 128 x 256, which takes less from L2. Blocks are persistent,
 *         and fetch the first steps of their next tile before they finish one [sm80_matmul]
 *     k divided by split-K or Stream-K [matmul_next, Parts]: no wave that is partly filled
 *
 * The ring of a block in time. One barrier per step serves two purposes: the step is complete for
 * all threads, and no thread reads the step before any more, whose slot is then filled:
 *
 *     copies       0 1 2   3     4     5     6
 *     multiplies         | 0   | 1   | 2   | 3   |     | own copies are waited for, barrier
 *
 * Operands come in both orders. Nothing is transposed in memory: ldmatrix transposes on the way to
 * the registers.
 *
 *     forward   y = x w           a K_MAJOR, b MN_MAJOR    dgrad   dx = dy w'     both K_MAJOR
 *     head      logits = x wte'   both K_MAJOR             wgrad   dw += x' dy    both MN_MAJOR
 *
 * Sums begin with the bias. The gradient of a bias, columns of dy summed over k, is computed with
 * the gradient of the weight: warps of the first row of tiles have dy in registers, as b, and add
 * it.
 *
 * The schedule says which tile, and which part of its k, a block computes. cuda/matmul_epilogue.cuh
 * has the epilogue of finished sums, and the sums of parts.
 */
#include "layers/cuda/matmul_epilogue.cuh"

#include <algorithm>

extern "C" {
#include "layers/cuda/matmul_configs.h"
#include "layers/cuda/matmul_cost.h"
#include "layers/matmul_sm80.h"
}

namespace {

/* A block computes tiles of ROWS x N in steps of DEPTH along k. A warp computes SIDE x SIDE of a
 * tile, in slabs of 16 rows. */
enum { ROWS = 128, DEPTH = 32, SIDE = 64, SLABS = SIDE / 16, J = SIDE / COLUMNS, STAGES = 4 };
static_assert(int{ROWS} == MATMUL_ROWS && int{DEPTH} == MATMUL_DEPTH_SM80 &&
                  int{SLABS} == MATMUL_PIECES_SM80,
              "as they are priced");
constexpr int LINE = 128, CHUNK = 8; // bytes of a line of shared memory; elements of 16 bytes

/* K_MAJOR: neighbours along k are neighbours in memory; MN_MAJOR: those along m of a, n of b. */
enum Major { K_MAJOR, MN_MAJOR };

template <int WIDTH, Major MAJOR_A, Major MAJOR_B, class TYPE> struct Kind {
    static constexpr int N = WIDTH, THREADS = ROWS / SIDE * (N / SIDE) * WARP;
    static constexpr int BLOCKS = 256 / N; // blocks that share a multiprocessor
    static constexpr Major A = MAJOR_A, B = MAJOR_B;
    static constexpr bool WIDE = sizeof(TYPE) == sizeof(float);
    using Y = TYPE;
};
using Sums = float[SLABS][J][4]; // a lane's part of the sums of SIDE x SIDE

/* --- operands */

/* One operand in memory: its extent along m or n, and K. */
struct Matrix {
    const bf16 *at;
    int64_t ld;
    int extent, K;
};

/* A step of an operand in shared memory: EXTENT along m or n and DEPTH along k, in lines of 8
 * chunks.
 *
 *     K_MAJOR     a line is 32 of k for one m or n, and 32 of k for the next one
 *     MN_MAJOR    a line is 64 of m or n for one k; lines of all k, then the next 64
 *
 * Chunk c of line l is stored at position c ^ (l % 8). The 8 chunks that ldmatrix reads at once are
 * 2 per line of 4 lines, or 1 per line of 8 lines: at these positions they lie in 8 different
 * groups of banks. */
template <Major MAJOR, int EXTENT, int THREADS> struct Operand {
    static constexpr int BYTES = EXTENT * DEPTH * 2, EACH = BYTES / 16 / THREADS;
    static constexpr bool ALONG_K = MAJOR == K_MAJOR;
    Shared at;

    __device__ __forceinline__ Shared chunk(int line, int c) const {
        return at + line * LINE + (c ^ line % 8) * 16;
    }

    /* Begins to copy the step that begins at (first, k); elements beyond the operand become zeros.
     * Called by all threads of the block. */
    __device__ __forceinline__ void fetch(const Matrix &x, int first, int k) const {
        constexpr int LINES = THREADS / 8; // lines at once, a multiple of 8
        int line = static_cast<int>(threadIdx.x) / 8, c = static_cast<int>(threadIdx.x) % 8;
        Shared to = chunk(line, c);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int l = line + i * LINES;
            int mn = first + (ALONG_K ? l * 2 + c / 4 : l / DEPTH * SIDE + c * CHUNK);
            int at_k = k + (ALONG_K ? c % 4 * CHUNK : l % DEPTH);
            int left = ALONG_K ? x.K - at_k : x.extent - mn;
            bool there = ALONG_K ? mn < x.extent : at_k < x.K;
            int64_t offset = ALONG_K ? mn * x.ld + at_k : at_k * x.ld + mn;
            copy_async_first(to + i * LINES * LINE, x.at + offset,
                             there ? min(max(left, 0), CHUNK) * 2 : 0);
        }
    }

    /* For ldmatrix: the address of this lane's row of the 8 x 8 matrix at (mn, k), which are
     * multiples of 8. on: the address 16 i further along m or n, i <= 3, and 16 j further along
     * k. */
    __device__ __forceinline__ Shared row_of(int mn, int k) const {
        int r = this_lane() % 8;
        if (ALONG_K) return chunk((mn + r) / 2, r % 2 * 4 + k / CHUNK);
        return chunk(mn / SIDE * DEPTH + k + r, mn % SIDE / CHUNK);
    }
    __device__ __forceinline__ static Shared on(Shared row, int i, int j) {
        return ALONG_K ? flipped(row + i * 8 * LINE, j * 32) : flipped(row + j * 16 * LINE, i * 32);
    }
    /* Loads 16 x 16 as 4 matrices, so that neighbours in a register are neighbours along k. */
    __device__ __forceinline__ static void load(unsigned (&r)[4], Shared row) {
        if constexpr (ALONG_K)
            ldmatrix(r, row);
        else
            ldmatrix_trans(r, row);
    }
};

struct Operands {
    Matrix a, b;
};

/* Shared memory: the ring, and 16 x 64 floats for each warp, in which the epilogue reorders
 * sums. */
template <class K> struct Layout {
    using A = Operand<K::A, ROWS, K::THREADS>;
    using B = Operand<K::B, K::N, K::THREADS>;
    static constexpr int STEP = A::BYTES + B::BYTES, RING = STAGES * STEP;
    static constexpr int STAGED = 16 * SIDE, // floats
        BYTES = RING + K::THREADS / WARP * STAGED * static_cast<int>(sizeof(float));
    static_assert(BYTES == MATMUL_SHARED_ROWS + K::N * MATMUL_SHARED_COLUMN, "as it is priced");
    Shared begin;
    __device__ __forceinline__ A a(int slot) const { return {begin + slot % STAGES * STEP}; }
    __device__ __forceinline__ B b(int slot) const { return {a(slot).at + A::BYTES}; }
    __device__ __forceinline__ static float *staged() {
        return reinterpret_cast<float *>(dynamic_shared<char>() + RING) + this_warp() * STAGED;
    }
};

/* --- multiplying */

/* The first row and the first column of this warp in a tile. */
__device__ __forceinline__ int warp_m() {
    return this_warp() % (ROWS / SIDE) * SIDE;
}
__device__ __forceinline__ int warp_n() {
    return this_warp() / (ROWS / SIDE) * SIDE;
}

/* c += one step. With `sums` also adds this lane's elements of the columns of b: of fragment j
 * column lane / 4, every fourth pair of k. */
template <class K>
__device__ __forceinline__ void multiply_step(Sums &c, float (&columns)[J], bool sums,
                                              const Layout<K> &at, int slot) {
    using A = typename Layout<K>::A;
    using B = typename Layout<K>::B;
    // this lane's matrix of the four; the second one of a is along m, of b along k
    int i = this_lane() / 8;
    Shared rows = at.a(slot).row_of(warp_m() + i % 2 * 8, i / 2 * 8);
    Shared cols = at.b(slot).row_of(warp_n() + i / 2 * 8, i % 2 * 8);
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
        unsigned a[SLABS][4], b[J / 2][4];
#pragma unroll
        for (int s = 0; s < SLABS; s++) A::load(a[s], A::on(rows, s, k));
#pragma unroll
        for (int j = 0; j < J / 2; j++) B::load(b[j], B::on(cols, j, k));
#pragma unroll
        for (int s = 0; s < SLABS; s++)
#pragma unroll
            for (int j = 0; j < J; j++)
                mma_bf16(c[s][j], a[s], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        if constexpr (K::WIDE)
#pragma unroll
            for (int j = 0; j < J * 2 && sums; j++)
                columns[j / 2] += low_of(b[j / 4][j % 4]) + high_of(b[j / 4][j % 4]);
    }
}

/* Begins to fetch step k of part p into a slot of the ring, if the part has it. */
template <class K>
__device__ __forceinline__ void fetch_step(const Operands &x, const MatmulPart &p, int k,
                                           const Layout<K> &at, int slot) {
    if (k < p.k_end) {
        at.a(slot).fetch(x.a, p.tile_m * ROWS, k * DEPTH);
        at.b(slot).fetch(x.b, p.tile_n * K::N, k * DEPTH);
    }
    copy_commit(); // a group for each step, also after the last one, so that copy_wait counts steps
}

/* Begins to fetch the first STAGES - 1 steps of a part. The remaining slot may still be read. */
template <class K>
__device__ __forceinline__ void fetch_first(const Operands &x, const MatmulPart &p,
                                            const Layout<K> &at, int slot) {
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) fetch_step(x, p, p.k_begin + i, at, slot + i);
}

/* c += all steps of a part, which begin in `slot` of the ring. */
template <class K>
__device__ __forceinline__ void multiply(Sums &c, float (&columns)[J], bool sums, const Operands &x,
                                         const MatmulPart &p, const Layout<K> &at, int &slot) {
#pragma unroll 1
    for (int k = p.k_begin; k < p.k_end; k++, slot = (slot + 1) % STAGES) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        fetch_step(x, p, k + STAGES - 1, at, slot + STAGES - 1);
        multiply_step(c, columns, sums, at, slot);
    }
}

/* --- the end of a tile */

template <class K> struct BlockThreads {
    static constexpr int N = K::THREADS, PIECES = SLABS;
    __device__ __forceinline__ static unsigned index() { return threadIdx.x; }
    __device__ __forceinline__ static void sync() { __syncthreads(); }
};

/* y, and `beside`, the addend or aux, which has the same shape and stride. */
template <class Y> struct Result {
    Y *y, *beside;
    int64_t ld;
    int M, N;
};

/* 16 bytes of neighbours in y. load_first and store_first move the first n of them. */
template <class Y> using Neighbours = Vec<Y, width<Y>>;
template <class Y> __device__ __forceinline__ Neighbours<Y> load_first(const Y *p, int n) {
    if (n >= width<Y>) return *reinterpret_cast<const Neighbours<Y> *>(p);
    Neighbours<Y> x = {};
#pragma unroll
    for (int i = 0; i < width<Y>; i++)
        if (i < n) x.elem[i] = p[i];
    return x;
}
template <class Y>
__device__ __forceinline__ void store_first(Y *p, const Neighbours<Y> &x, int n) {
    if (n >= width<Y>) {
        *reinterpret_cast<Neighbours<Y> *>(p) = x;
        return;
    }
#pragma unroll
    for (int i = 0; i < width<Y>; i++)
        if (i < n) p[i] = x.elem[i];
}

/* Where the warp stores element (r, n) of 16 x 64 sums in shared memory: its lanes write pairs, and
 * then each reads the sums for 16 bytes of y. Rows are permuted against bank conflicts. */
__device__ __forceinline__ int staged_at(int r, int n) {
    return r * SIDE + (n ^ r % 4 * 8);
}

/* The epilogue of a slab: 16 rows from m on, 64 columns from n on. */
template <class Y>
__device__ __forceinline__ void finish(const float (&c)[J][4], const EpilogueArgs &e,
                                       const Result<Y> &to, float *staged, int m, int n) {
    constexpr int W = width<Y>, ACROSS = SIDE / W, EACH = 16 * ACROSS / WARP;
    int lane = this_lane(), row = lane / ACROSS, column = lane % ACROSS * W;
    constexpr int DOWN = WARP / ACROSS; // rows that the warp handles at once
    auto offset = [&](int i) { return (m + row + i * DOWN) * to.ld + n + column; };
    auto there = [&](int i) { return m + row + i * DOWN < to.M ? to.N - n - column : 0; };
    auto read = [&](int i) {
        bool some = e.reads && i < EACH;
        return some ? load_first(to.beside + offset(i), there(i)) : Neighbours<Y>();
    };
    Neighbours<Y> next = read(0);
    __syncwarp(); // all lanes have read the previous slab
#pragma unroll
    for (int i = 0; i < J * 2; i++) {
        float *pair = staged + staged_at(lane / 4 + i % 2 * 8, i / 2 * COLUMNS + lane % 4 * 2);
        *reinterpret_cast<float2 *>(pair) =
            make_float2(c[i / 2][i % 2 * 2], c[i / 2][i % 2 * 2 + 1]);
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < EACH; i++) {
        const float *from = staged + staged_at(row + i * DOWN, column);
        Neighbours<Y> beside = next;
        next = read(i + 1);
        Neighbours<Y> y;
        float x[W];
#pragma unroll
        for (int w = 0; w < W; w++) x[w] = from[w];
        if (e.writes_aux) {
#pragma unroll
            for (int w = 0; w < W; w++) from_float(y.elem[w], x[w]);
            store_first(to.beside + offset(i), y, there(i));
        }
#pragma unroll
        for (int w = 0; w < W; w += 2)
            apply_epilogue(e, x[w], x[w + 1], to_float(beside.elem[w]),
                           to_float(beside.elem[w + 1]));
#pragma unroll
        for (int w = 0; w < W; w++) from_float(y.elem[w], x[w]);
        store_first(to.y + offset(i), y, there(i));
    }
}

/* Stores the sums of this warp's columns of b; four lanes have parts of each column. */
__device__ __forceinline__ void store_column_sums(const float (&columns)[J], const EpilogueArgs &e,
                                                  const MatmulPart &p, int n) {
#pragma unroll
    for (int j = 0; j < J; j++) {
        float sum = quad_sum(columns[j]);
        if (this_lane() % 4 == 0) store_column_sum(e, p, 0, n + j * COLUMNS + this_lane() / 4, sum);
    }
}

template <class K>
__global__ void __launch_bounds__(K::THREADS, K::BLOCKS)
    sm80_matmul(Operands x, Result<typename K::Y> to, MatmulSchedule s, EpilogueArgs e,
                float *slots, int *flags) {
    Layout<K> at = {shared_address(dynamic_shared<char>())};
    Parts<J, BlockThreads<K>> parts = {slots, flags};
    int slot = 0;
    MatmulPart next = matmul_begin(&s, static_cast<int>(blockIdx.x));
    bool more = matmul_next(&s, &next);
    if (more) fetch_first(x, next, at, slot);
#pragma unroll 1
    while (more) {
        MatmulPart p = next;
        int m = p.tile_m * ROWS + warp_m(), n = p.tile_n * K::N + warp_n();
        Sums c = {};
        float columns[J] = {};
        bool sums = K::WIDE && e.columns && p.tile_m == 0 && warp_m() == 0;
#pragma unroll
        for (int i = 0; i < SLABS; i++)
            if (e.bias && p.part == 0) begin_with_bias(c[i], e, n);
        multiply(c, columns, sums, x, p, at, slot);
        more = matmul_next(&s, &next);
        if (more) fetch_first(x, next, at, slot);
        if (sums) store_column_sums(columns, e, p, n);
#pragma unroll
        for (int i = 0; i < SLABS; i++) {
            if (p.part < p.parts - 1) {
                parts.store_partial(c[i], p.share, i);
                continue;
            }
            for (int share = p.share - p.part; share < p.share; share++)
                parts.add_partial(c[i], share, i);
            finish(c[i], e, to, at.staged(), m + i * 16, n);
        }
    }
    copy_wait<0>();
}

/* --- launchers */

/* Rates of a multiprocessor of an A100 per cycle, for the order of configs: 2,048 FLOPs, two warps
 * that issue, bytes from L2. */
MatmulGpu gpu() {
    return {device_sms(), 2048, 64, 47, 0, static_cast<int>(device_shared())};
}

int as_int(int64_t n) {
    return static_cast<int>(n);
}

template <class K> Result<typename K::Y> result_of(const Matmul *p) {
    using Y = typename K::Y;
    const Act *beside = p->epilogue == EPI_NONE ? p->addend : p->aux;
    return {reinterpret_cast<Y *>(p->y), reinterpret_cast<Y *>(const_cast<Act *>(beside)), p->ldy,
            as_int(p->M), as_int(p->N)};
}

template <class K> void run(const Matmul *p, const MatmulSchedule &s) {
    EpilogueArgs e = epilogue_args(p);
    e.reads |= e.adds;
    if (K::WIDE) begin_columns(p, s, 1, e);
    Operands x = {{reinterpret_cast<const bf16 *>(p->a), K::A == K_MAJOR ? p->a_row : p->a_col,
                   as_int(p->M), as_int(p->K)},
                  {reinterpret_cast<const bf16 *>(p->b), K::B == K_MAJOR ? p->b_col : p->b_row,
                   as_int(p->N), as_int(p->K)}};
    LAUNCH(sm80_matmul<K>, std::min(s.workers, matmul_shares(&s)), K::THREADS, Layout<K>::BYTES, x,
           result_of<K>(p), s, e, static_cast<float *>(p->workspace), device_zeros());
    add_columns(p, e);
}

template <Major A, Major B, class Y>
void run(const Matmul *p, const MatmulSchedule &s, const MatmulConfig &w) {
    if (w.width == 256)
        run<Kind<256, A, B, Y>>(p, s);
    else
        run<Kind<128, A, B, Y>>(p, s);
}

} // namespace

extern "C" const char *matmul_sm80_refuses(const Matmul *p, size_t elem_bytes) {
    return device_has_mma() ? matmul_refuses(p, elem_bytes) : "the device is below capability 8.0";
}

extern "C" int matmul_sm80_configs(const Matmul *p, int number[MATMUL_CONFIGS]) {
    MatmulGpu g = gpu();
    return matmul_configs(p, MATMUL_SM80, &g, number);
}

extern "C" void matmul_sm80(const Matmul *p, int number) {
    MatmulGpu g = gpu();
    MatmulConfig w;
    MatmulSchedule s = matmul_schedule_of(p, MATMUL_SM80, &g, number, &w);
    if (p->wide) return run<MN_MAJOR, MN_MAJOR, float>(p, s, w);
    if (p->b_row == 1) return run<K_MAJOR, K_MAJOR, bf16>(p, s, w);
    run<K_MAJOR, MN_MAJOR, bf16>(p, s, w);
}
