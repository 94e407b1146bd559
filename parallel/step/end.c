/* end -- the end of a step as a list, after its last micro-batch: loss and gradient norm of the
 * step, AdamW on every parameter, the weights that matmuls read.
 *
 *   mesh d2.x2, zero1, bf16
 *   loss     [1] +d        = loss_total                        of this rank's tokens
 *   loss     [1]           = all_reduce d        loss
 *   squares  [1] +d.z.x.y  = squares             dwte          a line a parameter; where ranks
 *   squares  [1] +d.z.x.y  = squares             dwpe, squares   hold copies the first's counts
 *   squares  [1]           = all_reduce d.z.x.y  squares
 *   clip     [2]           = clip                totals        loss and squares
 *   wte      [V/x.d, C]    = adamw               dwte, clip, wte, m, v
 *   wte      [V/x.d, C]    = cast                wte           bf16, in AdamW's kernel
 *   wte      [V/x, C]      = all_gather d        wte
 *
 * Gradient, master weight and moments of a parameter have one type here, that of the moments:
 * sharded over z, with zero also over d. So a rank updates the shard whose moments it stores. The
 * all_gather of zero1 and zero2 is the redistribution of the new weight to the type that matmuls
 * read, in bf16 with half the bytes. The totals are complete before the clip, so the run can look
 * at them and skip the update of a step.
 *
 * Source: Rajbhandari et al. 2020 (ZeRO).
 */
#include <string.h>

#include "base/mem.h"
#include "layers/exact.h"
#include "parallel/step/program.h"

typedef struct Parameter {
    StepTensor read; // the parameter in the type in which the forward pass stores it
    bool cast;       // kernels read a bf16 copy of the master weight
    int dw;          // tensor of the complete gradient, in the list of the end of a step
} Parameter;

typedef struct End {
    Program *p;
    Parameter *parameter; // [n] in the order of the table of tensors
    int n;
} End;

/* Finds the parameters in a forward pass, which makes them in the order of the table. In bf16
 * kernels read bf16 copies of matrices and of the biases that matmuls add; other vectors and wpe
 * stay fp32. */
static End end_of(Program *p) {
    Program forward = program_make(p->shape);
    program_forward(&forward);
    End e = {.p = p};
    bool copy = p->dtype != COLL_F32;
    e.parameter = mem_calloc((size_t)forward.n_tensors, sizeof *e.parameter);
    for (int t = 0; t < forward.n_tensors; t++) {
        const StepTensor *x = &forward.tensor[t];
        if (x->storage == STORAGE_WEIGHT)
            e.parameter[e.n++] = (Parameter){*x, copy && x->n_block != NO_FLAT_PARTS, -1};
    }
    for (int i = 0; i < forward.n_ops; i++)
        if (forward.op[i].kind == OP_BIAS)
            e.parameter[forward.tensor[forward.op[i].in[1]].parameter].cast = copy;
    program_free(&forward);
    return e;
}

/* A tensor of a parameter in the type of its moments: its gradient, master weight, bf16 shard or a
 * moment, by `storage`. Its name is the parameter's after a prefix. */
static int of_parameter(End *e, const StepTensor *read, Storage storage, const char *prefix) {
    Dist d = read->dist;
    dist_join(d.name, prefix, read->dist.name);
    if (read->n_block != NO_FLAT_PARTS) {
        d.shard[0].n = (uint8_t)read->n_block;
        d.shard[0] = axes_join(d.shard[0], layout_store(e->p->layout, STORE_MOMENTS));
    }
    CollType dtype = storage == STORAGE_WEIGHT ? e->p->dtype : COLL_F32;
    int t = program_tensor(e->p, d, read->size, dtype);
    e->p->tensor[t].n_block = read->n_block, e->p->tensor[t].parameter = read->parameter;
    e->p->tensor[t].storage = storage;
    return t;
}

/* Makes the weight that matmuls read from the master weight w: cast to bf16 if kernels read a
 * copy, then gathered if the type that is read is coarser. */
static void new_weight(End *e, const Parameter *param, int w) {
    Program *p = e->p;
    int t = w;
    if (param->cast) t = EMIT(p, OP_CAST, of_parameter(e, &param->read, STORAGE_WEIGHT, ""), w);
    t = program_redistribute(p, t, &param->read.dist, "new weights");
    if (t != w) p->tensor[t].storage = STORAGE_WEIGHT;
}

/* Appends AdamW on a parameter and the new weight. The cast to bf16 runs in AdamW's kernel. */
static void update(End *e, const Parameter *param, int clip) {
    Program *p = e->p;
    const StepTensor *read = &param->read;
    int w = of_parameter(e, read, STORAGE_MASTER, "");
    int m = of_parameter(e, read, STORAGE_MOMENT, "m.");
    int v = of_parameter(e, read, STORAGE_SECOND_MOMENT, "v.");
    int now = of_parameter(e, read, STORAGE_MASTER, "");
    EMIT(p, OP_ADAMW, now, param->dw, clip, w, m, v);
    int cast = p->n_ops;
    new_weight(e, param, now);
    if (param->cast) p->op[cast].fused = true;
}

/* ---- loss and gradient norm ---- */

/* A tensor of n doubles, or with dim "W" of the n integers of a wide sum (layers/exact.h). Ranks
 * along `over` have one term each: the sum is pending. */
static int numbers(Program *p, const char *name, const char *dim, int64_t n, Axes over) {
    Dist d = dist_make(name, dim, axes_none(), NULL, axes_none());
    d.partial = over;
    return program_tensor(p, d, (int64_t[]){n, 1}, dim[0] == 'W' ? COLL_I64 : COLL_F64);
}

/* One number of which ranks along `over` have a term: a double, with --exact a wide sum. */
static int number(End *e, const char *name, Axes over) {
    bool exact = e->p->layout->exact;
    return numbers(e->p, name, exact ? "W" : "1", exact ? WIDE : 1, over);
}

/* Reduces the pending sum t over its ranks, to a double in this row of the totals [2]. */
static void reduce_total(End *e, int t, int totals, int row, const char *what) {
    Program *p = e->p;
    Dist whole = p->tensor[t].dist;
    whole.partial = axes_none();
    t = program_redistribute(p, t, &whole, what);
    if (p->layout->exact) t = EMIT(p, OP_ROUND, numbers(p, whole.name, "1", 1, axes_none()), t);
    p->tensor[t].parent = totals, p->tensor[t].row = row;
}

/* Appends the totals of the step: [0] the sum of losses, [1] the sum of squares of all
 * gradients. */
static int totals_of(End *e, bool on_device) {
    Program *p = e->p;
    int totals = numbers(p, "totals", "2", 2, axes_none());
    Axes over_tokens = mesh_real(p->mesh, axes_of("d.z"));
    int loss = program_emit(p, OP_LOSS_TOTAL, number(e, "loss", over_tokens), NULL, 0);
    reduce_total(e, loss, totals, 0, "sum of losses");
    // every rank has squares of its own: over all four axes, in the order of ranks
    Axes over = grid_summed_axes(p->grid, axes_of("d.z.x.y"));
    if (mesh_real(p->mesh, over).n == 0) over = axes_none();
    int squares = -1;
    for (int i = 0; i < e->n; i++) {
        Parameter *param = &e->parameter[i];
        bool first = squares < 0;
        p->layer = param->read.layer;
        param->dw = of_parameter(e, &param->read, STORAGE_GRADIENT, "d");
        squares = EMIT(p, OP_SQUARES, number(e, "squares", over), param->dw, squares);
        p->op[p->n_ops - 1].fused = on_device && !first; // one kernel for all gradients
    }
    reduce_total(e, squares, totals, 1, "gradient norm");
    return totals;
}

/* ---- the list ---- */

/* Appends the totals, then clip [2] (AdamWNow): the factor by which AdamW scales gradients, and
 * whether both totals are finite; if not, AdamW changes nothing. */
static int clip_of(End *e, bool on_device) {
    e->p->result = totals_of(e, on_device);
    Dist d = {.n_dims = 1, .name = "clip", .dim = {"2"}};
    int clip = program_tensor(e->p, d, (int64_t[]){2, 1}, COLL_F32);
    return EMIT(e->p, OP_CLIP, clip, e->p->result);
}

void program_end(Program *p, bool on_device, bool casts_alone) {
    End e = end_of(p);
    p->phase = PHASE_END;
    int clip = casts_alone ? -1 : clip_of(&e, on_device);
    for (int i = 0; i < e.n; i++) {
        const Parameter *param = &e.parameter[i];
        p->layer = param->read.layer;
        if (!casts_alone)
            update(&e, param, clip);
        else if (param->cast)
            new_weight(&e, param, of_parameter(&e, &param->read, STORAGE_MASTER, ""));
    }
    mem_free(e.parameter);
}
