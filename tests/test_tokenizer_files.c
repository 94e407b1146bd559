#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"
#include "data/bpe_train.h"
#include "data/io.h"
#include "data/presplit.h"
#include "data/token_shard.h"
#include "data/tokenizer.h"
#include "tests/test.h"

#define SMALL_JSON   TEST_DATA("golden/tokenizer/tokenizer.json")
#define SMALL_PAIR   TEST_DATA("golden/tokenizer/vocab.json")
#define SMALL_MERGES TEST_DATA("golden/tokenizer/merges.txt")

static bool same_tokens(const Tokenizer *a, const Tokenizer *b) {
    if (tokenizer_vocab(a) != tokenizer_vocab(b) || tokenizer_eot(a) != tokenizer_eot(b))
        return false;
    for (int32_t i = 0; i < tokenizer_vocab(a); i++) {
        size_t n, m;
        const uint8_t *p = tokenizer_token(a, i, &n), *q = tokenizer_token(b, i, &m);
        if (n != m || memcmp(p, q, n) != 0) return false;
    }
    return true;
}

/* The tokenizer of a tokenizer.json; prints why it is none. */
static Tokenizer *json_tokenizer(const char *text) {
    Tokenizer *t = NULL;
    Err e;
    bool ok = tokenizer_parse_json((const uint8_t *)text, strlen(text), &t, &e);
    if (!ok) printf("    %s\n", e.text);
    return ok ? t : NULL;
}

TEST(tokenizer_formats_agree_and_round_trip) {
    OWNED(test_tokenizer_end)
    Tokenizer *pair = tokenizer_load(SMALL_PAIR), *json = tokenizer_load(SMALL_JSON);
    CHECK(same_tokens(pair, json) && tokenizer_merges(pair) == tokenizer_merges(json));
    char *dir = test_path("%s/vocabulary", test_tmpdir());
    tokenizer_save(json, dir);
    OWNED(test_tokenizer_end) Tokenizer *saved = tokenizer_load(dir);
    CHECK(same_tokens(pair, saved) && tokenizer_merges(saved) == tokenizer_merges(pair));
    char *merges = test_path("%s/merges.txt", dir), *bin = test_path("%s/gpt2_tokenizer.bin", dir);
    CHECK(test_same_files(merges, SMALL_MERGES));
    OWNED(test_mem_end) char *class = test_read(test_path("%s/tokenizer_config.json", dir), NULL);
    CHECK(class && strstr(class, "\"GPT2Tokenizer\""));
    OWNED(test_tokenizer_end) Tokenizer *decoder = tokenizer_load(bin);
    CHECK(same_tokens(decoder, pair) && !tokenizer_can_encode(decoder));
    size_t n;
    CHECK(!tokenizer_token(pair, -1, &n) && !tokenizer_token(pair, tokenizer_vocab(pair), &n));
}

/* As those of SmolLM2 and Qwen: vocab.json and merges.txt do not say how text is cut. */
TEST(tokenizer_of_a_folder_with_both_is_that_of_tokenizer_json) {
    OWNED(test_tokenizer_end) Tokenizer *pair = tokenizer_load(SMALL_PAIR);
    char *dir = test_path("%s/both", test_tmpdir());
    tokenizer_save(pair, dir);
    OWNED(test_mem_end) char *good = test_read(SMALL_JSON, NULL);
    OWNED(test_mem_end)
    char *json = test_changed(good, "\"add_prefix_space\":false", "\"add_prefix_space\":true");
    CHECK(io_write_file(test_path("%s/tokenizer.json", dir), json, strlen(json), NULL, NULL));
    OWNED(test_tokenizer_end) Tokenizer *t = tokenizer_load(dir);
    OWNED(test_mem_end) int32_t *ids = NULL, *want = NULL;
    int64_t n = tokenizer_encode(t, (const uint8_t *)"the king", 8, &ids);
    CHECK(n == tokenizer_encode(pair, (const uint8_t *)" the king", 9, &want));
    CHECK(memcmp(ids, want, (size_t)n * sizeof *ids) == 0);
}

TEST(tokenizer_gpt2_files_are_written_as_they_were) {
    static const char gpt2[] = "../shared/data/gpt2_merges.txt";
    SKIP_IF(access(gpt2, R_OK) != 0, "../shared/data/gpt2_merges.txt is absent");
    OWNED(test_tokenizer_end) Tokenizer *t = tokenizer_load("../shared/data/gpt2_vocab.json");
    char *dir = test_path("%s/gpt2", test_tmpdir()), *merges = test_path("%s/merges.txt", dir);
    tokenizer_save(t, dir);
    CHECK(test_same_files(merges, gpt2));
    OWNED(test_tokenizer_end) Tokenizer *again = tokenizer_load(dir);
    CHECK(same_tokens(t, again));
}

/* transformers 5 writes a template for every tokenizer; this one adds no token to a text. GPT-2's
 * own file has empty texts where others have null. */
TEST(tokenizer_json_takes_what_changes_no_id) {
    static const char *const cases[][2] = {
        {"\"post_processor\":null",
         "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{"
         "\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{}}"},
        {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"\""},
        {"\"dropout\":null", "\"dropout\":0.0"}};
    OWNED(test_mem_end) char *good = test_read(SMALL_JSON, NULL);
    for (int i = 0; i < 3; i++) {
        OWNED(test_mem_end) char *text = test_changed(good, cases[i][0], cases[i][1]);
        OWNED(test_tokenizer_end) Tokenizer *t = json_tokenizer(text);
        CHECK(t);
    }
}

/* The small tokenizer.json with two stages before the model; further stages behind it, if not NULL;
 * and a token that no merge leads to, as LLaMA 3 has them. */
static Tokenizer *staged(json_t *first, bool regex, json_t *behind, Err *e) {
    json_t *root = json_load_file(SMALL_JSON, 0, NULL), *model = json_object_get(root, "model");
    json_t *level = json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                              "use_regex", regex);
    json_object_set_new(
        root, "pre_tokenizer",
        json_pack("{s:s, s:[o, o]}", "type", "Sequence", "pretokenizers", first, level));
    if (behind)
        json_object_set_new(root, "post_processor",
                            json_pack("{s:s, s:[{s:s}, o]}", "type", "Sequence", "processors",
                                      "type", "ByteLevel", behind));
    json_object_set_new(json_object_get(model, "vocab"), "zqz", json_integer(699));
    json_object_set_new(json_array_get(json_object_get(root, "added_tokens"), 0), "id",
                        json_integer(700));
    json_object_set_new(model, "ignore_merges", json_boolean(behind != NULL));
    OWNED(test_mem_end) char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    Tokenizer *t = NULL;
    tokenizer_parse_json((const uint8_t *)text, strlen(text), &t, e);
    return t;
}
static json_t *split_by(const char *expression) {
    return json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", expression,
                     "behavior", "Isolated", "invert", 0);
}

/* Are the ids of the text those of its parts, each encoded alone by `plain`? */
static bool cut_into(const Tokenizer *t, const Tokenizer *plain, const char *const *parts) {
    char text[64] = "";
    int32_t want[64];
    int64_t n = 0;
    for (; *parts; parts++) {
        OWNED(test_mem_end) int32_t *ids = NULL;
        int64_t more = tokenizer_encode(plain, (const uint8_t *)*parts, strlen(*parts), &ids);
        memcpy(want + n, ids, (size_t)more * sizeof *ids);
        n += more, strcat(text, *parts);
    }
    OWNED(test_mem_end) int32_t *ids = NULL;
    return tokenizer_encode(t, (const uint8_t *)text, strlen(text), &ids) == n &&
           memcmp(ids, want, (size_t)n * sizeof *ids) == 0;
}

TEST(tokenizer_json_of_smollm_has_digits_apart) {
    Err e = {""};
    json_t *digits = json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1);
    OWNED(test_tokenizer_end)
    Tokenizer *t = staged(json_incref(digits), true, NULL, &e), *plain = tokenizer_load(SMALL_PAIR);
    CHECK(t && cut_into(t, plain, (const char *const[]){"the", "  ", "1", "2", "zqz", NULL}));
    json_object_set_new(digits, "individual_digits", json_false());
    CHECK_REFUSED(staged(digits, true, NULL, &e), e, "pre_tokenizer \"Sequence\"");
}

TEST(tokenizer_json_of_llama_3) {
    Err e = {""};
    json_t *begin = json_pack("{s:s, s:[{s:{s:s}}, {s:{s:s}}]}", "type", "TemplateProcessing",
                              "single", "SpecialToken", "id", "!", "Sequence", "id", "A");
    OWNED(test_tokenizer_end)
    Tokenizer *t = staged(split_by(presplit_llama3), false, begin, &e),
              *plain = tokenizer_load(SMALL_PAIR);
    CHECK(t &&
          cut_into(t, plain, (const char *const[]){"the", "'LL", " ", "123", "4", "\n", NULL}));
    OWNED(test_mem_end) int32_t *ids = NULL, *of_text = NULL, *of_nothing = NULL;
    CHECK(tokenizer_encode(t, (const uint8_t *)"zqz", 3, &ids) == 1 && ids[0] == 699);
    CHECK(sample_prompt(t, "zqz", 9, 701, &of_text) == 2 && !of_text[0] && of_text[1] == 699);
    CHECK(sample_prompt(t, "", 9, 701, &of_nothing) == 1 && !of_nothing[0]);
    OWNED(test_mem_end) int32_t *of_documents = NULL;
    Documents d = documents_of((const uint8_t *)"zqz", 3);
    CHECK(documents_encode(&d, t, NULL, true, SIZE_MAX, &of_documents) == 2 && !of_documents[0]);
    CHECK_REFUSED(staged(split_by("\\s+"), false, NULL, &e), e, "the Split of LLaMA 3");
    CHECK_REFUSED(staged(split_by(presplit_llama3), true, NULL, &e), e, "the Split of LLaMA 3");
}

/* What of the good tokenizer.json is replaced by what, and a word of the reason. */
TEST(tokenizer_json_refuses_what_it_does_not_do) {
    static const char *const cases[][3] = {
        {"\"type\":\"BPE\"", "\"type\":\"WordPiece\"", "WordPiece"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"NFKC\"}", "normalizer \"NFKC\""},
        {"\"truncation\":null", "\"truncation\":{\"max_length\":5}", "truncation"},
        {"\"padding\":null", "\"padding\":{\"strategy\":\"BatchLongest\"}", "padding"},
        {"\"pre_tokenizer\":{\"type\":\"ByteLevel\"", "\"pre_tokenizer\":{\"type\":\"Metaspace\"",
         "Metaspace"},
        {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Fuse\"", "Fuse"},
        {"\"post_processor\":null", "\"post_processor\":{\"type\":\"TemplateProcessing\"}",
         "only ByteLevel is implemented, and a TemplateProcessing of the text"},
        {"\"post_processor\":null",
         "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
         "{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}]}",
         "TemplateProcessing"},
        {"\"dropout\":null", "\"dropout\":0.1", "dropout"},
        {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", "end_of_word_suffix"},
        {"\"normalized\":false,\"special\":true", "\"normalized\":true,\"special\":false",
         "not special: \"normalized\""},
        {"oftext|>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
         "\"special\":true",
         " of\"", "not special, and it is empty or has a blank"},
        {"\"special\":true}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
         "\"add_prefix_space\":false",
         "\"special\":false}],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true",
         "add_prefix_space"},
        {"\"id\":699", "\"id\":700", "700"},
        {"\"id\":699", "\"id\":null", "whole number"},
        {"\"content\":", "\"text\":", "added token 0 has no content"},
        {"\"id\":699", "\"id\":5", "twice"},
        {"\"!\":0", "\"!!!\":0", "byte 0x21"},
        {"\"#\":2", "\"#\":1", "twice"},
        {"\"#\":2", "\"#\":-2", "-2"},
        {"\"#\":2", "\"#\":\"2\"", "whole number"},
        {"\"#\":2", "\"\xe4\xb8\xad\":2", "character"},
        {"[\"h\",\"e\"]", "[\"h\",\"eeee\"]", "two tokens"},
        {"[\"h\",\"e\"]", "[\"h\"]", "neither"},
        {"[\"h\",\"e\"]", "\"h  e\"", "blank"},
        {"[\"h\",\"e\"]", "[\"z\",\"z\"]", "merged token"},
        {"[\"h\",\"e\"]", "[\"h\",\"e\"],[\"h\",\"e\"]", "twice"},
        {"\"model\":", "\"Model\":", "model"},
        {"\"vocab\":", "\"words\":", "vocab"},
        {"\"merges\":", "\"Merges\":", "merges"},
        {"\"version\":", "{\"version\":", "JSON"}};
    size_t n;
    OWNED(test_mem_end) char *good = test_read(SMALL_JSON, &n);
    for (int i = 0; i < N_OF(cases); i++) {
        OWNED(test_mem_end) char *bad = test_changed(good, cases[i][0], cases[i][1]);
        OWNED(test_tokenizer_end) Tokenizer *t = NULL;
        Err e = {""};
        CHECK_REFUSED(tokenizer_parse_json((uint8_t *)bad, strlen(bad), &t, &e), e, cases[i][2]);
        CHECK(!t);
    }
    for (size_t cut = 0; cut < n; cut += 97) { // truncated anywhere
        OWNED(test_tokenizer_end) Tokenizer *t = NULL;
        Err e;
        CHECK(!tokenizer_parse_json((uint8_t *)good, cut, &t, &e));
    }
}

/* As that of GPT-2 itself has it. */
TEST(tokenizer_json_may_name_a_special_token_twice) {
    OWNED(test_mem_end) char *good = test_read(SMALL_JSON, NULL);
    OWNED(test_mem_end)
    char *text = test_changed(good, "\"!\":0", "\"<|endoftext|>\":699,\"!\":0");
    OWNED(test_tokenizer_end)
    Tokenizer *t = json_tokenizer(text), *pair = tokenizer_load(SMALL_PAIR), *none = NULL;
    Err e;
    CHECK(t && same_tokens(t, pair));
    memcpy(strstr(text, "\"id\":699"), "\"id\":698", 8);
    CHECK_REFUSED(tokenizer_parse_json((uint8_t *)text, strlen(text), &none, &e), e,
                  "\"<|endoftext|>\" has another id");
}

TEST(tokenizer_json_may_have_merges_as_strings) {
    OWNED(test_json_end) json_t *root = json_load_file(SMALL_JSON, 0, NULL);
    json_t *merges = json_object_get(json_object_get(root, "model"), "merges");
    CHECK(json_array_size(merges) > 400);
    for (size_t i = 0; i < json_array_size(merges); i++) { // ["a", "b"] -> "a b"
        json_t *m = json_array_get(merges, i);
        OWNED(test_mem_end)
        char *both = mem_printf("%s %s", json_string_value(json_array_get(m, 0)),
                                json_string_value(json_array_get(m, 1)));
        json_array_set_new(merges, i, json_string(both));
    }
    OWNED(test_mem_end) char *text = json_dumps(root, JSON_COMPACT);
    OWNED(test_tokenizer_end)
    Tokenizer *t = json_tokenizer(text), *pair = tokenizer_load(SMALL_PAIR);
    CHECK(t && tokenizer_merges(t) == tokenizer_merges(pair));
}

TEST(tokenizer_json_without_merges_has_the_prefix_space) {
    OWNED(test_json_end) json_t *root = json_load_file(SMALL_JSON, 0, NULL);
    json_object_set_new(json_object_get(root, "model"), "merges", json_array());
    json_object_set_new(json_object_get(root, "pre_tokenizer"), "add_prefix_space", json_true());
    OWNED(test_mem_end) char *text = json_dumps(root, JSON_COMPACT);
    OWNED(test_tokenizer_end) Tokenizer *t = json_tokenizer(text);
    CHECK(t && tokenizer_merges(t) == 0);
    static const char *const texts[] = {"ab", " ab", ""};
    static const int n_ids[] = {3, 3, 0};
    for (int i = 0; i < 3; i++) {
        OWNED(test_mem_end) int32_t *ids = NULL;
        OWNED(test_mem_end) uint8_t *back = NULL;
        int64_t n = tokenizer_encode(t, (const uint8_t *)texts[i], strlen(texts[i]), &ids);
        int64_t n_back = tokenizer_decode(t, ids, n, &back);
        CHECK(n == n_ids[i] && n_back == n && memcmp(back, " ab", (size_t)n) == 0);
    }
}

TEST(tokenizer_bin_refuses_damage) {
    uint8_t file[1024 + 7] = {0};
    int32_t header[4] = {20240328, 2, 3, 2};
    static const uint8_t records[7] = {1, 'a', 2, 'b', 'c', 1, 'a'};
    memcpy(file + 1024, records, 7);
    memcpy(file, header, sizeof header);
    OWNED(test_tokenizer_end) Tokenizer *t = NULL;
    Err e;
    CHECK(tokenizer_parse_bin(file, sizeof file, &t, &e));
    size_t n;
    CHECK(memcmp(tokenizer_token(t, 1, &n), "bc", 2) == 0 && n == 2 && tokenizer_eot(t) == 2);
    CHECK(tokenizer_find(t, (const uint8_t *)"a", 1) == 0); // the first of equal ones
    for (size_t cut = 0; cut < sizeof file; cut++) CHECK(!tokenizer_parse_bin(file, cut, &t, &e));
    static const int32_t bad[][4] = {{20240327, 2, 3, 2}, {20240328, 3, 3, 2}, {20240328, 2, 0, 0},
                                     {20240328, 2, 2, 1}, {20240328, 2, 4, 2}, {20240328, 2, -1, 2},
                                     {20240328, 2, 3, 3}, {20240328, 1, 3, 2}};
    for (int i = 0; i < 8; i++) {
        memcpy(file, bad[i], sizeof bad[i]);
        CHECK(!tokenizer_parse_bin(file, sizeof file, &t, &e));
    }
}

/* What of merges.txt is replaced by what, and a word of the reason; "": it is read. */
TEST(tokenizer_pair_refuses_damage) {
    static const struct {
        const char *vocab, *merge, *says; // NULL: the good one
    } cases[] = {{NULL, "h e\r\n", ""},
                 {NULL, "h  e\n", "blank"},
                 {NULL, "h eeee\n", "two tokens"},
                 {"[1]", "h e\n", "no JSON object"},
                 {"{\"a\"", "h e\n", "line 1"},
                 {"{}", "h e\n", "merge 1"}};
    OWNED(test_mem_end) char *good = test_read(SMALL_PAIR, NULL);
    OWNED(test_mem_end) char *merges = test_read(SMALL_MERGES, NULL);
    for (int i = 0; i < 6; i++) {
        OWNED(test_mem_end) char *text = test_changed(merges, "h e\n", cases[i].merge);
        const char *vocab = cases[i].vocab ? cases[i].vocab : good;
        OWNED(test_tokenizer_end) Tokenizer *t = NULL;
        Err e = {""};
        bool ok = tokenizer_parse_gpt2((const uint8_t *)vocab, strlen(vocab), (uint8_t *)text,
                                       strlen(text), &t, &e);
        CHECK_SAYS(ok == !*cases[i].says && strstr(e.text, cases[i].says), "%d: %s", i, e.text);
    }
}

static void load_it(void *path) {
    tokenizer_load(path);
}

TEST(tokenizer_load_says_what_is_wrong) {
    char *junk = test_path("%s/junk", test_tmpdir());
    CHECK(io_write_file(junk, "hello\n", 6, NULL, NULL));
    CHECK_CHILD(1, load_it, junk, "is no tokenizer");
    CHECK_CHILD(1, load_it, "/nowhere/at/all", "/nowhere");
    CHECK_CHILD(1, load_it, (void *)(size_t)test_tmpdir(), "holds no tokenizer");
}

static Tokenizer *learn(const char *text, int32_t vocab, int64_t min_count) {
    BpeTrain *b = bpe_train_open();
    bpe_train_count(b, (const uint8_t *)text, strlen(text));
    return bpe_train_finish(b, vocab, min_count, NULL, NULL);
}

static void check_token(const Tokenizer *t, int32_t id, const char *want) {
    size_t n;
    const uint8_t *p = tokenizer_token(t, id, &n);
    CHECK(p && n == strlen(want) && memcmp(p, want, n) == 0);
}

/* Worked out by hand. Pieces "aab" x4, " aab" x1, "xy" x2: a b 5 times, a a 5 times; a < b in
 * GPT-2's order, so a a goes first. Then aa b 5, x y 2, and " " aab once. */
TEST(bpe_train_by_hand) {
    OWNED(test_tokenizer_end)
    Tokenizer *t = learn("aab\n<|endoftext|>\naab\n<|endoftext|>\naab\n<|endoftext|>\naab "
                         "aab\n<|endoftext|>\nxy\n<|endoftext|>\nxy",
                         300, 2);
    check_token(t, 256, "aa");
    check_token(t, 257, "aab");
    check_token(t, 258, "xy");
    check_token(t, 259, "<|endoftext|>");
    CHECK(tokenizer_vocab(t) == 260 && tokenizer_eot(t) == 259 && tokenizer_merges(t) == 3);
    check_token(t, 0, "!");
    check_token(t, 255, "\xad");
}

TEST(bpe_train_overlapping_pairs) { // aaaaa: a a counted 4 times, then aa aa a
    OWNED(test_tokenizer_end) Tokenizer *t = learn("aaaaa", 300, 1);
    check_token(t, 256, "aa");
    check_token(t, 257, "aaa"); // aa a and aa aa once each; id of a < id of aa
    check_token(t, 258, "aaaaa");
    CHECK(tokenizer_vocab(t) == 260);
}

TEST(bpe_train_of_nothing_is_bytes) {
    OWNED(test_tokenizer_end) Tokenizer *t = learn("", 1000, 2);
    CHECK(tokenizer_vocab(t) == 257 && tokenizer_merges(t) == 0);
    OWNED(test_mem_end) int32_t *ids = NULL;
    CHECK(tokenizer_encode(t, (const uint8_t *)"!\"", 2, &ids) == 2 && ids[0] == 0 && ids[1] == 1);
}

/* Seconds of the processor to learn 800 merges of 100,000 letters, with a space after every `every`
 * letters. */
static double seconds_of_words(size_t every) {
    enum { N = 100000 };
    OWNED(test_mem_end) char *text = mem_calloc(N + 1, 1);
    for (size_t i = 0; i < N; i++)
        text[i] = i % every == every - 1 ? ' ' : (char)('a' + rng_u64(7, i, 0) % 10);
    clock_t begin = clock();
    tokenizer_free(learn(text, 1057, 2));
    return (double)(clock() - begin) / CLOCKS_PER_SEC;
}

/* A text of letters alone is one word. A merge looks at each of its tokens and counts around those
 * that it replaces; counting every pair of the word once more took 60 times as long. */
TEST(bpe_train_of_one_long_word_takes_as_long_as_of_short_ones) {
    double words = seconds_of_words(10), one = seconds_of_words(SIZE_MAX);
    CHECK_SAYS(one < 20 * words, "%.3f s, %.3f s of short words", one, words);
}

/* tests/golden/tokenizer was trained by HF's BpeTrainer on this text. */
TEST(bpe_train_equals_hf_trainer) {
    static const char path[] = "../shared/data/tinyshakespeare.txt";
    OWNED(test_mem_end) char *text = test_read(path, NULL);
    SKIP_IF(!text, "../shared/data/tinyshakespeare.txt is absent");
    OWNED(test_tokenizer_end) Tokenizer *t = learn(text, 700, 2);
    OWNED(test_tokenizer_end) Tokenizer *want = tokenizer_load(SMALL_PAIR);
    CHECK(same_tokens(t, want) && tokenizer_merges(t) == tokenizer_merges(want));
}

static void check_shard(const char *path, ShardFormat format, const int32_t *want, int64_t n) {
    int32_t got[64];
    OWNED(shard_close) Shard s = shard_open(path);
    CHECK(s.format == format && s.n_tokens == n);
    shard_read(&s, 0, n, got);
    CHECK(memcmp(got, want, (size_t)n * 4) == 0);
}

TEST(shard_write_is_read_back) {
    static const int32_t ids[7] = {50256, 0, 1, 65535, 300, 5, 6};
    static const ShardFormat formats[] = {SHARD_LLMC16, SHARD_LLMC32, SHARD_NANOGPT};
    for (int i = 0; i < 3; i++) {
        char *prefix = test_path("%s/w%d", test_tmpdir(), i);
        ShardWriter *w = shard_writer_open(prefix, "train", formats[i], 65536, 0);
        shard_writer_put(w, ids, 3);
        shard_writer_put(w, ids + 3, 4);
        char *path = test_path("%s_train.bin", prefix);
        CHECK(shard_writer_finish(w) == 7);
        CHECK(access(path, F_OK) != 0);
        CHECK(shard_writer_commit(w) == 1);
        check_shard(path, formats[i], ids, 7);

        w = shard_writer_open(prefix, "val", formats[i], 65536, 3);
        for (int k = 0; k < 7; k++) shard_writer_put(w, ids + k, 1);
        CHECK(shard_writer_commit(w) == 3);
        for (int k = 0; k < 3; k++)
            check_shard(test_path("%s_val_%06d.bin", prefix, k), formats[i], ids + 3 * k,
                        k < 2 ? 3 : 1);
        w = shard_writer_open(prefix, "none", formats[i], 65536, 0);
        CHECK(shard_writer_commit(w) == 0);
    }
}

/* A limit on the size of files stands for the full disk. */
static void fill_disk(void *prefix) {
    static int32_t ids[1 << 20];
    struct rlimit most = {1 << 20, 1 << 20};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &most);
    ShardWriter *w = shard_writer_open(prefix, "train", SHARD_LLMC16, 50257, 400000);
    shard_writer_put(w, ids, 1 << 20); // the first two files fit
    w = shard_writer_open(prefix, "val", SHARD_LLMC16, 50257, 0);
    shard_writer_put(w, ids, 1 << 20);
    shard_writer_commit(w);
}

TEST(shard_write_on_a_full_disk_leaves_nothing) {
    char *dir = test_path("%s/full", test_tmpdir()), *prefix = test_path("%s/x", dir);
    CHECK(mkdir(dir, 0777) == 0);
    CHECK_CHILD(1, fill_disk, prefix, "cannot write", "x_val.bin");
    CHECK(rmdir(dir) == 0); // that is, it is empty
}

static void too_big(UNUSED void *arg) {
    shard_writer_open("x", "train", SHARD_LLMC16, 65537, 0);
}

TEST(shard_write_checks_the_width) {
    CHECK_CHILD(1, too_big, NULL, "llmc32");
}
