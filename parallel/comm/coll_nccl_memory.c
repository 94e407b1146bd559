/* coll_nccl_memory -- memory registered with NCCL. NCCL's kernels read and write registered memory
 * in place, on other ranks too, instead of copying through NCCL's own buffers. They also need fewer
 * multiprocessors for the same speed.
 *
 *   NCCL 2.27 ...    a symmetric window on all ranks of a communicator: also kernels that access
 *                    all ranks at once. Without direct access between devices NCCL copies
 *   NCCL 2.19 ...    a user buffer
 *   before           nothing
 *
 * Both kinds require that a call uses the same offset on all ranks, and that all ranks or none have
 * registered the memory of the call. So an arena is registered, with every communicator, only if
 * all ranks of the world have laid it out alike: then the model's collectives use equal offsets.
 * All ranks register in the same order and between calls, with no call in flight (in a step, only
 * the first one registers, with new communicators): registering waits for other ranks, and may wait
 * for the device. Source: NCCL's user guide, "User Buffer Registration". NCCL_WIN_ENABLE=0 and
 * NCCL_LOCAL_REGISTER=0 turn registration off.
 */
#include "base/die.h"
#include "base/mem.h"
#include "parallel/comm/coll_nccl.h"

/* ---- memory for both kinds of registration */

static void *map(size_t n_bytes) {
    Err e = {{0}};
    const Nccl *f = nccl(&e);
    void *p = NULL;
    int result = f->mem_alloc(&p, n_bytes);
    if (result != NCCL_SUCCESS)
        die("cannot allocate %.1f MiB on the device: NCCL: %s", (double)n_bytes / (1 << 20),
            f->error_string(result));
    device_zero(p, n_bytes);
    return p;
}

/* Kernels in this rank's stream may still use the memory. */
static void unmap(void *p) {
    const Nccl *f = nccl(NULL);
    device_wait();
    int result = f->mem_free(p);
    if (result != NCCL_SUCCESS) die("NCCL: cannot free memory: %s", f->error_string(result));
}

const ArenaMemory *nccl_memory(const World *w, const ArenaMemory *memory) {
    static _Thread_local ArenaMemory from_nccl;
    const NcclWorld *n = w->device_impl;
    if (nccl_shares(n) || !n->f->mem_alloc || !n->f->mem_free) return memory;
    from_nccl = *memory;
    from_nccl.map = map, from_nccl.unmap = unmap;
    return &from_nccl;
}

/* ---- registered */

/* Registers entry i with a communicator: as a window, or as a buffer. Returns NCCL's result. */
static int register_one(const NcclWorld *n, NcclGroup *g, int i) {
    void *p = n->registered[i].p;
    size_t n_bytes = n->registered[i].n_bytes;
    int result = NCCL_SUCCESS;
    if (n->f->window_register && n->f->window_deregister)
        result = n->f->window_register(g->comm, p, n_bytes, &g->window[i], NCCL_SYMMETRIC);
    if (result != NCCL_SUCCESS || g->window[i]) return result;
    return n->f->buffer_register(g->comm, p, n_bytes, &g->buffer[i]);
}

static void deregister_one(const NcclWorld *n, NcclGroup *g, int i) {
    int result = NCCL_SUCCESS;
    if (g->window[i]) result = n->f->window_deregister(g->comm, g->window[i]);
    if (g->buffer[i]) result = n->f->buffer_deregister(g->comm, g->buffer[i]);
    nccl_check(n, result, "deregistering memory", g->group);
    g->window[i] = g->buffer[i] = NULL;
}

/* Collective over the group. Registers entry i on all ranks; on none if one rank cannot. */
static void register_on_all(const NcclWorld *n, NcclGroup *g, int i) {
    Group all = comm_group(g->group);
    Err e = {{0}};
    int result = register_one(n, g, i);
    if (result != NCCL_SUCCESS) err(&e, "%s", n->f->error_string(result));
    if (group_agree(&all, result == NCCL_SUCCESS, &e)) return;
    if (all.rank == 0)
        warn("NCCL cannot register memory along %s and copies instead: %s", comm_label(g->group),
             e.text);
    deregister_one(n, g, i);
}

void nccl_register_all(NcclWorld *n, NcclGroup *g) {
    for (int i = 0; i < MAX_REGISTERED && !nccl_shares(n); i++)
        if (n->registered[i].p) register_on_all(n, g, i);
}

void nccl_deregister_all(const NcclWorld *n, NcclGroup *g) {
    for (int i = MAX_REGISTERED - 1; i >= 0; i--) deregister_one(n, g, i);
}

/* The index of an allocation in `registered`; p NULL: a free entry. MAX_REGISTERED: there is
 * none. */
static int find(const NcclWorld *n, const void *p) {
    int i = 0;
    while (i < MAX_REGISTERED && n->registered[i].p != p) i++;
    return i;
}

void nccl_register(World *w, void *p, size_t n_bytes) {
    NcclWorld *n = w->device_impl;
    int i = find(n, NULL);
    bool shares = nccl_shares(n);
    Err e = {{0}};
    if (!shares && (!n->f->buffer_register || !n->f->buffer_deregister)) return;
    if (i == MAX_REGISTERED) die("more than %d allocations are registered", MAX_REGISTERED);
    n->registered[i].p = p, n->registered[i].n_bytes = n_bytes;
    queue_drain(n->device.queue);
    coll_barrier(w->all); // the calls of other ranks are done too
    if (shares && !(n->registered[i].peer_address = nccl_open_memory(w->all, p, &e)))
        die("ranks cannot open each other's memory: %s", e.text);
    for (NcclGroup *g = n->groups; g && !shares; g = g->next) {
        nccl_watch_host(n, g->group, "registered memory");
        register_on_all(n, g, i);
    }
    nccl_watch_host(n, w->all, NULL);
}

void nccl_deregister(World *w, void *p) {
    NcclWorld *n = w->device_impl;
    int i = find(n, p);
    if (i == MAX_REGISTERED) return;
    queue_drain(n->device.queue);
    coll_barrier(w->all); // kernels of other ranks may read the memory too
    for (NcclGroup *g = n->groups; g; g = g->next) deregister_one(n, g, i);
    if (n->registered[i].peer_address) {
        nccl_close_memory(w->all, n->registered[i].peer_address);
        coll_barrier(w->all); // from here on the owner may free the memory
    }
    n->registered[i].p = n->registered[i].peer_address = NULL;
}
