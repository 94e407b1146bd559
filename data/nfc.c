#include "data/nfc.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

enum {
    NO_UTF8 = 0x110000, // a byte that is not UTF-8 is NO_UTF8 + byte
    CHANGES = 256,      // in kind_of: NFC may replace the character or compose it with one before
    CODE = 0x1FFFFF,    // bits of a code point
    MOST = 1 << 12,     // decompositions; 2060 in Unicode 9
};
/* Hangul: the first leading consonant L, vowel V and syllable S; T is before the first trailing
 * consonant. A syllable is LV or LVT. */
enum { L = 0x1100, V = 0x1161, T = 0x11A7, S = 0xAC00, N_L = 19, N_V = 21, N_T = 28 };

/* The combining class of each code point, and CHANGES. 0: it stays, and nothing moves across its
 * beginning. */
static uint16_t kind_of[NO_UTF8 + 256];
/* Sorted: splits by the composed character, joins by the parts. */
static uint64_t splits[MOST], joins[MOST];
static size_t n_splits, n_joins;

static uint64_t pack(uint64_t a, uint64_t b, uint64_t c) {
    return a << 42 | b << 21 | c;
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void unpack(void) {
    uint16_t *at = kind_of;
    for (const uint32_t *run = unicode_combining; *run; run++)
        for (uint32_t n = *run >> 8; n > 0; n--) *at++ = *run & 255;
    uint32_t code = 0;
    for (const uint32_t *x = unicode_decompositions; *x; x += 3) {
        code += *x >> 1;
        splits[n_splits++] = pack(code, x[1], x[2]);
        if (!(*x & 1)) joins[n_joins++] = pack(x[1], x[2], code);
        kind_of[*x & 1 ? code : x[2]] |= CHANGES;
        assert(n_splits < MOST);
    }
    for (int i = 0; i < N_V; i++) kind_of[V + i] |= CHANGES;
    for (int i = 1; i < N_T; i++) kind_of[T + i] |= CHANGES;
    qsort(joins, n_joins, sizeof *joins, ascending);
}

/* The entry whose bits from `shift` on are those of key; 0: none. */
static uint64_t find(const uint64_t *sorted, size_t n, uint64_t key, int shift) {
    size_t i = 0;
    for (size_t end = n; i < end;) {
        size_t middle = (i + end) / 2;
        if (sorted[middle] < key)
            i = middle + 1;
        else
            end = middle;
    }
    return i < n && sorted[i] >> shift == key >> shift ? sorted[i] : 0;
}

/* The entry c, first part, second part of a character that decomposes; 0: it does not. */
static uint64_t split(uint32_t c) {
    uint32_t s = c - S;
    if (s >= N_L * N_V * N_T) return find(splits, n_splits, pack(c, 0, 0), 42);
    return s % N_T ? pack(c, c - s % N_T, T + s % N_T)
                   : pack(c, L + s / (N_V * N_T), V + s / N_T % N_V);
}

/* The character that a and b compose; 0: none. */
static uint32_t join(uint32_t a, uint32_t b) {
    uint32_t s = a - S;
    if (a - L < N_L && b - V < N_V) return S + ((a - L) * N_V + b - V) * N_T;
    if (s < N_L * N_V * N_T && s % N_T == 0 && b - T - 1 < N_T - 1) return a + b - T;
    return (uint32_t)find(joins, n_joins, pack(a, b, 0), 21) & CODE;
}

/* Characters from one that stays to the next such: class << 56 | position << 24 | code. */
typedef struct Run {
    uint64_t *p;
    size_t n, cap;
} Run;

static void decompose(Run *r, uint32_t c) {
    uint64_t parts = split(c);
    if (parts) {
        decompose(r, parts >> 21 & CODE);
        c = parts & CODE; // does not decompose further
        if (!c) return;
    }
    mem_grow(r->p, r->n, r->cap);
    r->p[r->n] = (uint64_t)(kind_of[c] & 255) << 56 | (uint64_t)(uint32_t)r->n << 24 | c;
    r->n++;
}

/* Orders the marks behind each character of class 0 by class; of equal classes the first stays
 * first. */
static void order(Run *r) {
    for (size_t i = 0, end; i < r->n; i = end + 1) {
        for (end = i; end < r->n && r->p[end] >> 56;) end++;
        if (end - i > 1) qsort(r->p + i, end - i, sizeof *r->p, ascending);
    }
}

/* Composes each character with the last one of class 0 before it, unless something stands between
 * them whose class is 0 or not lower. */
static void compose(Run *r) {
    size_t n = 0, base = 0; // r->p[base] is of class 0 if n > base
    for (size_t i = 0; i < r->n; i++) {
        uint64_t x = r->p[i];
        bool open = n == base + 1 || (n > base && r->p[n - 1] >> 56 < x >> 56);
        uint32_t whole = open ? join(r->p[base] & CODE, x & CODE) : 0;
        if (!whole && !(x >> 56)) base = n;
        if (whole)
            r->p[base] = whole;
        else
            r->p[n++] = x;
    }
    r->n = n;
}

/* The character at p[0], and its number of bytes. */
static size_t decode(const uint8_t *p, size_t n, uint32_t *c) {
    size_t len = utf8_decode(p, n, c);
    if (!len) *c = NO_UTF8 + *p;
    return len ? len : 1;
}

size_t nfc_prefix(const uint8_t *p, size_t n) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, unpack);
    size_t stays = 0; // begin of the last character of kind 0
    uint32_t c;
    for (size_t i = 0, len, before = 0; i < n; i += len) {
        uint64_t eight;
        if (n - i >= 8 && (memcpy(&eight, p + i, 8), !(eight & 0x8080808080808080))) {
            stays = i + 7, before = 0, len = 8;
            continue;
        }
        len = decode(p + i, n - i, &c);
        size_t kind = kind_of[c];
        if (kind >= CHANGES || (kind && kind < before)) return stays;
        if (!kind) stays = i;
        before = kind;
    }
    return n;
}

size_t nfc_normalize(const uint8_t *p, size_t n, uint8_t *to) {
    uint8_t *begin = to;
    uint32_t c;
    Run r = {0};
    for (size_t i = 0, len; i < n;) {
        size_t same = nfc_prefix(p + i, n - i);
        memcpy(to, p + i, same);
        to += same, i += same;
        for (r.n = 0; i < n; i += len) {
            len = decode(p + i, n - i, &c);
            if (r.n && !kind_of[c]) break;
            decompose(&r, c);
        }
        order(&r);
        compose(&r);
        for (size_t k = 0; k < r.n; k++) {
            c = r.p[k] & CODE;
            if (c < NO_UTF8)
                to += utf8_write(c, to);
            else
                *to++ = (uint8_t)c;
        }
    }
    mem_free(r.p);
    return (size_t)(to - begin);
}
