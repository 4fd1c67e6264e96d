#include "program/launch_times.h"

#include <stdlib.h>

struct hd_launch_times {
    const struct hd_device_table *device;
    struct hd_backend *backend;
    struct hd_stream *stream;
    struct hd_event *events[2 * HD_LAUNCH_TIMES_MAX];
    const struct hd_node *nodes[HD_LAUNCH_TIMES_MAX];
    int count, made; /* number of launches recorded since hd_launch_times_clear; number of events
                        created */
    bool left_out;   /* true if there were more launches than HD_LAUNCH_TIMES_MAX since
                        hd_launch_times_clear */
    enum hd_status failed;
};

enum hd_status hd_launch_times_new(const struct hd_backend_table *table, struct hd_backend *backend,
                                   struct hd_stream *stream, struct hd_launch_times **ret_times)
{
    struct hd_launch_times *t = calloc(1, sizeof *t);

    if (!t)
        return hd_err(HD_NO_MEMORY, "no memory for the times of launches");
    t->device = table->device;
    t->backend = backend;
    t->stream = stream;
    *ret_times = t;
    return HD_OK;
}

void hd_launch_times_free(struct hd_launch_times *t)
{
    for (int i = 0; t && i < t->made; i++)
        t->device->event_free(t->events[i]);
    free(t);
}

static void record_event(struct hd_launch_times *t, int event)
{
    while (!t->failed && t->made <= event) {
        t->failed = t->device->event_new(t->backend, true, &t->events[t->made]);
        t->made += !t->failed;
    }
    if (!t->failed)
        t->failed = t->device->event_record(t->events[event], t->stream);
}

static bool is_saved(struct hd_launch_times *t, enum hd_span_kind kind, const struct hd_node *node)
{
    if (kind != HD_SPAN_LAUNCH || node->is_comm)
        return false;
    t->left_out |= t->count == HD_LAUNCH_TIMES_MAX;
    return t->count < HD_LAUNCH_TIMES_MAX;
}

static void on_begin(void *context, enum hd_span_kind kind, const struct hd_node *node)
{
    struct hd_launch_times *t = context;

    if (is_saved(t, kind, node))
        record_event(t, 2 * t->count);
}

static void on_span(void *context, const struct hd_span *span)
{
    struct hd_launch_times *t = context;

    if (!is_saved(t, span->kind, span->node))
        return;
    record_event(t, 2 * t->count + 1);
    t->nodes[t->count++] = span->node;
}

void hd_launch_times_profiler(struct hd_launch_times *times, struct hd_profiler *ret_profiler)
{
    *ret_profiler = (struct hd_profiler){on_begin, on_span, times};
}

void hd_launch_times_clear(struct hd_launch_times *times)
{
    times->count = 0;
}

int hd_launch_times_count(const struct hd_launch_times *times)
{
    return times->count;
}

enum hd_status hd_launch_times_get(const struct hd_launch_times *t, int i,
                                   const struct hd_node **ret_node, double *ret_seconds)
{
    if (t->failed)
        return t->failed;
    if (t->left_out)
        return hd_err(HD_LIMIT, "a step has more than %d launches", (int)HD_LAUNCH_TIMES_MAX);
    *ret_node = t->nodes[i];
    return t->device->event_elapsed(t->events[2 * i], t->events[2 * i + 1], ret_seconds);
}
