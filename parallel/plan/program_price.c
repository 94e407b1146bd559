#include "parallel/plan/program_price.h"

#include "base/mem.h"
#include "parallel/step/passes.h"

_Static_assert((int)LINK_LEVELS == (int)MAX_LEVELS, "levels of a schedule are those of a machine");

/* Layers of the shorter list. The first and the last layer differ from those between. In a list
 * that overlaps, links may be busy with the tables of the vocabulary while the kernels of a layer
 * or two run: more layers are needed until each further one costs the same. Against lists of all
 * layers, over every layout of 1 to 8 ranks: (2, 3) at most 8 % off, (4, 5) 2 %. */
enum { ALIKE_NONE = 2, ALIKE_BULK = 4 };

Played program_played(const Program *p, const Schedule *s) {
    Played out = {.compute = s->compute, .exposed = s->exposed, .sent = s->sent};
    for (int l = 0; l < MAX_LEVELS; l++) out.own[l] = s->own[l], out.busy[l] = s->busy[l];
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->op[i];
        if (!op_info(op->kind)->collective) continue;
        out.received += op_bytes(p, op), out.calls++;
        if (axes_has(op->axes, AXIS_D)) out.meeting += s->time[i].waited;
    }
    return out;
}

Program program_of_layers(const ModelShape *shape, int64_t layers, const Machine *m, int threads,
                          ModelShape *few, OpCost **costs) {
    const Kernels *k = machine_kernels(m, shape->bf16);
    *few = *shape;
    few->config.layers = layers;
    if (shape->overlap.halves) few->B /= 2;
    Program p = program_passes(few, PASS_HALVES, k);
    *costs = program_costs(&p, m, threads);
    return p;
}

static Played run(const ModelShape *shape, int64_t layers, const Machine *m, int threads) {
    ModelShape few;
    OpCost *costs;
    Program p = program_of_layers(shape, layers, m, threads, &few, &costs);
    Schedule s = schedule_make(&p, costs, schedule_window(&shape->overlap));
    Played out = program_played(&p, &s);
    schedule_free(&s);
    mem_free(costs);
    program_free(&p);
    return out;
}

void program_price(const ModelShape *shape, const Machine *m, int threads, Price *out) {
    int64_t layers = shape->config.layers, alike = ALIKE_NONE;
    if (schedule_window(&shape->overlap) > WINDOW_NONE) alike = ALIKE_BULK;
    int64_t few = layers < alike ? layers : alike;
    Played p = run(shape, few, m, threads);
    if (layers > few) {
        Played fewer = p, more = run(shape, few + 1, m, threads);
        played_add(&p, &more, &fewer, layers - few);
    }
    played_price(&p, m, 0, out);
}
