#include "tests/test.h"

#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/opt_file.h"
#include "data/checkpoint.h"
#include "data/io.h"
#include "data/runstate.h"
#include "tests/values.h"

static const char MIXED[] = "layers=1,heads=2,channels=8,seq=6,vocab=11,pos=rope,act=swiglu";

static bool same(const Values *a, const Values *b, int parts) {
    return memcmp(a->values, b->values, (size_t)parts * a->n * sizeof *a->values) == 0;
}

static char *step_dir(const char *dir, int step) {
    return test_path("%s/step_%08d", dir, step);
}
static char *in_step(const char *dir, int step, const char *name) {
    return test_path("%s/%s", step_dir(dir, step), name);
}

static bool has_step(const char *dir, int step) {
    return io_exists(in_step(dir, step, "checkpoint.json"));
}

static bool save(const char *dir, int step, const Values *m, const CheckpointOptions *o, Err *e) {
    return checkpoint_save(dir, step, &m->t, "{}", o, &group_alone, e);
}
static bool load(const char *dir, int step, const Values *m, Err *e) {
    return checkpoint_load(step_dir(dir, step), &m->t, NULL, &group_alone, e);
}

/* The newest checkpoint is that step and holds the same bits. */
static bool newest_is(const char *dir, int64_t want_step, const Values *want) {
    int64_t step = -1;
    Err e = {""};
    OWNED(test_mem_end) char *path = checkpoint_latest(dir, &step, &group_alone), *state = NULL;
    char config[512];
    config_print(&want->t.config, config, sizeof config);
    OWNED(values_free) Values got = values_make(config, 3, 0);
    bool ok = path && step == want_step &&
              checkpoint_load(path, &got.t, &state, &group_alone, &e) && same(&got, want, 3);
    if (e.text[0]) printf("    %s\n", e.text);
    return ok;
}

/* Of other models: checkpoint_of_any_ranks_... */
TEST(checkpoint_round_trip_keeps_every_bit) {
    const char *dir = test_tmpdir();
    OWNED(values_free) Values a = values_make(MIXED, 3, 1), b = values_make(MIXED, 3, 0);
    OWNED(test_mem_end) char *state = NULL;
    int64_t step = 0;
    a.values[0] = -0.0f, a.values[1] = NAN, a.values[2] = 1e-42f; // bits, not numbers
    bool saved =
        checkpoint_save(dir, 7, &a.t, "{\"step\": 7, \"x\": [1.5]}", NULL, &group_alone, NULL);
    OWNED(test_mem_end) char *path = checkpoint_latest(dir, &step, &group_alone);
    CHECK(saved && path && step == 7);
    CHECK(checkpoint_verify(path, NULL));
    CHECK(checkpoint_load(path, &b.t, &state, &group_alone, NULL));
    CHECK_STR(state, "{\"step\": 7, \"x\": [1.5]}");
    CHECK(same(&a, &b, 3));
    Config c;
    CHECK(checkpoint_config(path, &c, NULL) && config_equal(&c, &a.t.config));
    CHECK(weights_config(path, &c, NULL) && config_equal(&c, &a.t.config));
    CHECK(count_names(dir) == 1);
}

TEST(checkpoint_names_the_difference_of_another_model) {
    const char *dir = test_tmpdir();
    OWNED(values_free) Values a = values_make(GPT2, 3, 1);
    OWNED(values_free) Values b = values_make("layers=2,heads=4,channels=8,seq=6,vocab=11", 3, 0);
    Err e = {""};
    CHECK(save(dir, 1, &a, NULL, &e));
    CHECK_REFUSED(load(dir, 1, &b, &e), e, "another model: it has heads=2, this run heads=4");
}

TEST(checkpoint_rotation_keeps_last_and_every) {
    const char *dir = test_tmpdir();
    OWNED(values_free) Values a = values_make(GPT2, 3, 1);
    CheckpointOptions o = {.keep_last = 2, .keep_every = 4};
    CHECK(save(dir, 100, &a, NULL, NULL)); // another run's: later steps stay
    for (int step = 1; step <= 7; step++) {
        CHECK(save(dir, step, &a, &o, NULL));
        CHECK(has_step(dir, step));
    }
    for (int step = 1; step <= 7; step++) CHECK(has_step(dir, step) == (step == 4 || step >= 6));
    CHECK(has_step(dir, 100));
    CHECK(count_names(dir) == 4);
    o.keep_last = 1, o.keep_every = 0;
    CHECK(save(dir, 8, &a, &o, NULL));
    CHECK(has_step(dir, 8) && count_names(dir) == 2);
    // what a user made is no checkpoint, though strtoll would read it so
    CHECK(mkdir(test_path("%s/step_8", dir), 0777) == 0);
    o.keep_last = 2;
    CHECK(save(dir, 9, &a, &o, NULL));
    CHECK(has_step(dir, 8) && count_names(dir) == 4);
}

TEST(checkpoint_copies_further_files) {
    const char *dir = test_tmpdir();
    char *copy = in_step(dir, 1, "tokenizer.json");
    OWNED(values_free) Values a = values_make(GPT2, 3, 1);
    Err e = {""};
    char name[] = "tokenizer.json";
    const IoMap files[] = {{.p = (const uint8_t *)"{\"a\":1}", .n = 7, .path = name}, {0}};
    CheckpointOptions o = {.files = files};
    CHECK(save(dir, 1, &a, &o, &e));
    OWNED(test_mem_end) char *text = test_read(copy, NULL);
    CHECK(text && strcmp(text, "{\"a\":1}") == 0);
}

/* ---- two runs ---- */

static void lock_and_be_killed(void *dir) {
    int lock;
    if (checkpoint_lock(dir, &group_alone, &lock, NULL)) raise(SIGKILL);
}

TEST(checkpoint_folder_is_one_runs_at_a_time) {
    char *dir = test_path("%s/new", test_tmpdir()), text[256];
    Err e;
    int lock, other;
    CHECK(test_in_child(lock_and_be_killed, dir, text, sizeof text) == 128 + 9); // leaves no lock
    CHECK(checkpoint_lock(dir, &group_alone, &lock, &e));
    CHECK_REFUSED(checkpoint_lock(dir, &group_alone, &other, &e), e, "new/.lock is held by");
    CHECK(strstr(e.text, test_path("process %ld on ", (long)getpid())));
    CHECK(test_in_child(lock_and_be_killed, dir, text, sizeof text) == 0);
    close(lock);
    CHECK(checkpoint_lock(dir, &group_alone, &lock, &e));
    close(lock);
    CHECK_REFUSED(checkpoint_lock("/proc/new", &group_alone, &lock, &e), e, "/proc/new");
}

/* A path of this length in a folder (mem_free). */
static char *long_path(const char *dir, size_t length) {
    char *path = mem_strdup(dir);
    while (strlen(path) < length) {
        size_t left = length - strlen(path) - 1;
        char *longer = mem_printf("%s/%0*d", path, (int)(left > 200 ? 100 : left), 0);
        mem_free(path), path = longer;
    }
    return path;
}

TEST(checkpoint_folder_is_refused_if_a_save_has_paths_that_are_too_long) {
    const char *dir = test_tmpdir();
    OWNED(values_free) Values a = values_make(GPT2, 3, 1);
    Err e;
    int lock = -1;
    size_t length = PATH_MAX;
    char *path = NULL;
    do mem_free(path), path = long_path(dir, --length);
    while (!checkpoint_lock(path, &group_alone, &lock, &e) && length > PATH_MAX / 2);
    bool saved = save(path, 12345678, &a, NULL, &e);
    close(lock), mem_free(path);
    CHECK_SAYS(saved, "%zu bytes: %s", length, e.text);
    CHECK(length > PATH_MAX - 200);
}

/* ---- damage ---- */

TEST(checkpoint_notices_every_flipped_byte) {
    static const char *const files[] = {"config.json", "model.safetensors", "optimizer.safetensors",
                                        "train_state.json"};
    const char *dir = test_tmpdir();
    OWNED(values_free) Values a = values_make(GPT2, 3, 1), b = values_make(GPT2, 3, 0);
    Err e = {""};
    CHECK(checkpoint_save(dir, 5, &a.t, "{\"step\": 5}", NULL, &group_alone, &e));
    for (EACH(file, files)) {
        OWNED(test_mem_end) char *path = mem_strdup(in_step(dir, 5, *file));
        struct stat st;
        CHECK(stat(path, &st) == 0);
        long stride = st.st_size / 200 + 1;
        for (long at = 0; at < st.st_size; at += stride) {
            flip_byte(path, at, 1 << at % 8);
            CHECK(!load(dir, 5, &b, &e));
            CHECK(strstr(e.text, *file) && strstr(e.text, "checksum"));
            flip_byte(path, at, 1 << at % 8);
        }
        CHECK(checkpoint_verify(step_dir(dir, 5), &e));
    }
}

TEST(checkpoint_passes_over_incomplete_ones) {
    const char *dir = test_tmpdir();
    OWNED(values_free) Values a = values_make(GPT2, 3, 1), b = values_make(GPT2, 3, 2);
    CHECK(checkpoint_latest(dir, NULL, &group_alone) == NULL);
    CHECK(save(dir, 1, &a, NULL, NULL));
    for (int step = 2; step < 7; step++) CHECK(save(dir, step, &b, NULL, NULL));
    CHECK(remove(in_step(dir, 2, "checkpoint.json")) == 0);
    CHECK(truncate(in_step(dir, 3, "model.safetensors"), 100) == 0);
    CHECK(remove(in_step(dir, 4, "optimizer.safetensors")) == 0);
    flip_byte(in_step(dir, 5, "checkpoint.json"), 40, 1);
    CHECK(truncate(in_step(dir, 6, "checkpoint.json"), 0) == 0);
    CHECK(newest_is(dir, 1, &a));
}

TEST(checkpoint_notices_a_flipped_byte_of_its_list) {
    const char *dir = test_tmpdir();
    OWNED(values_free) Values a = values_make(GPT2, 3, 1), b = values_make(GPT2, 3, 0);
    Err e = {""};
    struct stat st;
    CHECK(save(dir, 5, &a, NULL, &e));
    OWNED(test_mem_end) char *path = mem_strdup(in_step(dir, 5, "checkpoint.json"));
    CHECK(stat(path, &st) == 0);
    int refused = 0;
    for (long at = 0; at < st.st_size; at++) {
        flip_byte(path, at, 1 << at % 8);
        memset(b.values, 0, 3 * b.n * sizeof *b.values);
        if (!load(dir, 5, &b, &e))
            refused++;
        else
            CHECK(same(&a, &b, 3)); // a space between words became a tab or the like
        flip_byte(path, at, 1 << at % 8);
    }
    CHECK(refused > st.st_size * 3 / 4); // the rest is indentation
    OWNED(test_mem_end) char *good = test_read(path, NULL);
    flip_byte(path, strstr(good, "checkpoint 1") + 11 - good, 3);
    CHECK_REFUSED(load(dir, 5, &b, &e), e, "format \"train_gpt checkpoint 2\"; this program reads");
    CHECK(remove(path) == 0 && !load(dir, 5, &b, &e));
    CHECK(strstr(e.text, "checkpoint.json: No such file"));
}

TEST(checkpoint_serves_a_model_without_optimizer) {
    const char *dir = test_tmpdir();
    OWNED(values_free)
    Values a = values_make(GPT2, 3, 1), b = values_make(GPT2, 3, 0), c = values_make(GPT2, 3, 0);
    Err e = {""};
    for (int i = 0; i < b.t.n; i++) b.t.t[i].m = b.t.t[i].v = NULL;
    CHECK(save(dir, 1, &a, NULL, &e));
    CHECK(load(dir, 1, &b, &e) && same(&a, &b, 1));
    CHECK(save(dir, 2, &b, NULL, &e)); // holds parameters alone
    CHECK(load(dir, 2, &b, &e) && same(&a, &b, 1));
    CHECK_REFUSED(load(dir, 2, &c, &e), e, "optimizer.safetensors");
    // with that of another model beside it
    OWNED(values_free) Values d = values_make(LLAMA, 3, 1);
    const char *other = test_tmpdir();
    CHECK(save(other, 1, &d, NULL, &e));
    char name[] = "optimizer.safetensors";
    OWNED(io_unmap) IoMap moments = io_open(in_step(other, 1, name));
    const IoMap files[] = {{.p = moments.p, .n = moments.n, .path = name}, {0}};
    CHECK(save(dir, 3, &b, &(CheckpointOptions){.files = files}, &e));
    CHECK_REFUSED(load(dir, 3, &c, &e), e,
                  "step_00000003/optimizer.safetensors: tensor m.wte [11, 8] is missing");
}

/* What of a good state is replaced by what. */
TEST(runstate_refuses_what_is_none) {
    static const char *const cases[][2] = {{"\"step\": 7", "\"step\": -7"},
                                           {"\"tokens\"", "\"words\""},
                                           {"\"ring\"", "\"list\""},
                                           {"0.5", "null"},
                                           {"\"count\": 3", "\"count\": -3"},
                                           {"\"batch\": 64", "\"batch\": -64"},
                                           {"\"batch\": 64", "\"batch\": 2305843009213693952"},
                                           {"\"data\": 5", "\"data\": -5"},
                                           {"\"best_step\": 6", "\"best_step\": -6"},
                                           {"1.5", "\"low\""},
                                           {"\"count\": 3", "\"count\": 9223372036854775807"},
                                           {"{", ""}};
    RunState s = {.step = 7, .tokens = 9, .batch = 64, .data = 5, .norm_z = {{0.5}, 3}}, back;
    s.best_step = 6, s.best_loss = 1.5;
    Err e;
    OWNED(test_mem_end) char *good = runstate_print(&s, (const Opt[]){{0}});
    CHECK(runstate_parse(good, &back, &e) && memcmp(&s, &back, sizeof s) == 0);
    for (int i = 0; i < N_OF(cases); i++) {
        OWNED(test_mem_end) char *bad = test_changed(good, cases[i][0], cases[i][1]);
        CHECK_SAYS(!runstate_parse(bad, &back, &e), "case %d was read", i);
    }
}

/* A run is started again from its record: nothing of it may be missing. */
TEST(runstate_records_options_of_any_length_and_bytes) {
    const char *train, *val, *model = "layers=1", *tokenizer = "a";
    const Opt options[] = {{"train", OPT_STR, &train, "", 0, 0, "FILE", ""},
                           {"val", OPT_STR, &val, "", 0, 0, "FILE", ""},
                           {"model", OPT_STR, &model, "", 0, 0, "SPEC", ""},
                           {"tokenizer", OPT_STR, &tokenizer, "", 0, 0, "FILE", ""},
                           {0}};
    char names[9001];
    memset(names, 'x', sizeof names - 1);
    names[sizeof names - 1] = 0;
    train = names, val = "no \xff text";
    OWNED(test_mem_end) char *text = runstate_print(&(RunState){0}, options);
    OWNED(opt_file_free) OptFile record = {0};
    CHECK(opt_file_parse(text, strlen(text), &record, NULL) && record.n == 4);
    CHECK_STR(record.pair[0].value, names);
    CHECK_STR(record.pair[1].value, "no \xef\xbf\xbd text");
    OWNED(test_mem_end) char *said = PRINTED(runstate_differences(text, options, false, f));
    CHECK_STR(said, "");
    names[sizeof names - 2] = 'y';
    // a model that is not given is the checkpoint's
    model = "layers=2", tokenizer = "b";
    OWNED(test_mem_end) char *other = PRINTED(runstate_differences(text, options, false, f));
    CHECK(strstr(other, "xy\"\n  --tokenizer was \"a\", is \"b\"\n") && !strstr(other, "--model"));
    OWNED(test_mem_end) char *kept = PRINTED(runstate_differences(text, options, true, f));
    CHECK(strstr(kept, "xy\"\n") && !strstr(kept, "--tokenizer"));
}

/* ---- failures while saving ---- */

typedef struct Victim {
    const char *dir;
    const Values *m;
    int at;
    bool kill;
} Victim;

static void save_again(void *arg) {
    const Victim *v = arg;
    static const uint8_t big[100000]; // is written in several pieces
    char name[] = "vocab.json";
    const IoMap files[] = {{.p = big, .n = sizeof big, .path = name}, {0}};
    const CheckpointOptions o = {.files = files};
    Err e;
    io_inject(v->at, v->kill);
    if (!save(v->dir, 2, v->m, &o, &e)) _exit(1);
}

/* In the place of a folder that is not whole. */
TEST(checkpoint_survives_kill_and_failure_at_every_write) {
    const char *dir = test_tmpdir();
    OWNED(values_free) Values a = values_make(GPT2, 3, 1), b = values_make(GPT2, 3, 2);
    OWNED(test_mem_end)
    char *copy = mem_printf("%s/step_00000002/vocab.json", dir),
         *list = mem_printf("%s/step_00000002/checkpoint.json", dir);
    char text[256];
    for (int kill = 0; kill < 2; kill++) {
        CHECK(save(dir, 1, &a, NULL, NULL));
        CHECK(save(dir, 2, &a, NULL, NULL) && remove(list) == 0);
        for (int i = 1;; i++) {
            Victim v = {dir, &b, i, kill};
            if (test_in_child(save_again, &v, text, sizeof text) == 0) break;
            CHECK(i < 99 && has_step(dir, 1) && (!io_exists(list) || newest_is(dir, 2, &b)));
            CHECK(kill || count_names(dir) <= 2);
        }
        CHECK(newest_is(dir, 2, &b) && count_names(dir) == 2 && io_exists(copy));
    }
}
