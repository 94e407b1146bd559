/* panels -- stay=y: a matmul of a layer in panels of its features K (SUMMA): y, dx and dw are made
 * where they are stored (output-stationary), and no rank ever holds a whole operand.
 *
 *   before, x2.y2, C = 32                      after: two panels of C
 *   h'   [T/x, C]   = all_gather y  h          h.0 [T/x, C[0:16]]  = broadcast y[0]  h
 *   w'   [C, N/y]   = all_gather x  w          w.0 [C[0:16], N/y]  = broadcast x[0]  w
 *   qkv  [T/x, N/y] = matmul  h', w'           q.0 [T/x, N/y]      = matmul  h.0, w.0
 *                                              h.1 [T/x, C[16:32]] = broadcast y[1]  h
 *                                              w.1 [C[16:32], N/y] = broadcast x[1]  w
 *                                              q.1 [T/x, N/y]      = matmul  h.1, w.1
 *                                              qkv [T/x, N/y]      = add  q.0, q.1   (fused)
 *
 *   dh'  [T/x, C]+y = matmul_bt  dqkv, w'      w.0 [C[0:16], N/y]  = broadcast x[0]  w
 *   dh   [T/x, C/y] = reduce_scatter y  dh'    d.0 [T/x, C[0:16]]+y = matmul_bt  dqkv, w.0
 *                                              s.0 [T/x, C[0:16]]  = reduce y[0]  d.0
 *                                              dh @0,0             = copy y[0]  s.0
 *                                              ... and the second panel alike
 *
 * K is sharded into Y blocks in x and into X blocks in w. A panel ends where a block of x or of w
 * ends. So along each axis one rank owns the panel: y[0] is rank 0 along y. dw = x' dy goes as dx:
 * a panel of x is broadcast along y, and a panel of dw is reduced along x to its owner. On a mesh
 * with X = 1 or Y = 1 a rank holds all of K in w or in x; there a panel is rows or columns of the
 * rank's own tensor. The sum over K adds the panels in their order. The bytes sent are those of the
 * collectives before the pass. schedule.c finds which panel is sent under which matmul.
 *
 * Source: van de Geijn, Watts, "SUMMA", 1997; Xu et al., Optimus, 2021, section 3.
 */
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "parallel/step/program.h"

/* One of the two tensors of a matmul that have a dimension K: x or dx, whose columns are the
 * features K, or w or dw, whose rows are. */
typedef struct Side {
    int whole;    // tensor with all of K, as the matmul reads or makes it before this pass
    int block;    // tensor whose K is sharded over `axes`; equals `whole` where axes are none
    Axes axes;    // along which panels are broadcast or reduced
    int dim;      // that is K: 1 of x and dx, 0 of w and dw
    int64_t n;    // features of K in the block of a rank
    Phase phase;  // of an operand: of its all_gather, and so of the broadcasts of its panels
    int gradient; // of dw: the stored gradient to which the block is added; -1: of dx, or of a dw
                  // whose block is scattered once more
    bool is_operand; // false: it is the result
} Side;

typedef struct Panels {
    Program *p;
    Op *old;
    Uses uses;
    bool *dropped; // [operations] panels replace it
} Panels;

/* ---- what a matmul reads and makes ---- */

/* The side of tensor t, whose dimension dim is K. Where an all_gather along the axis of K makes an
 * operand, the block is what the all_gather reads; where a reduce_scatter along this axis reads a
 * result, the block is what the reduce_scatter makes. */
static Side side_of(const Panels *s, int t, int dim, bool is_operand) {
    int i = is_operand ? s->uses.maker[t] : s->uses.reader[t];
    Side side = {.whole = t, .block = t, .dim = dim, .gradient = -1, .is_operand = is_operand};
    const Op *op = i < 0 ? NULL : &s->old[i];
    uint8_t axis = dim ? AXIS_Y : AXIS_X; // dimension 1 of x is sharded along y, 0 of w along x
    if (op && op->kind == (is_operand ? OP_ALL_GATHER : OP_REDUCE_SCATTER) && op->dim == dim &&
        axes_equal(op->axes, (Axes){1, {axis}})) {
        side.block = is_operand ? op->in[0] : op->out;
        side.axes = op->axes, side.phase = op->phase;
        int next = is_operand ? -1 : s->uses.reader[side.block];
        if (next >= 0 && s->old[next].kind == OP_ACCUMULATE) side.gradient = s->old[next].out;
    }
    side.n = step_tensor_local(s->p, &s->p->tensor[side.block], dim);
    return side;
}

/* Does this pass split a matmul into panels? If so, side has the two tensors with a dimension K: x
 * and w of y = x w; dx and w of dx = dy w'; x and dw of dw = x' dy. */
static bool has_panels(const Panels *s, const Op *op, Side side[2]) {
    bool dx = op->kind == OP_MATMUL_BT, dw = op->kind == OP_MATMUL_AT;
    if (!op_is_matmul(op) || op->layer < 0)
        return false; // the head's weight is sharded in another way
    side[0] = side_of(s, dx ? op->out : op->in[0], 1, !dx);
    side[1] = side_of(s, dw ? op->out : op->in[1], 0, !dw);
    return side[0].axes.n + side[1].axes.n > 0;
}

/* ---- tensors ---- */

/* Features of K: [k, k + n). */
typedef struct Span {
    int64_t k, n;
} Span;

/* Writes the digits of n >= 0 to `at`; returns the end of the text. */
static char *put_number(char *at, int64_t n) {
    char digits[20];
    int len = 0;
    do digits[len++] = (char)('0' + n % 10);
    while (n /= 10);
    while (len > 0) *at++ = digits[--len];
    return at;
}

/* Restricts dimension dim of a tensor to the features of a span, and names it "C[0:16]". snprintf
 * would take a third of the search's time: wide meshes have thousands of panels. */
static void narrow(StepTensor *t, int dim, Span s) {
    char name[DIST_DIM + 64], *at = stpcpy(name, t->dist.dim[dim]);
    *at++ = '[', at = put_number(at, s.k);
    *at++ = ':', at = put_number(at, s.k + s.n);
    *at++ = ']';
    name[at - name < DIST_DIM ? at - name : DIST_DIM - 1] = 0;
    memcpy(t->dist.dim[dim], name, DIST_DIM);
    t->size[dim] = s.n;
    t->dist.shard[dim] = axes_none();
}

/* A tensor in the memory of tensor t: the features of a span, which are the rows (dim 0) or columns
 * (dim 1) of t from number `first` on. */
static int view(Program *p, int t, int dim, int64_t first, Span s) {
    StepTensor v = p->tensor[t];
    v.parent = t, v.n_block = NO_FLAT_PARTS, v.storage = STORAGE_TEMPORARY, v.padding = 0;
    v.row = dim ? 0 : first, v.column = dim ? first : 0;
    if (dim) v.stride = (int)step_tensor_local(p, &v, 1);
    narrow(&v, dim, s);
    return program_add_tensor(p, v);
}

/* A tensor like t with the features of a span alone, in memory of its own. */
static int panel(Program *p, int t, int dim, Span s) {
    int out = program_tensor_part(p, t);
    narrow(&p->tensor[out], dim, s);
    return out;
}

/* Appends a collective along the axes of a side, or the copy behind it. Its root is the rank that
 * owns the features of the span. */
static int emit(Program *p, OpKind kind, int out, int in, const Side *side, Span s) {
    EMIT(p, kind, out, in);
    Op *op = &p->op[p->n_ops - 1];
    op->axes = side->axes, op->root = (int)(s.k / side->n);
    return out;
}

/* ---- one panel ---- */

/* The panel of an operand: rows or columns of the rank's own tensor, or the result of a broadcast
 * from the owner of the panel. */
static int operand_panel(Program *p, const Side *side, Span s) {
    Phase phase = p->phase;
    int own = view(p, side->block, side->dim, s.k % side->n, s);
    if (side->axes.n == 0) return own;
    p->phase = side->phase;
    int out = emit(p, OP_BROADCAST, panel(p, side->whole, side->dim, s), own, side, s);
    p->phase = phase;
    return out;
}

/* The tensor to which the matmul writes the panel of a result: rows or columns of the result
 * itself, or a partial sum that reduce_panel() reduces. */
static int result_panel(Program *p, const Side *side, Span s) {
    if (side->axes.n == 0) return view(p, side->block, side->dim, s.k, s);
    return panel(p, side->whole, side->dim, s);
}

/* Reduces a panel of a result to its owner. On the owner rows of dw are reduced in place, columns
 * of dx are copied into dx, and a panel of a stored gradient is added to the gradient. */
static void reduce_panel(Program *p, const Side *side, int part, Span s) {
    int to = side->gradient < 0 ? side->block : side->gradient;
    if (side->axes.n == 0) return;
    int place = view(p, to, side->dim, s.k % side->n, s);
    bool direct = side->gradient < 0 && side->dim == 0; // rows are contiguous
    int sum = direct ? place : panel(p, side->block, side->dim, s);
    emit(p, OP_REDUCE, sum, part, side, s);
    if (!direct) emit(p, side->gradient < 0 ? OP_COPY : OP_ACCUMULATE, place, sum, side, s);
}

/* The end of the panel that begins at feature k: the next end of a block of either side. */
static int64_t panel_end(const Side side[2], int64_t k, int64_t K) {
    int64_t end = K;
    for (int i = 0; i < 2; i++) end = min_i64(end, (k / side[i].n + 1) * side[i].n);
    return end;
}

/* Appends matmul `op` in panels. A panel of y = x w is a term of y; a panel of dx or dw is a part
 * of the result. */
static void emit_panels(Program *p, const Op *op, const Side side[2]) {
    int64_t K = p->tensor[side[0].whole].size[1];
    int sum = -1;
    p->phase = op->phase, p->layer = op->layer;
    for (int64_t k = 0, end; k < K; k = end) {
        end = panel_end(side, k, K);
        Span span = {k, end - k};
        int in[2];
        for (int i = 0; i < 2; i++)
            in[i] = side[i].is_operand ? operand_panel(p, &side[i], span) : -1;
        if (op->kind == OP_MATMUL) {
            sum = program_add_term(p, op->kind, op->out, sum, in, 2, end == K); // y = y + x w
            continue;
        }
        bool dx = op->kind == OP_MATMUL_BT;
        const Side *out = &side[!dx];
        int part = result_panel(p, out, span);
        EMIT(p, op->kind, part, dx ? op->in[0] : in[0], dx ? in[1] : op->in[1]);
        reduce_panel(p, out, part, span);
    }
    // rows of padding behind the last feature are in no panel
    if (op->kind == OP_MATMUL_AT) {
        StepTensor *dw = &p->tensor[side[1].block];
        dw->padding = dw->size[0] - K;
    }
}

/* ---- the list ---- */

/* Marks the operations that the panels of matmul i replace: the all_gather of an operand, which
 * only matmuls in panels read; the reduce_scatter of a result, and the OP_ACCUMULATE behind it. */
static void drop(Panels *s, int i) {
    Side side[2];
    if (!has_panels(s, &s->old[i], side)) return;
    for (int k = 0; k < 2; k++) {
        if (side[k].axes.n == 0) continue;
        s->dropped[side[k].is_operand ? s->uses.maker[side[k].whole]
                                      : s->uses.reader[side[k].whole]] = true;
        if (side[k].gradient >= 0) s->dropped[s->uses.reader[side[k].block]] = true;
    }
}

void program_panels(Program *p) {
    int n = p->n_ops;
    if (!p->layout->stay) return;
    Panels s = {.p = p, .uses = program_uses(p)};
    s.old = program_take(p);
    s.dropped = mem_calloc((size_t)n, sizeof *s.dropped);
    for (int i = 0; i < n; i++) drop(&s, i);
    for (int i = 0; i < n; i++) {
        const Op *op = &s.old[i];
        Side side[2];
        if (s.dropped[i]) continue;
        if (has_panels(&s, op, side))
            emit_panels(p, op, side);
        else
            program_append(p, op);
    }
    p->phase = PHASE_FORWARD, p->layer = -1;
    mem_free(s.old);
    mem_free(s.dropped);
    mem_free(s.uses.maker);
}
