/* rope -- rotary position embedding of the query and key heads of qkv[T, (H + 2 Hkv) D], in place.
 *
 * Feature pairs (i, i + D/2) of a head are rotated by the angle pos * theta^(-2i/D): the order of
 * Hugging Face's LLaMA files. direction +1 rotates (forward), -1 rotates back (backward). Source:
 * Su et al., "RoFormer", 2021.
 */
#ifndef LAYERS_ROPE_H
#define LAYERS_ROPE_H

#include <stdint.h>

#include "base/team.h"
#include "layers/act.h"

typedef struct Rope {
    int64_t B, S, H, Hkv, D;
    int64_t first; // position of the first token of each sequence (decoding starts later than 0)
    // [positions, D]: cos of D/2 angles, then sin of D/2 angles, from rope_table
    const float *table;
} Rope;

/* Local. Fills table[positions, D]. */
void rope_table(float *table, int64_t positions, int64_t D, double theta);
/* Local. Rotates the query and key heads of qkv[B * S, (H + 2 Hkv) D]. */
void rope(Team *t, const Rope *r, Act *qkv, int direction);

#endif
