/* bulk -- TMA: copies of boxes of tensors, with the 128-byte swizzle and bounds, and copies of
 * contiguous bytes. */
#include <string.h>

#include "base/mem.h"
#include "tests/emu/block.h"

enum { POISON = 0xff, CHUNK = 16 };

static int box_bytes(const EmuTensorMap *m) {
    int n = m->element;
    for (int i = 0; i < m->rank; i++) n *= m->box[i];
    return n;
}

/* Address in shared memory of byte `offset` of a box. The swizzle pattern depends on the address,
 * counted from the start of the block's shared memory. */
static char *swizzled(const Bulk *b, int offset) {
    const char *memory = emu_block->shared.memory;
    int64_t at = b->shared + offset - memory;
    return emu_block->shared.memory + (at ^ (at >> 7 & 7) << 4);
}

/* Is element `inner` of a row inside the tensor? at: first element of the box; row: index of the
 * row within the box (dimensions from 1 on). For a store the element's chunk of 16 bytes decides:
 * an H200 writes whole chunks, even if a row ends within one. */
static bool inside(const EmuTensorMap *m, const int *at, const int *row, int inner, bool store) {
    int64_t column = (int64_t)at[0] + inner, each = store ? CHUNK / m->element : 1;
    if (column < 0 || column / each * each >= m->size[0]) return false;
    for (int i = 1; i < m->rank; i++)
        if (at[i] + row[i] < 0 || (int64_t)at[i] + row[i] >= m->size[i]) return false;
    return true;
}

/* Copies one row of a box, along dimension 0. offset: first byte of the row within the box. */
static void copy_row(const Bulk *b, const int *row, int offset) {
    const EmuTensorMap *m = &b->map;
    const char *global = m->base;
    for (int i = 0; i < m->rank; i++) global += (b->at[i] + row[i]) * m->stride[i];
    int each = CHUNK / m->element;
    for (int i = 0, n; i < m->box[0]; i += n) {
        char *shared = swizzled(b, offset + i * m->element);
        const char *from = global + i * m->element;
        bool is = inside(m, b->at, row, i, !b->mbarrier);
        // the swizzle keeps a chunk together
        bool whole = is && !b->adds && m->box[0] % each == 0 && i % each == 0 &&
                     inside(m, b->at, row, i + each - 1, !b->mbarrier);
        n = whole ? each : 1;
        size_t n_bytes = (size_t)(n * m->element);
        if (b->mbarrier && is)
            memcpy(shared, from, n_bytes);
        else if (b->mbarrier)
            memset(shared, 0, n_bytes);
        else if (is && b->adds)
            *(float *)(uintptr_t)from += *(float *)(void *)shared;
        else if (is)
            memcpy((char *)(uintptr_t)from, shared, n_bytes);
    }
}

static void do_bulk(const Bulk *b) {
    if (b->from) {
        memcpy(b->shared, b->from, (size_t)b->n_bytes);
    } else {
        int row[MAP_RANK] = {0}, width = b->map.box[0] * b->map.element;
        for (int offset = 0; offset < b->n_bytes; offset += width) {
            copy_row(b, row, offset);
            for (int i = 1; i < b->map.rank && ++row[i] == b->map.box[i]; i++) row[i] = 0;
        }
    }
    if (b->mbarrier) mbarrier_arrived(b->mbarrier, 0, -b->n_bytes, b->place);
}

/* Removes copy i from the list. */
static void forget(Hopper *h, int i) {
    memmove(h->bulk + i, h->bulk + i + 1, (size_t)(h->n_bulk - i - 1) * sizeof *h->bulk);
    h->n_bulk--;
}

bool bulk_do_one(Block *b) {
    Hopper *h = &b->hopper;
    int loads = 0, i = -1, chosen;
    for (int j = 0; j < h->n_bulk; j++) loads += h->bulk[j].mbarrier != NULL;
    if (!loads) return false;
    chosen = b->order == EMU_FORWARD   ? 0
             : b->order == EMU_REVERSE ? loads - 1
                                       : (int)emu_dice(&b->random, (unsigned)loads);
    while (chosen >= 0) chosen -= h->bulk[++i].mbarrier != NULL;
    Bulk one = h->bulk[i];
    forget(h, i);
    do_bulk(&one);
    return true;
}

/* Adds a copy to the list of those in flight. */
static void begin(Bulk b) {
    Hopper *h = &emu_block->hopper;
    mem_grow(h->bulk, h->n_bulk, h->room);
    b.thread = emu_self(), b.group = b.thread->store_group;
    h->bulk[h->n_bulk++] = b;
}

static Bulk box_of(const void *shared, const EmuTensorMap *map, int n, const int *at,
                   EmuPlace place) {
    Bulk b = {.map = *map, .shared = (char *)(uintptr_t)shared, .place = place};
    if (map->magic != MAP_MAGIC) emu_fail(place, "TMA: no tensor map");
    if (map->rank != n) emu_fail(place, "TMA: %d coordinates in %d dimensions", n, map->rank);
    b.n_bytes = box_bytes(map);
    enum { ALIGN = 8 * MAP_ROW }; // otherwise no matmul could read the box with its swizzle
    if (emu_shared_offset(shared) < 0 || emu_shared_offset(shared) % ALIGN ||
        emu_shared_offset(b.shared + b.n_bytes - 1) < 0)
        emu_fail(place,
                 "TMA: a box of %d bytes at byte %lld: not in shared memory, or not aligned "
                 "to %d bytes",
                 b.n_bytes, (long long)emu_shared_offset(shared), ALIGN);
    memcpy(b.at, at, (size_t)n * sizeof *at);
    return b;
}

/* The mbarrier that a load will notify. */
static Mbarrier *expecting(void *mbarrier, EmuPlace place) {
    Mbarrier *m = mbarrier_find(mbarrier, place);
    if (emu_self()->saw_flag) emu_fail(place, "TMA: after a flag without fence_async_global()");
    if (!m->fenced) emu_fail(place, "TMA: its mbarrier was made without mbarrier_fence()");
    return m;
}

void emu_tma_load(void *to, const EmuTensorMap *map, void *mbarrier, int n, const int *at,
                  EmuPlace place) {
    Bulk b = box_of(to, map, n, at, place);
    b.mbarrier = expecting(mbarrier, place);
    memset(to, POISON, (size_t)b.n_bytes); // the swizzle permutes bytes only within the box
    begin(b);
}

void emu_bulk_load(void *to, const void *from, int n_bytes, void *mbarrier, EmuPlace place) {
    if (emu_shared_offset(to) < 0 || (uintptr_t)to % 16 || (uintptr_t)from % 16 || n_bytes % 16 ||
        n_bytes <= 0)
        emu_fail(place,
                 "cp.async.bulk of %d bytes: not from aligned memory to aligned shared memory",
                 n_bytes);
    memset(to, POISON, (size_t)n_bytes);
    begin((Bulk){.shared = to,
                 .from = from,
                 .n_bytes = n_bytes,
                 .place = place,
                 .mbarrier = expecting(mbarrier, place)});
}

/* An H200 ends the kernel if a store begins before the tensor; it leaves out what lies behind the
 * end of the tensor. No probe has shown what it does with an addition that begins before the
 * tensor: here it counts as a store. */
static Bulk stored_box_of(const void *from, const EmuTensorMap *map, int n, const int *at,
                          EmuPlace place) {
    for (int i = 0; i < n; i++)
        if (at[i] < 0)
            emu_fail(place, "TMA: a store begins before the tensor, at %d along dimension %d",
                     at[i], i);
    return box_of(from, map, n, at, place);
}

void emu_tma_store(const EmuTensorMap *map, const void *from, int n, const int *at,
                   EmuPlace place) {
    Bulk b = stored_box_of(from, map, n, at, place);
    dirty_check(from, (size_t)b.n_bytes, "TMA", place);
    begin(b);
}

void emu_tma_add(const EmuTensorMap *map, const void *from, int n, const int *at, EmuPlace place) {
    Bulk b = stored_box_of(from, map, n, at, place);
    if (map->element != 4) emu_fail(place, "TMA: adds floats alone");
    dirty_check(from, (size_t)b.n_bytes, "TMA", place);
    b.adds = true;
    begin(b);
}

void emu_tma_commit(void) {
    emu_self()->store_group++;
}

void emu_tma_wait(int left) {
    Hopper *h = &emu_block->hopper;
    EmuThread *me = emu_self();
    for (int i = 0; i < h->n_bulk;) {
        Bulk b = h->bulk[i];
        if (b.mbarrier || b.thread != me || b.group >= me->store_group - left) {
            i++;
            continue;
        }
        forget(h, i);
        do_bulk(&b);
    }
}

void bulk_thread_end(EmuThread *t) {
    const Hopper *h = &emu_block->hopper;
    for (int i = 0; i < h->n_bulk; i++)
        if (!h->bulk[i].mbarrier && h->bulk[i].thread == t)
            emu_fail(h->bulk[i].place, "a TMA store that nobody waited for");
}

/* --- fence.proxy.async: each chunk that a thread has written and not fenced is `dirty` */

void emu_written(const void *p, EmuPlace place) {
    EmuThread *me = emu_self();
    int chunk = (int)(emu_shared_offset(p) / CHUNK);
    if (emu_shared_offset(p) < 0) emu_fail(place, "not shared memory");
    if (me->dirty_from == me->dirty_to) me->dirty_from = chunk, me->dirty_to = chunk + 1;
    if (chunk < me->dirty_from) me->dirty_from = chunk;
    if (chunk >= me->dirty_to) me->dirty_to = chunk + 1;
    emu_block->hopper.dirty[chunk] = (unsigned short)(me - emu_block->thread + 1);
}

void emu_fence_async(void) {
    EmuThread *me = emu_self();
    unsigned short mine = (unsigned short)(me - emu_block->thread + 1),
                   *dirty = emu_block->hopper.dirty;
    for (int i = me->dirty_from; i < me->dirty_to; i++)
        if (dirty[i] == mine) dirty[i] = 0;
    me->dirty_from = me->dirty_to = 0;
}

void emu_saw_flag(void) {
    emu_self()->saw_flag = true;
}
void emu_fence_async_global(void) {
    emu_self()->saw_flag = false;
}

void dirty_check(const void *p, size_t n_bytes, const char *what, EmuPlace place) {
    int64_t from = emu_shared_offset(p) / CHUNK, to = from + (int64_t)(n_bytes / CHUNK);
    for (int64_t i = from; i < to; i++)
        if (emu_block->hopper.dirty[i])
            emu_fail(place, "%s reads shared memory that thread %d wrote without fence_async()",
                     what, emu_block->hopper.dirty[i] - 1);
}
