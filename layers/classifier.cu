/* classifier on CUDA. Bound by memory as long as an element costs few instructions. It costs some
 * 14: exponentials are powers of two, the factor of their arguments is in the same FMA as the
 * difference, and the thread that has the target's column corrects it afterwards. Bytes per token
 * in bf16; all other bytes are few:
 *
 *     classifier   read 2V, write 2V: the row stays in shared memory until its sum is known
 *                  plain (rows that are too long or not aligned), and in two steps: read 4V,
 *                  write 2V
 *
 * A block for each row. Threads keep a maximum and a sum of exponentials relative to it, which are
 * updated together over the row (Milakov, Gimelshein 2018), and are merged at the end. Between the
 * two steps of a row that is sharded over ranks the logits stay as they are: the gradient computes
 * the exponentials again, so that they are rounded once.
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
constexpr float LEAST = -FLT_MAX / 2; // LEAST * log2(e) is finite

/* e^(x - y), given x and y log2(e). */
__device__ __forceinline__ float exp_less(float x, float y_log2e) {
    return exp2_fast(fmaf(x, LOG2_E, -y_log2e));
}

/* Statistics of two parts of a row together. A row of -inf, or without columns, keeps the maximum
 * LEAST, so that its sum is 0 and not NaN. */
__device__ __forceinline__ Stats merged(Stats a, Stats b) {
    float max = fmaxf(a.max, b.max), m = max * LOG2_E;
    return {max, a.sum * exp_less(a.max, m) + b.sum * exp_less(b.max, m)};
}

struct WarpStats {
    Stats of[THREADS / WARP];
};

/* Merges the statistics of all threads of the block, first over the lanes of each warp, then over
 * the warps in order. All threads get the result. */
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

/* Calls use(v, words) for the columns of a row: W columns from v on, and the last V % W columns one
 * at a time. Each thread gets the same columns in every pass. BATCH loads are in flight at once. */
template <class E, int W, class Use>
__device__ __forceinline__ void over_row(const E *x, int64_t V, Use use) {
    constexpr int BATCH = 4, STEP = THREADS * W;
    int n = static_cast<int>(V), v = static_cast<int>(threadIdx.x) * W;
    for (; v + (BATCH - 1) * STEP + W <= n; v += BATCH * STEP) {
        Vec<E, W> words[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            words[i] = *reinterpret_cast<const Vec<E, W> *>(x + v + i * STEP);
#pragma unroll
        for (int i = 0; i < BATCH; i++) use(v + i * STEP, words[i]);
    }
    for (; v + W <= n; v += STEP) use(v, *reinterpret_cast<const Vec<E, W> *>(x + v));
    for (v = n / W * W + static_cast<int>(threadIdx.x); v < n; v += THREADS) {
        Vec<E, 1> word = {{x[v]}};
        use(v, word);
    }
}
/* Does over_row give column v to this thread? */
template <int W> __device__ __forceinline__ bool takes(int64_t v, int64_t V) {
    int64_t whole = V / W * W;
    return (v < whole ? v / W : v - whole) % THREADS == threadIdx.x;
}

template <class E, int W>
__device__ __forceinline__ void add_to_stats(Stats &s, const Vec<E, W> &w) {
    float x[W], max = s.max;
#pragma unroll
    for (int j = 0; j < W; j++) max = fmaxf(max, x[j] = to_float(w.elem[j]));
    float m = max * LOG2_E;
    s.sum *= exp_less(s.max, m);
    s.max = max;
#pragma unroll
    for (int j = 0; j < W; j++) s.sum += exp_less(x[j], m);
}

template <class E, int W> __device__ __forceinline__ Stats row_stats(const E *x, int64_t V) {
    Stats s = {LEAST, 0};
    over_row<E, W>(x, V, [&](int, const auto &w) { add_to_stats(s, w); });
    return block_merged(s);
}

/* The gradient of one row: dlogits[v] = (e^(x - log_sum) - (v == target)) scale; target -1:
 * none. */
struct Gradient {
    int64_t target;
    float log_sum, scale;
};
template <class E, int W> __device__ __forceinline__ void put(E *p, const Vec<E, W> &w) {
    *reinterpret_cast<Vec<E, W> *>(p) = w;
}
/* Writes the gradient of the logits x to y, which may be x. */
template <class E, int W>
__device__ __forceinline__ void row_gradient(E *y, const E *x, int64_t V, Gradient g) {
    bool mine = g.target >= 0 && takes<W>(g.target, V);
    float logit = mine ? to_float(x[g.target]) : 0, m = g.log_sum * LOG2_E;
    over_row<E, W>(x, V, [&](int v, auto w) {
#pragma unroll
        for (auto &word : w.elem) from_float(word, exp_less(to_float(word), m) * g.scale);
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

/* Writes the loss of the row. Returns the log of the sum of exponentials: e^(x - result) are the
 * probabilities. */
__device__ __forceinline__ float row_loss(const Rows &r, Stats s, float logit) {
    float log_of_sum = logf(s.sum);
    if (threadIdx.x == 0) r.loss[blockIdx.x] = log_of_sum + (s.max - logit);
    return log_of_sum + s.max;
}

/* Loss and gradient of a whole row. STAGED: the row is kept in shared memory, where each thread
 * reads the elements that it wrote itself. Otherwise the row is read from memory once more. */
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
    float logit = to_float(x[target]); // read before any thread overwrites it
    Stats s = {LEAST, 0};
    over_row<E, W>(x, r.V, [&](int v, const auto &w) {
        if (STAGED) put(row + v, w);
        add_to_stats(s, w);
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

/* --- rows that are sharded over ranks */

/* Local column of this row's target; -1: another rank has it. */
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

/* The gradient of a row from the merged log_sum. Columns from V to ld are padding and become 0. */
template <class E, int W>
__global__ void __launch_bounds__(THREADS) gradient(E *logits, const float *log_sum, Classifier c) {
    E *x = logits + blockIdx.x * c.ld;
    int64_t n = c.targets[blockIdx.x] < 0 ? 0 : c.V; // columns whose gradient may differ from 0
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
    static bool all_aligned(const Classifier *c, const Act *logits) {
        return whole_words<E>(logits, c->ld);
    }

    static void classifier_of(Team *, const Classifier *c, float *loss, Act *logits) {
        Rows r = {c->targets, loss, c->V, c->ld, c->scale, c->backward};
        auto *x = static_cast<E *>(logits);
        auto T = static_cast<unsigned>(c->T);
        size_t row_bytes = static_cast<size_t>(c->V) * sizeof(E);
        if (T == 0) return;
        // 1024: static shared memory, and alignment
        bool fits = row_bytes + 1024 <= device_shared();
        if (all_aligned(c, logits) && c->backward && fits)
            LAUNCH((whole_staged<E>), T, THREADS, row_bytes, x, r);
        else
            by_words<E>(all_aligned(c, logits),
                        [&](auto w) { LAUNCH((whole_plain<E, w>), T, THREADS, 0, x, r); });
    }

    static void statistics_of(Team *, const Classifier *c, float *stats, Act *logits) {
        auto *x = static_cast<const E *>(logits);
        auto T = static_cast<unsigned>(c->T);
        if (T == 0) return;
        by_words<E>(all_aligned(c, logits),
                    [&](auto w) { LAUNCH((statistics<E, w>), T, THREADS, 0, stats, x, *c); });
    }

    static void gradient_of(Team *, const Classifier *c, const float *, const float *log_sum,
                            Act *logits) {
        auto *x = static_cast<E *>(logits);
        auto T = static_cast<unsigned>(c->T);
        if (T == 0 || c->ld == 0) return;
        by_words<E>(all_aligned(c, logits),
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
