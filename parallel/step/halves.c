/* halves -- a micro-batch in two halves of its sequences, in one list: while one half waits for a
 * collective, the other computes.
 *
 *   half of the sequences        both halves
 *   y  = matmul x, w             y   = matmul x, w
 *   y  = all_reduce y            y2  = matmul x2, w
 *   z  = gelu y                  y   = all_reduce y          under the matmul of y2
 *                                y2  = all_reduce y2         under gelu y
 *                                z   = gelu y
 *                                z2  = gelu y2
 *
 * Weights are gathered once for both, and gradients of weights are added before a collective
 * reduces them: so both halves send what the whole would. The scheduler does the rest. Source:
 * half-batches in turns are those of Oases (Li et al. 2023) and of Domino (Wang et al. 2024).
 */
#include <string.h>

#include "base/mem.h"
#include "parallel/step/program.h"

typedef struct Halves {
    Program *p;
    const Op *old;
    int *second;  // [tensors] of the second half; itself: both halves have one; -1: none yet
    bool *weight; // [tensors] a parameter, or gathered from one
} Halves;

/* Has a tensor rows or columns of tokens? */
static bool of_tokens(const StepTensor *t) {
    for (int i = 0; i < t->dist.n_dims; i++)
        if (strcmp(t->dist.dim[i], "T") == 0) return true;
    return false;
}

static void emit(Program *p, const Op *op) {
    program_emit(p, op->kind, op->out, op->in, op->n_in);
    p->op[p->n_ops - 1] = *op;
}

static int copy_tensor(Program *p, int t) {
    StepTensor value = p->tensor[t];
    int c = program_tensor(p, value.dist, value.size, value.bytes);
    p->tensor[c] = value;
    return c;
}

/* Or rows of one: panels.c. */
static bool is_weight(const Halves *h, int t) {
    int whole = h->p->tensor[t].whole;
    return h->weight[t] || (whole >= 0 && h->weight[whole]);
}

static bool gathers_weight(const Halves *h, const Op *op) {
    return op_info(op->kind)->collective && is_weight(h, op->in[0]);
}

/* A collective that brings a weight's gradient to where it is stored, or what follows it there. */
static bool stores_gradient(const Halves *h, const Op *op) {
    bool moves = op_info(op->kind)->collective || op->kind == OP_ACCUMULATE;
    return moves && !is_weight(h, op->in[0]) && !of_tokens(&h->p->tensor[op->in[0]]);
}

static int second_of(Halves *h, int t) {
    if (h->second[t] >= 0) return h->second[t];
    h->second[t] = copy_tensor(h->p, t);
    int whole = h->p->tensor[t].whole;
    if (whole >= 0) h->p->tensor[h->second[t]].whole = second_of(h, whole);
    return h->second[t];
}

static void emit_first(Halves *h, const Op *op) {
    if (gathers_weight(h, op)) {
        h->weight[op->out] = true;
        h->second[op->out] = op->out;
    }
    if (!stores_gradient(h, op)) emit(h->p, op);
}

static void emit_second(Halves *h, const Op *op) {
    Op two = *op;
    if (gathers_weight(h, op)) return;
    if (stores_gradient(h, op)) {
        int a = op->in[0], b = h->second[a];
        if (b >= 0 && b != a) { // rows of a whole may have been added already
            h->p->phase = op->phase, h->p->layer = op->layer;
            two.in[0] = EMIT(h->p, OP_ADD, copy_tensor(h->p, a), a, b);
        }
        h->second[op->out] = op->out;
        emit(h->p, &two);
        return;
    }
    for (int k = 0; k < op->n_in; k++)
        if (!is_weight(h, op->in[k])) two.in[k] = second_of(h, op->in[k]);
    two.out = second_of(h, op->out);
    if (op->also >= 0) two.also = second_of(h, op->also);
    emit(h->p, &two);
}

void program_halves(Program *p) {
    int n = p->n_ops, n_tensors = p->n_tensors;
    Halves h = {.p = p, .old = p->op};
    h.second = mem_alloc((size_t)n_tensors * sizeof *h.second);
    h.weight = mem_alloc((size_t)n_tensors * sizeof *h.weight);
    for (int t = 0; t < n_tensors; t++) {
        h.second[t] = -1;
        h.weight[t] = p->tensor[t].storage == STORAGE_PARAMETER;
    }
    p->op = NULL, p->n_ops = p->room_ops = 0;
    for (int i = 0, end; i < n; i = end) {
        end = i + 1;
        while (end < n && h.old[end].fused) end++;
        for (int k = i; k < end; k++) emit_first(&h, &h.old[k]);
        for (int k = i; k < end; k++) emit_second(&h, &h.old[k]);
    }
    mem_free((void *)(uintptr_t)h.old);
    mem_free(h.second);
    mem_free(h.weight);
}
