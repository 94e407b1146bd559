/* tests/theory: against the closed formulas; parallel/plan/count: its table. */
#include "parallel/plan/count.h"

#include "parallel/comm/ranks.h"
#include "tests/mesh_run.h"
#include "tests/page.h"
#include "tests/parsed.h"
#include "tests/shell.h"
#include "tests/theory.h"

static ModelShape shape_of(const char *model, const Grid *g, int64_t B, int64_t S) {
    ModelShape s = mesh_shape(model, g);
    s.B = B, s.S = S;
    return s;
}

/* --- the closed formulas --------------------------------------------------------------------- */

/* Numbers that a rank receives in one block, by hand: parallel/README.md, section 6. */
static double by_hand(const Layout *l, double T, double C) {
    double D = l->size[AXIS_D], Z = l->size[AXIS_Z], X = l->size[AXIS_X], Y = l->size[AXIS_Y];
    double P = D * Z * X * Y, W = 12 * C * C / (X * Y);                 // weights of a local block
    double w = l->zero == 3 ? Z * D : Z, dw = l->zero >= 2 ? Z * D : Z; // cut flat so many times
    double v = 2 * W * (w - 1) / w + W * (dw - 1) / dw;
    if (l->stay)
        v += 3 * (7 * T * C * (Y - 1) / P + W * (X - 1));
    else
        v += 2 * (4 * T * C * (X - 1) + 12 * T * C * (Y - 1)) / P;
    if (l->sp) v += 2 * T * C * (X - 1) / P;    // x of qkv and up once more
    if (l->heads) v += 5 * T * C * (Y - 1) / P; // x of attn_out and down once more
    double stream = l->sp || l->stay ? T / (D * Z * X) : T / (D * Z);
    return v + 2 * (2 * stream * (Y - 1) + 2 * 2 * stream * (Y - 1) / Y); // two norms
}

static void check_formula(const char *spec) {
    const int64_t B = 12, S = 10, C = 240; // they divide by all meshes of up to 8 ranks but 7
    Grid g = mesh_grid(spec, 0);
    ModelShape s = shape_of("layers=1,heads=120,channels=240,vocab=240", &g, B, S);
    Theory c = {.n = 0};
    theory_block(&c, &s);
    int64_t T = B * S * mesh_blocks(&g.mesh, axes_of("d.z"));
    double want = 4 * by_hand(&g.layout, (double)T, (double)C);
    // whole numbers below 2^53: exact but for the order of divisions
    if (fabs((double)theory_bytes(&c) - want) > 0.5)
        test_fail("%s: %lld bytes, by hand %.1f", spec, (long long)theory_bytes(&c), want);
}

TEST(count_of_a_block_is_the_closed_formula) {
    for (EACH_LAYOUT(l, 1, 6)) check_formula(l.spec);
    for (EACH_LAYOUT(l, 8, 8)) check_formula(l.spec);
}

/* Collectives of a block, and how many of each kind. */
TEST(count_of_collectives_is_what_the_literature_counts) {
    static const struct {
        const char *layout;
        int64_t all, ops[N_COLL_OPS]; // gather, scatter, all_reduce, broadcast, reduce
    } rows[] = {
        {"d1", 0, {0}},
        {"dp:4", 0, {0}},
        {"fsdp:4", 12, {8, 4, 0}},              // weights twice, gradients once
        {"megatron:4", 4, {0, 0, 4}},           // 2 forward, 2 backward
        {"megatron-sp:4", 10, {6, 4, 0}},       // each in two, and 2 gathers again
        {"x2.y2", 8, {0, 0, 8}},                // one for each matmul
        {"atp:2x2", 14, {6, 4, 4}},             // the wide tensor: in two, and 2 gathers again
        {"z2.x2.y2", 20, {8, 4, 8}},            // AxoNN: 8 sums, 8 gathers, 4 scatters
        {"cube:2", 32, {20, 12, 0}},            // 3 + 3 of each matmul, x and w again
        {"optimus:2x2", 48, {0, 0, 0, 32, 16}}, // 4 layers x 6 streams x 2 panels
    };
    for (EACH(r, rows)) {
        Grid g = mesh_grid(r->layout, 0);
        ModelShape s = shape_of("layers=1,heads=8,channels=64,vocab=64", &g, 4, 8);
        Theory c = {.n = 0};
        int64_t ops[N_COLL_OPS] = {0}, norms = 0;
        theory_block(&c, &s);
        for (int k = 0; k < c.n; k++) {
            bool norm = strstr(c.row[k].what, "norm") != NULL;
            if (norm) norms += c.row[k].calls;
            if (!norm) ops[c.row[k].op] += c.row[k].calls;
        }
        CHECK(norms == (g.mesh.size[AXIS_Y] > 1 ? 4 : 0));
        if (theory_calls(&c) - norms != r->all || memcmp(ops, r->ops, sizeof ops) != 0)
            test_fail("%s: %lld gathers, %lld scatters, %lld all_reduces", r->layout,
                      (long long)ops[0], (long long)ops[1], (long long)ops[2]);
    }
}

/* --- the table of parallel/README.md --------------------------------------------------------- */

typedef struct Cost {
    double calls, received, at_end, states, kept; // of one block; MiB
} Cost;

typedef struct Costs {
    Layout layout;
    int layers;
    Cost c; // of rank 0
} Costs;

static int cost_main(World *w, void *ctx) {
    const double mib = 1048576;
    Costs *of = ctx;
    ModelShape s = shape_of(test_path("d24,layers=%d", of->layers), NULL, 0, 1024);
    Grid g;
    grid_make(&g, w, &of->layout, &s.config);
    s.grid = &g, s.B = 8 / mesh_blocks(&g.mesh, axes_of("d.z"));
    Theory step = {.n = 0}, end = {.n = 0};
    OWNED(test_team_end) Team *team = team_create(1);
    OWNED(model_free) Model m;
    model_plan(&m, &s, kernels_cpu(NULL), team);
    theory_micro_batch(&step, &s);
    theory_update(&end, &s);
    if (g.mesh.rank == 0) {
        of->c = (Cost){(double)theory_calls(&step), (double)theory_bytes(&step) / mib,
                       (double)theory_bytes(&end) / mib, 0, (double)m.arena[ARENA_ACTS].used / mib};
        for (int i = ARENA_PARAMS; i <= ARENA_OPTIMIZER; i++)
            of->c.states += (double)m.arena[i].used / mib;
    }
    return 0;
}

/* Of a model of n layers: the difference of two is a block. */
static Cost cost_of(const char *layout, int layers) {
    Costs of = {.layout = layout_of(layout), .layers = layers};
    ranks_run(layout_ranks(&of.layout), cost_main, &of);
    return of.c;
}

TEST(costs_of_the_readme_are_what_the_code_counts) {
    static const char *const layouts[] = {
        "dp:8",        "d8+zero1", "fsdp:8",  "d4.x2",         "megatron:8", "megatron-sp:8",
        "d2.z2.x2+sp", "x4.y2",    "atp:4x2", "axonn:1x2x2x2", "cube:2",     "tesseract:2x2x2"};
    static Text t;
    double plain = 0;
    t.n = 0;
    text_put(
        &t, "                   a micro-batch       once a step   held by a rank, MiB\n"
            "                   calls  MiB received    MiB received   states  kept for backward\n");
    for (EACH(layout, layouts)) {
        Cost a = cost_of(*layout, 1), b = cost_of(*layout, 2);
        text_put(&t, "%-18s %5.0f %13.1f %15.1f %8.1f %18.1f\n", *layout, b.calls - a.calls,
                 b.received - a.received, b.at_end - a.at_end, b.states - a.states,
                 b.kept - a.kept);
        // heads: 5 T C (Y-1) / P more, x of attention output and down for their wgrad; T C is 32
        // MiB
        if (strcmp(*layout, "x4.y2") == 0) plain = b.received - a.received;
        if (strcmp(*layout, "atp:4x2") == 0)
            CHECK_NEAR(b.received - a.received - plain, 5 * 32.0 / 8, 1e-9);
    }
    CHECK(text_stands_in_readme(&t, "costs"));
}

/* --- the table ------------------------------------------------------------------------------- */

TEST(count_prints_both_and_what_nobody_predicted) {
    static const CollCount down = {"y of down", "x", COLL_ALL_REDUCE, 2, 1, 128, 0},
                           up = {"dx of up", "x", COLL_ALL_REDUCE, 2, 1, 128, 0},
                           surprise = {"surprise", "all", COLL_BROADCAST, 2, 3, 7, 0};
    OWNED(test_mem_end)
    char *text =
        PRINTED(count_print(f, 2, (CollCount[]){down, up}, 2, (CollCount[]){down, surprise}, 2));
    static const char *const rows[] = {
        "y of down                  all_reduce     x          2         1"
        "          128        1          128      0.00\n",
        "dx of up                   all_reduce     x          2         1"
        "          128        -            -         -\n",
        "surprise                   broadcast      all        2         -"
        "            -        3            7      0.00\n"};
    for (EACH(r, rows)) CHECK_SAYS(strstr(text, *r), "%s", text);
}

/* The program: every row of its table but those of its own groups (has a signal come?) is
 * predicted. */
static void check_count_of_a_run(const char *options) {
    SHELL_IN(shell_directory(4000), 0, "",
             "$BUILD/train_gpt --train train.bin --model "
             "layers=1,heads=4,channels=32,seq=16,vocab=61 --batch 288 --micro 3 "
             "--steps 2 --ranks 4 --layout z2.x2+sp --count --eval-every 0 %s",
             options);
    int equal = 0, other = 0;
    char *line = strstr(said, "\ncollective ");
    CHECK(line);
    for (line = strtok(line + 1, "\n"); (line = strtok(NULL, "\n"));) {
        long long predicted, predicted_bytes, counted, counted_bytes;
        bool whole = sscanf(line + 55, "%lld %lld %lld %lld", &predicted, &predicted_bytes,
                            &counted, &counted_bytes) == 4;
        if (strncmp(line, "all ", 4) == 0) continue;
        if (whole && predicted == counted && predicted_bytes == counted_bytes)
            equal++;
        else if (strncmp(line, "agreement ", 10) != 0)
            other++, printf("    %s\n", line);
    }
    CHECK(equal > 20 && other == 0);
}

TEST(count_of_a_run_is_printed_beside_what_was_predicted) {
    check_count_of_a_run("");
    check_count_of_a_run("--exact");
}
