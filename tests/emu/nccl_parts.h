/* nccl_parts -- what a call of the emulated NCCL asks for (nccl.c), and its doing when all ranks
 * have come (nccl_run.c). */
#ifndef TESTS_EMU_NCCL_PARTS_H
#define TESTS_EMU_NCCL_PARTS_H

#include <stdbool.h>
#include <stddef.h>

enum { RANKS = 16, PARTS = 2 * RANKS };

typedef enum Kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, SEND, RECEIVE } Kind;
extern const char *const emu_nccl_words[];
/* Where memory of a call lies. */
typedef struct Place {
    int piece; // registered with the communicator, number 1, 2, ...; 0: none
    ptrdiff_t at;
} Place;
typedef struct Part {
    Kind kind;
    const char *src;
    char *dst;
    size_t n; // as the call has it
    int type, op, peer;
    size_t src_bytes, dst_bytes; // that it reads and writes
    Place from, to;
} Part;

/* What one rank asks for at once: one part, or a group's. */
typedef struct Asked {
    int n;
    bool recorded; // in a graph
    Part part[PARTS];
} Asked;

/* Bytes of an element. */
size_t emu_nccl_bytes(int type);
/* What ranks 0 ... size - 1 have asked for; dies where that does not fit together. */
void emu_nccl_run(int size, Asked *const *asked);

#endif
