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
 * if the launcher started another number; but a single process may run n ranks as threads. */
int ranks_run(int n, int (*rank_main)(World *w, void *ctx), void *ctx);
/* Local, before ranks_run and the functions below. n ranks are going to run: several ranks of a
 * launcher's only process are threads, as if there were no launcher (a shell that srun started). */
void ranks_choose(int n);
/* Local, before ranks_run. Seconds that the start of a launcher's processes may take (60; 0: no
 * limit). */
void ranks_set_start_limit(double seconds);
/* Local. Has a launcher started this process? */
bool ranks_under_launcher(void);
/* Local. Number of ranks according to the launcher; 0: no launcher, or the launcher does not
 * say. */
int ranks_launched(void);
/* Local. Name of the environment variable that says that a launcher started this process. */
const char *ranks_launcher_variable(void);
/* Local. Writes the MPI library that this program was built with: "Open MPI v4.1.4", or
 * "none...". */
void ranks_mpi_version(char *text, size_t n);
/* Local, before main() reads its options. From then on only the first process reports a wrong
 * command line. */
void ranks_share_usage(void);
/* Collective over the world. [world_size] the number of each rank's node, fresh (mem_free); nodes
 * are numbered in the order of their first ranks. Ranks are on one node if their hosts have one
 * name and one boot id (a new one at each start of the kernel). So hosts that are all called
 * "localhost" are told apart; containers of one host count as nodes if they have names of their
 * own. */
int *ranks_nodes(World *w);
/* How one rank shares its node with other ranks. */
typedef struct NodeShare {
    int local_size; // ranks on this node
    int local_rank; // index of this rank among them
    int cores;      // cores that all ranks of the node together may use
    int sharing;    // ranks on this node that may use the same cores as this rank, itself included
} NodeShare;
/* Collective over the world, before teams are made: a team may pin the thread that makes it to one
 * core, and `cores` and `sharing` would then count that core only. */
NodeShare ranks_on_node(World *w);
/* Local, before the team is made. Threads of this rank's team, at least 1: its share of the cores
 * that it and `sharing` - 1 other ranks may use. quota: cores whose time a limit grants to all
 * ranks of this node together; 0: no limit. */
int ranks_threads(const NodeShare *s, int quota);
/* Local. For ranks other than 0: waits for rank 0 to end the job with its message. */
_Noreturn void ranks_follow(const World *w);

#endif
