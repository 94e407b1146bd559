/* parallel/plan/machine_file: descriptions of clusters as text, and those with a name. */
#include <unistd.h>

#include "data/io.h"
#include "tests/machine_text.h"
#include "tests/parsed.h"
#include "tests/test.h"

static const char lab[] = "# two racks\n"
                          "name = the lab   # on the table\n"
                          "nodes = 16\n"
                          "\tranks_per_node=2\r\n"
                          "threads = 4\n"
                          "flops_fp32 = 400G\n"
                          "flops_bf16 = 0.8 TFLOP/s\n"
                          "flops_half = 16\n"
                          "memory = 32GiB\n"
                          "memory_rate = 20GB/s\n"
                          "call = 2us\n"
                          "slowdown = 1.1\n"
                          "slowest = 1.05\n"
                          "algorithm = ring\n"
                          "kernels = cuda\n"
                          "level = node ranks=2 latency=800ns rank_rate=10GB/s\n"
                          "level = rack ranks=16 latency=15us rank_rate=1Gb/s port_rate=2Gb/s\n"
                          "level = trunk latency=0.02ms rank_rate=1Gb/s port_rate=10Gb/s ranks=all";

TEST(machine_file_says_what_it_says) {
    Machine m = machine_described(lab);
    CHECK_STR(m.name, "the lab");
    CHECK(m.nodes == 16 && m.ranks_per_node == 2 && m.ranks == 32 && m.threads == 4);
    CHECK(m.flops[0] == 400e9 && m.flops[1] == 800e9 && m.flops_half == 16);
    CHECK(m.memory == (int64_t)32 << 30 && m.memory_rate == 20e9 && m.call == 2e-6);
    CHECK(m.slowdown == 1.1 && m.slowest == 1.05 && m.algorithm == ALGORITHM_RING && !m.measured);
    CHECK(m.gpu && m.capability == 90);
    CHECK(machine_kernels(&m, true)->elem_bytes == 2 &&
          machine_kernels(&m, false)->elem_bytes == 4);
    CHECK(m.n_levels == 3 && m.level[0].ranks == 2 && m.level[1].ranks == 16);
    CHECK(m.level[2].ranks == 32);
    CHECK_STR(m.level[2].name, "trunk");
    CHECK(m.level[0].latency == 800e-9 && m.level[2].latency == 20e-6);
    CHECK(m.level[0].rank_rate == 10e9 && m.level[0].port_rate == 0);
    CHECK(m.level[1].rank_rate == 125e6 && m.level[1].port_rate == 250e6); // bits
}

TEST(machine_file_may_have_a_name_that_is_not_utf8) {
    static const char text[] = "name = Z\xfcrich\nnodes=3\nranks_per_node=1\nflops_fp32=1T\n"
                               "memory_rate=1G\nlevel=net ranks=all latency=0us rank_rate=1kB/s";
    Machine m = machine_described(text);
    CHECK_STR(m.name, "Z?rich"); // a plan is JSON
}

TEST(machine_file_needs_only_what_nobody_can_guess) {
    static const char text[] = "nodes=3\nranks_per_node=1\nflops_fp32=1T\nmemory_rate=1G\n"
                               "level=net ranks=all latency=0us rank_rate=1kB/s";
    Machine m = machine_described(text);
    CHECK(m.ranks == 3 && m.level[0].ranks == 3 && m.threads == 1 && m.flops[1] == 1e12);
    CHECK(m.slowdown == 1 && m.slowest == 1 && m.memory == 0 && m.algorithm == ALGORITHM_DIRECT);
    CHECK(!m.gpu && !machine_kernels(&m, true));
}

/* The description with `from` replaced by `to`, and the words that the message must have. */
TEST(machine_file_that_is_wrong_names_the_line_and_the_reason) {
    static const struct {
        const char *from, *to, *words;
    } rows[] = {
        {"memory =", "memry =", "line 9: unknown key \"memry\", did you mean \"memory\"?"},
        {"memory =", "zzzzzzzzzz =", "line 9: unknown key \"zzzzzzzzzz\""},
        {"latency=15us", "latncy=15us", "line 17: unknown key of a level \"latncy\", did you mean"},
        {"latency=15us", "", "line 17: level rack has no latency="},
        {"latency=15us", "ranks=4", "line 17: ranks is there twice"},
        {"latency=15us", "latency", "line 17: a level's \"latency\" should be like ranks=8"},
        {"latency=15us", "latency=15u", "latency = 15u: a time like 5us is needed"},
        {"rank_rate=10GB/s", "rank_rate=10G", "50GB/s (bytes) or 400Gb/s (bits) is needed"},
        {"rank_rate=10GB/s", "rank_rate=0GB/s", "line 16: rank_rate is 0"},
        {"level = node ", "level = ", "line 16: a level begins with its name"},
        {"level = node ", "level = ' ' # ", "line 16: a level begins with its name"},
        {"level = node ", "level = 456789012345678901234567 ", "has more than 23 letters"},
        {"nodes = 16", "nodes = 16.5", "line 3: nodes = 16.5: a whole number from 1"},
        {"nodes = 16", "nodes = -1", "line 3: nodes = -1: a whole number from 1"},
        {"nodes = 16", "nodes = 0", "line 3: nodes = 0: a whole number from 1"},
        {"nodes = 16", "nodes =", "line 3: nodes has no value"},
        {"nodes = 16", "@ = 16", "line 3: no option: NAME = VALUE is expected"},
        {"nodes = 16", "nodes = 1000000", "2000000 ranks, at most 1048576"},
        {"nodes = 16", "ranks = 32", "unknown key \"ranks\", did you mean \"ranks_per_node\"?"},
        {"nodes = 16", "# nodes = 16", "nodes is missing"},
        {"nodes = 16", "nodes = 16\nnodes = 16", "line 4: nodes is in line 3 already"},
        {"nodes = 16", "nodes = 20", "levels do not nest: trunk has 40 ranks, which 16 of"},
        {"ranks=16", "ranks=15", "levels do not nest: rack has 15 ranks, which 2 of"},
        {"ranks=all", "ranks=64", "the last level, trunk, has 64 ranks, all are 32"},
        {"ranks_per_node=2", "ranks_per_node=3", "node has 2 ranks, a node 3: neither"},
        {"400G", "400", "flops_fp32"}, // no mistake: see below
        {"400G", "0x4G", "flops_fp32 = 0x4G: a rate like 60T"},
        {"400G", "inf", "flops_fp32 = inf: a rate like 60T"},
        {"400G", "1e30", "flops_fp32 = 1e30: a rate like 60T"},
        {"400G", "400GB/s", "flops_fp32 = 400GB/s: a rate like 60T"},
        {"32GiB", "32GiB/s", "memory = 32GiB/s: a size like 80G"},
        {"= ring", "= rings", "line 14: algorithm is direct or ring, not \"rings\""},
        {"= cuda", "= gpu", "line 15: kernels is cpu, cuda or like sm_80, not \"gpu\""},
        {"= cuda", "= sm_8x", "line 15: kernels is cpu, cuda or like sm_80, not \"sm_8x\""},
        {"= cuda", "= sm_-8", "line 15: kernels is cpu, cuda or like sm_80, not \"sm_-8\""},
        {"cuda\nlevel",
         "cuda\nlevel = a ranks=1 latency=1s rank_rate=1B/s\nlevel = b ranks=1 latency=1s "
         "rank_rate=1B/s\nlevel",
         "line 20: more than 4 levels"},
        {"the lab", "the \001", "line 2: byte 1 is no text"},
        {"the lab", "' lab'", "the name \" lab\" has a quote, a # or a space at an end"},
        {"the lab", "'lab '", "the name \"lab \" has a quote, a # or a space at an end"},
        {"port_rate=2Gb/s", "port_rate=0Gb/s", "line 17: port_rate is 0"},
    };
    for (EACH(r, rows)) {
        Machine m;
        Err e = {""};
        OWNED(test_mem_end) char *text = test_changed(lab, r->from, r->to);
        bool ok = machine_parse(&m, text, strlen(text), &e), good = strcmp(r->to, "400") == 0;
        if (ok != good || (!ok && !strstr(e.text, r->words)))
            test_fail("\"%s\": \"%s\", not \"%s\"", r->to, ok ? "accepted" : e.text, r->words);
    }
}

TEST(machine_file_without_levels_is_refused_with_an_example_that_works) {
    static const char text[] = "nodes=3\nranks_per_node=1\nflops_fp32=1T\nmemory_rate=1G\n";
    Machine m;
    Err e;
    CHECK_REFUSED(machine_parse(&m, text, sizeof text - 1, &e), e, "no level: ");
    const char *line = test_path("%s%s", text, strchr(e.text, ':') + 1);
    CHECK(machine_parse(&m, line, strlen(line), &e));
}

/* ---- written and read again ---- */

static void check_round(const Machine *m) {
    OWNED(test_mem_end) char *text = machine_text(m);
    Machine back = machine_described(text);
    OWNED(test_mem_end) char *again = machine_text(&back); // numbers with all of their digits
    CHECK_STR(again, text);
}

TEST(machine_is_the_same_after_being_written_and_read) {
    static const char *const names[] = {"h100:128", "a100:1",     "v100:3",
                                        "h200:2",   "consumer:4", "cpu:17"};
    for (EACH(name, names)) {
        Machine m = machine_of(*name);
        check_round(&m);
        m.flops[0] /= 3, m.memory_rate /= 7, m.call /= 3, m.memory /= 3, m.level[0].latency *= 1e-5;
        m.level[0].rank_rate = 1e9 / 3, m.level[0].port_rate = 1e-3 / 7, m.slowest = 4 / 3.;
        check_round(&m); // numbers that have no short text
    }
}

/* ---- files and presets ---- */

TEST(machine_preset_is_of_so_many_nodes) {
    Machine m;
    Err e;
    CHECK(machine_open(&m, "h100:128", &e));
    CHECK(m.nodes == 128 && m.ranks_per_node == 8 && m.ranks == 1024);
    CHECK(m.level[0].ranks == 8 && m.level[m.n_levels - 1].ranks == 1024);
    CHECK(machine_open(&m, "v100:1", &e) && m.ranks == 4);
    static const char *const bad[] = {"h100",   "h100:",   "h100:0",     "h100:-1",
                                      "h100:x", "h100:8x", "h100:131073"};
    for (EACH(b, bad)) {
        CHECK_REFUSED(machine_open(&m, *b, &e), e,
                      "the number of nodes is needed, from 1 to 131072: h100:16");
    }
}

TEST(machine_neither_file_nor_preset_names_the_nearest) {
    Machine m;
    Err e;
    CHECK_REFUSED(machine_open(&m, "h10:128", &e), e,
                  "no such file (No such file or directory), and no preset");
    CHECK(strstr(e.text, "Did you mean h100:128?"));
    CHECK_REFUSED(machine_open(&m, "consumr", &e), e, "Did you mean consumer:16?");
    CHECK(!machine_open(&m, "/nowhere/x.txt", &e));
    CHECK(!strstr(e.text, "Did you mean"));
}

TEST(machine_is_read_from_a_file_that_messages_name) {
    char *path = test_path("%s/lab.txt", test_tmpdir());
    Machine m;
    Err e;
    OWNED(test_mem_end) char *twice = mem_printf("%s\nnodes = 17\n", lab);
    CHECK(io_write_file(path, lab, strlen(lab), NULL, &e) && machine_open(&m, path, &e));
    CHECK_STR(m.name, "the lab");
    CHECK(io_write_file(path, twice, strlen(twice), NULL, &e) && !machine_open(&m, path, &e));
    CHECK(strstr(e.text, "lab.txt: line 19: nodes is in line 3 already"));
    CHECK(truncate(path, 1 << 17) == 0);
    CHECK_REFUSED(machine_open(&m, path, &e), e, "lab.txt: 65536 bytes or more");
    CHECK(!machine_open(&m, test_tmpdir(), &e)); // a folder opens, but has nothing to read
    CHECK(strstr(e.text, "Is a directory"));
}
