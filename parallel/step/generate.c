#include "parallel/step/generate.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "parallel/step/block.h"

struct Generator {
    Model m;       // inference shapes; its parameters point into the trained model
    int64_t n;     // positions in the cache
    int32_t *seen; // [S] the tokens of those positions
    Act **cache;   // [L] each [S, 2 Hkv D]: keys, then values of a position
    Arena cache_arena;
    Act *row;      // logits of one token
    float *logits; // the same for the host
};

static void plan(Generator *g, const Model *m) {
    ModelShape s = m->shape;
    s.B = 1;
    s.S = s.config.seq;
    s.training = s.samples = s.program = false;
    s.recompute = RECOMPUTE_NONE;
    s.overlap =
        (Overlap){0}; // weights may change between two passes, and single tokens hide nothing
    s.borrow = &m->tensors;
    model_plan(&g->m, &s, m->k, m->team);
    g->cache_arena = arena_measure("key-value cache");
    g->cache_arena.memory = m->k->memory;
    g->cache = mem_calloc((size_t)s.config.layers, sizeof *g->cache);
}

/* Keys and values of one position: of the heads that this rank holds. */
static int64_t cache_row(const Model *m) {
    return 2 * m->w.Hkv * m->w.D;
}

static void cut_cache(Generator *g) {
    const Config *c = &g->m.shape.config;
    for (int l = 0; l < c->layers; l++)
        g->cache[l] =
            arena_take(&g->cache_arena, (size_t)(c->seq * cache_row(&g->m)) * g->m.k->word);
    g->row = arena_take(&g->cache_arena, (size_t)head_columns(&g->m) * g->m.k->word);
}

int64_t generator_bytes(const Model *m) {
    Generator g = {0};
    plan(&g, m);
    cut_cache(&g);
    int64_t n = (int64_t)g.cache_arena.used;
    for (int i = 0; i < N_ARENAS; i++) n += (int64_t)g.m.arena[i].used;
    mem_free(g.cache);
    model_free(&g.m);
    return n;
}

Generator *generator_create(const Model *m) {
    Generator *g = mem_calloc(1, sizeof *g);
    plan(g, m);
    model_allocate(&g->m);
    cut_cache(g);
    arena_commit(&g->cache_arena);
    cut_cache(g);
    g->logits = mem_alloc((size_t)g->m.shape.config.vocab * sizeof *g->logits);
    g->seen = mem_alloc((size_t)g->m.shape.config.seq * sizeof *g->seen);
    return g;
}

void generator_free(Generator *g) {
    if (!g) return;
    arena_free(&g->cache_arena);
    mem_free(g->cache);
    mem_free(g->logits), mem_free(g->seen);
    model_free(&g->m);
    mem_free(g);
}

/* Logits after row `row` of the last block's output. */
static const float *logits_of(Generator *g, const Tokens *tk, int64_t row) {
    Model *m = &g->m;
    head_logits(m, tk, g->row, m->h_last, row, 1);
    m->k->to_floats(g->logits, g->row, m->shape.config.vocab);
    return g->logits;
}

/* The keys and values of rows 0..n-1 of qkv go to positions first.. of block l's cache. */
static void remember(Generator *g, int l, const Act *qkv, int64_t first, int64_t n) {
    const Model *m = &g->m;
    int64_t row = cache_row(m), wide = m->w.qkv;
    m->k->copy(m->team, acts_at(m, g->cache[l], first * row), row, acts_at(m, qkv, wide - row),
               wide, n, row, m->k->word);
}

const float *generator_prompt(Generator *g, const int32_t *tokens, int64_t n) {
    Model *m = &g->m;
    const Config *c = &m->shape.config;
    assert(n >= 1 && n <= c->seq);
    memmove(g->seen, tokens, (size_t)n * sizeof *tokens);
    g->n = n;
    Tokens tk = tokens_of(m, 1, n, 0);
    model_tokens(m, &tk, n, g->seen, NULL);
    embed(m, &tk, m->inputs, m->acts[0].x);
    block_norm(m, 0, &tk);
    for (int l = 0; l < c->layers; l++) {
        block_forward(m, l, &tk);
        remember(g, l, m->acts[l].qkv, 0, n);
    }
    return logits_of(g, &tk, n - 1);
}

const float *generator_next(Generator *g, int32_t token) {
    Model *m = &g->m;
    const Config *c = &m->shape.config;
    if (g->n == c->seq) {
        int64_t keep = c->seq / 2;
        memmove(g->seen, g->seen + g->n - keep, (size_t)keep * sizeof *g->seen);
        g->seen[keep] = token; // keep < seq
        return generator_prompt(g, g->seen, keep + 1);
    }
    int64_t pos = g->n++;
    g->seen[pos] = token;
    Tokens tk = tokens_of(m, 1, 1, pos);
    model_tokens(m, &tk, 1, &token, NULL);
    embed(m, &tk, m->inputs, m->acts[0].x);
    block_norm(m, 0, &tk);
    for (int l = 0; l < c->layers; l++) {
        BlockActs *a = &m->acts[l];
        block_forward_qkv(m, l, &tk);
        remember(g, l, a->qkv, pos, 1);
        block_attend_cache(m, a, g->cache[l], pos);
        block_forward_mlp(m, l, &tk);
    }
    return logits_of(g, &tk, 0);
}

typedef struct Candidate {
    float logit;
    int32_t id;
} Candidate;

static int likelier(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Number of candidates (sorted, likeliest first) that top_k and top_p leave, their weights exp(.)
 * in w. */
static int64_t restrict_to(const Candidate *c, double *w, int64_t V, const Sampling *s) {
    int64_t n = s->top_k > 0 && s->top_k < V ? s->top_k : V;
    double sum = 0, part = 0;
    for (int64_t i = 0; i < n; i++)
        sum += w[i] = exp(((double)c[i].logit - (double)c[0].logit) / s->temperature);
    for (int64_t i = 0; i < n; i++) { // the smallest set whose share reaches top_p; never empty
        part += w[i];
        if (part >= s->top_p * sum) return i + 1;
    }
    return n;
}

int32_t sample_token(const float *logits, int64_t V, const Sampling *s, uint64_t draw) {
    Candidate *c = mem_alloc((size_t)V * sizeof *c);
    double *w = mem_alloc((size_t)V * sizeof *w), sum = 0;
    for (int64_t v = 0; v < V; v++) c[v] = (Candidate){logits[v], (int32_t)v};
    qsort(c, (size_t)V, sizeof *c, likelier);
    int32_t pick = c[0].id;
    if (s->temperature > 0) {
        int64_t n = restrict_to(c, w, V, s), i = 0;
        for (int64_t j = 0; j < n; j++) sum += w[j];
        double left = rng_uniform(s->seed, rng_stream("sample"), draw) * sum;
        while (i + 1 < n && left >= w[i]) left -= w[i++];
        pick = c[i].id;
    }
    mem_free(c);
    mem_free(w);
    return pick;
}

static bool all_finite(const float *x, int64_t n) {
    bool all = true;
    for (int64_t i = 0; i < n; i++) all &= isfinite(x[i]) != 0;
    return all;
}

int64_t generate(Model *m, const int32_t *prompt, int64_t n_prompt, const Sampling *s,
                 uint64_t draw, int32_t eot, int32_t *out, int64_t n,
                 bool (*each)(void *ctx, int32_t id), void *ctx) {
    Generator *g = generator_create(m);
    const float *logits = generator_prompt(g, prompt, n_prompt);
    int64_t made = 0;
    while (made < n) {
        if (!all_finite(logits, m->shape.config.vocab)) {
            made = -1;
            break;
        }
        int32_t id = sample_token(logits, m->shape.config.vocab, s, draw << 32 | (uint64_t)made);
        if (id == eot) break;
        out[made++] = id;
        if (!each(ctx, id)) break;
        if (made < n) logits = generator_next(g, id);
    }
    generator_free(g);
    return made;
}
