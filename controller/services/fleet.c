/* fleet: the service Fleet: one Connect stream and one Logs stream per daemon.
 *
 *   opened --Hello, known protocol--> accepted --durable--> Welcome sent --...--> done
 *      |                                 ^
 *      |                                 | the node's older stream ends, or is silent
 *      +--Hello of another process of a node that has a stream--> held
 *                                        | its daemon says something
 *                                        v
 *                                     refused
 *
 * Each message of a daemon renews its lease and becomes a core event. The daemon gets its complete
 * desired set after every change, when that change is durable.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/services/fleet.h"
#include "spec/spec.h"

/* ---- the streams ------------------------------------------------------------------------------*/

static struct node_stream *find_stream(const struct controller *c, uint64_t number)
{
    for (struct node_stream *s = c->streams; s; s = s->next) {
        if (s->number == number)
            return s;
    }
    return NULL;
}

struct node_stream *fleet_find_node(const struct controller *c, const char *uuid)
{
    for (struct node_stream *s = c->streams; s; s = s->next) {
        if (s->number && strcmp(s->uuid, uuid) == 0)
            return s;
    }
    return NULL;
}

struct hd_rpc_call *fleet_logs_of(const struct controller *c, const char *uuid)
{
    const struct node_stream *s = fleet_find_node(c, uuid);

    return s ? s->logs : NULL;
}

/* Ends the stream of a daemon that reads too slowly: it connects again. Other failures (a message
 * that is too large) are only logged, because they would happen again on a new stream. */
static void send_message(struct node_stream *s, const Heddle__V1__ControllerMessage *message)
{
    enum hd_status st = hd_rpc_call_write(s->call, &message->base);

    if (st == HD_LIMIT)
        hd_rpc_call_fail(s->call, hd_err(HD_UNAVAILABLE, "%s reads too slowly", s->name));
    else if (st && st != HD_ABORTED) /* HD_ABORTED: the call has ended, on_done follows */
        hd_log(HD_LOG_ERROR, "cannot send a message to node %s: %s", s->name, hd_err_message());
}

/* ---- desired sets -----------------------------------------------------------------------------*/

struct desired_effect {
    struct effect effect;
    uint64_t stream;
    struct hd_arena arena;
    Heddle__V1__DesiredState state;
};

static void free_desired(struct desired_effect *d)
{
    hd_arena_done(&d->arena);
    free(d);
}

static void run_desired(struct effect *effect, struct controller *c, enum hd_status st)
{
    struct desired_effect *d = (struct desired_effect *)(void *)effect;
    struct node_stream *s = find_stream(c, d->stream);
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;

    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_DESIRED;
    message.desired = &d->state;
    if (!st && s)
        send_message(s, &message);
    free_desired(d);
}

/* Sets m->resolved_job, or m->problem, with which the daemon ends the attempt. */
static enum hd_status resolve(struct desired_effect *d, const struct hd_job_record *job,
                              const struct hd_attempt_record *record, Heddle__V1__DesiredAttempt *m)
{
    const struct hd_spec_attempt attempt = {
        .job_id = (int64_t)record->job,
        .number = record->attempt,
        .dir = m->attempt_dir,
        .base_checkpoint = record->base_attempt ? record->base_path : NULL,
        .base_manifest_hash = record->base_attempt ? record->base_hash : NULL};
    struct hd_job *spec = hd_arena_alloc(&d->arena, sizeof *spec);
    struct hd_job *resolved = hd_arena_alloc(&d->arena, sizeof *resolved);
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    if (!spec || !resolved)
        return hd_err(HD_NO_MEMORY, "no memory for a job");
    st = convert_unpack_spec(job->spec, job->spec_bytes, &d->arena, spec);
    if (!st)
        st = hd_spec_resolve(spec, &record->plan.layout, &attempt, resolved);
    if (!st)
        st = hd_job_write(resolved, &text);
    if (st)
        m->problem = convert_text(hd_arena_strdup(&d->arena, hd_err_message()));
    else
        m->resolved_job = convert_text(hd_arena_strdup(&d->arena, text.data));
    hd_text_free(&text);
    return hd_arena_failed(&d->arena) ? hd_err(HD_NO_MEMORY, "no memory for a job") : st;
}

/* Why no daemon may start the attempt, or this one may not; NULL: it may. An older daemon does not
 * know run_as, and would run the ranks as its own user. */
static const char *find_user_problem(struct desired_effect *d, const struct controller *c,
                                     const struct hd_desired_attempt *desired)
{
    const struct node_stream *s = find_stream(c, d->stream);
    const char *run_as = desired->attempt->run_as;
    char user[HD_USER_BYTES_MAX + 1];

    if (!run_as || !*run_as)
        return NULL;
    if (strcmp(run_as, HD_RUN_AS_NONE) == 0)
        return hd_policy_user(c->policy, desired->job->owner, user)
                   ? hd_arena_strdup(&d->arena, hd_err_message())
                   : "the policy had no system user for this job when the attempt began; resume "
                     "the job";
    if (!s || s->knows_users)
        return NULL;
    return hd_arena_printf(&d->arena,
                           "the daemon of node %s is older and runs all jobs as its own user, not "
                           "as %s, which the policy wants; install this version of Heddle there",
                           s->name, run_as);
}

static Heddle__V1__DesiredAttempt *copy_attempt(struct desired_effect *d, struct controller *c,
                                                const struct hd_desired_attempt *desired)
{
    const struct hd_attempt_record record = hd_record_copy_attempt(&d->arena, desired->attempt);
    Heddle__V1__DesiredAttempt *m = hd_arena_alloc(&d->arena, sizeof *m);
    const char *problem;

    if (!m)
        return NULL;
    heddle__v1__desired_attempt__init(m);
    m->job = record.job;
    m->attempt = record.attempt;
    m->wanted = (Heddle__V1__Wanted)desired->wanted;
    m->saves_asked = desired->saves_asked;
    m->attempt_dir = convert_text(convert_attempt_dir(&d->arena, c, record.job, record.attempt));
    m->checkpoint_dir =
        convert_text(convert_checkpoint_dir(&d->arena, c, record.job, record.attempt));
    if (desired->wanted == HD_WANTED_STOPPED)
        return m;
    m->plan = convert_plan(&d->arena, &record.plan);
    if (!m->plan)
        return NULL;
    problem = find_user_problem(d, c, desired);
    if (problem)
        m->problem = convert_text(problem);
    else if (resolve(d, desired->job, &record, m) == HD_NO_MEMORY)
        return NULL;
    m->run_as = convert_text(record.run_as);
    return m;
}

static void copy_deletions(struct desired_effect *d, const struct controller *c,
                           const struct hd_desired *desired)
{
    d->state.deletions =
        hd_arena_array(&d->arena, desired->deletion_count + 1, sizeof *d->state.deletions);
    for (size_t i = 0; d->state.deletions && i < desired->deletion_count; i++) {
        Heddle__V1__CheckpointDeletion *m = hd_arena_alloc(&d->arena, sizeof *m);
        const struct hd_deletion *deletion = &desired->deletions[i];

        if (!m)
            return;
        heddle__v1__checkpoint_deletion__init(m);
        m->job = deletion->job;
        m->attempt = deletion->attempt;
        m->step = deletion->step;
        m->path = convert_text(deletion->attempt ? hd_arena_strdup(&d->arena, deletion->path)
                                                 : convert_job_dir(&d->arena, c, deletion->job));
        m->manifest_hash =
            convert_text(hd_arena_strdup(&d->arena, deletion->hash ? deletion->hash : ""));
        d->state.deletions[d->state.n_deletions++] = m;
    }
}

static enum hd_status fill_desired(struct desired_effect *d, struct controller *c, const char *uuid)
{
    struct hd_desired desired;
    enum hd_status st = hd_core_desired(c->core, uuid, &d->arena, &desired);

    if (st)
        return st;
    d->state.generation = desired.generation;
    d->state.attempts =
        hd_arena_array(&d->arena, desired.attempt_count + 1, sizeof *d->state.attempts);
    for (size_t i = 0; d->state.attempts && i < desired.attempt_count; i++) {
        d->state.attempts[i] = copy_attempt(d, c, &desired.attempts[i]);
        if (!d->state.attempts[i])
            return hd_err(HD_NO_MEMORY, "no memory for a desired set");
        d->state.n_attempts++;
    }
    copy_deletions(d, c, &desired);
    return hd_arena_failed(&d->arena) ? hd_err(HD_NO_MEMORY, "no memory for a desired set") : HD_OK;
}

void fleet_send_desired(struct controller *c, const char *uuid)
{
    struct node_stream *s = fleet_find_node(c, uuid);
    struct desired_effect *d;

    if (!s)
        return; /* it gets its desired set after it reconnects */
    d = calloc(1, sizeof *d);
    if (!d) {
        hd_rpc_call_fail(s->call, hd_err(HD_NO_MEMORY, "no memory for a desired set"));
        return;
    }
    hd_arena_init(&d->arena, 0);
    heddle__v1__desired_state__init(&d->state);
    d->effect.run = run_desired;
    d->stream = s->number;
    if (fill_desired(d, c, uuid)) {
        free_desired(d);
        hd_rpc_call_fail(s->call, hd_err(HD_NO_MEMORY, "no memory for a desired set"));
        return;
    }
    turn_when_durable(c, &d->effect);
}

/* ---- removal ----------------------------------------------------------------------------------*/

struct removed_effect {
    struct effect effect;
    uint64_t stream;
    char text[HD_CTL_NAME_BYTES_MAX + 16];
};

static void run_removed(struct effect *effect, struct controller *c, enum hd_status st)
{
    struct removed_effect *r = (struct removed_effect *)(void *)effect;
    struct node_stream *s = find_stream(c, r->stream);
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    Heddle__V1__Removed body = HEDDLE__V1__REMOVED__INIT;

    body.message = r->text;
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_REMOVED;
    message.removed = &body;
    if (!st && s) {
        send_message(s, &message);
        hd_rpc_call_finish(s->call);
    }
    free(r);
}

void fleet_send_removed(struct controller *c, const char *uuid, const char *by)
{
    struct node_stream *s = fleet_find_node(c, uuid);
    struct removed_effect *r = s ? calloc(1, sizeof *r) : NULL;

    if (!s)
        return;
    s->removed = true;
    if (!r) {
        hd_rpc_call_fail(s->call, hd_err(HD_NO_MEMORY, "no memory to tell node %s", s->name));
        return;
    }
    r->effect.run = run_removed;
    r->stream = s->number;
    (void)snprintf(r->text, sizeof r->text, "%s", by);
    turn_when_durable(c, &r->effect);
}

/* ---- probes -----------------------------------------------------------------------------------*/

struct probe_effect {
    struct effect effect;
    uint64_t stream;
};

static void send_probe_request(struct node_stream *s)
{
    const uint64_t request = hd_core_probe_asked(s->c->core, s->uuid);
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    Heddle__V1__ProbeRequest body = HEDDLE__V1__PROBE_REQUEST__INIT;

    if (!request)
        return;
    body.request = request;
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_PROBE_REQUEST;
    message.probe_request = &body;
    send_message(s, &message);
}

static void run_probe(struct effect *effect, struct controller *c, enum hd_status st)
{
    struct probe_effect *p = (struct probe_effect *)(void *)effect;
    struct node_stream *s = find_stream(c, p->stream);

    if (!st && s)
        send_probe_request(s);
    free(p);
}

void fleet_send_probe_request(struct controller *c, const char *uuid)
{
    const struct node_stream *s = fleet_find_node(c, uuid);
    struct probe_effect *p = s ? calloc(1, sizeof *p) : NULL;

    if (!s)
        return; /* it is asked when it has reconnected */
    if (!p) {
        hd_rpc_call_fail(s->call, hd_err(HD_NO_MEMORY, "no memory to ask node %s", s->name));
        return;
    }
    p->effect.run = run_probe;
    p->stream = s->number;
    turn_when_durable(c, &p->effect);
}

/* ---- Hello ------------------------------------------------------------------------------------*/

struct welcome_effect {
    struct effect effect;
    uint64_t stream;
};

static void run_welcome(struct effect *effect, struct controller *c, enum hd_status st)
{
    struct welcome_effect *w = (struct welcome_effect *)(void *)effect;
    struct node_stream *s = find_stream(c, w->stream);
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    Heddle__V1__Welcome welcome = HEDDLE__V1__WELCOME__INIT;

    free(w);
    if (st || !s)
        return;
    welcome.protocol = HEDDLE__V1__PROTOCOL__PROTOCOL_MAX;
    welcome.build = convert_text(c->options.build);
    welcome.cluster_id = convert_text(hd_store_cluster_id(c->store));
    welcome.jobs_dir = c->jobs_dir;
    welcome.jobs_dir_probe = convert_text(JOBS_DIR_MARK);
    welcome.jobs_dir_probe_text = c->probe;
    welcome.heartbeat_ms = HEARTBEAT_MS;
    welcome.probe_unix_ms = hd_core_probe_ended(c->core, s->uuid);
    welcome.unreachable_ms = (int32_t)hd_core_config_default.unreachable_ms;
    s->welcomed = true;
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_WELCOME;
    message.welcome = &welcome;
    send_message(s, &message);
    send_probe_request(s); /* one without an answer */
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

/* Ends the older streams of the same daemon. */
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

/* A token with a name is for the node of that name alone. A daemon with this token cannot connect
 * as another node: neither under another name, nor with another node's uuid, which any user can
 * read. */
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
    struct welcome_effect *welcome;
    struct hd_core_event event = {.kind = HD_CORE_HELLO,
                                  .hello = {.uuid = hello->node_uuid,
                                            .name = hello->node_name,
                                            .boot_id = hello->boot_id,
                                            .build = hello->build,
                                            .data_address = hello->data_address,
                                            .compute = hello->compute,
                                            .compute_cuda = hello->compute_cuda,
                                            .traits = hello->traits,
                                            .probes = hello->probes,
                                            .stream = ++s->c->last_stream,
                                            .devices = devices,
                                            .device_count = (int32_t)hello->n_devices}};
    enum hd_status st = check_protocol(hello, s->c);

    s->knows_users = hello->isolation && *hello->isolation->users;
    if (hello->isolation)
        event.hello.isolation = (struct hd_isolation){.mode = hello->isolation->mode,
                                                      .tier = hello->isolation->tier,
                                                      .locks = hello->isolation->locks,
                                                      .lacks = hello->isolation->lacks,
                                                      .users = hello->isolation->users};
    if (!st)
        st = check_token(s->c, s->call, hello->node_name, hello->node_uuid);
    if (!st && !s->held && copies_find_twin(s, hello))
        return copies_hold(s); /* copies_look comes back to it */
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
        st = turn_step(s->c, &event);
    if (st)
        return st;
    topology_keep(s->c, hello->node_uuid, hello->inventory);
    (void)snprintf(s->uuid, sizeof s->uuid, "%s", hello->node_uuid);
    (void)snprintf(s->name, sizeof s->name, "%s", hello->node_name);
    (void)snprintf(s->instance, sizeof s->instance, "%s", hello->instance_id);
    s->heard_ms = hd_clock_now_ms();
    s->number = event.hello.stream;
    end_older_streams(s);
    welcome = calloc(1, sizeof *welcome);
    if (!welcome)
        return hd_err(HD_NO_MEMORY, "no memory for a node");
    welcome->effect.run = run_welcome;
    welcome->stream = s->number;
    turn_when_durable(s->c, &welcome->effect);
    hd_log(HD_LOG_INFO, "node %s connected (%zu devices, build %s)", s->name, hello->n_devices,
           hello->build);
    return HD_OK;
}

/* ---- observed sets ----------------------------------------------------------------------------*/

/* A checkpoint must be in its attempt's folder: another folder could be deleted by mistake. */
static bool is_in_place(struct node_stream *s, uint64_t job, int32_t attempt, const char *path)
{
    struct hd_arena arena;
    const char *dir;
    bool in_place;

    hd_arena_init(&arena, 0);
    dir = convert_checkpoint_dir(&arena, s->c, job, attempt);
    in_place = dir && strncmp(path, dir, strlen(dir)) == 0 && path[strlen(dir)] == '/' &&
               !strstr(path, "/../") && strlen(path) < HD_CTL_PATH_BYTES_MAX;
    hd_arena_done(&arena);
    if (!in_place)
        hd_log(HD_LOG_WARN, "node %s reports a checkpoint of job %" PRIu64 " in a wrong folder: %s",
               s->name, job, path);
    return in_place;
}

static void take_checkpoints(struct node_stream *s, struct hd_arena *arena,
                             const Heddle__V1__ObservedAttempt *m, struct hd_observed *observed)
{
    observed->checkpoints =
        hd_arena_array(arena, m->n_checkpoints + 1, sizeof *observed->checkpoints);
    for (size_t i = 0; observed->checkpoints && i < m->n_checkpoints; i++) {
        if (is_in_place(s, m->job, m->attempt, m->checkpoints[i]->path))
            observed->checkpoints[observed->checkpoint_count++] =
                convert_checkpoint_record(m->checkpoints[i]);
    }
}

static enum hd_status take_observed(struct node_stream *s, const Heddle__V1__ObservedState *m)
{
    struct hd_core_event event = {
        .kind = HD_CORE_OBSERVED,
        .observed = {.uuid = s->uuid,
                     .stream = s->number,
                     .generation = m->generation,
                     .jobs_dir_visible = strcmp(m->jobs_dir_probe, s->c->probe) == 0,
                     .jobs_dir_problem = m->jobs_dir_problem,
                     .no_room = m->no_room,
                     .leaves = m->leaves}};
    struct hd_observed *attempts;
    struct hd_deletion *deleted;
    struct hd_arena arena;
    enum hd_status st;

    if (!event.observed.jobs_dir_visible && !*m->jobs_dir_problem)
        event.observed.jobs_dir_problem = "a different folder has the same path";
    hd_arena_init(&arena, 0);
    attempts = hd_arena_array(&arena, m->n_attempts + 1, sizeof *attempts);
    deleted = hd_arena_array(&arena, m->n_deleted + 1, sizeof *deleted);
    for (size_t i = 0; attempts && i < m->n_attempts; i++) {
        const Heddle__V1__ObservedAttempt *a = m->attempts[i];

        attempts[i] = (struct hd_observed){.job = a->job,
                                           .attempt = a->attempt,
                                           .state = (enum hd_attempt_state)a->state,
                                           .end = convert_end_record(a->end),
                                           .problem = a->problem,
                                           .waits = a->waits};
        take_checkpoints(s, &arena, a, &attempts[i]);
    }
    for (size_t i = 0; deleted && i < m->n_deleted; i++)
        deleted[i] = (struct hd_deletion){.job = m->deleted[i]->job,
                                          .attempt = m->deleted[i]->attempt,
                                          .step = m->deleted[i]->step};
    event.observed.attempts = attempts;
    event.observed.attempt_count = m->n_attempts;
    event.observed.deleted = deleted;
    event.observed.deleted_count = m->n_deleted;
    st = hd_arena_failed(&arena) ? hd_err(HD_NO_MEMORY, "no memory for an observed set")
                                 : turn_step(s->c, &event);
    hd_arena_done(&arena);
    return st;
}

/* ---- reports ----------------------------------------------------------------------------------*/

/* Acknowledges, when the turn is durable, the highest seq of each (job, attempt, rank). */
struct ack_effect {
    struct effect effect;
    uint64_t stream;
    size_t count;
    struct hd_position_record positions[];
};

static void run_ack(struct effect *effect, struct controller *c, enum hd_status st)
{
    struct ack_effect *ack = (struct ack_effect *)(void *)effect;
    struct node_stream *s = find_stream(c, ack->stream);
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    Heddle__V1__ReportAck body = HEDDLE__V1__REPORT_ACK__INIT;
    Heddle__V1__ReportPosition *items = calloc(ack->count + 1, sizeof *items);
    Heddle__V1__ReportPosition **pointers = calloc(ack->count + 1, sizeof(void *));

    for (size_t i = 0; items && pointers && i < ack->count; i++) {
        heddle__v1__report_position__init(&items[i]);
        items[i].job = ack->positions[i].job;
        items[i].attempt = ack->positions[i].attempt;
        items[i].rank = ack->positions[i].rank;
        items[i].seq = ack->positions[i].seq;
        pointers[i] = &items[i];
    }
    body.n_positions = ack->count;
    body.positions = pointers;
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_REPORT_ACK;
    message.report_ack = &body;
    if (!st && s && items && pointers)
        send_message(s, &message);
    free(items);
    free(pointers);
    free(ack);
}

static void acknowledge(struct ack_effect *ack, const Heddle__V1__Report *r)
{
    for (size_t i = 0; i < ack->count; i++) {
        struct hd_position_record *p = &ack->positions[i];

        if (p->job == r->job && p->attempt == r->attempt && p->rank == r->rank) {
            p->seq = r->seq > p->seq ? r->seq : p->seq;
            return;
        }
    }
    ack->positions[ack->count++] = (struct hd_position_record){
        .job = r->job, .attempt = r->attempt, .rank = r->rank, .seq = r->seq};
}

static void describe_exit(const Heddle__V1__Report *r, char *ret_text, size_t size)
{
    const Heddle__V1__RankExit *e = r->rank_exit;

    if (e->signal)
        (void)snprintf(ret_text, size, "rank %d was killed by signal %d%s%s", r->rank, e->signal,
                       *e->message ? ": " : "", e->message);
    else if (e->exit_code)
        (void)snprintf(ret_text, size, "rank %d ended with exit code %d%s%s", r->rank, e->exit_code,
                       *e->message ? ": " : "", e->message);
    else
        (void)snprintf(ret_text, size, "rank %d is done", r->rank);
}

/* False: skip the report, but acknowledge it: its kind is unknown (of a later version), or its
 * checkpoint is outside the attempt's folder. */
static bool fill_report(struct node_stream *s, const Heddle__V1__Report *r,
                        struct hd_core_event *event, char *text, size_t size)
{
    bool clean;

    switch (r->body_case) {
    case HEDDLE__V1__REPORT__BODY_STEP:
        event->report.kind = HD_REPORT_STEP;
        event->report.step = (struct hd_step_record){.step = r->step->step,
                                                     .time_ms = r->step->time_unix_ms,
                                                     .expert_load = r->step->expert_load,
                                                     .expert_count = r->step->n_expert_load};
        hd_step_from_message(r->step, &event->report.step.metrics);
        return true;
    case HEDDLE__V1__REPORT__BODY_VALIDATION:
        event->report.kind = HD_REPORT_VALIDATION;
        event->report.validation =
            (struct hd_validation_record){.step = r->validation->step,
                                          .tokens = r->validation->tokens,
                                          .time_ms = r->validation->time_unix_ms,
                                          .loss = r->validation->loss};
        return true;
    case HEDDLE__V1__REPORT__BODY_CHECKPOINT:
        event->report.kind = HD_REPORT_CHECKPOINT;
        event->report.checkpoint = convert_checkpoint_record(r->checkpoint);
        return is_in_place(s, r->job, r->attempt, r->checkpoint->path);
    case HEDDLE__V1__REPORT__BODY_EVENT:
        event->report.kind = HD_REPORT_EVENT;
        event->report.event = (struct hd_event_record){.time_ms = r->event->time_unix_ms,
                                                       .rank = r->event->rank,
                                                       .kind = r->event->kind,
                                                       .message = r->event->message};
        return true;
    case HEDDLE__V1__REPORT__BODY_RANK_EXIT:
        describe_exit(r, text, size);
        clean = !r->rank_exit->signal && !r->rank_exit->exit_code;
        event->report.kind = HD_REPORT_EVENT;
        event->report.event = (struct hd_event_record){.time_ms = r->rank_exit->time_unix_ms,
                                                       .rank = -1,
                                                       .kind = clean ? "rank_done" : "rank_exit",
                                                       .message = text};
        return true;
    default:
        return false;
    }
}

static enum hd_status take_report(struct node_stream *s, const Heddle__V1__Report *r)
{
    char text[HD_CTL_MESSAGE_BYTES_MAX + 8]; /* the core cuts it, between characters */
    struct hd_core_event event = {.kind = HD_CORE_REPORT,
                                  .report = {.uuid = s->uuid,
                                             .stream = s->number,
                                             .job = r->job,
                                             .attempt = r->attempt,
                                             .rank = r->rank,
                                             .seq = r->seq}};
    enum hd_status st;

    if (!fill_report(s, r, &event, text, sizeof text))
        return HD_OK;
    st = turn_step(s->c, &event);
    if (st == HD_NOT_FOUND || st == HD_INVALID) {
        hd_log(HD_LOG_DEBUG, "a report of node %s is dropped: %s", s->name, hd_err_message());
        return HD_OK; /* acknowledged, so that the daemon deletes it */
    }
    return st;
}

static enum hd_status take_reports(struct node_stream *s, const Heddle__V1__Reports *m)
{
    struct ack_effect *ack = calloc(1, sizeof *ack + (m->n_reports + 1) * sizeof ack->positions[0]);
    enum hd_status st = HD_OK;

    if (!ack)
        return hd_err(HD_NO_MEMORY, "no memory for reports");
    ack->effect.run = run_ack;
    ack->stream = s->number;
    for (size_t i = 0; !st && i < m->n_reports; i++) {
        st = take_report(s, m->reports[i]);
        if (!st)
            acknowledge(ack, m->reports[i]);
    }
    turn_when_durable(s->c, &ack->effect);
    return st;
}

/* ---- the stream's callbacks -------------------------------------------------------------------*/

static void answer_heartbeat(struct node_stream *s, const Heddle__V1__Heartbeat *m)
{
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    Heddle__V1__Heartbeat body = HEDDLE__V1__HEARTBEAT__INIT;

    body.nonce = m->nonce;
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_HEARTBEAT;
    message.heartbeat = &body;
    send_message(s, &message);
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
    s->heard_ms = hd_clock_now_ms();
    st = turn_step(s->c, &alive);
    if (st)
        return st;
    switch (m->body_case) {
    case HEDDLE__V1__NODE_MESSAGE__BODY_OBSERVED:
        return take_observed(s, m->observed);
    case HEDDLE__V1__NODE_MESSAGE__BODY_REPORTS:
        return take_reports(s, m->reports);
    case HEDDLE__V1__NODE_MESSAGE__BODY_RENDEZVOUS_PUT:
        return rendezvous_put(s->c, s->call, s->uuid, m->rendezvous_put);
    case HEDDLE__V1__NODE_MESSAGE__BODY_PROBE_REPORT:
        return probe_take(s->c, s->uuid, s->number, m->probe_report);
    case HEDDLE__V1__NODE_MESSAGE__BODY_HEARTBEAT:
        answer_heartbeat(s, m->heartbeat);
        return HD_OK;
    default:
        return HD_OK; /* unknown: of a later version */
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
    turn_begin(c);
    st = take_message(s, (const Heddle__V1__NodeMessage *)(const void *)message);
    if (st) {
        hd_log(HD_LOG_WARN, "closing the stream of %s: %s", *s->name ? s->name : "a daemon",
               hd_err_message());
        hd_rpc_call_fail(call, st);
    }
    turn_end(c);
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
        turn_begin(c);
        (void)turn_step(c, &gone);
        turn_end(c);
    }
    if (s->logs) {
        hd_rpc_call_cancel(s->logs);
        read_log_node_gone(c, s->uuid);
    }
    if (s->held)
        hd_rpc_message_free(&s->held->base);
    free(s);
    if (!c->stopping)
        copies_look(c); /* one may have waited for this */
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

/* A Hello is answered when it is on disk, and so are reports. On a disk that takes no writes that
 * may be long: a daemon that hears nothing for 15 s connects again, which is one more Hello to
 * keep, and its node would be lost, and the jobs on it, as soon as there is room. Any message is a
 * sign of life to a daemon; before its welcome it sends nothing, and its open stream is one to the
 * core. */
void fleet_tick(struct controller *c)
{
    const int64_t now_ms = hd_clock_now_ms();

    copies_look(c);
    for (struct node_stream *s = c->streams; s; s = s->next) {
        const struct hd_core_event alive = {.kind = HD_CORE_ALIVE,
                                            .node = {.uuid = s->uuid, .stream = s->number}};
        Heddle__V1__Heartbeat nothing = HEDDLE__V1__HEARTBEAT__INIT;

        if (!s->number || s->removed || now_ms < s->kept_ms + HEARTBEAT_MS ||
            (s->welcomed && hd_store_room(c->store) != HD_STORE_STUCK))
            continue;
        s->kept_ms = now_ms;
        if (!s->welcomed) {
            turn_begin(c);
            (void)turn_step(c, &alive);
            turn_end(c);
        }
        answer_heartbeat(s, &nothing);
    }
}

void fleet_send_to_attempt(struct controller *c, const struct hd_attempt_record *attempt,
                           const Heddle__V1__ControllerMessage *message)
{
    for (struct node_stream *s = c->streams; s; s = s->next) {
        for (int32_t rank = 0; s->number && rank < attempt->plan.rank_count; rank++) {
            if (strcmp(attempt->plan.ranks[rank].node_uuid, s->uuid) == 0) {
                send_message(s, message);
                break;
            }
        }
    }
}

enum hd_status fleet_register(struct controller *c)
{
    const struct hd_rpc_method connect = {
        .path = "/heddle.v1.Fleet/Connect",
        .kind = HD_RPC_BIDI,
        .request = &heddle__v1__node_message__descriptor,
        .response = &heddle__v1__controller_message__descriptor,
        .handler = {.on_open = on_open,
                    .on_msg = on_msg,
                    .on_half_close = on_half_close,
                    .on_done = on_done},
        .user = c,
    };
    const struct hd_rpc_method logs = {
        .path = "/heddle.v1.Fleet/Logs",
        .kind = HD_RPC_BIDI,
        .request = &heddle__v1__log_chunk__descriptor,
        .response = &heddle__v1__log_request__descriptor,
        .handler = {.on_msg = on_logs_msg, .on_half_close = on_half_close, .on_done = on_logs_done},
        .user = c,
    };
    enum hd_status st = guard_add_method(c, &connect);

    return st ? st : guard_add_method(c, &logs);
}
