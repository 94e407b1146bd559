/* Matmuls beside collectives of NCCL: the library is told of fewer multiprocessors for those that
 * are put into the stream between a start and its wait, as many as the price of the step has there,
 * and for no others. */
#include "base/debug.h"
#include "tests/emu/calls.h"
#include "tests/emu/emu.h"
#include "tests/emu/runtime.h"
#include "tests/mesh_run.h"
#include "tests/parsed.h"
#include "tests/test.h"

enum { RANKS = 2, STEPS = 2 };

typedef struct Case {
    const char *layout, *overlap;
    bool peers; // else NCCL
    bool some;  // are matmuls beside collectives? else none
} Case;

static EmuCalls calls[STEPS]; // after each step, by all ranks

static void note(Model *m, int step, UNUSED void *ctx) {
    Comm *all = world_comm(m->grid->world);
    coll_barrier(all);
    if (world_rank(m->grid->world) == 0) calls[step] = emu_calls;
    coll_barrier(all);
}

/* Matmuls of a step over all ranks, and those of them that a ticket is open beside. */
typedef struct Matmuls {
    int64_t all, beside;
} Matmuls;

static Matmuls predicted(const MeshRun *r) {
    Layout l = layout_of(r->layout);
    PriceShape s = mesh_price_shape(r);
    Matmuls n = {0, 0};
    for (int rank = 0; rank < RANKS; rank++) {
        OWNED(price_free) StepLists t;
        StepPart part[STEP_PARTS];
        price_lists(&t, &s, &l, rank, 0);
        for (int parts = price_parts(&t, 0, part), k = 0; k < parts; k++)
            for (int i = 0, open = 0; i < part[k].p->n_ops; i++) {
                const Op *op = &part[k].p->op[i];
                Work w;
                if (!op_runs(op, part[k].last)) continue;
                // without overlap a collective ends where it starts
                if (strcmp(r->overlap, "none") != 0)
                    open += op_info(op->kind)->collective - (op->kind == OP_WAIT);
                if (!op_work(part[k].p, i, false, &w) || w.kind > WORK_WGRAD) continue;
                n.all += (int)part[k].times, n.beside += open > 0 ? (int)part[k].times : 0;
            }
    }
    return n;
}

static Matmuls done(const Case *c, const MeshRun *run) {
    OWNED(mesh_run_free) MeshRun r = *run;
    r.after = note;
    r.emu = (EmuSetup){.devices = RANKS, .apart = !c->peers};
    mesh_run(&r);
    return (Matmuls){calls[1].matmuls - calls[0].matmuls, calls[1].narrow - calls[0].narrow};
}

TEST_EMULATED(cuda_matmuls_beside_collectives_leave_multiprocessors_to_them) {
    static const Case cases[] = {{"x2", "none", false, false}, {"x2", "bulk", false, true},
                                 {"x2", "bulk", true, false},  {"x2+sp", "bulk+ring", false, true},
                                 {"d2", "bulk", false, true},  {"d2+zero1", "bulk", false, true}};
    for (int i = 0; i < N_OF(cases); i += BASE_DEBUG && !test_long() ? 3 : 1) {
        const Case *c = &cases[i];
        MeshRun r = {.model = "layers=3,heads=2,channels=16,vocab=32,seq=8", .layout = c->layout};
        r.overlap = c->overlap, r.sequences = 4, r.S = 8, r.steps = STEPS;
        r.cuda = r.bf16 = true;
        Matmuls want = predicted(&r), got = done(c, &r);
        if (c->peers) want.beside = 0;
        if (got.all != want.all || got.beside != want.beside)
            test_fail("%s, %s: %d of %d matmuls, not %d of %d", c->layout, c->overlap,
                      (int)got.beside, (int)got.all, (int)want.beside, (int)want.all);
        CHECK((got.beside > 0) == c->some);
    }
}
