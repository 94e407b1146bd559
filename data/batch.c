#include "data/batch.h"

#include <inttypes.h>

#include "base/mem.h"
#include "base/rng.h"

Batches batches_make(const ShardSet *set, int64_t seq, int64_t per_step, uint64_t seed,
                     bool shuffle) {
    Batches b = {.set = set, .seq = seq, .per_step = per_step, .seed = seed, .shuffle = shuffle};
    b.before = mem_calloc((size_t)set->n + 1, sizeof *b.before);
    for (int i = 0; i < set->n; i++)
        b.before[i + 1] = b.before[i] + (set->shards[i].n_tokens - 1) / seq;
    b.n_samples = b.before[set->n];
    if (b.n_samples == 0)
        die_user("%s%s: %" PRId64 " tokens in all, and no file holds the %" PRId64
                 " of one sequence and its last target; use more text or a shorter --seq",
                 set->shards[0].path, set->n > 1 ? " and others" : "", set->n_tokens, seq + 1);
    return b;
}

void batches_free(Batches *b) {
    mem_free(b->before);
    *b = (Batches){0};
}

int batch_locate(const Batches *b, int64_t step, int64_t j, int64_t *first_token) {
    int64_t left = batch_sequences(b, step);
    if (step < 0 || j < 0 || j >= left)
        die("sequence %" PRId64 " of step %" PRId64 " does not exist: the step has %" PRId64, j,
            step, left);
    int64_t g = step * b->per_step + j, sample = g;
    if (b->shuffle) {
        uint64_t n = (uint64_t)b->n_samples, place = (uint64_t)g;
        sample = (int64_t)rng_permute(place % n, n, b->seed, place / n);
    }
    int lo = 0, hi = b->set->n; // before[lo] <= sample < before[hi]
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        if (b->before[mid] <= sample)
            lo = mid;
        else
            hi = mid;
    }
    *first_token = (sample - b->before[lo]) * b->seq;
    return lo;
}

/* Ids were checked against the vocabulary when the file was opened, so a wrong id here means that
 * the file has changed since. The id becomes 0, because kernels index the embedding with it, and
 * the file is noted as changed: the trainer then ends without making this step
 * (io_map_truncated). */
static void check_ids(const Batches *b, const Shard *s, int32_t *ids) {
    for (int64_t t = 0; t < b->seq; t++)
        if (ids[t] < 0 || ids[t] >= b->set->vocab) ids[t] = 0, io_map_mark_changed(&s->file);
}

void batch_fill(const Batches *b, int64_t step, int64_t first, int64_t n, int32_t *inputs,
                int32_t *targets) {
    int64_t first_token;
    for (int64_t i = 0; i < n; i++) {
        const Shard *s = &b->set->shards[batch_locate(b, step, first + i, &first_token)];
        shard_read(s, first_token, b->seq, inputs + i * b->seq);
        shard_read(s, first_token + 1, b->seq, targets + i * b->seq);
        check_ids(b, s, inputs + i * b->seq), check_ids(b, s, targets + i * b->seq);
        io_map_check(&s->file);
    }
}

void batch_fill_padded(const Batches *b, int64_t step, int64_t first, int64_t n, int32_t *inputs,
                       int32_t *targets) {
    int64_t left = batch_sequences(b, step) - first, real = left < 0 ? 0 : left < n ? left : n;
    batch_fill(b, step, first, real, inputs, targets);
    for (int64_t t = real * b->seq; t < n * b->seq; t++) inputs[t] = 0, targets[t] = -1;
}

void batch_prefetch(const Batches *b, int64_t step, int64_t first, int64_t n) {
    int64_t first_token, end = batch_sequences(b, step);
    for (int64_t j = first; j < first + n && j < end; j++) {
        const Shard *s = &b->set->shards[batch_locate(b, step, j, &first_token)];
        if (s->file.p)
            io_prefetch(s->tokens + first_token * s->width, (size_t)((b->seq + 1) * s->width));
    }
}

int64_t batch_sequences(const Batches *b, int64_t step) {
    if (b->shuffle) return b->per_step;
    if (step > b->n_samples / b->per_step) return 0;
    int64_t left = b->n_samples - step * b->per_step;
    return left < b->per_step ? left : b->per_step;
}

int64_t batch_steps(const Batches *b) {
    if (b->shuffle) return b->n_samples / b->per_step;
    return (b->n_samples + b->per_step - 1) / b->per_step;
}

double batch_epochs(const Batches *b, int64_t step) {
    return (double)step * (double)b->per_step / (double)b->n_samples;
}
