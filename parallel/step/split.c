/* split -- chunk=n: a matmul and the collectives at its ends in n chunks of tokens, so that one
 * chunk is gathered or reduced under the matmul of another.
 *
 *   before                          after, n = 2
 *   x = all_gather x  h             x.0 = all_gather x  h.0
 *                                   x.1 = all_gather x  h.1      under the matmul of x.0
 *   y = matmul  x, w                y.0 = matmul  x.0, w
 *   y = reduce_scatter x  y         y.0 = reduce_scatter x y.0   under the matmul of x.1
 *                                   y.1 = matmul  x.1, w
 *                                   y.1 = reduce_scatter x y.1
 *
 * A chunk is rows of its whole, which later operations read. Where tokens are sharded along the
 * axis of the collective, chunk k takes the k-th part of the rows of every rank's block: so what
 * is gathered lies where it belongs. What is fused into a matmul is split with it. Source: ATP
 * (2023), section 4.1.
 */
#include <string.h>

#include "base/mem.h"
#include "parallel/step/program.h"

typedef struct Split {
    Program *p;
    const Op *old;
    int n_ops, chunks;
    int *maker;   // [tensors] operation that makes it; -1
    int *before;  // [operations] of a matmul: the collective that brings its operand; -1
    int *after;   // [operations] the collective that takes its result; -1
    int *part;    // [tensors * chunks] the chunk; -1: none yet
    bool *split;  // [operations] runs in chunks
    int64_t rows; // of the smallest block of the matmul at hand
} Split;

static bool of_tokens(const Split *s, int t) {
    return strcmp(s->p->tensor[t].dist.dim[0], "T") == 0;
}

/* The chunk of a tensor; itself where it has no rows of tokens. */
static int chunk(Split *s, int t, int k) {
    int *part = &s->part[t * s->chunks + k];
    if (!of_tokens(s, t)) return t;
    if (*part >= 0) return *part;
    StepTensor x = s->p->tensor[t];
    int64_t begin = k * s->rows / s->chunks, end = (k + 1) * s->rows / s->chunks;
    int64_t times = x.size[0] / s->rows; // in all ranks' blocks together
    x.size[0] = times * (end - begin);
    x.whole = t, x.row = begin;
    *part = program_tensor(s->p, x.dist, x.size, x.bytes);
    s->p->tensor[*part] = x;
    return *part;
}

static void emit(Split *s, const Op *op, int k) {
    Op new = *op;
    for (int i = 0; i < op->n_in; i++) new.in[i] = chunk(s, op->in[i], k);
    new.out = chunk(s, op->out, k);
    if (op->also >= 0) new.also = chunk(s, op->also, k);
    program_emit(s->p, new.kind, new.out, new.in, new.n_in);
    s->p->op[s->p->n_ops - 1] = new;
}

/* The only reader of a tensor where that is a collective; -1. */
static int collective_reader(const Split *s, int t) {
    int found = -1;
    for (int i = 0; i < s->n_ops; i++)
        for (int k = 0; k < s->old[i].n_in; k++) {
            if (s->old[i].in[k] != t) continue;
            if (found >= 0 || !op_info(s->old[i].kind)->collective) return -1;
            found = i;
        }
    return found;
}

/* Rows of the smallest block among what a matmul and its collectives read and make. */
static int64_t smallest(const Split *s, int i) {
    const int ends[] = {i, s->before[i], s->after[i]};
    int64_t rows = INT64_MAX;
    for (int e = 0; e < 3; e++) {
        if (ends[e] < 0) continue;
        const int tensors[] = {s->old[ends[e]].in[0], s->old[ends[e]].out};
        for (int k = 0; k < 2; k++) {
            int64_t n = step_tensor_local(s->p, &s->p->tensor[tensors[k]], 0);
            if (n < rows) rows = n;
        }
    }
    return rows;
}

/* Matmuls of layers whose operand or result a collective moves. */
static void find(Split *s) {
    for (int i = 0; i < s->n_ops; i++) {
        const Op *op = &s->old[i];
        bool matmul = op->kind == OP_MATMUL || op->kind == OP_MATMUL_BT;
        s->before[i] = s->after[i] = -1;
        if (!matmul || op->layer < 0 || s->p->layout->stay) continue;
        int from = s->maker[op->in[0]], to = collective_reader(s, op->out);
        if (from >= 0 && op_info(s->old[from].kind)->collective && !s->split[from])
            s->before[i] = from;
        s->after[i] = to;
        if (s->before[i] < 0 && to < 0) continue;
        if (smallest(s, i) < s->chunks) {
            s->before[i] = s->after[i] = -1;
            continue;
        }
        s->split[i] = true;
        if (s->before[i] >= 0) s->split[s->before[i]] = true;
        if (to >= 0) s->split[to] = true;
    }
}

/* The chunks of a matmul with what is fused into it, each before the collective that takes it. */
static void emit_matmul(Split *s, int i) {
    s->rows = smallest(s, i);
    for (int k = 0; k < s->chunks; k++) {
        emit(s, &s->old[i], k);
        for (int j = i + 1; j < s->n_ops && s->old[j].fused; j++) emit(s, &s->old[j], k);
        if (s->after[i] >= 0) emit(s, &s->old[s->after[i]], k);
    }
}

static void emit_all(Split *s) {
    int *matmul = mem_alloc((size_t)s->n_ops * sizeof *matmul); // whose operand it brings
    for (int i = 0; i < s->n_ops; i++) matmul[i] = -1;
    for (int i = 0; i < s->n_ops; i++)
        if (s->before[i] >= 0) matmul[s->before[i]] = i;
    for (int i = 0; i < s->n_ops; i++) {
        const Op *op = &s->old[i];
        bool collective = op_info(op->kind)->collective;
        if (s->split[i] && !collective) {
            emit_matmul(s, i);
            while (i + 1 < s->n_ops && s->old[i + 1].fused) i++;
        } else if (s->split[i] && matmul[i] >= 0) {
            s->rows = smallest(s, matmul[i]);
            for (int k = 0; k < s->chunks; k++) emit(s, op, k);
        } else if (!s->split[i]) {
            program_emit(s->p, op->kind, op->out, op->in, op->n_in);
            s->p->op[s->p->n_ops - 1] = *op;
        }
    }
    mem_free(matmul);
}

void program_split(Program *p, int chunks) {
    size_t n = (size_t)p->n_ops, tensors = (size_t)p->n_tensors;
    Split s = {.p = p, .old = p->op, .n_ops = p->n_ops, .chunks = chunks};
    int *room = mem_alloc((2 * n + tensors * (size_t)(chunks + 1)) * sizeof *room);
    s.before = room, s.after = s.before + n, s.maker = s.after + n, s.part = s.maker + tensors;
    s.split = mem_calloc(n, sizeof *s.split);
    for (size_t t = 0; t < tensors * (size_t)(chunks + 1); t++) s.maker[t] = -1;
    for (int i = 0; i < p->n_ops; i++) s.maker[p->op[i].out] = i;
    find(&s);
    Op *old = p->op;
    p->op = NULL, p->n_ops = p->room_ops = 0;
    emit_all(&s);
    mem_free(old);
    mem_free(s.split);
    mem_free(room);
}
