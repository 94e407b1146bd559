#include "tests/test.h"

#include <string.h>

#include "base/mem.h"
#include "base/sha256.h"

static const char *hash(const char *text) {
    static char hex[2 * SHA256_BYTES + 1];
    uint8_t digest[SHA256_BYTES];
    Sha256 h = sha256_start();
    sha256_add(&h, text, strlen(text));
    sha256_end(&h, digest);
    return sha256_print(digest, hex);
}

TEST(sha256_gives_the_digests_of_the_standard) {
    // NIST: Examples with Intermediate Values, SHA-256; the empty text from its validation vectors
    CHECK_STR(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK_STR(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK_STR(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    OWNED(test_mem_end) char *million = mem_calloc(1000001, 1);
    memset(million, 'a', 1000000);
    CHECK_STR(hash(million), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(sha256_of_pieces_is_that_of_the_whole) {
    uint8_t x[200], whole[SHA256_BYTES], pieces[SHA256_BYTES];
    for (size_t i = 0; i < sizeof x; i++) x[i] = (uint8_t)(i * i + 3 * i);
    for (size_t n = 0; n <= sizeof x; n++) { // every length around one, two and three blocks
        Sha256 a = sha256_start(), b = sha256_start();
        sha256_add(&a, x, n);
        for (size_t at = 0, step = 1; at < n;
             at += step, step = step % 70 + 13 < n - at ? step % 70 + 13 : n - at)
            sha256_add(&b, x + at, step);
        sha256_end(&a, whole);
        sha256_end(&b, pieces);
        CHECK(memcmp(whole, pieces, sizeof whole) == 0);
    }
}
