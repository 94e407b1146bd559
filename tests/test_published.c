/* What papers and codes say of volumes and bandwidths, against the trainer's own step, as
 * parallel/plan/price counts it, and against parallel/plan/machine.
 *
 * Volumes are elements that a rank receives for one block, forward and backward, in units of T h: T
 * tokens of all ranks, h channels, rho = h / T. The papers count matrix products alone: what norms
 * add over y and the gradients of vectors (a few numbers a token, a few thousand a layer) is left
 * out here, too. */
#include "parallel/plan/price.h"
#include "tests/parsed.h"
#include "tests/test.h"

enum { H = 2048, SEQUENCES = 64, MAX_ROWS = 128 }; // they divide by every mesh of up to 64 ranks

/* What a step receives. once: without what is gathered a second time in backward instead of being
 * kept. */
static double received(StepLists *t, bool once) {
    CollCount row[MAX_ROWS];
    int n = price_counts(t, row, MAX_ROWS);
    double bytes = 0;
    for (int i = 0; i < n && i < MAX_ROWS; i++) {
        const char *what = row[i].what;
        if (strstr(what, "norm") || strstr(what, "vectors")) continue;
        bool operand = strncmp(what, "x of", 4) == 0 || strncmp(what, "w of", 4) == 0;
        bool again = row[i].op == COLL_ALL_GATHER && operand && !strstr(what, "head");
        bytes += (double)row[i].bytes / (once && again ? 2 : 1);
    }
    return bytes;
}

static double volume_of(const char *spec, double rho, bool once) {
    static StepLists t;
    Layout l = layout_of(spec);
    double T = H / rho;
    PriceShape s = {.model.S = (int64_t)T / SEQUENCES, .batch = (int64_t)T, .whole = true};
    s.model.B = SEQUENCES / (l.size[AXIS_D] * l.size[AXIS_Z]);
    s.model.config = config_of("layers=3,heads=64,channels=2048,seq=4096,vocab=64");
    double layer = 0;
    for (int layers = 3; layers > 1; layers--) {
        s.model.config.layers = layers;
        price_lists(&t, &s, &l, 0, 0);
        layer = received(&t, once) - layer;
        price_free(&t);
    }
    return -layer / sizeof(float) / (T * H);
}

static double volume(const char *spec, double rho) {
    return volume_of(spec, rho, false);
}

/* The least volume of all factorizations of p: of x and y alone, or of d, x and y. */
static double least(int p, double rho, bool data) {
    double best = INFINITY;
    for (int d = 1; d <= (data ? p : 1); d++)
        for (int x = 1; x <= p / d; x++) {
            if (p % (d * x)) continue;
            best = fmin(best, volume(test_path("d%d.x%d.y%d", d, x, p / d / x), rho));
        }
    return best;
}

/* Tables are rounded to their last digit. */
static void same(const char *what, int p, double rho, double v, double published) {
    double digit = published >= 20 ? 0.1 : 0.01;
    if (!(fabs(v - published) <= 0.501 * digit)) // 1.125 is written as 1.12
        test_fail("%s, %d ranks, rho %g: %.4f T h, the table says %g", what, p, rho, v, published);
}

/* The comparison of all schemes that follows from their papers: Megatron (Shoeybi et al. 2019), ATP
 * (Cheng et al. 2023), Optimus (Xu et al. 2021), 3-D (Bian et al. 2021), data parallel, FSDP
 * (Rajbhandari et al. 2020), and the best of d x x x y. 0: there is no such mesh. */
static const struct {
    int p;
    double rho, megatron, best_2d, optimus, cube, dp, fsdp, best;
    const char *spec;
} table[] = {
    {4, 1 / 16., 6.0, 6.0, 5.81, 0, 1.12, 1.69, 1.12, "d4"},
    {4, 1, 6.0, 6.0, 14.25, 0, 18, 27, 6.0, "x4"},
    {8, 1 / 16., 7.0, 6.0, 0, 4.19, 1.31, 1.97, 1.31, "d8"},
    {8, 1 / 4., 7.0, 6.0, 0, 4.75, 5.25, 7.88, 3.25, "d4.x2"},
    {8, 1, 7.0, 6.0, 0, 7.0, 21, 31.5, 6.0, "x4.y2"},
    {16, 1 / 4., 7.5, 5.0, 5.62, 0, 5.62, 8.44, 2.63, "d4.x4"},
    {64, 1 / 16., 7.88, 3.0, 2.54, 1.57, 1.48, 2.21, 0.73, "d16.x4"},
    {64, 1 / 4., 7.88, 3.0, 3.28, 1.78, 5.91, 8.86, 1.41, "d8.x4.y2"},
    {64, 1, 7.88, 3.0, 6.23, 2.62, 23.6, 35.4, 2.38, "d2.x8.y4"},
};

TEST(published_volumes_are_those_of_the_step) {
    for (EACH(t, table)) {
        int p = t->p, q = p == 4 ? 2 : p == 16 ? 4 : 8, r = p == 8 ? 2 : 4;
        const struct {
            const char *spec;
            double published;
            bool once; // its paper's code keeps the gathered x and w from forward to backward; here
                       // they are gathered again
        } schemes[] = {{test_path("megatron:%d", p), t->megatron, false},
                       {test_path("dp:%d", p), t->dp, false},
                       {test_path("fsdp:%d", p), t->fsdp, false},
                       {test_path("optimus:%dx%d", q, q), t->optimus, false},
                       {test_path("cube:%d", r), t->cube, true}};
        for (EACH(s, schemes))
            if (s->published > 0)
                same(s->spec, p, t->rho, volume_of(s->spec, t->rho, s->once), s->published);
    }
}

TEST(published_best_meshes_are_the_best_of_the_step) {
    for (EACH(t, table)) {
        int p = t->p;
        double rho = t->rho, best = least(p, rho, true);
        same("best of x and y", p, rho, least(p, rho, false), t->best_2d);
        same("best of d, x and y", p, rho, best, t->best);
        same(t->spec, p, rho, volume(t->spec, rho), t->best);
    }
}

/* ATP's claim: what it sends falls with the number of ranks, where Megatron's does not. */
TEST(published_gains_of_two_axes_over_megatron) {
    static const struct {
        int p, gain; // per cent
        const char *spec;
    } rows[] = {{2, 0, "x2"},       {4, 0, "x4"},       {8, -14, "x4.y2"},
                {16, -33, "x8.y2"}, {32, -48, "x8.y4"}, {64, -62, "x16.y4"}};
    for (EACH(r, rows)) {
        double one = volume(test_path("megatron:%d", r->p), 1), two = least(r->p, 1, false);
        CHECK_NEAR(100 * (two / one - 1), r->gain, 0.5); // rounded to a per cent
        CHECK_NEAR(volume(r->spec, 1), two, 1e-9);
    }
    CHECK(volume("x16.y4", 1) < volume("x8.y2", 1) / 1.6);
    CHECK(volume("megatron:64", 1) > volume("megatron:16", 1));
}

/* SUMMA with outputs that stay gathers both operands of every matmul. The mesh of the same size
 * that exchanges roles, tokens cut by one axis and features by the other, holds as little and moves
 * less, whatever rho is. */
TEST(published_optimus_is_dominated_by_megatron_within_fsdp) {
    static const double rho[] = {1 / 64., 1 / 16., 1 / 4., 1};
    for (EACH(r, rho)) {
        double q = 2, part = (q - 1) / (q * q);
        CHECK_NEAR(volume("optimus:2x2", *r), part * (21 + 36 * *r), 0.005);
        CHECK_NEAR(volume("z2.x2+sp", *r), part * (10 + 36 * *r), 0.005);
    }
    // Tesseract is Optimus with data parallelism
    double one = 0.25 * (21 / 2. + 36) + 12 / 4.;
    CHECK_NEAR(volume("tesseract:2x2x2", 1), one, 0.005);
}

/* Bus bandwidth between nodes in GB/s, measured by AxoNN (Singh et al. 2024, their script
 * comm_model.py), by the number of ranks between neighbours of the group: the groups of a node
 * share what leaves it. */
TEST(published_bandwidth_between_nodes_falls_with_the_groups_that_share_a_node) {
    static const struct {
        const char *name;
        int node;
        double rank_rate;
        int inner[4];
        double gb[4];
    } rows[] = {{"Perlmutter", 4, 20e9, {1, 2, 4, 8}, {80, 40, 20, 20}},
                {"Frontier", 8, 5e9, {1, 2, 4, 8}, {40, 20, 10, 5}}};
    for (EACH(r, rows)) {
        int node = r->node;
        Machine m = {.ranks = 64 * node, .n_levels = 2, .algorithm = ALGORITHM_RING};
        m.level[0] = (Level){.ranks = node, .rank_rate = 100e9};
        m.level[1] =
            (Level){.ranks = m.ranks, .rank_rate = r->rank_rate, .port_rate = r->rank_rate * node};
        for (int k = 0; k < 4; k++) {
            int size = m.ranks / r->inner[k];
            CollGroup g = {.place = {1, {size}, {r->inner[k]}}, .size = size};
            Collective s = {.op = COLL_ALL_GATHER, .bytes = 1000000000};
            double bus = (double)s.bytes * (size - 1) / size / machine_collective(&m, &g, &s);
            CHECK_NEAR(bus / 1e9, r->gb[k], 0.03 * r->gb[k]); // they round to whole GB/s
        }
    }
}
