/* Kernels of --exact: matmuls whose results are integers, and floats of sums. Others ask in
 * run_kernels.c for the type of their result. */
#include "layers/exact.h"
#include "parallel/step/run_call.h"

/* The sum of a matmul is over panels: `size` terms each, counted from the start of every `unit` (0:
 * one unit). Each has one rank on every mesh. */
typedef struct Panels {
    int64_t size, unit;
} Panels;

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static Panels panels_of(const Model *m, LinearKind kind, What what) {
    const Config *c = &m->shape.config;
    int64_t S = m->tk.S, D = m->w.D;
    bool heads = what == WHAT_Y ? kind == LINEAR_ATTN_OUT : kind == LINEAR_QKV;
    bool hidden = what == WHAT_Y ? kind == LINEAR_DOWN : kind == LINEAR_UP;
    if (what == WHAT_DW) return (Panels){smaller(S, 64), S}; // over tokens
    if (heads) return (Panels){smaller(D, 64), D};
    if (kind == LINEAR_HEAD)
        return (Panels){exact_panel(c->vocab), 0}; // of dx: the head's y, logits, stays float
    return (Panels){exact_panel(hidden ? c->ffn : c->channels), 0};
}

/* The grid of that sum. */
static int exponent_of(const Model *m, What what) {
    return what == WHAT_Y    ? EXACT_ACTIVATIONS
           : what == WHAT_DX ? exact_gradients((double)m->scale)
                             : EXACT_WEIGHTS;
}

void run_exact_matmul(const Call *c, Matmul p, int out, int64_t stripes, bool overwrite) {
    What what = WHAT_DW;
    LinearKind kind = LINEAR_HEAD; // any: of wgrad, whose panels are of tokens, it is not read
    if (c->op->kind != OP_MATMUL_AT) kind = linear_named(tensor(c, out)->what, &what);
    Panels k = panels_of(c->m, kind, what);
    MatmulExact x = {.k_panel = k.size,
                     .k_unit = k.unit,
                     .exponent = exponent_of(c->m, what),
                     .overwrite = overwrite};
    for (int64_t i = 0, every = tensor(c, out)->every; i < stripes; i++) {
        x.y_64 = (int64_t *)at(c, out) + i * every * p.ldy;
        c->m->k->matmul_exact(c->m->team, &p, &x);
        p.a = act_at(p.a, every * p.a_row, c->m->k->elem_bytes);
    }
}

void run_round(const Call *c) {
    int sum = c->op->in[0], out = c->op->out;
    int64_t n = step_tensor_elements(c->p, tensor(c, out));
    What what;
    if (tensor(c, out)->is_double) {
        *(double *)at(c, out) = c->m->k->exact_wide_to_double(at(c, sum));
        return;
    }
    if (tensor(c, out)->storage == STORAGE_GRADIENT)
        what = WHAT_DW;
    else
        linear_named(tensor(c, sum)->what, &what);
    c->m->k->exact_to_float(c->m->team, at(c, out), at(c, sum), n, exponent_of(c->m, what));
}
