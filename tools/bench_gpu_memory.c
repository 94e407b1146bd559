/* bench_gpu_memory -- layers that are bound by memory, in bf16, for T tokens of C channels. Bytes
 * are counted by the printed formula: every input is read once, every output written once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "layers/cuda/device.h"
#include "layers/cuda/reduce.h"
#include "tools/bench_gpu.h"

enum { BUFFERS = 5, MOST_SETS = 8, RANKS = 2, HEAD = 64 };

/* A layer: the bytes that it moves, as a formula and as a number; the bytes of its buffers; its
 * call. Layers of parameters and gradients have n elements. */
typedef struct Row {
    const char *name, *formula;
    double bytes;
    int64_t size[BUFFERS];
    void (*run)(char *const at[BUFFERS]);
} Row;

static struct {
    const Kernels *k;
    int64_t T, C, F, V, ld, n; // n: parameters
    float *gamma, *beta, *dgamma, *dbeta, *mean, *rstd, *loss, *bias;
    int32_t *tokens, *order;
    void *workspace;
    double *sum;
} b;

static void do_copy(char *const at[]) {
    device_copy(at[0], at[1], (size_t)b.n * 4);
}
static Norm norm_of(void) {
    return (Norm){.kind = NORM_LAYER,
                  .T = b.T,
                  .C = b.C,
                  .eps = 1e-5f,
                  .gamma = b.gamma,
                  .beta = b.beta,
                  .dgamma = b.dgamma,
                  .dbeta = b.dbeta,
                  .workspace = b.workspace};
}
static void do_norm(char *const at[]) {
    Norm n = norm_of();
    b.k->norm_forward(NULL, &n, at[0], b.mean, b.rstd, at[1]);
}
static void do_residual_norm(char *const at[]) {
    Norm n = norm_of();
    b.k->residual_norm(NULL, &n, at[0], at[1], b.bias, at[2], b.mean, b.rstd);
}
static void do_norm_backward(char *const at[]) {
    Norm n = norm_of();
    b.k->norm_backward(NULL, &n, at[0], at[1], at[2], b.mean, b.rstd);
}
static void do_gelu(char *const at[]) {
    b.k->act_forward(NULL, ACT_GELU, at[0], at[1], b.T * b.F);
}
static void do_gelu_backward(char *const at[]) {
    b.k->act_backward(NULL, ACT_GELU, at[0], at[1], at[2], b.T * b.F);
}
static void do_swiglu(char *const at[]) {
    b.k->swiglu_forward(NULL, at[0], at[1], b.T, b.F);
}
static void do_swiglu_backward(char *const at[]) {
    b.k->swiglu_backward(NULL, at[0], at[1], at[2], b.T, b.F);
}
static void do_bias_residual(char *const at[]) {
    b.k->bias_residual(NULL, at[0], at[1], b.bias, b.T, b.C);
}
static void do_bias_backward(char *const at[]) {
    b.k->bias_backward(NULL, b.bias, at[0], b.T, b.F);
}
static void classify(char *const at[], bool backward) {
    Classifier c = {.T = b.T, .V = b.V, .ld = b.ld, .targets = b.tokens, .scale = 1};
    c.backward = backward;
    b.k->classifier(NULL, &c, b.loss, at[0]);
}
static void do_classifier(char *const at[]) {
    classify(at, true);
}
static void do_classifier_loss(char *const at[]) {
    classify(at, false);
}
static Embedding embedding_of(char *table) {
    float *t = (float *)(void *)table;
    return (Embedding){
        .B = 1, .S = b.T, .C = b.C, .V = b.V, .tokens = b.tokens, .wte = t, .dwte = t};
}
static void do_embedding(char *const at[]) {
    Embedding e = embedding_of(at[1]);
    b.k->embedding_forward(NULL, &e, at[0]);
}
static void do_embedding_backward(char *const at[]) {
    Embedding e = embedding_of(at[1]);
    e.workspace = b.workspace, e.order = b.order;
    b.k->embedding_backward(NULL, &e, at[0]);
}
static void do_adamw(char *const at[]) {
    AdamW o = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    float *const *x = (float *const *)at;
    o.grad_scale = 1, o.step = 3, o.cast = at[4];
    b.k->adamw(NULL, &o, x[0], x[1], x[2], x[3], b.n, true);
}
static void do_squares(char *const at[]) {
    b.k->squares_to(b.sum, (float *)(void *)at[0], b.n, 1, b.n, false);
}
static void do_zero(char *const at[]) {
    b.k->zero(NULL, at[0], (size_t)b.n * 4);
}
static void do_to_bf16(char *const at[]) {
    b.k->to_bf16(at[0], (float *)(void *)at[1], b.n);
}
static void do_rope(char *const at[]) {
    Rope r = {.B = 1, .S = b.T, .H = b.C / HEAD, .Hkv = b.C / HEAD, .D = HEAD};
    r.table = (float *)(void *)at[1];
    b.k->rope(NULL, &r, at[0], 1);
}
/* The weights are 2 HEAD numbers, and b.bias has as many at any C. */
static QkNorm heads(void) {
    return (QkNorm){.T = b.T,
                    .H = b.C / HEAD,
                    .Hkv = b.C / HEAD,
                    .D = HEAD,
                    .eps = 1e-5f,
                    .gamma = b.bias,
                    .dgamma = b.bias,
                    .workspace = b.workspace};
}
static void do_qk_norm(char *const at[]) {
    QkNorm q = heads();
    b.k->qk_norm(NULL, &q, at[0], at[1]);
}
static void do_qk_norm_backward(char *const at[]) {
    QkNorm q = heads();
    b.k->qk_norm_backward(NULL, &q, at[0], at[1], at[2]);
}
static void do_qk_norm_weight(char *const at[]) {
    QkNorm q = heads();
    b.k->qk_norm_weight_backward(NULL, &q, at[0], at[1]);
}
static void do_reduce(char *const at[]) {
    Reduce f = {.n_src = RANKS, .n_dst = RANKS, .rows = 1, .cols = b.T * b.C, .src_ld = b.T * b.C};
    for (int i = 0; i < RANKS; i++) f.src[i] = at[i], f.dst[i] = at[i];
    device_reduce(device_stream(), &f, REDUCE_BF16);
}

/* Makes random tokens and their order. Returns the number of rows of the table that they use. */
static int64_t tokens_make(void) {
    int32_t *host = mem_alloc((size_t)(2 * b.T + b.V + 2) * sizeof *host), *order = host + b.T;
    int64_t rows = 1;
    for (int64_t t = 0; t < b.T; t++)
        host[t] = (int32_t)(rng_u64(1, 2, (uint64_t)t) % (uint64_t)b.V);
    embedding_order(order, order + b.T, &(Embedding){1, b.T, .V = b.V, .tokens = host}, b.T);
    for (int64_t i = 1; i < b.T; i++) rows += host[order[i]] != host[order[i - 1]];
    b.tokens = gpu_tokens(host, b.T), b.order = gpu_tokens(order, b.T);
    device_wait();
    mem_free(host);
    return rows;
}

/* The buffers of each set. */
typedef struct Sets {
    const Row *row;
    char *at[MOST_SETS][BUFFERS];
} Sets;
static void run(void *ctx, int set) {
    const Sets *s = ctx;
    s->row->run(s->at[set]);
}

static double seconds_of(const Row *row) {
    Sets s = {.row = row};
    int64_t bytes = 0;
    for (int i = 0; i < BUFFERS; i++) bytes += row->size[i];
    GpuJob job = {run, &s, gpu_sets(bytes), 0};
    for (int i = 0; i < job.sets * BUFFERS; i++) {
        int64_t n = row->size[i % BUFFERS];
        // AdamW's second moments are not negative
        bool zeros = row->run == do_adamw && i % BUFFERS == 2;
        s.at[i / BUFFERS][i % BUFFERS] = n ? gpu_take(n, zeros ? GPU_ZEROS : GPU_RANDOM) : NULL;
    }
    gpu_time(&job, 1);
    return job.seconds;
}

/* Parameters, statistics, workspace and tokens: too small to be in the sets. */
static void make_small_tensors(int64_t *rows_of_table) {
    int64_t C = b.C, F = b.F, T = b.T, workspace = (int64_t)b.k->norm_workspace(T, C);
    int64_t of_embedding = (int64_t)b.k->embedding_workspace(T, C);
    if (of_embedding > workspace) workspace = of_embedding;
    b.gamma = gpu_take(4 * C, GPU_RANDOM), b.beta = gpu_take(4 * C, GPU_RANDOM);
    b.dgamma = gpu_take(4 * C, GPU_ZEROS), b.dbeta = gpu_take(4 * C, GPU_ZEROS);
    b.mean = gpu_take(4 * T, GPU_RANDOM), b.rstd = gpu_take(4 * T, GPU_RANDOM);
    b.loss = gpu_take(4 * T, GPU_ZEROS), b.bias = gpu_take(4 * F, GPU_ZEROS);
    b.workspace = gpu_take(workspace, GPU_ZEROS);
    b.sum = gpu_take(sizeof *b.sum, GPU_ZEROS);
    *rows_of_table = tokens_make();
}

void gpu_memory(const Kernels *k) {
    b.k = k, b.T = gpu_options.tokens, b.C = strtoll(gpu_options.channels, NULL, 10);
    b.F = 4 * b.C, b.V = gpu_options.vocab, b.ld = (b.V + 15) / 16 * 16;
    b.n = gpu_options.parameters;
    int64_t rows, T = b.T, C = b.C, n = b.n, x = 2 * T * C, f = 4 * x, logits = 2 * T * b.ld;
    double v = 2 * (double)T * (double)b.V; // bytes of the logits without padding
    make_small_tensors(&rows), gpu_give_all();
    const Row all[] = {
        {"copy", "8n", 8.0 * (double)n, {4 * n, 4 * n}, do_copy},
        {"norm", "4TC + 8T", 2.0 * (double)x + 8.0 * (double)T, {x, x}, do_norm},
        {"residual and norm",
         "8TC + 8T",
         4.0 * (double)x + 8.0 * (double)T,
         {x, x, x},
         do_residual_norm},
        {"norm backward",
         "8TC + 8T",
         4.0 * (double)x + 8.0 * (double)T,
         {x, x, x},
         do_norm_backward},
        {"gelu", "4TF", 2.0 * (double)f, {f, f}, do_gelu},
        {"gelu backward", "6TF", 3.0 * (double)f, {f, f, f}, do_gelu_backward},
        {"swiglu", "6TF", 3.0 * (double)f, {f, 2 * f}, do_swiglu},
        {"swiglu backward", "10TF", 5.0 * (double)f, {2 * f, f, 2 * f}, do_swiglu_backward},
        {"bias and residual", "6TC", 3.0 * (double)x, {x, x}, do_bias_residual},
        {"bias backward", "2TF", (double)f, {f}, do_bias_backward},
        {"classifier", "4TV", 2 * v, {logits}, do_classifier},
        {"classifier, loss alone", "2TV", v, {logits}, do_classifier_loss},
        {"embedding", "4TC", 2.0 * (double)x, {x, 2 * b.V * C}, do_embedding},
        {"embedding backward",
         "2TC + 8C rows",
         (double)x + 8.0 * (double)(C * rows),
         {x, 4 * b.V * C},
         do_embedding_backward},
        {"rope", "8TC", 4.0 * (double)x, {3 * x, 4 * T * HEAD}, do_rope},
        {"QK-norm", "12TC", 6.0 * (double)x, {3 * x, 3 * x}, do_qk_norm},
        {"QK-norm backward", "16TC", 8.0 * (double)x, {3 * x, 3 * x, 3 * x}, do_qk_norm_backward},
        {"QK-norm weight backward", "8TC", 4.0 * (double)x, {3 * x, 3 * x}, do_qk_norm_weight},
        {"adamw", "30n", 30.0 * (double)n, {4 * n, 4 * n, 4 * n, 4 * n, 2 * n}, do_adamw},
        {"squares", "4n", 4.0 * (double)n, {4 * n}, do_squares},
        {"zero", "4n", 4.0 * (double)n, {4 * n}, do_zero},
        {"to bf16", "6n", 6.0 * (double)n, {2 * n, 4 * n}, do_to_bf16},
        {"reduce of 2 ranks", "8TC", 4.0 * (double)x, {x, x}, do_reduce},
    };
    double rate = 0; // GB/s of the copy
    printf("\nT = %lld, C = %lld, V = %lld, n = %lld\n%-24s %-16s %10s %9s %6s\n", (long long)T,
           (long long)C, (long long)b.V, (long long)n, "bound by memory", "bytes", "us", "GB/s",
           "copy");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const Row *r = &all[i];
        make_small_tensors(&rows);
        double s = seconds_of(r), gb = r->bytes / s * 1e-9;
        if (i == 0) rate = gb;
        printf("%-24s %-16s %10.1f %9.0f %5.1f%%\n", r->name, r->formula, s * 1e6, gb,
               100 * gb / rate);
        gpu_write("memory", json_pack("{s:s, s:s, s:f, s:f, s:f, s:f}", "name", r->name, "formula",
                                      r->formula, "bytes", r->bytes, "us", s * 1e6, "gb_per_s", gb,
                                      "share", gb / rate));
        gpu_give_all();
    }
}
