/* emu -- CUDA's threads on one processor, so that kernels are tested where no GPU is.
 *
 * A grid is a set of blocks; the threads of a block share memory and meet at barriers; 32 of them
 * are a warp, whose lanes exchange registers. Here blocks run one after another, those that
 * wait for each other in turns, and each thread of a block is a fiber that runs until it must wait:
 *
 *     thread 0   ====sync                    =====end
 *     thread 1            ===sync                    ====end
 *     thread 2                   ===sync=====               (the last to arrive goes on)
 *
 * Which of the threads that could run comes next is the `order`; a kernel that needs a barrier it
 * does not have gives another result in some order. What is wrong on hardware ends the program with
 * a line that says where: lanes that meet at different places, threads that wait for ever, memory
 * written beyond its end, results that nobody waited for.
 *
 * This is the interface in C; tests/emu/include/ has CUDA's names on top of it.
 */
#ifndef TESTS_EMU_EMU_H
#define TESTS_EMU_EMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct uint3 {
    unsigned x, y, z;
} uint3;

/* The thread that runs, and where it stands. */
typedef struct EmuThread EmuThread;
typedef struct EmuPosition {
    uint3 thread, block, block_dim, grid_dim; // threadIdx, blockIdx, blockDim, gridDim
} EmuPosition;
extern __thread EmuPosition emu_at;

/* Where in the source something was called. */
typedef struct EmuPlace {
    const char *file;
    int line;
} EmuPlace;

/* How threads of a block, and blocks of a grid, follow each other. EMU_LAG: of warp `seed` of each
 * block all lanes but the first run only when nothing else can go on, copies included. EMU_SLOW: of
 * warpgroup `seed` all. */
typedef enum EmuOrder { EMU_FORWARD, EMU_REVERSE, EMU_RANDOM, EMU_LAG, EMU_SLOW } EmuOrder;
/* What is emulated; {0}: as it is at first. */
typedef struct EmuSetup {
    EmuOrder order;
    unsigned seed;
    bool late; // do streams run late? Then, when somebody waits:
    // 0: what he waits for, and nothing else; other numbers: also what other streams could do now,
    // in an order that depends on the number
    unsigned shuffle;
    int devices; // that there are; 0: 1
    bool apart;  // they do not reach each other's memory
    // handles of memory may be opened in the process that made them, too, as the library refuses
    // to: for ranks that are threads in the place of processes
    bool ipc_within;
    // mistakes: flags that streams write into device memory are lost, and kernels wait for them for
    // ever; kernels of all threads wait for none
    bool lose_flags, forget_flags;
} EmuSetup;
extern EmuSetup emu_setup;
/* Local. From now on so. */
void emu_set(EmuSetup s);
/* A number below n, the next one of a row. */
static inline unsigned emu_dice(uint64_t *state, unsigned n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((*state >> 33) % n);
}

typedef struct EmuLaunch {
    const char *name;
    uint3 grid, block;
    unsigned cluster;     // blocks of a cluster, along x
    size_t dynamic_bytes; // of shared memory
    void (*body)(void *ctx);
    void *ctx;
} EmuLaunch;
/* Local. Runs all threads of all blocks to their ends. Dies when hardware would refuse the
 * launch. */
void emu_run(const EmuLaunch *l);

/* Of a thread: __syncthreads. */
void emu_sync(EmuPlace place);
/* Of a thread: arrives at named barrier `id` of `count` threads; waits until all have arrived, or
 * goes on. */
void emu_barrier(int id, int count, bool wait, EmuPlace place);
/* Of a lane: meets the other lanes of `mask`. The last one calls work() with what each lane brought
 * (NULL of lanes that are not in the mask or have ended); then all go on. */
typedef void (*EmuWork)(void *const lane[32]);
void emu_meet(uint32_t mask, const char *what, void *mine, EmuWork work, EmuPlace place);
/* Of a thread: lets others run first (in a loop that looks for something). */
void emu_yield(void);
/* Of a thread: waits, for what a report calls `what`, until emu_wake is called with it. For
 * operations that are built on top: mbarriers, copies under way. */
void emu_sleep(const char *what, EmuPlace place);
/* Of a thread: waits for another block; it goes on when blocks have run. And: says that there is
 * news for other blocks. Blocks run one after another until one waits so. */
void emu_wait_outside(const char *what, EmuPlace place);
void emu_tell_outside(void);
/* Where all blocks of a kernel wait for others: runs what a copy engine could do meanwhile, in some
 * order; false: there is nothing. */
bool emu_run_copy(void);
/* Of a thread: waits for the host, which may go on meanwhile. */
void emu_wait_host(const char *what, EmuPlace place);
EmuThread *emu_self(void);
void emu_wake(EmuThread *t);

/* Of a thread: memory of its block, filled with NaN when the block begins. The same tag, the same
 * memory. */
void *emu_shared(const void *tag, size_t n_bytes, size_t align);
void *emu_shared_dynamic(void);
/* Of a thread: is this address shared memory of its block? Its offset there, or -1. */
int64_t emu_shared_offset(const void *p);

/* Of a thread: begins a copy of n_bytes into shared memory, of which the first n_there are read and
 * the others are zeros; makes a group of those begun; waits until at most `left` groups are under
 * way: cp.async. */
void emu_copy_later(void *to, const void *from, int n_bytes, int n_there, EmuPlace place);
void emu_copy_commit(void);
void emu_copy_wait(int left);

/* Of a thread: ends the program with kernel, block and thread in front of the message. */
void emu_fail(EmuPlace place, const char *fmt, ...) __attribute__((noreturn, format(printf, 2, 3)));

#endif
