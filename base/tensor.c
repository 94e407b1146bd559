#include "base/tensor.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/rng.h"

/* For allocation. PER_LAYER: most tensors of a layer. OUTSIDE: most tensors outside of layers.
 * SLICES: most file tensors of a layer, divided by PER_LAYER. */
enum { PER_LAYER = 13, OUTSIDE = 5, SLICES = 2 };

/* Concatenates n texts. The planner makes tables by the thousand when it prices layouts, and printf
 * takes ten times as long. */
static void join(char *to, size_t n_to, const char *const *parts, int n) {
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        size_t len = strlen(parts[i]);
        if (at + len >= n_to) die("the name of a tensor is too long: %s...", parts[0]);
        memcpy(to + at, parts[i], len);
        at += len;
    }
    to[at] = 0;
}
#define name_of(to, ...)                                                                           \
    join(to, sizeof(to), (const char *const[]){__VA_ARGS__},                                       \
         sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

/* The layer whose tensors are added, and the prefixes of their names; layer -1: outside of
 * layers. */
typedef struct Scope {
    TensorTable *t;
    int layer;
    char ours[24], llama[40]; // "h.3.", "model.layers.3."; GPT-2's file has ours
} Scope;

static Scope scope_of(TensorTable *t, int layer) {
    Scope p = {.t = t, .layer = layer};
    if (layer < 0) return p;
    snprintf(p.ours, sizeof p.ours, "h.%d.", layer);
    snprintf(p.llama, sizeof p.llama, "model.layers.%d.", layer);
    return p;
}

/* Adds a tensor to the table; the local block is the whole tensor. tail: "", ".weight" or
 * ".bias". */
static Tensor *add(const Scope *p, int64_t rows, int64_t cols, const char *name, const char *tail) {
    assert(p->t->n < p->t->config.layers * PER_LAYER + OUTSIDE);
    Tensor *x = &p->t->t[p->t->n++];
    *x = (Tensor){.layer = p->layer,
                  .rows = rows,
                  .cols = cols,
                  .local_rows = rows,
                  .local_cols = cols,
                  .n_rects = 1,
                  .rects = mem_calloc(1, sizeof *x->rects)};
    x->rects[0] = (TensorRect){.rows = rows, .cols = cols, .first = true};
    for (int i = 0; i < N_PARTS; i++) x->end[i] = tensor_size(x), x->first[i] = true;
    name_of(x->name, p->ours, name, tail);
    return x;
}

/* A matrix is drawn from a normal distribution and decays; biases start at 0, norm weights at 1,
 * and neither decays. */
static void add_matrix(const Scope *p, int64_t rows, int64_t cols, float std, const char *name,
                       const char *tail) {
    Tensor *x = add(p, rows, cols, name, tail);
    x->init_std = std;
    x->decay = x->in_matmuls = true;
}

static Tensor *add_vector(const Scope *p, int64_t n, float value, const char *name,
                          const char *tail) {
    Tensor *x = add(p, 1, n, name, tail);
    x->init_value = value;
    return x;
}

static bool llama_names(const Config *c) {
    return c->act == ACT_SWIGLU || c->pos == POS_ROPE;
}

/* Adds a file tensor: columns of the tensor that was added last, under their name in the file. */
static void slice(const Scope *p, int64_t col, int64_t cols, bool transposed, const char *name,
                  const char *tail) {
    TensorTable *t = p->t;
    assert(t->n_slices < t->config.layers * PER_LAYER * SLICES + OUTSIDE);
    TensorSlice *x = &t->slices[t->n_slices++];
    const Tensor *weight = &t->t[t->n - 1];
    *x = (TensorSlice){.tensor = t->n - 1, .col = col, .cols = cols, .transposed = transposed};
    x->vector = weight->rows == 1 && !weight->decay;
    name_of(x->name, llama_names(&t->config) ? p->llama : p->ours, name, tail);
}

static void whole_slice(const Scope *p, const char *gpt2, const char *llama, const char *tail) {
    bool is_llama = llama_names(&p->t->config);
    slice(p, 0, p->t->t[p->t->n - 1].cols, false, is_llama ? llama : gpt2, tail);
}

static void norm(const Scope *p, const char *ours, const char *gpt2, const char *llama) {
    const Config *c = &p->t->config;
    for (int b = 0; b < (c->bias && c->norm == NORM_LAYER ? 2 : 1); b++) {
        const char *tail = b ? ".bias" : ".weight";
        add_vector(p, c->channels, b ? 0.0f : 1.0f, ours, tail);
        whole_slice(p, gpt2, llama, tail);
    }
}

/* A linear layer whose columns are one to three tensors of the LLaMA file, and one of the GPT-2
 * file. */
typedef struct Parts {
    const char *names[3];
    int64_t cols[3];
    int n;
} Parts;

/* Adds a linear layer: its weight [rows, sum of parts.cols], its bias if it has one, and their file
 * tensors. std: standard deviation of the initial weights. */
static void linear(const Scope *p, int64_t rows, float std, const char *ours, const char *gpt2,
                   Parts parts) {
    const Config *c = &p->t->config;
    int64_t cols = 0, col = 0;
    for (int i = 0; i < parts.n; i++) cols += parts.cols[i];
    bool biased = config_biased(c, strcmp(ours, "qkv") == 0);
    for (int b = 0; b < (biased ? 2 : 1); b++, col = 0) {
        const char *tail = b ? ".bias" : ".weight";
        if (b)
            add_vector(p, cols, 0.0f, ours, tail)->in_matmuls = true;
        else
            add_matrix(p, rows, cols, std, ours, tail);
        if (!llama_names(c))
            slice(p, 0, cols, false, gpt2, tail);
        else
            for (int i = 0; i < parts.n; col += parts.cols[i++])
                slice(p, col, parts.cols[i], !b, parts.names[i], tail);
    }
}

/* The weights of the norms of q and of k, one vector. */
static void qk_norm(const Scope *p, int64_t D) {
    bool is_llama = llama_names(&p->t->config);
    add_vector(p, 2 * D, 1.0f, "qk_norm", ".weight");
    slice(p, 0, D, false, is_llama ? "self_attn.q_norm" : "attn.q_norm", ".weight");
    slice(p, D, D, false, is_llama ? "self_attn.k_norm" : "attn.k_norm", ".weight");
}

/* Adds the tensors of layer l. */
static void block(TensorTable *t, int l) {
    const Config *c = &t->config;
    Scope p = scope_of(t, l);
    int64_t C = c->channels, D = config_head_size(c), F = c->ffn;
    // As in GPT-2, the weights of the two matmuls that add to the residual stream start smaller, by
    // the square root of the number of such additions.
    float std = 0.02f, residual = 0.02f / sqrtf(2.0f * (float)c->layers);
    norm(&p, "ln1", "ln_1", "input_layernorm");
    linear(&p, C, std, "qkv", "attn.c_attn",
           (Parts){{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                   {c->heads * D, c->kv_heads * D, c->kv_heads * D},
                   3});
    if (c->qk_norm) qk_norm(&p, D);
    linear(&p, c->heads * D, residual, "attn_out", "attn.c_proj",
           (Parts){{"self_attn.o_proj"}, {C}, 1});
    norm(&p, "ln2", "ln_2", "post_attention_layernorm");
    Parts up = c->act == ACT_SWIGLU ? (Parts){{"mlp.gate_proj", "mlp.up_proj"}, {F, F}, 2}
                                    : (Parts){{"mlp.up_proj"}, {F}, 1};
    linear(&p, C, std, "up", "mlp.c_fc", up);
    linear(&p, F, residual, "down", "mlp.c_proj", (Parts){{"mlp.down_proj"}, {C}, 1});
}

TensorTable tensors_describe(const Config *c) {
    TensorTable t = {.config = *c};
    t.t = mem_calloc((size_t)(c->layers * PER_LAYER + OUTSIDE), sizeof *t.t);
    t.slices = mem_calloc((size_t)(c->layers * PER_LAYER * SLICES + OUTSIDE), sizeof *t.slices);
    Scope outside = scope_of(&t, -1);
    add_matrix(&outside, c->vocab, c->channels, 0.02f, "wte", "");
    whole_slice(&outside, "wte", "model.embed_tokens", ".weight");
    if (c->pos == POS_LEARNED) {
        add_matrix(&outside, c->seq, c->channels, 0.02f, "wpe", "");
        t.t[t.n - 1].in_matmuls = false;
        whole_slice(&outside, "wpe", "model.embed_positions", ".weight");
    }
    for (int l = 0; l < c->layers; l++) block(&t, l);
    norm(&outside, "lnf", "ln_f", "model.norm");
    if (!c->tied) {
        add_matrix(&outside, c->vocab, c->channels, 0.02f, "head", "");
        whole_slice(&outside, "lm_head", "lm_head", ".weight");
    }
    return t;
}

void tensors_free(TensorTable *t) {
    for (int i = 0; i < t->n; i++) mem_free(t->t[i].rects);
    mem_free(t->t);
    mem_free(t->slices);
    *t = (TensorTable){0};
}

int tensors_find(const TensorTable *t, const char *name) {
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->t[i].name, name) == 0) return i;
    return -1;
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
            int64_t from = r->offset + i->row * t->local_cols, to = from + r->cols;
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

bool tensor_next_rect(TensorRuns *i, TensorRect *rect) {
    const Tensor *t = i->t;
    TensorRun run;
    if (!tensor_next(i, &run)) return false;
    const TensorRect *r = &t->rects[i->rect];
    *rect = (TensorRect){run.row, run.col, 1, run.n, run.offset, r->first};
    if (run.n < r->cols) return true;
    // the first row that is not whole
    int64_t end = (t->end[i->part] - r->offset - r->cols) / t->local_cols + 1;
    if (end > r->rows) end = r->rows;
    rect->rows += end - i->row;
    i->row = end;
    return true;
}

static void init_run(const Tensor *x, const TensorRun *r, uint64_t seed) {
    float *p = x->param + r->offset;
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

/* Initial values of the logical rows [begin, end), in every rectangle. */
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
