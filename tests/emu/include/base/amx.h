/* amx -- replaces base/amx.h by plain C, to test its callers on processors without tiles. Using a
 * tile outside of tiles_begin and tiles_end ends the program. */
#ifndef BASE_AMX_H
#define BASE_AMX_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { TILE_SIDE = 16, SIMD_TILES = 1 };

typedef struct TileFile {
    bool ready;
    uint32_t of[8][TILE_SIDE][TILE_SIDE];
} TileFile;
// shared by all files that include this header
__attribute__((weak)) _Thread_local TileFile tile_file;

static inline uint32_t (*tile_at_number(int tile))[TILE_SIDE] {
    if (!tile_file.ready || tile < 0 || tile > 7) abort();
    return tile_file.of[tile];
}
static inline void tiles_begin(void) {
    memset(&tile_file, 0, sizeof tile_file);
    tile_file.ready = true;
}
static inline void tiles_end(void) {
    memset(&tile_file, 0xff, sizeof tile_file); // NaN
    tile_file.ready = false;
}
static inline void tile_zero(int tile) {
    memset(tile_at_number(tile), 0, sizeof tile_file.of[0]);
}
static inline void tile_load(int tile, const float *from, int64_t row_floats) {
    uint32_t(*t)[TILE_SIDE] = tile_at_number(tile);
    for (int i = 0; i < TILE_SIDE; i++) memcpy(t[i], from + i * row_floats, sizeof t[i]);
}
static inline void tile_store(int tile, float *to, int64_t row_floats) {
    uint32_t(*t)[TILE_SIDE] = tile_at_number(tile);
    for (int i = 0; i < TILE_SIDE; i++) memcpy(to + i * row_floats, t[i], sizeof t[i]);
}
static inline float tile_half(uint32_t pair, bool high) {
    uint32_t bits = high ? pair & 0xffff0000u : pair << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline void tile_dot(int c, int a, int b) {
    uint32_t(*x)[TILE_SIDE] = tile_at_number(a), (*y)[TILE_SIDE] = tile_at_number(b);
    float z[TILE_SIDE][TILE_SIDE];
    memcpy(z, tile_at_number(c), sizeof z);
    for (int m = 0; m < TILE_SIDE; m++)
        for (int k = 0; k < TILE_SIDE; k++)
            for (int n = 0; n < TILE_SIDE; n++)
                z[m][n] += tile_half(x[m][k], false) * tile_half(y[k][n], false) +
                           tile_half(x[m][k], true) * tile_half(y[k][n], true);
    memcpy(tile_at_number(c), z, sizeof z);
}

#endif
