#include "data/hellaswag_write.h"

#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "data/hellaswag.h"

enum { HEADER_BYTES = 1024, MOST = 65535 };

typedef struct Writer {
    const Tokenizer *t;
    uint16_t *words; // of the file after its header
    size_t n, cap;
    int32_t header[HEADER_BYTES / 4]; // magic, version, examples, bytes of the longest
} Writer;

static void put(Writer *w, size_t word) {
    if (w->n == w->cap)
        w->words = mem_realloc(w->words, w->cap = 2 * w->cap + 1024, sizeof *w->words);
    w->words[w->n++] = (uint16_t)word;
}

/* Their number, then the tokens. */
static bool put_tokens(Writer *w, const char *key, const char *text, Err *e) {
    int32_t *ids;
    int64_t n = tokenizer_encode(w->t, (const uint8_t *)text, strlen(text), &ids);
    bool ok = n > 0 && n < MOST;
    put(w, (size_t)n);
    for (int64_t i = 0; ok && i < n; i++) put(w, (size_t)ids[i]);
    mem_free(ids);
    return ok || err(e, "\"%s\" has %lld tokens, not 1 to %d", key, (long long)n, MOST - 1);
}

static bool put_label(Writer *w, const json_t *example, Err *e) {
    const json_t *x = json_object_get(example, "label");
    const char *s = json_string_value(x);
    long long label = s && strlen(s) == 1  ? s[0] - '0'
                      : json_is_integer(x) ? json_integer_value(x)
                                           : -1;
    if (label < 0 || label >= HELLASWAG_CHOICES)
        return err(
            e,
            "\"label\" is no number from 0 to 3; the test split has none: take that of validation");
    put(w, (size_t)label);
    return true;
}

static bool put_example(Writer *w, const json_t *example, Err *e) {
    const char *context = json_string_value(json_object_get(example, "ctx"));
    const json_t *endings = json_object_get(example, "endings");
    size_t begin = w->n;
    if (!context) return err(e, "the text \"ctx\" is missing");
    if (json_array_size(endings) != HELLASWAG_CHOICES)
        return err(e, "\"endings\" are not four texts");
    if (w->header[2] == MOST) return err(e, "more than %d examples", MOST);
    put(w, MOST), put(w, 0), put(w, (size_t)w->header[2]);
    if (!put_label(w, example, e)) return false;
    put(w, HELLASWAG_CHOICES);
    if (!put_tokens(w, "ctx", context, e)) return false;
    for (size_t i = 0; i < HELLASWAG_CHOICES; i++) {
        const char *ending = json_string_value(json_array_get(endings, i));
        if (!ending) return err(e, "\"endings\" are not four texts");
        char *text = mem_printf(" %s", ending);
        bool ok = put_tokens(w, "endings", text, e);
        mem_free(text);
        if (!ok) return false;
    }
    size_t bytes = 2 * (w->n - begin);
    if (bytes > MOST)
        return err(e, "the example has %zu bytes of tokens, the format at most %d", bytes, MOST);
    w->words[begin + 1] = (uint16_t)bytes;
    w->header[2]++;
    if ((int32_t)bytes > w->header[3]) w->header[3] = (int32_t)bytes;
    return true;
}

static bool put_line(Writer *w, const char *p, size_t n, int line, Err *e) {
    json_error_t je;
    Err why;
    json_t *example = json_loadb(p, n, 0, &je);
    bool ok = example ? put_example(w, example, &why) : err(&why, "no JSON: %.150s", je.text);
    json_decref(example);
    return ok || err(e, "line %d: %.300s", line, why.text);
}

uint8_t *hellaswag_encode(const uint8_t *text, size_t n, const Tokenizer *t, size_t *n_out,
                          Err *e) {
    Writer w = {.t = t, .header = {20240522, 1}};
    bool ok =
        tokenizer_vocab(t) <= MOST + 1 ||
        err(e, "the format has 16-bit tokens, the tokenizer %d of them", (int)tokenizer_vocab(t));
    for (size_t at = 0, line = 1; ok && at < n; line++) {
        const uint8_t *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - (text + at)) : n - at;
        if (len > 0) ok = put_line(&w, (const char *)text + at, len, (int)line, e);
        at += len + 1;
    }
    if (ok && w.header[2] == 0) ok = err(e, "no example is in it");
    uint8_t *out = ok ? mem_alloc(*n_out = HEADER_BYTES + 2 * w.n) : NULL;
    if (out) memcpy(out, w.header, HEADER_BYTES), memcpy(out + HEADER_BYTES, w.words, 2 * w.n);
    mem_free(w.words);
    return out;
}
