/* launch -- how a kernel is started on this rank's stream, and how it gets its shared memory.
 *
 * The tests compile the same kernels with g++ against a launch.cuh of their own, which runs them on
 * the CPU. All differences between the two compilers are here, in ptx.cuh and in ptx_sm90.cuh.
 */
#ifndef LAYERS_CUDA_LAUNCH_CUH
#define LAYERS_CUDA_LAUNCH_CUH

#include <cmath>
#include <cuda_runtime.h>

extern "C" {
#include "base/debug.h"
#include "base/die.h"
#include "layers/cuda/device.h"
#include "layers/cuda/graph.h"
}

// bytes; more dynamic shared memory needs an attribute of the kernel
enum { STATIC_SHARED = 48 << 10 };

template <class... P, class... A>
void launch(const char *name, const char *file, int line, Stream stream, unsigned cluster,
            void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A... args) {
    if (shared_bytes > STATIC_SHARED) {
        int e = cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(shared_bytes));
        device_check_at(e, name, file, line);
    }
    cudaLaunchAttribute a = {};
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim = {cluster, 1, 1};
    cudaLaunchConfig_t c = {grid, block, shared_bytes, stream, &a, cluster > 1};
    device_check_at(cudaLaunchKernelEx(&c, kernel, static_cast<P>(args)...), name, file, line);
    if (BASE_DEBUG && !device_captures())
        device_check_at(cudaStreamSynchronize(stream), name, file, line);
}

/* LAUNCH(kernel, grid, block, bytes of dynamic shared memory, arguments...); a kernel with several
 * template arguments stands in parentheses. LAUNCH_ON: in a given stream instead of the rank's.
 * LAUNCH_CLUSTERS: in clusters of `cluster` blocks, on a device of capability 9.0. */
#define LAUNCH(kernel, grid, block, shared_bytes, ...)                                             \
    LAUNCH_ON(device_stream(), kernel, grid, block, shared_bytes, __VA_ARGS__)
#define LAUNCH_ON(stream, kernel, grid, block, shared_bytes, ...)                                  \
    launch(#kernel, __FILE__, __LINE__, stream, 1, kernel, grid, block, shared_bytes, __VA_ARGS__)
#define LAUNCH_CLUSTERS(cluster, kernel, grid, block, shared_bytes, ...)                           \
    launch(#kernel, __FILE__, __LINE__, device_stream(), cluster, kernel, grid, block,             \
           shared_bytes, __VA_ARGS__)

/* The block's object of type S in shared memory, one per type and kernel, undefined at first:
 *     auto &tile = shared<Tile>();
 */
template <class S> __device__ __forceinline__ S &shared() {
    __shared__ S object;
    return object;
}

/* The block's dynamic shared memory, aligned to 1024 bytes, as swizzles of 128 bytes need it. */
template <class S> __device__ __forceinline__ S *dynamic_shared() {
    extern __shared__ __align__(1024) unsigned char dynamic_shared_bytes[];
    return reinterpret_cast<S *>(dynamic_shared_bytes);
}

#endif
