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

/* Local. The name of the best of these sets. For bf16, a set with units for bf16 is passed over
 * unless they are faster than its units for fp32: t measures both in some 40 ms. */
const char *cpu_set_auto(const CpuSet *sets, Team *t, bool bf16);
/* Collective, also for ranks with a name. Returns the set `named`, unless it is NULL (--kernels
 * auto). A rank without a name gets that of rank 0, named or from cpu_set_auto; if some of these
 * ranks do not have it, the next lesser one that all of them have. Instruction sets round
 * differently: with several of them replicas would not stay equal. Rank 0 alone measures: on a busy
 * machine ranks may measure different rates. */
const char *kernels_cpu_of_ranks(const Group *g, const char *named, Team *t, bool bf16);

#endif
