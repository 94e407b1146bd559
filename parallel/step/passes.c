/* A pass that neither layout nor --overlap asks for is left out. The lists that a rank keeps, and
 * which one runs when: run_bind.c, run.c. */
#include "parallel/step/passes.h"

#include "parallel/step/schedule.h"

/* Splits the head into chunks of tokens; with --exact into whole sequences, as its panels are. */
static void chunk_head(Program *p, const Kernels *k) {
    int64_t T = step_tensor_local(p, &p->tensor[p->result], 0), S = p->shape->S;
    int64_t V = widths_of(&p->shape->config, p->grid).V;
    int64_t rows = head_chunk(T, V, kernels_on_device(k));
    if (p->layout->exact) rows = div_up(rows, S) * S;
    program_chunk_head(p, rows);
}

/* The list in the order in which it runs with --overlap. Without overlap the list stays in its
 * order, and every collective is waited for where it starts. */
static Program ordered(Program p, Pass upto) {
    bool overlaps = p.mesh->p > 1 && schedule_window(&p.shape->overlap) > WINDOW_NONE;
    if (upto < PASS_SCHEDULE || !overlaps) return p;
    program_order_nominal(&p);
    return p;
}

/* An empty program of tensors as these kernels store them. */
static Program make_for(const ModelShape *shape, const Kernels *k) {
    Program p = program_make(shape);
    if (k) p.dtype = k->elem_bytes == 2 ? COLL_BF16 : COLL_F32;
    return p;
}

Program program_passes(const ModelShape *shape, Pass upto, const Kernels *k) {
    const Overlap *o = &shape->overlap;
    Program p = make_for(shape, k);
    program_forward(&p);
    if (upto >= PASS_DIFFERENTIATE && shape->training) program_differentiate(&p);
    p.values_fixed = true;
    if (upto >= PASS_RECOMPUTE && shape->training) program_recompute(&p);
    if (upto >= PASS_PANELS) program_panels(&p);
    if (upto >= PASS_HEAD && shape->output == OUTPUT_LOSSES) chunk_head(&p, k);
    if (upto >= PASS_EXACT && p.layout->exact) program_exact(&p);
    if (upto >= PASS_FUSE) program_fuse(&p, k && k->bias_with_dw);
    if (upto >= PASS_FUSE && o->fused && !shape->unfused && !p.layout->exact)
        program_fuse_collectives(&p, kernels_on_device(k));
    if (upto >= PASS_SPLIT && (o->chunks > 1 || o->ring)) program_split(&p, o->chunks, o->ring);
    if (upto >= PASS_HALVES && o->halves) program_halves(&p);
    if (upto >= PASS_SUMS && shape->training) program_sums(&p);
    return ordered(p, upto);
}

Program program_end_passes(const ModelShape *shape, Pass upto, const Kernels *k, bool casts_alone) {
    Program p = make_for(shape, k);
    program_end(&p, kernels_on_device(k), casts_alone);
    return ordered(p, upto);
}
