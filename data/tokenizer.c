#include "data/tokenizer.h"

#include <string.h>

#include "base/mem.h"
#include "data/tokenizer_parts.h"

void bytes_put(Bytes *b, const void *p, size_t n) {
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2;
        b->p = mem_realloc(b->p, b->cap, 1);
    }
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
}

static bool is_printable(int byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

uint32_t byte_to_char(uint8_t byte) {
    if (is_printable(byte)) return byte;
    uint32_t others = 0;
    for (int i = 0; i < byte; i++) others += !is_printable(i);
    return 256 + others;
}

/* The byte of a character; -1: none. */
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

bool bytes_put_chars(Bytes *b, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t c = (uint8_t)s[i];
        if (c >= 0x80) { // the characters in question have at most two bytes
            if ((c & 0xE0) != 0xC0 || i + 1 == n || ((uint8_t)s[i + 1] & 0xC0) != 0x80)
                return false;
            c = (c & 0x1F) << 6 | ((uint8_t)s[++i] & 0x3F);
        }
        int byte = char_to_byte(c);
        if (byte < 0) return false;
        uint8_t one = (uint8_t)byte;
        bytes_put(b, &one, 1);
    }
    return true;
}

/* FNV-1a. */
static size_t hash_bytes(const uint8_t *p, size_t n) {
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001B3u;
    return (size_t)(h ^ h >> 29);
}

static size_t slots_for(size_t n) {
    size_t slots = 16;
    while (slots < 2 * n) slots *= 2;
    return slots;
}

/* The slot that holds these bytes, or the free one where they belong. */
static int32_t *find_slot(const Tokenizer *t, const uint8_t *bytes, size_t n) {
    for (size_t i = hash_bytes(bytes, n) & (t->n_slots - 1);; i = (i + 1) & (t->n_slots - 1)) {
        int32_t id = t->ids_of_bytes[i];
        if (id < 0) return &t->ids_of_bytes[i];
        size_t len = t->first[id + 1] - t->first[id];
        if (len == n && memcmp(t->blob.p + t->first[id], bytes, n) == 0) return &t->ids_of_bytes[i];
    }
}

Tokenizer *tokenizer_make(const char *format, int32_t vocab, Bytes blob, size_t *first) {
    Tokenizer *t = mem_calloc(1, sizeof *t);
    bytes_put(&blob, "", 1); // so that blob.p is never NULL
    *t = (Tokenizer){.format = format,
                     .vocab = vocab,
                     .eot = -1,
                     .use_pieces = true,
                     .blob = blob,
                     .first = first};
    t->n_slots = slots_for((size_t)vocab);
    t->ids_of_bytes = mem_alloc(t->n_slots * sizeof(int32_t));
    memset(t->ids_of_bytes, 0xFF, t->n_slots * sizeof(int32_t));
    memset(t->byte_id, 0xFF, sizeof t->byte_id);
    for (int32_t id = 0; id < vocab; id++) {
        size_t n;
        const uint8_t *p = tokenizer_token(t, id, &n);
        int32_t *slot = find_slot(t, p, n);
        if (*slot < 0) *slot = id;
        if (n == 1 && t->byte_id[p[0]] < 0) t->byte_id[p[0]] = id;
    }
    return t;
}

void tokenizer_free(Tokenizer *t) {
    if (!t) return;
    mem_free(t->blob.p);
    mem_free(t->first);
    mem_free(t->ids_of_bytes);
    mem_free(t->merges);
    mem_free(t->list);
    mem_free(t);
}

static void place_merge(Merge *table, size_t n_slots, Merge m) {
    size_t i = merge_slot(m.left, m.right, n_slots);
    while (table[i].id >= 0) i = (i + 1) & (n_slots - 1);
    table[i] = m;
}

static void grow_merges(Tokenizer *t) {
    size_t n = slots_for((size_t)t->n_merges + 1) * 2;
    mem_free(t->merges);
    t->n_merge_slots = n;
    t->merges = mem_alloc(n * sizeof(Merge));
    memset(t->merges, 0xFF, n * sizeof(Merge));
    t->list = mem_realloc(t->list, n / 2, sizeof(Merge));
    for (int64_t i = 0; i < t->n_merges; i++) place_merge(t->merges, n, t->list[i]);
}

bool tokenizer_add_merge(Tokenizer *t, int32_t left, int32_t right, Err *e) {
    size_t a, b;
    const uint8_t *l = tokenizer_token(t, left, &a), *r = tokenizer_token(t, right, &b);
    if (t->n_merges >= (int64_t)(t->n_merge_slots / 2)) grow_merges(t);
    if (tokenizer_merge(t, left, right)) return err(e, "the same pair comes twice");
    Bytes whole = {0};
    bytes_put(&whole, l, a);
    bytes_put(&whole, r, b);
    int32_t id = tokenizer_find(t, whole.p, whole.n);
    mem_free(whole.p);
    if (id < 0) return err(e, "its product is not in the vocabulary");
    Merge m = {left, right, (uint32_t)t->n_merges, id};
    t->list[t->n_merges++] = m;
    place_merge(t->merges, t->n_merge_slots, m);
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
                       "with all 256 bytes "
                       "are read",
                       (unsigned)i);
    return true;
}

Tokenizer *tokenizer_bytes(void) {
    static const char eot[] = "<|endoftext|>";
    Bytes blob = {0};
    size_t *first = mem_alloc(258 * sizeof(size_t));
    for (size_t i = 0; i < 256; i++) {
        uint8_t byte = (uint8_t)i;
        first[i] = i;
        bytes_put(&blob, &byte, 1);
    }
    bytes_put(&blob, eot, sizeof eot - 1);
    first[256] = 256;
    first[257] = blob.n;
    Tokenizer *t = tokenizer_make("bytes", 257, blob, first);
    t->can_encode = true;
    tokenizer_choose_eot(t);
    grow_merges(t);
    return t;
}

int32_t tokenizer_vocab(const Tokenizer *t) {
    return t->vocab;
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
    if (id < 0 || id >= t->vocab) return NULL;
    *n = t->first[id + 1] - t->first[id];
    return t->blob.p + t->first[id];
}

int32_t tokenizer_find(const Tokenizer *t, const uint8_t *bytes, size_t n) {
    return *find_slot(t, bytes, n);
}

int64_t tokenizer_decode(const Tokenizer *t, const int32_t *ids, int64_t n, uint8_t **text) {
    Bytes out = {0};
    for (int64_t i = 0; i < n; i++) {
        size_t len;
        const uint8_t *p = tokenizer_token(t, ids[i], &len);
        if (!p)
            die("cannot decode id %d at position %lld: the vocabulary has %d tokens; is this the "
                "tokenizer that made it?",
                (int)ids[i], (long long)i, (int)t->vocab);
        bytes_put(&out, p, len);
    }
    bytes_put(&out, "", 1);
    *text = out.p;
    return (int64_t)out.n - 1;
}
