/* peak -- the measured peak rate of the multiply units: the denominator of MFU. */
#ifndef LAYERS_PEAK_H
#define LAYERS_PEAK_H

#include <stdbool.h>

#include "base/team.h"

typedef struct Peak {
    double core;      // FLOP/s of one core while every member computes: the mean over members
    double cpu_share; // 0 to 1: computing time over elapsed time, of the member that waited longest
} Peak;

/* Local. Independent multiply-adds held in registers; with bf16, dot products of bf16 pairs where
 * the instruction set has them (else as fp32). Takes about 10 ms, longer on a busy machine.
 *
 * Each member times bursts of some 40 us and reports the rate that a quarter of its bursts exceed.
 * A burst is far shorter than a scheduler's time slice, so most bursts run undisturbed even on
 * shared cores; `cpu_share` < 1 shows that cores were shared. */
Peak peak(Team *t, bool bf16);

#endif
