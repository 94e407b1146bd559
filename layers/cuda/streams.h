/* streams -- order between the streams of a rank, and between streams of ranks that are threads of
 * one process.
 *
 *     rank 0, own      matmul --o  record(a)      matmul           --wait(d)-- norm
 *     rank 0, comm              \ wait(a), wait(b)  sum of both parts --o record(d)
 *     rank 1, own      matmul ------o  record(b)
 *
 * An event is a point in a stream. Work put into a stream after device_stream_wait waits on the
 * device for that point; the host does not wait. Recording an event again moves the event, for
 * later waits.
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
/* Local. An event of the calling thread's device. A wait for an event that was never recorded
 * returns at once. */
Event device_event(void);
void device_event_free(Event e);
/* Local. Records the event at the end of s, a stream of the event's device. */
void device_record(Event e, Stream s);
/* Local. Work put into s from now on waits for the last record of e, on any device. */
void device_stream_wait(Stream s, Event e);
/* Local. device_event_query: has the stream reached the event? device_event_synchronize: waits
 * until it has. */
bool device_event_query(Event e);
void device_event_synchronize(Event e);
/* Local. When s reaches this point, a kernel writes value to *where (device_pin). For graphs, which
 * are replayed many times: an event would show the last replay only. Any thread may read the
 * value. */
void device_write_progress(Stream s, uint32_t *where, uint32_t value);
uint32_t device_read_progress(const uint32_t *where);
/* Local. Puts a copy between devices, or within one, into s; copy engines copy between devices. */
void device_copy_in(Stream s, void *to, const void *from, size_t n_bytes);
/* Local. Puts a device_put from pinned memory (device_pin) into s. */
void device_put_in(Stream s, void *to, const void *pinned, size_t n_bytes);
/* Local. When s reaches this point, x is written to *where, memory of a device or of device_pin,
 * after all that s did before. No kernel writes it, as a kernel might find no free
 * multiprocessor. */
void device_write_value(Stream s, uint32_t *where, uint32_t x);
/* Local. device_clock: an event with a time. device_seconds: seconds between two such events, which
 * their streams have reached. */
Event device_clock(void);
double device_seconds(Event from, Event to);

/* Local. Does p point to device memory? */
bool device_is_pointer(const void *p);
/* Local. Sets the device of a thread that is not a rank but queries a rank's events. */
void device_set_current(int device);
int device_index(void); // of the calling thread's device
/* Local. Enables kernels of the calling thread's device to access memory of another device. False:
 * they cannot. */
bool device_enable_peer(int other);

#endif
