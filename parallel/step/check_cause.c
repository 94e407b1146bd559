/* What a tensor could lack: the list says what it is made of.
 *
 *     att  [T, K/x]     agreed
 *     o    [T, C] +x  = matmul        att, w
 *     o    [T, C]     = all_reduce x  o          not looked at: in registers on some rank
 *     x    [T, C]     = add           x, o       differs: look at all_reduce "y of attn_out" over x
 */
#include <string.h>

#include "base/mem.h"
#include "parallel/step/check_parts.h"

void check_add_cause(Suspect *s, Comm *over, const char *op, const char *what) {
    for (int i = 0; i < s->n_causes; i++) {
        const Cause *x = &s->cause[i];
        if (x->over == over && strcmp(x->op, op) == 0 && strcmp(x->what, what) == 0) return;
    }
    if (over && s->n_causes < MAX_CAUSES) s->cause[s->n_causes++] = (Cause){over, op, what};
}

/* The tensor of which t is rows or columns; itself. */
static int whole_of(const Program *p, int t) {
    while (p->tensor[t].whole >= 0) t = p->tensor[t].whole;
    return t;
}

typedef struct Walk {
    const Check *c;
    Suspect *s;
    bool *seen; // [operations]
} Walk;

/* Operation i, and all that makes its operands. */
static void visit(Walk *w, int i) {
    const Program *p = w->c->p;
    const Op *op = &p->op[i];
    if (w->seen[i]) return;
    w->seen[i] = true;
    if (op_info(op->kind)->collective)
        check_add_cause(w->s, op->copies ? p->grid->kv : grid_comm(p->grid, op->axes),
                        op_info(op->kind)->name, p->tensor[op->out].what);
    for (int k = 0; k < op_operands(op); k++) {
        int t = op->in[k], whole = whole_of(p, t);
        if (w->c->agreed[t] || w->c->agreed[whole]) continue;
        for (int j = i - 1; j >= 0; j--) {
            const Op *maker = &p->op[j];
            bool made =
                maker->kind != OP_WAIT && (whole_of(p, maker->out) == whole || maker->also == t);
            if (made && !w->c->agreed[maker->out]) visit(w, j);
        }
    }
}

static bool makes_gradient(const Check *c, const Op *op, const Tensor *t) {
    const StepTensor *x = &c->p->tensor[whole_of(c->p, op->out)];
    return op->kind != OP_WAIT && x->storage == STORAGE_GRADIENT && step_run_row(c->m, x) == t;
}

void check_find_causes(const Check *c, Suspect *s) {
    Walk w = {c, s, mem_calloc((size_t)c->p->n_ops, sizeof *w.seen)};
    if (s->op) visit(&w, (int)(s->op - c->p->op));
    for (int i = c->p->n_ops - 1; s->gradient && i >= 0; i--)
        if (makes_gradient(c, &c->p->op[i], s->gradient)) visit(&w, i);
    mem_free(w.seen);
}

void check_agree(Check *c, const StepResult *r) {
    c->agreed[r->tensor] = true;
    for (int k = 0; k < op_operands(r->op); k++) c->agreed[r->op->in[k]] = true;
}
