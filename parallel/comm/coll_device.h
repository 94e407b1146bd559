/* coll_device -- shared by the backends for device memory. */
#ifndef PARALLEL_COMM_COLL_DEVICE_H
#define PARALLEL_COMM_COLL_DEVICE_H

#include <pthread.h>

#include "layers/cuda/reduce.h"
#include "layers/cuda/streams.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/comm/devices.h"

/* ---- the queue of a rank's calls, where a thread watches them: coll_device_watch.c */

enum { MAX_QUEUED = 256, QUEUE_TEXT = 1024 }; // calls that the host may run ahead of the device

typedef struct Called {
    CollCall call;
    const Comm *comm;
} Called;

/* Recorded calls in the order in which they run. */
typedef struct Recorded {
    Called *called;
    int n, cap;
    // pinned; written by the running replay: 2i + 1: call i has begun, 2i + 2: it is done
    uint32_t *note;
} Recorded;

/* A call in a stream, or a replay. */
typedef struct Queued {
    Event ready, begun, done;
    Called called;
    const Recorded *replay; // NULL: a call
    const Event *part;      // [size] what comes of each rank; NULL: it is not known of whom
    double limit, since;    // since: when the thread saw it begin; 0: not yet
    uint32_t note;          // last value seen by the thread
    bool in_stream;         // completely
} Queued;

typedef struct CallQueue {
    pthread_mutex_t lock;  // held while the thread looks: of all that it looks at
    int device;            // of the rank
    Queued at[MAX_QUEUED]; // entry k is at[k % MAX_QUEUED]
    uint64_t first, end;   // entries [first, end) are not known to be done
    // of the thread
    void (*look)(void *ctx);
    void *ctx;
    DieRank name;
    pthread_t thread;
    pthread_cond_t change;
    bool ends;
} CallQueue;

/* Local. look(ctx) is called beside the look at the queue, every 20 ms on the device of this rank
 * and in its name; NULL: there is no more to look at. */
CallQueue *queue_open(void (*look)(void *ctx), void *ctx);
void queue_close(CallQueue *q);
/* Local. The next entry, for this call or replay; blocks while the host is too far ahead.
 * queue_given: the entry is completely in its stream. queue_settle: waits for the last entry. */
Queued *queue_take(CallQueue *q, const Queued *of);
void queue_given(CallQueue *q, Queued *t);
void queue_settle(const CallQueue *q);
/* Local, with the lock. Has a wait since then reached its limit? And the other ranks of the group
 * of which part has not come or, of NULL, of whom at least one is missing. */
bool queue_too_long(double since, double limit);
void queue_others(const Comm *c, const Event *part, char text[QUEUE_TEXT]);

/* ---- calls by blocks: coll_device_blocks.c */

/* What a signal says: src may be read and dst written; its part of the other's sum is
 * stored; the other's block is read. */
typedef enum { SIGN_READY, SIGN_SLOT, SIGN_READ, N_SIGNS } BlockSign;

/* How ranks signal each other, and reach each other's memory. */
typedef struct BlockWay {
    bool host_waits; // in wait_signal, for the call of the other rank
    /* Local. Stream s signals rank o; stream s waits for the signal of rank o. */
    void (*send_signal)(Comm *c, Stream s, int o, BlockSign sign, uint64_t number,
                        const CollCall *call);
    void (*wait_signal)(Comm *c, Stream s, int o, BlockSign sign, uint64_t number,
                        const CollCall *call);
    const void *(*src)(Comm *c, int o, uint64_t number, const CollCall *call); // of rank o
} BlockWay;

/* Of a rank: how its device_impl begins. */
typedef struct DeviceWorld {
    Stream comm;
    bool apart; // no two ranks have the same device
    const BlockWay *way;
    CallQueue *queue; // NULL: there was no call to watch
} DeviceWorld;

/* Block i has come here or, of a reduce_scatter, this rank's slot at rank i is written. */
typedef struct BlockEvents {
    Queued *queued; // NULL: it is not watched
    Event *part;
    uint64_t copied; // the last all_gather whose copies are in the stream
} BlockEvents;

/* Of a group: how Comm.device begins. Call k uses entry k % COLL_IN_FLIGHT, and the `size` flags
 * that belong to it. */
typedef struct DeviceGroup {
    BlockEvents at[COLL_IN_FLIGHT];
    uint32_t *flags; // on the device: the number of the last call of which a block has come
} DeviceGroup;

static inline DeviceWorld *device_world(const Comm *c) {
    return c->world->device_impl;
}
static inline DeviceGroup *device_group(const Comm *c) {
    return c->device;
}

void device_blocks_open(Comm *c);
void device_blocks_close(Comm *c);
/* Local. From here on in stream s the call is watched. */
void device_blocks_begin(Comm *c, uint64_t number, const CollCall *call, Stream s);
void device_blocks_wait(Comm *c, uint64_t number, const CollCall *call);
/* As in CollBackend. */
void *device_block(Comm *c, uint64_t number, const CollCall *call, int o);
void device_block_done(Comm *c, uint64_t number, const CollCall *call, int o);
const uint32_t *device_flags(Comm *c, uint64_t number, const CollCall *call, uint32_t *said);

/* ---- all backends */

/* Dies for a type without a kernel. */
ReduceType reduce_type(const CollCall *call);

/* Local. Time stamps for tracing: the call begins with the next operation of stream s; it is
 * complete with the last operation put into s. */
void device_begins(Comm *c, uint64_t number, Stream s);
void device_completes(Comm *c, uint64_t number, Stream s);
/* Local. Of a call by blocks: NaN where kernels or copies are to write, in the own stream. */
void device_poison_blocks(const Comm *c, const CollCall *call);
/* Collective over the world. The first earlier rank with the same device, or -1. */
int device_sharer(World *w);
/* Collective over the world. Do all ranks have the same NCCL, and each a device of its own? */
bool world_nccl_fits(World *w, Err *e);
/* Collective over the world. Makes NCCL the backend for device memory; dies if it cannot. */
void world_use_nccl(World *w);

#endif
