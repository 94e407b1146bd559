#include "layers/rope.h"

#include <math.h>

void rope_table(float *table, int64_t positions, int64_t D, double theta) {
    for (int64_t p = 0; p < positions; p++)
        for (int64_t i = 0; i < D / 2; i++) {
            double angle = (double)p * pow(theta, -2.0 * (double)i / (double)D);
            table[p * D + i] = (float)cos(angle);
            table[p * D + D / 2 + i] = (float)sin(angle);
        }
}
