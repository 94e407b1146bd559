/* cuda -- the driver's tensor maps and the flags that streams write, instead of the toolkit's
 * header. Values of enums are those of the CUDA Driver API. */
#ifndef TESTS_EMU_CUDA_H
#define TESTS_EMU_CUDA_H

#include <stdint.h>

#include "tests/emu/emu_tensor_map.h"
#include "tests/emu/runtime.h"

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
typedef enum cudaError_enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 } CUresult;
typedef EmuTensorMap CUtensorMap;
typedef enum CUtensorMapDataType {
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9
} CUtensorMapDataType;
typedef enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE } CUtensorMapInterleave;
typedef enum CUtensorMapSwizzle {
    CU_TENSOR_MAP_SWIZZLE_NONE,
    CU_TENSOR_MAP_SWIZZLE_32B,
    CU_TENSOR_MAP_SWIZZLE_64B,
    CU_TENSOR_MAP_SWIZZLE_128B
} CUtensorMapSwizzle;
typedef enum CUtensorMapL2promotion {
    CU_TENSOR_MAP_L2_PROMOTION_NONE,
    CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
    CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    CU_TENSOR_MAP_L2_PROMOTION_L2_256B
} CUtensorMapL2promotion;
typedef enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE } CUtensorMapFloatOOBfill;

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *base, const cuuint64_t *size, const cuuint64_t *stride,
                                const cuuint32_t *box, const cuuint32_t *step,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

typedef unsigned long long CUdeviceptr;
enum { CU_STREAM_WRITE_VALUE_DEFAULT };
enum { CU_STREAM_WAIT_VALUE_GEQ = 0, CU_STREAM_WAIT_VALUE_FLUSH = 1 << 30 };
/* Defined in tests/emu/stream.c. */
CUresult cuStreamWriteValue32(cudaStream_t s, CUdeviceptr where, cuuint32_t x, unsigned flags);
CUresult cuStreamWaitValue32(cudaStream_t s, CUdeviceptr where, cuuint32_t x, unsigned flags);

typedef enum cudaDriverEntryPointQueryResult {
    cudaDriverEntryPointSuccess,
    cudaDriverEntryPointSymbolNotFound
} cudaDriverEntryPointQueryResult;
enum { cudaEnableDefault };
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *found);

#define __grid_constant__

#endif
