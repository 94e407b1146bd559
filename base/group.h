/* group -- minimal view of the ranks of a job (rank, size, barrier, all-gather) for code outside
 * parallel/, such as files that all ranks write together (data/checkpoint.h). parallel/comm/coll.h
 * makes one of a Comm; group_alone is that of one rank.
 */
#ifndef BASE_GROUP_H
#define BASE_GROUP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/die.h"

typedef struct Group {
    int rank, size;
    void *ctx;
    void (*barrier)(void *ctx); // NULL when size is 1
    void (*all_gather)(void *ctx, const void *mine, size_t n_bytes,
                       void *all); // all: size * n_bytes, by rank
} Group;

extern const Group group_alone;
/* Collective. Waits for all. */
void group_barrier(const Group *g);
/* Collective. n_bytes of every rank, by rank. */
void group_all_gather(const Group *g, const void *mine, size_t n_bytes, void *all);
/* Collective. True when ok is true on every rank. */
bool group_all(const Group *g, bool ok);
/* Collective. group_all that tells why: where this rank's part went well and another's did not, e
 * names that rank as die() does ("rank 3 on node7: ") and gives its reason, and die("%s", e->text)
 * names no other; a rank that failed keeps its own. */
bool group_agree(const Group *g, bool ok, Err *e);
/* Collective. Sum over the ranks, in their order. */
double group_sum(const Group *g, double x);
/* Collective. The least over the ranks; *whose, unless NULL: the first rank that has it. */
double group_least(const Group *g, double x, int *whose);
/* Collective. n_bytes of rank 0 to everyone. */
void group_share(const Group *g, void *p, size_t n_bytes);
/* Collective. A string of rank 0, or NULL when it has none; freed by mem_free. */
char *group_share_text(const Group *g, const char *text);

#endif
