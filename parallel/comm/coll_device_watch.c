/* coll_device_watch -- watchdog of calls by blocks on device memory. A kernel that waits for a flag
 * waits for ever if none comes, and a host that waits for the device waits with it. So the streams
 * write how many calls have begun, and of how many the blocks were used, into memory of the host,
 * and a thread looks at both numbers.
 */
#include <string.h>

#include "base/mem.h"
#include "parallel/comm/coll_device.h"
#include "parallel/comm/coll_device_watchdog.h"

enum { WATCHED = 256 }; // calls that the host may be ahead

typedef struct Watched {
    Comm *comm;
    CollCall call;
    uint64_t number;
    double limit;
} Watched;

typedef struct PeersWatch {
    Watchdog watchdog;
    uint32_t *note; // pinned: calls that have begun; those that are done
    uint32_t begun, done;
    uint32_t seen; // of the calls that are done, when it looked last; that has been so
    double since;  // for so long
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

static void look(void *ctx) {
    PeersWatch *w = ctx;
    // in this order, for both go on meanwhile: done is never ahead
    uint32_t done = device_noted(&w->note[1]), begun = device_noted(&w->note[0]);
    const Watched *oldest = &w->call[(done + 1) % WATCHED];
    double now = coll_now();
    if (begun == done || done != w->seen) w->since = now, w->seen = done;
    if (begun != done && now - w->since > oldest->limit) {
        char missing[MAX_THREAD_RANKS * 12];
        list_missing(oldest, missing, sizeof missing);
        coll_expire(oldest->comm, &oldest->call, now - w->since, missing);
    }
}

static PeersWatch *watch_start(void) {
    PeersWatch *w = mem_calloc(1, sizeof *w);
    w->note = device_pin(2 * sizeof *w->note);
    w->note[0] = w->note[1] = 0;
    w->since = coll_now();
    watchdog_start(&w->watchdog, "devices", look, w);
    return w;
}

void peers_watch_begin(Comm *c, uint64_t number, const CollCall *call, Stream s) {
    Peers *p = c->world->device_impl;
    if (!p->watch) p->watch = watch_start();
    PeersWatch *w = p->watch;
    double limit = c->world->limit;
    pthread_mutex_lock(&w->watchdog.lock);
    w->call[++w->begun % WATCHED] = (Watched){c, *call, number, limit > 0 ? limit : 1e30};
    pthread_mutex_unlock(&w->watchdog.lock);
    device_say(s, &w->note[0], w->begun);
}

void peers_watch_end(Comm *c, Stream s) {
    PeersWatch *w = ((Peers *)c->world->device_impl)->watch;
    device_say(s, &w->note[1], ++w->done);
}

void peers_watch_stop(Peers *p) {
    PeersWatch *w = p->watch;
    if (!w) return;
    watchdog_stop(&w->watchdog);
    device_wait();
    device_unpin(w->note);
    mem_free(w);
}
