/* clock -- seconds of a clock that never goes back, with the system's resolution: the clock of all
 * timings.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <time.h>

static inline double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
