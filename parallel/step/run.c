#include "parallel/step/run.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/step/passes.h"
#include "parallel/step/run_call.h"

enum {
    TRAIN,   // forward and backward
    LAST,    // of the last micro-batch of a step, in which gradients become complete
    FORWARD, // forward alone; of OUTPUT_NEXT, that of a prompt
    NEXT,    // of OUTPUT_NEXT: that of a token after the prompt
    END,     // the end of a step
    CASTS,   // and its casts alone
    N_LISTS
};

struct StepRun {
    Bound list[N_LISTS];
    int clip;     // [operations of END] between the sums and the update
    void *totals; // on the host: temporaries of END
};

/* ---- matmuls ---- */

static void product_run(const Call *c, Product p) {
    Model *m = c->m;
    p.blocks = c->blocks;
    p.bf16 = m->shape.bf16;
    p.act = m->shape.config.act;
    p.workspace = m->product_work;
    m->k->product(m->team, &p);
}

/* A matmul of rows of tokens: of a chunk, those in each block. */
static void rows_run(const Call *c, Product p, int y) {
    int64_t stripes = step_tensor_stripes(c->p, tensor(c, y)), every = tensor(c, y)->every;
    size_t word = c->m->k->word;
    p.M /= stripes;
    for (int64_t i = 0; i < stripes; i++) {
        product_run(c, p);
        p.a = act_at(p.a, every * p.a_row, word), p.y = act_at(p.y, every * p.ldy, word);
        if (p.addend) p.addend = act_at(p.addend, every * p.ldy, word);
        if (p.aux) p.aux = act_at(p.aux, every * p.ldy, word);
    }
}

static void run_matmul(const Call *c) {
    const Op *op = c->op, *bias = with(c, OP_BIAS), *add = with(c, OP_ADD), *act = with(c, OP_ACT);
    int x = op->in[0], w = op->in[1], y = c->op[c->n - 1].out;
    Product p =
        product_xw(rows(c, x), real_cols(c, x), cols(c, op->out), at(c, x), stride(c, x), at(c, w));
    p.y = at(c, y);
    if (bias) p.bias = at(c, bias->in[1]);
    if (add) p.addend = at(c, addend_of(c, add));
    if (act) p.epilogue = EPI_ACT, p.aux = at(c, act->in[0]);
    rows_run(c, p, y);
}

static void run_matmul_bt(const Call *c) {
    const Op *op = c->op, *act = with(c, OP_ACT_BACKWARD);
    int dy = op->in[0], w = op->in[1], dx = c->op[c->n - 1].out;
    Product p = product_dx(rows(c, dy), real_cols(c, op->out), cols(c, dy), at(c, dy),
                           stride(c, dy), at(c, w));
    p.y = at(c, dx), p.ldy = stride(c, dx);
    if (act) p.epilogue = EPI_DACT, p.aux = at(c, act->in[1]);
    rows_run(c, p, dx);
}

static void wgrad(const Call *c, const Op *op, const Op *add, float *bias_grad) {
    int x = op->in[0], dy = op->in[1], dw = add ? add->out : op->out;
    Product p =
        product_dw(rows(c, x), real_cols(c, x), cols(c, dy), at(c, x), stride(c, x), at(c, dy));
    p.y = at(c, dw), p.bias_grad = bias_grad;
    if (add)
        p.addend = at(c, addend_of(c, add));
    else if (adds(c, dw))
        p.addend = p.y;
    product_run(c, p);
    if (!add) clear_vocabulary_padding(c, dw, p.M, p.N);
}
static void run_matmul_at(const Call *c) {
    wgrad(c, c->op, with(c, OP_ADD), NULL);
}

static void run_bias_backward(const Call *c) {
    int dy = c->op->in[0];
    const Op *dw = with(c, OP_MATMUL_AT);
    if (dw)
        wgrad(c, dw, NULL, at(c, c->op->out));
    else
        c->m->k->bias_backward(c->m->team, at(c, c->op->out), at(c, dy), rows(c, dy), cols(c, dy));
}

/* ---- norms ---- */

static void norm_weights(const Call *c, Norm *n, const Op *op) {
    n->gamma = vector(c, op->in[2]);
    n->beta = op->n_in > 3 ? vector(c, op->in[3]) : NULL;
}
/* Kernels of norms do not touch columns of padding. */
static void clear_padding(const Call *c, int t) {
    if (c->m->w.C_n < c->m->w.C) clear(c, t);
}

static void run_norm_statistics(const Call *c) {
    int x = c->op->in[0];
    const Op *norm = with(c, OP_NORM);
    Norm n = norm_of_rows(c, x);
    if (!norm) {
        c->m->k->norm_statistics(c->m->team, &n, at(c, c->op->out), at(c, x));
        return;
    }
    norm_weights(c, &n, norm);
    clear_padding(c, norm->out);
    c->m->k->norm_forward(c->m->team, &n, at(c, norm->out), mean(c, norm->in[1]),
                          deviation(c, norm->in[1]), at(c, x));
}

static void run_norm_merge(const Call *c) {
    int64_t counts[MAX_Y], C = c->m->w.C;
    int parts = c->op->in[0], Y = (int)rows(c, parts) / 2;
    Norm n = {.kind = c->m->shape.config.norm,
              .T = cols(c, parts),
              .C_all = c->m->shape.config.channels,
              .eps = (float)c->m->shape.config.norm_eps};
    for (int i = 0; i < Y; i++) {
        int64_t left = n.C_all - i * C;
        counts[i] = left < 0 ? 0 : left < C ? left : C;
    }
    n.C = c->m->w.C_n, n.ld = C;
    c->m->k->norm_merge(&n, mean(c, c->op->out), deviation(c, c->op->out), at(c, parts), counts, Y);
}

static void run_norm(const Call *c) {
    const Op *op = c->op;
    Norm n = norm_of_rows(c, op->in[0]);
    norm_weights(c, &n, op);
    clear_padding(c, op->out);
    c->m->k->norm_apply(c->m->team, &n, at(c, op->out), at(c, op->in[0]), mean(c, op->in[1]),
                        deviation(c, op->in[1]));
}

/* dx of whole rows or, where sums are still to be reduced, the sums; with the gradients of the
 * weights. */
static void run_norm_weight_backward(const Call *c) {
    const Op *sums = with(c, OP_NORM_SUMS), *dx = with(c, OP_NORM_BACKWARD), *add = with(c, OP_ADD),
             *beta = c->op[1].kind == OP_NORM_WEIGHT_BACKWARD ? &c->op[1] : NULL;
    int dy = c->op->in[0], x = c->op->in[1], moments = c->op->in[2];
    Norm n = norm_of_rows(c, x);
    n.gamma = vector(c, sums->in[3]);
    n.dgamma = at(c, c->op->out), n.dbeta = beta ? at(c, beta->out) : NULL;
    if (!dx) {
        c->m->k->norm_backward_sums(c->m->team, &n, at(c, sums->out), at(c, dy), at(c, x),
                                    mean(c, moments), deviation(c, moments));
        return;
    }
    int out = add ? add->out : dx->out;
    if (add)
        in_place(c, out, addend_of(c, add));
    else
        clear(c, out);
    c->m->k->norm_backward(c->m->team, &n, at(c, out), at(c, dy), at(c, x), mean(c, moments),
                           deviation(c, moments));
}

static void run_norm_backward(const Call *c) {
    const Op *op = c->op, *add = with(c, OP_ADD);
    int out = add ? add->out : op->out, x = op->in[1], moments = op->in[2];
    Norm n = norm_of_rows(c, x);
    n.gamma = vector(c, op->in[3]);
    if (add)
        in_place(c, out, addend_of(c, add));
    else
        clear(c, out);
    c->m->k->norm_backward_apply(c->m->team, &n, at(c, out), at(c, op->in[0]), at(c, x),
                                 mean(c, moments), deviation(c, moments), at(c, op->in[4]));
}

/* ---- what is added to a sum that a collective has completed ---- */

/* (y + the residual stream) + bias; then its norm. */
static void run_residual(const Call *c) {
    const Op *op = c->op, *bias = op->kind == OP_BIAS ? op : NULL,
             *add = bias ? with(c, OP_ADD) : op, *norm = with(c, OP_NORM);
    int y = bias ? bias->in[0] : op->in[1], out = add ? add->out : bias->out;
    int other = !add ? -1 : bias ? addend_of(c, add) : op->in[0];
    if (add && at(c, out) == at(c, other)) { // in the place of either
        int stream = other;
        other = y, y = stream;
    }
    in_place(c, out, y);
    const float *b = bias ? vector(c, bias->in[1]) : NULL;
    const Act *addend = other < 0 ? NULL : at(c, other);
    if (norm) {
        Norm n = norm_of_rows(c, out);
        int moments = norm->in[1];
        norm_weights(c, &n, norm);
        c->m->k->residual_norm(c->m->team, &n, at(c, out), addend, b, at(c, norm->out),
                               mean(c, moments), deviation(c, moments));
        return;
    }
    c->m->k->bias_residual(c->m->team, at(c, out), addend, b, rows(c, out), cols(c, out));
}

/* gradient += a part; where no gradient is there yet, the part has arrived in its place. */
static void run_accumulate(const Call *c) {
    int part = c->op->in[0], out = c->op->out;
    int64_t n = step_tensor_elements(c->p, tensor(c, out));
    if (!is_root(c) || at(c, part) == at(c, out)) return;
    if (tensor(c, out)->bytes == sizeof(int64_t))
        c->m->k->exact_add(c->m->team, at(c, out), at(c, part), n);
    else
        c->m->k->add_to(c->m->team, at(c, out), at(c, part), n);
}

/* Nothing runs: its gradients lie together. */
static void run_bucket(const Call *c) {
    const char *end = at(c, c->op->out);
    for (int k = 0; k < c->op->n_in; k++) {
        int t = c->op->in[k];
        assert((const char *)at(c, t) == end);
        end +=
            (step_tensor_bytes(c->p, tensor(c, t)) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    }
    assert(end == (const char *)at(c, c->op->out) + step_tensor_bytes(c->p, tensor(c, c->op->out)));
    (void)end;
}

static void run_copy(const Call *c) {
    if (is_root(c)) copy_rows(c, c->op->out, c->op->in[0]);
}

/* ---- activations ---- */

static void run_act(const Call *c) {
    int x = c->op->in[0];
    c->m->k->act_forward(c->m->team, c->m->shape.config.act, at(c, c->op->out), at(c, x),
                         rows(c, x) * cols(c, x));
}
static void run_act_backward(const Call *c) {
    const Op *op = c->op;
    c->m->k->act_backward(c->m->team, c->m->shape.config.act, at(c, op->out), at(c, op->in[0]),
                          at(c, op->in[1]), rows(c, op->out) * cols(c, op->out));
}
static void run_swiglu(const Call *c) {
    int y = c->op->out;
    c->m->k->swiglu_forward(c->m->team, at(c, y), at(c, c->op->in[0]), rows(c, y), cols(c, y));
}
static void run_swiglu_backward(const Call *c) {
    const Op *op = c->op;
    int dy = op->in[0];
    c->m->k->swiglu_backward(c->m->team, at(c, op->out), at(c, dy), at(c, op->in[1]), rows(c, dy),
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
/* Rows of padding follow the last sequence where tokens do not divide by the ranks along x. */
static void clear_rows(const Call *c, int t) {
    int64_t n = c->m->tk.B * c->m->tk.S, padding = rows(c, t) - n;
    size_t word = c->m->k->word;
    if (padding > 0)
        c->m->k->zero(c->m->team, act_at(at(c, t), n * cols(c, t), word),
                      (size_t)(padding * cols(c, t)) * word);
}
static void run_attention(const Call *c) {
    const Op *op = c->op;
    Attention a = attention_of(c);
    c->m->k->attention_forward(c->m->team, &a, at(c, op->out), at(c, op->also), at(c, op->in[0]));
    clear_rows(c, op->out);
}
static void run_attention_backward(const Call *c) {
    const Op *op = c->op;
    Attention a = attention_of(c);
    c->m->k->attention_backward(c->m->team, &a, at(c, op->out), at(c, op->in[0]), at(c, op->in[1]),
                                at(c, op->in[2]), at(c, op->in[3]));
    clear_rows(c, op->out);
}
/* Rows of the cache are the positions of a sequence. */
static void run_cache(const Call *c) {
    const Tokens *tk = &c->m->tk;
    int qkv = c->op->in[0], cache = c->op->out;
    int64_t row = cols(c, cache), wide = cols(c, qkv);
    size_t word = c->m->k->word;
    c->m->k->copy(c->m->team, act_at(at(c, cache), tk->first * row, word), row,
                  act_at(at(c, qkv), wide - row, word), wide, tk->S, row, word);
}
static void run_attention_cache(const Call *c) {
    const Op *op = c->op;
    Attention a = attention_of(c);
    a.S = rows(c, op->in[1]);
    c->m->k->attention_decode(c->m->team, &a, at(c, op->out), at(c, op->in[0]), at(c, op->in[1]),
                              c->m->tk.first);
    clear_rows(c, op->out);
}
static void rotate_rows(const Call *c, int direction) {
    const Model *m = c->m;
    Rope r = {.B = m->tk.B,
              .S = m->tk.S,
              .H = m->w.H,
              .Hkv = m->w.Hkv,
              .D = m->w.D,
              .first = m->tk.first,
              .table = m->rope_table};
    in_place(c, c->op->out, c->op->in[0]);
    m->k->rope(m->team, &r, at(c, c->op->out), direction);
}
static void run_rope(const Call *c) {
    rotate_rows(c, +1);
}
static void run_rope_backward(const Call *c) {
    rotate_rows(c, -1);
}

/* ---- the ends of the model ---- */

static void run_embedding(const Call *c) {
    const Op *position = with(c, OP_POSITION);
    int out = position ? position->out : c->op->out;
    Embedding e = embedding_of(c, out);
    e.wte = at(c, c->op->in[0]);
    if (position) {
        e.B = c->m->tk.B, e.S = c->m->tk.S, e.first = c->m->tk.first;
        e.wpe = vector(c, position->in[1]);
    }
    c->m->k->embedding_forward(c->m->team, &e, at(c, out));
}
static void run_position(const Call *c) {
    int out = c->op->out;
    Embedding e = positions_of(c, out);
    e.wpe = vector(c, c->op->in[1]);
    in_place(c, out, c->op->in[0]);
    c->m->k->position_forward(c->m->team, &e, rows(c, out), c->m->tk.t0, at(c, out));
}
static void run_embedding_backward(const Call *c) {
    int dx = c->op->in[0];
    Embedding e = embedding_of(c, dx);
    e.dwte = at(c, start_sum(c));
    c->m->k->embedding_backward(c->m->team, &e, at(c, dx));
}
static void run_position_backward(const Call *c) {
    int dx = c->op->in[0];
    Embedding e = positions_of(c, dx);
    e.dwpe = at(c, c->op->out);
    c->m->k->position_backward(c->m->team, &e, rows(c, dx), c->m->tk.t0, at(c, dx));
}

/* Forward and backward together, where the vocabulary is whole. */
static void run_loss_statistics(const Call *c) {
    const Op *loss = with(c, OP_LOSS), *backward = with(c, OP_LOSS_BACKWARD);
    int logits = c->op->in[0], out = backward ? backward->out : c->op->out;
    Classifier f = classifier_of(c, logits);
    if (loss) {
        if (backward) in_place(c, out, logits);
        c->m->k->classifier(c->m->team, &f, at(c, loss->out), at(c, backward ? out : logits));
        return;
    }
    in_place(c, out, logits);
    c->m->k->classifier_statistics(c->m->team, &f, at(c, c->op->also), at(c, out));
}
static void run_loss(const Call *c) {
    const Op *op = c->op;
    Classifier f = classifier_of(c, op->in[0]);
    c->m->k->classifier_merge(&f, at(c, op->out), at(c, op->also), at(c, op->in[2]),
                              (int)rows(c, op->in[2]) / 3);
}
static void run_loss_backward(const Call *c) {
    const Op *op = c->op;
    Classifier f = classifier_of(c, op->in[0]);
    in_place(c, op->out, op->in[0]);
    c->m->k->classifier_gradient(c->m->team, &f, at(c, op->in[1]), at(c, op->in[2]),
                                 at(c, op->out));
}

/* ---- collectives ---- */

static CollType type_of(const StepTensor *t) {
    if (t->bytes == 8) return t->is_double ? COLL_F64 : COLL_I64;
    return t->bytes == 2 ? COLL_BF16 : COLL_F32;
}

/* by_blocks: in the kernel of a matmul. */
static void start_as(const Call *c, bool by_blocks) {
    const Op *op = c->op;
    int src = op->in[0], dst = op->out, block = op->kind == OP_REDUCE_SCATTER ? dst : src;
    const StepTensor *t = tensor(c, block);
    int64_t every = tensor(c, block == src ? dst : src)->every;
    bool shift = op->kind == OP_SHIFT, flat = shift || op->dim != 1;
    bool made_here = tensor(c, src)->storage != STORAGE_GRADIENT; // whose padding is zero already
    if (t->n_block < N_AXES && op->kind == OP_REDUCE_SCATTER && made_here) { // of flat parts
        StepTensor whole = *tensor(c, src);
        int64_t all = step_tensor_elements(c->p, &whole), n = step_tensor_filled(c->p, &whole);
        if (all > n)
            c->m->k->zero(c->m->team, (char *)at(c, src) + n * t->bytes,
                          (size_t)((all - n) * t->bytes));
    }
    const void *from = at(c, src);
    if (op->kind == OP_BROADCAST) { // a panel's rows may be apart where it comes from
        if (is_root(c)) copy_rows(c, dst, src);
        from = at(c, dst);
    }
    c->b->ticket[dst] =
        coll_start(op->copies ? c->m->grid->kv : grid_comm(c->m->grid, op->axes),
                   &(CollCall){.op = op_info(op->kind)->op,
                               .type = type_of(t),
                               .reduction = t->largest ? COLL_MAX : COLL_SUM,
                               .dim = flat ? 0 : 1,
                               .rows = flat ? 1 : rows(c, block),
                               .cols = flat ? step_tensor_elements(c->p, t) : cols(c, block),
                               .root = shift          ? op->dim
                                       : op->root < 0 ? 0
                                                      : op->root,
                               .stride = flat && op->dim == 0 ? every * cols(c, block) : 0,
                               .src = from,
                               .dst = op->kind == OP_REDUCE && !is_root(c) ? NULL : at(c, dst),
                               .staging = c->b->staging,
                               .by_blocks = by_blocks,
                               .what = tensor(c, dst)->what,
                               .file = __FILE__,
                               .line = __LINE__});
}
static void start(const Call *c) {
    start_as(c, false);
}
static void end(const Call *c, int result) {
    coll_wait(c->b->ticket[result]);
    c->b->ticket[result] = (Ticket){0};
}
static void run_wait(const Call *c) {
    end(c, c->op->in[0]);
}

/* ---- the table, and the loop ---- */

static Kernel *const kernels[N_OP_KINDS] = {
    [OP_EMBEDDING] = run_embedding,
    [OP_POSITION] = run_position,
    [OP_NORM_STATISTICS] = run_norm_statistics,
    [OP_NORM_MERGE] = run_norm_merge,
    [OP_NORM] = run_norm,
    [OP_MATMUL] = run_matmul,
    [OP_MATMUL_BT] = run_matmul_bt,
    [OP_MATMUL_AT] = run_matmul_at,
    [OP_BIAS] = run_residual,
    [OP_ROPE] = run_rope,
    [OP_ATTENTION] = run_attention,
    [OP_CACHE] = run_cache,
    [OP_ATTENTION_CACHE] = run_attention_cache,
    [OP_ACT] = run_act,
    [OP_SWIGLU] = run_swiglu,
    [OP_ADD] = run_residual,
    [OP_LOSS_STATISTICS] = run_loss_statistics,
    [OP_LOSS] = run_loss,
    [OP_EMBEDDING_BACKWARD] = run_embedding_backward,
    [OP_POSITION_BACKWARD] = run_position_backward,
    [OP_NORM_BACKWARD] = run_norm_backward,
    [OP_NORM_WEIGHT_BACKWARD] = run_norm_weight_backward,
    [OP_BIAS_BACKWARD] = run_bias_backward,
    [OP_ROPE_BACKWARD] = run_rope_backward,
    [OP_ATTENTION_BACKWARD] = run_attention_backward,
    [OP_ACT_BACKWARD] = run_act_backward,
    [OP_SWIGLU_BACKWARD] = run_swiglu_backward,
    [OP_LOSS_BACKWARD] = run_loss_backward,
    [OP_ACCUMULATE] = run_accumulate,
    [OP_COPY] = run_copy,
    [OP_BUCKET] = run_bucket,
    [OP_PACK_COPIES] = run_pack_copies,
    [OP_UNPACK_COPIES] = run_unpack_copies,
    [OP_LOSS_TOTAL] = run_loss_total,
    [OP_SQUARES] = run_squares,
    [OP_CLIP] = run_clip,
    [OP_ADAMW] = run_adamw,
    [OP_CAST] = run_cast,
    [OP_ALL_GATHER] = start,
    [OP_REDUCE_SCATTER] = start,
    [OP_ALL_REDUCE] = start,
    [OP_BROADCAST] = start,
    [OP_REDUCE] = start,
    [OP_SHIFT] = start,
    [OP_WAIT] = run_wait,
};

static Bound *program_of(StepRun *r, const Model *m, bool backward) {
    bool last = r->list[LAST].made && (m->left == 1 || !r->list[TRAIN].made);
    bool next = !backward && r->list[NEXT].made && m->tk.S == 1;
    return &r->list[next ? NEXT : !backward ? FORWARD : last ? LAST : TRAIN];
}

/* What a kernel adds to lies where it adds. */
static void place_sums(const Call *c) {
    for (int i = 0; i < c->n; i++)
        if (c->op[i].adds) in_place(c, c->op[i].out, c->op[i].in[c->op[i].n_in - 1]);
}

static Act *block_begin(void *ticket, int block) {
    return coll_block(*(Ticket *)ticket, block);
}
static void block_done(void *ticket, int block) {
    coll_block_done(*(Ticket *)ticket, block);
}

static void run_kernel(const Call *c) {
    const StepHook *hook = c->m->hook;
    Kernel *exact_kernel = run_exact_kernel(c);
    bool timed = hook && hook->end && c->op->kind != OP_WAIT && c->op->kind != OP_BUCKET;
    if (timed) hook->begin(hook->ctx);
    place_sums(c);
    (exact_kernel ? exact_kernel : kernels[c->op->kind])(c);
    if (timed) hook->end(hook->ctx, c->p, c->op, c->n);
}

/* The part of a matmul's operands or result that is in blocks. */
static BlocksOf blocks_of(const Op *matmul, const Op *op) {
    if (op->kind == OP_REDUCE_SCATTER) return BLOCKS_OF_Y;
    if (matmul->kind != OP_MATMUL_AT) return BLOCKS_OF_A;
    return matmul->in[0] == op->out ? BLOCKS_OF_AT : BLOCKS_OF_B;
}

/* Matmuls with their collective `op`: the one that scatters its result, or those that read what is
 * gathered. They begin with the rows that are here, or end with those that stay here. */
static void run_fused(const Call *c, const Op *op) {
    bool gather = op == c->op;
    int64_t here = mesh_block(c->p->mesh, op->axes);
    Call of = *c, kernel = *c;
    of.op = op, of.n = 1;
    start_as(&of, true);
    RowBlocks blocks = {.rows = rows(c, gather ? op->in[0] : op->out),
                        .n = (int)mesh_blocks(c->p->mesh, op->axes),
                        .begin = block_begin,
                        .ctx = &c->b->ticket[op->out]};
    blocks.first = (int)(here + !gather) % blocks.n;
    kernel.blocks = &blocks;
    for (int i = gather, n = c->n - !gather, lead = (int)(c->op - c->p->op); i < n; i += kernel.n) {
        kernel.op = &c->op[i], kernel.n = 1;
        while (i + kernel.n < n && !op_leads(c->p, lead + i + kernel.n)) kernel.n++;
        blocks.of = blocks_of(kernel.op, op);
        blocks.done = i + kernel.n == n ? block_done : NULL;
        run_kernel(&kernel);
    }
    if (!c->b->waits[op - c->p->op]) end(c, op->out);
}

/* The collective of a kernel that has one; NULL. */
static const Op *collective_of(const Call *c) {
    const Op *first = c->op, *last = &c->op[c->n - 1];
    if (c->n == 1) return NULL;
    return op_info(first->kind)->collective ? first : op_info(last->kind)->collective ? last : NULL;
}

/* A kernel; or the start or the end of a collective, which have a watch of their own
 * (coll_watch.h). */
static void run_op(const Call *c) {
    const Op *fused = collective_of(c);
    if (fused)
        run_fused(c, fused);
    else if (op_info(c->op->kind)->collective)
        start(c);
    else
        run_kernel(c);
}

/* Is result t of operation i overwritten by a later one of the kernel, or in the memory of the
 * ranks that sum it, or not there yet? */
static bool in_registers(const Call *c, int i, int t) {
    const Op *fused = collective_of(c);
    if (!at(c, t) || (fused && t == fused->in[0])) return true;
    if (fused && t == fused->out && c->b->waits[fused - c->p->op]) return true;
    for (int k = i + 1; k < c->n; k++)
        if (at(c, c->op[k].out) == at(c, t)) return true;
    return false;
}

/* Shows the hook what a kernel or a collective has left in memory. */
static void look(const Call *c) {
    const StepHook *hook = c->m->hook;
    for (int i = 0; i < c->n; i++) {
        const int results[] = {c->op[i].out, c->op[i].also};
        for (int k = 0; k < 2; k++) {
            int t = results[k];
            if (t < 0 || in_registers(c, i, t)) continue;
            bool here = is_root(c) || c->op->kind == OP_BROADCAST;
            hook->look(hook->ctx, c->m, &(StepResult){c->p, &c->op[i], t, here ? at(c, t) : NULL});
        }
    }
}

/* The collective that operation i, a wait, ends. */
static const Op *waited_for(const Program *p, int i) {
    int k = i - 1;
    while (p->op[k].out != p->op[i].in[0]) k--;
    return &p->op[k];
}

/* Operations [begin, end). */
static void run_all(Bound *b, Model *m, int begin, int end_of_list) {
    Call c = {.m = m, .b = b, .p = &b->p, .at = m->grads_fresh ? b->at : b->again};
    for (int i = begin; i < end_of_list; i += c.n) {
        c.op = &b->p.op[i], c.n = 1;
        while (i + c.n < b->p.n_ops && c.op[c.n].fused) c.n++;
        run_op(&c);
        if (op_info(c.op->kind)->collective && c.n == 1 && !b->waits[i]) end(&c, c.op->out);
        if (m->hook && m->hook->look && (c.n > 1 || !b->waits[i])) {
            Call made = c;
            if (c.op->kind == OP_WAIT) made.op = waited_for(&b->p, i);
            look(&made);
        }
    }
}

void step_run(StepRun *r, Model *m, bool backward) {
    Bound *b = program_of(r, m, backward);
    run_all(b, m, 0, b->p.n_ops);
    if (backward) m->grads_fresh = false;
}

Totals *step_run_sums(StepRun *r, Model *m) {
    Bound *b = &r->list[END];
    run_all(b, m, 0, r->clip);
    return (Totals *)(void *)b->at[b->p.result];
}
void step_run_update(StepRun *r, Model *m) {
    Bound *b = &r->list[END];
    run_all(b, m, r->clip, b->p.n_ops);
}
void step_run_casts(StepRun *r, Model *m) {
    Bound *b = &r->list[CASTS];
    if (b->made) run_all(b, m, 0, b->p.n_ops);
}

int64_t step_run_kept(const StepRun *r) {
    return step_run_micro_batch(r)->kept;
}

float *step_run_losses(StepRun *r, const Model *m, bool backward) {
    const Bound *b = program_of(r, m, backward);
    return (float *)(void *)b->at[b->p.result];
}

const Act *step_run_logits(StepRun *r, const Model *m, int64_t row) {
    const Bound *b = program_of(r, m, false);
    const StepTensor *logits = &b->p.tensor[b->p.result];
    return act_at(b->at[b->p.result], row * step_tensor_local(&b->p, logits, 1), m->k->word);
}

const Program *step_run_micro_batch(const StepRun *r) {
    return &r->list[r->list[TRAIN].made ? TRAIN : LAST].p;
}
const Program *step_run_end(const StepRun *r) {
    return &r->list[END].p;
}
const Program *step_run_last(const StepRun *r) {
    return &r->list[r->list[LAST].made ? LAST : TRAIN].p;
}

/* ---- programs and addresses ---- */

/* Which collectives have an end of their own in the list. */
static void find_waits(Bound *b) {
    const Program *p = &b->p;
    bool *waits = mem_calloc((size_t)p->n_tensors, sizeof *waits);
    for (int i = 0; i < p->n_ops; i++)
        if (p->op[i].kind == OP_WAIT) waits[p->op[i].in[0]] = true;
    b->waits = mem_calloc((size_t)p->n_ops, sizeof *b->waits);
    for (int i = 0; i < p->n_ops; i++)
        b->waits[i] = p->op[i].kind != OP_WAIT && waits[p->op[i].out];
    mem_free(waits);
}

/* Bytes of the largest whole that a collective sends in blocks that are columns, or rows apart. */
static size_t staging_bytes(const Program *p) {
    size_t most = 0;
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->op[i];
        const StepTensor *whole = &p->tensor[op->kind == OP_ALL_GATHER ? op->out : op->in[0]];
        size_t bytes = (size_t)step_tensor_bytes(p, whole);
        if (op_info(op->kind)->collective && (op->dim == 1 || whole->every) && bytes > most)
            most = bytes;
    }
    return most;
}

/* Bytes of one layer's cache. */
static size_t cache_bytes(const Program *p, const StepTensor *t) {
    return ((size_t)step_tensor_bytes(p, t) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}
static size_t caches_bytes(const Program *p) {
    size_t bytes = 0;
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensor[t].storage == STORAGE_CACHE) bytes += cache_bytes(p, &p->tensor[t]);
    return bytes;
}

/* Of a list that has all its passes, of b->shape. */
static void plan_list(Bound *b, Program p, const Kernels *k) {
    b->p = p;
    b->backward = b->shape.training;
    b->bytes = b->shape.unplaced ? program_in_use(&b->p) : program_allocate(&b->p);
    if (k->memory) b->staging.n_bytes = staging_bytes(&b->p);
    size_t n = (size_t)b->p.n_tensors;
    b->at = mem_calloc(2 * n, sizeof *b->at), b->again = b->at + n;
    b->tensor = mem_calloc(n, sizeof *b->tensor);
    b->ticket = mem_calloc(n, sizeof *b->ticket);
    find_waits(b);
    b->made = true;
}

static void plan(Bound *b, const ModelShape *shape, const Kernels *k) {
    b->shape = *shape;
    plan_list(b, program_passes(&b->shape, PASS_SCHEDULE, k), k);
}

/* The list of a micro-batch, and that of the last one, where ranks have sums; of a step of one
 * micro-batch that alone. */
static void plan_training(StepRun *r, const ModelShape *shape, const Kernels *k, bool sums) {
    Bound *b = &r->list[TRAIN], *last = &r->list[LAST];
    b->shape = last->shape = *shape;
    last->shape.sums = true;
    if (sums && shape->one_micro_batch) {
        plan_list(last, program_passes(&last->shape, PASS_SCHEDULE, k), k);
        return;
    }
    Program p = program_passes(&b->shape, PASS_HALVES, k);
    if (sums) plan_list(last, program_micro_batch(program_copy(&p, &last->shape)), k);
    plan_list(b, program_micro_batch(p), k);
}

void step_run_plan_end(StepRun *r, const Kernels *k) {
    Bound *b = &r->list[END];
    b->shape = r->list[r->list[LAST].made ? LAST : TRAIN].shape;
    b->shape.unplaced = false; // a host's totals are memory in any case
    plan_list(b, program_end_passes(&b->shape, PASS_SCHEDULE, k), k);
    while (b->p.op[r->clip].kind != OP_CLIP) r->clip++;
    if (!k->memory) r->totals = mem_calloc(b->bytes, 1);
}

static void plan_casts(Bound *b, const ModelShape *shape, const Kernels *k) {
    b->shape = *shape;
    plan_list(b, program_casts_passes(&b->shape, PASS_SCHEDULE, k), k);
}

StepRun *step_run_plan(const Model *m, PassOutput output) {
    StepRun *r = mem_calloc(1, sizeof *r);
    ModelShape s = m->shape;
    s.B = m->B;
    s.overlap.halves = m->halves > 1 && output == OUTPUT_LOSSES;
    s.output = output;
    s.training &= output == OUTPUT_LOSSES;
    if (s.training) plan_training(r, &s, m->k, m->grid->mesh.p > 1 || m->exact);
    if (s.step_alone) return r;
    if (s.training) step_run_plan_end(r, m->k);
    if (has_bf16_copies(m) && output == OUTPUT_LOSSES) plan_casts(&r->list[CASTS], &s, m->k);
    s.training = false;
    plan(&r->list[FORWARD], &s, m->k);
    s.S = 1;
    if (output == OUTPUT_NEXT) plan(&r->list[NEXT], &s, m->k);
    return r;
}

static void bound_free(Bound *b) {
    if (!b->made) return;
    program_free(&b->p);
    mem_free(b->at), mem_free(b->tensor), mem_free(b->ticket), mem_free(b->waits);
}
void step_run_free(StepRun *r) {
    for (int i = 0; r && i < N_LISTS; i++) bound_free(&r->list[i]);
    if (r) mem_free(r->totals);
    mem_free(r);
}

const Tensor *step_run_row(const Model *m, const StepTensor *t) {
    assert(t->parameter >= 0 && m->tensors.t[t->parameter].layer == t->layer);
    return &m->tensors.t[t->parameter];
}

/* What is stored of a tensor; *part: which shard of it. */
static char *stored(const Tensor *row, Storage storage, TensorPart *part) {
    static const TensorPart parts[N_STORAGES] = {[STORAGE_PARAMETER] = PART_CAST,
                                                 [STORAGE_GRADIENT] = PART_GRAD,
                                                 [STORAGE_MASTER] = PART_PARAM,
                                                 [STORAGE_MOMENT] = PART_MOMENTS,
                                                 [STORAGE_SECOND_MOMENT] = PART_MOMENTS};
    *part = parts[storage];
    return storage == STORAGE_PARAMETER  ? row->cast
           : storage == STORAGE_GRADIENT ? (char *)row->grad
           : storage == STORAGE_MASTER   ? (char *)row->param
           : storage == STORAGE_MOMENT   ? (char *)row->m
                                         : (char *)row->v;
}

/* Where a tensor lies in what is stored: its flat shard may be one of several that are here. */
static char *in_storage(const Model *m, const Program *p, const StepTensor *x, const Tensor *row) {
    TensorPart part;
    char *base = stored(row, x->storage, &part);
    Axes flat = axes_none();
    if (x->storage == STORAGE_GRADIENT && x->bytes == 8)
        base = (char *)m->grad_64[row - m->tensors.t];
    for (int i = x->n_block; i < x->dist.shard[0].n; i++)
        flat.axis[flat.n++] = x->dist.shard[0].axis[i];
    int64_t n = step_tensor_elements(p, x), begin = mesh_block(p->mesh, flat) * n;
    assert(begin >= row->begin[part] && begin + n <= row->end[part]);
    return base + (begin - row->begin[part]) * x->bytes;
}

static void bind(Bound *b, const Model *m) {
    const Program *p = &b->p;
    for (int t = 0; t < p->n_tensors; t++) {
        const StepTensor *x = &p->tensor[t], *own = x->gradient < 0 ? x : &p->tensor[x->gradient];
        char *at = x->offset < 0 ? NULL : b->base + x->offset;
        if (x->storage == STORAGE_CACHE) {
            at = b->cache + (size_t)x->layer * cache_bytes(p, x);
        } else if (own->storage != STORAGE_TEMPORARY) {
            b->tensor[t] = step_run_row(m, own);
            at = in_storage(m, p, own, b->tensor[t]);
            if (own != x) at += step_tensor_begin(p, x) * x->bytes;
        } else if (x->whole >= 0 && x->offset < 0 && b->at[x->whole]) { // of a parameter
            at = b->at[x->whole] + step_tensor_begin(p, x) * x->bytes;
        }
        b->at[t] = b->again[t] = at;
    }
    // the first part of a gradient arrives where the gradient is stored
    for (int i = 0; i < p->n_ops; i++)
        if (p->op[i].kind == OP_ACCUMULATE) b->at[p->op[i].in[0]] = b->at[p->op[i].out];
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

void step_run_bind(StepRun *r, Model *m, Arena *a) {
    size_t bytes = 0, staging = 0, caches = 0;
    for (int i = 0; i < N_LISTS; i++) {
        if (!r->list[i].made || (i == END && r->totals)) continue;
        bytes = larger(bytes, r->list[i].bytes);
        staging = larger(staging, r->list[i].staging.n_bytes);
        caches = larger(caches, caches_bytes(&r->list[i].p));
    }
    char *base = arena_take(a, bytes), *cache = caches ? arena_take(a, caches) : NULL;
    void *stage = staging ? arena_take(a, staging) : NULL;
    for (int i = 0; base && i < N_LISTS; i++) {
        Bound *b = &r->list[i];
        if (!b->made) continue;
        b->base = i == END && r->totals ? r->totals : base, b->cache = cache, b->staging.p = stage;
        bind(b, m);
    }
}

void step_run_tokens(StepRun *r, Model *m, int64_t n, int64_t first) {
    Bound *b = &r->list[FORWARD];
    m->tk = tokens_of(m, 1, n, first);
    if (n == 1 || n == b->shape.S) return;
    Program before = b->p;
    b->shape.S = n;
    b->p = program_passes(&b->shape, PASS_SCHEDULE, m->k);
    program_allocate_like(&b->p, &before);
    program_free(&before);
    bind(b, m);
}
