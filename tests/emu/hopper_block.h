/* hopper_block -- what a block and its threads keep for what hopper.h says. */
#ifndef TESTS_EMU_HOPPER_BLOCK_H
#define TESTS_EMU_HOPPER_BLOCK_H

#include "tests/emu/hopper.h"

enum { MAX_THREADS = 1024 };
typedef struct Block Block;

/* Matmuls of a lane that are under way; wgmma.c. */
enum { ACCUMULATORS = 8, MOST_N = 256 };
typedef struct Accumulator {
    float *d;
    int n, pending;          // columns; matmuls under way
    float value[MOST_N / 2]; // what it is while d is poisoned
} Accumulator;
typedef struct WgmmaLater {
    EmuWgmma what;
    Accumulator *into;
    int group;
    EmuPlace place;
} WgmmaLater;
typedef struct Matmuls {
    WgmmaLater *at;
    int n, room, group, n_in_group, n_begun;
    bool fenced;
    Accumulator *accumulators; // ACCUMULATORS of them, NULL before the first matmul
} Matmuls;
void matmuls_end(EmuThread *t);

/* Barriers in shared memory; mbarrier.c. */
enum { MBARRIERS = 64 };
typedef struct Mbarrier {
    uint64_t *at;
    int count, pending;
    int64_t bytes; // that are still to come in this phase
    unsigned phase;
    bool fenced;
    EmuThread *owner; // made it
    char text[112];   // what a thread that waits for it is said to wait for
    int n_waiting;
    unsigned short waiting[MAX_THREADS];
} Mbarrier;
void mbarriers_describe(Block *b); // brings text up to date
Mbarrier *mbarrier_find(void *at, EmuPlace place);
void mbarrier_arrived(Mbarrier *m, int arrivals, int64_t bytes, EmuPlace place);

/* Bulk copies under way, oldest first; bulk.c. */
typedef struct Bulk {
    EmuTensorMap map; // of a box; from or to where it has no other end
    char *shared;
    const char *from; // side by side
    int n_bytes, at[MAP_RANK];
    bool adds;
    Mbarrier *mbarrier; // NULL: a store of `thread`
    EmuThread *thread;
    int group;
    EmuPlace place;
} Bulk;
typedef struct WgmmaSaid {
    int number, n;
    uint64_t a, b;
} WgmmaSaid;
typedef struct Hopper {
    Mbarrier mbarrier[MBARRIERS];
    int n_mbarriers;
    Bulk *bulk;
    int n_bulk, room;
    int n_threads;         // of the block before
    unsigned short *dirty; // per chunk of 16 bytes: 1 + the thread that wrote it and did not fence
    // Per warpgroup: registers of a thread, calls of setmaxnreg; descriptors of its last matmuls.
    struct {
        int registers, called;
        WgmmaSaid log[64];
    } group[MAX_THREADS / 128];
} Hopper;
void hopper_begin(Block *b);
void hopper_end(Block *b);
void hopper_free(Hopper *h);
bool bulk_do_one(Block *b); // false: none is under way
void bulk_thread_end(EmuThread *t);
void dirty_check(const void *p, size_t n_bytes, const char *what, EmuPlace place);

#endif
