#include "data/batch.h"

#include "tests/test.h"

/* Shards in memory whose token at position p of shard s is a number that no other place has. */
enum { SHARDS = 5, MOST = 128 };
static const int64_t sizes[SHARDS] = {83, 1, 17, 128, 64};

static uint32_t place[SHARDS][MOST];

static ShardSet make_set(Shard shards[SHARDS]) {
    ShardSet set = {.shards = shards, .n = SHARDS, .vocab = SHARDS * MOST};
    for (uint32_t s = 0; s < SHARDS; s++) {
        for (uint32_t p = 0; p < MOST; p++) place[s][p] = s * MOST + p;
        shards[s] = (Shard){.format = SHARD_LLMC32,
                            .width = 4,
                            .tokens = (const uint8_t *)place[s],
                            .n_tokens = sizes[s],
                            .path = (char *)"memory"};
        set.n_tokens += sizes[s];
    }
    return set;
}

static int64_t expected_samples(int64_t S) {
    int64_t n = 0;
    for (int s = 0; s < SHARDS; s++) n += (sizes[s] - 1) / S;
    return n;
}

TEST(batch_epoch_is_a_permutation) {
    Shard shards[SHARDS];
    ShardSet set = make_set(shards);
    for (int64_t S = 1; S <= 100; S += 9) {
        OWNED(batches_free) Batches b = batches_make(&set, S, 3, 1234, true);
        CHECK(b.n_samples == expected_samples(S));
        int32_t in[MOST], to[MOST];
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            int seen[SHARDS][MOST] = {{0}};
            for (int64_t g = epoch * b.n_samples; g < (epoch + 1) * b.n_samples; g++) {
                batch_fill(&b, g / 3, g % 3, 1, in, to);
                int64_t s = in[0] / MOST, at = in[0] % MOST;
                CHECK(at % S == 0 && at + S < sizes[s]); // a whole sample, inside its shard
                for (int64_t i = 0; i < S; i++)
                    CHECK(in[i] == s * MOST + at + i && to[i] == in[i] + 1);
                CHECK(seen[s][at]++ == 0);
            }
        }
    }
}

static int differences(const Batches *x, int64_t gx, const Batches *y, int64_t gy) {
    int n = 0;
    int64_t px, py;
    for (int64_t i = 0; i < x->n_samples; i++) {
        int sx = batch_locate(x, gx + i, 0, &px), sy = batch_locate(y, gy + i, 0, &py);
        n += sx != sy || px != py;
    }
    return n;
}

TEST(batch_order_depends_on_seed_and_epoch) {
    Shard shards[SHARDS];
    ShardSet set = make_set(shards);
    OWNED(batches_free)
    Batches b = batches_make(&set, 2, 1, 7, true), same = batches_make(&set, 2, 1, 7, true);
    OWNED(batches_free) Batches other = batches_make(&set, 2, 1, 8, true);
    int64_t n = b.n_samples;
    CHECK(n > 100);
    CHECK(differences(&b, 0, &same, 0) == 0);
    // two random orders of n agree in one place on average; half of them is out of reach
    CHECK(differences(&b, 0, &b, n) > n / 2);
    CHECK(differences(&b, n, &b, 2 * n) > n / 2);
    CHECK(differences(&b, 0, &other, 0) > n / 2);
    OWNED(batches_free) Batches order = batches_make(&set, 2, 1, 7, false);
    CHECK(differences(&b, 0, &order, 0) > n / 2);
}

TEST(batch_any_split_of_a_step_is_the_same) {
    enum { STEP = 12, S = 5 };
    Shard shards[SHARDS];
    ShardSet set = make_set(shards);
    OWNED(batches_free) Batches b = batches_make(&set, S, STEP, 99, true);
    for (int64_t step = 0; step < 20; step++) { // across the ends of epochs
        int32_t in[STEP * S], to[STEP * S], part_in[STEP * S], part_to[STEP * S];
        batch_fill(&b, step, 0, STEP, in, to);
        for (int64_t piece = 1; piece < STEP; piece++) {
            memset(part_in, 0xff, sizeof part_in), memset(part_to, 0xff, sizeof part_to);
            for (int64_t first = 0; first < STEP; first += piece) {
                int64_t n = first + piece < STEP ? piece : STEP - first;
                batch_prefetch(&b, step, first, n);
                batch_fill(&b, step, first, n, part_in + first * S, part_to + first * S);
            }
            CHECK(memcmp(in, part_in, sizeof in) == 0 && memcmp(to, part_to, sizeof to) == 0);
        }
    }
}

TEST(batch_size_does_not_change_the_order) {
    Shard shards[SHARDS];
    ShardSet set = make_set(shards);
    OWNED(batches_free)
    Batches one = batches_make(&set, 5, 1, 3, true), eight = batches_make(&set, 5, 8, 3, true);
    int64_t p1, p8;
    for (int64_t g = 0; g < 200; g++) {
        int s1 = batch_locate(&one, g, 0, &p1), s8 = batch_locate(&eight, g / 8, g % 8, &p8);
        CHECK(s1 == s8 && p1 == p8);
    }
}

TEST(batch_in_order) {
    enum { S = 10 };
    Shard shards[SHARDS];
    ShardSet set = make_set(shards);
    OWNED(batches_free) Batches b = batches_make(&set, S, 4, 3, false);
    int64_t g = 0, at;
    for (int s = 0; s < SHARDS; s++)
        for (int64_t i = 0; i < (sizes[s] - 1) / S; i++, g++) {
            CHECK(batch_locate(&b, g / 4, g % 4, &at) == s);
            CHECK(at == i * S);
        }
    CHECK(g == b.n_samples && g == 27); // 8 + 0 + 1 + 12 + 6
    CHECK(batch_steps(&b) == 7);
    OWNED(batches_free) Batches one = batches_make(&set, S, 1, 3, false);
    CHECK(batch_steps(&one) == 27);
    CHECK(batch_sequences(&b, 5) == 4 && batch_sequences(&b, 6) == 3);
    CHECK(batch_sequences(&b, 7) == 0 && batch_sequences(&b, 1000) == 0);
}

TEST(batch_epochs_are_counted) {
    Shard shards[SHARDS];
    ShardSet set = make_set(shards);
    OWNED(batches_free) Batches b = batches_make(&set, 10, 4, 3, true); // 27 samples
    CHECK(batch_steps(&b) == 6);
    CHECK(batch_epochs(&b, 0) == 0);
    CHECK(batch_epochs(&b, 6) < 1); // samples 24 .. 27: the last is of epoch 1
    CHECK(batch_epochs(&b, 7) > 1 && batch_epochs(&b, 7) < 2);
    CHECK(batch_sequences(&b, 1000000) == 4);
    CHECK_NEAR(batch_epochs(&b, 27), 4, 0); // 27 * 4 / 27 is exact
}

/* The last step has 3 sequences; a fourth and later ones are no part of the loss. */
TEST(batch_padding_follows_what_is_there) {
    enum { S = 10, N = 4 };
    Shard shards[SHARDS];
    ShardSet set = make_set(shards);
    OWNED(batches_free) Batches b = batches_make(&set, S, N, 3, false);
    int32_t in[(N + 1) * S], to[(N + 1) * S], want_in[N * S] = {0}, want_to[N * S];
    memset(in, 7, sizeof in), memset(to, 7, sizeof to), memset(want_to, -1, sizeof want_to);
    batch_fill(&b, 6, 0, 3, want_in, want_to);
    for (int first = 0; first < 6; first += 5) { // the second has nothing but padding
        batch_fill_padded(&b, 6, first, N, in, to);
        CHECK(memcmp(in, want_in, sizeof want_in) == 0 && memcmp(to, want_to, sizeof want_to) == 0);
        CHECK(in[N * S] == 0x07070707 && to[N * S] == 0x07070707);
        memset(want_in, 0, sizeof want_in), memset(want_to, -1, sizeof want_to);
    }
}

/* Kernels index the embedding with an id, also with one that has changed since it was checked. */
TEST(batch_gives_no_id_beyond_the_vocabulary) {
    enum { S = 10, N = 27 };
    Shard shards[SHARDS];
    ShardSet set = make_set(shards);
    OWNED(batches_free) Batches b = batches_make(&set, S, N, 3, false);
    int32_t in[N * S], to[N * S];
    set.vocab = 40;
    batch_fill(&b, 0, 0, N, in, to);
    for (int i = 0; i < N * S; i++)
        CHECK(in[i] == (i < 40 ? i : 0) && to[i] == (i < 39 ? i + 1 : 0));
}

/* ---- failures -------------------------------------------------------------------------------- */

static void too_long(void *arg) {
    OWNED(batches_free) Batches b = batches_make(arg, 128, 1, 0, true);
}

static void past_the_end(void *arg) {
    int32_t in[40], to[40];
    Batches b = batches_make(arg, 10, 4, 0, false);
    batch_fill(&b, 6, 0, 4, in, to); // the last step has 3
}

static void past_the_step(void *arg) {
    int64_t at;
    Batches b = batches_make(arg, 10, 4, 0, true);
    batch_locate(&b, 0, 4, &at);
}

TEST(batch_failures) {
    Shard shards[SHARDS];
    ShardSet set = make_set(shards);
    OWNED(batches_free)
    Batches b = batches_make(&set, 127, 1, 0, true); // S+1 = 128 tokens: the largest shard, once
    CHECK(b.n_samples == 1);
    CHECK_CHILD(1, too_long, &set, "no file holds the 129");
    CHECK_CHILD(1, past_the_end, &set, "the step has 3");
    CHECK_CHILD(1, past_the_step, &set, "the step has 4");
}
