/* coll_mpi_flight -- one collective in flight between processes: posts and tests its messages,
 * sums. Internal to coll_mpi.c.
 *
 * A flight runs the steps of coll_parts.h, for one chunk of all parts after the other. Flights
 * progress only in flight_advance, which waits call, and kernels now and then.
 */
#ifndef PARALLEL_COMM_COLL_MPI_FLIGHT_H
#define PARALLEL_COMM_COLL_MPI_FLIGHT_H

#include <mpi.h>

#include "parallel/comm/coll_parts.h"

/* Debug builds: the arguments of a call, compared among ranks before data is sent. */
typedef struct Signature {
    CollCall call;
    char what[64], file[64];
} Signature;

enum {
    FLIGHT_ROUNDS_TO = 128 << 10, // largest whole, in bytes, that may be sent in rounds
    // largest message, in bytes, that MPI sends without asking its receiver first (coll_mpi_job.c)
    FLIGHT_ASKS = 256 << 10,
};

enum { FLIGHT_SIGNS = N_COLL_STEPS, FLIGHT_LANDED }; // values of Flight.step beside CollStep

typedef struct Flight {
    struct MpiComm *home;
    const CollCall *call;
    CollAlgorithm algorithm;
    int step, round; // CollStep or FLIGHT_...; round of a far step
    uint64_t number;
    int tag;
    int64_t lines, piece, from; // lines of the largest part; of one chunk; before this chunk
    char *kept;   // [slots, chunk, width] terms of sums; then places, and half as many to be added
    int places;   // index of the first place
    char *packed; // [size, chunk, width] packed blocks of dim 1
    Signature *signed_by; // [size]; NULL without checks
    bool *heard;          // [size] has a message of that rank arrived?
    int n_moves;          // of this step
    CollMove *move;       // [most_moves]
    MPI_Request *request; // [most_moves]
} Flight;

typedef struct MpiComm {
    MPI_Comm mpi;
    Comm *group;
    struct MpiComm *next;
    uint64_t barriers;
    CollNodes nodes, alone; // nodes of the ranks; each rank as a node of its own
    // most slots of any rank; most messages of this rank in a step
    int slots, most_moves;
    int *done;                         // [most_moves] output of MPI_Testsome
    MPI_Status *status;                // [most_moves] output of MPI_Testsome, unused
    int *part;                         // [size] parts to sum
    CollTerm *term;                    // [size]
    Flight flight[COLL_IN_FLIGHT + 1]; // the last one: barrier
} MpiComm;

/* The call of a barrier: every rank sends an empty message to every other. */
extern const CollCall flight_barrier;

/* Counters of this process. */
extern struct FlightCount {
    int flying;        // flights in progress
    uint64_t messages; // sent and received
} flight_count;

/* Local. Allocates and frees the flights of a group; mpi, group and nodes are set. */
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
