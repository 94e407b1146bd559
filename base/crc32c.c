#include "base/crc32c.h"

#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read in file order");

// table[k][b]: the checksum of byte b followed by k zero bytes, without the inversions at both
// ends. So eight bytes take eight independent look-ups.
static uint32_t table[8][256];

/* A word is a polynomial over GF(2) of degree below 32, the coefficient of x^0 in the highest bit.
 * One more bit of zeros after the data multiplies the checksum by x, modulo the polynomial. */
static uint32_t times_x(uint32_t c) {
    return c >> 1 ^ (c & 1 ? 0x82f63b78u : 0);
}

__attribute__((constructor)) static void fill_table(void) {
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t c = b;
        for (int i = 0; i < 8; i++) c = times_x(c);
        table[0][b] = c;
    }
    for (int b = 0; b < 256; b++)
        for (int k = 1; k < 8; k++)
            table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
}

uint32_t crc32c_portable(uint32_t crc, const void *p, size_t n) {
    const uint8_t *s = p;
    uint32_t c = ~crc;
    for (; n >= 8; s += 8, n -= 8) {
        uint32_t w[2];
        memcpy(w, s, 8);
        w[0] ^= c;
        c = table[7][w[0] & 255] ^ table[6][w[0] >> 8 & 255] ^ table[5][w[0] >> 16 & 255] ^
            table[4][w[0] >> 24] ^ table[3][w[1] & 255] ^ table[2][w[1] >> 8 & 255] ^
            table[1][w[1] >> 16 & 255] ^ table[0][w[1] >> 24];
    }
    for (; n > 0; s++, n--) c = c >> 8 ^ table[0][(c ^ *s) & 255];
    return ~c;
}

/* The product of two polynomials, modulo the polynomial of the checksum. */
static uint32_t times(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (int i = 31; i >= 0; i--, b = times_x(b))
        if (a >> i & 1) product ^= b;
    return product;
}

/* The checksum of both buffers is that of the first times x^(8 n_b), plus that of the second: the
 * inversions at both ends cancel. */
uint32_t crc32c_join(uint32_t a, uint32_t b, uint64_t n_b) {
    uint32_t power = 1u << 23; // x^8: one zero byte; squared in each round
    for (; n_b > 0; n_b >>= 1, power = times(power, power))
        if (n_b & 1) a = times(a, power);
    return a ^ b;
}

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const void *p,
                                                                 size_t n) {
    const uint8_t *s = p;
    uint64_t c = (uint32_t)~crc;
    for (; n >= 8; s += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, s, 8);
        c = _mm_crc32_u64(c, w);
    }
    for (; n > 0; s++, n--) c = _mm_crc32_u8((uint32_t)c, *s);
    return ~(uint32_t)c;
}

static bool has_instruction;
__attribute__((constructor)) static void detect(void) {
    __builtin_cpu_init();
    has_instruction = __builtin_cpu_supports("sse4.2");
}

uint32_t crc32c(uint32_t crc, const void *p, size_t n) {
    return has_instruction ? by_instruction(crc, p, n) : crc32c_portable(crc, p, n);
}

#else

uint32_t crc32c(uint32_t crc, const void *p, size_t n) {
    return crc32c_portable(crc, p, n);
}

#endif
