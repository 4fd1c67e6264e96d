/* send: messages on the stream to the controller: the complete observed set, reports, rendezvous
 * values. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/convert.h"

enum { PROBE_BYTES_MAX = 4096, MESSAGE_ARENA_MAX = 64 << 20 };

enum hd_status send_message(struct agent *agent, Heddle__V1__NodeMessage *message)
{
    enum hd_status st;

    if (!agent->stream)
        return hd_err(HD_UNAVAILABLE, "the controller is not connected");
    st = hd_rpc_call_write(agent->stream, &message->base);
    if (!st)
        agent->reported_ms = hd_clock_now_ms();
    return st;
}

/* ---- the jobs directory ---- */

/* Returns whether the lines of the jobs directory's marker file behind the first
 * (controller/services/jobs_dir.c) name another cluster. */
static bool is_taken(const struct agent *agent, const char *lines)
{
    static const char word[] = "cluster ";
    const char *id = agent->identity.cluster;
    const size_t n = strlen(id);

    return n && hd_text_starts(lines, word) &&
           (strncmp(lines + strlen(word), id, n) != 0 || lines[strlen(word) + n] != '\n');
}

static void report_taken(struct agent *agent, const char *lines)
{
    static const char word[] = "\nstate ";
    const char *state = strstr(lines, word);

    state = state ? state + strlen(word) : "(not known)";
    (void)snprintf(agent->probe_problem, sizeof agent->probe_problem,
                   "the controller of another cluster has taken it, with the state directory %.*s",
                   (int)(strcspn(state, "\n") < 300 ? strcspn(state, "\n") : 300), state);
    agent->probe_taken = true;
}

void send_read_probe(struct agent *agent)
{
    struct hd_text path = {0}, text = {0};
    size_t first;

    agent->probed_ms = hd_clock_now_ms();
    agent->probe_taken = false;
    agent->probe[0] = agent->probe_problem[0] = '\0';
    hd_text_add(&path, "%s/%s", agent->jobs_dir, agent->probe_name);
    if (path.failed || hd_file_read(path.data, PROBE_BYTES_MAX, &text)) {
        (void)snprintf(agent->probe_problem, sizeof agent->probe_problem, "%s", hd_err_message());
    } else {
        first = strcspn(text.data, "\n");
        text.data[first] = '\0';
        if (strlen(text.data) >= sizeof agent->probe ||
            !hd_text_is_utf8(text.data, strlen(text.data)))
            (void)snprintf(agent->probe_problem, sizeof agent->probe_problem,
                           "%s is not the controller's", path.data);
        else
            (void)snprintf(agent->probe, sizeof agent->probe, "%s", text.data);
        if (!agent->probe_problem[0] && first + 1 < text.len_bytes &&
            hd_text_is_utf8(text.data + first + 1, text.len_bytes - first - 1) &&
            is_taken(agent, text.data + first + 1))
            report_taken(agent, text.data + first + 1);
        if (!agent->probe_problem[0] && agent->probe_text[0] &&
            strcmp(agent->probe, agent->probe_text) != 0)
            (void)snprintf(agent->probe_problem, sizeof agent->probe_problem,
                           "%.400s is another folder of the same name", agent->jobs_dir);
    }
    hd_text_free(&path);
    hd_text_free(&text);
}

/* ---- the observed set ---- */

static Heddle__V1__AttemptState shown_state(const struct agent_attempt *l)
{
    if (l->state == LOCAL_ENDED) /* shown as STOPPING until the controller has every report */
        return l->end_reported ? HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_ENDED
                               : HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_STOPPING;
    switch (l->alloc) {
    case HD_ALLOC_RUNNING:
        return HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_RUNNING;
    case HD_ALLOC_STOPPING:
    case HD_ALLOC_ENDED:
        return HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_STOPPING;
    default:
        return HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_STARTING;
    }
}

static Heddle__V1__ObservedAttempt *observe(struct agent *agent, struct hd_arena *arena,
                                            struct agent_attempt *l)
{
    Heddle__V1__ObservedAttempt *o = hd_arena_alloc(arena, sizeof *o);

    if (!o)
        return NULL;
    heddle__v1__observed_attempt__init(o);
    o->job = (uint64_t)l->job;
    o->attempt = (int32_t)l->attempt;
    o->state = shown_state(l);
    o->problem = l->problem[0] ? l->problem : convert_text_of(l->trouble);
    if (!*o->problem) { /* the checkpoint is safe here, so the attempt goes on */
        char *copy = hd_arena_alloc(arena, HD_LINK_TEXT_MAX);

        if (copy)
            copies_get_problem(agent->copies, l->job, copy, HD_LINK_TEXT_MAX);
        if (copy && *copy)
            o->problem = copy;
    }
    o->waits = l->waits;
    if (o->state == HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_ENDED) {
        o->end = convert_end(arena, agent->identity.node_name, &l->end);
        convert_checkpoints(arena, l->checkpoint_dir, l->attempt, o);
    }
    return o;
}

static void observe_deletions(struct agent *agent, struct hd_arena *arena,
                              Heddle__V1__ObservedState *state)
{
    size_t count = 0;

    for (const struct agent_deletion *d = agent->deletions; d; d = d->next)
        count += d->done && d->wanted;
    state->deleted = hd_arena_array(arena, count ? count : 1, sizeof *state->deleted);
    for (struct agent_deletion *d = agent->deletions; d && state->deleted; d = d->next) {
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
        if (d->left)
            done->left = convert_text_of(d->error.message);
        state->deleted[state->n_deleted++] = done;
    }
}

/* Lists the newest finished copies of checkpoints. */
static void observe_copies(struct agent *agent, struct hd_arena *arena,
                           Heddle__V1__ObservedState *state)
{
    struct copies_done *done = hd_arena_array(arena, COPIES_DONE_MAX, sizeof *done);
    const size_t count = done ? copies_get_done(agent->copies, done) : 0;

    state->copied = hd_arena_array(arena, count ? count : 1, sizeof *state->copied);
    for (size_t i = 0; state->copied && i < count; i++) {
        Heddle__V1__CheckpointCopy *copy = hd_arena_alloc(arena, sizeof *copy);

        if (!copy)
            return;
        heddle__v1__checkpoint_copy__init(copy);
        copy->job = (uint64_t)done[i].job;
        copy->attempt = (int32_t)done[i].attempt;
        copy->step = done[i].step;
        copy->to = done[i].to;
        copy->time_unix_ms = done[i].time_ms;
        state->copied[state->n_copied++] = copy;
    }
}

enum hd_status send_observed(struct agent *agent)
{
    Heddle__V1__ObservedState state = HEDDLE__V1__OBSERVED_STATE__INIT;
    Heddle__V1__NodeMessage message = HEDDLE__V1__NODE_MESSAGE__INIT;
    struct hd_arena arena;
    int64_t newest_copy_ms;
    size_t count = 0;
    enum hd_status st;

    hd_arena_init(&arena, MESSAGE_ARENA_MAX);
    state.generation = agent->generation;
    state.jobs_dir_probe = agent->probe;
    state.jobs_dir_problem = agent->probe_problem;
    state.no_room = agent->refuses_attempts;
    state.leaves = agent->leave_deadline_ms != 0;
    for (struct agent_attempt *l = agent->locals.first; l; l = l->next)
        count++;
    state.attempts = hd_arena_array(&arena, count ? count : 1, sizeof *state.attempts);
    for (struct agent_attempt *l = agent->locals.first; l && state.attempts; l = l->next) {
        state.attempts[state.n_attempts] = observe(agent, &arena, l);
        if (!state.attempts[state.n_attempts])
            break;
        state.n_attempts++;
    }
    observe_deletions(agent, &arena, &state);
    newest_copy_ms = copies_newest_ms(agent->copies);
    observe_copies(agent, &arena, &state);
    message.body_case = HEDDLE__V1__NODE_MESSAGE__BODY_OBSERVED;
    message.observed = &state;
    /* A partial set must not be sent: an attempt missing in it counts as ended. */
    st = hd_arena_failed(&arena) ? hd_err(HD_NO_MEMORY, "no memory for the observed set")
                                 : send_message(agent, &message);
    if (!st)
        copies_set_told(agent->copies, newest_copy_ms);
    hd_arena_done(&arena);
    return st;
}

/* ---- reports ---- */

/* Overwrites job, attempt and path in a report from the supervisor of another user, which may write
 * anything into its spool: the report must be of its own attempt, and a checkpoint must lie in the
 * attempt's folder, or `checkpoint rm` would remove another job's. */
static void take_as_own(const struct agent_attempt *l, struct hd_link_report *report)
{
    const size_t n = strlen(l->checkpoint_dir);

    report->job = l->job;
    report->attempt = l->attempt;
    if (!l->run_as || report->kind != HD_LINK_CHECKPOINT ||
        (strncmp(report->checkpoint.path, l->checkpoint_dir, n) == 0 &&
         report->checkpoint.path[n] == '/' && !strchr(report->checkpoint.path + n + 1, '/')))
        return;
    report->kind = HD_LINK_EVENT;
    report->event.level = HD_LINK_LEVEL_ERROR;
    report->event.about = NAN;
    (void)snprintf(report->event.text, sizeof report->event.text,
                   "a checkpoint that is not in %.600s was reported, and is not used",
                   l->checkpoint_dir);
}

/* Fills a batch with unsent reports of one attempt. Returns the number of reports added. */
static size_t fill_batch(struct agent *agent, struct agent_attempt *l)
{
    size_t n = 0;
    enum hd_status st = HD_OK;

    while (n < AGENT_REPORTS_A_MESSAGE && (!st || st == HD_CORRUPT)) {
        st = agent_outbox_next(l->outbox, &agent->batch[n]);
        if (!st)
            take_as_own(l, &agent->batch[n++]);
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
        st = send_message(agent, &message);
    hd_arena_done(&arena);
    return st;
}

static void send_reports(struct agent *agent)
{
    for (struct agent_attempt *l = agent->locals.first; l; l = l->next) {
        size_t n;

        while ((n = fill_batch(agent, l)) > 0) {
            if (send_batch(agent, n) == HD_OK)
                continue;
            while (n--) /* on_drain or the next connection sends them again */
                agent_outbox_unsend(l->outbox);
            return;
        }
        if (l->state == LOCAL_ENDED && !l->end_reported &&
            hd_health_has_checked(&agent->health, l->check) && agent_outbox_is_empty(l->outbox))
            l->end_reported = agent->observed_dirty = true;
    }
}

void send_changes(struct agent *agent)
{
    if (!agent->welcomed)
        return;
    send_reports(agent);
    if (agent->observed_dirty && send_observed(agent) == HD_OK)
        agent->observed_dirty = false;
}

/* ---- the rendezvous ---- */

void send_put(struct agent *agent, const struct agent_attempt *local, const struct local_put *put)
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
    if (send_message(agent, &message)) /* a new stream sends all values again */
        hd_log(HD_LOG_WARN, "cannot put a rendezvous value: %s", hd_err_message());
}
