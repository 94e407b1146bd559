/* matmul_tile -- the two inner parts of the matmul: packing a panel, and one register tile of y.
 *
 * A panel is a packed operand of the innermost loop. For each step k of the sum, a panel of b has
 * the values of TILE_N columns side by side, a panel of a those of TILE_M rows; or, where rows of a
 * are contiguous in memory, a panel of a is packed row by row. A step is one element of K; or, in
 * bf16 on sets with a dot product, a dword with two elements of K, so that both dtypes have the
 * same loops:
 *
 *      a panel [steps][TILE_M]     b panel [steps][TILE_N]     tile of y in registers (AVX-512)
 *      k=0  a0 a1 ... a13          b0 b1 ............ b31      14 x 2 vectors of 16: 28 sums,
 *      k=1  a0 a1 ... a13          b0 b1 ............ b31      2 for the row of b, 1 for the
 *      ...                                                     element of a: 31 of 32 registers
 *
 *      set             tile     sums   loads for each step (28, 12, 8 FMA)
 *      avx512[_bf16]   14 x 32   28    2 + 23 (fp32), 2 + 14 (pairs)
 *      avx512_amx      32 x 32   4     4, of tiles for 16 steps; bf16 only, fp32 as avx512
 *      avx2             6 x 16   12    2 + 6
 *      portable         4 x 8     8    2 + 4
 */
#ifndef LAYERS_MATMUL_TILE_H
#define LAYERS_MATMUL_TILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/simd_block.h"

enum {
    TILE_M = VF == 16 ? 14 : VF / 2 + 2, // 14, 6 or 4 rows
    TILE_V = 2,                          // vectors in a row of the tile
    TILE_N = TILE_V * VF,
    PAIRS_M = SIMD_TILES ? 2 * TILE_SIDE : TILE_M, // rows of a tile where steps are pairs
    MOST_M = PAIRS_M > TILE_M ? PAIRS_M : TILE_M,
    // A panel of b (columns) stays in the L1 while panels of a (rows) stream from the L2; with more
    // registers rows stay and columns stream.
    COLUMNS_STAY = (VF < 16),
    A_STEPS = 384, // most steps of a panel of a
    // Floats from row to row of a panel packed row by row. Odd, so that rows do not begin new cache
    // lines at the same step: the loads of 14 lines from the L2 would be waited for.
    A_ROW = A_STEPS + 17,
};

typedef enum {
    PACK_FLOAT, // a step is one element
    PACK_ROUND, // one element, rounded to bfloat16
    PACK_PAIR,  // two elements in bfloat16, the first in the low half (sets with SIMD_BF16 only)
} PackKind;

static inline int64_t pack_steps(PackKind kind, int64_t K) {
    return kind == PACK_PAIR ? (K + 1) / 2 : K;
}
static inline int tile_rows(PackKind kind) {
    return kind == PACK_PAIR ? PAIRS_M : TILE_M;
}
/* Are matmuls of this kind done by tile registers (AMX)? */
static inline bool tile_registers(PackKind kind) {
    return SIMD_TILES && kind == PACK_PAIR;
}

/* Local. Packs n neighbouring panels of `width` lanes: TILE_M rows of a, or TILE_N columns of b.
 * Panel i has the lanes edge[i] to edge[i + 1], at most width, and zeros in the other lanes; it is
 * written to dst + i * panel_floats. The element k < K of a lane is src[lane * lane_stride + k *
 * k_stride]; one of the strides is 1. No other element is read. */
typedef struct Pack {
    PackKind kind;
    int width;
    int64_t panel_floats;
    const float *src;
    int64_t lane_stride, k_stride, K;
} Pack;
void pack_panels(const Pack *p, float *dst, const int64_t *edge, int n);
/* Local. The same with each lane in a row of its own, A_ROW floats apart; k_stride is 1. */
void pack_by_rows(const Pack *p, float *dst, const int64_t *edge, int n);
/* Local. The same for panels of a that tile registers read: blocks of 16 steps, [steps /
 * 16][PAIRS_M][16], the last one filled up with 0. */
void pack_tiles(const Pack *p, float *dst, const int64_t *edge, int n);

/* Cache lines, `stride` floats apart, that a tile prefetches: where rows stay one line with each
 * step of the sum, where columns stay n lines, some with each part of the sum. */
typedef struct Fetch {
    const float *from;
    int64_t stride, n;
} Fetch;

/* Local. Prefetches a row of a tile of y; x may be NULL. Inlined, as gcc 12 drops calls that only
 * prefetch. */
static inline __attribute__((always_inline)) void fetch_row(const float *x) {
    if (!x) return;
    for (int j = 0; j < TILE_N; j += 16) __builtin_prefetch(x + j, 1);
    // the row ends in one more cache line
    if ((uintptr_t)x % 64) __builtin_prefetch(x + TILE_N - 1, 1);
}

/* Local. y[i][j] = addend[i][j] + sum over steps of a panel times b panel + bias[j], for i < rows
 * <= tile_rows() and all j < TILE_N; rows of y and of addend are ld apart, addend may be y or NULL
 * (0). bias may be NULL (and is NULL where tile registers multiply). pairs: the panels are
 * PACK_PAIR.
 *
 * tile_multiply computes a run of n such tiles, side by side or, where columns stay, one under the
 * other: between two tiles nothing is multiplied, so as little as possible happens there. */
typedef struct Tile {
    bool pairs;
    int rows;
    int64_t steps, ld;
    const float *addend, *bias;
    float *a, *b, *y;
    // Matrices like y, or NULL, of which the finished tile reads or writes rows, ld_wanted apart.
    // The rows are prefetched one by one while the tile is summed: all at once they would delay the
    // loads of panels.
    const float *wanted[2];
    int64_t ld_wanted;
    // Not NULL: b is not packed yet. Tiles read TILE_N columns of its rows here, raw_stride floats
    // apart, and pack them to b, which costs nothing beside the multiplications. With pairs the
    // number of rows is even.
    const float *raw;
    int64_t raw_stride;
    // no other tile reads these columns: a tile of one row (a token that is sampled) does not pack
    // them
    bool raw_once;
    bool a_by_rows; // panels of a were packed by pack_by_rows; never where columns stay
    // Not NULL: a is not packed yet. Tiles read it here, and pack it to a. The elements of a step
    // are contiguous, for all rows; those of the next step are raw_a_stride floats behind them.
    // Never with raw, pairs or a_by_rows.
    const float *raw_a;
    int64_t raw_a_stride;
    int n; // tiles of the run
    // floats from a tile to the next one; next_y is that of addend and wanted, too
    int64_t next_a, next_b, next_y, next_bias, next_raw, next_raw_a;
    const Fetch *fetch; // [n]
} Tile;
void tile_multiply(const Tile *t);
/* Local. The same where steps are elements; compiled once for all sets that have the same
 * registers. */
void tile_multiply_floats(const Tile *t);

#endif
