/* Memory that is registered: NCCL's kernels then read and write it where it lies, on the other ranks too, instead of copying
 * through buffers of its own, and take fewer multiprocessors for the same speed.
 *
 *   NCCL 2.27 ...    a window, the same on all ranks of a communicator: also kernels that reach all ranks at once; none, and no
 *                    error, where devices do not reach each other: then as before
 *   NCCL 2.19 ...    a buffer
 *   before           nothing
 *
 * Either wants a call to have the same place in it on all ranks, and all ranks to have registered what it uses, or none. So
 * memory is registered where all ranks of the world have walked an arena alike, and with every communicator: the model's own
 * collectives are then at equal places. All ranks come here in the same order and between calls, never in a step but for the
 * first one's new communicators, and with no call under way on any of them (a communicator is made when all are there): what
 * registers memory waits for other ranks, and may wait for the device. The calls that a rank waits for were started by all of
 * their ranks, or will be before these come here.
 * Source: NCCL's user guide, "User Buffer Registration"; NCCL_WIN_ENABLE=0 and NCCL_LOCAL_REGISTER=0 turn it off.
 */
#include "base/die.h"
#include "base/mem.h"
#include "parallel/coll_nccl.h"

/* ---- memory that can be registered in every way */

static void *map(size_t n_bytes) {
    Err e = {{0}};
    const Nccl *f = nccl(&e);
    void *p = NULL;
    int result = f->mem_alloc(&p, n_bytes);
    if (result != NCCL_SUCCESS)
        die("no %.1f MiB of memory on the device: NCCL: %s", (double)n_bytes / (1 << 20),
            f->error_string(result));
    device_zero(p, n_bytes);
    return p;
}

/* What this rank has put into its stream may still use it. */
static void unmap(void *p) {
    const Nccl *f = nccl(NULL);
    device_wait();
    int result = f->mem_free(p);
    if (result != NCCL_SUCCESS) die("NCCL: memory that is given back: %s", f->error_string(result));
}

const ArenaMemory *nccl_memory(const World *w, const ArenaMemory *memory) {
    static _Thread_local ArenaMemory from_nccl;
    const NcclWorld *n = w->device_impl;
    if (!n->f->mem_alloc || !n->f->mem_free) return memory;
    from_nccl = *memory;
    from_nccl.map = map, from_nccl.unmap = unmap;
    return &from_nccl;
}

/* ---- registered */

static bool has_windows(const NcclWorld *n) {
    return n->f->window_register && n->f->window_deregister;
}

static int enter(const NcclWorld *n, NcclGroup *g, int i) {
    void *p = n->lent[i].p;
    size_t n_bytes = n->lent[i].n_bytes;
    int result = NCCL_SUCCESS;
    if (has_windows(n))
        result = n->f->window_register(g->comm, p, n_bytes, &g->window[i], NCCL_SYMMETRIC);
    if (result != NCCL_SUCCESS || g->window[i]) return result;
    return n->f->buffer_register(g->comm, p, n_bytes, &g->buffer[i]);
}

static void leave(const NcclWorld *n, NcclGroup *g, int i) {
    int result = NCCL_SUCCESS;
    if (g->window[i]) result = n->f->window_deregister(g->comm, g->window[i]);
    if (g->buffer[i]) result = n->f->buffer_deregister(g->comm, g->buffer[i]);
    nccl_check(n, result, "memory that is registered no more", g->of);
    g->window[i] = g->buffer[i] = NULL;
}

/* Collective over the group: all ranks, or none. */
static void enter_all(const NcclWorld *n, NcclGroup *g, int i) {
    Group all = comm_group(g->of);
    Err e = {{0}};
    int result = enter(n, g, i);
    if (result != NCCL_SUCCESS) err(&e, "%s", n->f->error_string(result));
    if (group_agree(&all, result == NCCL_SUCCESS, &e)) return;
    if (all.rank == 0)
        warn("NCCL takes no registered memory along %s, so it copies: %s", comm_label(g->of),
             e.text);
    leave(n, g, i);
}

void nccl_register_all(NcclWorld *n, NcclGroup *g) {
    for (int i = 0; i < MAX_LENT; i++)
        if (n->lent[i].p) enter_all(n, g, i);
}

void nccl_deregister_all(const NcclWorld *n, NcclGroup *g) {
    for (int i = MAX_LENT - 1; i >= 0; i--) leave(n, g, i);
}

/* The place of a piece of memory, or of none. */
static int find(const NcclWorld *n, const void *p) {
    int i = 0;
    while (i < MAX_LENT && n->lent[i].p != p) i++;
    return i;
}

void nccl_lend(World *w, void *p, size_t n_bytes) {
    NcclWorld *n = w->device_impl;
    int i = find(n, NULL);
    if (!n->f->buffer_register || !n->f->buffer_deregister) return;
    if (i == MAX_LENT) die("more than %d pieces of memory are registered with NCCL", MAX_LENT);
    n->lent[i].p = p, n->lent[i].n_bytes = n_bytes;
    nccl_settle(n);
    coll_barrier(w->all); // others' calls are done, too
    for (NcclGroup *g = n->groups; g; g = g->next) {
        nccl_watch_host(n, g->of, "registered memory");
        enter_all(n, g, i);
    }
    nccl_watch_host(n, w->all, NULL);
}

void nccl_take_back(World *w, void *p) {
    NcclWorld *n = w->device_impl;
    int i = find(n, p);
    if (i == MAX_LENT) return;
    nccl_settle(n);
    coll_barrier(w->all); // others' kernels read it, too
    for (NcclGroup *g = n->groups; g; g = g->next) leave(n, g, i);
    n->lent[i].p = NULL;
}
