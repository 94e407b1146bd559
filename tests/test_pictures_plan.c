/* The plan and the schedules in parallel/README.md: the cluster that the page describes, the prices
 * of the layouts of its ranks, what each word of --overlap makes of a step. */
#include "parallel/plan/plan.h"
#include "tests/page.h"
#include "tests/parsed.h"
#include "tests/test.h"

/* The page's cluster and model. */
static Space lab(Machine *m) {
    static Text t;
    Space s = {.free_micro = true, .free_recompute = true, .free_overlap = true};
    Err e;
    text_of_readme(&t, "lab");
    if (!machine_parse(m, t.s, t.n, &e)) die("%s", e.text);
    s.shape.model.config = config_of("layers=4,heads=8,channels=512,seq=256,vocab=4096");
    s.p = m->ranks, s.shape.model.threads = m->threads;
    s.shape.model.S = 256, s.shape.batch = 16 * 256;
    return s;
}

static double ms(double seconds) {
    return 1e3 * seconds;
}

static void put_choice(Text *t, const char *name, const Choice *c, const Choice *best) {
    char spec[64], overlap[OVERLAP_TEXT];
    text_put(t, "%-12s %-13s %-12s %5lld %-9s %7.1f %5.0f %% %8.1f %7.1f %8.1f %8.1f", name,
             layout_print(&c->layout, spec), overlap_print(&c->overlap, overlap),
             (long long)c->micro, recompute_name(c->recompute), ms(c->price.seconds),
             100 * (c->price.seconds / best->price.seconds - 1), ms(c->price.compute),
             ms(c->price.exposed), (double)c->price.received / 1048576,
             (double)c->price.memory / 1048576);
    text_end_line(t);
}

TEST(the_plan_of_the_readme_is_what_the_search_finds) {
    static Text t;
    static Plan p;
    p.space = lab(&p.machine);
    CHECK(plan_search(&p, NULL));
    t.n = 0;
    text_put(&t, "%lld candidates, %lld too large, %lld priced\n\n", (long long)p.count.candidates,
             (long long)p.count.too_large, (long long)p.count.priced);
    text_put(&t, "%-12s %-13s %-12s %5s %-9s %7s %7s %8s %7s %8s %8s\n", "", "layout", "overlap",
             "micro", "recompute", "ms", "slower", "compute", "exposed", "MiB recv", "MiB held");
    put_choice(&t, "chosen", &p.best[0], &p.best[0]);
    for (int i = 1; i < 4; i++) put_choice(&t, "", &p.best[i], &p.best[0]);
    for (int i = 0; i < p.n_presets; i++) {
        char chosen[64], spec[64];
        if (strcmp(layout_print(&p.best[0].layout, chosen),
                   layout_print(&p.preset[i].layout, spec)) != 0)
            put_choice(&t, p.preset_name[i], &p.preset[i], &p.best[0]);
    }
    CHECK(text_stands_in_readme(&t, "plan"));
}

TEST(the_schedules_of_the_readme_are_what_the_clocks_say) {
    static const char *const layouts[] = {"d4", "z4", "x4", "x4+sp", "x2.y2+heads", "x2.y2+stay=y"};
    static const char *const words[] = {"none", "bulk",   "chunk=4",
                                        "ring", "halves", "chunk=4+halves"};
    static Text t;
    Machine m;
    PriceShape s = lab(&m).shape;
    s.model.B = 4;
    t.n = 0;
    text_put(&t, "%-16s", "");
    for (EACH(layout, layouts)) text_put(&t, "%14s", *layout);
    text_end_line(&t);
    for (EACH(word, words)) {
        text_put(&t, "%-16s", *word);
        for (EACH(layout, layouts)) {
            Price p;
            Layout l = layout_of(*layout);
            s.model.overlap = overlap_of(*word);
            price_step(&s, &l, &m, &p);
            text_put(&t, "%7.0f %5.0f ", 1e3 * p.seconds, 1e3 * p.exposed);
        }
        text_end_line(&t);
    }
    CHECK(text_stands_in_readme(&t, "schedules"));
}
