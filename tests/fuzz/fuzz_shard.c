/* Any bytes as a token file: the first two say how many of the rest are a Megatron index (0: an
 * llm.c or nanoGPT file). What is accepted must be readable from its first to its last token. */
#include <stdlib.h>
#include <string.h>

#include "data/token_shard.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

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
