/* Any bytes as a tokenizer file or as text; the first byte selects:
 *   0 tokenizer.json   1 vocab.json, a byte 0, merges.txt   2 gpt2_tokenizer.bin
 *   3 text for a vocabulary of bytes and a few merges: what decodes must be what was encoded,
 *   however it is cut; its normal form has that same form
 *   4 text to learn a vocabulary from: it must encode that text */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/bpe_train.h"
#include "data/nfc.h"
#include "data/presplit.h"
#include "data/tokenizer.h"
#include "tests/fuzz/seeds.h"

static Tokenizer *learn(const uint8_t *p, size_t n, int32_t vocab) {
    BpeTrain *b = bpe_train_open();
    bpe_train_count(b, p, n);
    return bpe_train_finish(b, vocab, 1, NULL, NULL);
}

static const char few[] = "the then there this is his it its  it's\n\nin and hand";

/* tokenizer.json of vocab.json's text and the lines of merges.txt. */
static char *json_of(const char *vocab, char *merges, int eot) {
    json_t *list = json_array();
    strsep(&merges, "\n"); // #version
    for (char *line; (line = strsep(&merges, "\n")) && *line;)
        json_array_append_new(list, json_string(line));
    json_t *root = json_pack("{s:{s:s,s:o,s:o},s:[{s:i,s:s,s:b}],s:{s:s,s:b}}", "model", "type",
                             "BPE", "vocab", json_loads(vocab, 0, NULL), "merges", list,
                             "added_tokens", "id", eot, "content", "<|endoftext|>", "special", 1,
                             "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 1);
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

static void seeds(void) {
    Tokenizer *t = learn((const uint8_t *)few, sizeof few - 1, 263);
    char *folder = seed_path("x"), *names[] = {"vocab.json", "merges.txt", "gpt2_tokenizer.bin"};
    char *text[3], *path[3];
    tokenizer_save(t, folder);
    for (int i = 0; i < 3; i++) {
        path[i] = mem_printf("%s/%s", folder, names[i]);
        IoMap m = io_open(path[i]);
        text[i] = mem_printf("%.*s", (int)m.n, (const char *)m.p);
        io_unmap(&m);
    }
    seed_behind("bin", "\2", 1, path[2]);
    char *pair = mem_printf("\1%s%c%s", text[0], 0, text[1]);
    seed("pair", pair, strlen(text[0]) + strlen(text[1]) + 2);
    char *json = json_of(text[0], text[1], tokenizer_eot(t)), *whole = mem_printf("%c%s", 0, json);
    seed("json", whole, strlen(json) + 1);
    SEED("encode", "\3It's the  end,\n\nis it? \xc3\xa9\xff 1234 e\xcc\x81\xcc\xa3");
    SEED("learn", "\4the then\n<|endoftext|>\nthere aaaa \xe2\x82\xac");
    mem_free(pair), mem_free(json), mem_free(whole);
    for (int i = 0; i < 3; i++) mem_free(text[i]), mem_free(path[i]);
    io_remove_tree(folder, NULL);
    mem_free(folder);
    tokenizer_free(t);
}

static void round_trip(const Tokenizer *t, const uint8_t *p, size_t n) {
    int32_t *ids;
    uint8_t *back;
    int64_t n_ids = tokenizer_encode(t, p, n, &ids);
    int64_t n_back = tokenizer_decode(t, ids, n_ids, &back);
    size_t skip = n_back == (int64_t)n + 1; // add_prefix_space
    if (n_back != (int64_t)(n + skip) || memcmp(back + skip, p, n) != 0) abort();
    mem_free(ids);
    mem_free(back);
}

static void use_tokenizer(Tokenizer *t) {
    static const uint8_t text[] = "It's the  end,\n\nis it? \xc3\xa9\xff 1234";
    size_t n;
    for (int32_t i = 0; i < tokenizer_vocab(t); i++)
        if (!tokenizer_token(t, i, &n)) abort();
    if (tokenizer_eot(t) >= tokenizer_vocab(t)) abort();
    if (tokenizer_can_encode(t)) round_trip(t, text, sizeof text - 1);
    tokenizer_free(t);
}

/* The pieces cover the text, and do not change where it is cut at a safe place. */
static void split(SplitRule rule, const uint8_t *p, size_t n) {
    size_t safe = presplit_safe(p, n, n / 2);
    bool met = safe == n;
    for (size_t at = 0, len; at < n; at += len) {
        met = met || at == safe;
        len = presplit_next(rule, p + at, n - at);
        if (len == 0 || len > n - at) abort();
    }
    if (!met) abort();
}

static void normalize(const uint8_t *p, size_t n) {
    uint8_t *once = mem_alloc(3 * n), *twice = mem_alloc(9 * n);
    size_t size = nfc_normalize(p, n, once);
    if (size > 3 * n || nfc_normalize(once, size, twice) != size || memcmp(once, twice, size) != 0)
        abort();
    if (nfc_prefix(p, n) == n && (size != n || memcmp(once, p, n) != 0)) abort();
    mem_free(once), mem_free(twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static Tokenizer *small;
    Tokenizer *t = NULL;
    Err e;
    if (!small) small = learn((const uint8_t *)few, sizeof few - 1, 300);
    if (n-- == 0) return 0;
    const uint8_t *zero;
    switch (*p++) {
    case 0:
        if (tokenizer_parse_json(p, n, &t, &e)) use_tokenizer(t);
        break;
    case 1:
        zero = n ? memchr(p, 0, n) : NULL;
        if (zero && tokenizer_parse_gpt2(p, (size_t)(zero - p), zero + 1,
                                         n - 1 - (size_t)(zero - p), &t, &e))
            use_tokenizer(t);
        break;
    case 2:
        if (tokenizer_parse_bin(p, n, &t, &e)) use_tokenizer(t);
        break;
    case 3:
        for (SplitRule rule = SPLIT_GPT2; rule <= SPLIT_QWEN; rule++) split(rule, p, n);
        normalize(p, n);
        round_trip(small, p, n);
        break;
    case 4:
        t = learn(p, n, 400);
        round_trip(t, p, n);
        tokenizer_free(t);
        break;
    default:
        break;
    }
    return 0;
}
