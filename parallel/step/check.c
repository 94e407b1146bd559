/* The steps of a check, and its table. */
#include "parallel/step/check.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/rng.h"
#include "parallel/step/check_parts.h"
#include "parallel/step/memory.h"

/* A row of the table: of all steps the one that came closest to what is accepted. */
typedef struct Row {
    double max, nmse, accepted;
    double reordered; // the largest of all steps so far
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
    check_plan(&c);
    return c;
}

/* A set of instructions with vectors of another length, if there is one. */
static const Kernels *other_kernels(const Kernels *k) {
    const Kernels *avx2 = kernels_cpu("avx2"), *portable = kernels_cpu("portable");
    return avx2 && k != avx2 ? avx2 : portable;
}

static void plan_whole(Model whole[N_WHOLE], const Model *m) {
    const int64_t B[] = {round_of(m), (round_of(m) + 1) / 2};
    const Kernels *k[] = {m->k, other_kernels(m->k)};
    for (int i = 0; i < N_WHOLE; i++) {
        ModelShape s = m->shape;
        s.one_micro_batch = false; // a model of fewer sequences has several
        s.unfused = true;
        s.B = B[i], s.grid = NULL, s.samples = false, s.overlap = (Overlap){0};
        model_plan(&whole[i], &s, k[i], m->team);
    }
}

/* Two models, every value that check_keep sees, and the largest of them once more to compare
 * with. */
static int64_t bytes_beside(const Model *m) {
    Model whole[N_WHOLE];
    Check c = check_of(m);
    plan_whole(whole, m);
    const Widths *w = &whole[REFERENCE].w;
    int64_t largest = whole[REFERENCE].tk.T * (w->up > w->qkv ? w->up : w->qkv),
            V = m->shape.config.vocab * w->C;
    int64_t n = (check_floats(&c) + 2 * (V > largest ? V : largest)) * (int64_t)sizeof(float);
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

/* Forward and backward of a step of the mesh's model, or of a whole one; the mean loss. The mesh
 * looks at the first micro-batch in the list of the last. */
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

/* Takes the larger of two distances, each as a share of what is accepted. */
static void note_row(Row *r, double max, double nmse, double accepted) {
    if (r->accepted > 0 && max / accepted < r->max / r->accepted) return;
    r->max = max, r->nmse = nmse, r->accepted = accepted;
}

static double relative(double a, double b) {
    double d = fabs(a - b) / fabs(b);
    return a == b ? 0 : isfinite(d) ? d : INFINITY;
}

/* A number that all ranks have. reference, reordered: of rank 0. */
static void check_number(Check *c, Table *t, int row, double mesh, double reference,
                         double reordered) {
    static const char *const verdicts[N_NUMBERS] = {
        "loss: the losses of all tokens agree, look at all_reduce \"sum of losses\"",
        "gradient norm: all gradients agree, look at all_reduce \"gradient norm\", "
        "and whether every parameter counts once"};
    Row *r = &t->number[row];
    r->reordered = fmax(r->reordered, relative(reordered, reference));
    double least =
        c->m->shape.bf16 ? 2e-5 : 2e-7; // some units in the last place, of a mean of many
    double x[2] = {reference, 10 * fmax(r->reordered, least)};
    group_share(&c->group, x, sizeof x);
    bool good = group_all(&c->group, relative(mesh, x[0]) <= x[1]);
    note_row(r, relative(mesh, x[0]), NAN, x[1]);
    t->ok &= good;
    if (!good && !c->verdict[0]) snprintf(c->verdict, sizeof c->verdict, "%s", verdicts[row]);
}

/* ---- gradients and parameters */

static void add(Suspect *s, Comm *over, CollOp op, const char *what) {
    check_add_cause(s, over, coll_op_name(op), what);
}

/* The sums behind the micro-batch that complete a gradient: over ranks, over copied heads. */
static void gradient_causes(Check *c, Suspect *s, int i) {
    const Grid *g = c->m->grid;
    const Tensor *t = &c->m->tensors.t[i];
    const Layout *l = &g->layout;
    if (!shard_has_flat_parts(&c->m->tensors, i))
        add(s, grid_comm(g, shard_partial_axes(&c->m->tensors, i, l)), COLL_ALL_REDUCE,
            "gradients of vectors");
    else if (l->zero < 2)
        add(s, grid_comm(g, axes_of("d")), l->zero ? COLL_REDUCE_SCATTER : COLL_ALL_REDUCE,
            "gradients of matrices");
    if (strstr(t->name, ".qkv.")) add(s, g->kv, COLL_ALL_REDUCE, "gradients of copied heads");
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
    double accepted = check_accepted(c, r->reordered);
    table->ok &= check_tensor(c, &s, whole, tensor_size(t),
                              check_limit(accepted, whole, tensor_size(t)), &d);
    note_row(r, diff_max(&d), d.reference > 0 ? d.square / d.reference : 0, accepted);
}

/* Where there is one set of instructions, both models would compute the same bits. There the other
 * one's parameters are moved by one unit of rounding up or down, which does to its results what
 * another order of sums does. */
static void follow_other(Check *c, int i, const float *reference) {
    const Model *other = &c->whole[REORDERED];
    float *p = other->tensors.t[i].param;
    bool move = other->k == c->whole[REFERENCE].k;
    for (int64_t k = 0; k < tensor_size(&other->tensors.t[i]); k++)
        p[k] = move ? reference[k] *
                          (1 + (rng_u64(1, (uint64_t)i, (uint64_t)k) & 1 ? -0x1p-23f : 0x1p-23f))
                    : reference[k];
}

/* All go on from the reference's parameters: rounding does not add up over the steps. */
static void follow(Check *c, int i) {
    Tensor *t = &c->m->tensors.t[i];
    for (int64_t k = 0; k < c->ranges.n; k++)
        memcpy(t->param + c->ranges.s[k].at, c->want + c->ranges.s[k].global,
               (size_t)c->ranges.s[k].n * sizeof *t->param);
    if (c->group.rank == 0) follow_other(c, i, c->want);
}

/* AdamW moves an element by up to lr in the direction of its gradient, however small that is. Of a
 * tensor whose gradients err by a share e of their RMS, a share of about e has a gradient below
 * that, and may move either way: sqrt(e) of lr in the RMS. Before the first update nothing may
 * differ. */
static void check_parameter(Check *c, Table *table, int i) {
    const Tensor *t = &c->m->tensors.t[i];
    Row *r = &table->param[i];
    char name[96];
    snprintf(name, sizeof name, "parameter %s %s", t->name,
             c->moved > 0 ? "after the update" : "as loaded");
    Suspect s = {.name = name, .local = t->param};
    if (c->moved > 0 && tensor_part(t, PART_MOMENTS) != tensor_part(t, PART_PARAM))
        add(&s, grid_comm(c->m->grid, axes_of("d")), COLL_ALL_GATHER, "new weights");
    const float *whole = NULL;
    double accepted = 0;
    Diff d = {0};
    if (c->group.rank == 0) whole = c->whole[REFERENCE].tensors.t[i].param;
    if (whole && c->moved > 0) {
        diff_add(&d, c->whole[REORDERED].tensors.t[i].param, whole, tensor_size(t));
        r->reordered = fmax(r->reordered, diff_distance(&d) / c->moved);
        accepted = fmax(10 * r->reordered, 2 * sqrt(check_accepted(c, table->grad[i].reordered)));
    }
    ranges_of(c, t, PART_PARAM);
    table->ok &=
        check_tensor(c, &s, whole, tensor_size(t), (Limit){INFINITY, accepted * c->moved}, &d);
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
    world_set_limit(world, 0); // rank 0 works, the others wait for it
    for (int i = 0; i < n_whole; i++) {
        loss[i] = train_step(c, &c->whole[i], step, i == REFERENCE ? check_keep : check_reorder,
                             inputs, targets);
        norm[i] = model_sums(&c->whole[i]).norm;
    }
    group_barrier(&c->group);
    world_set_limit(world, c->job->limit);
    memset(c->agreed, 0, (size_t)c->p->n_tensors * sizeof *c->agreed);
    double mesh_loss = train_step(c, c->m, step, check_mesh, inputs, targets);
    t->ok &= !c->verdict[0];
    check_number(c, t, ROW_LOSS, mesh_loss, loss[0], loss[1]);
    for (int i = c->m->tensors.n - 1; i >= 0; i--) check_gradient(c, t, i); // as backward goes
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
    if (r->accepted == 0) return; // no step came so far
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
