/* Schedules of matmuls: data-parallel, split-K and Stream-K. */
#include "base/rng.h"
#include "layers/cuda/matmul_schedule.h"
#include "tests/test.h"

static int below(uint64_t i, uint64_t which, int n) {
    return (int)(rng_u64(which, 16, i) % (uint64_t)n);
}

typedef struct Case {
    int64_t M, N, K;
    MatmulTile t;
    MatmulKind kind;
    int workers, parts;
} Case;

/* The i-th of the shapes at random: of few tiles and of many waves, ragged and not. */
static Case case_at(int i) {
    static const MatmulTile tiles[] = {
        {128, 256, 64}, {128, 128, 64}, {64, 32, 16}, {256, 192, 64}};
    uint64_t u = (uint64_t)i;
    Case c = {.t = tiles[below(u, 0, 4)], .workers = 1 + below(u, 1, i % 3 ? 20 : 132)};
    c.M = 1 + below(u, 2, 12 * c.t.m), c.N = 1 + below(u, 3, 12 * c.t.n);
    c.K = 1 + below(u, 4, (i % 2 ? 80 : 12) * c.t.k);
    c.kind = (MatmulKind)(i % 3), c.parts = 1 + below(u, 5, 9);
    return c;
}
static MatmulSchedule schedule_of(const Case *c) {
    return matmul_schedule(c->M, c->N, c->K, c->t, c->workers, c->kind, c->parts);
}
static int n_cases(void) {
    return test_long() ? 30000 : 3000;
}

/* Each step of each tile is of one part, parts are numbered in the order of k, and their shares
 * follow each other. */
static void check_covers(const MatmulSchedule *s) {
    int tiles = matmul_tiles(s), n = 0, many = 0, most = 1;
    int64_t size = (int64_t)tiles * s->steps;
    OWNED(test_mem_end) int *share = mem_alloc((size_t)size * sizeof *share);
    for (int64_t i = 0; i < size; i++) share[i] = -1;
    for (int w = 0; w < s->workers; w++)
        for (MatmulPart p = matmul_begin(s, w); matmul_next(s, &p); n++) {
            int64_t first = ((int64_t)p.tile_m * s->tiles_n + p.tile_n) * s->steps;
            CHECK(p.tile_m >= 0 && p.tile_m < s->tiles_m && p.tile_n >= 0);
            CHECK(p.tile_n < s->tiles_n && 0 <= p.k_begin && p.k_begin < p.k_end);
            CHECK(p.k_end <= s->steps && p.share % s->workers == w);
            CHECK((p.part == 0) == (p.k_begin == 0));
            CHECK((p.part == p.parts - 1) == (p.k_end == s->steps));
            CHECK(p.parts == 1 || (matmul_fixes_up(s) && p.share < s->divided));
            many += p.parts > 1, most = p.parts > most ? p.parts : most;
            for (int k = p.k_begin; k < p.k_end; k++) {
                CHECK(share[first + k] == -1);
                share[first + k] = p.share;
            }
            if (p.k_begin > 0 && share[first + p.k_begin - 1] >= 0)
                CHECK(share[first + p.k_begin - 1] == p.share - 1);
            if (p.k_end < s->steps && share[first + p.k_end] >= 0)
                CHECK(share[first + p.k_end] == p.share + 1);
        }
    for (int64_t i = 0; i < size; i++) CHECK(share[i] >= 0);
    CHECK(n >= tiles && (many > 0 || n == tiles) && most == matmul_most_parts(s));
}
TEST(matmul_schedule_covers_every_step_once) {
    for (int i = 0; i < n_cases() && !test_failed(); i++) {
        Case c = case_at(i);
        MatmulSchedule s = schedule_of(&c);
        check_covers(&s);
    }
}

static int64_t steps_of(const MatmulSchedule *s, int worker) {
    int64_t n = 0;
    for (MatmulPart p = matmul_begin(s, worker); matmul_next(s, &p);) n += p.k_end - p.k_begin;
    return n;
}
/* Stream-K: of all workers that have something to do, one has at most one step more than another.
 * Whole waves and two tiles for each worker with at most two parts a tile; fewer tiles than workers
 * in as many parts as they need. */
TEST(matmul_schedule_stream_k_is_balanced_within_a_step) {
    for (int i = 2; i < n_cases(); i += 3) {
        Case c = case_at(i);
        MatmulSchedule s = schedule_of(&c);
        int tiles = matmul_tiles(&s), busy = tiles < s.workers ? matmul_shares(&s) : s.workers;
        int64_t least = INT64_MAX, most = 0;
        for (int w = 0; w < busy; w++) {
            int64_t n = steps_of(&s, w);
            if (n < least) least = n;
            if (n > most) most = n;
        }
        CHECK(c.kind == MATMUL_STREAM_K && most - least <= 1 && least >= 1);
        if (tiles < s.workers) CHECK(s.divided == tiles || least >= MATMUL_LEAST_STEPS);
        int parts = tiles > s.workers ? 2 : (s.divided + tiles - 1) / tiles + 1;
        CHECK(parts <= MATMUL_MOST_SHARES + 1);
        for (int w = 0; w < busy; w++)
            for (MatmulPart p = matmul_begin(&s, w); matmul_next(&s, &p);) CHECK(p.parts <= parts);
    }
}

/* With split-K every tile has as many parts, of lengths that differ by at most a step. */
TEST(matmul_schedule_split_k_divides_every_tile) {
    for (int i = 1; i < n_cases(); i += 3) {
        Case c = case_at(i);
        MatmulSchedule s = schedule_of(&c);
        int parts = c.parts < s.steps ? c.parts : s.steps;
        for (int w = 0; w < s.workers; w++)
            for (MatmulPart p = matmul_begin(&s, w); matmul_next(&s, &p);) {
                CHECK(c.kind == MATMUL_SPLIT_K && p.parts == parts);
                CHECK(p.k_end - p.k_begin == s.steps / parts ||
                      p.k_end - p.k_begin == s.steps / parts + 1);
            }
    }
    // as many shares as fit into 16 bits, and not one tile more
    const MatmulTile one = {1, 1, 1};
    CHECK(matmul_schedule(32767, 1, 2, one, 1, MATMUL_SPLIT_K, 2).divided == 65534);
    CHECK(matmul_schedule(32768, 1, 2, one, 1, MATMUL_SPLIT_K, 2).divided == 0);
}

/* ---- waiting */

typedef struct Worker {
    MatmulPart p;
    bool busy;
    int64_t free_at; // when the part before ended
} Worker;

/* When the flag of a share was set; -1: not yet. */
static int64_t flags_at(const MatmulPart *p, const MatmulSchedule *s, const int64_t *flag) {
    int64_t at = 0;
    if (p->k_end < s->steps) return 0; // the last part waits
    for (int i = p->share - p->part; i < p->share; i++) {
        if (flag[i] < 0) return -1;
        if (flag[i] > at) at = flag[i];
    }
    return at;
}

/* Runs workers in an order at random, `resident` at once, started in the order of their numbers;
 * returns the most that a part had to wait in steps, or -1 when all that are resident wait. */
static int64_t run(const MatmulSchedule *s, int resident, uint64_t seed) {
    OWNED(test_mem_end) Worker *worker = mem_alloc((size_t)s->workers * sizeof *worker);
    OWNED(test_mem_end) int64_t *flag = mem_alloc((size_t)matmul_shares(s) * sizeof *flag);
    int64_t waited = 0;
    int started = 0, left = 0, idle = 0;
    for (int i = 0; i < matmul_shares(s); i++) flag[i] = -1;
    for (uint64_t i = 0; (left > 0 || started < s->workers) && waited >= 0; i++) {
        for (; left < resident && started < s->workers; started++) {
            Worker *w = &worker[started];
            w->p = matmul_begin(s, started), w->free_at = 0;
            w->busy = matmul_next(s, &w->p), left += w->busy;
        }
        if (!left) continue;
        Worker *w = &worker[rng_u64(seed, 1, i) % (uint64_t)started];
        if (!w->busy) continue;
        int64_t at = flags_at(&w->p, s, flag), ends = w->free_at + w->p.k_end - w->p.k_begin;
        if (at < 0) {
            bool stuck = ++idle > 100 * s->workers;
            for (int k = 0; k < started && stuck; k++)
                stuck = !worker[k].busy || flags_at(&worker[k].p, s, flag) < 0;
            if (stuck) waited = -1;
            continue;
        }
        if (at - ends > waited) waited = at - ends;
        if (w->p.k_end < s->steps) flag[w->p.share] = ends;
        w->free_at = at > ends ? at : ends, idle = 0;
        w->busy = matmul_next(s, &w->p), left -= !w->busy;
    }
    return waited;
}

/* A part waits only for shares before its own: so all waits end, in whatever order workers run. */
TEST(matmul_schedule_waits_for_smaller_shares_and_ends) {
    for (int i = 0; i < n_cases() / 3; i++) {
        Case c = case_at(i);
        MatmulSchedule s = schedule_of(&c);
        for (int w = 0; w < s.workers; w++)
            for (MatmulPart p = matmul_begin(&s, w), before = p; matmul_next(&s, &p); before = p)
                CHECK(p.share >= before.share && p.part >= 0 && p.part <= p.share);
        CHECK(run(&s, s.workers, (uint64_t)i) >= 0);
    }
}

/* Stream-K at equal speed waits for at most the one step by which shares differ, and needs no more
 * than one resident worker. */
TEST(matmul_schedule_stream_k_hardly_waits) {
    int streamed = 0;
    for (int i = 2; i < n_cases(); i += 3) {
        Case c = case_at(i);
        MatmulSchedule s = schedule_of(&c);
        int64_t waited = run(&s, s.workers, (uint64_t)i);
        CHECK(waited >= 0 && waited <= 1);
        CHECK(run(&s, 1, (uint64_t)i) >= 0);
        streamed += matmul_fixes_up(&s);
    }
    CHECK(streamed > n_cases() / 6);
}

/* ---- tiles, groups, workspace */

TEST(matmul_schedule_walks_tiles_in_groups) {
    static const int order[3][4] = {{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 9, 10, 11}};
    MatmulSchedule s = {.tiles_m = 3, .tiles_n = 4, .steps = 1, .workers = 1, .group = 2};
    for (int tile = 0; tile < 12; tile++) {
        int m, n;
        matmul_tile_at(&s, tile, &m, &n);
        CHECK(order[m][n] == tile);
    }
    // 16 x 8 tiles of 128 x 256 are a square of 128 workers' tiles
    CHECK(matmul_group(&(MatmulTile){128, 256, 64}, 100, 132) == 16);
    CHECK(matmul_group(&(MatmulTile){128, 256, 64}, 3, 132) == 3);
    CHECK(matmul_group(&(MatmulTile){256, 128, 64}, 100, 2) == 1);
}

/* The picture of the header. */
static void print_rows(const MatmulSchedule *s, char *to) {
    for (int w = 0; w < s->workers; w++, *to++ = '\n')
        for (MatmulPart p = matmul_begin(s, w); matmul_next(s, &p); *to++ = ' ')
            for (int k = p.k_begin; k < p.k_end; k++)
                *to++ = (char)('0' + p.tile_m * s->tiles_n + p.tile_n);
    *to = 0;
}
TEST(matmul_schedule_is_that_of_the_picture) {
    static const char *const rows[] = {"0000 4444 \n1111 \n2222 \n3333 \n",
                                       "00 22 44 \n00 22 44 \n11 33 \n11 33 \n",
                                       "1 0000 \n22 111 \n333 22 \n4444 3 \n"};
    char text[128];
    for (int kind = 0; kind < 3; kind++) {
        MatmulSchedule s =
            matmul_schedule(10, 1, 16, (MatmulTile){2, 1, 4}, 4, (MatmulKind)kind, 2);
        print_rows(&s, text);
        CHECK(strcmp(text, rows[kind]) == 0);
    }
}

TEST(matmul_schedule_workspace_has_a_slot_for_each_divided_share) {
    const MatmulTile t = {128, 256, 64};
    MatmulSchedule whole = matmul_schedule(4096, 4096, 768, t, 132, MATMUL_DATA_PARALLEL, 1),
                   stream = matmul_schedule(768, 2304, 32768, t, 132, MATMUL_STREAM_K, 1),
                   split = matmul_schedule(768, 2304, 32768, t, 132, MATMUL_SPLIT_K, 2),
                   even = matmul_schedule(512, 256, 64, t, 4, MATMUL_STREAM_K, 1);
    const size_t slot = 128 * 256 * 4;
    CHECK(matmul_schedule_workspace(&whole, &t) == 0 && matmul_schedule_workspace(&even, &t) == 0);
    CHECK(matmul_schedule_workspace(&stream, &t) == 132 * (slot + 4));
    CHECK(matmul_schedule_workspace(&split, &t) == 108 * (slot + 4));
}

/* 512 shares of 4 pieces have as many flags as there are, and slots of 129 x 127 floats, with the 4
 * more bytes, fill the workspace. */
TEST(matmul_schedule_has_room_for_flags_and_slots_up_to_the_last) {
    const MatmulTile fits = {129, 127, 64}, larger = {128, 128, 64};
    const MatmulSchedule s = {1, 1, 512, 512, 1, 512, 1};
    CHECK(512 * 4 == MATMUL_FLAGS && 512 * (129 * 127 * 4 + 4) == MATMUL_WORKSPACE);
    CHECK(matmul_has_room(&s, &fits, 4));
    CHECK(!matmul_has_room(&s, &fits, 5) && !matmul_has_room(&s, &larger, 4));
}
