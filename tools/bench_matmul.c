/* bench_matmul -- compares the matmul with the peak of the multiply units and with other libraries,
 * in one run.
 *
 * Other libraries (peers) are loaded at run time if they are installed (Debian:
 * libopenblas0-pthread, libdnnl2; MKL: libmkl_rt.so.3 or .2 in LD_LIBRARY_PATH). Every matmul runs
 * in turns: ours, OpenBLAS, oneDNN, MKL, ours, ... The table shows medians. "ratio" is the median
 * over turns of our rate divided by a peer's, for the peer for which it is smallest; the last line
 * of a type has the median of its ratios. Each instruction set of --set runs in a process of its
 * own, with the peers restricted to the same set. A peer's threads spin for a while after a call,
 * so each turn begins with a pause and a call that is not measured.
 *
 * bf16: our matmul reads and writes fp32, as the trainer keeps all tensors, and rounds while
 * packing. For the same work oneDNN first rounds both operands ("ratio"). It is also timed with
 * operands that are bf16 already ("given bf16").
 */
#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/die.h"
#include "base/library.h"
#include "base/median.h"
#include "base/opt.h"
#include "base/processor.h"
#include "base/simd.h"
#include "base/team.h"
#include "base/version.h"
#include "data/stamp.h"
#include "layers/kernels.h"

typedef void (*CblasSgemm)(int order, int ta, int tb, int M, int N, int K, float alpha,
                           const float *a, int lda, const float *b, int ldb, float beta, float *c,
                           int ldc);
typedef int (*DnnlSgemm)(char ta, char tb, int64_t M, int64_t N, int64_t K, float alpha,
                         const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                         float *c, int64_t ldc);
typedef int (*DnnlBf16)(char ta, char tb, int64_t M, int64_t N, int64_t K, float alpha,
                        const uint16_t *a, int64_t lda, const uint16_t *b, int64_t ldb, float beta,
                        float *c, int64_t ldc);

static struct {
    CblasSgemm openblas, mkl;
    DnnlSgemm dnnl;
    DnnlBf16 dnnl_bf16;
} peers;

enum { OURS, OPENBLAS, ONEDNN, MKL, ONEDNN_GIVEN, N_WHO };
static const char *const who_name[N_WHO] = {"ours", "openblas", "onednn", "mkl",
                                            "onednn_given_bf16"};

/* One matmul. Forms: forward y = x w; dx = dy w'; dw += x' dy; head: forward with the transposed
 * embedding. */
typedef struct Shape {
    const char *form;
    int64_t M, N, K;
    bool a_turned, b_turned, add;
} Shape;

static struct {
    const char *set, *json, *dtype, *form;
    int64_t threads, runs, tokens, min_n, max_n, l2;
    bool small, gpt2, ours_only;
} o;
static const Opt options[] = {
    {"set", OPT_STR, &o.set, "auto", 0, 0, "NAME",
     "instruction sets, one after the other: avx512_amx, avx512_bf16, avx512, avx2, portable"},
    {"threads", OPT_INT, &o.threads, "2", 1, 1024, "N", "threads of every library"},
    {"runs", OPT_INT, &o.runs, "7", 1, 1000, "N",
     "measurements of each matmul; the median is printed"},
    {"tokens", OPT_INT, &o.tokens, "0", 0, 1e6, "N", "tokens, M of forward; 0: 256 and 1024"},
    {"dtype", OPT_STR, &o.dtype, "", 0, 0, "fp32|bf16", "measure only this type; empty: both"},
    {"form", OPT_STR, &o.form, "", 0, 0, "WORD", "measure only forward, dx or dw; empty: all"},
    {"max-n", OPT_INT, &o.max_n, "1000000", 1, 1e6, "N", "skip layers with more output features"},
    {"min-n", OPT_INT, &o.min_n, "0", 0, 1e6, "N", "skip layers with fewer output features"},
    {"gpt2", OPT_BOOL, &o.gpt2, "1", 0, 0, "", "measure the matmuls of GPT-2 124M"},
    {"small", OPT_BOOL, &o.small, "1", 0, 0, "",
     "measure those of a model of 384 channels and a vocabulary of 256"},
    {"ours-only", OPT_BOOL, &o.ours_only, "0", 0, 0, "", "do not measure the other libraries"},
    {"l2", OPT_INT, &o.l2, "0", 0, 1 << 20, "KIB",
     "choose our blocking for an L2 cache of this size; 0: this processor's"},
    {"json", OPT_STR, &o.json, "", 0, 0, "FILE",
     "add the rows to this file; rows of the same matmul are replaced"},
    {0}};

/* One thread is timed by processor time, which a busy machine disturbs less. */
static double spent_s(void) {
    return clock_s(o.threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC);
}

/* ---- rounding fp32 to bf16 with oneDNN. A memory descriptor is a structure in its version 2 and a
 * pointer to an object of the library in version 3; functions take a pointer in both. */

typedef void *Handle;
typedef struct ExecArg {
    int what; // 1: from, 17: to
    Handle memory;
} ExecArg;

static struct {
    int (*engine)(Handle *, int kind, size_t index);
    int (*stream)(Handle *, Handle engine, unsigned flags);
    int (*memory)(Handle *, const void *desc, Handle engine, void *at);
    int (*reorder)(Handle *, const void *from, Handle, const void *to, Handle, Handle attributes);
    int (*primitive)(Handle *, Handle described);
    int (*execute)(Handle primitive, Handle stream, int n, const ExecArg *);
    int (*wait)(Handle stream);
    // the library has one of these two, depending on its version
    int (*describe_2)(void *desc, int n_dims, const int64_t *dims, int type, const int64_t *stride);
    int (*describe_3)(Handle *desc, int n_dims, const int64_t *dims, int type,
                      const int64_t *stride);
    Handle cpu, in_order;
} dnnl_api;

static bool round_load(void *library) {
    static const char *const names[] = {"dnnl_engine_create",
                                        "dnnl_stream_create",
                                        "dnnl_memory_create",
                                        "dnnl_reorder_primitive_desc_create",
                                        "dnnl_primitive_create",
                                        "dnnl_primitive_execute",
                                        "dnnl_stream_wait",
                                        "dnnl_memory_desc_init_by_strides",
                                        "dnnl_memory_desc_create_with_strides"};
    if (library_find(library, names, 9, &dnnl_api) < 7) return false;
    if (!dnnl_api.describe_2 && !dnnl_api.describe_3) return false;
    return dnnl_api.engine(&dnnl_api.cpu, 1, 0) == 0 &&
           dnnl_api.stream(&dnnl_api.in_order, dnnl_api.cpu, 1) == 0;
}

/* The rounding of one operand to bf16. */
typedef struct Round {
    Handle primitive;
    ExecArg arg[2];
} Round;

/* Makes the oneDNN primitive that rounds n numbers. */
static Round round_make(const float *from, uint16_t *to, int64_t n) {
    enum { BF16 = 2, F32 = 3, DESCRIPTION = 4096 };
    static char space[2][DESCRIPTION] __attribute__((aligned(64)));
    int64_t one = 1;
    const void *desc[2];
    for (int i = 0; i < 2; i++) {
        Handle made = space[i];
        int rc = dnnl_api.describe_2 ? dnnl_api.describe_2(space[i], 1, &n, i ? BF16 : F32, &one)
                                     : dnnl_api.describe_3(&made, 1, &n, i ? BF16 : F32, &one);
        if (rc) die("oneDNN cannot describe %lld numbers: status %d", (long long)n, rc);
        desc[i] = made;
    }
    Round r = {.arg = {{1, NULL}, {17, NULL}}};
    Handle described, cpu = dnnl_api.cpu;
    if (dnnl_api.memory(&r.arg[0].memory, desc[0], cpu, (void *)(uintptr_t)from) ||
        dnnl_api.memory(&r.arg[1].memory, desc[1], cpu, to) ||
        dnnl_api.reorder(&described, desc[0], cpu, desc[1], cpu, NULL) ||
        dnnl_api.primitive(&r.primitive, described))
        die("oneDNN cannot round floats to bf16");
    return r;
}

static void round_run(const Round *r) {
    if (dnnl_api.execute(r->primitive, dnnl_api.in_order, 2, r->arg) ||
        dnnl_api.wait(dnnl_api.in_order))
        die("oneDNN: rounding failed");
}

/* The first of these libraries that has the function. */
static void *open_first(const char *const *libraries, const char *name, void *function) {
    void *handle = NULL;
    for (; *libraries && !handle; libraries++)
        handle = library_open(*libraries, &name, 1, function, NULL);
    return handle;
}

/* Sets the variables by which the peers choose their kernels when they are loaded. */
static void hold_peers_to(const char *set) {
    static const struct {
        const char *set, *openblas, *onednn, *mkl;
    } isa[] = {{"avx2", "Haswell", "AVX2", "AVX2"},
               {"avx512", "SkylakeX", "AVX512_CORE", "AVX512"},
               {"avx512_bf16", "SkylakeX", "ALL", "AVX512_E1"}};
    char n[16];
    snprintf(n, sizeof n, "%d", (int)o.threads);
    setenv("OMP_NUM_THREADS", n, 1);
    setenv("OPENBLAS_NUM_THREADS", n, 1);
    setenv("MKL_NUM_THREADS", n, 1);
    setenv("MKL_DYNAMIC", "FALSE", 1);
    // otherwise both threads may run on one core for a whole turn
    setenv("OMP_PROC_BIND", "close", 1);
    setenv("OMP_PLACES", "cores", 1);
    for (size_t i = 0; i < sizeof isa / sizeof *isa; i++) {
        if (strcmp(set, isa[i].set) != 0) continue;
        setenv("OPENBLAS_CORETYPE", isa[i].openblas, 1); // old releases do not know new processors
        setenv("ONEDNN_MAX_CPU_ISA", isa[i].onednn, 1);
        setenv("MKL_ENABLE_INSTRUCTIONS", isa[i].mkl, 1);
    }
}

static void load_peers(void) {
    static const char *const names[] = {"openblas_get_config", "openblas_get_corename",
                                        "mkl_get_version_string", "dnnl_gemm_bf16bf16f32"};
    void *blas =
        open_first((const char *const[]){"libopenblas.so.0", NULL}, "cblas_sgemm", &peers.openblas);
    void *dnnl =
        open_first((const char *const[]){"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so", NULL},
                   "dnnl_sgemm", &peers.dnnl);
    void *mkl = open_first((const char *const[]){"libmkl_rt.so.3", "libmkl_rt.so.2", NULL},
                           "cblas_sgemm", &peers.mkl);
    char *(*of_blas[2])(void) = {NULL, NULL}; // configuration, kernels
    void (*version)(char *, int) = NULL;
    if (blas) library_find(blas, names, 2, of_blas);
    if (mkl) library_find(mkl, names + 2, 1, &version);
    if (dnnl && round_load(dnnl)) library_find(dnnl, names + 3, 1, &peers.dnnl_bf16);
    char text[200] = "present";
    if (version) version(text, (int)sizeof text - 1);
    printf("OpenBLAS: %s%s%s\n",
           !blas        ? "peer absent"
           : of_blas[0] ? of_blas[0]()
                        : "present",
           of_blas[1] ? ", kernels: " : "", of_blas[1] ? of_blas[1]() : "");
    printf("oneDNN: %s%s\n", dnnl ? "present" : "peer absent",
           dnnl && !peers.dnnl_bf16 ? ", no bf16 entry" : "");
    printf("MKL: %s\n", mkl ? text : "peer absent");
}

/* Operands of one matmul in every format that the contenders need. */
typedef struct Data {
    Matmul p;
    float *a, *b, *y;
    uint16_t *a16, *b16;
    Round round[2]; // round[0]: of a, round[1]: of b
    Team *team;
    const Kernels *kernels;
    const char *set;
    double ratio[2][1000]; // our rate over the best peer's, fp32 and bf16
    int n_ratios[2];
} Data;

static bool can(int who, bool bf16) {
    if (who == OURS) return true;
    if (o.ours_only) return false;
    if (who == OPENBLAS) return peers.openblas && !bf16;
    if (who == MKL) return peers.mkl && !bf16;
    if (who == ONEDNN_GIVEN && !bf16) return false;
    return bf16 ? peers.dnnl_bf16 != NULL : peers.dnnl != NULL;
}

/* The team binds its threads, the caller included, to cores. Peers start their threads when they
 * are loaded or in the first call, and divide the cores that the caller may use then, which must be
 * all. Later the caller is on the same core in the calls of all contenders, and the peers' threads
 * are on the other cores. */
static cpu_set_t all_cores, team_core;
static void bind_caller(bool bound) {
    sched_setaffinity(0, sizeof all_cores, bound ? &team_core : &all_cores);
}

static void multiply(int who, const Shape *s, Data *d) {
    int64_t lda = s->a_turned ? s->M : s->K, ldb = s->b_turned ? s->K : s->N;
    char ta = s->a_turned ? 'T' : 'N', tb = s->b_turned ? 'T' : 'N';
    float beta = s->add ? 1 : 0;
    if (who == OURS)
        d->kernels->matmul(d->team, &d->p);
    else if (who == OPENBLAS || who == MKL)
        (who == MKL ? peers.mkl : peers.openblas)(
            101, s->a_turned ? 112 : 111, s->b_turned ? 112 : 111, (int)s->M, (int)s->N, (int)s->K,
            1, d->a, (int)lda, d->b, (int)ldb, beta, d->y, (int)s->N);
    else if (d->p.bf16) {
        for (int i = 0; i < 2 && who == ONEDNN; i++) round_run(&d->round[i]);
        peers.dnnl_bf16(ta, tb, s->M, s->N, s->K, 1, d->a16, lda, d->b16, ldb, beta, d->y, s->N);
    } else
        peers.dnnl(ta, tb, s->M, s->N, s->K, 1, d->a, lda, d->b, ldb, beta, d->y, s->N);
}

/* One turn: GFLOP/s over enough calls to fill 15 ms. */
static double turn(int who, const Shape *s, Data *d) {
    double flops = 2.0 * (double)s->M * (double)s->N * (double)s->K, start, spent;
    struct timespec pause = {0, 30 * 1000 * 1000};
    int calls = 0;
    bind_caller(true);
    nanosleep(&pause, NULL);
    multiply(who, s, d);
    start = spent_s();
    do multiply(who, s, d), calls++, spent = spent_s() - start;
    while (spent < 15e-3);
    return flops * calls / spent * 1e-9;
}

/* The median over turns of x / y: a disturbance of a whole turn slows both. */
static double median_ratio(const double *x, const double *y, int n) {
    double ratio[1000];
    for (int i = 0; i < n; i++) ratio[i] = x[i] / y[i];
    return median_of(ratio, n);
}

/* Operands are allocated as in the trainer, on huge pages if the system has them. The first walk
 * measures the size. */
static void take_operands(Data *d, Arena *arena, const Shape *s, bool bf16) {
    d->a = arena_take(arena, (size_t)(s->M * s->K) * sizeof *d->a);
    d->b = arena_take(arena, (size_t)(s->K * s->N) * sizeof *d->b);
    d->y = arena_take(arena, (size_t)(s->M * s->N) * sizeof *d->y);
    if (!bf16) return;
    d->a16 = arena_take(arena, (size_t)(s->M * s->K) * sizeof *d->a16);
    d->b16 = arena_take(arena, (size_t)(s->K * s->N) * sizeof *d->b16);
}

static void fill(float *x, uint16_t *h, int64_t n) {
    uint32_t r = 1;
    for (int64_t i = 0; i < n; i++) {
        r = r * 1664525 + 1013904223;
        x[i] = (float)(int32_t)r * 0x1p-31f;
        if (h) h[i] = bf16_from_float(x[i]);
    }
}

/* Dies unless a peer's result agrees with ours at four elements. */
static void check_same(const Shape *s, Data *d, const double want[4], int who) {
    for (int i = 0; i < 4; i++) {
        double got = (double)d->y[i * (s->M * s->N - 1) / 3];
        if (!(fabs(got - want[i]) < 1e-2 * (1 + fabs(want[i])) + 2e-3 * sqrt((double)s->K)))
            die("%s %s %d,%d,%d: y is %g, %s says %g", who_name[OURS], s->form, (int)s->M,
                (int)s->K, (int)s->N, want[i], who_name[who], got);
    }
}

/* Measures one matmul with all contenders: checks that their results agree, runs them in turns,
 * prints a row and returns it as JSON. */
static json_t *bench(const Shape *s, bool bf16, Data *d, double peak) {
    Shape once = *s; // for the comparison of results: does not add to y
    once.add = false;
    Arena arena = arena_measure("operands");
    take_operands(d, &arena, s, bf16);
    arena_commit(&arena);
    take_operands(d, &arena, s, bf16);
    fill(d->a, d->a16, s->M * s->K), fill(d->b, d->b16, s->K * s->N);
    if (can(ONEDNN_GIVEN, bf16)) {
        d->round[0] = round_make(d->a, d->a16, s->M * s->K);
        d->round[1] = round_make(d->b, d->b16, s->K * s->N);
    }
    d->p.M = s->M, d->p.N = s->N, d->p.K = s->K, d->p.bf16 = bf16;
    d->p.a = d->a, d->p.a_row = s->a_turned ? 1 : s->K, d->p.a_col = s->a_turned ? s->M : 1;
    d->p.b = d->b, d->p.b_row = s->b_turned ? 1 : s->N, d->p.b_col = s->b_turned ? s->K : 1;
    d->p.y = d->y, d->p.ldy = s->N;
    double want[4], rate[N_WHO][1000], result[N_WHO] = {0};
    for (int who = 0; who < N_WHO; who++) {
        if (!can(who, bf16)) continue;
        bind_caller(who == OURS);
        multiply(who, &once, d);
        if (who == OURS)
            for (int i = 0; i < 4; i++) want[i] = (double)d->y[i * (s->M * s->N - 1) / 3];
        else
            check_same(s, d, want, who);
    }
    d->p.addend = s->add ? d->y : NULL;
    for (int r = 0; r < o.runs; r++)
        for (int who = 0; who < N_WHO; who++)
            if (can(who, bf16)) rate[who][r] = turn(who, s, d);
    double ratio = can(OPENBLAS, bf16) || can(ONEDNN, bf16) || can(MKL, bf16) ? INFINITY : 0;
    for (int who = OPENBLAS; who <= MKL; who++)
        if (can(who, bf16)) ratio = fmin(ratio, median_ratio(rate[OURS], rate[who], (int)o.runs));
    for (int who = 0; who < N_WHO; who++)
        if (can(who, bf16)) result[who] = median_of(rate[who], (int)o.runs);
    d->p.addend = NULL;
    if (ratio > 0) d->ratio[bf16][d->n_ratios[bf16]++] = ratio;
    printf("%-4s %-8s %6d %6d %6d %8.0f %6.1f%%", bf16 ? "bf16" : "fp32", s->form, (int)s->M,
           (int)s->K, (int)s->N, result[OURS], 100e9 * result[OURS] / peak);
    for (int who = OPENBLAS; who <= MKL; who++)
        if (result[who] > 0)
            printf(" %9.0f", result[who]);
        else
            printf(" %9s", "-");
    if (ratio > 0) printf(" %7.2f", ratio);
    if (result[ONEDNN_GIVEN] > 0) printf(" %12.2f", result[OURS] / result[ONEDNN_GIVEN]);
    printf("\n");
    json_t *row = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f}", "set", d->set, "dtype",
                            bf16 ? "bf16" : "fp32", "form", s->form, "M", (json_int_t)s->M, "K",
                            (json_int_t)s->K, "N", (json_int_t)s->N, "peak_gflops", peak * 1e-9,
                            "share_of_peak", 1e9 * result[OURS] / peak, "best_peer_ratio", ratio);
    for (int who = 0; who < N_WHO; who++)
        if (result[who] > 0) json_object_set_new(row, who_name[who], json_real(result[who]));
    arena_free(&arena);
    d->a16 = d->b16 = NULL;
    return row;
}

static bool same_matmul(const json_t *x, const json_t *y) {
    static const char *const keys[] = {"set", "dtype", "form", "M", "K", "N"};
    for (int i = 0; i < 6; i++)
        if (!json_equal(json_object_get(x, keys[i]), json_object_get(y, keys[i]))) return false;
    return true;
}

/* Adds the rows to the file of --json: replaces those of the same matmuls, keeps others of the same
 * machine. */
static void write_json(json_t *rows, int argc, char **argv) {
    char model[256];
    stamp_cpu(model, sizeof model);
    json_t *file = json_load_file(o.json, 0, NULL), *old = json_object_get(file, "rows"), *row;
    const char *processor = NULL;
    json_unpack(file, "{s:{s:s}}", "machine", "processor", &processor);
    if (!processor || strcmp(processor, model) != 0) old = NULL; // the rows are of another machine
    size_t i, j;
    json_t *all = json_array(), *x;
    json_array_foreach(old, i, row) {
        bool replaced = false;
        json_array_foreach(rows, j, x) replaced |= same_matmul(row, x);
        if (!replaced) json_array_append(all, row);
    }
    json_array_extend(all, rows);
    char command[1024] = "";
    for (int k = 0; k < argc; k++)
        snprintf(command + strlen(command), sizeof command - strlen(command), "%s%s", k ? " " : "",
                 argv[k]);
    json_t *out =
        json_pack("{s:{s:s, s:I}, s:s, s:s, s:s, s:o}", "machine", "processor", model, "cores",
                  (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "commit", version_commit(), "command",
                  command, "unit", "GFLOP/s, medians", "rows", all);
    if (json_dump_file(out, o.json, JSON_INDENT(1) | JSON_REAL_PRECISION(5)))
        die("cannot write %s", o.json);
    json_decref(out), json_decref(file);
}

static void bench_layer(json_t *rows, Data *d, const double peak[2], int64_t T, int64_t K,
                        int64_t N, bool head) {
    Shape s[3] = {{"forward", T, N, K, false, head, false},
                  {"dx", T, K, N, false, !head, false},
                  {"dw", head ? N : K, head ? K : N, T, true, false, true}};
    if (N > o.max_n || N < o.min_n) return;
    for (int i = 0; i < 3; i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            if (*o.form && strcmp(o.form, s[i].form) != 0) continue;
            if (*o.dtype && strcmp(o.dtype, bf16 ? "bf16" : "fp32") != 0) continue;
            json_array_append_new(rows, bench(&s[i], bf16, d, peak[bf16]));
        }
}

/* Measures one instruction set; false: this machine lacks it. */
static bool bench_set(const char *set, int argc, char **argv) {
    static const int64_t tokens[] = {256, 1024};
    static const struct {
        int64_t K, N;
        bool small, head;
    } layer[] = {{768, 2304, 0, 0},  {768, 768, 0, 0},  {768, 3072, 0, 0}, {3072, 768, 0, 0},
                 {768, 50257, 0, 1}, {384, 1152, 1, 0}, {384, 384, 1, 0},  {384, 1536, 1, 0},
                 {1536, 384, 1, 0},  {384, 256, 1, 1}};
    if (!kernels_cpu(set)) return false;
    printf("\nset %s\n", set);
    sched_getaffinity(0, sizeof all_cores, &all_cores);
    hold_peers_to(set);
    processor_set_l2(o.l2 << 10);
    if (o.ours_only)
        printf("without peers\n");
    else
        load_peers();
    bind_caller(false); // an OpenMP runtime may have bound the caller when it was loaded
    static Data d;
    d.set = set, d.team = team_create((int)o.threads), d.kernels = kernels_cpu(set);
    sched_getaffinity(0, sizeof team_core, &team_core);
    Arena workspace = arena_measure("workspace");
    size_t bytes = d.kernels->matmul_workspace((int)o.threads);
    arena_take(&workspace, bytes);
    arena_commit(&workspace);
    d.p.workspace = arena_take(&workspace, bytes);
    double peak[2];
    for (int bf16 = 0; bf16 < 2; bf16++)
        peak[bf16] = (double)o.threads * d.kernels->peak(d.team, bf16).core;
    printf("peak of the units, %d threads: fp32 %.0f, bf16 %.0f GFLOP/s\n", (int)o.threads,
           peak[0] * 1e-9, peak[1] * 1e-9);
    printf("type form          M      K      N     ours   peak   OpenBLAS    oneDNN       MKL   "
           "ratio  given bf16\n");
    json_t *rows = json_array();
    for (int t = 0; t < (o.tokens ? 1 : 2); t++)
        for (size_t i = 0; i < sizeof layer / sizeof *layer; i++) {
            if (layer[i].small ? !o.small : !o.gpt2) continue;
            bench_layer(rows, &d, peak, o.tokens ? o.tokens : tokens[t], layer[i].K, layer[i].N,
                        layer[i].head);
        }
    for (int bf16 = 0; bf16 < 2; bf16++) {
        int n = d.n_ratios[bf16];
        if (n == 0) continue;
        double middle = median_of(d.ratio[bf16], n); // also sorts the ratios
        printf("%s of %d matmuls: ratio to the best peer: median %.2f, least %.2f\n",
               bf16 ? "bf16" : "fp32", n, middle, d.ratio[bf16][0]);
    }
    if (*o.json) write_json(rows, argc, argv);
    json_decref(rows);
    arena_free(&workspace);
    team_destroy(d.team);
    return true;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    die_set_program(argv[0]);
    opt_parse(options, argc, argv,
              "bench_matmul: the matmul beside OpenBLAS, oneDNN, MKL and the units' peak\n\n");
    bool all = true;
    char sets[200];
    snprintf(sets, sizeof sets, "%s", strcmp(o.set, "auto") ? o.set : kernels_cpu_sets()[0]);
    char *rest = sets;
    for (char *set; (set = strsep(&rest, ",")) && all;) {
        if (!kernels_cpu(set)) die_usage("no kernels for --set %s on this machine", set);
        if (!rest) return !bench_set(set, argc, argv);
        pid_t child = fork(); // one process for each set, since a loaded library keeps its kernels
        if (child < 0) die("cannot fork");
        int status = 0;
        if (child == 0) return !bench_set(set, argc, argv);
        all = waitpid(child, &status, 0) == child && status == 0;
    }
    return !all;
}
