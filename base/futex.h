/* futex -- waiting for a word in memory to change: by pause_cpu in a spinning loop, or asleep in
 * the kernel by futex_wait. A waiter must read the word again after each wake-up, which may be
 * spurious. */
#ifndef BASE_FUTEX_H
#define BASE_FUTEX_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline void pause_cpu(void) {
    __asm__ __volatile__("" ::: "memory");
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Local. Sleeps while *word == old, for at most `seconds` (0: without limit). */
static inline void futex_wait(_Atomic uint32_t *word, uint32_t old, double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)(1e9 * (seconds - (double)t.tv_sec));
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, seconds > 0 ? &t : NULL, NULL, 0);
}

/* Local. Wakes all threads that sleep on the word. */
static inline void futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

#endif
