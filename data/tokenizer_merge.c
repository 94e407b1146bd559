#include "data/tokenizer_parts.h"

#include <string.h>

#include "base/mem.h"

enum { SHORT = 48 }; // for pieces up to this many bytes merge_short is faster than merge_long

/* Searches all pairs for the lowest rank before every merge: O(n^2), but without allocation. */
static size_t merge_short(const Tokenizer *t, const uint8_t *p, size_t n, int32_t *ids) {
    const Merge *pair[SHORT]; // the merge of ids[i] and ids[i + 1]; NULL: none
    for (size_t i = 0; i < n; i++) ids[i] = t->byte_id[p[i]];
    for (size_t i = 0; i + 1 < n; i++) pair[i] = tokenizer_merge(t, ids[i], ids[i + 1]);
    while (n > 1) {
        uint32_t best = UINT32_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            if (pair[i] && pair[i]->rank < best) best = pair[i]->rank, at = i;
        if (best == UINT32_MAX) break;
        ids[at] = pair[at]->id;
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
        memmove(pair + at, pair + at + 1, (n - at) * sizeof(Merge *));
        if (at > 0) pair[at - 1] = tokenizer_merge(t, ids[at - 1], ids[at]);
        if (at + 1 < n) pair[at] = tokenizer_merge(t, ids[at], ids[at + 1]);
    }
    return n;
}

/* Longer pieces: the tokens form a doubly linked list, and the pairs that can be merged lie in a
 * heap by (rank, position). A pair that no longer exists stays in the heap until it is popped. It
 * is recognised by its rank, which differs from the rank of the present pair at its position. */
typedef struct Node {
    int32_t id;                   // -1: merged into the token before
    uint32_t before, after, rank; // positions of the neighbours; rank of the pair (this, after)
} Node;

#define NOWHERE UINT32_MAX
#define NO_RANK UINT32_MAX

static bool before(HeapItem a, HeapItem b) {
    return a.first != b.first ? a.first < b.first : a.second < b.second;
}

void heap_push(Heap *h, HeapItem x) {
    mem_grow(h->p, h->n, h->cap);
    size_t i = h->n++;
    for (; i > 0 && before(x, h->p[(i - 1) / 2]); i = (i - 1) / 2) h->p[i] = h->p[(i - 1) / 2];
    h->p[i] = x;
}

HeapItem heap_pop(Heap *h) {
    HeapItem top = h->p[0], x = h->p[--h->n];
    size_t i = 0;
    for (size_t c; (c = 2 * i + 1) < h->n; i = c) {
        if (c + 1 < h->n && before(h->p[c + 1], h->p[c])) c++;
        if (!before(h->p[c], x)) break;
        h->p[i] = h->p[c];
    }
    h->p[i] = x;
    return top;
}

/* Looks up the pair that begins at position i, and pushes it on the heap if it can be merged. */
static void push_pair(const Tokenizer *t, Node *nodes, uint32_t i, Heap *h) {
    Node *a = &nodes[i];
    a->rank = NO_RANK;
    if (a->after == NOWHERE) return;
    const Merge *m = tokenizer_merge(t, a->id, nodes[a->after].id);
    if (!m) return;
    a->rank = m->rank;
    heap_push(h, (HeapItem){m->rank, i});
}

/* Merges the pair at position i, and pushes the two new pairs around it. */
static void merge_at(const Tokenizer *t, Node *nodes, uint32_t i, Heap *h) {
    Node *a = &nodes[i], *b = &nodes[a->after];
    a->id = t->list[a->rank].id;
    a->after = b->after;
    b->id = -1;
    b->rank = NO_RANK;
    if (a->after != NOWHERE) nodes[a->after].before = i;
    push_pair(t, nodes, i, h);
    if (a->before != NOWHERE) push_pair(t, nodes, a->before, h);
}

static size_t merge_long(const Tokenizer *t, const uint8_t *p, size_t n, int32_t *ids) {
    Node *nodes = mem_alloc(n * sizeof *nodes);
    Heap h = {0};
    for (size_t i = 0; i < n; i++)
        nodes[i] = (Node){t->byte_id[p[i]], i ? (uint32_t)i - 1 : NOWHERE,
                          i + 1 < n ? (uint32_t)i + 1 : NOWHERE, NO_RANK};
    for (size_t i = 0; i < n; i++) push_pair(t, nodes, (uint32_t)i, &h);
    while (h.n) {
        HeapItem top = heap_pop(&h);
        if (nodes[top.second].rank == top.first) merge_at(t, nodes, (uint32_t)top.second, &h);
    }
    size_t count = 0;
    for (uint32_t i = 0; i != NOWHERE; i = nodes[i].after) ids[count++] = nodes[i].id;
    mem_free(nodes);
    mem_free(h.p);
    return count;
}

size_t merge_piece(const Tokenizer *t, const uint8_t *p, size_t n, int32_t *ids) {
    if (t->ignore_merges && (*ids = tokenizer_find(t, p, n)) >= 0) return 1;
    if (n <= SHORT) return merge_short(t, p, n, ids);
    if (n >= NOWHERE) die("the text has a word of %zu bytes, which is too long to encode", n);
    return merge_long(t, p, n, ids);
}
