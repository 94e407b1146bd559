/* coll -- collectives among a group of ranks: started, and waited for by ticket.
 *
 * A World is all ranks of the job as one of them sees it; a Comm is a group of them (along some axes
 * of the mesh). Backends are tables of functions, one file each, for memory of the host (of GPUs: devices.h):
 *
 *   self      one rank                    coll_self.c
 *   threads   ranks are threads           coll_threads.c     each reads the others' memory
 *   mpi       ranks are processes         coll_mpi.c         or coll_mpi_absent.c where there is no MPI
 *
 * Blocks are matrices of rows x cols elements. With dim 0 the blocks of a group lie one below the
 * other in the whole, with dim 1 side by side:
 *
 *       dim 0   [ b0 ]      dim 1   [ b0 | b1 | b2 ]
 *               [ b1 ]
 *               [ b2 ]
 *
 * Sums are taken in an order that depends on the group alone, whoever arrives first and however much it is: ranks in pairs,
 * then pairs of pairs; of processes on several nodes, over every node's ranks, then over nodes (coll_parts.h). So a layout gives
 * the bits of threads with processes, too, on one node or on nodes of the next 2^i ranks each. After an all_reduce all ranks
 * have the same bits; of bf16 every sum is rounded. Counted bytes are those that this rank receives from others, as ring volumes
 * whatever way they come: (p-1)/p of the whole for all_gather and reduce_scatter, twice that for all_reduce; a broadcast is
 * received once by all but its root, a reduce (p-1) times by its root alone, a shift once by all.
 *
 * All ranks of a group start the same collectives in the same order, and wait for them in the same order,
 * which may be another one. Between the two they go on by themselves as far as the backend can: while kernels run,
 * the first member of the team looks after them about every half millisecond (world_set_team). In debug builds (CONFIG=debug,
 * asan, tsan) a start with other arguments than its partners' ends the job with both call sites.
 * A wait that lasts longer than the World's limit ends the job with a line that says what it waited for, and for whom.
 */
#ifndef PARALLEL_COLL_H
#define PARALLEL_COLL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/group.h"
#include "base/team.h"

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
typedef enum { COLL_SUM, COLL_MAX } CollFold;

/* Memory in which the blocks of a whole can lie one after the other. */
typedef struct CollPlace {
    void *p;
    size_t n_bytes;
} CollPlace;

typedef struct CollCall {
    CollOp op;
    CollType type;
    CollFold fold;      // of reduce_scatter, all_reduce, reduce
    int dim;            // of all_gather, reduce_scatter: 0 or 1
    int64_t rows, cols; // of one block: all_gather's src, reduce_scatter's dst; else of the buffer
    int root; // of broadcast, reduce: index in the group. shift: dst is the src of the rank so many before, 1 <= root < size
    const void *src;  // may be dst (all_reduce, broadcast), or its own block of dst (all_gather);
                      // dst may be its own block of src (reduce_scatter with dim 0)
    void *dst;        // reduce: of the root, NULL elsewhere. src stays untouched until the wait
    const char *what; // "dx of qkv": for tables, traces, messages; a constant
    const char *file; // call site
    int line;
    // all_gather, reduce_scatter with dim 0: elements from one block of this rank's whole to the next; 0: they touch
    int64_t stride;
    // of memory of devices, where blocks do not touch (dim 1, stride): room for the whole without gaps. Calls that are open may
    // share it, between a start and its wait nobody else; what is in it then is nobody's
    CollPlace place;
} CollCall;

typedef struct World World;
typedef struct Comm Comm;
typedef struct Ticket {
    Comm *comm;
    uint64_t number; // of this call in its Comm; 0: nothing to wait for
} Ticket;

int world_rank(const World *w);
int world_size(const World *w);
const char *world_backend(const World *w); // "self", "threads", "mpi"
const char *world_node(const World *w);    // host name
/* Collective over the world. The ranks of one color form a group, in the order of (key, rank); label
 * ("x", "d.z") names it in tables and messages. Freed with the world, or before. */
Comm *world_split(World *w, int color, int key, const char *label);
/* The same where the caller knows its place in the group, which a world that is imagined must be told. */
Comm *world_group(World *w, int color, int rank, int size, const char *label);
Comm *world_comm(World *w); // all ranks; label "all"
/* Collective over the world. Gives back a group of world_split, and its counters; none of its tickets is open. */
void comm_free(Comm *c);
int comm_rank(const Comm *c);
int comm_size(const Comm *c);
const char *comm_label(const Comm *c);

/* Collective over the group, in the same order on all its ranks. Of the last COLL_IN_FLIGHT tickets of a
 * group any may be open; who starts one more while the oldest of them is, dies. A ticket is waited for once.
 * The team, where one is given to the world, does large copies and sums. */
enum { COLL_IN_FLIGHT = 32 };
Ticket coll_start(Comm *c, const CollCall *call);
void coll_wait(Ticket t);
/* Local. Lets communication progress from inside a computation; returns at once. */
void coll_progress(World *w);
static inline void coll_run(Comm *c, const CollCall *call) {
    coll_wait(coll_start(c, call));
}
/* Collective over the group. Returns when all have entered. */
void coll_barrier(Comm *c);
/* Local. The group as base/group.h shows it to rooms that know no collectives. */
Group comm_group(Comm *c);

/* Local. The team that helps with copies and sums; NULL: none. While it computes, it calls coll_progress. */
void world_set_team(World *w, Team *team);
/* Local. Whoever waits, or gives way, calls f first: another half of the batch may compute (base/turns.h); NULL: nobody. */
void world_set_yield(World *w, void (*f)(void *ctx), void *ctx);
void world_give_way(World *w);
/* Local. Every start waits at once, so nothing is hidden: to measure what overlap hides. */
void world_set_blocking(World *w, bool blocking);
/* Local. How a rank waits for others. auto: it spins for as long as a message takes, then sleeps between looks; threads that
 * share cores do not spin. spin: it holds its core. sleep: it leaves the core to others, and short waits get longer. */
typedef enum { WAIT_AUTO, WAIT_SPIN, WAIT_SLEEP } WaitHow;
void world_set_wait(World *w, WaitHow how);
/* Local. Seconds that a wait may last, 0: for ever; and text put into the message ("step 12"). */
void world_set_limit(World *w, double seconds);
void world_set_phase(World *w, const char *phase);

/* Counters of this rank since the last reset: one row per (what, op, group). */
typedef struct CollCount {
    const char *what, *label;
    CollOp op;
    int size;             // of the group
    int64_t calls, bytes; // received from other ranks
    double seconds;       // spent inside start and wait
} CollCount;
void world_count_reset(World *w);
/* Local. Fills at most max rows in order of first use; returns how many there are. */
int world_counts(const World *w, CollCount *rows, int max);
const char *coll_op_word(CollOp op); // "all_gather", ...

#endif
