#include "layers/norm.h"

#include <math.h>

#include "base/simd.h"

enum {
    PANEL = 32,    // tokens whose parameter gradients are summed together
    COLUMNS = 256, // columns per piece when the panel sums are added
};

static int64_t n_panels(int64_t T) {
    return (T + PANEL - 1) / PANEL;
}

/* dgamma[C] and dbeta[C] of every panel of tokens. */
size_t norm_workspace(int64_t T, int64_t C) {
    return (size_t)(n_panels(T) * 2 * C) * sizeof(float);
}

/* Statistics of one row: the mean, then the sum of squared distances from it. The second pass reads
 * the row from L1; the mean of squares minus the square of the mean would lose all digits where the
 * mean is large. */
static float row_sum(const float *x, int64_t C) {
    vf a = vf_zero(), b = a, c = a, d = a;
    int64_t i = 0;
    for (; i + 4 * VF <= C; i += 4 * VF) {
        a += vf_load(x + i);
        b += vf_load(x + i + VF);
        c += vf_load(x + i + 2 * VF);
        d += vf_load(x + i + 3 * VF);
    }
    for (; i + VF <= C; i += VF) a += vf_load(x + i);
    if (i < C) b += vf_load_n(x + i, (int)(C - i));
    return vf_sum((a + b) + (c + d));
}

static float row_squares(const float *x, float mean, int64_t C) {
    vf m = vf_set1(mean), s[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * VF <= C; i += 4 * VF)
        for (int j = 0; j < 4; j++) {
            vf d = vf_load(x + i + j * VF) - m;
            s[j] = vf_fma(d, d, s[j]);
        }
    for (; i + VF <= C; i += VF) {
        vf d = vf_load(x + i) - m;
        s[0] = vf_fma(d, d, s[0]);
    }
    if (i < C) {
        vf d = vf_first_lanes(vf_load_n(x + i, (int)(C - i)) - m, C - i, vf_zero());
        s[1] = vf_fma(d, d, s[1]);
    }
    return vf_sum((s[0] + s[1]) + (s[2] + s[3]));
}

/* y = (x - mean) rstd gamma + beta */
static void row_apply(const Norm *n, float *y, const float *x, float mean, float rstd) {
    vf m = vf_set1(mean), r = vf_set1(rstd), zero = vf_zero();
    const float *gamma = n->gamma, *beta = n->beta;
    int64_t i = 0;
    for (; i + VF <= n->C; i += VF) {
        vf h = (vf_load(x + i) - m) * r;
        vf_store(y + i, vf_fma(h, vf_load(gamma + i), beta ? vf_load(beta + i) : zero));
    }
    int k = (int)(n->C - i);
    if (k > 0) {
        vf h = (vf_load_n(x + i, k) - m) * r;
        vf_store_n(y + i, vf_fma(h, vf_load_n(gamma + i, k), beta ? vf_load_n(beta + i, k) : zero),
                   k);
    }
}

typedef struct Forward {
    const Norm *n;
    float *y, *mean, *rstd;
    const float *x;
} Forward;

static void forward_rows(void *ctx, int64_t begin, int64_t end) {
    const Forward *f = ctx;
    int64_t C = f->n->C;
    for (int64_t t = begin; t < end; t++) {
        const float *x = f->x + t * C;
        float mean = f->n->kind == NORM_LAYER ? row_sum(x, C) / (float)C : 0;
        float rstd = 1 / sqrtf(row_squares(x, mean, C) / (float)C + f->n->eps);
        row_apply(f->n, f->y + t * C, x, mean, rstd);
        if (f->mean) f->mean[t] = mean;
        if (f->rstd) f->rstd[t] = rstd;
    }
}

void norm_forward(Team *t, const Norm *n, float *y, float *mean, float *rstd, const float *x) {
    int64_t grain = 16384 / (n->C < 16384 ? n->C : 16384);
    team_for(t, n->T, grain, forward_rows, &(Forward){n, y, mean, rstd, x});
}

typedef struct Backward {
    const Norm *n;
    float *dx;
    const float *dy, *x, *mean, *rstd;
} Backward;

typedef struct RowSums {
    float g, gh; // sums over the features of g = dy gamma and of g h, h = (x - mean) rstd
} RowSums;

/* The sums that dx of this row needs; adds this row to the panel's dgamma and dbeta on the way. */
static RowSums backward_sums(const Norm *n, float *dgamma, float *dbeta, const float *dy,
                             const float *x, float mean, float rstd) {
    vf m = vf_set1(mean), r = vf_set1(rstd), sum_g = vf_zero(), sum_gh = vf_zero();
    int64_t i = 0;
    for (; i + VF <= n->C; i += VF) {
        vf h = (vf_load(x + i) - m) * r, d = vf_load(dy + i), g = d * vf_load(n->gamma + i);
        sum_g += g;
        sum_gh = vf_fma(g, h, sum_gh);
        vf_store(dgamma + i, vf_fma(d, h, vf_load(dgamma + i)));
        vf_store(dbeta + i, vf_load(dbeta + i) + d);
    }
    int k = (int)(n->C - i);
    if (k > 0) { // lanes beyond k: d and so g are 0
        vf h = (vf_load_n(x + i, k) - m) * r, d = vf_load_n(dy + i, k),
           g = d * vf_load_n(n->gamma + i, k);
        sum_g += g;
        sum_gh = vf_fma(g, h, sum_gh);
        vf_store_n(dgamma + i, vf_fma(d, h, vf_load_n(dgamma + i, k)), k);
        vf_store_n(dbeta + i, vf_load_n(dbeta + i, k) + d, k);
    }
    return (RowSums){vf_sum(sum_g), vf_sum(sum_gh)};
}

/* dx += rstd (g - mean(g) - h mean(g h)); without mean(g) for RMS norm. */
static void backward_apply(const Norm *n, float *dx, const float *dy, const float *x, float mean,
                           float rstd, RowSums s) {
    vf m = vf_set1(mean), r = vf_set1(rstd);
    vf a = vf_set1(n->kind == NORM_LAYER ? s.g / (float)n->C : 0), b = vf_set1(s.gh / (float)n->C);
    int64_t i = 0;
    for (; i + VF <= n->C; i += VF) {
        vf h = (vf_load(x + i) - m) * r, g = vf_load(dy + i) * vf_load(n->gamma + i);
        vf_store(dx + i, vf_fma(r, g - a - h * b, vf_load(dx + i)));
    }
    int k = (int)(n->C - i);
    if (k > 0) {
        vf h = (vf_load_n(x + i, k) - m) * r, g = vf_load_n(dy + i, k) * vf_load_n(n->gamma + i, k);
        vf_store_n(dx + i, vf_fma(r, g - a - h * b, vf_load_n(dx + i, k)), k);
    }
}

static void backward_panels(void *ctx, int64_t begin, int64_t end) {
    const Backward *b = ctx;
    const Norm *n = b->n;
    int64_t C = n->C;
    for (int64_t p = begin; p < end; p++) {
        float *dgamma = (float *)n->workspace + p * 2 * C, *dbeta = dgamma + C;
        memset(dgamma, 0, (size_t)(2 * C) * sizeof *dgamma);
        int64_t last = (p + 1) * PANEL < n->T ? (p + 1) * PANEL : n->T;
        for (int64_t t = p * PANEL; t < last; t++) {
            const float *dy = b->dy + t * C, *x = b->x + t * C;
            float mean = n->kind == NORM_LAYER ? b->mean[t] : 0;
            RowSums s = backward_sums(n, dgamma, dbeta, dy, x, mean, b->rstd[t]);
            backward_apply(n, b->dx + t * C, dy, x, mean, b->rstd[t], s);
        }
    }
}

/* Adds the panel sums to the gradients, in the order of the panels. */
static void add_panels(void *ctx, int64_t begin, int64_t end) {
    const Norm *n = ctx;
    const float *panel = n->workspace;
    for (int64_t i = begin; i < end; i += COLUMNS) {
        int64_t width = end - i < COLUMNS ? end - i : COLUMNS;
        float dgamma[COLUMNS] = {0}, dbeta[COLUMNS] = {0};
        for (int64_t p = 0; p < n_panels(n->T); p++) {
            const float *g = panel + p * 2 * n->C + i, *b = g + n->C;
            for (int64_t c = 0; c < width; c++) dgamma[c] += g[c];
            for (int64_t c = 0; c < width; c++) dbeta[c] += b[c];
        }
        for (int64_t c = 0; c < width; c++) n->dgamma[i + c] += dgamma[c];
        for (int64_t c = 0; c < width && n->dbeta; c++) n->dbeta[i + c] += dbeta[c];
    }
}

void norm_backward(Team *t, const Norm *n, float *dx, const float *dy, const float *x,
                   const float *mean, const float *rstd) {
    team_for(t, n_panels(n->T), 1, backward_panels, &(Backward){n, dx, dy, x, mean, rstd});
    Norm sums = *n;
    team_for(t, n->C, COLUMNS, add_panels, &sums);
}
