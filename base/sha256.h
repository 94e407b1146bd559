/* sha256 -- the hash of FIPS 180-4: equal digests mean equal data.
 *
 *     Sha256 h = sha256_start();
 *     sha256_add(&h, p, n);                 as often as there are pieces
 *     sha256_end(&h, digest);
 *
 * The three bytes "abc" give ba7816bf 8f01cfea 414140de ...
 */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32 };

typedef struct Sha256 {
    uint32_t state[8];
    uint64_t n_bytes;
    uint8_t block[64]; // the last n_bytes % 64 bytes
} Sha256;

/* Local, pure. */
Sha256 sha256_start(void);
void sha256_add(Sha256 *h, const void *p, size_t n);
void sha256_end(Sha256 *h, uint8_t digest[SHA256_BYTES]);
/* Local. The digest in hexadecimal digits. */
const char *sha256_print(const uint8_t digest[SHA256_BYTES], char text[2 * SHA256_BYTES + 1]);

#endif
