#include "parallel/plan/refine.h"

#include <math.h>

#include "base/median.h"

/* Makes the steps of one candidate. *seconds: the lower quartile of all but the first, by rank 0.
 * False: training has ended. */
static bool try(const Group *g, const Refine *r, double *seconds) {
    double s[REFINE_MOST];
    for (int i = 0; i < r->steps; i++)
        if (!r->step(r->ctx, &s[i])) return false;
    *seconds = quartile_of(s + 1, r->steps - 1);
    group_broadcast(g, seconds, sizeof *seconds);
    return true;
}

int refine_run(const Group *g, const Refine *r, double *seconds) {
    int current = 0, best = 0;
    for (int i = 0; i < r->n; i++) seconds[i] = 0;
    for (int i = 0; i < r->n; i++) {
        if (i > 0 && !r->move(r->ctx, i)) continue;
        current = i;
        if (!try(g, r, &seconds[i])) return current;
        if (seconds[i] < seconds[best]) best = i;
    }
    return best == current || r->move(r->ctx, best) ? best : current;
}

int refine_steps(int n, double step_seconds, double left) {
    const double enough = 1, share = 0.1; // seconds on each candidate; share of the remaining steps
    double steps = fmin(1 + enough / step_seconds, share * left / n);
    return (int)fmin(fmax(steps, REFINE_LEAST), REFINE_MOST);
}

bool refine_pays(int n, double error, double step_seconds, double left, double move_seconds) {
    int steps = n * refine_steps(n, step_seconds, left);
    return n > 1 && error * step_seconds * (left - steps) > n * move_seconds;
}
