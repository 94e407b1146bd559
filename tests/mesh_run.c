#include "tests/mesh_run.h"

#include <sys/prctl.h>

#include "base/debug.h"
#include "base/die.h"
#include "base/rng.h"
#include "layers/cuda/device.h"
#include "parallel/comm/coll_device.h"
#include "parallel/plan/count.h"
#include "parallel/step/mirror.h"
#include "parallel/step/passes.h"
#include "parallel/step/relayout.h"
#include "parallel/step/run.h"
#include "tests/parsed.h"
#include "tests/test.h"

typedef struct Job {
    MeshRun *r;
    Config config;
    Layout layout, next;
    Overlap overlap;
    double (*losses)[MESH_MOST], (*norms)[MESH_MOST]; // [ranks]
} Job;

void mesh_weights(TensorTable *table, Team *team, uint64_t seed) {
    TensorRun r;
    tensors_init(table, team, seed);
    for (int i = 0; i < table->n; i++) {
        Tensor *t = &table->t[i];
        for (TensorRuns it = tensor_runs(t, PART_PARAM, false); tensor_next(&it, &r);)
            for (int64_t j = 0; j < r.n; j++)
                t->param[r.offset + j] +=
                    0.2f * (float)(rng_uniform(9, rng_stream(t->name),
                                               (uint64_t)(r.row * t->cols + r.col + j)) -
                                   0.5);
    }
}

/* Writes this rank's parameters to out, which holds the logical tensors one after the other. Of
 * replicas only the first rank writes, so that ranks may do this at once. */
static void collect(const TensorTable *table, float *out) {
    TensorRun r;
    for (int i = 0; i < table->n; out += tensor_size(&table->t[i++])) {
        const Tensor *t = &table->t[i];
        for (TensorRuns it = tensor_runs(t, PART_PARAM, true); tensor_next(&it, &r);)
            memcpy(out + r.row * t->cols + r.col, t->param + r.offset, (size_t)r.n * sizeof *out);
    }
}

void mesh_tokens(int64_t at, int64_t n, int64_t real, int64_t vocab, int32_t *inputs,
                 int32_t *targets) {
    for (int64_t i = 0; i < n; i++) {
        uint64_t position = (uint64_t)(at + i), V = (uint64_t)vocab;
        inputs[i] = i < real ? (int32_t)(rng_u64(1, 1, position) % V) : 0;
        targets[i] = i < real ? (int32_t)(rng_u64(1, 2, position) % V) : -1;
    }
}

AdamW mesh_rule(int64_t step) {
    return (AdamW){.lr = 0.01f,
                   .beta1 = 0.9f,
                   .beta2 = 0.95f,
                   // a gradient that is only rounding must not become a step of AdamW
                   .eps = 1e-4f,
                   .weight_decay = 0.1f,
                   .step = step + 1};
}

/* Number of micro-batches into which each one is split. */
static int64_t parts(const MeshRun *r) {
    return r->in_halves ? 2 : 1;
}

/* Targets of a step, over all ranks: the mean loss is the sum divided by this number. */
static int64_t counted(const Job *job, const Mesh *mesh) {
    return job->r->sequences * job->r->S * (job->r->alike ? mesh->size[AXIS_D] : 1);
}

/* Forward and backward of all micro-batches of a step. */
static void one_step(const Job *job, Model *m, int step, int32_t *inputs, int32_t *targets) {
    const Mesh *mesh = &m->grid->mesh;
    Axes over = axes_of(job->r->alike ? "z" : "d.z"); // the axes that divide the sequences
    int64_t n = mesh_blocks(mesh, over), block = mesh_block(mesh, over),
            B = m->shape.B * parts(job->r), part = m->shape.B * m->shape.S;
    int64_t all = job->r->sequences, count = counted(job, mesh), S = job->r->S;
    int64_t stream = job->r->stream ? job->r->stream : all;
    model_zero_grads(m, (all + n * B - 1) / (n * B) * parts(job->r));
    for (int64_t first = 0; first < all; first += n * B) {
        int64_t at = first + block * B; // sequences from number `all` on are padding
        mesh_tokens((step * stream + job->r->skip + at) * S, B * S, (all - at) * S,
                    job->config.vocab, inputs, targets);
        for (int64_t i = 0; i < parts(job->r); i++)
            model_step(m, inputs + i * part, targets + i * part,
                       (float)grid_replicas(m->grid) / (float)count);
    }
}

/* Grid, model and tokens of a rank. */
typedef struct MeshRank {
    Grid grid;
    Model m;
    int32_t *inputs, *targets;
} MeshRank;

Grid mesh_grid(const char *spec, int rank) {
    Grid g = {.layout = layout_of(spec)};
    g.mesh = mesh_make(&g.layout.factors, rank);
    return g;
}

ModelShape mesh_shape(const char *model, const Grid *g) {
    return (ModelShape){.config = config_of(model), .B = 4, .S = 10, .training = true, .grid = g};
}

static ModelShape shape_on(const Job *job, const Layout *l, const Outer *outer) {
    const MeshRun *r = job->r;
    int64_t n = l->size[AXIS_Z] * (r->alike ? 1 : l->size[AXIS_D]);
    int64_t micro = r->micro ? r->micro : (r->sequences + n - 1) / n;
    return (ModelShape){.config = job->config,
                        .B = micro / parts(r),
                        .S = r->S,
                        .bf16 = r->bf16,
                        .recompute = r->recompute,
                        .overlap = job->overlap,
                        .training = true,
                        .replay = r->replay,
                        .outer = outer_copies(outer)};
}

static void take_tokens(MeshRank *p, const Job *job) {
    size_t n = (size_t)(p->m.shape.B * parts(job->r) * p->m.shape.S);
    p->inputs = mem_realloc(p->inputs, n, sizeof *p->inputs);
    p->targets = mem_realloc(p->targets, n, sizeof *p->targets);
}

static void mesh_rank_make(MeshRank *p, World *w, const Job *job, const Outer *outer, Team *team) {
    ModelShape shape = shape_on(job, &job->layout, outer);
    *p = (MeshRank){0};
    grid_make(&p->grid, w, &job->layout, &job->config);
    if (outer->every > 1) grid_set_local_steps(&p->grid);
    shape.grid = &p->grid;
    const MeshRun *r = job->r;
    model_plan(&p->m, &shape, r->cuda ? kernels_cuda(r->bf16) : kernels_cpu(r->kernels), team);
    model_allocate(&p->m);
    take_tokens(p, job);
}

static void mesh_rank_move(MeshRank *p, const Job *job, const Outer *outer) {
    ModelShape shape = shape_on(job, &job->next, outer);
    if (!relayout_model(&p->m, &p->grid, &job->next, &shape, p->m.team)) die("no memory to move");
    take_tokens(p, job);
}

static void mesh_rank_free(MeshRank *p) {
    mem_free(p->inputs), mem_free(p->targets);
    model_free(&p->m);
}

PriceShape mesh_price_shape(const MeshRun *r) {
    Layout l = layout_of(r->layout);
    return (PriceShape){.model.config = config_of(r->model),
                        .model.S = r->S,
                        .batch = r->sequences * r->S,
                        .model.B = r->sequences / (l.size[AXIS_D] * l.size[AXIS_Z]),
                        .model.bf16 = r->bf16,
                        .model.recompute = r->recompute,
                        .model.overlap = overlap_of(r->overlap ? r->overlap : "none"),
                        .model.threads = r->threads ? r->threads : 1,
                        .model.outer = r->outer.every > 1 ? outer_copies(&r->outer) : 0,
                        .local_steps = r->outer.every > 1,
                        .whole = true,
                        .kernels = r->cuda ? kernels_cuda_sizes(r->bf16) : NULL};
}

static bool row_in(const CollCount *row, const CollCount *rows, int n) {
    for (int i = 0; i < n; i++)
        if (rows[i].op == row->op && strcmp(rows[i].what, row->what) == 0 &&
            strcmp(rows[i].label, row->label) == 0)
            return rows[i].size == row->size && rows[i].calls == row->calls &&
                   rows[i].bytes == row->bytes;
    return false;
}

/* Compares the last step with its price: the collectives that this rank has counted since the
 * counters were reset, and the bytes of its arenas. Prints each difference and returns their
 * number. */
static int unpredicted(Model *m, const MeshRun *r) {
    PriceShape shape = mesh_price_shape(r);
    shape.model.B = m->shape.B;
    if (!r->cuda) shape.kernels = m->k;
    OWNED(test_mem_end) StepLists *t = mem_alloc(sizeof *t);
    CollCount counted[COUNT_ROWS], predicted[COUNT_ROWS];
    World *w = m->grid->world;
    int n = w ? world_counts(w, counted, COUNT_ROWS) : 0, rank = m->grid->mesh.rank;
    price_lists(t, &shape, &m->grid->layout, rank, 0);
    int n_predicted = price_counts(t, predicted, COUNT_ROWS), bad = n != n_predicted;
    for (int i = 0; i < n; i++)
        if (!row_in(&counted[i], predicted, n_predicted)) {
            printf("    %s on %s, overlap %s, rank %d: %lld calls, %lld bytes of %s along %s\n",
                   r->model, r->layout, r->overlap, rank, (long long)counted[i].calls,
                   (long long)counted[i].bytes, counted[i].what, counted[i].label);
            bad++;
        }
    price_free(t);
    shape.whole = false; // lists of few layers, as the planner prices them
    price_lists(t, &shape, &m->grid->layout, rank, 0);
    int64_t held = 0;
    for (int i = 0; i < N_ARENAS; i++) held += (int64_t)m->arena[i].used;
    if (held != price_memory(t)) {
        printf("    %s on %s, overlap %s: %lld bytes held, %lld predicted\n", r->model, r->layout,
               r->overlap, (long long)held, (long long)price_memory(t));
        bad++;
    }
    price_free(t);
    return bad;
}

static void count_collective(void *ctx, const StepCollective *sent) {
    *(int *)ctx += (int)sent->times;
}

int mesh_collectives(const MeshRun *r, int rank) {
    PriceShape s = mesh_price_shape(r);
    Layout l = layout_of(r->layout);
    StepLists lists;
    int n = 0;
    price_lists(&lists, &s, &l, rank, 0);
    price_each_collective(&lists, count_collective, &n);
    price_free(&lists);
    return n;
}

static int rank_main(World *w, void *ctx) {
    Job *job = ctx;
    MeshRun *r = job->r;
    MeshRank mesh_rank, *p = &mesh_rank;
    Outer outer = r->outer;
    int rank = world_rank(w), steps = r->steps ? r->steps : MESH_STEPS;
    OWNED(test_team_end) Team *team = team_create(r->threads ? r->threads : 1);
    if (!outer.every) outer.every = 1;
    if (r->cuda) {
        device_open(rank % device_count(NULL), 1 << 20);
        Err e;
        if (!r->ipc)
            world_use_devices(w);
        else
            world_use_nccl(w);
        if (r->ipc && !world_share_memory(w, &e)) die("%s", e.text);
    }
    mesh_rank_make(p, w, job, &outer, team);
    mesh_weights(model_host(&p->m), team, 42);
    collect(model_host(&p->m), r->start);
    model_push(&p->m);
    outer_begin(&outer, &p->m, 0);
    if (r->before) r->before(&p->m, r->ctx);
    world_count_reset(w);
    for (int step = 0; step < steps; step++) {
        if (r->next && step == r->move) mesh_rank_move(p, job, &outer);
        if (r->priced && step == steps - 1) world_count_reset(w);
        one_step(job, &p->m, step, p->inputs, p->targets);
        model_sums_begin(&p->m);
        AdamW rule = mesh_rule(step);
        model_update_clipped(&p->m, &rule, 1);
        StepSums sums = model_sums_end(&p->m);
        job->losses[rank][step] = sums.loss / (double)counted(job, &p->grid.mesh);
        job->norms[rank][step] = outer_mean(&p->m, sums.norm);
        if (r->priced && step == steps - 1)
            __atomic_add_fetch(&r->unpredicted, unpredicted(&p->m, r), __ATOMIC_RELAXED);
        outer_step(&outer, &p->m, step + 1);
        if (r->after) r->after(&p->m, step, r->ctx);
    }
    outer_average(&outer, &p->m, steps);
    collect(model_pull(&p->m), r->weights);
    mesh_rank_free(p);
    world_release_devices(w);
    if (r->cuda) device_close();
    return 0;
}

static bool on_devices; // the current run has emulated device memory, in blocks of MiB

int mesh_ranks_run(int n, int (*main_of)(World *w, void *ctx), void *ctx) {
    static unsigned calls;
    test_one_processor(!BASE_DEBUG && calls++ % 8 != 7);
    // Models have KiB: a huge page would be cleared for nothing.
    prctl(PR_SET_THP_DISABLE, !on_devices, 0, 0, 0);
    int status = ranks_run(n, main_of, ctx);
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    test_one_processor(false);
    return status;
}

void mesh_run(MeshRun *r) {
    Job job = {.r = r, .config = config_of(r->model), .layout = layout_of(r->layout)};
    if (r->next) job.next = layout_of(r->next);
    if (r->overlap) job.overlap = overlap_of(r->overlap);
    job.layout.exact = r->exact; // which a move keeps
    int p = layout_ranks(&job.layout);
    r->n_params = config_parameters(&job.config);
    r->start = mem_calloc((size_t)r->n_params, sizeof *r->start);
    r->weights = mem_calloc((size_t)r->n_params, sizeof *r->weights);
    job.losses = mem_calloc((size_t)p, sizeof *job.losses);
    job.norms = mem_calloc((size_t)p, sizeof *job.norms);
    on_devices = r->cuda;
    if (r->cuda) emu_set(r->emu);
    mesh_ranks_run(p, rank_main, &job);
    if (r->cuda) emu_set((EmuSetup){0});
    on_devices = false;
    memcpy(r->loss, job.losses[0], sizeof r->loss);
    memcpy(r->norm, job.norms[0], sizeof r->norm);
    r->agreed = true;
    for (int i = 0; i < p; i++)
        r->agreed &= memcmp(job.losses[i], r->loss, sizeof r->loss) == 0 &&
                     memcmp(job.norms[i], r->norm, sizeof r->norm) == 0;
    mem_free(job.losses), mem_free(job.norms);
}

void mesh_run_free(MeshRun *r) {
    mem_free(r->start);
    mem_free(r->weights);
    r->start = r->weights = NULL;
}

MeshDiff mesh_diff(const MeshRun *a, const MeshRun *b) {
    MeshDiff d = {0};
    double far = 0, moved = 0;
    for (int i = 0; i < MESH_MOST; i++) {
        d.loss = fmax(d.loss, fabs(a->loss[i] - b->loss[i]) / fabs(b->loss[i]));
        d.norm = fmax(d.norm, fabs(a->norm[i] - b->norm[i]) / fabs(b->norm[i]));
    }
    for (int64_t i = 0; i < a->n_params; i++) {
        far += pow((double)a->weights[i] - (double)b->weights[i], 2);
        moved += pow((double)b->weights[i] - (double)b->start[i], 2);
    }
    d.weights = sqrt(far / moved);
    if (!isfinite(d.loss + d.norm + d.weights)) d.loss = INFINITY;
    return d;
}

bool mesh_same_bits(const MeshRun *a, const MeshRun *b) {
    return a->agreed && b->agreed && memcmp(a->loss, b->loss, sizeof a->loss) == 0 &&
           memcmp(a->norm, b->norm, sizeof a->norm) == 0 &&
           memcmp(a->weights, b->weights, (size_t)a->n_params * sizeof *a->weights) == 0;
}

bool mesh_near(const MeshRun *a, const MeshRun *b, MeshDiff most) {
    MeshDiff d = mesh_diff(a, b);
    bool bits = most.loss + most.norm + most.weights == 0, agreed = a->agreed && b->agreed;
    if (bits ? mesh_same_bits(a, b)
             : agreed && d.loss <= most.loss && d.norm <= most.norm && d.weights <= most.weights)
        return true;
    printf("    %s on %s%s%s%s%s, overlap %s, recompute %s, and on %s%s: losses differ by %.2g "
           "(%.2g), norms %.2g (%.2g), weights %.2g (%.2g)%s\n",
           a->model, a->layout, a->next ? " then " : "", a->next ? a->next : "",
           a->exact ? " --exact" : "", a->cuda ? " of GPUs" : "", a->overlap ? a->overlap : "none",
           recompute_name(a->recompute), b->layout, b->cuda ? " of GPUs" : "", d.loss, most.loss,
           d.norm, most.norm, d.weights, most.weights, agreed ? "" : "; ranks disagree");
    return false;
}

const char *const mesh_models[N_MESH_MODELS] = {
    "layers=3,heads=5,channels=20,seq=10,vocab=37",
    "llama,layers=2,heads=6,kv_heads=2,channels=36,ffn=22,seq=10,vocab=29,head_dim=8,qk_norm=1",
    "layers=1,heads=3,channels=9,seq=10,vocab=11,bias=0,qkv_bias=1,tied=0,act=relu2"};

const char *const mesh_overlaps[N_MESH_OVERLAPS] = {
    "bulk",         "none",      "chunk=2",   "bulk+halves",         "ring",
    "bulk+chunk=3", "halves",    "bulk+ring", "bulk+chunk=2+halves", "bulk+ring+halves",
    "fused",        "bulk+fused"};

int mesh_sweep_steps(void) {
    return test_long() ? MESH_STEPS : 2;
}

bool mesh_sampled(int i, int model) {
    if (BASE_DEBUG) return (i + 31 * model) % (test_long() ? 23 : 92) == 0;
    return test_long() || i % 3 == model;
}

bool mesh_sampled_thinly(int i) {
    return BASE_DEBUG ? mesh_sampled(i, 0) : test_long() || i % 7 % 4 == 0;
}

bool mesh_next_layout(EachLayout *l) {
    static const char *const flags[] = {"", "+sp", "+heads", "+sp+heads", "+stay=y"};
    enum { N_FLAGS = N_OF(flags) };
    for (; l->ranks <= l->most; l->ranks++, l->next = 0) {
        int p = l->ranks;
        while (l->next < p * p * p * N_FLAGS * 4) { // d, z, x, flags, zero
            int i = l->next++, zero = i % 4, f = i / 4 % N_FLAGS, k = i / 4 / N_FLAGS,
                x = 1 + k % p, z = 1 + k / p % p, d = 1 + k / p / p;
            if (p % (d * z * x) || (zero && d == 1)) continue;
            int y = p / d / z / x, n;
            bool sp = f == 1 || f == 3, heads = f == 2 || f == 3;
            if ((sp && x == 1) || (heads && y == 1) || (f == 4 && x * y == 1)) continue;
            n = snprintf(l->spec, sizeof l->spec, "d%d.z%d.x%d.y%d%s", d, z, x, y, flags[f]);
            if (zero) snprintf(l->spec + n, sizeof l->spec - (size_t)n, "+zero%d", zero);
            l->number++;
            return true;
        }
    }
    return false;
}

static int kernels_of(const Program *p) {
    int n = 0;
    for (int i = 0; i < p->n_ops; i++) {
        OpKind kind = p->op[i].kind;
        n += !p->op[i].fused && kind != OP_WAIT && !op_info(kind)->collective;
    }
    return n;
}

int mesh_kernels(const Model *m) {
    OWNED(program_free) Program end = program_end_passes(&m->shape, PASS_SCHEDULE, m->k, false);
    int n = kernels_of(step_run_micro_batch(m->program)) + kernels_of(&end);
    return n;
}
