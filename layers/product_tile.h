/* product_tile -- the two inner parts of the product: packing a panel, and one register tile of y.
 *
 * A panel is what the innermost loop reads: for each step k of the sum, the values of TILE_M rows
 * of a (or TILE_N columns of b) side by side. A step is one element of K, or in bf16 on sets with a
 * dot product a dword with two elements of K, so that both types have the same loops:
 *
 *      a panel [steps][TILE_M]        b panel [steps][TILE_N]         tile of y in registers
 *      k=0  a0 a1 ... a13             b0 b1 ............ b31          14 x 2 vectors of 16: 28
 * sums, 2 for the row of b, k=1  a0 a1 ... a13             b0 b1 ............ b31          1 for
 * the broadcast element of a: 31 of 32 registers
 *
 *      set             tile     sums   loads for each step (28, 12, 12 FMA)
 *      avx512[_bf16]   14 x 32   28    2 + 14
 *      avx2             6 x 16   12    2 + 6
 *      portable         4 x 8     8    2 + 4
 */
#ifndef LAYERS_PRODUCT_TILE_H
#define LAYERS_PRODUCT_TILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/simd_block.h"

enum {
    TILE_M = VF == 16  ? 14
             : VF == 8 ? 6
                       : 4,
    TILE_V = 2, // vectors in a row of the tile
    TILE_N = TILE_V * VF,
};

typedef enum {
    PACK_FLOAT, // a step is one element
    PACK_ROUND, // one element, rounded to bfloat16
    PACK_PAIR,  // two elements in bfloat16, the first in the low half (sets with SIMD_BF16 only)
} PackKind;

static inline int64_t pack_steps(PackKind kind, int64_t K) {
    return kind == PACK_PAIR ? (K + 1) / 2 : K;
}

/* Local. dst[steps][width] from the elements src[lane * lane_stride + k * k_stride], lane < n, k <
 * K; lanes n.. are 0. width is TILE_M or TILE_N, one of the strides is 1. Reads no element but
 * these. */
void pack_panel(PackKind kind, float *dst, int width, const float *src, int64_t n,
                int64_t lane_stride, int64_t k_stride, int64_t K);

/* Local. tile[rows][TILE_N] = sum over steps of a panel times b panel; rows <= TILE_M. `next` is a
 * place that will be read soon: its first next_lines cache lines are fetched on the way. */
void tile_sum(bool pairs, int rows, float *tile, const float *a, const float *b, int64_t steps,
              const float *next, int64_t next_lines);

#endif
