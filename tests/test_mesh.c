/* parallel/mesh: coordinates, blocks, lists of axes. */

#include "base/rng.h"
#include "parallel/mesh/mesh.h"
#include "tests/test.h"

/* d2.x3 is factors_of("d2.x3"): one digit for each size, and no normalising. */
static Factors factors_of(const char *text) {
    Factors f = {0};
    for (const char *p = text; *p; p += p[2] ? 3 : 2) {
        f.factor[f.n].axis = axes_of((char[]){*p, 0}).axis[0];
        f.factor[f.n++].size = p[1] - '0';
    }
    return f;
}

enum { RANKS_MAX = 256, LISTS = 200 };

/* The i-th of some random lists: up to MAX_FACTORS factors of sizes 1 to 3, at most RANKS_MAX
 * ranks. */
static Factors random_factors(int i) {
    Factors f = {0};
    int ranks = 1, most = (int)(rng_u64(1, 0, (uint64_t)i) % (MAX_FACTORS + 1));
    for (; f.n < most; f.n++) {
        uint64_t u = rng_u64(1, 1, (uint64_t)(MAX_FACTORS * i + f.n));
        f.factor[f.n].axis = (int)(u % N_AXES);
        f.factor[f.n].size = (int)(u / N_AXES % 4);
        if (f.factor[f.n].size == 0) f.factor[f.n].size = 1; // half of them: lists get long
        if ((ranks *= f.factor[f.n].size) > RANKS_MAX) break;
    }
    return f;
}

TEST(mesh_the_last_axis_is_innermost) {
    Factors f = factors_of("d2.x3"); // the picture in mesh.h
    for (int rank = 0; rank < 6; rank++) {
        Mesh m = mesh_make(&f, rank);
        CHECK(m.p == 6 && m.rank == rank);
        CHECK(m.coord[AXIS_D] == rank / 3 && m.coord[AXIS_X] == rank % 3);
        CHECK(m.coord[AXIS_Z] == 0 && m.coord[AXIS_Y] == 0);
    }
}

TEST(mesh_a_node_holds_a_tile) {
    static const int picture[4][4] = {
        {0, 1, 4, 5}, {2, 3, 6, 7}, {8, 9, 12, 13}, {10, 11, 14, 15}}; // in mesh.h
    Factors f = factors_of("x2.y2.x2.y2");
    Mesh m = mesh_make(&f, 0);
    CHECK(m.p == 16 && m.size[AXIS_X] == 4 && m.size[AXIS_Y] == 4);
    for (int x = 0; x < 4; x++)
        for (int y = 0; y < 4; y++) {
            int rank = picture[x][y];
            CHECK(rank / 4 == x / 2 * 2 + y / 2); // the node
            CHECK(mesh_block_of(&m, axes_of("x"), rank) == x);
            CHECK(mesh_block_of(&m, axes_of("y.x"), rank) == 4 * y + x);
        }
}

TEST(mesh_coordinates_name_each_rank_once_in_every_order) {
    int most = 0, again = 0;
    for (int i = 0; i < LISTS; i++) {
        Factors f = random_factors(i);
        bool seen[RANKS_MAX] = {false};
        Mesh m = mesh_make(&f, 0);
        CHECK(m.p == m.size[0] * m.size[1] * m.size[2] * m.size[3]);
        for (int rank = 0; rank < m.p; rank++) {
            int coord[N_AXES];
            Mesh here = mesh_make(&f, rank);
            mesh_coords(&m, rank, coord);
            CHECK(memcmp(coord, here.coord, sizeof coord) == 0);
            for (int axis = 0; axis < N_AXES; axis++)
                CHECK(coord[axis] >= 0 && coord[axis] < m.size[axis]);
            int block = mesh_block_of(&m, axes_of("d.z.x.y"), rank);
            CHECK(!seen[block]);
            seen[block] = true;
        }
        if (f.n > most) most = f.n;
        again += f.n > N_AXES; // an axis came twice
    }
    CHECK(most == MAX_FACTORS && again > LISTS / 10);
}

/* Ranks that differ in one axis only are in ascending order of its coordinate: the order of the
 * sums. */
TEST(mesh_ranks_ascend_along_every_axis) {
    for (int i = 0; i < LISTS; i++) {
        Factors f = random_factors(i);
        Mesh m = mesh_make(&f, 0);
        for (int axis = 0; axis < N_AXES; axis++) {
            int next[RANKS_MAX] = {0}; // of the ranks that differ in this axis only
            Axes one = {1, {(uint8_t)axis}}, others = axes_without(axes_of("d.z.x.y"), one);
            for (int rank = 0; rank < m.p; rank++)
                CHECK(mesh_block_of(&m, one, rank) == next[mesh_block_of(&m, others, rank)]++);
        }
    }
}

TEST(mesh_factors_that_mean_the_same_are_the_same) {
    for (int i = 0; i < LISTS; i++) {
        Factors f = random_factors(i), shorter = {0}, again = {0};
        for (int k = 0; k < f.n; k++)
            CHECK(factors_add(&shorter, f.factor[k].axis, f.factor[k].size));
        for (int k = 0; k < shorter.n; k++) {
            CHECK(shorter.factor[k].size > 1 &&
                  (k == 0 || shorter.factor[k].axis != shorter.factor[k - 1].axis));
            CHECK(factors_add(&again, shorter.factor[k].axis, shorter.factor[k].size));
        }
        CHECK(memcmp(&again, &shorter, sizeof again) == 0);
        Mesh long_way = mesh_make(&f, 0), short_way = mesh_make(&shorter, 0);
        CHECK(long_way.p == short_way.p);
        for (int rank = 0; rank < long_way.p; rank++) {
            int one[N_AXES], other[N_AXES];
            mesh_coords(&long_way, rank, one), mesh_coords(&short_way, rank, other);
            CHECK(memcmp(one, other, sizeof one) == 0);
        }
    }
}

TEST(mesh_has_a_limit_of_factors) {
    Factors f = {0}, full;
    for (int i = 0; i < MAX_FACTORS; i++) CHECK(factors_add(&f, i % 2 ? AXIS_X : AXIS_Y, 2));
    full = f;
    CHECK(!factors_add(&f, AXIS_Y, 2) && memcmp(&f, &full, sizeof f) == 0);
    CHECK(factors_add(&f, AXIS_X, 2) && f.factor[MAX_FACTORS - 1].size == 4); // it needs no room
    CHECK(factors_add(&f, AXIS_Y, 1) && f.n == MAX_FACTORS);
}

TEST(mesh_blocks_are_nested_first_axis_outermost) {
    Factors f = factors_of("d2.z3.x2");
    int seen[6] = {0};
    for (int rank = 0; rank < 12; rank++) {
        Mesh m = mesh_make(&f, rank);
        Axes a = axes_of("x.z");
        CHECK(mesh_blocks(&m, a) == 6);
        CHECK(mesh_block(&m, a) == m.coord[AXIS_X] * 3 + m.coord[AXIS_Z]);
        CHECK(mesh_block(&m, axes_of("z.x")) == m.coord[AXIS_Z] * 2 + m.coord[AXIS_X]);
        Mesh zero = mesh_make(&f, 0);
        CHECK(mesh_block_of(&zero, a, rank) == mesh_block(&m, a));
        seen[mesh_block(&m, a)]++;
        CHECK(mesh_blocks(&m, axes_none()) == 1 && mesh_block(&m, axes_none()) == 0);
    }
    for (int i = 0; i < 6; i++) CHECK(seen[i] == 2); // each block on both values of d
}

TEST(mesh_real_axes_are_those_that_cut) {
    Factors f = factors_of("d2.y3");
    Mesh m = mesh_make(&f, 0);
    char text[2 * N_AXES + 1];
    CHECK_STR(axes_print(mesh_real(&m, axes_of("y.z.d.x")), text), "y.d");
    CHECK_STR(axes_print(mesh_real(&m, axes_of("z.x")), text), "");
}

TEST(axes_texts_go_there_and_back) {
    static const char *const good[] = {"",    "d",     "z",     "x",       "y",
                                       "d.z", "d.z.x", "y.x.z", "x.y.d.z", "d.z.x.y"};
    for (EACH(g, good)) {
        Axes a;
        char text[2 * N_AXES + 1];
        CHECK(axes_parse(&a, *g));
        CHECK_STR(axes_print(a, text), *g);
    }
    static const char *const bad[] = {"a", "dz",  "d.",  ".d",        "d..z", "d.d",
                                      "D", "d z", "x,y", "d.z.x.y.d", " ",    "1"};
    for (EACH(b, bad)) {
        Axes a;
        if (axes_parse(&a, *b)) test_fail("\"%s\" is no axes", *b);
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

/* in[r]: rank r belongs to the group along a that `of` is in: it agrees with it in the other
 * axes. */
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

/* The i-th member above its base. */
static int placement_member(const Placement *g, int i) {
    int at = 0;
    for (int k = g->n - 1; k >= 0; i /= g->size[k--]) at += i % g->size[k] * g->stride[k];
    return at;
}

/* Ascending strides inwards would be another order, and two stretches that continue each other are
 * one. */
static bool placement_is_shortest(const Placement *g) {
    for (int k = 0; k < g->n; k++) {
        if (g->size[k] < 2 || g->stride[k] < 1) return false;
        if (k && g->stride[k - 1] <= g->size[k] * g->stride[k]) return false;
    }
    return true;
}

/* Two are equal if they differ in axes of size 1 alone. */
static bool placements_are_right(const Mesh *m) {
    Placement of[1 << N_AXES];
    int real = 0; // the axes of other sizes
    for (int axis = 0; axis < N_AXES; axis++) real |= (m->size[axis] > 1) << axis;
    for (int set = 0; set < 1 << N_AXES; set++) {
        Axes a = axes_none();
        for (int axis = 0; axis < N_AXES; axis++)
            if (set >> axis & 1) a = axes_join((Axes){1, {(uint8_t)axis}}, a);
        Placement g = of[set] = placement_of(m, a);
        for (int k = 0; k < set; k++)
            if (placement_equal(&of[k], &g) != ((k & real) == (set & real))) return false;
        if (!placement_is_shortest(&g) || placement_ranks(&g) != mesh_blocks(m, a)) return false;
        if (placement_extent(&g) != placement_member(&g, placement_ranks(&g) - 1)) return false;
        bool covered[RANKS_MAX] = {false};
        for (int base = 0; base < m->p; base++) {
            bool in[RANKS_MAX];
            if (covered[base]) continue; // a member of a group already seen
            members_by_coordinates(m, a, base, in);
            for (int i = 0; i < placement_ranks(&g); i++) {
                int rank = base + placement_member(&g, i);
                if (rank >= m->p || !in[rank] || covered[rank]) return false;
                covered[rank] = true;
            }
        }
    }
    return true;
}

TEST(placement_lists_the_ranks_that_agree_in_the_other_axes) {
    for (int i = 0; i < LISTS; i++) {
        Factors f = random_factors(i);
        Mesh m = mesh_make(&f, 0);
        if (!placements_are_right(&m)) test_fail("list %d", i);
    }
}
