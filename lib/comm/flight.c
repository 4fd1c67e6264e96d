/* flight: writes and reads the flight recorder. Another thread or process may read a record while
 * it is written. The writer sets `launch` to 0 first, then stores the other members with release
 * order, then sets `launch`. A reader reads `launch` before and after the other members: if it read
 * a new value of any member, its second read of `launch` shows the change. */
#include "comm/flight.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/comm_internal.h"

_Static_assert(sizeof(((struct hd_flight_record *)0)->group) == HD_COMM_GROUP_NAME_MAX,
               "same size");
_Static_assert(HD_COMM_GROUP_NAME_MAX == 2 * sizeof(uint64_t), "a name is stored as two words");
_Static_assert((int)HD_FLIGHT_COMPLETE == (int)HD_COMM_COMPLETE, "the enums have the same values");

static struct hd_comm_flight_slot *slot_of(struct hd_comm_flight *flight, uint64_t launch)
{
    return &flight->slots[launch % HD_FLIGHT_MAX];
}

static uint64_t state_of(uint64_t launch, enum hd_comm_state state)
{
    return launch * HD_COMM_STATES + (uint64_t)state;
}

/* ---- the last collective per group ---- */

void hd_comm_note_entered(struct hd_comm_entered *entered, const char *group, uint64_t seq)
{
    uint64_t name[2] = {0};
    int g = 0;

    memcpy(name, group, strnlen(group, sizeof name - 1));
    while (g <= HD_COMM_GROUPS_MAX && atomic_load(&entered->groups[g].name[0]) &&
           (atomic_load(&entered->groups[g].name[0]) != name[0] ||
            atomic_load(&entered->groups[g].name[1]) != name[1]))
        g++;
    if (g > HD_COMM_GROUPS_MAX)
        return; /* all entries are used, because a faulty peer named too many groups: only messages
                   lose detail */
    if (seq > atomic_load(&entered->groups[g].seq))
        atomic_store(&entered->groups[g].seq, seq);
    atomic_store(&entered->groups[g].name[1], name[1]);
    atomic_store(&entered->groups[g].name[0], name[0]);
}

uint64_t hd_comm_find_entered(const struct hd_comm_entered *entered, const char *group)
{
    uint64_t name[2] = {0};

    memcpy(name, group, strnlen(group, sizeof name - 1));
    for (int g = 0; g <= HD_COMM_GROUPS_MAX; g++) {
        const uint64_t first = atomic_load(&entered->groups[g].name[0]);

        if (first == 0)
            break;
        if (first == name[0] && atomic_load(&entered->groups[g].name[1]) == name[1])
            return atomic_load(&entered->groups[g].seq);
    }
    return 0;
}

uint64_t hd_comm_flight_entered(const struct hd_comm_flight *flight, const char *group)
{
    return hd_comm_find_entered(&flight->entered, group);
}

/* ---- writing ---- */

void hd_comm_flight_launch(struct hd_comm_flight *flight, const struct hd_comm_op *op,
                           const struct hd_comm_stream *stream)
{
    struct hd_comm_flight_slot *slot = slot_of(flight, op->launch);
    uint64_t name[2];

    memcpy(name, op->group->name, sizeof name);
    atomic_store(&slot->launch, 0); /* 0 while the record is being written */
    atomic_store_explicit(&slot->seq, op->seq, memory_order_release);
    atomic_store_explicit(&slot->bytes, (uint64_t)op->count * hd_dtype_size(op->dtype),
                          memory_order_release);
    atomic_store_explicit(&slot->name[0], name[0], memory_order_release);
    atomic_store_explicit(&slot->name[1], name[1], memory_order_release);
    atomic_store_explicit(&slot->kind, (uint32_t)op->kind, memory_order_release);
    atomic_store_explicit(&slot->stream, (uint32_t)stream->name, memory_order_release);
    atomic_store_explicit(&slot->peer, op->peer < 0 ? -1 : op->group->members[op->peer],
                          memory_order_release);
    atomic_store_explicit(&slot->state, state_of(op->launch, HD_COMM_QUEUED), memory_order_release);
    atomic_store_explicit(&slot->since_ms, hd_clock_now_ms(), memory_order_release);
    atomic_store(&slot->launch, op->launch);
    atomic_store(&flight->newest, op->launch);
}

void hd_comm_set_state(struct hd_comm_op *op, enum hd_comm_state state)
{
    struct hd_comm_flight *flight = op->group->comm->flight;
    struct hd_comm_flight_slot *slot = slot_of(flight, op->launch);

    op->state = state;
    if (state == HD_COMM_ENTERED && op->direction == HD_COMM_AMONG_ALL)
        hd_comm_note_entered(&flight->entered, op->group->name, op->seq);
    if (atomic_load_explicit(&slot->launch, memory_order_relaxed) == op->launch) {
        const bool runs_later = state == HD_COMM_COMPLETE && op->group->comm->device_streams;

        atomic_store_explicit(&slot->since_ms, hd_clock_now_ms(), memory_order_release);
        atomic_store_explicit(&slot->state,
                              state_of(op->launch, runs_later ? HD_COMM_MOVING : state),
                              memory_order_release);
    }
    if (state == HD_COMM_COMPLETE &&
        !(op->kind == HD_COMM_SHIFT && op->direction == HD_COMM_TO_PEER))
        op->group->counts[op->kind].calls++; /* a shift is two operations but one call */
}

void hd_comm_flight_ended(struct hd_comm_flight *flight, uint64_t launch)
{
    struct hd_comm_flight_slot *slot = slot_of(flight, launch);
    uint64_t state = atomic_load(&slot->state);

    if (launch == 0)
        return;
    while (state / HD_COMM_STATES == launch) { /* the thread that owns the endpoint may reuse this
                                                  slot of the recorder concurrently */
        if (atomic_compare_exchange_weak(&slot->state, &state,
                                         state_of(launch, HD_COMM_COMPLETE))) {
            atomic_store(&slot->since_ms, hd_clock_now_ms());
            break;
        }
    }
}

/* ---- reading ---- */

/* Copies one slot of a flight recorder to *ret_record. Returns false if the slot was overwritten
 * during the read. */
static bool read_slot(const struct hd_comm_flight_slot *slot, uint64_t launch,
                      struct hd_flight_record *ret_record)
{
    const bool is_begun = atomic_load(&slot->launch) == launch;
    const uint64_t name[2] = {atomic_load(&slot->name[0]), atomic_load(&slot->name[1])};

    *ret_record = (struct hd_flight_record){
        .launch = launch,
        .seq = atomic_load(&slot->seq),
        .bytes = atomic_load(&slot->bytes),
        .since_ms = atomic_load(&slot->since_ms),
        .peer = atomic_load(&slot->peer),
        .is_of_a_pair = hd_comm_is_of_a_pair((int)atomic_load(&slot->kind)),
        .state = (enum hd_flight_state)(atomic_load(&slot->state) % HD_COMM_STATES),
    };
    (void)snprintf(ret_record->kind, sizeof ret_record->kind, "%s",
                   hd_comm_kind_name((enum hd_comm_kind)atomic_load(&slot->kind)));
    (void)snprintf(ret_record->stream, sizeof ret_record->stream, "%s",
                   hd_comm_stream_text((enum hd_comm_stream_name)atomic_load(&slot->stream)));
    memcpy(ret_record->group, name, sizeof name);
    ret_record->group[sizeof ret_record->group - 1] = '\0';
    return is_begun && atomic_load(&slot->launch) == launch;
}

int hd_comm_flight_read(const struct hd_comm_flight *flight,
                        struct hd_flight_record ret_records[HD_FLIGHT_MAX])
{
    const uint64_t newest = atomic_load(&flight->newest);
    uint64_t launch = newest > HD_FLIGHT_MAX ? newest - HD_FLIGHT_MAX + 1 : 1;
    int count = 0;

    for (; launch <= newest; launch++) {
        const struct hd_comm_flight_slot *slot = &flight->slots[launch % HD_FLIGHT_MAX];

        if (read_slot(slot, launch, &ret_records[count])) /* a record being written is left out */
            count++;
    }
    return count;
}

/* ---- formatting ---- */

const char *hd_flight_state_name(enum hd_flight_state state)
{
    static const char *const names[] = {"queued", "entered", "moving", "leaving", "complete"};

    return (unsigned)state < 5 ? names[state] : "unknown";
}

void hd_flight_describe(const struct hd_flight_record *record, char *ret_text, size_t size_bytes)
{
    char bytes[32];

    hd_text_format_bytes((int64_t)record->bytes, bytes);
    (void)snprintf(ret_text, size_bytes, "%s #%" PRIu64 " of group %s (%s), %s", record->kind,
                   record->seq, record->group, bytes, hd_flight_state_name(record->state));
}

static bool is_open(const struct hd_flight_record *record)
{
    return record->state != HD_FLIGHT_COMPLETE && record->state != HD_FLIGHT_QUEUED;
}

void hd_flight_describe_open(const struct hd_flight_record *records, int count, char *ret_text,
                             size_t size_bytes)
{
    int skip = -HD_FLIGHT_OPEN_MAX; /* if more operations are open, the oldest are skipped */
    char what[128];
    size_t n = 0;

    ret_text[0] = '\0';
    for (int i = 0; i < count; i++)
        skip += is_open(&records[i]);
    for (int i = 0; i < count && n < size_bytes; i++) {
        if (!is_open(&records[i]) || skip-- > 0)
            continue;
        hd_flight_describe(&records[i], what, sizeof what);
        n += (size_t)snprintf(ret_text + n, size_bytes - n, "%s%s", n ? " and " : "; it was in ",
                              what);
    }
    if (!count || is_open(&records[count - 1]) || n >= size_bytes)
        return;
    hd_flight_describe(&records[count - 1], what, sizeof what);
    (void)snprintf(ret_text + n, size_bytes - n, "; its last collective was %s", what);
}

void hd_flight_add_text(const struct hd_flight_record *records, int count, int rank, int64_t now_ms,
                        struct hd_text *text)
{
    hd_text_add(text, "the last %d of %" PRIu64 " collectives of rank %d, oldest first:\n", count,
                count ? records[count - 1].launch : 0, rank);
    for (int i = 0; i < count; i++) {
        const struct hd_flight_record *record = &records[i];
        char what[128], peer[32] = "";

        hd_flight_describe(record, what, sizeof what);
        if (record->peer >= 0)
            (void)snprintf(peer, sizeof peer, ", rank %d", (int)record->peer);
        hd_text_add(text, "%8" PRIu64 "  %s for %.3f s (stream %s%s)\n", record->launch, what,
                    (double)(now_ms - record->since_ms) * 1e-3, record->stream, peer);
    }
}

void hd_comm_flight_text(const struct hd_comm *comm, struct hd_text *text)
{
    struct hd_flight_record records[HD_FLIGHT_MAX];
    const int count = hd_comm_flight_read(comm->flight, records);

    hd_flight_add_text(records, count, comm->rank, hd_clock_now_ms(), text);
}

/* ---- which members are behind ---- */

/* Writes "rank 3" or "ranks 1, 3": the ranks of the `count` group members whose `chosen` entry is
 * true. */
static void name_ranks(const struct hd_comm_group *group, const bool *chosen, int count,
                       char *ret_text, size_t size_bytes)
{
    int len = snprintf(ret_text, size_bytes, count > 1 ? "ranks " : "rank "), named = 0;

    for (int m = 0; m < group->size && (size_t)len < size_bytes; m++) {
        if (chosen[m])
            len += snprintf(ret_text + len, size_bytes - (size_t)len, "%s%d", named++ ? ", " : "",
                            (int)group->members[m]);
    }
}

void hd_comm_describe_behind(struct hd_comm_group *group, char *ret_text, size_t size_bytes)
{
    const struct hd_comm_engine *engine = group->comm->engine;
    uint64_t *entered = calloc((size_t)group->size, sizeof *entered);
    bool *behind = calloc((size_t)group->size, sizeof *behind);
    uint64_t least = UINT64_MAX, most = 0, next = UINT64_MAX;
    char ranks[96], others[48], latest[160] = "";
    int count = 0, one = 0;

    ret_text[0] = '\0';
    for (int m = 0; entered && behind && m < group->size; m++) {
        entered[m] = engine->entered(group, m);
        least = entered[m] < least ? entered[m] : least;
        most = entered[m] > most ? entered[m] : most;
    }
    if (least >= most) {
        free(entered);
        free(behind);
        return;
    }
    for (int m = 0; m < group->size; m++) {
        behind[m] = entered[m] == least;
        count += behind[m];
        if (behind[m])
            one = m;
        else if (entered[m] < next)
            next = entered[m];
    }
    name_ranks(group, behind, count, ranks, sizeof ranks);
    (void)snprintf(others, sizeof others, next == most ? "%" PRIu64 : "%" PRIu64 " to %" PRIu64,
                   next, most);
    if (count == 1)
        engine->latest(group->comm, group->members[one], latest, sizeof latest);
    (void)snprintf(ret_text, size_bytes,
                   "%s %s behind: entered %" PRIu64 " operations of group %s, the others %s%s%s",
                   ranks, count > 1 ? "are" : "is", least, group->name, others,
                   latest[0] ? "; " : "", latest);
    free(entered);
    free(behind);
}
