#include <ucontext.h>

#include "base/die.h"
#include "tests/emu/fiber.h"

/* The context is saved on the stack of the fiber that is left. */
void fiber_jump(void **save, void *sp) {
    ucontext_t here;
    *save = &here;
    swapcontext(&here, sp);
}

void *fiber_prepare(char *low, size_t n_bytes, void (*main)(void)) {
    ucontext_t *c = (ucontext_t *)(void *)(low + n_bytes - (sizeof *c + 127) / 64 * 64);
    if (getcontext(c)) die("no context for a second stack");
    c->uc_stack.ss_sp = low, c->uc_stack.ss_size = (size_t)((char *)c - low);
    c->uc_link = NULL;
    makecontext(c, main, 0);
    return c;
}
