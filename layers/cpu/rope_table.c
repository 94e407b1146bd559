#include "layers/rope.h"

#include <math.h>

/* Radians per position of pair i. */
static double speed(const Config *c, int64_t i) {
    const double few = 1, many = 4; // turns over rope_seq positions
    double plain = pow(c->rope_theta, -2.0 * (double)i / (double)config_head_size(c)),
           turns = (double)c->rope_seq * plain / (2 * M_PI), kept = (turns - few) / (many - few);
    if (c->rope_factor == 1 || kept >= 1) return plain;
    return kept <= 0 ? plain / c->rope_factor : kept * plain + (1 - kept) * plain / c->rope_factor;
}

void rope_table(float *table, int64_t positions, const Config *c) {
    int64_t D = config_head_size(c);
    for (int64_t i = 0; i < D / 2; i++) {
        double turn = speed(c, i);
        for (int64_t p = 0; p < positions; p++) {
            double angle = (double)p * turn;
            table[p * D + i] = (float)cos(angle);
            table[p * D + D / 2 + i] = (float)sin(angle);
        }
    }
}
