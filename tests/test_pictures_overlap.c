/* The schedules in parallel/README.md: what each word of --overlap makes of a step on the page's
 * cluster. */
#include "parallel/plan/price.h"
#include "tests/page.h"
#include "tests/parsed.h"
#include "tests/test.h"

static PriceShape page_shape(Machine *m) {
    static Text t;
    PriceShape s = {.config = config_of("layers=4,heads=8,channels=512,seq=256,vocab=4096")};
    Err e;
    text_of_readme(&t, "lab");
    if (!machine_parse(m, t.s, t.n, &e)) die("%s", e.text);
    s.S = 256, s.batch = 16 * 256, s.micro = 4, s.threads = m->threads;
    return s;
}

static Price price_with(const Machine *m, PriceShape s, const Layout *l, const char *words) {
    Price p;
    s.overlap = overlap_of(words);
    price_step(&s, l, m, &p);
    return p;
}

TEST(the_schedules_of_the_readme_are_what_the_clocks_say) {
    static const char *const layouts[] = {"d4", "z4", "x4", "x4+sp", "x2.y2+heads", "x2.y2+stay=y"};
    static const char *const words[] = {"none",      "bulk",        "bulk+chunk=4",
                                        "bulk+ring", "bulk+halves", "bulk+chunk=4+halves"};
    static Text t;
    Machine m;
    PriceShape s = page_shape(&m);
    t.n = 0;
    text_put(&t, "%-21s", "");
    for (int i = 0; i < 6; i++) text_put(&t, "%14s", layouts[i]);
    text_end_line(&t);
    for (int w = 0; w < 6; w++) {
        text_put(&t, "%-21s", words[w]);
        for (int i = 0; i < 6; i++) {
            Layout l = layout_of(layouts[i]);
            Price p = price_with(&m, s, &l, words[w]);
            text_put(&t, "%7.0f %5.0f ", 1e3 * p.seconds, 1e3 * p.exposed);
        }
        text_end_line(&t);
    }
    CHECK(text_stands_in_readme(&t, "schedules"));
}
