/* When heddled checks its GPUs, with a deadline, and what it makes of bad answers. The worker is a
 * shell script in a folder of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "daemon/devices/health.h"
#include "tests/program/test.h"

static struct hd_health health;
static char dir[200];

static int make_dir(void **state)
{
    const char *tmp = getenv("TMPDIR");

    memset(&health, 0, sizeof health);
    (void)snprintf(dir, sizeof dir, "%s/health-XXXXXX", tmp ? tmp : "/tmp");
    (void)snprintf(health.worker, sizeof health.worker, "%s/worker", mkdtemp(dir));
    return 0;
}

static int remove_dir(void **state)
{
    hd_health_close(&health);
    return hd_file_remove_tree(dir) != HD_OK;
}

/* The worker's answer to `heddle-worker gpus`, as a shell script. */
static void worker_does(const char *script)
{
    char text[1024];

    (void)snprintf(text, sizeof text,
                   "#!/bin/sh\n"
                   "[ \"$1\" = device ] && exec printf 'colour green\\nisa sse\\nbf16_fast "
                   "1\\ngloo 1\\n'\n%s\n",
                   script);
    assert_int_equal(hd_file_write_atomic(health.worker, text, strlen(text), 0700), HD_OK);
}

/* One GPU, GPU-a, with this problem and this newest error in the log. */
static void worker_says(const char *problem, int fault_at)
{
    char script[512];

    (void)snprintf(
        script, sizeof script,
        "printf "
        "'{\"problem\":\"\",\"log_problem\":\"\",\"libraries\":\"\",\"gpus\":[{\"uuid\":\"GPU-a\","
        "\"name\":\"G\",\"bus\":\"\",\"problem\":\"%s\",\"fault\":\"Xid 48\","
        "\"memory_bytes\":1,\"fault_at\":%d}]}'",
        problem, fault_at);
    worker_does(script);
}

static enum hd_status open_with(const char *devices)
{
    assert_int_equal(hd_device_selection_parse(devices, &health.selection), HD_OK);
    return hd_health_open(&health, dir, "boot-1");
}

/* Steps until the check of this number is over; whether `devices` has changed meanwhile. */
static bool step_to(int64_t check)
{
    const int64_t end_ms = hd_clock_now_ms() + 20000;
    bool changed = false;

    while (!hd_health_has_checked(&health, check)) {
        changed |= hd_health_step(&health);
        assert_true(hd_clock_now_ms() < end_ms);
    }
    return changed;
}

static const char *problem(void)
{
    return health.devices.list[0].problem;
}

static void a_gpu_is_withdrawn_and_offered_again(void **state)
{
    worker_says("", 0);
    assert_int_equal(open_with("cuda+cpu:1"), HD_OK);
    assert_true(health.devices.gpu_count == 1 && health.devices.count == 2);
    assert_true(health.devices.list[1].bf16 && health.cpu.gloo);
    assert_int_equal(health.ask.pid, 0); /* it was reaped: no zombie until the next check */
    assert_string_equal(problem(), "");
    assert_false(step_to(hd_health_check_soon(&health))); /* nothing new */
    worker_says("too hot", 0);
    assert_true(step_to(hd_health_check_soon(&health)));
    assert_string_equal(problem(), "too hot");
    worker_says("", 0);
    assert_true(step_to(hd_health_check_soon(&health)));
    assert_string_equal(problem(), "");
}

/* Checks come by themselves; sooner while something is wrong. */
static void the_next_check_is_due_by_what_the_last_one_found(void **state)
{
    static const struct {
        const char *script;
        int64_t after_ms;
    } cases[] = {{NULL, HD_HEALTH_EVERY_MS}, {"exit 3", HD_HEALTH_RETRY_MS}};

    worker_says("", 0);
    assert_int_equal(open_with("cuda"), HD_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].script)
            worker_does(cases[i].script);
        health.due_ms = 0;
        (void)hd_health_step(&health);
        assert_true(health.is_checking);
        (void)step_to(health.begun);
        assert_in_range(health.due_ms - hd_clock_now_ms(), cases[i].after_ms - 10000,
                        cases[i].after_ms);
    }
    worker_says("broken", 0);
    (void)step_to(hd_health_check_soon(&health));
    assert_in_range(health.due_ms - hd_clock_now_ms(), HD_HEALTH_PROBLEM_MS - 10000,
                    HD_HEALTH_PROBLEM_MS);
}

/* Goal: an attempt that fails while a check is under way waits for the next one, which sees the GPU
 * as it is now. */
static void a_check_that_is_needed_begins_later_than_the_need(void **state)
{
    int64_t first, second;

    worker_says("", 0);
    assert_int_equal(open_with("cuda"), HD_OK);
    first = hd_health_check_soon(&health);
    (void)hd_health_step(&health);
    worker_says("broken", 0);
    second = hd_health_check_soon(&health);
    assert_int_equal(second, first + 1);
    (void)step_to(first);
    assert_false(hd_health_has_checked(&health, second));
    (void)step_to(second);
    assert_string_equal(problem(), "broken");
}

/* A driver that hangs does not take heddled with it, and its GPU gets no jobs. */
static void a_check_that_hangs_is_given_up(void **state)
{
    worker_says("", 0);
    assert_int_equal(open_with("cuda"), HD_OK);
    worker_does("exec sleep 600");
    (void)hd_health_check_soon(&health);
    assert_false(hd_health_step(&health));
    assert_false(hd_health_step(&health));
    health.ask.deadline_ms = hd_clock_now_ms();
    assert_true(hd_health_step(&health));
    assert_non_null(strstr(problem(), "/worker gpus: it did not answer within 30 s"));
}

/* A process that hangs in the kernel outlives SIGKILL; here it is only not reaped. */
static void there_is_one_hanging_process_at_most(void **state)
{
    const char *const argv[] = {health.worker, "gpus", NULL};

    worker_does("exec sleep 600");
    assert_int_equal(hd_ask_begin(&health.ask, argv, HD_ASK_MS), HD_OK);
    assert_int_equal(hd_ask_begin(&health.ask, argv, HD_ASK_MS), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), "hangs"));
    hd_ask_end(&health.ask);
    assert_int_equal(hd_ask_begin(&health.ask, argv, HD_ASK_MS), HD_OK);
}

/* The answer is there, and the process sits in the driver on its way out. */
static void an_answer_counts_though_its_process_hangs(void **state)
{
    worker_says("", 0);
    assert_int_equal(open_with("cuda"), HD_OK);
    worker_does(
        "printf '{\"problem\":\"no driver\",\"log_problem\":\"\",\"libraries\":\"\",\"gpus\":[]}'\n"
        "exec >&-; exec sleep 600");
    assert_true(step_to(hd_health_check_soon(&health))); /* step_to gives up before the deadline */
    assert_string_equal(problem(), "no driver");
}

static void bad_answers_are_problems_in_words(void **state)
{
    static const char *const scripts[][2] = {{"exit 3", "it printed nothing"},
                                             {"kill -9 $$", "it was killed by signal 9"},
                                             {"echo '{}'", "the list of GPUs"},
                                             {"head -c 2000000 /dev/zero", "it prints more than"}};

    worker_says("", 0);
    assert_int_equal(open_with("cuda"), HD_OK);
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        worker_does(scripts[i][0]);
        assert_true(step_to(hd_health_check_soon(&health)));
        if (!strstr(problem(), scripts[i][1]))
            fail_msg("\"%s\" does not say \"%s\"", problem(), scripts[i][1]);
    }
}

/* A GPU that answers every question and computes no more: the kernel's log knows. */
static void a_new_fatal_error_withdraws_until_the_repair(void **state)
{
    worker_says("", 500); /* older than heddled: the GPU may have been repaired since */
    assert_int_equal(open_with("cuda"), HD_OK);
    assert_string_equal(problem(), "");
    worker_says("", 600);
    (void)step_to(hd_health_check_soon(&health));
    assert_non_null(strstr(problem(), "the kernel's log has Xid 48; after the repair"));
    worker_says("", 0); /* the log is overwritten in time: that repairs nothing */
    assert_false(step_to(hd_health_check_soon(&health)));
    worker_says("", -1);
    assert_false(step_to(hd_health_check_soon(&health)));
    worker_says("", 600);
    hd_health_repaired(&health);
    assert_true(step_to(health.needed));
    assert_string_equal(problem(), "");
    worker_says("", 601);
    assert_true(step_to(hd_health_check_soon(&health)));
    assert_true(problem()[0]);
}

static void a_log_that_was_not_readable_withdraws_nothing(void **state)
{
    worker_says("", -1);
    assert_int_equal(open_with("cuda"), HD_OK);
    worker_says("", 500); /* nobody knows how old it is */
    assert_false(step_to(hd_health_check_soon(&health)));
}

/* With auto, and no GPU at the start, jobs may use the cores: they stay. */
static void a_node_of_cores_checks_no_more(void **state)
{
    int64_t check;

    worker_does(
        "printf '{\"problem\":\"no driver\",\"log_problem\":\"\",\"libraries\":\"\",\"gpus\":[]}'");
    assert_int_equal(open_with("auto"), HD_OK);
    assert_true(health.devices.count == 1 && !health.devices.list[0].cuda);
    worker_says("", 0);
    check = hd_health_check_soon(&health);
    assert_true(hd_health_has_checked(&health, check));
    assert_false(hd_health_step(&health));
    assert_false(health.is_checking);
}

RUN_EACH_CASE_WITH(make_dir, remove_dir)
