#include "parallel/plan/cost.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* ---- kernels ---- */

typedef struct OpCall {
    const Program *p;
    const Op *op;
} OpCall;

/* This rank's size of a dimension of operand i; of the result. */
static int64_t in(const OpCall *k, int i, int dim) {
    return step_tensor_local(k->p, &k->p->tensor[k->op->in[i]], dim);
}
static int64_t out(const OpCall *k, int dim) {
    return step_tensor_local(k->p, &k->p->tensor[k->op->out], dim);
}

static Widths widths(const OpCall *k) {
    return widths_of(&k->p->shape->config, k->p->grid);
}

/* Sets the sizes of a Work (work.h) from the tensors of an operation. */
typedef void Sizes(const OpCall *k, Work *w);

static void matmul_dims(const OpCall *k, Work *w) {
    w->rows = out(k, 0), w->K = in(k, 0, 1), w->N = out(k, 1);
}
static void dgrad_dims(const OpCall *k, Work *w) {
    w->rows = out(k, 0), w->K = out(k, 1), w->N = in(k, 0, 1);
}
static void wgrad_dims(const OpCall *k, Work *w) {
    w->rows = in(k, 0, 0), w->K = out(k, 0), w->N = out(k, 1);
}
static void features(const OpCall *k, Work *w) {
    w->rows = in(k, 0, 0), w->width = in(k, 0, 1);
}
static void features_out(const OpCall *k, Work *w) {
    w->rows = out(k, 0), w->width = out(k, 1);
}
static void activation(const OpCall *k, Work *w) {
    w->rows = out(k, 0) * out(k, 1), w->act = k->p->shape->config.act;
}
/* B is the micro-batch's: with sequence parallelism rows of padding follow the last sequence, which
 * attention does not read. */
static void heads(const OpCall *k, Work *w) {
    const ModelShape *s = k->p->shape;
    int64_t X = k->p->mesh->size[AXIS_X], B = k->p->layout->stay ? div_up(s->B, X) : s->B;
    Widths n = widths(k);
    w->rows = B, w->S = s->S, w->H = n.H, w->Hkv = n.Hkv, w->D = n.D;
}
static void rotations(const OpCall *k, Work *w) {
    heads(k, w);
    w->rows *= w->S, w->S = 1;
}
/* operand: statistics [2Y, T], two rows of each of Y ranks */
static void merged(const OpCall *k, Work *w) {
    w->rows = in(k, 0, 1), w->width = widths(k).C, w->parts = in(k, 0, 0) / 2;
}
static void merged_loss(const OpCall *k, Work *w) {
    w->rows = in(k, 0, 0), w->width = in(k, 0, 1), w->parts = in(k, 2, 0) / 3;
}
static void flat(const OpCall *k, Work *w) {
    w->rows = 1, w->width = step_tensor_elements(k->p, &k->p->tensor[k->op->out]);
}
/* columns counted in floats */
static void copied(const OpCall *k, Work *w) {
    w->rows = out(k, 0), w->width = out(k, 1) * coll_type_bytes(k->p->tensor[k->op->out].dtype) / 4;
}
static void stored(const OpCall *k, Work *w) {
    w->rows = step_tensor_elements(k->p, &k->p->tensor[k->op->in[0]]);
}
static void one(const OpCall *k, Work *w) {
    (void)k;
    w->rows = 1;
}
static void vocabulary(const OpCall *k, Work *w) {
    w->rows = out(k, 0), w->C = out(k, 1), w->V = widths(k).V;
}
static void vocabulary_backward(const OpCall *k, Work *w) {
    features(k, w);
    w->V = widths(k).V;
}

/* A kind of operation as a Work. flags: if it runs as a kernel of its own; joined: flags that it
 * adds to the Work of the kernel into which it is fused. */
typedef struct Row {
    WorkKind work;
    Sizes *sizes;
    uint32_t flags, joined;
} Row;

static const Row op_rows[N_OP_KINDS] = {
    [OP_EMBEDDING] = {WORK_EMBEDDING, vocabulary, 0, 0},
    [OP_POSITION] = {WORK_POSITION, features_out, 0, 0},
    [OP_NORM_STATISTICS] = {WORK_NORM_STATISTICS, features, 0, 0},
    [OP_NORM_MERGE] = {WORK_NORM_MERGE, merged, 0, 0},
    [OP_NORM] = {WORK_NORM_APPLY, features, 0, 0},
    [OP_MATMUL] = {WORK_MATMUL, matmul_dims, 0, 0},
    [OP_MATMUL_BT] = {WORK_DGRAD, dgrad_dims, 0, 0},
    [OP_MATMUL_AT] = {WORK_WGRAD, wgrad_dims, 0, 0},
    [OP_BIAS] = {WORK_BIAS_RESIDUAL, features_out, WORK_BIAS, WORK_BIAS},
    [OP_QK_NORM] = {WORK_QK_NORM, rotations, 0, 0},
    [OP_ROPE] = {WORK_ROPE, rotations, 0, 0},
    [OP_ATTENTION] = {WORK_ATTENTION, heads, 0, 0},
    [OP_ACT] = {WORK_ACT, activation, 0, WORK_EPI_ACT},
    [OP_SWIGLU] = {WORK_SWIGLU, features_out, 0, 0},
    [OP_ADD] = {WORK_BIAS_RESIDUAL, features_out, WORK_ADDEND, WORK_ADDEND},
    [OP_LOSS_STATISTICS] = {WORK_LOSS_STATISTICS, features, WORK_BACKWARD, 0},
    [OP_LOSS] = {WORK_LOSS_MERGE, merged_loss, WORK_BACKWARD, 0},
    [OP_EMBEDDING_BACKWARD] = {WORK_EMBEDDING_BACKWARD, vocabulary_backward, 0, 0},
    [OP_POSITION_BACKWARD] = {WORK_POSITION_BACKWARD, features, 0, 0},
    [OP_NORM_SUMS] = {WORK_NORM_BACKWARD_SUMS, features, 0, 0},
    [OP_NORM_BACKWARD] = {WORK_NORM_BACKWARD_APPLY, features, 0, 0},
    [OP_NORM_WEIGHT_BACKWARD] = {WORK_NORM_BACKWARD_SUMS, features, 0, 0},
    [OP_BIAS_BACKWARD] = {WORK_BIAS_BACKWARD, features, 0, WORK_BIAS},
    [OP_QK_NORM_BACKWARD] = {WORK_QK_NORM_BACKWARD, rotations, 0, 0},
    [OP_QK_NORM_WEIGHT_BACKWARD] = {WORK_QK_NORM_WEIGHT_BACKWARD, rotations, 0, 0},
    [OP_ROPE_BACKWARD] = {WORK_ROPE, rotations, 0, 0},
    [OP_ATTENTION_BACKWARD] = {WORK_ATTENTION_BACKWARD, heads, 0, 0},
    [OP_ACT_BACKWARD] = {WORK_ACT_BACKWARD, activation, 0, WORK_EPI_DACT},
    [OP_SWIGLU_BACKWARD] = {WORK_SWIGLU_BACKWARD, features, 0, 0},
    [OP_LOSS_BACKWARD] = {WORK_LOSS_BACKWARD, features, WORK_BACKWARD, 0},
    [OP_COPY] = {WORK_COPY, copied, 0, 0},
    [OP_PACK_COPIES] = {WORK_COPY, flat, 0, 0},
    [OP_UNPACK_COPIES] = {WORK_COPY, flat, 0, 0},
    [OP_ACCUMULATE] = {WORK_BIAS_RESIDUAL, flat, WORK_ADDEND, 0},
    // --exact: priced as a kernel of floats that touches as many bytes
    [OP_ROUND] = {WORK_BIAS_RESIDUAL, flat, WORK_ADDEND, 0},
    [OP_LOSS_TOTAL] = {WORK_COPY, copied, 0, 0},
    [OP_SQUARES] = {WORK_SQUARES, stored, 0, 0},
    [OP_CLIP] = {WORK_ZERO, one, 0, 0}, // one thread
    [OP_ADAMW] = {WORK_ADAMW, stored, 0, 0},
    [OP_CAST] = {WORK_COPY, flat, 0, WORK_BF16_STORED},
};

/* Fused pairs that run as a kernel of their own kind: the first operation's Work, the operation
 * that is fused into it, and the Work of both. */
static const struct {
    WorkKind first;
    OpKind member;
    WorkKind work;
} fused_works[] = {
    {WORK_NORM_STATISTICS, OP_NORM, WORK_NORM},
    {WORK_BIAS_RESIDUAL, OP_NORM, WORK_RESIDUAL_NORM},
    {WORK_NORM_BACKWARD_SUMS, OP_NORM_BACKWARD, WORK_NORM_BACKWARD},
    {WORK_LOSS_STATISTICS, OP_LOSS, WORK_LOSS},
};

/* An operation alone, with nothing fused into it. */
static Work work_of(const Program *p, const Op *op, bool first_micro_batch) {
    const Row *row = &op_rows[op->kind];
    Work w = {.kind = row->work, .flags = row->flags};
    row->sizes(&(OpCall){p, op}, &w);
    bool matmul = w.kind <= WORK_ATTENTION_BACKWARD;
    bool norm = w.kind >= WORK_NORM && w.kind <= WORK_NORM_BACKWARD_APPLY;
    const StepTensor *result = &p->tensor[op->out];
    bool sum = op->kind == OP_ADD || op->kind == OP_ACCUMULATE;
    bool bf16 = p->dtype == COLL_BF16 && !(sum && result->dtype == COLL_F32) &&
                op->kind != OP_COPY && op->phase < PHASE_SUMS;
    if (bf16) w.flags |= WORK_BF16_STORED;
    if (matmul && p->shape->bf16) w.flags |= WORK_BF16;
    const StepTensor *whole = result->parent < 0 ? result : &p->tensor[result->parent];
    bool stored = whole->storage == STORAGE_GRADIENT;
    if (op->kind == OP_MATMUL_AT && ((stored && !first_micro_batch) || op->adds))
        w.flags |= WORK_ADDEND;
    if (norm && p->shape->config.norm == NORM_RMS) w.flags |= WORK_RMS;
    return w;
}

/* Adds to the Work of a kernel the operation `op`, which is fused into it. first: the operation
 * with which the kernel begins. */
static void join(const Program *p, Work *w, const Op *op, const Op *first, bool first_micro_batch) {
    bool matmul = w->kind <= WORK_WGRAD;
    if (op->kind == OP_MATMUL_AT) {
        uint32_t flags = op_rows[first->kind].joined;
        *w = work_of(p, op, first_micro_batch);
        w->flags |= flags;
        return;
    }
    if (op->kind == OP_SQUARES) w->rows += step_tensor_elements(p, &p->tensor[op->in[0]]);
    if (matmul || w->kind == WORK_BIAS_RESIDUAL || w->kind == WORK_ADAMW)
        w->flags |= op_rows[op->kind].joined;
    if (w->flags & (WORK_EPI_ACT | WORK_EPI_DACT)) w->act = p->shape->config.act;
    for (size_t i = 0; i < sizeof fused_works / sizeof *fused_works; i++)
        if (fused_works[i].first == w->kind && fused_works[i].member == op->kind) {
            w->kind = fused_works[i].work;
            if (w->kind != WORK_RESIDUAL_NORM) return;
            w->flags &= ~(uint32_t)WORK_ADDEND;
            if (p->shape->config.norm == NORM_RMS) w->flags |= WORK_RMS;
            return;
        }
}

int64_t op_calls(const Program *p, int i) {
    OpKind kind = p->op[i].kind;
    if (kind != OP_MATMUL && kind != OP_MATMUL_BT) return 1;
    while (i + 1 < p->n_ops && p->op[i + 1].fused && !op_begins_kernel(p, i + 1)) i++;
    return step_tensor_stripes(p, &p->tensor[p->op[i].out]);
}

bool op_work(const Program *p, int i, bool first_micro_batch, Work *work) {
    const Op *op = &p->op[i];
    if (!op_begins_kernel(p, i) || !op_rows[op->kind].sizes ||
        (first_micro_batch && op->kind == OP_ACCUMULATE))
        return false;
    *work = work_of(p, op, first_micro_batch);
    for (int k = i + 1; k < p->n_ops && p->op[k].fused && !op_begins_kernel(p, k); k++)
        join(p, work, &p->op[k], op, first_micro_batch);
    work->rows /= op_calls(p, i);
    return true;
}

/* ---- collectives ---- */

Collective op_collective(const Program *p, const Op *op) {
    const StepTensor *whole = &p->tensor[op->kind == OP_ALL_GATHER ? op->out : op->in[0]];
    return (Collective){.op = op_info(op->kind)->op,
                        .bytes = step_tensor_elements(p, whole) * coll_type_bytes(whole->dtype)};
}

/* Where n consecutive ranks along the axes lie, counted from the last axis: on its innermost
 * factors, as many as n ranks need. If n does not divide a factor the whole factor is taken:
 * groups of n would not fill it evenly, and the calibration measures groups that do. */
static Placement innermost(const Mesh *m, Axes axes, int n) {
    Placement out = {.n = 0}, reversed = {.n = 0};
    for (int i = axes.n; i-- > 0 && n > 1;) {
        Placement p = placement_of(m, mesh_real(m, (Axes){1, {axes.axis[i]}}));
        for (int k = p.n; k-- > 0 && n > 1;) {
            int size = p.size[k] % n ? p.size[k] : n;
            reversed.size[reversed.n] = size, reversed.stride[reversed.n++] = p.stride[k];
            n = (n + size - 1) / size;
        }
    }
    for (int i = reversed.n; i-- > 0; out.n++)
        out.size[out.n] = reversed.size[i], out.stride[out.n] = reversed.stride[i];
    return out;
}

/* op_group without the label. */
static CollGroup group_of(const Program *p, const Op *op) {
    const Mesh *mesh = p->mesh;
    CollGroup g = {.size = mesh_blocks(mesh, op->axes), .rank = mesh_block(mesh, op->axes)};
    if (op->kv) {
        HeadCopies c = grid_head_copies(p->grid, &p->shape->config);
        g.size = c.size, g.rank = c.rank;
        g.place = innermost(mesh, grid_hidden_axes(p->grid), c.size);
    } else {
        g.place = placement_of(mesh, op->axes);
    }
    if (!axes_has(op->axes, AXIS_D)) g.replicas = placement_of(mesh, mesh_real(mesh, axes_of("d")));
    return g;
}

CollGroup op_group(const Program *p, const Op *op) {
    CollGroup g = group_of(p, op);
    if (op->kv || op->axes.n == N_AXES)
        snprintf(g.label, sizeof g.label, "%s", op->kv ? "kv" : "all");
    else
        axes_print(mesh_real(p->mesh, op->axes), g.label);
    return g;
}

bool op_packing(const Program *p, const Op *op, Work *out) {
    if (op->kind != OP_BROADCAST) return false;
    *out = (Work){.kind = WORK_COPY};
    copied(&(OpCall){p, op}, out);
    return true;
}

/* low: machine_low_latency of m, on which a collective takes the time for which links are busy. */
static OpCost collective_cost(const Program *p, const Op *op, const Machine *m,
                              const Machine *low) {
    CollGroup g = group_of(p, op);
    Collective s = op_collective(p, op);
    Work packing;
    double load = machine_collective(m, &g, &s);
    OpCost c = {.seconds = machine_collective_in_turn(m, &g, &s, load),
                .load = load,
                .slowdown = machine_slowdown(m, &g),
                .level = machine_level(m, &g)};
    c.wire = c.seconds;
    if (machine_high_latency(m, &g)) {
        load = machine_collective(low, &g, &s);
        c.wire = fmin(c.seconds, machine_collective_in_turn(low, &g, &s, load));
        c.load = fmin(c.load, load);
    }
    if (!op_packing(p, op, &packing)) return c;
    // each rank of the group is the root of one panel in g.size, and only the root packs
    double seconds = machine_work(m, &packing) / g.size;
    c.seconds += seconds, c.wire += seconds;
    return c;
}

bool op_of_numbers(const Op *op) {
    return op->kind == OP_LOSS_TOTAL || op->kind == OP_CLIP ||
           (op->kind == OP_ROUND && op->phase == PHASE_END);
}

OpCost *program_costs(const Program *p, const Machine *m, bool first_micro_batch) {
    OpCost *cost = mem_alloc((size_t)p->n_ops * sizeof *cost);
    Machine low = machine_low_latency(m);
    for (int i = 0; i < p->n_ops; i++) {
        Work work;
        const Op *op = &p->op[i];
        cost[i] = (OpCost){.level = -1};
        if (op_info(op->kind)->collective) cost[i] = collective_cost(p, op, m, &low);
        if (!op_work(p, i, first_micro_batch, &work) || (!m->gpu && op_of_numbers(op))) continue;
        cost[i].seconds = (double)op_calls(p, i) * machine_work(m, &work);
        // only the root of a panel runs this kernel, and the ranks of the group are root in turn
        if (op->root >= 0) cost[i].seconds /= mesh_blocks(p->mesh, op->axes);
    }
    return cost;
}
