/* train_gpt with a GPU: the program as it is, linked with the emulator in place of CUDA's runtime
 * (train_gpt_emu), or on a device. */
#include "tests/shell.h"

enum { STEPS = 3 }; // the last one starts from moments of two steps

static const char *tokens_directory(void) {
    setenv("EMULATED", test_on_device ? "" : "_emu", 1);
    return shell_directory_of_chains(2000);
}

/* Runs a command in `dir`, as SHELL; $EMU stands for the program, $CPU for the same on the
 * processor. */
#define RUN(status, word, ...)                                                                     \
    SHELL(status, word,                                                                            \
          "P=$BUILD/train_gpt$EMULATED; export CPU=\"$P --backend cpu --threads 1\" "              \
          "EMU=\"$P --backend cuda --threads 1\" "                                                 \
          "TRAIN=\"--train train.bin --val train.bin --eval-batches 2 --micro 2 --lr 1e-2 "        \
          "--eval-every 0\"; " __VA_ARGS__)

/* How many times that of another file. */
static double ratio(const char *dir, const char *file, const char *other, const char *name, int k) {
    return shell_recorded(dir, file, name, k) / shell_recorded(dir, other, name, k);
}

static const char *const models[] = {
    "layers=2,heads=2,channels=32,seq=16,vocab=61",
    "llama,layers=1,heads=4,kv_heads=2,channels=32,seq=16,vocab=61"};

TEST(cuda_program_trains_as_on_the_cpu) {
    const char *dir = tokens_directory();
    for (int i = 0; i < 4; i += test_long() ? 1 : 3) {
        bool bf16 = i % 2;
        RUN(0, "",
            "O=\"$TRAIN --model %s --steps %d --dtype %s --recompute %s --batch 64 "
            "--sample-every %d --sample-tokens 6 --temperature 0\"; "
            "$CPU $O --json cpu%d >cpu.txt 2>&1 && $EMU $O --json emu%d >emu.txt 2>&1; "
            "s=$?; cat emu.txt; exit $s",
            models[i / 2], STEPS, bf16 ? "bf16" : "fp32", i == 3 ? "full" : "none", STEPS, i, i);
        CHECK(test_on_device ||
              strstr(said, "machine  emulated, 4 multiprocessors, 16.0 GiB, cuda kernels"));
        CHECK(strstr(said, "available on the device"));
        CHECK(strstr(said, "micro-batches are recorded once and replayed as graphs"));
        double bound = bf16 ? 1e-2 : 1e-5; // roundings of words, other orders of sums
        const char *cpu = test_path("cpu%d", i), *emu = test_path("emu%d", i);
        for (int k = 0; k < STEPS; k++) {
            CHECK_NEAR(ratio(dir, emu, cpu, "\"loss\":", k), 1, bound);
            CHECK_NEAR(ratio(dir, emu, cpu, "\"norm\":", k), 1, 10 * bound);
        }
        CHECK_NEAR(ratio(dir, emu, cpu, "\"val_loss\":", 0), 1, bound);
        // likeliest tokens are the same where they are not near a tie
        if (!bf16)
            RUN(0, "",
                "sed -n '/^---/,/^---/p' cpu.txt >a; sed -n '/^---/,/^---/p' emu.txt >b; "
                "[ -s a ] && cmp a b");
    }
}

/* Ranks as threads that share a device. */
TEST(cuda_program_trains_on_ranks_as_on_one) {
    static const char *const cases[] = {
        "--model layers=1,heads=2,channels=16,seq=16,vocab=61 --ranks 2 --layout x2",
        ("--model llama,layers=1,heads=2,channels=16,seq=16,vocab=61 --ranks 3 --layout d3+zero2 "
         "--overlap bulk+halves"),
        "--model layers=1,heads=2,channels=16,seq=16,vocab=61 --ranks 2 --layout auto"};
    const char *dir = tokens_directory();
    RUN(0, "", // bytes of digits and spaces are ids of the model
        "for i in 0 1 2 3 4; do echo '{\"ctx\":\"1'$i'\",\"label\":'$((i %% 4))',"
        "\"endings\":[\"3 4\",\"'$i'6\",\"7\",\"8 1 9'$i'\"]}'; done >h.jsonl; "
        "$BUILD/tokenize hellaswag --tokenizer bytes --text h.jsonl --out h.bin");
    for (int i = 0; i < 3; i++) {
        RUN(0, "",
            "O=\"$TRAIN --steps 2 --batch 96 --audit-every 2 --hellaswag h.bin --sample-every 2 "
            "--sample-tokens 20 --temperature 0\"; set -- %s; "
            "$CPU $O $1 $2 --json cpu >cpu.txt 2>&1 && $EMU $O $* --json emu 2>&1 && "
            "for f in cpu emu; do grep '^{.step.:2,.[hs]' $f >$f.2; done; "
            "[ $(wc -l <cpu.2) = 2 ] && cmp cpu.2 emu.2", // HellaSwag and the sample
            cases[i]);
        CHECK(strstr(said, i == 1 ? "3 ranks on 1 device\n" : "2 ranks on 1 device\n"));
        CHECK(strstr(said, "not replayed as graphs: a recording has only one rank"));
        for (int k = 0; k < 2; k++) CHECK_NEAR(ratio(dir, "emu", "cpu", "\"loss\":", k), 1, 1e-5);
        CHECK_NEAR(ratio(dir, "emu", "cpu", "\"val_loss\":", 0), 1, 1e-5);
    }
}

/* Two micro-batches on each rank. */
static void count_calls(const char *dir, const char *machine, int ranks, const char *options,
                        int steps, const char *file) {
    RUN(0, "",
        "EMU_CALLS=%s %s $EMU --train train.bin --micro 2 --batch %d --ranks %d --schedule "
        "constant --no-tune --eval-every 0 --steps %d %s",
        file, machine, 32 * ranks, ranks, steps, options);
}

/* Longer runs are the same but for more steps; no run times algorithms, as a later one would not.
 * What runs call: the words of tests/emu/calls.h. */
TEST_EMULATED(cuda_program_waits_once_in_a_step_and_allocates_nothing) {
    enum { FEW = 2, MANY = 3 };
    static const struct {
        int ranks;
        const char *options, *machine;
        int replays; // in a step: a call for each micro-batch of each rank; 0: none is recorded
    } cases[] = {
        {1, "--model layers=1,heads=2,channels=16,seq=8,vocab=61 --dtype bf16", "", 2},
        {2, "--model llama,layers=1,heads=2,channels=16,seq=8,vocab=61 --layout x2 --skip-norm-z 9",
         "", 0},
        {2, "--model layers=2,heads=2,channels=16,seq=8,vocab=61 --layout d2+zero1 --overlap bulk",
         "", 0},
        {2, "--model layers=1,heads=2,channels=16,seq=8,vocab=61 --layout x2+sp --graphs all",
         "EMU_DEVICES=2 EMU_PEERS=0", 2 * 4},
    };
    static const char *const none[] = {"memory ", "objects ", "unpinned ", "choices "};
    const char *dir = tokens_directory();
    for (EACH(c, cases)) {
        for (int many = 0; many < 2; many++)
            count_calls(dir, c->machine, c->ranks, c->options, many ? MANY : FEW,
                        many ? "many" : "few");
        for (EACH(one, none)) {
            double n = shell_recorded(dir, "many", *one, 0) - shell_recorded(dir, "few", *one, 0);
            CHECK_SAYS(n == 0, "%s%g in %d steps, %s", *one, n, MANY - FEW, c->options);
        }
        double waits =
            shell_recorded(dir, "many", "waits ", 0) - shell_recorded(dir, "few", "waits ", 0);
        CHECK_NEAR(waits, (MANY - FEW) * c->ranks, 0);
        double replays =
            shell_recorded(dir, "many", "replays ", 0) - shell_recorded(dir, "few", "replays ", 0);
        CHECK_NEAR(replays, (MANY - FEW) * c->replays, 0);
    }
}

/* The device has begun the next update when the host learns that there shall be none. */
TEST(cuda_program_stops_before_an_update_that_is_not_finite) {
    static const char *const options[] = {"", "--skip-loss-z 9", "--ranks 2 --layout x2"};
    const char *dir = tokens_directory();
    for (EACH(option, options)) {
        RUN(0, "",
            "O=$(echo $TRAIN | sed 's/1e-2/1e6/')\" --schedule constant --weight-decay 1e6 "
            "--steps 9 "
            "--save-every 1 --model layers=1,heads=2,channels=16,seq=16,vocab=61 %s\"; "
            "rm -rf run; $CPU $O --save run 2>cpu >out; "
            "rm -rf run; $EMU $O --save run 2>emu >out; "
            // in which step a sum leaves the range first is a matter of the instruction set
            "cat cpu emu; S='s/.* at step \\([0-9]*\\); first tensor.*; step \\([0-9]*\\) in run "
            "holds these very weights.*/$((\\1-\\2))/p'; "
            "eval echo $(sed -n \"$S\" cpu) $(sed -n \"$S\" emu) >apart; grep -qx '1 1' apart",
            *option);
    }
}

TEST(cuda_program_resumes_with_the_same_bits) {
    const char *dir = tokens_directory();
    for (int i = 0; i < 2; i++) {
        RUN(0, "",
            "O=\"$TRAIN --model layers=1,heads=2,channels=16,seq=8,vocab=61 --dtype bf16 "
            "--schedule constant %s --export-hf\"; rm -rf run; "
            "$EMU $O one --steps 4 --json one.json --graphs none && "
            "$EMU $O half --steps 2 --save run && "
            "$EMU $O two --steps 4 --save run --resume --json two.json && "
            "cmp one/model.safetensors two/model.safetensors",
            i ? "--ranks 2 --layout d2+zero1" : "");
        for (int k = 0; k < 2; k++)
            CHECK(shell_recorded(dir, "one.json", "\"loss\":", k + 2) ==
                  shell_recorded(dir, "two.json", "\"loss\":", k));
    }
    // and what it wrote is what the processor reads
    RUN(0, "",
        "O='--init run --val train.bin --micro 2 --eval-batches 4 --json'; "
        "$EMU $O val.emu && $CPU $O val.cpu");
    CHECK_NEAR(ratio(dir, "val.emu", "val.cpu", "\"val_loss\":", 0), 1, 1e-5); // both in fp32
}

TEST(cuda_program_continues_a_prompt) {
    const char *dir = tokens_directory();
    RUN(0, "",
        "$CPU --train train.bin --tokenizer bytes --model "
        "layers=1,heads=2,channels=16,seq=16 --lr 1e-2 --steps 8 --eval-every 0 --save run && "
        "O='--init run --tokenizer bytes --prompt Ab --sample-tokens 20 --temperature 0'; "
        "$CPU $O >cpu.txt && $EMU $O >emu.txt && grep -q '^Ab.' emu.txt && "
        "cmp cpu.txt emu.txt");
}

TEST_EMULATED(cuda_program_shows_where_time_and_memory_go) {
    const char *dir = tokens_directory();
    RUN(0, "",
        "$EMU $TRAIN --model layers=1,heads=2,channels=16,seq=16,vocab=61 --steps 3 --profile "
        "--count --tune");
    CHECK(strstr(said, "attention_backward dqkv[T, N]") && strstr(said, "adamw wte[V, C]"));
    RUN(0, "",
        "$EMU $TRAIN --model layers=1,heads=2,channels=16,seq=16,vocab=61 --steps 4 --trace "
        "trace.json && grep -c '\"attention att\"' trace.json");
    RUN(0, "", "$EMU --memory --model d12 --micro 1");
    CHECK(strstr(said, "on the device"));
    RUN(1, "", "$EMU --train train.bin --model d24 --micro 64");
    CHECK(strstr(said, "what would:\n  --micro ") && !strstr(said, "only a smaller model"));
    CHECK(strstr(said, "MiB are available on the device"));
    if (test_on_device) return; // whose memory is another
    // half of 14 sequences, but an even number, as halves want it
    RUN(1, "", "$EMU --train train.bin --model d24 --micro 28 --overlap halves");
    CHECK(strstr(said, "what would:\n  --micro 6 "));
}

/* On memory that they share, and by NCCL. */
TEST(cuda_program_traces_and_profiles_ranks) {
    static const char *const devices[] = {"", "EMU_DEVICES=2 EMU_PEERS=0"};
    const char *dir = tokens_directory();
    for (int i = 0; i < (test_on_device ? 1 : 2); i++) {
        RUN(0, "",
            "export %s; O=\"$TRAIN --ranks 2 --layout x2 --overlap bulk --steps 4 --batch 32 "
            "--model layers=1,heads=2,channels=16,seq=8,vocab=61\"; "
            "$EMU $O --json plain >out && $EMU $O --json traced --trace trace.json && "
            "for r in 0 1; do for c in kernel collective exposed; do echo $r $c "
            "$(grep -c \"cat.*$c.*pid.:$r\" trace.json); done; done && "
            "$BUILD/timeline trace.json --width 80",
            devices[i]);
        for (int k = 0; k < 4; k++)
            CHECK(shell_recorded(dir, "plain", "\"loss\":", k) ==
                  shell_recorded(dir, "traced", "\"loss\":", k));
        CHECK(strstr(said, "trace: step 3 waits where it starts") && strstr(said, "gradients"));
        CHECK(strstr(said, "0 kernel") && !strstr(said, "0 kernel 0\n"));
        CHECK(strstr(said, "1 collective") && !strstr(said, "1 collective 0\n"));
        CHECK(strstr(said, "step 4, --overlap bulk: ") && strstr(said, "rank 1 "));
        const char *row = strstr(said, "\n  agreement "); // by the host: no kernel waits
        double exposed = NAN;
        CHECK(row && sscanf(row, " agreement %*f %*f %lf", &exposed) == 1 && exposed == 0);
    }
    RUN(0, "",
        "$EMU $TRAIN --ranks 2 --layout x2 --model layers=1,heads=2,channels=16,seq=16,vocab=61 "
        "--steps 2 --profile");
    double calls = 0, ms = 0;
    const char *row = strstr(said, "attention_backward dqkv[T, N/x]");
    CHECK(row && sscanf(row, "attention_backward dqkv[T, N/x] %lf %lf", &calls, &ms) == 2 &&
          calls > 0 && ms > 0);
    CHECK(strstr(said, "loss_total loss[1]"));
    CHECK(strstr(said, "not replayed as graphs: every kernel is looked at"));
}

TEST_EMULATED(cuda_program_refuses_what_cuda_has_not) {
    static const struct {
        const char *options, *words;
    } cases[] = {
        {"--exact", "--backend cuda: --exact has no CUDA kernels"},
        {"--check-tp 2", "--backend cuda: --check-tp compares tensors"},
        {"--sync-every 2", "--backend cuda: --sync-every averages"},
        {"--kernels portable", "--backend cuda: --kernels names"},
    };
    const char *dir = tokens_directory();
    for (EACH(c, cases)) {
        RUN(2, "", "$EMU $TRAIN --model %s --steps 1 %s 2>&1 >out", models[0], c->options);
        CHECK(strstr(said, c->words));
        CHECK(strchr(said, '\n') == said + strlen(said) - 1); // one line
    }
    RUN(0, "", "$EMU --plan --model d12 --micro 1");
    CHECK(strstr(said, "emulated"));
    // by itself it goes where it can, and says so
    RUN(0, "",
        "$BUILD/train_gpt_emu $TRAIN --threads 1 --model layers=1,heads=2,channels=8,seq=16 "
        "--steps 1 --exact");
    CHECK(strstr(said, "1 thread, ") &&
          strstr(said, "not on the GPU that is here: --exact has no CUDA kernels"));
    RUN(0, "",
        "$BUILD/train_gpt_emu $TRAIN --threads 1 --model layers=1,heads=2,channels=8,seq=16 "
        "--steps 1 --kernels auto");
    CHECK(strstr(said, "cuda kernels"));
}

/* The bits of weights and moments move between layouts, on memory that ranks share as by NCCL. */
TEST(cuda_program_moves_to_another_layout) {
    const char *dir = tokens_directory();
    RUN(0, "",
        "$EMU --train train.bin --lr 1e-2 --eval-every 0 --ranks 2 --layout auto --refine 2 "
        "--calibrate none --ledger none --model layers=1,heads=2,channels=8,seq=16,vocab=61 "
        "--batch 64 --steps 12");
    CHECK(strstr(said, ": from here on ") && strstr(said, ", chosen") &&
          strstr(said, "step   12/12"));
}

/* Ranks on devices that do not reach each other need NCCL, on all of them. */
TEST_EMULATED(cuda_program_without_nccl_trains_on_the_cpu_and_says_why) {
    static const struct {
        const char *nccl, *words;
    } cases[] = {{"0", "need NCCL, which cannot be loaded (libnccl.so.2: no such file)"},
                 {"21200", "need NCCL, which cannot be loaded (libnccl.so.2 has version 21200; "
                           "21801 or later is needed)"},
                 {"22809", NULL}};
    const char *dir = tokens_directory();
    for (EACH(c, cases)) {
        const char *command = test_path(
            "export EMU_DEVICES=2 EMU_PEERS=0 EMU_NCCL=%s; $BUILD/train_gpt_emu $TRAIN --threads 1 "
            "--ranks 2 --model layers=1,heads=2,channels=8,seq=16 --layout d2 --steps 1",
            c->nccl);
        RUN(0, "", "%s", command);
        if (!c->words) {
            CHECK(strstr(said, "cuda kernels") && strstr(said, "2 ranks on 2 devices\n"));
            CHECK(strstr(said, "not replayed as graphs: there are several GPUs in this process "
                               "(--graphs all takes the risk)"));
            break;
        }
        CHECK(strstr(said, "1 thread a rank"));
        CHECK(strstr(said, test_path("not on the GPU that is here: ranks on GPUs that do not share "
                                     "memory %s",
                                     c->words)));
        RUN(2, "", "%s --backend cuda 2>&1 >out", command);
        CHECK(strstr(said, "--backend cuda: ranks on GPUs") && strstr(said, c->words));
        CHECK(strchr(said, '\n') == said + strlen(said) - 1); // one line
    }
}
