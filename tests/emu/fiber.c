#include "tests/emu/fiber.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/debug.h"
#include "base/die.h"

/* Kernels need little stack; code built for sanitizers and debuggers needs more. */
enum { STACK = BASE_DEBUG ? 256 << 10 : 64 << 10 };

static __thread Fiber *came_from; // the fiber that made the last change

void fiber_open(Fiber *f) {
    f->memory = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->memory == MAP_FAILED) die("out of memory for a stack of %d bytes", STACK);
    mprotect(f->memory, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE);
    stack_note_open(&f->note, f->memory, STACK);
}

void fiber_close(Fiber *f) {
    stack_note_close(&f->note);
    munmap(f->memory, STACK);
}

/* Bytes at the top of a stack that are left unused. Stacks lie STACK bytes apart; if all began at
 * the same offset within a page, the stacks of a block would share a few lines of the L1 cache.
 * Neighbours begin eleven lines apart. */
static size_t stack_offset(const Fiber *f) {
    enum { LINE = 64, LINES = 64 }; // LINES: cache lines of a page
    return (uintptr_t)f->memory / STACK * 11 % LINES * LINE;
}

void fiber_begin(Fiber *f, void (*main)(void)) {
    f->sp = fiber_prepare(f->memory, STACK - stack_offset(f), main);
}

void fiber_change(Fiber *from, Fiber *to, bool last) {
    came_from = from;
    stack_note_leave(&from->note, &to->note, last);
    fiber_jump(&from->sp, to->sp);
    fiber_arrive(from);
}

void fiber_arrive(Fiber *self) {
    stack_note_arrive(&self->note, &came_from->note);
}
