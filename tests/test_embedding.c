/* Tokens and positions, of tables and by rope, by every table of kernels against double precision;
 * gradients are the same bits whoever adds them. */
#include "base/rng.h"
#include "layers/cuda/sizes.h"
#include "tests/everywhere.h"

typedef struct Case {
    int64_t B, S, C, V, first, token0, skew;
    int often; // of ten tokens so many are token 2; RUNS: runs that are whole chunks
    bool wpe;
} Case;
enum { RUNS = -1, CHUNK = EMBEDDING_CHUNK };

/* For CUDA: runs of one token within and across chunks of 32, also one that fills several. Tokens
 * that are not here, also within a chunk, and none of them here. */
static const Case cases[] = {
    {1, 1, 1, 3, 0, 0, 0, 0, true},     {2, 7, 5, 10, 2, 0, 0, 3, true},
    {3, 50, 16, 20, 0, 0, 0, 5, true},  {3, 50, 16, 20, 0, 5, 1, 0, false},
    {2, 600, 8, 300, 1, 0, 0, 9, true}, {1, 7 * CHUNK, 2, 6, 0, 0, 0, RUNS, false},
    {2, 7, 5, 0, 2, 3, 0, 3, true},     {4, 600, 8, 1000, 0, 3, 0, 2, true},
    {2, 30, 1200, 9, 0, 0, 0, 4, true}, {1, 40, 8, 50, 0, 2, 0, 0, false},
};
enum { CASES = N_OF(cases), QUICK = 7 };

/* Runs that begin and end where chunks of sorted tokens do, and fill one or more of them. */
static void fill_runs(int32_t *token, int64_t T) {
    int left[] = {CHUNK, 2 * CHUNK, CHUNK, 0, 2 * CHUNK + 1, CHUNK - 1};
    for (int64_t t = 0, v = 0; t < T; t++, v++) { // in turn
        while (!left[v % 6]) v++;
        left[v % 6]--, token[t] = (int32_t)(v % 6);
    }
}
static int32_t *tokens_of(const Case *c, int32_t **device) {
    int64_t T = c->B * c->S;
    int32_t *t = scratch_take((size_t)T * sizeof *t);
    for (int64_t i = 0; i < T; i++) {
        uint64_t r = rng_u64(1, 2, (uint64_t)i);
        // some lie before and behind the rows that are here
        t[i] = (int)(r % 10) < c->often ? 2 : (int32_t)(r / 16 % (uint64_t)(c->V + 2 * c->token0));
    }
    if (c->often == RUNS) fill_runs(t, T);
    return *device = tokens_put(t, T), t;
}

/* Small whole numbers, whose sums are exact: order and pieces must find the very tokens that the
 * formula finds. Or others, whose sums tell in which order they were added. */
static Array numbers(int64_t n, unsigned seed, bool bf16, int64_t skew, bool whole) {
    Array x = array_random(n, whole ? 127 : 1, seed, bf16, skew);
    for (int64_t i = 0; i < n && whole; i++) x.host[i] = rintf(x.host[i]);
    return array_put(&x), x;
}

static bool embedding(const Where *w, const void *of, int way) {
    const Case *c = of;
    bool whole = way == 1;
    int64_t T = c->B * c->S, C = c->C, n = T * C, positions = c->first + c->S;
    int64_t table = (c->V + 1) * C; // of gradients, with a row behind them that nothing is added to
    int32_t *on_device, *token = tokens_of(c, &on_device);
    Array wte = array_random(c->V * C, 1, 1, w->bf16, 0),
          wpe = array_random(positions * C, 1, 2, false, 0);
    Array dwte = numbers(table, 3, false, 0, whole);
    Array x = array_empty(n, w->bf16, c->skew), dx = numbers(n, 5, w->bf16, c->skew, whole);
    double *want = doubles_copy(NULL, n), *dt = doubles_copy(dwte.host, table);
    for (int64_t i = 0; i < n && !w->again; i++) {
        int64_t row = token[i / C] - c->token0, at = (c->first + i / C % c->S) * C + i % C;
        bool here = row >= 0 && row < c->V;
        want[i] =
            (here ? (double)wte.host[row * C + i % C] : 0) + (c->wpe ? (double)wpe.host[at] : 0);
        if (here) dt[row * C + i % C] += (double)dx.host[i];
    }
    Embedding e = {.B = c->B, .S = c->S, .C = C, .V = c->V, .first = c->first};
    e.token0 = c->token0, e.tokens = token;
    int32_t *order = scratch_take((size_t)(T + c->V + 2) * sizeof *order);
    embedding_order(order, order + T, &e, T);
    e.order = tokens_put(order, T), e.tokens = on_device;
    if (c->V) e.wte = wte.device, e.dwte = dwte.device;
    if (c->wpe) e.wpe = wpe.device;
    if (!w->set) e.workspace = workspace_of(w->k->embedding_workspace(T, C));
    w->k->embedding_forward(w->team, &e, x.device);
    w->k->embedding_backward(w->team, &e, dx.device);
    array_get(&x), array_get(&dwte);
    if (w->again) return true;
    // of up to T numbers below 1; errors add up at random
    double sum = whole ? 0 : 3e-7 * sqrt((double)T);
    return near_all("x", x.host, want, n, rounding_error(w->bf16) + 1e-7) &&
           near_all("dwte", dwte.host, dt, table, sum);
}
TEST_ON_CPU(embedding_matches_double_for_any_team, embedding, cases, CASES, 2)
TEST_ON_CUDA(cuda_embedding_matches_double_in_any_order, embedding, cases, CASES, QUICK, 2)

/* Rows 3 to 5 of the table are here; what lies behind the tokens is row 0. */
TEST(embedding_order_is_by_row_then_as_they_come) {
    static const int32_t tokens[] = {5, 2, 3, 5, 6, 3, 9, 0}, here[] = {2, 5, 0, 3, 1, 4, 6, 7},
                         padded[] = {2, 3, 1, 0};
    int32_t order[8], begin[5];
    embedding_order(order, begin, &(Embedding){1, 8, .V = 3, .token0 = 3, .tokens = tokens}, 8);
    CHECK(memcmp(order, here, sizeof here) == 0);
    embedding_order(order, begin, &(Embedding){1, 4, .V = 3, .tokens = tokens}, 2);
    CHECK(memcmp(order, padded, sizeof padded) == 0);
}

/* What grows with the batch is counted among a model's memory. */
TEST(cuda_embedding_takes_no_scratch) {
    for (EACH_DTYPE(bf16)) {
        Where w = {.k = kernels_cuda(bf16), .bf16 = bf16};
        cuda_begin_with(cuda_orders[0], 16);
        CHECK(embedding(&w, &cases[2], 0));
        CHECK(cuda_end());
    }
}

/* Parts of the rows, from any token on, beyond the end of the batch as well. */
static const struct Part {
    int64_t T, t0, C;
} parts[] = {{4, 0, 8}, {7, 4, 8}, {6, 12, 3}, {2, 15, 8}, {15, 0, 16}, {20, 3, 33}};
enum { PARTS = N_OF(parts) };

static bool positions(const Where *w, const void *of, UNUSED int way) {
    enum { B = 3, S = 5, FIRST = 2, POSITIONS = FIRST + S };
    const struct Part *c = of;
    int64_t n = c->T * c->C;
    Array x = array_random(n, 1, 1, w->bf16, 0), dx = array_random(n, 1, 2, w->bf16, 0);
    Array wpe = array_random(POSITIONS * c->C, 1, 3, false, 0),
          dwpe = array_random(wpe.n, 1, 4, false, 0);
    double *want = doubles_copy(x.host, n), *d = doubles_copy(dwpe.host, dwpe.n);
    for (int64_t j = 0; j < n && c->t0 + j / c->C < B * S; j++) {
        int64_t at = (FIRST + (c->t0 + j / c->C) % S) * c->C + j % c->C;
        want[j] += (double)wpe.host[at], d[at] += (double)dx.host[j];
    }
    Embedding e = {.B = B, .S = S, .C = c->C, .first = FIRST, .wpe = wpe.device};
    e.dwpe = dwpe.device;
    w->k->position_forward(w->team, &e, c->T, c->t0, x.device);
    w->k->position_backward(w->team, &e, c->T, c->t0, dx.device);
    array_get(&x), array_get(&dwpe);
    return near_all("x", x.host, want, n, rounding_error(w->bf16) + 1e-7) &&
           near_all("dwpe", dwpe.host, d, dwpe.n, 1e-6);
}
TEST_ON_CPU(embedding_positions_of_a_part_of_the_rows, positions, parts, PARTS, 1)
TEST_ON_CUDA(cuda_embedding_positions_of_a_part_of_the_rows, positions, parts, PARTS, PARTS, 1)

typedef struct RopeCase {
    int64_t B, S, H, Hkv, D, first, skew;
} RopeCase;
static const RopeCase ropes[] = {
    {2, 3, 2, 1, 64, 0, 0},  {1, 5, 3, 3, 16, 2, 0},  {2, 3, 2, 1, 6, 1, 0},
    {2, 3, 2, 2, 64, 0, 1},  {1, 1, 1, 1, 2, 0, 0},   {1, 2, 25, 25, 64, 0, 0},
    {2, 19, 4, 2, 10, 0, 0}, {2, 1, 5, 1, 34, 70, 0}, {3, 33, 6, 6, 64, 0, 0}};
enum { ROPES = N_OF(ropes) };

static bool turns(const Where *w, const void *of, UNUSED int way) {
    const RopeCase *c = of;
    int64_t S = c->S, D = c->D, T = c->B * S, turned = c->H + c->Hkv, heads = turned + c->Hkv;
    Array x = array_random(T * heads * D, 1, 1, w->bf16, c->skew);
    Array table = array_empty((c->first + S) * D, false, 0);
    Config head = {.channels = D, .heads = 1, .rope_theta = 10000, .rope_factor = 1};
    rope_table(table.host, c->first + S, &head);
    array_put(&table);
    double *want = doubles_copy(x.host, x.n), *before = doubles_copy(x.host, x.n);
    for (int64_t j = 0; j < T * heads; j++)
        for (int64_t d = 0; d < D / 2 && j % heads < turned; d++) {
            double *lo = want + j * D + d, *hi = lo + D / 2, a = *lo, b = *hi;
            double angle =
                (double)(c->first + j / heads % S) * pow(10000, -2.0 * (double)d / (double)D);
            *lo = a * cos(angle) - b * sin(angle), *hi = b * cos(angle) + a * sin(angle);
        }
    Rope r = {c->B, S, c->H, c->Hkv, D, c->first, table.device};
    w->k->rope(w->team, &r, x.device, 1);
    array_get(&x);
    bool good = near_all("turned", x.host, want, x.n, 1.5 * rounding_error(w->bf16) + 2e-7);
    w->k->rope(w->team, &r, x.device, -1); // which is backward
    array_get(&x);                         // rounded twice
    return good && near_all("turned back", x.host, before, x.n, 3 * rounding_error(w->bf16) + 4e-7);
}
TEST_ON_CPU(rope_turns_pairs_and_back_for_any_team, turns, ropes, ROPES, 1)
TEST_ON_CUDA(cuda_rope_turns_pairs_and_back_in_any_order, turns, ropes, ROPES, 6, 1)

/* The angles of position 3 in a model that was first trained on 48 positions; the speeds are those
 * of `transformers` 5.24 (rope_type llama3, rope_theta 100, factor 8, head_dim 8). */
TEST(rope_table_stretches_positions_as_llama_3_does) {
    static const double speed[] = {1, 0.170112297, 0.0125, 0.00395284733};
    Config c = {.channels = 8, .heads = 1, .rope_theta = 100, .rope_factor = 8, .rope_seq = 48};
    float table[4 * 8];
    rope_table(table, 4, &c);
    for (int i = 0; i < 4; i++)
        CHECK(fabs(table[3 * 8 + i] - cos(3 * speed[i])) < 1e-6 &&
              fabs(table[3 * 8 + 4 + i] - sin(3 * speed[i])) < 1e-6);
}
