/* device_clock -- times of kernels that the host does not wait for (Kernels.clock; for a GPU:
 * layers/cuda/clock_cuda.c).
 *
 *     host     begin    mark matmul mark     mark norm mark    ...    end     seconds, seconds ...
 *     stream            o== matmul ==o       o= norm =o        ...    |
 *
 * A mark is a point in a stream. The device records its time when it gets there; the host does not
 * wait. From the first mark to end the host never waits, and nothing is allocated until all n marks
 * are used. After end, marks are converted to times; all streams of a rank have the same clock.
 */
#ifndef LAYERS_DEVICE_CLOCK_H
#define LAYERS_DEVICE_CLOCK_H

#include <stdint.h>

/* Seconds of CLOCK_MONOTONIC; < 0: a mark, which DeviceClock.seconds converts. */
typedef double Moment;

typedef struct DeviceClock {
    /* Local. Forgets all marks and allocates n. More marks than n are allocated when needed. */
    void (*begin)(int64_t n);
    /* Local, before the first mark. Synchronizes the clocks of device and host, for which it waits
     * several times until the rank's stream is empty. Returns a bound of the error in seconds.
     * Without this call times relative to begin are right, but the time of begin is a guess. */
    double (*set)(void);
    /* Local. A mark at the end of the rank's stream; 0 before begin. */
    Moment (*mark)(void);
    /* Local. Waits until the rank's stream is empty, which must follow all streams with marks.
     * Returns the number of marks. */
    int64_t (*end)(void);
    /* Local. The time of a mark made between the last begin and end; other moments are returned as
     * is. */
    Moment (*seconds)(Moment t);
} DeviceClock;

#endif
