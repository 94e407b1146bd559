/* check.h has the contract. This file goes from small to large: differences of two arrays; tensors
 * of tokens; the hooks of rank 0's whole models; comparison over the mesh; causes of a difference;
 * the hook of the mesh; gradients, parameters and numbers of a step; all steps and their table. */
#include "parallel/step/check.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/rng.h"
#include "parallel/comm/coll.h"
#include "parallel/step/listing.h"
#include "parallel/step/memory.h"
#include "parallel/step/program.h"
#include "parallel/step/run.h"

/* Difference between some elements and the reference. */
typedef struct Diff {
    double max, square; // largest absolute difference; sum of squared differences
    double reference;   // sum of squares of the reference
    int64_t n;
} Diff;

/* A value of the reference's first micro-batch, [tokens, width]. */
typedef struct Point {
    int64_t width; // 0: not compared, because no rank of the mesh has it complete in memory
    float *values; // of the reference, on rank 0; NULL: not computed yet
    double max;    // largest difference of the reordered model, relative to the RMS of values
} Point;

/* Ranges of n elements: offsets in the local array (at) and in the logical tensor (global). */
typedef struct Ranges {
    struct {
        int64_t at, global, n;
    } * s;
    int64_t n, cap;
} Ranges;

/* A collective that may be the cause of a difference. */
typedef struct Cause {
    Comm *over;
    const char *op, *what;
} Cause;

/* The whole models of rank 0: the reference, and the model that adds in another order. */
enum { REFERENCE, REORDERED, N_WHOLE };

typedef struct Check {
    const CheckJob *job;
    Model *m;             // the mesh's model
    const Program *p;     // its list of the last micro-batch of a step
    Group group;          // all ranks
    int64_t round;        // sequences of a micro-batch, over the whole mesh
    int64_t tokens;       // tokens of these sequences
    Model whole[N_WHOLE]; // on rank 0
    Point *points;        // [n_points], indexed by StepTensor.value
    int n_points;
    bool *agreed;      // [tensors of p] it equals the reference, or a tensor computed from it does
    int64_t first;     // first sequence of the micro-batch that runs, over all ranks
    float *want, *sum; // buffers: a logical tensor of the reference; a sum of local tensors
    Ranges ranges;     // of the tensor that is compared
    double moved;      // learning rate of the last update; 0: no update yet
    char verdict[512]; // the first difference, the same text on all ranks; "": none so far
} Check;

/* A tensor that is compared, and the collectives that may be missing in it. */
enum { MAX_CAUSES = 12 };
typedef struct Suspect {
    const char *name;
    const float *local;      // [n] on this rank
    int64_t n;               // 0: it cannot be a partial sum
    const Op *op;            // the operation that computes it; or NULL
    const Tensor *gradient;  // the parameter of which it is the gradient; or NULL
    Cause cause[MAX_CAUSES]; // find_causes adds those of op and gradient
    int n_causes;
} Suspect;

/* Accepted difference on one rank: largest absolute difference; RMS of the differences. */
typedef struct Limit {
    double max, rms;
} Limit;

/* The accepted relative difference: ten times that of the reordered model, but at least ten times
 * the rounding expected of one sum. A sum of a few thousand fp32 numbers, each rounded to half a
 * unit in the last place (6e-8), has an error of some such units; elements of several times the RMS
 * have more. A bf16 operand that is rounded the other way changes a sum of K numbers by
 * 2^-8 / sqrt(K) of its size, and a tensor has many such operands. */
static double accepted_of(const Check *c, double reordered) {
    return 10 * fmax(reordered, c->m->shape.bf16 ? 5e-3 : 5e-7);
}

static void diff_add(Diff *d, const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double far = fabs((double)a[i] - (double)b[i]);
        if (!(far <= d->max)) d->max = isfinite(far) ? far : INFINITY;
        d->square += far * far;
        d->reference += (double)b[i] * (double)b[i];
    }
    d->n += n;
}

/* RMS of the reference. */
static double diff_rms(const Diff *d) {
    return d->n ? sqrt(d->reference / (double)d->n) : 0;
}

/* RMS of the difference. */
static double diff_distance(const Diff *d) {
    return d->n ? sqrt(d->square / (double)d->n) : 0;
}

/* The largest difference, relative to the RMS of the reference. */
static double diff_max(const Diff *d) {
    return d->max == 0 ? 0 : d->max / diff_rms(d);
}

static double rms_of(const float *x, int64_t n) {
    Diff d = {0};
    diff_add(&d, x, x, n);
    return diff_rms(&d);
}

/* On rank 0: in every element `accepted` times the RMS of the reference. */
static Limit limit_of(double accepted, const float *reference, int64_t n) {
    return (Limit){reference ? accepted * rms_of(reference, n) : 0, INFINITY};
}

/* ---- ranges of the local array in the logical tensor */

static void add_range(Check *c, int64_t at, int64_t global, int64_t n) {
    Ranges *s = &c->ranges;
    mem_grow(s->s, s->n, s->cap);
    s->s[s->n].at = at, s->s[s->n].global = global, s->s[s->n++].n = n;
}

static void ranges_of(Check *c, const Tensor *t, TensorPart part) {
    TensorRun r;
    c->ranges.n = 0;
    for (TensorRuns i = tensor_runs(t, part, false); tensor_next(&i, &r);)
        add_range(c, r.at, r.row * t->cols + r.col, r.n);
}

/* ---- tensors of tokens */

/* Finds the kind of the features (columns) of a tensor of tokens. Returns false if the tensor is
 * not compared. Logits are not: only a chunk of them exists at a time, to save memory. */
static bool features_of(const StepTensor *t, FeatureKind *kind) {
    static const struct {
        const char *name;
        FeatureKind kind;
    } hidden[] = {
        {"qkv", FEATURES_QKV}, {"att", FEATURES_ATT}, {"up", FEATURES_UP}, {"act", FEATURES_ACT}};
    const char *name = t->dist.name;
    *kind = FEATURES_ONE;
    if (strcmp(t->dist.dim[0], "T") != 0) return false;
    if (t->dist.n_dims == 1) return strcmp(name, "losses") == 0;
    *kind = FEATURES_RESIDUAL;
    if (strcmp(t->dist.dim[1], "C") == 0) return true;
    for (int i = 0; i < 4; i++) {
        *kind = hidden[i].kind;
        if (strcmp(name + (name[0] == 'd'), hidden[i].name) == 0) return true;
    }
    return false;
}

/* The features of a tensor on this rank; side->s is freed by mem_free. Returns false if the tensor
 * is not compared. */
static bool features(const Program *p, int tensor, DimShard *side, FeatureKind *kind) {
    const StepTensor *t = &p->tensor[tensor];
    bool complete = t->value >= 0 && t->bytes == (int)sizeof(float) && t->dist.partial.n == 0;
    if (!complete || !features_of(t, kind)) return false;
    Axes cut = t->dist.shard[1];
    bool wide = *kind == FEATURES_RESIDUAL
                    ? cut.n == 0
                    : !axes_equal(cut, mesh_real(p->mesh, grid_hidden_axes(p->grid)));
    *side = shard_features(&p->shape->config, p->grid, *kind, wide);
    if (side->size == step_tensor_local(p, t, 1)) return true;
    mem_free(side->s); // the tensor is a panel
    return false;
}

/* Number of features of the logical tensor: those of a mesh of one rank. */
static int64_t width_of(const Config *config, FeatureKind kind) {
    DimShard side = shard_features(config, grid_one(), kind, false);
    mem_free(side.s);
    return side.size;
}

/* The token of row r of a tensor of tokens: its index in the half batch `half` of this rank's
 * coordinate of d x z. The rows of a chunk are some rows of each block of the parent. All rows of
 * the first half batch precede those of the second. */
static int64_t token_of(const Model *m, const Program *p, int tensor, int64_t r, int *half) {
    const StepTensor *t = &p->tensor[tensor];
    for (; t->parent >= 0; t = &p->tensor[t->parent]) r = t->row + step_tensor_row(p, t, r);
    r += t->row;
    bool over_x = axes_has(t->dist.shard[0], AXIS_X);
    *half = (int)(r / m->tk.T);
    return r % m->tk.T + (over_x ? m->tk.t0 : 0);
}

/* Sets c->ranges for a tensor of tokens. first: the sequence with which this micro-batch begins in
 * the logical tensor. Returns false if the tensor is not compared. */
static bool ranges_of_tokens(Check *c, const Model *m, const Program *p, int tensor, int64_t first,
                             int *half) {
    const StepTensor *t = &p->tensor[tensor];
    DimShard side;
    FeatureKind kind;
    c->ranges.n = 0;
    if (!features(p, tensor, &side, &kind)) return false;
    int64_t width = width_of(&p->shape->config, kind);
    first += mesh_block(p->mesh, axes_of("d.z")) * m->shape.B;
    // Gradients of key and value heads of which several ranks hold copies stay partial here: they
    // are summed at the end of the step. Compare the queries alone, which come first.
    bool copies = p->grid->kv && strcmp(t->dist.name, "dqkv") == 0;
    if (copies) side.n = 1;
    for (int64_t r = 0; r < step_tensor_local(p, t, 0); r++) {
        int64_t token = token_of(m, p, tensor, r, half);
        int64_t row = (first + *half * m->B) * m->shape.S + token;
        for (int k = 0; k < side.n && token < m->B * m->shape.S; k++)
            add_range(c, step_tensor_row(p, t, r) * side.size + side.s[k].local,
                      row * width + side.s[k].global, side.s[k].n);
    }
    mem_free(side.s);
    return true;
}

/* Chooses the values of the reference that are kept: those that a rank of the mesh has in
 * memory. */
static void plan_points(Check *c) {
    const Program *p = c->p;
    DimShard side;
    FeatureKind kind;
    c->n_points = p->n_values;
    c->points = mem_calloc((size_t)p->n_values, sizeof *c->points);
    c->agreed = mem_calloc((size_t)p->n_tensors, sizeof *c->agreed);
    for (int t = 0; t < p->n_tensors; t++) {
        if (p->tensor[t].offset < 0 || !features(p, t, &side, &kind)) continue;
        c->points[p->tensor[t].value].width = width_of(&p->shape->config, kind);
        mem_free(side.s);
    }
}

static int64_t floats_of_points(const Check *c) {
    int64_t width = 0;
    for (int i = 0; i < c->n_points; i++) width += c->points[i].width;
    return width * c->tokens;
}

/* ---- the reference and the reordered model, on rank 0 */

static int64_t point_size(const Check *c, const Point *x) {
    return c->tokens * x->width;
}

/* The point of a result, NULL if it is not compared. Sets c->ranges. */
static Point *point_of(Check *c, const Model *m, const StepResult *r) {
    int value = r->p->tensor[r->tensor].value, half;
    if (value < 0 || c->points[value].width == 0) return NULL;
    return ranges_of_tokens(c, m, r->p, r->tensor, c->first, &half) ? &c->points[value] : NULL;
}

/* StepHook.look of the reference: copies its values. */
static void keep(void *ctx, Model *m, const StepResult *r) {
    Check *c = ctx;
    Point *x = point_of(c, m, r);
    if (!x) return;
    if (!x->values) x->values = mem_calloc((size_t)point_size(c, x), sizeof *x->values);
    for (int64_t i = 0; i < c->ranges.n; i++)
        memcpy(x->values + c->ranges.s[i].global, (const float *)r->at + c->ranges.s[i].at,
               (size_t)c->ranges.s[i].n * sizeof *x->values);
}

/* StepHook.look of the reordered model: records its differences from the reference. */
static void reorder(void *ctx, Model *m, const StepResult *r) {
    Check *c = ctx;
    Point *x = point_of(c, m, r);
    Diff d = {0};
    if (!x || !x->values) return;
    for (int64_t i = 0; i < c->ranges.n; i++) {
        int64_t at = c->ranges.s[i].global, n = c->ranges.s[i].n;
        if (at + n <= point_size(c, x))
            diff_add(&d, (const float *)r->at + c->ranges.s[i].at, x->values + at, n);
    }
    if (d.max > 0) x->max = fmax(x->max, d.max / rms_of(x->values, point_size(c, x)));
}

/* Largest relative difference of the reordered model at a point or at any earlier one: rounding
 * propagates, and a single tensor may by chance differ little. */
static double noise(const Check *c, const Point *x) {
    double most = 0;
    for (const Point *p = c->points; p <= x; p++) most = fmax(most, p->max);
    return most;
}

/* ---- the mesh */

/* Collective. Broadcasts rank 0's logical tensor. */
static const float *share(Check *c, const float *reference, int64_t n) {
    float *want = c->want = mem_realloc(c->want, (size_t)n, sizeof *want);
    if (c->group.rank == 0) memcpy(want, reference, (size_t)n * sizeof *want);
    if (c->m->grid->all)
        coll_run(c->m->grid->all, &(CollCall){.op = COLL_BROADCAST,
                                              .rows = 1,
                                              .cols = n,
                                              .src = want,
                                              .dst = want,
                                              .what = "check"});
    return want;
}

/* Collective. The difference over all ranks; *beyond: number of ranks on which it exceeds the
 * limit. */
static Diff difference(Check *c, const float *local, const float *want, Limit limit, int *beyond) {
    Diff d = {0}, sum = {0}, *all = mem_calloc((size_t)c->group.size, sizeof *all);
    for (int64_t i = 0; i < c->ranges.n; i++)
        diff_add(&d, local + c->ranges.s[i].at, want + c->ranges.s[i].global, c->ranges.s[i].n);
    group_all_gather(&c->group, &d, sizeof d, all);
    *beyond = 0;
    for (int i = 0; i < c->group.size; i++) {
        sum.max = fmax(sum.max, all[i].max), sum.square += all[i].square;
        sum.reference += all[i].reference, sum.n += all[i].n;
        *beyond += !(all[i].max <= limit.max && diff_distance(&all[i]) <= limit.rms);
    }
    mem_free(all);
    return sum;
}

/* ---- causes of a difference: collectives between the last tensors that agree and the tensor
 *
 *     att  [T, K/x]     agreed
 *     o    [T, C] +x  = matmul        att, w
 *     o    [T, C]     = all_reduce x  o          not compared: in registers on some rank
 *     x    [T, C]     = add           x, o       differs: look at all_reduce "y of attn_out" over x
 */

/* Adds a cause, unless it is in the list. over == NULL: this mesh has no such collective. */
static void add_cause(Suspect *s, Comm *over, const char *op, const char *what) {
    for (int i = 0; i < s->n_causes; i++) {
        const Cause *x = &s->cause[i];
        if (x->over == over && strcmp(x->op, op) == 0 && strcmp(x->what, what) == 0) return;
    }
    if (over && s->n_causes < MAX_CAUSES) s->cause[s->n_causes++] = (Cause){over, op, what};
}

/* The outermost tensor of which t is a part; t itself if it has no parent. */
static int outermost(const Program *p, int t) {
    while (p->tensor[t].parent >= 0) t = p->tensor[t].parent;
    return t;
}

/* A walk from a suspect backward through the operations that it was computed by. */
typedef struct Walk {
    const Check *c;
    Suspect *s;
    bool *seen; // [operations]
} Walk;

/* Adds operation i to the causes if it is a collective; then visits the operations that compute its
 * operands, except operands that agree. */
static void visit(Walk *w, int i) {
    const Program *p = w->c->p;
    const Op *op = &p->op[i];
    if (w->seen[i]) return;
    w->seen[i] = true;
    if (op_info(op->kind)->collective)
        add_cause(w->s, op->kv ? p->grid->kv : grid_comm(p->grid, op->axes),
                  op_info(op->kind)->name, p->tensor[op->out].what);
    for (int k = 0; k < op_operands(op); k++) {
        int t = op->in[k], outer = outermost(p, t);
        if (w->c->agreed[t] || w->c->agreed[outer]) continue;
        for (int j = i - 1; j >= 0; j--) {
            const Op *maker = &p->op[j];
            bool made =
                maker->kind != OP_WAIT && (outermost(p, maker->out) == outer || maker->also == t);
            if (made && !w->c->agreed[maker->out]) visit(w, j);
        }
    }
}

static bool makes_gradient(const Check *c, const Op *op, const Tensor *t) {
    const StepTensor *x = &c->p->tensor[outermost(c->p, op->out)];
    return op->kind != OP_WAIT && x->storage == STORAGE_GRADIENT && step_run_row(c->m, x) == t;
}

static void find_causes(const Check *c, Suspect *s) {
    Walk w = {c, s, mem_calloc((size_t)c->p->n_ops, sizeof *w.seen)};
    if (s->op) visit(&w, (int)(s->op - c->p->op));
    for (int i = c->p->n_ops - 1; s->gradient && i >= 0; i--)
        if (makes_gradient(c, &c->p->op[i], s->gradient)) visit(&w, i);
    mem_free(w.seen);
}

/* Collective over `over`. Is the sum of the suspect over these ranks equal to the reference? */
static bool is_partial(Check *c, const Suspect *s, Comm *over, const float *want, Limit limit) {
    float *sum = c->sum = mem_realloc(c->sum, (size_t)s->n, sizeof *sum);
    memcpy(sum, s->local, (size_t)s->n * sizeof *sum);
    coll_sum(over, COLL_F32, sum, s->n, "check");
    int beyond;
    difference(c, sum, want, limit, &beyond);
    return beyond == 0;
}

/* Appends a cause to text, such as: all_reduce "y of attn_out" over x */
static void name_cause(char *text, size_t n, const Cause *x) {
    size_t at = strlen(text);
    snprintf(text + at, n - at, "%s%s \"%s\" over %s", at ? ", " : "", x->op, x->what,
             comm_label(x->over));
}

/* Collective. If the sum of the suspect over the ranks of one of its causes is the reference, names
 * this cause in text: the collective that should have reduced it. */
static bool find_partial(Check *c, const Suspect *s, const float *want, Limit limit,
                         char text[256]) {
    for (int i = 0; i < s->n_causes; i++)
        if (is_partial(c, s, s->cause[i].over, want, limit)) {
            name_cause(text, 256, &s->cause[i]);
            return true;
        }
    return false;
}

/* Collective. Writes the verdict on a tensor of n elements, the first that differs. */
static void explain(Check *c, const Suspect *suspect, const float *want, int64_t n, int beyond) {
    char what[256] = "", where[64] = "";
    Suspect full = *suspect, *s = &full;
    find_causes(c, s);
    if (beyond < c->group.size)
        snprintf(where, sizeof where, " (on %d of %d ranks)", beyond, c->group.size);
    // A missing partial sum is as large as the tensor, rounding is far smaller: a loose limit.
    if (s->n > 0 &&
        find_partial(c, s, want, limit_of(fmax(1e-3, 2 * accepted_of(c, 0)), want, n), what)) {
        snprintf(c->verdict, sizeof c->verdict,
                 "%s%s: rank partial sums look unreduced: expected %s", s->name, where, what);
        return;
    }
    for (int i = 0; i < s->n_causes; i++) name_cause(what, sizeof what, &s->cause[i]);
    snprintf(
        c->verdict, sizeof c->verdict, "%s%s: all that it is made of agrees, %s%s", s->name, where,
        what[0] ? "look at " : "no collective lies between, look at the kernels on this layout",
        what);
}

/* Collective. Compares the elements that every rank holds (c->ranges) with rank 0's logical tensor
 * of n elements. *d is the difference over all ranks. Returns false if a rank exceeds rank 0's
 * limit; then c->verdict is set, unless it was set before. */
static bool compare(Check *c, const Suspect *s, const float *reference, int64_t n, Limit limit,
                    Diff *d) {
    group_share(&c->group, &limit, sizeof limit);
    const float *want = share(c, reference, n);
    int beyond;
    *d = difference(c, s->local, want, limit, &beyond);
    if (beyond && !c->verdict[0]) explain(c, s, want, n, beyond);
    return beyond == 0;
}

/* ---- the hook of the mesh */

/* Marks a result that agrees with the reference, and its operands. */
static void agree(Check *c, const StepResult *r) {
    c->agreed[r->tensor] = true;
    for (int k = 0; k < op_operands(r->op); k++) c->agreed[r->op->in[k]] = true;
}

static bool check_tokens(Check *c, const StepResult *r, const char *name) {
    const StepTensor *t = &r->p->tensor[r->tensor];
    const Point *x = c->group.rank == 0 ? &c->points[t->value] : NULL;
    int64_t n = point_size(c, &c->points[t->value]);
    int64_t rows = step_tensor_local(r->p, t, 0), cols = step_tensor_local(r->p, t, 1);
    Diff d;
    Suspect s = {.name = name,
                 .local = r->at,
                 .n = (step_tensor_row(r->p, t, rows - 1) + 1) * cols,
                 .op = r->op};
    assert(!x || x->values); // the reference is not fused: keep has seen all its values
    Limit limit = x ? limit_of(accepted_of(c, noise(c, x)), x->values, n) : (Limit){0};
    return compare(c, &s, x ? x->values : NULL, n, limit, &d);
}

/* StepHook.look of the mesh's model: compares a result with the reference. */
static void look_at_mesh(void *ctx, Model *m, const StepResult *r) {
    Check *c = ctx;
    char name[192];
    int half = 0;
    if (c->verdict[0] || r->op->root >= 0) return; // root >= 0: a panel of SUMMA
    if (!ranges_of_tokens(c, m, r->p, r->tensor, 0, &half)) return;
    listing_result(r->p, r->op, r->tensor, name, sizeof name - 16);
    if (half) strcat(name, ", second half");
    if (check_tokens(c, r, name)) agree(c, r);
}

/* A row of the table: the step whose difference is the largest share of the accepted one. */
typedef struct Row {
    double max, nmse, accepted; // accepted 0: not compared yet
    double reordered;           // largest difference of the reordered model in all steps so far
} Row;

enum { ROW_LOSS, ROW_NORM, N_NUMBERS };

typedef struct Table {
    Row number[N_NUMBERS];
    Row *grad, *param; // [tensors]
    bool ok;
} Table;

/* ---- the whole models of rank 0 */

/* Sequences of a micro-batch, over all ranks of a model. */
static int64_t round_of(const Model *m) {
    return m->shape.B * mesh_blocks(&m->grid->mesh, axes_of("d.z"));
}

static Check check_of(const Model *m) {
    Check c = {.p = step_run_last(m->program),
               .group = comm_group(m->grid->all),
               .round = round_of(m),
               .tokens = round_of(m) * m->shape.S};
    plan_points(&c);
    return c;
}

/* Kernels of another instruction set, if the CPU has one: other vector lengths add in another
 * order. */
static const Kernels *other_kernels(const Kernels *k) {
    const Kernels *avx2 = kernels_cpu("avx2"), *portable = kernels_cpu("portable");
    return avx2 && k != avx2 ? avx2 : portable;
}

static void plan_whole(Model whole[N_WHOLE], const Model *m) {
    const int64_t B[] = {round_of(m), (round_of(m) + 1) / 2};
    const Kernels *k[] = {m->k, other_kernels(m->k)};
    for (int i = 0; i < N_WHOLE; i++) {
        ModelShape s = m->shape;
        s.one_micro_batch = false; // the reordered model has micro-batches of half the sequences
        s.unfused = true;
        s.B = B[i], s.grid = NULL, s.samples = false, s.overlap = (Overlap){0};
        model_plan(&whole[i], &s, k[i], m->team);
    }
}

/* Bytes that rank 0 needs beside the mesh's model: two whole models, the values that keep copies,
 * and two buffers of the largest tensor for the comparison. */
static int64_t bytes_beside(const Model *m) {
    Model whole[N_WHOLE];
    Check c = check_of(m);
    plan_whole(whole, m);
    const Widths *w = &whole[REFERENCE].w;
    int64_t largest = whole[REFERENCE].tk.T * (w->up > w->qkv ? w->up : w->qkv),
            V = m->shape.config.vocab * w->C;
    int64_t n = (floats_of_points(&c) + 2 * (V > largest ? V : largest)) * (int64_t)sizeof(float);
    for (int i = 0; i < N_WHOLE; i++) n += memory_needed(&whole[i]), model_free(&whole[i]);
    mem_free(c.points), mem_free(c.agreed);
    return n;
}

void check_memory(const Model *m, int ranks, FILE *f) {
    int64_t beside = bytes_beside(m), all = memory_needed(m) * ranks + beside;
    fprintf(f,
            "check             MiB\n  reference    %8.1f          two whole models on rank 0, and "
            "the tensors of a micro-batch\n",
            (double)beside / 1048576.0);
    fflush(f);
    if (memory_available() && all > memory_available())
        die_user(
            "--check-tp: one rank's whole model, twice, and this mesh's need %.1f MiB on this "
            "node, %.1f MiB are available: check a model of fewer layers, a smaller --micro or "
            "--recompute full",
            (double)all / 1048576.0, (double)memory_available() / 1048576.0);
}

/* Runs forward and backward of a step of m and returns the mean loss. `look` is called for the
 * sequences of the mesh's first micro-batch. The mesh's model runs its micro-batches in reverse
 * order, so that this micro-batch is its last one, whose list is c->p. */
static double train_step(Check *c, Model *m, int64_t step,
                         void (*look)(void *, Model *, const StepResult *), int32_t *inputs,
                         int32_t *targets) {
    const CheckJob *j = c->job;
    StepHook hook = {.look = look, .ctx = c};
    int64_t round = round_of(m), rounds = div_up(j->sequences, round);
    int64_t place = mesh_block(&m->grid->mesh, axes_of("d.z")) * m->shape.B;
    int64_t tokens = j->sequences * m->shape.S;
    model_zero_grads(m, rounds);
    for (int64_t i = 0; i < rounds; i++) {
        c->first = (m == c->m ? rounds - 1 - i : i) * round;
        j->batch(j->ctx, step, c->first + place, m->shape.B, inputs, targets);
        m->hook = c->first < c->round ? &hook : NULL;
        model_step(m, inputs, targets, 1.0f / (float)tokens);
    }
    m->hook = NULL;
    return model_losses(m) / (double)tokens;
}

/* ---- rows */

/* Keeps the larger of two differences, each as a share of the accepted one. */
static void note_row(Row *r, double max, double nmse, double accepted) {
    if (r->accepted > 0 && max / accepted < r->max / r->accepted) return;
    r->max = max, r->nmse = nmse, r->accepted = accepted;
}

static double relative(double a, double b) {
    double d = fabs(a - b) / fabs(b);
    return a == b ? 0 : isfinite(d) ? d : INFINITY;
}

/* Collective. Compares a number that all ranks have. reference and reordered are used on rank 0. */
static void check_number(Check *c, Table *t, int row, double mesh, double reference,
                         double reordered) {
    static const char *const verdicts[N_NUMBERS] = {
        "loss: the losses of all tokens agree, look at all_reduce \"sum of losses\"",
        "gradient norm: all gradients agree, look at all_reduce \"gradient norm\", "
        "and whether every parameter counts once"};
    Row *r = &t->number[row];
    r->reordered = fmax(r->reordered, relative(reordered, reference));
    double least =
        c->m->shape.bf16 ? 2e-5 : 2e-7; // some units in the last place: a mean of many numbers
    double x[2] = {reference, 10 * fmax(r->reordered, least)};
    group_share(&c->group, x, sizeof x);
    bool good = group_all(&c->group, relative(mesh, x[0]) <= x[1]);
    note_row(r, relative(mesh, x[0]), NAN, x[1]);
    t->ok &= good;
    if (!good && !c->verdict[0]) snprintf(c->verdict, sizeof c->verdict, "%s", verdicts[row]);
}

/* ---- gradients and parameters */

/* Adds the collectives of the end of a step that complete gradient i: over data-parallel ranks, and
 * over the ranks that hold copies of key and value heads. */
static void gradient_causes(Check *c, Suspect *s, int i) {
    const Grid *g = c->m->grid;
    const Tensor *t = &c->m->tensors.t[i];
    const Layout *l = &g->layout;
    if (!shard_has_flat_parts(&c->m->tensors, i))
        add_cause(s, grid_comm(g, shard_partial_axes(&c->m->tensors, i, l)), "all_reduce",
                  "gradients of vectors");
    else if (l->zero < 2)
        add_cause(s, grid_comm(g, axes_of("d")), l->zero ? "reduce_scatter" : "all_reduce",
                  "gradients of matrices");
    if (strstr(t->name, ".qkv.")) add_cause(s, g->kv, "all_reduce", "gradients of copied heads");
}

static void check_gradient(Check *c, Table *table, int i) {
    const Tensor *t = &c->m->tensors.t[i];
    Row *r = &table->grad[i];
    char name[96];
    snprintf(name, sizeof name, "gradient of %s", t->name);
    Suspect s = {.name = name,
                 .local = t->grad + (t->begin[PART_MOMENTS] - t->begin[PART_GRAD]),
                 .n = tensor_part(t, PART_MOMENTS),
                 .gradient = t};
    gradient_causes(c, &s, i);
    const float *whole = NULL;
    Diff d = {0};
    if (c->group.rank == 0) {
        whole = c->whole[REFERENCE].tensors.t[i].grad;
        diff_add(&d, c->whole[REORDERED].tensors.t[i].grad, whole, tensor_size(t));
        r->reordered = fmax(r->reordered, diff_max(&d));
    }
    ranges_of(c, t, PART_MOMENTS);
    double accepted = accepted_of(c, r->reordered);
    table->ok &=
        compare(c, &s, whole, tensor_size(t), limit_of(accepted, whole, tensor_size(t)), &d);
    note_row(r, diff_max(&d), d.reference > 0 ? d.square / d.reference : 0, accepted);
}

/* Copies the reference's parameters to the reordered model. If the CPU has one instruction set,
 * both models would compute the same bits. Then each parameter is moved up or down by one unit of
 * rounding, which changes the results about as much as another order of sums. */
static void follow_other(Check *c, int i, const float *reference) {
    const Model *other = &c->whole[REORDERED];
    float *p = other->tensors.t[i].param;
    bool move = other->k == c->whole[REFERENCE].k;
    for (int64_t k = 0; k < tensor_size(&other->tensors.t[i]); k++)
        p[k] = move ? reference[k] *
                          (1 + (rng_u64(1, (uint64_t)i, (uint64_t)k) & 1 ? -0x1p-23f : 0x1p-23f))
                    : reference[k];
}

/* Copies the reference's parameters to the mesh's and the reordered model, so that rounding does
 * not accumulate over the steps. */
static void follow(Check *c, int i) {
    Tensor *t = &c->m->tensors.t[i];
    for (int64_t k = 0; k < c->ranges.n; k++)
        memcpy(t->param + c->ranges.s[k].at, c->want + c->ranges.s[k].global,
               (size_t)c->ranges.s[k].n * sizeof *t->param);
    if (c->group.rank == 0) follow_other(c, i, c->want);
}

/* AdamW moves an element by up to lr in the direction of its gradient, even if the gradient is
 * tiny. If the gradients of a tensor have an error of e times their RMS, about a share e of the
 * elements has a gradient smaller than the error and may move either way. So the RMS of the
 * difference may be sqrt(e) lr. Before the first update nothing may differ. */
static void check_parameter(Check *c, Table *table, int i) {
    const Tensor *t = &c->m->tensors.t[i];
    Row *r = &table->param[i];
    char name[96];
    snprintf(name, sizeof name, "parameter %s %s", t->name,
             c->moved > 0 ? "after the update" : "as loaded");
    Suspect s = {.name = name, .local = t->param};
    if (c->moved > 0 && tensor_part(t, PART_MOMENTS) != tensor_part(t, PART_PARAM))
        add_cause(&s, grid_comm(c->m->grid, axes_of("d")), "all_gather", "new weights");
    const float *whole = NULL;
    double accepted = 0;
    Diff d = {0};
    if (c->group.rank == 0) whole = c->whole[REFERENCE].tensors.t[i].param;
    if (whole && c->moved > 0) {
        diff_add(&d, c->whole[REORDERED].tensors.t[i].param, whole, tensor_size(t));
        r->reordered = fmax(r->reordered, diff_distance(&d) / c->moved);
        accepted = fmax(10 * r->reordered, 2 * sqrt(accepted_of(c, table->grad[i].reordered)));
    }
    ranges_of(c, t, PART_PARAM);
    table->ok &= compare(c, &s, whole, tensor_size(t), (Limit){INFINITY, accepted * c->moved}, &d);
    follow(c, i);
    if (c->moved > 0) note_row(r, diff_distance(&d) / c->moved, d.square / d.reference, accepted);
}

static void check_parameters(Check *c, Table *t) {
    for (int i = 0; i < c->m->tensors.n; i++) check_parameter(c, t, i);
}

static void check_step(Check *c, Table *t, int64_t step, int32_t *inputs, int32_t *targets) {
    int n_whole = c->group.rank == 0 ? N_WHOLE : 0;
    World *world = c->m->grid->world;
    double loss[N_WHOLE] = {0}, norm[N_WHOLE] = {0};
    world_set_limit(world, 0); // no limit: rank 0 computes, the others wait for it
    for (int i = 0; i < n_whole; i++) {
        loss[i] =
            train_step(c, &c->whole[i], step, i == REFERENCE ? keep : reorder, inputs, targets);
        norm[i] = model_sums(&c->whole[i]).norm;
    }
    group_barrier(&c->group);
    world_set_limit(world, c->job->limit);
    memset(c->agreed, 0, (size_t)c->p->n_tensors * sizeof *c->agreed);
    double mesh_loss = train_step(c, c->m, step, look_at_mesh, inputs, targets);
    t->ok &= !c->verdict[0];
    check_number(c, t, ROW_LOSS, mesh_loss, loss[0], loss[1]);
    for (int i = c->m->tensors.n - 1; i >= 0; i--)
        check_gradient(c, t, i); // in the order of backward
    double mesh_norm = model_sums(c->m).norm;
    check_number(c, t, ROW_NORM, mesh_norm, norm[0], norm[1]);
    AdamW rule = c->job->rule(c->job->ctx, step);
    model_update_clipped(c->m, &rule, c->job->clip);
    for (int i = 0; i < n_whole; i++) model_update_clipped(&c->whole[i], &rule, c->job->clip);
    c->moved = (double)rule.lr;
    check_parameters(c, t);
}

/* ---- the table */

static void print_row(FILE *f, const char *kind, const char *name, const Row *r) {
    char nmse[32] = "-";
    if (r->accepted == 0) return; // never compared: an earlier tensor differed
    if (!isnan(r->nmse)) snprintf(nmse, sizeof nmse, "%.1e", r->nmse);
    fprintf(f, "%-10s %-24s %10.1e %10.1e %10s  %s\n", kind, name, r->max, r->accepted, nmse,
            r->max <= r->accepted ? "ok" : "BAD");
}

static void print_table(const Check *c, const Table *t, int64_t steps, FILE *f) {
    char spec[64];
    fprintf(f,
            "check of %s (%d ranks) against one rank, %" PRId64
            " steps: the largest difference, of "
            "gradients relative to\ntheir RMS; of parameters its RMS, relative to the "
            "learning rate\n%-35s %10s %10s %10s\n",
            layout_print(&c->m->grid->layout, spec), c->group.size, steps, "", "difference",
            "accepted", "NMSE");
    print_row(f, "loss", "", &t->number[ROW_LOSS]);
    print_row(f, "norm", "", &t->number[ROW_NORM]);
    for (int i = 0; i < c->m->tensors.n; i++)
        print_row(f, "gradient", c->m->tensors.t[i].name, &t->grad[i]);
    for (int i = 0; i < c->m->tensors.n; i++)
        print_row(f, "parameter", c->m->tensors.t[i].name, &t->param[i]);
    if (t->ok)
        fprintf(f, "all agree\n");
    else
        fprintf(f, "BAD in step %" PRId64 ": %s\n", steps, c->verdict);
    fflush(f);
}

static void open_check(Check *c) {
    c->job->load(c->job->ctx, &c->m->tensors, c->m->team, &c->group);
    if (c->group.rank > 0) return;
    plan_whole(c->whole, c->m);
    for (int i = 0; i < N_WHOLE; i++) {
        model_allocate(&c->whole[i]);
        c->job->load(c->job->ctx, &c->whole[i].tensors, c->m->team, &group_alone);
    }
    for (int i = 0; i < c->m->tensors.n; i++)
        follow_other(c, i, c->whole[REFERENCE].tensors.t[i].param);
}

static void close_check(Check *c) {
    for (int i = 0; i < N_WHOLE && c->group.rank == 0; i++) model_free(&c->whole[i]);
    for (int i = 0; i < c->n_points; i++) mem_free(c->points[i].values);
    mem_free(c->points), mem_free(c->agreed), mem_free(c->want), mem_free(c->sum),
        mem_free(c->ranges.s);
}

bool check_run(Model *m, const CheckJob *job, FILE *f) {
    Check c = check_of(m);
    c.job = job, c.m = m;
    size_t n = (size_t)m->tensors.n, tokens = (size_t)c.tokens;
    Table t = {.grad = mem_calloc(n, sizeof(Row)), .param = mem_calloc(n, sizeof(Row)), .ok = true};
    int32_t *inputs = mem_calloc(tokens, sizeof *inputs),
            *targets = mem_calloc(tokens, sizeof *targets);
    open_check(&c);
    check_parameters(&c, &t);
    int64_t step = 0;
    while (t.ok && step < job->steps) check_step(&c, &t, step++, inputs, targets);
    if (c.group.rank == 0) print_table(&c, &t, step, f);
    close_check(&c);
    mem_free(inputs), mem_free(targets), mem_free(t.grad), mem_free(t.param);
    return t.ok;
}
