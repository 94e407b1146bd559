/* parallel/step/generate.c and model_logits on every layout: all ranks have the same logits, those
 * of one rank; and a token's logits do not depend on how it was computed: in a prompt, from the
 * cache, or with all tokens of a sequence at once. */
#include "parallel/step/generate.h"

#include "tests/mesh_run.h"
#include "tests/parsed.h"
#include "tests/test.h"

enum { N_MODELS = 3, SEQ = 10, VOCAB = 71, TOKENS = SEQ + SEQ / 2 + 4, MAX_RANKS = 8 };

static const char *const models[N_MODELS] = {
    "layers=2,heads=4,channels=24,ffn=40,seq=10,vocab=71,tied=0",
    "llama,layers=2,heads=6,kv_heads=2,channels=36,ffn=50,seq=10,vocab=71,head_dim=8,qk_norm=1",
    "layers=2,heads=3,channels=21,ffn=35,seq=10,vocab=71,bias=0,qkv_bias=1",
};

/* Of one rank. */
typedef struct Seen {
    float all[TOKENS][VOCAB];  // model_logits of what a Generator has in its cache
    float next[TOKENS][VOCAB]; // of a Generator
} Seen;

typedef struct Job {
    int64_t prompt;
    Seen seen[MAX_RANKS];
} Job;

static int32_t token(int64_t i) {
    return (int32_t)(i * i * 7 % VOCAB);
}

/* Logits of tokens [from, first + SEQ) in the sequence that begins with token `first`, beside
 * sequences of other tokens. */
static void at_once(Model *m, int64_t first, int64_t from, float logits[][VOCAB]) {
    int64_t n = m->shape.B * SEQ;
    OWNED(test_mem_end) int32_t *inputs = mem_alloc((size_t)n * sizeof *inputs);
    OWNED(test_mem_end) float *all = mem_alloc((size_t)(n * VOCAB) * sizeof *all);
    for (int64_t i = 0; i < n; i++) inputs[i] = i < SEQ ? token(first + i) : token(i * 3);
    model_logits(m, inputs, all);
    for (int64_t i = from; i < first + SEQ && i < TOKENS; i++)
        memcpy(logits[i], all + (i - first) * VOCAB, sizeof logits[0]);
}

/* Past the end of the cache, twice: half of the sequence is forgotten. */
static void generate_all(Model *m, void *ctx) {
    Job *job = ctx;
    Seen *s = &job->seen[m->grid->mesh.rank];
    int32_t prompt[SEQ];
    for (int64_t i = 0; i < job->prompt; i++) prompt[i] = token(i);
    Generator *g = generator_create(m);
    memcpy(s->next[job->prompt - 1], generator_prompt(g, prompt, job->prompt), sizeof s->next[0]);
    at_once(m, 0, 0, s->all);
    for (int64_t i = job->prompt, first = 0; i < TOKENS; i++) {
        memcpy(s->next[i], generator_next(g, token(i)), sizeof s->next[0]);
        if (i - first < SEQ) continue;
        first = i - SEQ / 2;
        at_once(m, first, i, s->all);
    }
    generator_free(g);
}

/* The largest difference of rows [first, TOKENS). */
static double apart(const float a[][VOCAB], const float b[][VOCAB], int64_t first) {
    double worst = 0;
    for (int64_t i = first; i < TOKENS; i++)
        for (int v = 0; v < VOCAB; v++) {
            double d = fabs((double)(a[i][v] - b[i][v]));
            if (!(d <= worst)) worst = d; // keeps a NaN
        }
    return worst;
}

static void run(const MeshRun *how, const char *layout, Job *job) {
    OWNED(mesh_run_free) MeshRun r = *how;
    r.layout = layout;
    r.before = generate_all, r.ctx = job;
    r.sequences = 8, r.S = SEQ, r.steps = 1;
    memset(job->seen, 0, sizeof job->seen);
    mesh_run(&r);
}

/* Against `one`, what one rank has. limit: of logits of order 1; 0: the same bits on every
 * layout. */
static void compare(const MeshRun *how, const char *layout, const Job *one, double limit) {
    static Job on;
    Layout l = layout_of(layout);
    on.prompt = limit > 0 ? 1 + (int64_t)(strlen(layout) * 7 % SEQ) : one->prompt;
    run(how, layout, &on);
    for (int r = 1; r < layout_ranks(&l); r++)
        if (memcmp(&on.seen[r], &on.seen[0], sizeof on.seen[0]) != 0)
            test_fail("%s: rank %d has other logits", layout, r);
    const Seen *is = &on.seen[0], *was = &one->seen[0];
    int64_t first = on.prompt > one->prompt ? on.prompt - 1 : one->prompt - 1;
    double all = apart(is->all, was->all, 0), next = apart(is->next, was->next, first),
           cache = apart(is->next, is->all, on.prompt - 1);
    if (!(all <= limit && next <= limit && cache <= (limit > 0 ? limit : 2e-5)))
        test_fail(
            "%s, %s, overlap %s: logits differ by %.1e, the next by %.1e, from the cache %.1e",
            layout, how->model, how->overlap ? how->overlap : "none", all, next, cache);
}

TEST(generate_has_the_logits_of_one_rank_on_every_layout) {
    static Job one[N_MODELS][2]; // with and without --exact
    for (int model = 0; model < N_MODELS; model++)
        for (int exact = 0; exact < 2; exact++) {
            one[model][exact].prompt = 4;
            run(&(MeshRun){.model = models[model], .exact = exact, .threads = 2}, "d1",
                &one[model][exact]);
        }
    for (EACH_LAYOUT(l, 1, MAX_RANKS)) {
        int n = l.number, model = n % N_MODELS;
        bool exact = n / 3 % 4 == 0;
        if (!mesh_sampled_thinly(n)) continue;
        compare(&(MeshRun){.model = models[model],
                           .micro = n % 2 * 2,
                           .exact = exact,
                           .overlap = mesh_overlaps[n / 3 % N_MESH_OVERLAPS]},
                l.spec, &one[model][exact], exact ? 0 : 2e-5);
    }
}

/* Words of 8 bits of fraction: another order of sums rounds some of them the other way. */
TEST(generate_in_bf16_has_the_logits_of_one_rank) {
    static const char *const layouts[] = {"x2.y2+sp", "z2.x2+heads", "x2.y2+stay=y"};
    for (int model = 0; model < N_MODELS; model++)
        for (int cuda = 0; cuda < (model == 1 || test_long() ? 2 : 1); cuda++) {
            MeshRun how = {.model = models[model], .cuda = cuda, .bf16 = true};
            static Job one;
            one.prompt = 4;
            run(&how, "d1", &one);
            compare(&how, layouts[model], &one, 0.03);
        }
}

/* ---- where a text ends ---- */

static bool count(void *left, UNUSED int32_t id) {
    return --*(int *)left > 0;
}

/* Which of four ends came where it should have. */
static void end_texts(Model *m, void *ctx) {
    const Sampling wild = {.temperature = 3, .top_p = 1, .seed = 1};
    int32_t prompt[] = {1, 2}, all[SEQ], some[SEQ];
    bool *ok = ctx;
    int many = 99, few = 3, first = 0;
    ok[0] = generate(m, prompt, 2, &wild, 0, -1, all, SEQ, count, &many) == SEQ;
    while (all[first] != all[SEQ - 1]) first++;
    ok[1] = first > 0 &&
            generate(m, prompt, 2, &wild, 0, all[SEQ - 1], some, SEQ, count, &many) == first &&
            memcmp(some, all, (size_t)first * sizeof *all) == 0;
    ok[2] = generate(m, prompt, 2, &wild, 0, -1, some, SEQ, count, &few) == 3;
    m->shape.config.ids = (SpecialIds){.n_eos = 2, .eos = {VOCAB - 1, all[SEQ - 1]}};
    int64_t n = generate(m, prompt, 2, &wild, 0, -1, some, SEQ, count, &many);
    ok[3] = n == first && memcmp(some, all, (size_t)first * sizeof *all) == 0;
}

TEST(generate_ends_before_the_end_of_text_and_when_it_is_told) {
    bool ok[4] = {false};
    OWNED(mesh_run_free)
    MeshRun r = {.model = models[0], .layout = "d1", .sequences = 1, .S = SEQ, .steps = 1};
    r.before = end_texts, r.ctx = ok;
    mesh_run(&r);
    CHECK(ok[0] && ok[1] && ok[2] && ok[3]);
}

/* Bytes of the workspaces of a model that samples after a prompt of so many tokens. */
static size_t workspace_bytes(int64_t prompt, Team *team) {
    ModelShape s = {.config =
                        config_of("llama,layers=1,heads=1,channels=8,ffn=8,seq=200000,vocab=9"),
                    .B = 1,
                    .S = prompt,
                    .output = OUTPUT_NEXT};
    OWNED(model_free) Model m;
    model_plan(&m, &s, kernels_cpu(NULL), team);
    return m.arena[ARENA_WORK].used;
}

TEST(generate_has_workspace_for_the_whole_cache_whatever_the_prompt) {
    OWNED(test_team_end) Team *team = team_create(2);
    CHECK(workspace_bytes(3, team) == workspace_bytes(200000, team));
}
