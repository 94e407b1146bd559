#include "data/io_map.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/claim.h"
#include "base/mem.h"

/* A mapped range of memory and its file, for the signal handler. The handler walks the list without
 * a lock, so regions are never freed: after io_unmap the region is used for a later map. */
struct IoRegion {
    _Atomic bool used;
    _Atomic uintptr_t begin;
    _Atomic size_t n;
    char path[512];
    dev_t device;
    ino_t inode;
    IoRegion *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // held while the list changes
static IoRegion *_Atomic regions;
static IoRegion *_Atomic truncated; // the first file that was found truncated or noted
static _Atomic bool survive;

void io_map_fill_truncated(void) {
    survive = true;
}

bool io_map_truncated(Err *e) {
    const IoRegion *r = truncated;
    if (r) err(e, "%s changed while it was in use: restore its contents", r->path);
    return r != NULL;
}

static void note(IoRegion *r) {
    IoRegion *none = NULL;
    atomic_compare_exchange_strong(&truncated, &none, r);
}

/* Calls only functions that are allowed in a signal handler; mmap is a plain system call. */
static void on_bus_error(int sig, siginfo_t *info, void *context) {
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (IoRegion *r = regions; r; r = r->next) {
        uintptr_t begin = r->begin, end = begin + r->n;
        if (at < begin || at >= end) continue;
        uintptr_t from = at - at % page;
        void *zeros = mmap((void *)from, end - from, PROT_READ, // NOLINT(performance-no-int-to-ptr)
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (!survive || zeros == MAP_FAILED)
            die_in_handler(1, r->path, " became shorter while it was read");
        note(r);
        return;
    }
    signal(sig, SIG_DFL); // no mapped file: the access is repeated and ends the program
}

static void install_handler(void) {
    struct sigaction s = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&s.sa_mask);
    sigaction(SIGBUS, &s, NULL);
}

static IoRegion *region_add(const IoMap *m, const struct stat *st) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_handler);
    pthread_mutex_lock(&lock);
    IoRegion *r = regions;
    while (r && (r->used || r == truncated)) r = r->next;
    bool fresh = !r;
    if (fresh) r = mem_calloc(1, sizeof *r);
    r->used = true;
    r->device = st->st_dev, r->inode = st->st_ino;
    snprintf(r->path, sizeof r->path, "%s", m->path);
    r->begin = (uintptr_t)m->p;
    r->n = m->n;
    if (fresh) r->next = regions, regions = r;
    pthread_mutex_unlock(&lock);
    return r;
}

void io_map_mark_changed(const IoMap *m) {
    if (m->region) note(m->region);
}

void io_map_check(const IoMap *m) {
    struct stat st;
    if (!m->region || stat(m->path, &st))
        return; // a file that was renamed or removed keeps its bytes
    bool same = st.st_dev == m->region->device && st.st_ino == m->region->inode;
    if (same && (uint64_t)st.st_size < m->n) note(m->region);
}

/* Maps the open file fd; the caller closes fd. */
static bool map(IoMap *m, int fd, const char *path, Err *e) {
    struct stat st;
    if (fstat(fd, &st)) return err(e, "cannot open %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) return err(e, "%s is a folder; name a file in it", path);
    if (!S_ISREG(st.st_mode)) return err(e, "%s is not a regular file; copy it to one", path);
    *m = (IoMap){.p = (const uint8_t *)"", .n = (size_t)st.st_size};
    if (!claim_input(path, &st, e)) return false;
    if (m->n > 0) {
        void *p = mmap(NULL, m->n, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            claim_input_end(st.st_dev, st.st_ino);
            return err(e, "cannot map %s: %s", path, strerror(errno));
        }
        m->p = p;
    }
    m->path = mem_strdup(path);
    m->region = region_add(m, &st);
    return true;
}

bool io_map(IoMap *m, const char *path, Err *e) {
    // O_NONBLOCK: open must not wait for the writer of a pipe
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return err(e, "cannot open %s: %s", path, strerror(errno));
    bool ok = map(m, fd, path, e);
    if (!ok) *m = (IoMap){0};
    close(fd);
    return ok;
}

IoMap io_open(const char *path) {
    IoMap m;
    Err e;
    if (!io_map(&m, path, &e)) die_user("%s", e.text);
    return m;
}

/* Waits for more of a pipe that is empty and non-blocking (another process may have made it so). */
static bool wait_for_more(FILE *f) {
    if (!ferror(f) || errno != EAGAIN) return false;
    clearerr(f);
    poll(&(struct pollfd){.fd = fileno(f), .events = POLLIN}, 1, -1);
    return true;
}

IoMap io_read(FILE *f, const char *name) {
    uint8_t *p = NULL;
    size_t n = 0, cap = 0, got;
    do {
        if (n == cap) p = mem_realloc(p, cap = 2 * cap + (1 << 16), 1);
        n += got = fread(p + n, 1, cap - n, f);
    } while (wait_for_more(f) || got > 0);
    if (ferror(f)) die_user("cannot read %s: %s", name, strerror(errno));
    return (IoMap){.p = p, .n = n};
}

/* p without const, as madvise, munmap and free take it. */
static void *writable(const uint8_t *p) {
    return (void *)(uintptr_t)p; // NOLINT(performance-no-int-to-ptr)
}

void io_prefetch(const void *p, size_t n) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), before = (uintptr_t)p % page;
    madvise(writable((const uint8_t *)p - before), n + before, MADV_WILLNEED);
}

void io_unmap(IoMap *m) {
    if (m->region) {
        claim_input_end(m->region->device, m->region->inode);
        m->region->n = 0;
        m->region->used = false; // from here on region_add may reuse it
    }
    if (!m->region)
        mem_free(writable(m->p));
    else if (m->n > 0)
        munmap(writable(m->p), m->n);
    mem_free(m->path);
    *m = (IoMap){0};
}
