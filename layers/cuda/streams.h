/* streams -- order between the streams of a rank, and between streams of ranks that are threads of
 * one process.
 *
 *     rank 0, own      matmul --o  record(a)      matmul         --follow(d)-- norm
 *     rank 0, comm              \ follow(a), follow(b)  sum of both parts --o record(d)
 *     rank 1, own      matmul ------o  record(b)
 *
 * An event is a point in a stream. Work put into a stream after device_follow waits on the device
 * for that point; the host does not wait. Recording an event again moves the event, for later calls
 * of device_follow.
 */
#ifndef LAYERS_CUDA_STREAMS_H
#define LAYERS_CUDA_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "layers/cuda/device.h"

typedef struct CUevent_st *Event; // CUDA's cudaEvent_t, for C

/* Local. A communication stream of the calling thread's device: high priority, its kernels get free
 * multiprocessors first. */
Stream device_comm_stream(void);
void device_stream_free(Stream s);
/* Local. An event of the calling thread's device. Following an event that was never recorded does
 * not wait. */
Event device_event(void);
void device_event_free(Event e);
/* Local. Records the event at the end of s, a stream of the event's device. */
void device_record(Event e, Stream s);
/* Local. Work put into s from now on waits for the last record of e, on any device. */
void device_follow(Stream s, Event e);
/* Local. device_reached: has the stream reached the event? device_await: waits until it has. */
bool device_reached(Event e);
void device_await(Event e);
/* Local. When s reaches this point, a kernel writes note to *where (device_pin). For graphs, which
 * are replayed many times: an event would show the last replay only. Any thread may read the
 * note. */
void device_note(Stream s, uint32_t *where, uint32_t note);
uint32_t device_noted(const uint32_t *where);
/* Local. Puts a copy between devices, or within one, into s; copy engines copy between devices. */
void device_copy_in(Stream s, void *to, const void *from, size_t n_bytes);
/* Local. Puts a device_put from pinned memory (device_pin) into s. */
void device_put_in(Stream s, void *to, const void *pinned, size_t n_bytes);
/* Local. When s reaches this point, x is written to *where, memory of a device or of device_pin,
 * after all that s did before. No kernel writes it, as a kernel might find no free
 * multiprocessor. */
void device_say(Stream s, uint32_t *where, uint32_t x);
/* Local. device_clock: an event with a time. device_seconds: seconds between two such events, which
 * their streams have reached. */
Event device_clock(void);
double device_seconds(Event from, Event to);

/* Local. Is p device memory? */
bool device_holds(const void *p);
/* Local. Sets the device of a thread that is not a rank but queries a rank's events. */
void device_visit(int device);
int device_index(void); // of the calling thread's device
/* Local. Enables kernels of the calling thread's device to access memory of another device. False:
 * they cannot. */
bool device_reaches(int other);

#endif
