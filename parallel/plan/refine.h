/* refine -- finds the fastest of a few near-optimal layouts by running the first steps on each.
 *
 * Predictions err by some percent and cannot distinguish candidates that are closer than that. So
 * the first steps of the run are made on each candidate in turn, and the rest on the fastest:
 *
 *     step      1  2  3 | 4  5  6 | 7  8  9 | 10 11 ...
 *     layout    a  a  a | b  b  b | c  c  c | b  b  ...   | the state moves (step/relayout.h)
 *                  ^--^      ^--^      ^--^               counted; the first pays for page faults
 *
 * Where steps are short, more of them run, until they have taken a second: a comparison of two
 * steps of 50 ms is noise, and runs had stayed on layouts that were 9 and 11 % slower than the one
 * predicted best.
 *
 * Every step is a training step: none is wasted or repeated. The cost is the changes of layout, and
 * the steps on slower candidates.
 */
#ifndef PARALLEL_PLAN_REFINE_H
#define PARALLEL_PLAN_REFINE_H

#include <stdbool.h>

#include "base/group.h"

enum { REFINE_MAX = 8, REFINE_LEAST = 3, REFINE_MOST = 20 }; // candidates; steps on each

typedef struct Refine {
    int n;     // candidates; the run starts on the first one, the best by prediction
    int steps; // steps on each: refine_steps
    void *ctx;
    /* Collective. Changes the layout to a candidate. False, on all ranks: impossible, the layout
     * stays. */
    bool (*move)(void *ctx, int candidate);
    /* Collective. One training step. False, on all ranks: training has ended. Only rank 0 reads
     * *seconds. */
    bool (*step)(void *ctx, double *seconds);
} Refine;

/* Collective. Tries all candidates and ends on the fastest, or on the one where training ended.
 * Returns it, equal on all ranks. seconds[n]: lower quartile of the counted steps of each on rank
 * 0; 0: none. */
int refine_run(const Group *g, const Refine *r, double *seconds);

/* Local, pure. Steps on each of n candidates: until they take a second, together at most a tenth of
 * the remaining steps, but at least three and at most twenty. */
int refine_steps(int n, double step_seconds, double left);
/* Local, pure. Does trying n candidates pay off? Yes if the fraction `error` of the time of the
 * remaining steps exceeds the time of the changes of layout: one to each candidate and one back. */
bool refine_pays(int n, double error, double step_seconds, double left, double move_seconds);

#endif
