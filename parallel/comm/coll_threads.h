/* coll_threads -- what ranks that are threads do of a call, and when, for backends on device
 * memory. */
#ifndef PARALLEL_COMM_COLL_THREADS_H
#define PARALLEL_COMM_COLL_THREADS_H

#include "parallel/comm/coll_backend.h"

/* Local. Publishes this rank's call to its group, with a note that lives as long as the call. */
void threads_publish(Comm *c, uint64_t number, const CollCall *call, void *note);
/* Collective. Returns when all ranks have published the call; dies after the limit
 * (world_set_limit). */
void threads_all_here(Comm *c, uint64_t number, const CollCall *call);
/* Local, after threads_all_here: what a rank of the group has published. */
typedef struct Published {
    CollCall call;
    void *note;
} Published;
const Published *threads_published(const Comm *c, int rank, uint64_t number);
/* What a rank does of a call: it copies rectangles, src[i] to dst[i]; or it adds up all src, and
 * the sum goes to all dst. Rows of dst lie dst_ld bytes apart; of a sum they touch. */
typedef struct ThreadsWork {
    bool sums;
    int n_src, n_dst; // n_dst: of a sum
    int64_t rows, row_bytes, dst_ld;
    const char *src[MAX_THREAD_RANKS];
    int64_t src_ld[MAX_THREAD_RANKS];
    char *dst[MAX_THREAD_RANKS];
} ThreadsWork;
/* Local, after threads_all_here. This rank's part of a call. */
ThreadsWork threads_work(Comm *c, uint64_t number, const CollCall *call);
/* Collective. Returns when all ranks have called it. */
void threads_all_done(Comm *c, uint64_t number, const CollCall *call);
/* Local. Of a call by blocks: waits until rank o has published it; its src or, of a reduce_scatter,
 * this rank's slot there. */
void *threads_block(Comm *c, uint64_t number, const CollCall *call, int o);
/* Local. Counts this rank among those who are done with rank o's block; waits until all are done
 * with this rank's. */
void threads_block_done(Comm *c, uint64_t number, const CollCall *call, int o);
void threads_blocks_done(Comm *c, uint64_t number, const CollCall *call);

#endif
