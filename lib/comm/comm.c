/* comm: opening and closing an endpoint, groups, completion and counters of comm.h. The operations
 * are in launch.c, the names in names.c. */
#include "comm/comm.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/random.h"
#include "base/text.h"
#include "comm/device_streams.h"

/* ---- endpoints ---- */

enum hd_status hd_comm_new(const struct hd_comm_engine *engine, int rank, int world,
                           int64_t deadline_ms, struct hd_comm **ret_comm)
{
    struct hd_comm *comm;

    if (deadline_ms <= 0)
        return hd_err(HD_INVALID, "comm: the deadline is %lld ms; use 1 or more",
                      (long long)deadline_ms);
    comm = calloc(1, sizeof *comm);
    if (!comm)
        return hd_err(HD_NO_MEMORY, "comm: no memory for an endpoint");
    comm->engine = engine;
    comm->rank = rank;
    comm->world = world;
    comm->deadline_ms = deadline_ms;
    comm->wait = &comm->own_wait;
    comm->waited_for_ns = calloc((size_t)world, sizeof *comm->waited_for_ns);
    if (!comm->waited_for_ns) {
        hd_comm_delete(comm);
        return hd_err(HD_NO_MEMORY, "comm: no memory for an endpoint");
    }
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
    if (comm->shown)
        (void)munmap(comm->shown, comm->shown_bytes);
    free(comm->waited_for_ns);
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

bool hd_comm_sums_natively(const struct hd_comm *comm)
{
    return comm->native_sums;
}

void hd_comm_set_deadline(struct hd_comm *comm, int64_t deadline_ms)
{
    assert(deadline_ms > 0);
    comm->deadline_ms = deadline_ms;
}

enum hd_status hd_comm_alloc_registered(struct hd_comm *comm, size_t size_bytes, void **ret_base)
{
    void *base;
    enum hd_status st;

    if (comm->registered)
        return hd_err(HD_CONFLICT, "comm: rank %d already has registered memory (%zu bytes)",
                      comm->rank, comm->registered_bytes);
    if (size_bytes == 0 || size_bytes > (size_t)1 << 46)
        return hd_err(HD_INVALID, "comm: registered memory of %zu bytes; use 1 byte to 64 TiB",
                      size_bytes);
    st = comm->engine->registered(comm, size_bytes, &base);
    if (st)
        return st;
    comm->registered = base;
    comm->registered_bytes = size_bytes;
    *ret_base = base;
    return HD_OK;
}

bool hd_comm_has_registered(const struct hd_comm *comm)
{
    return comm->registered != NULL;
}

enum hd_status hd_comm_reuse_registered(struct hd_comm *comm, size_t size_bytes, void **ret_base)
{
    if (!comm->registered || comm->registered_bytes < size_bytes)
        return hd_err(HD_INVALID, "comm: rank %d has %zu bytes of registered memory, not %zu",
                      comm->rank, comm->registered_bytes, size_bytes);
    if (!comm->device_streams) /* host memory */
        memset(comm->registered, 0, comm->registered_bytes);
    *ret_base = comm->registered;
    return HD_OK;
}

/* ---- groups and streams ---- */

/* Computes a group's id from its name and members: two processes that give equal arguments get
 * equal ids. */
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
        *ret_id = hd_random_hash(text.data) | 1; /* group ids are never 0, which means "no group" */
    hd_text_free(&text);
    return st;
}

/* Checks that the members are ascending ranks of the world and include this rank; sets *ret_index
 * to this rank's index among them. */
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
        return hd_err(HD_INVALID, "comm: group %s: this rank, %d, is not a member", name,
                      comm->rank);
    *ret_index = index;
    return HD_OK;
}

/* Allocates a group and its arrays in one allocation; the caller frees it with free. */
static struct hd_comm_group *new_group(int size)
{
    const size_t n = (size_t)size;
    struct hd_comm_group *group = calloc(
        1, sizeof *group + n * (2 * sizeof(uint64_t) + 2 * sizeof(void *) + sizeof(int32_t)));

    if (!group)
        return NULL;
    group->size = size;
    group->send_seq = (uint64_t *)(group + 1);
    group->recv_seq = group->send_seq + n;
    group->channels = (void **)(group->recv_seq + n);
    group->in = (const void **)(group->channels + n);
    group->members = (int32_t *)(group->in + n);
    return group;
}

enum hd_status hd_comm_open_group(struct hd_comm *comm, const char *name, const int32_t *members,
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
        return hd_err(HD_LIMIT, "comm: group %s: more than %d groups", name, HD_COMM_GROUPS_MAX);
    group = new_group(member_count);
    if (!group)
        return hd_err(HD_NO_MEMORY, "comm: no memory for group %s", name);
    group->comm = comm;
    memcpy(group->name, name, strlen(name));
    group->id = id;
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

enum hd_status hd_comm_open_channel(struct hd_comm *comm, const char *what, int32_t from,
                                    int32_t to, struct hd_comm_group **ret_group)
{
    const int32_t members[2] = {from < to ? from : to, from < to ? to : from};
    char name[HD_COMM_GROUP_NAME_MAX];
    enum hd_status st;

    (void)snprintf(name, sizeof name, "%.4s %d>%d", what, (int)from, (int)to);
    st = hd_comm_open_group(comm, name, members, 2, ret_group);
    if (!st)
        (*ret_group)->is_channel = true;
    return st;
}

enum hd_status hd_comm_mesh_group(struct hd_comm *comm, const struct hd_mesh *mesh,
                                  enum hd_group_name name, struct hd_comm_group **ret_group)
{
    struct hd_mesh_group where;
    int32_t *members;
    enum hd_status st;

    if (mesh->world != comm->world)
        return hd_err(HD_INVALID, "comm: the mesh has %d ranks, the world has %d", (int)mesh->world,
                      comm->world);
    where = hd_mesh_find_group(mesh, name, comm->rank);
    members = calloc((size_t)where.size, sizeof *members);
    if (!members)
        return hd_err(HD_NO_MEMORY, "comm: no memory for group %s", hd_group_text(name));
    for (int32_t m = 0; m < where.size; m++)
        members[m] = hd_mesh_member(&where, m);
    st = hd_comm_open_group(comm, hd_group_text(name), members, where.size, ret_group);
    free(members);
    return st;
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

struct hd_comm_stream *hd_comm_get_stream(struct hd_comm *comm, enum hd_comm_stream_name name)
{
    assert((unsigned)name < HD_COMM_STREAM_COUNT);
    return &comm->streams[name];
}

/* ---- completion ---- */

static enum hd_status wait_launched(struct hd_comm_stream *stream, uint64_t ticket)
{
    if (ticket > stream->submitted)
        return hd_err(HD_CONFLICT, "comm: stream %s: a wait for a ticket that is not launched",
                      hd_comm_stream_text(stream->name));
    return hd_comm_wait_for(stream, ticket);
}

enum hd_status hd_comm_wait(struct hd_comm_stream *stream, uint64_t ticket)
{
    const enum hd_status st = wait_launched(stream, ticket);

    return st || !stream->comm->device_streams || ticket == 0 ? st
                                                              : hd_comm_wait_device(stream, ticket);
}

enum hd_status hd_comm_follow(struct hd_comm_stream *stream, struct hd_stream *compute)
{
    enum hd_status st = stream->comm->engine->failure(stream->comm);

    if (!st && stream->comm->device_streams)
        st = hd_comm_streams_follow(stream, compute);
    return st; /* host engines: launches on `compute` have already run */
}

enum hd_status hd_comm_wait_on(struct hd_comm_stream *stream, uint64_t ticket,
                               struct hd_stream *compute)
{
    enum hd_status st = wait_launched(stream, ticket);

    if (!st && stream->comm->device_streams && ticket > 0)
        st = hd_comm_streams_wait_on(stream, ticket, compute);
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
    /* the first `rest` members sum one line (HD_COMM_ALIGN bytes) more */
    const int64_t even = lines / parts, rest = lines % parts;
    const int64_t begin = (index * even + (index < rest ? index : rest)) * per_line;
    const int64_t end = begin + (even + (index < rest)) * per_line;

    *ret_begin = begin < count ? begin : count;
    *ret_end = end < count ? end : count;
}
