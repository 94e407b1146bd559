/* What GPUs could do at best. */
#include "base/clock.h"
#include "layers/cuda/matmuls.h"
#include "parallel/plan/detect.h"
#include "tests/cuda_test.h"
#include "tests/parsed.h"

#define GPU(name_, major_, minor_, sms_, mhz_)                                                     \
    { .name = name_, .major = major_, .minor = minor_, .sms = sms_, .mhz = mhz_ }

/* Data sheets, dense, sums in fp32. Names are those of the driver. */
TEST(gpu_peak_is_that_of_the_data_sheet) {
    static const struct {
        DeviceFacts gpu;
        double bf16, fp32; // TFLOP/s
        const char *how;   // bf16
    } cases[] = {{GPU("NVIDIA H100 80GB HBM3", 9, 0, 132, 1980), 989, 66.9, "by name"},
                 {GPU("NVIDIA H100 PCIe", 9, 0, 114, 1755), 756, 51.2, "by name"},
                 {GPU("NVIDIA H100 NVL", 9, 0, 132, 1785), 835, 60, "by name"},
                 {GPU("NVIDIA H200", 9, 0, 132, 1980), 989, 66.9, "by name"},
                 {GPU("NVIDIA GH200 480GB", 9, 0, 132, 1980), 989, 66.9, "by name"},
                 {GPU("NVIDIA H20", 9, 0, 78, 1980), 148, 39.5, "by name"},
                 {GPU("NVIDIA B200", 10, 0, 148, 1965), 2250, 74.4, "by name"},
                 {GPU("NVIDIA GB200", 10, 0, 152, 2062), 2500, 80, "by name"},
                 {GPU("NVIDIA A100-SXM4-80GB", 8, 0, 108, 1410), 312, 19.5, "by name"},
                 {GPU("NVIDIA A800 80GB PCIe", 8, 0, 108, 1410), 312, 19.5, "by name"},
                 {GPU("NVIDIA A30", 8, 0, 56, 1440), 165, 10.3, "by name"},
                 {GPU("NVIDIA H200 NVL", 9, 0, 132, 1785), 835, 60.3, "by name"},
                 {GPU("NVIDIA H800", 9, 0, 132, 1980), 989, 66.9, "by name"},
                 {GPU("NVIDIA H800 PCIe", 9, 0, 114, 1755), 756, 51.2, "by name"},
                 {GPU("NVIDIA GB300", 10, 3, 152, 2062), 2500, 80, "by name"},
                 {GPU("NVIDIA B300 SXM6 AC", 10, 3, 148, 2032), 2250, 77, "by name"},
                 {GPU("NVIDIA L40S", 8, 9, 142, 2520), 362, 91.6, "by name"},
                 {GPU("NVIDIA L40", 8, 9, 142, 2490), 181, 90.5, "by name"},
                 {GPU("NVIDIA L4", 8, 9, 58, 2040), 121, 30.3, "by clock"},
                 {GPU("NVIDIA A10G", 8, 6, 80, 1710), 70, 35, "by name"},
                 {GPU("NVIDIA RTX A3000 Laptop GPU", 8, 6, 32, 1560), 51.1, 12.8, "by clock"},
                 {GPU("NVIDIA RTX A6000", 8, 6, 84, 1800), 154.8, 38.7, "by clock"},
                 {GPU("NVIDIA RTX 6000 Ada Generation", 8, 9, 142, 2505), 364, 91.1, "by clock"},
                 {GPU("NVIDIA RTX PRO 6000 Blackwell Server Edition", 12, 0, 188, 2617), 503.8,
                  125.9, "by clock"},
                 {GPU("NVIDIA A10", 8, 6, 72, 1695), 125, 31.2, "by clock"},
                 {GPU("NVIDIA GeForce RTX 3090", 8, 6, 82, 1695), 71, 35.6, "by clock"},
                 {GPU("NVIDIA GeForce RTX 4090", 8, 9, 128, 2520), 165.2, 82.6, "by clock"},
                 {GPU("NVIDIA GeForce RTX 5090", 12, 0, 170, 2407), 209.5, 104.8, "by clock"}};
    for (EACH(c, cases)) {
        const char *how, *fp32_how;
        double bf16 = gpu_peak(&c->gpu, true, &how), fp32 = gpu_peak(&c->gpu, false, &fp32_how);
        CHECK_NEAR(bf16 / 1e12 / c->bf16, 1, 5e-3); // sheets round
        CHECK_NEAR(fp32 / 1e12 / c->fp32, 1, 1e-2);
        CHECK_STR(how, c->how);
        CHECK_STR(fp32_how, "by clock");
    }
    DeviceFacts newer = GPU("NVIDIA X900", 15, 0, 200, 3000),
                silent = GPU("NVIDIA L4", 8, 9, 58, 0);
    const char *how;
    CHECK(gpu_peak(&newer, true, &how) == 0 && gpu_peak(&silent, true, &how) == 0);
}

TEST(gpu_sheet_is_of_the_whole_name) {
    static const struct {
        const char *name;
        double memory, nvlink; // TB/s, GB/s
    } cases[] = {{"NVIDIA H100 80GB HBM3", 3.35, 450},
                 {"NVIDIA H100 PCIe", 2, 0},
                 {"NVIDIA H100 NVL", 3.9, 300},
                 {"NVIDIA H200", 4.8, 450},
                 {"NVIDIA H20", 4, 450},
                 {"NVIDIA B200", 8, 900},
                 {"NVIDIA GH200 144G HBM3e", 4.9, 450},
                 {"NVIDIA A100-SXM4-40GB", 1.555, 300},
                 {"NVIDIA A100-SXM4-80GB", 2.04, 300},
                 {"NVIDIA A100 80GB PCIe", 1.94, 0},
                 {"NVIDIA A30", 0.933, 0},
                 {"NVIDIA L40S", 0.864, 0},
                 {"NVIDIA GeForce RTX 4090", 1.01, 0},
                 {"NVIDIA GeForce RTX 5090", 1.79, 0}};
    for (EACH(c, cases)) {
        const GpuSheet *s = gpu_sheet(c->name);
        CHECK(s && s->memory == c->memory && s->nvlink == c->nvlink);
    }
    CHECK(!gpu_sheet("NVIDIA RTX A3000 Laptop GPU") && !gpu_sheet("NVIDIA X900"));
}

static int64_t matmuls(void) {
    MatmulCounts c = matmul_counts();
    return c.fused + c.bare + c.sm90 + c.sm80 + c.tiled + c.plain;
}

TEST(gpu_of_an_unknown_kind_is_measured_by_matmuls) {
    for (EACH_DTYPE(bf16)) {
        cuda_begin(cuda_orders[0]);
        int64_t before = matmuls();
        double begin = now_s(), rate = gpu_measure(kernels_cuda(bf16), bf16);
        // the first four matmuls are of 256, and the fastest takes at most a quarter of their time
        double least = (now_s() - begin) / 4;
        int64_t made = matmuls() - before;
        CHECK(cuda_end());
        CHECK(rate >= 2 * pow(256, 3) / least && rate < 1e12); // one core computes for it
        CHECK(made >= 4);
    }
}

/* Ranks on nodes of as many each. */
static Detected ranks_of(RankFacts *rank, NodeFacts *node, int nodes, int per_node) {
    Detected d = {.n_ranks = nodes * per_node, .n_nodes = nodes, .rank = rank, .node = node};
    for (int r = 0; r < d.n_ranks; r++) rank[r] = (RankFacts){.node = r / per_node, .threads = 3};
    return d;
}

TEST(gpu_machine_is_its_preset_with_its_own_peak_memory_and_links) {
    RankFacts rank[16];
    NodeFacts node[2] = {{.name = "a"}, {.name = "b"}};
    Machine m, h100 = machine_of("h100:2"), a100 = machine_of("a100:1");
    Detected d = ranks_of(rank, node, 2, 8);
    Gpus b200 = {.facts = GPU("NVIDIA B200", 10, 0, 148, 1965), .memory = 180e9, .sharing = 1};
    detect_gpu_machine(&d, &b200, &m);
    CHECK_STR(m.name, "16 x NVIDIA B200");
    CHECK_NEAR(m.flops[1] / (h100.flops[1] * 2250 / 989), 1, 1e-12);
    CHECK(m.ranks == 16 && m.ranks_per_node == 8 && m.memory == 180000000000 && m.n_levels == 2);
    CHECK_STR(m.level[0].name, "NVLink");
    CHECK(m.sms == 148 && m.level[0].ranks == 8 &&
          m.level[0].rank_rate == 2 * h100.level[0].rank_rate);
    CHECK_NEAR(m.memory_rate / (h100.memory_rate * 8 / 3.35), 1, 1e-12);
    CHECK(m.level[1].ranks == 16 && m.level[1].port_rate == h100.level[1].port_rate);
    // of an unknown kind what was measured
    Gpus newer = {
        .facts = GPU("NVIDIA X900", 15, 0, 200, 3000), .sharing = 2, .measured = {1e13, 4e14}};
    detect_gpu_machine(&d, &newer, &m);
    CHECK(m.flops[0] == 5e12 && m.flops[1] == 2e14 && m.gpu);
    // four ranks of one node on two cards without links: each pair shares one
    d = ranks_of(rank, node, 1, 4);
    Gpus a = {.facts = GPU("NVIDIA A100 80GB PCIe", 8, 0, 108, 1410), .memory = 80e9, .sharing = 2};
    detect_gpu_machine(&d, &a, &m);
    CHECK_STR(m.name, "2 x NVIDIA A100 80GB PCIe");
    CHECK(m.flops[1] == a100.flops[1] / 2 && m.memory == 40000000000 && m.n_levels == 2);
    CHECK_STR(m.level[0].name, "device");
    CHECK_STR(m.level[1].name, "PCIe");
    CHECK(m.level[0].ranks == 2 && m.level[1].ranks == 4 && m.level[1].rank_rate < 25e9);
    // one rank
    d = ranks_of(rank, node, 1, 1);
    a.sharing = 1;
    detect_gpu_machine(&d, &a, &m);
    CHECK(m.n_levels == 1 && m.level[0].ranks == 1 && m.ranks == 1);
}

TEST(gpu_machine_has_the_adapters_of_its_preset) {
    RankFacts rank[16];
    NodeFacts node[2] = {{.name = "a"}, {.name = "b"}};
    Machine m, consumer = machine_of("consumer:2"), h100 = machine_of("h100:2");
    Gpus rtx = {.facts = GPU("NVIDIA GeForce RTX 4090", 8, 9, 128, 2520), .memory = 24e9},
         h = {.facts = GPU("NVIDIA H100 80GB HBM3", 9, 0, 132, 1980), .memory = 80e9};
    for (int ranks = 1; ranks <= 8; ranks *= 2)
        for (int sharing = 1; sharing <= ranks; sharing *= 2) {
            Detected d = ranks_of(rank, node, 2, ranks);
            rtx.sharing = h.sharing = sharing;
            detect_gpu_machine(&d, &rtx, &m); // one a node
            CHECK(m.level[m.n_levels - 1].port_rate == consumer.level[1].port_rate);
            detect_gpu_machine(&d, &h, &m); // one for each device
            CHECK(m.level[m.n_levels - 1].port_rate == h100.level[1].rank_rate * ranks / sharing);
        }
}
