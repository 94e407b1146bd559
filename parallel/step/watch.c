#include "parallel/step/watch.h"

#include "base/clock.h"

/* The table's functions have no room for what they wrap; ranks may be threads. */
static _Thread_local const Kernels *inner;
static _Thread_local KernelWatch watch;
static _Thread_local void *watch_ctx;

static Moment now(void) {
    return inner->clock ? inner->clock->mark() : now_s();
}

/* Runs a call and tells of it. */
#define WATCH(name, product, flops, call)                                                          \
    do {                                                                                           \
        Moment begin_ = now();                                                                     \
        call;                                                                                      \
        if (begin_ != 0) watch(watch_ctx, &(KernelSpan){name, product, flops, begin_, now()});     \
    } while (0)

const char *product_form(const Product *p) {
    return p->a_col != 1 ? "x' dy" : p->b_col != 1 ? "x w'" : "x w";
}

static double product_flops(const Product *p) {
    return 2 * (double)p->M * (double)p->N * (double)p->K;
}
static void product_(Team *t, const Product *p) {
    WATCH("product", p, product_flops(p), inner->product(t, p));
}
static void product_exact_(Team *t, const Product *p, const ProductExact *x) {
    WATCH("exact", p, product_flops(p), inner->product_exact(t, p, x));
}

static void embedding_forward_(Team *t, const Embedding *e, Act *x) {
    WATCH("embedding forward", NULL, 0, inner->embedding_forward(t, e, x));
}
static void embedding_backward_(Team *t, const Embedding *e, const Act *dx) {
    WATCH("embedding backward", NULL, 0, inner->embedding_backward(t, e, dx));
}
static void norm_forward_(Team *t, const Norm *n, Act *y, float *mean, float *rstd, const Act *x) {
    WATCH("norm forward", NULL, 0, inner->norm_forward(t, n, y, mean, rstd, x));
}
static void residual_norm_(Team *t, const Norm *n, Act *stream, const Act *addend,
                           const float *bias, Act *y, float *mean, float *rstd) {
    WATCH("residual and norm", NULL, 0,
          inner->residual_norm(t, n, stream, addend, bias, y, mean, rstd));
}
static void norm_backward_(Team *t, const Norm *n, Act *dx, const Act *dy, const Act *x,
                           const float *mean, const float *rstd) {
    WATCH("norm backward", NULL, 0, inner->norm_backward(t, n, dx, dy, x, mean, rstd));
}
static void norm_statistics_(Team *t, const Norm *n, float *stats, const Act *x) {
    WATCH("norm statistics", NULL, 0, inner->norm_statistics(t, n, stats, x));
}
static void norm_merge_(const Norm *n, float *mean, float *rstd, const float *parts,
                        const int64_t *counts, int n_parts) {
    WATCH("norm merge", NULL, 0, inner->norm_merge(n, mean, rstd, parts, counts, n_parts));
}
static void norm_apply_(Team *t, const Norm *n, Act *y, const Act *x, const float *mean,
                        const float *rstd) {
    WATCH("norm apply", NULL, 0, inner->norm_apply(t, n, y, x, mean, rstd));
}
static void norm_backward_sums_(Team *t, const Norm *n, float *sums, const Act *dy, const Act *x,
                                const float *mean, const float *rstd) {
    WATCH("norm backward sums", NULL, 0, inner->norm_backward_sums(t, n, sums, dy, x, mean, rstd));
}
static void norm_backward_apply_(Team *t, const Norm *n, Act *dx, const Act *dy, const Act *x,
                                 const float *mean, const float *rstd, const float *sums) {
    WATCH("norm backward apply", NULL, 0,
          inner->norm_backward_apply(t, n, dx, dy, x, mean, rstd, sums));
}
static void position_forward_(Team *t, const Embedding *e, int64_t T, int64_t first, Act *x) {
    WATCH("position forward", NULL, 0, inner->position_forward(t, e, T, first, x));
}
static void position_backward_(Team *t, const Embedding *e, int64_t T, int64_t first,
                               const Act *dx) {
    WATCH("position backward", NULL, 0, inner->position_backward(t, e, T, first, dx));
}
static void bias_residual_(Team *t, Act *y, const Act *addend, const float *bias, int64_t T,
                           int64_t N) {
    WATCH("bias and residual", NULL, 0, inner->bias_residual(t, y, addend, bias, T, N));
}
static void rope_(Team *t, const Rope *r, Act *qkv, int direction) {
    WATCH("rope", NULL, 0, inner->rope(t, r, qkv, direction));
}
/* FLOPs of one S x S x D product of every head, the causal half. */
static double attention_flops(const Attention *a) {
    return (double)(a->B * a->H * a->D) * (double)a->S * (double)(a->S + 1);
}
static void attention_forward_(Team *t, const Attention *a, Act *out, float *lse, const Act *qkv) {
    WATCH("attention forward", NULL, 2 * attention_flops(a),
          inner->attention_forward(t, a, out, lse, qkv));
}
static void attention_backward_(Team *t, const Attention *a, Act *dqkv, const Act *dout,
                                const Act *qkv, const Act *out, const float *lse) {
    WATCH("attention backward", NULL, 5 * attention_flops(a),
          inner->attention_backward(t, a, dqkv, dout, qkv, out, lse));
}
static void act_forward_(Team *t, ActKind act, Act *y, const Act *x, int64_t n) {
    WATCH("activation forward", NULL, 0, inner->act_forward(t, act, y, x, n));
}
static void act_backward_(Team *t, ActKind act, Act *dx, const Act *dy, const Act *x, int64_t n) {
    WATCH("activation backward", NULL, 0, inner->act_backward(t, act, dx, dy, x, n));
}
static void swiglu_forward_(Team *t, Act *y, const Act *x, int64_t T, int64_t F) {
    WATCH("swiglu forward", NULL, 0, inner->swiglu_forward(t, y, x, T, F));
}
static void swiglu_backward_(Team *t, Act *dx, const Act *dy, const Act *x, int64_t T, int64_t F) {
    WATCH("swiglu backward", NULL, 0, inner->swiglu_backward(t, dx, dy, x, T, F));
}
static void bias_backward_(Team *t, float *dbias, const Act *dy, int64_t T, int64_t N) {
    WATCH("bias backward", NULL, 0, inner->bias_backward(t, dbias, dy, T, N));
}
static void classifier_(Team *t, const Classifier *c, float *loss, Act *logits) {
    WATCH("classifier", NULL, 0, inner->classifier(t, c, loss, logits));
}
static void classifier_statistics_(Team *t, const Classifier *c, float *stats, Act *logits) {
    WATCH("classifier statistics", NULL, 0, inner->classifier_statistics(t, c, stats, logits));
}
static void classifier_merge_(const Classifier *c, float *loss, float *log_sum, const float *parts,
                              int n_parts) {
    WATCH("classifier merge", NULL, 0, inner->classifier_merge(c, loss, log_sum, parts, n_parts));
}
static void classifier_gradient_(Team *t, const Classifier *c, const float *stats,
                                 const float *log_sum, Act *logits) {
    WATCH("classifier gradient", NULL, 0, inner->classifier_gradient(t, c, stats, log_sum, logits));
}
static double sum_of_squares_(Team *t, const float *x, int64_t n) {
    double sum;
    WATCH("gradient norm", NULL, 0, sum = inner->sum_of_squares(t, x, n));
    return sum;
}
static void squares_to_(double *sum, const float *x, int64_t ld, int64_t rows, int64_t n,
                        bool add) {
    WATCH("gradient norm", NULL, 0, inner->squares_to(sum, x, ld, rows, n, add));
}
static void sum_to_(double *sum, const float *x, int64_t n, bool add) {
    WATCH("sum of losses", NULL, 0, inner->sum_to(sum, x, n, add));
}
static void adamw_begin_(AdamWNow *o, const Totals *totals, double clip) {
    WATCH("AdamW begin", NULL, 0, inner->adamw_begin(o, totals, clip));
}
static void to_words_(Act *to, const float *from, int64_t n, const Rounding *rounding) {
    WATCH("words", NULL, 0, inner->to_words(to, from, n, rounding));
}
static void exact_to_float_(Team *t, float *y, const int64_t *y_64, int64_t n, int exponent) {
    WATCH("exact to float", NULL, 0, inner->exact_to_float(t, y, y_64, n, exponent));
}
static void exact_add_(Team *t, int64_t *to_64, const int64_t *from_64, int64_t n) {
    WATCH("add", NULL, 0, inner->exact_add(t, to_64, from_64, n));
}
static void exact_sum_(Team *t, int64_t *sum_64, const float *x, int64_t n) {
    WATCH("exact sum", NULL, 0, inner->exact_sum(t, sum_64, x, n));
}
static void exact_sum_of_squares_(Team *t, int64_t *sum_64, const float *x, int64_t n) {
    WATCH("gradient norm", NULL, 0, inner->exact_sum_of_squares(t, sum_64, x, n));
}
static void exact_bias_backward_(Team *t, int64_t *dbias_64, const float *dy, int64_t T, int64_t N,
                                 int exponent) {
    WATCH("bias backward", NULL, 0, inner->exact_bias_backward(t, dbias_64, dy, T, N, exponent));
}
static void exact_embedding_backward_(Team *t, const Embedding *e, int64_t *dwte_64,
                                      int64_t *dwpe_64, const float *dx, int exponent) {
    WATCH("embedding backward", NULL, 0,
          inner->exact_embedding_backward(t, e, dwte_64, dwpe_64, dx, exponent));
}
static void exact_position_backward_(Team *t, const Embedding *e, int64_t *dwpe_64, int64_t T,
                                     int64_t first, const float *dx, int exponent) {
    WATCH("position backward", NULL, 0,
          inner->exact_position_backward(t, e, dwpe_64, T, first, dx, exponent));
}
static void exact_norm_sum_(Team *t, const Norm *n, int64_t *sums_64, const float *x) {
    WATCH("norm statistics", NULL, 0, inner->exact_norm_sum(t, n, sums_64, x));
}
static void exact_norm_squares_(Team *t, const Norm *n, int64_t *sums_64, const float *x,
                                const float *mean) {
    WATCH("norm statistics", NULL, 0, inner->exact_norm_squares(t, n, sums_64, x, mean));
}
static void exact_norm_backward_sums_(Team *t, const Norm *n, int64_t *sums_64, int64_t *dgamma_64,
                                      int64_t *dbeta_64, const float *dy, const float *x,
                                      const float *mean, const float *rstd) {
    WATCH("norm backward sums", NULL, 0,
          inner->exact_norm_backward_sums(t, n, sums_64, dgamma_64, dbeta_64, dy, x, mean, rstd));
}
static void exact_classifier_max_(Team *t, const Classifier *c, float *max, const float *logits) {
    WATCH("classifier statistics", NULL, 0, inner->exact_classifier_max(t, c, max, logits));
}
static void exact_classifier_sums_(Team *t, const Classifier *c, int64_t *sums_64, float *target,
                                   float *logits, const float *max) {
    WATCH("classifier statistics", NULL, 0,
          inner->exact_classifier_sums(t, c, sums_64, target, logits, max));
}
static void exact_classifier_gradient_(Team *t, const Classifier *c, float *logits,
                                       const float *max, const float *log_sum) {
    WATCH("classifier gradient", NULL, 0,
          inner->exact_classifier_gradient(t, c, logits, max, log_sum));
}
static void zero_(Team *t, void *x, size_t n_bytes) {
    WATCH("zero", NULL, 0, inner->zero(t, x, n_bytes));
}
static void copy_(Team *t, void *to, int64_t to_ld, const void *from, int64_t from_ld,
                  int64_t height, int64_t n, size_t word) {
    WATCH("copy", NULL, 0, inner->copy(t, to, to_ld, from, from_ld, height, n, word));
}
static void add_to_(Team *t, float *y, const float *x, int64_t n) {
    WATCH("add", NULL, 0, inner->add_to(t, y, x, n));
}
static void adamw_(Team *t, const AdamW *o, float *param, float *m, float *v, const float *grad,
                   int64_t n, bool decay) {
    WATCH("AdamW", NULL, 0, inner->adamw(t, o, param, m, v, grad, n, decay));
}

/* Those of --exact, in rows of the same names. */
static void exact_rows(Kernels *table) {
    table->product_exact = product_exact_;
    table->exact_to_float = exact_to_float_;
    table->exact_add = exact_add_;
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

/* Those that a device has, and of bf16 words. */
static void device_rows(Kernels *table) {
    if (table->squares_to) table->squares_to = squares_to_;
    if (table->sum_to) table->sum_to = sum_to_;
    if (table->adamw_begin) table->adamw_begin = adamw_begin_;
    if (table->to_words) table->to_words = to_words_;
}

const Kernels *kernels_watched(const Kernels *k, KernelWatch f, void *ctx) {
    static _Thread_local Kernels table;
    inner = k, watch = f, watch_ctx = ctx;
    table = *k;          // what is not watched stays as it is
    table.record = NULL; // what is recorded takes no time that could be told
    table.product = product_;
    table.embedding_forward = embedding_forward_, table.embedding_backward = embedding_backward_;
    table.norm_forward = norm_forward_, table.norm_backward = norm_backward_;
    table.residual_norm = residual_norm_;
    table.norm_statistics = norm_statistics_, table.norm_merge = norm_merge_;
    table.norm_apply = norm_apply_;
    table.norm_backward_sums = norm_backward_sums_;
    table.norm_backward_apply = norm_backward_apply_;
    table.position_forward = position_forward_, table.position_backward = position_backward_;
    table.bias_residual = bias_residual_;
    table.rope = rope_;
    table.attention_forward = attention_forward_, table.attention_backward = attention_backward_;
    table.act_forward = act_forward_, table.act_backward = act_backward_;
    table.swiglu_forward = swiglu_forward_, table.swiglu_backward = swiglu_backward_;
    table.bias_backward = bias_backward_;
    table.classifier = classifier_;
    table.classifier_statistics = classifier_statistics_;
    table.classifier_merge = classifier_merge_;
    table.classifier_gradient = classifier_gradient_;
    table.sum_of_squares = sum_of_squares_;
    table.zero = zero_, table.copy = copy_, table.add_to = add_to_;
    table.adamw = adamw_;
    exact_rows(&table);
    device_rows(&table);
    return &table;
}
