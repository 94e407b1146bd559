/* The instructions of layers/cuda/ptx_sm90.cuh as the emulator has them: by their description, by
 * what hardware gave where that was written down, and the mistakes that it is there to find. */
#include "layers/cuda/launch.cuh"
#include "layers/cuda/ptx_sm90.cuh"
#include "layers/cuda/vec.cuh"

#include <algorithm>
#include <cinttypes>

extern "C" {
#include "layers/cuda/tensor_map.h"
#include "tests/cuda_probes.h"
#include "tests/test.h"
}

namespace {

const EmuOrder orders[] = {EMU_FORWARD, EMU_REVERSE, EMU_RANDOM};

void begin(EmuOrder order) {
    emu_setup.order = order, emu_setup.seed = 3;
    device_open(0, 4096);
}
void end() {
    device_close();
    emu_set({});
}

TEST(cuda_sm90_instructions_do_what_is_said_of_them) {
    for (EmuOrder o : orders) {
        begin(o);
        for (int i = 0; i < n_probes; i++) {
            if (probes[i].dies) continue;
            ProbeResult r = probes[i].run();
            if (r.wrong) test_fail("%s, order %d: %d of %d words", probes[i].name, o, r.wrong, r.n);
        }
        end();
    }
}

static void run_probe(void *of) {
    begin(EMU_FORWARD);
    probes[*static_cast<int *>(of)].run();
}
TEST(cuda_sm90_stores_before_a_tensor_end_the_kernel) {
    int found = 0;
    for (int i = 0; i < n_probes; i++)
        if (probes[i].dies) {
            found++;
            CHECK_CHILD(1, run_probe, &i, "a store begins before the tensor");
        }
    CHECK(found > 0);
}

/* build/cuda/probes printed it, on the first device that ran the probe: what it gave, or that it
 * died. Probes that no device has run yet are not there. */
TEST(cuda_sm90_instructions_do_what_hardware_does) {
    char name[64], said[64], hash[64], text[1024];
    int found = 0, lines = 0;
    FILE *f = fopen(TEST_DATA("golden/sm90.txt"), "r");
    if (!f && test_shell(".", text, sizeof text, "ls bench/results/*-facts.json 2>&1") != 0)
        return test_skip("no device has run build/cuda/probes");
    CHECK(f); // else sm90.txt of the device that has, make bench-gpu's, is to be committed
    begin(EMU_FORWARD);
    for (; fscanf(f, "%63s %63s", name, said) == 2; lines++)
        for (int i = 0; i < n_probes; i++)
            if (!strcmp(probes[i].name, name)) {
                found++;
                CHECK(probes[i].dies == !strcmp(said, "died"));
                if (probes[i].dies) continue;
                snprintf(hash, sizeof hash, "%016" PRIx64, probes[i].run().hash);
                if (strcmp(said, hash) != 0) test_fail("%s differs", name);
            }
    fclose(f);
    end();
    CHECK(found > 0 && found == lines);
}

/* --- mbarrier: two warps hand numbers over and back through one slot, eight times */

struct Slot {
    int at[32];
    uint64_t full, empty;
};
__global__ void hand_over(int *out) {
    auto &s = shared<Slot>();
    Shared full = shared_address(&s.full), empty = shared_address(&s.empty);
    int lane = this_lane();
    if (threadIdx.x == 0) {
        mbarrier_init(full, 32);
        mbarrier_init(empty, 32);
        mbarrier_fence();
    }
    __syncthreads();
    for (int i = 0; i < 8; i++)
        if (this_warp() == 0) {
            mbarrier_wait(empty, i % 2 ^ 1); // over at once the first time
            s.at[lane] = 100 * i + lane;
            mbarrier_arrive(full);
        } else {
            mbarrier_wait(full, i % 2);
            out[i * 32 + lane] = s.at[31 - lane];
            mbarrier_arrive(empty);
        }
}

TEST(cuda_sm90_mbarriers_hand_over_in_turns) {
    static int out[256];
    for (EmuOrder o : orders) {
        begin(o);
        auto *x = static_cast<int *>(device_alloc(sizeof out));
        LAUNCH(hand_over, 1, 64, 0, x);
        device_get(out, x, sizeof out);
        device_wait();
        for (int i = 0; i < 256; i++) CHECK(out[i] == i / 32 * 100 + 31 - i % 32);
        device_free(x);
        end();
    }
}

/* --- mistakes; each kernel has one warpgroup, a barrier of one arrival, and a map of 64 x 64
 * words */

struct Room {
    uint16_t box[64 * 64];
    uint64_t barrier;
};
struct BoxBarrier {
    Shared box, barrier;
};
__device__ BoxBarrier begin_block(bool fenced = true) {
    auto *x = dynamic_shared<Room>();
    BoxBarrier p = {shared_address(x->box), shared_address(&x->barrier)};
    if (threadIdx.x == 0) {
        mbarrier_init(p.barrier, 1);
        if (fenced) mbarrier_fence();
    }
    __syncthreads();
    return p;
}

__global__ void bytes_that_never_come(CUtensorMap map) {
    BoxBarrier p = begin_block();
    if (threadIdx.x == 0) {
        mbarrier_expect(p.barrier, 8193);
        tma_load(p.box, map, p.barrier, 0, 0);
    }
    mbarrier_wait(p.barrier, 0);
}
__global__ void too_many_arrivals(CUtensorMap) {
    BoxBarrier p = begin_block();
    if (threadIdx.x < 2) mbarrier_expect(p.barrier, 16);
}
__global__ void no_mbarrier(CUtensorMap) {
    mbarrier_wait(begin_block().box, 0);
}
__global__ void overwritten(CUtensorMap) {
    BoxBarrier p = begin_block();
    dynamic_shared<Room>()->barrier = 0;
    mbarrier_wait(p.barrier, 0);
}
__global__ void not_fenced(CUtensorMap map) {
    BoxBarrier p = begin_block(false);
    if (threadIdx.x == 0) tma_load(p.box, map, p.barrier, 0, 0);
}
__global__ void not_aligned(CUtensorMap map) {
    BoxBarrier p = begin_block();
    if (threadIdx.x == 0) tma_load(p.box + 128, map, p.barrier, 0, 0);
}
__global__ void nobody_waits(CUtensorMap map) {
    BoxBarrier p = begin_block();
    if (threadIdx.x == 0) mbarrier_expect(p.barrier, 8192), tma_load(p.box, map, p.barrier, 0, 0);
}
__global__ void leaves_a_store(CUtensorMap map) {
    BoxBarrier p = begin_block();
    if (threadIdx.x == 0) tma_store(map, p.box, 0, 0), tma_commit();
}
__global__ void stores_unseen(CUtensorMap map) {
    BoxBarrier p = begin_block();
    unsigned r[4] = {};
    stmatrix(p.box + threadIdx.x * 16, r);
    __syncthreads();
    if (threadIdx.x == 0) tma_store(map, p.box, 0, 0);
}
/* The flag is a word of new memory, whose bits are all set. */
__global__ void loads_unseen(CUtensorMap map) {
    BoxBarrier p = begin_block();
    if (threadIdx.x > 0) return;
    flag_wait_system(reinterpret_cast<const uint32_t *>(map.base), UINT32_MAX);
    tma_load(p.box, map, p.barrier, 0, 0);
}

/* What matmuls are asked for. */
struct Asked {
    bool fence, same, commit, wait, touch;
};
__device__ void ask(Asked q) {
    BoxBarrier p = begin_block();
    float d[8][4] = {};
    Matrix m = matrix_at(p.box, 0, 1024);
    if (q.fence) wgmma_fence();
    wgmma<K_MAJOR, K_MAJOR>(d, m, matrix_on(m, !q.same && threadIdx.x == 127 ? 32 : 0), false);
    if (q.touch) d[0][0] = 1;
    if (q.commit) wgmma_commit();
    if (q.wait) wgmma_wait<0>(d);
}
__global__ void no_fence(CUtensorMap) {
    ask({false, true, true, true, false});
}
__global__ void other_matrices(CUtensorMap) {
    ask({true, false, true, true, false});
}
__global__ void no_commit(CUtensorMap) {
    ask({true, true, false, true, false});
}
__global__ void no_wait(CUtensorMap) {
    ask({true, true, true, false, false});
}
__global__ void touched(CUtensorMap) {
    ask({true, true, true, true, true});
}
__global__ void still_under_way(CUtensorMap) {
    BoxBarrier p = begin_block();
    float d[8][4] = {};
    Matrix m = matrix_at(p.box, 0, 1024);
    wgmma_fence();
    wgmma<K_MAJOR, K_MAJOR>(d, m, m, false);
    wgmma_commit();
    wgmma_wait<1>(d);
}
/* One matmul is still under way, and registers of the other have been the thread's. */
__global__ void no_fence_after_a_wait(CUtensorMap) {
    BoxBarrier p = begin_block();
    float d[8][4] = {}, e[8][4] = {};
    Matrix m = matrix_at(p.box, 0, 1024);
    wgmma_fence();
    wgmma<K_MAJOR, K_MAJOR>(d, m, m, false);
    wgmma_commit();
    wgmma<K_MAJOR, K_MAJOR>(e, m, m, false);
    wgmma_commit();
    wgmma_wait<1>(d);
    wgmma<K_MAJOR, K_MAJOR>(d, m, m, true);
}
__global__ void no_fence_after_a_loop(CUtensorMap) {
    BoxBarrier p = begin_block();
    float d[8][4] = {};
    Matrix m = matrix_at(p.box, 0, 1024);
    wgmma_fence();
    if (threadIdx.x == 0) mbarrier_arrive(p.barrier);
    mbarrier_wait(p.barrier, 0);
    wgmma<K_MAJOR, K_MAJOR>(d, m, m, false);
}
__global__ void too_many_registers(CUtensorMap) {
    registers_at_least<256>();
}
__global__ void registers_of_some(CUtensorMap) {
    if (threadIdx.x < 32) registers_at_most<24>();
}

/* Of a cluster of two blocks; forward, the second goes on first when all have met. */
__global__ void sends_to_one_that_has_ended(CUtensorMap) {
    BoxBarrier p = begin_block();
    cluster_sync();
    if (cluster_rank() == 0 && threadIdx.x == 0) mbarrier_arrive_at(p.barrier, 1);
}
__global__ void sends_to_none(CUtensorMap map) {
    BoxBarrier p = begin_block();
    cluster_sync();
    if (threadIdx.x == 0) tma_multicast(p.box, map, p.barrier, 4, 0, 0);
}
__global__ void sends_too_early(CUtensorMap map) {
    BoxBarrier p = begin_block();
    if (threadIdx.x == 0) tma_multicast(p.box, map, p.barrier, 3, 0, 0);
    cluster_sync();
}
__global__ void waits_for_the_cluster(CUtensorMap) {
    if (cluster_rank() == 0) cluster_sync();
}
__global__ void leaves_what_comes(CUtensorMap map) {
    BoxBarrier p = begin_block();
    cluster_sync();
    if (cluster_rank() == 1 && threadIdx.x == 0) tma_multicast(p.box, map, p.barrier, 1, 0, 0);
}

struct Mistake {
    const char *name;
    void (*kernel)(CUtensorMap);
    const char *says;
    unsigned blocks = 1;
};
const Mistake mistakes[] = {
    {"bytes_that_never_come", bytes_that_never_come,
     "128 of 128 threads wait for ever; 128 from thread 0 at mbarrier at byte 8192 (phase 0: 0 of "
     "1 arrivals and 1 bytes missing) (tests/test_cuda_ptx_sm90.cu:"},
    {"too_many_arrivals", too_many_arrivals, "more arrivals in a phase of an mbarrier than the 1"},
    {"no_mbarrier", no_mbarrier, "no mbarrier was made here"},
    {"overwritten", overwritten, "an mbarrier was overwritten"},
    {"not_fenced", not_fenced, "made without mbarrier_fence()"},
    {"not_aligned", not_aligned, "not aligned to 1024 bytes"},
    {"nobody_waits", nobody_waits, "a bulk copy is under way while its block has ended"},
    {"leaves_a_store", leaves_a_store, "a TMA store that nobody waited for"},
    {"stores_unseen", stores_unseen, "wrote without fence_async()"},
    {"loads_unseen", loads_unseen, "TMA: after a flag without fence_async_global()"},
    {"no_fence", no_fence, "wgmma without wgmma_fence()"},
    {"no_fence_after_a_wait", no_fence_after_a_wait, "wgmma without wgmma_fence()"},
    {"no_fence_after_a_loop", no_fence_after_a_loop, "wgmma without wgmma_fence()"},
    {"other_matrices", other_matrices, "threads of a warpgroup multiply different matrices"},
    {"no_commit", no_commit, "without wgmma_commit()"},
    {"no_wait", no_wait, "a wgmma that nobody waited for"},
    {"touched", touched, "accumulators of a wgmma were written while it was under way"},
    {"still_under_way", still_under_way, "these accumulators are still under way"},
    {"too_many_registers", too_many_registers, "setmaxnreg: 32768 registers for 1 warpgroups"},
    {"registers_of_some", registers_of_some, "setmaxnreg in 32 of 128 threads of warpgroup 0"},
    {"sends_to_one_that_has_ended", sends_to_one_that_has_ended, "block 1 of the cluster has ended",
     2},
    {"sends_to_none", sends_to_none, "there is no block 2 in a cluster of 2", 2},
    {"sends_too_early", sends_too_early, "no mbarrier was made here", 2},
    {"waits_for_the_cluster", waits_for_the_cluster,
     "128 of 128 threads wait for ever; 128 from thread 0 at barrier of the cluster", 2},
    {"leaves_what_comes", leaves_what_comes, "a bulk copy is under way while its block has ended",
     2},
    {"three_in_clusters_of_two", waits_for_the_cluster, "blocks in clusters of 2", 3},
};

void make_mistake(void *arg) {
    const auto *m = static_cast<const Mistake *>(arg);
    TensorShape shape = {2, {64, 64}, {1, 64}, {64, 64}, false};
    begin(EMU_FORWARD);
    CUtensorMap map = tensor_map(device_alloc(8192), &shape);
    launch(m->name, __FILE__, __LINE__, device_stream(), std::min(m->blocks, 2u), m->kernel,
           m->blocks, 128, sizeof(Room), map);
    end();
}

TEST(cuda_sm90_emulation_names_each_mistake) {
    for (const Mistake &m : mistakes) {
        Mistake copy = m;
        CHECK_CHILD(1, make_mistake, &copy, m.name, m.says);
    }
}

} // namespace
