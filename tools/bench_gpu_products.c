/* The products of a step, with the epilogues that the step gives them: as this program does them,
 * by the library's first choice and after product_prepare, beside the fastest of 16 algorithms of
 * cuBLASLt, by this program's kernels for tensor cores (for sm_80 in both columns where the device
 * is not of capability 9.0), and beside what is predicted of those (parallel/plan/gpu_matmul.h). */
#include <stdio.h>

#include "layers/cuda/device.h"
#include "layers/cuda/products.h"
#include "layers/matmul_sm80.h"
#include "parallel/plan/detect.h"
#include "parallel/plan/gpu_matmul.h"
#include "parallel/step/head.h"
#include "tools/bench_gpu.h"

enum { MOST_SETS = 8, SQUARE = 8192, TILE = 128 };

/* The last one: dw with the gradient of the bias. */
typedef enum Form { XW, DX, DW, DW_BIAS } Form;
/* A linear layer; what its forward product and its dx end with. */
typedef struct Layer {
    const char *name;
    int64_t T, K, N, ld;         // ld: of y and dy
    bool bias, residual, turned; // turned: the weight lies [N, K]
    Epilogue forward, backward;
} Layer;

static struct {
    const Kernels *k;
    Machine machine; // the device, as the planner sees it
    GpuLibrary *library;
    int sets;
    Product p[MOST_SETS];
} b;

/* ctx: the highest rung. */
static void run(void *ctx, int set) {
    product_set_rung(*(const ProductRung *)ctx);
    b.k->product(NULL, &b.p[set]);
    product_set_rung(PRODUCT_LIBRARY);
}

static Product shape_of(const Layer *l, Form f) {
    int64_t T = l->T, K = l->K, N = l->N, ld = l->ld;
    if (!l->turned)
        return f == XW   ? product_xw(T, K, N, NULL, K, NULL)
               : f == DX ? product_dx(T, K, N, NULL, ld, NULL)
                         : product_dw(T, K, N, NULL, K, NULL);
    Product p = f == XW   ? product_dx(T, N, K, NULL, K, NULL)
                : f == DX ? product_xw(T, N, K, NULL, ld, NULL)
                          : product_dw(T, N, K, NULL, ld, NULL);
    if (f == XW) p.ldy = ld;
    return p;
}

/* Sets of operands. */
static void operands(const Layer *l, Form f) {
    Product p = shape_of(l, f);
    int64_t a = 2 * (p.a_col == 1 ? p.M * p.a_row : p.K * p.a_col);
    int64_t w = 2 * (p.b_col == 1 ? p.K * p.b_row : p.N * p.b_col);
    int64_t y = (p.wide ? 4 : 2) * p.M * p.ldy;
    p.epilogue = f == XW ? l->forward : f == DX ? l->backward : EPI_NONE;
    p.workspace = gpu_take((int64_t)b.k->product_workspace(1), GPU_ZEROS);
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

static void describe_device(void) {
    RankFacts rank = {.threads = 1};
    NodeFacts node = {.name = ""};
    DeviceFacts f = device_facts(0);
    Detected d = {.n_ranks = 1, .n_nodes = 1, .rank = &rank, .node = &node};
    Gpus g = {.facts = {f.name, f.major, f.minor, f.sms, f.mhz}, .memory = 1, .sharing = 1};
    detect_gpu_machine(&d, &g, &b.machine);
}

/* Seconds. */
static double predicted(const Layer *l, Form f) {
    Work w = {.kind = f == XW   ? WORK_XW
                      : f == DX ? WORK_DX
                                : WORK_DW,
              .flags = WORK_BF16 | WORK_WORDS,
              .rows = l->T,
              .a = l->K,
              .b = l->N};
    if (f >= DW || (f == XW && l->residual)) w.flags |= WORK_ADDEND;
    if (f == DW_BIAS || (f == XW && l->bias)) w.flags |= WORK_BIAS;
    if (f == XW && l->forward == EPI_ACT) w.flags |= WORK_EPI_ACT;
    if (f == DX && l->backward == EPI_DACT) w.flags |= WORK_EPI_DACT;
    return gpu_matmul_seconds(&b.machine, &w);
}

static void measure(const Layer *l, Form f, int64_t C) {
    static const char *const forms[] = {"xw", "dx", "dw", "dw+"};
    operands(l, f);
    double flops = 2 * (double)l->T * (double)l->K * (double)l->N * 1e-12, peer = 0;
    static ProductRung rung[] = {PRODUCT_LIBRARY, PRODUCT_SM90, PRODUCT_SM80};
    GpuJob first = {run, &rung[0], b.sets, 0}, job[4] = {first, first, first, first};
    job[1].ctx = &rung[1], job[2].ctx = &rung[2];
    if (matmul_sm80_refuses(&b.p[0], 2)) job[1].ctx = job[2].ctx = &rung[0]; // tiles take long
    bool whole = false;
    gpu_time(&first, 1);
    product_prepare(&b.p[0], 2); // whose plan is all sets'
    if (b.library) whole = gpu_library_best(b.library, b.p, b.sets, &job[3]);
    gpu_time(job, b.library ? 4 : 3);
    double own = flops / job[0].seconds, before = flops / first.seconds;
    double sm90 = flops / job[1].seconds, sm80 = flops / job[2].seconds;
    if (b.library) peer = flops / job[3].seconds;
    double seconds = predicted(l, f);
    printf("%-6d %-6s %-3s %7d %6d %6d %8.1f %8.1f %8.1f %6.2f %9.1f %6.1f %6.1f %s\n", (int)C,
           l->name, forms[f], (int)l->T, (int)l->K, (int)l->N, before, own, peer,
           peer > 0 ? own / peer : 0, flops / seconds, sm90, sm80,
           !b.library ? "no library"
           : whole    ? ""
                      : "without the epilogue");
    json_t *row = json_pack(
        "{s:I, s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:b}", "C",
        (json_int_t)C, "name", l->name, "form", forms[f], "T", (json_int_t)l->T, "K",
        (json_int_t)l->K, "N", (json_int_t)l->N, "us", job[0].seconds * 1e6, "predicted_us",
        seconds * 1e6, "first_choice_tflops", before, "tflops", own, "library_tflops", peer,
        "sm90_tflops", sm90, "sm80_tflops", sm80, "same_epilogue", whole);
    gpu_write("products", row);
    gpu_give_all();
}

void gpu_products(const Kernels *k, int64_t C) {
    int64_t T = gpu_options.tokens, V = gpu_options.vocab, F = 4 * C;
    if (C > 1024) T /= 2; // of the larger models fewer sequences are trained at a time
    int64_t most = T < SQUARE ? T : SQUARE, tokens = head_chunk(T, V, true);
    int64_t V_tiles =
        (V + TILE - 1) / TILE * TILE; // were the vocabulary padded: what that would save
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
    printf(
        "\nTFLOP/s of products, T = %lld\n%-6s %-6s %-3s %7s %6s %6s %8s %8s %8s %6s %9s %6s %6s\n",
        (long long)T, "C", "layer", "", "T", "K", "N", "first", "prepared", "library", "ratio",
        "predicted", "sm_90", "sm_80");
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (Form f = XW; f <= (layers[i].bias ? DW_BIAS : DW); f++)
            if (i > 0 || f == XW) measure(&layers[i], f, C);
    gpu_library_close(b.library);
}
