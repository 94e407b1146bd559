/* bench_gpu_attention -- TFLOP/s of attention. Counted are the operations of the causal half: 2 S S
 * D for each head and sequence forward, 5 S S D backward, the usual count. */
#include <stdio.h>
#include <stdlib.h>

#include "layers/cuda/device.h"
#include "tools/bench_gpu.h"

enum { MOST_SETS = 8 };

static struct {
    const Kernels *k;
    Attention a;
    struct {
        void *qkv, *dqkv, *out, *dout;
        float *lse;
    } set[MOST_SETS];
} b;

static void forward(void *ctx, int set) {
    (void)ctx;
    b.k->attention_forward(NULL, &b.a, b.set[set].out, b.set[set].lse, b.set[set].qkv);
}
static void backward(void *ctx, int set) {
    (void)ctx;
    b.k->attention_backward(NULL, &b.a, b.set[set].dqkv, b.set[set].dout, b.set[set].qkv,
                            b.set[set].out, b.set[set].lse);
}

/* Measures forward and backward of one shape and writes their rows. */
static void attention(int64_t S, int64_t D, const char *way) {
    int64_t C = strtoll(gpu_options.channels, NULL, 10), T = gpu_options.tokens;
    b.a = (Attention){.B = T / S, .S = S, .H = C / D, .Hkv = C / D, .D = D, .bf16 = true};
    if (b.a.B < 1 || b.a.H < 1) return;
    int64_t n_out = 2 * b.a.B * S * b.a.H * D, n_qkv = 3 * n_out;
    size_t workspace = b.k->attention_workspace(1, b.a.B, S, b.a.H, b.a.H, D);
    if (workspace) b.a.workspace = gpu_take((int64_t)workspace, GPU_ZEROS);
    GpuJob job[2] = {{forward, NULL, gpu_sets(n_qkv + n_out), 0}, {backward, NULL, 0, 0}};
    job[1].sets = job[0].sets;
    for (int i = 0; i < job[0].sets; i++) {
        b.set[i].qkv = gpu_take(n_qkv, GPU_RANDOM), b.set[i].dqkv = gpu_take(n_qkv, GPU_ZEROS);
        b.set[i].out = gpu_take(n_out, GPU_ZEROS), b.set[i].dout = gpu_take(n_out, GPU_RANDOM);
        b.set[i].lse = gpu_take(4 * b.a.B * S * b.a.H, GPU_ZEROS);
    }
    gpu_time(job, 2);
    for (int i = 0; i < 2; i++) {
        double flops = (i ? 5.0 : 2.0) * (double)(T / S * b.a.H) * (double)(S * S * D);
        double rate = flops / job[i].seconds * 1e-12;
        printf("%-9s %-8s D=%-4d S=%-6d B=%-4d H=%-3d %9.1f us %6.1f TFLOP/s\n",
               i ? "backward" : "forward", way, (int)D, (int)S, (int)b.a.B, (int)b.a.H,
               job[i].seconds * 1e6, rate);
        gpu_write("attention",
                  json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:f}", "name",
                            i ? "backward" : "forward", "way", way, "D", (json_int_t)D, "S",
                            (json_int_t)S, "B", (json_int_t)b.a.B, "H", (json_int_t)b.a.H, "us",
                            job[i].seconds * 1e6, "tflops", rate));
    }
    gpu_give_all();
}

void gpu_attention(const Kernels *k, int major) {
    const char *way = major == 9 ? "wgmma" : "mma.sync";
    b.k = k;
    printf("\nattention, causal half, by %s\n", way);
    for (int64_t D = 64; D <= 128; D *= 2)
        for (int64_t S = gpu_options.seq; S <= 4 * gpu_options.seq; S *= 2) attention(S, D, way);
}
