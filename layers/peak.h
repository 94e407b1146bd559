/* peak -- the rate of the multiply units, measured: what "share of peak" is a share of. */
#ifndef LAYERS_PEAK_H
#define LAYERS_PEAK_H

#include <stdbool.h>

#include "base/team.h"

/* Local. FLOP/s of all members together on independent multiply-adds held in registers; bf16: of bf16 dot products, where
 * the instruction set has them (else as fp32). Takes about 60 ms; the best of three rounds counts. */
double peak(Team *t, bool bf16);

#endif
