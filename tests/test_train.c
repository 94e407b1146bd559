/* The program itself on data whose rule is known: it learns it, scores by it, and continues by
 * it. */
#include "tests/shell.h"

#include "base/debug.h"
#include "base/team.h"

enum { VOCAB = 61, N_TOKENS = 6000, N_EXAMPLES = 20 };

/* llm.c's evaluation file: a context of three tokens, one ending by the rule and three that break
 * it. */
static bool write_hellaswag(const char *dir) {
    enum { WORDS = 6 + 3 + 4 * 4 };
    struct {
        int32_t header[256];
        uint16_t stream[N_EXAMPLES][WORDS];
    } file = {.header = {20240522, 1, N_EXAMPLES, 2 * WORDS}};
    for (int i = 0; i < N_EXAMPLES; i++) {
        uint16_t *w = file.stream[i], t = (uint16_t)(i * 3 % VOCAB), label = (uint16_t)(i % 4);
        *w++ = 65535, *w++ = 2 * WORDS, *w++ = (uint16_t)i, *w++ = label, *w++ = 4, *w++ = 3;
        for (int k = 0; k < 3; k++, t = shell_successor(t)) *w++ = t;
        for (int c = 0; c < 4; c++) {
            uint16_t u = (uint16_t)(c == label ? t : (t + 11 + c) % VOCAB);
            *w++ = 3;
            for (int k = 0; k < 3;
                 k++, u = (uint16_t)(c == label ? shell_successor(u) : (u + 13) % VOCAB))
                *w++ = u;
        }
    }
    return io_write_file(test_path("%s/hellaswag.bin", dir), &file, sizeof file, NULL, NULL);
}

TEST(train_learns_a_rule_scores_it_and_continues_it) {
    static const char *const models[] = {
        "layers=2,heads=2,channels=32,seq=16,vocab=61",
        "llama,layers=2,heads=4,kv_heads=2,channels=32,seq=16,vocab=61"};
    const char *dir = shell_directory_of_chains(N_TOKENS);
    CHECK(write_hellaswag(dir));
    for (int i = 0; i < 2; i++) {
        char want[128] = ""; // without a tokenizer a sample begins at token 0 and is numbers
        uint16_t t = 0;
        for (int k = 0; k < 8; k++, t = shell_successor(t))
            snprintf(want + strlen(want), 8, "%d ", shell_successor(t));
        SHELL(0, want,
              "$BUILD/train_gpt --train train.bin --val train.bin --hellaswag hellaswag.bin "
              "--model %s --micro 3 --batch 192 --steps 250 --lr 1e-2 --warmup 10 --dtype %s "
              "--recompute %s --sample-every 999 --sample-tokens 8 --temperature 0 --threads 1 "
              "--save run%d --json run%d.json",
              models[i], i ? "bf16" : "fp32", i ? "full" : "selective", i, i);
        // one token in 20 cannot be foreseen: 1/20 ln 61 = 0.2
        CHECK(shell_number(said, "step 250: val loss ") < 0.6);
        CHECK_NEAR(shell_number(said, "step 250: HellaSwag "), 1, 0);
        SHELL(0, want, "grep '\"sample\":\"%s\"' run%d.json", want, i);
        // what was saved scores the same, on more positions than before if those are rotary; what
        // does not fit is left out
        SHELL(0, "20 of 20 examples are longer than --seq 4 and were left out",
              "$BUILD/train_gpt --init run%d --hellaswag hellaswag.bin --micro 8 --model seq=%d && "
              "$BUILD/train_gpt --init run%d --hellaswag hellaswag.bin --micro 8 --seq 4",
              i, i ? 40 : 16, i);
        CHECK_NEAR(shell_number(said, "HellaSwag "), 1, 0);
        CHECK(test_count(said, "HellaSwag") == 1); // no score of no example
        // six tokens are inputs and targets of a sequence of 5
        SHELL(0, "HellaSwag 1.0000",
              "$BUILD/train_gpt --init run%d --hellaswag hellaswag.bin --micro 8 --seq 5", i);
        CHECK(!strstr(said, "left out"));
        // where all tokens are about as likely, one of one is still the likeliest
        SHELL(0, "3 kinds",
              "for o in '--top-k 1' '--top-p 1e-9' '--seed 1' '--seed 2'; do $BUILD/train_gpt "
              "--init run%d --prompt '' --sample-tokens 8 --temperature 9 --threads 1 $o; done "
              ">drawn && test $(grep -cx '%s' drawn) = 2 && echo $(sort -u drawn | wc -l) kinds",
              i, want);
    }
}

TEST(train_counts_without_training_print_the_hash_beside_a_sample) {
    const char *dir = shell_directory_of_chains(N_TOKENS);
    SHELL(0, "\nweights  hash ",
          "$BUILD/train_gpt --train train.bin --tokenizer bytes --model "
          "layers=1,heads=1,channels=8,seq=8 --steps 0 --threads 1 --save run --count");
    char *hash = test_path("%.31s", strstr(said, "weights  hash "));
    SHELL(0, hash, "$BUILD/train_gpt --init run --count --prompt '' --sample-tokens 2 --threads 1");
}

TEST(train_evaluates_and_samples_on_every_mesh_as_on_one_rank) {
    static const char *const meshes[] = {
        "2 --layout dp",           "3 --layout fsdp",        "5 --layout megatron",
        "4 --layout optimus:2x2",  "6 --layout atp:2x3",     "4 --layout x2.y2+sp",
        "6 --layout x3.y2+stay=y", "8 --layout cube:2",      "8 --layout axonn:2x2x1x2",
        "7 --layout megatron-sp",  "4 --layout d2.x2+zero3", "8 --layout tesseract:2x2x2"};
    const char *dir = shell_directory_of_chains(N_TOKENS);
    CHECK(write_hellaswag(dir));
    SHELL(0, "",
          "$BUILD/train_gpt --train train.bin --tokenizer bytes --eval-every 0 --model "
          "layers=2,heads=5,channels=20,seq=16 --micro 8 --steps 12 --lr 1e-2 --threads 1 "
          "--save base && head -c 2400 train.bin >val.bin");
    int every = BASE_DEBUG ? (test_long() ? 4 : 6) : test_long() ? 1 : 2;
    double one = 0, one_share = 0;
    for (int i = -1; i < N_OF(meshes); i += every) {
        SHELL(0, "",
              "RUN=\"$BUILD/train_gpt --init base --tokenizer bytes --threads 1 --ranks %s\"; "
              "$RUN --val val.bin --hellaswag hellaswag.bin --micro 3 --eval-batches 0 --json "
              "%d.jsonl && $RUN --prompt AbC --sample-tokens 40 >%d.txt && "
              "$RUN --prompt D --json sample.json --top-k 5 --temperature 0.7 --sample-tokens 20 "
              ">>%d.txt && cmp -- -1.txt %d.txt && grep -q '\"sample\":\"D' sample.json",
              i < 0 ? "1" : meshes[i], i, i, i, i);
        char *log = test_path("%d.jsonl", i);
        double val = shell_recorded(dir, log, "\"val_loss\":", 0),
               share = shell_recorded(dir, log, "\"hellaswag\":", 1); // 0: the option
        if (i < 0) one = val, one_share = share;
        // the same floats in other orders, a unit or two in the last place of most tokens
        CHECK_NEAR(val / one, 1, 3e-7);
        CHECK(share == one_share && share > 0.2 && share < 1); // neither by chance nor all right
    }
    // two micro-batches of three sequences of 16 tokens, and one token more; also on a mesh where a
    // step has fewer sequences
    SHELL(0, "1 loss of 3",
          "head -c 194 val.bin >six.bin && for v in 'val.bin --eval-batches 2' six.bin "
          "'val.bin --eval-batches 2 --ranks 2 --layout dp --batch 32'; do $BUILD/train_gpt "
          "--init base --threads 1 --exact --micro 3 --val $v | grep 'val loss'; done "
          ">losses && echo $(sort -u losses | wc -l) loss of $(wc -l <losses)");
    // several samples are those of consecutive seeds
    SHELL(0, "",
          "RUN='train_gpt --init base --tokenizer bytes --threads 1 --prompt AbC'; "
          "(for s in 7 8 9; do $BUILD/$RUN --seed $s; test $s = 9 || echo ---; done) >apart && "
          "$BUILD/$RUN --seed 7 --samples 3 >together && cmp apart together");
}

TEST(train_says_that_bf16_is_slower_without_its_units) {
    const char *dir = shell_directory_of_chains(N_TOKENS);
    const char *line = "no bf16 units: --dtype bf16 rounds";
    for (int bf16 = 0; bf16 < 2; bf16++) {
        SHELL(0, "",
              "$BUILD/train_gpt --kernels portable --train train.bin --model "
              "layers=1,heads=2,channels=16,seq=16,vocab=61 --steps 1 --dtype %s",
              bf16 ? "bf16" : "fp32");
        CHECK((strstr(said, line) != NULL) == bf16);
    }
}

/* Keys and values are cut like the heads: the sample that a rank of four needs room for is
 * smaller. */
TEST(train_on_ranks_counts_the_memory_of_its_samples) {
    double mib[2];
    for (int i = 0; i < 2; i++) {
        SHELL_IN(test_tmpdir(), 0, "\n  sampling ",
                 "$BUILD/train_gpt --memory --model d12 --micro 1 --sample-every 1 %s",
                 i ? "--ranks 4 --layout x4" : "");
        mib[i] = shell_number(said, "\n  sampling ");
    }
    // 12 blocks of 1024 positions with 2 x 768 floats: 72 MiB of keys and values alone
    CHECK(mib[0] > 70);
    // a quarter of the cache and of what lies between matmuls; the residual stream is whole on
    // each rank
    CHECK(mib[1] > 18 && mib[1] < 0.4 * mib[0]);
}

TEST(train_keeps_fewer_activations_where_it_recomputes_more) {
    static const char *const recompute[] = {"none", "selective", "full"};
    double mib[3];
    for (int i = 0; i < 3; i++) {
        SHELL_IN(test_tmpdir(), 0, "\n  activations ",
                 "$BUILD/train_gpt --memory --model d12 --micro 1 --recompute %s", recompute[i]);
        mib[i] = shell_number(said, "\n  activations ");
        CHECK(mib[i] > 0 && (i == 0 || mib[i] < 0.9 * mib[i - 1]));
    }
}

TEST(train_stops_at_the_first_value_that_is_not_finite) {
    const char *dir = shell_directory_of_chains(N_TOKENS);
    SHELL(1, "first tensor that is not finite: ",
          "$BUILD/train_gpt --train train.bin --model layers=2,heads=2,channels=16,seq=16,vocab=61 "
          "--steps 60 --lr 1e5 --clip 0 --schedule constant --threads 1 --save run --save-every 1 "
          "--keep 1 --eval-every 0");
    CHECK(strstr(said, "--resume continues from it") ||
          strstr(said, "--resume continues from an older one, if there is one"));
    SHELL(0, "step_", "ls run");
    // a weight of the last norm becomes a NaN
    SHELL(1, "the validation loss is not a number; first tensor that is not finite: parameter ",
          "mkdir nan && cp run/step_*/config.json run/step_*/model.safetensors nan && "
          "truncate -s -4 nan/model.safetensors && printf '\\377\\377\\377\\377' "
          ">>nan/model.safetensors && $BUILD/train_gpt --init nan --val train.bin --threads 1");
}

/* Every step has the same four sequences and --exact sums them in any order alike: the loss is that
 * of the step before exactly if that step made no update. */
TEST(train_leaves_out_the_updates_of_outliers) {
    static const char *const limits[][2] = {{"loss", "4"}, {"norm", "6"}}; // columns of z-scores
    const char *dir = shell_directory_of_chains(N_TOKENS);
    for (EACH(limit, limits))
        SHELL(
            0, "",
            "head -c 66 train.bin >four.bin && $BUILD/train_gpt --train four.bin --model "
            "layers=1,heads=1,channels=8,seq=8,vocab=61 --micro 4 --steps 250 --lr 0.1 --schedule "
            "constant --clip 0 --exact --threads 1 --skip-%s-z 1 --csv log.csv && "
            "awk -F, -v z=%s 'NR > 2 { wrong += skipped != ($3 == loss) } "
            "NR > 1 { wrong += ($z > 1) != $11; n += skipped = $11; loss = $3 } "
            "END { exit wrong || !n }' log.csv",
            (*limit)[0], (*limit)[1]);
}

/* Threads are pinned to cores: what one thread may use then is not what the machine has. And the
 * numbers of a record agree with one another. */
TEST(train_records_the_cores_whatever_the_threads) {
    static const char *const options[] = {"--threads 1", "--threads 2", "--threads 3", "--ranks 2"};
    const char *dir = shell_directory_of_chains(N_TOKENS);
    for (int i = 0; i < 4; i++) {
        SHELL(0, "\"cores\":",
              "$BUILD/train_gpt --train train.bin --model "
              "layers=1,heads=2,channels=8,seq=8,vocab=61 --micro 1 --batch 16 --steps 1 "
              "--layout dp %s --json run%d.json && grep -o '\"cores\":[0-9]*' run%d.json",
              options[i], i, i);
        CHECK_NEAR(shell_number(said, "\"cores\":"), team_cores(), 0);
        const char *log = test_path("run%d.json", i);
        double rate = shell_recorded(dir, log, "\"tokens_per_s\":", 0),
               flops = rate * shell_recorded(dir, log, "\"flops_per_token\":", 0),
               peak = shell_recorded(dir, log, "\"peak_flops\":", 0);
        CHECK_NEAR(rate * shell_recorded(dir, log, "\"ms\":", 0), 16e3, 1e-9); // doubles
        // no more than 1: a faster step shows that the peak was measured too low
        CHECK_NEAR(shell_recorded(dir, log, "\"peak\":", 0), fmin(1, flops / peak), 1e-12);
    }
    SHELL(0, "\"changed\":[\"train\",\"model\"", "grep -o '\"changed\":[^]]*' run0.json");
}
