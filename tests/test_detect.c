/* Detection: files of made-up machines, a driver that is not NVIDIA's, warnings, the tree, the
 * Machine; and ranks as threads. */
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

#include "base/version.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/comm/ranks.h"
#include "parallel/plan/detect_parts.h"
#include "parallel/step/memory.h"
#include "tests/machine_text.h"
#include "tests/parsed.h"
#include "tests/shell.h"

/* ---- files ---- */

/* A root folder with the files of: two sockets, numbered 0 and 3, of two cores with two hardware
 * threads each, numbered as Intel does (first all first threads, sockets in turn); hardware thread
 * 7 is off. */
static const char *two_sockets(void) {
    const char *root = test_tmpdir();
    int rc = test_shell(
        root, said, sizeof said,
        "c=sys/devices/system/cpu; mkdir -p $c; "
        "for i in 0 1 2 3 4 5 6; do mkdir -p $c/cpu$i/topology; "
        "echo $((i %% 2 * 3)) >$c/cpu$i/topology/physical_package_id; "
        "echo $((i %% 4)),$((i %% 4 + 4)) >$c/cpu$i/topology/thread_siblings_list; done; "
        "echo 3 >$c/cpu3/topology/thread_siblings_list; echo 0-2,3,4-6 >$c/online");
    return rc == 0 ? root : NULL;
}

static cpu_set_t set_of(const char *numbers) {
    cpu_set_t s;
    CPU_ZERO(&s);
    for (; *numbers; numbers++) CPU_SET((size_t)(*numbers - '0'), &s);
    return s;
}

TEST(detect_numbers_cores_along_sockets) {
    static const int core[] = {0, 2, 1, 3, 0, 2, 1}, socket[] = {0, 1, 0, 1, 0, 1, 0};
    const char *root = two_sockets();
    Cpus c;
    CHECK(root);
    CHECK(cpus_sysfs(&c, root));
    for (int i = 0; i < 7; i++) {
        CHECK(c.cpu[i].core == core[i]);
        CHECK(c.cpu[i].socket == socket[i]);
    }
    CHECK(c.cpu[7].core == -1);
    CHECK(!cpus_sysfs(&c, "/nowhere"));
    SHELL_IN(root, 0, "", "echo 0 >sys/devices/system/cpu/online"); // the only one of its socket
    CHECK(cpus_sysfs(&c, root) && c.cpu[0].core == 0 && c.cpu[0].socket == 0);
}

TEST(detect_counts_what_a_node_and_a_rank_may_use) {
    const char *root = two_sockets();
    Cpus c;
    NodeFacts n = {0};
    RankFacts r = {0}, both = {0};
    cpu_set_t all = set_of("0123456"), some = set_of("02456"), mine = set_of("15"),
              across = set_of("34");
    CHECK(root && cpus_sysfs(&c, root));
    node_cpus(&n, &c, &all);
    CHECK(n.sockets == 2 && n.cores == 4 && n.threads == 7);
    node_cpus(&n, &c, &some);
    CHECK(n.sockets == 2 && n.cores == 3 && n.threads == 5);
    rank_cores(&r, &c, &mine);
    CHECK(r.n_cores == 1 && r.first_core == 2 && r.socket == 1 && r.sockets == 1);
    CHECK(rank_has(&r, 2) && r.core[0] == 4);
    rank_cores(&both, &c, &across);
    CHECK(both.n_cores == 2 && both.first_core == 0 && both.socket == 0 && both.sockets == 2);
}

/* With the cores above a limit left out, detect_warn would say that no rank may use them. */
TEST(detect_knows_every_core_of_a_large_node) {
    static Cpus c;
    RankFacts r = {0};
    cpu_set_t mine;
    CPU_ZERO(&mine);
    for (size_t i = 0; i < CPU_SETSIZE; i++) c.cpu[i].core = (int16_t)i, CPU_SET(i, &mine);
    rank_cores(&r, &c, &mine);
    CHECK(r.n_cores == CPU_SETSIZE);
    for (int i = 0; i < r.n_cores; i++) CHECK(rank_has(&r, i));
}

TEST(detect_takes_one_hardware_thread_of_each_core) {
    static const char *const from[] = {"0123456", "456", "0415", "3", ""}, *const left[] = {
                                                                               "0123", "456", "01",
                                                                               "3", ""};
    const char *root = two_sockets();
    Cpus c;
    CHECK(root && cpus_sysfs(&c, root));
    for (int i = 0; i < 5; i++) {
        cpu_set_t set = set_of(from[i]), want = set_of(left[i]);
        cpus_one_per_core(&c, &set);
        CHECK(CPU_EQUAL(&set, &want));
    }
}

static int quota_of(World *w, void *roots) {
    return detect_quota(w, ((const char *const *)roots)[world_rank(w)]);
}
static int quota(const char *root) {
    return ranks_run(1, quota_of, &root);
}

/* Makes files under `root`. */
#define SETS(files) SHELL_IN(root, 0, "", files)

TEST(detect_reads_the_quota_of_a_control_group) {
    const char *root = test_tmpdir();
    SETS("mkdir -p sys/fs/cgroup; echo 150000 100000 >sys/fs/cgroup/cpu.max");
    CHECK(quota(root) == 2);
    CHECK(quota("/nowhere") == 0);
    SETS("echo max 100000 >sys/fs/cgroup/cpu.max");
    CHECK(quota(root) == 0);
}

/* Slurm, systemd and Kubernetes limit a group below the top one, or a group above the job's. */
TEST(detect_reads_the_least_quota_of_nested_control_groups) {
    const char *root = test_tmpdir();
    SETS("mkdir -p proc/self sys/fs/cgroup/job/step; printf '1:cpu,cpuacct:/other\n0::/job/step\n'"
         " >proc/self/cgroup; cd sys/fs/cgroup; echo 800000 100000 >cpu.max;"
         "echo 300000 100000 >job/cpu.max; echo max 100000 >job/step/cpu.max");
    CHECK(quota(root) == 3);
    SETS("echo 250000 200000 >sys/fs/cgroup/job/step/cpu.max");
    CHECK(quota(root) == 2);
    // version 1: a folder for the controllers, a file for each number; -1: no limit
    SETS("rm -r sys; mkdir -p sys/fs/cgroup/cpu,cpuacct/job/step; cd sys/fs/cgroup/cpu,cpuacct;"
         "ln -s cpu,cpuacct ../cpu; echo 4:cpuacct,cpu:/job/step >../../../../proc/self/cgroup;"
         "for f in . job job/step; do echo 100000 >$f/cpu.cfs_period_us; done;"
         "echo -1 >cpu.cfs_quota_us; echo 600000 >job/cpu.cfs_quota_us;"
         "echo -1 >job/step/cpu.cfs_quota_us");
    CHECK(quota(root) == 6);
    // in a container the top folder is the group that the file names by the host's path
    SETS("echo 4:cpu:/of/the/host >proc/self/cgroup; cd sys/fs/cgroup/cpu;"
         "echo 150000 >cpu.cfs_quota_us");
    CHECK(quota(root) == 2);
    SETS("echo 4:cpuset:/job >proc/self/cgroup; echo -1 >sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    CHECK(quota(root) == 0);
}

/* Control groups are told apart by the inodes of their folders; a container sees its own group as
 * the top one. */
TEST(detect_adds_the_quotas_of_containers_of_one_node) {
    const char *root = test_tmpdir();
    char first[PATH_MAX], second[PATH_MAX];
    SHELL_IN(root, 0, "",
             "for i in 1 2; do mkdir -p $i/sys/fs/cgroup $i/proc/self; echo 0::/ >"
             "$i/proc/self/cgroup; echo 300000 100000 >$i/sys/fs/cgroup/cpu.max; done");
    snprintf(first, sizeof first, "%s/1", root), snprintf(second, sizeof second, "%s/2", root);
    CHECK(ranks_run(2, quota_of, (const char *[]){first, first}) == 3);
    CHECK(ranks_run(2, quota_of, (const char *[]){first, second}) == 6);
}

TEST(detect_reads_the_memory_that_control_groups_leave) {
    const char *root = test_tmpdir();
    SETS("mkdir -p proc/self sys/fs/cgroup/job/step; echo MemAvailable: 8000 kB >proc/meminfo");
    CHECK(memory_available_under("/nowhere") == 0);
    CHECK(memory_available_under(root) == 8000 * 1024);
    // as in a container: files that were read, the data, fill all that is allowed
    SETS("cd sys/fs/cgroup; echo 5000000 | tee memory.max >memory.current;"
         "printf 'anon 1000000\nfile 4000000\ninactive_file 2500000\nactive_file 1500000\n'"
         " >memory.stat");
    CHECK(memory_available_under(root) == 4000000);
    SETS("echo max >sys/fs/cgroup/memory.max");
    CHECK(memory_available_under(root) == 8000 * 1024);
    // as on a node of a cluster: the job's own group lies below, its limit above the step's
    SETS("printf '4:memory:/x\n0::/job/step\n' >proc/self/cgroup; cd sys/fs/cgroup/job;"
         "echo max >step/memory.max; echo 3000000 >memory.max; echo 1000000 >memory.current");
    CHECK(memory_available_under(root) == 2000000);
    SETS("echo 3000000 >sys/fs/cgroup/job/memory.current"); // none is left: not the machine's
    CHECK(memory_available_under(root) == 1);
    SETS("echo 0::/elsewhere/../.. >proc/self/cgroup");
    CHECK(memory_available_under(root) == 8000 * 1024);
    // version 1: sums over the groups below are "total_"; a number near 2^63 is no limit
    SETS("echo 4:memory:/job/step >proc/self/cgroup; mkdir -p sys/fs/cgroup/memory/job/step;"
         "cd sys/fs/cgroup/memory; for f in . job job/step; do echo 9223372036854771712"
         " >$f/memory.limit_in_bytes; echo 3000000 >$f/memory.usage_in_bytes; done;"
         "echo 5000000 >job/memory.limit_in_bytes;"
         "printf 'inactive_file 7\ntotal_inactive_file 600000\ntotal_active_file 400000\n'"
         " >job/memory.stat");
    CHECK(memory_available_under(root) == 3000000);
}

/* ---- jobs that are made up ---- */

enum { MOST_NODES = 16, MOST_RANKS = 128 };
typedef struct Job {
    Detected d;
    NodeFacts node[MOST_NODES];
    RankFacts rank[MOST_RANKS];
} Job;

/* Nodes of two sockets with 4 cores each, and per_node ranks that divide them; until the next one
 * is made. */
static Job *job_make(int nodes, int per_node) {
    static Job job;
    Job *j = &job;
    *j = (Job){0};
    j->d = (Detected){.n_ranks = nodes * per_node,
                      .n_nodes = nodes,
                      .node = j->node,
                      .rank = j->rank,
                      .backend = "mpi",
                      .kernels = "avx2",
                      .flops = {50e9, 90e9}};
    for (int i = 0; i < nodes; i++) {
        NodeFacts *n = &j->node[i];
        *n = (NodeFacts){.cpu = "AMD EPYC 7543",
                         .sockets = 2,
                         .cores = 8,
                         .threads = 8,
                         .memory = (int64_t)32 << 30};
        snprintf(n->name, sizeof n->name, "h%d", i);
    }
    for (int r = 0; r < nodes * per_node; r++) {
        int n = 8 / per_node, first = r % per_node * n;
        j->rank[r] = (RankFacts){.node = r / per_node,
                                 .n_cores = n,
                                 .first_core = first,
                                 .socket = first / 4,
                                 .sockets = n > 4 ? 2 : 1,
                                 .threads = n,
                                 .speed = 1,
                                 .core = {((1ull << n) - 1) << first}};
    }
    return j;
}

static void bind_to(RankFacts *r, uint64_t cores, int threads) {
    r->core[0] = cores;
    r->n_cores = __builtin_popcountll(cores);
    r->first_core = __builtin_ctzll(cores);
    r->socket = r->first_core / 4;
    r->sockets = (cores & 0xf) && (cores & 0xf0) ? 2 : 1;
    r->threads = threads;
}

/* The warnings, one a line. */
static const char *warnings(Job *j) {
    static char text[MAX_WARNINGS * 200];
    size_t n = 0;
    *text = 0;
    detect_warn(&j->d);
    for (int i = 0; i < j->d.n_warnings; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\n", j->d.warning[i]);
    return text;
}

TEST(detect_of_ranks_on_gpus_goes_by_no_processor) {
    Job *j = job_make(1, 8);
    j->d.on_devices = true;
    j->rank[5].speed = 0.5;
    CHECK_STR(warnings(j), "");
    j->node[0].cores = j->node[0].threads = 6;
    CHECK_STR(warnings(j), "8 ranks with 8 threads share 6 cores of h0 and take turns: GPUs will "
                           "wait for their launches\n");
}

TEST(detect_has_nothing_to_say_of_good_bindings) {
    static const int per_node[] = {1, 2, 4, 8};
    for (EACH(p, per_node)) {
        Job *j = job_make(3, *p);
        CHECK_STR(warnings(j), "");
    }
}

TEST(detect_names_ranks_on_one_core_while_others_idle) {
    Job *j = job_make(1, 2);
    bind_to(&j->rank[0], 2, 1), bind_to(&j->rank[1], 2, 1);
    CHECK_STR(warnings(j), "ranks 0 and 1 are bound to core 1 of h0, and 7 of its 8 cores to none: "
                           "mpirun --map-by slot:PE=4, srun --cpus-per-task 4\n");
    j = job_make(1, 4);
    j->node[0].cores = 3; // fewer than ranks
    for (int r = 0; r < 4; r++) bind_to(&j->rank[r], 1, 1);
    CHECK(strstr(warnings(j), "2 of its 3 cores to none: mpirun --map-by slot:PE=1, srun"));
}

TEST(detect_tells_cores_without_a_rank) { // as mpirun -n 2 leaves them
    Job *j = job_make(3, 2);
    for (int r = 0; r < 6; r++) bind_to(&j->rank[r], 1u << (r % 2), 1);
    CHECK_STR(warnings(j), "no rank may use 6 of the 8 cores of h0: mpirun --map-by slot:PE=4, "
                           "srun --cpus-per-task 4 (and so on 2 more)\n");
}

TEST(detect_tells_more_ranks_or_threads_than_cores) {
    Job *j = job_make(1, 8);
    j->node[0].cores = j->node[0].threads = 6;
    for (int r = 0; r < 8; r++) bind_to(&j->rank[r], 0x3f, 1);
    j->node[0].sockets = 1;
    CHECK_STR(warnings(j),
              "8 ranks with 8 threads share 6 cores of h0 and take turns: fewer ranks\n");
    j = job_make(1, 2);
    j->rank[0].threads = 5;
    CHECK_STR(warnings(j),
              "2 ranks with 9 threads share 8 cores of h0 and take turns: fewer --threads\n");
    j->node[0].threads = 16; // two to a core
    CHECK_STR(warnings(j), "");
}

TEST(detect_tells_a_rank_on_two_sockets_that_could_have_one) {
    Job *j = job_make(1, 2);
    bind_to(&j->rank[0], 0x33, 4), bind_to(&j->rank[1], 0xcc, 4);
    CHECK_STR(warnings(j), "rank 0 on h0 runs 4 threads on 2 sockets, and one has room: mpirun "
                           "--map-by slot:PE=4, srun --cpus-per-task 4\n");
    bind_to(&j->rank[0], 0x11, 1);
    CHECK(strstr(warnings(j), "rank 0 on h0 runs 1 thread on 2 sockets, and one has room"));
}

TEST(detect_tells_what_a_control_group_does_not_grant) {
    Job *j = job_make(1, 2);
    j->node[0].quota = 8;
    CHECK_STR(warnings(j), "");
    j->node[0].quota = 2;
    CHECK_STR(warnings(j), "a control group grants h0 the time of 2 cores, and 8 threads will be "
                           "stopped in between: --threads\n");
}

TEST(detect_names_stragglers) {
    Job *j = job_make(4, 2);
    j->rank[5].speed = 0.81;
    CHECK_STR(warnings(j), "");
    j->rank[5].speed = 0.62;
    CHECK_STR(warnings(j), "rank 5 on h2 reaches 62 % of the median rank's speed: all wait\n");
    j->rank[3].speed = 0.7;
    CHECK_STR(warnings(j),
              "rank 5 on h2 reaches 62 % of the median rank's speed: all wait (slow: 3 5)\n");
    j->rank[0].speed = 0.5;
    CHECK_STR(warnings(j),
              "rank 0 on h0 reaches 50 % of the median rank's speed: all wait (slow: 0 3 5)\n");
}

TEST(detect_tells_nodes_that_differ) {
    Job *j = job_make(3, 2);
    strcpy(j->node[2].cpu, "AMD EPYC 7351");
    CHECK_STR(warnings(j),
              "nodes differ: h0 has 8 cores of AMD EPYC 7543, h2 8 of AMD EPYC 7351\n");
    j = job_make(2, 2);
    j->d.n_ranks = 3;
    bind_to(&j->rank[2], 0xf, 4);
    CHECK(
        strstr(warnings(j), "h0 has 2 ranks, h1 1: costs are those of a cluster with the fewest"));
    j = job_make(2, 2);
    for (int r = 0; r < 4; r++)
        j->rank[r].node = r % 2, bind_to(&j->rank[r], r < 2 ? 0xf : 0xf0, 4);
    CHECK(strstr(warnings(j), "ranks are dealt out to the nodes in turn"));
    CHECK(j->d.n_warnings == 1);
}

/* ---- the tree ---- */

static const char *tree(Job *j) {
    static char text[8192];
    FILE *f = fmemopen(text, sizeof text, "w");
    if (!f) return "";
    detect_warn(&j->d);
    detect_print(&j->d, f);
    fclose(f);
    return text;
}

TEST(detect_prints_nodes_and_ranks) {
    Job *j = job_make(2, 2);
    j->node[1].memory = (int64_t)64 << 30;
    j->node[1].threads = 16;
    bind_to(&j->rank[0], 0x6d, 4), bind_to(&j->rank[1], 0x6d, 4);
    j->node[0].sockets = 1; // no word about them
    CHECK_STR(tree(j),
              "2 nodes, 4 ranks (mpi) of 4 threads, avx2 kernels\n"
              "h0        AMD EPYC 7543, 1 socket, 8 cores, 32.0 GiB free\n"
              "          ranks 0-1  cores 0 2-3 5-6\n"
              "h1        AMD EPYC 7543, 2 sockets, 8 cores (16 hardware threads), 64.0 GiB free\n"
              "          rank 2  cores 0-3       rank 3  cores 4-7\n"
              "warning: no rank may use 3 of the 8 cores of h0: mpirun --map-by slot:PE=4, srun "
              "--cpus-per-task 4\n");
}

TEST(detect_prints_equal_nodes_once) {
    Job *j = job_make(8, 8);
    for (int i = 0; i < 8; i++) {
        j->node[i].memory -= i << 20; // what is free is never quite the same
    }
    bind_to(&j->rank[7 * 8], 2, 1), bind_to(&j->rank[7 * 8 + 1], 1, 1);
    CHECK_STR(tree(j),
              "8 nodes, 64 ranks (mpi) of 1 thread, avx2 kernels\n"
              "h0        AMD EPYC 7543, 2 sockets, 8 cores, 32.0 GiB free\n"
              "          rank 0  core 0          rank 1  core 1          rank 2  core 2          "
              "rank 3  core 3\n"
              "          rank 4  core 4          rank 5  core 5          rank 6  core 6          "
              "rank 7  core 7\n"
              "h1 ... h6 like h0: ranks 8-55\n"
              "h7        AMD EPYC 7543, 2 sockets, 8 cores, 32.0 GiB free\n"
              "          rank 56  core 1         rank 57  core 0         rank 58  core 2         "
              "rank 59  core 3\n"
              "          rank 60  core 4         rank 61  core 5         rank 62  core 6         "
              "rank 63  core 7\n");
}

TEST(detect_lists_are_shortened) {
    static const int item[] = {0, 1, 2, 4, 6, 8, 9, 100};
    char text[32];
    detect_list(text, sizeof text, item, 8);
    CHECK_STR(text, "0-2 4 6 8-9 100");
    detect_list(text, 12, item, 8);
    CHECK_STR(text, "0-2 4 6 ...");
    detect_list(text, sizeof text, item, 0);
    CHECK_STR(text, "");
}

TEST(detect_racks_where_far_nodes_are_slower) {
    CHECK(detect_rack_step((double[]){1, 1.1, 0.9, 1.2}, 4) == 0);
    CHECK(detect_rack_step((double[]){1, 5}, 2) == 1);
    CHECK(detect_rack_step((double[]){1, 1.1, 5, 5.2}, 4) == 2);
    CHECK(detect_rack_step((double[]){1, 2, 9, 9}, 4) == 2); // the clearest step
    CHECK(detect_rack_step((double[]){1, 3, 1, 3}, 4) == 0); // chance
    CHECK(detect_rack_step((double[]){4, 1, 1}, 3) == 0);    // neighbours were disturbed
    CHECK(detect_rack_step((double[]){1}, 1) == 0);
    Job *j = job_make(4, 2);
    j->d.links = (Links){.rack_nodes = 2,
                         .node = {2e-6, 5e9},
                         .rack = {30e-6, 120e6},
                         .network = {5e-3, 24e6}}; // not what its cards say
    CHECK(strstr(tree(j), "racks of 2 nodes: 0.96 Gbit/s from node to node, 0.192 out of a rack"));
    Machine m;
    detect_machine(&j->d, &m);
    const Level *rack = &m.level[m.n_levels - 2], *network = rack + 1;
    CHECK_STR(rack->name, "rack");
    CHECK(rack->ranks == 4 && rack->rank_rate == 120e6 && rack->port_rate == 120e6);
    CHECK(rack->latency == 30e-6 && network->latency == 5e-3);
    CHECK(network->ranks == 8 && network->rank_rate == 24e6 && network->port_rate == 24e6);
    CHECK(m.level[0].latency == 2e-6 && m.level[0].rank_rate == 5e9);
}

/* Four ranks on one, two or four nodes, the four in racks of two; from half to half messages of 0.2
 * ms pass at 50 MB/s, else at 400. */
static void wait_on_links(Comm *c, uint64_t number, const CollCall *call) {
    if (strcmp(call->what, "measuring links") == 0 && c->size == 2) {
        bool far = c->member[0] / 2 != c->member[1] / 2;
        double s = 0.2e-3 + (double)coll_elements(call) / (far ? 50e6 : 400e6);
        nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * s)}, NULL);
    }
    coll_threads.wait(c, number, call);
}

typedef struct Linked {
    int node[4];                  // of each rank
    double inside, network, rack; // bytes per second that are to be found; 0: no such links
    Links links;
} Linked;

static int links_of(World *w, void *ctx) {
    static CollBackend slow;
    Linked *l = ctx;
    RankFacts rank[4] = {{0}};
    Detected d = {.n_ranks = 4, .n_nodes = l->node[3] + 1, .rank = rank};
    for (int i = 0; i < 4; i++) rank[i].node = l->node[i];
    if (world_rank(w) == 0) slow = coll_threads, slow.wait = wait_on_links;
    coll_barrier(world_comm(w));
    w->backend = &slow;
    detect_links(&d, w);
    if (world_rank(w) == 0) l->links = d.links;
    return 0;
}

static bool cost_is(const LinkCost *c, double rate) {
    if (rate == 0) return c->rate == 0;
    return c->latency > 0.2e-3 && c->latency < 1e-3 && fabs(c->rate / rate - 1) < 0.3;
}

TEST(detect_measures_links_inside_nodes_between_them_and_between_racks) {
    Linked some[] = {
        {.node = {0, 0, 0, 0}, .inside = 400e6},
        {.node = {0, 0, 0, 1}, .inside = 400e6, .network = 50e6}, // two have no partner
        // two ranks share what leaves a node, or a rack
        {.node = {0, 0, 1, 1}, .inside = 400e6, .network = 100e6},
        {.node = {0, 1, 2, 3}, .rack = 400e6, .network = 100e6}};
    for (EACH(s, some)) {
        const Links *l = &s->links;
        bool good = false;
        for (int tries = 0; tries < 10 && !good; tries++) { // sleepers wake late
            ranks_run(4, links_of, s);
            good = cost_is(&l->node, s->inside) && cost_is(&l->network, s->network) &&
                   cost_is(&l->rack, s->rack) && l->rack_nodes == (s->rack > 0 ? 2 : 0);
        }
        CHECK(good);
    }
}

/* ---- the Machine ---- */

TEST(detect_machine_has_the_levels_of_the_job) {
    Job *j = job_make(3, 4);
    Machine m;
    detect_machine(&j->d, &m);
    CHECK(m.ranks == 12 && m.nodes == 3 && m.ranks_per_node == 4 && m.threads == 2);
    CHECK(m.n_levels == 3);
    CHECK_STR(m.level[0].name, "socket");
    CHECK_STR(m.level[1].name, "node");
    CHECK_STR(m.level[2].name, "network");
    CHECK(m.level[0].ranks == 2 && m.level[1].ranks == 4 && m.level[2].ranks == 12);
    CHECK(m.memory == (int64_t)8 << 30);                     // a quarter of a node's
    CHECK(m.level[2].port_rate == 0.956 * 1e9 / 8);          // of the preset
    CHECK(m.level[1].port_rate == 2 * m.level[0].rank_rate); // of a socket
    CHECK(m.flops[0] == 50e9 && m.flops[1] == 90e9 && m.slowest == 1);
    CHECK(m.algorithm == ALGORITHM_DIRECT && !m.measured);
    j->rank[6].socket = j->rank[7].socket = j->rank[5].socket; // a socket for all of a node
    detect_machine(&j->d, &m);
    CHECK(m.n_levels == 2 && m.level[0].ranks == 4);
    for (int r = 0; r < 12; r++) j->rank[r].socket = 0; // of every node
    detect_machine(&j->d, &m);
    CHECK_STR(m.level[0].name, "node");
    j = job_make(3, 4);
    j->rank[7].sockets = 2; // not bound to one
    detect_machine(&j->d, &m);
    CHECK(m.n_levels == 2 && m.level[0].ranks == 4);
}

TEST(detect_machine_reads_as_a_description) {
    static const int jobs[][2] = {{1, 1}, {1, 2}, {1, 8}, {2, 1}, {3, 2}, {5, 8}};
    for (int i = 0; i < N_OF(jobs); i++) {
        Job *j = job_make(jobs[i][0], jobs[i][1]);
        Machine m;
        detect_machine(&j->d, &m);
        OWNED(test_mem_end) char *text = machine_text(&m);
        Machine back = machine_described(text);
        CHECK(back.ranks == m.ranks && back.n_levels == m.n_levels);
    }
}

TEST(detect_machine_goes_by_the_smallest_and_slowest) {
    Job *j = job_make(2, 2);
    Machine m;
    j->d.n_ranks = 3; // two on h0, one on h1
    j->rank[1].speed = 0.5;
    j->rank[1].threads = 3;
    j->node[0].memory = (int64_t)10 << 30;
    detect_machine(&j->d, &m);
    CHECK(m.ranks == 3 && m.ranks_per_node == 1 && m.n_levels == 1);
    CHECK(m.level[0].ranks == 3 && m.level[0].rank_rate == 0.956 * 1e9 / 8);
    CHECK(m.threads == 3 && m.slowest == 2 && m.memory == (int64_t)5 << 30);
}

TEST(detect_machine_knows_no_near_ranks_where_they_are_dealt_out) {
    Job *j = job_make(2, 2);
    Machine m;
    for (int r = 0; r < 4; r++) j->rank[r].node = r % 2;
    detect_machine(&j->d, &m);
    CHECK(m.n_levels == 1 && m.level[0].ranks == 4 && m.level[0].port_rate == 0);
    CHECK(m.level[0].rank_rate == 0.956 * 1e9 / 8 / 2); // two ranks share a card
}

/* ---- the key ---- */

TEST(detect_key_is_of_what_costs_depend_on) {
    Job *j = job_make(2, 2);
    char key[256], other[256];
    detect_key(&j->d, key);
    CHECK(strncmp(key, "h0-2nodes-AMD EPYC 7543-4ranks-4threads-avx2-mpi-", 49) == 0);
    CHECK(strlen(key) < 200);
    CHECK(strstr(key, version_commit()) && strstr(key, version_build())); // and of the program
    j->d.links.rack_nodes = 2,
    j->d.links.network.rate = 1e6; // measured, and so never twice the same
    j->node[0].memory /= 2, j->rank[1].speed = 0.5;
    detect_key(&j->d, other);
    CHECK_STR(key, other);
    bind_to(&j->rank[1], 0xe0, 4);
    detect_key(&j->d, other);
    CHECK(strcmp(key, other) != 0);
    bind_to(&j->rank[1], 0xf0, 4);
    strcpy(j->node[1].name, "h9");
    detect_key(&j->d, other);
    CHECK(strcmp(key, other) != 0);
}

/* What tells processors of one name apart is at the end of a text, which nothing may cut off. */
TEST(detect_names_processors_to_the_end) {
    static const char *const xeon[] = {"Intel(R) Xeon(R) Processor, family 6 model 143",
                                       "Intel(R) Xeon(R) Processor, family 6 model 207"};
    char key[2][256];
    Machine m[2];
    for (int i = 0; i < 2; i++) {
        Job *j = job_make(16, 1);
        for (int n = 0; n < 16; n++) snprintf(j->node[n].cpu, sizeof j->node[n].cpu, "%s", xeon[i]);
        detect_key(&j->d, key[i]);
        detect_machine(&j->d, &m[i]);
        CHECK(strstr(key[i], i ? " family 6 model 207-" : " family 6 model 143-"));
    }
    CHECK_STR(m[0].name, "16 x Intel(R) Xeon(R) Processor, family 6 model 143");
    CHECK_STR(m[1].name, "16 x Intel(R) Xeon(R) Processor, family 6 model 207");
}

/* ---- ranks ---- */

static int detect_here(World *w, UNUSED void *ctx) {
    const Kernels *k = kernels_cpu(NULL);
    OWNED(test_team_end) Team *team = team_create(2);
    Group g = comm_group(world_comm(w));
    Detected d;
    char key[256], keys[4][256];
    cpu_set_t allowed;
    cpus_allowed(&allowed);
    detect(&d, w, k, team, false);
    detect_key(&d, key);
    group_all_gather(&g, key, sizeof key, keys);
    int wrong = strcmp(keys[0], key) != 0;
    wrong += d.n_ranks != 4 || d.n_nodes != 1 || strcmp(d.node[0].name, world_node(w)) != 0;
    wrong += d.node[0].threads != CPU_COUNT(&allowed) || d.node[0].cores < 1;
    wrong += d.node[0].sockets < 1 || d.node[0].memory <= 0 || !*d.node[0].cpu;
    wrong += strcmp(d.backend, "threads") != 0 || strcmp(d.kernels, kernels_cpu_sets()[0]) != 0;
    double least = 1, most = 1;
    for (int r = 0; r < 4; r++) {
        const RankFacts *f = &d.rank[r];
        wrong += f->node != 0 || f->n_cores < 1 || f->threads != 2 || !rank_has(f, f->first_core);
        least = f->speed < least ? f->speed : least, most = f->speed > most ? f->speed : most;
    }
    wrong += !(least > 0) || !(d.flops[0] > 1e6) || !(d.flops[1] > 1e6);
    wrong += least == 1 && most == 1; // four measurements are never the same
    detect_free(&d);
    return wrong;
}

TEST(detect_finds_threads_on_this_machine) {
    CHECK(ranks_run(4, detect_here, NULL) == 0);
}

/* Ranks 2 and 3 see another start of the kernel, as on another host of this name. */
static int on_hosts_of_one_name(World *w, void *file) {
    const char *boot = "/proc/sys/kernel/random/boot_id";
    OWNED(test_team_end) Team *team = team_create(1);
    Detected d;
    bool other = world_rank(w) >= 2;
    if (other && (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
                  mount(file, boot, NULL, MS_BIND, NULL)))
        _exit(77);
    NodeShare s = ranks_on_node(w);
    detect(&d, w, NULL, team, false);
    int wrong = s.local_size != 2 || s.local_rank != world_rank(w) % 2 || d.n_nodes != 2 ||
                d.rank[1].node != 0 || d.rank[2].node != 1;
    detect_free(&d);
    return wrong;
}
static void hosts_of_one_name(void *file) {
    _exit(ranks_run(4, on_hosts_of_one_name, file));
}
TEST(detect_tells_hosts_of_one_name_apart) {
    char text[256];
    const char *dir = test_tmpdir();
    SHELL_IN(dir, 0, "", "echo 00000000-1111-2222-3333-444444444444 >boot");
    int status = test_in_child(hosts_of_one_name, test_path("%s/boot", dir), text, sizeof text);
    SKIP_IF(status == 77, "only root may mount a file");
    CHECK(status == 0);
}

static int cores_of_a_pinned_team(World *w, void *ctx) {
    OWNED(test_team_end)
    Team *team = team_create(0); // one thread for each core, each pinned to its own
    Detected d;
    detect(&d, w, kernels_cpu(NULL), team, false);
    *(int *)ctx = d.rank[0].n_cores == d.node[0].cores;
    detect_free(&d);
    return 0;
}

TEST(detect_counts_all_cores_of_a_team) {
    int all = 0;
    SKIP_IF(team_cores() < 2, "one core");
    CHECK(ranks_run(1, cores_of_a_pinned_team, &all) == 0);
    CHECK(all);
}
