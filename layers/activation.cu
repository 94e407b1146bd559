/* activation on CUDA. All kernels are bound by memory. A thread moves W elements (16 bytes) at a
 * time. Where rows are not aligned to 16 bytes W = 1, which is also the plain version of each
 * kernel. Bytes per token in bf16, with F features:
 *
 *     gelu     forward  read 2F, write 2F      backward  read 4F, write 2F
 *     swiglu   forward  read 4F, write 2F      backward  read 6F, write 4F
 *     bias     backward  read 2N               residual  read 2N to 4N, write 2N
 */
#include "layers/cuda/launch.cuh"
#include "layers/cuda/panels.cuh"
#include "layers/cuda/vec.cuh"
#include "layers/pointwise.cuh"

extern "C" {
#include "layers/cuda/families.h"
}

namespace {

enum { THREADS = 256 };

__device__ __forceinline__ int64_t this_thread() {
    return static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
}

/* --- elements */

template <class E, int W> __global__ void act_forward(ActKind act, E *y, const E *x, int64_t n) {
    int64_t i = this_thread() * W;
    if (i >= n) return;
    float v[W];
    load<E, W>(v, x + i);
#pragma unroll
    for (int j = 0; j < W; j++) v[j] = pointwise(act, v[j]);
    store<E, W>(y + i, v);
}

template <class E, int W>
__global__ void act_backward(ActKind act, E *dx, const E *dy, const E *x, int64_t n) {
    int64_t i = this_thread() * W;
    if (i >= n) return;
    float v[W], d[W];
    load<E, W>(v, x + i);
    load<E, W>(d, dy + i);
#pragma unroll
    for (int j = 0; j < W; j++) d[j] *= pointwise_slope(act, v[j]);
    store<E, W>(dx + i, d);
}

/* --- rows [gate | up] of 2F features: blockIdx.x is the row, blockIdx.y a part of it
 *
 * Offsets count words of W elements: so the compiler knows that a word is aligned, and stores it by
 * one instruction instead of 2 or 4 bytes at a time. */

__device__ __forceinline__ int64_t this_feature() {
    return static_cast<int64_t>(blockIdx.y) * THREADS + threadIdx.x;
}

template <class E, int W> __global__ void swiglu_forward(E *y, const E *x, int64_t F) {
    int64_t t = blockIdx.x, f = this_feature(), words = F / W;
    if (f >= words) return;
    float gate[W], up[W];
    load<E, W>(gate, x + (t * 2 * words + f) * W);
    load<E, W>(up, x + (t * 2 * words + words + f) * W);
#pragma unroll
    for (int j = 0; j < W; j++) up[j] *= gate[j] * sigmoid(gate[j]);
    store<E, W>(y + (t * words + f) * W, up);
}

template <class E, int W>
__global__ void swiglu_backward(E *dx, const E *dy, const E *x, int64_t F) {
    int64_t t = blockIdx.x, f = this_feature(), words = F / W;
    if (f >= words) return;
    float gate[W], up[W], d[W];
    load<E, W>(gate, x + (t * 2 * words + f) * W);
    load<E, W>(up, x + (t * 2 * words + words + f) * W);
    load<E, W>(d, dy + (t * words + f) * W);
#pragma unroll
    for (int j = 0; j < W; j++) {
        float rest, s = sigmoid(gate[j], rest), g = gate[j];
        gate[j] = d[j] * up[j] * s * fmaf(g, rest, 1.0f);
        up[j] = d[j] * (g * s);
    }
    store<E, W>(dx + (t * 2 * words + f) * W, gate);
    store<E, W>(dx + (t * 2 * words + words + f) * W, up);
}

/* y = (addend + y) + bias. The order of the additions is that of a matmul's epilogue. */
template <class E, int W>
__global__ void residual(E *y, const E *addend, const float *bias, int64_t N) {
    int64_t t = blockIdx.x, n = this_feature() * W;
    if (n >= N) return;
    float v[W], a[W];
    load<E, W>(v, y + t * N + n);
    if (addend) {
        load<E, W>(a, addend + t * N + n);
#pragma unroll
        for (int j = 0; j < W; j++) v[j] = a[j] + v[j];
    }
#pragma unroll
    for (int j = 0; j < W; j++)
        if (bias) v[j] += bias[n + j];
    store<E, W>(y + t * N + n, v);
}

/* --- the gradient of a bias: column sums, by panels of rows whose number depends on T alone
 *
 *                    columns: 32 lanes of W
 *     warp 0   rows 0, 8, 16, ...  |
 *     warp 1   rows 1, 9, 17, ...  |  sums of one panel: each lane adds its columns, then the 8
 *     ...                          |  warps are added
 *
 * and panels.cuh adds the panels. */
enum { WARPS = THREADS / WARP, PANEL = 64, PANELS = 128 };

template <int W> struct PanelSums { float of[WARPS][WARP * W]; };

template <class E, int W>
__global__ void column_sums(float *sums, const E *y, int64_t T, int64_t N, int64_t rows) {
    int warp = this_warp(), lane = this_lane();
    int64_t n0 = static_cast<int64_t>(blockIdx.x) * WARP * W, n = n0 + lane * W;
    int64_t begin = blockIdx.y * rows, end = begin + rows < T ? begin + rows : T;
    float sum[W] = {0}, v[W];
    for (int64_t t = begin + warp; t < end && n < N; t += WARPS) {
        load<E, W>(v, y + t * N + n);
#pragma unroll
        for (int j = 0; j < W; j++) sum[j] += v[j];
    }
    auto &panel = shared<PanelSums<W>>();
#pragma unroll
    for (int j = 0; j < W; j++) panel.of[warp][lane * W + j] = sum[j];
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < WARP * W && n0 + i < N; i += THREADS) {
        float s = 0;
        for (int w = 0; w < WARPS; w++) s += panel.of[w][i];
        sums[blockIdx.y * N + n0 + i] = s;
    }
}

/* --- launchers */

template <class E> struct Launchers {
    static const E *in(const Act *x) { return static_cast<const E *>(x); }
    static E *out(Act *x) { return static_cast<E *>(x); }
    static constexpr int W = width<E>;

    /* Can all three pointers be moved W elements at a time, in rows of n elements? */
    static bool all_aligned(const void *a, const void *b, const void *c, int64_t n) {
        return whole_words<E>(a, n) && whole_words<E>(b, n) && whole_words<E>(c, n);
    }

    static void act_forward_of(Team *, ActKind act, Act *y, const Act *x, int64_t n) {
        by_words_and_rest<W>(all_aligned(y, x, x, 0), n, [&](auto w, int64_t i, int64_t count) {
            LAUNCH((act_forward<E, w>), blocks_for(count, THREADS * w), THREADS, 0, act, out(y) + i,
                   in(x) + i, count);
        });
    }

    static void act_backward_of(Team *, ActKind act, Act *dx, const Act *dy, const Act *x,
                                int64_t n) {
        by_words_and_rest<W>(all_aligned(dx, dy, x, 0), n, [&](auto w, int64_t i, int64_t count) {
            LAUNCH((act_backward<E, w>), blocks_for(count, THREADS * w), THREADS, 0, act,
                   out(dx) + i, in(dy) + i, in(x) + i, count);
        });
    }

    static dim3 row_pieces(int64_t T, int64_t n, int w) {
        return dim3(static_cast<unsigned>(T), blocks_for(n, static_cast<int64_t>(THREADS) * w));
    }

    static void swiglu_forward_of(Team *, Act *y, const Act *x, int64_t T, int64_t F) {
        if (T == 0 || F == 0) return;
        by_words<E>(all_aligned(y, x, x, F), [&](auto w) {
            LAUNCH((swiglu_forward<E, w>), row_pieces(T, F, w), THREADS, 0, out(y), in(x), F);
        });
    }

    static void swiglu_backward_of(Team *, Act *dx, const Act *dy, const Act *x, int64_t T,
                                   int64_t F) {
        if (T == 0 || F == 0) return;
        by_words<E>(all_aligned(dx, dy, x, F), [&](auto w) {
            LAUNCH((swiglu_backward<E, w>), row_pieces(T, F, w), THREADS, 0, out(dx), in(dy), in(x),
                   F);
        });
    }

    static void bias_residual_of(Team *, Act *y, const Act *addend, const float *bias, int64_t T,
                                 int64_t N) {
        if (T == 0 || N == 0 || (!addend && !bias)) return;
        by_words<E>(all_aligned(y, addend, y, N), [&](auto w) {
            LAUNCH((residual<E, w>), row_pieces(T, N, w), THREADS, 0, out(y), in(addend), bias, N);
        });
    }

    static void bias_backward_of(Team *, float *dbias, const Act *dy, int64_t T, int64_t N) {
        if (T == 0 || N == 0) return;
        int64_t rows = (T + PANELS - 1) / PANELS;
        if (rows < PANEL) rows = PANEL;
        unsigned panels = blocks_for(T, rows);
        auto *sums =
            static_cast<float *>(device_scratch(panels * static_cast<size_t>(N) * sizeof(float)));
        by_words<E>(whole_words<E>(dy, N), [&](auto w) {
            LAUNCH((column_sums<E, w>), dim3(blocks_for(N, WARP * w), panels), THREADS, 0, sums,
                   in(dy), T, N, rows);
        });
        launch_add_panels(dbias, nullptr, sums, panels, N, N);
    }

    static void fill(Kernels *k) {
        k->act_forward = act_forward_of;
        k->act_backward = act_backward_of;
        k->swiglu_forward = swiglu_forward_of;
        k->swiglu_backward = swiglu_backward_of;
        k->bias_residual = bias_residual_of;
        k->bias_backward = bias_backward_of;
    }
};

} // namespace

extern "C" void activation_cuda(Kernels *k, bool is_bf16) {
    fill_by_type<Launchers>(k, is_bf16);
}
