#include "base/rng.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void rng_words(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]) {
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0, c1 = (uint32_t)p1, c2 = n2, c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t w[4];
    rng_words(seed, stream, index, w);
    return (uint64_t)w[1] << 32 | w[0];
}

double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return (double)(rng_u64(seed, stream, index) >> 11) * 0x1p-53;
}

uint64_t rng_hash(uint64_t h, const void *p, size_t n) {
    const uint8_t *s = p;
    for (size_t i = 0; i < n; i++) h = (h ^ s[i]) * 0x100000001b3u;
    return h;
}

uint64_t rng_stream(const char *name) {
    return rng_hash(0xcbf29ce484222325u, name, strlen(name));
}

void rng_normal(float *x, int64_t n, uint64_t first, float std, uint64_t seed, uint64_t stream) {
    for (int64_t i = 0; i < n;) { // block g holds the global elements 4g .. 4g+3
        uint64_t g = (first + (uint64_t)i) / 4;
        uint32_t w[4];
        double z[4];
        rng_words(seed, stream, g, w);
        for (int p = 0; p < 4; p += 2) { // Box-Muller; u1 in (0, 1] so that the logarithm is finite
            double u1 = ((double)w[p] + 1.0) * 0x1p-32, u2 = (double)w[p + 1] * 0x1p-32;
            double r = sqrt(-2.0 * log(u1));
            z[p] = r * cos(6.283185307179586 * u2);
            z[p + 1] = r * sin(6.283185307179586 * u2);
        }
        for (uint64_t j = (first + (uint64_t)i) % 4; j < 4 && i < n; j++, i++)
            x[i] = (float)(z[j] * (double)std);
    }
}

/* A Feistel network permutes 0 .. 4^h - 1, the smallest such range that holds n; values >= n are
 * fed through again until they fall below n ("cycle walking": at most 4 passes are expected), which
 * leaves a permutation of 0 .. n-1. */
uint64_t rng_permute(uint64_t index, uint64_t n, uint64_t seed, uint64_t stream) {
    assert(index < n);
    int half = 1;
    while (half < 32 && (1ull << (2 * half)) < n) half++;
    uint64_t mask = half == 32 ? 0xffffffffu : (1ull << half) - 1, x = index;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t f = rng_u64(seed, stream, right | round << 56) & mask;
            uint64_t t = left ^ f;
            left = right, right = t;
        }
        x = left << half | right;
    } while (x >= n);
    return x;
}
