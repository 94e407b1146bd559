/* team -- the threads of one rank.
 *
 * team_run is a fork and a join; the calling thread is member 0. Between runs the others spin
 * briefly and then sleep, so that a rank that waits for others does not steal their cores. There is
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

/* A team that has as many members as the process has cores ties each to its own, the caller to the
 * first, until team_destroy; a smaller or larger one is left to the system. */
/* Local. n_threads >= 1; 0 means one per core that this process may use. Dies when threads cannot
 * be made. */
Team *team_create(int n_threads);
void team_destroy(Team *t);
int team_size(const Team *t); // 1 for NULL
/* Local. The caller may use all cores of the team again, and so may threads that it starts from now
 * on: for a rank that computes on a device, whose libraries start threads that poll. */
void team_untie_caller(const Team *t);
/* Local. Cores that the calling thread may use. */
int team_cores(void);
/* Local. Ties the calling thread, and all that it starts from now on, to one of equal parts of its
 * cores, where they divide; a team as large as the part then ties each member to its own core. */
void team_confine(int part, int parts);

/* Local. pthread_create with a stack of 8 MiB: the default is what `ulimit -s` says, or with musl
 * 128 KiB, and may be less than kernels need. Returns an error number, or 0. */
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

/* Local. Something that wants a moment of the caller's processor now and then while the team
 * computes, such as messages under way: while *wanted is not 0, member 0 calls f(ctx) between
 * pieces of work, about every half millisecond. Until the team ends; f starts no work of the
 * team. */
void team_set_poll(Team *t, const int *wanted, void (*f)(void *ctx), void *ctx);
/* Local, of member 0 alone: polls between two pieces of work. team_for does this by itself; long
 * loops under team_run call it. Nothing for NULL, so that the other members may have that in
 * the place of the team. */
void team_poll(Team *t);

/* Local, between two team_run. How work that is shared out beforehand falls to members: those
 * before member i have share[i] of it, 0 to 1, for i <= size. By how fast members were: cores may
 * be of two kinds, or another program has one, too. Valid until the next call. */
const double *team_shares(Team *t);
/* Local, of a member in team_run. Its share was so much work, in a unit that all members use, and
 * took so long. */
void team_took(Team *t, int member, double work, double seconds);

/* Collective over the members of a running team_run: returns when all have called it. */
void team_barrier(Team *t);

#endif
