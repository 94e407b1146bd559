/* The whole model against PyTorch: logits, loss, every gradient, ten AdamW steps.
 *
 * tests/golden_gpt.py computed the files in double precision, so all of a difference is ours.
 * PyTorch's own fp32 (see the .txt files) is 8e-7 off in a loss, 6e-7 of a norm, 2e-6 in a logit,
 * 6e-13 (nmse) in the worst gradient.
 */
#include "tests/parsed.h"
#include "tests/test.h"

#include <inttypes.h>

#include "base/die.h"
#include "parallel/step/model.h"

enum { MAX_STEPS = 10, MAX_TOKENS = 64, MAX_TENSORS = 40, SAMPLES = 16 };

typedef struct Named {
    char name[48];
    int64_t rows, cols;
    const float *data;
} Named;

typedef struct BinFile {
    char *bytes;
    Named t[MAX_TENSORS];
    int n;
} BinFile;

typedef struct Final { // of one tensor, after the last step
    char name[48];
    double sum, abs_sum, value[SAMPLES];
    int64_t place[SAMPLES];
    int n;
} Final;

typedef struct Golden {
    char config[256];
    int64_t B, S;
    int steps, n_final;
    double lr, beta1, beta2, eps, decay, clip;
    int32_t inputs[MAX_STEPS][MAX_TOKENS], targets[MAX_STEPS][MAX_TOKENS];
    double loss[MAX_STEPS], norm[MAX_STEPS];
    Final final[MAX_TENSORS];
    BinFile weights, grads;
} Golden;

/* How far from the truth a run may be. */
typedef struct Tolerance {
    double logit, loss, norm, grad_nmse, later_loss, later_norm, weight,
        sum; // sum: share of the sum of magnitudes
} Tolerance;

/* fp32: a few times PyTorch's distance. A loss of 4.5 has an ulp of 5e-7. Of the sums: (float)(1 -
 * lr * decay) is 3e-8 off, the same way in each of ten steps, so a sum of magnitudes is 3e-7 of
 * itself off. */
static const Tolerance fp32_limits = {.logit = 8e-6,
                                      .loss = 2e-6,
                                      .norm = 2e-6,
                                      .grad_nmse = 5e-12,
                                      .later_loss = 2e-6,
                                      .later_norm = 3e-6,
                                      .weight = 2e-6,
                                      .sum = 1e-6};
/* bf16: operands carry 8 bits, each is up to 2^-9 of itself off: nmse 2 * 2^-18 / 3 = 2.5e-6 of one
 * matmul, and the worst gradient has some forty such matmuls before it. In AdamW the sign of a
 * small gradient may change: 2 lr. */
static const Tolerance bf16_limits = {.logit = 8e-2,
                                      .loss = 6e-3,
                                      .norm = 6e-3,
                                      .grad_nmse = 5e-4,
                                      .later_loss = 8e-3,
                                      .later_norm = 1.5e-2,
                                      .weight = 2e-3,
                                      .sum = 1e-3};

static char *read_file(const char *path, size_t *n) {
    char *p = test_read(path, n);
    if (!p) die("cannot open %s: run the tests from the top of the tree", path);
    return p;
}

static void read_bin(BinFile *b, const char *kind, const char *what) {
    size_t n;
    char *path = test_path(TEST_DATA("golden/%s_%s.bin"), kind, what);
    b->bytes = read_file(path, &n);
    char *p = b->bytes;
    while (strncmp(p, "data\n", 5) != 0) {
        Named *t = &b->t[b->n];
        if (*p != '#' && b->n++ < MAX_TENSORS &&
            sscanf(p, "%47s %" SCNd64 " %" SCNd64, t->name, &t->rows, &t->cols) != 3)
            die("%s: no tensor in the line %.40s", path, p);
        p = strchr(p, '\n');
        if (!p++) die("%s: no line \"data\"", path);
    }
    p += 5;
    float *x =
        mem_alloc(n); // the text before the numbers has any length: move them to an aligned place
    size_t left = n - (size_t)(p - b->bytes);
    memcpy(x, p, left);
    mem_free(b->bytes);
    b->bytes = (char *)x;
    for (int i = 0; i < b->n; i++) {
        b->t[i].data = x;
        x += b->t[i].rows * b->t[i].cols;
    }
    if ((char *)x != b->bytes + left)
        die("%s: %zu bytes of numbers do not fit its tensors", path, left);
}

static const Named *find(const BinFile *b, const char *name) {
    for (int i = 0; i < b->n; i++)
        if (strcmp(b->t[i].name, name) == 0) return &b->t[i];
    return NULL;
}

static void read_ints(int32_t *x, int64_t n, const char *p) {
    char *end;
    for (int64_t i = 0; i < n; i++, p = end) x[i] = (int32_t)strtol(p, &end, 10);
}

static void read_final(Final *f, const char *line) {
    int used;
    if (sscanf(line, "%47s %lf %lf%n", f->name, &f->sum, &f->abs_sum, &used) != 3)
        die("golden file: no sums in the line %.40s", line);
    const char *p = line + used;
    for (; f->n < SAMPLES &&
           sscanf(p, " %" SCNd64 ":%lf%n", &f->place[f->n], &f->value[f->n], &used) == 2;
         f->n++)
        p += used;
}

static Golden *read_golden(const char *kind) {
    Golden *g = mem_calloc(1, sizeof *g);
    char *save = NULL;
    size_t n;
    char *path = test_path(TEST_DATA("golden/%s.txt"), kind);
    OWNED(test_mem_end) char *text = read_file(path, &n);
    int inputs = 0, targets = 0;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *rest = strchr(line, ' ');
        if (line[0] == '#' || !rest) continue;
        *rest++ = 0;
        if (strcmp(line, "config") == 0)
            snprintf(g->config, sizeof g->config, "%s", rest);
        else if (strcmp(line, "batch") == 0)
            sscanf(rest, "%" SCNd64 " %" SCNd64 " %d", &g->B, &g->S, &g->steps);
        else if (strcmp(line, "adamw") == 0)
            sscanf(rest, "%lf %lf %lf %lf %lf %lf", &g->lr, &g->beta1, &g->beta2, &g->eps,
                   &g->decay, &g->clip);
        else if (strcmp(line, "inputs") == 0)
            read_ints(g->inputs[inputs++], g->B * g->S, rest);
        else if (strcmp(line, "targets") == 0)
            read_ints(g->targets[targets++], g->B * g->S, rest);
        else if (strcmp(line, "step") == 0) {
            int i = atoi(rest) - 1;
            sscanf(rest, "%*d %lf %lf", &g->loss[i], &g->norm[i]);
        } else if (strcmp(line, "final") == 0)
            read_final(&g->final[g->n_final++], rest);
    }
    if (g->B * g->S > MAX_TOKENS || inputs != g->steps || targets != g->steps)
        die("%s is not whole: make it again with tests/golden_gpt.py", path);
    read_bin(&g->weights, kind, "weights");
    read_bin(&g->grads, kind, "grads");
    return g;
}

static void free_golden(Golden *g) {
    mem_free(g->weights.bytes);
    mem_free(g->grads.bytes);
    mem_free(g);
}

/* One way to run the model. */
typedef struct Way {
    const char *set;
    bool bf16;
    Recompute recompute;
    int micro; // micro-batches per step
} Way;

static void check_gradients(const Golden *g, const Model *m, double limit) {
    for (int i = 0; i < m->tensors.n; i++) {
        const Tensor *t = &m->tensors.t[i];
        const Named *want = find(&g->grads, t->name);
        CHECK(want && want->rows == t->rows && want->cols == t->cols);
        double nmse = test_nmse(t->grad, want->data, (size_t)tensor_size(t));
        if (!(nmse <= limit)) printf("    gradient of %s\n", t->name);
        CHECK_NEAR(nmse, 0, limit);
    }
}

/* Adding the same number to all keys changes no softmax, so the gradient of the bias of the keys is
 * 0. What is computed is rounding, and AdamW makes steps of up to lr of it. */
static double slack(const Golden *g, const Model *m, const Tensor *t, int64_t place) {
    const Config *c = &m->shape.config;
    int64_t q = c->heads * config_head_size(c), k = c->kv_heads * config_head_size(c);
    bool bias = strstr(t->name, "qkv.bias") != NULL;
    return bias && (place < 0 || (place >= q && place < q + k))
               ? g->lr * g->steps * (place < 0 ? (double)k : 1)
               : 0;
}

static void check_weights(const Golden *g, const Model *m, const Tolerance *limit) {
    CHECK(g->n_final == m->tensors.n);
    for (int i = 0; i < g->n_final; i++) {
        const Final *f = &g->final[i];
        const Tensor *t = &m->tensors.t[i];
        double sum = 0, abs_sum = 0;
        CHECK_STR(f->name, t->name);
        for (int64_t j = 0; j < tensor_size(t); j++) {
            sum += (double)t->param[j];
            abs_sum += fabs((double)t->param[j]);
        }
        CHECK_NEAR(sum, f->sum, limit->sum * f->abs_sum + slack(g, m, t, -1));
        CHECK_NEAR(abs_sum, f->abs_sum, limit->sum * f->abs_sum + slack(g, m, t, -1));
        for (int j = 0; j < f->n; j++)
            CHECK_NEAR(t->param[f->place[j]], f->value[j],
                       limit->weight + slack(g, m, t, f->place[j]));
    }
}

static void check_logits(const Golden *g, Model *m, double limit) {
    const Named *want = find(&g->grads, "logits");
    int64_t n = m->shape.B * m->shape.S * m->shape.config.vocab;
    CHECK(want && want->rows * want->cols == g->B * g->S * m->shape.config.vocab);
    OWNED(test_mem_end) float *got = mem_alloc((size_t)n * sizeof *got);
    model_logits(m, g->inputs[0], got); // of the first micro-batch
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - (double)want->data[i]);
        if (!(d <= worst)) worst = d; // keeps a NaN
    }
    CHECK_NEAR(worst, 0, limit);
}

static void check_steps(const Golden *g, Model *m, int micro, const Tolerance *limit) {
    AdamW o = {.lr = (float)g->lr,
               .beta1 = (float)g->beta1,
               .beta2 = (float)g->beta2,
               .eps = (float)g->eps,
               .weight_decay = (float)g->decay};
    int64_t T = g->B * g->S;
    for (int step = 0; step < g->steps; step++) {
        int counted = 0;
        for (int64_t i = 0; i < T; i++) counted += g->targets[step][i] >= 0;
        model_zero_grads(m, micro);
        for (int i = 0; i < micro; i++)
            model_step(m, g->inputs[step] + i * T / micro, g->targets[step] + i * T / micro,
                       1.0f / (float)counted);
        StepSums sums = model_sums(m);
        double norm = sums.norm;
        CHECK_NEAR(sums.loss / counted, g->loss[step], step ? limit->later_loss : limit->loss);
        CHECK_NEAR(norm, g->norm[step], g->norm[step] * (step ? limit->later_norm : limit->norm));
        if (step == 0) check_gradients(g, m, limit->grad_nmse);
        if (test_failed()) return;
        o.step = step + 1;
        model_update_clipped(m, &o, g->clip);
    }
    check_weights(g, m, limit);
}

static void run(const Golden *g, Team *team, Way w) {
    ModelShape shape = {
        .B = g->B / w.micro, .S = g->S, .bf16 = w.bf16, .recompute = w.recompute, .training = true};
    const Tolerance *limit = w.bf16 ? &bf16_limits : &fp32_limits;
    shape.config = config_of(g->config);
    OWNED(model_free) Model m;
    model_plan(&m, &shape, kernels_cpu(w.set), team);
    model_allocate(&m);
    CHECK(g->weights.n == m.tensors.n);
    for (int i = 0; i < m.tensors.n; i++) {
        const Tensor *t = &m.tensors.t[i];
        const Named *x = find(&g->weights, t->name);
        CHECK(x && x->rows == t->rows && x->cols == t->cols);
        memcpy(t->param, x->data, (size_t)tensor_size(t) * sizeof(float));
    }
    check_logits(g, &m, limit->logit);
    if (!test_failed()) check_steps(g, &m, w.micro, limit);
    if (test_failed())
        printf("    %s %s, %s, recompute %d, %d micro-batches\n", g->config, w.set,
               w.bf16 ? "bf16" : "fp32", (int)w.recompute, w.micro);
}

static void run_all_ways(const char *kind, bool bf16) {
    Golden *g = read_golden(kind);
    OWNED(test_team_end) Team *team = team_create(2);
    for (const char *const *set = kernels_cpu_sets(); *set; set++)
        for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++)
            for (int micro = 1; micro <= 2; micro++)
                if (!test_failed()) run(g, team, (Way){*set, bf16, (Recompute)r, micro});
    free_golden(g);
}

TEST(golden_gpt2_fp32) {
    run_all_ways("gpt2", false);
}
TEST(golden_gpt2_bf16) {
    run_all_ways("gpt2", true);
}
TEST(golden_llama_fp32) {
    run_all_ways("llama", false);
}
TEST(golden_llama_bf16) {
    run_all_ways("llama", true);
}
TEST(golden_qwen3_fp32) {
    run_all_ways("qwen3", false);
}
TEST(golden_qwen3_bf16) {
    run_all_ways("qwen3", true);
}
