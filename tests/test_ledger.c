#include "parallel/plan/ledger_file.h"

#include <sys/wait.h>
#include <unistd.h>

#include "tests/shell.h"

static const LedgerLine some = {.time = "2026-01-31T12:00:00Z",
                                .machine = "a \"processor\"\nwith words",
                                .model = "layers=2",
                                .layout = "d2.x3+sp",
                                .backend = "threads",
                                .dtype = "bf16",
                                .recompute = "full",
                                .calibration = "2026-01-31T11:59:50Z",
                                .ranks = 6,
                                .threads = 2,
                                .micro = 4,
                                .batch = INT64_C(1) << 40,
                                .steps = 50,
                                .predicted_ms = 1.0 / 3, // all digits must come back
                                .measured_ms = 0.1,
                                .predicted_bytes = 123456789012345,
                                .measured_bytes = 123456789012344,
                                .predicted_memory = 7,
                                .measured_memory = 8};

static const char *fresh(void) {
    return test_path("%s/ledger.jsonl", test_tmpdir());
}

static void append_text(const char *path, const char *text) {
    FILE *f = fopen(path, "a");
    if (!f) abort();
    fputs(text, f);
    fclose(f);
}

TEST(ledger_reads_what_was_appended) {
    LedgerLine l[3];
    LedgerDamage damage;
    char *path = test_path("%s/a/b/ledger.jsonl", test_tmpdir()); // folders are made
    CHECK(ledger_read(path, l, 3, &damage, NULL) == 0 && damage.n == 0);
    CHECK(ledger_append(path, &some, NULL) && ledger_append(path, &some, NULL));
    CHECK(ledger_read(path, l, 3, &damage, NULL) == 2 && damage.n == 0);
    CHECK(memcmp(&l[0], &some, sizeof some) == 0 && memcmp(&l[1], &some, sizeof some) == 0);
}

TEST(ledger_keeps_the_order_of_the_newest_lines) {
    const char *path = fresh();
    LedgerLine l[4], one = some;
    LedgerDamage damage;
    for (one.steps = 1; one.steps <= 11; one.steps++) CHECK(ledger_append(path, &one, NULL));
    CHECK(ledger_read(path, l, 4, &damage, NULL) == 4);
    for (int i = 0; i < 4; i++) CHECK(l[i].steps == 8 + i);
}

TEST(ledger_passes_over_damaged_lines) {
    const char *path = fresh();
    LedgerLine l[8], nameless = some;
    LedgerDamage damage;
    CHECK(ledger_append(path, &some, NULL));
    append_text(path, "no json\n\n[1]\n{\"ranks\": 2}\n"); // 3 of them: an empty line is none
    append_text(path, "{\"time\": \"now\", \"ranks\": \"two\"}\n{\"time\": 1}\n"); // and 2
    append_text(path, "{\"time\": \"now\", \"from\": \"the future\"}\n"); // this one is fine
    append_text(path, "{\"time\": \"20");                                 // one that lost its end
    nameless.predicted_ms = NAN, strcpy(nameless.machine, "a \xe6 b");
    CHECK(ledger_append(path, &nameless, NULL));
    CHECK(ledger_read(path, l, 8, &damage, NULL) == 3 && damage.n == 6 && damage.first == 2);
    CHECK_STR(l[1].time, "now");
    CHECK(l[1].ranks == 0 && l[2].ranks == some.ranks);
    CHECK(l[2].predicted_ms == 0); // what has no word in JSON
    CHECK_STR(l[2].machine, "a ? b");
}

TEST(ledger_lines_of_several_processes_do_not_mix) {
    enum { PROCESSES = 3, LINES = 150 };
    const char *path = fresh();
    OWNED(test_mem_end) LedgerLine *l = mem_alloc(PROCESSES * LINES * sizeof *l);
    LedgerLine one = some;
    LedgerDamage damage;
    int status, seen[PROCESSES] = {0};
    memset(one.model, 'm', sizeof one.model - 1);
    for (int p = 0; p < PROCESSES; p++)
        if (fork() == 0) {
            bool ok = true;
            one.ranks = p;
            for (one.steps = 0; one.steps < LINES; one.steps++)
                ok = ok && ledger_append(path, &one, NULL);
            _exit(!ok);
        }
    for (int p = 0; p < PROCESSES; p++) CHECK(wait(&status) > 0 && status == 0);
    CHECK(ledger_read(path, l, PROCESSES * LINES, &damage, NULL) == PROCESSES * LINES);
    CHECK(damage.n == 0);
    for (int i = 0; i < PROCESSES * LINES; i++) CHECK(l[i].steps == seen[l[i].ranks]++);
}

TEST(ledger_says_why_it_cannot_be_written) {
    Err e;
    LedgerDamage damage;
    LedgerLine l;
    const char *path = fresh();
    append_text(path, "a file\n");
    CHECK(!ledger_append(test_path("%s/ledger.jsonl", path), &some, &e) && strstr(e.text, path));
    CHECK_REFUSED(ledger_append(test_tmpdir(), &some, &e), e, "Is a directory");
    CHECK_REFUSED(ledger_append("/dev/full", &some, &e), e, "No space left");
    CHECK(ledger_read(test_tmpdir(), &l, 1, &damage, &e) == -1 && strstr(e.text, "cannot read"));
}

static void find(UNUSED void *arg) {
    bool ok = true;
    char *p;
    setenv("XDG_CACHE_HOME", "/x", 1), setenv("HOME", "/h", 1);
    ok = (p = ledger_path()) && strcmp(p, "/x/train_gpt/ledger.jsonl") == 0, mem_free(p);
    setenv("XDG_CACHE_HOME", "relative", 1);
    ok &= (p = ledger_path()) && strcmp(p, "/h/.cache/train_gpt/ledger.jsonl") == 0, mem_free(p);
    unsetenv("XDG_CACHE_HOME"), unsetenv("HOME");
    ok &= !ledger_path();
    _exit(ok ? 0 : 1);
}
TEST(ledger_lies_in_the_cache_of_the_user) {
    CHECK_CHILD(0, find, NULL, "");
}

TEST(ledger_errors_are_medians_by_machine) {
    LedgerLine l[6] = {{.machine = "a", .predicted_ms = 100, .measured_ms = 110},
                       {.machine = "b", .predicted_ms = 100, .measured_ms = 300},
                       {.machine = "a", .predicted_ms = 100, .measured_ms = 70},
                       {.machine = "a", .predicted_ms = 0, .measured_ms = 70},
                       {.machine = "a", .predicted_ms = 100, .measured_ms = 0},
                       {.machine = "a", .predicted_ms = 100, .measured_ms = 120}};
    CHECK_NEAR(ledger_median_error(l, 6, "a", false), 0.2,
               1e-12); // of 0.1 0.3 0.2; rounding of doubles
    CHECK_NEAR(ledger_median_error(l, 3, "a", false), 0.2, 1e-12); // of 0.1 0.3
    CHECK_NEAR(ledger_median_error(l, 2, "a", false), 0.1, 1e-12);
    CHECK(isnan(ledger_median_error(l, 6, "c", false)) && isnan(ledger_error(0, 1)));
    CHECK(isnan(ledger_median_error(l, 6, "a", true)));
    strcpy(l[2].calibration, "2026-01-31T12:00:00Z");
    CHECK_NEAR(ledger_median_error(l, 6, "a", true), 0.3, 1e-12);
    CHECK_NEAR(ledger_median_error(l, 6, "a", false), 0.15, 1e-12); // of 0.1 0.2
}

/* The program itself. */
static int train(const char *dir, const char *more) {
    return test_shell(
        dir, said, sizeof said,
        "XDG_CACHE_HOME=$PWD/cache $BUILD/train_gpt --train train.bin --model "
        "layers=2,heads=2,channels=16,seq=16,vocab=64 --ranks 2 --threads 1 --micro 2 %s",
        more);
}

TEST(run_measures_once_and_says_when_its_steps_are_not_as_predicted) {
    const char *dir = shell_directory(4000);
    LedgerLine l[2];
    LedgerDamage damage;
    // on one core ranks are known to take turns; on more a stopwatch says, and busy machines change
    // its mind
    CHECK(test_one_processor(true));
    CHECK(train(dir, "--steps 5") == 0);
    CHECK(strstr(said, "measuring kernels and collectives of this machine: 10 s at most"));
    CHECK(strstr(said, "kept in ") && strstr(said, "/cache/train_gpt/calibration-"));
    CHECK(strstr(said, "--calibrate none does not measure, --layout SPEC does not plan"));
    char *path = test_path("%s/cache/train_gpt/ledger.jsonl", dir);
    CHECK(ledger_read(path, l, 2, &damage, NULL) == 1 && *l[0].calibration);
    CHECK(train(dir, "--steps 5 --layout d2") == 0);
    CHECK(!strstr(said, "measuring")); // and is predicted by the table that there is
    CHECK(strstr(said, " ms a step are predicted for this layout"));
    CHECK(ledger_read(path, l + 1, 1, &damage, NULL) == 1 && l[1].predicted_ms > 0);
    CHECK_STR(l[1].calibration, l[0].calibration);
    CHECK(train(dir, "--plan") == 0);
    CHECK(!strstr(said, "measur"));
    CHECK(train(dir, "--plan --calibrate again") == 0);
    CHECK(strstr(said, "measured them in "));
    CHECK(train(dir, "--plan --ranks 1") == 0);
    SHELL(0, "",
          "sed -i 's/\"per_row\": [0-9.e-]*/\"per_row\": 0.01/' cache/train_gpt/calibration-*");
    CHECK(train(dir, "--steps 4 --refine 0") == 0 && !strstr(said, " were predicted ("));
    CHECK(train(dir, "--steps 5 --refine 0") == 0); // three steps after the first two
    CHECK(strstr(said, " were predicted (-") && strstr(said, "--calibrate again")); // too slow
    CHECK(strstr(said, ", --refine 8 tries more layouts\n"));
    CHECK(train(dir, "--steps 6 --layout d2") == 0);
    CHECK(strstr(said, " may be faster; --plan --calibrate again repeats the measurements\n"));
    CHECK(train(dir, "--steps 6 --ranks 1") == 0 && !strstr(said, " were predicted ("));
    SHELL(0, "",
          "sed -i 's/\"per_row\": [0-9.e-]*/\"per_row\": 1e-5/' cache/train_gpt/calibration-*");
    CHECK(train(dir, "--steps 200 --refine 2") == 0);
    char *remark = strstr(said, " were predicted (");
    CHECK(remark && !strstr(remark + 1, " were predicted (")); // of the layout that it stays on
    CHECK(strstr(said, ", chosen\n") && strstr(said, ", chosen\n") < remark);
}

TEST(ledger_gets_a_line_from_every_run_that_trains) {
    const char *dir = shell_directory(4000);
    LedgerLine l[4];
    LedgerDamage damage;
    CHECK(train(dir, "--layout x2 --steps 7 --ledger none") == 0);
    CHECK(train(dir, "--layout x2 --steps 7 --profile") == 0); // which takes time itself
    CHECK(train(dir, "--layout x2 --steps 1") == 0);           // the first two steps pay for
    CHECK(train(dir, "--layout x2 --steps 2") == 0);           // page faults
    SHELL(0, "", "test ! -e cache");
    CHECK(train(dir, "--layout x2 --steps 60") == 0);
    CHECK(strstr(said, "no prediction for this layout: this machine was not measured for it"));
    char *path = test_path("%s/cache/train_gpt/ledger.jsonl", dir);
    CHECK(ledger_read(path, l, 4, &damage, NULL) == 1 && damage.n == 0);
    CHECK(l[0].steps == 50 && l[0].ranks == 2 && l[0].micro == 2 && l[0].batch == 32);
    CHECK(l[0].measured_ms > 0 && l[0].measured_bytes > 0);
    CHECK(l[0].measured_bytes == l[0].predicted_bytes); // parallel/plan/count.h is exact
    int64_t pages = 6 * 65536; // what is measured is whole pages, of each arena
    CHECK(l[0].measured_memory > 0 && l[0].measured_memory <= l[0].predicted_memory + pages);
    CHECK(l[0].predicted_memory > 0 && *l[0].time && *l[0].machine && l[0].threads == 1);
    CHECK_STR(l[0].layout, "x2");
    CHECK_STR(l[0].backend, "threads");
    CHECK_STR(l[0].dtype, "fp32");
    CHECK_STR(l[0].recompute, "none");
    CHECK(l[0].predicted_ms == 0 && !*l[0].calibration); // nothing was measured here
    CHECK(train(dir, "--layout d2 --steps 5 --ledger other/l.jsonl") == 0);
    path = test_path("%s/other/l.jsonl", dir);
    CHECK(ledger_read(path, l, 4, &damage, NULL) == 1 && l[0].steps == 3);
    CHECK(train(dir, "--layout d2 --steps 5 --ledger train.bin/x") ==
          0); // a run does not end for it
}

TEST(ledger_is_about_steps_without_meetings) {
    const char *dir = shell_directory(4000);
    LedgerLine l[3];
    LedgerDamage damage;
    CHECK(train(dir, "--layout d2 --batch 64 --steps 12 --sync-every 3") == 0);
    CHECK(train(dir, "--layout d2 --batch 64 --steps 12 --sync-every 5 --fragments 5") == 0);
    char *path = test_path("%s/cache/train_gpt/ledger.jsonl", dir);
    CHECK(ledger_read(path, l, 3, &damage, NULL) == 2);
    CHECK(l[0].steps == 6 && l[0].measured_bytes == l[0].predicted_bytes);
    CHECK(l[0].measured_bytes > 0);   // loss and norm
    CHECK(l[1].predicted_bytes == 0); // something meets in every step
}

TEST(ledger_tool_prints_errors_and_their_median) {
    const char *path = fresh();
    LedgerLine slower = some, faster = some, other = some;
    char *dir = test_path("%.*s", (int)(strrchr(path, '/') - path), path);
    strcpy(slower.machine, "here"), strcpy(faster.machine, "here"), strcpy(other.machine, "there");
    slower.predicted_ms = 100, slower.measured_ms = 120;
    faster.predicted_ms = 100, faster.measured_ms = 90;
    other.predicted_ms = 0, other.predicted_memory = 1, other.measured_memory = 2345678;
    CHECK(ledger_append(path, &slower, NULL) && ledger_append(path, &faster, NULL));
    append_text(path, "torn\n");
    CHECK(ledger_append(path, &other, NULL));
    SHELL(1, "", "$BUILD/ledger --file ledger.jsonl");
    CHECK(strstr(said, "+20.0 %            |====\n") && strstr(said, "-10.0 %          ==|\n"));
    CHECK(strstr(said, "15.0 %  here\n") && strstr(said, "-    there (nothing was predicted)\n"));
    CHECK(strstr(said, " 2.3e6 x  "));
    CHECK(strstr(said, "ledger: ledger.jsonl:3: this line is no record of a run; the others"));
    SHELL(1, "", "$BUILD/ledger --file ledger.jsonl --last 2 --json 2>/dev/null");
    CHECK(strstr(said, "\"here\": 0.0999") || strstr(said, "\"here\": 0.1"));
    CHECK(strstr(said, "\"there\": null") && !strstr(said, "120.0"));
    SHELL(1, "", "$BUILD/ledger --file no.jsonl");
    SHELL(0, "", // on two machines, whose costs were known
          "for t in one,150 one,160 one,40 two,1050; do echo "
          "'{\"time\":\"now\",\"predicted_ms\":100,\"machine\":\"'${t%%,*}'\",\"measured_ms\":'"
          "${t#*,}'}'; done >bars.jsonl; $BUILD/ledger --file bars.jsonl");
    CHECK(strstr(said, "+50.0 %            |==========\n") && !strstr(said, "received"));
    CHECK(strstr(said, "+60.0 %            |=========>\n") &&
          strstr(said, "-60.0 %  <=========|\n"));
    CHECK(test_count(said, "one (") == 1);
    CHECK(strstr(said, "    60.0 %  one (its costs were not measured)\n"
                       "      10 x  two (its costs were not measured)\n"));
    SHELL(1, "", "echo torn >>bars.jsonl; $BUILD/ledger --file bars.jsonl --json 2>/dev/null");
    CHECK(strstr(said, "\"median_error_of_known_costs\": {\n  \"one\": 0.") &&
          strstr(said, "\"damaged\": 1"));
}
