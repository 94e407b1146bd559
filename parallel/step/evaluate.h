/* evaluate -- the losses of many sequences, spread over the coordinates of d x z. */
#ifndef PARALLEL_STEP_EVALUATE_H
#define PARALLEL_STEP_EVALUATE_H

#include <stdbool.h>
#include <stdint.h>

#include "parallel/step/model.h"

/* Where sequences come from: fill writes inputs[S] and targets[S] of sequence i; a target of -1 is
 * not counted. */
typedef struct Sequences {
    void *ctx;
    void (*fill)(void *ctx, int64_t i, int32_t *inputs, int32_t *targets);
} Sequences;

typedef struct EvalSum {
    double loss; // sum over the targets
    int64_t n;   // targets counted
} EvalSum;

/* Collective over the mesh. Sequences 0 .. n-1, in rounds of B for each coordinate; the sums are
 * those of all, alike on every rank. losses: NULL, or [n, S] of every token, on every rank. stop:
 * NULL, or asked before every round, with the same answer on all ranks; true ends the evaluation
 * early. */
EvalSum evaluate(Model *m, const Sequences *s, int64_t n, float *losses, bool (*stop)(void *ctx),
                 void *ctx);

#endif
