/* device -- one rank's GPU: its memory, its stream, copies to and from it.
 *
 * A rank is a thread of the host. device_open ties the calling thread to a device; from then on all that this thread
 * starts goes, in order, into one stream of that device and is complete in the order of that stream, not when the call
 * returns. Kernels and copies need no waits between them; the host waits (device_wait) before it reads.
 *
 * Errors of CUDA end the program with the library's own words: a step has no recovery. Used by layers/ and parallel/.
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
    size_t shared_bytes; // that a block may have
    char id[16];         // no other device of the world has it
} DeviceFacts;

/* Local. Devices here; 0 without a driver, or in a build without CUDA: then e says why. */
int device_count(Err *e);
DeviceFacts device_facts(int device);
/* Local. Can a rank run on it? The driver may refuse it, or somebody have it for himself; kernels want compute capability
 * 8.0 (bf16, copies that run on). */
bool device_works(int device, Err *e);

/* Local. From the next device_open of this program on, devices count as of at most this capability: so that kernels for
 * older ones are tested and timed on a newer one. */
void device_at_most(int major);
/* Local. The calling thread is a rank on this device from now on, with so many bytes of scratch. */
void device_open(int device, size_t scratch_bytes);
void device_close(void);
/* Local. device_close of this thread calls it before the device goes: for what a library keeps of a device. */
void device_at_close(void (*f)(void));
/* Local. Of the calling thread's device: its name; its stream; multiprocessors for the next kernel; bytes of shared memory
 * that a block may have. */
const char *device_name(void);
Stream device_stream(void);
int device_sms(void);
/* Local. From the next kernel on those whose blocks are as many as multiprocessors, and stay (of products, of attention), leave
 * some to kernels in other streams, but never more than half: blocks that find no place until others have ended make a kernel
 * last twice as long. 0: none. */
void device_leave(int sms);
int device_left(void);
bool device_is_sm90(void); // has it what only capability 9.0 has: TMA and products of warpgroups?
size_t device_shared(void);
/* Local. Memory for one call of a kernel family between its kernels: the next call may overwrite it. Dies when it is
 * more than device_open got. */
enum {
    DEVICE_SCRATCH = 32 << 20
}; // for every family of layers/ and any batch: 512 bytes a feature
void *device_scratch(size_t n_bytes);

/* Local. Device memory, aligned to 256 bytes, of any value. Not inside a step. */
void *device_alloc(size_t n_bytes);
void device_free(void *p);
/* Local. Host to device, device to host, device to device, in the order of the stream. put may still read, and get
 * still write, host memory that is pinned when they return; other host memory they are done with. */
void device_put(void *to, const void *from, size_t n_bytes);
void device_get(void *to, const void *from, size_t n_bytes);
void device_copy(void *to, const void *from, size_t n_bytes);
void device_zero(void *p, size_t n_bytes);
/* Local. Pinned memory of the host: copies from it and to it run on while the host does. Not inside a step. */
void *device_pin(size_t n_bytes);
void device_unpin(void *p);
/* Local. device_get to pinned memory, and the wait for the last one that was begun so: not for what came into the stream
 * after it. */
void device_tell(void *to, const void *from, size_t n_bytes);
void device_told(void);
/* Local. Bytes that are free on the calling thread's device. */
size_t device_available(void);
/* Local. The stream has done all that was put in. */
void device_wait(void);

/* Local. Dies when `error` (a cudaError_t) is not 0. */
void device_check_at(int error, const char *what, const char *file, int line);
#define device_check(call) device_check_at((call), #call, __FILE__, __LINE__)

#endif
