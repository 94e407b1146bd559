/* table -- kernels_table as compiled for one instruction set; only table.c and the build know this
 * name. */
#ifndef LAYERS_TABLE_H
#define LAYERS_TABLE_H

#include "layers/kernels.h"

extern const Kernels kernels_table;

#endif
