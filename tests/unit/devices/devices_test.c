/* Goal: the devices that heddled offers: --devices, held against GPUs, some of which cannot be
 * used; and the number of each device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "daemon/devices/devices.h"
#include "tests/program/tells.h"
#include "tests/program/test.h"

enum { CORES = 12 };

static struct hd_gpu_list gpus;
static struct hd_devices devices;
static struct hd_numbers numbers;

/* So many GPUs, GPU-0 and on, of 1000 bytes and more; `broken`: one that no rank can use, or -1. */
static void have(int count, int broken)
{
    memset(&gpus, 0, sizeof gpus);
    for (int i = 0; i < count; i++) {
        struct hd_gpu *g = &gpus.gpus[gpus.count++];

        (void)snprintf(g->uuid, sizeof g->uuid, "GPU-%d", i);
        (void)snprintf(g->name, sizeof g->name, "G%d", i);
        g->memory_bytes = 1000 + i;
        if (i == broken)
            (void)snprintf(g->problem, sizeof g->problem, "it is broken");
    }
}

static void have_none(const char *problem)
{
    have(0, -1);
    (void)snprintf(gpus.problem, sizeof gpus.problem, "%s", problem);
}

static enum hd_status choose(const char *text, bool answered)
{
    struct hd_device_selection selection;
    enum hd_status st = hd_device_selection_parse(text, &selection);

    return st ? st : hd_devices_choose(&selection, &gpus, answered, CORES, &numbers, &devices);
}

/* "0 GPU-0, 2 GPU-2!, 3 cpu:6": number, UUID or threads; ! is a device with a problem. */
static void offers(const char *text, const char *expected)
{
    struct hd_text got = {0};

    if (choose(text, true))
        fail_msg("%s", hd_err_message());
    for (int i = 0; i < devices.count; i++) {
        const struct hd_device *d = &devices.list[i];

        hd_text_add(&got, "%s%d ", i ? ", " : "", d->number);
        if (d->cuda)
            hd_text_add(&got, "%s%s", d->uuid, d->problem[0] ? "!" : "");
        else
            hd_text_add(&got, "cpu:%d%s", d->threads, d->problem[0] ? "!" : "");
    }
    assert_string_equal(got.data, expected);
    hd_text_free(&got);
}

/* Checks the offer of a node that has offered nothing yet. */
static void offers_first(const char *text, const char *expected)
{
    numbers.count = 0;
    offers(text, expected);
}

static void refused(const char *text, enum hd_status expected, const char *words)
{
    numbers.count = 0;
    assert_int_equal(choose(text, true), expected);
    if (!strstr(hd_err_message(), words))
        fail_msg("\"%s\" does not say \"%s\"", hd_err_message(), words);
}

static void without_gpus_the_cores_are_shared_out(void **state)
{
    have_none("no driver");
    offers_first(NULL, "0 cpu:12");
    assert_string_equal(devices.note, "no GPU can be used: no driver");
    offers_first("cpu:5", "0 cpu:2, 1 cpu:2, 2 cpu:2, 3 cpu:2, 4 cpu:2"); /* 12 / 5 */
    assert_string_equal(devices.note, "");
    offers_first("cpu:2:7", "0 cpu:7, 1 cpu:7");
    offers_first("auto+cpu:2", "0 cpu:6, 1 cpu:6");
    assert_true(devices.list[0].memory_bytes > 0 &&
                devices.list[0].memory_bytes == devices.list[1].memory_bytes);
    have(2, -1); /* listed, but Heddle was built without CUDA */
    (void)snprintf(gpus.problem, sizeof gpus.problem, "no plug-in");
    offers_first("auto", "0 cpu:12");
    have(1, 0);
    offers_first("auto", "0 cpu:12");
    assert_string_equal(devices.note, "no GPU can be used: it is broken");
}

static void a_gpu_that_cannot_be_used_is_shown_with_its_problem(void **state)
{
    have(3, 1);
    offers_first(NULL, "0 GPU-0, 1 GPU-1!, 2 GPU-2");
    assert_string_equal(devices.list[1].problem, "it is broken");
    assert_string_equal(devices.list[2].name, "G2");
    assert_int_equal(devices.list[2].memory_bytes, 1002);
    assert_true(devices.list[0].bf16 && devices.gpu_count == 3);
    offers_first("cuda", "0 GPU-0, 1 GPU-1!, 2 GPU-2");
    offers_first("cpu:1:4+auto", "0 GPU-0, 1 GPU-1!, 2 GPU-2, 3 cpu:4");
    offers_first("cuda:2,0+cpu:1:4", "0 GPU-0, 2 GPU-2, 3 cpu:4");
    offers_first("cuda:1,2", "1 GPU-1!, 2 GPU-2");
    offers_first("cuda:GPU-2", "2 GPU-2");
    offers_first("cpu:1", "0 cpu:12");
}

/* Threads of a GPU's rank: what CPU devices leave of 12 cores, shared, at least 1. */
static void ranks_of_gpus_share_the_cores_that_are_left(void **state)
{
    static const struct {
        const char *selection;
        int threads;
    } cases[] = {
        {"cuda", 6},         /* 12 / 2 */
        {"cuda+cpu:2:3", 3}, /* (12 - 6) / 2 */
        {"cuda+cpu:1", 1},   /* that has all 12 */
        /* beside auto, cores are for jobs that get no GPU, unless they were given threads */
        {"auto+cpu:2", 6},
        {"auto+cpu:2:3", 3},
        {"cuda:0", 12},
    };

    have(2, -1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        numbers.count = 0;
        assert_int_equal(choose(cases[i].selection, true), HD_OK);
        assert_int_equal(devices.list[0].threads, cases[i].threads);
    }
}

static void gpus_that_must_be_there_and_are_not_are_refused(void **state)
{
    have(3, 1);
    refused("cuda:1", HD_UNSUPPORTED, "no GPU can be used");
    refused("cuda:3", HD_UNSUPPORTED, "there is no GPU 3; this machine has 3");
    refused("cuda:GPU-x", HD_UNSUPPORTED, "there is no GPU GPU-x");
    have(1, 0);
    refused("cuda", HD_UNSUPPORTED, "no GPU can be used: it is broken; heddled --doctor tells");
    have_none("no driver");
    refused("cuda", HD_UNSUPPORTED, "no GPU can be used: no driver; heddled --doctor tells more");
    refused("cuda:0", HD_UNSUPPORTED, "this machine has 0: no driver");
}

static void what_is_not_a_list_of_devices_is_refused(void **state)
{
    static const char *const wrong[] = {
        "",         "gpu",       "gpu:1",   "cpu",       "cpu:",        "cpu:0",
        "cpu:65",   "cpu:1:",    "cpu:1:0", "cpu:1:2:3", "cpu:1+cpu:1", "cuda:",
        "cuda:1,",  "cuda:-1",   "cuda:x",  "auto:1",    "auto+cuda",   "cuda+cuda:0",
        "cuda:0:1", "auto+auto", "+",       "cpu:1+",    "Cuda",        "cuda:1 ,2"};

    have(3, -1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refused(wrong[i], HD_INVALID, ": say auto");
    refused("cuda+cpu:64", HD_LIMIT, "67 devices; a node has at most 64");
}

/* ---- from one check to the next ---- */

static void a_number_stays_with_its_gpu(void **state)
{
    assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
    have(4, 1);
    offers_first("auto+cpu:2", "0 GPU-0, 1 GPU-1!, 2 GPU-2, 3 GPU-3, 4 cpu:6, 5 cpu:6");
    have(4, 0);
    offers("auto+cpu:2", "0 GPU-0!, 1 GPU-1, 2 GPU-2, 3 GPU-3, 4 cpu:6, 5 cpu:6");
    /* GPU-0 is no longer listed: what was place 1 is place 0 */
    memmove(&gpus.gpus[0], &gpus.gpus[1], 3 * sizeof gpus.gpus[0]);
    gpus.count = 3;
    offers("auto+cpu:2", "0 GPU-0!, 1 GPU-1, 2 GPU-2, 3 GPU-3, 4 cpu:6, 5 cpu:6");
    assert_string_equal(hd_devices_at(&devices, 0)->problem,
                        "CUDA no longer lists it; see nvidia-smi and dmesg");
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "1,2,3", 1), 0);
    offers("auto+cpu:2", "0 GPU-0!, 1 GPU-1, 2 GPU-2, 3 GPU-3, 4 cpu:6, 5 cpu:6");
    assert_tells(hd_devices_at(&devices, 0)->problem, "nvidia-smi", "CUDA_VISIBLE_DEVICES=1,2,3");
    assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
    offers("cuda:0,2", "0 GPU-0!, 2 GPU-2"); /* numbers are those that were given */
    /* a new GPU in the place of an old one gets the lowest free number */
    (void)snprintf(gpus.gpus[2].uuid, sizeof gpus.gpus[2].uuid, "GPU-x");
    offers("cuda", "0 GPU-0!, 1 GPU-1, 2 GPU-2, 3 GPU-3!, 6 GPU-x");
    offers("cpu:3", "4 cpu:4, 5 cpu:4, 7 cpu:4");
    assert_null(hd_devices_at(&devices, 0));
}

/* Goal: jobs for any device do not start on the cores of a node whose GPUs fail. */
static void a_node_whose_gpus_fail_offers_no_cores_instead(void **state)
{
    have(1, -1);
    offers_first("auto", "0 GPU-0");
    have(1, 0);
    offers("auto", "0 GPU-0!");
    have_none("no answer in time");
    offers("auto", "0 GPU-0!");
    assert_string_equal(devices.list[0].problem, "no answer in time");
    offers("cuda", "0 GPU-0!"); /* heddled was started again: the job on it goes on */
}

static void cores_wait_until_it_is_known_whether_there_are_gpus(void **state)
{
    have_none("no answer in time");
    numbers.count = 0;
    assert_int_equal(choose("auto", false), HD_OK);
    assert_int_equal(devices.count, 1);
    assert_string_equal(devices.list[0].problem,
                        "it waits until this node's GPUs are known: no answer in time");
    assert_int_equal(choose("cuda+cpu:2", false), HD_UNSUPPORTED);
    have(1, -1);
    offers("auto+cpu:1", "0 GPU-0, 1 cpu:12"); /* the core has given up number 0 */
}

static void numbers_outlive_heddled_but_not_the_boot(void **state)
{
    const char *tmp = getenv("TMPDIR");
    char dir[256], path[300];

    (void)snprintf(dir, sizeof dir, "%s/numbers-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/devices", dir);
    assert_int_equal(hd_numbers_read(&numbers, dir, "boot-1"), HD_OK); /* there is no file yet */
    have(3, -1);
    offers("auto+cpu:1", "0 GPU-0, 1 GPU-1, 2 GPU-2, 3 cpu:12");
    /* names that a line of the file cannot hold: every number would be lost with them */
    assert_null(hd_numbers_give(&numbers, "", 4));
    assert_null(hd_numbers_give(&numbers, "GPU 4", 4));
    assert_int_equal(hd_numbers_write(&numbers), HD_OK);
    memset(&numbers, 0, sizeof numbers);
    assert_int_equal(hd_numbers_read(&numbers, dir, "boot-1"), HD_OK);
    have_none("no driver");
    offers("auto+cpu:1", "0 GPU-0!, 1 GPU-1!, 2 GPU-2!, 3 cpu:12");
    assert_int_equal(hd_numbers_read(&numbers, dir, "boot-2"), HD_OK);
    offers("auto+cpu:1", "0 cpu:12");
    /* a build of before wrote memory and name behind the UUID */
    assert_int_equal(
        hd_file_write_atomic(path, "boot boot-1\ndevice 7 GPU-0 10 An H100\n", 39, 0600), HD_OK);
    assert_int_equal(hd_numbers_read(&numbers, dir, "boot-1"), HD_OK);
    assert_int_equal(numbers.list[0].number, 7);
    assert_int_equal(hd_file_write_atomic(path, "boot boot-1\ndevice 0 GPU-0", 26, 0600), HD_OK);
    assert_int_equal(hd_numbers_read(&numbers, dir, "boot-1"), HD_CORRUPT); /* half a line */
    assert_int_equal(numbers.count, 0);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

/* --device-memory: of a CPU device more or less than its share, of a GPU no more than it has. */
static void memory_is_what_the_option_says(void **state)
{
    struct hd_device_selection selection;

    have(2, -1); /* of 1000 and 1001 bytes */
    memset(&numbers, 0, sizeof numbers);
    assert_int_equal(hd_device_selection_parse("cuda+cpu:1:1", &selection), HD_OK);
    selection.memory_bytes = 1001;
    assert_int_equal(hd_devices_choose(&selection, &gpus, true, CORES, &numbers, &devices), HD_OK);
    assert_int_equal(devices.list[0].memory_bytes, 1000);
    assert_int_equal(devices.list[1].memory_bytes, 1001);
    assert_int_equal(devices.list[2].memory_bytes, 1001);
    selection.memory_bytes = 10;
    assert_int_equal(hd_devices_choose(&selection, &gpus, true, CORES, &numbers, &devices), HD_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(devices.list[i].memory_bytes, 10);
    selection.memory_bytes = INT64_MAX; /* no machine has that */
    assert_int_equal(hd_devices_choose(&selection, &gpus, true, CORES, &numbers, &devices),
                     HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "more than this machine has"));
    assert_int_equal(hd_device_selection_parse("cuda", &selection), HD_OK);
    selection.memory_bytes = INT64_MAX;
    assert_int_equal(hd_devices_choose(&selection, &gpus, true, CORES, &numbers, &devices), HD_OK);
    assert_int_equal(devices.list[0].memory_bytes, 1000);
}

RUN_CASES()
