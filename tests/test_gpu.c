/* What GPUs could do at best. */
#include "layers/cuda/products.h"
#include "parallel/gpu.h"
#include "tests/cuda.h"

#include <string.h>

/* Data sheets, dense, sums in fp32. Names are those of the driver. */
TEST(gpu_peak_is_that_of_the_data_sheet) {
    static const struct {
        GpuFacts gpu;
        double bf16, fp32; // TFLOP/s
        const char *how;   // bf16
    } cases[] = {{{"NVIDIA H100 80GB HBM3", 9, 0, 132, 1980}, 989, 66.9, "by name"},
                 {{"NVIDIA H100 PCIe", 9, 0, 114, 1755}, 756, 51.2, "by name"},
                 {{"NVIDIA H100 NVL", 9, 0, 132, 1785}, 835, 60, "by name"},
                 {{"NVIDIA H200", 9, 0, 132, 1980}, 989, 66.9, "by name"},
                 {{"NVIDIA GH200 480GB", 9, 0, 132, 1980}, 989, 66.9, "by name"},
                 {{"NVIDIA H20", 9, 0, 78, 1980}, 148, 39.5, "by name"},
                 {{"NVIDIA B200", 10, 0, 148, 1965}, 2250, 74.4, "by name"},
                 {{"NVIDIA GB200", 10, 0, 152, 2062}, 2500, 80, "by name"},
                 {{"NVIDIA A100-SXM4-80GB", 8, 0, 108, 1410}, 312, 19.5, "by name"},
                 {{"NVIDIA L40S", 8, 9, 142, 2520}, 362, 91.6, "by name"},
                 {{"NVIDIA A10", 8, 6, 72, 1695}, 125, 31.2, "by clock"},
                 {{"NVIDIA GeForce RTX 3090", 8, 6, 82, 1695}, 71, 35.6, "by clock"},
                 {{"NVIDIA GeForce RTX 4090", 8, 9, 128, 2520}, 165.2, 82.6, "by clock"},
                 {{"NVIDIA GeForce RTX 5090", 12, 0, 170, 2407}, 209.5, 104.8, "by clock"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *how, *fp32_how;
        double bf16 = gpu_peak(&cases[i].gpu, true, &how),
               fp32 = gpu_peak(&cases[i].gpu, false, &fp32_how);
        CHECK_NEAR(bf16 / 1e12 / cases[i].bf16, 1, 5e-3); // sheets round
        CHECK_NEAR(fp32 / 1e12 / cases[i].fp32, 1, 1e-2);
        CHECK_STR(how, cases[i].how);
        CHECK_STR(fp32_how, "by clock");
    }
    GpuFacts newer = {"NVIDIA X900", 15, 0, 200, 3000}, silent = {"NVIDIA L4", 8, 9, 58, 0};
    const char *how;
    CHECK(gpu_peak(&newer, true, &how) == 0 && gpu_peak(&silent, true, &how) == 0);
}

static int64_t products(void) {
    ProductCounts c = product_counts();
    return c.fused + c.bare + c.tiled + c.plain;
}

TEST(gpu_of_an_unknown_kind_is_measured_by_products) {
    for (EACH_WORD(bf16)) {
        cuda_begin(cuda_orders[0]);
        int64_t before = products();
        double rate = gpu_measure(kernels_cuda(bf16), bf16);
        int64_t made = products() - before;
        CHECK(cuda_end());
        CHECK(rate > 1e6 && rate < 1e12); // one core computes for it
        CHECK(made >= 4);
    }
}
