#include "base/turns.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/sanitize.h"

enum { STACK_BYTES = 1 << 20 };

/* a runs on the caller's stack, b on its own. */
struct Turns {
    ucontext_t a, b;
    char *stack; // of b, behind a page that nobody may touch
    bool in_b, a_ended, b_ended;
    void (*f)(void *ctx);
    void *b_ctx;
    StackNote note[2]; // of a, of b
};

Turns *turns_create(void) {
    Turns *t = mem_calloc(1, sizeof *t);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    t->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (t->stack == MAP_FAILED) die("no memory for a stack of %d bytes", STACK_BYTES);
    mprotect(t->stack, page, PROT_NONE);
    return t;
}

void turns_free(Turns *t) {
    if (!t) return;
    munmap(t->stack, STACK_BYTES);
    mem_free(t);
}

/* To the other one; returns when it comes back. */
static void change(Turns *t) {
    bool from_b = t->in_b, last = from_b && t->b_ended;
    t->in_b = !from_b;
    stack_note_leave(&t->note[from_b], &t->note[!from_b], last);
    swapcontext(from_b ? &t->b : &t->a, from_b ? &t->a : &t->b);
    stack_note_arrive(&t->note[from_b], &t->note[!from_b]);
}

/* makecontext passes ints: a pointer is two of them. */
static void b_main(unsigned high, unsigned low) {
    Turns *t = (Turns *)((uintptr_t)high << 32 | low); // NOLINT(performance-no-int-to-ptr)
    stack_note_arrive(&t->note[1], &t->note[0]);
    t->f(t->b_ctx);
    t->b_ended = true;
    change(t); // for good
}

void turns_run(Turns *t, void (*f)(void *ctx), void *a, void *b) {
    uintptr_t at = (uintptr_t)t;
    t->f = f, t->b_ctx = b;
    t->note[0] = (StackNote){0}; // perhaps another thread's than last time
    stack_note_open(&t->note[1], t->stack, STACK_BYTES);
    t->a_ended = t->b_ended = t->in_b = false;
    if (getcontext(&t->b)) die("no context for a second stack");
    t->b.uc_stack.ss_sp = t->stack, t->b.uc_stack.ss_size = STACK_BYTES;
    t->b.uc_link = NULL;
    makecontext(&t->b, (void (*)(void))b_main, 2, (unsigned)(at >> 32), (unsigned)at);
    f(a);
    t->a_ended = true;
    while (!t->b_ended) change(t);
    stack_note_close(&t->note[1]);
}

void turns_yield(void *turns) {
    Turns *t = turns;
    if (t->in_b ? !t->a_ended : !t->b_ended) change(t);
}
