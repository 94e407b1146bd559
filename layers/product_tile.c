#include "layers/product_tile.h"

/* VF lanes from consecutive memory: a row of the source becomes a row of the panel. */
static inline __attribute__((always_inline)) vf lanes(PackKind kind, const float *src, int n,
                                                      int64_t k, int64_t k_stride, int64_t K) {
    if (kind != PACK_PAIR) {
        vf x = n == VF ? vf_load(src + k * k_stride) : vf_load_n(src + k * k_stride, n);
        return kind == PACK_ROUND ? vf_round_bf16(x) : x;
    }
    const float *s = src + 2 * k * k_stride;
    vf x = n == VF ? vf_load(s) : vf_load_n(s, n), y = vf_zero();
    if (2 * k + 1 < K) y = n == VF ? vf_load(s + k_stride) : vf_load_n(s + k_stride, n);
    return vf_pair_rows(x, y);
}

/* One lane of VF consecutive steps from k on, by consecutive memory; steps beyond K are 0. */
static inline __attribute__((always_inline)) vf run(PackKind kind, const float *src, int64_t k,
                                                    int64_t K) {
    if (kind != PACK_PAIR) {
        vf x = k + VF <= K ? vf_load(src + k) : vf_load_n(src + k, (int)(K - k));
        return kind == PACK_ROUND ? vf_round_bf16(x) : x;
    }
    const float *s = src + 2 * k;
    int64_t left = K - 2 * k;
    if (left >= 2 * VF) return vf_pair_run(vf_load(s), vf_load(s + VF));
    vf x = left >= VF ? vf_load(s) : vf_load_n(s, (int)left);
    vf y = left > VF ? vf_load_n(s + VF, (int)(left - VF)) : vf_zero();
    return vf_pair_run(x, y);
}

/* The n <= VF lanes of one vector in each row of the panel. A row of TILE_M may be narrower than
 * the vector that is stored: the surplus lanes fall on the next row, which is stored after; the
 * last row is stored exactly. */
static inline __attribute__((always_inline)) void pack_vector(PackKind kind, float *dst, int width,
                                                              int room, const float *src, int n,
                                                              int64_t lane_stride, int64_t k_stride,
                                                              int64_t K) {
    int64_t steps = pack_steps(kind, K);
    if (lane_stride == 1) {
        for (int64_t k = 0; k < steps - 1; k++)
            vf_store(dst + k * width, lanes(kind, src, n, k, k_stride, K));
        if (steps)
            vf_store_n(dst + (steps - 1) * width, lanes(kind, src, n, steps - 1, k_stride, K),
                       room);
        return;
    }
    for (int64_t k = 0; k < steps; k += VF) {
        vf r[VF];
        for (int i = 0; i < VF; i++)
            r[i] = i < n ? run(kind, src + i * lane_stride, k, K) : vf_zero();
        vf_transpose(r);
        int rows = steps - k < VF ? (int)(steps - k) : VF;
        if (rows == VF && k + VF < steps) {
            for (int i = 0; i < VF; i++) vf_store(dst + (k + i) * width, r[i]);
        } else {
            for (int i = 0; i < rows; i++) vf_store_n(dst + (k + i) * width, r[i], room);
        }
    }
}

void pack_panel(PackKind kind, float *dst, int width, const float *src, int64_t n,
                int64_t lane_stride, int64_t k_stride, int64_t K) {
    for (int j = 0; j < width; j += VF) {
        int room = width - j < VF ? width - j : VF, got = n - j < room ? (int)(n - j) : room;
        const float *s = src + j * lane_stride;
        if (got <= 0) {
            for (int64_t k = 0; k < pack_steps(kind, K); k++)
                vf_store_n(dst + k * width + j, vf_zero(), room);
        } else if (kind == PACK_FLOAT) {
            pack_vector(PACK_FLOAT, dst + j, width, room, s, got, lane_stride, k_stride, K);
        } else if (kind == PACK_ROUND) {
            pack_vector(PACK_ROUND, dst + j, width, room, s, got, lane_stride, k_stride, K);
        } else {
            pack_vector(PACK_PAIR, dst + j, width, room, s, got, lane_stride, k_stride, K);
        }
    }
}

static inline __attribute__((always_inline)) void
sum_rows(bool pairs, int rows, float *tile, const float *a, const float *b, int64_t steps) {
    vf acc[TILE_M][TILE_V];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < TILE_V; j++) acc[i][j] = vf_zero();
    for (int64_t k = 0; k < steps; k++, a += TILE_M, b += TILE_N) {
        vf row[TILE_V];
#pragma GCC unroll 4
        for (int j = 0; j < TILE_V; j++) row[j] = vf_load(b + j * VF);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            vf x = vf_set1(a[i]);
#pragma GCC unroll 4
            for (int j = 0; j < TILE_V; j++)
                acc[i][j] = pairs ? vf_dot2(x, row[j], acc[i][j]) : vf_fma(x, row[j], acc[i][j]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < TILE_V; j++) vf_store(tile + i * TILE_N + j * VF, acc[i][j]);
}

void tile_sum(bool pairs, int rows, float *tile, const float *a, const float *b, int64_t steps,
              const float *next, int64_t next_lines) {
    for (int64_t i = 0; i < next_lines; i++) __builtin_prefetch(next + 16 * i, 0, 2);
#define ROWS(r)                                                                                    \
    case r:                                                                                        \
        if (r > TILE_M) break;                                                                     \
        if (SIMD_BF16 && pairs)                                                                    \
            sum_rows(true, r <= TILE_M ? r : TILE_M, tile, a, b, steps);                           \
        else                                                                                       \
            sum_rows(false, r <= TILE_M ? r : TILE_M, tile, a, b, steps);                          \
        break
    switch (rows) {
        ROWS(1);
        ROWS(2);
        ROWS(3);
        ROWS(4);
        ROWS(5);
        ROWS(6);
        ROWS(7);
        ROWS(8);
        ROWS(9);
        ROWS(10);
        ROWS(11);
        ROWS(12);
        ROWS(13);
        ROWS(14);
    }
#undef ROWS
}
