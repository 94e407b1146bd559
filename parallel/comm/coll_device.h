/* coll_device -- shared by the backends for device memory. */
#ifndef PARALLEL_COMM_COLL_DEVICE_H
#define PARALLEL_COMM_COLL_DEVICE_H

#include "layers/cuda/fold.h"
#include "layers/cuda/streams.h"
#include "parallel/comm/coll_threads.h"
#include "parallel/comm/devices.h"

/* ---- ranks that are threads of one process */

/* Of a rank. */
typedef struct Peers {
    Stream comm;
    bool apart; // no two ranks have the same device
    struct PeersWatch *watch;
} Peers;

/* Events of a call: src may be read and dst written; this rank has done its part. By blocks: copies
 * have begun; block i has come here or, of a reduce_scatter, this rank's slot at rank i is
 * written. */
typedef struct Places {
    Event ready, done, begun, part[MAX_THREAD_RANKS];
    uint64_t copied; // the last all_gather by blocks whose copies are in the stream
    int left;        // blocks of it that are still needed
} Places;

/* Of a group: call k uses entry k % COLL_IN_FLIGHT, and the `size` flags that belong to it. */
typedef struct PeersGroup {
    Places at[COLL_IN_FLIGHT];
    uint32_t *flags; // on the device: the number of the last call of which a block has come
} PeersGroup;

static inline Places *places_of(Comm *c, uint64_t number) {
    return &((PeersGroup *)c->device)->at[number % COLL_IN_FLIGHT];
}
static inline Places *their_places(const Comm *c, int rank, uint64_t number) {
    void *note;
    threads_call(c, rank, number, &note);
    return note;
}

/* Local, collective. Calls by blocks (coll_block): coll_device_blocks.c. */
void *peers_block(Comm *c, uint64_t number, const CollCall *call, int o);
void peers_block_done(Comm *c, uint64_t number, const CollCall *call, int o);
const uint32_t *peers_flags(Comm *c, uint64_t number, const CollCall *call, uint32_t *said);
void peers_wait_for_blocks(Comm *c, uint64_t number, const CollCall *call);

/* Local. Ends the job when the device waits longer than the World's limit for the blocks of an
 * all_gather: coll_device_watch.c. The call begins, and its blocks are here, with what is next in
 * stream s. */
void peers_watch_begin(Comm *c, uint64_t number, const CollCall *call, Stream s);
void peers_watch_end(Comm *c, Stream s);
void peers_watch_stop(Peers *p);

/* ---- all backends */

/* Dies for a type without a kernel. */
FoldType fold_type(const CollCall *call);

/* Local. Time stamps for tracing: the call begins with the next operation of stream s; it is
 * complete with the last operation put into s. */
void device_begins(Comm *c, uint64_t number, Stream s);
void device_completes(Comm *c, uint64_t number, Stream s);
/* Local. Of a call by blocks: NaN where kernels or copies are to write, in the own stream; and
 * dst of a reduce_scatter, the sum of its slots, in stream s. */
void device_poison_blocks(const Comm *c, const CollCall *call);
void device_fold_slots(const Comm *c, const CollCall *call, Stream s);
/* Local. A collective of a group of one rank, in the rank's own stream: copies src to dst if they
 * differ. */
void device_run_alone(Comm *c, uint64_t number, const CollCall *call);
/* Collective over the world. Do all ranks have the same NCCL, and each a device of its own? */
bool world_nccl_fits(World *w, Err *e);
/* Collective over the world. Makes NCCL the backend for device memory; dies if it cannot. */
void world_use_nccl(World *w);

#endif
