#include "parallel/comm/coll_mpi_job.h"

#include <fcntl.h>
#include <limits.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/die.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/comm/coll_mpi_flight.h"
#include "parallel/comm/ranks.h"

void mpi_job_check(int rc, const char *function) {
    if (rc == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    MPI_Error_string(rc, text, &n);
    die("%s: %s", function, text);
}

static MPI_Comm notice; // a dying rank sends a message on this communicator
static bool terminated; // SIGTERM has arrived

/* ---- SIGTERM. A launcher sends SIGTERM to the surviving ranks when one is gone; a user sends it
 * to stop the run after this step. The signal is blocked except at points between two calls, so
 * that a rank can report its wait before the process ends. */

static sigset_t term_set(void) {
    sigset_t s;
    sigemptyset(&s);
    sigaddset(&s, SIGTERM);
    return s;
}

bool mpi_job_sleep(double seconds) {
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
    for (int i = 0; i < 100 && !yes; i++) // each call receives a few messages
        MPI_Iprobe(MPI_ANY_SOURCE, 0, notice, &yes, MPI_STATUS_IGNORE);
    return yes;
}

/* Ends all ranks. MPI_Abort needs the launcher, which may be unreachable: then the alarm ends this
 * process. */
static void end_all(int status) {
    int size;
    alarm(5);
    MPI_Comm_size(notice, &size);
    // COLL_EXPIRED needs no notice: every rank that waits reports it itself
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

/* ---- calls of MPI that wait for other ranks without a limit */

static struct {
    pthread_t thread;
    const char *not_yet;
    double limit;
    DieRank who;
} watch;

/* Only the first thread may call MPI, so this thread ends the process without the hook. The
 * launcher ends the other ranks. */
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
    sleep(1); // time for the messages of ranks that started later
    die_set_hook(NULL);
    die_end(COLL_EXPIRED);
}

void mpi_job_watch(const char *not_yet, double seconds) {
    watch.not_yet = not_yet, watch.limit = seconds, watch.who = die_rank();
    if (seconds <= 0) return;
    int rc = team_start_thread(&watch.thread, watch_call, NULL);
    if (rc) die_user("cannot start a thread: %s; " TEAM_MORE_THREADS, strerror(rc));
}

void mpi_job_watched(void) {
    if (watch.limit <= 0) return;
    pthread_cancel(watch.thread);
    pthread_join(watch.thread, NULL);
}

/* ---- the start */

void ranks_mpi_version(char *text, size_t n) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(library, &length); // may be called before MPI_Init
    library[strcspn(library, ",\n")] = 0;
    for (char *c = library; *c; c++)
        if (*c == '\t') *c = ' ';
    snprintf(text, n, "%s", library);
}

_Noreturn static void die_of_launcher(const char *why) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    // srun does not end the other processes, so each of them would print the line
    if (die_is_copy() && getenv("SLURM_STEP_NUM_TASKS")) die_end(2);
    ranks_mpi_version(library, sizeof library);
    die_usage("the launcher started %d processes, but %s: this program is built with %s; start it "
              "with that MPI's mpirun, or with srun --mpi=pmix or --mpi=pmi2; if there is no "
              "launcher, unset %s, which says so",
              ranks_launched(), why, library, ranks_launcher_variable());
}

/* Without --mpi, srun starts processes that MPI cannot join. Some MPIs then treat each process as a
 * job of its own. Open MPI ends each process with a page of text; that page is suppressed, and a
 * child that sees this process end prints one line instead. */
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

/* Settings of Open MPI's TCP transport, which MPI_Init reads from the environment. Variables that
 * the user has set are kept; other MPIs ignore these.
 *
 *   flags 1    A large message is sent in fragments. By default Open MPI sends the rest of a
 *              message at once, and the acknowledgement of the partner's message queues behind it:
 *              in an exchange one direction then waits for the other.
 *   limit      Messages up to FLIGHT_EAGER_LIMIT, instead of 64 KiB, are sent eagerly, without a
 *              rendezvous: the receiver mostly waits already. Open MPI's limit counts its header as
 *              well. Without room for it, messages of just this size (most are powers of two) would
 *              need a rendezvous, and would arrive in fragments in turns with those of later
 *              collectives. Fragments of larger messages have this size.
 *              all_reduce of 4 MiB on 4 hosts at 1 Gbit/s: 56 ms instead of 76; a step of z3 on 3
 *              hosts 5 ms apart: 1.18 s instead of 2.40 s. */
static void set_tcp(void) {
    enum { HEADER = 1 << 10 };
    char bytes[16];
    snprintf(bytes, sizeof bytes, "%d", FLIGHT_EAGER_LIMIT + HEADER);
    setenv("OMPI_MCA_btl_tcp_flags", "1", 0);
    setenv("OMPI_MCA_btl_tcp_eager_limit", bytes, 0);
    setenv("OMPI_MCA_btl_tcp_rndv_eager_limit", bytes, 0);
    setenv("OMPI_MCA_btl_tcp_max_send_size", bytes, 0);
}

void mpi_job_begin(int *rank, int *size, double limit) {
    char node[HOST_NAME_MAX + 1] = "unknown";
    int provided;
    set_tcp();
    sigset_t s = term_set();
    prctl(PR_SET_TIMERSLACK, 1000L);      // nanoseconds; by default the shortest sleep takes 55 us
    pthread_sigmask(SIG_BLOCK, &s, NULL); // before other threads start, which inherit the mask
    gethostname(node, sizeof node);
    die_set_rank(*rank, node);
    mpi_job_watch("MPI has not started", limit);
    if (getenv("SLURM_STEP_NUM_TASKS") && !getenv("PMIX_RANK") && !getenv("OMPI_COMM_WORLD_SIZE"))
        init_under_srun(&provided);
    else
        MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, size);
    if (ranks_launched() > 0 && *size != ranks_launched()) die_of_launcher("each of them is alone");
    // errors are returned. MPICH uses the handlers of these two communicators for errors that
    // belong to no other
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_dup(MPI_COMM_WORLD, &notice);
    die_set_hook(end_all);
}
