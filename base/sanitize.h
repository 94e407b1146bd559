/* sanitize -- notes to the sanitizers when a thread changes its stack. Nothing without
 * them.
 */
#ifndef BASE_SANITIZE_H
#define BASE_SANITIZE_H

#include <stdbool.h>
#include <stddef.h>

/* A stack. That of the thread itself is all zero: its place is learnt when it is first left. */
typedef struct StackNote {
    const void *bottom;
    size_t size;
    void *fake;  // AddressSanitizer's own stack
    void *fiber; // ThreadSanitizer's
} StackNote;

/* stack_note_open   this memory is a stack
 * stack_note_leave  just before the change from one to another; last: the code on `from` has ended
 * stack_note_arrive first thing afterwards, on `self`, which was changed to from `from`
 * stack_note_clean  nothing that ran on it is left: it may begin again */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
static inline void stack_note_open(StackNote *n, const void *bottom, size_t size) {
    *n = (StackNote){.bottom = bottom, .size = size};
}
static inline void stack_note_close(StackNote *n) {
    (void)n;
}
static inline void stack_note_clean(StackNote *n) {
    __asan_unpoison_memory_region(n->bottom, n->size);
}
static inline void stack_note_leave(StackNote *from, const StackNote *to, bool last) {
    __sanitizer_start_switch_fiber(last ? NULL : &from->fake, to->bottom, to->size);
}
static inline void stack_note_arrive(StackNote *self, StackNote *from) {
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(self->fake, &bottom, &size);
    self->fake = NULL;
    if (!from->bottom) from->bottom = bottom, from->size = size;
}
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
static inline void stack_note_open(StackNote *n, const void *bottom, size_t size) {
    (void)bottom, (void)size;
    *n = (StackNote){.fiber = __tsan_create_fiber(0)};
}
static inline void stack_note_close(StackNote *n) {
    __tsan_destroy_fiber(n->fiber);
}
static inline void stack_note_clean(StackNote *n) {
    (void)n;
}
static inline void stack_note_leave(StackNote *from, const StackNote *to, bool last) {
    (void)last;
    if (!from->fiber) from->fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to->fiber, 0);
}
static inline void stack_note_arrive(StackNote *self, StackNote *from) {
    (void)self, (void)from;
}
#else
static inline void stack_note_open(StackNote *n, const void *bottom, size_t size) {
    (void)n, (void)bottom, (void)size;
}
static inline void stack_note_close(StackNote *n) {
    (void)n;
}
static inline void stack_note_clean(StackNote *n) {
    (void)n;
}
static inline void stack_note_leave(StackNote *from, const StackNote *to, bool last) {
    (void)from, (void)to, (void)last;
}
static inline void stack_note_arrive(StackNote *self, StackNote *from) {
    (void)self, (void)from;
}
#endif

#endif
