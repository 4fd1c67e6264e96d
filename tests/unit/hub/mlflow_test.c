/* A run in a tracking server of MLflow, imitated on loopback: what is sent, and what is done about a
 * server that refuses, is busy, or is none. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hub/mlflow.h"
#include "tests/imitation_mlflow.h"
#include "tests/program/test.h"

struct fixture {
    struct imitation_mlflow server;
    struct hd_mlflow_settings settings;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    *state = f;
    if (!f || imitation_mlflow_start(&f->server))
        return -1;
    (void)snprintf(f->settings.uri, sizeof f->settings.uri, "http://127.0.0.1:%d", f->server.port);
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    imitation_mlflow_stop(&f->server);
    free(f);
    return 0;
}

static enum hd_status open_one(struct fixture *s, struct hd_mlflow **ret, bool *ret_is_new)
{
    must(hd_mlflow_new(&s->settings, NULL, ret));
    return hd_mlflow_open(*ret, "my experiment", "/runs/a", "a", 1000, ret_is_new);
}

static void a_run_is_made_filled_and_ended(void **state)
{
    const struct hd_mlflow_metric metrics[] = {{"train/loss", 2.5, 1, 2000},
                                               {"train/loss", NAN, 2, 3000}};
    const struct hd_mlflow_pair params[] = {{"train.steps", "6"}}, tags[] = {{"a", "\"quoted\""}};
    struct fixture *s = *state;
    struct hd_mlflow *m;
    bool is_new;

    must(open_one(s, &m, &is_new));
    assert_true(is_new);
    assert_string_equal(hd_mlflow_run_id(m), "new");
    must(hd_mlflow_log(m, metrics, 2, params, 1, tags, 1));
    must(hd_mlflow_end(m, "FINISHED", 4000));
    assert_string_equal(
        s->server.said.data,
        "GET /api/2.0/mlflow/experiments/get-by-name?experiment_name=my%20experiment \n"
        "POST /api/2.0/mlflow/experiments/create {\"name\":\"my experiment\"}\n"
        "POST /api/2.0/mlflow/runs/search "
        "{\"experiment_ids\":[\"8\"],\"filter\":\"tags.`heddle.run` = "
        "'/runs/a'\",\"max_results\":1,\"order_by\":[\"attributes.start_time ASC\"]}\n"
        "POST /api/2.0/mlflow/runs/create "
        "{\"experiment_id\":\"8\",\"run_name\":\"a\",\"start_time\":"
        "1000,\"tags\":[{\"key\":\"heddle.run\",\"value\":\"/runs/a\"},{\"key\":\"mlflow.runName\","
        "\"value\":\"a\"},{\"key\":\"mlflow.source.type\",\"value\":\"JOB\"}]}\n"
        "POST /api/2.0/mlflow/runs/log-batch "
        "{\"run_id\":\"new\",\"metrics\":[{\"key\":\"train/loss\","
        "\"value\":2.5,\"timestamp\":2000,\"step\":1},{\"key\":\"train/loss\",\"value\":\"NaN\","
        "\"timestamp\":3000,\"step\":2}],\"params\":[{\"key\":\"train.steps\",\"value\":\"6\"}],"
        "\"tags\":[{\"key\":\"a\",\"value\":\"\\\"quoted\\\"\"}]}\n"
        "POST /api/2.0/mlflow/runs/update {\"run_id\":\"new\",\"status\":\"FINISHED\",\"end_time\":"
        "4000}\n");
    hd_mlflow_free(m);
}

static void a_run_that_is_there_is_found_again(void **state)
{
    struct fixture *s = *state;
    struct hd_mlflow *m;
    bool is_new;

    s->server.has_experiment = s->server.has_run = 1;
    must(open_one(s, &m, &is_new));
    assert_false(is_new);
    assert_string_equal(hd_mlflow_run_id(m), "old");
    assert_null(strstr(s->server.said.data, "create"));
    hd_mlflow_free(m);
}

/* Goal: the server made a run whose answer was lost: it is gone on with, and lacks what a new run is
 * sent. If it is made only after a second one was, the second is deleted. */
static void a_lost_answer_makes_no_second_run(void **state)
{
    struct fixture *s = *state;
    struct hd_mlflow *m;
    bool is_new;

    for (int is_late = 0; is_late < 2; is_late++) {
        s->server.has_experiment = s->server.loses = 1;
        s->server.has_run = 0;
        s->server.is_late = is_late;
        hd_text_clear(&s->server.said);
        assert_int_not_equal(open_one(s, &m, &is_new), HD_OK);
        must(hd_mlflow_open(m, "my experiment", "/runs/a", "a", 1000, &is_new));
        assert_true(is_new);
        assert_string_equal(hd_mlflow_run_id(m), "lost");
        assert_int_equal(strstr(s->server.said.data, "runs/delete {\"run_id\":\"new\"}") != NULL,
                         is_late);
        hd_mlflow_free(m);
    }
}

/* user:pass is dXNlcjpwYXNz in base64. */
static void a_secret_is_sent_as_the_server_wants_it(void **state)
{
    struct fixture *s = *state;
    struct hd_mlflow *m;
    bool is_new;

    (void)strcpy(s->settings.user, "user");
    (void)strcpy(s->settings.password, "pass");
    must(open_one(s, &m, &is_new));
    assert_string_equal(s->server.authorization, "Basic dXNlcjpwYXNz");
    hd_mlflow_free(m);
    (void)strcpy(s->settings.token, "tok");
    must(open_one(s, &m, &is_new));
    assert_string_equal(s->server.authorization, "Bearer tok");
    hd_mlflow_free(m);
}

static void what_the_server_says_decides_what_to_do(void **state)
{
    struct fixture *s = *state;
    struct hd_mlflow *m;
    bool is_new;

    s->server.busy = 1;
    assert_int_equal(open_one(s, &m, &is_new), HD_UNAVAILABLE);
    assert_int_equal(hd_mlflow_open(m, "e", "/r", "r", 1, &is_new), HD_OK);
    hd_mlflow_free(m);
    s->server.denies = 1;
    assert_int_equal(open_one(s, &m, &is_new), HD_DENIED);
    assert_non_null(strstr(hd_err_message(), "MLFLOW_TRACKING_TOKEN"));
    hd_mlflow_free(m);
    s->server.denies = 0;
    s->server.bad = "<html>a login page</html>";
    assert_int_equal(open_one(s, &m, &is_new), HD_CORRUPT);
    hd_mlflow_free(m);
    s->server.bad =
        "{\"experiment\": {\"experiment_id\": \"7\", \"lifecycle_stage\": \"deleted\"}}";
    assert_int_equal(open_one(s, &m, &is_new), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "deleted"));
    hd_mlflow_free(m);

    (void)snprintf(s->settings.uri, sizeof s->settings.uri, "http://127.0.0.1:1");
    assert_int_equal(open_one(s, &m, &is_new), HD_UNAVAILABLE);
    hd_mlflow_free(m);
}

static void settings_are_read_and_secrets_never_sent_in_plain_text(void **state)
{
    struct hd_mlflow_settings s;

    (void)unsetenv("MLFLOW_TRACKING_URI");
    (void)unsetenv("MLFLOW_TRACKING_TOKEN");
    assert_int_equal(hd_mlflow_read_settings(NULL, &s), HD_INVALID);
    (void)setenv("MLFLOW_TRACKING_URI", "http://tracking.example:5000/", 1);
    assert_int_equal(hd_mlflow_read_settings(NULL, &s), HD_OK);
    assert_string_equal(s.uri, "http://tracking.example:5000");
    assert_int_equal(hd_mlflow_read_settings("./mlruns", &s), HD_INVALID);
    assert_int_equal(hd_mlflow_read_settings("http://me:secret@host", &s), HD_INVALID);
    assert_null(strstr(hd_err_message(), "secret"));
    (void)setenv("MLFLOW_TRACKING_TOKEN", "tok", 1);
    assert_int_equal(hd_mlflow_read_settings(NULL, &s), HD_INVALID);
    assert_int_equal(hd_mlflow_read_settings("https://tracking.example", &s), HD_OK);
    assert_int_equal(hd_mlflow_read_settings("http://127.0.0.1:5000", &s), HD_OK);
    (void)unsetenv("MLFLOW_TRACKING_TOKEN");
    (void)unsetenv("MLFLOW_TRACKING_URI");
}

RUN_EACH_CASE_WITH(set_up, tear_down)
