/* coll -- asynchronous collectives among a group of ranks: coll_start returns a ticket, coll_wait
 * waits for it.
 *
 * A World is this rank's view of all ranks of the job. A Comm is a communicator: a group of ranks,
 * mostly those along some axes of the mesh. A backend is a table of functions, one file each, for
 * host memory (device memory: devices.h):
 *
 *   self      one rank                    coll_self.c
 *   threads   ranks are threads           coll_threads.c     each reads the others' memory
 *   mpi       ranks are processes         coll_mpi.c         without MPI: coll_mpi_absent.c
 *
 * Blocks are matrices of rows x cols elements. In the whole tensor the blocks of a group are
 * stacked (dim 0) or side by side (dim 1):
 *
 *       dim 0   [ b0 ]      dim 1   [ b0 | b1 | b2 ]
 *               [ b1 ]
 *               [ b2 ]
 *
 * The order of a sum depends on the group alone, not on sizes or on who arrives first: ranks in
 * pairs, then pairs of pairs (coll_reduce.h). So threads and processes give the same bits. After an
 * all_reduce all ranks have the same bits. bf16 sums are rounded after every addition.
 *
 * Counted bytes are the bytes that this rank receives, as ring volumes whatever the algorithm:
 * (p-1)/p of the whole for all_gather and reduce_scatter, twice that for all_reduce, one buffer for
 * a broadcast (not at the root) and a shift, p-1 buffers at the root of a reduce.
 *
 * All ranks of a group start the same collectives in the same order. They wait for them in one
 * common order too, which may differ from that of the starts. In between collectives progress as
 * far as the backend can: while kernels run, the first thread of the team polls about every half
 * millisecond (world_set_team). In debug builds (CONFIG=debug, asan, tsan) a start whose arguments
 * differ from those of other threads ends the job with both calls. A wait that exceeds the
 * World's limit ends the job with a line that names the collective and the missing ranks.
 */
#ifndef PARALLEL_COMM_COLL_H
#define PARALLEL_COMM_COLL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/group.h"
#include "base/team.h"
#include "layers/matmul.h"

typedef enum {
    COLL_ALL_GATHER,
    COLL_REDUCE_SCATTER,
    COLL_ALL_REDUCE,
    COLL_BROADCAST,
    COLL_REDUCE,
    COLL_SHIFT,
    N_COLL_OPS
} CollOp;
typedef enum { COLL_F32, COLL_F64, COLL_I64, COLL_I32, COLL_U8, COLL_BF16 } CollType;

/* Device memory in which the blocks of a whole tensor are contiguous. */
typedef struct CollStaging {
    void *p;
    size_t n_bytes;
} CollStaging;

typedef struct CollCall {
    CollOp op;
    CollType type;
    int dim;            // all_gather, reduce_scatter: 0 or 1
    int64_t rows, cols; // all_gather: of src; reduce_scatter: of dst; others: of the buffer
    // broadcast, reduce: index in the group. shift: distance, 1 <= root < size; dst is the src of
    // the rank `root` before this one
    int root;
    // may be dst (all_reduce, broadcast) or this rank's block of dst (all_gather); dst may be this
    // rank's block of src (reduce_scatter with dim 0)
    const void *src;
    void *dst;        // reduce: NULL except at the root
    const char *what; // "dx of qkv": for tables, traces, messages; a constant
    // all_gather, reduce_scatter with dim 0: elements from one block of the whole to the next;
    // 0: contiguous
    int64_t stride;
    // Device memory only: staging buffer of the size of the whole for strided blocks (dim 1, stride
    // != 0), which NCCL cannot send directly. Collectives in flight may share it. Its contents are
    // undefined after the wait.
    CollStaging staging;
    // a kernel sends or receives block by block between start and wait: coll_block. all_gather,
    // reduce_scatter, dim 0, contiguous
    bool by_blocks;
} CollCall;

typedef struct World World;
typedef struct Comm Comm;
typedef struct Ticket {
    Comm *comm;
    uint64_t number; // of this call in its communicator; 0: nothing to wait for
} Ticket;

int world_rank(const World *w);
int world_size(const World *w);
const char *world_backend(const World *w); // "self", "threads", "mpi"
const char *world_node(const World *w);    // host name
/* Collective over the world. The ranks of one color form a group, ordered by (key, rank). label
 * ("x", "d.z") names the group in tables and messages. Freed with the world, or by comm_free. */
Comm *world_split(World *w, int color, int key, const char *label);
Comm *world_comm(World *w); // all ranks; label "all"
/* Collective over the world. Frees a group and its counters. No ticket of the group may be open. */
void comm_free(Comm *c);
int comm_rank(const Comm *c);
int comm_size(const Comm *c);
const char *comm_label(const Comm *c);

/* Collective over the group, in the same order on all its ranks. Asynchronous: src must stay
 * unchanged and dst is undefined until coll_wait. At most COLL_IN_FLIGHT collectives of a group may
 * be in flight; one more ends the job. A ticket is waited for once. The world's team, if set, does
 * large copies and sums. */
enum { COLL_IN_FLIGHT = 32 };
Ticket coll_start(Comm *c, const CollCall *call);
void coll_wait(Ticket t);
/* Local. Lets communication progress from inside a computation; returns at once. */
void coll_progress(World *w);
/* Collective over the group where its ranks share memory (world_shares_memory): a collective of
 * which a kernel reads or writes the blocks itself, so that no rank copies them (by_blocks).
 *
 *   all_gather      coll_block(t, o): src of rank o, which may be read until coll_block_done(t, o).
 *                   dst is not written, and may be NULL
 *   reduce_scatter  src is the receive buffer of this rank: slot q is written by rank q, with its
 *                   part of this rank's sum. coll_block(t, o): this rank's slot at rank o, to be
 *                   written before coll_block_done(t, o). dst is no part of src
 *
 * coll_block waits until rank o has started the call. Every rank calls coll_block_done once for
 * each o, itself included, before its coll_wait. Both may be called by any thread of the rank's
 * team. Source: Chang et al., FLUX (2024).
 *
 * Of device memory, where an all_gather is copied to dst all the same: coll_block returns at once,
 * and later work of the rank's stream may read or write the block; coll_block_done stands behind
 * it. Or a kernel waits itself: coll_flags gives a flag for each block, which is *said when the
 * block has come to dst; NULL: there are none. Then all of its work that needs a multiprocessor is
 * done, on all ranks. */
void *coll_block(Ticket t, int o);
void coll_block_done(Ticket t, int o);
const uint32_t *coll_flags(Ticket t, uint32_t *said);
/* Local. The blocks of a call that has started as the rows that a matmul reads or writes: so many
 * of each rank, beginning with those that are here or, of a reduce_scatter, ending with those that
 * stay here. A kernel sets `of`; where several use the blocks, `done` is of the last alone. Life of
 * t: until the call is waited for. */
RowBlocks coll_row_blocks(Ticket *t, int64_t rows);
bool world_shares_memory(const World *w);
static inline void coll_run(Comm *c, const CollCall *call) {
    coll_wait(coll_start(c, call));
}
/* Collective over the group. Returns when all have entered. */
void coll_barrier(Comm *c);
/* Local. The group, of one rank where it is NULL, as a Group of base/group.h. */
Group comm_group(Comm *c);

/* Local. The team that helps with copies and sums; NULL: none. While the team computes, its first
 * thread calls coll_progress. */
void world_set_team(World *w, Team *team);
/* Local. --overlap none: every collective is waited for where it starts, so nothing is hidden. */
void world_set_wait_at_start(World *w, bool blocking);
/* Local. Longest wait in seconds (0: no limit), and text for its error message ("step 12"). */
void world_set_limit(World *w, double seconds);
void world_set_phase(World *w, const char *phase);

/* Counters of this rank since the last reset: one row per (what, op, group). */
typedef struct CollCount {
    const char *what;
    char label[24]; // of the group
    CollOp op;
    int size;             // of the group
    int64_t calls, bytes; // received from other ranks
    double seconds;       // spent inside start and wait
} CollCount;
void world_count_reset(World *w);
/* Local. Rows that were used, at most max of them. Returns how many. */
int world_counts(const World *w, CollCount *rows, int max);
const char *coll_op_name(CollOp op); // "all_gather", ...

/* Collective over c. x[n] = sum of x over the group, on all its ranks. A group of NULL has one
 * rank: nothing is done. */
static inline void coll_sum(Comm *c, CollType type, void *x, int64_t n, const char *what) {
    if (!c) return;
    coll_wait(coll_start(c, &(CollCall){.op = COLL_ALL_REDUCE,
                                        .type = type,
                                        .rows = 1,
                                        .cols = n,
                                        .src = x,
                                        .dst = x,
                                        .what = what}));
}

#endif
