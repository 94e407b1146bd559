/* emu_tensor_map -- what cuTensorMapEncodeTiled writes, as the emulator has it. */
#ifndef TESTS_EMU_EMU_TENSOR_MAP_H
#define TESTS_EMU_EMU_TENSOR_MAP_H

#include <stdint.h>

enum { MAP_RANK = 5, MAP_ROW = 128 }; // bytes of a row of the pattern, the only one
typedef struct EmuTensorMap {
    char *base;
    int64_t stride[MAP_RANK]; // bytes; [0] is the size of an element
    uint32_t size[MAP_RANK];
    uint16_t box[MAP_RANK];
    uint8_t rank, element, magic;
} EmuTensorMap;
enum { MAP_MAGIC = 0x5a };

#endif
