#include "base/tensor.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

enum { PER_LAYER = 12, OUTSIDE = 5, PIECES_PER_LAYER = 12 };

static Tensor *add(TensorTable *t, int layer, int64_t rows, int64_t cols, const char *name) {
    Tensor *x = &t->t[t->n++];
    *x = (Tensor){.layer = layer, .rows = rows, .cols = cols};
    tensor_whole(x);
    if (layer < 0)
        snprintf(x->name, sizeof x->name, "%s", name);
    else
        snprintf(x->name, sizeof x->name, "h.%d.%s", layer, name);
    return x;
}

/* A matrix is drawn from a normal distribution and decays; biases start at 0, norm weights at 1,
 * and neither decays. */
static void add_matrix(TensorTable *t, int layer, int64_t rows, int64_t cols, float std,
                       const char *name) {
    Tensor *x = add(t, layer, rows, cols, name);
    x->init_std = std;
    x->decay = true;
}

static void add_vector(TensorTable *t, int layer, int64_t n, float value, const char *name) {
    add(t, layer, 1, n, name)->init_value = value;
}

/* The last added tensor, or columns of it, under its name in the file. */
static void piece(TensorTable *t, int64_t col, int64_t cols, bool transposed, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
static void piece(TensorTable *t, int64_t col, int64_t cols, bool transposed, const char *fmt,
                  ...) {
    Piece *p = &t->pieces[t->n_pieces++];
    const Tensor *x = &t->t[t->n - 1];
    *p = (Piece){.tensor = t->n - 1, .col = col, .cols = cols, .transposed = transposed};
    p->vector = x->rows == 1 && !x->decay;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->name, sizeof p->name, fmt, ap);
    va_end(ap);
}

static bool llama_names(const Config *c) {
    return c->act == ACT_SWIGLU || c->pos == POS_ROPE;
}

static void whole_piece(TensorTable *t, const char *gpt2, const char *llama, int layer,
                        bool transposed) {
    bool is_llama = llama_names(&t->config);
    int64_t cols = t->t[t->n - 1].cols;
    if (layer < 0)
        piece(t, 0, cols, false, "%s", is_llama ? llama : gpt2);
    else if (is_llama)
        piece(t, 0, cols, transposed, "model.layers.%d.%s", layer, llama);
    else
        piece(t, 0, cols, false, "h.%d.%s", layer, gpt2);
}

static void norm(TensorTable *t, int layer, const char *ours, const char *gpt2, const char *llama) {
    char name[40], g[40], l[64];
    for (int b = 0; b < (t->config.bias && t->config.norm == NORM_LAYER ? 2 : 1); b++) {
        const char *tail = b ? "bias" : "weight";
        snprintf(name, sizeof name, "%s.%s", ours, tail);
        snprintf(g, sizeof g, "%s.%s", gpt2, tail);
        snprintf(l, sizeof l, "%s.%s", llama, tail);
        add_vector(t, layer, t->config.channels, b ? 0.0f : 1.0f, name);
        whole_piece(t, g, l, layer, false);
    }
}

/* A linear layer whose columns are one to three tensors of the LLaMA file, and one of the GPT-2
 * file. */
typedef struct Parts {
    const char *names[3];
    int64_t cols[3];
    int n;
} Parts;

static void linear(TensorTable *t, int layer, int64_t rows, float std, const char *ours,
                   const char *gpt2, Parts parts) {
    char name[40];
    int64_t cols = 0, col = 0;
    for (int i = 0; i < parts.n; i++) cols += parts.cols[i];
    for (int b = 0; b < (t->config.bias ? 2 : 1); b++, col = 0) {
        const char *tail = b ? "bias" : "weight";
        snprintf(name, sizeof name, "%s.%s", ours, tail);
        if (b)
            add_vector(t, layer, cols, 0.0f, name);
        else
            add_matrix(t, layer, rows, cols, std, name);
        if (!llama_names(&t->config))
            piece(t, 0, cols, false, "h.%d.%s.%s", layer, gpt2, tail);
        else
            for (int i = 0; i < parts.n; col += parts.cols[i++])
                piece(t, col, parts.cols[i], !b, "model.layers.%d.%s.%s", layer, parts.names[i],
                      tail);
    }
}

static void block(TensorTable *t, int l) {
    const Config *c = &t->config;
    int64_t C = c->channels, D = config_head_size(c), F = c->ffn;
    // GPT-2: the two products that add to the residual stream start smaller, by the number of such
    // additions.
    float std = 0.02f, residual = 0.02f / sqrtf(2.0f * (float)c->layers);
    norm(t, l, "ln1", "ln_1", "input_layernorm");
    linear(t, l, C, std, "qkv", "attn.c_attn",
           (Parts){{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                   {c->heads * D, c->kv_heads * D, c->kv_heads * D},
                   3});
    linear(t, l, c->heads * D, residual, "attn_out", "attn.c_proj",
           (Parts){{"self_attn.o_proj"}, {C}, 1});
    norm(t, l, "ln2", "ln_2", "post_attention_layernorm");
    Parts up = c->act == ACT_SWIGLU ? (Parts){{"mlp.gate_proj", "mlp.up_proj"}, {F, F}, 2}
                                    : (Parts){{"mlp.up_proj"}, {F}, 1};
    linear(t, l, C, std, "up", "mlp.c_fc", up);
    linear(t, l, F, residual, "down", "mlp.c_proj", (Parts){{"mlp.down_proj"}, {C}, 1});
}

TensorTable tensors_describe(const Config *c) {
    TensorTable t = {.config = *c};
    t.t = mem_calloc((size_t)(c->layers * PER_LAYER + OUTSIDE), sizeof *t.t);
    t.pieces = mem_calloc((size_t)(c->layers * 2 * PIECES_PER_LAYER + OUTSIDE), sizeof *t.pieces);
    add_matrix(&t, -1, c->vocab, c->channels, 0.02f, "wte");
    whole_piece(&t, "wte.weight", "model.embed_tokens.weight", -1, false);
    if (c->pos == POS_LEARNED) {
        add_matrix(&t, -1, c->seq, c->channels, 0.02f, "wpe");
        whole_piece(&t, "wpe.weight", "model.embed_positions.weight", -1, false);
    }
    for (int l = 0; l < c->layers; l++) block(&t, l);
    norm(&t, -1, "lnf", "ln_f", "model.norm");
    if (!c->tied) {
        add_matrix(&t, -1, c->vocab, c->channels, 0.02f, "head");
        whole_piece(&t, "lm_head.weight", "lm_head.weight", -1, false);
    }
    return t;
}

void tensors_free(TensorTable *t) {
    for (int i = 0; i < t->n; i++) mem_free(t->t[i].rects);
    mem_free(t->t);
    mem_free(t->pieces);
    *t = (TensorTable){0};
}

int tensors_find(const TensorTable *t, const char *name) {
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->t[i].name, name) == 0) return i;
    return -1;
}

void tensor_whole(Tensor *t) {
    if (!t->rects) t->rects = mem_calloc(1, sizeof *t->rects);
    t->rects[0] = (TensorRect){.rows = t->rows, .cols = t->cols, .first = true};
    t->n_rects = 1;
    t->local_rows = t->rows, t->local_cols = t->cols;
    for (int i = 0; i < N_PARTS; i++)
        t->begin[i] = 0, t->end[i] = tensor_size(t), t->first[i] = true;
}

TensorRuns tensor_runs(const Tensor *t, TensorPart part, bool first) {
    return (TensorRuns){.t = t, .part = part, .first = first};
}

bool tensor_next(TensorRuns *i, TensorRun *run) {
    const Tensor *t = i->t;
    if (i->first && !t->first[i->part]) return false;
    for (; i->rect < t->n_rects; i->rect++, i->row = 0) {
        const TensorRect *r = &t->rects[i->rect];
        if (i->first && !r->first) continue;
        while (i->row < r->rows) {
            int64_t from = r->at + i->row * t->local_cols, to = from + r->cols;
            int64_t begin = from > t->begin[i->part] ? from : t->begin[i->part];
            int64_t end = to < t->end[i->part] ? to : t->end[i->part];
            int64_t row = r->row + i->row++;
            if (begin >= end) continue;
            *run =
                (TensorRun){row, r->col + (begin - from), end - begin, begin - t->begin[i->part]};
            return true;
        }
    }
    return false;
}

static void init_run(const Tensor *x, const TensorRun *r, uint64_t seed) {
    float *p = x->param + r->at;
    if (x->init_std > 0)
        rng_normal(p, r->n, (uint64_t)(r->row * x->cols + r->col), x->init_std, seed,
                   rng_stream(x->name));
    else
        for (int64_t j = 0; j < r->n; j++) p[j] = x->init_value;
}

typedef struct Init {
    const Tensor *x;
    uint64_t seed;
} Init;

/* Rows [begin, end) of every rectangle. */
static void init_rows(void *ctx, int64_t begin, int64_t end) {
    const Init *in = ctx;
    TensorRun run;
    for (TensorRuns i = tensor_runs(in->x, PART_PARAM, false); tensor_next(&i, &run);)
        if (run.row >= begin && run.row < end) init_run(in->x, &run, in->seed);
}

void tensors_init(TensorTable *t, Team *team, uint64_t seed) {
    for (int i = 0; i < t->n; i++) {
        Init in = {&t->t[i], seed};
        int64_t grain = t->t[i].rows / 64 + 1;
        team_for(team, t->t[i].rows, grain, init_rows, &in);
    }
}
