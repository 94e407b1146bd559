/* finite -- names the first tensor with a value that is not finite: model_first_nonfinite of
 * model.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/step/listing.h"
#include "parallel/step/program.h"
#include "parallel/step/run.h"

/* The first tensor on this rank with a value that is not finite. */
typedef struct Found {
    int64_t index;  // in the order of a step: of the table of tensors, or of the list of operations
    char name[160]; // "": all are finite
} Found;

/* A sum of squares in double is finite exactly when every float is. */
static bool finite_all(Model *m, const float *x, int64_t n) {
    return !x || isfinite(m->k->sum_of_squares(m->team, x, n));
}

static bool acts_finite(Model *m, const Act *x, int64_t n) {
    float chunk[1024];
    bool all = true;
    for (int64_t i = 0; x && i < n; i += 1024) {
        int64_t here = n - i < 1024 ? n - i : 1024;
        m->k->to_floats(chunk, acts_at(m, x, i), here);
        for (int64_t k = 0; k < here; k++) all &= isfinite(chunk[k]) != 0;
    }
    return all;
}

/* Checks a result [T, ...] row by row. Columns that pad the vocabulary are skipped. */
static bool result_finite(Model *m, const StepResult *r) {
    const StepTensor *t = &r->p->tensor[r->tensor];
    int64_t rows = step_tensor_local(r->p, t, 0), cols = step_tensor_local(r->p, t, 1);
    int64_t stride = t->stride ? t->stride : cols;
    if (strcmp(t->dist.dim[1], "V") == 0) cols = m->w.V_n;
    if (t->dtype != r->p->dtype) return finite_all(m, r->at, rows * cols); // losses
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = step_tensor_row(r->p, t, i) * stride;
        if (!acts_finite(m, acts_at(m, r->at, at), cols)) return false;
    }
    return true;
}

/* A StepHook.look: remembers the first activation, or gradient of an activation, that is not
 * finite. Weights and their gradients are checked by find_stored. */
static void find(void *ctx, Model *m, const StepResult *r) {
    Found *first = ctx;
    const StepTensor *t = &r->p->tensor[r->tensor];
    bool tokens = step_tensor_tokens(t) == 0 && t->dtype != COLL_I64;
    if (first->name[0] || !r->at || !tokens || result_finite(m, r)) return;
    first->index += r->op - r->p->op;
    listing_result(r->p, r->op, r->tensor, first->name, sizeof first->name);
}

/* The first parameter that is not finite, in the order of the table; or the first gradient, in the
 * reverse order, from the head to the embedding. */
static Found find_stored(Model *m, bool gradients) {
    Found f = {0};
    for (int n = m->tensors.n; f.index < n && !f.name[0]; f.index++) {
        const Tensor *t = &m->tensors.t[gradients ? n - 1 - f.index : f.index];
        const float *x = gradients ? t->grad : t->param;
        if (!finite_all(m, x, tensor_part(t, gradients ? PART_GRAD : PART_PARAM)))
            snprintf(f.name, sizeof f.name, "%s %s", gradients ? "gradient of" : "parameter",
                     t->name);
    }
    return f;
}

/* Collective. The memory of temporaries has been overwritten, so the last micro-batch is run again:
 * its tokens are still in m->inputs and m->targets. This adds to the gradients, which have been
 * checked already. */
static Found find_result(Model *m) {
    Found f = {0};
    if (!m->losses) return f; // no micro-batch has run
    const StepHook *before = m->hook;
    m->hook = &(StepHook){.look = find, .ctx = &f};
    step_run(m, m->shape.training);
    m->hook = before;
    return f;
}

/* Collective. Of the tensors found by all ranks the one with the smallest index. */
static Found first_of_all(const Group *g, Found mine) {
    Found *all = mem_calloc((size_t)g->size, sizeof *all);
    group_all_gather(g, &mine, sizeof mine, all);
    for (int i = 0; i < g->size; i++)
        if (all[i].name[0] && (!mine.name[0] || all[i].index < mine.index)) mine = all[i];
    mem_free(all);
    return mine;
}

void model_first_nonfinite(Model *m, char *name, size_t n) {
    Group g = comm_group(m->grid->all);
    Found gradient = find_stored(m, true), first = first_of_all(&g, find_stored(m, false));
    if (!first.name[0]) first = first_of_all(&g, find_result(m));
    if (!first.name[0]) first = first_of_all(&g, gradient);
    snprintf(name, n, "%s", first.name);
}
