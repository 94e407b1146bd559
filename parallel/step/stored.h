/* stored -- weights and gradients that are stored cut over z (over d as well with zero3; gradients with zero2): whole for
 * a product, in parts before and after it.
 *
 *                             product of w0     product of w1     product of w2
 *   --overlap none   gather w0               w1                w2                          in the way of each product
 *   bulk             gather w0   w1 .......      w2 .......        w3 .......              one ahead
 *                                            scatter dw0 .....     dw1 .....               drained late
 *
 * Source: ZeRO-3 (2020) for the cut, AxoNN (2024) for what hides it.
 */
#ifndef PARALLEL_STEP_STORED_H
#define PARALLEL_STEP_STORED_H

#include <stdbool.h>

#include "layers/act.h"
#include "parallel/comm/coll.h"
#include "parallel/mesh/layout.h"

typedef struct Model Model;

/* Two places for weights, two for gradients: of the product at hand, and of what is on its way. */
typedef struct Stored {
    struct {
        int tensor; // whose weight it is; -1: nobody's
        Ticket coming;
    } w[2];
    struct {
        int tensor; // whose gradient is on its way; -1: nobody's
        Ticket going;
        float *to; // its part: the stored gradient itself, or a place from which it is added
    } g[2];
    int w_at, g_at; // used last
    bool back,
        recompute; // the direction in which blocks are gone through; blocks come forward again before it
} Stored;

/* Local. The group over which such parts of a matrix are cut; NULL: not cut. */
Comm *stored_over(Model *m, int i, StoreKind kind);
/* Local. A pass begins: weights may have changed. */
void stored_begin(Model *m);
/* Collective. What is on its way arrives: the end of a pass. */
void stored_end(Model *m);

/* Collective over the axes that the storage cuts. The whole local block of a weight: in place, or gathered. */
const Act *weight_whole(Model *m, int i, const char *what);
/* Where the gradient of the whole block goes, and whether it is added to what is there. grad_done: collective over
 * the axes that its storage cuts; it will be added to what is stored, before stored_end returns. */
float *grad_open(Model *m, int i, bool *add);
void grad_done(Model *m, int i, const char *what);

#endif
