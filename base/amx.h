/* amx -- the tile registers of AMX: 8 tiles of 16 rows of 64 bytes, and dot products of bf16 pairs.
 *
 *     tile_dot(c, a, b)   c[m][n] += a[m][k].low * b[k][n].low + a[m][k].high * b[k][n].high
 *
 * with fp32 c[16][16] and dwords a[16][16], b[16][16] that hold two bf16 each. Tile numbers are
 * constants from 0 to 7; calls are statements, not expressions. A thread works on tiles between
 * tiles_begin and tiles_end. SIMD_TILES is 0 where the instruction set has no tiles; the functions
 * are then never called. Tests compile the same callers against tests/emu/include/base/amx.h, which
 * does the same in plain C.
 */
#ifndef BASE_AMX_H
#define BASE_AMX_H

#include <stdint.h>

enum { TILE_SIDE = 16 };

#if defined(__AMX_BF16__) || defined(__AMXBF16__) // clang before 16
#include <immintrin.h>

enum { SIMD_TILES = 1 };
static inline void tiles_begin(void) { // configures all 8 tiles as 16 rows of 64 bytes
    const struct {
        uint8_t palette, start_row, zero[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1,
               .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
               .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shape);
}
static inline void tiles_end(void) {
    _tile_release();
}
#define tile_zero(tile) _tile_zero(tile)
// gcc 12 does not know that _tile_loadd reads memory, and might drop stores before it
#define tile_load(tile, from, row_floats)                                                          \
    do {                                                                                           \
        __asm__ volatile("" ::: "memory");                                                         \
        _tile_loadd(tile, from, (row_floats)*4);                                                   \
    } while (0)
#define tile_store(tile, to, row_floats) _tile_stored(tile, to, (row_floats)*4)
#define tile_dot(c, a, b)                _tile_dpbf16ps(c, a, b)
#else
enum { SIMD_TILES = 0 };
static inline void tiles_begin(void) {}
static inline void tiles_end(void) {}
static inline void tile_zero(int tile) {
    (void)tile;
}
static inline void tile_load(int tile, const float *from, int64_t row_floats) {
    (void)tile, (void)from, (void)row_floats;
}
static inline void tile_store(int tile, float *to, int64_t row_floats) {
    (void)tile, (void)to, (void)row_floats;
}
static inline void tile_dot(int c, int a, int b) {
    (void)c, (void)a, (void)b;
}
#endif

#endif
