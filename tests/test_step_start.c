/* What is made before the first step: the lists of a model, and where each tensor lies. */
#include <string.h>

#include "parallel/step/passes.h"
#include "tests/mesh_run.h"
#include "tests/test.h"

static const char *const models[] = {
    "layers=3,heads=4,channels=24,ffn=40,vocab=70",
    "llama,layers=2,heads=6,kv_heads=2,channels=36,ffn=50,vocab=70",
    "layers=4,heads=3,channels=21,vocab=70,tied=0,bias=0",
};

static ModelShape shape_of(Grid *g, const char *spec, const char *model) {
    ModelShape s = {.B = 4, .training = true, .sums = true, .grid = g};
    Err e;
    *g = (Grid){0};
    if (!layout_parse(&g->layout, spec, 0, &e)) die("%s", e.text);
    if (!config_parse(&s.config, model, &e)) die("%s", e.text);
    s.S = 10;
    g->mesh = mesh_make(&g->layout.factors, 0);
    return s;
}

/* ---- rows of the table of tensors ---- */

/* What is stored is called by the name of its parameter, behind d, m. or v. */
static int check_rows(const Program *p, const TensorTable *table, const char *spec) {
    static const int prefix[N_STORAGES] = {
        [STORAGE_GRADIENT] = 1, [STORAGE_MOMENT] = 2, [STORAGE_SECOND_MOMENT] = 2};
    int n = 0;
    for (int t = 0; t < p->n_tensors; t++) {
        const StepTensor *x = &p->tensor[t];
        char name[64];
        if (x->storage == STORAGE_TEMPORARY || x->storage == STORAGE_BUCKET) continue;
        int layers = x->layer < 0 ? 0 : snprintf(name, sizeof name, "h.%d.", x->layer);
        snprintf(name + layers, sizeof name - (size_t)layers, "%s",
                 x->dist.name + prefix[x->storage]);
        int row = tensors_find(table, name);
        if (row < 0 || row != x->parameter)
            test_fail(__FILE__, __LINE__, "%s: %s is in row %d, not %d", spec, name, row,
                      x->parameter);
        n++;
    }
    return n;
}

static void rows_on(const char *spec, void *ctx) {
    int *n = ctx;
    Grid g;
    ModelShape s = shape_of(&g, spec, models[*n % 3]);
    TensorTable table = tensors_describe(&s.config);
    Kernels k = {.word = *n / 3 % 2 ? 2 : 4};
    s.overlap.halves = *n % 4 == 1;
    g.layout.exact = *n % 7 == 2;
    Program p = program_passes(&s, PASS_SUMS, &k), end = program_end_passes(&s, PASS_SUMS, &k);
    CHECK(check_rows(&p, &table, spec) >= 2 * table.n);
    CHECK(check_rows(&end, &table, spec) >= 5 * table.n);
    program_free(&p), program_free(&end);
    tensors_free(&table);
    ++*n;
}

TEST(step_start_finds_the_row_of_every_parameter) {
    int n = 0;
    for (int ranks = 1; ranks <= 8; ranks++) mesh_every_layout(ranks, rows_on, &n);
    CHECK(n > 300);
}

/* Where matmuls read fp32, no weight is cast. */
TEST(step_start_orders_a_list_of_nothing) {
    Grid g;
    ModelShape s = shape_of(&g, "d2.x2", models[0]);
    s.overlap.bulk = true;
    for (int i = 0; i < 10; i++) {
        Program p = program_casts_passes(&s, PASS_SCHEDULE, NULL);
        CHECK(p.n_ops == 0 && p.n_tensors == 0);
        program_free(&p);
    }
}
