#include <cuda_runtime.h>

extern "C" {
#include "base/die.h"
#include "layers/cuda/device.h"
#include "layers/cuda/tensor_map.h"
}

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);
} // namespace

extern "C" CUtensorMap tensor_map(const void *words, const TensorShape *s) {
    static thread_local Encode encode;
    if (!encode)
        encode = reinterpret_cast<Encode>(device_driver_function("cuTensorMapEncodeTiled"));
    cuuint64_t size[MAP_DIMENSIONS], stride[MAP_DIMENSIONS];
    cuuint32_t box[MAP_DIMENSIONS], step[MAP_DIMENSIONS];
    for (int i = 0; i < s->n; i++) {
        size[i] = static_cast<cuuint64_t>(s->size[i]), box[i] = static_cast<cuuint32_t>(s->box[i]);
        step[i] = 1;
        if (i > 0) stride[i - 1] = static_cast<cuuint64_t>(s->stride[i]) * (s->floats ? 4 : 2);
    }
    CUtensorMap map;
    CUtensorMapDataType type =
        s->floats ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    int e = encode(&map, type, static_cast<cuuint32_t>(s->n), const_cast<void *>(words), size,
                   stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (e) die("the driver refuses a tensor map of %d dimensions: error %d", s->n, e);
    return map;
}
