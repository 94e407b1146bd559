/* runtime -- devices, memory and copies under CUDA's names. */
#include "tests/emu/runtime.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"
#include "tests/emu/calls.h"
#include "tests/emu/emu.h"
#include "tests/emu/emu_graph.h"
#include "tests/emu/emu_memory.h"
#include "tests/test.h"

const bool test_on_device = false;

static __thread int device;
static __thread unsigned reached; // bit d: kernels of this thread's device access device d
enum { MIB = 1 << 20, MOST_PEERS = 8 };
static size_t device_bytes = (size_t)16384 * MIB;
static const char *device_kind = "emulated";

__attribute__((constructor)) static void look_at_environment(void) {
    const char *devices = getenv("EMU_DEVICES"), *reach = getenv("EMU_PEERS"),
               *memory = getenv("EMU_MEMORY"), *kind = getenv("EMU_KIND");
    if (devices) emu_setup.devices = atoi(devices);
    if (reach) emu_setup.apart = atoi(reach) == 0;
    if (memory) device_bytes = (size_t)atoi(memory) * MIB;
    if (kind) device_kind = kind;
}

const char *cudaGetErrorString(cudaError_t e) {
    static const struct {
        cudaError_t e;
        const char *text;
    } texts[] = {
        {cudaSuccess, "no error"},
        {cudaErrorInvalidValue, "invalid argument"},
        {cudaErrorMemoryAllocation, "out of memory"},
        {cudaErrorNoDevice, "no CUDA-capable device is detected"},
        {cudaErrorInvalidDevice, "invalid device ordinal"},
        {cudaErrorInvalidResourceHandle, "invalid resource handle"},
        {cudaErrorMapBufferObjectFailed, "mapping of buffer object failed"},
        {cudaErrorNotReady, "device not ready"},
        {cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"},
        {cudaErrorTooManyPeers, "peer mapping resources exhausted"},
        {cudaErrorIllegalState, "the operation cannot be performed in the present state"},
        {cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"},
        {cudaErrorStreamCaptureInvalidated,
         "operation failed due to a previous error during capture"},
        {cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"},
        {cudaErrorStreamCaptureIsolation,
         "dependency created on uncaptured work in another stream"},
        {cudaErrorCapturedEvent,
         "operation not permitted on an event last recorded in a capturing stream"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].e == e) return texts[i].text;
    return "unknown error";
}

cudaError_t cudaGetLastError(void) {
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *n) {
    *n = emu_setup.devices;
    return emu_setup.devices ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int d) {
    if (d < 0 || d >= emu_setup.devices) return cudaErrorInvalidDevice;
    device = d, reached = 0;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *d) {
    *d = device;
    return cudaSuccess;
}
/* A device with the limits of an H200 but four multiprocessors. */
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int d) {
    if (d < 0 || d >= emu_setup.devices) return cudaErrorInvalidDevice;
    *p = (cudaDeviceProp){.totalGlobalMem = device_bytes, .sharedMemPerBlock = 48 << 10};
    snprintf(p->name, sizeof p->name, "%s", device_kind);
    p->sharedMemPerBlockOptin = 227 << 10, p->sharedMemPerMultiprocessor = 228 << 10;
    p->regsPerBlock = 65536, p->warpSize = 32, p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->major = 9, p->multiProcessorCount = 4, p->l2CacheSize = 60 << 20;
    p->pciBusID = d + 1;
    gethostname(p->uuid.bytes + 1, sizeof p->uuid.bytes - 1);
    p->uuid.bytes[0] = (char)('a' + d);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int d) {
    if (d < 0 || d >= emu_setup.devices) return cudaErrorInvalidDevice;
    if (attribute != cudaDevAttrClockRate && attribute != cudaDevAttrCanFlushRemoteWrites)
        return cudaErrorInvalidValue;
    // clock: 1 MHz; flush: only devices with odd numbers
    *value = attribute == cudaDevAttrClockRate ? 1000 : d % 2;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *all_bytes) {
    *all_bytes = device_bytes;
    *free_bytes = *all_bytes - memory_in_use(device);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int d, int peer) {
    if (d < 0 || d >= emu_setup.devices || peer < 0 || peer >= emu_setup.devices)
        return cudaErrorInvalidDevice;
    *can = !emu_setup.apart && d != peer;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    if (flags) return cudaErrorInvalidValue;
    if (peer < 0 || peer >= emu_setup.devices || peer == device || emu_setup.apart)
        return cudaErrorInvalidDevice;
    if (reached >> peer & 1) return cudaErrorPeerAccessAlreadyEnabled;
    if (__builtin_popcount(reached) == MOST_PEERS) return cudaErrorTooManyPeers;
    reached |= 1u << peer;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p) {
    *a = (cudaPointerAttributes){.device = memory_device(p)};
    if (a->device >= 0) a->type = cudaMemoryTypeDevice;
    if (memory_is_pinned(p, 1)) a->type = cudaMemoryTypeHost;
    return cudaSuccess;
}

bool emu_is_reached(const void *p) {
    return emu_is_device(p, 1) || memory_is_pinned(p, 1);
}

cudaError_t cudaMalloc(void **p, size_t n_bytes) {
    if (graph_refuses()) return cudaErrorStreamCaptureUnsupported;
    emu_called(&emu_calls.memory);
    bool fits = memory_in_use(device) + n_bytes <= device_bytes;
    *p = n_bytes && fits ? memory_take(n_bytes, 256, device) : NULL;
    return *p || !n_bytes ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *p) {
    if (graph_refuses()) return cudaErrorStreamCaptureUnsupported;
    emu_called(&emu_calls.memory);
    if (p) memory_give(p);
    return cudaSuccess;
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *h, void *p) {
    MemoryName name;
    *h = (cudaIpcMemHandle_t){{0}};
    if (!memory_share(p, &name)) return cudaErrorInvalidValue;
    memcpy(h, &name, sizeof name);
    return cudaSuccess;
}
/* A device has the same number in all processes. */
cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t h, unsigned flags) {
    MemoryName name;
    memcpy(&name, &h, sizeof name);
    if (flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
    bool reached_here = !emu_setup.apart && name.device >= 0 && name.device < emu_setup.devices;
    if (!reached_here || (name.process == getpid() && !emu_setup.ipc_within))
        return cudaErrorMapBufferObjectFailed;
    *p = memory_open(&name);
    return *p ? cudaSuccess : cudaErrorMapBufferObjectFailed;
}
cudaError_t cudaIpcCloseMemHandle(void *p) {
    memory_close(p);
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **p, size_t n_bytes, unsigned flags) {
    (void)flags;
    if (graph_refuses()) return cudaErrorStreamCaptureUnsupported;
    emu_called(&emu_calls.memory);
    *p = memory_pin(n_bytes);
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
    if (graph_refuses()) return cudaErrorStreamCaptureUnsupported;
    emu_called(&emu_calls.memory);
    if (p) memory_unpin(p);
    return cudaSuccess;
}

/* A copy of bytes; without `from`, all bytes are set to `byte`. */
typedef struct Copy {
    char *to;
    const char *from;
    size_t n_bytes;
    int byte;
    char staged[];
} Copy;

/* Areas of at least WHOLE bytes, mostly whole arenas that no rank uses yet, are filled unseen by
 * ThreadSanitizer: recording each of their bytes took a quarter of the tests of threads. */
static void do_copy(void *ctx) {
    enum { WHOLE = 1 << 20 };
    const Copy *c = ctx;
    if (c->from)
        memmove(c->to, c->from, c->n_bytes);
    else if (c->n_bytes < WHOLE)
        memset(c->to, c->byte, c->n_bytes);
    else
        memory_fill(c->to, c->byte, c->n_bytes);
}

static void check_side(const void *p, size_t n_bytes, bool on_device, const char *side) {
    if (emu_is_device(p, n_bytes) != on_device)
        die("cudaMemcpy: %zu bytes %s %p, which is %s memory of a device", n_bytes, side, p,
            on_device ? "no" : "the");
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, cudaMemcpyKind kind,
                            cudaStream_t s) {
    if (!n_bytes) return cudaSuccess;
    check_side(to, n_bytes, kind != cudaMemcpyDeviceToHost, "to");
    check_side(from, n_bytes, kind != cudaMemcpyHostToDevice, "from");
    // pageable source: the host might change it before the copy runs, so it is copied at once
    bool stage = !emu_is_device(from, 1) && !memory_is_pinned(from, n_bytes);
    bool needed = !emu_is_device(to, 1) && !memory_is_pinned(to, n_bytes);
    if ((!s || stage || needed) && graph_refuses()) return cudaErrorStreamCaptureUnsupported;
    if (stage || needed) emu_called(&emu_calls.unpinned);
    Copy *c = mem_alloc(sizeof *c + (stage ? n_bytes : 0));
    *c = (Copy){.to = to, .from = from, .n_bytes = n_bytes};
    if (stage) c->from = memcpy(c->staged, from, n_bytes);
    // within one device the driver may copy by a kernel
    bool within = emu_is_device(to, 1) && memory_device(to) == memory_device(from);
    (within ? emu_enqueue : emu_enqueue_copy)(s, "cudaMemcpy", do_copy, c);
    // pageable destination: the host may read it after this call
    if (needed) cudaStreamSynchronize(s);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int byte, size_t n_bytes, cudaStream_t s) {
    if (!n_bytes) return cudaSuccess;
    check_side(p, n_bytes, true, "at");
    Copy *c = mem_alloc(sizeof *c);
    *c = (Copy){.to = p, .n_bytes = n_bytes, .byte = byte};
    emu_enqueue(s, "cudaMemset", do_copy, c);
    return cudaSuccess;
}
