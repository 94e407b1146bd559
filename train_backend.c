/* --backend: the kernels of a run, and the device that each rank has. Ranks of a node take its devices in turns; where there are
 * more ranks than devices, some share one. */
#include "train_gpt.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"
#include "parallel/devices.h"
#include "parallel/gpu.h"
#include "parallel/profile.h"
#include "parallel/ranks.h"

enum { AUTO, CPU, CUDA }; // the words of --backend

/* What the run asks for and CUDA has not; NULL: nothing. */
static const char *asks_for_cpu(void) {
    if (o.exact) return "--exact has no CUDA kernels";
    if (o.check_tp) return "--check-tp looks at tensors in the host's memory";
    if (o.sync_every > 1) return "replicas of --sync-every meet in the host's memory";
    if (opt_given(opt_find(options, "kernels"))) return "--kernels names a set of the processor's";
    return NULL;
}

void check_backend(void) {
    const char *why = o.backend == CUDA ? asks_for_cpu() : NULL;
    if (why) die_usage("--backend cuda: %s", why);
}

/* Collective. Ranks on this rank's device, which a launcher may have shown to each under the number 0. */
static int count_sharing(const Run *r) {
    enum { ID = sizeof r->device.facts.id };
    char *all = mem_calloc((size_t)r->group.size, ID);
    int n = 0;
    group_all_gather(&r->group, r->device.facts.id, ID, all);
    for (int i = 0; i < r->group.size; i++) n += memcmp(all + i * ID, r->device.facts.id, ID) == 0;
    mem_free(all);
    return n;
}

/* Collective. Has every rank a device that works? Then it is r->device. */
static bool find_device(Run *r, Err *e) {
    int before = ranks_before(r->world); // collective: also where there is no device
    int n = device_count(e);
    if (n > 0) r->device.index = before % n;
    bool works = n > 0 && device_works(r->device.index, e);
    if (!group_agree(&r->group, works, e)) return false;
    r->device.facts = device_facts(r->device.index);
    r->device.ranks = count_sharing(r);
    r->device.all = (int)lround(group_sum(&r->group, 1.0 / r->device.ranks));
    return true;
}

/* Collective. What keeps a run from the devices that its ranks have; NULL: nothing. */
static const char *keeps_from_devices(Run *r, Err *e) {
    bool processes = r->group.size > 1 && strcmp(world_backend(r->world), "threads") != 0;
    const char *why = asks_for_cpu();
    if (why) return why;
    if (!group_all(&r->group, !processes || r->device.ranks <= 1))
        return "processes do not share a GPU: start one for each, or ranks as threads (--ranks)";
    return r->group.size == 1 || world_devices_fit(r->world, e) ? NULL : e->text;
}

/* Collective. Has some rank a device, or the driver of one? */
static bool some_device(const Run *r) {
    return !group_all(&r->group, device_count(NULL) == 0 && access("/dev/nvidiactl", F_OK) != 0);
}

void open_backend(Run *r) {
    Err e = {{0}};
    r->kernels = kernels_cpu(o.kernels);
    bool found = o.backend != CPU && find_device(r, &e);
    const char *why = found ? keeps_from_devices(r, &e) : e.text;
    if (o.backend == CUDA && why) die_usage("--backend cuda: %s", why);
    if (o.backend == AUTO && why && (found || some_device(r))) err(&r->device.unused, "%s", why);
    if (found && !why) {
        r->device.used = true;
        device_open(r->device.index, DEVICE_SCRATCH);
        if (r->group.size > 1) world_use_devices(r->world);
        r->kernels = kernels_cuda(o.dtype == 1);
    }
    if (o.stochastic_rounding && (!r->device.used || o.dtype != 1))
        die_usage("--stochastic-rounding is of weights in bf16 words: it needs --backend cuda and "
                  "--dtype bf16");
    if (o.profile && r->lead) r->kernels = profile_kernels(r->kernels);
}

void close_backend(const Run *r) {
    if (!r->device.used) return;
    world_leave_devices(r->world);
    device_close();
}

const char *kernels_name(const Run *r) {
    if (r->device.used) return "cuda";
    return strcmp(o.kernels, "auto") == 0 ? kernels_cpu_sets()[0] : o.kernels;
}

GpuFacts device_gpu(const DeviceFacts *f) {
    return (GpuFacts){f->name, f->major, f->minor, f->sms, f->mhz};
}

/* FLOP/s of all devices. */
static double device_peak(Run *r) {
    const DeviceFacts *f = &r->device.facts;
    GpuFacts gpu = device_gpu(f);
    double peak = gpu_peak(&gpu, o.dtype == 1, &r->peak_how);
    if (peak == 0) peak = gpu_measure(r->kernels, o.dtype == 1), r->peak_how = "measured";
    return group_sum(&r->group, peak / r->device.ranks);
}

/* FLOP/s of all cores. Ranks that share cores would each measure the whole of one: then rank 0 measures, alone. */
static double cores_peak(Run *r) {
    int neighbours = ranks_on_node(r->world), threads = team_size(r->team);
    bool shared = !group_all(&r->group, neighbours * threads <= r->cores);
    double peak = !shared || r->lead ? r->kernels->peak(r->team, o.dtype == 1) : 0;
    r->peak_how = "measured";
    peak = group_sum(&r->group, peak);
    return shared ? peak / threads * group_sum(&r->group, (double)r->cores / neighbours) : peak;
}

void find_peak(Run *r) {
    r->peak_flops = r->device.used ? device_peak(r) : cores_peak(r);
}

void print_machine(const Run *r) {
    const char *dtype = o.dtype ? "bf16" : "fp32", *a_rank = r->group.size > 1 ? " a rank" : "";
    const DeviceFacts *f = &r->device.facts;
    if (r->device.used)
        printf("machine  %s, %d multiprocessors, %.1f GiB, cuda kernels, %s, peak %.4g TFLOP/s "
               "(%s)\n",
               f->name, f->sms, (double)f->memory_bytes / (1 << 30), dtype, r->peak_flops / 1e12,
               r->peak_how);
    else
        printf("machine  %d threads%s, %s kernels, %s, peak %.0f GFLOP/s (%s)\n",
               team_size(r->team), a_rank, kernels_name(r), dtype, r->peak_flops / 1e9,
               r->peak_how);
    if (r->device.used && r->group.size > 1)
        printf("         %d ranks on %d device%s\n", r->group.size, r->device.all,
               r->device.all > 1 ? "s" : "");
    if (r->device.used && *o.train)
        printf("         micro-steps are %s%s\n",
               replay_obstacle(&r->m) ? "not replayed as graphs: "
                                      : "recorded once and replayed as graphs",
               replay_obstacle(&r->m) ? replay_obstacle(&r->m) : "");
    if (*r->device.unused.text)
        printf("         not on the GPU that is here: %s\n", r->device.unused.text);
}
