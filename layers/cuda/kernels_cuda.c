/* The tables of CUDA kernels. */
#include <pthread.h>
#include <string.h>

#include "layers/cuda/clock_cuda.h"
#include "layers/cuda/device.h"
#include "layers/cuda/families.h"
#include "layers/cuda/graph.h"

/* Arenas in device memory. */
static void *map(size_t n_bytes) {
    void *p = device_alloc(n_bytes);
    device_zero(p, n_bytes);
    return p;
}
/* Waits first: work in the rank's stream may still use the memory. */
static void unmap(void *p) {
    device_wait();
    device_free(p);
}
static void put(void *to, const void *from, size_t n_bytes) {
    device_put(to, from, n_bytes);
    device_wait();
}
static void get(void *to, const void *from, size_t n_bytes) {
    device_get(to, from, n_bytes);
    device_wait();
}
static const ArenaMemory memory = {map, unmap, put, get, device_available, device_wait};

/* Pinned host memory: copies to the device and from it are asynchronous. */
static void *pin(size_t n_bytes) {
    return memset(device_pin(n_bytes), 0, n_bytes);
}
static void unpin(void *p) {
    device_wait();
    device_unpin(p);
}
static const ArenaMemory pinned = {.map = pin, .unmap = unpin};

static void *recorded(void) {
    return device_captured();
}
static void replay(void *recording) {
    device_replay(recording);
}
static void free_recording(void *recording) {
    device_graph_free(recording);
}

static Kernels table[2]; // fp32, bf16
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void) {
    for (int bf16 = 0; bf16 < 2; bf16++) {
        table[bf16] = *kernels_cuda_sizes(bf16);
        table[bf16].memory = &memory, table[bf16].pinned = &pinned;
        table[bf16].copy_out = device_copy_out, table[bf16].wait_out = device_wait_out;
        table[bf16].record = device_capture, table[bf16].recorded = recorded;
        table[bf16].replay = replay, table[bf16].free_recording = free_recording;
        table[bf16].clock = &device_marks;
#define FILL(name) name##_cuda(&table[bf16], bf16);
        CUDA_FAMILIES(FILL)
#undef FILL
    }
}

const Kernels *kernels_cuda(bool bf16) {
    pthread_once(&once, fill);
    return &table[bf16];
}
