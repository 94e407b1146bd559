/* Ranks compare what they were started with: one line names a difference and the ranks. */
#include "tests/test.h"

#include <sys/stat.h>

#include "data/io.h"
#include "parallel/comm/ranks.h"
#include "parallel/train/options.h"
#include "parallel/train/run_agree.h"

/* Values of one fact by rank (NULL: the rank lacks the fact), between two facts that all have. */
typedef struct Case {
    int size;
    const char *value[6];
    const char *line; // of every rank; NULL: they agree
} Case;

static int compare(World *w, void *ctx) {
    const Case *c = ctx;
    Group g = comm_group(world_comm(w));
    Facts f = {0};
    Err e = {{0}};
    facts_add(&f, mem_strdup("--lr"), mem_strdup("0.1"));
    if (c->value[g.rank]) facts_add(&f, mem_strdup("--seed"), mem_strdup(c->value[g.rank]));
    facts_add(&f, mem_strdup("--steps"), mem_strdup("7"));
    bool same = facts_agree(&f, &g, &e);
    if (!c->value[g.rank]) return same; // its second fact has another name than the others'
    return f.n != 0 || f.at || same != !c->line || (c->line && strcmp(e.text, c->line) != 0);
}

TEST(agree_names_what_differs_and_the_ranks) {
    static const Case cases[] = {
        {1, {"5"}, NULL},
        {4, {"5", "5", "5", "5"}, NULL},
        {4, {"5", "5", "7", "7"}, "ranks 2-3 were started with --seed 7, rank 0 with 5"},
        {5, {"7", "5", "7", "5", "5"}, "ranks 1 3-4 were started with --seed 5, rank 0 with 7"},
        {2, {"5", "7"}, "rank 1 was started with --seed 7, rank 0 with 5"},
        {5, {"5", "6", "5", "7", "7"}, "rank 1 was started with --seed 6, rank 0 with 5"},
        {6, {"1", "2", "3", "4", "5", "6"}, "rank 1 was started with --seed 2, rank 0 with 1"},
        {3, {"5", NULL, "5"}, "rank 1 was started with --seed 7, rank 0 with 5"},
    };
    for (int i = 0; i < N_OF(cases); i++) {
        Case c = cases[i];
        CHECK_SAYS(ranks_run(c.size, compare, &c) == 0, "case %d", i);
    }
}

/* Of long values the part is shown where they begin to differ. */
static int compare_long(World *w, UNUSED void *ctx) {
    Group g = comm_group(world_comm(w));
    Facts f = {0};
    Err e = {{0}};
    char value[600];
    memset(value, 'x', sizeof value);
    snprintf(value + 500, 100, "rank %d%080d", g.rank == 1, 0);
    facts_add(&f, mem_strdup("--model"), mem_strdup(value));
    bool same = facts_agree(&f, &g, &e);
    return same || !strstr(e.text, "rank 1 was started with --model xxx") ||
           !strstr(e.text, "rank 1000") || !strstr(e.text, ", rank 0 with xxx") ||
           !strstr(e.text, "rank 0000");
}

TEST(agree_shows_where_long_values_differ) {
    CHECK(ranks_run(4, compare_long, NULL) == 0);
}

TEST(agree_options_have_roles) {
    Options options;
    const Opt *table = options_table(&options);
    CHECK(options_role(opt_find(table, "seed")) == OPTION_ALIKE);
    CHECK(options_role(opt_find(table, "train")) == OPTION_INPUT);
    CHECK(options_role(opt_find(table, "threads")) == OPTION_OWN);
    for (const Opt *row = table; row->name || row->type == OPT_GROUP; row++)
        if (row->type != OPT_GROUP && options_role(row) == OPTION_INPUT)
            CHECK(row->type == OPT_STR);
}

/* A sample sees another size, and another block at any of the sampled places. */
TEST(io_samples_tell_files_apart) {
    enum { N = 1 << 20 };
    char *path = test_path("%s/file", test_tmpdir()), *pipe = test_path("%s/pipe", test_tmpdir());
    OWNED(test_mem_end) uint8_t *p = mem_calloc(N, 1);
    uint64_t n_bytes;
    uint32_t crc, other;
    Err e;
    CHECK(io_write_file(path, p, N, NULL, &e) && io_sample(path, &n_bytes, &crc, &e));
    CHECK(n_bytes == N && io_sample(path, &n_bytes, &other, &e) && other == crc);
    for (int64_t at = 0; at < N; at = at ? N : N - 1) { // its first and its last byte
        p[at] = 1;
        CHECK(io_write_file(path, p, N, NULL, &e) && io_sample(path, &n_bytes, &other, &e));
        CHECK(other != crc);
        p[at] = 0;
    }
    memset(p + N / 2, 1, N / 8);
    CHECK(io_write_file(path, p, N, NULL, &e) && io_sample(path, &n_bytes, &other, &e) &&
          other != crc);
    for (size_t n = 0; n <= 5000; n += 2500) // shorter than a block, than two
        CHECK(io_write_file(path, p, n, NULL, &e) && io_sample(path, &n_bytes, &crc, &e) &&
              n_bytes == n);
    CHECK(mkfifo(pipe, 0600) == 0 && !io_sample(pipe, &n_bytes, &crc, &e));
    CHECK_REFUSED(io_sample("nowhere", &n_bytes, &crc, &e), e, "cannot open nowhere");
}
