/* coll_threads -- the gates of ranks that are threads, for calls on memory that coll_threads.c does not reach itself. */
#ifndef PARALLEL_COLL_THREADS_H
#define PARALLEL_COLL_THREADS_H

#include "parallel/coll_backend.h"

/* Local. Shows this rank's call to its group, with a note that lives as long as the call. */
void threads_publish(Comm *c, uint64_t number, const CollCall *call, void *note);
/* Collective. Returns when all have published theirs; dies of old age (world_set_limit). */
void threads_all_here(Comm *c, uint64_t number, const CollCall *call);
/* Local, after it: the call of a rank of the group, and its note. */
const CollCall *threads_call(const Comm *c, int rank, uint64_t number, void **note);
/* Collective. Returns when all have come here, too. */
void threads_all_done(Comm *c, uint64_t number, const CollCall *call);

#endif
