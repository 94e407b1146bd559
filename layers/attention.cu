/* attention on CUDA: the plain kernels, for any D and both dtypes. Calls that tiles can serve go to
 * attention_flash*.cu and attention_sm90*.cu, which keep the tensor cores busy.
 *
 * A block computes one row, of the output or of a gradient. It walks over the tokens that
 * contribute to the row, 128 at a time: its warps compute the dot products, one token per warp,
 * with the lanes along D. Then its threads take one column each and sum over these tokens. Every
 * block reads all its rows from memory again. Every sum has a fixed order. */
#include "layers/attention_flash.cuh"

extern "C" {
#include "layers/cuda/families.h"
}

namespace {

enum { THREADS = 128, WARPS = THREADS / WARP };

__device__ __forceinline__ int64_t this_block() {
    return blockIdx.x;
}

/* x . y over D, in all lanes. */
template <class X, class Y> __device__ __forceinline__ float dot(const X *x, const Y *y, int D) {
    float sum = 0;
    for (int d = this_lane(); d < D; d += WARP) sum += to_float(x[d]) * to_float(y[d]);
    return warp_sum(sum);
}

/* to[0 .. D) = from, as floats. give_row: to[0 .. D) = f from, rounded to E. */
template <class E> __device__ __forceinline__ void take_row(float *to, const E *from, int D) {
    for (int d = static_cast<int>(threadIdx.x); d < D; d += THREADS) to[d] = to_float(from[d]);
}
template <class E>
__device__ __forceinline__ void give_row(E *to, const float *from, int D, float f) {
    for (int d = static_cast<int>(threadIdx.x); d < D; d += THREADS) from_float(to[d], from[d] * f);
}
__device__ __forceinline__ void zero_row(float *x, int D) {
    for (int d = static_cast<int>(threadIdx.x); d < D; d += THREADS) x[d] = 0;
}

/* sum[0 .. D) = f sum + sum over j < n of weight[j] row[j]. */
template <class E>
__device__ __forceinline__ void add_rows(float *sum, float f, const float *weight, const E *row,
                                         int64_t stride, int n, int D) {
    for (int d = static_cast<int>(threadIdx.x); d < D; d += THREADS) {
        float s = sum[d] * f;
        for (int j = 0; j < n; j++) s += weight[j] * to_float(row[j * stride + d]);
        sum[d] = s;
    }
}

/* Operands of attend_row. Each sequence has `rows` queries, the first at position `first`. q_stride
 * and k_stride are elements between two tokens. Training has all rows of a sequence; decoding has
 * one row at position `first`, and keys from the cache. */
template <class E> struct Rows {
    const E *q, *k;
    int64_t q_stride, k_stride, rows, first;
};

/* One row of the output, by the online softmax: maximum and sum are updated for every 128 keys.
 * Shared memory: q[D], o[D], weight[THREADS]. */
template <class E>
__global__ void __launch_bounds__(THREADS)
    attend_row(E *out, float *lse, Rows<E> x, Attention a, float scale) {
    int D = static_cast<int>(a.D), lane = this_lane();
    auto *q = dynamic_shared<float>(), *o = q + D, *weight = o + D;
    int64_t r = this_block() % x.rows, bh = this_block() / x.rows, b = bh / a.H, h = bh % a.H;
    int64_t n = x.first + r + 1, g = h / (a.H / a.Hkv);
    const E *k = x.k + b * a.S * x.k_stride + g * D, *v = k + a.Hkv * D;
    take_row(q, x.q + (b * x.rows + r) * x.q_stride + h * D, D);
    zero_row(o, D);
    float max = -INFINITY, sum = 0;
    for (int64_t j0 = 0; j0 < n; j0 += THREADS) {
        int m = n - j0 < THREADS ? static_cast<int>(n - j0) : static_cast<int>(THREADS);
        __syncthreads(); // q is loaded, and no thread reads weights of the step before
        for (int j = this_warp(); j < m; j += WARPS) {
            float s = dot(q, k + (j0 + j) * x.k_stride, D) * scale;
            if (lane == 0) weight[j] = s;
        }
        __syncthreads();
        float before = max, part = 0;
        for (int j = lane; j < m; j += WARP) max = fmaxf(max, weight[j]);
        max = warp_max(max);
        __syncthreads();
        int mine = static_cast<int>(threadIdx.x);
        if (mine < m) weight[mine] = exp2f(weight[mine] - max);
        __syncthreads();
        for (int j = lane; j < m; j += WARP) part += weight[j];
        float f = exp2f(before - max);
        sum = sum * f + warp_sum(part);
        add_rows(o, f, weight, v + j0 * x.k_stride, x.k_stride, m, D);
    }
    give_row(out + ((b * x.rows + r) * a.H + h) * D, o, D, 1 / sum);
    if (lse && threadIdx.x == 0) lse[bh * a.S + r] = (max + log2f(sum)) * LN_2;
}

/* --- backward: P = exp2(scale q . k - lse), dP = dout . v, dS = P (dP - delta), delta = out . dout
 *
 *     dQ = sum over keys of dS K
 *     dK = sum over heads and queries of dS Q
 *     dV = sum over heads and queries of P dout */

/* delta[b, h, s] = out . dout, a row per warp. */
template <class E>
__global__ void __launch_bounds__(THREADS)
    row_dots(float *delta, const E *out, const E *dout, Attention a) {
    int64_t row = this_block() * WARPS + this_warp(), n = a.B * a.S * a.H;
    if (row >= n) return;
    int D = static_cast<int>(a.D);
    float s = dot(out + row * D, dout + row * D, D);
    int64_t b = row / (a.S * a.H), at = row / a.H % a.S, h = row % a.H;
    if (this_lane() == 0) delta[(b * a.H + h) * a.S + at] = s;
}

template <class E> struct Gradients {
    E *dqkv;
    const E *dout, *qkv;
    const float *lse, *delta;
};

/* dQ of one row. Shared memory: q[D], dout[D], dq[D], weight[THREADS]. */
template <class E>
__global__ void __launch_bounds__(THREADS)
    gradient_of_query(Gradients<E> x, Attention a, float scale) {
    int D = static_cast<int>(a.D);
    auto *q = dynamic_shared<float>(), *dout = q + D, *dq = dout + D, *weight = dq + D;
    int64_t r = this_block() % a.S, bh = this_block() / a.S, b = bh / a.H, h = bh % a.H;
    int64_t stride = packed_stride(a), g = h / (a.H / a.Hkv);
    const E *k = packed_head(x.qkv, a, b, a.H + g), *v = k + a.Hkv * D;
    take_row(q, packed_head(x.qkv, a, b, h) + r * stride, D);
    take_row(dout, out_head(x.dout, a, b, h) + r * a.H * D, D);
    zero_row(dq, D);
    float lse = x.lse[bh * a.S + r], delta = x.delta[bh * a.S + r];
    for (int64_t j0 = 0; j0 <= r; j0 += THREADS) {
        int m = r + 1 - j0 < THREADS ? static_cast<int>(r + 1 - j0) : static_cast<int>(THREADS);
        __syncthreads();
        for (int j = this_warp(); j < m; j += WARPS) {
            float s = dot(q, k + (j0 + j) * stride, D), dp = dot(dout, v + (j0 + j) * stride, D);
            if (this_lane() == 0) weight[j] = exp2f(s * scale - lse * LOG2_E) * (dp - delta);
        }
        __syncthreads();
        add_rows(dq, 1, weight, k + j0 * stride, stride, m, D);
    }
    give_row(packed_head(x.dqkv, a, b, h) + r * stride, dq, D, scale * LN_2);
}

/* dK and dV of one row, over all query heads that share it. Shared memory: k[D], v[D], dk[D],
 * dv[D], p[THREADS], ds[THREADS]. */
template <class E>
__global__ void __launch_bounds__(THREADS)
    gradient_of_key(Gradients<E> x, Attention a, float scale) {
    int D = static_cast<int>(a.D);
    auto *k = dynamic_shared<float>(), *v = k + D, *dk = v + D, *dv = dk + D;
    float *p = dv + D, *ds = p + THREADS;
    int64_t r = this_block() % a.S, bg = this_block() / a.S, b = bg / a.Hkv, g = bg % a.Hkv;
    int64_t stride = packed_stride(a), group = a.H / a.Hkv, wide = a.H * D;
    const E *key = packed_head(x.qkv, a, b, a.H + g) + r * stride;
    E *dkey = packed_head(x.dqkv, a, b, a.H + g) + r * stride;
    take_row(k, key, D);
    take_row(v, key + a.Hkv * D, D);
    zero_row(dk, D);
    zero_row(dv, D);
    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        const float *lse = x.lse + (b * a.H + h) * a.S, *delta = x.delta + (b * a.H + h) * a.S;
        for (int64_t i0 = r; i0 < a.S; i0 += THREADS) {
            int m = a.S - i0 < THREADS ? static_cast<int>(a.S - i0) : static_cast<int>(THREADS);
            const E *q = packed_head(x.qkv, a, b, h) + i0 * stride;
            const E *dout = out_head(x.dout, a, b, h) + i0 * wide;
            __syncthreads();
            for (int i = this_warp(); i < m; i += WARPS) {
                float s = dot(k, q + i * stride, D), dp = dot(v, dout + i * wide, D);
                float weight = exp2f(s * scale - lse[i0 + i] * LOG2_E);
                if (this_lane() == 0) p[i] = weight, ds[i] = weight * (dp - delta[i0 + i]);
            }
            __syncthreads();
            add_rows(dk, 1, ds, q, stride, m, D);
            add_rows(dv, 1, p, dout, wide, m, D);
        }
    }
    give_row(dkey, dk, D, scale * LN_2);
    give_row(dkey + a.Hkv * D, dv, D, 1);
}

/* --- launchers */

template <class E> struct Launchers {
    static const E *in(const Act *x) { return static_cast<const E *>(x); }
    static E *out(Act *x) { return static_cast<E *>(x); }
    static float scale_of(const Attention &a) { return LOG2_E / sqrtf(static_cast<float>(a.D)); }
    static size_t shared_for(const Attention &a, int rows, int weights) {
        return (static_cast<size_t>(a.D) * rows + weights * THREADS) * sizeof(float);
    }
    static bool nothing(const Attention &a) { return a.B == 0 || a.S == 0 || a.H == 0; }

    static void forward_of(Team *, const Attention *a, Act *to, float *lse, const Act *qkv) {
        if (nothing(*a)) return;
        if constexpr (std::is_same<E, bf16>::value)
            if (flash_serves(*a, qkv, to))
                return (device_is_sm90() ? sm90_forward : flash_forward)(*a, out(to), lse, in(qkv));
        int64_t stride = packed_stride(*a);
        Rows<E> x = {in(qkv), in(qkv) + a->H * a->D, stride, stride, a->S, 0};
        LAUNCH(attend_row<E>, static_cast<unsigned>(a->B * a->H * a->S), THREADS,
               shared_for(*a, 2, 1), out(to), lse, x, *a, scale_of(*a));
    }

    static void backward_of(Team *, const Attention *a, Act *dqkv, const Act *dout, const Act *qkv,
                            const Act *o, const float *lse) {
        if (nothing(*a)) return;
        bool flash = std::is_same<E, bf16>::value && flash_serves(*a, qkv, dqkv) &&
                     flash_serves(*a, dout, o);
        if constexpr (std::is_same<E, bf16>::value)
            if (flash && device_is_sm90())
                return sm90_backward(*a, out(dqkv), in(dout), in(qkv), in(o), lse);
        int64_t rows = a->B * a->S * a->H;
        auto *delta = static_cast<float *>(a->workspace);
        LAUNCH(row_dots<E>, blocks_for(rows, WARPS), THREADS, 0, delta, in(o), in(dout), *a);
        if constexpr (std::is_same<E, bf16>::value)
            if (flash) return flash_backward(*a, out(dqkv), in(dout), in(qkv), lse, delta);
        Gradients<E> x = {out(dqkv), in(dout), in(qkv), lse, delta};
        LAUNCH(gradient_of_query<E>, static_cast<unsigned>(rows), THREADS, shared_for(*a, 3, 1), x,
               *a, scale_of(*a));
        LAUNCH(gradient_of_key<E>, static_cast<unsigned>(a->B * a->S * a->Hkv), THREADS,
               shared_for(*a, 4, 2), x, *a, scale_of(*a));
    }

    static void decode_of(Team *, const Attention *a, Act *to, const Act *q, const Act *cache,
                          int64_t pos) {
        if (nothing(*a)) return;
        Rows<E> x = {in(q), in(cache), a->H * a->D, 2 * a->Hkv * a->D, 1, pos};
        LAUNCH(attend_row<E>, static_cast<unsigned>(a->B * a->H), THREADS, shared_for(*a, 2, 1),
               out(to), static_cast<float *>(nullptr), x, *a, scale_of(*a));
    }

    static void fill(Kernels *k) {
        k->attention_forward = forward_of;
        k->attention_backward = backward_of;
        k->attention_decode = decode_of;
    }
};

} // namespace

extern "C" void attention_cuda(Kernels *k, bool is_bf16) {
    fill_by_type<Launchers>(k, is_bf16);
}
