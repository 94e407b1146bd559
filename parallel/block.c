#include "parallel/block.h"

static float *param(Model *m, int i) {
    return i < 0 ? NULL : m->tensors.t[i].param;
}
static float *grad(Model *m, int i) {
    return i < 0 ? NULL : m->tensors.t[i].grad;
}

static void run(Model *m, Product p) {
    p.bf16 = m->shape.bf16;
    p.workspace = m->product_work;
    m->k->product(m->team, &p);
}

/* y[T,N] = addend + x[T,K] w[K,N] + b, through the epilogue. w, b are indices into the table; b may
 * be -1. */
static void linear_forward(Model *m, float *y, const float *x, int w, int b, int64_t T,
                           const float *addend, Epilogue epilogue, float *aux) {
    const Tensor *t = &m->tensors.t[w];
    run(m, (Product){.M = T,
                     .N = t->cols,
                     .K = t->rows,
                     .a = x,
                     .a_row = t->rows,
                     .a_col = 1,
                     .b = t->param,
                     .b_row = t->cols,
                     .b_col = 1,
                     .y = y,
                     .ldy = t->cols,
                     .addend = addend,
                     .bias = param(m, b),
                     .epilogue = epilogue,
                     .aux = aux});
}

/* dx[T,K] = dy[T,N] w' (through the epilogue), dw[K,N] += x' dy, db += column sums of dy. */
static void linear_backward(Model *m, float *dx, const float *dy, const float *x, int w, int b,
                            int64_t T, Epilogue epilogue, float *aux) {
    const Tensor *t = &m->tensors.t[w];
    int64_t K = t->rows, N = t->cols;
    run(m, (Product){.M = T,
                     .N = K,
                     .K = N,
                     .a = dy,
                     .a_row = N,
                     .a_col = 1,
                     .b = t->param,
                     .b_row = 1,
                     .b_col = N,
                     .y = dx,
                     .ldy = K,
                     .epilogue = epilogue,
                     .aux = aux});
    run(m, (Product){.M = K,
                     .N = N,
                     .K = T,
                     .a = x,
                     .a_row = 1,
                     .a_col = K,
                     .b = dy,
                     .b_row = N,
                     .b_col = 1,
                     .y = t->grad,
                     .ldy = N,
                     .addend = m->grads_fresh ? NULL : t->grad});
    if (b >= 0) m->k->bias_backward(m->team, grad(m, b), dy, T, N);
}

static Norm norm_args(Model *m, int w, int b, int64_t T) {
    const Config *c = &m->shape.config;
    return (Norm){.kind = c->norm,
                  .T = T,
                  .C = c->channels,
                  .eps = (float)c->norm_eps,
                  .gamma = param(m, w),
                  .beta = param(m, b),
                  .dgamma = grad(m, w),
                  .dbeta = grad(m, b),
                  .workspace = m->norm_work};
}

void norm_of(Model *m, int w, int b, int64_t T, float *y, float *mean, float *rstd,
             const float *x) {
    Norm n = norm_args(m, w, b, T);
    m->k->norm_forward(m->team, &n, y, mean, rstd, x);
}

void norm_of_backward(Model *m, int w, int b, int64_t T, float *dx, const float *dy, const float *x,
                      const float *mean, const float *rstd) {
    Norm n = norm_args(m, w, b, T);
    m->k->norm_backward(m->team, &n, dx, dy, x, mean, rstd);
}

static Attention attention_args(Model *m, int64_t B, int64_t S) {
    const Config *c = &m->shape.config;
    return (Attention){.B = B,
                       .S = S,
                       .H = c->heads,
                       .Hkv = c->kv_heads,
                       .D = config_head_size(c),
                       .bf16 = m->shape.bf16,
                       .workspace = m->attention_work};
}

static void rotate(Model *m, float *qkv, int64_t B, int64_t S, int64_t first, int direction) {
    const Config *c = &m->shape.config;
    if (c->pos != POS_ROPE) return;
    Rope r = {.B = B,
              .S = S,
              .H = c->heads,
              .Hkv = c->kv_heads,
              .D = config_head_size(c),
              .first = first,
              .table = m->rope_table};
    m->k->rope(m->team, &r, qkv, direction);
}

void block_forward_qkv(Model *m, int l, BlockActs *a, int64_t B, int64_t S, int64_t first) {
    const BlockTensors *w = &m->blocks[l];
    norm_of(m, w->ln1_w, w->ln1_b, B * S, a->h1, a->mean1, a->rstd1, a->x);
    linear_forward(m, a->qkv, a->h1, w->qkv_w, w->qkv_b, B * S, NULL, EPI_NONE, NULL);
    rotate(m, a->qkv, B, S, first, +1);
}

void block_attend_cache(Model *m, BlockActs *a, const float *cache, int64_t pos) {
    Attention at = attention_args(m, 1, m->shape.config.seq); // rows of the cache lie seq apart
    m->k->attention_decode(m->team, &at, a->att, a->qkv, cache, pos);
}

void block_forward_mlp(Model *m, int l, BlockActs *a, float *x_next, int64_t T) {
    const BlockTensors *w = &m->blocks[l];
    linear_forward(m, a->x2, a->att, w->attn_out_w, w->attn_out_b, T, a->x, EPI_NONE, NULL);
    norm_of(m, w->ln2_w, w->ln2_b, T, a->h2, a->mean2, a->rstd2, a->x2);
    if (m->shape.config.act == ACT_GELU) { // act = gelu(pre) inside the product
        linear_forward(m, a->act, a->h2, w->up_w, w->up_b, T, NULL, EPI_GELU, a->pre);
    } else {
        linear_forward(m, a->pre, a->h2, w->up_w, w->up_b, T, NULL, EPI_NONE, NULL);
        m->k->swiglu_forward(m->team, a->act, a->pre, T, m->shape.config.ffn);
    }
    linear_forward(m, x_next, a->act, w->down_w, w->down_b, T, a->x2, EPI_NONE, NULL);
}

void block_forward(Model *m, int l, BlockActs *a, float *x_next, int64_t B, int64_t S,
                   int64_t first) {
    block_forward_qkv(m, l, a, B, S, first);
    Attention at = attention_args(m, B, S);
    m->k->attention_forward(m->team, &at, a->att, a->lse, a->qkv);
    block_forward_mlp(m, l, a, x_next, B * S);
}

/* Selective recompute: h1, h2 and act are shared between blocks; those of this block are made again
 * when needed. */
static void bring_back_act(Model *m, BlockActs *a, int64_t T) {
    int64_t F = m->shape.config.ffn;
    if (m->shape.recompute != RECOMPUTE_SELECTIVE) return;
    if (m->shape.config.act == ACT_GELU)
        m->k->gelu_forward(m->team, a->act, a->pre, T * F);
    else
        m->k->swiglu_forward(m->team, a->act, a->pre, T, F);
}

static void bring_back_norm(Model *m, int w, int b, float *h, const float *x, int64_t T) {
    if (m->shape.recompute == RECOMPUTE_SELECTIVE) norm_of(m, w, b, T, h, NULL, NULL, x);
}

static void mlp_backward(Model *m, int l, BlockActs *a, int64_t T) {
    const BlockTensors *w = &m->blocks[l];
    bring_back_act(m, a, T);
    if (m->shape.config.act == ACT_GELU) {
        linear_backward(m, m->dwide, m->dx, a->act, w->down_w, w->down_b, T, EPI_DGELU, a->pre);
    } else {
        linear_backward(m, m->dact, m->dx, a->act, w->down_w, w->down_b, T, EPI_NONE, NULL);
        m->k->swiglu_backward(m->team, m->dwide, m->dact, a->pre, T, m->shape.config.ffn);
    }
    bring_back_norm(m, w->ln2_w, w->ln2_b, a->h2, a->x2, T);
    linear_backward(m, m->dh, m->dwide, a->h2, w->up_w, w->up_b, T, EPI_NONE, NULL);
    norm_of_backward(m, w->ln2_w, w->ln2_b, T, m->dx, m->dh, a->x2, a->mean2, a->rstd2);
}

void block_backward(Model *m, int l, BlockActs *a) {
    const BlockTensors *w = &m->blocks[l];
    int64_t B = m->shape.B, S = m->shape.S, T = B * S;
    // The block's output goes to any [T,C] that is free by now.
    if (m->shape.recompute == RECOMPUTE_FULL) block_forward(m, l, a, m->h_last, B, S, 0);
    mlp_backward(m, l, a, T);
    linear_backward(m, m->datt, m->dx, a->att, w->attn_out_w, w->attn_out_b, T, EPI_NONE, NULL);
    Attention at = attention_args(m, B, S);
    m->k->attention_backward(m->team, &at, m->dqkv, m->datt, a->qkv, a->att, a->lse);
    rotate(m, m->dqkv, B, S, 0, -1);
    bring_back_norm(m, w->ln1_w, w->ln1_b, a->h1, a->x, T);
    linear_backward(m, m->dh, m->dqkv, a->h1, w->qkv_w, w->qkv_b, T, EPI_NONE, NULL);
    norm_of_backward(m, w->ln1_w, w->ln1_b, T, m->dx, m->dh, a->x, a->mean1, a->rstd1);
}

/* The head's weight is [V,C], used transposed: logits[T,V] = h[T,C] w'. */
void head_logits(Model *m, float *logits, int64_t ld, const float *h, int64_t T) {
    const Tensor *t = &m->tensors.t[m->head];
    int64_t V = t->rows, C = t->cols;
    run(m, (Product){.M = T,
                     .N = V,
                     .K = C,
                     .a = h,
                     .a_row = C,
                     .a_col = 1,
                     .b = t->param,
                     .b_row = 1,
                     .b_col = C,
                     .y = logits,
                     .ldy = ld});
}

static void head_backward(Model *m, float *dh, const float *h, int64_t T, bool fresh) {
    const Tensor *t = &m->tensors.t[m->head];
    int64_t V = t->rows, C = t->cols, ld = m->ld_logits;
    run(m, (Product){.M = T,
                     .N = C,
                     .K = V,
                     .a = m->logits,
                     .a_row = ld,
                     .a_col = 1,
                     .b = t->param,
                     .b_row = C,
                     .b_col = 1,
                     .y = dh,
                     .ldy = C});
    run(m, (Product){.M = V,
                     .N = C,
                     .K = T,
                     .a = m->logits,
                     .a_row = 1,
                     .a_col = ld,
                     .b = h,
                     .b_row = C,
                     .b_col = 1,
                     .y = t->grad,
                     .ldy = C,
                     .addend = fresh ? NULL : t->grad});
}

double head_loss(Model *m, const float *h, float *dh, const int32_t *targets, int64_t T,
                 float scale, bool backward) {
    int64_t C = m->shape.config.channels;
    double sum = 0;
    for (int64_t t = 0; t < T; t += m->head_rows) {
        int64_t rows = T - t < m->head_rows ? T - t : m->head_rows;
        head_logits(m, m->logits, m->ld_logits, h + t * C, rows);
        Classifier c = {.T = rows,
                        .V = m->shape.config.vocab,
                        .ld = m->ld_logits,
                        .targets = targets + t,
                        .scale = scale,
                        .backward = backward};
        m->k->classifier(m->team, &c, m->losses + t, m->logits);
        if (backward) head_backward(m, dh + t * C, h + t * C, rows, m->grads_fresh && t == 0);
    }
    for (int64_t t = 0; t < T; t++) sum += (double)m->losses[t];
    return sum;
}
