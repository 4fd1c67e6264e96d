/* services: what is over a limit is refused, with the limit's name; the policy shows jobs to
 * others. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "controller/services/internal.h"
#include "heddle/v1/control.pb-c.h"
#include "services_callers.h"
#include "tests/program/test.h"

/* The controller once more, with this policy. */
static void start_with(struct callers *all, const char *policy)
{
    static char path[128];
    struct bench *b = &all->b;

    callers_start(all);
    stop_controller(b);
    (void)snprintf(path, sizeof path, "%s/policy", b->dir);
    assert_int_equal(hd_file_write_atomic(path, policy, strlen(policy), 0600), HD_OK);
    b->policy_file = path;
    (void)snprintf(b->address, sizeof b->address, "127.0.0.1:0");
    if (start_controller(b))
        fail_msg("%s", hd_err_message());
    (void)snprintf(b->address, sizeof b->address, "127.0.0.1:%d", controller_port(b->controller));
    hd_rpc_client_close(all->auditor);
    all->auditor = NULL;
}

static enum hd_status try_to_submit(struct callers *all)
{
    static int number;
    char request_id[40];
    uint64_t job;
    bool repeated;

    (void)snprintf(request_id, sizeof request_id, "limited-%020d", ++number);
    return submit_as(&all->b, request_id, new_spec(&all->b, 2, ""), &job, &repeated);
}

static const Heddle__V1__LimitUse *find_limit(const Heddle__V1__GetLimitsResponse *r,
                                              const char *name)
{
    for (size_t i = 0; i < r->n_limits; i++)
        if (strcmp(r->limits[i]->name, name) == 0)
            return r->limits[i];
    fail_msg("there is no limit %s", name);
    return NULL;
}

static Heddle__V1__GetLimitsResponse *limits_of(struct callers *all, const char *name)
{
    Heddle__V1__GetLimitsRequest request = HEDDLE__V1__GET_LIMITS_REQUEST__INIT;
    ProtobufCMessage *response = NULL;

    request.name = (char *)(uintptr_t)name;
    if (hd_rpc_call_wait(all->b.client, "/heddle.v1.Identity/GetLimits",
                         &heddle__v1__get_limits_response__descriptor, WAIT_MS, &request.base,
                         &response))
        fail_msg("%s", hd_err_message());
    return (Heddle__V1__GetLimitsResponse *)(void *)response;
}

/* ann has one job from before the restart, may have three, and bob's do not count. */
static void jobs_over_the_limit_are_refused_by_name(void **state)
{
    Heddle__V1__GetLimitsResponse *limits;
    Heddle__V1__ListAuditResponse *audit;
    struct callers all;
    uint64_t job;
    bool repeated;

    start_with(&all, "limit ann jobs_live 3\nlimit oli jobs_queued 1\n");
    callers_be(&all, all.secrets[CALLER_USER]);
    assert_int_equal(try_to_submit(&all), HD_OK);
    assert_int_equal(try_to_submit(&all), HD_OK);
    hd_rpc_message_free(&callers_audit(&all)->base);
    assert_int_equal(try_to_submit(&all), HD_LIMIT);
    assert_string_equal(hd_err_message(), "jobs_live: ann uses 3 of 3 jobs that wait or run (see "
                                          "heddle limits)");
    assert_int_equal(
        submit_as(&all.b, "limited-00000000000000000002", new_spec(&all.b, 2, ""), &job, &repeated),
        HD_OK); /* the same again: its answer may have been lost */
    assert_true(repeated);
    limits = limits_of(&all, "");
    assert_int_equal(find_limit(limits, "jobs_live")->used, 3);
    assert_int_equal(find_limit(limits, "jobs_live")->most, 3);
    assert_int_equal(find_limit(limits, "jobs_queued")->most, 0);
    hd_rpc_message_free(&limits->base);
    audit = callers_audit(&all);        /* a flood of refused calls does not fill the disk */
    assert_int_equal(audit->n_rows, 1); /* of the repeated one */
    hd_rpc_message_free(&audit->base);
    callers_be(&all, all.secrets[CALLER_OPERATOR]); /* has one, and a rule of its own name */
    assert_int_equal(try_to_submit(&all), HD_LIMIT);
    callers_be(&all, all.secrets[CALLER_ADMIN]);
    assert_int_equal(try_to_submit(&all), HD_OK);
    limits = limits_of(&all, "ann"); /* an admin may ask for those of others */
    assert_int_equal(find_limit(limits, "jobs_live")->used, 3);
    hd_rpc_message_free(&limits->base);
    callers_finish(&all);
}

/* 5 a second, so that of 40 calls in a row, which take less than 2 s, at most 15 come through. */
static void calls_over_the_rate_are_refused(void **state)
{
    Heddle__V1__ListQueuesRequest request = HEDDLE__V1__LIST_QUEUES_REQUEST__INIT;
    struct callers all;
    int64_t begin_ms;
    int through = 0;

    start_with(&all, "limit ann queries_per_s 5\n");
    callers_be(&all, all.secrets[CALLER_USER]);
    begin_ms = hd_clock_now_ms();
    for (int i = 0; i < 40; i++) {
        ProtobufCMessage *response = NULL;

        through += call(&all.b, "ListQueues", &heddle__v1__list_queues_response__descriptor,
                        &request.base, &response) == HD_OK;
        hd_rpc_message_free(response);
    }
    assert_true(through >= 5);
    assert_true(through <= 5 + 5 * (hd_clock_now_ms() - begin_ms + 999) / 1000);
    assert_true(through < 40);
    callers_finish(&all);
}

/* Goal: who may do nothing cannot fill the disk. 300 calls that need an admin, in a row: of them
 * 100 and 100 for each second that they take are denied, the others are over the limit. The log has
 * one row; the number of the others follows in a minute, or when the controller stops. */
static void a_flood_of_refused_calls_is_limited_and_leaves_few_rows(void **state)
{
    Heddle__V1__SetQueueRequest request = HEDDLE__V1__SET_QUEUE_REQUEST__INIT;
    Heddle__V1__ListAuditResponse *audit;
    struct callers all;
    char expected[64];
    int denied = 0, limited = 0;
    int64_t begin_ms;

    start_with(&all, "");
    request.name = (char *)"mine";
    hd_rpc_message_free(&callers_audit(&all)->base);
    callers_be(&all, all.secrets[CALLER_VIEWER]);
    begin_ms = hd_clock_now_ms();
    for (int i = 0; i < 300; i++) {
        ProtobufCMessage *response = NULL;
        const enum hd_status st =
            call(&all.b, "SetQueue", &heddle__v1__set_queue_response__descriptor, &request.base,
                 &response);

        denied += st == HD_DENIED;
        limited += st == HD_LIMIT;
    }
    assert_int_equal(denied + limited, 300);
    assert_true(denied >= 100);
    assert_true(denied <= 100 + 100 * (hd_clock_now_ms() - begin_ms + 999) / 1000);
    audit = callers_audit(&all);
    assert_int_equal(audit->n_rows, 1);
    assert_string_equal(audit->rows[0]->who, "vic");
    assert_string_equal(audit->rows[0]->result, "denied");
    hd_rpc_message_free(&audit->base);

    stop_controller(&all.b);
    (void)snprintf(all.b.address, sizeof all.b.address, "127.0.0.1:0");
    assert_int_equal(start_controller(&all.b), HD_OK);
    (void)snprintf(all.b.address, sizeof all.b.address, "127.0.0.1:%d",
                   controller_port(all.b.controller));
    hd_rpc_client_close(all.auditor);
    all.auditor = NULL;
    audit = callers_audit(&all);
    (void)snprintf(expected, sizeof expected, "denied, %d times", denied - 1);
    assert_int_equal(audit->n_rows, 1);
    assert_string_equal(audit->rows[0]->method, "SetQueue");
    assert_string_equal(audit->rows[0]->result, expected);
    hd_rpc_message_free(&audit->base);
    callers_finish(&all);
}

static enum hd_status ask_job(struct callers *all, const char *method, uint64_t job)
{
    const ProtobufCServiceDescriptor *control = &heddle__v1__control__descriptor;

    return callers_ask(all, control,
                       protobuf_c_service_descriptor_get_method_by_name(control, method), job);
}

/* vic sees that oli has a job, its state and its progress; not its spec, and no log. What is seen
 * and may not be changed is denied, with the owner's name. */
static void the_policy_shows_jobs_of_others(void **state)
{
    struct callers all;
    Heddle__V1__GetJobResponse *got;
    uint64_t olis;

    start_with(&all, "see role:viewer jobs\nsee ann all\n");
    olis = all.jobs[CALLER_OPERATOR];
    callers_be(&all, all.secrets[CALLER_VIEWER]);
    got = get_job(&all.b, olis);
    assert_string_equal(got->job->owner, "oli");
    assert_null(got->job->spec);
    hd_rpc_message_free(&got->base);
    got = get_job(&all.b, all.jobs[CALLER_VIEWER]);
    assert_non_null(got->job->spec);
    hd_rpc_message_free(&got->base);
    assert_int_equal(ask_job(&all, "WatchJob", olis), HD_OK);
    assert_int_equal(ask_job(&all, "ReadLog", olis), HD_DENIED);
    assert_non_null(strstr(hd_err_message(), "belongs to oli; you are vic"));
    assert_int_equal(ask_job(&all, "ListCheckpoints", olis), HD_DENIED);
    callers_be(&all, all.secrets[CALLER_USER]);
    got = get_job(&all.b, olis);
    assert_non_null(got->job->spec);
    hd_rpc_message_free(&got->base);
    assert_int_equal(ask_job(&all, "ListCheckpoints", olis), HD_OK);
    assert_int_equal(ask_job(&all, "CancelJob", olis), HD_DENIED);
    callers_finish(&all);
}

/* The controller once more, without a policy: each user sees the own jobs alone. */
static void start_without_policy(struct callers *all)
{
    struct bench *b = &all->b;

    stop_controller(b);
    b->policy_file = NULL;
    (void)snprintf(b->address, sizeof b->address, "127.0.0.1:0");
    assert_int_equal(start_controller(b), HD_OK);
    (void)snprintf(b->address, sizeof b->address, "127.0.0.1:%d", controller_port(b->controller));
}

/* ann's job came after oli's while she saw all jobs. */
static void what_a_job_waited_for_is_hidden_when_the_policy_hides_it(void **state)
{
    char after[64], gone[96];
    struct callers all;
    uint64_t olis, anns;
    bool repeated;

    start_with(&all, "see ann all\n");
    olis = all.jobs[CALLER_OPERATOR];
    (void)snprintf(after, sizeof after, "after: [%" PRIu64 "]\n", olis);
    (void)snprintf(gone, sizeof gone, "after: there is no job %" PRIu64 " (heddle jobs)", olis);
    callers_be(&all, all.secrets[CALLER_USER]);
    assert_int_equal(
        submit_as(&all.b, "0123456789abcdef", new_spec(&all.b, 2, after), &anns, &repeated), HD_OK);
    callers_be(&all, all.secrets[CALLER_OPERATOR]);
    assert_int_equal(ask_job(&all, "CancelJob", olis), HD_OK); /* and so ann's ends, too */
    callers_be(&all, all.secrets[CALLER_USER]);
    assert_int_equal(ask_job(&all, "HoldJob", anns), HD_CONFLICT);
    (void)snprintf(after, sizeof after, "after: job %" PRIu64 " was cancelled", olis);
    assert_non_null(strstr(hd_err_message(), after));
    assert_int_equal(ask_job(&all, "ResumeJob", anns), HD_INVALID);
    start_without_policy(&all);
    callers_be(&all, all.secrets[CALLER_USER]);
    assert_int_equal(ask_job(&all, "HoldJob", anns), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), "after: another job was cancelled"));
    assert_int_equal(ask_job(&all, "ResumeJob", anns), HD_NOT_FOUND);
    assert_string_equal(hd_err_message(), gone);
    callers_finish(&all);
}

/* Returns whether the caller reads this text in an event about the cluster. */
static bool reads(struct callers *all, const char *text)
{
    Heddle__V1__ListEventsRequest request = HEDDLE__V1__LIST_EVENTS_REQUEST__INIT;
    Heddle__V1__ListEventsResponse *response = NULL;
    bool found = false;

    assert_int_equal(call(&all->b, "ListEvents", &heddle__v1__list_events_response__descriptor,
                          &request.base, &response),
                     HD_OK);
    for (size_t i = 0; i < response->n_events; i++)
        found |= strcmp(response->events[i]->message, text) == 0;
    hd_rpc_message_free(&response->base);
    return found;
}

static void a_removal_is_told_to_the_owner_of_the_job(void **state)
{
    const char *const hidden = "another job was removed";
    char told[96];
    struct callers all;

    start_with(&all, "");
    (void)snprintf(told, sizeof told, "job %" PRIu64 " (tiny) was removed by oli",
                   all.jobs[CALLER_USER]);
    callers_be(&all, all.secrets[CALLER_OPERATOR]);
    assert_int_equal(ask_job(&all, "CancelJob", all.jobs[CALLER_USER]), HD_OK);
    assert_int_equal(ask_job(&all, "RemoveJob", all.jobs[CALLER_USER]), HD_OK);
    assert_true(reads(&all, told));
    callers_be(&all, all.secrets[CALLER_USER]);
    assert_true(reads(&all, told));
    assert_false(reads(&all, hidden));
    callers_be(&all, all.secrets[CALLER_VIEWER]);
    assert_true(reads(&all, hidden));
    assert_false(reads(&all, told));
    callers_finish(&all);
}

/* The core has forgotten the job, so its copy is told in the cluster's history. */
static void a_copy_for_a_job_that_has_ended_is_told_to_its_owner(void **state)
{
    struct hd_event_record event = {.sequence = 1000000, .rank = -1, .kind = "checkpoint_copied"};
    struct controller *c;
    struct callers all;
    char told[96];

    start_with(&all, "");
    c = all.b.controller;
    (void)snprintf(told, sizeof told,
                   "job %" PRIu64
                   ", which has ended: the checkpoint of step 5 was copied to s3://b",
                   all.jobs[CALLER_USER]);
    event.message = told;
    transaction_begin(c);
    hd_batch_add_event(c->transaction->batch, &event);
    transaction_end(c);
    callers_be(&all, all.secrets[CALLER_USER]);
    assert_true(reads(&all, told));
    callers_be(&all, all.secrets[CALLER_VIEWER]);
    assert_true(reads(&all, "a checkpoint of another job was copied"));
    assert_false(reads(&all, told));
    callers_finish(&all);
}

/* Goal: the command and the dashboard call one checkpoint the best. Method: of three the one with the
 * lowest loss, 1, has no files any more; of the others the loss 2 is lower than 3. */
static void the_best_checkpoint_has_its_files(void **state)
{
    struct hd_query *query = hd_query_new(HD_QUERY_CHECKPOINTS);
    struct hd_history_entry entries[] = {
        {.checkpoint = {.job = 1, .step = 10, .val_loss = 3}},
        {.checkpoint = {.job = 1, .step = 20, .val_loss = 1, .missing = true}},
        {.checkpoint = {.job = 1, .step = 30, .val_loss = 2}}};
    Heddle__V1__CheckpointInfo **shown;

    assert_non_null(query);
    query->entries = entries;
    query->entry_count = 3;
    shown = convert_checkpoints(query);
    assert_non_null(shown);
    assert_false(shown[0]->best);
    assert_false(shown[1]->best);
    assert_true(shown[2]->best);
    hd_query_free(query);
}

RUN_CASES()
