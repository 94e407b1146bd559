/* coll_nccl -- shared by the files of the NCCL backend: coll_nccl.c (groups and calls),
 * coll_nccl_record.c (recorded calls), coll_nccl_memory.c (registered memory), coll_nccl_blocks.c
 * (memory of other processes, calls by blocks), coll_nccl_watch.c (watchdog for stalled calls, end
 * of the job). */
#ifndef PARALLEL_COMM_COLL_NCCL_H
#define PARALLEL_COMM_COLL_NCCL_H

#include "parallel/comm/coll_device.h"
#include "parallel/comm/nccl.h"

enum { MAX_REGISTERED = 32 }; // allocations

typedef struct NcclGroup {
    DeviceGroup blocks;
    NcclComm comm;
    // of a group whose ranks open each other's memory, or NULL: [N_SIGNS][size] the sign of each
    // rank; [size] where each has its own
    uint32_t *signs;
    void **their_signs;
    Comm *of;
    struct NcclGroup *next, *next_open; // list of the world; list of the process
    Event done[COLL_IN_FLIGHT];         // events after its calls
    Event recorded[COLL_IN_FLIGHT];     // events of recorded calls, never queried
    // handles of NcclWorld.registered[i]; NULL: none
    void *window[MAX_REGISTERED], *buffer[MAX_REGISTERED];
} NcclGroup;

typedef struct NcclWorld {
    DeviceWorld on;
    const Nccl *f;
    CollBackend backend; // with calls by blocks where ranks open each other's memory
    int under_way;       // calls in flight
    Recorded *recording; // in progress; or NULL
    Stream notes;        // for notes of recordings, so that no call waits for them
    Event fork;          // recordings: where a stream last followed another one
    struct {
        void *p; // NULL: free
        size_t n_bytes;
        void **theirs; // [ranks of the world] the memory of each, at its address here; or NULL
    } registered[MAX_REGISTERED];
    // with the lock of the queue:
    NcclGroup *groups;
    struct {
        const Comm *comm; // NULL: none
        const char *what;
        double since, limit;
    } opening; // a host call of NCCL that waits for the other hosts of a group
} NcclWorld;

/* Local. Ends the job with NCCL's error text if result is an error. */
void nccl_check(const NcclWorld *n, int result, const char *what, const Comm *c);

/* Local. Prepares the world for recording. */
void nccl_record_open(const NcclWorld *n);
/* Local. Bracket a recorded call that is put into the communication stream. */
void nccl_record_begin(NcclWorld *n, const Comm *c, const CollCall *call);
void nccl_record_end(NcclWorld *n, Event done);

/* Functions of the backend's table. */
extern const struct CollRecorder nccl_recorder;
const ArenaMemory *nccl_memory(const World *w, const ArenaMemory *memory);
void nccl_register(World *w, void *p, size_t n_bytes);
void nccl_deregister(World *w, void *p);
/* Collective over the group, just opened or about to be closed. All registered memory of the
 * world. */
void nccl_register_all(NcclWorld *n, NcclGroup *g);
void nccl_deregister_all(const NcclWorld *n, NcclGroup *g);

/* Ranks open each other's memory, so NCCL registers none: it is cudaMalloc's, for which CUDA has
 * handles. */
static inline bool nccl_shares(const NcclWorld *n) {
    return n->backend.block != NULL;
}
bool nccl_share(World *w, Err *e);
/* Collective over the group. p of each rank, allocated alike, at its address here; NULL, with the
 * reason, on all ranks. To be closed by all before any rank frees its own. */
void **nccl_open_memory(Comm *c, void *p, Err *e);
void nccl_close_memory(const Comm *c, void **theirs);
void nccl_signs_open(NcclGroup *g);
void nccl_signs_close(NcclGroup *g);
void nccl_blocks_start(Comm *c, uint64_t number, const CollCall *call);
extern const BlockWay nccl_by_signs;

/* Local. Beside the queue: errors of NCCL, and host calls of it that take too long. */
void nccl_look(void *world);
/* Local. Add and remove a communicator from the list that is aborted if the process ends early. */
void nccl_watch_open(NcclWorld *n, NcclGroup *g);
void nccl_watch_close(NcclWorld *n, NcclGroup *g);
/* Local. Tells the watchdog that the host enters a call of NCCL that waits for other hosts (what:
 * "a communicator"), or has returned from it (NULL). */
void nccl_watch_host(NcclWorld *n, const Comm *c, const char *what);

#endif
