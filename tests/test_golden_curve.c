/* A hundred steps on real text against PyTorch, from the words of the file to the loss: tokens,
 * initial weights, order of the data, schedule, clipping and AdamW are this trainer's own;
 * tests/golden_curve.py wrote all of them a second time. The text and GPT-2's vocabulary are not
 * committed: without them this test is skipped. */
#include "tests/parsed.h"
#include "tests/test.h"

#include <inttypes.h>

#include "base/die.h"
#include "data/batch.h"
#include "data/io.h"
#include "data/tokenizer.h"
#include "parallel/step/learning_rate.h"
#include "parallel/step/model.h"

enum { MAX_STEPS = 100 };
static const char golden_path[] = "tests/golden/tinyshakespeare_100.txt";

typedef struct Curve {
    char config[256];
    int64_t seed, B, S;
    int steps, n_losses;
    double beta1, beta2, eps, decay, clip;
    LrSchedule lr;
    int64_t n_tokens, sum, weighted_sum; // weighted: sum of id * place (from 1) mod 1000003
    double loss[MAX_STEPS], norm[MAX_STEPS];
} Curve;

static void read_curve_line(Curve *c, const char *word, const char *rest) {
    if (strcmp(word, "config") == 0)
        snprintf(c->config, sizeof c->config, "%s", rest);
    else if (strcmp(word, "run") == 0)
        sscanf(rest, "%" SCNd64 " %" SCNd64 " %" SCNd64 " %d", &c->seed, &c->B, &c->S, &c->steps);
    else if (strcmp(word, "adamw") == 0)
        sscanf(rest, "%lf %lf %lf %lf %lf", &c->beta1, &c->beta2, &c->eps, &c->decay, &c->clip);
    else if (strcmp(word, "schedule") == 0)
        sscanf(rest, "%lf %lf %" SCNd64, &c->lr.lr, &c->lr.min_lr, &c->lr.warmup);
    else if (strcmp(word, "tokens") == 0)
        sscanf(rest, "%" SCNd64 " %" SCNd64 " %" SCNd64, &c->n_tokens, &c->sum, &c->weighted_sum);
    else if (strcmp(word, "step") == 0 && c->n_losses < MAX_STEPS) {
        sscanf(rest, "%*d %lf %lf", &c->loss[c->n_losses], &c->norm[c->n_losses]);
        c->n_losses++;
    }
}

static void read_curve(Curve *c) {
    FILE *f = fopen(golden_path, "r");
    if (!f) die("cannot open %s: run the tests from the top of the tree", golden_path);
    char line[512];
    while (fgets(line, sizeof line, f)) {
        char *rest = strchr(line, ' ');
        if (line[0] == '#' || !rest) continue;
        line[strcspn(line, "\n")] = 0;
        *rest++ = 0;
        read_curve_line(c, line, rest);
    }
    fclose(f);
    if (c->steps != MAX_STEPS || c->n_losses != c->steps)
        die("%s is not whole: make it again with tests/golden_curve.py", golden_path);
    c->lr.kind = LR_COSINE;
    c->lr.steps = c->steps;
}

/* The initial weights of every tensor: sum, sum of magnitudes, first and last element. */
static void check_initial(const Model *m) {
    FILE *f = fopen(golden_path, "r");
    char line[512], name[48];
    int n = 0;
    while (fgets(line, sizeof line, f)) {
        double sum, abs_sum, first, last, got = 0, got_abs = 0;
        if (sscanf(line, "init %47s %lf %lf %lf %lf", name, &sum, &abs_sum, &first, &last) != 5)
            continue;
        int i = tensors_find(&m->tensors, name);
        if (i < 0) test_fail("no tensor %s", name);
        if (i < 0) break;
        const Tensor *t = &m->tensors.t[i];
        for (int64_t j = 0; j < tensor_size(t); j++) {
            got += (double)t->param[j];
            got_abs += fabs((double)t->param[j]);
        }
        // Two libraries' log and cos may differ in a last bit of a double; the file has nine
        // digits.
        double eps = 1e-8 * abs_sum;
        if (fabs(got - sum) > eps || fabs(got_abs - abs_sum) > eps ||
            fabs((double)t->param[0] - first) > 1e-8 ||
            fabs((double)t->param[tensor_size(t) - 1] - last) > 1e-8)
            test_fail("%s starts with sums %.9g %.9g, not %.9g %.9g", name, got, got_abs, sum,
                      abs_sum);
        n++;
    }
    fclose(f);
    CHECK(n == m->tensors.n);
}

/* Path of tinyshakespeare.txt as GPT-2's tokens in a shard of raw uint16; NULL: not here. */
static char *make_shard(const char *folder, const Curve *c) {
    size_t n;
    char *path = test_path("%s/shakespeare.bin", test_tmpdir());
    char *vocab = test_path("%s/gpt2_vocab.json", folder);
    OWNED(test_mem_end) char *text = test_read(test_path("%s/tinyshakespeare.txt", folder), &n);
    if (!text || !io_exists(vocab)) return NULL;
    OWNED(test_tokenizer_end) Tokenizer *t = tokenizer_load(vocab);
    OWNED(test_mem_end) int32_t *ids = NULL;
    int64_t n_ids = tokenizer_encode(t, (uint8_t *)text, n, &ids), sum = 0, weighted = 0;
    OWNED(test_mem_end) uint16_t *shard = mem_alloc((size_t)n_ids * sizeof *shard);
    for (int64_t i = 0; i < n_ids; i++) {
        shard[i] = (uint16_t)ids[i];
        sum += ids[i];
        weighted += ids[i] * (i + 1) % 1000003;
    }
    if (!io_write_file(path, shard, (size_t)n_ids * sizeof *shard, NULL, NULL)) die("%s", path);
    if (n_ids != c->n_tokens || sum != c->sum || weighted != c->weighted_sum)
        test_fail("%" PRId64 " tokens of sums %" PRId64 " %" PRId64 ", not %" PRId64 ", %" PRId64
                  " %" PRId64,
                  n_ids, sum, weighted, c->n_tokens, c->sum, c->weighted_sum);
    return path;
}

static void train_curve(const Curve *c, Model *m, const Batches *b, double *loss, double *norm) {
    AdamW o = {.beta1 = (float)c->beta1,
               .beta2 = (float)c->beta2,
               .eps = (float)c->eps,
               .weight_decay = (float)c->decay};
    size_t n = (size_t)(c->B * c->S);
    OWNED(test_mem_end)
    int32_t *inputs = mem_alloc(n * sizeof *inputs), *targets = mem_alloc(n * sizeof *targets);
    for (int step = 0; step < c->steps; step++) {
        batch_fill(b, step, 0, c->B, inputs, targets);
        model_zero_grads(m, 1);
        model_step(m, inputs, targets, 1.0f / (float)n);
        StepSums sums = model_sums(m);
        loss[step] = sums.loss / (double)n, norm[step] = sums.norm;
        o.step = step + 1;
        o.lr = (float)learning_rate(&c->lr, step);
        model_update_clipped(m, &o, c->clip);
    }
}

static void run_curve(const Curve *c, const char *shard, bool bf16, double limit) {
    ModelShape shape = {.B = c->B, .S = c->S, .bf16 = bf16, .training = true};
    double loss[MAX_STEPS], norm[MAX_STEPS], worst = 0;
    shape.config = config_of(c->config);
    OWNED(test_team_end) Team *team = team_create(2);
    OWNED(shards_close) ShardSet set = shards_open(shard, shape.config.vocab, team);
    OWNED(batches_free) Batches b = batches_make(&set, c->S, c->B, (uint64_t)c->seed, true);
    OWNED(model_free) Model m;
    model_plan(&m, &shape, kernels_cpu(NULL), team);
    model_allocate(&m);
    tensors_init(&m.tensors, team, (uint64_t)c->seed);
    check_initial(&m);
    train_curve(c, &m, &b, loss, norm);
    for (int i = 0; i < c->steps; i++) {
        if (!(fabs(loss[i] - c->loss[i]) <= worst)) worst = fabs(loss[i] - c->loss[i]);
        if (!(worst <= limit)) printf("    step %d\n", i + 1);
        CHECK_NEAR(loss[i], c->loss[i], limit);
    }
    printf("    %s: a loss differs by at most %.1e\n", bf16 ? "bf16" : "fp32", worst);
}

TEST(tinyshakespeare_100_steps_equal_pytorch) {
    Curve c = {0};
    const char *named = getenv("TEST_DATA_DIR"), *folder = named ? named : "../shared/data";
    read_curve(&c);
    const char *shard = make_shard(folder, &c);
    SKIP_IF(!shard, "no tinyshakespeare.txt, gpt2_vocab.json, gpt2_merges.txt in TEST_DATA_DIR "
                    "(../shared/data)");
    if (!test_failed()) run_curve(&c, shard, false, 1e-3); // PyTorch in double differs by 1e-4
    c.steps = 30; // 20 past the warm-up, to save time; fp32 has all 100
    if (!test_failed()) run_curve(&c, shard, true, 2e-3); // 8 bits in every matmul: 3e-4
}
