/* NCCL waits for partners on the device, for ever if need be, and a host that waits for the device waits with it. So a
 * thread looks at the oldest call that is not done: when it is under way for longer than the World's limit, or NCCL reports an
 * error, that thread ends the job.
 */
#include <string.h>
#include <time.h>

#include "base/die.h"
#include "parallel/coll_nccl.h"

enum { LOOK_NS = 20000000 }; // between two looks

/* The others of the group, one of which at least is not there: NCCL does not say which. */
static void list_others(const Comm *c, char *text, size_t n_text) {
    text[0] = 0;
    for (int i = 0; i < c->size; i++) {
        size_t at = strlen(text);
        if (i != c->rank)
            snprintf(text + at, n_text - at, "%srank %d", at ? " or " : "", c->member[i]);
    }
}

static void look_for_errors(NcclWorld *n) {
    for (const NcclGroup *g = n->groups; g; g = g->next) {
        int result = NCCL_SUCCESS;
        nccl_check(n, n->f->async_error(g->comm, &result), "its state", g->of);
        if (result != NCCL_IN_PROGRESS) nccl_check(n, result, "a call", g->of);
    }
}

/* Is the oldest call under way for too long? */
static void look_at_oldest(NcclWorld *n) {
    while (n->first < n->end && n->turn[n->first % IN_LINE].in_stream &&
           device_reached(n->turn[n->first % IN_LINE].done))
        n->first++;
    if (n->first == n->end) return;
    Turn *t = &n->turn[n->first % IN_LINE];
    if (t->since == 0 && (!t->in_stream || device_reached(t->begun))) t->since = coll_now();
    double seconds = t->since > 0 ? coll_now() - t->since : 0;
    if (t->since == 0 || !(coll_expired() || (t->limit > 0 && seconds > t->limit))) return;
    char others[1024];
    list_others(t->comm, others, sizeof others);
    coll_expire(t->comm, &t->call, seconds, others);
}

static void *watch(void *ctx) {
    NcclWorld *n = ctx;
    die_adopt_rank(n->name);
    device_visit(n->device);
    pthread_mutex_lock(&n->lock);
    while (!n->ends) {
        struct timespec t;
        look_for_errors(n);
        look_at_oldest(n);
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += LOOK_NS;
        t.tv_sec += t.tv_nsec / 1000000000, t.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&n->change, &n->lock, &t);
    }
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

void nccl_watch_start(NcclWorld *n) {
    pthread_mutex_init(&n->lock, NULL);
    pthread_cond_init(&n->change, NULL);
    int rc = pthread_create(&n->watchdog, NULL, watch, n);
    if (rc) die("cannot start a thread that watches NCCL: %s", strerror(rc));
}

void nccl_watch_stop(NcclWorld *n) {
    pthread_mutex_lock(&n->lock);
    n->ends = true;
    pthread_cond_signal(&n->change);
    pthread_mutex_unlock(&n->lock);
    pthread_join(n->watchdog, NULL);
    pthread_mutex_destroy(&n->lock);
    pthread_cond_destroy(&n->change);
}
