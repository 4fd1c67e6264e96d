/* health: grpc.health.v1.Health: the server and each registered service are SERVING until the
 * server closes, except while the program sets hd_rpc_server_set_serving(server, false). Other
 * calls are served even then: they fail with the reason. */
#include <stdlib.h>
#include <string.h>

#include "grpc/health/v1/health.pb-c.h"
#include "rpc/standard.h"
#include "rpc/standard_internal.h"

#define STATUS(name) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##name

struct hd_rpc_watcher {
    struct hd_rpc_standard *standard;
    struct hd_rpc_watcher *next, **link;
    struct hd_rpc_call *call;
    bool known; /* the service that the call watches is registered */
};

static bool is_known_service(const struct hd_rpc_standard *standard, const char *service)
{
    return !*service || hd_rpc_has_service(standard->server, service);
}

static bool is_serving(const struct hd_rpc_standard *standard)
{
    return !standard->server->closing && !standard->server->unfit;
}

static void check(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Grpc__Health__V1__HealthCheckRequest *request = (const void *)message;
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    const struct hd_rpc_standard *standard = hd_rpc_call_user(call);

    if (!is_known_service(standard, request->service)) {
        hd_rpc_call_fail(call,
                         hd_err(HD_NOT_FOUND, "there is no service %s here", request->service));
        return;
    }
    response.status = is_serving(standard) ? STATUS(SERVING) : STATUS(NOT_SERVING);
    (void)hd_rpc_call_reply(call, &response.base);
}

static void send_status(const struct hd_rpc_watcher *watcher)
{
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;

    response.status = !watcher->known                 ? STATUS(SERVICE_UNKNOWN)
                      : is_serving(watcher->standard) ? STATUS(SERVING)
                                                      : STATUS(NOT_SERVING);
    (void)hd_rpc_call_write(watcher->call, &response.base);
}

static void watch(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Grpc__Health__V1__HealthCheckRequest *request = (const void *)message;
    struct hd_rpc_standard *standard = hd_rpc_call_user(call);
    struct hd_rpc_watcher *watcher = calloc(1, sizeof *watcher);

    hd_rpc_call_set_user(call, watcher);
    if (!watcher) {
        hd_rpc_call_fail(call, hd_err(HD_NO_MEMORY, "no memory to watch"));
        return;
    }
    *watcher = (struct hd_rpc_watcher){.standard = standard,
                                       .next = standard->watchers,
                                       .link = &standard->watchers,
                                       .call = call,
                                       .known = is_known_service(standard, request->service)};
    if (watcher->next)
        watcher->next->link = &watcher->next;
    standard->watchers = watcher;
    send_status(watcher);
}

static void watch_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct hd_rpc_watcher *watcher = hd_rpc_call_user(call);

    (void)status;
    (void)message;
    if (!watcher)
        return;
    *watcher->link = watcher->next;
    if (watcher->next)
        watcher->next->link = watcher->link;
    free(watcher);
}

void hd_rpc_health_set(struct hd_rpc_standard *standard)
{
    for (struct hd_rpc_watcher *w = standard->watchers; w; w = w->next)
        if (w->known)
            send_status(w);
}

size_t hd_rpc_health_end(struct hd_rpc_standard *standard)
{
    size_t count = 0;

    for (struct hd_rpc_watcher *w = standard->watchers; w; w = w->next, count++) {
        send_status(w);
        hd_rpc_call_finish(w->call);
    }
    return count;
}

enum hd_status hd_rpc_health_add(struct hd_rpc_standard *standard)
{
    const struct hd_rpc_method methods[] = {
        {.path = "/grpc.health.v1.Health/Check",
         .kind = HD_RPC_UNARY,
         .request = &grpc__health__v1__health_check_request__descriptor,
         .response = &grpc__health__v1__health_check_response__descriptor,
         .handler = {.on_open = check},
         .user = standard},
        {.path = "/grpc.health.v1.Health/Watch",
         .kind = HD_RPC_SERVER_STREAM,
         .request = &grpc__health__v1__health_check_request__descriptor,
         .response = &grpc__health__v1__health_check_response__descriptor,
         .handler = {.on_open = watch, .on_done = watch_done},
         .user = standard},
    };
    enum hd_status st = hd_rpc_server_add_method(standard->server, &methods[0]);

    return st ? st : hd_rpc_server_add_method(standard->server, &methods[1]);
}
