/* turns -- two computations of one thread that take turns: each has a stack of its own and gives
 * way where it would only wait.
 *
 *     a   ====yield        ======yield         =====yield ...
 *     b           =====yield          ====yield         =====
 *
 * Nothing runs at the same time, so nothing needs a lock; who runs when depends on the calls alone,
 * never on the clock. Source: coroutines (Conway 1963), on the contexts of POSIX.1-2001.
 */
#ifndef BASE_TURNS_H
#define BASE_TURNS_H

typedef struct Turns Turns;

/* Local. Dies when there is no memory for a stack. */
Turns *turns_create(void);
void turns_free(Turns *t);
/* Local. Runs f(a) and f(b) to their ends on the calling thread; a begins. */
void turns_run(Turns *t, void (*f)(void *ctx), void *a, void *b);
/* Local. From inside f: the other goes on until it gives way or has ended. Nothing when it has
 * ended. */
void turns_yield(void *turns);

#endif
