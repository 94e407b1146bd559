/* coll_nccl -- collectives on memory of devices by NCCL, of ranks with a device each: threads, or processes on any nodes.
 *
 * A group has a communicator, made at its first call with an id that its host collectives carry. All calls of a rank go into
 * one urgent stream, in the order in which they were started: two communicators are never under way at once, which NCCL
 * leaves to its callers to see to.
 *
 *      own      product, src --o ready      product    --follows done-- norm, reads dst
 *      urgent                   \ begun o  all_reduce  o done
 *
 * Blocks that do not touch (dim 1, stride) pass through the call's place, where they do: nothing is allocated in a call, and the
 * place is as registered as the caller's other memory. Sums are NCCL's, in its order.
 */
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "layers/cuda/fold.h"
#include "parallel/coll_nccl.h"

/* Multiprocessors that a call may take, for products run beside it and lose them (leave_room): half of NCCL's most, 32 (user
 * guide, types: maxCTAs); on registered memory it takes fewer of its own accord. How few is NCCL's choice (minCTAs), also the
 * size of clusters. NCCL_MAX_CTAS in the environment goes before this. */
enum { MAX_CTAS = 16 };

void nccl_check(const NcclWorld *n, int result, const char *what, const Comm *c) {
    if (result != NCCL_SUCCESS)
        die("NCCL: %s along %s: %s; %s", what, comm_label(c), n->f->error_string(result),
            n->f->last_error(NULL));
}

/* ---- groups */

static void nccl_open(Comm *c, int color, int key) {
    NcclWorld *n = c->world->device_impl;
    NcclGroup *g = c->device = mem_calloc(1, sizeof *g);
    NcclConfig config = nccl_config();
    NcclId id = {{0}};
    Group all = comm_group(c);
    (void)color, (void)key;
    g->of = c;
    if (c->size == 1) return;
    for (int i = 0; i < COLL_IN_FLIGHT; i++) g->recorded[i] = device_event();
    config.blocking = 1, config.max_ctas = MAX_CTAS;
    if (c->rank == 0) nccl_check(n, n->f->unique_id(&id), "an id", c);
    group_share(&all, &id, sizeof id);
    nccl_settle(n);
    nccl_watch_host(n, c, "a communicator");
    nccl_check(n, n->f->init(&g->comm, c->size, id, c->rank, &config), "a communicator", c);
    nccl_watch_open(n, g);
    nccl_watch_host(n, c, "registered memory");
    nccl_register_all(n, g);
    nccl_watch_host(n, c, NULL);
}

static void nccl_close(Comm *c) {
    NcclWorld *n = c->world->device_impl;
    NcclGroup *g = c->device;
    nccl_settle(n);
    if (c->size > 1) {
        c->backend->barrier(c); // nobody reads the others' memory any more
        nccl_watch_host(n, c, "the end of a communicator");
        nccl_deregister_all(n, g);
        nccl_watch_close(n, g);
        nccl_check(n, n->f->destroy(g->comm), "the end of a communicator", c);
        nccl_watch_host(n, c, NULL);
        for (int i = 0; i < COLL_IN_FLIGHT; i++) device_event_free(g->recorded[i]);
    }
    mem_free(g);
    c->device = NULL;
}

static void nccl_leave(World *w) {
    NcclWorld *n = w->device_impl;
    nccl_watch_stop(n);
    for (int i = 0; i < IN_LINE; i++)
        device_event_free(n->turn[i].ready), device_event_free(n->turn[i].begun),
            device_event_free(n->turn[i].done);
    device_event_free(n->fork);
    device_stream_free(n->urgent), device_stream_free(n->notes);
    mem_free(n);
}

static void nccl_progress(World *w) {
    (void)w;
}

static void nccl_barrier(Comm *c) {
    c->backend->barrier(c);
}

/* ---- a call, as NCCL's */

static int type_of(CollType t) {
    return (const int[]){NCCL_F32, NCCL_F64, NCCL_I64, NCCL_I32, NCCL_U8, NCCL_BF16}[t];
}

static bool touch(const CollCall *call) {
    return call->dim ? call->rows == 1 : coll_block_stride(call) == coll_elements(call);
}

/* Where they do. */
static char *place_of(const CollCall *call, int size) {
    size_t n_bytes = (size_t)(coll_elements(call) * coll_type_bytes(call->type) * size);
    if (call->place.n_bytes < n_bytes)
        die_at(call->file, call->line, "coll_start", 1,
               "collective \"%s\": its blocks do not touch, and its place has %zu of %zu bytes",
               call->what, call->place.n_bytes, n_bytes);
    return call->place.p;
}

/* Between the blocks of a whole and those of the place. */
static void move_blocks(const NcclWorld *n, const CollCall *call, int size, char *whole,
                        bool to_place) {
    int64_t bytes = coll_type_bytes(call->type), cols = call->cols * bytes;
    int64_t apart = call->dim ? cols : coll_block_stride(call) * bytes;
    int64_t ld = call->dim ? size * cols : cols;
    Blocks there = {whole, ld, apart}, here = {call->place.p, cols, call->rows * cols};
    device_move_blocks(n->urgent, size, call->rows, cols, to_place ? here : there,
                       to_place ? there : here);
}

static int gather(const NcclWorld *n, const NcclGroup *g, const CollCall *call) {
    int64_t bytes = coll_type_bytes(call->type), block = coll_elements(call) * bytes;
    int size = g->of->size, rank = g->of->rank;
    if (touch(call))
        return n->f->all_gather(call->src, call->dst, (size_t)block, NCCL_U8, g->comm, n->urgent);
    char *place = place_of(call, size), *own = place + rank * block;
    Gather mine = {.n = 1, .rows = call->rows, .cols = call->cols * bytes};
    mine.dst_ld = mine.cols, mine.src_ld[0] = coll_src_stride(call, rank, size) * bytes;
    mine.src[0] = call->src, mine.dst[0] = own;
    device_gather(n->urgent, &mine);
    int result = n->f->all_gather(own, place, (size_t)block, NCCL_U8, g->comm, n->urgent);
    move_blocks(n, call, size, call->dst, false);
    return result;
}

static int reduce_scatter(const NcclWorld *n, const NcclGroup *g, const CollCall *call, int fold) {
    const void *src = call->src;
    if (!touch(call)) {
        src = place_of(call, g->of->size);
        move_blocks(n, call, g->of->size, (char *)(uintptr_t)call->src, true);
    }
    return n->f->reduce_scatter(src, call->dst, (size_t)coll_elements(call), type_of(call->type),
                                fold, g->comm, n->urgent);
}

static int shift(const NcclWorld *n, const NcclGroup *g, const CollCall *call) {
    size_t bytes = (size_t)(coll_elements(call) * coll_type_bytes(call->type));
    int size = g->of->size, to = (g->of->rank + call->root) % size,
        from = (g->of->rank - call->root + size) % size;
    nccl_check(n, n->f->group_start(), "a group", g->of);
    int sent = n->f->send(call->src, bytes, NCCL_U8, to, g->comm, n->urgent);
    int got = n->f->receive(call->dst, bytes, NCCL_U8, from, g->comm, n->urgent);
    nccl_check(n, sent, call->what, g->of);
    nccl_check(n, got, call->what, g->of);
    return n->f->group_end();
}

static int run(const NcclWorld *n, const NcclGroup *g, const CollCall *call) {
    size_t count = (size_t)coll_elements(call);
    int type = type_of(call->type), fold = call->fold == COLL_MAX ? NCCL_MAX : NCCL_SUM;
    switch (call->op) {
    case COLL_ALL_GATHER:
        return gather(n, g, call);
    case COLL_REDUCE_SCATTER:
        return reduce_scatter(n, g, call, fold);
    case COLL_ALL_REDUCE:
        return n->f->all_reduce(call->src, call->dst, count, type, fold, g->comm, n->urgent);
    case COLL_BROADCAST:
        return n->f->broadcast(call->src, call->dst, count * (size_t)coll_type_bytes(call->type),
                               NCCL_U8, call->root, g->comm, n->urgent);
    case COLL_REDUCE:
        return n->f->reduce(call->src, call->dst, count, type, fold, call->root, g->comm,
                            n->urgent);
    case COLL_SHIFT:
        return shift(n, g, call);
    case N_COLL_OPS:
        break;
    }
    return NCCL_SUCCESS;
}

/* ---- calls */

Turn *nccl_turn_take(NcclWorld *n, const Turn *of) {
    Turn *t = &n->turn[n->end % IN_LINE];
    if (n->end >= IN_LINE) device_await(t->done);
    pthread_mutex_lock(&n->lock);
    if (n->end - n->first == IN_LINE) n->first++;
    t->called = of->called, t->replay = of->replay, t->limit = of->limit;
    t->since = 0, t->in_stream = false;
    n->end++;
    pthread_mutex_unlock(&n->lock);
    return t;
}

void nccl_turn_given(NcclWorld *n, Turn *t) {
    pthread_mutex_lock(&n->lock);
    t->in_stream = true;
    pthread_mutex_unlock(&n->lock);
}

void nccl_settle(const NcclWorld *n) {
    if (n->end > 0) device_await(n->turn[(n->end - 1) % IN_LINE].done);
}

/* The urgent stream behind what the rank has put into its own so far. */
static void catch_up(const NcclWorld *n, Event ready) {
    device_record(ready, device_stream());
    device_follow(n->urgent, ready);
}

/* Between its start and its wait a call runs beside what the rank puts into its own stream, and kernels there do without what it
 * may take: products of FSDP on H100, whose blocks stay, took twice as long beside NCCL (pytorch/pytorch, issue 143988). Where
 * NCCL takes less, or is done long before the wait, that costs up to 16 of 132 multiprocessors. No device has measured either
 * here. */
static void leave_room(NcclWorld *n, int more) {
    n->under_way += more;
    device_leave(n->under_way > 0 ? MAX_CTAS : 0);
}

static void nccl_start(Comm *c, uint64_t number, const CollCall *call) {
    NcclWorld *n = c->world->device_impl;
    NcclGroup *g = c->device;
    int at = (int)(number % COLL_IN_FLIGHT);
    if (c->size == 1) {
        device_run_alone(c, number, call);
        return;
    }
    Turn *t = NULL;
    if (n->recording) {
        g->done[at] = g->recorded[at];
        catch_up(n, n->fork);
        nccl_record_begin(n, c, call);
    } else {
        t = nccl_turn_take(n, &(Turn){.called = {*call, c}, .limit = c->world->limit});
        g->done[at] = t->done;
        catch_up(n, t->ready);
        device_record(t->begun, n->urgent);
    }
    device_begins(c, number, n->urgent);
    nccl_check(n, run(n, g, call), call->what, c);
    device_completes(c, number, n->urgent);
    device_record(g->done[at], n->urgent);
    t ? nccl_turn_given(n, t) : nccl_record_end(n, g->done[at]);
    leave_room(n, 1);
}

static void nccl_wait(Comm *c, uint64_t number, const CollCall *call) {
    const NcclGroup *g = c->device;
    (void)call;
    if (c->size == 1) return;
    device_follow(device_stream(), g->done[number % COLL_IN_FLIGHT]);
    leave_room(c->world->device_impl, -1);
}

static const CollBackend coll_nccl = {.name = "nccl",
                                      .takes = device_holds,
                                      .open = nccl_open,
                                      .close = nccl_close,
                                      .start = nccl_start,
                                      .wait = nccl_wait,
                                      .progress = nccl_progress,
                                      .barrier = nccl_barrier,
                                      .memory = nccl_memory,
                                      .lend = nccl_lend,
                                      .take_back = nccl_take_back,
                                      .recorder = &nccl_recorder,
                                      .leave = nccl_leave};

/* ---- the world */

/* The first rank before this one that has the same device, or -1. */
static int who_shares(World *w) {
    DeviceId mine = device_id(), *all = mem_calloc((size_t)w->size, sizeof *all);
    Group g = comm_group(w->all);
    int r = 0;
    group_all_gather(&g, &mine, sizeof mine, all);
    while (memcmp(&all[r], &mine, sizeof mine) != 0) r++;
    mem_free(all);
    return r < w->rank ? r : -1;
}

/* Ranks whose library is another one than rank 0's do not understand each other. */
static bool has_version_of_all(World *w, const Nccl *f, Err *e) {
    Group g = comm_group(w->all);
    int mine = 0, first;
    if (f) f->version(&mine);
    first = mine;
    group_share(&g, &first, sizeof first);
    return !f || first == 0 || mine == first ||
           err(e, "NCCL is of version %d here and of version %d on rank 0: all ranks need one",
               mine, first);
}

bool world_nccl_fits(World *w, Err *e) {
    Group g = comm_group(w->all);
    Err why = {{0}};
    const Nccl *f = nccl(&why);
    int other = who_shares(w);
    bool alike = has_version_of_all(w, f, e);
    if (!f)
        err(e,
            "ranks on GPUs that do not share memory need NCCL, which is not here (%.300s): put the "
            "folder of libnccl.so.2 into LD_LIBRARY_PATH",
            why.text);
    else if (other >= 0)
        err(e,
            "this rank and rank %d have the same GPU; NCCL wants one for each rank: ranks of one "
            "process (--ranks without a launcher) can share it",
            other);
    return group_agree(&g, f && alike && other < 0, e);
}

void world_use_nccl(World *w) {
    Err e = {{0}};
    if (!world_nccl_fits(w, &e)) die("%s", e.text);
    const Nccl *f = nccl(NULL);
    NcclWorld *n = mem_calloc(1, sizeof *n);
    n->f = f, n->device = device_index(), n->name = die_rank();
    n->urgent = device_urgent_stream(), n->notes = device_urgent_stream(), n->fork = device_event();
    for (int i = 0; i < IN_LINE; i++)
        n->turn[i].ready = device_event(), n->turn[i].begun = device_event(),
        n->turn[i].done = device_event();
    nccl_record_open(n);
    nccl_watch_start(n);
    world_set_device(w, &coll_nccl, n);
}
