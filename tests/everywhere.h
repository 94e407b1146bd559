/* everywhere -- runs one test of a layer with every table of kernels: those of each instruction set
 * of the CPU, with teams of several sizes; and CUDA's in fp32 and bf16, with several orders of
 * threads. Neither the size of a team nor the order may change a bit of what array_get reads.
 *
 *     static bool squares(const Where *w, const void *of, int way) {
 *         const Case *c = of;
 *         Array x = array_random(c->n, 1, seed, w->bf16, c->skew);
 *         Array y = array_empty(c->n, w->bf16, 0);
 *         w->k->act_forward(w->team, ACT_RELU2, y.device, x.device, c->n);
 *         array_get(&y);
 *         if (w->again) return true;        the bits must equal those of the first run
 *         ...                               compares y.host with a double reference
 *     }
 *     TEST_ON_CPU(relu2_squares, squares, cases, N_CASES, 1)
 *     TEST_ON_CUDA(cuda_relu2_squares, squares, cases, N_CASES, QUICK, 1)
 *
 * `way` numbers the variants of a case: ways to cut a row, with a bias or without. A variant that
 * has no meaning for a case returns true at once. CUDA's cases from QUICK on run in one of the
 * orders only, except in long tests. */
#ifndef TESTS_EVERYWHERE_H
#define TESTS_EVERYWHERE_H

#include "tests/cuda_test.h"

typedef struct Where {
    const Kernels *k;
    Team *team;      // team of the CPU
    const char *set; // instruction set of the CPU; NULL: CUDA
    bool bf16;       // activations are bf16
    bool again;      // not the first run of this case: another team, or another order
} Where;
typedef bool (*Everywhere)(const Where *w, const void *of, int way);

typedef struct Cases {
    Everywhere f;
    const void *at;
    size_t bytes; // bytes of one case
    int n, quick, ways;
} Cases;

/* Runs case i / ways in way i % ways, and compares its bits with those of the first run. turn: size
 * of the team, or number of the order. */
static inline void run_case(const Cases *c, int i, const Where *w, int turn, uint64_t *first) {
    arrays_hash = 0;
    bool fine = c->f(w, (const char *)c->at + (size_t)(i / c->ways) * c->bytes, i % c->ways);
    if (!w->again) *first = arrays_hash;
    if (fine && arrays_hash == *first) return;
    test_fail("case %d, way %d, by %s%s, %s %d: %s", i / c->ways, i % c->ways,
              w->set ? w->set : "CUDA", w->bf16 ? " in bf16" : "", w->set ? "a team of" : "order",
              turn, fine ? "other bits" : "wrong");
}

static inline void on_cpu(Cases c) {
    Team *team[TEAMS];
    uint64_t first = 0;
    bool few = BASE_DEBUG && !test_long(); // for a sanitizer by two teams
    // a thread sanitizer needs no edge of memory: a fifth of all (5 divides no number of ways)
    int step = BASE_TSAN && few ? 5 : 1;
    for (int j = 0; j < TEAMS; j++) team[j] = team_create(team_sizes[j]);
    arrays_on_host = true;
    for (int i = 0; i < c.n * c.ways; i += step)
        for (EACH_SET(s))
            for (int j = 0; j < TEAMS && !test_failed(); j += few ? 2 : 1) {
                Where w = {kernels_cpu(*s), team[j], *s, false, .again = j > 0};
                run_case(&c, i, &w, team_sizes[j], &first);
                if (!scratch_end()) test_fail("memory behind a piece");
            }
    arrays_on_host = false;
    for (int j = 0; j < TEAMS; j++) team_destroy(team[j]);
}

static inline void on_cuda(Cases c) {
    enum { ORDERS = N_OF(cuda_orders) };
    for (int i = 0; i < c.n * c.ways; i++)
        for (EACH_DTYPE(bf16)) {
            Where w = {.k = kernels_cuda(bf16), .bf16 = bf16};
            uint64_t first = 0;
            bool all = i / c.ways < c.quick || test_long();
            int o = all ? 0 : (i + bf16) % ORDERS;
            for (; o < ORDERS && !test_failed(); o += all ? 1 : ORDERS, w.again = true) {
                cuda_begin(cuda_orders[o]);
                run_case(&c, i, &w, o, &first);
                if (!cuda_end()) test_fail("memory behind a piece");
            }
        }
}

#define ON_CPU(f, cases, n, ways) on_cpu((Cases){f, cases, sizeof *(cases), n, 0, ways})
#define ON_CUDA(f, cases, n, quick, ways)                                                          \
    on_cuda((Cases){f, cases, sizeof *(cases), n, quick, ways})
#define TEST_ON_CPU(name, ...)                                                                     \
    TEST(name) {                                                                                   \
        ON_CPU(__VA_ARGS__);                                                                       \
    }
#define TEST_ON_CUDA(name, ...)                                                                    \
    TEST(name) {                                                                                   \
        ON_CUDA(__VA_ARGS__);                                                                      \
    }

/* Adds n bytes that a kernel returned to the host to arrays_hash. */
static inline void seen(const void *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        arrays_hash = (arrays_hash ^ ((const unsigned char *)p)[i]) * 0x100000001b3;
}

/* Memory for a workspace. */
static inline void *workspace_of(size_t bytes) {
    return cuda_take((int64_t)bytes, 1, 0);
}

/* Copies tokens to memory that the kernels read. */
static inline int32_t *tokens_put(const int32_t *t, int64_t n) {
    int32_t *to = cuda_take(n, sizeof *to, 0);
    if (arrays_on_host) return memcpy(to, t, (size_t)n * sizeof *t);
    return device_put(to, t, (size_t)n * sizeof *t), to;
}

/* Random numbers around an offset. */
static inline Array array_random_around(int64_t n, float scale, float offset, unsigned seed,
                                        bool bf16, int64_t skew) {
    Array w = array_empty(n, bf16, skew);
    test_fill(w.host, (size_t)n, scale, seed);
    for (int64_t i = 0; i < n; i++) w.host[i] += offset;
    array_put(&w);
    return w;
}

/* Columns first .. first + width of x[T,C], as rows that begin ld elements apart; the gaps hold
 * between_rows. */
static const float between_rows = -12; // exact in bf16
static inline Array part_of(const Array *x, int64_t T, int64_t C, int64_t first, int64_t width,
                            int64_t ld, int64_t skew) {
    Array p = array_empty(T * ld, x->bf16, skew);
    for (int64_t i = 0; i < T * ld; i++)
        p.host[i] = i % ld < width ? x->host[i / ld * C + first + i % ld] : between_rows;
    array_put(&p);
    return p;
}
/* Do these columns equal `want` within tol (near_all), and are the gaps between rows unchanged? */
static inline bool part_near(const char *what, const Array *p, const double *want, int64_t T,
                             int64_t C, int64_t first, int64_t width, int64_t ld, double tol) {
    for (int64_t i = 0; i < T * ld; i++) {
        bool inside = i % ld < width;
        double is = (double)p->host[i],
               w = inside ? want[i / ld * C + first + i % ld] : (double)between_rows;
        if (fabs(is - w) <= (inside ? tol * fmax(1, fabs(w)) : 0)) continue;
        test_fail("%s[%lld,%lld] of columns from %lld is %.9g, not %.9g", what, (long long)(i / ld),
                  (long long)(i % ld), (long long)first, is, w);
        return false;
    }
    return true;
}

#endif
