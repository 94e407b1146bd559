/* llm.c's files. The golden ones are made by tests/golden_llmc.py: L=2 H=2 C=16 S=12 V=131
 * (Vp=256), state B=2 T=9. */
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/simd.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/llmc.h"
#include "data/temporary.h"
#include "data/weights.h"
#include "parallel/step/model.h"

static const char *const V3 = TEST_DATA("golden/llmc_v3.bin");
static const char *const V5 = TEST_DATA("golden/llmc_v5.bin");
static const char *const STATE = TEST_DATA("golden/llmc_debug_state.bin");

typedef struct Params {
    TensorTable t;
    float *values;
    size_t n;
} Params;

static Params params_make(const Config *c) {
    Params p = {.t = tensors_describe(c), .n = (size_t)config_parameters(c)};
    p.values = mem_calloc(p.n, sizeof *p.values);
    float *at = p.values;
    for (int i = 0; i < p.t.n; at += tensor_size(&p.t.t[i++])) p.t.t[i].param = at;
    return p;
}

static void params_free(Params *p) {
    mem_free(p->values);
    tensors_free(&p->t);
}

TEST(llmc_models_round_trip_byte_for_byte) {
    const char *const files[] = {V3, V5};
    for (int i = 0; i < 2; i++) {
        Config c;
        Err e = {""};
        char path[160], tmp[176];
        CHECK(weights_config(files[i], &c, &e));
        CHECK(c.layers == 2 && c.heads == 2 && c.channels == 16 && c.seq == 12 && c.vocab == 131);
        Params p = params_make(&c);
        CHECK(weights_load(files[i], &p.t, &group_alone, &e));
        snprintf(path, sizeof path, "%s/model.bin", test_tmpdir());
        CHECK(llmc_model_save(path, &p.t, i ? LLMC_BF16 : LLMC_FP32, &group_alone, &e));
        IoMap a, b;
        CHECK(io_map(&a, files[i], &e) && io_map(&b, path, &e));
        CHECK(a.n == b.n && memcmp(a.p, b.p, a.n) == 0);
        io_unmap(&a);
        io_unmap(&b);
        snprintf(tmp, sizeof tmp, "%s.tmp", path);
        CHECK(!io_exists(tmp));
        params_free(&p);
    }
}

TEST(llmc_bf16_is_fp32_rounded) {
    Config c;
    Err e = {""};
    CHECK(weights_config(V3, &c, &e));
    Params a = params_make(&c), b = params_make(&c);
    CHECK(weights_load(V3, &a.t, &group_alone, &e) && weights_load(V5, &b.t, &group_alone, &e));
    for (size_t i = 0; i < a.n; i++)
        CHECK(b.values[i] == bf16_to_float(bf16_from_float(a.values[i])));
    params_free(&a);
    params_free(&b);
}

TEST(llmc_failed_write_leaves_the_old_file) {
    Config c;
    Err e = {""};
    char path[160];
    struct stat st;
    CHECK(weights_config(V3, &c, &e));
    Params p = params_make(&c);
    CHECK(weights_load(V3, &p.t, &group_alone, &e));
    snprintf(path, sizeof path, "%s/model.bin", test_tmpdir());
    CHECK(io_write_file(path, "old", 3, NULL, &e));
    char *part = temporary_name(path);
    int calls = 1;
    for (;; calls++) {
        io_inject(calls, false);
        bool saved = llmc_model_save(path, &p.t, LLMC_FP32, &group_alone, &e);
        io_inject(0, false);
        CHECK(stat(path, &st) == 0 && !io_exists(part));
        if (saved) break;
        CHECK(st.st_size == 3);
    }
    CHECK(calls > 5 && st.st_size > 1024); // create, resize, write, sync, rename
    mem_free(part);
    params_free(&p);
}

TEST(llmc_refuses_other_files_by_name) {
    static const struct {
        int word, value;
        const char *says;
    } wrong[] = {{0, 1, "not an llm.c model"},
                 {0, 20240327, "debug state"},
                 {0, 20240803, "Llama"},
                 {1, 1, "version 1"},
                 {1, 2, "version 2"},
                 {1, 4, "version 4"},
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
    IoMap m;
    Err e = {""};
    LlmcModel x;
    CHECK(io_map(&m, V3, &e));
    uint8_t *copy = mem_alloc(m.n);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        memcpy(copy, m.p, m.n);
        memcpy(copy + 4 * wrong[i].word, &wrong[i].value, 4);
        bool ok = llmc_model_parse(copy, m.n, &x, &e);
        if (ok || !strstr(e.text, wrong[i].says)) printf("    case %zu: %s\n", i, e.text);
        CHECK(!ok && strstr(e.text, wrong[i].says));
    }
    memcpy(copy, m.p, m.n);
    for (size_t n = 0; n < m.n; n += n < 1030 ? 1 : 997) CHECK(!llmc_model_parse(copy, n, &x, &e));
    CHECK(llmc_model_parse(copy, m.n, &x, &e));
    mem_free(copy);
    io_unmap(&m);
}

TEST(llmc_refuses_a_model_that_it_cannot_hold) {
    static const char *const models[] = {"llama,layers=1,heads=1,channels=4,seq=4,vocab=5",
                                         "layers=1,heads=1,channels=4,seq=4,vocab=5,ffn=8",
                                         "layers=1,heads=1,channels=4,seq=4,vocab=5,tied=0",
                                         "layers=1,heads=1,channels=4,seq=4,vocab=5,bias=0",
                                         "layers=1,heads=1,channels=4,seq=4,vocab=5,eps=1e-6"};
    static const char *const keys[] = {"norm", "ffn", "tied", "bias", "eps"};
    for (int i = 0; i < 5; i++) {
        Config c;
        Err e = {""};
        CHECK(config_parse(&c, models[i], &e));
        Params p = params_make(&c);
        CHECK(!llmc_model_save("/nowhere/x.bin", &p.t, LLMC_FP32, &group_alone, &e));
        CHECK(strstr(e.text, keys[i]) && strstr(e.text, "save safetensors"));
        CHECK(!weights_load(V3, &p.t, &group_alone, &e) && strstr(e.text, "vocab=131"));
        params_free(&p);
    }
}

TEST(llmc_debug_state_is_checked) {
    Config c;
    IoMap m;
    LlmcState s;
    Err e = {""};
    CHECK(weights_config(V3, &c, &e));
    CHECK(io_map(&m, STATE, &e));
    CHECK(llmc_state_parse(m.p, m.n, &c, &s, &e));
    CHECK(s.B == 2 && s.T == 9 && s.loss > 4 && s.loss < 8); // ln 131 is 4.9
    for (size_t n = 0; n < m.n; n += n < 1030 ? 1 : 997)
        CHECK(!llmc_state_parse(m.p, n, &c, &s, &e));
    Config other = c;
    other.vocab = 130;
    CHECK(!llmc_state_parse(m.p, m.n, &other, &s, &e) && strstr(e.text, "another model"));
    static const int wrong[][2] = {{0, 20240326}, {1, 1},  {2, 0}, {2, INT32_MAX},
                                   {3, 13},       {3, -1}, {3, 8}};
    uint8_t *copy = mem_alloc(m.n);
    for (int i = 0; i < 7; i++) {
        memcpy(copy, m.p, m.n);
        memcpy(copy + 4 * wrong[i][0], &wrong[i][1], 4);
        CHECK(!llmc_state_parse(copy, m.n, &c, &s, &e));
    }
    mem_free(copy);
    io_unmap(&m);
}

/* Runs the tool of this build; its exit status, or -1 when it is not there. Its table goes into
 * text. */
static int run_tool(const char *model, const char *state, const char *more, char *text, size_t n) {
    char exe[1024], command[2048];
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (len < 0) return -1;
    exe[len] = 0;
    *strrchr(exe, '/') = 0;
    snprintf(command, sizeof command,
             "'%s/check_debug_state' --init '%s' --state '%s' --threads 1 %s 2>&1", exe, model,
             state, more);
    FILE *f = popen(command, "r");
    if (!f) return -1;
    text[fread(text, 1, n - 1, f)] = 0;
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(llmc_debug_state_agrees_with_the_model) {
    char text[4096];
    // the reference sums in another order: measured errors are below 1e-6
    CHECK(run_tool(V3, STATE, "--tolerance 5e-6", text, sizeof text) == 0);
    int lines = 0;
    for (char *p = text; (p = strstr(p, " ok\n")); p++) lines++;
    CHECK(lines == 18); // logits, loss and sixteen gradients
    CHECK(run_tool(V5, STATE, "--tolerance 0.05", text, sizeof text) == 0);
    CHECK(run_tool(V5, STATE, "--tolerance 1e-4", text, sizeof text) == 1);
    CHECK(run_tool(V3, V3, "", text, sizeof text) == 1 && strstr(text, "not an llm.c debug state"));
    CHECK(run_tool(V3, "/nowhere", "", text, sizeof text) == 1 && strstr(text, "No such file"));
    CHECK(run_tool(V3, "", "", text, sizeof text) == 2 && strstr(text, "--state are needed"));
}

TEST(llmc_one_wrong_gradient_is_noticed) {
    Config c;
    IoMap m;
    Err e = {""};
    char path[160], text[4096];
    LlmcState s;
    CHECK(weights_config(V3, &c, &e) && io_map(&m, STATE, &e));
    CHECK(llmc_state_parse(m.p, m.n, &c, &s, &e));
    snprintf(path, sizeof path, "%s/state.bin", test_tmpdir());
    uint8_t *copy = mem_alloc(m.n);
    for (int k = 0; k < LLMC_TENSORS; k++) { // the gradient of one element is forgotten
        LlmcTensor x = llmc_tensor(&c, k);
        memcpy(copy, m.p, m.n);
        size_t at = (size_t)(s.grads - m.p) + 4 * (size_t)x.offset, largest = at;
        for (size_t i = at; i < at + 4 * (size_t)(x.layers * x.rows * x.cols); i += 4) {
            float a, b;
            memcpy(&a, m.p + i, 4), memcpy(&b, m.p + largest, 4);
            if (fabsf(a) > fabsf(b)) largest = i;
        }
        memset(copy + largest, 0, 4);
        CHECK(io_write_file(path, copy, m.n, NULL, &e));
        CHECK(run_tool(V3, path, "", text, sizeof text) == 1);
        char *off = strstr(text, "OFF");
        CHECK(off && !strstr(off + 1, "OFF"));
        while (off > text && off[-1] != '\n') off--;
        CHECK(strncmp(off, x.name, strlen(x.name)) == 0 && off[strlen(x.name)] == ' ');
    }
    mem_free(copy);
    io_unmap(&m);
}
