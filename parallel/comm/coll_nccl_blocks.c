/* coll_nccl_blocks -- calls by blocks (coll_block) between processes of one node. NCCL has no calls
 * that a kernel writes or reads by itself, so ranks open each other's registered memory by CUDA IPC
 * (layers/cuda/peer.h). A call has the same offset on all ranks: no address is sent. Events do not
 * reach other processes either, so streams write flags into each other's memory and wait for them,
 * and the host waits for nobody. A flag is the number of a call; `>`: in another rank's memory;
 * time goes down. reduce_scatter of a matmul that stores its rows where they are summed:
 *
 *      rank 0: own       comm                   rank 1: own       comm
 *      start: ready 0 >                         start: ready 1 >
 *      ready 1?                                 ready 0?
 *      matmul, to slot 0 of both: slot 0 >      matmul, to slot 1 of both: slot 1 >
 *      matmul   |  slot 1?                      matmul   |  slot 0?
 *               |  dst = slot 0 + slot 1                 |  dst = slot 0 + slot 1
 *      wait: after the sum                      wait: after the sum
 *
 * all_gather of a matmul that waits for the flag of each block itself:
 *
 *      rank 0: own       comm
 *      start: ready 0 >  after it, ready 1?
 *      after begun       begun
 *      matmul   |        block 0 of dst = src of rank 0; come 0
 *               |        block 1 of dst = src of rank 1; come 1; read 0 >
 *      wait: read 1?
 *
 * What a kernel that waits needs meanwhile takes no multiprocessor (coll_device_blocks.c); streams
 * that wait for a number take none either. Flags of a kind are written by one stream of a rank, so
 * they count up. Only those that a kernel compares with its number are of each call in flight.
 *
 * A call is an entry of the queue that the watchdog looks at (coll_nccl_watch.c), from its start to
 * the end of its wait, in the rank's own stream.
 */
#include <string.h>

#include "base/debug.h"
#include "base/die.h"
#include "base/mem.h"
#include "layers/cuda/peer.h"
#include "parallel/comm/coll_nccl.h"

enum { READY, SLOT, READ, COME, N_FLAGS = COME + COLL_IN_FLIGHT };

struct NcclBlocks {
    uint32_t *flags; // [N_FLAGS][size]: of this rank; here and below the flag of each rank
    void **theirs;   // [size] flags of each rank
    struct {
        NcclQueued *queued;
        Event begun, *part; // copies begin; [size] block i has come here
        uint64_t copied;    // the last all_gather whose copies are in the stream
    } at[COLL_IN_FLIGHT];
};

/* ---- memory of other ranks */

void nccl_close_memory(const Comm *c, void **theirs) {
    for (int o = 0; theirs && o < c->size; o++)
        if (o != c->rank && theirs[o]) device_close_handle(theirs[o]);
    mem_free(theirs);
}

void **nccl_open_memory(Comm *c, void *p, Err *e) {
    Group all = comm_group(c);
    DeviceHandle mine = {{0}}, *handle = mem_calloc((size_t)c->size, sizeof *handle);
    void **theirs = mem_calloc((size_t)c->size, sizeof *theirs);
    device_wait(); // what this rank does with it
    bool good = device_handle(p, &mine, e);
    group_all_gather(&all, &mine, sizeof mine, handle);
    for (int o = 0; o < c->size && good; o++) {
        theirs[o] = o == c->rank ? p : device_open_handle(&handle[o], e);
        good = theirs[o] != NULL;
    }
    mem_free(handle);
    if (group_agree(&all, good, e)) return theirs;
    nccl_close_memory(c, theirs);
    coll_barrier(c); // its owner may free it
    return NULL;
}

/* Collective over the world. */
static bool on_one_node(World *w, Err *e) {
    char *all = mem_calloc((size_t)w->size, sizeof w->node);
    Group g = comm_group(w->all);
    group_all_gather(&g, w->node, sizeof w->node, all);
    bool one = true;
    for (int r = 1; r < w->size && one; r++) {
        const char *other = all + (size_t)r * sizeof w->node;
        one = strcmp(all, other) == 0 ||
              err(e, "its ranks are on several nodes: rank 0 on %s, rank %d on %s", all, r, other);
    }
    mem_free(all);
    return one;
}

bool nccl_share(World *w, Err *e) {
    NcclWorld *n = w->device_impl;
    if (!on_one_node(w, e)) return false;
    void *some = device_alloc(1), **theirs = nccl_open_memory(w->all, some, e);
    if (theirs) {
        nccl_close_memory(w->all, theirs);
        coll_barrier(w->all);
        n->backend.block = nccl_block, n->backend.block_done = nccl_block_done;
        n->backend.flags = nccl_flags;
    }
    device_free(some);
    return theirs != NULL;
}

/* p of this rank, at rank o of the group. */
static char *at_rank(const Comm *c, const CollCall *call, int o, const void *p) {
    const NcclWorld *n = c->world->device_impl;
    const char *at = p;
    for (int i = 0; i < MAX_REGISTERED; i++) {
        const char *begin = n->registered[i].p;
        if (begin && at >= begin && at < begin + n->registered[i].n_bytes)
            return (char *)n->registered[i].theirs[c->member[o]] + (at - begin);
    }
    die_at(call->file, call->line, "coll_start", 1,
           "collective \"%s\" along %s: ranks have not opened each other's memory of it",
           call->what, c->label);
}

/* ---- groups */

void nccl_blocks_open(NcclGroup *g) {
    Comm *c = g->of;
    Err e = {{0}};
    size_t size = (size_t)c->size, bytes = N_FLAGS * size * sizeof(uint32_t);
    NcclBlocks *b = g->blocks = mem_calloc(1, sizeof *b);
    b->flags = device_alloc(bytes);
    device_zero(b->flags, bytes);
    b->theirs = nccl_open_memory(c, b->flags, &e);
    if (!b->theirs) die("ranks along %s cannot open each other's flags: %s", c->label, e.text);
    for (int i = 0; i < COLL_IN_FLIGHT; i++) {
        b->at[i].begun = device_event(), b->at[i].part = mem_calloc(size, sizeof(Event));
        for (int o = 0; o < c->size; o++) b->at[i].part[o] = device_event();
    }
}

void nccl_blocks_close(NcclGroup *g) {
    NcclBlocks *b = g->blocks;
    if (!b) return;
    nccl_close_memory(g->of, b->theirs);
    coll_barrier(g->of);
    for (int i = 0; i < COLL_IN_FLIGHT; i++) {
        for (int o = 0; o < g->of->size; o++) device_event_free(b->at[i].part[o]);
        device_event_free(b->at[i].begun), mem_free(b->at[i].part);
    }
    device_free(b->flags);
    mem_free(b);
}

/* ---- flags */

static NcclBlocks *blocks_of(const Comm *c) {
    return ((NcclGroup *)c->device)->blocks;
}
static Stream comm_stream(const Comm *c) {
    return ((NcclWorld *)c->world->device_impl)->comm_stream;
}

/* Writes this rank's flag in the memory of rank o. */
static void tell(const Comm *c, Stream s, int o, int kind, uint64_t number) {
    uint32_t *theirs = blocks_of(c)->theirs[o];
    if (o != c->rank) device_say(s, theirs + kind * c->size + c->rank, (uint32_t)number);
}
/* Waits for the flag of rank o. */
static void hear(const Comm *c, Stream s, int o, int kind, uint64_t number) {
    const uint32_t *flags = blocks_of(c)->flags;
    if (o != c->rank) device_wait_said(s, flags + kind * c->size + o, (uint32_t)number);
}

static uint32_t *come(const Comm *c, uint64_t number) {
    return blocks_of(c)->flags + (COME + (int)(number % COLL_IN_FLIGHT)) * c->size;
}

/* ---- calls */

void nccl_blocks_start(Comm *c, uint64_t number, const CollCall *call) {
    NcclWorld *n = c->world->device_impl;
    NcclQueued of = {.called = {*call, c}, .limit = c->world->limit};
    NcclQueued *t = blocks_of(c)->at[number % COLL_IN_FLIGHT].queued = nccl_queue_take(n, &of);
    if (BASE_DEBUG) device_poison_blocks(c, call);
    device_record(t->begun, device_stream());
    for (int o = 0; o < c->size; o++) tell(c, device_stream(), o, READY, number);
}

/* Puts the copies of an all_gather into the stream, once: this rank's block, then its
 * neighbour's. */
static void begin_copies(Comm *c, uint64_t number, const CollCall *call) {
    NcclBlocks *b = blocks_of(c);
    Stream s = comm_stream(c);
    int at = (int)(number % COLL_IN_FLIGHT);
    if (b->at[at].copied == number) return;
    b->at[at].copied = number;
    device_follow(s, b->at[at].queued->begun);
    for (int o = 0; o < c->size; o++) hear(c, s, o, READY, number);
    device_begins(c, number, s);
    device_record(b->at[at].begun, s);
    for (int i = 0; i < c->size; i++) {
        int o = (c->rank + i) % c->size;
        void *to = coll_own_block(call, o);
        const void *src = at_rank(c, call, o, call->src);
        if (src != to) device_copy_in(s, to, src, (size_t)coll_block_bytes(call));
        device_say(s, come(c, number) + o, (uint32_t)number);
        device_record(b->at[at].part[o], s);
        tell(c, s, o, READ, number);
    }
    device_completes(c, number, s);
}

const uint32_t *nccl_flags(Comm *c, uint64_t number, const CollCall *call, uint32_t *said) {
    if (call->op != COLL_ALL_GATHER) return NULL;
    begin_copies(c, number, call);
    device_follow(device_stream(), blocks_of(c)->at[number % COLL_IN_FLIGHT].begun);
    *said = (uint32_t)number;
    return come(c, number);
}

void *nccl_block(Comm *c, uint64_t number, const CollCall *call, int o) {
    if (call->op == COLL_ALL_GATHER) {
        begin_copies(c, number, call);
        device_follow(device_stream(), blocks_of(c)->at[number % COLL_IN_FLIGHT].part[o]);
        return coll_own_block(call, o);
    }
    hear(c, device_stream(), o, READY, number);
    return at_rank(c, call, o, call->src) + c->rank * coll_block_bytes(call);
}

void nccl_block_done(Comm *c, uint64_t number, const CollCall *call, int o) {
    if (call->op == COLL_REDUCE_SCATTER) tell(c, device_stream(), o, SLOT, number);
}

static void sum_slots(Comm *c, uint64_t number, const CollCall *call, const NcclQueued *t) {
    Stream s = comm_stream(c);
    device_record(t->ready, device_stream()); // this rank's slot
    device_follow(s, t->ready);
    for (int o = 0; o < c->size; o++) hear(c, s, o, SLOT, number);
    device_begins(c, number, s);
    device_fold_slots(c, call, s);
    device_completes(c, number, s);
    device_record(t->ready, s);
    device_follow(device_stream(), t->ready);
}

void nccl_blocks_wait(Comm *c, uint64_t number, const CollCall *call) {
    NcclQueued *t = blocks_of(c)->at[number % COLL_IN_FLIGHT].queued;
    if (call->op == COLL_REDUCE_SCATTER)
        sum_slots(c, number, call, t);
    else
        for (int o = 0; o < c->size; o++) hear(c, device_stream(), o, READ, number);
    device_record(t->done, device_stream());
    nccl_queue_given(c->world->device_impl, t);
}
