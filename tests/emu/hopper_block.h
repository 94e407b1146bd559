/* hopper_block -- the state of a block and its threads for the instructions of hopper.h. */
#ifndef TESTS_EMU_HOPPER_BLOCK_H
#define TESTS_EMU_HOPPER_BLOCK_H

#include "tests/emu/hopper.h"

enum { MAX_THREADS = 1024 };
typedef struct Block Block;

/* Matmuls of a lane in flight; wgmma.c. */
enum { ACCUMULATORS = 8, MOST_N = 256 };
typedef struct Accumulator {
    float *d;
    int n, pending;          // columns of d; matmuls in flight that write d
    float value[MOST_N / 2]; // the value of d, while d itself is poisoned
} Accumulator;
typedef struct WgmmaLater {
    EmuWgmma what;
    Accumulator *into;
    int group;
    EmuPlace place;
} WgmmaLater;
typedef struct Matmuls {
    WgmmaLater *at;
    int n, room, group, n_in_group, n_begun; // group: the one that is being collected
    bool fenced;
    Accumulator *accumulators; // [ACCUMULATORS]; NULL before the first matmul
} Matmuls;
void matmuls_end(EmuThread *t);

/* Mbarriers in shared memory; mbarrier.c. */
enum { MBARRIERS = 64 };
typedef struct Mbarrier {
    uint64_t *at;
    int count, pending; // arrivals of a phase; those still missing
    int64_t bytes;      // bytes that are missing in this phase
    unsigned phase;
    bool fenced;
    EmuThread *owner; // the thread that initialized it
    char text[112];   // its name in reports
    int n_waiting;
    unsigned short waiting[MAX_THREADS];
} Mbarrier;
void mbarriers_describe(Block *b); // updates text
Mbarrier *mbarrier_find(void *at, EmuPlace place);
void mbarrier_arrived(Mbarrier *m, int arrivals, int64_t bytes, EmuPlace place);

/* Bulk copies in flight, oldest first; bulk.c. */
typedef struct Bulk {
    EmuTensorMap map; // copy of a box: the tensor in global memory
    char *shared;
    const char *from; // copy of contiguous bytes: the source; NULL: a box
    int n_bytes, at[MAP_RANK];
    bool adds;          // the store adds to the tensor
    Mbarrier *mbarrier; // NULL: a store of `thread`
    EmuThread *thread;
    int group;
    EmuPlace place;
} Bulk;
/* The operands of a matmul, as the first warp of the warpgroup gave them. */
typedef struct WgmmaOperands {
    int number, n;
    uint64_t a, b;
} WgmmaOperands;
typedef struct Hopper {
    Mbarrier mbarrier[MBARRIERS];
    int n_mbarriers;
    Bulk *bulk;
    int n_bulk, room;
    int n_threads;         // threads of the block that ran before
    unsigned short *dirty; // per chunk of 16 bytes: 1 + the thread that wrote it and did not fence
    // Per warpgroup: registers of a thread, number of calls of setmaxnreg, operands of its last
    // matmuls.
    struct {
        int registers, called;
        WgmmaOperands log[64];
    } group[MAX_THREADS / 128];
} Hopper;
void hopper_begin(Block *b);
void hopper_end(Block *b);
void hopper_free(Hopper *h);
bool bulk_do_one(Block *b); // executes one load; false: none is in flight
void bulk_thread_end(EmuThread *t);
void dirty_check(const void *p, size_t n_bytes, const char *what, EmuPlace place);

#endif
