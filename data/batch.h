/* batch -- which tokens a step sees, as a function of (shards, seed, S, sequences per step, step).
 *
 * A sample is S+1 consecutive tokens of one shard: sample i starts at token i*S of the shard. Its
 * inputs are the first S of them, its targets the last S. Samples are numbered through all shards.
 * An epoch visits each sample exactly once, in an order that rng_permute derives from seed and
 * epoch. Sequence j of a step is the sample at
 *
 *     g = step * per_step + j      epoch = g / n_samples      position in the epoch = g % n_samples
 *
 * No state is kept and the number of ranks does not enter: sequences [j0, j1) of a step are the
 * same on any mesh, and a resumed run needs only the step. Without shuffle, for validation, samples
 * follow in the order of the files, and steps beyond the last sample are empty.
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
    int64_t n_samples; // samples of an epoch
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
/* Local. As batch_fill, for any first >= 0: sequences beyond the end of the step are padding, with
 * inputs 0 and targets -1. */
void batch_fill_padded(const Batches *b, int64_t step, int64_t first, int64_t n, int32_t *inputs,
                       int32_t *targets);
/* Local. Asks the operating system to read the sequences first .. first+n-1 of a step from disk in
 * the background. A hint: it never fails and changes no result. */
void batch_prefetch(const Batches *b, int64_t step, int64_t first, int64_t n);

/* Local. Number of sequences in a step: per_step with shuffle. Without shuffle the last step has
 * the remaining samples, and later steps have 0. */
int64_t batch_sequences(const Batches *b, int64_t step);
/* Local. Number of steps in an epoch: with shuffle rounded down to whole steps, without shuffle
 * rounded up, as the last step may be partly filled. */
int64_t batch_steps(const Batches *b);
/* Local. Epochs read before a step, with their fraction: step * per_step / n_samples. */
double batch_epochs(const Batches *b, int64_t step);
/* Local. Where sequence j of a step lies: its shard, and the first token in it. */
int batch_locate(const Batches *b, int64_t step, int64_t j, int64_t *first_token);

#endif
