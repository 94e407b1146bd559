#include "base/group.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

const Group group_alone = {.size = 1};

void group_barrier(const Group *g) {
    if (g->size > 1) g->barrier(g->ctx);
}

void group_all_gather(const Group *g, const void *mine, size_t n_bytes, void *all) {
    if (g->size > 1)
        g->all_gather(g->ctx, mine, n_bytes, all);
    else
        memcpy(all, mine, n_bytes);
}

bool group_all(const Group *g, bool ok) {
    unsigned char mine = ok, *all = mem_alloc((size_t)g->size);
    bool yes = true;
    group_all_gather(g, &mine, 1, all);
    for (int i = 0; i < g->size; i++) yes &= all[i];
    mem_free(all);
    return yes;
}

bool group_agree(const Group *g, bool ok, Err *e) {
    if (group_all(g, ok)) return true;
    struct {
        bool ok;
        DieRank name;
        char why[sizeof e->text];
    } mine = {.ok = ok, .name = die_rank()}, *all = mem_calloc((size_t)g->size, sizeof *all);
    if (!mine.name.text[0]) snprintf(mine.name.text, sizeof mine.name.text, "rank %d: ", g->rank);
    if (!ok && e) memcpy(mine.why, e->text, sizeof mine.why);
    group_all_gather(g, &mine, sizeof mine, all);
    int first = 0;
    while (all[first].ok) first++;
    if (ok) err(e, "%s%s", all[first].name.text, all[first].why);
    mem_free(all);
    return false;
}

void group_broadcast(const Group *g, void *p, size_t n_bytes) {
    char *all = mem_alloc((size_t)g->size * n_bytes);
    group_all_gather(g, p, n_bytes, all);
    memcpy(p, all, n_bytes);
    mem_free(all);
}

char *group_broadcast_text(const Group *g, const char *text) {
    // this rank's; group_broadcast replaces it by that of rank 0
    size_t n = text ? strlen(text) + 1 : 0;
    group_broadcast(g, &n, sizeof n);
    if (n == 0) return NULL;
    char *copy = mem_calloc(n, 1);
    if (g->rank == 0) memcpy(copy, text, n);
    group_broadcast(g, copy, n);
    return copy;
}

double group_sum(const Group *g, double x) {
    double *all = mem_alloc((size_t)g->size * sizeof *all), sum = 0;
    group_all_gather(g, &x, sizeof x, all);
    for (int i = 0; i < g->size; i++) sum += all[i];
    mem_free(all);
    return sum;
}

double group_min(const Group *g, double x, int *rank) {
    double *all = mem_alloc((size_t)g->size * sizeof *all);
    int least = 0;
    group_all_gather(g, &x, sizeof x, all);
    for (int i = 1; i < g->size; i++) least = all[i] < all[least] ? i : least;
    x = all[least];
    mem_free(all);
    if (rank) *rank = least;
    return x;
}

double group_max(const Group *g, double x) {
    return -group_min(g, -x, NULL);
}
