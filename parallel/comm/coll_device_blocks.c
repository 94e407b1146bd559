/* coll_device_blocks -- calls by blocks (coll_block) on device memory. Ranks reach each other's
 * memory: threads of one process (coll_device.c), or processes of one node (coll_nccl_blocks.c).
 * The two differ in how a rank tells another one that its stream has come to a point, and hears it
 * (BlockWay): `>` and `?`. Time goes down. reduce_scatter of a matmul that stores its rows where
 * they are summed:
 *
 *      rank 0: own       comm                   rank 1: own       comm
 *      start: ready 0 >                         start: ready 1 >
 *      ready 1?                                 ready 0?
 *      matmul, to slot 0 of both: slot 0 >      matmul, to slot 1 of both: slot 1 >
 *      matmul   |  slot 0? slot 1?              matmul   |  slot 0? slot 1?
 *               |  dst = slot 0 + slot 1                 |  dst = slot 0 + slot 1
 *      wait: after the sum                      wait: after the sum
 *
 * all_gather of a matmul that waits for the flag of each block itself:
 *
 *      rank 0: own       comm
 *      start: ready 0 >  ready 0? ready 1?
 *                        block 0 of dst = src of rank 0; flag 0
 *      after block 0
 *      matmul   |        block 1 of dst = src of rank 1; flag 1; read 1 >
 *      wait: has rank 1 read?
 *
 * A kernel that waits keeps its multiprocessors, and what it waits for must come without one. When
 * it begins, the sources are ready, and the rank's own block and all earlier work of the
 * communication stream are done: what is left is copies from other devices, which a copy engine
 * does, and flags, which the stream writes. The driver may copy within one device by a kernel; so
 * the own block comes first, and where ranks share a device no kernel waits, but the stream does,
 * block by block (coll_block).
 *
 * An event is recorded again COLL_IN_FLIGHT calls later, behind a wait of all ranks for its call. A
 * flag is the number of the last call of which a block has come.
 */
#include "base/mem.h"
#include "parallel/comm/coll_device.h"

static BlockEvents *events_of(const Comm *c, uint64_t number) {
    return &device_group(c)->at[number % COLL_IN_FLIGHT];
}
static uint32_t *flags_of(const Comm *c, uint64_t number) {
    return device_group(c)->flags + number % COLL_IN_FLIGHT * (uint64_t)c->size;
}

void device_blocks_open(Comm *c) {
    DeviceGroup *g = device_group(c);
    size_t size = (size_t)c->size, flags = COLL_IN_FLIGHT * size * sizeof *g->flags;
    for (int i = 0; i < COLL_IN_FLIGHT; i++) {
        g->at[i].part = mem_calloc(size, sizeof(Event));
        for (int o = 0; o < c->size; o++) g->at[i].part[o] = device_event();
    }
    g->flags = device_alloc(flags);
    device_zero(g->flags, flags);
}

void device_blocks_close(Comm *c) {
    DeviceGroup *g = device_group(c);
    for (int i = 0; i < COLL_IN_FLIGHT; i++) {
        for (int o = 0; o < c->size; o++) device_event_free(g->at[i].part[o]);
        mem_free(g->at[i].part);
    }
    device_free(g->flags);
}

/* ---- the queue, where a thread watches calls */

void device_blocks_begin(Comm *c, uint64_t number, const CollCall *call, Stream s) {
    BlockEvents *at = events_of(c, number);
    DeviceWorld *w = device_world(c);
    if (!w->queue) w->queue = queue_open(NULL, NULL);
    at->queued = queue_take(w->queue, &(Queued){.called = {*call, c},
                                                .part = w->way->host_waits ? at->part : NULL,
                                                .limit = c->world->limit});
    device_record(at->queued->begun, s);
}

static void end(const Comm *c, BlockEvents *at) {
    if (!at->queued) return;
    device_record(at->queued->done, device_stream());
    queue_given(device_world(c)->queue, at->queued);
    at->queued = NULL;
}

/* ---- all_gather */

/* Puts the copies of an all_gather into the stream, once: this rank's block, then its
 * neighbour's. */
static void begin_copies(Comm *c, uint64_t number, const CollCall *call) {
    const DeviceWorld *w = device_world(c);
    BlockEvents *at = events_of(c, number);
    if (at->copied == number) return;
    at->copied = number;
    for (int o = 0; o < c->size; o++) w->way->wait_signal(c, w->comm, o, SIGN_READY, number, call);
    device_begins(c, number, w->comm);
    if (!at->queued) device_blocks_begin(c, number, call, w->comm);
    for (int i = 0; i < c->size; i++) {
        int o = (c->rank + i) % c->size;
        void *to = coll_own_block(call, o);
        const void *src = w->way->src(c, o, number, call);
        if (src != to) device_copy_in(w->comm, to, src, (size_t)coll_block_bytes(call));
        device_say(w->comm, flags_of(c, number) + o, (uint32_t)number);
        device_record(at->part[o], w->comm);
        w->way->send_signal(c, w->comm, o, SIGN_READ, number, call);
    }
    device_completes(c, number, w->comm);
}

const uint32_t *device_flags(Comm *c, uint64_t number, const CollCall *call, uint32_t *said) {
    if (!device_world(c)->apart || call->op != COLL_ALL_GATHER) return NULL;
    begin_copies(c, number, call);
    device_follow(device_stream(), events_of(c, number)->part[c->rank]);
    *said = (uint32_t)number;
    return flags_of(c, number);
}

/* ---- reduce_scatter */

/* dst is the sum of this rank's slots. */
static void sum_slots(Comm *c, uint64_t number, const CollCall *call) {
    const DeviceWorld *w = device_world(c);
    int64_t n = coll_elements(call);
    Reduce f = {.n_src = c->size, .n_dst = 1, .rows = 1, .cols = n, .src_ld = n};
    f.dst[0] = call->dst;
    for (int o = 0; o < c->size; o++) {
        f.src[o] = (const char *)call->src + o * coll_block_bytes(call);
        w->way->wait_signal(c, w->comm, o, SIGN_SLOT, number, call);
    }
    device_begins(c, number, w->comm);
    device_reduce(w->comm, &f, reduce_type(call));
    device_completes(c, number, w->comm);
    Event summed = events_of(c, number)->part[c->rank]; // it was that of the own slot, waited for
    device_record(summed, w->comm);
    device_follow(device_stream(), summed);
}

/* ---- both */

void *device_block(Comm *c, uint64_t number, const CollCall *call, int o) {
    const BlockWay *way = device_world(c)->way;
    if (call->op == COLL_ALL_GATHER) {
        begin_copies(c, number, call);
        device_follow(device_stream(), events_of(c, number)->part[o]);
        return coll_own_block(call, o);
    }
    if (o == c->rank) return (char *)(uintptr_t)call->src + o * coll_block_bytes(call);
    way->wait_signal(c, device_stream(), o, SIGN_READY, number, call);
    return (char *)(uintptr_t)way->src(c, o, number, call) + c->rank * coll_block_bytes(call);
}

void device_block_done(Comm *c, uint64_t number, const CollCall *call, int o) {
    if (call->op != COLL_REDUCE_SCATTER) return; // the copies have signalled
    device_record(events_of(c, number)->part[o], device_stream());
    device_world(c)->way->send_signal(c, device_stream(), o, SIGN_SLOT, number, call);
}

void device_blocks_wait(Comm *c, uint64_t number, const CollCall *call) {
    const BlockWay *way = device_world(c)->way;
    BlockEvents *at = events_of(c, number);
    if (way->host_waits) end(c, at); // with a limit of its own
    if (call->op == COLL_REDUCE_SCATTER)
        sum_slots(c, number, call);
    else
        for (int o = 0; o < c->size; o++) // then src is free; the matmul was behind its own copy
            if (o != c->rank) way->wait_signal(c, device_stream(), o, SIGN_READ, number, call);
    end(c, at);
}
