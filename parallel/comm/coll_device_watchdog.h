/* coll_device_watchdog -- a thread that looks again and again whether what a device does for a
 * rank still progresses, while the rank itself may wait for the device. For the backends of
 * device memory.
 */
#ifndef PARALLEL_COMM_COLL_DEVICE_WATCHDOG_H
#define PARALLEL_COMM_COLL_DEVICE_WATCHDOG_H

#include <pthread.h>
#include <stdbool.h>

#include "base/die.h"

typedef struct Watchdog {
    pthread_mutex_t lock; // held while it looks: of what it looks at
    int device;           // of the rank
    // Internal.
    void (*look)(void *ctx);
    void *ctx;
    DieRank name;
    pthread_t thread;
    pthread_cond_t change;
    bool ends;
} Watchdog;

/* Local. look(ctx) every 20 ms, on the device of this rank and in its name, in a thread of its own;
 * dies where that cannot be started, of which `what` is the end of the message. */
void watchdog_start(Watchdog *w, const char *what, void (*look)(void *ctx), void *ctx);
void watchdog_stop(Watchdog *w);

#endif
