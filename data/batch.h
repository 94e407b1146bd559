/* batch -- which tokens a step sees, as a function of (shards, seed, S, sequences per step, step).
 *
 * A sample is S+1 consecutive tokens of one shard: sample i of a shard covers [i S, i S + S], the
 * inputs are the first S of them and the targets the last S. Samples are numbered through all
 * shards; an epoch visits each exactly once, in an order that rng_permute derives from seed and
 * epoch. Sequence j of a step is the sample at place
 *
 *     g = step * per_step + j      epoch = g / n_samples      place in the epoch = g % n_samples
 *
 * There is no state and no rank count: sequences [j0, j1) of a step are the same on any mesh,
 * and a resumed run needs only the step. Without shuffle the order is that of the files and nothing
 * wraps: for validation.
 */
#ifndef DATA_BATCH_H
#define DATA_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "data/token_shard.h"

typedef struct Batches {
    const ShardSet *set; // borrowed
    int64_t seq;         // S
    int64_t per_step;    // sequences of one step, over all ranks and micro-batches
    uint64_t seed;
    bool shuffle;
    int64_t n_samples; // of one epoch
    int64_t *before;   // [set->n + 1]: samples in the shards before this one
} Batches;

/* Local. Dies when no shard holds S+1 tokens. */
Batches batches_make(const ShardSet *set, int64_t seq, int64_t per_step, uint64_t seed,
                     bool shuffle);
void batches_free(Batches *b);

/* Local. Writes sequences first .. first+n-1 of a step: inputs [n, S] and targets [n, S], every id
 * in [0, vocab). first + n <= batch_sequences(b, step). */
void batch_fill(const Batches *b, int64_t step, int64_t first, int64_t n, int32_t *inputs,
                int32_t *targets);
/* Local. The same for any first >= 0: sequences that the step does not have are padding, inputs 0
 * and targets -1. */
void batch_fill_padded(const Batches *b, int64_t step, int64_t first, int64_t n, int32_t *inputs,
                       int32_t *targets);
/* Local. Asks the system to read the same sequences from disk in the background; never fails,
 * changes no result. */
void batch_prefetch(const Batches *b, int64_t step, int64_t first, int64_t n);

/* Local. Sequences that a step has: per_step, or without shuffle what is left (0 after the end). */
int64_t batch_sequences(const Batches *b, int64_t step);
/* Local. Steps that see new sequences: whole steps per epoch with shuffle; without, the last one
 * may be partly filled. */
int64_t batch_steps(const Batches *b);
/* Local. Epochs read before a step, with their fraction. */
double batch_epochs(const Batches *b, int64_t step);
/* Local. Where sequence j of a step lies: its shard, and the first token in it. */
int batch_locate(const Batches *b, int64_t step, int64_t j, int64_t *first_token);

#endif
