/* Any bytes as a token file: the first two say how many of the rest are a Megatron index (0: an
 * llm.c or nanoGPT file). What is accepted must be readable from its first to its last token. */
#include <stdlib.h>
#include <string.h>

#include "data/token_shard.h"
#include "tests/fuzz/seeds.h"

static void seeds(void) {
    static const int32_t ids[] = {1, 60, 50256, 9, 0};
    static const ShardFormat formats[] = {SHARD_LLMC16, SHARD_LLMC32, SHARD_NANOGPT};
    static const char *const names[] = {"llmc16", "llmc32", "nanogpt"};
    char *path = seed_path("x_train.bin");
    for (int i = 0; i < 3; i++) {
        char *prefix = seed_path("x");
        ShardWriter *w = shard_writer_open(prefix, "train", formats[i], 50257, 0);
        shard_writer_put(w, ids, 5);
        shard_writer_commit(w);
        seed_behind(names[i], "\0\0", 2, path);
        mem_free(prefix);
    }
    io_remove_tree(path, NULL);
    mem_free(path);
    // an index of 62 bytes: of uint16, one sequence of four tokens, one document
    SEED("megatron",
         "\76\0MMIDIDX\0\0\1\0\0\0\0\0\0\0\10\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0"
         "\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\1\0\2\0\74\0\120\304");
}

static void read_all(const Shard *s, const uint8_t *p, size_t n) {
    if (s->n_tokens < 1 || s->tokens < p || s->n_tokens > (int64_t)n) abort();
    if (s->tokens + s->n_tokens * s->width != p + n) abort(); // tokens fill the file to its end
    int32_t ids[64];
    for (int64_t at = 0; at < s->n_tokens; at += 64)
        shard_read(s, at, s->n_tokens - at < 64 ? s->n_tokens - at : 64, ids);
    int64_t vocab = 50257;
    if (shard_check(s, vocab, NULL, NULL))
        for (int64_t at = 0; at < s->n_tokens; at++) {
            shard_read(s, at, 1, ids);
            if (ids[0] < 0 || ids[0] >= vocab) abort();
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    Shard s;
    Err e;
    if (n < 2) return 0;
    size_t n_idx = (size_t)p[0] | (size_t)p[1] << 8;
    p += 2, n -= 2;
    bool ok;
    if (n_idx == 0) {
        ok = shard_parse(p, n, true, &s, &e);
        if (ok) read_all(&s, p, n);
        if (shard_parse(p, n, false, &s, &e) && !ok) abort(); // `raw` only ever accepts more
    } else if (n_idx <= n) {
        ok = shard_parse_megatron(p, n_idx, p + n_idx, n - n_idx, &s, &e);
        if (ok) read_all(&s, p + n_idx, n - n_idx);
    } else {
        return 0;
    }
    if (!ok && !memchr(e.text, 0, sizeof e.text)) abort();
    return 0;
}
