/* tokenizer_parts -- the internals that the files of the tokenizer share: how a Tokenizer lies in
 * memory. */
#ifndef DATA_TOKENIZER_PARTS_H
#define DATA_TOKENIZER_PARTS_H

#include "data/presplit.h"
#include "data/strings.h"
#include "data/tokenizer.h"

/* An entry of a heap whose top is the least: by `first`, then by `second`. */
typedef struct HeapItem {
    uint64_t first, second;
} HeapItem;
typedef struct Heap {
    HeapItem *p;
    size_t n, cap;
} Heap;

void heap_push(Heap *h, HeapItem x);
HeapItem heap_pop(Heap *h);

/* A merge: the neighbours `left` and `right` become `id`. Free slots of the hash table have id
 * -1. */
typedef struct Merge {
    int32_t left, right;
    uint32_t rank;
    int32_t id;
} Merge;

struct Tokenizer {
    const char *format;
    int32_t eot, bos; // bos: a tokenizer.json says that each text begins with it; else -1
    bool can_encode, add_prefix_space, ignore_merges; // ignore_merges: where a piece is a token
    int32_t *added; // [n_added] tokens that are cut out of text before all else
    size_t n_added;
    bool added_begins[256]; // first bytes of theirs
    bool nfc;               // the text between them is normalized
    SplitRule split;        // then it is cut into pieces
    Strings tokens;         // the bytes of each token, by id
    int32_t byte_id[256];   // -1: the vocabulary lacks the byte
    Merge *merges;          // [n_merge_slots] hash table by (left, right)
    size_t n_merge_slots;
    int64_t n_merges;
    Merge *list; // [n_merges] in order of rank
};

/* Local. Takes ownership of the tokens. */
Tokenizer *tokenizer_make(const char *format, Strings tokens);
/* Local. Appends a merge, with the next rank. False when the pair has a merge already, or when the
 * merged bytes are no token. */
bool tokenizer_add_merge(Tokenizer *t, int32_t left, int32_t right, Err *e);
/* Local. tokenizer_choose_eot finds the end-of-text token by its name. tokenizer_check_bytes checks
 * that every byte is a token, which encoding needs. */
void tokenizer_choose_eot(Tokenizer *t);
bool tokenizer_check_bytes(const Tokenizer *t, Err *e);

static inline size_t merge_slot(int32_t left, int32_t right, size_t n_slots) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    return (size_t)((key * 0x9E3779B97F4A7C15u) >> 20) & (n_slots - 1);
}

/* Local. The merge of this pair, or NULL. */
static inline const Merge *tokenizer_merge(const Tokenizer *t, int32_t left, int32_t right) {
    for (size_t i = merge_slot(left, right, t->n_merge_slots);;
         i = (i + 1) & (t->n_merge_slots - 1)) {
        const Merge *m = &t->merges[i];
        if (m->id < 0) return NULL;
        if (m->left == left && m->right == right) return m;
    }
}

/* Local. The character of a byte. GPT-2 writes bytes as printable characters: printable ASCII and
 * Latin-1 as themselves, the 68 others, in order, as U+0100 and up. */
uint32_t byte_to_char(uint8_t byte);
/* Local. The bytes in the order of their ids in GPT-2's vocabulary. */
void gpt2_byte_order(uint8_t order[256]);
/* Local. Converts a string of such characters (n bytes of UTF-8) to bytes. out has room for n
 * bytes; returns the number written, or -1 when a character stands for no byte. */
int64_t bytes_of_chars(const char *s, size_t n, uint8_t *out);
/* Local. Encodes one piece of n < 2^32 bytes: with ignore_merges as the token of these bytes, if
 * there is one; else merges the pair of lowest rank, the leftmost of equal
 * ranks, until no pair can be merged. Writes at most n ids and returns their number. */
size_t merge_piece(const Tokenizer *t, const uint8_t *p, size_t n, int32_t *ids);

#endif
