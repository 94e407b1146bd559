#include "data/tokenizer.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "data/tokenizer_parts.h"

static bool is_printable(int byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

uint32_t byte_to_char(uint8_t byte) {
    if (is_printable(byte)) return byte;
    uint32_t others = 0;
    for (int i = 0; i < byte; i++) others += !is_printable(i);
    return 256 + others;
}

/* The byte that a character stands for (byte_to_char); -1: none. */
static int char_to_byte(uint32_t c) {
    if (c < 256) return is_printable((int)c) ? (int)c : -1;
    uint32_t others = 256;
    for (int i = 0; i < 256; i++)
        if (!is_printable(i) && others++ == c) return i;
    return -1;
}

void gpt2_byte_order(uint8_t order[256]) {
    int n = 0;
    for (int i = 0; i < 256; i++)
        if (is_printable(i)) order[n++] = (uint8_t)i;
    for (int i = 0; i < 256; i++)
        if (!is_printable(i)) order[n++] = (uint8_t)i;
}

int64_t bytes_of_chars(const char *s, size_t n, uint8_t *out) {
    size_t at = 0, len;
    int64_t n_bytes = 0;
    for (uint32_t c; at < n; at += len) {
        len = utf8_decode((const uint8_t *)s + at, n - at, &c);
        int byte = len ? char_to_byte(c) : -1;
        if (byte < 0) return -1;
        out[n_bytes++] = (uint8_t)byte;
    }
    return n_bytes;
}

Tokenizer *tokenizer_make(const char *format, Strings tokens) {
    Tokenizer *t = mem_calloc(1, sizeof *t);
    *t = (Tokenizer){.format = format, .eot = -1, .bos = -1, .split = SPLIT_GPT2, .tokens = tokens};
    for (int i = 0; i < 256; i++)
        t->byte_id[i] = (int32_t)strings_find(&tokens, &(uint8_t){(uint8_t)i}, 1);
    return t;
}

void tokenizer_free(Tokenizer *t) {
    if (!t) return;
    strings_free(&t->tokens);
    mem_free(t->merges);
    mem_free(t->list);
    mem_free(t->added);
    mem_free(t);
}

static void insert_merge(Merge *table, size_t n_slots, Merge m) {
    size_t i = merge_slot(m.left, m.right, n_slots);
    while (table[i].id >= 0) i = (i + 1) & (n_slots - 1);
    table[i] = m;
}

static void grow_merges(Tokenizer *t) {
    size_t n = t->n_merge_slots = t->n_merge_slots ? 4 * t->n_merge_slots : 64;
    mem_free(t->merges);
    t->merges = mem_alloc(n * sizeof(Merge));
    memset(t->merges, 0xFF, n * sizeof(Merge));
    t->list = mem_realloc(t->list, n / 2, sizeof(Merge));
    for (int64_t i = 0; i < t->n_merges; i++) insert_merge(t->merges, n, t->list[i]);
}

bool tokenizer_add_merge(Tokenizer *t, int32_t left, int32_t right, Err *e) {
    size_t a, b;
    const uint8_t *l = tokenizer_token(t, left, &a), *r = tokenizer_token(t, right, &b);
    if (t->n_merges >= (int64_t)(t->n_merge_slots / 2)) grow_merges(t);
    if (tokenizer_merge(t, left, right)) return err(e, "the pair is given twice");
    uint8_t *whole = mem_alloc(a + b);
    memcpy(whole, l, a), memcpy(whole + a, r, b);
    int32_t id = tokenizer_find(t, whole, a + b);
    mem_free(whole);
    if (id < 0) return err(e, "the merged token is not in the vocabulary");
    Merge m = {left, right, (uint32_t)t->n_merges, id};
    t->list[t->n_merges++] = m;
    insert_merge(t->merges, t->n_merge_slots, m);
    return true;
}

void tokenizer_choose_eot(Tokenizer *t) {
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
    for (int i = 0; i < 4 && t->eot < 0; i++)
        t->eot = tokenizer_find(t, (const uint8_t *)names[i], strlen(names[i]));
}

bool tokenizer_check_bytes(const Tokenizer *t, Err *e) {
    for (int i = 0; i < 256; i++)
        if (t->byte_id[i] < 0)
            return err(e,
                       "the vocabulary has no token for byte 0x%02x: only byte-level vocabularies "
                       "with all 256 bytes are read",
                       (unsigned)i);
    return true;
}

Tokenizer *tokenizer_bytes(void) {
    Strings s = {0};
    for (int i = 0; i < 256; i++) strings_add(&s, &(uint8_t){(uint8_t)i}, 1);
    strings_add(&s, (const uint8_t *)"<|endoftext|>", strlen("<|endoftext|>"));
    Tokenizer *t = tokenizer_make("bytes", s);
    t->can_encode = true;
    tokenizer_choose_eot(t);
    grow_merges(t);
    return t;
}

int32_t tokenizer_vocab(const Tokenizer *t) {
    return (int32_t)t->tokens.n;
}
int32_t tokenizer_eot(const Tokenizer *t) {
    return t->eot;
}
bool tokenizer_can_encode(const Tokenizer *t) {
    return t->can_encode;
}
int64_t tokenizer_merges(const Tokenizer *t) {
    return t->n_merges;
}
const char *tokenizer_format(const Tokenizer *t) {
    return t->format;
}

const uint8_t *tokenizer_token(const Tokenizer *t, int32_t id, size_t *n) {
    *n = 0;
    return id < 0 || id >= tokenizer_vocab(t) ? NULL : strings_at(&t->tokens, (size_t)id, n);
}

int32_t tokenizer_find(const Tokenizer *t, const uint8_t *bytes, size_t n) {
    return (int32_t)strings_find(&t->tokens, bytes, n);
}

int64_t tokenizer_decode(const Tokenizer *t, const int32_t *ids, int64_t n, uint8_t **text) {
    size_t len, n_bytes = 0;
    for (int64_t i = 0; i < n; i++, n_bytes += len)
        if (!tokenizer_token(t, ids[i], &len))
            die("cannot decode id %d at position %lld: the vocabulary has %d tokens; is this the "
                "tokenizer that made it?",
                (int)ids[i], (long long)i, (int)tokenizer_vocab(t));
    *text = mem_alloc(n_bytes + 1);
    uint8_t *to = *text;
    for (int64_t i = 0; i < n; i++, to += len) {
        const uint8_t *p = tokenizer_token(t, ids[i], &len);
        memcpy(to, p, len);
    }
    *to = 0;
    return (int64_t)n_bytes;
}

char *sample_text(const Tokenizer *t, const int32_t *ids, int64_t n) {
    char *text = NULL;
    size_t size, len;
    FILE *f = open_memstream(&text, &size);
    if (!f) die("out of memory for the text of a sample");
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *bytes = t ? tokenizer_token(t, ids[i], &len) : NULL;
        for (size_t k = 0; bytes && k < len; k++) // a C string would end at byte 0
            bytes[k] ? fputc(bytes[k], f) : fputs("\xef\xbf\xbd", f);
        if (!t) fprintf(f, "%d ", ids[i]);
    }
    if (fclose(f)) die("out of memory for the text of a sample");
    return text;
}

int64_t sample_prompt(const Tokenizer *t, const char *prompt, int64_t most, int64_t vocab,
                      int32_t **ids) {
    int32_t begin = t ? t->bos : -1, eot = t ? t->eot : -1;
    int64_t n = 0;
    if (*prompt) n = tokenizer_encode(t, (const uint8_t *)prompt, strlen(prompt), ids);
    if (n == 0) {
        *ids = mem_alloc(sizeof **ids);
        **ids = begin >= 0 && begin < vocab ? begin : eot >= 0 && eot < vocab ? eot : 0;
        return 1;
    }
    if (begin >= 0) {
        *ids = mem_realloc(*ids, (size_t)n + 1, sizeof **ids);
        memmove(*ids + 1, *ids, (size_t)n++ * sizeof **ids);
        **ids = begin;
    }
    if (n > most) memmove(*ids, *ids + n - most, (size_t)most * sizeof **ids);
    return n < most ? n : most;
}
