extern "C" {
#include "layers/cuda/peer.h"
#include <cuda.h>
}

#include <cstring>

#include "layers/cuda/launch.cuh"

static_assert(sizeof(DeviceHandle) == sizeof(cudaIpcMemHandle_t), "of as many bytes");

/* Puts an error of CUDA into e, and clears it: otherwise the next launch would report it. */
static bool refused(cudaError_t error, const char *what, Err *e) {
    if (error == cudaSuccess) return false;
    cudaGetLastError();
    err(e, "%s: %s", what, cudaGetErrorString(error));
    return true;
}

extern "C" {

bool device_handle(void *p, DeviceHandle *h, Err *e) {
    cudaIpcMemHandle_t handle;
    if (refused(cudaIpcGetMemHandle(&handle, p), "CUDA IPC gives no handle", e)) return false;
    memcpy(h, &handle, sizeof handle);
    return true;
}

void *device_open_handle(const DeviceHandle *h, Err *e) {
    cudaIpcMemHandle_t handle;
    void *p = nullptr;
    memcpy(&handle, h, sizeof handle);
    cudaError_t error = cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess);
    return refused(error, "CUDA IPC opens no memory", e) ? nullptr : p;
}

void device_close_handle(void *p) {
    device_check(cudaIpcCloseMemHandle(p));
}

void device_wait_value(Stream s, const uint32_t *where, uint32_t x) {
    using Wait = decltype(&cuStreamWaitValue32);
    static thread_local Wait wait;
    static thread_local unsigned flags;
    if (!wait) {
        int flushes = 0;
        wait = reinterpret_cast<Wait>(device_driver_function("cuStreamWaitValue32"));
        device_check(
            cudaDeviceGetAttribute(&flushes, cudaDevAttrCanFlushRemoteWrites, device_index()));
        flags = CU_STREAM_WAIT_VALUE_GEQ | (flushes ? CU_STREAM_WAIT_VALUE_FLUSH : 0);
    }
    int e = wait(s, reinterpret_cast<CUdeviceptr>(where), x, flags);
    if (e) die("the driver refuses cuStreamWaitValue32: error %d", e);
}
}
