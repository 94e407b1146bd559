#include "layers/matmul_tile.h"

#include <string.h>

#include "layers/matmul_rows.h"
#include "layers/tile_registers.h"

/* n <= VF neighbouring lanes of step k, contiguous in memory; the other lanes are 0. */
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

/* VF steps of one lane, from step k on, contiguous in memory; steps beyond K are 0. */
static inline __attribute__((always_inline)) vf lane_steps(PackKind kind, const float *src,
                                                           int64_t k, int64_t K) {
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

/* Packs lanes that are contiguous in memory (lane_stride 1), AT_ONCE rows of all panels at a time,
 * so that memory is read nearly in its order. A row of TILE_M may be narrower than the vector that
 * is stored: the surplus lanes fall on the next row, which is stored later; the last row is stored
 * exactly. Rows are prefetched to the L2: where they are a multiple of 4 KiB apart, the L1 has room
 * for eight. */
static inline __attribute__((always_inline)) void
pack_rows(PackKind kind, const Pack *p, float *dst, const int64_t *edge, int n) {
    enum { AT_ONCE = 8, AHEAD = 16 };
    int64_t steps = pack_steps(kind, p->K);
    for (int64_t k0 = 0; k0 < steps; k0 += AT_ONCE)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < p->width; j += VF) {
                int room = p->width - j < VF ? p->width - j : VF;
                int64_t left = edge[i + 1] - edge[i] - j;
                int got = left < room ? (left < 0 ? 0 : (int)left) : room;
                const float *src = p->src + edge[i] + (got ? j : 0);
                float *to = dst + i * p->panel_floats + j;
                int64_t per = kind == PACK_PAIR ? 2 : 1;
                for (int64_t k1 = per * (k0 + AHEAD);
                     k1 < per * (k0 + AHEAD + AT_ONCE) && k1 < p->K; k1++)
                    __builtin_prefetch(src + k1 * p->k_stride, 0, 2);
                int64_t end = k0 + AT_ONCE < steps ? k0 + AT_ONCE : steps - 1, k = k0;
                if (got == VF)
                    for (; k < end; k++)
                        vf_store(to + k * p->width, lanes(kind, src, VF, k, p->k_stride, p->K));
                else
                    for (; k < end; k++)
                        vf_store(to + k * p->width, lanes(kind, src, got, k, p->k_stride, p->K));
                if (end == steps - 1)
                    vf_store_n(to + k * p->width, lanes(kind, src, got, k, p->k_stride, p->K),
                               room);
            }
}

/* Packs up to VF lanes whose steps are contiguous in memory (k_stride 1), n of them from src and
 * the others 0: VF x VF blocks are transposed in registers. room: lanes that the panel still
 * has. */
static inline __attribute__((always_inline)) void
pack_transposed(PackKind kind, const Pack *p, float *dst, const float *src, int64_t n, int room) {
    enum { AHEAD = 8 * VF };
    int64_t steps = pack_steps(kind, p->K);
    for (int64_t k = 0; k < steps; k += VF) {
        vf r[VF];
        int64_t per = kind == PACK_PAIR ? 2 : 1, far = per * (k + AHEAD);
        const float *soon = far < p->K ? src + far : src + p->width * p->lane_stride + far - p->K;
        for (int i = 0; i < n && i < VF; i++) {
            __builtin_prefetch(soon + i * p->lane_stride);
            if (kind == PACK_PAIR) __builtin_prefetch(soon + i * p->lane_stride + 16);
        }
        for (int i = 0; i < VF; i++)
            r[i] = i < n ? lane_steps(kind, src + i * p->lane_stride, k, p->K) : vf_zero();
        vf_transpose(r);
        int rows = steps - k < VF ? (int)(steps - k) : VF;
        float *to = dst + k * p->width;
        if (k + VF < steps) {
            for (int i = 0; i < VF; i++) vf_store(to + i * p->width, r[i]);
        } else {
            for (int i = 0; i < rows; i++) vf_store_n(to + i * p->width, r[i], room);
        }
    }
}

static inline __attribute__((always_inline)) void pack(PackKind kind, const Pack *p, float *dst,
                                                       const int64_t *edge, int n) {
    if (p->lane_stride == 1) {
        pack_rows(kind, p, dst, edge, n);
        return;
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < p->width; j += VF)
            pack_transposed(kind, p, dst + i * p->panel_floats + j,
                            p->src + (edge[i] + j) * p->lane_stride, edge[i + 1] - edge[i] - j,
                            p->width - j < VF ? p->width - j : VF);
}

void pack_panels(const Pack *p, float *dst, const int64_t *edge, int n) {
    if (p->kind == PACK_FLOAT)
        pack(PACK_FLOAT, p, dst, edge, n);
    else if (p->kind == PACK_ROUND)
        pack(PACK_ROUND, p, dst, edge, n);
    else
        pack(PACK_PAIR, p, dst, edge, n);
}

/* Packs all steps of one lane to a row of the panel. */
static inline __attribute__((always_inline)) void copy_steps(PackKind kind, const Pack *p,
                                                             float *dst, const float *src) {
    enum { AHEAD = 4 }; // rows
    int64_t steps = pack_steps(kind, p->K), per = kind == PACK_PAIR ? 2 : 1;
    const float *soon = src + AHEAD * p->lane_stride;
    for (int64_t k = 0; k < steps; k += VF) {
        vf_store(dst + k, lane_steps(kind, src, k, p->K));
        __builtin_prefetch(soon + per * k);
        if (per * VF > 16) __builtin_prefetch(soon + per * k + 16);
    }
}

void pack_by_rows(const Pack *p, float *dst, const int64_t *edge, int n) {
    for (int i = 0; i < n; i++)
        for (int64_t row = 0; row < edge[i + 1] - edge[i]; row++) {
            const float *src = p->src + (edge[i] + row) * p->lane_stride;
            float *to = dst + i * p->panel_floats + row * A_ROW;
            if (p->kind == PACK_FLOAT)
                copy_steps(PACK_FLOAT, p, to, src);
            else if (p->kind == PACK_ROUND)
                copy_steps(PACK_ROUND, p, to, src);
            else
                copy_steps(PACK_PAIR, p, to, src);
        }
}

/* Packs a block of 16 steps of 16 rows for a tile register; only `rows` of them are not 0. */
static void pack_block(const Pack *p, float *dst, const float *src, int64_t rows, int64_t k) {
    int64_t steps = pack_steps(PACK_PAIR, p->K);
    vf r[VF];
    for (int i = 0; i < VF; i++) r[i] = vf_zero();
    if (p->k_stride == 1) {
        for (int i = 0; i < VF && i < rows; i++)
            r[i] = lane_steps(PACK_PAIR, src + i * p->lane_stride, k, p->K);
    } else if (rows > 0) {
        int n = rows < VF ? (int)rows : VF;
        for (int i = 0; i < VF && k + i < steps; i++) {
            r[i] = lanes(PACK_PAIR, src, n, k + i, p->k_stride, p->K);
            __builtin_prefetch(src + 2 * (k + i + VF) * p->k_stride);
            __builtin_prefetch(src + (2 * (k + i + VF) + 1) * p->k_stride);
        }
        vf_transpose(r);
    }
    for (int i = 0; i < VF; i++) vf_store(dst + i * VF, r[i]);
}

/* Where the rows of a step are contiguous, steps are the outer loop and panels the inner one:
 * memory is read in longer runs. */
void pack_tiles(const Pack *p, float *dst, const int64_t *edge, int n) {
    int64_t steps = pack_steps(PACK_PAIR, p->K), most = p->k_stride == 1 ? steps : VF;
    for (int64_t k0 = 0; k0 < steps; k0 += most)
        for (int i = 0; i < n; i++)
            for (int64_t k = k0; k < k0 + most; k += VF)
                for (int64_t row = 0; row < p->width; row += VF)
                    pack_block(p, dst + i * p->panel_floats + (k * p->width + row * VF),
                               p->src + (edge[i] + row) * p->lane_stride,
                               edge[i + 1] - edge[i] - row, k);
}

static inline void copy_rows(float *to, int64_t to_ld, const float *from, int64_t ld, int rows) {
    for (int i = 0; i < rows; i++) memcpy(to + i * to_ld, from + i * ld, TILE_N * sizeof *to);
}

/* One tile of a run, by tile registers. The sums begin with `addend`. Panels are not prefetched: 64
 * cache lines of two panels in 64 cycles of multiplications are as much as the L2 delivers. */
static void multiply_tiles(const Tile *t, int tile) {
    float sum[PAIRS_M * TILE_N] __attribute__((aligned(64)));
    const float *a = t->a + tile * t->next_a, *b = t->b + tile * t->next_b,
                *addend = t->addend ? t->addend + tile * t->next_y : NULL;
    float *y = t->y + tile * t->next_y;
    bool both = t->rows > TILE_SIDE, whole = t->rows % TILE_SIDE == 0;
    for (int i = 0; i < 2; i++) // not y, whose sums are loaded at once
        for (int row = 0; t->wanted[i] && t->wanted[i] != t->y && row < t->rows; row++)
            fetch_row(t->wanted[i] + tile * t->next_y + row * t->ld_wanted);
    int64_t k = 0, rest = t->steps % TILE_SIDE, ld = t->ld;
    if (addend && whole) {
        sums_load(addend, ld, both);
    } else if (addend) {
        copy_rows(sum, TILE_N, addend, ld, t->rows);
        sums_load(sum, TILE_N, both);
    } else {
        sums_zero();
    }
    for (; k < t->steps - rest; k += TILE_SIDE, a += PAIRS_M * TILE_SIDE)
        sums_dot(a, TILE_SIDE, b + k * TILE_N, both);
    if (rest) { // floats behind the panel of b may be NaN
        float last[TILE_SIDE * TILE_N] __attribute__((aligned(64))) = {0};
        memcpy(last, b + k * TILE_N, (size_t)(rest * TILE_N) * sizeof *last);
        sums_dot(a, TILE_SIDE, last, both);
    }
    if (whole) {
        sums_store(y, ld, both);
    } else {
        sums_store(sum, TILE_N, both);
        copy_rows(y, ld, sum, TILE_N, t->rows);
    }
}

static inline __attribute__((always_inline)) void multiply_pairs(int rows, const Tile *t) {
    if (t->raw && t->a_by_rows)
        multiply_rows(true, true, A_BY_ROWS, rows, t);
    else if (t->raw)
        multiply_rows(true, true, A_BY_STEPS, rows, t);
    else if (t->a_by_rows)
        multiply_rows(true, false, A_BY_ROWS, rows, t);
    else
        multiply_rows(true, false, A_BY_STEPS, rows, t);
}

EACH_ROWS(multiply_pairs);

void tile_multiply(const Tile *t) {
    if (!SIMD_BF16 || !t->pairs)
        tile_multiply_floats(t);
    else if (!SIMD_TILES)
        MULTIPLY(multiply_pairs, t);
    else
        for (int tile = 0; tile < t->n; tile++) multiply_tiles(t, tile);
}
