/* move on CUDA. Copies and zeros move bytes, 16 at a time where addresses and strides allow it.
 * Bound by memory: a copy reads and writes each byte once, a sum of floats reads 8 and writes 4,
 * to_bf16 reads 4 and writes 2.
 *
 * Copies, from plain to fast: rows by single elements, which is plain; rows by 16 bytes, where both
 * matrices are aligned; one copy of the driver's, where rows are contiguous. Sums and to_bf16: one
 * float per thread for the remainder and for what is not aligned; 16 bytes of floats per thread.
 * Memory is cleared by the driver. */
#include "layers/cuda/launch.cuh"
#include "layers/cuda/sums.cuh"
#include "layers/cuda/vec.cuh"

extern "C" {
#include "layers/cuda/families.h"
}

namespace {

enum { THREADS = 256, WARPS = THREADS / WARP };

/* A warp copies a row; a lane moves one Vector at a time. */
template <class Vector>
__global__ void copy_rows(Vector *to, int64_t to_ld, const Vector *from, int64_t from_ld,
                          int64_t rows, int64_t n) {
    int64_t r = static_cast<int64_t>(blockIdx.x) * WARPS + this_warp();
    if (r >= rows) return;
    for (int64_t i = this_lane(); i < n; i += WARP) to[r * to_ld + i] = from[r * from_ld + i];
}

template <int W> __global__ void add_floats(float *y, const float *x, int64_t n) {
    int64_t i = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * W;
    if (i >= n) return;
    float a[W], b[W];
    load<float, W>(a, y + i);
    load<float, W>(b, x + i);
#pragma unroll
    for (int j = 0; j < W; j++) a[j] += b[j];
    store<float, W>(y + i, a);
}

__global__ void fill_tokens(int32_t *to, int64_t n, int32_t pad) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i < n) to[i] = pad;
}

void zero_of(Team *, void *x, size_t n_bytes) {
    device_zero(x, n_bytes);
}

template <class Vector>
void launch_copy(void *to, int64_t to_ld, const void *from, int64_t from_ld, int64_t rows,
                 int64_t n, int64_t in_vector) {
    LAUNCH((copy_rows<Vector>), blocks_for(rows, WARPS), THREADS, 0, static_cast<Vector *>(to),
           to_ld / in_vector, static_cast<const Vector *>(from), from_ld / in_vector, rows,
           n / in_vector);
}

void copy_of(Team *, void *to, int64_t to_ld, const void *from, int64_t from_ld, int64_t rows,
             int64_t n, size_t elem_bytes) {
    if (n == 0 || rows == 0) return;
    if (rows == 1 || (to_ld == n && from_ld == n))
        return device_copy(to, from, static_cast<size_t>(rows * n) * elem_bytes);
    int64_t words = 16 / static_cast<int64_t>(elem_bytes);
    bool whole = reinterpret_cast<uintptr_t>(to) % 16 == 0 &&
                 reinterpret_cast<uintptr_t>(from) % 16 == 0 && to_ld % words == 0 &&
                 from_ld % words == 0 && n % words == 0;
    if (whole)
        launch_copy<uint4>(to, to_ld, from, from_ld, rows, n, words);
    else if (elem_bytes == 4)
        launch_copy<uint32_t>(to, to_ld, from, from_ld, rows, n, 1);
    else if (elem_bytes == 2)
        launch_copy<uint16_t>(to, to_ld, from, from_ld, rows, n, 1);
    else
        die("copy of elements of %zu bytes", elem_bytes);
}

void add_to_of(Team *, float *y, const float *x, int64_t n) {
    bool aligned = whole_words<float>(y, 0) && whole_words<float>(x, 0);
    by_words_and_rest<4>(aligned, n, [&](auto w, int64_t i, int64_t count) {
        LAUNCH(add_floats<w>, blocks_for(count, THREADS * w), THREADS, 0, y + i, x + i, count);
    });
}

template <int W> __global__ void round_floats(bf16 *to, const float *from, int64_t n) {
    int64_t i = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * W;
    if (i >= n) return;
    float a[W];
    load<float, W>(a, from + i);
    store<bf16, W>(to + i, a);
}

void to_bf16_of(Act *to, const float *from, int64_t n) {
    auto *words = static_cast<bf16 *>(to);
    bool aligned = whole_words<float>(from, 0) && reinterpret_cast<uintptr_t>(to) % 8 == 0;
    by_words_and_rest<4>(aligned, n, [&](auto w, int64_t i, int64_t count) {
        LAUNCH(round_floats<w>, blocks_for(count, THREADS * w), THREADS, 0, words + i, from + i,
               count);
    });
}

/* Copies elements to the host as floats, and waits. Elements of two bytes arrive in the second half
 * of `to` and are widened from its beginning: element i is read at byte 2n + 2i, after all bytes
 * that the floats before it overwrite. */
template <class E> void to_floats_of(float *to, const Act *from, int64_t n) {
    auto bytes = static_cast<size_t>(n) * sizeof(E);
    char *at = reinterpret_cast<char *>(to) + static_cast<size_t>(n) * sizeof *to - bytes;
    device_get(at, from, bytes);
    device_wait();
    for (int64_t i = 0; i < n; i++) {
        E element;
        memcpy(static_cast<void *>(&element), at + static_cast<size_t>(i) * sizeof element,
               sizeof element);
        to[i] = to_float(element);
    }
}

/* Copies a batch's tokens from the host; tokens n .. T - 1 become `pad`. */
void copy_tokens_of(int32_t *to, int64_t T, const int32_t *from, int64_t n, int32_t pad) {
    if (!from) return;
    device_put(to, from, static_cast<size_t>(n) * sizeof *to);
    if (n < T) LAUNCH(fill_tokens, blocks_for(T - n, THREADS), THREADS, 0, to + n, T - n, pad);
}

void sum_to(double *sum, const float *x, int64_t n, bool add) {
    launch_sum<Itself>(sum, x, n, add);
}
double sum_of_floats(const float *x, int64_t n) {
    return wait_for_sum<Itself>(x, n);
}

} // namespace

extern "C" void move_cuda(Kernels *k, bool is_bf16) {
    k->to_floats = is_bf16 ? to_floats_of<bf16> : to_floats_of<float>;
    k->to_bf16 = is_bf16 ? to_bf16_of : nullptr;
    k->add_to = add_to_of;
    k->zero = zero_of;
    k->copy = copy_of;
    k->copy_tokens = copy_tokens_of;
    k->sum_of = sum_of_floats;
    k->sum_to = sum_to;
}
