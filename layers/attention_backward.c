#include "layers/attention.h"

#include <math.h>
#include <stdatomic.h>

#include "layers/attention_tile.h"

/* The buffers of one member of the team. */
typedef struct Work {
    float *k, *v;       // keys and values, packed across: right matrices of scores and of dP
    float *k_rows;      // keys packed by rows: right matrix of dQ
    float *dk, *dv;     // [Sp][Do], sums over queries and over the heads of the group
    float *q, *dout;    // a tile of queries and of the gradient of their output
    float *q_rows;      // queries packed by rows: right matrix of dK
    float *dout_rows;   // dout packed by rows: right matrix of dV
    float *p, *ds;      // [BR][LD]: scores, then P; dP, then dS
    float *dq;          // [BR][Do]
    float *lse, *delta; // [BR] log of the sum of exponentials in units of log 2; out . dout
    Team *polled;       // member 0: the team, for team_poll; others: NULL
} Work;

static Work allocate_work(const Shape *s, BumpAllocator *at) {
    Work w;
    w.k = bump_take(at, s->Sp * s->Dw);
    w.v = bump_take(at, s->Sp * s->Dw);
    w.k_rows = bump_take(at, s->Dn * s->Sw * NR);
    w.dk = bump_take(at, s->Sp * s->Do);
    w.dv = bump_take(at, s->Sp * s->Do);
    w.q = bump_take(at, tile_words(s));
    w.dout = bump_take(at, tile_words(s));
    w.q_rows = bump_take(at, BR * s->Do);
    w.dout_rows = bump_take(at, BR * s->Do);
    w.p = bump_take(at, BR * LD);
    w.ds = bump_take(at, BR * LD);
    w.dq = bump_take(at, BR * s->Do);
    w.lse = bump_take(at, BR);
    w.delta = bump_take(at, BR);
    return w;
}

int64_t attention_backward_floats(const Shape *s) {
    BumpAllocator at = {0};
    allocate_work(s, &at);
    return at.used;
}

typedef struct Backward {
    Team *team;
    const Attention *a;
    Shape s;
    float *dqkv;
    const float *dout, *qkv, *out, *lse;
    int64_t stride, floats;
    // 0: an item is a key head with all its gradients. n: a key head is n items for dQ, and n for
    // dK and dV
    int64_t pieces;
    _Atomic int64_t next;
} Backward;

/* p = exp(scores - lse) and ds = p (dP - delta), for the NR columns from j of row r; 0 in the
 * columns that the query does not see. */
static inline void row_gradient(const Work *w, int64_t r, int64_t j, int64_t seen, vf p[2],
                                vf ds[2]) {
    vf lse = vf_set1(w->lse[r]), delta = vf_set1(w->delta[r]), none = vf_zero();
    for (int i = 0; i < 2; i++) {
        int64_t at = r * LD + j + i * VF;
        p[i] = vf_exp2(vf_load(w->p + at) - lse);
        ds[i] = p[i] * (vf_load(w->ds + at) - delta);
        if (j + NR > seen) {
            p[i] = vf_first_lanes(p[i], seen - j - i * VF, none);
            ds[i] = vf_first_lanes(ds[i], seen - j - i * VF, none);
        }
    }
}

/* Replaces the scores by P in w->p, and dP by dS in w->ds. */
static void gradient_tile(const AttentionTile *t, const Work *w, bool round) {
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t j = 0; j < tile_read(t, r); j += NR) {
            vf p[2], ds[2];
            row_gradient(w, r, j, tile_seen(t, r), p, ds);
            for (int i = 0; i < 2; i++) {
                vf_store(w->p + r * LD + j + i * VF, round ? vf_round_bf16(p[i]) : p[i]);
                vf_store(w->ds + r * LD + j + i * VF, round ? vf_round_bf16(ds[i]) : ds[i]);
            }
        }
}

/* The same in pairs. Sums over keys read dS from ds, paired along a row. Sums over queries read P
 * and dS paired along a column, both from p: for the queries r and r + 1, row r holds P, row r+1
 * holds dS. */
static void gradient_tile_pair(const AttentionTile *t, const Work *w) {
    for (int64_t r = 0; r < t->rows; r += 2) {
        // a row behind the last one sees nothing; its lse and delta are not set
        int64_t seen1 = r + 1 < t->rows ? tile_seen(t, r + 1) : 0;
        for (int64_t j = 0; j < tile_read(t, r + 1); j += NR) {
            vf p0[2], p1[2], ds0[2], ds1[2];
            row_gradient(w, r, j, tile_seen(t, r), p0, ds0);
            row_gradient(w, r + 1, j, seen1, p1, ds1);
            for (int i = 0; i < 2; i++) {
                vf_store(w->p + r * LD + j + i * VF, vf_pair_rows(p0[i], p1[i]));
                vf_store(w->p + (r + 1) * LD + j + i * VF, vf_pair_rows(ds0[i], ds1[i]));
            }
            vf_store(w->ds + r * LD + j / 2, vf_pair_run(ds0[0], ds0[1]));
            vf_store(w->ds + (r + 1) * LD + j / 2, vf_pair_run(ds1[0], ds1[1]));
        }
    }
}

/* lse in units of log 2 and delta = out . dout for the rows of a tile. */
static void load_statistics(const Backward *f, const Work *w, int64_t b, int64_t h, int64_t row0,
                            int64_t rows) {
    const Attention *a = f->a;
    int64_t D = a->D;
    const float *lse = f->lse + (b * a->H + h) * a->S + row0;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = f->out + ((b * a->S + row0 + r) * a->H + h) * D;
        const float *y = f->dout + ((b * a->S + row0 + r) * a->H + h) * D;
        vf sum = vf_zero();
        EACH_VECTOR(d, n, 0, D) sum = vf_fma(vf_load_n(x + d, n), vf_load_n(y + d, n), sum);
        w->delta[r] = vf_sum(sum);
        w->lse[r] = lse[r] * LOG2_E;
    }
}

/* One item of work, for the query heads that share key and value head g of sequence b: the
 * gradients between the queries row_begin .. row_end and the keys key_begin .. key_end, dQ, or dK
 * and dV, or all. Bounds are multiples of BR and BC, or S. The sums of an item are always whole: dQ
 * over keys in order, dK and dV over heads and then queries in order, so that cutting does not
 * change a bit. */
typedef struct Item {
    int64_t b, g, row_begin, row_end, key_begin, key_end;
    bool want_dq, want_dkv;
} Item;

static bool next_item(Backward *f, Item *it) {
    const Attention *a = f->a;
    int64_t n = f->pieces, each = n ? 2 * n : 1, S = a->S;
    do {
        int64_t next = atomic_fetch_add_explicit(&f->next, 1, memory_order_relaxed);
        int64_t i = next % each;
        if (next >= a->B * a->Hkv * each) return false;
        *it = (Item){next / each / a->Hkv, next / each % a->Hkv, 0, S, 0, S, i < n || !n, i >= n};
        if (n && i < n) {
            it->row_begin = attention_cut(S, BR, i, n);
            it->row_end = it->key_end = attention_cut(S, BR, i + 1, n);
        } else if (n) { // the first keys are seen by the most queries: pieces mirrored
            int64_t whole = (S + BC - 1) / BC * BC;
            it->key_begin = whole - attention_cut(whole, BC, 2 * n - i, n);
            it->key_end = whole - attention_cut(whole, BC, 2 * n - i - 1, n);
            if (it->key_end > S) it->key_end = S;
            it->row_begin = it->key_begin / BR * BR;
        }
    } while (it->row_begin >= it->row_end || it->key_begin >= it->key_end);
    return true;
}

/* The index in qkv of head h, where query heads come first, then key heads, then value heads. */
static int64_t in_qkv(const Backward *f, int64_t b, int64_t h, int64_t row) {
    return (b * f->a->S + row) * f->stride + h * f->a->D;
}
/* The index in out and dout of query head h. */
static int64_t in_out(const Backward *f, int64_t b, int64_t h, int64_t row) {
    return ((b * f->a->S + row) * f->a->H + h) * f->a->D;
}

/* One row of tiles: the queries from row0 of head h, with the keys of the item. Stores dQ, adds to
 * dK and dV of the workspace. */
static void backward_rows(const Backward *f, const Work *w, const Item *it, int64_t h, int64_t row0,
                          PrefetchList *ahead) {
    const Attention *a = f->a;
    const Shape *s = &f->s;
    int64_t D = a->D, rows = a->S - row0 < BR ? a->S - row0 : BR, wide = a->H * D;
    int64_t panel = s->pair ? BR / 2 : BR;
    const float *q = f->qkv + in_qkv(f, it->b, h, row0);
    const float *dout = f->dout + in_out(f, it->b, h, row0);
    float scale = 1 / sqrtf((float)D);
    attention_pack_tile(s, w->q, q, f->stride, rows, scale * LOG2_E);
    attention_pack_tile(s, w->dout, dout, wide, rows, 1);
    if (it->want_dkv) {
        attention_pack_rows(s, w->q_rows, panel, q, f->stride, rows, scale);
        attention_pack_rows(s, w->dout_rows, panel, dout, wide, rows, 1);
    }
    load_statistics(f, w, it->b, h, row0, rows);
    if (it->want_dq) memset(w->dq, 0, (size_t)(rows * s->Do) * sizeof(float));
    for (int64_t key0 = it->key_begin; key0 < it->key_end && key0 < row0 + rows; key0 += BC) {
        AttentionTile t = {row0, rows, key0, ahead};
        attention_scores(s, &t, w->p, w->q, w->k + key0 * s->Dw);
        attention_scores(s, &t, w->ds, w->dout, w->v + key0 * s->Dw);
        if (SIMD_BF16 && s->pair)
            gradient_tile_pair(&t, w);
        else
            gradient_tile(&t, w, s->round);
        if (it->want_dkv) {
            attention_sum_queries(s, &t, w->dv + key0 * s->Do, w->p, w->dout_rows);
            attention_sum_queries(s, &t, w->dk + key0 * s->Do, s->pair ? w->p + LD : w->ds,
                                  w->q_rows);
        }
        if (it->want_dq)
            attention_sum_keys(s, &t, w->dq, w->ds, w->k_rows + (s->pair ? key0 / 2 : key0) * NR);
    }
    if (it->want_dq)
        for (int64_t r = 0; r < rows; r++)
            attention_store_row(f->dqkv + in_qkv(f, it->b, h, row0 + r), w->dq + r * s->Do, D,
                                scale);
}

/* Packs the keys and values of an item, and clears its dK and dV. */
static void pack_keys(const Backward *f, const Work *w, const Item *it) {
    const Attention *a = f->a;
    const Shape *s = &f->s;
    const float *k = f->qkv + in_qkv(f, it->b, a->H + it->g, 0), *v = k + a->Hkv * a->D;
    attention_pack_across(s, w->k, k, f->stride, it->key_begin, it->key_end);
    attention_pack_across(s, w->v, v, f->stride, it->key_begin, it->key_end);
    if (it->want_dq) // of all keys up to key_end
        attention_pack_rows(s, w->k_rows, s->Sw, k, f->stride, it->key_end, 1);
    if (it->want_dkv) {
        int64_t whole = (it->key_end + BC - 1) / BC * BC;
        size_t n = (size_t)((whole - it->key_begin) * s->Do) * sizeof(float);
        memset(w->dk + it->key_begin * s->Do, 0, n);
        memset(w->dv + it->key_begin * s->Do, 0, n);
    }
}

/* The rows that backward_rows reads of the queries from row0 of head h. */
static void ahead_queries(const Backward *f, PrefetchList *ahead, const Item *it, int64_t h,
                          int64_t row0) {
    int64_t rows = it->row_end - row0 < BR ? it->row_end - row0 : BR, wide = f->a->H * f->a->D;
    prefetch_add(ahead, f->qkv + in_qkv(f, it->b, h, row0), f->stride, rows);
    prefetch_add(ahead, f->dout + in_out(f, it->b, h, row0), wide, rows);
    prefetch_add(ahead, f->out + in_out(f, it->b, h, row0), wide, rows);
}

/* The rows that are written at the end of this row of tiles, and those that are read after it. */
static PrefetchList ahead_of(const Backward *f, const Item *it, int64_t h, int64_t row0,
                             const Item *after) {
    const Attention *a = f->a;
    int64_t group = a->H / a->Hkv, keys = it->key_end - it->key_begin;
    PrefetchList ahead = {0};
    if (it->want_dq)
        prefetch_add(&ahead, f->dqkv + in_qkv(f, it->b, h, row0), f->stride,
                     it->row_end - row0 < BR ? it->row_end - row0 : BR);
    if (row0 + BR < it->row_end) {
        ahead_queries(f, &ahead, it, h, row0 + BR);
    } else if (h + 1 < (it->g + 1) * group) {
        ahead_queries(f, &ahead, it, h + 1, it->row_begin);
    } else {
        float *dk = f->dqkv + in_qkv(f, it->b, a->H + it->g, it->key_begin);
        prefetch_add(&ahead, dk, f->stride, it->want_dkv ? keys : 0);
        prefetch_add(&ahead, dk + a->Hkv * a->D, f->stride, it->want_dkv ? keys : 0);
        if (after) {
            const float *k = f->qkv + in_qkv(f, after->b, a->H + after->g, after->key_begin);
            prefetch_add(&ahead, k, f->stride, after->key_end - after->key_begin);
            prefetch_add(&ahead, k + a->Hkv * a->D, f->stride, after->key_end - after->key_begin);
            ahead_queries(f, &ahead, after, after->g * group, after->row_begin);
        }
    }
    return ahead;
}

/* All rows of tiles of an item, then the stores of its dK and dV. `after` is the member's next
 * item, whose rows are prefetched, or NULL. */
static void backward_item(const Backward *f, const Work *w, const Item *it, const Item *after) {
    const Attention *a = f->a;
    const Shape *s = &f->s;
    int64_t group = a->H / a->Hkv;
    pack_keys(f, w, it);
    for (int64_t h = it->g * group; h < (it->g + 1) * group; h++)
        for (int64_t row0 = it->row_begin; row0 < it->row_end; row0 += BR) {
            PrefetchList ahead = ahead_of(f, it, h, row0, after);
            backward_rows(f, w, it, h, row0, &ahead);
            team_poll(w->polled);
        }
    if (it->want_dkv)
        for (int64_t j = it->key_begin; j < it->key_end; j++) {
            float *to = f->dqkv + in_qkv(f, it->b, a->H + it->g, j);
            attention_store_row(to, w->dk + j * s->Do, a->D, 1);
            attention_store_row(to + a->Hkv * a->D, w->dv + j * s->Do, a->D, 1);
        }
}

static void backward_member(void *ctx, int member, int size) {
    Backward *f = ctx;
    (void)size;
    BumpAllocator slice = {member_slice(f->a, member, f->floats), 0};
    Work w = allocate_work(&f->s, &slice);
    w.polled = member == 0 ? f->team : NULL;
    Item now, after;
    if (SIMD_TILES && f->s.tiles) tiles_begin();
    for (bool more = next_item(f, &now); more; now = after) {
        more = next_item(f, &after);
        backward_item(f, &w, &now, more ? &after : NULL);
    }
    if (SIMD_TILES && f->s.tiles) tiles_end();
}

void attention_backward(Team *t, const Attention *a, Act *dqkv, const Act *dout, const Act *qkv,
                        const Act *out, const float *lse) {
    Backward f = {
        .team = t, .a = a, .s = attention_shape(a), .dqkv = dqkv, .dout = dout, .qkv = qkv};
    f.out = out, f.lse = lse;
    f.stride = (a->H + 2 * a->Hkv) * a->D;
    f.floats = attention_backward_floats(&f.s);
    // A key head takes 5 matmuls of tiles as a whole, 7 in pieces, because those of dQ and those of
    // dK and dV both need the scores and dP. Pieces pay when whole heads would leave more than 2 in
    // 7 members idle.
    int64_t heads = a->B * a->Hkv, n = team_size(t), rounds = (heads + n - 1) / n;
    if (7 * heads < 5 * n * rounds) f.pieces = attention_pieces(team_size(t), heads, a->S, 4);
    team_run(t, backward_member, &f);
}
