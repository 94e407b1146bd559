/* Watchdog. NCCL waits for its partners on the device, possibly for ever, and a host that waits for
 * the device waits with it. So a thread polls the oldest call that is not done. The thread ends the
 * job when that call is in flight for longer than the World's limit, when NCCL reports an error, or
 * when a host call of NCCL waits too long for other hosts. In a replay, notes say which call is in
 * flight (coll_nccl_record.c).
 *
 * A process does not end while its kernels wait. So before an early end the communicators of all
 * ranks of the process are aborted, each in a thread of its own, since the kernels of one may queue
 * behind those of another. Then the process ends, whether or not all aborts have returned. Source:
 * NCCL's user guide, "Fault Tolerance": ncclCommGetAsyncError, ncclCommAbort.
 */
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/die.h"
#include "parallel/comm/coll_nccl.h"

enum { ABORT_MS = 1500 }; // longest time for aborts

/* ---- the end of the process */

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER; // a thread that holds it does not die
// communicators of all ranks of this process
static NcclGroup *all_open;
static _Atomic int aborting;

static void *abort_one(void *ctx) {
    const NcclGroup *g = ctx;
    const NcclWorld *n = g->of->world->device_impl;
    device_visit(n->watchdog.device);
    n->f->abort(g->comm); // its result does not matter any more
    atomic_fetch_sub(&aborting, 1);
    return NULL;
}

static void abort_all(void) {
    pthread_t thread;
    pthread_mutex_lock(&open_lock); // no communicator is freed meanwhile
    for (NcclGroup *g = all_open; g; g = g->next_open) {
        atomic_fetch_add(&aborting, 1);
        if (pthread_create(&thread, NULL, abort_one, g)) atomic_fetch_sub(&aborting, 1);
    }
    for (int i = 0; i < ABORT_MS && atomic_load(&aborting) > 0; i++) usleep(1000);
}

void nccl_watch_open(NcclWorld *n, NcclGroup *g) {
    pthread_mutex_lock(&open_lock);
    die_set_release(abort_all);
    g->next_open = all_open, all_open = g;
    pthread_mutex_unlock(&open_lock);
    pthread_mutex_lock(&n->watchdog.lock);
    g->next = n->groups, n->groups = g;
    pthread_mutex_unlock(&n->watchdog.lock);
}

void nccl_watch_close(NcclWorld *n, NcclGroup *g) {
    NcclGroup **at = &n->groups;
    pthread_mutex_lock(&n->watchdog.lock);
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    pthread_mutex_unlock(&n->watchdog.lock);
    pthread_mutex_lock(&open_lock);
    for (at = &all_open; *at != g;) at = &(*at)->next_open;
    *at = g->next_open;
    pthread_mutex_unlock(&open_lock);
}

/* ---- stalled calls */

/* The other ranks of the group. At least one is missing; NCCL does not say which. */
static void list_others(const Comm *c, char *text, size_t n_text) {
    text[0] = 0;
    for (int i = 0; i < c->size; i++) {
        size_t at = strlen(text);
        if (i != c->rank)
            snprintf(text + at, n_text - at, "%srank %d", at ? " or " : "", c->member[i]);
    }
}

static void forget_done(NcclWorld *n) {
    while (n->first < n->end && n->queue[n->first % MAX_QUEUED].in_stream &&
           device_reached(n->queue[n->first % MAX_QUEUED].done))
        n->first++;
}

/* The first call of a queue entry along this group that is not done; NULL: none. */
static const CollCall *first_along(const NcclQueued *t, const Comm *c) {
    const NcclRecording *r = t->replay;
    if (!r) return t->called.comm == c ? &t->called.call : NULL;
    for (int i = (int)(device_noted(r->note) / 2) % r->n, j = 0; j < r->n; j++)
        if (r->called[(i + j) % r->n].comm == c) return &r->called[(i + j) % r->n].call;
    return NULL;
}

/* Ends the job with NCCL's error text and the oldest call of the group that is not done. */
static void die_of_error(const NcclWorld *n, const NcclGroup *g, int result) {
    char what[COLL_TEXT];
    const World *w = g->of->world;
    snprintf(what, sizeof what, "a call along %s", comm_label(g->of));
    for (uint64_t i = n->end; i-- > n->first;) {
        const CollCall *call = first_along(&n->queue[i % MAX_QUEUED], g->of);
        if (call) coll_describe(g->of, call, what);
    }
    die("NCCL: %s%s%s: %s; %s", what, w->phase[0] ? " in " : "", w->phase,
        n->f->error_string(result), n->f->last_error(g->comm));
}

static void look_for_errors(NcclWorld *n) {
    for (const NcclGroup *g = n->groups; g; g = g->next) {
        int state = NCCL_SUCCESS, result = n->f->async_error(g->comm, &state);
        if (result == NCCL_SUCCESS) result = state;
        if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS) die_of_error(n, g, result);
    }
}

static bool too_long(double since, double limit) {
    return coll_expired() || (limit > 0 && coll_now() - since > limit);
}

/* The call of a queue entry that is in flight, or that the host is still enqueuing; NULL: none. */
static const Called *under_way(NcclQueued *t) {
    const NcclRecording *r = t->replay;
    if (!r) return t->since > 0 || !t->in_stream || device_reached(t->begun) ? &t->called : NULL;
    uint32_t note = device_noted(r->note);
    if (note != t->note) t->note = note, t->since = 0; // it progresses
    return note % 2 ? &r->called[note / 2] : t->in_stream ? NULL : &r->called[0];
}

/* Is a call of the oldest queue entry in flight for too long? */
static void look_at_oldest(NcclWorld *n) {
    if (n->first == n->end) return;
    NcclQueued *t = &n->queue[n->first % MAX_QUEUED];
    const Called *c = under_way(t);
    if (!c || t->since == 0) t->since = c ? coll_now() : 0;
    if (!c || !too_long(t->since, t->limit)) return;
    char others[1024];
    list_others(c->comm, others, sizeof others);
    coll_expire(c->comm, &c->call, coll_now() - t->since, others);
}

static void look_at_host(const NcclWorld *n) {
    const Comm *c = n->opening.comm;
    if (!c || !too_long(n->opening.since, n->opening.limit)) return;
    char others[1024], what[COLL_TEXT];
    list_others(c, others, sizeof others);
    snprintf(what, sizeof what, "%s along %s", n->opening.what, comm_label(c));
    coll_expire_at(c, what, coll_now() - n->opening.since, others);
}

void nccl_watch_host(NcclWorld *n, const Comm *c, const char *what) {
    pthread_mutex_lock(&n->watchdog.lock);
    n->opening.comm = what ? c : NULL, n->opening.what = what;
    n->opening.since = coll_now(), n->opening.limit = c->world->limit;
    pthread_mutex_unlock(&n->watchdog.lock);
}

/* ---- the thread */

static void look(void *ctx) {
    NcclWorld *n = ctx;
    forget_done(n);
    look_for_errors(n);
    look_at_oldest(n);
    look_at_host(n);
}

void nccl_watch_start(NcclWorld *n) {
    watchdog_start(&n->watchdog, "NCCL", look, n);
}

void nccl_watch_stop(NcclWorld *n) {
    watchdog_stop(&n->watchdog);
}
