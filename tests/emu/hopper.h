/* hopper -- instructions that capability 9.0 adds: mbarriers (mbarrier.c), bulk copies by tensor
 * maps (bulk.c), matmuls of warpgroups (wgmma.c), and clusters of blocks (cluster.c).
 *
 * Asynchronous work is executed as late as possible. The destination of a copy is poisoned when the
 * copy begins. The copy is executed when no thread of the block can run without it: one copy at a
 * time, in the order of the emulator (EmuOrder). A store reads its source when it is waited for. A
 * matmul is computed when its warp waits for it; its accumulators are poisoned until then. So a
 * result that was not waited for is NaN, and so is a source that was overwritten while it was still
 * needed.
 *
 * Offsets in shared memory count from the start of the block's dynamic shared memory, as in
 * descriptors. */
#ifndef TESTS_EMU_HOPPER_H
#define TESTS_EMU_HOPPER_H

#include "tests/emu/emu.h"
#include "tests/emu/emu_tensor_map.h"

/* Called by a thread. */
void emu_mbarrier_init(void *at, int arrivals, EmuPlace place);
void emu_mbarrier_fence(void);
void emu_mbarrier_arrive(void *at, int expected_bytes, EmuPlace place);
void emu_mbarrier_wait(void *at, int parity, EmuPlace place);

/* Called by a thread: begins the copy of a box, or of contiguous bytes. */
void emu_tma_load(void *to, const EmuTensorMap *map, void *mbarrier, int n, const int *at,
                  EmuPlace place);
void emu_bulk_load(void *to, const void *from, int n_bytes, void *mbarrier, EmuPlace place);
void emu_tma_store(const EmuTensorMap *map, const void *from, int n, const int *at, EmuPlace place);
void emu_tma_add(const EmuTensorMap *map, const void *from, int n, const int *at, EmuPlace place);
void emu_tma_commit(void);
void emu_tma_wait(int left);

/* Called by a thread. The rank of its block in the cluster, and the number of blocks.
 * emu_cluster_sync: the barrier of all threads of the cluster. emu_mbarrier_arrive_at: arrives at
 * the mbarrier at the same address in block `rank`. emu_tma_multicast: begins the copy of a box to
 * `to` in each block of the mask, which notifies the mbarrier of that block. */
int emu_cluster_rank(void);
int emu_cluster_size(void);
void emu_cluster_sync(EmuPlace place);
void emu_mbarrier_arrive_at(void *at, int rank, EmuPlace place);
void emu_tma_multicast(void *to, const EmuTensorMap *map, void *mbarrier, unsigned mask, int n,
                       const int *at, EmuPlace place);

/* Called by a thread. emu_written: it has written to the 16-byte chunk at p, which copies and
 * matmuls see only after a fence. emu_fence_async: that fence. emu_fence_async_global: the fence
 * after emu_saw_flag. */
void emu_written(const void *p, EmuPlace place);
void emu_fence_async(void);
void emu_fence_async_global(void);

/* Called by a lane: a matmul d[n / 8][4] (+)= a b of its warpgroup. */
typedef struct EmuWgmma {
    float *d;
    int n;
    uint64_t a, b; // descriptors
    bool in_registers, a_mn_major, b_mn_major, add;
    unsigned registers[4]; // a, if in_registers
} EmuWgmma;
void emu_wgmma(const EmuWgmma *w, EmuPlace place);
void emu_wgmma_fence(void);
void emu_wgmma_commit(void);
void emu_wgmma_wait(int left, EmuPlace place);
/* Dies if these accumulators belong to a matmul in flight. */
void emu_wgmma_check(const float *d, EmuPlace place);

/* Called by a thread: setmaxnreg. */
void emu_registers(int n, bool more, EmuPlace place);

#endif
