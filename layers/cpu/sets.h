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

/* Local. Name of the best of these sets. For bf16 the best one whose units for bf16 are faster than
 * those for fp32, which t measures in some 40 ms, or that has none. */
const char *cpu_set_auto(const CpuSet *sets, Team *t, bool bf16);
/* Collective, also where some ranks have a name. The set `named`; NULL, what --kernels auto means:
 * that of rank 0, named or cpu_set_auto's, or the next lesser one that all these ranks have. Sets
 * round otherwise, and replicas would not stay equal. Rank 0 alone measures: on a busy machine
 * ranks may measure otherwise. */
const char *kernels_cpu_of_ranks(const Group *g, const char *named, Team *t, bool bf16);

#endif
