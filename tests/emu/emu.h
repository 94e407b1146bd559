/* emu -- runs the threads of CUDA kernels on one processor, so that kernels are tested without a
 * GPU.
 *
 * A grid is a set of blocks; the threads of a block share memory and meet at barriers; 32 of them
 * are a warp, whose lanes exchange registers. Here blocks run one after another, or in turns if
 * they wait for each other. Each thread of a block is a fiber, which runs until it must wait:
 *
 *     thread 0   ====sync                    =====end
 *     thread 1            ===sync                    ====end
 *     thread 2                   ===sync=====               (the last to arrive goes on)
 *
 * The `order` decides which of the threads that can run comes next. A kernel that lacks a barrier
 * gives another result in some order. An error that hardware does not report ends the program with
 * a line that names the place: lanes that meet at different places, threads that wait for ever,
 * memory written beyond its end, results that nobody waited for.
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

/* EmuThread: a thread of a block. EmuPosition: the indices of the running thread. */
typedef struct EmuThread EmuThread;
typedef struct EmuPosition {
    uint3 thread, block, block_dim, grid_dim; // threadIdx, blockIdx, blockDim, gridDim
} EmuPosition;
extern __thread EmuPosition emu_at;

/* A line of the source from which a function was called. */
typedef struct EmuPlace {
    const char *file;
    int line;
} EmuPlace;

/* The order in which threads of a block and blocks of a grid run. EMU_LAG: in warp `seed` of each
 * block, all lanes but the first run only when nothing else can, copies included. EMU_SLOW: the
 * same for all threads of warpgroup `seed`. */
typedef enum EmuOrder { EMU_FORWARD, EMU_REVERSE, EMU_RANDOM, EMU_LAG, EMU_SLOW } EmuOrder;
/* Settings of the emulator; {0}: the defaults. */
typedef struct EmuSetup {
    EmuOrder order;
    unsigned seed;
    bool late; // work in streams does not run before somebody waits for it
    // late streams: 0: a wait runs only the work that it waits for; other numbers: it also runs
    // work of other streams, in an order that depends on the number
    unsigned shuffle;
    int devices; // number of devices; 0: 1
    bool apart;  // devices do not access each other's memory
    // handles of memory (IPC) may also be opened in the process that made them, which the library
    // refuses: for tests in which ranks are threads instead of processes
    bool ipc_within;
    // mistakes made on purpose. lose_flags: flags that streams write into device memory are lost,
    // so kernels wait for ever. forget_flags: kernels do not wait for flags
    bool lose_flags, forget_flags;
} EmuSetup;
extern EmuSetup emu_setup;
/* Local. Changes the settings from now on. */
void emu_set(EmuSetup s);
/* The next random number below n. */
static inline unsigned emu_dice(uint64_t *state, unsigned n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((*state >> 33) % n);
}

typedef struct EmuLaunch {
    const char *name;
    uint3 grid, block;
    unsigned cluster;     // blocks of a cluster, along x
    size_t dynamic_bytes; // bytes of dynamic shared memory
    void (*body)(void *ctx);
    void *ctx;
} EmuLaunch;
/* Local. Runs all threads of all blocks to their ends. Dies when hardware would refuse the
 * launch. */
void emu_run(const EmuLaunch *l);

/* Called by a thread: __syncthreads. */
void emu_sync(EmuPlace place);
/* Called by a thread: arrives at named barrier `id` of `count` threads. wait: returns when all have
 * arrived; else returns at once. */
void emu_barrier(int id, int count, bool wait, EmuPlace place);
/* Called by a lane: meets the other lanes of `mask`. The last one to arrive calls work() with the
 * `mine` of each lane (NULL for lanes that are not in the mask or have ended); then all
 * continue. */
typedef void (*EmuWork)(void *const lane[32]);
void emu_meet(uint32_t mask, const char *what, void *mine, EmuWork work, EmuPlace place);
/* Called by a thread in a polling loop: other threads run first. */
void emu_yield(void);
/* Called by a thread: sleeps until emu_wake is called with this thread. what: the name of the
 * awaited object in reports. Mbarriers and copies in flight are built on it. */
void emu_sleep(const char *what, EmuPlace place);
/* Called by a thread. emu_wait_for_blocks: lets other blocks run, then returns; the caller polls.
 * emu_notify_blocks: notifies other blocks that a value they may poll has changed. Blocks run one
 * after another until one calls emu_wait_for_blocks. */
void emu_wait_for_blocks(const char *what, EmuPlace place);
void emu_notify_blocks(void);
/* Called when all blocks of a kernel wait: runs work that a copy engine could do meanwhile, in some
 * order. False: there is none. */
bool emu_run_copy(void);
/* Called by a thread: lets the host run, then returns, as emu_wait_for_blocks. */
void emu_wait_host(const char *what, EmuPlace place);
/* Called by a thread: it has seen the flag of a copy. Bulk copies that it begins see what was
 * copied only after emu_fence_async_global (hopper.h). */
void emu_saw_flag(void);
EmuThread *emu_self(void);
void emu_wake(EmuThread *t);

/* Called by a thread. emu_shared: static shared memory of its block, filled with NaN when the block
 * begins; the same tag gives the same memory. emu_shared_dynamic: the dynamic shared memory. */
void *emu_shared(const void *tag, size_t n_bytes, size_t align);
void *emu_shared_dynamic(void);
/* Called by a thread: the offset of p in the shared memory of its block; -1: p is not shared
 * memory. */
int64_t emu_shared_offset(const void *p);

/* cp.async, called by a thread. emu_copy_later: begins a copy of n_bytes into shared memory; the
 * first n_there bytes are read, the others are zeros. emu_copy_commit: the copies begun since the
 * last commit form a group. emu_copy_wait: waits until at most `left` groups are in flight. */
void emu_copy_later(void *to, const void *from, int n_bytes, int n_there, EmuPlace place);
void emu_copy_commit(void);
void emu_copy_wait(int left);

/* Called by a thread: ends the program with a message that begins with kernel, block and thread. */
void emu_fail(EmuPlace place, const char *fmt, ...) __attribute__((noreturn, format(printf, 2, 3)));

#endif
