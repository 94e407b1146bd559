/* arena -- memory by lifetime: parameters, gradients, optimizer, activations, workspace.
 *
 *   measure   a = arena_measure("gradients")   base is NULL: arena_take only counts, returns NULL
 *   commit    arena_commit(&a)                 maps what was counted: zeroed, in huge pages
 *   cut       the same walk again              arena_take now returns pointers, in the same order
 *
 * The same function walks over all buffers in both modes, so the memory table that is printed
 * before anything big is allocated agrees with what is allocated. Nothing allocates inside a
 * training step.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ARENA_ALIGN = 128 }; // bytes; two cache lines, a multiple of every vector width

/* Allocator of memory other than the host's: a GPU's. put copies from host memory to it, get copies
 * back to the host; both return when the host may use its own buffer again. Every function dies
 * when it fails. */
typedef struct ArenaMemory {
    void *(*map)(size_t n_bytes); // zeroed, aligned to ARENA_ALIGN
    void (*unmap)(void *p);
    void (*put)(void *to, const void *from, size_t n_bytes);
    void (*get)(void *to, const void *from, size_t n_bytes);
    size_t (*available)(void); // bytes
    // waits until all work begun on the memory is done; NULL: nothing runs asynchronously
    void (*wait)(void);
} ArenaMemory;

typedef struct Arena {
    const char *name;
    const ArenaMemory *memory; // NULL: host memory; set before arena_commit
    char *base;                // NULL while measuring
    size_t used;               // bytes taken so far in this walk
    size_t cap;                // bytes mapped
    uint64_t walk;             // hash of the sizes taken: equal walks have equal hashes
} Arena;

/* Local. An arena in measuring mode. */
Arena arena_measure(const char *name);
/* Local. Next block of n_bytes, aligned to ARENA_ALIGN; NULL while measuring. Dies on overflow of a
 * committed arena. */
void *arena_take(Arena *a, size_t n_bytes);
/* Local. Maps the measured bytes (zeroed) and starts the second walk. Dies when the system refuses.
 */
void arena_commit(Arena *a);
/* Local. A committed arena of one block of n_bytes, at its base. memory: NULL, the host's. */
Arena arena_block(const char *name, const ArenaMemory *memory, size_t n_bytes);
/* Local. Bytes of the arena that lie in physical memory: host pages that were touched; the whole
 * arena on a device. 0 while measuring. */
size_t arena_resident(const Arena *a);
/* Local. Unmaps. */
void arena_free(Arena *a);

#endif
