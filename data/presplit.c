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
    if (n < 2 || p[0] != '\'') return 0;
    if (p[1] == 's' || p[1] == 't' || p[1] == 'm' || p[1] == 'd') return 2;
    if (n < 3) return 0;
    bool two = (p[1] == 'r' && p[2] == 'e') || (p[1] == 'v' && p[2] == 'e') ||
               (p[1] == 'l' && p[2] == 'l');
    return two ? 3 : 0;
}

/* The same with small and capital letters; U+017F is a small s, too. */
static size_t contraction_of_any_case(const uint8_t *p, size_t n) {
    uint8_t small[3] = {0};
    for (size_t i = 0; i < 3 && i < n; i++)
        small[i] = p[i] >= 'A' && p[i] <= 'Z' ? p[i] + ('a' - 'A') : p[i];
    return n >= 3 && memcmp(p, "'\xc5\xbf", 3) == 0 ? 3 : contraction(small, n);
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

static size_t next_gpt2(const uint8_t *p, size_t n) {
    size_t begin = p[0] == ' ' && n > 1, short_form = contraction(p, n);
    int len;
    if (short_form) return short_form;
    CharClass c = class_at(p + begin, n - begin, &len);
    if (c == CLASS_SPACE) return spaces(p, n);
    return skip_class(p, n, begin + (size_t)len, c);
}

/* A number ends the text before it: no space joins it, and spaces before it are one piece. */
static size_t next_digits(const uint8_t *p, size_t n) {
    int len;
    if (class_at(p, n, &len) == CLASS_NUMBER) return (size_t)len;
    size_t after = skip_class(p, n, 0, CLASS_SPACE);
    bool number = after > 0 && after < n && class_at(p + after, n - after, &len) == CLASS_NUMBER;
    return number ? after : next_gpt2(p, n);
}

static bool is_newline(uint8_t c) {
    return c == '\r' || c == '\n';
}

/* The expression of LLaMA 3, with \p{N}{1,3} or with \p{N}. */
static size_t next_llama3(const uint8_t *p, size_t n, bool digits_apart) {
    size_t short_form = contraction_of_any_case(p, n), i;
    int len, len_2 = 0;
    if (short_form) return short_form;
    CharClass c = class_at(p, n, &len), c_2 = CLASS_SPACE; // of the second character
    i = (size_t)len;
    if (i < n) c_2 = class_at(p + i, n - i, &len_2);
    if (c == CLASS_LETTER || (c != CLASS_NUMBER && !is_newline(p[0]) && c_2 == CLASS_LETTER))
        return skip_class(p, n, i, CLASS_LETTER);
    if (c == CLASS_NUMBER) {
        if (digits_apart || c_2 != CLASS_NUMBER) return i;
        i += (size_t)len_2;
        return i < n && class_at(p + i, n - i, &len) == CLASS_NUMBER ? i + (size_t)len : i;
    }
    if (c == CLASS_OTHER || (p[0] == ' ' && c_2 == CLASS_OTHER)) {
        i = skip_class(p, n, i, CLASS_OTHER);
        while (i < n && is_newline(p[i])) i++;
        return i;
    }
    size_t newline = skip_class(p, n, 0, CLASS_SPACE);
    while (newline > 0 && !is_newline(p[newline - 1])) newline--;
    return newline ? newline : spaces(p, n);
}

#define EXPRESSION(number)                                                                         \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" number                           \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
const char presplit_llama3[] = EXPRESSION("\\p{N}{1,3}"), presplit_qwen[] = EXPRESSION("\\p{N}");

size_t presplit_next(SplitRule rule, const uint8_t *p, size_t n) {
    switch (rule) {
    case SPLIT_NONE:
        return n;
    case SPLIT_GPT2:
        return next_gpt2(p, n);
    case SPLIT_DIGITS:
        return next_digits(p, n);
    case SPLIT_LLAMA3:
    case SPLIT_QWEN:
        return next_llama3(p, n, rule == SPLIT_QWEN);
    }
    return n;
}

static bool is_mark(uint8_t c) {
    return c > ' ' && c < 0x7F; // ASCII, not a space
}

/* After a newline an ASCII character that is no space begins a piece. So does a ' ' after such a
 * character. Looks for the first kind in SEARCH bytes,
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
