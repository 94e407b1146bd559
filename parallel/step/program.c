#include "parallel/step/program.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

enum { TENSORS = 512 }; // enough for the tensors of two layers; growing would copy them

Program program_make(const ModelShape *shape) {
    const Grid *g = shape->grid ? shape->grid : grid_one();
    return (Program){.shape = shape,
                     .tensor = mem_alloc(TENSORS * sizeof(StepTensor)),
                     .cap_tensors = TENSORS,
                     .grid = g,
                     .layout = &g->layout,
                     .mesh = &g->mesh,
                     .dtype = shape->bf16 ? COLL_BF16 : COLL_F32,
                     .layer = -1};
}

void program_free(Program *p) {
    mem_free(p->tensor);
    mem_free(p->op);
    *p = (Program){0};
}

int program_add_tensor(Program *p, StepTensor t) {
    mem_grow(p->tensor, p->n_tensors, p->cap_tensors);
    p->tensor[p->n_tensors] = t;
    return p->n_tensors++;
}

static int add_temporary(Program *p, Dist dist, const int64_t size[DIST_DIMS], CollType dtype,
                         int value) {
    return program_add_tensor(p, (StepTensor){.dist = dist,
                                              .size = {size[0], size[1]},
                                              .layer = p->layer,
                                              .value = value,
                                              .parameter = -1,
                                              .dtype = dtype,
                                              .n_block = NO_FLAT_PARTS,
                                              .what = "",
                                              .parent = -1,
                                              .bucket = -1});
}

int program_tensor(Program *p, Dist dist, const int64_t size[DIST_DIMS], CollType dtype) {
    return add_temporary(p, dist, size, dtype, p->values_fixed ? -1 : p->n_values++);
}

int program_tensor_like(Program *p, int t) {
    StepTensor x = p->tensor[t];
    int like = add_temporary(p, x.dist, x.size, x.dtype, x.value);
    p->tensor[like].parameter = x.parameter, p->tensor[like].n_block = x.n_block;
    return like;
}

int program_tensor_copy(Program *p, int t) {
    return program_add_tensor(p, p->tensor[t]);
}

int program_tensor_part(Program *p, int t) {
    StepTensor x = p->tensor[t];
    int part = program_tensor(p, x.dist, x.size, x.dtype);
    p->tensor[part].what = x.what, p->tensor[part].n_block = x.n_block;
    return part;
}

int program_rows(Program *p, int t, int64_t row, int64_t n, int64_t every) {
    StepTensor x = p->tensor[t];
    x.size[0] = x.size[0] / (every ? every : step_tensor_local(p, &x, 0)) * n;
    x.parent = t, x.row = row, x.every = every;
    return program_add_tensor(p, x);
}

int program_emit(Program *p, OpKind kind, int out, const int *in, int n_in) {
    mem_grow(p->op, p->n_ops, p->cap_ops);
    Op *op = &p->op[p->n_ops++];
    *op = (Op){.kind = kind,
               .phase = p->phase,
               .layer = p->layer,
               .out = out,
               .out2 = -1,
               .dim = -1,
               .root = -1};
    for (int i = 0; i < n_in; i++)
        if (in[i] >= 0) op->in[op->n_in++] = in[i];
    return out;
}

int program_add_term(Program *p, OpKind kind, int out, int sum, const int *in, int n_in,
                     bool last) {
    bool first = sum < 0;
    int term = first && last ? out : program_tensor_part(p, out);
    program_emit(p, kind, term, in, n_in);
    return first ? term : EMIT(p, OP_ADD, last ? out : program_tensor_part(p, out), sum, term);
}

Uses program_uses(const Program *p) {
    size_t n = (size_t)p->n_tensors;
    Uses u = {.maker = mem_alloc((3 * n + 1) * sizeof *u.maker)};
    u.reader = u.maker + n, u.readers = u.reader + n;
    for (size_t t = 0; t < n; t++) u.maker[t] = u.reader[t] = -1, u.readers[t] = 0;
    for (int i = p->n_ops; i-- > 0;) {
        const Op *op = &p->op[i];
        u.maker[op->out] = i;
        if (op->out2 >= 0) u.maker[op->out2] = i;
        for (int k = 0; k < op->n_in; k++) u.reader[op->in[k]] = i, u.readers[op->in[k]]++;
    }
    return u;
}

Op *program_take(Program *p) {
    Op *op = p->op;
    p->op = mem_alloc((size_t)p->cap_ops * sizeof *p->op), p->n_ops = 0;
    return op;
}

void program_append(Program *p, const Op *op) {
    Op copy = *op; // op may point into the list, which program_emit may move
    program_emit(p, copy.kind, copy.out, NULL, 0);
    p->op[p->n_ops - 1] = copy;
}

int op_kernel_end(const Op *op, int n, int i) {
    int end = i + 1;
    while (end < n && op[end].fused) end++;
    return end;
}

bool op_runs(const Op *op, bool last) {
    return last || op->phase != PHASE_SUMS;
}

bool op_is_matmul(const Op *op) {
    return op->kind == OP_MATMUL || op->kind == OP_MATMUL_BT || op->kind == OP_MATMUL_AT;
}

int op_operands(const Op *op) {
    return op_is_matmul(op) && !op->adds && op->n_in > 2 ? 2 : op->n_in;
}

/* ---- redistribute ---- */

#define WHATS(kind)                                                                                \
    { "x of " kind, "y of " kind, "dy of " kind, "dx of " kind, "w of " kind, "dw of " kind }
static const char *const linear_whats[N_LINEARS][N_LINEAR_TENSORS] = {
    WHATS("qkv"), WHATS("attn_out"), WHATS("up"), WHATS("down"), WHATS("head")};

const char *linear_what(LinearKind kind, LinearTensor which) {
    return linear_whats[kind][which];
}

bool linear_find(const char *label, LinearKind *kind, LinearTensor *which) {
    for (int k = 0; k < N_LINEARS; k++)
        for (int i = 0; i < N_LINEAR_TENSORS; i++)
            if (strcmp(linear_whats[k][i], label) == 0) {
                *kind = (LinearKind)k, *which = (LinearTensor)i;
                return true;
            }
    return false;
}

LinearKind linear_named(const char *label, LinearTensor *which) {
    LinearKind kind;
    if (!linear_find(label, &kind, which)) die("\"%s\" is no label of a linear layer", label);
    return kind;
}

int program_redistribute(Program *p, int t, const Dist *to, const char *what) {
    static const OpKind kinds[] = {[CHANGE_GATHER] = OP_ALL_GATHER,
                                   [CHANGE_SCATTER] = OP_REDUCE_SCATTER,
                                   [CHANGE_REDUCE] = OP_ALL_REDUCE};
    Change change[MAX_CHANGES];
    Err e;
    int n = dist_path(&p->tensor[t].dist, to, change, &e);
    if (n < 0) die("%s: %s", what, e.text);
    for (int i = 0, next; i < n; i = next) {
        Axes axes = axes_none();
        // changes of one kind and dimension are one collective along all their axes: less latency
        for (next = i;
             next < n && change[next].kind == change[i].kind && change[next].dim == change[i].dim;
             next++) {
            Axes one = {1, {(uint8_t)change[next].axis}};
            axes = change[i].kind == CHANGE_GATHER ? axes_join(one, axes) : axes_join(axes, one);
        }
        int out = program_tensor_like(p, t);
        p->tensor[out].dist = change[next - 1].to;
        p->tensor[out].what = what;
        EMIT(p, kinds[change[i].kind], out, t);
        p->op[p->n_ops - 1].axes = axes;
        p->op[p->n_ops - 1].dim = change[i].dim;
        t = out;
    }
    return t;
}

int program_matmul(Program *p, OpKind kind, const char *name, int a, int b) {
    const StepTensor *x = &p->tensor[a], *w = &p->tensor[b];
    Dist left = kind == OP_MATMUL_AT ? dist_transposed(&x->dist) : x->dist;
    Dist right = kind == OP_MATMUL_BT ? dist_transposed(&w->dist) : w->dist, y;
    Err e;
    if (!dist_matmul(&y, name, &left, &right, &e)) die("%s", e.text);
    int64_t size[] = {x->size[kind == OP_MATMUL_AT], w->size[kind != OP_MATMUL_BT]};
    int out = program_tensor(p, y, size, kind == OP_MATMUL_AT ? COLL_F32 : p->dtype);
    return EMIT(p, kind, out, a, b);
}

/* ---- sizes, bytes, FLOPs ---- */

/* A block is padded until it splits into equal flat parts for the moments, the finest ones. Coarser
 * parts, of parameters and gradients, are a whole number of these. */
int64_t step_tensor_elements(const Program *p, const StepTensor *t) {
    if (t->n_block == NO_FLAT_PARTS) return step_tensor_local(p, t, 0) * step_tensor_local(p, t, 1);
    Axes block = t->dist.shard[0];
    if (block.n > t->n_block) block.n = (uint8_t)t->n_block;
    int64_t blocks = mesh_blocks(p->mesh, block), all = mesh_blocks(p->mesh, t->dist.shard[0]);
    int64_t parts = mesh_blocks(p->mesh, layout_store(p->layout, STORE_MOMENTS));
    int64_t n = div_up(t->size[0] / blocks * step_tensor_local(p, t, 1), parts);
    return n * (parts / (all / blocks));
}

int64_t step_tensor_begin(const Program *p, const StepTensor *t) {
    int64_t stride = t->stride ? t->stride : step_tensor_local(p, t, 1);
    return (t->row * stride + t->column) * coll_type_bytes(t->dtype);
}

int step_tensor_tokens(const StepTensor *t) {
    for (int i = 0; i < t->dist.n_dims; i++)
        if (strcmp(t->dist.dim[i], "T") == 0) return i;
    return -1;
}

int64_t step_tensor_stripes(const Program *p, const StepTensor *t) {
    return t->every ? step_tensor_local(p, &p->tensor[t->parent], 0) / t->every : 1;
}

int64_t step_tensor_row(const Program *p, const StepTensor *t, int64_t r) {
    int64_t n = step_tensor_local(p, t, 0) / step_tensor_stripes(p, t);
    return t->every ? r / n * t->every + r % n : r;
}

bool op_in_kernel(const Program *p, int i) {
    const Op *op = &p->op[i];
    return op_info(op->kind)->collective && (op->fused || (i + 1 < p->n_ops && p->op[i + 1].fused));
}

bool op_begins_kernel(const Program *p, int i) {
    const Op *first = &p->op[i];
    if (first->fused && !op_is_matmul(first)) return false;
    while (first->fused) first--;
    bool communicates = op_info(first->kind)->collective;
    return p->op[i].fused ? communicates : !communicates;
}

int64_t op_bytes(const Program *p, const Op *op) {
    if (!op_info(op->kind)->collective) return 0;
    const StepTensor *in = &p->tensor[op->in[0]], *out = &p->tensor[op->out];
    int64_t n = mesh_blocks(p->mesh, op->axes), r = mesh_block(p->mesh, op->axes);
    if (op->axes.n == N_AXES) r = p->mesh->rank; // all ranks in their own order: grid_comm
    if (op->kv) {
        HeadCopies c = grid_head_copies(p->grid, &p->shape->config);
        n = c.size, r = c.rank;
    }
    if (op->root >= 0) {
        // a reduce: the root receives from all others; a broadcast: all receive from the root
        bool receives = (op->kind == OP_REDUCE) == (r == op->root);
        return (receives ? op->kind == OP_REDUCE ? n - 1 : 1 : 0) * step_tensor_elements(p, in) *
               coll_type_bytes(in->dtype);
    }
    if (op->kind == OP_SHIFT) return step_tensor_elements(p, out) * coll_type_bytes(out->dtype);
    if (op->kind != OP_ALL_REDUCE)
        return (n - 1) * step_tensor_elements(p, op->kind == OP_ALL_GATHER ? in : out) *
               coll_type_bytes(in->dtype);
    int64_t all = step_tensor_elements(p, in); // whose n parts may differ by an element
    int64_t own = all / n + (all % n * (r + 1)) / n - (all % n * r) / n;
    return ((n - 1) * own + all - own) * coll_type_bytes(in->dtype);
}

double op_flops(const Program *p, const Op *op) {
    const StepTensor *a = &p->tensor[op->in[0]], *out = &p->tensor[op->out];
    switch (op->kind) {
    case OP_MATMUL:
    case OP_MATMUL_BT:
        return 2.0 * (double)step_tensor_elements(p, out) * (double)step_tensor_local(p, a, 1);
    case OP_MATMUL_AT:
        return 2.0 * (double)step_tensor_elements(p, out) * (double)step_tensor_local(p, a, 0);
    case OP_ATTENTION: // q k' and p v, each of the causal half of the scores
        return 2.0 * (double)step_tensor_elements(p, out) * (double)(p->shape->S + 1);
    case OP_ATTENTION_BACKWARD: // five matmuls of the causal half: scores again, dv, dp, dq, dk
        return 5.0 * (double)step_tensor_elements(p, a) * (double)(p->shape->S + 1);
    default:
        return 0;
    }
}
