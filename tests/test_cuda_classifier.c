/* layers/classifier.cu against double precision: whole rows and rows that are cut, in both words of
 * storage. */
#include "tests/cuda_test.h"
#include "tests/layers.h"

typedef struct Case {
    int64_t T, V, ld, skew;
    float size; // logits in [-size, size)
} Case;

/* Rows in single words, in words of 16 bytes with a rest, longer than a block takes at once, longer
 * than shared memory. */
static const Case cases[] = {
    {1, 1, 1, 0, 5},    {6, 37, 37, 0, 20},     {6, 40, 40, 0, 20},    {6, 43, 48, 0, 20},
    {6, 40, 48, 1, 20}, {2, 5001, 5008, 0, 80}, {2, 4096, 4096, 0, 3}, {1, 120000, 120000, 0, 10},
};
enum { CASES = sizeof cases / sizeof *cases };
static const float pad = 12288; // between the rows; bf16 holds it

static Words logits_new(const Case *c, bool bf16) {
    Words x = words_empty(c->T * c->ld, bf16, c->skew);
    test_fill(x.host, (size_t)x.n, c->size, 1);
    for (int64_t i = 0; i < x.n; i++)
        if (i % c->ld >= c->V) x.host[i] = pad;
    words_put(&x);
    return x;
}
static int32_t *targets_new(const Case *c, int32_t **device) {
    int32_t *y = scratch_take((size_t)c->T * sizeof *y);
    for (int64_t t = 0; t < c->T; t++) y[t] = t % 5 == 3 ? -1 : (int32_t)(t * 7919 % c->V);
    *device = cuda_take(c->T, sizeof *y, 0);
    device_put(*device, y, (size_t)c->T * sizeof *y);
    return y;
}

/* scale = 1: probabilities, to a word and some units of exponentials of numbers up to 160, which
 * are known to 1e-5. */
static bool matches(const Case *c, bool bf16, const Words *before, const int32_t *target,
                    const Words *loss, const Words *after) {
    double *dx = doubles_copy(NULL, c->V);
    for (int64_t t = 0; t < c->T; t++) {
        double want = classifier_reference(before->host + t * c->ld, c->V, target[t], 1, dx);
        if (fabs((double)loss->host[t] - want) > 2e-6 * (1 + want + (double)c->size)) {
            test_fail(__FILE__, __LINE__, "loss of %lld: %g, not %g", (long long)t,
                      (double)loss->host[t], want);
            return false;
        }
        if (!near_all("dlogits", after->host + t * c->ld, dx, c->V, word_error(bf16) + 2e-5))
            return false;
    }
    return true;
}

static bool check_whole(const Case *c, bool bf16) {
    int32_t *on_device, *target = targets_new(c, &on_device);
    Words x = logits_new(c, bf16), before = logits_new(c, bf16), loss = words_empty(c->T, false, 0);
    Classifier k = {.T = c->T, .V = c->V, .ld = c->ld, .targets = on_device, .scale = 1};
    kernels_cuda(bf16)->classifier(NULL, &k, loss.device, x.device);
    words_get(&x), words_get(&loss);
    if (!same_bits(x.host, before.host, x.n)) return false; // only the loss was wanted
    float *alone = floats_copy(loss.host, c->T);
    k.backward = true;
    kernels_cuda(bf16)->classifier(NULL, &k, loss.device, x.device);
    words_get(&x), words_get(&loss);
    for (int64_t i = 0; i < x.n; i++)
        if (i % c->ld >= c->V && x.host[i] != pad) return false;
    return same_bits(alone, loss.host, c->T) && matches(c, bf16, &before, target, &loss, &x);
}

TEST(cuda_classifier_matches_double) {
    for (EACH_WORD(bf16))
        for (EACH_ORDER(o))
            for (int i = 0; i < CASES; i++) {
                if (cases[i].V > 1000 && (i + bf16 + (int)(o - cuda_orders)) % 3 && !test_long())
                    continue;
                cuda_begin(*o);
                CHECK_SAYS(check_whole(&cases[i], bf16), "case %d bf16 %d", i, bf16);
                CHECK(cuda_end());
            }
}

/* Parts of the columns, each with rows of its own length, as ranks hold them. */
static bool check_cut(const Case *c, bool bf16, int how) {
    int64_t width[MAX_PARTS], first = 0, T = c->T;
    const Kernels *k = kernels_cuda(bf16);
    int32_t *on_device, *target = targets_new(c, &on_device);
    int n = cut(how, c->V, width);
    Words before = logits_new(c, bf16), after = logits_new(c, bf16), part[MAX_PARTS];
    Words stats = words_empty(n * T * 3, false, 0), loss = words_empty(T, false, 0);
    Words log_sum = words_empty(T, false, 0);
    Classifier p[MAX_PARTS];
    for (int i = 0; i < n; first += width[i++]) {
        int64_t ld = (width[i] + 15) / 8 * 8 + i % 2;
        p[i] = (Classifier){.T = T, .V = width[i], .ld = ld, .targets = on_device, .scale = 1};
        p[i].first = first, p[i].backward = true;
        part[i] = words_empty(T * ld, bf16, 0);
        for (int64_t j = 0; j < T * ld; j++)
            part[i].host[j] =
                j % ld < width[i] ? before.host[j / ld * c->ld + first + j % ld] : pad;
        words_put(&part[i]);
        k->classifier_statistics(NULL, &p[i], stats.device + i * 3 * T, part[i].device);
    }
    k->classifier_merge(&p[0], loss.device, log_sum.device, stats.device, n);
    words_get(&loss);
    for (int i = 0; i < n; i++) {
        int64_t ld = p[i].ld;
        k->classifier_gradient(NULL, &p[i], stats.device + i * 3 * T, log_sum.device,
                               part[i].device);
        words_get(&part[i]);
        for (int64_t j = 0; j < T * ld; j++)
            if (j % ld < width[i])
                after.host[j / ld * c->ld + p[i].first + j % ld] = part[i].host[j];
            else if (part[i].host[j] != 0)
                return false; // padding
    }
    return matches(c, bf16, &before, target, &loss, &after);
}

TEST(cuda_classifier_of_cut_rows_is_that_of_whole_rows) {
    for (EACH_WORD(bf16))
        for (EACH_ORDER(o))
            for (int i = 1; i < 6; i++)
                for (int how = 0; how < CUTS; how++) {
                    if ((i + how + (int)(o - cuda_orders)) % 3 && !test_long()) continue;
                    cuda_begin(*o);
                    CHECK_SAYS(check_cut(&cases[i], bf16, how), "case %d cut %d bf16 %d", i, how,
                               bf16);
                    CHECK(cuda_end());
                }
}

/* Whatever the order of threads, the bits are the same; a logit of -inf has probability 0; a NaN is
 * not hidden. */
TEST(cuda_classifier_has_the_same_bits_in_any_order) {
    enum { V = 3000 };
    float first[V], first_loss = 0;
    for (EACH_ORDER(o)) {
        const Case c = {1, V, V, 0, 30};
        int32_t *target;
        cuda_begin(*o);
        targets_new(&c, &target);
        Words x = logits_new(&c, false), loss = words_empty(1, false, 0);
        x.host[1] = -INFINITY;
        words_put(&x);
        Classifier k = {.T = 1, .V = V, .ld = V, .targets = target, .scale = 1, .backward = true};
        kernels_cuda(false)->classifier(NULL, &k, loss.device, x.device);
        words_get(&x), words_get(&loss);
        if (o == cuda_orders) memcpy(first, x.host, sizeof first), first_loss = loss.host[0];
        CHECK(same_bits(first, x.host, V) && same_bits(&first_loss, loss.host, 1));
        CHECK(x.host[1] == 0);
        x.host[V - 1] = NAN;
        words_put(&x);
        kernels_cuda(false)->classifier(NULL, &k, loss.device, x.device);
        words_get(&loss);
        CHECK(isnan(loss.host[0]));
        CHECK(cuda_end());
    }
}
