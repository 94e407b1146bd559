/* coll_device_watch -- watchdog of calls by blocks on device memory. A kernel that waits for a flag
 * waits for ever if none comes, and a host that waits for the device waits with it. So the streams
 * write how many calls have begun, and of how many the blocks were used, into memory of the host,
 * and a thread looks at both numbers.
 */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/die.h"
#include "base/mem.h"
#include "parallel/comm/coll_device.h"

enum { LOOK_NS = 20000000, WATCHED = 256 }; // interval of looks; calls that the host may be ahead

typedef struct Watched {
    Comm *comm;
    CollCall call;
    uint64_t number;
    double limit;
} Watched;

typedef struct PeersWatch {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool ends;
    DieRank name;
    int device;
    uint32_t *note; // pinned: calls that have begun; those that are done
    uint32_t begun, done;
    Watched call[WATCHED];
} PeersWatch;

/* The ranks whose blocks have not come. */
static void list_missing(const Watched *t, char *text, size_t n_text) {
    const Comm *c = t->comm;
    const Places *p = &((const PeersGroup *)c->device)->at[t->number % COLL_IN_FLIGHT];
    text[0] = 0;
    for (int i = 0; i < c->size; i++) {
        size_t at = strlen(text);
        if (device_reached(p->part[i])) continue;
        snprintf(text + at, n_text - at, "%srank %d", at ? ", " : "", c->member[i]);
    }
}

static void *watch(void *ctx) {
    PeersWatch *w = ctx;
    uint32_t seen = 0;
    double since = coll_now();
    die_adopt_rank(w->name);
    device_visit(w->device);
    pthread_mutex_lock(&w->lock);
    while (!w->ends) {
        struct timespec t;
        // in this order, for both go on meanwhile: done is never ahead
        uint32_t done = device_noted(&w->note[1]), begun = device_noted(&w->note[0]);
        const Watched *oldest = &w->call[(done + 1) % WATCHED];
        double now = coll_now();
        if (begun == done || done != seen) since = now, seen = done;
        if (begun != done && now - since > oldest->limit) {
            char missing[MAX_THREAD_RANKS * 12];
            list_missing(oldest, missing, sizeof missing);
            coll_expire(oldest->comm, &oldest->call, now - since, missing);
        }
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += LOOK_NS;
        t.tv_sec += t.tv_nsec / 1000000000, t.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&w->change, &w->lock, &t);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static PeersWatch *watch_start(void) {
    PeersWatch *w = mem_calloc(1, sizeof *w);
    pthread_condattr_t monotonic;
    w->name = die_rank(), w->device = device_index();
    w->note = device_pin(2 * sizeof *w->note);
    w->note[0] = w->note[1] = 0;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->change, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = pthread_create(&w->thread, NULL, watch, w);
    if (rc) die("cannot start a thread that watches devices: %s", strerror(rc));
    return w;
}

void peers_watch_begin(Comm *c, uint64_t number, const CollCall *call, Stream s) {
    Peers *p = c->world->device_impl;
    if (!p->watch) p->watch = watch_start();
    PeersWatch *w = p->watch;
    double limit = c->world->limit;
    pthread_mutex_lock(&w->lock);
    w->call[++w->begun % WATCHED] = (Watched){c, *call, number, limit > 0 ? limit : 1e30};
    pthread_mutex_unlock(&w->lock);
    device_say(s, &w->note[0], w->begun);
}

void peers_watch_end(Comm *c, Stream s) {
    PeersWatch *w = ((Peers *)c->world->device_impl)->watch;
    device_say(s, &w->note[1], ++w->done);
}

void peers_watch_stop(Peers *p) {
    PeersWatch *w = p->watch;
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->ends = true;
    pthread_cond_signal(&w->change);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->change);
    device_wait();
    device_unpin(w->note);
    mem_free(w);
}
