/* What heddled offers: --devices, held against GPUs that can be used, some of which cannot. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "daemon/agent/devices.h"

enum { CORES = 12 };

static struct hd_gpu_list gpus;
static struct agent_devices devices;
static bool in_use;              /* attempts may use what was offered before */
static struct agent_known known; /* by the node; most cases begin with nothing */

/* So many GPUs, GPU-0 and on, of 1000 bytes and more; `lost` is one that no rank can use, or -1. */
static void have(int count, int lost)
{
    hd_gpu_list_init(&gpus);
    for (int i = 0; i < count; i++) {
        struct hd_gpu *g = &gpus.gpus[gpus.count++];

        hd_gpu_init(g);
        (void)snprintf(g->uuid, sizeof g->uuid, "GPU-%d", i);
        (void)snprintf(g->name, sizeof g->name, "G%d", i);
        g->memory_bytes = 1000 + i;
        if (i == lost)
            (void)snprintf(g->problem, sizeof g->problem, "it is lost");
    }
}

static enum hd_status choose_again(const char *text, bool answered)
{
    struct agent_devices_wish wish;
    enum hd_status st = agent_devices_parse(text, &wish);

    if (st)
        return st;
    return agent_devices_choose(&wish, agent_devices_wants_gpus(&wish) ? &gpus : NULL, answered,
                                CORES, in_use, &known, &devices);
}

static enum hd_status choose(const char *text)
{
    known = (struct agent_known){.count = 0};
    return choose_again(text, true);
}

static void assert_offered(const char *expected)
{
    struct hd_text got = {0};

    for (int i = 0; i < devices.count; i++)
        if (devices.list[i].cuda)
            hd_text_add(&got, "%s%s", i ? " " : "", devices.list[i].uuid);
        else
            hd_text_add(&got, "%scpu:%d", i ? " " : "", devices.list[i].threads);
    assert_string_equal(got.data, expected);
    hd_text_free(&got);
}

/* "GPU-0 GPU-2 cpu:4" */
static void offers(const char *text, const char *expected)
{
    if (choose(text))
        fail_msg("%s", hd_err_message());
    assert_offered(expected);
}

/* On a node that knows what it has offered: "0 GPU-0, 2 GPU-2!, 3 cpu"; one with a problem has a
 * mark. */
static void offers_again(const char *text, bool answered, const char *expected)
{
    struct hd_text got = {0};

    if (choose_again(text, answered))
        fail_msg("%s", hd_err_message());
    for (int i = 0; i < devices.count; i++)
        hd_text_add(&got, "%s%d %s%s", i ? ", " : "", devices.list[i].number,
                    devices.list[i].cuda ? devices.list[i].uuid : "cpu",
                    devices.list[i].problem[0] ? "!" : "");
    assert_string_equal(got.data, expected);
    hd_text_free(&got);
}

/* Nobody has answered; the story is where the caller puts it. */
static void know_nothing(void)
{
    hd_gpu_list_init(&gpus);
    (void)snprintf(gpus.plugin_problem, sizeof gpus.plugin_problem, "no answer in time");
}

static void refused(const char *text, enum hd_status expected, const char *words)
{
    assert_int_equal(choose(text), expected);
    if (!strstr(hd_err_message(), words))
        fail_msg("\"%s\" does not say \"%s\"", hd_err_message(), words);
}

static void without_gpus_the_cores_are_shared_out(void **state)
{
    (void)state;
    have(0, -1);
    (void)snprintf(gpus.nvml_problem, sizeof gpus.nvml_problem, "no driver");
    offers(NULL, "cpu:12");
    assert_string_equal(devices.note, "no GPU can be used: no driver");
    offers("auto", "cpu:12");
    offers("cpu:5", "cpu:2 cpu:2 cpu:2 cpu:2 cpu:2"); /* 12 / 5 */
    assert_string_equal(devices.note, "");
    offers("cpu:2:7", "cpu:7 cpu:7");
    offers("auto+cpu:2", "cpu:6 cpu:6");
    assert_true(devices.list[0].memory_bytes > 0 &&
                devices.list[0].memory_bytes == devices.list[1].memory_bytes);
}

static void gpus_that_can_be_used_come_first(void **state)
{
    (void)state;
    have(3, 1);
    offers(NULL, "GPU-0 GPU-2");
    assert_string_equal(devices.note, "left out: GPU 1 (G1): it is lost");
    assert_string_equal(devices.list[1].name, "G2");
    assert_int_equal(devices.list[1].memory_bytes, 1002);
    assert_true(devices.list[0].bf16);
    offers("cuda", "GPU-0 GPU-2");
    offers("cuda+cpu:1:4", "GPU-0 GPU-2 cpu:4");
    offers("cpu:1:4+auto", "GPU-0 GPU-2 cpu:4");
    offers("cuda:2,0", "GPU-2 GPU-0"); /* as a person orders them */
    offers("cuda:GPU-2", "GPU-2");
    offers("cpu:1", "cpu:12");
}

/* Threads of a GPU's rank: what CPU devices leave of 12 cores, shared, at least 1. */
static void ranks_of_gpus_share_the_cores_that_are_left(void **state)
{
    (void)state;
    have(2, -1);
    offers("cuda", "GPU-0 GPU-1");
    assert_int_equal(devices.list[0].threads, 6);
    offers("cuda+cpu:2:3", "GPU-0 GPU-1 cpu:3 cpu:3");
    assert_int_equal(devices.list[1].threads, 3); /* (12 - 6) / 2 */
    offers("cuda+cpu:1", "GPU-0 GPU-1 cpu:12");
    assert_int_equal(devices.list[1].threads, 1);
    /* beside `auto` cores are for jobs that get no GPU, unless somebody gives them threads */
    offers("auto+cpu:2", "GPU-0 GPU-1 cpu:6 cpu:6");
    assert_int_equal(devices.list[0].threads, 6);
    offers("auto+cpu:2:3", "GPU-0 GPU-1 cpu:3 cpu:3");
    assert_int_equal(devices.list[0].threads, 3);
    have(1, -1);
    offers("cuda:0", "GPU-0");
    assert_int_equal(devices.list[0].threads, 12);
}

static void gpus_that_must_be_there_and_are_not_are_refused(void **state)
{
    (void)state;
    have(3, 1);
    refused("cuda:1", HD_UNSUPPORTED, "GPU 1 (G1) cannot be used: it is lost");
    refused("cuda:3", HD_UNSUPPORTED, "there is no GPU 3; this machine has 3");
    refused("cuda:GPU-x", HD_UNSUPPORTED, "there is no GPU GPU-x");
    refused("cuda:0,GPU-0", HD_INVALID, "named twice");
    (void)snprintf(gpus.plugin_problem, sizeof gpus.plugin_problem, "no plug-in");
    refused("cuda:0", HD_UNSUPPORTED, "cannot be used: no plug-in");
    refused("cuda", HD_UNSUPPORTED, "no GPU can be used: no plug-in; heddled --doctor tells more");
    offers("auto", "cpu:12");
    have(1, 0);
    refused("cuda", HD_UNSUPPORTED, "no GPU can be used: it is lost");
    have(0, -1);
    refused("cuda", HD_UNSUPPORTED, "there is none in this machine");
    (void)snprintf(gpus.nvml_problem, sizeof gpus.nvml_problem, "no driver");
    refused("cuda:0", HD_UNSUPPORTED, "this machine has 0: no driver");
}

static void what_is_not_a_list_of_devices_is_refused(void **state)
{
    static const char *const wrong[] = {
        "",         "gpu",       "gpu:1",   "cpu",       "cpu:",        "cpu:0",
        "cpu:65",   "cpu:1:",    "cpu:1:0", "cpu:1:2:3", "cpu:1+cpu:1", "cuda:",
        "cuda:1,",  "cuda:-1",   "cuda:x",  "auto:1",    "auto+cuda",   "cuda+cuda:0",
        "cuda:0:1", "auto+auto", "+",       "cpu:1+",    "Cuda",        "cuda:1 ,2"};

    (void)state;
    have(3, -1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (choose(wrong[i]) != HD_INVALID)
            fail_msg("\"%s\" is accepted", wrong[i]);
        assert_non_null(strstr(hd_err_message(), "--devices"));
    }
    refused("cuda:1,1", HD_INVALID, "1 stands twice");
    refused("cuda+cpu:64", HD_LIMIT, "67 devices; a node has at most 64");
}

/* ---- from one time to the next ---- */

static void begin_anew(void)
{
    known = (struct agent_known){.count = 0};
}

static void a_number_stays_with_its_device(void **state)
{
    (void)state;
    begin_anew();
    have(4, 1); /* places count, not what can be used */
    offers_again("auto+cpu:2", true, "0 GPU-0, 2 GPU-2, 3 GPU-3, 4 cpu, 5 cpu");
    have(4, -1); /* it is back */
    offers_again("auto+cpu:2", true, "0 GPU-0, 1 GPU-1, 2 GPU-2, 3 GPU-3, 4 cpu, 5 cpu");
    have(4, 0);
    offers_again("auto+cpu:2", true, "1 GPU-1, 2 GPU-2, 3 GPU-3, 0 GPU-0!, 4 cpu, 5 cpu");
    assert_string_equal(agent_devices_at(&devices, 0)->problem, "it is lost");
    /* the driver does not even list it: what was place 1 is place 0 */
    memmove(&gpus.gpus[0], &gpus.gpus[1], 3 * sizeof gpus.gpus[0]);
    gpus.count = 3;
    offers_again("auto+cpu:2", true, "1 GPU-1, 2 GPU-2, 3 GPU-3, 0 GPU-0!, 4 cpu, 5 cpu");
    assert_string_equal(agent_devices_at(&devices, 0)->problem, "it is not there any more");
    /* another order, as CUDA has one, and a new one in the place of the old */
    (void)snprintf(gpus.gpus[0].uuid, sizeof gpus.gpus[0].uuid, "GPU-3");
    (void)snprintf(gpus.gpus[2].uuid, sizeof gpus.gpus[2].uuid, "GPU-x");
    offers_again("cuda", true, "3 GPU-3, 2 GPU-2, 6 GPU-x, 0 GPU-0!, 1 GPU-1!");
    offers_again("cpu:3", true, "4 cpu, 5 cpu, 7 cpu");
    assert_null(agent_devices_at(&devices, 0));
}

/* A number is the one that was given out, and so the same after a restart. */
static void gpus_are_named_by_their_numbers(void **state)
{
    (void)state;
    begin_anew();
    have(3, -1);
    offers_again("cuda:2,0+cpu:1", true, "2 GPU-2, 0 GPU-0, 3 cpu");
    memmove(&gpus.gpus[0], &gpus.gpus[1], 2 * sizeof gpus.gpus[0]);
    gpus.count = 2; /* GPU-0 is gone, the others move up */
    offers_again("cuda:2,0+cpu:1", true, "2 GPU-2, 0 GPU-0!, 3 cpu");
    offers_again("cuda:GPU-0", true, "0 GPU-0!");
}

/* A lost one often tells nothing but that. */
static void a_gpu_without_a_uuid_says_why_one_is_missing(void **state)
{
    (void)state;
    begin_anew();
    have(2, -1);
    offers_again("auto", true, "0 GPU-0, 1 GPU-1");
    have(2, 1);
    gpus.gpus[1].uuid[0] = '\0';
    offers_again("auto", true, "0 GPU-0, 1 GPU-1!");
    assert_string_equal(devices.list[1].problem, "it is not there any more: it is lost");
}

static void a_node_whose_gpus_fail_is_none_of_cores(void **state)
{
    (void)state;
    begin_anew();
    have(1, -1);
    offers_again("auto", true, "0 GPU-0");
    have(1, 0);
    offers_again("auto", true, "0 GPU-0!");
    offers_again("cuda", true, "0 GPU-0!"); /* started again: whoever uses it can be heard */
    know_nothing();
    offers_again("auto", false, "0 GPU-0!");
    assert_string_equal(devices.list[0].problem, "how it fares is not known: no answer in time");
    offers_again("cuda", false, "0 GPU-0!");
    offers_again("auto+cpu:1", false, "0 GPU-0!, 1 cpu"); /* the cores were there before as well */
}

static void cores_wait_until_it_is_known_whether_there_are_gpus(void **state)
{
    (void)state;
    begin_anew();
    know_nothing();
    offers_again("auto", false, "0 cpu!");
    assert_string_equal(devices.list[0].problem,
                        "it waits until this node's GPUs are known: no answer in time");
    offers_again("auto+cpu:2", false, "0 cpu!, 1 cpu!");
    assert_int_equal(choose_again("cuda+cpu:2", false), HD_UNSUPPORTED);
    assert_int_equal(choose_again("cuda:0", false), HD_UNSUPPORTED);
    have(1, -1);
    offers_again("auto+cpu:1", true, "0 GPU-0, 1 cpu"); /* cores that waited have no number yet */
    begin_anew();
    have(0, -1);
    offers_again("auto", true, "0 cpu");
    know_nothing();
    offers_again("auto", false, "0 cpu!"); /* it has one: somebody may use it */
    have(1, -1);
    offers_again("auto+cpu:2", true, "1 GPU-0, 0 cpu, 2 cpu");
    offers_again("cpu:2", true, "0 cpu, 2 cpu"); /* nobody asked for GPUs */
}

/* A job on cores runs, heddled is started again, and the GPUs turn up, or --devices has changed. */
static void cores_in_use_are_held_until_nobody_uses_them(void **state)
{
    (void)state;
    begin_anew();
    have(0, -1);
    offers_again("auto", true, "0 cpu");
    in_use = true;
    offers_again("auto", true, "0 cpu");
    have(2, -1);
    offers_again("auto", true, "1 GPU-0, 2 GPU-1, 0 cpu!");
    assert_string_equal(agent_devices_at(&devices, 0)->problem,
                        "--devices auto gives it no more; what runs on it may end");
    offers_again("auto+cpu:1", true, "1 GPU-0, 2 GPU-1, 0 cpu"); /* given again */
    offers_again("auto+cpu:2", true, "1 GPU-0, 2 GPU-1, 0 cpu, 3 cpu");
    offers_again("cpu:1", true, "0 cpu, 3 cpu!");
    offers_again("cuda", true, "1 GPU-0, 2 GPU-1, 0 cpu!, 3 cpu!");
    assert_true(agent_devices_let_go(&devices));
    assert_offered("GPU-0 GPU-1");
    assert_false(agent_devices_let_go(&devices));
    in_use = false;
    offers_again("cuda", true, "1 GPU-0, 2 GPU-1");
}

static void what_is_known_outlives_heddled_but_not_the_boot(void **state)
{
    const char *tmp = getenv("TMPDIR");
    static struct agent_known back;
    char dir[256], path[300];

    (void)state;
    (void)snprintf(dir, sizeof dir, "%s/known-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    assert_int_equal(agent_known_read(&known, dir, "boot-1"), HD_OK); /* there is none yet */
    have(3, 1);
    offers_again("auto+cpu:1", true, "0 GPU-0, 2 GPU-2, 3 cpu");
    assert_int_equal(agent_known_write(&known), HD_OK);
    assert_int_equal(agent_known_read(&back, dir, "boot-1"), HD_OK);
    assert_memory_equal(&back, &known, sizeof back);
    known = back;
    have(0, -1);
    offers_again("auto+cpu:1", true, "0 GPU-0!, 2 GPU-2!, 3 cpu");
    assert_string_equal(devices.list[1].name, "G2");
    assert_int_equal(devices.list[1].memory_bytes, 1002);
    assert_int_equal(agent_known_read(&known, dir, "boot-2"), HD_OK);
    offers_again("auto+cpu:1", true, "0 cpu");
    (void)snprintf(path, sizeof path, "%s/devices", dir);
    assert_int_equal(hd_file_write_atomic(path, "boot boot-1\ndevice 0 GPU-0", 26, 0600), HD_OK);
    assert_int_equal(agent_known_read(&known, dir, "boot-1"), HD_CORRUPT); /* half a line */
    assert_int_equal(known.count, 0);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

/* Goal: a damaged file does not make the controller refuse the node. Method: bytes that are no text
 * in an id and a name, and a name of 96 bytes, which is cut inside its last character. */
static void what_is_read_is_fit_to_be_sent(void **state)
{
    const char *tmp = getenv("TMPDIR");
    char dir[256], path[300], text[400], name[128];

    (void)state;
    (void)snprintf(dir, sizeof dir, "%s/known-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/devices", dir);
    memset(name, 'x', 94);
    (void)snprintf(name + 94, sizeof name - 94, "\xc3\xa9");
    (void)snprintf(text, sizeof text,
                   "boot boot-1\ndevice 0 GPU-\xff 10 G\x1b\ndevice 1 GPU-b 11 %s\n", name);
    assert_int_equal(hd_file_write_atomic(path, text, strlen(text), 0600), HD_OK);
    assert_int_equal(agent_known_read(&known, dir, "boot-1"), HD_OK);
    assert_int_equal(known.count, 2);
    assert_string_equal(known.list[0].id, "GPU-?");
    assert_string_equal(known.list[0].name, "G?");
    name[94] = '\0';
    assert_string_equal(known.list[1].name, name);
    assert_int_equal(known.list[1].memory_bytes, 11);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_gpus_the_cores_are_shared_out),
        cmocka_unit_test(gpus_that_can_be_used_come_first),
        cmocka_unit_test(ranks_of_gpus_share_the_cores_that_are_left),
        cmocka_unit_test(gpus_that_must_be_there_and_are_not_are_refused),
        cmocka_unit_test(what_is_not_a_list_of_devices_is_refused),
        cmocka_unit_test(a_number_stays_with_its_device),
        cmocka_unit_test(gpus_are_named_by_their_numbers),
        cmocka_unit_test(a_gpu_without_a_uuid_says_why_one_is_missing),
        cmocka_unit_test(a_node_whose_gpus_fail_is_none_of_cores),
        cmocka_unit_test(cores_wait_until_it_is_known_whether_there_are_gpus),
        cmocka_unit_test(cores_in_use_are_held_until_nobody_uses_them),
        cmocka_unit_test(what_is_known_outlives_heddled_but_not_the_boot),
        cmocka_unit_test(what_is_read_is_fit_to_be_sent),
    };
    return cmocka_run_group_tests_name("devices", tests, NULL, NULL);
}
