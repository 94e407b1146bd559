#include "parallel/coll_mpi_job.h"

#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"
#include "parallel/coll_backend.h"
#include "parallel/ranks.h"

void mpi_job_check(int rc, const char *function) {
    if (rc == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    MPI_Error_string(rc, text, &n);
    die("%s: %s", function, text);
}

static MPI_Comm notice; // who dies says so here
static bool terminated; // SIGTERM came

/* ---- SIGTERM. A launcher sends it to the survivors when a rank is gone, or a person who wants the run to
 * stop after this step. It is blocked but for moments between two calls, so that a wait can say what it
 * waited for before it ends. */

static sigset_t term_set(void) {
    sigset_t s;
    sigemptyset(&s);
    sigaddset(&s, SIGTERM);
    return s;
}

bool mpi_job_nap(double seconds) {
    sigset_t s = term_set();
    if (sigtimedwait(&s, NULL, &(struct timespec){.tv_nsec = (long)(seconds * 1e9)}) == SIGTERM)
        terminated = true;
    return terminated;
}

void mpi_job_deliver(void) {
    sigset_t s = term_set();
    if (terminated) raise(SIGTERM);
    terminated = false;
    pthread_sigmask(SIG_UNBLOCK, &s, NULL);
    pthread_sigmask(SIG_BLOCK, &s, NULL);
}

/* ---- the end */

bool mpi_job_is_dying(void) {
    int yes = 0;
    for (int i = 0; i < 100 && !yes; i++) // each takes a few messages from the wire
        MPI_Iprobe(MPI_ANY_SOURCE, 0, notice, &yes, MPI_STATUS_IGNORE);
    return yes;
}

/* Ends all ranks. MPI_Abort needs the launcher, which may be out of reach: then the alarm ends this one. */
static void end_all(int status) {
    int size;
    alarm(5);
    MPI_Comm_size(notice, &size);
    // who waited in vain says so on every rank: COLL_EXPIRED needs no notice
    for (int j = 0; j < size && status != COLL_EXPIRED; j++) {
        MPI_Request r;
        int done;
        MPI_Isend(NULL, 0, MPI_BYTE, j, 0, notice, &r);
        MPI_Test(&r, &done, MPI_STATUS_IGNORE);
    }
    MPI_Abort(MPI_COMM_WORLD, status);
}

void mpi_job_end(void) {
    die_set_hook(NULL);
    MPI_Comm_free(&notice);
    MPI_Finalize();
}

/* ---- calls of MPI that wait for other ranks and know no limit */

static struct {
    pthread_t thread;
    const char *not_yet;
    double limit;
    DieRank who;
} watch;

/* MPI is in the hands of the first thread: without the hook. The launcher ends the other ranks. */
static void *watch_call(void *arg) {
    time_t whole = (time_t)watch.limit;
    long rest = (long)((watch.limit - (double)whole) * 1e9);
    (void)arg;
    nanosleep(&(struct timespec){.tv_sec = whole, .tv_nsec = rest}, NULL);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    die_adopt_rank(watch.who);
    die_line("%s after %g s: a rank is missing, or hosts cannot reach each other through the "
             "network that MPI chose (Open MPI: --mca btl_tcp_if_include NAME of a card); "
             "--timeout allows more time",
             watch.not_yet, watch.limit);
    sleep(1); // for the lines of ranks that started later
    die_set_hook(NULL);
    die_end(COLL_EXPIRED);
}

void mpi_job_watch(const char *not_yet, double seconds) {
    watch.not_yet = not_yet, watch.limit = seconds, watch.who = die_rank();
    if (seconds <= 0) return;
    int rc = pthread_create(&watch.thread, NULL, watch_call, NULL);
    if (rc) die("cannot start a thread: %s", strerror(rc));
}

void mpi_job_watched(void) {
    if (watch.limit <= 0) return;
    pthread_cancel(watch.thread);
    pthread_join(watch.thread, NULL);
}

/* ---- the start */

_Noreturn static void die_of_launcher(const char *why) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int n;
    MPI_Get_library_version(library, &n);
    library[strcspn(library, ",\n")] = 0;
    for (char *c = library; *c; c++)
        if (*c == '\t') *c = ' ';
    die_usage("the launcher started %d processes, but %s: this program is built with %s; start it "
              "with that "
              "MPI's mpirun, or with srun --mpi=pmix or --mpi=pmi2",
              ranks_launched(), why, library);
}

/* srun starts processes that MPI cannot join when it is not told how (--mpi). Some MPIs then take each for a
 * job of its own; Open MPI ends it, with a page of text from every one. That page is not shown; a child that
 * sees this process end has a line in its place. */
static void init_under_srun(int *provided) {
    int ends[2], all = dup(STDERR_FILENO), none = open("/dev/null", O_WRONLY | O_CLOEXEC);
    pid_t child = pipe2(ends, O_CLOEXEC) == 0 ? fork() : -1;
    if (child == 0) {
        char c;
        close(ends[1]);
        if (read(ends[0], &c, 1) <= 0) die_of_launcher("MPI cannot start in them");
    }
    dup2(none, STDERR_FILENO);
    MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, provided);
    dup2(all, STDERR_FILENO);
    close(all);
    close(none);
    if (child < 0) return;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ends[0]);
    close(ends[1]);
}

/* Open MPI's TCP, left to itself, sends what is left of a large message at once, and the acknowledgement that the partner's
 * own message waits for stands behind it: in an exchange one direction waits for the other. 1: in fragments.
 * MPI_Init reads this; who has set it is obeyed, and other MPIs do not know it. */
static void send_in_fragments(void) {
    setenv("OMPI_MCA_btl_tcp_flags", "1", 0);
}

void mpi_job_begin(int *rank, int *size, double limit) {
    char node[64] = "unknown";
    int provided;
    send_in_fragments();
    sigset_t s = term_set();
    prctl(PR_SET_TIMERSLACK, 1000L);      // nanoseconds: else the shortest nap takes 55 us
    pthread_sigmask(SIG_BLOCK, &s, NULL); // before there are other threads, which inherit it
    gethostname(node, sizeof node - 1);
    die_set_rank(*rank, node);
    mpi_job_watch("MPI has not started", limit);
    if (getenv("SLURM_STEP_NUM_TASKS") && !getenv("PMIX_RANK") && !getenv("OMPI_COMM_WORLD_SIZE"))
        init_under_srun(&provided);
    else
        MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, size);
    if (ranks_launched() > 0 && *size != ranks_launched()) die_of_launcher("each of them is alone");
    // errors come back; MPICH asks these two when an error belongs to none of the program's groups
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_dup(MPI_COMM_WORLD, &notice);
    die_set_hook(end_all);
}

static MPI_Comm ranks_beside(void) {
    MPI_Comm node;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    return node;
}

/* False, and nothing else, where the variable does not say it. */
static bool nodes_as_told(int *node, int size) {
    const char *text = getenv("MESH_NODES");
    for (int r = 0; r < size && text; r++) {
        char *end;
        node[r] = (int)strtol(text, &end, 10);
        if (end == text || *end != (r < size - 1 ? ',' : 0))
            die_usage("MESH_NODES=%s is not the nodes of %d ranks", getenv("MESH_NODES"), size);
        text = end + 1;
    }
    return text != NULL;
}

void mpi_job_nodes(int *node) {
    int size, mine;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (nodes_as_told(node, size)) return;
    MPI_Comm beside = ranks_beside();
    MPI_Comm_rank(MPI_COMM_WORLD, &mine);
    MPI_Bcast(&mine, 1, MPI_INT, 0, beside); // its first rank names a node
    MPI_Allgather(&mine, 1, MPI_INT, node, 1, MPI_INT, MPI_COMM_WORLD);
    MPI_Comm_free(&beside);
}

int mpi_job_threads(void) {
    cpu_set_t mine, *all;
    MPI_Comm node = ranks_beside();
    int n, same = 0;
    MPI_Comm_size(node, &n);
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    all = mem_calloc((size_t)n, sizeof *all);
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, node);
    for (int i = 0; i < n; i++) same += CPU_EQUAL(&mine, &all[i]) != 0;
    MPI_Comm_free(&node);
    mem_free(all);
    int threads = CPU_COUNT(&mine) / same;
    return threads > 0 ? threads : 1;
}
