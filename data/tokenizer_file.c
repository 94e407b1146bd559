#include <string.h>

#include "base/mem.h"
#include "base/path.h"
#include "base/utf8.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/llmc.h"
#include "data/output.h"
#include "data/tokenizer_parts.h"

static Tokenizer *load_gpt2(const char *vocab, const char *merges) {
    Tokenizer *t = NULL;
    Err e;
    IoMap v = io_open(vocab), m = io_open(merges);
    if (!tokenizer_parse_gpt2(v.p, v.n, m.p, m.n, &t, &e))
        die_user("%s and %s: %s", vocab, merges, e.text);
    io_unmap(&v);
    io_unmap(&m);
    return t;
}

static Tokenizer *load_one(const char *path) {
    Tokenizer *t = NULL;
    Err e;
    IoMap m = io_open(path);
    bool bin = llmc_word(m.p, m.n, 0) == LLMC_TOKENIZER;
    if (!bin && (m.n == 0 || !memchr("{ \t\r\n", *m.p, 5)))
        die_user("%s is no tokenizer: neither JSON nor llm.c's gpt2_tokenizer.bin; name a folder "
                 "with vocab.json and merges.txt, a tokenizer.json, or \"bytes\"",
                 path);
    bool ok = bin ? tokenizer_parse_bin(m.p, m.n, &t, &e) : tokenizer_parse_json(m.p, m.n, &t, &e);
    if (!ok) die_user("%s: %s", path, e.text);
    io_unmap(&m);
    return t;
}

static Tokenizer *load_file(const char *path) {
    static const char vocab[] = "vocab.json";
    if (!path_ends(path, vocab)) return load_one(path);
    char *merges = mem_printf("%.*smerges.txt", (int)(strlen(path) - strlen(vocab)), path);
    Tokenizer *t = load_gpt2(path, merges);
    mem_free(merges);
    return t;
}

/* Where a folder holds both, vocab.json and merges.txt do not say how the tokenizer cuts text. */
static Tokenizer *load_folder(const char *dir) {
    bool json = io_exists_in(dir, "tokenizer.json");
    if (!json && !(io_exists_in(dir, "vocab.json") && io_exists_in(dir, "merges.txt")))
        die_user("%s holds no tokenizer: neither vocab.json with merges.txt nor tokenizer.json",
                 dir);
    char *file = mem_printf("%s/%s", dir, json ? "tokenizer.json" : "vocab.json");
    Tokenizer *t = load_file(file);
    mem_free(file);
    return t;
}

Tokenizer *tokenizer_load(const char *path) {
    if (strcmp(path, "bytes") == 0) return tokenizer_bytes();
    return io_is_folder(path) ? load_folder(path) : load_file(path);
}

/* Writes a token in GPT-2's characters. In JSON " and \ are escaped; all other characters are
 * printable. */
static void put_token(FILE *f, const Tokenizer *t, int32_t id, bool json) {
    size_t n;
    const uint8_t *p = tokenizer_token(t, id, &n);
    for (size_t i = 0; i < n; i++) {
        uint32_t c = byte_to_char(p[i]);
        if (json && (c == '"' || c == '\\')) fputc('\\', f);
        uint8_t utf8[4];
        fwrite(utf8, 1, utf8_write(c, utf8), f);
    }
}

static void put_vocab(FILE *f, const Tokenizer *t) {
    for (int32_t id = 0; id < tokenizer_vocab(t); id++) {
        fputs(id ? ", \"" : "{\"", f);
        put_token(f, t, id, true);
        fprintf(f, "\": %d", (int)id);
    }
    fputs("}\n", f);
}

static void put_merges(FILE *f, const Tokenizer *t) {
    fputs("#version: 0.2\n", f);
    for (int64_t i = 0; i < t->n_merges; i++) {
        put_token(f, t, t->list[i].left, false);
        fputc(' ', f);
        put_token(f, t, t->list[i].right, false);
        fputc('\n', f);
    }
}

/* Can llm.c's format, version 2, hold this tokenizer? */
static bool fits_bin(const Tokenizer *t) {
    size_t n = 1;
    for (int32_t id = 0; id < tokenizer_vocab(t) && n >= 1 && n <= 255; id++)
        tokenizer_token(t, id, &n);
    return t->eot >= 0 && n >= 1 && n <= 255;
}

static void put_class(FILE *f, const Tokenizer *t) {
    (void)t;
    fputs(TOKENIZER_CONFIG, f);
}

static void put_bin(FILE *f, const Tokenizer *t) {
    int32_t header[256] = {LLMC_TOKENIZER, 2, tokenizer_vocab(t), t->eot};
    fwrite(header, sizeof header, 1, f);
    for (int32_t id = 0; id < tokenizer_vocab(t); id++) {
        size_t n;
        const uint8_t *p = tokenizer_token(t, id, &n);
        fputc((int)n, f);
        fwrite(p, 1, n, f);
    }
}

static void save_one(const Tokenizer *t, const char *dir, const char *name,
                     void (*put)(FILE *f, const Tokenizer *t)) {
    char *path = mem_printf("%s/%s", dir, name);
    ReplaceText text;
    replace_text_begin(&text);
    put(text.f, t);
    replace_text_end(&text, "", path);
    mem_free(path);
}

void tokenizer_save(const Tokenizer *t, const char *dir) {
    Err e;
    if (!t->can_encode)
        die_user("cannot save %s as a vocabulary with merges: it holds no merges", t->format);
    if (t->add_prefix_space || t->split != SPLIT_GPT2 || t->ignore_merges || t->bos >= 0 ||
        t->nfc || t->n_added)
        die_user("cannot save this tokenizer.json as vocab.json and merges.txt, which have no "
                 "place for add_prefix_space, ignore_merges, a normalizer, added tokens that are "
                 "not special, and another pre_tokenizer or post_processor than GPT-2's");
    if (!io_make_dirs(dir, &e)) die_user("%s", e.text);
    save_one(t, dir, "vocab.json", put_vocab);
    save_one(t, dir, "merges.txt", put_merges);
    save_one(t, dir, "tokenizer_config.json", put_class);
    if (fits_bin(t))
        save_one(t, dir, "gpt2_tokenizer.bin", put_bin);
    else
        warn("%s/gpt2_tokenizer.bin is not written: it needs an end of text and tokens of 1 to 255 "
             "bytes",
             dir);
}
