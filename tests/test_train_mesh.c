/* train_gpt itself on meshes: one run, whatever the ranks, and however often they change on the way. */
#include "tests/test.h"

#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/io.h"

enum { MAX_STEPS = 32, VOCAB = 61 };

static const char *const models[] = {
    "layers=2,heads=5,channels=20,seq=16,vocab=64",
    "llama,layers=2,heads=6,kv_heads=2,channels=24,ffn=22,seq=16,vocab=64"};

/* What all runs share. Where a gradient is all rounding, AdamW must not make a step of it: hence eps. */
#define RUN                                                                                        \
    "RUN=\"$BUILD/train_gpt --train train.bin --threads 1 --schedule constant --eval-every 0 "     \
    "--lr 1e-2 --eps 1e-4\"; "

static bool write_tokens(const char *dir, const char *name, int n) {
    uint16_t tokens[4000];
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    for (int i = 0; i < n; i++) tokens[i] = (uint16_t)((i * i + i / 7) % VOCAB);
    return io_write_file(path, tokens, (size_t)n * sizeof *tokens, NULL, NULL);
}

/* What a run wrote with --json: step i at place i - 1. */
typedef struct Log {
    int n; // steps
    double loss[MAX_STEPS], norm[MAX_STEPS];
    int64_t tokens[MAX_STEPS];
    bool skipped[MAX_STEPS];
    double val_loss, hellaswag;
    char sample[4096];
} Log;

static void read_record(Log *log, const json_t *j) {
    int64_t step = json_integer_value(json_object_get(j, "step"));
    if (json_object_get(j, "loss") && step >= 1 && step <= MAX_STEPS) {
        log->n = (int)step;
        log->loss[step - 1] = json_number_value(json_object_get(j, "loss"));
        log->norm[step - 1] = json_number_value(json_object_get(j, "norm"));
        log->tokens[step - 1] = json_integer_value(json_object_get(j, "tokens"));
    }
    const json_t *val = json_object_get(j, "val_loss"), *share = json_object_get(j, "hellaswag"),
                 *sample = json_object_get(j, "sample");
    if (val) log->val_loss = json_number_value(val);
    if (share) log->hellaswag = json_number_value(share);
    if (sample) snprintf(log->sample, sizeof log->sample, "%s", json_string_value(sample));
}

static Log read_log(const char *dir, const char *name) {
    Log log = {.val_loss = NAN, .hellaswag = NAN};
    char path[160], line[8192];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        json_t *j = json_loads(line, 0, NULL);
        read_record(&log, j);
        json_decref(j);
    }
    if (f) fclose(f);
    return log;
}

/* How far apart two logs are, relative to the second: the worst loss and the worst norm. */
typedef struct Apart {
    double loss, norm;
} Apart;

static Apart apart(const Log *a, const Log *b) {
    Apart d = {a->n == b->n ? 0 : INFINITY, 0};
    for (int i = 0; i < b->n && i < a->n; i++) {
        d.loss = fmax(d.loss, fabs(a->loss[i] / b->loss[i] - 1));
        d.norm = fmax(d.norm, fabs(a->norm[i] / b->norm[i] - 1));
        if (!isfinite(a->loss[i] + a->norm[i])) d.loss = INFINITY;
    }
    return d;
}

/* Runs commands of the test's folder; prints what they said if the status is another than 0. */
static bool runs(const char *dir, const char *command) {
    char text[8192];
    int status = test_shell(dir, text, sizeof text, RUN "%s", command);
    if (status) printf("    %s\n    status %d: %s\n", command, status, text);
    return status == 0;
}

/* What other orders of the same sums make of a run on one rank: 10 times that is the bound for a mesh. In a
 * few numbers they may hit the same bits by chance: at least a unit or two in the last place of a float. */
static Apart reordered(const char *dir, const Log *one, const char *options) {
    static const char *const others[] = {"portable", "avx2"};
    Apart worst = {6e-8, 2e-7};
    char command[512];
    for (int i = 0; i < 2; i++) {
        snprintf(command, sizeof command, "$RUN %s --kernels %s --json order%d.jsonl 2>/dev/null",
                 options, others[i], i);
        if (test_shell(dir, (char[256]){0}, 256, RUN "%s", command) != 0) continue; // not here
        snprintf(command, sizeof command, "order%d.jsonl", i);
        Log log = read_log(dir, command);
        Apart d = apart(&log, one);
        worst = (Apart){fmax(worst.loss, d.loss), fmax(worst.norm, d.norm)};
    }
    return (Apart){10 * worst.loss, 10 * worst.norm};
}

/* 55 sequences of an epoch, 5 a step: the last handover is in the middle of the second one. */
static void moves(const char *model) {
    static const char *const legs[] = {"--steps 3 --ranks 4 --layout x2.y2+sp",
                                       "--steps 7 --ranks 3 --layout x3", "--steps 13",
                                       "--steps 18 --ranks 6 --layout d2.x3+heads+zero1"};
    const char *dir = test_tmpdir();
    char what[256], command[512];
    CHECK(write_tokens(dir, "train.bin", 55 * 16 + 1));
    snprintf(what, sizeof what, "--model %s --micro 1 --batch 80 --steps 18", model);
    snprintf(command, sizeof command, "$RUN %s --json one.jsonl", what);
    CHECK(runs(dir, command));
    Log one = read_log(dir, "one.jsonl");
    CHECK(one.n == 18);
    Apart bound = reordered(dir, &one, what);
    for (int i = 0; i < 4; i++) {
        snprintf(command, sizeof command,
                 "$RUN --model %s --micro 1 --batch 80 --save run %s %s --json run.jsonl", model,
                 legs[i], i ? "--resume" : "");
        CHECK(runs(dir, command));
    }
    Log run = read_log(dir, "run.jsonl");
    Apart d = apart(&run, &one);
    printf("    loss %.1e (bound %.1e), norm %.1e (%.1e)\n", d.loss, bound.loss, d.norm,
           bound.norm);
    CHECK(run.n == 18 && run.tokens[17] == 18 * 80);
    CHECK(d.loss <= bound.loss && d.norm <= bound.norm);
    for (int i = 0; i + 1 < one.n; i++) // a neighbouring batch would not pass for this one
        CHECK(fabs(one.norm[i] / one.norm[i + 1] - 1) > 10 * bound.norm);
}

TEST(train_moves_between_meshes_within_an_epoch_gpt2) {
    moves(models[0]);
}
TEST(train_moves_between_meshes_within_an_epoch_llama) {
    moves(models[1]);
}

/* The batch is the same as before even where --batch was left to the first mesh. */
TEST(train_resumed_on_another_mesh_keeps_the_batch) {
    const char *dir = test_tmpdir();
    CHECK(write_tokens(dir, "train.bin", 2000));
    char command[512];
    snprintf(command, sizeof command,
             "RUN=\"$RUN --model %s --micro 2 --save run --json run.jsonl\"; "
             "$RUN --ranks 3 --layout dp --steps 2 && $RUN --steps 3 --resume && "
             "$RUN --ranks 2 --steps 4 --resume",
             models[0]);
    CHECK(runs(dir, command));
    Log run = read_log(dir, "run.jsonl");
    CHECK(run.n == 4 && run.tokens[1] == 2 * 3 * 2 * 16);
    CHECK(run.tokens[2] == 3 * 3 * 2 * 16 && run.tokens[3] == 4 * 3 * 2 * 16);
    // a batch that is asked for is the one that is taken
    snprintf(command, sizeof command,
             "$RUN --model %s --micro 2 --save run --json run.jsonl --steps 5 --resume --batch 64",
             models[0]);
    CHECK(runs(dir, command));
    run = read_log(dir, "run.jsonl");
    CHECK(run.tokens[4] == run.tokens[3] + 64);
}

static const char *const meshes[] = {
    "2 --layout dp",          "3 --layout fsdp",           "4 --layout x2.y2+sp",
    "4 --layout optimus:2x2", "5 --layout megatron",       "6 --layout y3.z2+heads",
    "8 --layout cube:2",      "8 --layout d2.z2.x2+zero2", "7 --layout megatron-sp"};
enum { N_MESHES = sizeof meshes / sizeof *meshes };

TEST(train_writes_the_same_first_checkpoint_on_every_mesh) {
    for (int i = 0; i < 2; i++) {
        const char *dir = test_tmpdir();
        char command[1024];
        CHECK(write_tokens(dir, "train.bin", 1000));
        snprintf(command, sizeof command,
                 "$RUN --model %s --micro 1 --batch 80 --steps 0 --save one", models[i]);
        CHECK(runs(dir, command));
        for (int k = 0; k < N_MESHES; k++) {
            snprintf(command, sizeof command,
                     "$RUN --model %s --micro 1 --batch 80 --steps 0 --save m%d --ranks %s && "
                     "for f in config.json model.safetensors optimizer.safetensors; do "
                     "cmp one/step_00000000/$f m%d/step_00000000/$f || exit 1; done",
                     models[i], k, meshes[k], k);
            CHECK(runs(dir, command));
        }
    }
}
