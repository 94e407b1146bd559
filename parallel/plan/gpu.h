/* gpu -- peak rate of a GPU, the denominator of MFU.
 *
 *   by name     dense rate of the data sheet, for known devices
 *   by clock    multiprocessors x highest clock x FLOPs per cycle of this compute capability
 *   measured    rate of large matmuls, if neither is known: lower than the other two
 */
#ifndef PARALLEL_PLAN_GPU_H
#define PARALLEL_PLAN_GPU_H

#include "layers/cuda/device.h"
#include "layers/kernels.h"

/* A data sheet: bf16 TFLOP/s (0: by clock), memory TB/s, NVLink GB/s in each direction. */
typedef struct GpuSheet {
    double tflops, memory, nvlink;
} GpuSheet;
/* Local, pure. The data sheet of a device by its name; NULL: unknown. */
const GpuSheet *gpu_sheet(const char *name);

/* Local, pure. FLOP/s of matmuls in bf16 (tensor units, fp32 sums) or fp32; *how, unless how is
 * NULL: "by name" or "by clock". 0: not known. */
double gpu_peak(const DeviceFacts *g, bool bf16, const char **how);
/* Local. FLOP/s of matmuls on the calling rank's device: the best of growing sizes. Takes some 20
 * ms. */
double gpu_measure(const Kernels *k, bool bf16);

#endif
