#include "parallel/step/passes.h"

#include "parallel/step/schedule.h"

static void chunk_head(Program *p, const Kernels *k, bool exact) {
    int64_t T = step_tensor_local(p, &p->tensor[p->result], 0), S = p->shape->S;
    int64_t V = widths_of(&p->shape->config, p->grid).V;
    int64_t rows = head_chunk(T, V, kernels_on_device(k));
    if (exact) rows = div_up(rows, S) * S; // whole sequences
    program_chunk_head(p, rows);
}

static bool fuses_collectives(const Program *p) {
    return p->shape->overlap.fused && !p->shape->unfused && !p->layout->exact;
}

static Program ordered(Program p, Pass last) {
    bool beside = p.mesh->p > 1 && schedule_window(&p.shape->overlap) > WINDOW_NONE;
    if (last < PASS_SCHEDULE || !beside) return p;
    Schedule s = schedule_nominal(&p);
    program_order(&p, &s);
    schedule_free(&s);
    return p;
}

Program program_micro_batch(Program p, Pass last) {
    if (last >= PASS_SUMS && p.shape->sums) program_sums(&p);
    return ordered(p, last);
}

Program program_passes(const ModelShape *shape, Pass last, const Kernels *k) {
    const Overlap *o = &shape->overlap;
    bool exact = shape->grid && shape->grid->layout.exact;
    Program p = program_make(shape);
    if (k) p.elem_bytes = (int)k->elem_bytes;
    program_forward(&p);
    if (last >= PASS_DIFFERENTIATE && shape->training) program_differentiate(&p);
    p.complete = true;
    if (last >= PASS_RECOMPUTE && shape->training) program_recompute(&p);
    if (last >= PASS_PANELS) program_panels(&p);
    if (last >= PASS_HEAD && shape->output == OUTPUT_LOSSES) chunk_head(&p, k, exact);
    if (last >= PASS_EXACT && exact) program_exact(&p);
    if (last >= PASS_FUSE) program_fuse(&p, k && k->bias_with_dw);
    if (last >= PASS_FUSE && fuses_collectives(&p))
        program_fuse_collectives(&p, kernels_on_device(k));
    if (last >= PASS_SPLIT && (o->chunks > 1 || o->ring)) program_split(&p, o->chunks, o->ring);
    if (last >= PASS_HALVES && o->halves) program_halves(&p);
    return program_micro_batch(p, last);
}

Program program_end_passes(const ModelShape *shape, Pass last, const Kernels *k, bool casts_alone) {
    Program p = program_make(shape);
    if (k) p.elem_bytes = (int)k->elem_bytes;
    program_end(&p, kernels_on_device(k), casts_alone);
    return ordered(p, last);
}
