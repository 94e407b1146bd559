/* train_gpt itself on meshes: one run, whatever the ranks, and however often they change on the
 * way. */
#include "tests/shell.h"

static const char *const models[] = {
    "layers=2,heads=5,channels=20,seq=16,vocab=64",
    "llama,layers=2,heads=6,kv_heads=2,channels=24,ffn=22,seq=16,vocab=64"};

/* What all runs share. Where a gradient is all rounding, AdamW must not make a step of it: hence
 * eps. */
#define RUN                                                                                        \
    "RUN=\"$BUILD/train_gpt --train train.bin --threads 1 --schedule constant --eval-every 0 "     \
    "--lr 1e-2 --eps 1e-4\"; "

/* Runs commands of the test's folder, all of which must succeed. */
#define RUNS(...) SHELL(0, "", RUN __VA_ARGS__)

/* Numbers of step `step` in a file of records. */
static double loss_of(const char *dir, const char *file, int step) {
    return shell_recorded(dir, file, "\"loss\":", step - 1);
}
static double tokens_of(const char *dir, const char *file, int step) {
    return shell_recorded(dir, file, "\"tokens\":", step - 1);
}

/* 55 sequences of an epoch, 10 a step: the last handover is in the middle of the third one. With
 * --exact not a bit of weights or moments tells the run that moved from the one that stayed; ranks
 * without it also hold copies of key heads. */
TEST(train_moves_between_meshes_within_an_epoch) {
    static const char *const legs[] = {"--steps 3 --ranks 4 --layout x2.y2+sp",
                                       "--steps 7 --ranks 3 --layout x3", "--steps 13",
                                       "--steps 18 --ranks 6 --layout d2.x3+heads+zero1"};
    for (EACH(m, models)) {
        const char *dir = shell_directory(55 * 16 + 1);
        RUNS("$RUN --exact --model %s --micro 2 --batch 160 --steps 18 --save one "
             "--json one.jsonl",
             *m);
        for (int k = 0; k < 8; k++)
            RUNS("$RUN --model %s --micro 1 --batch 160 --resume %s %s --json run.jsonl", *m,
                 legs[k % 4], k < 4 ? "--save exact --exact" : "--save run");
        RUNS("for f in model optimizer; do cmp one/step_00000018/$f.safetensors "
             "exact/step_00000018/$f.safetensors || exit 1; done");
        CHECK(tokens_of(dir, "run.jsonl", 18) == 18 * 160);
        for (int step = 1; step <= 18; step++) // the same sums, of floats
            CHECK_NEAR(loss_of(dir, "run.jsonl", step) / loss_of(dir, "one.jsonl", step), 1, 1e-6);
    }
}

/* Compares weights bit for bit, with --exact. */
TEST(train_replicas_have_the_same_sequences_whatever_z_and_micro) {
    static const char *const same[] = {"--ranks 2 --layout d2 --micro 2",
                                       "--ranks 4 --layout d2.z2 --micro 1",
                                       "--ranks 4 --layout z2.d2+sp --micro 2"};
    const char *dir = shell_directory(55 * 16 + 1);
    RUNS("$RUN --exact --model %s --batch 128 --steps 4 --sync-every 2 %s --save one", models[0],
         "--ranks 2 --layout d2 --micro 1");
    for (int i = 0; i < 3; i++)
        RUNS("$RUN --exact --model %s --batch 128 --steps 4 --sync-every 2 %s --save %d && "
             "cmp one/step_00000004/model.safetensors %d/step_00000004/model.safetensors",
             models[0], same[i], i, i);
}

/* The batch is the same as before even where --batch was left to the first mesh. */
TEST(train_resumed_on_another_mesh_keeps_the_batch) {
    const char *dir = shell_directory(2000);
    RUNS("RUN=\"$RUN --model %s --micro 2 --save run --json run.jsonl\"; "
         "$RUN --ranks 3 --layout dp --steps 2 && $RUN --steps 3 --resume && "
         "$RUN --ranks 2 --layout dp --steps 4 --resume && "
         "$RUN --ranks 2 --layout auto --calibrate none --steps 5 --resume",
         models[0]);
    for (int step = 2; step <= 5; step++)
        CHECK(tokens_of(dir, "run.jsonl", step) == step * 3 * 2 * 16);
    // a batch that is asked for is the one that is taken
    RUNS("$RUN --model %s --micro 2 --save run --json run.jsonl --steps 6 --resume --batch 64",
         models[0]);
    CHECK(tokens_of(dir, "run.jsonl", 6) == tokens_of(dir, "run.jsonl", 5) + 64);
}

static const char *const meshes[] = {
    "2 --layout dp",          "3 --layout fsdp",           "4 --layout x2.y2+sp",
    "4 --layout optimus:2x2", "5 --layout megatron",       "6 --layout y3.z2+heads",
    "8 --layout cube:2",      "8 --layout d2.z2.x2+zero2", "7 --layout megatron-sp"};

/* The digest that --count prints is that of the logical model as it begins, in the records too. */
static void digests(const char *model) {
    const char *dir = shell_directory(1000);
    char digest[17] = "";
    for (int i = -1; i < N_OF(meshes); i++) {
        SHELL(0, "\nweights  hash ",
              RUN
              "$RUN --model %s --micro 1 --batch 80 --steps 1 --count --json %d.jsonl --ranks %s",
              model, i, i < 0 ? "1" : meshes[i]);
        const char *hash = strstr(said, "\nweights  hash ") + 15;
        if (i < 0) snprintf(digest, sizeof digest, "%s", hash);
        CHECK(strspn(digest, "0123456789abcdef") == 16 && strncmp(hash, digest, 16) == 0);
        RUNS("grep -q '\"weights_hash\":\"%s\"' ./%d.jsonl", digest, i);
    }
    SHELL(0, "\nweights  hash ",
          RUN "$RUN --model %s --micro 1 --batch 80 --steps 1 --count --seed 2", model);
    CHECK(!strstr(said, digest));
}
TEST(train_begins_with_the_same_weights_on_every_mesh) {
    for (EACH(model, models)) digests(*model);
}

/* Rank 0 measures: TSan knows whether other ranks write to its table. And the run saves as others
 * do. */
TEST(train_profiles_one_rank_on_every_mesh) {
    const char *dir = shell_directory(1000);
    SHELL(0, "per step, mean of 2 ",
          RUN "$RUN --model %s --micro 1 --batch 80 --steps 3 --profile --ranks 4 --layout x4 "
              "--save run && test -d run/step_00000003",
          models[0]);
    const char *row = strstr(said, "\n  adamw wte[V/x, C] ");
    double calls = 0;
    CHECK(row && sscanf(row, " adamw wte[V/x, C] %lf", &calls) == 1 && calls == 1);
}

static double peak_of(const char *dir, int ranks) {
    if (test_shell(dir, said, sizeof said,
                   "$BUILD/train_gpt --train train.bin --model %s --micro 1 --batch 80 --steps 0 "
                   "--ranks %d --layout dp",
                   models[0], ranks))
        return 0;
    const char *at = strstr(said, " peak ");
    return at ? strtod(at + 6, NULL) : 0;
}

/* 16 ranks share the cores that one rank has alone: what they can do together is not more. Other
 * programs may slow down either measurement, never make it faster: the best of a few tells. Each of
 * 16 ranks with a core of its own would be 8 times as much on two cores. */
TEST(train_peak_is_that_of_the_cores_whatever_the_ranks) {
    const char *dir = shell_directory(1000);
    double alone = 0, together = 0;
    for (int i = 0; i < 8; i++) {
        alone = fmax(alone, peak_of(dir, 1));
        if (i == 0) together = peak_of(dir, 16);
        if (together < 4 * alone) break;
    }
    CHECK(together > 0 && alone > 0);
    CHECK(together < 4 * alone);
}

/* ---- awkward sizes ---- */

/* Where nothing divides: the padding in the header of the run, in percent of the weights that
 * matmuls read and of the tokens. Weights by hand, stored against logical, as qkv + attn_out + up +
 * down + wte (or wte and head):
 *
 *   5 heads on 3       20*72 + 24*20 + 2*20*81 + 39*20 = 5940               5540
 *   25 heads on 8      50*192 + 64*50 + 2*50*200 + 40*50 = 34800            32000
 *   V=50257 on 7       14*42 + 14*14 + 2*14*56 + 50260*14 = 705992          705950
 *   2 heads on 5       8*60 + 20*8 + 2*8*35 + 35*8 = 1480                   1024
 *   6 channels on 8    8*18 + 6*8 + 2*8*24 + 32*8 = 832                     624
 *   optimus:3x2        21*72 + 24*20 + 21*80 + 81*20 + 42*20 = 6132         5540
 *   1 key head on 4    8*24 + 8*8 + 8*24 + 12*8 + 2*32*8 = 1056        960 (copies of the key head)
 */
static const struct {
    const char *model, *options, *mesh, *padding;
} awkward[] = {
    {"layers=1,heads=5,channels=20,seq=8,vocab=37", "--micro 2 --batch 16", "3 --layout megatron",
     "6.7 % of the weights, 0.0 % of the tokens"},
    {"layers=1,heads=25,channels=50,seq=9,vocab=40",
     "--micro 1 --batch 9", // 9 positions in 8 parts of 2
     "8 --layout megatron-sp", "8.0 % of the weights, 43.8 % of the tokens"},
    {"layers=1,heads=7,channels=14,seq=8,vocab=50257", "--micro 2 --batch 16",
     "7 --layout megatron", "0.0 % of the weights, 0.0 % of the tokens"},
    {"layers=1,heads=2,channels=8,seq=8,vocab=32", "--micro 7 --batch 56", // 3, 3 and 1 sequences
     "3 --layout dp", "0.0 % of the weights, 22.2 % of the tokens"},
    {"layers=1,heads=2,channels=8,seq=8,vocab=32",
     "--micro 2 --batch 16", // nobody's turn for three
     "5 --layout z5", "0.0 % of the weights, 60.0 % of the tokens"},
    {"layers=1,heads=2,channels=8,seq=7,vocab=32",
     "--micro 1 --batch 21", // 7 positions in 2 parts of 4
     "2 --layout x2+sp", "0.0 % of the weights, 12.5 % of the tokens"},
    {"layers=1,heads=2,channels=8,seq=8,vocab=32", "--micro 2 --batch 16", "5 --layout x5",
     "30.8 % of the weights, 0.0 % of the tokens"},
    {"layers=1,heads=2,channels=6,seq=8,vocab=32", "--micro 2 --batch 16", "8 --layout y8",
     "25.0 % of the weights, 0.0 % of the tokens"},
    {"layers=1,heads=5,channels=20,seq=8,vocab=37",
     "--micro 2 --batch 16", // a sequence for each of 3 on x
     "6 --layout optimus:3x2", "9.7 % of the weights, 33.3 % of the tokens"},
    {"llama,layers=1,heads=4,kv_heads=1,channels=8,ffn=12,seq=8,vocab=32", "--micro 2 --batch 16",
     "4 --layout x4", "9.1 % of the weights, 0.0 % of the tokens"},
};

TEST(train_tells_the_padding_of_awkward_sizes) {
    const char *dir = shell_directory_below(1000, 31);
    for (EACH(a, awkward))
        SHELL(0, test_path("; padding: %s\n", a->padding),
              RUN "$RUN --model %s %s --steps 1 --ranks %s", a->model, a->options, a->mesh);
}

/* ---- signals ---- */

/* Starts a command, sends SIGTERM once a condition of the shell is true, and looks for what it says
 * then. Its exit status would be 124 if it had to be killed a minute later. */
#define TERMINATED(says, command, condition)                                                       \
    SHELL(143, says,                                                                               \
          RUN "timeout --foreground -k 5 60 %s >out 2>err & P=$!; "                                \
              "for i in $(seq 1000); do { %s; } && break; sleep 0.02; done; "                      \
              "kill -TERM $P; wait $P; S=$?; cat err; exit $S",                                    \
          command, condition)

#define MESHED "--ranks 4 --layout x2.y2+sp --model "

TEST(train_on_ranks_saves_and_leaves_when_a_signal_comes) {
    const char *dir = shell_directory(4000);
    char *what = test_path("--exact --model %s --micro 1 --batch 1024", models[0]);
    TERMINATED("stopped by signal 15 after step ",
               test_path("$RUN %s --ranks 4 --layout x2.y2+sp --steps 100000 --save run "
                         "--json run.jsonl",
                         what), // 64 micro-batches a step
               "grep -qs '\"step\":3,' run.jsonl");
    int n = (int)shell_number(said, " after step ");
    CHECK(n >= 3 && strstr(said, test_path(" after step %d; --resume", n)));
    CHECK(!strchr(strchr(said, '\n') + 1, '\n'));
    RUNS("test -d run/step_%08d && test $(" SHELL_STEPS "run.jsonl | wc -l) = %d && "
         "$RUN %s --ranks 3 --layout x3 --steps %d --save run --resume --json run.jsonl && "
         "$RUN %s --steps %d --json one.jsonl && " SHELL_STEPS
         "run.jsonl >run.steps && " SHELL_STEPS
         "one.jsonl >one.steps && test $(wc -l <one.steps) = %d && cmp run.steps one.steps",
         n, n, what, n + 3, what, n + 3, n + 3);
}

/* Validation of a million tokens, samples of ten: each would take minutes. */
TEST(train_on_ranks_leaves_evaluation_and_sampling_when_a_signal_comes) {
    static const char *const busy[] = {"--val long.bin --eval-batches 0 --eval-every 1",
                                       "--sample-every 1 --sample-tokens 10000000"};
    const char *dir = shell_directory(4000);
    RUNS("truncate -s 64M long.bin");
    for (int i = 0; i < 2; i++) {
        TERMINATED("stopped by signal 15 after step 1; --resume continues",
                   test_path("$BUILD/train_gpt --train train.bin " MESHED
                             "%s --save run%d --json log%d %s",
                             models[0], i, i, busy[i]),
                   test_path("grep -qs '\"step\":1,' log%d && sleep 0.2", i));
        RUNS("test -d run%d/step_00000001", i);
    }
    TERMINATED("stopped by signal 15",
               "$BUILD/train_gpt --ranks 4 --layout optimus:2x2 --init run0 --val long.bin "
               "--eval-batches 0",
               "grep -qs available out && sleep 0.2");
    CHECK(strstr(said, "nothing was saved"));
    RUNS("$RUN --model layers=1,heads=2,channels=8,seq=16 --tokenizer bytes --steps 1 "
         "--save bytes");
    TERMINATED("stopped by signal 15",
               "$BUILD/train_gpt --ranks 4 --layout d2.x2 --init bytes --tokenizer bytes "
               "--prompt word --sample-tokens 10000000",
               "[ -s out ]");
}
