#include "tests/emu/emu_memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <wchar.h>

#include "base/die.h"
#include "base/mem.h"
#include "tests/emu/runtime.h"

/* emu_memory -- layout of an allocation:
 *
 *  pages:   | .. strip | memory ................ | strip | page without access
 *                      ^ p, aligned
 *
 * The pages of an allocation (here: a piece) are inaccessible, so host code that touches them is
 * ended by a signal. When work of a device touches them first, the signal handler touched() makes
 * the piece accessible. When the work ends, the strips of such pieces are checked, and the pieces
 * are made inaccessible again. So a kernel pays for the few pieces that it uses, not for all. */
enum { STRIP = 256, POISON = 0xff, STRIP_BYTE = 0x77, PIECES = 4096 };

typedef struct Memory {
    char *pages, *p;
    size_t mapped, n_bytes; // mapped: bytes of the pages, without the last page
    int device;
    uint64_t number;
    bool open;
    int file;        // the file of the pages; 0: none
    MemoryName from; // memory of another process that was opened: its name
} Memory;
static Memory memory[PIECES];
static int n_memory, n_inside;
static _Atomic uint64_t numbers;
static __thread int inside;      // > 0: this thread executes work of a device
static struct sigaction earlier; // the handler of the signal before
static struct {
    char *p;
    size_t n_bytes;
} pinned[PIECES];
static int n_pinned;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

static void allow(Memory *m, bool yes) {
    if (mprotect(m->pages, m->mapped, yes ? PROT_READ | PROT_WRITE : PROT_NONE))
        die("mprotect refused %zu bytes", m->mapped);
    m->open = yes;
}

/* Handler of SIGSEGV. If the touched page is not device memory, or host code touched it, the
 * earlier handler is restored: the access is repeated and ends the program as it would without this
 * handler. */
static void touched(int signal, siginfo_t *info, void *context) {
    static const char of_host[] = "the host touched device memory: copy it with cudaMemcpy\n";
    const char *p = info->si_addr;
    bool found = false;
    (void)context;
    if (inside)
        pthread_mutex_lock(&lock);
    else if (pthread_mutex_trylock(&lock)) { // perhaps this thread holds it
        sigaction(signal, &earlier, NULL);
        return;
    }
    for (int i = 0; i < n_memory && !found; i++) {
        Memory *m = &memory[i];
        found = p >= m->pages && p < m->pages + m->mapped;
        if (found && inside && !m->open) allow(m, true);
    }
    pthread_mutex_unlock(&lock);
    if (found && inside) return;
    ssize_t done = found ? write(STDERR_FILENO, of_host, sizeof of_host - 1) : 0;
    (void)done;
    sigaction(signal, &earlier, NULL);
}
static void catch_touches(void) {
    struct sigaction s = {.sa_sigaction = touched, .sa_flags = SA_SIGINFO};
    if (sigaction(SIGSEGV, &s, &earlier)) die("no handler of SIGSEGV");
}

/* Maps pages without access. Large allocations use huge pages, if the system has them: access to a
 * piece is changed as a whole. */
static char *map_pages(size_t n_bytes) {
    const size_t huge = 2 << 20, spare = n_bytes >= huge ? huge : 0;
    char *all = mmap(NULL, n_bytes + spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return NULL;
    if (!spare) return all;
    size_t before = round_up((uintptr_t)all, huge) - (uintptr_t)all;
    if (before) munmap(all, before);
    if (before < spare) munmap(all + before + n_bytes, spare - before);
    madvise(all + before, n_bytes, MADV_HUGEPAGE);
    return all + before;
}

void memory_fill(void *p, int byte, size_t n_bytes) {
    wmemset(p, (wchar_t)((unsigned char)byte * 0x01010101u), n_bytes / 4);
    for (size_t i = n_bytes / 4 * 4; i < n_bytes; i++) ((char *)p)[i] = (char)byte;
}

static void add_piece(const Memory *m) {
    pthread_mutex_lock(&lock);
    if (n_memory == PIECES) die("more than %d pieces of device memory", PIECES);
    memory[n_memory++] = *m;
    pthread_mutex_unlock(&lock);
}

void *memory_take(size_t n_bytes, size_t align, int device) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, catch_touches);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = round_up(n_bytes, align);
    Memory m = {.n_bytes = n_bytes, .device = device, .mapped = round_up(room + STRIP, page)};
    m.number = ++numbers;
    m.pages = map_pages(m.mapped + page);
    if (!m.pages) return NULL;
    m.p = m.pages + m.mapped - room;
    allow(&m, true);
    memset(m.p - STRIP, STRIP_BYTE, STRIP);
    memory_fill(m.p, POISON, n_bytes); // fresh pages: they belong to this thread
    memset(m.p + n_bytes, STRIP_BYTE, room - n_bytes);
    allow(&m, false);
    add_piece(&m);
    return m.p;
}

static void check_edges(const Memory *m, const char *what) {
    const unsigned char *p = (const unsigned char *)m->p,
                        *end = (unsigned char *)m->pages + m->mapped;
    for (const unsigned char *q = p - STRIP; q < end; q++) {
        if (q == p) q += m->n_bytes;
        if (q < end && *q != STRIP_BYTE)
            die("%s: device memory was written %td bytes from the beginning of a piece of %zu "
                "bytes",
                what, q - p, m->n_bytes);
    }
}

/* The index of the piece that begins at p; opened: among those opened from other processes. */
static int index_of(const void *p, bool opened) {
    int i = 0;
    while (i < n_memory && (memory[i].p != p || (memory[i].from.process != 0) != opened)) i++;
    return i;
}

static void give(void *p, const char *what, bool opened) {
    pthread_mutex_lock(&lock);
    int i = index_of(p, opened);
    if (i == n_memory) die("%s of %p, which is no such memory", what, p);
    Memory m = memory[i];
    memory[i] = memory[--n_memory];
    for (i = 0; m.file && i < n_memory; i++)
        if (memory[i].from.process == getpid() && memory[i].from.file == m.file)
            die("%s of %p, which a rank has opened and not closed", what, p);
    pthread_mutex_unlock(&lock);
    allow(&m, true);
    check_edges(&m, what);
    munmap(m.pages, m.mapped + (size_t)sysconf(_SC_PAGESIZE));
    if (m.file) close(m.file);
}
void memory_give(void *p) {
    give(p, "cudaFree", false);
}
void memory_close(void *p) {
    give(p, "cudaIpcCloseMemHandle", true);
}

/* Replaces the pages of a piece by pages of a file, at the same address. */
bool memory_share(void *p, MemoryName *name) {
    pthread_mutex_lock(&lock);
    int i = index_of(p, false);
    Memory *m = &memory[i];
    bool found = i < n_memory;
    if (found && !m->file) {
        allow(m, true);
        m->file = memfd_create("device memory", MFD_CLOEXEC);
        bool kept = m->file > 0 && pwrite(m->file, m->pages, m->mapped, 0) == (ssize_t)m->mapped;
        void *at = mmap(m->pages, m->mapped, PROT_NONE, MAP_SHARED | MAP_FIXED, m->file, 0);
        if (!kept || at == MAP_FAILED) die("no file for %zu bytes of device memory", m->mapped);
        m->open = false;
    }
    if (found)
        *name = (MemoryName){getpid(), m->file, m->device, m->n_bytes, (size_t)(m->p - m->pages),
                             m->mapped};
    pthread_mutex_unlock(&lock);
    return found;
}

void *memory_open(const MemoryName *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", name->process, name->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return NULL;
    Memory m = {.n_bytes = name->n_bytes, .mapped = name->mapped, .device = name->device};
    m.from = *name, m.number = ++numbers;
    m.pages = map_pages(m.mapped + (size_t)sysconf(_SC_PAGESIZE));
    if (!m.pages ||
        mmap(m.pages, m.mapped, PROT_NONE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
        die("no place for %zu bytes of another rank's device memory", m.mapped);
    close(file);
    m.p = m.pages + name->before;
    add_piece(&m);
    return m.p;
}

void memory_enter(void) {
    pthread_mutex_lock(&lock);
    n_inside++, inside++;
    pthread_mutex_unlock(&lock);
}

void memory_leave(const char *what) {
    pthread_mutex_lock(&lock);
    n_inside--, inside--;
    for (int i = 0; i < n_memory; i++) {
        if (!memory[i].open) continue;
        check_edges(&memory[i], what);
        if (n_inside == 0) allow(&memory[i], false);
    }
    pthread_mutex_unlock(&lock);
}

/* The piece that contains all these bytes; device -1 and number 0: none. */
static Memory find(const char *p, size_t n_bytes) {
    Memory found = {.device = -1};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_memory && found.device < 0; i++)
        if (p >= memory[i].p && p + n_bytes <= memory[i].p + memory[i].n_bytes) found = memory[i];
    pthread_mutex_unlock(&lock);
    return found;
}
bool emu_is_device(const void *p, size_t n_bytes) {
    return find(p, n_bytes).device >= 0;
}
int memory_device(const void *p) {
    return find(p, 1).device;
}
uint64_t memory_number(const void *p) {
    return find(p, 1).number;
}

size_t memory_in_use(int device) {
    size_t sum = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_memory; i++)
        sum += memory[i].device == device && !memory[i].from.process ? memory[i].n_bytes : 0;
    pthread_mutex_unlock(&lock);
    return sum;
}

void *memory_pin(size_t n_bytes) {
    char *p = mem_alloc_aligned(n_bytes ? n_bytes : 1, 64);
    pthread_mutex_lock(&lock);
    if (n_pinned == PIECES) die("more than %d pieces of pinned memory", PIECES);
    pinned[n_pinned].p = p, pinned[n_pinned++].n_bytes = n_bytes;
    pthread_mutex_unlock(&lock);
    return p;
}

void memory_unpin(void *p) {
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < n_pinned && pinned[i].p != p) i++;
    if (i == n_pinned) die("cudaFreeHost of %p, which cudaHostAlloc did not give", p);
    pinned[i] = pinned[--n_pinned];
    pthread_mutex_unlock(&lock);
    mem_free(p);
}

bool memory_is_pinned(const void *p, size_t n_bytes) {
    const char *at = p;
    bool is = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_pinned && !is; i++)
        is = at >= pinned[i].p && at + n_bytes <= pinned[i].p + pinned[i].n_bytes;
    pthread_mutex_unlock(&lock);
    return is;
}
