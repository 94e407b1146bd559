/* coll_mpi_job -- one process of an MPI job: start, sleep, signals, and the end of all ranks.
 * Internal to coll_mpi.c.
 */
#ifndef PARALLEL_COMM_COLL_MPI_JOB_H
#define PARALLEL_COMM_COLL_MPI_JOB_H

#include <stdbool.h>
#include <stdint.h>

/* Collective over the world. Starts MPI. *rank: in, the launcher's number of this process; out,
 * MPI's. Dies if the launcher does not match this MPI. From then on die() ends all ranks, and a
 * SIGTERM is held until mpi_job_deliver. The job ends if more than `limit` seconds pass until
 * mpi_job_watched. */
void mpi_job_begin(int *rank, int *size, double limit);
/* Collective over the world. */
void mpi_job_end(void);

/* Local. Brackets a call of MPI that waits for other ranks. If it takes more than `seconds` (0: no
 * limit), a line that begins with not_yet ("MPI has not started") is printed, and the job ends with
 * status COLL_EXPIRED. */
void mpi_job_watch(const char *not_yet, double seconds);
void mpi_job_watched(void);

/* Local. Sleeps for `seconds` < 1. True if a SIGTERM has arrived, now or in an earlier call. */
bool mpi_job_sleep(double seconds);
/* Local. Delivers a held SIGTERM: the program's handler runs, or the process ends. */
void mpi_job_deliver(void);
/* Local. Dies with MPI's error text if rc is an error; function: name of the call. */
void mpi_job_check(int rc, const char *function);
/* Local. Has another rank called die()? That rank has printed the reason. */
bool mpi_job_is_dying(void);

#endif
