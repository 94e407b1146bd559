#include "layers/classifier.h"

#include <math.h>

void classifier(Team *t, const Classifier *c, float *loss, float *logits) {
    (void)t;
    for (int64_t i = 0; i < c->T; i++) {
        float *x = logits + i * c->ld, max = -INFINITY, sum = 0;
        int32_t target = c->targets[i];
        for (int64_t v = 0; v < c->V; v++) max = fmaxf(max, x[v]);
        for (int64_t v = 0; v < c->V; v++) sum += expf(x[v] - max);
        loss[i] = target < 0 ? 0 : max + logf(sum) - x[target];
        for (int64_t v = 0; v < c->V && c->backward; v++)
            x[v] = target < 0 ? 0 : (expf(x[v] - max) / sum - (v == target)) * c->scale;
    }
}
