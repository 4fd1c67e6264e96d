#include "tests/lazy_device/lazy_device.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/random.h"
#include "comm/ordered.h"
#include "kernels/stream.h"

enum { PAGE_BYTES = 4096, POLLED_OPS = 3 };

/* One record of an event: it may be recorded again, on another stream, while others wait for this.
 */
struct mark {
    bool done;
    int64_t done_ns;
    int users; /* ops that name it, and the event */
};

enum op_kind { OP_LAUNCH, OP_WRITE, OP_COPY, OP_COMBINE, OP_ROWS, OP_RECORD, OP_WAIT };

struct op {
    struct op *next;
    enum op_kind kind;
    enum hd_kernel kernel;
    void *bytes; /* the arguments of a launch, what is written; owned */
    void *out;
    const void *inp;
    int64_t size_bytes;
    struct mark *mark; /* that is made, or waited for */
};

struct lazy_stream {
    struct hd_stream stream;
    struct lazy_backend *backend;
    struct op *first, *last;
    enum hd_status failure; /* of an op that ran; sticks */
    struct hd_error story;
    struct lazy_stream *next; /* of the device */
};

enum { DEVICE_BYTES_LOG2 = 34 };

struct lazy_backend {
    struct hd_backend *cpu;
    struct hd_stream *cpu_stream;
};

struct hd_event {
    struct mark *last; /* NULL: never recorded */
};

/* Addresses that tensors have, and where their bytes are. */
struct region {
    char *shown, *bytes;
    size_t size_bytes;
    struct region *next;
};

static struct device {
    pthread_mutex_t lock;
    struct lazy_stream *streams;
    struct region *regions;
    uint64_t seed, drawn; /* random numbers so far */
    struct lazy_counts counts;
} device = {.lock = PTHREAD_MUTEX_INITIALIZER, .seed = 77};

static uint64_t draw(uint64_t below)
{
    return hd_random_u64(device.seed, device.drawn++) % below;
}

/* ---- memory ---- */

/* NULL for an address that is none of the device's: memory of the host's that ranks communicate in.
 */
static void *bytes_at(const void *address)
{
    for (const struct region *r = device.regions; r; r = r->next)
        if ((const char *)address >= r->shown && (const char *)address < r->shown + r->size_bytes)
            return r->bytes + ((const char *)address - r->shown);
    return NULL;
}

static void *reachable(const void *address)
{
    void *bytes = address ? bytes_at(address) : NULL;

    return bytes ? bytes : (void *)address;
}

static enum hd_status reserve(struct hd_backend *backend, int64_t size_bytes, bool host_reachable,
                              void **ret_base)
{
    const size_t size = ((size_t)size_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    struct region *r = calloc(1, sizeof *r);

    if (!r)
        return hd_err(HD_NO_MEMORY, "no memory for a region");
    r->size_bytes = size;
    r->bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    r->shown =
        host_reachable ? r->bytes : mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r->bytes == MAP_FAILED || r->shown == MAP_FAILED) {
        free(r);
        return hd_err(HD_NO_MEMORY, "cannot reserve %zu bytes: %s", size, strerror(errno));
    }
    (void)pthread_mutex_lock(&device.lock);
    r->next = device.regions;
    device.regions = r;
    (void)pthread_mutex_unlock(&device.lock);
    *ret_base = r->shown;
    return HD_OK;
}

/* ---- running ---- */

static void release_mark(struct mark *mark)
{
    if (mark && --mark->users == 0)
        free(mark);
}

static void drop(struct op *op)
{
    release_mark(op->mark);
    free(op->bytes);
    free(op);
}

/* With every address turned into one that the cpu may use. */
static enum hd_status run_kernel(struct lazy_stream *s, const struct op *op)
{
    const struct hd_kernel_info *info = hd_kernel_get_info(op->kernel);

    for (int k = 0; k < info->operand_count; k++) {
        char *place = (char *)op->bytes + info->operands[k].offset;
        void *address;

        memcpy(&address, place, sizeof address);
        address = reachable(address);
        memcpy(place, &address, sizeof address);
    }
    return hd_launch(s->backend->cpu_stream, op->kernel, op->bytes);
}

static enum hd_status run_combine(const struct hd_combine_args *a)
{
    const size_t bytes = (size_t)a->count * hd_dtype_size(a->keep_fp32 ? HD_F32 : a->dtype);
    const void **in = calloc((size_t)a->ins, sizeof *in);
    void *sum = malloc(bytes + 1); /* an operand may be a result, too */

    if (in && sum) {
        for (int k = 0; k < a->ins; k++)
            in[k] = a->in_stride_bytes ? (const char *)reachable(a->in[0]) + k * a->in_stride_bytes
                                       : reachable(a->in[k]);
        hd_ordered_reduce(sum, in, a->ins, a->count, a->dtype, a->max ? HD_COMM_MAX : HD_COMM_SUM,
                          a->keep_fp32);
        for (int k = 0; k < a->outs; k++)
            memcpy(reachable(a->out[k]), sum, bytes);
    }
    free(in);
    free(sum);
    return in && sum ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a sum");
}

/* Returns how many rows member `to` receives, -1 when some member's own counts break its bound. */
static int64_t rows_for(const struct hd_exchange_rows_args *a, int to)
{
    int64_t rows = 0;

    for (int m = 0; m < a->members; m++) {
        const int32_t *counts = reachable(a->send_counts[m]);
        int64_t sent = 0;

        for (int j = 0; j < a->members; j++) {
            if (counts[j] < 0)
                return -1;
            sent += counts[j];
        }
        if (sent > a->send_rows_max[m])
            return -1;
        rows += counts[to];
    }
    return rows;
}

static void run_rows(const struct hd_exchange_rows_args *a)
{
    int32_t *received = reachable(a->recv_counts);
    char *out = reachable(a->out);
    bool fits = true;

    for (int m = 0; m < a->members; m++) {
        const int64_t rows = rows_for(a, m);

        fits = fits && rows >= 0 && rows <= a->recv_rows_max[m];
    }
    for (int m = 0; m < a->members; m++) {
        const int32_t *counts = reachable(a->send_counts[m]);
        const char *from = reachable(a->send[m]);

        for (int j = 0; fits && j < a->index; j++)
            from += counts[j] * a->row_bytes;
        if (received)
            received[m] = fits ? counts[a->index] : 0;
        if (!fits)
            continue;
        memcpy(out, from, (size_t)(counts[a->index] * a->row_bytes));
        out += counts[a->index] * a->row_bytes;
    }
    if (!fits)
        *(int32_t *)reachable(a->overflow) = 1;
}

static void run_first(struct lazy_stream *s)
{
    struct op *op = s->first;
    enum hd_status st = HD_OK;

    s->first = op->next;
    if (!s->first)
        s->last = NULL;
    if (op->kind == OP_RECORD) {
        op->mark->done = true;
        op->mark->done_ns = hd_clock_now_ns();
    } else if (op->kind != OP_WAIT && !s->failure) {
        device.counts.run++;
        if (op->kind == OP_LAUNCH)
            st = run_kernel(s, op);
        else if (op->kind == OP_COMBINE)
            st = run_combine(op->bytes);
        else if (op->kind == OP_ROWS)
            run_rows(op->bytes);
        else
            memmove(reachable(op->out), op->bytes ? op->bytes : reachable(op->inp),
                    (size_t)op->size_bytes);
    }
    if (st) {
        s->failure = st;
        hd_err_save(st, &s->story);
    }
    drop(op);
}

static bool may_run(const struct lazy_stream *s)
{
    return s->first && (s->first->kind != OP_WAIT || s->first->mark->done);
}

/* One of the heads that may run, by chance, but not of `except`; NULL when there is none. */
static struct lazy_stream *pick(const struct lazy_stream *except)
{
    struct lazy_stream *chosen = NULL;
    uint64_t seen = 0;

    for (struct lazy_stream *s = device.streams; s; s = s->next)
        if (s != except && may_run(s) && draw(++seen) == 0)
            chosen = s;
    return chosen;
}

/* Who gets on first when somebody waits for `s`: it alone as far as it can, anybody, or all others
 * as far as they can. */
static struct lazy_stream *next_stream(struct lazy_stream *s, uint64_t mood)
{
    struct lazy_stream *other = NULL;

    if (mood == 0 && may_run(s))
        return s;
    if (mood == 2)
        other = pick(s);
    return other ? other : pick(NULL);
}

static bool is_empty(const struct lazy_stream *s)
{
    return !s->first;
}

/* Something can always run: a wait is for a record that was launched before it. */
static void drain(struct lazy_stream *s)
{
    const uint64_t mood = draw(3);

    while (!is_empty(s)) {
        struct lazy_stream *next = next_stream(s, mood);

        assert(next);
        run_first(next);
    }
}

static void drain_all(void)
{
    struct lazy_stream *s;

    while ((s = pick(NULL)))
        run_first(s);
}

static enum hd_status outcome(const struct lazy_stream *s)
{
    return s->failure ? hd_err_restore(&s->story) : HD_OK;
}

/* ---- enqueueing ---- */

/* With the device's lock held. */
static void append(struct lazy_stream *s, struct op *op)
{
    op->next = NULL;
    if (s->last)
        s->last->next = op;
    else
        s->first = op;
    s->last = op;
}

static enum hd_status enqueue(struct lazy_stream *s, const struct op *what, const void *bytes,
                              size_t size_bytes)
{
    struct op *op = malloc(sizeof *op);

    if (op)
        *op = *what;
    if (op && bytes)
        op->bytes = malloc(size_bytes + 1);
    if (!op || (bytes && !op->bytes)) {
        free(op);
        return hd_err(HD_NO_MEMORY, "no memory for a launch");
    }
    if (bytes)
        memcpy(op->bytes, bytes, size_bytes);
    (void)pthread_mutex_lock(&device.lock);
    append(s, op);
    (void)pthread_mutex_unlock(&device.lock);
    return HD_OK;
}

static enum hd_status launch(struct hd_stream *stream, enum hd_kernel kernel, const void *args)
{
    return enqueue((struct lazy_stream *)stream, &(struct op){.kind = OP_LAUNCH, .kernel = kernel},
                   args, hd_kernel_get_info(kernel)->args_size_bytes);
}

static enum hd_status synchronize(struct hd_stream *stream)
{
    struct lazy_stream *s = (struct lazy_stream *)stream;
    enum hd_status st;

    (void)pthread_mutex_lock(&device.lock);
    device.counts.waits++;
    drain(s);
    st = outcome(s);
    (void)pthread_mutex_unlock(&device.lock);
    return st;
}

static bool is_host_memory(const void *address)
{
    bool host;

    (void)pthread_mutex_lock(&device.lock);
    host = !bytes_at(address);
    (void)pthread_mutex_unlock(&device.lock);
    return host;
}

/* Memory of the host's own, of an engine that moves it without asking the device, has the bytes at
 * once. */
static enum hd_status write_bytes(struct hd_stream *stream, void *out, const void *host,
                                  int64_t size_bytes)
{
    enum hd_status st =
        enqueue((struct lazy_stream *)stream,
                &(struct op){.kind = OP_WRITE, .out = out, .size_bytes = size_bytes}, host,
                (size_t)size_bytes);

    return !st && is_host_memory(out) ? synchronize(stream) : st;
}

static enum hd_status read_bytes(struct hd_stream *stream, void *host, const void *inp,
                                 int64_t size_bytes)
{
    enum hd_status st = synchronize(stream);

    (void)pthread_mutex_lock(&device.lock);
    memcpy(host, reachable(inp), (size_t)size_bytes);
    (void)pthread_mutex_unlock(&device.lock);
    return st;
}

static enum hd_status copy_bytes(struct hd_stream *stream, void *out, const void *inp,
                                 int64_t size_bytes)
{
    return enqueue((struct lazy_stream *)stream,
                   &(struct op){.kind = OP_COPY, .out = out, .inp = inp, .size_bytes = size_bytes},
                   NULL, 0);
}

static enum hd_status combine(struct hd_stream *stream, const struct hd_combine_args *args)
{
    return enqueue((struct lazy_stream *)stream, &(struct op){.kind = OP_COMBINE}, args,
                   sizeof *args);
}

static enum hd_status exchange_rows(struct hd_stream *stream,
                                    const struct hd_exchange_rows_args *args)
{
    return enqueue((struct lazy_stream *)stream, &(struct op){.kind = OP_ROWS}, args, sizeof *args);
}

static void release(struct hd_backend *backend, void *base)
{
    struct region **link = &device.regions, *r;

    (void)pthread_mutex_lock(&device.lock);
    drain_all();
    while ((r = *link) && r->shown != base)
        link = &r->next;
    if (r) {
        *link = r->next;
        if (r->shown != r->bytes)
            (void)munmap(r->shown, r->size_bytes);
        (void)munmap(r->bytes, r->size_bytes);
        free(r);
    }
    (void)pthread_mutex_unlock(&device.lock);
}

/* Answers as if this rank had the device for itself. */
static enum hd_status ask_memory(struct hd_backend *backend, struct hd_device_memory *ret_memory)
{
    *ret_memory = (struct hd_device_memory){.total_bytes = (int64_t)1 << DEVICE_BYTES_LOG2};
    (void)pthread_mutex_lock(&device.lock);
    for (const struct region *r = device.regions; r; r = r->next)
        ret_memory->reserved_bytes += (int64_t)r->size_bytes;
    (void)pthread_mutex_unlock(&device.lock);
    ret_memory->free_bytes = ret_memory->total_bytes - ret_memory->reserved_bytes;
    return HD_OK;
}

/* ---- events ---- */

static enum hd_status event_new(struct hd_backend *backend, bool timed, struct hd_event **ret_event)
{
    *ret_event = calloc(1, sizeof **ret_event);
    return *ret_event ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for an event");
}

static void event_free(struct hd_event *event)
{
    (void)pthread_mutex_lock(&device.lock);
    release_mark(event->last);
    (void)pthread_mutex_unlock(&device.lock);
    free(event);
}

static enum hd_status event_record(struct hd_event *event, struct hd_stream *stream)
{
    struct op *op = calloc(1, sizeof *op);
    struct mark *mark = calloc(1, sizeof *mark);

    if (!op || !mark) {
        free(op);
        free(mark);
        return hd_err(HD_NO_MEMORY, "no memory for an event");
    }
    mark->users = 2;
    *op = (struct op){.kind = OP_RECORD, .mark = mark};
    (void)pthread_mutex_lock(&device.lock);
    release_mark(event->last);
    event->last = mark;
    append((struct lazy_stream *)stream, op);
    (void)pthread_mutex_unlock(&device.lock);
    return HD_OK;
}

static enum hd_status event_wait(struct hd_stream *stream, struct hd_event *event)
{
    struct op *op = calloc(1, sizeof *op);

    if (!op)
        return hd_err(HD_NO_MEMORY, "no memory to wait for an event");
    (void)pthread_mutex_lock(&device.lock);
    if (event->last) {
        event->last->users++;
        *op = (struct op){.kind = OP_WAIT, .mark = event->last};
        append((struct lazy_stream *)stream, op);
        op = NULL;
    }
    (void)pthread_mutex_unlock(&device.lock);
    free(op);
    return HD_OK;
}

static bool is_done(const struct hd_event *event)
{
    return !event->last || event->last->done;
}

/* Time passes for who asks again and again. */
static enum hd_status event_done(struct hd_event *event, bool *ret_done)
{
    (void)pthread_mutex_lock(&device.lock);
    for (uint64_t n = draw(POLLED_OPS + 1); n > 0; n--) {
        struct lazy_stream *s = pick(NULL);

        if (s)
            run_first(s);
    }
    *ret_done = is_done(event);
    (void)pthread_mutex_unlock(&device.lock);
    return HD_OK;
}

static enum hd_status event_finish(struct hd_event *event)
{
    (void)pthread_mutex_lock(&device.lock);
    device.counts.waits++;
    while (!is_done(event)) {
        struct lazy_stream *s = pick(NULL);

        assert(s);
        run_first(s);
    }
    (void)pthread_mutex_unlock(&device.lock);
    return HD_OK;
}

static enum hd_status event_elapsed(struct hd_event *begin, struct hd_event *end,
                                    double *ret_seconds)
{
    *ret_seconds = (double)(end->last->done_ns - begin->last->done_ns) * 1e-9;
    return HD_OK;
}

static const struct hd_device_table lazy_memory = {
    .reserve = reserve,
    .release = release,
    .memory = ask_memory,
    .write = write_bytes,
    .read = read_bytes,
    .copy = copy_bytes,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_done = event_done,
    .event_finish = event_finish,
    .event_elapsed = event_elapsed,
    .combine = combine,
    .exchange_rows = exchange_rows,
};

/* ---- the backend ---- */

static void describe(const struct hd_backend_options *options, struct hd_traits *ret_traits)
{
    hd_backend_cpu()->describe(options, ret_traits);
    (void)snprintf(ret_traits->backend, sizeof ret_traits->backend, "lazy");
    ret_traits->memory_bytes = (int64_t)1 << DEVICE_BYTES_LOG2;
}

static void close_backend(struct hd_backend *backend)
{
    struct lazy_backend *b = (struct lazy_backend *)backend;

    if (b->cpu_stream)
        hd_backend_cpu()->stream_close(b->cpu_stream);
    if (b->cpu)
        hd_backend_cpu()->close(b->cpu);
    free(b);
}

static enum hd_status open_backend(const struct hd_backend_options *options,
                                   struct hd_backend **ret_backend)
{
    struct lazy_backend *b = calloc(1, sizeof *b);
    enum hd_status st;

    if (!b)
        return hd_err(HD_NO_MEMORY, "no memory for a backend");
    st = hd_backend_cpu()->open(options, &b->cpu);
    if (!st)
        st = hd_backend_cpu()->stream_open(b->cpu, HD_STREAM_FOR_COMPUTE, &b->cpu_stream);
    if (st)
        close_backend((struct hd_backend *)b);
    else
        *ret_backend = (struct hd_backend *)b;
    return st;
}

static enum hd_status stream_open(struct hd_backend *backend, enum hd_stream_purpose purpose,
                                  struct hd_stream **ret_stream)
{
    struct lazy_stream *s = calloc(1, sizeof *s);

    if (!s)
        return hd_err(HD_NO_MEMORY, "no memory for a stream");
    s->stream.table = lazy_device();
    s->backend = (struct lazy_backend *)backend;
    (void)pthread_mutex_lock(&device.lock);
    s->next = device.streams;
    device.streams = s;
    (void)pthread_mutex_unlock(&device.lock);
    *ret_stream = &s->stream;
    return HD_OK;
}

static void stream_close(struct hd_stream *stream)
{
    struct lazy_stream *s = (struct lazy_stream *)stream, **link = &device.streams;

    (void)pthread_mutex_lock(&device.lock);
    drain(s);
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    (void)pthread_mutex_unlock(&device.lock);
    free(s);
}

static enum hd_status prepare(struct hd_backend *backend, enum hd_kernel kernel, const void *args)
{
    return hd_backend_cpu()->prepare(((struct lazy_backend *)backend)->cpu, kernel, args);
}

static double measure_peak(struct hd_backend *backend, enum hd_dtype dtype)
{
    return hd_backend_cpu()->measure_peak(((struct lazy_backend *)backend)->cpu, dtype);
}

void lazy_device_seed(uint64_t seed)
{
    (void)pthread_mutex_lock(&device.lock);
    device.seed = seed;
    device.drawn = 0;
    (void)pthread_mutex_unlock(&device.lock);
}

struct lazy_counts lazy_device_counts(void)
{
    struct lazy_counts counts;

    (void)pthread_mutex_lock(&device.lock);
    counts = device.counts;
    (void)pthread_mutex_unlock(&device.lock);
    return counts;
}

static struct hd_backend_table table = {
    .abi = HD_KERNEL_ABI,
    .table_bytes = sizeof table,
    .name = "lazy",
    .device = &lazy_memory,
    .describe = describe,
    .open = open_backend,
    .close = close_backend,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .launch = launch,
    .synchronize = synchronize,
    .prepare = prepare,
    .measure_peak = measure_peak,
};

static void hash_table(void)
{
    table.kernel_list_hash = hd_kernel_list_hash();
}

const struct hd_backend_table *lazy_device(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, hash_table);
    return &table;
}
