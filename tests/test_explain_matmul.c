/* How a matmul on a GPU is explained. */
#include "parallel/plan/explain_matmul.h"

#include "parallel/train/options.h"
#include "tests/page.h"
#include "tests/parsed.h"
#include "tests/test.h"

/* The caller frees it. */
static char *printed(const Machine *m, const char *shape) {
    Work w;
    if (!explain_matmul_parse(&w, shape, NULL)) die("%s", shape);
    return PRINTED(explain_matmul_print(f, m, &w));
}

static void explained(Text *t, const char *shape, const char *cluster) {
    Machine m = machine_of(cluster);
    OWNED(test_mem_end) char *text = printed(&m, shape);
    t->n = 0;
    text_put(t, "$ train_gpt --explain-matmul %s --cluster %s\n%s", shape, cluster, text);
}

TEST(explain_matmul_stands_in_the_page_of_gpus) {
    static const char *const example[][3] = {
        {"768,2304,32768,wgrad", "h200:1", "text explain-matmul"},
        {"32768,768,768", "a100:1", "text explain-a100"}};
    static Text t;
    for (int i = 0; i < 2; i++) {
        explained(&t, example[i][0], example[i][1]);
        CHECK(page_block_is("docs/gpu.md", example[i][2], &t));
        for (char *line = t.s, *end; (end = strchr(line, '\n')); line = end + 1)
            CHECK(end - line <= 80);
    }
}

TEST(explain_matmul_says_whose_tiles_a_gpu_has_not) {
    static const struct {
        int capability;
        const char *says; // NULL: nothing, as a kernel is meant for it
    } gpus[] = {{70, "By the tiles of matmul_sm80.cu, which capability 7.0 does not run.\n"},
                {80, NULL},
                {89, NULL},
                {90, NULL},
                {100, "By the tiles of matmul_sm90.cu, which capability 10.0 does not run.\n"},
                {103, "By the tiles of matmul_sm90.cu, which capability 10.3 does not run.\n"},
                {120, NULL}};
    Machine m = machine_of("a100:1");
    for (EACH(g, gpus)) {
        m.capability = g->capability;
        OWNED(test_mem_end) char *text = printed(&m, "4096,768,768");
        CHECK(g->says ? strstr(text, g->says) != NULL : !strstr(text, "By the tiles"));
        CHECK(gpu_matmul_runs(&m) == !g->says);
    }
}

/* Of many tiles, and of signs only those that the table has. */
TEST(explain_matmul_keeps_columns_apart) {
    Machine a100 = machine_of("a100:1"), consumer = machine_of("consumer:1");
    int n, tiles;
    double waves;
    OWNED(test_mem_end) char *text = printed(&a100, "200000,50257,768");
    OWNED(test_mem_end) char *other = printed(&consumer, "4096,768,768");
    CHECK(sscanf(strstr(text, "\ndata-parallel"), " data-parallel 1/2:128x128 %d %lf %n", &tiles,
                 &waves, &n) == 2);
    CHECK(tiles == 1563 * 393 && strstr(text, "\n1/2: "));
    CHECK(!strstr(other, "1/2:") && !strstr(other, "2x"));
}

TEST(explain_matmul_shapes_that_are_none_are_named) {
    static const char *const wrong[] = {"",
                                        "1,2",
                                        "1,2,3,4",
                                        "0,2,3",
                                        "1,0,3",
                                        "1,2,0",
                                        "16777217,1,1",
                                        "1,16777217,1",
                                        "1,2,3,dgrad",
                                        "1,2,x",
                                        "-1,2,3",
                                        "1,2,99999999999",
                                        "16777216,16777216,16777216"};
    Work w;
    Err e;
    for (EACH(one, wrong)) {
        CHECK(!explain_matmul_parse(&w, *one, &e));
        CHECK(strstr(e.text, "M,N,K,wgrad is needed") || strstr(e.text, "sizes are from 1") ||
              strstr(e.text, "smaller sizes"));
    }
    CHECK(explain_matmul_parse(&w, "1,1,1", &e) && explain_matmul_parse(&w, "16777216,1,1", &e));
    CHECK(explain_matmul_parse(&w, "1,16777216,1", &e));
    CHECK(explain_matmul_parse(&w, "1,1,16777216", &e));
}

/* run_explain_matmul refuses it. */
TEST(explain_matmul_promises_no_json) {
    Options o;
    CHECK(!strstr(opt_find(options_table(&o), "explain-matmul")->help, "json"));
}
