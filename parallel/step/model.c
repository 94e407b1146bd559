#include "parallel/step/model.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "parallel/comm/devices.h"
#include "parallel/step/mirror.h"
#include "parallel/step/run.h"

static float *floats(Arena *a, int64_t n) {
    return arena_take(a, (size_t)n * sizeof(float));
}

/* Takes memory for the gradient of tensor i: floats, with --exact 64-bit integers. */
static void take_gradient(Model *m, int i) {
    Tensor *t = &m->tensors.t[i];
    int64_t n = tensor_part(t, PART_GRAD);
    if (m->exact)
        m->grad_64[i] = arena_take(&m->arena[ARENA_GRADS], (size_t)n * sizeof(int64_t));
    else
        t->grad = floats(&m->arena[ARENA_GRADS], n);
}

/* Gradients of one bucket are contiguous (sums.c): gradients are ordered by the number of axes
 * along which they are partial, so matrices come before vectors. */
static void take_gradients(Model *m) {
    const TensorTable *t = &m->tensors;
    for (int i = 0; m->exact && i < t->n; i++) // the floats to which integers are rounded
        t->t[i].grad = floats(&m->arena[ARENA_GRADS], tensor_part(&t->t[i], PART_GRAD));
    for (int axes = 1, n = 0; axes <= N_AXES; axes++)
        for (int i = 0; i < t->n; i++)
            if (shard_partial_axes(t, i, &m->grid->layout).n == axes)
                take_gradient(m, m->grad_order[n++] = i);
}

/* Takes memory of the outer loop: anchor and velocity, each laid out as the arena of parameters. */
static void take_outer(Model *m) {
    size_t n = m->arena[ARENA_PARAMS].used;
    m->anchor = arena_take(&m->arena[ARENA_OUTER], n);
    m->velocity = m->shape.outer == 2 ? arena_take(&m->arena[ARENA_OUTER], n) : NULL;
    for (int i = 0; m->velocity && i < m->tensors.n; i++)
        m->tensors.t[i].velocity = m->velocity + (m->tensors.t[i].param - m->tensors.t[0].param);
}

/* Sets the weights that matmuls read: bf16 copies of the master weights, or the fp32 weights. */
static void place_casts(Model *m) {
    for (int i = 0; i < m->tensors.n; i++) {
        Tensor *t = &m->tensors.t[i];
        if (!has_bf16_copies(m) || !t->in_matmuls)
            t->cast = t->param;
        else
            t->cast = m->shape.borrow
                          ? m->shape.borrow->t[i].cast
                          : arena_take(&m->arena[ARENA_PARAMS],
                                       (size_t)tensor_part(t, PART_CAST) * m->k->elem_bytes);
    }
}

/* Takes memory for weights, gradients, moments, and what the outer loop keeps. */
static void take_tensors(Model *m) {
    for (int i = 0; i < m->tensors.n; i++) {
        Tensor *t = &m->tensors.t[i];
        t->param = m->shape.borrow ? m->shape.borrow->t[i].param
                                   : floats(&m->arena[ARENA_PARAMS], tensor_part(t, PART_PARAM));
        if (!m->shape.training) continue;
        t->m = floats(&m->arena[ARENA_OPTIMIZER], tensor_part(t, PART_MOMENTS));
        t->v = floats(&m->arena[ARENA_OPTIMIZER], tensor_part(t, PART_MOMENTS));
    }
    place_casts(m);
    if (m->shape.training) take_gradients(m);
    if (m->shape.outer) take_outer(m);
}

/* Takes memory for the tokens of a micro-batch and for the temporaries of all lists. */
static void take_activations(Model *m, Arena *a) {
    size_t n = (size_t)(m->halves * m->tk.T);
    m->inputs = arena_take(a, n * sizeof *m->inputs);
    m->targets = arena_take(a, n * sizeof *m->targets);
    if (m->shape.training && kernels_on_device(m->k))
        m->order = arena_take(a, n * sizeof *m->order);
    step_run_bind(m, a);
}

/* Takes the workspaces of kernels. */
static void take_workspaces(Model *m, Arena *a) {
    int threads = m->shape.threads ? m->shape.threads : team_size(m->team);
    if (m->shape.training) {
        size_t norm = m->k->norm_workspace(m->tk.T_x, m->w.C), heads = 0;
        if (m->shape.config.qk_norm) heads = m->k->norm_workspace(m->tk.T, m->w.D);
        m->norm_work = arena_take(a, max_size(norm, heads));
        m->embedding_work = arena_take(a, m->k->embedding_workspace(m->tk.T, m->w.C_all));
    }
    // a sampled token attends to the whole cache, however short the prompt is
    int64_t S = m->shape.output == OUTPUT_NEXT ? m->shape.config.seq : m->tk.S;
    m->matmul_work = arena_take(a, m->k->matmul_workspace(threads));
    m->attention_work =
        arena_take(a, m->k->attention_workspace(threads, m->tk.B, S, m->w.H, m->w.Hkv, m->w.D));
}

/* Takes all memory of the model out of its arenas. model_plan calls it on arenas that only add up
 * sizes, model_allocate on arenas that have memory: sizes and pointers come from the same code. */
static void take_memory(Model *m) {
    Arena *acts = &m->arena[ARENA_ACTS], *work = &m->arena[ARENA_WORK];
    take_tensors(m);
    if (m->shape.config.pos == POS_ROPE) m->rope_table = floats(work, m->shape.config.seq * m->w.D);
    take_activations(m, acts);
    take_workspaces(m, work);
    if (m->k->sum_to) m->end.device_losses = arena_take(work, 2 * sizeof *m->end.device_losses);
}

/* Do collectives send from or receive into the memory of an arena? */
static bool sent(int arena) {
    return arena != ARENA_OPTIMIZER && arena != ARENA_OUTER;
}

void model_plan(Model *m, const ModelShape *shape, const Kernels *k, Team *team) {
    static const char *const names[N_ARENAS] = {"parameters",  "gradients", "optimizer",
                                                "activations", "workspace", "outer loop"};
    assert(shape->S <= shape->config.seq);
    *m =
        (Model){.shape = *shape, .k = k, .team = team, .tensors = tensors_describe(&shape->config)};
    m->grid = shape->grid ? shape->grid : grid_one();
    m->exact = m->grid->layout.exact;
    m->w = widths_of(&shape->config, m->grid);
    bool halves = shape->overlap.halves && shape->training && shape->B % 2 == 0;
    m->B = halves ? shape->B / 2 : shape->B;
    m->tk = tokens_of(m->grid, m->B, shape->S, 0);
    shard_tensors(&m->tensors, m->grid, has_bf16_copies(m));
    m->halves = halves ? 2 : 1;
    m->program = step_run_plan(m);
    m->grad_64 = mem_calloc((size_t)m->tensors.n, sizeof *m->grad_64);
    m->grad_order = mem_calloc((size_t)m->tensors.n, sizeof *m->grad_order);
    for (int i = 0; i < N_ARENAS; i++) {
        m->arena[i] = arena_measure(names[i]);
        m->arena[i].memory = sent(i) ? world_memory(m->grid->world, k->memory) : k->memory;
    }
    take_memory(m);
}

static void make_rope(Model *m) {
    const Config *c = &m->shape.config;
    int64_t D = config_head_size(c);
    size_t n_bytes = (size_t)(c->seq * D) * sizeof(float);
    float *table = mem_alloc(n_bytes);
    rope_table(table, c->seq, c);
    model_put(m, m->rope_table, table, n_bytes);
    mem_free(table);
}

void model_allocate(Model *m) {
    const Config *c = &m->shape.config;
    for (int i = 0; i < N_ARENAS; i++) {
        arena_commit(&m->arena[i]);
        if (sent(i)) world_register(m->grid->world, &m->arena[i]);
    }
    take_memory(m);
    if (c->pos == POS_ROPE) make_rope(m);
    if (kernels_on_device(m->k) && !m->shape.borrow) mirror_make(m);
    if (!m->end.device_losses) return;
    m->end.memory = arena_block("totals on the host", m->k->pinned, sizeof *m->end.copy);
    m->end.copy = (void *)m->end.memory.base;
}

/* The grid is used only if the arena has memory: a planned model may outlive its grid. */
static void free_arena(Model *m, int i) {
    Arena *a = &m->arena[i];
    if (a->base) world_unregister(m->grid->world, a);
    arena_free(a);
}

void model_keep_state(Model *m) {
    replay_free(m);
    for (int i = 0; i < N_ARENAS; i++)
        if (i != ARENA_PARAMS && i != ARENA_OPTIMIZER) free_arena(m, i);
}

void model_free(Model *m) {
    replay_free(m); // recordings have addresses in the arenas
    for (int i = 0; i < N_ARENAS; i++) free_arena(m, i);
    arena_free(&m->orders);
    step_run_free(m->program);
    mem_free(m->grad_64), mem_free(m->grad_order);
    mirror_free(m);
    arena_free(&m->end.memory);
    tensors_free(&m->tensors);
    *m = (Model){0};
}

bool model_clears(const Model *m, int i) {
    bool looked_up = !m->shape.config.tied && strcmp(m->tensors.t[i].name, "wte") == 0;
    return looked_up || !shard_has_flat_parts(&m->tensors, i); // vectors, wpe
}

/* Allocates an order of tokens for each micro-batch of a step: the device may still copy the order
 * of the first micro-batch when the host makes that of the last. */
static void allocate_orders(Model *m, int64_t micro_batches) {
    size_t n = (size_t)(micro_batches * m->halves * m->tk.T + m->w.V_n + 2) * sizeof *m->order;
    if (!m->order || n <= m->orders.cap) return;
    arena_free(&m->orders);
    m->orders = arena_block("orders of tokens", m->k->pinned, n);
}

/* Gradients of vectors and wpe lie after those of matrices: one call clears all of them. */
void model_zero_grads(Model *m, int64_t micro_batches) {
    const Arena *grads = &m->arena[ARENA_GRADS];
    bool matrix = true;
    for (int k = 0; matrix && k < m->tensors.n; k++) {
        int i = m->grad_order[k];
        char *at = m->exact ? (char *)m->grad_64[i] : (char *)m->tensors.t[i].grad;
        size_t n = (size_t)tensor_part(&m->tensors.t[i], PART_GRAD);
        size_t n_bytes = n * (m->exact ? sizeof **m->grad_64 : sizeof(float));
        matrix = shard_has_flat_parts(&m->tensors, i);
        if (!matrix) n_bytes = (size_t)(grads->base + grads->used - at);
        if (model_clears(m, i)) m->k->zero(m->team, at, n_bytes);
    }
    model_zero_losses(m);
    allocate_orders(m, micro_batches);
    m->first_micro_batch = true;
    m->micro_batches_left = micro_batches;
}

Tokens tokens_of(const Grid *g, int64_t B, int64_t S, int64_t first) {
    const Layout *l = &g->layout;
    int64_t X = g->mesh.size[AXIS_X], x = g->mesh.coord[AXIS_X], T = B * S;
    Tokens t = {.B = B, .S = S, .T = T, .T_x = T, .first = first};
    if (l->stay) { // whole sequences
        t.B = div_up(B, X), t.T_x = t.B * S;
    } else if (layout_tokens_over_x(l)) {
        t.T_x = div_up(T, X);
    } else {
        return t;
    }
    t.T = X * t.T_x, t.t0 = x * t.T_x;
    return t;
}

void model_tokens(Model *m, int64_t at, int64_t n, const int32_t *inputs, const int32_t *targets) {
    m->k->copy_tokens(m->inputs + at, m->tk.T, inputs, n, 0);
    m->k->copy_tokens(m->targets + at, m->tk.T, targets, n, -1);
}

void model_pass(Model *m, bool backward) {
    step_run(m, backward);
    for (int i = 0; i < m->halves; i++) model_add_losses(m, m->losses + i * m->tk.T, m->tk.T);
}

/* Makes the order in which embedding_backward sums the n tokens of half h, and copies it to the
 * device. */
static void put_order(Model *m, int h, const int32_t *inputs, int64_t n) {
    int64_t T = m->tk.T;
    int32_t *begin = (void *)m->orders.base, *orders = begin + m->w.V_n + 2;
    int32_t *order = orders + ((m->micro_batches_left - 1) * m->halves + h) * T;
    Embedding e = {.B = 1, .S = T, .V = m->w.V_n, .token0 = m->w.V_0, .tokens = inputs};
    embedding_order(order, begin, &e, n);
    m->k->copy_tokens(m->order + h * T, T, order, T, 0);
}

/* Copies tokens and orders for a pass, and sets m->losses to the losses that the pass makes.
 * Outside of the pass, which may be the replay of a recording. */
static void prepare(Model *m, const int32_t *inputs, const int32_t *targets, bool backward) {
    int64_t n = m->B * m->shape.S;
    m->losses = step_run_result(m, backward);
    for (int i = 0; i < m->halves; i++) {
        const int32_t *own = inputs ? inputs + i * n : NULL;
        model_tokens(m, i * m->tk.T, n, own, targets ? targets + i * n : NULL);
        if (own && m->order && backward) put_order(m, i, own, n);
    }
}

void model_step(Model *m, const int32_t *inputs, const int32_t *targets, float scale) {
    assert(m->shape.training && m->micro_batches_left > 0);
    m->scale = scale;
    prepare(m, inputs, targets, true);
    replay(m);
    m->micro_batches_left--;
}

void model_loss(Model *m, const int32_t *inputs, const int32_t *targets, float *losses) {
    size_t n = (size_t)(m->B * m->shape.S);
    prepare(m, inputs, targets, false);
    model_pass(m, false);
    for (int i = 0; losses && i < m->halves; i++)
        model_get(m, losses + (size_t)i * n, m->losses + i * m->tk.T, n * sizeof *losses);
}

void model_logits(Model *m, const int32_t *inputs, float *logits) {
    int64_t n = m->shape.B * m->shape.S, V = m->shape.config.vocab;
    int64_t row = m->w.V * mesh_blocks(&m->grid->mesh, axes_of("x.y")); // with padding
    ModelShape s = m->shape;
    Model own;
    s.output = OUTPUT_LOGITS, s.borrow = &m->tensors;
    s.training = s.samples = false;
    model_plan(&own, &s, m->k, m->team);
    model_allocate(&own);
    model_tokens(&own, 0, n, inputs, NULL);
    step_run(&own, false);
    for (int64_t t = 0; t < n; t++)
        m->k->to_floats(logits + t * V, acts_at(m, step_run_result(&own, false), t * row), V);
    model_free(&own);
}
