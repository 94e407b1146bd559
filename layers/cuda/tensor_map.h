/* tensor_map -- a description of a tensor on the device, of bf16 elements or floats, from which and
 * to which TMA copies boxes (ptx_sm90.cuh).
 *
 * The driver's function that makes one is found through the runtime: nothing is linked to the
 * driver's library. A map is 128 bytes, passed to a kernel by value (const __grid_constant__
 * CUtensorMap).
 */
#ifndef LAYERS_CUDA_TENSOR_MAP_H
#define LAYERS_CUDA_TENSOR_MAP_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

enum { MAP_DIMENSIONS = 5, MAP_SWIZZLE_BYTES = 128 };

/* Innermost dimension first, whose elements lie side by side. */
typedef struct TensorShape {
    int n; // dimensions
    int64_t size[MAP_DIMENSIONS];
    int64_t stride[MAP_DIMENSIONS]; // elements, multiples of 16 bytes; of dimension 0 it is 1
    int box[MAP_DIMENSIONS];        // at most 256; of dimension 0 at most MAP_SWIZZLE_BYTES
    bool floats;
} TensorShape;

/* Local. Boxes arrive with the swizzle of 128 bytes. `words` is a multiple of 16. Dies when the
 * driver refuses it. */
CUtensorMap tensor_map(const void *words, const TensorShape *s);

#endif
