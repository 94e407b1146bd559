/* coll_nccl -- shared by the files of the NCCL backend: coll_nccl.c (groups and calls),
 * coll_nccl_record.c (recorded calls), coll_nccl_memory.c (registered memory), coll_nccl_blocks.c
 * (memory of other processes, calls by blocks), coll_nccl_watch.c (watchdog for stalled calls, end
 * of the job). */
#ifndef PARALLEL_COMM_COLL_NCCL_H
#define PARALLEL_COMM_COLL_NCCL_H

#include "parallel/comm/coll_device.h"
#include "parallel/comm/coll_device_watchdog.h"
#include "parallel/comm/nccl.h"

// calls that the host may run ahead of the device; registered allocations
enum { MAX_QUEUED = 256, MAX_REGISTERED = 32 };

typedef struct Called {
    CollCall call;
    const Comm *comm;
} Called;

/* Recorded calls in the order in which they run. */
typedef struct NcclRecording {
    Called *called;
    int n, cap;
    // pinned; written by the running replay: 2i + 1: call i has begun, 2i + 2: it is done
    uint32_t *note;
} NcclRecording;

/* A call in the communication stream, or a replay in the rank's own stream. */
typedef struct NcclQueued {
    Event ready, begun, done;
    Called called;
    const NcclRecording *replay; // NULL: a call
    double limit, since;         // since: when the watchdog saw it begin; 0: not yet
    uint32_t note;               // last value seen by the watchdog
    bool in_stream;              // completely
} NcclQueued;

typedef struct NcclBlocks NcclBlocks;
typedef struct NcclGroup {
    NcclComm comm;
    NcclBlocks *blocks; // of a group whose ranks open each other's memory; or NULL
    Comm *of;
    struct NcclGroup *next, *next_open; // list of the world; list of the process
    Event done[COLL_IN_FLIGHT];         // events after its calls
    Event recorded[COLL_IN_FLIGHT];     // events of recorded calls, never queried
    // handles of NcclWorld.registered[i]; NULL: none
    void *window[MAX_REGISTERED], *buffer[MAX_REGISTERED];
} NcclGroup;

typedef struct NcclWorld {
    const Nccl *f;
    CollBackend backend; // with calls by blocks where ranks open each other's memory
    Stream comm_stream;
    int under_way;            // calls in flight
    NcclRecording *recording; // in progress; or NULL
    Stream notes;             // for notes of recordings, so that no call waits for them
    Event fork;               // recordings: where a stream last followed another one
    struct {
        void *p; // NULL: free
        size_t n_bytes;
        void **theirs; // [ranks of the world] the memory of each, at its address here; or NULL
    } registered[MAX_REGISTERED];
    Watchdog watchdog;            // its lock: of all fields below
    NcclQueued queue[MAX_QUEUED]; // entry k is queue[k % MAX_QUEUED]
    uint64_t first, end;          // entries [first, end) are not known to be done
    NcclGroup *groups;
    struct {
        const Comm *comm; // NULL: none
        const char *what;
        double since, limit;
    } opening; // a host call of NCCL that waits for the other hosts of a group
} NcclWorld;

/* Local. Ends the job with NCCL's error text if result is an error. */
void nccl_check(const NcclWorld *n, int result, const char *what, const Comm *c);

/* Local. nccl_queue_take: the next queue entry, for this call or replay; blocks while the host is
 * too far ahead. nccl_queue_given: the entry is completely in its stream. nccl_settle: waits for
 * the last entry. */
NcclQueued *nccl_queue_take(NcclWorld *n, const NcclQueued *of);
void nccl_queue_given(NcclWorld *n, NcclQueued *t);
void nccl_settle(const NcclWorld *n);
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
void nccl_blocks_open(NcclGroup *g);
void nccl_blocks_close(NcclGroup *g);
/* Calls by blocks: as in CollBackend. */
void nccl_blocks_start(Comm *c, uint64_t number, const CollCall *call);
void nccl_blocks_wait(Comm *c, uint64_t number, const CollCall *call);
void *nccl_block(Comm *c, uint64_t number, const CollCall *call, int o);
void nccl_block_done(Comm *c, uint64_t number, const CollCall *call, int o);
const uint32_t *nccl_flags(Comm *c, uint64_t number, const CollCall *call, uint32_t *said);

/* Local. Start and stop the watchdog thread of the world's calls. */
void nccl_watch_start(NcclWorld *n);
void nccl_watch_stop(NcclWorld *n);
/* Local. Add and remove a communicator from the list that is aborted if the process ends early. */
void nccl_watch_open(NcclWorld *n, NcclGroup *g);
void nccl_watch_close(NcclWorld *n, NcclGroup *g);
/* Local. Tells the watchdog that the host enters a call of NCCL that waits for other hosts (what:
 * "a communicator"), or has returned from it (NULL). */
void nccl_watch_host(NcclWorld *n, const Comm *c, const char *what);

#endif
