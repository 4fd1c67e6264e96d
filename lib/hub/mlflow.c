/* mlflow: requests to a tracking server of MLflow. Key names may have letters, digits and "_-./ :"; a
 * value that is not finite is the text NaN, Infinity or -Infinity, as Python's client sends it. */
#include "hub/mlflow.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digits.h"
#include "base/json.h"
#include "hub_internal.h"

enum {
    TIMEOUT_MS = 30000,
    ANSWER_BYTES_MAX = 1 << 20,
    ANSWER_VALUES_MAX = 100000,
    ANSWER_DEPTH_MAX = 32,
    NAME_BYTES_MAX = 500, /* of an experiment, on every server */
    ID_BYTES_MAX = 64
};

/* tag of a run whose tags and parameters were sent */
#define BEGUN "heddle.begun"

struct hd_mlflow {
    struct hd_mlflow_settings settings;
    struct hd_hub_settings http;
    struct hub_client *client;
    char authorization[640]; /* header of user and password; "": none */
    char experiment_id[ID_BYTES_MAX], run_id[ID_BYTES_MAX];
    /* the call runs/create had no answer: the server may have made the run, or may still make it */
    bool is_uncertain;
};

/* ---- settings ---- */

static enum hd_status copy_variable(const char *name, char *ret_text, size_t size)
{
    const char *text = hub_variable(name);

    ret_text[0] = '\0';
    return text ? hub_copy_setting(name, text, ret_text, size) : HD_OK;
}

enum hd_status hd_mlflow_read_settings(const char *uri, struct hd_mlflow_settings *ret_settings)
{
    struct hd_mlflow_settings *s = ret_settings;
    const char *from = uri ? uri : hub_variable("MLFLOW_TRACKING_URI");
    enum hd_status st;
    size_t len;

    *s = (struct hd_mlflow_settings){.uri = ""};
    if (!from)
        return hd_err(HD_INVALID, "no tracking server is named; give --mlflow URL, or set "
                                  "MLFLOW_TRACKING_URI, such as http://127.0.0.1:5000");
    st = hub_copy_setting("the tracking server", from, s->uri, sizeof s->uri);
    for (len = strlen(s->uri); !st && len && s->uri[len - 1] == '/';)
        s->uri[--len] = '\0';
    if (!st && (!(hd_text_starts(s->uri, "http://") || hd_text_starts(s->uri, "https://")) ||
                strpbrk(s->uri, "@?# ")))
        st = hd_err(
            HD_INVALID,
            "%.200s is no tracking server; write https://HOST or http://HOST:PORT, without a "
            "password (MLFLOW_TRACKING_USERNAME, _PASSWORD); a folder or a database is "
            "served by `mlflow server`",
            strchr(s->uri, '@') ? "a URL with @" : s->uri);
    if (!st)
        st = copy_variable("MLFLOW_TRACKING_TOKEN", s->token, sizeof s->token);
    if (!st)
        st = copy_variable("MLFLOW_TRACKING_USERNAME", s->user, sizeof s->user);
    if (!st)
        st = copy_variable("MLFLOW_TRACKING_PASSWORD", s->password, sizeof s->password);
    if (!st)
        st = copy_variable("MLFLOW_TRACKING_SERVER_CERT_PATH", s->ca_file, sizeof s->ca_file);
    if (!st && (*s->token || *s->user) && !hub_url_is_allowed(s->uri))
        st = hd_err(
            HD_INVALID,
            "%.200s: a token or password would be sent in plain text; use https://, or unset "
            "MLFLOW_TRACKING_TOKEN and MLFLOW_TRACKING_USERNAME",
            s->uri);
    return st;
}

enum hd_status hd_mlflow_new(const struct hd_mlflow_settings *settings,
                             const volatile sig_atomic_t *stop, struct hd_mlflow **ret_mlflow)
{
    struct hd_mlflow *m = calloc(1, sizeof *m);
    char plain[sizeof settings->user + sizeof settings->password + 2];
    enum hd_status st;

    if (!m)
        return hd_err(HD_NO_MEMORY, "no memory for a tracking server");
    m->settings = *settings;
    (void)snprintf(m->http.endpoint, sizeof m->http.endpoint, "%s", settings->uri);
    (void)snprintf(m->http.token, sizeof m->http.token, "%s", settings->token);
    (void)snprintf(m->http.ca_file, sizeof m->http.ca_file, "%s", settings->ca_file);
    if (*settings->user && !*settings->token) {
        (void)snprintf(plain, sizeof plain, "%s:%s", settings->user, settings->password);
        (void)snprintf(m->authorization, sizeof m->authorization, "Authorization: Basic ");
        hd_base64_format(plain, strlen(plain), m->authorization + strlen(m->authorization));
        explicit_bzero(plain, sizeof plain);
    }
    st = hub_client_new(&m->http, stop, &m->client);
    if (st) {
        hd_mlflow_free(m);
        return st;
    }
    *ret_mlflow = m;
    return HD_OK;
}

void hd_mlflow_free(struct hd_mlflow *mlflow)
{
    if (!mlflow)
        return;
    hub_client_free(mlflow->client);
    explicit_bzero(mlflow, sizeof *mlflow);
    free(mlflow);
}

const char *hd_mlflow_run_id(const struct hd_mlflow *mlflow)
{
    return mlflow->run_id;
}

/* ---- one request ---- */

static enum hd_status keep_body(void *user, const struct hub_answer *answer, const void *bytes,
                                size_t count)
{
    struct hd_text *body = user;

    (void)answer;
    if (body->len_bytes + count > ANSWER_BYTES_MAX)
        return hd_err(HD_CORRUPT, "the tracking server's answer is too long");
    hd_text_add_bytes(body, bytes, count);
    return HD_OK;
}

/* Reads an answer; *ret_root is NULL for one that is no JSON. */
static void read_answer(const struct hd_text *body, struct hd_arena *arena,
                        const struct hd_json **ret_root)
{
    const struct hd_json_limits limits = {ANSWER_VALUES_MAX, ANSWER_DEPTH_MAX};

    *ret_root = NULL;
    if (body->len_bytes)
        (void)hd_json_parse_repeated(arena, body->data, body->len_bytes, &limits, ret_root);
}

/* Makes the failure of an answer of another status than 200. */
static enum hd_status explain_answer(const struct hd_mlflow *m, const struct hub_answer *answer,
                                     const struct hd_text *body, char ret_code[64])
{
    const struct hd_json *root;
    const char *message;
    char said[300] = "";
    struct hd_arena arena;
    enum hd_status st = hub_may_retry(answer)   ? HD_UNAVAILABLE
                        : answer->status == 401 ? HD_DENIED
                        : answer->status == 403 ? HD_DENIED
                                                : HD_INVALID;

    hd_arena_init(&arena, 4 * ANSWER_BYTES_MAX);
    read_answer(body, &arena, &root);
    message = hd_json_text(root, "message");
    if (message)
        hub_copy_clean(message, said, sizeof said);
    ret_code[0] = '\0';
    if (root && root->kind == HD_JSON_OBJECT)
        (void)hd_json_copy_string(root, "error_code", ret_code, 64);
    hd_arena_done(&arena);
    return hd_err(st, "%s answers %d%s%s%s", m->settings.uri, answer->status, *said ? ": " : "",
                  said,
                  st == HD_DENIED ? "; set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and "
                                    "_PASSWORD"
                  : answer->status == 404 && !*said ? "; is this a tracking server of MLflow?"
                                                    : "");
}

/* Sends a request and keeps its answer. ret_code: error_code of a refusal. */
static enum hd_status ask_mlflow(struct hd_mlflow *m, const char *method, const char *call_name,
                                 const struct hd_text *body, struct hd_text *ret_body,
                                 char ret_code[64])
{
    const char *headers[2] = {"Content-Type: application/json", m->authorization};
    struct hd_text page = {0};
    struct hub_call call = {.method = method,
                            .headers = headers,
                            .header_count = *m->authorization ? 2 : 1,
                            .has_body = body != NULL,
                            .body = body ? body->data : NULL,
                            .body_bytes = body ? (int64_t)body->len_bytes : 0,
                            .timeout_ms = TIMEOUT_MS,
                            .sink = keep_body,
                            .user = ret_body,
                            .page = &page};
    struct hub_answer answer = {0};
    char url[HUB_URL_MAX];
    enum hd_status st;

    ret_code[0] = '\0';
    if (body && body->failed)
        return hd_err(HD_NO_MEMORY, "no memory for a request");
    (void)snprintf(url, sizeof url, "%s/api/2.0/mlflow/%s", m->settings.uri, call_name);
    st = hub_send(m->client, url, &call, &answer);
    if (!st && answer.status != 200)
        st = explain_answer(m, &answer, &page, ret_code);
    if (!st && ret_body->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for an answer");
    hd_text_free(&page);
    return st;
}

/* Copies the text at a path of members such as run.info.run_id; the first element of an array. */
static enum hd_status copy_member(const struct hd_mlflow *m, const struct hd_text *body,
                                  const char *const *names, char *ret_text, size_t size)
{
    const struct hd_json *value;
    struct hd_arena arena;

    hd_arena_init(&arena, 4 * ANSWER_BYTES_MAX);
    read_answer(body, &arena, &value);
    for (; value && *names; names++) {
        if (value->kind == HD_JSON_ARRAY)
            value = value->first;
        value = value && value->kind == HD_JSON_OBJECT ? hd_json_member(value, *names) : NULL;
    }
    ret_text[0] = '\0';
    if (value && value->kind == HD_JSON_STRING && strlen(value->text) < size &&
        !strpbrk(value->text, "/\\\"\n"))
        (void)strcpy(ret_text, value->text);
    hd_arena_done(&arena);
    return *ret_text ? HD_OK
                     : hd_err(HD_CORRUPT, "%s: the answer is not one of MLflow", m->settings.uri);
}

/* ---- experiment and run ---- */

static enum hd_status get_experiment(struct hd_mlflow *m, const char *name, char ret_code[64])
{
    static const char *const id[] = {"experiment", "experiment_id", NULL};
    static const char *const stage[] = {"experiment", "lifecycle_stage", NULL};
    struct hd_text call = {0}, body = {0};
    char state[32];
    enum hd_status st;

    hd_text_add(&call, "experiments/get-by-name?experiment_name=");
    hub_add_encoded(&call, name, "");
    st = call.failed ? hd_err(HD_NO_MEMORY, "no memory for a request")
                     : ask_mlflow(m, "GET", call.data, NULL, &body, ret_code);
    if (!st)
        st = copy_member(m, &body, id, m->experiment_id, sizeof m->experiment_id);
    if (!st && !copy_member(m, &body, stage, state, sizeof state) && strcmp(state, "deleted") == 0)
        st = hd_err(
            HD_INVALID,
            "the experiment %.100s was deleted, and its name is not free; restore it (mlflow "
            "experiments restore), or give another --experiment",
            name);
    hd_text_free(&call);
    hd_text_free(&body);
    return st;
}

static enum hd_status make_experiment(struct hd_mlflow *m, const char *name, char ret_code[64])
{
    static const char *const id[] = {"experiment_id", NULL};
    struct hd_text text = {0}, body = {0};
    struct hd_json_writer w = {.out = &text};
    enum hd_status st;

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "name", name);
    hd_json_end(&w, '}');
    st = ask_mlflow(m, "POST", "experiments/create", &text, &body, ret_code);
    if (!st)
        st = copy_member(m, &body, id, m->experiment_id, sizeof m->experiment_id);
    hd_text_free(&text);
    hd_text_free(&body);
    return st;
}

/* Returns whether the first run of an answer has the tag BEGUN. */
static bool has_begun(const struct hd_text *body)
{
    static const char *const path[] = {"runs", "data", "tags", NULL};
    const struct hd_json *value;
    struct hd_arena arena;
    bool found = false;

    hd_arena_init(&arena, 4 * ANSWER_BYTES_MAX);
    read_answer(body, &arena, &value);
    for (const char *const *name = path; value && *name; name++) {
        value = value->kind == HD_JSON_ARRAY ? value->first : value;
        value = value && value->kind == HD_JSON_OBJECT ? hd_json_member(value, *name) : NULL;
    }
    for (value = value ? value->first : NULL; value && !found; value = value->next) {
        const char *key = hd_json_text(value, "key");

        found = key && strcmp(key, BEGUN) == 0;
    }
    hd_arena_done(&arena);
    return found;
}

/* Sets run_id to the oldest run with this identity; "": none. *ret_begun: it has its tags and
 * parameters. */
static enum hd_status find_run(struct hd_mlflow *m, const char *identity, bool *ret_begun)
{
    static const char *const id[] = {"runs", "info", "run_id", NULL};
    struct hd_text text = {0}, body = {0};
    struct hd_json_writer w = {.out = &text};
    char filter[NAME_BYTES_MAX + 64], code[64];
    enum hd_status st;

    (void)snprintf(filter, sizeof filter, "tags.`heddle.run` = '%.*s'", NAME_BYTES_MAX, identity);
    hd_json_begin(&w, NULL, '{');
    hd_json_begin(&w, "experiment_ids", '[');
    hd_json_add_string(&w, NULL, m->experiment_id);
    hd_json_end(&w, ']');
    hd_json_add_string(&w, "filter", filter);
    hd_json_add_int64(&w, "max_results", 1);
    hd_json_begin(&w, "order_by", '[');
    hd_json_add_string(&w, NULL, "attributes.start_time ASC");
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
    m->run_id[0] = '\0';
    st = ask_mlflow(m, "POST", "runs/search", &text, &body, code);
    if (!st)
        (void)copy_member(m, &body, id, m->run_id, sizeof m->run_id);
    *ret_begun = !st && has_begun(&body);
    hd_text_free(&text);
    hd_text_free(&body);
    return st;
}

static void add_pair(struct hd_json_writer *w, const char *key, const char *value)
{
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "key", key);
    hd_json_add_string(w, "value", value);
    hd_json_end(w, '}');
}

static enum hd_status make_run(struct hd_mlflow *m, const char *identity, const char *name,
                               int64_t start_ms)
{
    static const char *const id[] = {"run", "info", "run_id", NULL};
    struct hd_text text = {0}, body = {0};
    struct hd_json_writer w = {.out = &text};
    char code[64];
    enum hd_status st;

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "experiment_id", m->experiment_id);
    hd_json_add_string(&w, "run_name", name);
    hd_json_add_int64(&w, "start_time", start_ms);
    hd_json_begin(&w, "tags", '[');
    add_pair(&w, "heddle.run", identity);
    add_pair(&w, "mlflow.runName", name);
    add_pair(&w, "mlflow.source.type", "JOB");
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
    m->is_uncertain = true; /* until the answer is here */
    st = ask_mlflow(m, "POST", "runs/create", &text, &body, code);
    if (!st)
        st = copy_member(m, &body, id, m->run_id, sizeof m->run_id);
    hd_text_free(&text);
    hd_text_free(&body);
    return st;
}

/* Makes the run after a call whose answer was lost. If the server has made the run of that call after
 * all, that one stays, and the second is deleted. */
static enum hd_status make_run_again(struct hd_mlflow *m, const char *identity, const char *name,
                                     int64_t start_ms)
{
    char second[sizeof m->run_id], code[64];
    struct hd_text text = {0}, body = {0};
    struct hd_json_writer w = {.out = &text};
    bool begun;
    enum hd_status st = make_run(m, identity, name, start_ms);

    if (st)
        return st;
    (void)memcpy(second, m->run_id, sizeof second);
    st = find_run(m, identity, &begun);
    if (st || !*m->run_id || strcmp(m->run_id, second) == 0) {
        (void)memcpy(m->run_id, second, sizeof second);
        return HD_OK;
    }
    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "run_id", second);
    hd_json_end(&w, '}');
    st = ask_mlflow(m, "POST", "runs/delete", &text, &body, code);
    hd_text_free(&text);
    hd_text_free(&body);
    return st;
}

enum hd_status hd_mlflow_open(struct hd_mlflow *mlflow, const char *experiment,
                              const char *identity, const char *name, int64_t start_ms,
                              bool *ret_is_new)
{
    char code[64];
    bool begun = false;
    enum hd_status st;

    *ret_is_new = false;
    if (!*experiment || strlen(experiment) > NAME_BYTES_MAX || strlen(identity) > NAME_BYTES_MAX ||
        strpbrk(identity, "'`"))
        return hd_err(HD_INVALID,
                      "the name of an experiment has 1 to %d bytes, and that of a run's "
                      "folder no quotes",
                      NAME_BYTES_MAX);
    st = get_experiment(mlflow, experiment, code);
    if (st && strcmp(code, "RESOURCE_DOES_NOT_EXIST") == 0) {
        st = make_experiment(mlflow, experiment, code);
        if (st && strcmp(code, "RESOURCE_ALREADY_EXISTS") == 0) /* made by another at this moment */
            st = get_experiment(mlflow, experiment, code);
    }
    if (!st)
        st = find_run(mlflow, identity, &begun);
    if (!st && !*mlflow->run_id)
        st = mlflow->is_uncertain ? make_run_again(mlflow, identity, name, start_ms)
                                  : make_run(mlflow, identity, name, start_ms);
    mlflow->is_uncertain &= st != HD_OK;
    *ret_is_new = !begun;
    return st;
}

enum hd_status hd_mlflow_begin(struct hd_mlflow *mlflow)
{
    const struct hd_mlflow_pair tag = {BEGUN, "true"};

    return hd_mlflow_log(mlflow, NULL, 0, NULL, 0, &tag, 1);
}

/* ---- values ---- */

static void add_number(struct hd_json_writer *w, double value)
{
    if (isfinite(value))
        hd_json_add_real(w, "value", value);
    else
        hd_json_add_string(w, "value", isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
}

static void add_pairs(struct hd_json_writer *w, const char *name,
                      const struct hd_mlflow_pair *pairs, size_t count)
{
    if (!count)
        return;
    hd_json_begin(w, name, '[');
    for (size_t i = 0; i < count; i++)
        add_pair(w, pairs[i].key, pairs[i].value);
    hd_json_end(w, ']');
}

enum hd_status hd_mlflow_log(struct hd_mlflow *mlflow, const struct hd_mlflow_metric *metrics,
                             size_t metric_count, const struct hd_mlflow_pair *params,
                             size_t param_count, const struct hd_mlflow_pair *tags,
                             size_t tag_count)
{
    struct hd_text text = {0}, body = {0};
    struct hd_json_writer w = {.out = &text};
    char code[64];
    enum hd_status st;

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "run_id", mlflow->run_id);
    if (metric_count)
        hd_json_begin(&w, "metrics", '[');
    for (size_t i = 0; i < metric_count; i++) {
        hd_json_begin(&w, NULL, '{');
        hd_json_add_string(&w, "key", metrics[i].key);
        add_number(&w, metrics[i].value);
        hd_json_add_int64(&w, "timestamp", metrics[i].time_ms);
        hd_json_add_int64(&w, "step", metrics[i].step);
        hd_json_end(&w, '}');
    }
    if (metric_count)
        hd_json_end(&w, ']');
    add_pairs(&w, "params", params, param_count);
    add_pairs(&w, "tags", tags, tag_count);
    hd_json_end(&w, '}');
    st = ask_mlflow(mlflow, "POST", "runs/log-batch", &text, &body, code);
    hd_text_free(&text);
    hd_text_free(&body);
    return st;
}

enum hd_status hd_mlflow_end(struct hd_mlflow *mlflow, const char *state, int64_t end_ms)
{
    struct hd_text text = {0}, body = {0};
    struct hd_json_writer w = {.out = &text};
    char code[64];
    enum hd_status st;

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "run_id", mlflow->run_id);
    hd_json_add_string(&w, "status", state);
    if (end_ms)
        hd_json_add_int64(&w, "end_time", end_ms);
    hd_json_end(&w, '}');
    st = ask_mlflow(mlflow, "POST", "runs/update", &text, &body, code);
    hd_text_free(&text);
    hd_text_free(&body);
    return st;
}
