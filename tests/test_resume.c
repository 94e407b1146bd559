/* The program itself: a run that was stopped, killed or out of disk ends with the same bits as one
 * that was not. */
#include "tests/shell.h"

#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/checkpoint.h"

static const char GPT2[] = "layers=2,heads=2,channels=16,seq=16,vocab=64";
static const char LLAMA[] = "llama,layers=2,heads=4,kv_heads=2,channels=16,ffn=24,seq=16,vocab=64,"
                            "qk_norm=1,qkv_bias=1";

/* $RUN: the program and the options that all runs share. */
#define RUN                                                                                        \
    "RUN=\"$BUILD/train_gpt --train train.bin --model %s --micro 2 --threads 1 --schedule "        \
    "constant --eval-every 0\"; "
#define RUNS(status, word, model, ...) SHELL(status, word, RUN "%s", model, test_path(__VA_ARGS__))

/* Do the two folders hold the same parameters and moments after that step? */
static bool same_end(const char *dir, const char *a, const char *b, long long step) {
    return test_shell(dir, said, sizeof said,
                      "for f in model.safetensors optimizer.safetensors config.json; do "
                      "cmp %s/step_%08lld/$f %s/step_%08lld/$f || exit 1; done",
                      a, step, b, step) == 0;
}

static long long newest(const char *dir, const char *name) {
    int64_t step = -1;
    char *path = test_path("%s/%s", dir, name);
    OWNED(test_mem_end) char *found = checkpoint_latest(path, &step, &group_alone);
    return found ? step : -1;
}

static void resume(const char *model, const char *more) {
    const char *dir = shell_directory(4000);
    RUNS(0, "", model, "$RUN %s --steps 14 --save whole", more);
    RUNS(0, "", model, "$RUN %s --steps 3 --save parts", more);
    RUNS(0, "", model, "$RUN %s --steps 4 --save parts --resume", more);
    RUNS(0, "", model, "$RUN %s --steps 14 --save parts --resume", more);
    CHECK(same_end(dir, "whole", "parts", 14));
    RUNS(0, "", model, "$RUN %s --steps 14 --seed 2 --save other", more);
    CHECK(!same_end(dir, "whole", "other", 14)); // the comparison can tell runs apart
}

/* A run that is started from the record of a resumed one has the same model. */
TEST(resume_without_model_and_tokenizer_records_those_of_the_checkpoint) {
    SHELL_IN(shell_directory(400), 0, "",
             "seq 99 >text && $BUILD/tokenize train --text text --vocab 260 --out tok; "
             "RUN=\"$BUILD/train_gpt --micro 2 --threads 1 --ledger none\"; "
             "$RUN --train train.bin --model layers=1,heads=1,channels=8,seq=8 --tokenizer tok "
             "--steps 1 --save run && $RUN --train train.bin --steps 2 --save run --resume && "
             "$RUN --config run/step_00000002 --no-resume --save again && "
             "cmp run/step_00000002/config.json again/step_00000002/config.json && "
             "cmp tok/vocab.json again/step_00000002/vocab.json");
}

/* The command of a run whose --model changes the model of --init continues that run. */
TEST(resume_takes_the_command_that_changed_the_model_of_init) {
    const char *dir = shell_directory(4000);
    RUNS(0, "", LLAMA, "$RUN --steps 1 --export-hf hf");
    for (int steps = 2; steps < 4; steps++)
        RUNS(0, "", "seq=32,eps=1e-4", "$RUN --init hf --steps %d --save run --resume", steps);
    CHECK(strstr(said, "resuming from run/step_00000002"));
    RUNS(1, "another model: it has seq=32, --model says seq=16", "seq=16",
         "$RUN --init hf --steps 4 --save run --resume");
}

/* A checkpoint has a copy of the tokenizer; that of the run may be gone, and with --keep 1 the
 * checkpoint that had it. tokenizer_config.json is written where the tokenizer lacks it. */
static void keep_tokenizer(const char *removed) {
    const char *dir = shell_directory(400), *model = "layers=1,heads=1,channels=8,seq=8,vocab=260";
    RUNS(0, "", model,
         "seq 99 >text && $BUILD/tokenize train --text text --vocab 260 --out tok && rm -f "
         "%s && $RUN --tokenizer tok --steps 1 --save run && rm -r tok",
         removed);
    RUNS(0, "", model,
         "$RUN --steps 4 --save run --save-every 1 --keep 1 --keep-every 2 --resume "
         "--prompt 12 --export-hf end; ls run end; test \"$(cd run && echo *)\" = "
         "\"step_00000002 step_00000004\" && ls end/vocab.json "
         "run/step_00000004/merges.txt && grep GPT2Tokenizer end/tokenizer_config.json "
         "run/step_00000004/tokenizer_config.json");
    CHECK_SAYS(strstr(said, "--steps was") && !strstr(said, "--tokenizer was"), "%s", said);
}
TEST(resume_without_tokenizer_keeps_that_of_the_checkpoint) {
    keep_tokenizer("");
}
TEST(resume_without_tokenizer_config_writes_one) {
    keep_tokenizer("tok/tokenizer_config.json");
}

/* Also that of a folder which is removed during the run. */
TEST(save_keeps_the_tokenizer_that_is_gone) {
    const char *dir = shell_directory(400), *model = "layers=1,heads=1,channels=8,seq=8,vocab=260";
    RUNS(0, "", model,
         "seq 99 >text && $BUILD/tokenize train --text text --vocab 260 --out tok; "
         "$RUN --tokenizer tok --steps 100000000 --save-every 50 --keep-every 200 --save run "
         "--export-hf end "
         ">log & P=$!; while kill -0 $P && [ ! -s log ]; do sleep 0.01; done; rm -r tok; "
         "while kill -0 $P && [ ! -e run/step_00000200 ]; do sleep 0.01; done; kill $P; "
         "wait $P; for s in run/*; do ls $s/vocab.json $s/merges.txt || exit 1; done");
}

/* Training on zeros makes the loss of the validation, another token, grow in the first steps;
 * training on the validation makes it fall. */
TEST(save_best_keeps_the_checkpoint_of_the_lowest_loss) {
    const char *dir = shell_directory(64), *model = "layers=1,heads=1,channels=8,seq=8,vocab=258",
               *run = "--val ones.bin --eval-every 1 --save run --keep 1 --lr 1e-2 --save-best";
    RUNS(0, "", model,
         "head -c 400 /dev/zero >zeros.bin && tr '\\0' '\\1' <zeros.bin >ones.bin && "
         "$RUN --train zeros.bin --steps 3 %s && test \"$(cd run && echo *)\" = "
         "\"step_00000001 step_00000003\"",
         run);
    RUNS(0, "", model,
         "$RUN --train zeros.bin --steps 4 %s --resume && test \"$(cd run && echo *)\" = "
         "\"step_00000001 step_00000004\"",
         run);
    RUNS(0, ", the lowest so far\nstep 40: saved in run", model,
         "$RUN --train ones.bin --steps 40 %s --resume && test \"$(cd run && echo *)\" = "
         "step_00000040",
         run);
}

TEST(resume_is_bit_identical_gpt2) {
    resume(GPT2, "");
}
TEST(resume_is_bit_identical_llama) {
    resume(LLAMA, "--batch 64");
} // two micro-batches a step
TEST(resume_is_bit_identical_bf16) {
    resume(GPT2, "--dtype bf16 --recompute full");
}

/* Saves make all replicas meet, so both runs save after the same steps: 3 is rounded up to 4. */
static void resume_outer(const char *more) {
    const char *dir = shell_directory(4000);
    const char *run = test_path("--sync-every 4 --save-every 3 --keep 0 --outer-lr 0.7 %s", more);
    RUNS(0, "", GPT2, "$RUN %s --steps 16 --save whole", run);
    for (int steps = 4; steps <= 16; steps *= 2)
        RUNS(0, "", GPT2, "$RUN %s --steps %d --save parts --resume", run, steps);
    CHECK(same_end(dir, "whole", "parts", 4) && same_end(dir, "whole", "parts", 16));
    RUNS(0, "", GPT2, "test $(ls whole | wc -l) = 4");
    // the comparison tells other runs apart; evaluations and samples change nothing
    RUNS(0, "", GPT2, "$RUN %s --steps 16 --save other --seed 2", run);
    CHECK(!same_end(dir, "whole", "other", 16));
    RUNS(0, "", GPT2,
         "$(echo $RUN | sed 's/every 0/every 1/') %s --steps 16 --save seen --val train.bin "
         "--eval-batches 2 --sample-every 3 --sample-tokens 4",
         run);
    CHECK(strstr(said, "step 15: val loss") && same_end(dir, "whole", "seen", 16));
    // the last step is followed by an outer step, also where nothing is saved
    RUNS(0, "", GPT2,
         "$RUN %s --steps 6 --export-hf alone && $RUN %s --steps 6 --save end --save-every "
         "0 --export-hf saved "
         "&& cmp alone/model.safetensors saved/model.safetensors",
         run, run);
}

TEST(resume_is_bit_identical_with_an_outer_loop) {
    resume_outer("--ranks 2 --layout dp --outer-momentum 0.9");
}
TEST(resume_is_bit_identical_with_an_outer_loop_in_fragments) {
    resume_outer("--ranks 4 --layout d2.x2 --outer-momentum 0.9 --fragments 3 --batch 64");
}
TEST(resume_is_bit_identical_with_averaged_parameters) {
    resume_outer("--ranks 3 --layout dp --fragments 2");
}

/* A folder whose checkpoints cannot be read just now does not count as empty: training would begin
 * again at step 0 and overwrite them. */
TEST(resume_does_not_start_over_checkpoints_that_are_not_whole) {
    const char *dir = shell_directory(4000);
    static const char *const again[] = {"", "--resume"};
    RUNS(0, "", GPT2,
         "$RUN --steps 4 --save-every 2 --save run && "
         "for s in run/*; do mv $s/checkpoint.json $s/away; done");
    for (EACH(a, again))
        RUNS(1, "(the newest is of step 4): mend the storage", GPT2, "$RUN --steps 6 --save run %s",
             *a);
    RUNS(0, "resuming from run/step_00000004", GPT2,
         "for s in run/*; do mv $s/away $s/checkpoint.json; done; "
         "$RUN --steps 6 --save run --resume");
}

/* Under the name of a later step the files of an older one would stay the newest checkpoint: each
 * --resume would train the steps between again. */
TEST(resume_refuses_a_checkpoint_under_the_name_of_another_step) {
    const char *dir = shell_directory(4000);
    RUNS(0, "", GPT2, "$RUN --steps 4 --save run && mv run/step_00000004 run/step_00000009");
    RUNS(1, "run/step_00000009 holds step 4: name it step_00000004 again", GPT2,
         "$RUN --steps 6 --save run --resume");
    RUNS(0, "", GPT2,
         "mv run/step_00000009 run/step_00000004 && $RUN --steps 6 --save run --resume");
}

/* A shard that was added under the pattern of --train changes the order of all data, although no
 * option differs. */
TEST(resume_says_that_the_files_of_the_data_changed) {
    const char *dir = shell_directory(4000), *train = "--train 'train*.bin' --save run";
    RUNS(0, "", GPT2, "$RUN %s --steps 2", train);
    RUNS(0, "", GPT2, "$RUN %s --steps 3 --resume", train);
    CHECK(!strstr(said, "the files of --train"));
    RUNS(0, "the files of --train had 4000 tokens, have 8000: another order", GPT2,
         "cp train.bin train2.bin; $RUN %s --steps 4 --resume", train);
    RUNS(0, "", GPT2, "$RUN %s --steps 5 --resume", train);
    CHECK(!strstr(said, "the files of --train"));
}

/* A signal may have cut the last evaluation short: the resumed run makes it. */
TEST(resume_after_the_last_step_evaluates_and_says_so) {
    const char *dir = shell_directory(4000);
    RUNS(0, "", GPT2, "$RUN --val train.bin --steps 4 --save run");
    const char *val = strstr(said, "step 4: val loss ");
    CHECK(val);
    char *first = test_path("%.25s", val);
    RUNS(0, "step 4 of --steps 4 is done: none is left; a larger --steps trains on\n", GPT2,
         "$RUN --val train.bin --steps 4 --save run --resume --profile");
    CHECK(strstr(said, first) && !strstr(said, "loss |") && !strstr(said, "saved"));
}

TEST(resume_after_a_signal_loses_no_step) {
    // the last one as timeout(1) sends it: to the process and to its group
    static const char *const signals[] = {"TERM", "INT", "USR1",
                                          "USR1 $P; sleep 0.002; kill -USR1"};
    for (EACH(one, signals)) {
        const char *dir = shell_directory(4000);
        // INT is ignored by a background process of a shell without job control: exec through env
        // resets it
        int status = test_shell(
            dir, said, sizeof said,
            RUN "env --default-signal=INT $RUN --steps 100000000 --save-every 7 --keep 0 --save "
                "stopped & P=$!; while kill -0 $P && [ ! -e stopped/step_00000007 ]; do sleep "
                "0.01; done; kill -%s $P; wait $P",
            GPT2, *one);
        CHECK(status > 0 && strstr(said, "; --resume continues\n"));
        long long step = newest(dir, "stopped");
        CHECK(step >= 7);
        RUNS(0, "", GPT2, "$RUN --steps %lld --save stopped --resume", step + 5);
        RUNS(0, "", GPT2, "$RUN --steps %lld --save whole", step + 5);
        CHECK(same_end(dir, "whole", "stopped", step + 5));
    }
}

TEST(resume_after_kill_is_bit_identical) {
    const char *dir = shell_directory(4000);
    long long step = 0;
    for (int i = 0; i < 4;
         i++) { // saving after every step: some kills hit a half-written checkpoint
        test_shell(dir, said, sizeof said,
                   RUN "$RUN --steps 100000000 --save-every 1 --keep 0 --save killed --resume & "
                       "P=$!; while kill -0 $P && [ ! -e killed/step_%08lld ]; do sleep 0.001; "
                       "done; sleep 0.0%d; kill -9 $P; wait $P",
                   GPT2, step + 3, i);
        CHECK(newest(dir, "killed") >= step + 3);
        step = newest(dir, "killed");
    }
    RUNS(0, "", GPT2, "$RUN --steps %lld --save killed --resume", step + 5);
    RUNS(0, "", GPT2, "$RUN --steps %lld --save whole", step + 5);
    CHECK(same_end(dir, "whole", "killed", step + 5));
    RUNS(1, "", GPT2, "ls -A killed | grep -c tmp"); // no left-overs: grep finds none
}

TEST(resume_refuses_in_one_line) {
    const char *dir = shell_directory(4000);
    RUNS(0, "", GPT2, "$RUN --steps 4 --save-every 2 --save run");
    const char *const others[] = {LLAMA, "d12"}; // d12: nor does its --seq divide the batch
    for (EACH(other, others)) {
        RUNS(1, "", *other, "$RUN --steps 8 --save run --resume >/dev/null");
        CHECK(strstr(said, "is a checkpoint of another model: it has") &&
              strchr(said, '\n')[1] == 0);
    }
    RUNS(1, "", GPT2, "$RUN --steps 8 --save run"); // neither resumed nor overwritten
    RUNS(1, "", GPT2, "ulimit -f 8; $RUN --steps 8 --save run --resume >/dev/null");
    CHECK(strstr(said, "cannot write") && strstr(said, "File too large"));
    CHECK(strchr(said, '\n')[1] == 0);
    CHECK(newest(dir, "run") == 4);
    RUNS(1, "", GPT2,
         "printf X | dd of=run/step_00000004/optimizer.safetensors bs=1 seek=5000 "
         "conv=notrunc 2>/dev/null; $RUN --steps 8 --save run --resume >/dev/null");
    CHECK(strstr(said, "optimizer.safetensors is damaged: checksum") && strchr(said, '\n')[1] == 0);
    RUNS(0, "", GPT2, "mv run/step_00000004 aside; $RUN --steps 8 --save run --resume");
    CHECK(newest(dir, "run") == 8);
}
