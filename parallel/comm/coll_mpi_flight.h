/* coll_mpi_flight -- one collective in flight between processes: posts and tests its messages,
 * sums. Internal to coll_mpi.c.
 *
 * The data of a collective is split into parts. Each part has an owner:
 *
 *     reduce_scatter, all_gather    part j is block j of the whole     rank j
 *     all_reduce                    part j is slice j of the buffer    rank j
 *     reduce, broadcast             one part is all of it              the root
 *
 * A flight takes one or two steps, or twice as many by nodes. Long parts go by chunks: a step is
 * done for one chunk of all parts after the other.
 *
 *     spread     reduce_scatter, all_reduce, reduce    all ranks send each part to its owner, which
 *                                                      sums in the tree of coll_reduce.h
 *     collect    all_gather, all_reduce, broadcast     owners send their parts to all ranks
 *     shift      one message to a rank, one from another, as a step of its own (collect)
 *
 * A small all_reduce spreads the whole buffer to every rank instead, and collects nothing.
 *
 * By nodes: ranks of a node share its link to the others. Where a group is 2^i consecutive ranks of
 * each of several nodes (`near` ranks each), its rank i of every node carries the parts of all
 * ranks i. Below two nodes of two: rank 0 carries the parts of ranks 0 and 2.
 *
 *     spread, near     each rank sends each part to the rank of its node that carries it, which
 *                      sums over the node                                       0 - 1, 2 - 3
 *     spread           carriers send the sums to the owner                      0 - 2, 1 - 3
 *     collect          owners send their parts to the carriers                  0 - 2, 1 - 3
 *     collect, near    carriers send them to the ranks of their node            0 - 1, 2 - 3
 *
 * So the link carries a part once for each other node, not for each rank there. The tree of
 * coll_reduce.h adds such blocks of ranks first, too: the sums have the same bits. Small wholes go
 * so between ranks on nodes of their own as well: neighbours are often in one rack.
 *
 * Flights progress only in flight_advance, which waits call, and kernels now and then.
 */
#ifndef PARALLEL_COMM_COLL_MPI_FLIGHT_H
#define PARALLEL_COMM_COLL_MPI_FLIGHT_H

#include <mpi.h>

#include "parallel/comm/coll_backend.h"

// largest message, in bytes, that MPI sends without asking its receiver first (coll_mpi_job.c)
enum { FLIGHT_ASKS = 256 << 10 };

typedef enum {
    FLIGHT_SPREAD_NEAR,
    FLIGHT_SPREAD,
    FLIGHT_COLLECT,
    FLIGHT_COLLECT_NEAR,
    FLIGHT_STEPS,
    FLIGHT_LANDED = FLIGHT_STEPS // no flight
} FlightStep;

/* A message of this rank: a part, to or from a rank of the group. */
typedef struct FlightMove {
    int part, peer;
    bool receive;
} FlightMove;

typedef struct Flight {
    struct MpiComm *home;
    const CollCall *call;
    FlightStep step;
    bool whole; // all_reduce: each part is the whole buffer, nothing is collected
    int near;   // MpiComm.near or near_small; 1: directly
    uint64_t number;
    int tag;
    int64_t lines, piece, from; // lines of the largest part; of one chunk; before this chunk
    char *kept;                 // [size - 1, chunk, width] terms of sums
    char *packed;               // [size, chunk, width] packed blocks of dim 1
    bool *arrived;              // [size] has a message of that rank arrived?
    int n_moves;                // of this step
    FlightMove *move;           // [2 size]
    MPI_Request *request;       // [2 size]
} Flight;

typedef struct MpiComm {
    MPI_Comm mpi;
    Comm *group;
    struct MpiComm *next;
    uint64_t barriers;
    int near; // a power of two: each so many consecutive ranks share a node; 1: so does the group
    int near_small;     // the same for small wholes; with a node for each rank near sqrt(size)
    int *done;          // [2 size] output of MPI_Testsome
    MPI_Status *status; // [2 size] output of MPI_Testsome, unused
    const char **term;  // [size] of a sum
    int64_t *stride;    // [size]
    Flight flight[COLL_IN_FLIGHT + 1]; // the last one: barrier
} MpiComm;

/* The call of a barrier: every rank sends an empty message to every other. */
extern const CollCall flight_barrier;

/* Counters of this process. */
extern struct FlightCount {
    int flying;        // flights in progress
    uint64_t messages; // sent and received
} flight_count;

/* Local. Allocates and frees the flights of a group; mpi, group, near and
 * near_small are set. */
void flights_open(MpiComm *m);
void flights_close(MpiComm *m);
/* Local. Frees the buffers that are kept between calls. */
void flights_end(void);

/* Local. Posts the first messages of a call. *call is flight_barrier or lives until the flight
 * ends. */
void flight_start(Flight *f, uint64_t number, const CollCall *call);
/* Local. Handles arrived messages; goes to the next step when all of this step have arrived. */
void flight_advance(Flight *f, Team *team);
/* Local, pure. Writes into text the ranks that have sent nothing; if all have, those with messages
 * still in flight. Returns text. */
const char *flight_missing(const Flight *f, char *text, size_t n_text);

#endif
