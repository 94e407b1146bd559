/* clock -- seconds, with the system's resolution. now_s never goes back: the clock of timings,
 * unless processor time is asked for. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <time.h>

static inline double clock_s(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static inline double now_s(void) {
    return clock_s(CLOCK_MONOTONIC);
}

#endif
