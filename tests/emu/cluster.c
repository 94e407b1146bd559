/* cluster -- clusters: blocks that run at the same time and access each other's shared memory.
 *
 * An operation of a thread in another block is executed with emu_block set to that block. Then
 * other blocks run first. So a buffer that was released too early is overwritten while it is still
 * read, and an access to a block that has ended is an error. */
#include "tests/emu/block.h"

int emu_cluster_rank(void) {
    return emu_block->rank;
}
int emu_cluster_size(void) {
    return emu_block->n_cluster;
}

/* The block of the cluster with this rank; dies if that block has ended. */
static Block *block_at(int rank, EmuPlace place) {
    Block *b = emu_block;
    if (rank < 0 || rank >= b->n_cluster)
        emu_fail(place, "there is no block %d in a cluster of %d", rank, b->n_cluster);
    if (!b->cluster[rank]->n_live) emu_fail(place, "block %d of the cluster has ended", rank);
    return b->cluster[rank];
}

/* The address in the shared memory of b at the same offset as `at` in this block's. */
static void *same_in(const Block *b, const void *at, EmuPlace place) {
    int64_t offset = emu_shared_offset(at);
    if (offset < 0) emu_fail(place, "not shared memory of this block");
    return b->shared.memory + offset;
}

void emu_mbarrier_arrive_at(void *at, int rank, EmuPlace place) {
    Block *me = emu_block, *b = block_at(rank, place);
    void *there = same_in(b, at, place);
    emu_block = b;
    Mbarrier *m = mbarrier_find(there, place);
    if (b != me && !m->fenced)
        emu_fail(place, "another block's mbarrier, made without mbarrier_fence()");
    mbarrier_arrived(m, 1, 0, place);
    emu_block = me;
    if (b != me)
        emu_notify_blocks();
    else if (b->order != EMU_FORWARD)
        emu_yield();
}

void emu_tma_multicast(void *to, const EmuTensorMap *map, void *mbarrier, unsigned mask, int n,
                       const int *at, EmuPlace place) {
    Block *me = emu_block;
    for (int rank = 0; mask >> rank; rank++) {
        if (!(mask >> rank & 1)) continue;
        Block *b = block_at(rank, place);
        void *there = same_in(b, to, place), *barrier = same_in(b, mbarrier, place);
        emu_block = b;
        emu_tma_load(there, map, barrier, n, at, place);
        emu_block = me;
    }
    emu_notify_blocks();
}

/* The first block of the cluster counts the arrivals. A thread that has ended never arrives:
 * stricter than hardware. */
void emu_cluster_sync(EmuPlace place) {
    Block *me = emu_block, *counts = me->cluster[0];
    if (++counts->n_met < me->n_cluster * me->n_threads) {
        emu_sleep("barrier of the cluster", place);
        return;
    }
    EmuThread *self = me->self;
    counts->n_met = 0;
    for (int rank = 0; rank < me->n_cluster; rank++) {
        emu_block = me->cluster[rank];
        for (int i = 0; i < me->n_threads; i++)
            if (&emu_block->thread[i] != self) emu_wake(&emu_block->thread[i]);
    }
    emu_block = me;
    emu_notify_blocks();
}
