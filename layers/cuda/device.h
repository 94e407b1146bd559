/* device -- one rank's GPU: its memory, its stream, copies to and from it.
 *
 * A rank is a host thread. device_open binds the calling thread to a device. From then on all work
 * of the thread goes into one stream of that device and completes in the order of that stream, not
 * when the call returns. Kernels and copies need no waits between them; the host calls device_wait
 * before it reads.
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
    int sms, mhz;     // multiprocessors; their highest clock, 0: unknown
    size_t memory_bytes, l2_bytes;
    size_t shared_bytes; // most shared memory of a block
    char id[16];         // UUID of the device
} DeviceFacts;

/* Local. Number of devices; 0, with the reason in e, without a driver or in a build without
 * CUDA. */
int device_count(Err *e);
DeviceFacts device_facts(int device);
/* Local. Can a rank run on the device? It cannot if the driver refuses the device, if another
 * process has it exclusively, or below compute capability 8.0 (bf16, asynchronous copies). */
bool device_works(int device, Err *e);

/* Local. Limits the compute capability that the next device_open, and later ones, assume: to test
 * and time kernels for older devices on a newer one. */
void device_at_most(int major);
/* Local. Binds the calling thread to a device, with scratch_bytes of scratch. */
void device_open(int device, size_t scratch_bytes);
void device_close(void);
/* Local. Registers a function that frees the state of a module: device_close of this thread calls
 * it. */
void device_at_close(void (*f)(void));
/* Local. Facts of the calling thread's device: its name; its stream; the number of multiprocessors
 * for the next kernel. */
const char *device_name(void);
Stream device_stream(void);
int device_sms(void);
/* Local. From now on persistent kernels (one block per multiprocessor: matmuls, attention) leave
 * `sms` multiprocessors, at most half of all, to kernels in other streams; 0: none. Otherwise a
 * block that waits for a busy multiprocessor would double the time of the kernel. device_sm_margin:
 * this number. */
void device_set_sm_margin(int sms);
int device_sm_margin(void);
bool device_has_mma(void);  // compute capability 8.0 or newer: mma.sync of bf16, cp.async
bool device_is_sm90(void);  // compute capability 9.0: TMA and wgmma
size_t device_shared(void); // bytes of shared memory that a block may have
/* Local. Scratch memory for one call of a kernel family; the next call may overwrite it. Dies if
 * n_bytes is more than device_open reserved. */
enum {
    // bytes; every family of layers/ needs at most SCRATCH_OF_FEATURE bytes per feature, for any
    // batch
    DEVICE_SCRATCH = 32 << 20,
    SCRATCH_OF_FEATURE = 512
};
void *device_scratch(size_t n_bytes);

/* Local. Device memory that is 0 while no kernel of the rank's stream runs, for counters and flags:
 * a kernel that writes there leaves zeros behind. */
enum { DEVICE_ZEROS = 8 << 10 }; // bytes
int *device_zeros(void);

/* Local. Uninitialized device memory, aligned to 256 bytes. Not inside a step. */
void *device_alloc(size_t n_bytes);
void device_free(void *p);
/* Local. Copies in the order of the stream: put from host to device, get from device to host, copy
 * on the device. With pinned host memory they may return before put has read it or get has written
 * it; other host memory is no longer in use when they return. */
void device_put(void *to, const void *from, size_t n_bytes);
void device_get(void *to, const void *from, size_t n_bytes);
void device_copy(void *to, const void *from, size_t n_bytes);
void device_zero(void *p, size_t n_bytes);
void device_poison(void *p, size_t n_bytes); // NaN in every format
/* Local. Pinned host memory, for asynchronous copies. Not inside a step. */
void *device_pin(size_t n_bytes);
void device_unpin(void *p);
/* Local. device_copy_out is device_get to pinned memory. device_wait_out waits for the last such
 * copy, but not for work put into the stream after it. */
void device_copy_out(void *to, const void *from, size_t n_bytes);
void device_wait_out(void);
/* Local. Free bytes of the calling thread's device. */
size_t device_available(void);
/* Local. Waits until the stream is empty. */
void device_wait(void);

/* Local. The address of a function of the driver, in its version of CUDA 12.0, by name: so nothing
 * is linked to the driver's library. Dies if the driver lacks it. */
void *device_driver_function(const char *name);

/* Local. Dies when `error` (a cudaError_t) is not 0. */
void device_check_at(int error, const char *what, const char *file, int line);
#define device_check(call) device_check_at((call), #call, __FILE__, __LINE__)

#endif
