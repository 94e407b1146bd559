/* --backend: the kernels of a run and the device of each rank. Devices of a node are assigned
 * round-robin to its ranks; with more ranks than devices some share one. */
#include "parallel/train/train.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/version.h"
#include "parallel/comm/devices.h"
#include "parallel/comm/ranks.h"
#include "parallel/plan/gpu.h"

enum { AUTO, CPU, CUDA }; // values of --backend

/* Names an option of the run that CUDA does not support; NULL: there is none. */
static const char *asks_for_cpu(const Run *r) {
    if (r->o->exact) return "--exact has no CUDA kernels";
    if (r->o->check_tp) return "--check-tp compares tensors in host memory";
    if (r->o->sync_every > 1) return "--sync-every averages replicas in host memory";
    if (strcmp(r->o->kernels, "auto") != 0) return "--kernels names a set of CPU kernels";
    return NULL;
}

void run_check_backend(const Run *r) {
    const char *why = r->o->backend == CUDA ? asks_for_cpu(r) : NULL;
    if (why) die_usage("--backend cuda: %s", why);
}

/* Collective. Number of ranks on this rank's device. Devices are compared by id, since a launcher
 * may show every rank its device as number 0. */
static int count_sharing(const Run *r) {
    enum { ID = sizeof r->device.facts.id };
    char *all = mem_calloc((size_t)r->group.size, ID);
    int n = 0;
    group_all_gather(&r->group, r->device.facts.id, ID, all);
    for (int i = 0; i < r->group.size; i++) n += memcmp(all + i * ID, r->device.facts.id, ID) == 0;
    mem_free(all);
    return n;
}

/* Collective. Sets r->device if every rank has a working device; false, with the reason, if not. */
static bool find_device(Run *r, Err *e) {
    int n = device_count(e);
    if (n > 0) r->device.index = r->node.local_rank % n;
    bool works = n > 0 && device_works(r->device.index, e);
    if (!group_agree(&r->group, works, e)) return false;
    r->device.facts = device_facts(r->device.index);
    r->device.ranks = count_sharing(r);
    r->device.all = (int)lround(group_sum(&r->group, 1.0 / r->device.ranks));
    return true;
}

/* Collective. Why the devices of the ranks cannot be used; NULL: they can be. */
static const char *device_obstacle(Run *r, Err *e) {
    bool processes = r->group.size > 1 && strcmp(world_backend(r->world), "threads") != 0;
    const char *why = asks_for_cpu(r); // ranks may have different --kernels
    if (!group_agree(&r->group, !why || err(e, "%s", why), e)) return e->text;
    if (!group_all(&r->group, !processes || r->device.ranks <= 1))
        return "processes do not share a GPU: start one for each, or ranks as threads (--ranks)";
    return r->group.size == 1 || world_devices_fit(r->world, e) ? NULL : e->text;
}

/* Collective. Does any rank have a device, or at least NVIDIA's driver? */
static bool some_device(const Run *r) {
    return !group_all(&r->group, device_count(NULL) == 0 && access("/dev/nvidiactl", F_OK) != 0);
}

/* Collective. Warns if the GPUs of the ranks are of several kinds. */
static void warn_unlike(Run *r) {
    char first[sizeof r->device.facts.name];
    const char *mine = r->device.facts.name;
    Err e;
    memcpy(first, mine, sizeof first);
    group_broadcast(&r->group, first, sizeof first);
    bool alike = strcmp(mine, first) == 0 ||
                 err(&e, "this GPU is %.100s, that of rank 0 %.100s", mine, first);
    if (!group_agree(&r->group, alike, &e) && r->lead)
        warn("GPUs differ: all wait for the slowest kind, and plans are made for that: %s", e.text);
}

void run_open_backend(Run *r) {
    Err e = {{0}};
    r->kernels = kernels_cpu(r->set);
    bool found = r->o->backend != CPU && find_device(r, &e);
    const char *why = found ? device_obstacle(r, &e) : e.text;
    if (r->o->backend == CUDA && why) die_usage("--backend cuda: %s", why);
    if (r->o->backend == AUTO && why && (found || some_device(r)))
        err(&r->device.unused, "%s", why);
    if (found && !why) {
        r->device.used = true;
        warn_unlike(r);
        // NCCL's threads, which send to other nodes, inherit the cores of the calling thread
        team_unpin_caller(r->team);
        device_open(r->device.index, DEVICE_SCRATCH);
        if (r->group.size > 1) world_use_devices(r->world);
        if (r->group.size > 1 && run_asks_for_fused(r))
            world_share_memory(r->world, &r->device.unshared);
        r->kernels = kernels_cuda(r->o->dtype == 1);
    }
}

void run_close_backend(const Run *r) {
    if (!r->device.used) return;
    world_release_devices(r->world);
    device_close();
}

int run_print_version(void) {
    char mpi[256];
    Err e = {{0}};
    if (die_is_copy()) return 0;
    int n = device_count(&e);
    ranks_mpi_version(mpi, sizeof mpi);
    printf("train_gpt %s\nkernels   ", version_commit());
    for (const char *const *set = kernels_cpu_sets(); *set; set++)
        printf("%s%s", *set, set[1] ? ", " : "\n");
    printf("MPI       %s\nCUDA      ", mpi);
    if (n > 0)
        printf("%d device(s): %s\n", n, device_facts(0).name);
    else
        printf("%s\n", e.text);
    return 0;
}

const char *run_kernels_name(const Run *r) {
    return r->device.used ? "cuda" : r->set;
}

/* Peak FLOP/s of this rank's share of its device. */
static double device_peak(Run *r) {
    double peak = gpu_peak(&r->device.facts, r->o->dtype == 1, &r->peak_how);
    if (peak == 0) peak = gpu_measure(r->kernels, r->o->dtype == 1), r->peak_how = "measured";
    return peak / r->device.ranks;
}

/* Collective. Peak FLOP/s of this rank's threads; where cores are oversubscribed, of the rank's
 * share of the cores. All ranks measure at the same time. */
static double cores_peak(Run *r) {
    double cores = (double)r->node.cores / r->node.local_size, threads = team_size(r->team);
    bool own = group_all(&r->group, threads <= cores); // has every thread a core of its own?
    Peak peak = r->kernels->peak(r->team, r->o->dtype == 1);
    bool quiet = group_all(&r->group, !own || peak.cpu_share > 0.8);
    r->peak_how = quiet ? "measured" : "measured on a busy machine";
    return peak.core * (threads < cores ? threads : cores);
}

void run_find_peak(Run *r) {
    r->peak_rank = r->device.used ? device_peak(r) : cores_peak(r);
    r->peak_flops = group_sum(&r->group, r->peak_rank);
}

double run_share_of_peak(Run *r, double flops) {
    if (flops > r->peak_flops) {
        if (strncmp(r->peak_how, "measured", 8) == 0)
            run_note(r,
                     "the peak of %.4g GFLOP/s was measured while the cores were slower: shares "
                     "are of the fastest step from here on, %.4g GFLOP/s",
                     r->peak_flops / 1e9, flops / 1e9);
        r->peak_flops = flops, r->peak_how = "the fastest step";
    }
    return flops / r->peak_flops;
}

void run_print_machine(const Run *r) {
    const char *dtype = r->o->dtype ? "bf16" : "fp32", *a_rank = r->group.size > 1 ? " a rank" : "";
    const DeviceFacts *f = &r->device.facts;
    if (r->device.used)
        printf("machine  %s, %d multiprocessors, %.1f GiB, cuda kernels, %s, peak %.4g TFLOP/s "
               "(%s)\n",
               f->name, f->sms, (double)f->memory_bytes / (1 << 30), dtype, r->peak_flops / 1e12,
               r->peak_how);
    else
        printf("machine  %d thread%s%s, %s kernels, %s, peak %.0f GFLOP/s (%s)\n",
               team_size(r->team), team_size(r->team) > 1 ? "s" : "", a_rank, run_kernels_name(r),
               dtype, r->peak_flops / 1e9, r->peak_how);
    if (!r->device.used && r->o->dtype && !r->kernels->bf16_units)
        printf("         %s bf16 units: --dtype bf16 rounds and multiplies in fp32, no faster than "
               "--dtype fp32\n",
               strcmp(r->set, r->o->kernels) && strcmp(r->set, kernels_cpu_sets()[0]) ? "slow"
                                                                                      : "no");
    if (r->device.used && r->group.size > 1)
        printf("         %d ranks on %d device%s\n", r->group.size, r->device.all,
               r->device.all > 1 ? "s" : "");
    if (r->device.used && *r->o->train) {
        const char *obstacle = r->o->profile ? "every kernel is looked at" : replay_obstacle(&r->m);
        printf("         micro-batches are %s%s\n",
               obstacle ? "not replayed as graphs: " : "recorded once and replayed as graphs",
               obstacle ? obstacle : "");
    }
    if (*r->device.unused.text)
        printf("         not on the GPU that is here: %s\n", r->device.unused.text);
}
