#include "device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "comm/ordered.h"
#include "kernels/stream.h"

enum { RUN_PER_LOOK = 3 };

/* One record of an event: it may be recorded again, on another stream, while others wait for this.
 */
struct mark {
    bool done;
    int users; /* tasks that name it, and the event */
};

struct hd_event {
    struct mark *last; /* NULL: never recorded */
};

enum what { RECORD, WAIT, COPY, COMBINE, EXCHANGE };

struct task {
    enum what what;
    struct mark *mark; /* that is made, or waited for */
    void *out;
    const void *inp;
    size_t bytes;
    void *owned; /* what `inp` lies in, if the task has its own */
    struct hd_combine_args combine;
    struct hd_exchange_rows_args exchange;
    struct task *next;
};

struct late_stream {
    struct hd_stream stream;
    struct task *head, **tail;
    struct late_stream *next;
};

struct hd_backend {
    struct hd_traits traits;
};

static struct {
    pthread_mutex_t lock;
    struct late_stream *streams;
    uint64_t seed, turns;
} device = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- running ---- */

static void release_mark(struct mark *mark)
{
    if (mark && --mark->users == 0)
        free(mark);
}

static void run_exchange(const struct hd_exchange_rows_args *a)
{
    char *to = a->out;
    bool exceeded = false;

    for (int m = 0; m < a->members; m++) {
        int64_t sent = 0, received = 0;

        for (int o = 0; o < a->members; o++) {
            exceeded = exceeded || a->send_counts[m][o] < 0;
            sent += a->send_counts[m][o];
            received += a->send_counts[o][m];
        }
        exceeded = exceeded || sent > a->send_rows_max[m] || received > a->recv_rows_max[m];
    }
    if (exceeded)
        *a->overflow = 1;
    for (int m = 0; m < a->members; m++) {
        const int64_t rows = exceeded ? 0 : a->send_counts[m][a->index];
        int64_t before = 0;

        for (int o = 0; o < a->index; o++)
            before += a->send_counts[m][o];
        if (rows)
            memcpy(to, (const char *)a->send[m] + before * a->row_bytes,
                   (size_t)(rows * a->row_bytes));
        to += rows * a->row_bytes;
        if (a->recv_counts)
            a->recv_counts[m] = (int32_t)rows;
    }
}

static void run_combine(const struct hd_combine_args *a)
{
    const size_t bytes = (size_t)a->count * hd_dtype_size(a->dtype);
    void *sum = malloc(bytes + 1);

    hd_ordered_reduce(sum, a->in, a->ins, a->count, a->dtype, a->max ? HD_COMM_MAX : HD_COMM_SUM);
    for (int o = 0; o < a->outs; o++)
        memcpy(a->out[o], sum, bytes);
    free(sum);
}

/* The head of a stream; false: it waits. */
static bool run_head(struct late_stream *stream)
{
    struct task *task = stream->head;

    if (task->what == WAIT && !task->mark->done)
        return false;
    if (task->what == RECORD)
        task->mark->done = true;
    else if (task->what == COPY)
        memmove(task->out, task->inp, task->bytes);
    else if (task->what == COMBINE)
        run_combine(&task->combine);
    else if (task->what == EXCHANGE)
        run_exchange(&task->exchange);
    stream->head = task->next;
    if (!stream->head)
        stream->tail = &stream->head;
    release_mark(task->mark);
    free(task->owned);
    free(task);
    return true;
}

/* One task of a stream taken at random, or of the next that has one; false: none can run. */
static bool run_one(void)
{
    uint64_t count = 0, skip;

    for (const struct late_stream *s = device.streams; s; s = s->next)
        count++;
    skip = count ? hd_random_u64(device.seed, device.turns++) % count : 0;
    for (int round = 0; round < 2; round++) {
        uint64_t at = 0;

        for (struct late_stream *s = device.streams; s; s = s->next, at++) {
            if ((round || at >= skip) && s->head && run_head(s))
                return true;
        }
    }
    return false;
}

/* ---- the table ---- */

static struct task *add(struct hd_stream *stream, enum what what)
{
    struct late_stream *late = (struct late_stream *)stream;
    struct task *task = calloc(1, sizeof *task);

    if (!task)
        abort();
    task->what = what;
    *late->tail = task;
    late->tail = &task->next;
    return task;
}

static void lock(void)
{
    (void)pthread_mutex_lock(&device.lock);
}

static enum hd_status unlock(void)
{
    (void)pthread_mutex_unlock(&device.lock);
    return HD_OK;
}

static enum hd_status reserve(struct hd_backend *backend, int64_t size_bytes, bool host_reachable,
                              void **ret_base)
{
    const size_t bytes = ((size_t)size_bytes + 4095) / 4096 * 4096;

    (void)backend, (void)host_reachable;
    *ret_base = aligned_alloc(4096, bytes);
    if (!*ret_base)
        return hd_err(HD_NO_MEMORY, "the late device has no memory");
    memset(*ret_base, 0, bytes);
    return HD_OK;
}

static void release(struct hd_backend *backend, void *base)
{
    (void)backend;
    lock();
    while (run_one())
        ;
    (void)unlock();
    free(base);
}

static enum hd_status add_copy(struct hd_stream *stream, void *out, const void *inp, size_t bytes,
                               void *owned)
{
    struct task *task;

    lock();
    task = add(stream, COPY);
    task->out = out;
    task->inp = inp;
    task->bytes = bytes;
    task->owned = owned;
    return unlock();
}

static enum hd_status copy_bytes(struct hd_stream *stream, void *out, const void *inp,
                                 int64_t size_bytes)
{
    return add_copy(stream, out, inp, (size_t)size_bytes, NULL);
}

static enum hd_status write_bytes(struct hd_stream *stream, void *out, const void *host,
                                  int64_t size_bytes)
{
    void *own = malloc((size_t)size_bytes + 1);

    if (!own)
        abort();
    memcpy(own, host, (size_t)size_bytes);
    return add_copy(stream, out, own, (size_t)size_bytes, own);
}

static enum hd_status synchronize(struct hd_stream *stream)
{
    bool moved = true;

    lock();
    while (((struct late_stream *)stream)->head && moved)
        moved = run_one();
    (void)unlock();
    return moved ? HD_OK : hd_err(HD_INTERNAL, "the late device is stuck");
}

static enum hd_status read_bytes(struct hd_stream *stream, void *host, const void *device_memory,
                                 int64_t size_bytes)
{
    const enum hd_status st = add_copy(stream, host, device_memory, (size_t)size_bytes, NULL);

    return st ? st : synchronize(stream);
}

static enum hd_status event_new(struct hd_backend *backend, bool timed, struct hd_event **ret_event)
{
    (void)backend, (void)timed;
    *ret_event = calloc(1, sizeof **ret_event);
    return *ret_event ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for an event");
}

static void event_free(struct hd_event *event)
{
    lock();
    release_mark(event->last);
    (void)unlock();
    free(event);
}

static enum hd_status event_record(struct hd_event *event, struct hd_stream *stream)
{
    struct mark *mark = calloc(1, sizeof *mark);

    if (!mark)
        return hd_err(HD_NO_MEMORY, "no memory for an event");
    mark->users = 2;
    lock();
    release_mark(event->last);
    event->last = add(stream, RECORD)->mark = mark;
    return unlock();
}

static enum hd_status event_wait(struct hd_stream *stream, struct hd_event *event)
{
    lock();
    if (event->last) {
        event->last->users++;
        add(stream, WAIT)->mark = event->last;
    }
    return unlock();
}

static enum hd_status event_done(struct hd_event *event, bool *ret_done)
{
    lock();
    for (int n = 0; n < RUN_PER_LOOK && run_one(); n++)
        ;
    *ret_done = !event->last || event->last->done;
    return unlock();
}

static enum hd_status event_finish(struct hd_event *event)
{
    bool moved = true;

    lock();
    while (event->last && !event->last->done && moved)
        moved = run_one();
    (void)unlock();
    return moved ? HD_OK : hd_err(HD_INTERNAL, "the late device is stuck");
}

static enum hd_status combine(struct hd_stream *stream, const struct hd_combine_args *args)
{
    lock();
    add(stream, COMBINE)->combine = *args;
    return unlock();
}

static enum hd_status exchange_rows(struct hd_stream *stream,
                                    const struct hd_exchange_rows_args *args)
{
    lock();
    add(stream, EXCHANGE)->exchange = *args;
    return unlock();
}

static enum hd_status open(const struct hd_backend_options *options,
                           struct hd_backend **ret_backend)
{
    (void)options;
    *ret_backend = calloc(1, sizeof **ret_backend);
    return *ret_backend ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a backend");
}

static void close(struct hd_backend *backend)
{
    free(backend);
}

static enum hd_status stream_open(struct hd_backend *backend, enum hd_stream_purpose purpose,
                                  struct hd_stream **ret_stream)
{
    struct late_stream *stream = calloc(1, sizeof *stream);

    (void)backend;
    (void)purpose;
    if (!stream)
        return hd_err(HD_NO_MEMORY, "no memory for a stream");
    stream->stream.table = ranks_device();
    stream->tail = &stream->head;
    lock();
    stream->next = device.streams;
    device.streams = stream;
    (void)unlock();
    *ret_stream = &stream->stream;
    return HD_OK;
}

static void stream_close(struct hd_stream *stream)
{
    struct late_stream **at = &device.streams;

    (void)synchronize(stream);
    lock();
    while (*at != (struct late_stream *)stream)
        at = &(*at)->next;
    *at = (*at)->next;
    (void)unlock();
    free(stream);
}

const struct hd_backend_table *ranks_device(void)
{
    static const struct hd_device_table calls = {
        .reserve = reserve,
        .release = release,
        .write = write_bytes,
        .read = read_bytes,
        .copy = copy_bytes,
        .event_new = event_new,
        .event_free = event_free,
        .event_record = event_record,
        .event_wait = event_wait,
        .event_done = event_done,
        .event_finish = event_finish,
        .combine = combine,
        .exchange_rows = exchange_rows,
    };
    static const struct hd_backend_table table = {
        .name = "late",
        .device = &calls,
        .open = open,
        .close = close,
        .stream_open = stream_open,
        .stream_close = stream_close,
        .synchronize = synchronize,
    };

    return &table;
}

void ranks_device_seed(uint64_t seed)
{
    lock();
    device.seed = seed;
    device.turns = 0;
    (void)unlock();
}
