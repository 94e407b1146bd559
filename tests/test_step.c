/* parallel/step: the program of a step, derived from the forward pass, and its listing. What it
 * sends is held against tests/theory.c in test_price.c, whose lists these are. */
#include <ctype.h>
#include <jansson.h>

#include "parallel/plan/cost.h"
#include "parallel/step/listing.h"
#include "parallel/step/passes.h"
#include "parallel/step/schedule.h"
#include "tests/mesh_run.h"
#include "tests/parsed.h"
#include "tests/test.h"

static ModelShape shape_of(const char *model, const Grid *g, Recompute r) {
    ModelShape s = mesh_shape(model, g);
    s.recompute = r;
    return s;
}

/* Collectives of one kind along x in one layer, forward and backward. */
static int collectives(const char *spec, OpKind kind, Phase phase) {
    Grid g = mesh_grid(spec, 0);
    ModelShape s = shape_of("layers=2,heads=4,channels=24,vocab=70", &g, RECOMPUTE_NONE);
    OWNED(program_free) Program p = program_passes(&s, PASS_DIFFERENTIATE, NULL);
    int n = 0;
    for (int i = 0; i < p.n_ops; i++)
        n += p.op[i].kind == kind && p.op[i].phase == phase && p.op[i].layer == 1 &&
             axes_has(p.op[i].axes, AXIS_X);
    return n;
}

/* Shoeybi et al. 2019: f and g, two all-reduces forward and two backward. Korthikanti et al. 2022:
 * each is a reduce-scatter and an all-gather instead. */
TEST(step_program_of_megatron_has_its_collectives) {
    for (int phase = PHASE_FORWARD; phase <= PHASE_BACKWARD; phase += PHASE_BACKWARD) {
        CHECK(collectives("x4", OP_ALL_REDUCE, (Phase)phase) == 2);
        CHECK(collectives("x4", OP_ALL_GATHER, (Phase)phase) == 0);
        CHECK(collectives("x4+sp", OP_ALL_REDUCE, (Phase)phase) == 0);
        CHECK(collectives("x4+sp", OP_ALL_GATHER, (Phase)phase) == 2);
        CHECK(collectives("x4+sp", OP_REDUCE_SCATTER, (Phase)phase) == 2);
    }
    CHECK(collectives("d4", OP_ALL_REDUCE, PHASE_BACKWARD) == 0); // at the end of the step
}

/* The listing of a program behind that pass, without costs. */
static char *list(const ModelShape *s, Pass last) {
    OWNED(program_free) Program p = program_passes(s, last, NULL);
    return PRINTED(listing_print(f, &(Listed){.p = p}));
}

/* Operations of forward of one layer, in order, without collectives and with their types. */
TEST(step_listing_shows_types_and_costs) {
    Grid g = mesh_grid("x2+sp", 0);
    ModelShape s = shape_of("layers=4,heads=4,channels=32,vocab=64", &g, RECOMPUTE_NONE);
    OWNED(test_mem_end) char *text = list(&s, PASS_RECOMPUTE);
    CHECK(strstr(text, "qkv[T, N/x]"));
    CHECK(strstr(text, "= all_gather x"));
    CHECK(strstr(text, "dh1[T, C] +x"));
    CHECK(strstr(text, "reco ~ h1[T, C]")); // gathered again for dw
    CHECK(strstr(text, " operations of layers 1-3\n") &&
          strstr(text, " operations of layers 0-2\n"));
    CHECK(strncmp(text, "a micro-batch on rank 0 of 2, layout x2+sp, overlap none\n", 56) == 0);
    CHECK(strstr(text, "\n  C          channels of the residual stream: 32\n"));
    CHECK(strstr(text, "dwte[V/x, C]") && !strstr(text, "dhead"));
    CHECK(strstr(text, "\n  ~          a collective\n") && !strstr(text, "\n  +          in"));
    CHECK(strstr(text, "\n  [T/x]      sharded: ") && strstr(text, "\n  [T] +x     partial: "));
    const char *attention = strstr(text, "= attention_backward");
    CHECK(attention && strcspn(attention, "'") < strcspn(attention, "\n")); // of its logs of sums
    CHECK(strstr(text, "\n  2Y         mean and sum") && !strstr(text, "\n  G          all"));
    CHECK(strstr(text, " x2[T/x, C] ") && strstr(text, " dx2[T/x, C] "));
}

/* Whatever its letters stand for; numbers speak for themselves. */
TEST(step_listing_explains_every_dimension) {
    for (int i = 0; i < 2 * N_MESH_MODELS; i++) {
        Grid g = mesh_grid("d2.x2.y2+sp+heads", 0);
        g.layout.exact = i % 2;
        ModelShape s = shape_of(mesh_models[i / 2], &g, RECOMPUTE_NONE);
        OWNED(program_free) Program p = program_passes(&s, PASS_SUMS, NULL);
        OWNED(test_mem_end) char *text = PRINTED(listing_print(f, &(Listed){.p = p}));
        for (int k = 0; k < p.n_ops; k++) {
            const Dist *d = &p.tensor[p.op[k].out].dist;
            for (int n = 0; n < d->n_dims; n++) {
                OWNED(test_mem_end) char *line = mem_printf("\n  %-9s  ", d->dim[n]);
                CHECK_SAYS(strcmp(d->dim[n], "2") == 0 || strstr(text, line),
                           "no line explains %s of %s", d->dim[n], d->name);
            }
        }
    }
}

/* Two chunks of the rank's 20 tokens. */
TEST(step_listing_shows_chunks_of_the_head_and_what_is_not_bf16) {
    Grid g = mesh_grid("d2.x2+sp", 0);
    ModelShape s = shape_of("layers=1,heads=4,channels=32,vocab=64", &g, RECOMPUTE_NONE);
    s.bf16 = true;
    OWNED(program_free) Program p = program_passes(&s, PASS_PANELS, NULL);
    program_chunk_head(&p, 24);
    program_sums(&p);
    OWNED(test_mem_end) char *text = PRINTED(listing_print(f, &(Listed){.p = p}));
    CHECK(strstr(text, " logits[T/d, V/x] ") && strstr(text, " logits[T/d, V/x] @24 "));
    CHECK(strstr(text, " losses[T/d] f32 @24 ") && strstr(text, " dlogits[T/d, V/x] @24 "));
    CHECK(strstr(text, " qkv[T/d, N/x]  ") && strstr(text, " dqkv.bias[N/x] +d f32 "));
    CHECK(strstr(text, "\n  f32        single precision; ") && !strstr(text, "f64"));
    CHECK(strstr(text, " dvectors[G] f32 ") && strstr(text, " dvectors.x[G] f32 "));
    CHECK(strstr(text, "\n  G          all gradients of a bucket\n")); // of several sizes
}

/* No order interleaves chunks: the memory of one chunk's logits suffices. */
TEST(step_head_of_chunks_runs_them_one_after_the_other) {
    static const char *const specs[] = {"x2", "d2.x2+sp", "x2.y2+stay=y"};
    for (EACH(spec, specs)) {
        Grid g = mesh_grid(*spec, 0);
        ModelShape s = shape_of("layers=1,heads=4,channels=32,vocab=64", &g, RECOMPUTE_NONE);
        OWNED(program_free) Program p = program_passes(&s, PASS_PANELS, NULL);
        program_chunk_head(&p, 8);
        s.overlap.bulk = true;
        program_order_nominal(&p);
        int begun = 0, ended = 0;
        for (int k = 0; k < p.n_ops; k++) {
            const Op *op = &p.op[k];
            if (op->layer >= 0 || !op_is_matmul(op)) continue;
            begun += op->kind == OP_MATMUL_BT, ended += op->kind == OP_MATMUL_AT;
            CHECK(begun - ended == 0 || begun - ended == 1);
            CHECK((op->phase == PHASE_BACKWARD) == (op->kind != OP_MATMUL_BT));
        }
        CHECK(begun > 1 && begun == ended);
    }
}

/* With --exact gradients are sums of panels of sequences, whatever the chunks are. */
TEST(step_head_of_exact_has_chunks_of_whole_sequences) {
    Grid g = mesh_grid("d1", 0);
    g.layout.exact = true;
    ModelShape s = shape_of("layers=1,heads=1,channels=8,seq=1000,vocab=50257", &g, RECOMPUTE_NONE);
    s.S = 1000, s.B = 4;
    OWNED(program_free) Program p = program_passes(&s, PASS_HEAD, NULL);
    int chunks = 0;
    for (int i = 0; i < p.n_ops; i++)
        chunks += p.op[i].kind == OP_MATMUL_BT && p.tensor[p.op[i].out].size[0] == 2000;
    CHECK(chunks == 2);
}

/* Blocks of 11 features of h1 and of 16 rows of the weight: four panels. */
TEST(step_listing_shows_panels_and_their_owners) {
    Grid g = mesh_grid("x2.y3+stay=y", 0);
    ModelShape s = shape_of("layers=1,heads=4,channels=32,vocab=64", &g, RECOMPUTE_NONE);
    OWNED(test_mem_end) char *text = list(&s, PASS_PANELS);
    CHECK(strstr(text, "h1[T/x, C[11:17]]                  = broadcast y[1]       %7@0,0 "));
    CHECK(strstr(text, "h1[T/x, C[17:22]]                  = broadcast y[1]       %7@0,6 "));
    CHECK(strstr(text, "qkv.weight[C[22:33], N/y]          = broadcast x[1]       qkv.weight@5 "));
    CHECK(strstr(text, "dh1[T/x, C[17:22]] @0,6            = copy y[1] "));
    CHECK(strstr(text, "dqkv.weight[C[11:17], N/y] @11     = accumulate x[0] "));
}

/* The type check compares these texts: none may be cut off. */
TEST(step_listing_names_panels_of_wide_models_to_the_end) {
    Grid g = mesh_grid("x2.y3+stay=y", 0);
    ModelShape s = shape_of("layers=1,heads=4,channels=400000,vocab=64", &g, RECOMPUTE_NONE);
    OWNED(test_mem_end) char *text = list(&s, PASS_PANELS);
    CHECK(strstr(text, "h1[T/x, C[133334:200001]]"));
}

/* What backward computes again of a layer: qkv and up; attn_out where x2 took no sum over x. */
TEST(step_recompute_full_keeps_the_residual_stream) {
    for (int i = 0; i < 2; i++) {
        Grid g = mesh_grid(i ? "x2" : "d2", 0);
        ModelShape s = shape_of("layers=3,heads=4,channels=24,vocab=70", &g, RECOMPUTE_FULL);
        OWNED(program_free) Program p = program_passes(&s, PASS_RECOMPUTE, NULL);
        int n = 0, down = 0;
        for (int k = 0; k < p.n_ops; k++) {
            if (p.op[k].phase != PHASE_RECOMPUTE || !op_is_matmul(&p.op[k])) continue;
            n++, down += strcmp(p.tensor[p.op[k].out].dist.name, "down") == 0;
        }
        CHECK(n == 3 * (i ? 2 : 3) && down == 0);
    }
}

/* Of qkv only what is in front of QK-norm is kept; without QK-norm rope is in place and kept. */
TEST(step_recompute_selective_keeps_qkv_once) {
    for (int norm = 0; norm < 2; norm++) {
        Grid g = mesh_grid("d1", 0);
        ModelShape s = shape_of(norm ? "llama,layers=2,heads=4,channels=24,vocab=70,qk_norm=1"
                                     : "llama,layers=2,heads=4,channels=24,vocab=70",
                                &g, RECOMPUTE_SELECTIVE);
        OWNED(program_free) Program p = program_passes(&s, PASS_RECOMPUTE, NULL);
        int again[N_OP_KINDS] = {0};
        for (int k = 0; k < p.n_ops; k++) again[p.op[k].kind] += p.op[k].phase == PHASE_RECOMPUTE;
        CHECK(again[OP_QK_NORM] == 2 * norm && again[OP_ROPE] == 2 * norm);
        CHECK(again[OP_MATMUL] == 0);
    }
}

/* Behind its sum a gradient is complete: of copied heads, and with --exact of floats again. */
TEST(step_listing_shows_gradients_that_are_complete) {
    Grid copies = mesh_grid("d2.x4", 0), exact = mesh_grid("d2.x2", 0);
    exact.layout.exact = true;
    ModelShape s =
        shape_of("llama,layers=1,heads=4,kv_heads=2,channels=32,vocab=64", &copies, RECOMPUTE_NONE);
    OWNED(test_mem_end) char *text = list(&s, PASS_SUMS);
    CHECK(strstr(text, "sums ~ dkv[G] +d                          = all_reduce x "));
    s = shape_of("layers=1,heads=4,channels=32,vocab=64", &exact, RECOMPUTE_NONE);
    OWNED(test_mem_end) char *floats = list(&s, PASS_SUMS);
    CHECK(strstr(floats, "sums   dqkv.weight[C, N/x]                = round "));
}

/* A list in its order, with what it takes on a cluster. */
static Listed timed(Program p) {
    Machine m = machine_of("cpu:4");
    Listed out = {.p = p, .costs = program_costs(&p, &m, false), .machine = "cpu"};
    out.time = mem_alloc((size_t)p.n_ops * sizeof *out.time);
    out.spent = program_play(&p, out.costs, true, out.time);
    return out;
}

/* The number of operations that a listing ends with; -1: its lines, which are numbered, and those
 * that are folded are not as many. */
static int listed(const char *text) {
    int n = 0, number;
    char total;
    for (; text; text = strchr(text, '\n'), text = text ? text + 1 : NULL)
        if (sscanf(text, " ... %d operation", &number) == 1)
            n += number;
        else if (sscanf(text, "%d operations of this %c", &number, &total) == 2)
            return number == n ? n : -1;
        else if (sscanf(text, "%d", &number) == 1 && number != n++)
            return -1;
    return -1;
}

TEST(step_listing_shows_the_order_and_what_runs_under_what) {
    Grid g = mesh_grid("z2.x2+sp", 0);
    ModelShape s = shape_of("layers=4,heads=4,channels=64,vocab=64", &g, RECOMPUTE_SELECTIVE);
    OWNED(program_free) Program p = program_passes(&s, PASS_SUMS, NULL);
    s.overlap.bulk = true;
    OWNED(listed_free) Listed list = timed(program_passes(&s, PASS_SCHEDULE, NULL));
    OWNED(test_mem_end) char *text = PRINTED(listing_print(f, &list));
    CHECK(strstr(text, "  under %") && strstr(text, "  waited ") &&
          strstr(text, "back + dx2[T/z.x, C]"));
    CHECK(test_count(text, " of layers 1-3\n") + test_count(text, " of layers 0-2\n") >= 2);
    CHECK(strstr(text, "\npredicted for 4 ranks on cpu: ") && strstr(text, " KFLOP"));
    CHECK(strstr(text, "\n  under      ") && strstr(text, "\n  waited     "));
    CHECK(listed(text) == p.n_ops);
    OWNED(test_mem_end) char *data = PRINTED(listing_json(f, &list, &(Listed){.costs = NULL}));
    json_error_t why;
    json_t *all = json_loads(data, 0, &why), *ops = json_object_get(all, "operations"), *op;
    CHECK(all && (int)json_array_size(ops) == p.n_ops);
    size_t i;
    double end = 0, waited = 0;
    int beside = 0;
    json_array_foreach(ops, i, op) {
        CHECK((size_t)json_integer_value(json_object_get(op, "n")) == i);
        double start = json_real_value(json_object_get(op, "start_ms"));
        beside += json_object_get(op, "under") != NULL;
        waited += json_real_value(json_object_get(op, "waited_ms"));
        if (!json_is_true(json_object_get(op, "fused")))
            end = fmax(end, start + json_real_value(json_object_get(op, "ms")));
    }
    double ms = 1e3 * (list.spent.compute + list.spent.exposed);
    CHECK_NEAR(end / ms, 1, 0.1); // kernels are slower while collectives run
    CHECK_NEAR(waited / (1e3 * list.spent.exposed), 1, 1e-6);
    CHECK(beside > 8 && beside == test_count(data, "\"under\""));
    json_decref(all);
}

/* The same as text. */
static char *timed_list(Program p) {
    OWNED(listed_free) Listed list = timed(p);
    return PRINTED(listing_print(f, &list));
}

/* "4.5 +0.3 ms" of a line: when it starts and what it takes. */
static bool times_of(const char *text, int line, double *start, double *takes) {
    const char *at = strstr(text, test_path("\n%4d ", line)),
               *end = at ? strchr(at + 1, '\n') : NULL;
    for (; at && at < end; at++)
        if (at[0] == ' ' && at[1] == '+' && isdigit(at[2])) {
            const char *from = at;
            while (from[-1] != ' ') from--;
            return sscanf(from, "%lf +%lf", start, takes) == 2;
        }
    return false;
}

/* Kernels that wait, each for a collective that arrives as the kernel starts; -1: one does not, or
 * the sums below the lines are others. */
static int waiting(const char *list) {
    int n = 0;
    double all, computing, waiting;
    const char *sums = strstr(list, "\npredicted for ");
    if (!sums || sscanf(strchr(sums, ':'), ": %lf ms, %lf computing, %lf waiting", &all, &computing,
                        &waiting) != 3)
        return -1;
    if (fabs(all - computing - waiting) > 2e-4) return -1;
    for (const char *t = list; (t = strstr(t, "  waited ")); t++) {
        const char *line = t;
        double waited, start, takes, begin, length;
        int by;
        while (line > list && line[-1] != '\n') line--;
        if (sscanf(t, "  waited %lf for %%%d", &waited, &by) != 2) continue; // the legend
        if (!times_of(list, atoi(line), &start, &takes) || !times_of(list, by, &begin, &length) ||
            fabs(begin + length - start) > 3e-4)
            return -1;
        n++, waiting -= waited;
    }
    return waiting > -1e-4 * (n + 1) ? n : -1; // the end of the list may wait as well
}

/* A collective that is waited for where it starts runs under nothing, not even the kernel that
 * makes its operand; and a kernel that waits for several names the one that comes last. */
TEST(step_listing_says_what_was_hidden_and_waited_for) {
    Grid g = mesh_grid("d2.x2+sp", 0);
    ModelShape s = shape_of("layers=1,heads=4,channels=64,vocab=64", &g, RECOMPUTE_NONE);
    OWNED(test_mem_end) char *none = timed_list(program_passes(&s, PASS_SCHEDULE, NULL));
    s.overlap.bulk = true;
    OWNED(test_mem_end) char *bulk = timed_list(program_passes(&s, PASS_SCHEDULE, NULL));
    OWNED(test_mem_end)
    char *clip = timed_list(program_end_passes(&s, PASS_SCHEDULE, NULL, false));
    CHECK(strstr(none, "  waited ") && !strstr(none, " ms  under "));
    CHECK(waiting(none) > 4 && waiting(bulk) > 2);
    CHECK(waiting(clip) == 1); // for the norm, behind the loss
}

/* As docs/overlap.md says: a collective in the kernel of its matmul is priced, and so listed, as
 * one before or behind it. */
TEST(step_listing_of_fused_collectives_hides_none) {
    Grid g = mesh_grid("x2+sp", 0);
    ModelShape s = shape_of("layers=1,heads=4,channels=64,vocab=64", &g, RECOMPUTE_NONE);
    s.overlap.fused = true;
    OWNED(listed_free) Listed list = timed(program_passes(&s, PASS_SCHEDULE, NULL));
    OWNED(test_mem_end) char *text = PRINTED(listing_print(f, &list));
    CHECK(strstr(text, " & ") && !strstr(text, " ms  under ") && waiting(text) > 4);
    CHECK_NEAR(list.spent.exposed / list.spent.sent, 1, 1e-9);
}

/* Every token has a place; on a device those of a micro-batch of GPT-2 are one chunk, and of more
 * all but the last have 132 tiles of 128 rows, once or several times. */
TEST(step_head_of_a_device_is_one_chunk_or_whole_waves) {
    enum { V = 50257 };
    CHECK(head_chunk(8192, V, false) < 2048);
    CHECK(head_chunk(8192, V, true) == 8192 && head_chunk(32768, V, true) == 32768);
    int64_t rows = head_chunk(65536, V, true);
    CHECK(rows == 2 * 132 * 128 && rows * head_ld(V) * 2 < (int64_t)4 << 30);
    for (int64_t wide = 1000; wide < 2000000; wide *= 3) {
        rows = head_chunk(65536, wide, true);
        CHECK(rows > 0 && rows <= 65536);
    }
}
