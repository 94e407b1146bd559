/* refine -- which of a few layouts is the fastest? The run itself finds out, in its first steps.
 *
 * Predictions err by some percent, and candidates that lie closer together cannot be told apart by them. So the first
 * steps of the run are made on each of them in turn, and those that follow on the one that was fastest:
 *
 *     step      1  2  3 | 4  5  6 | 7  8  9 | 10 11 ...
 *     layout    a  a  a | b  b  b | c  c  c | b  b  ...     | the state moves (parallel/relayout.h)
 *                  ^--^      ^--^      ^--^                   counted: the first one pays for page faults
 *
 * Short steps are more than three, until they have taken a second: of two of 50 ms the faster one is a draw, and a run stayed on
 * layouts that were 9 and 11 % slower than what had been foretold to be the best.
 *
 * Every step is a step of the training as it would have been: nothing is wasted or repeated. What it costs is the
 * moves, and steps on the slower ones.
 */
#ifndef PARALLEL_REFINE_H
#define PARALLEL_REFINE_H

#include <stdbool.h>

#include "base/group.h"

enum { REFINE_MAX = 8, REFINE_LEAST = 3, REFINE_MOST = 20 }; // candidates; steps on each

typedef struct Refine {
    int n;     // candidates; the run is laid out as the first one, the likeliest
    int steps; // on each: refine_steps
    void *ctx;
    /* Collective. Lays the run out as a candidate; false, alike on all ranks, where that is not possible: it stays. */
    bool (*move)(void *ctx, int candidate);
    /* Collective. One step of training; false, alike on all ranks, where training has come to its end. *seconds counts on
     * rank 0 alone. */
    bool (*step)(void *ctx, double *seconds);
} Refine;

/* Collective. Tries all candidates and leaves the run on the fastest, alike on all ranks; or on the one where training
 * ended. seconds[n]: the lower quartile of each one's counted steps, of rank 0; 0 where there is none. Returns the candidate. */
int refine_run(const Group *g, const Refine *r, double *seconds);

/* Local, pure. Steps on each of n candidates: until they have taken a second, all of them a tenth of the steps that are left at
 * most; but three. */
int refine_steps(int n, double step_seconds, double left);
/* Local, pure. Is it worth while to try n candidates? Those that are left pay where a share `error` of the time of the
 * remaining steps is more than the moves take, one there for each and one back. */
bool refine_pays(int n, double error, double step_seconds, double left, double move_seconds);

#endif
