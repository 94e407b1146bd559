#include "tests/test.h"

#include <string.h>

#include "base/rng.h"
#include "base/team.h"
#include "layers/kernels.h"

TEST(rng_permute_is_a_permutation) {
    enum { N = 1000 };
    bool seen[N] = {0};
    for (uint64_t i = 0; i < N; i++) {
        uint64_t x = rng_permute(i, N, 1, 2);
        CHECK(x < N && !seen[x]);
        seen[x] = true;
    }
}

TEST(kernel_sets_are_found_by_name) {
    const char *const *names = kernels_cpu_sets();
    CHECK(names[0]);
    for (; *names; names++) CHECK(kernels_cpu(*names) != NULL);
    CHECK(kernels_cpu("no such set") == NULL);
}

static void count(void *ctx, int64_t begin, int64_t end) {
    int *hits = ctx;
    for (int64_t i = begin; i < end; i++) hits[i]++;
}

TEST(team_for_covers_every_item_once) {
    for (int threads = 1; threads <= 5; threads++) {
        Team *t = team_create(threads);
        int hits[1000] = {0};
        for (int rep = 0; rep < 50; rep++) team_for(t, 1000, 7, count, hits);
        team_destroy(t);
        for (int i = 0; i < 1000; i++) CHECK(hits[i] == 50);
    }
}
