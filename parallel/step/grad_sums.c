#include "parallel/step/grad_sums.h"

#include "parallel/comm/coll_call.h"
#include "parallel/step/model.h"

enum { MOST_OPEN = 8 }; // the group carries other collectives as well

/* Those of later layers are final first; those of no layer last. */
static void insert(GradSums *g, GradSum s) {
    int at = g->n++;
    for (; at > 0 && g->sum[at - 1].layer < s.layer; at--) g->sum[at] = g->sum[at - 1];
    g->sum[at] = s;
}

void grad_sums_add(Model *m, void *p, int64_t n, Comm *over, int layer, const char *what) {
    insert(&m->sums, (GradSum){COLL_ALL_REDUCE, over, p, p, n, what, layer, {0}});
}

/* zero1: this rank keeps the sum of its part only. */
void grad_sums_scatter(Model *m) {
    Comm *d = grid_comm(m->grid, axes_of("d"));
    for (int i = 0; d && m->grid->layout.zero == 1 && i < m->tensors.n; i++) {
        Tensor *t = &m->tensors.t[i];
        if (!shard_stored(&m->tensors, i)) continue;
        int64_t own = t->begin[PART_MOMENTS] - t->begin[PART_GRAD];
        void *src = m->exact ? (void *)m->grad_64[i] : t->grad;
        void *dst = m->exact ? (void *)(m->grad_64[i] + own) : t->grad + own;
        insert(&m->sums, (GradSum){COLL_REDUCE_SCATTER,
                                   d,
                                   src,
                                   dst,
                                   tensor_part(t, PART_MOMENTS),
                                   "gradients of matrices",
                                   t->layer,
                                   {0}});
    }
}

static void start(Model *m, GradSum *s) {
    s->ticket = coll_flat_start(s->comm, s->op, m->exact ? COLL_I64 : COLL_F32, COLL_SUM, s->src,
                                s->n, s->dst, s->what, __FILE__, __LINE__);
}

bool grad_sums_early(const Model *m) {
    return m->sums.left == 1 && m->sums.n > 0 && m->shape.overlap.bulk && !m->grid->kv;
}

void grad_sums_settle(Model *m) {
    GradSums *g = &m->sums;
    while (g->done < g->started) coll_wait(g->sum[g->done++].ticket);
}

void grad_sums_start(Model *m, int layer) {
    GradSums *g = &m->sums;
    for (; g->started < g->n && g->sum[g->started].layer >= layer; g->started++) {
        if (g->started - g->done == MOST_OPEN || !m->shape.overlap.bulk) grad_sums_settle(m);
        start(m, &g->sum[g->started]);
    }
}

void grad_sums_end(Model *m) {
    grad_sums_start(m, -1);
    grad_sums_settle(m);
}
