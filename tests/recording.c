/* Kernels that compute nothing: tests/recording.h. */
#include "tests/recording.h"

#include <string.h>

#include "base/die.h"
#include "base/mem.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" // kernels that compute nothing

static _Thread_local Recording *recording; // the table's functions have no argument for it
static _Thread_local const Kernels *real;
static _Thread_local uint32_t bf16; // WORK_BF16_STORED where activations are bf16

static void work(WorkKind kind, uint32_t flags, int64_t rows, int64_t size0, int64_t size1,
                 int64_t size2, int64_t size3) {
    Work w = {.kind = kind, .flags = flags, .rows = rows, .size = {size0, size1, size2, size3}};
    recording->f(recording->ctx, &w);
}

/* Reports a work whose operands are activations, with their dtype. */
static void act_work(WorkKind kind, uint32_t flags, int64_t rows, int64_t size0, int64_t size1,
                     int64_t size2, int64_t size3) {
    work(kind, flags | bf16, rows, size0, size1, size2, size3);
}

/* ---- matmuls and attention */

static void record_matmul(Team *t, const Matmul *p) {
    bool wgrad = p->a_col != 1; // dw[K,N] = x' dy: M is K, K is T
    uint32_t flags = (p->bf16 ? WORK_BF16 : 0u) | (p->addend ? WORK_ADDEND : 0u) |
                     ((wgrad ? p->bias_grad : p->bias) ? WORK_BIAS : 0u) |
                     (p->epilogue == EPI_ACT ? WORK_EPI_ACT : 0u) |
                     (p->epilogue == EPI_DACT ? WORK_EPI_DACT : 0u);
    int64_t act = p->epilogue == EPI_NONE ? 0 : p->act;
    if (wgrad)
        act_work(WORK_WGRAD, flags, p->K, p->M, p->N, 0, act);
    else if (p->b_col != 1) // dx[T,K] = dy w': N is K, K is N
        act_work(WORK_DGRAD, flags, p->M, p->N, p->K, 0, act);
    else
        act_work(WORK_MATMUL, flags, p->M, p->K, p->N, 0, act);
}

static void attention_work(const Attention *a, WorkKind kind) {
    act_work(kind, a->bf16 ? WORK_BF16 : 0, a->B, a->S, a->H, a->Hkv, a->D);
}
static void record_attention_forward(Team *t, const Attention *a, Act *out, float *lse,
                                     const Act *qkv) {
    attention_work(a, WORK_ATTENTION);
}
static void record_attention_backward(Team *t, const Attention *a, Act *dqkv, const Act *dout,
                                      const Act *qkv, const Act *out, const float *lse) {
    attention_work(a, WORK_ATTENTION_BACKWARD);
}
static void record_rope(Team *t, const Rope *r, Act *qkv, int direction) {
    act_work(WORK_ROPE, 0, r->B * r->S, 1, r->H, r->Hkv, r->D);
}

static void record_qk_norm(Team *t, const QkNorm *q, Act *y, const Act *x) {
    act_work(WORK_QK_NORM, 0, q->T, 1, q->H, q->Hkv, q->D);
}
static void record_qk_norm_backward(Team *t, const QkNorm *q, Act *dx, const Act *dy,
                                    const Act *x) {
    act_work(WORK_QK_NORM_BACKWARD, 0, q->T, 1, q->H, q->Hkv, q->D);
}
static void record_qk_norm_weight_backward(Team *t, const QkNorm *q, const Act *dy, const Act *x) {
    act_work(WORK_QK_NORM_WEIGHT_BACKWARD, 0, q->T, 1, q->H, q->Hkv, q->D);
}

/* ---- norms */

static uint32_t norm_flags(const Norm *n) {
    return n->kind == NORM_RMS ? WORK_RMS : 0;
}
static void norm_work(const Norm *n, WorkKind kind, int64_t parts) {
    act_work(kind, norm_flags(n), n->T, n->C, parts, 0, 0);
}
static void record_norm_forward(Team *t, const Norm *n, Act *y, float *mean, float *rstd,
                                const Act *x) {
    norm_work(n, WORK_NORM, 0);
}
static void record_residual_norm(Team *t, const Norm *n, Act *stream, const Act *addend,
                                 const float *bias, Act *y, float *mean, float *rstd) {
    act_work(WORK_RESIDUAL_NORM, norm_flags(n) | (bias ? WORK_BIAS : 0u), n->T, n->C, 0, 0, 0);
}
static void record_norm_backward(Team *t, const Norm *n, Act *dx, const Act *dy, const Act *x,
                                 const float *mean, const float *rstd) {
    norm_work(n, WORK_NORM_BACKWARD, 0);
}
static void record_norm_statistics(Team *t, const Norm *n, float *stats, const Act *x) {
    norm_work(n, WORK_NORM_STATISTICS, 0);
}
static void record_norm_merge(Team *t, const Norm *n, float *mean, float *rstd,
                              const float *stats) {
    norm_work(n, WORK_NORM_MERGE, norm_parts(n));
}
static void record_norm_apply(Team *t, const Norm *n, Act *y, const Act *x, const float *mean,
                              const float *rstd) {
    norm_work(n, WORK_NORM_APPLY, 0);
}
static void record_norm_backward_sums(Team *t, const Norm *n, float *sums, const Act *dy,
                                      const Act *x, const float *mean, const float *rstd) {
    norm_work(n, WORK_NORM_BACKWARD_SUMS, 0);
}
static void record_norm_backward_apply(Team *t, const Norm *n, Act *dx, const Act *dy, const Act *x,
                                       const float *mean, const float *rstd, const float *sums) {
    norm_work(n, WORK_NORM_BACKWARD_APPLY, 0);
}

/* ---- activations, biases */

static void record_act_forward(Team *t, ActKind act, Act *y, const Act *x, int64_t n) {
    act_work(WORK_ACT, 0, n, 0, 0, 0, act);
}
static void record_act_backward(Team *t, ActKind act, Act *dx, const Act *dy, const Act *x,
                                int64_t n) {
    act_work(WORK_ACT_BACKWARD, 0, n, 0, 0, 0, act);
}
static void record_swiglu_forward(Team *t, Act *y, const Act *x, int64_t T, int64_t F) {
    act_work(WORK_SWIGLU, 0, T, F, 0, 0, 0);
}
static void record_swiglu_backward(Team *t, Act *dx, const Act *dy, const Act *x, int64_t T,
                                   int64_t F) {
    act_work(WORK_SWIGLU_BACKWARD, 0, T, F, 0, 0, 0);
}
static void record_bias_residual(Team *t, Act *y, const Act *addend, const float *bias, int64_t T,
                                 int64_t N) {
    act_work(WORK_BIAS_RESIDUAL, (addend ? WORK_ADDEND : 0u) | (bias ? WORK_BIAS : 0u), T, N, 0, 0,
             0);
}
static void record_bias_backward(Team *t, float *dbias, const Act *dy, int64_t T, int64_t N) {
    act_work(WORK_BIAS_BACKWARD, 0, T, N, 0, 0, 0);
}

/* ---- embedding and loss */

static void embedding_work(const Embedding *e, WorkKind kind, int64_t T) {
    act_work(kind, 0, T, e->C, e->V, 0, 0);
}
static void record_embedding_forward(Team *t, const Embedding *e, Act *x) {
    embedding_work(e, WORK_EMBEDDING, e->B * e->S);
}
static void record_embedding_backward(Team *t, const Embedding *e, const Act *dx) {
    embedding_work(e, WORK_EMBEDDING_BACKWARD, e->B * e->S);
}
static void record_position_forward(Team *t, const Embedding *e, int64_t T, int64_t t0, Act *x) {
    embedding_work(e, WORK_POSITION, T);
}
static void record_position_backward(Team *t, const Embedding *e, int64_t T, int64_t t0,
                                     const Act *dx) {
    embedding_work(e, WORK_POSITION_BACKWARD, T);
}
static void classifier_work(const Classifier *c, WorkKind kind, int64_t parts) {
    act_work(kind, c->backward ? WORK_BACKWARD : 0, c->T, c->V, parts, 0, 0);
}
static void record_classifier(Team *t, const Classifier *c, float *loss, Act *logits) {
    classifier_work(c, WORK_LOSS, 0);
}
static void record_classifier_statistics(Team *t, const Classifier *c, float *stats, Act *logits) {
    classifier_work(c, WORK_LOSS_STATISTICS, 0);
}
static void record_classifier_merge(Team *t, const Classifier *c, float *loss, float *log_sum,
                                    const float *stats, int64_t n_parts) {
    classifier_work(c, WORK_LOSS_MERGE, n_parts);
}
static void record_classifier_gradient(Team *t, const Classifier *c, const float *stats,
                                       const float *log_sum, Act *logits) {
    classifier_work(c, WORK_LOSS_BACKWARD, 0);
}

/* ---- moves and the update */

static double record_sum_of_squares(Team *t, const float *x, int64_t n) {
    work(WORK_SQUARES, 0, n, 0, 0, 0, 0);
    return 1;
}
static void record_zero(Team *t, void *x, size_t n_bytes) {
    work(WORK_ZERO, 0, (int64_t)(n_bytes / sizeof(float)), 0, 0, 0, 0);
}
static void record_copy(Team *t, void *to, int64_t to_ld, const void *from, int64_t from_ld,
                        int64_t rows, int64_t n, size_t elem_bytes) {
    work(WORK_COPY, 0, rows, n * (int64_t)elem_bytes / (int64_t)sizeof(float), 0, 0, 0);
}
static void record_add_to(Team *t, float *y, const float *x, int64_t n) {
    work(WORK_BIAS_RESIDUAL, WORK_ADDEND, 1, n, 0, 0, 0);
}
static void record_copy_tokens(int32_t *to, int64_t T, const int32_t *from, int64_t n,
                               int32_t pad) {
    // not a work of the planner: a few KiB
}
static double record_sum_of(const float *x, int64_t n) {
    return 1;
}
static void record_adamw(Team *t, const AdamW *o, float *param, float *m, float *v,
                         const float *grad, int64_t n, bool decay) {
    work(WORK_ADAMW, o->cast ? bf16 : 0, n, 0, 0, 0, 0);
}

/* ---- kernels of devices, whose results stay on the device */

static void record_sum_to(double *sum, const float *x, int64_t n, bool add) {
    work(WORK_SQUARES, 0, n, 0, 0, 0, 0);
}
static void record_squares_to(double *sum, const float *x, int64_t ld, int64_t rows, int64_t n,
                              bool add) {
    record_sum_to(sum, x, rows * n, add);
}
static void record_adamw_begin(AdamWNow *now, const Totals *totals, double clip) {
    work(WORK_ZERO, 0, 1, 0, 0, 0, 0); // one thread: costs a launch
}
static void record_adamw_list(const AdamW *o, const AdamWTensor *list, int n) {
    for (int i = 0; i < n; i++) work(WORK_ADAMW, list[i].cast ? bf16 : 0, list[i].n, 0, 0, 0, 0);
}
static void record_copy_out(void *to, const void *from, size_t n_bytes) {
    // not a work of the planner: only the host waits for this copy
}
static void record_wait_out(void) {}
static void *plain_map(size_t n_bytes) {
    return mem_calloc(n_bytes, 1);
}
static void plain_unmap(void *p) {
    mem_free(p);
}
static void plain_put(void *dst, const void *src, size_t n_bytes) {
    memcpy(dst, src, n_bytes);
}
/* Stands for the memory of a device, but lies on the host. */
static const ArenaMemory plain = {
    .map = plain_map, .unmap = plain_unmap, .put = plain_put, .get = plain_put};

/* ---- sizes of workspaces: those of the real kernels, for the threads of the recording */

static size_t record_matmul_workspace(int n_threads) {
    return real->matmul_workspace(recording->threads);
}
static size_t record_attention_workspace(int n_threads, int64_t B, int64_t S, int64_t H,
                                         int64_t Hkv, int64_t D) {
    return real->attention_workspace(recording->threads, B, S, H, Hkv, D);
}

/* Stand in for kernels without a record_NAME. */
#define X(name)                                                                                    \
    static void no_##name(void) {                                                                  \
        die("tests/recording.c has no record_" #name);                                             \
    }
KERNEL_LIST(X)
#undef X

const Kernels *recording_kernels(Recording *r, const Kernels *like) {
    // clang-format off
#define X(name) .name = record_##name,
    static const Kernels table = {
        X(matmul) X(matmul_workspace) X(attention_workspace) X(embedding_forward)
        X(embedding_backward) X(norm_forward) X(residual_norm) X(norm_backward) X(norm_statistics)
        X(norm_merge) X(norm_apply) X(norm_backward_sums) X(norm_backward_apply)
        X(position_forward) X(position_backward) X(bias_residual) X(classifier_statistics)
        X(classifier_merge) X(classifier_gradient) X(rope) X(attention_forward)
        X(attention_backward) X(act_forward) X(act_backward) X(swiglu_forward) X(swiglu_backward)
        X(bias_backward) X(classifier) X(sum_of_squares) X(zero) X(copy) X(add_to) X(copy_tokens)
        X(sum_of) X(adamw) X(qk_norm) X(qk_norm_backward) X(qk_norm_weight_backward)};
#undef X
    // clang-format on
    static _Thread_local Kernels mine;
    recording = r;
    real = like ? like : kernels_cpu("portable");
    mine = table;
    mine.norm_workspace = real->norm_workspace;
    mine.embedding_workspace = real->embedding_workspace;
#define X(name)                                                                                    \
    if (!mine.name) mine.name = (name##_kernel)no_##name;
    KERNEL_LIST(X)
#undef X
    mine.elem_bytes = real->elem_bytes, mine.bias_with_dw = real->bias_with_dw;
    bf16 = mine.elem_bytes == sizeof(float) ? 0 : WORK_BF16_STORED;
    if (real->memory) {
        mine.memory = &plain;
        mine.sum_to = record_sum_to, mine.squares_to = record_squares_to;
        mine.adamw_begin = record_adamw_begin, mine.adamw_list = record_adamw_list;
        mine.copy_out = record_copy_out, mine.wait_out = record_wait_out;
    }
    return &mine;
}
