extern "C" {
#include "layers/cuda/streams.h"
#include <cuda.h>
}

#include "layers/cuda/launch.cuh"
#include "layers/cuda/ptx.cuh"

namespace {
__global__ void put_progress(uint32_t *where, uint32_t value) {
    store_for_host(where, value);
}
} // namespace

extern "C" {

Stream device_comm_stream(void) {
    int least, greatest;
    Stream s;
    device_check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    device_check(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, greatest));
    return s;
}

void device_stream_free(Stream s) {
    device_check(cudaStreamDestroy(s));
}

Event device_event(void) {
    Event e;
    device_check(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

void device_event_free(Event e) {
    device_check(cudaEventDestroy(e));
}

void device_record(Event e, Stream s) {
    device_check(cudaEventRecord(e, s));
}

void device_stream_wait(Stream s, Event e) {
    device_check(cudaStreamWaitEvent(s, e, 0));
}

bool device_event_query(Event e) {
    cudaError_t error = cudaEventQuery(e);
    if (error == cudaErrorNotReady) return false;
    device_check(error);
    return true;
}

void device_event_synchronize(Event e) {
    device_check(cudaEventSynchronize(e));
}

void device_write_progress(Stream s, uint32_t *where, uint32_t value) {
    LAUNCH_ON(s, put_progress, 1, 1, 0, where, value);
}

uint32_t device_read_progress(const uint32_t *where) {
    return __atomic_load_n(where, __ATOMIC_ACQUIRE);
}

void device_copy_in(Stream s, void *to, const void *from, size_t n_bytes) {
    device_check(cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDeviceToDevice, s));
}

void device_put_in(Stream s, void *to, const void *pinned, size_t n_bytes) {
    device_check(cudaMemcpyAsync(to, pinned, n_bytes, cudaMemcpyHostToDevice, s));
}

void device_write_value(Stream s, uint32_t *where, uint32_t x) {
    using Write = decltype(&cuStreamWriteValue32);
    static thread_local Write write;
    if (!write) write = reinterpret_cast<Write>(device_driver_function("cuStreamWriteValue32"));
    int e = write(s, reinterpret_cast<CUdeviceptr>(where), x, CU_STREAM_WRITE_VALUE_DEFAULT);
    if (e) die("the driver refuses cuStreamWriteValue32: error %d", e);
}

Event device_clock(void) {
    Event e;
    device_check(cudaEventCreateWithFlags(&e, cudaEventDefault));
    return e;
}

double device_seconds(Event from, Event to) {
    float ms;
    device_check(cudaEventElapsedTime(&ms, from, to));
    return 1e-3 * static_cast<double>(ms);
}

void device_set_current(int device) {
    device_check(cudaSetDevice(device));
}

bool device_is_pointer(const void *p) {
    cudaPointerAttributes a;
    device_check(cudaPointerGetAttributes(&a, p));
    return a.type == cudaMemoryTypeDevice;
}

int device_index(void) {
    int device;
    device_check(cudaGetDevice(&device));
    return device;
}

bool device_enable_peer(int other) {
    int can = 0, mine = device_index();
    if (other == mine) return true;
    device_check(cudaDeviceCanAccessPeer(&can, mine, other));
    if (!can) return false;
    cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled || error == cudaErrorTooManyPeers)
        cudaGetLastError(); // else the next launch reports it
    else
        device_check(error);
    return error != cudaErrorTooManyPeers; // without NVSwitch: more than eight
}
}
