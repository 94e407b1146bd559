#include "parallel/comm/coll_mpi_flight.h"

#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "parallel/comm/coll_mpi_job.h"

enum {
    KEPT_BYTES = 16 << 20,        // buffers of one call for sums, or for packed blocks
    MESSAGE_BYTES = 1 << 30,      // largest chunk of a call without such buffers
    TAGS_PER_CALL = FLIGHT_STEPS, // one per step
    // calls until tags repeat. Calls and barriers use TAGS * TAGS_PER_CALL tags each; all are below
    // 32767, the largest tag that MPI guarantees
    TAGS = 2048,
    KEEPS = 64, // buffers that are kept for reuse
};

/* An all_reduce of n bytes on p ranks with n <= whole_to takes one exchange, in which every rank
 * sends its whole buffer to all others, if (p - 2) n <= whole_beyond. Each rank then sends (p - 1)
 * n bytes, instead of 2 (p - 1) n / p in two exchanges: less than (p - 2) n more, for one latency
 * instead of two. */
static const int64_t whole_to = 16 << 10, whole_beyond = 1 << 10;

/* A tensor of at least this many bytes is sent by nodes: fewer bytes cross the network, in twice as
 * many steps. */
static const int64_t nodes_from = 8 << 10;

/* If no two ranks share a node, tensors up to this size, in bytes, are sent as if neighbours did:
 * fewer messages, and fewer bytes between racks. Larger tensors are as quick directly, or
 * quicker. */
static const int64_t rounds_to = 128 << 10;

const CollCall flight_barrier = {.op = COLL_ALL_GATHER};
uint64_t flight_messages;

/* Buffers that flights take and give back. */
static struct {
    char *at;
    size_t bytes;
    bool taken;
} keep[KEEPS];

/* ---- parts */

/* A matrix in memory: lines x width elements; lines begin `stride` elements apart. */
typedef struct Part {
    char *at;
    int64_t lines, width, stride;
} Part;

static bool is_packed(const Part *p) {
    return p->stride != p->width;
}

/* The current chunk of a part that has n lines. A contiguous part has lines of one element. */
static Part chunk_of(const Flight *f, const void *at, int64_t n, int64_t width, int64_t stride) {
    int64_t from = min_i64(f->first, n);
    return (Part){.at = (char *)at + from * stride * coll_type_bytes(f->call->type),
                  .lines = min_i64(f->chunk, n - from),
                  .width = width,
                  .stride = stride};
}

/* The current chunk of part j of a buffer, src or dst. */
static Part part(const Flight *f, const void *buffer, int j) {
    const CollCall *call = f->call;
    int64_t size = f->comm->group->size, n = coll_elements(call), begin = 0, end = n;
    int64_t bytes = coll_type_bytes(call->type);
    if (coll_has_blocks(call->op) && call->dim == 1)
        return chunk_of(f, (const char *)buffer + j * call->cols * bytes, call->rows, call->cols,
                        size * call->cols);
    if (coll_has_blocks(call->op)) begin = j * coll_block_stride(call), end = begin + n;
    if (call->op == COLL_ALL_REDUCE && !f->whole) {
        begin = coll_part(n, (int)size, j);
        end = coll_part(n, (int)size, j + 1);
    }
    return chunk_of(f, (const char *)buffer + begin * bytes, end - begin, 1, 1);
}

/* The current chunk of a buffer that is a single block: src of an all_gather, dst of a
 * reduce_scatter. */
static Part block(const Flight *f, const void *at, int64_t stride) {
    const CollCall *call = f->call;
    if (call->dim == 1) return chunk_of(f, at, call->rows, call->cols, stride);
    return chunk_of(f, at, coll_elements(call), 1, 1);
}

/* Slot i of `slots`. Each slot holds a chunk of any part; the result has the shape of part j. */
static Part slot_at(const Flight *f, char *slots, int i, int j) {
    Part p = part(f, f->call->op == COLL_ALL_GATHER ? f->call->dst : f->call->src, j);
    p.at = slots + i * f->chunk * p.width * coll_type_bytes(f->call->type);
    p.stride = p.width;
    return p;
}

/* The memory into which a collected part j is received: dst, or the buffer for packed blocks. */
static Part collected(const Flight *f, int j) {
    Part p = part(f, f->call->dst, j);
    return is_packed(&p) ? slot_at(f, f->packed, j, j) : p;
}

/* Index of i when `own` is left out of the numbering. */
static int other(int i, int own) {
    return i < own ? i : i - 1;
}

/* The slot in `kept` for the term of part j that rank `peer` sends. Slots [near - 1, nodes] hold
 * the terms of other ranks of this node, for the parts that this rank carries; the first `nodes` of
 * them are overwritten with the sums over this node. Slots [nodes - 1] behind them hold the terms
 * of other nodes. */
static Part term_of(const Flight *f, int peer, int j) {
    const Comm *c = f->comm->group;
    int near = f->near, nodes = c->size / near;
    int i = f->step == FLIGHT_SPREAD_NEAR ? other(peer % near, c->rank % near) * nodes + j / near
                                          : c->size - nodes + other(peer / near, c->rank / near);
    return slot_at(f, f->kept, i, j);
}

/* This node's term of part j: the sum over its ranks, or this rank's src if parts are not sent by
 * nodes. */
static Part node_sum(const Flight *f, int j) {
    return f->near > 1 ? slot_at(f, f->kept, j / f->near, j) : part(f, f->call->src, j);
}

/* The memory into which a message is received. */
static Part incoming(const Flight *f, const FlightMove *m) {
    return f->step <= FLIGHT_SPREAD ? term_of(f, m->peer, m->part) : collected(f, m->part);
}

/* The memory from which a message is sent, before packing. */
static Part outgoing(const Flight *f, const FlightMove *m) {
    const CollCall *call = f->call;
    const Comm *c = f->comm->group;
    if (f->step == FLIGHT_SPREAD_NEAR) return part(f, call->src, m->part);
    if (f->step == FLIGHT_SPREAD) return node_sum(f, m->part);
    if (call->op == COLL_ALL_GATHER && m->part == c->rank)
        return block(f, call->src, coll_src_stride(call, c->rank, c->size));
    if (call->op == COLL_ALL_GATHER) return collected(f, m->part);
    return part(f, call->op == COLL_ALL_REDUCE ? call->dst : call->src, m->part);
}

/* ---- messages */

static void copy_part(const Flight *f, Team *team, const Part *to, const Part *from) {
    int64_t bytes = coll_type_bytes(f->call->type);
    coll_copy(team, to->at, to->stride * bytes, from->at, from->stride * bytes, to->lines,
              to->width * bytes);
}

static void add_move(Flight *f, int part, int peer, bool receive) {
    f->move[f->n_moves++] = (FlightMove){part, peer, receive};
}

/* Lists the messages of this rank in a step, receives first. The step is among n ranks: first,
 * first + stride, ... These are the ranks of this node, or the ranks with this rank's index on each
 * node. Spread: each rank sends the parts that its peer owns or carries. Collect: each rank sends
 * the parts that it owns or carries itself. Each rank begins with another peer, so that not all
 * ranks send to the same one first. Two nodes of two ranks (near = 2), rank 0:
 *
 *     spread, near     n = 2, stride 1    to rank 1: parts 1 and 3, which rank 1 carries
 *     spread           n = 2, stride 2    to rank 2: part 2, which rank 2 owns
 */
static void list_moves(Flight *f) {
    const Comm *c = f->comm->group;
    CollOp op = f->call->op;
    int me = c->rank, size = c->size, root = f->call->root;
    bool rooted = op == COLL_REDUCE || op == COLL_BROADCAST; // only the root owns a part
    bool near = f->step == FLIGHT_SPREAD_NEAR || f->step == FLIGHT_COLLECT_NEAR;
    int n = near ? f->near : size / f->near, stride = near ? 1 : f->near;
    int index = me / stride % n, first = me - index * stride;
    int parts = near ? size / n : 1; // from one rank to another: it carries one of each node
    bool spread = f->step <= FLIGHT_SPREAD;
    f->n_moves = 0;
    if (op == COLL_SHIFT) {
        add_move(f, me, (me - root + size) % size, true);
        add_move(f, me, (me + root) % size, false);
        return;
    }
    for (int receive = 1; receive >= 0; receive--)
        for (int k = 0; k < parts; k++)
            for (int distance = 1; distance < n; distance++) {
                int peer = (index + (receive ? n - distance : distance)) % n;
                int owner = spread == receive ? index : peer;
                int part = (near ? k * n : first) + owner * stride;
                if (!rooted || part == root) add_move(f, part, first + peer * stride, receive);
            }
}

static void post_one(Flight *f, int i, const Part *p) {
    const MPI_Datatype types[] = {
        [COLL_F32] = MPI_FLOAT,   [COLL_F64] = MPI_DOUBLE, [COLL_I64] = MPI_INT64_T,
        [COLL_I32] = MPI_INT32_T, [COLL_U8] = MPI_UINT8_T, [COLL_BF16] = MPI_UINT16_T};
    MPI_Datatype type = types[f->call->type];
    MPI_Comm mpi = f->comm->mpi;
    int n = (int)(p->lines * p->width), peer = f->move[i].peer, tag = f->tag + (int)f->step;
    bool receive = f->move[i].receive;
    mpi_job_check(receive ? MPI_Irecv(p->at, n, type, peer, tag, mpi, &f->request[i])
                          : MPI_Isend(p->at, n, type, peer, tag, mpi, &f->request[i]),
                  receive ? "MPI_Irecv" : "MPI_Isend");
}

/* Posts all messages of a step. A strided part is packed once and sent to several ranks. */
static void begin_step(Flight *f, FlightStep step, Team *team) {
    int last = -1; // the part packed last
    f->step = step;
    list_moves(f);
    for (int i = 0; i < f->n_moves; i++) {
        const FlightMove *m = &f->move[i];
        Part p = m->receive ? incoming(f, m) : outgoing(f, m);
        if (!m->receive && is_packed(&p)) {
            Part slot = slot_at(f, f->packed, m->part, m->part);
            if (m->part != last) copy_part(f, team, &slot, &p);
            last = m->part, p = slot;
        }
        post_one(f, i, &p);
    }
}

/* Unpacks the received blocks of an all_gather into dst. */
static void unpack(Flight *f, Team *team) {
    const Comm *c = f->comm->group;
    for (int j = 0; j < c->size; j++) {
        if (j == c->rank) continue;
        Part to = part(f, f->call->dst, j), from = slot_at(f, f->packed, j, j);
        copy_part(f, team, &to, &from);
    }
}

/* ---- sums */

/* Sums part j over n ranks first, first + stride, ... into `to`, which is contiguous. The term of
 * this rank is `own`; those of the others are in their slots. */
static void sum_part(const Flight *f, Team *team, int j, int first, int n, int stride,
                     const Part *own, const Part *to) {
    MpiComm *m = f->comm;
    int64_t bytes = coll_type_bytes(f->call->type);
    for (int i = 0; i < n; i++) {
        int r = first + i * stride;
        Part p = r == m->group->rank ? *own : term_of(f, r, j);
        m->term[i] = p.at, m->stride[i] = p.stride * bytes;
    }
    coll_sum_terms(team, &(CollSum){.type = f->call->type,
                                    .n_src = n,
                                    .n_dst = 1,
                                    .src = m->term,
                                    .stride = m->stride,
                                    .dst = &to->at,
                                    .rows = to->lines,
                                    .row_bytes = to->width * bytes});
}

/* Sums each part that this rank carries over the ranks of this node. */
static void sum_near(const Flight *f, Team *team) {
    const Comm *c = f->comm->group;
    int near = f->near, place = c->rank % near;
    for (int j = place; j < c->size; j += near) {
        Part own = part(f, f->call->src, j), to = node_sum(f, j);
        sum_part(f, team, j, c->rank - place, near, 1, &own, &to);
    }
}

/* Sums the part that this rank owns over the nodes. The result is a single block, a slice, or the
 * whole buffer. */
static void sum_own(const Flight *f, Team *team) {
    const Comm *c = f->comm->group;
    const CollCall *call = f->call;
    if (call->op == COLL_REDUCE && c->rank != call->root) return;
    Part own = node_sum(f, c->rank);
    Part to =
        coll_has_blocks(call->op) ? block(f, call->dst, call->cols) : part(f, call->dst, c->rank);
    sum_part(f, team, c->rank, c->rank % f->near, c->size / f->near, f->near, &own, &to);
}

/* ---- buffers */

/* Takes the smallest free buffer that is large enough; if there is none, the largest free one is
 * reallocated. After a step or two every call finds a buffer of its size. */
static char *buffer_take(size_t bytes) {
    int best = 0;
    for (int i = 1; i < KEEPS; i++) {
        size_t have = keep[i].bytes, other = keep[best].bytes;
        bool better = other < bytes ? have > other : have >= bytes && have < other;
        if (!keep[i].taken && (keep[best].taken || better)) best = i;
    }
    if (keep[best].taken) die("%d collectives hold buffers at the same time", KEEPS);
    keep[best].taken = true;
    if (keep[best].bytes < bytes) {
        mem_free(keep[best].at);
        keep[best].at = mem_alloc_aligned(bytes, 64);
        keep[best].bytes = bytes;
    }
    return keep[best].at;
}

static void buffer_give(const char *at) {
    for (int i = 0; i < KEEPS; i++)
        if (at && keep[i].at == at) keep[i].taken = false;
}

void flights_end(void) {
    for (int i = 0; i < KEEPS; i++) mem_free(keep[i].at);
}

void flights_open(MpiComm *m) {
    size_t size = (size_t)m->group->size, moves = 2 * size;
    m->done = mem_calloc(moves, sizeof *m->done);
    m->status = mem_calloc(moves, sizeof *m->status);
    m->term = mem_calloc(size, sizeof *m->term);
    m->stride = mem_calloc(size, sizeof *m->stride);
    for (int i = 0; i <= COLL_IN_FLIGHT; i++) {
        Flight *f = &m->flight[i];
        f->comm = m;
        f->step = FLIGHT_DONE;
        f->arrived = mem_calloc(size, sizeof *f->arrived);
        f->move = mem_calloc(moves, sizeof *f->move);
        f->request = mem_calloc(moves, sizeof(MPI_Request));
    }
}

void flights_close(MpiComm *m) {
    for (int i = 0; i <= COLL_IN_FLIGHT; i++) {
        mem_free(m->flight[i].arrived);
        mem_free(m->flight[i].move);
        mem_free(m->flight[i].request);
    }
    mem_free(m->done);
    mem_free(m->status);
    mem_free(m->term);
    mem_free(m->stride);
}

/* ---- flights */

static void begin_chunk(Flight *f, Team *team) {
    FlightStep first = f->near > 1 ? FLIGHT_SPREAD_NEAR : FLIGHT_SPREAD;
    begin_step(f, coll_spreads(f->call->op) ? first : FLIGHT_COLLECT, team);
}

/* Sets the number of lines and the lines per chunk, and takes the buffers that a chunk needs. */
static void take_memory(Flight *f) {
    const CollCall *call = f->call;
    const Comm *c = f->comm->group;
    int64_t n = coll_elements(call), bytes = coll_type_bytes(call->type), size = c->size;
    bool lines_are_rows = coll_has_blocks(call->op) && call->dim == 1;
    bool spreads = coll_spreads(call->op);
    int64_t line_bytes = lines_are_rows ? call->cols * bytes : bytes;
    f->lines = lines_are_rows ? call->rows : n;
    if (call->op == COLL_ALL_REDUCE && !f->whole) f->lines = (n + size - 1) / size;
    bool strided = lines_are_rows && f->lines > 0;
    int64_t at_once = spreads || strided ? KEPT_BYTES / size : MESSAGE_BYTES;
    f->chunk = line_bytes < at_once ? at_once / (line_bytes ? line_bytes : 1) : 1;
    f->chunk = min_i64(f->chunk, f->lines);
    size_t chunk_bytes = (size_t)(f->chunk * line_bytes);
    bool sums = spreads && (call->op != COLL_REDUCE || c->rank == call->root);
    f->kept = sums && chunk_bytes ? buffer_take((size_t)(size - 1) * chunk_bytes) : NULL;
    f->packed = strided && chunk_bytes ? buffer_take((size_t)size * chunk_bytes) : NULL;
}

void flight_start(Flight *f, uint64_t number, const CollCall *call) {
    const Comm *c = f->comm->group;
    bool barrier = call == &flight_barrier;
    f->call = call;
    f->number = number;
    f->tag = TAGS_PER_CALL * (int)(number % TAGS + (barrier ? TAGS : 0));
    f->first = 0;
    int64_t bytes = coll_block_bytes(call);
    f->whole =
        call->op == COLL_ALL_REDUCE && bytes <= whole_to && bytes * (c->size - 2) <= whole_beyond;
    if (coll_has_blocks(call->op)) bytes *= c->size;
    bool parted = coll_has_blocks(call->op) || call->op == COLL_ALL_REDUCE;
    f->near = 1;
    if (parted && !f->whole && !barrier && bytes >= nodes_from)
        f->near = bytes <= rounds_to ? f->comm->near_small : f->comm->near;
    memset(f->arrived, 0, (size_t)c->size * sizeof *f->arrived);
    take_memory(f);
    begin_chunk(f, c->world->team);
}

/* Ends a flight: copies the block that was not sent, and gives the buffers back. */
static void finish(Flight *f, Team *team) {
    const CollCall *call = f->call;
    const Comm *c = f->comm->group;
    int64_t bytes = coll_type_bytes(call->type), row = call->cols * bytes;
    if (call->op == COLL_ALL_GATHER && call->src != coll_own_block(call, c->rank))
        coll_copy(team, coll_own_block(call, c->rank), call->dim == 1 ? c->size * row : row,
                  call->src, row, call->rows, row);
    if (call->op == COLL_BROADCAST && c->rank == call->root && call->src != call->dst)
        coll_copy(team, call->dst, row, call->src, row, call->rows, row);
    buffer_give(f->kept);
    buffer_give(f->packed);
    f->step = FLIGHT_DONE;
    if (call != &flight_barrier)
        f->comm->group->open[f->number % COLL_IN_FLIGHT].span.complete = now_s();
}

/* Called when all messages of this step are complete: sums, then begins the next step, the next
 * chunk, or ends the flight. */
static void end_step(Flight *f, Team *team) {
    if (f->step == FLIGHT_SPREAD_NEAR) {
        sum_near(f, team);
        begin_step(f, FLIGHT_SPREAD, team);
        return;
    }
    if (f->step == FLIGHT_SPREAD) {
        sum_own(f, team);
        if (f->call->op == COLL_ALL_REDUCE && !f->whole) {
            begin_step(f, FLIGHT_COLLECT, team);
            return;
        }
    } else if (f->step == FLIGHT_COLLECT && f->near > 1) {
        begin_step(f, FLIGHT_COLLECT_NEAR, team);
        return;
    }
    if (f->call->op == COLL_ALL_GATHER && f->packed) unpack(f, team);
    f->first += f->chunk;
    if (f->first < f->lines)
        begin_chunk(f, team);
    else
        finish(f, team);
}

/* Dies with the error of the first failed one among n requests that MPI_Testsome has completed. */
static _Noreturn void fail(const Flight *f, int n) {
    const MpiComm *m = f->comm;
    int error = MPI_SUCCESS, kind, length;
    char text[MPI_MAX_ERROR_STRING];
    for (int i = 0; i < n && error == MPI_SUCCESS; i++) error = m->status[i].MPI_ERROR;
    MPI_Error_string(error, text, &length);
    MPI_Error_class(error, &kind);
    die("%s \"%s\" along %s: %s", coll_op_name(f->call->op), f->call->what, m->group->label,
        kind == MPI_ERR_TRUNCATE ? "a rank calls it with another size" : text);
}

void flight_advance(Flight *f, Team *team) {
    MpiComm *m = f->comm;
    int n;
    if (MPI_Testsome(f->n_moves, f->request, &n, m->done, m->status) != MPI_SUCCESS) fail(f, n);
    if (n == MPI_UNDEFINED) {
        end_step(f, team);
        return;
    }
    flight_messages += (uint64_t)n;
    for (int i = 0; i < n; i++) {
        const FlightMove *move = &f->move[m->done[i]];
        if (move->receive) f->arrived[move->peer] = true;
    }
}

const char *flight_missing(const Flight *f, char *text, size_t n_text) {
    const Comm *c = f->comm->group;
    size_t n = 0;
    text[0] = 0;
    for (int arrived = 0; arrived < 2 && n == 0; arrived++)
        for (int j = 0; j < c->size; j++) {
            bool open = false;
            for (int i = 0; i < f->n_moves; i++)
                open |= f->move[i].peer == j && f->request[i] != MPI_REQUEST_NULL;
            if (!open || f->arrived[j] != arrived || n >= n_text) continue;
            n += (size_t)snprintf(text + n, n_text - n, "%srank %d%s", n ? ", " : "", c->member[j],
                                  arrived ? " (has begun, not finished)" : "");
        }
    return text;
}
