/* team -- the threads of one rank.
 *
 * team_run is a fork and a join; the calling thread is member 0. Between runs the others spin
 * briefly and then sleep, so that a rank that waits for other ranks leaves them the cores. There is
 * one Team per rank.
 *
 * Rule for every kernel: threads divide the output, never a sum. What must be summed over a divided
 * dimension is summed per fixed panel and the panel sums are added in order, so that results do not
 * depend on team_size.
 */
#ifndef BASE_TEAM_H
#define BASE_TEAM_H

#include <pthread.h>
#include <stdint.h>

typedef struct Team Team;

/* Local. n_threads >= 1; 0 means one per core that this process may use. Dies when threads cannot
 * be made. A team with as many members as the process may use cores pins each member to a core of
 * its own, the caller to the first one, until team_destroy. Otherwise the system places threads. */
Team *team_create(int n_threads);
void team_destroy(Team *t);
int team_size(const Team *t); // 1 for NULL
/* Local. Unpins the caller: it, and threads that it starts from now on, may use all cores of the
 * team again. For a rank that computes on a device, whose libraries start threads that poll. */
void team_unpin_caller(const Team *t);
/* Local. Cores that the calling thread may use. */
int team_cores(void);
/* Local. Pins the calling thread, and all threads that it starts from now on, to part number `part`
 * of its cores, divided into `parts` equal parts; does nothing where they do not divide. A team as
 * large as the part then pins each member to a core of its own. */
void team_pin_to_part(int part, int parts);

/* What ends a message about a thread that cannot start. */
#define TEAM_MORE_THREADS "raise the limit of processes or of memory (ulimit, the container's)"
/* Local. pthread_create with a stack of 8 MiB: the default (`ulimit -s`, with musl 128 KiB) may be
 * less than kernels need. Returns an error number, or 0. */
int team_start_thread(pthread_t *thread, void *(*f)(void *), void *arg);

/* Local to the rank. Calls f(ctx, member, size) once on every member and returns when all have
 * returned. */
typedef void (*TeamFn)(void *ctx, int member, int size);
void team_run(Team *t, TeamFn f, void *ctx);

/* Local to the rank. Calls f(ctx, begin, end) for consecutive pieces that cover [0, n). The pieces
 * are handed out as members become free; `grain` items per piece (>= 1). Runs inline when one piece
 * covers all or t has one member. */
typedef void (*TeamForFn)(void *ctx, int64_t begin, int64_t end);
void team_for(Team *t, int64_t n, int64_t grain, TeamForFn f, void *ctx);

/* Local. Sets a function that must be called regularly while the team computes, for example to
 * advance messages in flight. While *wanted is not 0, member 0 calls f(ctx) between pieces of work,
 * about every half millisecond. Holds until team_destroy; f must not run work on the team. */
void team_set_poll(Team *t, const int *wanted, void (*f)(void *ctx), void *ctx);
/* Local, for member 0: calls the function of team_set_poll when it is due. team_for does this
 * between pieces; long loops under team_run must call team_poll. Does nothing for NULL, which other
 * members pass in the place of the team. */
void team_poll(Team *t);

/* Local, between two team_run. How to divide work among members before it starts: member i takes
 * the part from share[i] to share[i + 1], with share[0] = 0 and share[size] = 1. Faster members get
 * more: cores may be of two kinds, or another program may use one. Valid until the next call. */
const double *team_shares(Team *t);
/* Local, by a member in team_run: says that its share was `work`, in a unit that all members use,
 * and took `seconds`. */
void team_report(Team *t, int member, double work, double seconds);

/* Collective over the members of a running team_run: returns when all have called it. */
void team_barrier(Team *t);

#endif
