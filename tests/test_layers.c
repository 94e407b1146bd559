/* What all layers have in common. */
#include "tests/layers.h"

static void count_poll(void *ctx) {
    ++*(int *)ctx;
}

/* Kernels that share out their work by themselves look after what is under way, between pieces and
 * not only at the end: sizes that take several milliseconds. */
TEST(kernels_that_take_long_poll) {
    enum { N = 600, S = 1024, H = 4, D = 64, V = 100, T = 16384, C = 512 };
    const Kernels *k = kernels_cpu(layer_sets()[0]);
    for (int size = 1; size <= 2; size++) {
        OWNED(test_team_end) Team *t = team_create(size);
        int wanted = 1, calls = 0;
        team_set_poll(t, &wanted, count_poll, &calls);
        Matmul p = matmul_forward(N, N, N, floats(N * N, 1, 1), N, floats(N * N, 1, 2));
        p.y = floats(N * N, 0, 0), p.ldy = N,
        p.workspace = floats((int64_t)k->matmul_workspace(size) / 4 + 16, 0, 0);
        p.workspace = (void *)(((uintptr_t)p.workspace + 63) & ~(uintptr_t)63);
        k->matmul(t, &p);
        CHECK(calls >= 2);
        Attention a = {.B = 1, .S = S, .H = H, .Hkv = H, .D = D};
        a.workspace = floats((int64_t)k->attention_workspace(size, 1, S, H, H, D) / 4, 0, 0);
        float *qkv = floats(S * 3 * H * D, 1, 3), *out = floats(S * H * D, 0, 0),
              *lse = floats(S * H, 0, 0);
        calls = 0, k->attention_forward(t, &a, out, lse, qkv);
        CHECK(calls >= 2);
        calls = 0, k->attention_backward(t, &a, floats(S * 3 * H * D, 0, 0),
                                         floats(S * H * D, 1, 4), qkv, out, lse);
        CHECK(calls >= 2);
        int32_t *tokens = scratch_take(T * sizeof *tokens);
        Embedding e = {
            .B = T / S, .S = S, .V = V, .C = C, .tokens = tokens, .dwte = floats(V * C, 0, 0)};
        calls = 0, k->embedding_backward(t, &e, floats(T * C, 1, 5));
        CHECK(calls >= 2);
        CHECK(scratch_end());
    }
}
