/* What is made before the first step: the lists of a model. */
#include <string.h>
#include <time.h>

#include "parallel/step/passes.h"
#include "tests/mesh_run.h"
#include "tests/test.h"

static ModelShape shape_of(Grid *g, const char *spec, const char *model) {
    *g = mesh_grid(spec, 0);
    ModelShape s = mesh_shape(model, g);
    s.sums = true;
    return s;
}

/* Where matmuls read fp32, no weight is cast. */
TEST(step_start_orders_a_list_of_nothing) {
    Grid g;
    ModelShape s = shape_of(&g, "d2.x2", mesh_models[0]);
    s.overlap.bulk = true;
    for (int i = 0; i < 10; i++) {
        OWNED(program_free) Program p = program_end_passes(&s, PASS_SCHEDULE, NULL, true);
        CHECK(p.n_ops == 0 && p.n_tensors == 0);
    }
}

/* ---- time ---- */

static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* To make the lists of a step: the least of three times. */
static double seconds_of(ModelShape s, int layers) {
    double least = 0;
    s.config.layers = layers;
    for (int i = 0; i < 3; i++) {
        double begin = processor_seconds();
        OWNED(program_free) Program p = program_passes(&s, PASS_SCHEDULE, NULL);
        OWNED(program_free) Program end = program_end_passes(&s, PASS_SCHEDULE, NULL, false);
        double seconds = processor_seconds() - begin;
        if (i == 0 || seconds < least) least = seconds;
    }
    return least;
}

/* What is quadratic in layers takes 64 times as long for 8 times the layers; what is linear, 10
 * to 20 times, as the lists of few are in the caches, and more beside other processes. */
TEST(step_start_takes_time_linear_in_layers) {
    static const Overlap overlaps[] = {
        {0}, {.bulk = true}, {.chunks = 2}, {.ring = true}, {.halves = true}};
    static const char *const specs[] = {"x1", "x2", "d2.x2+sp+zero1", "x2.y2+stay=y"};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 5; k++) {
            Grid g;
            ModelShape s = shape_of(&g, specs[i], mesh_models[(i + k) % 3]);
            s.overlap = overlaps[k], s.recompute = (Recompute)(k % 3);
            double few = seconds_of(s, 32), many = seconds_of(s, 256);
            if (many > 4 * 8 * few)
                test_fail(__FILE__, __LINE__, "%s, overlap %d: 32 layers %.4f s, 256 layers %.4f s",
                          specs[i], k, few, many);
        }
}
