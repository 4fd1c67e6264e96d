#include "train/profile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/file.h"
#include "train/profile_internal.h"

/* bandwidth is measured on three arrays of 32 MiB each, larger than the caches */
enum { TRIAD_FLOATS = 8 << 20, TRIAD_TRIES = 4 };

/* ---- bandwidth ---- */

/* Allocates memory for the three arrays of the bandwidth measurement, where the backend has its
 * tensors: on the device or on the host. */
static enum hd_status take_pool(const struct hd_backend_table *table, struct hd_backend *backend,
                                size_t bytes, void **ret_pool)
{
    void *pool;

    if (table->device)
        return table->device->reserve(backend, (int64_t)bytes, false, ret_pool);
    pool = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pool == MAP_FAILED)
        return hd_err(HD_NO_MEMORY, "no memory to measure the bandwidth: %s", strerror(errno));
    memset(pool, 0, bytes);
    *ret_pool = pool;
    return HD_OK;
}

static void give_pool_back(const struct hd_backend_table *table, struct hd_backend *backend,
                           size_t bytes, void *pool)
{
    if (table->device)
        table->device->release(backend, pool);
    else
        (void)munmap(pool, bytes);
}

/* Measures the bandwidth of out = a + b over arrays larger than the caches: the best of
 * TRIAD_TRIES, in bytes per second. */
static enum hd_status time_triads(const struct hd_backend_table *table, struct hd_backend *backend,
                                  char *pool, double *ret_bandwidth)
{
    const size_t bytes = (size_t)TRIAD_FLOATS * sizeof(float);
    const struct hd_add_args args = {
        .out = pool, .a = pool + bytes, .b = pool + 2 * bytes, .N = TRIAD_FLOATS, .dtype = HD_F32};
    struct hd_stream *stream = NULL;
    int64_t best_ns = INT64_MAX;
    enum hd_status st = table->stream_open(backend, HD_STREAM_FOR_COMPUTE, &stream);

    if (!st)
        st = table->prepare(backend, HD_K_add, &args);
    for (int i = 0; !st && i < TRIAD_TRIES; i++) {
        const int64_t begin_ns = hd_clock_now_ns();

        st = hd_launch(stream, HD_K_add, &args);
        if (!st)
            st = table->synchronize(stream);
        if (hd_clock_now_ns() - begin_ns < best_ns)
            best_ns = hd_clock_now_ns() - begin_ns;
    }
    if (stream)
        table->stream_close(stream);
    *ret_bandwidth = 3.0 * (double)bytes / ((double)(best_ns > 0 ? best_ns : 1) * 1e-9);
    return st;
}

static enum hd_status measure_bandwidth(const struct hd_backend_table *table,
                                        struct hd_backend *backend, double *ret_bandwidth)
{
    const size_t bytes = 3 * (size_t)TRIAD_FLOATS * sizeof(float);
    void *pool;
    enum hd_status st = take_pool(table, backend, bytes, &pool);

    if (st)
        return st;
    st = time_triads(table, backend, pool, ret_bandwidth);
    give_pool_back(table, backend, bytes, pool);
    return st;
}

/* ---- times on a device ---- */

static enum hd_status make_events(struct profile_events *e, const struct hd_device_table *device,
                                  struct hd_backend *backend, int64_t capacity)
{
    enum hd_status st = HD_OK;

    if (!device)
        return HD_OK;
    e->device = device;
    e->list = calloc((size_t)capacity, sizeof(struct hd_event *));
    if (!e->list)
        return hd_err(HD_NO_MEMORY, "no memory for the events of a profile");
    for (; !st && e->capacity < capacity; e->capacity += !st)
        st = device->event_new(backend, true, &e->list[e->capacity]);
    return st ? st : device->event_new(backend, true, &e->base);
}

static void free_events(struct profile_events *e)
{
    for (int32_t i = 0; i < e->capacity; i++)
        e->device->event_free(e->list[i]);
    if (e->base)
        e->device->event_free(e->base);
    free(e->list);
}

static void record_event(struct profile_events *e, struct hd_event *event, struct hd_stream *stream)
{
    const enum hd_status st = e->device->event_record(event, stream);

    if (st && !e->failed)
        e->failed = st;
}

static bool is_timed(const struct profile_events *e, enum hd_span_kind kind,
                     const struct hd_node *node)
{
    return e->device && (kind == HD_SPAN_WAIT || (kind == HD_SPAN_LAUNCH && !node->is_comm)) &&
           e->count + 2 <= e->capacity;
}

/* Returns the time of a completed device event, in ns on the host's clock. */
static int64_t time_of(struct profile_events *e, int32_t event)
{
    double seconds = 0;
    const enum hd_status st = e->device->event_elapsed(e->base, e->list[event], &seconds);

    if (st && !e->failed)
        e->failed = st;
    return e->base_ns + (int64_t)(seconds * 1e9);
}

/* Sets the device times of a step's records, after the step, when all its events are complete. */
static void read_events(struct hd_profile *p)
{
    for (int64_t i = p->open_step; i >= 0 && i < p->count; i++) {
        struct record *r = &p->records[i];

        if (!r->on_device)
            continue;
        r->device_begin_ns = time_of(&p->events, r->event);
        r->device_end_ns = time_of(&p->events, r->event + 1);
    }
}

/* ---- life ---- */

static int64_t records_of_a_step(const struct hd_rank_program *l)
{
    const int64_t last = l->job.profile_last < l->job.steps ? l->job.profile_last : l->job.steps;

    return l->memory.profile / HD_PROFILE_RECORD_BYTES / (last - l->job.profile_first + 1) + 1;
}

enum hd_status hd_profile_new(const struct hd_rank_program *rank_program,
                              const struct hd_backend_table *table, struct hd_backend *backend,
                              struct hd_profile **ret_profile)
{
    struct hd_profile *p;
    enum hd_status st;

    *ret_profile = NULL;
    if (!rank_program->memory.profile)
        return HD_OK;
    p = calloc(1, sizeof *p);
    if (!p)
        return hd_err(HD_NO_MEMORY, "no memory for a profile");
    p->rank_program = rank_program;
    p->capacity = rank_program->memory.profile / (int64_t)sizeof(struct record);
    p->first_open = -1;
    p->open_step = p->open_program = -1;
    p->micro_batch = -1;
    st = measure_bandwidth(table, backend, &p->bandwidth);
    if (!st)
        st = make_events(&p->events, table->device, backend, 2 * records_of_a_step(rank_program));
    if (st)
        hd_profile_free(p);
    else
        *ret_profile = p;
    return st;
}

void hd_profile_free(struct hd_profile *p)
{
    if (!p)
        return;
    free_events(&p->events);
    free(p);
}

void hd_profile_attach(struct hd_profile *p, void *records)
{
    if (p)
        p->records = records;
}

/* ---- recording ---- */

/* Adds a record to the profile and returns it; NULL: no memory left, which program_records in
 * rank_program.c rules out. */
static struct record *add(struct hd_profile *p, enum record_kind kind)
{
    struct record *r = p->count < p->capacity ? &p->records[p->count] : NULL;

    if (!r)
        return NULL;
    p->count++;
    *r = (struct record){.kind = (uint8_t)kind,
                         .call = (uint8_t)p->call,
                         .micro_batch = p->micro_batch,
                         .next_open = -1};
    return r;
}

/* Sets the completion time of collectives that were incomplete and are complete now. Collectives of
 * any stream can complete in any poll or wait, so all incomplete ones are checked after each
 * span. */
static void see_completions(struct hd_profile *p, int64_t now_ns)
{
    int32_t *link = &p->first_open;

    while (*link >= 0) {
        struct record *r = &p->records[*link];

        if (hd_comm_done(r->stream, r->ticket)) {
            r->done_ns = now_ns;
            *link = r->next_open;
            r->next_open = -1;
        } else {
            link = &r->next_open;
        }
    }
}

static void on_begin(void *context, enum hd_span_kind kind, const struct hd_node *node)
{
    struct hd_profile *p = context;

    if (is_timed(&p->events, kind, node))
        record_event(&p->events, p->events.list[p->events.count], p->stream);
}

static void on_span(void *context, const struct hd_span *span)
{
    struct hd_profile *p = context;
    struct record *r = add(p, RECORD_SPAN);

    if (!r)
        return;
    r->node = span->node;
    r->begin_ns = span->begin_ns;
    r->end_ns = span->end_ns;
    r->span = (uint8_t)span->kind;
    if (span->kind == HD_SPAN_LAUNCH && span->node->is_comm) {
        r->stream = span->stream;
        r->ticket = span->ticket;
        r->next_open = p->first_open;
        p->first_open = (int32_t)(r - p->records);
    } else if (is_timed(&p->events, span->kind, span->node)) {
        r->on_device = true;
        r->event = p->events.count;
        record_event(&p->events, p->events.list[r->event + 1], p->stream);
        p->events.count += 2;
    }
    see_completions(p, span->end_ns);
}

void hd_profile_step_begin(struct hd_profile *p, struct hd_runner *runner, int64_t step)
{
    struct record *r;

    if (!p || !p->records || p->written || step < p->rank_program->job.profile_first ||
        step > p->rank_program->job.profile_last)
        return;
    p->active = true;
    p->step = step;
    p->call = HD_CALL_F;
    p->micro_batch = -1;
    p->stream = hd_runner_stream(runner);
    p->events.count = 0;
    hd_runner_profile(runner,
                      &(struct hd_profiler){p->events.device ? on_begin : NULL, on_span, p});
    r = add(p, RECORD_STEP);
    p->open_step = r ? r - p->records : -1;
    if (r) {
        r->ticket = (uint64_t)step;
        r->begin_ns = hd_clock_now_ns();
    }
    if (p->events.device) { /* the device is idle now, so the base event completes at once */
        record_event(&p->events, p->events.base, p->stream);
        p->events.base_ns = hd_clock_now_ns();
    }
}

void hd_profile_step_end(struct hd_profile *p, struct hd_runner *runner, bool failed)
{
    if (!p || !p->active)
        return;
    if (p->open_step >= 0)
        p->records[p->open_step].end_ns = hd_clock_now_ns();
    hd_runner_profile(runner, NULL);
    if (p->events.device && !failed)
        read_events(p);
    p->active = false;
    p->open_step = -1;
    p->steps_recorded++;
}

void hd_profile_program_begin(struct hd_profile *p, const struct hd_instruction *in)
{
    struct record *r;

    if (!p || !p->active)
        return;
    p->begin_ns = hd_clock_now_ns();
    p->call = in->call;
    p->micro_batch = in->kind == HD_DO_RUN || in->kind == HD_DO_FEED ? in->micro_batch : -1;
    r = in->kind == HD_DO_RUN || in->kind == HD_DO_BEGIN || in->kind == HD_DO_UPDATE
            ? add(p, RECORD_PROGRAM)
            : NULL;
    p->open_program = r ? r - p->records : -1;
    if (r)
        r->begin_ns = p->begin_ns;
}

void hd_profile_program_end(struct hd_profile *p)
{
    if (!p || !p->active)
        return;
    if (p->open_program >= 0)
        p->records[p->open_program].end_ns = hd_clock_now_ns();
    p->open_program = -1;
    p->micro_batch = -1;
}

void hd_profile_batch_done(struct hd_profile *p)
{
    struct record *r;

    if (!p || !p->active)
        return;
    r = add(p, RECORD_BATCH);
    if (r) {
        r->begin_ns = p->begin_ns;
        r->end_ns = hd_clock_now_ns();
    }
}

/* ---- writing the files ---- */

bool hd_profile_is_due(const struct hd_profile *p, bool ended)
{
    return p && !p->written && p->steps_recorded &&
           (ended || p->step == p->rank_program->job.profile_last);
}

enum hd_status hd_profile_write(struct hd_profile *p, double peak, struct hd_text *ret_note)
{
    const struct hd_job *job = &p->rank_program->job;
    struct hd_text dir = {0}, path = {0};
    enum hd_status st;

    p->written = true; /* set also after a failed write, so that the profile is not written twice */
    if (p->events.failed)
        return hd_err(p->events.failed, "cannot read the times of a profile from the device");
    hd_text_add(&dir, "%s/profile", job->attempt_dir);
    st = dir.failed ? hd_err(HD_NO_MEMORY, "no memory for a path")
                    : hd_file_make_dirs_below(job->attempt_dir, "profile", HD_FILE_JOB_DIR_MODE);
    if (!st) {
        hd_text_add(&path, "%s/rank-%d.json", dir.data, p->rank_program->rank);
        st = profile_write_trace(p, path.data);
        hd_text_clear(&path);
    }
    if (!st) {
        hd_text_add(&path, "%s/rank-%d.txt", dir.data, p->rank_program->rank);
        st = profile_write_table(p, peak, path.data);
    }
    if (!st)
        hd_text_add(ret_note,
                    "profile of %lld step%s up to %lld: %s/rank-*.txt is the time by op, "
                    "rank-*.json in the same folder a trace for ui.perfetto.dev",
                    (long long)p->steps_recorded, p->steps_recorded == 1 ? "" : "s",
                    (long long)p->step, dir.data);
    hd_text_free(&dir);
    hd_text_free(&path);
    return st;
}
