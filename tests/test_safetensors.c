#include "tests/parsed.h"
#include "tests/test.h"

#include "base/crc32c.h"
#include "base/simd.h"
#include "data/hf_config.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/safetensors.h"

/* A file of this header and n_data bytes 0, 1, 2, ... into buf; its length. */
static size_t make(uint8_t *buf, const char *header, size_t n_data) {
    uint64_t len = strlen(header);
    memcpy(buf, &len, 8);
    memcpy(buf + 8, header, len);
    for (size_t i = 0; i < n_data; i++) buf[8 + len + i] = (uint8_t)i;
    return 8 + len + n_data;
}

static bool parses(const char *header, size_t n_data, Err *e) {
    uint8_t buf[2048];
    OWNED(safetensors_free) SafeTensors s = {0};
    size_t n = make(buf, header, n_data);
    OWNED(test_mem_end)
    uint8_t *exact = mem_alloc(n); // of this size, so that the sanitizer sees any byte read beyond
    memcpy(exact, buf, n);
    return safetensors_parse(exact, n, &s, e);
}

static const char PAIR[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                           "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[4,12]},"
                           "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}  ";

#define T(name, dtype, shape, from, to)                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]" \
    "}"

TEST(safetensors_reads_a_table) {
    uint8_t buf[512];
    OWNED(safetensors_free) SafeTensors s = {0};
    size_t n = make(buf, PAIR, 12);
    CHECK(safetensors_parse(buf, n, &s, NULL));
    const SafeTensor *a = safetensors_find(&s, "a"), *b = safetensors_find(&s, "b");
    CHECK(s.n == 2 && a && b && !safetensors_find(&s, "c"));
    CHECK(a->n_dims == 0 && a->size == 1 && b->n_dims == 2 && b->size == 4);
    float x[4], want;
    memcpy(&want, buf + n - 12, 4);
    safetensors_get(a, 0, 1, x);
    CHECK(memcmp(x, &want, 4) == 0);
    safetensors_get(b, 1, 3, x);
    CHECK(x[0] == bf16_to_float(0x0706) && x[2] == bf16_to_float(0x0b0a));
    CHECK(parses("{}", 0, NULL));
    CHECK(parses("{\"z\":{\"dtype\":\"U8\",\"shape\":[0,5],\"data_offsets\":[0,0]}}", 0, NULL));
    CHECK(parses("{" T("z", "U8", "[0]", "0", "0") "," T("a", "U8", "[4]", "0", "4") "}", 4, NULL));
}

/* Files of models have masks and positions, too: of every type the size must be known. */
TEST(safetensors_reads_every_type) {
    static const char *const types[][8] = {{"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"},
                                           {"BF16", "F16", "I16", "U16"},
                                           {"F32", "I32", "U32"},
                                           {"F64", "I64", "U64"}};
    for (int i = 0; i < 4; i++)
        for (const char *const *type = types[i]; *type; type++) {
            int n = 3 << i;
            Err e = {""};
            const char *header = test_path("{" T("a", "%s", "[3]", "0", "%d") "}", *type, n);
            CHECK_SAYS(parses(header, (size_t)n, &e), "%s: %s", *type, e.text);
        }
}

TEST(safetensors_refuses_every_truncation) {
    uint8_t buf[512];
    size_t n = make(buf, PAIR, 12);
    for (size_t cut = 0; cut < n; cut++) {
        OWNED(test_mem_end) uint8_t *part = mem_alloc(cut);
        memcpy(part, buf, cut);
        OWNED(safetensors_free) SafeTensors s = {0};
        Err e = {""};
        CHECK(!safetensors_parse(part, cut, &s, &e) && e.text[0]);
    }
}

TEST(safetensors_names_every_defect) {
    static const struct {
        const char *header;
        size_t n_data;
        const char *says;
    } wrong[] = {
        {"{" T("a", "F32", "[2]", "0", "8") "}", 4, "leave the 4 bytes"},
        {"{" T("a", "F32", "[2]", "0", "8") "}", 9, "1 bytes follow"},
        {"{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[2]", "4", "12") "}", 12,
         "b overlaps"},
        {"{" T("a", "F32", "[1]", "0", "4") "," T("b", "F32", "[1]", "8", "12") "}", 12,
         "b leaves a hole"},
        {"{" T("a", "F32", "[1]", "4", "8") "}", 8, "a leaves a hole"},
        {"{" T("a", "F31", "[2]", "0", "8") "}", 8, "unknown dtype \"F31\""},
        {"{" T("a", "F32", "[3]", "0", "8") "}", 8, "8 bytes, not the size of F32 [3]"},
        {"{" T("a", "F32", "[-2]", "0", "8") "}", 8, "has a number that is negative"},
        {"{" T("a", "F32", "[1.5]", "0", "8") "}", 8, "has a number that is negative"},
        {"{" T("a", "F32", "[4294967296,4294967296,4294967296]", "0", "8") "}", 8,
         "has a number that is negative"},
        {"{" T("a", "F32", "[4611686018427387904,4]", "0", "0") "}", 0,
         "has a number that is negative"},
        {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, "at most 8"},
        {"{" T("a", "F32", "7", "0", "4") "}", 4, "\"shape\""},
        {"{" T("a", "F32", "[1]", "4", "0") "}", 4, "offsets [4, 0]"},
        {"{" T("a", "F32", "[1]", "-4", "0") "}", 4, "offsets [-4, 0]"},
        {"{" T("a", "F32", "[1]", "0", "9223372036854775807") "}", 4, "offsets"},
        {"{" T("a", "F32", "[1]", "0", "18446744073709551616") "}", 4, "no JSON"},
        {"{" T("a", "F32", "[1]", "0", "4") "," T("a", "F32", "[1]", "4", "8") "}", 8, "uplicate"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets"},
        {"{\"a\":[]}", 0, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "data_offsets"},
        {"{\"a\":", 0, "no JSON"},
        {"[1]", 0, "not a safetensors file"},
    };
    for (EACH(w, wrong)) {
        Err e = {""};
        CHECK_REFUSED(parses(w->header, w->n_data, &e), e, w->says);
    }
    uint8_t huge[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{'};
    SafeTensors s;
    Err e = {""};
    CHECK(!safetensors_parse(huge, sizeof huge, &s, &e));
    CHECK(!safetensors_parse((const uint8_t *)"\x7f"
                                              "ELF....{}",
                             10, &s, &e));
}

TEST(safetensors_half_precision_widens_exactly) {
    // value = (-1)^s 2^(e-15) (1 + f/1024), subnormal 2^-24 f: every finite half is exact in fp32
    static const char header[] = "{" T("a", "F16", "[65536]", "0", "131072") "}";
    OWNED(test_mem_end) uint8_t *buf = mem_alloc(8 + sizeof header + 131072);
    OWNED(test_mem_end) float *x = mem_alloc(65536 * sizeof *x);
    size_t n = make(buf, header, 131072);
    for (size_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        memcpy(buf + n - 131072 + 2 * i, &h, 2);
    }
    OWNED(safetensors_free) SafeTensors s = {0};
    CHECK(safetensors_parse(buf, n, &s, NULL));
    safetensors_get(&s.t[0], 0, 65536, x);
    int wrong = 0;
    for (int i = 0; i < 65536; i++) {
        int exp = i >> 10 & 31, frac = i & 1023;
        double want = exp ? ldexp(1 + frac / 1024.0, exp - 15) : ldexp(frac, -24);
        if (exp == 31) want = frac ? NAN : INFINITY;
        if (i >> 15) want = -want;
        bool same =
            isnan(want) ? isnan(x[i]) : (double)x[i] == want && !signbit(x[i]) == !(i >> 15);
        wrong += !same;
    }
    CHECK(wrong == 0);
}

TEST(safetensors_writes_in_any_order) {
    float x[20], back[20];
    uint32_t crc;
    uint64_t n_bytes;
    SafeTensors list = {0};
    OWNED(safetensors_free) SafeTensors s = {0};
    SafeWriter w;
    char *path = test_path("%s/a.safetensors", test_tmpdir());
    test_fill(x, 20, 1, 3);
    CHECK(safetensors_add(&list, "one", "F32", 2, (int64_t[]){4, 5}) == 0);
    CHECK(safetensors_add(&list, "two", "BF16", 1, (int64_t[]){20}) == 1);
    CHECK(safetensors_create(&w, path, &list, &group_alone, NULL));
    const SafeTensor *one = &w.list.t[0], *two = &w.list.t[1];
    CHECK(safetensors_put(&w.file, two, 10, 10, x + 10, NULL));
    CHECK(safetensors_put(&w.file, one, 5, 15, x + 5, NULL));
    CHECK(safetensors_put(&w.file, one, 0, 5, x, NULL));
    CHECK(safetensors_put(&w.file, two, 0, 10, x, NULL));
    CHECK(safetensors_finish(&w, true, &n_bytes, &crc, NULL));
    OWNED(io_unmap) IoMap m = io_open(path);
    CHECK(m.n == n_bytes && crc32c(0, m.p, m.n) == crc);
    CHECK(safetensors_parse(m.p, m.n, &s, NULL));
    CHECK(s.t[0].begin % 64 == 0);
    safetensors_get(safetensors_find(&s, "one"), 0, 20, back);
    CHECK(memcmp(back, x, sizeof x) == 0);
    safetensors_get(safetensors_find(&s, "two"), 0, 20, back);
    for (int i = 0; i < 20; i++) CHECK(back[i] == bf16_to_float(bf16_from_float(x[i])));
}

TEST(safetensors_header_that_cannot_be_written_is_an_error) {
    char *path = test_path("%s/a.safetensors", test_tmpdir());
    SafeTensors list = {0};
    SafeWriter w;
    Err e;
    for (int i = 0; i < 2000; i++) // too many for the buffer
        safetensors_add(&list, (char[]){(char)('a' + i / 100), (char)('0' + i % 100), 0}, "F32", 1,
                        (int64_t[]){1});
    io_inject(3, false); // create, resize, write
    bool ok = safetensors_create(&w, path, &list, &group_alone, &e);
    io_inject(0, false);
    CHECK(!ok && !io_exists(path) && strstr(e.text, "cannot write"));
}

TEST(safetensors_index_lists_each_file_once) {
    char *files[2];
    Err e = {""};
    static const char good[] = "{\"weight_map\":{\"a\":\"x1\",\"b\":\"x2\",\"c\":\"x1\"}}";
    CHECK(safetensors_index_parse(good, strlen(good), files, 2, &e) == 2);
    CHECK_STR(files[0], "x1");
    CHECK_STR(files[1], "x2");
    mem_free(files[0]);
    mem_free(files[1]);
    files[1] = NULL;
    CHECK(safetensors_index_parse(good, strlen(good), files, 1, &e) == -1 && !files[1]);
    static const char *const bad[] = {"",
                                      "{}",
                                      "{\"weight_map\":{}}",
                                      "{\"weight_map\":{\"a\":1}}",
                                      "{\"weight_map\":{\"a\":\"../x\"}}",
                                      "{\"weight_map\":{\"a\":\"\"}}"};
    for (EACH(b, bad)) CHECK(safetensors_index_parse(*b, strlen(*b), files, 2, &e) == -1);
}

/* ---- config.json ---- */

static bool config_round_trips(const char *text, HfKind kind) {
    Config c, back;
    Err e = {""};
    if (!config_parse(&c, text, &e)) return false;
    OWNED(test_mem_end) char *json = hf_config_text(&c, false);
    bool ok = hf_config_kind(&c) == kind && hf_config_parse(json, strlen(json), &back, &e);
    if (!ok) printf("    %s\n", e.text);
    // What a shape does not use (speeds of rotary positions, of GPT-2) need not come back.
    if (kind == HF_GPT2) back.rope_theta = c.rope_theta, back.rope_factor = c.rope_factor;
    return ok && config_equal(&c, &back);
}

TEST(hf_config_round_trips) {
    CHECK(config_round_trips("d12", HF_GPT2));
    CHECK(config_round_trips("d6,ffn=100,vocab=256,eps=3e-6,tied=0,seq=77", HF_GPT2));
    CHECK(config_round_trips("llama", HF_LLAMA));
    CHECK(config_round_trips("llama,kv_heads=3,theta=500000,eps=0.1,tied=1,bias=1", HF_LLAMA));
    CHECK(config_round_trips("llama,rope_factor=32,rope_seq=100", HF_LLAMA));
    CHECK(config_round_trips("llama,qkv_bias=1,tied=1,kv_heads=2", HF_QWEN2));
    CHECK(config_round_trips("llama,qk_norm=1,head_dim=128,heads=7,kv_heads=7", HF_QWEN3));
    CHECK(config_round_trips("llama,head_dim=32", HF_LLAMA));
    CHECK(config_round_trips("llama,qk_norm=1,qkv_bias=1", HF_OWN));
    CHECK(config_round_trips("llama,qk_norm=1,bias=1", HF_OWN));
    CHECK(config_round_trips("d12,pos=rope", HF_OWN));
    CHECK(config_round_trips("d12,kv_heads=4,theta=123.456", HF_OWN));
    CHECK(config_round_trips("d12,bias=0", HF_OWN));
    CHECK(config_round_trips("llama,norm=layer,bias=1", HF_OWN));
}

/* Each key of --model (the table of base/config.c) comes back from the config.json of a GPT-2, of a
 * LLaMA, and of neither. */
TEST(hf_config_keeps_every_key) {
    static const char *const bases[] = {"layers=2,heads=4,channels=64,vocab=61",
                                        "llama,layers=2,heads=4,channels=64,vocab=61",
                                        "layers=2,heads=4,channels=64,vocab=61,pos=rope"};
    static const char *const values[] = {
        "layers=3",      "heads=8",     "kv_heads=2", "channels=128", "ffn=100",
        "seq=77",        "vocab=99",    "norm=rms",   "pos=rope",     "pos=learned",
        "norm=layer",    "act=gelu",    "act=relu2",  "act=swiglu",   "bias=0",
        "bias=1",        "tied=0",      "tied=1",     "eps=3e-6",     "theta=123",
        "rope_factor=8", "rope_seq=10", "head_dim=8", "qkv_bias=1",   "qk_norm=1"};
    enum { N_VALUES = N_OF(values) };
    OWNED(test_mem_end) char *source = test_read("base/config.c", NULL);
    int n_keys = 0;
    for (const char *at = source; (at = strstr(at, "\", OPT_")); at++, n_keys++) {
        const char *key = at;
        while (key[-1] != '"') key--;
        int n = (int)(at - key), tried = 0;
        for (int i = 0; i < 3 * N_VALUES; i++) {
            const char *base = bases[i / N_VALUES], *value = values[i % N_VALUES];
            if (strncmp(value, key, (size_t)n) != 0 || value[n] != '=') continue;
            char *text = test_path("%s,%s", base, value);
            Config c = config_of(text);
            CHECK_SAYS(config_round_trips(text, hf_config_kind(&c)),
                       "config.json loses %s of --model %s: hf_config_kind", value, base);
            tried++;
        }
        CHECK_SAYS(tried, "no value of the key %.*s is tried: values[]", n, key);
    }
    CHECK(n_keys >= 14);
}

#define GPT2_KEYS                                                                                  \
    "\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":8,\"vocab_size\":11"
#define QWEN_KEYS(type)                                                                            \
    "\"model_type\":\"" type "\",\"num_hidden_layers\":2,\"num_attention_heads\":4,"               \
    "\"num_key_value_heads\":2,\"hidden_size\":16,\"intermediate_size\":24,\"vocab_size\":13"
#define LLAMA_KEYS                                                                                 \
    "\"model_type\":\"llama\",\"num_hidden_layers\":2,\"num_attention_heads\":4,\"hidden_size\":"  \
    "16,\"intermediate_size\":24,\"vocab_size\":13"

TEST(hf_config_reads_what_others_wrote) {
    Config c;
    // gpt2's own file has n_ctx and n_positions and lacks n_inner and tie_word_embeddings
    static const char gpt2[] =
        "{" GPT2_KEYS ",\"n_ctx\":1024,\"n_positions\":1024,\"n_inner\":null,"
        "\"scale_attn_weights\":true,\"add_cross_attention\":false}";
    CHECK(hf_config_parse(gpt2, strlen(gpt2), &c, NULL));
    CHECK(c.ffn == 32 && c.tied && c.seq == 1024 && c.norm_eps == 1e-5 && c.kv_heads == 2);
    static const char old[] =
        "{" LLAMA_KEYS ",\"num_key_value_heads\":2,\"rope_theta\":5e5,\"rope_scaling\":null}";
    CHECK(hf_config_parse(old, strlen(old), &c, NULL));
    CHECK(c.kv_heads == 2 && !c.tied && !c.bias && c.rope_theta == 5e5 && c.seq == 2048);
    static const char new[] =
        "{" LLAMA_KEYS ",\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"default\"}}";
    CHECK(hf_config_parse(new, strlen(new), &c, NULL));
    CHECK(c.kv_heads == 4 && c.rope_theta == 1e6 && c.norm_eps == 1e-6 && c.rope_factor == 1);
    static const char llama_3[] =
        "{" LLAMA_KEYS ",\"rope_theta\":5e5,\"rope_scaling\":{\"factor\":32,\"low_freq_factor\":1,"
        "\"high_freq_factor\":4,\"original_max_position_embeddings\":100,\"rope_type\":\"llama3\"}"
        "}";
    CHECK(hf_config_parse(llama_3, strlen(llama_3), &c, NULL));
    CHECK(c.rope_theta == 5e5 && c.rope_factor == 32 && c.rope_seq == 100);
    static const char wide[] = "{" LLAMA_KEYS ",\"head_dim\":8}";
    CHECK(hf_config_parse(wide, strlen(wide), &c, NULL));
    CHECK(config_head_size(&c) == 8 && !c.qk_norm && !c.bias && !c.qkv_bias);
}

/* What Qwen's own files have and lack. */
TEST(hf_config_reads_qwen) {
    Config c;
    static const char two[] = "{" QWEN_KEYS(
        "qwen2") ",\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,"
                 "\"sliding_window\":32768,\"max_window_layers\":21,\"use_sliding_window\":false,"
                 "\"tie_word_embeddings\":true,\"bos_token_id\":7,\"eos_token_id\":9}";
    CHECK(hf_config_parse(two, strlen(two), &c, NULL));
    CHECK(c.qkv_bias && !c.bias && !c.qk_norm && !c.head_dim && c.tied && c.rope_theta == 1e6);
    CHECK(c.seq == 32768 && c.ids.bos == 7 && c.ids.n_eos == 1);
    static const char three[] = "{" QWEN_KEYS(
        "qwen3") ",\"attention_bias\":false,\"head_dim\":128,"
                 "\"max_position_embeddings\":40960,\"sliding_window\":null,\"rope_scaling\":null}";
    CHECK(hf_config_parse(three, strlen(three), &c, NULL));
    CHECK(c.qk_norm && !c.bias && !c.qkv_bias && c.head_dim == 128 && !c.tied && c.seq == 40960);
    static const char bare[] = "{" QWEN_KEYS("qwen3") "}";
    CHECK(hf_config_parse(bare, strlen(bare), &c, NULL) && c.head_dim == 128);
}

/* The ids of a config.json as our own two files have them. */
static bool ids_written(const char *keys, const char *eos, const char *bos) {
    Config c;
    const char *text = test_path("{" GPT2_KEYS "%s}", keys);
    const char *want[] = {test_path("\"eos_token_id\": %s", eos),
                          test_path("\"bos_token_id\": %s", bos)};
    bool ok = hf_config_parse(text, strlen(text), &c, NULL);
    char *files[2] = {hf_config_text(&c, false), hf_generation_text(&c)};
    for (int i = 0; ok && i < 4; i++) {
        if (files[i / 2]) {
            for (char *p = files[i / 2]; *p; p++) // a list on one line
                if (*p == '\n') *p = ' ';
            ok = strstr(files[i / 2], want[i % 2]);
        } else {
            ok = strcmp(eos, "null") == 0; // nothing to stop at: no file
        }
    }
    mem_free(files[0]), mem_free(files[1]);
    return ok;
}

TEST(hf_config_keeps_the_ids_of_ends_and_begins) {
    CHECK(ids_written("", "null", "null"));
    CHECK(ids_written(",\"eos_token_id\":null,\"bos_token_id\":3", "null", "3"));
    CHECK(ids_written(",\"eos_token_id\":0", "0", "null"));
    CHECK(ids_written(",\"eos_token_id\":[4,10,7],\"bos_token_id\":1", "[     4,     10,     7   ]",
                      "1"));
    CHECK(ids_written(",\"eos_token_id\":[4,10]", "[     4,     10   ]", "null"));
    CHECK(ids_written(",\"eos_token_id\":11,\"bos_token_id\":-1", "null", "null")); // of 11 tokens
    Config c = config_of("d12"); // GPT-2's vocabulary: GPT-2's id
    OWNED(test_mem_end) char *text = hf_generation_text(&c);
    CHECK(text && strstr(text, "\"eos_token_id\": 50256") &&
          strstr(text, "\"bos_token_id\": 50256"));
    c.ids = (SpecialIds){.n_eos = 1, .eos = {7}}; // unless others are known
    OWNED(test_mem_end) char *own = hf_generation_text(&c);
    CHECK(own && strstr(own, "\"eos_token_id\": 7") && strstr(own, "\"bos_token_id\": null"));
}

TEST(hf_config_refuses_what_we_would_compute_wrongly) {
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"{" GPT2_KEYS ",\"activation_function\":\"gelu\"}", "\"activation_function\" is \"gelu\""},
        {"{" GPT2_KEYS ",\"scale_attn_weights\":1}", "scale_attn_weights\" is neither"},
        {"{" GPT2_KEYS ",\"scale_attn_weights\":false}", "\"scale_attn_weights\" is false, which"},
        {"{" GPT2_KEYS ",\"scale_attn_by_inverse_layer_idx\":true}", "scale_attn_by_inverse"},
        {"{" GPT2_KEYS ",\"add_cross_attention\":true}", "\"add_cross_attention\" is true, which"},
        {"{" GPT2_KEYS ",\"is_causal\":false}", "\"is_causal\" is false, which"},
        {"{" LLAMA_KEYS ",\"is_causal\":false}", "\"is_causal\" is false, which"},
        {"{" LLAMA_KEYS ",\"is_causal\":null}", "\"is_causal\" is null, which"},
        {"{" GPT2_KEYS ",\"n_head\":3}", "heads=3 do not divide"},
        {"{" GPT2_KEYS ",\"n_layer\":0}", "\"n_layer\" is not a positive"},
        {"{" GPT2_KEYS ",\"n_layer\":\"2\"}", "\"n_layer\" is not a positive"},
        {"{" GPT2_KEYS ",\"n_embd\":9223372036854775806}", "channels="},
        {"{" GPT2_KEYS ",\"layer_norm_epsilon\":\"x\"}", "layer_norm_epsilon"},
        {"{" GPT2_KEYS ",\"layer_norm_epsilon\":0}", "eps=0"},
        {"{\"model_type\":\"gpt2\"}", "\"n_layer\" is missing"},
        {"{" LLAMA_KEYS ",\"rope_scaling\":{\"rope_type\":\"llama3\"}}",
         "\"original_max_position_embeddings\" is missing"},
        {"{" LLAMA_KEYS ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
         "\"original_max_position_embeddings\":8192,\"low_freq_factor\":2,\"high_freq_factor\":4}}",
         "must be 1 and 4"},
        {"{" LLAMA_KEYS ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", "\"linear\""},
        {"{" LLAMA_KEYS ",\"rope_parameters\":{\"rope_type\":\"yarn\"}}",
         "\"rope_type\" is \"yarn\""},
        {"{" LLAMA_KEYS ",\"num_attention_heads\":3}", "even head size, not 5"},
        {"{" QWEN_KEYS("qwen2") ",\"use_sliding_window\":true}",
         "\"use_sliding_window\" is true, which"},
        {"{" QWEN_KEYS("qwen3") ",\"attention_bias\":true}",
         "\"attention_bias\" is true and \"mlp_bias\" is false"},
        {"{" LLAMA_KEYS ",\"num_attention_heads\":0}", "\"num_attention_heads\" is not a positive"},
        {"{" LLAMA_KEYS ",\"mlp_bias\":true}", "\"attention_bias\" is false and \"mlp_bias\" is "
                                               "true: in this trainer all linear layers have"},
        {"{" LLAMA_KEYS ",\"attention_bias\":true}",
         "\"attention_bias\" is true and \"mlp_bias\" is false: in this trainer all linear layers "
         "have"},
        {"{" LLAMA_KEYS ",\"quantization_config\":{\"quant_method\":\"fp8\"}}",
         "\"quantization_config\" (fp8): the weights are quantized"},
        {"{" LLAMA_KEYS ",\"hidden_act\":\"gelu\"}", "\"hidden_act\" is \"gelu\""},
        {"{\"model_type\":\"train_gpt\"}", "\"train_gpt\" is missing"},
        {"{\"model_type\":\"train_gpt\",\"train_gpt\":\"layers=x\"}",
         "layers takes a whole number, not \"x\""},
        {"{\"model_type\":\"mamba\"}", "\"mamba\""},
        {"{\"architectures\":[]}", "\"model_type\" is missing"},
        {"[]", "\"model_type\" is missing"},
        {"{", "no JSON"},
        {"", "no JSON"},
    };
    for (EACH(w, wrong)) {
        Config c;
        Err e = {""};
        CHECK_REFUSED(hf_config_parse(w->text, strlen(w->text), &c, &e), e, w->says);
    }
}
