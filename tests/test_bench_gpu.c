/* The benchmark of GPUs with an emulated one, at tiny sizes: every row of it is measured and
 * written. */
#include "tests/shell.h"

#include <jansson.h>
#include <string.h>

#include "data/stamp.h"

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

static double number_of(json_t *row, const char *name) {
    return json_number_value(json_object_get(row, name));
}

/* 2 lengths of sequences fit; each by both ways of matmuls, forward and backward. */
enum { LAYERS = 23, ATTENTIONS = 2 * 2 * 2, MATMULS = 1 + 6 * 3 + 4, FUSED = 2 * 2 };

/* Of 16 tokens, 64 channels and 100 parameters. */
static void check_kernels(json_t *rows) {
    double us = 0, rate = 0;
    CHECK(rows_of(rows, "memory", "us", &us) == LAYERS);
    CHECK(rows_of(rows, "attention", "us", &us) == ATTENTIONS);
    CHECK(rows_of(rows, "matmuls", "library_tflops", &rate) == MATMULS);
    CHECK(rows_of(rows, "matmuls", "predicted_us", &us) == MATMULS);
    CHECK(rows_of(rows, "matmuls", "sm90_tflops", &rate) == MATMULS);
    CHECK(rows_of(rows, "fused", "us", &us) == FUSED);
    CHECK(us > 0 && rate > 0);
    CHECK(number_of(row_of(rows, "norm"), "bytes") == 4 * 16 * 64 + 8 * 16);
    CHECK(number_of(row_of(rows, "adamw"), "bytes") == 30 * 100);
    CHECK(json_is_true(json_object_get(row_of(rows, "up"), "same_epilogue")));
    json_t *gather = row_of(rows, "all_gather"); // with its matmul, and the transfer alone
    CHECK(number_of(gather, "us") >= number_of(gather, "transfer_us"));
}

static bool no_python(void) {
    bool none = test_shell(".", said, sizeof said, "python3 --version") != 0;
    if (none) test_skip("no python3");
    return none;
}

/* Has the table a row that begins and ends so? */
static bool has_row(const char *text, const char *begin, const char *end) {
    for (const char *p = text; (p = strstr(p, begin)); p++) {
        size_t n = strcspn(p, "\n"), n_end = strlen(end);
        if (n >= n_end && strncmp(p + n - n_end, end, n_end) == 0) return true;
    }
    return false;
}

/* The script that runs unattended, with all that an emulated GPU can do for it, in an empty folder
 * of a machine that has Python and a shell, no git, no make, no compiler, no MPI; and programs that
 * answer as PyTorch and compute-sanitizer would. As if it had been a GPU, its table in a page. */
TEST(bench_gpu_script_rehearses) {
    const char *dir = test_tmpdir();
    if (no_python()) return;
    SHELL_IN(".", 0, "",
             "top=$PWD python=$(python3 -c 'import sys; print(sys.executable)'); mkdir %s/bin "
             "%s/in && ln -s $python $(command -v bash) $(command -v sh) $(command -v tr) %s/bin "
             "&& cd %s/in && PATH=%s/bin $python -B \"$top/tools/bench_gpu.py\" --rehearse "
             "--no-build --programs $BUILD --out .. --stages facts,build,kernels,second --text "
             "\"$top/LICENSE\" --python tests/fake_python.sh --sanitizer tests/fake_sanitizer.sh",
             dir, dir, dir, dir, dir);
    OWNED(test_json_end)
    json_t *kernels = json_load_file(test_path("%s/rehearsal-kernels.json", dir), 0, NULL);
    check_kernels(json_object_get(json_object_get(kernels, "kernels"), "rows"));
    CHECK(strstr(said, "PyTorch: 9.8.7+fake\n") && strstr(said, "against torch.compile (16000)"));
    CHECK(strstr(said, "attention forward, heads of 64, T = 8: against cuDNN's"));
    CHECK(strstr(said, ", mma.sync ") && strstr(said, ", cudnn 1e-09, flash 5e-10\n"));
    CHECK(strstr(said, ", cudnn refused\n") && strstr(said, "not measured\n"));
    CHECK(has_row(said, "compute-sanitizer memcheck, ", "yes"));
    CHECK(has_row(said, "compute-sanitizer racecheck, ", "yes"));
    CHECK(has_row(said, "losses of 3 steps on LICENSE against the CPU, fp32", "another text"));
    CHECK(has_row(said, "losses of 3 steps in bf16 by own matmuls against the library's", "yes"));
    CHECK(has_row(said, "the same by own matmuls again", "yes"));
    CHECK(has_row(said, "2 ranks on the GPU, x2+sp, overlap bulk+fused: ", "yes"));
    CHECK(has_row(said, "4 ranks on the GPU, x2.y2+sp, overlap fused: ", "yes"));
    CHECK(strstr(said, "4 ranks on the GPU, x2.y2, overlap bulk+halves: losses against one rank"));
    CHECK(strstr(said,
                 "4 ranks on the GPU, z2.x2+sp, overlap bulk+chunk=2: losses against one rank"));
    CHECK(!strstr(said, "NO\n") && !strstr(said, "BROKE"));
    SHELL_IN(".", 0, "",
             "sed -i 's/\"rehearsal\": true/\"rehearsal\": false/' %s/rehearsal-facts.json; "
             "printf '<!-- gpu:begin -->\\n<!-- gpu:end -->\\n' >%s/page; "
             "python3 -B tools/bench_gpu.py --out %s --page %s/page && cat %s/page",
             dir, dir, dir, dir, dir);
    CHECK(strstr(said, "| 50.0 % | 55.0 % | MISSED |\n") && strstr(said, "emulated, driver none"));
    CHECK(strstr(said, "PyTorch 9.8.7+fake, CUDA 13.0, cuDNN 91002; "));
    CHECK(strstr(said, "matmuls by the own kernel as predicted, median error | "));
}

/* A rehearsal of one stage with such programs, which fail as FAKE_... says. */
static void rehearse(const char *fault, const char *programs, const char *stage) {
    SHELL_IN(".", 1, "",
             "%s python3 -B tools/bench_gpu.py --rehearse --no-build --programs %s --out %s "
             "--stages %s --python tests/fake_python.sh --sanitizer tests/fake_sanitizer.sh",
             fault, programs, test_tmpdir(), stage);
}

/* PyTorch that is there and does not answer, groups of tests that compute-sanitizer did not come to
 * the end of. */
TEST(bench_gpu_script_says_who_did_not_answer) {
    const char *dir = test_tmpdir();
    if (no_python()) return;
    SHELL(0, "", // no kernel is timed here
          "ln -s $BUILD/train_gpt_emu . && ln -s /bin/true bench_gpu_emu");
    rehearse("FAKE_PYTHON=silent", dir, "kernels,train");
    CHECK(strstr(said, "BROKE: attention of PyTorch: status 1: ImportError: libfake.so\n"));
    CHECK(strstr(said, "BROKE: torch.compile of d12, B = 2: status 1: ImportError: libfake.so\n"));
    CHECK(strstr(said, "broken stages: kernels, train\n"));
    rehearse("FAKE_PYTHON=dumb FAKE_SANITIZER=stops", "$BUILD", "sanitizer");
    CHECK(strstr(said, "fake_python.sh does not say whether it has PyTorch: status 1: no such"));
    CHECK(has_row(said, "compute-sanitizer memcheck, ", " groups"));
    rehearse("FAKE_SANITIZER=errors", "$BUILD", "sanitizer");
    CHECK(has_row(said, "compute-sanitizer memcheck, ", "NO"));
    CHECK(strstr(said, "1 errors, 0 failed, ") && !strstr(said, "yes\n"));
}

/* What a script prints that uses what stands in tools/; sys.path[0] is the test's folder. */
static void python(const char *script) {
    const char *dir = test_tmpdir();
    SHELL_IN("tools", 0, "", "cat >%s/try.py <<'END'\n%sEND\nPYTHONPATH=. python3 -B %s/try.py",
             dir, script, dir);
}

/* What a device gave is written into the tree, once for each probe, and compared with from then
 * on. */
TEST(bench_gpu_script_keeps_what_probes_gave) {
    if (no_python()) return;
    python("import sys, bench_gpu as b\n"
           "def tell(lines, **r):\n"
           "    b.compare_with_golden(lines, r)\n"
           "    print(r.get('broke', 'fine'))\n"
           "b.GOLDEN = sys.path[0] + '/sm90.txt'\n"
           "tell(['a 1', 'b 2']), tell(['a 1', 'b 2', 'c 4']), tell(['a 1', 'b 3', 'c 4'])\n"
           "tell(['a 1', 'b 2'])\n"
           "print(open(b.GOLDEN).read())\n");
    CHECK(strstr(said, "fine\nfine\nnot what ") == said && strstr(said, "/sm90.txt says: b\n"));
    CHECK(strstr(said, "/sm90.txt says: c\na 1\nb 2\nc 4\n")); // one that was not given is missed
}

/* A probe whose kernel the device ended is named, and its line kept; one that gave what the tests
 * do not expect is named, too. Neither is fine. */
TEST(bench_gpu_script_names_probes_that_died) {
    if (no_python()) return;
    python("import json, sys, types, bench_gpu as b\n"
           "dir = sys.path[0]\n"
           "out = 'a 0123456789abcdef\\nb died\\nb: died, status 1\\n'\n"
           "out += 'c 0123456789abcdee\\nc: 1 of 2 words are not what the tests expect'\n"
           "b.GOLDEN = dir + '/sm90.txt'\n"
           "run = types.SimpleNamespace(rehearse=False, program=str, shell=lambda *x, "
           "**y: (1, out), args=types.SimpleNamespace(out=dir))\n"
           "json.dump({'probes': b.probes(run)}, open(dir + '/gpu-tests.json', 'w'))\n"
           "print(open(b.GOLDEN).read().split())\n"
           "for stages in (['probes'], ['tests']):\n"
           "    print(*b.bench_gpu_table.wrong(dir, 'gpu', stages))\n");
    CHECK_SAYS(strcmp(said, "['a', '0123456789abcdef', 'b', 'died', 'c', '0123456789abcdee']\n"
                            "['probes of instructions', '3, of them 1 died (b), 1 not as the "
                            "tests have them (c), 0 not as on the first device', '', '', 'NO']\n"
                            "\n") == 0,
               "%s", said);
}

/* Tests that are skipped to the last one have not ended early. What ran out of its time says so,
 * and not what it said last. */
TEST(bench_gpu_script_tells_how_tests_ended) {
    if (no_python()) return;
    python("from bench_gpu_checks import ending, verdict\n"
           "none = 'no test was run\\n0 passed, 0 failed, '\n"
           "for status, out in ((1, none + '2 skipped'), (1, none + '0 skipped'),\n"
           "                    (9, none + '2 skipped'), (1, 'stopped'),\n"
           "                    (0, '2 passed, 0 failed, 0 skipped'),\n"
           "                    (None, ''), (124, 'ok')):\n"
           "    print(verdict(out, status).get('end'))\n"
           "print(ending(124, 'step 3/5'))\n");
    CHECK_SAYS(strcmp(said, "None\nstatus 1: 0 passed, 0 failed, 0 skipped\n"
                            "status 9: 0 passed, 0 failed, 2 skipped\nstatus 1: stopped\nNone\n"
                            "no time was left for it\n"
                            "ran out of its time\nran out of its time\n") == 0,
               "%s", said);
}

/* Rows of an earlier run that are kept may be of models that are measured no longer. */
TEST(bench_gpu_script_keeps_rows_of_other_models) {
    if (no_python()) return;
    SHELL_IN("tools", 0, "",
             "python3 -B -c \"import bench_gpu as b\n"
             "rows = [('d24', 32), ('d12', 3), ('d12', 64)]\n"
             "rows = b.in_order([{'model': m, 'B': n} for m, n in rows])\n"
             "print([(x['model'], x['B']) for x in rows])\"");
    CHECK_SAYS(strcmp(said, "[('d12', 64), ('d24', 32), ('d12', 3)]\n") == 0, "%s", said);
}

/* Without a text the curves are of the program's own sources, as much as their steps read. */
TEST(bench_gpu_script_finds_text_of_enough_size) {
    if (no_python()) return;
    SHELL_IN("tools", 0, "sources of parallel/ True",
             "TEST_DATA_DIR=/none python3 -B -c \"import bench_gpu as b, os, types\n"
             "run = types.SimpleNamespace(args=types.SimpleNamespace(text=''), scratch='%s')\n"
             "b.write_tokens(run)\n"
             "print(run.text, os.path.getsize(run.tokens) > 2 * 100 * 16 * 256)\"",
             test_tmpdir());
}

/* Neither git nor a checkout is needed. */
TEST(bench_page_stamps_what_is_no_checkout) {
    if (no_python()) return;
    SHELL_IN("tools", 0, "",
             "python3 -B -c 'import os, bench_page; os.environ[\"PATH\"] = \"/none\"; "
             "print(bench_page.stamp(\"\")[\"commit\"])'");
    CHECK(strcmp(said, "unknown\n") == 0);
    SHELL_IN("tools", 0, "",
             "python3 -B -c 'import bench_page; bench_page.TOP = \"/\"; "
             "print(bench_page.stamp(\"\")[\"commit\"])'");
    CHECK(strcmp(said, "unknown\n") == 0);
}

/* Records of benchmarks in Python and in C are of one machine. */
TEST(bench_page_calls_the_processor_what_the_trainer_calls_it) {
    char name[128];
    if (no_python()) return;
    SHELL_IN("tools", 0, "",
             "python3 -B -c 'import bench_page; print(bench_page.processor(), end=\"\")'");
    stamp_cpu(name, sizeof name);
    CHECK_STR(said, name);
}

/* A campaign on a lab, which here only writes down what it is asked for. */
TEST(bench_page_takes_the_lab_down_however_a_campaign_ends) {
    static const struct {
        const char *measure, *says;
        int status;
    } ends[] = {
        {"return {'case': 1}", "said; ", 0},
        {"raise ValueError('broken')", "ValueError: broken", 1},
        {"sys.exit('a case failed')", "a case failed", 1},
        {"os.kill(os.getpid(), signal.SIGTERM); return {'case': 1}", "", 143},
    };
    const char *dir = test_tmpdir();
    if (no_python()) return;
    if (test_shell(dir, said, sizeof said,
                   "printf '#!/bin/sh\\necho $* >>%s/asked\\n' >lab && chmod +x lab && "
                   "./lab && rm asked",
                   dir)) {
        test_skip("no program runs in TMPDIR: it is mounted with noexec");
        return;
    }
    for (EACH(e, ends)) {
        SHELL_IN("tools", e->status, e->says,
                 "python3 -B -c \"import bench_page, os, signal, sys, types\n"
                 "def measure(case, args, folder):\n"
                 "    bench_page.up(2, '1gbit')\n"
                 "    %s\n"
                 "bench_page.LAB = '%s/lab'\n"
                 "args = types.SimpleNamespace(page=None, only='', out='%s/out')\n"
                 "bench_page.campaign(args, 'page', None, 'command', [1], str,\n"
                 "                    lambda r: str(r['case']), measure, None, lambda r: 'said')\"",
                 e->measure, dir, dir);
        SHELL(0, "", "cat asked; rm asked");
        CHECK_SAYS(strcmp(said, "up 2 1gbit\ndown\n") == 0, "%s: %s", e->measure, said);
    }
}

/* What breaks is said, and costs the other stages nothing: here no program is there. */
TEST(bench_gpu_script_goes_on_where_a_stage_breaks) {
    const char *dir = test_tmpdir();
    if (no_python()) return;
    SHELL_IN(".", 1, "",
             "python3 -B tools/bench_gpu.py --rehearse --no-build --programs %s --out %s", dir,
             dir);
    CHECK(strstr(said, "BROKE: ") && strstr(said, "/run_tests is missing"));
    CHECK(strstr(said, "d12  B=2") && strstr(said, "/train_gpt_emu is missing"));
    CHECK(strstr(said, "broken stages: probes, tests, kernels, curves\n"));
    SHELL(0, "", "grep -c '\"broke\"' rehearsal-*.json");
}
