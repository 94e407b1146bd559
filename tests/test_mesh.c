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

/* --- where the ranks of a group are ---------------------------------------------------------- */

enum { RANKS_MAX = 256 };

/* in[r]: rank r belongs to the group along a that `of` is in: it agrees with it in the other axes. */
static void members_by_coordinates(const Mesh *m, Axes a, int of, bool in[RANKS_MAX]) {
    int mine[N_AXES], other[N_AXES];
    mesh_coords(m, of, mine);
    for (int r = 0; r < m->p; r++) {
        mesh_coords(m, r, other);
        in[r] = true;
        for (int axis = 0; axis < N_AXES; axis++)
            in[r] &= axes_has(a, axis) || mine[axis] == other[axis];
    }
}

static int placement_size(const Placement *g) {
    int n = 1;
    for (int k = 0; k < g->n; k++) n *= g->size[k];
    return n;
}

/* The i-th member above its base. */
static int placement_member(const Placement *g, int i) {
    int at = 0;
    for (int k = g->n - 1; k >= 0; i /= g->size[k--]) at += i % g->size[k] * g->stride[k];
    return at;
}

/* Ascending strides inwards would be another order, and two stretches that continue each other are one. */
static bool placement_is_shortest(const Placement *g) {
    for (int k = 0; k < g->n; k++) {
        if (g->size[k] < 2 || g->stride[k] < 1) return false;
        if (k && g->stride[k - 1] <= g->size[k] * g->stride[k]) return false;
    }
    return true;
}

static bool placements_are_right(const Mesh *m) {
    for (int set = 0; set < 1 << N_AXES; set++) {
        Axes a = axes_none();
        for (int axis = 0; axis < N_AXES; axis++)
            if (set >> axis & 1) a = axes_join((Axes){1, {(uint8_t)axis}}, a);
        Placement g = placement_of(m, a);
        if (!placement_is_shortest(&g) || placement_size(&g) != mesh_blocks(m, a)) return false;
        bool covered[RANKS_MAX] = {false};
        for (int base = 0; base < m->p; base++) {
            bool in[RANKS_MAX];
            if (covered[base]) continue; // a member of a group already seen
            members_by_coordinates(m, a, base, in);
            for (int i = 0; i < placement_size(&g); i++) {
                int rank = base + placement_member(&g, i);
                if (rank >= m->p || !in[rank] || covered[rank]) return false;
                covered[rank] = true;
            }
        }
    }
    return true;
}

TEST(placement_lists_the_ranks_that_agree_in_the_other_axes) {
    for (int code = 0; code < 256 * 81; code++) {
        int size[N_AXES], order[N_AXES], seen = 0;
        for (int i = 0, c = code, s = code / 256; i < N_AXES; i++, c /= 4, s /= 3) {
            order[i] = c % 4, size[i] = 1 + s % 3;
            seen |= 1 << order[i];
        }
        if (seen != 15) continue; // an axis is missing
        Mesh m = mesh_make(size, order, 0);
        if (!placements_are_right(&m)) test_fail(__FILE__, __LINE__, "mesh %d", code);
    }
}

TEST(placement_merges_what_continues) {
    static const struct {
        const char *axes;
        Placement is;
    } rows[] = {
        // on d2.z3.x4
        {"", {0}},
        {"y", {0}},
        {"x", {1, {4}, {1}}},
        {"z", {1, {3}, {4}}},
        {"d", {1, {2}, {12}}},
        {"d.z.x", {1, {24}, {1}}},
        {"x.z", {1, {12}, {1}}}, // the set of ranks, whatever the nesting of blocks
        {"d.z", {1, {6}, {4}}},
        {"x.y.d", {2, {2, 4}, {12, 1}}},
    };
    Mesh m = mesh_make((const int[N_AXES]){2, 3, 4, 1}, NULL, 5);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Placement g = placement_of(&m, axes_of(rows[i].axes));
        CHECK(memcmp(&g, &rows[i].is, sizeof g) == 0);
    }
}
