/* mem -- malloc that dies instead of returning NULL. Only base/ calls malloc; big blocks come from
 * arenas. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>

void *mem_alloc(size_t n_bytes);
void *mem_calloc(size_t n, size_t n_bytes);            // zeroed; dies on overflow of n * n_bytes
void *mem_realloc(void *p, size_t n, size_t n_bytes);  // n elements of n_bytes; dies on overflow
void *mem_alloc_aligned(size_t n_bytes, size_t align); // align is a power of two; freed by mem_free
char *mem_strdup(const char *s);
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2))); // a new string
void mem_free(void *p);                                                       // NULL is fine
/* Makes room for one more element in an array of n elements that has room for cap. */
#define mem_grow(array, n, cap)                                                                    \
    do {                                                                                           \
        if ((n) == (cap)) {                                                                        \
            (cap) = 2 * (cap) + 16;                                                                \
            (array) = mem_realloc((array), (size_t)(cap), sizeof *(array));                        \
        }                                                                                          \
    } while (0)

#endif
