#include "parallel/step/run.h"

#include "base/clock.h"
#include "parallel/step/run_call.h"

/* ---- collectives ---- */

/* Zeros the padding behind the real rows of this rank's block of a tensor. */
static void clear_padding(const Call *c, int t) {
    const StepTensor *x = tensor(c, t);
    int64_t n = rows(c, t),
            left = x->size[0] - x->padding - mesh_block(c->p->mesh, x->dist.shard[0]) * n;
    clear_from(c, t, (left < 0 ? 0 : left < n ? left : n) * cols(c, t));
}

/* Starts the collective of an operation. by_blocks: a matmul kernel sends or receives blocks. */
static void start_as(const Call *c, bool by_blocks) {
    const Op *op = c->op;
    int src = op->in[0], dst = op->out, block = op->kind == OP_REDUCE_SCATTER ? dst : src;
    const StepTensor *t = tensor(c, block);
    // rows from block to block; 0: adjacent
    int64_t every = tensor(c, block == src ? dst : src)->every;
    bool flat = op->dim != 1;
    // a stored gradient's padding is zero already; that of a temporary is not
    bool clears = tensor(c, src)->storage != STORAGE_GRADIENT;
    if (t->n_block != NO_FLAT_PARTS && op->kind == OP_REDUCE_SCATTER && clears) // of flat parts
        clear_padding(c, src);
    const void *from = at(c, src);
    if (op->kind == OP_BROADCAST) { // the root packs the panel: in its source rows may be strided
        if (is_root(c)) copy_rows(c, dst, src);
        from = at(c, dst);
    }
    c->b->ticket[dst] =
        coll_start(op->kv ? c->m->grid->kv : grid_comm(c->m->grid, op->axes),
                   &(CollCall){.op = op_info(op->kind)->op,
                               .type = t->dtype,
                               .dim = flat ? 0 : 1,
                               .rows = flat ? 1 : rows(c, block),
                               .cols = flat ? step_tensor_elements(c->p, t) : cols(c, block),
                               .root = op->kind == OP_SHIFT ? op->distance
                                       : op->root < 0       ? 0
                                                            : op->root,
                               .stride = flat && op->dim == 0 ? every * cols(c, block) : 0,
                               .src = from,
                               .dst = op->kind == OP_REDUCE && !is_root(c) ? NULL : at(c, dst),
                               .staging = c->b->staging,
                               .by_blocks = by_blocks,
                               .what = tensor(c, dst)->what});
}
static void end(const Call *c, int result) {
    coll_wait(c->b->ticket[result]);
}

/* ---- the loop ---- */

static Bound *program_of(const Model *m, bool backward) {
    StepRun *r = m->program;
    bool next = m->shape.output == OUTPUT_NEXT && m->tk.S == 1;
    return &r->list[backward ? TRAIN : next ? NEXT : FORWARD];
}

static Moment moment(const Model *m) {
    return m->k->clock ? m->k->clock->mark() : now_s();
}

static void run_kernel(const Call *c) {
    const StepHook *hook = c->m->hook;
    bool timed = hook && hook->kernel;
    StepSpan s = {.p = c->p, .op = c->op, .begin = timed ? moment(c->m) : 0};
    op_info(c->op->kind)->run(c);
    if (!timed || s.begin == 0) return;
    s.end = moment(c->m);
    for (int i = 0; i < c->n; i++) s.flops += op_flops(c->p, &c->op[i]);
    hook->kernel(hook->ctx, &s);
}

/* The operand or result of a matmul whose blocks the fused collective receives or sends. */
static BlocksOf blocks_of(const Op *matmul, const Op *collective) {
    if (collective->kind == OP_REDUCE_SCATTER) return BLOCKS_OF_Y;
    if (matmul->kind != OP_MATMUL_AT) return BLOCKS_OF_A;
    return matmul->in[0] == collective->out ? BLOCKS_OF_AT : BLOCKS_OF_B;
}

/* Runs matmuls that are fused with collective `op`: one matmul whose result is reduce-scattered, or
 * several that read a gathered tensor. The last kernel ends the collective. */
static void run_fused(const Call *c, const Op *op) {
    bool gather = op == c->op;
    Call collective = *c, kernel = *c;
    collective.op = op, collective.n = 1;
    start_as(&collective, true);
    RowBlocks all = coll_row_blocks(&c->b->ticket[op->out], rows(c, gather ? op->in[0] : op->out)),
              blocks = all;
    kernel.blocks = &blocks;
    for (int i = gather, n = c->n - !gather, first = (int)(c->op - c->p->op); i < n;
         i += kernel.n) {
        kernel.op = &c->op[i], kernel.n = 1;
        while (i + kernel.n < n && !op_begins_kernel(c->p, first + i + kernel.n)) kernel.n++;
        blocks.matrix = blocks_of(kernel.op, op);
        blocks.done = i + kernel.n == n ? all.done : NULL;
        run_kernel(&kernel);
    }
    if (!c->p->ordered) end(c, op->out);
}

/* The collective that is fused with matmuls in this call; NULL: none. */
static const Op *collective_of(const Call *c) {
    const Op *first = c->op, *last = &c->op[c->n - 1];
    if (c->n == 1) return NULL;
    return op_info(first->kind)->collective ? first : op_info(last->kind)->collective ? last : NULL;
}

/* Runs a kernel, or starts or ends a collective. Collectives are timed by themselves
 * (coll_backend.h), so they do not go through run_kernel. */
static void run_op(const Call *c) {
    const Op *fused = collective_of(c);
    if (fused)
        run_fused(c, fused);
    else if (op_info(c->op->kind)->collective)
        start_as(c, false);
    else if (c->op->kind == OP_WAIT)
        end(c, c->op->in[0]);
    else
        run_kernel(c);
}

/* Is result t of operation i not in memory? A later operation of the kernel overwrites it, or it
 * went to the ranks that reduce it, or its collective has not ended. */
static bool not_in_memory(const Call *c, int i, int t) {
    const Op *fused = collective_of(c);
    if (!at(c, t) || (fused && t == fused->in[0])) return true;
    if (fused && t == fused->out && c->p->ordered) return true;
    for (int k = i + 1; k < c->n; k++)
        if (at(c, c->op[k].out) == at(c, t)) return true;
    return false;
}

/* Calls the hook with the results of a kernel or a collective that are in memory. */
static void look(const Call *c) {
    const StepHook *hook = c->m->hook;
    for (int i = 0; i < c->n; i++) {
        const int results[] = {c->op[i].out, c->op[i].out2};
        for (int k = 0; k < 2; k++) {
            int t = results[k];
            if (t < 0 || not_in_memory(c, i, t)) continue;
            bool here = is_root(c) || c->op->kind == OP_BROADCAST;
            hook->look(hook->ctx, c->m, &(StepResult){c->p, &c->op[i], t, here ? at(c, t) : NULL});
        }
    }
}

/* The collective for which operation i, a wait, waits. */
static const Op *waited_for(const Program *p, int i) {
    int k = i - 1;
    while (p->op[k].out != p->op[i].in[0]) k--;
    return &p->op[k];
}

void run_operations(const Bound *b, Model *m, int begin, int end_of_list) {
    Call c = {.m = m, .k = m->k, .team = m->team, .b = b, .p = &b->p};
    c.at = m->first_micro_batch ? b->at_first : b->at_later;
    for (int i = begin; i < end_of_list; i += c.n) {
        c.op = &b->p.op[i], c.n = op_kernel_end(b->p.op, b->p.n_ops, i) - i;
        if (!op_runs(c.op, m->micro_batches_left == 1)) continue;
        run_op(&c);
        bool alone = op_info(c.op->kind)->collective && c.n == 1;
        if (alone && !b->p.ordered) end(&c, c.op->out);
        if (m->hook && m->hook->look && !(alone && b->p.ordered)) {
            Call made = c;
            if (c.op->kind == OP_WAIT) made.op = waited_for(&b->p, i);
            look(&made);
        }
    }
}

void step_run(Model *m, bool backward) {
    const Bound *b = program_of(m, backward);
    run_operations(b, m, 0, b->p.n_ops);
    if (backward) m->first_micro_batch = false;
}

void *step_run_result(const Model *m, bool backward) {
    const Bound *b = program_of(m, backward);
    return b->at_first[b->p.result];
}

const Program *step_run_micro_batch(const StepRun *r) {
    return &r->list[TRAIN].p;
}
const Program *step_run_end(const StepRun *r) {
    return &r->list[END].p;
}
