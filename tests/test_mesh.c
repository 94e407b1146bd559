/* parallel/mesh: coordinates, blocks, lists of axes. */
#include <string.h>

#include "parallel/mesh.h"
#include "tests/test.h"

TEST(mesh_the_last_axis_is_innermost) {
    const int size[N_AXES] = {[AXIS_D] = 2, [AXIS_Z] = 1, [AXIS_X] = 3, [AXIS_Y] = 1};
    // the picture in mesh.h: d2.x3
    for (int rank = 0; rank < 6; rank++) {
        Mesh m = mesh_make(size, NULL, rank);
        CHECK(m.p == 6 && m.rank == rank);
        CHECK(m.coord[AXIS_D] == rank / 3 && m.coord[AXIS_X] == rank % 3);
        CHECK(m.coord[AXIS_Z] == 0 && m.coord[AXIS_Y] == 0);
    }
}

TEST(mesh_a_spec_may_name_the_axes_in_any_order) {
    const int size[N_AXES] = {[AXIS_D] = 2, [AXIS_Z] = 1, [AXIS_X] = 3, [AXIS_Y] = 1};
    const int order[N_AXES] = {AXIS_X, AXIS_Z, AXIS_D, AXIS_Y}; // x3.d2
    Mesh m = mesh_make(size, order, 3);
    CHECK(m.coord[AXIS_X] == 1 && m.coord[AXIS_D] == 1);
    m = mesh_make(size, order, 2);
    CHECK(m.coord[AXIS_X] == 1 && m.coord[AXIS_D] == 0); // neighbours 2 and 3 differ in d
}

TEST(mesh_rank_is_the_inverse_of_coordinates_in_every_order) {
    const int size[N_AXES] = {2, 3, 4, 5};
    int orders = 0;
    for (int a = 0; a < N_AXES; a++)
        for (int b = 0; b < N_AXES; b++)
            for (int c = 0; c < N_AXES; c++) {
                if (a == b || a == c || b == c) continue;
                const int order[N_AXES] = {a, b, c, 6 - a - b - c};
                orders++;
                for (int rank = 0; rank < 120; rank++) {
                    int coord[N_AXES];
                    Mesh m = mesh_make(size, order, rank);
                    mesh_coords(&m, rank, coord);
                    CHECK(memcmp(coord, m.coord, sizeof coord) == 0);
                    for (int i = 0; i < N_AXES; i++) CHECK(coord[i] >= 0 && coord[i] < size[i]);
                    CHECK(mesh_rank(&m, coord) == rank);
                }
            }
    CHECK(orders == 24);
}

TEST(mesh_blocks_are_nested_first_axis_outermost) {
    const int size[N_AXES] = {[AXIS_D] = 2, [AXIS_Z] = 3, [AXIS_X] = 2, [AXIS_Y] = 1};
    int seen[6] = {0};
    for (int rank = 0; rank < 12; rank++) {
        Mesh m = mesh_make(size, NULL, rank);
        Axes a = axes_of("x.z");
        CHECK(mesh_blocks(&m, a) == 6);
        CHECK(mesh_block(&m, a) == m.coord[AXIS_X] * 3 + m.coord[AXIS_Z]);
        CHECK(mesh_block(&m, axes_of("z.x")) == m.coord[AXIS_Z] * 2 + m.coord[AXIS_X]);
        Mesh zero = mesh_make(size, NULL, 0);
        CHECK(mesh_block_of(&zero, a, rank) == mesh_block(&m, a));
        seen[mesh_block(&m, a)]++;
        CHECK(mesh_blocks(&m, axes_none()) == 1 && mesh_block(&m, axes_none()) == 0);
    }
    for (int i = 0; i < 6; i++) CHECK(seen[i] == 2); // each block on both values of d
}

TEST(mesh_real_axes_are_those_that_cut) {
    const int size[N_AXES] = {[AXIS_D] = 2, [AXIS_Z] = 1, [AXIS_X] = 1, [AXIS_Y] = 3};
    Mesh m = mesh_make(size, NULL, 0);
    char text[2 * N_AXES + 1];
    CHECK_STR(axes_print(mesh_real(&m, axes_of("y.z.d.x")), text), "y.d");
    CHECK_STR(axes_print(mesh_real(&m, axes_of("z.x")), text), "");
}

TEST(axes_texts_go_there_and_back) {
    static const char *const good[] = {"",    "d",     "z",     "x",       "y",
                                       "d.z", "d.z.x", "y.x.z", "x.y.d.z", "d.z.x.y"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        Axes a;
        char text[2 * N_AXES + 1];
        CHECK(axes_parse(&a, good[i]));
        CHECK_STR(axes_print(a, text), good[i]);
    }
    static const char *const bad[] = {"a", "dz",  "d.",  ".d",        "d..z", "d.d",
                                      "D", "d z", "x,y", "d.z.x.y.d", " ",    "1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Axes a;
        if (axes_parse(&a, bad[i])) test_fail(__FILE__, __LINE__, "\"%s\" is no axes", bad[i]);
    }
}

TEST(axes_are_joined_outer_first) {
    char text[2 * N_AXES + 1];
    CHECK_STR(axes_print(axes_join(axes_of("d.z"), axes_of("x")), text), "d.z.x");
    CHECK(axes_equal(axes_join(axes_none(), axes_of("y")), axes_of("y")));
    CHECK(!axes_equal(axes_of("x.y"), axes_of("y.x")));
    CHECK(!axes_equal(axes_of("x.y"), axes_of("x")));
    CHECK(axes_has(axes_of("d.x"), AXIS_X) && !axes_has(axes_of("d.x"), AXIS_Y));
}
