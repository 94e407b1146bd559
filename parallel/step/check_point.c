/* One tensor of the mesh against one of the reference, and what its difference says. check.h has
 * the idea. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/comm/coll.h"
#include "parallel/step/check_parts.h"
#include "parallel/step/listing.h"

/* A sum of a few thousand numbers, each rounded to half a unit in the last place (6e-8), errs by
 * some such units of its size; elements of several times the RMS by more. An operand in bf16 that
 * falls on the other side of a rounding moves a sum of K numbers by 2^-8 / sqrt(K) of its size, and
 * a tensor has many. */
double check_accepted(const Check *c, double reordered) {
    return 10 * fmax(reordered, c->m->shape.bf16 ? 5e-3 : 5e-7);
}

void diff_add(Diff *d, const float *a, const float *b, int64_t n) {
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

double diff_distance(const Diff *d) {
    return d->n ? sqrt(d->square / (double)d->n) : 0;
}

double diff_max(const Diff *d) {
    return d->max == 0 ? 0 : d->max / diff_rms(d);
}

static double rms_of(const float *x, int64_t n) {
    Diff d = {0};
    diff_add(&d, x, x, n);
    return diff_rms(&d);
}

Limit check_limit(double accepted, const float *reference, int64_t n) {
    return (Limit){reference ? accepted * rms_of(reference, n) : 0, INFINITY};
}

/* ---- what lies where */

static void add_range(Check *c, int64_t at, int64_t global, int64_t n) {
    Ranges *s = &c->ranges;
    mem_grow(s->s, s->n, s->cap);
    s->s[s->n].at = at, s->s[s->n].global = global, s->s[s->n++].n = n;
}

void ranges_of(Check *c, const Tensor *t, TensorPart part) {
    TensorRun r;
    c->ranges.n = 0;
    for (TensorRuns i = tensor_runs(t, part, false); tensor_next(&i, &r);)
        add_range(c, r.at, r.row * t->cols + r.col, r.n);
}

/* ---- tensors of tokens */

/* The features of a tensor, as this rank has them; false: it has none that are compared. Logits are
 * not: they are there by chunks, so as to need no memory. */
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

/* Its features on this rank, freed by mem_free; false: it is not compared. */
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
    mem_free(side->s); // of a panel
    return false;
}

/* Features of the logical tensor: those of one rank. */
static int64_t width_of(const Config *config, FeatureKind kind) {
    DimShard side = shard_features(config, grid_one(), kind, false);
    mem_free(side.s);
    return side.size;
}

/* Where row r of a tensor of tokens is: a token of this rank's coordinate of d x z, in one of the
 * halves of its sequences. Rows of a chunk are some of each block of the parent, and the second
 * half's follow all of the first. */
static int64_t token_of(const Model *m, const Program *p, int tensor, int64_t r, int *half) {
    const StepTensor *t = &p->tensor[tensor];
    for (; t->parent >= 0; t = &p->tensor[t->parent]) r = t->row + step_tensor_row(p, t, r);
    r += t->row;
    bool over_x = axes_has(t->dist.shard[0], AXIS_X);
    *half = (int)(r / m->tk.T);
    return r % m->tk.T + (over_x ? m->tk.t0 : 0);
}

/* Of a tensor of tokens, in a logical one whose first sequence is m's `first`. False: it is not
 * compared. */
static bool ranges_of_tokens(Check *c, const Model *m, const Program *p, int tensor, int64_t first,
                             int *half) {
    const StepTensor *t = &p->tensor[tensor];
    DimShard side;
    FeatureKind kind;
    c->ranges.n = 0;
    if (!features(p, tensor, &side, &kind)) return false;
    int64_t width = width_of(&p->shape->config, kind);
    first += mesh_block(p->mesh, axes_of("d.z")) * m->shape.B;
    // gradients of key and value heads that others hold as well are partial, and stay so
    bool copies = p->grid->kv && strcmp(t->dist.name, "dqkv") == 0;
    if (copies) side.n = 1; // queries come first
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

void check_plan(Check *c) {
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

int64_t check_floats(const Check *c) {
    int64_t width = 0;
    for (int i = 0; i < c->n_points; i++) width += c->points[i].width;
    return width * c->tokens;
}

/* ---- the reference and its reordering: of rank 0, on one rank */

static int64_t point_size(const Check *c, const Point *x) {
    return c->tokens * x->width;
}

/* The point of a result; c->ranges is where it has elements of it. NULL: it is not compared. */
static Point *point_of(Check *c, const Model *m, const StepResult *r) {
    int value = r->p->tensor[r->tensor].value, half;
    if (value < 0 || c->points[value].width == 0) return NULL;
    return ranges_of_tokens(c, m, r->p, r->tensor, c->first, &half) ? &c->points[value] : NULL;
}

void check_keep(void *ctx, Model *m, const StepResult *r) {
    Check *c = ctx;
    Point *x = point_of(c, m, r);
    if (!x) return;
    if (!x->values) x->values = mem_calloc((size_t)point_size(c, x), sizeof *x->values);
    for (int64_t i = 0; i < c->ranges.n; i++)
        memcpy(x->values + c->ranges.s[i].global, (const float *)r->at + c->ranges.s[i].at,
               (size_t)c->ranges.s[i].n * sizeof *x->values);
}

void check_reorder(void *ctx, Model *m, const StepResult *r) {
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

/* What reordering made of a point or of any before it: rounding is handed on, and one tensor may be
 * lucky. */
static double noise(const Check *c, const Point *x) {
    double most = 0;
    for (const Point *p = c->points; p <= x; p++) most = fmax(most, p->max);
    return most;
}

/* ---- the mesh */

static float *at_least(float **p, int64_t *have, int64_t n) {
    if (n > *have) *p = mem_realloc(*p, (size_t)n, sizeof **p), *have = n;
    return *p;
}

/* Collective. Rank 0's logical tensor, on all ranks. */
static const float *share(Check *c, const float *reference, int64_t n) {
    float *want = at_least(&c->want, &c->want_cap, n);
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

/* Collective. The difference over all ranks, and on how many of them it is beyond the limit. */
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

/* ---- what a tensor lacks
 *
 *     att  [T, K/x]     agreed
 *     o    [T, C] +x  = matmul        att, w
 *     o    [T, C]     = all_reduce x  o          not looked at: in registers on some rank
 *     x    [T, C]     = add           x, o       differs: look at all_reduce "y of attn_out" over x
 */

void check_add_cause(Suspect *s, Comm *over, const char *op, const char *what) {
    for (int i = 0; i < s->n_causes; i++) {
        const Cause *x = &s->cause[i];
        if (x->over == over && strcmp(x->op, op) == 0 && strcmp(x->what, what) == 0) return;
    }
    if (over && s->n_causes < MAX_CAUSES) s->cause[s->n_causes++] = (Cause){over, op, what};
}

/* The tensor of which t is rows or columns, which has no parent itself; or t. */
static int outermost(const Program *p, int t) {
    while (p->tensor[t].parent >= 0) t = p->tensor[t].parent;
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
        check_add_cause(w->s, op->kv ? p->grid->kv : grid_comm(p->grid, op->axes),
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

/* Collective over the group. Is the sum of what its ranks hold the reference? */
static bool is_partial(Check *c, const Suspect *s, Comm *over, const float *want, Limit limit) {
    float *sum = at_least(&c->sum, &c->sum_cap, s->n);
    memcpy(sum, s->local, (size_t)s->n * sizeof *sum);
    coll_sum(over, COLL_F32, sum, s->n, "check");
    int beyond;
    difference(c, sum, want, limit, &beyond);
    return beyond == 0;
}

/* "all_reduce "y of attn_out" over x", after what is in text. */
static void name_cause(char *text, size_t n, const Cause *x) {
    size_t at = strlen(text);
    snprintf(text + at, n - at, "%s%s \"%s\" over %s", at ? ", " : "", x->op, x->what,
             comm_label(x->over));
}

/* Collective. The group along which a suspect is partial, and the collective that should have
 * summed it. */
static bool find_partial(Check *c, const Suspect *s, const float *want, Limit limit,
                         char text[256]) {
    for (int i = 0; i < s->n_causes; i++)
        if (is_partial(c, s, s->cause[i].over, want, limit)) {
            name_cause(text, 256, &s->cause[i]);
            return true;
        }
    return false;
}

/* Collective. Says what a tensor of n elements lacks; all that was made before it agrees. */
static void explain(Check *c, const Suspect *suspect, const float *want, int64_t n, int beyond) {
    char what[256] = "", where[64] = "";
    Suspect full = *suspect, *s = &full;
    find_causes(c, s);
    if (beyond < c->group.size)
        snprintf(where, sizeof where, " (on %d of %d ranks)", beyond, c->group.size);
    // What is missing is as large as the tensor; what rounding does to the sum is far less.
    if (s->n > 0 &&
        find_partial(c, s, want, check_limit(fmax(1e-3, 2 * check_accepted(c, 0)), want, n),
                     what)) {
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

bool check_tensor(Check *c, const Suspect *s, const float *reference, int64_t n, Limit limit,
                  Diff *d) {
    group_share(&c->group, &limit, sizeof limit);
    const float *want = share(c, reference, n);
    int beyond;
    *d = difference(c, s->local, want, limit, &beyond);
    if (beyond && !c->verdict[0]) explain(c, s, want, n, beyond);
    return beyond == 0;
}

/* ---- the hook of the mesh */

/* A result is right, so all that it was made of is. */
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
    assert(!x || x->values); // without fusion all are seen
    Limit limit = x ? check_limit(check_accepted(c, noise(c, x)), x->values, n) : (Limit){0};
    return check_tensor(c, &s, x ? x->values : NULL, n, limit, &d);
}

void check_mesh(void *ctx, Model *m, const StepResult *r) {
    Check *c = ctx;
    char name[192];
    int half = 0;
    if (c->verdict[0] || r->op->root >= 0) return; // of panels
    if (!ranges_of_tokens(c, m, r->p, r->tensor, 0, &half)) return;
    listing_result(r->p, r->op, r->tensor, name, sizeof name - 16);
    if (half) strcat(name, ", second half");
    if (check_tokens(c, r, name)) agree(c, r);
}
