#include "parallel/comm/coll.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/die.h"
#include "base/mem.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/comm/coll_record.h"
#include "parallel/comm/devices.h"

static const char *const names[N_COLL_OPS] = {"all_gather", "reduce_scatter", "all_reduce",
                                              "broadcast",  "reduce",         "shift"};

const char *coll_op_name(CollOp op) {
    return names[op];
}

/* ---- worlds and groups */

static Comm *comm_new(World *w, const char *label, int size) {
    Comm *c = mem_calloc(1, sizeof *c);
    c->world = w;
    snprintf(c->label, sizeof c->label, "%s", label);
    c->size = size;
    c->member = mem_calloc((size_t)size, sizeof *c->member);
    c->backend = size == 1 ? &coll_self : w->backend;
    if (w->last) w->last->next = c;
    return w->last = c;
}

World *world_create(const CollBackend *b, int rank, int size, void *impl) {
    World *w = mem_calloc(1, sizeof *w);
    *w = (World){.backend = b, .rank = rank, .size = size, .impl = impl};
    if (gethostname(w->node, sizeof w->node)) snprintf(w->node, sizeof w->node, "unknown");
    w->all = comm_new(w, "all", size);
    w->all->rank = rank;
    for (int i = 0; i < size; i++) w->all->member[i] = i;
    if (b->open) b->open(w->all);
    return w;
}

void world_set_device(World *w, const CollBackend *b, void *impl) {
    w->device = b, w->device_impl = impl;
}

bool world_share_memory(World *w, Err *e) {
    return world_shares_memory(w) || w->device->share(w, e);
}

void world_release_devices(World *w) {
    if (!w->device) return;
    for (Comm *c = w->all; c; c = c->next)
        if (c->device) w->device->close(c);
    w->device->close_world(w);
    world_set_device(w, NULL, NULL);
}

const ArenaMemory *world_memory(const World *w, const ArenaMemory *memory) {
    return w && w->device && w->device->memory ? w->device->memory(w, memory) : memory;
}

void world_register(World *w, const Arena *a) {
    if (!w || !w->device || !w->device->register_memory) return;
    uint64_t mine[2] = {a->walk, a->cap}, first[2] = {a->walk, a->cap};
    Group g = comm_group(w->all);
    group_broadcast(&g, first, sizeof first);
    if (group_all(&g, memcmp(mine, first, sizeof mine) == 0))
        w->device->register_memory(w, a->base, a->cap);
}

void world_unregister(World *w, const Arena *a) {
    if (w && w->device && w->device->deregister_memory && a->base)
        w->device->deregister_memory(w, a->base);
}

static void close_comm(Comm *c) {
    const World *w = c->world;
    if (c->device) w->device->close(c);
    if (w->backend->close) w->backend->close(c);
    mem_free(c->member);
    mem_free(c);
}

void world_free(World *w) {
    world_release_devices(w);
    for (Comm *c = w->all, *next; c; c = next) {
        next = c->next;
        close_comm(c);
    }
    if (w->backend->close_world) w->backend->close_world(w);
    mem_free(w->rows);
    mem_free(w);
}

typedef struct SplitKey {
    int color, key;
} SplitKey;

/* Writes the ranks with this color to member, ordered by (key, rank). Returns how many. */
static int split_members(const SplitKey *all_keys, int n, int color, int *member) {
    int size = 0;
    for (int r = 0; r < n; r++) {
        if (all_keys[r].color != color) continue;
        int at = size++;
        for (; at > 0 && all_keys[member[at - 1]].key > all_keys[r].key; at--)
            member[at] = member[at - 1];
        member[at] = r;
    }
    return size;
}

Comm *world_split(World *w, int color, int key, const char *label) {
    SplitKey mine = {color, key}, *all_keys = mem_calloc((size_t)w->size, sizeof *all_keys);
    int *member = mem_calloc((size_t)w->size, sizeof *member);
    Group all = comm_group(w->all);
    group_all_gather(&all, &mine, sizeof mine, all_keys);
    Comm *c = comm_new(w, label, split_members(all_keys, w->size, color, member));
    memcpy(c->member, member, (size_t)c->size * sizeof *member);
    while (c->member[c->rank] != w->rank) c->rank++;
    if (w->backend->open) w->backend->open(c);
    mem_free(member);
    mem_free(all_keys);
    return c;
}

void comm_free(Comm *c) {
    World *w = c->world;
    Comm *before = w->all;
    while (before->next != c) before = before->next;
    before->next = c->next;
    if (w->last == c) w->last = before;
    for (int i = 0; i < w->n_rows; i++)
        if (w->rows[i].comm == c) w->rows[i] = (CountRow){0};
    close_comm(c);
}

int world_rank(const World *w) {
    return w->rank;
}
int world_size(const World *w) {
    return w->size;
}
const char *world_backend(const World *w) {
    return w->backend->name;
}
const char *world_node(const World *w) {
    return w->node;
}
Comm *world_comm(World *w) {
    return w->all;
}
int comm_rank(const Comm *c) {
    return c->rank;
}
int comm_size(const Comm *c) {
    return c->size;
}
const char *comm_label(const Comm *c) {
    return c->label;
}
static void poll(void *ctx) {
    coll_progress(ctx);
}

void world_set_team(World *w, Team *team) {
    w->team = team;
    if (team && w->backend->polled) team_set_poll(team, &w->wanted, poll, w);
}
void world_set_limit(World *w, double seconds) {
    w->limit = seconds;
}
void world_set_phase(World *w, const char *phase) {
    snprintf(w->phase, sizeof w->phase, "%s", phase);
}

static void group_wait(void *ctx) {
    coll_barrier(ctx);
}

static void group_gather(void *ctx, const void *mine, size_t n_bytes, void *all) {
    coll_run(ctx, &(CollCall){.op = COLL_ALL_GATHER,
                              .type = COLL_U8,
                              .rows = 1,
                              .cols = (int64_t)n_bytes,
                              .src = mine,
                              .dst = all,
                              .what = COLL_AGREEMENT});
}

Group comm_group(Comm *c) {
    if (!c) return group_alone;
    return (Group){.rank = c->rank,
                   .size = c->size,
                   .ctx = c,
                   .barrier = group_wait,
                   .all_gather = group_gather};
}

/* ---- calls */

int64_t coll_bytes(const CollCall *call, int rank, int size) {
    int64_t n = coll_elements(call), bytes = coll_type_bytes(call->type);
    int64_t mine = coll_part(n, size, rank + 1) - coll_part(n, size, rank);
    switch (call->op) {
    case COLL_ALL_GATHER:
    case COLL_REDUCE_SCATTER:
        return (size - 1) * n * bytes;
    case COLL_ALL_REDUCE:
        return ((size - 1) * mine + (n - mine)) * bytes; // reduce_scatter, then all_gather
    case COLL_BROADCAST:
        return rank == call->root ? 0 : n * bytes;
    case COLL_REDUCE:
        return rank == call->root ? (size - 1) * n * bytes : 0;
    case COLL_SHIFT:
        return n * bytes;
    case N_COLL_OPS:
        break;
    }
    return 0;
}

void *coll_own_block(const CollCall *call, int rank) {
    int64_t at = rank * (call->dim == 0 ? coll_block_stride(call) : call->cols);
    return (char *)call->dst + at * coll_type_bytes(call->type);
}

int64_t coll_src_stride(const CollCall *call, int rank, int size) {
    bool in_place = call->src == coll_own_block(call, rank);
    return call->dim == 1 && in_place ? size * call->cols : call->cols;
}

/* The backend that serves a call: the device backend if src is device memory, else the host
 * backend. In a group of one rank nothing is moved on a device. */
static const CollBackend *server_of(const Comm *c, const CollCall *call) {
    const CollBackend *device = c->world->device;
    bool sent = device && c->size > 1 && coll_elements(call) > 0;
    return sent && device->is_device_memory(call->src) ? device : c->backend;
}

/* Dies if the arguments of a call are wrong, or its entry of c->open is still in use. */
static void check_call(const Comm *c, const CollCall *call) {
    bool rooted = call->op == COLL_BROADCAST || call->op == COLL_REDUCE;
    bool shift = call->op == COLL_SHIFT;
    bool read_only = call->by_blocks && call->op == COLL_ALL_GATHER;
    bool needs_dst = !read_only && (call->op != COLL_REDUCE || c->rank == call->root);
    bool whole_blocks = coll_has_blocks(call->op) && call->dim == 0 && !call->stride;
    bool has_root = !(rooted || shift) || (call->root >= shift && call->root < c->size);
    bool in_memory = call->src && (!needs_dst || call->dst) && !(shift && call->src == call->dst);
    const char *wrong =
        (unsigned)call->op >= N_COLL_OPS                                         ? "op"
        : (unsigned)call->type > COLL_BF16                                       ? "type"
        : call->dim != 0 && call->dim != 1                                       ? "dim"
        : call->rows < 0 || call->cols < 0                                       ? "rows or cols"
        : !has_root                                                              ? "root"
        : call->stride && (call->dim != 0 || call->stride < coll_elements(call)) ? "stride"
        : call->by_blocks && !(whole_blocks && c->size > 1 && server_of(c, call)->block)
            ? "by_blocks"
        : coll_elements(call) > 0 && !in_memory ? "src or dst"
        : !call->what                           ? "what"
                                                : NULL;
    if (wrong)
        die("collective \"%s\" along %s: wrong %s", call->what ? call->what : "", c->label, wrong);
    if (c->open[(c->started + 1) % COLL_IN_FLIGHT].number)
        die("collective \"%s\" along %s: the one %d before it is still in flight", call->what,
            c->label, COLL_IN_FLIGHT);
}

/* Finds or adds the counters' row of (what, op, group). */
static int count_row(World *w, const Comm *c, const CollCall *call) {
    int row = w->n_rows; // a new row, or that of a freed group
    for (int i = w->n_rows - 1; i >= 0; i--) {
        const CountRow *r = &w->rows[i];
        if (r->comm == c && r->count.op == call->op && strcmp(r->count.what, call->what) == 0)
            return i;
        if (!r->comm) row = i;
    }
    if (row == w->n_rows) {
        mem_grow(w->rows, w->n_rows, w->max_rows);
        w->n_rows++;
    }
    w->rows[row] =
        (CountRow){.comm = c, .count = {.what = call->what, .op = call->op, .size = c->size}};
    memcpy(w->rows[row].count.label, c->label, sizeof c->label);
    return row;
}

/* Is the call timed by the clock of the rank's device, because it runs in one of the device's
 * streams? */
static bool is_marked(const World *w, const OpenCall *x) {
    return w->clock && x->backend == w->device;
}

/* The current moment: a mark in the device's stream for a call on a device, else `now` of the
 * host. */
static Moment moment(const World *w, const OpenCall *x, double now) {
    return is_marked(w, x) ? w->clock->mark() : now;
}

/* Reports a finished call to the function of world_set_watch. */
static void tell_watcher(const World *w, OpenCall *x) {
    CollSpan *s = &x->span;
    if (s->complete == 0) s->complete = s->end;
    // the device's kernels do not wait for a collective on host memory: its exposed time is 0
    if (w->clock && !is_marked(w, x)) s->started = s->begin, s->wait = s->end;
    w->watch(w->watch_ctx, s);
}

/* Bracket every call of the backend. The backend may use the team, whose polls must not enter the
 * backend again: `wanted` is 0 meanwhile. */
static void enter(World *w) {
    w->wanted = 0;
}
static void leave(World *w) {
    w->wanted = w->n_open;
}

/* Adds the call to its counters' row, or to the recording in progress. */
static void count_call(const Comm *c, const OpenCall *x) {
    World *w = c->world;
    if (w->recording) {
        recording_add(w, c, &x->call, x->backend == w->device, x->row);
        return;
    }
    w->rows[x->row].count.calls++;
    w->rows[x->row].count.bytes += x->span.bytes;
}

/* Waits for a call, adds the time to its counters' row and reports the call to the watcher. */
static void finish(Comm *c, OpenCall *x) {
    World *w = c->world;
    double wait = now_s();
    x->span.wait = moment(w, x, wait);
    enter(w);
    if (x->backend->wait) x->backend->wait(c, x->number, &x->call);
    w->n_open--;
    leave(w);
    double end = now_s();
    x->number = 0;
    w->rows[x->row].count.seconds += end - wait;
    if (!w->watch) return;
    x->span.end = moment(w, x, end);
    tell_watcher(w, x);
}

static OpenCall *entry_of(Ticket t) {
    return &t.comm->open[t.number % COLL_IN_FLIGHT];
}

Ticket coll_start(Comm *c, const CollCall *call) {
    check_call(c, call);
    World *w = c->world;
    double begin = now_s();
    const CollBackend *by = server_of(c, call);
    if (by == w->device && !c->device) by->open(c); // first call of the group
    Ticket t = {c, ++c->started};
    OpenCall *x = entry_of(t);
    *x = (OpenCall){.number = t.number, .call = *call, .row = count_row(w, c, call), .backend = by};
    x->span = (CollSpan){
        .call = &x->call, .comm = c, .bytes = coll_bytes(call, c->rank, c->size), .begin = begin};
    count_call(c, x);
    enter(w);
    by->start(c, t.number, &x->call);
    w->n_open++;
    leave(w);
    double started = now_s();
    if (x->span.started == 0) x->span.started = started;
    w->rows[x->row].count.seconds += started - begin;
    if (w->wait_at_start && !call->by_blocks) finish(c, x);
    return t;
}

void coll_wait(Ticket t) {
    if (t.number == 0) return;
    OpenCall *x = entry_of(t);
    if (t.comm->world->wait_at_start && x->number == 0) return;
    if (x->number != t.number)
        die("ticket %" PRIu64 " along %s is waited for twice", t.number, t.comm->label);
    finish(t.comm, x);
}

bool world_shares_memory(const World *w) {
    return (w->device ? w->device : w->backend)->block != NULL;
}

void *coll_block(Ticket t, int o) {
    const OpenCall *x = entry_of(t);
    return x->backend->block(t.comm, t.number, &x->call, o);
}

void coll_block_done(Ticket t, int o) {
    const OpenCall *x = entry_of(t);
    x->backend->block_done(t.comm, t.number, &x->call, o);
}

static Act *begin_block(void *ticket, int block) {
    return coll_block(*(Ticket *)ticket, block);
}
static void end_block(void *ticket, int block) {
    coll_block_done(*(Ticket *)ticket, block);
}

RowBlocks coll_row_blocks(Ticket *t, int64_t rows) {
    Comm *c = t->comm;
    const OpenCall *x = entry_of(*t);
    bool gather = x->call.op == COLL_ALL_GATHER;
    RowBlocks blocks = {.rows = rows,
                        .n = c->size,
                        .first = (c->rank + !gather) % c->size,
                        .begin = begin_block,
                        .done = end_block,
                        .ctx = t};
    if (gather && x->backend->flags)
        blocks.flags = x->backend->flags(c, t->number, &x->call, &blocks.ready_value);
    return blocks;
}

void world_set_watch(World *w, CollWatch *f, void *ctx, const DeviceClock *clock) {
    w->watch = f, w->watch_ctx = ctx, w->clock = clock;
}
void world_set_wait_at_start(World *w, bool wait) {
    w->wait_at_start = wait;
}

void coll_progress(World *w) {
    if (!w->backend->progress) return;
    enter(w);
    w->backend->progress(w);
    leave(w);
}

void coll_barrier(Comm *c) {
    if (!c->backend->barrier) return;
    enter(c->world);
    c->backend->barrier(c);
    leave(c->world);
}

bool coll_agree(const CollCall *a, const CollCall *b) {
    bool rooted = a->op == COLL_BROADCAST || a->op == COLL_REDUCE || a->op == COLL_SHIFT;
    return a->op == b->op && a->type == b->type && a->by_blocks == b->by_blocks &&
           (!coll_has_blocks(a->op) || a->dim == b->dim) && (!rooted || a->root == b->root) &&
           a->rows == b->rows && a->cols == b->cols && strcmp(a->what, b->what) == 0;
}

static const char *describe_all(const CollCall *c, char text[256]) {
    static const char *const type[] = {"f32", "f64", "i64", "i32", "u8", "bf16"};
    snprintf(text, 256, "%s \"%s\" of %" PRId64 " x %" PRId64 " %s, dim %d, root %d", names[c->op],
             c->what, c->rows, c->cols, type[c->type], c->dim, c->root);
    return text;
}

void coll_mismatch(const Comm *c, uint64_t number, const CollCall *mine, int other,
                   const CollCall *theirs) {
    char a[256], b[256];
    die("collective %" PRIu64 " along %s differs: rank %d starts %s, but rank %d %s", number,
        c->label, c->member[c->rank], describe_all(mine, a), c->member[other],
        describe_all(theirs, b));
}

/* ---- counters */

void world_count_reset(World *w) {
    for (int i = 0; i < w->n_rows; i++) {
        CollCount *c = &w->rows[i].count;
        c->calls = c->bytes = 0, c->seconds = 0;
    }
}

int world_counts(const World *w, CollCount *rows, int max) {
    int n = 0;
    for (int i = 0; i < w->n_rows && n < max; i++)
        if (w->rows[i].count.calls) rows[n++] = w->rows[i].count;
    return n;
}

/* ---- the limit */

static _Atomic bool expired;

bool coll_expired(void) {
    return atomic_load(&expired);
}

const char *coll_describe(const Comm *c, const CollCall *call, char text[COLL_TEXT]) {
    if (call)
        snprintf(text, COLL_TEXT, "%s%s \"%s\" of %" PRId64 " bytes along %s",
                 call->by_blocks ? "matmul with " : "", names[call->op], call->what,
                 coll_block_bytes(call), c->label);
    else
        snprintf(text, COLL_TEXT, "barrier along %s", c->label);
    return text;
}

void coll_print_waiting(const Comm *c, const char *what, double seconds, const char *missing) {
    const World *w = c->world;
    die_line("waited %.1f s for %s%s%s; not there: %s", seconds, what, w->phase[0] ? " in " : "",
             w->phase, missing[0] ? missing : "all ranks have begun, and not all have finished");
}

void coll_expire(const Comm *c, const char *what, double seconds, const char *missing) {
    bool first = !atomic_exchange(&expired, true);
    if (first) die_after(5, COLL_EXPIRED); // if the reader of stderr has stopped
    coll_print_waiting(c, what, seconds, missing);
    if (!first) // the first rank of this process that expires ends the job
        for (;;) pause();
    usleep(400 * 1000); // other ranks poll coll_expired() far more often
    die_end(COLL_EXPIRED);
}
