/* sanitize -- tells the sanitizers when a thread changes its stack. Without sanitizers these
 * functions do nothing. */
#ifndef TESTS_EMU_SANITIZE_H
#define TESTS_EMU_SANITIZE_H

#include <stdbool.h>
#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

/* A stack. For the host thread's own stack all fields are zero; its address is learnt when it is
 * first left. */
typedef struct StackNote {
    const void *bottom;
    size_t size;
    void *fake;  // AddressSanitizer's fake stack
    void *fiber; // ThreadSanitizer's fiber
} StackNote;

/* Notes that this memory is a stack. */
static inline void stack_note_open(StackNote *n, const void *bottom, size_t size) {
    *n = (StackNote){.bottom = bottom, .size = size};
#ifdef __SANITIZE_THREAD__
    n->fiber = __tsan_create_fiber(0);
#endif
}

static inline void stack_note_close(StackNote *n) {
    (void)n;
#ifdef __SANITIZE_THREAD__
    __tsan_destroy_fiber(n->fiber);
#endif
}

/* Called just before the change from one stack to another. last: the code on `from` has ended. */
static inline void stack_note_leave(StackNote *from, const StackNote *to, bool last) {
    (void)from, (void)to, (void)last;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(last ? NULL : &from->fake, to->bottom, to->size);
#elif defined(__SANITIZE_THREAD__)
    if (!from->fiber) from->fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to->fiber, 0);
#endif
}

/* Called first after the change, on `self`; from: the stack that was left. */
static inline void stack_note_arrive(StackNote *self, StackNote *from) {
    (void)self, (void)from;
#ifdef __SANITIZE_ADDRESS__
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(self->fake, &bottom, &size);
    self->fake = NULL;
    if (!from->bottom) from->bottom = bottom, from->size = size;
#endif
}

#endif
