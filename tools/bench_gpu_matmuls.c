/* bench_gpu_matmuls -- the matmuls of a step, with the epilogues of the step. Measured are: this
 * program's matmul with the library's first choice (first) and after matmul_prepare (prepared); the
 * fastest config of its own kernel for Hopper (sm_90); its kernel for sm_80; and the fastest of 16
 * algorithms of cuBLASLt (library). Printed beside them: the prediction of
 * parallel/plan/gpu_matmul.h. */
#include <stdio.h>

#include "layers/cuda/device.h"
#include "layers/cuda/matmul_cost.h"
#include "layers/cuda/matmuls.h"
#include "layers/matmul_sm80.h"
#include "layers/matmul_sm90.h"
#include "parallel/plan/detect.h"
#include "parallel/plan/gpu_matmul.h"
#include "parallel/step/program.h"
#include "tools/bench_gpu.h"

enum { MOST_SETS = 8, SQUARE = 8192, TILE = 128, MOST_WAYS = 8 };

/* Forward y = x w; dx = dy w'; dw = x' dy; dw with the gradient of the bias. */
typedef enum Form { XW, DX, DW, DW_BIAS } Form;
/* A linear layer, with the epilogues of its forward matmul and of its dx. */
typedef struct Layer {
    const char *name;
    int64_t T, K, N, ld;         // ld: leading dimension of y and dy
    bool bias, residual, turned; // turned: the weight is stored as [N, K]
    Epilogue forward, backward;
} Layer;

static struct {
    const Kernels *k;
    Machine machine; // the device, as the planner sees it
    GpuLibrary *library;
    void *workspace; // of all, the library's algorithms too
    int sets;
    Matmul p[MOST_SETS];
} b;

static void run(void *ctx, int set) {
    (void)ctx;
    b.k->matmul(NULL, &b.p[set]);
}

static Matmul shape_of(const Layer *l, Form f) {
    int64_t T = l->T, K = l->K, N = l->N, ld = l->ld;
    if (!l->turned)
        return f == XW   ? matmul_forward(T, K, N, NULL, K, NULL)
               : f == DX ? matmul_dgrad(T, K, N, NULL, ld, NULL)
                         : matmul_wgrad(T, K, N, NULL, K, NULL);
    Matmul p = f == XW   ? matmul_dgrad(T, N, K, NULL, K, NULL)
               : f == DX ? matmul_forward(T, N, K, NULL, ld, NULL)
                         : matmul_wgrad(T, N, K, NULL, ld, NULL);
    if (f == XW) p.ldy = ld, p.padded = true;
    return p;
}

/* Allocates the sets of operands of a matmul. */
static void operands(const Layer *l, Form f) {
    Matmul p = shape_of(l, f);
    int64_t a = 2 * (p.a_col == 1 ? p.M * p.a_row : p.K * p.a_col);
    int64_t w = 2 * (p.b_col == 1 ? p.K * p.b_row : p.N * p.b_col);
    int64_t y = (p.wide ? 4 : 2) * p.M * p.ldy;
    p.epilogue = f == XW ? l->forward : f == DX ? l->backward : EPI_NONE;
    p.workspace = b.workspace;
    if (f == XW && l->bias) p.bias = gpu_take(2 * p.N, GPU_RANDOM);
    if (f == DW_BIAS) p.bias_grad = gpu_take(4 * p.N, GPU_ZEROS);
    b.sets = gpu_sets(a + w + y);
    for (int i = 0; i < b.sets; i++) {
        p.a = gpu_take(a, GPU_RANDOM), p.b = gpu_take(w, GPU_RANDOM);
        p.y = gpu_take(y, GPU_RANDOM);
        p.addend = f >= DW ? p.y : f == XW && l->residual ? gpu_take(y, GPU_RANDOM) : NULL;
        p.aux = p.epilogue != EPI_NONE ? gpu_take(y, GPU_RANDOM) : NULL;
        b.p[i] = p;
    }
}

static void run_sm80(void *ctx, int set) {
    (void)ctx;
    matmul_sm80(&b.p[set], 0);
}
static void run_sm90(void *ctx, int set) {
    matmul_sm90(&b.p[set], *(int *)ctx);
}
/* The fastest of the likely configs of the Hopper kernel; false: the kernel does not take this
 * shape. */
static bool best_sm90(GpuJob *job, int *config) {
    enum { ROUNDS = 3 }; // ROUNDS: at most
    static int configs[MATMUL_CONFIGS];
    GpuJob each[MATMUL_CONFIGS];
    if (matmul_sm90_refuses(&b.p[0], 2)) return false;
    int n = matmul_sm90_configs(&b.p[0], configs), best = 0;
    if (n > MOST_WAYS) n = MOST_WAYS;
    for (int i = 0; i < n; i++) each[i] = (GpuJob){run_sm90, &configs[i], b.sets, 0};
    gpu_time_rounds(each, n, gpu_options.rounds < ROUNDS ? 1 : ROUNDS);
    for (int i = 1; i < n; i++)
        if (each[i].seconds < each[best].seconds) best = i;
    *job = each[best], *config = configs[best];
    return true;
}

static const char *config_name(int number, char name[32]) {
    static const char *const kinds[] = {"", " split-K", " Stream-K"};
    MatmulConfig w = matmul_config(number);
    snprintf(name, 32, "%s%dx%d%s", w.blocks > 1 ? "2x" : "", MATMUL_ROWS, w.width, kinds[w.kind]);
    return name;
}

static void describe_device(void) {
    RankFacts rank = {.threads = 1};
    NodeFacts node = {.name = ""};
    Detected d = {.n_ranks = 1, .n_nodes = 1, .rank = &rank, .node = &node};
    Gpus g = {.facts = device_facts(0), .memory = 1, .sharing = 1};
    detect_gpu_machine(&d, &g, &b.machine);
}

/* Predicted seconds of the matmul. */
static double predicted(const Layer *l, Form f) {
    Work w = {.kind = f == XW   ? WORK_MATMUL
                      : f == DX ? WORK_DGRAD
                                : WORK_WGRAD,
              .flags = WORK_BF16 | WORK_BF16_STORED,
              .rows = l->T,
              .K = l->K,
              .N = l->N};
    if (f >= DW || (f == XW && l->residual)) w.flags |= WORK_ADDEND;
    if (f == DW_BIAS || (f == XW && l->bias)) w.flags |= WORK_BIAS;
    if (f == XW && l->forward == EPI_ACT) w.flags |= WORK_EPI_ACT;
    if (f == DX && l->backward == EPI_DACT) w.flags |= WORK_EPI_DACT;
    return gpu_matmul_seconds(&b.machine, &w);
}

/* TFLOP/s; 0: not measured. */
typedef struct Rates {
    double first, prepared, sm90, sm80, library, predicted;
} Rates;

static json_t *row_of(const Layer *l, const char *form, int64_t C, const Rates *r, double tera) {
    double us = 1e6 * tera;
    return json_pack("{s:I, s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "C",
                     (json_int_t)C, "name", l->name, "form", form, "T", (json_int_t)l->T, "K",
                     (json_int_t)l->K, "N", (json_int_t)l->N, "us", us / r->prepared,
                     "predicted_us", us / r->predicted, "first_choice_tflops", r->first, "tflops",
                     r->prepared, "library_tflops", r->library, "sm90_tflops", r->sm90,
                     "sm80_tflops", r->sm80);
}

/* Measures one matmul in all ways, and writes its row. */
static void measure(const Layer *l, Form f, int64_t C) {
    static const char *const forms[] = {"xw", "dx", "dw", "dw+"};
    char name[32] = "";
    int config = 0, n = 1, sm90 = 0, sm80 = 0, library = 0;
    bool whole = false;
    operands(l, f);
    double tera = 2e-12 * (double)l->T * (double)l->K * (double)l->N;
    GpuJob first = {run, NULL, b.sets, 0}, job[4] = {first, first, first, first};
    gpu_time(&first, 1);
    matmul_prepare(&b.p[0], 2); // all sets use this plan
    if (best_sm90(&job[n], &config)) sm90 = n++;
    if (!matmul_sm80_refuses(&b.p[0], 2)) job[n].run = run_sm80, sm80 = n++;
    if (b.library) library = n++, whole = gpu_library_best(b.library, b.p, b.sets, &job[library]);
    gpu_time(job, n);
    Rates r = {tera / first.seconds,
               tera / job[0].seconds,
               sm90 ? tera / job[sm90].seconds : 0,
               sm80 ? tera / job[sm80].seconds : 0,
               library ? tera / job[library].seconds : 0,
               tera / predicted(l, f)};
    printf("%-6d %-6s %-3s %7d %6d %6d %8.1f %8.1f %8.1f %6.2f %9.1f %6.1f %6.1f %s%s\n", (int)C,
           l->name, forms[f], (int)l->T, (int)l->K, (int)l->N, r.first, r.prepared, r.library,
           library ? r.prepared / r.library : 0, r.predicted, r.sm90, r.sm80,
           sm90 ? config_name(config, name) : "",
           !library ? ", no library"
           : whole  ? ""
                    : ", library without the epilogue");
    json_t *row = row_of(l, forms[f], C, &r, tera);
    json_object_set_new(row, "way", json_string(name));
    json_object_set_new(row, "same_epilogue", json_boolean(whole));
    gpu_write("matmuls", row);
    gpu_give_all();
}

void gpu_matmuls(const Kernels *k, int64_t C) {
    int64_t T = gpu_options.tokens, V = gpu_options.vocab, F = 4 * C;
    if (C > 1024) T /= 2; // larger models are trained with fewer sequences at a time
    int64_t most = T < SQUARE ? T : SQUARE, tokens = head_chunk(T, V, true);
    int64_t V_tiles =
        // the vocabulary padded to whole tiles: shows what padding would save
        (V + TILE - 1) / TILE * TILE;
    const Layer layers[] = {
        {"square", most, most, most, most, false, false, false, EPI_NONE, EPI_NONE},
        {"qkv", T, C, 3 * C, 3 * C, true, false, false, EPI_NONE, EPI_NONE},
        {"proj", T, C, C, C, true, true, false, EPI_NONE, EPI_NONE},
        {"up", T, C, F, F, true, false, false, EPI_ACT, EPI_NONE},
        {"down", T, F, C, C, true, true, false, EPI_NONE, EPI_DACT},
        {"head", tokens, C, V, head_ld(V), false, false, true, EPI_NONE, EPI_NONE},
        {"padded", tokens, C, V_tiles, V_tiles, false, false, true, EPI_NONE, EPI_NONE},
    };
    describe_device();
    b.k = k, b.library = gpu_library_open();
    b.workspace = device_alloc(k->matmul_workspace(1));
    printf(
        "\nTFLOP/s of matmuls, T = %lld\n%-6s %-6s %-3s %7s %6s %6s %8s %8s %8s %6s %9s %6s %6s\n",
        (long long)T, "C", "layer", "", "T", "K", "N", "first", "prepared", "library", "ratio",
        "predicted", "sm_90", "sm_80");
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (Form f = XW; f <= (layers[i].bias ? DW_BIAS : DW); f++)
            if (i > 0 || f == XW) measure(&layers[i], f, C);
    gpu_library_close(b.library), device_free(b.workspace);
}
