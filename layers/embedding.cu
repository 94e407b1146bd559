/* embedding on CUDA. Bound by memory; bytes per token with bf16 elements:
 *
 *     forward    read 2C of wte (4C of wpe from L2), write 2C
 *     backward   read 2C once for dwte and once for dwpe; read and write 4C for rows of dwte that
 *                occur
 *
 * Many tokens add to one row of dwte. So the host sorts the tokens (embedding_order), and the sum
 * over the tokens of each row has a fixed order. A block takes CHUNK sorted tokens and adds runs of
 * equal tokens in registers. A run that lies within the chunk is added to dwte by the block. A run
 * that crosses chunks leaves a partial sum per chunk in the workspace, and a second kernel adds
 * these:
 *
 *     sorted    5 5 5 5 | 5 5 8 9 | 9 9 9 9 | 9 20 20 21
 *     pieces          ->|->     ->|->  9  ->|->
 *
 * Most runs have one token. Rows of dx, and the rows of dwte that runs end in, are fetched AHEAD at
 * a time; otherwise each token would take two latencies of memory.
 *
 * Not taken for dwte: a pass over all tokens for each of its rows, which reads V T tokens;
 * atomicAdd, whose sums have the order of the threads; a sort on the device, 7 more calls for what
 * the host does while the device computes. The other kernels have W = 1, plain, for rows that are
 * not aligned, and W elements (16 bytes) per thread.
 */
#include "layers/cuda/launch.cuh"
#include "layers/cuda/sizes.h"
#include "layers/cuda/vec.cuh"

extern "C" {
#include "layers/cuda/families.h"
}

namespace {

enum { THREADS = 128, CHUNK = EMBEDDING_CHUNK, AHEAD = 4 }; // rows of dx fetched together
static_assert(CHUNK + 2 <= THREADS, "a thread for each token of a chunk");

/* Local row of the token table for token t; -1: another rank has it. */
__device__ __forceinline__ int64_t token_row(const Embedding &e, int64_t t) {
    int64_t row = static_cast<int64_t>(e.tokens[t]) - e.token0;
    return row >= 0 && row < e.V ? row : -1;
}

/* Column of a thread, in words of W elements: blockIdx.x is the row of a matrix, blockIdx.y a part
 * of it. */
__device__ __forceinline__ int64_t this_column() {
    return static_cast<int64_t>(blockIdx.y) * THREADS + threadIdx.x;
}

template <class E, int W> __global__ void forward_rows(E *x, Embedding e) {
    int64_t t = blockIdx.x, c = this_column() * W, row = token_row(e, t);
    if (c >= e.C) return;
    float v[W] = {0}, p[W];
    if (row >= 0) load<E, W>(v, static_cast<const E *>(e.wte) + row * e.C + c);
    if (e.wpe) {
        load<float, W>(p, e.wpe + (e.first + t % e.S) * e.C + c);
#pragma unroll
        for (int j = 0; j < W; j++) v[j] += p[j];
    }
    // the offset counts words: so the compiler knows that a word is aligned, and stores it by one
    // instruction
    store<E, W>(x + (t * (e.C / W) + this_column()) * W, v);
}

/* x += wpe, where row t of x is token t0 + t. */
template <class E, int W> __global__ void position_rows(E *x, Embedding e, int64_t t0) {
    int64_t t = blockIdx.x, c = this_column() * W;
    if (c >= e.C) return;
    float v[W], p[W];
    load<E, W>(v, x + t * e.C + c);
    load<float, W>(p, e.wpe + (e.first + (t0 + t) % e.S) * e.C + c);
#pragma unroll
    for (int j = 0; j < W; j++) v[j] += p[j];
    store<E, W>(x + t * e.C + c, v);
}

/* dwpe of a position: the sum over its tokens, one of each sequence, in their order. Row t of dx is
 * token t0 + t; T rows. */
template <class E, int W>
__global__ void position_sums(const E *dx, Embedding e, int64_t T, int64_t t0) {
    int64_t c = this_column() * W, s = (t0 + blockIdx.x) % e.S;
    if (c >= e.C) return;
    float sum[W] = {0}, v[W];
#pragma unroll 4
    for (int64_t t = blockIdx.x; t < T; t += e.S) {
        load<E, W>(v, dx + t * e.C + c);
#pragma unroll
        for (int j = 0; j < W; j++) sum[j] += v[j];
    }
    float *dwpe = e.dwpe + (e.first + s) * e.C + c;
    load<float, W>(v, dwpe);
#pragma unroll
    for (int j = 0; j < W; j++) v[j] += sum[j];
    store<float, W>(dwpe, v);
}

/* --- dwte */

struct Chunk {
    // of the chunk, with one more before and after; row -1: none
    int row[CHUNK + 2], token[CHUNK + 2];
};

template <int W> __device__ __forceinline__ void add(float (&sum)[W], const float (&v)[W]) {
#pragma unroll
    for (int j = 0; j < W; j++) sum[j] += v[j];
}

/* Does a run end with the chunk's token i that began in this chunk? Then its sum is added to
 * dwte. */
__device__ __forceinline__ bool ends_whole_run(const Chunk &chunk, int i) {
    int row = chunk.row[1 + i];
    return chunk.row[2 + i] != row && chunk.row[0] != row;
}

/* Adds the runs of one chunk. pieces[chunks, 2, C]: the partial sums of the run that began in an
 * earlier chunk, and of the run that goes on in the next chunk. */
template <class E, int W>
__global__ void __launch_bounds__(THREADS)
    sum_runs(float *pieces, const E *dx, Embedding e, int T) {
    auto &chunk = shared<Chunk>();
    int begin = static_cast<int>(blockIdx.x) * CHUNK, n = begin + CHUNK < T ? CHUNK : T - begin;
    if (int i = static_cast<int>(threadIdx.x); i < n + 2) {
        int at = begin + i - 1, token = at >= 0 && at < T ? e.order[at] : -1;
        chunk.token[i] = token;
        chunk.row[i] = token < 0 ? -1 : static_cast<int>(token_row(e, token));
    }
    __syncthreads();
    int64_t C = e.C, c = this_column() * W;
    if (c >= C) return;
    while (n > 0 && chunk.row[n] < 0) n--; // tokens of other ranks are sorted to the end
    float *dwte = e.dwte + c, *piece = pieces + blockIdx.x * 2 * C + c, sum[W] = {0};
    for (int i = 0; i < n; i += AHEAD) {
        float v[AHEAD][W], old[AHEAD][W];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (i + j >= n) break;
            load<E, W>(v[j], dx + chunk.token[1 + i + j] * C + c);
            if (ends_whole_run(chunk, i + j))
                load<float, W>(old[j], dwte + chunk.row[1 + i + j] * C);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (i + j >= n) break;
            int row = chunk.row[1 + i + j];
            bool last = chunk.row[2 + i + j] != row;
            add<W>(sum, v[j]);
            if (!last && i + j < n - 1) continue;
            // one store for both cases: of two stores, nvcc splits those of W = 4 into floats
            float *to = piece + (chunk.row[0] == row ? 0 : C);
            if (ends_whole_run(chunk, i + j)) add<W>(sum, old[j]), to = dwte + row * C;
            store<float, W>(to, sum);
#pragma unroll
            for (int k = 0; k < W; k++) sum[k] = 0;
        }
    }
}

/* Adds to dwte the partial sums, in order, of the run that begins in this chunk and goes on in the
 * next. */
template <int W> __global__ void join_runs(const float *pieces, Embedding e, int T) {
    int begin = static_cast<int>(blockIdx.x) * CHUNK, end = begin + CHUNK;
    int64_t C = e.C, c = this_column() * W;
    if (end >= T || c >= C) return;
    auto row_at = [&](int i) { return token_row(e, e.order[i]); };
    int64_t row = row_at(end - 1);
    bool begins = begin == 0 || row_at(begin - 1) != row || row_at(begin) != row;
    if (row < 0 || row_at(end) != row || !begins) return;
    float *dwte = e.dwte + row * C + c, sum[W], v[W];
    load<float, W>(sum, pieces + (blockIdx.x * 2 + 1) * C + c);
    for (int64_t p = blockIdx.x + 1; end < T && row_at(end) == row; p++, end += CHUNK) {
        load<float, W>(v, pieces + p * 2 * C + c);
        add<W>(sum, v);
    }
    load<float, W>(v, dwte);
    add<W>(sum, v);
    store<float, W>(dwte, sum);
}

/* --- launchers */

template <class E> struct Launchers {
    static const E *in(const Act *x) { return static_cast<const E *>(x); }

    static dim3 row_pieces(int64_t rows, int64_t C, int w) {
        return dim3(static_cast<unsigned>(rows), blocks_for(C, static_cast<int64_t>(THREADS) * w));
    }
    static bool all_aligned(const void *x, const void *w, int64_t C) {
        return whole_words<E>(x, C) && whole_words<float>(w, C);
    }
    /* Rows that are tokens; rows beyond the batch are padding. */
    static int64_t token_rows(const Embedding *e, int64_t T, int64_t t0) {
        int64_t left = e->B * e->S - t0;
        return left < 0 ? 0 : left < T ? left : T;
    }

    static void forward_of(Team *, const Embedding *e, Act *x) {
        int64_t T = e->B * e->S;
        if (T == 0 || e->C == 0) return;
        auto *to = static_cast<E *>(x);
        by_words<E>(all_aligned(x, e->wpe, e->C) && whole_words<E>(e->wte, 0), [&](auto w) {
            LAUNCH((forward_rows<E, w>), row_pieces(T, e->C, w), THREADS, 0, to, *e);
        });
    }

    static void position_forward_of(Team *, const Embedding *e, int64_t T, int64_t t0, Act *x) {
        int64_t rows = token_rows(e, T, t0);
        if (rows == 0 || e->C == 0) return;
        auto *to = static_cast<E *>(x);
        by_words<E>(all_aligned(x, e->wpe, e->C), [&](auto w) {
            LAUNCH((position_rows<E, w>), row_pieces(rows, e->C, w), THREADS, 0, to, *e, t0);
        });
    }

    static void position_backward_of(Team *, const Embedding *e, int64_t T, int64_t t0,
                                     const Act *dx) {
        int64_t rows = token_rows(e, T, t0), positions = rows < e->S ? rows : e->S;
        if (rows == 0 || e->C == 0) return;
        by_words<E>(all_aligned(dx, e->dwpe, e->C), [&](auto w) {
            LAUNCH((position_sums<E, w>), row_pieces(positions, e->C, w), THREADS, 0, in(dx), *e,
                   rows, t0);
        });
    }

    static void backward_of(Team *, const Embedding *e, const Act *dx) {
        int64_t T = e->B * e->S;
        if (T == 0 || e->C == 0 || e->V == 0) return;
        auto *sums = static_cast<float *>(e->workspace);
        int n = static_cast<int>(T);
        by_words<E>(all_aligned(dx, e->dwte, e->C), [&](auto w) {
            dim3 grid = row_pieces(blocks_for(T, CHUNK), e->C, w);
            LAUNCH((sum_runs<E, w>), grid, THREADS, 0, sums, in(dx), *e, n);
            LAUNCH((join_runs<w>), grid, THREADS, 0, sums, *e, n);
        });
    }

    static void fill(Kernels *k) {
        k->embedding_forward = forward_of;
        k->embedding_backward = backward_of;
        k->position_forward = position_forward_of;
        k->position_backward = position_backward_of;
    }
};

} // namespace

extern "C" void embedding_cuda(Kernels *k, bool is_bf16) {
    fill_by_type<Launchers>(k, is_bf16);
}
