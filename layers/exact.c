/* Exact sums of columns and of all elements of a tensor, and their values as floats. */
#include "layers/exact.h"

#include "layers/exact_grid.h"

enum {
    GRAIN = 16384, // elements per piece
    VECTORS = 4,   // vectors of neighbouring columns that are summed together
    PANELS = 256,  // most partial sums of a sum of all elements
};

/* v step, with step = 2^-exponent, as a double: exact, since |v| < 2^51. NaN for v out of range. */
static double narrow_value(int64_t v, double step) {
    return out_of_range((uint64_t)v) >> (EXACT_BITS + 1) ? (double)NAN : (double)v * step;
}

typedef struct Floats {
    float *y;
    const int64_t *y_64;
    double magic, step;
} Floats;

/* The reverse of exact_steps_of: adds the whole number to the bits of the constant, then subtracts
 * the constant as a double. */
static void to_float_piece(void *ctx, int64_t begin, int64_t end) {
    const Floats *f = ctx;
    vu out = {0};
    int64_t i = begin;
    for (; i + VD <= end; i += VD) {
        vu v = vu_load(f->y_64 + i);
        vd d = (vd)(v + double_bits(f->magic)) - f->magic;
        out |= vu_out_of_range(v);
        *(vf_half_any *)(f->y + i) = __builtin_convertvector(d, vf_half_any);
    }
    if (vu_any_out(out)) i = begin;
    for (; i < end; i++) f->y[i] = (float)narrow_value(f->y_64[i], f->step);
}

void exact_to_float(Team *t, float *y, const int64_t *y_64, int64_t n, int exponent) {
    Floats f = {y, y_64, exact_grid_of(exponent).magic, ldexp(1, -exponent)};
    team_for(t, n, GRAIN, to_float_piece, &f);
}

double exact_wide_to_double(const int64_t sum_64[WIDE]) {
    int64_t sum[WIDE] = {0};
    wide_join(sum, sum_64); // exact_add does not carry lo into hi
    return narrow_value(sum[0], 0x1p-14) + (double)sum[1] * 0x1p-64;
}

typedef struct Parts {
    int64_t *to;
    const int64_t *from;
} Parts;

static void add_parts(void *ctx, int64_t begin, int64_t end) {
    const Parts *p = ctx;
    for (int64_t i = begin; i < end; i++) // unsigned: poison may wrap
        p->to[i] = (int64_t)((uint64_t)p->to[i] + (uint64_t)p->from[i]);
}

void exact_add(Team *t, int64_t *to_64, const int64_t *from_64, int64_t n) {
    team_for(t, n, GRAIN, add_parts, &(Parts){to_64, from_64});
}

typedef struct AllElements {
    const float *x;
    int64_t n, panel;
    bool squares;
    int64_t sum[PANELS][WIDE];
} AllElements;

static void sum_panels(void *ctx, int64_t begin, int64_t end) {
    AllElements *e = ctx;
    for (int64_t p = begin; p < end; p++) {
        int64_t first = p * e->panel, last = first + e->panel < e->n ? first + e->panel : e->n;
        WideSum s = wide_start();
        EACH_VECTOR(i, n, first, last) {
            vf x = vf_load_n(e->x + i, n);
            wide_add(&s, e->squares ? x * x : x);
        }
        wide_end(&s, e->sum[p]);
    }
}

void exact_sum(Team *t, int64_t sum_64[WIDE], const float *x, int64_t n, bool squares) {
    AllElements e = {.x = x, .n = n, .squares = squares, .panel = n / PANELS + GRAIN};
    int64_t panels = (n + e.panel - 1) / e.panel;
    team_for(t, panels, 1, sum_panels, &e);
    for (int64_t p = 0; p < panels; p++) wide_join(sum_64, e.sum[p]);
}

typedef struct Columns {
    int64_t *sum_64;
    const float *x;
    int64_t T, N;
    ExactGrid grid;
} Columns;

static void bias_columns(void *ctx, int64_t begin, int64_t end) {
    const Columns *c = ctx;
    for (int64_t n = begin; n < end; n += VECTORS * VF)
        for (int64_t t = 0; t < c->T;) {
            Lanes s[VECTORS] = {0};
            int64_t first = t, last = t + LANES_MOST < c->T ? t + LANES_MOST : c->T;
            for (; t < last; t++)
                for (int j = 0; j < VECTORS; j++) {
                    int64_t at = n + j * VF, left = end - at;
                    const float *x = c->x + t * c->N + at;
                    if (left > 0)
                        lanes_add(&s[j], &c->grid,
                                  left < VF ? vf_load_n(x, (int)left) : vf_load(x));
                }
            for (int j = 0; j < VECTORS && n + j * VF < end; j++)
                lanes_join(&s[j], &c->grid, c->sum_64 + n + j * VF, end - n - j * VF, t - first);
        }
}

void exact_bias_backward(Team *t, int64_t *dbias_64, const float *dy, int64_t T, int64_t N,
                         int exponent) {
    team_for(t, N, VECTORS * VF, bias_columns,
             &(Columns){dbias_64, dy, T, N, exact_grid_of(exponent)});
}

typedef struct NormWeights {
    const Norm *n;
    int64_t *dgamma_64, *dbeta_64;
    const float *dy, *x, *mean, *rstd;
    ExactGrid grid;
} NormWeights;

/* The gradients of gamma and beta of columns begin .. end, VF columns at a time, over all
 * tokens. */
static void norm_columns(void *ctx, int64_t begin, int64_t end) {
    const NormWeights *w = ctx;
    int64_t T = w->n->T, ld = norm_ld(w->n);
    EACH_VECTOR(i, k, begin, end)
        for (int64_t t = 0; t < T;) {
            Lanes dgamma = {0}, dbeta = {0};
            int64_t first = t, last = t + LANES_MOST < T ? t + LANES_MOST : T;
            for (; t < last; t++) { // lanes beyond k: d is 0
                vf d = vf_load_n(w->dy + t * ld + i, k), x = vf_load_n(w->x + t * ld + i, k);
                vf mean = vf_set1(w->n->kind == NORM_LAYER ? w->mean[t] : 0);
                lanes_add(&dgamma, &w->grid, d * ((x - mean) * vf_set1(w->rstd[t])));
                lanes_add(&dbeta, &w->grid, d);
            }
            lanes_join(&dgamma, &w->grid, w->dgamma_64 + i, k, t - first);
            if (w->dbeta_64) lanes_join(&dbeta, &w->grid, w->dbeta_64 + i, k, t - first);
        }
}

void exact_norm_weight_backward(Team *t, const Norm *n, int64_t *dgamma_64, int64_t *dbeta_64,
                                const float *dy, const float *x, const float *mean,
                                const float *rstd, int exponent) {
    NormWeights w = {n, dgamma_64, dbeta_64, dy, x, mean, rstd, exact_grid_of(exponent)};
    team_for(t, n->C, 4 * VF, norm_columns, &w);
}

typedef struct HeadWeights {
    const QkNorm *q;
    int64_t *dgamma_64;
    const float *dy, *x;
    ExactGrid grid;
} HeadWeights;

/* Pieces of VF columns of the gradient of the weight, first of queries, then of keys, over all
 * tokens. */
static void head_weights(void *ctx, int64_t begin, int64_t end) {
    const HeadWeights *w = ctx;
    const QkNorm *q = w->q;
    int64_t pieces = (q->D + VF - 1) / VF;
    for (int64_t piece = begin; piece < end; piece++) {
        bool keys = piece >= pieces;
        int64_t i = piece % pieces * VF, heads = keys ? q->Hkv : q->H, rows = q->T * heads;
        int k = q->D - i < VF ? (int)(q->D - i) : VF;
        for (int64_t row = 0; row < rows;) {
            Lanes dgamma = {0};
            int64_t first = row, last = row + LANES_MOST < rows ? row + LANES_MOST : rows;
            for (; row < last; row++) { // lanes beyond k: dy is 0
                int64_t head = row / heads * qk_norm_heads(q) + (keys ? q->H : 0) + row % heads;
                const float *dy = w->dy + head * q->D, *x = w->x + head * q->D;
                vf h = vf_load_n(x + i, k) * vf_set1(qk_norm_rstd(q, x));
                lanes_add(&dgamma, &w->grid, vf_load_n(dy + i, k) * h);
            }
            lanes_join(&dgamma, &w->grid, w->dgamma_64 + (keys ? q->D : 0) + i, k, row - first);
        }
    }
}

void exact_qk_norm_weight_backward(Team *t, const QkNorm *q, int64_t *dgamma_64, const float *dy,
                                   const float *x, int exponent) {
    HeadWeights w = {q, dgamma_64, dy, x, exact_grid_of(exponent)};
    team_for(t, 2 * ((q->D + VF - 1) / VF), 1, head_weights, &w);
}
