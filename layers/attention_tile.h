/* attention_tile -- the inner parts of attention: packing heads into panels, matmuls of tiles.
 *
 * The papers' tiles are BR queries by BC keys. Inside them the unit of work is a register tile, MR
 * rows by NR columns of sums, as in BLIS. A matmul reads its left matrix by broadcasts from rows
 * of LD words (into tile registers 16 words of 16 rows) and its right matrix from a panel, NR
 * columns side by side for each step of the sum:
 *
 *      set             MR x NR   sums   loads for each step (24, 12, 12 FMA)
 *      avx512[_bf16]   12 x 32    24    2 + 20 (fp32), 2 + 12 (pairs)
 *      avx512_amx      32 x 32     4    4, of tiles for 16 steps; bf16 only, fp32 as avx512
 *      avx2             6 x 16    12    2 + 6
 *      portable         6 x 8     12    2 + 6
 *
 * A word is one float; or, in bf16 on a set with a bf16 dot product, two neighbours along the sum:
 * then the same loops take half the steps. Without that instruction elements are rounded to bf16
 * while they are packed, one to a float: the loops of fp32 then multiply them exactly.
 */
#ifndef LAYERS_ATTENTION_TILE_H
#define LAYERS_ATTENTION_TILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/amx.h"
#include "base/simd.h"
#include "base/simd_block.h"
#include "layers/attention.h"

#define LN2 0.693147180559945309f

enum {
    NR = 2 * VF,
    MU = VF == 16 ? 4 : 2, // register tiles have MU, 2 MU or MR = 3 MU rows
    MR = 3 * MU,
    BR = 96,  // queries of a tile: a multiple of MR and of 32 (tile registers)
    BC = 128, // keys of a tile: a multiple of NR, of MU and of 32
    // words from row to row of a tile; rows at multiples of 512 bytes would share few cache sets
    LD = BC + 16,
};

_Static_assert(BR % (2 * TILE_SIDE) == 0 && BC % (2 * TILE_SIDE) == 0, "32 rows, 32 keys");

/* Sizes that are the same for every tile of one call. */
typedef struct Shape {
    int64_t S, D;
    int64_t mr;     // most rows of a register tile: MR, or 32 in tile registers
    int64_t Dw;     // words along D: D, or (D + 1) / 2 pairs, in tile registers whole 16
    int64_t Dn;     // panels along D
    int64_t Do;     // floats from row to row of o, dq, dk, dv: Dn NR
    int64_t Sp, Sw; // S rounded up to whole tiles of keys, in elements and in words
    bool pair, round;
    bool tiles; // pairs in tile registers (AMX)
} Shape;

Shape attention_shape(const Attention *a);

/* Words that attention_pack_tile fills. */
static inline int64_t tile_words(const Shape *s) {
    return (s->Dw + BC - 1) / BC * BR * LD;
}

/* Hands out pieces of a member's slice of the workspace; with base NULL it only counts. */
typedef struct BumpAllocator {
    float *base;
    int64_t used;
} BumpAllocator;
static inline float *bump_take(BumpAllocator *c, int64_t n) {
    float *p = c->base ? c->base + c->used : NULL;
    c->used += (n + 15) / 16 * 16; // whole cache lines
    return p;
}
/* Local. Floats of a member's slice for the backward pass. */
int64_t attention_backward_floats(const Shape *s);
/* Local. Slice of a member, aligned to a cache line. */
static inline float *member_slice(const Attention *a, int member, int64_t floats) {
    return (float *)(((uintptr_t)a->workspace + 63) & ~(uintptr_t)63) + member * floats;
}

/* Local. Packs a left matrix: n rows of D elements, times scale, to dst[chunk of BC words][BR][LD].
 * Tiles also read the rows from n on, of which nobody reads the sums. */
void attention_pack_tile(const Shape *s, float *dst, const float *src, int64_t stride, int64_t n,
                         float scale);
/* Local. Packs the right matrix of a sum over D, transposed: the rows begin .. end of a head, begin
 * a multiple of BC, to dst[row panel][Dw][NR]; rows from S on are 0 up to a multiple of VF. */
void attention_pack_across(const Shape *s, float *dst, const float *src, int64_t stride,
                           int64_t begin, int64_t end);
/* Local. Packs the right matrix of a sum over n rows, times scale, to dst[panel of
 * D][panel_words][NR]; rows that complete a last pair, or 16 words of tile registers, are 0. */
void attention_pack_rows(const Shape *s, float *dst, int64_t panel_words, const float *src,
                         int64_t stride, int64_t n, float scale);

/* Rows that will be read or written soon. After every register tile the matmuls of tiles prefetch a
 * few of them into the L2, so that packing and storing need not wait for memory. The rows of a head
 * lie a row of qkv apart, too far for hardware prefetchers. */
enum { PREFETCH_RANGES = 8, PREFETCH_ROWS = 512, PREFETCH_STEP = 16 };
typedef struct PrefetchList {
    int n, i;
    struct PrefetchRange {
        const float *at;
        int64_t stride, rows;
    } part[PREFETCH_RANGES];
} PrefetchList;
/* Adds rows of a matrix, at most PREFETCH_ROWS: more would push out of the L2 what is in use. */
static inline void prefetch_add(PrefetchList *f, const float *at, int64_t stride, int64_t rows) {
    if (f->n < PREFETCH_RANGES && rows > 0)
        f->part[f->n++] =
            (struct PrefetchRange){at, stride, rows < PREFETCH_ROWS ? rows : PREFETCH_ROWS};
}

/* A tile of the causal matrix: queries row0 .. row0 + rows, keys key0 .. key0 + BC. Only the part
 * on or below the diagonal is computed, in whole register tiles. */
typedef struct AttentionTile {
    int64_t row0, rows, key0;
    PrefetchList *ahead;
} AttentionTile;

/* Local. c[BR][LD] = left[rows][D] right'[BC][D]: scores, or dP from dO and V. */
void attention_scores(const Shape *s, const AttentionTile *t, float *c, const float *left,
                      const float *right);
/* Local. o[rows][Do] += c right, a sum over the tile's keys: O from P and V, dQ from dS and K. */
void attention_sum_keys(const Shape *s, const AttentionTile *t, float *o, const float *c,
                        const float *right);
/* Local. o[BC][Do] += c' right, a sum over the tile's queries: dV from P and dO, dK from dS and Q.
 * c[BR][LD], or for pairs c[BR / 2][2 LD] of words that hold queries 2i and 2i + 1. */
void attention_sum_queries(const Shape *s, const AttentionTile *t, float *o, const float *c,
                           const float *right);

/* The number of keys of the tile that query r of the tile sees; may be negative or beyond BC. */
static inline int64_t tile_seen(const AttentionTile *t, int64_t r) {
    return t->row0 + r + 1 - t->key0;
}
/* The number of columns of row r that a matmul may read: those that query r does not see must be 0.
 * In tile registers 32 rows begin at a multiple of 32, and row r reads no further than to the next
 * multiple of 32 behind what its first row sees. */
static inline int64_t tile_read(const AttentionTile *t, int64_t r) {
    int64_t n = (tile_seen(t, r) + MR + NR - 1) / NR * NR;
    return n < 0 ? 0 : n < BC ? n : BC;
}

/* to[D] = f times from[D] */
static inline void attention_store_row(float *to, const float *from, int64_t D, float f) {
    EACH_VECTOR(d, n, 0, D) vf_store_n(to + d, vf_load(from + d) * vf_set1(f), n);
}

/* The number of pieces into which each of n_heads is cut, so that every member of the team gets
 * about `each` items. */
int64_t attention_pieces(int n_members, int64_t n_heads, int64_t S, int64_t each);
/* The first query of piece i, when S queries are cut into n pieces of about the same area below the
 * diagonal: a multiple of tile, or S for i = n. */
int64_t attention_cut(int64_t S, int64_t tile, int64_t i, int64_t n);

#endif
