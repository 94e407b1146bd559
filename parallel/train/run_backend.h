/* run_backend -- the device of the kernels of a run: --backend. Part of train.h. */
#ifndef PARALLEL_TRAIN_RUN_BACKEND_H
#define PARALLEL_TRAIN_RUN_BACKEND_H

#include "layers/cuda/device.h"
#include "parallel/plan/gpu.h"

typedef struct Run Run;

typedef struct Device {
    bool used; // false: kernels run on the CPU
    int index; // number on the node
    int ranks; // ranks that share it
    int all;   // number of devices of all ranks
    DeviceFacts facts;
    Err unused;   // why a present GPU is not used; "": none present, or it is used
    Err unshared; // why ranks do not use each other's memory, where --overlap fused asks for it
} Device;

/* Local, before ranks start. Ends the program for options that --backend cuda does not support. */
void run_check_backend(const Run *r);
/* Collective. Sets r->kernels and r->device; closes the device. */
void run_open_backend(Run *r);
void run_close_backend(const Run *r);
/* Local. --version: prints what this program was built from and with; returns 0. */
int run_print_version(void);
/* Local. "avx512_bf16", "cuda". */
const char *run_kernels_name(const Run *r);
GpuFacts device_gpu(const DeviceFacts *f);
/* Collective. Finds r->peak_flops and r->peak_rank. */
void run_find_peak(Run *r);
/* Local, rank 0. A rate of all ranks (FLOP/s) as a fraction of the peak (MFU). At most 1: a rate
 * above the peak shows that the peak was measured too low, and replaces it. */
double run_share_of_peak(Run *r, double flops);
/* Local, rank 0. Prints lines of the header. */
void run_print_machine(const Run *r);

#endif
