/* coll_device -- shared by the backends for device memory. */
#ifndef PARALLEL_COMM_COLL_DEVICE_H
#define PARALLEL_COMM_COLL_DEVICE_H

#include <pthread.h>

#include "layers/cuda/reduce.h"
#include "layers/cuda/streams.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/comm/devices.h"

/* ---- the queue of a rank's calls on its device, watched by a thread: coll_device_watch.c */

// MAX_QUEUED: entries that the host may be ahead of the device
enum { MAX_QUEUED = 256, QUEUE_TEXT = 1024 };

/* A call and its group. */
typedef struct Called {
    CollCall call;
    const Comm *comm;
} Called;

/* The calls of one recording (CUDA graph), in the order in which they run. */
typedef struct Recorded {
    Called *called;
    int n, cap;
    // pinned; the running replay writes 2i + 1 when call i begins, 2i + 2 when call i is done
    uint32_t *progress;
} Recorded;

/* An entry of the queue: a call, or a replay of a recording. */
typedef struct Queued {
    // ready: the caller's work before the call; begun, done: first and last point of the entry
    Event ready, begun, done;
    Called called;
    const Recorded *replay; // NULL: a call
    // [size] event o: the block of rank o has arrived, or its slot is written; NULL: progress is
    // not known by rank
    const Event *part;
    // limit: longest time in flight, seconds. since: when the thread saw the call begin; 0: not yet
    double limit, since;
    uint32_t progress; // last progress value of a replay seen by the thread
    bool in_stream;    // the host has put all of the entry into its stream
} Queued;

typedef struct CallQueue {
    // held while the thread checks; protects everything that the thread reads
    pthread_mutex_t lock;
    int device;            // device of the rank
    Queued at[MAX_QUEUED]; // entry k is at[k % MAX_QUEUED]
    uint64_t first, end;   // entries [first, end) may still be in flight
    // state of the thread; `check` is called in each round, beside the check of the queue
    void (*check)(void *ctx);
    void *ctx;
    DieRank name;
    // clock of `since`, as of this round of the thread; it stands still while this process is
    // stopped
    double now;
    pthread_t thread;
    pthread_cond_t change;
    bool ends;
} CallQueue;

/* Local. Makes the queue and starts its thread, which checks the oldest entry every 20 ms, on the
 * device of this rank and under this rank's name. check(ctx) is called in every round too; NULL:
 * nothing more to check. */
CallQueue *queue_open(void (*check)(void *ctx), void *ctx);
void queue_close(CallQueue *q);
/* Local. queue_take: the next entry, filled from `like` (a call or a replay); blocks while the host
 * is MAX_QUEUED entries ahead of the device. queue_enqueued: the entry is now completely in its
 * stream. queue_drain: waits for the last entry. */
Queued *queue_take(CallQueue *q, const Queued *like);
void queue_enqueued(CallQueue *q, Queued *t);
void queue_drain(const CallQueue *q);
/* Local, called with the lock held. queue_too_long: has a wait that began at `since` reached its
 * limit? queue_missing: writes the other ranks of the group whose event in `part` has not come.
 * part NULL: writes all of them, joined by "or", since at least one is missing. */
bool queue_too_long(const CallQueue *q, double since, double limit);
void queue_missing(const Comm *c, const Event *part, char text[QUEUE_TEXT]);

/* ---- calls by blocks: coll_device_blocks.c */

/* What one rank signals to another: READY: src may be read, and dst or the slots be written. SLOT:
 * the term for the other rank's sum is stored in its slot. READ: the other rank's block has been
 * read. */
typedef enum { SIGNAL_READY, SIGNAL_SLOT, SIGNAL_READ, N_SIGNALS } BlockSignal;

/* How ranks signal each other and address each other's memory: by events between threads
 * (coll_device.c), by signals written into memory between processes (coll_nccl_blocks.c). */
typedef struct BlockTransport {
    bool host_waits; // wait_signal blocks the host until the other rank has made the call
    /* Local. send_signal: stream s signals rank o when it comes to this point. wait_signal: later
     * work of stream s waits for the signal of rank o. */
    void (*send_signal)(Comm *c, Stream s, int o, BlockSignal signal, uint64_t number,
                        const CollCall *call);
    void (*wait_signal)(Comm *c, Stream s, int o, BlockSignal signal, uint64_t number,
                        const CollCall *call);
    // src of rank o, as an address of this rank
    const void *(*src)(Comm *c, int o, uint64_t number, const CollCall *call);
} BlockTransport;

/* State of a rank; the first member of every backend's device_impl. */
typedef struct DeviceWorld {
    Stream comm;           // communication stream
    bool distinct_devices; // no two ranks have the same device
    const BlockTransport *transport;
    CallQueue *queue; // NULL: no call has been watched yet
} DeviceWorld;

/* Events of one call by blocks. part[o]: block o has arrived here (all_gather); this rank's slot at
 * rank o is written (reduce_scatter). */
typedef struct BlockEvents {
    Queued *queued;  // NULL: the call is not watched yet, or no longer
    Event *part;     // [size]
    uint64_t copied; // number of the last all_gather whose copies are in the stream
} BlockEvents;

/* State of a group; the first member of every backend's Comm.device. Call k uses entry k %
 * COLL_IN_FLIGHT of `events`, and the `size` flags with the same index. */
typedef struct DeviceGroup {
    BlockEvents events[COLL_IN_FLIGHT];
    // [COLL_IN_FLIGHT][size], on the device: number of the last call of which block o has arrived
    uint32_t *flags;
} DeviceGroup;

static inline DeviceWorld *device_world(const Comm *c) {
    return c->world->device_impl;
}
static inline DeviceGroup *device_group(const Comm *c) {
    return c->device;
}

void device_blocks_open(Comm *c);
void device_blocks_close(Comm *c);
/* Local. Adds the call to the queue. Its time in flight begins at this point of stream s. */
void device_blocks_begin(Comm *c, uint64_t number, const CollCall *call, Stream s);
void device_blocks_wait(Comm *c, uint64_t number, const CollCall *call);
/* The functions of the same names in CollBackend. */
void *device_block(Comm *c, uint64_t number, const CollCall *call, int o);
void device_block_done(Comm *c, uint64_t number, const CollCall *call, int o);
const uint32_t *device_flags(Comm *c, uint64_t number, const CollCall *call, uint32_t *ready_value);

/* ---- all backends */

/* The call's type for the reduction kernels. Dies for a type that they do not sum. */
ReduceType reduce_type(const CollCall *call);

/* Local. Time stamps for tracing: the call begins at this point of stream s, or is complete at this
 * point of s. */
void device_begins(Comm *c, uint64_t number, Stream s);
void device_completes(Comm *c, uint64_t number, Stream s);
/* Local. Debug builds: fills the buffer that kernels or copies of a call by blocks will write with
 * NaN, in the rank's own stream. */
void device_poison_blocks(const Comm *c, const CollCall *call);
/* Collective over the world. The lowest rank before this one with the same device, or -1. */
int device_shared_with(World *w);
/* Collective over the world. Do all ranks have the same version of NCCL, and each a device of its
 * own? False, with the reason. */
bool world_nccl_fits(World *w, Err *e);
/* Collective over the world. Makes NCCL the backend for device memory; dies if it cannot. */
void world_use_nccl(World *w);

#endif
