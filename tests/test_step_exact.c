/* parallel/step/exact_sums.c, run_exact.c: the program of --exact sums nothing in an order that is
 * the mesh's, and its bits are those of one rank. */
#include <string.h>

#include "base/debug.h"
#include "base/die.h"
#include "base/mem.h"
#include "parallel/plan/cost.h"
#include "parallel/step/passes.h"
#include "tests/mesh_run.h"
#include "tests/test.h"

static const char *const models[] = {
    "layers=2,heads=4,channels=24,ffn=40,seq=10,vocab=70,tied=0",
    "llama,layers=2,heads=6,kv_heads=2,channels=36,ffn=50,seq=10,vocab=71",
    "layers=2,heads=3,channels=21,ffn=35,seq=10,vocab=70",
};

/* ---- the pass ---- */

static int maker_of(const Program *p, int t) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->op[i].out == t || p->op[i].also == t) return i;
    return -1;
}

/* A float may be reduced where all terms but one are zero, and where the largest is taken. */
static bool may_be_reduced(const Program *p, int t) {
    if (p->tensor[t].bytes == 8 || p->tensor[t].largest) return true;
    int i = maker_of(p, t);
    while (op_info(p->op[i].kind)->collective) i = maker_of(p, p->op[i].in[0]);
    return p->op[i].kind == OP_EMBEDDING || p->op[i].kind == OP_LOSS_TARGET;
}

/* What reads integers: sums of integers, and what makes floats of them. */
static bool may_read(const Program *p, const Op *op, int k) {
    bool rounds = op->kind == OP_ROUND || op->kind == OP_NORM_MEAN ||
                  op->kind == OP_NORM_DEVIATION || op->kind == OP_LOSS_OF_SUMS;
    bool orders = op->kind == OP_MATMUL_BT && k > 1;
    return rounds || orders || p->tensor[op->out].bytes == 8;
}

static void on_program(const char *spec, void *ctx) {
    int *n = ctx, sums = 0;
    Grid g = mesh_grid(spec, 0);
    ModelShape s = mesh_shape(models[*n / 3 % 3], &g);
    s.recompute = (Recompute)((*n)++ % 3);
    g.layout.exact = true;
    OWNED(program_free) Program p = program_passes(&s, PASS_EXACT, NULL);
    for (int i = 0; i < p.n_ops; i++) {
        const Op *op = &p.op[i];
        bool reduces =
            op->kind == OP_ALL_REDUCE || op->kind == OP_REDUCE_SCATTER || op->kind == OP_REDUCE;
        sums += reduces;
        if (reduces && !may_be_reduced(&p, op->in[0]))
            test_fail(__FILE__, __LINE__, "%s: floats of %s are added", spec,
                      p.tensor[op->out].what);
        for (int k = 0; k < op->n_in; k++)
            if (p.tensor[op->in[k]].bytes == 8 && !may_read(&p, op, k))
                test_fail(__FILE__, __LINE__, "%s: %s reads integers", spec,
                          op_info(op->kind)->name);
        if (p.tensor[op->out].storage == STORAGE_GRADIENT) CHECK(p.tensor[op->out].bytes == 8);
    }
    bool only_d = g.layout.size[AXIS_D] == g.mesh.p && g.layout.zero < 2;
    CHECK(only_d ? sums == 0 : sums > 0);
}

TEST(step_exact_adds_no_floats_of_ranks_on_any_layout) {
    int n = 0;
    for (int ranks = 1; ranks <= 8; ranks++) mesh_every_layout(ranks, on_program, &n);
    CHECK(n > 200);
}

TEST(step_exact_every_kernel_has_a_price) {
    static const char *const layouts[] = {"d1", "x2.y2+sp", "z4"};
    for (int i = 0; i < 9; i++) {
        Grid g = mesh_grid(layouts[i / 3], 0);
        ModelShape s = mesh_shape(models[i % 3], &g);
        g.layout.exact = true;
        Widths widths = widths_of(&s.config, &g);
        OWNED(program_free) Program p = program_passes(&s, PASS_FUSE, NULL);
        for (int k = 0; k < p.n_ops; k++) {
            Work w = {.rows = -1};
            bool kernel = !p.op[k].fused && !op_info(p.op[k].kind)->collective;
            CHECK(op_work(&p, k, &widths, false, &w) == kernel);
            CHECK(!kernel || (w.rows > 0 && work_bytes(&w) > 0));
        }
    }
}
