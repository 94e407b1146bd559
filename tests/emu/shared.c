/* shared -- shared memory of the running block: poisoned before the block, its guard strips checked
 * afterwards. */
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "tests/emu/block.h"

/* All ones is NaN in every format, and -1. */
enum { POISON = 0xff, EDGE = 64, EDGE_BYTE = 0x77, ALIGN = 1024 };

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* Adds an object of n_bytes: poisons it and writes the guard strip behind it. */
static void add_object(Shared *s, const void *tag, size_t begin, size_t n_bytes) {
    size_t end = begin + n_bytes;
    memset(s->memory + begin, POISON, n_bytes);
    memset(s->memory + end, EDGE_BYTE, EDGE);
    s->object[s->n_objects].tag = tag;
    s->object[s->n_objects].begin = begin, s->object[s->n_objects++].end = end;
    s->used = end + EDGE;
}

void shared_size(Shared *s, size_t dynamic_bytes) {
    if (!s->memory) s->memory = mem_alloc_aligned(MAX_SHARED + (OBJECTS + 1) * 2 * EDGE, ALIGN);
    if (dynamic_bytes > MAX_SHARED)
        die("kernel %s: %zu bytes of shared memory; a block has at most %d", emu_block->name,
            dynamic_bytes, MAX_SHARED);
    s->dynamic_bytes = dynamic_bytes;
}

void shared_poison(Shared *s) {
    s->n_objects = 0;
    add_object(s, NULL, 0, s->dynamic_bytes);
}

void shared_check(const Shared *s) {
    for (int i = 0; i < s->n_objects; i++)
        for (int j = 0; j < EDGE; j++)
            if ((unsigned char)s->memory[s->object[i].end + (size_t)j] != EDGE_BYTE)
                emu_fail((EmuPlace){__FILE__, __LINE__},
                         "shared memory was written %d bytes behind the end of %s of %zu bytes", j,
                         i ? "an object" : "the dynamic part",
                         s->object[i].end - s->object[i].begin);
}

void shared_free(Shared *s) {
    mem_free(s->memory);
}

void *emu_shared(const void *tag, size_t n_bytes, size_t align) {
    Shared *s = &emu_block->shared;
    for (int i = 1; i < s->n_objects; i++)
        if (s->object[i].tag == tag) return s->memory + s->object[i].begin;
    size_t begin = round_up(s->used, align > 16 ? align : 16);
    size_t statics = s->dynamic_bytes + EDGE; // the dynamic part ends there
    if (s->n_objects == OBJECTS || begin + n_bytes - statics > MAX_STATIC)
        emu_fail((EmuPlace){__FILE__, __LINE__}, "more than %d bytes of static shared memory",
                 MAX_STATIC);
    if (begin + n_bytes > MAX_SHARED + (size_t)s->n_objects * 2 * EDGE)
        emu_fail((EmuPlace){__FILE__, __LINE__}, "more than %d bytes of shared memory", MAX_SHARED);
    add_object(s, tag, begin, n_bytes);
    return s->memory + begin;
}

void *emu_shared_dynamic(void) {
    return emu_block->shared.memory;
}

int64_t emu_shared_offset(const void *p) {
    const Shared *s = &emu_block->shared;
    const char *at = p;
    return at >= s->memory && at < s->memory + s->used ? at - s->memory : -1;
}
