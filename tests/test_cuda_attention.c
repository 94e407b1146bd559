/* layers/attention*.cu against double precision: the plain kernels in both words of storage, those
 * by tiles in bf16. */
#include "tests/cuda_test.h"
#include "tests/emu/calls.h"
#include "tests/layers_double.h"

typedef struct Case {
    int64_t B, S, H, Hkv, D, skew;
    float scale; // of qkv: with 4, some weights are near 1
} Case;

static Attention attention_of(const Case *c, bool bf16) {
    return (Attention){.B = c->B, .S = c->S, .H = c->H, .Hkv = c->Hkv, .D = c->D, .bf16 = bf16};
}

static double rms(const double *x, int64_t n) {
    double square = 0;
    for (int64_t i = 0; i < n; i++) square += x[i] * x[i];
    return sqrt(square / (double)n) + 1e-30;
}

/* Is each of x as near to what it should be as tol units, or tol of itself where that is more? */
static bool near_units(const char *what, const float *x, const double *want, int64_t n, double unit,
                       double tol) {
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)x[i] - want[i]) / fmax(unit, fabs(want[i]));
        if (!(e <= most)) most = isnan(e) ? INFINITY : e;
    }
    if (most <= tol) return true;
    test_fail(__FILE__, __LINE__, "%s: %.3g units off, not %.3g", what, most, tol);
    return false;
}

/* Of out in units of the largest value: a mean of values is off by what the weights are, and is
 * rounded itself: 2^-9 each in bf16; in float by the exponent, some units of 2^-24 times 20. */
static double tolerance(bool bf16) {
    return bf16 ? 1.05 * 0x1p-8 : 1e-5;
}
/* Of dqkv in units of its root mean square. In bf16, delta is made of the rounded out, weights and
 * dS are rounded as operands: sums of errors of 2^-9 with weights of up to some tens of units. */
static double tolerance_of_gradients(bool bf16) {
    return bf16 ? 0x1p-4 : 2e-5;
}

typedef struct Run {
    Words qkv, dout, out, lse, dqkv;
} Run;

static Run forward(const Case *c, bool bf16) {
    const Kernels *k = kernels_cuda(bf16);
    int64_t rows = c->B * c->S, n_out = rows * c->H * c->D;
    int64_t n_qkv = rows * (c->H + 2 * c->Hkv) * c->D;
    Attention a = attention_of(c, bf16);
    Run r = {words(n_qkv, c->scale, (unsigned)(c->S + c->D), bf16, c->skew),
             words(n_out, 1, (unsigned)(c->S + c->D + 1), bf16, c->skew),
             words_empty(n_out, bf16, c->skew), words_empty(rows * c->H, false, 0),
             words_empty(n_qkv, bf16, c->skew)};
    k->attention_forward(NULL, &a, r.out.device, r.lse.device, r.qkv.device);
    words_get(&r.out), words_get(&r.lse);
    return r;
}
static Run compute(const Case *c, bool bf16) {
    const Kernels *k = kernels_cuda(bf16);
    Attention a = attention_of(c, bf16);
    Run r = forward(c, bf16);
    size_t bytes = k->attention_workspace(1, a.B, a.S, a.H, a.Hkv, a.D);
    a.workspace = cuda_take((int64_t)bytes, 1, 0);
    k->attention_backward(NULL, &a, r.dqkv.device, r.dout.device, r.qkv.device, r.out.device,
                          r.lse.device);
    words_get(&r.dqkv);
    return r;
}

/* Is sequence b what it should be? */
static bool check_sequence(const Case *c, const Run *r, bool bf16, int64_t b) {
    Attention one = attention_of(c, bf16);
    one.B = 1;
    int64_t n_out = r->out.n / c->B, n_lse = r->lse.n / c->B, n_qkv = r->dqkv.n / c->B;
    AttentionDouble t = attention_double(&one, r->qkv.host + b * n_qkv, r->dout.host + b * n_out);
    return near_units("out", r->out.host + b * n_out, t.out, n_out, (double)c->scale,
                      tolerance(bf16)) &&
           near_units("lse", r->lse.host + b * n_lse, t.lse, n_lse, 1, 1e-5) &&
           near_units("dqkv", r->dqkv.host + b * n_qkv, t.dqkv, n_qkv, rms(t.dqkv, n_qkv),
                      tolerance_of_gradients(bf16));
}

static bool check(const Case *c, bool bf16) {
    Run r = compute(c, bf16);
    bool good = true;
    for (int64_t b = 0; b < c->B; b++) good = good && check_sequence(c, &r, bf16, b);
    return good;
}

static void check_all(const Case *cases, size_t n, bool bf16, EmuSetup o) {
    for (size_t i = 0; i < n; i++) {
        cuda_begin(o);
        CHECK_SAYS(check(&cases[i], bf16), "case %zu, bf16 %d, order %d", i, bf16, (int)o.order);
        CHECK(cuda_end());
    }
}

/* Any D; more tokens than a block takes at once; skew 1: rows that are not aligned. */
static const Case plain[] = {
    {1, 1, 1, 1, 1, 0, 2},  {2, 1, 3, 1, 5, 0, 2},  {1, 2, 2, 2, 33, 0, 2},
    {2, 9, 4, 2, 48, 0, 2}, {1, 5, 2, 1, 64, 1, 2}, {1, 131, 1, 1, 3, 0, 4},
};
TEST(cuda_attention_plain_matches_double) {
    for (EACH_WORD(bf16))
        for (EACH_ORDER(o)) check_all(plain, sizeof plain / sizeof *plain, bf16, *o);
}

/* D of the tiles, S around their edges; heads alone and in groups; both sizes of blocks. */
static const Case tiles[] = {
    {1, 1, 1, 1, 64, 0, 2},   {2, 17, 3, 3, 64, 0, 2},   {1, 64, 2, 1, 64, 0, 4},
    {1, 65, 2, 2, 64, 0, 2},  {1, 130, 3, 1, 64, 0, 2},  {1, 1, 2, 1, 128, 0, 2},
    {1, 70, 2, 2, 128, 0, 2}, {1, 129, 2, 1, 128, 0, 2},
};
/* On devices with matmuls of warps, and on those with matmuls of warpgroups. */
#define EACH_CAPABILITY(major)                                                                     \
    int major = 8;                                                                                 \
    device_at_most(major), major < 10;                                                             \
    major++

TEST(cuda_attention_by_tiles_matches_double) {
    for (EACH_CAPABILITY(major))
        for (EACH_ORDER(o)) check_all(tiles, sizeof tiles / sizeof *tiles, true, *o);
}

/* Sequences long enough for several blocks of queries, and of keys, more of them than the device
 * has room for: a block goes on with the slots that it has given back. */
static const Case longer[] = {{1, 257, 3, 3, 64, 0, 2},
                              {1, 330, 5, 1, 64, 0, 2},
                              {1, 257, 1, 1, 128, 0, 2},
                              {1, 330, 2, 1, 128, 0, 2},
                              {1, 600, 1, 1, 64, 0, 2}};
TEST(cuda_attention_of_longer_sequences_matches_double) {
    size_t n = sizeof longer / sizeof *longer;
    for (EACH_CAPABILITY(major))
        for (size_t i = 0; i < n; i++)
            check_all(longer + i, 1, true, cuda_orders[(i + (size_t)major) % 3]);
}

/* So long that tiles are larger: some rows of the output. */
TEST(cuda_attention_of_long_sequences_matches_double) {
    const Case c = {1, 2049 + 130, 2, 1, 64, 0, 2};
    const int64_t rows[] = {0, 1, 127, 128, 191, 192, 1000, 2047, 2048, 2111, 2112, 2178};
    double *p = doubles_copy(NULL, c.S);
    cuda_begin(cuda_orders[2]);
    Run r = forward(&c, true);
    int64_t n_qkv = c.B * c.S * (c.H + 2 * c.Hkv) * c.D, wide = c.H * c.D;
    Attention a = attention_of(&c, true);
    AttentionDouble t = {doubles_copy(NULL, r.out.n), doubles_copy(NULL, r.lse.n),
                         doubles_copy(NULL, n_qkv)};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int64_t h = 0; h < c.H; h++) {
            attention_row_double(&a, &t, r.qkv.host, r.dout.host, 0, h, rows[i], p);
            int64_t at = h * c.S + rows[i];
            CHECK_NEAR(r.lse.host[at], t.lse[at], 1e-5 * fmax(1, fabs(t.lse[at])));
        }
        CHECK(near_units("out", r.out.host + rows[i] * wide, t.out + rows[i] * wide, wide,
                         (double)c.scale, tolerance(true)));
    }
    CHECK(cuda_end());
}

/* So many sequences that every block that stays takes a second piece of work, on whatever device: a
 * piece has at most 256 queries of a head, or 128 keys, so here a head has 2 pieces of queries and
 * 3 of keys at least. Some of the sequences. */
TEST(cuda_attention_of_many_sequences_matches_double) {
    for (int64_t D = 64; D <= 128; D += 64) {
        cuda_begin(cuda_orders[0]);
        int64_t sms = device_sms();
        const Case c = {sms * 2 / 3 + 1, 257, 2, 1, D, 0, 2};
        CHECK(c.B * c.H * 2 >= 2 * sms && c.B * c.Hkv * 3 >= 2 * sms);
        Run r = compute(&c, true);
        for (int64_t i = 0; i < c.B && i < 6; i++) // the last, then some
            CHECK(check_sequence(&c, &r, true, (c.B - 1 + i * 37) % c.B));
        CHECK(cuda_end());
    }
}

/* Word for word, the order of threads does not matter. */
TEST(cuda_attention_has_the_same_bits_in_any_order) {
    const Case cases[] = {{2, 70, 4, 2, 64, 0, 2},
                          {1, 70, 2, 1, 24, 0, 2},
                          {2, 70, 4, 2, 64, 0, 2},
                          {1, 70, 2, 1, 128, 0, 2}};
    for (size_t i = 0; i < 4; i++) {
        device_at_most(i == 2 ? 8 : 9);
        float *first = mem_alloc(2 * 70 * 12 * 64 * sizeof *first), *out = first + 2 * 70 * 8 * 64;
        for (EACH_ORDER(o)) {
            cuda_begin(*o);
            CHECK(i != 2 || !device_is_sm90());
            Run r = compute(&cases[i], true);
            if (o == cuda_orders) memcpy(first, r.dqkv.host, (size_t)r.dqkv.n * sizeof *first);
            if (o == cuda_orders) memcpy(out, r.out.host, (size_t)r.out.n * sizeof *first);
            CHECK(same_bits(first, r.dqkv.host, r.dqkv.n) && same_bits(out, r.out.host, r.out.n));
            CHECK(cuda_end());
        }
        mem_free(first);
    }
    device_at_most(9);
}

/* Blocks that stay are as many as multiprocessors, but for those that are left to others. */
TEST(cuda_attention_leaves_multiprocessors_with_the_same_bits) {
    NEEDS_EMULATION();
    const Case c = {2, 70, 4, 2, 64, 0, 2};
    int64_t blocks[3];
    OWNED(test_mem_end) float *first = mem_alloc(2 * 70 * 8 * 64 * sizeof *first);
    for (int left = 0; left < 3; left++) {
        cuda_begin(cuda_orders[0]);
        device_leave(left);
        int64_t before = emu_calls.blocks;
        Run r = compute(&c, true);
        blocks[left] = emu_calls.blocks - before;
        if (left == 0) memcpy(first, r.dqkv.host, (size_t)r.dqkv.n * sizeof *first);
        CHECK(r.dqkv.n == 2 * 70 * 8 * 64 && same_bits(first, r.dqkv.host, r.dqkv.n));
        CHECK(cuda_end());
    }
    CHECK(blocks[0] > blocks[1] && blocks[1] > blocks[2]);
}

/* Blocks that take many pieces of work store each from where those after the next will come, with
 * warpgroups that have nothing to do at the last of them. */
TEST(cuda_attention_of_two_blocks_has_the_same_bits) {
    NEEDS_EMULATION();
    static const Case cases[] = {{4, 257, 1, 1, 128, 0, 2}, {3, 330, 2, 1, 64, 0, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float *first = NULL;
        for (int left = 0; left <= 2; left += 2) {
            cuda_begin(cuda_orders[left]);
            device_leave(left);
            CHECK(device_sms() == 4 - left);
            Run r = compute(&cases[i], true);
            if (!first) {
                first = mem_alloc((size_t)r.dqkv.n * sizeof *first);
                memcpy(first, r.dqkv.host, (size_t)r.dqkv.n * sizeof *first);
            }
            CHECK(same_bits(first, r.dqkv.host, r.dqkv.n));
            CHECK(cuda_end());
        }
        mem_free(first);
    }
}

/* Whichever warpgroup lags behind the others, the one that fetches included: nothing comes to where
 * it still reads, or where what it stores is still read. */
TEST(cuda_attention_waits_for_every_warpgroup) {
    NEEDS_EMULATION();
    static const Case cases[] = {{4, 257, 1, 1, 128, 0, 2}, {3, 330, 2, 1, 64, 0, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float *first = NULL;
        for (unsigned group = 0; group < 5; group++) {
            cuda_begin((EmuSetup){.order = EMU_SLOW, .seed = group});
            device_leave(2);
            Run r = compute(&cases[i], true);
            if (!first) {
                first = mem_alloc((size_t)r.dqkv.n * sizeof *first);
                memcpy(first, r.dqkv.host, (size_t)r.dqkv.n * sizeof *first);
            }
            CHECK(same_bits(first, r.dqkv.host, r.dqkv.n));
            CHECK(cuda_end());
        }
        mem_free(first);
    }
}

/* One position after the other gives what the whole pass gives. */
TEST(cuda_attention_decodes_what_forward_gives) {
    static const Case cases[] = {
        {2, 5, 4, 2, 64, 0, 2}, {1, 140, 2, 2, 16, 0, 2}, {2, 3, 3, 1, 7, 0, 2}};
    for (EACH_WORD(bf16))
        for (EACH_ORDER(o))
            for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                const Case *c = &cases[i];
                cuda_begin(*o);
                Run r = forward(c, bf16);
                int64_t W = (c->H + 2 * c->Hkv) * c->D, Q = c->H * c->D, n = W - Q;
                Attention a = attention_of(c, false);
                Words cache = words_empty(c->B * c->S * n, bf16, 0);
                for (int64_t j = 0; j < c->B * c->S * n; j++)
                    cache.host[j] = r.qkv.host[j / n * W + Q + j % n];
                for (int64_t pos = 0; pos<c->S; pos += c->S> 100 ? 46 : 1) {
                    // what lies after the position must not be read
                    Words some = words_empty(c->B * c->S * n, bf16, 0);
                    Words q = words_empty(c->B * Q, bf16, 0), out = words_empty(c->B * Q, bf16, 0);
                    for (int64_t j = 0; j < some.n; j++)
                        some.host[j] = j / n % c->S <= pos ? cache.host[j] : NAN;
                    double *want = doubles_copy(NULL, c->B * Q);
                    for (int64_t j = 0; j < c->B * Q; j++) {
                        int64_t row = j / Q * c->S + pos;
                        q.host[j] = r.qkv.host[row * W + j % Q];
                        want[j] = (double)r.out.host[row * Q + j % Q];
                    }
                    words_put(&some), words_put(&q);
                    kernels_cuda(bf16)->attention_decode(NULL, &a, out.device, q.device,
                                                         some.device, pos);
                    words_get(&out);
                    CHECK(near_units("decoded", out.host, want, out.n, (double)c->scale,
                                     2 * tolerance(bf16)));
                }
                CHECK(cuda_end());
            }
}

/* What grows with the batch is counted among a model's memory: no kernel finds room for it
 * elsewhere. */
TEST(cuda_attention_takes_no_scratch) {
    for (EACH_CAPABILITY(major))
        for (EACH_WORD(bf16)) {
            cuda_begin_with(cuda_orders[0], 16);
            CHECK(check(&(Case){2, 9, 4, 2, 64, 0, 2}, bf16));
            CHECK(cuda_end());
        }
}
