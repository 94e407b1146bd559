/* Every layout trains the same model as one rank: losses, gradient norms, weights, from the same
 * start. What a step sends and holds is what its price predicts. */
#include "tests/test.h"

#include "base/debug.h"
#include "tests/mesh_run.h"
#include "tests/parsed.h"

enum { SEQUENCES = 5 };

/* Sweeps do not count what they have tried: this is how much it is. */
TEST(mesh_layouts_and_samples_of_them_are_so_many) {
    int n[9] = {0}, all = 0, sample = 0, thin = 0;
    for (EACH_LAYOUT(l, 1, 8)) {
        Layout layout = layout_of(l.spec);
        CHECK(layout_ranks(&layout) == l.ranks && l.number == all++);
        n[l.ranks]++;
        sample += mesh_sampled(l.number, 0), thin += mesh_sampled_thinly(l.number);
    }
    CHECK(n[1] == 1 && n[2] == 11 && n[4] == 50 && n[6] == 89 && n[8] == 138);
    CHECK(all == 322 && sample > all / (BASE_DEBUG ? 93 : 4) && thin > all / (BASE_DEBUG ? 93 : 4));
}

/* What another order of the same sums makes of a run on one rank: the largest of some reorderings,
 * by smaller micro-batches and by narrower vectors. */
static MeshDiff reordering(const char *model, const MeshRun *one) {
    MeshDiff worst = {0};
    const char *const *sets = kernels_cpu_sets();
    for (int set = 0; sets[set]; set++)
        for (int micro = 1; micro <= 3; micro++) {
            OWNED(mesh_run_free)
            MeshRun r = {
                .model = model, .layout = "d1", .sequences = SEQUENCES, .S = 4, .micro = micro};
            r.kernels = sets[set], r.steps = one->steps;
            mesh_run(&r);
            MeshDiff d = mesh_diff(&r, one);
            worst.loss = fmax(worst.loss, d.loss), worst.norm = fmax(worst.norm, d.norm);
            worst.weights = fmax(worst.weights, d.weights);
        }
    return worst;
}

typedef struct Compare {
    const char *model;
    MeshRun one;
    MeshDiff bound; // 10 times what reordering gives
    int n, bad;
} Compare;

static void compare(const char *spec, Compare *c) {
    OWNED(mesh_run_free)
    MeshRun r = {.model = c->model, .layout = spec, .sequences = SEQUENCES, .S = 4};
    r.micro = c->n % 3, r.recompute = (Recompute)(c->n / 3 % 3), r.priced = true;
    r.steps = c->one.steps;
    mesh_run(&r);
    c->n++;
    c->bad += r.unpredicted;
    if (memcmp(r.start, c->one.start, (size_t)r.n_params * sizeof *r.start) != 0)
        c->bad++, printf("    %s starts from other weights on %s\n", c->model, spec);
    c->bad += !mesh_near(&r, &c->one, c->bound);
}

static Compare comparison(int number, int steps) {
    Compare c = {.model = mesh_models[number]};
    c.one = (MeshRun){.model = c.model, .layout = "d1", .sequences = SEQUENCES, .S = 4};
    c.one.steps = steps;
    mesh_run(&c.one);
    MeshDiff d = reordering(c.model, &c.one);
    if (!(d.loss < 1e-6 && d.norm < 1e-5 && d.weights < 1e-4)) // micro-batches that are not added
        test_fail("%s: by another order of sums losses differ by %.2g, norms %.2g, weights %.2g",
                  c.model, d.loss, d.norm, d.weights);
    // A reordering may hit the same bits by chance in so few numbers: at least a unit or two in the
    // last place.
    c.bound =
        (MeshDiff){10 * fmax(d.loss, 6e-8), 10 * fmax(d.norm, 2e-7), 10 * fmax(d.weights, 1e-6)};
    return c;
}

TEST(mesh_every_layout_of_1_to_8_ranks_trains_the_same_model) {
    for (int i = 0; i < N_MESH_MODELS; i++) {
        Compare c = comparison(i, mesh_sweep_steps());
        for (EACH_LAYOUT(l, 1, 8))
            if (mesh_sampled(l.number, i)) compare(l.spec, &c);
        mesh_run_free(&c.one);
        CHECK(c.n > (BASE_DEBUG ? 2 : 100));
        CHECK(c.bad == 0);
    }
}

/* More ranks, primes among them, and axes in other orders: where the ranks of a group are must not
 * matter. More steps as well. */
static const char *const others[] = {"x11", "z13", "x16+sp", "y9", "d4.x4", "d3.z3", "x5.y3+heads",
                                     "y2.x2.d3", "x3.d2.z2", "z2.y3.x2+sp+heads", "y4.x3+stay=y",
                                     "x2.d2.y2.z2", "y2.z2.x2.d2+sp+heads+zero1", "z7.d2+zero3",
                                     // tiles: an axis comes again further in
                                     "x2.d2.x2", "x2.y2.x2+heads", "y2.x2.y2+sp", "y2.x2.y2+stay=y",
                                     "d2.z2.d2.z2+zero3", "x2.y2.x2.y2+sp+heads",
                                     // sp without x
                                     "d3+sp", "y2.z2+sp",
                                     // parts of a tied table's two gradients that have padding
                                     "d3.y2+zero1"};

TEST(mesh_of_up_to_16_ranks_in_any_order_of_axes_trains_the_same_model) {
    Compare c = comparison(0, MESH_STEPS);
    OWNED(mesh_run_free)
    MeshRun exact = {
        .model = mesh_models[0], .layout = "d1", .sequences = SEQUENCES, .S = 4, .exact = true};
    mesh_run(&exact);
    for (int i = 0; i < N_OF(others); i += BASE_DEBUG ? (test_long() ? 5 : 8) : 1) {
        OWNED(mesh_run_free)
        MeshRun r = {.model = mesh_models[0],
                     .layout = others[i],
                     .sequences = SEQUENCES,
                     .S = 4,
                     .exact = true,
                     .priced = true};
        compare(others[i], &c);
        mesh_run(&r);
        c.bad += !r.agreed || memcmp(r.loss, exact.loss, sizeof r.loss) != 0 || r.unpredicted;
    }
    mesh_run_free(&c.one);
    CHECK(c.n > 0 && c.bad == 0);
}

/* ---- --exact ---- */

static MeshRun exact_on(const char *model, const char *layout, int64_t micro, Recompute recompute) {
    MeshRun r = {.model = model, .layout = layout, .sequences = SEQUENCES, .S = 4, .micro = micro};
    r.exact = true, r.recompute = recompute, r.steps = mesh_sweep_steps();
    mesh_run(&r);
    return r;
}

TEST(mesh_exact_every_layout_of_1_to_8_ranks_gives_the_same_bits) {
    for (int i = 0; i < N_MESH_MODELS; i++) {
        Compare c = comparison(i, mesh_sweep_steps());
        OWNED(mesh_run_free) MeshRun plain = c.one;
        c.one = exact_on(mesh_models[i], "d1", 0, RECOMPUTE_NONE);
        MeshDiff d = mesh_diff(&c.one, &plain); // and it is the same model
        CHECK(d.loss <= c.bound.loss && d.norm <= c.bound.norm && d.weights <= c.bound.weights);
        // every layout with some other micro-batch and recompute: none of it may matter
        for (EACH_LAYOUT(l, 1, 8)) {
            if (!mesh_sampled(l.number, i)) continue;
            OWNED(mesh_run_free)
            MeshRun r = exact_on(c.model, l.spec, c.n % 4, (Recompute)(c.n % 3));
            c.bad += !mesh_near(&r, &c.one, (MeshDiff){0, 0, 0});
            c.n++;
        }
        mesh_run_free(&c.one);
        CHECK(c.n > (BASE_DEBUG ? 2 : 100));
        CHECK(c.bad == 0);
    }
}

static const char wide[] = "layers=1,heads=1,channels=8,seq=60,vocab=50257";

/* So many logits that the head goes through them in chunks, fewer where the vocabulary is cut:
 * chunks end between sequences, or the panels of its gradient would be others. */
TEST(mesh_exact_chunks_of_the_head_give_the_same_bits) {
    static const char *const layouts[] = {"d1", "x2", "d2.y3"};
    SKIP_IF(BASE_DEBUG, "half a gigabyte of logits: nothing for a sanitizer");
    MeshRun r[3];
    for (int i = 0; i < 3; i++) {
        r[i] = (MeshRun){.model = wide, .layout = layouts[i]};
        r[i].sequences = 24, r[i].S = 60, r[i].exact = true, r[i].steps = 1;
        mesh_run(&r[i]);
        CHECK(i == 0 || mesh_same_bits(&r[i], &r[0]));
    }
    for (int i = 0; i < 3; i++) mesh_run_free(&r[i]);
}

/* The same with sums of floats, and of both halves of a micro-batch. */
TEST(mesh_chunks_of_the_head_train_what_the_whole_head_does) {
    SKIP_IF(BASE_DEBUG, "half a gigabyte of logits: nothing for a sanitizer");
    OWNED(mesh_run_free)
    MeshRun chunks = {
        .model = wide, .layout = "d1", .sequences = 48, .S = 60, .micro = 24, .steps = 1};
    OWNED(mesh_run_free) MeshRun whole = chunks, halves = chunks;
    whole.layout = "x2", halves.micro = 48, halves.overlap = "bulk+halves";
    mesh_run(&chunks), mesh_run(&whole), mesh_run(&halves);
    const MeshDiff most = {1e-6, 1e-5, 1e-4};
    CHECK(mesh_near(&chunks, &whole, most) && mesh_near(&halves, &whole, most));
}

/* Three ranks hold 2 of 4 heads each, of 4 channels, and 22 of 64 features or words: 6 heads and 66
 * in all. */
TEST(mesh_waste_is_the_share_of_padding) {
    Config c = config_of("layers=2,heads=4,channels=16,ffn=64,seq=4,vocab=64");
    Grid even = mesh_grid("d3.x2", 0), odd = mesh_grid("d2.x3", 0);
    double all = 64 + 2 * (48 + 16 + 64 + 64), held = 66 + 2 * (72 + 24 + 66 + 66);
    CHECK(shard_waste(&c, &even) == 0);
    CHECK_NEAR(shard_waste(&c, &odd), 1 - all / held, 1e-12);
}
