/* llm.c's files. The golden ones are made by tests/golden_llmc.py: L=2 H=2 C=16 S=12 V=131
 * (Vp=256), state B=2 T=9. */
#include "tests/values.h"

#include <sys/stat.h>

#include "base/simd.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/llmc.h"
#include "data/output.h"
#include "parallel/step/model.h"

static const char *const V3 = TEST_DATA("golden/llmc_v3.bin");
static const char *const V5 = TEST_DATA("golden/llmc_v5.bin");
static const char *const STATE = TEST_DATA("golden/llmc_debug_state.bin");

TEST(llmc_models_round_trip_byte_for_byte) {
    const char *const files[] = {V3, V5};
    for (int i = 0; i < 2; i++) {
        Config c;
        CHECK(weights_config(files[i], &c, NULL));
        CHECK(c.layers == 2 && c.heads == 2 && c.channels == 16 && c.seq == 12 && c.vocab == 131);
        OWNED(values_free) Values p = values_of(&c, 1);
        CHECK(weights_load(files[i], &p.t, &group_alone, NULL));
        char *path = test_path("%s/model.bin", test_tmpdir());
        CHECK(llmc_model_save(path, &p.t, i ? LLMC_BF16 : LLMC_FP32, &group_alone, NULL));
        CHECK(test_same_files(path, files[i]));
    }
}

TEST(llmc_bf16_is_fp32_rounded) {
    Config c;
    CHECK(weights_config(V3, &c, NULL));
    OWNED(values_free) Values a = values_of(&c, 1), b = values_of(&c, 1);
    CHECK(weights_load(V3, &a.t, &group_alone, NULL) && weights_load(V5, &b.t, &group_alone, NULL));
    for (size_t i = 0; i < a.n; i++)
        CHECK(b.values[i] == bf16_to_float(bf16_from_float(a.values[i])));
}

TEST(llmc_failed_write_leaves_the_old_file) {
    Config c;
    struct stat st;
    CHECK(weights_config(V3, &c, NULL));
    OWNED(values_free) Values p = values_of(&c, 1);
    CHECK(weights_load(V3, &p.t, &group_alone, NULL));
    char *path = test_path("%s/model.bin", test_tmpdir());
    CHECK(io_write_file(path, "old", 3, NULL, NULL));
    OWNED(test_mem_end) char *part = temporary_name(path);
    int calls = 1;
    for (;; calls++) {
        io_inject(calls, false);
        bool saved = llmc_model_save(path, &p.t, LLMC_FP32, &group_alone, NULL);
        io_inject(0, false);
        CHECK(stat(path, &st) == 0 && !io_exists(part));
        if (saved) break;
        CHECK(st.st_size == 3);
    }
    CHECK(calls > 5 && st.st_size > 1024); // create, resize, write, sync, rename
}

TEST(llmc_refuses_other_files_by_name) {
    static const struct {
        int word, value;
        const char *says;
    } wrong[] = {{0, 1, "not an llm.c model"},
                 {0, 20240327, "debug state"},
                 {0, 20240803, "Llama"},
                 {1, 1, "version 1 of an llm.c model (fp32 without"},
                 {1, 2, "version 2 of an llm.c model (bf16 without"},
                 {1, 4, "version 4 of an llm.c model (bf16 with fp32"},
                 {1, 5, "cut off or damaged"},
                 {2, 0, "seq=0"},
                 {3, -1, "vocab=-1"},
                 {3, 100, "padded to 256; 128"},
                 {4, 3, "cut off or damaged"},
                 {4, 1 << 24, "layers=16777216: at most"},
                 {4, INT32_MAX, "layers="},
                 {5, 3, "heads=3"},
                 {6, 1 << 22, "cut off or damaged"},
                 {6, 0, "channels=0"},
                 {7, 131, "padded to 131; 256"}};
    OWNED(io_unmap) IoMap m = io_open(V3);
    Err e = {""};
    LlmcModel x;
    OWNED(test_mem_end) uint8_t *copy = mem_alloc(m.n);
    for (EACH(w, wrong)) {
        memcpy(copy, m.p, m.n);
        memcpy(copy + 4 * w->word, &w->value, 4);
        CHECK_REFUSED(llmc_model_parse(copy, m.n, &x, &e), e, w->says);
    }
    memcpy(copy, m.p, m.n);
    for (size_t n = 0; n < m.n; n += n < 1030 ? 1 : 997) CHECK(!llmc_model_parse(copy, n, &x, &e));
    CHECK(llmc_model_parse(copy, m.n, &x, &e));
}

TEST(llmc_refuses_a_model_that_it_cannot_hold) {
    static const char *const models[] = {"llama,layers=1,heads=1,channels=4,seq=4,vocab=5",
                                         "layers=1,heads=1,channels=4,seq=4,vocab=5,ffn=8",
                                         "layers=1,heads=1,channels=4,seq=4,vocab=5,tied=0",
                                         "layers=1,heads=1,channels=4,seq=4,vocab=5,bias=0",
                                         "layers=1,heads=1,channels=4,seq=4,vocab=5,eps=1e-6"};
    static const char *const keys[] = {"norm", "ffn", "tied", "bias", "eps"};
    for (int i = 0; i < 5; i++) {
        Err e = {""};
        OWNED(values_free) Values p = values_make(models[i], 1, 0);
        CHECK(!llmc_model_save("/nowhere/x.bin", &p.t, LLMC_FP32, &group_alone, &e));
        CHECK(strstr(e.text, keys[i]) && strstr(e.text, "save safetensors"));
        CHECK_REFUSED(weights_load(V3, &p.t, &group_alone, &e), e, "vocab=131");
    }
}

/* A debug state of llm.c: 256 int32 of header, tokens, targets, logits [18, V], the loss. What
 * PyTorch made of this very file's weights: a tensor that is taken for another, or turned, shows.
 * Gradients against PyTorch's: test_golden.c. */
TEST(llmc_model_has_the_logits_and_the_loss_of_pytorch) {
    enum { N = 2 * 9, V = 131 };
    const char *const files[] = {V3, V5};
    static const double limit[] = {5e-6, 0.05}; // other orders of sums; bf16 weights
    OWNED(io_unmap) IoMap state = io_open(STATE);
    CHECK(state.n > 1024 + 4 * (2 * N + N * V + 1));
    int32_t tokens[2 * N];
    static float want[N * V + 1], logits[N * V];
    memcpy(tokens, state.p + 1024, sizeof tokens);
    memcpy(want, state.p + 1024 + sizeof tokens, sizeof want);
    OWNED(test_team_end) Team *team = team_create(1);
    for (int i = 0; i < 2; i++) {
        ModelShape shape = {.B = 2, .S = 9, .training = true};
        CHECK(weights_config(files[i], &shape.config, NULL));
        OWNED(model_free) Model m;
        model_plan(&m, &shape, kernels_cpu(NULL), team);
        model_allocate(&m);
        CHECK(weights_load(files[i], &m.tensors, &group_alone, NULL));
        model_logits(&m, tokens, logits);
        CHECK(sqrt(test_nmse(logits, want, N * V)) <= limit[i]);
        model_zero_losses(&m);
        model_loss(&m, tokens, tokens + N, NULL);
        CHECK_NEAR(model_losses(&m) / N / (double)want[N * V], 1, limit[i]);
    }
}
