/* run_kernels -- a function for each kind of operation (table in ops.c). It calls the layer's
 * kernel with the operands of the operation and of the operations fused into it. */
#include <assert.h>

#include "base/minmax.h"
#include "layers/exact.h"
#include "parallel/step/run_call.h"

/* ---- operands ---- */

/* A vector of parameters, as fp32. (Biases have a bf16 copy as well, for matmuls that add them:
 * run_matmul.) */
static float *vector(const Call *c, int t) {
    return step_run_row(c->m, tensor(c, t))->param;
}
/* Does t have the columns of the logits? Their gradient has them, too. Rows are padded to
 * head_ld. */
static bool is_logits(const Call *c, int t) {
    return strcmp(tensor(c, t)->dist.dim[1], "V") == 0;
}
/* Columns without the padding of the vocabulary. */
static int64_t real_cols(const Call *c, int t) {
    return is_logits(c, t) ? c->m->w.V_n : cols(c, t);
}
/* Operation `add` is fused into the call, which computes one of its operands. Returns the other
 * operand: its values are in memory before the kernel starts. */
static int addend_of(const Call *c, const Op *add) {
    for (int i = 0; i < c->n; i++)
        if (c->op[i].out == add->in[0]) return add->in[1];
    return add->in[0];
}
/* Is result t added to the values in its memory? Those are of the other half batch or of earlier
 * micro-batches. */
static bool adds(const Call *c, int t) {
    for (int i = 0; i < c->n; i++)
        if (c->op[i].adds && c->op[i].out == t) return true;
    return tensor(c, t)->gradient >= 0 && !c->m->first_micro_batch;
}

/* For kernels that add to memory: fills the memory with the other operand of a fused OP_ADD, with
 * zeros, or leaves the values that are stored in it. Returns the tensor with this memory. */
static int start_sum(const Call *c, int result) {
    const Op *add = with(c, OP_ADD);
    int out = add ? add->out : result;
    if (add)
        in_place(c, out, addend_of(c, add));
    else if (tensor(c, out)->gradient < 0 && !adds(c, out))
        clear_from(c, out, 0);
    return out;
}

/* ---- sums of integers: --exact ---- */

/* Panels of the contracted dimension of a matmul. On every mesh a panel lies on one rank: partial
 * sums of panels are floats, sums over panels are integers. */
static MatmulExact panels_of(const Model *m, LinearKind kind, LinearTensor which) {
    const Config *c = &m->shape.config;
    int64_t S = m->tk.S, D = m->w.D, n = c->channels;
    bool heads = which == TENSOR_Y ? kind == LINEAR_ATTN_OUT : kind == LINEAR_QKV;
    bool hidden = which == TENSOR_Y ? kind == LINEAR_DOWN : kind == LINEAR_UP;
    if (which == TENSOR_DW) return (MatmulExact){.k_panel = min_i64(S, 64), .k_unit = S}; // tokens
    if (heads) return (MatmulExact){.k_panel = min_i64(D, 64), .k_unit = D};
    if (kind == LINEAR_HEAD) n = c->vocab; // of dx: the head's y, logits, stays float
    if (hidden) n = c->ffn;
    return (MatmulExact){.k_panel = exact_panel(n)};
}

/* Exponent e of the sum: its integers count units of 2^-e. */
static int exponent_of(const Model *m, LinearTensor which) {
    return which == TENSOR_Y    ? EXACT_ACTIVATIONS
           : which == TENSOR_DX ? exact_gradients((double)m->scale)
                                : EXACT_WEIGHTS;
}

/* A matmul of `stripes` times p.M rows, added to a sum of integers. overwrite: it is the first term
 * of the sum. */
static void exact_matmul(const Call *c, Matmul p, int out, int64_t stripes, bool overwrite) {
    LinearTensor which = TENSOR_DW;
    LinearKind kind = LINEAR_HEAD; // not read for wgrad, whose panels are of tokens
    if (c->op->kind != OP_MATMUL_AT) kind = linear_named(tensor(c, out)->what, &which);
    MatmulExact x = panels_of(c->m, kind, which);
    x.exponent = exponent_of(c->m, which), x.overwrite = overwrite;
    for (int64_t i = 0, every = tensor(c, out)->every; i < stripes; i++) {
        x.y_64 = (int64_t *)at(c, out) + i * every * p.ldy;
        c->k->matmul_exact(c->team, &p, &x);
        p.a = act_at(p.a, every * p.a_row, c->k->elem_bytes);
    }
}

void run_round(const Call *c) {
    int sum = c->op->in[0], out = c->op->out;
    int64_t n = step_tensor_elements(c->p, tensor(c, out));
    LinearTensor which = TENSOR_DW;
    if (tensor(c, out)->dtype == COLL_F64) {
        *(double *)result(c) = c->k->exact_wide_to_double(operand(c, 0));
        return;
    }
    if (tensor(c, out)->storage != STORAGE_GRADIENT) linear_named(tensor(c, sum)->what, &which);
    c->k->exact_to_float(c->team, result(c), operand(c, 0), n, exponent_of(c->m, which));
}

/* ---- matmuls ---- */

/* y = a b, plus the other operand of a fused `add` or the values stored in y. A chunk of tokens is
 * a stripe of rows in each block of tokens: one matmul for each stripe. */
static void matmul_run(const Call *c, Matmul p, const Op *add, int y) {
    const Model *m = c->m;
    int64_t stripes = step_tensor_stripes(c->p, tensor(c, y)), every = tensor(c, y)->every;
    size_t elem_bytes = c->k->elem_bytes;
    p.y = at(c, y), p.workspace = m->matmul_work;
    p.M /= stripes;
    if (is_integers(c, y)) {
        if (add) in_place(c, y, addend_of(c, add));
        exact_matmul(c, p, y, stripes, !add && !adds(c, y));
        return;
    }
    p.addend = add ? at(c, addend_of(c, add)) : adds(c, y) ? p.y : NULL;
    p.blocks = c->blocks, p.bf16 = m->shape.bf16, p.act = m->shape.config.act;
    for (int64_t i = 0; i < stripes; i++) {
        c->k->matmul(c->team, &p);
        p.a = act_at(p.a, every * p.a_row, elem_bytes),
        p.y = act_at(p.y, every * p.ldy, elem_bytes);
        if (p.addend) p.addend = act_at(p.addend, every * p.ldy, elem_bytes);
        if (p.aux) p.aux = act_at(p.aux, every * p.ldy, elem_bytes);
    }
}

void run_matmul(const Call *c) {
    const Op *op = c->op, *bias = with(c, OP_BIAS), *add = with(c, OP_ADD), *act = with(c, OP_ACT);
    int x = op->in[0], w = op->in[1], y = c->op[c->n - 1].out;
    Matmul p = matmul_forward(rows(c, x), real_cols(c, x), cols(c, op->out), at(c, x), stride(c, x),
                              at(c, w));
    if (bias) p.bias = at(c, bias->in[1]);
    if (act) p.epilogue = EPI_ACT, p.aux = at(c, act->in[0]);
    matmul_run(c, p, add, y);
}

void run_matmul_bt(const Call *c) {
    const Op *op = c->op, *act = with(c, OP_ACT_BACKWARD);
    int dy = op->in[0], w = op->in[1], dx = c->op[c->n - 1].out;
    Matmul p = matmul_dgrad(rows(c, dy), real_cols(c, op->out), cols(c, dy), at(c, dy),
                            stride(c, dy), at(c, w));
    p.ldy = stride(c, dx), p.padded = is_logits(c, dx);
    if (act) p.epilogue = EPI_DACT, p.aux = at(c, act->in[1]);
    matmul_run(c, p, NULL, dx);
}

static void wgrad(const Call *c, const Op *op, const Op *add, float *bias_grad) {
    int x = op->in[0], dy = op->in[1], dw = add ? add->out : op->out;
    Matmul p =
        matmul_wgrad(rows(c, x), real_cols(c, x), cols(c, dy), at(c, x), stride(c, x), at(c, dy));
    p.bias_grad = bias_grad;
    matmul_run(c, p, add, dw);
    // the kernel writes only real rows of the vocabulary; padding of a stored gradient is zero
    if (!add && !adds(c, dw) && tensor(c, dw)->gradient < 0) clear_from(c, dw, p.M * p.N);
}
void run_matmul_at(const Call *c) {
    wgrad(c, c->op, with(c, OP_ADD), NULL);
}

void run_bias_backward(const Call *c) {
    int dy = c->op->in[0];
    const Op *dw = with(c, OP_MATMUL_AT);
    if (dw)
        wgrad(c, dw, NULL, result(c));
    else if (is_integers(c, c->op->out))
        c->k->exact_bias_backward(c->team, result(c), at(c, dy), rows(c, dy), cols(c, dy),
                                  EXACT_WEIGHTS);
    else
        c->k->bias_backward(c->team, result(c), at(c, dy), rows(c, dy), cols(c, dy));
}

/* ---- norms ---- */

/* The norm of T rows of the residual stream. */
static Norm norm_of(const Call *c, int64_t T) {
    const Config *f = &c->m->shape.config;
    return (Norm){.kind = f->norm,
                  .T = T,
                  .C = c->m->w.C_n,
                  .ld = c->m->w.C,
                  .C_all = f->channels,
                  .part = c->m->exact ? exact_panel(f->channels) : 0,
                  .eps = (float)f->norm_eps,
                  .workspace = c->m->norm_work};
}

/* Mean and rstd lie one after the other. NULL: backward does not read them. */
static float *mean(const Call *c, int mean_rstd) {
    return at(c, mean_rstd);
}
static float *rstd(const Call *c, int mean_rstd) {
    return mean(c, mean_rstd) ? mean(c, mean_rstd) + cols(c, mean_rstd) : NULL;
}

static void norm_weights(const Call *c, Norm *n, const Op *op) {
    n->gamma = vector(c, op->in[2]);
    n->beta = op->n_in > 3 ? vector(c, op->in[3]) : NULL;
}

void run_norm_statistics(const Call *c) {
    const Op *norm = with(c, OP_NORM);
    Norm n = norm_of(c, rows(c, c->op->in[0]));
    if (!norm) {
        c->k->norm_statistics(c->team, &n, result(c), operand(c, 0));
        return;
    }
    norm_weights(c, &n, norm);
    c->k->norm_forward(c->team, &n, at(c, norm->out), mean(c, norm->in[1]), rstd(c, norm->in[1]),
                       operand(c, 0));
}

void run_norm_merge(const Call *c) {
    int out = c->op->out;
    Norm n = norm_of(c, cols(c, out));
    c->k->norm_merge(c->team, &n, mean(c, out), rstd(c, out), operand(c, 0));
}

void run_norm(const Call *c) {
    const Op *op = c->op;
    Norm n = norm_of(c, rows(c, op->out));
    norm_weights(c, &n, op);
    if (n.C < n.ld) clear_from(c, op->out, 0); // the kernel does not touch columns of padding
    c->k->norm_apply(c->team, &n, result(c), operand(c, 0), mean(c, op->in[1]), rstd(c, op->in[1]));
}

/* Gradients of gamma and beta. The same kernel computes dx if this rank has whole rows, else the
 * row sums that are reduced over y before run_norm_backward. */
void run_norm_weight_backward(const Call *c) {
    const Op *sums = with(c, OP_NORM_SUMS), *dx = with(c, OP_NORM_BACKWARD),
             *beta = c->op[1].kind == OP_NORM_WEIGHT_BACKWARD ? &c->op[1] : NULL;
    Act *dy = operand(c, 0), *x = operand(c, 1);
    float *mean_x = mean(c, c->op->in[2]), *rstd_x = rstd(c, c->op->in[2]);
    Norm n = norm_of(c, rows(c, c->op->in[1]));
    void *dbeta = beta ? at(c, beta->out) : NULL;
    n.gamma = vector(c, sums->in[3]);
    if (is_integers(c, c->op->out))
        c->k->exact_norm_weight_backward(c->team, &n, result(c), dbeta, dy, x, mean_x, rstd_x,
                                         EXACT_WEIGHTS);
    else
        n.dgamma = result(c), n.dbeta = dbeta;
    if (dx)
        c->k->norm_backward(c->team, &n, at(c, start_sum(c, dx->out)), dy, x, mean_x, rstd_x);
    else
        c->k->norm_backward_sums(c->team, &n, at(c, sums->out), dy, x, mean_x, rstd_x);
}

void run_norm_backward(const Call *c) {
    int out = start_sum(c, c->op->out), mean_rstd = c->op->in[2];
    Norm n = norm_of(c, rows(c, out));
    n.gamma = vector(c, c->op->in[3]);
    c->k->norm_backward_apply(c->team, &n, at(c, out), operand(c, 0), operand(c, 1),
                              mean(c, mean_rstd), rstd(c, mean_rstd), operand(c, 4));
}

/* ---- sums with the result of a collective ---- */

/* The sum of two integer tensors. Its memory is that of either operand. */
static void add_integers(const Call *c) {
    int out = c->op->out, a = c->op->in[0], b = c->op->in[1];
    bool in_b = at(c, out) == at(c, b);
    in_place(c, out, in_b ? b : a);
    c->k->exact_add(c->team, at(c, out), at(c, in_b ? a : b),
                    step_tensor_elements(c->p, tensor(c, out)));
}

/* y + residual stream + bias, of which one may be absent; then the norm of the sum, if fused. */
void run_residual(const Call *c) {
    if (is_integers(c, c->op->out)) {
        add_integers(c);
        return;
    }
    const Op *op = c->op, *bias = op->kind == OP_BIAS ? op : NULL,
             *add = bias ? with(c, OP_ADD) : op, *norm = with(c, OP_NORM);
    int y = bias ? bias->in[0] : op->in[1], out = add ? add->out : bias->out;
    int other = !add ? -1 : bias ? addend_of(c, add) : op->in[0];
    if (add && at(c, out) == at(c, other)) { // the sum has the memory of `other`: exchange the two
        int residual = other;
        other = y, y = residual;
    }
    in_place(c, out, y);
    const float *b = bias ? vector(c, bias->in[1]) : NULL;
    const Act *addend = other < 0 ? NULL : at(c, other);
    if (norm) {
        Norm n = norm_of(c, rows(c, out));
        int mean_rstd = norm->in[1];
        norm_weights(c, &n, norm);
        c->k->residual_norm(c->team, &n, at(c, out), addend, b, at(c, norm->out),
                            mean(c, mean_rstd), rstd(c, mean_rstd));
        return;
    }
    c->k->bias_residual(c->team, at(c, out), addend, b, rows(c, out), cols(c, out));
}

/* gradient += part. The first part of a step was received in the memory of the gradient: then there
 * is nothing to add. */
void run_accumulate(const Call *c) {
    int part = c->op->in[0], out = c->op->out;
    int64_t n = step_tensor_elements(c->p, tensor(c, out));
    if (!is_root(c) || at(c, part) == at(c, out)) return;
    if (is_integers(c, out))
        c->k->exact_add(c->team, at(c, out), at(c, part), n);
    else
        c->k->add_to(c->team, at(c, out), at(c, part), n);
}

void run_copy(const Call *c) {
    if (is_root(c)) copy_rows(c, c->op->out, c->op->in[0]);
}

/* ---- activations ---- */

void run_act(const Call *c) {
    int y = c->op->out;
    c->k->act_forward(c->team, c->m->shape.config.act, result(c), operand(c, 0),
                      rows(c, y) * cols(c, y));
}
void run_act_backward(const Call *c) {
    int dx = c->op->out;
    c->k->act_backward(c->team, c->m->shape.config.act, result(c), operand(c, 0), operand(c, 1),
                       rows(c, dx) * cols(c, dx));
}
void run_swiglu(const Call *c) {
    int y = c->op->out;
    c->k->swiglu_forward(c->team, result(c), operand(c, 0), rows(c, y), cols(c, y));
}
void run_swiglu_backward(const Call *c) {
    int dy = c->op->in[0];
    c->k->swiglu_backward(c->team, result(c), operand(c, 0), operand(c, 1), rows(c, dy),
                          cols(c, dy));
}

/* ---- attention ---- */

static Attention attention_of(const Call *c) {
    const Model *m = c->m;
    return (Attention){.B = m->tk.B,
                       .S = m->tk.S,
                       .H = m->w.H,
                       .Hkv = m->w.Hkv,
                       .D = m->w.D,
                       .bf16 = m->shape.bf16,
                       .workspace = m->attention_work};
}
/* Zeros the rows of padding behind the last sequence, which exist if the tokens do not divide by
 * the ranks along x. Backward and the search for values that are not finite read them. */
static void clear_rows(const Call *c, int t) {
    clear_from(c, t, c->m->tk.B * c->m->tk.S * cols(c, t));
}
void run_attention(const Call *c) {
    Attention a = attention_of(c);
    c->k->attention_forward(c->team, &a, result(c), at(c, c->op->out2), operand(c, 0));
    clear_rows(c, c->op->out);
    clear_rows(c, c->op->out2);
}
void run_attention_backward(const Call *c) {
    Attention a = attention_of(c);
    c->k->attention_backward(c->team, &a, result(c), operand(c, 0), operand(c, 1), operand(c, 2),
                             operand(c, 3));
    clear_rows(c, c->op->out);
}
/* Appends the keys and values of the new tokens to the cache, whose rows are positions. */
void run_cache(const Call *c) {
    const Tokens *tk = &c->m->tk;
    int64_t row = cols(c, c->op->out), wide = cols(c, c->op->in[0]);
    size_t elem_bytes = c->k->elem_bytes;
    c->k->copy(c->team, act_at(result(c), tk->first * row, elem_bytes), row,
               act_at(operand(c, 0), wide - row, elem_bytes), wide, tk->S, row, elem_bytes);
}
void run_attention_cache(const Call *c) {
    Attention a = attention_of(c);
    a.S = rows(c, c->op->in[1]);
    c->k->attention_decode(c->team, &a, result(c), operand(c, 0), operand(c, 1), c->m->tk.first);
}
static QkNorm qk_norm_of(const Call *c, int qkv) {
    const Model *m = c->m;
    return (QkNorm){.T = rows(c, qkv),
                    .H = m->w.H,
                    .Hkv = m->w.Hkv,
                    .D = m->w.D,
                    .eps = (float)m->shape.config.norm_eps,
                    .workspace = m->norm_work};
}
void run_qk_norm(const Call *c) {
    QkNorm q = qk_norm_of(c, c->op->out);
    q.gamma = vector(c, c->op->in[1]);
    c->k->qk_norm(c->team, &q, result(c), operand(c, 0));
}
void run_qk_norm_backward(const Call *c) {
    QkNorm q = qk_norm_of(c, c->op->out);
    q.gamma = vector(c, c->op->in[2]);
    c->k->qk_norm_backward(c->team, &q, result(c), operand(c, 0), operand(c, 1));
}
void run_qk_norm_weight_backward(const Call *c) {
    QkNorm q = qk_norm_of(c, c->op->in[0]);
    q.dgamma = result(c);
    if (is_integers(c, c->op->out))
        c->k->exact_qk_norm_weight_backward(c->team, &q, result(c), operand(c, 0), operand(c, 1),
                                            EXACT_WEIGHTS);
    else
        c->k->qk_norm_weight_backward(c->team, &q, operand(c, 0), operand(c, 1));
}
void run_rope(const Call *c) {
    const Model *m = c->m;
    Rope r = {.B = m->tk.B,
              .S = m->tk.S,
              .H = m->w.H,
              .Hkv = m->w.Hkv,
              .D = m->w.D,
              .first = m->tk.first,
              .table = m->rope_table};
    in_place(c, c->op->out, c->op->in[0]);
    c->k->rope(c->team, &r, result(c), c->op->kind == OP_ROPE ? +1 : -1);
}

/* ---- the ends of the model ---- */

static Embedding embedding_of(const Call *c, int x) {
    const Model *m = c->m;
    return (Embedding){.B = 1,
                       .S = rows(c, x),
                       .C = cols(c, x),
                       .V = m->w.V_n,
                       .token0 = m->w.V_0,
                       .tokens = m->inputs + tensor(c, x)->row,
                       .workspace = m->embedding_work};
}
static Embedding positions_of(const Call *c, int x) {
    const Tokens *tk = &c->m->tk;
    return (Embedding){.B = tk->T / tk->S, .S = tk->S, .C = cols(c, x), .first = tk->first};
}

void run_embedding(const Call *c) {
    const Op *position = with(c, OP_POSITION);
    int out = position ? position->out : c->op->out;
    Embedding e = embedding_of(c, out);
    e.wte = operand(c, 0);
    if (position) {
        e.B = c->m->tk.B, e.S = c->m->tk.S, e.first = c->m->tk.first;
        e.wpe = vector(c, position->in[1]);
    }
    c->k->embedding_forward(c->team, &e, at(c, out));
}
void run_position(const Call *c) {
    Embedding e = positions_of(c, c->op->out);
    e.wpe = vector(c, c->op->in[1]);
    in_place(c, c->op->out, c->op->in[0]);
    c->k->position_forward(c->team, &e, rows(c, c->op->out), c->m->tk.t0, result(c));
}
void run_embedding_backward(const Call *c) {
    int dx = c->op->in[0];
    Embedding e = embedding_of(c, dx);
    int out = start_sum(c, c->op->out);
    assert(e.S == c->m->tk.T); // m->order is an order of all tokens of a pass
    if (c->m->order) e.order = c->m->order + tensor(c, dx)->row;
    if (is_integers(c, out)) {
        c->k->exact_embedding_backward(c->team, &e, at(c, out), operand(c, 0), EXACT_WEIGHTS);
        return;
    }
    e.dwte = at(c, out);
    c->k->embedding_backward(c->team, &e, operand(c, 0));
}
void run_position_backward(const Call *c) {
    int dx = c->op->in[0];
    Embedding e = positions_of(c, dx);
    if (is_integers(c, c->op->out)) {
        c->k->exact_position_backward(c->team, &e, result(c), rows(c, dx), c->m->tk.t0,
                                      operand(c, 0), EXACT_WEIGHTS);
        return;
    }
    e.dwpe = result(c);
    c->k->position_backward(c->team, &e, rows(c, dx), c->m->tk.t0, operand(c, 0));
}

static Classifier classifier_of(const Call *c, int logits) {
    const Model *m = c->m;
    return (Classifier){.T = rows(c, logits),
                        .V = m->w.V_n,
                        .ld = stride(c, logits),
                        .targets = m->targets + tensor(c, logits)->row,
                        .scale = m->scale,
                        .backward = c->b->shape.training,
                        .first = m->w.V_0,
                        .part = m->exact ? exact_panel(m->shape.config.vocab) : m->w.V};
}

/* If this rank has the whole vocabulary, one kernel computes loss and gradient. Else the statistics
 * of this rank's block are computed, for run_loss and run_loss_backward. */
void run_loss_statistics(const Call *c) {
    const Op *loss = with(c, OP_LOSS), *backward = with(c, OP_LOSS_BACKWARD);
    int logits = c->op->in[0], out = backward ? backward->out : c->op->out;
    Classifier f = classifier_of(c, logits);
    if (loss) {
        if (backward) in_place(c, out, logits);
        c->k->classifier(c->team, &f, at(c, loss->out), at(c, backward ? out : logits));
        return;
    }
    in_place(c, out, logits);
    c->k->classifier_statistics(c->team, &f, at(c, c->op->out2), at(c, out));
}
void run_loss(const Call *c) {
    Classifier f = classifier_of(c, c->op->in[0]);
    c->k->classifier_merge(c->team, &f, result(c), at(c, c->op->out2), operand(c, 2),
                           div_up(c->m->shape.config.vocab, f.part));
}
void run_loss_backward(const Call *c) {
    Classifier f = classifier_of(c, c->op->in[0]);
    in_place(c, c->op->out, c->op->in[0]);
    c->k->classifier_gradient(c->team, &f, operand(c, 1), operand(c, 2), result(c));
}
