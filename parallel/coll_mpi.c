/* coll_mpi -- ranks are processes that a launcher started; MPI_Isend and MPI_Irecv move the bytes.
 *
 * A call is one exchange or two, in each of which ranks send to each other directly. Part j is block j of
 * the whole (all_gather, reduce_scatter), slice j of the buffer (all_reduce), or all of it (the others):
 *
 *                       spread                                    collect
 *     all_gather        .                                         own part to all
 *     reduce_scatter    part j to rank j, which folds             .
 *     all_reduce        part j to rank j, which folds             own part to all
 *     reduce            all to the root, which folds              .
 *     broadcast         .                                         from the root to all
 *
 * What comes for a fold is kept until all of it is there, so that the order of arrival has no part in the
 * sum. Parts go in pieces: that bounds what is kept, and no message comes near MPI's 2^31 elements. Blocks
 * of dim 1 are packed: as MPI's own types for strided memory they took three to five times as long. Empty
 * parts are sent, too: who has sent nothing is whom the others wait for.
 *
 * Waiting is testing: MPI_Wait would hold a core, and for ever when a rank is stopped or a link is cut;
 * MPI's error handlers notice neither. So a wait spins for as long as a message between two running
 * ranks takes, then sleeps between tests, and looks at the World's limit.
 */
#include <mpi.h>
#include <sched.h>
#include <string.h>

#include "base/debug.h"
#include "base/die.h"
#include "base/mem.h"
#include "parallel/coll_backend.h"
#include "parallel/coll_mpi_job.h"

enum {
    KEPT_BYTES = 16 << 20,   // for the fold of one call, and for its packed blocks
    MESSAGE_BYTES = 1 << 30, // of the others
    VOLLEY = 16,             // tests between two naps
    TAGS_PER_CALL = 3,       // one for each step
    TAGS = 4096,             // calls until tags come again; twice that, times three: MPI has 32767
    KEEPS = 64,
};
static const double spin = 20e-6;     // seconds without a message before the first nap
static const double term_grace = 0.3; // seconds; after a SIGTERM shorter waits are not worth a line
static const double longest_nap = 1;  // seconds; when it was longer, this rank itself was stopped

typedef enum { STEP_DONE, STEP_SIGN, STEP_SPREAD, STEP_COLLECT } Step;

/* What a rank is about to call, shown to the others before anything is sent. Debug builds only. */
typedef struct Signature {
    CollCall call;
    char what[64], file[64];
} Signature;

typedef struct Flight {
    struct MpiComm *home;
    const CollCall *call;
    Step step;
    uint64_t number;
    int tag;
    int64_t lines, piece, from; // of the largest part; of one piece; before this piece
    char *kept;                 // [size - 1, piece, width] for the fold
    char *packed;               // [size, piece, width] of dim 1
    Signature *signed_by;       // [size]; NULL in builds that do not check
    bool *heard;                // [size] has this rank sent anything?
    MPI_Request *request;       // [2 size] from each, to each
} Flight;

typedef struct MpiComm {
    MPI_Comm mpi;
    Comm *group;
    struct MpiComm *next;
    uint64_t barriers;
    int *done;                         // [2 size] of MPI_Testsome
    MPI_Status *status;                // [2 size] so are these, and not looked at
    Flight flight[COLL_IN_FLIGHT + 1]; // the last one is the barrier's
} MpiComm;

/* The call of a barrier: of no elements, but all send to all. */
static const CollCall nothing = {.op = COLL_ALL_GATHER};

/* MPI has one state per process, and so has this file. */
static struct {
    MpiComm *comms;
    int n_flying;
    uint64_t n_messages; // that have come or gone
    double revived;      // when this process found that it had been stopped
    struct {
        char *at;
        size_t bytes;
        bool taken;
    } keep[KEEPS];
} job;

static void check_mpi(int rc, const char *function) {
    if (rc == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    MPI_Error_string(rc, text, &n);
    die("%s: %s", function, text);
}

/* ---- parts */

/* lines x width elements, one line `stride` elements after the other. */
typedef struct Part {
    char *at;
    int64_t lines, width, stride;
} Part;

static bool spreads(CollOp op) {
    return op == COLL_REDUCE_SCATTER || op == COLL_ALL_REDUCE || op == COLL_REDUCE;
}
static bool collects(CollOp op) {
    return op == COLL_ALL_GATHER || op == COLL_ALL_REDUCE || op == COLL_BROADCAST;
}
static bool has_blocks(CollOp op) {
    return op == COLL_ALL_GATHER || op == COLL_REDUCE_SCATTER;
}

static int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* The piece of n lines of a part that is under way; a flat part is lines of one element. */
static Part piece_of(const Flight *f, const void *at, int64_t n, int64_t width, int64_t stride) {
    int64_t from = min_i64(f->from, n);
    return (Part){.at = (char *)at + from * stride * coll_type_bytes(f->call->type),
                  .lines = min_i64(f->piece, n - from),
                  .width = width,
                  .stride = stride};
}

/* Part j of src or dst. */
static Part part(const Flight *f, const void *buffer, int j) {
    const CollCall *call = f->call;
    int64_t size = f->home->group->size, n = coll_elements(call), begin = 0, end = n;
    int64_t bytes = coll_type_bytes(call->type);
    if (has_blocks(call->op) && call->dim == 1)
        return piece_of(f, (const char *)buffer + j * call->cols * bytes, call->rows, call->cols,
                        size * call->cols);
    if (has_blocks(call->op)) begin = j * n, end = begin + n;
    if (call->op == COLL_ALL_REDUCE) {
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

/* Where rank j's part is kept for the fold; all come for this rank's own part, and have its shape. */
static Part kept(const Flight *f, int j) {
    int rank = f->home->group->rank;
    Part p = part(f, f->call->src, rank);
    int64_t bytes = f->piece * p.width * coll_type_bytes(f->call->type);
    p.at = f->kept + (j < rank ? j : j - 1) * bytes;
    p.stride = p.width;
    return p;
}

/* Does something come from rank j in this step, and where to? */
static bool incoming(const Flight *f, int j, Part *p) {
    const CollCall *call = f->call;
    if (f->step == STEP_SPREAD) {
        if (call->op == COLL_REDUCE && f->home->group->rank != call->root) return false;
        *p = kept(f, j);
    } else {
        if (call->op == COLL_BROADCAST && j != call->root) return false;
        *p = part(f, call->dst, j);
    }
    return true;
}

static bool outgoing(const Flight *f, int j, Part *p) {
    const CollCall *call = f->call;
    const Comm *c = f->home->group;
    if (f->step == STEP_SPREAD) {
        if (call->op == COLL_REDUCE && j != call->root) return false;
        *p = part(f, call->src, j);
    } else {
        if (call->op == COLL_BROADCAST && c->rank != call->root) return false;
        if (call->op == COLL_ALL_GATHER)
            *p = block(f, call->src, coll_src_stride(call, c->rank, c->size));
        else
            *p = part(f, call->op == COLL_BROADCAST ? call->src : call->dst, c->rank);
    }
    return true;
}

/* ---- messages */

static int tag_of(const Flight *f) {
    return f->tag + (int)f->step - STEP_SIGN;
}

/* Where a part that is not contiguous is packed: one room for each rank. */
static Part packed(const Flight *f, int j, const Part *p) {
    Part slot = *p;
    slot.at = f->packed + j * f->piece * p->width * coll_type_bytes(f->call->type);
    slot.stride = p->width;
    return slot;
}

static void copy_part(const Flight *f, Team *team, const Part *to, const Part *from) {
    int64_t bytes = coll_type_bytes(f->call->type);
    coll_copy(team, to->at, to->stride * bytes, from->at, from->stride * bytes, to->lines,
              to->width * bytes);
}

static void post_one(Flight *f, int j, const Part *p, bool receive) {
    const MPI_Datatype types[] = {[COLL_F32] = MPI_FLOAT,
                                  [COLL_F64] = MPI_DOUBLE,
                                  [COLL_I64] = MPI_INT64_T,
                                  [COLL_I32] = MPI_INT32_T,
                                  [COLL_U8] = MPI_UINT8_T};
    MpiComm *m = f->home;
    MPI_Datatype type = types[f->call->type];
    int n = (int)(p->lines * p->width);
    check_mpi(
        receive ? MPI_Irecv(p->at, n, type, j, tag_of(f), m->mpi, &f->request[j])
                : MPI_Isend(p->at, n, type, j, tag_of(f), m->mpi, &f->request[m->group->size + j]),
        receive ? "MPI_Irecv" : "MPI_Isend");
}

/* Receives first; then each rank begins with another one, so that none is everybody's first. */
static void post(Flight *f, Team *team) {
    const Comm *c = f->home->group;
    Part p, slot;
    for (int k = 1; k < c->size; k++) {
        int j = (c->rank - k + c->size) % c->size;
        if (!incoming(f, j, &p)) continue;
        if (p.stride != p.width) p = packed(f, j, &p);
        post_one(f, j, &p, true);
    }
    for (int k = 1; k < c->size; k++) {
        int j = (c->rank + k) % c->size;
        if (!outgoing(f, j, &p)) continue;
        if (p.stride != p.width) {
            bool same = f->step == STEP_COLLECT; // all are sent this rank's part
            slot = packed(f, same ? c->rank : j, &p);
            if (!same || k == 1) copy_part(f, team, &slot, &p);
            p = slot;
        }
        post_one(f, j, &p, false);
    }
}

/* What was received packed goes to its place. */
static void unpack(Flight *f, Team *team) {
    const Comm *c = f->home->group;
    Part p;
    for (int j = 0; j < c->size; j++) {
        if (j == c->rank || !incoming(f, j, &p) || p.stride == p.width) continue;
        Part slot = packed(f, j, &p);
        copy_part(f, team, &p, &slot);
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
    for (int j = 0; j < c->size; j++) {
        if (j == c->rank) continue;
        MPI_Irecv(&f->signed_by[j], n, MPI_BYTE, j, tag_of(f), m->mpi, &f->request[j]);
        MPI_Isend(mine, n, MPI_BYTE, j, tag_of(f), m->mpi, &f->request[c->size + j]);
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

/* ---- the fold */

typedef struct Sum {
    const Flight *f;
    Part own, to;
} Sum;

/* Elements begin..end of this rank's piece: all ranks' in their order. A chunk is summed on the stack, so
 * that it stays in the nearest cache, and that `to` may be `own`. */
static void fold_elements(void *ctx, int64_t begin, int64_t end) {
    enum { CHUNK = 2048 };
    double chunk[CHUNK]; // room for the widest type
    const Sum *s = ctx;
    const CollCall *call = s->f->call;
    const Comm *c = s->f->home->group;
    int64_t bytes = coll_type_bytes(call->type);
    int64_t run = s->own.stride == s->own.width ? INT64_MAX : s->own.width; // without a gap
    for (int64_t at = begin, n; at < end; at += n) {
        n = min_i64(min_i64(CHUNK, end - at), run - at % run);
        const char *own = s->own.at + (at / run * s->own.stride + at % run) * bytes;
        for (int r = 0; r < c->size; r++) {
            const char *from = r == c->rank ? own : kept(s->f, r).at + at * bytes;
            if (r == 0)
                memcpy(chunk, from, (size_t)(n * bytes));
            else
                coll_fold(call->type, call->fold, chunk, from, n);
        }
        memcpy(s->to.at + at * bytes, chunk, (size_t)(n * bytes));
    }
}

/* dst of every fold is contiguous: a block alone, a slice, the whole buffer. */
static void fold(const Flight *f, Team *team) {
    enum { GRAIN = 1 << 16 };
    const CollCall *call = f->call;
    const Comm *c = f->home->group;
    if (call->op == COLL_REDUCE && c->rank != call->root) return;
    Sum s = {.f = f, .own = part(f, call->src, c->rank)};
    s.to = has_blocks(call->op) ? block(f, call->dst, call->cols) : part(f, call->dst, c->rank);
    if (team)
        team_for(team, s.own.lines * s.own.width, GRAIN, fold_elements, &s);
    else
        fold_elements(&s, 0, s.own.lines * s.own.width);
}

/* ---- flights */

/* What is kept for a fold: the smallest free buffer that is large enough, else a new one in the place of
 * the largest free one. After a step or two every call finds one. */
static char *keep_take(size_t bytes) {
    int best = 0;
    for (int i = 1; i < KEEPS; i++) {
        size_t have = job.keep[i].bytes, other = job.keep[best].bytes;
        bool better = other < bytes ? have > other : have >= bytes && have < other;
        if (!job.keep[i].taken && (job.keep[best].taken || better)) best = i;
    }
    if (job.keep[best].taken) die("%d collectives keep something at the same time", KEEPS);
    job.keep[best].taken = true;
    if (job.keep[best].bytes < bytes) {
        mem_free(job.keep[best].at);
        job.keep[best].at = mem_alloc_aligned(bytes, 64);
        job.keep[best].bytes = bytes;
    }
    return job.keep[best].at;
}

static void keep_give(const char *at) {
    for (int i = 0; i < KEEPS; i++)
        if (at && job.keep[i].at == at) job.keep[i].taken = false;
}

static void first_exchange(Flight *f, Team *team) {
    f->step = spreads(f->call->op) ? STEP_SPREAD : STEP_COLLECT;
    post(f, team);
}

static void take_off(Flight *f, uint64_t number, const CollCall *call) {
    const Comm *c = f->home->group;
    bool barrier = call == &nothing;
    f->call = call;
    f->number = number;
    f->tag = TAGS_PER_CALL * (int)(number % TAGS + (barrier ? TAGS : 0));
    f->from = 0;
    memset(f->heard, 0, (size_t)c->size * sizeof *f->heard);
    int64_t n = coll_elements(call), bytes = coll_type_bytes(call->type);
    bool lines_are_rows = has_blocks(call->op) && call->dim == 1;
    int64_t line_bytes = lines_are_rows ? call->cols * bytes : bytes;
    f->lines = lines_are_rows ? call->rows : n;
    if (call->op == COLL_ALL_REDUCE) f->lines = (n + c->size - 1) / c->size;
    bool strided = lines_are_rows && f->lines > 0;
    int64_t room = spreads(call->op) || strided ? KEPT_BYTES / c->size : MESSAGE_BYTES;
    f->piece = line_bytes < room ? room / (line_bytes ? line_bytes : 1) : 1;
    f->piece = min_i64(f->piece, f->lines);
    size_t piece_bytes = (size_t)(f->piece * line_bytes), size = (size_t)c->size;
    bool folds = spreads(call->op) && (call->op != COLL_REDUCE || c->rank == call->root);
    f->kept = folds && piece_bytes ? keep_take((size - 1) * piece_bytes) : NULL;
    f->packed = strided && piece_bytes ? keep_take(size * piece_bytes) : NULL;
    job.n_flying++;
    if (!f->signed_by || barrier) {
        first_exchange(f, c->world->team);
    } else {
        f->step = STEP_SIGN;
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
    f->step = STEP_DONE;
    job.n_flying--;
}

/* Takes what has come; on to the next step when nothing is missing. */
static void advance(Flight *f, Team *team) {
    MpiComm *m = f->home;
    int size = m->group->size, n;
    if (MPI_Testsome(2 * size, f->request, &n, m->done, m->status) != MPI_SUCCESS)
        die_at(f->call->file, f->call->line, "coll_start", 1,
               "%s \"%s\" along %s: a rank calls it with another size; a build with CONFIG=debug "
               "says which",
               coll_op_word(f->call->op), f->call->what, m->group->label);
    if (n != MPI_UNDEFINED) {
        job.n_messages += (uint64_t)n;
        for (int i = 0; i < n; i++)
            if (m->done[i] < size) f->heard[m->done[i]] = true;
        return;
    }
    if (f->step == STEP_SIGN) {
        if (signatures_agree(f)) first_exchange(f, team);
        return;
    }
    bool spread = f->step == STEP_SPREAD;
    if (spread) fold(f, team);
    if (f->step == STEP_COLLECT && f->packed) unpack(f, team);
    if (spread && collects(f->call->op)) {
        f->step = STEP_COLLECT;
        post(f, team);
        return;
    }
    f->from += f->piece;
    if (f->from < f->lines)
        first_exchange(f, team);
    else
        land(f, team);
}

static void advance_all(Team *team) {
    if (job.n_flying == 0) return;
    for (MpiComm *m = job.comms; m; m = m->next)
        for (int i = 0; i <= COLL_IN_FLIGHT; i++)
            if (m->flight[i].step != STEP_DONE) advance(&m->flight[i], team);
}

/* ---- waiting */

/* Ranks that have sent nothing; when all have, those with whom something is still under way. */
static const char *missing(const Flight *f, char *text, size_t n_text) {
    const Comm *c = f->home->group;
    size_t n = 0;
    text[0] = 0;
    for (int heard = 0; heard < 2 && n == 0; heard++)
        for (int j = 0; j < c->size; j++) {
            bool open =
                f->request[j] != MPI_REQUEST_NULL || f->request[c->size + j] != MPI_REQUEST_NULL;
            if (!open || f->heard[j] != heard || n >= n_text) continue;
            const char *before = n ? ", " : heard ? "nobody; not finished: " : "";
            n += (size_t)snprintf(text + n, n_text - n, "%srank %d", before, c->member[j]);
        }
    return text;
}

/* For messages; NULL: a barrier. */
static const CollCall *named(const Flight *f) {
    return f->call == &nothing ? NULL : f->call;
}

/* A launcher has sent SIGTERM because a rank is gone. One that died by itself has said why, and one that
 * was stopped is whom the others waited for. */
static void terminated(const Flight *f, double waited) {
    char text[256];
    if (coll_now() - job.revived > 5 && !mpi_job_is_dying())
        coll_say_waiting(f->home->group, named(f), waited, missing(f, text, sizeof text));
    mpi_job_deliver();
}

/* Spins while messages come, then sleeps between volleys of tests: one test moves MPI on by a step only,
 * and a large message takes many. */
static void fly(Flight *f) {
    const Comm *c = f->home->group;
    const World *w = c->world;
    double begin = coll_now(), last = begin, moved = begin;
    for (int tests = 1;; tests++) {
        uint64_t before = job.n_messages;
        advance_all(w->team);
        if (f->step == STEP_DONE) break;
        double now = coll_now();
        if (now - last > longest_nap) begin += now - last, job.revived = now;
        last = now;
        double waited = now - begin;
        if (job.n_messages != before) moved = now;
        if (now - moved < spin || tests % VOLLEY) {
            sched_yield();
            continue;
        }
        if (mpi_job_nap(now - moved) && waited > term_grace) terminated(f, waited);
        char text[256];
        if (w->limit > 0 && waited > w->limit)
            coll_expire(c, named(f), waited, missing(f, text, sizeof text));
    }
    mpi_job_deliver();
}

/* ---- the backend */

static void mpi_open(Comm *c, int color, int key) {
    MpiComm *m = mem_calloc(1, sizeof *m);
    m->group = c;
    bool starting = c == c->world->all; // the whole start is watched
    if (!starting) mpi_job_watch("MPI_Comm_split has not returned", c->world->limit);
    check_mpi(MPI_Comm_split(MPI_COMM_WORLD, color, key, &m->mpi), "MPI_Comm_split");
    if (!starting) mpi_job_watched();
    MPI_Comm_set_errhandler(m->mpi, MPI_ERRORS_RETURN);
    size_t size = (size_t)c->size;
    m->done = mem_calloc(2 * size, sizeof *m->done);
    m->status = mem_calloc(2 * size, sizeof *m->status);
    for (int i = 0; i <= COLL_IN_FLIGHT; i++) {
        Flight *f = &m->flight[i];
        f->home = m;
        f->heard = mem_calloc(size, sizeof *f->heard);
        f->request = mem_calloc(2 * size, sizeof *f->request);
        if (BASE_DEBUG) f->signed_by = mem_calloc(size, sizeof *f->signed_by);
        for (size_t j = 0; j < 2 * size; j++) f->request[j] = MPI_REQUEST_NULL;
    }
    m->next = job.comms;
    job.comms = m;
    c->impl = m;
}

static void mpi_start(Comm *c, uint64_t number, const CollCall *call) {
    take_off(&((MpiComm *)c->impl)->flight[number % COLL_IN_FLIGHT], number, call);
}

static void mpi_wait(Comm *c, uint64_t number, const CollCall *call) {
    (void)call;
    fly(&((MpiComm *)c->impl)->flight[number % COLL_IN_FLIGHT]);
}

/* Inside a computation the team is busy. */
static void mpi_progress(World *w) {
    (void)w;
    advance_all(NULL);
}

static void mpi_barrier(Comm *c) {
    MpiComm *m = c->impl;
    take_off(&m->flight[COLL_IN_FLIGHT], m->barriers++, &nothing);
    fly(&m->flight[COLL_IN_FLIGHT]);
}

static void mpi_close(Comm *c) {
    MpiComm *m = c->impl, **at = &job.comms;
    if (c == c->world->all)
        mpi_barrier(c); // MPI_Finalize waits for all as well, but knows no limit
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    MPI_Comm_free(&m->mpi);
    for (int i = 0; i <= COLL_IN_FLIGHT; i++) {
        mem_free(m->flight[i].heard);
        mem_free(m->flight[i].request);
        mem_free(m->flight[i].signed_by);
    }
    mem_free(m->done);
    mem_free(m->status);
    mem_free(m);
}

static void mpi_leave(World *w) {
    (void)w;
    for (int i = 0; i < KEEPS; i++) mem_free(job.keep[i].at);
    mpi_job_end();
}

static const CollBackend coll_mpi = {.name = "mpi",
                                     .open = mpi_open,
                                     .close = mpi_close,
                                     .start = mpi_start,
                                     .wait = mpi_wait,
                                     .progress = mpi_progress,
                                     .barrier = mpi_barrier,
                                     .leave = mpi_leave};

World *world_mpi_open(int rank, double limit) {
    int size;
    mpi_job_begin(&rank, &size, limit);
    World *w = world_create(&coll_mpi, rank, size, mpi_job_threads(), NULL);
    mpi_job_watched();
    die_set_rank(rank, w->node);
    return w;
}
