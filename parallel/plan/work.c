/* FLOPs and bytes of a work, and its kernel run for timing. One function per kind takes the
 * operands from arenas and, if these have memory, calls the kernel: the same code sizes the memory
 * and runs. */
#include "parallel/plan/work.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/rng.h"

enum { FLOAT = sizeof(float) };

/* Bytes of an element of an activation. */
static double elem_bytes_of(const Work *w) {
    return w->flags & WORK_BF16_STORED ? 2 : FLOAT;
}

double work_flops(const Work *w) {
    double rows = (double)w->rows, S = (double)w->S;
    // FLOPs of one of attention's matmuls, over the causal half: for each head S (S + 1) / 2
    // elements of 2 D FLOPs
    double half = rows * (double)w->H * (double)w->D * S * (S + 1);
    switch (w->kind) {
    case WORK_MATMUL:
    case WORK_DGRAD:
    case WORK_WGRAD:
        return 2 * rows * (double)w->K * (double)w->N;
    case WORK_ATTENTION:
        return 2 * half; // scores; O
    case WORK_ATTENTION_BACKWARD:
        return 5 * half; // scores, recomputed; dP, dV, dQ, dK
    default:
        return 0;
    }
}

/* Weights are read in the dtype of activations; their gradients are written as floats. */
static double matmul_bytes(const Work *w) {
    double T = (double)w->rows, K = (double)w->K, N = (double)w->N, elem_bytes = elem_bytes_of(w);
    double result = w->kind == WORK_MATMUL ? T * N : w->kind == WORK_DGRAD ? T * K : K * N;
    double all = T * K + K * N + T * N, out = w->kind == WORK_WGRAD ? FLOAT : elem_bytes;
    if (w->flags & (WORK_EPI_ACT | WORK_EPI_DACT)) all += result;
    return elem_bytes * (all - result) + out * result * (w->flags & WORK_ADDEND ? 2 : 1);
}

static double attention_bytes(const Work *w) {
    double T = (double)w->rows * (double)w->S, H = (double)w->H, D = (double)w->D;
    double qkv = T * (H + 2 * (double)w->Hkv) * D, out = T * H * D, lse = T * H;
    return elem_bytes_of(w) * (w->kind == WORK_ATTENTION ? 1 : 2) * (qkv + out) + FLOAT * lse;
}

/* ---- runs ---- */

typedef struct Run {
    const Work *w;
    const Kernels *k;
    Team *team;
    int threads;
    bool sizes; // only measures the arenas, which have no memory
    Arena operands, workspace;
} Run;

static float *operand(Run *r, int64_t n) {
    return arena_take(&r->operands, (size_t)(n > 0 ? n : 0) * sizeof(float));
}
static bool has(const Run *r, uint32_t flag) {
    return r->w->flags & flag;
}

/* Floats of a table of embeddings, at most: it is far larger than the caches, and a larger one
 * would not be slower. */
enum { TABLE_FLOATS = 1 << 22 };

static int64_t table_rows(int64_t V, int64_t C) {
    int64_t most = C > 0 ? TABLE_FLOATS / C : V;
    return V < most ? V : most > 0 ? most : 1;
}

/* T tokens below n in no order. */
static int32_t *tokens(Run *r, int64_t T, int64_t n) {
    int32_t *t = (int32_t *)(void *)operand(r, T);
    for (int64_t i = 0; t && i < T; i++)
        t[i] = n > 0 ? (int32_t)((uint64_t)(i + 1) * 2654435761u % (uint64_t)n) : -1;
    return t;
}

/* matmuls and attention */

static void run_matmul(Run *r) {
    const Work *w = r->w;
    int64_t T = w->rows, K = w->K, N = w->N;
    float *x = operand(r, w->kind == WORK_DGRAD ? T * N : T * K);
    float *y = operand(r, w->kind == WORK_WGRAD ? T * N : K * N);
    Matmul p = w->kind == WORK_MATMUL  ? matmul_forward(T, K, N, x, K, y)
               : w->kind == WORK_DGRAD ? matmul_dgrad(T, K, N, x, N, y)
                                       : matmul_wgrad(T, K, N, x, K, y);
    p.y = operand(r, p.M * p.N);
    if (has(r, WORK_ADDEND)) p.addend = w->kind == WORK_WGRAD ? p.y : operand(r, p.M * p.N);
    float *bias = has(r, WORK_BIAS) ? operand(r, p.N) : NULL;
    if (w->kind == WORK_WGRAD)
        p.bias_grad = bias;
    else
        p.bias = bias;
    if (has(r, WORK_EPI_ACT | WORK_EPI_DACT)) {
        p.epilogue = has(r, WORK_EPI_ACT) ? EPI_ACT : EPI_DACT, p.act = (ActKind)w->act;
        p.aux = operand(r, p.M * p.N);
    }
    p.bf16 = has(r, WORK_BF16);
    p.workspace = arena_take(&r->workspace, r->k->matmul_workspace(r->threads));
    if (!r->sizes) r->k->matmul(r->team, &p);
}

static void run_attention(Run *r) {
    const Work *w = r->w;
    Attention a = {.B = w->rows, .S = w->S, .H = w->H, .Hkv = w->Hkv, .D = w->D};
    int64_t T = a.B * a.S, wide = T * (a.H + 2 * a.Hkv) * a.D, n = T * a.H * a.D;
    bool backward = w->kind == WORK_ATTENTION_BACKWARD;
    float *qkv = operand(r, wide), *out = operand(r, n), *lse = operand(r, T * a.H);
    float *dqkv = operand(r, backward ? wide : 0), *dout = operand(r, backward ? n : 0);
    a.bf16 = has(r, WORK_BF16);
    a.workspace =
        arena_take(&r->workspace, r->k->attention_workspace(r->threads, a.B, a.S, a.H, a.Hkv, a.D));
    if (r->sizes) return;
    if (backward)
        r->k->attention_backward(r->team, &a, dqkv, dout, qkv, out, lse);
    else
        r->k->attention_forward(r->team, &a, out, lse, qkv);
}

static void run_rope(Run *r) {
    const Work *w = r->w;
    Rope rope = {.B = 1, .S = w->rows, .H = w->H, .Hkv = w->Hkv, .D = w->D};
    float *qkv = operand(r, rope.S * (rope.H + 2 * rope.Hkv) * rope.D);
    rope.table = operand(r, rope.S * rope.D);
    if (!r->sizes) r->k->rope(r->team, &rope, qkv, 1);
}

static void run_qk_norm(Run *r) {
    const Work *w = r->w;
    QkNorm q = {.T = w->rows, .H = w->H, .Hkv = w->Hkv, .D = w->D, .eps = 1};
    int64_t n = q.T * qk_norm_heads(&q) * q.D;
    float *x = operand(r, n), *y = operand(r, n), *dx = NULL;
    q.gamma = q.dgamma = operand(r, 2 * q.D);
    if (w->kind == WORK_QK_NORM_BACKWARD) dx = operand(r, n);
    q.workspace = arena_take(&r->workspace, r->k->norm_workspace(q.T, q.D));
    if (r->sizes) return;
    if (w->kind == WORK_QK_NORM) r->k->qk_norm(r->team, &q, y, x);
    if (w->kind == WORK_QK_NORM_BACKWARD) r->k->qk_norm_backward(r->team, &q, dx, y, x);
    if (w->kind == WORK_QK_NORM_WEIGHT_BACKWARD) r->k->qk_norm_weight_backward(r->team, &q, y, x);
}

/* norms */

static Norm norm_of(Run *r) {
    bool rms = has(r, WORK_RMS);
    int64_t C = r->w->width;
    return (Norm){.kind = rms ? NORM_RMS : NORM_LAYER,
                  .T = r->w->rows,
                  .C = C,
                  .eps = 1, // finite for any operands
                  .gamma = operand(r, C),
                  .beta = rms ? NULL : operand(r, C),
                  .dgamma = operand(r, C),
                  .dbeta = rms ? NULL : operand(r, C),
                  .workspace = arena_take(&r->workspace, r->k->norm_workspace(r->w->rows, C))};
}

static void run_norm(Run *r) {
    Norm n = norm_of(r);
    WorkKind kind = r->w->kind;
    float *x = operand(r, n.T * n.C), *y = operand(r, n.T * n.C), *dy = NULL;
    float *mean = operand(r, n.T), *rstd = operand(r, n.T), *stats = operand(r, 2 * n.T);
    bool backward = kind == WORK_NORM_BACKWARD || kind == WORK_NORM_BACKWARD_APPLY;
    if (backward) dy = operand(r, n.T * n.C);
    float *addend = kind == WORK_RESIDUAL_NORM ? operand(r, n.T * n.C) : NULL;
    float *bias = has(r, WORK_BIAS) ? operand(r, n.C) : NULL;
    if (r->sizes) return;
    if (kind == WORK_NORM) r->k->norm_forward(r->team, &n, y, mean, rstd, x);
    if (kind == WORK_RESIDUAL_NORM)
        r->k->residual_norm(r->team, &n, x, addend, bias, y, mean, rstd);
    if (kind == WORK_NORM_BACKWARD) r->k->norm_backward(r->team, &n, y, dy, x, mean, rstd);
    if (kind == WORK_NORM_STATISTICS) r->k->norm_statistics(r->team, &n, stats, x);
    if (kind == WORK_NORM_APPLY) r->k->norm_apply(r->team, &n, y, x, mean, rstd);
    if (kind == WORK_NORM_BACKWARD_SUMS)
        r->k->norm_backward_sums(r->team, &n, stats, y, x, mean, rstd);
    if (kind == WORK_NORM_BACKWARD_APPLY)
        r->k->norm_backward_apply(r->team, &n, y, dy, x, mean, rstd, stats);
}

static void run_norm_merge(Run *r) {
    Norm n = norm_of(r);
    int64_t parts = r->w->parts;
    float *stats = operand(r, 2 * parts * n.T), *mean = operand(r, n.T), *rstd = operand(r, n.T);
    if (r->sizes) return;
    n.C += n.C == 0, n.C_all = parts * n.C; // C may be 0, C_all must not
    r->k->norm_merge(r->team, &n, mean, rstd, stats);
}

/* activations and biases */

static void run_activation(Run *r) {
    const Work *w = r->w;
    int64_t T = w->rows, F = w->width;
    bool swiglu = w->kind == WORK_SWIGLU || w->kind == WORK_SWIGLU_BACKWARD;
    bool backward = w->kind == WORK_SWIGLU_BACKWARD || w->kind == WORK_ACT_BACKWARD;
    int64_t n = swiglu ? T * F : T, wide = swiglu ? 2 * n : n;
    float *x = operand(r, wide), *y = operand(r, n), *dx = operand(r, backward ? wide : 0);
    if (r->sizes) return;
    if (w->kind == WORK_ACT) r->k->act_forward(r->team, (ActKind)w->act, y, x, n);
    if (w->kind == WORK_ACT_BACKWARD) r->k->act_backward(r->team, (ActKind)w->act, dx, y, x, n);
    if (w->kind == WORK_SWIGLU) r->k->swiglu_forward(r->team, y, x, T, F);
    if (w->kind == WORK_SWIGLU_BACKWARD) r->k->swiglu_backward(r->team, dx, y, x, T, F);
}

static void run_bias(Run *r) {
    const Work *w = r->w;
    int64_t T = w->rows, N = w->width;
    bool residual = w->kind == WORK_BIAS_RESIDUAL;
    float *y = operand(r, T * N), *bias = operand(r, N);
    float *addend = residual && has(r, WORK_ADDEND) ? operand(r, T * N) : NULL;
    if (r->sizes) return;
    if (residual)
        r->k->bias_residual(r->team, y, addend, has(r, WORK_BIAS) ? bias : NULL, T, N);
    else
        r->k->bias_backward(r->team, bias, y, T, N);
}

/* the two ends of the model */

static void run_loss(Run *r) {
    const Work *w = r->w;
    int64_t T = w->rows, V = w->width, parts = w->kind == WORK_LOSS_MERGE ? w->parts : 1;
    Classifier c = {.T = T,
                    .V = V,
                    .ld = (V + 15) / 16 * 16,
                    .targets = tokens(r, T, V),
                    // gradients in place of logits become logits again, and not ever smaller
                    .scale = 1,
                    .backward = has(r, WORK_BACKWARD)};
    float *logits = operand(r, w->kind == WORK_LOSS_MERGE ? 0 : T * c.ld), *loss = operand(r, T);
    float *stats = operand(r, 3 * parts * T), *log_sum = operand(r, T);
    if (r->sizes) return;
    if (w->kind == WORK_LOSS) r->k->classifier(r->team, &c, loss, logits);
    if (w->kind == WORK_LOSS_STATISTICS) r->k->classifier_statistics(r->team, &c, stats, logits);
    if (w->kind == WORK_LOSS_MERGE)
        r->k->classifier_merge(r->team, &c, loss, log_sum, stats, parts);
    if (w->kind == WORK_LOSS_BACKWARD) {
        for (int64_t i = 0; i < T; i++) stats[3 * i] = log_sum[i] = 0; // a factor of e^0
        r->k->classifier_gradient(r->team, &c, stats, log_sum, logits);
    }
}

static void run_embedding(Run *r) {
    const Work *w = r->w;
    int64_t T = w->rows, C = w->C;
    bool position = w->kind == WORK_POSITION || w->kind == WORK_POSITION_BACKWARD;
    Embedding e = {.B = 1, .S = T, .C = C, .V = position ? 0 : table_rows(w->V, C)};
    e.tokens = tokens(r, position ? 0 : T, e.V);
    float *x = operand(r, T * C), *table = operand(r, position ? T * C : e.V * C);
    if (r->sizes) return;
    if (position)
        e.wpe = e.dwpe = table;
    else
        e.wte = e.dwte = table;
    if (w->kind == WORK_EMBEDDING) r->k->embedding_forward(r->team, &e, x);
    if (w->kind == WORK_EMBEDDING_BACKWARD) r->k->embedding_backward(r->team, &e, x);
    if (w->kind == WORK_POSITION) r->k->position_forward(r->team, &e, T, 0, x);
    if (w->kind == WORK_POSITION_BACKWARD) r->k->position_backward(r->team, &e, T, 0, x);
}

/* the update, and moves */

static void run_adamw(Run *r) {
    int64_t n = r->w->rows;
    float *param = operand(r, n), *m = operand(r, n), *v = operand(r, n), *grad = operand(r, n);
    AdamW o = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    o.grad_scale = 1, o.step = 3;
    if (has(r, WORK_BF16_STORED)) o.cast = operand(r, n);
    if (!r->sizes) r->k->adamw(r->team, &o, param, m, v, grad, n, true);
}

static void run_move(Run *r) {
    const Work *w = r->w;
    int64_t rows = w->rows, n = w->kind == WORK_COPY ? rows * w->width : rows;
    float *x = operand(r, n), *y = operand(r, w->kind == WORK_COPY ? n : 1);
    if (r->sizes) return;
    if (w->kind == WORK_ZERO) r->k->zero(r->team, x, (size_t)n * sizeof *x);
    if (w->kind == WORK_COPY)
        r->k->copy(r->team, y, w->width, x, w->width, rows, w->width, sizeof *x);
    if (w->kind == WORK_SQUARES) y[0] = (float)r->k->sum_of_squares(r->team, x, n);
}

/* ---- the kinds ---- */

/* How a kind of work is run, and what a call reads and writes. Per row: `acts` passes over its
 * `width` activations (over one where width is 0), `floats` passes over as many floats, `beside`
 * floats beside them, and `parts` floats for each part. The flag `one_more` adds a pass. */
static const struct {
    const char *name;
    void (*run)(Run *r); // takes the operands, and computes where there is memory for them
    double acts, floats, beside, parts;
    uint32_t one_more;
} kinds[N_WORKS] = {
    [WORK_MATMUL] = {"matmul", run_matmul, 0, 0, 0, 0, 0},
    [WORK_DGRAD] = {"dgrad", run_matmul, 0, 0, 0, 0, 0},
    [WORK_WGRAD] = {"wgrad", run_matmul, 0, 0, 0, 0, 0},
    [WORK_ATTENTION] = {"attention", run_attention, 0, 0, 0, 0, 0},
    [WORK_ATTENTION_BACKWARD] = {"attention backward", run_attention, 0, 0, 0, 0, 0},
    [WORK_NORM] = {"norm", run_norm, 2, 0, 2, 0, 0},
    [WORK_RESIDUAL_NORM] = {"residual and norm", run_norm, 4, 0, 2, 0, 0},
    [WORK_NORM_BACKWARD] = {"norm backward", run_norm, 4, 0, 2, 0, 0},
    [WORK_NORM_STATISTICS] = {"norm statistics", run_norm, 1, 0, 2, 0, 0},
    [WORK_NORM_MERGE] = {"norm merge", run_norm_merge, 0, 0, 2, 2, 0},
    [WORK_NORM_APPLY] = {"norm apply", run_norm, 2, 0, 2, 0, 0},
    [WORK_NORM_BACKWARD_SUMS] = {"norm backward sums", run_norm, 2, 0, 4, 0, 0},
    [WORK_NORM_BACKWARD_APPLY] = {"norm backward apply", run_norm, 4, 0, 4, 0, 0},
    [WORK_ACT] = {"activation", run_activation, 2, 0, 0, 0, 0},
    [WORK_ACT_BACKWARD] = {"activation backward", run_activation, 3, 0, 0, 0, 0},
    [WORK_SWIGLU] = {"swiglu", run_activation, 3, 0, 0, 0, 0},
    [WORK_SWIGLU_BACKWARD] = {"swiglu backward", run_activation, 5, 0, 0, 0, 0},
    [WORK_BIAS_RESIDUAL] = {"bias and residual", run_bias, 2, 0, 0, 0, WORK_ADDEND},
    [WORK_BIAS_BACKWARD] = {"bias backward", run_bias, 1, 0, 0, 0, 0},
    [WORK_LOSS] = {"loss", run_loss, 1, 0, 2, 0, WORK_BACKWARD},
    [WORK_LOSS_STATISTICS] = {"loss statistics", run_loss, 1, 0, 4, 0, WORK_BACKWARD},
    [WORK_LOSS_MERGE] = {"loss merge", run_loss, 0, 0, 2, 3, 0},
    [WORK_LOSS_BACKWARD] = {"loss backward", run_loss, 2, 0, 5, 0, 0},
    [WORK_EMBEDDING] = {"embedding", run_embedding, 2, 0, 0, 0, 0},
    [WORK_EMBEDDING_BACKWARD] = {"embedding backward", run_embedding, 1, 2, 0, 0, 0},
    [WORK_POSITION] = {"position", run_embedding, 2, 1, 0, 0, 0},
    [WORK_POSITION_BACKWARD] = {"position backward", run_embedding, 1, 2, 0, 0, 0},
    [WORK_ROPE] = {"rope", run_rope, 0, 0, 0, 0, 0},
    [WORK_SQUARES] = {"squares", run_move, 0, 1, 0, 0, 0},
    // parameter and two moments both ways, gradient; the bf16 copy
    [WORK_ADAMW] = {"adamw", run_adamw, 0, 7, 0, 0, WORK_BF16_STORED},
    [WORK_ZERO] = {"zero", run_move, 0, 1, 0, 0, 0},
    [WORK_COPY] = {"copy", run_move, 0, 2, 0, 0, 0},
    [WORK_QK_NORM] = {"QK-norm", run_qk_norm, 0, 0, 0, 0, 0},
    [WORK_QK_NORM_BACKWARD] = {"QK-norm backward", run_qk_norm, 0, 0, 0, 0, 0},
    [WORK_QK_NORM_WEIGHT_BACKWARD] = {"QK-norm weight backward", run_qk_norm, 0, 0, 0, 0, 0},
};

/* Elements of the heads of a row that rope and QK-norm read and write: of queries and keys alone,
 * or of values, too. */
static double head_elements(const Work *w) {
    double qk = (double)((w->H + w->Hkv) * w->D), all = qk + (double)(w->Hkv * w->D);
    return w->kind == WORK_QK_NORM            ? 2 * all
           : w->kind == WORK_QK_NORM_BACKWARD ? 2 * all + qk
                                              : 2 * qk;
}

double work_bytes(const Work *w) {
    double rows = (double)w->rows, width = w->width > 0 ? (double)w->width : 1;
    if (w->kind <= WORK_WGRAD) return matmul_bytes(w);
    if (w->kind <= WORK_ATTENTION_BACKWARD) return attention_bytes(w);
    if (w->kind == WORK_ROPE ||
        (w->kind >= WORK_QK_NORM && w->kind <= WORK_QK_NORM_WEIGHT_BACKWARD))
        return elem_bytes_of(w) * rows * head_elements(w);
    double acts = kinds[w->kind].acts + (w->flags & kinds[w->kind].one_more ? 1 : 0);
    double beside = kinds[w->kind].beside + kinds[w->kind].parts * (double)w->parts;
    return rows *
           ((elem_bytes_of(w) * acts + FLOAT * kinds[w->kind].floats) * width + FLOAT * beside);
}

const char *work_name(const Work *w, char buf[64]) {
    int at = snprintf(buf, 64, "%s", kinds[w->kind].name);
    for (int i = 0; i < 4 && w->size[i] > 0 && at < 64; i++)
        at += snprintf(buf + at, (size_t)(64 - at), "%s%" PRId64, i ? "x" : " ", w->size[i]);
    return buf;
}

bool work_alike(const Work *x, const Work *y) {
    return x->kind == y->kind && x->flags == y->flags &&
           memcmp(x->size, y->size, sizeof x->size) == 0;
}

WorkMemory work_memory(const Work *w, const Kernels *k, int threads) {
    Run r = {.w = w,
             .k = k,
             .threads = threads,
             .sizes = true,
             .operands = arena_measure("a work's operands"),
             .workspace = arena_measure("a work's workspace")};
    kinds[w->kind].run(&r);
    return (WorkMemory){r.operands.used, r.workspace.used};
}

void work_run(const Work *w, const Kernels *k, Team *team, void *operands, void *workspace) {
    int threads = team_size(team);
    WorkMemory n = work_memory(w, k, threads);
    Run r = {.w = w,
             .k = k,
             .team = team,
             .threads = threads,
             .operands = {.name = "a work's operands", .base = operands, .cap = n.operands},
             .workspace = {.name = "a work's workspace", .base = workspace, .cap = n.workspace}};
    kinds[w->kind].run(&r);
}

/* Fills with numbers between 1/2 and 1 of either sign. (On a device matmuls of zeros would be
 * faster than those of training.) Each half of a float is a number in bf16, so both dtypes read
 * numbers. */
static void fill(const Kernels *k, Team *team, char *x, size_t n) {
    uint16_t some[4096];
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        some[i] = (uint16_t)(rng_u64(1, 0, i) & 0x807f) | 0x3f00;
    size_t filled = n < sizeof some ? n : sizeof some;
    if (k->memory)
        k->memory->put(x, some, filled);
    else
        memcpy(x, some, filled);
    for (size_t more; filled < n; filled += more) {
        more = filled < n - filled ? filled : n - filled;
        int64_t floats = (int64_t)(more / sizeof(float));
        k->copy(team, x + filled, floats, x, floats, 1, floats, sizeof(float));
    }
}

static double now_when_done(const Kernels *k) {
    if (k->memory && k->memory->wait) k->memory->wait();
    return now_s();
}

double work_seconds(const Work *w, const Kernels *k, Team *team, int times) {
    WorkMemory n = work_memory(w, k, team_size(team));
    Arena a = arena_block("a work", k->memory, n.operands + n.workspace);
    double least = INFINITY;
    fill(k, team, a.base, n.operands);
    for (int i = 0; i < times; i++) {
        double begin = now_when_done(k);
        work_run(w, k, team, a.base, a.base + n.operands);
        least = fmin(least, now_when_done(k) - begin);
    }
    arena_free(&a);
    return least;
}
