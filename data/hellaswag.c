#include "data/hellaswag.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"

enum {
    HEADER_BYTES = 1024,
    MAGIC = 20240522,
    VERSION = 1,
    DELIMITER = 65535,
    FIXED =
        6 // uint16 words before the context: delimiter, bytes, index, label, completions, length
};

static int32_t get_i32(const uint8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static int get_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* One stretch of tokens: a length word and that many words. Moves *at (bytes) past it; false when
 * it leaves [*at, end). */
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

/* The body of example i, whose words end at byte `end`: context and four completions fill it
 * exactly. */
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

/* Example i at byte *at, moved past it. */
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
    if (n < 4 || get_i32(p) != MAGIC)
        return err(e, "is no llm.c evaluation file (its first word is not %d)", MAGIC);
    if (n < HEADER_BYTES)
        return err(e, "has %zu bytes, fewer than its header of %d: it was cut; copy it again", n,
                   HEADER_BYTES);
    int64_t examples = get_i32(p + 8), longest = get_i32(p + 12), at = HEADER_BYTES;
    if (get_i32(p + 4) != VERSION)
        return err(e, "evaluation file of version %d, but %d is read here", get_i32(p + 4),
                   VERSION);
    if (examples < 1 || examples > 65535)
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

static const uint8_t *example_at(const HellaSwag *h, int64_t example) {
    if (example < 0 || example >= h->n)
        die("HellaSwag example %" PRId64 " asked of %" PRId64, example, h->n);
    return h->data + h->at[example];
}

int hellaswag_label(const HellaSwag *h, int64_t example) {
    return get_u16(example_at(h, example) + 6);
}

/* Tokens of the longest row of an example. */
static int64_t longest_row(const HellaSwag *h, int64_t example) {
    const uint8_t *x = example_at(h, example) + 2 * (FIXED - 1);
    int64_t context = get_u16(x), most = 0;
    x += 2 + 2 * context;
    for (int c = 0; c < HELLASWAG_CHOICES; c++) {
        int64_t n = get_u16(x);
        if (n > most) most = n;
        x += 2 + 2 * n;
    }
    return context + most;
}

bool hellaswag_rows(const HellaSwag *h, int64_t example, int64_t S, int32_t *inputs,
                    int32_t *targets) {
    if (longest_row(h, example) > S + 1) return false;
    const uint8_t *context = example_at(h, example) + 2 * FIXED;
    int64_t nc = get_u16(context - 2);
    const uint8_t *x = context + 2 * nc;
    for (int c = 0; c < HELLASWAG_CHOICES; c++) {
        int64_t n = get_u16(x);
        int32_t *in = inputs + c * S, *to = targets + c * S;
        for (int64_t t = 0; t < S; t++) in[t] = 0, to[t] = -1;
        for (int64_t t = 0; t < nc; t++) in[t] = get_u16(context + 2 * t);
        for (int64_t k = 0; k < n; k++) { // the token at place nc + k of the row
            int32_t id = get_u16(x + 2 + 2 * k);
            to[nc + k - 1] = id;
            if (nc + k < S) in[nc + k] = id;
        }
        x += 2 + 2 * n;
    }
    return true;
}

int hellaswag_pick(const float *loss, const int32_t *targets, int64_t S) {
    int best = -1;
    double least = INFINITY;
    for (int c = 0; c < HELLASWAG_CHOICES; c++) {
        double sum = 0;
        int64_t n = 0;
        for (int64_t t = c * S; t < (c + 1) * S; t++)
            if (targets[t] >= 0) sum += (double)loss[t], n++;
        double mean = sum / (double)n; // NaN without targets: never less
        if (mean < least) least = mean, best = c;
    }
    return best;
}

HellaSwagRows hellaswag_rows_make(int64_t S) {
    size_t n = HELLASWAG_CHOICES * (size_t)S * sizeof(int32_t);
    return (HellaSwagRows){mem_alloc(n), mem_alloc(n), S};
}

void hellaswag_rows_free(HellaSwagRows *r) {
    mem_free(r->in);
    mem_free(r->target);
}

void hellaswag_fill(void *ctx, int64_t i, int32_t *inputs, int32_t *targets) {
    const HellaSwagRows *r = ctx;
    memcpy(inputs, r->in + i * r->S, (size_t)r->S * sizeof *inputs);
    memcpy(targets, r->target + i * r->S, (size_t)r->S * sizeof *targets);
}
