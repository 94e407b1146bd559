#include "base/utf8.h"

#include <stdint.h>

size_t utf8_length(const char *s) {
    const uint8_t *p = (const uint8_t *)s;
    uint8_t a = p[0], low = 0x80, high = 0xbf;
    size_t n = a < 0x80 ? 1 : a < 0xc2 ? 0 : a < 0xe0 ? 2 : a < 0xf0 ? 3 : a < 0xf5 ? 4 : 0;
    if (a == 0xe0) low = 0xa0;
    if (a == 0xed) high = 0x9f;
    if (a == 0xf0) low = 0x90;
    if (a == 0xf4) high = 0x8f;
    for (size_t i = 1; i < n; i++, low = 0x80, high = 0xbf)
        if (p[i] < low || p[i] > high) return 0; // the end mark of the string is caught here too
    return n;
}

void utf8_mend(char *s) {
    for (size_t n; *s; s += n) {
        n = utf8_length(s);
        if (n == 0) *s = '?', n = 1;
    }
}
