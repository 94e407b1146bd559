/* Exact sums over rows: norms and the classifier. */
#include "layers/exact.h"

#include <float.h>

#include "layers/exact_grid.h"

typedef struct NormRows {
    const Norm *n;
    int64_t *sums_64, *dgamma_64, *dbeta_64;
    const float *dy, *x, *mean, *rstd;
    ExactGrid grid;
    bool squares; // of exact_norm_sums
} NormRows;

static void sum_rows(void *ctx, int64_t begin, int64_t end) {
    const NormRows *r = ctx;
    for (int64_t t = begin; t < end; t++) {
        const float *x = r->x + t * norm_ld(r->n);
        vf mean = vf_set1(r->mean ? r->mean[t] : 0);
        WideSum s = wide_start();
        EACH_VECTOR(i, k, 0, r->n->C) {
            vf v = vf_load_n(x + i, k), d = vf_first_lanes(v - mean, k, vf_zero());
            wide_add(&s, r->squares ? d * d : v);
        }
        wide_end(&s, r->sums_64 + WIDE * t);
    }
}

void exact_norm_sums(Team *t, const Norm *n, int64_t *sums_64, const float *x, const float *mean,
                     bool squares) {
    NormRows r = {.n = n, .sums_64 = sums_64, .x = x, .mean = mean, .squares = squares};
    team_for(t, n->T, norm_grain(n), sum_rows, &r);
}

void exact_norm_rstd(const Norm *n, float *rstd, const int64_t *sums_64) {
    double C = (double)(n->C_all ? n->C_all : n->C);
    for (int64_t t = 0; t < n->T; t++)
        rstd[t] = (float)(1 / sqrt(exact_wide_to_double(sums_64 + WIDE * t) / C + (double)n->eps));
}

/* h of k columns of row t; the lanes beyond k meet a dy of 0. */
static inline vf normal(const NormRows *r, int64_t t, int64_t i, int64_t k) {
    vf x = vf_load_n(r->x + t * norm_ld(r->n) + i, k);
    vf mean = vf_set1(r->n->kind == NORM_LAYER ? r->mean[t] : 0);
    return (x - mean) * vf_set1(r->rstd[t]);
}

static void backward_rows(void *ctx, int64_t begin, int64_t end) {
    const NormRows *r = ctx;
    const Norm *n = r->n;
    for (int64_t t = begin; t < end; t++) {
        const float *dy = r->dy + t * norm_ld(n);
        WideSum sum_g = wide_start(), sum_gh = wide_start();
        EACH_VECTOR(i, k, 0, n->C) {
            vf g = vf_load_n(dy + i, k) * vf_load_n(n->gamma + i, k);
            vf gh = g * normal(r, t, i, k);
            wide_add(&sum_g, g);
            wide_add(&sum_gh, gh);
        }
        wide_end(&sum_g, r->sums_64 + 2 * WIDE * t);
        wide_end(&sum_gh, r->sums_64 + 2 * WIDE * t + WIDE);
    }
}

/* dgamma and dbeta: VF columns at a time, over all tokens. */
static void backward_columns(void *ctx, int64_t begin, int64_t end) {
    const NormRows *r = ctx;
    const Norm *n = r->n;
    EACH_VECTOR(i, k, begin, end)
        for (int64_t t = 0; t < n->T;) {
            Lanes dgamma = {0}, dbeta = {0};
            int64_t first = t, last = t + LANES_MOST < n->T ? t + LANES_MOST : n->T;
            for (; t < last; t++) {
                vf d = vf_load_n(r->dy + t * norm_ld(n) + i, k);
                lanes_add(&dgamma, &r->grid, d * normal(r, t, i, k));
                lanes_add(&dbeta, &r->grid, d);
            }
            lanes_join(&dgamma, &r->grid, r->dgamma_64 + i, k, t - first);
            if (r->dbeta_64) lanes_join(&dbeta, &r->grid, r->dbeta_64 + i, k, t - first);
        }
}

void exact_norm_backward_sums(Team *t, const Norm *n, int64_t *sums_64, int64_t *dgamma_64,
                              int64_t *dbeta_64, const float *dy, const float *x, const float *mean,
                              const float *rstd) {
    NormRows r = {
        n, sums_64, dgamma_64, dbeta_64, dy, x, mean, rstd, .grid = exact_grid_of(EXACT_WEIGHTS)};
    team_for(t, n->T, norm_grain(n), backward_rows, &r);
    team_for(t, n->C, 4 * VF, backward_columns, &r);
}

typedef struct ClassifierRows {
    const Classifier *c;
    float *logits, *max, *target;
    int64_t *sums_64;
    const float *all_max, *log_sum;
} ClassifierRows;

static void max_rows(void *ctx, int64_t begin, int64_t end) {
    const ClassifierRows *r = ctx;
    for (int64_t t = begin; t < end; t++) {
        const float *x = r->logits + t * r->c->ld;
        vf least = vf_set1(-FLT_MAX), m = least; // a NaN is left to the sum
        EACH_VECTOR(i, k, 0, r->c->V) m = vf_max(vf_first_lanes(vf_load_n(x + i, k), k, least), m);
        r->max[t] = vf_hmax(m);
    }
}

void exact_classifier_max(Team *t, const Classifier *c, float *max, const float *logits) {
    ClassifierRows r = {.c = c, .logits = (float *)logits, .max = max}; // only read
    team_for(t, c->T, 1, max_rows, &r);
}

static void exponential_rows(void *ctx, int64_t begin, int64_t end) {
    const ClassifierRows *r = ctx;
    const Classifier *c = r->c;
    for (int64_t t = begin; t < end; t++) {
        float *x = r->logits + t * c->ld;
        vf max = vf_set1(r->all_max[t]);
        WideSum s = wide_start();
        r->target[t] = classifier_has_target(c, t) ? x[c->targets[t] - c->first] : 0;
        EACH_VECTOR(i, k, 0, c->targets[t] < 0 ? 0 : c->V) {
            vf e = vf_first_lanes(vf_exp(vf_load_n(x + i, k) - max), k, vf_zero());
            wide_add(&s, e);
            if (c->backward) vf_store_n(x + i, e, k);
        }
        wide_end(&s, r->sums_64 + WIDE * t);
    }
}

void exact_classifier_sums(Team *t, const Classifier *c, int64_t *sums_64, float *target,
                           float *logits, const float *max) {
    ClassifierRows r = {
        .c = c, .logits = logits, .target = target, .sums_64 = sums_64, .all_max = max};
    team_for(t, c->T, 1, exponential_rows, &r);
}

void exact_classifier_loss(const Classifier *c, float *loss, float *log_sum, const int64_t *sums_64,
                           const float *target, const float *max) {
    for (int64_t t = 0; t < c->T; t++) {
        bool counts = c->targets[t] >= 0;
        double log_of = counts ? log(exact_wide_to_double(sums_64 + WIDE * t)) : 0;
        loss[t] = counts ? (float)(log_of + ((double)max[t] - (double)target[t])) : 0;
        log_sum[t] = counts ? (float)(log_of + (double)max[t]) : 0;
    }
}
