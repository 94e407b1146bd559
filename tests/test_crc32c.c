#include "tests/test.h"

#include "base/crc32c.h"

TEST(crc32c_known_answers) {
    uint8_t zeros[32] = {0}, up[32];
    for (int i = 0; i < 32; i++) up[i] = (uint8_t)i;
    CHECK(crc32c(0, "", 0) == 0);
    CHECK(crc32c(0, "123456789", 9) == 0xe3069283u);
    CHECK(crc32c(0, zeros, 32) == 0x8a9136aau); // RFC 3720 B.4
    CHECK(crc32c(0, up, 32) == 0x46dd794eu);
    CHECK(crc32c_portable(0, "123456789", 9) == 0xe3069283u);
    CHECK(crc32c_portable(0, up, 32) == 0x46dd794eu);
}

TEST(crc32c_pieces_and_tables_agree) {
    uint8_t x[301];
    for (size_t i = 0; i < sizeof x; i++) x[i] = (uint8_t)(i * i + 7 * i);
    for (size_t from = 0; from < 9; from++)
        for (size_t n = 0; n + from <= sizeof x; n++) {
            uint32_t whole = crc32c(5, x + from, n);
            CHECK(whole == crc32c_portable(5, x + from, n));
            CHECK(whole == crc32c(crc32c(5, x + from, n / 3), x + from + n / 3, n - n / 3));
        }
}

TEST(crc32c_of_two_pieces_is_joined) {
    uint8_t x[301];
    for (size_t i = 0; i < sizeof x; i++) x[i] = (uint8_t)(i * i + 7 * i);
    uint32_t whole = crc32c(0, x, sizeof x);
    for (size_t n = 0; n <= sizeof x; n++)
        CHECK(crc32c_join(crc32c(0, x, n), crc32c(0, x + n, sizeof x - n), sizeof x - n) == whole);
    OWNED(test_mem_end) uint8_t *zeros = mem_calloc(1, 100000); // many bits of the length
    CHECK(crc32c_join(whole, crc32c(0, zeros, 100000), 100000) == crc32c(whole, zeros, 100000));
}
