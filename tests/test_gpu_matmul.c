/* Predicted times of matmuls on a GPU. */
#include "parallel/plan/gpu_matmul.h"

#include "base/rng.h"
#include "tests/parsed.h"
#include "tests/test.h"

static Machine h200(void) {
    return machine_of("h200:1");
}
static Work forward(int64_t M, int64_t N, int64_t K) {
    return (Work){
        .kind = WORK_MATMUL, .flags = WORK_BF16 | WORK_BF16_STORED, .rows = M, .K = K, .N = N};
}
static Work wgrad(int64_t M, int64_t N, int64_t K) {
    return (Work){.kind = WORK_WGRAD,
                  .flags = WORK_BF16 | WORK_BF16_STORED | WORK_ADDEND,
                  .rows = K,
                  .K = M,
                  .N = N};
}

/* ---- the prediction and the schedule ---- */

/* The seconds in which the last worker ends, and the steps of the busiest: shares wait only for
 * those before them. Where epilogues are hidden all but the last are. */
static double makespan(const GpuMatmul *g, int64_t *most) {
    const MatmulCost *c = &g->cost;
    const MatmulSchedule *s = &c->schedule;
    int n = matmul_shares(s);
    double *clock = mem_calloc((size_t)s->workers, sizeof *clock), end = 0;
    OWNED(test_mem_end) double *flag = mem_calloc((size_t)n, sizeof *flag);
    OWNED(test_mem_end) MatmulPart *at = mem_calloc((size_t)s->workers, sizeof *at);
    OWNED(test_mem_end) int64_t *steps = mem_calloc((size_t)s->workers, sizeof *steps);
    for (int w = 0; w < s->workers; w++) at[w] = matmul_begin(s, w);
    double epilogue = g->worker.hidden ? 0 : c->epilogue;
    *most = 0;
    for (int share = 0; share < n; share++) {
        int w = share % s->workers;
        MatmulPart *p = &at[w];
        do {
            matmul_next(s, p);
            bool last = p->k_end == s->steps;
            steps[w] += p->k_end - p->k_begin;
            clock[w] += (p->k_end - p->k_begin) * c->step;
            for (int i = share - p->part; i < share && last; i++)
                clock[w] = fmax(clock[w], flag[i]);
            clock[w] += last ? (p->parts - 1) * c->slot + epilogue : c->slot;
            if (!last) flag[share] = clock[w];
        } while (p->end > p->begin);
        end = fmax(end, clock[w]);
        if (steps[w] > *most) *most = steps[w];
    }
    mem_free(clock);
    return g->worker.hidden ? end + c->epilogue : end;
}

/* Steps are those of the busiest worker of the very schedule. The time is that of a run of it, give
 * or take what workers with one tile more, or one slot, have more. With split-K in several rounds
 * workers wait for each other: then about. */
static void check_time(const Machine *m, const GpuMatmul *g) {
    int64_t most;
    const MatmulCost *c = &g->cost;
    const MatmulSchedule *s = &c->schedule;
    if (g->worker.hidden && c->epilogue > s->steps * c->step) return; // which then is not hidden
    double run = makespan(g, &most), predicted = g->seconds - 2e-6;
    bool split = g->config.kind == MATMUL_SPLIT_K, rounds = split && matmul_shares(s) > s->workers;
    CHECK(split ? c->steps >= most : c->steps == most);
    if (g->seconds == g->memory) return;
    double slack = c->epilogue + 4 * c->slot + c->step;
    bool low = rounds ? run > 1.25 * predicted : run > predicted + c->step;
    bool high = rounds ? run < 0.6 * predicted : run < predicted - slack;
    if (low || high)
        test_fail("kind %d, %d workers, %d tiles: %g us, run %g us", g->config.kind, m->sms,
                  matmul_tiles(s), 1e6 * predicted, 1e6 * run);
}

TEST(gpu_matmul_is_the_time_of_its_schedule) {
    static const char *const presets[] = {"h200:1", "a100:1", "consumer:1"};
    int parts = 0;
    for (uint64_t i = 0; i < 1200; i++) {
        int64_t size[3];
        Machine m = machine_of(presets[i / 7 % 3]);
        for (uint64_t k = 0; k < 3; k++)
            size[k] = (int64_t)exp(log(16) + (log(40000) - log(16)) * rng_uniform(3, k, i));
        if (i % 5 == 0) m.sms = 1 + (int)(rng_u64(4, 0, i) % 160);
        Work w = i % 2 ? forward(size[0], size[1], size[2]) : wgrad(size[0], size[1], size[2]);
        GpuMatmul g = gpu_matmul_of_kind(&m, &w, (MatmulKind)(i % 3));
        if (g.seconds == 0) continue; // K is one step: no split
        check_time(&m, &g);
        parts += matmul_fixes_up(&g.cost.schedule);
    }
    CHECK(parts > 400);
}

/* So many whole waves of whole tiles in whole steps. */
static bool in_full_waves(const Machine *m, const Work *w, const GpuMatmul *g, int waves) {
    const MatmulTile *t = &g->worker.tile;
    double steps = 2.0 * t->m * t->n * t->k * (double)g->cost.steps * m->sms / g->worker.sms;
    return g->config.kind == MATMUL_DATA_PARALLEL && g->cost.epilogues == waves &&
           steps == work_flops(w);
}

TEST(gpu_matmul_of_full_waves_runs_at_the_rate_of_large_matmuls) {
    Machine m = h200();
    Work even = forward(128 * 132 * 16, 256, 1 << 16), more = even;
    more.rows += 1;
    GpuMatmul g = gpu_matmul(&m, &even);
    CHECK(in_full_waves(&m, &even, &g, 16));
    CHECK_NEAR(work_flops(&even) / g.seconds / m.flops[1], 1, 0.01);
    // one row more is a wave more, unless it is streamed
    GpuMatmul wave = gpu_matmul_of_kind(&m, &more, MATMUL_DATA_PARALLEL);
    CHECK(gpu_matmul(&m, &more).config.kind == MATMUL_STREAM_K);
    CHECK(wave.seconds / g.seconds > 1.05 && gpu_matmul(&m, &more).seconds / g.seconds < 1.01);
}

/* The tiles of a device are those of the kernel for its tensor cores: two blocks of 128 x 128 share
 * a multiprocessor of an A100, one fits into that of a GeForce, and none of 128 x 256. */
TEST(gpu_matmul_has_the_tiles_of_the_capability) {
    Machine a100 = machine_of("a100:1"), small = machine_of("consumer:1"),
            hopper = machine_of("a100:1");
    hopper.capability = 90;
    Work even = forward(128 * 108 * 16, 512, 1 << 14), few = forward(700, 2304, 32768);
    for (int kind = MATMUL_DATA_PARALLEL; kind <= MATMUL_STREAM_K; kind++) {
        GpuMatmul g = gpu_matmul_of_kind(&a100, &few, (MatmulKind)kind);
        MatmulWorker *x = &g.worker;
        CHECK(x->tile.m == 128 && x->tile.k == 32 && g.config.blocks == 1);
        CHECK(x->tile.n == 256 * x->sms && (x->tile.n == 256 || x->hidden));
        g = gpu_matmul_of_kind(&small, &few, (MatmulKind)kind);
        CHECK(x->tile.n == 128 && x->tile.k == 32 && x->sms == 1 && !x->hidden);
        g = gpu_matmul_of_kind(&hopper, &few, (MatmulKind)kind);
        CHECK(x->tile.k == 64 && x->sms == g.config.blocks);
    }
    GpuMatmul g = gpu_matmul(&a100, &even);
    CHECK(in_full_waves(&a100, &even, &g, 32));
    CHECK_NEAR(work_flops(&even) / g.seconds / a100.flops[1], 1, 0.01);
    // the search's memory of prices tells them apart
    CHECK(gpu_matmul_seconds(&a100, &even) == g.seconds);
    CHECK(gpu_matmul_seconds(&hopper, &even) == gpu_matmul(&hopper, &even).seconds);
    CHECK(gpu_matmul_seconds(&hopper, &even) != g.seconds);
}

/* Gradients of weights are few tiles with long sums. */
TEST(gpu_matmul_streams_gradients_of_weights) {
    Machine m = h200();
    Work qkv = wgrad(768, 2304, 32768), proj = wgrad(768, 768, 32768);
    const Work *each[] = {&qkv, &proj};
    for (EACH(e, each)) {
        GpuMatmul best = gpu_matmul(&m, *e),
                  tiles = gpu_matmul_of_kind(&m, *e, MATMUL_DATA_PARALLEL);
        CHECK(best.config.kind == MATMUL_STREAM_K && tiles.seconds > 1.2 * best.seconds);
    }
}

/* Nothing gets faster by being larger. */
TEST(gpu_matmul_grows_with_each_size) {
    Machine m = h200();
    for (uint64_t i = 0; i < 300; i++) {
        int64_t size[3];
        for (uint64_t k = 0; k < 3; k++) size[k] = 1 + (int64_t)(rng_u64(5, k, i) % 6000);
        Work small = forward(size[0], size[1], size[2]);
        for (int k = 0; k < 3; k++) {
            Work large = small;
            *(k == 0 ? &large.rows : k == 1 ? &large.K : &large.N) += 1 + (int64_t)(i % 700);
            CHECK(gpu_matmul(&m, &large).seconds >= gpu_matmul(&m, &small).seconds * (1 - 1e-12));
        }
    }
}

/* The planner's price; as the search asks for it, again and again, of machines in turns. */
TEST(gpu_matmul_is_priced_by_its_waves) {
    Machine m[6] = {h200(), h200(), h200(), h200(), h200(), h200()};
    m[1].flops[1] /= 2, m[2].flops[0] /= 64, m[3].memory_rate /= 8, m[4].sms /= 2;
    m[5].capability = 80;
    for (int i = 0; i < 6000; i++) {
        const Machine *on = &m[i % 2 ? 0 : 1 + i / 2 % 5]; // unlike the one before in one number
        Work w = wgrad(1 + i / 10 % 7 * 800, 2304, 1 + i / 10 % 150 * 250);
        if (i % 5 == 0) w = forward(w.K, w.N, w.rows), w.flags |= WORK_EPI_ACT, w.act = ACT_GELU;
        CHECK(machine_work(on, &w) == gpu_matmul(on, &w).seconds + on->call);
    }
    Work bf16 = forward(768, 768, 768), fp32 = bf16, none = forward(768, 768, 0),
         norm = {.kind = WORK_NORM};
    Work heads = {.kind = WORK_ATTENTION, .flags = WORK_BF16, .rows = 8, .S = 64, .H = 8, .D = 64};
    Machine cpu = machine_of("cpu:1");
    CHECK(!gpu_matmul_is(m, &heads) && gpu_matmul_is(m, &bf16) && !gpu_matmul_is(&cpu, &bf16));
    fp32.flags = 0;
    CHECK(!gpu_matmul_is(m, &fp32) && !gpu_matmul_is(m, &none) && !gpu_matmul_is(m, &norm));
    CHECK(machine_work(m, &none) > 0);
    // more steps than a schedule counts: by FLOPs
    Work most = forward(1 << 23, 1 << 23, 1 << 23), more = most;
    more.rows *= 2;
    CHECK(!gpu_matmul_is(m, &most) && machine_work(m, &most) > work_flops(&most) / m->flops[1]);
    CHECK(machine_work(m, &more) > 1.9 * machine_work(m, &most));
}
