#include "parallel/step/audit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/mem.h"
#include "base/rng.h"
#include "parallel/step/mirror.h"

/* Checksum of one rectangle of a tensor, as one rank stores it. */
typedef struct Entry {
    int32_t tensor, kind, rank;
    uint32_t checksum; // of the values
    uint64_t elements; // hash of the indices of the logical elements: replicas have the same hash
} Entry;

typedef enum { WEIGHTS, MOMENTS_M, MOMENTS_V, ANCHOR, VELOCITY, N_KINDS } Kind;

typedef struct Audit {
    const Model *m;
    const TensorTable *host; // weights and moments of m in host memory
    int *first;              // [tensors] index of a tensor's first entry
    Entry *entries;          // of this rank: for each tensor N_KINDS x its rectangles
} Audit;

/* For team_for: computes all entries of tensor i / N_KINDS and kind i % N_KINDS. */
static void compute_checksums(void *ctx, int64_t begin, int64_t end) {
    const Audit *a = ctx;
    for (int64_t i = begin; i < end; i++) {
        const Tensor *t = &a->host->t[i / N_KINDS];
        int kind = (int)(i % N_KINDS);
        const float *anchor = a->m->anchor;
        if (anchor) anchor += t->param - a->host->t[0].param;
        const float *values[N_KINDS] = {t->param, t->m, t->v, anchor, t->velocity};
        // Replicas that take local steps share the anchor and its velocity only.
        bool of_replica = a->m->grid->local_steps && kind <= MOMENTS_V;
        Entry *e = a->entries + a->first[i / N_KINDS] + kind * t->n_rects;
        for (int k = 0; k < t->n_rects; k++)
            e[k] = (Entry){.tensor = (int32_t)(i / N_KINDS),
                           .kind = kind,
                           .rank = a->m->grid->mesh.rank,
                           .elements = of_replica ? (uint64_t)a->m->grid->mesh.coord[AXIS_D] : 0};
        TensorRun r;
        bool moments = kind == MOMENTS_M || kind == MOMENTS_V;
        for (TensorRuns it = tensor_runs(t, moments ? PART_MOMENTS : PART_PARAM, false);
             values[kind] && tensor_next(&it, &r);) {
            Entry *x = &e[it.rect];
            x->elements = rng_u64(x->elements, (uint64_t)(r.row * t->cols + r.col), (uint64_t)r.n);
            x->checksum = crc32c(x->checksum, values[kind] + r.offset, (size_t)r.n * sizeof(float));
        }
    }
}

/* For qsort: replicas of the same elements stand next to each other, in the order of ranks. */
static int by_elements(const void *a, const void *b) {
    const Entry *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor - y->tensor;
    if (x->kind != y->kind) return x->kind - y->kind;
    if (x->elements != y->elements) return x->elements < y->elements ? -1 : 1;
    return x->rank - y->rank;
}

static bool same_elements(const Entry *a, const Entry *b) {
    return a->tensor == b->tensor && a->kind == b->kind && a->elements == b->elements;
}

/* The most frequent checksum of n replicas. On a tie: that of the lowest rank. */
static uint32_t most_common(const Entry *e, int n) {
    int best = 0, votes = 0;
    for (int i = 0; i < n; i++) {
        int same = 0;
        for (int k = 0; k < n; k++) same += e[k].checksum == e[i].checksum;
        if (same > votes) best = i, votes = same;
    }
    return e[best].checksum;
}

/* Writes a list like "2, 5": the ranks whose checksum equals `checksum`, or with equal == false
 * those whose checksum differs. */
static void list_ranks(const Entry *e, int n, uint32_t checksum, bool equal, char *text,
                       size_t size) {
    text[0] = 0;
    for (int i = 0; i < n; i++) {
        size_t at = strlen(text);
        if ((e[i].checksum == checksum) == equal)
            snprintf(text + at, size - at, "%s%d", at ? ", " : "", e[i].rank);
    }
}

/* Compares the replicas of each rectangle. Entries are sorted by by_elements. */
static bool compare(const Model *m, const Entry *e, int n, Err *why) {
    static const char *const names[N_KINDS] = {"weights of", "first moments of",
                                               "second moments of", "anchor of", "velocity of"};
    for (int i = 0, next; i < n; i = next) {
        bool differ = false;
        for (next = i; next < n && same_elements(&e[i], &e[next]); next++)
            differ |= e[next].checksum != e[i].checksum;
        if (!differ) continue;
        char odd[160], rest[160];
        uint32_t checksum = most_common(e + i, next - i);
        list_ranks(e + i, next - i, checksum, false, odd, sizeof odd);
        list_ranks(e + i, next - i, checksum, true, rest, sizeof rest);
        return err(why, "%s %s differ between replicas: rank %s from rank %s", names[e[i].kind],
                   m->tensors.t[e[i].tensor].name, odd, rest);
    }
    return true;
}

bool audit_replicas(Model *m, Err *e) {
    Group g = comm_group(m->grid->all);
    if (g.size == 1) return true; // no replicas
    int n_tensors = m->tensors.n, mine = 0, most = 0;
    int *first = mem_calloc((size_t)n_tensors, sizeof *first),
        *counts = mem_calloc((size_t)g.size, sizeof *counts);
    for (int i = 0; i < n_tensors; i++) first[i] = mine, mine += N_KINDS * m->tensors.t[i].n_rects;
    group_all_gather(&g, &mine, sizeof mine, counts);
    for (int i = 0; i < g.size; i++) most = counts[i] > most ? counts[i] : most;
    Audit a = {m, model_pull(m), first, mem_calloc((size_t)most, sizeof(Entry))};
    team_for(m->team, (int64_t)n_tensors * N_KINDS, 1, compute_checksums, &a);
    Entry *all = mem_calloc((size_t)most * (size_t)g.size, sizeof *all);
    group_all_gather(&g, a.entries, (size_t)most * sizeof *all, all);
    int n = 0;
    // Ranks with padding have fewer rectangles: close the gaps behind their entries.
    for (int r = 0; r < g.size; r++)
        for (int i = 0; i < counts[r]; i++) all[n++] = all[(int64_t)r * most + i];
    qsort(all, (size_t)n, sizeof *all, by_elements);
    bool agree = compare(m, all, n, e);
    mem_free(all), mem_free(a.entries), mem_free(first), mem_free(counts);
    return agree;
}
