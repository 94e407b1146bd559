#include "data/hellaswag.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "data/llmc.h"

enum {
    VERSION = 1,
    DELIMITER = 65535,
    MOST = 65535, // bytes of an example, examples
    // uint16 words before the context: delimiter, bytes, index, label, completions, length
    FIXED = 6
};

static int get_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Reads a list of tokens: a uint16 with their number, then that many uint16. Moves *at (bytes) past
 * the list and raises *max_id to its largest id. False when the list goes beyond `end`. */
static bool take(const uint8_t *p, int64_t *at, int64_t end, int64_t *n_tokens, int64_t *max_id) {
    if (end - *at < 2) return false;
    *n_tokens = get_u16(p + *at);
    *at += 2;
    if ((end - *at) / 2 < *n_tokens) return false;
    for (int64_t i = 0; i < *n_tokens; i++) {
        int id = get_u16(p + *at + 2 * i);
        if (id > *max_id) *max_id = id;
    }
    *at += 2 * *n_tokens;
    return true;
}

/* Reads the body of example i: the context and four completions must fill it exactly to byte
 * `end`. */
static bool parse_body(const uint8_t *p, int64_t i, int64_t at, int64_t end, HellaSwag *out,
                       Err *e) {
    int64_t context, n;
    at += 2 * (FIXED - 1); // the context's length word
    if (!take(p, &at, end, &context, &out->max_id))
        return err(e, "example %" PRId64 ": its context is longer than the example: damaged", i);
    if (context == 0) return err(e, "example %" PRId64 " has an empty context", i);
    for (int c = 0; c < HELLASWAG_CHOICES; c++) {
        if (!take(p, &at, end, &n, &out->max_id))
            return err(e, "example %" PRId64 ": completion %d is longer than the example: damaged",
                       i, c);
        if (n == 0) return err(e, "example %" PRId64 " has an empty completion %d", i, c);
        if (context + n > out->longest_row) out->longest_row = context + n;
    }
    if (at != end)
        return err(e, "example %" PRId64 ": %" PRId64 " bytes are left after completion 3: damaged",
                   i, end - at);
    return true;
}

/* Reads example i at byte *at and moves *at past it. */
static bool parse_example(const uint8_t *p, int64_t n, int64_t i, int64_t longest, int64_t *at,
                          HellaSwag *out, Err *e) {
    const uint8_t *x = p + *at;
    if (n - *at < 2 * FIXED)
        return err(e, "ends inside example %" PRId64 " of %" PRId64 ": it was cut; copy it again",
                   i, out->n);
    if (get_u16(x) != DELIMITER)
        return err(e, "example %" PRId64 " at byte %" PRId64 " starts with %d, not %d: damaged", i,
                   *at, get_u16(x), DELIMITER);
    int64_t bytes = get_u16(x + 2);
    if (bytes % 2 || bytes < 2 * FIXED || bytes > longest)
        return err(e,
                   "example %" PRId64 " says it has %" PRId64
                   " bytes, not an even number in %d..%" PRId64 ": damaged",
                   i, bytes, 2 * FIXED, longest);
    if (bytes > n - *at)
        return err(e, "ends inside example %" PRId64 " of %" PRId64 ": it was cut; copy it again",
                   i, out->n);
    if (get_u16(x + 4) != i)
        return err(e, "example %" PRId64 " says that it is number %d: damaged", i, get_u16(x + 4));
    if (get_u16(x + 6) >= HELLASWAG_CHOICES)
        return err(e, "example %" PRId64 ": label %d is not in 0..3", i, get_u16(x + 6));
    if (get_u16(x + 8) != HELLASWAG_CHOICES)
        return err(e, "example %" PRId64 " has %d completions; only 4 are read here", i,
                   get_u16(x + 8));
    if (!parse_body(p, i, *at, *at + bytes, out, e)) return false;
    out->at[i] = *at;
    *at += bytes;
    return true;
}

bool hellaswag_parse(const uint8_t *p, size_t n, HellaSwag *out, Err *e) {
    *out = (HellaSwag){.data = p};
    if (llmc_word(p, n, 0) != LLMC_EVALUATION)
        return err(e, "is no llm.c evaluation file (its first word is not %d)", LLMC_EVALUATION);
    if (n < LLMC_HEADER)
        return err(e, "has %zu bytes, fewer than its header of %d: it was cut; copy it again", n,
                   LLMC_HEADER);
    int32_t version = llmc_word(p, n, 1);
    int64_t examples = llmc_word(p, n, 2), longest = llmc_word(p, n, 3), at = LLMC_HEADER;
    if (version != VERSION)
        return err(e, "evaluation file of version %d, but %d is read here", version, VERSION);
    if (examples < 1 || examples > MOST)
        return err(e, "its header says %" PRId64 " examples, not 1..65535: damaged", examples);
    out->n = examples;
    out->at = mem_calloc((size_t)examples, sizeof *out->at);
    bool ok = true;
    for (int64_t i = 0; ok && i < examples; i++)
        ok = parse_example(p, (int64_t)n, i, longest, &at, out, e);
    if (ok && at != (int64_t)n)
        ok = err(e, "%" PRId64 " bytes follow the last of %" PRId64 " examples: damaged",
                 (int64_t)n - at, examples);
    if (!ok) hellaswag_close(out);
    return ok;
}

HellaSwag hellaswag_open(const char *path, int64_t vocab) {
    Err e;
    HellaSwag h;
    IoMap m = io_open(path);
    if (!hellaswag_parse(m.p, m.n, &h, &e)) die_user("%s: %s", path, e.text);
    if (h.max_id >= vocab)
        die_user("%s: holds token id %" PRId64 ", but the vocabulary has ids 0..%" PRId64
                 ": the file is encoded with another tokenizer than the model's",
                 path, h.max_id, vocab - 1);
    h.file = m;
    return h;
}

void hellaswag_close(HellaSwag *h) {
    io_unmap(&h->file);
    mem_free(h->at);
    *h = (HellaSwag){0};
}

int hellaswag_label(const HellaSwag *h, int64_t example) {
    return get_u16(h->data + h->at[example] + 6);
}

/* A row in the file: the tokens of the context and of the completion, uint16 each. */
typedef struct Row {
    const uint8_t *context, *completion;
    int64_t n_context, n; // numbers of tokens; n: of the completion
} Row;

static Row row_of(const HellaSwag *h, int64_t example, int c) {
    const uint8_t *x = h->data + h->at[example] + 2 * FIXED;
    Row r = {.context = x, .n_context = get_u16(x - 2)};
    for (x += 2 * r.n_context; c > 0; c--) x += 2 + 2 * get_u16(x);
    r.completion = x + 2, r.n = get_u16(x);
    return r;
}

int64_t hellaswag_length(const HellaSwag *h, int64_t example) {
    int64_t most = 0;
    for (int c = 0; c < HELLASWAG_CHOICES; c++) {
        Row r = row_of(h, example, c);
        if (r.n_context + r.n > most) most = r.n_context + r.n;
    }
    return most;
}

void hellaswag_row(const HellaSwag *h, int64_t example, int c, int64_t S, int32_t *inputs,
                   int32_t *targets) {
    Row r = row_of(h, example, c);
    for (int64_t t = 0; t < S; t++) inputs[t] = 0, targets[t] = -1;
    for (int64_t t = 0; t < r.n_context; t++) inputs[t] = get_u16(r.context + 2 * t);
    // token k of the completion is position t of the row
    for (int64_t k = 0, t = r.n_context; k < r.n; k++, t++) {
        targets[t - 1] = get_u16(r.completion + 2 * k);
        if (t < S) inputs[t] = targets[t - 1];
    }
}

int hellaswag_pick(const HellaSwag *h, int64_t example, const float *loss, int64_t S) {
    int best = -1;
    double least = INFINITY;
    for (int c = 0; c < HELLASWAG_CHOICES; c++) {
        Row r = row_of(h, example, c);
        double sum = 0;
        for (int64_t k = 0; k < r.n; k++) sum += (double)loss[c * S + r.n_context - 1 + k];
        if (sum / (double)r.n < least) least = sum / (double)r.n, best = c;
    }
    return best;
}

/* ---- writing ---- */

typedef struct Writer {
    const Tokenizer *t;
    uint16_t *words; // the file's uint16 values after its header
    size_t n, cap;
    int32_t header[LLMC_HEADER / 4]; // magic, version, examples, bytes of the longest example
} Writer;

static void put(Writer *w, size_t word) {
    mem_grow(w->words, w->n, w->cap);
    w->words[w->n++] = (uint16_t)word;
}

/* Appends the tokens of a text: their number, then the ids. */
static bool put_tokens(Writer *w, const char *key, const char *text, Err *e) {
    int32_t *ids;
    int64_t n = tokenizer_encode(w->t, (const uint8_t *)text, strlen(text), &ids);
    put(w, (size_t)n);
    for (int64_t i = 0; i < n; i++) put(w, (size_t)ids[i]);
    mem_free(ids);
    return n > 0 || err(e, "\"%s\" has 0 tokens", key);
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

/* Appends the example of one JSON line: header, context, four completions. Its size is filled in
 * last. */
static bool put_example(Writer *w, const json_t *example, Err *e) {
    const char *context = json_string_value(json_object_get(example, "ctx"));
    const json_t *endings = json_object_get(example, "endings");
    size_t begin = w->n;
    if (!context) return err(e, "the text \"ctx\" is missing");
    if (json_array_size(endings) != HELLASWAG_CHOICES)
        return err(e, "\"endings\" are not four texts");
    if (w->header[2] == MOST) return err(e, "more than %d examples", MOST);
    put(w, DELIMITER), put(w, 0), put(w, (size_t)w->header[2]);
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
    while (n > 0 && memchr(" \t\r", p[n - 1], 3)) n--; // a blank line may end with CR LF
    if (n == 0) return true;
    json_error_t je;
    Err why;
    json_t *example = json_loadb(p, n, 0, &je);
    bool ok = example ? put_example(w, example, &why) : err(&why, "no JSON: %.150s", je.text);
    json_decref(example);
    return ok || err(e, "line %d: %.300s", line, why.text);
}

uint8_t *hellaswag_encode(const uint8_t *text, size_t n, const Tokenizer *t, size_t *n_out,
                          Err *e) {
    Writer w = {.t = t, .header = {LLMC_EVALUATION, VERSION}};
    bool ok =
        tokenizer_vocab(t) <= MOST + 1 ||
        err(e, "the format has 16-bit tokens, the tokenizer %d of them", (int)tokenizer_vocab(t));
    for (size_t at = 0, line = 1; ok && at < n; line++) {
        const uint8_t *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - (text + at)) : n - at;
        ok = put_line(&w, (const char *)text + at, len, (int)line, e);
        at += len + 1;
    }
    if (ok && w.header[2] == 0) ok = err(e, "the file has no examples");
    uint8_t *out = ok ? mem_alloc(*n_out = LLMC_HEADER + 2 * w.n) : NULL;
    if (out) memcpy(out, w.header, LLMC_HEADER), memcpy(out + LLMC_HEADER, w.words, 2 * w.n);
    mem_free(w.words);
    return out;
}
