/* coll_mpi_flight -- one collective in flight between processes: posts its messages, tests for
 * their completion, and sums the received terms. Internal to coll_mpi.c.
 *
 * The data of a collective is split into parts. Each part has an owner:
 *
 *     reduce_scatter, all_gather    part j is block j of the whole     rank j
 *     all_reduce                    part j is slice j of the buffer    rank j
 *     reduce, broadcast             one part is all of it              the root
 *
 * A flight takes one or two steps, or twice as many by nodes (see below). Long parts are sent in
 * chunks: all steps are done for the first chunk of every part, then for the second, and so on.
 *
 *     spread     reduce_scatter, all_reduce, reduce    all ranks send each part to its owner, which
 *                                                      sums in the tree of coll_reduce.h
 *     collect    all_gather, all_reduce, broadcast     owners send their parts to all ranks
 *     shift      one message to a rank, one from another, as a step of its own (collect)
 *
 * A small all_reduce spreads the whole buffer to every rank instead, and collects nothing.
 *
 * By nodes: the ranks of a node share its link to other nodes. If a group consists of `near` = 2^i
 * consecutive ranks on each of several nodes, the part of owner j is carried, on every node, by the
 * rank with index j % near within that node. For example, on two nodes of two ranks, rank 0 carries
 * the parts of owners 0 and 2.
 *
 *     spread, near     each rank sends each part to the rank of its node that carries it, which
 *                      sums over the node                                       0 - 1, 2 - 3
 *     spread           carriers send the sums to the owner                      0 - 2, 1 - 3
 *     collect          owners send their parts to the carriers                  0 - 2, 1 - 3
 *     collect, near    carriers send them to the ranks of their node            0 - 1, 2 - 3
 *
 * So a node's link carries a part once for each other node, not once for each rank there. The tree
 * of coll_reduce.h also adds such blocks of ranks first, so the sums have the same bits. Small
 * tensors take these steps even between ranks on nodes of their own, because neighbours are often
 * in one rack.
 *
 * Flights progress only in flight_advance, which a wait calls, and the team now and then while
 * kernels run.
 */
#ifndef PARALLEL_COMM_COLL_MPI_FLIGHT_H
#define PARALLEL_COMM_COLL_MPI_FLIGHT_H

#include <mpi.h>

#include "parallel/comm/coll_backend.h"

// longest message, in bytes, that MPI sends eagerly, without a rendezvous (coll_mpi_job.c)
enum { FLIGHT_EAGER_LIMIT = 256 << 10 };

typedef enum {
    FLIGHT_SPREAD_NEAR,
    FLIGHT_SPREAD,
    FLIGHT_COLLECT,
    FLIGHT_COLLECT_NEAR,
    FLIGHT_STEPS,
    FLIGHT_DONE = FLIGHT_STEPS // no flight
} FlightStep;

/* A message of this rank: the current chunk of a part, to or from rank `peer` of the group. */
typedef struct FlightMove {
    int part, peer;
    bool receive;
} FlightMove;

typedef struct Flight {
    struct MpiComm *comm;
    const CollCall *call;
    FlightStep step;
    bool whole; // all_reduce: each part is the whole buffer, so there is no collect step
    int near;   // MpiComm.near or near_small; 1: not by nodes
    uint64_t number;
    int tag;
    // lines of the largest part, lines of one chunk, first line of the current chunk
    int64_t lines, chunk, first;
    char *kept;           // [size - 1, chunk, width] received terms of sums
    char *packed;         // [size, chunk, width] packed blocks of dim 1
    bool *arrived;        // [size] has a message of rank r arrived?
    int n_moves;          // messages of this step
    FlightMove *move;     // [2 size]
    MPI_Request *request; // [2 size]
} Flight;

typedef struct MpiComm {
    MPI_Comm mpi;
    Comm *group;
    struct MpiComm *next;
    uint64_t barriers;
    // near: a power of two; each block of `near` consecutive ranks shares a node. 1 if there is no
    // such block, or the block would be the whole group
    int near;
    // near for small tensors: about sqrt(size) if no two neighbours share a node
    int near_small;
    int *done;                         // [2 size] output of MPI_Testsome
    MPI_Status *status;                // [2 size] output of MPI_Testsome, unused
    const char **term;                 // [size] terms of a sum
    int64_t *stride;                   // [size] bytes from row to row of each term
    Flight flight[COLL_IN_FLIGHT + 1]; // the last one is for barriers
} MpiComm;

/* The call of a barrier: every rank sends an empty message to every other. */
extern const CollCall flight_barrier;

/* Messages that this process has sent and received so far. */
extern uint64_t flight_messages;

/* Local. flights_open allocates the flights of a group; mpi, group, near and near_small are set. */
void flights_open(MpiComm *m);
void flights_close(MpiComm *m);
/* Local. Frees the buffers that are reused from call to call. */
void flights_end(void);

/* Local. Posts the first messages of a call. *call is flight_barrier or lives until the flight
 * ends. */
void flight_start(Flight *f, uint64_t number, const CollCall *call);
/* Local. Handles arrived messages. When all messages of the step have arrived, begins the next step
 * or ends the flight. */
void flight_advance(Flight *f, Team *team);
/* Local, pure. Writes the ranks that have sent nothing. If all have sent something, writes the
 * ranks whose messages are still in flight. Returns text. */
const char *flight_missing(const Flight *f, char *text, size_t n_text);

#endif
