#include "parallel/step/generate.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "parallel/step/memory.h"
#include "parallel/step/run.h"

struct Generator {
    const Model *trained;
    Model m;       // planned for a prompt, OUTPUT_NEXT; its parameters are those of `of`
    int64_t n;     // positions in the cache
    int32_t *seen; // [config.seq] the tokens of these positions
    float *logits; // [V]
};

/* Plans a model that runs a prompt of n tokens, and then single tokens. */
static void plan(Model *own, const Model *m, int64_t n) {
    ModelShape s = m->shape;
    s.B = 1;
    s.S = n;
    s.output = OUTPUT_NEXT;
    s.training = s.samples = false;
    s.recompute = RECOMPUTE_NONE;
    s.overlap = (Overlap){0}; // a single token has too little work to hide a collective
    s.borrow = &m->tensors;
    model_plan(own, &s, m->k, m->team);
}

int64_t generator_bytes(const Model *m) {
    Model own;
    plan(&own, m, m->shape.config.seq);
    int64_t n = memory_needed(&own);
    model_free(&own);
    return n;
}

Generator *generator_create(const Model *m) {
    Generator *g = mem_calloc(1, sizeof *g);
    g->trained = m;
    g->logits = mem_alloc((size_t)m->shape.config.vocab * sizeof *g->logits);
    g->seen = mem_alloc((size_t)m->shape.config.seq * sizeof *g->seen);
    return g;
}

void generator_free(Generator *g) {
    mem_free(g->logits), mem_free(g->seen);
    model_free(&g->m);
    mem_free(g);
}

/* Runs tokens g->seen[g->n .. g->n + n) and appends their keys and values to the cache. Returns the
 * logits of the next token. */
static const float *append(Generator *g, int64_t n) {
    Model *m = &g->m;
    m->tk = tokens_of(m->grid, 1, n, g->n);
    model_tokens(m, 0, n, g->seen + g->n, NULL);
    step_run(m, false);
    g->n += n;
    m->k->to_floats(g->logits, step_run_result(m, false), m->shape.config.vocab);
    return g->logits;
}

/* Plans a model for n tokens and runs the first n tokens of g->seen with an empty cache. */
static const float *begin(Generator *g, int64_t n) {
    model_free(&g->m);
    plan(&g->m, g->trained, n);
    model_allocate(&g->m);
    g->n = 0;
    return append(g, n);
}

const float *generator_prompt(Generator *g, const int32_t *tokens, int64_t n) {
    assert(n >= 1 && n <= g->trained->shape.config.seq);
    memmove(g->seen, tokens, (size_t)n * sizeof *tokens);
    return begin(g, n);
}

const float *generator_next(Generator *g, int32_t token) {
    int64_t seq = g->m.shape.config.seq, keep = seq / 2;
    if (g->n < seq) {
        g->seen[g->n] = token;
        return append(g, 1);
    }
    memmove(g->seen, g->seen + seq - keep, (size_t)keep * sizeof *g->seen);
    g->seen[keep] = token; // keep < seq
    return begin(g, keep + 1);
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

/* Candidates c[V] are sorted, the most likely first. Returns how many of them remain after top_k
 * and top_p. Writes their weights exp((logit - largest logit) / temperature) to w. */
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

static bool ends_text(const SpecialIds *ids, int32_t eot, int32_t id) {
    for (int i = 0; i < ids->n_eos; i++)
        if (id == ids->eos[i]) return true;
    return id == eot;
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
        if (ends_text(&m->shape.config.ids, eot, id)) break;
        out[made++] = id;
        if (!each(ctx, id)) break;
        if (made < n) logits = generator_next(g, id);
    }
    generator_free(g);
    return made;
}
