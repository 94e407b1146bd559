/* What a step of GPT-2 124M asks of NVIDIA's libraries, as it asks for it: matmuls of cuBLASLt
 * beside the tiles of this program, of the model's sizes where a device runs them and an eighth of
 * them where the emulator does; NCCL with one rank, recorded and on registered memory. */
#include "layers/cuda/graph.h"
#include "layers/cuda/matmuls.h"
#include "parallel/comm/nccl.h"
#include "tests/cuda_test.h"
#include "tests/emu/emu_cublaslt.h"

/* ---- matmuls */

typedef enum Form { XW, DX, DW, FORMS } Form;
typedef struct Linear {
    const char *name;
    int K, N; // in units of C
    bool residual;
    Epilogue forward, backward; // of y and of dx
} Linear;
static const Linear linear[] = {{"qkv", 1, 3, false, EPI_NONE, EPI_NONE},
                                {"proj", 1, 1, true, EPI_NONE, EPI_NONE},
                                {"up", 1, 4, false, EPI_ACT, EPI_NONE},
                                {"down", 4, 1, true, EPI_NONE, EPI_DACT}};

/* A matmul, and what it writes. */
typedef struct Operands {
    Matmul p;
    Array y, aux, sums;
} Operands;

static Operands operands(const Linear *l, Form f) {
    int64_t T = test_on_device ? 2048 : 32, C = test_on_device ? 768 : 96;
    int64_t K = l->K * C, N = l->N * C;
    Array x = array_random(T * (f == DX ? N : K), 1, 1, true, 0);
    Array w = array_random(f == DW ? T * N : K * N, 1, 2, true, 0);
    const Act *a = x.device, *b = w.device;
    Operands o;
    o.p = f == XW   ? matmul_forward(T, K, N, a, K, b)
          : f == DX ? matmul_dgrad(T, K, N, a, N, b)
                    : matmul_wgrad(T, K, N, a, K, b);
    o.y = array_random(o.p.M * o.p.N, 1, 3, f != DW, 0);
    o.aux = array_random(o.p.M * o.p.N, 2, 4, true, 0), o.sums = array_random(N, 1, 5, false, 0);
    o.p.y = o.y.device, o.p.epilogue = f == XW ? l->forward : f == DX ? l->backward : EPI_NONE;
    if (o.p.epilogue != EPI_NONE) o.p.aux = o.aux.device;
    if (f == XW) o.p.bias = array_random(N, 1, 6, true, 0).device;
    if (f == XW && l->residual) o.p.addend = array_random(T * N, 1, 7, true, 0).device;
    if (f == DW) o.p.addend = o.p.y, o.p.bias_grad = o.sums.device;
    o.p.workspace = cuda_take((int64_t)kernels_cuda(true)->matmul_workspace(1), 1, 0);
    return o;
}

typedef struct Results {
    Array y, aux, sums;
} Results;

/* What a backend makes of the operands as they were at first. */
static Results run(Operands *o, MatmulBackend backend) {
    array_put(&o->y), array_put(&o->aux), array_put(&o->sums);
    matmul_set_backend(backend);
    kernels_cuda(true)->matmul(NULL, &o->p);
    matmul_set_backend(BACKEND_LIBRARY);
    return (Results){array_now(o->y), array_now(o->aux), array_now(o->sums)};
}

/* Elements differ by the rounding of y before and after an epilogue, sums by their order: by a
 * hundredth of what they are on average at most. */
static bool alike(const char *what, const Linear *l, Form f, const Array *a, const Array *b) {
    static const char *const forms[] = {"xw", "dx", "dw"};
    double size = 0;
    for (int64_t i = 0; i < a->n; i++) size += fabs((double)b->host[i]) / (double)a->n;
    for (int64_t i = 0; i < a->n; i++) {
        double want = (double)b->host[i], off = 0x1p-7 * fabs(want) + 0.01 * size;
        if (fabs((double)a->host[i] - want) <= off) continue;
        test_fail("%s of %s, %s: element %lld is %.9g, not %.9g (+- %.2g)", what, l->name, forms[f],
                  (long long)i, (double)a->host[i], want, off);
        return false;
    }
    return true;
}

/* By the library's first algorithm, by the kernels for tensor cores, and by what of these is chosen
 * by time. */
TEST(cuda_matmul_of_each_kind_of_d12_is_that_of_own_tiles) {
    cuda_forget_choices();
    for (EACH(l, linear))
        for (Form f = XW; f < FORMS; f++) {
            cuda_begin(cuda_orders[2]);
            emu_lt_setup = (EmuLtSetup){0};
            Operands o = operands(l, f);
            MatmulCounts before = matmul_counts();
            Results got[4] = {run(&o, BACKEND_LIBRARY), run(&o, BACKEND_SM90),
                              run(&o, BACKEND_SM80)};
            Results tiled = run(&o, BACKEND_TILED);
            MatmulCounts after = matmul_counts();
            int64_t whole = after.fused - before.fused, bare = after.bare - before.bare;
            CHECK(test_on_device ? whole + bare == 1 : whole == 1);
            CHECK(after.tiled == before.tiled + 1 && after.sm80 > before.sm80);
            CHECK(after.sm90 + after.sm80 == before.sm90 + before.sm80 + 2);
            matmul_prepare(&o.p, 2);
            got[3] = run(&o, BACKEND_LIBRARY);
            for (int j = 0; j < 4; j++) {
                CHECK(alike("y", l, f, &got[j].y, &tiled.y));
                CHECK(alike("aux", l, f, &got[j].aux, &tiled.aux));
                CHECK(alike("bias gradient", l, f, &got[j].sums, &tiled.sums));
            }
            CHECK(cuda_end());
        }
}

/* ---- NCCL */

enum { N = 1 << 16 };

static bool holds(const float *device, float want) {
    float *host = floats(N, 0, 0);
    device_get(host, device, N * sizeof *host);
    device_wait();
    for (int64_t i = 0; i < N; i++)
        if (host[i] != want) return false;
    return true;
}

TEST(cuda_nccl_of_one_rank_sums_in_a_recording_on_registered_memory) {
    Err e;
    const Nccl *n = nccl(&e);
    SKIP_IF(!n, e.text);
    CHECK(n->mem_alloc && n->buffer_register && n->window_register);
    cuda_begin(cuda_orders[2]);
    float *ones = floats(N, 0, 0);
    for (int64_t i = 0; i < N; i++) ones[i] = 1;
    NcclId id;
    NcclComm c = NULL;
    NcclConfig config = nccl_config();
    config.blocking = 1, config.max_ctas = 8;
    void *p = NULL, *window = NULL;
    CHECK(n->unique_id(&id) == NCCL_SUCCESS);
    CHECK(n->init(&c, 1, id, 0, &config) == NCCL_SUCCESS);
    CHECK(n->mem_alloc(&p, 2 * N * sizeof(float)) == NCCL_SUCCESS);
    CHECK(n->window_register(c, p, 2 * N * sizeof(float), &window, NCCL_SYMMETRIC) == NCCL_SUCCESS);
    float *src = p, *dst = src + N;
    device_put(src, ones, N * sizeof *ones);
    device_zero(dst, N * sizeof *dst);
    device_wait();
    device_capture();
    CHECK(n->all_reduce(src, dst, N, NCCL_F32, NCCL_SUM, c, device_stream()) == NCCL_SUCCESS);
    Graph g = device_captured();
    CHECK(holds(dst, 0)); // recorded, not run
    for (int i = 0; i < 2; i++) {
        device_zero(dst, N * sizeof *dst);
        device_replay(g);
        CHECK(holds(dst, 1));
    }
    device_graph_free(g);
    if (window) CHECK(n->window_deregister(c, window) == NCCL_SUCCESS);
    CHECK(n->destroy(c) == NCCL_SUCCESS && n->mem_free(p) == NCCL_SUCCESS);
    CHECK(cuda_end());
}
