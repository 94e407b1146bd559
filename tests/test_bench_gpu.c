/* The benchmark of GPUs with an emulated one, at tiny sizes: every row of it is measured and written. */
#include "tests/test.h"

#include <jansson.h>
#include <string.h>

/* Rows of a stage of the file of results; `sum`: of a number that each of them has. */
static int rows_of(json_t *rows, const char *stage, const char *number, double *sum) {
    size_t i;
    json_t *row;
    int n = 0;
    json_array_foreach(rows, i, row) {
        if (strcmp(json_string_value(json_object_get(row, "stage")), stage) != 0) continue;
        double x = json_number_value(json_object_get(row, number));
        n++, *sum += x > 0 ? x : NAN;
    }
    return n;
}

static json_t *row_of(json_t *rows, const char *name) {
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) if (strcmp(json_string_value(json_object_get(row, "name")),
                                                name) == 0) return row;
    return NULL;
}

static json_t *load_lines(const char *path) {
    FILE *f = fopen(path, "r");
    json_t *rows = json_array(), *row;
    while (f && (row = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL)))
        json_array_append_new(rows, row);
    if (f) fclose(f);
    return rows;
}

/* 2 lengths of sequences fit; each by both ways of products, forward and backward. */
enum { LAYERS = 20, ATTENTIONS = 2 * 2 * 2, PRODUCTS = 1 + 6 * 3 + 4 };

TEST(bench_gpu_measures_every_kernel) {
    const char *dir = test_tmpdir();
    char text[16384], path[160];
    CHECK(test_shell(dir, text, sizeof text,
                     "$BUILD/bench_gpu_emu --tokens 16 --seq 8 --channels 64 --vocab 40 "
                     "--parameters 100 --rounds 1 --round-ms 0 --sets 1 --json rows") == 0);
    snprintf(path, sizeof path, "%s/rows", dir);
    json_t *rows = load_lines(path);
    double us = 0, rate = 0;
    CHECK(rows_of(rows, "memory", "us", &us) == LAYERS);
    CHECK(rows_of(rows, "attention", "us", &us) == ATTENTIONS);
    CHECK(rows_of(rows, "products", "library_tflops", &rate) == PRODUCTS);
    CHECK(us > 0 && rate > 0);
    json_t *norm = row_of(rows, "norm"), *adamw = row_of(rows, "adamw"), *up = row_of(rows, "up");
    CHECK(json_number_value(json_object_get(norm, "bytes")) == 4 * 16 * 64 + 8 * 16);
    CHECK(json_number_value(json_object_get(adamw, "bytes")) == 30 * 100);
    CHECK(json_is_true(json_object_get(up, "same_epilogue")));
    json_decref(rows);
    CHECK(test_shell(dir, text, sizeof text, "$BUILD/bench_gpu_emu --what memory,product") == 2);
    CHECK(strstr(text, "--what product: "));
}

/* The script that runs unattended, with all that an emulated GPU can do for it; as if it had been one, its table in a page. */
TEST(bench_gpu_script_rehearses) {
    const char *dir = test_tmpdir();
    char text[16384];
    if (test_shell(".", text, sizeof text, "python3 --version")) {
        test_skip("no python3");
        return;
    }
    int status = test_shell(".", text, sizeof text,
                            "python3 -B tools/bench_gpu.py --rehearse --no-build --programs $BUILD "
                            "--out %s --stages facts,build,train,curves",
                            dir);
    if (status) printf("%s", text);
    CHECK(status == 0);
    CHECK(strstr(text, "d12, B = 2: MFU (") && strstr(text, "rehearsed"));
    CHECK(strstr(text, "4 ranks on the GPU, x2.y2, overlap bulk+halves: losses against one rank"));
    CHECK(strstr(text,
                 "4 ranks on the GPU, z2.x2+sp, overlap bulk+chunk=2: losses against one rank"));
    CHECK(!strstr(text, "NO\n") && !strstr(text, "BROKE"));
    CHECK(
        test_shell(".", text, sizeof text,
                   "sed -i 's/\"rehearsal\": true/\"rehearsal\": false/' %s/rehearsal-facts.json; "
                   "printf '<!-- gpu:begin -->\\n<!-- gpu:end -->\\n' >%s/page; "
                   "python3 -B tools/bench_gpu.py --out %s --page %s/page && cat %s/page",
                   dir, dir, dir, dir, dir) == 0);
    CHECK(strstr(text, "| 48.0 % | 55.0 % | MISSED |\n") && strstr(text, "emulated, driver none"));
}

/* What breaks is said, and costs the other stages nothing: here no program is there. */
TEST(bench_gpu_script_goes_on_where_a_stage_breaks) {
    const char *dir = test_tmpdir();
    char text[16384];
    if (test_shell(".", text, sizeof text, "python3 --version")) {
        test_skip("no python3");
        return;
    }
    CHECK(test_shell(".", text, sizeof text,
                     "python3 -B tools/bench_gpu.py --rehearse --no-build --programs %s --out %s",
                     dir, dir) == 1);
    CHECK(strstr(text, "BROKE: ") && strstr(text, "/run_tests is missing"));
    CHECK(strstr(text, "d12  B=2") && strstr(text, "/train_gpt_emu is missing"));
    CHECK(strstr(text, "broken stages: probes, tests, kernels, curves\n"));
    CHECK(test_shell(dir, text, sizeof text, "grep -c '\"broke\"' rehearsal-*.json") == 0);
}
