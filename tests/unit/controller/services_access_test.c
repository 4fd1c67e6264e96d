/* services: who may call what, by which token, and what a removed node hears. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "services_bench.h"
#include "tests/program/tells.h"
#include "tests/program/test.h"

static struct hd_rpc_token all_tokens[] = {
    {.party = HD_RPC_PARTY_USER, .name = "ann", .token = "ann-0123456789abcdef"},
    {.party = HD_RPC_PARTY_USER, .name = "bob", .token = "bob-0123456789abcdef"},
    {.party = HD_RPC_PARTY_NODE, .name = "n1", .token = "n1-0123456789abcdef"},
    {.party = HD_RPC_PARTY_NODE, .token = "any-0123456789abcdef"},
};
enum { ANN, BOB, N1, ANY, TOKENS };

/* The controller of `start`, once more, behind a port; the first `count` tokens open it. */
static void start_port(struct bench *b, size_t count)
{
    static struct hd_rpc_tokens tokens;

    tokens = (struct hd_rpc_tokens){.items = all_tokens, .count = count};
    start(b, NULL);
    stop_controller(b);
    (void)snprintf(b->address, sizeof b->address, "127.0.0.1:0");
    b->tokens = &tokens;
    if (start_controller(b))
        fail_msg("%s", hd_err_message());
    (void)snprintf(b->address, sizeof b->address, "127.0.0.1:%d", controller_port(b->controller));
}

/* From here on the bench calls with this token. */
static void be(struct bench *b, int who)
{
    const struct hd_rpc_client_options options = {.token = all_tokens[who].token};

    hd_rpc_client_close(b->client);
    assert_int_equal(hd_rpc_client_new(b->rpc, b->address, &options, &b->client), HD_OK);
}

/* A Hello by this token is refused; the reason has these words. */
static void assert_no_node(struct bench *b, int who, const char *name, const char *uuid,
                           const char *words)
{
    struct daemon d = {.b = NULL};

    be(b, who);
    connect_as(&d, b, name, uuid, HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    WAIT_FOR(b, d.done);
    assert_int_equal(d.end, HD_DENIED);
    if (!strstr(d.message, words))
        fail_msg("%s", d.message);
    free_daemon(&d);
}

/* A made-up node would be sent the jobs of others, and be believed. */
static void a_users_token_makes_no_node(void **state)
{
    struct bench b;

    start_port(&b, TOKENS);
    assert_no_node(&b, ANN, "n9", "uuid-9",
                   "this token is a user's (ann), not a node's; give heddled a token of the "
                   "controller's --node-token-file");
    finish(&b);
    start_port(&b, N1); /* as in older days: tokens of users alone */
    assert_no_node(&b, ANN, "n9", "uuid-9",
                   "start heddle-controller with --node-token-file FILE, and heddled with a token "
                   "of that file");
    finish(&b);
}

static void a_nodes_token_submits_nothing(void **state)
{
    struct bench b;
    uint64_t job;
    bool repeated;

    start_port(&b, TOKENS);
    be(&b, N1);
    assert_int_equal(submit_as(&b, "0123456789abcdef", new_spec(&b, 2, ""), &job, &repeated),
                     HD_DENIED);
    assert_tells(hd_err_message(), "node:n1", "--token-file");
    finish(&b);
}

static enum hd_status set_queue(struct bench *b, const char *name, int devices_max,
                                Heddle__V1__SetQueueResponse **ret_response)
{
    Heddle__V1__SetQueueRequest request = HEDDLE__V1__SET_QUEUE_REQUEST__INIT;

    request.name = (char *)(uintptr_t)name;
    request._devices_max_case = HEDDLE__V1__SET_QUEUE_REQUEST___DEVICES_MAX_DEVICES_MAX;
    request.devices_max = devices_max;
    return call(b, "SetQueue", &heddle__v1__set_queue_response__descriptor, &request.base,
                ret_response);
}

/* A user who may lift a limit has none. The controller's user may, through the socket; that, and
 * the limit, outlive the controller. */
static void users_set_no_queues(void **state)
{
    Heddle__V1__ListQueuesRequest list = HEDDLE__V1__LIST_QUEUES_REQUEST__INIT;
    Heddle__V1__ListQueuesResponse *queues = NULL;
    Heddle__V1__SetQueueResponse *response = NULL;
    struct bench b;

    start_port(&b, TOKENS);
    be(&b, ANN);
    assert_int_equal(set_queue(&b, "small", 2, &response), HD_DENIED);
    assert_string_equal(hd_err_message(), "ann is user; SetQueue needs the role admin");
    finish(&b);
    start(&b, NULL);
    assert_int_equal(set_queue(&b, "small", -1, &response), HD_INVALID);
    assert_int_equal(set_queue(&b, "small", 2, &response), HD_OK);
    assert_int_equal(response->queue->devices_max, 2);
    assert_int_equal(response->queue->weight, 1);
    hd_rpc_message_free(&response->base);
    stop_controller(&b);
    assert_int_equal(start_controller(&b), HD_OK);
    assert_int_equal(
        call(&b, "ListQueues", &heddle__v1__list_queues_response__descriptor, &list.base, &queues),
        HD_OK);
    assert_int_equal(queues->n_queues, 2); /* default, and */
    assert_string_equal(queues->queues[1]->name, "small");
    assert_int_equal(queues->queues[1]->devices_max, 2);
    hd_rpc_message_free(&queues->base);
    finish(&b);
}

/* A probe takes all of a node for a while. */
static void users_probe_no_nodes(void **state)
{
    Heddle__V1__ProbeNodeRequest request = HEDDLE__V1__PROBE_NODE_REQUEST__INIT;
    Heddle__V1__ProbeNodeResponse *response = NULL;
    struct bench b;

    start_port(&b, TOKENS);
    be(&b, ANN);
    request.node = (char *)"n1";
    assert_int_equal(call(&b, "ProbeNode", &heddle__v1__probe_node_response__descriptor,
                          &request.base, &response),
                     HD_DENIED);
    assert_string_equal(hd_err_message(), "ann is user; ProbeNode needs the role operator");
    finish(&b);
}

static void a_job_belongs_to_the_name_of_its_token(void **state)
{
    Heddle__V1__CancelJobRequest cancel = HEDDLE__V1__CANCEL_JOB_REQUEST__INIT;
    Heddle__V1__HoldJobRequest hold = HEDDLE__V1__HOLD_JOB_REQUEST__INIT;
    Heddle__V1__ReleaseJobRequest release = HEDDLE__V1__RELEASE_JOB_REQUEST__INIT;
    Heddle__V1__ListJobsRequest list = HEDDLE__V1__LIST_JOBS_REQUEST__INIT;
    Heddle__V1__ListJobsResponse *jobs = NULL;
    ProtobufCMessage *response = NULL;
    struct bench b;

    start_port(&b, TOKENS);
    be(&b, ANN);
    cancel.job = submit(&b, 2);
    list.owner = (char *)"ann";
    assert_int_equal(
        call(&b, "ListJobs", &heddle__v1__list_jobs_response__descriptor, &list.base, &jobs),
        HD_OK);
    assert_int_equal(jobs->n_jobs, 1);
    assert_int_equal(jobs->jobs[0]->job, cancel.job);
    assert_string_equal(jobs->jobs[0]->owner, "ann");
    hd_rpc_message_free(&jobs->base);
    be(&b, BOB);
    (void)submit(&b, 2);
    assert_int_equal(
        call(&b, "ListJobs", &heddle__v1__list_jobs_response__descriptor, &list.base, &jobs),
        HD_OK);
    assert_int_equal(jobs->n_jobs, 0); /* ann's are hidden */
    hd_rpc_message_free(&jobs->base);
    assert_int_equal(call(&b, "CancelJob", &heddle__v1__cancel_job_response__descriptor,
                          &cancel.base, &response),
                     HD_NOT_FOUND);
    assert_string_equal(hd_err_message(), "there is no job 1");
    hold.job = release.job = cancel.job;
    assert_int_equal(
        call(&b, "HoldJob", &heddle__v1__hold_job_response__descriptor, &hold.base, &response),
        HD_NOT_FOUND);
    assert_int_equal(call(&b, "ReleaseJob", &heddle__v1__release_job_response__descriptor,
                          &release.base, &response),
                     HD_NOT_FOUND);
    be(&b, ANN);
    assert_int_equal(call(&b, "CancelJob", &heddle__v1__cancel_job_response__descriptor,
                          &cancel.base, &response),
                     HD_OK);
    hd_rpc_message_free(response);
    finish(&b);
}

static void logs_done(struct hd_rpc_call *c, enum hd_status status, const char *message)
{
    *(enum hd_status *)hd_rpc_call_user(c) = status;
}

/* n2's uuid is known to all who may list nodes; n1's token does not make n2 of it. */
static void a_token_with_a_name_is_for_that_node(void **state)
{
    enum hd_status end = HD_OK;
    const struct hd_rpc_call_options logs = {.path = "/heddle.v1.Fleet/Logs",
                                             .kind = HD_RPC_BIDI,
                                             .response = &heddle__v1__log_request__descriptor,
                                             .handler = {.on_done = logs_done},
                                             .user = &end};
    Heddle__V1__LogChunk chunk = HEDDLE__V1__LOG_CHUNK__INIT;
    struct daemon n1 = {.b = NULL}, n2 = {.b = NULL};
    struct hd_rpc_call *call;
    struct hd_rpc_client *first;
    struct bench b;

    start_port(&b, TOKENS);
    be(&b, ANY);
    connect_as(&n2, &b, "n2", "uuid-2", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    WAIT_FOR(&b, n2.welcome);
    first = b.client; /* n2's stream goes on */
    assert_int_equal(hd_rpc_client_new(
                         b.rpc, b.address,
                         &(struct hd_rpc_client_options){.token = all_tokens[N1].token}, &b.client),
                     HD_OK);
    assert_no_node(&b, N1, "n2", "uuid-7",
                   "the token is that of node n1, not of n2; start heddled with --node-name n1");
    assert_no_node(&b, N1, "n1", "uuid-2",
                   "the token is that of node n1, but the --state-dir is that of node n2");
    chunk.node_uuid = (char *)"uuid-2";
    assert_int_equal(hd_rpc_client_call(b.client, &logs, NULL, &call), HD_OK);
    assert_int_equal(hd_rpc_call_write(call, &chunk.base), HD_OK);
    WAIT_FOR(&b, end);
    assert_int_equal(end, HD_DENIED);
    connect_as(&n1, &b, "n1", "uuid-1", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    WAIT_FOR(&b, n1.welcome);
    assert_false(n2.done);
    free_daemon(&n1);
    free_daemon(&n2);
    hd_rpc_client_close(first);
    finish(&b);
}

/* A request id that was used with another job file is refused; it never returns the job that it was
 * used for. It is its user's: another one's is a job of its own, and hears of nothing. */
static void a_request_id_is_not_answered_with_another_job(void **state)
{
    struct bench b;
    uint64_t first, again;
    bool repeated;

    start_port(&b, TOKENS);
    be(&b, ANN);
    assert_int_equal(submit_as(&b, "0123456789abcdef", new_spec(&b, 2, ""), &first, &repeated),
                     HD_OK);
    assert_int_equal(submit_as(&b, "0123456789abcdef", new_spec(&b, 1, ""), &again, &repeated),
                     HD_EXISTS);
    assert_tells(hd_err_message(), "job 1", "use a new one", "heddle show 1");
    be(&b, BOB);
    assert_int_equal(submit_as(&b, "0123456789abcdef", new_spec(&b, 2, ""), &again, &repeated),
                     HD_OK);
    assert_false(repeated);
    assert_int_not_equal(again, first);
    be(&b, ANN);
    assert_int_equal(submit_as(&b, "0123456789abcdef", new_spec(&b, 2, ""), &again, &repeated),
                     HD_OK);
    assert_true(repeated);
    assert_int_equal(again, first);
    finish(&b);
}

/* Ann's job is hidden from bob: a job of his that were to start after it would tell him that there
 * is such a job, and by its own end how ann's ended. */
static void a_hidden_job_is_nothing_to_wait_for(void **state)
{
    struct bench b;
    uint64_t job;
    bool repeated;

    start_port(&b, TOKENS);
    be(&b, ANN);
    assert_int_equal(submit_as(&b, "0123456789abcdef", new_spec(&b, 2, ""), &job, &repeated),
                     HD_OK);
    assert_int_equal(job, 1);
    be(&b, BOB);
    for (int repeats = 0; repeats < 2; repeats++) { /* job 2: there is none */
        const char *after = repeats ? "after: [2]\n" : "after: [1]\n";
        char message[64];

        (void)snprintf(message, sizeof message, "after: there is no job %d (heddle jobs)",
                       repeats + 1);
        assert_int_equal(submit_as(&b, "fedcba9876543210", new_spec(&b, 2, after), &job, &repeated),
                         HD_NOT_FOUND);
        assert_string_equal(hd_err_message(), message);
    }
    be(&b, ANN);
    assert_int_equal(
        submit_as(&b, "fedcba9876543210", new_spec(&b, 2, "after: [1]\n"), &job, &repeated), HD_OK);
    finish(&b);
}

static void a_removed_node_is_told(void **state)
{
    Heddle__V1__DrainNodeRequest drain = HEDDLE__V1__DRAIN_NODE_REQUEST__INIT;
    Heddle__V1__RemoveNodeRequest request = HEDDLE__V1__REMOVE_NODE_REQUEST__INIT;
    Heddle__V1__RemoveNodeResponse *removed = NULL;
    Heddle__V1__ListNodesRequest list = HEDDLE__V1__LIST_NODES_REQUEST__INIT;
    Heddle__V1__ListNodesResponse *nodes = NULL;
    ProtobufCMessage *response = NULL;
    struct daemon d = {.b = NULL};
    char expected[32], reason[258];
    struct bench b;

    start(&b, NULL);
    join(&d, &b, "n1");
    request.node = drain.node = (char *)"n1";
    memset(reason, 'r', 257); /* one more than the limit */
    reason[257] = '\0';
    drain.reason = reason;
    assert_int_equal(
        call(&b, "DrainNode", &heddle__v1__drain_node_response__descriptor, &drain.base, &response),
        HD_INVALID);
    drain.reason = (char *)"";
    assert_int_equal(call(&b, "RemoveNode", &heddle__v1__remove_node_response__descriptor,
                          &request.base, &response),
                     HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), "n1 is connected"));
    assert_int_equal(
        call(&b, "DrainNode", &heddle__v1__drain_node_response__descriptor, &drain.base, &response),
        HD_OK);
    hd_rpc_message_free(response);
    assert_int_equal(call(&b, "RemoveNode", &heddle__v1__remove_node_response__descriptor,
                          &request.base, &removed),
                     HD_OK);
    assert_string_equal(removed->node, "n1");
    assert_string_equal(removed->node_uuid, "uuid-1");
    hd_rpc_message_free(&removed->base);
    WAIT_FOR(&b, d.done);
    assert_int_equal(d.end, HD_OK);
    (void)snprintf(expected, sizeof expected, "uid:%u", (unsigned)getuid());
    assert_string_equal(d.removed_by, expected);
    assert_int_equal(
        call(&b, "ListNodes", &heddle__v1__list_nodes_response__descriptor, &list.base, &nodes),
        HD_OK);
    assert_int_equal(nodes->n_nodes, 0);
    hd_rpc_message_free(&nodes->base);
    free_daemon(&d);
    finish(&b);
}

RUN_CASES()
