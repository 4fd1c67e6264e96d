/* The calls of comm.h: names, groups, checks of arguments, the queues of the streams. What an
 * operation does once it is queued is the engine's business. */
#include "comm/comm.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/text.h"
#include "comm/side.h"

const char *hd_comm_kind_name(enum hd_comm_kind kind)
{
    static const char *const names[] = {
#define X(code, name) name,
        HD_COMM_KIND_LIST(X)
#undef X
    };

    return (unsigned)kind < HD_COMM_KIND_COUNT ? names[kind] : "unknown";
}

const char *hd_comm_stream_text(enum hd_comm_stream_name name)
{
    static const char *const names[] = {
#define X(code, name) name,
        HD_COMM_STREAM_LIST(X)
#undef X
    };

    return (unsigned)name < HD_COMM_STREAM_COUNT ? names[name] : "unknown";
}

/* ---- endpoints ---- */

enum hd_status hd_comm_new(const struct hd_comm_engine *engine, int rank, int world,
                           int64_t deadline_ms, struct hd_comm **ret_comm)
{
    struct hd_comm *comm;

    if (deadline_ms <= 0)
        return hd_err(HD_INVALID, "comm: a deadline of %lld ms; use 1 or more",
                      (long long)deadline_ms);
    comm = calloc(1, sizeof *comm);
    if (!comm)
        return hd_err(HD_NO_MEMORY, "comm: no memory for an endpoint");
    comm->engine = engine;
    comm->rank = rank;
    comm->world = world;
    comm->deadline_ms = deadline_ms;
    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++) {
        struct hd_comm_stream *stream = &comm->streams[s];

        stream->comm = comm;
        stream->name = (enum hd_comm_stream_name)s;
        stream->ops = calloc(HD_COMM_QUEUE_MAX, sizeof stream->ops[0]);
        if (!stream->ops) {
            hd_comm_delete(comm);
            return hd_err(HD_NO_MEMORY, "comm: no memory for the queues of an endpoint");
        }
    }
    *ret_comm = comm;
    return HD_OK;
}

void hd_comm_delete(struct hd_comm *comm)
{
    for (int g = 0; g < comm->group_count; g++)
        free(comm->groups[g]);
    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++)
        free(comm->streams[s].ops);
    free(comm);
}

void hd_comm_free(struct hd_comm *comm)
{
    bool clean = true;

    if (!comm)
        return;
    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++) {
        if (comm->streams[s].completed != comm->streams[s].launched)
            clean = false;
    }
    comm->engine->close(comm, clean);
    hd_comm_delete(comm);
}

int hd_comm_rank(const struct hd_comm *comm)
{
    return comm->rank;
}

int hd_comm_world(const struct hd_comm *comm)
{
    return comm->world;
}

bool hd_comm_sums_natively(const struct hd_comm *comm)
{
    return comm->native_sums;
}

const char *hd_comm_engine_name(const struct hd_comm *comm)
{
    return comm->engine->name;
}

void hd_comm_set_deadline(struct hd_comm *comm, int64_t deadline_ms)
{
    assert(deadline_ms > 0);
    comm->deadline_ms = deadline_ms;
}

enum hd_status hd_comm_visible(struct hd_comm *comm, size_t size_bytes, void **ret_base)
{
    void *base;
    enum hd_status st;

    if (comm->visible)
        return hd_err(HD_CONFLICT, "comm: rank %d has its visible memory already (%zu bytes)",
                      comm->rank, comm->visible_bytes);
    if (size_bytes == 0 || size_bytes > (size_t)1 << 46)
        return hd_err(HD_INVALID, "comm: visible memory of %zu bytes; use 1 byte to 64 TiB",
                      size_bytes);
    st = comm->engine->visible(comm, size_bytes, &base);
    if (st)
        return st;
    comm->visible = base;
    comm->visible_bytes = size_bytes;
    *ret_base = base;
    return HD_OK;
}

/* ---- groups and streams ---- */

/* The same name and members give the same id in every process. */
static enum hd_status make_id(const char *name, const int32_t *members, int count, uint64_t *ret_id)
{
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    hd_text_add(&text, "%s:", name);
    for (int m = 0; m < count; m++)
        hd_text_add(&text, "%d,", (int)members[m]);
    if (text.failed)
        st = hd_err(HD_NO_MEMORY, "comm: no memory for the name of group %s", name);
    else
        *ret_id = hd_random_hash(text.data) | 1; /* 0 means none */
    hd_text_free(&text);
    return st;
}

/* Finds this rank's index among the members. */
static enum hd_status check_members(const struct hd_comm *comm, const char *name,
                                    const int32_t *members, int count, int *ret_index)
{
    int index = -1;

    if (count < 1 || count > comm->world)
        return hd_err(HD_INVALID, "comm: group %s of %d members in a world of %d", name, count,
                      comm->world);
    for (int m = 0; m < count; m++) {
        if (members[m] < 0 || members[m] >= comm->world)
            return hd_err(HD_INVALID, "comm: group %s: rank %d is not in a world of %d", name,
                          (int)members[m], comm->world);
        if (m > 0 && members[m] <= members[m - 1])
            return hd_err(HD_INVALID, "comm: group %s: rank %d after rank %d; list them ascending",
                          name, (int)members[m], (int)members[m - 1]);
        if (members[m] == comm->rank)
            index = m;
    }
    if (index < 0)
        return hd_err(HD_INVALID, "comm: group %s: rank %d asks for a group it is not in", name,
                      comm->rank);
    *ret_index = index;
    return HD_OK;
}

enum hd_status hd_comm_group(struct hd_comm *comm, const char *name, const int32_t *members,
                             int member_count, struct hd_comm_group **ret_group)
{
    struct hd_comm_group *group;
    enum hd_status st;
    uint64_t id = 0;
    int index = 0;

    if (strlen(name) >= HD_COMM_GROUP_NAME_MAX || !name[0])
        return hd_err(HD_INVALID, "comm: group name \"%s\"; use 1 to %d bytes", name,
                      HD_COMM_GROUP_NAME_MAX - 1);
    st = check_members(comm, name, members, member_count, &index);
    if (!st)
        st = make_id(name, members, member_count, &id);
    if (st)
        return st;
    for (int g = 0; g < comm->group_count; g++) {
        if (comm->groups[g]->id == id) {
            *ret_group = comm->groups[g];
            return HD_OK;
        }
    }
    if (comm->group_count == HD_COMM_GROUPS_MAX)
        return hd_err(HD_LIMIT, "comm: group %s would be one more than %d", name,
                      HD_COMM_GROUPS_MAX);
    group = calloc(1, sizeof *group);
    if (!group)
        return hd_err(HD_NO_MEMORY, "comm: no memory for group %s", name);
    group->comm = comm;
    memcpy(group->name, name, strlen(name));
    group->id = id;
    group->size = member_count;
    group->index = index;
    memcpy(group->members, members, (size_t)member_count * sizeof members[0]);
    st = comm->engine->group_open(group);
    if (st) {
        free(group);
        return st;
    }
    comm->groups[comm->group_count++] = group;
    *ret_group = group;
    return HD_OK;
}

enum hd_status hd_comm_mesh_group(struct hd_comm *comm, const struct hd_mesh *mesh,
                                  enum hd_group_name name, struct hd_comm_group **ret_group)
{
    int32_t members[HD_COMM_WORLD_MAX];
    struct hd_mesh_group where;

    if (mesh->world != comm->world)
        return hd_err(HD_INVALID, "comm: a mesh of %d ranks on a world of %d", (int)mesh->world,
                      comm->world);
    where = hd_mesh_find_group(mesh, name, comm->rank);
    for (int32_t m = 0; m < where.size; m++)
        members[m] = hd_mesh_member(&where, m);
    return hd_comm_group(comm, hd_group_name(name), members, where.size, ret_group);
}

int hd_comm_group_size(const struct hd_comm_group *group)
{
    return group->size;
}

int hd_comm_group_index(const struct hd_comm_group *group)
{
    return group->index;
}

int hd_comm_group_member(const struct hd_comm_group *group, int index)
{
    assert(index >= 0 && index < group->size);
    return group->members[index];
}

const char *hd_comm_group_text(const struct hd_comm_group *group)
{
    return group->name;
}

struct hd_comm_stream *hd_comm_stream(struct hd_comm *comm, enum hd_comm_stream_name name)
{
    assert((unsigned)name < HD_COMM_STREAM_COUNT);
    return &comm->streams[name];
}

/* ---- checks of one launch ---- */

/* Bytes of `blocks` blocks of `count` elements; -1 when they could not fit any memory. */
static int64_t span_bytes(const struct hd_comm_op *op, int64_t blocks, int64_t count)
{
    const int64_t size = (int64_t)hd_dtype_size(op->dtype);
    int64_t bytes;

    if (blocks < 0 || count < 0 || __builtin_mul_overflow(blocks, count, &bytes) ||
        __builtin_mul_overflow(bytes, size, &bytes))
        return -1;
    return bytes;
}

static enum hd_status check_buffer(const struct hd_comm_op *op, const char *what, const char *at,
                                   int64_t bytes)
{
    const struct hd_comm *comm = op->group->comm;
    const uintptr_t begin = (uintptr_t)comm->visible, place = (uintptr_t)at;

    if (bytes < 0)
        return hd_err(HD_INVALID, "%s in group %s: the size of %s overflows or is negative",
                      hd_comm_op_name(op), op->group->name, what);
    if (bytes == 0)
        return HD_OK;
    if (!comm->visible || place < begin || place - begin > comm->visible_bytes ||
        (size_t)bytes > comm->visible_bytes - (place - begin))
        return hd_err(HD_INVALID,
                      "%s in group %s: %s (%lld bytes at %p) is not inside the comm-visible memory "
                      "of rank %d (%zu bytes at %p); place it there",
                      hd_comm_op_name(op), op->group->name, what, (long long)bytes,
                      (const void *)at, comm->rank, comm->visible_bytes, (void *)comm->visible);
    if (place % hd_dtype_size(op->dtype) != 0)
        return hd_err(HD_INVALID, "%s in group %s: %s at %p is not aligned for %s",
                      hd_comm_op_name(op), op->group->name, what, (const void *)at,
                      hd_dtype_name(op->dtype));
    return HD_OK;
}

/* send and recv are disjoint, or `shared`, the one place in the larger that is the smaller. */
static enum hd_status check_overlap(const struct hd_comm_op *op, int64_t send_bytes,
                                    int64_t recv_bytes, bool shared)
{
    const uintptr_t s = (uintptr_t)op->send, r = (uintptr_t)op->recv;

    if (shared || send_bytes == 0 || recv_bytes == 0 || s + (uintptr_t)send_bytes <= r ||
        r + (uintptr_t)recv_bytes <= s)
        return HD_OK;
    return hd_err(HD_INVALID,
                  "%s in group %s: send (%lld bytes at %p) and recv (%lld bytes at %p) overlap",
                  hd_comm_op_name(op), op->group->name, (long long)send_bytes,
                  (const void *)op->send, (long long)recv_bytes, (void *)op->recv);
}

static enum hd_status check_pair(const struct hd_comm_op *op, int64_t send_bytes,
                                 int64_t recv_bytes, bool shared)
{
    enum hd_status st = check_buffer(op, "send", op->send, send_bytes);

    if (!st)
        st = check_buffer(op, "recv", op->recv, recv_bytes);
    if (!st)
        st = check_overlap(op, send_bytes, recv_bytes, shared);
    return st;
}

/* Whether `part` is the place `offset` bytes into `whole`. On numbers: an empty buffer may be NULL.
 */
static bool is_place(const char *part, const char *whole, int64_t offset)
{
    return (uintptr_t)part == (uintptr_t)whole + (uintptr_t)offset;
}

static enum hd_status check_peer(const struct hd_comm_op *op)
{
    if (op->peer < 0 || op->peer >= op->group->size)
        return hd_err(HD_INVALID, "%s in group %s: member %d of %d", hd_comm_op_name(op),
                      op->group->name, op->peer, op->group->size);
    return HD_OK;
}

/* ---- launching ---- */

/* A free place in the ring, waiting for the oldest operations when there is none. */
static enum hd_status make_room(struct hd_comm_stream *stream)
{
    uint64_t oldest;

    if (stream->launched - stream->completed < HD_COMM_QUEUE_MAX)
        return HD_OK;
    oldest = stream->launched - HD_COMM_QUEUE_MAX + 1;
    if (oldest > stream->sealed)
        return hd_err(HD_LIMIT, "comm: more than %d sends and receives in one launch",
                      HD_COMM_QUEUE_MAX);
    return hd_comm_wait_for(stream, oldest);
}

static enum hd_status seal(struct hd_comm_stream *stream)
{
    hd_comm_op_at(stream, stream->launched - 1)->last = true;
    stream->sealed = stream->launched;
    return hd_comm_poll_once(stream->comm);
}

/* Queues a checked op. */
static enum hd_status enqueue(struct hd_comm_stream *stream, const struct hd_comm_op *op)
{
    enum hd_status st = make_room(stream);
    struct hd_comm_op *place;

    if (!st && stream->comm->side)
        st = hd_comm_side_need(stream);
    if (st)
        return st;
    place = hd_comm_op_at(stream, stream->launched);
    *place = *op;
    place->stream = stream;
    if (op->kind != HD_COMM_AFTER) {
        place->launch = ++stream->comm->launches;
        if (op->kind == HD_COMM_SEND)
            place->seq = ++op->group->send_seq[op->peer];
        else if (op->kind == HD_COMM_RECV)
            place->seq = ++op->group->recv_seq[op->peer];
        else
            place->seq = ++op->group->seq;
        hd_comm_flight_launch(stream->comm->flight, place, stream);
    }
    stream->launched++;
    return stream->bundling ? HD_OK : seal(stream);
}

/* What every launch starts with. */
static enum hd_status admit(struct hd_comm_group *group, struct hd_comm_stream *stream,
                            const struct hd_comm_op *op)
{
    const enum hd_status st = group->comm->engine->failure(group->comm);
    const bool pair = op->kind == HD_COMM_SEND || op->kind == HD_COMM_RECV;

    if (st)
        return st;
    if (group->comm != stream->comm)
        return hd_err(HD_INVALID, "%s: group %s and stream %s belong to different endpoints",
                      hd_comm_op_name(op), group->name, hd_comm_stream_text(stream->name));
    if (stream->bundling && !pair)
        return hd_err(HD_CONFLICT, "%s in group %s: only sends and receives may be bundled",
                      hd_comm_op_name(op), group->name);
    if ((unsigned)op->dtype >= HD_DTYPE_COUNT)
        return hd_err(HD_INVALID, "%s in group %s: unknown element type %d", hd_comm_op_name(op),
                      group->name, (int)op->dtype);
    if (op->reduce != HD_COMM_SUM && op->reduce != HD_COMM_MAX)
        return hd_err(HD_INVALID, "%s in group %s: unknown reduction %d", hd_comm_op_name(op),
                      group->name, (int)op->reduce);
    return HD_OK;
}

enum hd_status hd_comm_all_reduce(struct hd_comm_group *group, struct hd_comm_stream *stream,
                                  const struct hd_comm_all_reduce_args *args)
{
    const struct hd_comm_op op = {.kind = HD_COMM_ALL_REDUCE,
                                  .group = group,
                                  .send = args->send,
                                  .recv = args->recv,
                                  .count = args->count,
                                  .dtype = args->dtype,
                                  .reduce = args->reduce,
                                  .peer = -1};
    enum hd_status st = admit(group, stream, &op);

    if (!st) {
        const int64_t bytes = span_bytes(&op, 1, op.count);

        st = check_pair(&op, bytes, bytes, op.send == op.recv);
    }
    return st ? st : enqueue(stream, &op);
}

enum hd_status hd_comm_all_gather(struct hd_comm_group *group, struct hd_comm_stream *stream,
                                  const struct hd_comm_all_gather_args *args)
{
    const struct hd_comm_op op = {.kind = HD_COMM_ALL_GATHER,
                                  .group = group,
                                  .send = args->send,
                                  .recv = args->recv,
                                  .count = args->count,
                                  .dtype = args->dtype,
                                  .peer = -1};
    enum hd_status st = admit(group, stream, &op);

    if (!st) {
        const int64_t bytes = span_bytes(&op, 1, op.count);

        st = check_pair(&op, bytes, span_bytes(&op, group->size, op.count),
                        is_place(op.send, op.recv, group->index * bytes));
    }
    return st ? st : enqueue(stream, &op);
}

enum hd_status hd_comm_reduce_scatter(struct hd_comm_group *group, struct hd_comm_stream *stream,
                                      const struct hd_comm_reduce_scatter_args *args)
{
    const struct hd_comm_op op = {.kind = HD_COMM_REDUCE_SCATTER,
                                  .group = group,
                                  .send = args->send,
                                  .recv = args->recv,
                                  .count = args->count,
                                  .dtype = args->dtype,
                                  .reduce = args->reduce,
                                  .peer = -1};
    enum hd_status st = admit(group, stream, &op);

    if (!st) {
        const int64_t bytes = span_bytes(&op, 1, op.count);

        st = check_pair(&op, span_bytes(&op, group->size, op.count), bytes,
                        is_place(op.recv, op.send, group->index * bytes));
    }
    return st ? st : enqueue(stream, &op);
}

enum hd_status hd_comm_all_to_all(struct hd_comm_group *group, struct hd_comm_stream *stream,
                                  const struct hd_comm_all_to_all_args *args)
{
    const struct hd_comm_op op = {.kind = HD_COMM_ALL_TO_ALL,
                                  .group = group,
                                  .send = args->send,
                                  .recv = args->recv,
                                  .count = args->count,
                                  .dtype = args->dtype,
                                  .peer = -1};
    enum hd_status st = admit(group, stream, &op);

    if (!st) {
        const int64_t bytes = span_bytes(&op, group->size, op.count);

        st = check_pair(&op, bytes, bytes, false);
    }
    return st ? st : enqueue(stream, &op);
}

enum hd_status hd_comm_all_to_all_v(struct hd_comm_group *group, struct hd_comm_stream *stream,
                                    const struct hd_comm_all_to_all_v_args *args)
{
    const struct hd_comm_op op = {.kind = HD_COMM_ALL_TO_ALL_V,
                                  .group = group,
                                  .send = args->send,
                                  .recv = args->recv,
                                  .count = args->row_elems,
                                  .dtype = args->dtype,
                                  .send_counts = args->send_counts,
                                  .recv_counts = args->recv_counts,
                                  .overflow = args->overflow,
                                  .send_rows_max = args->send_rows_max,
                                  .recv_rows_max = args->recv_rows_max,
                                  .peer = -1};
    enum hd_status st = admit(group, stream, &op);

    if (!st && group->comm->side && !op.overflow)
        st = hd_err(HD_INVALID,
                    "all_to_all_v in group %s: on a device the host never sees the counts; give an "
                    "overflow flag",
                    group->name);
    if (!st)
        st = check_pair(&op, span_bytes(&op, op.send_rows_max, op.count),
                        span_bytes(&op, op.recv_rows_max, op.count), false);
    return st ? st : enqueue(stream, &op);
}

enum hd_status hd_comm_broadcast(struct hd_comm_group *group, struct hd_comm_stream *stream,
                                 const struct hd_comm_broadcast_args *args)
{
    const struct hd_comm_op op = {.kind = HD_COMM_BROADCAST,
                                  .group = group,
                                  .send = args->buf,
                                  .recv = args->buf,
                                  .count = args->count,
                                  .dtype = args->dtype,
                                  .peer = args->root};
    enum hd_status st = admit(group, stream, &op);

    if (!st)
        st = check_peer(&op);
    if (!st)
        st = check_buffer(&op, "buf", op.recv, span_bytes(&op, 1, op.count));
    return st ? st : enqueue(stream, &op);
}

enum hd_status hd_comm_send(struct hd_comm_group *group, struct hd_comm_stream *stream,
                            const struct hd_comm_send_args *args)
{
    const struct hd_comm_op op = {.kind = HD_COMM_SEND,
                                  .group = group,
                                  .send = args->buf,
                                  .count = args->count,
                                  .dtype = args->dtype,
                                  .peer = args->peer};
    enum hd_status st = admit(group, stream, &op);

    if (!st)
        st = check_peer(&op);
    if (!st)
        st = check_buffer(&op, "buf", op.send, span_bytes(&op, 1, op.count));
    return st ? st : enqueue(stream, &op);
}

enum hd_status hd_comm_recv(struct hd_comm_group *group, struct hd_comm_stream *stream,
                            const struct hd_comm_recv_args *args)
{
    const struct hd_comm_op op = {.kind = HD_COMM_RECV,
                                  .group = group,
                                  .recv = args->buf,
                                  .count = args->count,
                                  .dtype = args->dtype,
                                  .peer = args->peer};
    enum hd_status st = admit(group, stream, &op);

    if (!st)
        st = check_peer(&op);
    if (!st)
        st = check_buffer(&op, "buf", op.recv, span_bytes(&op, 1, op.count));
    return st ? st : enqueue(stream, &op);
}

enum hd_status hd_comm_barrier(struct hd_comm_group *group, struct hd_comm_stream *stream)
{
    const struct hd_comm_op op = {.kind = HD_COMM_BARRIER, .group = group, .peer = -1};
    const enum hd_status st = admit(group, stream, &op);

    return st ? st : enqueue(stream, &op);
}

enum hd_status hd_comm_begin(struct hd_comm_stream *stream)
{
    if (stream->bundling)
        return hd_err(HD_CONFLICT, "comm: stream %s: a launch is open already",
                      hd_comm_stream_text(stream->name));
    stream->bundling = true;
    return HD_OK;
}

enum hd_status hd_comm_end(struct hd_comm_stream *stream)
{
    const enum hd_status st = stream->comm->engine->failure(stream->comm);

    if (!stream->bundling)
        return hd_err(HD_CONFLICT, "comm: stream %s: no launch is open",
                      hd_comm_stream_text(stream->name));
    stream->bundling = false;
    if (st || stream->launched == stream->sealed)
        return st;
    return seal(stream);
}

/* ---- completion ---- */

uint64_t hd_comm_record(struct hd_comm_stream *stream)
{
    return stream->launched;
}

enum hd_status hd_comm_after(struct hd_comm_stream *stream, struct hd_comm_stream *other,
                             uint64_t ticket)
{
    const struct hd_comm_op op = {
        .kind = HD_COMM_AFTER, .other = other, .other_ticket = ticket, .peer = -1};

    if (stream->comm != other->comm)
        return hd_err(HD_INVALID, "comm: streams of different endpoints cannot wait for another");
    if (stream->bundling)
        return hd_err(HD_CONFLICT, "comm: stream %s: only sends and receives may be bundled",
                      hd_comm_stream_text(stream->name));
    if (ticket > other->launched)
        return hd_err(HD_INVALID, "comm: stream %s has given no ticket %llu yet",
                      hd_comm_stream_text(other->name), (unsigned long long)ticket);
    return hd_comm_done(other, ticket) ? HD_OK : enqueue(stream, &op);
}

bool hd_comm_done(const struct hd_comm_stream *stream, uint64_t ticket)
{
    bool done = true;

    if (!hd_comm_has_ended(stream, ticket))
        return false;
    if (!stream->comm->side || ticket == 0)
        return true;
    return hd_comm_side_done(stream, ticket, &done) == HD_OK && done &&
           !stream->comm->engine->has_failed(stream->comm); /* an abort ends kernels, too */
}

static enum hd_status wait_launched(struct hd_comm_stream *stream, uint64_t ticket)
{
    if (ticket > stream->sealed)
        return hd_err(HD_CONFLICT, "comm: stream %s: a wait for what is not launched yet",
                      hd_comm_stream_text(stream->name));
    return hd_comm_wait_for(stream, ticket);
}

enum hd_status hd_comm_wait(struct hd_comm_stream *stream, uint64_t ticket)
{
    const enum hd_status st = wait_launched(stream, ticket);

    return st || !stream->comm->side || ticket == 0 ? st : hd_comm_wait_device(stream, ticket);
}

enum hd_status hd_comm_follow(struct hd_comm_stream *stream, struct hd_stream *compute)
{
    enum hd_status st = stream->comm->engine->failure(stream->comm);

    if (!st && stream->comm->side)
        st = hd_comm_side_follow(stream, compute);
    return st; /* on the host, what was launched on `compute` has run */
}

enum hd_status hd_comm_wait_on(struct hd_comm_stream *stream, uint64_t ticket,
                               struct hd_stream *compute)
{
    enum hd_status st = wait_launched(stream, ticket);

    if (!st && stream->comm->side && ticket > 0)
        st = hd_comm_side_wait_on(stream, ticket, compute);
    return st;
}

enum hd_status hd_comm_wait_all(struct hd_comm *comm)
{
    enum hd_status st = HD_OK;

    for (int s = 0; s < HD_COMM_STREAM_COUNT && !st; s++)
        st = hd_comm_wait(&comm->streams[s], hd_comm_record(&comm->streams[s]));
    return st;
}

enum hd_status hd_comm_poll(struct hd_comm *comm)
{
    return hd_comm_poll_once(comm);
}

/* ---- failure and counters ---- */

void hd_comm_abort(struct hd_comm *comm, const char *reason)
{
    comm->engine->abort(comm, HD_ABORTED, reason);
}

enum hd_status hd_comm_failure(struct hd_comm *comm)
{
    return comm->engine->failure(comm);
}

void hd_comm_count_get(const struct hd_comm_group *group, enum hd_comm_kind kind,
                       struct hd_comm_count *ret_count)
{
    assert((unsigned)kind < HD_COMM_KIND_COUNT);
    *ret_count = group->counts[kind];
}

void hd_comm_count_reset(struct hd_comm *comm)
{
    for (int g = 0; g < comm->group_count; g++)
        memset(comm->groups[g]->counts, 0, sizeof comm->groups[g]->counts);
}

void hd_comm_slice(int64_t count, enum hd_dtype dtype, int parts, int index, int64_t *ret_begin,
                   int64_t *ret_end)
{
    const int64_t per_line = HD_COMM_ALIGN / (int64_t)hd_dtype_size(dtype);
    const int64_t lines = (count + per_line - 1) / per_line;
    const int64_t even = lines / parts, rest = lines % parts; /* the first `rest` get one more */
    const int64_t begin = (index * even + (index < rest ? index : rest)) * per_line;
    const int64_t end = begin + (even + (index < rest)) * per_line;

    *ret_begin = begin < count ? begin : count;
    *ret_end = end < count ? end : count;
}
