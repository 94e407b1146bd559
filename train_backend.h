/* train_backend -- where the kernels of a run compute: --backend. Part of train_gpt.h. */
#ifndef TRAIN_BACKEND_H
#define TRAIN_BACKEND_H

#include "layers/cuda/device.h"
#include "parallel/gpu.h"

typedef struct Run Run;

typedef struct Device {
    bool used; // else they run on the processor
    int index; // of the node's
    int ranks; // that share it
    int all;   // devices of all ranks
    DeviceFacts facts;
    Err unused; // why a GPU that is here is not used; "": there is none, or it is
} Device;

/* Local. Refuses what --backend cuda cannot do, before there are ranks. */
void check_backend(void);
/* Collective. r->kernels and r->device; and back. */
void open_backend(Run *r);
void close_backend(const Run *r);
/* Local. "avx512_bf16", "cuda". */
const char *kernels_name(const Run *r);
GpuFacts device_gpu(const DeviceFacts *f);
/* Collective. r->peak_flops. */
void find_peak(Run *r);
/* Local, of rank 0. Lines of the header. */
void print_machine(const Run *r);

#endif
