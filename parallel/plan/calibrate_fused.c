/* Fused matmuls measured: a matmul and its collective in one kernel, and one after the other, in
 * turns. */
#include <math.h>
#include <string.h>

#include "parallel/comm/coll.h"
#include "parallel/comm/ranks.h"
#include "parallel/plan/calibrate_parts.h"

enum { ROUNDS = 3, REPEATS = 2 };

/* The operands of the work; behind them this rank's rows of what is gathered or scattered. */
typedef struct Pair {
    const FusedWork *f;
    const CalibrateWhere *where;
    Comm *comm;
    Matmul matmul;
    void *mine;
    int64_t rows, cols; // of this rank
} Pair;

static bool gathers(const FusedWork *f) {
    return f->of != BLOCKS_OF_Y;
}

/* As many rows of each rank; wgrads in bf16 take 32 at a time. */
static Work whole_blocks(const FusedWork *f) {
    Work w = f->work;
    w.rows -= w.rows % (w.kind == WORK_WGRAD ? 32 * f->ranks : f->ranks);
    return w;
}

/* Columns of what is gathered, or scattered. */
static int64_t columns(const FusedWork *f) {
    bool forward = f->work.kind == WORK_MATMUL;
    switch (f->of) {
    case BLOCKS_OF_A:
        return forward ? f->work.a : f->work.b;
    case BLOCKS_OF_Y:
        return forward ? f->work.b : f->work.a;
    case BLOCKS_OF_AT:
        return f->work.a;
    case BLOCKS_OF_B:
        return f->work.b;
    }
    return 0;
}

size_t calibrate_fused_memory(const CalibrateWhere *where, const FusedWork *f) {
    WorkMemory bytes = work_memory(&f->work, where->kernels, team_size(where->team));
    return bytes.operands + bytes.workspace +
           (size_t)(f->work.rows / f->ranks * columns(f)) * sizeof(float);
}

static Pair pair_of(const CalibrateWhere *where, const FusedWork *f, Comm *comm, void *memory) {
    Work w = whole_blocks(f);
    WorkMemory bytes = work_memory(&w, where->kernels, team_size(where->team));
    char *operands = memory, *workspace = operands + bytes.operands;
    memset(memory, 0, calibrate_fused_memory(where, f)); // other numbers may have become infinite
    return (Pair){.f = f,
                  .where = where,
                  .comm = comm,
                  .matmul = work_matmul(&w, where->kernels, where->team, operands, workspace),
                  .mine = workspace + bytes.workspace,
                  .rows = w.rows / f->ranks,
                  .cols = columns(f)};
}

/* fused: the receive buffer of a reduce_scatter is as large as the whole. */
static Ticket start(const Pair *p, bool fused) {
    bool gather = gathers(p->f);
    const Matmul *x = &p->matmul;
    void *whole = gather ? (void *)(uintptr_t)(p->f->of == BLOCKS_OF_B ? x->b : x->a) : x->y;
    CollOp op = gather ? COLL_ALL_GATHER : COLL_REDUCE_SCATTER;
    return coll_start(p->comm, &(CollCall){.op = op,
                                           .type = COLL_F32,
                                           .reduction = COLL_SUM,
                                           .rows = 1,
                                           .cols = p->rows * p->cols,
                                           .src = gather ? p->mine : whole,
                                           .dst = gather ? whole : p->mine,
                                           .by_blocks = fused,
                                           .what = "calibration",
                                           .file = __FILE__,
                                           .line = __LINE__});
}

static void apart(void *ctx) {
    const Pair *p = ctx;
    const CalibrateWhere *w = p->where;
    if (gathers(p->f)) coll_wait(start(p, false));
    w->kernels->matmul(w->team, &p->matmul);
    if (!gathers(p->f)) coll_wait(start(p, false));
}

/* As a step does it: parallel/step/run.c. */
static void together(void *ctx) {
    const Pair *p = ctx;
    const CalibrateWhere *w = p->where;
    Ticket ticket = start(p, true);
    RowBlocks blocks = coll_row_blocks(&ticket, p->rows);
    Matmul matmul = p->matmul;
    blocks.of = p->f->of;
    matmul.blocks = &blocks;
    w->kernels->matmul(w->team, &matmul);
    coll_wait(ticket);
}

static double ratio_of(Meter *m, Pair *p) {
    double seconds[2] = {INFINITY, INFINITY};
    MeterCall *const calls[] = {apart, together};
    meter_once(m, apart, p, false);
    for (int i = 0; i < 2 * ROUNDS; i++) {
        MeterCall *call = calls[i % 2];
        double about = meter_once(m, call, p, false).most;
        seconds[i % 2] = fmin(seconds[i % 2], meter_run(m, call, p, about, REPEATS, false).most);
    }
    return seconds[1] / seconds[0];
}

void calibrate_fused(Meter *m, const CalibrateWhere *where, const FusedWork *list, int n,
                     void *memory, double until, Calibration *c) {
    Comm *comm[MAX_THREAD_RANKS + 1] = {0}; // of so many ranks each
    int rank = world_rank(where->world);
    for (int i = 0; i < n && m->elapsed < until; i++) {
        const FusedWork *f = &list[i];
        char name[64];
        bool fits = world_size(where->world) % f->ranks == 0 && whole_blocks(f).rows > 0;
        if (!fits || calibration_find_fused(c, f)) continue;
        meter_progress(m, "%s of %d ranks, fused", work_name(&f->work, name), (int)f->ranks);
        if (!comm[f->ranks]) // ranks that follow each other: all share memory
            comm[f->ranks] = world_split(where->world, rank / f->ranks, rank, "fused");
        Pair p = pair_of(where, f, comm[f->ranks], memory);
        calibration_add_fused(c, &(FusedCost){*f, ratio_of(m, &p)});
    }
    for (int i = 0; i <= MAX_THREAD_RANKS; i++)
        if (comm[i]) comm_free(comm[i]);
}
