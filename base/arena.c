#include "base/arena.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/die.h"

Arena arena_measure(const char *name) {
    return (Arena){.name = name};
}

void *arena_take(Arena *a, size_t n_bytes) {
    size_t offset = a->used;
    if (n_bytes > SIZE_MAX / 2 - offset) die("arena %s: size overflows", a->name);
    a->walk = (a->walk ^ n_bytes) * 1099511628211u; // FNV-1a hash of the sizes
    a->used = offset + (n_bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (!a->base) return NULL;
    if (a->used > a->cap)
        die("arena %s: %zu bytes taken of %zu measured: the two walks differ", a->name, a->used,
            a->cap);
    return a->base + offset;
}

void arena_commit(Arena *a) {
    assert(!a->base);
    size_t n_bytes = a->used ? a->used : ARENA_ALIGN;
    a->cap = n_bytes;
    a->used = 0;
    if (a->memory) {
        a->base = a->memory->map(n_bytes);
        return;
    }
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        die_user("cannot allocate %.1f MiB of %s: %s; raise the limit of memory (ulimit -v, the "
                 "container's)",
                 (double)n_bytes / 1048576.0, a->name, strerror(errno));
    // Weight matrices are walked with strides of several KiB: small pages would cost a TLB miss per
    // row.
    madvise(p, n_bytes, MADV_HUGEPAGE);
    a->base = p;
}

Arena arena_block(const char *name, const ArenaMemory *memory, size_t n_bytes) {
    Arena a = {.name = name, .memory = memory};
    arena_take(&a, n_bytes);
    arena_commit(&a);
    arena_take(&a, n_bytes);
    return a;
}

size_t arena_resident(const Arena *a) {
    enum { PAGES = 4096 };
    // from mincore: one byte per page, bit 0 set if the page is in memory
    unsigned char in_memory[PAGES];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), sum = 0;
    if (a->memory) return a->base ? a->cap : 0;
    for (size_t offset = 0; a->base && offset < a->cap; offset += PAGES * page) {
        size_t n = a->cap - offset < PAGES * page ? a->cap - offset : PAGES * page;
        if (mincore(a->base + offset, n, in_memory)) die("mincore: %s", strerror(errno));
        for (size_t i = 0; i < (n + page - 1) / page; i++) sum += in_memory[i] & 1 ? page : 0;
    }
    return sum;
}

void arena_free(Arena *a) {
    if (a->base && a->memory)
        a->memory->unmap(a->base);
    else if (a->base)
        munmap(a->base, a->cap);
    *a = (Arena){.name = a->name};
}
