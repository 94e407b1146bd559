/* classifier on CUDA. Bound by memory; bytes per token in bf16, beside which all else is small,
 * when an element costs few instructions (some 14 in all: exponentials are powers of two, the
 * factor of their arguments in the same FMA as the difference, and the target's column is put right
 * afterwards by the thread that has it):
 *
 *     classifier   read 2V, write 2V: the row stays in shared memory until its sum is known
 *                  plain (rows that are too long or not aligned), and in two steps: read 4V,
 *                  write 2V
 *
 * A block for each row. Threads keep a maximum and a sum of exponentials relative to it, which grow
 * together over the row (Milakov, Gimelshein 2018), and are merged at the end. Logits stay as they
 * are between the two steps of a cut row: the gradient takes its exponentials anew, so that they
 * are rounded once.
 */
#include "layers/cuda/launch.cuh"
#include "layers/cuda/ptx.cuh"
#include "layers/cuda/vec.cuh"

#include <cfloat>

extern "C" {
#include "layers/cuda/families.h"
}

namespace {

enum { THREADS = 512, MERGE_THREADS = 128 };

/* The largest logit, and the sum of the exponentials relative to it; of no logits: LEAST and 0. */
struct Stats {
    float max, sum;
};
constexpr float LEAST = -FLT_MAX / 2; // LEAST log2(e) is finite

/* e^(x - y) of y log2(e). */
__device__ __forceinline__ float exp_less(float x, float y_log2e) {
    return exp2_fast(fmaf(x, LOG2_E, -y_log2e));
}

/* A row of -inf, or of no columns, keeps LEAST and so sums of 0, not of NaN. */
__device__ __forceinline__ Stats merged(Stats a, Stats b) {
    float max = fmaxf(a.max, b.max), m = max * LOG2_E;
    return {max, a.sum * exp_less(a.max, m) + b.sum * exp_less(b.max, m)};
}

struct WarpStats {
    Stats of[THREADS / WARP];
};

/* The statistics of the block's row, in all threads: of pairs of lanes, then of the warps in
 * order. */
__device__ __forceinline__ Stats block_merged(Stats s) {
    auto &warps = shared<WarpStats>();
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) {
        Stats other = {__shfl_xor_sync(static_cast<unsigned>(FULL), s.max, d),
                       __shfl_xor_sync(static_cast<unsigned>(FULL), s.sum, d)};
        s = merged(s, other);
    }
    if (this_lane() == 0) warps.of[this_warp()] = s;
    __syncthreads();
    s = warps.of[0];
    for (int w = 1; w < THREADS / WARP; w++) s = merged(s, warps.of[w]);
    return s;
}

/* use(v, words) for the columns of a row: W at a time, and the last few, where V is no multiple of
 * W, one at a time; each thread takes the same in every pass. Some loads are in flight at once. */
template <class E, int W, class Use>
__device__ __forceinline__ void over_row(const E *x, int64_t V, Use use) {
    constexpr int BATCH = 4, STEP = THREADS * W;
    int n = static_cast<int>(V), v = static_cast<int>(threadIdx.x) * W;
    for (; v + (BATCH - 1) * STEP + W <= n; v += BATCH * STEP) {
        Words<E, W> words[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            words[i] = *reinterpret_cast<const Words<E, W> *>(x + v + i * STEP);
#pragma unroll
        for (int i = 0; i < BATCH; i++) use(v + i * STEP, words[i]);
    }
    for (; v + W <= n; v += STEP) use(v, *reinterpret_cast<const Words<E, W> *>(x + v));
    for (v = n / W * W + static_cast<int>(threadIdx.x); v < n; v += THREADS) {
        Words<E, 1> word = {{x[v]}};
        use(v, word);
    }
}
/* Does this thread take column v? */
template <int W> __device__ __forceinline__ bool takes(int64_t v, int64_t V) {
    int64_t whole = V / W * W;
    return (v < whole ? v / W : v - whole) % THREADS == threadIdx.x;
}

template <class E, int W> __device__ __forceinline__ void take_in(Stats &s, const Words<E, W> &w) {
    float x[W], max = s.max;
#pragma unroll
    for (int j = 0; j < W; j++) max = fmaxf(max, x[j] = to_float(w.at[j]));
    float m = max * LOG2_E;
    s.sum *= exp_less(s.max, m);
    s.max = max;
#pragma unroll
    for (int j = 0; j < W; j++) s.sum += exp_less(x[j], m);
}

template <class E, int W> __device__ __forceinline__ Stats row_stats(const E *x, int64_t V) {
    Stats s = {LEAST, 0};
    over_row<E, W>(x, V, [&](int, const auto &w) { take_in(s, w); });
    return block_merged(s);
}

/* What dlogits of one row are: (e^(x - log_sum) - (v == target)) scale; target -1: none. */
struct Gradient {
    int64_t target;
    float log_sum, scale;
};
template <class E, int W> __device__ __forceinline__ void put(E *p, const Words<E, W> &w) {
    *reinterpret_cast<Words<E, W> *>(p) = w;
}
/* From x to y, which may be one. */
template <class E, int W>
__device__ __forceinline__ void row_gradient(E *y, const E *x, int64_t V, Gradient g) {
    bool mine = g.target >= 0 && takes<W>(g.target, V);
    float logit = mine ? to_float(x[g.target]) : 0, m = g.log_sum * LOG2_E;
    over_row<E, W>(x, V, [&](int v, auto w) {
#pragma unroll
        for (auto &word : w.at) from_float(word, exp_less(to_float(word), m) * g.scale);
        put(y + v, w);
    });
    if (mine) from_float(y[g.target], (exp_less(logit, m) - 1) * g.scale);
}

template <class E> __device__ __forceinline__ void row_zero(E *y, int64_t from, int64_t to) {
    for (int64_t v = from + threadIdx.x; v < to; v += THREADS) from_float(y[v], 0);
}

/* --- whole rows */

struct Rows {
    const int32_t *targets;
    float *loss;
    int64_t V, ld;
    float scale;
    bool backward;
};

/* Writes the loss; e^(x - the result) are the probabilities. */
__device__ __forceinline__ float row_loss(const Rows &r, Stats s, float logit) {
    float log_of_sum = logf(s.sum);
    if (threadIdx.x == 0) r.loss[blockIdx.x] = log_of_sum + (s.max - logit);
    return log_of_sum + s.max;
}

/* STAGED: the row's elements wait in shared memory, where each thread reads what it wrote itself;
 * otherwise the row is read from memory once more. */
template <class E, int W, bool STAGED>
__device__ __forceinline__ void whole_row(E *logits, const Rows &r) {
    E *x = logits + blockIdx.x * r.ld, *row = x;
    if constexpr (STAGED) row = dynamic_shared<E>();
    int target = r.targets[blockIdx.x];
    if (target < 0) {
        if (threadIdx.x == 0) r.loss[blockIdx.x] = 0;
        if (r.backward) row_zero<E>(x, 0, r.V);
        return;
    }
    float logit = to_float(x[target]); // before anything is written
    Stats s = {LEAST, 0};
    over_row<E, W>(x, r.V, [&](int v, const auto &w) {
        if (STAGED) put(row + v, w);
        take_in(s, w);
    });
    s = block_merged(s); // also waits until all have read the target's logit
    float log_sum = row_loss(r, s, logit);
    if (r.backward) row_gradient<E, W>(x, row, r.V, {target, log_sum, r.scale});
}
template <class E, int W>
__global__ void __launch_bounds__(THREADS) whole_plain(E *logits, Rows r) {
    whole_row<E, W, false>(logits, r);
}
template <class E> __global__ void __launch_bounds__(THREADS) whole_staged(E *logits, Rows r) {
    whole_row<E, width<E>, true>(logits, r);
}

/* --- cut rows */

/* Column of this row's target, -1 where it is not here. */
__device__ __forceinline__ int64_t target_column(const Classifier &c) {
    int64_t target = c.targets[blockIdx.x], v = target - c.first;
    return target >= 0 && v >= 0 && v < c.V ? v : -1;
}

template <class E, int W>
__global__ void __launch_bounds__(THREADS) statistics(float *stats, const E *logits, Classifier c) {
    const E *x = logits + blockIdx.x * c.ld;
    int64_t target = target_column(c);
    Stats s = {LEAST, 0};
    if (c.targets[blockIdx.x] >= 0) s = row_stats<E, W>(x, c.V);
    if (threadIdx.x > 0) return;
    float *out = stats + 3 * static_cast<int64_t>(blockIdx.x);
    out[0] = s.max, out[1] = s.sum, out[2] = target >= 0 ? to_float(x[target]) : 0;
}

__global__ void merge(float *loss, float *log_sum, const float *parts, const int32_t *targets,
                      int64_t T, int64_t n_parts) {
    int64_t t = static_cast<int64_t>(blockIdx.x) * MERGE_THREADS + threadIdx.x;
    if (t >= T) return;
    double max = -static_cast<double>(FLT_MAX), sum = 0, logit = 0;
    for (int64_t i = 0; i < n_parts; i++)
        max = fmax(max, static_cast<double>(parts[3 * (i * T + t)]));
    for (int64_t i = 0; i < n_parts; i++) {
        const float *s = parts + 3 * (i * T + t);
        sum += static_cast<double>(s[1]) * exp(static_cast<double>(s[0]) - max);
        logit += static_cast<double>(s[2]);
    }
    bool counts = targets[t] >= 0;
    loss[t] = counts ? static_cast<float>(log(sum) + (max - logit)) : 0;
    log_sum[t] = counts ? static_cast<float>(log(sum) + max) : 0;
}

/* Columns from V to ld are padding. */
template <class E, int W>
__global__ void __launch_bounds__(THREADS) gradient(E *logits, const float *log_sum, Classifier c) {
    E *x = logits + blockIdx.x * c.ld;
    int64_t n = c.targets[blockIdx.x] < 0 ? 0 : c.V; // columns whose gradient is not 0
    row_gradient<E, W>(x, x, n, {target_column(c), log_sum[blockIdx.x], c.scale});
    row_zero<E>(x, n, c.ld);
}

/* --- launchers */

void merge_of(Team *, const Classifier *c, float *loss, float *log_sum, const float *stats,
              int64_t n_parts) {
    if (c->T > 0)
        LAUNCH(merge, blocks_for(c->T, MERGE_THREADS), MERGE_THREADS, 0, loss, log_sum, stats,
               c->targets, c->T, n_parts);
}

template <class E> struct Launchers {
    static bool wide(const Classifier *c, const Act *logits) {
        return whole_words<E>(logits, c->ld);
    }

    static void classifier_of(Team *, const Classifier *c, float *loss, Act *logits) {
        Rows r = {c->targets, loss, c->V, c->ld, c->scale, c->backward};
        auto *x = static_cast<E *>(logits);
        auto T = static_cast<unsigned>(c->T);
        size_t row_bytes = static_cast<size_t>(c->V) * sizeof(E);
        if (T == 0) return;
        bool fits = row_bytes + 1024 <= device_shared(); // 1024: what else is there, aligned
        if (wide(c, logits) && c->backward && fits)
            LAUNCH((whole_staged<E>), T, THREADS, row_bytes, x, r);
        else
            by_words<E>(wide(c, logits),
                        [&](auto w) { LAUNCH((whole_plain<E, w>), T, THREADS, 0, x, r); });
    }

    static void statistics_of(Team *, const Classifier *c, float *stats, Act *logits) {
        auto *x = static_cast<const E *>(logits);
        auto T = static_cast<unsigned>(c->T);
        if (T == 0) return;
        by_words<E>(wide(c, logits),
                    [&](auto w) { LAUNCH((statistics<E, w>), T, THREADS, 0, stats, x, *c); });
    }

    static void gradient_of(Team *, const Classifier *c, const float *, const float *log_sum,
                            Act *logits) {
        auto *x = static_cast<E *>(logits);
        auto T = static_cast<unsigned>(c->T);
        if (T == 0 || c->ld == 0) return;
        by_words<E>(wide(c, logits),
                    [&](auto w) { LAUNCH((gradient<E, w>), T, THREADS, 0, x, log_sum, *c); });
    }

    static void fill(Kernels *k) {
        k->classifier = classifier_of;
        k->classifier_statistics = statistics_of;
        k->classifier_merge = merge_of;
        k->classifier_gradient = gradient_of;
    }
};

} // namespace

extern "C" void classifier_cuda(Kernels *k, bool is_bf16) {
    fill_by_type<Launchers>(k, is_bf16);
}
