/* coll_device_watch -- a queue of calls on a device, and a thread that watches the oldest call that
 * is not done. If a rank is missing, a kernel or a stream that waits for it waits for ever, and so
 * does a host that waits for the device. Therefore the thread ends the job when a call is in flight
 * for longer than the World's limit.
 */
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "parallel/comm/coll_device.h"

enum { CHECK_NS = 20000000 }; // between two checks of the thread

/* ---- the queue */

Queued *queue_take(CallQueue *q, const Queued *like) {
    Queued *t = &q->at[q->end % MAX_QUEUED];
    if (q->end >= MAX_QUEUED) device_event_synchronize(t->done);
    pthread_mutex_lock(&q->lock);
    if (q->end - q->first == MAX_QUEUED) q->first++;
    t->called = like->called, t->replay = like->replay, t->part = like->part,
    t->limit = like->limit;
    t->since = 0, t->in_stream = false;
    q->end++;
    pthread_mutex_unlock(&q->lock);
    return t;
}

void queue_enqueued(CallQueue *q, Queued *t) {
    pthread_mutex_lock(&q->lock);
    t->in_stream = true;
    pthread_mutex_unlock(&q->lock);
}

void queue_drain(const CallQueue *q) {
    if (q->end > 0) device_event_synchronize(q->at[(q->end - 1) % MAX_QUEUED].done);
}

/* ---- the checks of the thread */

bool queue_too_long(const CallQueue *q, double since, double limit) {
    return coll_expired() || (limit > 0 && q->now - since > limit);
}

void queue_missing(const Comm *c, const Event *part, char text[QUEUE_TEXT]) {
    text[0] = 0;
    for (int i = 0; i < c->size; i++) {
        size_t at = strlen(text);
        if (i != c->rank && !(part && device_event_query(part[i])))
            snprintf(text + at, QUEUE_TEXT - at, "%srank %d",
                     !at    ? ""
                     : part ? ", "
                            : " or ",
                     c->member[i]);
    }
}

/* Removes the oldest entries that are done. */
static void forget_done(CallQueue *q) {
    while (q->first < q->end && q->at[q->first % MAX_QUEUED].in_stream &&
           device_event_query(q->at[q->first % MAX_QUEUED].done))
        q->first++;
}

/* The call of a queue entry that is in flight, or of a replay that the host is still launching;
 * NULL: none. Of a replay, new progress restarts the time. */
static const Called *under_way(Queued *t) {
    const Recorded *r = t->replay;
    if (!r) return device_event_query(t->begun) ? &t->called : NULL;
    uint32_t progress = device_read_progress(r->progress);
    if (progress != t->progress) t->progress = progress, t->since = 0; // the replay progresses
    return progress % 2 ? &r->called[progress / 2] : t->in_stream ? NULL : &r->called[0];
}

/* Ends the job if the call of the oldest queue entry is in flight for too long. */
static void check_oldest(CallQueue *q) {
    if (q->first == q->end) return;
    Queued *t = &q->at[q->first % MAX_QUEUED];
    const Called *c = under_way(t);
    if (!c || t->since == 0) t->since = c ? q->now : 0;
    if (!c || !queue_too_long(q, t->since, t->limit)) return;
    char others[QUEUE_TEXT], what[COLL_TEXT];
    queue_missing(c->comm, t->part, others);
    coll_expire(c->comm, coll_describe(c->comm, &c->call, what), q->now - t->since, others);
}

/* ---- the thread */

static void *watch(void *ctx) {
    CallQueue *q = ctx;
    die_adopt_rank(q->name);
    device_set_current(q->device);
    pthread_mutex_lock(&q->lock);
    for (double last = now_s(), now; !q->ends; last = now) {
        struct timespec t;
        now = now_s();
        // not the time in which this process was stopped
        q->now += now - last > COLL_LONGEST_SLEEP ? 0 : now - last;
        forget_done(q);
        if (q->check) q->check(q->ctx);
        check_oldest(q);
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += CHECK_NS;
        t.tv_sec += t.tv_nsec / 1000000000, t.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&q->change, &q->lock, &t);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

CallQueue *queue_open(void (*check)(void *ctx), void *ctx) {
    pthread_condattr_t monotonic; // a clock that is set back must not stop the watching
    CallQueue *q = mem_calloc(1, sizeof *q);
    q->check = check, q->ctx = ctx;
    q->name = die_rank(), q->device = device_index();
    q->now = now_s();
    for (int i = 0; i < MAX_QUEUED; i++)
        q->at[i].ready = device_event(), q->at[i].begun = device_event(),
        q->at[i].done = device_event();
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&q->change, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = team_start_thread(&q->thread, watch, q);
    if (rc) die("cannot start a thread that watches a device: %s", strerror(rc));
    return q;
}

void queue_close(CallQueue *q) {
    pthread_mutex_lock(&q->lock);
    q->ends = true;
    pthread_cond_signal(&q->change);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->change);
    for (int i = 0; i < MAX_QUEUED; i++)
        device_event_free(q->at[i].ready), device_event_free(q->at[i].begun),
            device_event_free(q->at[i].done);
    mem_free(q);
}
