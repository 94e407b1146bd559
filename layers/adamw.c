#include "layers/adamw.h"

#include <math.h>

void adamw(Team *t, const AdamW *o, float *param, float *m, float *v, const float *grad, int64_t n,
           bool decay) {
    (void)t;
    float c1 = 1 - powf(o->beta1, (float)o->step), c2 = 1 - powf(o->beta2, (float)o->step);
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * o->grad_scale;
        m[i] = o->beta1 * m[i] + (1 - o->beta1) * g;
        v[i] = o->beta2 * v[i] + (1 - o->beta2) * g * g;
        if (decay) param[i] *= 1 - o->lr * o->weight_decay;
        param[i] -= o->lr * (m[i] / c1) / (sqrtf(v[i] / c2) + o->eps);
    }
}

double sum_of_squares(Team *t, const float *x, int64_t n) {
    double s = 0;
    (void)t;
    for (int64_t i = 0; i < n; i++) s += (double)x[i] * (double)x[i];
    return s;
}
