/* Embedding, head and loss: the two ends of the model, with the vocabulary cut over x and y.
 *
 *   embedding   every rank looks up the tokens that it holds:  x[T/d.z, C] +x +y the debt over y is
 *               scattered by features, that over x reduced, or scattered by tokens positions are
 *               added after that, once
 *   head        h[T/d.z(.x), C/y] is gathered to [T/d.z, C]; logits[T/d.z, V/x.y] are whole
 *               sums: an output of size V is never reduced, only three numbers per token are
 *               (largest logit, sum of exponentials, the target's logit)
 *
 * Source: Megatron-LM (Shoeybi et al. 2019), section 3.
 */
#include "parallel/comm/coll_call.h"
#include "parallel/step/block.h"
#include "parallel/step/exact.h"
#include "parallel/step/probe.h"

static int64_t up_to(int64_t n, int64_t part) {
    return (n + part - 1) / part;
}

/* What the path has gathered to [T, C]. */
static void probe_whole(Model *m, const char *name, int layer, const Act *at, const Path *path) {
    probe(m, &(Probe){.name = name,
                      .layer = layer,
                      .gathered = true,
                      .at = at,
                      .rows = ROWS_ALL,
                      .side = SIDE_CHANNELS,
                      .path = path});
}

/* Where a pass begins there is nothing yet to hide a sum under. So of two halves the second lets
 * the sum of the first go alone, which is there in half the time, and sends its own under the first
 * block of the first. */
static void sum_looked_up(Model *m, const Path *p, const Tokens *tk, Act *x) {
    bool first = m->twin;
    if (!first) world_yield(m->grid->world);
    path_run(p, acts_type(m), m->work.h, tk->T, m->w.C_all, x, m->work.tmp);
    if (first) world_yield(m->grid->world);
}

void embed(Model *m, const Tokens *tk, const int32_t *tokens, Act *x) {
    Embedding e = {
        .B = 1, .S = tk->T, .C = m->w.C_all, .V = m->w.V_n, .token0 = m->w.V_0, .tokens = tokens};
    bool cut = m->linear[LINEAR_HEAD].dx.n > 0;
    e.wte = weight_whole(m, m->wte, "w of embedding");
    const float *wpe = m->wpe < 0 ? NULL : m->tensors.t[m->wpe].param;
    if (!cut) {
        e.B = tk->B, e.S = tk->S, e.wpe = wpe, e.first = tk->first;
        m->k->embedding_forward(m->team, &e, x);
        probe(m, &(Probe){.name = "x", .at = x, .side = SIDE_STREAM});
        return;
    }
    m->k->embedding_forward(m->team, &e, m->work.h);
    Path p = m->linear[LINEAR_HEAD].dx;
    p.what = "x of embedding";
    sum_looked_up(m, &p, tk, x);
    Embedding pos = {.B = tk->T / tk->S, .S = tk->S, .C = m->w.C, .first = tk->first, .wpe = wpe};
    if (wpe) m->k->position_forward(m->team, &pos, tk->T_x, tk->t0, x);
    probe(m, &(Probe){.name = "x", .at = x, .side = SIDE_STREAM, .path = &p});
}

void embed_backward(Model *m, const Tokens *tk, const int32_t *tokens, const Act *dx) {
    Embedding e = {
        .B = 1, .S = tk->T, .C = m->w.C_all, .V = m->w.V_n, .token0 = m->w.V_0, .tokens = tokens};
    Embedding pos = {.B = tk->T / tk->S, .S = tk->S, .C = m->w.C, .first = tk->first};
    Path p = m->linear[LINEAR_HEAD].x; // from the stream to [T/d.z, C], as the head wants it
    p.what = "dx of embedding";
    const Act *whole = path_run(&p, acts_type(m), dx, tk->T_x, m->w.C, m->work.h, m->work.tmp);
    probe_whole(m, "dx", 0, whole, &p);
    if (m->exact) {
        exact_embed_backward(m, tk, &e, &pos, dx, whole);
        return;
    }
    e.workspace = m->embedding_work;
    bool add, fresh = m->grads_fresh; // the head's part is there already when the tables are tied
    e.dwte = grad_open(m, m->wte, &add);
    // A gradient stored cut begins here from zero; otherwise it is added to what the head left, or
    // to the zeros of model_zero_grads.
    if (e.dwte != m->tensors.t[m->wte].grad)
        m->k->zero(m->team, e.dwte, (size_t)(m->w.V * m->w.C_all) * sizeof(float));
    m->k->embedding_backward(m->team, &e, whole);
    pos.dwpe = m->wpe < 0 ? NULL : m->tensors.t[m->wpe].grad;
    if (pos.dwpe) m->k->position_backward(m->team, &pos, tk->T_x, tk->t0, dx);
    m->grads_fresh = fresh && m->head != m->wte;
    grad_done(m, m->wte, "dw of embedding");
    m->grads_fresh = fresh;
}

/* ---- head ---- */

/* Logits of one chunk of tokens, in floats. On the host larger chunks gain nothing. On a device
 * each adds to the float gradient [V, C], 8 V C bytes beside 2 rows V of logits in words and 2 rows
 * V C operations: with GPT-2's vocabulary and C = 768 that was 234 operations a byte for the host's
 * 1,300 rows, and is 489 for a device's 5,300. An H100 keeps busy with 295 and more. */
enum { HEAD_BYTES = 256 << 20, HEAD_BYTES_DEVICE = 1 << 30 };

int64_t head_ld(int64_t V) {
    return up_to(V, 16) * 16;
}

int64_t head_chunk(int64_t T, int64_t V, bool device) {
    int64_t bytes = device ? HEAD_BYTES_DEVICE : HEAD_BYTES;
    int64_t most = bytes / (head_ld(V) * (int64_t)sizeof(float)); // whatever the word
    int64_t chunks = most > 0 ? up_to(T, most) : T;
    int64_t rows = up_to(up_to(T, chunks), 64) * 64; // chunks of about equal length
    return rows < T ? rows : T;
}

/* logits[T, V/x.y] of h[T, C]: the head's weight is [V,C], used transposed. */
static void logits_here(Model *m, Act *logits, int64_t ld, const Act *h, int64_t T, const Act *w) {
    Product p = product_dx(T, m->w.V_n, m->w.C_all, h, m->w.C_all, w);
    p.y = logits, p.ldy = ld;
    product_run(m, p);
}

/* dh[T,C] = dlogits w, and dw[V,C] += dlogits' h, of this rank's columns. */
static void head_dh(Model *m, Act *dh, int64_t T, const Act *w) {
    Product p = product_xw(T, m->w.V_n, m->w.C_all, m->logits, m->ld_logits, w);
    p.y = dh;
    product_run(m, p);
}
static void head_dw(Model *m, const Act *h, int64_t T, float *dw, bool add) {
    Product p = product_dw(T, m->w.V_n, m->w.C_all, m->logits, m->ld_logits, h);
    p.y = dw, p.addend = add ? dw : NULL;
    product_run(m, p);
}

/* Losses of some rows whose logits are in m->logits, which become their gradient. */
static void classify(Model *m, int64_t rows, const int32_t *targets, float *loss, float scale,
                     bool backward) {
    Comm *over = grid_comm(m->grid, axes_of("x.y"));
    Classifier c = {.T = rows,
                    .V = m->w.V_n,
                    .ld = m->ld_logits,
                    .targets = targets,
                    .scale = scale,
                    .backward = backward,
                    .first = m->w.V_0};
    if (m->exact) {
        exact_classify(m, &c, loss);
        return;
    }
    if (!over) {
        m->k->classifier(m->team, &c, loss, m->logits);
        return;
    }
    m->k->classifier_statistics(m->team, &c, m->work.stats, m->logits);
    coll_gather(over, COLL_F32, m->work.stats, 3 * rows, m->work.parts, "statistics of loss");
    m->k->classifier_merge(&c, loss, m->work.log_sum, m->work.parts, comm_size(over));
    if (backward) m->k->classifier_gradient(m->team, &c, m->work.stats, m->work.log_sum, m->logits);
}

/* With bulk the sum of dh runs under the last product dw. */
void head_loss(Model *m, const Tokens *tk, const Act *h, Act *dh, const int32_t *targets,
               float scale, bool backward) {
    const Linear *l = &m->linear[LINEAR_HEAD];
    int64_t C = m->w.C_all, T = tk->T;
    const Act *whole = path_run(&l->x, acts_type(m), h, tk->T_x, m->w.C, m->work.h, m->work.tmp);
    probe_whole(m, "h", -1, whole, &l->x);
    const Act *w = weight_whole(m, m->head, l->what_w);
    Act *part = backward && l->dx.n ? m->work.dlast : dh;
    float *dw = NULL;
    PathRun sum = {0};
    bool add = false, bulk = m->shape.overlap.bulk;
    if (backward && !m->exact) dw = grad_open(m, m->head, &add);
    for (int64_t t = 0; t < T; t += m->head_rows) {
        int64_t rows = T - t < m->head_rows ? T - t : m->head_rows;
        const Act *h_t = acts_at(m, whole, t * C);
        logits_here(m, m->logits, m->ld_logits, h_t, rows, w);
        classify(m, rows, targets + t, m->losses + t, scale, backward);
        if (backward && m->exact) exact_head_backward(m, t, rows, h_t, w);
        if (!dw) continue;
        head_dh(m, acts_at(m, part, t * C), rows, w);
        if (bulk && t + rows == T)
            sum = path_begin(&l->dx, acts_type(m), part, T, C, dh, m->work.tmp);
        head_dw(m, h_t, rows, dw, add || t > 0);
    }
    if (backward && m->exact) exact_head_done(m, tk, dh);
    probe(m, &(Probe){.name = "losses",
                      .layer = -1,
                      .at = m->losses,
                      .rows = ROWS_ALL,
                      .side = SIDE_ONE,
                      .cause = {{grid_comm(m->grid, axes_of("x.y")), COLL_ALL_GATHER,
                                 "statistics of loss"}}});
    if (dw) {
        grad_done(m, m->head, l->what_dw);
        if (!bulk) sum = path_begin(&l->dx, acts_type(m), part, T, C, dh, m->work.tmp);
        path_end(&sum);
        probe(m,
              &(Probe){.name = "dh", .layer = -1, .at = dh, .side = SIDE_STREAM, .path = &l->dx});
    }
}
