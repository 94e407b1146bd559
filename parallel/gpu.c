#include "parallel/gpu.h"

#include <string.h>

#include "base/arena.h"
#include "base/rng.h"
#include "parallel/coll_backend.h"

/* Dense bf16 TFLOP/s of data sheets. The first row whose words are all in the name counts: longer names stand first. */
static const struct {
    const char *word[2];
    double tflops;
} known[] = {
    {{"GB200"}, 2500},   {{"B200"}, 2250},        {{"B100"}, 1750},        {{"GH200"}, 989},
    {{"H200 NVL"}, 835}, {{"H200"}, 989},         {{"H100", "PCIe"}, 756}, {{"H100 NVL"}, 835},
    {{"H100"}, 989},     {{"H800", "PCIe"}, 756}, {{"H800"}, 989},         {{"H20"}, 148},
    {{"A100"}, 312},     {{"A800"}, 312},         {{"L40S"}, 362},         {{"A30"}, 165},
};

static bool named(const char *name, const char *word) {
    return !word || strstr(name, word);
}

/* FLOPs that a multiprocessor does in a cycle; 0: not known. Tensor units of GeForce cards sum bf16 in fp32 at half the rate of
 * those that are sold for servers and workstations. */
static double per_cycle(const GpuFacts *g, bool bf16) {
    bool geforce = strstr(g->name, "GeForce") != NULL;
    switch (g->major * 10 + g->minor) {
    case 80:
        return bf16 ? 2048 : 128;
    case 86:
    case 89:
    case 120:
        return bf16 ? geforce ? 512 : 1024 : 256;
    case 90:
        return bf16 ? 4096 : 256;
    case 100:
        return bf16 ? 8192 : 256;
    }
    return 0;
}

double gpu_peak(const GpuFacts *g, bool bf16, const char **how) {
    *how = "by name";
    for (size_t i = 0; bf16 && i < sizeof known / sizeof *known; i++)
        if (named(g->name, known[i].word[0]) && named(g->name, known[i].word[1]))
            return 1e12 * known[i].tflops;
    *how = "by clock";
    return per_cycle(g, bf16) * g->sms * 1e6 * g->mhz;
}

/* ---- measured */

typedef struct Trial {
    Act *x, *w;
    Product p;
} Trial;

static void cut(Trial *t, Arena *a, const Kernels *k, int64_t n, bool bf16) {
    size_t matrix = (size_t)(n * n) * k->word;
    t->x = arena_take(a, matrix), t->w = arena_take(a, matrix);
    t->p = product_xw(n, n, n, t->x, n, t->w);
    t->p.y = arena_take(a, matrix), t->p.bf16 = bf16;
    t->p.workspace = arena_take(a, k->product_workspace(1));
}

/* Numbers between 1/2 and 1 of either sign, as zeros would be quicker than what training multiplies. Each half of a
 * word is a number in bf16, so that words of both sizes are numbers. */
static void fill(const Kernels *k, Act *x, int64_t n) {
    enum { SOME = 4096 };
    uint16_t some[SOME];
    for (int i = 0; i < SOME; i++)
        some[i] = (uint16_t)(rng_u64(1, 0, (uint64_t)i) & 0x807f) | 0x3f00;
    int64_t filled = (int64_t)(sizeof some / k->word);
    k->memory->put(x, some, sizeof some);
    for (int64_t more; filled < n; filled += more) {
        more = filled < n - filled ? filled : n - filled;
        k->copy(NULL, act_at(x, filled, k->word), more, x, more, 1, more, k->word);
    }
}

static double seconds_of(const Kernels *k, const Product *p) {
    k->memory->wait();
    double begin = coll_now();
    k->product(NULL, p);
    k->memory->wait();
    return coll_now() - begin;
}

/* The least time of a product of n x n matrices. */
static double least_of(const Kernels *k, int64_t n, bool bf16) {
    enum { TIMES = 4 }; // the first one makes the plan
    Trial t;
    Arena a = arena_measure("products");
    a.memory = k->memory;
    cut(&t, &a, k, n, bf16);
    arena_commit(&a);
    cut(&t, &a, k, n, bf16);
    fill(k, t.x, n * n), fill(k, t.w, n * n);
    double least = seconds_of(k, &t.p);
    for (int i = 1; i < TIMES; i++) {
        double s = seconds_of(k, &t.p);
        if (s < least) least = s;
    }
    arena_free(&a);
    return least;
}

double gpu_measure(const Kernels *k, bool bf16) {
    enum { LEAST = 256, MOST = 8192 };
    const double enough = 5e-3; // seconds of a product: what launches take no longer counts
    double best = 0, least = 0;
    for (int64_t n = LEAST; n <= MOST && least < enough; n *= 2) {
        least = least_of(k, n, bf16);
        double rate = 2.0 * (double)n * (double)n * (double)n / least;
        if (rate > best) best = rate;
    }
    return best;
}
