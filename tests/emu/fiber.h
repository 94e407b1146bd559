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
    void *sp;     // stack pointer while the fiber does not run; its registers lie there
    char *memory; // the stack, above a page without access; NULL: the stack of the host thread
    StackNote note;
} Fiber;

/* Local. Allocates a stack; dies without memory. */
void fiber_open(Fiber *f);
void fiber_close(Fiber *f);
/* Local. The next change to f calls main(), which never returns: it ends with fiber_change(...,
 * true). */
void fiber_begin(Fiber *f, void (*main)(void));
/* Local. Changes from the running fiber to another; returns when some fiber changes back. last:
 * `from` never runs again. */
void fiber_change(Fiber *from, Fiber *to, bool last);
/* Local. The main() of a fiber calls it first. */
void fiber_arrive(Fiber *self);

/* One implementation per processor. Saves the registers on the stack, the stack pointer in *save,
 * and continues the fiber whose stack pointer is sp. */
void fiber_jump(void **save, void *sp);
/* One implementation per processor. Prepares a stack of n_bytes so that fiber_jump to the result
 * calls main(). */
void *fiber_prepare(char *low, size_t n_bytes, void (*main)(void));

#endif
