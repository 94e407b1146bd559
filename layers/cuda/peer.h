/* peer -- device memory of another process of the node, by CUDA IPC: the owner of the memory makes
 * a handle, which the other process opens. The memory has another address in that process. Kernels,
 * copies, and streams that write numbers (streams.h) reach it like the memory of any other device.
 *
 * A handle is for memory from device_alloc, from its beginning. All other processes close it before
 * its owner frees the memory. Source: CUDA runtime API, cudaIpcGetMemHandle, cudaIpcOpenMemHandle;
 * driver API, cuStreamWaitValue32.
 */
#ifndef LAYERS_CUDA_PEER_H
#define LAYERS_CUDA_PEER_H

#include "layers/cuda/streams.h"

/* The bytes are sent to the other process unchanged. */
typedef struct DeviceHandle {
    char bytes[64];
} DeviceHandle;

/* Local. False, with the reason, where the driver gives no handles. */
bool device_handle(void *p, DeviceHandle *h, Err *e);
/* Local. The memory of a handle. NULL, with the reason: another host, another IPC namespace, or a
 * device that is not visible or cannot be reached. */
void *device_open_handle(const DeviceHandle *h, Err *e);
void device_close_handle(void *p);

/* Local. Work put into s from now on waits until device_write_value has written x or a later number
 * to *where; numbers count up, modulo 2^32. That work sees all that the other process wrote into
 * this device's memory before this number; a device that may reorder such writes is told to flush
 * them. Takes no multiprocessor. */
void device_wait_value(Stream s, const uint32_t *where, uint32_t x);

#endif
