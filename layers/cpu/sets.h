/* sets -- the instruction sets this build has kernels for, best first, ended by a NULL name.
 * sets_x86_64.c or sets_any.c. */
#ifndef LAYERS_CPU_SETS_H
#define LAYERS_CPU_SETS_H

#include <stdbool.h>

#include "layers/kernels.h"

typedef struct CpuSet {
    const char *name;
    const Kernels *table;
    bool (*runs_here)(void);
} CpuSet;

extern const CpuSet cpu_sets[];

#endif
