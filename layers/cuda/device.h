/* device -- one rank's GPU: its memory, its stream, copies to and from it.
 *
 * A rank is a host thread. device_open binds the calling thread to a device. From then on all its
 * work goes into one stream of that device and completes in the order of that stream, not when the
 * call returns. Kernels and copies need no waits between them; the host calls device_wait before it
 * reads.
 *
 * Errors of CUDA end the program with CUDA's error text: a step has no recovery. Used by layers/
 * and parallel/.
 */
#ifndef LAYERS_CUDA_DEVICE_H
#define LAYERS_CUDA_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/die.h"

typedef struct CUstream_st *Stream; // CUDA's cudaStream_t, for C

typedef struct DeviceFacts {
    char name[256];
    int major, minor; // compute capability: 9, 0 is Hopper
    int sms, mhz;     // multiprocessors; their highest clock, 0: not known
    size_t memory_bytes, l2_bytes;
    size_t shared_bytes; // limit per block
    char id[16];         // unique among all devices
} DeviceFacts;

/* Local. Number of devices; 0, with the reason in e: no driver, or a build without CUDA. */
int device_count(Err *e);
DeviceFacts device_facts(int device);
/* Local. Can a rank run on the device? No if the driver refuses it, if it is in exclusive use, or
 * below compute capability 8.0 (bf16, asynchronous copies). */
bool device_works(int device, Err *e);

/* Local. From the next device_open on, devices are treated as of at most this compute capability:
 * to test and time kernels for older devices on a newer one. */
void device_at_most(int major);
/* Local. Binds the calling thread to a device, with so many bytes of scratch. */
void device_open(int device, size_t scratch_bytes);
void device_close(void);
/* Local. Registers a function that device_close of this thread calls, to free state of a
 * library. */
void device_at_close(void (*f)(void));
/* Local. Of the calling thread's device: its name; its stream; multiprocessors for the next kernel;
 * bytes of shared memory that a block may have. */
const char *device_name(void);
Stream device_stream(void);
int device_sms(void);
/* Local. From now on persistent kernels (one block per multiprocessor: matmuls, attention) leave n
 * multiprocessors, at most half, to kernels in other streams. Otherwise blocks that wait for a free
 * multiprocessor would double the time of a kernel. 0: none. */
void device_leave(int sms);
int device_left(void);
bool device_has_mma(void); // compute capability 8.0 or newer: mma.sync of bf16, cp.async
bool device_is_sm90(void); // compute capability 9.0: TMA and wgmma
size_t device_shared(void);
/* Local. Scratch memory for one call of a kernel family; the next call may overwrite it. Dies if
 * more than device_open reserved. */
enum {
    DEVICE_SCRATCH = 32 << 20, // for every family of layers/ and any batch,
    SCRATCH_OF_FEATURE = 512   // so many bytes a feature
};
void *device_scratch(size_t n_bytes);

/* Local. Device memory that is 0 when no kernel of the rank's stream runs, for counters and flags:
 * a kernel that writes there leaves zeros behind. */
enum { DEVICE_ZEROS = 8 << 10 }; // bytes
int *device_zeros(void);

/* Local. Uninitialized device memory, aligned to 256 bytes. Not inside a step. */
void *device_alloc(size_t n_bytes);
void device_free(void *p);
/* Local. Host to device, device to host, device to device, in the order of the stream. put may
 * still read, and get still write, host memory that is pinned when they return; other host memory
 * they are done with. */
void device_put(void *to, const void *from, size_t n_bytes);
void device_get(void *to, const void *from, size_t n_bytes);
void device_copy(void *to, const void *from, size_t n_bytes);
void device_zero(void *p, size_t n_bytes);
void device_poison(void *p, size_t n_bytes); // NaN in every format
/* Local. Pinned host memory, for asynchronous copies. Not inside a step. */
void *device_pin(size_t n_bytes);
void device_unpin(void *p);
/* Local. device_get to pinned memory, and the wait for the last one that was begun so: not for what
 * came into the stream after it. */
void device_copy_out(void *to, const void *from, size_t n_bytes);
void device_wait_out(void);
/* Local. Free bytes of the calling thread's device. */
size_t device_available(void);
/* Local. Waits until the stream is empty. */
void device_wait(void);

/* Local. A function of the driver by its name, as of CUDA 12.0: nothing is linked to the driver's
 * library. Dies without it. */
void *device_driver_function(const char *name);

/* Local. Dies when `error` (a cudaError_t) is not 0. */
void device_check_at(int error, const char *what, const char *file, int line);
#define device_check(call) device_check_at((call), #call, __FILE__, __LINE__)

#endif
