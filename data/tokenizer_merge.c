#include "data/tokenizer_parts.h"

#include <string.h>

#include "base/mem.h"

enum { SHORT = 48 }; // bytes up to which looking at every pair is faster than a heap

/* All pairs are looked at for every merge: O(n^2), and nothing is allocated. */
static size_t merge_short(const Tokenizer *t, const uint8_t *p, size_t n, int32_t *ids) {
    const Merge *pair[SHORT]; // of ids[i] and ids[i + 1]
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

/* The rest: tokens in a doubly linked list, pairs in a heap by (rank, place). A pair that is gone
 * stays in the heap until it comes up; it is known by its rank, which is no longer the rank of the
 * pair at its place. */
typedef struct Node {
    int32_t id;                   // -1: merged into the one before
    uint32_t before, after, rank; // places; rank of the pair (this, after)
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

/* Looks up the pair that begins at place i and puts it on the heap if it can be merged. */
static void offer(const Tokenizer *t, Node *nodes, uint32_t i, Heap *h) {
    Node *a = &nodes[i];
    a->rank = NO_RANK;
    if (a->after == NOWHERE) return;
    const Merge *m = tokenizer_merge(t, a->id, nodes[a->after].id);
    if (!m) return;
    a->rank = m->rank;
    heap_push(h, (HeapItem){m->rank, i});
}

static void merge_at(const Tokenizer *t, Node *nodes, uint32_t i, Heap *h) {
    Node *a = &nodes[i], *b = &nodes[a->after];
    a->id = t->list[a->rank].id;
    a->after = b->after;
    b->id = -1;
    b->rank = NO_RANK;
    if (a->after != NOWHERE) nodes[a->after].before = i;
    offer(t, nodes, i, h);
    if (a->before != NOWHERE) offer(t, nodes, a->before, h);
}

static size_t merge_long(const Tokenizer *t, const uint8_t *p, size_t n, int32_t *ids) {
    Node *nodes = mem_alloc(n * sizeof *nodes);
    Heap h = {0};
    for (size_t i = 0; i < n; i++)
        nodes[i] = (Node){t->byte_id[p[i]], i ? (uint32_t)i - 1 : NOWHERE,
                          i + 1 < n ? (uint32_t)i + 1 : NOWHERE, NO_RANK};
    for (size_t i = 0; i < n; i++) offer(t, nodes, (uint32_t)i, &h);
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
    if (n <= SHORT) return merge_short(t, p, n, ids);
    if (n >= NOWHERE)
        die("a piece of %zu bytes without a place to cut it is too long to encode", n);
    return merge_long(t, p, n, ids);
}
