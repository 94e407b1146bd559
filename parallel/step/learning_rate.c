#include "parallel/step/learning_rate.h"

#include <math.h>

double learning_rate(const LrSchedule *s, int64_t step) {
    if (step < s->warmup) return s->lr * (double)(step + 1) / (double)s->warmup;
    double x = (double)(step - s->warmup) / (double)(s->steps - s->warmup);
    switch (s->kind) {
    case LR_COSINE:
        return s->min_lr + (s->lr - s->min_lr) * 0.5 * (1 + cos(3.14159265358979323846 * x));
    case LR_LINEAR:
        return s->lr + (s->min_lr - s->lr) * x;
    case LR_CONSTANT:
        return s->lr;
    case LR_WSD:
        break;
    }
    double start = (double)s->steps * (1 - s->wsd_decay);
    if ((double)step < start) return s->lr;
    double y = ((double)step - start) / ((double)s->steps - start);
    return s->min_lr + (s->lr - s->min_lr) * (1 - sqrt(y));
}
