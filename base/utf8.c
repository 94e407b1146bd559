#include "base/utf8.h"

#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

size_t utf8_decode(const uint8_t *p, size_t n, uint32_t *code) {
    // least code of a character of len bytes
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t a = p[0];
    size_t len = a < 0x80 ? 1 : a < 0xc0 ? 0 : a < 0xe0 ? 2 : a < 0xf0 ? 3 : a < 0xf8 ? 4 : 0;
    if (len == 0 || len > n) return 0;
    *code = len == 1 ? a : a & 0x7fu >> len;
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        *code = *code << 6 | (p[i] & 0x3f);
    }
    bool surrogate = *code >= 0xd800 && *code < 0xe000;
    return *code < least[len] || surrogate || *code > 0x10ffff ? 0 : len;
}

size_t utf8_write(uint32_t code, uint8_t to[4]) {
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    to[0] = (uint8_t)(more ? 0xFF00 >> (more + 1) | code >> 6 * more : code);
    for (int i = 1; i <= more; i++) to[i] = (uint8_t)(0x80 | (code >> 6 * (more - i) & 0x3F));
    return (size_t)more + 1;
}

char *utf8_clean(const char *s) {
    size_t n = strlen(s), used = 0;
    char *out = mem_alloc(3 * n + 1);
    for (size_t i = 0; i < n;) {
        uint32_t code;
        size_t len = utf8_decode((const uint8_t *)s + i, n - i, &code);
        memcpy(out + used, len ? s + i : "\xef\xbf\xbd", len ? len : 3);
        used += len ? len : 3, i += len ? len : 1;
    }
    out[used] = 0;
    return out;
}

void utf8_repair(char *s) {
    uint32_t code;
    for (size_t n; *s; s += n) {
        n = utf8_decode((const uint8_t *)s, strnlen(s, 4), &code);
        if (n == 0) *s = '?', n = 1;
    }
}
