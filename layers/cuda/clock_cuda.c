#include "layers/cuda/clock_cuda.h"

#include <math.h>

#include "base/clock.h"
#include "base/mem.h"

/* The marks of a rank. Mark k >= 0 is event[k], and is the Moment -1 - k. */
static _Thread_local struct {
    Event *event; // [cap], of which the first n are recorded
    int64_t n, cap;
    Event zero; // event from which all times are measured; NULL: not yet made
    double at;  // time at which the device reached `zero`, by the host's clock
    bool runs;
} marks;

static void free_events(void) {
    for (int64_t i = 0; i < marks.cap; i++) device_event_free(marks.event[i]);
    device_event_free(marks.zero);
    mem_free(marks.event);
    marks.event = NULL, marks.zero = NULL;
    marks.n = marks.cap = 0, marks.runs = false;
}

static void reserve(int64_t n) {
    if (n <= marks.cap) return;
    marks.event = mem_realloc(marks.event, (size_t)n, sizeof *marks.event);
    while (marks.cap < n) marks.event[marks.cap++] = device_clock();
}

static void begin(int64_t n) {
    if (!marks.zero) {
        marks.zero = device_clock();
        device_at_close(free_events);
    }
    reserve(n > 0 ? n : 1); // set() uses event[0]
    marks.at = now_s();
    device_record(marks.zero, device_stream());
    marks.n = 0, marks.runs = true;
}

/* Sets marks.at, the time of `zero` by the host's clock, and returns its uncertainty in seconds.
 * The stream is idle, so the device reaches an event between the host's request and the host's
 * wakeup. Each of several tries bounds the time of `zero` from both sides. */
static double set(void) {
    enum { TRIES = 5 };
    static const double resolution = 0.5e-6; // seconds, of times between events
    double low = -INFINITY, high = INFINITY;
    device_wait();
    for (int i = 0; i < TRIES; i++) {
        double asked = now_s();
        device_record(marks.event[0], device_stream());
        device_event_synchronize(marks.event[0]);
        double heard = now_s(), since = device_seconds(marks.zero, marks.event[0]);
        low = fmax(low, asked - since), high = fmin(high, heard - since);
    }
    marks.at = (low + high) / 2;
    return fmax((high - low) / 2, resolution);
}

Moment device_mark(Stream s) {
    if (!marks.runs) return 0;
    if (marks.n == marks.cap) reserve(2 * marks.cap + 64);
    device_record(marks.event[marks.n], s);
    return (Moment)(-1 - marks.n++);
}

static Moment mark(void) {
    return device_mark(device_stream());
}

static int64_t end(void) {
    device_wait();
    marks.runs = false;
    return marks.n;
}

static Moment seconds(Moment t) {
    return t < 0 ? marks.at + device_seconds(marks.zero, marks.event[(int64_t)(-1 - t)]) : t;
}

const DeviceClock device_marks = {begin, set, mark, end, seconds};
