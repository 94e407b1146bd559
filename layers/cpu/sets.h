/* sets -- the instruction sets this build has kernels for, best first, ended by a NULL name.
 * sets_x86_64.c or sets_any.c. */
#ifndef LAYERS_CPU_SETS_H
#define LAYERS_CPU_SETS_H

#include <stdbool.h>

#include "base/group.h"
#include "layers/kernels.h"

typedef struct CpuSet {
    const char *name;
    const Kernels *table;
    bool (*runs_here)(void);
} CpuSet;

extern const CpuSet cpu_sets[];

/* Local. Name of the set that --kernels auto means: the best one. For bf16 the best one whose units
 * for bf16 are faster than those for fp32, which t measures in some 40 ms, or that has none. */
const char *kernels_cpu_auto(Team *t, bool bf16);
/* Local. The same among these sets. */
const char *cpu_set_auto(const CpuSet *sets, Team *t, bool bf16);
/* Collective. The set of all ranks, of those that they have chosen themselves: rank 0's, where the
 * processor has the same sets as rank 0's; else `own`. On a busy machine ranks may measure
 * otherwise, and sets round otherwise. */
const char *kernels_cpu_common(const Group *g, const char *own);

#endif
