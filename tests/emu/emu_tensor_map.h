/* emu_tensor_map -- the emulator's tensor map, written by cuTensorMapEncodeTiled. */
#ifndef TESTS_EMU_EMU_TENSOR_MAP_H
#define TESTS_EMU_EMU_TENSOR_MAP_H

#include <stdint.h>

// MAP_ROW: bytes of a row of the 128-byte swizzle, the only one that is emulated
enum { MAP_RANK = 5, MAP_ROW = 128 };
typedef struct EmuTensorMap {
    char *base;
    // bytes between elements of each dimension; [0] is the size of an element
    int64_t stride[MAP_RANK];
    uint32_t size[MAP_RANK];
    uint16_t box[MAP_RANK];
    uint8_t rank, element, magic;
} EmuTensorMap;
enum { MAP_MAGIC = 0x5a };

#endif
