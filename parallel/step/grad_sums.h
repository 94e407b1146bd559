/* grad_sums -- the sums that complete the gradients of a step: an all_reduce over d (and z) for
 * matrices of a layer that lie together, with zero1 a reduce_scatter for each matrix; and for
 * vectors, by the axes along which they owe.
 *
 * With bulk they begin as soon as a layer's gradients are final, and run while the layers before it
 * go backward:
 *
 *   backward of     layer 2    layer 1      layer 0     embedding
 *   sums of                    layer 2 ..   layer 1 ..  layer 0 ..  the rest
 */
#ifndef PARALLEL_STEP_GRAD_SUMS_H
#define PARALLEL_STEP_GRAD_SUMS_H

#include "parallel/comm/coll.h"

typedef struct Model Model;

typedef struct GradSum {
    CollOp op; // all_reduce, or reduce_scatter
    Comm *comm;
    void *src, *dst; // floats, or integers with --exact
    int64_t n;       // of dst
    const char *what;
    int layer; // whose backward makes it final; -1: the end of the pass
    Ticket ticket;
} GradSum;

typedef struct GradSums {
    GradSum *sum; // [n] in the order in which they become final
    int n, started, done;
    int64_t left; // model_steps until they may begin; 0: nobody has told
} GradSums;

/* Local. One more: n numbers at p, completed over a group. */
void grad_sums_add(Model *m, void *p, int64_t n, Comm *over, int layer, const char *what);
/* Local. With zero1 those of the matrices. */
void grad_sums_scatter(Model *m);
/* Local, before a model_step. Will sums begin in it? */
bool grad_sums_early(const Model *m);
/* Collective. The gradients of this layer and of those behind it are final. */
void grad_sums_start(Model *m, int layer);
/* Collective. Those that have begun, to their end. */
void grad_sums_settle(Model *m);
/* Collective. All of them, to the end. */
void grad_sums_end(Model *m);

#endif
