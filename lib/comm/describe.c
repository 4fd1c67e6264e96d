/* describe: formats the operation that hangs, for failure messages. The functions read only flight
 * records and the atomic members of device_streams.h, so a watchdog thread may call them. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/device_streams.h"

enum { WHAT_MAX = 160, WHO_MAX = 320 };

/* Sets *ret_record to the flight record of operation number `launch` (with `group` NULL), or of
 * collective number `seq` of `group`. Returns false if the record was overwritten. */
static bool find_record(const struct hd_comm_flight *flight, uint64_t launch, const char *group,
                        uint64_t seq, struct hd_flight_record *ret_record)
{
    struct hd_flight_record records[HD_FLIGHT_MAX];
    const int count = hd_comm_flight_read(flight, records);

    for (int i = 0; i < count; i++) {
        const struct hd_flight_record *r = &records[i];

        if (!group ? r->launch == launch
                   : r->seq == seq && strcmp(r->group, group) == 0 && !r->is_of_a_pair) {
            *ret_record = *r;
            return true;
        }
    }
    return false;
}

static struct hd_comm_group *find_group(struct hd_comm *comm, const char *name)
{
    const int count = atomic_load(&comm->group_count);

    for (int g = 0; g < count; g++) {
        if (strcmp(comm->groups[g]->name, name) == 0)
            return comm->groups[g];
    }
    return NULL;
}

/* Finds the group of an operation whose flight record was overwritten. Returns NULL if its slot in
 * `device_streams` was overwritten too. */
static struct hd_comm_group *find_group_of(const struct hd_comm_device_streams *device_streams,
                                           uint64_t launch)
{
    for (int s = 0; device_streams && s < HD_COMM_STREAM_COUNT; s++) {
        for (int e = 0; e < EVENT_RING; e++) {
            if (atomic_load(&device_streams->launches[s][e]) == launch)
                return atomic_load(&device_streams->groups[s][e]);
        }
    }
    return NULL;
}

/* Writes the name of a member that launched another operation than `mine` under its sequence
 * number; writes "" if no flight record shows one. */
static void describe_other(struct hd_comm_group *group, const struct hd_flight_record *mine,
                           char *ret_text, size_t size_bytes)
{
    const struct hd_comm *comm = group->comm;

    ret_text[0] = '\0';
    for (int m = 0; m < group->size && comm->engine->flight_of && !ret_text[0]; m++) {
        const int rank = group->members[m];
        const struct hd_comm_flight *flight =
            rank == comm->rank ? NULL : comm->engine->flight_of(comm, rank);
        struct hd_flight_record theirs;
        char what[WHAT_MAX];

        if (!flight || !find_record(flight, 0, mine->group, mine->seq, &theirs) ||
            (strcmp(theirs.kind, mine->kind) == 0 && theirs.bytes == mine->bytes))
            continue;
        hd_flight_describe(&theirs, what, sizeof what);
        (void)snprintf(ret_text, size_bytes, "rank %d has launched %s instead", rank, what);
    }
}

/* Writes the peer of a send or receive, and that peer's last operation if this rank can read its
 * flight record. */
static void describe_peer(struct hd_comm *comm, int rank, char *ret_text, size_t size_bytes)
{
    char latest[WHAT_MAX] = "";

    if (comm->engine->flight_of && comm->engine->flight_of(comm, rank))
        comm->engine->latest(comm, rank, latest, sizeof latest);
    (void)snprintf(ret_text, size_bytes, "its peer is rank %d%s%s", rank, latest[0] ? "; " : "",
                   latest);
}

void hd_comm_describe_launch(struct hd_comm *comm, uint64_t launch, char *ret_text,
                             size_t size_bytes)
{
    struct hd_flight_record record;
    struct hd_comm_group *group;
    char what[WHAT_MAX], who[WHO_MAX] = "";

    if (launch == 0) {
        (void)snprintf(ret_text, size_bytes, "an operation that waits for another stream");
        return;
    }
    if (!find_record(comm->flight, launch, NULL, 0, &record)) {
        group = find_group_of(comm->device_streams, launch);
        if (group)
            hd_comm_describe_behind(group, who, sizeof who);
        (void)snprintf(ret_text, size_bytes, "launch %" PRIu64 "%s%s%s%s", launch,
                       group ? " of group " : "", group ? group->name : "", who[0] ? "; " : "",
                       who);
        return;
    }
    hd_flight_describe(&record, what, sizeof what);
    group = find_group(comm, record.group);
    if (record.is_of_a_pair)
        describe_peer(comm, record.peer, who, sizeof who);
    else if (group)
        hd_comm_describe_behind(group, who, sizeof who);
    if (group && !who[0])
        describe_other(group, &record, who, sizeof who);
    (void)snprintf(ret_text, size_bytes, "%s on stream %s%s%s", what, record.stream,
                   who[0] ? "; " : "", who);
}
