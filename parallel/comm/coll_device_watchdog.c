#include "parallel/comm/coll_device_watchdog.h"

#include <string.h>
#include <time.h>

#include "layers/cuda/streams.h"

enum { LOOK_NS = 20000000 };

static void *watch(void *ctx) {
    Watchdog *w = ctx;
    die_adopt_rank(w->name);
    device_visit(w->device);
    pthread_mutex_lock(&w->lock);
    while (!w->ends) {
        struct timespec t;
        w->look(w->ctx);
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += LOOK_NS;
        t.tv_sec += t.tv_nsec / 1000000000, t.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&w->change, &w->lock, &t);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

void watchdog_start(Watchdog *w, const char *what, void (*look)(void *ctx), void *ctx) {
    pthread_condattr_t monotonic; // a clock that is set back must not stop the watching
    w->look = look, w->ctx = ctx, w->ends = false;
    w->name = die_rank(), w->device = device_index();
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->change, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = pthread_create(&w->thread, NULL, watch, w);
    if (rc) die("cannot start a thread that watches %s: %s", what, strerror(rc));
}

void watchdog_stop(Watchdog *w) {
    pthread_mutex_lock(&w->lock);
    w->ends = true;
    pthread_cond_signal(&w->change);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->change);
}
