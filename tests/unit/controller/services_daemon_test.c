/* services: what daemons and their ranks see of a whole controller. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "services_bench.h"
#include "tests/program/test.h"

static void a_daemon_of_another_protocol_hears_both_versions(void **state)
{
    struct bench b;
    struct daemon d = {0};

    start(&b, NULL);
    connect_daemon(&d, &b, "n1", 99);
    WAIT_FOR(&b, d.done);
    assert_int_equal(d.end, HD_CONFLICT);
    assert_non_null(strstr(d.message, "protocol 2 to 2"));
    assert_non_null(strstr(d.message, "99 to 99"));
    free_daemon(&d);
    finish(&b);
}

/* One that says nothing, or a range that overlaps, is served: the command of the release before. */
static void a_command_of_another_protocol_hears_both_versions(void **state)
{
    static const struct {
        const char *client;
        enum hd_status st;
    } cases[] = {{NULL, HD_OK},
                 {"1-2 0.0.9 (commit 0123)", HD_OK},
                 {"2-7 9.8.7", HD_OK},
                 {"1-1 0.0.1", HD_CONFLICT},
                 {"3-4 9.9.9 (commit 4567)", HD_CONFLICT}};
    Heddle__V1__ListJobsRequest request = HEDDLE__V1__LIST_JOBS_REQUEST__INIT;
    struct bench b;

    start(&b, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct hd_rpc_client_options options = {.client = cases[i].client};
        Heddle__V1__ListJobsResponse *response = NULL;

        hd_rpc_client_close(b.client);
        assert_int_equal(hd_rpc_client_new(b.rpc, b.address, &options, &b.client), HD_OK);
        assert_int_equal(call(&b, "ListJobs", &heddle__v1__list_jobs_response__descriptor,
                              &request.base, &response),
                         cases[i].st);
        if (response)
            hd_rpc_message_free(&response->base);
    }
    assert_non_null(strstr(hd_err_message(), "protocol 2 to 2"));
    assert_non_null(strstr(hd_err_message(), "the command (build 9.9.9 (commit 4567)) 3 to 4"));
    finish(&b);
}

static void a_name_belongs_to_one_daemon_and_a_daemon_has_one_stream(void **state)
{
    struct bench b;
    struct daemon d = {0}, other = {0};

    start(&b, NULL);
    join(&d, &b, "n1");
    connect_as(&other, &b, "n1", "uuid-2", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    WAIT_FOR(&b, other.done);
    assert_int_equal(other.end, HD_EXISTS);
    assert_false(d.done);
    free_daemon(&other);
    connect_as(&other, &b, "n1", "uuid-1", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    WAIT_FOR(&b, other.welcome);
    WAIT_FOR(&b, d.done);
    assert_int_equal(d.end, HD_CONFLICT);
    free_daemon(&d);
    free_daemon(&other);
    finish(&b);
}

/* The state directory of a node was copied with its machine. They must not take the node from each
 * other for ever, several times a second, with its attempts lost each time. */
static void a_copy_of_a_node_is_refused_while_the_node_is_there(void **state)
{
    Heddle__V1__Heartbeat beat = HEDDLE__V1__HEARTBEAT__INIT;
    Heddle__V1__ListNodesRequest request = HEDDLE__V1__LIST_NODES_REQUEST__INIT;
    Heddle__V1__ListNodesResponse *nodes = NULL;
    Heddle__V1__ListEventsRequest events = HEDDLE__V1__LIST_EVENTS_REQUEST__INIT;
    Heddle__V1__ListEventsResponse *list = NULL;
    struct daemon d = {.instance = "first"}, copy = {.instance = "copy"}, again = {0};
    int64_t began_ms, said_ms = 0;
    struct bench b;

    start(&b, NULL);
    join(&d, &b, "n1");
    connect_as(&copy, &b, "n1", "uuid-1", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    for (began_ms = hd_clock_now_ms(); !copy.done && hd_clock_now_ms() < began_ms + WAIT_MS;) {
        if (hd_clock_now_ms() > said_ms + 300) {
            say(&d, HEDDLE__V1__NODE_MESSAGE__BODY_HEARTBEAT, &beat);
            said_ms = hd_clock_now_ms();
        }
        (void)uv_run(&b.loop, UV_RUN_ONCE);
    }
    assert_true(copy.done);
    assert_int_equal(copy.end, HD_CONFLICT);
    assert_null(copy.welcome);
    assert_non_null(strstr(copy.message, "has a copy of its --state-dir"));
    assert_false(d.done);
    free_daemon(&copy);
    assert_int_equal(
        call(&b, "ListNodes", &heddle__v1__list_nodes_response__descriptor, &request.base, &nodes),
        HD_OK);
    assert_non_null(strstr(nodes->nodes[0]->reason, "has a copy of this node's --state-dir"));
    hd_rpc_message_free(&nodes->base);
    assert_int_equal(
        call(&b, "ListEvents", &heddle__v1__list_events_response__descriptor, &events.base, &list),
        HD_OK);
    assert_string_equal(list->events[list->n_events - 1]->kind, "copy_refused");
    hd_rpc_message_free(&list->base);

    /* heddled is started again: at once, when the older stream has ended */
    again.instance = "second";
    connect_as(&again, &b, "n1", "uuid-1", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    began_ms = hd_clock_now_ms();
    hd_rpc_call_cancel(d.call);
    WAIT_FOR(&b, again.welcome);
    assert_true(hd_clock_now_ms() < began_ms + 5000);
    free_daemon(&d);

    /* and when nothing comes from it any more: its machine has lost power */
    d = (struct daemon){.instance = "third"};
    connect_as(&d, &b, "n1", "uuid-1", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    WAIT_FOR(&b, d.welcome && again.done);
    assert_int_equal(again.end, HD_CONFLICT);
    free_daemon(&again);
    free_daemon(&d);
    finish(&b);
}

static void a_heartbeat_is_answered_and_a_node_is_listed(void **state)
{
    const int64_t began_ms = hd_clock_now_ms();
    struct bench b;
    struct daemon d = {0};
    Heddle__V1__Heartbeat beat = HEDDLE__V1__HEARTBEAT__INIT;
    Heddle__V1__ListNodesRequest request = HEDDLE__V1__LIST_NODES_REQUEST__INIT;
    Heddle__V1__ListNodesResponse *response = NULL;

    start(&b, NULL);
    join(&d, &b, "n1");
    beat.nonce = 77;
    say(&d, HEDDLE__V1__NODE_MESSAGE__BODY_HEARTBEAT, &beat);
    WAIT_FOR(&b, d.answered == 77);
    assert_int_equal(call(&b, "ListNodes", &heddle__v1__list_nodes_response__descriptor,
                          &request.base, &response),
                     HD_OK);
    assert_int_equal(response->n_nodes, 1);
    assert_string_equal(response->nodes[0]->name, "n1");
    assert_int_equal(response->nodes[0]->state, HEDDLE__V1__NODE_STATE__NODE_STATE_READY);
    assert_true(response->nodes[0]->jobs_dir_visible);
    assert_null(strstr(d.welcome->jobs_dir, "/..")); /* or no checkpoint there would count */
    assert_string_equal(response->nodes[0]->data_address, "10.0.0.3");
    assert_int_equal(response->nodes[0]->n_devices, 2);
    hd_rpc_message_free(&response->base);

    /* its heddled is stopped: it takes no jobs, from the first moment on */
    hd_rpc_call_cancel(d.call);
    WAIT_FOR(&b, d.done);
    for (int state_now = HEDDLE__V1__NODE_STATE__NODE_STATE_READY;
         state_now == HEDDLE__V1__NODE_STATE__NODE_STATE_READY;) {
        assert_int_equal(call(&b, "ListNodes", &heddle__v1__list_nodes_response__descriptor,
                              &request.base, &response),
                         HD_OK);
        state_now = (int)response->nodes[0]->state;
        if (state_now == HEDDLE__V1__NODE_STATE__NODE_STATE_UNREACHABLE)
            assert_non_null(strstr(response->nodes[0]->reason, "without its heddled for "));
        hd_rpc_message_free(&response->base);
        assert_true(hd_clock_now_ms() < began_ms + 10000); /* 15 s is the silence of any node */
    }
    free_daemon(&d);
    finish(&b);
}

#define FILE_OF_SWITCHES                                                                     \
    "nodes: n[1-4]\ndevices_per_node: 4\ndevice: l4\n"                                       \
    "tiers: [{name: leaf, nodes: 2, bandwidth: 10GB/s}, {name: spine, nodes: 4, bandwidth: " \
    "5GB/s}]\n"

/* Four devices, of which 0 and 2, and 1 and 3, are under one switch each. */
struct said {
    Heddle__V1__NodeInventory inventory;
    Heddle__V1__DeviceLink links[6], *pointers[6];
};

static void say_two_switches(struct said *s)
{
    int count = 0;

    heddle__v1__node_inventory__init(&s->inventory);
    s->inventory.taken_unix_ms = 1000;
    for (int b = 1; b < 4; b++)
        for (int a = 0; a < b; a++) {
            Heddle__V1__DeviceLink *l = &s->links[count];

            heddle__v1__device_link__init(l);
            l->a = a;
            l->b = b;
            l->kind = (char *)(a % 2 == b % 2 ? "pix" : "sys");
            l->bytes_per_s = a % 2 == b % 2 ? 13e9 : 9e9;
            s->pointers[count++] = l;
        }
    s->inventory.links = s->pointers;
    s->inventory.n_links = (size_t)count;
}

static Heddle__V1__GetTopologyResponse *get_topology(struct bench *b, const char *node)
{
    Heddle__V1__GetTopologyRequest request = HEDDLE__V1__GET_TOPOLOGY_REQUEST__INIT;
    Heddle__V1__GetTopologyResponse *response = NULL;

    request.node = (char *)(uintptr_t)node;
    if (call(b, "GetTopology", &heddle__v1__get_topology_response__descriptor, &request.base,
             &response))
        fail_msg("%s", hd_err_message());
    return response;
}

/* From the hello of a daemon to what it is to launch: tp 2 has the devices under one switch. */
static void the_launch_obeys_the_links_of_the_node(void **state)
{
    static const int expected[] = {0, 2, 1, 3};
    const Heddle__V1__Plan *plan;
    struct bench b;
    struct daemon d = {0};
    struct said said;
    bool repeated;
    uint64_t job;

    say_two_switches(&said);
    start(&b, NULL);
    b.devices = 4;
    b.inventory = &said.inventory;
    join(&d, &b, "n1");
    assert_int_equal(submit_as(&b, "request-of-four-ranks", new_spec(&b, 4, "parallel: {tp: 2}\n"),
                               &job, &repeated),
                     HD_OK);
    WAIT_FOR(&b, d.desired && d.desired->desired->n_attempts == 1);
    plan = d.desired->desired->attempts[0]->plan;
    assert_int_equal(plan->n_ranks, 4);
    for (int r = 0; r < 4; r++)
        assert_int_equal(plan->ranks[r]->device, expected[r]);
    free_daemon(&d);
    finish(&b);
}

static void topology_is_what_the_file_and_the_nodes_say(void **state)
{
    Heddle__V1__GetTopologyResponse *t;
    struct bench b;
    struct daemon d = {0}, other = {0};
    struct said said;
    char path[128];

    say_two_switches(&said);
    start(&b, NULL);
    stop_controller(&b);
    (void)snprintf(path, sizeof path, "%s/cluster.yaml", b.dir);
    assert_int_equal(hd_file_write_atomic(path, FILE_OF_SWITCHES, strlen(FILE_OF_SWITCHES), 0644),
                     HD_OK);
    b.cluster_file = path;
    assert_int_equal(start_controller(&b), HD_OK);
    b.devices = 4;
    b.inventory = &said.inventory;
    join(&d, &b, "n3");
    said.links[2].b = 99; /* what makes no sense is shown, and not placed by */
    connect_as(&other, &b, "x", "uuid-x", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    WAIT_FOR(&b, other.welcome);
    t = get_topology(&b, "");
    assert_string_equal(t->cluster_file, path);
    assert_int_equal(t->n_tiers, 2);
    assert_string_equal(t->tiers[1]->name, "spine");
    assert_int_equal(t->tiers[1]->nodes, 4);
    assert_int_equal(t->n_nodes, 2);
    assert_string_equal(t->nodes[0]->node, "n3");
    assert_int_equal(t->nodes[0]->n_switches, 2);
    assert_int_equal(t->nodes[0]->switches[0], 1);
    assert_int_equal(t->nodes[0]->switches[1], 0);
    assert_int_equal(t->nodes[0]->n_devices, 4);
    assert_int_equal(t->nodes[0]->inventory->n_links, 6);
    assert_int_equal(t->nodes[0]->inventory->taken_unix_ms, 1000);
    assert_string_equal(t->nodes[1]->node, "x");
    assert_int_equal(t->nodes[1]->n_switches, 0); /* the file does not name it */
    hd_rpc_message_free(&t->base);
    t = get_topology(&b, "x");
    assert_int_equal(t->n_nodes, 1);
    hd_rpc_message_free(&t->base);
    free_daemon(&d);
    free_daemon(&other);
    finish(&b);
}

static void put(struct daemon *d, uint64_t job, int32_t rank, const char *value)
{
    Heddle__V1__RendezvousPut m = HEDDLE__V1__RENDEZVOUS_PUT__INIT;

    m.job = job;
    m.attempt = 1;
    m.rank = rank;
    m.value.data = (uint8_t *)(uintptr_t)value;
    m.value.len = strlen(value);
    say(d, HEDDLE__V1__NODE_MESSAGE__BODY_RENDEZVOUS_PUT, &m);
}

static void ranks_meet_when_the_last_one_is_there(void **state)
{
    struct bench b;
    struct daemon d = {0};
    Heddle__V1__Heartbeat beat = HEDDLE__V1__HEARTBEAT__INIT;
    char large[5000];
    uint64_t job;

    start(&b, NULL);
    join(&d, &b, "n1");
    job = submit(&b, 2);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    put(&d, job, 1, "card of 1");
    beat.nonce = 1;
    say(&d, HEDDLE__V1__NODE_MESSAGE__BODY_HEARTBEAT, &beat);
    WAIT_FOR(&b, d.answered == 1);
    assert_int_equal(d.sets, 0);
    put(&d, job, 0, "card of 0");
    WAIT_FOR(&b, d.sets == 1);
    assert_int_equal(d.set->rendezvous_set->n_values, 2);
    assert_memory_equal(d.set->rendezvous_set->values[0].data, "card of 0", 9);
    assert_memory_equal(d.set->rendezvous_set->values[1].data, "card of 1", 9);
    put(&d, job, 0, "card of 0"); /* after a reconnect: answered again */
    WAIT_FOR(&b, d.sets == 2);
    memset(large, 'x', sizeof large - 1);
    large[sizeof large - 1] = 0;
    put(&d, job, 0, large);
    WAIT_FOR(&b, d.done);
    assert_int_equal(d.end, HD_LIMIT);
    free_daemon(&d);
    finish(&b);
}

enum { MANY_NODES = 64, MANY_RANKS = MANY_NODES * DEVICES_MAX, CARD = 288 /* of a rank */ };

/* The value of a rank, of the size of a worker's. */
static void card_of(int rank, char ret_card[CARD + 1])
{
    (void)snprintf(ret_card, CARD + 1, "%0*d", CARD, rank);
}

static void has_all_cards(const Heddle__V1__RendezvousSet *set)
{
    char card[CARD + 1];

    assert_int_equal(set->n_values, MANY_RANKS);
    for (int r = 0; r < MANY_RANKS; r++) {
        card_of(r, card);
        assert_int_equal(set->values[r].len, CARD);
        assert_memory_equal(set->values[r].data, card, CARD);
    }
}

/* The largest world, 4096 ranks on 64 nodes: every node hears all, and none before the last. */
/* When the controller has answered a call, it has heard what was said before. */
static void none_has_a_set(struct bench *b, const struct daemon *nodes)
{
    Heddle__V1__ListNodesRequest request = HEDDLE__V1__LIST_NODES_REQUEST__INIT;
    Heddle__V1__ListNodesResponse *response = NULL;

    for (int i = 0; i < 3; i++) {
        assert_int_equal(call(b, "ListNodes", &heddle__v1__list_nodes_response__descriptor,
                              &request.base, &response),
                         HD_OK);
        hd_rpc_message_free(&response->base);
    }
    for (int i = 0; i < MANY_NODES; i++)
        assert_int_equal(nodes[i].sets, 0);
}

static void four_thousand_ranks_meet(void **state)
{
    static struct daemon nodes[MANY_NODES];
    Heddle__V1__Plan *plan;
    struct bench b;
    char name[16], uuid[16], card[CARD + 1];
    uint64_t job;

    start(&b, NULL);
    for (int i = 0; i < MANY_NODES; i++) {
        nodes[i] = (struct daemon){.devices = DEVICES_MAX};
        (void)snprintf(name, sizeof name, "n%d", i);
        (void)snprintf(uuid, sizeof uuid, "uuid-%d", i);
        join_as(&nodes[i], &b, name, uuid);
    }
    job = submit(&b, MANY_RANKS);
    for (int i = 0; i < MANY_NODES; i++)
        WAIT_FOR(&b, nodes[i].desired->desired->n_attempts == 1);
    plan = nodes[0].desired->desired->attempts[0]->plan;
    assert_int_equal(plan->n_ranks, MANY_RANKS);
    for (int r = 0; r < MANY_RANKS; r++) {
        int node;

        assert_int_equal(sscanf(plan->ranks[r]->node_uuid, "uuid-%d", &node), 1);
        if (r == MANY_RANKS - 1)
            none_has_a_set(&b, nodes);
        card_of(r, card);
        put(&nodes[node], job, r, card);
    }
    for (int i = 0; i < MANY_NODES; i++) {
        WAIT_FOR(&b, nodes[i].sets == 1);
        has_all_cards(nodes[i].set->rendezvous_set);
    }
    for (int i = 0; i < MANY_NODES; i++)
        free_daemon(&nodes[i]);
    finish(&b);
}

/* A checkpoint outside its attempt's folder would be deleted one day. */
static void a_checkpoint_elsewhere_is_ignored(void **state)
{
    struct bench b;
    struct daemon d = {0};
    Heddle__V1__ListCheckpointsRequest request = HEDDLE__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    Heddle__V1__ListCheckpointsResponse *response = NULL;
    char dir[256];

    start(&b, NULL);
    join(&d, &b, "n1");
    request.job = submit(&b, 2);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    observe(&d, request.job, HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_RUNNING, NULL);
    send_checkpoint(&d, request.job, 1, 1, "/etc");
    (void)snprintf(dir, sizeof dir, "%s/../../../..",
                   d.desired->desired->attempts[0]->checkpoint_dir);
    send_checkpoint(&d, request.job, 2, 2, dir);
    send_checkpoint(&d, request.job, 3, 3, d.desired->desired->attempts[0]->checkpoint_dir);
    WAIT_FOR(&b, d.acked == 3);
    assert_int_equal(call(&b, "ListCheckpoints", &heddle__v1__list_checkpoints_response__descriptor,
                          &request.base, &response),
                     HD_OK);
    assert_int_equal(response->n_checkpoints, 1);
    assert_int_equal(response->checkpoints[0]->step, 3);
    hd_rpc_message_free(&response->base);
    free_daemon(&d);
    finish(&b);
}

RUN_CASES()
