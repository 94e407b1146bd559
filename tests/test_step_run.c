/* parallel/step/run.c: the program of a step, executed. That it trains what one rank trains, and
 * that overlap changes no bit, test_mesh_model.c and test_overlap_mesh.c hold against every layout;
 * here is what else may not change a bit. */
#include "tests/mesh_run.h"
#include "tests/test.h"

/* Two ways to run the same. */
static void compare(MeshRun a, MeshRun b, MeshDiff most) {
    mesh_run(&a);
    mesh_run(&b);
    if (!mesh_near(&b, &a, most)) test_fail("%s differs", b.layout);
    mesh_run_free(&a);
    mesh_run_free(&b);
}

TEST(step_run_has_the_same_bits_whatever_is_computed_again_and_by_however_many_threads) {
    for (EACH_LAYOUT(l, 1, 8)) {
        int n = l.number + 1;
        if (!mesh_sampled_thinly(l.number)) continue;
        MeshRun kept = {.model = mesh_models[l.number % 3],
                        .layout = l.spec,
                        .sequences = 8,
                        .S = 10,
                        .micro = n % 2 * 2,
                        .steps = mesh_sweep_steps(),
                        .overlap = mesh_overlaps[n % N_MESH_OVERLAPS]},
                again = kept;
        again.recompute = n / 3 % 2 ? RECOMPUTE_SELECTIVE : RECOMPUTE_FULL;
        again.threads = 1 + n / 2 % 2;
        compare(kept, again, (MeshDiff){0, 0, 0});
    }
}

/* An operand of a matmul whose last bit differs in fp32 may be the next number in bf16: 2^-8 of
 * it. */
TEST(step_run_trains_in_bf16_what_one_rank_trains) {
    static const char *const specs[] = {"x2+sp", "d2.y2+zero3", "x2.y2+stay=y"};
    for (EACH(spec, specs))
        for (int model = 0; model < 3; model++) {
            MeshRun one = {.model = mesh_models[model],
                           .layout = "d1",
                           .sequences = 4,
                           .S = 10,
                           .bf16 = true},
                    mesh = one;
            mesh.layout = *spec;
            compare(one, mesh, (MeshDiff){1e-3, 1e-2, 0.1});
        }
}
