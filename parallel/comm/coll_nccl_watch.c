/* coll_nccl_watch -- the checks of the watchdog (coll_device_watch.c) that belong to NCCL. The
 * thread ends the job when NCCL reports an error, or when a host call of NCCL waits too long for
 * other hosts.
 *
 * A process does not end while its kernels wait. So before an early end the communicators of all
 * ranks of the process are aborted. Each is aborted in a thread of its own, since its kernels may
 * be queued behind kernels of another communicator. Then the process ends, whether or not all
 * aborts have returned. Source: NCCL's user guide, "Fault Tolerance": ncclCommGetAsyncError,
 * ncclCommAbort.
 */
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/die.h"
#include "parallel/comm/coll_nccl.h"

enum { ABORT_MS = 1500 }; // longest time that the end of the process waits for aborts

/* ---- the end of the process */

// a thread that holds this lock must not call die()
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
// the open communicators of all ranks of this process, linked by next_open
static NcclGroup *all_open;
static _Atomic int aborting; // aborts that have not returned

static void *abort_one(void *ctx) {
    const NcclGroup *g = ctx;
    const NcclWorld *n = g->group->world->device_impl;
    device_set_current(n->device.queue->device);
    n->f->abort(g->comm); // the result does not matter: the process ends
    atomic_fetch_sub(&aborting, 1);
    return NULL;
}

static void abort_all(void) {
    pthread_t thread;
    pthread_mutex_lock(&open_lock); // held until the end: no communicator is freed meanwhile
    for (NcclGroup *g = all_open; g; g = g->next_open) {
        atomic_fetch_add(&aborting, 1);
        if (team_start_thread(&thread, abort_one, g)) atomic_fetch_sub(&aborting, 1);
    }
    for (int i = 0; i < ABORT_MS && atomic_load(&aborting) > 0; i++) usleep(1000);
}

void nccl_watch_open(NcclWorld *n, NcclGroup *g) {
    pthread_mutex_lock(&open_lock);
    die_set_release(abort_all);
    g->next_open = all_open, all_open = g;
    pthread_mutex_unlock(&open_lock);
    pthread_mutex_lock(&n->device.queue->lock);
    g->next = n->groups, n->groups = g;
    pthread_mutex_unlock(&n->device.queue->lock);
}

void nccl_watch_close(NcclWorld *n, NcclGroup *g) {
    NcclGroup **at = &n->groups;
    pthread_mutex_lock(&n->device.queue->lock);
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    pthread_mutex_unlock(&n->device.queue->lock);
    pthread_mutex_lock(&open_lock);
    for (at = &all_open; *at != g;) at = &(*at)->next_open;
    *at = g->next_open;
    pthread_mutex_unlock(&open_lock);
}

/* ---- errors */

/* The first call of a queue entry that belongs to this group and is not done; NULL: none. */
static const CollCall *first_along(const Queued *t, const Comm *c) {
    const Recorded *r = t->replay;
    if (!r) return t->called.comm == c ? &t->called.call : NULL;
    for (int i = (int)(device_read_progress(r->progress) / 2), j = 0; j < r->n; j++)
        if (r->called[(i + j) % r->n].comm == c) return &r->called[(i + j) % r->n].call;
    return NULL;
}

/* Ends the job with NCCL's error text and the oldest call of the group that is not done. */
static void die_of_error(const NcclWorld *n, const NcclGroup *g, int result) {
    char what[COLL_TEXT];
    const World *w = g->group->world;
    snprintf(what, sizeof what, "a call along %s", comm_label(g->group));
    const CallQueue *q = n->device.queue;
    for (uint64_t i = q->end; i-- > q->first;) {
        const CollCall *call = first_along(&q->at[i % MAX_QUEUED], g->group);
        if (call) coll_describe(g->group, call, what);
    }
    die("NCCL: %s%s%s: %s; %s", what, w->phase[0] ? " in " : "", w->phase,
        n->f->error_string(result), n->f->last_error(g->comm));
}

static void check_errors(NcclWorld *n) {
    for (const NcclGroup *g = n->groups; g; g = g->next) {
        int state = NCCL_SUCCESS, result = n->f->async_error(g->comm, &state);
        if (result == NCCL_SUCCESS) result = state;
        if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS) die_of_error(n, g, result);
    }
}

static void check_host_call(const NcclWorld *n) {
    const Comm *c = n->host_call.comm;
    if (!c || !queue_too_long(n->device.queue, n->host_call.since, c->world->limit)) return;
    char others[QUEUE_TEXT], what[COLL_TEXT];
    queue_missing(c, NULL, others);
    snprintf(what, sizeof what, "%s along %s", n->host_call.what, comm_label(c));
    coll_expire(c, what, n->device.queue->now - n->host_call.since, others);
}

void nccl_watch_host(NcclWorld *n, const Comm *c, const char *what) {
    pthread_mutex_lock(&n->device.queue->lock);
    n->host_call.comm = what ? c : NULL, n->host_call.what = what;
    n->host_call.since = n->device.queue->now;
    pthread_mutex_unlock(&n->device.queue->lock);
}

void nccl_check_all(void *world) {
    NcclWorld *n = world;
    check_errors(n);
    check_host_call(n);
}
