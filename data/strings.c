#include "data/strings.h"

#include <string.h>

#include "base/die.h"
#include "base/mem.h"

static size_t hash(const uint8_t *p, size_t n) {
    uint64_t h = n;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        h = (h ^ w) * 0x9E3779B97F4A7C15u;
        h ^= h >> 32;
    }
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001B3u;
    h *= 0xD6E8FEB86659FD93u;
    return (size_t)(h ^ h >> 32);
}

/* The slot of the hash table that holds these bytes, or the free slot for them. */
static uint32_t *slot_of(const Strings *s, const uint8_t *p, size_t n) {
    for (size_t i = hash(p, n) & (s->n_slots - 1);; i = (i + 1) & (s->n_slots - 1)) {
        if (!s->slots[i]) return &s->slots[i];
        size_t len;
        const uint8_t *q = strings_at(s, s->slots[i] - 1, &len);
        if (len == n && memcmp(q, p, n) == 0) return &s->slots[i];
    }
}

/* Enters string i into the hash table, unless an equal string is there. */
static void enter(Strings *s, size_t i) {
    size_t n;
    const uint8_t *p = strings_at(s, i, &n);
    uint32_t *slot = slot_of(s, p, n);
    if (!*slot) *slot = (uint32_t)i + 1;
}

static void grow(Strings *s) {
    if (s->n > UINT32_MAX / 4) die("more than %zu distinct strings of bytes", s->n);
    mem_free(s->slots);
    s->n_slots = s->n_slots ? s->n_slots * 4 : 1024;
    s->cap = s->n_slots / 2;
    s->slots = mem_calloc(s->n_slots, sizeof *s->slots);
    s->first = mem_realloc(s->first, s->cap + 1, sizeof *s->first);
    s->first[0] = 0;
    for (size_t i = 0; i < s->n; i++) enter(s, i);
}

void strings_add(Strings *s, const uint8_t *p, size_t n) {
    if (s->n == s->cap) grow(s);
    if (s->n_bytes + n >= s->cap_bytes) {
        s->cap_bytes = (s->n_bytes + n) * 2 + 1; // so that bytes is never NULL
        s->bytes = mem_realloc(s->bytes, s->cap_bytes, 1);
    }
    memcpy(s->bytes + s->n_bytes, p, n);
    s->first[++s->n] = s->n_bytes += n;
    enter(s, s->n - 1);
}

int64_t strings_find(const Strings *s, const uint8_t *p, size_t n) {
    return s->n ? (int64_t)*slot_of(s, p, n) - 1 : -1;
}

size_t strings_number(Strings *s, const uint8_t *p, size_t n) {
    int64_t i = strings_find(s, p, n);
    if (i < 0) strings_add(s, p, n);
    return i < 0 ? s->n - 1 : (size_t)i;
}

const uint8_t *strings_at(const Strings *s, size_t i, size_t *n) {
    *n = s->first[i + 1] - s->first[i];
    return s->bytes + s->first[i];
}

void strings_free(Strings *s) {
    mem_free(s->bytes);
    mem_free(s->first);
    mem_free(s->slots);
}
