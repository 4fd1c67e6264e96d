#include "program/run.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "program/emit.h"
#include "program/operands.h"

struct bound_node {
    const struct hd_node *node;
    void *args; /* arguments of the kernel with all pointers set */
    struct hd_comm_group *group;
    struct hd_comm_stream *stream;
    struct hd_collective_args comm_args; /* of a collective */
    uint64_t ticket;
    int waits[HD_NODE_WAITS_MAX], wait_count; /* indices, in hd_bound.nodes, of the collectives for
                                                 which the node waits */
    int launches; /* number of kernels from this node on up to the next collective, or to the next
                     kernel that waits for one; 0: this node is a collective */
    struct hd_graph *graph; /* of these kernels; NULL: not captured yet */
};

struct hd_bound {
    enum hd_call call;
    struct bound_node *nodes;
    int count;
    bool has_run;                             /* its next run may capture graphs */
    int waits[HD_NODE_WAITS_MAX], wait_count; /* indices, in `nodes`, of the collectives for which
                                                 the end of the program waits */
};

struct hd_runner {
    const struct hd_backend_table *table;
    struct hd_backend *backend;
    struct hd_stream *compute;
    struct hd_comm *comm;
    const struct hd_mesh *mesh;
    struct hd_error error;
    int64_t fail_in; /* number of launches before the one that fails for a test (hd_runner_fail_at);
                        -1: none fails */
    void (*observer)(void *context, const struct hd_launch_event *event);
    void *observer_context;
    bool takes_graphs;           /* hd_device_table.takes_graphs */
    struct hd_profiler profiler; /* callbacks of the profile; member span NULL: no profiling */
};

enum hd_status hd_runner_new(const struct hd_backend_table *table, struct hd_backend *backend,
                             struct hd_comm *comm, const struct hd_mesh *mesh,
                             struct hd_runner **ret_runner)
{
    struct hd_runner *runner = calloc(1, sizeof *runner);
    enum hd_status st;

    if (!runner)
        return hd_err(HD_NO_MEMORY, "no memory for a runner");
    *runner = (struct hd_runner){
        .table = table, .backend = backend, .comm = comm, .mesh = mesh, .fail_in = -1};
    runner->takes_graphs =
        table->device && table->device->takes_graphs && table->device->takes_graphs(backend);
    st = table->stream_open(backend, HD_STREAM_FOR_COMPUTE, &runner->compute);
    if (st) {
        free(runner);
        return st;
    }
    *ret_runner = runner;
    return HD_OK;
}

void hd_runner_free(struct hd_runner *runner)
{
    if (!runner)
        return;
    runner->table->stream_close(runner->compute);
    free(runner);
}

struct hd_stream *hd_runner_stream(struct hd_runner *runner)
{
    return runner->compute;
}

void hd_runner_fail_at(struct hd_runner *runner, int64_t launch)
{
    runner->fail_in = launch;
}

void hd_runner_observe(struct hd_runner *runner,
                       void (*observer)(void *context, const struct hd_launch_event *event),
                       void *context)
{
    runner->observer = observer;
    runner->observer_context = context;
}

void hd_runner_profile(struct hd_runner *runner, const struct hd_profiler *profiler)
{
    runner->profiler = profiler ? *profiler : (struct hd_profiler){0};
}

/* ---- binding ---- */

void *hd_store_address(const struct hd_bases *bases, const struct hd_store *s)
{
    if (s->kind == HD_STORE_CONSTANT || s->kind == HD_STORE_CACHE)
        return bases->chunk_state + s->offset;
    if (s->kind == HD_STORE_STAGE_IO)
        return bases->stage_io[s->stage_io];
    return bases->base[s->region][s->registered] + s->offset;
}

static void *resolve(const struct hd_bases *bases, struct hd_operand o)
{
    return o.store ? (char *)hd_store_address(bases, o.store) + o.offset_bytes : NULL;
}

/* Returns HD_INTERNAL unless the store of each operand has the bytes that the kernel touches. */
static enum hd_status check_operands(const struct hd_node *node, const void *args)
{
    const struct hd_kernel_info *info = hd_kernel_get_info(node->kernel);
    struct hd_operand_bytes bytes[HD_KERNEL_OPERANDS_MAX];

    hd_kernel_operand_bytes(node->kernel, args, bytes);
    for (int k = 0; k < info->operand_count; k++) {
        const struct hd_operand *o = &node->operands[k];

        if (o->store && o->offset_bytes + bytes[k].size_bytes > o->store->size_bytes)
            return hd_err(HD_INTERNAL,
                          "%s: %s needs %lld bytes from byte %lld of '%s' on, which has %lld; this "
                          "is a fault of Heddle, please report it",
                          info->name, info->operands[k].name, (long long)bytes[k].size_bytes,
                          (long long)o->offset_bytes, o->store->name,
                          (long long)o->store->size_bytes);
    }
    return HD_OK;
}

static enum hd_status bind_kernel(struct hd_runner *runner, bool first,
                                  const struct hd_bases *bases, struct hd_arena *arena,
                                  struct bound_node *b)
{
    const struct hd_node *node = b->node;
    const struct hd_kernel_info *info = hd_kernel_get_info(node->kernel);
    struct hd_node copy = *node;
    enum hd_status st;

    b->args = hd_arena_alloc(arena, info->args_size_bytes);
    if (!b->args)
        return hd_err(HD_NO_MEMORY, "no memory to bind a program");
    memcpy(b->args, node->args, info->args_size_bytes);
    for (int k = 0; k < info->operand_count; k++) {
        void *address = resolve(bases, node->operands[k]);

        memcpy((char *)b->args + info->operands[k].offset, &address, sizeof address);
    }
    copy.args = b->args;
    if (node->contribution)
        *hd_node_accumulate(&copy) = !(node->first_contribution && (first || node->overwrites));
    st = check_operands(node, b->args);
    return st ? st : runner->table->prepare(runner->backend, node->kernel, b->args);
}

static enum hd_status bind_comm(struct hd_runner *runner, const struct hd_bases *bases,
                                struct bound_node *b)
{
    const struct hd_node *node = b->node;
    const struct hd_comm_operands *operands = hd_comm_operands_of(node);
    enum hd_status st;

    if (!runner->comm)
        return hd_err(HD_INTERNAL, "a program with collectives needs a communication endpoint");
    st = hd_comm_mesh_group(runner->comm, runner->mesh, node->group, &b->group);
    if (st)
        return st;
    b->stream = hd_comm_get_stream(runner->comm, hd_stream_comm(node->stream));
    b->comm_args = (struct hd_collective_args){
        .send = resolve(bases, operands->sent),
        .recv = resolve(bases, operands->received),
        .count = node->comm == HD_COMM_ALL_TO_ALL_V ? node->rows.elements : node->count,
        .dtype = node->dtype,
        .reduce = node->reduce,
        .keep_fp32 = node->keep_fp32,
        .send_counts = resolve(bases, operands->sent_counts),
        .recv_counts = resolve(bases, operands->received_counts),
        .overflow = resolve(bases, operands->exceeded),
        .send_rows_max = node->rows.sent_max,
        .recv_rows_max = node->rows.received_max};
    return HD_OK;
}

/* Sets b->waits to the collectives for which a node waits. A collective needs no wait for compute:
 * it starts after all earlier compute launches (rule 1 of run.h). */
static void bind_waits(const struct hd_program *p, const int *place, struct bound_node *b)
{
    for (int w = 0; w < b->node->wait_count; w++) {
        int waited = b->node->waits[w];

        /* the awaited node does not run in this micro-batch: wait for the last earlier one on its
         * stream instead */
        while (waited >= 0 && (place[waited] < 0 ||
                               p->nodes[waited]->stream != p->nodes[b->node->waits[w]]->stream))
            waited--;
        if (waited >= 0 && p->nodes[waited]->is_comm)
            b->waits[b->wait_count++] = place[waited];
    }
}

/* Makes the end of a program wait for its collectives, because later programs read the results and
 * reuse the memory (place.c). It does not wait for the sums of a step: the update does. */
static void bind_end(struct hd_bound *bound)
{
    for (int i = bound->count - 1; i >= 0; i--) {
        const struct hd_node *node = bound->nodes[i].node;
        bool covered = !node->is_comm || node->only_last;

        for (int w = 0; w < bound->wait_count && !covered; w++)
            covered = bound->nodes[bound->waits[w]].node->stream == node->stream;
        if (!covered)
            bound->waits[bound->wait_count++] = i;
    }
}

/* Sets `launches` of all nodes. */
static void bind_launches(struct hd_bound *bound)
{
    for (int i = bound->count - 1; i >= 0; i--) {
        struct bound_node *b = &bound->nodes[i];

        b->launches = !b->node->is_comm;
        if (b->launches && i + 1 < bound->count && !b[1].wait_count)
            b->launches += b[1].launches;
    }
}

enum hd_status hd_bind(struct hd_runner *runner, const struct hd_chunk *chunk, enum hd_call call,
                       bool first, bool last, const struct hd_bases *bases, struct hd_arena *arena,
                       struct hd_bound **ret_bound)
{
    const struct hd_program *p = &chunk->program[call];
    struct hd_bound *bound = hd_arena_alloc(arena, sizeof *bound);
    int *place = hd_arena_array(arena, (size_t)p->count + 1, sizeof *place);

    if (bound)
        bound->nodes = hd_arena_array(arena, (size_t)p->count + 1, sizeof *bound->nodes);
    if (!bound || !place || !bound->nodes)
        return hd_err(HD_NO_MEMORY, "no memory to bind a program");
    bound->call = call;
    for (int i = 0; i < p->count; i++) {
        const struct hd_node *node = p->nodes[i];
        struct bound_node *b = &bound->nodes[bound->count];
        enum hd_status st;

        place[i] = -1;
        if (node->only_last && !last)
            continue;
        b->node = node;
        st = node->is_comm ? bind_comm(runner, bases, b)
                           : bind_kernel(runner, first, bases, arena, b);
        if (st)
            return st;
        bind_waits(p, place, b);
        place[i] = bound->count++;
    }
    bind_end(bound);
    bind_launches(bound);
    *ret_bound = bound;
    return HD_OK;
}

/* ---- running ---- */

static enum hd_status fail_run(struct hd_runner *runner, enum hd_status st,
                               const struct hd_node *node)
{
    if (runner->error.status)
        return hd_err_restore(&runner->error);
    if (node && st != HD_ABORTED)
        st = hd_err_prefix(st, "%s",
                           node->is_comm ? hd_comm_kind_name(node->comm)
                                         : hd_kernel_get_info(node->kernel)->name);
    hd_err_save(st, &runner->error);
    if (runner->comm)
        hd_comm_abort(runner->comm, runner->error.message);
    return hd_err_restore(&runner->error);
}

static enum hd_status launch_comm(struct hd_runner *runner, struct bound_node *b)
{
    enum hd_status st = hd_comm_follow(b->stream, runner->compute);

    if (!st)
        st = hd_comm_launch(b->group, b->stream, b->node->comm, &b->comm_args);
    if (!st)
        b->ticket = hd_comm_record(b->stream);
    return st;
}

static int64_t span_begin(const struct hd_runner *runner, enum hd_span_kind kind,
                          const struct bound_node *b)
{
    if (!runner->profiler.span)
        return 0;
    if (runner->profiler.begin)
        runner->profiler.begin(runner->profiler.context, kind, b ? b->node : NULL);
    return hd_clock_now_ns();
}

static void span_end(const struct hd_runner *runner, enum hd_span_kind kind,
                     const struct bound_node *b, int64_t begin_ns)
{
    struct hd_span span = {.kind = kind, .begin_ns = begin_ns};

    if (!runner->profiler.span)
        return;
    span.end_ns = hd_clock_now_ns();
    if (b)
        span.node = b->node;
    if (b && b->node->is_comm) {
        span.stream = b->stream;
        span.ticket = b->ticket;
    }
    runner->profiler.span(runner->profiler.context, &span);
}

static enum hd_status wait_for(struct hd_runner *runner, const struct bound_node *waited)
{
    const int64_t begin_ns = span_begin(runner, HD_SPAN_WAIT, waited);
    enum hd_status st = hd_comm_wait_on(waited->stream, waited->ticket, runner->compute);

    span_end(runner, HD_SPAN_WAIT, waited, begin_ns);
    return st;
}

static enum hd_status poll_comm(struct hd_runner *runner)
{
    const int64_t begin_ns = span_begin(runner, HD_SPAN_POLL, NULL);
    enum hd_status st = hd_comm_poll(runner->comm);

    span_end(runner, HD_SPAN_POLL, NULL, begin_ns);
    return st;
}

/* Launches one kernel or collective. */
static enum hd_status launch_node(struct hd_runner *runner, enum hd_call call, struct bound_node *b)
{
    enum hd_status st = HD_OK;
    int64_t begin_ns;

    if (runner->observer)
        runner->observer(runner->observer_context, &(struct hd_launch_event){call, b->node});
    if (runner->fail_in >= 0 && runner->fail_in-- == 0)
        st = hd_err(HD_INTERNAL, "injected failure");
    begin_ns = span_begin(runner, HD_SPAN_LAUNCH, b);
    if (!st)
        st = b->node->is_comm ? launch_comm(runner, b)
                              : hd_launch(runner->compute, b->node->kernel, b->args);
    if (!st)
        span_end(runner, HD_SPAN_LAUNCH, b, begin_ns);
    return st;
}

static enum hd_status capture(struct hd_runner *runner, struct bound_node *b)
{
    const struct hd_device_table *device = runner->table->device;
    enum hd_status st = device->capture_begin(runner->compute);
    struct hd_graph *partial; /* graph of a part of the launches; the stream frees it, unused */
    struct hd_error error;

    if (st)
        return st;
    for (int k = 0; !st && k < b->launches; k++)
        st = hd_launch(runner->compute, b[k].node->kernel, b[k].args);
    if (!st)
        return device->capture_end(runner->compute, &b->graph);
    hd_err_save(st, &error);
    (void)device->capture_end(runner->compute, &partial);
    return hd_err_restore(&error);
}

/* Launches the kernels from `b` on as one graph, which the first call captures. */
static enum hd_status launch_graph(struct hd_runner *runner, struct bound_node *b)
{
    const enum hd_status st = b->graph ? HD_OK : capture(runner, b);

    return st ? st : runner->table->device->graph_launch(runner->compute, b->graph);
}

/* Returns true if the program is launched by graphs: not in its first run, in which a library may
 * still load or allocate what a capture forbids, and not where each launch is told or timed. */
static bool uses_graphs(const struct hd_runner *runner, const struct hd_bound *bound)
{
    return runner->takes_graphs && bound->has_run && !runner->observer && !runner->profiler.span &&
           runner->fail_in < 0;
}

enum hd_status hd_run(struct hd_runner *runner, struct hd_bound *bound)
{
    const bool by_graphs = uses_graphs(runner, bound);
    int launches;

    if (runner->error.status)
        return hd_err_restore(&runner->error);
    for (int i = 0; i < bound->count; i += launches) {
        struct bound_node *b = &bound->nodes[i];
        enum hd_status st = HD_OK;

        launches = by_graphs && b->launches > 1 ? b->launches : 1;
        for (int w = 0; !st && w < b->wait_count; w++)
            st = wait_for(runner, &bound->nodes[b->waits[w]]);
        if (!st)
            st = launches > 1 ? launch_graph(runner, b) : launch_node(runner, bound->call, b);
        if (!st && runner->comm)
            st = poll_comm(runner);
        if (st)
            return fail_run(runner, st, b->node);
    }
    for (int w = 0; w < bound->wait_count; w++) {
        const struct bound_node *last = &bound->nodes[bound->waits[w]];
        const enum hd_status st = wait_for(runner, last);

        if (st)
            return fail_run(runner, st, last->node);
    }
    bound->has_run = true;
    return HD_OK;
}

enum hd_status hd_runner_order(struct hd_runner *runner)
{
    enum hd_status st = HD_OK;
    int64_t begin_ns;

    if (runner->error.status)
        return hd_err_restore(&runner->error);
    begin_ns = span_begin(runner, HD_SPAN_SYNCHRONIZE, NULL);
    for (int s = 0; runner->comm && !st && s < HD_COMM_STREAM_COUNT; s++) {
        struct hd_comm_stream *stream =
            hd_comm_get_stream(runner->comm, (enum hd_comm_stream_name)s);

        st = hd_comm_wait_on(stream, hd_comm_record(stream), runner->compute);
    }
    span_end(runner, HD_SPAN_SYNCHRONIZE, NULL, begin_ns);
    return st ? fail_run(runner, st, NULL) : HD_OK;
}

/* Waits for all collectives first, because that wait ends with an error if a peer fails; then for
 * the compute stream, whose launches wait only for collectives, so that this second wait ends
 * too. */
enum hd_status hd_runner_synchronize(struct hd_runner *runner)
{
    enum hd_status st;
    int64_t begin_ns;

    if (runner->error.status)
        return hd_err_restore(&runner->error);
    begin_ns = span_begin(runner, HD_SPAN_SYNCHRONIZE, NULL);
    st = runner->comm ? hd_comm_wait_all(runner->comm) : HD_OK;
    if (!st)
        st = runner->table->synchronize(runner->compute);
    span_end(runner, HD_SPAN_SYNCHRONIZE, NULL, begin_ns);
    return st ? fail_run(runner, st, NULL) : HD_OK;
}

/* ---- transfers ---- */

static enum hd_status launch_transfer(struct hd_runner *runner, const struct hd_transfer_args *a,
                                      const struct hd_transfer *slot)
{
    const int peer = 1 - hd_comm_group_index(a->group);
    enum hd_status st = HD_OK;

    if (slot->stream && slot->stream != a->stream)
        st = hd_comm_after(a->stream, slot->stream, slot->ticket);
    if (!st)
        st = hd_comm_follow(a->stream, runner->compute);
    if (!st && a->sends)
        st = hd_comm_send(a->group, a->stream,
                          &(struct hd_comm_send_args){a->buffer, a->count, a->dtype, peer});
    else if (!st)
        st = hd_comm_recv(a->group, a->stream,
                          &(struct hd_comm_recv_args){a->buffer, a->count, a->dtype, peer});
    return st;
}

enum hd_status hd_runner_transfer(struct hd_runner *runner, const struct hd_transfer_args *args,
                                  struct hd_transfer *slot)
{
    enum hd_status st;

    if (runner->error.status)
        return hd_err_restore(&runner->error);
    st = launch_transfer(runner, args, slot);
    if (st)
        return fail_run(runner, hd_err_prefix(st, args->sends ? "send" : "receive"), NULL);
    *slot = (struct hd_transfer){args->stream, hd_comm_record(args->stream)};
    return HD_OK;
}

enum hd_status hd_runner_await(struct hd_runner *runner, struct hd_transfer *slot)
{
    enum hd_status st;
    int64_t begin_ns;

    if (runner->error.status)
        return hd_err_restore(&runner->error);
    if (!slot->stream)
        return HD_OK;
    begin_ns = span_begin(runner, HD_SPAN_SYNCHRONIZE, NULL);
    st = hd_comm_wait_on(slot->stream, slot->ticket, runner->compute);
    span_end(runner, HD_SPAN_SYNCHRONIZE, NULL, begin_ns);
    slot->stream = NULL;
    return st ? fail_run(runner, st, NULL) : HD_OK;
}

/* ---- constants ---- */

static void fill_positions(const struct hd_store *s, int32_t *ret_positions)
{
    const int64_t period = hd_zigzag_rows(&s->zigzag);

    for (int64_t r = 0; r < s->rows; r++)
        ret_positions[r] = (int32_t)hd_zigzag_position(&s->zigzag, r % period);
}

void hd_constant_fill(const struct hd_store *s, void *ret_values)
{
    switch (s->constant) {
    case HD_CONSTANT_ROPE_TABLE:
        hd_rope_fill(s->rope, s->rows, s->columns, ret_values);
        break;
    case HD_CONSTANT_QUERY_FACTORS:
        hd_query_factor_fill(&s->query_factor, s->rows, ret_values);
        break;
    case HD_CONSTANT_POSITIONS:
        fill_positions(s, ret_values);
        break;
    case HD_CONSTANT_SLOPES:
        hd_alibi_slopes(s->all_heads, s->first_head, s->rows, ret_values);
        for (int64_t i = 0; s->slope_scale != 0 && i < s->rows; i++)
            ((float *)ret_values)[i] *= s->slope_scale;
        break;
    }
}
