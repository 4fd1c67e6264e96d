/* stream: launches, copies, streams and events.
 *
 * By default work runs when it is enqueued. A lazy stream is a queue of operations, which run when
 * a thread waits: the waiting thread repeatedly chooses a random stream that can run, and runs its
 * oldest operation, until the awaited condition holds. An event's record is a separate object,
 * because the event may be recorded again while streams wait for an older record. A gate is a
 * record that no operation marks; threads that wait for it poll until other code has opened it.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cudasim/internal.h"

enum { GATE_LOOK_US = 200 };

struct hd_sim_record {
    int references;
    bool done;
    bool outside; /* it is a gate */
    double ms;    /* time of its stream (hd_sim_pass) when it was marked */
};

struct operation {
    struct operation *next;
    void (*run)(void *); /* NULL: only waits or marks */
    void (*done)(void *);
    void *context;
    struct hd_sim_record *waits_for; /* or NULL */
    struct hd_sim_record *marks;     /* or NULL */
};

/* A destroyed stream or event is never freed, so that its handle is recognised: CUDA's manual does
 * not define what a call does with it, or with one that was never created. */
enum { STREAM_MAGIC = 0x73747265, EVENT_MAGIC = 0x65766e74 };

struct CUstream_st {
    unsigned magic; /* 0: destroyed */
    struct CUstream_st *next;
    struct operation *first, **last;
    unsigned flags;
    int device, priority;
    double ms;                        /* that operations pretend to have taken */
    struct hd_sim_captured *captured; /* NULL: nothing is captured */
};

struct CUevent_st {
    unsigned magic;                  /* 0: destroyed */
    struct CUevent_st *next, **link; /* link: what points to it */
    struct hd_sim_record *record;    /* the newest; NULL: never recorded */
    unsigned flags;
    int device;
};

/* Also held while an operation runs: lazy work of several OS threads runs one at a time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st *streams, *dead_streams;
static struct CUevent_st *events, *dead_events;
static atomic_int lazy = -1;
static uint64_t lazy_random;
static size_t pending;

void hd_cudasim_lazy(bool wanted, uint64_t seed)
{
    pthread_mutex_lock(&lock);
    lazy_random = seed;
    pthread_mutex_unlock(&lock);
    atomic_store(&lazy, wanted);
}

bool hd_sim_is_lazy(void)
{
    if (atomic_load(&lazy) < 0) {
        const char *wish = getenv("HD_CUDASIM_LAZY");
        const uint64_t seed = wish ? strtoull(wish, NULL, 0) : 0;

        hd_cudasim_lazy(seed != 0, seed);
    }
    return atomic_load(&lazy) > 0;
}

size_t hd_cudasim_pending(void)
{
    size_t count;

    pthread_mutex_lock(&lock);
    count = pending;
    pthread_mutex_unlock(&lock);
    return count;
}

/* ---- The queue; call these under the lock ---- */

static void release_record(struct hd_sim_record *record)
{
    if (record && --record->references == 0)
        free(record);
}

static void bury_stream(struct CUstream_st *stream)
{
    struct CUstream_st **link = &streams;

    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    stream->next = dead_streams;
    dead_streams = stream;
}

static void run_first(struct CUstream_st *stream)
{
    struct operation *op = stream->first;

    stream->first = op->next;
    if (!stream->first)
        stream->last = &stream->first;
    pending--;
    if (op->run)
        op->run(op->context);
    if (op->done)
        op->done(op->context);
    if (op->marks) {
        op->marks->done = true;
        op->marks->ms = stream->ms;
    }
    release_record(op->marks);
    release_record(op->waits_for);
    free(op);
    if (!stream->magic && !stream->first)
        bury_stream(stream);
}

static bool can_go_on(const struct CUstream_st *stream)
{
    return stream->first && (!stream->first->waits_for || stream->first->waits_for->done);
}

/* Runs one operation of a random stream; false if no stream can run. */
static bool run_one(void)
{
    struct CUstream_st *chosen = NULL;
    uint64_t seen = 0;

    for (struct CUstream_st *s = streams; s; s = s->next)
        if (can_go_on(s) && hd_sim_random(&lazy_random) % ++seen == 0)
            chosen = s;
    if (chosen)
        run_first(chosen);
    return chosen;
}

/* True if a stream waits for a gate. */
static bool waits_outside(void)
{
    const struct CUstream_st *s = streams;

    while (s && !(s->first && s->first->waits_for && s->first->waits_for->outside))
        s = s->next;
    return s;
}

/* Runs one operation. Returns false if all remaining operations wait for gates. */
static bool run_one_if_inside(void)
{
    if (run_one())
        return true;
    if (!waits_outside()) {
        fprintf(stderr, "cudasim: deadlock: %zu operations of streams wait for each other\n",
                pending);
        abort();
    }
    return false;
}

/* Runs one operation; if all wait for gates, releases the lock for a moment. */
static void must_run_one(void)
{
    if (run_one_if_inside())
        return;
    pthread_mutex_unlock(&lock);
    (void)usleep(GATE_LOOK_US);
    pthread_mutex_lock(&lock);
}

static cudaError_t push(struct CUstream_st *stream, struct operation what)
{
    struct operation *op = malloc(sizeof *op);

    if (!op)
        return cudaErrorMemoryAllocation;
    *op = what;
    *stream->last = op;
    stream->last = &op->next;
    pending++;
    return cudaSuccess;
}

static bool is_legacy(cudaStream_t stream)
{
    return !stream || stream == cudaStreamLegacy;
}

static void no_handle(const char *call, const char *what, const void *handle)
{
    fprintf(stderr, "cudasim: %s: %s %p was destroyed or never created\n", call, what, handle);
    abort();
}

static void check_stream(cudaStream_t stream, const char *call)
{
    if (!is_legacy(stream) && stream->magic != STREAM_MAGIC)
        no_handle(call, "stream", (void *)stream);
}

static void check_event(cudaEvent_t event, const char *call)
{
    if (event && event->magic != EVENT_MAGIC)
        no_handle(call, "event", (void *)event);
}

static void drain_blocking(void)
{
    for (;;) {
        struct CUstream_st *s = streams;

        while (s && (!s->first || s->flags & cudaStreamNonBlocking))
            s = s->next;
        if (!s)
            return;
        must_run_one();
    }
}

void hd_sim_drain_all(void)
{
    pthread_mutex_lock(&lock);
    while (pending && run_one_if_inside())
        ;
    pthread_mutex_unlock(&lock);
}

void hd_sim_drain_blocking(void)
{
    pthread_mutex_lock(&lock);
    drain_blocking();
    pthread_mutex_unlock(&lock);
}

struct hd_sim_captured **hd_sim_captured_by(cudaStream_t stream, const char *call)
{
    check_stream(stream, call);
    return is_legacy(stream) ? NULL : &stream->captured;
}

/* Returns an error if the stream captures, for calls that wait for it or for its events. */
static cudaError_t refuse_captured(cudaStream_t stream)
{
    return !is_legacy(stream) && stream->captured ? hd_sim_refuse_in_capture(stream->captured)
                                                  : cudaSuccess;
}

cudaError_t hd_sim_enqueue(cudaStream_t stream, void (*run)(void *), void (*done)(void *),
                           void *context)
{
    cudaError_t error = cudaSuccess;

    check_stream(stream, "a launch or copy");
    if (!is_legacy(stream) && stream->captured)
        return hd_sim_capture(stream->captured, run, done, context);
    if (is_legacy(stream) && hd_sim_refuse_in_capture(NULL)) {
        if (done)
            done(context);
        return hd_sim_set_error(cudaErrorStreamCaptureImplicit);
    }
    if (hd_sim_is_lazy() && !is_legacy(stream)) {
        pthread_mutex_lock(&lock);
        error = push(stream, (struct operation){.run = run, .done = done, .context = context});
        pthread_mutex_unlock(&lock);
        if (error && done)
            done(context);
        return hd_sim_set_error(error);
    }
    if (hd_sim_is_lazy())
        hd_sim_drain_blocking(); /* the legacy stream and blocking streams run in order */
    run(context);
    if (done)
        done(context);
    return cudaSuccess;
}

void hd_sim_pass(cudaStream_t stream, double ms)
{
    if (!is_legacy(stream))
        stream->ms += ms;
}

/* ---- Gates ---- */

void hd_sim_streams_lock(void)
{
    pthread_mutex_lock(&lock);
}

void hd_sim_streams_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

struct hd_sim_record *hd_sim_gate_new(void)
{
    struct hd_sim_record *gate = calloc(1, sizeof *gate);

    if (gate)
        *gate = (struct hd_sim_record){.references = 1, .outside = true};
    return gate;
}

void hd_sim_gate_set(struct hd_sim_record *gate, bool open)
{
    gate->done = open;
}

void hd_sim_gate_release(struct hd_sim_record *gate)
{
    release_record(gate);
}

cudaError_t hd_sim_enqueue_behind(cudaStream_t stream, struct hd_sim_record *gate,
                                  void (*run)(void *), void (*done)(void *), void *context)
{
    cudaError_t error;

    check_stream(stream, "a launch or copy");
    error = refuse_captured(stream);
    if (error)
        return error;
    error =
        push(stream,
             (struct operation){.run = run, .done = done, .context = context, .waits_for = gate});
    if (!error && gate)
        gate->references++;
    return error;
}

/* ---- Launches ---- */

struct launch {
    const void *kernel;
    const char *name;
    struct dim3 grid, block;
    size_t shared_bytes;
    struct hd_sim_shared_limits limits;
    void (*run)(void *);
    void (*done)(void *);
    void *context;
};

static void run_launch(void *context)
{
    const struct launch *l = context;

    hd_sim_note_run(l->kernel, l->block.x * l->block.y * l->block.z);
    hd_sim_note_static_shared(l->kernel,
                              hd_sim_run_grid(l->name, l->grid, l->block, l->shared_bytes,
                                              l->limits.all_bytes, l->run, l->context));
}

static void end_launch(void *context)
{
    struct launch *l = context;

    l->done(l->context);
    free(l);
}

/* The device of a stream; the legacy stream belongs to the thread's current device. */
static int device_of(cudaStream_t stream, const char *call)
{
    check_stream(stream, call);
    return is_legacy(stream) ? hd_sim_device() : stream->device;
}

static cudaError_t check_launch(cudaStream_t stream, const struct launch *l)
{
    const struct dim3 g = l->grid, b = l->block;

    if (!hd_sim_device_count())
        return cudaErrorNoDevice;
    if (device_of(stream, l->name) != hd_sim_device())
        return cudaErrorInvalidResourceHandle;
    if (!g.x || !g.y || !g.z || !b.x || !b.y || !b.z || g.x > 2147483647u || g.y > 65535 ||
        g.z > 65535 || b.x > 1024 || b.y > 1024 || b.z > 64 ||
        (uint64_t)b.x * b.y * b.z > HD_SIM_THREADS_MAX)
        return cudaErrorInvalidConfiguration;
    if (l->shared_bytes > l->limits.dynamic_bytes)
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

cudaError_t hd_cudasim_launch(cudaStream_t stream, const void *kernel, const char *name,
                              struct dim3 grid, struct dim3 block, size_t shared_bytes,
                              void (*run)(void *), void (*done)(void *), void *context)
{
    struct launch *launch = malloc(sizeof *launch);
    cudaError_t error;

    if (!launch) {
        done(context);
        return hd_sim_set_error(cudaErrorMemoryAllocation);
    }
    *launch = (struct launch){
        kernel, name, grid, block, shared_bytes, hd_sim_shared_limits(kernel), run, done, context};
    error = check_launch(stream, launch);
    if (error) {
        end_launch(launch);
        return hd_sim_set_error(error);
    }
    return hd_sim_enqueue(stream, run_launch, end_launch, launch);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData)
{
    if (!fn)
        return hd_sim_set_error(cudaErrorInvalidValue);
    return hd_sim_enqueue(stream, fn, NULL, userData);
}

/* ---- Copies ---- */

struct copy {
    void *to;
    const void *from; /* NULL: fill with value */
    size_t size_bytes;
    int value;
    unsigned char staged[]; /* contents of pageable memory when the copy was enqueued */
};

static void run_copy(void *context)
{
    const struct copy *c = context;

    if (c->from)
        memmove(c->to, c->from, c->size_bytes);
    else
        memset(c->to, c->value, c->size_bytes);
}

/* True if a copy may use [address, address + size_bytes) as the wanted kind of memory. Pinned
 * memory is host memory, also where the device may access it: the manual does not define a copy
 * that names it device memory. */
static bool fits(const void *address, size_t size_bytes, bool wants_device, bool wants_host)
{
    size_t room;
    const enum hd_sim_memory kind = hd_sim_memory_of(address, &room);

    if (room < size_bytes)
        return false;
    return !(wants_device && kind != HD_SIM_DEVICE) && !(wants_host && kind == HD_SIM_DEVICE);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    const bool known = kind != cudaMemcpyDefault;
    enum hd_sim_memory source, target;
    struct copy *copy;
    size_t room;
    cudaError_t error;
    bool stages;

    if ((unsigned)kind > cudaMemcpyDefault)
        return hd_sim_set_error(cudaErrorInvalidMemcpyDirection);
    if (count == 0)
        return cudaSuccess;
    if (!dst || !src || !fits(dst, count, known && to_device, known && !to_device) ||
        !fits(src, count, known && from_device, known && !from_device))
        return hd_sim_set_error(cudaErrorInvalidValue);
    source = hd_sim_memory_of(src, &room);
    target = hd_sim_memory_of(dst, &room);
    stages = source == HD_SIM_PAGEABLE && (is_legacy(stream) || !stream->captured);
    copy = malloc(sizeof *copy + (stages ? count : 0));
    if (!copy)
        return hd_sim_set_error(cudaErrorMemoryAllocation);
    *copy = (struct copy){.to = dst, .from = src, .size_bytes = count};
    if (stages) {
        memcpy(copy->staged, src, count);
        copy->from = copy->staged;
    }
    error = hd_sim_enqueue(stream, run_copy, free, copy);
    if (!error && target == HD_SIM_PAGEABLE)
        error = cudaStreamSynchronize(stream);
    return error;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(dst, src, count, kind, NULL);
}

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream)
{
    struct copy *copy;

    if (count == 0)
        return cudaSuccess;
    if (!devPtr || !fits(devPtr, count, true, false))
        return hd_sim_set_error(cudaErrorInvalidValue);
    copy = malloc(sizeof *copy);
    if (!copy)
        return hd_sim_set_error(cudaErrorMemoryAllocation);
    *copy = (struct copy){.to = devPtr, .size_bytes = count, .value = value};
    return hd_sim_enqueue(stream, run_copy, free, copy);
}

cudaError_t cudaMemset(void *devPtr, int value, size_t count)
{
    return cudaMemsetAsync(devPtr, value, count, NULL);
}

/* ---- Streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream, unsigned flags, int priority)
{
    struct CUstream_st *stream;

    if (!pStream || flags & ~(unsigned)cudaStreamNonBlocking)
        return hd_sim_set_error(cudaErrorInvalidValue);
    if (!hd_sim_device_count())
        return hd_sim_set_error(cudaErrorNoDevice);
    stream = calloc(1, sizeof *stream);
    if (!stream)
        return hd_sim_set_error(cudaErrorMemoryAllocation);
    stream->magic = STREAM_MAGIC;
    stream->flags = flags;
    stream->device = hd_sim_device();
    stream->priority = priority;
    stream->last = &stream->first;
    pthread_mutex_lock(&lock);
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&lock);
    *pStream = stream;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned flags)
{
    return cudaStreamCreateWithPriority(pStream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *pStream)
{
    return cudaStreamCreateWithFlags(pStream, cudaStreamDefault);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    check_stream(stream, __func__);
    *priority = is_legacy(stream) ? 0 : stream->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaError_t error;

    if (is_legacy(stream))
        return hd_sim_set_error(cudaErrorInvalidResourceHandle);
    check_stream(stream, __func__);
    error = refuse_captured(stream);
    if (error)
        return error;
    pthread_mutex_lock(&lock);
    stream->magic = 0;
    if (!stream->first) /* else when its work has ended */
        bury_stream(stream);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t error;

    check_stream(stream, __func__);
    error = refuse_captured(stream);
    if (error)
        return error;
    pthread_mutex_lock(&lock);
    if (is_legacy(stream))
        drain_blocking();
    else
        while (stream->first)
            must_run_one();
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    bool idle = true;
    cudaError_t error;

    check_stream(stream, __func__);
    error = refuse_captured(stream);
    if (error)
        return error;
    pthread_mutex_lock(&lock);
    if (!is_legacy(stream)) {
        if (stream->first)
            (void)run_one(); /* makes progress, so that a loop of queries ends */
        idle = !stream->first;
    }
    pthread_mutex_unlock(&lock);
    return idle ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize(void)
{
    const cudaError_t error = hd_sim_refuse_in_capture(NULL);

    if (error)
        return error;
    hd_sim_drain_all();
    return cudaSuccess;
}

/* ---- Events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    struct CUevent_st *made;

    if (!event || flags & ~3u)
        return hd_sim_set_error(cudaErrorInvalidValue);
    made = calloc(1, sizeof *made);
    if (!made)
        return hd_sim_set_error(cudaErrorMemoryAllocation);
    made->magic = EVENT_MAGIC;
    made->flags = flags;
    made->device = hd_sim_device();
    pthread_mutex_lock(&lock);
    made->next = events;
    made->link = &events;
    if (events)
        events->link = &made->next;
    events = made;
    pthread_mutex_unlock(&lock);
    *event = made;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (!event)
        return hd_sim_set_error(cudaErrorInvalidResourceHandle);
    check_event(event, __func__);
    pthread_mutex_lock(&lock);
    *event->link = event->next;
    if (event->next)
        event->next->link = event->link;
    release_record(event->record);
    *event = (struct CUevent_st){.next = dead_events};
    dead_events = event;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    struct hd_sim_record *record;
    cudaError_t error;

    check_event(event, __func__);
    if (!event || event->device != device_of(stream, __func__))
        return hd_sim_set_error(cudaErrorInvalidResourceHandle);
    error = refuse_captured(stream);
    if (error)
        return error;
    record = calloc(1, sizeof *record);
    if (!record)
        return hd_sim_set_error(cudaErrorMemoryAllocation);
    record->references = 1;
    pthread_mutex_lock(&lock);
    if (is_legacy(stream)) {
        drain_blocking();
        record->done = true;
    } else if (!stream->first) {
        record->done = true;
        record->ms = stream->ms;
    } else {
        error = push(stream, (struct operation){.marks = record});
        if (!error)
            record->references++;
    }
    release_record(event->record);
    event->record = record;
    pthread_mutex_unlock(&lock);
    return hd_sim_set_error(error);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    struct hd_sim_record *record;
    cudaError_t error;

    check_event(event, __func__);
    check_stream(stream, __func__);
    error = refuse_captured(stream);
    if (error)
        return error;
    if (!event)
        return hd_sim_set_error(cudaErrorInvalidResourceHandle);
    if (flags)
        return hd_sim_set_error(cudaErrorInvalidValue);
    pthread_mutex_lock(&lock);
    record = event->record;
    if (record && !record->done) {
        if (is_legacy(stream)) {
            while (!record->done)
                must_run_one();
        } else {
            error = push(stream, (struct operation){.waits_for = record});
            if (!error)
                record->references++;
        }
    }
    pthread_mutex_unlock(&lock);
    return hd_sim_set_error(error);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    bool done;
    const cudaError_t error = hd_sim_refuse_in_capture(NULL);

    check_event(event, __func__);
    if (error)
        return error;
    if (!event)
        return hd_sim_set_error(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    if (event->record && !event->record->done)
        (void)run_one();
    done = !event->record || event->record->done;
    pthread_mutex_unlock(&lock);
    return done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    struct hd_sim_record *record;

    check_event(event, __func__);
    if (!event)
        return hd_sim_set_error(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    record = event->record;
    if (record) {
        record->references++;
        while (!record->done)
            must_run_one();
        release_record(record);
    }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    cudaError_t error = cudaErrorInvalidResourceHandle;
    double passed_ms = 0;

    check_event(start, __func__);
    check_event(end, __func__);
    if (!start || !end || (start->flags | end->flags) & cudaEventDisableTiming)
        return hd_sim_set_error(error);
    pthread_mutex_lock(&lock);
    if (start->record && end->record)
        error = start->record->done && end->record->done ? cudaSuccess : cudaErrorNotReady;
    if (!error)
        passed_ms = end->record->ms - start->record->ms;
    pthread_mutex_unlock(&lock);
    *ms = 0.001f + (float)passed_ms; /* the emulator does not measure time */
    return hd_sim_set_error(error);
}

size_t hd_sim_stream_leaks(void)
{
    size_t count = 0;

    pthread_mutex_lock(&lock);
    for (const struct CUstream_st *s = streams; s; s = s->next) {
        fprintf(stderr, "cudasim: stream %p of device %d was not destroyed\n", (const void *)s,
                s->device);
        count++;
    }
    for (const struct CUevent_st *e = events; e; e = e->next) {
        fprintf(stderr, "cudasim: event %p was not destroyed\n", (const void *)e);
        count++;
    }
    pthread_mutex_unlock(&lock);
    return count;
}
