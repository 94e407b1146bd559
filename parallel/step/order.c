/* order -- the list in the order of a schedule: a collective where it starts, and a wait where it ends.
 *
 *   before                                after
 *   h1   = all_gather x  h1               h1   = all_gather x  h1         starts
 *   dw   = matmul_at  h2, dup             dw   = matmul_at  h2, dup       meanwhile
 *   qkv  = matmul  h1, qkv.weight         wait  h1
 *                                         qkv  = matmul  h1, qkv.weight
 */
#include "base/mem.h"
#include "parallel/step/schedule.h"

static void append(Program *p, const Op *op) {
    program_emit(p, op->kind, op->out, op->in, op->n_in);
    p->op[p->n_ops - 1] = *op;
}

void program_order(Program *p, const Schedule *s) {
    Op *old = p->op;
    int n = p->n_ops;
    p->op = NULL, p->n_ops = p->room_ops = 0;
    for (int k = 0; k < s->n_slots; k++) {
        int i = s->slot[k].op;
        if (s->slot[k].kind == SLOT_WAIT) {
            p->phase = old[i].phase, p->layer = old[i].layer;
            EMIT(p, OP_WAIT, old[i].out, old[i].out, old[i].in[0]);
            continue;
        }
        append(p, &old[i]);
        while (s->slot[k].kind == SLOT_RUN && ++i < n && old[i].fused) append(p, &old[i]);
    }
    mem_free(old);
}
