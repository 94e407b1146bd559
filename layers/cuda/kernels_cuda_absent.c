/* A build without CUDA. */
#include <string.h>

#include "layers/cuda/device.h"
#include "layers/kernels.h"

static const char absent[] =
    "this train_gpt was built without CUDA: make where nvcc and a GPU are, or make CUDA=1";

const Kernels *kernels_cuda(bool bf16) {
    (void)bf16;
    return NULL;
}

int device_count(Err *e) {
    err(e, "%s", absent);
    return 0;
}
DeviceFacts device_facts(int device) {
    die("device %d: %s", device, absent);
}
bool device_works(int device, Err *e) {
    (void)device;
    return err(e, "%s", absent);
}
void device_open(int device, size_t scratch_bytes) {
    (void)scratch_bytes;
    die("device %d: %s", device, absent);
}
void device_close(void) {}
