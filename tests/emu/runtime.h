/* runtime -- the functions of CUDA's runtime library that this program calls, with device memory in
 * this process.
 *
 *   memory    filled with NaN when allocated. The page behind it is inaccessible, and strips around
 *             it are checked after every kernel. Host code cannot access device memory: it is
 *             accessible only while a kernel or a copy runs.
 *   streams   work put into a stream runs at once. Late streams (EmuSetup of emu.h) run it only
 *             when somebody waits for it: code that lacks a wait then reads NaN or old contents, or
 *             with another order of streams the contents that come after.
 *   graphs    hold the work of a stream and of the streams that follow it; calls that CUDA refuses
 *             during a recording are refused (emu_graph.c).
 *
 * Several host threads may call it at the same time. Late streams run one piece of work at a time,
 * on the thread that waits. The environment sets the devices: EMU_DEVICES=2 two devices,
 * EMU_PEERS=0 devices without access to each other, EMU_MEMORY=64 MiB of memory of each,
 * EMU_KIND='NVIDIA A100 80GB PCIe' their name.
 *
 * Names, error numbers and meanings are those of the CUDA Runtime API reference. Misuse ends the
 * program with a line, where the library would return an error or behave undefined.
 */
#ifndef TESTS_EMU_RUNTIME_H
#define TESTS_EMU_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorPeerAccessAlreadyEnabled = 704,
    cudaErrorTooManyPeers = 711,
    cudaErrorMapBufferObjectFailed = 205,
    cudaErrorIllegalState = 401,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureUnjoined = 904,
    cudaErrorStreamCaptureIsolation = 905,
    cudaErrorCapturedEvent = 907,
} cudaError_t;
typedef enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
} cudaMemcpyKind;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed,
} cudaStreamCaptureMode;
enum { cudaGraphInstantiateFlagUseNodePriority = 8 };
enum { cudaDevAttrClockRate = 13, cudaDevAttrCanFlushRemoteWrites = 98 };
enum { cudaStreamDefault, cudaStreamNonBlocking };
enum { cudaEventDefault, cudaEventBlockingSync, cudaEventDisableTiming };
enum { cudaHostAllocDefault, cudaHostAllocPortable };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

enum { cudaIpcMemLazyEnablePeerAccess = 1 };
typedef struct cudaIpcMemHandle_t {
    char reserved[64];
} cudaIpcMemHandle_t;

typedef struct cudaUUID_t {
    char bytes[16];
} cudaUUID_t;
typedef struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
    int regsPerBlock, warpSize, maxThreadsPerBlock, major, minor, multiProcessorCount, l2CacheSize;
    int maxThreadsPerMultiProcessor, pciBusID, pciDeviceID, pciDomainID;
} cudaDeviceProp;

enum cudaMemoryType {
    cudaMemoryTypeUnregistered,
    cudaMemoryTypeHost,
    cudaMemoryTypeDevice,
};
typedef struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
} cudaPointerAttributes;

/* Local. A mistake made on purpose by tests: the n-th wait for an event or a value that this thread
 * puts into a stream from now on is forgotten. 0: none. */
void emu_forget_wait(int n);
/* Local. The priority of a stream: -5 is the highest, 0 the lowest. */
int emu_priority(cudaStream_t s);
/* Local. emu_is_device: is all of [p, p + n_bytes) device memory? emu_is_reached: may kernels
 * access p, in device memory or pinned memory? */
bool emu_is_device(const void *p, size_t n_bytes);
bool emu_is_reached(const void *p);
/* Local. Called when a kernel is launched into s. The first launch loads the kernel, which may wait
 * for the device: dies if it happens in a recording. */
void emu_load(cudaStream_t s, const char *name, const void *kernel);
/* Local. Puts run(ctx) into a stream; ctx is freed afterwards. name: printed if the work wrote
 * beside device memory. */
void emu_enqueue(cudaStream_t s, const char *name, void (*run)(void *ctx), void *ctx);
/* The same for a copy engine: the work can also run while a kernel waits (emu_run_copy). */
void emu_enqueue_copy(cudaStream_t s, const char *name, void (*run)(void *ctx), void *ctx);
/* As emu_enqueue, but the work runs when ready(ctx) is true; work behind it waits. Then drop(ctx)
 * is called; in a graph, when the graph is destroyed. */
void emu_enqueue_when(cudaStream_t s, const char *name, bool (*ready)(const void *ctx),
                      void (*run)(void *ctx), void (*drop)(void *ctx), void *ctx);

const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetLastError(void);
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device);
cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *all_bytes);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p);
cudaError_t cudaMalloc(void **p, size_t n_bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *h, void *p);
cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t h, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void *p);
cudaError_t cudaHostAlloc(void **p, size_t n_bytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, cudaMemcpyKind kind,
                            cudaStream_t s);
cudaError_t cudaMemsetAsync(void *p, int byte, size_t n_bytes, cudaStream_t s);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long flags);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e);

#endif
