#include "parallel/step/head.h"

/* Logits of one chunk of tokens, in floats. On the host larger chunks gain nothing. On a device
 * each adds to the float gradient [V, C]: 8 V C bytes, of GPT-2 124M 309 MB, and its matmuls end
 * with multiprocessors that have nothing to do: dx of 4,736 rows is 111 tiles of 128 x 256 for 132
 * of them. So it is one chunk up to some 42,000 tokens of GPT-2's vocabulary, 4 GiB in bf16; longer
 * ones have whole waves of an H100's 132 tiles of rows. */
enum { HEAD_BYTES = 256 << 20, WAVE = 132 * 128 };
static const int64_t head_bytes_device = (int64_t)8 << 30;

static int64_t up_to(int64_t n, int64_t part) {
    return (n + part - 1) / part;
}

int64_t head_ld(int64_t V) {
    return up_to(V, 16) * 16;
}

int64_t head_chunk(int64_t T, int64_t V, bool device) {
    int64_t bytes = device ? head_bytes_device : HEAD_BYTES;
    int64_t most = bytes / (head_ld(V) * (int64_t)sizeof(float)); // whatever the word
    if (device && T > most && most >= WAVE) return most / WAVE * WAVE;
    int64_t chunks = most > 0 ? up_to(T, most) : T;
    int64_t rows = up_to(up_to(T, chunks), 64) * 64; // chunks of about equal length
    return rows < T ? rows : T;
}
