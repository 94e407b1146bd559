/* norm on CUDA. Bound by memory; bytes per token in bf16, where each number of x, y, dy, dx is
 * moved once:
 *
 *     forward    read 2C, write 2C          backward  read 6C, write 2C
 *     residual   read 4C, write 4C          residual add and norm fused: saves reading the stream
 *     cut rows   the statistics read 2C more, the sums of backward 4C more
 *
 * Each direction, from plain to fast: `_plain` goes over a row in single elements as often as the
 * formula does, for rows that are not aligned; the fast one keeps a row in registers between the
 * sums and their use. With a residual each makes the elements of the stream first, and goes on with
 * what those elements hold, not with the float before it was rounded: backward has nothing but the
 * elements, and so both ways to the stream's norm have the same bits.
 */
#include "layers/cuda/launch.cuh"
#include "layers/cuda/panels.cuh"

extern "C" {
#include "layers/cuda/families.h"
#include "layers/cuda/sizes.h"
}

namespace {

enum { THREADS = 256, WARPS = THREADS / WARP };

/* --- forward */

template <class E> struct Forward {
    E *stream;          // of a residual: x, before addend and bias are there
    const E *addend;    // of a residual
    const float *bias;  // of a residual; or NULL
    E *y;               // NULL: statistics only
    float *mean, *rstd; // each may be NULL
    float *stats;       // [T,2] or NULL
    const E *x;
    const float *gamma, *beta;
    int64_t T, C, ld;
    float eps;
    bool layer; // else RMS: the mean is 0
};

/* What is known of a row when its sums are there; lane 0 of its first warp writes. */
template <class E>
__device__ __forceinline__ float keep(const Forward<E> &f, int64_t t, float mean, float squares,
                                      bool writes) {
    float rstd = 1.0f / sqrtf(squares / static_cast<float>(f.C) + f.eps);
    if (!writes) return rstd;
    if (f.stats) f.stats[2 * t] = mean, f.stats[2 * t + 1] = squares;
    if (f.mean) f.mean[t] = mean;
    if (f.rstd) f.rstd[t] = rstd;
    return rstd;
}

template <int W, class E> __device__ __forceinline__ Words<E, W> *words_at(E *p) {
    return reinterpret_cast<Words<E, W> *>(p);
}
template <int W, class E> __device__ __forceinline__ const Words<E, W> *words_at(const E *p) {
    return reinterpret_cast<const Words<E, W> *>(p);
}

/* x = (addend + x) + bias, in the dtype of x. */
template <class E, int W>
__device__ __forceinline__ void add_residual(Words<E, W> &x, const Words<E, W> &addend,
                                             const float *bias) {
    float b[W] = {0};
    if (bias) load<float, W>(b, bias);
#pragma unroll
    for (int j = 0; j < W; j++) {
        float v = to_float(addend.at[j]) + to_float(x.at[j]);
        from_float(x.at[j], bias ? v + b[j] : v);
    }
}

/* A warp for each row, three times over it; a lane makes those elements of a stream that it reads
 * later. */
template <class E, bool RESIDUAL> __global__ void forward_plain(Forward<E> f) {
    int64_t t = static_cast<int64_t>(blockIdx.x) * WARPS + this_warp();
    if (t >= f.T) return;
    for (int64_t c = this_lane(); c < f.C && RESIDUAL; c += WARP) {
        add_residual<E, 1>(*words_at<1>(f.stream + t * f.ld + c),
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
    float rstd = keep(f, t, mean, warp_sum(squares), this_lane() == 0);
    for (int64_t c = this_lane(); c < f.C && f.y; c += WARP) {
        float h = (to_float(x[c]) - mean) * rstd;
        from_float(f.y[t * f.ld + c], fmaf(h, f.gamma[c], f.beta ? f.beta[c] : 0));
    }
}

/* Words of a residual that are on their way at once, of the stream and of its addend: more of them,
 * as floats, would leave registers for one block alone. */
enum { BATCH = 2 };

/* v = row t of x; of a residual, what the elements of the stream hold once they are whole. A batch
 * is read before any of it is written: the compiler cannot know that rows do not overlap, and would
 * wait for each element in turn. */
template <class E, int K, int GROUP, bool RESIDUAL>
__device__ __forceinline__ void take_row(float (&v)[K][width<E>], const Forward<E> &f, int64_t t,
                                         int first) {
    constexpr int W = width<E>, AT_ONCE = K < BATCH ? K : BATCH;
#pragma unroll
    for (int k0 = 0; k0 < K; k0 += AT_ONCE) {
        Words<E, W> x[AT_ONCE] = {}, addend[AT_ONCE] = {};
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int64_t c = static_cast<int64_t>((k0 + k) * GROUP * WARP + first) * W;
            if (c < f.C) x[k] = *words_at<W>(f.x + t * f.ld + c);
            if (c < f.C && RESIDUAL) addend[k] = *words_at<W>(f.addend + t * f.ld + c);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int64_t c = static_cast<int64_t>((k0 + k) * GROUP * WARP + first) * W;
            if (c < f.C && RESIDUAL) {
                add_residual<E, W>(x[k], addend[k], f.bias ? f.bias + c : nullptr);
                *words_at<W>(f.stream + t * f.ld + c) = x[k];
            }
#pragma unroll
            for (int j = 0; j < W; j++) v[k0 + k][j] = to_float(x[k].at[j]);
        }
    }
}

/* A row lies in the registers of `group` warps, K times 16 bytes in each thread: one warp, so that
 * warps do not wait for each other; all of the block's where a row is too long for that. */
template <class E, int K, int GROUP, bool RESIDUAL>
__global__ void __launch_bounds__(THREADS, 2) forward_rows(Forward<E> f) {
    constexpr int W = width<E>;
    int64_t t = static_cast<int64_t>(blockIdx.x) * (WARPS / GROUP) + this_warp() / GROUP;
    if (t >= f.T) return;
    int first = static_cast<int>(threadIdx.x) % (GROUP * WARP); // of the row's threads
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
            if ((k * GROUP * WARP + first) * W < f.C) squares[0] = fmaf(d, d, squares[0]);
        }
    if (GROUP == 1)
        squares[0] = warp_sum(squares[0]);
    else
        block_sum<1>(squares, shared<BlockSums<1>[2]>()[1]);
    float rstd = keep(f, t, mean, squares[0], first == 0);
#pragma unroll
    for (int k = 0; k < K; k++) {
        int64_t c = static_cast<int64_t>(k * GROUP * WARP + first) * W;
        if (c >= f.C || !f.y) continue;
        float g[W], b[W] = {0};
        load<float, W>(g, f.gamma + c);
        if (f.beta) load<float, W>(b, f.beta + c);
#pragma unroll
        for (int j = 0; j < W; j++) v[k][j] = fmaf((v[k][j] - mean) * rstd, g[j], b[j]);
        store<E, W>(f.y + t * f.ld + c, v[k]);
    }
}

/* y of given statistics: a warp for each row. */
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

/* Features of each part of a row; they come as an argument of the kernel, whose place is
 * limited. */
enum { MAX_PARTS = 256 };
struct Counts {
    int64_t of[MAX_PARTS];
};

/* Distances from the mean of all are those from a part's own mean, and the distance of that mean. A
 * thread for each token. */
__global__ void merge(float *mean, float *rstd, const float *parts, Counts counts, int n_parts,
                      int64_t T, double eps) {
    int64_t t = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (t >= T) return;
    double count = 0, m = 0, squares = 0;
    for (int i = 0; i < n_parts; i++) {
        double n = static_cast<double>(counts.of[i]);
        count += n;
        m += n * static_cast<double>(parts[2 * (i * T + t)]);
    }
    m /= count;
    for (int i = 0; i < n_parts; i++) {
        double d = static_cast<double>(parts[2 * (i * T + t)]) - m;
        squares += static_cast<double>(parts[2 * (i * T + t) + 1]) +
                   static_cast<double>(counts.of[i]) * d * d;
    }
    if (mean) mean[t] = static_cast<float>(m);
    rstd[t] = static_cast<float>(1 / sqrt(squares / count + eps));
}

/* --- backward
 *
 * dx wants sums over a row, dgamma and dbeta sums over tokens. So a block takes a panel of tokens;
 * each of its threads keeps the same columns for all of them, and the sums of columns stay in
 * registers:
 *
 *                  thread 0   thread 1   ...
 *     tokens 0-3   dy, x      dy, x           -> 8 sums over the block -> dx of 4 rows
 *     tokens 4-7   dy, x      dy, x           -> 8 sums over the block -> dx of 4 rows
 *     ...            |          |
 *                  dgamma, dbeta of its columns -> workspace[panel, 2, C] -> panels.cuh
 */
template <class E> struct Backward {
    E *dx;       // NULL: only the sums
    float *sums; // [T,2] or NULL: of each row g = dy gamma, and g h with h = (x - mean) rstd
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

/* A row at a time, twice over it; the sums of columns go on in the workspace. */
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

enum { MAX_BACKWARD_THREADS = 256 }; // of which each may have 255 registers

/* Rows whose sums are taken together: as many as registers hold. */
template <int K> constexpr int batch = K == 1 ? 4 : 1;

/* Words of these rows, as they lie in memory: so they take the fewest registers until their sums
 * are there. All that the rows need is on its way at once: were dx fetched when the sums are there,
 * memory would wait for the block's barrier. */
template <class E, int K> struct Rows {
    Words<E, width<E>> x[batch<K>][K], dy[batch<K>][K], dx[batch<K>][K];
};

template <class E, int K>
__device__ __forceinline__ void load_rows(Rows<E, K> &r, const Backward<E> &b, int64_t t,
                                          int64_t end) {
    constexpr int W = width<E>;
#pragma unroll
    for (int i = 0; i < batch<K>; i++)
#pragma unroll
        for (int k = 0; k < K; k++) {
            int64_t c = static_cast<int64_t>(k * blockDim.x + threadIdx.x) * W;
            if (t + i >= end || c >= b.C) continue;
            r.x[i][k] = *reinterpret_cast<const Words<E, W> *>(b.x + (t + i) * b.ld + c);
            r.dy[i][k] = *reinterpret_cast<const Words<E, W> *>(b.dy + (t + i) * b.ld + c);
            if (b.dx)
                r.dx[i][k] = *reinterpret_cast<const Words<E, W> *>(b.dx + (t + i) * b.ld + c);
        }
}

template <class E, int K>
__global__ void __launch_bounds__(MAX_BACKWARD_THREADS) backward_rows(Backward<E> b) {
    constexpr int W = width<E>, BATCH = batch<K>;
    auto &sums = shared<BlockSums<2 * BATCH>[2]>();
    PanelRows<E> rows(b);
    float gamma[K][W], dgamma[K][W], dbeta[K][W];
#pragma unroll
    for (int k = 0; k < K; k++) {
        int64_t c = static_cast<int64_t>(k * blockDim.x + threadIdx.x) * W;
#pragma unroll
        for (int j = 0; j < W; j++) gamma[k][j] = dgamma[k][j] = dbeta[k][j] = 0;
        if (c < b.C) load<float, W>(gamma[k], b.gamma + c);
    }
    int turn = 0;
    for (int64_t t = rows.begin; t < rows.end; t += BATCH, turn ^= 1) {
        Rows<E, K> r = {};
        float mean[BATCH], rstd[BATCH], s[2 * BATCH];
        load_rows(r, b, t, rows.end);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            bool there = t + i < rows.end;
            mean[i] = there && b.layer ? b.mean[t + i] : 0, rstd[i] = there ? b.rstd[t + i] : 0;
            s[2 * i] = s[2 * i + 1] = 0;
#pragma unroll
            for (int k = 0; k < K; k++) {
                if (!there || static_cast<int64_t>(k * blockDim.x + threadIdx.x) * W >= b.C)
                    continue;
#pragma unroll
                for (int j = 0; j < W; j++) {
                    float h = (to_float(r.x[i][k].at[j]) - mean[i]) * rstd[i];
                    float d = to_float(r.dy[i][k].at[j]), g = d * gamma[k][j];
                    s[2 * i] += g;
                    s[2 * i + 1] = fmaf(g, h, s[2 * i + 1]);
                    dgamma[k][j] = fmaf(d, h, dgamma[k][j]);
                    dbeta[k][j] += d;
                }
            }
        }
        block_sum<2 * BATCH>(s, sums[turn]);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (t + i >= rows.end) continue;
            if (b.sums && threadIdx.x == 0)
                b.sums[2 * (t + i)] = s[2 * i], b.sums[2 * (t + i) + 1] = s[2 * i + 1];
            float mean_g = b.layer ? s[2 * i] * b.inverse_C : 0,
                  mean_gh = s[2 * i + 1] * b.inverse_C;
#pragma unroll
            for (int k = 0; k < K; k++) {
                int64_t c = static_cast<int64_t>(k * blockDim.x + threadIdx.x) * W;
                if (c >= b.C || !b.dx) continue;
                float dx[W];
#pragma unroll
                for (int j = 0; j < W; j++) {
                    float h = (to_float(r.x[i][k].at[j]) - mean[i]) * rstd[i];
                    float g = to_float(r.dy[i][k].at[j]) * gamma[k][j];
                    dx[j] = fmaf(rstd[i], g - mean_g - h * mean_gh, to_float(r.dx[i][k].at[j]));
                }
                store<E, W>(b.dx + (t + i) * b.ld + c, dx);
            }
        }
    }
    float *panel = b.panels + blockIdx.x * 2 * b.C;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int64_t c = static_cast<int64_t>(k * blockDim.x + threadIdx.x) * W;
        if (c >= b.C) continue;
        store<float, W>(panel + c, dgamma[k]);
        store<float, W>(panel + b.C + c, dbeta[k]);
    }
}

/* dx of given sums: a warp for each row. */
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

/* --- launchers */

void merge_of(const Norm *n, float *mean, float *rstd, const float *parts, const int64_t *counts,
              int n_parts) {
    Counts c;
    if (n_parts > MAX_PARTS) die("statistics of norm: more than %d parts of a row", MAX_PARTS);
    for (int i = 0; i < n_parts; i++) c.of[i] = counts[i];
    if (n->T > 0)
        LAUNCH(merge, blocks_for(n->T, THREADS), THREADS, 0, mean, rstd, parts, c, n_parts, n->T,
               static_cast<double>(n->eps));
}

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

    template <bool RESIDUAL, int K, int GROUP> static void launch_rows(const Forward<E> &f) {
        LAUNCH((forward_rows<E, K, GROUP, RESIDUAL>), blocks_for(f.T, WARPS / GROUP), THREADS, 0,
               f);
    }

    template <bool RESIDUAL> static void launch_forward(const Norm *n, const Forward<E> &f) {
        int64_t words = (f.C + W - 1) / W; // of 16 bytes
        bool fits = aligned(n, f.x, f.y, f.x) && whole_words<E>(f.addend, 0) &&
                    whole_words<float>(f.bias, 0);
        if (f.T == 0) return;
        if (f.C == 0 || words > THREADS * 8 || !fits)
            LAUNCH((forward_plain<E, RESIDUAL>), blocks_for(f.T, WARPS), THREADS, 0, f);
        else if (words <= WARP)
            launch_rows<RESIDUAL, 1, 1>(f);
        else if (words <= WARP * 2)
            launch_rows<RESIDUAL, 2, 1>(f);
        else if (words <= WARP * 4)
            launch_rows<RESIDUAL, 4, 1>(f);
        else if (words <= WARP * 8)
            launch_rows<RESIDUAL, 8, 1>(f);
        else if (words <= THREADS * 2)
            launch_rows<RESIDUAL, 2, WARPS>(f);
        else if (words <= THREADS * 4)
            launch_rows<RESIDUAL, 4, WARPS>(f);
        else
            launch_rows<RESIDUAL, 8, WARPS>(f);
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
        if (aligned(n, x, y, x))
            LAUNCH((apply_rows<E, W>), blocks, THREADS, 0, f);
        else
            LAUNCH((apply_rows<E, 1>), blocks, THREADS, 0, f);
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

    template <int K>
    static void launch_panels(const Backward<E> &b, unsigned panels, int64_t words) {
        LAUNCH((backward_rows<E, K>), panels, blocks_for(words, K * WARP) * WARP, 0, b);
    }

    static void launch_backward(const Norm *n, const Backward<E> &b) {
        int64_t words = (b.C + W - 1) / W;
        if (b.T == 0 || b.C == 0) return;
        unsigned panels = blocks_for(b.T, b.rows);
        if (words > MAX_BACKWARD_THREADS * 4 || !aligned(n, b.x, b.dx, b.dy))
            LAUNCH((backward_plain<E>), panels, THREADS, 0, b);
        else if (words <= MAX_BACKWARD_THREADS)
            launch_panels<1>(b, panels, words);
        else if (words <= MAX_BACKWARD_THREADS * 2)
            launch_panels<2>(b, panels, words);
        else
            launch_panels<4>(b, panels, words);
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
        if (aligned(n, x, dx, dy))
            LAUNCH((backward_apply_rows<E, W>), blocks, THREADS, 0, b);
        else
            LAUNCH((backward_apply_rows<E, 1>), blocks, THREADS, 0, b);
    }

    static void fill(Kernels *k) {
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
    if (is_bf16)
        Launchers<bf16>::fill(k);
    else
        Launchers<float>::fill(k);
}
