/* parallel/plan/price: the price of few layers against that of all. */
#include "parallel/plan/price.h"

#include <math.h>

#include "tests/mesh_run.h"
#include "tests/parsed.h"
#include "tests/test.h"

static const char *const models[] = {
    "layers=6,heads=8,channels=256,vocab=1000,seq=128",
    "layers=12,heads=12,channels=768,vocab=50257,seq=1024",
    "llama,layers=5,heads=16,channels=1024,vocab=32000,seq=512,ffn=2816",
    "layers=24,heads=32,channels=4096,vocab=50257,seq=2048"};
static const char *const machines[] = {"cpu:8", "h100:1", "v100:2", "consumer:1", "h100:8"};

typedef struct Deep {
    int seen, n;
    bool bulk;
    double off; // sum of relative errors
} Deep;

static void check_depth(const char *spec, void *ctx) {
    Deep *c = ctx;
    int i = c->seen++;
    if (!mesh_sampled_thinly(i)) return;
    Machine m = machine_of(machines[i % 5]);
    Layout l = layout_of(spec);
    int64_t places = (int64_t)l.size[AXIS_D] * l.size[AXIS_Z];
    PriceShape s = {.config = config_of(models[i / 2 % 4]),
                    .micro = 2 + i % 3,
                    .recompute = (Recompute)(i / 3 % 3),
                    .bf16 = m.gpu,
                    .overlap = {.bulk = c->bulk},
                    .threads = m.threads};
    s.S = s.config.seq < 2048 ? s.config.seq : 512;
    s.batch = (1 + i % 4) * s.micro * places * s.S;
    s.kernels = machine_kernels(&m, s.bf16);
    if (i % 7 == 0) m.oversubscription = 3;
    Price all, few;
    price_step(&s, &l, &m, &few);
    s.whole = true;
    price_step(&s, &l, &m, &all);
    double off = fabs(few.seconds / all.seconds - 1);
    c->n++, c->off += off;
    if (off > (c->bulk ? 0.07 : 2e-4))
        test_fail(__FILE__, __LINE__, "%s on %s: %.3f ms of few layers, %.3f ms of all", spec,
                  m.name, 1e3 * few.seconds, 1e3 * all.seconds);
    if (few.received != all.received || few.calls != all.calls)
        test_fail(__FILE__, __LINE__, "%s: bytes or calls of few layers", spec);
}

/* Without overlap but for an all_reduce over vectors of all layers, whose algorithm may change with
 * its size. With overlap sums of gradients queue for links, and a further layer may wait for more
 * than the last one of the lists does. */
TEST(step_price_of_few_layers_tells_that_of_all) {
    for (int bulk = 0; bulk < 2; bulk++) {
        Deep c = {.bulk = bulk};
        for (int ranks = 1; ranks <= 8; ranks++) mesh_every_layout(ranks, check_depth, &c);
        CHECK(c.seen > 300 && c.off / c.n < (bulk ? 0.005 : 1e-5));
    }
}
