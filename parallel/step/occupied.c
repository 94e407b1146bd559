#include "parallel/step/occupied.h"

#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

typedef struct Range {
    int64_t from, to;
} Range;

/* In order, apart from each other. */
typedef struct Ranges {
    Range *range;
    int n, room;
} Ranges;

typedef struct Node {
    Ranges whole; // in use all the time of the node, and not so for its parent
    Ranges some;  // at some of it
} Node;

struct Occupied {
    Node *node; // [1]: the root; children of i: 2 i, 2 i + 1
    int n, n_nodes;
};

/* From time `begin` to time `end`. */
typedef struct Times {
    int begin, end;
} Times;

Occupied *occupied_make(int n) {
    Occupied *o = mem_calloc(1, sizeof *o);
    o->n = n, o->n_nodes = 2;
    while (o->n_nodes < 2 * n) o->n_nodes *= 2;
    o->node = mem_calloc((size_t)o->n_nodes, sizeof *o->node);
    return o;
}

void occupied_free(Occupied *o) {
    for (int i = 0; o && i < o->n_nodes; i++)
        mem_free(o->node[i].whole.range), mem_free(o->node[i].some.range);
    if (o) mem_free(o->node);
    mem_free(o);
}

/* The first range that ends behind a byte. */
static int range_behind(const Ranges *r, int64_t at) {
    int low = 0, high = r->n;
    while (low < high) {
        int mid = (low + high) / 2;
        if (r->range[mid].to > at)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* Ranges that touch become one. */
static void add_range(Ranges *r, Range x) {
    int i = range_behind(r, x.from - 1), end = i;
    for (; end < r->n && r->range[end].from <= x.to; end++) {
        if (r->range[end].from < x.from) x.from = r->range[end].from;
        if (r->range[end].to > x.to) x.to = r->range[end].to;
    }
    if (r->n == r->room && end == i) {
        r->room = 2 * r->room + 1;
        r->range = mem_realloc(r->range, (size_t)r->room, sizeof *r->range);
    }
    memmove(r->range + i + 1, r->range + end, (size_t)(r->n - end) * sizeof *r->range);
    r->range[i] = x;
    r->n += 1 - (end - i);
}

/* The lowest place from `at` on. */
static int64_t between(const Ranges *r, int64_t at, int64_t bytes) {
    for (int i = range_behind(r, at); i < r->n && r->range[i].from < at + bytes; i++)
        at = r->range[i].to;
    return at;
}

static bool apart(Times a, Times b) {
    return a.end < b.begin || a.begin > b.end;
}
static bool covers(Times a, Times b) {
    return a.begin <= b.begin && a.end >= b.end;
}
static Times half(Times t, int which) {
    int mid = t.begin + (t.end - t.begin) / 2;
    return which ? (Times){mid + 1, t.end} : (Times){t.begin, mid};
}

static void add(Occupied *o, int node, Times of, Times t, Range x) {
    if (apart(of, t)) return;
    add_range(&o->node[node].some, x);
    if (covers(t, of)) {
        add_range(&o->node[node].whole, x);
        return;
    }
    for (int i = 0; i < 2; i++) add(o, 2 * node + i, half(of, i), t, x);
}

void occupied_add(Occupied *o, int begin, int end, int64_t from, int64_t to) {
    add(o, 1, (Times){0, o->n - 1}, (Times){begin, end}, (Range){from, to});
}

/* From `at` on, what no node has: another one, seen before, may have it. */
static int64_t lift(const Occupied *o, int node, Times of, Times t, int64_t at, int64_t bytes) {
    if (apart(of, t)) return at;
    if (covers(t, of)) return between(&o->node[node].some, at, bytes);
    at = between(&o->node[node].whole, at, bytes);
    for (int i = 0; i < 2; i++) at = lift(o, 2 * node + i, half(of, i), t, at, bytes);
    return at;
}

int64_t occupied_lowest(const Occupied *o, int begin, int end, int64_t bytes) {
    int64_t at = -1, next = 0;
    while (next > at)
        at = next, next = lift(o, 1, (Times){0, o->n - 1}, (Times){begin, end}, at, bytes);
    return at;
}
