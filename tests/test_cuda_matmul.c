/* layers/matmul_sm80.cu and matmul_sm90.cu against a thread for each element: matmuls of a layer
 * and that of the head, ragged on every side, with each epilogue. Numbers are small integers: their
 * sums are exact in any order, and all give the same bits. */
#include "layers/cuda/cublaslt.h"
#include "layers/cuda/matmul_cost.h"
#include "layers/cuda/matmul_plan.h"
#include "layers/cuda/matmuls.h"
#include "layers/cuda/sizes.h"
#include "layers/matmul_sm80.h"
#include "layers/matmul_sm90.h"
#include "tests/cuda_test.h"
#include "tests/emu/emu_cublaslt.h"

/* Kernels of a capability of devices. */
typedef struct Own {
    const char *(*refuses)(const Matmul *p, size_t word);
    int (*configs)(const Matmul *p, int number[]);
    void (*run)(const Matmul *p, int number);
    int major; // the device is treated as of this capability
} Own;
static const Own sm80 = {matmul_sm80_refuses, matmul_sm80_configs, matmul_sm80, 8};
static const Own sm90 = {matmul_sm90_refuses, matmul_sm90_configs, matmul_sm90, 9};

typedef enum Kind { FORWARD, DGRAD, WGRAD } Kind; // b along n; along k; both along m and n
typedef enum Addend { NONE, ITSELF, OTHER } Addend;

typedef struct Shape {
    Kind kind;
    int64_t M, N, K;
    Addend addend;
    bool bias;
    Epilogue epilogue;
    bool aux;
    ActKind act;
    bool sums; // of the columns of b
} Shape;

/* Widths of tiles of 128, 192 and 256; one tile and several, whole and ragged; K of one step, of
 * less and of more than the ring holds. */
static const Shape shapes[] = {
    {FORWARD, 128, 128, 64, NONE, false, EPI_NONE, false, ACT_GELU, false},
    {FORWARD, 128, 192, 64, NONE, false, EPI_NONE, false, ACT_GELU, false},
    {FORWARD, 128, 256, 64, NONE, false, EPI_NONE, false, ACT_GELU, false},
    {FORWARD, 70, 72, 24, NONE, true, EPI_NONE, false, ACT_GELU, false},
    {FORWARD, 260, 520, 136, OTHER, true, EPI_NONE, false, ACT_GELU, false},
    {FORWARD, 300, 200, 520, ITSELF, true, EPI_NONE, false, ACT_GELU, false},
    {FORWARD, 200, 264, 72, NONE, true, EPI_ACT, true, ACT_GELU, false},
    {FORWARD, 130, 440, 64, NONE, true, EPI_ACT, false, ACT_GELU, false},
    {FORWARD, 64, 72, 200, NONE, false, EPI_ACT, true, ACT_RELU2, false},
    {FORWARD, 1, 8, 8, NONE, true, EPI_NONE, false, ACT_GELU, false},
    {DGRAD, 128, 256, 64, NONE, false, EPI_NONE, false, ACT_GELU, false},
    {DGRAD, 200, 130, 88, NONE, false, EPI_NONE, false, ACT_GELU, false},
    {DGRAD, 129, 257, 72, NONE, false, EPI_NONE, false, ACT_GELU, false},
    {DGRAD, 300, 192, 520, NONE, false, EPI_DACT, true, ACT_GELU, false},
    {DGRAD, 66, 320, 64, NONE, true, EPI_DACT, true, ACT_RELU2, false},
    {DGRAD, 140, 128, 200, OTHER, false, EPI_NONE, false, ACT_GELU, false},
    {WGRAD, 128, 256, 64, NONE, false, EPI_NONE, false, ACT_GELU, false},
    {WGRAD, 72, 72, 300, ITSELF, false, EPI_NONE, false, ACT_GELU, false},
    {WGRAD, 136, 264, 70, ITSELF, false, EPI_NONE, false, ACT_GELU, true},
    {WGRAD, 256, 192, 65, NONE, false, EPI_NONE, false, ACT_GELU, true},
    {WGRAD, 264, 400, 600, NONE, false, EPI_NONE, false, ACT_GELU, true},
    {WGRAD, 8, 8, 1, ITSELF, false, EPI_NONE, false, ACT_GELU, false},
    // k divided: one tile by all multiprocessors, tiles in two parts, some of several waves
    {WGRAD, 128, 120, 2040, ITSELF, false, EPI_NONE, false, ACT_GELU, true},
    {FORWARD, 130, 72, 1100, OTHER, true, EPI_NONE, false, ACT_GELU, false},
    {DGRAD, 600, 120, 648, NONE, false, EPI_DACT, true, ACT_GELU, false},
    // and tiles of a column of one part and of two, in different places
    {WGRAD, 600, 120, 648, ITSELF, false, EPI_NONE, false, ACT_GELU, true},
};

/* Of the emulated device: enough for the sums of the few tiles whose k is divided. */
enum { WORKSPACE = 4 << 20 };

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

/* Integers from -most to most. */
static Array integers(int64_t n, int most, unsigned seed, bool bf16) {
    Array w = array_empty(n, bf16, 0);
    test_fill(w.host, (size_t)n, (float)most + 0.5f, seed);
    for (int64_t i = 0; i < n; i++) w.host[i] = rintf(w.host[i]);
    array_put(&w);
    return w;
}

typedef struct Case {
    Matmul p;
    Array y, other, aux, sums;
} Case;

/* Rows of y are some elements longer than N, and rows of operands as their alignment wants it. */
static int64_t rows_of_y(const Shape *s) {
    return round_up(s->N, 8) + 8;
}
static Case case_make(const Shape *s) {
    bool wide = s->kind == WGRAD;
    int64_t ldy = rows_of_y(s), lda = round_up(wide ? s->M : s->K, 8) + 8,
            ldb = round_up(s->kind == DGRAD ? s->K : s->N, 8);
    Array a = integers((wide ? s->K : s->M) * lda, 2, 1, true),
          b = integers((s->kind == DGRAD ? s->N : s->K) * ldb, 2, 2, true),
          bias = integers(s->N, 3, 3, true);
    Case c = {matmul_sized(s->M, s->N, s->K), integers(s->M * ldy, 9, 4, !wide),
              integers(s->M * ldy, 9, 5, !wide), integers(s->M * ldy, 2, 6, true),
              integers(s->N, 9, 7, false)};
    Matmul *p = &c.p;
    p->a = a.device, p->a_row = wide ? 1 : lda, p->a_col = wide ? lda : 1;
    p->b = b.device, p->b_row = s->kind == DGRAD ? 1 : ldb, p->b_col = s->kind == DGRAD ? ldb : 1;
    p->y = c.y.device, p->ldy = ldy, p->wide = wide, p->padded = s->N % 8;
    p->addend = s->addend == NONE ? NULL : s->addend == ITSELF ? c.y.device : c.other.device;
    p->bias_grad = s->sums ? c.sums.device : NULL;
    p->bias = s->bias ? bias.device : NULL;
    p->epilogue = s->epilogue, p->act = s->act, p->aux = s->aux ? c.aux.device : NULL;
    p->workspace = cuda_take(test_on_device ? MATMUL_WORKSPACE : WORKSPACE, 1, 0);
    return c;
}

/* The n-th config of those of a kind, in clusters of two or by blocks alone; of all, where there is
 * none such. */
enum { ANY = -1 };
static int config_of(const Own *own, const Case *c, int kind, bool pairs, int n) {
    int all[MATMUL_CONFIGS], some[MATMUL_CONFIGS], n_all = own->configs(&c->p, all), found = 0;
    for (int i = 0; i < n_all; i++)
        if ((kind == ANY || (all[i] >> 10 & 3) == kind) && (all[i] >> 12 & 1) == pairs)
            some[found++] = all[i];
    return found ? some[n % found] : all[n % n_all];
}

/* y and aux, from what they were: a thread for each element, or on tensor cores by a config. */
enum { PLAIN = -1 };
static void run(const Own *own, const Case *c, int config, Array *y, Array *aux, Array *sums) {
    Array was_y = c->y, was_aux = c->aux, was_sums = c->sums;
    array_put(&was_y), array_put(&was_aux), array_put(&was_sums);
    device_poison(c->p.workspace, test_on_device ? MATMUL_WORKSPACE : WORKSPACE);
    if (config == PLAIN) {
        matmul_set_backend(BACKEND_PLAIN);
        kernels_cuda(true)->matmul(NULL, &c->p);
        matmul_set_backend(BACKEND_LIBRARY);
    } else {
        own->run(&c->p, config);
    }
    *y = array_now(c->y), *aux = array_now(c->aux), *sums = array_now(c->sums);
}

/* TMA may overwrite what is left of the 16 bytes in which a row ends. */
static bool check_same(const Own *own, const Shape *s, const char *what, const Array *got,
                       const Array *want) {
    int64_t ld = rows_of_y(s), end = own == &sm90 ? round_up(s->N, 8) : s->N;
    for (int64_t i = 0; i < want->n; i++) {
        if (i % ld >= s->N && i % ld < end) continue;
        // on a device two kernels may contract an activation differently
        double off = test_on_device ? 0x1p-7 * fabs((double)want->host[i]) : 0;
        if (fabs((double)got->host[i] - (double)want->host[i]) <= off) continue;
        test_fail("%s of %d x %d over %d: (%d,%d) is %g, not %g", what, (int)s->M, (int)s->N,
                  (int)s->K, (int)(i / ld), (int)(i % ld), (double)got->host[i],
                  (double)want->host[i]);
        return false;
    }
    return true;
}

/* In clusters, which sm_80 has not, and by blocks alone; where k is divided, by each kind and by
 * the first again: its flags are as they were. */
static bool run_shape(const Own *own, const Shape *s, int n) {
    static const struct {
        int kind;
        bool pairs;
    } whole[] = {{ANY, true}, {ANY, false}}, divided[] = {{MATMUL_STREAM_K, true},
                                                          {MATMUL_SPLIT_K, false},
                                                          {MATMUL_SPLIT_K, true},
                                                          {MATMUL_STREAM_K, false},
                                                          {MATMUL_STREAM_K, true}};
    Case c = case_make(s);
    const char *why = own->refuses(&c.p, 2);
    Array y, aux, sums, want_y, want_aux, want_sums;
    if (why) return test_fail("%s", why), false;
    run(own, &c, PLAIN, &want_y, &want_aux, &want_sums);
    bool parts = s->K > 600;
    for (int i = 0; i < (parts ? 5 : 2); i++) {
        int kind = parts ? divided[i].kind : whole[i].kind;
        bool pairs = own == &sm90 && (parts ? divided[i].pairs : whole[i].pairs);
        run(own, &c, config_of(own, &c, kind, pairs, n + i), &y, &aux, &sums);
        if (!check_same(own, s, "y", &y, &want_y) || !check_same(own, s, "aux", &aux, &want_aux) ||
            !check_same(own, s, "sums", &sums, &want_sums))
            return false;
    }
    return true;
}

/* Opens the device; false: these kernels do not run on it. */
static bool begin(const Own *own, EmuSetup o) {
    device_at_most(own->major);
    cuda_begin(o);
    device_at_most(9);
    bool runs = own->major == 8 ? device_has_mma() : device_is_sm90();
    if (!runs) test_skip("the device is not of the capability");
    return runs;
}

static void has_the_bits_of_the_plain_one(const Own *own) {
    for (int i = 0; i < N_OF(shapes); i++) {
        if (!begin(own, cuda_orders[i % 3])) return;
        device_set_sm_margin(i % 2 ? 0 : i % 3);                           // 4, 3 or 2 of them
        bool fine = run_shape(own, &shapes[i], shapes[i].K > 600 ? 0 : i); // 0: k divided
        device_set_sm_margin(0);
        CHECK(cuda_end() && fine);
    }
}

/* Of numbers whose sums are rounded. */
static void has_the_same_bits_in_any_order(const Own *own) {
    enum { OPERAND = 2040 * 136 }; // the largest of them
    static const int some[] = {4, 6, 22, 23};
    static float first[300 * 528];
    for (int i = 0; i < 4; i++)
        for (unsigned seed = 0; seed < 3; seed++) {
            EmuSetup o = {seed ? EMU_RANDOM : EMU_FORWARD, seed, .late = seed > 1};
            if (!begin(own, o)) return;
            Case c = case_make(&shapes[some[i]]);
            Array y, aux, sums, a = array_random(OPERAND, 1, 8, true, 0),
                                b = array_random(OPERAND, 1, 9, true, 0);
            c.p.a = a.device, c.p.b = b.device;
            run(own, &c, config_of(own, &c, i < 2 ? ANY : i, i % 2 == 0, i), &y, &aux, &sums);
            if (!seed) memcpy(first, y.host, (size_t)y.n * sizeof *first);
            CHECK(same_bits(first, y.host, y.n));
            CHECK(cuda_end());
        }
}

TEST(cuda_matmul_sm80_has_the_bits_of_the_plain_one) {
    has_the_bits_of_the_plain_one(&sm80);
}
TEST(cuda_matmul_sm90_has_the_bits_of_the_plain_one) {
    has_the_bits_of_the_plain_one(&sm90);
}
TEST(cuda_matmul_sm80_has_the_same_bits_in_any_order) {
    has_the_same_bits_in_any_order(&sm80);
}
TEST(cuda_matmul_sm90_has_the_same_bits_in_any_order) {
    has_the_same_bits_in_any_order(&sm90);
}

/* Sums of columns where y has more rows of tiles than there may be sums. */
TEST_EMULATED(cuda_matmul_sums_columns_in_512_bytes_of_scratch_each) {
    static const Shape s = {WGRAD, 129 * 128, 8, 70, NONE, false, EPI_NONE, false, ACT_GELU, true};
    cuda_begin_with(cuda_orders[0], 512 * 8);
    bool fine = run_shape(&sm90, &s, 0);
    CHECK(cuda_end() && fine);
}

/* Whichever warp's lanes lag behind their first: none of what they read is overwritten. */
TEST_EMULATED(cuda_matmul_sm90_waits_for_every_lane) {
    static const Shape s = {WGRAD, 72, 72, 600, ITSELF, false, EPI_NONE, false, ACT_GELU, true};
    for (unsigned warp = 0; warp < 12; warp++) {
        if (!begin(&sm90, (EmuSetup){.order = EMU_LAG, .seed = warp})) return;
        bool fine = run_shape(&sm90, &s, 0);
        CHECK(cuda_end() && fine);
    }
}

/* Whichever warpgroup of each block lags behind the others: together and in turns, with parts of
 * tiles and with what is read beside y. */
TEST_EMULATED(cuda_matmul_sm90_waits_for_every_warpgroup) {
    static const Shape some[] = {
        {WGRAD, 72, 200, 700, ITSELF, false, EPI_NONE, false, ACT_GELU, true},
        {FORWARD, 300, 392, 136, ITSELF, false, EPI_NONE, false, ACT_GELU, false},
        {DGRAD, 300, 392, 136, NONE, false, EPI_DACT, true, ACT_GELU, false}};
    for (EACH(s, some))
        for (unsigned group = 0; group < 3; group++) {
            if (!begin(&sm90, (EmuSetup){.order = EMU_SLOW, .seed = group})) return;
            bool fine = run_shape(&sm90, s, 0);
            CHECK(cuda_end() && fine);
        }
}

/* Without its waits for the sums of other parts y is another one, in some order of blocks. */
static bool needs_flags(const Own *own, int kind) {
    bool differs = false;
    for (unsigned seed = 1; seed < 20 && !differs; seed++) {
        Array y, want, aux, sums;
        if (!begin(own, (EmuSetup){.order = EMU_RANDOM, .seed = seed})) return false;
        Case c = case_make(&shapes[22]);
        int config = config_of(own, &c, kind, false, 0);
        run(own, &c, PLAIN, &want, &aux, &sums);
        emu_setup.forget_flags = true;
        run(own, &c, config, &y, &aux, &sums);
        emu_setup.forget_flags = false;
        differs = !same_bits(y.host, want.host, y.n);
        if (!cuda_end()) return false;
    }
    return differs;
}
TEST_EMULATED(cuda_matmul_needs_its_waits_for_other_parts) {
    CHECK(needs_flags(&sm80, MATMUL_SPLIT_K) && needs_flags(&sm80, MATMUL_STREAM_K));
    CHECK(needs_flags(&sm90, MATMUL_SPLIT_K) && needs_flags(&sm90, MATMUL_STREAM_K));
}

/* Of a tile whose k is long: whole, split and streamed, each by all widths that there are. */
static void has_every_kind(const Own *own, int of_each) {
    int config[MATMUL_CONFIGS], found[3] = {0};
    if (!begin(own, cuda_orders[0])) return;
    Case c = case_make(&shapes[22]);
    int n = own->configs(&c.p, config);
    for (int i = 0; i < n; i++) found[matmul_config(config[i]).kind]++;
    for (int kind = 0; kind < 3; kind++) CHECK(found[kind] == of_each);
    CHECK(cuda_end());
}
TEST_EMULATED(cuda_matmul_has_every_kind_of_schedule) {
    has_every_kind(&sm80, 2);
    has_every_kind(&sm90, 6);
}

static bool says(const Matmul *p, size_t word, const char *why) {
    const char *is = matmul_sm90_refuses(p, word);
    return is && strstr(is, why);
}

TEST(cuda_matmul_sm90_says_what_it_does_not_take) {
    if (!begin(&sm90, cuda_orders[0])) return;
    Case forward = case_make(&shapes[3]), wgrad = case_make(&shapes[17]);
    Matmul p = forward.p, w = wgrad.p;
    CHECK(!matmul_sm90_refuses(&p, 2) && !matmul_sm90_refuses(&w, 2));
    CHECK(says(&p, 4, "not bf16"));
    p.K = 0;
    CHECK(says(&p, 2, "nothing to multiply"));
    p = forward.p, p.a_row = 1, p.a_col = 72;
    CHECK(says(&p, 2, "a lies along m"));
    p = forward.p, p.ldy += 4;
    CHECK(says(&p, 2, "multiples of 16 bytes"));
    p = forward.p, p.a = (const Act *)((const char *)p.a + 2);
    CHECK(says(&p, 2, "multiples of 16 bytes"));
    p = forward.p, p.N--;
    CHECK(says(&p, 2, "in pairs"));
    p = forward.p, p.N -= 2;
    CHECK(says(&p, 2, "within 16 bytes of others"));
    p.padded = true;
    CHECK(!matmul_sm90_refuses(&p, 2));
    p = forward.p, p.epilogue = EPI_DACT, p.addend = p.y;
    CHECK(says(&p, 2, "an addend beside"));
    w.addend = forward.y.device;
    CHECK(says(&w, 2, "an addend beside y"));
    w = wgrad.p, w.b_row = 1, w.b_col = 304;
    CHECK(says(&w, 2, "lies like that"));
    CHECK(cuda_end());
    CHECK(begin(&sm80, cuda_orders[0]) && !sm80.refuses(&forward.p, 2));
    CHECK(says(&forward.p, 2, "capability 9.0"));
    CHECK(cuda_end());
    device_at_most(7);
    cuda_begin(cuda_orders[0]);
    CHECK(strstr(sm80.refuses(&forward.p, 2), "capability 8.0"));
    CHECK(cuda_end());
    device_at_most(9);
}

/* Where the library takes no shape, and where it was found to be slower. */
static void runs_where_the_library_does_not(const Own *own, const int64_t *count) {
    cuda_forget_choices();
    for (int round = 0; round < 3; round++) {
        begin(own, cuda_orders[0]);
        emu_lt_setup.fault = round ? EMU_LT_NO_FAULT : EMU_LT_NOTHING;
        Case c = case_make(&shapes[0]);
        if (round == 1) { // slower by 30 ms
            emu_lt_setup.slow_epilogue = LT_EPILOGUE_DEFAULT;
            matmul_prepare(&c.p, 2);
            emu_lt_setup.slow_epilogue = 0;
        }
        if (round == 2) matmul_prepare(&c.p, 2); // finds what was chosen
        int64_t before = *count;
        kernels_cuda(true)->matmul(NULL, &c.p);
        CHECK(*count == before + 1);
        emu_lt_setup.fault = EMU_LT_NO_FAULT;
        CHECK(cuda_end());
    }
}
TEST_EMULATED(cuda_matmul_sm80_runs_where_the_library_does_not) {
    runs_where_the_library_does_not(&sm80, &matmul_counts_mine()->sm80);
}
TEST_EMULATED(cuda_matmul_sm90_runs_where_the_library_does_not) {
    runs_where_the_library_does_not(&sm90, &matmul_counts_mine()->sm90);
}

/* Where the library runs nothing of what it proposes, the own kernel's config is kept for the next
 * run, which times nothing. */
TEST_EMULATED(cuda_matmul_prepare_keeps_a_config_where_the_library_refuses_all) {
    cuda_forget_choices();
    for (int round = 0; round < 2; round++) {
        if (!begin(&sm90, cuda_orders[0])) return;
        emu_lt_setup = (EmuLtSetup){.fault = EMU_LT_REFUSES_ALL};
        Case c = case_make(&shapes[0]);
        int64_t before = matmul_counts().sm90;
        matmul_prepare(&c.p, 2);
        int64_t timed = matmul_counts().sm90 - before;
        CHECK(round ? timed == 0 : timed > 0);
        kernels_cuda(true)->matmul(NULL, &c.p);
        CHECK(matmul_counts().sm90 == before + timed + 1);
        emu_lt_setup.fault = EMU_LT_NO_FAULT;
        CHECK(cuda_end());
    }
}

/* What was chosen for padded rows is not for those that others' words follow. */
TEST_EMULATED(cuda_matmul_is_chosen_for_padded_rows_or_others) {
    static const Shape small = {DGRAD, 64, 66, 64, NONE, false, EPI_NONE, false, ACT_GELU, false};
    cuda_forget_choices();
    if (!begin(&sm90, cuda_orders[0])) return;
    Case c = case_make(&small);
    emu_lt_setup = (EmuLtSetup){.slow_epilogue = LT_EPILOGUE_DEFAULT}; // slower by 30 ms
    matmul_prepare(&c.p, 2);
    emu_lt_setup.slow_epilogue = 0;
    for (int padded = 1; padded >= 0; padded--) {
        int64_t before = matmul_counts().sm90;
        c.p.padded = padded;
        kernels_cuda(true)->matmul(NULL, &c.p);
        CHECK(matmul_counts().sm90 - before == padded);
    }
    CHECK(cuda_end());
}

static void by_the_table(const Matmul *p, UNUSED int number) {
    kernels_cuda(true)->matmul(NULL, p);
}

/* What is over of a long odd side, and the rest: logits, whose padding alone is overwritten, and
 * the gradient of the head's weight. */
TEST_EMULATED(cuda_matmul_sm90_runs_both_parts_of_a_long_odd_side) {
    static const Shape heads[] = {
        {DGRAD, 9, 2053, 24, NONE, false, EPI_NONE, false, ACT_GELU, false},
        {DGRAD, 9, 2053, 24, OTHER, false, EPI_NONE, false, ACT_GELU, false},
        {WGRAD, 2053, 72, 65, ITSELF, false, EPI_NONE, false, ACT_GELU, false}};
    Own table = sm90;
    table.run = by_the_table;
    for (int i = 0; i < 3; i++) {
        Array y, want, aux, sums;
        if (!begin(&sm90, cuda_orders[i])) return;
        emu_lt_setup = (EmuLtSetup){.fault = EMU_LT_NOTHING};
        Case c = case_make(&heads[i]);
        run(&sm90, &c, PLAIN, &want, &aux, &sums);
        int64_t before = matmul_counts().sm90;
        run(&table, &c, 0, &y, &aux, &sums);
        CHECK(matmul_counts().sm90 == before + 2);
        CHECK(check_same(&sm90, &heads[i], "y", &y, &want));
        emu_lt_setup.fault = EMU_LT_NO_FAULT;
        CHECK(cuda_end());
    }
}
