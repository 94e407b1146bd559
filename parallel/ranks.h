/* ranks -- starts the ranks of a job: one, threads of this process, or processes of a launcher.
 *
 *   train_gpt ...                     one rank (self)
 *   train_gpt --ranks 4 ...           four ranks as threads of this process
 *   mpirun -n 4 train_gpt ...         four processes (mpirun, mpiexec, srun --mpi=pmix or pmi2)
 *
 * A launcher is seen by the variables it sets; MPI is not touched without one.
 */
#ifndef PARALLEL_RANKS_H
#define PARALLEL_RANKS_H

#include "parallel/coll.h"

/* Local. Runs main(world, ctx) on every rank of this process and returns when all have returned; the
 * first non-zero result is returned. n: ranks wanted, 0 for what the launcher says or 1; dies (usage)
 * when a launcher says otherwise. */
int ranks_run(int n, int (*rank_main)(World *w, void *ctx), void *ctx);
/* Local. Seconds that processes of a launcher may take to find each other (60; 0: as long as it takes), before
 * ranks_run. */
void ranks_set_start_limit(double seconds);
/* Local. Is there a launcher, and how many ranks does it say? 0: none, or it does not say. */
int ranks_launched(void);
/* Local. Wrong command lines are reported by the first process alone; for main() to call before it reads
 * its options. */
void ranks_share_usage(void);
/* Local. Threads for the team of this rank: its share of the cores that this process may use, at least 1. */
int ranks_threads(const World *w);
/* Collective over the world. Ranks on this node, this one counted; the cores that they may use together (before
 * their teams are pinned). */
int ranks_on_node(World *w);
/* Collective over the world. Ranks of this node before this one. */
int ranks_before(World *w);
int ranks_cores(World *w);
/* Local. For ranks other than 0 that know that rank 0 is about to end the job with its line: waits for that. */
_Noreturn void ranks_follow(const World *w);

#endif
