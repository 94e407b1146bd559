#include "tests/emu/emu_nccl.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"
#include "parallel/comm/nccl.h"
#include "tests/emu/emu_graph.h"
#include "tests/emu/emu_memory.h"
#include "tests/emu/nccl_parts.h"
#include "tests/emu/runtime.h"

enum { AHEAD = 4, CLIQUES = 256, PIECES = 64, MOST_SENT = 8 << 20 };
// versions from which on NCCL has buffers, has windows; the newest
enum { REGISTERS = 21900, WINDOWS = 22700, NEWEST = 22809 };

/* What a rank that is a process asks for. The source data are included, since addresses in its own
 * memory mean nothing in other processes. */
typedef struct Sent {
    Asked asked;
    char data[MOST_SENT]; // sources of its parts, concatenated
} Sent;

/* The communicators of all ranks with one id. Call number k, counted as devices come to it, uses
 * entry k % AHEAD; no rank is two calls ahead of another. If ranks are processes, the Clique lies
 * in a shared file. */
typedef struct Clique {
    NcclId id;
    int size;
    // left: communicators not destroyed; ready: ranks in init; windows: calls of window_register
    _Atomic int left, ready, windows;
    _Atomic int device[RANKS];  // device number + 1 of each rank; 0: the rank has not come yet
    Asked *asked[AHEAD][RANKS]; // arguments of each rank that has come to the call
    _Atomic int arrived[AHEAD], passed[AHEAD];
    bool done[AHEAD];
    Sent sent[]; // [AHEAD][RANKS], if ranks are processes
} Clique;

/* Memory that this rank has registered with a communicator. */
typedef struct Piece {
    const char *p;
    size_t n_bytes;
    uint64_t memory;
    bool open, window;
} Piece;

struct NcclCommOf {
    Clique *clique;
    int rank;
    _Atomic uint64_t calls, done; // calls to which the device has come; calls that are done
    _Atomic int recorded;         // calls that graphs hold
    // pieces ever registered; all ranks register in the same order
    int n_pieces;
    Piece piece[PIECES];
};

static Clique *cliques[CLIQUES];
static _Atomic uint64_t n_ids;
static int n_open;
static _Atomic int under_way[RANKS]; // [device] calls in flight, without those in graphs
static int of_version = NEWEST;
static bool processes; // ranks are processes, not threads
static EmuNcclCounts counts;
static void *allocated[PIECES]; // memory allocated by the library
EmuNcclFault emu_nccl_fault;
static __thread bool stuck;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void emu_nccl_stuck(void) {
    stuck = true;
}
int emu_nccl_open(void) {
    return n_open;
}
EmuNcclCounts emu_nccl_counts(void) {
    pthread_mutex_lock(&lock);
    EmuNcclCounts now = counts;
    pthread_mutex_unlock(&lock);
    return now;
}

/* ---- communicators */

static int version(int *v) {
    *v = of_version;
    return NCCL_SUCCESS;
}

static int unique_id(NcclId *id) {
    memset(id, 0x5a, sizeof *id);
    uint64_t number[] = {++n_ids, (uint64_t)getpid()};
    memcpy(id, number, sizeof number);
    return NCCL_SUCCESS;
}

/* The Clique in a shared file. end: removes the name of the file, when all ranks have mapped it. */
static Clique *clique_in_file(NcclId id, int size, bool end) {
    size_t n_bytes = sizeof(Clique) + sizeof(Sent) * AHEAD * RANKS;
    uint64_t number[2];
    char name[64];
    memcpy(number, &id, sizeof number);
    snprintf(name, sizeof name, "/tmp/emu_nccl.%llu.%llu", (unsigned long long)number[1],
             (unsigned long long)number[0]);
    if (end) {
        unlink(name);
        return NULL;
    }
    int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)n_bytes)) die("no shared memory %s", name);
    Clique *q = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (q == MAP_FAILED) die("no place for %s", name);
    close(file);
    q->id = id, q->size = size;
    return q;
}

static Clique *clique_of(NcclId id, int size) {
    if (processes) return clique_in_file(id, size, false);
    int free_place = -1;
    for (int i = CLIQUES - 1; i >= 0; i--) {
        if (cliques[i] && memcmp(&cliques[i]->id, &id, sizeof id) == 0) return cliques[i];
        if (!cliques[i]) free_place = i;
    }
    if (free_place < 0) die("more than %d communicators", CLIQUES);
    Clique *q = cliques[free_place] = mem_calloc(1, sizeof *q);
    q->id = id, q->size = size, q->left = size;
    return q;
}

/* Returns when all ranks have come. */
static int init(NcclComm *comm, int size, NcclId id, int rank, NcclConfig *config) {
    const NcclConfig c = *config;
    bool right = c.blocking == 1 && c.max_ctas >= 1 && c.max_ctas <= 32 && size >= 1 &&
                 size <= RANKS && rank >= 0 && rank < size;
    right = right && c.size == sizeof c && c.magic == 0xcafebeef && c.version >= 21700 &&
            c.version <= (unsigned)of_version && c.cluster_size == NCCL_UNDEFINED &&
            c.min_ctas == NCCL_UNDEFINED && !c.network && c.split_share == NCCL_UNDEFINED;
    if (!right) return NCCL_INVALID_USAGE;
    int device;
    cudaGetDevice(&device);
    while (stuck) pause();
    pthread_mutex_lock(&lock);
    Clique *q = clique_of(id, size);
    for (int i = 0; i < size; i++)
        if (!processes && q->device[i] == device + 1)
            die("two ranks of a communicator on device %d", device);
    if (q->size != size || q->device[rank]) die("a communicator of other ranks");
    q->device[rank] = device + 1;
    n_open++;
    atomic_fetch_add(&q->ready, 1);
    counts.most_ctas = config->max_ctas;
    *comm = mem_calloc(1, sizeof **comm);
    **comm = (struct NcclCommOf){.clique = q, .rank = rank};
    while (q->ready < size) {
        pthread_mutex_unlock(&lock);
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    if (processes) clique_in_file(id, size, true);
    return NCCL_SUCCESS;
}

static int destroy(NcclComm c) {
    pthread_mutex_lock(&lock);
    Clique *q = c->clique;
    for (int i = 0; i < c->n_pieces; i++)
        if (c->piece[i].open) die("NCCL: a communicator ends before memory that is registered");
    if (c->recorded > 0) // the real library would wait for the end of the graphs
        die("NCCL: a communicator ends before graphs that hold its calls");
    n_open--;
    for (int i = 0; i < CLIQUES && q->left == 1; i++)
        if (cliques[i] == q) cliques[i] = NULL;
    if (processes)
        munmap(q, sizeof(Clique) + sizeof(Sent) * AHEAD * RANKS);
    else if (--q->left == 0)
        mem_free(q);
    pthread_mutex_unlock(&lock);
    mem_free(c);
    return NCCL_SUCCESS;
}

/* Frees nothing, since the process is about to end. */
static int abort_(NcclComm c) {
    dprintf(STDERR_FILENO, "abort of rank %d of %d\n", c->rank, c->clique->size);
    while (emu_nccl_fault == EMU_NCCL_HUNG) pause();
    return NCCL_SUCCESS;
}

static const char *error_string(int result) {
    return result == NCCL_INVALID_USAGE ? "invalid usage"
                                        : "remote process exited or there was a network error";
}
static const char *last_error(NcclComm c) {
    (void)c;
    return "no socket";
}
static int async_error(NcclComm c, int *result) {
    *result = emu_nccl_fault >= EMU_NCCL_BROKEN && c->calls > c->done ? 6 : NCCL_SUCCESS;
    return NCCL_SUCCESS;
}

/* ---- memory */

static int mem_alloc_(void **p, size_t n_bytes) {
    int device, i = 0;
    cudaGetDevice(&device);
    size_t left, all;
    cudaMemGetInfo(&left, &all);
    if (n_bytes > left) return NCCL_INVALID_USAGE;
    *p = memory_take(n_bytes, 4096, device);
    pthread_mutex_lock(&lock);
    while (i < PIECES && allocated[i]) i++;
    if (i == PIECES) die("more than %d pieces of the library's memory", PIECES);
    allocated[i] = *p;
    pthread_mutex_unlock(&lock);
    return NCCL_SUCCESS;
}

static int mem_free_(void *p) {
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < PIECES && allocated[i] != p) i++;
    if (i == PIECES) die("NCCL: %p is given back, which it did not give", p);
    allocated[i] = NULL;
    pthread_mutex_unlock(&lock);
    memory_give(p);
    return NCCL_SUCCESS;
}

static int device_of(const struct NcclCommOf *c, int rank) {
    return c->clique->device[rank] - 1;
}

/* Dies if calls are in flight while memory is registered: the real library may then wait for ever.
 * on_all: checks the devices of all ranks, if ranks wait for each other. */
static void check_quiet(NcclComm c, bool on_all) {
    for (int r = 0; r < c->clique->size; r++)
        if ((on_all || r == c->rank) && under_way[device_of(c, r)] > 0)
            die("NCCL: memory is registered, or no more so, under calls");
}

static int register_piece(NcclComm c, void *p, size_t n_bytes, void **handle, bool window) {
    if (!emu_is_device(p, n_bytes) || memory_device(p) != device_of(c, c->rank))
        return NCCL_INVALID_USAGE;
    pthread_mutex_lock(&lock);
    check_quiet(c, true);
    if (c->n_pieces == PIECES) die("more than %d registered pieces", PIECES);
    Piece *piece = *handle = &c->piece[c->n_pieces++];
    *piece = (Piece){p, n_bytes, memory_number(p), true, window};
    counts.registered++;
    pthread_mutex_unlock(&lock);
    return NCCL_SUCCESS;
}

static int buffer_register(NcclComm c, void *p, size_t n_bytes, void **handle) {
    return register_piece(c, p, n_bytes, handle, false);
}

/* Accepts only memory that the library has allocated. Returns when all ranks have come. */
static int window_register(NcclComm c, void *p, size_t n_bytes, void **window, int flags) {
    Clique *q = c->clique;
    bool good = false;
    if (flags != NCCL_SYMMETRIC || (uintptr_t)p % 4096) return NCCL_INVALID_USAGE;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < PIECES; i++) good |= allocated[i] == p;
    pthread_mutex_unlock(&lock);
    if (!good) return NCCL_INVALID_USAGE;
    *window = NULL;
    if (emu_nccl_fault == EMU_NCCL_NO_WINDOW) return NCCL_SUCCESS;
    int result = register_piece(c, p, n_bytes, window, true);
    pthread_mutex_lock(&lock);
    int until = (q->windows++ / q->size + 1) * q->size;
    while (q->windows < until) {
        pthread_mutex_unlock(&lock);
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static int deregister_piece(NcclComm c, Piece *piece, bool window) {
    pthread_mutex_lock(&lock);
    check_quiet(c, false);
    if (piece < c->piece || piece >= c->piece + c->n_pieces || !piece->open ||
        piece->window != window)
        die("NCCL: memory is deregistered that was not registered");
    if (memory_number(piece->p) != piece->memory)
        die("NCCL: registered memory was freed before it was deregistered");
    piece->open = false;
    counts.registered--;
    pthread_mutex_unlock(&lock);
    return NCCL_SUCCESS;
}
static int buffer_deregister(NcclComm c, void *handle) {
    return deregister_piece(c, handle, false);
}
static int window_deregister(NcclComm c, void *window) {
    return deregister_piece(c, window, true);
}

/* The registered piece and offset of [p, p + n_bytes). Dies if the memory was freed or moved since
 * it was registered. */
static BufferOffset buffer_offset(NcclComm c, const char *p, size_t n_bytes) {
    BufferOffset offset = {0};
    for (int i = 0; p && i < c->n_pieces; i++) {
        const Piece *piece = &c->piece[i];
        if (!piece->open || p + n_bytes <= piece->p || p >= piece->p + piece->n_bytes) continue;
        if (memory_number(p) != piece->memory)
            die("NCCL: a call on memory that was freed or moved since it was registered");
        if (p < piece->p || p + n_bytes > piece->p + piece->n_bytes)
            die("NCCL: a call on memory of which a part alone is registered");
        offset = (BufferOffset){i + 1, p - piece->p};
    }
    return offset;
}

/* ---- calls in streams */

typedef struct Call {
    NcclComm comm;
    Clique *clique;
    int rank, at;
    Asked asked;
} Call;

/* Dies if memory is not registered as it was when the call was made, perhaps long ago. */
static void check_still(const Call *c) {
    for (const Part *p = c->asked.part; p < c->asked.part + c->asked.n; p++)
        if (buffer_offset(c->comm, p->src, p->src_bytes).piece != p->from.piece ||
            buffer_offset(c->comm, p->dst, p->dst_bytes).piece != p->to.piece)
            die("NCCL: a graph's call on memory that is registered no more");
}

static Sent *sent_by(const Call *c, int rank) {
    return &c->clique->sent[c->at * RANKS + rank];
}

static void send_to_processes(const Call *c) {
    Sent *to = sent_by(c, c->rank);
    size_t at = 0;
    to->asked = c->asked;
    for (const Part *p = c->asked.part; p < c->asked.part + c->asked.n; at += p++->src_bytes) {
        if (at + p->src_bytes > MOST_SENT) die("NCCL: a call of more than %d bytes", MOST_SENT);
        if (p->src_bytes) memcpy(to->data + at, p->src, p->src_bytes);
    }
}

/* Executes the call with copies of the other ranks' data; the results of other ranks are
 * discarded. */
static void run_own_part(const Call *c) {
    int size = c->clique->size;
    Asked *asked[RANKS] = {NULL}; // gcc with -flto believes that size may be 0
    char *nowhere[RANKS] = {NULL};
    for (int r = 0; r < size; r++) {
        Sent *of = sent_by(c, r);
        size_t at = 0, most = 0;
        asked[r] = mem_alloc(sizeof **asked);
        *asked[r] = of->asked;
        for (int i = 0; i < of->asked.n; i++)
            most = of->asked.part[i].dst_bytes > most ? of->asked.part[i].dst_bytes : most;
        nowhere[r] = mem_alloc(most + 1);
        for (Part *p = asked[r]->part; p < asked[r]->part + asked[r]->n; at += p++->src_bytes) {
            p->src = of->data + at;
            if (r != c->rank) p->dst = nowhere[r];
        }
    }
    emu_nccl_run(size, asked);
    for (int r = 0; r < size; r++) mem_free(asked[r]), mem_free(nowhere[r]);
}

static void arrive(void *ctx) {
    Call *c = ctx;
    check_still(c);
    pthread_mutex_lock(&lock);
    c->at = (int)(c->comm->calls++ % AHEAD);
    if (processes) send_to_processes(c);
    if (!processes) c->clique->asked[c->at][c->rank] = &c->asked;
    c->clique->arrived[c->at]++;
    pthread_mutex_unlock(&lock);
}

static bool all_there(const void *ctx) {
    const Call *c = ctx;
    pthread_mutex_lock(&lock);
    bool there = emu_nccl_fault < EMU_NCCL_BROKEN && c->clique->arrived[c->at] == c->clique->size;
    pthread_mutex_unlock(&lock);
    return there;
}

/* The first rank that comes here executes the call for all ranks; the last one frees the entry for
 * a later call. */
static void finish(void *ctx) {
    const Call *c = ctx;
    Clique *q = c->clique;
    pthread_mutex_lock(&lock);
    if (processes)
        run_own_part(c);
    else if (!q->done[c->at])
        emu_nccl_run(q->size, q->asked[c->at]);
    q->done[c->at] = true;
    if (++q->passed[c->at] == q->size) {
        q->passed[c->at] = q->arrived[c->at] = 0;
        q->done[c->at] = false;
    }
    c->comm->done++;
    if (!c->asked.recorded) under_way[device_of(c->comm, c->rank)]--;
    pthread_mutex_unlock(&lock);
}

static void drop(void *ctx) {
    const Call *c = ctx;
    c->comm->recorded -= c->asked.recorded;
    mem_free(ctx);
}

static __thread struct {
    bool open;
    NcclComm comm;
    Stream stream;
    Asked asked;
} group;

static void launch(NcclComm c, Stream s, const Asked *asked) {
    Call *call = mem_alloc(sizeof *call);
    *call = (Call){.comm = c, .clique = c->clique, .rank = c->rank, .asked = *asked};
    c->recorded += call->asked.recorded = graph_records(s);
    if (!call->asked.recorded) under_way[device_of(c, c->rank)]++;
    emu_enqueue_when(s, "NCCL", NULL, arrive, NULL, call);
    emu_enqueue_when(s, "NCCL", all_there, finish, drop, call);
}

/* Dies unless all bytes are memory of the communicator's device. */
static void check_memory(NcclComm c, const void *p, size_t n_bytes) {
    if (!emu_is_device(p, n_bytes) || memory_device(p) != device_of(c, c->rank))
        die("NCCL: %zu bytes at %p are not memory of the communicator's device", n_bytes, p);
}

/* Dies if src and dst overlap. Allowed: src equals dst, or the smaller of them is this rank's own
 * block in the larger. */
static void check_apart(const char *src, size_t n_src, const char *dst, size_t n_dst, size_t own) {
    bool apart = src + n_src <= dst || dst + n_dst <= src;
    bool in_place = n_src < n_dst   ? src == dst + own
                    : n_dst < n_src ? dst == src + own
                                    : src == dst;
    if (!apart && !in_place) die("NCCL: src and dst overlap");
}

/* Checks the arguments of one call, then puts it into the stream, or into the open group. */
static int ask(NcclComm c, Stream s, Part p) {
    size_t n = p.n * emu_nccl_bytes(p.type), size = (size_t)c->clique->size;
    size_t n_src = p.kind == REDUCE_SCATTER ? n * size : n,
           n_dst = p.kind == ALL_GATHER ? n * size : n;
    bool root = c->rank == p.peer;
    bool reads = p.kind != RECEIVE && (p.kind != BROADCAST || root);
    bool writes = p.kind != SEND && (p.kind != REDUCE || root);
    int device;
    cudaGetDevice(&device);
    if (device != device_of(c, c->rank) || n == 0) return NCCL_INVALID_USAGE;
    if (p.peer < 0 || p.peer >= c->clique->size) return NCCL_INVALID_USAGE;
    bool sums =
        p.type == NCCL_F32 || p.type == NCCL_BF16 || p.type == NCCL_I32 || p.type == NCCL_F64;
    if (p.kind <= REDUCE_SCATTER && !sums)
        die("NCCL: this one sums fp32, bf16, fp64 and words of 4 bytes alone");
    if (reads) check_memory(c, p.src, n_src);
    if (writes) check_memory(c, p.dst, n_dst);
    if (reads && writes) check_apart(p.src, n_src, p.dst, n_dst, (size_t)c->rank * n);
    p.src_bytes = p.kind == RECEIVE ? 0 : n_src, p.dst_bytes = p.kind == SEND ? 0 : n_dst;
    p.from = buffer_offset(c, p.src, p.src_bytes);
    p.to = buffer_offset(c, p.dst, p.dst_bytes);
    pthread_mutex_lock(&lock);
    counts.calls++;
    counts.urgent += emu_priority(s) == -5;
    counts.direct += (p.from.piece || !reads) && (p.to.piece || !writes);
    pthread_mutex_unlock(&lock);
    if (!group.open) {
        launch(c, s, &(Asked){.n = 1, .part = {p}});
        return NCCL_SUCCESS;
    }
    if (group.asked.n == PARTS || p.kind < SEND || (group.comm && group.comm != c))
        die("NCCL: this one groups messages of one communicator");
    group.comm = c, group.stream = s;
    group.asked.part[group.asked.n++] = p;
    return NCCL_SUCCESS;
}

static Part part(Kind kind, const void *src, void *dst, size_t n, int type, int op, int peer) {
    return (Part){
        .kind = kind, .src = src, .dst = dst, .n = n, .type = type, .op = op, .peer = peer};
}
static int all_reduce(const void *src, void *dst, size_t n, int type, int op, NcclComm c,
                      Stream s) {
    return ask(c, s, part(ALL_REDUCE, src, dst, n, type, op, 0));
}
static int reduce_scatter(const void *src, void *dst, size_t n, int type, int op, NcclComm c,
                          Stream s) {
    return ask(c, s, part(REDUCE_SCATTER, src, dst, n, type, op, 0));
}
static int all_gather(const void *src, void *dst, size_t n, int type, NcclComm c, Stream s) {
    return ask(c, s, part(ALL_GATHER, src, dst, n, type, 0, 0));
}
static int broadcast(const void *src, void *dst, size_t n, int type, int root, NcclComm c,
                     Stream s) {
    return ask(c, s, part(BROADCAST, src, dst, n, type, 0, root));
}
static int reduce(const void *src, void *dst, size_t n, int type, int op, int root, NcclComm c,
                  Stream s) {
    return ask(c, s, part(REDUCE, src, dst, n, type, op, root));
}
static int send(const void *src, size_t n, int type, int to, NcclComm c, Stream s) {
    return ask(c, s, part(SEND, src, NULL, n, type, 0, to));
}
static int receive(void *dst, size_t n, int type, int from, NcclComm c, Stream s) {
    return ask(c, s, part(RECEIVE, NULL, dst, n, type, 0, from));
}
static int group_start(void) {
    group.open = true, group.comm = NULL, group.asked.n = 0;
    return NCCL_SUCCESS;
}
static int group_end(void) {
    group.open = false;
    if (group.comm) launch(group.comm, group.stream, &group.asked);
    return NCCL_SUCCESS;
}

static Nccl emulated = {.version = version,
                        .unique_id = unique_id,
                        .init = init,
                        .destroy = destroy,
                        .abort = abort_,
                        .error_string = error_string,
                        .last_error = last_error,
                        .async_error = async_error,
                        .all_reduce = all_reduce,
                        .reduce_scatter = reduce_scatter,
                        .all_gather = all_gather,
                        .broadcast = broadcast,
                        .reduce = reduce,
                        .send = send,
                        .receive = receive,
                        .group_start = group_start,
                        .group_end = group_end};

void emu_nccl_version(int v) {
    bool registers = v >= REGISTERS, windows = v >= WINDOWS;
    of_version = v;
    emulated.mem_alloc = registers ? mem_alloc_ : NULL;
    emulated.mem_free = registers ? mem_free_ : NULL;
    emulated.buffer_register = registers ? buffer_register : NULL;
    emulated.buffer_deregister = registers ? buffer_deregister : NULL;
    emulated.window_register = windows ? window_register : NULL;
    emulated.window_deregister = windows ? window_deregister : NULL;
    counts.calls = counts.direct = counts.urgent = 0;
    nccl_override(v ? &emulated : NULL, v ? NULL : "libnccl.so.2: no such file");
}

__attribute__((constructor)) static void give(void) {
    const char *version = getenv("EMU_NCCL"), *size = getenv("OMPI_COMM_WORLD_SIZE");
    processes = size && atoi(size) > 1;
    emu_nccl_version(version ? atoi(version) : NEWEST);
}
