/* bench_layers -- time and bandwidth of every layer that is bound by memory, at the shapes of GPT-2
 * 124M.
 *
 * Each repetition works on another part of a pool far bigger than the caches, as in training, where
 * a layer seldom finds its input in cache. Bytes are those that must move: every input read once,
 * every output written once. Prints medians.
 */
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/die.h"
#include "base/median.h"
#include "base/opt.h"
#include "base/rng.h"
#include "layers/kernels.h"

enum { T = 1024, C = 768, H = 12, D = 64, F = 3072, V = 50257, MAX_REPS = 1001 };
enum { PARAMETERS = 124439808 };
static const int64_t pool_floats = 4 * (int64_t)PARAMETERS;

typedef struct Bench {
    const Kernels *k;
    Team *team;
    float *small, *gradient; // parameters of layers; gradients of the embeddings
    int32_t *tokens;         // [T]
    void *workspace;
} Bench;

/* A layer: `floats` of the pool it works on, bytes it moves per call. */
typedef struct Row {
    const char *name;
    int64_t floats;
    double bytes;
    void (*run)(const Bench *b, float *x);
} Row;

typedef struct Copy {
    float *to;
    const float *from;
} Copy;

static void copy_piece(void *ctx, int64_t begin, int64_t end) {
    const Copy *c = ctx;
    memcpy(c->to + begin, c->from + begin, (size_t)(end - begin) * sizeof(float));
}

static void run_copy(const Bench *b, float *x) {
    int64_t n = PARAMETERS, share = (n + team_size(b->team) - 1) / team_size(b->team);
    team_for(b->team, n, share, copy_piece, &(Copy){x, x + n});
}

static Norm norm_of(const Bench *b) {
    float *s = b->small;
    return (Norm){.kind = NORM_LAYER,
                  .T = T,
                  .C = C,
                  .eps = 1e-5f,
                  .gamma = s,
                  .beta = s + C,
                  .dgamma = s + 2 * C,
                  .dbeta = s + 3 * C,
                  .workspace = b->workspace};
}

static void run_norm_forward(const Bench *b, float *x) {
    Norm n = norm_of(b);
    b->k->norm_forward(b->team, &n, x + T * C, b->small + 4 * C, b->small + 4 * C + T, x);
}

static void run_norm_backward(const Bench *b, float *x) {
    Norm n = norm_of(b);
    b->k->norm_backward(b->team, &n, x, x + T * C, x + 2 * T * C, b->small + 4 * C,
                        b->small + 4 * C + T);
}

static void run_rope(const Bench *b, float *x) {
    Rope r = {.B = 1, .S = T, .H = H, .Hkv = H, .D = D, .table = b->gradient};
    b->k->rope(b->team, &r, x, 1);
}

static Embedding embedding_of(const Bench *b) {
    return (Embedding){.B = 1,
                       .S = T,
                       .C = C,
                       .V = V,
                       .tokens = b->tokens,
                       .wte = b->gradient,
                       .wpe = b->gradient + V * C,
                       .dwte = b->gradient,
                       .dwpe = b->gradient + V * C};
}

static void run_embedding_forward(const Bench *b, float *x) {
    Embedding e = embedding_of(b);
    b->k->embedding_forward(b->team, &e, x);
}

static void run_embedding_backward(const Bench *b, float *x) {
    Embedding e = embedding_of(b);
    b->k->embedding_backward(b->team, &e, x);
}

static void run_gelu_forward(const Bench *b, float *x) {
    b->k->act_forward(b->team, ACT_GELU, x + T * F, x, T * F);
}

static void run_gelu_backward(const Bench *b, float *x) {
    b->k->act_backward(b->team, ACT_GELU, x, x, x + T * F, T * F);
}

static void run_swiglu_forward(const Bench *b, float *x) {
    b->k->swiglu_forward(b->team, x + 2 * T * F, x, T, F);
}

static void run_swiglu_backward(const Bench *b, float *x) {
    b->k->swiglu_backward(b->team, x, x + 4 * T * F, x + 2 * T * F, T, F);
}

static void run_bias_backward(const Bench *b, float *x) {
    b->k->bias_backward(b->team, b->small, x, T, F);
}

static void run_classifier(const Bench *b, float *x) {
    Classifier c = {
        .T = T, .V = V, .ld = V, .targets = b->tokens, .scale = 1.0f / T, .backward = true};
    b->k->classifier(b->team, &c, b->small, x);
}

static void run_loss(const Bench *b, float *x) {
    Classifier c = {.T = T, .V = V, .ld = V, .targets = b->tokens, .scale = 1.0f / T};
    b->k->classifier(b->team, &c, b->small, x);
}

static void run_sum_of_squares(const Bench *b, float *x) {
    b->small[0] = (float)b->k->sum_of_squares(b->team, x, PARAMETERS);
}

static void run_adamw(const Bench *b, float *x) {
    AdamW o = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    o.grad_scale = 1, o.step = 3;
    int64_t n = PARAMETERS;
    b->k->adamw(b->team, &o, x, x + n, x + 2 * n, x + 3 * n, n, true);
}

static const Row rows[] = {
    {"copy (memcpy)", 2LL * PARAMETERS, 8.0 * PARAMETERS, run_copy},
    {"embedding forward", T *C, 12.0 * T *C, run_embedding_forward},
    {"embedding backward", T *C, 20.0 * T *C, run_embedding_backward},
    {"norm forward", 2 * T *C, 8.0 * T *C, run_norm_forward},
    {"norm backward", 3 * T *C, 16.0 * T *C, run_norm_backward},
    {"rope", 3 * T *C, 16.0 * T *C, run_rope},
    {"gelu forward", 2 * T *F, 8.0 * T *F, run_gelu_forward},
    {"gelu backward", 2 * T *F, 12.0 * T *F, run_gelu_backward},
    {"swiglu forward", 3 * T *F, 12.0 * T *F, run_swiglu_forward},
    {"swiglu backward", 5 * T *F, 20.0 * T *F, run_swiglu_backward},
    {"bias backward", T *F, 4.0 * T *F, run_bias_backward},
    {"classifier, loss only", (int64_t)T *V, 4.0 * T *V, run_loss},
    {"classifier", (int64_t)T *V, 8.0 * T *V, run_classifier},
    {"sum of squares", PARAMETERS, 4.0 * PARAMETERS, run_sum_of_squares},
    {"adamw", 4LL * PARAMETERS, 28.0 * PARAMETERS, run_adamw},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

typedef struct Times {
    double median_s, best_s;
} Times;

static Times measure(const Bench *b, const Row *r, float *pool, int reps, bool hot) {
    double s[MAX_REPS];
    int64_t parts = hot ? 1 : pool_floats / r->floats,
            part = r->floats / 32 * 32; // from a cache line on
    for (int i = -1; i < reps; i++) {   // one to warm up
        float *x = pool + (i + 1) % parts * part;
        double t0 = now_s();
        r->run(b, x);
        if (i >= 0) s[i] = now_s() - t0;
    }
    sort_numbers(s, reps);
    return (Times){s[reps / 2], s[0]};
}

static void print_rows(const Bench *b, float *pool, int reps, bool hot, const char *only) {
    double copy = 0;
    printf("%d thread%s\n  %-22s %10s %8s %8s %10s %8s\n", team_size(b->team),
           team_size(b->team) > 1 ? "s" : "", "", "median ms", "GB/s", "of copy", "best ms",
           "GB/s");
    for (int i = 0; i < ROWS; i++) {
        if (i > 0 && !strstr(rows[i].name, only)) continue;
        Times t = measure(b, &rows[i], pool, reps, hot);
        double gb = rows[i].bytes * 1e-9;
        if (i == 0) copy = gb / t.median_s;
        printf("  %-22s %10.3f %8.1f %7.0f%% %10.3f %8.1f\n", rows[i].name, t.median_s * 1e3,
               gb / t.median_s, 100 * gb / t.median_s / copy, t.best_s * 1e3, gb / t.best_s);
    }
}

static void fill(void *ctx, int64_t begin, int64_t end) {
    float *x = ctx;
    for (int64_t i = begin; i < end; i++) x[i] = (float)((i * 7919) % 10007) / 10007.0f;
}

int main(int argc, char **argv) {
    const char *set, *only;
    int64_t reps, threads;
    bool hot;
    const Opt options[] = {
        {"set", OPT_STR, &set, "auto", 0, 0, "NAME", "instruction set"},
        {"reps", OPT_INT, &reps, "11", 1, MAX_REPS, "N", "repetitions; the median is printed"},
        {"threads", OPT_INT, &threads, "0", 0, 1024, "N", "threads (0: 1 and then all cores)"},
        {"only", OPT_STR, &only, "", 0, 0, "WORD", "only layers whose name contains WORD"},
        {"hot", OPT_BOOL, &hot, "0", 0, 0, "", "every repetition works on the same memory"},
        {0}};
    opt_parse(options, argc, argv, "bench_layers: time and bandwidth of the layers\n");
    Bench b = {.k = kernels_cpu(set)};
    if (!b.k) die_usage("no instruction set \"%s\" on this processor", set);
    Arena a = arena_measure("bench");
    float *pool = NULL;
    for (int walk = 0; walk < 2; walk++) {
        if (walk) arena_commit(&a);
        pool = arena_take(&a, (size_t)pool_floats * sizeof(float));
        b.small = arena_take(&a, (4 * C + 2 * T) * sizeof(float));
        b.gradient = arena_take(&a, (size_t)(V + T) * C * sizeof(float));
        b.tokens = arena_take(&a, T * sizeof(int32_t));
        b.workspace = arena_take(&a, b.k->norm_workspace(T, C));
    }
    for (int i = 0; i < T; i++) b.tokens[i] = (int32_t)(rng_u64(1, 0, (uint64_t)i) % V);
    for (int64_t n = threads > 0 ? threads : 1; n >= 0; n = threads > 0 || n == 0 ? -1 : 0) {
        b.team = team_create((int)n);
        team_for(b.team, pool_floats, 1 << 20, fill, pool);
        for (int64_t i = 0; i < 4 * C + 2 * T; i++) b.small[i] = 0.5f;
        print_rows(&b, pool, (int)reps, hot, only);
        team_destroy(b.team);
    }
    arena_free(&a);
    return 0;
}
