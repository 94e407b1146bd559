/* coll_nccl_blocks -- calls by blocks (coll_device_blocks.c) between processes of one node. NCCL
 * has no calls in which a kernel of the caller reads or writes the blocks. So ranks open each
 * other's registered memory by CUDA IPC (layers/cuda/peer.h). The memory of a call has the same
 * offset on all ranks, so no address is sent.
 *
 * Events do not reach other processes. Instead streams write signals into each other's memory and
 * wait for them; the host does not wait for other ranks. A signal is a 32-bit word that holds the
 * number of a call. All signals of one kind from one rank are written by one stream, so they only
 * grow. A stream that waits for a number occupies no multiprocessor.
 *
 * A call is an entry of the queue that the watchdog checks (coll_device_watch.c), from its start to
 * the end of its wait in the rank's own stream.
 */
#include <string.h>

#include "base/debug.h"
#include "base/die.h"
#include "base/mem.h"
#include "layers/cuda/peer.h"
#include "parallel/comm/coll_nccl.h"
#include "parallel/comm/ranks.h"

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
    device_wait(); // work of this rank that uses p
    bool good = device_handle(p, &mine, e);
    group_all_gather(&all, &mine, sizeof mine, handle);
    for (int o = 0; o < c->size && good; o++) {
        theirs[o] = o == c->rank ? p : device_open_handle(&handle[o], e);
        good = theirs[o] != NULL;
    }
    mem_free(handle);
    if (group_agree(&all, good, e)) return theirs;
    nccl_close_memory(c, theirs);
    coll_barrier(c); // from here on each rank may free its own memory
    return NULL;
}

/* Collective over the world. Are all ranks on one node? */
static bool on_one_node(World *w, Err *e) {
    int *node = ranks_nodes(w), r = 0;
    while (r < w->size && node[r] == 0) r++;
    mem_free(node);
    return r == w->size ||
           err(e, "its ranks are on several nodes: rank %d is not on the node of rank 0", r);
}

bool nccl_share(World *w, Err *e) {
    NcclWorld *n = w->device_impl;
    if (!on_one_node(w, e)) return false;
    void *some = device_alloc(1), **theirs = nccl_open_memory(w->all, some, e);
    if (theirs) {
        nccl_close_memory(w->all, theirs);
        coll_barrier(w->all);
        n->backend.block = device_block, n->backend.block_done = device_block_done;
        n->backend.flags = device_flags;
    }
    device_free(some);
    return theirs != NULL;
}

/* The address of this rank for the memory of rank o that corresponds to p of this rank. */
static char *at_rank(const Comm *c, const CollCall *call, int o, const void *p) {
    const NcclWorld *n = c->world->device_impl;
    const char *at = p;
    for (int i = 0; i < MAX_REGISTERED; i++) {
        const char *begin = n->registered[i].p;
        if (begin && at >= begin && at < begin + n->registered[i].n_bytes)
            return (char *)n->registered[i].peer_address[c->member[o]] + (at - begin);
    }
    die("collective \"%s\" along %s: ranks have not opened each other's memory of it", call->what,
        c->label);
}

/* ---- signals */

void nccl_signals_open(NcclGroup *g) {
    Comm *c = g->group;
    Err e = {{0}};
    size_t bytes = N_SIGNALS * (size_t)c->size * sizeof(uint32_t);
    g->signals = device_alloc(bytes);
    device_zero(g->signals, bytes);
    g->peer_signals = nccl_open_memory(c, g->signals, &e);
    if (!g->peer_signals)
        die("ranks along %s cannot open each other's signals: %s", c->label, e.text);
    device_blocks_open(c);
}

void nccl_signals_close(NcclGroup *g) {
    if (!g->signals) return;
    nccl_close_memory(g->group, g->peer_signals);
    coll_barrier(g->group);
    device_blocks_close(g->group);
    device_free(g->signals);
}

/* Writes this rank's signal in the memory of rank o. */
static void send_signal(Comm *c, Stream s, int o, BlockSignal signal, uint64_t number,
                        const CollCall *call) {
    uint32_t *theirs = ((const NcclGroup *)c->device)->peer_signals[o];
    (void)call;
    if (o != c->rank)
        device_write_value(s, theirs + (int)signal * c->size + c->rank, (uint32_t)number);
}

/* Waits for the signal of rank o. For o = this rank, waits for an event instead. */
static void wait_signal(Comm *c, Stream s, int o, BlockSignal signal, uint64_t number,
                        const CollCall *call) {
    const NcclGroup *g = c->device;
    const BlockEvents *at = &g->blocks.events[number % COLL_IN_FLIGHT];
    (void)call;
    if (o != c->rank)
        device_wait_value(s, g->signals + (int)signal * c->size + o, (uint32_t)number);
    else
        device_stream_wait(s, signal == SIGNAL_READY ? at->queued->begun : at->part[o]);
}

static const void *src_of(Comm *c, int o, uint64_t number, const CollCall *call) {
    (void)number;
    return at_rank(c, call, o, call->src);
}

const BlockTransport nccl_by_signals = {
    .send_signal = send_signal, .wait_signal = wait_signal, .src = src_of};

void nccl_blocks_start(Comm *c, uint64_t number, const CollCall *call) {
    // copies of this rank come after the event of the next line
    if (BASE_DEBUG) device_poison_blocks(c, call);
    device_blocks_begin(c, number, call, device_stream());
    for (int o = 0; o < c->size; o++)
        send_signal(c, device_stream(), o, SIGNAL_READY, number, call);
}
