#include "parallel/step/exact.h"
#include "parallel/comm/coll.h"

/* ---- where sums are cut ---- */

/* Panels of a sum: `size` terms each, counted from the start of every `unit` (0: one unit). */
typedef struct Panels {
    int64_t size, unit;
} Panels;

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static Panels of_heads(const Model *m) {
    return (Panels){smaller(m->w.D, 64), m->w.D};
}

static Panels of_features(int64_t n) {
    return (Panels){exact_panel(n), 0};
}

static Panels of_tokens(int64_t S) {
    return (Panels){smaller(S, 64), S};
}

static Panels panels_of(const Model *m, LinearKind kind, What what) {
    const Config *c = &m->shape.config;
    bool heads = what == WHAT_Y ? kind == LINEAR_ATTN_OUT : kind == LINEAR_QKV;
    bool hidden = what == WHAT_Y ? kind == LINEAR_DOWN : kind == LINEAR_UP;
    if (what == WHAT_DW) return of_tokens(m->tk.S);
    if (heads) return of_heads(m);
    if (kind == LINEAR_HEAD) return of_features(c->vocab); // dx: logits are no such sum
    return of_features(hidden ? c->ffn : c->channels);
}

int exact_exponent(const Model *m, What what) {
    return what == WHAT_Y    ? EXACT_ACTIVATIONS
           : what == WHAT_DX ? exact_gradients((double)m->scale)
                             : EXACT_WEIGHTS;
}

void exact_product(Model *m, LinearKind kind, What what, Product p, int64_t *y, bool fresh) {
    Panels k = panels_of(m, kind, what);
    p.workspace = m->product_work;
    m->k->product_exact(m->team, &p,
                        &(ProductExact){.y_64 = y,
                                        .k_panel = k.size,
                                        .k_unit = k.unit,
                                        .exponent = exact_exponent(m, what),
                                        .fresh = fresh});
}

int64_t exact_head_rows(int64_t rows, int64_t S, int64_t T) {
    return smaller((rows + S - 1) / S * S, T);
}

/* ---- the end of a step ---- */

void exact_add_losses(Model *m, const float *losses, int64_t n) {
    m->k->exact_sum(m->team, m->loss_64, losses, n);
}

double exact_loss_total(Model *m) {
    coll_sum(grid_comm(m->grid, axes_of("d.z")), COLL_I64, m->loss_64, WIDE, "sum of losses");
    return m->k->exact_wide_to_double(m->loss_64);
}
