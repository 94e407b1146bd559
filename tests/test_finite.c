/* parallel/step/finite: with finite weights, the result that is the first not to be finite is found
 * on every layout, although its memory has another value by then, and whatever lies in memory that
 * nobody writes; and nothing that is stored changes. */
#include "parallel/step/mirror.h"
#include "tests/cuda_test.h"
#include "tests/mesh_run.h"
#include "tests/parsed.h"
#include "tests/test.h"

static char found[16][160];
static bool was_finite[16], kept[16];

/* All weights of the second layer's up projection are as large as floats are. */
static void make_huge(Model *m) {
    TensorTable *table = model_pull(m);
    Tensor *t = &table->t[tensors_find(table, "h.1.up.weight")];
    for (int64_t i = 0; i < tensor_part(t, PART_PARAM); i++)
        t->param[i] = t->param[i] < 0 ? -3e38f : t->param[i] > 0 ? 3e38f : 0;
    model_push(m);
}

/* Temporaries, which lie behind the tokens, have anything in them. */
static void spoil_temporaries(Model *m) {
    const Arena *a = &m->arena[ARENA_ACTS];
    char *begin = (char *)(m->targets + m->halves * m->tk.T);
    memset(begin, 0xff, (size_t)((char *)a->base + a->used - begin)); // NaN
}

static float *parameters(Model *m, int64_t *n) {
    const TensorTable *table = model_pull(m);
    *n = 0;
    for (int i = 0; i < table->n; i++) *n += tensor_part(&table->t[i], PART_PARAM);
    float *all = mem_alloc((size_t)*n * sizeof *all), *to = all;
    for (int i = 0; i < table->n; to += tensor_part(&table->t[i++], PART_PARAM))
        memcpy(to, table->t[i].param, (size_t)tensor_part(&table->t[i], PART_PARAM) * sizeof *to);
    return all;
}

static void find(Model *m, UNUSED int step, UNUSED void *ctx) {
    int rank = m->grid->mesh.rank;
    int64_t n;
    char name[160];
    model_first_nonfinite(m, name, sizeof name);
    was_finite[rank] = name[0] == 0;
    make_huge(m);
    OWNED(test_mem_end) float *before = parameters(m, &n);
    if (!kernels_on_device(m->k)) spoil_temporaries(m);
    model_first_nonfinite(m, found[rank], sizeof found[rank]);
    OWNED(test_mem_end) float *after = parameters(m, &n);
    kept[rank] = memcmp(before, after, (size_t)n * sizeof *before) == 0;
}

static void check(const char *spec, const char *overlap, int recompute, bool cuda) {
    OWNED(mesh_run_free)
    MeshRun r = {.model = "layers=3,heads=3,channels=21,ffn=35,seq=5,vocab=37",
                 .layout = spec,
                 .sequences = 12,
                 .S = 5, // tokens that do not divide by the ranks along x
                 .micro = 2,
                 .steps = 1,
                 .recompute = (Recompute)recompute,
                 .overlap = overlap,
                 .after = find};
    r.cuda = r.bf16 = cuda;
    if (cuda) r.replay = REPLAY_ALWAYS, r.sequences = 4; // two micro-batches on one rank
    Layout l = layout_of(spec);
    mesh_run(&r);
    // recomputed: what is between the matmul and the activation is in registers
    bool hidden =
        recompute == RECOMPUTE_FULL && strcmp(found[0], "act of layer 1 (activation up)") == 0;
    for (int i = 0; i < layout_ranks(&l); i++)
        if (!was_finite[i] || !kept[i] || strcmp(found[i], found[0]) != 0 ||
            (strncmp(found[i], "up of layer 1 (", 15) != 0 && !hidden))
            test_fail("%s, %s, rank %d: \"%s\"%s%s", spec, overlap ? overlap : "none", i, found[i],
                      was_finite[i] ? "" : ", all were finite", kept[i] ? "" : ", weights changed");
}

TEST(finite_names_the_first_result_on_every_layout) {
    int n = 0;
    for (EACH_LAYOUT(l, 1, 6)) {
        if (!mesh_sampled(l.number, 0)) continue;
        check(l.spec, mesh_overlaps[n % N_MESH_OVERLAPS], n / 3 % 3, false);
        n++;
    }
    CHECK(n > N_MESH_OVERLAPS || BASE_DEBUG); // which has few layouts
}

TEST(finite_names_the_first_result_on_a_device) {
    static const char *const specs[] = {"d1", "x2+sp", "d2.y2+zero3", "x2.y2+stay=y"};
    for (int i = 0; i < 4; i++) check(specs[i], i % 2 ? "bulk" : NULL, i % 3, true);
}
