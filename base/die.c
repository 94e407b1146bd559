#include "base/die.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char program[64] = "train_gpt";
static _Thread_local DieRank rank_name; // "rank 2 on node7: " or empty
static _Atomic bool has_ranks;
static _Atomic bool ending;            // some thread is ending the process
static _Thread_local bool ending_here; // this thread is ending the process
static bool copy_of_command; // not the first process of the job, which reports errors that all find
static void (*exit_hook)(int status);
static void (*release_process)(void);
static void (*wipe_line)(void);

/* Opens files for the standard streams that the caller closed, so that no later file gets their
 * numbers. A file opened with O_PATH can neither be read nor written: EBADF, as for a closed
 * one. */
static void fill_closed_streams(void) {
    int fd;
    while ((fd = open("/", O_PATH)) >= 0 && fd <= STDERR_FILENO) {
    }
    close(fd);
}

bool die_flush(FILE *f) {
    return fflush(f) == 0 || errno == EPIPE || errno == EBADF;
}

static void check_output(void) {
    if (atomic_load(&ending) || die_flush(stdout)) return;
    die_line("cannot write the standard output: %s", strerror(errno));
    _exit(1);
}

void die_set_program(const char *argv0) {
    const char *slash = strrchr(argv0, '/');
    fill_closed_streams();
    // over the file size limit a write shall fail with EFBIG, not end the process without a word
    signal(SIGXFSZ, SIG_IGN);
    snprintf(program, sizeof program, "%s", slash ? slash + 1 : argv0);
    atexit(check_output);
}

void die_set_rank(int rank, const char *node) {
    snprintf(rank_name.text, sizeof rank_name.text, "rank %d%s%s: ", rank, node ? " on " : "",
             node ? node : "");
    atomic_store(&has_ranks, true);
}

void die_set_copy(bool is_copy) {
    copy_of_command = is_copy;
}

bool die_is_copy(void) {
    return copy_of_command;
}

DieRank die_rank(void) {
    return rank_name;
}

void die_adopt_rank(DieRank rank) {
    rank_name = rank;
}

void die_set_hook(void (*hook)(int status)) {
    exit_hook = hook;
}

void die_set_release(void (*release)(void)) {
    release_process = release;
}

void die_set_wipe(void (*wipe)(void)) {
    wipe_line = wipe;
}

/* Prints to text[n]. What does not fit loses its middle: there stand the names of files, which may
 * be long, and behind them the reason. */
static void print_shortened(char *text, size_t n, const char *fmt, va_list ap) {
    enum { MOST = 4 * PATH_MAX };
    static const char gap[] = " ... ";
    char whole[MOST];
    // less than 0: an argument cannot be printed
    if (vsnprintf(whole, MOST, fmt, ap) < 0) snprintf(whole, MOST, "%s", fmt);
    size_t all = strlen(whole), head = n / 3, tail = all - (n - head - sizeof gap);
    if (all >= n) { // not within a character of UTF-8
        while (head > 0 && (whole[head] & 0xc0) == 0x80) head--;
        while (tail < all && (whole[tail] & 0xc0) == 0x80) tail++;
        memcpy(whole + head, gap, sizeof gap - 1);
        memmove(whole + head + sizeof gap - 1, whole + tail, all - tail + 1);
    }
    memcpy(text, whole, strlen(whole) + 1);
}

/* Prints a message with one write(), so that lines of several ranks never interleave. A text that
 * begins with the name of a rank comes from group_agree: it is that rank's message, and this rank's
 * name is not put in front of it. Control characters, which the name of a file may contain, are
 * printed as '?', so that a message is one line. */
static void put_line(const char *kind, const char *text, const char *where) {
    char line[1536];
    bool of_rank = strncmp(text, "rank ", 5) == 0 && isdigit((unsigned char)text[5]);
    const char *prefix = of_rank ? "" : rank_name.text;
    int n = snprintf(line, sizeof line, "%s: %s%s%s%s\n", program, prefix, kind, text, where);
    size_t len = n < (int)sizeof line ? (size_t)n : sizeof line - 1;
    for (size_t i = 0; i < len; i++)
        if (iscntrl((unsigned char)line[i])) line[i] = '?';
    line[len - 1] = '\n';
    // another thread may wait, with stdout locked, for a reader that has stopped
    int held = ftrylockfile(stdout);
    for (int i = 0; i < 100 && held; i++) usleep(10 * 1000), held = ftrylockfile(stdout);
    if (!held) {
        if (wipe_line) wipe_line();
        fflush(stdout);
        funlockfile(stdout);
    }
    ssize_t done = write(STDERR_FILENO, line, len);
    (void)done; // nothing is left to report a failed report to
}

/* Returns in the first thread that dies; later ones wait for ever, so that one message is
 * printed. */
static void begin_ending(void) {
    if (atomic_exchange(&ending, true) && !ending_here)
        for (;;) pause();
    ending_here = true;
}

void die_end(int status) {
    begin_ending();
    if (release_process) {
        void (*release)(void) = release_process;
        release_process = NULL; // a function that dies itself must not come back here
        release();
    }
    if (exit_hook) {
        void (*hook)(int) = exit_hook;
        exit_hook = NULL; // likewise
        hook(status);
    }
    // exit() runs handlers and closes files that other ranks of this process still use
    if (atomic_load(&has_ranks)) _exit(status);
    exit(status);
}

static volatile sig_atomic_t late_status;
static void end_late(int signal) {
    (void)signal;
    _exit(late_status);
}

void die_after(unsigned seconds, int status) {
    late_status = status;
    signal(SIGALRM, end_late);
    alarm(seconds);
}

/* Gives the first process of the job time to report an error that all processes find. When it ends,
 * the launcher sends SIGTERM to this process, which then ends without a message of its own. */
static void wait_for_the_first(void) {
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    signal(SIGTERM, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &term, NULL);
    sleep(2); // busy launchers take their time
}

void die_at(const char *file, int line, const char *func, int status, const char *fmt, ...) {
    char text[1024], where[256] = "";
    va_list ap;
    begin_ending();
    va_start(ap, fmt);
    print_shortened(text, sizeof text, fmt, ap);
    va_end(ap);
    if (line > 0) snprintf(where, sizeof where, " (%s:%d %s)", file, line, func);
    if (copy_of_command)
        wait_for_the_first();
    else if (status == 2)
        rank_name.text[0] = 0; // all ranks have the same command line
    put_line("", text, where);
    die_end(status);
}

void die_in_handler(int status, const char *a, const char *b) {
    const char *const parts[] = {program, ": ", a, b, "\n"};
    char line[1024];
    size_t n = 0;
    for (int i = 0; i < 5; i++)
        for (const char *p = parts[i]; *p && n < sizeof line; p++) line[n++] = *p;
    ssize_t done = copy_of_command ? 0 : write(STDERR_FILENO, line, n);
    (void)done;
    _exit(status);
}

void die_print(const char *kind, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    print_shortened(text, sizeof text, fmt, ap);
    va_end(ap);
    put_line(kind, text, "");
}

bool err_set(Err *e, const char *fmt, ...) {
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        print_shortened(e->text, sizeof e->text, fmt, ap);
        va_end(ap);
    }
    return false;
}

bool err_in(Err *e, const char *place) {
    return err_set(e, "%s: %s", place, e ? e->text : "");
}
