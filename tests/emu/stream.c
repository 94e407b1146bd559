/* Streams and events: work in the order in which it was put in, and waits between streams. */
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include "base/die.h"
#include "base/mem.h"
#include "tests/emu/memory.h"
#include "tests/emu/runtime.h"

/* A piece of work; or, where `of` is set, a wait for another stream to come to `until`. */
typedef struct Work {
    struct Work *next;
    const char *name;
    void (*run)(void *ctx);
    void *ctx;
    cudaStream_t of;
    uint64_t until;
    double *time; // of an event: when this place was come to
} Work;
struct CUstream_st {
    Work *first, **end;
    uint64_t put_in, done; // pieces of work
};
struct CUevent_st {
    cudaStream_t stream; // NULL: never recorded
    uint64_t until;
    double time;
};

static bool late;
static struct CUstream_st null_stream = {.end = &null_stream.first};
static pthread_mutex_t lock; // of streams that run late: whoever waits runs the work of others
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_lock(void) {
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &a);
}

void emu_set_late(bool on) {
    pthread_once(&once, make_lock);
    late = on;
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static void run_until(cudaStream_t s, uint64_t until);

static void do_work(Work *w) {
    if (w->of) run_until(w->of, w->until);
    if (w->time) *w->time = now_ms();
    if (!w->run) return;
    memory_enter();
    w->run(w->ctx);
    memory_leave(w->name);
    mem_free(w->ctx);
}

static void run_until(cudaStream_t s, uint64_t until) {
    if (!late) return; // all has run
    pthread_mutex_lock(&lock);
    while (s->done < until && s->first) {
        Work *w = s->first;
        s->first = w->next;
        if (!s->first) s->end = &s->first;
        do_work(w);
        s->done++;
        mem_free(w);
    }
    pthread_mutex_unlock(&lock);
}

static void put(cudaStream_t s, Work w) {
    if (!s) s = &null_stream;
    if (!late || s == &null_stream) {
        do_work(&w);
        __atomic_fetch_add(&s->put_in, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&s->done, 1, __ATOMIC_RELAXED);
        return;
    }
    pthread_mutex_lock(&lock);
    Work *kept = mem_alloc(sizeof *kept);
    *kept = w;
    kept->next = NULL;
    *s->end = kept;
    s->end = &kept->next;
    s->put_in++;
    pthread_mutex_unlock(&lock);
}

void emu_enqueue(cudaStream_t s, const char *name, void (*run)(void *ctx), void *ctx) {
    put(s, (Work){.name = name, .run = run, .ctx = ctx});
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    if (flags != cudaStreamNonBlocking) die("a stream that waits for the default stream");
    *s = mem_calloc(1, sizeof **s);
    (*s)->end = &(*s)->first;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
    (void)priority;
    return cudaStreamCreateWithFlags(s, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    run_until(s, s->put_in);
    mem_free(s);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    if (s) run_until(s, s->put_in);
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
    return !s || s->done == s->put_in ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    (void)flags;
    if (e->stream && e->stream != s) put(s, (Work){.of = e->stream, .until = e->until});
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    (void)flags;
    *e = mem_calloc(1, sizeof **e);
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    cudaEventSynchronize(e); // its time is still to be written
    mem_free(e);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    put(s, (Work){.time = &e->time});
    e->stream = s ? s : &null_stream;
    e->until = e->stream->put_in;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    if (e->stream) run_until(e->stream, e->until);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    return !e->stream || e->stream->done >= e->until ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
    if (cudaEventQuery(begin) || cudaEventQuery(end)) return cudaErrorNotReady;
    *ms = (float)(end->time - begin->time);
    return cudaSuccess;
}
