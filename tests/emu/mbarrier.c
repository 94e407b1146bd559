/* mbarrier -- mbarriers in shared memory, and setmaxnreg.
 *
 * The state of an mbarrier is kept outside of shared memory. Its 8 bytes in shared memory hold a
 * magic number, which shows whether they were overwritten. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "tests/emu/block.h"

#define MAGIC UINT64_C(0x6d62617272696572)
enum { MOST_ARRIVALS = (1 << 20) - 1, POOL = 65536, BY = 8, FEWEST = 24, MOST = 256 };

void mbarriers_describe(Block *b) {
    for (int i = 0; i < b->hopper.n_mbarriers; i++) {
        Mbarrier *m = &b->hopper.mbarrier[i];
        snprintf(m->text, sizeof m->text,
                 "mbarrier at byte %lld (phase %u: %d of %d arrivals and %lld bytes missing)",
                 (long long)((char *)m->at - b->shared.memory), m->phase, m->pending, m->count,
                 (long long)m->bytes);
    }
}

Mbarrier *mbarrier_find(void *at, EmuPlace place) {
    Hopper *h = &emu_block->hopper;
    for (int i = 0; i < h->n_mbarriers; i++)
        if (h->mbarrier[i].at == at) {
            if (*h->mbarrier[i].at != MAGIC) emu_fail(place, "an mbarrier was overwritten");
            return &h->mbarrier[i];
        }
    emu_fail(place, "no mbarrier was made here");
}

void emu_mbarrier_init(void *at, int arrivals, EmuPlace place) {
    Hopper *h = &emu_block->hopper;
    if (emu_shared_offset(at) < 0 || (uintptr_t)at % 8 || arrivals < 1 || arrivals > MOST_ARRIVALS)
        emu_fail(place,
                 "mbarrier.init of %d arrivals: not 8 aligned bytes of shared memory, or "
                 "no such number",
                 arrivals);
    for (int i = 0; i < h->n_mbarriers; i++)
        if (h->mbarrier[i].at == at) emu_fail(place, "there is an mbarrier here already");
    if (h->n_mbarriers == MBARRIERS) emu_fail(place, "more than %d mbarriers", MBARRIERS);
    Mbarrier *m = &h->mbarrier[h->n_mbarriers++];
    m->at = at, m->count = m->pending = arrivals, m->bytes = 0, m->phase = 0;
    m->fenced = false, m->owner = emu_self(), m->n_waiting = 0;
    *m->at = MAGIC;
}

void emu_mbarrier_fence(void) {
    Hopper *h = &emu_block->hopper;
    for (int i = 0; i < h->n_mbarriers; i++)
        if (h->mbarrier[i].owner == emu_self()) h->mbarrier[i].fenced = true;
}

void mbarrier_arrived(Mbarrier *m, int arrivals, int64_t bytes, EmuPlace place) {
    m->pending -= arrivals, m->bytes += bytes;
    if (m->pending < 0)
        emu_fail(place, "more arrivals in a phase of an mbarrier than the %d it was made for",
                 m->count);
    if (m->pending || m->bytes) return;
    m->phase++;
    m->pending = m->count;
    for (int i = 0; i < m->n_waiting; i++) emu_wake(&emu_block->thread[m->waiting[i]]);
    m->n_waiting = 0;
}

void emu_mbarrier_arrive(void *at, int expected_bytes, EmuPlace place) {
    mbarrier_arrived(mbarrier_find(at, place), 1, expected_bytes, place);
    // a waiting thread may run first: a buffer that this thread released too early is then
    // overwritten while this thread still reads it
    if (!expected_bytes && emu_block->order != EMU_FORWARD) emu_yield();
}

void emu_mbarrier_wait(void *at, int parity, EmuPlace place) {
    Mbarrier *m = mbarrier_find(at, place);
    while ((int)(m->phase & 1) == parity) {
        m->waiting[m->n_waiting++] = (unsigned short)(emu_self() - emu_block->thread);
        emu_sleep(m->text, place);
    }
    emu_self()->matmuls.fenced =
        // the wait is a loop: ptxas reports that matmuls behind it need a fence of their own
        // (C7519)
        false;
}

/* --- setmaxnreg: all warpgroups of a block together have at most the registers with which the
 * block was launched */

/* Registers of a thread at launch, the most that the block could have. */
static int at_launch(const Block *b) {
    int each = POOL / b->n_threads / BY * BY;
    return each < MOST ? each : MOST - BY;
}

static void check_registers(const Block *b, EmuPlace place) {
    int sum = 0, groups = b->n_threads / 128;
    for (int i = 0; i < groups; i++) sum += b->hopper.group[i].registers;
    if (sum > at_launch(b) * groups)
        emu_fail(place, "setmaxnreg: %d registers for %d warpgroups that were launched with %d",
                 sum * 128, groups, at_launch(b) * groups * 128);
}

void emu_registers(int n, bool more, EmuPlace place) {
    Block *b = emu_block;
    int thread = (int)(b->self - b->thread), groups = b->n_threads / 128;
    if (n % BY || n < FEWEST || n > MOST)
        emu_fail(place, "setmaxnreg of %d: not a multiple of 8 from 24 to 256", n);
    if (thread / 128 >= groups) emu_fail(place, "setmaxnreg in a warp of no whole warpgroup");
    int *mine = &b->hopper.group[thread / 128].registers;
    int *called = &b->hopper.group[thread / 128].called;
    if (*called % 128 && *mine != n)
        emu_fail(place, "setmaxnreg of %d, but %d in other threads of the warpgroup", n, *mine);
    if (*called % 128 == 0 && (more ? n < *mine : n > *mine))
        emu_fail(place, "setmaxnreg.%s to %d from %d", more ? "inc" : "dec", n, *mine);
    *mine = n, ++*called;
    for (int i = 0; i < groups; i++)
        if (!b->hopper.group[i].called) return;
    check_registers(b, place);
}

/* --- begin and end of a block */

/* Resets the state of the block that ran before. */
void hopper_begin(Block *b) {
    Hopper *h = &b->hopper;
    size_t chunks = MAX_SHARED / 16;
    h->n_mbarriers = h->n_bulk = 0;
    if (!h->dirty) h->dirty = mem_calloc(chunks, sizeof *h->dirty);
    int n = h->n_threads > b->n_threads ? h->n_threads : b->n_threads;
    for (int i = 0; i < n; i++) {
        EmuThread *t = &b->thread[i];
        t->store_group = t->matmuls.n = t->matmuls.group = t->matmuls.n_in_group = 0;
        t->matmuls.n_begun = 0, t->matmuls.fenced = false;
        for (int j = t->dirty_from; j < t->dirty_to; j++) h->dirty[j] = 0;
        t->dirty_from = t->dirty_to = 0;
        t->saw_flag = false;
    }
    h->n_threads = b->n_threads;
    for (int i = 0; i < b->n_threads / 128; i++) {
        memset(&h->group[i], 0, sizeof h->group[i]);
        h->group[i].registers = at_launch(b);
    }
}

void hopper_end(Block *b) {
    Hopper *h = &b->hopper;
    if (h->n_bulk) emu_fail(h->bulk[0].place, "a bulk copy is under way while its block has ended");
    for (int i = 0; i < b->n_threads / 128; i++)
        if (h->group[i].called % 128)
            emu_fail((EmuPlace){__FILE__, __LINE__},
                     "setmaxnreg in %d of 128 threads of warpgroup %d", h->group[i].called % 128,
                     i);
    check_registers(b, (EmuPlace){__FILE__, __LINE__});
}

void hopper_free(Hopper *h) {
    mem_free(h->bulk);
    mem_free(h->dirty);
}
