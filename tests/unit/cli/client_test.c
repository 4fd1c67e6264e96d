/* The heddle program against a controller that misbehaves on purpose: exit codes, retries under one
 * request id, watching and logs through breaks of the connection. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <signal.h>
#include <unistd.h>

#include "base/file.h"
#include "heddle/v1/control.pb-c.h"
#include "tests/program/test.h"
#include "tests/unit/cli/fake_controller.h"

static void what_the_controller_says_decides_the_exit_code(void **state)
{
    struct run run;

    run = heddle("show 4", 0);
    assert_int_equal(run.code, 4);
    assert_string_equal(run.err, "heddle: there is no job 4\n");
    assert_string_equal(run.out, "");
    assert_int_equal(heddle("show 5", 0).code, 5);
    assert_int_equal(heddle("show 6", 0).code, 6);
    assert_int_equal(heddle("watch 4", 0).code, 4);
    assert_int_equal(heddle("show 7", 0).code, 0);
    assert_int_equal(heddle("show seven", 0).code, 4);
    assert_int_equal(heddle("show 7 --controller unix:/nonexistent/c.sock", 0).code, 3);
}

static void steps_far_from_their_prediction_are_named(void **state)
{
    (void)state;
    assert_non_null(strstr(heddle("show 8", 0).out, "off by a factor of 2.5, so another layout"));
    assert_null(strstr(heddle("show 9", 0).out, "off by a factor"));
    /* windows of answers have padding, of which tokens/s do not tell: no time is derived */
    assert_null(strstr(heddle("show 10", 0).out, "off by a factor"));
    assert_non_null(strstr(heddle("show 10", 0).out, "predicted 400 ms"));
}

static void a_lost_reply_is_asked_for_again_under_one_request_id(void **state)
{
    char path[128], words[160];
    struct run run;

    put_job_file(path);
    (void)snprintf(words, sizeof words, "submit %s", path);
    run = heddle(words, 0);
    assert_string_equal(run.out, "job 7 tiny queued: no node\n");
    assert_int_equal(run.code, 0);
    assert_int_equal(fake.submits, 2);
    assert_string_equal(fake.first_id, fake.last_id);
    assert_int_equal(strlen(fake.first_id), 32);
    (void)snprintf(words, sizeof words, "submit %s -q --request-id abcdefgh01234567", path);
    run = heddle(words, 0);
    assert_string_equal(run.out, "7\n");
    assert_string_equal(fake.last_id, "abcdefgh01234567");
}

static void a_bad_job_file_never_reaches_the_controller(void **state)
{
    char path[128], words[160];

    put_job_file(path);
    (void)snprintf(words, sizeof words, "submit %s --set parallel.tp=2", path);
    assert_int_equal(heddle(words, 0).code, 2);
    assert_int_equal(fake.submits, 0);
}

static void watching_goes_on_where_it_broke_off(void **state)
{
    struct run run = heddle("watch 7 -o jsonl", 0);

    assert_int_equal(run.code, 0);
    assert_int_equal(fake.watches, 2);
    assert_int_equal(fake.after[0], 0);
    assert_int_equal(fake.after[1], 1); /* the first step's sequence */
    assert_string_equal(
        run.out,
        "{\"type\":\"event\",\"job\":7,\"attempt\":1,\"kind\":\"state\",\"state\":\"running\","
        "\"reason\":\"\"}\n"
        "{\"type\":\"step\",\"job\":7,\"attempt\":1,\"step\":1,\"loss\":0,\"grad_norm\":0,\"lr\":0,"
        "\"tokens\":0,\"tokens_per_s\":0,\"step_ms\":0,\"mfu\":null,"
        "\"time\":\"1970-01-01T00:00:01.000Z\"}\n"
        "{\"type\":\"step\",\"job\":7,\"attempt\":1,\"step\":2,\"loss\":0,\"grad_norm\":0,\"lr\":0,"
        "\"tokens\":0,\"tokens_per_s\":0,\"step_ms\":0,\"mfu\":null,"
        "\"time\":\"1970-01-01T00:00:02.000Z\"}\n"
        "{\"type\":\"end\",\"job\":7,\"attempt\":0,\"state\":\"succeeded\",\"reason\":\"\","
        "\"attempts\":1,\"step\":2,\"end\":null}\n");
}

static void lines_without_a_terminal_have_no_cursor_codes(void **state)
{
    struct run run = heddle("watch 7", 0);

    assert_int_equal(run.code, 0);
    assert_null(strchr(run.out, '\033'));
    assert_null(strchr(run.err, '\033'));
    assert_string_equal(run.out, "step 1/2  loss 0.000000  grad_norm 0  lr 0\n"
                                 "step 2/2  loss 0.000000  grad_norm 0  lr 0\n"
                                 "job succeeded at step 2, loss 0.000000\n");
    assert_string_equal(run.err, "heddle: the controller is back\n");
}

static void no_word_of_a_node_reaches_the_terminal_as_a_code(void **state)
{
    static const char *const commands[] = {"events 7", "events 7 --follow", "samples 7"};

    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        const struct run run = heddle(commands[i], 0);

        assert_int_equal(run.code, 0);
        assert_null(strchr(run.out, '\033'));
        assert_non_null(strstr(run.out, "?[2J"));
    }
    assert_non_null(strstr(heddle("events 7 --follow", 0).out, " no?[2Jte     a?[2Jb\n"));
    assert_non_null(strstr(heddle("samples 7", 0).out, "  answer 1, reward ?[2J\n    > a?[2J\n"));
}

static void wait_asks_for_the_end_only_and_ends_like_the_job(void **state)
{
    struct run run = heddle("wait 8", 0);

    assert_int_equal(run.code, 1);
    assert_true(fake.new_only[0]);
    assert_string_equal(run.out, "job 8 failed at step 2\n");
}

static void ctrl_c_ends_the_watching_and_not_the_job(void **state)
{
    struct run run;

    fake.hold = true;
    run = heddle("watch 7", SIGINT);
    assert_int_equal(run.code, 130);
    assert_non_null(strstr(run.err, "job 7 goes on"));
    assert_int_equal(fake.cancels, 0);
}

/* Expected: the status of a program that does not take the signal: 128 and its number. */
static void sigterm_ends_the_watching_with_143(void **state)
{
    struct run run;

    fake.hold = true;
    run = heddle("watch 7", SIGTERM);
    assert_int_equal(run.code, 143);
    assert_non_null(strstr(run.err, "job 7 goes on"));
    assert_int_equal(fake.cancels, 0);
}

/* ---- a long way ---- */

static struct run heddle_over(int way, const char *words)
{
    char line[512];

    (void)snprintf(line, sizeof line,
                   "%s --controller 127.0.0.1:%d --token-file %s/token --tls-ca %s/cert.pem", words,
                   fake.ports[way], fake.dir, fake.dir);
    return heddle(line, 0);
}

CASE_WITH(start_far, stop_fake)
static void a_far_controller_is_read_as_a_near_one(void **state)
{
    struct run run;

    for (int i = 0; i < WAYS; i++) {
        run = heddle_over(i, "show 7");
        if (run.code)
            fail_msg("at %d ms: exit code %d: %s", (int)round_trips_ms[i], run.code, run.err);
    }
    run = heddle_over(WAYS - 1, "wait 8"); /* a stream; job 8 has failed */
    assert_string_equal(run.out, "job 8 failed at step 2\n");
    assert_int_equal(run.code, 1);
}

/* One connection by gRPC, and one that asks for the certificate. */
CASE_WITH(start_far, stop_fake)
static void a_port_that_speaks_tls_is_told_at_once(void **state)
{
    static const char *const commands[] = {"show 7", "logs 7 --rank 0", "wait 7"};
    char line[512];
    struct run run;

    for (int i = 0; i < 3; i++) {
        (void)snprintf(line, sizeof line, "%s --controller 127.0.0.1:%d --token-file %s/token",
                       commands[i], fake.ports[0], fake.dir);
        run = heddle(line, 0);
        assert_int_equal(run.code, 3);
        if (!strstr(run.err, "speaks TLS: name the authority of its certificate with --tls-ca"))
            fail_msg("%s", run.err);
        assert_int_equal(delay_proxy_connections(fake.ways[0]), 2 * (i + 1));
    }
}

/* A listener closes connections by which no token has come, to make room. What must not come twice
 * (a removal) is asked for on a connection that the controller keeps. */
CASE_WITH(start_far, stop_fake)
static void a_connection_that_is_cut_before_the_first_answer_is_tried_again(void **state)
{
    struct run run;

    delay_proxy_cut(fake.ways[0], 2);
    run = heddle_over(0, "show 7");
    if (run.code)
        fail_msg("exit code %d: %s", run.code, run.err);
    assert_int_equal(delay_proxy_connections(fake.ways[0]), 3);
    assert_int_equal(fake.gets, 1);
    delay_proxy_cut(fake.ways[0], 2);
    run = heddle_over(0, "queue rm small"); /* the fake has no such call, and is reached */
    if (!strstr(run.err, "RemoveQueue") || strstr(run.err, "tried"))
        fail_msg("exit code %d: %s", run.code, run.err);
    assert_int_equal(delay_proxy_connections(fake.ways[0]), 6);
    delay_proxy_cut(fake.ways[0], 1000);
    run = heddle_over(0, "show 7");
    assert_int_equal(run.code, 3);
    if (!strstr(run.err, "(tried 8 times within"))
        fail_msg("%s", run.err);
    /* one connection a try: gRPC opened none by itself during the pauses */
    assert_int_equal(delay_proxy_connections(fake.ways[0]), 6 + 8);
}

/* Returns the words that name a pipe with the token, as in --token-file <(program). */
static const char *token_by_pipe(int *ret_fd)
{
    static char words[256];
    char path[128];
    struct hd_text token = {0};
    int fds[2];

    (void)snprintf(path, sizeof path, "%s/token", fake.dir);
    assert_int_equal(hd_file_read(path, 1000, &token), HD_OK);
    assert_int_equal(pipe(fds), 0); /* the program inherits fds[0] */
    assert_int_equal(write(fds[1], token.data, token.len_bytes), token.len_bytes);
    (void)close(fds[1]);
    hd_text_free(&token);
    (void)snprintf(words, sizeof words,
                   "--controller 127.0.0.1:%d --token-file /dev/fd/%d --tls-ca %s/cert.pem",
                   fake.ports[0], fds[0], fake.dir);
    *ret_fd = fds[0];
    return words;
}

CASE_WITH(start_far, stop_fake)
static void a_token_from_a_pipe_serves_every_try(void **state)
{
    char words[512];
    struct run run;
    int fd;

    delay_proxy_cut(fake.ways[0], 1);
    (void)snprintf(words, sizeof words, "show 7 %s", token_by_pipe(&fd));
    run = heddle(words, 0);
    (void)close(fd);
    if (run.code)
        fail_msg("exit code %d: %s", run.code, run.err);
    assert_int_equal(delay_proxy_connections(fake.ways[0]), 2);
}

CASE_WITH(start_far, stop_fake)
static void a_token_from_a_pipe_serves_every_command_of_a_bundle(void **state)
{
    char words[512], path[128];
    struct hd_text tar = {0};
    struct run run;
    int fd;

    (void)snprintf(path, sizeof path, "%s/b.tar", fake.dir);
    (void)snprintf(words, sizeof words, "debug bundle --out %s %s", path, token_by_pipe(&fd));
    run = heddle(words, 0);
    (void)close(fd);
    if (run.code)
        fail_msg("exit code %d: %s", run.code, run.err);
    assert_int_equal(hd_file_read(path, 1 << 20, &tar), HD_OK);
    /* two of the calls that the fake has; other commands come before and between them */
    assert_non_null(memmem(tar.data, tar.len_bytes, "heddle-debug/nodes.json", 23));
    assert_non_null(memmem(tar.data, tar.len_bytes, "heddle-debug/jobs.json", 22));
    hd_text_free(&tar);
}

static void a_bundle_without_a_controller_fails_as_any_command_does(void **state)
{
    static const char *const words[] = {"debug bundle", "debug bundle 7"};
    char line[256], path[128];

    (void)snprintf(path, sizeof path, "%s/away.tar", fake.dir);
    (void)snprintf(line, sizeof line, "jobs --controller unix:%s/away.sock", fake.dir);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const struct run alone = heddle(line, 0);
        char bundle[256];
        struct run run;

        (void)snprintf(bundle, sizeof bundle, "%s --out %s --controller unix:%s/away.sock",
                       words[i], path, fake.dir);
        run = heddle(bundle, 0);
        assert_int_equal(run.code, 3);
        assert_string_equal(run.err, alone.err);
        assert_false(hd_file_exists(path));
    }
}

static void logs_go_on_at_the_next_byte_and_with_the_next_attempt(void **state)
{
    struct run run = heddle("logs 7 -f", 0);

    assert_string_equal(run.out, "hello\nagain\n");
    assert_int_equal(run.code, 0);
    assert_int_equal(fake.reads, 4);
    assert_int_equal(fake.attempt[0], 0); /* the newest, whichever that is */
    assert_int_equal(fake.attempt[2], 1); /* from then on the one that was read */
    assert_int_equal(fake.offset[2], 3);
    assert_int_equal(fake.attempt[3], 2);
    assert_int_equal(fake.offset[3], 0);
}

/* Once, whatever the number of pages, and never where lists are read by programs. */
static void a_warning_of_the_controller_is_shown_beside_the_answer(void **state)
{
    char path[128], words[160];
    struct run run;

    fake.submits = 1; /* no reply is lost */
    put_job_file(path);
    (void)snprintf(words, sizeof words, "submit -q %s", path);
    run = heddle(words, 0);
    assert_int_equal(run.code, 0);
    assert_string_equal(run.err, "");
    assert_string_equal(heddle("jobs", 0).err, "");
    assert_string_equal(heddle("jobs -n 1", 0).err, /* of the two that the fake has */
                        "heddle: there are more jobs; -n N shows N of them\n");
    fake.warns = true;
    run = heddle(words, 0);
    assert_string_equal(run.out, "7\n");
    assert_string_equal(run.err,
                        "heddle: 9 jobs are queued or running; at 10 new ones are refused\n");
    run = heddle("jobs", 0);
    assert_int_equal(run.code, 0);
    assert_string_equal(run.err,
                        "heddle: 9 jobs are queued or running; at 10 new ones are refused\n");
    assert_null(strstr(heddle("jobs -o json", 0).out, "refused"));
}

static void states_may_be_a_list(void **state)
{
    const uint32_t expected = 1u << HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED |
                              1u << HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING |
                              1u << HEDDLE__V1__JOB_STATE__JOB_STATE_FAILED;
    struct run run;

    assert_int_equal(heddle("jobs --state queued,running --state failed,queued", 0).code, 0);
    assert_int_equal(fake.states, expected);
    run = heddle("jobs --state queued,runing", 0);
    assert_int_equal(run.code, 2);
    assert_non_null(strstr(run.err, "--state \"runing\" is not queued, running, stopping"));
    assert_int_equal(heddle("jobs --state queued,", 0).code, 2);
}

/* Goal: a controller whose clock is an hour ahead, two days behind, or which does not tell its time
 * (as older ones), has a job that was submitted 90 minutes ago, not 30, nor two days. */
static void ages_count_by_the_controllers_clock(void **state)
{
    static const int64_t ahead_ms[] = {3600 * 1000, -2 * 86400 * (int64_t)1000, 0};

    for (size_t i = 0; i < sizeof ahead_ms / sizeof ahead_ms[0]; i++) {
        struct run run;

        fake.ahead_ms = ahead_ms[i];
        run = heddle("jobs -n 1", 0);
        if (!strstr(run.out, " 1h30m"))
            fail_msg("%s", run.out);
    }
}

/* Goal: of a start that is late people are told that it may come at any moment, and no time that
 * has passed. */
static void a_start_in_the_past_is_not_shown(void **state)
{
    struct run run;

    run = heddle("explain 7", 0);
    assert_int_equal(run.code, 0);
    assert_non_null(strstr(run.out, "start     expected at any moment\n"));
    run = heddle("jobs -o wide -n 1", 0);
    assert_non_null(strstr(run.out, "  now"));
}

enum {
    RUNNING = HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING,
    FAILED = HEDDLE__V1__JOB_STATE__JOB_STATE_FAILED
};

/* Goal: a name is as good as a number where it can mean one job only. */
static void a_name_means_the_only_job_that_can_be_meant(void **state)
{
    struct run run;

    assert_int_equal(heddle("explain tiny", 0).code, 0); /* the fake's only job */
    run = heddle("show tin", 0);
    assert_int_equal(run.code, 4);
    assert_non_null(
        strstr(run.err, "there is no job, and no run of heddle local, of the name tin"));
    fake.listed[0] = (struct fake_job){9, "tiny", FAILED, NULL};
    fake.listed[1] = (struct fake_job){8, "tiny", RUNNING, NULL};
    fake.listed[2] = (struct fake_job){7, "tiny-2", RUNNING, NULL};
    run = heddle("wait tiny", 0); /* two have the name, and one has not ended */
    assert_non_null(strstr(run.out, "job 8 "));
    assert_non_null(strstr(run.err, "2 jobs have the name tiny; job 8 is taken"));
    fake.listed[1].owner = "bob"; /* who waits may mean his own, which has ended */
    assert_int_equal(heddle("wait tiny", 0).code, 2);
    fake.listed[1].state = FAILED;
    run = heddle("wait tiny", 0);
    assert_int_equal(run.code, 2);
    assert_non_null(strstr(run.err, "2 jobs have the name tiny; give the number of one:\n"
                                    "  9  tiny of me  failed, submitted 1h30m ago\n"
                                    "  8  tiny of bob  failed, submitted 1h30m ago\n"));
}

/* Goal: a pattern acts only on what was shown and agreed to. */
static void a_pattern_means_all_jobs_of_such_names_and_is_asked_about(void **state)
{
    struct run run;

    fake.listed[0] = (struct fake_job){9, "s-2", RUNNING, NULL};
    fake.listed[1] = (struct fake_job){8, "other", RUNNING, NULL};
    fake.listed[2] = (struct fake_job){7, "s-1", RUNNING, NULL};
    fake.listed[3] = (struct fake_job){6, "s-0", FAILED, NULL};
    run = heddle("cancel s-*", 0); /* there is no terminal to ask on */
    assert_int_equal(run.code, 2);
    assert_int_equal(fake.cancels, 0);
    assert_non_null(strstr(run.err, "  9  s-2 of me  running, submitted 1h30m ago\n  7  s-1 "));
    assert_null(strstr(run.err, "s-0"));
    run = heddle("cancel s-* s-1 --yes", 0); /* 7 counts once */
    assert_int_equal(run.code, 0);
    assert_int_equal(fake.cancels, 2);
    assert_int_equal(heddle("cancel x* --yes", 0).code, 4);
    run = heddle("show s-*", 0);
    assert_int_equal(run.code, 2);
    assert_non_null(strstr(run.err, "names any number of jobs, and one is needed"));
}

/* Goal: an array is all or nothing, and a repetition adds only what is missing. */
static void members_of_an_array_are_all_submitted_or_none(void **state)
{
    char path[128], words[256];
    struct run run;

    put_job_file(path);
    fake.submits = 1; /* the first answer is not lost */
    (void)snprintf(words, sizeof words, "submit %s --sweep train.lr.peak=1e-3,x", path);
    run = heddle(words, 0);
    assert_int_equal(run.code, 2);
    assert_non_null(strstr(run.err, "--sweep train.lr.peak=x: "));
    assert_int_equal(fake.validations + fake.submits, 0 + 1);

    (void)snprintf(words, sizeof words,
                   "submit %s -q --array 3-5 --set train.seed=%%a --request-id abcdefgh01234567",
                   path);
    run = heddle(words, 0);
    assert_int_equal(run.code, 0);
    assert_string_equal(run.out, "7\n7\n7\n");
    assert_int_equal(fake.validations, 3);
    assert_string_equal(fake.last_id, "abcdefgh01234567-3");

    fake.submits = 1;
    fake.refuse_at = 4; /* the third member */
    (void)snprintf(words, sizeof words, "submit %s --sweep train.seed=1,2,3", path);
    run = heddle(words, 0);
    assert_int_equal(run.code, 6);
    assert_int_equal(fake.cancels, 2);
    assert_string_equal(run.out, ""); /* no job is left */
    assert_non_null(strstr(run.err, "2 of 3 members had been submitted, and are cancelled: 8-9\n"));
}

/* Goal: a repetition is of the same array, and requests whose ids begin alike are of two, so that the
 * limit of one does not hold up the other. */
static void arrays_with_a_limit_are_told_apart_by_the_whole_request_id(void **state)
{
    static const char *const ids[] = {"nightly-run-2026-11-30", "nightly-run-2026-12-01",
                                      "nightly-run-2026-11-30"};
    char path[128], words[256], arrays[3][sizeof fake.last_array];

    put_job_file(path);
    fake.submits = 1;
    for (int i = 0; i < 3; i++) {
        (void)snprintf(words, sizeof words, "submit %s -q --array 2%%1 --request-id %s", path,
                       ids[i]);
        assert_int_equal(heddle(words, 0).code, 0);
        memcpy(arrays[i], fake.last_array, sizeof arrays[i]);
    }
    assert_true(*arrays[0] != '\0');
    assert_string_not_equal(arrays[1], arrays[0]);
    assert_string_equal(arrays[2], arrays[0]);
}

/* Goal: Ctrl-C ends the tries, too, and says what is uncertain. */
static void ctrl_c_ends_the_tries_of_an_array(void **state)
{
    char path[128], words[256];
    struct run run;

    put_job_file(path);
    fake.interrupts = true;
    (void)snprintf(words, sizeof words, "submit %s --array 1-3", path);
    run = heddle(words, 0);
    assert_int_equal(run.code, 130);
    assert_int_equal(fake.submits, 1);
    assert_string_equal(run.out, "");
    assert_non_null(strstr(run.err, "not known whether the first of 3 members was submitted"));
    assert_non_null(strstr(run.err, "the same command with --request-id "));
}

/* Goal: a queue that waits for ever is told at once. */
static void what_can_never_run_is_told_or_refused(void **state)
{
    char path[128], words[192];
    struct run run;

    put_job_file(path);
    fake.submits = 1;
    fake.never_fits = true;
    (void)snprintf(words, sizeof words, "submit %s --must-fit", path);
    run = heddle(words, 0);
    assert_int_equal(run.code, 7);
    assert_int_equal(fake.submits, 1);
    assert_non_null(strstr(run.err, "the cluster has 4 cpu devices in all"));
    (void)snprintf(words, sizeof words, "submit %s --sweep train.seed=1,2", path);
    run = heddle(words, 0);
    assert_int_equal(run.code, 0);
    assert_non_null(strstr(run.err, "can never run")); /* once for both */
    assert_null(strstr(strstr(run.err, "can never run") + 1, "can never run"));
}

static void the_deadline_of_a_drain_is_shown(void **state)
{
    fake.deadline_ms = 4102444800000;
    assert_non_null(strstr(heddle("nodes -o wide", 0).out,
                           "is draining: disk; its jobs leave it by 2100-01-01T00:00:00"));
    fake.deadline_ms = 1577836800000;
    assert_non_null(strstr(heddle("nodes -o wide", 0).out,
                           "is draining: disk; its jobs were to leave it by 2020-01-01T00:00:00"));
}

/* The reason of a node is a clause about it, so the state is not put in front of it. */
static void a_lost_node_is_told_to_be_lost_once(void **state)
{
    struct run run;

    fake.node_lost = true;
    run = heddle("top --once", 0);
    assert_non_null(strstr(run.out, "node n1 is lost\n"));
    run = heddle("nodes", 0);
    assert_non_null(strstr(run.out, "lost"));
    assert_null(strstr(run.out, "is lost"));
}

/* Goal: the command does not wait for its whole 90 s when the node's heddled has died while it was
 * measuring. A run of the program ends after RUN_MS, which is less. */
static void a_probe_of_a_node_that_dies_ends_and_says_so(void **state)
{
    struct run run;

    run = heddle("probe n1", 0);
    assert_int_equal(run.code, 6);
    assert_int_equal(fake.topologies, 2);
    assert_non_null(strstr(run.out, "n1: no result: it has not answered for 3 s; its heddled has "
                                    "stopped, or its machine or network is down. Start heddled"));
    run = heddle("probe n1 -o jsonl", 0);
    assert_int_equal(run.code, 6);
    assert_non_null(strstr(run.out, "\"silent_ms\":3000"));
}

/* While others measure, the controller gives up a node that is silent, and one is removed: no
 * controller was started anew for that. */
static void nodes_that_go_while_others_measure_are_told_as_such(void **state)
{
    struct run run;

    run = heddle("probe --all", 0);
    assert_int_equal(run.code, 6);
    assert_int_equal(fake.topologies, 3);
    assert_non_null(strstr(run.out, "n1: no result: it has not answered for 40 s; its heddled"));
    assert_non_null(strstr(run.out, "n2: probed"));
    assert_non_null(strstr(run.out, "n3: no result: the node was removed meanwhile\n"));
}

RUN_EACH_CASE_WITH(start_fake, stop_fake)
