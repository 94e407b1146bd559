#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/presplit.h"
#include "data/tokenizer.h"
#include "tests/test.h"

static const char vocab_path[] = "../shared/data/gpt2_vocab.json";

static bool same_ids(const int32_t *a, int64_t n, const int32_t *b, int64_t m) {
    return n == m && memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

/* decode(encode(x)) == x */
static void check_round_trip(const Tokenizer *t, const uint8_t *p, size_t n) {
    int32_t *ids;
    uint8_t *back;
    int64_t n_ids = tokenizer_encode(t, p, n, &ids);
    int64_t n_back = tokenizer_decode(t, ids, n_ids, &back);
    bool same = n_back == (int64_t)n && (n == 0 || memcmp(back, p, n) == 0);
    mem_free(ids);
    mem_free(back);
    CHECK(same);
}

TEST(tokenizer_bytes_are_their_own_ids) {
    Tokenizer *t = tokenizer_load("bytes");
    uint8_t all[256];
    for (int i = 0; i < 256; i++) all[i] = (uint8_t)i;
    int32_t *ids;
    int64_t n = tokenizer_encode(t, all, 256, &ids);
    CHECK(n == 256);
    for (int i = 0; i < 256; i++) CHECK(ids[i] == i);
    CHECK(tokenizer_vocab(t) == 257 && tokenizer_eot(t) == 256);
    mem_free(ids);
    check_round_trip(t, all, 256);
    check_round_trip(t, all, 0);
    tokenizer_free(t);
}

TEST(tokenizer_gpt2_known_ids) {
    if (access(vocab_path, R_OK) != 0) {
        test_skip("../shared/data/gpt2_vocab.json is absent");
        return;
    }
    static const char text[] = "Hello world, it's  me!\n\n";
    static const int32_t want[] = {15496, 995, 11, 340, 338, 220, 502, 0, 628};
    Tokenizer *t = tokenizer_load(vocab_path);
    int32_t *ids;
    int64_t n = tokenizer_encode(t, (const uint8_t *)text, sizeof text - 1, &ids);
    CHECK(same_ids(ids, n, want, 9));
    CHECK(tokenizer_vocab(t) == 50257 && tokenizer_eot(t) == 50256);
    mem_free(ids);
    tokenizer_free(t);
}
