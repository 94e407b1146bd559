/* Attention against double precision, by every table of kernels: of CUDA the plain ones in both
 * words of storage, those by tiles in bf16. */
#include "base/simd_block.h"
#include "tests/emu/calls.h"
#include "tests/everywhere.h"
#include "tests/layers_double.h"

typedef struct Case {
    int64_t B, S, H, Hkv, D, skew;
    float scale; // of qkv: with 4, some weights are near 1
} Case;

static Attention attention_of(const Case *c, bool bf16) {
    return (Attention){.B = c->B, .S = c->S, .H = c->H, .Hkv = c->Hkv, .D = c->D, .bf16 = bf16};
}
/* The CPU's words are floats: it may round operands (halves). */
static bool in_bf16(const Where *w, int halves) {
    return w->bf16 || halves;
}

static double rms(const double *x, int64_t n) {
    double square = 0;
    for (int64_t i = 0; i < n; i++) square += x[i] * x[i];
    return sqrt(square / (double)n) + 1e-30;
}
/* Mean square of what is wrong, of the mean square; infinite for a NaN. */
static double nmse(const float *x, const double *want, int64_t n) {
    double far = 0;
    for (int64_t i = 0; i < n; i++) far += pow((double)x[i] - want[i], 2) / (double)n;
    return isnan(far) ? INFINITY : far / pow(rms(want, n), 2);
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
    test_fail("%s: %.3g units off, not %.3g", what, most, tol);
    return false;
}

typedef struct Run {
    Array qkv, dout, out, lse, dqkv;
} Run;

/* A workspace of exactly the stated size, full of NaN. */
static void *workspace(const Where *w, const Attention *a) {
    int threads = w->team ? team_size(w->team) : 1;
    return workspace_of(w->k->attention_workspace(threads, a->B, a->S, a->H, a->Hkv, a->D));
}
static Run forward(const Where *w, const Case *c, int halves) {
    int64_t rows = c->B * c->S, n_out = rows * c->H * c->D;
    int64_t n_qkv = rows * (c->H + 2 * c->Hkv) * c->D;
    Attention a = attention_of(c, in_bf16(w, halves));
    Run r = {array_random(n_qkv, c->scale, (unsigned)(c->S + c->D), w->bf16, c->skew),
             array_random(n_out, 1, (unsigned)(c->S + c->D + 1), w->bf16, c->skew),
             array_empty(n_out, w->bf16, c->skew), array_empty(rows * c->H, false, 0),
             array_empty(n_qkv, w->bf16, c->skew)};
    if (w->set) a.workspace = workspace(w, &a);
    w->k->attention_forward(w->team, &a, r.out.device, r.lse.device, r.qkv.device);
    array_get(&r.out), array_get(&r.lse);
    return r;
}
static Run compute(const Where *w, const Case *c, int halves) {
    Attention a = attention_of(c, in_bf16(w, halves));
    Run r = forward(w, c, halves);
    a.workspace = workspace(w, &a);
    w->k->attention_backward(w->team, &a, r.dqkv.device, r.dout.device, r.qkv.device, r.out.device,
                             r.lse.device);
    array_get(&r.dqkv);
    return r;
}

/* Of CUDA's out in units of the largest value: a mean of values is off by what the weights are, and
 * is rounded itself: 2^-9 each in bf16; in float by the exponent, some units of 2^-24 times 20. */
static double tolerance(bool bf16) {
    return bf16 ? 1.05 * 0x1p-8 : 1e-5;
}

/* Is sequence b what it should be? */
static bool check_sequence(const Where *w, const Case *c, const Run *r, int halves, int64_t b) {
    Attention one = attention_of(c, in_bf16(w, halves));
    one.B = 1;
    int64_t n_out = r->out.n / c->B, n_lse = r->lse.n / c->B, n_qkv = r->dqkv.n / c->B;
    const float *out = r->out.host + b * n_out, *lse = r->lse.host + b * n_lse,
                *dqkv = r->dqkv.host + b * n_qkv;
    AttentionDouble t = attention_double(&one, r->qkv.host + b * n_qkv, r->dout.host + b * n_out);
    // CPU. Rounding to 8 bits: a relative error of at most 2^-9, with a mean square of about
    // 1.3e-6, for q, k, v, P, and in the backward pass for dout, dS as well. Half a dozen such
    // errors add up to 1e-5 of the mean square; with D = 1 two numbers may cancel.
    if (halves)
        return nmse(out, t.out, n_out) < 2e-5 && nmse(dqkv, t.dqkv, n_qkv) < 5e-5 &&
               near_units("lse", lse, t.lse, n_lse, rms(t.lse, n_lse), 2e-2) &&
               (c->D <= 16 || c->S <= 16 || nmse(out, t.out, n_out) > 1e-7); // bf16 was used
    // CPU in float: sums of a few hundred fp32 terms, a few hundred times 6e-8 at worst, and
    // exp(s - lse) has the rounding of s and lse, |s| up to about 20 here. CUDA's dqkv in bf16:
    // delta is made of the rounded out, weights and dS are rounded as operands: sums of errors of
    // 2^-9 with weights of up to some tens of units.
    return near_units("out", out, t.out, n_out, w->set ? rms(t.out, n_out) : (double)c->scale,
                      tolerance(w->bf16)) &&
           near_units("lse", lse, t.lse, n_lse, w->set ? rms(t.lse, n_lse) : 1,
                      w->set ? 2e-6 : 1e-5) &&
           near_units("dqkv", dqkv, t.dqkv, n_qkv, rms(t.dqkv, n_qkv), w->bf16 ? 0x1p-4 : 2e-5);
}
static bool check(const Where *w, const void *of, int halves) {
    Case c = *(const Case *)of;
    if (halves) c.scale = 1; // scores of which 8 bits know something
    Run r = compute(w, &c, halves);
    for (int64_t b = 0; b < c.B && !w->again; b++)
        if (!check_sequence(w, &c, &r, halves, b)) return false;
    return true;
}
/* fp32 is the plain kernels'. */
static bool check_tiles(const Where *w, const void *of, int way) {
    return !w->bf16 || check(w, of, way);
}

/* Whole heads and pieces of heads, one head, one group, more heads than threads. */
static const Case cpu_cases[] = {
    {1, 1, 1, 1, 1, 0, 2},    {2, 1, 3, 1, 5, 0, 2},     {1, 2, 1, 1, 1, 0, 2},
    {1, 2, 2, 2, 32, 0, 2},   {2, 63, 2, 1, 48, 0, 2},   {1, 65, 3, 3, 64, 0, 2},
    {1, 64, 2, 2, 64, 0, 2},  {1, 96, 1, 1, 16, 0, 2},   {1, 97, 2, 2, 17, 0, 2},
    {1, 128, 1, 1, 80, 0, 2}, {1, 129, 2, 1, 1, 0, 2},   {1, 130, 4, 2, 5, 0, 2},
    {2, 130, 2, 2, 64, 0, 2}, {1, 130, 3, 1, 128, 0, 2}, {1, 257, 2, 1, 33, 0, 2},
    {1, 300, 1, 1, 64, 0, 2}, {1, 193, 1, 1, 130, 0, 2}, {1, 100, 2, 1, 257, 0, 2},
    {1, 520, 1, 1, 8, 0, 2},  {2, 200, 3, 3, 33, 0, 2}};
enum { CPU_CASES = N_OF(cpu_cases) };

TEST_ON_CPU(attention_equals_double_precision_for_any_team, check, cpu_cases, CPU_CASES, 2)

/* By tile registers (AMX) in plain C: base/amx.h of tests/emu/. */
void attention_forward_amx_tiles(Team *t, const Attention *a, Act *out, float *lse, const Act *qkv);
void attention_backward_amx_tiles(Team *t, const Attention *a, Act *dqkv, const Act *dout,
                                  const Act *qkv, const Act *out, const float *lse);
size_t attention_workspace_amx_tiles(int n_threads, int64_t B, int64_t S, int64_t H, int64_t Hkv,
                                     int64_t D);
static bool check_emulated_tiles(const Where *w, const void *of, UNUSED int way) {
    if (strcmp(w->set, "portable") != 0) return true;
    Kernels k = *w->k;
    k.attention_forward = attention_forward_amx_tiles;
    k.attention_backward = attention_backward_amx_tiles;
    k.attention_workspace = attention_workspace_amx_tiles;
    Where tiles = *w;
    tiles.k = &k;
    return check(&tiles, of, 1);
}
TEST_ON_CPU(attention_in_tile_registers_equals_double_precision, check_emulated_tiles, cpu_cases,
            CPU_CASES, 1)

TEST(attention_survives_large_scores) { // of about 1e4: exp() of them is infinite
    static const Case c = {1, 140, 2, 1, 64, 0, 70};
    for (EACH_SET(set)) {
        OWNED(test_team_end) Team *team = team_create(2);
        Where w = {kernels_cpu(*set), team, *set, false, false};
        arrays_on_host = true;
        Run r = compute(&w, &c, 0);
        arrays_on_host = false;
        Attention a = attention_of(&c, false);
        AttentionDouble t = attention_double(&a, r.qkv.host, r.dout.host);
        // Scores of 1e4 are rounded by 1e-3, and so are the logarithms of the probabilities.
        CHECK(near_units("out", r.out.host, t.out, r.out.n, rms(t.out, r.out.n), 2e-2));
        CHECK(near_units("lse", r.lse.host, t.lse, r.lse.n, rms(t.lse, r.lse.n), 1e-6));
        CHECK(scratch_end());
    }
}

/* The step's guard against bad numbers looks at what attention gives. */
TEST(attention_passes_nan_of_a_key_to_the_queries_that_see_it) {
    static const Case c = {1, 140, 1, 1, 16, 0, 1};
    for (EACH_SET(set))
        for (int bf16 = 0; bf16 < 2; bf16++) {
            OWNED(test_team_end) Team *team = team_create(1);
            Where w = {kernels_cpu(*set), team, *set, false, false};
            arrays_on_host = true;
            Run r = forward(&w, &c, bf16);
            Attention a = attention_of(&c, bf16);
            a.workspace = workspace(&w, &a);
            arrays_on_host = false;
            r.qkv.host[100 * 48 + 16] = NAN;
            w.k->attention_forward(team, &a, r.out.host, r.lse.host, r.qkv.host);
            for (int i = 0; i < 140; i++)
                CHECK(isnan(r.lse.host[i]) == (i >= 100) &&
                      isnan(r.out.host[i * 16]) == (i >= 100));
            CHECK(scratch_end());
        }
}

/* One position after the other gives what the whole pass gives; what lies behind the position is
 * not read. */
static const Case decoded[] = {
    {2, 130, 4, 2, 64, 0, 1}, {1, 70, 3, 1, 5, 0, 1}, {3, 33, 2, 2, 128, 0, 1},
    {2, 300, 1, 1, 80, 0, 1}, {1, 9, 1, 1, 1, 0, 1},  {2, 5, 4, 2, 64, 0, 2},
    {1, 140, 2, 2, 16, 0, 2}, {2, 3, 3, 1, 7, 0, 2},  {1, 1, 2, 2, 16, 0, 2}};
enum { DECODED = N_OF(decoded), CPU_ALONE = 5 };

static bool decodes(const Where *w, const void *of, UNUSED int way) {
    const Case *c = of;
    int64_t W = (c->H + 2 * c->Hkv) * c->D, Q = c->H * c->D, n = W - Q, room = c->S + 7;
    Run r = forward(w, c, 0);
    for (int64_t pos = c->S - 1; pos >= 0; pos -= c->S > 20 ? 46 : 1) {
        Attention a = attention_of(c, false);
        Array cache = array_empty(c->B * room * n, w->bf16, 0);
        Array q = array_empty(c->B * Q, w->bf16, 0), out = array_empty(c->B * Q, w->bf16, 0);
        double *want = doubles_copy(NULL, c->B * Q);
        for (int64_t j = 0; j < cache.n; j++) {
            int64_t b = j / n / room, s = j / n % room;
            cache.host[j] = s <= pos ? r.qkv.host[(b * c->S + s) * W + Q + j % n] : NAN;
        }
        for (int64_t j = 0; j < c->B * Q; j++) {
            int64_t row = j / Q * c->S + pos;
            q.host[j] = r.qkv.host[row * W + j % Q];
            want[j] = (double)r.out.host[row * Q + j % Q];
        }
        array_put(&cache), array_put(&q);
        a.S = room, a.workspace = w->set ? workspace(w, &a) : NULL;
        w->k->attention_decode(w->team, &a, out.device, q.device, cache.device, pos);
        array_get(&out); // both are sums of S products in fp32
        if (!near_units("decoded", out.host, want, out.n, (double)c->scale,
                        w->set ? 2e-6 : 2 * tolerance(w->bf16)))
            return false;
    }
    return true;
}
TEST_ON_CPU(attention_decodes_what_forward_gives, decodes, decoded, DECODED, 1)
TEST_ON_CUDA(cuda_attention_decodes_what_forward_gives, decodes, decoded + CPU_ALONE,
             DECODED - CPU_ALONE, DECODED, 1)

TEST(vf_exp2_is_accurate) {
    double most = 0;
    for (int i = 0; i < 400000; i++) {
        float x = -124.9f + (float)i * (251.0f / 400000);
        double y = exp2((double)x);
        most = fmax(most, fabs((double)vf_exp2(vf_set1(x))[0] - y) / y);
    }
    CHECK(most < 2e-7); // 1.1e-7 of the polynomial, 0.6e-7 of rounding the result
    CHECK(vf_exp2(vf_zero())[0] == 1 && vf_exp2(vf_set1(-1))[0] == 0.5f);
    CHECK(vf_exp2(vf_set1(-1e30f))[0] < 1e-37f && isnan(vf_exp2(vf_set1(NAN))[0]));
}

/* ---- CUDA */

/* Any D; more tokens than a block takes at once; skew 1: rows that are not aligned. */
static const Case plain[] = {
    {1, 1, 1, 1, 1, 0, 2},  {2, 1, 3, 1, 5, 0, 2},  {1, 2, 2, 2, 33, 0, 2},
    {2, 9, 4, 2, 48, 0, 2}, {1, 5, 2, 1, 64, 1, 2}, {1, 131, 1, 1, 3, 0, 4},
};
TEST(cuda_attention_plain_matches_double_in_any_order) {
    int n = N_OF(plain);
    ON_CUDA(check, plain, n, n, 1);
}

/* D of the tiles, S around their edges; heads alone and in groups; both sizes of blocks. */
static const Case tiles[] = {
    {1, 1, 1, 1, 64, 0, 2},   {2, 17, 3, 3, 64, 0, 2},   {1, 64, 2, 1, 64, 0, 4},
    {1, 65, 2, 2, 64, 0, 2},  {1, 130, 3, 1, 64, 0, 2},  {1, 1, 2, 1, 128, 0, 2},
    {1, 70, 2, 2, 128, 0, 2}, {1, 129, 2, 1, 128, 0, 2}, {2, 70, 4, 2, 64, 0, 2},
};
/* On devices with matmuls of warps, and on those with matmuls of warpgroups. */
#define EACH_CAPABILITY(major)                                                                     \
    int major = 8;                                                                                 \
    device_at_most(major), major < 10;                                                             \
    major++

TEST(cuda_attention_by_tiles_matches_double_in_any_order) {
    int n = N_OF(tiles);
    for (EACH_CAPABILITY(major)) ON_CUDA(check_tiles, tiles, n, n, 1);
}

/* Sequences long enough for several blocks of queries, and of keys, more of them than the device
 * has room for: a block goes on with the slots that it has given back. */
static const Case longer[] = {{1, 257, 3, 3, 64, 0, 2},
                              {1, 330, 5, 1, 64, 0, 2},
                              {1, 257, 1, 1, 128, 0, 2},
                              {1, 330, 2, 1, 128, 0, 2},
                              {1, 600, 1, 1, 64, 0, 2}};
TEST(cuda_attention_of_longer_sequences_matches_double) {
    for (EACH_CAPABILITY(major)) ON_CUDA(check_tiles, longer, 5, 0, 1);
}

static const Where *in_words(bool bf16) {
    static Where w;
    w = (Where){.k = kernels_cuda(bf16), .bf16 = bf16};
    return &w;
}

/* So long that tiles are larger: some rows of the output. */
TEST(cuda_attention_of_long_sequences_matches_double) {
    const Case c = {1, 2049 + 130, 2, 1, 64, 0, 2};
    const int64_t rows[] = {0, 1, 127, 128, 191, 192, 1000, 2047, 2048, 2111, 2112, 2178};
    double *p = doubles_copy(NULL, c.S);
    cuda_begin(cuda_orders[2]);
    Run r = forward(in_words(true), &c, 0);
    int64_t n_qkv = c.B * c.S * (c.H + 2 * c.Hkv) * c.D, wide = c.H * c.D;
    Attention a = attention_of(&c, true);
    AttentionDouble t = {doubles_copy(NULL, r.out.n), doubles_copy(NULL, r.lse.n),
                         doubles_copy(NULL, n_qkv)};
    for (EACH(row, rows)) {
        for (int64_t h = 0; h < c.H; h++) {
            attention_row_double(&a, &t, r.qkv.host, r.dout.host, 0, h, *row, p);
            int64_t at = h * c.S + *row;
            CHECK_NEAR(r.lse.host[at], t.lse[at], 1e-5 * fmax(1, fabs(t.lse[at])));
        }
        CHECK(near_units("out", r.out.host + *row * wide, t.out + *row * wide, wide,
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
        Run r = compute(in_words(true), &c, 0);
        for (int64_t i = 0; i < c.B && i < 6; i++) // the last, then some
            CHECK(check_sequence(in_words(true), &c, &r, 0, (c.B - 1 + i * 37) % c.B));
        CHECK(cuda_end());
    }
}

/* A hash of all that comes of a case in bf16, where so many multiprocessors are left to others; 0:
 * memory was written beyond its end. Of the blocks that were launched the number. */
static uint64_t bits_of(const Case *c, EmuSetup o, int left, int64_t *blocks) {
    cuda_begin(o);
    device_set_sm_margin(left);
    *blocks = emu_calls.blocks, arrays_hash = 0;
    compute(in_words(true), c, 0);
    *blocks = emu_calls.blocks - *blocks;
    uint64_t bits = arrays_hash;
    return cuda_end() ? bits : 0;
}
static const Case for_few_blocks[] = {
    {4, 257, 1, 1, 128, 0, 2}, {3, 330, 2, 1, 64, 0, 2}, {2, 70, 4, 2, 64, 0, 2}};

/* Blocks that stay are as many as multiprocessors, but for those that are left to others. Where two
 * are left blocks take many pieces of work, and store each from where those after the next will
 * come, with warpgroups that have nothing to do at the last of them. */
TEST_EMULATED(cuda_attention_leaves_multiprocessors_with_the_same_bits) {
    for (EACH(c, for_few_blocks)) {
        int64_t blocks[3];
        uint64_t first = bits_of(c, cuda_orders[0], 0, &blocks[0]);
        for (int left = 1; left < 3; left++)
            CHECK(bits_of(c, cuda_orders[left], left, &blocks[left]) == first);
        CHECK(first && blocks[0] > blocks[1] && blocks[1] > blocks[2]);
    }
}

/* Whichever warpgroup lags behind the others, the one that fetches included: nothing comes to where
 * it still reads, or where what it stores is still read. */
TEST_EMULATED(cuda_attention_waits_for_every_warpgroup) {
    for (int i = 0; i < 2; i++) {
        int64_t blocks;
        uint64_t first = bits_of(&for_few_blocks[i], cuda_orders[0], 2, &blocks);
        for (unsigned group = 0; group < 5; group++) {
            EmuSetup slow = {.order = EMU_SLOW, .seed = group};
            CHECK(first && bits_of(&for_few_blocks[i], slow, 2, &blocks) == first);
        }
    }
}

/* What grows with the batch is counted among a model's memory: no kernel finds room for it
 * elsewhere. */
TEST(cuda_attention_takes_no_scratch) {
    for (EACH_CAPABILITY(major))
        for (EACH_DTYPE(bf16)) {
            cuda_begin_with(cuda_orders[0], 16);
            CHECK(check(in_words(bf16), &(Case){2, 9, 4, 2, 64, 0, 2}, 0));
            CHECK(cuda_end());
        }
}
