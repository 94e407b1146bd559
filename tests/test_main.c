/* The program build/run_tests. Tests run in worker processes, each of which takes the next test
 * that none has taken; their results lie in shared memory. What a test prints goes to a file of its
 * own, which the first process copies when the test has ended: so lines of tests that run at the
 * same time do not mix, and a test that crashes is one failure, not the end. */
#include "tests/test.h"

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/debug.h"
#include "layers/cuda/device.h"
#include "layers/kernels.h"
#include "tests/emu/emu.h"
#include "tests/emu/emu_cublaslt.h"
#include "tests/emu/emu_nccl.h"

enum { MAX_TESTS = 4096, MAX_JOBS = 64, LIMIT = BASE_DEBUG ? 2400 : 600 }; // s a test
typedef struct Test {
    const char *name, *file;
    TestFn f;
    bool alone;
} Test;
static Test tests[MAX_TESTS];
static int n_tests;

typedef enum { WAITING, RUNNING, PASSED, FAILED, SKIPPED } State;
typedef struct Result {
    State state;
    double wall, cpu; // seconds; cpu: of all threads and of the processes that the test started
    pid_t worker;     // the process that ran the test, and
    int status;       // how it ended, if the test did not return
} Result;
typedef struct Results {
    _Atomic int next;
    Result of[MAX_TESTS];
} Results;
static Results *results; // shared by all processes

static struct {
    bool verbose, times;
    int jobs; // 0: in this process
} o;

void test_register(const char *name, const char *file, TestFn f, bool alone) {
    if (n_tests == MAX_TESTS) abort();
    tests[n_tests++] = (Test){name, file, f, alone};
}

/* A word is a part of the name; ^word is how it begins. */
static bool wanted(const char *name, int n_words, char **words) {
    for (int i = 0; i < n_words; i++) {
        const char *word = words[i] + (*words[i] == '^'), *at = strstr(name, word);
        if (at && (word == words[i] || at == name)) return true;
    }
    return n_words == 0;
}

/* Those that run alone come last. */
static int in_order(const void *a, const void *b) {
    const Test *x = a, *y = b;
    int c = x->alone - y->alone;
    if (!c) c = strcmp(x->file, y->file);
    return c ? c : strcmp(x->name, y->name);
}

static double cpu_s(void) {
    double s = 0;
    for (int children = 0; children < 2; children++) {
        struct rusage r;
        getrusage(children ? RUSAGE_CHILDREN : RUSAGE_SELF, &r);
        s += (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
             1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
    }
    return s;
}

static void run_one(int i) {
    Result *r = &results->of[i];
    double wall = now_s(), cpu = cpu_s();
    r->state = RUNNING, r->worker = getpid();
    test_begin();
    // as they are at first, whatever the last test of this process left
    emu_set((EmuSetup){0}), emu_lt_setup = (EmuLtSetup){0}, emu_nccl_fault = (EmuNcclFault){0};
    tests[i].f();
    r->wall = now_s() - wall, r->cpu = cpu_s() - cpu;
    r->state = test_failed() ? FAILED : test_skipped() ? SKIPPED : PASSED;
}

/* A test did not return. */
static void print_end(int i) {
    int status = results->of[i].status, number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (number == SIGALRM)
        printf("    did not end within %d s\n", LIMIT);
    else if (number)
        printf("    ended by a signal: %s; under a debugger: build/run_tests -j 0 %s\n",
               strsignal(number), tests[i].name);
    else
        printf("    called exit(%d)\n", WEXITSTATUS(status));
}

static void print_result(int i) {
    const Result *r = &results->of[i];
    if (r->state == RUNNING) print_end(i);
    if (r->state == FAILED || r->state == RUNNING)
        printf("FAIL %s (%s)\n", tests[i].name, tests[i].file);
    else if (r->state == SKIPPED)
        printf("skip %s\n", tests[i].name);
    else if (o.verbose || r->wall > 2)
        printf("ok   %s (%.1f s)\n", tests[i].name, r->wall);
}

static const char *output_of(int i) {
    static char folder[128];
    if (!*folder) snprintf(folder, sizeof folder, "%s", test_tmpdir());
    return test_path("%s/%d", folder, i);
}

/* A worker: runs tests up to `end` and tells the first process of each that has ended. */
static void work(int end, int done) {
    int out = dup(STDOUT_FILENO), errors = dup(STDERR_FILENO);
    if (prctl(PR_SET_PDEATHSIG, SIGTERM)) abort();
    setenv("XDG_CACHE_HOME", test_tmpdir(), 1); // what runs leave for others is not the user's
    for (int i; (i = results->next++) < end;) {
        int f = open(output_of(i), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
        if (f < 0 || dup2(f, STDOUT_FILENO) < 0 || dup2(f, STDERR_FILENO) < 0) abort();
        close(f);
        if (!test_long()) alarm(LIMIT); // one that hangs ends its worker, and is named
        run_one(i);
        alarm(0);
        fflush(stdout);
        if (write(done, &i, sizeof i) != sizeof i) abort();
    }
    dup2(out, STDOUT_FILENO), dup2(errors, STDERR_FILENO);
    exit(0); // a sanitizer looks for leaks here
}

static void copy_output(int i) {
    char part[4096];
    ssize_t n;
    int f = open(output_of(i), O_RDONLY | O_CLOEXEC);
    while ((n = read(f, part, sizeof part)) > 0) fwrite(part, 1, (size_t)n, stdout);
    close(f);
    unlink(output_of(i));
    print_result(i);
}

/* The tests from `first` on in `jobs` processes. Returns how many processes ended as they should
 * not. */
static int run_in_workers(int first, int end, int jobs) {
    int done[2], bad = 0, i;
    pid_t worker[MAX_JOBS];
    results->next = first;
    while (results->next < end) { // once, unless tests crash all workers
        int from = results->next;
        if (pipe2(done, O_CLOEXEC)) abort();
        fflush(stdout);
        for (int w = 0; w < jobs; w++) {
            worker[w] = fork();
            if (worker[w] < 0) abort();
            if (worker[w] == 0) work(end, done[1]);
        }
        close(done[1]);
        while (read(done[0], &i, sizeof i) == sizeof i) copy_output(i);
        close(done[0]);
        int crashed = 0, ended_badly = 0;
        for (int w = 0, status; w < jobs; w++) {
            ended_badly += waitpid(worker[w], &status, 0) > 0 && status != 0;
            for (i = from; i < end; i++)
                if (results->of[i].worker == worker[w]) results->of[i].status = status;
        }
        for (i = from; i < end; i++)
            if (results->of[i].state == RUNNING) crashed++, copy_output(i);
        bad += ended_badly > crashed ? ended_badly - crashed : 0;
    }
    return bad;
}

static void run_here(void) {
    setenv("XDG_CACHE_HOME", test_tmpdir(), 1);
    for (int i = 0; i < n_tests; i++) run_one(i), print_result(i);
}

static int by_cpu(const void *a, const void *b) {
    double x = results->of[*(const int *)a].cpu, y = results->of[*(const int *)b].cpu;
    return (x < y) - (x > y);
}
static void print_times(void) {
    static int order[MAX_TESTS];
    double wall = 0, cpu = 0;
    for (int i = 0; i < n_tests; i++) order[i] = i;
    qsort(order, (size_t)n_tests, sizeof order[0], by_cpu);
    for (int i = 0; i < n_tests; i++) {
        const Result *r = &results->of[order[i]];
        printf("%7.2f s of processors %7.2f s  %s\n", r->cpu, r->wall, tests[order[i]].name);
        cpu += r->cpu, wall += r->wall;
    }
    printf("%7.2f s of processors %7.2f s  in all\n", cpu, wall);
}

static void read_options(int argc, char **argv, int *first) {
    int i = 1;
    int processors = (int)sysconf(_SC_NPROCESSORS_ONLN);
    o.jobs =
        test_on_device ? 0 : processors + (processors + 1) / 2; // a fifth of the time tests wait
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "-v") == 0)
            o.verbose = true;
        else if (strcmp(argv[i], "--times") == 0)
            o.times = true;
        else if (strcmp(argv[i], "-j") == 0)
            o.jobs = atoi(value), i++;
        else if (strcmp(argv[i], "--kernels") == 0)
            setenv("TRAIN_GPT_KERNELS", value, 1), i++;
        else {
            printf("usage: run_tests [-v] [-j JOBS] [--times] [--kernels SET] [word...]\n");
            exit(2);
        }
    }
    if (o.jobs > MAX_JOBS) o.jobs = MAX_JOBS;
    *first = i;
}

/* Programs of steps, prices and layouts come and go by the thousand: malloc gives them the memory
 * that earlier ones have freed, instead of fresh pages that the system clears for each. */
static void keep_freed_memory(void) {
    mallopt(M_MMAP_THRESHOLD, 32 << 20); // the most that glibc takes
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, 4 << 20);
}

int main(int argc, char **argv) {
    int first, n = 0, sum[SKIPPED + 1] = {0}, bad = 0, together = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    keep_freed_memory();
    if (!test_on_device) // what programs print is compared with what the processor computes
        setenv("CUDA_VISIBLE_DEVICES", "", 1);
    setenv("LC_ALL", "C", 1); // tests cut numbers out with awk, which may know decimal commas
    read_options(argc, argv, &first);
    kernels_cpu(NULL); // a set that is not here ends the program
    Err e;
    if (test_on_device && device_count(&e) == 0) {
        printf("no device to run the tests on: %s\n", e.text);
        return 1;
    }
    for (int i = 0; i < n_tests; i++)
        if (wanted(tests[i].name, argc - first, argv + first)) tests[n++] = tests[i];
    n_tests = n;
    qsort(tests, (size_t)n_tests, sizeof tests[0], in_order);
    results =
        mmap(NULL, sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (results == MAP_FAILED) abort();
    test_tmpdir(), output_of(0); // folders of this process, which removes them
    for (; together < n_tests && !tests[together].alone; together++) {
    }
    if (o.jobs <= 0)
        run_here();
    else
        bad = run_in_workers(0, together, o.jobs), bad += run_in_workers(together, n_tests, 1);
    for (int i = 0; i < n_tests; i++) sum[results->of[i].state]++;
    bad += sum[FAILED] + sum[RUNNING] + sum[WAITING];
    if (o.times) print_times();
    if (sum[PASSED] + bad == 0) printf("no test was run\n");
    printf("%d passed, %d failed, %d skipped\n", sum[PASSED], bad, sum[SKIPPED]);
    return bad || sum[PASSED] == 0;
}
