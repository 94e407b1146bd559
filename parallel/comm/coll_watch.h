/* coll_watch -- when a rank's collectives were in flight and when they were exposed
 * (parallel/plan/trace.h).
 *
 *   on the host   coll_start     computes     coll_wait
 *                 |========|                  |========|              exposed: begin to started,
 *                 begin   started             wait    end, complete            wait to end
 *
 *   on a device   matmul     begin |==================| complete      communication stream
 *                 matmul     matmul         wait |====| end   norm    compute stream, exposed wait
 *
 * For device memory these times are events in the streams, read when the step is done
 * (layers/device_clock.h).
 */
#ifndef PARALLEL_COMM_COLL_WATCH_H
#define PARALLEL_COMM_COLL_WATCH_H

#include "layers/device_clock.h"
#include "parallel/comm/coll.h"

/* A collective that this rank has waited for. On the host the counters' seconds are the exposed
 * time. */
typedef struct CollSpan {
    const CollCall *call;
    const Comm *comm;
    int64_t bytes;         // received from other ranks
    Moment begin, started; // coll_start called; returned. Device: both are its begin
    Moment wait, end;      // coll_wait called; returned. Device: kernels wait; go on
    Moment complete;       // no longer in flight; device: this rank's part
} CollSpan;
typedef void CollWatch(void *ctx, const CollSpan *s);

/* Local. Sets a function that is called with every collective after its wait; NULL: none. clock: of
 * the rank's device; NULL: host clock. When a device computes, collectives on host memory are never
 * exposed. */
void world_set_watch(World *w, CollWatch *f, void *ctx, const DeviceClock *clock);

#endif
