#include "tests/shell.h"

#include <dlfcn.h>

#include "base/arena.h"
#include "base/die.h"
#include "base/library.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "base/version.h"
#include "data/io.h"
#include "layers/cpu/sets.h"
#include "parallel/comm/ranks.h"

TEST(kernel_sets_are_found_by_name) {
    const char *const *names = kernels_cpu_sets();
    CHECK(names[0]);
    CHECK(kernels_cpu(NULL) == kernels_cpu(names[0]) &&
          kernels_cpu("auto") == kernels_cpu(names[0]));
    for (; *names; names++) CHECK(kernels_cpu(*names) != NULL);
    CHECK(kernels_cpu("portable") != NULL);
    CHECK(kernels_cpu("no such set") == NULL);
}

static bool here(void) {
    return true;
}
static bool absent(void) {
    return false;
}
static Peak rate_of_fp32(bool bf16, double gain) {
    return (Peak){bf16 ? gain * 50e9 : 50e9, 1};
}
static Peak peak_twice(UNUSED Team *t, bool bf16) {
    return rate_of_fp32(bf16, 1.9);
}
static Peak peak_same(UNUSED Team *t, bool bf16) {
    return rate_of_fp32(bf16, 1.1);
}
static Peak peak_half(UNUSED Team *t, bool bf16) {
    return rate_of_fp32(bf16, 0.49);
}

static int busy; // so many measurements are of a machine that others use
static Peak peak_twice_later(Team *t, bool bf16) {
    Peak now = peak_twice(t, bf16);
    return busy-- > 0 ? (Peak){now.core / (bf16 ? 3 : 1), 0.4} : now;
}

TEST(kernel_set_for_bf16_does_not_depend_on_who_computes_beside) {
    const Kernels twice = {.bf16_units = true, .peak = peak_twice_later}, none = {0};
    const CpuSet sets[] = {{"fast", &twice, here}, {"none", &none, here}, {0}};
    for (busy = 0; busy < 8;) {
        int first = busy;
        CHECK_STR(cpu_set_auto(sets, NULL, true), "fast");
        busy = first + 1;
    }
}

/* Rank 0 names a set, the others take what it has. */
static int take_own_set(World *w, void *out) {
    const char *const *here = kernels_cpu_sets();
    int n = 0;
    while (here[n]) n++;
    Group g = comm_group(world_comm(w));
    ((const char **)out)[g.rank] =
        kernels_cpu_of_ranks(&g, g.rank == 0 ? here[1 % n] : NULL, NULL, true);
    return 0;
}
TEST(kernel_set_of_ranks_on_one_processor_is_the_same) {
    const char *set[3], *const *here = kernels_cpu_sets();
    const char *of_rank_0 = here[here[1] ? 1 : 0];
    CHECK(ranks_run(3, take_own_set, set) == 0);
    for (int r = 0; r < 3; r++) CHECK_STR(set[r], of_rank_0);
}

TEST(kernel_sets_with_slow_bf16_units_are_not_chosen_for_bf16) {
    const Kernels twice = {.bf16_units = true, .peak = peak_twice},
                  same = {.bf16_units = true, .peak = peak_same},
                  half = {.bf16_units = true, .peak = peak_half}, none = {0};
    const CpuSet fast[] = {
        {"other", &half, absent}, {"fast", &twice, here}, {"none", &none, here}, {0}};
    const CpuSet slow[] = {{"half", &half, here},
                           {"same", &same, here},
                           {"none", &none, here},
                           {"plain", &none, here},
                           {0}};
    CHECK_STR(cpu_set_auto(fast, NULL, true), "fast");
    CHECK_STR(cpu_set_auto(slow, NULL, true), "none");
    CHECK_STR(cpu_set_auto(fast, NULL, false), "fast");
    CHECK_STR(cpu_set_auto(slow, NULL, false), "half"); // fp32 asks nobody
}

static void only_from(void *set) {
    const char *const *all = kernels_cpu_sets(), *better = strcmp(all[0], set) ? all[0] : NULL;
    setenv("TRAIN_GPT_KERNELS", set, 1);
    if (strcmp(kernels_cpu_sets()[0], set) != 0) die("the best set is %s", kernels_cpu_sets()[0]);
    if (kernels_cpu(NULL) != kernels_cpu(set)) die("another table than that of %s", (char *)set);
    if (better && kernels_cpu(better)) die("%s is still there", better);
}

TEST(kernel_sets_better_than_that_of_the_environment_are_not_there) {
    char text[256], wrong[] = "avx3";
    for (const char *const *s = kernels_cpu_sets(); *s; s++)
        CHECK(test_in_child(only_from, test_path("%s", *s), text, sizeof text) == 0);
    CHECK_CHILD(2, only_from, wrong,
                "TRAIN_GPT_KERNELS=avx3: this processor or build has no such set");
}

/* Known answers of philox4x32-10 from the Random123 distribution (kat_vectors): counter, key,
 * output. */
TEST(rng_words_are_philox) {
    static const uint32_t known[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        const uint32_t *k = known[i];
        uint32_t out[4];
        rng_words((uint64_t)k[5] << 32 | k[4], (uint64_t)k[3] << 32 | k[2],
                  (uint64_t)k[1] << 32 | k[0], out);
        CHECK(memcmp(out, k + 6, sizeof out) == 0);
    }
}

TEST(rng_uniform_is_uniform) {
    enum { N = 100000, BINS = 20 };
    double sum = 0, squares = 0, chi = 0;
    int bin[BINS] = {0};
    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(3, 4, i);
        CHECK(u >= 0 && u < 1);
        sum += u, squares += u * u, bin[(int)(u * BINS)]++;
    }
    // Standard deviations of the two means: 1/sqrt(12 N) = 9.1e-4 and sqrt(4/45 / N) = 9.4e-4; four
    // of each.
    CHECK_NEAR(sum / N, 0.5, 3.7e-3);
    CHECK_NEAR(squares / N, 1.0 / 3, 3.8e-3);
    for (int b = 0; b < BINS; b++) chi += pow(bin[b] - N / BINS, 2) / (N / BINS);
    CHECK(chi < 43.8); // 19 degrees of freedom: one seed in a thousand is worse
}

TEST(rng_normal_has_the_moments_of_a_normal) {
    enum { N = 100000 };
    OWNED(test_mem_end) float *x = mem_calloc(N, sizeof *x);
    double m[5] = {0};
    rng_normal(x, N, 0, 0.5f, 7, 8);
    for (int i = 0; i < N; i++)
        for (int k = 1; k <= 4; k++) m[k] += pow(2 * (double)x[i], k) / N;
    // Standard deviations over sqrt(N) = 316: 1, sqrt(2), sqrt(15), sqrt(96); four of each.
    CHECK_NEAR(m[1], 0, 0.0127);
    CHECK_NEAR(m[2], 1, 0.018);
    CHECK_NEAR(m[3], 0, 0.049);
    CHECK_NEAR(m[4], 3, 0.124);
}

TEST(rng_normal_is_a_function_of_the_global_index) {
    float all[37], part[37];
    rng_normal(all, 37, 1000, 1, 5, 6);
    for (int cut = 0; cut <= 37; cut++) {
        rng_normal(part, cut, 1000, 1, 5, 6);
        rng_normal(part + cut, 37 - cut, 1000 + (uint64_t)cut, 1, 5, 6);
        CHECK(memcmp(all, part, sizeof all) == 0);
    }
    rng_normal(part, 37, 1000, 1, 5, rng_stream("other"));
    CHECK(memcmp(all, part, sizeof all) != 0);
}

TEST(rng_permute_is_a_permutation) {
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 1000, 1 << 20};
    for (EACH(size, sizes)) {
        uint64_t n = *size, fixed = 0;
        OWNED(test_mem_end) bool *seen = mem_calloc(n, 1);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t x = rng_permute(i, n, 1, 2);
            if (x >= n || seen[x]) test_fail("n %d: %d again", (int)n, (int)x);
            if (x >= n || seen[x]) break;
            seen[x] = true;
            fixed += x == i;
        }
        CHECK(n < 1000 || fixed < 12); // a random permutation has one fixed point on average
    }
}

TEST(rng_permute_depends_on_the_seed) {
    int same = 0;
    for (uint64_t i = 0; i < 1000; i++)
        same += rng_permute(i, 1000, 1, 2) == rng_permute(i, 1000, 2, 2);
    CHECK(same < 12);
}

static void take_all(Arena *a, char *p[3]) {
    p[0] = arena_take(a, 1);
    p[1] = arena_take(a, 0);
    p[2] = arena_take(a, 1000);
}

TEST(arena_cuts_what_it_measured) {
    char *p[3];
    Arena a = arena_measure("test");
    take_all(&a, p);
    CHECK(!p[0] && !p[1] && !p[2]);
    size_t measured = a.used;
    arena_commit(&a);
    CHECK(a.used == 0 && a.cap == measured);
    take_all(&a, p);
    CHECK(a.used == measured);
    for (int i = 0; i < 3; i++) CHECK(p[i] && (uintptr_t)p[i] % ARENA_ALIGN == 0);
    CHECK(p[1] >= p[0] + 1 && p[2] >= p[1]);
    for (int i = 0; i < 1000; i++) CHECK(p[2][i] == 0);
    memset(p[2], 1, 1000);
    arena_free(&a);
    CHECK(!a.base && a.used == 0);
}

TEST(arena_knows_what_of_it_lies_in_memory) {
    enum { MIB = 1 << 20 }; // huge pages may come: 2 MiB each
    OWNED(arena_free) Arena a = arena_measure("test");
    arena_take(&a, 64 * MIB);
    CHECK(arena_resident(&a) == 0);
    arena_commit(&a);
    CHECK(arena_resident(&a) == 0);
    memset(a.base + 20 * MIB, 1, 10 * MIB);
    CHECK(arena_resident(&a) >= 10 * MIB && arena_resident(&a) <= 14 * MIB);
    memset(a.base, 1, a.cap);
    CHECK(arena_resident(&a) == a.cap);
}

static void take_too_much(void *arg) {
    Arena a = arena_measure("gradients");
    arena_take(&a, 100);
    arena_commit(&a);
    arena_take(&a, *(size_t *)arg);
}

TEST(arena_that_overflows_dies) {
    size_t sizes[] = {129, SIZE_MAX - 100, SIZE_MAX};
    for (EACH(size, sizes)) CHECK_CHILD(1, take_too_much, size, "arena gradients");
}

static void die_hard(UNUSED void *arg) {
    die_set_program("some/folder/prog");
    die_set_rank(3, "node7");
    die("cannot open %s: %d", "file", 42);
}

TEST(die_writes_one_line_and_ends_with_1) {
    char text[512];
    CHECK(test_in_child(die_hard, NULL, text, sizeof text) == 1);
    CHECK(strstr(text, "prog: rank 3 on node7: cannot open file: 42 (tests/test_base.c:") == text);
    CHECK(strstr(text, " die_hard)\n"));
    CHECK(strchr(text, '\n') == text + strlen(text) - 1);
}

static void die_of_another_rank(UNUSED void *arg) {
    die_set_program("prog");
    die_set_rank(3, "node7");
    die_user("rank 5 on node2: the disk is full"); // as group_agree has it
}

TEST(die_of_what_failed_on_another_rank_names_that_rank_alone) {
    char text[512];
    CHECK(test_in_child(die_of_another_rank, NULL, text, sizeof text) == 1);
    CHECK_STR(text, "prog: rank 5 on node2: the disk is full\n");
}

static void die_of_usage(UNUSED void *arg) {
    die_set_program("prog");
    die_set_rank(3, "node7");
    die_usage("--lr must be between 0 and 1");
}

TEST(die_of_a_wrong_command_line_names_no_rank) {
    char text[512];
    CHECK(test_in_child(die_of_usage, NULL, text, sizeof text) == 2);
    CHECK_STR(text, "prog: --lr must be between 0 and 1\n");
}

static void die_of_a_name(UNUSED void *arg) {
    die_set_program("prog");
    die_user("cannot open a\nb\033[2J\tc \303\274: it is not there");
}

TEST(die_of_a_name_of_two_lines_is_one_line) {
    CHECK_CHILD(1, die_of_a_name, NULL, "prog: cannot open a?b?[2J?c \303\274: it is not there\n");
}

static void hook(int status) {
    fprintf(stderr, "hook %d;", status);
    die("a hook that dies itself"); // must not call the hook again
}
static void die_with_hook(UNUSED void *arg) {
    die_set_hook(hook);
    die_usage("first");
}

TEST(die_calls_the_hook_once_after_its_line) {
    char text[512];
    int status = test_in_child(die_with_hook, NULL, text, sizeof text);
    CHECK(status == 1); // of the inner die
    const char *line = strstr(text, "first\n"), *called = strstr(text, "hook 2;");
    CHECK(line && called && line < called && !strstr(text, "hook 1;"));
}

static void die_at_length(void *arg) {
    char *word = arg;
    die_usage("%s", word);
}

TEST(die_cuts_a_long_line_but_ends_it) {
    char text[4096], word[3000];
    memset(word, 'a', sizeof word - 1);
    word[sizeof word - 1] = 0;
    CHECK(test_in_child(die_at_length, word, text, sizeof text) == 2);
    CHECK(strlen(text) > 500 && strchr(text, '\n') == text + strlen(text) - 1);
}

static void die_of_a_long_path(void *path) {
    die_user("cannot open %s: it is a folder; name a file", (char *)path);
}

static void warn_of_a_long_path(void *path) {
    warn("cannot open %s: it is a folder; name a file", (char *)path);
}

/* A path may have 4096 bytes. Its middle is left out, at the borders of characters, and the reason
 * is there. */
TEST(die_and_err_keep_the_reason_behind_a_long_path) {
    char path[4096] = "", text[4096];
    for (int i = 0; i < 1365; i++) memcpy(path + 3 * i, "\346\226\207", 4);
    Err e;
    err(&e, "cannot open %s: it is a folder", path);
    CHECK(strstr(e.text, "cannot open \346\226\207\346") == e.text &&
          strstr(e.text, "\207 ... \346") && strstr(e.text, "\207: it is a folder"));
    err_in(&e, path);
    CHECK(strstr(e.text, path) != e.text && strstr(e.text, ": it is a folder"));
    CHECK(!strncmp(e.text, path, 3 * 40));
    CHECK(test_in_child(die_of_a_long_path, path, text, sizeof text) == 1);
    CHECK(strstr(text, "cannot open \346") && strstr(text, "\207: it is a folder; name a file\n"));
    CHECK(test_in_child(warn_of_a_long_path, path, text, sizeof text) == 0);
    CHECK(strstr(text, "cannot open \346") && strstr(text, "\207: it is a folder; name a file\n"));
}

/* In no locale does a surrogate alone have bytes. */
TEST(err_of_what_cannot_be_printed_is_its_format) {
    Err e;
    err(&e, "of %ls", L"\xd800");
    CHECK_STR(e.text, "of %ls");
}

TEST(err_fills_the_text_and_yields_false) {
    Err e;
    CHECK(!err(&e, "byte %d", 7));
    CHECK_STR(e.text, "byte 7");
    CHECK(!err(NULL, "nobody listens"));
}

static void take_the_world(UNUSED void *arg) {
    mem_realloc(NULL, SIZE_MAX / 2, 16);
}

TEST(utf8_mends_what_belongs_to_no_character) {
    static const char *const pairs[][2] = {
        {"", ""},
        {"a\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80z", "a\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80z"},
        {"\xff \xe4", "? ?"},
        {"\xc0\xaf \xe0\x80\x80", "?? ???"},           // overlong
        {"\xed\xa0\x80 \xf4\x90\x80\x80", "??? ????"}, // a surrogate; beyond U+10FFFF
        {"cut \xe2\x82", "cut ??"},
        {"cut \xe2 here", "cut ? here"}};
    for (int i = 0; i < N_OF(pairs); i++) {
        char text[32];
        strcpy(text, pairs[i][0]);
        utf8_repair(text);
        CHECK_STR(text, pairs[i][1]);
    }
}

TEST(version_tells_builds_apart_by_their_files) {
    char a[16], b[16];
    char *path = test_path("%s/program", test_tmpdir());
    CHECK(!version_of(path, a));
    CHECK(io_write_file(path, "123456789", 9, NULL, NULL) && version_of(path, a));
    CHECK_STR(a, "e3069283"); // base/crc32c.h
    CHECK(io_write_file(path, "123456780", 9, NULL, NULL) && version_of(path, b));
    CHECK(strcmp(a, b) != 0);
    CHECK(version_of("/proc/self/exe", a));
    CHECK_STR(version_build(), a);
}

static void take_all_memory(UNUSED void *arg) {
    mem_alloc(SIZE_MAX / 4);
}

TEST(mem_dies_on_overflow_and_without_memory) {
    CHECK_CHILD(1, take_the_world, NULL, "out of memory: ", " x ");
    CHECK_CHILD(1, take_all_memory, NULL, "out of memory: ", "free memory or raise its limit");
}

/* A library in one folder after the other: none of them, CUDA_HOME's, a wheel's beside a bin of
 * PATH, one that was named. */
TEST(libraries_are_found_where_they_are) {
    const char *dir = test_tmpdir();
    static const char *const names[] = {"fake_function"};
    char before[4096];
    void *f, *handle[3];
    Err e;
    SHELL(0, "",
          "mkdir -p bin lib/python3.9/site-packages/nvidia/cu13/lib home/lib64 named && "
          "so=$BUILD/tests/fake_library/libfake.so.1 && "
          "cp $so lib/python3.9/site-packages/nvidia/cu13/lib/libof_a_wheel.so.1 && "
          "cp $so home/lib64/libof_home.so.1 && cp $so named/libof_home.so.1");
    handle[0] = dlopen(test_path("%s/named/libof_home.so.1", dir), RTLD_NOW);
    SKIP_IF(!handle[0], "no library can be loaded from TMPDIR: it is mounted with noexec");
    dlclose(handle[0]);
    snprintf(before, sizeof before, "%s", getenv("PATH"));
    char *path = test_path("/none:%s/bin", dir), *home = test_path("%s/home", dir),
         *named = test_path("/none:%s/named", dir);
    unsetenv("CUDA_HOME"), setenv("PATH", "/none", 1);
    // nothing is checked until the environment is what it was: the next test needs it
    bool none =
        !library_open("libof_home.so.1", names, 1, &f, &e) && strstr(e.text, "libof_home.so.1");
    none &= !library_open("libof_a_wheel.so.1", names, 1, &f, &e);
    setenv("CUDA_HOME", home, 1), setenv("PATH", path, 1);
    handle[0] = library_open("libof_home.so.1", names, 1, &f, &e);
    handle[1] = library_open("libof_a_wheel.so.1", names, 1, &f, &e);
    library_folders(named);
    handle[2] = library_open("libof_home.so.1", names, 1, &f, &e);
    library_folders("none");
    bool unwanted = library_unwanted();
    library_folders("");
    unsetenv("CUDA_HOME"), setenv("PATH", before, 1);
    CHECK(none && unwanted);
    CHECK(handle[0] && handle[1] && handle[2] && handle[2] != handle[0]);
    for (int i = 0; i < 3; i++) dlclose(handle[i]);
}
