/* check.h has the contract. This file goes from small to large: ranges of a tensor; tensors of
 * tokens; the reference; comparison over the mesh; causes of a difference; the hook of the mesh;
 * gradients, parameters and numbers of a step; all steps and their table. */
#include "parallel/step/check.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "parallel/comm/coll.h"
#include "parallel/step/listing.h"
#include "parallel/step/memory.h"
#include "parallel/step/program.h"
#include "parallel/step/run.h"

/* n elements: offsets in the local array (at) and in the logical tensor (global). */
typedef struct Range {
    int64_t at, global, n;
} Range;

/* A value of the first micro-batch, [tokens, width]. */
typedef struct Point {
    int64_t width; // 0: not compared, because no rank of the mesh has it complete in memory
    float *values; // of the reference, on rank 0; NULL: not computed yet
} Point;

/* A row of the table: the largest difference of all steps. */
typedef struct Row {
    const char *kind, *name;
    double difference, bound; // bound 0: not compared yet
} Row;

enum { ROW_LOSS, ROW_NORM, ROW_TENSORS }; // then every gradient, then every parameter

typedef struct Check {
    const CheckJob *job;
    Model *m;         // the mesh's model
    const Program *p; // its list of a micro-batch
    Group group;      // all ranks
    Model reference;  // on rank 0
    int64_t tokens;   // of a micro-batch, over the whole mesh
    Point *points;    // [values of p], indexed by StepTensor.value
    bool *agreed;     // [tensors of p] it equals the reference, or a tensor computed from it does
    Range *range;     // [n_ranges] what this rank holds of the tensor that is compared
    int64_t n_ranges, cap_ranges;
    float *want, *sum; // buffers: a logical tensor of the reference; a sum of local tensors
    Row *row;          // [ROW_TENSORS + 2 tensors of m]
    char verdict[512]; // the first difference, the same text on all ranks; "": none so far
} Check;

/* Accepted differences, relative to the reference. Healthy runs were measured on meshes with every
 * flag, all instruction sets, models of GPT-2 and LLaMA with 2 to 48 layers, up to 2048 positions
 * and 50257 tokens. Their largest differences, and in brackets those of models that 60 or more
 * steps with a learning rate of 1e-2 had made useless, whose gradients nearly cancel:
 *
 *             loss      tensors
 *     fp32    4e-8      2e-6 (8e-5)
 *     bf16    2e-5      1e-2 (2e-2)
 *
 * A mistake of 1 % in one layer is found in fp32; bf16 hides it. */
static const double loss_bounds[] = {[false] = 1e-6, [true] = 2e-4};   // [bf16]
static const double tensor_bounds[] = {[false] = 2e-4, [true] = 1e-1}; // of tokens; gradients

/* Accepted for what is computed from equal gradients, in fp32 or fp64 whatever the dtype: the norm
 * and the parameters. A few units in the last place. */
static const double update_bound = 1e-6;

static double tensor_bound(const Check *c) {
    return tensor_bounds[c->m->shape.bf16];
}

/* ---- ranges of the local array in the logical tensor */

static void add_range(Check *c, int64_t at, int64_t global, int64_t n) {
    mem_grow(c->range, c->n_ranges, c->cap_ranges);
    c->range[c->n_ranges++] = (Range){at, global, n};
}

static void ranges_of(Check *c, const Tensor *t, TensorPart part) {
    TensorRun r;
    c->n_ranges = 0;
    for (TensorRuns i = tensor_runs(t, part, false); tensor_next(&i, &r);)
        add_range(c, r.offset, r.row * t->cols + r.col, r.n);
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
    if (step_tensor_tokens(t) != 0) return false;
    if (t->dist.n_dims == 1) return strcmp(name, "losses") == 0;
    *kind = FEATURES_RESIDUAL;
    if (strcmp(t->dist.dim[1], "C") == 0) return true;
    for (int i = 0; i < 4; i++) {
        *kind = hidden[i].kind;
        if (strcmp(name + (name[0] == 'd'), hidden[i].name) == 0) return true;
    }
    return false;
}

/* The features of a tensor on this rank, and their number in the logical tensor. side->s is freed
 * by mem_free. Returns false if the tensor is not compared. */
static bool features(const Program *p, int tensor, DimShard *side, int64_t *width) {
    const Config *config = &p->shape->config;
    const StepTensor *t = &p->tensor[tensor];
    FeatureKind kind;
    bool complete = t->value >= 0 && t->dtype == COLL_F32 && t->dist.partial.n == 0;
    if (!complete || !features_of(t, &kind)) return false;
    Axes sharded = t->dist.shard[1];
    bool wide = kind == FEATURES_RESIDUAL
                    ? sharded.n == 0
                    : !axes_equal(sharded, mesh_real(p->mesh, grid_hidden_axes(p->grid)));
    DimShard logical = shard_features(config, grid_one(), kind, false);
    *side = shard_features(config, p->grid, kind, wide);
    *width = logical.size;
    mem_free(logical.s);
    if (side->size == step_tensor_local(p, t, 1)) return true;
    mem_free(side->s); // the tensor is a panel
    return false;
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

/* Sets c->range for a tensor of tokens of the first micro-batch, and *half to its half batch.
 * Returns false if the tensor is not compared. */
static bool ranges_of_tokens(Check *c, const Model *m, const Program *p, int tensor, int *half) {
    const StepTensor *t = &p->tensor[tensor];
    DimShard side;
    int64_t width;
    c->n_ranges = 0;
    if (!features(p, tensor, &side, &width)) return false;
    int64_t first = mesh_block(p->mesh, axes_of("d.z")) * m->shape.B; // sequence
    // Gradients of key and value heads of which several ranks hold copies stay partial here: they
    // are summed at the end of the step. Compare the queries alone, which come first.
    bool copies = p->grid->kv && strcmp(t->dist.name, "dqkv") == 0;
    if (copies && side.n > 1) side.n = 1; // 0: this rank has no heads
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

/* The values of the reference that are kept: those that a rank of the mesh has in memory. Freed by
 * mem_free. */
static Point *points_of(const Program *p) {
    Point *points = mem_calloc((size_t)p->n_values, sizeof *points);
    DimShard side;
    int64_t width;
    for (int t = 0; t < p->n_tensors; t++) {
        if (p->tensor[t].offset < 0 || !features(p, t, &side, &width)) continue;
        points[p->tensor[t].value].width = width;
        mem_free(side.s);
    }
    return points;
}

/* ---- the reference, on rank 0 */

/* StepHook.look of the reference: copies its values. */
static void keep(void *ctx, Model *m, const StepResult *r) {
    Check *c = ctx;
    int value = r->p->tensor[r->tensor].value, half;
    Point *x = value < 0 ? NULL : &c->points[value];
    if (!x || x->width == 0 || !ranges_of_tokens(c, m, r->p, r->tensor, &half)) return;
    if (!x->values) x->values = mem_calloc((size_t)(c->tokens * x->width), sizeof *x->values);
    for (int64_t i = 0; i < c->n_ranges; i++)
        memcpy(x->values + c->range[i].global, (const float *)r->at + c->range[i].at,
               (size_t)c->range[i].n * sizeof *x->values);
}

/* ---- comparison over the mesh */

/* Collective. Broadcasts rank 0's logical tensor of n elements to c->want. */
static void share(Check *c, const float *reference, int64_t n) {
    c->want = mem_realloc(c->want, (size_t)n, sizeof *c->want);
    if (c->group.rank == 0) memcpy(c->want, reference, (size_t)n * sizeof *c->want);
    if (c->m->grid->all)
        coll_run(c->m->grid->all, &(CollCall){.op = COLL_BROADCAST,
                                              .rows = 1,
                                              .cols = n,
                                              .src = c->want,
                                              .dst = c->want,
                                              .what = "check"});
}

static double rms(double squares, int64_t n) {
    return n ? sqrt(squares / (double)n) : 0;
}

/* RMS of the differences between this rank's elements and c->want, a tensor of n elements, relative
 * to the RMS of the tensor. INFINITY if an element is not finite. */
static double local_difference(const Check *c, const float *local, int64_t n) {
    double far = 0, all = 0;
    int64_t n_local = 0;
    for (int64_t i = 0; i < n; i++) all += (double)c->want[i] * (double)c->want[i];
    for (const Range *r = c->range; r < c->range + c->n_ranges; r++) {
        for (int64_t i = 0; i < r->n; i++) {
            double d = (double)local[r->at + i] - (double)c->want[r->global + i];
            far += d * d;
        }
        n_local += r->n;
    }
    double d = far == 0 ? 0 : rms(far, n_local) / rms(all, n);
    return isfinite(d) ? d : INFINITY;
}

/* Collective. The largest difference of any rank; *beyond: number of ranks on which it exceeds the
 * bound. */
static double difference(const Check *c, const float *local, int64_t n, double bound, int *beyond) {
    double mine = local_difference(c, local, n), most = 0;
    double *all = mem_calloc((size_t)c->group.size, sizeof *all);
    group_all_gather(&c->group, &mine, sizeof mine, all);
    *beyond = 0;
    for (int i = 0; i < c->group.size; i++) most = fmax(most, all[i]), *beyond += all[i] > bound;
    mem_free(all);
    return most;
}

/* ---- causes of a difference: collectives between the last tensors that agree and the tensor
 *
 *     att  [T, K/x]     agreed
 *     o    [T, C] +x  = matmul        att, w
 *     o    [T, C]     = all_reduce x  o          not compared: in registers on some rank
 *     x    [T, C]     = add           x, o       differs: look at all_reduce "y of attn_out" over x
 */

/* A collective that may be missing. */
typedef struct Cause {
    Comm *over;
    const char *op, *what;
} Cause;

enum { MAX_CAUSES = 12 };

/* A tensor that is compared. */
typedef struct Suspect {
    const char *name;
    const float *local; // of this rank
    int64_t n_local;    // its elements; 0: it cannot be a partial sum
    const Op *op;       // the operation that computes it; or NULL
    int gradient;       // the parameter of which it is the gradient, a row of the table; or -1
    Cause cause[MAX_CAUSES];
    int n_causes;
} Suspect;

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

/* Is tensor t the gradient of a parameter, or a bucket that contains this gradient? */
static bool has_gradient(const Program *p, int t, int parameter) {
    const StepTensor *x = &p->tensor[outermost(p, t)];
    if (x->storage == STORAGE_GRADIENT) return x->parameter == parameter;
    if (x->storage != STORAGE_BUCKET) return false;
    for (const StepTensor *dw = p->tensor; dw < p->tensor + p->n_tensors; dw++)
        if (dw->bucket >= 0 && p->tensor[dw->bucket].gradient == x->gradient &&
            dw->parameter == parameter)
            return true;
    return false;
}

/* Walks the list backward from a suspect through the operations that it was computed by, up to
 * tensors that agree. Adds the collectives on the way. */
static void find_causes(const Check *c, Suspect *s) {
    const Program *p = c->p;
    bool *open = mem_calloc((size_t)p->n_tensors, sizeof *open); // to be visited
    for (int i = p->n_ops - 1; i >= 0; i--) {
        const Op *op = &p->op[i];
        bool gradient = s->gradient >= 0 && has_gradient(p, op->out, s->gradient);
        bool made = open[outermost(p, op->out)] || (op->out2 >= 0 && open[op->out2]);
        if (op->kind == OP_WAIT || !(op == s->op || gradient || (made && !c->agreed[op->out])))
            continue;
        if (op_info(op->kind)->collective)
            add_cause(s, op->kv ? p->grid->kv : grid_comm(p->grid, op->axes),
                      op_info(op->kind)->name, p->tensor[op->out].what);
        for (int k = 0; k < op_operands(op); k++) {
            int t = op->in[k], outer = outermost(p, t);
            if (!c->agreed[t] && !c->agreed[outer]) open[outer] = open[t] = true;
        }
    }
    mem_free(open);
}

/* Collective over `over`. Is the sum of the suspect over these ranks equal to c->want? */
static bool is_partial(Check *c, const Suspect *s, Comm *over, int64_t n) {
    int beyond;
    c->sum = mem_realloc(c->sum, (size_t)s->n_local, sizeof *c->sum);
    memcpy(c->sum, s->local, (size_t)s->n_local * sizeof *c->sum);
    coll_sum(over, COLL_F32, c->sum, s->n_local, "check");
    difference(c, c->sum, n, tensor_bound(c), &beyond);
    return beyond == 0;
}

/* Appends a cause to text, such as: all_reduce "y of attn_out" over x */
static void name_cause(char *text, size_t n, const Cause *x) {
    size_t at = strlen(text);
    snprintf(text + at, n - at, "%s%s \"%s\" over %s", at ? ", " : "", x->op, x->what,
             comm_label(x->over));
}

/* Collective. Writes the verdict on a suspect, the first tensor that differs. If its sum over the
 * ranks of one of its causes is the reference, it is a partial sum that was not reduced. */
static void explain(Check *c, Suspect *s, int64_t n, int beyond) {
    char all[256] = "", missing[256] = "", where[64] = "";
    find_causes(c, s);
    for (int i = 0; i < s->n_causes; i++) {
        name_cause(all, sizeof all, &s->cause[i]);
        if (s->n_local > 0 && !missing[0] && is_partial(c, s, s->cause[i].over, n))
            name_cause(missing, sizeof missing, &s->cause[i]);
    }
    if (beyond < c->group.size)
        snprintf(where, sizeof where, " (on %d of %d ranks)", beyond, c->group.size);
    if (missing[0])
        snprintf(c->verdict, sizeof c->verdict,
                 "%s%s: rank partial sums look unreduced: expected %s", s->name, where, missing);
    else
        snprintf(c->verdict, sizeof c->verdict,
                 "%s%s: all that it is made of agrees, look at %s%sthe kernels on this layout",
                 s->name, where, all, all[0] ? " and " : "");
}

/* Collective. Compares the elements that every rank holds (c->range) with rank 0's logical tensor
 * of n elements, which is in c->want from then on. Returns the difference. If a rank exceeds the
 * bound, sets c->verdict, unless it was set before. */
static double compare(Check *c, Suspect *s, const float *reference, int64_t n, double bound) {
    int beyond;
    share(c, reference, n);
    double d = difference(c, s->local, n, bound, &beyond);
    if (beyond && !c->verdict[0]) explain(c, s, n, beyond);
    return d;
}

/* ---- the hook of the mesh */

/* StepHook.look of the mesh's model: compares a result with the reference. If it agrees, marks it
 * and its operands. */
static void look_at_mesh(void *ctx, Model *m, const StepResult *r) {
    Check *c = ctx;
    const Program *p = r->p;
    const StepTensor *t = &p->tensor[r->tensor];
    char name[192];
    int half = 0;
    if (c->verdict[0] || r->op->root >= 0) return; // root >= 0: a panel of SUMMA
    if (!ranges_of_tokens(c, m, p, r->tensor, &half)) return;
    listing_result(p, r->op, r->tensor, name, sizeof name - 16);
    if (half) strcat(name, ", second half");
    const Point *x = &c->points[t->value];
    assert(c->group.rank > 0 || x->values); // the reference is not fused: keep has seen all values
    int64_t rows = step_tensor_row(p, t, step_tensor_local(p, t, 0) - 1) + 1;
    Suspect s = {.name = name,
                 .local = r->at,
                 .n_local = rows * step_tensor_local(p, t, 1),
                 .op = r->op,
                 .gradient = -1};
    compare(c, &s, x->values, c->tokens * x->width, tensor_bound(c));
    if (c->verdict[0]) return;
    c->agreed[r->tensor] = true;
    for (int k = 0; k < op_operands(r->op); k++) c->agreed[r->op->in[k]] = true;
}

/* ---- memory */

/* Sequences of a micro-batch, over the whole mesh. */
static int64_t sequences_of(const Model *m) {
    return m->shape.B * mesh_blocks(&m->grid->mesh, axes_of("d.z"));
}

static void plan_reference(Model *reference, const Model *m) {
    ModelShape s = m->shape;
    s.B = sequences_of(m);
    s.unfused = true, s.grid = NULL, s.samples = false, s.overlap = (Overlap){0};
    model_plan(reference, &s, m->k, m->team);
}

void check_memory(const Model *m, int ranks, FILE *f) {
    Model reference;
    const Program *p = step_run_micro_batch(m->program);
    Point *points = points_of(p);
    int64_t kept = 0, largest = 0; // floats: of all points; of the largest tensor
    plan_reference(&reference, m);
    for (int i = 0; i < p->n_values; i++) {
        int64_t n = points[i].width * sequences_of(m) * m->shape.S;
        kept += n, largest = max_i64(largest, n);
    }
    for (int i = 0; i < m->tensors.n; i++)
        largest = max_i64(largest, tensor_size(&m->tensors.t[i]));
    // every rank has the two buffers want and sum
    int64_t n = memory_needed(&reference) + (kept + 2 * largest * ranks) * (int64_t)sizeof(float);
    int64_t all = memory_needed(m) * ranks + n;
    model_free(&reference);
    mem_free(points);
    fprintf(f,
            "check             MiB\n  reference    %8.1f          the whole model on rank 0, the "
            "tensors of a micro-batch, buffers\n",
            (double)n / 1048576.0);
    fflush(f);
    if (memory_available() && all > memory_available())
        die_user("--check-tp: the whole model on one rank and this mesh's need %.1f MiB on this "
                 "node, %.1f MiB are available: check a model of fewer layers, a smaller --micro "
                 "or --recompute full",
                 (double)all / 1048576.0, (double)memory_available() / 1048576.0);
}

/* ---- a step */

/* Runs forward and backward of a step of m and returns the mean loss. The micro-batches run in
 * reverse order: the first one, whose results `look` gets, is then the last to run, in which
 * gradients become complete. */
static double train_step(Check *c, Model *m, int64_t step,
                         void (*look)(void *, Model *, const StepResult *), int32_t *inputs,
                         int32_t *targets) {
    const CheckJob *j = c->job;
    StepHook hook = {.look = look, .ctx = c};
    int64_t S = m->shape.S, round = sequences_of(m);
    int64_t place = mesh_block(&m->grid->mesh, axes_of("d.z")) * m->shape.B;
    double tokens = (double)(j->sequences * S);
    model_zero_grads(m, div_up(j->sequences, round));
    for (int64_t i = div_up(j->sequences, round) - 1; i >= 0; i--) {
        j->batch(j->ctx, step, i * round + place, m->shape.B, inputs, targets);
        m->hook = i == 0 ? &hook : NULL;
        model_step(m, inputs, targets, (float)(1 / tokens));
    }
    m->hook = NULL;
    return model_losses(m) / tokens;
}

static void note(Row *row, const char *kind, const char *name, double difference, double bound) {
    *row = (Row){kind, name, fmax(row->difference, difference), bound};
}

/* Collective. Compares a number that all ranks have with that of rank 0's reference. */
static void check_number(Check *c, int row, double mesh, double reference, double bound) {
    static const struct {
        const char *kind, *verdict;
    } number[] = {
        {"loss", "loss: the losses of all tokens agree, look at all_reduce \"sum of losses\""},
        {"norm", "gradient norm: all gradients agree, look at all_reduce \"gradient norm\", "
                 "and whether every parameter counts once"}};
    group_broadcast(&c->group, &reference, sizeof reference);
    double d = fabs(mesh - reference) / fabs(reference);
    if (mesh == reference) d = 0; // of zeros, too
    if (!isfinite(d)) d = INFINITY;
    note(&c->row[row], number[row].kind, "", d, bound);
    if (!group_all(&c->group, d <= bound) && !c->verdict[0])
        snprintf(c->verdict, sizeof c->verdict, "%s", number[row].verdict);
}

/* Compares a gradient. Then the mesh continues with the reference's. AdamW may move an element by
 * the learning rate in the direction of its gradient, even if the gradient is nothing but rounding.
 * From equal gradients it computes equal parameters. */
static void check_gradient(Check *c, int i) {
    const Tensor *t = &c->m->tensors.t[i];
    float *grad = t->grad + (t->begin[PART_MOMENTS] - t->begin[PART_GRAD]);
    double bound = tensor_bound(c);
    char name[96];
    snprintf(name, sizeof name, "gradient of %s", t->name);
    Suspect s = {
        .name = name, .local = grad, .n_local = tensor_part(t, PART_MOMENTS), .gradient = i};
    ranges_of(c, t, PART_MOMENTS);
    const float *whole = c->group.rank == 0 ? c->reference.tensors.t[i].grad : NULL;
    note(&c->row[ROW_TENSORS + i], "gradient", t->name,
         compare(c, &s, whole, tensor_size(t), bound), bound);
    for (const Range *r = c->range; r < c->range + c->n_ranges; r++)
        memcpy(grad + r->at, c->want + r->global, (size_t)r->n * sizeof *grad);
}

/* Compares the parameters, before the first update exactly. */
static void check_parameters(Check *c, const char *when, double bound) {
    const TensorTable *all = &c->m->tensors;
    for (int i = 0; i < all->n; i++) {
        const Tensor *t = &all->t[i];
        char name[96];
        snprintf(name, sizeof name, "parameter %s %s", t->name, when);
        Suspect s = {.name = name, .local = t->param, .gradient = -1};
        if (bound > 0 && tensor_part(t, PART_MOMENTS) != tensor_part(t, PART_PARAM))
            add_cause(&s, grid_comm(c->m->grid, axes_of("d")), "all_gather", "new weights");
        ranges_of(c, t, PART_PARAM);
        const float *whole = c->group.rank == 0 ? c->reference.tensors.t[i].param : NULL;
        note(&c->row[ROW_TENSORS + all->n + i], "parameter", t->name,
             compare(c, &s, whole, tensor_size(t), bound), bound);
    }
}

static void check_step(Check *c, int64_t step, int32_t *inputs, int32_t *targets) {
    bool lead = c->group.rank == 0;
    World *world = c->m->grid->world;
    double loss = 0, norm = 0;
    world_set_limit(world, 0); // no limit: rank 0 computes, the others wait for it
    if (lead) {
        loss = train_step(c, &c->reference, step, keep, inputs, targets);
        norm = model_sums(&c->reference).norm;
    }
    group_barrier(&c->group);
    world_set_limit(world, c->job->limit);
    memset(c->agreed, 0, (size_t)c->p->n_tensors * sizeof *c->agreed);
    double mesh_loss = train_step(c, c->m, step, look_at_mesh, inputs, targets);
    check_number(c, ROW_LOSS, mesh_loss, loss, loss_bounds[c->m->shape.bf16]);
    for (int i = c->m->tensors.n - 1; i >= 0; i--) check_gradient(c, i); // in the order of backward
    check_number(c, ROW_NORM, model_sums(c->m).norm, norm, update_bound);
    AdamW rule = c->job->rule(c->job->ctx, step);
    model_update_clipped(c->m, &rule, c->job->clip);
    if (lead) model_update_clipped(&c->reference, &rule, c->job->clip);
    check_parameters(c, "after the update", update_bound);
}

/* ---- all steps and their table */

static void print_table(const Check *c, int64_t steps, FILE *f) {
    char spec[64];
    fprintf(f,
            "check of %s (%d ranks) against one rank, %" PRId64 " step%s in %s: the largest "
            "difference of a rank,\nof tensors its RMS, relative to the reference's\n"
            "%-35s %10s %10s\n",
            layout_print(&c->m->grid->layout, spec), c->group.size, steps, steps == 1 ? "" : "s",
            c->m->shape.bf16 ? "bf16" : "fp32", "", "difference", "accepted");
    for (const Row *r = c->row; r < c->row + ROW_TENSORS + 2 * c->m->tensors.n; r++)
        if (r->bound > 0)
            fprintf(f, "%-10s %-24s %10.1e %10.1e  %s\n", r->kind, r->name, r->difference, r->bound,
                    r->difference <= r->bound ? "ok" : "BAD");
    if (c->verdict[0])
        fprintf(f, "BAD in step %" PRId64 ": %s\n", steps, c->verdict);
    else
        fprintf(f, "all agree\n");
    fflush(f);
}

bool check_run(Model *m, const CheckJob *job, FILE *f) {
    const Program *p = step_run_micro_batch(m->program);
    Check c = {.job = job,
               .m = m,
               .p = p,
               .group = comm_group(m->grid->all),
               .tokens = sequences_of(m) * m->shape.S,
               .points = points_of(p),
               .agreed = mem_calloc((size_t)p->n_tensors, sizeof *c.agreed),
               .row = mem_calloc(ROW_TENSORS + 2 * (size_t)m->tensors.n, sizeof *c.row)};
    bool lead = c.group.rank == 0;
    int32_t *inputs = mem_calloc((size_t)c.tokens, sizeof *inputs),
            *targets = mem_calloc((size_t)c.tokens, sizeof *targets);
    job->load(job->ctx, &m->tensors, m->team, &c.group);
    if (lead) {
        plan_reference(&c.reference, m);
        model_allocate(&c.reference);
        job->load(job->ctx, &c.reference.tensors, m->team, &group_alone);
    }
    check_parameters(&c, "as loaded", 0);
    int64_t step = 0;
    while (!c.verdict[0] && step < job->steps) check_step(&c, step++, inputs, targets);
    if (lead) print_table(&c, step, f), model_free(&c.reference);
    for (int i = 0; i < p->n_values; i++) mem_free(c.points[i].values);
    mem_free(c.points), mem_free(c.agreed), mem_free(c.range), mem_free(c.row);
    mem_free(c.want), mem_free(c.sum), mem_free(inputs), mem_free(targets);
    return !c.verdict[0];
}
