/* heddle track: a run's history in a tracking server, imitated on loopback. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "controller/cli/cli.h"
#include "tests/imitation_mlflow.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

struct fixture {
    struct imitation_mlflow server;
    char dir[TEMPORARY_BYTES], uri[64];
};

static const char history[] =
    "{\"type\":\"event\",\"job\":3,\"kind\":\"state\",\"state\":\"queued\"}\n"
    "{\"type\":\"validation\",\"job\":3,\"step\":0,\"loss\":5.5,\"set\":\"web\",\"time\":"
    "\"1970-01-01T00:00:01.000Z\"}\n"
    "{\"type\":\"step\",\"job\":3,\"step\":1,\"loss\":5.25,\"lr\":0.5,\"tokens\":8,\"time\":"
    "\"1970-01-01T00:00:02.125Z\"}\n"
    "{\"type\":\"validation\",\"job\":3,\"step\":1,\"score\":0.75,\"set\":\"quiz/acc\"}\n";

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    *state = f;
    if (!f || imitation_mlflow_start(&f->server))
        return -1;
    temporary_dir(f->dir, "heddle-track");
    (void)snprintf(f->uri, sizeof f->uri, "http://127.0.0.1:%d", f->server.port);
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    imitation_mlflow_stop(&f->server);
    (void)hd_file_remove_tree(f->dir);
    free(f);
    return 0;
}

extern const struct cli_body cli_body_track;

/* Writes the history with these lines at its end, and tracks it; returns the exit code. */
static int track(struct fixture *f, const char *end, const char *patience)
{
    char *argv[] = {f->dir, (char *)"--mlflow", f->uri, (char *)"--patience", (char *)patience};
    struct hd_text text = {0};
    const struct cli_command command = {.name = "track", .body = &cli_body_track};
    struct cli cli = {.command = &command};
    char path[256];

    hd_text_add(&text, "%s%s", history, end);
    (void)snprintf(path, sizeof path, "%s/history.jsonl", f->dir);
    must(hd_file_write_atomic(path, text.data, text.len_bytes, 0644));
    hd_text_free(&text);
    hd_text_clear(&f->server.said);
    return cli_body_track.run(&cli, 5, argv);
}

/* The server is busy at the first request: it is asked again after a second, and nothing is lost. */
static void a_run_that_has_ended_is_sent_whole(void **state)
{
    struct fixture *f = *state;
    char identity[TEMPORARY_BYTES + 64];

    f->server.busy = 1;
    assert_int_equal(track(f, "{\"type\":\"end\",\"job\":3,\"state\":\"succeeded\"}\n", "60"),
                     CLI_OK);
    assert_non_null(
        strstr(f->server.said.data,
               "\"metrics\":[{\"key\":\"validation/web/loss\",\"value\":5.5,\"timestamp\":"
               "1000,\"step\":0},{\"key\":\"train/loss\",\"value\":5.25,\"timestamp\":2125,"
               "\"step\":1},"));
    assert_non_null(strstr(f->server.said.data, "{\"key\":\"train/tokens\",\"value\":8,"));
    assert_non_null(
        strstr(f->server.said.data, "{\"key\":\"validation/quiz/acc\",\"value\":0.75,"));
    assert_non_null(strstr(f->server.said.data, "\"status\":\"FINISHED\",\"end_time\":2125}"));
    (void)snprintf(identity, sizeof identity, "\"heddle.run\",\"value\":\"%s of 1000\"", f->dir);
    assert_non_null(strstr(f->server.said.data, identity));
}

static int times_said(const struct fixture *f, const char *words)
{
    int times = 0;

    for (const char *at = f->server.said.data; (at = strstr(at, words)) != NULL; at++)
        times++;
    return times;
}

/* The tags are the second call of a new run, its state is the last: each is sent again. */
static void a_call_that_fails_once_is_repeated(void **state)
{
    struct fixture *f = *state;

    f->server.busy_at = "runs/log-batch";
    assert_int_equal(track(f, "", "60"), CLI_OK);
    assert_int_equal(times_said(f, "heddle.version"), 2);
    f->server.busy_at = "runs/update";
    assert_int_equal(track(f, "", "60"), CLI_OK);
    assert_int_equal(times_said(f, "\"KILLED\""), 2);
}

static void a_line_longer_than_a_mebibyte_is_refused(void **state)
{
    struct fixture *f = *state;
    char *line = malloc((2 << 20) + 1);

    assert_non_null(line);
    memset(line, 'x', 2 << 20);
    line[2 << 20] = '\0';
    assert_int_equal(track(f, line, "0"), CLI_USAGE);
    free(line);
}

static void the_end_of_a_run_is_its_state(void **state)
{
    struct fixture *f = *state;

    f->server.has_experiment = f->server.has_run = 1; /* sent once before */
    assert_int_equal(track(f, "{\"type\":\"end\",\"job\":3,\"state\":\"failed\"}\n", "0"), CLI_OK);
    assert_non_null(strstr(f->server.said.data, "{\"run_id\":\"old\",\"status\":\"RUNNING\"}"));
    assert_non_null(strstr(f->server.said.data, "\"status\":\"FAILED\""));
    /* killed: no process writes the history any more, and its last line was cut */
    assert_int_equal(track(f, "{\"type\":\"st", "0"), CLI_OK);
    assert_non_null(strstr(f->server.said.data, "\"status\":\"KILLED\""));
}

static void a_server_that_is_away_or_refuses_ends_with_its_code(void **state)
{
    struct fixture *f = *state;

    f->server.denies = 1;
    assert_int_equal(track(f, "", "60"), CLI_DENIED);
    f->server.denies = 0;
    f->server.busy = 1000;
    assert_int_equal(track(f, "", "0"), CLI_UNREACHABLE);
    (void)snprintf(f->uri, sizeof f->uri, "./mlruns");
    assert_int_equal(track(f, "", "0"), CLI_USAGE);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
