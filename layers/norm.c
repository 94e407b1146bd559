#include "layers/norm.h"

#include <math.h>

#include "base/simd.h"
#include "layers/activation.h"

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
    EACH_VECTOR(i, k, 0, n->C) {
        vf h = (vf_load_n(x + i, k) - m) * r;
        vf_store_n(y + i, vf_fma(h, vf_load_n(gamma + i, k), beta ? vf_load_n(beta + i, k) : zero),
                   k);
    }
}

/* The number of features of the part that begins at feature i, in a row or a shard of C
 * features. */
static int64_t features_from(const Norm *n, int64_t C, int64_t i) {
    int64_t part = norm_part(n);
    return i + part < C ? part : C - i;
}

/* Features of the whole row. */
static float n_features(const Norm *n) {
    return (float)(n->C_all ? n->C_all : n->C);
}

typedef struct Forward {
    const Norm *n;
    float *y, *mean, *rstd;
    const float *x;
    float *stats;  // norm_statistics, norm_merge: 2 numbers of each part and token
    float *stream; // residual_norm: x, before addend and bias are added
    const float *addend, *bias;
    const float *mean_given, *rstd_given; // norm_apply: from norm_merge
} Forward;

/* Mean and sum of squared distances of C features; 0 and 0 of none. */
static inline void row_statistics(const Norm *n, const float *x, int64_t C, float *mean,
                                  float *squares) {
    *mean = n->kind == NORM_LAYER && C > 0 ? row_sum(x, C) / (float)C : 0;
    *squares = row_squares(x, *mean, C);
}

static void forward_row(const Forward *f, int64_t t) {
    int64_t ld = norm_ld(f->n);
    float mean, squares;
    row_statistics(f->n, f->x + t * ld, f->n->C, &mean, &squares);
    float rstd = 1 / sqrtf(squares / (float)f->n->C + f->n->eps);
    row_apply(f->n, f->y + t * ld, f->x + t * ld, mean, rstd);
    if (f->mean) f->mean[t] = mean;
    if (f->rstd) f->rstd[t] = rstd;
}

static void forward_rows(void *ctx, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) forward_row(ctx, t);
}

void norm_forward(Team *t, const Norm *n, Act *y, float *mean, float *rstd, const Act *x) {
    Forward f = {.n = n, .y = y, .mean = mean, .rstd = rstd, .x = x};
    team_for(t, n->T, norm_grain(n), forward_rows, &f);
}

/* Row by row: a row is still in the L1 when its norm reads it. */
static void residual_norm_rows(void *ctx, int64_t begin, int64_t end) {
    const Forward *f = ctx;
    int64_t C = f->n->C;
    for (int64_t t = begin; t < end; t++) {
        bias_residual_row(f->stream + t * C, f->addend + t * C, f->bias, C);
        forward_row(f, t);
    }
}

void residual_norm(Team *t, const Norm *n, Act *stream, const Act *addend, const float *bias,
                   Act *y, float *mean, float *rstd) {
    Forward f = {.n = n, .y = y, .mean = mean, .rstd = rstd, .x = stream};
    f.stream = stream, f.addend = addend, f.bias = bias;
    team_for(t, n->T, norm_grain(n), residual_norm_rows, &f);
}

static void statistics_rows(void *ctx, int64_t begin, int64_t end) {
    const Forward *f = ctx;
    const Norm *n = f->n;
    for (int64_t t = begin; t < end; t++) {
        int64_t i = 0;
        float *stats = f->stats + 2 * t;
        do {
            row_statistics(n, f->x + t * norm_ld(n) + i, features_from(n, n->C, i), stats,
                           stats + 1);
            i += norm_part(n), stats += 2 * n->T;
        } while (i < n->C);
    }
}

void norm_statistics(Team *t, const Norm *n, float *stats, const Act *x) {
    team_for(t, n->T, norm_grain(n), statistics_rows, &(Forward){.n = n, .x = x, .stats = stats});
}

/* The sum of squared distances from the mean of the row is, over its parts, the sum of squared
 * distances from the part's own mean, and for each feature the squared distance between the two
 * means. No square of a mean appears, so nothing cancels where means are large. */
static void merge_rows(void *ctx, int64_t begin, int64_t end) {
    const Forward *f = ctx;
    const Norm *n = f->n;
    int64_t all = n->C_all ? n->C_all : n->C, part = norm_part(n);
    for (int64_t t = begin; t < end; t++) {
        double m = 0, squares = 0;
        const float *s = f->stats + 2 * t;
        for (int64_t i = 0; i < all; i += part, s += 2 * n->T)
            m += (double)features_from(n, all, i) * (double)s[0];
        m /= (double)all;
        s = f->stats + 2 * t;
        for (int64_t i = 0; i < all; i += part, s += 2 * n->T) {
            double d = (double)s[0] - m;
            squares += (double)s[1] + (double)features_from(n, all, i) * d * d;
        }
        if (f->mean) f->mean[t] = (float)m;
        f->rstd[t] = (float)(1 / sqrt(squares / (double)all + (double)n->eps));
    }
}

void norm_merge(Team *t, const Norm *n, float *mean, float *rstd, const float *stats) {
    Forward f = {.n = n, .mean = mean, .rstd = rstd, .stats = (float *)stats}; // only read
    team_for(t, n->T, norm_grain(n), merge_rows, &f);
}

static void apply_rows(void *ctx, int64_t begin, int64_t end) {
    const Forward *f = ctx;
    int64_t ld = norm_ld(f->n);
    for (int64_t t = begin; t < end; t++) {
        float mean = f->n->kind == NORM_LAYER ? f->mean_given[t] : 0;
        row_apply(f->n, f->y + t * ld, f->x + t * ld, mean, f->rstd_given[t]);
    }
}

void norm_apply(Team *t, const Norm *n, Act *y, const Act *x, const float *mean,
                const float *rstd) {
    Forward f = {.n = n, .y = y, .x = x, .mean_given = mean, .rstd_given = rstd};
    if (n->C > 0) team_for(t, n->T, norm_grain(n), apply_rows, &f);
}

typedef struct Backward {
    const Norm *n;
    float *dx;   // NULL: only the sums
    float *sums; // the RowSums of every part and token are stored here; NULL: used at once
    const float *dy, *x, *mean, *rstd;
    const float *sums_given;
    int64_t n_given; // parts in sums_given
} Backward;

typedef struct RowSums {
    float g, gh; // sums over the features of g = dy gamma and of g h, h = (x - mean) rstd
} RowSums;

/* The sums over the columns from begin to end of a row that its dx needs. Also adds the row's terms
 * to the panel's dgamma and dbeta, unless these are NULL. */
static RowSums backward_sums(const Norm *n, float *dgamma, float *dbeta, const float *dy,
                             const float *x, float mean, float rstd, int64_t begin, int64_t end) {
    vf m = vf_set1(mean), r = vf_set1(rstd), sum_g = vf_zero(), sum_gh = vf_zero();
    EACH_VECTOR(i, k, begin, end) { // lanes beyond k: d and so g are 0
        vf h = (vf_load_n(x + i, k) - m) * r, d = vf_load_n(dy + i, k),
           g = d * vf_load_n(n->gamma + i, k);
        sum_g += g;
        sum_gh = vf_fma(g, h, sum_gh);
        if (!dgamma) continue;
        vf_store_n(dgamma + i, vf_fma(d, h, vf_load_n(dgamma + i, k)), k);
        vf_store_n(dbeta + i, vf_load_n(dbeta + i, k) + d, k);
    }
    return (RowSums){vf_sum(sum_g), vf_sum(sum_gh)};
}

/* dx += rstd (g - mean(g) - h mean(g h)); without mean(g) for RMS norm. */
static void backward_apply(const Norm *n, float *dx, const float *dy, const float *x, float mean,
                           float rstd, RowSums s) {
    vf m = vf_set1(mean), r = vf_set1(rstd);
    float C = n_features(n);
    vf a = vf_set1(n->kind == NORM_LAYER ? s.g / C : 0), b = vf_set1(s.gh / C);
    EACH_VECTOR(i, k, 0, n->C) {
        vf h = (vf_load_n(x + i, k) - m) * r, g = vf_load_n(dy + i, k) * vf_load_n(n->gamma + i, k);
        vf_store_n(dx + i, vf_fma(r, g - a - h * b, vf_load_n(dx + i, k)), k);
    }
}

/* The panels begin .. end of tokens: dgamma and dbeta of each go to the workspace; RowSums and dx
 * are computed row by row. */
static void backward_panels(void *ctx, int64_t begin, int64_t end) {
    const Backward *b = ctx;
    const Norm *n = b->n;
    int64_t C = n->C, ld = norm_ld(n);
    for (int64_t p = begin; p < end; p++) {
        float *dgamma = (float *)n->workspace + p * 2 * C, *dbeta = dgamma + C;
        memset(dgamma, 0, (size_t)(2 * C) * sizeof *dgamma);
        int64_t last = (p + 1) * PANEL < n->T ? (p + 1) * PANEL : n->T;
        for (int64_t t = p * PANEL; t < last; t++) {
            const float *dy = b->dy + t * ld, *x = b->x + t * ld;
            float mean = n->kind == NORM_LAYER ? b->mean[t] : 0;
            RowSums s = backward_sums(n, dgamma, dbeta, dy, x, mean, b->rstd[t], 0, C);
            if (b->sums) b->sums[2 * t] = s.g, b->sums[2 * t + 1] = s.gh;
            if (b->dx) backward_apply(n, b->dx + t * ld, dy, x, mean, b->rstd[t], s);
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

static void backward(Team *t, Backward *b) {
    team_for(t, n_panels(b->n->T), 1, backward_panels, b);
    Norm panels = *b->n;
    team_for(t, panels.C, COLUMNS, add_panels, &panels);
}

void norm_backward(Team *t, const Norm *n, Act *dx, const Act *dy, const Act *x, const float *mean,
                   const float *rstd) {
    backward(t, &(Backward){.n = n, .dx = dx, .dy = dy, .x = x, .mean = mean, .rstd = rstd});
}

/* The RowSums of each part, without dgamma and dbeta. */
static void backward_sums_rows(void *ctx, int64_t begin, int64_t end) {
    const Backward *b = ctx;
    const Norm *n = b->n;
    for (int64_t t = begin; t < end; t++) {
        const float *dy = b->dy + t * norm_ld(n), *x = b->x + t * norm_ld(n);
        float mean = n->kind == NORM_LAYER ? b->mean[t] : 0, *sums = b->sums + 2 * t;
        for (int64_t i = 0; i < n->C; i += norm_part(n), sums += 2 * n->T) {
            RowSums s = backward_sums(n, NULL, NULL, dy, x, mean, b->rstd[t], i,
                                      i + features_from(n, n->C, i));
            sums[0] = s.g, sums[1] = s.gh;
        }
    }
}

void norm_backward_sums(Team *t, const Norm *n, float *sums, const Act *dy, const Act *x,
                        const float *mean, const float *rstd) {
    Backward b = {.n = n, .sums = sums, .dy = dy, .x = x, .mean = mean, .rstd = rstd};
    if (n->C == 0)
        memset(sums, 0, (size_t)(2 * n->T) * sizeof *sums);
    else if (n->dgamma)
        backward(t, &b);
    else
        team_for(t, n->T, norm_grain(n), backward_sums_rows, &b);
}

static void backward_apply_rows(void *ctx, int64_t begin, int64_t end) {
    const Backward *b = ctx;
    int64_t ld = norm_ld(b->n);
    for (int64_t t = begin; t < end; t++) {
        RowSums s = {0};
        for (int64_t i = 0; i < b->n_given; i++) {
            const float *part = b->sums_given + 2 * (i * b->n->T + t);
            s.g += part[0], s.gh += part[1];
        }
        float mean = b->n->kind == NORM_LAYER ? b->mean[t] : 0;
        backward_apply(b->n, b->dx + t * ld, b->dy + t * ld, b->x + t * ld, mean, b->rstd[t], s);
    }
}

void norm_backward_apply(Team *t, const Norm *n, Act *dx, const Act *dy, const Act *x,
                         const float *mean, const float *rstd, const float *sums) {
    Backward b = {
        .n = n, .dx = dx, .dy = dy, .x = x, .mean = mean, .rstd = rstd, .sums_given = sums};
    b.n_given = n->part ? norm_parts(n) : 1;
    if (n->C > 0) team_for(t, n->T, norm_grain(n), backward_apply_rows, &b);
}

/* ---- QK-norm ---- */

typedef struct Heads {
    const QkNorm *q;
    float *out; // y or dx
    const float *dy, *x;
} Heads;

float qk_norm_rstd(const QkNorm *q, const float *x) {
    return 1 / sqrtf(row_squares(x, 0, q->D) / (float)q->D + q->eps);
}

/* y = x rstd gamma, of one head. */
static void head_forward(const QkNorm *q, const float *gamma, float *y, const float *x) {
    Norm n = {.kind = NORM_RMS, .C = q->D, .eps = q->eps, .gamma = gamma};
    forward_row(&(Forward){.n = &n, .y = y, .x = x}, 0);
}

/* dx = rstd (g - h mean(g h)) with g = dy gamma and h = x rstd, of one head. */
static void head_backward(const QkNorm *q, const float *gamma, float *dx, const float *dy,
                          const float *x) {
    Norm n = {.kind = NORM_RMS, .C = q->D, .gamma = gamma};
    float rstd = qk_norm_rstd(q, x);
    RowSums s = backward_sums(&n, NULL, NULL, dy, x, 0, rstd, 0, q->D);
    vf r = vf_set1(rstd), mean_gh = vf_set1(s.gh / (float)q->D);
    EACH_VECTOR(i, k, 0, q->D) {
        vf h = vf_load_n(x + i, k) * r, g = vf_load_n(dy + i, k) * vf_load_n(gamma + i, k);
        vf_store_n(dx + i, r * (g - h * mean_gh), k);
    }
}

/* The heads of tokens begin .. end, forward or, with dy, backward. */
static void head_rows(void *ctx, int64_t begin, int64_t end) {
    const Heads *w = ctx;
    const QkNorm *q = w->q;
    int64_t all = qk_norm_heads(q), D = q->D;
    for (int64_t i = begin * all; i < end * all; i++) {
        const float *from = w->dy ? w->dy : w->x, *gamma = q->gamma + (i % all < q->H ? 0 : D);
        if (i % all >= q->H + q->Hkv)
            memmove(w->out + i * D, from + i * D, (size_t)D * sizeof *from);
        else if (w->dy)
            head_backward(q, gamma, w->out + i * D, w->dy + i * D, w->x + i * D);
        else
            head_forward(q, gamma, w->out + i * D, w->x + i * D);
    }
}

static int64_t head_grain(const QkNorm *q) {
    Norm row = {.C = qk_norm_heads(q) * q->D};
    return norm_grain(&row);
}

void qk_norm(Team *t, const QkNorm *q, Act *y, const Act *x) {
    team_for(t, q->T, head_grain(q), head_rows, &(Heads){.q = q, .out = y, .x = x});
}

void qk_norm_backward(Team *t, const QkNorm *q, Act *dx, const Act *dy, const Act *x) {
    team_for(t, q->T, head_grain(q), head_rows, &(Heads){q, dx, dy, x});
}

/* The panels begin .. end of tokens: the sums of dy h over all query heads and over all key heads
 * go to the workspace. */
static void head_panels(void *ctx, int64_t begin, int64_t end) {
    const Heads *w = ctx;
    const QkNorm *q = w->q;
    int64_t all = qk_norm_heads(q), D = q->D;
    for (int64_t p = begin; p < end; p++) {
        float *sums = (float *)q->workspace + p * 2 * D;
        int64_t last = (p + 1) * PANEL < q->T ? (p + 1) * PANEL : q->T;
        memset(sums, 0, (size_t)(2 * D) * sizeof *sums);
        for (int64_t i = p * PANEL * all; i < last * all; i++) {
            const float *dy = w->dy + i * D, *x = w->x + i * D;
            float *sum = sums + (i % all < q->H ? 0 : D);
            if (i % all >= q->H + q->Hkv) continue;
            vf r = vf_set1(qk_norm_rstd(q, x));
            EACH_VECTOR(c, k, 0, D) {
                vf h = vf_load_n(x + c, k) * r;
                vf_store_n(sum + c, vf_fma(vf_load_n(dy + c, k), h, vf_load_n(sum + c, k)), k);
            }
        }
    }
}

void qk_norm_weight_backward(Team *t, const QkNorm *q, const Act *dy, const Act *x) {
    team_for(t, n_panels(q->T), 1, head_panels, &(Heads){q, NULL, dy, x});
    Norm panels = {.T = q->T, .C = q->D, .workspace = q->workspace};
    panels.dgamma = q->dgamma, panels.dbeta = q->dgamma + q->D;
    team_for(t, q->D, COLUMNS, add_panels, &panels);
}
