/* group -- minimal view of the ranks of a job (rank, size, barrier, all-gather) for code outside
 * parallel/, such as files that all ranks write together (data/checkpoint.h). comm_group of
 * parallel/comm/coll.h makes a Group of a Comm; group_alone is the group of a single rank.
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
/* Collective. Returns when all ranks have called it. */
void group_barrier(const Group *g);
/* Collective. all[size * n_bytes] = the n_bytes of every rank, by rank. */
void group_all_gather(const Group *g, const void *mine, size_t n_bytes, void *all);
/* Collective. True when ok is true on every rank. */
bool group_all(const Group *g, bool ok);
/* Collective. group_all with a reason. On a rank that succeeded while another failed, e gets the
 * name of the first failed rank, as die() writes it ("rank 3 on node7: "), and that rank's reason;
 * die("%s", e->text) then adds no second name. A rank that failed keeps its own e. */
bool group_agree(const Group *g, bool ok, Err *e);
/* Collective. Sum over the ranks, in their order. */
double group_sum(const Group *g, double x);
/* Collective. The least x over the ranks; *rank, unless rank is NULL, is the first rank that has
 * it. */
double group_min(const Group *g, double x, int *rank);
/* Collective. The greatest x over the ranks. */
double group_max(const Group *g, double x);
/* Collective. Broadcast: p[n_bytes] of rank 0 replaces that of all ranks. */
void group_broadcast(const Group *g, void *p, size_t n_bytes);
/* Collective. Broadcast: a copy of rank 0's string (mem_free), or NULL where rank 0 has NULL. */
char *group_broadcast_text(const Group *g, const char *text);

#endif
