/* recompute -- what is not kept from forward to backward is computed again before backward reads
 * it.
 *
 *   kept of a layer
 *   none         all but what was gathered for a matmul (x with sequence parallelism, weights that
 *                are stored sharded), which is gathered again
 *   selective    of that, neither the outputs of norms nor those of activations
 *   full         the layer's input; and the residual stream in its middle, where making it again
 *                would take a reduction along x (Oases, Li et al. 2023)
 *
 * An operation whose result is not kept is cloned in front of the first operation of backward that
 * reads the result, its inputs likewise. So a gathered weight has one clone, wherever it is read in
 * backward.
 */
#include "base/mem.h"
#include "parallel/step/program.h"

const char *recompute_name(Recompute r) {
    static const char *const names[] = {"none", "selective", "full"};
    return names[r];
}

typedef struct Pass {
    Program *p;
    const Op *old; // operations before the pass
    Uses uses;
    int *clone; // [tensors] tensor that stands for it in backward; -1
} Pass;

/* Is it the residual stream behind a layer, or in the middle of one and reduced along x? */
static bool kept_by_full(const Pass *s, int i) {
    const Op *op = &s->old[i];
    if (op->kind != OP_ADD) return false;
    bool last = s->old[i + 1].layer != op->layer;
    return last || s->p->layout->stay || s->p->mesh->size[AXIS_X] > 1;
}

static bool kept(const Pass *s, int i) {
    const Op *op = &s->old[i];
    Recompute mode = s->p->shape->recompute;
    if (op->layer < 0) return true;
    if (mode == RECOMPUTE_FULL) return kept_by_full(s, i);
    if (op->kind == OP_ALL_GATHER) return false;
    return mode == RECOMPUTE_NONE || !op_info(op->kind)->cheap;
}

/* The tensor that backward reads for t: t itself, or its clone, which is computed here. */
static int available(Pass *s, int t) {
    int i = s->uses.maker[t];
    if (i < 0 || s->old[i].phase != PHASE_FORWARD || kept(s, i)) return t;
    if (s->clone[t] >= 0) return s->clone[t];
    Op op = s->old[i];
    for (int k = 0; k < op.n_in; k++) op.in[k] = available(s, op.in[k]);
    op.out = s->clone[op.out] = program_tensor_copy(s->p, op.out);
    if (op.also >= 0) op.also = s->clone[op.also] = program_tensor_copy(s->p, op.also);
    op.phase = PHASE_RECOMPUTE;
    program_append(s->p, &op);
    return s->clone[t];
}

void program_recompute(Program *p) {
    int n_ops = p->n_ops, n = p->n_tensors;
    Pass s = {.p = p, .uses = program_uses(p), .clone = mem_alloc((size_t)n * sizeof(int))};
    Op *old = program_take(p);
    s.old = old;
    for (int t = 0; t < n; t++) s.clone[t] = -1;
    for (int i = 0; i < n_ops; i++) {
        Op op = old[i];
        for (int k = 0; op.phase == PHASE_BACKWARD && k < op.n_in; k++)
            op.in[k] = available(&s, op.in[k]);
        program_append(p, &op);
    }
    mem_free(old);
    mem_free(s.uses.maker), mem_free(s.clone);
}
