/* peer -- device memory of another process of the node, by CUDA IPC: its owner makes a handle,
 * which the other process opens. The memory then has another address there, and kernels, copies and
 * numbers that streams write (streams.h) reach it as that of any other device.
 *
 * Of memory that device_alloc gave, from its beginning. All others close it before its owner frees
 * it. Source: CUDA runtime API, cudaIpcGetMemHandle, cudaIpcOpenMemHandle; driver API,
 * cuStreamWaitValue32.
 */
#ifndef LAYERS_CUDA_PEER_H
#define LAYERS_CUDA_PEER_H

#include "layers/cuda/streams.h"

/* To be sent to the other process as it is. */
typedef struct DeviceHandle {
    char bytes[64];
} DeviceHandle;

/* Local. False, with the reason, where the driver gives no handles. */
bool device_handle(void *p, DeviceHandle *h, Err *e);
/* Local. NULL, with the reason: another host, another IPC namespace, a device that is not visible
 * or not reached. */
void *device_open_handle(const DeviceHandle *h, Err *e);
void device_close_handle(void *p);

/* Local. Work put into s from now on waits until *where, which device_say writes, is x or later:
 * numbers count up, modulo 2^32. It sees what the other process has written into this device's
 * memory before it said so; a device that may reorder such writes is told to flush them. Takes no
 * multiprocessor. */
void device_wait_said(Stream s, const uint32_t *where, uint32_t x);

#endif
