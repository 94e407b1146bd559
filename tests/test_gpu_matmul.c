/* Predicted times of matmuls on a GPU. */
#include "parallel/plan/gpu_matmul.h"

#include "base/mem.h"
#include "base/rng.h"
#include "tests/parsed.h"
#include "tests/test.h"

static Machine h200(void) {
    return machine_of("h200:1");
}
static Work forward(int64_t M, int64_t N, int64_t K) {
    return (Work){
        .kind = WORK_MATMUL, .flags = WORK_BF16 | WORK_BF16_STORED, .rows = M, .a = K, .b = N};
}
static Work wgrad(int64_t M, int64_t N, int64_t K) {
    return (Work){.kind = WORK_WGRAD,
                  .flags = WORK_BF16 | WORK_BF16_STORED | WORK_ADDEND,
                  .rows = K,
                  .a = M,
                  .b = N};
}

/* ---- the prediction and the schedule ---- */

/* The seconds in which the last worker ends, and the steps of the busiest: shares wait only for
 * those before them. Where epilogues are hidden all but the last are. */
static double makespan(const MatmulSchedule *s, const GpuMatmul *g, int64_t *most) {
    int n = matmul_shares(s);
    double *clock = mem_calloc((size_t)s->workers, sizeof *clock), end = 0;
    OWNED(test_mem_end) double *flag = mem_calloc((size_t)n, sizeof *flag);
    OWNED(test_mem_end) MatmulPart *at = mem_calloc((size_t)s->workers, sizeof *at);
    OWNED(test_mem_end) int64_t *steps = mem_calloc((size_t)s->workers, sizeof *steps);
    for (int w = 0; w < s->workers; w++) at[w] = matmul_begin(s, w);
    double epilogue = g->hidden ? 0 : g->epilogue;
    *most = 0;
    for (int share = 0; share < n; share++) {
        int w = share % s->workers;
        MatmulPart *p = &at[w];
        do {
            matmul_next(s, p);
            bool last = p->k_end == s->steps;
            steps[w] += p->k_end - p->k_begin;
            clock[w] += (p->k_end - p->k_begin) * g->step;
            for (int i = share - p->part; i < share && last; i++)
                clock[w] = fmax(clock[w], flag[i]);
            clock[w] += last ? (p->parts - 1) * g->slot + epilogue : g->slot;
            if (!last) flag[share] = clock[w];
        } while (p->end > p->begin);
        end = fmax(end, clock[w]);
        if (steps[w] > *most) *most = steps[w];
    }
    mem_free(clock);
    return g->hidden ? end + g->epilogue : end;
}

/* Steps are those of the busiest worker of the very schedule. The time is that of a run of it, give
 * or take what workers with one tile more, or one slot, have more. With split-K in several rounds
 * workers wait for each other: then about. */
static void check_time(const Machine *m, const Work *w, const GpuMatmul *g) {
    int64_t most;
    MatmulSchedule s = gpu_matmul_schedule(m, w, g);
    if (g->hidden && g->epilogue > s.steps * g->step) return; // which then is not hidden
    double run = makespan(&s, g, &most), predicted = g->seconds - 2e-6;
    double flops = 2.0 * g->tile.m * g->tile.n * g->tile.k * m->sms * g->sharing;
    double steps = work_flops(w) / g->busy / flops;
    bool split = g->kind == MATMUL_SPLIT_K, rounds = split && matmul_shares(&s) > s.workers;
    CHECK(matmul_tiles(&s) * g->blocks == g->tiles);
    if (!split) CHECK_NEAR(steps / (double)most, 1, 1e-9);
    CHECK(steps > (double)most * (1 - 1e-9));
    if (g->seconds == g->memory) return;
    double slack = g->epilogue + 4 * g->slot + g->step;
    bool low = rounds ? run > 1.25 * predicted : run > predicted + g->step;
    bool high = rounds ? run < 0.6 * predicted : run < predicted - slack;
    if (low || high)
        test_fail(__FILE__, __LINE__, "kind %d, %d workers, %lld tiles: %g us, run %g us", g->kind,
                  m->sms, (long long)g->tiles, 1e6 * predicted, 1e6 * run);
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
        check_time(&m, &w, &g);
        MatmulSchedule s = gpu_matmul_schedule(&m, &w, &g);
        parts += matmul_fixes_up(&s);
    }
    CHECK(parts > 400);
}

TEST(gpu_matmul_of_full_waves_runs_at_the_rate_of_large_matmuls) {
    Machine m = h200();
    Work even = forward(128 * 132 * 16, 256, 1 << 16), more = even;
    more.rows += 1;
    GpuMatmul g = gpu_matmul(&m, &even);
    CHECK(g.kind == MATMUL_DATA_PARALLEL && g.busy == 1 && g.waves == 16);
    CHECK_NEAR(work_flops(&even) / g.seconds / m.flops[1], 1, 0.01);
    // one row more is a wave more, unless it is streamed
    GpuMatmul wave = gpu_matmul_of_kind(&m, &more, MATMUL_DATA_PARALLEL);
    CHECK(gpu_matmul(&m, &more).kind == MATMUL_STREAM_K);
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
        CHECK(g.tile.m == 128 && g.tile.k == 32 && g.blocks == 1);
        CHECK(g.tile.n * g.sharing == 256 && (g.tile.n == 256 || g.hidden));
        g = gpu_matmul_of_kind(&small, &few, (MatmulKind)kind);
        CHECK(g.tile.n == 128 && g.tile.k == 32 && g.sharing == 1 && !g.hidden);
        g = gpu_matmul_of_kind(&hopper, &few, (MatmulKind)kind);
        CHECK(g.tile.k == 64 && g.sharing == 1);
    }
    GpuMatmul g = gpu_matmul(&a100, &even);
    CHECK(g.kind == MATMUL_DATA_PARALLEL && g.busy == 1 && g.waves == 32);
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
    for (int i = 0; i < 2; i++) {
        GpuMatmul best = gpu_matmul(&m, each[i]),
                  tiles = gpu_matmul_of_kind(&m, each[i], MATMUL_DATA_PARALLEL);
        CHECK(best.kind == MATMUL_STREAM_K && tiles.seconds > 1.2 * best.seconds);
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
            *(k == 0 ? &large.rows : k == 1 ? &large.a : &large.b) += 1 + (int64_t)(i % 700);
            CHECK(gpu_matmul(&m, &large).seconds >= gpu_matmul(&m, &small).seconds * (1 - 1e-12));
        }
    }
}

/* The planner's price; as the search asks for it, again and again, of machines in turns. */
TEST(gpu_matmul_is_priced_by_its_waves) {
    Machine m[2] = {h200(), h200()};
    m[1].flops[1] /= 2;
    for (int i = 0; i < 4000; i++) {
        const Machine *on = &m[i % 2];
        Work w = wgrad(1 + i / 2 % 7 * 800, 2304, 1 + i / 2 % 150 * 250);
        CHECK(machine_work(on, &w) == gpu_matmul(on, &w).seconds + on->call);
    }
    Work fp32 = forward(768, 768, 768), none = forward(768, 768, 0), norm = {.kind = WORK_NORM};
    fp32.flags = 0;
    CHECK(!gpu_matmul_is(m, &fp32) && !gpu_matmul_is(m, &none) && !gpu_matmul_is(m, &norm));
    CHECK(machine_work(m, &none) > 0);
    // more steps than a schedule counts: by FLOPs
    Work most = forward(1 << 23, 1 << 23, 1 << 23), more = most;
    more.rows *= 2;
    CHECK(!gpu_matmul_is(m, &most) && machine_work(m, &most) > work_flops(&most) / m->flops[1]);
    CHECK(machine_work(m, &more) > 1.9 * machine_work(m, &most));
}
