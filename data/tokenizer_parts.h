/* tokenizer_parts -- what the files of the tokenizer share: how a Tokenizer lies in memory. */
#ifndef DATA_TOKENIZER_PARTS_H
#define DATA_TOKENIZER_PARTS_H

#include "data/tokenizer.h"

/* A growing array of bytes. */
typedef struct Bytes {
    uint8_t *p;
    size_t n, cap;
} Bytes;

void bytes_put(Bytes *b, const void *p, size_t n);

/* One merge: ids `left` and `right`, side by side, become `id`. Free slots of the table have id -1.
 */
typedef struct Merge {
    int32_t left, right;
    uint32_t rank;
    int32_t id;
} Merge;

struct Tokenizer {
    const char *format;
    int32_t vocab, eot;
    bool can_encode, use_pieces, add_prefix_space; // use_pieces: presplit first
    Bytes blob;                                    // the bytes of all tokens
    size_t *first;         // [vocab + 1] token i is blob[first[i]..first[i+1])
    int32_t *ids_of_bytes; // [n_slots] hash table by bytes, -1: free
    size_t n_slots;        // a power of two
    int32_t byte_id[256];  // -1: the vocabulary lacks the byte
    Merge *merges;         // [n_merge_slots] hash table by (left, right)
    size_t n_merge_slots;
    int64_t n_merges;
    Merge *list; // [n_merges] in order of rank
};

/* Local. Tokens come as n spans of blob in order of id; takes over blob and first (n + 1 entries).
 */
Tokenizer *tokenizer_make(const char *format, int32_t vocab, Bytes blob, size_t *first);
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
/* Local. Decodes a string of such characters (UTF-8) and appends its bytes; false when a character
 * is none of the 256. */
bool bytes_put_chars(Bytes *b, const char *s, size_t n);

#endif
