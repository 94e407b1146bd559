#include "layers/cuda/matmul_configs.h"

#include "base/die.h"

/* ---- which matmuls the kernels take ---- */

/* Are addresses and strides multiples of 16 bytes, as copies of 16 bytes need? */
static bool aligned(const void *x, int64_t ld, size_t elem_bytes) {
    return (uintptr_t)x % 16 == 0 && (size_t)ld * elem_bytes % 16 == 0;
}

static bool lies_aligned(const Matmul *p, size_t elem_bytes) {
    size_t y_bytes = p->wide ? sizeof(float) : elem_bytes;
    return aligned(p->a, p->a_col == 1 ? p->a_row : p->a_col, elem_bytes) &&
           aligned(p->b, p->b_row == 1 ? p->b_col : p->b_row, elem_bytes) &&
           aligned(p->y, p->ldy, y_bytes) && aligned(p->addend, 0, y_bytes) &&
           aligned(p->aux, 0, elem_bytes);
}

const char *matmul_refuses(const Matmul *p, size_t elem_bytes) {
    bool k_major_a = p->a_col == 1, k_major_b = p->b_row == 1;
    if (elem_bytes != 2) return "activations are not bf16";
    if (p->M < 1 || p->N < 1 || p->K < 1) return "there is nothing to multiply";
    if (p->M > INT32_MAX / 2 || p->N > INT32_MAX / 2 || p->K > INT32_MAX / 2 ||
        !matmul_is_countable(p->M, p->N, p->K))
        return "a dimension is too large";
    if (p->bias_grad && !p->wide) return "the gradient of a bias beside sums in bf16";
    if (p->wide && (k_major_a || k_major_b)) return "no gradient of weights lies like that";
    if (!p->wide && !k_major_a) return "a lies along m, and y is bf16";
    if (p->wide && (p->bias || p->epilogue != EPI_NONE)) return "fp32 sums with an epilogue";
    if (p->wide && p->addend && p->addend != p->y) return "fp32 sums with an addend beside y";
    if (p->addend && p->epilogue != EPI_NONE) return "an addend beside an activation";
    if (p->bias && (p->N % 2 || (uintptr_t)p->bias % 4)) return "the bias does not lie in pairs";
    return lies_aligned(p, elem_bytes) ? NULL : "rows do not begin at multiples of 16 bytes";
}

/* ---- configs ---- */

int matmul_configs(const Matmul *p, MatmulKernel kernel, const MatmulGpu *g,
                   int number[MATMUL_CONFIGS]) {
    double time[MATMUL_CONFIGS];
    MatmulJob j = matmul_job(p);
    MatmulWorker worker;
    MatmulConfig w;
    int n = 0;
    for (int i = 0; matmul_config_at(&w, kernel, i); i++) {
        bool whole = w.kind == MATMUL_DATA_PARALLEL;
        MatmulCost c = {.time = 0};
        if (p->blocks && (!whole || p->M % (w.blocks * MATMUL_ROWS))) continue;
        if (!matmul_cost_of_config(&c, &worker, g, &j, &w)) continue;
        if (!whole && !c.schedule.divided) continue; // the same as data-parallel
        // inserted after configs with the same time
        int at = n++;
        for (; at > 0 && time[at - 1] > c.time; at--)
            time[at] = time[at - 1], number[at] = number[at - 1];
        time[at] = c.time, number[at] = matmul_config_number(&w);
    }
    return n;
}

static bool has_config(MatmulKernel kernel, const MatmulConfig *w) {
    MatmulConfig one;
    for (int i = 0; matmul_config_at(&one, kernel, i); i++)
        if (one.kind == w->kind && one.width == w->width && one.blocks == w->blocks)
            return w->kernel == kernel;
    return false;
}

MatmulSchedule matmul_schedule_of(const Matmul *p, MatmulKernel kernel, const MatmulGpu *g,
                                  int number, MatmulConfig *config) {
    int likely[MATMUL_CONFIGS];
    MatmulJob j = matmul_job(p);
    MatmulWorker worker;
    MatmulCost c = {.time = 0};
    if (!number && matmul_configs(p, kernel, g, likely)) number = likely[0];
    *config = matmul_config(number);
    if (!has_config(kernel, config)) die("this kernel has no config %d", number);
    if (!matmul_cost_of_config(&c, &worker, g, &j, config)) die("there is no room for parts");
    return c.schedule;
}
