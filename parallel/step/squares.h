/* squares -- the sum of squares of gradients, each element counted by the first rank that holds it.
 *
 * On the host each gradient is added by itself, in the order of the calls. On a device gradients
 * that lie side by side are one kernel, which takes less time than a launch for each: matrices in
 * one region, vectors in regions by the axes along which their gradients are partial.
 */
#ifndef PARALLEL_STEP_SQUARES_H
#define PARALLEL_STEP_SQUARES_H

#include "parallel/step/model.h"

enum { SQUARE_REGIONS = 3 };

typedef struct Squares {
    Model *m;
    double here, *there; // there: on the device; NULL: here
    bool begun;
    struct {
        const float *begin, *end;
    } open[SQUARE_REGIONS]; // still to be added
} Squares;

/* Local. The gradient of tensor i is complete, in the shard of its moments. */
void squares_add(Squares *s, int i);
/* Local, behind the last gradient. The sum is in here or there. */
void squares_end(Squares *s);

#endif
