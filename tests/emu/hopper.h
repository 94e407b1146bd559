/* hopper -- what capability 9.0 adds to a block: mbarriers (mbarrier.c), bulk copies by tensor maps
 * (bulk.c), matmuls of warpgroups (wgmma.c); and clusters of blocks (cluster.c).
 *
 * What is asynchronous on hardware happens here as late as it can. Bytes that a copy will write are
 * poisoned when it begins; it is done when no thread of the block can go on without it, one at a
 * time, in the order of the block. A store reads what it stores when it is waited for. A matmul is
 * computed when its warp waits for it; its accumulators are poisoned until then. So what was not
 * waited for is NaN, and so is what was overwritten while others still needed it.
 *
 * Addresses of shared memory count from the block's dynamic shared memory, as descriptors have
 * them.
 */
#ifndef TESTS_EMU_HOPPER_H
#define TESTS_EMU_HOPPER_H

#include "tests/emu/emu.h"
#include "tests/emu/emu_tensor_map.h"

/* Of a thread. */
void emu_mbarrier_init(void *at, int arrivals, EmuPlace place);
void emu_mbarrier_fence(void);
void emu_mbarrier_arrive(void *at, int expected_bytes, EmuPlace place);
void emu_mbarrier_wait(void *at, int parity, EmuPlace place);

/* Of a thread: begins a copy of a box, or of bytes side by side. */
void emu_tma_load(void *to, const EmuTensorMap *map, void *mbarrier, int n, const int *at,
                  EmuPlace place);
void emu_bulk_load(void *to, const void *from, int n_bytes, void *mbarrier, EmuPlace place);
void emu_tma_store(const EmuTensorMap *map, const void *from, int n, const int *at, EmuPlace place);
void emu_tma_add(const EmuTensorMap *map, const void *from, int n, const int *at, EmuPlace place);
void emu_tma_commit(void);
void emu_tma_wait(int left);

/* Of a thread: the place of its block in the cluster, and how many blocks that has. All threads of
 * the cluster meet. Arrives at the barrier that lies at `at` in block `rank`; begins the copy of a
 * box to `to` in each block of the mask, for the barrier in that block. */
int emu_cluster_rank(void);
int emu_cluster_size(void);
void emu_cluster_sync(EmuPlace place);
void emu_mbarrier_arrive_at(void *at, int rank, EmuPlace place);
void emu_tma_multicast(void *to, const EmuTensorMap *map, void *mbarrier, unsigned mask, int n,
                       const int *at, EmuPlace place);

/* Of a thread: it has written 16 bytes of shared memory that only a fence shows to copies and
 * matmuls; the fence. */
void emu_written(const void *p, EmuPlace place);
void emu_fence_async(void);

/* Of a lane. A matmul d[n / 8][4] (+)= a b of a warpgroup. */
typedef struct EmuWgmma {
    float *d;
    int n;
    uint64_t a, b; // descriptors
    bool in_registers, a_mn_major, b_mn_major, add;
    unsigned registers[4]; // of a
} EmuWgmma;
void emu_wgmma(const EmuWgmma *w, EmuPlace place);
void emu_wgmma_fence(void);
void emu_wgmma_commit(void);
void emu_wgmma_wait(int left, EmuPlace place);
/* Dies when these accumulators belong to a matmul that is under way. */
void emu_wgmma_check(const float *d, EmuPlace place);

/* Of a thread: setmaxnreg. */
void emu_registers(int n, bool more, EmuPlace place);

#endif
