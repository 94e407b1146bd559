#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/replace.h"
#include "data/tokenizer_parts.h"

static bool is_folder(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

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
    static const uint8_t magic[4] = {0xC8, 0xD7, 0x34, 0x01}; // 20240328
    Tokenizer *t = NULL;
    Err e;
    IoMap m = io_open(path);
    bool bin = m.n >= 4 && memcmp(m.p, magic, 4) == 0;
    if (!bin && (m.n == 0 || !memchr("{ \t\r\n", *m.p, 5)))
        die_user(
            "%s is no tokenizer: neither JSON nor llm.c's gpt2_tokenizer.bin; name a folder with "
            "vocab.json and merges.txt, "
            "a tokenizer.json, or \"bytes\"",
            path);
    bool ok = bin ? tokenizer_parse_bin(m.p, m.n, &t, &e) : tokenizer_parse_json(m.p, m.n, &t, &e);
    if (!ok) die_user("%s: %s", path, e.text);
    io_unmap(&m);
    return t;
}

static Tokenizer *load_folder(const char *dir) {
    char *vocab = mem_printf("%s/vocab.json", dir), *merges = mem_printf("%s/merges.txt", dir);
    char *json = mem_printf("%s/tokenizer.json", dir);
    Tokenizer *t = NULL;
    if (access(vocab, F_OK) == 0 && access(merges, F_OK) == 0)
        t = load_gpt2(vocab, merges);
    else if (access(json, F_OK) == 0)
        t = load_one(json);
    else
        die_user("%s holds no tokenizer: neither vocab.json with merges.txt nor tokenizer.json",
                 dir);
    mem_free(vocab);
    mem_free(merges);
    mem_free(json);
    return t;
}

Tokenizer *tokenizer_load(const char *path) {
    static const char vocab[] = "vocab.json";
    if (strcmp(path, "bytes") == 0) return tokenizer_bytes();
    if (is_folder(path)) return load_folder(path);
    if (!ends_with(path, vocab)) return load_one(path);
    char *merges = mem_printf("%.*smerges.txt", (int)(strlen(path) - strlen(vocab)), path);
    Tokenizer *t = load_gpt2(path, merges);
    mem_free(merges);
    return t;
}

/* Appends the token in GPT-2's characters; inside JSON with " and \ escaped (all others are
 * printable). */
static void put_chars(Bytes *out, const uint8_t *p, size_t n, bool json) {
    for (size_t i = 0; i < n; i++) {
        uint32_t c = byte_to_char(p[i]);
        uint8_t two[2] = {(uint8_t)(0xC0 | c >> 6), (uint8_t)(0x80 | (c & 0x3F))};
        uint8_t one[2] = {'\\', (uint8_t)c};
        bool escaped = json && (c == '"' || c == '\\');
        if (c >= 0x80)
            bytes_put(out, two, 2);
        else
            bytes_put(out, one + !escaped, 1u + escaped);
    }
}

static void write_whole(const char *dir, const char *name, const Bytes *b) {
    char *path = mem_printf("%s/%s", dir, name);
    Replace *r = replace_open(path);
    replace_write(r, b->p, b->n);
    replace_commit(r);
    mem_free(path);
}

static Bytes vocab_text(const Tokenizer *t) {
    Bytes out = {0};
    for (int32_t id = 0; id < t->vocab; id++) {
        size_t n;
        const uint8_t *p = tokenizer_token(t, id, &n);
        char *end = mem_printf("\": %d", (int)id);
        bytes_put(&out, id ? ", \"" : "{\"", id ? 3 : 2);
        put_chars(&out, p, n, true);
        bytes_put(&out, end, strlen(end));
        mem_free(end);
    }
    bytes_put(&out, "}\n", 2);
    return out;
}

static Bytes merges_text(const Tokenizer *t) {
    Bytes out = {0};
    bytes_put(&out, "#version: 0.2\n", 14);
    for (int64_t i = 0; i < t->n_merges; i++) {
        size_t n;
        const uint8_t *p = tokenizer_token(t, t->list[i].left, &n);
        put_chars(&out, p, n, false);
        bytes_put(&out, " ", 1);
        p = tokenizer_token(t, t->list[i].right, &n);
        put_chars(&out, p, n, false);
        bytes_put(&out, "\n", 1);
    }
    return out;
}

/* llm.c's version 2; false when a token is empty or too long for it. */
static bool bin_text(const Tokenizer *t, Bytes *out) {
    int32_t header[256] = {20240328, 2, t->vocab, t->eot};
    bytes_put(out, header, sizeof header);
    for (int32_t id = 0; id < t->vocab; id++) {
        size_t n;
        const uint8_t *p = tokenizer_token(t, id, &n);
        uint8_t len = (uint8_t)n;
        if (n == 0 || n > 255) return false;
        bytes_put(out, &len, 1);
        bytes_put(out, p, n);
    }
    return true;
}

void tokenizer_save(const Tokenizer *t, const char *dir) {
    if (!t->can_encode)
        die_user("cannot save %s as a vocabulary with merges: it holds no merges", t->format);
    if (t->add_prefix_space || !t->use_pieces)
        die_user(
            "cannot save this tokenizer.json as vocab.json and merges.txt, which have no place for "
            "add_prefix_space and use_regex");
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        die_user("cannot make the folder %s: %s", dir, strerror(errno));
    Bytes vocab = vocab_text(t), merges = merges_text(t), bin = {0};
    write_whole(dir, "vocab.json", &vocab);
    write_whole(dir, "merges.txt", &merges);
    if (t->eot >= 0 && bin_text(t, &bin))
        write_whole(dir, "gpt2_tokenizer.bin", &bin);
    else
        warn("%s/gpt2_tokenizer.bin is not written: it needs an end of text and tokens of 1 to 255 "
             "bytes",
             dir);
    mem_free(vocab.p);
    mem_free(merges.p);
    mem_free(bin.p);
}
