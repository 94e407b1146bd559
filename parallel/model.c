#include "parallel/model.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "parallel/block.h"

enum { HEAD_BYTES = 256 << 20 }; // logits of one chunk of tokens; larger chunks gain nothing

static float *floats(Arena *a, int64_t n) {
    return arena_take(a, (size_t)n * sizeof(float));
}

static void cut_tensors(Model *m) {
    for (int i = 0; i < m->tensors.n; i++) {
        Tensor *t = &m->tensors.t[i];
        int64_t n = tensor_size(t);
        t->param =
            m->shape.borrow ? m->shape.borrow->t[i].param : floats(&m->arena[ARENA_PARAMS], n);
        if (!m->shape.training) continue;
        t->grad = floats(&m->arena[ARENA_GRADS], n);
        t->m = floats(&m->arena[ARENA_OPTIMIZER], n);
        t->v = floats(&m->arena[ARENA_OPTIMIZER], n);
    }
}

/* What backward needs and only a product or attention can make again. */
static void cut_products(Model *m, BlockActs *b, Arena *a) {
    const Config *c = &m->shape.config;
    int64_t T = m->shape.B * m->shape.S, F = c->ffn;
    b->qkv = floats(a, T * config_qkv(c));
    b->att = floats(a, T * c->channels);
    b->lse = floats(a, T * c->heads);
    b->x2 = floats(a, T * c->channels);
    b->pre = floats(a, T * (c->act == ACT_SWIGLU ? 2 * F : F));
    b->mean1 = floats(a, T), b->rstd1 = floats(a, T);
    b->mean2 = floats(a, T), b->rstd2 = floats(a, T);
}

/* What is cheap to make again: norms and activation functions. */
static void cut_cheap(Model *m, BlockActs *b, Arena *a) {
    const Config *c = &m->shape.config;
    int64_t T = m->shape.B * m->shape.S;
    b->h1 = floats(a, T * c->channels);
    b->h2 = floats(a, T * c->channels);
    b->act = floats(a, T * c->ffn);
}

static void cut_activations(Model *m) {
    const ModelShape *s = &m->shape;
    Arena *a = &m->arena[ARENA_ACTS];
    int64_t T = s->B * s->S, TC = T * s->config.channels;
    bool keep_cheap = s->training && s->recompute == RECOMPUTE_NONE;
    bool keep_products = s->training && s->recompute != RECOMPUTE_FULL;
    BlockActs shared = {0};
    if (!keep_products) cut_products(m, &shared, a);
    if (!keep_cheap) cut_cheap(m, &shared, a);
    float *x = floats(a, TC);
    for (int64_t l = 0; l < s->config.layers; l++) {
        BlockActs *b = &m->acts[l];
        *b = shared;
        b->x = x;
        if (keep_products) cut_products(m, b, a);
        if (keep_cheap) cut_cheap(m, b, a);
        // Without backward two buffers are enough for the stream: a block reads one and writes the
        // other.
        x = s->training || l == 0 ? floats(a, TC) : m->acts[l - 1].x;
    }
    m->x_last = x;
    m->h_last = floats(a, TC);
    m->mean_last = floats(a, T), m->rstd_last = floats(a, T);
    m->losses = floats(a, T);
}

static void cut_workspace(Model *m) {
    const Config *c = &m->shape.config;
    Arena *a = &m->arena[ARENA_WORK];
    int64_t T = m->shape.B * m->shape.S, C = c->channels, F = c->ffn, D = config_head_size(c);
    int threads = team_size(m->team);
    m->ld_logits = (c->vocab + 15) / 16 * 16;
    int64_t most = HEAD_BYTES / (m->ld_logits * (int64_t)sizeof(float));
    int64_t chunks = most > 0 ? (T + most - 1) / most : T;
    m->head_rows = ((T + chunks - 1) / chunks + 63) / 64 * 64; // chunks of about equal length
    if (m->head_rows > T) m->head_rows = T;
    m->logits = floats(a, m->head_rows * m->ld_logits);
    if (m->shape.training) {
        m->dx = floats(a, T * C), m->dh = floats(a, T * C), m->datt = floats(a, T * C);
        m->dqkv = floats(a, T * config_qkv(c));
        m->dwide = floats(a, T * (c->act == ACT_SWIGLU ? 2 * F : F));
        m->dact = c->act == ACT_SWIGLU ? floats(a, T * F) : NULL;
        m->norm_work = arena_take(a, m->k->norm_workspace(T, C));
    }
    if (c->pos == POS_ROPE) m->rope_table = floats(a, c->seq * D);
    m->product_work = arena_take(a, m->k->product_workspace(threads));
    m->attention_work =
        arena_take(a, m->k->attention_workspace(threads, c->seq, c->heads, c->kv_heads, D));
}

/* The one walk over everything: measures while the arenas measure, cuts once they are committed. */
static void walk(Model *m) {
    cut_tensors(m);
    cut_activations(m);
    cut_workspace(m);
}

static int find(const Model *m, int l, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "h.%d.%s", l, what);
    return tensors_find(&m->tensors, name);
}

static BlockTensors find_block(const Model *m, int l) {
    return (BlockTensors){.ln1_w = find(m, l, "ln1.weight"),
                          .ln1_b = find(m, l, "ln1.bias"),
                          .qkv_w = find(m, l, "qkv.weight"),
                          .qkv_b = find(m, l, "qkv.bias"),
                          .attn_out_w = find(m, l, "attn_out.weight"),
                          .attn_out_b = find(m, l, "attn_out.bias"),
                          .ln2_w = find(m, l, "ln2.weight"),
                          .ln2_b = find(m, l, "ln2.bias"),
                          .up_w = find(m, l, "up.weight"),
                          .up_b = find(m, l, "up.bias"),
                          .down_w = find(m, l, "down.weight"),
                          .down_b = find(m, l, "down.bias")};
}

void model_plan(Model *m, const ModelShape *shape, const Kernels *k, Team *team) {
    static const char *const names[N_ARENAS] = {"parameters", "gradients", "optimizer",
                                                "activations", "workspace"};
    assert(shape->S <= shape->config.seq);
    *m =
        (Model){.shape = *shape, .k = k, .team = team, .tensors = tensors_describe(&shape->config)};
    size_t L = (size_t)shape->config.layers;
    m->blocks = mem_calloc(L, sizeof *m->blocks);
    m->acts = mem_calloc(L, sizeof *m->acts);
    m->wte = tensors_find(&m->tensors, "wte"), m->wpe = tensors_find(&m->tensors, "wpe");
    m->lnf_w = tensors_find(&m->tensors, "lnf.weight"),
    m->lnf_b = tensors_find(&m->tensors, "lnf.bias");
    m->head = shape->config.tied ? m->wte : tensors_find(&m->tensors, "head");
    for (int l = 0; l < (int)L; l++) m->blocks[l] = find_block(m, l);
    for (int i = 0; i < N_ARENAS; i++) m->arena[i] = arena_measure(names[i]);
    walk(m);
}

void model_allocate(Model *m) {
    const Config *c = &m->shape.config;
    for (int i = 0; i < N_ARENAS; i++) arena_commit(&m->arena[i]);
    walk(m);
    if (c->pos == POS_ROPE) rope_table(m->rope_table, c->seq, config_head_size(c), c->rope_theta);
}

void model_free(Model *m) {
    for (int i = 0; i < N_ARENAS; i++) arena_free(&m->arena[i]);
    mem_free(m->blocks);
    mem_free(m->acts);
    tensors_free(&m->tensors);
    *m = (Model){0};
}

/* Matrices are overwritten by the first product of a step; only what is always added to is cleared.
 */
void model_zero_grads(Model *m) {
    for (int i = 0; i < m->tensors.n; i++) {
        Tensor *t = &m->tensors.t[i];
        bool looked_up = i == m->wpe || (i == m->wte && m->head != m->wte);
        if (t->rows == 1 || looked_up) memset(t->grad, 0, (size_t)tensor_size(t) * sizeof(float));
    }
    m->grads_fresh = true;
}

static Embedding embedding_args(Model *m, const int32_t *tokens, int64_t B, int64_t S,
                                int64_t first) {
    const Config *c = &m->shape.config;
    const Tensor *e = &m->tensors.t[m->wte], *p = m->wpe < 0 ? NULL : &m->tensors.t[m->wpe];
    return (Embedding){.B = B,
                       .S = S,
                       .C = c->channels,
                       .V = c->vocab,
                       .first = first,
                       .tokens = tokens,
                       .wte = e->param,
                       .wpe = p ? p->param : NULL,
                       .dwte = e->grad,
                       .dwpe = p ? p->grad : NULL};
}

void model_embed(Model *m, const int32_t *tokens, int64_t B, int64_t S, int64_t first, float *x) {
    Embedding e = embedding_args(m, tokens, B, S, first);
    m->k->embedding_forward(m->team, &e, x);
}

/* x_last, and h_last = norm(x_last), of a whole micro-step. */
static void forward(Model *m, const int32_t *inputs) {
    const ModelShape *s = &m->shape;
    model_embed(m, inputs, s->B, s->S, 0, m->acts[0].x);
    for (int l = 0; l < s->config.layers; l++) {
        float *next = l + 1 < s->config.layers ? m->acts[l + 1].x : m->x_last;
        block_forward(m, l, &m->acts[l], next, s->B, s->S, 0);
    }
    norm_of(m, m->lnf_w, m->lnf_b, s->B * s->S, m->h_last, m->mean_last, m->rstd_last, m->x_last);
}

double model_step(Model *m, const int32_t *inputs, const int32_t *targets, float scale) {
    const ModelShape *s = &m->shape;
    int64_t T = s->B * s->S;
    assert(s->training);
    forward(m, inputs);
    double sum = head_loss(m, m->h_last, m->dh, targets, T, scale, true);
    memset(m->dx, 0, (size_t)(T * s->config.channels) * sizeof(float));
    norm_of_backward(m, m->lnf_w, m->lnf_b, T, m->dx, m->dh, m->x_last, m->mean_last, m->rstd_last);
    for (int l = (int)s->config.layers - 1; l >= 0; l--) block_backward(m, l, &m->acts[l]);
    Embedding e = embedding_args(m, inputs, s->B, s->S, 0);
    m->k->embedding_backward(m->team, &e, m->dx);
    m->grads_fresh = false;
    return sum;
}

double model_loss(Model *m, const int32_t *inputs, const int32_t *targets, float *losses) {
    int64_t T = m->shape.B * m->shape.S;
    forward(m, inputs);
    double sum = head_loss(m, m->h_last, NULL, targets, T, 0, false);
    if (losses) memcpy(losses, m->losses, (size_t)T * sizeof *losses);
    return sum;
}

void model_logits(Model *m, const int32_t *inputs, float *logits) {
    forward(m, inputs);
    head_logits(m, logits, m->shape.config.vocab, m->h_last, m->shape.B * m->shape.S);
}

double model_grad_norm(Model *m) {
    double sum = 0;
    for (int i = 0; i < m->tensors.n; i++)
        sum += m->k->sum_of_squares(m->team, m->tensors.t[i].grad, tensor_size(&m->tensors.t[i]));
    return sqrt(sum);
}

void model_update(Model *m, const AdamW *o) {
    for (int i = 0; i < m->tensors.n; i++) {
        Tensor *t = &m->tensors.t[i];
        m->k->adamw(m->team, o, t->param, t->m, t->v, t->grad, tensor_size(t), t->decay);
    }
}
