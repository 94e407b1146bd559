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
 * All ranks of a group start the same collectives in the same order. All ranks also wait for them
 * in the same order, which may differ from the order of the starts. Between start and wait a
 * collective progresses as far as its backend can: while kernels run, the first thread of the team
 * polls the backend about every half millisecond (world_set_team). In debug builds (CONFIG=debug,
 * asan, tsan) a start whose arguments differ from those of other threads ends the job with both
 * calls. A wait that exceeds the World's limit ends the job with a line that names the collective
 * and the missing ranks.
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
static inline int64_t coll_type_bytes(CollType t) {
    return (const int64_t[]){4, 8, 8, 4, 1, 2}[t];
}

/* A buffer in device memory, in which the blocks of a whole tensor lie contiguously. */
typedef struct CollStaging {
    void *p;
    size_t n_bytes;
} CollStaging;

typedef struct CollCall {
    CollOp op;
    CollType type;
    int dim;            // all_gather, reduce_scatter: 0 or 1
    int64_t rows, cols; // all_gather: of src; reduce_scatter: of dst; others: of the buffer
    // broadcast, reduce: index in the group of the rank that sends, or receives the sum. shift:
    // distance, 1 <= root < size; dst receives the src of the rank that stands `root` places before
    // this one
    int root;
    // in place: src may equal dst (all_reduce, broadcast), or be this rank's block of dst
    // (all_gather); dst may be this rank's block of src (reduce_scatter with dim 0)
    const void *src;
    void *dst; // reduce: NULL except at the root
    // name of the call in tables, traces and messages, "dx of qkv"; a string constant
    const char *what;
    // all_gather, reduce_scatter with dim 0: elements from the start of one block of the whole to
    // the start of the next; 0: contiguous blocks
    int64_t stride;
    // Device memory only: a staging buffer of the size of the whole tensor for strided blocks (dim
    // 1, stride != 0), which NCCL cannot send directly. Collectives in flight may share it. Its
    // contents are undefined after the wait.
    CollStaging staging;
    // a kernel reads or writes the blocks itself between start and wait: see coll_block. Only
    // all_gather and reduce_scatter of contiguous blocks, dim 0
    bool by_blocks;
} CollCall;

typedef struct World World;
typedef struct Comm Comm;
typedef struct Ticket {
    Comm *comm;
    uint64_t number; // number of this call in its communicator; 0: nothing to wait for
} Ticket;

int world_rank(const World *w);
int world_size(const World *w);
const char *world_backend(const World *w); // "self", "threads", "mpi"
const char *world_node(const World *w);    // host name
/* Collective over the world. Ranks that pass the same color form a group, ordered by (key, rank).
 * label ("x", "d.z") names the group in tables and messages. The group is freed with the world, or
 * by comm_free. */
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
/* CollCall.what of the collectives of a Group (base/group.h), by which ranks agree (has a signal
 * arrived?) and share small data. They are no part of a step. */
#define COLL_AGREEMENT "agreement"
Ticket coll_start(Comm *c, const CollCall *call);
void coll_wait(Ticket t);
/* Local. Lets communication progress from inside a computation; returns at once. */
void coll_progress(World *w);
/* Collective over the group, whose ranks must share memory (world_shares_memory). In a call by
 * blocks a kernel reads or writes the blocks itself, so the backend does not copy them.
 *
 *   all_gather      coll_block(t, o) returns src of rank o. It may be read until
 *                   coll_block_done(t, o). dst is not written, and may be NULL
 *   reduce_scatter  src is the receive buffer of this rank: rank q writes its term of this rank's
 *                   sum to slot q. coll_block(t, o) returns this rank's slot in the buffer of
 *                   rank o. The kernel writes it before coll_block_done(t, o). dst may not overlap
 *                   src
 *
 * coll_block waits until rank o has started the call. Every rank calls coll_block_done once for
 * each o, itself included, before its coll_wait. Any thread of the rank's team may call either.
 * Source: Chang et al., FLUX (2024).
 *
 * Device memory differs: an all_gather is copied to dst, and coll_block returns the block in dst.
 * coll_block returns at once, and work put into the rank's stream after it may read or write the
 * block. coll_block_done is called when that work is in the stream. */
void *coll_block(Ticket t, int o);
void coll_block_done(Ticket t, int o);
/* Local. Describes the blocks of a started call by blocks to a matmul that reads or writes them: n
 * blocks of `rows` rows, one of each rank. An all_gather begins with the block of this rank; a
 * reduce_scatter ends with it. The matmul sets `matrix`. If several matmuls use the same blocks,
 * only the last one calls `done`. The result refers to *t, which must live until coll_wait.
 *
 * On devices a kernel may wait for the blocks of an all_gather itself: flag o becomes ready_value
 * when block o has arrived in dst. By the time a kernel put into the stream after coll_row_blocks
 * begins, src of every rank is written and this rank's own block is copied. What is left of the
 * call needs no multiprocessor of this device, so the waiting kernel cannot block it. */
RowBlocks coll_row_blocks(Ticket *t, int64_t rows);
bool world_shares_memory(const World *w);
static inline void coll_run(Comm *c, const CollCall *call) {
    coll_wait(coll_start(c, call));
}
/* Collective over the group. Returns when all have entered. */
void coll_barrier(Comm *c);
/* Local. c as a Group of base/group.h; NULL: a group of one rank. */
Group comm_group(Comm *c);

/* Local. The team that helps with copies and sums; NULL: none. While the team computes, its first
 * thread calls coll_progress. */
void world_set_team(World *w, Team *team);
/* Local. coll_start waits for all collectives but those by blocks, so that none of them is hidden:
 * the first step of --trace. (With --overlap none lists are not ordered, and run.c waits.) */
void world_set_wait_at_start(World *w, bool wait);
/* Local. Longest wait in seconds (0: no limit), and text for its error message ("step 12"). */
void world_set_limit(World *w, double seconds);
void world_set_phase(World *w, const char *phase);

/* Counters of this rank since the last reset: one row per (what, op, group). */
typedef struct CollCount {
    const char *what;
    char label[24]; // label of the group
    CollOp op;
    int size;             // size of the group
    int64_t calls, bytes; // received from other ranks
    double seconds;       // spent by the host in coll_start and coll_wait
} CollCount;
void world_count_reset(World *w);
/* Local. Copies the rows with at least one call, at most max of them. Returns how many. */
int world_counts(const World *w, CollCount *rows, int max);
const char *coll_op_name(CollOp op); // "all_gather", ...

/* Collective over c. x[n] = sum of x over the group, on all its ranks. A group of NULL has one
 * rank: nothing is done. */
static inline void coll_sum(Comm *c, CollType type, void *x, int64_t n, const char *what) {
    if (!c) return;
    coll_run(c, &(CollCall){.op = COLL_ALL_REDUCE,
                            .type = type,
                            .rows = 1,
                            .cols = n,
                            .src = x,
                            .dst = x,
                            .what = what});
}

#endif
