/* gpu -- what a GPU could do at best: what "share of peak" is a share of.
 *
 *   by name     the data sheet's dense rate, for devices that are known
 *   by clock    multiprocessors x highest clock x what one of this compute capability does in a cycle
 *   measured    the rate of large products, for those of which neither is known: a lower mark than the others
 */
#ifndef PARALLEL_GPU_H
#define PARALLEL_GPU_H

#include "layers/kernels.h"

typedef struct GpuFacts {
    const char *name; // as the driver has it: "NVIDIA H100 80GB HBM3"
    int major, minor; // compute capability
    int sms, mhz;     // multiprocessors, their highest clock; 0: not known
} GpuFacts;

/* What a data sheet says: TFLOP/s of bf16 (0: it follows from the clock), TB/s of memory, GB/s of NVLink each way. */
typedef struct GpuSheet {
    double tflops, memory, nvlink;
} GpuSheet;
/* Local, pure. That of a device by its name; NULL: not known. */
const GpuSheet *gpu_sheet(const char *name);

/* Local, pure. FLOP/s of products in bf16 (tensor units, fp32 sums) or fp32; *how: "by name" or "by clock". 0: not known. */
double gpu_peak(const GpuFacts *g, bool bf16, const char **how);
/* Local. FLOP/s of products on the calling rank's device: the best of growing ones. Some 20 ms. */
double gpu_measure(const Kernels *k, bool bf16);

#endif
