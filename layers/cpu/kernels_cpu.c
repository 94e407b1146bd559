/* Picks the instruction set. The tables come from layers/table.c, compiled once per set and renamed
 * by the build. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/die.h"
#include "layers/cpu/sets.h"

/* The best of the sets that may be used: of all, or with TRAIN_GPT_KERNELS of that one and those
 * below. */
static const CpuSet *first_set(void) {
    const char *best = getenv("TRAIN_GPT_KERNELS");
    const CpuSet *s = cpu_sets;
    if (!best || !*best) return s;
    while (s->name && strcmp(s->name, best) != 0) s++;
    if (!s->name || !s->runs_here())
        die_usage("TRAIN_GPT_KERNELS=%s: this processor or build has no such set", best);
    return s;
}

const Kernels *kernels_cpu(const char *set) {
    for (const CpuSet *s = first_set(); s->name; s++) {
        if (!s->runs_here()) continue;
        if (!set || !*set || strcmp(set, "auto") == 0 || strcmp(set, s->name) == 0) return s->table;
    }
    return NULL;
}

/* Units for bf16 have 2 times the rate of those for fp32 (tile registers 16 times), or on some
 * processors half of it or the same. The threshold is far from all of these. Other programs can
 * only lower a measured rate: when they ran meanwhile, both rates are measured again. */
static bool faster_in_bf16(const Kernels *k, Team *t) {
    const double least_ratio = 1.4, undisturbed = 0.9;
    double rate_bf16 = 0, rate_fp32 = 0;
    for (int tries = 0; tries < 5; tries++) {
        Peak pairs = k->peak(t, true), floats = k->peak(t, false);
        rate_bf16 = fmax(rate_bf16, pairs.core), rate_fp32 = fmax(rate_fp32, floats.core);
        if (pairs.cpu_share > undisturbed && floats.cpu_share > undisturbed) break;
    }
    return rate_bf16 > least_ratio * rate_fp32;
}

const char *cpu_set_auto(const CpuSet *sets, Team *t, bool bf16) {
    for (const CpuSet *s = sets; s->name; s++) {
        const Kernels *k = s->table;
        if (!s->runs_here()) continue;
        if (!bf16 || !k->bf16_units || faster_in_bf16(k, t)) return s->name;
    }
    return NULL;
}

/* This rank's own text of a set's name; NULL if this rank does not have the set. */
static const char *set_here(const char *name) {
    const char *const *here = kernels_cpu_sets();
    while (*here && strcmp(*here, name) != 0) here++;
    return *here;
}

const char *kernels_cpu_of_ranks(const Group *g, const char *named, Team *t, bool bf16) {
    char chosen[16];
    const char *proposed = named ? named : g->rank == 0 ? cpu_set_auto(first_set(), t, bf16) : "";
    const char *const *lesser = kernels_cpu_sets(), *set;
    for (;;) {
        snprintf(chosen, sizeof chosen, "%s", proposed);
        group_broadcast(g, chosen, sizeof chosen);
        set = named ? named : set_here(chosen);
        if (group_all(g, set != NULL)) return set;
        while (*lesser && strcmp(*lesser, chosen) != 0) lesser++;
        proposed = *lesser && lesser[1] ? lesser[1] : "portable"; // portable: which all ranks have
    }
}

const char *const *kernels_cpu_sets(void) {
    static _Thread_local const char *names[16]; // ranks may be threads
    int n = 0;
    for (const CpuSet *s = first_set(); s->name && n < 15; s++)
        if (s->runs_here()) names[n++] = s->name;
    names[n] = NULL;
    return names;
}
