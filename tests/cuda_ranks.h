/* cuda_ranks -- runs ranks as threads with a device each, or with shared devices. */
#ifndef TESTS_CUDA_RANKS_H
#define TESTS_CUDA_RANKS_H

#include <stdbool.h>
#include <stdio.h>

#include "layers/cuda/device.h"
#include "parallel/comm/devices.h"
#include "parallel/comm/ranks.h"
#include "tests/emu/emu.h"

typedef struct CudaJob {
    int (*main)(World *w, void *ctx);
    void *ctx;
} CudaJob;
static inline int cuda_rank(World *w, void *ctx) {
    const CudaJob *job = ctx;
    device_open(world_rank(w) % device_count(NULL), 4096);
    world_use_devices(w);
    int result = job->main(w, job->ctx);
    world_release_devices(w);
    device_close();
    return result;
}

/* ranks_run with a device for each rank, under these settings of the emulator. */
static inline int cuda_ranks_run(int n, EmuSetup s, int (*main)(World *w, void *ctx), void *ctx) {
    emu_set(s);
    int result = ranks_run(n, cuda_rank, &(CudaJob){main, ctx});
    emu_set((EmuSetup){0});
    return result;
}

/* Are all `waits` waits needed, and sufficient? run(forget, seed) returns the number of errors
 * without wait number `forget` (-1: with all waits), in an order of streams that depends on the
 * seed. A missing wait shows in some order: on average in one of ten or so. */
static inline bool cuda_needs_waits(int waits, int (*run)(int forget, unsigned seed)) {
    enum { SEEDS = 12, MANY = 300 };
    for (int forget = -1; forget < waits; forget++) {
        int wrong = 0;
        unsigned seeds = forget < 0 ? SEEDS : MANY;
        for (unsigned seed = 1; seed <= seeds && !wrong; seed++) wrong = run(forget, seed);
        if ((wrong > 0) == (forget >= 0)) continue;
        printf("    without wait %d\n", forget);
        return false;
    }
    return true;
}

#endif
