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
 * A weight is gathered once for both halves. The gradient of a weight is one sum over both halves:
 * the second half's kernel adds to the first half's result before any other operation reads the
 * sum. So both halves together send the bytes of the whole micro-batch. Losses are one tensor: each
 * half makes half of its rows. The overlap itself is found by the scheduler. Source: alternating
 * half-batches are those of Oases (Li et al. 2023) and of Domino (Wang et al. 2024).
 */
#include "base/mem.h"
#include "parallel/step/program.h"

typedef struct Halves {
    Program *p;
    const Op *old;
    int *now; // [tensors] the tensor that is read in its place: itself, or the sum of both halves
    int *second;  // [tensors] the same value of the second half; -1: none yet
    bool *shared; // [tensors] is one for both halves: parameters, gathered weights, their gradients
    int64_t T;    // local tokens of a half
} Halves;

/* The tensor of the second half with the value of t. Its tokens follow the T tokens of the first
 * half, in the model's inputs and in the losses of both halves. */
static int second_of(Halves *h, int t) {
    if (h->second[t] >= 0) return h->second[t];
    int c = h->second[t] = program_tensor_copy(h->p, t), parent = h->p->tensor[t].parent;
    if (parent >= 0 && parent != h->p->result)
        parent = second_of(h, parent), h->p->tensor[c].parent = parent;
    else if (step_tensor_tokens(&h->p->tensor[c]) >= 0)
        h->p->tensor[c].row += h->T;
    return c;
}

/* Is tensor t shared by both halves, or rows of a tensor that is? */
static bool is_shared(const Halves *h, int t) {
    int parent = h->p->tensor[t].parent;
    return h->shared[t] || (parent >= 0 && h->shared[parent]);
}
static void share(Halves *h, int t) {
    int parent = h->p->tensor[t].parent;
    h->shared[t] = true;
    if (parent >= 0) h->shared[parent] = true;
}

/* Is a tensor read by operations [i, end)? */
static bool read_in(const Halves *h, int t, int i, int end) {
    for (; i < end; i++)
        for (int k = 0; k < h->old[i].n_in; k++)
            if (h->old[i].in[k] == t) return true;
    return false;
}

/* Do operations [i, end), a kernel or a collective, read and make only tensors that both halves
 * share? Such as the gather of a weight: it runs once. */
static bool runs_once(const Halves *h, int i, int end) {
    for (int k = i; k < end; k++) {
        const Op *op = &h->old[k];
        if (step_tensor_tokens(&h->p->tensor[op->out]) >= 0) return false;
        for (int j = 0; j < op->n_in; j++)
            if (!is_shared(h, h->now[op->in[j]])) return false;
    }
    return true;
}

static void emit_first(Halves *h, const Op *op) {
    Op one = *op;
    for (int k = 0; k < op->n_in; k++) one.in[k] = h->now[op->in[k]];
    program_append(h->p, &one);
}

/* Operation op of the second half makes the gradient of a weight: it becomes the sum of both
 * halves, by adding to the first half's result. An OP_ADD has an addend already, the sum so far
 * (chunks of the head): the first half's result contains this sum and replaces it. */
static void add_gradient(Halves *h, Op *op) {
    int first = op->out, sum = program_tensor_copy(h->p, first);
    bool added = false;
    for (int k = 0; k < op->n_in && op->kind == OP_ADD; k++)
        if (is_shared(h, op->in[k])) op->in[k] = first, added = true;
    if (!added) op->in[op->n_in++] = first, op->adds = true;
    h->now[first] = op->out = sum;
    share(h, sum);
}

/* Appends operation i for the second half. end: index after the last operation of its kernel. A
 * value without tokens that the same kernel reads is a term of a gradient, of one half alone. */
static void emit_second(Halves *h, int i, int end) {
    Op two = h->old[i];
    for (int k = 0; k < two.n_in; k++) {
        int t = h->now[two.in[k]];
        two.in[k] = is_shared(h, t) ? t : second_of(h, t);
    }
    if (two.out2 >= 0) two.out2 = second_of(h, two.out2);
    if (step_tensor_tokens(&h->p->tensor[two.out]) >= 0 || read_in(h, two.out, i + 1, end))
        two.out = second_of(h, two.out);
    else
        add_gradient(h, &two);
    program_append(h->p, &two);
}

/* Makes one tensor of the losses of both halves the program's result. The first half's losses, and
 * rows of them, become rows of this tensor; second_of() makes those of the second half. */
static void join_losses(Program *p) {
    int one = p->result, n = p->n_tensors, both = program_tensor_copy(p, one);
    p->tensor[both].size[0] *= 2;
    p->tensor[one].parent = p->result = both;
    for (int t = 0; t < n; t++)
        if (p->tensor[t].parent == one) p->tensor[t].parent = both;
}

void program_halves(Program *p) {
    int n = p->n_ops;
    Halves h = {.p = p, .old = p->op, .T = step_tensor_local(p, &p->tensor[p->result], 0)};
    join_losses(p);
    // second_of() makes a tensor at most for each tensor, add_gradient() for each operation
    size_t tensors = (size_t)p->n_tensors, most = 2 * tensors + (size_t)n;
    h.now = mem_alloc(2 * most * sizeof *h.now), h.second = h.now + most;
    h.shared = mem_calloc(most, sizeof *h.shared);
    for (int t = 0; t < (int)most; t++) h.now[t] = t, h.second[t] = -1;
    for (size_t t = 0; t < tensors; t++) h.shared[t] = p->tensor[t].storage == STORAGE_WEIGHT;
    Op *old = program_take(p);
    for (int i = 0, end; i < n; i = end) {
        end = op_kernel_end(old, n, i);
        bool once = runs_once(&h, i, end);
        for (int k = i; k < end; k++) emit_first(&h, &h.old[k]);
        for (int k = i; k < end; k++) {
            if (once)
                share(&h, h.old[k].out);
            else
                emit_second(&h, k, end);
        }
    }
    mem_free(old);
    mem_free(h.now);
    mem_free(h.shared);
}
