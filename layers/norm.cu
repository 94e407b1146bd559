/* norm on CUDA. Bound by memory; bytes per token in bf16, where each element of x, y, dy, dx is
 * moved once:
 *
 *     forward    read 2C, write 2C          backward  read 6C, write 2C
 *     residual   read 4C, write 4C          residual add and norm fused: saves reading the stream
 *     sharded    the statistics read 2C more, the sums of backward 4C more
 *
 * Each direction has two versions. The plain one reads a row in single elements, as often as the
 * formula does, for rows that are not aligned. The fast one fetches a row once and keeps it until
 * its sums are known, forward in registers, backward in shared memory. A row belongs to one warp as
 * long as it fits, so that no warp waits for another. With a residual the kernel first computes the
 * elements of the residual stream, and normalizes these rounded elements, not the floats before
 * rounding. Backward has only the rounded elements, and the fused and the separate kernels give the
 * same bits.
 */
#include "layers/cuda/launch.cuh"
#include "layers/cuda/panels.cuh"
#include "layers/cuda/ptx.cuh"
#include <algorithm>
#include <utility>

extern "C" {
#include "layers/cuda/families.h"
#include "layers/cuda/sizes.h"
}

namespace {

enum { THREADS = 256, WARPS = THREADS / WARP };

/* --- forward */

template <class E> struct Forward {
    E *stream; // residual stream before the addition, updated in place; NULL without a residual
    const E *addend;    // added to stream; NULL without a residual
    const float *bias;  // [C] added to stream; or NULL
    E *y;               // NULL: only the statistics are computed
    float *mean, *rstd; // each may be NULL
    float *stats;       // [T,2]: mean, sum of squared distances from it; or NULL
    const E *x;
    const float *gamma, *beta;
    int64_t T, C, ld;
    float eps;
    bool layer; // layer norm; else RMS norm: the mean is 0
};

/* Computes rstd of a row from its sums, and stores the statistics of the row; `writes` is set in
 * one lane. */
template <class E>
__device__ __forceinline__ float store_statistics(const Forward<E> &f, int64_t t, float mean,
                                                  float squares, bool writes) {
    float rstd = 1.0f / sqrtf(squares / static_cast<float>(f.C) + f.eps);
    if (!writes) return rstd;
    if (f.stats) f.stats[2 * t] = mean, f.stats[2 * t + 1] = squares;
    if (f.mean) f.mean[t] = mean;
    if (f.rstd) f.rstd[t] = rstd;
    return rstd;
}

template <int W, class E> __device__ __forceinline__ Vec<E, W> *words_at(E *p) {
    return reinterpret_cast<Vec<E, W> *>(p);
}
template <int W, class E> __device__ __forceinline__ const Vec<E, W> *words_at(const E *p) {
    return reinterpret_cast<const Vec<E, W> *>(p);
}

/* x = (addend + x) + bias, rounded to the dtype of x; v = these rounded elements as floats. */
template <class E, int W>
__device__ __forceinline__ void add_residual(float (&v)[W], Vec<E, W> &x, const Vec<E, W> &addend,
                                             const float *bias) {
    float a[W], b[W] = {0};
    if (bias) load<float, W>(b, bias);
    unpack(a, addend), unpack(v, x);
#pragma unroll
    for (int j = 0; j < W; j++) {
        v[j] += a[j];
        if (bias) v[j] += b[j];
    }
    pack(x, v), unpack(v, x);
}

/* A warp for each row, in three passes. A lane reads only those elements of the residual stream
 * that it wrote itself. */
template <class E, bool RESIDUAL> __global__ void forward_plain(Forward<E> f) {
    int64_t t = static_cast<int64_t>(blockIdx.x) * WARPS + this_warp();
    if (t >= f.T) return;
    for (int64_t c = this_lane(); c < f.C && RESIDUAL; c += WARP) {
        float v[1];
        add_residual<E, 1>(v, *words_at<1>(f.stream + t * f.ld + c),
                           *words_at<1>(f.addend + t * f.ld + c), f.bias ? f.bias + c : nullptr);
    }
    const E *x = f.x + t * f.ld;
    float sum = 0, squares = 0;
    for (int64_t c = this_lane(); c < f.C && f.layer; c += WARP) sum += to_float(x[c]);
    float mean = f.C > 0 ? warp_sum(sum) / static_cast<float>(f.C) : 0;
    for (int64_t c = this_lane(); c < f.C; c += WARP) {
        float d = to_float(x[c]) - mean;
        squares = fmaf(d, d, squares);
    }
    float rstd = store_statistics(f, t, mean, warp_sum(squares), this_lane() == 0);
    for (int64_t c = this_lane(); c < f.C && f.y; c += WARP) {
        float h = (to_float(x[c]) - mean) * rstd;
        from_float(f.y[t * f.ld + c], fmaf(h, f.gamma[c], f.beta ? f.beta[c] : 0));
    }
}

/* Words of a row, and of its addend, that a lane loads at once. More of them would take so many
 * registers that a multiprocessor holds only one block. */
enum { BATCH = 4 };

/* column: the first column of word k of thread `first` among those that share the row. is_inside:
 * is this column inside the row? The launcher takes the fewest words for each lane of a warp, so
 * all words but the last are inside. */
template <class E, int GROUP> __device__ __forceinline__ int column(int first, int k) {
    return (k * GROUP * WARP + first) * width<E>;
}
template <class E, int K, int GROUP>
__device__ __forceinline__ bool is_inside(int64_t C, int first, int k) {
    return (GROUP == 1 && k < K - 1) || column<E, GROUP>(first, k) < static_cast<int>(C);
}

/* v = row t of x, or of the residual stream after the addition; 0 beyond the end of the row. A
 * batch is read before any of it is written: the compiler cannot know that rows do not overlap, and
 * would wait for each element in turn. */
template <class E, int K, int GROUP, bool RESIDUAL>
__device__ __forceinline__ void take_row(float (&v)[K][width<E>], const Forward<E> &f, int64_t t,
                                         int first) {
    constexpr int W = width<E>, AT_ONCE = K < BATCH ? K : static_cast<int>(BATCH);
    const E *row = f.x + t * f.ld, *addend_row = RESIDUAL ? f.addend + t * f.ld : nullptr;
#pragma unroll
    for (int k0 = 0; k0 < K; k0 += AT_ONCE) {
        Vec<E, W> x[AT_ONCE], addend[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE && k0 + k < K; k++) {
            // beyond the row's end its first word is read and dropped, so that lanes do not diverge
            int c =
                is_inside<E, K, GROUP>(f.C, first, k0 + k) ? column<E, GROUP>(first, k0 + k) : 0;
            x[k] = *words_at<W>(row + c);
            if (RESIDUAL) addend[k] = *words_at<W>(addend_row + c);
        }
        __syncwarp(); // else the compiler would add the first words before it loads the others
#pragma unroll
        for (int k = 0; k < AT_ONCE && k0 + k < K; k++) {
            int c = column<E, GROUP>(first, k0 + k);
            bool inside = is_inside<E, K, GROUP>(f.C, first, k0 + k);
            if (RESIDUAL && inside) {
                add_residual<E, W>(v[k0 + k], x[k], addend[k], f.bias ? f.bias + c : nullptr);
                *words_at<W>(f.stream + t * f.ld + c) = x[k];
            } else {
                unpack(v[k0 + k], x[k]);
            }
#pragma unroll
            for (int j = 0; j < W; j++) v[k0 + k][j] = inside ? v[k0 + k][j] : 0;
        }
    }
}

/* A row lies in the registers of GROUP warps, K times 16 bytes per thread. GROUP is one, so that
 * warps do not wait for each other, or all warps of the block where a row is too long for one. */
template <class E, int K, int GROUP, bool RESIDUAL>
__global__ void __launch_bounds__(THREADS, 2) forward_rows(Forward<E> f) {
    constexpr int W = width<E>;
    int64_t t = static_cast<int64_t>(blockIdx.x) * (WARPS / GROUP) + this_warp() / GROUP;
    if (t >= f.T) return;
    // index among the threads of the row
    int first = static_cast<int>(threadIdx.x) % (GROUP * WARP);
    float v[K][W], sum[1] = {0}, squares[1] = {0};
    take_row<E, K, GROUP, RESIDUAL>(v, f, t, first);
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int j = 0; j < W; j++) sum[0] += v[k][j];
    if (!f.layer)
        sum[0] = 0;
    else if (GROUP == 1)
        sum[0] = warp_sum(sum[0]);
    else
        block_sum<1>(sum, shared<BlockSums<1>[2]>()[0]);
    float mean = sum[0] / static_cast<float>(f.C);
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int j = 0; j < W; j++) {
            float d = v[k][j] - mean;
            if (is_inside<E, K, GROUP>(f.C, first, k)) squares[0] = fmaf(d, d, squares[0]);
        }
    if (GROUP == 1)
        squares[0] = warp_sum(squares[0]);
    else
        block_sum<1>(squares, shared<BlockSums<1>[2]>()[1]);
    float rstd = store_statistics(f, t, mean, squares[0], first == 0);
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = column<E, GROUP>(first, k);
        if (!is_inside<E, K, GROUP>(f.C, first, k) || !f.y) continue;
        float g[W], b[W] = {0};
        load<float, W>(g, f.gamma + c);
        if (f.beta) load<float, W>(b, f.beta + c);
#pragma unroll
        for (int j = 0; j < W; j++) v[k][j] = fmaf((v[k][j] - mean) * rstd, g[j], b[j]);
        store<E, W>(f.y + t * f.ld + c, v[k]);
    }
}

/* y from given statistics: a warp for each row. */
template <class E, int W> __global__ void apply_rows(Forward<E> f) {
    int64_t t = static_cast<int64_t>(blockIdx.x) * WARPS + this_warp();
    if (t >= f.T) return;
    float mean = f.layer ? f.mean[t] : 0, rstd = f.rstd[t];
    for (int64_t c = this_lane() * W; c < f.C; c += WARP * W) {
        float v[W], g[W], b[W] = {0};
        load<E, W>(v, f.x + t * f.ld + c);
        load<float, W>(g, f.gamma + c);
        if (f.beta) load<float, W>(b, f.beta + c);
#pragma unroll
        for (int j = 0; j < W; j++) v[j] = fmaf((v[j] - mean) * rstd, g[j], b[j]);
        store<E, W>(f.y + t * f.ld + c, v);
    }
}

/* Number of features of the part that begins at feature i. */
__device__ __forceinline__ double features_from(int64_t i, int64_t C, int64_t part) {
    return static_cast<double>(i + part < C ? part : C - i);
}

/* Merges the statistics of the parts of each row, a thread for each token. The sum of squared
 * distances from the total mean is, over all parts, the sum of squared distances from the part's
 * mean plus (features of the part) (part's mean - total mean)^2. */
__global__ void merge(float *mean, float *rstd, const float *stats, int64_t C, int64_t part,
                      int64_t T, double eps) {
    int64_t t = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (t >= T) return;
    auto all = static_cast<double>(C);
    double m = 0, squares = 0;
    const float *s = stats + 2 * t;
    for (int64_t i = 0; i < C; i += part, s += 2 * T)
        m += features_from(i, C, part) * static_cast<double>(s[0]);
    m /= all;
    s = stats + 2 * t;
    for (int64_t i = 0; i < C; i += part, s += 2 * T) {
        double d = static_cast<double>(s[0]) - m;
        squares += static_cast<double>(s[1]) + features_from(i, C, part) * d * d;
    }
    if (mean) mean[t] = static_cast<float>(m);
    rstd[t] = static_cast<float>(1 / sqrt(squares / all + eps));
}

/* --- backward
 *
 * dx needs sums over a row, dgamma and dbeta need sums over tokens. A block takes a panel of
 * tokens, and each of its warps a run of the panel's rows, so a warp's row sums need no barrier. A
 * lane has the same columns of all rows of its warp, and the sums of columns stay in registers:
 *
 *                  rows of the panel     lane 0   lane 1   ...
 *     warp 0       0 ... 15              x, dy    x, dy        -> 2 sums over the warp -> dx
 *     warp 1       16 ... 31             x, dy    x, dy        -> 2 sums over the warp -> dx
 *     ...                                  |        |
 *       dgamma, dbeta of the lane's columns, added over the warps in order
 *                                        -> workspace[panel, 2, C] -> panels.cuh
 *
 * Asynchronous copies fetch rows into a ring of STAGES rows for each warp: the next row is in
 * flight while a row is summed, and takes no registers. A row is read from the ring twice, for the
 * sums and for dx, so that between rows only sums of columns stay in registers.
 *
 * Budget on an H200, C = 768 in bf16: at 4.2 TB/s a multiprocessor reads 24 bytes a ns, and the
 * latency of memory is some 1000 ns, so 24 KB must be in flight. 16 warps fit, each with at least
 * one row of 4.6 KB in flight: 74 KB.
 */
template <class E> struct Backward {
    E *dx; // NULL: only the sums are computed
    // [T,2] or NULL: the sums over each row of g = dy gamma, and of g h with h = (x - mean) rstd
    float *sums;
    const E *dy, *x;
    const float *mean, *rstd, *gamma;
    float *panels; // [panels, 2, C]
    int64_t T, C, ld, rows;
    float inverse_C; // 1 / features of the whole row
    bool layer;
};

template <class E> struct PanelRows {
    int64_t begin, end;
    __device__ explicit PanelRows(const Backward<E> &b) : begin(blockIdx.x * b.rows) {
        end = begin + b.rows < b.T ? begin + b.rows : b.T;
    }
};

/* The block takes one row at a time, in two passes; the sums of columns are in the workspace. */
template <class E> __global__ void backward_plain(Backward<E> b) {
    auto &sums = shared<BlockSums<2>[2]>();
    PanelRows<E> rows(b);
    float *dgamma = b.panels + blockIdx.x * 2 * b.C, *dbeta = dgamma + b.C;
    for (int64_t c = threadIdx.x; c < 2 * b.C; c += THREADS) dgamma[c] = 0;
    __syncthreads();
    for (int64_t t = rows.begin; t < rows.end; t++) {
        const E *x = b.x + t * b.ld, *dy = b.dy + t * b.ld;
        float mean = b.layer ? b.mean[t] : 0, rstd = b.rstd[t], s[2] = {0, 0};
        for (int64_t c = threadIdx.x; c < b.C; c += THREADS) {
            float h = (to_float(x[c]) - mean) * rstd, d = to_float(dy[c]), g = d * b.gamma[c];
            s[0] += g;
            s[1] = fmaf(g, h, s[1]);
            dgamma[c] = fmaf(d, h, dgamma[c]);
            dbeta[c] += d;
        }
        block_sum<2>(s, sums[t & 1]);
        if (b.sums && threadIdx.x == 0) b.sums[2 * t] = s[0], b.sums[2 * t + 1] = s[1];
        float mean_g = b.layer ? s[0] * b.inverse_C : 0, mean_gh = s[1] * b.inverse_C;
        for (int64_t c = threadIdx.x; c < b.C && b.dx; c += THREADS) {
            float h = (to_float(x[c]) - mean) * rstd, g = to_float(dy[c]) * b.gamma[c];
            E *dx = b.dx + t * b.ld + c;
            from_float(*dx, fmaf(rstd, g - mean_g - h * mean_gh, to_float(*dx)));
        }
    }
}

// warps of a block in which each warp has a run of rows; rows in the ring of a warp
enum { RUNS = 4, STAGES = 2 };

/* The shared memory of a block. GROUP warps share a row, with K words of 16 bytes per lane. GROUP
 * is one, so that warps do not wait for each other, or all warps of the block where a row is too
 * long for a ring. Words of neighbouring lanes are contiguous, and so are 16-byte parts of gamma
 * and of the sums, so that accesses have no bank conflicts. */
template <class E, int K, int GROUP> struct Ring {
    static constexpr int W = width<E>, PARTS = W / 4, LANES = GROUP * WARP;
    static constexpr int GROUPS = GROUP == 1 ? static_cast<int>(RUNS) : 1, THREADS = GROUPS * LANES;
    using Four = Vec<float, 4>;
    struct Row {
        Vec<E, W> x[K][LANES], dy[K][LANES], dx[K][LANES];
    };
    struct Sums {
        Four dgamma[K][PARTS][LANES], dbeta[K][PARTS][LANES];
    };
    union {
        Row rows[GROUPS][STAGES];
        Sums sums[GROUPS]; // used after all rows are done
    };
    Four gamma[K][PARTS][LANES];
};

/* The columns of a lane, those at column(lane, k) for k < K. */
template <class E, int K, int GROUP> struct Columns {
    using R = Ring<E, K, GROUP>;
    static constexpr int W = R::W, LANES = R::LANES;
    const Backward<E> &b;
    R &ring;
    int lane;
    float dgamma[K][W] = {}, dbeta[K][W] = {};

    __device__ __forceinline__ Columns(const Backward<E> &backward, R &shared_ring)
        : b(backward), ring(shared_ring), lane(static_cast<int>(threadIdx.x) % LANES) {}

    /* Begins to fetch gamma, for all groups of the block; zeros beyond the last column. */
    __device__ __forceinline__ void fetch_gamma() const {
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int part = 0; part < R::PARTS; part++)
                copy_async_first(shared_address(&ring.gamma[k][part][lane]),
                                 b.gamma + column<E, GROUP>(lane, k) + part * 4,
                                 is_inside<E, K, GROUP>(b.C, lane, k) ? 16 : 0);
    }

    /* Begins to fetch row t, with zeros beyond the last column, so that these columns add
     * nothing. */
    __device__ __forceinline__ void fetch(typename R::Row &to, int64_t t) const {
#pragma unroll
        for (int k = 0; k < K; k++) {
            int64_t at = t * b.ld + lane * W + k * LANES * W;
            int n = is_inside<E, K, GROUP>(b.C, lane, k) ? 16 : 0;
            copy_async_first(shared_address(&to.x[k][lane]), b.x + at, n);
            copy_async_first(shared_address(&to.dy[k][lane]), b.dy + at, n);
            if (b.dx) copy_async_first(shared_address(&to.dx[k][lane]), b.dx + at, n);
        }
    }

    __device__ __forceinline__ float gamma(int k, int j) const {
        return ring.gamma[k][j / 4][lane].elem[j % 4];
    }

    /* s = the sums of g = dy gamma and of g h over this lane's columns of a row; also adds the row
     * to the lane's sums for dgamma and dbeta. */
    __device__ __forceinline__ void sum(float (&s)[2], const typename R::Row &row, float mean,
                                        float rstd) {
        s[0] = s[1] = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            float x[W], dy[W];
            unpack(x, row.x[k][lane]), unpack(dy, row.dy[k][lane]);
#pragma unroll
            for (int j = 0; j < W; j++) {
                float h = (x[j] - mean) * rstd, d = dy[j], g = d * gamma(k, j);
                s[0] += g;
                s[1] = fmaf(g, h, s[1]);
                dgamma[k][j] = fmaf(d, h, dgamma[k][j]);
                dbeta[k][j] += d;
            }
        }
    }

    __device__ __forceinline__ void apply(const typename R::Row &row, int64_t t, float mean,
                                          float rstd, float mean_g, float mean_gh) const {
#pragma unroll
        for (int k = 0; k < K; k++) {
            float x[W], dy[W], dx[W];
            unpack(x, row.x[k][lane]), unpack(dy, row.dy[k][lane]);
            unpack(dx, row.dx[k][lane]);
#pragma unroll
            for (int j = 0; j < W; j++) {
                float h = (x[j] - mean) * rstd, g = dy[j] * gamma(k, j);
                dx[j] = fmaf(rstd, g - mean_g - h * mean_gh, dx[j]);
            }
            if (is_inside<E, K, GROUP>(b.C, lane, k))
                store<E, W>(b.dx + (t * b.ld + lane * W + k * LANES * W), dx);
        }
    }

    /* Stores the panel's sums of columns: those of the block's runs of rows, added in order. */
    __device__ __forceinline__ void finish() {
        typename R::Sums &own = ring.sums[static_cast<int>(threadIdx.x) / LANES];
        __syncthreads(); // the sums overwrite the rows of the ring, all of which have arrived
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int j = 0; j < W; j++) {
                own.dgamma[k][j / 4][lane].elem[j % 4] = dgamma[k][j];
                own.dbeta[k][j / 4][lane].elem[j % 4] = dbeta[k][j];
            }
        __syncthreads();
        float *panel = b.panels + blockIdx.x * 2 * b.C;
        for (int i = static_cast<int>(threadIdx.x); i < K * LANES * W / 4; i += R::THREADS) {
            int k = i * 4 / (LANES * W), c = i * 4, of = c / W % LANES, part = c % W / 4;
            if (c >= static_cast<int>(b.C)) continue;
            float g[4] = {0}, d[4] = {0};
#pragma unroll
            for (int w = 0; w < R::GROUPS; w++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    g[j] += ring.sums[w].dgamma[k][part][of].elem[j];
                    d[j] += ring.sums[w].dbeta[k][part][of].elem[j];
                }
            store<float, 4>(panel + c, g);
            store<float, 4>(panel + b.C + c, d);
        }
    }
};

/* Blocks that a multiprocessor of Hopper shall hold: as many as fit into its 228 KB of shared
 * memory, of which each block takes 1 KB more than its own; at most 4, which leave 128 registers
 * per thread. */
template <class R> constexpr int blocks_of() {
    return std::min(4, (228 << 10) / (static_cast<int>(sizeof(R)) + (1 << 10)));
}

template <class E, int K, int GROUP>
__global__ void __launch_bounds__((Ring<E, K, GROUP>::THREADS),
                                  GROUP == 1 ? blocks_of<Ring<E, K, GROUP>>() : 1)
    backward_rows(Backward<E> b) {
    using R = Ring<E, K, GROUP>;
    R &ring = *dynamic_shared<R>();
    Columns<E, K, GROUP> columns(b, ring);
    PanelRows<E> rows(b);
    int group = static_cast<int>(threadIdx.x) / R::LANES;
    int64_t run = (b.rows + R::GROUPS - 1) / R::GROUPS, begin = rows.begin + group * run,
            end = begin + run < rows.end ? begin + run : rows.end;
    typename R::Row *stages = ring.rows[group];
    if (group == 0) columns.fetch_gamma();
    copy_commit();
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
        if (begin + i < end) columns.fetch(stages[i], begin + i);
        copy_commit();
    }
    copy_wait<STAGES>();
    __syncthreads(); // gamma is complete for all threads of the block
    int stage = 0;
    for (int64_t first = begin; first < end; first += WARP) {
        // lane i has the statistics of row first + i
        bool has_row = first + this_lane() < end;
        float means = has_row && b.layer ? b.mean[first + this_lane()] : 0;
        float rstds = has_row ? b.rstd[first + this_lane()] : 0;
        int n = end - first < WARP ? static_cast<int>(end - first) : static_cast<int>(WARP);
        for (int i = 0; i < n; i++, stage = (stage + 1) % STAGES) {
            int64_t t = first + i;
            float mean = __shfl_sync(static_cast<unsigned>(FULL), means, i), s[2],
                  rstd = __shfl_sync(static_cast<unsigned>(FULL), rstds, i);
            copy_wait<STAGES - 1>(); // a lane reads what it fetched itself
            columns.sum(s, stages[stage], mean, rstd);
            if constexpr (GROUP == 1) {
                s[0] = warp_sum(s[0]), s[1] = warp_sum(s[1]);
                // else the compiler would keep the row in registers instead of reading it again
                __syncwarp();
            } else {
                block_sum<2>(s, shared<BlockSums<2>[2]>()[i & 1]);
            }
            if (b.sums && columns.lane == 0) b.sums[2 * t] = s[0], b.sums[2 * t + 1] = s[1];
            if (b.dx)
                columns.apply(stages[stage], t, mean, rstd, b.layer ? s[0] * b.inverse_C : 0,
                              s[1] * b.inverse_C);
            if (t + STAGES < end) columns.fetch(stages[stage], t + STAGES);
            copy_commit();
        }
    }
    columns.finish();
}

/* dx from given sums: a warp for each row. */
template <class E, int W> __global__ void backward_apply_rows(Backward<E> b) {
    int64_t t = static_cast<int64_t>(blockIdx.x) * WARPS + this_warp();
    if (t >= b.T) return;
    float mean = b.layer ? b.mean[t] : 0, rstd = b.rstd[t];
    float mean_g = b.layer ? b.sums[2 * t] * b.inverse_C : 0,
          mean_gh = b.sums[2 * t + 1] * b.inverse_C;
    for (int64_t c = this_lane() * W; c < b.C; c += WARP * W) {
        float x[W], d[W], dx[W], g[W];
        load<E, W>(x, b.x + t * b.ld + c);
        load<E, W>(d, b.dy + t * b.ld + c);
        load<E, W>(dx, b.dx + t * b.ld + c);
        load<float, W>(g, b.gamma + c);
#pragma unroll
        for (int j = 0; j < W; j++) {
            float h = (x[j] - mean) * rstd;
            dx[j] = fmaf(rstd, d[j] * g[j] - mean_g - h * mean_gh, dx[j]);
        }
        store<E, W>(b.dx + t * b.ld + c, dx);
    }
}

/* --- QK-norm: a warp for each head. Per token in bf16, with qkv rows of N = (H + 2 Hkv) D: forward
 * 4N bytes, dx 6N, the weight's gradient 4N without values. */

template <class E> struct Heads {
    E *out; // y or dx
    const E *dy, *x;
    const float *gamma; // [2 D]
    float *panels;      // [panels, 2, D]
    int64_t T, H, Hkv, D, rows;
    float eps;
    __device__ int64_t all() const { return H + 2 * Hkv; } // heads of a token
};

/* rstd of a head. */
template <class E, int W>
__device__ __forceinline__ float head_rstd(const Heads<E> &q, const E *x) {
    float squares = 0;
    for (int64_t c = this_lane() * W; c < q.D; c += WARP * W) {
        float v[W];
        load<E, W>(v, x + c);
#pragma unroll
        for (int j = 0; j < W; j++) squares = fmaf(v[j], v[j], squares);
    }
    return 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(q.D) + q.eps);
}

/* BACKWARD: dx = rstd (g - h mean(g h)) with g = dy gamma, h = x rstd; else y = h gamma. Values are
 * copied. */
template <class E, int W, bool BACKWARD> __global__ void head_rows(Heads<E> q) {
    int64_t row = static_cast<int64_t>(blockIdx.x) * WARPS + this_warp(), head = row % q.all();
    if (row >= q.T * q.all()) return;
    const E *x = q.x + row * q.D, *from = (BACKWARD ? q.dy : q.x) + row * q.D;
    const float *gamma = q.gamma + (head < q.H ? 0 : q.D);
    bool value = head >= q.H + q.Hkv;
    float rstd = value ? 0 : head_rstd<E, W>(q, x), mean_gh = 0;
    for (int64_t c = this_lane() * W; c < q.D && BACKWARD && !value; c += WARP * W) {
        float v[W], d[W], g[W];
        load<E, W>(v, x + c), load<E, W>(d, from + c), load<float, W>(g, gamma + c);
#pragma unroll
        for (int j = 0; j < W; j++) mean_gh = fmaf(d[j] * g[j], v[j] * rstd, mean_gh);
    }
    if (BACKWARD) mean_gh = warp_sum(mean_gh) / static_cast<float>(q.D);
    for (int64_t c = this_lane() * W; c < q.D; c += WARP * W) {
        float v[W], d[W], g[W];
        load<E, W>(d, from + c);
        if (!value) {
            load<E, W>(v, x + c), load<float, W>(g, gamma + c);
#pragma unroll
            for (int j = 0; j < W; j++)
                d[j] = BACKWARD ? rstd * (d[j] * g[j] - v[j] * rstd * mean_gh) : v[j] * rstd * g[j];
        }
        store<E, W>(q.out + row * q.D + c, d);
    }
}

// columns of a lane, and of a block, in the gradient of the weight
enum { HEAD_WORDS = 8, HEAD_COLUMNS = HEAD_WORDS * WARP };
struct HeadSums {
    float of[WARPS][2][HEAD_COLUMNS]; // of queries and of keys
};

/* The sums of dy h over the query heads and over the key heads of a panel of tokens. A warp takes
 * every WARPS-th head; then the warps are added in order. */
template <class E> __global__ void head_weight(Heads<E> q) {
    auto &sums = shared<HeadSums>();
    int64_t both = q.H + q.Hkv, begin = blockIdx.x * q.rows * both,
            end = (blockIdx.x + 1) * q.rows * both, first = blockIdx.y * HEAD_COLUMNS;
    float s[2][HEAD_WORDS] = {{0}};
    if (end > q.T * both) end = q.T * both;
    for (int64_t i = begin + this_warp(); i < end; i += WARPS) {
        int64_t at = (i / both * q.all() + i % both) * q.D;
        bool key = i % both >= q.H;
        float rstd = head_rstd<E, 1>(q, q.x + at);
#pragma unroll
        for (int j = 0; j < HEAD_WORDS; j++) {
            int64_t c = first + j * WARP + this_lane();
            if (c >= q.D) continue;
            float h = to_float(q.x[at + c]) * rstd, d = to_float(q.dy[at + c]);
            s[0][j] = fmaf(key ? 0 : d, h, s[0][j]); // constant indices: s stays in registers
            s[1][j] = fmaf(key ? d : 0, h, s[1][j]);
        }
    }
#pragma unroll
    for (int j = 0; j < HEAD_WORDS; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) sums.of[this_warp()][k][j * WARP + this_lane()] = s[k][j];
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < 2 * HEAD_COLUMNS; i += THREADS) {
        int k = i / HEAD_COLUMNS, c = i % HEAD_COLUMNS;
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += sums.of[w][k][c];
        if (first + c < q.D) q.panels[(2 * blockIdx.x + k) * q.D + first + c] = sum;
    }
}

/* --- launchers */

void merge_of(Team *, const Norm *n, float *mean, float *rstd, const float *stats) {
    if (n->T > 0)
        LAUNCH(merge, blocks_for(n->T, THREADS), THREADS, 0, mean, rstd, stats,
               n->C_all ? n->C_all : n->C, norm_part(n), n->T, static_cast<double>(n->eps));
}

using WordsOfALane = std::make_integer_sequence<int, 8>; // 0 .. 7: K - 1

template <class E> struct Launchers {
    static constexpr int W = width<E>;
    static const E *in(const Act *x) { return static_cast<const E *>(x); }
    static E *out(Act *x) { return static_cast<E *>(x); }

    static bool aligned(const Norm *n, const void *a, const void *b, const void *c) {
        int64_t ld = n->ld ? n->ld : n->C;
        return whole_words<E>(a, n->C) && whole_words<E>(b, ld) && whole_words<E>(c, n->C) &&
               whole_words<float>(n->gamma, 0) && whole_words<float>(n->beta, 0);
    }

    static Forward<E> forward(const Norm *n, Act *y, float *mean, float *rstd, const Act *x) {
        Forward<E> f;
        f.stream = nullptr, f.addend = nullptr, f.bias = nullptr;
        f.y = out(y), f.mean = mean, f.rstd = rstd, f.stats = nullptr, f.x = in(x);
        f.gamma = n->gamma, f.beta = n->beta;
        f.T = n->T, f.C = n->C, f.ld = n->ld ? n->ld : n->C;
        f.eps = n->eps, f.layer = n->kind == NORM_LAYER;
        return f;
    }

    template <bool RESIDUAL, int K, int GROUP> static bool launch_rows(const Forward<E> &f) {
        if (f.C > static_cast<int64_t>(K) * GROUP * WARP * W) return false;
        LAUNCH((forward_rows<E, K, GROUP, RESIDUAL>), blocks_for(f.T, WARPS / GROUP), THREADS, 0,
               f);
        return true;
    }

    /* The fewest words for each lane of a warp, else of a block; false: rows are too long. */
    template <bool RESIDUAL, int... LESS>
    static bool launch_shortest(const Forward<E> &f, std::integer_sequence<int, LESS...>) {
        return (launch_rows<RESIDUAL, LESS + 1, 1>(f) || ...) ||
               launch_rows<RESIDUAL, 2, WARPS>(f) || launch_rows<RESIDUAL, 4, WARPS>(f) ||
               launch_rows<RESIDUAL, 8, WARPS>(f);
    }

    template <bool RESIDUAL> static void launch_forward(const Norm *n, const Forward<E> &f) {
        bool fits = aligned(n, f.x, f.y, f.x) && whole_words<E>(f.addend, 0) &&
                    whole_words<float>(f.bias, 0);
        if (f.T == 0) return;
        if (f.C == 0 || !fits || !launch_shortest<RESIDUAL>(f, WordsOfALane()))
            LAUNCH((forward_plain<E, RESIDUAL>), blocks_for(f.T, WARPS), THREADS, 0, f);
    }

    static void forward_of(Team *, const Norm *n, Act *y, float *mean, float *rstd, const Act *x) {
        launch_forward<false>(n, forward(n, y, mean, rstd, x));
    }

    static void residual_of(Team *, const Norm *n, Act *stream, const Act *addend,
                            const float *bias, Act *y, float *mean, float *rstd) {
        Forward<E> f = forward(n, y, mean, rstd, stream);
        f.stream = out(stream), f.addend = in(addend), f.bias = bias;
        launch_forward<true>(n, f);
    }

    static void statistics_of(Team *, const Norm *n, float *stats, const Act *x) {
        Forward<E> f = forward(n, nullptr, nullptr, nullptr, x);
        f.stats = stats;
        launch_forward<false>(n, f);
    }

    static void apply_of(Team *, const Norm *n, Act *y, const Act *x, const float *mean,
                         const float *rstd) {
        Forward<E> f = forward(n, y, const_cast<float *>(mean), const_cast<float *>(rstd), x);
        if (f.T == 0 || f.C == 0) return;
        unsigned blocks = blocks_for(f.T, WARPS);
        by_words<E>(aligned(n, x, y, x),
                    [&](auto w) { LAUNCH((apply_rows<E, w>), blocks, THREADS, 0, f); });
    }

    static Backward<E> backward(const Norm *n, Act *dx, const Act *dy, const Act *x,
                                const float *mean, const float *rstd) {
        Backward<E> b;
        b.dx = out(dx), b.sums = nullptr, b.dy = in(dy), b.x = in(x);
        b.mean = mean, b.rstd = rstd, b.gamma = n->gamma;
        b.panels = static_cast<float *>(n->workspace);
        b.T = n->T, b.C = n->C, b.ld = n->ld ? n->ld : n->C, b.rows = norm_panel_rows(n->T);
        b.inverse_C = 1.0f / static_cast<float>(n->C_all ? n->C_all : n->C);
        b.layer = n->kind == NORM_LAYER;
        return b;
    }

    template <int K, int GROUP> static bool launch_panels(const Backward<E> &b, unsigned panels) {
        using R = Ring<E, K, GROUP>;
        if (b.C > static_cast<int64_t>(K) * R::LANES * W || sizeof(R) > device_shared())
            return false;
        LAUNCH((backward_rows<E, K, GROUP>), panels, R::THREADS, sizeof(R), b);
        return true;
    }

    /* The fewest words for each lane of a warp, else of a block; false: rows are too long. */
    template <int... LESS>
    static bool launch_shortest(const Backward<E> &b, unsigned panels,
                                std::integer_sequence<int, LESS...>) {
        return (launch_panels<LESS + 1, 1>(b, panels) || ...) ||
               launch_panels<2, WARPS>(b, panels) || launch_panels<4, WARPS>(b, panels);
    }

    static void launch_backward(const Norm *n, const Backward<E> &b) {
        if (b.T == 0 || b.C == 0) return;
        unsigned panels = blocks_for(b.T, b.rows);
        if (!aligned(n, b.x, b.dx, b.dy) || !launch_shortest(b, panels, WordsOfALane()))
            LAUNCH((backward_plain<E>), panels, THREADS, 0, b);
        launch_add_panels(n->dgamma, n->dbeta, b.panels, panels, 2 * b.C, b.C);
    }

    static void backward_of(Team *, const Norm *n, Act *dx, const Act *dy, const Act *x,
                            const float *mean, const float *rstd) {
        launch_backward(n, backward(n, dx, dy, x, mean, rstd));
    }

    static void backward_sums_of(Team *, const Norm *n, float *sums, const Act *dy, const Act *x,
                                 const float *mean, const float *rstd) {
        Backward<E> b = backward(n, nullptr, dy, x, mean, rstd);
        b.sums = sums;
        launch_backward(n, b);
        if (b.C == 0) device_zero(sums, static_cast<size_t>(2 * b.T) * sizeof *sums);
    }

    static void backward_apply_of(Team *, const Norm *n, Act *dx, const Act *dy, const Act *x,
                                  const float *mean, const float *rstd, const float *sums) {
        Backward<E> b = backward(n, dx, dy, x, mean, rstd);
        b.sums = const_cast<float *>(sums);
        if (b.T == 0 || b.C == 0) return;
        unsigned blocks = blocks_for(b.T, WARPS);
        by_words<E>(aligned(n, x, dx, dy),
                    [&](auto w) { LAUNCH((backward_apply_rows<E, w>), blocks, THREADS, 0, b); });
    }

    static Heads<E> heads(const QkNorm *n, Act *to, const Act *dy, const Act *x) {
        Heads<E> q;
        q.out = out(to), q.dy = in(dy), q.x = in(x), q.gamma = n->gamma;
        q.panels = static_cast<float *>(n->workspace);
        q.T = n->T, q.H = n->H, q.Hkv = n->Hkv, q.D = n->D, q.rows = norm_panel_rows(n->T);
        q.eps = n->eps;
        return q;
    }

    template <bool BACKWARD> static void launch_heads(const Heads<E> &q) {
        bool fits = whole_words<E>(q.x, q.D) && whole_words<E>(q.out, q.D) &&
                    whole_words<E>(q.dy, q.D) && whole_words<float>(q.gamma, q.D);
        unsigned blocks = blocks_for(q.T * (q.H + 2 * q.Hkv), WARPS);
        if (blocks > 0)
            by_words<E>(
                fits, [&](auto w) { LAUNCH((head_rows<E, w, BACKWARD>), blocks, THREADS, 0, q); });
    }

    static void qk_norm_of(Team *, const QkNorm *n, Act *y, const Act *x) {
        launch_heads<false>(heads(n, y, nullptr, x));
    }

    static void qk_norm_backward_of(Team *, const QkNorm *n, Act *dx, const Act *dy, const Act *x) {
        launch_heads<true>(heads(n, dx, dy, x));
    }

    static void qk_norm_weight_of(Team *, const QkNorm *n, const Act *dy, const Act *x) {
        Heads<E> q = heads(n, nullptr, dy, x);
        unsigned panels = blocks_for(q.T, q.rows);
        if (q.T == 0) return;
        LAUNCH((head_weight<E>), dim3(panels, blocks_for(q.D, HEAD_COLUMNS)), THREADS, 0, q);
        launch_add_panels(n->dgamma, n->dgamma + q.D, q.panels, panels, 2 * q.D, q.D);
    }

    static void fill(Kernels *k) {
        k->qk_norm = qk_norm_of;
        k->qk_norm_backward = qk_norm_backward_of;
        k->qk_norm_weight_backward = qk_norm_weight_of;
        k->norm_forward = forward_of;
        k->residual_norm = residual_of;
        k->norm_backward = backward_of;
        k->norm_statistics = statistics_of;
        k->norm_merge = merge_of;
        k->norm_apply = apply_of;
        k->norm_backward_sums = backward_sums_of;
        k->norm_backward_apply = backward_apply_of;
    }
};

} // namespace

extern "C" void norm_cuda(Kernels *k, bool is_bf16) {
    fill_by_type<Launchers>(k, is_bf16);
}
