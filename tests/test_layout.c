/* parallel/mesh/layout: SPECs, presets, and the three matmuls of each layer. */
#include "parallel/mesh/layout.h"
#include "tests/parsed.h"
#include "tests/test.h"

static bool same(const Layout *a, const Layout *b) {
    return memcmp(a->size, b->size, sizeof a->size) == 0 &&
           memcmp(&a->factors, &b->factors, sizeof a->factors) == 0 && a->sp == b->sp &&
           a->heads == b->heads && a->stay == b->stay && a->zero == b->zero;
}

/* All SPECs of three factors with sizes 1, 2 and 12, in all orders, with all words that go
 * together. */
TEST(layout_texts_go_there_and_back) {
    static const char *const words[] = {"", "+sp", "+heads", "+sp+heads", "+stay=y"};
    static const int sizes[] = {1, 2, 12};
    int n = 0;
    for (int code = 0; code < 4 * 4 * 4 * 27; code++) {
        int c = code, made = 1, at = 0;
        char spec[64] = "";
        for (int i = 0; i < 3; i++) {
            char letter = "dzxy"[c % 4];
            int size = sizes[c / 4 % 3];
            c /= 12;
            at +=
                snprintf(spec + at, sizeof spec - (size_t)at, "%s%c%d", i ? "." : "", letter, size);
            made *= size;
        }
        for (int w = 0; w < 5 * 4; w++) {
            char printed[64], again[64];
            const char *zero = w / 5 ? test_path("+zero%d", w / 5) : "";
            Layout l, back;
            CHECK(layout_parse(&l, test_path("%s%s%s", spec, words[w % 5], zero), made, NULL));
            CHECK(layout_ranks(&l) == made && l.zero == w / 5);
            CHECK(layout_parse(&back, layout_print(&l, printed), 0, NULL));
            CHECK(same(&l, &back));
            CHECK_STR(layout_print(&back, again), printed);
            n++;
        }
    }
    CHECK(n == 64 * 27 * 20);
}

TEST(layout_prints_what_is_cut_in_the_order_of_ranks) {
    // sixteen factors of 2^20 ranks, and all the flags
    static const char longest[] = "d16.z2.x2.y2.d2.z2.x2.y2.d2.z2.x2.y2.d2.z2.x2.y4+sp+heads+zero3";
    static const char *const rows[][2] = {
        {longest, longest},
        {"d2.z1.x4.y2+heads+zero1", "d2.x4.y2+heads+zero1"},
        {"x4.d2", "x4.d2"},
        {"y2.x3.z5.d7", "y2.x3.z5.d7"},
        {"d1", "d1"},
        {"x1.y1+sp", "d1+sp"},
        {"x2+heads+sp", "x2+sp+heads"},
        {"x2.y2+sp+stay=y", "x2.y2+stay=y"}, // stay says it already
        {"x2.y2.x2.y2", "x2.y2.x2.y2"},
        {"x2.y2.y3.d1.y2.x2+heads", "x2.y12.x2+heads"}, // neighbours of one axis are one
        {"x2.x2", "x4"},
        {"d1.x2.d1.x3.d1", "x6"},
        {"x2.y2.x2.y2.x2.y2.x2.y2.y2", "x2.y2.x2.y2.x2.y2.x2.y4"},
    };
    for (int i = 0; i < N_OF(rows); i++) {
        Layout l = layout_of(rows[i][0]);
        char text[64];
        CHECK_STR(layout_print(&l, text), rows[i][1]);
    }
    Layout l = layout_of(longest);
    CHECK(l.factors.n == MAX_FACTORS && layout_ranks(&l) == 1 << 20);
}

TEST(layout_order_is_the_order_of_ranks) {
    Layout l = layout_of("x2.d4.x3");
    Mesh m = mesh_make(&l.factors, 13);
    CHECK(l.size[AXIS_X] == 6 && l.size[AXIS_D] == 4 && m.p == 24);
    CHECK(m.coord[AXIS_X] == 1 * 3 + 1 && m.coord[AXIS_D] == 0);
}

TEST(layout_presets_are_the_schemes_of_the_literature) {
    static const struct {
        const char *preset;
        int p;
        const char *spec;
    } rows[] = {
        {"dp", 4, "d4"},
        {"fsdp", 4, "z4"},
        {"megatron", 4, "x4"},
        {"megatron-sp", 4, "x4+sp"},
        {"megatron", 1, "d1"},
        {"megatron:3", 0, "x3"},
        {"atp:4x2", 8, "x4.y2+heads"},
        {"tensor3d:2x4x2", 16, "d2.x4.y2+heads"},
        {"axonn:2x2x4x2", 32, "d2.z2.x4.y2+heads"},
        {"optimus:2x2", 4, "x2.y2+stay=y"},
        {"tesseract:2x3x3", 18, "d2.x3.y3+stay=y"},
        {"cube:2", 8, "z2.x2.y2+sp+heads"},
        {"fsdp+zero1", 4, "z4+zero1"},
        {"atp:4x2+sp+zero3", 8, "x4.y2+sp+heads+zero3"},
    };
    for (EACH(r, rows)) {
        Layout l;
        Err e = {""};
        char text[64];
        CHECK_SAYS(layout_parse(&l, r->preset, r->p, &e), "%s", e.text);
        CHECK_STR(layout_print(&l, text), r->spec);
    }
}

TEST(layout_mistakes_are_named_with_what_was_meant) {
    static const struct {
        const char *text;
        int p;
        const char *says;
    } rows[] = {
        {"", 4, "empty"},
        {"d2.x3", 4, "layout: d2.x3 makes 6 ranks, there are 4"},
        {"d1", 4, "layout: d1 makes 1 rank, there are 4"},
        {"x2", 1, "layout: x2 makes 2 ranks, there is 1"},
        {"cube:2", 4, "layout: cube:2 makes 8 ranks, there are 4"},
        {"megatorn", 4, "column 1: unknown preset \"megatorn\", did you mean \"megatron\"?"},
        {"megatron_sp", 4, "did you mean \"megatron-sp\"?"},
        {"optimsu:2x2", 4, "did you mean \"optimus\"?"},
        {"auto", 4, "unknown preset \"auto\""},
        {"q2.x2", 4, "column 1: expected an axis"},
        {"d2.q2", 4, "column 4: expected an axis"},
        {"d2.", 4, "column 4: expected an axis"},
        {".d2", 4, "column 1: expected an axis"},
        {"2", 4, "column 1: expected an axis"},
        {"d", 4, "column 2: expected a size"},
        {"d.x4", 4, "column 2: expected a size"},
        {"d2.x", 4, "column 5: expected a size"},
        {"d-2", 4, "column 2: expected a size"},
        {"d0", 4, "column 2: sizes are from 1"},
        {"d99999999999999999999", 4, "column 2: sizes are from 1"},
        {"d1000000.x1000000", 0, "has more than"},
        {"x1000000.x1000000", 0, "has more than"},
        {"d2.d2.d3", 4, "layout: d2.d2.d3 makes 12 ranks, there are 4"},
        {"x2.y2.x2.y2.x2.y2.x2.y2.x2.y2.x2.y2.x2.y2.x2.y2.x2", 0,
         "column 49: an order of ranks has at most 16 factors"},
        {"d2x2", 4, "column 3: expected . or +"},
        {"d2 x2", 4, "column 3: expected . or +"},
        {"x4+", 4, "column 4: expected a flag"},
        {"x4++sp", 4, "column 4: expected a flag"},
        {"x4+hedas", 4, "column 4: unknown flag \"hedas\", did you mean \"heads\"?"},
        {"x4+sp+stay=x", 4, "column 7: unknown flag \"stay=x\", did you mean \"stay=y\"?"},
        {"x4+zero4", 4, "did you mean \"zero1\"?"},
        {"x4+banana", 4, "unknown flag \"banana\" (flags are sp heads stay=y"},
        {"x4+sp+sp", 4, "column 7: sp given twice"},
        {"x4+zero1+zero3", 4, "column 10: one of zero1, zero2, zero3 is enough"},
        {"x2.y2+stay=y+heads", 4, "column 14: stay=y already shards every output over y"},
        {"optimus:2x2+heads", 4, "column 13: stay=y already shards every output over y"},
        {"atp", 8, "column 4: atp takes 2 sizes: atp:2x2"},
        {"axonn", 8, "axonn takes 4 sizes: axonn:2x2x2x2"},
        {"cube", 8, "column 5: cube takes 1 size: cube:2"},
        {"atp:4", 8, "column 4: atp takes 2 sizes, not 1"},
        {"atp:4x2x2", 8, "column 4: atp takes 2 sizes, not 3"},
        {"atp:4x2x2x2x2", 8, "atp takes 2 sizes"},
        {"atp:4x", 8, "column 7: expected a size"},
        {"atp:4,2", 8, "column 6: sizes are joined by x"},
        {"megatron", 0, "column 9: give the number of ranks: megatron:4"},
    };
    for (EACH(r, rows)) {
        Layout l;
        Err e = {""};
        CHECK_REFUSED(layout_parse(&l, r->text, r->p, &e), e, r->says);
    }
}

/* The table in layout.h, row by row. */
TEST(layout_linear_has_the_types_of_every_layer) {
    static const struct {
        const char *spec;
        LinearKind kind;
        const char *x, *w, *x_stored, *w_stored, *y_stored;
    } rows[] = {
        {"d2.z3.x4.y5", LINEAR_QKV, "x[T/d.z, C/y]", "w[C/y, N/x]", "x[T/d.z, C/y]", "w[C/y, N/x]",
         "y[T/d.z, N/x]"},
        {"d2.z3.x4.y5", LINEAR_DOWN, "x[T/d.z, K/x]", "w[K/x, C/y]", "x[T/d.z, K/x]", "w[K/x, C/y]",
         "y[T/d.z, C/y]"},
        {"d2.z3.x4.y5", LINEAR_HEAD, "x[T/d.z, C]", "w[V/x.y, C]", "x[T/d.z, C/y]", "w[V/x.y, C]",
         "y[T/d.z, V/x.y]"},
        {"d2.x4.y5+sp+heads", LINEAR_UP, "x[T/d, C/y]", "w[C/y, N/x]", "x[T/d.x, C/y]",
         "w[C/y, N/x]", "y[T/d, N/x.y]"},
        {"d2.x4.y5+sp+heads", LINEAR_ATTN_OUT, "x[T/d, K/x]", "w[K/x, C/y]", "x[T/d, K/x.y]",
         "w[K/x, C/y]", "y[T/d.x, C/y]"},
        {"d2.x4.y5+sp", LINEAR_HEAD, "x[T/d, C]", "w[V/x.y, C]", "x[T/d.x, C/y]", "w[V/x.y, C]",
         "y[T/d, V/x.y]"},
        {"d2.x3.y3+stay=y", LINEAR_QKV, "x[T/d.x, C]", "w[C, N/y]", "x[T/d.x, C/y]", "w[C/x, N/y]",
         "y[T/d.x, N/y]"},
        {"d2.x3.y3+stay=y", LINEAR_DOWN, "x[T/d.x, K]", "w[K, C/y]", "x[T/d.x, K/y]", "w[K/x, C/y]",
         "y[T/d.x, C/y]"},
        {"x3", LINEAR_QKV, "x[T, C]", "w[C, N/x]", "x[T, C]", "w[C, N/x]", "y[T, N/x]"},
        {"d1", LINEAR_UP, "x[T, C]", "w[C, N]", "x[T, C]", "w[C, N]", "y[T, N]"},
    };
    for (EACH(r, rows)) {
        Layout l = layout_of(r->spec);
        LinearDist d = layout_linear(&l, r->kind);
        char t[DIST_TEXT];
        CHECK_STR(dist_print(&d.x, t), r->x);
        CHECK_STR(dist_print(&d.w, t), r->w);
        CHECK_STR(dist_print(&d.x_stored, t), r->x_stored);
        CHECK_STR(dist_print(&d.w_stored, t), r->w_stored);
        CHECK_STR(dist_print(&d.y_stored, t), r->y_stored);
    }
}

TEST(layout_zero_stores_over_d_what_its_number_says) {
    static const char *const rows[][4] = {
        {"d2.z2", "z", "z", "z"},           {"d2.z2+zero1", "z", "z", "z.d"},
        {"d2.z2+zero2", "z", "z.d", "z.d"}, {"d2.z2+zero3", "z.d", "z.d", "z.d"},
        {"d2+zero3", "d", "d", "d"},        {"x2+zero3", "", "", ""},
    };
    for (int i = 0; i < N_OF(rows); i++) {
        Layout l = layout_of(rows[i][0]);
        char text[2 * N_AXES + 1];
        CHECK_STR(axes_print(layout_store(&l, STORE_PARAM), text), rows[i][1]);
        CHECK_STR(axes_print(layout_store(&l, STORE_GRAD), text), rows[i][2]);
        CHECK_STR(axes_print(layout_store(&l, STORE_MOMENTS), text), rows[i][3]);
    }
}

TEST(layout_one_is_one_rank) {
    Layout l = layout_one(), parsed = layout_of("d1");
    CHECK(layout_ranks(&l) == 1);
    CHECK(same(&l, &parsed));
}

/* --- orders ---------------------------------------------------------------------------------- */

TEST(layout_orders_of_small_meshes_can_be_listed) {
    static const struct {
        const char *spec;
        int unit[2];
        const char *orders;
    } rows[] = {
        {"d1", {8}, "d1"},
        {"x8", {4}, "x8"},
        {"y2.x2", {4}, "x2.y2"}, // the tile is the whole mesh
        {"y4.x4+sp", {0}, "x4.y4+sp"},
        {"x4.y4", {2}, "y4.x4 x4.y4"},
        {"x4.y4", {3}, "x4.y4"}, // 3 does not divide 16
        {"x4.y4", {4}, "y4.x4 x2.y2.x2.y2 x4.y4"},
        {"x4.y4", {2, 4}, "y4.x4 x2.y4.x2 y2.x4.y2 x4.y4"},
        {"x3.y2.z5", {6}, "z5.x3.y2"},
        {"d4.x2", {2}, "x2.d4 d4.x2"},
        {"d3.y6", {9}, "y2.d3.y3"},
        {"d2.z2.x2", {4}, "x2.d2.z2 z2.d2.x2 d2.z2.x2"},
    };
    for (EACH(r, rows)) {
        Layout l = layout_of(r->spec);
        char all[1024] = "";
        int n;
        OWNED(test_mem_end)
        Layout *out = layout_orders(&l, r->unit, r->unit[1] ? 2 : 1, &n);
        for (int k = 0; k < n; k++) {
            size_t at = strlen(all);
            char spec[64];
            snprintf(all + at, sizeof all - at, "%s%s", k ? " " : "", layout_print(&out[k], spec));
        }
        CHECK_STR(all, r->orders);
    }
}

/* How many ranks of each axis the first unit holds. */
static void tile_of(const Layout *l, int unit, int tile[N_AXES]) {
    Mesh m = mesh_make(&l->factors, 0);
    int coord[N_AXES];
    for (int axis = 0; axis < N_AXES; axis++) tile[axis] = 1;
    for (int rank = 0; rank < unit; rank++) {
        mesh_coords(&m, rank, coord);
        for (int axis = 0; axis < N_AXES; axis++)
            if (coord[axis] >= tile[axis]) tile[axis] = coord[axis] + 1;
    }
}

/* Every way to write the unit as a tile is there, once. */
static bool are_right(const Layout *l, int unit, const Layout *out, int n) {
    int tiles = 0, p = layout_ranks(l);
    bool fills = unit > 1 && unit < p && p % unit == 0;
    for (int d = 1; d <= unit; d++)
        for (int z = 1; z <= unit; z++)
            for (int x = 1; x <= unit; x++)
                for (int y = 1; y <= unit; y++)
                    tiles += d * z * x * y == unit && l->size[AXIS_D] % d == 0 &&
                             l->size[AXIS_Z] % z == 0 && l->size[AXIS_X] % x == 0 &&
                             l->size[AXIS_Y] % y == 0;
    if (n != (fills ? tiles : 1)) return false;
    for (int i = 0; i < n; i++) {
        char spec[64];
        Layout back;
        int a[N_AXES], b[N_AXES];
        if (!layout_parse(&back, layout_print(&out[i], spec), p, NULL)) return false;
        if (!same(&back, &out[i]) || memcmp(back.size, l->size, sizeof back.size) != 0)
            return false;
        if (back.sp != l->sp || back.heads != l->heads || back.zero != l->zero) return false;
        tile_of(&back, unit < p ? unit : p, a);
        if (fills && a[0] * a[1] * a[2] * a[3] != unit) return false;
        for (int k = 0; fills && k < i; k++) {
            tile_of(&out[k], unit, b);
            if (memcmp(a, b, sizeof a) == 0) return false;
        }
    }
    return true;
}

static bool orders_are_right(const Layout *l, int unit) {
    int n;
    OWNED(test_mem_end) Layout *out = layout_orders(l, &unit, 1, &n);
    bool right = are_right(l, unit, out, n);
    return right;
}

/* In how many ways units that lie in each other, each of ratio[i] of those inside, hold so many
 * ranks of each axis. */
static int64_t ways(const int left[N_AXES], const int *ratio, int n) {
    int64_t all = 0;
    if (n == 0) return 1;
    for (int d = 1; d <= ratio[0]; d++)
        for (int z = 1; d * z <= ratio[0]; z++)
            for (int x = 1; d * z * x <= ratio[0]; x++) {
                int y = ratio[0] / (d * z * x), tile[N_AXES] = {d, z, x, y}, rest[N_AXES];
                bool fits = d * z * x * y == ratio[0];
                for (int i = 0; i < N_AXES; i++)
                    fits = fits && left[i] % tile[i] == 0, rest[i] = left[i] / tile[i];
                if (fits) all += ways(rest, ratio + 1, n - 1);
            }
    return all;
}

static int by_bytes(const void *a, const void *b) {
    return memcmp(a, b, sizeof(Layout));
}

TEST(layout_orders_of_units_in_units_are_all_there_and_can_be_read_back) {
    static const struct {
        const char *spec;
        int ratio[3], n;
        int most; // factors, or more
    } rows[] = {{"d8.z8.x4.y4", {8, 8}, 2, 9},
                {"d4.z4.x8.y8", {4, 2, 8}, 3, 10},
                {"d16.z16.x8.y8+sp+heads+zero3", {8, 8, 8}, 3, 12}};
    for (EACH(r, rows)) {
        Layout l = layout_of(r->spec);
        int unit[3], n, most = 0;
        for (int k = 0; k < r->n; k++) unit[k] = (k ? unit[k - 1] : 1) * r->ratio[k];
        OWNED(test_mem_end) Layout *out = layout_orders(&l, unit, r->n, &n);
        CHECK(n > 128 && n == ways(l.size, r->ratio, r->n));
        for (int k = 0; k < n; k++) {
            char spec[64];
            Layout back;
            CHECK(layout_parse(&back, layout_print(&out[k], spec), layout_ranks(&l), NULL));
            CHECK(same(&back, &out[k]) && memcmp(back.size, l.size, sizeof l.size) == 0);
            if (out[k].factors.n > most) most = out[k].factors.n;
        }
        CHECK(most >= r->most);
        qsort(out, (size_t)n, sizeof *out, by_bytes);
        for (int k = 1; k < n; k++) CHECK(by_bytes(&out[k - 1], &out[k]) != 0);
    }
}

TEST(layout_orders_are_all_the_tiles_that_fill_a_unit) {
    static const int sizes[] = {1, 2, 4, 6};
    for (int code = 0; code < 256; code++)
        for (int unit = 0; unit <= 12; unit++) {
            const char *spec =
                test_path("d%d.z%d.x%d.y%d+sp+heads+zero2", sizes[code & 3], sizes[code >> 2 & 3],
                          sizes[code >> 4 & 3], sizes[code >> 6]);
            Layout l = layout_of(spec);
            if (!orders_are_right(&l, unit)) test_fail("%s, units of %d", spec, unit);
        }
}
