/* bench_attention -- the rate of attention, as a share of the peak of the multiply units.
 *
 * Counted operations are those of the causal half: forward 2 matmuls of S (S + 1) / 2 times D
 * multiply-adds, backward 5. The exponentials, and what tiles compute above the diagonal, are not
 * counted. The matrices lie in a pool that is larger than the second-level caches, as in training.
 * Every figure is the median of several turns of at least 20 ms.
 */
#include <math.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/die.h"
#include "base/median.h"
#include "base/opt.h"
#include "base/rng.h"
#include "layers/kernels.h"

static struct {
    const char *set;
    int64_t threads, runs, S;
    bool fp32, bf16, decode, best;
} o;
static const Opt options[] = {
    {"set", OPT_STR, &o.set, "auto", 0, 0, "NAME",
     "instruction set: avx512_amx, avx512_bf16, avx512, avx2, portable"},
    {"threads", OPT_INT, &o.threads, "0", 0, 1024, "N",
     "threads; 0: a table for one, and one for two"},
    {"runs", OPT_INT, &o.runs, "7", 1, 1000, "N",
     "measurements of each row; the median is printed"},
    {"s", OPT_INT, &o.S, "0", 0, 1e6, "N", "measure only sequences of this length; 0: all"},
    {"fp32", OPT_BOOL, &o.fp32, "1", 0, 0, "", "measure tiles in fp32"},
    {"bf16", OPT_BOOL, &o.bf16, "1", 0, 0, "", "measure tiles in bf16"},
    {"decode", OPT_BOOL, &o.decode, "1", 0, 0, "",
     "measure single positions that read a cache of keys and values"},
    {"best", OPT_BOOL, &o.best, "0", 0, 0, "",
     "print the best measurement instead of the median: for a machine that is not idle"},
    {0}};

static const struct {
    int64_t B, S, H, D;
} shapes[] = {{4, 64, 12, 64}, {4, 256, 12, 64}, {4, 1024, 12, 64}, {8, 256, 6, 64}};

typedef enum { FORWARD, BACKWARD, DECODE } What;

typedef struct Bench {
    const Kernels *k;
    Team *team;
    Attention a;
    float *qkv, *dqkv, *out, *dout, *lse;
} Bench;

static void call(Bench *b, What what) {
    if (what == FORWARD)
        b->k->attention_forward(b->team, &b->a, b->out, b->lse, b->qkv);
    else if (what == BACKWARD)
        b->k->attention_backward(b->team, &b->a, b->dqkv, b->dout, b->qkv, b->out, b->lse);
    else
        b->k->attention_decode(b->team, &b->a, b->out, b->dout, b->qkv, b->a.S - 1);
}

/* Seconds of one call: the median of the turns, or with --best the shortest. */
static double seconds(Bench *b, What what) {
    double turn[1000];
    for (int i = 0; i < o.runs; i++) {
        int calls = 0;
        call(b, what);
        double start = now_s(), spent;
        do call(b, what), calls++, spent = now_s() - start;
        while (spent < 0.02);
        turn[i] = spent / calls;
    }
    sort_numbers(turn, (int)o.runs);
    return turn[o.best ? 0 : o.runs / 2];
}

static float *numbers(Arena *m, int64_t n) {
    float *x = arena_take(m, (size_t)n * sizeof *x);
    if (x) rng_normal(x, n, 0, 1, 1, 1);
    return x;
}

static void take(Bench *b, Arena *m, size_t n_workspace) {
    const Attention *a = &b->a;
    int64_t T = a->B * a->S, W = (a->H + 2 * a->Hkv) * a->D;
    b->qkv = numbers(m, T * W), b->dqkv = numbers(m, T * W);
    b->out = numbers(m, T * a->H * a->D), b->dout = numbers(m, T * a->H * a->D);
    b->lse = numbers(m, a->B * a->H * a->S);
    b->a.workspace = arena_take(m, n_workspace);
}

/* Measures one shape and prints its row. */
static void bench(Bench *b, double peak) {
    Attention *a = &b->a;
    int n = team_size(b->team);
    size_t bytes = b->k->attention_workspace(n, a->B, a->S, a->H, a->Hkv, a->D);
    Arena m = arena_measure("attention");
    take(b, &m, bytes);
    arena_commit(&m);
    take(b, &m, bytes);
    double matmul = (double)(a->B * a->H) * (double)a->S * (double)(a->S + 1) * (double)a->D;
    double f = seconds(b, FORWARD), g = seconds(b, BACKWARD);
    double rate[3] = {2 * matmul / f, 5 * matmul / g, 7 * matmul / (f + g)};
    printf("%s  %d  B=%-2d S=%-5d H=%-3d D=%-3d  %8.3f ms %5.0f %3.0f %%  %8.3f ms %5.0f %3.0f %%  "
           "%3.0f %%  %5.1f MiB\n",
           a->bf16 ? "bf16" : "fp32", n, (int)a->B, (int)a->S, (int)a->H, (int)a->D, f * 1e3,
           rate[0] * 1e-9, 100 * rate[0] / peak, g * 1e3, rate[1] * 1e-9, 100 * rate[1] / peak,
           100 * rate[2] / peak, (double)bytes / 1048576);
    if (o.decode && !a->bf16) {
        double d = seconds(b, DECODE), moved = 4.0 * 2 * (double)(a->B * a->S * a->Hkv * a->D);
        printf("decode %d %29s %8.3f ms %5.1f GB/s\n", n, "", d * 1e3, moved / d * 1e-9);
    }
    arena_free(&m);
}

int main(int argc, char **argv) {
    die_set_program(argv[0]);
    opt_parse(options, argc, argv,
              "bench_attention: causal attention beside the peak of the multiply units\n\n");
    Bench b = {.k = kernels_cpu(o.set)};
    if (!b.k) die_usage("--set: this processor does not run \"%s\"", o.set);
    printf("type threads%24s forward  GFLOP/s peak   backward  GFLOP/s peak  both  workspace\n",
           "");
    for (int64_t n = o.threads ? o.threads : 1; n <= (o.threads ? o.threads : 2); n++) {
        b.team = team_create((int)n);
        for (int bf16 = 0; bf16 < 2; bf16++) {
            if (!(bf16 ? o.bf16 : o.fp32)) continue;
            double peak = (double)n * b.k->peak(b.team, bf16).core;
            printf("%s  %d  peak of the units %.0f GFLOP/s\n", bf16 ? "bf16" : "fp32", (int)n,
                   peak * 1e-9);
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
                if (o.S && shapes[i].S != o.S) continue;
                b.a = (Attention){.B = shapes[i].B,
                                  .S = shapes[i].S,
                                  .H = shapes[i].H,
                                  .Hkv = shapes[i].H,
                                  .D = shapes[i].D,
                                  .bf16 = bf16};
                bench(&b, peak);
            }
        }
        team_destroy(b.team);
    }
    return 0;
}
