/* tokenizer_parts -- what the files of the tokenizer share: how a Tokenizer lies in memory. */
#ifndef DATA_TOKENIZER_PARTS_H
#define DATA_TOKENIZER_PARTS_H

#include "data/strings.h"
#include "data/tokenizer.h"

/* The least first: by `first`, then by `second`. */
typedef struct HeapItem {
    uint64_t first, second;
} HeapItem;
typedef struct Heap {
    HeapItem *p;
    size_t n, cap;
} Heap;

void heap_push(Heap *h, HeapItem x);
HeapItem heap_pop(Heap *h);

/* One merge: ids `left` and `right`, side by side, become `id`. Free slots of the table have id -1.
 */
typedef struct Merge {
    int32_t left, right;
    uint32_t rank;
    int32_t id;
} Merge;

struct Tokenizer {
    const char *format;
    int32_t eot;
    bool can_encode, use_pieces, add_prefix_space; // use_pieces: presplit first
    Strings tokens;                                // by id
    int32_t byte_id[256];                          // -1: the vocabulary lacks the byte
    Merge *merges;                                 // [n_merge_slots] hash table by (left, right)
    size_t n_merge_slots;
    int64_t n_merges;
    Merge *list; // [n_merges] in order of rank
};

/* Local. Takes over the tokens. */
Tokenizer *tokenizer_make(const char *format, Strings tokens);
/* Local. Appends the merge of the next rank. false when a pair comes twice or its product is no
 * token. */
bool tokenizer_add_merge(Tokenizer *t, int32_t left, int32_t right, Err *e);
/* Local. Chooses eot by name, and checks what encoding needs: every byte is a token. */
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

/* GPT-2 writes bytes as printable characters: printable ASCII and Latin-1 as themselves, the 68
 * others, in order, as U+0100 and up. Local. The character of a byte. */
uint32_t byte_to_char(uint8_t byte);
/* Local. GPT-2's order of the bytes: the id of a byte in its vocabulary is its place here. */
void gpt2_byte_order(uint8_t order[256]);
/* Local. Writes the bytes of a string of n bytes of such characters (UTF-8) to out, which has room
 * for n, and returns their number; -1 when a character is none of the 256. */
int64_t bytes_of_chars(const char *s, size_t n, uint8_t *out);
/* Local. The bytes of one piece to ids, by merging the pair of lowest rank until none is left; of
 * equal ranks the leftmost is merged first. Writes at most n ids and returns their number.
 * n < 2^32. */
size_t merge_piece(const Tokenizer *t, const uint8_t *p, size_t n, int32_t *ids);

#endif
