/* block -- what a block is made of while it runs: block.c moves its threads, shared.c keeps its
 * memory, async.c its copies under way; mbarrier.c, bulk.c, wgmma.c and cluster.c do what hopper.h
 * says. */
#ifndef TESTS_EMU_BLOCK_H
#define TESTS_EMU_BLOCK_H

#include "tests/emu/emu.h"
#include "tests/emu/fiber.h"
#include "tests/emu/hopper_block.h"

enum { BARRIERS = 16, CLUSTER = 8, MAX_SHARED = 227 << 10, MAX_STATIC = 48 << 10 };

/* Copies of a thread that are under way, oldest first: async.c does them. */
typedef struct CopyLater {
    void *to;
    const void *from;
    size_t n_bytes, n_there;
    int group;
    EmuPlace place;
} CopyLater;
typedef struct Copies {
    CopyLater *at;
    int n, room, group;
} Copies;
void copies_end(EmuThread *t);

struct EmuThread {
    Fiber fiber;
    uint3 index;
    bool begun, ended;
    const char *what; // it waits for
    EmuPlace place;
    Copies copies;
    Matmuls matmuls;
    int store_group;          // of bulk stores that are begun now
    int dirty_from, dirty_to; // chunks of shared memory that it wrote and did not fence
};

/* Lanes of a warp that wait for each other. A lane is in one meeting at a time, so 32 are
 * enough. */
typedef struct Meeting {
    uint32_t mask, arrived;
    const char *what;
    EmuPlace place;
    EmuWork work;
    void *lane[32];
} Meeting;
typedef struct Warp {
    uint32_t ended, open; // lanes; meetings
    Meeting meeting[32];
} Warp;

typedef struct Barrier {
    int arrived, count, n_waiting;
    EmuPlace place;
    unsigned short waiting[MAX_THREADS];
} Barrier;

/* Shared memory: the dynamic part first, then each static object where it is first asked for;
 * behind each lies a strip that nobody may write. */
enum { OBJECTS = 64 };
typedef struct Shared {
    char *memory;
    size_t dynamic_bytes, used;
    struct {
        const void *tag;
        size_t begin, end;
    } object[OBJECTS];
    int n_objects;
} Shared;
void shared_size(Shared *s, size_t dynamic_bytes);
void shared_poison(Shared *s);
void shared_check(const Shared *s);
void shared_free(Shared *s);

struct Block {
    uint3 index;
    const char *name; // of the kernel
    void (*body)(void *ctx);
    void *ctx;
    EmuThread thread[MAX_THREADS];
    int n_threads, n_live, n_fibers;
    Warp warp[MAX_THREADS / 32];
    Barrier barrier[BARRIERS];
    EmuThread *self; // runs
    Fiber host;
    // Threads that could run, a ring from `first`.
    unsigned short ready[MAX_THREADS];
    unsigned first;
    int n_ready;
    // Threads that wait for another block.
    unsigned short outside[MAX_THREADS];
    int n_outside;
    // Blocks that run at the same time and reach each other's shared memory, this one among them;
    // 0: the Block is free. Threads that have come to the cluster's barrier, and wait.
    struct Block *cluster[CLUSTER];
    int n_cluster, rank;
    int n_met;
    EmuOrder order;
    uint64_t random;
    Shared shared;
    Hopper hopper;
};
extern __thread Block *emu_block; // NULL: no kernel runs on this thread

#endif
