/* services: a probe from the question of a user to the figures that everybody sees. */
#include <stdio.h>
#include <string.h>

#include "plan/calibration.h"
#include "services_bench.h"
#include "tests/program/test.h"

/* Returns the results of a node of two devices on 2026-11-24; build NULL: of this build. */
static struct hd_text a_calibration(const char *build)
{
    const struct hd_calibration_device each[] = {{4e10, 8e10, 4e9}, {5e10, 7e10, 3e9}};
    const struct hd_calibration_pair pair = {0, 1, 2e-6, 1e10};
    struct hd_calibration cal = {
        .threads = 3, .devices = 2, .made_unix_s = 1795500000, .checkpoint_bytes_per_s = 2e8};
    struct hd_text text = {0};
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    (void)strcpy(cal.device, "cpu");
    (void)snprintf(cal.engine, sizeof cal.engine, "shm");
    hd_calibration_build(cal.build);
    if (build)
        (void)snprintf(cal.build, sizeof cal.build, "%s", build);
    assert_int_equal(hd_calibration_set_devices(&cal, &arena, each, 2, &pair, 1), HD_OK);
    assert_int_equal(
        hd_calibration_add_collective(&cal, &arena, HD_COMM_ALL_GATHER, 2, 1000, 20e-6), HD_OK);
    assert_int_equal(
        hd_calibration_add_collective(&cal, &arena, HD_COMM_ALL_GATHER, 2, 101000, 120e-6), HD_OK);
    hd_calibration_write(&cal, &text);
    hd_arena_done(&arena);
    return text;
}

/* Returns the results of four devices, of which the last is a fifth slower than the others. */
static struct hd_text a_calibration_of_four(void)
{
    const struct hd_calibration_device each[] = {
        {5e10, 5e10, 3e9}, {5e10, 5e10, 3e9}, {5e10, 5e10, 3e9}, {4e10, 5e10, 3e9}};
    struct hd_calibration cal = {.threads = 3, .devices = 4, .made_unix_s = 1795500000};
    struct hd_text text = {0};
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    hd_calibration_build(cal.build);
    assert_int_equal(hd_calibration_set_devices(&cal, &arena, each, 4, NULL, 0), HD_OK);
    hd_calibration_write(&cal, &text);
    hd_arena_done(&arena);
    return text;
}

static void probe(struct bench *b)
{
    Heddle__V1__ProbeNodeRequest request = HEDDLE__V1__PROBE_NODE_REQUEST__INIT;
    Heddle__V1__ProbeNodeResponse *response = NULL;

    request.node = (char *)"n1";
    if (call(b, "ProbeNode", &heddle__v1__probe_node_response__descriptor, &request.base,
             &response))
        fail_msg("%s", hd_err_message());
    assert_true(response->probe->pending);
    hd_rpc_message_free(&response->base);
}

static Heddle__V1__GetTopologyResponse *topology(struct bench *b)
{
    Heddle__V1__GetTopologyRequest request = HEDDLE__V1__GET_TOPOLOGY_REQUEST__INIT;
    Heddle__V1__GetTopologyResponse *response = NULL;

    if (call(b, "GetTopology", &heddle__v1__get_topology_response__descriptor, &request.base,
             &response))
        fail_msg("%s", hd_err_message());
    assert_int_equal(response->n_nodes, 1);
    return response;
}

/* Whether the node has answered. */
static bool is_answered(struct bench *b)
{
    Heddle__V1__GetTopologyResponse *t = topology(b);
    const bool answered = t->nodes[0]->probe && !t->nodes[0]->probe->pending;

    hd_rpc_message_free(&t->base);
    return answered;
}

static bool is_silent(struct bench *b)
{
    Heddle__V1__GetTopologyResponse *t = topology(b);
    const bool silent = t->nodes[0]->silent_ms > 0;

    hd_rpc_message_free(&t->base);
    return silent;
}

/* problem "": it has measured this; else the text is what it had before. */
static void answer_with(struct daemon *d, const char *text, const char *problem)
{
    Heddle__V1__ProbeReport report = HEDDLE__V1__PROBE_REPORT__INIT;

    report.request = d->probe;
    report.ended_unix_ms = 1795500001000;
    report.measured_on = (char *)"this build";
    report.problem = (char *)(uintptr_t)problem;
    report.calibration.data = (uint8_t *)(uintptr_t)text;
    report.calibration.len = strlen(text);
    say(d, HEDDLE__V1__NODE_MESSAGE__BODY_PROBE_REPORT, &report);
}

static void answer(struct daemon *d, const char *text)
{
    answer_with(d, text, "");
}

static void connect_again(struct daemon *d, struct bench *b)
{
    connect_daemon(d, b, "n1", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    WAIT_FOR(b, d->welcome);
}

static void assert_figures(struct bench *b)
{
    Heddle__V1__GetTopologyResponse *t = topology(b);
    const Heddle__V1__NodeProbe *p = t->nodes[0]->probe;

    assert_non_null(p);
    assert_string_equal(p->problem, "");
    assert_string_equal(p->measured_on, "this build");
    assert_int_equal(p->measured_unix_ms, 1795500000000);
    assert_int_equal(p->n_devices, 2);
    assert_int_equal(p->devices[1]->device, 1);
    assert_true(p->devices[1]->single_flops == 5e10 && p->devices[1]->memory_bytes_per_s == 3e9);
    assert_int_equal(p->n_pairs, 1);
    assert_true(p->pairs[0]->latency_s == 2e-6 && p->pairs[0]->bytes_per_s == 1e10);
    assert_int_equal(p->n_collectives, 1);
    assert_string_equal(p->collectives[0]->kind, "all_gather");
    assert_true(p->collectives[0]->alpha_s == 20e-6);
    assert_true(p->checkpoint_bytes_per_s == 2e8);
    hd_rpc_message_free(&t->base);
}

/* The question reaches the daemon, once more on a new stream; the answer outlives the controller,
 * and is not asked of the daemon again. */
static void a_probe_goes_its_way(void **state)
{
    struct hd_text text = a_calibration(NULL);
    struct daemon d = {0};
    struct bench b;
    uint64_t question;

    start(&b, NULL);
    join(&d, &b, "n1");
    assert_int_equal(d.welcome->probe_unix_ms, 0);
    probe(&b);
    WAIT_FOR(&b, d.probe);
    question = d.probe;
    assert_false(is_silent(&b));
    free_daemon(&d);
    WAIT_FOR(&b, is_silent(&b));
    connect_again(&d, &b);
    assert_false(is_silent(&b));
    WAIT_FOR(&b, d.probe);
    assert_int_equal(d.probe, question);
    assert_false(is_answered(&b));
    answer(&d, text.data);
    WAIT_FOR(&b, is_answered(&b));
    assert_figures(&b);
    free_daemon(&d);
    stop_controller(&b);
    assert_int_equal(start_controller(&b), HD_OK);
    assert_figures(&b);
    connect_again(&d, &b);
    assert_int_equal(d.welcome->probe_unix_ms, 1795500001000);
    assert_int_equal(d.probe, 0);
    free_daemon(&d);
    finish(&b);
    hd_text_free(&text);
}

/* Kernels of another build take other times; and a node may say anything. */
static void what_is_no_calibration_is_said_and_not_used(void **state)
{
    struct hd_text other = a_calibration("1-of-before");
    const struct {
        const char *text, *says;
    } cases[] = {{"{\"kind\":\"Plan\"}", "it is a 'Plan', not a Calibration"},
                 {other.data, "another build of Heddle has measured it (1-of-before,"}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Heddle__V1__GetTopologyResponse *t;
        struct daemon d = {0};
        struct bench b;

        start(&b, NULL);
        join(&d, &b, "n1");
        probe(&b);
        WAIT_FOR(&b, d.probe);
        answer(&d, cases[i].text);
        WAIT_FOR(&b, is_answered(&b));
        t = topology(&b);
        assert_non_null(strstr(t->nodes[0]->probe->problem, "its calibration is of no use"));
        assert_non_null(strstr(t->nodes[0]->probe->problem, cases[i].says));
        assert_int_equal(t->nodes[0]->probe->measured_unix_ms, 0);
        assert_int_equal(t->nodes[0]->probe->n_devices, 0);
        hd_rpc_message_free(&t->base);
        assert_false(d.done); /* the stream goes on */
        free_daemon(&d);
        finish(&b);
    }
    hd_text_free(&other);
}

/* Goal: the user sees why the probe failed that was just made, not only what is wrong with an older
 * result, which comes with each answer. */
static void a_failure_is_said_beside_a_calibration_of_no_use(void **state)
{
    struct hd_text other = a_calibration("1-of-before");
    Heddle__V1__GetTopologyResponse *t;
    struct daemon d = {0};
    struct bench b;

    start(&b, NULL);
    join(&d, &b, "n1");
    probe(&b);
    WAIT_FOR(&b, d.probe);
    answer_with(&d, other.data, "no memory for products");
    WAIT_FOR(&b, is_answered(&b));
    t = topology(&b);
    assert_non_null(strstr(t->nodes[0]->probe->problem,
                           "no memory for products; and its older calibration is of no use: "
                           "another build of Heddle has measured it (1-of-before,"));
    hd_rpc_message_free(&t->base);
    free_daemon(&d);
    finish(&b);
    hd_text_free(&other);
}

static void a_slow_device_is_shown_as_such(void **state)
{
    struct hd_text text = a_calibration_of_four();
    Heddle__V1__GetTopologyResponse *t;
    struct daemon d = {0};
    struct bench b;

    start(&b, NULL);
    b.devices = 4;
    join(&d, &b, "n1");
    answer(&d, text.data);
    WAIT_FOR(&b, is_answered(&b));
    t = topology(&b);
    assert_int_equal(t->nodes[0]->probe->n_devices, 4);
    assert_string_equal(t->nodes[0]->probe->devices[0]->slow, "");
    assert_string_equal(t->nodes[0]->probe->devices[3]->slow,
                        "fp32 products at 40 of 50 GFLOP/s, the median of 4 such devices");
    hd_rpc_message_free(&t->base);
    free_daemon(&d);
    finish(&b);
    hd_text_free(&text);
}

static enum hd_status plan_job(struct bench *b, Heddle__V1__JobSpec *spec, struct hd_text *ret_plan)
{
    Heddle__V1__PlanJobRequest request = HEDDLE__V1__PLAN_JOB_REQUEST__INIT;
    Heddle__V1__PlanJobResponse *response = NULL;
    enum hd_status st;

    request.spec = spec;
    st = call(b, "PlanJob", &heddle__v1__plan_job_response__descriptor, &request.base, &response);
    if (st)
        return st;
    hd_text_add(ret_plan, "%s", response->plan);
    hd_rpc_message_free(&response->base);
    return HD_OK;
}

/* Two nodes of two H100: the controller plans for four of them, beside its loop, and starts
 * nothing. A job of CPU devices has no devices whose speed is known; one of eight asks for more
 * than there are. */
static void a_job_is_planned_for_the_nodes_that_are_there(void **state)
{
    struct daemon one = {0}, two = {0};
    struct hd_text plan = {0};
    Heddle__V1__JobSpec *spec;
    struct bench b;

    start(&b, NULL);
    b.gpu = "NVIDIA H100 80GB HBM3";
    join_as(&one, &b, "n1", "uuid-1");
    join_as(&two, &b, "n2", "uuid-2");
    spec = new_spec(&b, 4, "");
    assert_int_equal(plan_job(&b, spec, &plan), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "heddle probe NODE measures those"));
    spec->resources->device = HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CUDA;
    if (plan_job(&b, spec, &plan))
        fail_msg("%s", hd_err_message());
    assert_non_null(strstr(plan.data, "\"kind\":\"Plan\""));
    assert_non_null(strstr(plan.data, "\"device\":\"h100\",\"devices\":4,\"devices_per_node\":2"));
    assert_non_null(strstr(plan.data, "\"chosen\":{\"layout\":{"));
    assert_non_null(strstr(plan.data, "\"fits\":true"));
    spec = new_spec(&b, 8, "");
    spec->resources->device = HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CUDA;
    assert_int_equal(plan_job(&b, spec, &plan), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "the largest group of equal devices in this cluster "
                                             "has 4"));
    free_daemon(&one);
    free_daemon(&two);
    finish(&b);
    hd_text_free(&plan);
}

RUN_CASES()
