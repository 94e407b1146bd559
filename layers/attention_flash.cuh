/* attention_flash -- tiles of heads in shared memory, and matmuls of a warp with them; for bf16, D
 * a multiple of 64.
 *
 * A tile is 64 rows of a head (tokens) of D elements, in chunks of 16 bytes. Chunk c of row r is
 * stored at position c ^ (r % 8). ldmatrix reads 8 x 8 matrices: the same chunk of 8 rows, which
 * are a multiple of 128 bytes apart. At these positions the 8 chunks lie in 8 different groups of
 * banks.
 *
 *     chunk      0  1  2  3  4  5  6  7
 *     row 0      0  1  2  3  4  5  6  7
 *     row 1      1  0  3  2  5  4  7  6
 *     row 2      2  3  0  1  6  7  4  5     ...
 *
 * A warp holds 16 rows (a slab) or several slabs of its matrix A in registers, and multiplies them
 * by a whole tile. The tile's rows are B's columns (times_transposed: scores) or B's rows (times:
 * sums over tokens). Each fragment that ldmatrix fetches serves all slabs.
 */
#ifndef LAYERS_ATTENTION_FLASH_CUH
#define LAYERS_ATTENTION_FLASH_CUH

#include "layers/cuda/launch.cuh"
#include "layers/cuda/ptx.cuh"
#include "layers/cuda/vec.cuh"

extern "C" {
#include "layers/attention.h"
}

// rows of a tile; elements of a chunk; columns of an accumulator
enum { TILE = 64, CHUNK = 8, COLUMNS = 8 };
constexpr float LN_2 = 0.693147181f;

/* A tile, by its address in shared memory. from: the tile without its first `row` rows, a multiple
 * of 8. */
template <int D> struct Tile {
    static constexpr int ROW_BYTES = D * 2, BYTES = TILE * ROW_BYTES;
    Shared at;
    __device__ __forceinline__ Tile from(int row) const { return {at + row * ROW_BYTES}; }
};

/* Registers of a lane for slabs of 16 rows: accumulators over N rows or D columns of a tile, and
 * operands of a matmul, which are pairs of bf16. */
template <int SLABS, int N> using Scores = float[SLABS][N / COLUMNS][4];
template <int SLABS, int D> using Sums = float[SLABS][D / COLUMNS][4];
template <int SLABS, int DEPTH> using Operand = unsigned[SLABS][DEPTH / 16][4];

template <int D> __device__ __forceinline__ Shared chunk_of(Tile<D> t, int row, int chunk) {
    return t.at + (row * Tile<D>::ROW_BYTES + (chunk ^ row % 8) * 16);
}

/* From the address of chunk c, which is 0 or 1, to that of chunk c + more of the same row; `more`
 * is even. The distance is a constant of the instruction, and takes no register. */
__device__ __forceinline__ Shared chunks_on(Shared at, int more) {
    return flipped(at, more * 16);
}

/* Begins to copy rows row0 .. row0 + 63 of a head into a tile, with zeros from row `end` on. Called
 * by all THREADS threads of the block. */
template <int D, int THREADS>
__device__ __forceinline__ void fetch(Tile<D> t, const bf16 *head, int64_t stride, int row0,
                                      int end) {
    // STEP: rows at once, a multiple of 8
    constexpr int CHUNKS = D / CHUNK, STEP = THREADS / CHUNKS;
    int row = static_cast<int>(threadIdx.x) / CHUNKS,
        chunk = static_cast<int>(threadIdx.x) % CHUNKS;
    const bf16 *from = head + (row0 + row) * stride + chunk * CHUNK;
    Shared to = chunk_of(t, row, chunk);
#pragma unroll
    for (int j = 0; j < TILE / STEP; j++)
        copy_async<16>(to + j * STEP * Tile<D>::ROW_BYTES, from + j * STEP * stride,
                       row0 + row + j * STEP < end);
}

/* Tiles of a head's keys and values, in two stages of shared memory: one is computed with while the
 * next is copied. The tiles go from `tile` down to 0, and the caller counts `tile` down. */
template <int D> struct KeyStage {
    static constexpr int BYTES = 2 * Tile<D>::BYTES;
    Tile<D> k, v;
};
template <int D, int THREADS> struct KeyTiles {
    const bf16 *k, *v;
    int64_t stride;
    int end, tile, at; // end: rows of the head. tile: the tile that next() gives. at: its stage
    __device__ __forceinline__ KeyStage<D> stage() const {
        Shared begin = shared_address(dynamic_shared<char>()) + at * KeyStage<D>::BYTES;
        return {{begin}, {begin + Tile<D>::BYTES}};
    }
    __device__ __forceinline__ void begin(int which) const {
        fetch<D, THREADS>(stage().k, k, stride, which * TILE, end);
        fetch<D, THREADS>(stage().v, v, stride, which * TILE, end);
        copy_commit();
    }
    /* Waits until this tile is complete for all threads, and begins to copy the next one, to its
     * left. */
    __device__ __forceinline__ KeyStage<D> next() {
        copy_wait<0>();
        __syncthreads();
        KeyStage<D> now = stage();
        at ^= 1;
        if (tile > 0) begin(tile - 1);
        return now;
    }
};

/* c[16, N] += a[16, 16] times columns 16k .. 16k + 15 of the first N rows of the tile,
 * transposed. */
template <int D, int SLABS, int N>
__device__ __forceinline__ void
times_transposed_step(Scores<SLABS, N> &c, const unsigned (&a)[SLABS][4], Tile<D> t, int k) {
    int lane = this_lane();
    Shared at = chunks_on(chunk_of(t, lane / 16 * 8 + lane % 8, lane / 8 % 2), 2 * k);
    // 16 rows of the tile are two matrices B of 8 columns
#pragma unroll
    for (int n = 0; n < N / COLUMNS; n += 2) {
        unsigned b[4];
        ldmatrix(b, at + n * 8 * Tile<D>::ROW_BYTES);
#pragma unroll
        for (int s = 0; s < SLABS; s++) {
            mma_bf16(c[s][n], a[s], b[0], b[1]);
            mma_bf16(c[s][n + 1], a[s], b[2], b[3]);
        }
    }
}

/* c += a tile', with a[16, D] of each slab in registers. */
template <int D, int SLABS, int N>
__device__ __forceinline__ void times_transposed(Scores<SLABS, N> &c, const Operand<SLABS, D> &a,
                                                 Tile<D> t) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        unsigned now[SLABS][4];
#pragma unroll
        for (int i = 0; i < SLABS * 4; i++) now[i / 4][i % 4] = a[i / 4][k][i % 4];
        times_transposed_step<D, SLABS, N>(c, now, t, k);
    }
}

/* c += a tile', where a is rows row0 .. row0 + 15 of another tile in shared memory: for a kernel
 * without registers for a. */
template <int D, int N>
__device__ __forceinline__ void times_transposed(Scores<1, N> &c, Tile<D> a, int row0, Tile<D> t) {
    Shared at = chunk_of(a, row0 + this_lane() % 16, this_lane() / 16);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        unsigned now[1][4];
        ldmatrix(now[0], chunks_on(at, 2 * k));
        times_transposed_step<D, 1, N>(c, now, t, k);
    }
}

/* o[16, D] += p[16, N] times the first N rows of the tile. */
template <int D, int SLABS, int N>
__device__ __forceinline__ void times(Sums<SLABS, D> &o, const Operand<SLABS, N> &p, Tile<D> t) {
    Shared at = chunk_of(t, this_lane() % 16, this_lane() / 16);
#pragma unroll
    for (int k = 0; k < N / 16; k++)
#pragma unroll
        for (int n = 0; n < D / COLUMNS; n += 2) {
            unsigned b[4];
            ldmatrix_trans(b, chunks_on(at, n) + k * 16 * Tile<D>::ROW_BYTES);
#pragma unroll
            for (int s = 0; s < SLABS; s++) {
                mma_bf16(o[s][n], p[s][k], b[0], b[1]);
                mma_bf16(o[s][n + 1], p[s][k], b[2], b[3]);
            }
        }
}

/* Rounds accumulators to bf16: the operand of the next matmul. */
template <int SLABS, int N>
__device__ __forceinline__ void to_operand(Operand<SLABS, N> &p, const Scores<SLABS, N> &c) {
#pragma unroll
    for (int s = 0; s < SLABS; s++)
#pragma unroll
        for (int i = 0; i < N / 16 * 4; i++) {
            const float *pair = &c[s][i / 4 * 2 + i % 4 / 2][i % 2 * 2];
            p[s][i / 4][i % 4] = pair_of(pair[0], pair[1]);
        }
}

/* Loads the operand of 16 rows of a head from memory, each pair into the lane that the fragment
 * gives it to; zeros from row `end` on. */
template <int D>
__device__ __forceinline__ void load_rows(unsigned (&a)[D / 16][4], const bf16 *head,
                                          int64_t stride, int row0, int end) {
    int lane = this_lane();
#pragma unroll
    for (int i = 0; i < D / 16 * 4; i++) {
        int row = row0 + lane / 4 + i % 2 * 8, k = i / 4 * 16 + lane % 4 * 2 + i % 4 / 2 * 8;
        a[i / 4][i % 4] =
            row < end ? *reinterpret_cast<const unsigned *>(head + row * stride + k) : 0;
    }
}

/* Stores the accumulators of 16 rows, times f0 (rows of the upper half) or f1 (of the lower half),
 * rounded, into a head. Rows from `end` on are not stored. */
template <int D>
__device__ __forceinline__ void store_rows(bf16 *head, int64_t stride, int row0, int end,
                                           const float (&o)[D / COLUMNS][4], float f0, float f1) {
    int lane = this_lane();
#pragma unroll
    for (int i = 0; i < D / COLUMNS * 2; i++) {
        int row = row0 + lane / 4 + i % 2 * 8, column = i / 2 * COLUMNS + lane % 4 * 2;
        const float *pair = &o[i / 2][i % 2 * 2];
        float f = i % 2 ? f1 : f0;
        if (row < end)
            *reinterpret_cast<unsigned *>(head + row * stride + column) =
                pair_of(pair[0] * f, pair[1] * f);
    }
}

/* Elements between two rows of qkv. */
__host__ __device__ __forceinline__ int64_t packed_stride(const Attention &a) {
    return (a.H + 2 * a.Hkv) * a.D;
}
/* The first token's D elements of block h of qkv in sequence b; blocks are query heads, then key
 * heads, then value heads. */
template <class E>
__host__ __device__ __forceinline__ E *packed_head(E *qkv, const Attention &a, int64_t b,
                                                   int64_t h) {
    return qkv + b * a.S * packed_stride(a) + h * a.D;
}
/* The first token's D elements of head h of out in sequence b. */
template <class E>
__host__ __device__ __forceinline__ E *out_head(E *out, const Attention &a, int64_t b, int64_t h) {
    return out + (b * a.S * a.H + h) * a.D;
}

/* Can the kernels by tiles serve a call with these operands? They take bf16 rows whose 16-byte
 * chunks are aligned, and D = 64 or 128. */
bool flash_serves(const Attention &a, const void *x, const void *y);
void flash_forward(const Attention &a, bf16 *out, float *lse, const bf16 *qkv);
/* For devices of capability 9.0 (attention_sm90.cu, attention_sm90_backward.cu). */
void sm90_forward(const Attention &a, bf16 *out, float *lse, const bf16 *qkv);
void sm90_backward(const Attention &a, bf16 *dqkv, const bf16 *dout, const bf16 *qkv,
                   const bf16 *out, const float *lse);
/* delta[B, H, S] = rowsum(out * dout) */
void flash_backward(const Attention &a, bf16 *dqkv, const bf16 *dout, const bf16 *qkv,
                    const float *lse, const float *delta);

#endif
