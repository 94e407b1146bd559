/* coll_nccl -- shared by the files of the NCCL backend: coll_nccl.c (groups and calls),
 * coll_nccl_record.c (recorded calls), coll_nccl_memory.c (registered memory), coll_nccl_blocks.c
 * (memory of other processes, calls by blocks), coll_nccl_watch.c (watchdog for stalled calls, end
 * of the job). */
#ifndef PARALLEL_COMM_COLL_NCCL_H
#define PARALLEL_COMM_COLL_NCCL_H

#include "parallel/comm/coll_device.h"
#include "parallel/comm/nccl.h"

enum { MAX_REGISTERED = 32 }; // memory allocations

/* State of a group. Entries of done and recorded: k % COLL_IN_FLIGHT for call k. */
typedef struct NcclGroup {
    DeviceGroup blocks;
    NcclComm comm;
    // If the group's ranks have opened each other's memory, else NULL: signals[N_SIGNALS][size],
    // from each rank to this one (coll_nccl_blocks.c); peer_signals[size], the address of each
    // rank's `signals`
    uint32_t *signals;
    void **peer_signals;
    Comm *group;
    struct NcclGroup *next, *next_open; // next: list of the world; next_open: list of the process
    Event done[COLL_IN_FLIGHT];         // event after each call
    Event recorded[COLL_IN_FLIGHT];     // events for recorded calls; they are never queried
    // NCCL's handles of NcclWorld.registered[i]; NULL: none
    void *window[MAX_REGISTERED], *buffer[MAX_REGISTERED];
} NcclGroup;

/* State of a rank. */
typedef struct NcclWorld {
    DeviceWorld device;
    const Nccl *f;
    // this world's table; `block` is set if ranks have opened each other's memory
    CollBackend backend;
    int in_flight;       // calls in flight
    Recorded *recording; // the recording in progress; or NULL
    Stream progress; // stream of the progress of recordings, so that no call waits for its writes
    Event fork;      // recordings: event at which one stream last waited for another
    struct {
        void *p; // NULL: free
        size_t n_bytes;
        // [world_size] the same allocation of each rank, as an address of this rank; or NULL
        void **peer_address;
    } registered[MAX_REGISTERED];
    // protected by the lock of the queue:
    NcclGroup *groups;
    struct {
        const Comm *comm; // NULL: none
        const char *what;
        double since;
    } host_call; // the call of NCCL in which the host waits for the other hosts of a group
} NcclWorld;

/* Local. Ends the job with NCCL's error text if result is an error. */
void nccl_check(const NcclWorld *n, int result, const char *what, const Comm *c);

/* Local. Prepares the world for recording. */
void nccl_record_open(const NcclWorld *n);
/* Local. Called before and after a recorded call is put into the communication stream. */
void nccl_record_begin(NcclWorld *n, const Comm *c, const CollCall *call);
void nccl_record_end(NcclWorld *n, Event done);

/* Functions for the backend's table. */
extern const struct CollRecorder nccl_recorder;
const ArenaMemory *nccl_memory(const World *w, const ArenaMemory *memory);
void nccl_register(World *w, void *p, size_t n_bytes);
void nccl_deregister(World *w, void *p);
/* Collective over the group, just opened or about to be closed. Registers or deregisters all
 * registered memory of the world with the group. */
void nccl_register_all(NcclWorld *n, NcclGroup *g);
void nccl_deregister_all(const NcclWorld *n, NcclGroup *g);

/* Do ranks open each other's memory? Then no memory is registered with NCCL: arenas are allocated
 * by cudaMalloc, for which CUDA has handles. */
static inline bool nccl_shares(const NcclWorld *n) {
    return n->backend.block != NULL;
}
bool nccl_share(World *w, Err *e);
/* Collective over the group. Each rank passes its own allocation p of the same size.
 * nccl_open_memory returns [size] the allocation of each rank as an address of this rank; NULL,
 * with the reason, on all ranks. All ranks call nccl_close_memory before any rank frees its own
 * p. */
void **nccl_open_memory(Comm *c, void *p, Err *e);
void nccl_close_memory(const Comm *c, void **theirs);
void nccl_signals_open(NcclGroup *g);
void nccl_signals_close(NcclGroup *g);
void nccl_blocks_start(Comm *c, uint64_t number, const CollCall *call);
extern const BlockTransport nccl_by_signals;

/* Local. Called by the watchdog beside its check of the queue: ends the job at an error of NCCL, or
 * if a host call of NCCL takes too long. */
void nccl_check_all(void *world);
/* Local. Adds a communicator to, or removes it from, the list of those that are aborted if the
 * process ends early. */
void nccl_watch_open(NcclWorld *n, NcclGroup *g);
void nccl_watch_close(NcclWorld *n, NcclGroup *g);
/* Local. Tells the watchdog that the host enters a call of NCCL that waits for other hosts (what:
 * "a communicator"), or has returned from it (NULL). */
void nccl_watch_host(NcclWorld *n, const Comm *c, const char *what);

#endif
