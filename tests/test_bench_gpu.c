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
enum { LAYERS = 19, ATTENTIONS = 2 * 2 * 2, PRODUCTS = 1 + 5 * 3 };

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

/* The script that runs unattended, with all that an emulated GPU can do for it. */
TEST(bench_gpu_script_rehearses) {
    const char *dir = test_tmpdir();
    char text[16384], path[160];
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
    static const char *const files[] = {"facts", "train", "curves"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/rehearsal-%s.json", dir, files[i]);
        json_t *file = json_load_file(path, 0, NULL);
        CHECK(file);
        json_decref(file);
    }
    CHECK(strstr(text, "d12, B = 2: MFU (") && strstr(text, "rehearsed"));
    CHECK(strstr(text, "4 ranks on the GPU, x2.y2, overlap bulk+halves: losses against one rank"));
    CHECK(!strstr(text, "NO\n") && !strstr(text, "BROKE"));
}
