/* Reads Linux's files about this node. */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/cgroup.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "parallel/comm/ranks.h"
#include "parallel/plan/detect_parts.h"

/* ---- files of one line ---- */

static bool read_line(char *line, size_t n, const char *root, const char *path) {
    char *whole = mem_printf("%s%s", root, path);
    FILE *f = fopen(whole, "r");
    mem_free(whole);
    bool ok = f && fgets(line, (int)n, f);
    if (f) fclose(f);
    return ok;
}

/* "0-3,8-11" */
static bool read_set(cpu_set_t *set, const char *root, const char *path) {
    char line[4096];
    int from, to, n;
    CPU_ZERO(set);
    if (!read_line(line, sizeof line, root, path)) return false;
    for (const char *s = line; sscanf(s, "%d%n", &from, &n) == 1; s += *s == ',') {
        s += n, to = from;
        if (sscanf(s, "-%d%n", &to, &n) == 1) s += n;
        for (int i = from; i >= 0 && i <= to && i < CPU_SETSIZE; i++) CPU_SET((size_t)i, set);
    }
    return CPU_COUNT(set) > 0;
}

/* ---- hardware threads ---- */

/* The first number in a file about a hardware thread; `otherwise`: there is no such file. */
static int topology(const char *root, int i, const char *file, int otherwise) {
    char path[96], line[64];
    int x;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", i, file);
    return read_line(line, sizeof line, root, path) && sscanf(line, "%d", &x) == 1 ? x : otherwise;
}

static void read_cpu(Cpus *c, int i, const char *root) {
    int sibling = topology(root, i, "thread_siblings_list", i), // the first one; i is among them
        socket = topology(root, i, "physical_package_id", 0);
    c->cpu[i].core = (int16_t)min_i64(sibling, i);
    c->cpu[i].socket = (int16_t)max_i64(socket, 0); // a virtual machine may say -1
}

/* The least number of a socket above another; INT16_MAX: there is none. */
static int next_socket(const Cpus *c, int above) {
    int least = INT16_MAX;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (c->cpu[i].core >= 0 && c->cpu[i].socket > above && c->cpu[i].socket < least)
            least = c->cpu[i].socket;
    return least;
}

/* Numbers cores and sockets from 0, in which read_cpu left numbers of the system: for a core that
 * of one of its hardware threads. */
static void number_cpus(Cpus *c) {
    int16_t number[CPU_SETSIZE], core = 0, socket = 0;
    memset(number, -1, sizeof number); // [.core by read_cpu]: number of the core; -1: none yet
    for (int s = next_socket(c, -1); s < INT16_MAX; s = next_socket(c, s), socket++)
        for (int i = 0; i < CPU_SETSIZE; i++) {
            int of = c->cpu[i].core;
            if (of < 0 || c->cpu[i].socket != s) continue;
            if (number[of] < 0) number[of] = core++;
            c->cpu[i].socket = socket;
        }
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (c->cpu[i].core >= 0) c->cpu[i].core = number[c->cpu[i].core];
}

bool cpus_sysfs(Cpus *c, const char *root) {
    cpu_set_t online;
    memset(c, 0, sizeof *c);
    bool ok = read_set(&online, root, "/sys/devices/system/cpu/online");
    for (int i = 0; i < CPU_SETSIZE; i++) {
        c->cpu[i].core = -1;
        if (ok && CPU_ISSET((size_t)i, &online)) read_cpu(c, i, root);
    }
    if (ok) number_cpus(c);
    return ok;
}

static Cpus here;

static void read_here(void) {
    if (cpus_sysfs(&here, "")) return;
    memset(&here, 0, sizeof here);
    for (int i = 0; i < CPU_SETSIZE; i++) here.cpu[i].core = (int16_t)i;
}

const Cpus *cpus_here(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_here);
    return &here;
}

/* A thread may always widen its own set to what a control group grants. */
static void *widen(void *arg) {
    cpu_set_t *set = arg;
    memset(set, 0xff, sizeof *set);
    sched_setaffinity(0, sizeof *set, set);
    if (sched_getaffinity(0, sizeof *set, set)) CPU_ZERO(set);
    return NULL;
}

void cpus_allowed(cpu_set_t *set) {
    pthread_t thread; // widens its own set, not the caller's
    CPU_ZERO(set);
    if (pthread_create(&thread, NULL, widen, set) == 0) pthread_join(thread, NULL);
}

void node_cpus(NodeFacts *n, const Cpus *c, const cpu_set_t *allowed) {
    bool core[CPU_SETSIZE] = {0}, socket[CPU_SETSIZE] = {0};
    n->cores = n->sockets = n->threads = 0;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET((size_t)i, allowed) || c->cpu[i].core < 0) continue;
        n->threads++;
        n->cores += !core[c->cpu[i].core], core[c->cpu[i].core] = true;
        n->sockets += !socket[c->cpu[i].socket], socket[c->cpu[i].socket] = true;
    }
}

void cpus_one_per_core(const Cpus *c, cpu_set_t *set) {
    bool core[CPU_SETSIZE] = {0};
    for (int i = 0; i < CPU_SETSIZE; i++) {
        int of = c->cpu[i].core;
        if (!CPU_ISSET((size_t)i, set) || of < 0) continue;
        if (core[of]) CPU_CLR((size_t)i, set);
        core[of] = true;
    }
}

void detect_use_cores(int n) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return;
    cpus_one_per_core(cpus_here(), &set);
    if (CPU_COUNT(&set) % n == 0) sched_setaffinity(0, sizeof set, &set);
}

void rank_cores(RankFacts *r, const Cpus *c, const cpu_set_t *mine) {
    NodeFacts sums;
    node_cpus(&sums, c, mine);
    r->n_cores = sums.cores, r->sockets = sums.sockets;
    r->first_core = NODE_CORES;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        int core = c->cpu[i].core;
        if (!CPU_ISSET((size_t)i, mine) || core < 0 || core >= NODE_CORES) continue;
        r->core[core / 64] |= (uint64_t)1 << core % 64;
        if (core < r->first_core) r->first_core = core, r->socket = c->cpu[i].socket;
    }
    if (r->first_core == NODE_CORES) r->first_core = 0;
}

/* ---- time ---- */

static int64_t cores_of(int64_t quota, int64_t period) {
    return quota > 0 && period > 0 ? (quota + period - 1) / period : INT64_MAX;
}

/* Cores whose time a control group grants, by the files of version 2 and of version 1. */
static int64_t cores_granted(const char *group) {
    char line[64];
    int64_t quota = 0, period = 0; // the first may be "max"
    if (read_line(line, sizeof line, group, "/cpu.max"))
        sscanf(line, "%" SCNd64 " %" SCNd64, &quota, &period);
    return cores_of(quota, period);
}
static int64_t cores_granted_v1(const char *group) {
    char quota[64], period[64];
    bool known = read_line(quota, sizeof quota, group, "/cpu.cfs_quota_us") &&
                 read_line(period, sizeof period, group, "/cpu.cfs_period_us");
    return known ? cores_of(atoll(quota), atoll(period)) : INT64_MAX;
}

/* Only the group with the least limit counts: where a job's quota is shared by groups of single
 * ranks with quotas of their own, their sum may exceed it. */
int detect_quota(World *w, const char *root) {
    CgroupLimit mine = cgroup_least(root, cores_granted, "cpu", cores_granted_v1);
    Group g = comm_group(world_comm(w));
    uint64_t *group = mem_calloc((size_t)g.size, sizeof *group);
    int *node = ranks_nodes(w), neighbours = 0, sharing = 0;
    group_all_gather(&g, &mine.group, sizeof mine.group, group);
    for (int r = 0; r < g.size; r++) {
        neighbours += node[r] == node[g.rank];
        sharing += node[r] == node[g.rank] && group[r] == mine.group;
    }
    mem_free(group), mem_free(node);
    return mine.least < INT_MAX ? (int)min_i64(mine.least * neighbours / sharing, INT_MAX) : 0;
}
