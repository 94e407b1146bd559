/* coll_nccl -- collectives on device memory by NCCL, for ranks with a device each: threads, or
 * processes on any nodes.
 *
 * The communicator of a group is made at its first call, with an id broadcast by a host collective.
 * All calls of a rank go into one communication stream in the order of their starts, so two
 * communicators are never in use at once: NCCL requires the caller to ensure that.
 *
 *      own      matmul, src --o ready       matmul     --waits  done-- norm, reads dst
 *      comm                  \ begun o  all_reduce  o done
 *
 * Strided blocks (dim 1, stride) are packed in the call's staging buffer: nothing is allocated in a
 * call, and the buffer is registered like the caller's other memory. NCCL sums in its own order.
 */
#include "parallel/comm/coll_nccl.h"

#include "base/die.h"
#include "base/mem.h"
#include "layers/cuda/reduce.h"

/* Largest number of multiprocessors of a call; matmuls that run beside a call leave them free
 * (leave_multiprocessors). It is half of NCCL's maximum of 32 (user guide, types: maxCTAs). On
 * registered memory NCCL uses fewer by itself. The minimum (minCTAs) and cluster sizes are left to
 * NCCL. NCCL_MAX_CTAS in the environment overrides. */
enum { MAX_CTAS = 16 };

void nccl_check(const NcclWorld *n, int result, const char *what, const Comm *c) {
    if (result != NCCL_SUCCESS)
        die("NCCL: %s along %s: %s; %s", what, comm_label(c), n->f->error_string(result),
            n->f->last_error(NULL));
}

/* ---- groups */

/* Makes the communicator of a group, registers memory with it, and opens signals if ranks share
 * memory. */
static void nccl_open(Comm *c) {
    NcclWorld *n = c->world->device_impl;
    NcclGroup *g = c->device = mem_calloc(1, sizeof *g);
    NcclConfig config = nccl_config();
    NcclId id = {{0}};
    Group all = comm_group(c);
    g->group = c;
    for (int i = 0; i < COLL_IN_FLIGHT; i++) g->recorded[i] = device_event();
    config.blocking = 1, config.max_ctas = MAX_CTAS;
    if (c->rank == 0) nccl_check(n, n->f->unique_id(&id), "an id", c);
    group_broadcast(&all, &id, sizeof id);
    queue_drain(n->device.queue);
    nccl_watch_host(n, c, "a communicator");
    nccl_check(n, n->f->init(&g->comm, c->size, id, c->rank, &config), "a communicator", c);
    nccl_watch_open(n, g);
    nccl_watch_host(n, c, "registered memory");
    nccl_register_all(n, g);
    if (nccl_shares(n)) nccl_signals_open(g);
    nccl_watch_host(n, c, NULL);
}

static void nccl_close(Comm *c) {
    NcclWorld *n = c->world->device_impl;
    NcclGroup *g = c->device;
    queue_drain(n->device.queue);
    coll_barrier(c); // no rank reads the memory of others any more
    nccl_watch_host(n, c, "the end of a communicator");
    nccl_deregister_all(n, g);
    nccl_signals_close(g);
    nccl_watch_close(n, g);
    nccl_check(n, n->f->destroy(g->comm), "the end of a communicator", c);
    nccl_watch_host(n, c, NULL);
    for (int i = 0; i < COLL_IN_FLIGHT; i++) device_event_free(g->recorded[i]);
    mem_free(g);
    c->device = NULL;
}

static void nccl_leave(World *w) {
    NcclWorld *n = w->device_impl;
    queue_close(n->device.queue);
    device_event_free(n->fork);
    device_stream_free(n->device.comm), device_stream_free(n->progress);
    mem_free(n);
}

/* ---- calls of NCCL */

static int type_of(CollType t) {
    return (const int[]){NCCL_F32, NCCL_F64, NCCL_I64, NCCL_I32, NCCL_U8, NCCL_BF16}[t];
}

/* Are the blocks of the whole tensor contiguous, one behind the other? */
static bool contiguous(const CollCall *call) {
    return call->dim ? call->rows == 1 : coll_block_stride(call) == coll_elements(call);
}

/* The staging buffer of a call with strided blocks. Dies if it is too small. */
static char *staging_of(const CollCall *call, int size) {
    size_t n_bytes = (size_t)(coll_block_bytes(call) * size);
    if (call->staging.n_bytes < n_bytes)
        die("collective \"%s\": strided blocks need a staging buffer; it has %zu of %zu bytes",
            call->what, call->staging.n_bytes, n_bytes);
    return call->staging.p;
}

/* Copies the strided blocks of the whole tensor to the staging buffer (pack), or back. */
static void move_blocks(const NcclWorld *n, const CollCall *call, int size, char *whole,
                        bool pack) {
    int64_t bytes = coll_type_bytes(call->type), cols = call->cols * bytes;
    int64_t apart = call->dim ? cols : coll_block_stride(call) * bytes;
    int64_t ld = call->dim ? size * cols : cols;
    Blocks strided = {whole, ld, apart};
    Blocks packed = {call->staging.p, cols, call->rows * cols};
    device_move_blocks(n->device.comm, size, call->rows, cols, pack ? packed : strided,
                       pack ? strided : packed);
}

/* An all_gather. Strided blocks go through the staging buffer: own block in, NCCL, all blocks
 * out. */
static int gather(const NcclWorld *n, const NcclGroup *g, const CollCall *call) {
    int64_t bytes = coll_type_bytes(call->type), block = coll_elements(call) * bytes;
    int size = g->group->size, rank = g->group->rank;
    if (contiguous(call))
        return n->f->all_gather(call->src, call->dst, (size_t)block, NCCL_U8, g->comm,
                                n->device.comm);
    char *staging = staging_of(call, size), *own = staging + rank * block;
    Gather mine = {.n = 1, .rows = call->rows, .cols = call->cols * bytes};
    mine.dst_ld = mine.cols, mine.src_ld[0] = coll_src_stride(call, rank, size) * bytes;
    mine.src[0] = call->src, mine.dst[0] = own;
    device_gather(n->device.comm, &mine);
    int result = n->f->all_gather(own, staging, (size_t)block, NCCL_U8, g->comm, n->device.comm);
    move_blocks(n, call, size, call->dst, false);
    return result;
}

static int reduce_scatter(const NcclWorld *n, const NcclGroup *g, const CollCall *call) {
    const void *src = call->src;
    if (!contiguous(call)) {
        src = staging_of(call, g->group->size);
        move_blocks(n, call, g->group->size, (char *)(uintptr_t)call->src, true);
    }
    return n->f->reduce_scatter(src, call->dst, (size_t)coll_elements(call), type_of(call->type),
                                NCCL_SUM, g->comm, n->device.comm);
}

static int shift(const NcclWorld *n, const NcclGroup *g, const CollCall *call) {
    size_t bytes = (size_t)coll_block_bytes(call);
    int size = g->group->size, to = (g->group->rank + call->root) % size,
        from = (g->group->rank - call->root + size) % size;
    nccl_check(n, n->f->group_start(), "a group", g->group);
    int sent = n->f->send(call->src, bytes, NCCL_U8, to, g->comm, n->device.comm);
    int got = n->f->receive(call->dst, bytes, NCCL_U8, from, g->comm, n->device.comm);
    nccl_check(n, sent, call->what, g->group);
    nccl_check(n, got, call->what, g->group);
    return n->f->group_end();
}

/* Puts a call into the communication stream. Returns NCCL's result. */
static int run(const NcclWorld *n, const NcclGroup *g, const CollCall *call) {
    size_t count = (size_t)coll_elements(call);
    int type = type_of(call->type);
    switch (call->op) {
    case COLL_ALL_GATHER:
        return gather(n, g, call);
    case COLL_REDUCE_SCATTER:
        return reduce_scatter(n, g, call);
    case COLL_ALL_REDUCE:
        return n->f->all_reduce(call->src, call->dst, count, type, NCCL_SUM, g->comm,
                                n->device.comm);
    case COLL_BROADCAST:
        return n->f->broadcast(call->src, call->dst, count * (size_t)coll_type_bytes(call->type),
                               NCCL_U8, call->root, g->comm, n->device.comm);
    case COLL_REDUCE:
        return n->f->reduce(call->src, call->dst, count, type, NCCL_SUM, call->root, g->comm,
                            n->device.comm);
    case COLL_SHIFT:
        return shift(n, g, call);
    case N_COLL_OPS:
        break;
    }
    return NCCL_SUCCESS;
}

/* ---- calls */

/* The communication stream waits for the work that the rank has put into its own stream so far. */
static void catch_up(const NcclWorld *n, Event ready) {
    device_record(ready, device_stream());
    device_stream_wait(n->device.comm, ready);
}

/* Between start and wait a call runs beside the kernels in the rank's own stream. Those kernels
 * leave free the multiprocessors that the call may use: FSDP's persistent matmuls on H100 took
 * twice as long beside NCCL (pytorch/pytorch, issue 143988). If NCCL uses fewer, or ends long
 * before the wait, this costs up to 16 of 132 multiprocessors. Neither has been measured here.
 * more: calls started, or ended if negative. */
static void leave_multiprocessors(NcclWorld *n, int more) {
    n->in_flight += more;
    device_set_sm_margin(n->in_flight > 0 ? MAX_CTAS : 0);
}

/* Puts a call into the communication stream, behind all work that the rank's own stream has so far.
 * The call becomes an entry of the watched queue, or a call of the recording in progress. */
static void nccl_start(Comm *c, uint64_t number, const CollCall *call) {
    NcclWorld *n = c->world->device_impl;
    NcclGroup *g = c->device;
    int at = (int)(number % COLL_IN_FLIGHT);
    if (call->by_blocks) {
        nccl_blocks_start(c, number, call);
        return;
    }
    Queued *t = NULL;
    if (n->recording) {
        g->done[at] = g->recorded[at];
        catch_up(n, n->fork);
        nccl_record_begin(n, c, call);
    } else {
        t = queue_take(n->device.queue, &(Queued){.called = {*call, c}, .limit = c->world->limit});
        g->done[at] = t->done;
        catch_up(n, t->ready);
        device_record(t->begun, n->device.comm);
    }
    device_begins(c, number, n->device.comm);
    nccl_check(n, run(n, g, call), call->what, c);
    device_completes(c, number, n->device.comm);
    device_record(g->done[at], n->device.comm);
    t ? queue_enqueued(n->device.queue, t) : nccl_record_end(n, g->done[at]);
    leave_multiprocessors(n, 1);
}

static void nccl_wait(Comm *c, uint64_t number, const CollCall *call) {
    const NcclGroup *g = c->device;
    if (call->by_blocks) {
        device_blocks_wait(c, number, call);
        return;
    }
    device_stream_wait(device_stream(), g->done[number % COLL_IN_FLIGHT]);
    leave_multiprocessors(c->world->device_impl, -1);
}

static const CollBackend coll_nccl = {.name = "nccl",
                                      .is_device_memory = device_is_pointer,
                                      .open = nccl_open,
                                      .close = nccl_close,
                                      .start = nccl_start,
                                      .wait = nccl_wait,
                                      .memory = nccl_memory,
                                      .register_memory = nccl_register,
                                      .deregister_memory = nccl_deregister,
                                      .recorder = &nccl_recorder,
                                      .share = nccl_share,
                                      .close_world = nccl_leave};

/* ---- the world */

/* Does this rank have the library version of rank 0? NCCL requires one version on all ranks. */
static bool has_version_of_all(World *w, const Nccl *f, Err *e) {
    Group g = comm_group(w->all);
    int mine = 0, first;
    if (f) f->version(&mine);
    first = mine;
    group_broadcast(&g, &first, sizeof first);
    return !f || first == 0 || mine == first ||
           err(e, "this rank has NCCL %d, rank 0 has %d: all ranks need the same version", mine,
               first);
}

bool world_nccl_fits(World *w, Err *e) {
    Group g = comm_group(w->all);
    Err why = {{0}};
    const Nccl *f = nccl(&why);
    int other = device_shared_with(w);
    bool alike = has_version_of_all(w, f, e);
    if (!f)
        err(e,
            "ranks on GPUs that do not share memory need NCCL, which cannot be loaded (%.300s): "
            "--libraries FOLDER names the folder of libnccl.so.2",
            why.text);
    else if (other >= 0)
        err(e,
            "this rank and rank %d have the same GPU, and not all GPUs share memory: that needs "
            "NCCL, which needs a GPU for each rank",
            other);
    return group_agree(&g, f && alike && other < 0, e);
}

void world_use_nccl(World *w) {
    Err e = {{0}};
    if (!world_nccl_fits(w, &e)) die("%s", e.text);
    const Nccl *f = nccl(NULL);
    NcclWorld *n = mem_calloc(1, sizeof *n);
    n->f = f, n->backend = coll_nccl;
    n->device.comm = device_comm_stream(), n->progress = device_comm_stream(),
    n->fork = device_event();
    nccl_record_open(n);
    n->device.distinct_devices = true, n->device.transport = &nccl_by_signals,
    n->device.queue = queue_open(nccl_check_all, n);
    world_set_device(w, &n->backend, n);
}
