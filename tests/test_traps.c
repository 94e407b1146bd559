/* Mistakes that published implementations of tensor parallelism made, and the test that fails when
 * one of them is made here. Each was put into the code once, to see it fail.
 *
 *   what is trained: mesh_every_layout_of_1_to_8_ranks_trains_the_same_model
 *       norm with the statistics of its own features
 *       no sum of dw over the depth axis; tested at depth 1
 *       gradients of biases and norms not summed over all axes of tokens; bias added before the sum
 *       positions added before the sum
 *       gradients of copied key heads not added
 *       gradient norm counts copies as often as they are held
 *       tied head: one of its two gradients lost
 *       no gradient of a layer's input, or a partial one
 *       only squares and cubes; sizes that must divide
 *   variance as E[x^2] - E[x]^2
 *       norm_of_rows_in_parts_matches_double_for_any_team (mean 1000)
 *   gathered x and w kept for backward: 1/q^2 for 1/q^3
 *       trap_memory_of_every_preset_is_that_of_its_scheme
 *   attention on all ranks of the second axis
 *       the same: heads over x.y
 *   gathers over all ranks instead of along an axis
 *       trap_blocks_talk_along_one_axis_at_a_time
 *   head: sums of the size of the logits
 *       trap_no_bytes_of_activations_depend_on_the_vocabulary
 *   costs of K x N taken for N x K; broadcasts priced as if they were not pipelined
 *       count_of_a_block_is_the_closed_formula, price_sends_what_theory_predicts_on_every_layout
 */
#include "tests/parsed.h"
#include "tests/test.h"
#include "tests/theory.h"

#include "parallel/comm/ranks.h"
#include "tests/mesh_run.h"

/* --- what is sent --- */

/* Collectives of one micro-batch of rank 0 of a layout. */
static void micro_batch_of(Theory *c, const char *spec, const char *model) {
    Grid g = mesh_grid(spec, 0);
    ModelShape s = mesh_shape(model, &g);
    s.S = s.config.seq;
    c->n = c->elem_bytes = 0;
    theory_micro_batch(c, &s);
}

/* Three numbers of a token go over x.y, and nothing over more. */
TEST(trap_blocks_talk_along_one_axis_at_a_time) {
    static const char *const layouts[] = {"d2.z2.x2.y2+sp+heads", "d2.z2.x2.y2+stay=y",
                                          "d2.z2.x4.y2"};
    for (EACH(layout, layouts)) {
        Theory c;
        micro_batch_of(&c, *layout, "layers=2,heads=8,channels=64,seq=8,vocab=96");
        CHECK(c.n > 20);
        for (int k = 0; k < c.n; k++) {
            bool statistics = strcmp(c.row[k].what, "statistics of loss") == 0;
            if (strcmp(c.row[k].label, statistics ? "x.y" : "") != 0 && strlen(c.row[k].label) != 1)
                test_fail("%s: %s goes over %s", *layout, c.row[k].what, c.row[k].label);
        }
    }
}

TEST(trap_no_bytes_of_activations_depend_on_the_vocabulary) {
    static const char *const layouts[] = {"megatron:4", "megatron-sp:4", "atp:2x2", "optimus:2x2",
                                          "tesseract:2x2x2"};
    for (EACH(layout, layouts)) {
        Theory small, large;
        micro_batch_of(&small, *layout, "layers=1,heads=8,channels=64,seq=8,vocab=96");
        micro_batch_of(&large, *layout, "layers=1,heads=8,channels=64,seq=8,vocab=9600");
        CHECK(theory_bytes(&small) > 0);
        CHECK(theory_bytes(&small) == theory_bytes(&large)); // weights move in none of these
    }
}

/* --- what is held --- */

enum {
    MAX_RANKS = 16,
    L = 3,
    C = 64,
    HEADS = 8,
    V = 128,
    POSITIONS = 8,
    BATCH = 4
}; // they divide by all below

/* The denominators of a scheme on its mesh: of weights and optimizer; of what a further block keeps
 * for backward, which is of the residual stream (4 T C), of attention (4 T C: q k v, output) and of
 * the MLP (8 T C) with T the tokens of all ranks; and of tokens where the stream is stored, for
 * what is kept of each token. Beside them, of vectors along the stream and in the middle. */
typedef struct Scheme {
    const char *layout;
    int weights, optimizer, residual, attention, mlp, tokens, stream, middle;
} Scheme;

typedef struct Held {
    Scheme scheme;
    Layout l;
    Config config;
    int layers, bad;
    // bytes; acts: kept, and temporaries of a layer at a time; kept: by the formula
    double acts[MAX_RANKS], kept, work;
} Held;

/* Bytes between want floats and that with each of n arrays rounded up to ARENA_ALIGN. */
static bool holds(Held *h, int rank, const char *what, double bytes, double want, int n) {
    double least = 4 * want;
    bool ok = bytes >= least && bytes <= least + (double)n * (ARENA_ALIGN - 1);
    if (!ok)
        test_fail("%s, rank %d: %s take %.0f bytes, by the formula %.0f", h->scheme.layout, rank,
                  what, bytes, least);
    return ok;
}

static int plan_main(World *w, void *ctx) {
    Held *h = ctx;
    const Scheme *s = &h->scheme;
    Grid grid;
    OWNED(test_team_end) Team *team = team_create(1);
    grid_make(&grid, w, &h->l, &h->config);
    ModelShape shape = {
        .config = h->config, .B = BATCH, .S = POSITIONS, .training = true, .grid = &grid};
    OWNED(model_free) Model m;
    model_plan(&m, &shape, kernels_cpu(NULL), team);
    double here = BATCH * POSITIONS, T = here * mesh_blocks(&grid.mesh, axes_of("d.z"));
    double TC = T * C, layers = h->layers;
    double matrices = layers * 12 * C * C + V * C;
    // Biases and norms, 13 C of a block, are small: cut along the stream or in the middle, else
    // copied.
    double vectors =
        layers * C * (6.0 / s->stream + 7.0 / s->middle) + (2.0 * C + POSITIONS * C) / s->stream;
    double kept = layers * (4 * TC / s->residual + 4 * TC / s->attention + 8 * TC / s->mlp +
                            4 * T / s->tokens + T * HEADS / s->attention);
    int n = m.tensors.n, rank = world_rank(w);
    bool ok = holds(h, rank, "weights", (double)m.arena[ARENA_PARAMS].used,
                    matrices / s->weights + vectors, n) &&
              holds(h, rank, "optimizer", (double)m.arena[ARENA_OPTIMIZER].used,
                    2 * (matrices / s->optimizer + vectors), 2 * n);
    h->acts[rank] = (double)m.arena[ARENA_ACTS].used;
    if (!ok) __atomic_add_fetch(&h->bad, 1, __ATOMIC_RELAXED);
    if (rank == 0) h->work = (double)m.arena[ARENA_WORK].used, h->kept = kept;
    return 0;
}

static Held plan(const Scheme *s, int layers) {
    const char *model =
        test_path("layers=%d,heads=%d,channels=%d,seq=%d,vocab=%d", layers, HEADS, C, POSITIONS, V);
    Held h = {
        .scheme = *s, .l = layout_of(s->layout), .config = config_of(model), .layers = layers};
    ranks_run(layout_ranks(&h.l), plan_main, &h);
    return h;
}

TEST(trap_memory_of_every_preset_is_that_of_its_scheme) {
    static const Scheme schemes[] = {
        {"d1", 1, 1, 1, 1, 1, 1, 1, 1},
        {"dp:4", 1, 1, 4, 4, 4, 4, 1, 1},
        {"d4+zero1", 1, 4, 4, 4, 4, 4, 1, 1},
        {"fsdp:4", 4, 4, 4, 4, 4, 4, 1, 1},
        {"megatron:4", 4, 4, 1, 4, 4, 1, 1, 4},       // p; 1, p, p
        {"megatron-sp:4", 4, 4, 4, 4, 4, 4, 1, 4},    // p; p
        {"atp:4x2", 8, 8, 2, 8, 8, 1, 2, 8},          // p; d2, p, p
        {"tensor3d:2x4x2", 8, 8, 4, 16, 16, 2, 2, 8}, // the same, tokens over d
        {"axonn:2x2x2x2", 8, 8, 8, 16, 16, 4, 2, 4},  // Gr Gc Gd; Gc, p, p, each times d z
        {"optimus:2x2", 4, 4, 4, 4, 4, 2, 2, 2},      // q^2
        {"tesseract:2x2x2", 4, 4, 8, 8, 8, 4, 2, 2},  // q^2; d q^2
        {"cube:2", 8, 8, 8, 8, 8, 4, 2, 4},           // q^3, what is saved of x, too
    };
    for (EACH(s, schemes)) {
        Held h = plan(s, L), deeper = plan(s, 2 * L);
        CHECK(h.bad == 0);
        CHECK(deeper.bad == 0);
        CHECK(h.work == deeper.work);
        // what is gathered is gathered for one layer at a time: a further one holds what it keeps
        for (int r = 0; r < layout_ranks(&h.l); r++)
            CHECK(holds(&h, r, "activations of further layers", deeper.acts[r] - h.acts[r], h.kept,
                        12 * L));
    }
}
