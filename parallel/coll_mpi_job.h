/* coll_mpi_job -- one process of an MPI job: how it starts, sleeps, hears of the end, and ends all others.
 * For coll_mpi.c alone.
 */
#ifndef PARALLEL_COLL_MPI_JOB_H
#define PARALLEL_COLL_MPI_JOB_H

#include <stdbool.h>

/* Collective over the world. Starts MPI; dies where the launcher, which says that this is *rank, and this MPI do not
 * know each other. From here on die() ends all ranks, and SIGTERM waits for mpi_job_deliver. The start is watched for
 * so many seconds until mpi_job_watched. */
void mpi_job_begin(int *rank, int *size, double limit);
/* Collective over the world. */
void mpi_job_end(void);
/* Collective over the world. Threads for this rank: its cores, shared with those that may use the same ones. */
int mpi_job_threads(void);

/* Local. Between these two the thread waits for other ranks inside MPI. When that takes longer than so many seconds
 * (0: it may), a line begins with not_yet ("MPI has not started"), and the job ends with status COLL_EXPIRED. */
void mpi_job_watch(const char *not_yet, double seconds);
void mpi_job_watched(void);

/* Local. Sleeps for a quarter of the seconds waited until now, 5 to 100 us: a test comes late by that share.
 * True when a SIGTERM has come, now or in an earlier nap. */
bool mpi_job_nap(double waited);
/* Local. A SIGTERM that has come has its effect: the program's handler runs, or the process ends. */
void mpi_job_deliver(void);
/* Local. Has another rank called die()? It has told why. */
bool mpi_job_is_dying(void);

#endif
