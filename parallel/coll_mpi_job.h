/* coll_mpi_job -- one process of an MPI job: how it starts, sleeps, hears of the end, and ends all others.
 * For coll_mpi.c alone.
 */
#ifndef PARALLEL_COLL_MPI_JOB_H
#define PARALLEL_COLL_MPI_JOB_H

#include <stdbool.h>
#include <stdint.h>

/* Collective over the world. Starts MPI; dies where the launcher, which says that this is *rank, and this MPI do not
 * know each other. From here on die() ends all ranks, and SIGTERM waits for mpi_job_deliver. The start is watched for
 * so many seconds until mpi_job_watched. */
void mpi_job_begin(int *rank, int *size, double limit);
/* Collective over the world. */
void mpi_job_end(void);
/* Collective over the world. Threads for this rank: its cores, shared with those that may use the same ones. */
int mpi_job_threads(void);
/* Collective over the world. node[ranks] becomes equal for ranks that share memory. MESH_NODES=0,0,1,1 in the environment
 * says so instead, one number for each rank: to see on one machine what several nodes would do. */
void mpi_job_nodes(int *node);

/* Local. Between these two the thread waits for other ranks inside MPI. When that takes longer than so many seconds
 * (0: it may), a line begins with not_yet ("MPI has not started"), and the job ends with status COLL_EXPIRED. */
void mpi_job_watch(const char *not_yet, double seconds);
void mpi_job_watched(void);

/* Local. Sleeps for so many seconds, less than one. True when a SIGTERM has come, now or in an earlier nap. */
bool mpi_job_nap(double seconds);
/* Local. A SIGTERM that has come has its effect: the program's handler runs, or the process ends. */
void mpi_job_deliver(void);
/* Local. Dies with MPI's own words where a call of this name has failed. */
void mpi_job_check(int rc, const char *function);
/* Local. Has another rank called die()? It has told why. */
bool mpi_job_is_dying(void);

static inline int64_t mpi_job_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

#endif
