#include "parallel/step/block.h"
#include "parallel/comm/coll_call.h"

#include "parallel/step/exact.h"
#include "parallel/step/probe.h"

static float *param(Model *m, int i) {
    return i < 0 ? NULL : m->tensors.t[i].param;
}
static float *grad(Model *m, int i) {
    return i < 0 ? NULL : m->tensors.t[i].grad;
}

static Norm norm_args(Model *m, int w, int b, int64_t T) {
    const Config *c = &m->shape.config;
    return (Norm){.kind = c->norm,
                  .T = T,
                  .C = m->w.C_n,
                  .ld = m->w.C,
                  .C_all = c->channels,
                  .eps = (float)c->norm_eps,
                  .gamma = param(m, w),
                  .beta = param(m, b),
                  .dgamma = grad(m, w),
                  .dbeta = grad(m, b),
                  .workspace = m->norm_work};
}

/* Features are cut over y: every rank's statistics of its part are gathered and merged, in the same
 * order everywhere. */
void norm_of(Model *m, int w, int b, const Tokens *tk, Act *y, float *mean, float *rstd,
             const Act *x) {
    Norm n = norm_args(m, w, b, tk->T_x);
    Comm *over = grid_comm(m->grid, axes_of("y"));
    if (m->exact) {
        exact_norm(m, &n, y, mean, rstd, x);
        return;
    }
    if (!over) {
        m->k->norm_forward(m->team, &n, y, mean, rstd, x);
        return;
    }
    int64_t counts[MAX_Y];
    int Y = comm_size(over);
    for (int i = 0; i < Y; i++) {
        int64_t left = n.C_all - i * m->w.C;
        counts[i] = left < 0 ? 0 : left < m->w.C ? left : m->w.C;
    }
    m->k->norm_statistics(m->team, &n, m->work.stats, x);
    coll_gather(over, COLL_F32, m->work.stats, 2 * tk->T_x, m->work.parts, "statistics of norm");
    m->k->norm_merge(&n, mean, rstd, m->work.parts, counts, Y);
    m->k->norm_apply(m->team, &n, y, x, mean, rstd);
}

void norm_of_backward(Model *m, int w, int b, const Tokens *tk, Act *dx, const Act *dy,
                      const Act *x, const float *mean, const float *rstd) {
    Norm n = norm_args(m, w, b, tk->T_x);
    Comm *over = grid_comm(m->grid, axes_of("y"));
    if (m->exact) {
        exact_norm_backward(m, &n, w, b, dx, dy, x, mean, rstd);
        return;
    }
    if (!over) {
        m->k->norm_backward(m->team, &n, dx, dy, x, mean, rstd);
        return;
    }
    m->k->norm_backward_sums(m->team, &n, m->work.stats, dy, x, mean, rstd);
    coll_sum(over, COLL_F32, m->work.stats, 2 * tk->T_x, "sums of dnorm");
    m->k->norm_backward_apply(m->team, &n, dx, dy, x, mean, rstd, m->work.stats);
}

static Attention attention_args(Model *m, int64_t B, int64_t S) {
    return (Attention){.B = B,
                       .S = S,
                       .H = m->w.H,
                       .Hkv = m->w.Hkv,
                       .D = m->w.D,
                       .bf16 = m->shape.bf16,
                       .workspace = m->attention_work};
}

static void rotate(Model *m, Act *qkv, const Tokens *tk, int direction) {
    if (m->shape.config.pos != POS_ROPE) return;
    Rope r = {.B = tk->B,
              .S = tk->S,
              .H = m->w.H,
              .Hkv = m->w.Hkv,
              .D = m->w.D,
              .first = tk->first,
              .table = m->rope_table};
    m->k->rope(m->team, &r, qkv, direction);
}

void probe_norm(Model *m, const char *name, int l, const Act *at, bool backward) {
    if (!m->probing) return;
    Cause cause = {grid_comm(m->grid, axes_of("y")), COLL_ALL_GATHER, "statistics of norm"};
    if (backward) cause.op = COLL_ALL_REDUCE, cause.what = "sums of dnorm";
    probe(m, &(Probe){.name = name, .layer = l, .at = at, .side = SIDE_STREAM, .cause = {cause}});
}
static void probe_middle(Model *m, const char *name, int l, const Act *at, SideKind side) {
    probe(m, &(Probe){.name = name, .layer = l, .at = at, .rows = ROWS_MIDDLE, .side = side});
}

/* A stretch of the residual stream, and the norm that reads it. */
typedef struct Stream {
    const char *name; // of h, for those who look
    int layer, w, b;
    Act *x, *h;
    float *mean, *rstd;
} Stream;

/* What block l reads; behind the last block, the head. */
static Stream stream_into(const Model *m, int l) {
    if (l == m->shape.config.layers)
        return (Stream){.name = "h",
                        .layer = -1,
                        .w = m->lnf_w,
                        .b = m->lnf_b,
                        .x = m->x_last,
                        .h = m->h_last,
                        .mean = m->mean_last,
                        .rstd = m->rstd_last};
    const BlockTensors *w = &m->blocks[l];
    const BlockActs *a = &m->acts[l];
    return (Stream){"h1", l, w->ln1_w, w->ln1_b, a->x, a->h1, a->mean1, a->rstd1};
}

/* What its MLP reads. */
static Stream stream_within(const Model *m, int l) {
    const BlockTensors *w = &m->blocks[l];
    const BlockActs *a = &m->acts[l];
    return (Stream){"h2", l, w->ln2_w, w->ln2_b, a->x2, a->h2, a->mean2, a->rstd2};
}

static void norm_stream(Model *m, const Tokens *tk, const Stream *s) {
    norm_of(m, s->w, s->b, tk, s->h, s->mean, s->rstd, s->x);
    probe_norm(m, s->name, s->layer, s->h, false);
}

/* s->x = addend + x w + b, and its norm: on the way, where this rank has whole rows that its
 * product could not complete. */
static void add_to_stream(Model *m, const Tokens *tk, LinearFront *f, const Stream *s) {
    NormOf n = {norm_args(m, s->w, s->b, tk->T_x), s->h, s->mean, s->rstd};
    bool whole = !grid_comm(m->grid, axes_of("y")) && m->w.C == m->shape.config.channels;
    bool together = linear_owes(m, f->kind) && whole && !m->exact;
    f->y = s->x, f->norm = together ? &n : NULL;
    linear_forward(m, tk, f);
    if (together)
        probe_norm(m, s->name, s->layer, s->h, false);
    else
        norm_stream(m, tk, s);
}

void block_norm(Model *m, int l, const Tokens *tk) {
    Stream s = stream_into(m, l);
    norm_stream(m, tk, &s);
}

static void block_forward_qkv(Model *m, int l, const Tokens *tk) {
    const BlockTensors *w = &m->blocks[l];
    const BlockActs *a = &m->acts[l];
    linear_forward(m, tk, &(LinearFront){LINEAR_QKV, w->qkv_w, w->qkv_b, .y = a->qkv, .x = a->h1});
    rotate(m, a->qkv, tk, +1);
}

/* x2 = x + att Wo, and its norm. */
static void attn_out(Model *m, int l, const Tokens *tk) {
    const BlockTensors *w = &m->blocks[l];
    const BlockActs *a = &m->acts[l];
    Stream s = stream_within(m, l);
    add_to_stream(
        m, tk,
        &(LinearFront){LINEAR_ATTN_OUT, w->attn_out_w, w->attn_out_b, .x = a->att, .addend = a->x},
        &s);
}

/* act(h2 Wup) */
static void up(Model *m, int l, const Tokens *tk) {
    const BlockTensors *w = &m->blocks[l];
    const BlockActs *a = &m->acts[l];
    LinearFront f = {LINEAR_UP, w->up_w, w->up_b, .y = a->pre, .x = a->h2};
    if (m->shape.config.act != ACT_SWIGLU) { // act = gelu(pre) inside the product
        f.y = a->act, f.epilogue = EPI_ACT, f.aux = a->pre;
        linear_forward(m, tk, &f);
    } else {
        linear_forward(m, tk, &f);
        m->k->swiglu_forward(m->team, a->act, a->pre, tk->rows, m->w.F);
    }
    probe_middle(m, "act", l, a->act, SIDE_ACT);
}

static void block_forward_mlp(Model *m, int l, const Tokens *tk) {
    const BlockTensors *w = &m->blocks[l];
    const BlockActs *a = &m->acts[l];
    Stream next = stream_into(m, l + 1);
    attn_out(m, l, tk);
    up(m, l, tk);
    add_to_stream(m, tk,
                  &(LinearFront){LINEAR_DOWN, w->down_w, w->down_b, .x = a->act, .addend = a->x2},
                  &next);
}

static void attend(Model *m, int l, const Tokens *tk) {
    const BlockActs *a = &m->acts[l];
    Attention at = attention_args(m, tk->B, tk->S);
    m->k->attention_forward(m->team, &at, a->att, a->lse, a->qkv);
    probe_middle(m, "att", l, a->att, SIDE_ATT);
}

void block_forward(Model *m, int l, const Tokens *tk) {
    block_forward_qkv(m, l, tk);
    attend(m, l, tk);
    block_forward_mlp(m, l, tk);
}

/* Full recompute: all that backward of the block reads. Its last product is the next block's input,
 * which is there; and where x2 was kept, the sum that made it is not made again. Source: Oases
 * (2023), section 4. */
static void block_again(Model *m, int l) {
    const Tokens *tk = &m->tk;
    Stream s = stream_within(m, l);
    m->stored.recompute = true;
    block_norm(m, l, tk);
    block_forward_qkv(m, l, tk);
    attend(m, l, tk);
    if (m->keeps_x2)
        norm_stream(m, tk, &s);
    else
        attn_out(m, l, tk);
    up(m, l, tk);
    m->stored.recompute = false;
}

/* Selective recompute: h1, h2 and act are shared between blocks; those of this block are made again
 * when needed, without a product and without a collective. */
static void bring_back_act(Model *m, BlockActs *a) {
    if (m->shape.recompute != RECOMPUTE_SELECTIVE) return;
    if (m->shape.config.act != ACT_SWIGLU)
        m->k->act_forward(m->team, m->shape.config.act, a->act, a->pre, m->tk.rows * m->w.F);
    else
        m->k->swiglu_forward(m->team, a->act, a->pre, m->tk.rows, m->w.F);
}

static void bring_back_norm(Model *m, int w, int b, Act *h, const Act *x, const float *mean,
                            const float *rstd) {
    if (m->shape.recompute != RECOMPUTE_SELECTIVE) return;
    Norm n = norm_args(m, w, b, m->tk.T_x);
    m->k->norm_apply(m->team, &n, h, x, mean, rstd);
}

static void mlp_backward(Model *m, int l, BlockActs *a) {
    const BlockTensors *w = &m->blocks[l];
    bring_back_act(m, a);
    if (m->shape.config.act != ACT_SWIGLU) {
        linear_backward(m, LINEAR_DOWN, m->dwide, m->dx, a->act, w->down_w, w->down_b, EPI_DACT,
                        a->pre);
    } else {
        linear_backward(m, LINEAR_DOWN, m->dact, m->dx, a->act, w->down_w, w->down_b, EPI_NONE,
                        NULL);
        m->k->swiglu_backward(m->team, m->dwide, m->dact, a->pre, m->tk.rows, m->w.F);
        probe_middle(m, "dpre", l, m->dwide, SIDE_UP);
    }
    bring_back_norm(m, w->ln2_w, w->ln2_b, a->h2, a->x2, a->mean2, a->rstd2);
    linear_backward(m, LINEAR_UP, m->dh, m->dwide, a->h2, w->up_w, w->up_b, EPI_NONE, NULL);
    norm_of_backward(m, w->ln2_w, w->ln2_b, &m->tk, m->dx, m->dh, a->x2, a->mean2, a->rstd2);
    probe_norm(m, "dx2", l, m->dx, true);
}

static void attend_backward(Model *m, int l, BlockActs *a) {
    const BlockTensors *w = &m->blocks[l];
    const Tokens *tk = &m->tk;
    linear_backward(m, LINEAR_ATTN_OUT, m->datt, m->dx, a->att, w->attn_out_w, w->attn_out_b,
                    EPI_NONE, NULL);
    Attention at = attention_args(m, tk->B, tk->S);
    m->k->attention_backward(m->team, &at, m->dqkv, m->datt, a->qkv, a->att, a->lse);
    rotate(m, m->dqkv, tk, -1);
    probe(m, &(Probe){.name = "dqkv",
                      .layer = l,
                      .at = m->dqkv,
                      .rows = ROWS_MIDDLE,
                      .side = SIDE_QKV,
                      .copies_owe = true});
    bring_back_norm(m, w->ln1_w, w->ln1_b, a->h1, a->x, a->mean1, a->rstd1);
}

void block_backward(Model *m, int l) {
    const BlockTensors *w = &m->blocks[l];
    BlockActs *a = &m->acts[l];
    bool full = m->shape.recompute == RECOMPUTE_FULL, last = l + 1 == m->shape.config.layers;
    bool early =
        full && m->shape.overlap.bulk && !m->shape.overlap.ring; // a ring's buffer is in use
    if (full && (last || !early)) block_again(m, l);
    mlp_backward(m, l, a);
    attend_backward(m, l, a);
    LinearBack qkv = {.kind = LINEAR_QKV, .w = w->qkv_w, .dx = m->dh, .dy = m->dqkv, .x = a->h1};
    linear_backward_begin(m, &qkv, w->qkv_b);
    if (early && l > 0) block_again(m, l - 1);
    linear_backward_end(m, &qkv);
    norm_of_backward(m, w->ln1_w, w->ln1_b, &m->tk, m->dx, m->dh, a->x, a->mean1, a->rstd1);
    probe_norm(m, "dx", l, m->dx, true);
}
