#include "parallel/step/squares.h"

enum { MATRICES, VECTORS, VECTORS_OVER_X };

static void add_there(Squares *s, const float *x, int64_t ld, int64_t rows, int64_t n) {
    s->m->k->squares_to(s->there, x, ld, rows, n, s->begun);
    s->begun = true;
}

static void close_region(Squares *s, int region) {
    const float *begin = s->open[region].begin, *end = s->open[region].end;
    if (begin != end) add_there(s, begin, end - begin, 1, end - begin);
}

/* Rows that are not side by side. */
static void add_squares_of(Squares *s, const float *x, const TensorRect *r, int64_t ld) {
    for (int64_t i = 0; i < r->rows && !s->there; i++)
        s->here += s->m->k->sum_of_squares(s->m->team, x + i * ld, r->cols);
    if (s->there) add_there(s, x, ld, r->rows, r->cols);
}

/* x[n], followed by `zeros` of them. */
static void add_squares(Squares *s, int region, const float *x, int64_t n, int64_t zeros) {
    if (!s->there) {
        s->here += s->m->k->sum_of_squares(s->m->team, x, n);
        return;
    }
    if (s->open[region].end != x) {
        close_region(s, region);
        s->open[region].begin = x;
    }
    s->open[region].end = x + n + zeros;
}

static int region_of(const Model *m, int i) {
    if (shard_stored(&m->tensors, i)) return MATRICES;
    Axes partial = shard_partial_axes(&m->tensors, i, &m->grid->layout);
    return axes_equal(partial, axes_of("d.z")) ? VECTORS : VECTORS_OVER_X;
}

/* With zero1 only the shard of the moments is complete; replicas that take local steps have
 * gradients of their own. */
void squares_add(Squares *s, int i) {
    const int64_t unit = ARENA_ALIGN / sizeof(float);
    const Tensor *t = &s->m->tensors.t[i];
    TensorPart part = s->m->grid->local_steps ? PART_GRAD : PART_MOMENTS;
    int region = region_of(s->m, i);
    const float *g = t->grad + (t->begin[part] - t->begin[PART_GRAD]);
    int64_t n = tensor_part(t, part), gap = (unit - n % unit) % unit;
    bool all_first = t->first[part], whole = n == tensor_part(t, PART_GRAD);
    for (int k = 0; k < t->n_rects; k++) all_first &= t->rects[k].first;
    if (all_first) {
        // padding is zero, and so is what nobody writes, from the last element to where the next
        // tensor begins
        add_squares(s, region, g, n, whole ? gap : 0);
        return;
    }
    TensorRect r;
    for (TensorRuns it = tensor_runs(t, part, true); tensor_next_rect(&it, &r);)
        add_squares_of(s, g + r.at, &r, t->local_cols);
}

void squares_end(Squares *s) {
    for (int i = 0; i < SQUARE_REGIONS; i++) close_region(s, i);
    if (s->there && !s->begun) s->m->k->zero(s->m->team, s->there, sizeof *s->there);
}
