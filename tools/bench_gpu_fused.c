/* bench_gpu_fused -- matmuls fused with collectives: the work of a rank of 2 and of 4, on one GPU
 * with an emulated link. No other GPU takes part. So this shows how much of a transfer of a given
 * length a kernel hides, but nothing about a link's bandwidth or the order of stores between GPUs.
 *
 *   all_gather       the up matmul of an MLP. All of x is on the device. Beside the matmul a second
 *                    stream copies from the host, by a copy engine as a link to another GPU would,
 *                    for as long as the other ranks' blocks take by NVLink, and writes the flag of
 *                    each block behind its copy. Flags lie in device memory, as in parallel/comm:
 *                    every multiprocessor reads them for each tile, which in host memory takes
 *                    longer than the matmul. `transfer` is the measured time of these copies alone
 *   reduce_scatter   the down matmul. Its blocks go to one buffer for each rank on this device; no
 *                    link slows them down
 */
#include <stdio.h>

#include "layers/cuda/device.h"
#include "layers/cuda/streams.h"
#include "layers/matmul_sm90.h"
#include "tools/bench_gpu.h"

enum { MOST_RANKS = 4, MOST_SETS = 8, HOST_BYTES = 8 << 20 }; // HOST_BYTES: more than a block takes
static const double link = 450e9; // bytes per second into one GPU: NVLink of an H200

static struct {
    const Kernels *k;
    int ranks, sets;
    char *host, *here; // pinned source; destination on the device
    size_t block;      // bytes from the host whose copy takes as long as a block by NVLink
    double transfer;   // seconds from the first byte to the last
    Stream comm;       // stream of the copies
    Event begun;       // the point at which the kernel and the copies may begin
    uint32_t *flags;   // [ranks + 1] on the device: flags of blocks, and one that no kernel reads
    uint32_t launched; // number of kernels so far that wait for flags
    Matmul p[MOST_SETS];
    void *slot[MOST_RANKS];
} b;

static RowBlocks blocks_of(const Matmul *p, BlocksOf of) {
    return (RowBlocks){.rows = p->M / b.ranks, .n = b.ranks, .matrix = of};
}

static void run_alone(void *ctx, int set) {
    (void)ctx;
    matmul_sm90(&b.p[set], 0);
}

/* all_gather: block 0 is the rank's own; the others are copied. */
static void run_gathered(void *ctx, int set) {
    (void)ctx;
    Matmul p = b.p[set];
    RowBlocks blocks = blocks_of(&p, BLOCKS_OF_A);
    blocks.flags = b.flags, blocks.ready_value = ++b.launched;
    p.blocks = &blocks;
    device_record(b.begun, device_stream());
    device_stream_wait(b.comm, b.begun);
    for (int i = 0; i < b.ranks; i++) {
        if (i) device_put_in(b.comm, b.here, b.host, b.block);
        device_write_value(b.comm, &b.flags[i], b.launched);
    }
    matmul_sm90(&p, 0);
}

static void run_transfer(void *ctx, int set) {
    (void)ctx, (void)set;
    for (int i = 1; i < b.ranks; i++) {
        device_put_in(device_stream(), b.here, b.host, b.block);
        device_write_value(device_stream(), &b.flags[b.ranks], 0);
    }
}
static void run_host_copy(void *ctx, int set) {
    (void)ctx, (void)set;
    device_put_in(device_stream(), b.here, b.host, HOST_BYTES);
}

static Act *slot(void *ctx, int block) {
    (void)ctx;
    return b.slot[block];
}
static void run_scattered(void *ctx, int set) {
    (void)ctx;
    Matmul p = b.p[set];
    RowBlocks blocks = blocks_of(&p, BLOCKS_OF_Y);
    blocks.first = 1, blocks.begin = slot;
    p.blocks = &blocks;
    matmul_sm90(&p, 0);
}

static void operands(Matmul p) {
    b.sets = gpu_sets(2 * (p.M * p.K + p.K * p.N + p.M * p.N));
    p.workspace = gpu_take((int64_t)b.k->matmul_workspace(1), GPU_ZEROS);
    for (int i = 0; i < b.sets; i++) {
        p.a = gpu_take(2 * p.M * p.K, GPU_RANDOM), p.b = gpu_take(2 * p.K * p.N, GPU_RANDOM);
        p.y = gpu_take(2 * p.M * p.N, GPU_RANDOM);
        b.p[i] = p;
    }
    for (int i = 0; i < b.ranks; i++) b.slot[i] = gpu_take(2 * p.M * p.N / b.ranks, GPU_RANDOM);
}

static void write_row(const char *name, int64_t C, double alone, double fused) {
    const Matmul *p = &b.p[0];
    double hidden = b.transfer > 0 ? 1 - (fused - alone) / b.transfer : 0;
    printf("%-15s %5d %7d %6d %6d %9.1f %9.1f %9.1f %8.1f\n", name, b.ranks, (int)p->M, (int)p->K,
           (int)p->N, alone * 1e6, b.transfer * 1e6, fused * 1e6, 100 * hidden);
    gpu_write("fused",
              json_pack("{s:s, s:I, s:i, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "name", name, "C",
                        (json_int_t)C, "ranks", b.ranks, "M", (json_int_t)p->M, "K",
                        (json_int_t)p->K, "N", (json_int_t)p->N, "alone_us", alone * 1e6,
                        "transfer_us", b.transfer * 1e6, "us", fused * 1e6, "hidden", hidden));
    gpu_give_all();
}

static void gather(int64_t T, int64_t K, int64_t N) {
    operands(matmul_forward(T, K, N, NULL, K, NULL));
    double seconds = 2 * (double)(T * K) / b.ranks / link; // seconds of a block by NVLink
    b.here = gpu_take(HOST_BYTES, GPU_ZEROS);
    b.flags = gpu_take((b.ranks + 1) * (int64_t)sizeof *b.flags, GPU_ZEROS), b.launched = 0;
    GpuJob copy = {run_host_copy, NULL, 1, 0};
    gpu_time(&copy, 1);
    double bytes = HOST_BYTES / copy.seconds * seconds;
    b.block = bytes < HOST_BYTES ? (size_t)bytes : HOST_BYTES;
    GpuJob job[3] = {
        {run_alone, NULL, b.sets, 0}, {run_gathered, NULL, b.sets, 0}, {run_transfer, NULL, 1, 0}};
    gpu_time(job, 3);
    b.transfer = job[2].seconds;
    write_row("all_gather", K, job[0].seconds, job[1].seconds);
}

static void scatter(int64_t T, int64_t K, int64_t N) {
    operands(matmul_forward(T, K, N, NULL, K, NULL));
    b.transfer = 0;
    GpuJob job[2] = {{run_alone, NULL, b.sets, 0}, {run_scattered, NULL, b.sets, 0}};
    gpu_time(job, 2);
    write_row("reduce_scatter", N, job[0].seconds, job[1].seconds);
}

void gpu_fused(const Kernels *k, int64_t C) {
    int64_t T = gpu_options.tokens;
    Matmul some = matmul_forward(T, C, C, NULL, C, NULL);
    const char *why = matmul_sm90_refuses(&some, 2);
    if (!why && T % (128 * MOST_RANKS)) why = "blocks of tokens end within tiles";
    if (why) printf("\nmatmuls with collectives: none: %s\n", why);
    if (why) return;
    b.k = k, b.host = device_pin(HOST_BYTES), b.comm = device_comm_stream(),
    b.begun = device_event();
    printf("\none GPU, emulated link of %.0f GB/s\n%-15s %5s %7s %6s %6s %9s %9s %9s %8s\n",
           link * 1e-9, "us", "ranks", "M", "K", "N", "alone", "transfer", "fused", "hidden %");
    for (b.ranks = 2; b.ranks <= MOST_RANKS; b.ranks *= 2) {
        gather(T, C, 4 * C / b.ranks);
        scatter(T, 4 * C / b.ranks, C);
    }
    device_unpin(b.host), device_stream_free(b.comm), device_event_free(b.begun);
}
