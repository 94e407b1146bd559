/* stream -- streams and events: a stream runs its work in the order in which it was put in; events
 * are waits between streams. */
#include <pthread.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/die.h"
#include "base/mem.h"
#include "tests/emu/calls.h"
#include "tests/emu/emu.h"
#include "tests/emu/emu_graph.h"
#include "tests/emu/emu_memory.h"
#include "tests/emu/include/cuda.h"
#include "tests/emu/runtime.h"

enum { STREAMS = 256 };

/* A piece of work; or, if `of` is set, a wait until stream `of` has done `until` pieces. */
typedef struct Work {
    struct Work *next;
    Task task; // run NULL: no task
    cudaStream_t of;
    uint64_t until;
    double *time; // of an event: gets the time at which the stream came to the event
} Work;
/* A destroyed stream is used again without resetting its counts, since other streams may still wait
 * for a point in it. */
struct CUstream_st {
    Work *first, **end;
    uint64_t put_in, done; // pieces of work put in; done
    int device, priority;
    bool open, busy;  // busy: its first piece of work is running
    cudaGraph_t into; // the graph that records the stream; or NULL
    int lane;         // lane of that graph
};
struct CUevent_st {
    GraphPlace place;    // point of the last record, if that stream was recorded
    cudaStream_t stream; // else stream and count of the last record; NULL: never
    uint64_t until;
    double time;
    int device;
    bool timed;
};

EmuSetup emu_setup = {.devices = 1};
static uint64_t random_state;
static __thread int forgotten; // counts down to the wait that is forgotten (emu_forget_wait)
static struct CUstream_st null_stream = {.end = &null_stream.first};
static struct CUstream_st stream[STREAMS];
static int n_streams;
static pthread_mutex_t lock; // protects late streams: a waiting thread runs the work of others
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_lock(void) {
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &a);
}
static void enter(void) {
    pthread_once(&once, make_lock);
    pthread_mutex_lock(&lock);
}
static void leave(void) {
    pthread_mutex_unlock(&lock);
}

void emu_set(EmuSetup s) {
    emu_setup = s, random_state = s.shuffle;
    if (!s.devices) emu_setup.devices = 1;
}

void emu_forget_wait(int n) {
    forgotten = n;
}

/* --- the order of work */

static bool may_run(const Work *w) {
    return (!w->of || w->of->done >= w->until) && (!w->task.ready || w->task.ready(w->task.ctx));
}

static void do_work(Work *w) {
    if (w->time) *w->time = 1e3 * now_s();
    if (!w->task.run) return;
    memory_enter();
    w->task.run(w->task.ctx);
    memory_leave(w->task.name);
    if (w->task.drop) w->task.drop(w->task.ctx);
}

static void run_first(cudaStream_t s) {
    Work *w = s->first;
    s->first = w->next;
    if (!s->first) s->end = &s->first;
    s->busy = true;
    do_work(w);
    s->busy = false;
    s->done++;
    mem_free(w);
}

/* Runs the first work of some stream that waits for nothing. copies: kernels are left out. False:
 * there is no such work. */
static bool run_some(bool copies) {
    cudaStream_t ready[STREAMS];
    unsigned n = 0;
    for (int i = 0; i < n_streams; i++) {
        const Work *w = stream[i].first;
        bool is_kernel = w && w->task.run && !w->task.copies;
        if (w && !stream[i].busy && may_run(w) && !(copies && is_kernel)) ready[n++] = &stream[i];
    }
    if (!n) return false;
    run_first(ready[emu_dice(&random_state, n)]);
    return true;
}

/* False: all streams wait for work that other threads have yet to put in. */
static bool run_any(void) {
    bool meeting = false;
    for (int i = 0; i < n_streams; i++) meeting |= stream[i].first && stream[i].first->task.ready;
    if (run_some(false)) return true;
    if (!meeting) die("streams wait for each other");
    return false;
}

/* Runs one piece of work that s needs next: of s, or of the stream that s waits for. */
static bool run_wanted(cudaStream_t s) {
    const Work *w = s->first;
    if (w->of && w->of->done < w->until) return run_wanted(w->of);
    if (!may_run(w)) return run_any();
    run_first(s);
    return true;
}

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

bool emu_run_copy(void) {
    bool ran = emu_setup.late && run_some(true);
    if (!ran && emu_setup.lose_flags) nap();
    return ran || emu_setup.lose_flags;
}

static void run_until(cudaStream_t s, uint64_t until) {
    if (!emu_setup.late) return; // not late: all work has run
    enter();
    while (s->done < until)
        if (!(emu_setup.shuffle ? run_any() : run_wanted(s))) {
            leave();
            nap();
            enter();
        }
    leave();
}

/* Puts work into a stream: runs it at once, or if streams run late queues it. */
static void put(cudaStream_t s, Work w) {
    if (!s) s = &null_stream;
    if (!emu_setup.late || s == &null_stream) {
        while (!may_run(&w)) nap();
        do_work(&w);
        __atomic_fetch_add(&s->put_in, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&s->done, 1, __ATOMIC_RELAXED);
        return;
    }
    Work *kept = mem_alloc(sizeof *kept);
    *kept = w;
    kept->next = NULL;
    enter();
    *s->end = kept;
    s->end = &kept->next;
    s->put_in++;
    leave();
}

static void enqueue(cudaStream_t s, Task task) {
    int device;
    cudaGetDevice(&device);
    if (s && s->device != device)
        die("%s: a stream of device %d on a thread of device %d", task.name, s->device, device);
    emu_called(&emu_calls.launches);
    if (s && s->into)
        graph_add(s->into, s->lane, task);
    else
        put(s, (Work){.task = task});
}
void emu_enqueue_when(cudaStream_t s, const char *name, bool (*ready)(const void *ctx),
                      void (*run)(void *ctx), void (*drop)(void *ctx), void *ctx) {
    enqueue(s, (Task){name, ready, run, drop, ctx, false});
}
void emu_enqueue(cudaStream_t s, const char *name, void (*run)(void *ctx), void *ctx) {
    enqueue(s, (Task){name, NULL, run, mem_free, ctx, false});
}
void emu_enqueue_copy(cudaStream_t s, const char *name, void (*run)(void *ctx), void *ctx) {
    enqueue(s, (Task){name, NULL, run, mem_free, ctx, true});
}

/* --- flags that streams write and wait for */

typedef struct StreamValue {
    uint32_t *where, x;
} StreamValue;

static void write_value(void *ctx) {
    const StreamValue *s = ctx;
    if (!(emu_setup.lose_flags && emu_is_device(s->where, sizeof s->x)))
        __atomic_store_n(s->where, s->x, __ATOMIC_RELEASE);
}

CUresult cuStreamWriteValue32(cudaStream_t s, CUdeviceptr where, cuuint32_t x, unsigned flags) {
    uint32_t *to = (uint32_t *)(uintptr_t)where;
    if (flags || where % sizeof x || !emu_is_reached(to)) return CUDA_ERROR_INVALID_VALUE;
    StreamValue *value = mem_alloc(sizeof *value);
    *value = (StreamValue){to, x};
    emu_enqueue_copy(s, "cuStreamWriteValue32", write_value, value);
    return CUDA_SUCCESS;
}

/* memory_enter: device memory is accessible only to work of a device. */
static bool has_value(const void *ctx) {
    const StreamValue *s = ctx;
    memory_enter();
    uint32_t x = __atomic_load_n(s->where, __ATOMIC_ACQUIRE);
    memory_leave("cuStreamWaitValue32");
    return (int32_t)(x - s->x) >= 0;
}
static void go_on(void *ctx) {
    (void)ctx;
}

CUresult cuStreamWaitValue32(cudaStream_t s, CUdeviceptr where, cuuint32_t x, unsigned flags) {
    uint32_t *of = (uint32_t *)(uintptr_t)where;
    // a device that can flush must flush, since it may reorder the writes of other devices
    int flushes = 0;
    cudaDeviceGetAttribute(&flushes, cudaDevAttrCanFlushRemoteWrites, s->device);
    unsigned right = CU_STREAM_WAIT_VALUE_GEQ | (flushes ? CU_STREAM_WAIT_VALUE_FLUSH : 0u);
    if (flags != right || where % sizeof x || !emu_is_reached(of)) return CUDA_ERROR_INVALID_VALUE;
    if (forgotten && --forgotten == 0) return CUDA_SUCCESS;
    StreamValue *value = mem_alloc(sizeof *value);
    *value = (StreamValue){of, x};
    enqueue(s, (Task){"cuStreamWaitValue32", has_value, go_on, mem_free, value, true});
    return CUDA_SUCCESS;
}

cudaGraph_t stream_graph(cudaStream_t s, int *lane) {
    *lane = s->lane;
    return s->into;
}
void stream_divert(cudaStream_t s, cudaGraph_t g, int lane) {
    s->into = g, s->lane = lane;
}
uint64_t stream_length(cudaStream_t s) {
    return s->put_in;
}
void stream_repeat(cudaStream_t s, Task t) {
    t.drop = NULL;
    put(s, (Work){.task = t});
}
void stream_wait(cudaStream_t s, cudaStream_t of, uint64_t until) {
    if (emu_setup.late) put(s, (Work){.of = of, .until = until});
}
void stream_settle(cudaStream_t s) {
    run_until(s, s->put_in);
}

/* --- streams */

cudaStream_t stream_take(void) {
    int i = 0;
    enter();
    while (i < n_streams && stream[i].open) i++;
    if (i == STREAMS) die("more than %d streams", STREAMS);
    if (i == n_streams) stream[n_streams++].end = &stream[i].first;
    stream[i].open = true, stream[i].priority = 0;
    cudaGetDevice(&stream[i].device);
    leave();
    return &stream[i];
}
void stream_give(cudaStream_t s) {
    run_until(s, s->put_in);
    enter();
    s->open = false;
    leave();
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    emu_called(&emu_calls.objects);
    if (flags != cudaStreamNonBlocking) die("a stream that waits for the default stream");
    *s = stream_take();
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
    if (priority < -5 || priority > 0) die("a stream of priority %d", priority);
    cudaError_t e = cudaStreamCreateWithFlags(s, flags);
    (*s)->priority = priority;
    return e;
}
int emu_priority(cudaStream_t s) {
    return s ? s->priority : 0;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    emu_called(&emu_calls.objects);
    stream_give(s);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    if (graph_refuses() || graph_refuses_stream(s)) return cudaErrorStreamCaptureUnsupported;
    emu_called(&emu_calls.waits);
    if (s) run_until(s, s->put_in);
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    (void)flags;
    if (forgotten && --forgotten == 0) return cudaSuccess;
    if (e->place.number || s->into) return graph_follow(s, e->place);
    if (e->stream && e->stream != s) stream_wait(s, e->stream, e->until);
    return cudaSuccess;
}

/* --- events */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    emu_called(&emu_calls.objects);
    *e = mem_calloc(1, sizeof **e);
    (*e)->timed = !(flags & cudaEventDisableTiming);
    return cudaGetDevice(&(*e)->device);
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    emu_called(&emu_calls.objects);
    if (e->stream) run_until(e->stream, e->until); // the stream still writes the event's time
    mem_free(e);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    if (s && s->device != e->device) return cudaErrorInvalidResourceHandle;
    if (e->timed) emu_called(emu_priority(s) < 0 ? &emu_calls.urgent_times : &emu_calls.times);
    e->place = s && s->into ? graph_place(s->into, s->lane) : (GraphPlace){0};
    e->stream = NULL;
    if (e->place.number) return cudaSuccess;
    put(s, (Work){.time = &e->time});
    e->stream = s ? s : &null_stream;
    e->until = e->stream->put_in;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    if (e->place.number) return graph_asked(e->place);
    if (graph_refuses()) return cudaErrorStreamCaptureUnsupported;
    emu_called(&emu_calls.waits);
    if (e->stream) run_until(e->stream, e->until);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    if (e->place.number) return graph_asked(e->place);
    if (graph_refuses()) return cudaErrorStreamCaptureUnsupported;
    return !e->stream || e->stream->done >= e->until ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
    bool timed = begin->timed && end->timed, recorded = begin->stream && end->stream;
    if (!timed || !recorded || begin->device != end->device) return cudaErrorInvalidResourceHandle;
    if (cudaEventQuery(begin) || cudaEventQuery(end)) return cudaErrorNotReady;
    *ms = (float)(end->time - begin->time);
    return cudaSuccess;
}
