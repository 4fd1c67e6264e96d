/* fleet: the gRPC service Fleet: one Connect stream and one Logs stream per daemon.
 *
 *   opened --Hello, known protocol--> accepted --commit--> Welcome sent --...--> done
 *      |                                 ^
 *      |                                 | the node's older stream ends, or is silent
 *      +--Hello of another process of a node that has a stream--> held
 *                                        | the older daemon sends something
 *                                        v
 *                                     refused
 *
 * Each message of a daemon renews its lease and becomes a core event. After each change the daemon
 * gets its complete desired set, once the change is committed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/services/fleet.h"

/* ---- the streams ------------------------------------------------------------------------------*/

/* ---- Hello ------------------------------------------------------------------------------------*/

struct welcome_action {
    struct post_commit_action action;
    uint64_t stream;
};

static void run_welcome(struct post_commit_action *action, struct controller *c, enum hd_status st)
{
    struct welcome_action *w = (struct welcome_action *)(void *)action;
    struct node_stream *s = fleet_find_stream(c, w->stream);
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    Heddle__V1__Welcome welcome = HEDDLE__V1__WELCOME__INIT;
    Heddle__V1__Epoch epoch;

    free(w);
    if (st || !s)
        return;
    welcome.protocol = HEDDLE__V1__PROTOCOL__PROTOCOL_MAX;
    welcome.build = convert_text(c->options.build);
    welcome.cluster_id = convert_text(hd_store_cluster_id(c->store));
    welcome.jobs_dir = c->jobs_dir;
    welcome.jobs_dir_probe = convert_text(JOBS_DIR_MARK);
    welcome.jobs_dir_probe_text = c->probe;
    welcome.saw_jobs_dir = hd_core_saw_jobs_dir(c->core, s->uuid);
    welcome.heartbeat_ms = HEARTBEAT_MS;
    welcome.probe_unix_ms = hd_core_probe_ended(c->core, s->uuid);
    welcome.unreachable_ms = (int32_t)hd_core_config_default.unreachable_ms;
    epoch = fence_claim(c, c->fence.durable);
    s->sent_progress = epoch.progress;
    welcome.epoch = &epoch;
    s->welcomed = true;
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_WELCOME;
    message.welcome = &welcome;
    fleet_send_message(s, &message);
    fleet_ask_for_probe(s); /* sends the daemon again a probe request that has no result yet */
}

static enum hd_status check_protocol(const Heddle__V1__Hello *hello, const struct controller *c)
{
    if (hello->protocol_min <= HEDDLE__V1__PROTOCOL__PROTOCOL_MAX &&
        hello->protocol_max >= HEDDLE__V1__PROTOCOL__PROTOCOL_MIN)
        return HD_OK;
    return hd_err(HD_CONFLICT,
                  "this controller (build %s) speaks protocol %d to %d, the daemon (build %s) "
                  "%d to %d; upgrade the older one",
                  c->options.build, HEDDLE__V1__PROTOCOL__PROTOCOL_MIN,
                  HEDDLE__V1__PROTOCOL__PROTOCOL_MAX, hello->build, hello->protocol_min,
                  hello->protocol_max);
}

static uint32_t precision_set(const Heddle__V1__DeviceInfo *device)
{
    uint32_t set = 0;

    for (size_t i = 0; i < device->n_native_precisions; i++) {
        if ((unsigned)device->native_precisions[i] < 32)
            set |= 1u << (unsigned)device->native_precisions[i];
    }
    return set;
}

/* Fails the older streams of a node whose new stream was accepted. */
static void end_older_streams(struct node_stream *s)
{
    for (struct node_stream *other = s->c->streams; other; other = other->next) {
        if (other == s || !other->number || strcmp(other->uuid, s->uuid) != 0)
            continue;
        other->number = 0;
        hd_rpc_call_fail(other->call,
                         hd_err(HD_CONFLICT, "replaced by a newer stream of node %s", s->name));
    }
}

/* Checks that a token with a node's name is used by that node: not under another name, and not with
 * another node's UUID, which any user can read. */
static enum hd_status check_token(const struct controller *c, const struct hd_rpc_call *call,
                                  const char *name, const char *uuid)
{
    const struct hd_rpc_principal *caller = hd_rpc_call_principal(call);
    const char *mine = caller->party == HD_RPC_PARTY_NODE ? caller->token_name : "";
    struct hd_node_view view;

    if (!*mine)
        return HD_OK;
    if (strcmp(mine, name) != 0)
        return hd_err(HD_DENIED,
                      "the token is that of node %s, not of %s; start heddled with --node-name %s, "
                      "or with the token of %s",
                      mine, name, mine, name);
    for (size_t i = 0; i < hd_core_node_count(c->core); i++) {
        hd_core_node_at(c->core, i, &view);
        if (strcmp(view.record->uuid, uuid) == 0 && strcmp(view.record->name, mine) != 0)
            return hd_err(HD_DENIED,
                          "the token is that of node %s, but the --state-dir is that of node %s; "
                          "use another --state-dir, or remove the other node with: heddle node rm "
                          "%s",
                          mine, view.record->name, view.record->name);
    }
    return HD_OK;
}

enum hd_status fleet_take_hello(struct node_stream *s, const Heddle__V1__Hello *hello)
{
    struct hd_device_record devices[HD_CTL_DEVICES_PER_NODE_MAX];
    struct hd_node_links links;
    struct welcome_action *welcome;
    struct hd_core_event event = {
        .kind = HD_CORE_HELLO,
        .hello = {.uuid = hello->node_uuid,
                  .name = hello->node_name,
                  .boot_id = hello->boot_id,
                  .build = hello->build,
                  .facts = {.data_address = hello->data_address,
                            .host = hello->host,
                            .compute[HD_DEVICE_KIND_CPU] = hello->compute,
                            .compute[HD_DEVICE_KIND_CUDA] = hello->compute_cuda,
                            .traits = hello->traits},
                  .probes = hello->probes,
                  .stream = ++s->c->last_stream,
                  .devices = devices,
                  .device_count = (int32_t)hello->n_devices}};
    enum hd_status st = check_protocol(hello, s->c);

    s->knows_users = hello->isolation && *hello->isolation->users;
    if (hello->isolation)
        event.hello.facts.isolation = (struct hd_isolation){.mode = hello->isolation->mode,
                                                            .tier = hello->isolation->tier,
                                                            .locks = hello->isolation->locks,
                                                            .lacks = hello->isolation->lacks,
                                                            .users = hello->isolation->users};
    if (!st)
        st = check_token(s->c, s->call, hello->node_name, hello->node_uuid);
    if (!st)
        st = fence_take(s->c, hello->node_name, hello->epoch);
    if (!st && !s->held && copies_find_twin(s, hello))
        return copies_hold(s); /* copies_check calls this function again */
    event.hello.obeyed_before = fence_is_before(s->c, hello->epoch);
    if (!st && hello->n_devices > HD_CTL_DEVICES_PER_NODE_MAX)
        st = hd_err(HD_LIMIT, "%zu devices on one node, the limit is %d", hello->n_devices,
                    HD_CTL_DEVICES_PER_NODE_MAX);
    for (size_t i = 0; !st && i < hello->n_devices; i++) {
        const Heddle__V1__DeviceInfo *d = hello->devices[i];

        devices[i] = (struct hd_device_record){.index = d->index,
                                               .kind = (enum hd_device_kind)d->kind,
                                               .name = d->name,
                                               .uuid = d->uuid,
                                               .memory_bytes = d->memory_bytes,
                                               .threads = d->threads,
                                               .precisions = precision_set(d),
                                               .problem = d->problem};
        if (d->kind != HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CPU &&
            d->kind != HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CUDA)
            st = hd_err(HD_INVALID, "device %d of node %s has the unknown kind %d", d->index,
                        hello->node_name, (int)d->kind);
    }
    if (topology_links(hello->inventory, hello->n_devices, &links))
        event.hello.links = &links;
    if (!st)
        st = transaction_step(s->c, &event);
    if (st)
        return st;
    topology_keep(s->c, hello->node_uuid, hello->inventory);
    (void)snprintf(s->uuid, sizeof s->uuid, "%s", hello->node_uuid);
    (void)snprintf(s->name, sizeof s->name, "%s", hello->node_name);
    (void)snprintf(s->instance, sizeof s->instance, "%s", hello->instance_id);
    s->received_ms = hd_clock_now_ms();
    s->number = event.hello.stream;
    end_older_streams(s);
    welcome = calloc(1, sizeof *welcome);
    if (!welcome)
        return hd_err(HD_NO_MEMORY, "no memory for a node");
    welcome->action.run = run_welcome;
    welcome->stream = s->number;
    transaction_when_durable(s->c, &welcome->action);
    hd_log(HD_LOG_INFO, "node %s connected (%zu devices, build %s)", s->name, hello->n_devices,
           hello->build);
    return HD_OK;
}

/* ---- the stream's callbacks -------------------------------------------------------------------*/

static void answer_heartbeat(struct node_stream *s, const Heddle__V1__Heartbeat *m)
{
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    Heddle__V1__Heartbeat body = HEDDLE__V1__HEARTBEAT__INIT;
    Heddle__V1__Epoch epoch;

    body.nonce = m->nonce;
    if (s->welcomed && s->sent_progress != s->c->fence.durable) {
        s->sent_progress = s->c->fence.durable;
        epoch = fence_claim(s->c, s->sent_progress);
        body.epoch = &epoch;
    }
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_HEARTBEAT;
    message.heartbeat = &body;
    fleet_send_message(s, &message);
}

static enum hd_status take_message(struct node_stream *s, const Heddle__V1__NodeMessage *m)
{
    const struct hd_core_event alive = {.kind = HD_CORE_ALIVE,
                                        .node = {.uuid = s->uuid, .stream = s->number}};
    enum hd_status st;

    if (!s->number && m->body_case != HEDDLE__V1__NODE_MESSAGE__BODY_HELLO)
        return hd_err(HD_INVALID, "a daemon's first message must be Hello");
    if ((s->number || s->held) && m->body_case == HEDDLE__V1__NODE_MESSAGE__BODY_HELLO)
        return hd_err(HD_INVALID, "Hello may be sent only once on a stream");
    if (!s->number)
        return fleet_take_hello(s, m->hello);
    s->received_ms = hd_clock_now_ms();
    st = transaction_step(s->c, &alive);
    if (st)
        return st;
    switch (m->body_case) {
    case HEDDLE__V1__NODE_MESSAGE__BODY_OBSERVED:
        return fleet_receive_observed(s, m->observed);
    case HEDDLE__V1__NODE_MESSAGE__BODY_REPORTS:
        return fleet_take_reports(s, m->reports);
    case HEDDLE__V1__NODE_MESSAGE__BODY_RENDEZVOUS_PUT:
        return rendezvous_put(s->c, s->call, s->uuid, m->rendezvous_put);
    case HEDDLE__V1__NODE_MESSAGE__BODY_PROBE_REPORT:
        return probe_take(s->c, s->uuid, s->number, m->probe_report);
    case HEDDLE__V1__NODE_MESSAGE__BODY_HEARTBEAT:
        answer_heartbeat(s, m->heartbeat);
        return HD_OK;
    default:
        return HD_OK; /* unknown kind of message, sent by a later version */
    }
}

static void on_open(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    struct controller *c = hd_rpc_call_user(call);
    struct node_stream *s = calloc(1, sizeof *s);

    (void)request;
    hd_rpc_call_set_user(call, s);
    if (!s) {
        hd_rpc_call_fail(call, hd_err(HD_NO_MEMORY, "no memory for a node"));
        return;
    }
    s->c = c;
    s->call = call;
    s->next = c->streams;
    c->streams = s;
}

static void on_msg(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    struct node_stream *s = hd_rpc_call_user(call);
    struct controller *c;
    enum hd_status st;

    if (!s || s->removed)
        return;
    c = s->c;
    transaction_begin(c);
    st = take_message(s, (const Heddle__V1__NodeMessage *)(const void *)message);
    if (st) {
        hd_log(HD_LOG_WARN, "closing the stream of %s: %s", *s->name ? s->name : "a daemon",
               hd_err_message());
        hd_rpc_call_fail(call, st);
    }
    transaction_end(c);
}

static void on_half_close(struct hd_rpc_call *call)
{
    hd_rpc_call_finish(call);
}

static void on_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct node_stream *s = hd_rpc_call_user(call), **at;
    struct hd_core_event gone = {.kind = HD_CORE_DISCONNECTED};
    struct controller *c;

    if (!s)
        return;
    c = s->c;
    for (at = &c->streams; *at != s; at = &(*at)->next)
        ;
    *at = s->next;
    if (s->number && !c->stopping) {
        hd_log(HD_LOG_INFO, "node %s disconnected%s%s", s->name, status ? ": " : "",
               status ? message : "");
        gone.node.uuid = s->uuid;
        gone.node.stream = s->number;
        transaction_begin(c);
        (void)transaction_step(c, &gone);
        transaction_end(c);
    }
    if (s->logs) {
        hd_rpc_call_cancel(s->logs);
        read_log_node_gone(c, s->uuid);
    }
    if (s->held)
        hd_rpc_message_free(&s->held->base);
    free(s);
    if (!c->stopping)
        /* the held Hello of another stream may have waited for this stream's end */
        copies_check(c);
}

/* ---- Logs streams -----------------------------------------------------------------------------*/

static void on_logs_msg(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__LogChunk *m = (const Heddle__V1__LogChunk *)(const void *)message;
    struct controller *c = hd_rpc_call_user(call);
    struct node_stream *s;
    enum hd_status st;

    if (m->request) {
        read_log_chunk(c, call, m);
        return;
    }
    s = fleet_find_node(c, m->node_uuid);
    st = s ? check_token(c, call, s->name, s->uuid)
           : hd_err(HD_CONFLICT, "send Hello on a Connect stream first");
    if (st) {
        hd_rpc_call_fail(call, st);
        return;
    }
    if (s->logs && s->logs != call)
        hd_rpc_call_cancel(s->logs);
    s->logs = call;
}

static void on_logs_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct controller *c = hd_rpc_call_user(call);

    (void)status;
    (void)message;
    for (struct node_stream *s = c->streams; s; s = s->next) {
        if (s->logs != call)
            continue;
        s->logs = NULL;
        read_log_node_gone(c, s->uuid);
    }
}

/* ---- the service ------------------------------------------------------------------------------*/

void fleet_cut(struct controller *c, uint64_t credential)
{
    for (struct node_stream *s = c->streams; s; s = s->next) {
        const struct hd_rpc_principal *caller = hd_rpc_call_principal(s->call);

        if (s->removed ||
            (credential ? caller->credential != credential : credential_is_valid(c, caller)))
            continue;
        hd_log(HD_LOG_WARN, "closing the stream of %s: its certificate has expired or was revoked",
               *s->name ? s->name : "a daemon");
        hd_rpc_call_fail(s->call, hd_err(HD_DENIED,
                                         "the certificate of %s has expired or was "
                                         "revoked; invite it again with heddle node "
                                         "invite",
                                         *s->name ? s->name : "this node"));
    }
}

/* Sends keep-alives while the disk takes no writes. Replies to Hello and reports wait for the
 * commit, and a daemon that receives nothing for 15 s reconnects, which adds one more Hello to
 * store; its node and the node's jobs would be lost once the disk has space again. Any message
 * keeps a daemon from reconnecting. Before Welcome a daemon sends nothing, so its open stream
 * renews its lease. */
void fleet_tick(struct controller *c)
{
    const int64_t now_ms = hd_clock_now_ms();

    copies_check(c);
    for (struct node_stream *s = c->streams; s; s = s->next) {
        const struct hd_core_event alive = {.kind = HD_CORE_ALIVE,
                                            .node = {.uuid = s->uuid, .stream = s->number}};
        Heddle__V1__Heartbeat nothing = HEDDLE__V1__HEARTBEAT__INIT;

        if (!s->number || s->removed || now_ms < s->kept_ms + HEARTBEAT_MS ||
            (s->welcomed && hd_store_disk_state(c->store) != HD_STORE_STUCK))
            continue;
        s->kept_ms = now_ms;
        if (!s->welcomed) {
            transaction_begin(c);
            (void)transaction_step(c, &alive);
            transaction_end(c);
        }
        answer_heartbeat(s, &nothing);
    }
}

enum hd_status fleet_register(struct controller *c)
{
    const struct hd_rpc_method connect = {
        .path = "/heddle.v1.Fleet/Connect",
        .kind = HD_RPC_BIDI,
        .handler = {.on_open = on_open,
                    .on_msg = on_msg,
                    .on_half_close = on_half_close,
                    .on_done = on_done},
        .user = c,
    };
    const struct hd_rpc_method logs = {
        .path = "/heddle.v1.Fleet/Logs",
        .kind = HD_RPC_BIDI,
        .handler = {.on_msg = on_logs_msg, .on_half_close = on_half_close, .on_done = on_logs_done},
        .user = c,
    };
    enum hd_status st = guard_add_method(c, &connect);

    return st ? st : guard_add_method(c, &logs);
}
