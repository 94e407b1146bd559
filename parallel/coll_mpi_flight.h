/* coll_mpi_flight -- one call under way between processes: its messages are posted, tested, summed. For coll_mpi.c alone.
 *
 * A flight makes the steps that coll_parts.h lists, for one piece of all parts after the other. It moves when it is
 * advanced, and at no other time: whoever waits, and kernels now and then, advance all of them.
 */
#ifndef PARALLEL_COLL_MPI_FLIGHT_H
#define PARALLEL_COLL_MPI_FLIGHT_H

#include <mpi.h>

#include "parallel/coll_parts.h"

/* What a rank is about to call, shown to the others before anything is sent. Debug builds only. */
typedef struct Signature {
    CollCall call;
    char what[64], file[64];
} Signature;

enum { FLIGHT_ROUNDS_TO = 128 << 10 }; // bytes of a whole that may go in rounds

enum { FLIGHT_SIGNS = N_COLL_STEPS, FLIGHT_LANDED }; // beside the steps

typedef struct Flight {
    struct MpiComm *home;
    const CollCall *call;
    CollWay way;
    int step, round; // CollStep, or FLIGHT_; of a far step
    uint64_t number;
    int tag;
    int64_t lines, piece, from; // of the largest part; of one piece; before this piece
    char *kept;   // [slots, piece, width] for sums; then places, and half as many to be added
    int places;   // where they begin
    char *packed; // [size, piece, width] of dim 1
    Signature *signed_by; // [size]; NULL in builds that do not check
    bool *heard;          // [size] has this rank sent anything?
    int n_moves;          // of the step
    CollMove *move;       // [most_moves]
    MPI_Request *request; // [most_moves]
} Flight;

typedef struct MpiComm {
    MPI_Comm mpi;
    Comm *group;
    struct MpiComm *next;
    uint64_t barriers;
    CollNodes nodes, alone;            // where its ranks are; each by itself
    int slots, most_moves;             // by way of nodes, of any rank; of a step, this rank's
    int *done;                         // [most_moves] of MPI_Testsome
    MPI_Status *status;                // [most_moves] so are these, and not looked at
    int *part;                         // [size] parts to be summed
    CollTerm *term;                    // [size]
    Flight flight[COLL_IN_FLIGHT + 1]; // the last one is the barrier's
} MpiComm;

/* The call of a barrier: of no elements, but all send to all. */
extern const CollCall flight_barrier;

/* MPI has one state per process, and so has this. */
extern struct FlightCount {
    int flying;        // not landed yet
    uint64_t messages; // that have come or gone
} flight_count;

/* Local. Room for the flights of a group whose mpi, group and nodes are set; and it is given back. */
void flights_open(MpiComm *m);
void flights_close(MpiComm *m);
/* Local. What is kept from call to call is given back. */
void flights_end(void);

/* Local. Posts the first messages of call number `number`, which is flight_barrier or lives until it has landed. */
void flight_start(Flight *f, uint64_t number, const CollCall *call);
/* Local. Takes what has come; on to the next step when nothing is missing. */
void flight_advance(Flight *f, Team *team);
/* Local, pure. Ranks that have sent nothing; when all have, those with whom something is still under way. Returns text. */
const char *flight_missing(const Flight *f, char *text, size_t n_text);

#endif
