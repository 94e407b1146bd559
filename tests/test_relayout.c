/* A model that moves between layouts in memory is the model that stayed. */
#include "parallel/step/relayout.h"

#include "base/debug.h"
#include "base/rng.h"
#include "data/weights.h"
#include "parallel/step/audit.h"
#include "tests/mesh_run.h"
#include "tests/parsed.h"
#include "tests/test.h"

static MeshRun run_on(const char *model, const char *layout, const char *next) {
    MeshRun r = {.model = model,
                 .layout = layout,
                 .next = next,
                 .move = 2,
                 .steps = 4,
                 .sequences = 5,
                 .S = 4,
                 .exact = true};
    mesh_run(&r);
    return r;
}

/* There and back: all that this rank stores of weights and moments, padding included, is as it was;
 * on the way the logical weights are the same, and what several ranks hold they hold alike. */
typedef struct Trip {
    const char *there;
    _Atomic int bad, n;
} Trip;

static void build(Model *m, Grid *g, World *w, const Layout *l, const Model *like) {
    grid_make(g, w, l, &like->shape.config);
    ModelShape s = like->shape;
    s.grid = g;
    model_plan(m, &s, like->k, like->team);
    model_allocate(m);
}

static bool same(const Model *a, const Model *b, int arena) {
    return a->arena[arena].used == b->arena[arena].used &&
           memcmp(a->arena[arena].base, b->arena[arena].base, a->arena[arena].used) == 0;
}

static void there_and_back(Model *m, int step, void *ctx) {
    Trip *t = ctx;
    World *w = m->grid->world;
    Grid g[2];
    if (step != 1) return; // moments of two steps
    Layout l = layout_of(t->there);
    OWNED(model_free) Model there, back;
    build(&there, &g[0], w, &l, m);
    build(&back, &g[1], w, &m->grid->layout, m);
    relayout(&there, m);
    relayout(&back, &there);
    Group all = comm_group(m->grid->all);
    uint64_t before = weights_digest(&m->tensors, &all);
    bool ok = audit_replicas(&there, NULL) && weights_digest(&there.tensors, &all) == before;
    if (!ok || !same(m, &back, ARENA_PARAMS) || !same(m, &back, ARENA_OPTIMIZER)) t->bad++;
    t->n++;
}

TEST(relayout_there_and_back_restores_every_bit) {
    static EachLayout layouts[128];
    int pairs = BASE_DEBUG ? 1 : 8, bad = 0;
    for (int p = 2; p <= 6; p++) {
        uint64_t n = 0;
        for (EACH_LAYOUT(l, p, p)) layouts[n++] = l;
        for (int i = 0; i < pairs * N_MESH_MODELS; i++) {
            uint64_t at = (uint64_t)(100 * p + i);
            const char *a = layouts[rng_u64(3, 1, at) % n].spec;
            Trip trip = {.there = layouts[rng_u64(3, 2, at) % n].spec};
            OWNED(mesh_run_free)
            MeshRun r = {.model = mesh_models[i % N_MESH_MODELS],
                         .layout = a,
                         .sequences = 5,
                         .S = 4,
                         .after = there_and_back,
                         .ctx = &trip};
            mesh_run(&r);
            CHECK(trip.n == p);
            if (trip.bad) printf("    %s to %s and back\n", a, trip.there), bad++;
        }
    }
    CHECK(bad == 0);
}

/* Where sums do not depend on the mesh, nobody can tell that it changed. */
TEST(relayout_is_not_noticed_by_an_exact_run) {
    static const char *const moves[][2] = {{"d2", "x2"},
                                           {"d2+zero3", "y2+heads"},
                                           {"x3", "d3+zero1"},
                                           {"z2.x2", "x2.y2+stay=y"},
                                           {"d2.y2+zero2", "x4+sp"},
                                           {"d2.x3+zero1", "z3.y2+heads"}};
    for (int model = 0; model < N_MESH_MODELS; model++)
        for (int i = 0; i < (BASE_DEBUG ? 2 : 6); i++) {
            OWNED(mesh_run_free)
            MeshRun stays = run_on(mesh_models[model], moves[i][0], NULL),
                    goes = run_on(mesh_models[model], moves[i][0], moves[i][1]);
            CHECK(mesh_same_bits(&stays, &goes));
        }
}

/* Tensors of more than one piece; what goes round is what was predicted, but for its last
 * numbers. */
static void large(Model *m, int step, void *ctx) {
    Trip *t = ctx;
    CollCount rows[128];
    int64_t before = 0, after = 0;
    World *w = m->grid->world;
    for (int k = 0, n = world_counts(w, rows, 128); k < n; k++) before += rows[k].bytes;
    Grid g;
    Err e;
    if (step != 0) return;
    Layout l = layout_of(t->there);
    OWNED(model_free) Model there;
    build(&there, &g, w, &l, m);
    relayout(&there, m);
    for (int k = 0, n = world_counts(w, rows, 128); k < n; k++) after += rows[k].bytes;
    int p = m->grid->mesh.p; // an all_reduce of weights and both moments
    int64_t state = 3 * (int64_t)sizeof(float) * config_parameters(&m->shape.config);
    t->n += llabs(after - before - 2 * state * (p - 1) / p) < 1 << 12;
    if (!audit_replicas(&there, &e)) t->bad++;
    relayout(m, &there); // and the run goes on with what came back
}

TEST(relayout_moves_tensors_of_several_pieces) {
    SKIP_IF(BASE_DEBUG, "large tensors take sanitizers long");
    const char *model = "layers=1,heads=2,channels=40,seq=4,vocab=250007";
    Trip trip = {.there = "y2"};
    OWNED(mesh_run_free)
    MeshRun r = {.model = model, .layout = "x2", .sequences = 1, .S = 4, .exact = true};
    mesh_run(&r);
    OWNED(mesh_run_free) MeshRun moved = r;
    moved.after = large, moved.ctx = &trip;
    mesh_run(&moved);
    CHECK(trip.n == 2 && trip.bad == 0 && r.n_params > 2 * RELAYOUT_CHUNK);
    CHECK(mesh_same_bits(&r, &moved));
}

/* More tokens at once than any machine has memory for. */
static void too_large(Model *m, int step, void *ctx) {
    Trip *t = ctx;
    ModelShape s = m->shape;
    if (step != 1) return;
    Layout l = layout_of(t->there);
    s.B = INT64_C(1) << 30;
    t->n += relayout_model(m, (Grid *)m->grid, &l, &s, m->team);
}

TEST(relayout_that_does_not_fit_changes_nothing) {
    Trip trip = {.there = "x3"};
    OWNED(mesh_run_free)
    MeshRun stays = run_on(mesh_models[0], "d3+zero1", NULL), refused = stays;
    refused.after = too_large, refused.ctx = &trip;
    mesh_run(&refused);
    CHECK(trip.n == 0 && mesh_same_bits(&stays, &refused));
}
