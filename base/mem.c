#include "base/mem.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/die.h"

#define MORE "; free memory or raise its limit (ulimit, the container's)"

static void *check(void *p, size_t n_bytes) {
    if (!p) die_user("out of memory: %zu bytes" MORE, n_bytes);
    return p;
}

void *mem_alloc(size_t n_bytes) {
    return check(malloc(n_bytes ? n_bytes : 1), n_bytes);
}

void *mem_calloc(size_t n, size_t n_bytes) {
    return check(calloc(n ? n : 1, n_bytes ? n_bytes : 1), n * n_bytes);
}

void *mem_realloc(void *p, size_t n, size_t n_bytes) {
    if (n_bytes && n > SIZE_MAX / 2 / n_bytes) die("out of memory: %zu x %zu bytes", n, n_bytes);
    size_t want = n * n_bytes;
    return check(realloc(p, want ? want : 1), want);
}

void *mem_alloc_aligned(size_t n_bytes, size_t align) {
    size_t want = (n_bytes + align - 1) / align * align;
    return check(aligned_alloc(align, want ? want : align), n_bytes);
}

char *mem_strdup(const char *s) {
    size_t n = strlen(s) + 1;
    return memcpy(mem_alloc(n), s, n);
}

char *mem_printf(const char *fmt, ...) {
    char *s = NULL;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&s, fmt, ap) < 0) die_user("out of memory" MORE);
    va_end(ap);
    return s;
}

void mem_free(void *p) {
    free(p);
}
