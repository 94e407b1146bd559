#include "data/presplit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/utf8.h"

static uint8_t class_of[0x110000]; // class of each code point; valid once `unpacked`
static atomic_bool unpacked;

static void unpack(void) {
    uint8_t *at = class_of;
    for (const uint32_t *run = unicode_runs; *run; at += *run++ >> 2)
        if (*run & 3) memset(at, (int)(*run & 3), *run >> 2);
    atomic_store_explicit(&unpacked, true, memory_order_release);
}

CharClass unicode_class(uint32_t code) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!atomic_load_explicit(&unpacked, memory_order_acquire)) pthread_once(&once, unpack);
    return code <= 0x10FFFF ? (CharClass)class_of[code] : CLASS_OTHER;
}

CharClass utf8_class(const uint8_t *p, size_t n, int *len) {
    uint32_t code;
    size_t found = utf8_decode(p, n, &code);
    *len = found ? (int)found : 1;
    return found ? unicode_class(code) : CLASS_OTHER;
}

/* As utf8_class, with a short way for ASCII. */
static inline CharClass class_at(const uint8_t *p, size_t n, int *len) {
    if (p[0] >= 0x80) return utf8_class(p, n, len);
    *len = 1;
    return unicode_class(p[0]);
}

/* Length of 's 't 're 've 'm 'll 'd at p, or 0. */
static size_t contraction(const uint8_t *p, size_t n) {
    if (n < 2) return 0;
    if (p[1] == 's' || p[1] == 't' || p[1] == 'm' || p[1] == 'd') return 2;
    if (n < 3) return 0;
    bool two = (p[1] == 'r' && p[2] == 'e') || (p[1] == 'v' && p[2] == 'e') ||
               (p[1] == 'l' && p[2] == 'l');
    return two ? 3 : 0;
}

/* First offset >= i whose character is not of class c. */
static inline size_t skip_class(const uint8_t *p, size_t n, size_t i, CharClass c) {
    int len;
    while (i < n && class_at(p + i, n - i, &len) == c) i += (size_t)len;
    return i;
}

/* Length of the piece \s+(?!\S)|\s+ at p[0], a space: all spaces at the end of the text; before
 * another character all but the last of several spaces. */
static size_t spaces(const uint8_t *p, size_t n) {
    size_t i = 0, last = 0; // last: offset of the last space
    int len;
    while (i < n && class_at(p + i, n - i, &len) == CLASS_SPACE) last = i, i += (size_t)len;
    return i < n && last > 0 ? last : i;
}

size_t presplit_next(const uint8_t *p, size_t n) {
    if (p[0] == '\'') {
        size_t c = contraction(p, n);
        if (c) return c;
    }
    size_t begin = p[0] == ' ' && n > 1;
    int len;
    CharClass c = class_at(p + begin, n - begin, &len);
    if (c == CLASS_SPACE) return spaces(p, n);
    return skip_class(p, n, begin + (size_t)len, c);
}

static bool is_mark(uint8_t c) {
    return c > ' ' && c < 0x7F; // ASCII, not a space
}

/* After a newline or another ASCII space that is not ' ', an ASCII character that is no space
 * begins a piece. So does a ' ' after such a character. Looks for the first kind in SEARCH bytes,
 * then for the second. */
size_t presplit_safe(const uint8_t *p, size_t n, size_t from) {
    enum { SEARCH = 1 << 16 }; // bytes in which the beginning of a line is searched
    if (from == 0) return 0;
    size_t stop = n - from > SEARCH ? from + SEARCH : n;
    for (size_t i = from; i < stop;) {
        const uint8_t *line = memchr(p + i - 1, '\n', stop - i);
        if (!line) break;
        i = (size_t)(line - p) + 1;
        if (is_mark(p[i])) return i;
        i++;
    }
    for (size_t i = from; i < n; i++)
        if (is_mark(p[i - 1]) && p[i] == ' ') return i;
    return n;
}
