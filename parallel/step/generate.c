#include "parallel/step/generate.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "parallel/step/memory.h"
#include "parallel/step/run.h"

struct Generator {
    const Model *trained;
    Model m;       // planned for a prompt, OUTPUT_NEXT; its parameters are those of `trained`
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

static bool likelier(const Candidate *x, const Candidate *y) {
    return x->logit != y->logit ? x->logit > y->logit : x->id < y->id;
}

/* The candidates, in order as far as it is needed: draws from all tokens mostly end after a few.
 *
 *     c   [ heap of those that are not in order yet | ... third, second, most likely ]
 *
 * In the heap c[i] is likelier than c[2i + 1] and c[2i + 2]. */
typedef struct Ranking {
    Candidate *c;
    int64_t n, n_heap;
    float largest; // logit
    double temperature;
} Ranking;

/* Moves c[i] down the heap until it is likelier than what is below. */
static void sink(Ranking *r, int64_t i) {
    Candidate *c = r->c, moved = c[i];
    for (int64_t k; (k = 2 * i + 1) < r->n_heap; i = k) {
        if (k + 1 < r->n_heap && likelier(&c[k + 1], &c[k])) k++;
        if (!likelier(&c[k], &moved)) break;
        c[i] = c[k];
    }
    c[i] = moved;
}

/* The candidate with `place` likelier ones. */
static Candidate ranked(Ranking *r, int64_t place) {
    while (r->n - r->n_heap <= place) {
        Candidate top = r->c[0];
        r->c[0] = r->c[--r->n_heap];
        r->c[r->n_heap] = top;
        sink(r, 0);
    }
    return r->c[r->n - 1 - place];
}

/* The probability of a candidate, times a constant. */
static double weight(const Ranking *r, Candidate c) {
    return exp(((double)c.logit - (double)r->largest) / r->temperature);
}

/* Draws from the n most likely candidates, restricted to top_p. */
static int32_t draw_from(Ranking *r, int64_t n, double top_p, double uniform) {
    double sum = 0, part = 0;
    for (int64_t i = 0; i < n; i++) // the sum of all needs no order
        sum += weight(r, n < r->n ? ranked(r, i) : r->c[i]);
    // the smallest set whose share reaches top_p; never empty
    for (int64_t i = 0; i < n && top_p < 1; i++) {
        part += weight(r, ranked(r, i));
        if (part >= top_p * sum) n = i + 1;
    }
    double left = uniform * (top_p < 1 ? part : sum);
    int64_t i = 0;
    for (double w; i + 1 < n && left >= (w = weight(r, ranked(r, i))); i++) left -= w;
    return ranked(r, i).id;
}

int32_t sample_token(const float *logits, int64_t V, const Sampling *s, uint64_t draw) {
    Ranking r = {.c = mem_alloc((size_t)V * sizeof *r.c), .n = V, .n_heap = V};
    for (int64_t v = 0; v < V; v++) r.c[v] = (Candidate){logits[v], (int32_t)v};
    for (int64_t i = V / 2 - 1; i >= 0; i--) sink(&r, i);
    r.largest = r.c[0].logit, r.temperature = s->temperature;
    int32_t pick = r.c[0].id;
    if (s->temperature > 0)
        pick = draw_from(&r, s->top_k > 0 && s->top_k < V ? s->top_k : V, s->top_p,
                         rng_uniform(s->seed, rng_stream("sample"), draw));
    mem_free(r.c);
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
