/* generate -- sampling with a key-value cache.
 *
 * Prefill runs all tokens of the prompt through the layers at once and stores each layer's keys and
 * values. Every further token costs one row of every matmul. A Generator borrows the weights of
 * another Model and has its own memory, which is planned for each prompt. So sampling during
 * training does not change the memory of training.
 */
#ifndef PARALLEL_STEP_GENERATE_H
#define PARALLEL_STEP_GENERATE_H

#include <stdbool.h>
#include <stdint.h>

#include "parallel/step/model.h"

typedef struct Sampling {
    double temperature; // 0: always the most likely token
    int64_t top_k;      // draw from the k most likely tokens; 0: from all
    double top_p;       // draw from the most likely tokens that together have this probability
    uint64_t seed;
} Sampling;

typedef struct Generator Generator;

/* Local. A generator of one sequence of up to config.seq positions. It uses the weights of m, which
 * must outlive it. */
Generator *generator_create(const Model *m);
void generator_free(Generator *g);
/* Local. Bytes of memory that a generator needs for the longest prompt. */
int64_t generator_bytes(const Model *m);

/* Collective over the mesh; all coordinates of d x z compute the same. Starts a new sequence: runs
 * tokens[0..n-1] (1 <= n <= config.seq) and returns logits[V] of the next token, valid until the
 * next call. */
const float *generator_prompt(Generator *g, const int32_t *tokens, int64_t n);
/* Collective over the mesh. Appends one token and returns logits[V] of the token after it. When the
 * cache is full, the older half of the sequence is dropped and the newer half is run again from
 * position 0. */
const float *generator_next(Generator *g, int32_t token);

/* Collective over the mesh. Continues prompt[n_prompt] (1 to config.seq tokens) by at most n tokens
 * in out. Returns their number, or -1 if a logit is not finite. Stops before `eot` and before the
 * ids that end the model's documents. Calls each with every token and stops if it returns false.
 * draw is the number of the sample: with equal numbers the same random numbers are drawn on any
 * mesh. With --exact the logits, and so the text, have the same bits as well. */
int64_t generate(Model *m, const int32_t *prompt, int64_t n_prompt, const Sampling *s,
                 uint64_t draw, int32_t eot, int32_t *out, int64_t n,
                 bool (*each)(void *ctx, int32_t id), void *ctx);

/* Local, pure. Draws a token from softmax(logits / temperature), restricted to top_k and top_p. Of
 * equal logits the smaller id comes first. */
int32_t sample_token(const float *logits, int64_t V, const Sampling *s, uint64_t draw);

#endif
