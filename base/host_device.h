/* host_device -- marks a function of a header that both the host and CUDA kernels call: HOST_DEVICE
 * int f(int x) { ... }. Such headers are C and C++ at once: no designated initializers, no compound
 * literals. */
#ifndef BASE_HOST_DEVICE_H
#define BASE_HOST_DEVICE_H

#ifdef __CUDACC__
#define HOST_DEVICE static __host__ __device__ __forceinline__
#else
#define HOST_DEVICE static inline
#endif

#endif
