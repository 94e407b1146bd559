/* parallel/step/run.c: the program of a step, executed, against the step of block.c: the same
 * kernels, so the same bits, but where a sum has another order:
 *   a tied table of an FSDP layout is reduced once, not after the head and after the embedding
 *   halves: a gradient that is stored scattered, or that stay=y reduces along x, is reduced once,
 *           the sum of both halves; before, each half's was
 *   halves of a tied model: a half adds to the table when its head has run; which half's head runs
 *           before which half's embedding depends on where the halves wait
 */
#include <math.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "parallel/step/block.h"
#include "parallel/step/program.h"
#include "tests/mesh_run.h"
#include "tests/test.h"

static const char *const models[] = {
    "layers=2,heads=4,channels=24,ffn=40,seq=10,vocab=70,tied=0",
    "llama,layers=2,heads=6,kv_heads=2,channels=36,ffn=50,seq=10,vocab=71",
    "layers=2,heads=3,channels=21,ffn=35,seq=10,vocab=70,act=relu2",
};

static bool another_order(const MeshRun *r) {
    Layout l;
    Err e;
    bool tied = !strstr(r->model, "tied=0") && !strstr(r->model, "llama");
    bool halves = r->overlap && strstr(r->overlap, "halves");
    if (!layout_parse(&l, r->layout, 0, &e)) die("%s", e.text);
    bool scattered = layout_store(&l, STORE_GRAD).n > 0;
    return tied + halves + scattered >= 2 || (halves && l.stay);
}

/* Trains as a program and as before; the bits have to be the same. */
static void compare(const MeshRun *how, const char *label) {
    MeshRun was = *how, is = *how;
    is.program = true;
    mesh_run(&was);
    mesh_run(&is);
    MeshDiff d = mesh_diff(&was, &is);
    double limit = another_order(how) ? 1e-6 : 0;
    if (!is.agreed || !(d.loss <= limit) || !(d.norm <= limit) || !(d.weights <= 10 * limit))
        test_fail(__FILE__, __LINE__, "%s, %s, %s: losses differ by %.1e, norms %.1e, weights %.1e",
                  label, how->model, how->overlap ? how->overlap : "none", d.loss, d.norm,
                  d.weights);
    mesh_run_free(&was);
    mesh_run_free(&is);
}

static void on_layout(const char *spec, void *ctx) {
    int *n = ctx, model = *n % 3;
    if (!mesh_sampled((*n)++, model)) return;
    compare(&(MeshRun){.model = models[model],
                       .layout = spec,
                       .sequences = 8,
                       .S = 10,
                       .micro = *n % 2 * 2,
                       .steps = 3,
                       .overlap = mesh_overlaps[*n % N_MESH_OVERLAPS],
                       .recompute = (Recompute)(*n / 3 % 3)},
            spec);
}

TEST(step_run_has_the_bits_of_the_step_on_every_layout) {
    int n = 0;
    for (int ranks = 1; ranks <= 8; ranks++) mesh_every_layout(ranks, on_layout, &n);
    CHECK(n > 100);
}

TEST(step_run_has_the_bits_of_the_step_in_bf16) {
    static const char *const specs[] = {"d1", "x2+sp", "d2.y2+zero3", "x2.y2+stay=y"};
    for (int i = 0; i < 4; i++)
        for (int model = 0; model < 3; model++)
            compare(&(MeshRun){.model = models[model],
                               .layout = specs[i],
                               .sequences = 4,
                               .S = 10,
                               .bf16 = true},
                    specs[i]);
}

/* Two gradients of a tied table, over micro-batches, in blocks that have padding. */
TEST(step_run_adds_gradients_of_a_tied_table_whose_parts_have_padding) {
    compare(&(MeshRun){.model = models[2],
                       .layout = "d3.y2+zero1",
                       .sequences = 6,
                       .S = 10,
                       .micro = 1,
                       .steps = 3},
            "d3.y2+zero1");
}
