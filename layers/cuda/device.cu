#include "layers/cuda/launch.cuh"

#include <cstring>

extern "C" {
#include <cuda.h>
}

namespace {

/* The device of a rank, as device_open of its thread made it. */
struct Rank {
    char name[sizeof DeviceFacts().name];
    int sms, sm_margin;
    bool has_mma, is_sm90;
    size_t shared_bytes;
    Stream stream;          // NULL: not open
    cudaEvent_t copied_out; // recorded after the last device_copy_out
    void *scratch;
    size_t scratch_bytes;
    int *zeros;
    int n_at_close;
    void (*at_close[4])(void);
};
thread_local Rank rank;
int at_most = 99; // highest compute capability that device_open assumes

} // namespace

extern "C" {

void device_check_at(int error, const char *what, const char *file, int line) {
    if (error != cudaSuccess)
        die_at(file, line, what, 1, "CUDA: %s",
               cudaGetErrorString(static_cast<cudaError_t>(error)));
}

void *device_driver_function(const char *name) {
    constexpr unsigned SINCE = 12000;
    void *f = nullptr;
    cudaDriverEntryPointQueryResult found;
    device_check(cudaGetDriverEntryPointByVersion(name, &f, SINCE, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess)
        die("the CUDA driver lacks %s: update the driver", name);
    return f;
}

int device_count(Err *e) {
    int n = 0;
    cudaError_t status = cudaGetDeviceCount(&n);
    if (status != cudaSuccess) err(e, "%s", cudaGetErrorString(status));
    return status == cudaSuccess ? n : 0; // without a driver cudaGetDeviceCount fails
}

DeviceFacts device_facts(int device) {
    cudaDeviceProp p;
    DeviceFacts f;
    device_check(cudaGetDeviceProperties(&p, device));
    memcpy(f.name, p.name, sizeof f.name);
    f.major = p.major, f.minor = p.minor, f.sms = p.multiProcessorCount;
    f.memory_bytes = p.totalGlobalMem, f.l2_bytes = static_cast<size_t>(p.l2CacheSize);
    f.shared_bytes = p.sharedMemPerBlockOptin;
    memcpy(f.id, &p.uuid, sizeof f.id);
    int khz = 0;
    cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, device);
    f.mhz = khz / 1000;
    return f;
}

bool device_works(int device, Err *e) {
    DeviceFacts f = device_facts(device);
    void *some = nullptr;
    if (f.major < 8)
        return err(e, "%s has compute capability %d.%d; 8.0 or more is needed", f.name, f.major,
                   f.minor);
    cudaError_t status = cudaSetDevice(device);
    if (status == cudaSuccess) status = cudaMalloc(&some, 1);
    if (status == cudaSuccess) status = cudaFree(some);
    return status == cudaSuccess || err(e, "%s: %s", f.name, cudaGetErrorString(status));
}

void device_at_most(int major) {
    at_most = major;
}

void device_open(int device, size_t scratch_bytes) {
    if (rank.stream) die("this thread has a device already");
    device_check(cudaSetDevice(device));
    DeviceFacts f = device_facts(device);
    memcpy(rank.name, f.name, sizeof rank.name);
    rank.has_mma = f.major >= 8 && at_most >= 8, rank.is_sm90 = f.major == 9 && at_most >= 9;
    rank.sms = f.sms, rank.shared_bytes = f.shared_bytes;
    device_check(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
    device_check(cudaEventCreateWithFlags(&rank.copied_out, cudaEventDisableTiming));
    rank.scratch = device_alloc(scratch_bytes), rank.scratch_bytes = scratch_bytes;
    rank.zeros = static_cast<int *>(device_alloc(DEVICE_ZEROS));
    device_zero(rank.zeros, DEVICE_ZEROS);
}

void device_at_close(void (*f)(void)) {
    if (rank.n_at_close == sizeof rank.at_close / sizeof *rank.at_close)
        die("more than %d functions of device_at_close", rank.n_at_close);
    rank.at_close[rank.n_at_close++] = f;
}

void device_close(void) {
    device_wait();
    while (rank.n_at_close > 0) rank.at_close[--rank.n_at_close]();
    device_free(rank.scratch);
    device_free(rank.zeros);
    device_check(cudaEventDestroy(rank.copied_out));
    device_check(cudaStreamDestroy(rank.stream));
    rank = Rank();
}

const char *device_name(void) {
    return rank.name;
}

Stream device_stream(void) {
    return rank.stream;
}

int device_sms(void) {
    return rank.sms - rank.sm_margin;
}

void device_set_sm_margin(int sms) {
    rank.sm_margin = sms < rank.sms / 2 ? sms : rank.sms / 2;
}

int device_sm_margin(void) {
    return rank.sm_margin;
}

bool device_has_mma(void) {
    return rank.has_mma;
}

bool device_is_sm90(void) {
    return rank.is_sm90;
}

size_t device_shared(void) {
    return rank.shared_bytes;
}

void *device_scratch(size_t n_bytes) {
    if (n_bytes > rank.scratch_bytes)
        die("a kernel needs %zu bytes of scratch; this rank has %zu", n_bytes, rank.scratch_bytes);
    return rank.scratch;
}

int *device_zeros(void) {
    return rank.zeros;
}

void *device_alloc(size_t n_bytes) {
    void *p = nullptr;
    cudaError_t e = cudaMalloc(&p, n_bytes);
    if (e != cudaSuccess)
        die("cannot allocate %.1f MiB of device memory: %s",
            static_cast<double>(n_bytes) / (1 << 20), cudaGetErrorString(e));
    return p;
}

void device_free(void *p) {
    device_check(cudaFree(p));
}

void device_put(void *to, const void *from, size_t n_bytes) {
    device_check(cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyHostToDevice, rank.stream));
}

void device_get(void *to, const void *from, size_t n_bytes) {
    device_check(cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDeviceToHost, rank.stream));
}

void device_copy(void *to, const void *from, size_t n_bytes) {
    device_check(cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDeviceToDevice, rank.stream));
}

void device_zero(void *p, size_t n_bytes) {
    device_check(cudaMemsetAsync(p, 0, n_bytes, rank.stream));
}

void device_poison(void *p, size_t n_bytes) {
    device_check(cudaMemsetAsync(p, 0xff, n_bytes, rank.stream));
}

void *device_pin(size_t n_bytes) {
    void *p = nullptr;
    cudaError_t e = cudaHostAlloc(&p, n_bytes, cudaHostAllocPortable);
    if (e != cudaSuccess)
        die("cannot allocate %.1f MiB of pinned host memory: %s",
            static_cast<double>(n_bytes) / (1 << 20), cudaGetErrorString(e));
    return p;
}

void device_unpin(void *p) {
    device_check(cudaFreeHost(p));
}

void device_copy_out(void *to, const void *from, size_t n_bytes) {
    device_get(to, from, n_bytes);
    device_check(cudaEventRecord(rank.copied_out, rank.stream));
}

void device_wait_out(void) {
    device_check(cudaEventSynchronize(rank.copied_out));
}

size_t device_available(void) {
    size_t some = 0, all = 0;
    device_check(cudaMemGetInfo(&some, &all));
    return some;
}

void device_wait(void) {
    device_check(cudaStreamSynchronize(rank.stream));
}
}
