/* One tensor of the mesh against one of the reference, and what its difference says. check.h has
 * the idea. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/turns.h"
#include "parallel/comm/coll_call.h"
#include "parallel/step/check_parts.h"

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

double diff_rms(const Diff *d) {
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

static void stretch(Check *c, int64_t at, int64_t global, int64_t n) {
    Stretches *s = &c->stretches;
    if (s->n == s->room) {
        s->room = s->room ? 2 * s->room : 1024;
        s->s = mem_realloc(s->s, (size_t)s->room, sizeof *s->s);
    }
    s->s[s->n].at = at, s->s[s->n].global = global, s->s[s->n++].n = n;
}

void stretches_of(Check *c, const Tensor *t, TensorPart part) {
    TensorRun r;
    c->stretches.n = 0;
    for (TensorRuns i = tensor_runs(t, part, false); tensor_next(&i, &r);)
        stretch(c, r.at, r.row * t->cols + r.col, r.n);
}

/* Of the whole local block of a weight. */
static void stretches_of_block(Check *c, const Tensor *t) {
    c->stretches.n = 0;
    for (int k = 0; k < t->n_rects; k++)
        for (int64_t i = 0; i < t->rects[k].rows; i++) {
            const TensorRect *r = &t->rects[k];
            stretch(c, r->at + i * t->local_cols, (r->row + i) * t->cols + r->col, r->cols);
        }
}

static int64_t rows_of(const Model *m, const Probe *p) {
    return p->rows == ROWS_STREAM ? m->tk.T_x : p->rows == ROWS_MIDDLE ? m->tk.rows : m->tk.T;
}

/* Features of the logical tensor: those of one rank. */
static int64_t width_of(const Model *m, const Probe *p) {
    DimShard side = shard_features(&m->shape.config, grid_one(), p->side);
    mem_free(side.s);
    return side.size;
}

/* Of a tensor of tokens; returns the width of its rows here. */
static int64_t stretches_of_tokens(Check *c, const Model *m, const Probe *p) {
    DimShard side = shard_features(&m->shape.config, m->grid, p->side);
    bool by_tokens = p->rows == ROWS_STREAM || (p->rows == ROWS_MIDDLE && m->grid->layout.stay);
    int64_t width = width_of(m, p), here = m->B * m->shape.S; // tokens of a pass
    int64_t first = by_tokens ? m->tk.t0 : 0;
    int64_t before = mesh_block(&m->grid->mesh, axes_of("d.z")) * m->shape.B * m->shape.S;
    if (m != c->m) before += here;
    if (p->copies_owe && m->grid->kv && side.n > 1) side.n = 1; // queries come first
    c->stretches.n = 0;
    for (int64_t r = 0; r < rows_of(m, p) && first + r < here; r++)
        for (int k = 0; k < side.n; k++)
            stretch(c, r * side.size + side.s[k].local,
                    (before + first + r) * width + side.s[k].global, side.s[k].n);
    mem_free(side.s);
    return side.size;
}

/* ---- the reference and its reordering: of rank 0, on one rank */

void check_keep(void *ctx, Model *m, const Probe *p) {
    Check *c = ctx;
    int64_t width = width_of(m, p), n = m->shape.B * m->shape.S * width;
    if (c->at == c->n_points) { // in the first step
        c->points = mem_realloc(c->points, (size_t)++c->n_points, sizeof *c->points);
        Point *last = c->at ? &c->points[c->at - 1] : NULL;
        bool again = last && last->at == p->at && last->n == n;
        c->points[c->at] = (Point){.name = p->name,
                                   .layer = p->layer,
                                   .gathered = p->gathered,
                                   .n = n,
                                   .width = width,
                                   .at = p->at,
                                   .values = again ? last->values : mem_alloc((size_t)n * 4)};
    }
    memcpy(c->points[c->at++].values, p->at, (size_t)n * sizeof(float));
}

/* The next point of that name; NULL, and nothing moves on, when there is none. */
static Point *find(Check *c, int *at, const Probe *p) {
    for (int i = *at; i < c->n_points; i++)
        if (c->points[i].layer == p->layer && c->points[i].gathered == p->gathered &&
            strcmp(c->points[i].name, p->name) == 0) {
            *at = i + 1;
            return &c->points[i];
        }
    return NULL;
}

void check_reorder(void *ctx, Model *m, const Probe *p) {
    Check *c = ctx;
    Point *x = find(c, &c->at, p);
    if (!x) return;
    Diff d = {0};
    int64_t begin = c->first * m->shape.S * x->width, n = m->shape.B * m->shape.S * x->width;
    if (begin + n > x->n) n = x->n - begin;
    diff_add(&d, p->at, x->values + begin, n);
    if (d.max > 0) x->max = fmax(x->max, d.max / rms_of(x->values, x->n));
}

/* What reordering made of a point or of any before it: rounding is handed on, and one tensor may be
 * lucky. */
static double noise(const Check *c, const Point *x) {
    double most = 0;
    for (const Point *p = c->points; p <= x; p++) most = fmax(most, p->max);
    return most;
}

/* ---- the mesh */

static float *room(float **p, int64_t *have, int64_t n) {
    if (n > *have) *p = mem_realloc(*p, (size_t)n, sizeof **p), *have = n;
    return *p;
}

/* Collective. Rank 0's logical tensor, on all ranks. */
static const float *share(Check *c, const float *reference, int64_t n) {
    float *want = room(&c->want, &c->want_room, n);
    if (c->group.rank == 0) memcpy(want, reference, (size_t)n * sizeof *want);
    if (c->m->grid->all)
        coll_run(c->m->grid->all, &(CollCall){.op = COLL_BROADCAST,
                                              .rows = 1,
                                              .cols = n,
                                              .src = want,
                                              .dst = want,
                                              .what = "check",
                                              .file = __FILE__,
                                              .line = __LINE__});
    return want;
}

/* Collective. The difference over all ranks, and on how many of them it is beyond the limit. */
static Diff difference(Check *c, const float *local, const float *want, Limit limit, int *beyond) {
    Diff d = {0}, sum = {0}, *all = mem_calloc((size_t)c->group.size, sizeof *all);
    for (int64_t i = 0; i < c->stretches.n; i++)
        diff_add(&d, local + c->stretches.s[i].at, want + c->stretches.s[i].global,
                 c->stretches.s[i].n);
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

/* Collective over the group. Is the sum of what its ranks hold the reference? */
static bool is_partial(Check *c, const Suspect *s, Comm *over, const float *want, Limit limit) {
    float *sum = room(&c->sum, &c->sum_room, s->n);
    for (int64_t i = 0; i < s->n; i++) sum[i] = s->local[i] - (s->base ? s->base[i] : 0);
    coll_sum(over, COLL_F32, sum, s->n, "check");
    for (int64_t i = 0; i < s->n; i++) sum[i] += s->base ? s->base[i] : 0;
    int beyond;
    difference(c, sum, want, limit, &beyond);
    return beyond == 0;
}

/* "all_reduce "y of attn_out" over x", after what is in text. */
static void name_cause(char *text, size_t n, const Cause *x) {
    size_t at = strlen(text);
    snprintf(text + at, n - at, "%s%s \"%s\" over %s", at ? ", " : "", coll_op_name(x->op), x->what,
             comm_label(x->over));
}

/* Collective. The group along which a suspect is partial, and the collective that should have
 * summed it. */
static bool find_partial(Check *c, const Suspect *s, const float *want, Limit limit,
                         char text[256]) {
    static const char *const axes[] = {"x", "y", "z", "d"};
    for (int i = 0; i < s->n_causes; i++)
        if (is_partial(c, s, s->cause[i].over, want, limit)) {
            name_cause(text, 256, &s->cause[i]);
            return true;
        }
    for (int i = 0; i < N_AXES; i++) {
        Comm *over = grid_comm(c->m->grid, axes_of(axes[i]));
        if (over && is_partial(c, s, over, want, limit)) {
            snprintf(text, 256, "a sum over %s, which the layout does not foresee", axes[i]);
            return true;
        }
    }
    return false;
}

/* Collective. Says what a tensor of n elements lacks; all that was made before it agrees. */
static void explain(Check *c, const Suspect *s, const float *want, int64_t n, int beyond) {
    char what[256] = "", where[64] = "";
    if (beyond < c->group.size)
        snprintf(where, sizeof where, " (on %d of %d ranks)", beyond, c->group.size);
    // What is missing is as large as the tensor; what rounding does to the sum is far less.
    if (s->may_be_partial &&
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

static void add_cause(Suspect *s, Cause cause) {
    if (cause.over && s->n_causes < MAX_CAUSES) s->cause[s->n_causes++] = cause;
}

static void add_causes(Suspect *s, const Probe *p) {
    static const CollOp ops[] = {[CHANGE_GATHER] = COLL_ALL_GATHER,
                                 [CHANGE_SCATTER] = COLL_REDUCE_SCATTER,
                                 [CHANGE_REDUCE] = COLL_ALL_REDUCE};
    for (int i = 0; p->path && i < p->path->n; i++)
        add_cause(s, (Cause){p->path->comm[i], ops[p->path->change[i].kind], p->path->what});
    for (int i = 0; i < 2; i++) add_cause(s, p->cause[i]);
}

/* What was added to a tensor of [rows, width] after its sums; freed by mem_free. */
static float *base_of(const Probe *p, int64_t rows, int64_t width) {
    if (!p->addend && !p->bias) return NULL;
    float *base = mem_calloc((size_t)(rows * width), sizeof *base);
    const float *addend = p->addend;
    for (int64_t i = 0; i < rows * width; i++)
        base[i] = (addend ? addend[i] : 0) + (p->bias ? p->bias[i % width] : 0);
    return base;
}

/* The gathered weight of a product: it is compared with the reference's parameter. */
static void check_weight(Check *c, Model *m, const Probe *p) {
    Diff d;
    char name[128];
    const Tensor *t = p->weight;
    int i = (int)(t - m->tensors.t);
    snprintf(name, sizeof name, "%s, gathered", t->name);
    Suspect s = {.name = name, .local = p->at};
    add_causes(&s, p);
    stretches_of_block(c, t);
    const float *whole = c->group.rank == 0 ? c->one.tensors.t[i].param : NULL;
    check_tensor(c, &s, whole, tensor_size(t), (Limit){0, INFINITY}, &d);
}

static void check_tokens(Check *c, Model *m, const Probe *p) {
    bool second = m != c->m;
    const Point *x = c->group.rank == 0 ? find(c, second ? &c->at_second : &c->at, p) : NULL;
    int64_t n = x ? x->n : 0;
    group_share(&c->group, &n, sizeof n);
    if (n == 0) return;
    char name[96], block[32] = "";
    Diff d;
    if (p->layer >= 0) snprintf(block, sizeof block, " of block %d", p->layer);
    snprintf(name, sizeof name, "%s%s%s%s", p->name, block, p->gathered ? ", gathered" : "",
             second ? ", second half" : "");
    int64_t width = stretches_of_tokens(c, m, p), rows = rows_of(m, p);
    float *base = base_of(p, rows, width);
    Suspect s = {
        .name = name, .local = p->at, .n = rows * width, .base = base, .may_be_partial = true};
    add_causes(&s, p);
    Limit limit = x ? check_limit(check_accepted(c, noise(c, x)), x->values, n) : (Limit){0};
    check_tensor(c, &s, x ? x->values : NULL, n, limit, &d);
    mem_free(base);
}

void check_mesh(void *ctx, Model *m, const Probe *p) {
    Check *c = ctx;
    World *world = c->m->grid->world;
    bool turns = c->m->twin && world; // none of them while a tensor is looked at
    if (c->verdict[0]) return;
    if (turns) world_set_yield(world, NULL, NULL);
    if (p->weight)
        check_weight(c, m, p);
    else
        check_tokens(c, m, p);
    if (turns) world_set_yield(world, turns_yield, c->m->turns);
}
