/* coll_watch -- when a rank's collectives were under way, and held it up (parallel/trace.h).
 *
 *     on the host     coll_start     computes     coll_wait
 *                     |========|                  |========|                 held up: begin to started, wait to end
 *                     begin   started             wait    end, complete      under way: begin to complete, or less
 *
 *     on a device     product    begin |==================| complete         the stream of collectives
 *                     product    product        wait |====| end   norm       that of kernels, which is held up
 *
 * Of calls on memory of a device these are marks in its streams, which become times when the step is done (layers/clock.h).
 */
#ifndef PARALLEL_COLL_WATCH_H
#define PARALLEL_COLL_WATCH_H

#include "layers/clock.h"
#include "parallel/coll.h"

/* A collective that this rank has waited for. On the host the counters' seconds add up what it was held up. */
typedef struct CollSpan {
    const CollCall *call;
    const Comm *comm;
    int64_t bytes;         // received from other ranks
    Moment begin, started; // coll_start was called, and had returned; both: a device has begun
    Moment wait, end; // coll_wait was waiting, and had returned; a device's kernels wait, and go on
    Moment complete;  // nothing is under way any more, of a device its own part
} CollSpan;
typedef void CollWatch(void *ctx, const CollSpan *s);

/* Local. f sees every collective when it has been waited for; NULL: nobody. clock: of the rank's device, NULL: the host's. Where
 * a device computes, calls on memory of the host hold nobody up. */
void world_set_watch(World *w, CollWatch *f, void *ctx, const DeviceClock *clock);

#endif
