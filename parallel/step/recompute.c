/* recompute -- what is not kept from forward to backward is computed again before backward reads
 * it.
 *
 *   kept of a layer
 *   none         all values but the results of all_gathers, which are gathered again: x with
 *                sequence parallelism, weights that are stored sharded
 *   selective    the same without the outputs of norms and of activations
 *   full         the layer's input; also x2, the residual stream in the middle of the layer, where
 *                computing x2 again would take a reduction along x (Oases, Li et al. 2023)
 *
 * An operation whose result is not kept is cloned in front of the first operation of backward that
 * reads the result. Operands of the clone that are not kept either are cloned before it. Later
 * readers in backward read the same clone, so a weight is gathered again only once.
 *
 * --recompute full is Megatron-LM's --recompute-granularity full, and torch.utils.checkpoint around
 * each block. Megatron-LM's selective computes attention again so as not to keep the scores [S, S];
 * attention here keeps only lse [T, H] anyway, so selective is about norms and activations.
 */
#include "base/mem.h"
#include "parallel/step/program.h"

const char *recompute_name(Recompute r) {
    static const char *const names[] = {"none", "selective", "full"};
    return names[r];
}

typedef struct Recomputer {
    Program *p;
    Op *old; // the list before the pass
    Uses uses;
    int *clone; // [tensors] the recomputed tensor that backward reads in its place; -1: none
} Recomputer;

/* Is the result of operation i the residual stream at the end of a layer (x3)? Or in the middle
 * (x2), on a mesh where x2 took a reduction along x? */
static bool kept_by_full(const Recomputer *s, int i) {
    const Op *op = &s->old[i];
    if (op->kind != OP_ADD) return false;
    bool last = s->old[i + 1].layer != op->layer;
    return last || s->p->layout->stay || s->p->mesh->size[AXIS_X] > 1;
}

/* Is the result of operation i cheap to compute again? That of rope is where its operand is: else
 * qkv would be kept before QK-norm and behind rope. */
static bool is_cheap(const Recomputer *s, int i) {
    const Op *op = &s->old[i];
    int before = op->kind == OP_ROPE ? s->uses.maker[op->in[0]] : -1;
    return op_info(op->kind)->cheap || (before >= 0 && op_info(s->old[before].kind)->cheap);
}

/* Is the result of operation i of forward kept until backward? */
static bool kept(const Recomputer *s, int i) {
    const Op *op = &s->old[i];
    Recompute mode = s->p->shape->recompute;
    if (op->layer < 0) return true;
    if (mode == RECOMPUTE_FULL) return kept_by_full(s, i);
    if (op->kind == OP_ALL_GATHER) return false;
    return mode == RECOMPUTE_NONE || !is_cheap(s, i);
}

/* The tensor that backward reads in place of t: t itself where it is kept, else its clone. Appends
 * the operations that make the clone when it is needed for the first time. */
static int available(Recomputer *s, int t) {
    int i = s->uses.maker[t];
    if (i < 0 || s->old[i].phase != PHASE_FORWARD || kept(s, i)) return t;
    if (s->clone[t] >= 0) return s->clone[t];
    Op op = s->old[i];
    for (int k = 0; k < op.n_in; k++) op.in[k] = available(s, op.in[k]);
    op.out = s->clone[op.out] = program_tensor_copy(s->p, op.out);
    if (op.out2 >= 0) op.out2 = s->clone[op.out2] = program_tensor_copy(s->p, op.out2);
    op.phase = PHASE_RECOMPUTE;
    program_append(s->p, &op);
    return s->clone[t];
}

void program_recompute(Program *p) {
    int n_ops = p->n_ops, n = p->n_tensors;
    Recomputer s = {.p = p, .uses = program_uses(p), .clone = mem_alloc((size_t)n * sizeof(int))};
    s.old = program_take(p);
    for (int t = 0; t < n; t++) s.clone[t] = -1;
    for (int i = 0; i < n_ops; i++) {
        Op op = s.old[i];
        for (int k = 0; op.phase == PHASE_BACKWARD && k < op.n_in; k++)
            op.in[k] = available(&s, op.in[k]);
        program_append(p, &op);
    }
    mem_free(s.old);
    mem_free(s.uses.maker), mem_free(s.clone);
}
