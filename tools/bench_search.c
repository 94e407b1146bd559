/* bench_search -- how long the search for a layout takes, on one core.
 *
 *     bench_search                       GPT-2 and GPT-3 shapes, 8 to 16,384 ranks, to 960 layers
 *     bench_search --only gpt-3 --to 1024
 *
 * One line of JSON for each case:
 *     layers       number of layers: 12, 96 or 960, of which one is the model's own
 *     memory       limited: by the memory of a rank of the cluster; any: all candidates fit, so
 *                  that models of all depths have the same candidates
 *     options      what the search chooses beside the layout: "all"; "bulk": not the overlap
 *                  schedule; "no recompute": not recompute; "layout": nothing else, with
 *                  micro-batches of one sequence
 *     search_ms    search_best for as many layouts as a plan keeps: median of --rounds
 *     plan_ms      plan_search: the same, the price of each named scheme, and the second prices
 *                  (search_reprice) of the best choices and of the schemes
 */
#include <inttypes.h>
#include <string.h>

#include "base/median.h"
#include "base/mem.h"
#include "base/opt.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/plan/plan.h"

enum { MAX_ROUNDS = 101 };
static struct {
    int64_t rounds, from, to;
    const char *only;
} o;

static const struct {
    const char *name, *shape;
    int64_t layers, batch; // of the published model
} models[] = {
    {"gpt-2", "heads=12,channels=768,seq=1024,vocab=50257", 12, 524288},
    {"gpt-3", "heads=96,channels=12288,seq=2048,vocab=50257", 96, 3145728},
};

/* Runs a search --rounds times and prints its line. */
static void measure(Plan *p, const char *model, bool limited, const char *options) {
    static double search[MAX_ROUNDS], plan[MAX_ROUNDS];
    int rounds = (int)o.rounds;
    char text[128];
    Err e;
    bool found = false;
    for (int i = -1; i < rounds; i++) { // -1: warm-up
        double begin = now_s();
        found = plan_search(p, &e);
        double seconds = now_s() - begin;
        if (i >= 0) search[i] = p->count.seconds, plan[i] = seconds;
    }
    printf("{\"model\":\"%s\",\"layers\":%" PRId64
           ",\"ranks\":%d,\"memory\":\"%s\",\"options\":\"%s\","
           "\"candidates\":%" PRId64 ",\"too_large\":%" PRId64 ",\"priced\":%" PRId64
           ",\"search_ms\":%.3f,\"plan_ms\":%.3f,\"best\":\"%s\"}\n",
           model, p->space.shape.model.config.layers, p->space.p, limited ? "limited" : "any",
           options, p->count.candidates, p->count.too_large, p->count.priced,
           1e3 * median_of(search, rounds), 1e3 * median_of(plan, rounds),
           found ? choice_print(&p->best[0], text) : "");
    fflush(stdout);
}

enum { OPTIONS_ALL, OPTIONS_BULK, OPTIONS_KEPT, OPTIONS_LAYOUT, N_OPTIONS };
static const char *const option_words[] = {"all", "bulk", "no recompute", "layout"};

/* Describes a case (model, depth, cluster, limits) and measures its search. */
static void measure_case(int model, int64_t layers, int64_t ranks, bool limited, int options) {
    Plan *p = mem_calloc(1, sizeof *p);
    Machine *m = &p->machine;
    Space *s = &p->space;
    Err e;
    char cluster[64], shape[128];
    snprintf(cluster, sizeof cluster, "h100:%" PRId64, ranks / 8);
    if (!machine_open(m, cluster, &e)) die("%s", e.text);
    snprintf(shape, sizeof shape, "layers=%" PRId64 ",%s", layers, models[model].shape);
    if (!config_parse(&s->shape.model.config, shape, &e)) die("%s", e.text);
    s->p = m->ranks;
    s->free_overlap = options != OPTIONS_BULK && options != OPTIONS_LAYOUT;
    s->free_recompute = options != OPTIONS_KEPT && options != OPTIONS_LAYOUT;
    s->free_micro = options != OPTIONS_LAYOUT;
    s->shape.model.overlap.bulk = true, s->shape.model.B = 1;
    s->shape.model.S = s->shape.model.config.seq, s->shape.batch = models[model].batch;
    s->shape.model.bf16 = true, s->shape.model.threads = m->threads;
    s->shape.kernels = machine_kernels(m, s->shape.model.bf16);
    if (!limited) m->memory = 0;
    measure(p, models[model].name, limited, option_words[options]);
    mem_free(p);
}

int main(int argc, char **argv) {
    static const int64_t layers[] = {12, 96, 960}, ranks[] = {8, 64, 1024, 16384};
    const Opt options[] = {
        {"rounds", OPT_INT, &o.rounds, "5", 1, MAX_ROUNDS, "N", "searches; the median is printed"},
        {"from", OPT_INT, &o.from, "8", 8, 1 << 20, "N", "ranks of the smallest cluster"},
        {"to", OPT_INT, &o.to, "16384", 8, 1 << 20, "N", "of the largest"},
        {"only", OPT_STR, &o.only, "", 0, 0, "WORD", "only models whose name contains WORD"},
        {0}};
    die_set_program(argv[0]);
    opt_parse(options, argc, argv, "bench_search: how long the search for a layout takes\n\n");
    for (int model = 0; model < 2; model++)
        for (int r = 0; r < 4 && strstr(models[model].name, o.only); r++)
            for (int i = 0; i < 3 && ranks[r] >= o.from && ranks[r] <= o.to; i++) {
                for (int k = 0; k < N_OPTIONS && layers[i] == models[model].layers; k++)
                    measure_case(model, layers[i], ranks[r], true, k);
                measure_case(model, layers[i], ranks[r], false, OPTIONS_ALL);
            }
    return 0;
}
