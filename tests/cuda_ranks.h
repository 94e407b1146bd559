/* cuda_ranks -- ranks as threads that have a device each, or share some:
 *
 *     ranks_run(n, cuda_rank, &(CudaJob){main, ctx})
 */
#ifndef TESTS_CUDA_RANKS_H
#define TESTS_CUDA_RANKS_H

#include "layers/cuda/device.h"
#include "parallel/comm/devices.h"

typedef struct CudaJob {
    int (*main)(World *w, void *ctx);
    void *ctx;
} CudaJob;
static inline int cuda_rank(World *w, void *ctx) {
    const CudaJob *job = ctx;
    device_open(world_rank(w) % device_count(NULL), 4096);
    world_use_devices(w);
    int result = job->main(w, job->ctx);
    world_leave_devices(w);
    device_close();
    return result;
}

#endif
