/* block -- the state of a block while it runs. block.c runs its threads, shared.c keeps its shared
 * memory, async.c its cp.async copies; mbarrier.c, bulk.c, wgmma.c and cluster.c implement
 * hopper.h. */
#ifndef TESTS_EMU_BLOCK_H
#define TESTS_EMU_BLOCK_H

#include "tests/emu/emu.h"
#include "tests/emu/fiber.h"
#include "tests/emu/hopper_block.h"

enum { BARRIERS = 16, CLUSTER = 8, MAX_SHARED = 227 << 10, MAX_STATIC = 48 << 10 };

/* cp.async copies of a thread that are in flight, oldest first; executed by async.c. */
typedef struct CopyLater {
    void *to;
    const void *from;
    size_t n_bytes, n_there; // n_there bytes are read, the rest are zeros
    int group;
    EmuPlace place;
} CopyLater;
typedef struct Copies {
    CopyLater *at;
    int n, room, group; // group: number of the group that is being collected
} Copies;
void copies_end(EmuThread *t);

struct EmuThread {
    Fiber fiber;
    uint3 index;
    bool begun, ended;
    const char *what; // the object that the thread waits for, in reports
    EmuPlace place;   // source line at which the thread waits
    Copies copies;
    Matmuls matmuls;
    int store_group; // number of the group to which new bulk stores belong
    // range of 16-byte chunks of shared memory that the thread wrote and has not fenced
    int dirty_from, dirty_to;
    bool saw_flag; // of a copy, and has not fenced since
};

/* Lanes of a warp that wait for each other. When all lanes of `mask` have arrived or ended,
 * work(lane) runs. A lane is in one meeting at a time, so 32 meetings are enough. */
typedef struct Meeting {
    uint32_t mask, arrived;
    const char *what;
    EmuPlace place;
    EmuWork work;
    void *lane[32];
} Meeting;
typedef struct Warp {
    uint32_t ended, open; // bits of lanes that have ended; bits of meetings in use
    Meeting meeting[32];
} Warp;

/* A named barrier; barrier 0 is __syncthreads. */
typedef struct Barrier {
    int arrived, count, n_waiting;
    EmuPlace place;
    unsigned short waiting[MAX_THREADS];
} Barrier;

/* Shared memory of a block: first the dynamic part, then each static object, placed when a thread
 * first asks for it. A guard strip follows each of them; the kernel must not write there. */
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
    const char *name; // name of the kernel
    void (*body)(void *ctx);
    void *ctx;
    EmuThread thread[MAX_THREADS];
    int n_threads, n_live, n_fibers;
    Warp warp[MAX_THREADS / 32];
    Barrier barrier[BARRIERS];
    EmuThread *self; // the thread that runs
    Fiber host;
    // Threads that can run: n_ready entries of a ring buffer that begin at `first`.
    unsigned short ready[MAX_THREADS];
    unsigned first;
    int n_ready;
    // Threads that wait for another block, or for the host.
    unsigned short outside[MAX_THREADS];
    int n_outside;
    // The blocks of this block's cluster, itself included, which can access each other's shared
    // memory. n_cluster 0: the Block is not in use. n_met: threads that wait at the cluster's
    // barrier.
    struct Block *cluster[CLUSTER];
    int n_cluster, rank;
    int n_met;
    EmuOrder order;
    uint64_t random;
    Shared shared;
    Hopper hopper;
};
extern __thread Block *emu_block; // the block that runs on this thread of the host; NULL: none

#endif
