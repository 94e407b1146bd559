/* nccl_parts -- the arguments of a call of the emulated NCCL (emu_nccl.c), and the execution of a
 * call when all ranks have come to it (nccl_run.c). */
#ifndef TESTS_EMU_NCCL_PARTS_H
#define TESTS_EMU_NCCL_PARTS_H

#include <stdbool.h>
#include <stddef.h>

enum { RANKS = 16, PARTS = 2 * RANKS };

/* Arguments of one collective or one message of a rank. */
typedef enum Kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, SEND, RECEIVE } Kind;
extern const char *const emu_nccl_words[];
/* Where the memory of a call lies in registered memory. */
typedef struct BufferOffset {
    int piece;    // number 1, 2, ... of the piece in the communicator; 0: not registered
    ptrdiff_t at; // bytes from the start of the piece
} BufferOffset;
typedef struct Part {
    Kind kind;
    const char *src;
    char *dst;
    size_t n; // elements, as the call counts them
    int type, op, peer;
    size_t src_bytes, dst_bytes; // bytes that the call reads, and writes
    BufferOffset from, to;
} Part;

/* What one rank asks for at once: one part, or the messages of a group. */
typedef struct Asked {
    int n;
    bool recorded; // the call is in a graph
    Part part[PARTS];
} Asked;

/* Bytes of an element. */
size_t emu_nccl_bytes(int type);
/* Executes what ranks 0 ... size - 1 have asked for; dies if their arguments do not match. */
void emu_nccl_run(int size, Asked *const *asked);

#endif
