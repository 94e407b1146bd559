/* streams -- order between the streams of a rank, and between those of ranks that are threads of one process.
 *
 *     rank 0, own      product --o  record(a)     product         --follow(d)-- norm
 *     rank 0, urgent              \ follow(a), follow(b)   sum of both parts --o record(d)
 *     rank 1, own      product ------o  record(b)
 *
 * An event is a place in a stream: what is put into a stream after it follows an event waits for that place, on the device.
 * The host waits for nothing here. An event that is recorded again is another place, for those who follow it from then on.
 */
#ifndef LAYERS_CUDA_STREAMS_H
#define LAYERS_CUDA_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "layers/cuda/device.h"

typedef struct CUevent_st *Event; // CUDA's cudaEvent_t, for C

/* Local. A stream of the calling thread's device whose kernels go first where both wait for multiprocessors. */
Stream device_urgent_stream(void);
void device_stream_free(Stream s);
/* Local. Of the calling thread's device; never recorded: nobody waits for it. */
Event device_event(void);
void device_event_free(Event e);
/* Local. The place behind all that is in s, a stream of the event's device. */
void device_record(Event e, Stream s);
/* Local. What is put into s from now on waits for the last record of e, also on another device. */
void device_follow(Stream s, Event e);
/* Local. Has its stream come there? The second: waits until it has. */
bool device_reached(Event e);
void device_await(Event e);
/* Local. When s comes to this place, *where (device_pin) becomes note: for what is put in many times, where an event could
 * tell of the last time alone. From any thread: what it is now. */
void device_note(Stream s, uint32_t *where, uint32_t note);
uint32_t device_noted(const uint32_t *where);
/* Local. An event that also knows when; seconds between two to which their streams have come. */
Event device_clock(void);
double device_seconds(Event from, Event to);

/* Local. Is this memory of a device? */
bool device_holds(const void *p);
/* Local. For a thread that is no rank, but looks at a rank's events: its device. */
void device_visit(int device);
/* Local. What no two devices of the world have alike. */
typedef struct DeviceId {
    char bytes[16];
} DeviceId;
DeviceId device_id(void);
/* Local. The calling thread's device; may its kernels read and write memory of another one? From then on they do. */
int device_index(void);
bool device_reaches(int other);

#endif
