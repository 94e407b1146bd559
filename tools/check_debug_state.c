/* check_debug_state -- does this trainer compute what PyTorch computed for llm.c?
 *
 *     check_debug_state --init gpt2_124M.bin --state gpt2_124M_debug_state.bin
 *
 * Runs forward and backward on the tokens of a debug state and compares logits, loss and the
 * sixteen gradients with those in the file. One line per tensor; exit status 1 when one is off. The
 * error is |ours - theirs| / |theirs| in the Euclidean norm of the whole tensor, so a small
 * gradient that is all wrong does not pass.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/opt.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/llmc.h"
#include "data/weights.h"
#include "parallel/step/model.h"

static const char *init_path, *state_path, *set;
static double tolerance;
static int64_t n_threads;

static const Opt options[] = {
    {"init", OPT_STR, &init_path, "", 0, 0, "FILE", "model: llm.c .bin, .safetensors or a folder"},
    {"state", OPT_STR, &state_path, "", 0, 0, "FILE", "debug state of that model"},
    {"tolerance", OPT_FLOAT, &tolerance, "1e-4", 0, 1, "X",
     "largest relative error (a bf16 model needs about 0.05: its state has the fp32 weights' "
     "numbers)"},
    {"threads", OPT_INT, &n_threads, "0", 0, 4096, "N", "threads; 0: one per core"},
    {"set", OPT_STR, &set, "", 0, 0, "NAME",
     "instruction set (default: the best of this processor)"},
    {0}};

/* The sums that make one line of the table. */
typedef struct Line {
    double diff2, ref2, worst;
} Line;

static void add(Line *l, double ours, double theirs) {
    double d = ours - theirs;
    l->diff2 += d * d, l->ref2 += theirs * theirs;
    if (!(fabs(d) <= l->worst)) l->worst = fabs(d); // NaN gets in
}

static bool print_line(const char *name, const Line *l) {
    double error = l->diff2 == 0 ? 0 : sqrt(l->diff2 / (l->ref2 > 0 ? l->ref2 : 1e-30));
    bool ok = error <= tolerance; // false for NaN
    printf("%-10s %12.3g %12.3g   %s\n", name, error, l->worst, ok ? "ok" : "OFF");
    return ok;
}

static float float_at(const uint8_t *p, int64_t i) {
    float x;
    memcpy(&x, p + i * 4, 4);
    return x;
}

static bool compare_logits(Model *m, const LlmcState *s, const int32_t *x) {
    int64_t n = s->B * s->T * m->shape.config.vocab;
    float *logits = mem_alloc((size_t)n * sizeof *logits);
    Line line = {0};
    model_logits(m, x, logits);
    for (int64_t i = 0; i < n; i++) add(&line, (double)logits[i], (double)float_at(s->logits, i));
    mem_free(logits);
    return print_line("logits", &line);
}

static bool compare_gradient(const Model *m, const LlmcState *s, int k) {
    LlmcTensor x = llmc_tensor(&m->shape.config, k);
    Line line = {0};
    for (int l = 0; l < x.layers; l++) {
        const Tensor *t = &m->tensors.t[llmc_find(&m->tensors, k, l)];
        int64_t at = x.offset + l * x.rows * x.cols;
        for (int64_t r = 0; r < t->rows; r++)
            for (int64_t c = 0; c < t->cols; c++)
                add(&line, (double)t->grad[r * t->cols + c],
                    (double)float_at(s->grads,
                                     at + (x.transposed ? c * x.cols + r : r * x.cols + c)));
    }
    return print_line(x.name, &line);
}

static int compare(Model *m, const LlmcState *s) {
    size_t bytes = (size_t)(s->B * s->T) * sizeof(int32_t);
    int32_t *x = mem_alloc(bytes), *y = mem_alloc(bytes);
    memcpy(x, s->x, bytes);
    memcpy(y, s->y, bytes);
    for (int64_t i = 0; i < s->B * s->T; i++)
        if (x[i] < 0 || y[i] < -1 || x[i] >= m->shape.config.vocab || y[i] >= m->shape.config.vocab)
            die("%s: token %lld is outside the vocabulary: the file is damaged", state_path,
                (long long)i);
    printf("%-10s %12s %12s\n", "", "relative", "worst");
    int off = !compare_logits(m, s, x);
    double per_token = 1.0 / (double)(s->B * s->T);
    model_zero_grads(m, 1);
    model_step(m, x, y, (float)per_token);
    double loss = model_losses(m) * per_token;
    Line line = {0};
    add(&line, loss, (double)s->loss);
    off += !print_line("loss", &line);
    for (int k = 0; k < LLMC_TENSORS; k++) off += !compare_gradient(m, s, k);
    mem_free(x);
    mem_free(y);
    return off;
}

int main(int argc, char **argv) {
    die_set_program(argv[0]);
    opt_parse(options, argc, argv, "usage: check_debug_state --init MODEL --state FILE [options]");
    if (!*init_path || !*state_path) die_usage("--init and --state are needed");
    ModelShape shape = {.training = true};
    IoMap map;
    LlmcState s;
    Err e;
    if (!weights_config(init_path, &shape.config, &e) || !io_map(&map, state_path, &e))
        die("%s", e.text);
    if (!llmc_state_parse(map.p, map.n, &shape.config, &s, &e)) die("%s: %s", state_path, e.text);
    shape.B = s.B, shape.S = s.T;
    const Kernels *k = kernels_cpu(*set ? set : NULL);
    if (!k) die_usage("--set %s: this processor or program has no such set", set);
    Team *team = team_create((int)n_threads);
    Model m;
    model_plan(&m, &shape, k, team);
    model_allocate(&m);
    if (!weights_load(init_path, &m.tensors, &group_alone, &e)) die("%s", e.text);
    int off = compare(&m, &s);
    printf("%s\n", off ? "DIFFERENT" : "all within tolerance");
    model_free(&m);
    team_destroy(team);
    io_unmap(&map);
    return off > 0;
}
