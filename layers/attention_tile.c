#include "layers/attention_tile.h"

#include "base/minmax.h"
#include "layers/tile_registers.h"

static int64_t whole_tiles(int64_t words) {
    return (words + TILE_SIDE - 1) / TILE_SIDE * TILE_SIDE;
}

Shape attention_shape(const Attention *a) {
    Shape s = {.S = a->S, .D = a->D, .pair = a->bf16 && SIMD_BF16, .round = a->bf16 && !SIMD_BF16};
    s.tiles = SIMD_TILES && s.pair;
    s.mr = s.tiles ? 2 * TILE_SIDE : MR;
    s.Dw = s.pair ? (a->D + 1) / 2 : a->D;
    if (s.tiles) s.Dw = whole_tiles(s.Dw);
    s.Dn = (a->D + NR - 1) / NR;
    s.Do = s.Dn * NR;
    s.Sp = (a->S + BC - 1) / BC * BC;
    s.Sw = s.pair ? s.Sp / 2 : s.Sp;
    return s;
}

int64_t attention_pieces(int n_members, int64_t n_heads, int64_t S, int64_t each) {
    int64_t n = (n_members * each + n_heads - 1) / n_heads, tiles = (S + BR - 1) / BR;
    return n_members == 1 ? 1 : n < tiles ? n : tiles;
}

int64_t attention_cut(int64_t S, int64_t tile, int64_t i, int64_t n) {
    int64_t tiles = (S + tile - 1) / tile;
    int64_t at = (int64_t)((double)tiles * sqrt((double)i / (double)n) + 0.5) * tile;
    return at < S ? at : S;
}

/* Elements i .. i + VF of a row of n; 0 beyond its end. */
static inline vf load_part(const float *row, int64_t i, int64_t n) {
    if (i + VF <= n) return vf_load(row + i);
    return i < n ? vf_load_n(row + i, (int)(n - i)) : vf_zero();
}

/* Words w .. w + VF of a row of D elements, times scale. */
static inline vf load_words(const Shape *s, const float *row, int64_t w, vf scale) {
    if (s->pair)
        return vf_pair_run(load_part(row, 2 * w, s->D) * scale,
                           load_part(row, 2 * w + VF, s->D) * scale);
    vf x = load_part(row, w, s->D) * scale;
    return s->round ? vf_round_bf16(x) : x;
}

void attention_pack_tile(const Shape *s, float *dst, const float *src, int64_t stride, int64_t n,
                         float scale) {
    vf f = vf_set1(scale);
    for (int64_t w0 = 0; w0 < s->Dw; w0 += BC, dst += BR * LD) {
        int64_t end = w0 + BC < s->Dw ? w0 + BC : s->Dw;
        for (int64_t r = 0; r < n; r++)
            for (int64_t w = w0; w < end; w += VF)
                vf_store(dst + r * LD + (w - w0), load_words(s, src + r * stride, w, f));
    }
}

void attention_pack_across(const Shape *s, float *dst, const float *src, int64_t stride,
                           int64_t begin, int64_t end) {
    for (int64_t r0 = begin; r0 < end; r0 += VF) {
        float *half = dst + r0 / NR * (s->Dw * NR) + r0 % NR;
        for (int64_t w0 = 0; w0 < s->Dw; w0 += VF) {
            vf x[VF];
            int n = s->Dw - w0 < VF ? (int)(s->Dw - w0) : VF;
            for (int i = 0; i < VF; i++)
                x[i] = r0 + i < s->S ? load_words(s, src + (r0 + i) * stride, w0, vf_set1(1))
                                     : vf_zero();
            vf_transpose(x);
            for (int i = 0; i < n; i++) vf_store(half + (w0 + i) * NR, x[i]);
        }
    }
}

void attention_pack_rows(const Shape *s, float *dst, int64_t panel_words, const float *src,
                         int64_t stride, int64_t n, float scale) {
    vf f = vf_set1(scale);
    int64_t words = s->pair ? (n + 1) / 2 : n, padded = s->tiles ? whole_tiles(words) : words;
    for (int64_t w = words; w < padded; w++)
        for (int64_t d = 0; d < s->D; d += VF)
            vf_store(dst + w * NR + d / NR * panel_words * NR + d % NR, vf_zero());
    for (int64_t r = 0; r < n; r += s->pair ? 2 : 1) {
        const float *row = src + r * stride;
        float *to = dst + (s->pair ? r / 2 : r) * NR;
        for (int64_t d = 0; d < s->D; d += VF) {
            vf x = load_part(row, d, s->D) * f;
            if (s->pair)
                x = vf_pair_rows(x, r + 1 < n ? load_part(row + stride, d, s->D) * f : vf_zero());
            else if (s->round)
                x = vf_round_bf16(x);
            vf_store(to + d / NR * panel_words * NR + d % NR, x);
        }
    }
}

/* The register tile: c[rows][ldc] = or += the sum over n words of left and right. The left word of
 * row i and step k is a[i row_step + k step]. With constant arguments each call becomes a loop of
 * its own. */
static inline __attribute__((always_inline)) void
register_tile(const int rows, const int vecs, const bool pair, const int row_step, const int step,
              int64_t n, const float *a, const float *b, float *c, int64_t ldc, bool add) {
    vf sum[MR][2];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < vecs; j++) sum[i][j] = vf_zero();
    for (; n > 0; n--, a += step, b += NR) {
        vf right[2];
        right[0] = vf_load(b);
        right[1] = vf_load(b + (vecs - 1) * VF);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            vf left = vf_set1(a[i * row_step]);
#pragma GCC unroll 2
            for (int j = 0; j < vecs; j++) {
                if (VF == 16 && !pair && i % 3) left = vf_set1_anew(a + i * row_step);
                sum[i][j] =
                    pair ? vf_dot2(left, right[j], sum[i][j]) : vf_fma(left, right[j], sum[i][j]);
            }
        }
    }
    if (add) {
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++, c += ldc)
#pragma GCC unroll 2
            for (int j = 0; j < vecs; j++) vf_store(c + j * VF, vf_load(c + j * VF) + sum[i][j]);
    } else {
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++, c += ldc)
#pragma GCC unroll 2
            for (int j = 0; j < vecs; j++) vf_store(c + j * VF, sum[i][j]);
    }
}

typedef void TileFn(int rows, int vecs, int64_t n, const float *a, const float *b, float *c,
                    int64_t ldc, bool add);

#define TILE_FN(name, pair, row_step, step)                                                        \
    static void name(int rows, int vecs, int64_t n, const float *a, const float *b, float *c,      \
                     int64_t ldc, bool add) {                                                      \
        switch ((rows + MU - 1) / MU * 2 + (vecs - 1)) {                                           \
        case 2:                                                                                    \
            register_tile(MU, 1, pair, row_step, step, n, a, b, c, ldc, add);                      \
            break;                                                                                 \
        case 3:                                                                                    \
            register_tile(MU, 2, pair, row_step, step, n, a, b, c, ldc, add);                      \
            break;                                                                                 \
        case 4:                                                                                    \
            register_tile(2 * MU, 1, pair, row_step, step, n, a, b, c, ldc, add);                  \
            break;                                                                                 \
        case 5:                                                                                    \
            register_tile(2 * MU, 2, pair, row_step, step, n, a, b, c, ldc, add);                  \
            break;                                                                                 \
        case 6:                                                                                    \
            register_tile(MR, 1, pair, row_step, step, n, a, b, c, ldc, add);                      \
            break;                                                                                 \
        default:                                                                                   \
            register_tile(MR, 2, pair, row_step, step, n, a, b, c, ldc, add);                      \
            break;                                                                                 \
        }                                                                                          \
    }
TILE_FN(along_rows, false, LD, 1)
TILE_FN(along_columns, false, 1, LD)
TILE_FN(along_rows_pair, true, LD, 1)
TILE_FN(along_columns_pair, true, 1, 2 * LD)

/* The same in tile registers, over whole 16 words, for any `vecs`. Rows beyond `rows`, and columns
 * that were not packed, reach only sums that nobody reads. */
static void in_tile_registers(int rows, int vecs, int64_t n, const float *a, const float *b,
                              float *c, int64_t ldc, bool add) {
    (void)vecs;
    bool both = rows > TILE_SIDE;
    if (add)
        sums_load(c, ldc, both);
    else
        sums_zero();
    for (int64_t w = 0; w < n; w += TILE_SIDE) sums_dot(a + w, LD, b + w * NR, both);
    sums_store(c, ldc, both);
}
static TileFn *tile_along_rows(const Shape *s) {
    if (SIMD_TILES && s->tiles) return in_tile_registers;
    return SIMD_BF16 && s->pair ? along_rows_pair : along_rows;
}

/* Prefetches the next PREFETCH_STEP rows of f. */
static inline void fetch_ahead(const Shape *s, PrefetchList *f) {
    for (int n = 0; n < PREFETCH_STEP && f->i < f->n; n++) {
        struct PrefetchRange *p = &f->part[f->i];
        for (int64_t d = 0; d < s->D; d += 16) __builtin_prefetch(p->at + d, 0, 2);
        p->at += p->stride;
        if (--p->rows == 0) f->i++;
    }
}

void attention_scores(const Shape *s, const AttentionTile *t, float *c, const float *left,
                      const float *right) {
    TileFn *tile = tile_along_rows(s);
    int64_t columns = min_i64(BC, tile_seen(t, t->rows - 1));
    for (int64_t j = 0; j < columns; j += NR, right += s->Dw * NR)
        for (int64_t r = 0; r < t->rows; r += s->mr) {
            int64_t rows = min_i64(s->mr, t->rows - r), seen = tile_seen(t, r + rows - 1) - j;
            if (seen <= 0) continue;
            fetch_ahead(s, t->ahead);
            for (int64_t w = 0; w < s->Dw; w += BC)
                tile((int)rows, seen > VF ? 2 : 1, min_i64(BC, s->Dw - w),
                     left + w * (BR * LD / BC) + r * LD, right + w * NR, c + r * LD + j, LD, w > 0);
        }
}

void attention_sum_keys(const Shape *s, const AttentionTile *t, float *o, const float *c,
                        const float *right) {
    TileFn *tile = tile_along_rows(s);
    for (int64_t d = 0; d < s->D; d += NR, right += s->Sw * NR)
        for (int64_t r = 0; r < t->rows; r += s->mr) {
            int64_t rows = min_i64(s->mr, t->rows - r), n = min_i64(BC, tile_seen(t, r + rows - 1));
            fetch_ahead(s, t->ahead);
            if (n > 0)
                tile((int)rows, s->D - d > VF ? 2 : 1, s->pair ? (n + 1) / 2 : n, c + r * LD, right,
                     o + r * s->Do + d, s->Do, true);
        }
}

/* to[32][LD] = the words c[n][2 LD] of 32 keys, transposed; 0 up to whole 16 words. */
static void transpose_words(float *to, const float *c, int64_t n) {
    for (int64_t w = 0; w < n; w += VF)
        for (int64_t key = 0; key < 2 * TILE_SIDE; key += VF) {
            vf x[VF];
            for (int i = 0; i < VF; i++)
                x[i] = w + i < n ? vf_load(c + (w + i) * 2 * LD + key) : vf_zero();
            vf_transpose(x);
            for (int i = 0; i < VF; i++) vf_store(to + (key + i) * LD + w, x[i]);
        }
}

/* attention_sum_queries in tile registers, whose left matrix has the words of a sum side by side.
 * Tiles begin at multiples of 32, and so does the first query that sees a block of 32 keys: queries
 * before it, whose P and dS are not set there, are in no block of 16 words. */
static void sum_queries_in_tiles(const Shape *s, const AttentionTile *t, float *o, const float *c,
                                 const float *right) {
    float left[2 * TILE_SIDE * LD] __attribute__((aligned(64)));
    int64_t keys = min_i64(BC, s->S - t->key0), words = (t->rows + 1) / 2;
    for (int64_t k = 0; k < keys; k += 2 * TILE_SIDE) {
        int64_t query = t->key0 + k - t->row0, first = query < 0 ? 0 : query / 2;
        if (first >= words) break;
        transpose_words(left, c + first * 2 * LD + k, words - first);
        for (int64_t d = 0; d < s->Dn; d++) {
            fetch_ahead(s, t->ahead);
            in_tile_registers((int)min_i64(s->mr, keys - k), 2, words - first, left,
                              right + (d * (BR / 2) + first) * NR, o + k * s->Do + d * NR, s->Do,
                              true);
        }
    }
}

void attention_sum_queries(const Shape *s, const AttentionTile *t, float *o, const float *c,
                           const float *right) {
    if (SIMD_TILES && s->tiles) {
        sum_queries_in_tiles(s, t, o, c, right);
        return;
    }
    TileFn *tile = SIMD_BF16 && s->pair ? along_columns_pair : along_columns;
    int64_t keys = min_i64(BC, s->S - t->key0), words = s->pair ? (t->rows + 1) / 2 : t->rows;
    for (int64_t d = 0; d < s->D; d += NR, right += (s->pair ? BR / 2 : BR) * NR)
        for (int64_t k = 0; k < keys; k += MR) {
            int64_t first = t->key0 + k - t->row0; // query that sees the first of these keys
            first = first < 0 ? 0 : s->pair ? first / 2 : first;
            fetch_ahead(s, t->ahead);
            if (first < words)
                tile((int)min_i64(MR, keys - k), s->D - d > VF ? 2 : 1, words - first,
                     c + first * (s->pair ? 2 * LD : LD) + k, right + first * NR, o + k * s->Do + d,
                     s->Do, true);
        }
}
