/* coll_device_blocks -- calls by blocks (coll_block) on device memory. Ranks access each other's
 * memory: threads of one process (coll_device.c), or processes of one node (coll_nccl_blocks.c).
 * The two kinds differ only in how the stream of one rank signals the stream of another
 * (BlockTransport). In the pictures `x >` sends signal x to the other rank, `x?` waits for signal
 * x, and time goes down. reduce_scatter of a matmul that stores its rows in the slots of the ranks
 * that sum them:
 *
 *      rank 0: own       comm                   rank 1: own       comm
 *      start: ready 0 >                         start: ready 1 >
 *      ready 1?                                 ready 0?
 *      matmul, to slot 0 of both: slot 0 >      matmul, to slot 1 of both: slot 1 >
 *      matmul   |  slot 0? slot 1?              matmul   |  slot 0? slot 1?
 *               |  dst = slot 0 + slot 1                 |  dst = slot 0 + slot 1
 *      wait: after the sum                      wait: after the sum
 *
 * all_gather, with a matmul that waits for the flag of each block itself:
 *
 *      rank 0: own       comm
 *      start: ready 0 >  ready 0? ready 1?
 *                        block 0 of dst = src of rank 0; flag 0
 *      after block 0
 *      matmul   |        block 1 of dst = src of rank 1; flag 1; read 1 >
 *      wait: has rank 1 read?
 *
 * A kernel that waits occupies its multiprocessors, so the data that it waits for must arrive
 * without one. When the kernel begins, the sources of all ranks are ready, and the rank's own block
 * and all earlier work of the communication stream are done. What is left is copies from other
 * devices, which a copy engine does, and flags, which the stream writes. The driver may implement a
 * copy within one device by a kernel: therefore the own block is copied first. If ranks share a
 * device, no kernel waits; instead the rank's stream waits, block by block (coll_block).
 *
 * An event is recorded again COLL_IN_FLIGHT calls later. All ranks have waited for its first call
 * by then. A flag holds the number of the last call of which its block has arrived.
 */
#include "base/mem.h"
#include "parallel/comm/coll_device.h"

static BlockEvents *events_of(const Comm *c, uint64_t number) {
    return &device_group(c)->events[number % COLL_IN_FLIGHT];
}
static uint32_t *flags_of(const Comm *c, uint64_t number) {
    return device_group(c)->flags + number % COLL_IN_FLIGHT * (uint64_t)c->size;
}

void device_blocks_open(Comm *c) {
    DeviceGroup *g = device_group(c);
    size_t size = (size_t)c->size, flags = COLL_IN_FLIGHT * size * sizeof *g->flags;
    for (int i = 0; i < COLL_IN_FLIGHT; i++) {
        g->events[i].part = mem_calloc(size, sizeof(Event));
        for (int o = 0; o < c->size; o++) g->events[i].part[o] = device_event();
    }
    g->flags = device_alloc(flags);
    device_zero(g->flags, flags);
}

void device_blocks_close(Comm *c) {
    DeviceGroup *g = device_group(c);
    for (int i = 0; i < COLL_IN_FLIGHT; i++) {
        for (int o = 0; o < c->size; o++) device_event_free(g->events[i].part[o]);
        mem_free(g->events[i].part);
    }
    device_free(g->flags);
}

/* ---- the queue of watched calls */

void device_blocks_begin(Comm *c, uint64_t number, const CollCall *call, Stream s) {
    BlockEvents *at = events_of(c, number);
    DeviceWorld *w = device_world(c);
    if (!w->queue) w->queue = queue_open(NULL, NULL);
    at->queued = queue_take(w->queue, &(Queued){.called = {*call, c},
                                                .part = w->transport->host_waits ? at->part : NULL,
                                                .limit = c->world->limit});
    device_record(at->queued->begun, s);
}

/* Ends the queue entry of a call, if the call has one. */
static void end_watch(const Comm *c, BlockEvents *at) {
    if (!at->queued) return;
    device_record(at->queued->done, device_stream());
    queue_enqueued(device_world(c)->queue, at->queued);
    at->queued = NULL;
}

/* ---- all_gather */

/* Puts the copies of an all_gather into the communication stream, once per call: first this rank's
 * block, then those of the next ranks in the order of ranks. */
static void begin_copies(Comm *c, uint64_t number, const CollCall *call) {
    const DeviceWorld *w = device_world(c);
    BlockEvents *at = events_of(c, number);
    if (at->copied == number) return;
    at->copied = number;
    for (int o = 0; o < c->size; o++)
        w->transport->wait_signal(c, w->comm, o, SIGNAL_READY, number, call);
    device_begins(c, number, w->comm);
    if (!at->queued) device_blocks_begin(c, number, call, w->comm);
    for (int i = 0; i < c->size; i++) {
        int o = (c->rank + i) % c->size;
        void *to = coll_own_block(call, o);
        const void *src = w->transport->src(c, o, number, call);
        if (src != to) device_copy_in(w->comm, to, src, (size_t)coll_block_bytes(call));
        device_write_value(w->comm, flags_of(c, number) + o, (uint32_t)number);
        device_record(at->part[o], w->comm);
        w->transport->send_signal(c, w->comm, o, SIGNAL_READ, number, call);
    }
    device_completes(c, number, w->comm);
}

const uint32_t *device_flags(Comm *c, uint64_t number, const CollCall *call,
                             uint32_t *ready_value) {
    if (!device_world(c)->distinct_devices) return NULL;
    begin_copies(c, number, call);
    device_stream_wait(device_stream(), events_of(c, number)->part[c->rank]);
    *ready_value = (uint32_t)number;
    return flags_of(c, number);
}

/* ---- reduce_scatter */

/* Puts dst = the sum of this rank's slots into the communication stream; the rank's own stream
 * waits for the sum. */
static void sum_slots(Comm *c, uint64_t number, const CollCall *call) {
    const DeviceWorld *w = device_world(c);
    int64_t n = coll_elements(call);
    Reduce f = {.n_src = c->size, .n_dst = 1, .rows = 1, .cols = n, .src_ld = n};
    f.dst[0] = call->dst;
    for (int o = 0; o < c->size; o++) {
        f.src[o] = (const char *)call->src + o * coll_block_bytes(call);
        w->transport->wait_signal(c, w->comm, o, SIGNAL_SLOT, number, call);
    }
    device_begins(c, number, w->comm);
    device_reduce(w->comm, &f, reduce_type(call));
    device_completes(c, number, w->comm);
    // used for the own slot until here, and waited for above
    Event summed = events_of(c, number)->part[c->rank];
    device_record(summed, w->comm);
    device_stream_wait(device_stream(), summed);
}

/* ---- both */

void *device_block(Comm *c, uint64_t number, const CollCall *call, int o) {
    const BlockTransport *transport = device_world(c)->transport;
    if (call->op == COLL_ALL_GATHER) {
        begin_copies(c, number, call);
        device_stream_wait(device_stream(), events_of(c, number)->part[o]);
        return coll_own_block(call, o);
    }
    if (o == c->rank) return (char *)(uintptr_t)call->src + o * coll_block_bytes(call);
    transport->wait_signal(c, device_stream(), o, SIGNAL_READY, number, call);
    return (char *)(uintptr_t)transport->src(c, o, number, call) + c->rank * coll_block_bytes(call);
}

void device_block_done(Comm *c, uint64_t number, const CollCall *call, int o) {
    if (call->op != COLL_REDUCE_SCATTER) return; // all_gather: the copies send the signals
    device_record(events_of(c, number)->part[o], device_stream());
    device_world(c)->transport->send_signal(c, device_stream(), o, SIGNAL_SLOT, number, call);
}

void device_blocks_wait(Comm *c, uint64_t number, const CollCall *call) {
    const BlockTransport *transport = device_world(c)->transport;
    BlockEvents *at = events_of(c, number);
    // the host waits below, with a limit of its own: the thread need not watch
    if (transport->host_waits) end_watch(c, at);
    if (call->op == COLL_REDUCE_SCATTER)
        sum_slots(c, number, call);
    else
        // wait until all ranks have read src; this rank's copy ended before the matmul began
        for (int o = 0; o < c->size; o++)
            if (o != c->rank)
                transport->wait_signal(c, device_stream(), o, SIGNAL_READ, number, call);
    end_watch(c, at);
}
