/* learning_rate -- the learning rate as a function of the step alone.
 *
 *   warm-up    lr (step + 1) / warmup                        for step < warmup
 *   cosine     min + (lr - min) (1 + cos(pi x)) / 2          x = (step - warmup) / (steps - warmup)
 *   linear     lr + (min - lr) x
 *   constant   lr
 *   wsd        lr until the last `decay` share of the steps, then
 *              min + (lr - min) (1 - sqrt(y))                y = 0..1 in that share
 *
 * step counts from 0, as llm.c's schedulers do. Source of wsd: Haegele et al., "Scaling laws and
 * compute-optimal training beyond fixed training durations", 2024 (1 - sqrt).
 */
#ifndef PARALLEL_STEP_LEARNING_RATE_H
#define PARALLEL_STEP_LEARNING_RATE_H

#include <stdint.h>

typedef enum { LR_COSINE, LR_LINEAR, LR_CONSTANT, LR_WSD } LrKind;

typedef struct LrSchedule {
    LrKind kind;
    double lr, min_lr;
    int64_t warmup, steps;
    double wsd_decay; // share of the steps in which wsd falls
} LrSchedule;

/* Local. Pure. step < steps. */
double learning_rate(const LrSchedule *s, int64_t step);

#endif
