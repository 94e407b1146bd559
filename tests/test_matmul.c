/* The matrix product, in every instruction set this machine has, against sums in double. */
#include "tests/test.h"

#include <stdatomic.h>

#include "base/processor.h"
#include "base/rng.h"
#include "base/simd.h"
#include "base/team.h"
#include "layers/kernels.h"
#include "tests/pointwise_double.h"

/* Every set of this machine, and matmuls by tile registers (AMX) in plain C: base/amx.h of
 * tests/emu/. */
void matmul_amx_tiles(Team *t, const Matmul *p);
size_t matmul_workspace_amx_tiles(int n_threads);
static const Kernels *kernels_of(const char *set) {
    static Kernels tiles;
    if (strcmp(set, "emulated tiles") != 0) return kernels_cpu(set);
    tiles = *kernels_cpu("portable");
    tiles.matmul = matmul_amx_tiles, tiles.matmul_workspace = matmul_workspace_amx_tiles;
    return &tiles;
}
static const char *const *matmul_sets(void) {
    static const char *names[17];
    int n = 0;
    for (const char *const *set = kernels_cpu_sets(); *set; set++) names[n++] = *set;
    names[n] = "emulated tiles";
    return names;
}
/* Tile registers are for bf16 alone. */
static bool set_differs(const char *set, bool bf16) {
    return bf16 || strcmp(set, "emulated tiles") != 0;
}

enum { GUARD = 7 }; // columns between the rows of y that nobody may touch
static const float untouched = -12345.5f;

/* One random case: the matmul and what it reads and writes, every operand in a block of exactly
 * its own size (so that the address sanitizer sees a read beyond it). */
typedef struct Case {
    Matmul p;
    float *a, *b, *y, *addend, *bias, *aux;
    size_t bytes; // of y, and of aux
    float *y_before, *aux_before;
    double *want, *want_aux; // [M, N] by sums in double
    double *size;            // [M, N] sum of |a b|: what rounding errors are measured by
} Case;

typedef struct Form {
    int64_t M, N, K;
    bool a_turned, b_turned, bf16, whole_numbers;
    int addend; // 0 none, 1 y itself, 2 another matrix
    bool bias;
    Epilogue epilogue;
    bool aux; // EPI_ACT: keep the value before the activation
    ActKind act;
} Form;

static double as_bf16(bool bf16, float x) {
    return bf16 ? bf16_to_float(bf16_from_float(x)) : x;
}
static float *numbers(int64_t n, bool whole, unsigned seed) {
    float *x = mem_alloc((size_t)n * sizeof *x);
    test_fill(x, (size_t)n, whole ? 8 : 1, seed);
    for (int64_t i = 0; whole && i < n; i++) x[i] = rintf(x[i]);
    return x;
}

static Case case_make(const Form *f, unsigned seed) {
    Case c = {0};
    Matmul *p = &c.p;
    p->M = f->M, p->N = f->N, p->K = f->K, p->bf16 = f->bf16, p->epilogue = f->epilogue,
    p->act = f->act;
    p->a_row = f->a_turned || f->K == 1 ? 1 : f->K + 3, p->a_col = f->a_turned ? f->M + 5 : 1;
    p->b_row = f->b_turned ? 1 : f->N + 1, p->b_col = f->b_turned ? f->K + 2 : 1;
    p->ldy = f->N + GUARD;
    int64_t n_y = (f->M - 1) * p->ldy + f->N;
    int64_t n_a = f->K ? 1 + (f->M - 1) * p->a_row + (f->K - 1) * p->a_col : 0;
    int64_t n_b = f->K ? 1 + (f->K - 1) * p->b_row + (f->N - 1) * p->b_col : 0;
    p->a = c.a = numbers(n_a, f->whole_numbers, seed);
    p->b = c.b = numbers(n_b, f->whole_numbers, seed + 1);
    p->y = c.y = numbers(n_y, f->whole_numbers, seed + 2);
    c.addend = numbers(n_y, f->whole_numbers, seed + 3);
    c.aux = numbers(n_y, false, seed + 4);
    c.bias = numbers(f->N, f->whole_numbers, seed + 5);
    for (int64_t m = 0; m + 1 < f->M; m++)
        for (int64_t n = f->N; n < p->ldy; n++)
            c.y[m * p->ldy + n] = c.aux[m * p->ldy + n] = untouched;
    c.bytes = (size_t)n_y * sizeof(float);
    c.y_before = memcpy(mem_alloc(c.bytes), c.y, c.bytes);
    c.aux_before = memcpy(mem_alloc(c.bytes), c.aux, c.bytes);
    p->addend = f->addend == 1 ? c.y : f->addend == 2 ? c.addend : NULL;
    p->bias = f->bias ? c.bias : NULL;
    p->aux = f->epilogue == EPI_DACT || f->aux ? c.aux : NULL;
    return c;
}

/* What the matmul must give. */
static void case_solve(Case *c, const Form *f) {
    const Matmul *p = &c->p;
    c->want = mem_calloc((size_t)(f->M * f->N), sizeof *c->want);
    c->want_aux = mem_calloc((size_t)(f->M * f->N), sizeof *c->want_aux);
    c->size = mem_calloc((size_t)(f->M * f->N), sizeof *c->size);
    for (int64_t m = 0; m < f->M; m++)
        for (int64_t n = 0; n < f->N; n++) {
            double s = 0, size = 1;
            const float *a = p->a, *b = p->b, *addend = p->addend, *bias = p->bias;
            for (int64_t k = 0; k < f->K; k++) {
                double x = as_bf16(f->bf16, a[m * p->a_row + k * p->a_col]) *
                           as_bf16(f->bf16, b[k * p->b_row + n * p->b_col]);
                s += x, size += fabs(x);
            }
            if (addend) s += (double)addend[m * p->ldy + n];
            if (bias) s += (double)bias[n];
            c->want_aux[m * f->N + n] = s;
            double before = (double)c->aux[m * p->ldy + n], slope = 1;
            if (f->epilogue == EPI_ACT) slope = act_slope_of(f->act, s), s = act_of(f->act, s);
            if (f->epilogue == EPI_DACT) slope = act_slope_of(f->act, before), s *= slope;
            c->want[m * f->N + n] = s, c->size[m * f->N + n] = size * fmax(1, fabs(slope));
        }
}

static void case_free(Case *c) {
    mem_free(c->a), mem_free(c->b), mem_free(c->y), mem_free(c->addend), mem_free(c->bias),
        mem_free(c->aux), mem_free(c->y_before), mem_free(c->aux_before);
    mem_free(c->want), mem_free(c->want_aux), mem_free(c->size);
}

static bool unlike_cores; // member i of a team was 1 + i times as slow as the first

/* As before any run. */
static void case_restart(Case *c) {
    memcpy(c->y, c->y_before, c->bytes), memcpy(c->aux, c->aux_before, c->bytes);
}

static void run_matmul(const Kernels *k, const Matmul *p, int threads) {
    OWNED(test_team_end) Team *t = team_create(threads);
    for (int turn = 0; unlike_cores && turn < 30; turn++, team_shares(t))
        for (int i = 0; i < threads; i++) team_report(t, i, 1, 1 + i);
    Matmul q = *p;
    size_t n = k->matmul_workspace(threads);
    q.workspace = mem_alloc_aligned(n, 64);
    memset(q.workspace, 0xff, n); // NaN: what was not packed shows
    k->matmul(t, &q);
    mem_free(q.workspace);
}

/* Sums of K products in fp32 differ from the exact sum by at most about K eps sum|ab|; in practice
 * by sqrt(K) eps. */
static void check_case(const char *set, const Form *f, const Case *c, int threads) {
    double eps =
        f->whole_numbers && f->epilogue == EPI_NONE ? 0 : 6e-8 * (4 + 2 * sqrt((double)f->K));
    for (int64_t m = 0; m < f->M; m++)
        for (int64_t n = 0; n < c->p.ldy && (m + 1 < f->M || n < f->N); n++) {
            float y = c->y[m * c->p.ldy + n], aux = c->aux[m * c->p.ldy + n];
            int64_t at = m * f->N + n;
            double off =
                n < f->N ? fabs((double)y - c->want[at]) : y != untouched || aux != untouched;
            double limit = n < f->N ? eps * c->size[at] : 0;
            if (n < f->N && f->epilogue == EPI_ACT && f->aux) {
                double off_aux = fabs((double)aux - c->want_aux[at]);
                if (!(off_aux <= off)) off = off_aux;
            }
            if (!(off <= limit)) {
                char name[16];
                test_fail("%s M=%d N=%d K=%d a'=%d b'=%d bf16=%d addend=%d bias=%d epilogue=%d "
                          "act=%s threads=%d: y[%d,%d] = %.9g is off by %.3g > %.3g",
                          set, (int)f->M, (int)f->N, (int)f->K, f->a_turned, f->b_turned, f->bf16,
                          f->addend, f->bias, (int)f->epilogue, config_act_name(f->act, name),
                          threads, (int)m, (int)n, (double)y, off, limit);
                return;
            }
        }
}

/* The same case in every set, after one solution. */
static void check_form(const Form *f, int threads, unsigned seed) {
    OWNED(case_free) Case c = case_make(f, seed);
    case_solve(&c, f);
    for (const char *const *set = matmul_sets(); *set && !test_failed(); set++) {
        if (!set_differs(*set, f->bf16)) continue;
        case_restart(&c);
        run_matmul(kernels_of(*set), &c.p, threads);
        check_case(*set, f, &c, threads);
    }
}

static const int64_t some_sizes[] = {1,  2,  3,  4,  5,  6,  7,   8,   9,   12,
                                     13, 14, 15, 16, 17, 24, 28,  29,  31,  32,
                                     33, 47, 48, 49, 64, 65, 100, 127, 130, 200};

static Form any_form(uint64_t i) {
    enum { N_SIZES = N_OF(some_sizes) };
    uint64_t r = rng_u64(1, 2, i);
    Form f = {.M = some_sizes[r % N_SIZES], .N = some_sizes[r / N_SIZES % N_SIZES]};
    f.K = i % 29 == 0 ? 0 : some_sizes[r / N_SIZES / N_SIZES % N_SIZES];
    f.a_turned = r >> 40 & 1, f.b_turned = r >> 41 & 1, f.bf16 = r >> 42 & 1;
    f.addend = (int)((r >> 43) % 3), f.bias = r >> 46 & 1, f.epilogue = (Epilogue)((r >> 47) % 3),
    f.aux = r >> 50 & 1, f.act = (ActKind)((r >> 51) % N_POINTWISE);
    return f;
}

/* Whole numbers up to 8: every sum is below 2^24, so fp32 is exact and the order cannot matter. */
TEST(matmul_equals_the_exact_sum) {
    for (unsigned i = 0; i < 600 && !test_failed(); i++) {
        Form f = any_form(i);
        f.whole_numbers = i % 3 == 2;
        if (f.whole_numbers) f.epilogue = EPI_NONE;
        check_form(&f, 1 + (int)(i / 3 % 3), i);
    }
}

/* Several panels of K, blocks of rows and of columns, with the edges one short and one over. */
TEST(matmul_crosses_every_block) {
    static const struct {
        int64_t M, N, K;
    } big[] = {{1, 4099, 5},   {2051, 1, 9},    {1100, 70, 33},  {30, 2100, 40},
               {17, 33, 1537}, {15, 400, 385},  {16, 390, 767},  {40, 384, 768},
               {13, 50, 769},  {1023, 37, 383}, {5, 2048, 1153}, {1040, 2070, 3}};
    for (unsigned i = 0; i < N_OF(big); i++)
        for (unsigned how = 0; how < 8 && !test_failed(); how++) {
            if ((i + how) % 3) continue;
            Form f = {.M = big[i].M, .N = big[i].N, .K = big[i].K, .whole_numbers = true};
            f.a_turned = how & 1, f.b_turned = how >> 1 & 1, f.bf16 = how >> 2,
            f.addend = (int)(how % 3);
            check_form(&f, 1 + (int)(i % 4), i);
            f.whole_numbers = false, f.bias = true, f.epilogue = how & 1 ? EPI_ACT : EPI_DACT,
            f.aux = true;
            check_form(&f, 2, i);
        }
}

/* Blocking follows the L2; the order of a sum follows neither that nor threads. The sizes choose
 * blocks of one panel and chunks of one tile. */
TEST(matmul_does_not_depend_on_threads_and_caches) {
    static const struct {
        int threads;
        int64_t l2; // 0: that of this machine
        bool unlike;
        L2Policy keeps;
    } ways[] = {{.threads = 2},
                {.threads = 3},
                {.threads = 5},
                {.threads = 1, .l2 = 1 << 10},
                {.threads = 1, .l2 = 64 << 10},
                {.threads = 1, .l2 = 512 << 10},
                {.threads = 1, .l2 = 1 << 20},
                {.threads = 1, .l2 = 2 << 20},
                {.threads = 1, .l2 = 64 << 20},
                {.threads = 4, .unlike = true},
                {.threads = 2, .keeps = L2_KEEPS_REREAD},
                {.threads = 2, .keeps = L2_KEEPS_ALL_ALIKE}};
    for (const char *const *set = matmul_sets(); *set; set++)
        for (unsigned i = 0; i < 6; i++) {
            Form f = {.M = 131 - (int64_t)i,
                      .N = i == 4 ? 1700 : 300 + 37 * i, // some chunks of any size
                      .K = 900,
                      .addend = (int)(i % 3),
                      .bias = true};
            f.a_turned = i & 1, f.b_turned = i >> 1 & 1, f.bf16 = i % 3 == 0,
            f.epilogue = (Epilogue)(i % 3), f.aux = true;
            if (!set_differs(*set, f.bf16)) continue;
            OWNED(case_free) Case c = case_make(&f, i), first = case_make(&f, i);
            run_matmul(kernels_of(*set), &first.p, 1);
            for (int j = 0; j < N_OF(ways); j++) {
                case_restart(&c);
                processor_set_l2(ways[j].l2), unlike_cores = ways[j].unlike;
                processor_set_keeps_reread(ways[j].keeps);
                run_matmul(kernels_of(*set), &c.p, ways[j].threads);
                if (memcmp(first.y, c.y, c.bytes) != 0 || memcmp(first.aux, c.aux, c.bytes) != 0)
                    test_fail("%s: case %u differs with %d threads, %lld of L2", *set, i,
                              ways[j].threads, (long long)ways[j].l2);
            }
            processor_set_l2(0), unlike_cores = false;
            processor_set_keeps_reread(L2_AS_DETECTED);
            CHECK(!test_failed());
        }
}

TEST(matmul_of_nothing_writes_nothing) {
    for (const char *const *set = matmul_sets(); *set; set++) {
        float y[4] = {1, 2, 3, 4}, x[4] = {0};
        Matmul p = matmul_forward(0, 4, 4, x, 4, x);
        p.y = y, p.ldy = 4;
        run_matmul(kernels_of(*set), &p, 2);
        p.M = 1, p.N = 0;
        run_matmul(kernels_of(*set), &p, 2);
        CHECK(y[0] == 1 && y[1] == 2 && y[2] == 3 && y[3] == 4);
        p.N = 4, p.K = 0; // an empty sum is 0
        run_matmul(kernels_of(*set), &p, 2);
        CHECK(y[0] == 0 && y[1] == 0 && y[2] == 0 && y[3] == 0);
    }
}

/* The bits of bias_backward. */
TEST(matmul_adds_the_columns_of_b) {
    enum { T = 70, K = 5, N = 37 };
    for (const char *const *set = matmul_sets(); *set; set++) {
        const Kernels *k = kernels_of(*set);
        float x[T * K], dy[T * N], dw[K * N], sums[N], want[N];
        test_fill(x, T * K, 1, 1), test_fill(dy, T * N, 1, 2), test_fill(sums, N, 1, 3);
        memcpy(want, sums, sizeof want);
        Matmul p = matmul_wgrad(T, K, N, x, K, dy);
        p.y = dw, p.bias_grad = sums, p.bf16 = true;
        run_matmul(k, &p, 2);
        OWNED(test_team_end) Team *t = team_create(1);
        k->bias_backward(t, want, dy, T, N);
        CHECK(memcmp(sums, want, sizeof want) == 0);
    }
}

/* The last pair of an odd K is completed by 0, whatever lies behind the matrices. */
TEST(matmul_reads_no_step_beyond_k) {
    for (const char *const *set = matmul_sets(); *set; set++)
        for (unsigned i = 0; i < 8; i++) {
            Form f = {.M = 20, .N = 70, .K = 32, .a_turned = i & 1, .bf16 = i >> 2};
            f.b_turned = i >> 1 & 1;
            OWNED(case_free) Case c = case_make(&f, i);
            Matmul *p = &c.p;
            p->K = 31;
            for (int m = 0; m < 20; m++) c.a[m * p->a_row + 31 * p->a_col] = NAN;
            for (int n = 0; n < 70; n++) c.b[31 * p->b_row + n * p->b_col] = NAN;
            run_matmul(kernels_of(*set), p, 1);
            for (int y = 0; y < 20 * 70; y++) CHECK(isfinite(c.y[y / 70 * p->ldy + y % 70]));
        }
}

/* A NaN or an infinity must reach y, in bf16 too: the step's guard against bad numbers looks there.
 * Rounding must make neither infinity of a NaN with few bits nor 0 of one with all. */
TEST(matmul_passes_nan_and_infinity) {
    const uint32_t few = 0x7f800001, all = 0x7fffffff;
    for (const char *const *set = matmul_sets(); *set; set++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            Form f = {.M = 20, .N = 40, .K = 30, .bf16 = bf16};
            OWNED(case_free) Case c = case_make(&f, 1);
            c.a[3 * c.p.a_row + 7] = NAN, c.a[5 * c.p.a_row + 8] = INFINITY;
            memcpy(c.a + 6 * c.p.a_row + 9, &few, sizeof few);
            memcpy(c.a + 7 * c.p.a_row + 9, &all, sizeof all);
            run_matmul(kernels_of(*set), &c.p, 1);
            for (int n = 0; n < 40; n++)
                CHECK(isnan(c.y[3 * c.p.ldy + n]) && isinf(c.y[5 * c.p.ldy + n]) &&
                      isnan(c.y[6 * c.p.ldy + n]) && isnan(c.y[7 * c.p.ldy + n]) &&
                      isfinite(c.y[4 * c.p.ldy + n]));
        }
}

/* ---- rows in blocks that lie elsewhere ---- */

enum { MOST_BLOCKS = 5 };
typedef struct Elsewhere {
    float *block[MOST_BLOCKS]; // of a or y, each in memory of its own
    const int64_t *n, *first;
    atomic_int begun, done; // blocks, in their order
    atomic_bool wrong;
} Elsewhere;

static int64_t turn_of(const Elsewhere *e, int block) {
    return (block - *e->first + *e->n) % *e->n;
}

/* Blocks begin in their order, and none of them behind its end. */
static Act *begin_block(void *ctx, int block) {
    Elsewhere *e = ctx;
    int turn = (int)turn_of(e, block), begun = atomic_load(&e->begun);
    if (turn > begun || turn < atomic_load(&e->done)) e->wrong = true;
    if (turn == begun) atomic_compare_exchange_strong(&e->begun, &begun, begun + 1);
    return (Act *)e->block[block];
}

static void end_block(void *ctx, int block) {
    Elsewhere *e = ctx;
    if (turn_of(e, block) != atomic_fetch_add(&e->done, 1)) e->wrong = true;
}

/* The same case with a, y or b in n blocks of rows, of a' and b those of K. y: NaN where nothing
 * was stored. */
static bool same_in_blocks(const char *set, const Form *f, unsigned seed, int64_t n, BlocksOf of,
                           int threads) {
    OWNED(case_free) Case whole = case_make(f, seed), parts = case_make(f, seed);
    const Matmul *p = &whole.p;
    bool of_y = of == BLOCKS_OF_Y, steps = of > BLOCKS_OF_Y;
    int64_t rows = (steps ? f->K : f->M) / n, first = steps ? 0 : seed % (unsigned)n;
    int64_t ld = (const int64_t[]){p->a_row, p->ldy, p->a_col, p->b_row}[of];
    int64_t width = (const int64_t[]){f->K, f->N, f->M, f->N}[of];
    Elsewhere e = {.n = &n, .first = &first};
    RowBlocks blocks = {.rows = rows,
                        .n = (int)n,
                        .first = (int)first,
                        .matrix = of,
                        .begin = begin_block,
                        .done = end_block,
                        .ctx = &e};
    for (int64_t i = 0; i < n; i++) {
        size_t bytes = (size_t)((rows - 1) * ld + width) * sizeof(float);
        e.block[i] = mem_alloc(bytes);
        memset(e.block[i], 0xff, bytes);
        const float *from = of == BLOCKS_OF_B ? parts.b : parts.a;
        if (!of_y) memcpy(e.block[i], from + i * rows * ld, bytes);
    }
    run_matmul(kernels_of(set), &whole.p, 1);
    parts.p.blocks = &blocks;
    if (of == BLOCKS_OF_B) parts.p.b = NULL;
    if (of == BLOCKS_OF_A || of == BLOCKS_OF_AT) parts.p.a = NULL;
    run_matmul(kernels_of(set), &parts.p, threads);
    bool same = !e.wrong && e.begun == n && e.done == n;
    for (int64_t m = 0; m < f->M; m++) {
        const float *y = of_y ? e.block[m / rows] + m % rows * ld : parts.y + m * whole.p.ldy;
        same &= memcmp(y, whole.y + m * whole.p.ldy, (size_t)f->N * sizeof *y) == 0;
        same &= of_y || memcmp(parts.aux + m * whole.p.ldy, whole.aux + m * whole.p.ldy,
                               (size_t)f->N * sizeof *y) == 0;
    }
    for (int64_t i = 0; i < n; i++) mem_free(e.block[i]);
    return same;
}

TEST(matmul_of_row_blocks_elsewhere_has_the_same_bits) {
    static const int64_t rows[] = {1, 3, 14, 29, 64, 100, 515, 1100};
    for (const char *const *set = matmul_sets(); *set; set++)
        for (unsigned i = 0; i < 48; i++) {
            int64_t n = 1 + i % MOST_BLOCKS, size = rows[i / 3 % 8];
            bool of_y = i & 1, large = size > 500;
            Form f = {.M = n * size, .N = large ? 40 : i % 7 ? 90 : 2100, .K = large ? 33 : 400};
            f.b_turned = i >> 1 & 1, f.bf16 = i % 3 == 0;
            if (!of_y) f.addend = (int)(i % 3), f.bias = true, f.aux = true;
            if (!of_y) f.epilogue = (Epilogue)(i / 2 % 3);
            if (!set_differs(*set, f.bf16)) continue;
            if (!same_in_blocks(*set, &f, i, n, of_y ? BLOCKS_OF_Y : BLOCKS_OF_A,
                                i % 4 == 3 ? 3 : 1))
                test_fail("%s: case %u", *set, i);
        }
}

/* Panels of K cross the edges of blocks; in bf16 not within a pair. */
TEST(matmul_of_step_blocks_elsewhere_has_the_same_bits) {
    static const int64_t rows[] = {1, 7, 33, 200, 383, 385, 900};
    for (const char *const *set = matmul_sets(); *set; set++)
        for (unsigned i = 0; i < 42; i++) {
            int64_t n = 1 + i % MOST_BLOCKS, size = rows[i / 3 % 7];
            Form f = {.M = 20 + 30 * (i % 3), .N = i % 5 ? 45 : 400, .a_turned = true};
            f.bf16 = i % 3 == 0;
            f.K = n * (f.bf16 ? (size + 31) / 32 * 32 : size);
            f.addend = (int)(i % 3);
            if (!set_differs(*set, f.bf16)) continue;
            if (!same_in_blocks(*set, &f, i, n, i & 1 ? BLOCKS_OF_AT : BLOCKS_OF_B,
                                i % 4 == 3 ? 3 : 1))
                test_fail("%s: case %u", *set, i);
        }
}
