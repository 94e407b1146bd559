/* rope -- rotary position embedding of the query and key heads of qkv[T, (H + 2 Hkv) D], in place.
 *
 * Feature pairs (i, i + D/2) of a head are rotated by the angle pos * theta^(-2i/D): the order of
 * Hugging Face's LLaMA files. direction +1 rotates (forward), -1 rotates back (backward). Source:
 * Su et al., "RoFormer", 2021.
 *
 * LLaMA 3.1 and later stretch the positions for longer sequences: pairs that turn less than once
 * over the rope_seq positions of the first training turn rope_factor times slower, pairs that turn
 * more than 4 times are as they were, and between the two the speed is interpolated. Source: Meta's
 * reference code of LLaMA 3.1, 2024 ("rope_type": "llama3" of Hugging Face).
 */
#ifndef LAYERS_ROPE_H
#define LAYERS_ROPE_H

#include <stdint.h>

#include "base/config.h"
#include "base/team.h"
#include "layers/act.h"

typedef struct Rope {
    int64_t B, S, H, Hkv, D;
    int64_t first; // position of the first token of each sequence (decoding starts later than 0)
    // [positions, D]: cos of D/2 angles, then sin of D/2 angles, from rope_table
    const float *table;
} Rope;

/* Local. Fills table[positions, D], D the head size of the model. */
void rope_table(float *table, int64_t positions, const Config *c);
/* Local. Rotates the query and key heads of qkv[B * S, (H + 2 Hkv) D]. */
void rope(Team *t, const Rope *r, Act *qkv, int direction);

#endif
