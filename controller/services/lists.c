/* lists: the calls of Control that list jobs, events and checkpoints, read from the store. */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "controller/services/control.h"

/* set of job states that matches no job */
#define NO_STATE (1u << 31)

enum { NAME_STARS_MAX = 2 };

static uint64_t number_of(int64_t value)
{
    return value > 0 ? (uint64_t)value : 0;
}

static ProtobufCMessage *fill_jobs(struct controller *c, const struct hd_rpc_call *call,
                                   struct hd_query *query)
{
    Heddle__V1__ListJobsResponse *response =
        answer_message(&query->arena, &heddle__v1__list_jobs_response__descriptor);
    const struct veil veil = guard_veil(c, call);
    struct hd_text warning = {0};

    if (!response)
        return NULL;
    response->time_unix_ms = hd_clock_wall_ms();
    response->warning = convert_text(hd_arena_strdup(&query->arena, answer_warning(c, &warning)));
    hd_text_free(&warning);
    response->jobs = convert_jobs(query, c, &veil);
    response->n_jobs = query->job_count;
    if (query->more)
        response->next_page = convert_text(hd_arena_printf(
            &query->arena, "%" PRIu64, query->jobs[query->job_count - 1].record.job));
    return &response->base;
}

/* Checks a pattern of names. The number of '*' is limited because the time to compare grows with a
 * name's length to that power. */
static enum hd_status check_name_pattern(const char *pattern)
{
    size_t stars = 0;

    for (const char *at = pattern; *at; at++)
        stars += *at == '*';
    if (strlen(pattern) < HD_JOB_WORD_MAX + NAME_STARS_MAX && stars <= NAME_STARS_MAX &&
        !strpbrk(pattern, "[]"))
        return HD_OK;
    return hd_err(HD_INVALID,
                  "name: a name of a job has at most %d letters, digits, '.', '_' and '-'; a "
                  "pattern has at most %d '*'",
                  HD_JOB_WORD_MAX - 1, NAME_STARS_MAX);
}

void control_list_jobs(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ListJobsRequest *m = (const void *)message;
    const struct controller *c = hd_rpc_call_user(call);
    const bool own = guard_visibility(c, call) == HD_VISIBILITY_OWN;
    struct hd_query *query;
    int64_t before = 0;

    if (*m->page && hd_text_to_int64(m->page, 1, INT64_MAX, &before)) {
        hd_rpc_call_fail(
            call, hd_err(HD_INVALID, "page: \"%s\" is not a next_page of ListJobs", m->page));
        return;
    }
    if (check_name_pattern(m->name)) {
        hd_rpc_call_fail(call, HD_INVALID);
        return;
    }
    query = hd_query_new(HD_QUERY_JOBS);
    if (query) {
        query->before_job = number_of(before);
        query->owner = own && !*m->owner ? control_caller(call) : m->owner;
        query->name = *m->name ? m->name : NULL;
        query->limit = control_page_size(m->limit);
        if (own && strcmp(query->owner, control_caller(call)) != 0)
            query->states = NO_STATE; /* the reader sees no jobs of other users */
        for (size_t i = 0; i < m->n_states && query->states != NO_STATE; i++)
            query->states |= (unsigned)m->states[i] < 32 ? 1u << (unsigned)m->states[i] : 0;
    }
    answer_list(call, query, fill_jobs);
}

static ProtobufCMessage *fill_events(struct controller *c, const struct hd_rpc_call *call,
                                     struct hd_query *query)
{
    Heddle__V1__ListEventsResponse *response =
        answer_message(&query->arena, &heddle__v1__list_events_response__descriptor);
    const struct veil veil = guard_veil(c, call);

    if (!response)
        return NULL;
    response->events = convert_events(query, &veil);
    response->n_events = query->entry_count;
    response->more = query->more;
    return &response->base;
}

void control_list_events(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ListEventsRequest *m = (const void *)message;
    struct hd_query *query = hd_query_new(HD_QUERY_EVENTS);

    if (query) {
        query->job = m->job;
        query->after = m->after_sequence;
        query->limit = control_page_size(m->limit);
        control_see(hd_rpc_call_user(call), call, HD_VISIBILITY_JOBS, query);
    }
    answer_list(call, query, fill_events);
}

static ProtobufCMessage *fill_checkpoints(struct controller *c, const struct hd_rpc_call *call,
                                          struct hd_query *query)
{
    Heddle__V1__ListCheckpointsResponse *response =
        answer_message(&query->arena, &heddle__v1__list_checkpoints_response__descriptor);

    (void)c;
    (void)call;
    if (!response)
        return NULL;
    response->checkpoints = convert_checkpoints(query);
    response->n_checkpoints = query->entry_count;
    return &response->base;
}

void control_list_checkpoints(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ListCheckpointsRequest *m = (const void *)message;
    struct hd_query *query = hd_query_new(HD_QUERY_CHECKPOINTS);

    if (query) {
        query->job = m->job;
        control_see(hd_rpc_call_user(call), call, HD_VISIBILITY_ALL, query);
    }
    answer_list(call, query, fill_checkpoints);
}
