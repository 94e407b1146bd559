#include "layers/rope.h"

#include <math.h>

void rope(Team *t, const Rope *r, float *qkv, int direction) {
    int64_t W = (r->H + 2 * r->Hkv) * r->D, half = r->D / 2;
    (void)t;
    for (int64_t i = 0; i < r->B * r->S; i++) {
        const float *cs = r->table + (r->first + i % r->S) * r->D, *sn = cs + half;
        for (int64_t h = 0; h < r->H + r->Hkv; h++) {
            float *x = qkv + i * W + h * r->D;
            for (int64_t d = 0; d < half; d++) {
                float s = (float)direction * sn[d], lo = x[d], hi = x[d + half];
                x[d] = lo * cs[d] - hi * s;
                x[d + half] = hi * cs[d] + lo * s;
            }
        }
    }
}
