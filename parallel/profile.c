#include "parallel/profile.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_ROWS = 96 };

typedef struct Row {
    char name[64];
    int64_t calls;
    double s, flops;
} Row;

static const Kernels *inner;
static Row rows[MAX_ROWS];
static int n_rows;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Adds the time since t0 to a row; when the table is full the last row takes the rest. */
static void add(const char *name, double t0, double flops) {
    double s = now_s() - t0;
    int i = 0;
    while (i < n_rows && strcmp(rows[i].name, name) != 0) i++;
    if (i == MAX_ROWS) i--;
    if (i == n_rows) snprintf(rows[n_rows++].name, sizeof rows[i].name, "%s", name);
    rows[i].calls++;
    rows[i].s += s;
    rows[i].flops += flops;
}

static void product_name(char name[64], const char *word, const Product *p) {
    const char *form = p->a_col != 1 ? "x' dy" : p->b_col != 1 ? "x w'" : "x w";
    snprintf(name, 64, "%s %-5s %" PRId64 " x %" PRId64 " x %" PRId64, word, form, p->M, p->N,
             p->K);
}
static void product_(Team *t, const Product *p) {
    char name[64];
    double t0 = now_s();
    inner->product(t, p);
    product_name(name, "product", p);
    add(name, t0, 2 * (double)p->M * (double)p->N * (double)p->K);
}
static void product_exact_(Team *t, const Product *p, const ProductExact *x) {
    char name[64];
    double t0 = now_s();
    inner->product_exact(t, p, x);
    product_name(name, "exact  ", p);
    add(name, t0, 2 * (double)p->M * (double)p->N * (double)p->K);
}

static void embedding_forward_(Team *t, const Embedding *e, float *x) {
    double t0 = now_s();
    inner->embedding_forward(t, e, x);
    add("embedding forward", t0, 0);
}
static void embedding_backward_(Team *t, const Embedding *e, const float *dx) {
    double t0 = now_s();
    inner->embedding_backward(t, e, dx);
    add("embedding backward", t0, 0);
}
static void norm_forward_(Team *t, const Norm *n, float *y, float *mean, float *rstd,
                          const float *x) {
    double t0 = now_s();
    inner->norm_forward(t, n, y, mean, rstd, x);
    add("norm forward", t0, 0);
}
static void norm_backward_(Team *t, const Norm *n, float *dx, const float *dy, const float *x,
                           const float *mean, const float *rstd) {
    double t0 = now_s();
    inner->norm_backward(t, n, dx, dy, x, mean, rstd);
    add("norm backward", t0, 0);
}
static void norm_statistics_(Team *t, const Norm *n, float *stats, const float *x) {
    double t0 = now_s();
    inner->norm_statistics(t, n, stats, x);
    add("norm statistics", t0, 0);
}
static void norm_merge_(const Norm *n, float *mean, float *rstd, const float *parts,
                        const int64_t *counts, int n_parts) {
    double t0 = now_s();
    inner->norm_merge(n, mean, rstd, parts, counts, n_parts);
    add("norm merge", t0, 0);
}
static void norm_apply_(Team *t, const Norm *n, float *y, const float *x, const float *mean,
                        const float *rstd) {
    double t0 = now_s();
    inner->norm_apply(t, n, y, x, mean, rstd);
    add("norm apply", t0, 0);
}
static void norm_backward_sums_(Team *t, const Norm *n, float *sums, const float *dy,
                                const float *x, const float *mean, const float *rstd) {
    double t0 = now_s();
    inner->norm_backward_sums(t, n, sums, dy, x, mean, rstd);
    add("norm backward sums", t0, 0);
}
static void norm_backward_apply_(Team *t, const Norm *n, float *dx, const float *dy, const float *x,
                                 const float *mean, const float *rstd, const float *sums) {
    double t0 = now_s();
    inner->norm_backward_apply(t, n, dx, dy, x, mean, rstd, sums);
    add("norm backward apply", t0, 0);
}
static void position_forward_(Team *t, const Embedding *e, int64_t T, int64_t first, float *x) {
    double t0 = now_s();
    inner->position_forward(t, e, T, first, x);
    add("position forward", t0, 0);
}
static void position_backward_(Team *t, const Embedding *e, int64_t T, int64_t first,
                               const float *dx) {
    double t0 = now_s();
    inner->position_backward(t, e, T, first, dx);
    add("position backward", t0, 0);
}
static void bias_residual_(Team *t, float *y, const float *addend, const float *bias, int64_t T,
                           int64_t N) {
    double t0 = now_s();
    inner->bias_residual(t, y, addend, bias, T, N);
    add("bias and residual", t0, 0);
}
static void rope_(Team *t, const Rope *r, float *qkv, int direction) {
    double t0 = now_s();
    inner->rope(t, r, qkv, direction);
    add("rope", t0, 0);
}
/* FLOPs of one S x S x D product of every head, the causal half. */
static double attention_flops(const Attention *a) {
    return (double)(a->B * a->H * a->D) * (double)a->S * (double)(a->S + 1);
}
static void attention_forward_(Team *t, const Attention *a, float *out, float *lse,
                               const float *qkv) {
    double t0 = now_s();
    inner->attention_forward(t, a, out, lse, qkv);
    add("attention forward", t0, 2 * attention_flops(a));
}
static void attention_backward_(Team *t, const Attention *a, float *dqkv, const float *dout,
                                const float *qkv, const float *out, const float *lse) {
    double t0 = now_s();
    inner->attention_backward(t, a, dqkv, dout, qkv, out, lse);
    add("attention backward", t0, 5 * attention_flops(a));
}
static void gelu_forward_(Team *t, float *y, const float *x, int64_t n) {
    double t0 = now_s();
    inner->gelu_forward(t, y, x, n);
    add("gelu forward", t0, 0);
}
static void swiglu_forward_(Team *t, float *y, const float *x, int64_t T, int64_t F) {
    double t0 = now_s();
    inner->swiglu_forward(t, y, x, T, F);
    add("swiglu forward", t0, 0);
}
static void swiglu_backward_(Team *t, float *dx, const float *dy, const float *x, int64_t T,
                             int64_t F) {
    double t0 = now_s();
    inner->swiglu_backward(t, dx, dy, x, T, F);
    add("swiglu backward", t0, 0);
}
static void bias_backward_(Team *t, float *dbias, const float *dy, int64_t T, int64_t N) {
    double t0 = now_s();
    inner->bias_backward(t, dbias, dy, T, N);
    add("bias backward", t0, 0);
}
static void classifier_(Team *t, const Classifier *c, float *loss, float *logits) {
    double t0 = now_s();
    inner->classifier(t, c, loss, logits);
    add("classifier", t0, 0);
}
static void classifier_statistics_(Team *t, const Classifier *c, float *stats, float *logits) {
    double t0 = now_s();
    inner->classifier_statistics(t, c, stats, logits);
    add("classifier statistics", t0, 0);
}
static void classifier_merge_(const Classifier *c, float *loss, float *log_sum, const float *parts,
                              int n_parts) {
    double t0 = now_s();
    inner->classifier_merge(c, loss, log_sum, parts, n_parts);
    add("classifier merge", t0, 0);
}
static void classifier_gradient_(Team *t, const Classifier *c, const float *stats,
                                 const float *log_sum, float *logits) {
    double t0 = now_s();
    inner->classifier_gradient(t, c, stats, log_sum, logits);
    add("classifier gradient", t0, 0);
}
static double sum_of_squares_(Team *t, const float *x, int64_t n) {
    double t0 = now_s(), sum = inner->sum_of_squares(t, x, n);
    add("gradient norm", t0, 0);
    return sum;
}
static void exact_to_float_(Team *t, float *y, const int64_t *y_64, int64_t n, int exponent) {
    double t0 = now_s();
    inner->exact_to_float(t, y, y_64, n, exponent);
    add("exact to float", t0, 0);
}
static void exact_sum_(Team *t, int64_t *sum_64, const float *x, int64_t n) {
    double t0 = now_s();
    inner->exact_sum(t, sum_64, x, n);
    add("exact sum", t0, 0);
}
static void exact_sum_of_squares_(Team *t, int64_t *sum_64, const float *x, int64_t n) {
    double t0 = now_s();
    inner->exact_sum_of_squares(t, sum_64, x, n);
    add("gradient norm", t0, 0);
}
static void exact_bias_backward_(Team *t, int64_t *dbias_64, const float *dy, int64_t T, int64_t N,
                                 int exponent) {
    double t0 = now_s();
    inner->exact_bias_backward(t, dbias_64, dy, T, N, exponent);
    add("bias backward", t0, 0);
}
static void exact_embedding_backward_(Team *t, const Embedding *e, int64_t *dwte_64,
                                      int64_t *dwpe_64, const float *dx, int exponent) {
    double t0 = now_s();
    inner->exact_embedding_backward(t, e, dwte_64, dwpe_64, dx, exponent);
    add("embedding backward", t0, 0);
}
static void exact_position_backward_(Team *t, const Embedding *e, int64_t *dwpe_64, int64_t T,
                                     int64_t first, const float *dx, int exponent) {
    double t0 = now_s();
    inner->exact_position_backward(t, e, dwpe_64, T, first, dx, exponent);
    add("position backward", t0, 0);
}
static void exact_norm_sum_(Team *t, const Norm *n, int64_t *sums_64, const float *x) {
    double t0 = now_s();
    inner->exact_norm_sum(t, n, sums_64, x);
    add("norm statistics", t0, 0);
}
static void exact_norm_squares_(Team *t, const Norm *n, int64_t *sums_64, const float *x,
                                const float *mean) {
    double t0 = now_s();
    inner->exact_norm_squares(t, n, sums_64, x, mean);
    add("norm statistics", t0, 0);
}
static void exact_norm_backward_sums_(Team *t, const Norm *n, int64_t *sums_64, int64_t *dgamma_64,
                                      int64_t *dbeta_64, const float *dy, const float *x,
                                      const float *mean, const float *rstd) {
    double t0 = now_s();
    inner->exact_norm_backward_sums(t, n, sums_64, dgamma_64, dbeta_64, dy, x, mean, rstd);
    add("norm backward sums", t0, 0);
}
static void exact_classifier_max_(Team *t, const Classifier *c, float *max, const float *logits) {
    double t0 = now_s();
    inner->exact_classifier_max(t, c, max, logits);
    add("classifier statistics", t0, 0);
}
static void exact_classifier_sums_(Team *t, const Classifier *c, int64_t *sums_64, float *target,
                                   float *logits, const float *max) {
    double t0 = now_s();
    inner->exact_classifier_sums(t, c, sums_64, target, logits, max);
    add("classifier statistics", t0, 0);
}
static void exact_classifier_gradient_(Team *t, const Classifier *c, float *logits,
                                       const float *max, const float *log_sum) {
    double t0 = now_s();
    inner->exact_classifier_gradient(t, c, logits, max, log_sum);
    add("classifier gradient", t0, 0);
}
static void zero_(Team *t, float *x, int64_t n) {
    double t0 = now_s();
    inner->zero(t, x, n);
    add("zero", t0, 0);
}
static void copy_(Team *t, float *to, int64_t to_ld, const float *from, int64_t from_ld,
                  int64_t height, int64_t n) {
    double t0 = now_s();
    inner->copy(t, to, to_ld, from, from_ld, height, n);
    add("copy", t0, 0);
}
static void adamw_(Team *t, const AdamW *o, float *param, float *m, float *v, const float *grad,
                   int64_t n, bool decay) {
    double t0 = now_s();
    inner->adamw(t, o, param, m, v, grad, n, decay);
    add("AdamW", t0, 0);
}

/* Those of --exact, in rows of the same names. */
static void exact_rows(Kernels *table) {
    table->product_exact = product_exact_;
    table->exact_to_float = exact_to_float_;
    table->exact_sum = exact_sum_;
    table->exact_sum_of_squares = exact_sum_of_squares_;
    table->exact_bias_backward = exact_bias_backward_;
    table->exact_embedding_backward = exact_embedding_backward_;
    table->exact_position_backward = exact_position_backward_;
    table->exact_norm_sum = exact_norm_sum_;
    table->exact_norm_squares = exact_norm_squares_;
    table->exact_norm_backward_sums = exact_norm_backward_sums_;
    table->exact_classifier_max = exact_classifier_max_;
    table->exact_classifier_sums = exact_classifier_sums_;
    table->exact_classifier_gradient = exact_classifier_gradient_;
}

const Kernels *profile_kernels(const Kernels *k) {
    static Kernels table;
    inner = k;
    table = *k; // what is not measured stays as it is
    table.product = product_;
    table.embedding_forward = embedding_forward_, table.embedding_backward = embedding_backward_;
    table.norm_forward = norm_forward_, table.norm_backward = norm_backward_;
    table.norm_statistics = norm_statistics_, table.norm_merge = norm_merge_;
    table.norm_apply = norm_apply_;
    table.norm_backward_sums = norm_backward_sums_;
    table.norm_backward_apply = norm_backward_apply_;
    table.position_forward = position_forward_, table.position_backward = position_backward_;
    table.bias_residual = bias_residual_;
    table.rope = rope_;
    table.attention_forward = attention_forward_, table.attention_backward = attention_backward_;
    table.gelu_forward = gelu_forward_;
    table.swiglu_forward = swiglu_forward_, table.swiglu_backward = swiglu_backward_;
    table.bias_backward = bias_backward_;
    table.classifier = classifier_;
    table.classifier_statistics = classifier_statistics_;
    table.classifier_merge = classifier_merge_;
    table.classifier_gradient = classifier_gradient_;
    table.sum_of_squares = sum_of_squares_;
    table.zero = zero_, table.copy = copy_;
    table.adamw = adamw_;
    exact_rows(&table);
    return &table;
}

void profile_reset(void) {
    n_rows = 0, memset(rows, 0, sizeof rows);
}

static int slower_first(const void *a, const void *b) {
    const Row *x = a, *y = b;
    return x->s > y->s ? -1 : x->s < y->s;
}

void profile_print(FILE *f, int64_t steps, double step_ms, double peak_flops) {
    double sum_ms = 0;
    if (steps <= 0) return;
    qsort(rows, (size_t)n_rows, sizeof rows[0], slower_first);
    fprintf(f, "per step, mean of %" PRId64 "%*scalls       ms  share  GFLOP/s  of peak\n", steps,
            19, "");
    for (int i = 0; i < n_rows; i++) {
        const Row *r = &rows[i];
        double ms = 1e3 * r->s / (double)steps;
        sum_ms += ms;
        fprintf(f, "  %-38s %6.1f %8.2f %5.1f%%", r->name, (double)r->calls / (double)steps, ms,
                100 * ms / step_ms);
        if (r->flops > 0)
            fprintf(f, " %8.1f %7.1f%%", r->flops / r->s / 1e9, 100 * r->flops / r->s / peak_flops);
        fprintf(f, "\n");
    }
    fprintf(f, "  %-38s %6s %8.2f %5.1f%%\n", "everything else", "", step_ms - sum_ms,
            100 * (1 - sum_ms / step_ms));
}
