/* The standard services: health tells the truth, also while the server goes; reflection gives what
 * was asked for, file by file and in order. */
#include "echo_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "rpc/standard.h"

#define SERVING(name)  GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##name
#define ANSWERED(what) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##what
#define ASKING(what)   GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##what

extern const unsigned char hd_proto_descriptors[]; /* all of proto/ */
extern const size_t hd_proto_descriptors_bytes;

static void open_with_standard(struct echo *echo)
{
    echo_begin(echo);
    (void)snprintf(echo->address, sizeof echo->address, "unix:%s/s", echo->dir);
    assert_int_equal(hd_rpc_server_new(echo->rpc, NULL, &echo->server), HD_OK);
    echo_add_methods(echo);
    assert_int_equal(
        hd_rpc_server_add_standard(echo->server, hd_proto_descriptors, hd_proto_descriptors_bytes),
        HD_OK);
    assert_int_equal(hd_rpc_server_listen(echo->server, echo->address, NULL), HD_OK);
    assert_int_equal(hd_rpc_server_start(echo->server), HD_OK);
    assert_int_equal(hd_rpc_client_new(echo->rpc, echo->address, NULL, &echo->client), HD_OK);
}

/* ---- health ---- */

static enum hd_status check(struct echo *echo, const char *service, int *ret_serving)
{
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    ProtobufCMessage *response = NULL;
    enum hd_status st;

    request.service = (char *)service;
    st = hd_rpc_call_wait(echo->client, "/grpc.health.v1.Health/Check",
                          &grpc__health__v1__health_check_response__descriptor, 5000, &request.base,
                          &response);
    if (!st)
        *ret_serving = (int)((Grpc__Health__V1__HealthCheckResponse *)response)->status;
    hd_rpc_message_free(response);
    return st;
}

static void a_registered_service_is_serving_and_no_other(void **state)
{
    static const char *const there[] = {"", "heddle.test.Echo", "grpc.health.v1.Health",
                                        "grpc.reflection.v1alpha.ServerReflection"};
    static const char *const absent[] = {"heddle.test.Ech", "heddle.test.Echo2", "Echo", "/"};
    struct echo echo;

    open_with_standard(&echo);
    for (size_t i = 0; i < sizeof there / sizeof there[0]; i++) {
        int serving = 0;

        assert_int_equal(check(&echo, there[i], &serving), HD_OK);
        assert_int_equal(serving, SERVING(SERVING));
    }
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++) {
        int serving = 0;

        assert_int_equal(check(&echo, absent[i], &serving), HD_NOT_FOUND);
    }
    echo_close(&echo);
}

struct watched {
    int statuses[8], count, dones;
    enum hd_status end;
};

static void on_health(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    struct watched *w = hd_rpc_call_user(call);

    assert_in_range(w->count, 0, 7);
    w->statuses[w->count++] = (int)((const Grpc__Health__V1__HealthCheckResponse *)message)->status;
}

static void on_health_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct watched *w = hd_rpc_call_user(call);

    w->end = status;
    w->dones++;
}

static void watch(struct echo *echo, const char *service, struct watched *w)
{
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    const struct hd_rpc_call_options options = {
        .path = "/grpc.health.v1.Health/Watch",
        .kind = HD_RPC_SERVER_STREAM,
        .response = &grpc__health__v1__health_check_response__descriptor,
        .handler = {.on_msg = on_health, .on_done = on_health_done},
        .user = w,
    };

    *w = (struct watched){0};
    request.service = (char *)service;
    assert_int_equal(hd_rpc_client_call(echo->client, &options, &request.base, NULL), HD_OK);
    echo_run_until(echo, &w->count, 1, 5000);
}

static void set_flag(void *user)
{
    *(int *)user = 1;
}

/* Goal: a load balancer takes a server that goes out of its list before calls fail. Method: watch,
 * close without grace, and see the last word come through. */
static void who_watches_hears_of_the_end(void **state)
{
    struct watched whole, one, none;
    int closed = 0;
    struct echo echo;

    open_with_standard(&echo);
    watch(&echo, "", &whole);
    watch(&echo, "heddle.test.Echo", &one);
    watch(&echo, "heddle.test.Nobody", &none);
    hd_rpc_server_close(echo.server, 0, set_flag, &closed);
    echo_run_until(&echo, &closed, 1, 5000);
    echo_run_until(&echo, &whole.dones, 1, 5000);
    echo_run_until(&echo, &one.dones, 1, 5000);
    echo_run_until(&echo, &none.dones, 1, 5000);
    assert_int_equal(whole.statuses[0], SERVING(SERVING));
    assert_int_equal(one.statuses[0], SERVING(SERVING));
    assert_int_equal(none.statuses[0], SERVING(SERVICE_UNKNOWN)); /* and the stream stayed open */
    assert_int_equal(whole.count, 2);
    assert_int_equal(one.count, 2);
    assert_int_equal(whole.statuses[1], SERVING(NOT_SERVING));
    assert_int_equal(one.statuses[1], SERVING(NOT_SERVING));
    assert_int_equal(whole.end, HD_OK);
    echo_close(&echo);
}

static void a_server_that_is_not_fit_says_so_and_answers(void **state)
{
    struct watched whole, none;
    int serving = 0;
    struct echo echo;

    open_with_standard(&echo);
    watch(&echo, "", &whole);
    watch(&echo, "heddle.test.Nobody", &none);
    hd_rpc_server_set_serving(echo.server, false);
    hd_rpc_server_set_serving(echo.server, false); /* told once */
    assert_int_equal(check(&echo, "heddle.test.Echo", &serving), HD_OK);
    assert_int_equal(serving, SERVING(NOT_SERVING));
    hd_rpc_server_set_serving(echo.server, true);
    assert_int_equal(check(&echo, "", &serving), HD_OK);
    assert_int_equal(serving, SERVING(SERVING));
    echo_run_until(&echo, &whole.count, 3, 5000);
    assert_int_equal(whole.statuses[1], SERVING(NOT_SERVING));
    assert_int_equal(whole.statuses[2], SERVING(SERVING));
    assert_int_equal(none.count, 1); /* of a service that is not here there is nothing to tell */
    echo_close(&echo);
}

static void a_watcher_that_leaves_is_forgotten(void **state)
{
    const struct hd_rpc_call_options options = {
        .path = "/grpc.health.v1.Health/Watch",
        .kind = HD_RPC_SERVER_STREAM,
        .response = &grpc__health__v1__health_check_response__descriptor,
    };
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    struct hd_rpc_call *calls[3];
    struct echo echo;

    open_with_standard(&echo);
    for (int i = 0; i < 3; i++)
        assert_int_equal(hd_rpc_client_call(echo.client, &options, &request.base, &calls[i]),
                         HD_OK);
    while (hd_rpc_server_calls(echo.server) < 3)
        echo_run_for(&echo, 10);
    hd_rpc_call_cancel(calls[1]); /* from the middle of the list */
    while (hd_rpc_server_calls(echo.server) > 2)
        echo_run_for(&echo, 10);
    hd_rpc_call_cancel(calls[2]);
    hd_rpc_call_cancel(calls[0]);
    while (hd_rpc_server_calls(echo.server) > 0)
        echo_run_for(&echo, 10);
    echo_close(&echo);
}

/* ---- reflection ---- */

enum { TEXT_MAX = 2048 };

/* The answers of one stream as text, a line each. */
struct answers {
    char text[TEXT_MAX];
    size_t used;
    int count, dones;
    enum hd_status end;
};

static void add_line(struct answers *a, const char *line)
{
    if (a->used + strlen(line) + 2 < sizeof a->text)
        a->used += (size_t)snprintf(a->text + a->used, sizeof a->text - a->used, "%s\n", line);
}

/* A file's name is its first field: tag 10, one byte of length. */
static void add_files(struct answers *a, const Grpc__Reflection__V1__FileDescriptorResponse *files)
{
    char line[512] = "files";

    for (size_t i = 0; i < files->n_file_descriptor_proto; i++) {
        const ProtobufCBinaryData *f = &files->file_descriptor_proto[i];
        size_t used = strlen(line);

        assert_true(f->len > 2 && f->data[0] == 10 && f->data[1] < 128);
        (void)snprintf(line + used, sizeof line - used, " %.*s", f->data[1],
                       (const char *)f->data + 2);
    }
    add_line(a, line);
}

static void on_answer(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Grpc__Reflection__V1__ServerReflectionResponse *r = (const void *)message;
    struct answers *a = hd_rpc_call_user(call);
    char line[512] = "services";

    a->count++;
    assert_string_equal(r->valid_host, "host");
    assert_non_null(r->original_request);
    switch (r->message_response_case) {
    case ANSWERED(FILE_DESCRIPTOR_RESPONSE):
        add_files(a, r->file_descriptor_response);
        return;
    case ANSWERED(LIST_SERVICES_RESPONSE):
        for (size_t i = 0; i < r->list_services_response->n_service; i++)
            (void)snprintf(line + strlen(line), sizeof line - strlen(line), " %s",
                           r->list_services_response->service[i]->name);
        break;
    case ANSWERED(ALL_EXTENSION_NUMBERS_RESPONSE):
        (void)snprintf(line, sizeof line, "%zu extensions of %s",
                       r->all_extension_numbers_response->n_extension_number,
                       r->all_extension_numbers_response->base_type_name);
        break;
    default:
        (void)snprintf(line, sizeof line, "error %d", r->error_response->error_code);
        break;
    }
    add_line(a, line);
}

static void on_answers_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct answers *a = hd_rpc_call_user(call);

    a->end = status;
    a->dones++;
}

static struct hd_rpc_call *open_reflection(struct echo *echo, const char *version,
                                           struct answers *a)
{
    char path[128];
    struct hd_rpc_call_options options = {
        .path = path,
        .kind = HD_RPC_BIDI,
        .response = &grpc__reflection__v1__server_reflection_response__descriptor,
        .handler = {.on_msg = on_answer, .on_done = on_answers_done},
        .user = a,
        .queue_len_max = 100000,
        .queue_bytes_max = 64 << 20,
    };
    struct hd_rpc_call *call;

    *a = (struct answers){0};
    (void)snprintf(path, sizeof path, "/grpc.reflection.%s.ServerReflection/ServerReflectionInfo",
                   version);
    assert_int_equal(hd_rpc_client_call(echo->client, &options, NULL, &call), HD_OK);
    return call;
}

static void ask(struct hd_rpc_call *call, int what, const char *value)
{
    Grpc__Reflection__V1__ServerReflectionRequest request =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
    Grpc__Reflection__V1__ExtensionRequest extension =
        GRPC__REFLECTION__V1__EXTENSION_REQUEST__INIT;

    request.host = "host";
    request.message_request_case = what;
    if (what == ASKING(FILE_CONTAINING_EXTENSION)) {
        extension.containing_type = (char *)value;
        extension.extension_number = 1;
        request.file_containing_extension = &extension;
    } else {
        request.list_services = (char *)value; /* the strings share their place */
    }
    assert_int_equal(hd_rpc_call_write(call, &request.base), HD_OK);
}

static void every_question_gets_its_answer_in_order(void **state)
{
    static const char *const versions[] = {"v1", "v1alpha"};

    for (size_t v = 0; v < 2; v++) {
        struct hd_rpc_call *call;
        struct answers a;
        struct echo echo;

        open_with_standard(&echo);
        call = open_reflection(&echo, versions[v], &a);
        ask(call, ASKING(LIST_SERVICES), "*");
        ask(call, ASKING(FILE_BY_FILENAME), "heddle/v1/job.proto");
        ask(call, ASKING(FILE_BY_FILENAME), "heddle/v1/job");
        ask(call, ASKING(FILE_CONTAINING_SYMBOL), "heddle.v1.Control");
        ask(call, ASKING(ALL_EXTENSION_NUMBERS_OF_TYPE), "heddle.v1.JobSpec");
        ask(call, ASKING(ALL_EXTENSION_NUMBERS_OF_TYPE), "heddle.v1.Control");
        ask(call, ASKING(FILE_CONTAINING_EXTENSION), "heddle.v1.JobSpec");
        ask(call, ASKING(_NOT_SET), NULL);
        hd_rpc_call_finish(call);
        echo_run_until(&echo, &a.dones, 1, 5000);
        assert_int_equal(a.end, HD_OK);
        /* control.proto imports job.proto, which comes with it; codes: 5 not found, 3 invalid */
        assert_string_equal(a.text,
                            "services grpc.health.v1.Health grpc.reflection.v1.ServerReflection "
                            "grpc.reflection.v1alpha.ServerReflection heddle.test.Echo\n"
                            "files heddle/v1/job.proto\n"
                            "error 5\n"
                            "files heddle/v1/control.proto heddle/v1/job.proto\n"
                            "0 extensions of heddle.v1.JobSpec\n"
                            "error 5\n"
                            "error 5\n"
                            "error 3\n");
        echo_close(&echo);
    }
}

static void each_kind_of_symbol_is_found_and_nothing_else(void **state)
{
    static const struct {
        const char *symbol, *line;
    } cases[] = {
        {"heddle.v1.JobSpec", "files heddle/v1/job.proto\n"},
        {"heddle.v1.JobSpec.model", "files heddle/v1/job.proto\n"},      /* a field */
        {"heddle.v1.ParallelSpec._zero", "files heddle/v1/job.proto\n"}, /* a oneof */
        {"heddle.v1.DeviceKind", "files heddle/v1/job.proto\n"},         /* an enum */
        {"heddle.v1.DEVICE_KIND_CPU", "files heddle/v1/job.proto\n"},    /* a value: a sibling */
        {"heddle.v1.Control.ListJobs", "files heddle/v1/control.proto heddle/v1/job.proto\n"},
        {"grpc.health.v1.HealthCheckResponse.ServingStatus", "files grpc/health/v1/health.proto\n"},
        {"grpc.health.v1.HealthCheckResponse.SERVING", "files grpc/health/v1/health.proto\n"},
        {"grpc.reflection.v1alpha.ServerReflection",
         "files grpc/reflection/v1alpha/reflection.proto\n"},
        {"heddle.v1.JobSpe", "error 5\n"},
        {"heddle.v1.JobSpec.", "error 5\n"},
        {"heddle.v1.JobSpec.mode", "error 5\n"},
        {"heddle.v1.DeviceKind.DEVICE_KIND_CPU", "error 5\n"},
        {"heddle.v1", "error 5\n"},
        {"heddle.v1.", "error 5\n"},
        {"JobSpec", "error 5\n"},
        {"", "error 5\n"},
    };
    struct hd_rpc_call *call;
    struct answers a;
    struct echo echo;

    open_with_standard(&echo);
    call = open_reflection(&echo, "v1", &a);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        a.used = 0;
        a.count = 0;
        ask(call, ASKING(FILE_CONTAINING_SYMBOL), cases[i].symbol);
        echo_run_until(&echo, &a.count, 1, 5000);
        if (strcmp(a.text, cases[i].line) != 0)
            fail_msg("%s: %s", cases[i].symbol, a.text);
    }
    hd_rpc_call_finish(call);
    echo_run_until(&echo, &a.dones, 1, 5000);
    echo_close(&echo);
}

/* Goal: who asks without reading is made to wait, and neither fails nor fills the server. Method:
 * more questions than a send queue holds, with the reader asleep; then all answers come. */
static void questions_wait_for_a_slow_reader(void **state)
{
    enum { QUESTIONS = 3 * HD_RPC_QUEUE_LEN_DEFAULT };
    struct hd_rpc_call *call;
    struct answers a;
    struct echo echo;

    open_with_standard(&echo);
    call = open_reflection(&echo, "v1", &a);
    hd_rpc_call_pause(call);
    for (int i = 0; i < QUESTIONS; i++) /* answers of some 10 KiB each: beyond any flow window */
        ask(call, ASKING(FILE_CONTAINING_SYMBOL), "heddle.v1.Fleet");
    echo_run_for(&echo, 300);
    assert_in_range(a.count, 0, 1);
    assert_int_equal(a.dones, 0);
    hd_rpc_call_resume(call);
    hd_rpc_call_finish(call);
    echo_run_until(&echo, &a.dones, 1, 20000);
    assert_int_equal(a.end, HD_OK);
    assert_int_equal(a.count, QUESTIONS);
    echo_close(&echo);
}

RUN_CASES()
