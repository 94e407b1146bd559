#include "parallel/step/memory.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/cgroup.h"
#include "base/die.h"
#include "base/minmax.h"
#include "parallel/step/generate.h"

/* The number behind `key` at the start of a line of a file; "": of its first line. -1: none. */
static int64_t read_number(const char *path, const char *key) {
    FILE *f = fopen(path, "r");
    char line[256];
    int64_t x = -1;
    if (!f) return -1;
    while (x < 0 && fgets(line, sizeof line, f)) // "max" is no number: x stays -1
        if (strncmp(line, key, strlen(key)) == 0) sscanf(line + strlen(key), "%" SCNd64, &x);
    fclose(f);
    return x;
}

static int64_t cgroup_number(const char *group, const char *file, const char *key) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", group, file);
    return read_number(path, key);
}

/* Bytes that the control group in a folder leaves to its processes; INT64_MAX: the group sets no
 * limit. The group counts cached pages of files as used. The kernel frees them when a process asks
 * for memory, so they are available here, as in MemAvailable. limit, used: names of files.
 * inactive, active: keys of memory.stat. */
static int64_t left_of(const char *group, const char *limit, const char *used, const char *inactive,
                       const char *active) {
    int64_t most = cgroup_number(group, limit, ""), now = cgroup_number(group, used, "");
    if (most < 0 || now < 0) return INT64_MAX;
    now -= max_i64(cgroup_number(group, "memory.stat", inactive), 0);
    now -= max_i64(cgroup_number(group, "memory.stat", active), 0);
    return max_i64(most - now, 1);
}
static int64_t cgroup_left(const char *group) {
    return left_of(group, "memory.max", "memory.current", "inactive_file ", "active_file ");
}
static int64_t cgroup_left_v1(const char *group) {
    return left_of(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ",
                   "total_active_file ");
}

int64_t memory_available_under(const char *root) {
    char path[256];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    int64_t kib = read_number(path, "MemAvailable:"),
            of_groups = cgroup_least(root, cgroup_left, "memory", cgroup_left_v1).least;
    int64_t least = kib > 0 ? min_i64(1024 * kib, of_groups) : of_groups;
    return least < INT64_MAX ? least : 0;
}

int64_t memory_available(void) {
    return memory_available_under("");
}

int64_t memory_free(const Model *m) {
    return m->k->memory ? (int64_t)m->k->memory->available() : memory_available();
}

int64_t memory_needed(const Model *m) {
    int64_t sum = 0;
    for (int i = 0; i < N_ARENAS; i++) sum += (int64_t)m->arena[i].used;
    return sum + (m->shape.samples ? generator_bytes(m) : 0);
}

static double mib(int64_t n_bytes) {
    return (double)n_bytes / 1048576.0;
}

void memory_print(const Model *m, FILE *f) {
    const char *const what[N_ARENAS] = {has_bf16_copies(m) ? "weights, fp32, and their bf16 copy"
                                                           : "weights, fp32",
                                        "fp32",
                                        "AdamW m and v, fp32",
                                        "kept for backward, logits, temporaries",
                                        "of kernels: packing, partial sums",
                                        "anchor and velocity, fp32"};
    int64_t all = memory_needed(m), have = memory_free(m);
    fprintf(f, "memory            MiB%s\n", m->grid->mesh.p > 1 ? " a rank" : "");
    for (int i = 0; i < N_ARENAS; i++)
        if (i != ARENA_OUTER || m->shape.outer)
            fprintf(f, "  %-12s %8.1f  %4.1f %%  %s\n", m->arena[i].name,
                    mib((int64_t)m->arena[i].used), 100.0 * (double)m->arena[i].used / (double)all,
                    what[i]);
    if (m->shape.samples)
        fprintf(f, "  %-12s %8.1f  %4.1f %%  %s\n", "sampling", mib(generator_bytes(m)),
                100.0 * (double)generator_bytes(m) / (double)all, "key-value cache, activations");
    fprintf(f, "  %-12s %8.1f", "all", mib(all));
    if (have) fprintf(f, "  of %.1f available", mib(have)); // else the system does not say
    fprintf(f, "%s\n", m->k->memory ? " on the device" : m->grid->mesh.p > 1 ? " here" : "");
}

/* Bytes that the model would need with B sequences in a micro-batch and another recompute. */
static int64_t needed_with(const Model *m, int64_t B, Recompute recompute) {
    ModelShape s = m->shape;
    Model other;
    s.B = B;
    s.recompute = recompute;
    model_plan(&other, &s, m->k, m->team);
    int64_t need = memory_needed(&other);
    model_free(&other);
    return need;
}

void memory_require(const Model *m, int ranks, const Group *g, FILE *f) {
    int64_t mine = memory_free(m) / ranks, need = memory_needed(m); // mine 0: unknown
    int whose;
    double least_free = group_min(g, mine ? (double)mine : INFINITY, &whose);
    if (g->rank > 0 || (double)need <= least_free) return;
    int64_t have = (int64_t)least_free;
    int64_t least = m->shape.overlap.halves ? 2 : 1; // sequences of a micro-batch; a multiple of it
    int found = 0;
    memory_print(m, f);
    fprintf(f, "this does not fit; what would:\n");
    for (int r = (int)m->shape.recompute; r <= RECOMPUTE_FULL && m->shape.training; r++) {
        if (needed_with(m, least, (Recompute)r) > have) continue;
        for (int64_t B = m->shape.B; B >= least; B = B / 2 / least * least) {
            int64_t with = needed_with(m, B, (Recompute)r);
            if (with > have) continue;
            fprintf(f, "  --micro %" PRId64 " --recompute %s  needs %.1f MiB\n", B,
                    recompute_name((Recompute)r), mib(with));
            found++;
            break; // smaller micro-batches fit as well
        }
    }
    if (!found)
        fprintf(f,
                "  only a smaller model, a shorter --seq or more ranks: even --micro %" PRId64
                " --recompute full does not fit\n",
                least);
    fflush(f);
    char where[32] = "";
    if (least_free < 0.9 * (double)mine) // less by a little: free memory has changed since
        snprintf(where, sizeof where, "%srank %d", m->k->memory ? " of " : " to ", whose);
    die_user(
        "needs %.1f MiB of memory%s, %.1f MiB are available%s%s; nothing was allocated or written",
        mib(need), g->size > 1 ? " a rank" : "", mib(have), m->k->memory ? " on the device" : "",
        where);
}
