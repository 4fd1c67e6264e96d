/* What heddled learns from `heddle-worker device`, and what it makes of a worker that answers
 * badly. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "daemon/agent/ask.h"
#include "daemon/agent/device.h"

/* A worker that is a shell script with this body, in a folder of its own. */
static void make_worker(const char *body, char ret_dir[256], char ret_path[288])
{
    const char *tmp = getenv("TMPDIR");
    char script[512];

    (void)snprintf(ret_dir, 256, "%s/device-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(ret_dir));
    (void)snprintf(ret_path, 288, "%s/worker", ret_dir);
    (void)snprintf(script, sizeof script, "#!/bin/sh\n%s\n", body);
    assert_int_equal(hd_file_write_atomic(ret_path, script, strlen(script), 0700), HD_OK);
}

static enum hd_status ask(const char *body, struct agent_device *ret_device)
{
    char dir[256], path[288];
    enum hd_status st;

    make_worker(body, dir, path);
    st = agent_device_ask(path, 3, ret_device);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
    return st;
}

static enum hd_status ask_gpus(const char *body, int timeout_ms, struct hd_gpu_list *ret_list)
{
    char dir[256], path[288];
    enum hd_status st;

    make_worker(body, dir, path);
    st = agent_gpus_ask(path, timeout_ms, ret_list);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
    return st;
}

static volatile sig_atomic_t alarms;

static void note_alarm(int number)
{
    (void)number;
    alarms++;
}

static void an_answer_is_understood_whatever_else_it_says(void **state)
{
    struct agent_device d;

    (void)state;
    assert_int_equal(ask("[ \"$*\" = 'device --threads 3' ] || exit 9\n"
                         "printf 'colour green\\nisa avx9\\nlibrary own\\nbf16_fast 1\\n'",
                         &d),
                     HD_OK);
    assert_string_equal(d.isa, "avx9");
    assert_string_equal(d.library, "own");
    assert_true(d.bf16);
    assert_int_equal(ask("printf 'isa sse\\nbf16_fast 0\\n'", &d), HD_OK);
    assert_false(d.bf16);
}

static void a_worker_that_answers_badly_is_named(void **state)
{
    struct agent_device d;

    (void)state;
    assert_int_equal(ask("echo hello", &d), HD_CORRUPT);
    assert_non_null(strstr(hd_err_message(), "/worker device: "));
    assert_int_equal(ask("printf 'isa sse\\nbf16_fast 0\\n'; exit 3", &d), HD_IO);
    assert_non_null(strstr(hd_err_message(), "status 3"));
    assert_int_equal(ask("head -c 5000 /dev/zero", &d), HD_LIMIT);
    assert_int_equal(ask("kill -9 $$", &d), HD_IO);
    assert_non_null(strstr(hd_err_message(), "signal 9"));
    assert_int_equal(agent_device_ask("/nowhere/worker", 1, &d), HD_IO);
}

static void gpus_are_told_as_a_list(void **state)
{
    struct hd_gpu_list *list = calloc(1, sizeof *list);

    (void)state;
    assert_non_null(list);
    assert_int_equal(ask_gpus("[ \"$*\" = gpus ] || exit 9\n"
                              "printf '{\"driver\":\"5\",\"nvml_problem\":\"\",\"plugin_problem\":"
                              "\"none\",\"log_problem\":\"\",\"gpus\":[]}'",
                              AGENT_ASK_MS, list),
                     HD_OK);
    assert_string_equal(list->plugin_problem, "none");
    assert_int_equal(list->count, 0);
    assert_int_equal(ask_gpus("echo '{}'", AGENT_ASK_MS, list), HD_CORRUPT);
    assert_non_null(strstr(hd_err_message(), "/worker gpus: "));
    free(list);
}

/* A driver in a bad way does not take heddled with it. */
static void a_question_that_hangs_is_given_up(void **state)
{
    struct hd_gpu_list *list = calloc(1, sizeof *list);

    (void)state;
    assert_non_null(list);
    assert_int_equal(ask_gpus("exec sleep 600", 300, list), HD_TIMEOUT);
    assert_non_null(strstr(hd_err_message(), "did not answer within 0.3 s"));
    free(list);
}

/* The answer is there, and the process sits in the driver on its way out. */
static void one_that_answers_and_does_not_end_is_left_behind(void **state)
{
    struct agent_device d;

    (void)state;
    /* it would be given up after 30 s, or waited for ten minutes, were its answer not enough */
    assert_int_equal(ask("printf 'isa sse\\nbf16_fast 1\\n'; exec >&-; exec sleep 600", &d), HD_OK);
    assert_true(d.bf16);
}

/* Goal: an interrupted wait is no answer. Method: an alarm every few milliseconds. */
static void alarms_only_hurry_the_look(void **state)
{
    struct itimerval often = {.it_interval = {.tv_usec = 3000}, .it_value = {.tv_usec = 3000}};
    const struct sigaction count = {.sa_handler = note_alarm}; /* without SA_RESTART */
    struct agent_device d;

    (void)state;
    assert_int_equal(sigaction(SIGALRM, &count, NULL), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    assert_int_equal(ask("sleep 0.2; printf 'isa sse\\nbf16_fast 1\\n'", &d), HD_OK);
    often = (struct itimerval){.it_value = {.tv_usec = 0}};
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    assert_true(alarms > 0);
}

/* A loop asks without waiting, and not again while the last one is still there. */
static void a_question_can_be_asked_in_steps(void **state)
{
    struct agent_ask question = {.pid = 0};
    char dir[256], path[288];
    enum hd_status st = HD_OK;

    (void)state;
    make_worker("exec sleep 600", dir, path);
    assert_int_equal(agent_gpus_begin(path, AGENT_ASK_MS, &question), HD_OK);
    assert_false(agent_ask_step(&question, &st));
    assert_int_equal(agent_gpus_begin(path, AGENT_ASK_MS, &question), HD_CONFLICT);
    assert_true(agent_ask_is_left(&question));
    agent_ask_done(&question);
    assert_false(agent_ask_is_left(&question));
    assert_int_equal(agent_gpus_begin(path, AGENT_ASK_MS, &question), HD_OK);
    agent_ask_done(&question);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_understood_whatever_else_it_says),
        cmocka_unit_test(a_worker_that_answers_badly_is_named),
        cmocka_unit_test(gpus_are_told_as_a_list),
        cmocka_unit_test(a_question_that_hangs_is_given_up),
        cmocka_unit_test(one_that_answers_and_does_not_end_is_left_behind),
        cmocka_unit_test(alarms_only_hurry_the_look),
        cmocka_unit_test(a_question_can_be_asked_in_steps),
    };
    return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}
