/* wgmma -- matmuls of warpgroups.
 *
 * A lane records the matmuls that it begins; a warp computes its 16 rows when it waits for them.
 * The warps of a warpgroup may be at different points, but must multiply the same matrices: the
 * operands of each matmul are compared with those of the first warp that came to it. */
#include <string.h>

#include "base/mem.h"
#include "tests/emu/block.h"

enum { POISON = 0xff, ROWS = 16, DEPTH = 16, LOG = 64 };
enum { CHUNK = 8 }; // elements in 16 bytes, which the swizzle keeps together
typedef float Chunk __attribute__((vector_size(CHUNK * sizeof(float))));

/* --- matrices in shared memory, given by descriptors */

typedef struct Layout {
    int64_t start, leading, stride;
} Layout;

static Layout layout_of(uint64_t descriptor, EmuPlace place) {
    if (descriptor >> 49 & 7) emu_fail(place, "wgmma: a descriptor with a base offset");
    if (descriptor >> 62 != 1) emu_fail(place, "wgmma: rows of 128 bytes alone are emulated");
    return (Layout){(int64_t)(descriptor & 0x3fff) << 4, (int64_t)(descriptor >> 16 & 0x3fff) << 4,
                    (int64_t)(descriptor >> 32 & 0x3fff) << 4};
}

/* Offset of element (outer, inner). In the swizzle pattern rows of 128 bytes are contiguous, 8 rows
 * form a group. */
static int64_t byte_of(const Layout *l, int outer, int inner) {
    int64_t groups = outer / 8 * l->stride + inner / 64 * l->leading;
    int64_t at = l->start + groups + outer % 8 * 128 + inner % 64 * 2;
    return at ^ (at >> 7 & 7) << 4;
}

/* Reads the CHUNK elements from (outer, inner) on, which are contiguous. */
static void take_chunk(float to[CHUNK], const Layout *l, int outer, int inner, EmuPlace place) {
    const char *memory = emu_block->shared.memory;
    int64_t at = byte_of(l, outer, inner);
    uint16_t half[CHUNK];
    if (at + (int64_t)sizeof half > (int64_t)emu_block->shared.used)
        emu_fail(place, "wgmma reads byte %lld of shared memory", (long long)at);
    if (emu_block->hopper.dirty[at / 16]) dirty_check(memory + at, 16, "wgmma", place);
    memcpy(half, memory + at, sizeof half);
    uint32_t bits[CHUNK];
    for (int i = 0; i < CHUNK; i++) bits[i] = (uint32_t)half[i] << 16;
    memcpy(to, bits, sizeof bits);
}

/* Reads n rows (of a) or columns (of b) from `first` on, DEPTH elements along k. */
static void take_matrix(float (*to)[MOST_N], uint64_t descriptor, bool mn_major, int first, int n,
                        EmuPlace place) {
    Layout l = layout_of(descriptor, place);
    for (int k = 0; k < DEPTH && mn_major; k++)
        for (int i = 0; i < n; i += CHUNK) take_chunk(&to[k][i], &l, k, first + i, place);
    for (int i = 0; i < n && !mn_major; i++)
        for (int k = 0; k < DEPTH; k += CHUNK) {
            float chunk[CHUNK];
            take_chunk(chunk, &l, first + i, k, place);
            for (int j = 0; j < CHUNK; j++) to[k + j][i] = chunk[j];
        }
}

/* --- a warp's part of a matmul */

/* The bf16 in the lower (i = 0) or upper half of a register. */
static float half_of(unsigned r, int i) {
    uint32_t bits = i ? r & 0xffff0000 : r << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void take_registers(float a[DEPTH][MOST_N], WgmmaLater *const lane[32]) {
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 8; i++) {
            int row = l / 4 + i / 2 % 2 * 8, k = l % 4 * 2 + i % 2 + i / 4 * 8;
            a[k][row] = half_of(lane[l]->what.registers[i / 2], i % 2);
        }
}

/* Elements (row, column) and (row, column + 1) of the warp's 16 x n result, column even: a lane has
 * both in its registers. */
static float *pair_of(WgmmaLater *const lane[32], int row, int column) {
    int l = row % 8 * 4 + column % 8 / 2;
    return &lane[l]->into->value[column / 8 * 4 + row / 8 * 2];
}

/* Computes the 16 rows of one warp: gathers a and b, multiplies, and adds to the accumulators of
 * the lanes. */
static void multiply(WgmmaLater *const lane[32], int warp) {
    static __thread float a[DEPTH][MOST_N], b[DEPTH][MOST_N];
    const EmuWgmma *w = &lane[0]->what;
    EmuPlace place = emu_block->self->place;
    if (w->in_registers)
        take_registers(a, lane);
    else
        take_matrix(a, w->a, w->a_mn_major, warp % 4 * ROWS, ROWS, place);
    take_matrix(b, w->b, w->b_mn_major, 0, w->n, place);
    for (int column = 0; column < w->n; column += CHUNK)
        for (int row = 0; row < ROWS; row++) {
            Chunk sum = {0}, of_b;
            float *pair = (float *)&sum;
            for (int i = 0; i < CHUNK && w->add; i += 2)
                memcpy(pair + i, pair_of(lane, row, column + i), 2 * sizeof *pair);
            for (int k = 0; k < DEPTH; k++) {
                memcpy(&of_b, &b[k][column], sizeof of_b);
                sum += a[k][row] * of_b;
            }
            for (int i = 0; i < CHUNK; i += 2)
                memcpy(pair_of(lane, row, column + i), pair + i, 2 * sizeof *pair);
        }
}

/* --- begin of matmuls */

static bool poisoned(const Accumulator *c) {
    const unsigned char *p = (const unsigned char *)c->d;
    // all bytes are as the one before
    return *p == POISON && memcmp(p, p + 1, (size_t)c->n / 2 * sizeof *c->d - 1) == 0;
}

/* The entry of the accumulators w->d. A new entry saves their value and poisons them. */
static Accumulator *accumulator_of(Matmuls *p, const EmuWgmma *w, EmuPlace place) {
    Accumulator *none = NULL;
    if (!p->accumulators) p->accumulators = mem_calloc(ACCUMULATORS, sizeof *p->accumulators);
    for (int i = 0; i < ACCUMULATORS; i++) {
        Accumulator *c = &p->accumulators[i];
        if (!c->pending) none = c;
        if (!c->pending || c->d != w->d) continue;
        if (c->n != w->n) emu_fail(place, "wgmma: %d columns where %d are under way", w->n, c->n);
        return c;
    }
    if (!none) emu_fail(place, "wgmma: more than %d accumulators under way", ACCUMULATORS);
    *none = (Accumulator){.d = w->d, .n = w->n};
    memcpy(none->value, w->d, (size_t)w->n / 2 * sizeof *w->d);
    memset(w->d, POISON, (size_t)w->n / 2 * sizeof *w->d);
    return none;
}

/* Dies unless all warps of the warpgroup multiply the same matrices. The first warp to come to a
 * matmul logs the operands. */
static void compare(const EmuWgmma *w, int number, EmuPlace place) {
    int thread = (int)(emu_self() - emu_block->thread);
    if (thread / 128 >= emu_block->n_threads / 128)
        emu_fail(place, "wgmma in a warp of no whole warpgroup");
    uint64_t a = w->in_registers ? 1 : w->a;
    WgmmaOperands *one = &emu_block->hopper.group[thread / 128].log[number % LOG];
    if (one->number < number) one->number = number, one->a = a, one->b = w->b, one->n = w->n;
    if (one->number == number && (one->a != a || one->b != w->b || one->n != w->n))
        emu_fail(place, "wgmma: threads of a warpgroup multiply different matrices");
}

void emu_wgmma(const EmuWgmma *w, EmuPlace place) {
    Matmuls *p = &emu_self()->matmuls;
    if (w->n % 8 || w->n < 8 || w->n > MOST_N) emu_fail(place, "wgmma of %d columns", w->n);
    if (!p->fenced) emu_fail(place, "wgmma without wgmma_fence() since the last wait");
    compare(w, ++p->n_begun, place);
    mem_grow(p->at, p->n, p->room);
    Accumulator *c = accumulator_of(p, w, place);
    c->pending++, p->n_in_group++;
    p->at[p->n++] = (WgmmaLater){*w, c, p->group, place};
}

void emu_wgmma_fence(void) {
    emu_self()->matmuls.fenced = true;
}

void emu_wgmma_commit(void) {
    Matmuls *p = &emu_self()->matmuls;
    p->group++, p->n_in_group = 0;
}

/* --- waiting */

typedef struct Wait {
    EmuThread *thread;
    int n; // matmuls for which the lane waits
} Wait;

static void give_back(Accumulator *c, EmuPlace place) {
    if (!poisoned(c))
        emu_fail(place, "accumulators of a wgmma were written while it was under way");
    memcpy(c->d, c->value, (size_t)c->n / 2 * sizeof *c->d);
}

/* Executes the matmuls for which a warp waits. When no matmul in flight writes an accumulator any
 * more, its value is written back. */
static void compute(void *const lanes[32]) {
    Wait *const *wait = (Wait *const *)lanes;
    EmuPlace place = emu_block->self->place;
    for (int l = 0; l < 32; l++)
        if (!wait[l] || wait[l]->n != wait[0]->n)
            emu_fail(place, "wgmma: lane %d has begun other matmuls, or has ended", l);
    int warp = (int)(wait[0]->thread - emu_block->thread) / 32;
    for (int i = 0; i < wait[0]->n; i++) {
        WgmmaLater *lane[32];
        for (int l = 0; l < 32; l++) lane[l] = &wait[l]->thread->matmuls.at[i];
        multiply(lane, warp);
        for (int l = 0; l < 32; l++)
            if (--lane[l]->into->pending == 0) give_back(lane[l]->into, place);
    }
}

void emu_wgmma_wait(int left, EmuPlace place) {
    EmuThread *me = emu_self();
    Matmuls *p = &me->matmuls;
    Wait wait = {me, 0};
    if (p->n_in_group) emu_fail(place, "wgmma: a wait for matmuls without wgmma_commit()");
    while (wait.n < p->n && p->at[wait.n].group < p->group - left) wait.n++;
    me->place = place;
    emu_meet(0xffffffff, "wgmma.wait_group", &wait, compute, place);
    p->n -= wait.n;
    if (p->n) memmove(p->at, p->at + wait.n, (size_t)p->n * sizeof *p->at);
    // the thread now reads or writes these accumulators while other matmuls may still be in flight
    p->fenced = false;
}

void emu_wgmma_check(const float *d, EmuPlace place) {
    const Matmuls *p = &emu_self()->matmuls;
    for (int i = 0; p->accumulators && i < ACCUMULATORS; i++)
        if (p->accumulators[i].pending && p->accumulators[i].d == d)
            emu_fail(place, "wgmma: these accumulators are still under way");
}

void matmuls_end(EmuThread *t) {
    if (t->matmuls.n) emu_fail(t->matmuls.at[0].place, "a wgmma that nobody waited for");
}
