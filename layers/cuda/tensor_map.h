/* tensor_map -- a description of a tensor on the device, of bf16 elements or floats, for TMA's
 * copies of boxes of the tensor (ptx_sm90.cuh).
 *
 * The driver's function that makes a map is found through the runtime, so nothing is linked to the
 * driver's library. A map is 128 bytes, passed to a kernel by value (const __grid_constant__
 * CUtensorMap).
 */
#ifndef LAYERS_CUDA_TENSOR_MAP_H
#define LAYERS_CUDA_TENSOR_MAP_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

enum { MAP_DIMENSIONS = 5, MAP_SWIZZLE_BYTES = 128 };

/* Innermost dimension first; its elements are contiguous. */
typedef struct TensorShape {
    int n; // dimensions
    int64_t size[MAP_DIMENSIONS];
    int64_t stride[MAP_DIMENSIONS]; // elements, multiples of 16 bytes; 1 in dimension 0
    // elements, at most 256; in dimension 0 at most MAP_SWIZZLE_BYTES bytes
    int box[MAP_DIMENSIONS];
    bool floats;
} TensorShape;

/* Local. A map whose boxes have the swizzle of 128 bytes in shared memory. `words` is a multiple of
 * 16. Dies when the driver refuses the map. */
CUtensorMap tensor_map(const void *words, const TensorShape *s);

#endif
