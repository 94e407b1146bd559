/* ranks -- starts the ranks of a job: one, threads of this process, or processes of a launcher.
 *
 *   train_gpt ...                     one rank (self)
 *   train_gpt --ranks 4 ...           four ranks as threads of this process
 *   mpirun -n 4 train_gpt ...         four processes (mpirun, mpiexec, srun --mpi=pmix or pmi2)
 *
 * A launcher is recognized by the environment variables it sets. Without one MPI is not
 * initialized.
 */
#ifndef PARALLEL_COMM_RANKS_H
#define PARALLEL_COMM_RANKS_H

#include "parallel/comm/coll.h"

/* Local. Runs rank_main(world, ctx) on every rank of this process. Returns when all have returned,
 * with the first non-zero result. n: number of ranks; 0: as the launcher says, else 1. Dies (usage)
 * if the launcher started another number. */
int ranks_run(int n, int (*rank_main)(World *w, void *ctx), void *ctx);
/* Local, before ranks_run. Seconds that the start of a launcher's processes may take (60; 0: no
 * limit). */
void ranks_set_start_limit(double seconds);
/* Local. Has a launcher started this process? */
bool ranks_under_launcher(void);
/* Local. Number of ranks that the launcher says; 0: no launcher, or unknown. */
int ranks_launched(void);
/* Local. The MPI library that this program was built with: "Open MPI v4.1.4", or "none...". */
void ranks_mpi_version(char *text, size_t n);
/* Local, before main() reads its options. Only the first process reports a wrong command line. */
void ranks_share_usage(void);
/* Collective over the world. Size of this rank's team: its share of the cores that it may use, and
 * other ranks too; at least 1. quota: cores whose time the ranks of this node get together, or 0 */
int ranks_threads(World *w, int quota);
/* Collective over the world. Number of ranks on this node, with this one. */
int ranks_on_node(World *w);
/* Collective over the world. Number of ranks that may use the very cores of this one, with it. */
int ranks_alike(World *w);
/* Collective over the world. Ranks of this node with smaller numbers. */
int ranks_before(World *w);
/* Collective over the world. Cores that the ranks of this node may use together, before their teams
 * are pinned. */
int ranks_cores(World *w);
/* Local. For ranks other than 0: waits for rank 0 to end the job with its message. */
_Noreturn void ranks_follow(const World *w);

#endif
