#include "data/bpe_train.h"

#include <string.h>

#include "base/mem.h"
#include "data/presplit.h"
#include "data/tokenizer_parts.h"

/* A pair of neighbouring ids. */
typedef struct Pair {
    int32_t left, right;
    int64_t count;
    // words that held the pair when they were listed; later merges may have removed it from some
    uint32_t *words, n_words, cap_words;
    int32_t grown_at; // number of the last merge that put the pair on the list `grown`; -1: none
} Pair;

/* A distinct piece of the text. */
typedef struct Word {
    size_t first, n; // the ids of the word: b->ids[first .. first + n)
    int64_t count;
} Word;

struct BpeTrain {
    Strings pieces, tokens;
    int64_t *counts; // [pieces.n] occurrences of each piece in the text
    size_t cap_counts;
    Word *words;
    int32_t *ids;
    Strings pair_ids; // the bytes of (left, right): number i belongs to pairs[i]
    Pair *pairs;
    uint32_t n_pairs, cap_pairs;
    // pairs by descending count, as it was when the pair was pushed: entries may be outdated
    Heap heap;
    int32_t (*merges)[2];
    size_t n_merges, cap_merges;
    uint32_t *grown; // pairs that the current merge made more frequent
    size_t n_grown, cap_grown;
};

BpeTrain *bpe_train_open(void) {
    return mem_calloc(1, sizeof(BpeTrain));
}

void bpe_train_count(BpeTrain *b, const uint8_t *text, size_t n) {
    const uint8_t *p;
    Documents d = documents_of(text, n);
    for (size_t left; documents_next(&d, &p, &left);)
        for (size_t len; left; p += len, left -= len) {
            len = presplit_next(SPLIT_GPT2, p, left);
            size_t known = b->pieces.n, i = strings_number(&b->pieces, p, len);
            if (i == known) { // a new piece
                mem_grow(b->counts, i, b->cap_counts);
                b->counts[i] = 0;
            }
            b->counts[i]++;
        }
}

static uint32_t pair_number(BpeTrain *b, int32_t left, int32_t right) {
    const int32_t ids[2] = {left, right};
    size_t i = strings_number(&b->pair_ids, (const uint8_t *)ids, sizeof ids);
    if (i == b->n_pairs) { // a new pair
        mem_grow(b->pairs, b->n_pairs, b->cap_pairs);
        b->pairs[b->n_pairs++] = (Pair){.left = left, .right = right, .grown_at = -1};
    }
    return (uint32_t)i;
}

/* Pushes a pair on the heap with its present count. Order of the heap: descending count, then
 * ascending left id, then ascending right id. */
static void push_pair(BpeTrain *b, uint32_t pair) {
    const Pair *p = &b->pairs[pair];
    uint64_t ids = (uint64_t)(uint32_t)p->left << 32 | (uint32_t)p->right;
    heap_push(&b->heap, (HeapItem){UINT64_MAX - (uint64_t)p->count, ids});
}

/* Adds `count` to the count of a pair. note: the pair is new in the word, so the word goes on the
 * pair's list, and the pair on the list `grown`. */
static void count_pair(BpeTrain *b, uint32_t word, int32_t left, int32_t right, int64_t count,
                       bool note) {
    uint32_t number = pair_number(b, left, right);
    Pair *p = &b->pairs[number];
    p->count += count;
    if (!note) return;
    if (p->n_words == 0 || p->words[p->n_words - 1] != word) {
        mem_grow(p->words, p->n_words, p->cap_words);
        p->words[p->n_words++] = word;
    }
    if (p->grown_at == (int32_t)b->n_merges) return;
    p->grown_at = (int32_t)b->n_merges;
    mem_grow(b->grown, b->n_grown, b->cap_grown);
    b->grown[b->n_grown++] = number;
}

static void push_grown(BpeTrain *b) {
    for (size_t i = 0; i < b->n_grown; i++) push_pair(b, b->grown[i]);
    b->n_grown = 0;
}

/* Replaces each occurrence of the pair by the token `made`, from left to right, and updates the
 * counts of the pairs that vanish or appear. Other pairs, nearly all of a long word, are not
 * counted again. */
static void merge_word(BpeTrain *b, uint32_t word, int32_t left, int32_t right, int32_t made) {
    Word *w = &b->words[word];
    int32_t *ids = b->ids + w->first;
    size_t n = 0;
    bool after = false; // the token before was made
    for (size_t i = 0; i < w->n; i++) {
        bool hit = i + 1 < w->n && ids[i] == left && ids[i + 1] == right;
        int32_t now = hit ? made : ids[i];
        if (n > 0 && (hit || after)) {
            count_pair(b, word, after ? right : ids[n - 1], ids[i], -w->count, false);
            count_pair(b, word, ids[n - 1], now, w->count, true);
        }
        if (hit) count_pair(b, word, left, right, -w->count, false);
        ids[n++] = now;
        i += hit;
        after = hit;
    }
    w->n = n;
}

/* Merges a pair into the token `made` in every word with the pair. */
static void merge_pair(BpeTrain *b, uint32_t number, int32_t made) {
    Pair p = b->pairs[number];
    b->pairs[number].words = NULL;
    b->pairs[number].n_words = b->pairs[number].cap_words = 0;
    for (uint32_t i = 0; i < p.n_words; i++) merge_word(b, p.words[i], p.left, p.right, made);
    mem_free(p.words);
}

/* Makes the words and the first pairs from the counted pieces. Ids 0 .. 255 are the bytes. */
static void make_words(BpeTrain *b) {
    uint8_t order[256];
    int32_t id_of_byte[256];
    gpt2_byte_order(order);
    for (int i = 0; i < 256; i++) {
        id_of_byte[order[i]] = i;
        strings_number(&b->tokens, &order[i], 1);
    }
    b->words = mem_calloc(b->pieces.n, sizeof(Word));
    b->ids = mem_alloc(b->pieces.n_bytes * sizeof(int32_t));
    for (size_t i = 0; i < b->pieces.n_bytes; i++) b->ids[i] = id_of_byte[b->pieces.bytes[i]];
    for (size_t i = 0; i < b->pieces.n; i++) {
        size_t first = b->pieces.first[i];
        b->words[i] = (Word){first, b->pieces.first[i + 1] - first, b->counts[i]};
        const int32_t *ids = b->ids + first;
        for (size_t k = 0; k + 1 < b->words[i].n; k++)
            count_pair(b, (uint32_t)i, ids[k], ids[k + 1], b->counts[i], true);
    }
    push_grown(b);
}

/* The id of the merged token: the bytes of left, then those of right. New bytes get the next id. */
static int32_t merged_token(BpeTrain *b, int32_t left, int32_t right) {
    size_t n, m;
    const uint8_t *l = strings_at(&b->tokens, (size_t)left, &n);
    const uint8_t *r = strings_at(&b->tokens, (size_t)right, &m);
    uint8_t *whole = mem_alloc(n + m);
    memcpy(whole, l, n), memcpy(whole + n, r, m);
    int32_t id = (int32_t)strings_number(&b->tokens, whole, n + m);
    mem_free(whole);
    return id;
}

/* Merges the most frequent pair until there are `most` tokens or no pair occurs min_count times. */
static void learn_merges(BpeTrain *b, size_t most, int64_t min_count, BpeProgress progress,
                         void *ctx) {
    while (b->tokens.n < most && b->heap.n) {
        HeapItem top = heap_pop(&b->heap);
        int64_t count = (int64_t)(UINT64_MAX - top.first);
        uint32_t number = pair_number(b, (int32_t)(top.second >> 32), (int32_t)top.second);
        const Pair *p = &b->pairs[number];
        // An outdated entry. A pair that has lost occurrences since is pushed again with its
        // present count; one that has gained some was pushed again at that time.
        if (count != p->count) {
            if (p->count > 0 && count > p->count) push_pair(b, number);
            continue;
        }
        if (count < min_count) break;
        mem_grow(b->merges, b->n_merges, b->cap_merges);
        b->merges[b->n_merges][0] = p->left;
        b->merges[b->n_merges][1] = p->right;
        b->n_merges++;
        merge_pair(b, number, merged_token(b, p->left, p->right));
        push_grown(b);
        if (progress && b->n_merges % 64 == 0)
            progress(ctx, (int32_t)b->tokens.n + 1, (int32_t)most + 1);
    }
}

/* Takes ownership of b->tokens. */
static Tokenizer *make_tokenizer(BpeTrain *b) {
    strings_add(&b->tokens, (const uint8_t *)"<|endoftext|>", strlen("<|endoftext|>"));
    Tokenizer *t = tokenizer_make("GPT-2 vocab.json and merges.txt", b->tokens);
    t->can_encode = true;
    tokenizer_choose_eot(t);
    /* A pair can be merged a second time if one of its tokens is made by more than one pair. The
     * rank of its first merge counts: tokenizer_add_merge refuses the second one. */
    for (size_t i = 0; i < b->n_merges; i++)
        tokenizer_add_merge(t, b->merges[i][0], b->merges[i][1], NULL);
    return t;
}

Tokenizer *bpe_train_finish(BpeTrain *b, int32_t vocab, int64_t min_count, BpeProgress progress,
                            void *ctx) {
    make_words(b);
    learn_merges(b, (size_t)vocab - 1, min_count, progress, ctx);
    Tokenizer *t = make_tokenizer(b);
    strings_free(&b->pieces), strings_free(&b->pair_ids);
    for (uint32_t i = 0; i < b->n_pairs; i++) mem_free(b->pairs[i].words);
    mem_free(b->counts);
    mem_free(b->words);
    mem_free(b->ids);
    mem_free(b->pairs);
    mem_free(b->heap.p);
    mem_free(b->merges);
    mem_free(b->grown);
    mem_free(b);
    return t;
}
