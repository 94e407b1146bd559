/* fake_nvml -- a libnvidia-ml.so.1 of two GPUs, for tests: the second has fewer NVLinks than it has
 * places for them, one of which is down. A third one fails whatever is asked of it. */
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, LOST = 15 };

struct Device {
    const char *name;
    unsigned long long memory;
    unsigned links, down, cores, mhz;
    int major, minor;
} devices[] = {{"NVIDIA H200", 150754820096, 18, 18, 132 * 128, 1980, 9, 0},
               {"NVIDIA A100-SXM4-40GB", 42949672960, 12, 5, 108 * 64, 1410, 8, 0}};

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *n);
int nvmlDeviceGetHandleByIndex_v2(unsigned i, struct Device **device);
int nvmlDeviceGetName(struct Device *device, char *text, unsigned n);
int nvmlDeviceGetMemoryInfo(struct Device *device, unsigned long long total_free_used[3]);
int nvmlDeviceGetNvLinkState(struct Device *device, unsigned link, int *active);
int nvmlDeviceGetNumGpuCores(struct Device *device, unsigned *n);
int nvmlDeviceGetMaxClockInfo(struct Device *device, int type, unsigned *mhz);
int nvmlDeviceGetCudaComputeCapability(struct Device *device, int *major, int *minor);

int nvmlInit_v2(void) {
    return SUCCESS;
}
int nvmlShutdown(void) {
    return SUCCESS;
}
int nvmlDeviceGetCount_v2(unsigned *n) {
    *n = 3;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, struct Device **device) {
    if (i >= 2) return LOST;
    *device = &devices[i];
    return SUCCESS;
}
int nvmlDeviceGetName(struct Device *device, char *text, unsigned n) {
    if (n <= strlen(device->name)) return INSUFFICIENT_SIZE;
    strcpy(text, device->name);
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(struct Device *device, unsigned long long total_free_used[3]) {
    total_free_used[0] = device->memory;
    total_free_used[1] = total_free_used[2] = device->memory / 2;
    return SUCCESS;
}
int nvmlDeviceGetNvLinkState(struct Device *device, unsigned link, int *active) {
    if (link >= device->links) return NOT_SUPPORTED;
    *active = link != device->down;
    return SUCCESS;
}
int nvmlDeviceGetNumGpuCores(struct Device *device, unsigned *n) {
    *n = device->cores;
    return SUCCESS;
}
int nvmlDeviceGetMaxClockInfo(struct Device *device, int type, unsigned *mhz) {
    if (type != 1) return NOT_SUPPORTED; // of multiprocessors
    *mhz = device->mhz;
    return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(struct Device *device, int *major, int *minor) {
    *major = device->major, *minor = device->minor;
    return SUCCESS;
}
