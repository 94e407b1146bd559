#include "layers/activation.h"

#include <stdlib.h>

#include "layers/pointwise.h"

enum {
    GRAIN = 16384, // elements per piece: big enough to hide the hand-out, small enough to balance
    PANEL = 64, // tokens whose rows are summed together before they are added to a bias's gradient
    COLUMNS = 512, // columns of a panel sum: 2 KiB, stays in L1
};

typedef struct Elements {
    float *y;
    const float *x, *dy;
    int64_t F; // swiglu: features of y
    ActKind act;
} Elements;

static void act_forward_piece(void *ctx, int64_t begin, int64_t end) {
    const Elements e = *(const Elements *)ctx; // a copy: stores cannot change it
    EACH_VECTOR(i, n, begin, end) vf_store_n(e.y + i, pointwise(e.act, vf_load_n(e.x + i, n)), n);
}

void act_forward(Team *t, ActKind act, Act *y, const Act *x, int64_t n) {
    team_for(t, n, GRAIN, act_forward_piece, &(Elements){.y = y, .x = x, .act = act});
}

static void act_backward_piece(void *ctx, int64_t begin, int64_t end) {
    const Elements e = *(const Elements *)ctx; // a copy: stores cannot change it
    EACH_VECTOR(i, n, begin, end)
        vf_store_n(e.y + i, vf_load_n(e.dy + i, n) * pointwise_slope(e.act, vf_load_n(e.x + i, n)),
                   n);
}

void act_backward(Team *t, ActKind act, Act *dx, const Act *dy, const Act *x, int64_t n) {
    team_for(t, n, GRAIN, act_backward_piece, &(Elements){.y = dx, .x = x, .dy = dy, .act = act});
}

/* Rows per piece of a [T, width] matrix. */
static int64_t row_grain(int64_t width) {
    return width < 1 ? GRAIN : width < GRAIN ? GRAIN / width : 1;
}

static void swiglu_forward_rows(void *ctx, int64_t begin, int64_t end) {
    const Elements *e = ctx;
    int64_t F = e->F;
    for (int64_t i = begin; i < end; i++) {
        const float *gate = e->x + i * 2 * F, *up = gate + F;
        float *y = e->y + i * F;
        EACH_VECTOR(f, n, 0, F) {
            vf g = vf_load_n(gate + f, n);
            vf_store_n(y + f, g * vf_sigmoid(g) * vf_load_n(up + f, n), n);
        }
    }
}

void swiglu_forward(Team *t, Act *y, const Act *x, int64_t T, int64_t F) {
    team_for(t, T, row_grain(F), swiglu_forward_rows, &(Elements){.y = y, .x = x, .F = F});
}

/* The gradients of g sigmoid(g) u, times d = dy: *dg and *du. */
static inline void swiglu_slopes(vf g, vf u, vf d, vf *dg, vf *du) {
    vf rest, s = vf_sigmoid_rest(g, &rest);
    *dg = d * u * s * vf_fma(g, rest, vf_set1(1.0f));
    *du = d * (g * s);
}

static void swiglu_backward_rows(void *ctx, int64_t begin, int64_t end) {
    const Elements *e = ctx;
    int64_t F = e->F;
    for (int64_t i = begin; i < end; i++) {
        const float *gate = e->x + i * 2 * F, *up = gate + F, *dy = e->dy + i * F;
        float *dgate = e->y + i * 2 * F, *dup = dgate + F;
        vf dg, du;
        EACH_VECTOR(f, n, 0, F) {
            swiglu_slopes(vf_load_n(gate + f, n), vf_load_n(up + f, n), vf_load_n(dy + f, n), &dg,
                          &du);
            vf_store_n(dgate + f, dg, n);
            vf_store_n(dup + f, du, n);
        }
    }
}

void swiglu_backward(Team *t, Act *dx, const Act *dy, const Act *x, int64_t T, int64_t F) {
    team_for(t, T, row_grain(2 * F), swiglu_backward_rows,
             &(Elements){.y = dx, .x = x, .dy = dy, .F = F});
}

typedef struct ColumnSum {
    float *sum;
    const float *y;
    int64_t T, N;
} ColumnSum;

/* sum[0 .. n) = the sum over `rows` rows of y; four rows at a time, so that sum is loaded and
 * stored less often. */
static void sum_rows(float *sum, const float *y, int64_t rows, int64_t n, int64_t ld) {
    memset(sum, 0, (size_t)n * sizeof *sum);
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        const float *a = y + r * ld, *b = a + ld, *c = b + ld, *d = c + ld;
        for (int64_t i = 0; i < n; i++) sum[i] += (a[i] + b[i]) + (c[i] + d[i]);
    }
    for (; r < rows; r++)
        for (int64_t i = 0; i < n; i++) sum[i] += y[r * ld + i];
}

static void bias_backward_columns(void *ctx, int64_t begin, int64_t end) {
    const ColumnSum *c = ctx;
    float sum[COLUMNS];
    for (int64_t i = begin; i < end; i += COLUMNS) {
        int64_t n = end - i < COLUMNS ? end - i : COLUMNS;
        for (int64_t t = 0; t < c->T; t += PANEL) {
            sum_rows(sum, c->y + t * c->N + i, c->T - t < PANEL ? c->T - t : PANEL, n, c->N);
            for (int64_t j = 0; j < n; j++) c->sum[i + j] += sum[j];
        }
    }
}

void bias_backward(Team *t, float *dbias, const Act *dy, int64_t T, int64_t N) {
    team_for(t, N, COLUMNS, bias_backward_columns, &(ColumnSum){dbias, dy, T, N});
}

typedef struct Residual {
    float *y;
    const float *addend, *bias;
    int64_t N;
} Residual;

/* (addend + y) + bias, in the order of a matmul's epilogue. */
void bias_residual_row(float *y, const float *addend, const float *bias, int64_t N) {
    for (int64_t n = 0; n < N && addend; n++) y[n] = addend[n] + y[n];
    for (int64_t n = 0; n < N && bias; n++) y[n] += bias[n];
}

static void bias_residual_rows(void *ctx, int64_t begin, int64_t end) {
    const Residual *r = ctx;
    for (int64_t t = begin; t < end; t++)
        bias_residual_row(r->y + t * r->N, r->addend ? r->addend + t * r->N : NULL, r->bias, r->N);
}

void bias_residual(Team *t, Act *y, const Act *addend, const float *bias, int64_t T, int64_t N) {
    team_for(t, T, row_grain(N), bias_residual_rows, &(Residual){y, addend, bias, N});
}
