/* The stream to the controller: hello, the two complete sets, reports, the rendezvous, signs of
 * life; and coming back after it broke, as long as it takes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/convert.h"

enum {
    RETRY_MIN_MS = 100,
    RETRY_MAX_MS = 5000,
    DEAF_MS = 15000, /* the least silence of a controller after which the stream is given up */
    PROBE_EVERY_MS = 5000, /* while the jobs directory is not readable */
    PROBE_BYTES_MAX = 4096,
    MESSAGE_ARENA_MAX = 64 << 20,
};

static enum hd_status say(struct agent *agent, Heddle__V1__NodeMessage *message)
{
    enum hd_status st;

    if (!agent->stream)
        return hd_err(HD_UNAVAILABLE, "the controller is not connected");
    st = hd_rpc_call_write(agent->stream, &message->base);
    if (!st)
        agent->said_ms = hd_clock_now_ms();
    return st;
}

/* ---- the jobs directory ---- */

static void probe_jobs_dir(struct agent *agent)
{
    struct hd_text path = {0}, text = {0};

    agent->probed_ms = hd_clock_now_ms();
    agent->probe[0] = agent->probe_problem[0] = '\0';
    hd_text_add(&path, "%s/%s", agent->jobs_dir, agent->probe_name);
    if (path.failed || hd_file_read(path.data, PROBE_BYTES_MAX, &text)) {
        (void)snprintf(agent->probe_problem, sizeof agent->probe_problem, "%s", hd_err_message());
    } else {
        text.data[strcspn(text.data, "\n")] = '\0';
        if (strlen(text.data) >= sizeof agent->probe ||
            !hd_text_is_utf8(text.data, strlen(text.data)))
            (void)snprintf(agent->probe_problem, sizeof agent->probe_problem,
                           "%s is not the controller's", path.data);
        else
            (void)snprintf(agent->probe, sizeof agent->probe, "%s", text.data);
        if (!agent->probe_problem[0] && agent->probe_text[0] &&
            strcmp(agent->probe, agent->probe_text) != 0)
            (void)snprintf(agent->probe_problem, sizeof agent->probe_problem,
                           "%.400s is another folder of the same name", agent->jobs_dir);
    }
    hd_text_free(&path);
    hd_text_free(&text);
}

/* ---- what is here ---- */

static Heddle__V1__AttemptState shown_state(const struct local *l)
{
    if (l->state == LOCAL_ENDED) /* STOPPING until the controller has every report */
        return l->end_told ? HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_ENDED
                           : HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_STOPPING;
    switch (l->share) {
    case HD_ATTEMPT_RUNNING:
        return HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_RUNNING;
    case HD_ATTEMPT_STOPPING:
    case HD_ATTEMPT_ENDED:
        return HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_STOPPING;
    default:
        return HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_STARTING;
    }
}

static Heddle__V1__ObservedAttempt *observe(struct agent *agent, struct hd_arena *arena,
                                            struct local *l)
{
    Heddle__V1__ObservedAttempt *o = hd_arena_alloc(arena, sizeof *o);

    if (!o)
        return NULL;
    heddle__v1__observed_attempt__init(o);
    o->job = (uint64_t)l->job;
    o->attempt = (int32_t)l->attempt;
    o->state = shown_state(l);
    if (o->state == HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_ENDED) {
        o->end = convert_end(arena, agent->identity.node_name, &l->end);
        convert_checkpoints(arena, l->checkpoint_dir, l->attempt, o);
    }
    return o;
}

static void observe_deletions(const struct agent *agent, struct hd_arena *arena,
                              Heddle__V1__ObservedState *state)
{
    size_t count = 0;

    for (const struct agent_deletion *d = agent->deletions; d; d = d->next)
        count += d->done && d->wanted;
    state->deleted = hd_arena_array(arena, count ? count : 1, sizeof *state->deleted);
    for (const struct agent_deletion *d = agent->deletions; d && state->deleted; d = d->next) {
        Heddle__V1__CheckpointDeletion *done;

        if (!d->done || !d->wanted)
            continue;
        done = hd_arena_alloc(arena, sizeof *done);
        if (!done)
            return;
        heddle__v1__checkpoint_deletion__init(done);
        done->job = (uint64_t)d->job;
        done->attempt = (int32_t)d->attempt;
        done->step = d->step;
        done->path = d->path;
        done->manifest_hash = d->hash;
        state->deleted[state->n_deleted++] = done;
    }
}

static enum hd_status send_observed(struct agent *agent)
{
    Heddle__V1__ObservedState state = HEDDLE__V1__OBSERVED_STATE__INIT;
    Heddle__V1__NodeMessage message = HEDDLE__V1__NODE_MESSAGE__INIT;
    struct hd_arena arena;
    size_t count = 0;
    enum hd_status st;

    hd_arena_init(&arena, MESSAGE_ARENA_MAX);
    state.generation = agent->generation;
    state.jobs_dir_probe = agent->probe;
    state.jobs_dir_problem = agent->probe_problem;
    for (struct local *l = agent->locals.first; l; l = l->next)
        count++;
    state.attempts = hd_arena_array(&arena, count ? count : 1, sizeof *state.attempts);
    for (struct local *l = agent->locals.first; l && state.attempts; l = l->next) {
        state.attempts[state.n_attempts] = observe(agent, &arena, l);
        if (!state.attempts[state.n_attempts])
            break;
        state.n_attempts++;
    }
    observe_deletions(agent, &arena, &state);
    message.body_case = HEDDLE__V1__NODE_MESSAGE__BODY_OBSERVED;
    message.observed = &state;
    /* half a set would be a lie: what is missing in it counts as gone */
    st = hd_arena_failed(&arena) ? hd_err(HD_NO_MEMORY, "no memory for the observed set")
                                 : say(agent, &message);
    hd_arena_done(&arena);
    return st;
}

/* ---- reports ---- */

/* Fills the batch from one attempt. Returns how many. */
static size_t fill_batch(struct agent *agent, struct local *l)
{
    size_t n = 0;
    enum hd_status st = HD_OK;

    while (n < AGENT_REPORTS_A_MESSAGE && (!st || st == HD_CORRUPT)) {
        st = agent_outbox_next(l->outbox, &agent->batch[n]);
        if (!st)
            n++;
        else if (st == HD_CORRUPT)
            hd_log(HD_LOG_ERROR, "reports of job %" PRId64 " attempt %" PRId64 " are lost: %s",
                   l->job, l->attempt, hd_err_message());
    }
    return n;
}

static enum hd_status send_batch(struct agent *agent, size_t count)
{
    Heddle__V1__Report *pointers[AGENT_REPORTS_A_MESSAGE];
    Heddle__V1__NodeMessage message = HEDDLE__V1__NODE_MESSAGE__INIT;
    Heddle__V1__Reports reports = HEDDLE__V1__REPORTS__INIT;
    enum hd_status st = HD_OK;
    struct hd_arena arena;

    hd_arena_init(&arena, MESSAGE_ARENA_MAX);
    for (size_t i = 0; i < count && !st; i++) {
        pointers[i] = convert_report(&arena, agent->identity.node_name, &agent->batch[i]);
        if (!pointers[i])
            st = hd_err(HD_NO_MEMORY, "no memory for reports");
    }
    reports.n_reports = count;
    reports.reports = pointers;
    message.body_case = HEDDLE__V1__NODE_MESSAGE__BODY_REPORTS;
    message.reports = &reports;
    if (!st)
        st = say(agent, &message);
    hd_arena_done(&arena);
    return st;
}

static void send_reports(struct agent *agent)
{
    for (struct local *l = agent->locals.first; l; l = l->next) {
        size_t n;

        while ((n = fill_batch(agent, l)) > 0) {
            if (send_batch(agent, n) == HD_OK)
                continue;
            while (n--) /* on_drain or the next connection brings them again */
                agent_outbox_unsend(l->outbox);
            return;
        }
        if (l->state == LOCAL_ENDED && !l->end_told && !l->question &&
            agent_outbox_is_empty(l->outbox))
            l->end_told = agent->observed_dirty = true;
    }
}

void stream_flush(struct agent *agent)
{
    if (!agent->welcomed)
        return;
    send_reports(agent);
    if (agent->observed_dirty && send_observed(agent) == HD_OK)
        agent->observed_dirty = false;
}

/* ---- the rendezvous ---- */

void stream_put(struct agent *agent, const struct local *local, const struct local_put *put)
{
    Heddle__V1__NodeMessage message = HEDDLE__V1__NODE_MESSAGE__INIT;
    Heddle__V1__RendezvousPut body = HEDDLE__V1__RENDEZVOUS_PUT__INIT;

    if (!agent->welcomed || put->round < 0)
        return;
    body.job = (uint64_t)local->job;
    body.attempt = (int32_t)local->attempt;
    body.rank = (int32_t)put->rank;
    body.round = (uint32_t)put->round;
    body.value.data = (uint8_t *)put->value;
    body.value.len = put->value_bytes;
    message.body_case = HEDDLE__V1__NODE_MESSAGE__BODY_RENDEZVOUS_PUT;
    message.rendezvous_put = &body;
    if (say(agent, &message)) /* a new stream puts all again */
        hd_log(HD_LOG_WARN, "cannot put a rendezvous value: %s", hd_err_message());
}

static void put_all_again(struct agent *agent)
{
    for (const struct local *l = agent->locals.first; l; l = l->next)
        for (int i = 0; i < l->put_count; i++)
            stream_put(agent, l, &l->puts[i]);
}

static void take_set(struct agent *agent, const Heddle__V1__RendezvousSet *set)
{
    struct local *l = locals_find(&agent->locals, (int64_t)set->job, set->attempt);

    if (!l)
        return;
    for (size_t rank = 0; rank < set->n_values; rank++)
        local_values(l, (int64_t)rank, set->round, set->values[rank].data, set->values[rank].len);
    for (int i = 0; i < l->put_count; i++) /* answered: not to be put again */
        if (l->puts[i].round == (int64_t)set->round)
            l->puts[i].round = -1;
}

/* ---- what the controller says ---- */

static void take_ack(struct agent *agent, const Heddle__V1__ReportAck *ack)
{
    for (size_t i = 0; i < ack->n_positions; i++) {
        const Heddle__V1__ReportPosition *p = ack->positions[i];
        struct local *l = locals_find(&agent->locals, (int64_t)p->job, p->attempt);

        if (l)
            agent_outbox_ack(l->outbox, p->rank, (int64_t)p->seq);
    }
    agent_soon(agent);
}

/* Records of another cluster's attempts must not be mixed with this one's: the numbers are the
 * same. */
static enum hd_status check_cluster(struct agent *agent, const char *cluster)
{
    char known[AGENT_NAME_MAX];
    enum hd_status st = agent_identity_read_cluster(&agent->identity, known);

    if (st || strcmp(known, cluster) == 0)
        return st;
    if (agent->locals.first)
        return hd_err(HD_CONFLICT,
                      "the state directory %s holds attempts of the cluster %s, but %s is the "
                      "controller of %s; use another --state-dir",
                      agent->identity.state_dir, known, agent->address, cluster);
    return agent_identity_write_cluster(&agent->identity, cluster);
}

static void take_welcome(struct agent *agent, const Heddle__V1__Welcome *welcome)
{
    if (check_cluster(agent, welcome->cluster_id)) {
        hd_log(HD_LOG_ERROR, "%s", hd_err_message());
        agent_end(agent, EXIT_FAILURE);
        return;
    }
    if (welcome->jobs_dir[0] != '/' || strchr(welcome->jobs_dir_probe, '/'))
        hd_log(HD_LOG_WARN, "the controller's jobs directory \"%s\" is not usable",
               welcome->jobs_dir);
    hd_log(HD_LOG_INFO, "%s %s as node %s (controller %s)",
           agent->ever_welcomed ? "reconnected to" : "connected to", agent->address,
           agent->identity.node_name, welcome->build);
    (void)snprintf(agent->jobs_dir, sizeof agent->jobs_dir, "%s", welcome->jobs_dir);
    (void)snprintf(agent->probe_name, sizeof agent->probe_name, "%s", welcome->jobs_dir_probe);
    (void)snprintf(agent->probe_text, sizeof agent->probe_text, "%s", welcome->jobs_dir_probe_text);
    agent->heartbeat_ms = welcome->heartbeat_ms > 0 ? welcome->heartbeat_ms : 3000;
    agent->welcomed = agent->ever_welcomed = true;
    agent->attempts_in_a_row = 0;
    probe_jobs_dir(agent);
    /* first of all: whether a reported checkpoint can be read elsewhere is said in it */
    agent->observed_dirty = send_observed(agent) != HD_OK;
    stream_flush(agent);
    put_all_again(agent);
    if (!agent->logs)
        logs_open(agent);
}

static void on_message(struct hd_rpc_call *call, const ProtobufCMessage *base)
{
    const Heddle__V1__ControllerMessage *m = (const Heddle__V1__ControllerMessage *)base;
    struct agent *agent = hd_rpc_call_user(call);

    if (call != agent->stream)
        return;
    agent->heard_ms = hd_clock_now_ms();
    if (m->body_case == HEDDLE__V1__CONTROLLER_MESSAGE__BODY_WELCOME) {
        take_welcome(agent, m->welcome);
        return;
    }
    if (!agent->welcomed)
        return;
    switch (m->body_case) {
    case HEDDLE__V1__CONTROLLER_MESSAGE__BODY_DESIRED:
        agent_take_desired(agent, (Heddle__V1__ControllerMessage *)hd_rpc_call_take(call));
        break;
    case HEDDLE__V1__CONTROLLER_MESSAGE__BODY_REPORT_ACK:
        take_ack(agent, m->report_ack);
        break;
    case HEDDLE__V1__CONTROLLER_MESSAGE__BODY_RENDEZVOUS_SET:
        take_set(agent, m->rendezvous_set);
        break;
    default:
        break; /* an answer to a heartbeat was heard above */
    }
}

static void on_drain(struct hd_rpc_call *call)
{
    agent_soon(hd_rpc_call_user(call));
}

/* ---- coming and going ---- */

static void on_retry(uv_timer_t *timer)
{
    stream_open(timer->data);
}

/* Doubles from RETRY_MIN_MS to RETRY_MAX_MS; a random half of it, so that nodes do not come in
 * step. */
static void retry_later(struct agent *agent)
{
    const int doublings = agent->attempts_in_a_row < 10 ? agent->attempts_in_a_row : 10;
    int64_t wait_ms = RETRY_MIN_MS << doublings;
    uint64_t noise = 0;

    agent->attempts_in_a_row++;
    if (wait_ms > RETRY_MAX_MS)
        wait_ms = RETRY_MAX_MS;
    (void)hd_random_bytes(&noise, sizeof noise); /* without it they do come in step */
    wait_ms = wait_ms / 2 + (int64_t)(noise % (uint64_t)(wait_ms / 2));
    (void)uv_timer_start(&agent->retry, on_retry, (uint64_t)wait_ms, 0);
}

/* What trying again does not mend, on the very first connection: somebody should look. */
static bool is_hopeless(const struct agent *agent, enum hd_status st)
{
    return !agent->ever_welcomed && !agent->locals.first &&
           (st == HD_EXISTS || st == HD_DENIED || st == HD_UNSUPPORTED || st == HD_INVALID ||
            st == HD_CONFLICT);
}

static void on_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct agent *agent = hd_rpc_call_user(call);

    if (call != agent->stream)
        return;
    agent->stream = NULL;
    agent->welcomed = false;
    agent_forget_desired(agent);
    for (struct local *l = agent->locals.first; l; l = l->next)
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
    if (agent->attempts_in_a_row == 0 || agent->attempts_in_a_row % 12 == 0)
        hd_log(HD_LOG_WARN, "not connected to %s: %s; trying again%s", agent->address,
               message[0] ? message : "the stream ended",
               agent->locals.first ? ", ranks go on meanwhile" : "");
    retry_later(agent);
}

/* It may take until the network is up. */
static void find_data_address(struct agent *agent)
{
    struct agent_identity *id = &agent->identity;

    if (id->data_address[0] || !id->spans)
        return;
    if (agent->options.data_address)
        (void)snprintf(id->data_address, sizeof id->data_address, "%s",
                       agent->options.data_address);
    else if (agent_address_find(agent->address, id->data_address))
        hd_log(HD_LOG_WARN, "no --data-address, and none found: %s", hd_err_message());
}

void stream_open(struct agent *agent)
{
    Heddle__V1__NodeMessage message = HEDDLE__V1__NODE_MESSAGE__INIT;
    const struct hd_rpc_call_options options = {
        .path = "/heddle.v1.Fleet/Connect",
        .kind = HD_RPC_BIDI,
        .response = &heddle__v1__controller_message__descriptor,
        .handler = {.on_msg = on_message, .on_drain = on_drain, .on_done = on_done},
        .user = agent,
    };
    struct hd_arena arena;
    enum hd_status st;

    find_data_address(agent);
    hd_arena_init(&arena, MESSAGE_ARENA_MAX);
    message.body_case = HEDDLE__V1__NODE_MESSAGE__BODY_HELLO;
    message.hello = convert_hello(&arena, &agent->identity);
    agent->said_ms = agent->heard_ms = hd_clock_now_ms();
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
    (void)say(agent, &message); /* a full queue is a sign of life as well */
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
    int64_t deaf_ms = 5 * agent->heartbeat_ms;

    if (!agent->stream)
        return;
    if (deaf_ms < DEAF_MS)
        deaf_ms = DEAF_MS;
    if (now_ms - agent->heard_ms > deaf_ms) {
        hd_log(HD_LOG_WARN, "%s is silent for %" PRId64 " s; connecting anew", agent->address,
               (now_ms - agent->heard_ms) / 1000);
        agent->heard_ms = now_ms;
        hd_rpc_call_cancel(agent->stream);
        return;
    }
    if (!agent->welcomed)
        return;
    if (now_ms - agent->said_ms >= agent->heartbeat_ms)
        send_heartbeat(agent);
    if (agent->probe_problem[0] && now_ms - agent->probed_ms >= PROBE_EVERY_MS) {
        probe_jobs_dir(agent);
        agent->observed_dirty = agent->observed_dirty || !agent->probe_problem[0];
    }
}
