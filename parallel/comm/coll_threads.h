/* coll_threads -- how ranks that are threads synchronize and divide the work of a call, for
 * backends on device memory. */
#ifndef PARALLEL_COMM_COLL_THREADS_H
#define PARALLEL_COMM_COLL_THREADS_H

#include "parallel/comm/coll_backend.h"

/* Local. Publishes this rank's call to its group. */
void threads_publish(Comm *c, uint64_t number, const CollCall *call);
/* Collective. Returns when all ranks have published the call. Dies after the limit of the World
 * (world_set_limit). */
void threads_wait_published(Comm *c, uint64_t number, const CollCall *call);
/* Local, after threads_wait_published. The call of another rank of the group. */
const CollCall *threads_published(const Comm *c, int rank, uint64_t number);
/* One rank's part of a call. sums false: it copies n_src rectangles, src[i] to dst[i]. sums true:
 * it adds all src and writes the sum to all dst. Rows of src[i] lie src_ld[i] bytes apart; rows of
 * dst lie dst_ld bytes apart, rows of a sum are contiguous. */
typedef struct ThreadsWork {
    bool sums;
    int n_src, n_dst; // n_dst: only of a sum
    int64_t rows, row_bytes, dst_ld;
    const char *src[MAX_THREAD_RANKS];
    int64_t src_ld[MAX_THREAD_RANKS];
    char *dst[MAX_THREAD_RANKS];
} ThreadsWork;
/* Local, after threads_wait_published. This rank's part of a call. */
ThreadsWork threads_work(Comm *c, uint64_t number, const CollCall *call);
/* Collective. Returns when all ranks have called threads_wait_done for this call. */
void threads_wait_done(Comm *c, uint64_t number, const CollCall *call);
/* Local, for a call by blocks. Waits until rank o has published the call. Returns rank o's src
 * (all_gather), or this rank's slot at rank o (reduce_scatter). */
void *threads_block(Comm *c, uint64_t number, const CollCall *call, int o);
/* Local, for a call by blocks. threads_block_done: this rank is done with the block of rank o.
 * threads_blocks_done: waits until all ranks are done with the block of this rank. */
void threads_block_done(Comm *c, uint64_t number, const CollCall *call, int o);
void threads_blocks_done(Comm *c, uint64_t number, const CollCall *call);

#endif
