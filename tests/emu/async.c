/* async -- cp.async: copies from device memory to shared memory that a thread begins and waits for
 * later.
 *
 *     begin       the bytes in shared memory are poisoned: on hardware they may change from now on
 *     commit      the copies begun since the last commit form a group
 *     wait(n)     executes the copies of all groups but the last n
 *
 * So bytes that are read before their wait are NaN, and so are bytes that other threads still read
 * when they are overwritten. */
#include <string.h>

#include "base/mem.h"
#include "tests/emu/block.h"

enum { POISON = 0xff };

void emu_copy_later(void *to, const void *from, int n_bytes, int n_there, EmuPlace place) {
    Copies *c = &emu_self()->copies;
    size_t n = (size_t)n_bytes;
    if (n_there < 0 || n_there > n_bytes)
        emu_fail(place, "cp.async of %d bytes, %d of them there", n_bytes, n_there);
    if (emu_shared_offset(to) < 0 || (uintptr_t)to % n || (n_there && (uintptr_t)from % n))
        emu_fail(place, "cp.async of %d bytes: not from aligned memory to aligned shared memory",
                 n_bytes);
    mem_grow(c->at, c->n, c->room);
    memset(to, POISON, n);
    c->at[c->n++] = (CopyLater){to, from, n, (size_t)n_there, c->group, place};
}

void emu_copy_commit(void) {
    emu_self()->copies.group++;
}

void emu_copy_wait(int left) {
    Copies *c = &emu_self()->copies;
    int done = 0;
    for (; done < c->n && c->at[done].group < c->group - left; done++) {
        const CopyLater *one = &c->at[done];
        memset(one->to, 0, one->n_bytes);
        if (one->n_there) memcpy(one->to, one->from, one->n_there);
    }
    c->n -= done;
    if (c->n) memmove(c->at, c->at + done, (size_t)c->n * sizeof *c->at);
}

void copies_end(EmuThread *t) {
    if (t->copies.n) emu_fail(t->copies.at[0].place, "cp.async that nobody waited for");
    t->copies.group = 0;
}
