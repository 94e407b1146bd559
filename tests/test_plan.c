/* parallel/plan: the choice and its explanation, on described clusters; the program's --plan. */
#include "parallel/plan/calibrate_parts.h"
#include "parallel/plan/plan.h"
#include "parallel/plan/quantity.h"
#include "parallel/plan/search_parts.h"

#include <jansson.h>

#include "layers/kernels.h"
#include "parallel/comm/ranks.h"
#include "parallel/train/options.h"
#include "tests/parsed.h"
#include "tests/shell.h"

static const char small[] = "layers=4,heads=8,channels=256,seq=128,vocab=1000";
static const char tiny[] = "layers=2,heads=4,channels=64,seq=64,vocab=257";

static Plan plan_of(const char *cluster, const char *model, int64_t sequences) {
    Plan p = {.error = 0.1};
    p.machine = machine_of(cluster);
    p.space = (Space){
        .p = p.machine.ranks, .free_micro = true, .free_recompute = true, .free_overlap = true};
    p.space.shape.model.config = config_of(model);
    p.space.shape.model.S = p.space.shape.model.config.seq;
    p.space.shape.batch = sequences * p.space.shape.model.S;
    p.space.shape.model.threads = p.machine.threads;
    p.space.shape.kernels = machine_kernels(&p.machine, false);
    return p;
}

/* The plan of a search that finds layouts. */
static Plan planned(const char *cluster, const char *model, int64_t sequences) {
    Plan p = plan_of(cluster, model, sequences);
    Err e;
    if (!plan_search(&p, &e)) die("%s", e.text);
    return p;
}

TEST(recompute_has_the_words_of_its_option) {
    Options o;
    char word[16], why[64];
    const Opt *row = opt_find(options_table(&o), "recompute");
    for (Recompute r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++) {
        CHECK(opt_set(row, recompute_name(r), why, sizeof why) && o.recompute == (int)r);
        CHECK_STR(opt_text(row, word, sizeof word), recompute_name(r));
    }
}

TEST(plan_chooses_the_fastest_that_fits_and_shows_every_scheme) {
    Plan p = planned("a100:2", "d24", 64);
    CHECK(p.n_best > 3 && p.n_presets >= 9);
    for (int i = 1; i < p.n_best; i++)
        CHECK(p.best[i - 1].price.seconds <= p.best[i].price.seconds);
    for (int i = 0; i < p.n_presets; i++)
        if (p.preset[i].fits) CHECK(p.preset[i].price.seconds >= p.best[0].price.seconds);
    const Price *c = &p.best[0].price; // a step is its parts
    CHECK(fabs(c->compute + c->exposed + c->waiting - c->seconds) <= 1e-9 * c->seconds);
}

/* The largest error of the plan's best choices beside prices of all layers; without_reprice: of the
 * prices by which the search finds them. */
static double price_error(const Plan *p, bool without_reprice) {
    double most = 0;
    for (int i = 0; i < p->n_best; i++) {
        Choice c = p->best[i];
        Price whole;
        PriceShape shape = candidate_shape(&p->space, &c);
        shape.whole = true;
        if (without_reprice) search_price(&p->space, &p->machine, &c);
        price_step(&shape, &c.layout, &p->machine, &whole);
        most = fmax(most, fabs(c.price.seconds / whole.seconds - 1));
    }
    return most;
}

TEST(plan_prices_its_choices_as_if_from_lists_of_all_layers) {
    static const char *const clusters[] = {"cpu:8", "consumer:2", "h100:4"};
    double without = 0;
    for (EACH(cluster, clusters)) {
        Plan p = planned(*cluster, "d12", 64);
        CHECK(price_error(&p, false) < 0.02);
        without = fmax(without, price_error(&p, true));
    }
    CHECK(without > 0.06);
}

/* By lists of two and three layers a dozen layouts are faster than some schemes; by those of five
 * and six layers they are slower. */
TEST(plan_takes_named_schemes_that_more_layers_show_to_be_faster) {
    Choice best[PLAN_TOP];
    Plan p = plan_of("cpu:8", "layers=24,heads=12,channels=192,seq=256,vocab=50257", 64);
    for (int l = 0; l < p.machine.n_levels; l++) p.machine.level[l].rank_rate *= 2;
    CHECK(plan_best(&p.space, &p.machine, best) == PLAN_TOP);
    CHECK(plan_search(&p, NULL) && p.n_best == PLAN_TOP);
    static const char *const first[] = {"d4.x2+stay=y", "d8", "d4.z2"};
    for (int i = 0; i < 3; i++) {
        char spec[64];
        CHECK_STR(layout_print(&p.best[i].layout, spec), first[i]);
        CHECK(i == 0 || p.best[i].price.seconds > p.best[i - 1].price.seconds);
    }
    for (int i = 2; i < PLAN_TOP; i++) CHECK(p.best[i].price.seconds == best[i - 2].price.seconds);
}

/* The fastest schemes do not. */
TEST(plan_takes_and_names_schemes_that_fit) {
    Plan p = planned("cpu:4", small, 32);
    p.machine.memory = p.best[0].price.memory / 5;
    CHECK(plan_search(&p, NULL) && p.best[0].fits);
    int faster = 0;
    for (int i = 0; i < p.n_presets; i++) {
        faster += p.preset[i].price.seconds < p.best[0].price.seconds;
        CHECK(!p.preset[i].fits || p.preset[i].price.seconds >= p.best[0].price.seconds);
    }
    OWNED(test_mem_end) char *text = PRINTED(plan_reasons(&p, f));
    CHECK(faster > 3 && strstr(text, "Same as preset megatron-sp.\n"));
    CHECK(strstr(text, "The best other named scheme, optimus (y4+stay=y)"));
}

TEST(plan_that_does_not_fit_says_what_comes_nearest) {
    Err e;
    Plan p = plan_of("consumer:1", "layers=96,heads=96,channels=12288,seq=2048,vocab=50257", 8);
    CHECK(!plan_search(&p, &e));
    CHECK(strstr(e.text, "no layout of 8 ranks fits into") && strstr(e.text, "the smallest, "));
    CHECK(p.count.candidates == p.count.too_large);
    CHECK(!plan_may_fit(&p)); // known before anything is measured
    p.space.free_overlap = false,
    p.space.shape.model.overlap = (Overlap){.bulk = true, .halves = true};
    CHECK(!plan_search(&p, &e) && strstr(e.text, ", micro 2, ")); // of one sequence there are none
    p = plan_of("consumer:1", tiny, 8);
    CHECK(plan_may_fit(&p) && plan_search(&p, &e));
}

TEST(plan_counts_who_is_within_its_error) {
    Plan p = {.n_best = 3, .error = 0.1};
    p.best[0].price.seconds = 1, p.best[1].price.seconds = 1.05, p.best[2].price.seconds = 1.2;
    CHECK(plan_close(&p) == 2);
    p.error = 0.25;
    CHECK(plan_close(&p) == 3);
    p.error = 0;
    CHECK(plan_close(&p) == 1);
}

TEST(plan_as_json_is_what_is_printed) {
    char spec[64], words[OVERLAP_TEXT];
    Plan p = planned("cpu:4", small, 32);
    OWNED(test_mem_end) char *json = PRINTED(plan_json(&p, f));
    OWNED(test_mem_end) char *table = PRINTED(plan_print(&p, f));
    json_t *all = json_loads(json, 0, NULL), *plan = json_object_get(all, "plan");
    CHECK(plan);
    CHECK_STR(json_string_value(json_object_get(plan, "layout")),
              layout_print(&p.best[0].layout, spec));
    CHECK_STR(json_string_value(json_object_get(plan, "overlap")),
              overlap_print(&p.best[0].overlap, words));
    CHECK(strstr(table, "Overlap bulk") && p.best[0].price.hidden > 0);
    CHECK(strstr(table, "without it the same step would take") && !strstr(table, ", 0 % longer"));
    CHECK(json_integer_value(json_object_get(plan, "ranks")) == 4);
    CHECK((int)json_array_size(json_object_get(plan, "candidates")) == p.n_best);
    CHECK((int)json_array_size(json_object_get(plan, "presets")) == p.n_presets);
    double ms = json_number_value(json_object_get(plan, "predicted_ms"));
    CHECK(fabs(ms - 1e3 * p.best[0].price.seconds) < 1e-6 * ms);
    CHECK(strstr(table, "chosen") && strstr(table, "runners-up") && strstr(table, "megatron-sp"));
    CHECK(strstr(table, "A step is ") && strstr(table, "named scheme"));
    CHECK(p.n_presets == N_SCHEMES - 1 && !strstr(table, "cube"));
    json_decref(all);
}

/* A description need not say how much memory a rank has. */
TEST(plan_of_unknown_memory_calls_nothing_too_large) {
    for (int i = 0; i < 2; i++) {
        Plan p = plan_of("cpu:1", tiny, 8);
        if (i == 0) p.machine.memory = 0;
        CHECK(plan_search(&p, NULL));
        OWNED(test_mem_end) char *table = PRINTED(plan_print(&p, f));
        CHECK((strstr(table, "too large") != NULL) == i);
    }
}

/* Of GPUs for whose capability there is no kernel. */
TEST(plan_says_whose_tiles_matmuls_are_priced_by) {
    static const char *const cluster[] = {"v100:1", "h100:1"};
    for (int i = 0; i < 2; i++) {
        Plan p = planned(cluster[i], tiny, 8);
        OWNED(test_mem_end) char *table = PRINTED(plan_print(&p, f));
        const char *says = strstr(table, "matmul_sm80.cu, which capability 7.0 does not run\n");
        CHECK((says != NULL) == (i == 0) && (i == 0 || !strstr(table, "does not run")));
    }
}

static bool pure(const Choice *c, int a, int b) {
    int others = 1;
    for (int i = 0; i < N_AXES; i++) others *= i == a || i == b ? 1 : c->layout.size[i];
    return others == 1;
}

/* Predictions may favour one kind of layout as a whole: near ties of that kind would not show
 * it. */
TEST(plan_tries_layouts_of_other_kinds_beside_near_ties) {
    Choice out[8];
    Plan p = planned("cpu:4", small, 32);
    p.error = 10;
    bool tensor = false, data = false;
    int n = plan_trials(&p, out, 3);
    CHECK(n == 3 && out[0].price.seconds == p.best[0].price.seconds);
    for (int i = 0; i < n; i++) {
        tensor |= pure(&out[i], AXIS_X, AXIS_Y);
        data |= pure(&out[i], AXIS_D, AXIS_Z);
    }
    CHECK(tensor && data);
    p.best[1] = out[1];
    n = plan_trials(&p, out, 8);
    for (int i = 1; i < n; i++) // nothing is tried twice
        for (int k = 1; k < i; k++) CHECK(out[i].price.seconds != out[k].price.seconds);
    p.error = 0.001; // predictions are that good
    for (int i = 1; i < plan_trials(&p, out, 3); i++)
        CHECK(out[i].price.seconds <= 1.003 * p.best[0].price.seconds);
    CHECK(plan_trials(&p, out, 0) == 0);
}

/* Both axes of a kind count. */
TEST(plan_tries_meshes_of_two_axes_as_their_kind) {
    static const char *const pairs[][2] = {{"d4", "x2.y2"}, {"x4", "d2.z2"}};
    for (int i = 0; i < 2; i++) {
        Plan p = {.error = 0.1, .n_best = 1, .n_presets = 1};
        Choice out[4];
        p.best[0].layout = layout_of(pairs[i][0]), p.preset[0].layout = layout_of(pairs[i][1]);
        p.best[0].price.seconds = 1, p.preset[0].price.seconds = 1.2, p.preset[0].fits = true;
        CHECK(plan_trials(&p, out, 4) == 2 && out[1].price.seconds == 1.2);
    }
}

/* What fused matmuls bring the first steps show, not a price. */
TEST(plan_tries_fused_matmuls_in_the_last_place) {
    Choice out[8];
    Plan p = planned("cpu:4", small, 32);
    for (int i = 0; i < p.n_best; i++) CHECK(!p.best[i].overlap.fused);
    p.error = 10;
    p.best[0].overlap = (Overlap){.bulk = true};
    p.best[0].layout.sp = true, p.best[0].layout.size[AXIS_X] = 4, p.best[0].layout.stay = false;
    CHECK(plan_trials(&p, out, 3) == 3 && !out[2].overlap.fused);
    p.space.fuses = true;
    CHECK(plan_trials(&p, out, 3) == 3 && !out[0].overlap.fused && !out[1].overlap.fused);
    CHECK(out[2].overlap.fused && out[2].overlap.bulk);
    CHECK(memcmp(&out[2].layout, &out[0].layout, sizeof(Layout)) == 0);
    CHECK(plan_trials(&p, out, 1) == 1 && !out[0].overlap.fused);
    p.best[0].overlap.ring = true; // whose matmuls are split
    for (int i = plan_trials(&p, out, 2); i-- > 0;)
        CHECK(!out[i].overlap.fused || !out[i].overlap.ring);
}

/* An error that no run has shown is not promised. */
TEST(plan_says_that_the_error_of_predictions_is_unknown) {
    Plan p = planned("cpu:4", small, 32);
    for (int known = 0; known < 2; known++) {
        p.error = known ? 0.07 : NAN;
        p.best[0].price.seconds = known ? 1 : 2.6 * 3600;
        OWNED(test_mem_end) char *text = PRINTED(plan_reasons(&p, f), plan_json(&p, f));
        CHECK((strstr(text, "is unknown: the ledger has no run.") == NULL) == known);
        CHECK((strstr(text, "\"error\":null") == NULL) == known);
        CHECK((strstr(text, "Half of the predictions here erred by less than 7 %.") != NULL) ==
              known);
        CHECK((strstr(text, "A step takes 2.6 hours") == NULL) == known);
    }
}

/* 27 ranks are a cube; replicas that train apart need an axis d. */
TEST(plan_has_the_named_schemes_that_the_ranks_allow) {
    Plan p = planned("cpu:27", tiny, 27);
    CHECK(p.n_presets == N_SCHEMES);
    p = plan_of("cpu:4", tiny, 8);
    p.space.shape.local_steps = true, p.space.shape.every = 4;
    CHECK(plan_search(&p, NULL) && p.n_presets == N_SCHEMES - 6);
    for (int i = 0; i < p.n_presets; i++) CHECK(p.preset[i].layout.size[AXIS_D] > 1);
}

TEST(quantity_more_is_a_percentage_or_a_factor) {
    char text[64];
    CHECK_STR(quantity_more(1.124, 0, text), "+12 %");
    CHECK_STR(quantity_more(0.95, 1, text), "-5.0 %");
    CHECK_STR(quantity_more(0.9991, 0, text), "+0 %");
    CHECK_STR(quantity_more(0.9991, 1, text), "-0.1 %");
    CHECK_STR(quantity_more(9.9, 0, text), "+890 %");
    CHECK_STR(quantity_more(12.4, 0, text), "12 x");
    CHECK_STR(quantity_more(34242, 0, text), "34242 x");
    CHECK_STR(quantity_more(3261818.85, 0, text), "3.3e6 x");
    CHECK_STR(quantity_more(1e12, 0, text), "1.0e12 x");
}

TEST(quantity_short_has_no_exponent) {
    char text[64];
    CHECK_STR(quantity_short(80e9, AS_BYTES, "GB", text), "80 GB");
    CHECK_STR(quantity_short(1023.9 * 0x1p30, AS_BYTES, "GiB", text), "1024 GiB");
    CHECK_STR(quantity_short(999.7e9, AS_BYTES, "GB", text), "1000 GB");
    CHECK_STR(quantity_short(4e16, AS_BYTES, "GB", text), "40000 TB");
    CHECK_STR(quantity_short(12345, AS_SECONDS, "s", text), "12345 s");
}

/* What candidates do is listed once, the largest rows of each, the heaviest first. */
TEST(plan_lists_what_its_candidates_do) {
    OWNED(plan_list_free) CalibrateList list;
    Plan p = plan_of("cpu:4", small, 32);
    plan_list(&p.space, &p.machine, &list);
    CHECK(list.n_works > 40 && list.n_collectives >= 2);
    CHECK(list.work[0].kind <= WORK_WGRAD); // a matmul
    CHECK(list.work[list.n_works - 1].kind > WORK_ATTENTION_BACKWARD);
    for (int i = 0; i < list.n_works; i++)
        for (int k = 0; k < i; k++) CHECK(!work_alike(&list.work[i], &list.work[k]));
    bool all = false;
    for (int i = 0; i < list.n_collectives; i++) all |= list.collective[i].group.size == 4;
    CHECK(all);
    int64_t rows = 0; // all tokens of the batch on one coordinate of d x z
    for (int i = 0; i < list.n_works; i++)
        if (list.work[i].kind == WORK_MATMUL && list.work[i].rows > rows) rows = list.work[i].rows;
    CHECK(rows == 32 * 128);
}

/* Groups of named schemes lie among the ranks that there are, whatever one layout was asked for. */
TEST(plan_lists_named_schemes_beside_a_fixed_layout) {
    OWNED(plan_list_free) CalibrateList list;
    int others = 0;
    Plan p = plan_of("cpu:4", small, 32);
    Layout only = layout_of("d2.x2");
    p.space.only = &only;
    plan_list(&p.space, &p.machine, &list);
    for (int i = 0; i < list.n_collectives; i++) {
        const Placement *at = &list.collective[i].group.place;
        int last = 0, size = 1;
        for (int k = 0; k < at->n; k++)
            last += (at->size[k] - 1) * at->stride[k], size *= at->size[k];
        CHECK(size == list.collective[i].group.size && last < 4);
        others += size == 4;
    }
    CHECK(others > 0);
}

/* Of too many candidates to list all: the best and the named schemes, with what each does. */
TEST(plan_lists_the_best_of_many_candidates) {
    OWNED(plan_list_free) CalibrateList list;
    Plan p = plan_of("cpu:16", "layers=2,heads=16,channels=64,seq=64,vocab=257", 64);
    plan_list(&p.space, &p.machine, &list);
    OWNED(test_calibration_end) Calibration *c = calibration_new();
    for (int i = 0; i < list.n_works; i++)
        calibration_add_work(c, &(WorkCost){.work = list.work[i], .fixed = 1});
    CHECK(plan_search(&p, NULL));
    for (int i = 0; i < p.n_best + p.n_presets; i++) {
        const Choice *best = i < p.n_best ? &p.best[i] : &p.preset[i - p.n_best];
        PriceShape shape = candidate_shape(&p.space, best);
        if (!overlap_equal(&shape.model.overlap, &(Overlap){.bulk = true})) continue;
        OWNED(price_free) StepLists t;
        price_lists(&t, &shape, &best->layout, 0, 0);
        OWNED(plan_list_free) CalibrateList step;
        plan_list_step(&p.machine, &t, &step);
        CHECK(step.n_works > 20);
        for (int k = 0; k < step.n_works; k++) CHECK(calibration_find_work(c, &step.work[k]));
    }
}

/* ---- the program */

#define PLAN(status, word, options)                                                                \
    SHELL_IN(test_tmpdir(), status, word, "$BUILD/train_gpt --plan " options)

TEST(plan_of_the_program_explains_a_described_cluster) {
    static const char slow[] = "Matmuls in bf16 run at 98 % of the rate of those in fp32";
    PLAN(0, "chosen", "--cluster h100:2 --model d36 --batch 131072 --json plan.json");
    CHECK(strstr(said, "plan     16 ranks on h100") && strstr(said, "tesseract"));
    CHECK(strstr(said, "A step is "));
    PLAN(2, "h100", "--cluster h1000:2 --model d12");
    PLAN(2, "nowhere.txt", "--cluster nowhere.txt --model d12");
    PLAN(0, "chosen       x2.y2+stay=y",
         "--cluster cpu:4 --model d12 --layout x2.y2+stay=y --micro 1");
    PLAN(2, "leave --ranks out", "--cluster cpu:4 --ranks 2 --model d12");
    PLAN(0, " bulk+ring ", "--cluster cpu:4 --model d12 --overlap bulk+ring");
    CHECK(!strstr(said, " bulk+halves ") && !strstr(said, slow));
    PLAN(0, " % less.\n",
         "--cluster cpu:8 --model layers=2,heads=8,channels=64,seq=64,vocab=256 "
         "--layout x8 --overlap bulk+chunk=8"); // many small messages
    CHECK(strstr(said, "The best other named scheme, dp (d8+zero2), takes 89 % less: "));
    PLAN(0, slow, "--cluster cpu:4 --model d12 --dtype bf16");
    PLAN(0, "chosen", "--cluster h100:1 --model d12 --dtype bf16");
    CHECK(!strstr(said, "Matmuls in bf16"));
}

/* The choice changes how a step is computed, not what: --exact makes that bits. Where prices allow
 * it, the first steps are made on d2, which needs two micro-batches of each rank, and on x2, which
 * needs four. */
TEST(plan_of_a_run_trains_what_a_given_layout_trains) {
    const char *dir = shell_directory(6000);
    SHELL(0, "plan     ",
          "run() { $BUILD/train_gpt --train train.bin --model "
          "layers=2,heads=4,channels=32,seq=16,vocab=61 --batch 256 --micro 4 --steps 40 --ranks 2 "
          "--exact --eval-every 0 --calibrate none --json $1 $2 && " SHELL_STEPS "$1 >$1.steps; }; "
          "run auto.json '--layout auto --refine 2 --ledger ledger' && run given.json "
          "'--layout x2 --ledger none' && wc -l <auto.json.steps && "
          "cmp auto.json.steps given.json.steps");
    CHECK(strstr(said, "ms a step predicted") && strstr(said, "\n40\n"));
    // those since the last move, without the first two
    if (strstr(said, "step 3: from here on x2"))
        CHECK(shell_recorded(dir, "ledger", "\"steps\":", 0) <= 35);
}

TEST(plan_of_a_fixed_layout_is_measured_with_the_named_schemes) {
    PLAN(0, "chosen       d2.x2",
         "--ranks 4 --layout d2.x2 --batch 256 --model "
         "layers=2,heads=4,channels=32,seq=16,vocab=61");
    CHECK(strstr(said, "fsdp"));
    CHECK(strstr(said, "\nMeasured: ") ||
          strstr(said, "\nNone of its collectives was measured; derived: ")); // with no time at all
}

TEST(plan_for_the_cluster_of_the_example) {
    const char *dir = ".";
    SHELL(0, "plan     64 ranks on two racks",
          "$BUILD/train_gpt --plan --cluster bench/clusters/two_racks.txt --model d48 --batch "
          "524288 --dtype bf16");
}

/* Ranks that share cores: between all at once and one after the other. */
TEST(plan_of_ranks_that_share_cores_lets_one_compute_while_another_waits) {
    Plan p = plan_of("cpu:4", small, 32);
    Choice alone = {.layout = layout_of("d2.x2"), .micro = 4}, shared = alone;
    search_price(&p.space, &p.machine, &alone);
    p.machine.oversubscription = 2;
    search_price(&p.space, &p.machine,
                 &shared); // its kernels take as long, when both ranks of a core compute
    CHECK(shared.price.exposed == alone.price.exposed && alone.price.exposed > 0);
    CHECK(shared.price.compute < alone.price.compute);
    CHECK(shared.price.compute > alone.price.compute / 2);
    for (int i = 0; i < p.machine.n_levels; i++) // nothing to wait for
        p.machine.level[i].rank_rate = 1e30, p.machine.level[i].port_rate = 0,
        p.machine.level[i].latency = 0;
    search_price(&p.space, &p.machine, &shared);
    CHECK(fabs(shared.price.compute / alone.price.compute - 1) < 1e-6);
}

/* ---- a described cluster */

/* The cluster says what its ranks are: the machine that searches does not count, neither its best
 * kernels nor those of every machine. */
TEST(plan_of_a_described_cluster_is_the_same_on_every_processor) {
    static const char *const clusters[] = {"cpu:8 --dtype fp32", "cpu:8 --dtype bf16",
                                           "consumer:1 --dtype bf16"};
    static char first[sizeof said];
    for (EACH(c, clusters))
        for (int k = 0; k < 2; k++) {
            SHELL_IN(test_tmpdir(), 0, "MiB",
                     "%s $BUILD/train_gpt --plan --cluster %s --model "
                     "layers=2,heads=4,channels=64,seq=32,vocab=512 --layout auto 2>/dev/null | "
                     "sed 's/, [0-9]* ms$//'",
                     k ? "TRAIN_GPT_KERNELS=portable" : "", *c);
            if (k) CHECK_STR(said, first);
            strcpy(first, said);
        }
}

/* ---- the machine at hand ---- */

static int shared_cores_of_one_rank(World *w, void *ctx) {
    Detected d;
    Plan p = plan_of("cpu:1", "layers=1,heads=1,channels=16,seq=16,vocab=257", 1);
    p.space.p = 1, p.space.free_overlap = p.space.free_recompute = false;
    NodeShare node = ranks_on_node(w);
    OWNED(test_team_end)
    Team *team = team_create(0); // one thread for each core, each pinned to its own
    CalibrateWhere where = {.world = w, .kernels = kernels_cpu(NULL), .team = team, .node = node};
    detect(&d, w, where.kernels, team, false);
    OWNED(test_calibration_end) Calibration *c = plan_measure(&p, &where, &d);
    *(double *)ctx = c->oversubscription;
    detect_free(&d);
    return 0;
}

TEST(plan_measures_a_team_on_all_cores_as_one_that_shares_none) {
    double shared = 0;
    SKIP_IF(team_cores() < 2, "one core");
    setenv("XDG_CACHE_HOME", test_tmpdir(), 1);
    CHECK(ranks_run(1, shared_cores_of_one_rank, &shared) == 0);
    CHECK(shared == 1);
}
