/* The GPUs of a node, by NVIDIA's management library. It comes with the driver and is looked for at
 * run time; what is called of it is declared here as NVIDIA documents it ("NVML API Reference
 * Guide": Initialization, Device Queries, NvLink Methods). It does not know CUDA_VISIBLE_DEVICES:
 * these are the node's GPUs. */
#include <dlfcn.h>

#include "base/library.h"
#include "parallel/plan/detect_parts.h"

enum { NVML_SUCCESS = 0, NVML_LINKS = 18, NVML_CLOCK_SM = 1 };

/* In the order of their names. */
typedef struct Nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *n);
    int (*handle)(unsigned i, void **device);
    int (*name)(void *device, char *text, unsigned n);
    int (*memory)(void *device, unsigned long long total_free_used[3]);
    int (*link)(void *device, unsigned link, int *active);
    // younger than the rest; NULL: not there
    int (*cores)(void *device, unsigned *n); // lanes for fp32
    int (*clock)(void *device, int type, unsigned *mhz);
    int (*capability)(void *device, int *major, int *minor);
} Nvml;

static const char *const names[] = {"nvmlInit_v2",
                                    "nvmlShutdown",
                                    "nvmlDeviceGetCount_v2",
                                    "nvmlDeviceGetHandleByIndex_v2",
                                    "nvmlDeviceGetName",
                                    "nvmlDeviceGetMemoryInfo",
                                    "nvmlDeviceGetNvLinkState"};
static const char *const later_names[] = {"nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMaxClockInfo",
                                          "nvmlDeviceGetCudaComputeCapability"};
enum { NAMES = sizeof names / sizeof *names, LATER = sizeof later_names / sizeof *later_names };
_Static_assert(sizeof(Nvml) == (NAMES + LATER) * sizeof(void *), "a name for each function");

/* What it could do, for all that the library says of it. */
static void read_peak(const Nvml *nvml, void *device, const char *name, double flops[2]) {
    unsigned cores = 0, mhz = 0;
    const char *how;
    GpuFacts g = {.name = name};
    if (nvml->cores) nvml->cores(device, &cores);
    if (nvml->clock) nvml->clock(device, NVML_CLOCK_SM, &mhz);
    if (nvml->capability) nvml->capability(device, &g.major, &g.minor);
    g.sms = (int)cores / (g.major == 8 && g.minor == 0 ? 64 : 128);
    g.mhz = (int)mhz;
    for (int bf16 = 0; bf16 < 2; bf16++) flops[bf16] = gpu_peak(&g, bf16, &how);
}

static void read_gpu(const Nvml *nvml, void *device, NodeFacts *n) {
    char name[96] = "unknown GPU"; // NVML_DEVICE_NAME_V2_BUFFER_SIZE
    unsigned long long memory[3] = {0};
    int links = 0;
    nvml->name(device, name, sizeof name);
    nvml->memory(device, memory);
    for (unsigned i = 0; i < NVML_LINKS; i++) {
        int active = 0; // fails where the GPU has fewer links
        if (nvml->link(device, i, &active) == NVML_SUCCESS) links += active == 1;
    }
    snprintf(n->gpu[n->n_gpus].name, sizeof n->gpu->name, "%.47s", name);
    read_peak(nvml, device, name, n->gpu[n->n_gpus].flops);
    n->gpu[n->n_gpus].memory = (int64_t)memory[0];
    n->gpu[n->n_gpus++].links = links;
}

void node_gpus(NodeFacts *n, const char *library) {
    enum { MOST = sizeof n->gpu / sizeof *n->gpu };
    Nvml nvml;
    unsigned count = 0;
    n->n_gpus = 0;
    Err why;
    void *handle = library_open(library, names, NAMES, &nvml, &why), *device;
    if (!handle) return;
    library_find(handle, later_names, LATER, &nvml.cores);
    if (nvml.init() == NVML_SUCCESS) {
        nvml.count(&count);
        for (unsigned i = 0; i < count && n->n_gpus < MOST; i++)
            if (nvml.handle(i, &device) == NVML_SUCCESS) read_gpu(&nvml, device, n);
        nvml.shutdown();
    }
    dlclose(handle);
}
