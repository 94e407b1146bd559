/* generate -- sampling with a key-value cache.
 *
 * Prefill runs the prompt through the blocks at once and keeps each block's keys and values; every
 * further token costs one row of every matmul. A Generator has its own small model memory, planned
 * for each prompt, and borrows the weights of another Model, so sampling in the middle of training
 * touches nothing that training needs.
 */
#ifndef PARALLEL_STEP_GENERATE_H
#define PARALLEL_STEP_GENERATE_H

#include <stdbool.h>
#include <stdint.h>

#include "parallel/step/model.h"

typedef struct Sampling {
    double temperature; // 0: the likeliest token
    int64_t top_k;      // 0: all
    double top_p;       // 1: all
    uint64_t seed;
} Sampling;

typedef struct Generator Generator;

/* Local. For one sequence of up to config.seq positions; weights are those of m, which must outlive
 * it. */
Generator *generator_create(const Model *m);
void generator_free(Generator *g);
/* Local. Bytes that it takes for the longest prompt. */
int64_t generator_bytes(const Model *m);

/* Collective over the mesh; every coordinate of d x z does the same. Forgets the sequence, runs
 * tokens[0..n-1] (1 <= n <= config.seq) and returns logits[V] of the next token, valid until the
 * next call. */
const float *generator_prompt(Generator *g, const int32_t *tokens, int64_t n);
/* Collective over the mesh. Appends one token; logits of the one after it. When the cache is full
 * the older half of the sequence is forgotten and the rest is run again from position 0. */
const float *generator_next(Generator *g, int32_t token);

/* Collective over the mesh. Continues prompt[n_prompt] (1 to config.seq tokens) by at most n tokens
 * into out and returns how many, or -1 when a logit is not finite. Stops before `eot`, before the
 * ids with which the model's documents end, and when each, which is called with every token,
 * returns false. draw numbers the sample: the same numbers give the same text on any mesh. */
int64_t generate(Model *m, const int32_t *prompt, int64_t n_prompt, const Sampling *s,
                 uint64_t draw, int32_t eot, int32_t *out, int64_t n,
                 bool (*each)(void *ctx, int32_t id), void *ctx);

/* Local. Draws from softmax(logits / temperature) restricted to top_k and top_p; a pure function of
 * logits, s and draw. Ties go to the smaller id. */
int32_t sample_token(const float *logits, int64_t V, const Sampling *s, uint64_t draw);

#endif
