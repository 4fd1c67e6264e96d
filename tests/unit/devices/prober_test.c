/* When heddled probes its devices, and what it keeps. The worker is a shell script in a folder of
 * its own, which notes each run in the file "runs". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "daemon/devices/prober.h"
#include "daemon/devices/sample.h"
#include "tests/program/test.h"

static struct hd_prober prober;
static char dir[200];

static int make_dir(void **state)
{
    const char *tmp = getenv("TMPDIR");

    (void)snprintf(dir, sizeof dir, "%s/prober-XXXXXX", tmp ? tmp : "/tmp");
    return !mkdtemp(dir);
}

static int remove_dir(void **state)
{
    hd_prober_close(&prober);
    return hd_file_remove_tree(dir) != HD_OK;
}

/* --out is the last of the arguments. GPUs are as busy as the file "sample" says, if there is one. */
static void worker_does(const char *script)
{
    char path[256], text[2048];

    (void)snprintf(path, sizeof path, "%s/worker", dir);
    (void)snprintf(text, sizeof text,
                   "#!/bin/sh\nfor out; do :; done\necho \"$@\" >>%s/runs\n"
                   "[ \"$1\" = gpu-sample ] && exec cat %s/sample\n%s\n",
                   dir, dir, script);
    assert_int_equal(hd_file_write_atomic(path, text, strlen(text), 0700), HD_OK);
}

static const char measures[] = "echo figures >\"$out\"; echo measured";

/* Processors have been busy for so many of the ticks since the machine's start. */
static char stat_path[300];
static void processors(int64_t busy, int64_t total)
{
    char text[128];

    (void)snprintf(stat_path, sizeof stat_path, "%s/stat", dir);
    (void)snprintf(text, sizeof text, "cpu  %lld 0 0 %lld 0 0 0 0 0 0\n", (long long)busy,
                   (long long)(total - busy));
    assert_int_equal(hd_file_write_atomic(stat_path, text, strlen(text), 0600), HD_OK);
}

/* A heddled of this build starts. */
static void start(const char *build, bool at_first)
{
    hd_prober_close(&prober);
    prober = (struct hd_prober){.devices = "cpu:2:3", .at_first = at_first, .stat_path = stat_path};
    (void)snprintf(prober.key, sizeof prober.key, "build %s", build);
    (void)snprintf(prober.worker, sizeof prober.worker, "%s/worker", dir);
    hd_prober_open(&prober, dir);
}

static int runs(void)
{
    struct hd_text text = {0}, path = {0};
    int count = 0;

    hd_text_add(&path, "%s/runs", dir);
    (void)hd_file_read(path.data, 1 << 16, &text);
    for (size_t i = 0; i < text.len_bytes; i++)
        count += text.data[i] == '\n';
    hd_text_free(&text);
    hd_text_free(&path);
    return count;
}

/* Steps with idle devices until a probe has begun and ended. */
static void step_to_the_end(void)
{
    const int64_t end_ms = hd_clock_now_ms() + 20000;

    while (!hd_prober_step(&prober, true) || prober.is_running) {
        assert_true(hd_clock_now_ms() < end_ms);
        (void)usleep(1000);
    }
}

/* The devices have been idle for as long as a probe of its own accord waits. */
static void be_quiet(void)
{
    (void)hd_prober_step(&prober, true);
    prober.idle_since_ms -= HD_PROBER_QUIET_MS;
}

static void idle_devices_are_probed_once_per_build(void **state)
{
    worker_does(measures);
    start("1", true);
    assert_false(hd_prober_step(&prober, true)); /* not before they have been idle for a while */
    be_quiet();
    step_to_the_end();
    assert_string_equal(prober.calibration.data, "figures\n");
    assert_string_equal(prober.problem, "");
    assert_true(prober.ended_ms > 0);
    assert_false(hd_prober_step(&prober, true));
    start("1", true); /* a restart finds the result */
    assert_string_equal(prober.calibration.data, "figures\n");
    be_quiet();
    assert_false(hd_prober_step(&prober, true));
    assert_int_equal(runs(), 1);
    start("2", true);
    assert_int_equal(prober.calibration.len_bytes, 0);
    assert_int_equal(prober.ended_ms, 0);
    be_quiet();
    step_to_the_end();
    assert_int_equal(runs(), 2);
}

static void the_helper_measures_all_devices_for_less_than_a_minute(void **state)
{
    struct hd_text text = {0}, path = {0}, wanted = {0};

    worker_does(measures);
    start("1", false);
    hd_prober_ask(&prober, 1);
    step_to_the_end();
    hd_text_add(&path, "%s/runs", dir);
    assert_int_equal(hd_file_read(path.data, 1 << 16, &text), HD_OK);
    hd_text_add(&wanted,
                "probe --devices cpu:2:3 --seconds 55 --answer --out %s/probing/calibration\n",
                dir);
    assert_string_equal(text.data, wanted.data);
    assert_true(HD_PROBER_SECONDS * 1000 < HD_PROBER_MS && HD_PROBER_MS <= 60000);
    hd_text_free(&text);
    hd_text_free(&path);
    hd_text_free(&wanted);
}

static void never_means_only_when_asked(void **state)
{
    worker_does(measures);
    start("1", false);
    be_quiet();
    assert_false(hd_prober_step(&prober, true));
    hd_prober_ask(&prober, 7);
    step_to_the_end();
    assert_int_equal(prober.answered, 7);
    hd_prober_ask(&prober, 7);
    assert_false(hd_prober_step(&prober, true));
    assert_int_equal(runs(), 1);
}

static void busy_devices_are_not_probed(void **state)
{
    worker_does(measures);
    start("1", true);
    hd_prober_ask(&prober, 7);
    assert_false(hd_prober_step(&prober, false));
    prober.idle_since_ms = hd_clock_now_ms() - HD_PROBER_QUIET_MS;
    assert_false(hd_prober_step(&prober, false));
    assert_false(prober.is_running);
    assert_int_equal(prober.idle_since_ms, 0); /* a later probe waits anew */
    assert_int_equal(runs(), 0);
}

/* Goal: a job never waits for a probe. */
/* While others use half of the processors nothing is measured; when they are quiet, it is. */
static void a_busy_machine_is_not_probed_until_it_is_quiet(void **state)
{
    processors(1000, 2000);
    worker_does(measures);
    start("1", true);
    be_quiet();
    processors(1500, 3000);
    assert_false(hd_prober_step(&prober, true));
    assert_int_equal(runs(), 0);
    be_quiet();
    processors(1550, 4000); /* 5% */
    step_to_the_end();
    assert_int_equal(runs(), 1);
    assert_string_equal(prober.calibration.data, "figures\n");
}

/* A measurement that was disturbed by others' work is dropped and measured again. */
static void a_probe_that_others_disturb_is_repeated(void **state)
{
    const int64_t end_ms = hd_clock_now_ms() + 20000;
    char disturbed[700];

    processors(1000, 2000);
    (void)snprintf(disturbed, sizeof disturbed, "echo 'cpu 1800 0 0 1200 0 0 0 0' >%s; %s",
                   stat_path, measures);
    worker_does(disturbed);
    start("1", true);
    be_quiet();
    while (!prober.is_running)
        (void)hd_prober_step(&prober, true);
    while (prober.is_running) {
        assert_false(hd_prober_step(&prober, true)); /* no news */
        assert_true(hd_clock_now_ms() < end_ms);
    }
    assert_int_equal(prober.calibration.len_bytes, 0);
    assert_string_equal(prober.problem, "");
    worker_does(measures);
    be_quiet();
    step_to_the_end();
    assert_int_equal(runs(), 2);
    assert_string_equal(prober.calibration.data, "figures\n");
}

static bool says_busy(void)
{
    struct hd_text text = {0};
    bool says;

    hd_prober_conditions(&prober, &text);
    says = strstr(text.data, "other programs used 80% of the processors") != NULL;
    hd_text_free(&text);
    return says;
}

/* A result that was asked for beside busy programs, or measured with --probe anyway, is kept and says
 * so, also after a restart. The devices are measured again once: when they and the processors are
 * idle. */
static void a_result_of_a_busy_machine_says_so_until_it_is_measured_again(void **state)
{
    char disturbed[700];

    for (int anyway = 0; anyway < 2; anyway++) {
        processors(1000, 2000);
        (void)snprintf(disturbed, sizeof disturbed, "echo 'cpu 1800 0 0 1200 0 0 0 0' >%s; %s",
                       stat_path, measures);
        worker_does(disturbed);
        start(anyway ? "2" : "3", true);
        prober.beside_others = anyway;
        be_quiet();
        if (!anyway)
            hd_prober_ask(&prober, 1);
        step_to_the_end();
        assert_string_equal(prober.calibration.data, "figures\n");
        assert_true(says_busy());
        start(anyway ? "2" : "3", true);
        prober.beside_others = anyway;
        assert_true(says_busy());
        worker_does(measures);
        be_quiet();
        processors(2600, 4000); /* 80% */
        assert_false(hd_prober_step(&prober, true));
        assert_int_equal(runs(), 1 + 2 * anyway);
        be_quiet();
        step_to_the_end();
        assert_int_equal(runs(), 2 + 2 * anyway);
        assert_false(says_busy());
        be_quiet();
        assert_false(hd_prober_step(&prober, true));
    }
}

/* A GPU that others use is measured when it is free; if it was asked for, at once, and the result says
 * so until then. */
static void a_gpu_that_others_use_is_measured_when_it_is_free(void **state)
{
    struct hd_sample_list list = {.count = 2};
    struct hd_text conditions = {0}, json = {0};
    char path[256];

    for (int i = 0; i < 2; i++) {
        hd_sample_clear(&list.samples[i]);
        (void)snprintf(list.samples[i].uuid, sizeof list.samples[i].uuid, "GPU-%d", i);
    }
    list.samples[1].busy_ratio = 0.6;
    hd_sample_list_write(&list, &json);
    (void)snprintf(path, sizeof path, "%s/sample", dir);
    assert_int_equal(hd_file_write_atomic(path, json.data, json.len_bytes, 0600), HD_OK);
    worker_does(measures);
    start("1", true);
    (void)snprintf(prober.devices, sizeof prober.devices, "cuda:GPU-0,GPU-1");
    be_quiet();
    assert_true(hd_prober_step(&prober, true));
    while (prober.is_running) {
        assert_false(hd_prober_step(&prober, true));
        (void)usleep(1000);
    }
    assert_int_equal(runs(), 1); /* the look alone */
    assert_int_equal(prober.calibration.len_bytes, 0);

    hd_prober_ask(&prober, 1);
    step_to_the_end();
    assert_int_equal(runs(), 3);
    hd_prober_conditions(&prober, &conditions);
    assert_non_null(strstr(conditions.data, "and 60% of a GPU"));
    hd_text_free(&conditions);

    (void)snprintf(prober.devices, sizeof prober.devices, "cuda:GPU-0"); /* the other one is busy */
    be_quiet();
    step_to_the_end();
    assert_int_equal(runs(), 5);
    hd_prober_conditions(&prober, &conditions);
    assert_string_equal(conditions.data, prober.key);
    hd_text_free(&conditions);
    hd_text_free(&json);
}

static void an_attempt_that_starts_ends_a_probe(void **state)
{
    struct hd_text path = {0};
    int64_t begin_ms;

    worker_does("echo half >\"$out\"; exec sleep 100");
    start("1", true);
    be_quiet();
    assert_true(hd_prober_step(&prober, true));
    assert_true(prober.is_running);
    begin_ms = hd_clock_now_ms();
    hd_prober_yield(&prober, "job 3 was started");
    assert_true(hd_clock_now_ms() - begin_ms < 10000);
    assert_int_equal(prober.run.pid, 0);
    assert_false(prober.is_running);
    assert_int_equal(prober.ended_ms, 0); /* nobody asked: it is as if it had not begun */
    hd_text_add(&path, "%s/probing", dir);
    assert_false(hd_file_exists(path.data));
    hd_text_free(&path);
    worker_does(measures);
    (void)hd_prober_step(&prober, false);
    be_quiet();
    step_to_the_end();
    assert_string_equal(prober.calibration.data, "figures\n");
}

static void who_asked_is_told_why_a_probe_was_ended(void **state)
{
    worker_does("exec sleep 100");
    start("1", false);
    hd_prober_ask(&prober, 7);
    assert_true(hd_prober_step(&prober, true));
    hd_prober_yield(&prober, "job 3 was started");
    assert_int_equal(prober.answered, 7);
    assert_string_equal(prober.problem, "job 3 was started");
    hd_prober_ask(&prober, 8); /* one that has not begun */
    hd_prober_yield(&prober, "job 4 was started");
    assert_int_equal(prober.answered, 8);
    assert_string_equal(prober.problem, "job 4 was started");
}

static void a_failed_probe_keeps_the_result_of_before_and_says_why(void **state)
{
    worker_does(measures);
    start("1", true);
    hd_prober_ask(&prober, 1);
    step_to_the_end();
    worker_does("echo 'no memory for products'");
    hd_prober_ask(&prober, 2);
    step_to_the_end();
    assert_string_equal(prober.calibration.data, "figures\n");
    assert_string_equal(prober.problem, "no memory for products");
    start("1", true);
    assert_string_equal(prober.calibration.data, "figures\n");
    assert_string_equal(prober.problem, "no memory for products");
}

static void a_problem_can_be_sent_whatever_the_helper_says(void **state)
{
    worker_does("printf 'no mem\\303ory\\nmore\\n'");
    start("1", false);
    hd_prober_ask(&prober, 1);
    step_to_the_end();
    assert_string_equal(prober.problem, "no mem?ory");
}

static void a_probe_that_fails_is_not_repeated_by_itself(void **state)
{
    worker_does("echo 'no memory for products'");
    start("1", true);
    be_quiet();
    step_to_the_end();
    assert_false(hd_prober_step(&prober, true)); /* though still quiet */
    assert_int_equal(runs(), 1);
    assert_int_equal(prober.calibration.len_bytes, 0);
    assert_string_equal(prober.problem, "no memory for products");
}

static void a_helper_that_hangs_is_killed(void **state)
{
    worker_does("exec sleep 100");
    start("1", false);
    prober.timeout_ms = 300;
    hd_prober_ask(&prober, 1);
    step_to_the_end();
    assert_non_null(strstr(prober.problem, "did not answer within 0.3 s"));
    assert_int_equal(prober.run.pid, 0);
}

static void gpus_are_named_to_the_worker(void **state)
{
    struct hd_text text = {0};
    char path[256];

    worker_does(measures);
    start("1", false);
    (void)snprintf(prober.devices, sizeof prober.devices, "cuda:GPU-1,GPU-2");
    hd_prober_ask(&prober, 1);
    step_to_the_end();
    assert_string_equal(prober.problem, "");
    (void)snprintf(path, sizeof path, "%s/runs", dir);
    assert_int_equal(hd_file_read(path, 1 << 16, &text), HD_OK);
    assert_non_null(strstr(text.data, "probe --devices cuda:GPU-1,GPU-2 --seconds 55 "));
    hd_text_free(&text);
}

static void assert_counts_as_none(const char *text, size_t bytes)
{
    char path[256];

    (void)snprintf(path, sizeof path, "%s/probe", dir);
    assert_int_equal(hd_file_write_atomic(path, text, bytes, 0600), HD_OK);
    start("1", true);
    assert_int_equal(prober.ended_ms, 0);
    assert_string_equal(prober.problem, "");
    assert_int_equal(prober.calibration.len_bytes, 0);
}

/* Goal: a node measures anew where it would only send what the controller refuses. Method: no
 * result, one of the form of before, and a result that is cut, or of which one letter is another.
 */
static void a_damaged_result_counts_as_none(void **state)
{
    static const char *const bad[] = {
        "", "heddle-probe 3", "heddle-probe 3\nhash 0123456789abcdef\nkey build 1\n",
        "heddle-probe 1\nkey build 1\nended_ms 5\nproblem \nfigures\n"};
    struct hd_text text = {0};
    char path[256];

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_counts_as_none(bad[i], strlen(bad[i]));
    worker_does(measures);
    start("1", true);
    hd_prober_ask(&prober, 1);
    step_to_the_end();
    (void)snprintf(path, sizeof path, "%s/probe", dir);
    assert_int_equal(hd_file_read(path, 1 << 16, &text), HD_OK);
    for (size_t i = 0; i < text.len_bytes; i++) {
        assert_counts_as_none(text.data, i);
        text.data[i] ^= 1;
        assert_counts_as_none(text.data, text.len_bytes);
        text.data[i] ^= 1;
    }
    assert_int_equal(hd_file_write_atomic(path, text.data, text.len_bytes, 0600), HD_OK);
    start("1", true);
    assert_string_equal(prober.calibration.data, "figures\n");
    hd_text_free(&text);
}

RUN_EACH_CASE_WITH(make_dir, remove_dir)
