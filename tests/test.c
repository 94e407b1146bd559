#include "tests/test.h"

#include <ftw.h>
#include <jansson.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/team.h"
#include "data/tokenizer.h"
#include "parallel/plan/calibrate_parts.h"

static bool failed, skipped;
static char tmpdir[64];

void test_fail_at(const char *file, int line, const char *fmt, ...) {
    va_list ap;
    failed = true;
    printf("    %s:%d: ", file, line);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
}

void test_skip(const char *why) {
    skipped = true;
    printf("    skipped: %s\n", why);
}

bool test_failed(void) {
    return failed;
}
bool test_skipped(void) {
    return skipped;
}

static struct {
    bool one;
    cpu_set_t all;
} processors;

bool test_one_processor(bool one) {
    cpu_set_t here;
    if (one == processors.one) return true;
    if (one) {
        CPU_ZERO(&here);
        CPU_SET((size_t)sched_getcpu(), &here);
        if (sched_getaffinity(0, sizeof processors.all, &processors.all)) return false;
    }
    processors.one = one;
    return sched_setaffinity(0, sizeof here, one ? &here : &processors.all) == 0;
}

void test_begin(void) {
    failed = skipped = false;
    test_one_processor(false);
}

bool test_long(void) {
    return getenv("TEST_LONG") != NULL;
}

/* LeakSanitizer calls this function at the end of a process. A child of test_in_child may end by
 * die() and frees nothing then; searching it for leaks would take longer than most tests. */
static bool is_child;
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) {
    return is_child;
}

int test_in_child(void (*f)(void *), void *arg, char *text, size_t n_text) {
    int fd[2];
    fflush(stdout);
    if (pipe(fd)) abort();
    pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
        is_child = true;
        dup2(fd[1], STDERR_FILENO);
        close(fd[0]), close(fd[1]);
        f(arg);
        _exit(0);
    }
    close(fd[1]);
    size_t n = 0;
    char drain[512];
    for (;;) { // what does not fit is read and dropped, so that the child never blocks
        ssize_t got = n + 1 < n_text ? read(fd[0], text + n, n_text - 1 - n)
                                     : read(fd[0], drain, sizeof drain);
        if (got <= 0) break;
        if (n + 1 < n_text) n += (size_t)got;
    }
    if (n_text) text[n] = 0;
    close(fd[0]);
    int status;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void test_stop(void) {
    pid_t me = getpid();
    if (fork() == 0) {
        sleep(5);
        // again and again: of several threads this one may go on for a while before all stop
        for (; getppid() == me; usleep(200000)) kill(me, SIGCONT);
        _exit(0);
    }
    kill(me, SIGSTOP);
}

bool test_child_prints(const char *file, int line, int status, void (*f)(void *), void *arg,
                       const char *const *words) {
    char text[4096];
    int is = test_in_child(f, arg, text, sizeof text);
    bool good = is == status;
    for (; good && *words; words++) good = strstr(text, *words) != NULL;
    if (!good)
        test_fail_at(file, line, "status %d, not %d, or not all of the words in: %s", is, status,
                     text);
    return good;
}

/* The folder of this build's programs. Commands do not quote it: a path with spaces goes by a link.
 */
static const char *build_folder(void) {
    static char path[1024];
    if (*path) return path;
    if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) abort();
    *strrchr(path, '/') = 0;
    if (strchr(path, ' ')) {
        const char *link = test_path("%s/build", test_tmpdir());
        if (symlink(path, link)) abort();
        snprintf(path, sizeof path, "%s", link);
    }
    return path;
}

int test_shell(const char *dir, char *text, size_t n_text, const char *fmt, ...) {
    char what[2048], command[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    snprintf(command, sizeof command, "cd '%s' && { BUILD='%s'; %s; } 2>&1", dir, build_folder(),
             what);
    FILE *f = popen(command, "r");
    if (!f) return -1;
    size_t have = 0, got;
    char part[1024];
    while ((got = fread(part, 1, sizeof part, f)) > 0) {
        if (have + got >= n_text) have = 0; // only the end of the output is kept
        memcpy(text + have, part, got < n_text ? got : n_text - 1);
        have += got < n_text ? got : n_text - 1;
    }
    text[have] = 0;
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static pid_t tmpdir_owner;
static void remove_tmpdir(void) {
    if (tmpdir[0] && getpid() == tmpdir_owner) nftw(tmpdir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

char *test_read(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    size_t size = (size_t)ftell(f);
    char *text = mem_calloc(size + 1, 1);
    rewind(f);
    if (fread(text, 1, size, f) != size) abort();
    fclose(f);
    if (n) *n = size;
    return text;
}

bool test_same_files(const char *a, const char *b) {
    size_t n = 0, m = 0;
    OWNED(test_mem_end) char *x = test_read(a, &n), *y = test_read(b, &m);
    return x && y && n == m && memcmp(x, y, n) == 0;
}

bool test_same_calibration(const Calibration *a, const Calibration *b) {
    OWNED(test_mem_end) char *x = calibration_print(a, ""), *y = calibration_print(b, "");
    return strcmp(x, y) == 0;
}

int test_count(const char *text, const char *word) {
    int n = 0;
    for (; (text = strstr(text, word)); text++) n++;
    return n;
}

char *test_changed(const char *text, const char *from, const char *to) {
    const char *at = text ? strstr(text, from) : NULL;
    if (!at) die("a text to change has no \"%s\"", from);
    return mem_printf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

const char *test_tmpdir(void) {
    enum { LONGEST_BASE = 40 };
    static char path[32][96];
    static int n;
    if (!tmpdir[0]) {
        const char *base = getenv("TMPDIR");
        if (!base || strlen(base) > LONGEST_BASE) base = "/tmp"; // paths of tests are short arrays
        snprintf(tmpdir, sizeof tmpdir, "%s/gpt_test_XXXXXX", base);
        if (!mkdtemp(tmpdir)) die_user("cannot make a folder in %s: set TMPDIR to another", base);
        tmpdir_owner = getpid();
        atexit(remove_tmpdir);
    }
    char *p = path[n % 32];
    snprintf(p, sizeof path[0], "%s/%d_XXXXXX", tmpdir, n++);
    if (!mkdtemp(p)) abort();
    return p;
}

char *test_path(const char *fmt, ...) {
    static _Thread_local char path[32][640];
    static _Thread_local unsigned n;
    char *p = path[n++ % 32];
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(p, sizeof path[0], fmt, ap) >= (int)sizeof path[0]) abort();
    va_end(ap);
    return p;
}

void test_team_end(Team **t) {
    team_destroy(*t);
}
void test_tokenizer_end(Tokenizer **t) {
    tokenizer_free(*t);
}
void test_calibration_end(Calibration **c) {
    calibration_free(*c);
}
void test_json_end(json_t **j) {
    json_decref(*j);
}
void test_mem_end(void *pointer) {
    void *p;
    memcpy(&p, pointer, sizeof p);
    mem_free(p);
}

double test_nmse(const float *a, const float *b, size_t n) {
    double num = 0, den = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        num += d * d, den += (double)b[i] * (double)b[i];
    }
    if (isnan(num)) return INFINITY;
    return num == 0 ? 0 : num / (den > 0 ? den : 1e-30);
}

void test_fill(float *x, size_t n, float scale, unsigned seed) {
    uint32_t w[4] = {0}; // four random words per call of rng_words
    for (size_t i = 0; i < n; i++) {
        if (i % 4 == 0) rng_words(seed, 0x7e57, i / 4, w);
        x[i] = scale * (float)(0x1p-31 * w[i % 4] - 1);
    }
}

bool test_balanced(const char *html) {
    char stack[64][16];
    int depth = 0;
    for (const char *p = strchr(html, '<'); p; p = strchr(p + 1, '<')) {
        char name[16] = "";
        bool closes = p[1] == '/';
        if (p[1] == '!') continue;
        sscanf(p + 1 + closes, "%15[a-zA-Z0-9]", name);
        const char *end = strchr(p, '>');
        if (!name[0] || !end) return false;
        if (closes) {
            if (depth == 0 || strcmp(stack[--depth], name) != 0) return false;
        } else if (end[-1] != '/' && strcmp(name, "meta") != 0) {
            if (depth == 64) return false;
            strcpy(stack[depth++], name);
        }
        // the text of a script or a style is not markup
        if (!closes && strcmp(name, "script") == 0) p = strstr(p, "</script") - 1;
        if (!closes && strcmp(name, "style") == 0) p = strstr(p, "</style") - 1;
    }
    return depth == 0;
}
