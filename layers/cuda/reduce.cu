/* reduce on CUDA: a warp takes a row, a lane 16 bytes of it at a time. Rows that are contiguous are
 * one long row, which is cut into many.
 *
 * A collective runs beside matmuls: a reduce, and a gather for each src, has no more blocks than
 * there are multiprocessors, and no shared memory.
 *
 * Bound by memory, or by the links to the peers: each src is read once, each dst written once.
 * Three versions: single elements or bytes, which is plain and serves what is not aligned; 4 bytes
 * of a gather; 16 bytes. The tree over src is unrolled for up to 8 or up to 64 of them, so that its
 * sums stay in registers. Not tried: sums in the switch (multimem), which a single GPU does not
 * have. */
#include <algorithm>
#include <type_traits>

#include "layers/cuda/launch.cuh"
#include "layers/cuda/vec.cuh"

extern "C" {
#include "layers/cuda/reduce.h"
}

namespace {

enum { THREADS = 512, WARPS = THREADS / WARP, STEPS = 4 };
/* Levels of the tree: over up to 8 src, the usual number of ranks, and over up to 64. */
enum { FEW = 3, ALL = 6 };

/* Elements of a part of a long row: what a warp moves in STEPS steps. */
template <int W> constexpr int64_t cut = WARP *W *STEPS;

/* Blocks for so many rows: at most one per multiprocessor. */
unsigned blocks_of(int64_t rows) {
    unsigned all = blocks_for(rows, WARPS), most = static_cast<unsigned>(device_sms());
    return all < most ? all : most;
}

bool aligned(const void *p, int64_t n_bytes) {
    return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(n_bytes) == 0;
}

/* --- reduce */

/* a += b, rounded to E. */
template <class E, int W>
__device__ __forceinline__ void add_words(Vec<E, W> &a, const Vec<E, W> &b) {
    if constexpr (std::is_same_v<E, double> || std::is_same_v<E, uint32_t>) {
#pragma unroll
        for (int j = 0; j < W; j++) a.elem[j] += b.elem[j];
    } else {
        float x[W], y[W];
        unpack(x, a), unpack(y, b);
#pragma unroll
        for (int j = 0; j < W; j++) x[j] += y[j];
        pack(a, x);
    }
}

/* The words of a src as 32-bit registers. Elements of 16 bits would be unpacked as soon as they
 * arrive, and the thread would wait for one src before it loads the next. */
template <class E, int W>
using Raw = std::conditional_t<sizeof(Vec<E, W>) == 16, Vec<unsigned, 4>, Vec<E, W>>;

/* sum = the tree over src first .. first + 2^LEVEL - 1, as far as they exist, for N words of a lane
 * that are a warp's width apart. The N loads of a src are in flight at once. */
template <class E, int W, int N, int LEVEL>
__device__ __forceinline__ void tree(Raw<E, W> (&sum)[N], const Reduce &f, int first,
                                     int64_t from) {
    if constexpr (LEVEL == 0) {
        const E *src = static_cast<const E *>(f.src[first]) + from;
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] = *reinterpret_cast<const Raw<E, W> *>(src + i * WARP * W);
    } else {
        Raw<E, W> x[N];
        int second = first + (1 << (LEVEL - 1));
        tree<E, W, N, LEVEL - 1>(sum, f, first, from);
        if (second >= f.n_src) return;
        tree<E, W, N, LEVEL - 1>(x, f, second, from);
#pragma unroll
        for (int i = 0; i < N; i++) {
            Vec<E, W> a, b;
            memcpy(&a, &sum[i], sizeof a), memcpy(&b, &x[i], sizeof b);
            add_words(a, b);
            memcpy(&sum[i], &a, sizeof a);
        }
    }
}

template <class E, int W, int N, int LEVEL>
__device__ __forceinline__ void reduce_words(const Reduce &f, int64_t to, int64_t from) {
    Raw<E, W> sum[N];
    tree<E, W, N, LEVEL>(sum, f, 0, from);
    for (int i = 0; i < f.n_dst; i++)
#pragma unroll
        for (int k = 0; k < N; k++)
            // the offset counts words: so the compiler knows that a word is aligned, and stores it
            // by one instruction
            static_cast<Raw<E, W> *>(f.dst[i])[to / W + k * WARP] = sum[k];
}

/* Reduces all rows of n elements in total; the last row may end before f.cols. With few src a lane
 * takes the words of all STEPS steps at once: single words of one block would not keep memory
 * busy. */
template <class E, int W, int LEVEL>
__global__ void reduce_rows(const __grid_constant__ Reduce f, int64_t n) {
    constexpr int N = LEVEL <= FEW ? static_cast<int>(STEPS) : 1;
    int64_t row = static_cast<int64_t>(blockIdx.x) * WARPS + this_warp();
    for (; row < f.rows; row += static_cast<int64_t>(gridDim.x) * WARPS) {
        int64_t col = this_lane() * W, last = f.cols < n - row * f.cols ? f.cols : n - row * f.cols;
        for (; N > 1 && col + (N - 1) * WARP * W + W <= last; col += N * WARP * W)
            reduce_words<E, W, N, LEVEL>(f, row * f.cols + col, row * f.src_ld + col);
        for (; col < f.cols; col += WARP * W) {
            int64_t to = row * f.cols + col, from = row * f.src_ld + col;
            if (to + W <= n)
                reduce_words<E, W, 1, LEVEL>(f, to, from);
            else
                for (; to < n; to++, from++) reduce_words<E, 1, 1, LEVEL>(f, to, from);
        }
    }
}

template <class E> bool whole_reduce(const Reduce &f) {
    bool whole = f.rows == 1 || (f.cols % width<E> == 0 && f.src_ld % width<E> == 0);
    for (int i = 0; i < f.n_src; i++) whole = whole && aligned(f.src[i], 16);
    for (int i = 0; i < f.n_dst; i++) whole = whole && aligned(f.dst[i], 16);
    return whole;
}

/* Chooses the tree for the number of src; cuts a single row. */
template <class E, int W> void launch_reduce(Stream s, Reduce f) {
    static_assert(1 << ALL == REDUCE_MOST, "a tree over all src");
    int64_t n = f.rows * f.cols;
    if (f.rows == 1) f.rows = (n + cut<W> - 1) / cut<W>, f.cols = f.src_ld = cut<W>;
    if (f.n_src <= 1 << FEW)
        LAUNCH_ON(s, (reduce_rows<E, W, FEW>), blocks_of(f.rows), THREADS, 0, f, n);
    else
        LAUNCH_ON(s, (reduce_rows<E, W, ALL>), blocks_of(f.rows), THREADS, 0, f, n);
}

template <class E> void reduce_of(Stream s, Reduce f) {
    if (f.rows * f.cols == 0) return;
    if (f.src_ld == f.cols) f.cols *= f.rows, f.rows = 1;
    by_words<E>(whole_reduce<E>(f), [&](auto w) { launch_reduce<E, w>(s, f); });
}

/* --- gather: blockIdx.y is the src */

template <class Vector> __global__ void gather_rows(const __grid_constant__ Gather g, int64_t n) {
    const char *src = static_cast<const char *>(g.src[blockIdx.y]);
    char *dst = static_cast<char *>(g.dst[blockIdx.y]);
    int64_t src_ld = g.src_ld[blockIdx.y], W = sizeof(Vector);
    int64_t row = static_cast<int64_t>(blockIdx.x) * WARPS + this_warp();
    for (; row < g.rows; row += static_cast<int64_t>(gridDim.x) * WARPS)
#pragma unroll 4
        for (int64_t col = this_lane() * W; col < g.cols; col += WARP * W) {
            char *to = dst + row * g.dst_ld + col;
            const char *from = src + row * src_ld + col;
            int64_t left = n - (row * g.cols + col);
            if (left >= W)
                *reinterpret_cast<Vector *>(to) = *reinterpret_cast<const Vector *>(from);
            else
                for (int64_t i = 0; i < left; i++) to[i] = from[i];
        }
}

bool gathers_by(const Gather &g, int64_t n_bytes) {
    bool whole = g.rows == 1 || (g.cols % n_bytes == 0 && g.dst_ld % n_bytes == 0);
    for (int i = 0; i < g.n; i++)
        whole = whole && (g.rows == 1 || g.src_ld[i] % n_bytes == 0) &&
                aligned(g.src[i], n_bytes) && aligned(g.dst[i], n_bytes);
    return whole;
}

template <class Vector> void launch_gather(Stream s, Gather g) {
    constexpr int64_t CUT = cut<static_cast<int>(sizeof(Vector))>;
    int64_t n = g.rows * g.cols;
    if (g.rows == 1) {
        g.rows = (n + CUT - 1) / CUT, g.cols = g.dst_ld = CUT;
        for (int i = 0; i < g.n; i++) g.src_ld[i] = CUT;
    }
    dim3 grid(blocks_of(g.rows), static_cast<unsigned>(g.n));
    LAUNCH_ON(s, (gather_rows<Vector>), grid, THREADS, 0, g, n);
}

void gather_of(Stream s, Gather g) {
    bool touch = g.dst_ld == g.cols;
    if (g.n == 0 || g.rows * g.cols == 0) return;
    for (int i = 0; i < g.n; i++) touch = touch && g.src_ld[i] == g.cols;
    if (touch) g.cols *= g.rows, g.rows = 1;
    if (gathers_by(g, sizeof(uint4)))
        launch_gather<uint4>(s, g);
    else if (gathers_by(g, sizeof(uint32_t)))
        launch_gather<uint32_t>(s, g);
    else
        launch_gather<char>(s, g);
}

} // namespace

extern "C" {

void device_reduce(Stream s, const Reduce *f, ReduceType type) {
    switch (type) {
    case REDUCE_BF16:
        reduce_of<bf16>(s, *f);
        break;
    case REDUCE_F32:
        reduce_of<float>(s, *f);
        break;
    case REDUCE_F64:
        reduce_of<double>(s, *f);
        break;
    case REDUCE_I32:
        reduce_of<uint32_t>(s, *f);
        break;
    }
}

void device_gather(Stream s, const Gather *g) {
    gather_of(s, *g);
}

void device_move_blocks(Stream s, int n, int64_t rows, int64_t cols, Blocks dst, Blocks src) {
    for (int first = 0; first < n; first += REDUCE_MOST) {
        Gather g = {};
        g.n = std::min(n - first, static_cast<int>(REDUCE_MOST)), g.rows = rows, g.cols = cols,
        g.dst_ld = dst.ld;
        for (int i = 0; i < g.n; i++) {
            g.src[i] = src.p + (first + i) * src.stride,
            g.dst[i] = dst.p + (first + i) * dst.stride;
            g.src_ld[i] = src.ld;
        }
        gather_of(s, g);
    }
}
}
