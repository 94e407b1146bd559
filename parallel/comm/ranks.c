#include "parallel/comm/ranks.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"
#include "parallel/comm/coll_backend.h"

/* Environment variables in which launchers put the number of ranks and the rank of this process. In
 * this order: Open MPI; MPICH, Intel MPI and srun --mpi=pmi2; MVAPICH; any srun; torchrun, which is
 * refused because its processes do not find each other through MPI. The two of srun exist only
 * within a job step, which only srun makes. In a batch script or an interactive allocation of many
 * tasks SLURM_NTASKS is set, but there is one process. */
typedef struct Launcher {
    const char *size, *rank;
} Launcher;
static const Launcher launchers[] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                     {"PMI_SIZE", "PMI_RANK"},
                                     {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
                                     {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
                                     {"ROLE_WORLD_SIZE", "ROLE_RANK"}};

enum { UNSAID = -1 }; // the launcher does not say the number of ranks; MPI knows it

/* The launcher that says the number of ranks; NULL: none. */
static const Launcher *launcher(void) {
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const char *size = getenv(launchers[i].size);
        if (size && getenv(launchers[i].rank) && atoi(size) >= 1) return &launchers[i];
    }
    return NULL;
}

const char *ranks_launcher_variable(void) {
    return launcher() ? launcher()->size : "PMIX_RANK";
}

static bool not_launched; // the ranks are threads of a launcher's only process

/* Returns the number of ranks of the launcher, UNSAID, or 0 without a launcher; *rank of this
 * process. */
static int launched_as(int *rank) {
    const Launcher *l = launcher();
    *rank = 0;
    if (not_launched) return 0;
    if (l) {
        *rank = atoi(getenv(l->rank));
        return atoi(getenv(l->size));
    }
    const char *pmix = getenv("PMIX_RANK");
    *rank = pmix ? atoi(pmix) : 0;
    return pmix ? UNSAID : 0;
}

void ranks_choose(int n) {
    int rank;
    if (n > 1 && launched_as(&rank) == 1) not_launched = true;
}

int ranks_launched(void) {
    int rank, size = launched_as(&rank);
    return size == UNSAID ? 0 : size;
}

bool ranks_under_launcher(void) {
    int rank;
    return launched_as(&rank) != 0;
}

void ranks_share_usage(void) {
    int rank;
    launched_as(&rank);
    die_set_copy(rank > 0);
    if (rank > 0) die_set_rank(rank, NULL);
}

static double start_limit = 60;

void ranks_set_start_limit(double seconds) {
    start_limit = seconds;
}

static void check_wanted(int n, int launched) {
    if (n > 0 && n != launched)
        die_usage("--ranks %d, but the launcher started %d: omit --ranks; if there is no "
                  "launcher, unset %s, which says so",
                  n, launched, ranks_launcher_variable());
}

int ranks_run(int n, int (*rank_main)(World *w, void *ctx), void *ctx) {
    ranks_choose(n);
    int rank, launched = launched_as(&rank);
    ranks_share_usage();
    if (launched > 0) check_wanted(n, launched);
    if (launched == 0 && n > MAX_THREAD_RANKS)
        die_usage(
            "--ranks %d: one process runs at most %d ranks; start more by a launcher (mpirun)", n,
            MAX_THREAD_RANKS);
    if (launched == 0 && n > 1) return world_threads_run(n, rank_main, ctx);
    bool processes = launched > 1 || launched == UNSAID;
    World *w = processes ? world_mpi_open(rank, start_limit) : world_self_open();
    check_wanted(n, world_size(w));
    int result = rank_main(w, ctx);
    world_free(w);
    return result;
}

/* What tells nodes apart. boot: the kernel's random number of its start; "": not known. */
typedef struct NodeName {
    char host[HOST_NAME_MAX + 1], boot[40];
} NodeName;

int *ranks_nodes(World *w) {
    Group g = comm_group(world_comm(w));
    NodeName mine = {{0}, {0}}, *name = mem_calloc((size_t)g.size, sizeof mine);
    int *node = mem_calloc((size_t)g.size, sizeof *node), n = 0;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    snprintf(mine.host, sizeof mine.host, "%s", world_node(w));
    if (f && fscanf(f, "%39s", mine.boot) != 1) *mine.boot = 0;
    if (f) fclose(f);
    group_all_gather(&g, &mine, sizeof mine, name);
    for (int r = 0; r < g.size; r++) {
        int same = 0;
        while (memcmp(&name[same], &name[r], sizeof mine) != 0) same++;
        node[r] = same < r ? node[same] : n++;
    }
    mem_free(name);
    return node;
}

NodeShare ranks_on_node(World *w) {
    Group g = comm_group(world_comm(w));
    cpu_set_t mine, cores, *all = mem_calloc((size_t)g.size, sizeof mine);
    int *node = ranks_nodes(w);
    NodeShare s = {0};
    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof mine, &mine)) CPU_SET(0, &mine);
    group_all_gather(&g, &mine, sizeof mine, all);
    CPU_ZERO(&cores);
    for (int i = 0; i < g.size; i++) {
        if (node[i] != node[g.rank]) continue;
        CPU_OR(&cores, &cores, &all[i]);
        s.local_size++, s.local_rank += i < g.rank, s.sharing += CPU_EQUAL(&all[i], &mine) != 0;
    }
    s.cores = CPU_COUNT(&cores);
    mem_free(all), mem_free(node);
    return s;
}

int ranks_threads(const NodeShare *s, int quota) {
    int threads = team_cores() / s->sharing;
    if (quota && quota / s->local_size < threads) threads = quota / s->local_size;
    return threads > 0 ? threads : 1;
}

_Noreturn void ranks_follow(const World *w) {
    sleep(30); // rank 0 prints its message and ends this rank too
    die("rank 0 of %d should have ended this job with a message, and did not", world_size(w));
}
