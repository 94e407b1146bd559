/* The tables of a calibration: filling and reading them. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "parallel/plan/calibrate_parts.h"

Calibration *calibration_new(void) {
    Calibration *c = mem_calloc(1, sizeof *c);
    c->slowest = 1;
    return c;
}

void calibration_free(Calibration *c) {
    mem_free(c->work);
    mem_free(c->collective);
    mem_free(c);
}

/* Compares Works, or WorkCosts, which begin with one; equal but for rows is equal. The table is
 * sorted by this order. */
static int by_work(const void *one, const void *other) {
    const Work *x = one, *y = other;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->flags != y->flags) return x->flags < y->flags ? -1 : 1;
    for (int i = 0; i < 4; i++)
        if (x->size[i] != y->size[i]) return x->size[i] < y->size[i] ? -1 : 1;
    return 0;
}

const WorkCost *calibration_find_work(const Calibration *c, const Work *w) {
    size_t n = (size_t)c->n_works;
    return n ? bsearch(w, c->work, n, sizeof *c->work, by_work) : NULL;
}

void calibration_add_work(Calibration *c, const WorkCost *w) {
    const WorkCost *same = calibration_find_work(c, &w->work);
    int i = same ? (int)(same - c->work) : c->n_works;
    mem_grow(c->work, c->n_works, c->max_works);
    if (!same) c->n_works++;
    for (; !same && i > 0 && by_work(&c->work[i - 1], w) > 0; i--) c->work[i] = c->work[i - 1];
    c->work[i] = *w;
}

const CollCost *calibration_find_collective(const Calibration *c, const Placement *p, CollOp op) {
    for (int i = 0; i < c->n_collectives; i++)
        if (c->collective[i].op == op && placement_equal(&c->collective[i].place, p))
            return &c->collective[i];
    return NULL;
}

void calibration_add_collective(Calibration *c, const CollCost *s) {
    const CollCost *same = calibration_find_collective(c, &s->place, s->op);
    int i = same ? (int)(same - c->collective) : c->n_collectives;
    mem_grow(c->collective, c->n_collectives, c->max_collectives);
    c->collective[i] = *s;
    if (!same) c->n_collectives++;
}

/* ---- reading */

/* How far two works of a kind are apart: the distance of the logarithms of their sizes; a flag
 * counts like a factor of 2. */
static double distance(const Work *x, const Work *y) {
    double sum = 0;
    for (uint32_t flags = x->flags ^ y->flags; flags; flags &= flags - 1) sum += 1;
    for (int i = 0; i < 4; i++) {
        double ratio = log2((double)(x->size[i] + 1) / (double)(y->size[i] + 1));
        sum += ratio * ratio;
    }
    return sum;
}

/* The nearest measured work of the same kind and dtype; NULL: none. */
static const WorkCost *nearest(const Calibration *c, const Work *w) {
    const WorkCost *best = NULL;
    double least = INFINITY;
    for (int i = 0; i < c->n_works; i++) {
        const Work *x = &c->work[i].work;
        bool kin = x->kind == w->kind && (x->flags & WORK_BF16) == (w->flags & WORK_BF16);
        double far = kin && !c->work[i].derived ? distance(x, w) : INFINITY;
        if (far < least) least = far, best = &c->work[i];
    }
    return best;
}

bool calibration_work(const Calibration *c, const Work *w, double *seconds) {
    const WorkCost *cost = calibration_find_work(c, w);
    double scale = 1;
    if (!cost) {
        cost = nearest(c, w);
        if (!cost) return false;
        Work measured = cost->work;
        measured.rows = w->rows;
        double flops = work_flops(&measured), bytes = work_bytes(&measured);
        scale = flops > 0 ? work_flops(w) / flops : bytes > 0 ? work_bytes(w) / bytes : 1;
    }
    *seconds = scale * (cost->fixed + cost->per_row * (double)w->rows);
    return true;
}

/* Seconds per byte between point i and the one before. */
static double slope_to(const CollCost *s, int i) {
    return (s->seconds[i] - s->seconds[i - 1]) / (s->bytes[i] - s->bytes[i - 1]);
}

/* Seconds per byte beyond the last point: the slope of the last two points, but at most the last
 * point's seconds / bytes. A steeper line would begin below 0: between the two points another
 * algorithm took over, or a measurement was disturbed. */
static double slope_beyond(const CollCost *s) {
    int last = s->n - 1;
    double most = s->seconds[last] / s->bytes[last];
    return last > 0 ? fmin(slope_to(s, last), most) : most;
}

bool calibration_collective(const Calibration *c, const CollGroup *g, CollOp op, int64_t bytes,
                            double *seconds) {
    const CollCost *s = calibration_find_collective(c, &g->place, op);
    double b = (double)bytes;
    int i = 0;
    if (!s) return false;
    while (i + 1 < s->n && s->bytes[i] < b) i++;
    double slope = b > s->bytes[i] ? slope_beyond(s) : i > 0 ? slope_to(s, i) : 0;
    *seconds = s->seconds[i] + slope * (b - s->bytes[i]); // up to the smallest size latency alone
    return true;
}

bool calibration_line(const Calibration *c, const CollGroup *g, CollOp op, CostLine *line) {
    const CollCost *s = calibration_find_collective(c, &g->place, op);
    if (!s) return false;
    // slope of the line through the first point; at most that through the origin, so that the line
    // does not begin below 0
    double least = s->seconds[0] / s->bytes[0];
    for (int i = 1; i < s->n; i++)
        least = fmin(least, (s->seconds[i] - s->seconds[0]) / (s->bytes[i] - s->bytes[0]));
    least = fmin(least, slope_beyond(s));
    *line = (CostLine){s->seconds[0] - least * s->bytes[0], least};
    return true;
}
