/* coll_device -- collectives on device memory between ranks that are threads of one process:
 * kernels read and write the memory of the other ranks, on the same device or on others.
 *
 * Host threads meet at the gates of coll_threads.c only to exchange pointers and events. Waiting
 * for data happens on the devices. `own` is a rank's compute stream, `comm` its communication
 * stream. all_reduce of two ranks; time goes down:
 *
 *      rank 0: own       comm                   rank 1: own       comm
 *      matmul, src                              matmul, src
 *      start: ready 0                           start: ready 1
 *      matmul   |  after ready 0, ready 1       matmul   |  after ready 0, ready 1
 *               |  part 0 to both: done 0                |  part 1 to both: done 1
 *      wait: after done 0, done 1               wait: after done 0, done 1
 *      norm, reads dst                          norm, reads dst
 *
 * The host reaches coll_wait long before the device, so the sums are enqueued in time to run beside
 * the matmul. No kernel spins for another one, so ranks may share a device. Sums use the tree of
 * coll_reduce.h: the same bits as coll_threads.c.
 */
#include <string.h>

#include "base/debug.h"
#include "base/die.h"
#include "base/mem.h"
#include "layers/cuda/clock_cuda.h"
#include "layers/cuda/reduce.h"
#include "parallel/comm/coll_device.h"
#include "parallel/comm/coll_threads.h"

_Static_assert((int)REDUCE_MOST >= (int)MAX_THREAD_RANKS, "a src for each rank");

/* Events of a call of this rank. ready: src may be read and dst written. done: this rank has done
 * its part. */
typedef struct CallEvents {
    Event ready, done;
} CallEvents;

/* State of a group. Call k uses entry k % COLL_IN_FLIGHT. */
typedef struct PeersGroup {
    DeviceGroup blocks;
    CallEvents at[COLL_IN_FLIGHT];
    struct PeersGroup *groups[MAX_THREAD_RANKS]; // that of each rank of the group
} PeersGroup;

/* The events of a call at a rank of the group. */
static const CallEvents *events_of(const Comm *c, int rank, uint64_t number) {
    return &((const PeersGroup *)c->device)->groups[rank]->at[number % COLL_IN_FLIGHT];
}
/* The other rank's event for its slot at this rank, or for the block it copies from here. */
static Event their_block_event(const Comm *c, int rank, uint64_t number) {
    const PeersGroup *g = ((const PeersGroup *)c->device)->groups[rank];
    return g->blocks.events[number % COLL_IN_FLIGHT].part[c->rank];
}
static void peers_open(Comm *c) {
    PeersGroup *g = c->device = mem_calloc(1, sizeof *g);
    Group all = comm_group(c);
    for (int i = 0; i < COLL_IN_FLIGHT; i++)
        g->at[i].ready = device_event(), g->at[i].done = device_event();
    device_blocks_open(c);
    group_all_gather(&all, &g, sizeof g, g->groups);
}

/* The barrier ensures that no rank waits for an event of this rank any more. */
static void peers_close(Comm *c) {
    PeersGroup *g = c->device;
    coll_barrier(c);
    for (int i = 0; i < COLL_IN_FLIGHT; i++)
        device_event_free(g->at[i].ready), device_event_free(g->at[i].done);
    device_blocks_close(c);
    mem_free(g);
    c->device = NULL;
}

static void peers_leave(World *w) {
    DeviceWorld *p = w->device_impl;
    if (p->queue) queue_close(p->queue);
    device_stream_free(p->comm);
    mem_free(p);
}

/* ---- calls by blocks */

/* READY: the host waits until rank o has made the call. Other signals: the host waits until all
 * ranks are done with this rank's block. Then the event of rank o is recorded, and the stream waits
 * for it. */
static void wait_signal(Comm *c, Stream s, int o, BlockSignal signal, uint64_t number,
                        const CollCall *call) {
    bool ready = signal == SIGNAL_READY;
    ready ? (void)threads_block(c, number, call, o) : threads_blocks_done(c, number, call);
    device_stream_wait(s, ready ? events_of(c, o, number)->ready : their_block_event(c, o, number));
}

static void send_signal(Comm *c, Stream s, int o, BlockSignal signal, uint64_t number,
                        const CollCall *call) {
    (void)s, (void)signal; // the caller has recorded the event of the block
    threads_block_done(c, number, call, o);
}

static const void *src_of(Comm *c, int o, uint64_t number, const CollCall *call) {
    (void)call;
    return threads_published(c, o, number)->src;
}

static const BlockTransport by_events = {
    .host_waits = true, .send_signal = send_signal, .wait_signal = wait_signal, .src = src_of};

/* ---- time stamps for tracing */

void device_begins(Comm *c, uint64_t number, Stream s) {
    CollSpan *span = &c->open[number % COLL_IN_FLIGHT].span;
    if (c->world->clock) span->begin = span->started = device_mark(s);
}

void device_completes(Comm *c, uint64_t number, Stream s) {
    if (c->world->clock) c->open[number % COLL_IN_FLIGHT].span.complete = device_mark(s);
}

/* ---- a rank's part of a call */

ReduceType reduce_type(const CollCall *call) {
    if (call->type == COLL_F32) return REDUCE_F32;
    if (call->type == COLL_BF16) return REDUCE_BF16;
    if (call->type == COLL_F64) return REDUCE_F64;
    if (call->type == COLL_I32) return REDUCE_I32;
    die("collective \"%s\": on devices only sums of fp32, bf16, fp64 and int32 are supported",
        call->what);
}

/* Puts this rank's part of a call into s: one kernel, a sum or a copy. */
static void do_work(const ThreadsWork *w, const CollCall *call, Stream s) {
    int64_t bytes = coll_type_bytes(call->type);
    if (w->sums) {
        Reduce f = {.n_src = w->n_src,
                    .n_dst = w->n_dst,
                    .rows = w->rows,
                    .cols = w->row_bytes / bytes,
                    .src_ld = w->src_ld[0] / bytes};
        for (int i = 0; i < w->n_src; i++) f.src[i] = w->src[i];
        for (int i = 0; i < w->n_dst; i++) f.dst[i] = w->dst[i];
        device_reduce(s, &f, reduce_type(call));
        return;
    }
    Gather g = {.n = w->n_src, .rows = w->rows, .cols = w->row_bytes, .dst_ld = w->dst_ld};
    for (int i = 0; i < w->n_src; i++)
        g.src[i] = w->src[i], g.src_ld[i] = w->src_ld[i], g.dst[i] = w->dst[i];
    device_gather(s, &g);
}

/* ---- calls */

void device_poison_blocks(const Comm *c, const CollCall *call) {
    size_t bytes = (size_t)(c->size * coll_block_bytes(call));
    if (coll_spreads(call->op))
        device_poison((void *)(uintptr_t)call->src, bytes);
    else if (call->src != coll_own_block(call, c->rank))
        device_poison(call->dst, bytes);
}

static void peers_start(Comm *c, uint64_t number, const CollCall *call) {
    if (coll_spreads(call->op))
        reduce_type(call); // dies here for other types, before any rank waits
    if (BASE_DEBUG && call->by_blocks) device_poison_blocks(c, call);
    device_record(events_of(c, c->rank, number)->ready, device_stream());
    threads_publish(c, number, call);
}

/* Puts this rank's part into the communication stream, behind `ready` of all ranks. The rank's own
 * stream then waits for `done` of all ranks: when each has finished its part. */
static void peers_wait(Comm *c, uint64_t number, const CollCall *call) {
    Stream comm_stream = device_world(c)->comm;
    if (call->by_blocks) {
        device_blocks_wait(c, number, call);
        return;
    }
    threads_wait_published(c, number, call);
    for (int i = 0; i < c->size; i++)
        device_stream_wait(comm_stream, events_of(c, i, number)->ready);
    device_begins(c, number, comm_stream);
    ThreadsWork w = threads_work(c, number, call);
    do_work(&w, call, comm_stream);
    device_completes(c, number, comm_stream);
    device_record(events_of(c, c->rank, number)->done, comm_stream);
    threads_wait_done(c, number, call);
    for (int i = 0; i < c->size; i++)
        device_stream_wait(device_stream(), events_of(c, i, number)->done);
}

static const CollBackend coll_peers = {.name = "peers",
                                       .is_device_memory = device_is_pointer,
                                       .open = peers_open,
                                       .close = peers_close,
                                       .start = peers_start,
                                       .wait = peers_wait,
                                       .block = device_block,
                                       .block_done = device_block_done,
                                       .flags = device_flags,
                                       .close_world = peers_leave};

/* On all ranks: do the kernels of each rank reach the memory of all others, as threads of one
 * process? */
static bool reach_all(World *w) {
    int mine = device_index(), *all = mem_calloc((size_t)w->size, sizeof *all);
    bool good = w->size == 1 || w->backend == &coll_threads;
    Group g = comm_group(w->all);
    group_all_gather(&g, &mine, sizeof mine, all);
    for (int r = 0; good && r < w->size; r++) good = device_enable_peer(all[r]);
    mem_free(all);
    return group_all(&g, good);
}

int device_shared_with(World *w) {
    DeviceFacts f = device_facts(device_index());
    char *all = mem_calloc((size_t)w->size, sizeof f.id);
    Group g = comm_group(w->all);
    int r = 0;
    group_all_gather(&g, f.id, sizeof f.id, all);
    while (memcmp(all + (size_t)r * sizeof f.id, f.id, sizeof f.id) != 0) r++;
    mem_free(all);
    return r < w->rank ? r : -1;
}

bool world_devices_fit(World *w, Err *e) {
    return reach_all(w) || world_nccl_fits(w, e);
}

void world_use_devices(World *w) {
    if (!reach_all(w)) {
        world_use_nccl(w);
        return;
    }
    DeviceWorld *p = mem_calloc(1, sizeof *p);
    Group g = comm_group(w->all);
    p->comm = device_comm_stream(), p->transport = &by_events;
    p->distinct_devices = group_all(&g, device_shared_with(w) < 0);
    world_set_device(w, &coll_peers, p);
}
