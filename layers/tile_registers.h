/* tile_registers -- sums of 32 rows x 32 columns in tile registers (AMX): tiles 0 to 3 are sums, 4
 * and 5 rows of the left matrix, 6 and 7 columns of the right one, 16 words of two bf16 each.
 *
 *            6  7
 *         4  0  1     rows 0 to 15
 *         5  2  3     rows 16 to 31, if there are `both`
 *
 * Loads and stores are of floats, or of words in floats; ld are those from row to row.
 */
#ifndef LAYERS_TILE_REGISTERS_H
#define LAYERS_TILE_REGISTERS_H

#include <stdbool.h>

#include "base/amx.h"

static inline void sums_load(const float *x, int64_t ld, bool both) {
    tile_load(0, x, ld);
    tile_load(1, x + TILE_SIDE, ld);
    if (!both) return;
    tile_load(2, x + TILE_SIDE * ld, ld);
    tile_load(3, x + TILE_SIDE * ld + TILE_SIDE, ld);
}
static inline void sums_zero(void) {
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
}
static inline void sums_store(float *x, int64_t ld, bool both) {
    tile_store(0, x, ld);
    tile_store(1, x + TILE_SIDE, ld);
    if (!both) return;
    tile_store(2, x + TILE_SIDE * ld, ld);
    tile_store(3, x + TILE_SIDE * ld + TILE_SIDE, ld);
}
/* sums += a b over 16 words: rows of a are lda apart, rows of b 32. */
static inline void sums_dot(const float *a, int64_t lda, const float *b, bool both) {
    tile_load(4, a, lda);
    tile_load(6, b, 2 * TILE_SIDE);
    tile_load(7, b + TILE_SIDE, 2 * TILE_SIDE);
    tile_dot(0, 4, 6);
    tile_dot(1, 4, 7);
    if (!both) return;
    tile_load(5, a + TILE_SIDE * lda, lda);
    tile_dot(2, 5, 6);
    tile_dot(3, 5, 7);
}

#endif
