/* profile_write: writes the two files of a profile, a trace in Chrome's JSON format and a table as
 * text. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/profile_internal.h"

/* ---- descriptions of launches ---- */

/* Returns the elements that this rank sends in a collective, counted as in the args of comm.h; for
 * rows to experts, as if routers were balanced. */
static int64_t sent_elements(const struct hd_node *node)
{
    return node->comm == HD_COMM_ALL_TO_ALL_V ? node->rows.even * node->rows.elements : node->count;
}

void profile_op_shape(const struct hd_node *node, char ret_shape[PROFILE_SHAPE_MAX])
{
    const struct hd_store *out = NULL;

    ret_shape[0] = '\0';
    if (node->is_comm) {
        (void)snprintf(ret_shape, PROFILE_SHAPE_MAX, "%s[%" PRId64 "] in %s",
                       hd_dtype_name(node->dtype), sent_elements(node), hd_group_text(node->group));
        return;
    }
    if (node->kernel == HD_K_gemm) {
        const struct hd_gemm_args *a = node->args;

        (void)snprintf(ret_shape, PROFILE_SHAPE_MAX,
                       "%s[%" PRId64 ",%" PRId64 "] over %" PRId64 "%s%s",
                       hd_dtype_name(a->ab_dtype), a->M, a->N, a->K, a->trans_a ? " a^T" : "",
                       a->trans_b ? " b^T" : "");
        return;
    }
    for (int k = 0; !out && k < hd_node_operand_count(node); k++)
        if (hd_node_access(node, k) & HD_WRITE)
            out = node->operands[k].store;
    if (out && out->columns)
        (void)snprintf(ret_shape, PROFILE_SHAPE_MAX, "%s[%" PRId64 ",%" PRId64 "]",
                       hd_dtype_name(out->dtype), out->rows, out->columns);
    else if (out && out->rows)
        (void)snprintf(ret_shape, PROFILE_SHAPE_MAX, "%s[%" PRId64 "]", hd_dtype_name(out->dtype),
                       out->rows);
}

struct hd_costs profile_op_costs(const struct hd_chunk *chunk, const struct hd_node *node)
{
    struct hd_costs costs = {0};
    int P;

    if (!node->is_comm) {
        hd_dry_node_costs(&costs, node);
        return costs;
    }
    /* P: ranks of the group, to turn the group's bytes into this rank's share */
    P = chunk->group_size[node->group];
    costs.read_bytes = hd_dry_node_bytes(chunk, node) / (P ? P : 1);
    return costs;
}

static const char *unit_name(const struct hd_chunk *chunk, const struct hd_node *node)
{
    const struct hd_registry *r = chunk->registry;

    return node->unit >= 0 && node->unit < r->unit_count ? r->units[node->unit].name : "";
}

/* ---- the trace ---- */

enum {
    DEVICE_TRACK = HD_STREAM_COUNT
}; /* track of launches and waits on the device; track 0 is then the host */

struct trace {
    FILE *out;
    const struct hd_profile *profile;
    int rank;
};

static void begin_event(const struct trace *t, const char *phase, const char *category,
                        const char *name, int track, int64_t at_ns)
{
    (void)fprintf(t->out,
                  ",\n{\"ph\":\"%s\",\"cat\":\"%s\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,"
                  "\"ts\":%" PRId64 ".%03" PRId64,
                  phase, category, name, t->rank, track, at_ns / 1000, at_ns % 1000);
}

static int64_t slice_ns(const struct record *r)
{
    return r->on_device ? r->device_end_ns - r->device_begin_ns : r->end_ns - r->begin_ns;
}

static void add_duration(const struct trace *t, int64_t ns)
{
    (void)fprintf(t->out, ",\"dur\":%" PRId64 ".%03" PRId64, ns / 1000, ns % 1000);
}

static double per_second(double amount, int64_t ns)
{
    return ns > 0 ? amount / ((double)ns * 1e-9) : 0;
}

static void add_launch(const struct trace *t, const struct record *r)
{
    const struct hd_chunk *chunk = profile_chunk(t->profile, (enum hd_call)r->call);
    const struct hd_costs costs = profile_op_costs(chunk, r->node);
    const int64_t ns = slice_ns(r);
    char shape[PROFILE_SHAPE_MAX];

    profile_op_shape(r->node, shape);
    begin_event(t, "X", r->node->is_comm ? "launch" : "op", hd_node_name(r->node),
                r->on_device ? DEVICE_TRACK : 0, r->on_device ? r->device_begin_ns : r->begin_ns);
    add_duration(t, ns);
    (void)fprintf(t->out, ",\"args\":{\"unit\":\"%s\",\"micro_batch\":%d,\"shape\":\"%s\"",
                  unit_name(chunk, r->node), r->micro_batch, shape);
    if (!r->node->is_comm)
        (void)fprintf(t->out,
                      ",\"flops\":%.0f,\"read_bytes\":%" PRId64 ",\"write_bytes\":%" PRId64
                      ",\"gflop_per_s\":%.1f,\"gb_per_s\":%.1f",
                      costs.flops, costs.read_bytes, costs.write_bytes,
                      per_second(costs.flops, ns) * 1e-9,
                      per_second((double)(costs.read_bytes + costs.write_bytes), ns) * 1e-9);
    (void)fprintf(t->out, "}}");
}

/* Writes a collective to the trace: an asynchronous slice on its stream's track, from launch to
 * completion as the host saw it. */
static void add_collective(const struct trace *t, const struct record *r, int64_t number)
{
    const struct hd_chunk *chunk = profile_chunk(t->profile, (enum hd_call)r->call);
    const int64_t done_ns = r->done_ns ? r->done_ns : r->end_ns;
    const int track = (int)r->node->stream;
    char shape[PROFILE_SHAPE_MAX];

    profile_op_shape(r->node, shape);
    begin_event(t, "b", "collective", hd_node_name(r->node), track, r->begin_ns);
    (void)fprintf(t->out,
                  ",\"id\":%" PRId64 ",\"args\":{\"unit\":\"%s\",\"micro_batch\":%d,\"shape\":"
                  "\"%s\",\"bytes\":%" PRId64 ",\"group_bytes\":%" PRId64 "}}",
                  number, unit_name(chunk, r->node), r->micro_batch, shape,
                  sent_elements(r->node) * (int64_t)hd_dtype_size(r->node->dtype),
                  hd_dry_node_bytes(chunk, r->node));
    begin_event(t, "e", "collective", hd_node_name(r->node), track, done_ns);
    (void)fprintf(t->out, ",\"id\":%" PRId64 "}", number);
}

static void add_span(const struct trace *t, const struct record *r, int64_t number)
{
    switch ((enum hd_span_kind)r->span) {
    case HD_SPAN_LAUNCH:
        add_launch(t, r);
        if (r->node->is_comm)
            add_collective(t, r, number);
        return;
    case HD_SPAN_WAIT:
        begin_event(t, "X", "wait", "wait", r->on_device ? DEVICE_TRACK : 0,
                    r->on_device ? r->device_begin_ns : r->begin_ns);
        add_duration(t, slice_ns(r));
        (void)fprintf(t->out, ",\"args\":{\"for\":\"%s\",\"unit\":\"%s\"}}", hd_node_name(r->node),
                      unit_name(profile_chunk(t->profile, (enum hd_call)r->call), r->node));
        return;
    case HD_SPAN_POLL:
    case HD_SPAN_SYNCHRONIZE:
        begin_event(t, "X", "wait", r->span == HD_SPAN_POLL ? "poll" : "join", 0, r->begin_ns);
        add_duration(t, slice_ns(r));
        (void)fprintf(t->out, "}");
        return;
    }
}

static void add_record(const struct trace *t, const struct record *r, int64_t number)
{
    char name[48];

    if (!r->end_ns)
        return; /* the host never saw the collective complete: a failure interrupted it */
    if (r->kind == RECORD_SPAN) {
        add_span(t, r, number);
        return;
    }
    if (r->kind == RECORD_STEP)
        (void)snprintf(name, sizeof name, "step %" PRIu64, r->ticket);
    else if (r->kind == RECORD_BATCH)
        (void)snprintf(name, sizeof name, "input");
    else if (r->micro_batch >= 0)
        (void)snprintf(name, sizeof name, "%s %d", hd_call_name((enum hd_call)r->call),
                       r->micro_batch);
    else
        (void)snprintf(name, sizeof name, "%s", hd_call_name((enum hd_call)r->call));
    begin_event(t, "X",
                r->kind == RECORD_STEP    ? "step"
                : r->kind == RECORD_BATCH ? "input"
                                          : "program",
                name, 0, r->begin_ns);
    add_duration(t, slice_ns(r));
    (void)fprintf(t->out, "}");
}

static void add_names(const struct trace *t)
{
    (void)fprintf(t->out,
                  "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank "
                  "%d\"}}",
                  t->rank, t->rank);
    for (int s = HD_STREAM_COMPUTE; s < HD_STREAM_COUNT; s++)
        (void)fprintf(t->out,
                      ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{"
                      "\"name\":\"%s\"}}",
                      t->rank, s, hd_stream_text((enum hd_stream_name)s));
    if (t->profile->events.device)
        (void)fprintf(t->out,
                      ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{"
                      "\"name\":\"device\"}}",
                      t->rank, DEVICE_TRACK);
}

static enum hd_status close_file(FILE *out, const char *path)
{
    const bool failed = ferror(out) != 0;

    errno = 0;
    if (fclose(out) != 0 || failed)
        return hd_err(HD_IO, "cannot write %s: %s", path,
                      errno ? strerror(errno) : "the disk is full");
    return HD_OK;
}

enum hd_status profile_write_trace(const struct hd_profile *p, const char *path)
{
    const struct trace t = {fopen(path, "we"), p, p->rank_program->rank};

    if (!t.out)
        return hd_err(HD_IO, "cannot create %s: %s", path, strerror(errno));
    (void)fprintf(t.out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    add_names(&t);
    for (int64_t i = 0; i < p->count; i++)
        add_record(&t, &p->records[i], i);
    (void)fprintf(t.out, "\n]}\n");
    return close_file(t.out, path);
}

/* ---- the table ---- */

/* Time and work of one node, or of all nodes with one op name, or one op name and shape. */
struct profile_row {
    const struct hd_node *node; /* node that a row for a single node is about */
    const struct hd_chunk *chunk;
    /* op name, and shape, of the row, if rows are by op; shape "": any */
    char name[48], shape[PROFILE_SHAPE_MAX];
    int64_t count, ns;
    struct hd_costs costs;
    double floor_ns;
};

struct rows {
    struct profile_row *list;
    size_t count;
};

static int by_node(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)((const struct profile_row *)a)->node;
    const uintptr_t y = (uintptr_t)((const struct profile_row *)b)->node;

    return (x > y) - (x < y);
}

static int by_time(const void *a, const void *b)
{
    const int64_t x = ((const struct profile_row *)a)->ns, y = ((const struct profile_row *)b)->ns;

    return (y > x) - (y < x);
}

/* Returns training chunk c, or for c == chunk_count the chunk of the update. */
static const struct hd_chunk *chunk_at(const struct hd_profile *p, int c)
{
    return c < p->rank_program->chunk_count ? p->rank_program->train[c] : p->rank_program->update;
}

/* Lists all nodes of the programs, sorted by address for bsearch. */
static enum hd_status list_nodes(const struct hd_profile *p, struct rows *ret_rows)
{
    const int count = p->rank_program->chunk_count + 1;
    struct rows rows = {0};
    size_t capacity = 0;

    for (int c = 0; c < count; c++)
        for (int call = 0; call < HD_CALL_COUNT; call++)
            capacity += (size_t)chunk_at(p, c)->program[call].count;
    rows.list = calloc(capacity + 1, sizeof *rows.list);
    if (!rows.list)
        return hd_err(HD_NO_MEMORY, "no memory for the table of a profile");
    for (int c = 0; c < count; c++)
        for (int call = 0; call < HD_CALL_COUNT; call++)
            for (int i = 0; i < chunk_at(p, c)->program[call].count; i++)
                rows.list[rows.count++] = (struct profile_row){
                    .node = chunk_at(p, c)->program[call].nodes[i], .chunk = chunk_at(p, c)};
    qsort(rows.list, rows.count, sizeof *rows.list, by_node);
    *ret_rows = rows;
    return HD_OK;
}

static void measure_nodes(const struct hd_profile *p, double peak, struct rows *rows)
{
    for (int64_t i = 0; i < p->count; i++) {
        const struct record *r = &p->records[i];
        const struct profile_row key = {.node = r->node};
        struct profile_row *row;

        if (r->kind != RECORD_SPAN || r->span != HD_SPAN_LAUNCH || !r->end_ns)
            continue;
        row = bsearch(&key, rows->list, rows->count, sizeof *rows->list, by_node);
        if (row) {
            row->count++;
            row->ns += profile_span_ns(p, r);
        }
    }
    for (size_t i = 0; i < rows->count; i++) {
        struct profile_row *row = &rows->list[i];
        const struct hd_costs one = profile_op_costs(row->chunk, row->node);
        const double compute = peak > 0 ? one.flops / peak : 0;
        const double move = (double)(one.read_bytes + one.write_bytes) / p->bandwidth;
        const int64_t n = row->count;

        (void)snprintf(row->name, sizeof row->name, "%s%s", hd_node_name(row->node),
                       row->node->is_comm ? " (launch)" : "");
        profile_op_shape(row->node, row->shape);
        /* the launch of a collective only enqueues it, so it has no floor */
        if (row->node->is_comm)
            continue;
        row->costs.flops = one.flops * (double)n;
        row->costs.read_bytes = one.read_bytes * n;
        row->costs.write_bytes = one.write_bytes * n;
        row->floor_ns = (compute > move ? compute : move) * 1e9 * (double)n;
    }
}

/* Adds up the rows with equal op name (and equal shape, if with_shapes); sorts the sums by time. */
static enum hd_status group(const struct rows *from, bool with_shapes, struct rows *ret_rows)
{
    struct rows to = {calloc(from->count + 1, sizeof *to.list), 0};

    if (!to.list)
        return hd_err(HD_NO_MEMORY, "no memory for the table of a profile");
    for (size_t i = 0; i < from->count; i++) {
        const struct profile_row *row = &from->list[i];
        size_t k = 0;

        if (!row->count)
            continue;
        while (k < to.count && (strcmp(to.list[k].name, row->name) != 0 ||
                                (with_shapes && strcmp(to.list[k].shape, row->shape) != 0)))
            k++;
        if (k == to.count) {
            to.list[to.count++] = *row;
            if (!with_shapes)
                to.list[k].shape[0] = '\0';
            continue;
        }
        to.list[k].count += row->count;
        to.list[k].ns += row->ns;
        to.list[k].costs.flops += row->costs.flops;
        to.list[k].costs.read_bytes += row->costs.read_bytes;
        to.list[k].costs.write_bytes += row->costs.write_bytes;
        to.list[k].floor_ns += row->floor_ns;
    }
    qsort(to.list, to.count, sizeof *to.list, by_time);
    *ret_rows = to;
    return HD_OK;
}

struct profile_sums {
    int64_t step_ns, launch_ns, wait_ns, poll_ns, synchronize_ns, input_ns;
    int64_t waits, polls, synchronizes, inputs;
};

static struct profile_sums add_up(const struct hd_profile *p)
{
    struct profile_sums s = {0};

    for (int64_t i = 0; i < p->count; i++) {
        const struct record *r = &p->records[i];
        const int64_t ns = profile_span_ns(p, r);

        if (!r->end_ns)
            continue;
        if (r->kind == RECORD_STEP) {
            s.step_ns += r->end_ns - r->begin_ns;
        } else if (r->kind == RECORD_BATCH) {
            s.input_ns += ns;
            s.inputs++;
        } else if (r->kind == RECORD_SPAN && r->span == HD_SPAN_LAUNCH) {
            s.launch_ns += ns;
        } else if (r->kind == RECORD_SPAN && r->span == HD_SPAN_WAIT) {
            s.wait_ns += ns;
            s.waits++;
        } else if (r->kind == RECORD_SPAN && r->span == HD_SPAN_POLL) {
            s.poll_ns += ns;
            s.polls++;
        } else if (r->kind == RECORD_SPAN) {
            s.synchronize_ns += ns;
            s.synchronizes++;
        }
    }
    return s;
}

static void print_row(FILE *out, const struct profile_row *row, double step_ns, double steps)
{
    const int64_t bytes = row->costs.read_bytes + row->costs.write_bytes;

    (void)fprintf(out, "%-26s %8.1f %10.3f %6.1f%%", row->name, (double)row->count / steps,
                  (double)row->ns * 1e-6 / steps, 100.0 * (double)row->ns / step_ns);
    if (row->floor_ns > 0)
        (void)fprintf(out, " %10.3f %7.1f%% %10.1f %8.1f", row->floor_ns * 1e-6 / steps,
                      row->ns > 0 ? 100.0 * row->floor_ns / (double)row->ns : 0,
                      per_second(row->costs.flops, row->ns) * 1e-9,
                      per_second((double)bytes, row->ns) * 1e-9);
    else
        (void)fprintf(out, " %10s %8s %10s %8s", "-", "-", "-", "-");
    (void)fprintf(out, row->shape[0] ? "  %s\n" : "\n", row->shape);
}

static void print_rest(FILE *out, const char *name, int64_t count, int64_t ns, double step_ns,
                       double steps)
{
    const struct profile_row row = {.count = count, .ns = ns};
    struct profile_row named = row;

    (void)snprintf(named.name, sizeof named.name, "%s", name);
    print_row(out, &named, step_ns, steps);
}

static void print_title(FILE *out, const char *last)
{
    (void)fprintf(out, "\n%-26s %8s %10s %7s %10s %8s %10s %8s%s%s\n", "OP", "COUNT", "TIME ms",
                  "SHARE", "FLOOR ms", "OF TIME", "GFLOP/s", "GB/s", *last ? "  " : "", last);
}

static void print_table(FILE *out, const struct hd_profile *p, double peak, const struct rows *ops,
                        const struct rows *shapes)
{
    const struct profile_sums s = add_up(p);
    const double steps = (double)p->steps_recorded, step_ns = (double)(s.step_ns ? s.step_ns : 1);
    const int64_t rest =
        s.step_ns - s.launch_ns - s.wait_ns - s.poll_ns - s.synchronize_ns - s.input_ns;
    double floor_ns = 0;

    for (size_t i = 0; i < ops->count; i++)
        floor_ns += ops->list[i].floor_ns;
    (void)fprintf(out,
                  "rank %d, %" PRId64 " steps up to step %" PRId64 ": %.3f ms each\n"
                  "measured on this rank's %s: peak %.1f GFLOP/s in %s, bandwidth %.1f GB/s\n"
                  "floor = the longer of FLOPs / peak and bytes / bandwidth, each byte once; "
                  "figures are per step\n",
                  p->rank_program->rank, p->steps_recorded, p->step, step_ns * 1e-6 / steps,
                  p->events.device ? "device" : "threads", peak * 1e-9,
                  hd_job_precision_words[p->rank_program->job.precision], p->bandwidth * 1e-9);
    print_title(out, "");
    for (size_t i = 0; i < ops->count; i++)
        print_row(out, &ops->list[i], step_ns, steps);
    print_rest(out, "(waiting for collectives)", s.waits, s.wait_ns, step_ns, steps);
    print_rest(out, "(polling collectives)", s.polls, s.poll_ns, step_ns, steps);
    print_rest(out, "(joining streams)", s.synchronizes, s.synchronize_ns, step_ns, steps);
    print_rest(out, "(input)", s.inputs, s.input_ns, step_ns, steps);
    print_rest(out, "(between launches)", 0, rest, step_ns, steps);
    (void)fprintf(out, "%-26s %8s %10.3f %6.1f%% %10.3f %7.1f%%\n", "total", "",
                  step_ns * 1e-6 / steps, 100.0, floor_ns * 1e-6 / steps,
                  100.0 * floor_ns / step_ns);
    print_title(out, "SHAPE");
    for (size_t i = 0; i < shapes->count; i++)
        print_row(out, &shapes->list[i], step_ns, steps);
}

enum hd_status profile_write_table(const struct hd_profile *p, double peak, const char *path)
{
    struct rows nodes = {0}, ops = {0}, shapes = {0};
    enum hd_status st = list_nodes(p, &nodes);
    FILE *out = NULL;

    if (!st) {
        measure_nodes(p, peak, &nodes);
        st = group(&nodes, false, &ops);
    }
    if (!st)
        st = group(&nodes, true, &shapes);
    if (!st) {
        out = fopen(path, "we");
        st = out ? HD_OK : hd_err(HD_IO, "cannot create %s: %s", path, strerror(errno));
    }
    if (!st) {
        print_table(out, p, peak, &ops, &shapes);
        st = close_file(out, path);
    }
    free(nodes.list);
    free(ops.list);
    free(shapes.list);
    return st;
}

/* On the CPU the launch call runs the kernel, so host time counts; with a device it only
 * enqueues. */
int64_t profile_span_ns(const struct hd_profile *p, const struct record *r)
{
    if (r->on_device)
        return r->device_end_ns - r->device_begin_ns;
    return p->events.device ? 0 : r->end_ns - r->begin_ns;
}

const struct hd_chunk *profile_chunk(const struct hd_profile *p, enum hd_call call)
{
    return call == HD_CALL_U || call == HD_CALL_S || call == HD_CALL_P ? p->rank_program->update
                                                                       : p->rank_program->train[0];
}
