#include "parallel/coll_mpi_flight.h"

#include <string.h>

#include "base/debug.h"
#include "base/die.h"
#include "base/mem.h"
#include "parallel/coll_mpi_job.h"

enum {
    KEPT_BYTES = 16 << 20,            // for the sums of one call, and for its packed blocks
    MESSAGE_BYTES = 1 << 30,          // of the others
    TAGS_PER_CALL = N_COLL_STEPS + 1, // one for each step
    TAGS = 2048, // calls until tags come again; twice that, times five: MPI has 32767
    KEEPS = 64,
};

/* Where ways meet, from measurements (loopback, and TCP of 200 Mbit/s and 1 Gbit/s between 2, 4 and 8 hosts). By nodes: a
 * whole of 8 KiB and more; less goes directly, in fewer steps. All ranks sum all of it, in one step: up to 16 KiB while
 * that sends no more than 1 KiB beyond what a rank would send in two, (p - 1) n instead of 2 (p - 1) n / p.
 * Recursive halving and doubling are no ways here. With two ranks they are the exchanges that these are; with four they took
 * what direct ones take (16 KiB: 205 us both), with eight hosts on two cores, where messages cost more than bytes, 80 % of
 * it (64 KiB: 991 us of 1236). But they sum in another order, and that holds for every size. */
static const int64_t nodes_from = 8 << 10, whole_to = 16 << 10, whole_beyond = 1 << 10;

const CollCall flight_barrier = {.op = COLL_ALL_GATHER};
struct FlightCount flight_count;

static struct {
    char *at;
    size_t bytes;
    bool taken;
} keep[KEEPS];

/* ---- parts */

/* lines x width elements, one line `stride` elements after the other. */
typedef struct Part {
    char *at;
    int64_t lines, width, stride;
} Part;

static bool is_packed(const Part *p) {
    return p->stride != p->width;
}

/* The piece of n lines of a part that is under way; a flat part is lines of one element. */
static Part piece_of(const Flight *f, const void *at, int64_t n, int64_t width, int64_t stride) {
    int64_t from = mpi_job_least(f->from, n);
    return (Part){.at = (char *)at + from * stride * coll_type_bytes(f->call->type),
                  .lines = mpi_job_least(f->piece, n - from),
                  .width = width,
                  .stride = stride};
}

/* Part j of src or dst. */
static Part part(const Flight *f, const void *buffer, int j) {
    const CollCall *call = f->call;
    int64_t size = f->home->group->size, n = coll_elements(call), begin = 0, end = n;
    int64_t bytes = coll_type_bytes(call->type);
    if (coll_has_blocks(call->op) && call->dim == 1)
        return piece_of(f, (const char *)buffer + j * call->cols * bytes, call->rows, call->cols,
                        size * call->cols);
    if (coll_has_blocks(call->op)) begin = j * coll_block_stride(call), end = begin + n;
    if (call->op == COLL_ALL_REDUCE && !f->way.whole) {
        begin = coll_part(n, (int)size, j);
        end = coll_part(n, (int)size, j + 1);
    }
    return piece_of(f, (const char *)buffer + begin * bytes, end - begin, 1, 1);
}

/* A block alone: what an all_gather sends, what a reduce_scatter leaves. */
static Part block(const Flight *f, const void *at, int64_t stride) {
    const CollCall *call = f->call;
    if (call->dim == 1) return piece_of(f, at, call->rows, call->cols, stride);
    return piece_of(f, at, coll_elements(call), 1, 1);
}

/* Room number i of some that hold a piece of any part each; here one of part j's shape. */
static Part room(const Flight *f, char *rooms, int i, int j) {
    Part p = part(f, f->call->op == COLL_ALL_GATHER ? f->call->dst : f->call->src, j);
    p.at = rooms + i * f->piece * p.width * coll_type_bytes(f->call->type);
    p.stride = p.width;
    return p;
}

/* Where a part that comes is put: what is to be summed into its slot, else to its place, or packed before that. */
static Part incoming(const Flight *f, const CollMove *m) {
    if (f->step <= SPREAD_FAR) return room(f, f->kept, m->slot, m->part);
    Part p = part(f, f->call->dst, m->part);
    return is_packed(&p) ? room(f, f->packed, m->part, m->part) : p;
}

/* Where a part that goes lies, not packed yet. */
static Part outgoing(const Flight *f, const CollMove *m) {
    const CollCall *call = f->call;
    const Comm *c = f->home->group;
    if (f->step == SPREAD_FAR && m->slot >= 0) return room(f, f->kept, m->slot, m->part);
    if (f->step <= SPREAD_FAR) return part(f, call->src, m->part);
    if (f->step == COLLECT_NEAR) {
        Part p = part(f, call->dst, m->part);
        return is_packed(&p) ? room(f, f->packed, m->part, m->part) : p; // as it came
    }
    if (call->op == COLL_ALL_GATHER)
        return block(f, call->src, coll_src_stride(call, c->rank, c->size));
    return part(f, call->op == COLL_ALL_REDUCE ? call->dst : call->src, m->part);
}

/* ---- messages */

static void copy_part(const Flight *f, Team *team, const Part *to, const Part *from) {
    int64_t bytes = coll_type_bytes(f->call->type);
    coll_copy(team, to->at, to->stride * bytes, from->at, from->stride * bytes, to->lines,
              to->width * bytes);
}

static int tag_of(const Flight *f) {
    return f->tag + f->step;
}

static void post_one(Flight *f, int i, const Part *p) {
    const MPI_Datatype types[] = {
        [COLL_F32] = MPI_FLOAT,   [COLL_F64] = MPI_DOUBLE, [COLL_I64] = MPI_INT64_T,
        [COLL_I32] = MPI_INT32_T, [COLL_U8] = MPI_UINT8_T, [COLL_BF16] = MPI_UINT16_T};
    MPI_Datatype type = types[f->call->type];
    MPI_Comm mpi = f->home->mpi;
    int n = (int)(p->lines * p->width), peer = f->move[i].peer, tag = tag_of(f);
    bool receive = f->move[i].receive;
    mpi_job_check(receive ? MPI_Irecv(p->at, n, type, peer, tag, mpi, &f->request[i])
                          : MPI_Isend(p->at, n, type, peer, tag, mpi, &f->request[i]),
                  receive ? "MPI_Irecv" : "MPI_Isend");
}

static void post(Flight *f, Team *team) {
    int last = -1; // part that was packed
    f->n_moves = coll_moves(&f->way, (CollStep)f->step, f->move);
    for (int i = 0; i < f->n_moves; i++) {
        const CollMove *m = &f->move[i];
        Part p = m->receive ? incoming(f, m) : outgoing(f, m);
        if (!m->receive && is_packed(&p)) {
            Part slot = room(f, f->packed, m->part, m->part);
            if (m->part != last) copy_part(f, team, &slot, &p);
            last = m->part, p = slot;
        }
        post_one(f, i, &p);
    }
}

/* What was received packed goes to its place. */
static void unpack(Flight *f, Team *team) {
    const Comm *c = f->home->group;
    for (int j = 0; j < c->size; j++) {
        if (j == c->rank) continue;
        Part to = part(f, f->call->dst, j), from = room(f, f->packed, j, j);
        copy_part(f, team, &to, &from);
    }
}

/* ---- signatures */

static void post_signatures(Flight *f) {
    MpiComm *m = f->home;
    const Comm *c = m->group;
    Signature *mine = &f->signed_by[c->rank];
    const int n = sizeof *mine;
    *mine = (Signature){.call = *f->call};
    snprintf(mine->what, sizeof mine->what, "%s", f->call->what);
    snprintf(mine->file, sizeof mine->file, "%s", f->call->file);
    f->n_moves = 0;
    for (int receive = 1; receive >= 0; receive--)
        for (int j = 0; j < c->size; j++) {
            int i = f->n_moves;
            if (j == c->rank) continue;
            f->move[f->n_moves++] = (CollMove){j, j, -1, receive};
            if (receive)
                MPI_Irecv(&f->signed_by[j], n, MPI_BYTE, j, tag_of(f), m->mpi, &f->request[i]);
            else
                MPI_Isend(mine, n, MPI_BYTE, j, tag_of(f), m->mpi, &f->request[i]);
        }
}

/* Do all ranks call the same? All compare alike; the first one that differs from rank 0 says so. */
static bool signatures_agree(Flight *f) {
    const Comm *c = f->home->group;
    Signature *first = f->signed_by;
    for (int j = 0; j < c->size; j++) {
        Signature *s = &f->signed_by[j];
        s->call.what = s->what, s->call.file = s->file; // pointers of another process until here
        if (coll_agree(&first->call, &s->call)) continue;
        if (j == c->rank) coll_mismatch(c, f->number, &s->call, 0, &first->call);
        return false; // that rank ends the job
    }
    return true;
}

/* ---- sums */

typedef struct Sum {
    const Flight *f;
    int n_terms, part;
    const CollTerm *term;
    Part own, to;
    char *slots;
} Sum;

/* Elements begin..end of a piece, n terms in the order of the tree. A chunk is summed on the stack, so that it stays in the
 * nearest cache, and that `to` may be a term. */
static void sum_elements(void *ctx, int64_t begin, int64_t end) {
    enum { CHUNK = 1024 };
    double sum[CHUNK], node[CHUNK]; // room for the widest type
    const Sum *s = ctx;
    CollType type = s->f->call->type;
    CollFold fold = s->f->call->fold;
    int64_t bytes = coll_type_bytes(type);
    int64_t run = is_packed(&s->own) ? s->own.width : INT64_MAX; // without a gap
    for (int64_t at = begin, n; at < end; at += n) {
        n = mpi_job_least(mpi_job_least(CHUNK, end - at), run - at % run);
        bool open = false; // is there a sum of a node that is not part of the whole one yet?
        for (int t = 0; t < s->n_terms; t++) {
            const CollTerm *term = &s->term[t];
            bool several = t + 1 < s->n_terms && !s->term[t + 1].opens;
            const char *from = s->own.at + (at / run * s->own.stride + at % run) * bytes;
            if (term->slot >= 0) from = room(s->f, s->f->kept, term->slot, s->part).at + at * bytes;
            if (term->opens && open) coll_fold(type, fold, sum, node, n);
            if (term->opens) open = t > 0 && several;
            if (t == 0 || (term->opens && open))
                memcpy(t ? node : sum, from, (size_t)(n * bytes));
            else
                coll_fold(type, fold, open ? node : sum, from, n);
        }
        if (open) coll_fold(type, fold, sum, node, n);
        memcpy(s->to.at + at * bytes, sum, (size_t)(n * bytes));
    }
}

/* The sums of a spread step. The owner's result is contiguous: a block alone, a slice, the whole buffer. */
static void sum_all(const Flight *f, Team *team) {
    enum { GRAIN = 1 << 16 };
    const CollCall *call = f->call;
    const MpiComm *m = f->home;
    int n = coll_sums(&f->way, (CollStep)f->step, m->part);
    for (int i = 0; i < n; i++) {
        int j = m->part[i];
        Sum s = {.f = f, .part = j, .term = m->term, .own = part(f, call->src, j)};
        s.n_terms = coll_terms(&f->way, (CollStep)f->step, i, m->term);
        if (f->step == SPREAD_NEAR)
            s.to = room(f, f->kept, i, j);
        else
            s.to =
                coll_has_blocks(call->op) ? block(f, call->dst, call->cols) : part(f, call->dst, j);
        if (team)
            team_for(team, s.own.lines * s.own.width, GRAIN, sum_elements, &s);
        else
            sum_elements(&s, 0, s.own.lines * s.own.width);
    }
}

/* ---- room */

/* The smallest free buffer that is large enough, else a new one in the place of the largest free one. After a step or two
 * every call finds one. */
static char *keep_take(size_t bytes) {
    int best = 0;
    for (int i = 1; i < KEEPS; i++) {
        size_t have = keep[i].bytes, other = keep[best].bytes;
        bool better = other < bytes ? have > other : have >= bytes && have < other;
        if (!keep[i].taken && (keep[best].taken || better)) best = i;
    }
    if (keep[best].taken) die("%d collectives keep something at the same time", KEEPS);
    keep[best].taken = true;
    if (keep[best].bytes < bytes) {
        mem_free(keep[best].at);
        keep[best].at = mem_alloc_aligned(bytes, 64);
        keep[best].bytes = bytes;
    }
    return keep[best].at;
}

static void keep_give(const char *at) {
    for (int i = 0; i < KEEPS; i++)
        if (at && keep[i].at == at) keep[i].taken = false;
}

void flights_end(void) {
    for (int i = 0; i < KEEPS; i++) mem_free(keep[i].at);
}

void flights_open(MpiComm *m) {
    size_t size = (size_t)m->group->size;
    int nested = coll_most_moves(&m->nodes, m->group->rank),
        direct = coll_most_moves(&m->alone, m->group->rank);
    m->most_moves = nested > direct ? nested : direct;
    size_t moves = (size_t)m->most_moves;
    m->slots = coll_most_slots(&m->nodes);
    m->done = mem_calloc(moves, sizeof *m->done);
    m->status = mem_calloc(moves, sizeof *m->status);
    m->part = mem_calloc(size, sizeof *m->part);
    m->term = mem_calloc(size, sizeof *m->term);
    for (int i = 0; i <= COLL_IN_FLIGHT; i++) {
        Flight *f = &m->flight[i];
        f->home = m;
        f->step = FLIGHT_LANDED;
        f->heard = mem_calloc(size, sizeof *f->heard);
        f->move = mem_calloc(moves, sizeof *f->move);
        f->request = mem_calloc(moves, sizeof(MPI_Request));
        if (BASE_DEBUG) f->signed_by = mem_calloc(size, sizeof *f->signed_by);
    }
}

void flights_close(MpiComm *m) {
    for (int i = 0; i <= COLL_IN_FLIGHT; i++) {
        mem_free(m->flight[i].heard);
        mem_free(m->flight[i].move);
        mem_free(m->flight[i].request);
        mem_free(m->flight[i].signed_by);
    }
    mem_free(m->done);
    mem_free(m->status);
    mem_free(m->part);
    mem_free(m->term);
}

/* ---- flights */

static void begin_step(Flight *f, CollStep step, Team *team) {
    f->step = (int)step;
    post(f, team);
}

static void begin_piece(Flight *f, Team *team) {
    begin_step(f, coll_step_from(&f->way, 0), team);
}

/* The way depends on the call and the group alone: all ranks take the same. */
static CollWay way_of(const MpiComm *m, const CollCall *call) {
    const Comm *c = m->group;
    int64_t bytes = coll_elements(call) * coll_type_bytes(call->type);
    if (coll_has_blocks(call->op)) bytes *= c->size;
    bool by_nodes = coll_nodes_nest(&m->nodes) && bytes >= nodes_from && call->op != COLL_SHIFT;
    bool little = bytes <= whole_to && bytes * (c->size - 2) <= whole_beyond;
    return (CollWay){.nodes = &m->nodes,
                     .hops = by_nodes ? &m->nodes : &m->alone,
                     .op = call->op,
                     .rank = c->rank,
                     .root = call->root,
                     .whole = call->op == COLL_ALL_REDUCE && !by_nodes && little};
}

/* How many lines there are, and how many of them go at once. */
static void take_room(Flight *f) {
    const CollCall *call = f->call;
    const MpiComm *m = f->home;
    int64_t n = coll_elements(call), bytes = coll_type_bytes(call->type), size = m->group->size;
    bool by_nodes = f->way.hops == &m->nodes, spreads = coll_spreads(call->op);
    bool lines_are_rows = coll_has_blocks(call->op) && call->dim == 1;
    int64_t line_bytes = lines_are_rows ? call->cols * bytes : bytes;
    f->lines = lines_are_rows ? call->rows : n;
    if (call->op == COLL_ALL_REDUCE && !f->way.whole) f->lines = (n + size - 1) / size;
    bool strided = lines_are_rows && f->lines > 0;
    int64_t slots = by_nodes ? m->slots : size - 1, most = slots < size ? size : slots;
    int64_t at_once = spreads || strided ? KEPT_BYTES / most : MESSAGE_BYTES;
    f->piece = line_bytes < at_once ? at_once / (line_bytes ? line_bytes : 1) : 1;
    f->piece = mpi_job_least(f->piece, f->lines);
    size_t piece_bytes = (size_t)(f->piece * line_bytes);
    bool sums = spreads && (call->op != COLL_REDUCE || by_nodes || f->way.rank == call->root);
    f->kept = sums && piece_bytes ? keep_take((size_t)slots * piece_bytes) : NULL;
    f->packed = strided && piece_bytes ? keep_take((size_t)size * piece_bytes) : NULL;
}

void flight_start(Flight *f, uint64_t number, const CollCall *call) {
    const Comm *c = f->home->group;
    bool barrier = call == &flight_barrier;
    f->call = call;
    f->number = number;
    f->tag = TAGS_PER_CALL * (int)(number % TAGS + (barrier ? TAGS : 0));
    f->from = 0;
    f->way = way_of(f->home, call);
    memset(f->heard, 0, (size_t)c->size * sizeof *f->heard);
    take_room(f);
    flight_count.flying++;
    if (!f->signed_by || barrier) {
        begin_piece(f, c->world->team);
    } else {
        f->step = FLIGHT_SIGNS;
        post_signatures(f);
    }
}

static void land(Flight *f, Team *team) {
    const CollCall *call = f->call;
    const Comm *c = f->home->group;
    int64_t bytes = coll_type_bytes(call->type), row = call->cols * bytes;
    if (call->op == COLL_ALL_GATHER && call->src != coll_own_block(call, c->rank))
        coll_copy(team, coll_own_block(call, c->rank), call->dim == 1 ? c->size * row : row,
                  call->src, row, call->rows, row);
    if (call->op == COLL_BROADCAST && c->rank == call->root && call->src != call->dst)
        coll_copy(team, call->dst, row, call->src, row, call->rows, row);
    keep_give(f->kept);
    keep_give(f->packed);
    f->step = FLIGHT_LANDED;
    if (call != &flight_barrier)
        f->home->group->open[f->number % COLL_IN_FLIGHT].complete = coll_now();
    flight_count.flying--;
}

/* All messages of this step are through. */
static void end_step(Flight *f, Team *team) {
    if (f->step == FLIGHT_SIGNS) {
        if (signatures_agree(f)) begin_piece(f, team);
        return;
    }
    if (f->step <= SPREAD_FAR) sum_all(f, team);
    CollStep next = coll_step_from(&f->way, f->step + 1);
    if (next < N_COLL_STEPS) {
        begin_step(f, next, team);
        return;
    }
    if (f->call->op == COLL_ALL_GATHER && f->packed) unpack(f, team);
    f->from += f->piece;
    if (f->from < f->lines)
        begin_piece(f, team);
    else
        land(f, team);
}

void flight_advance(Flight *f, Team *team) {
    MpiComm *m = f->home;
    int n;
    if (MPI_Testsome(f->n_moves, f->request, &n, m->done, m->status) != MPI_SUCCESS)
        die_at(f->call->file, f->call->line, "coll_start", 1,
               "%s \"%s\" along %s: a rank calls it with another size; a build with CONFIG=debug "
               "says which",
               coll_op_word(f->call->op), f->call->what, m->group->label);
    if (n == MPI_UNDEFINED) {
        end_step(f, team);
        return;
    }
    flight_count.messages += (uint64_t)n;
    for (int i = 0; i < n; i++) {
        const CollMove *move = &f->move[m->done[i]];
        if (move->receive) f->heard[move->peer] = true;
    }
}

const char *flight_missing(const Flight *f, char *text, size_t n_text) {
    const Comm *c = f->home->group;
    size_t n = 0;
    text[0] = 0;
    for (int heard = 0; heard < 2 && n == 0; heard++)
        for (int j = 0; j < c->size; j++) {
            bool open = false;
            for (int i = 0; i < f->n_moves; i++)
                open |= f->move[i].peer == j && f->request[i] != MPI_REQUEST_NULL;
            if (!open || f->heard[j] != heard || n >= n_text) continue;
            const char *before = n ? ", " : heard ? "nobody; not finished: " : "";
            n += (size_t)snprintf(text + n, n_text - n, "%srank %d", before, c->member[j]);
        }
    return text;
}
