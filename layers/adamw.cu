/* adamw on CUDA: one pass, 16 bytes of each array in a thread. Bound by memory: 28 bytes per
 * parameter (param, m, v read and written, the gradient read) and 2 more for the copy in bf16. The
 * sum of squares reads 4.
 *
 * The ladder is one kernel: W = 1, an element in a thread, is plain and takes what is not aligned;
 * W = 4 is 16 bytes of each array, seven accesses of them on their way in a thread, and no number
 * is used twice: there is nothing to keep. What is left is the calls. A tensor is one: of GPT-2
 * 124M 148, 98 of them of vectors, which a call of some 2 us outlasts: 0.2 ms beside the 0.9 ms of
 * 124M x 30 bytes at 4.2 TB/s. One call for vectors that lie side by side is the next rung; not
 * measured. */
#include "layers/cuda/launch.cuh"
#include "layers/cuda/sums.cuh"
#include "layers/cuda/vec.cuh"

extern "C" {
#include "layers/cuda/families.h"
}

namespace {

enum { THREADS = 256 };

struct Update {
    float *param, *m, *v;
    const float *grad;
    const AdamWNow *now; // NULL: grad_scale is that of this struct
    float grad_scale, shrink, inv_root2, rate;
    float rest1, beta2, rest2, eps; // 1 - beta1, beta2, 1 - beta2
    int64_t n;
};

template <class E, int W> __global__ void update(Update u, E *words) {
    int64_t i = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * W;
    if (i >= u.n) return;
    if (u.now && !u.now->finite) return;
    if (u.now) u.grad_scale = u.now->grad_scale;
    float p[W], m[W], v[W], g[W];
    load<float, W>(p, u.param + i);
    load<float, W>(m, u.m + i);
    load<float, W>(v, u.v + i);
    load<float, W>(g, u.grad + i);
#pragma unroll
    for (int j = 0; j < W; j++) {
        g[j] *= u.grad_scale;
        m[j] = fmaf(u.rest1, g[j] - m[j], m[j]);
        v[j] = fmaf(u.rest2 * g[j], g[j], u.beta2 * v[j]);
        p[j] = p[j] * u.shrink - u.rate * m[j] / fmaf(sqrtf(v[j]), u.inv_root2, u.eps);
    }
    store<float, W>(u.param + i, p);
    store<float, W>(u.m + i, m);
    store<float, W>(u.v + i, v);
    if (!words) return;
    store<E, W>(words + i, p);
}

__global__ void begin(AdamWNow *now, const Totals *totals, double clip) {
    double norm = sqrt(totals->squares);
    now->grad_scale = clip > 0 && norm > clip ? static_cast<float>(clip / (norm + 1e-6)) : 1.0f;
    now->finite = isfinite(norm) && isfinite(totals->losses);
}

void begin_of(AdamWNow *now, const Totals *totals, double clip) {
    LAUNCH(begin, 1, 1, 0, now, totals, clip);
}

template <class E>
void adamw_of(Team *, const AdamW *o, float *param, float *m, float *v, const float *grad,
              int64_t n, bool decay) {
    double step = static_cast<double>(o->step); // in double, as torch.optim.AdamW does
    Update u = {};
    u.param = param, u.m = m, u.v = v, u.grad = grad, u.now = o->now, u.n = n;
    u.grad_scale = static_cast<float>(o->grad_scale);
    u.shrink = decay ? static_cast<float>(1 - o->lr * o->weight_decay) : 1.0f;
    u.inv_root2 = static_cast<float>(1 / sqrt(1 - pow(o->beta2, step)));
    u.rate = static_cast<float>(o->lr / (1 - pow(o->beta1, step)));
    u.eps = static_cast<float>(o->eps);
    u.rest1 = static_cast<float>(1 - o->beta1), u.beta2 = static_cast<float>(o->beta2);
    u.rest2 = static_cast<float>(1 - o->beta2);
    auto *words = static_cast<E *>(o->words);
    constexpr int W = 4;
    bool aligned = whole_words<float>(param, n) && whole_words<float>(m, 0) &&
                   whole_words<float>(v, 0) && whole_words<float>(grad, 0) &&
                   reinterpret_cast<uintptr_t>(words) % (W * sizeof(E)) == 0;
    if (n == 0) return;
    if (aligned)
        LAUNCH((update<E, W>), blocks_for(n, THREADS * W), THREADS, 0, u, words);
    else
        LAUNCH((update<E, 1>), blocks_for(n, THREADS), THREADS, 0, u, words);
}

void squares_to(double *sum, const float *x, int64_t ld, int64_t rows, int64_t n, bool add) {
    if (rows == 1 || ld == n) return launch_sum<Squared>(sum, x, rows * n, add);
    bool whole = whole_words<float>(x, n) && ld % width<float> == 0;
    launch_sum_of<Squared>(sum, TermRows{x, ld, n}, rows * n, whole, add);
}
double sum_of_squares_of(Team *, const float *x, int64_t n) {
    return wait_for_sum<Squared>(x, n);
}

} // namespace

extern "C" void adamw_cuda(Kernels *k, bool is_bf16) {
    k->adamw = is_bf16 ? adamw_of<bf16> : adamw_of<float>;
    k->adamw_begin = begin_of;
    k->squares_to = squares_to;
    k->sum_of_squares = sum_of_squares_of;
}
