/* Works as numbers, and done for the clock. */
#include "parallel/plan/work.h"

#include "tests/recording.h"
#include "tests/test.h"

static Work work_of(WorkKind kind, int64_t rows, int64_t a, int64_t b, int64_t c, int64_t d) {
    return (Work){.kind = kind, .rows = rows, .size = {a, b, c, d}};
}

TEST(work_flops_of_matmuls_and_attention_are_their_closed_forms) {
    for (int kind = WORK_MATMUL; kind <= WORK_WGRAD; kind++) {
        Work w = work_of((WorkKind)kind, 7, 5, 3, 0, 0);
        CHECK(work_flops(&w) == 2 * 7 * 5 * 3);
    }
    int64_t B = 2, S = 11, H = 3, D = 4, pairs = 0;
    for (int64_t query = 0; query < S; query++) pairs += query + 1; // of the causal half
    Work f = work_of(WORK_ATTENTION, B, S, H, 1, D),
         b = work_of(WORK_ATTENTION_BACKWARD, B, S, H, 1, D), g = work_of(WORK_ACT, 9, 0, 0, 0, 0);
    CHECK(work_flops(&f) == (double)(B * H * pairs * 2 * (2 * D)));
    CHECK(work_flops(&b) == (double)(B * H * pairs * 5 * (2 * D)));
    CHECK(work_flops(&g) == 0);
}

TEST(work_bytes_count_what_is_read_and_written) {
    Work xw = work_of(WORK_MATMUL, 7, 5, 3, 0, 0), dw = work_of(WORK_WGRAD, 7, 5, 3, 0, 0);
    CHECK(work_bytes(&xw) == 4 * (7 * 5 + 5 * 3 + 7 * 3));
    xw.flags = WORK_ADDEND | WORK_EPI_ACT; // the residual is read, the sum before gelu written
    CHECK(work_bytes(&xw) == 4 * (7 * 5 + 5 * 3 + 3 * 7 * 3));
    dw.flags = WORK_ADDEND;
    CHECK(work_bytes(&dw) == 4 * (7 * 5 + 2 * 5 * 3 + 7 * 3));
    Work adamw = work_of(WORK_ADAMW, 10, 0, 0, 0, 0), norm = work_of(WORK_NORM, 7, 5, 0, 0, 0);
    CHECK(work_bytes(&adamw) == 4 * 7 * 10);
    CHECK(work_bytes(&norm) == 4 * (2 * 7 * 5 + 2 * 7)); // x, y; mean, rstd
    Work att = work_of(WORK_ATTENTION, 2, 11, 4, 2, 8);  // qkv, out, lse
    CHECK(work_bytes(&att) == 4 * 22 * ((4 + 2 * 2) * 8 + 4 * 8 + 4));
    Work rope = work_of(WORK_ROPE, 7, 1, 4, 2, 8); // queries and keys, both ways
    CHECK(work_bytes(&rope) == 4 * 7 * 2 * (4 + 2) * 8);
    Work heads = work_of(WORK_QK_NORM_BACKWARD, 7, 1, 4, 2, 8); // dy, x, dx; values of x are unread
    CHECK(work_bytes(&heads) == 4 * 7 * (2 * (4 + 2 + 2) + 4 + 2) * 8);
}

TEST(work_bytes_of_bf16_words) {
    Work xw = work_of(WORK_MATMUL, 7, 5, 3, 0, 0), dw = work_of(WORK_WGRAD, 7, 5, 3, 0, 0);
    xw.flags = dw.flags = WORK_BF16_STORED | WORK_ADDEND;
    CHECK(work_bytes(&xw) == 2 * (7 * 5 + 5 * 3 + 2 * 7 * 3));
    CHECK(work_bytes(&dw) ==
          2 * (7 * 5 + 7 * 3) + 4 * 2 * 5 * 3); // a float is added to, and written
    Work att = work_of(WORK_ATTENTION_BACKWARD, 2, 11, 4, 2, 8),
         norm = work_of(WORK_NORM, 7, 5, 0, 0, 0);
    att.flags = norm.flags = WORK_BF16_STORED; // qkv, out and their gradients; lse
    CHECK(work_bytes(&att) == 2 * 2 * 22 * ((4 + 2 * 2) * 8 + 4 * 8) + 4 * 22 * 4);
    CHECK(work_bytes(&norm) == 2 * 2 * 7 * 5 + 4 * 2 * 7);
    Work adamw = work_of(WORK_ADAMW, 10, 0, 0, 0, 0);
    Work table = work_of(WORK_EMBEDDING_BACKWARD, 7, 5, 11, 0, 0);
    adamw.flags = table.flags = WORK_BF16_STORED;
    CHECK(work_bytes(&adamw) == (4 * 7 + 2) * 10);
    CHECK(work_bytes(&table) == (2 + 2 * 4) * 7 * 5);
}

/* A work of every kind, of sizes that divide by nothing. */
static Work odd_work(int kind) {
    static const int64_t sizes[N_WORKS][5] = {
        [WORK_MATMUL] = {37, 53, 71},
        [WORK_DGRAD] = {37, 53, 71},
        [WORK_WGRAD] = {37, 53, 71},
        [WORK_ATTENTION] = {3, 37, 6, 2, 7},
        [WORK_ATTENTION_BACKWARD] = {3, 37, 6, 2, 7},
        [WORK_NORM_MERGE] = {37, 53, 3},
        [WORK_LOSS_MERGE] = {37, 53, 3},
        [WORK_EMBEDDING] = {37, 53, 71},
        [WORK_EMBEDDING_BACKWARD] = {37, 53, 71},
        [WORK_ROPE] = {37, 1, 6, 2, 10},
        [WORK_QK_NORM] = {37, 1, 6, 2, 7},
        [WORK_QK_NORM_BACKWARD] = {37, 1, 6, 2, 7},
        [WORK_QK_NORM_WEIGHT_BACKWARD] = {37, 1, 6, 2, 7},
    };
    const int64_t *s = sizes[kind];
    if (s[0] == 0) return work_of((WorkKind)kind, 37, 53, 0, 0, 0);
    return work_of((WorkKind)kind, s[0], s[1], s[2], s[3], s[4]);
}

/* Bytes of a work in bf16 words by those in floats, where all of it are activations, part of it, or
 * nothing. */
static bool halved(int kind, double words, double floats) {
    switch (kind) {
    case WORK_SQUARES:
    case WORK_ZERO:
    case WORK_COPY:
    case WORK_NORM_MERGE:
    case WORK_LOSS_MERGE:
        return words == floats;
    case WORK_ADAMW: // and a copy in words of what matmuls read
        return words == floats * 30 / 28;
    case WORK_MATMUL:
    case WORK_DGRAD:
    case WORK_ROPE:
    case WORK_QK_NORM:
    case WORK_QK_NORM_BACKWARD:
    case WORK_QK_NORM_WEIGHT_BACKWARD:
    case WORK_ACT:
    case WORK_ACT_BACKWARD:
    case WORK_SWIGLU:
    case WORK_SWIGLU_BACKWARD:
    case WORK_BIAS_RESIDUAL:
    case WORK_BIAS_BACKWARD:
    case WORK_EMBEDDING:
        return words == floats / 2;
    default: // gradients of weights and tables, statistics
        return words > floats / 2 && words < floats;
    }
}

TEST(work_kinds_have_their_rows) {
    char name[64];
    for (int kind = 0; kind < N_WORKS; kind++) {
        Work w = {.kind = (WorkKind)kind};
        if (strcmp(work_name(&w, name), "(null)") == 0)
            test_fail("kind %d of work.h has no row in work.c", kind);
    }
}

TEST(work_bytes_of_bf16_words_are_half_where_all_are_activations) {
    char name[64];
    for (int kind = 0; kind < N_WORKS; kind++) {
        Work w = odd_work(kind), words = w;
        words.flags = WORK_BF16_STORED;
        if (!halved(kind, work_bytes(&words), work_bytes(&w))) test_fail("%s", work_name(&w, name));
    }
}

static bool all_finite(const float *x, size_t n) {
    bool finite = true;
    for (size_t i = 0; i < n; i++) finite &= isfinite(x[i]);
    return finite;
}

/* Three times on exactly the memory that was asked for, which small positive numbers fill. */
static bool runs(const Work *w, const Kernels *k, Team *team) {
    WorkMemory m = work_memory(w, k, team_size(team));
    size_t bytes = m.operands, n = bytes / sizeof(float);
    OWNED(test_mem_end) void *workspace = mem_alloc_aligned(m.workspace + 128, 128);
    OWNED(test_mem_end) float *x = mem_alloc_aligned(bytes, 128), *before = mem_alloc(bytes);
    test_fill(x, n, 0.04f, 1);
    for (size_t i = 0; i < n; i++) x[i] += 0.05f;
    memcpy(before, x, bytes);
    for (int i = 0; i < 3; i++) work_run(w, k, team, x, workspace);
    bool well = memcmp(before, x, bytes) != 0;
    // tokens are words of another kind: as floats they may be anything
    bool floats = !(w->kind >= WORK_LOSS && w->kind <= WORK_EMBEDDING_BACKWARD);
    if (floats) well &= all_finite(x, n);
    return well;
}

TEST(work_run_of_every_kind_stays_inside_its_memory_and_finite) {
    const uint32_t flags[] = {0, WORK_BF16 | WORK_RMS, WORK_ADDEND | WORK_BIAS,
                              WORK_EPI_ACT | WORK_BIAS, WORK_EPI_DACT | WORK_BACKWARD};
    char name[64], wrong[64] = "";
    for (const char *const *set = kernels_cpu_sets(); *set; set++) {
        const Kernels *k = kernels_cpu(*set);
        OWNED(test_team_end) Team *team = team_create(2);
        for (int kind = 0; kind < N_WORKS; kind++)
            for (EACH(flag, flags)) {
                Work w = odd_work(kind);
                w.flags = *flag;
                if (kind == WORK_BIAS_RESIDUAL) w.flags |= WORK_ADDEND; // else y stays y
                if (!runs(&w, k, team)) snprintf(wrong, sizeof wrong, "%s", work_name(&w, name));
            }
    }
    CHECK_STR(wrong, "");
}

static void keep_work(void *ctx, const Work *w) {
    Work *said = ctx;
    if (said->kind != N_WORKS)
        *said = (Work){.kind = N_WORKS, .rows = -1}; // twice
    else if (said->rows == 0)
        *said = *w;
}

/* Kernels that write down what they are asked are asked for that very work: what is measured under
 * a name is what the recorded step means by it. */
TEST(work_run_asks_the_kernels_for_that_work) {
    char name[64], wrong[64] = "";
    OWNED(test_team_end) Team *team = team_create(2);
    Work said;
    Recording r = {keep_work, &said, 2};
    const Kernels *k = recording_kernels(&r, NULL);
    for (int kind = 0; kind < N_WORKS; kind++) {
        Work w = odd_work(kind);
        w.flags = kind <= WORK_WGRAD ? WORK_BF16 | WORK_ADDEND | WORK_BIAS | WORK_EPI_DACT
                  : kind <= WORK_ATTENTION_BACKWARD                 ? WORK_BF16
                  : kind <= WORK_NORM_BACKWARD_APPLY                ? WORK_RMS
                  : kind == WORK_BIAS_RESIDUAL                      ? WORK_ADDEND
                  : kind >= WORK_LOSS && kind <= WORK_LOSS_BACKWARD ? WORK_BACKWARD
                                                                    : 0;
        if (w.kind >= WORK_ACT && w.kind <= WORK_ACT_BACKWARD) w.width = 0;
        if (w.kind >= WORK_SQUARES && w.kind <= WORK_ZERO) w.width = 0;
        WorkMemory m = work_memory(&w, k, 2);
        OWNED(test_mem_end)
        void *operands = mem_alloc_aligned(m.operands, 128),
             *workspace = mem_alloc_aligned(m.workspace + 128, 128);
        said = (Work){.kind = N_WORKS};
        work_run(&w, k, team, operands, workspace);
        if (!work_alike(&said, &w) || said.rows != w.rows)
            snprintf(wrong, sizeof wrong, "%s", work_name(&w, name));
    }
    CHECK_STR(wrong, "");
}

TEST(work_memory_does_not_grow_with_a_vocabulary_beyond_the_caches) {
    const Kernels *k = kernels_cpu(NULL);
    Work small = work_of(WORK_EMBEDDING, 64, 768, 50257, 0, 0), large = small;
    large.V = 10 * small.V;
    CHECK(work_memory(&small, k, 1).operands == work_memory(&large, k, 1).operands);
    CHECK(work_memory(&small, k, 1).operands < (size_t)128 << 20);
}

TEST(works_are_alike_but_for_rows) {
    char name[64];
    Work x = work_of(WORK_MATMUL, 7, 768, 2304, 0, 0), y = x;
    y.rows = 9;
    CHECK(work_alike(&x, &y));
    y.flags = WORK_BIAS;
    CHECK(!work_alike(&x, &y));
    y = x, y.N = 768;
    CHECK(!work_alike(&x, &y));
    CHECK_STR(work_name(&x, name), "matmul 768x2304");
}
