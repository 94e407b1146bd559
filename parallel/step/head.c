#include "parallel/step/head.h"

/* Logits of one chunk of tokens, in floats. On the host larger chunks gain nothing. On a device
 * each adds to the float gradient [V, C], 8 V C bytes beside 2 rows V of logits in words and 2 rows
 * V C operations: with GPT-2's vocabulary and C = 768 that was 234 operations a byte for the host's
 * 1,300 rows, and is 489 for a device's 5,300. An H100 keeps busy with 295 and more. */
enum { HEAD_BYTES = 256 << 20, HEAD_BYTES_DEVICE = 1 << 30 };

static int64_t up_to(int64_t n, int64_t part) {
    return (n + part - 1) / part;
}

int64_t head_ld(int64_t V) {
    return up_to(V, 16) * 16;
}

int64_t head_chunk(int64_t T, int64_t V, bool device) {
    int64_t bytes = device ? HEAD_BYTES_DEVICE : HEAD_BYTES;
    int64_t most = bytes / (head_ld(V) * (int64_t)sizeof(float)); // whatever the word
    int64_t chunks = most > 0 ? up_to(T, most) : T;
    int64_t rows = up_to(up_to(T, chunks), 64) * 64; // chunks of about equal length
    return rows < T ? rows : T;
}
