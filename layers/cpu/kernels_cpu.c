/* Picks the instruction set. The tables come from layers/table.c, compiled once per set and renamed
 * by the build. */
#include "layers/cpu/sets.h"

#include <string.h>

const Kernels *kernels_cpu(const char *set) {
    for (const CpuSet *s = cpu_sets; s->name; s++) {
        if (!s->runs_here()) continue;
        if (!set || !*set || strcmp(set, "auto") == 0 || strcmp(set, s->name) == 0) return s->table;
    }
    return NULL;
}

const char *const *kernels_cpu_sets(void) {
    static _Thread_local const char *names[16]; // ranks may be threads
    int n = 0;
    for (const CpuSet *s = cpu_sets; s->name && n < 15; s++)
        if (s->runs_here()) names[n++] = s->name;
    names[n] = NULL;
    return names;
}
