#include <inttypes.h>
#include <jansson.h>
#include <unistd.h>

#include "base/rng.h"
#include "base/team.h"
#include "base/utf8.h"
#include "data/nfc.h"
#include "data/presplit.h"
#include "data/tokenizer_parts.h"
#include "tests/test.h"

static const char gpt2_path[] = "../shared/data/gpt2_vocab.json";
#define SMALL_JSON TEST_DATA("golden/tokenizer/tokenizer.json")
#define SMALL_PAIR TEST_DATA("golden/tokenizer/vocab.json")

static bool same_ids(const int32_t *a, int64_t n, const int32_t *b, int64_t m) {
    return n == m && memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

/* decode(encode(x)) == x */
static void check_round_trip(const Tokenizer *t, const uint8_t *p, size_t n) {
    OWNED(test_mem_end) int32_t *ids = NULL;
    OWNED(test_mem_end) uint8_t *back = NULL;
    int64_t n_ids = tokenizer_encode(t, p, n, &ids);
    int64_t n_back = tokenizer_decode(t, ids, n_ids, &back);
    CHECK(n_back == (int64_t)n && (n == 0 || memcmp(back, p, n) == 0));
}

TEST(tokenizer_bytes_are_their_own_ids) {
    OWNED(test_tokenizer_end) Tokenizer *t = tokenizer_load("bytes");
    uint8_t all[256];
    for (int i = 0; i < 256; i++) all[i] = (uint8_t)i;
    OWNED(test_mem_end) int32_t *ids = NULL, *middle = NULL;
    int64_t n = tokenizer_encode(t, all, 256, &ids);
    CHECK(n == 256);
    for (int i = 0; i < 256; i++) CHECK(ids[i] == i);
    CHECK(tokenizer_vocab(t) == 257 && tokenizer_eot(t) == 256);
    CHECK(sample_prompt(t, "abcd", 3, 257, &middle) == 3 && middle[0] == 'b' && middle[2] == 'd');
    // a sample goes on behind a byte 0
    OWNED(test_mem_end) char *text = sample_text(t, (const int32_t[]){'a', 0, 255, 'b'}, 4);
    CHECK(strcmp(text, "a\xef\xbf\xbd\xff"
                       "b") == 0);
    check_round_trip(t, all, 256);
    check_round_trip(t, all, 0);
}

/* tests/golden/tokenizer/cases.json: [text in hex, times, lengths of pieces, ids (small), ids
 * (GPT-2), lengths of pieces with digits apart, of LLaMA 3, of Qwen if others]. */
static uint8_t *case_text(const json_t *c, size_t *n) {
    const char *hex = json_string_value(json_array_get(c, 0));
    size_t unit = strlen(hex) / 2, times = (size_t)json_integer_value(json_array_get(c, 1));
    uint8_t *p = mem_alloc(unit * times);
    *n = unit * times;
    for (size_t i = 0; i < *n; i++) {
        unsigned byte;
        sscanf(hex + i % unit * 2, "%2x", &byte);
        p[i] = (uint8_t)byte;
    }
    return p;
}

static void check_pieces(SplitRule rule, const json_t *want, size_t number, const uint8_t *p,
                         size_t n) {
    size_t at = 0, i = 0;
    for (; at < n && i < json_array_size(want); i++) {
        size_t len = presplit_next(rule, p + at, n - at);
        if (len != (size_t)json_integer_value(json_array_get(want, i)))
            test_fail("rule %d, case %zu: piece %zu at byte %zu has %zu bytes, not %lld", (int)rule,
                      number, i, at, len, (long long)json_integer_value(json_array_get(want, i)));
        at += len;
    }
    CHECK(at == n && i == json_array_size(want));
}

static void check_ids(const Tokenizer *t, const json_t *want, size_t number, const uint8_t *p,
                      size_t n) {
    OWNED(test_mem_end) int32_t *ids = NULL;
    size_t n_ids = (size_t)tokenizer_encode(t, p, n, &ids), n_want = json_array_size(want);
    if (n_ids != n_want) test_fail("case %zu: %zu ids, not %zu", number, n_ids, n_want);
    for (size_t i = 0; i < n_ids && i < n_want; i++)
        if (ids[i] != json_integer_value(json_array_get(want, i)))
            test_fail("case %zu: id %zu is %d, not %lld", number, i, (int)ids[i],
                      (long long)json_integer_value(json_array_get(want, i)));
}

/* Compares a column with the ids of t, or where t is NULL with the pieces of a rule. */
static void check_cases(const Tokenizer *t, SplitRule rule, size_t column) {
    OWNED(test_json_end)
    json_t *cases = json_load_file(TEST_DATA("golden/tokenizer/cases.json"), 0, NULL);
    CHECK(json_array_size(cases) > 200);
    for (size_t i = 0; i < json_array_size(cases) && !test_failed(); i++) {
        const json_t *c = json_array_get(cases, i), *want = json_array_get(c, column);
        size_t n;
        OWNED(test_mem_end) uint8_t *p = case_text(c, &n);
        if (!want) want = json_array_get(c, column - 1);
        if (t)
            check_ids(t, want, i, p, n), check_round_trip(t, p, n);
        else
            check_pieces(rule, want, i, p, n);
    }
}

TEST(presplit_equals_regex_on_every_plane) {
    check_cases(NULL, SPLIT_GPT2, 2);
    check_cases(NULL, SPLIT_DIGITS, 5);
    check_cases(NULL, SPLIT_LLAMA3, 6);
    check_cases(NULL, SPLIT_QWEN, 7);
}

/* A file of planes and hashes: add() adds what is to be compared of each code point of a plane. */
static void check_planes(const char *path, uint64_t (*add)(uint64_t hash, uint32_t code)) {
    FILE *f = fopen(path, "r");
    CHECK(f);
    uint32_t plane;
    uint64_t want;
    int planes = 0;
    for (; fscanf(f, "%" SCNu32 " %" SCNx64, &plane, &want) == 2; planes++) {
        uint64_t hash = 0xcbf29ce484222325;
        for (uint32_t c = plane << 16; c < (plane + 1) << 16; c++) hash = add(hash, c);
        if (hash != want)
            test_fail("plane %u of %s: others than golden_tokenizer.py has", plane, path);
    }
    fclose(f);
    CHECK(planes == 17);
}

static uint64_t add_byte(uint64_t hash, uint64_t byte) {
    return (hash ^ byte) * 0x100000001b3;
}

static uint64_t add_class(uint64_t hash, uint32_t c) {
    return add_byte(hash, unicode_class(c));
}
TEST(presplit_classes_of_all_code_points) {
    check_planes(TEST_DATA("golden/tokenizer/classes.txt"), add_class);
    CHECK(unicode_class(0x110000) == CLASS_OTHER && unicode_class(UINT32_MAX) == CLASS_OTHER);
}

/* Among marks of classes 240, 220, 10 and 230. */
static uint64_t add_normal(uint64_t hash, uint32_t c) {
    uint8_t text[16] = "e\xcd\x85", normal[48];
    size_t n = 3 + utf8_write(c, text + 3);
    memcpy(text + n, "\xcc\xa3\xd6\xb0\xcc\x81", 6);
    n = c >= 0xD800 && c < 0xE000 ? 0 : nfc_normalize(text, n + 6, normal);
    for (size_t i = 0; i < n; i++) hash = add_byte(hash, normal[i]);
    return hash;
}
TEST(nfc_of_all_code_points) {
    check_planes(TEST_DATA("golden/tokenizer/nfc.txt"), add_normal);
}

TEST(nfc_leaves_alone_what_is_normal) {
    static const char normal[] =
        "plain \xc3\xa9, \xe4\xb8\xad \xed\x95\x9c \xd7\xa9\xd6\xb8 x\xff\x80",
                      not_so[] = "0123456789 e\xcc\x81";
    CHECK(nfc_prefix((const uint8_t *)normal, sizeof normal) == sizeof normal);
    CHECK(nfc_prefix((const uint8_t *)not_so, sizeof not_so) == 11);
    CHECK(nfc_prefix((const uint8_t *)not_so, 0) == 0);
}

TEST(presplit_utf8_forms) {
    /* every code point's own form is one character of its class; every other 2-byte string is what
     * table 3-7 says */
    for (uint32_t c = 0x80; c < 0x110000; c++) {
        uint8_t b[4];
        int len, want = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        bool surrogate = c >= 0xD800 && c < 0xE000;
        b[0] = (uint8_t)(want == 2 ? 0xC0 | c >> 6 : want == 3 ? 0xE0 | c >> 12 : 0xF0 | c >> 18);
        for (int i = 1; i < want; i++) b[i] = (uint8_t)(0x80 | (c >> 6 * (want - 1 - i) & 0x3F));
        CharClass k = utf8_class(b, 4, &len);
        CHECK(k == (surrogate ? CLASS_OTHER : unicode_class(c)) && len == (surrogate ? 1 : want));
        CHECK(utf8_class(b, (size_t)want - 1, &len) == CLASS_OTHER && len == 1);
    }
    for (int a = 0x80; a < 256; a++)
        for (int x = 0; x < 256; x++) {
            uint8_t b[2] = {(uint8_t)a, (uint8_t)x};
            int len;
            utf8_class(b, 2, &len);
            CHECK(len == 1 + (a >= 0xC2 && a < 0xE0 && x >= 0x80 && x < 0xC0));
        }
}

TEST(tokenizer_equals_reference_small_vocabulary) {
    for (int i = 0; i < 2; i++) {
        OWNED(test_tokenizer_end) Tokenizer *t = tokenizer_load(i ? SMALL_JSON : SMALL_PAIR);
        check_cases(t, SPLIT_NONE, 3);
        CHECK(tokenizer_vocab(t) == 700 && tokenizer_eot(t) == 699);
    }
}

TEST(tokenizer_equals_reference_gpt2) {
    SKIP_IF(access(gpt2_path, R_OK) != 0, "../shared/data/gpt2_vocab.json is absent");
    OWNED(test_tokenizer_end) Tokenizer *t = tokenizer_load(gpt2_path);
    CHECK(tokenizer_vocab(t) == 50257 && tokenizer_eot(t) == 50256 && tokenizer_merges(t) == 50000);
    check_cases(t, SPLIT_NONE, 4);
}

/* The small vocabulary with the stages of Qwen3 before it. */
static Tokenizer *qwen(void) {
    OWNED(test_json_end) json_t *root = json_load_file(SMALL_JSON, 0, NULL);
    json_object_set_new(root, "normalizer", json_pack("{s:s}", "type", "NFC"));
    json_object_set_new(root, "pre_tokenizer",
                        json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, {s:s, s:b, s:b}]}", "type",
                                  "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex",
                                  presplit_qwen, "behavior", "Isolated", "invert", 0, "type",
                                  "ByteLevel", "add_prefix_space", 0, "use_regex", 0));
    json_object_set_new(root, "post_processor", json_pack("{s:s}", "type", "ByteLevel"));
    json_t *added = json_object_get(root, "added_tokens");
    for (int i = 0; i < 2; i++)
        json_array_append_new(added, json_pack("{s:i, s:s, s:b}", "id", 700 + i, "content",
                                               i ? "</think>" : "<think>", "special", 0));
    OWNED(test_mem_end) char *text = json_dumps(root, JSON_COMPACT);
    Tokenizer *t = NULL;
    Err e;
    if (!tokenizer_parse_json((uint8_t *)text, strlen(text), &t, &e)) test_fail("%s", e.text);
    return t;
}

TEST(tokenizer_equals_reference_qwen) {
    OWNED(test_tokenizer_end) Tokenizer *t = qwen();
    OWNED(test_json_end)
    json_t *cases = json_load_file(TEST_DATA("golden/tokenizer/qwen.json"), 0, NULL);
    CHECK(json_array_size(cases) > 30 && tokenizer_eot(t) == 699);
    for (size_t i = 0; i < json_array_size(cases) && !test_failed(); i++) {
        json_t *c = json_array_get(cases, i);
        size_t n;
        json_array_insert_new(c, 1, json_integer(1)); // times
        OWNED(test_mem_end) uint8_t *p = case_text(c, &n);
        check_ids(t, json_array_get(c, 2), i, p, n);
    }
}

/* Merging by the definition: the leftmost pair of lowest rank, looked for from the start every
 * time. */
static int64_t slow_merge(const Tokenizer *t, const uint8_t *p, size_t n, int32_t *ids) {
    for (size_t i = 0; i < n; i++) ids[i] = t->byte_id[p[i]];
    for (;;) {
        const Merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const Merge *m = tokenizer_merge(t, ids[i], ids[i + 1]);
            if (m && (!best || m->rank < best->rank)) best = m, at = i;
        }
        if (!best) return (int64_t)n;
        ids[at] = best->id;
        for (size_t i = at + 1; i + 1 < n; i++) ids[i] = ids[i + 1];
        n--;
    }
}

TEST(tokenizer_merges_short_and_long_pieces) {
    static const char letters[] = "theandoring s";
    OWNED(test_tokenizer_end) Tokenizer *t = tokenizer_load(SMALL_PAIR);
    uint8_t p[400];
    int32_t want[400], got[400];
    for (uint64_t trial = 0; trial < 400; trial++) {
        size_t n = 1 + rng_u64(7, trial, 0) % 400;
        size_t kinds = trial % 3 ? sizeof letters - 1 : 2;
        for (size_t i = 0; i < n; i++) p[i] = (uint8_t)letters[rng_u64(7, trial, i + 1) % kinds];
        int64_t n_want = slow_merge(t, p, n, want);
        CHECK(same_ids(got, (int64_t)merge_piece(t, p, n, got), want, n_want));
    }
}

TEST(tokenizer_long_piece_is_not_quadratic) {
    enum { N = 1 << 20 }; // a quadratic merge would take many minutes
    OWNED(test_tokenizer_end) Tokenizer *t = tokenizer_load(SMALL_PAIR);
    OWNED(test_mem_end) uint8_t *p = mem_alloc(N);
    for (size_t i = 0; i < N; i++) p[i] = (uint8_t) "the"[i % 3];
    OWNED(test_mem_end) int32_t *ids = NULL;
    CHECK(tokenizer_encode(t, p, N, &ids) < N);
    check_round_trip(t, p, N);
}

/* Text that is cut in many parts: words, blanks of all kinds, bad bytes, marks; tokens that are cut
 * out, and separators. */
static uint8_t *mixed_text(size_t n, uint64_t seed, bool separators) {
    static const char *const bits[] = {"the ",
                                       "king",
                                       " of",
                                       "\n",
                                       "\r\n",
                                       "  ",
                                       "'s",
                                       "\xc3\xa9",
                                       "\xe2\x80\x83",
                                       "\xff",
                                       "1234",
                                       "...",
                                       "\t",
                                       "\n\n",
                                       "\xe4\xb8\xad",
                                       "I'll",
                                       "\xf0\x9f\x98\x80",
                                       " ",
                                       "\xcc\x81",
                                       "\xcc\xa3",
                                       "e",
                                       "=\xcc\xb8",
                                       "\xe1\x84\x80\xe1\x85\xa1",
                                       "<think>",
                                       "\n<|endoftext|>\n"};
    uint8_t *p = mem_alloc(n + 64);
    for (size_t at = 0, i = 0; at < n; i++) {
        const char *s = bits[rng_u64(seed, i, 0) % (separators ? 25 : 23)];
        size_t len = strlen(s);
        memcpy(p + at, s, len + 1);
        at += len;
    }
    return p;
}

TEST(presplit_safe_places_are_begins_of_pieces) {
    enum { N = 20000 };
    OWNED(test_mem_end) uint8_t *p = mixed_text(N, 3, false), *begins = mem_calloc(N + 1, 1);
    for (SplitRule rule = SPLIT_GPT2; rule <= SPLIT_QWEN; rule++)
        for (size_t at = 0; at < N; at += presplit_next(rule, p + at, N - at)) begins[at]++;
    begins[N] = SPLIT_QWEN; // the number of rules
    bool ok = true;
    for (size_t i = 0; i <= N; i++) {
        size_t safe = presplit_safe(p, N, i);
        ok = ok && safe >= i && safe <= N && begins[safe] == SPLIT_QWEN;
    }
    CHECK(ok);
}

TEST(tokenizer_ids_do_not_depend_on_threads_or_blocks) {
    enum { N = 5 << 18 };
    OWNED(test_tokenizer_end)
    Tokenizer *t = tokenizer_load(SMALL_PAIR), *bytes = tokenizer_bytes(), *normal = qwen();
    OWNED(test_team_end) Team *team = team_create(3);
    for (int which = 0; which < 6; which++) {
        const Tokenizer *x = which % 3 == 2 ? normal : which % 3 ? bytes : t;
        OWNED(test_mem_end) uint8_t *p = mixed_text(N, 4, which > 2); // else one document
        OWNED(test_mem_end) int32_t *one = NULL;
        Documents d = documents_of(p, N);
        int64_t n_one = documents_encode(&d, x, NULL, true, SIZE_MAX, &one);
        CHECK(d.at == N);
        int64_t at = 0;
        for (d = documents_of(p, N); d.at < d.n;) {
            OWNED(test_mem_end) int32_t *part = NULL;
            int64_t n = documents_encode(&d, x, team, true, 400000, &part);
            CHECK(n >= 0 && at + n <= n_one && memcmp(part, one + at, (size_t)n * 4) == 0);
            at += n;
        }
        CHECK(at == n_one);
    }
}

TEST(tokenizer_normalizes_across_cuts) {
    enum { N = 5 << 18 };
    OWNED(test_tokenizer_end) Tokenizer *t = qwen();
    OWNED(test_mem_end) uint8_t *p = mixed_text(N, 5, false), *whole = mem_alloc(3 * N);
    OWNED(test_mem_end) int32_t *ids = NULL, *want = NULL;
    int64_t n = tokenizer_encode(t, p, N, &ids);
    size_t size = nfc_normalize(p, N, whole);
    CHECK(size < N && nfc_normalize(whole, size, p) == size && memcmp(p, whole, size) == 0);
    int64_t n_want = tokenizer_encode(t, whole, size, &want);
    CHECK(same_ids(ids, n, want, n_want));
}

static void check_documents(const char *text, bool eot, const char *want) {
    OWNED(test_tokenizer_end) Tokenizer *t = tokenizer_bytes();
    OWNED(test_mem_end) int32_t *ids = NULL;
    Documents d = documents_of((const uint8_t *)text, strlen(text));
    int64_t n = documents_encode(&d, t, NULL, eot, SIZE_MAX, &ids);
    char got[256];
    for (int64_t i = 0; i < n; i++) got[i] = ids[i] == 256 ? '$' : (char)ids[i];
    got[n] = 0;
    CHECK_STR(got, want);
}

TEST(tokenizer_documents) {
    check_documents("", true, "");
    check_documents("a", true, "$a");
    check_documents("a\n<|endoftext|>\nb\n", true, "$a\n$b\n");
    check_documents("a\n<|endoftext|>\r\nb\n", false, "a\nb\n");
    check_documents("<|endoftext|>\n<|endoftext|>\na\n<|endoftext|>", true, "$a\n");
    check_documents("a <|endoftext|>\nb", true, "$a <|endoftext|>\nb");
    check_documents("a\n<|endoftext|> b", true, "$a\n<|endoftext|> b");
    check_documents("<|endoftext|>x\n<|endoftext|><|endoftext|>\n", true,
                    "$<|endoftext|>x\n<|endoftext|><|endoftext|>\n");
}

TEST(tokenizer_random_bytes_round_trip) {
    OWNED(test_tokenizer_end) Tokenizer *t = tokenizer_load(SMALL_PAIR);
    uint8_t p[5000];
    for (uint64_t trial = 0; trial < 200; trial++) {
        size_t n = rng_u64(9, trial, 0) % sizeof p;
        for (size_t i = 0; i < n; i++) p[i] = (uint8_t)rng_u64(9, trial, i + 1);
        check_round_trip(t, p, n);
    }
}
