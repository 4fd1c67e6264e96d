/* control: the table of the calls of the service Control.
 *
 * A call that changes something becomes a core event; its reply is sent after the commit.
 */
#include "controller/services/control.h"
#include "base/clock.h"

void control_get_server_info(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    Heddle__V1__GetServerInfoResponse response = HEDDLE__V1__GET_SERVER_INFO_RESPONSE__INIT;
    struct controller *c = hd_rpc_call_user(call);

    (void)message;
    response.protocol_min = HEDDLE__V1__PROTOCOL__PROTOCOL_MIN;
    response.protocol_max = HEDDLE__V1__PROTOCOL__PROTOCOL_MAX;
    response.build = convert_text(c->options.build);
    response.jobs_dir = c->jobs_dir;
    response.time_unix_ms = hd_clock_wall_ms();
    response.owner = convert_text(control_caller(call));
    (void)hd_rpc_call_reply(call, &response.base);
}

/* A unary call, by its row of rpcs.def; those that stream have handlers of their own below. */
#define UNARY(name, member)               \
    {.path = "/heddle.v1.Control/" #name, \
     .kind = HD_RPC_UNARY,                \
     .handler = {.on_open = control_##member}},
#define UNARY_SUBMIT UNARY
#define UNARY_QUERY  UNARY
#define UNARY_FREE   UNARY
#define UNARY_STREAM(name, member)
#define METHOD(service, name, member, role, what, kept, price) UNARY_##price(name, member)

enum hd_status control_register(struct controller *c)
{
    const struct hd_rpc_method methods[] = {
        {.path = "/heddle.v1.Control/WatchJob",
         .kind = HD_RPC_SERVER_STREAM,
         .handler = {.on_open = watch_open, .on_drain = watch_drain, .on_done = watch_done}},
        {.path = "/heddle.v1.Control/ReadLog",
         .kind = HD_RPC_SERVER_STREAM,
         .handler = {.on_open = read_log_open,
                     .on_drain = read_log_drain,
                     .on_done = read_log_done}},
        CONTROL_RPCS(METHOD)};
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < sizeof methods / sizeof methods[0]; i++)
        st = guard_add_method(c, &methods[i]);
    return st;
}
