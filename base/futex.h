/* futex -- waiting for a word in memory to change: a pause for those who spin, the kernel for those
 * who sleep. A waiter always looks at the word again; being woken means nothing by itself. */
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

/* Local. Sleeps while *word == old, at most so many seconds (0: for ever). */
static inline void futex_wait(_Atomic uint32_t *word, uint32_t old, double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)(1e9 * (seconds - (double)t.tv_sec));
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, seconds > 0 ? &t : NULL, NULL, 0);
}

/* Local. Wakes all who sleep on the word. */
static inline void futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

#endif
