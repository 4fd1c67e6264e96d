/* The real heddled and heddle-supervisor, with stand-ins for ranks: which GPUs heddled offers, and
 * what a probe measures of a node's devices. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent_node.h"
#include "base/file.h"

/* ---- GPUs ---- */

/* Sets the answer of the fake worker: a text, from a file. */
static void answer(const char *text)
{
    char path[160];

    (void)snprintf(path, sizeof path, "%s/driver", stub.root);
    assert_int_equal(hd_file_write_atomic(path, text, strlen(text), 0644), HD_OK);
    assert_int_equal(setenv("FAKE_GPUS", path, 1), 0);
}

/* GPUs of these letters, one of which may be broken; a capital is a slice. */
static void answer_with(const char *letters, const char *broken_uuid)
{
    struct hd_text json = {0};

    hd_text_add(&json, "{\"problem\":\"\",\"log_problem\":\"\",\"libraries\":\"\",\"gpus\":[");
    for (const char *n = letters; *n; n++)
        hd_text_add(&json,
                    "%s{\"uuid\":\"%s-%c\",\"name\":\"G\",\"bus\":\"\",\"problem\":\"%s\","
                    "\"fault\":\"\",\"memory_bytes\":1024,\"fault_at\":0}",
                    n == letters ? "" : ",", *n <= 'Z' ? "MIG" : "GPU", *n,
                    broken_uuid[4] == *n ? "it is broken" : "");
    hd_text_add(&json, "]}");
    answer(json.data);
    hd_text_free(&json);
}

/* GPU-a and GPU-b, one of which may be broken. */
static void answer_with_gpus(const char *broken_uuid)
{
    answer_with("ab", broken_uuid);
}

static void open_with(const char *letters)
{
    stub_open(&stub, 1);
    stub.cuda = true;
    answer_with(letters, "GPU-none");
}

static void open_with_gpus(void)
{
    open_with("ab");
}

static void close_with_gpus(void)
{
    stub_close(&stub);
    assert_int_equal(unsetenv("FAKE_GPUS"), 0);
}

static void ranks_get_the_gpus_of_the_plan(void **state)
{
    open_with_gpus();
    stub_start_node(&stub, 0, "--devices", "cuda+cpu:2:3", NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    assert_int_equal(stub.nodes[0].devices, 4);
    assert_int_equal(stub.nodes[0].gpus, 2);
    assert_int_equal(stub.nodes[0].threads, 1); /* of the host, for a rank on the GPU */
    assert_string_equal(stub.nodes[0].uuids[0], "GPU-a");
    assert_true(stub.nodes[0].numbers[1] == 1 && stub.nodes[0].numbers[2] == 2);
    stub_want(&stub, RUNNING, 2);
    stub_until(&stub, ended(0));
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_COMPLETED);
    stub_ask_log(&stub, 0, 0, 0); /* rank 0 has the second GPU */
    stub_until(&stub, stub.log_answered);
    assert_non_null(strstr(stub.log_text, "sees GPU-b, "));
    close_with_gpus();
    open_with_gpus(); /* behind the second device come CPU devices: no GPU plan may use them */
    stub_start_node(&stub, 0, "--devices", "cuda+cpu:2:3", NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    stub_want(&stub, RUNNING, 4);
    stub_until(&stub, ended(0));
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_LAUNCH_FAILED);
    assert_non_null(
        strstr(stub.nodes[0].end_message, "rank 0 GPU 3, which this node does not offer"));
    close_with_gpus();
}

/* auto offers the cores instead; cuda does not start. */
static void gpus_that_cannot_be_used_are_offered_to_nobody(void **state)
{
    stub_open(&stub, 1);
    answer("{\"problem\":\"no plug-in\",\"log_problem\":\"\",\"libraries\":\"\",\"gpus\":[]}");
    stub_start_node(&stub, 0, "--devices", "auto+cpu:3:1", NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    assert_true(stub.nodes[0].devices == 3 && stub.nodes[0].gpus == 0);
    assert_string_equal(stub.nodes[0].problems[0], "");
    stub_signal_node(&stub, 0, SIGTERM);
    (void)stub_wait_node(&stub, 0);
    stub_start_node(&stub, 0, "--devices", "cuda", NULL);
    assert_int_equal(WEXITSTATUS(stub_wait_node(&stub, 0)), 2);
    close_with_gpus();
}

/* The worker's answer is no list: that does not make a node with GPUs one of cores. */
static void cores_wait_until_the_gpus_are_known(void **state)
{
    stub_open(&stub, 1);
    answer("cannot open the driver");
    stub_start_node(&stub, 0, "--devices", "auto+cpu:2", NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    assert_true(stub.nodes[0].devices == 2 && stub.nodes[0].gpus == 0);
    for (int i = 0; i < 2; i++)
        assert_non_null(
            strstr(stub.nodes[0].problems[i], "it waits until this node's GPUs are known: "));
    answer_with_gpus("GPU-none");
    stub_until(&stub, stub.nodes[0].gpus == 2); /* by itself, after 10 s */
    assert_int_equal(stub.nodes[0].devices, 4);
    for (int i = 0; i < 4; i++)
        assert_string_equal(stub.nodes[0].problems[i], "");
    close_with_gpus();
}

/* Goal: the controller cannot give the GPU that broke to the next job. Method: the driver hangs;
 * the end must not be shown before it has answered, and after the new hello. */
static void the_end_of_an_attempt_waits_for_news_of_its_gpu(void **state)
{
    char broken[200];

    open_with_gpus();
    mode(0, "wait");
    mode(1, "wait");
    assert_int_equal(setenv("FAKE_BROKEN", stub.root, 1), 0);
    stub_start_node(&stub, 0, "--devices", "cuda", NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    stub_want(&stub, RUNNING, 2);
    stub_until(&stub, runs(0) && stub.steps > 0);
    answer("hang");
    (void)snprintf(broken, sizeof broken, "%s/GPU-b", stub.root);
    assert_int_equal(hd_file_write_atomic(broken, "", 0, 0644), HD_OK);
    stub_until(&stub, stub.exits == 2 && is(0, HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_STOPPING));
    stub_run_for(&stub, 700);
    assert_false(ended(0));
    answer_with_gpus("GPU-b");
    stub_signal_node(&stub, 0, SIGHUP); /* instead of waiting until the check is given up */
    stub_until(&stub, ended(0));
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_RANK_EXIT);
    assert_true(stub.nodes[0].hellos >= 2);
    assert_string_equal(stub.nodes[0].problems[1], "it is broken");
    assert_string_equal(stub.nodes[0].problems[0], "");
    assert_int_equal(unsetenv("FAKE_BROKEN"), 0);
    close_with_gpus();
}

/* ---- probes ---- */

static void a_probe_is_answered_when_it_is_asked_for(void **state)
{
    const struct stub_node *node = &stub.nodes[0];

    stub_open(&stub, 1);
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, node->observed_count);
    stub_want(&stub, NOTHING, 0);
    stub_run_for(&stub, 500);
    assert_int_equal(node->probe_reports, 0); /* --probe never */
    stub_ask_probe(&stub, 7);
    stub_until(&stub, node->probe_request == 7);
    assert_string_equal(node->probe_text, "figures");
    assert_string_equal(node->probe_said, "");
    /* a controller that has lost the answer asks again, and nothing is measured again */
    stub_ask_probe(&stub, 7);
    stub_until(&stub, node->probe_reports == 2);
    assert_int_equal(node->probe_request, 7);
    stub_close(&stub);
}

/* Asks the node, on its stream of now, to measure: it does so on these devices. */
static void assert_measures(uint64_t request, const char *devices)
{
    const struct stub_node *node = &stub.nodes[0];

    stub_want(&stub, NOTHING, 0);
    stub_ask_probe(&stub, request);
    stub_until(&stub, node->probe_request == request);
    assert_non_null(strstr(node->probe_on, devices));
}

/* Goal: a driver that is slow at the start does not turn figures of cores into those of GPUs. */
static void a_probe_waits_until_the_gpus_are_known(void **state)
{
    const struct stub_node *node = &stub.nodes[0];

    stub_open(&stub, 1);
    answer("cannot open the driver");
    stub_start_node(&stub, 0, "--devices", "auto+cpu:2", "--probe", "first", NULL);
    stub_until(&stub, node->observed_count);
    stub_want(&stub, NOTHING, 0);
    stub_ask_probe(&stub, 7);
    stub_run_for(&stub, 500);
    assert_int_equal(node->probe_reports, 0);
    answer_with_gpus("GPU-none");
    stub_signal_node(&stub, 0, SIGHUP); /* instead of waiting for the next check */
    stub_until(&stub, node->gpus == 2);
    assert_measures(7, "devices cuda:GPU-a,GPU-b, ");
    close_with_gpus();
}

/* Goal: figures are of the devices that the node has. Method: a GPU comes, then one breaks. */
static void a_gpu_that_comes_later_is_probed(void **state)
{
    const struct stub_node *node = &stub.nodes[0];

    open_with("a");
    stub_start_node(&stub, 0, "--devices", "cuda", NULL);
    stub_until(&stub, node->observed_count);
    assert_measures(7, "devices cuda:GPU-a, ");
    answer_with_gpus("GPU-none");
    stub_signal_node(&stub, 0, SIGHUP);
    stub_until(&stub, node->gpus == 2);
    assert_measures(8, "devices cuda:GPU-a,GPU-b, ");
    assert_string_equal(node->probe_text, "figures");
    answer_with_gpus("GPU-b");
    stub_signal_node(&stub, 0, SIGHUP);
    stub_until(&stub, node->problems[1][0]);
    stub_run_for(&stub, 500);
    assert_string_equal(node->probe_text, "figures");
    close_with_gpus();
}

/* Goal: slices, which do not connect, are not measured together. */
static void of_slices_one_is_probed(void **state)
{
    const struct stub_node *node = &stub.nodes[0];

    open_with("AB");
    stub_start_node(&stub, 0, "--devices", "cuda", NULL);
    stub_until(&stub, node->observed_count);
    assert_measures(7, "devices cuda:MIG-A, ");
    answer_with("ABc", "GPU-none");
    stub_signal_node(&stub, 0, SIGHUP);
    stub_until(&stub, node->gpus == 3);
    assert_measures(8, "devices cuda:GPU-c, ");
    close_with_gpus();
}

/* Goal: a job never shares its devices with a probe, nor waits for one. */
static void an_attempt_ends_a_probe(void **state)
{
    const struct stub_node *node = &stub.nodes[0];

    stub_open(&stub, 1);
    mode(0, "wait");
    mode(1, "wait");
    assert_int_equal(setenv("FAKE_PROBE", "hang", 1), 0);
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, node->observed_count);
    stub_want(&stub, NOTHING, 0);
    stub_ask_probe(&stub, 7);
    stub_run_for(&stub, 500);
    assert_int_equal(node->probe_reports, 0);
    stub_want(&stub, RUNNING, 2);
    stub_until(&stub, runs(0));
    stub_until(&stub, node->probe_request == 7);
    assert_non_null(strstr(node->probe_said, "job 7 has devices of the node"));
    assert_string_equal(node->probe_text, "");
    assert_int_equal(unsetenv("FAKE_PROBE"), 0);
    stop_and_close();
}

/* The controller refuses it before; this is for a job that comes at the same time. */
static void a_probe_is_refused_while_an_attempt_runs(void **state)
{
    const struct stub_node *node = &stub.nodes[0];

    stub_open(&stub, 1);
    mode(0, "wait");
    mode(1, "wait");
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, node->observed_count);
    stub_want(&stub, RUNNING, 2);
    stub_until(&stub, runs(0));
    stub_ask_probe(&stub, 7);
    stub_until(&stub, node->probe_request == 7);
    assert_string_equal(node->probe_text, "");
    assert_non_null(strstr(node->probe_said, "job 7 has devices of the node"));
    stop_and_close();
}

RUN_CASES()
