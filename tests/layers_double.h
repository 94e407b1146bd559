/* layers_double -- norm, attention and AdamW in double precision, as their headers define them: the
 * references for the kernels of the CPU and of CUDA. Results lie in the test's scratch memory. */
#ifndef TESTS_LAYERS_DOUBLE_H
#define TESTS_LAYERS_DOUBLE_H

#include "tests/layers.h"

/* ---- norm. Computes y[T, C], and mean[T] and rstd[T]; beta may be NULL */

static inline void norm_double(const Norm *n, const double *x, const double *gamma,
                               const double *beta, double *y, double *mean, double *rstd) {
    double C = (double)n->C;
    for (int64_t t = 0; t < n->T; t++, x += n->C, y += n->C) {
        double m = 0, v = 0;
        for (int64_t i = 0; i < n->C && n->kind == NORM_LAYER; i++) m += x[i] / C;
        for (int64_t i = 0; i < n->C; i++) v += pow(x[i] - m, 2) / C;
        double r = 1 / sqrt(v + (double)n->eps);
        for (int64_t i = 0; i < n->C; i++) y[i] = (x[i] - m) * r * gamma[i] + (beta ? beta[i] : 0);
        mean[t] = m, rstd[t] = r;
    }
}

/* Adds to the gradients; dbeta may be NULL. */
static inline void norm_backward_double(const Norm *n, const double *x, const double *gamma,
                                        const double *dy, const double *mean, const double *rstd,
                                        double *dx, double *dgamma, double *dbeta) {
    double C = (double)n->C;
    for (int64_t t = 0; t < n->T; t++, x += n->C, dy += n->C, dx += n->C) {
        double sum_g = 0, sum_gh = 0;
        for (int64_t i = 0; i < n->C; i++) {
            double h = (x[i] - mean[t]) * rstd[t];
            sum_g += dy[i] * gamma[i], sum_gh += dy[i] * gamma[i] * h;
            dgamma[i] += dy[i] * h;
            if (dbeta) dbeta[i] += dy[i];
        }
        if (n->kind == NORM_RMS) sum_g = 0;
        for (int64_t i = 0; i < n->C; i++) {
            double h = (x[i] - mean[t]) * rstd[t];
            dx[i] += rstd[t] * (dy[i] * gamma[i] - sum_g / C - h * sum_gh / C);
        }
    }
}

/* ---- attention */

typedef struct AttentionDouble {
    double *out, *lse, *dqkv;
} AttentionDouble;

static inline double dot(const float *x, const float *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)y[i];
    return sum;
}

/* Query i of head h of sequence b: forward, and its contribution to the gradients. p: workspace
 * [S]. */
static inline void attention_row_double(const Attention *a, AttentionDouble *t, const float *qkv,
                                        const float *dout, int64_t b, int64_t h, int64_t i,
                                        double *p) {
    int64_t W = (a->H + 2 * a->Hkv) * a->D, D = a->D, g = h / (a->H / a->Hkv);
    int64_t q = (b * a->S + i) * W + h * D, o = ((b * a->S + i) * a->H + h) * D;
    int64_t k = b * a->S * W + (a->H + g) * D, v = k + a->Hkv * D;
    double scale = 1 / sqrt((double)D), max = -INFINITY, sum = 0, delta = 0;
    for (int64_t j = 0; j <= i; j++) {
        p[j] = dot(qkv + q, qkv + k + j * W, D) * scale;
        max = fmax(max, p[j]);
    }
    for (int64_t j = 0; j <= i; j++) sum += p[j] = exp(p[j] - max);
    t->lse[(b * a->H + h) * a->S + i] = max + log(sum);
    for (int64_t j = 0; j <= i; j++) {
        p[j] /= sum;
        for (int64_t d = 0; d < D; d++) t->out[o + d] += p[j] * (double)qkv[v + j * W + d];
    }
    for (int64_t d = 0; d < D; d++) delta += t->out[o + d] * (double)dout[o + d];
    for (int64_t j = 0; j <= i; j++) {
        double ds = p[j] * (dot(dout + o, qkv + v + j * W, D) - delta) * scale;
        for (int64_t d = 0; d < D; d++) {
            t->dqkv[q + d] += ds * (double)qkv[k + j * W + d];
            t->dqkv[k + j * W + d] += ds * (double)qkv[q + d];
            t->dqkv[v + j * W + d] += p[j] * (double)dout[o + d];
        }
    }
}

static inline AttentionDouble attention_double(const Attention *a, const float *qkv,
                                               const float *dout) {
    int64_t rows = a->B * a->S;
    AttentionDouble t = {doubles_copy(NULL, rows * a->H * a->D), doubles_copy(NULL, rows * a->H),
                         doubles_copy(NULL, rows * (a->H + 2 * a->Hkv) * a->D)};
    double *p = doubles_copy(NULL, a->S);
    for (int64_t i = 0; i < rows * a->H; i++)
        attention_row_double(a, &t, qkv, dout, i / (a->H * a->S), i / a->S % a->H, i % a->S, p);
    return t;
}

/* ---- AdamW: as torch.optim.AdamW: decay, moments, then the step with its corrections of bias */

static inline void adamw_double(const AdamW *o, double *p, double *m, double *v, double grad,
                                bool decay) {
    double g = grad * o->grad_scale;
    if (decay) *p *= 1 - o->lr * o->weight_decay;
    *m += (g - *m) * (1 - o->beta1);
    *v = *v * o->beta2 + g * g * (1 - o->beta2);
    double c1 = 1 - pow(o->beta1, (double)o->step), c2 = 1 - pow(o->beta2, (double)o->step);
    *p -= o->lr / c1 * *m / (sqrt(*v) / sqrt(c2) + o->eps);
}

#endif
