#include "parallel/refine.h"

#include <math.h>

/* The steps of one candidate; false when training has ended. */
static bool try(const Group *g, const Refine *r, double *seconds) {
    double best = INFINITY;
    for (int i = 0; i < REFINE_STEPS; i++) {
        double s;
        if (!r->step(r->ctx, &s)) return false;
        if (i > 0) best = fmin(best, s); // what disturbs a step makes it longer
    }
    group_share(g, &best, sizeof best);
    *seconds = best;
    return true;
}

int refine_run(const Group *g, const Refine *r, double *seconds) {
    int at = 0, best = 0;
    for (int i = 0; i < r->n; i++) seconds[i] = 0;
    for (int i = 0; i < r->n; i++) {
        if (i > 0 && !r->move(r->ctx, i)) continue;
        at = i;
        if (!try(g, r, &seconds[i])) return at;
        if (seconds[i] < seconds[best]) best = i;
    }
    return best == at || r->move(r->ctx, best) ? best : at;
}

bool refine_pays(int n, double error, double step_seconds, double steps, double move_seconds) {
    return n > 1 && error * step_seconds * (steps - n * REFINE_STEPS) > n * move_seconds;
}
