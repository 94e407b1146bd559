#include "base/zscore.h"

#include <math.h>

double zscore_add(ZScore *z, double x) {
    if (!isfinite(x)) return NAN;
    int full = z->count >= ZSCORE_WINDOW;
    z->ring[z->count++ % ZSCORE_WINDOW] = x;
    if (!full) return NAN;
    double sum = 0, squares = 0;
    for (int i = 0; i < ZSCORE_WINDOW; i++) sum += z->ring[i];
    double mean = sum / ZSCORE_WINDOW;
    for (int i = 0; i < ZSCORE_WINDOW; i++) squares += (z->ring[i] - mean) * (z->ring[i] - mean);
    double std = sqrt(squares / ZSCORE_WINDOW);
    return std > 0 ? (x - mean) / std : 0;
}
