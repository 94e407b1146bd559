/* layers/embedding.cu: rows of the tables, and gradients that are the same bits in any order of
 * threads. */
#include "base/rng.h"
#include "layers/cuda/sizes.h"
#include "tests/cuda_test.h"

typedef struct Case {
    int64_t B, S, C, V, first, token0, skew;
    int often; // of ten tokens so many are token 2
    bool wpe;
} Case;

/* Runs of one token within and across chunks of 32, also one that fills several; one and two digits
 * of the sort; more tokens than the scan of their digits takes in one step of its warps; tokens
 * that are not here, in the last case within a chunk. */
static const Case cases[] = {
    {1, 1, 1, 3, 0, 0, 0, 0, true},       {2, 7, 5, 10, 2, 0, 0, 3, true},
    {3, 50, 16, 20, 0, 0, 0, 5, true},    {3, 50, 16, 20, 0, 5, 1, 0, false},
    {2, 600, 8, 300, 1, 0, 0, 9, true},   {4, 600, 8, 1000, 0, 3, 0, 2, true},
    {1, 40, 8, 70000, 0, 0, 0, 1, false}, {2, 30, 1200, 9, 0, 0, 0, 4, true},
    {2, 4500, 1, 700, 0, 0, 0, 9, false}, {1, 40, 8, 50, 0, 2, 0, 0, false},
};
enum { CASES = sizeof cases / sizeof *cases };

static int32_t *tokens_of(const Case *c, int32_t **device) {
    int64_t T = c->B * c->S;
    int32_t *t = scratch_take((size_t)T * sizeof *t);
    for (int64_t i = 0; i < T; i++) {
        uint64_t r = rng_u64(1, 2, (uint64_t)i);
        // some lie before and behind the rows that are here
        t[i] = (int)(r % 10) < c->often ? 2 : (int32_t)(r / 16 % (uint64_t)(c->V + 2 * c->token0));
    }
    *device = cuda_take(T, sizeof *t, 0);
    device_put(*device, t, (size_t)T * sizeof *t);
    return t;
}

static bool check_case(const Case *c, bool bf16) {
    int64_t T = c->B * c->S, C = c->C, n = T * C, positions = c->first + c->S;
    int64_t table = (c->V + 1) * C; // of gradients, with a row behind them that nothing is added to
    const Kernels *k = kernels_cuda(bf16);
    int32_t *on_device, *token = tokens_of(c, &on_device);
    Words wte = words(c->V * C, 1, 1, bf16, 0), wpe = words(positions * C, 1, 2, false, 0);
    Words dwte = words(table, 1, 3, false, 0), dwpe = words(positions * C, 1, 4, false, 0);
    Words x = words_empty(n, bf16, c->skew), dx = words(n, 1, 5, bf16, c->skew);
    double *want = doubles_copy(NULL, n), *dt = doubles_copy(dwte.host, table);
    double *dp = doubles_copy(dwpe.host, positions * C);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = token[i / C] - c->token0, at = (c->first + i / C % c->S) * C + i % C;
        bool here = row >= 0 && row < c->V;
        want[i] =
            (here ? (double)wte.host[row * C + i % C] : 0) + (c->wpe ? (double)wpe.host[at] : 0);
        if (here) dt[row * C + i % C] += (double)dx.host[i];
        if (c->wpe) dp[at] += (double)dx.host[i];
    }
    Embedding e = {.B = c->B, .S = c->S, .C = C, .V = c->V, .first = c->first};
    e.token0 = c->token0, e.tokens = on_device, e.wte = wte.device, e.dwte = dwte.device;
    if (c->wpe) e.wpe = wpe.device, e.dwpe = dwpe.device;
    e.workspace = cuda_take((int64_t)k->embedding_workspace(T, C), 1, 0);
    k->embedding_forward(NULL, &e, x.device);
    k->embedding_backward(NULL, &e, dx.device);
    words_get(&x), words_get(&dwte), words_get(&dwpe);
    double sum = 3e-7 * sqrt((double)T); // of up to T numbers below 1; errors add up at random
    return near_all("x", x.host, want, n, word_error(bf16) + 1e-7) &&
           near_all("dwte", dwte.host, dt, table, sum) &&
           near_all("dwpe", dwpe.host, dp, positions * C, sum);
}

TEST(cuda_embedding_matches_double) {
    for (EACH_WORD(bf16))
        for (EACH_ORDER(o))
            for (int i = 0; i < CASES; i++) {
                if (i > 3 && (i + (int)(o - cuda_orders) + bf16) % 3 && !test_long()) continue;
                cuda_begin(*o);
                CHECK_SAYS(check_case(&cases[i], bf16), "case %d bf16 %d", i, bf16);
                CHECK(cuda_end());
            }
}

/* What grows with the batch is counted among a model's memory. */
TEST(cuda_embedding_takes_no_scratch) {
    for (EACH_WORD(bf16)) {
        cuda_begin_with(cuda_orders[0], 16);
        CHECK(check_case(&cases[2], bf16));
        CHECK(cuda_end());
    }
}

/* Sums of small whole numbers are exact in any order: sort and pieces must find the very tokens
 * that the formula finds. */
TEST(cuda_embedding_backward_is_the_plain_one) {
    for (EACH_WORD(bf16))
        for (int i = 0; i < CASES; i++) {
            const Case *c = &cases[i];
            int64_t n = c->B * c->S * c->C, table = c->V * c->C;
            cuda_begin(cuda_orders[i % 3]);
            int32_t *on_device, *token = tokens_of(c, &on_device);
            Words dx = words_empty(n, bf16, c->skew), dwte = words_empty(table, false, 0);
            float *want = scratch_take((size_t)table * sizeof *want);
            for (int64_t j = 0; j < table; j++) want[j] = dwte.host[j] = 1;
            for (int64_t j = 0; j < n; j++) {
                int64_t row = token[j / c->C] - c->token0;
                dx.host[j] = (float)(rng_u64(3, 4, (uint64_t)j) % 255) - 127;
                if (row >= 0 && row < c->V) want[row * c->C + j % c->C] += dx.host[j];
            }
            words_put(&dx), words_put(&dwte);
            Embedding e = {.B = c->B, .S = c->S, .C = c->C, .V = c->V, .token0 = c->token0};
            e.tokens = on_device, e.dwte = dwte.device;
            e.workspace = cuda_take(
                (int64_t)kernels_cuda(bf16)->embedding_workspace(c->B * c->S, c->C), 1, 0);
            kernels_cuda(bf16)->embedding_backward(NULL, &e, dx.device);
            words_get(&dwte);
            if (!same_bits(dwte.host, want, table))
                test_fail(__FILE__, __LINE__, "case %d bf16 %d", i, bf16);
            CHECK(cuda_end());
        }
}

TEST(cuda_embedding_backward_has_the_same_bits_in_any_order) {
    enum { N = 300 * 8 };
    static float first[N];
    const Case *c = &cases[4];
    for (EACH_ORDER(o)) {
        int32_t *token;
        cuda_begin(*o);
        tokens_of(c, &token);
        Words dx = words(c->B * c->S * c->C, 1, 5, true, 0), dwte = words(N, 0, 3, false, 0);
        Embedding e = {.B = c->B, .S = c->S, .C = c->C, .V = c->V, .tokens = token};
        e.dwte = dwte.device;
        e.workspace =
            cuda_take((int64_t)kernels_cuda(true)->embedding_workspace(c->B * c->S, c->C), 1, 0);
        kernels_cuda(true)->embedding_backward(NULL, &e, dx.device);
        words_get(&dwte);
        if (o == cuda_orders) memcpy(first, dwte.host, sizeof first);
        CHECK(same_bits(first, dwte.host, N));
        CHECK(cuda_end());
    }
}

/* Parts of the rows, from any token on, beyond the end of the batch as well. */
TEST(cuda_positions_of_a_part_of_the_rows) {
    enum { B = 3, S = 5, FIRST = 2, POSITIONS = FIRST + S };
    static const int64_t part[][3] = {{4, 0, 8}, {7, 4, 8}, {6, 12, 3}, {2, 15, 8}, {15, 0, 16}};
    for (EACH_WORD(bf16))
        for (EACH_ORDER(o))
            for (int i = 0; i < 5; i++) {
                int64_t T = part[i][0], t0 = part[i][1], C = part[i][2];
                cuda_begin(*o);
                Words x = words(T * C, 1, 1, bf16, 0), dx = words(T * C, 1, 2, bf16, 0);
                Words wpe = words(POSITIONS * C, 1, 3, false, 0);
                Words dwpe = words(POSITIONS * C, 1, 4, false, 0);
                double *want = doubles_copy(x.host, T * C), *d = doubles_copy(dwpe.host, dwpe.n);
                for (int64_t j = 0; j < T * C && t0 + j / C < B * S; j++) {
                    int64_t at = (FIRST + (t0 + j / C) % S) * C + j % C;
                    want[j] += (double)wpe.host[at], d[at] += (double)dx.host[j];
                }
                Embedding e = {.B = B, .S = S, .C = C, .first = FIRST, .wpe = wpe.device};
                e.dwpe = dwpe.device;
                kernels_cuda(bf16)->position_forward(NULL, &e, T, t0, x.device);
                kernels_cuda(bf16)->position_backward(NULL, &e, T, t0, dx.device);
                words_get(&x), words_get(&dwpe);
                CHECK(near_all("x", x.host, want, T * C, word_error(bf16) + 1e-7));
                CHECK(near_all("dwpe", dwpe.host, d, dwpe.n, 1e-6));
                CHECK(cuda_end());
            }
}

/* Runs that begin and end where chunks of sorted tokens do, and fill one or more of them: each
 * token counts once. */
TEST(cuda_embedding_counts_runs_that_are_whole_chunks) {
    enum { CHUNK = EMBEDDING_CHUNK, T = 7 * CHUNK, V = 6, C = 2 };
    static const int often[V] = {CHUNK, 2 * CHUNK, CHUNK, 0, 2 * CHUNK + 1, CHUNK - 1};
    int32_t token[T], left[V];
    memcpy(left, often, sizeof left);
    for (int t = 0, v = 0; t < T; t++, v++) { // in turn
        while (!left[v % V]) v++;
        left[v % V]--, token[t] = v % V;
    }
    for (EACH_ORDER(o)) {
        cuda_begin(*o);
        int32_t *at = cuda_take(T, sizeof *at, 0);
        device_put(at, token, sizeof token);
        Words dx = words((int64_t)T * C, 0, 1, false, 0), dwte = words(V * C, 0, 1, false, 0);
        for (int i = 0; i < T * C; i++) dx.host[i] = 1;
        words_put(&dx);
        Embedding e = {.B = 1, .S = T, .C = C, .V = V, .tokens = at, .dwte = dwte.device};
        e.workspace = cuda_take((int64_t)kernels_cuda(false)->embedding_workspace(T, C), 1, 0);
        kernels_cuda(false)->embedding_backward(NULL, &e, dx.device);
        words_get(&dwte);
        for (int i = 0; i < V * C; i++) CHECK(dwte.host[i] == (float)often[i / C]);
        CHECK(cuda_end());
    }
}
