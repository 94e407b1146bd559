/* evaluate -- the losses of many sequences, which are divided among the coordinates of d x z. */
#ifndef PARALLEL_STEP_EVALUATE_H
#define PARALLEL_STEP_EVALUATE_H

#include <stdbool.h>
#include <stdint.h>

#include "parallel/step/model.h"

/* A source of sequences: fill writes inputs[S] and targets[S] of sequence i. A target of -1 is not
 * counted. */
typedef struct Sequences {
    void *ctx;
    void (*fill)(void *ctx, int64_t i, int32_t *inputs, int32_t *targets);
} Sequences;

typedef struct EvalSum {
    double loss; // sum over the targets
    int64_t n;   // targets counted
} EvalSum;

/* Collective over the mesh. Evaluates sequences 0 .. n-1, in rounds of B sequences for each
 * coordinate of d x z. Every rank returns the sums over all coordinates. losses: NULL, or [n, S],
 * where every rank receives the loss of every token. stop: NULL, or a function that is called
 * before every round and returns the same on all ranks; true ends the evaluation early. */
EvalSum evaluate(Model *m, const Sequences *s, int64_t n, float *losses, bool (*stop)(void *ctx),
                 void *ctx);

#endif
