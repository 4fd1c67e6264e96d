/* stream: the stream to the controller: hello, receiving, heartbeats, and reconnecting. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/convert.h"
#include "daemon/agent/state_dir.h"

enum {
    DISK_SPACE_EVERY_MS = 10000,
    EPOCH_EVERY_MS = 10000, /* interval between two writes of the controller's progress, ms */
    PROBE_EVERY_MS = 5000,  /* interval between two checks of the jobs directory, ms */
    HELLO_ARENA_MAX = 1 << 20,
};

/* ---- the rendezvous ---- */

static void put_all_again(struct agent *agent)
{
    for (const struct agent_attempt *l = agent->locals.first; l; l = l->next)
        for (int i = 0; i < l->put_count; i++)
            send_put(agent, l, &l->puts[i]);
}

static void take_set(struct agent *agent, const Heddle__V1__RendezvousSet *set)
{
    struct agent_attempt *l = locals_find(&agent->locals, (int64_t)set->job, set->attempt);

    if (!l)
        return;
    for (size_t rank = 0; rank < set->n_values; rank++)
        local_values(l, (int64_t)rank, set->round, set->values[rank].data, set->values[rank].len);
    for (int i = 0; i < l->put_count; i++) /* the controller has this value */
        if (l->puts[i].round == (int64_t)set->round)
            l->puts[i].round = -1;
}

/* ---- what is received ---- */

static void take_ack(struct agent *agent, const Heddle__V1__ReportAck *ack)
{
    for (size_t i = 0; i < ack->n_positions; i++) {
        const Heddle__V1__ReportPosition *p = ack->positions[i];
        struct agent_attempt *l = locals_find(&agent->locals, (int64_t)p->job, p->attempt);

        if (l)
            agent_outbox_ack(l->outbox, p->rank, (int64_t)p->seq);
    }
    agent_soon(agent);
}

/* Refuses a controller of another cluster: the records of both clusters' attempts have equal
 * numbers and must not be mixed. */
static enum hd_status check_cluster(struct agent *agent, const char *cluster)
{
    char known[AGENT_NAME_MAX];
    enum hd_status st = agent_identity_read_cluster(&agent->identity, known);

    if (st || strcmp(known, cluster) == 0)
        return st;
    if (agent->locals.first)
        return hd_err(
            HD_CONFLICT,
            "the state directory %s holds attempts of the cluster %s, but %s is the "
            "controller of %s: give the address of the right one; if that one has lost its "
            "database, restore a backup of it (docs/operations.md, \"Backup\"). Then "
            "start heddled again: its ranks go on meanwhile. To serve both clusters, "
            "use another --state-dir for this one",
            agent->identity.state_dir, known, agent->address, cluster);
    return agent_identity_write_cluster(&agent->identity, cluster);
}

static bool read_epoch(const Heddle__V1__Epoch *m, struct agent_epoch *ret)
{
    *ret = (struct agent_epoch){.number = m->number, .progress = m->progress};
    if (!m->number || strchr(m->place, '\n') || m->proof.len != sizeof ret->proof ||
        strlen(m->cluster_id) >= sizeof ret->cluster || strlen(m->instance) >= sizeof ret->instance)
        return false;
    (void)snprintf(ret->cluster, sizeof ret->cluster, "%s", m->cluster_id);
    (void)snprintf(ret->instance, sizeof ret->instance, "%s", m->instance);
    (void)snprintf(ret->place, sizeof ret->place, "%s", m->place);
    memcpy(ret->proof, m->proof.data, sizeof ret->proof);
    return true;
}

/* Compares the controller's epoch with the newest obeyed one. HD_CONFLICT: this node obeys a newer
 * controller of the cluster. A controller without an epoch, an older build, is obeyed. */
static enum hd_status check_epoch(struct agent *agent, const Heddle__V1__Epoch *m)
{
    struct agent_epoch *known = &agent->identity.epoch, seen;
    bool changed = false;
    enum hd_status st;

    if (!m || !read_epoch(m, &seen)) {
        if (known->number)
            hd_log(HD_LOG_WARN,
                   "%s says no epoch, as older builds do: whether it is the newest controller of "
                   "this cluster is not known",
                   agent->address);
        return HD_OK;
    }
    st = agent_epoch_compare(known, &seen, &changed);
    if (!st && changed && agent_epoch_write(agent->identity.state_dir, known))
        hd_log(HD_LOG_WARN, "cannot keep which controller this node obeys: %s", hd_err_message());
    return st;
}

/* Stores the progress value (newest state) of the obeyed controller. */
static void take_progress(struct agent *agent, const Heddle__V1__Epoch *m)
{
    struct agent_epoch *known = &agent->identity.epoch, seen;

    if (!m || !read_epoch(m, &seen) || strcmp(seen.instance, known->instance) != 0)
        return;
    known->number = seen.number;
    known->progress = seen.progress;
    memcpy(known->proof, seen.proof, sizeof known->proof);
    if (hd_clock_now_ms() - known->written_ms >= EPOCH_EVERY_MS &&
        agent_epoch_write(agent->identity.state_dir, known))
        hd_log(HD_LOG_DEBUG, "cannot keep the controller's progress: %s", hd_err_message());
}

/* Checks whether the jobs directory is shared by all nodes; if not, each job's checkpoints stay on
 * its node. A directory that was the controller's before and is not any more has lost its mount:
 * data that a job wrote there now would be hidden when it is mounted again, so the node takes no
 * new attempts (check_disk_space). */
static void check_jobs_dir(struct agent *agent)
{
    char before[sizeof agent->probe_problem];

    memcpy(before, agent->probe_problem, sizeof before);
    send_read_probe(agent);
    agent->probe_seen |= !agent->probe_problem[0];
    agent->locals.jobs_dir_seen = agent->probe_seen;
    agent->locals.jobs_dir_away = agent->probe_seen && agent->probe_problem[0];
    agent->observed_dirty |= strcmp(before, agent->probe_problem) != 0;
}

/* Checks the disks' free space; a change is sent with the next observed set. */
static void check_disk_space(struct agent *agent)
{
    char before[DISK_SPACE_REASON_MAX], unusable[STATE_DIR_REASON_MAX];

    /* a leaving node takes no attempts anyway, and `refuses_attempts` says so */
    if (agent->leave_deadline_ms)
        return;
    memcpy(before, agent->refuses_attempts, sizeof before);
    agent->disk_space_ms = hd_clock_now_ms();
    disk_space_check(agent->jobs_dir, agent->identity.state_dir, agent->options.min_free_percent,
                     agent->refuses_attempts);
    state_dir_check(&agent->identity, &agent->locals, unusable);
    if (unusable[0])
        memcpy(agent->refuses_attempts, unusable, sizeof agent->refuses_attempts);
    else if (agent->probe_taken)
        (void)snprintf(agent->refuses_attempts, sizeof agent->refuses_attempts,
                       "takes no new jobs: %.100s is not the cluster's jobs directory any more: "
                       "%.180s. Give each controller a --jobs-dir of its own; to take this one "
                       "back, stop the other one, remove %.20s in it, and start "
                       "heddle-controller again",
                       agent->jobs_dir, agent->probe_problem, agent->probe_name);
    else if (agent->probe_seen && agent->probe_problem[0])
        (void)snprintf(agent->refuses_attempts, sizeof agent->refuses_attempts,
                       "takes no new jobs: %.150s is not the cluster's jobs directory any more "
                       "(%.200s); mount it here, or look at heddle-controller's log if it is. If "
                       "this node is to have a folder of its own now: heddle node rm, and start "
                       "heddled again",
                       agent->jobs_dir, agent->probe_problem);
    if (strcmp(before, agent->refuses_attempts) == 0)
        return;
    agent->observed_dirty = true;
    if (agent->refuses_attempts[0])
        hd_log(HD_LOG_WARN, "this node %s", agent->refuses_attempts);
    else
        hd_log(HD_LOG_INFO, "this node takes new jobs again");
}

static void take_welcome(struct agent *agent, const Heddle__V1__Welcome *welcome)
{
    if (check_cluster(agent, welcome->cluster_id)) {
        hd_log(HD_LOG_ERROR, "%s", hd_err_message());
        agent_end(agent, EXIT_FAILURE);
        return;
    }
    if (check_epoch(agent, welcome->epoch)) {
        (void)snprintf(agent->refusal, sizeof agent->refusal, "%s", hd_err_message());
        hd_rpc_call_cancel(agent->stream);
        return;
    }
    agent->refusal[0] = '\0';
    agent_identity_keep_name(&agent->identity);
    if (welcome->jobs_dir[0] != '/' || strchr(welcome->jobs_dir_probe, '/'))
        hd_log(HD_LOG_WARN, "the controller's jobs directory \"%s\" is not usable",
               welcome->jobs_dir);
    hd_log(HD_LOG_INFO, "%s %s as node %s (controller %s)",
           agent->ever_welcomed ? "reconnected to" : "connected to", agent->address,
           agent->identity.node_name, welcome->build);
    if (strcmp(agent->jobs_dir, welcome->jobs_dir) != 0)
        agent->probe_seen = false;
    (void)snprintf(agent->jobs_dir, sizeof agent->jobs_dir, "%s", welcome->jobs_dir);
    (void)snprintf(agent->probe_name, sizeof agent->probe_name, "%s", welcome->jobs_dir_probe);
    (void)snprintf(agent->probe_text, sizeof agent->probe_text, "%s", welcome->jobs_dir_probe_text);
    agent->probe_seen |= welcome->saw_jobs_dir;
    agent->heartbeat_ms = welcome->heartbeat_ms > 0 ? welcome->heartbeat_ms : 3000;
    agent->welcomed = agent->ever_welcomed = true;
    agent->attempts_in_a_row = 0;
    agent->joined.asked_ms = 0; /* the answer may have been lost with the connection */
    check_jobs_dir(agent);
    check_disk_space(agent);
    probing_welcome(agent, welcome->probe_unix_ms);
    /* The observed set is the first message: it tells whether other nodes can read reported
     * checkpoints. */
    agent->observed_dirty = send_observed(agent) != HD_OK;
    send_changes(agent);
    put_all_again(agent);
    if (!agent->logs)
        logs_open(agent);
}

/* Ends heddled because an operator removed the node; exits without failure, so that systemd does
 * not restart it. */
static void take_removed(struct agent *agent, const Heddle__V1__Removed *removed)
{
    hd_log(HD_LOG_ERROR,
           "node %s was removed from the cluster by %s (heddle node rm); heddled ends. Started "
           "again, it joins as a new node",
           agent->identity.node_name, removed->message);
    agent_end(agent, EXIT_SUCCESS);
}

static void on_message(struct hd_rpc_call *call, const ProtobufCMessage *base)
{
    const Heddle__V1__ControllerMessage *m = (const Heddle__V1__ControllerMessage *)base;
    struct agent *agent = hd_rpc_call_user(call);

    if (call != agent->stream)
        return;
    agent->received_ms = hd_clock_now_ms();
    if (m->body_case == HEDDLE__V1__CONTROLLER_MESSAGE__BODY_WELCOME) {
        take_welcome(agent, m->welcome);
        return;
    }
    if (!agent->welcomed)
        return;
    switch (m->body_case) {
    case HEDDLE__V1__CONTROLLER_MESSAGE__BODY_DESIRED:
        desired_take(agent, (Heddle__V1__ControllerMessage *)hd_rpc_call_take(call));
        break;
    case HEDDLE__V1__CONTROLLER_MESSAGE__BODY_REMOVED:
        take_removed(agent, m->removed);
        break;
    case HEDDLE__V1__CONTROLLER_MESSAGE__BODY_REPORT_ACK:
        take_ack(agent, m->report_ack);
        break;
    case HEDDLE__V1__CONTROLLER_MESSAGE__BODY_PROBE_REQUEST:
        probing_ask(agent, m->probe_request->request);
        break;
    case HEDDLE__V1__CONTROLLER_MESSAGE__BODY_RENDEZVOUS_SET:
        take_set(agent, m->rendezvous_set);
        break;
    case HEDDLE__V1__CONTROLLER_MESSAGE__BODY_HEARTBEAT:
        take_progress(agent, m->heartbeat->epoch);
        break;
    default:
        break;
    }
}

static void on_drain(struct hd_rpc_call *call)
{
    agent_soon(hd_rpc_call_user(call));
}

/* ---- the connection ---- */

static void on_retry(uv_timer_t *timer)
{
    stream_open(timer->data);
}

static void retry_later(struct agent *agent)
{
    uint64_t noise = 0;

    /* without noise nodes may reconnect simultaneously */
    (void)hd_random_bytes(&noise, sizeof noise);
    (void)uv_timer_start(&agent->retry, on_retry,
                         (uint64_t)agent_retry_ms(agent->attempts_in_a_row++, noise), 0);
}

/* Returns whether the controller's refusal of heddled's very first connection is permanent, so that
 * an operator has to act. */
static bool is_hopeless(const struct agent *agent, enum hd_status st)
{
    return !agent->ever_welcomed && !agent->locals.first &&
           (st == HD_EXISTS || st == HD_DENIED || st == HD_UNSUPPORTED || st == HD_INVALID ||
            st == HD_CONFLICT);
}

/* Logs why the connection ended: a new reason at once, an unchanged one at every 12th try. */
static void report_refusal(struct agent *agent, const char *message)
{
    const char *why = message[0] ? message : "the stream ended";

    if (agent->attempts_in_a_row % 12 && strncmp(agent->why, why, sizeof agent->why - 1) == 0)
        return;
    (void)snprintf(agent->why, sizeof agent->why, "%s", why);
    hd_log(HD_LOG_WARN, "not connected to %s: %s; trying again%s", agent->address, why,
           agent->locals.first ? ", ranks go on meanwhile" : "");
}

static void on_stream_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct agent *agent = hd_rpc_call_user(call);

    if (call != agent->stream)
        return;
    agent->stream = NULL;
    agent->welcomed = false;
    desired_forget(agent);
    for (struct agent_attempt *l = agent->locals.first; l; l = l->next)
        agent_outbox_rewind(l->outbox);
    if (agent->stopping)
        return;
    if (agent->introduce) {
        agent->introduce = false;
        stream_open(agent);
        return;
    }
    if (is_hopeless(agent, status)) {
        hd_log(HD_LOG_ERROR, "%s refused this node: %s", agent->address, message);
        agent_end(agent, EXIT_FAILURE);
        return;
    }
    report_refusal(agent, agent->refusal[0] ? agent->refusal : message);
    retry_later(agent);
}

/* Finds the address at which ranks of other nodes connect; called again and again, because the
 * network may come up late. */
static void find_data_address(struct agent *agent)
{
    struct agent_identity *id = &agent->identity;

    if (id->data_address[0] || !id->spans)
        return;
    if (agent->options.data_address)
        (void)snprintf(id->data_address, sizeof id->data_address, "%s",
                       agent->options.data_address);
    else if (agent_address_find(agent->address, id->data_address))
        hd_log(HD_LOG_WARN, "no --data-address given, and none found: %s", hd_err_message());
}

void stream_open(struct agent *agent)
{
    Heddle__V1__NodeMessage message = HEDDLE__V1__NODE_MESSAGE__INIT;
    const struct hd_rpc_call_options options = {
        .path = "/heddle.v1.Fleet/Connect",
        .kind = HD_RPC_BIDI,
        .response = &heddle__v1__controller_message__descriptor,
        .handler = {.on_msg = on_message, .on_drain = on_drain, .on_done = on_stream_done},
        .user = agent,
    };
    struct hd_arena arena;
    enum hd_status st;

    agent_use_new_certificate(agent);
    find_data_address(agent);
    hd_arena_init(&arena, HELLO_ARENA_MAX);
    message.body_case = HEDDLE__V1__NODE_MESSAGE__BODY_HELLO;
    message.hello = convert_hello(&arena, &agent->identity);
    agent->reported_ms = agent->received_ms = hd_clock_now_ms();
    st = message.hello ? hd_rpc_client_call(agent->client, &options, &message.base, &agent->stream)
                       : hd_err(HD_NO_MEMORY, "no memory for a hello");
    hd_arena_done(&arena);
    if (st) {
        agent->stream = NULL;
        hd_log(HD_LOG_WARN, "cannot call %s: %s", agent->address, hd_err_message());
        retry_later(agent);
    }
}

static void send_heartbeat(struct agent *agent)
{
    Heddle__V1__NodeMessage message = HEDDLE__V1__NODE_MESSAGE__INIT;
    Heddle__V1__Heartbeat body = HEDDLE__V1__HEARTBEAT__INIT;

    body.nonce = ++agent->nonce;
    message.body_case = HEDDLE__V1__NODE_MESSAGE__BODY_HEARTBEAT;
    message.heartbeat = &body;
    (void)send_message(agent, &message); /* failure ignored: a full queue is a sign of life, too */
}

void stream_introduce(struct agent *agent)
{
    agent->introduce = agent->stream != NULL;
    if (agent->stream)
        hd_rpc_call_cancel(agent->stream);
}

void stream_tick(struct agent *agent)
{
    const int64_t now_ms = hd_clock_now_ms();

    if (!agent->stream)
        return;
    if (agent_lost_controller(now_ms - agent->received_ms, agent->heartbeat_ms)) {
        hd_log(HD_LOG_WARN, "%s has sent nothing for %" PRId64 " s; reconnecting", agent->address,
               (now_ms - agent->received_ms) / 1000);
        agent->received_ms = now_ms;
        hd_rpc_call_cancel(agent->stream);
        return;
    }
    if (!agent->welcomed)
        return;
    if (now_ms - agent->reported_ms >= agent->heartbeat_ms)
        send_heartbeat(agent);
    if (now_ms - agent->probed_ms >= PROBE_EVERY_MS) {
        const bool had_problem = agent->probe_problem[0];

        check_jobs_dir(agent);
        if (had_problem != (agent->probe_problem[0] != '\0'))
            agent->disk_space_ms = now_ms - DISK_SPACE_EVERY_MS;
    }
    if (now_ms - agent->disk_space_ms >= DISK_SPACE_EVERY_MS)
        check_disk_space(agent);
}
