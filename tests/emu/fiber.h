/* fiber -- computations with a stack of their own that one thread runs in turns.
 *
 * A change saves the registers that a call preserves, takes the other stack, and loads them back:
 * ten to twenty nanoseconds. fiber_x86_64.c and fiber_aarch64.c do it in assembly; fiber_any.c uses
 * POSIX contexts, which ask the system each time and take twenty times as long.
 */
#ifndef TESTS_EMU_FIBER_H
#define TESTS_EMU_FIBER_H

#include <stdbool.h>
#include <stddef.h>

#include "tests/emu/sanitize.h"

typedef struct Fiber {
    void *sp;     // where its registers lie while it does not run
    char *memory; // its stack, behind a page that nobody may touch; NULL: the thread's own
    StackNote note;
} Fiber;

/* Local. A stack; dies without memory. */
void fiber_open(Fiber *f);
void fiber_close(Fiber *f);
/* Local. The next change to f calls main(), which never returns: it ends with fiber_change(...,
 * true). */
void fiber_begin(Fiber *f, void (*main)(void));
/* Local. From the one that runs to another; returns when somebody comes back. */
void fiber_change(Fiber *from, Fiber *to, bool last);
/* Local. What main() of a fiber calls first: where it was begun from. */
void fiber_arrive(Fiber *self);

/* Of each processor. Saves this computation, its place in *save, and continues the one saved at
 * sp. */
void fiber_jump(void **save, void *sp);
/* Of each processor. What is saved in a stack of n_bytes whose next step is to call main(). */
void *fiber_prepare(char *low, size_t n_bytes, void (*main)(void));

#endif
