/* Forward pass and decoding. attention_backward.c has the backward pass, attention_tile.c the inner
 * loops of both.
 *
 *                 keys, BC to a tile (the papers' Bc)
 *               +---------+---------+---------+     scores  C = Q_i K_j'
 *     queries   | C 0,0 \ |         |         |     softmax P = exp2(C - max), with
 *     BR to a   |   \     |         |         |             max and sum of the row so far
 *     tile (Br) +---------+---------+---------+     output  O = O correction + P V_j
 *               | C 1,0   | C 1,1 \ |         |
 *               |         |   \     |         |     backward, P = exp2(C - lse):
 *               +---------+---------+---------+       dP = dO_i V_j'    dV_j += P' dO_i
 *               | C 2,0   | C 2,1   | C 2,2 \ |       dS = P (dP - delta), delta = out . dout
 *               +---------+---------+---------+       dQ_i += dS K_j    dK_j += dS' Q_i
 *
 * Row i of tiles is computed for all j before row i + 1. Tiles above the diagonal are not computed.
 * In tiles on the diagonal, each register tile stops at the last key that its last row sees; the
 * softmax sets the rest above the diagonal to 0. So little is computed in vain, even where a
 * sequence is two tiles long. Keys and values of a head are packed once, queries once per row of
 * tiles, scaled by log2(e) / sqrt(D) so that the softmax is a power of 2.
 *
 * An item of work is a key head with the query heads that share it. Members of the team take items
 * as they become free; no two write the same number, and every sum has one order: the bits do not
 * depend on the number of threads. When heads are few, forward items are cut by queries; backward
 * items are cut by queries for dQ and by keys for dK and dV, which costs 7 matmuls instead of 5.
 *
 * Measured on one core of Zen 5 by bench_attention --best, D = 64, share of the peak of the units,
 * counted on the causal half (forward, backward):
 *
 *      B  H     S      fp32          bf16
 *      4  12    64     38 %  41 %    28 %  29 %
 *      4  12    256    64 %  66 %    53 %  54 %
 *      4  12    1024   75 %  81 %    64 %  72 %
 *
 * At S = 1024 three quarters of the forward time are matmuls at the peak, an eighth is the softmax,
 * an eighth packing. Without prefetches (PrefetchList) S = 256 reaches 59 % and 56 % in fp32. In
 * tile registers (AMX, a Xeon) bf16 is 2.5 and 2.5 times as fast as by VDPBF16PS at S = 256, 2.7
 * and 2.4 times at S = 1024, and 1.6 to 2.2 times as fast as fp32; the rest is softmax and packing.
 */
#include "layers/attention.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>

#include "base/minmax.h"
#include "layers/attention_tile.h"

/* The buffers of one member of the team. */
typedef struct Work {
    float *k;     // keys, packed across
    float *v;     // values, packed by rows
    float *q;     // a tile of queries
    float *c;     // [BR][LD] scores in units of log 2, then exp(scores - max)
    float *o;     // [BR][Do] sums of values
    float *max;   // [BR] of the scores so far
    float *sum;   // [BR][VF] of exp(scores - max), by lanes
    Team *polled; // member 0: the team, for team_poll; others: NULL
} Work;

static Work allocate_work(const Shape *s, BumpAllocator *at) {
    Work w;
    w.k = bump_take(at, s->Sp * s->Dw);
    w.v = bump_take(at, s->Dn * s->Sw * NR);
    w.q = bump_take(at, tile_words(s));
    w.c = bump_take(at, BR * LD);
    w.o = bump_take(at, BR * s->Do);
    w.max = bump_take(at, BR);
    w.sum = bump_take(at, BR * VF);
    return w;
}

static int64_t forward_floats(const Shape *s) {
    BumpAllocator at = {0};
    allocate_work(s, &at);
    return at.used;
}

size_t attention_workspace(int n_threads, int64_t B, int64_t S, int64_t H, int64_t Hkv, int64_t D) {
    int64_t most = 0;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        Attention a = {.B = B, .S = S, .H = H, .Hkv = Hkv, .D = D, .bf16 = bf16};
        Shape s = attention_shape(&a);
        most = max_i64(most, max_i64(forward_floats(&s), attention_backward_floats(&s)));
    }
    return (size_t)n_threads * (size_t)most * sizeof(float) + 64;
}

/* new_max[r] = the maximum of row r, including this tile. */
static void tile_maximum(const AttentionTile *t, const Work *w, float *new_max) {
    for (int64_t r = 0; r < t->rows; r++) {
        const float *row = w->c + r * LD;
        int64_t n = tile_seen(t, r) < BC ? tile_seen(t, r) : BC, j = 0;
        vf m = vf_set1(w->max[r]), m1 = m;
        for (; j + NR <= n; j += NR)
            m = vf_max(m, vf_load(row + j)), m1 = vf_max(m1, vf_load(row + j + VF));
        for (; j < n; j += VF)
            m = vf_max(m, vf_first_lanes(vf_load(row + j), n - j, vf_set1(-FLT_MAX)));
        new_max[r] = vf_hmax(vf_max(m, m1));
    }
}

/* row = 2^(row - max) in the columns that the query sees, 0 in the others up to `end`; returns the
 * sum by lanes. */
static inline __attribute__((always_inline)) vf
exponentials(float *row, int64_t seen, int64_t end, vf max, const bool pair, const bool round) {
    vf total = vf_zero(), none = vf_zero();
    int64_t whole = (seen < BC ? seen : BC) / NR * NR;
    for (int64_t j = 0; j < end; j += NR) {
        vf x = vf_exp2(vf_load(row + j) - max), y = vf_exp2(vf_load(row + j + VF) - max);
        if (j >= whole) {
            x = vf_first_lanes(x, seen - j, none);
            y = vf_first_lanes(y, seen - j - VF, none);
        }
        total = total + (x + y);
        if (pair) {
            vf_store(row + j / 2, vf_pair_run(x, y));
        } else {
            vf_store(row + j, round ? vf_round_bf16(x) : x);
            vf_store(row + j + VF, round ? vf_round_bf16(y) : y);
        }
    }
    return total;
}

/* Adds one tile to the running softmax of its rows: c becomes 2^(c - max); the earlier sums and
 * rows of o are rescaled to the new maximum. */
static void softmax_tile(const Shape *s, const AttentionTile *t, const Work *w) {
    float correction[BR] = {0};
    tile_maximum(t, w, correction);
    for (int64_t r = 0; r < t->rows; r += VF) {
        vf m = vf_load(correction + r);
        vf_store(correction + r, vf_exp2(vf_load(w->max + r) - m));
        vf_store(w->max + r, m);
    }
    for (int64_t r = 0; r < t->rows; r++) {
        float *row = w->c + r * LD, *o = w->o + r * s->Do;
        int64_t seen = tile_seen(t, r), end = tile_read(t, r);
        vf m = vf_set1(w->max[r]), f = vf_set1(correction[r]), total;
        if (SIMD_BF16 && s->pair)
            total = exponentials(row, seen, end, m, true, false);
        else if (s->round)
            total = exponentials(row, seen, end, m, false, true);
        else
            total = exponentials(row, seen, end, m, false, false);
        vf_store(w->sum + r * VF, vf_fma(vf_load(w->sum + r * VF), f, total));
        if (t->key0 > 0 && correction[r] != 1)
            for (int64_t d = 0; d < s->Do; d += VF) vf_store(o + d, vf_load(o + d) * f);
    }
}

/* log2 of positive normal numbers, within 1e-7 absolute or 2e-7 relative: x = 2^e m with m in
 * [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1)). NaN stays NaN. */
static inline vf log2_of(vf x) {
    vi e = ((vi)x - vi_set1(0x3f3504f3)) >> 23;
    vf m = (vf)((vi)x - (e << 23)), one = vf_set1(1);
    vf t = (m - one) / (m + one), u = t * t, p = vf_set1(2 * LOG2_E / 9);
    p = vf_fma(p, u, vf_set1(2 * LOG2_E / 7));
    p = vf_fma(p, u, vf_set1(2 * LOG2_E / 5));
    p = vf_fma(p, u, vf_set1(2 * LOG2_E / 3));
    p = vf_fma(p, u, vf_set1(2 * LOG2_E));
    return vf_fma(p, t, __builtin_convertvector(e, vf)) + (x - x);
}

/* One call, shared by the members of the team. An item is a piece of the queries of the heads that
 * share one key and value head. */
typedef struct Forward {
    Team *team;
    const Attention *a;
    Shape s;
    float *out, *lse;
    const float *qkv;
    // elements of a row of qkv; pieces of each key head; floats of a member's workspace
    int64_t stride, pieces, floats;
    _Atomic int64_t next; // the first item that no member has taken
} Forward;

/* The queries begin .. end of the heads that share key and value head g of sequence b. */
typedef struct Item {
    int64_t b, g, begin, end;
} Item;

static bool next_item(Forward *f, Item *it) {
    const Attention *a = f->a;
    do {
        int64_t i = atomic_fetch_add_explicit(&f->next, 1, memory_order_relaxed), n = f->pieces;
        if (i >= a->B * a->Hkv * n) return false;
        it->b = i / n / a->Hkv, it->g = i / n % a->Hkv;
        it->begin = attention_cut(a->S, BR, i % n, n);
        it->end = attention_cut(a->S, BR, i % n + 1, n);
    } while (it->begin == it->end);
    return true;
}

/* The address of head h in a row of qkv: query heads come first, then key heads, value heads. */
static const float *qkv_head(const Forward *f, int64_t b, int64_t h, int64_t row) {
    return f->qkv + (b * f->a->S + row) * f->stride + h * f->a->D;
}
static float *outputs(const Forward *f, int64_t b, int64_t h, int64_t row) {
    return f->out + ((b * f->a->S + row) * f->a->H + h) * f->a->D;
}

/* One row of tiles: the outputs and lse of the BR queries from row0 on, of head h of sequence b. */
static void forward_tile(const Forward *f, const Work *w, int64_t b, int64_t h, int64_t row0,
                         PrefetchList *ahead) {
    const Attention *a = f->a;
    const Shape *s = &f->s;
    int64_t rows = a->S - row0 < BR ? a->S - row0 : BR;
    attention_pack_tile(s, w->q, qkv_head(f, b, h, row0), f->stride, rows,
                        LOG2_E / sqrtf((float)a->D));
    for (int64_t i = 0; i < BR; i++) w->max[i] = -FLT_MAX;
    memset(w->sum, 0, BR * VF * sizeof(float));
    memset(w->o, 0, (size_t)(rows * s->Do) * sizeof(float));
    for (int64_t key0 = 0; key0 < row0 + rows; key0 += BC) {
        AttentionTile t = {row0, rows, key0, ahead};
        attention_scores(s, &t, w->c, w->q, w->k + key0 * s->Dw);
        softmax_tile(s, &t, w);
        attention_sum_keys(s, &t, w->o, w->c, w->v + (s->pair ? key0 / 2 : key0) * NR);
    }
    float total[BR], *lse = f->lse + (b * a->H + h) * a->S + row0;
    for (int64_t r = 0; r < rows; r++) {
        total[r] = vf_sum(vf_load(w->sum + r * VF));
        attention_store_row(outputs(f, b, h, row0 + r), w->o + r * s->Do, a->D, 1 / total[r]);
    }
    EACH_VECTOR(r, n, 0, rows) {
        vf x = vf_load(w->max + r) + log2_of(vf_load_n(total + r, n));
        vf_store_n(lse + r, x * vf_set1(LN2), n);
    }
}

/* All tiles of an item. `after` is the member's next item, whose rows are prefetched, or NULL. */
static void forward_item(const Forward *f, const Work *w, const Item *it, const Item *after) {
    const Attention *a = f->a;
    int64_t group = a->H / a->Hkv, h0 = it->g * group;
    const float *k = qkv_head(f, it->b, a->H + it->g, 0);
    attention_pack_across(&f->s, w->k, k, f->stride, 0, it->end);
    attention_pack_rows(&f->s, w->v, f->s.Sw, k + a->Hkv * a->D, f->stride, it->end, 1);
    for (int64_t h = h0; h < h0 + group; h++)
        for (int64_t row0 = it->begin; row0 < it->end; row0 += BR) {
            int64_t next = row0 + BR, rows = a->S - row0 < BR ? a->S - row0 : BR;
            PrefetchList ahead = {0};
            prefetch_add(&ahead, outputs(f, it->b, h, row0), a->H * a->D, rows);
            if (next < it->end) {
                prefetch_add(&ahead, qkv_head(f, it->b, h, next), f->stride,
                             a->S - next < BR ? a->S - next : BR);
            } else if (h + 1 < h0 + group) {
                prefetch_add(&ahead, qkv_head(f, it->b, h + 1, it->begin), f->stride, rows);
            } else if (after) {
                const float *key = qkv_head(f, after->b, a->H + after->g, 0);
                prefetch_add(&ahead, key, f->stride, after->end);
                prefetch_add(&ahead, key + a->Hkv * a->D, f->stride, after->end);
                prefetch_add(&ahead, qkv_head(f, after->b, after->g * group, after->begin),
                             f->stride,
                             after->end - after->begin < BR ? after->end - after->begin : BR);
            }
            forward_tile(f, w, it->b, h, row0, &ahead);
            team_poll(w->polled);
        }
}

static void forward_member(void *ctx, int member, int size) {
    Forward *f = ctx;
    (void)size;
    BumpAllocator slice = {member_slice(f->a, member, f->floats), 0};
    Work w = allocate_work(&f->s, &slice);
    w.polled = member == 0 ? f->team : NULL;
    Item now, after;
    if (SIMD_TILES && f->s.tiles) tiles_begin();
    for (bool more = next_item(f, &now); more; now = after) {
        more = next_item(f, &after);
        forward_item(f, &w, &now, more ? &after : NULL);
    }
    if (SIMD_TILES && f->s.tiles) tiles_end();
}

void attention_forward(Team *t, const Attention *a, Act *out, float *lse, const Act *qkv) {
    Forward f = {.team = t, .a = a, .s = attention_shape(a), .out = out, .lse = lse, .qkv = qkv};
    f.stride = (a->H + 2 * a->Hkv) * a->D;
    f.floats = forward_floats(&f.s);
    f.pieces = attention_pieces(team_size(t), a->B * a->Hkv, a->S, 8);
    team_run(t, forward_member, &f);
}

/* Decoding. An item is one head of one sequence: the cost is reading its part of the cache. */
typedef struct Decode {
    const Attention *a;
    float *out;
    const float *q, *cache;
    int64_t n; // rows of the cache in use
    _Atomic int64_t next;
} Decode;

/* score[j] = q . row j of k, in units of log 2; returns the maximum. */
static float decode_scores(const Decode *d, float *score, const float *q, const float *k,
                           int64_t stride) {
    int64_t D = d->a->D, whole = D / VF * VF;
    float max = -FLT_MAX, scale = LOG2_E / sqrtf((float)D);
    vf tail = vf_load_n(q + whole, (int)(D - whole));
    for (int64_t j = 0; j < d->n; j++, k += stride) {
        vf sum = D > whole ? tail * vf_load_n(k + whole, (int)(D - whole)) : vf_zero();
        for (int64_t i = 0; i < whole; i += VF) sum = vf_fma(vf_load(q + i), vf_load(k + i), sum);
        score[j] = vf_sum(sum) * scale;
        max = max > score[j] ? max : score[j];
    }
    return max;
}

/* out[vecs * VF] = the sum over j of weight[j] times row j of v, times f; vecs <= 4. */
static inline void decode_values(const Decode *d, float *out, const float *weight, const float *v,
                                 int64_t stride, float f, int vecs) {
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (int64_t j = 0; j < d->n; j++, v += stride)
        for (int i = 0; i < vecs; i++)
            sum[i] = vf_fma(vf_set1(weight[j]), vf_load(v + i * VF), sum[i]);
    for (int i = 0; i < vecs; i++) vf_store(out + i * VF, sum[i] * vf_set1(f));
}

/* One member takes items until none is left. weight: scores, then their exponentials. */
static void decode_member(void *ctx, int member, int size) {
    Decode *d = ctx;
    const Attention *a = d->a;
    (void)size;
    int64_t D = a->D, stride = 2 * a->Hkv * D, items = a->B * a->H, item;
    float *weight = member_slice(a, member, (a->S + 15) / 16 * 16);
    while ((item = atomic_fetch_add_explicit(&d->next, 1, memory_order_relaxed)) < items) {
        int64_t g = item % a->H / (a->H / a->Hkv);
        const float *k = d->cache + item / a->H * a->S * stride + g * D, *v = k + a->Hkv * D;
        float *out = d->out + item * D;
        vf max = vf_set1(decode_scores(d, weight, d->q + item * D, k, stride)), sum = vf_zero();
        for (int64_t j = 0; j < d->n; j += VF) {
            vf x = vf_first_lanes(vf_exp2(vf_load(weight + j) - max), d->n - j, vf_zero());
            vf_store(weight + j, x);
            sum = sum + x;
        }
        float f = 1 / vf_sum(sum);
        int64_t i = 0;
        for (; i + 4 * VF <= D; i += 4 * VF) decode_values(d, out + i, weight, v + i, stride, f, 4);
        for (; i + VF <= D; i += VF) decode_values(d, out + i, weight, v + i, stride, f, 1);
        if (i < D) {
            int n = (int)(D - i);
            vf tail = vf_zero();
            for (int64_t j = 0; j < d->n; j++)
                tail = vf_fma(vf_set1(weight[j]), vf_load_n(v + j * stride + i, n), tail);
            vf_store_n(out + i, tail * vf_set1(f), n);
        }
    }
}

void attention_decode(Team *t, const Attention *a, Act *out, const Act *q, const Act *cache,
                      int64_t pos) {
    Decode d = {.a = a, .out = out, .q = q, .cache = cache, .n = pos + 1};
    team_run(t, decode_member, &d);
}
