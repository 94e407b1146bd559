/* emu_tensor_map -- cuTensorMapEncodeTiled, which refuses what the CUDA Driver API says the driver
 * refuses; and the look-up of the driver's functions by name. */
#include <string.h>

#include "tests/emu/include/cuda.h"

static int element_of(CUtensorMapDataType t) {
    return t == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : t == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ? 2 : 0;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *base, const cuuint64_t *size, const cuuint64_t *stride,
                                const cuuint32_t *box, const cuuint32_t *step,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    int element = element_of(type);
    (void)interleave, (void)promotion, (void)fill;
    if (!element || rank < 1 || rank > MAP_RANK || (uintptr_t)base % 16 ||
        swizzle != CU_TENSOR_MAP_SWIZZLE_128B)
        return CUDA_ERROR_INVALID_VALUE;
    *map = (CUtensorMap){.base = base, .rank = (uint8_t)rank, .element = (uint8_t)element};
    map->magic = MAP_MAGIC;
    for (cuuint32_t i = 0; i < rank; i++) {
        if (size[i] < 1 || size[i] > (uint64_t)1 << 32 || box[i] < 1 || box[i] > 256 ||
            step[i] != 1)
            return CUDA_ERROR_INVALID_VALUE;
        map->size[i] = (uint32_t)size[i], map->box[i] = (uint16_t)box[i];
        map->stride[i] = i ? (int64_t)stride[i - 1] : element;
        if (i && (stride[i - 1] % 16 || stride[i - 1] >= (uint64_t)1 << 40))
            return CUDA_ERROR_INVALID_VALUE;
    }
    cuuint32_t inner = box[0] * (cuuint32_t)element;
    if (inner % 16 || inner > MAP_ROW) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *found) {
    (void)version, (void)flags;
    CUresult (*encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                       const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                       CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                       CUtensorMapFloatOOBfill) = cuTensorMapEncodeTiled;
    CUresult (*write)(cudaStream_t, CUdeviceptr, cuuint32_t, unsigned) = cuStreamWriteValue32;
    CUresult (*wait)(cudaStream_t, CUdeviceptr, cuuint32_t, unsigned) = cuStreamWaitValue32;
    *function = NULL;
    if (!strcmp(symbol, "cuTensorMapEncodeTiled")) memcpy(function, &encode, sizeof encode);
    if (!strcmp(symbol, "cuStreamWriteValue32")) memcpy(function, &write, sizeof write);
    if (!strcmp(symbol, "cuStreamWaitValue32")) memcpy(function, &wait, sizeof wait);
    *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
