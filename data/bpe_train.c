#include "data/bpe_train.h"

#include <string.h>

#include "base/mem.h"
#include "data/presplit.h"
#include "data/tokenizer_parts.h"

/* Strings of bytes by number, found by their bytes. */
typedef struct Strings {
    Bytes blob;
    size_t n, cap, n_slots, *first; // string i is blob[first[i]..first[i + 1])
    uint32_t *slots;                // number + 1; 0: free
} Strings;

/* Two ids side by side. */
typedef struct Pair {
    int32_t left, right;
    int64_t count;
    uint32_t *words, n_words, cap_words; // where it was seen; some may have lost it since
    int32_t fresh;                       // the last token that made it more frequent
} Pair;

/* A distinct piece of the text. */
typedef struct Word {
    size_t first, n; // its ids
    int64_t count;
    int32_t seen; // the last merge that looked at it
} Word;

typedef struct Candidate {
    int64_t count; // when it was put on the heap
    uint32_t pair;
} Candidate;

struct BpeTrain {
    Strings pieces, tokens;
    int64_t *counts; // of pieces
    size_t cap_counts;
    Word *words;
    int32_t *ids;
    Pair *pairs;
    uint32_t n_pairs, cap_pairs, *pair_slots; // number + 1; 0: free
    size_t n_pair_slots;
    Candidate *heap;
    size_t n_heap, cap_heap;
    int32_t (*merges)[2];
    size_t n_merges, cap_merges;
    uint32_t *grown; // pairs that the current merge made more frequent
    size_t n_grown, cap_grown;
};

#define GROW(array, n, cap)                                                                        \
    do {                                                                                           \
        if ((n) == (cap)) {                                                                        \
            (cap) = (cap)*2 + 64;                                                                  \
            (array) = mem_realloc((array), (cap), sizeof *(array));                                \
        }                                                                                          \
    } while (0)

static size_t hash_string(const uint8_t *p, size_t n) {
    uint64_t h = n;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        h = (h ^ w) * 0x9E3779B97F4A7C15u;
        h ^= h >> 32;
    }
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001B3u;
    h *= 0xD6E8FEB86659FD93u;
    return (size_t)(h ^ h >> 32);
}

static uint32_t *string_slot(const Strings *s, const uint8_t *p, size_t n) {
    for (size_t i = hash_string(p, n) & (s->n_slots - 1);; i = (i + 1) & (s->n_slots - 1)) {
        if (!s->slots[i]) return &s->slots[i];
        size_t k = s->slots[i] - 1;
        if (s->first[k + 1] - s->first[k] == n && memcmp(s->blob.p + s->first[k], p, n) == 0)
            return &s->slots[i];
    }
}

static void strings_grow(Strings *s) {
    mem_free(s->slots);
    s->n_slots = s->n_slots ? s->n_slots * 4 : 1024;
    s->cap = s->n_slots / 2;
    s->slots = mem_calloc(s->n_slots, sizeof *s->slots);
    s->first = mem_realloc(s->first, s->cap + 1, sizeof *s->first);
    s->first[0] = 0;
    for (size_t i = 0; i < s->n; i++)
        *string_slot(s, s->blob.p + s->first[i], s->first[i + 1] - s->first[i]) = (uint32_t)i + 1;
}

/* The number of the string, given now if it is new. */
static size_t string_number(Strings *s, const uint8_t *p, size_t n) {
    if (s->n == s->cap) strings_grow(s);
    uint32_t *slot = string_slot(s, p, n);
    if (!*slot) {
        bytes_put(&s->blob, p, n);
        s->first[++s->n] = s->blob.n;
        *slot = (uint32_t)s->n;
        if (s->n > UINT32_MAX / 4) die("the text has more than %zu distinct pieces", s->n);
    }
    return *slot - 1;
}

static void strings_free(Strings *s) {
    mem_free(s->blob.p);
    mem_free(s->first);
    mem_free(s->slots);
}

BpeTrain *bpe_train_open(void) {
    return mem_calloc(1, sizeof(BpeTrain));
}

void bpe_train_count(BpeTrain *b, const uint8_t *text, size_t n) {
    const uint8_t *p;
    Documents d = documents_of(text, n);
    for (size_t left; documents_next(&d, &p, &left);)
        for (size_t len; left; p += len, left -= len) {
            len = presplit_next(p, left);
            size_t known = b->pieces.n, i = string_number(&b->pieces, p, len);
            if (i == known) { // a new piece
                GROW(b->counts, i, b->cap_counts);
                b->counts[i] = 0;
            }
            b->counts[i]++;
        }
}

static size_t pair_slot(const BpeTrain *b, int32_t left, int32_t right) {
    size_t i = merge_slot(left, right, b->n_pair_slots);
    for (; b->pair_slots[i]; i = (i + 1) & (b->n_pair_slots - 1)) {
        const Pair *p = &b->pairs[b->pair_slots[i] - 1];
        if (p->left == left && p->right == right) break;
    }
    return i;
}

static uint32_t pair_number(BpeTrain *b, int32_t left, int32_t right) {
    if (b->n_pairs >= b->n_pair_slots / 2) {
        mem_free(b->pair_slots);
        b->n_pair_slots = b->n_pair_slots ? b->n_pair_slots * 4 : 1 << 16;
        b->pair_slots = mem_calloc(b->n_pair_slots, sizeof *b->pair_slots);
        for (uint32_t i = 0; i < b->n_pairs; i++)
            b->pair_slots[pair_slot(b, b->pairs[i].left, b->pairs[i].right)] = i + 1;
    }
    uint32_t *slot = &b->pair_slots[pair_slot(b, left, right)];
    if (!*slot) {
        GROW(b->pairs, b->n_pairs, b->cap_pairs);
        b->pairs[b->n_pairs++] = (Pair){.left = left, .right = right, .fresh = -1};
        *slot = b->n_pairs;
    }
    return *slot - 1;
}

/* Is x taken before y? */
static bool before(const BpeTrain *b, Candidate x, Candidate y) {
    const Pair *p = &b->pairs[x.pair], *q = &b->pairs[y.pair];
    if (x.count != y.count) return x.count > y.count;
    return p->left != q->left ? p->left < q->left : p->right < q->right;
}

static void heap_push(BpeTrain *b, uint32_t pair) {
    Candidate x = {b->pairs[pair].count, pair};
    GROW(b->heap, b->n_heap, b->cap_heap);
    size_t i = b->n_heap++;
    for (; i > 0 && before(b, x, b->heap[(i - 1) / 2]); i = (i - 1) / 2)
        b->heap[i] = b->heap[(i - 1) / 2];
    b->heap[i] = x;
}

static Candidate heap_pop(BpeTrain *b) {
    Candidate top = b->heap[0], x = b->heap[--b->n_heap];
    size_t i = 0;
    for (size_t c; (c = 2 * i + 1) < b->n_heap; i = c) {
        if (c + 1 < b->n_heap && before(b, b->heap[c + 1], b->heap[c])) c++;
        if (!before(b, b->heap[c], x)) break;
        b->heap[i] = b->heap[c];
    }
    b->heap[i] = x;
    return top;
}

/* Adds `count` to all pairs of the word. Those with `made` in them (-1: all) now also know the
 * word, and are noted as grown. */
static void count_pairs(BpeTrain *b, uint32_t word, int64_t count, bool note, int32_t made) {
    const Word *w = &b->words[word];
    const int32_t *ids = b->ids + w->first;
    for (size_t i = 0; i + 1 < w->n; i++) {
        uint32_t number = pair_number(b, ids[i], ids[i + 1]);
        Pair *p = &b->pairs[number];
        p->count += count;
        if (!note || (made >= 0 && ids[i] != made && ids[i + 1] != made)) continue;
        if (p->n_words == 0 || p->words[p->n_words - 1] != word) {
            GROW(p->words, p->n_words, p->cap_words);
            p->words[p->n_words++] = word;
        }
        if (p->fresh == (int32_t)b->n_merges) continue;
        p->fresh = (int32_t)b->n_merges;
        GROW(b->grown, b->n_grown, b->cap_grown);
        b->grown[b->n_grown++] = number;
    }
}

static void push_grown(BpeTrain *b) {
    for (size_t i = 0; i < b->n_grown; i++) heap_push(b, b->grown[i]);
    b->n_grown = 0;
}

static bool holds(const BpeTrain *b, const Word *w, int32_t left, int32_t right) {
    const int32_t *ids = b->ids + w->first;
    for (size_t i = 0; i + 1 < w->n; i++)
        if (ids[i] == left && ids[i + 1] == right) return true;
    return false;
}

/* Replaces the pair from left to right. */
static void merge_word(BpeTrain *b, Word *w, int32_t left, int32_t right, int32_t made) {
    int32_t *ids = b->ids + w->first;
    size_t n = 0;
    for (size_t i = 0; i < w->n; i++) {
        bool hit = i + 1 < w->n && ids[i] == left && ids[i + 1] == right;
        ids[n++] = hit ? made : ids[i];
        i += hit;
    }
    w->n = n;
}

static void merge_pair(BpeTrain *b, uint32_t number, int32_t made) {
    Pair p = b->pairs[number];
    b->pairs[number].words = NULL;
    b->pairs[number].n_words = b->pairs[number].cap_words = 0;
    for (uint32_t i = 0; i < p.n_words; i++) {
        Word *w = &b->words[p.words[i]];
        if (w->seen == (int32_t)b->n_merges || !holds(b, w, p.left, p.right)) continue;
        w->seen = (int32_t)b->n_merges;
        count_pairs(b, p.words[i], -w->count, false, -1);
        merge_word(b, w, p.left, p.right, made);
        count_pairs(b, p.words[i], w->count, true, made);
    }
    mem_free(p.words);
}

/* Words and first pairs from the counted pieces. */
static void prepare(BpeTrain *b) {
    uint8_t order[256];
    int32_t id_of_byte[256];
    gpt2_byte_order(order);
    for (int i = 0; i < 256; i++) {
        id_of_byte[order[i]] = i;
        string_number(&b->tokens, &order[i], 1);
    }
    b->words = mem_calloc(b->pieces.n, sizeof(Word));
    b->ids = mem_alloc(b->pieces.blob.n * sizeof(int32_t));
    for (size_t i = 0; i < b->pieces.blob.n; i++) b->ids[i] = id_of_byte[b->pieces.blob.p[i]];
    for (size_t i = 0; i < b->pieces.n; i++) {
        size_t first = b->pieces.first[i];
        b->words[i] = (Word){first, b->pieces.first[i + 1] - first, b->counts[i], -1};
        count_pairs(b, (uint32_t)i, b->counts[i], true, -1);
    }
    push_grown(b);
}

/* The number of the token left + right, given now if it is new. */
static int32_t product(BpeTrain *b, int32_t left, int32_t right) {
    const Strings *s = &b->tokens;
    Bytes whole = {0};
    bytes_put(&whole, s->blob.p + s->first[left], s->first[left + 1] - s->first[left]);
    bytes_put(&whole, s->blob.p + s->first[right], s->first[right + 1] - s->first[right]);
    int32_t id = (int32_t)string_number(&b->tokens, whole.p, whole.n);
    mem_free(whole.p);
    return id;
}

static void learn(BpeTrain *b, size_t most, int64_t min_count, BpeProgress progress, void *ctx) {
    while (b->tokens.n < most && b->n_heap) {
        Candidate c = heap_pop(b);
        Pair *p = &b->pairs[c.pair];
        if (c.count != p->count) { // it has lost words since: ask again at its place
            if (p->count > 0 && c.count > p->count) heap_push(b, c.pair);
            continue;
        }
        if (c.count < min_count) break;
        GROW(b->merges, b->n_merges, b->cap_merges);
        b->merges[b->n_merges][0] = p->left;
        b->merges[b->n_merges][1] = p->right;
        b->n_merges++;
        merge_pair(b, c.pair, product(b, p->left, p->right));
        push_grown(b);
        if (progress && b->n_merges % 64 == 0)
            progress(ctx, (int32_t)b->tokens.n + 1, (int32_t)most + 1);
    }
}

static Tokenizer *make_tokenizer(const BpeTrain *b) {
    static const char eot[] = "<|endoftext|>";
    const Strings *s = &b->tokens;
    Bytes blob = {0};
    size_t *first = mem_alloc((s->n + 2) * sizeof(size_t));
    memcpy(first, s->first, (s->n + 1) * sizeof(size_t));
    bytes_put(&blob, s->blob.p, s->blob.n);
    bytes_put(&blob, eot, sizeof eot - 1);
    first[s->n + 1] = blob.n;
    Tokenizer *t =
        tokenizer_make("GPT-2 vocab.json and merges.txt", (int32_t)s->n + 1, blob, first);
    t->can_encode = true;
    tokenizer_choose_eot(t);
    /* A pair whose product is a token of another pair, too, may come up a second time: its first
     * rank counts. */
    for (size_t i = 0; i < b->n_merges; i++)
        tokenizer_add_merge(t, b->merges[i][0], b->merges[i][1], NULL);
    return t;
}

Tokenizer *bpe_train_finish(BpeTrain *b, int32_t vocab, int64_t min_count, BpeProgress progress,
                            void *ctx) {
    prepare(b);
    learn(b, (size_t)vocab - 1, min_count, progress, ctx);
    Tokenizer *t = make_tokenizer(b);
    strings_free(&b->pieces);
    strings_free(&b->tokens);
    for (uint32_t i = 0; i < b->n_pairs; i++) mem_free(b->pairs[i].words);
    mem_free(b->counts);
    mem_free(b->words);
    mem_free(b->ids);
    mem_free(b->pairs);
    mem_free(b->pair_slots);
    mem_free(b->heap);
    mem_free(b->merges);
    mem_free(b->grown);
    mem_free(b);
    return t;
}
