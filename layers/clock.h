/* clock -- when kernels ran that the host does not wait for (Kernels.clock; of a GPU: layers/cuda/clock.c).
 *
 *     host     begin    mark product mark    mark norm mark    ...    end     seconds, seconds ...
 *     stream            o== product ==o      o= norm =o         ...    |
 *
 * A mark is a place in a stream. The device notes when it comes there, and the host goes on: between begin and end it
 * waits for nothing, and allocates nothing where room was made. Then marks become times, those of all streams of a rank
 * on one clock.
 */
#ifndef LAYERS_CLOCK_H
#define LAYERS_CLOCK_H

#include <stdint.h>

/* Seconds of CLOCK_MONOTONIC; below 0 a mark, which DeviceClock.seconds makes such seconds of. */
typedef double Moment;

typedef struct DeviceClock {
    /* Local. Forgets all marks, and makes room for n. Who makes more of them than that makes room as he goes. */
    void (*begin)(int64_t n);
    /* Local, before the first mark: the device's clock is set by the host's. Waits, until the rank's stream is empty and a few
     * times more; returns the seconds by which it may be wrong. Without it times since begin are right, but begin is guessed. */
    double (*set)(void);
    /* Local. A place in the rank's stream, behind all that is there; 0 where nobody has begun. */
    Moment (*mark)(void);
    /* Local. Waits until the rank's stream is empty: once. Streams whose marks are asked for have come there, too. Returns how
     * many marks there were. */
    int64_t (*end)(void);
    /* Local. Of a mark that was made between the last begin and end; others stay what they are. */
    Moment (*seconds)(Moment t);
} DeviceClock;

#endif
