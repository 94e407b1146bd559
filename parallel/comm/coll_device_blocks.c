/* coll_device_blocks -- calls by blocks (coll_block) on device memory, between ranks that are
 * threads of one process. Names are those of coll_device.c; time goes down. reduce_scatter of a
 * matmul that stores its rows where they are summed:
 *
 *      rank 0: own       comm                   rank 1: own       comm
 *      start: ready 0                           start: ready 1
 *      after ready 1                            after ready 0
 *      matmul, to slot 0 of both: part 0        matmul, to slot 1 of both: part 1
 *      matmul   |  after part 0, part 1         matmul   |  after part 0, part 1
 *               |  dst = slot 0 + slot 1                 |  dst = slot 0 + slot 1
 *      wait: after done 0                       wait: after done 1
 *
 * all_gather of a matmul that waits for the flag of each block itself:
 *
 *      rank 0: own       comm
 *      start: ready 0    after ready 0, ready 1
 *      after begun       begun
 *      matmul   |        block 0 of dst = src of rank 0; flag 0
 *               |        block 1 of dst = src of rank 1; flag 1
 *      wait: after this rank's block has come to all
 *
 * A kernel that waits keeps its multiprocessors, and what it waits for must come without one. When
 * it begins, behind `begun`, the sources are ready and all earlier work of the communication stream
 * is done: what is left is copies, which a copy engine does, and flags, which the stream writes.
 * The driver may copy within one device by a kernel; so where ranks share one no kernel waits, but
 * the stream does, block by block (coll_block).
 *
 * An event is recorded again COLL_IN_FLIGHT calls later, behind a wait of all ranks for its call.
 */
#include "base/die.h"
#include "parallel/comm/coll_device.h"

static Peers *peers_of(const Comm *c) {
    return c->world->device_impl;
}

static uint32_t *flags_of(const Comm *c, uint64_t number) {
    const PeersGroup *g = c->device;
    return g->flags + number % COLL_IN_FLIGHT * (uint64_t)c->size;
}

/* ---- all_gather */

/* Puts the copies of an all_gather into the stream, once: this rank's block, then its
 * neighbour's. */
static void begin_copies(Comm *c, uint64_t number, const CollCall *call) {
    Places *p = places_of(c, number);
    Stream s = peers_of(c)->comm;
    if (p->copied == number) return;
    p->copied = number, p->left = c->size;
    threads_all_here(c, number, call);
    for (int i = 0; i < c->size; i++) device_follow(s, their_places(c, i, number)->ready);
    device_begins(c, number, s);
    peers_watch_begin(c, number, call, s); // before the event, so that no call is done before it
    device_record(p->begun, s);
    for (int i = 0; i < c->size; i++) {
        int o = (c->rank + i) % c->size;
        void *note, *to = coll_own_block(call, o);
        const void *src = threads_call(c, o, number, &note)->src;
        if (src != to) device_copy_in(s, to, src, (size_t)coll_block_bytes(call));
        device_say(s, flags_of(c, number) + o, (uint32_t)number);
        device_record(p->part[o], s);
    }
    device_completes(c, number, s);
}

const uint32_t *peers_flags(Comm *c, uint64_t number, const CollCall *call, uint32_t *said) {
    if (!peers_of(c)->apart || call->op != COLL_ALL_GATHER) return NULL;
    begin_copies(c, number, call);
    device_follow(device_stream(), places_of(c, number)->begun);
    *said = (uint32_t)number;
    return flags_of(c, number);
}

/* ---- reduce_scatter */

void device_fold_slots(const Comm *c, const CollCall *call, Stream s) {
    int64_t n = coll_elements(call);
    Fold f = {.n_src = c->size, .n_dst = 1, .rows = 1, .cols = n, .src_ld = n};
    f.dst[0] = call->dst;
    for (int i = 0; i < c->size; i++)
        f.src[i] = (const char *)call->src + i * coll_block_bytes(call);
    device_fold(s, &f, fold_type(call));
}

static void sum_slots(Comm *c, uint64_t number, const CollCall *call) {
    Stream s = peers_of(c)->comm;
    for (int i = 0; i < c->size; i++) device_follow(s, their_places(c, i, number)->part[c->rank]);
    device_begins(c, number, s);
    device_fold_slots(c, call, s);
    device_completes(c, number, s);
    device_record(places_of(c, number)->done, s);
    device_follow(device_stream(), places_of(c, number)->done);
}

/* ---- both */

void *peers_block(Comm *c, uint64_t number, const CollCall *call, int o) {
    if (call->op == COLL_ALL_GATHER) {
        begin_copies(c, number, call);
        device_follow(device_stream(), places_of(c, number)->part[o]);
        return coll_own_block(call, o);
    }
    void *slot = threads_block(c, number, call, o);
    if (o != c->rank) device_follow(device_stream(), their_places(c, o, number)->ready);
    return slot;
}

void peers_block_done(Comm *c, uint64_t number, const CollCall *call, int o) {
    Places *p = places_of(c, number);
    if (call->op == COLL_REDUCE_SCATTER)
        device_record(p->part[o], device_stream());
    else if (--p->left == 0)
        peers_watch_end(c, device_stream());
    threads_block_done(c, number, call, o);
}

void peers_wait_for_blocks(Comm *c, uint64_t number, const CollCall *call) {
    threads_blocks_done(c, number, call);
    if (call->op == COLL_REDUCE_SCATTER)
        sum_slots(c, number, call);
    else
        for (int i = 0; i < c->size; i++) // then src is free; the matmul was behind its own copy
            if (i != c->rank)
                device_follow(device_stream(), their_places(c, i, number)->part[c->rank]);
}
