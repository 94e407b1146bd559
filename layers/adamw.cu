/* adamw on CUDA: one pass, in which a thread updates 16 bytes of each array. Bound by memory: 28
 * bytes per parameter (param, m, v read and written, the gradient read) and 2 more for the copy in
 * bf16. The sum of squares reads 4.
 *
 * Two versions. W = 1, one element per thread, is plain and serves arrays that are not aligned. W =
 * 4 moves 16 bytes of each array, with seven such accesses in flight per thread; every number is
 * used once, so nothing is kept. The remaining cost is that of calls. GPT-2 124M has 148 tensors,
 * 98 of them vectors, whose update takes less time than the call of some 2 us: 0.2 ms beside the
 * 0.9 ms of 124M x 30 bytes at 4.2 TB/s (calculated). So one kernel takes a list of tensors, and
 * each block finds its tensor in the list. */
#include "layers/cuda/launch.cuh"
#include "layers/cuda/sums.cuh"
#include "layers/cuda/vec.cuh"

extern "C" {
#include "layers/cuda/families.h"
}

namespace {

enum { THREADS = 256 };

/* The factors of the update: p = p * shrink - rate * m / (sqrt(v) * inv_root2 + eps), and p * 1
 * without weight decay. */
struct Rule {
    const AdamWNow *now; // has grad_scale; NULL: grad_scale of this struct
    float grad_scale, shrink, inv_root2, rate;
    float rest1, beta2, rest2, eps; // 1 - beta1, beta2, 1 - beta2
};
/* Tensor i is updated by blocks first[i] .. first[i + 1] - 1. A block has THREADS times 4 elements,
 * or THREADS elements where the tensor is not aligned. */
struct List {
    AdamWTensor tensor[ADAMW_TENSORS];
    unsigned first[ADAMW_TENSORS + 1];
    bool aligned[ADAMW_TENSORS];
    int n;
};

template <class E, int W>
__device__ __forceinline__ void update(const Rule &r, const AdamWTensor &t, int64_t block) {
    int64_t i = (block * THREADS + threadIdx.x) * W;
    if (i >= t.n) return;
    float p[W], m[W], v[W], g[W], scale = r.now ? r.now->grad_scale : r.grad_scale;
    float shrink = t.decay ? r.shrink : 1;
    load<float, W>(p, t.param + i);
    load<float, W>(m, t.m + i);
    load<float, W>(v, t.v + i);
    load<float, W>(g, t.grad + i);
#pragma unroll
    for (int j = 0; j < W; j++) {
        g[j] *= scale;
        m[j] = fmaf(r.rest1, g[j] - m[j], m[j]);
        v[j] = fmaf(r.rest2 * g[j], g[j], r.beta2 * v[j]);
        p[j] = p[j] * shrink - r.rate * m[j] / fmaf(sqrtf(v[j]), r.inv_root2, r.eps);
    }
    store<float, W>(t.param + i, p);
    store<float, W>(t.m + i, m);
    store<float, W>(t.v + i, v);
    if (t.cast) store<E, W>(static_cast<E *>(t.cast) + i, p);
}

template <class E> __global__ void update_list(Rule r, const __grid_constant__ List list) {
    if (r.now && !r.now->finite) return;
    int t = 0, end = list.n; // the tensor is in [t, end)
    while (end - t > 1) {
        int middle = (t + end) / 2;
        if (list.first[middle] <= blockIdx.x)
            t = middle;
        else
            end = middle;
    }
    int64_t block = blockIdx.x - list.first[t];
    if (list.aligned[t])
        update<E, 4>(r, list.tensor[t], block);
    else
        update<E, 1>(r, list.tensor[t], block);
}

/* The factor that clips the gradient norm, and whether norm and loss are finite: else no tensor is
 * updated. */
__global__ void begin(AdamWNow *now, const Totals *totals, double clip) {
    double norm = sqrt(totals->squares);
    now->grad_scale = clip > 0 && norm > clip ? static_cast<float>(clip / (norm + 1e-6)) : 1.0f;
    now->finite = isfinite(norm) && isfinite(totals->losses);
}

void begin_of(AdamWNow *now, const Totals *totals, double clip) {
    LAUNCH(begin, 1, 1, 0, now, totals, clip);
}

Rule rule_of(const AdamW *o) {
    double step = static_cast<double>(o->step); // in double, as torch.optim.AdamW does
    Rule r;
    r.now = o->now, r.grad_scale = static_cast<float>(o->grad_scale);
    r.shrink = static_cast<float>(1 - o->lr * o->weight_decay);
    r.inv_root2 = static_cast<float>(1 / sqrt(1 - pow(o->beta2, step)));
    r.rate = static_cast<float>(o->lr / (1 - pow(o->beta1, step)));
    r.eps = static_cast<float>(o->eps);
    r.rest1 = static_cast<float>(1 - o->beta1), r.beta2 = static_cast<float>(o->beta2);
    r.rest2 = static_cast<float>(1 - o->beta2);
    return r;
}

template <class E> bool is_aligned(const AdamWTensor &t) {
    return whole_words<float>(t.param, t.n) && whole_words<float>(t.m, 0) &&
           whole_words<float>(t.v, 0) && whole_words<float>(t.grad, 0) &&
           reinterpret_cast<uintptr_t>(t.cast) % (4 * sizeof(E)) == 0;
}

template <class E> void list_of(const AdamW *o, const AdamWTensor *tensors, int n) {
    List list;
    list.n = 0, list.first[0] = 0;
    for (int i = 0; i < n; i++) {
        if (tensors[i].n == 0) continue;
        int at = list.n++;
        list.tensor[at] = tensors[i], list.aligned[at] = is_aligned<E>(tensors[i]);
        list.first[at + 1] =
            list.first[at] + blocks_for(tensors[i].n, THREADS * (list.aligned[at] ? 4 : 1));
    }
    if (list.n > 0) LAUNCH(update_list<E>, list.first[list.n], THREADS, 0, rule_of(o), list);
}

template <class E>
void adamw_of(Team *, const AdamW *o, float *param, float *m, float *v, const float *grad,
              int64_t n, bool decay) {
    AdamWTensor t = {param, m, v, grad, o->cast, n, decay};
    list_of<E>(o, &t, 1);
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
    k->adamw_list = is_bf16 ? list_of<bf16> : list_of<float>;
    k->adamw_begin = begin_of;
    k->squares_to = squares_to;
    k->sum_of_squares = sum_of_squares_of;
}
