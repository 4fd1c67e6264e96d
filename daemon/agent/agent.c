#include "daemon/agent/agent.h"

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/notify.h"
#include "daemon/agent/doctor.h"
#include "daemon/agent/reconcile.h"
#include "rpc/find.h"
#include "spec/spec.h"

enum {
    FILES_NEEDED = 512,
    TRY_AGAIN_MS = 2000,
    EPHEMERAL_END_MS = 8000, /* for supervisors to end theirs, on the way out */
    RESOLVE_ARENA_MAX = 64 << 20,
};

/* ---- what the controller wants ---- */

static enum hd_wish wish_of(const Heddle__V1__DesiredAttempt *d)
{
    switch (d->wanted) {
    case HEDDLE__V1__WANTED__WANTED_RUNNING:
        return HD_WISH_RUNNING;
    case HEDDLE__V1__WANTED__WANTED_STOPPED:
        return HD_WISH_STOPPED;
    default: /* a newer controller's word: the mildest that starts nothing */
        return HD_WISH_STOPPING;
    }
}

static enum hd_here_state here_of(const struct local *l)
{
    switch (l->state) {
    case LOCAL_PLANNED:
        return HD_HERE_PLANNED;
    case LOCAL_ENDED:
        return HD_HERE_ENDED;
    default:
        return l->kill_wanted ? HD_HERE_DYING : l->stop_wanted ? HD_HERE_STOPPING : HD_HERE_ALIVE;
    }
}

/* The ranks of this node. GPUs are named, so that a rank sees its own and no other. */
static enum hd_status own_ranks(const struct agent *agent, const Heddle__V1__Plan *plan,
                                struct local_ranks *ret_ranks)
{
    const struct agent_devices *devices = &agent->identity.devices;
    const bool cuda = plan->device == HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CUDA;

    *ret_ranks = (struct local_ranks){.world = (int64_t)plan->n_ranks};
    for (size_t i = 0; i < plan->n_ranks && ret_ranks->count < HD_ATTEMPT_RANKS_MAX; i++) {
        const Heddle__V1__RankPlacement *rank = plan->ranks[i];
        const struct agent_one_device *device = agent_devices_at(devices, rank->device);

        if (strcmp(rank->node_uuid, agent->identity.node_uuid) != 0)
            continue;
        if (cuda && (!device || !device->cuda))
            return hd_err(HD_INVALID,
                          "the plan gives rank %d GPU %d, which this node does not offer",
                          rank->rank, rank->device);
        ret_ranks->rank[ret_ranks->count] = rank->rank;
        ret_ranks->gpu[ret_ranks->count++] = cuda ? device->uuid : NULL;
    }
    if (!ret_ranks->count)
        return hd_err(HD_INVALID, "the plan has no rank for this node");
    if (ret_ranks->count < ret_ranks->world && !agent->identity.data_address[0])
        return hd_err(HD_CONFLICT, "this node offers no address to ranks of other nodes");
    if (ret_ranks->count > devices->count)
        return hd_err(HD_INVALID, "the plan has %d ranks for this node of %d devices",
                      ret_ranks->count, devices->count);
    return HD_OK;
}

/* Of each rank on the host: the plan's, or of a GPU's rank a share of the cores. */
static int threads_of(const struct agent *agent, const Heddle__V1__Plan *plan)
{
    if (plan->device == HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CUDA &&
        agent->identity.devices.gpu_count)
        return agent->identity.devices.list[0].threads;
    return plan->threads_per_device > 0 ? plan->threads_per_device : 1;
}

static enum hd_status resolve(const struct agent *agent, const Heddle__V1__DesiredAttempt *d,
                              struct hd_text *ret_text)
{
    struct hd_spec_attempt facts = {
        .job_id = (int64_t)d->job,
        .number = d->attempt,
        .threads = threads_of(agent, d->plan),
        .dir = d->attempt_dir,
    };
    struct hd_job *job = calloc(1, sizeof *job);
    struct hd_arena arena;
    enum hd_status st;

    if (!job)
        return hd_err(HD_NO_MEMORY, "no memory for a job");
    if (d->base_checkpoint) {
        facts.base_checkpoint = d->base_checkpoint->path;
        facts.base_manifest_hash = d->base_checkpoint->manifest_hash;
    }
    hd_arena_init(&arena, RESOLVE_ARENA_MAX);
    st = hd_spec_resolve(d->spec, d->plan, &facts, &arena, job);
    if (!st)
        st = hd_job_write(job, ret_text);
    hd_arena_done(&arena);
    free(job);
    return st;
}

static void launch(struct agent *agent, const Heddle__V1__DesiredAttempt *d, struct local *local)
{
    struct local_ranks ranks;
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    if (!local)
        st = locals_add(&agent->locals, (int64_t)d->job, d->attempt, d->attempt_dir,
                        d->checkpoint_dir, &local);
    if (st) { /* nothing on record, nothing started */
        agent->try_again_ms = hd_clock_now_ms() + TRY_AGAIN_MS;
        hd_log(HD_LOG_ERROR, "job %" PRIu64 " attempt %d: %s", d->job, d->attempt,
               hd_err_message());
        return;
    }
    if (!d->spec || !d->plan)
        st = hd_err(HD_INVALID, "the controller sent no spec or no plan");
    if (!st)
        st = own_ranks(agent, d->plan, &ranks);
    if (!st)
        st = resolve(agent, d, &text);
    if (st)
        local_fail_launch(local, st == HD_INVALID || st == HD_UNSUPPORTED, hd_err_message());
    else
        local_launch(local, text.data, text.len_bytes, &ranks);
    hd_text_free(&text);
}

static void carry_out(struct agent *agent, const struct hd_action *action, struct local **locals,
                      const Heddle__V1__DesiredState *desired)
{
    struct local *l = action->here_index == SIZE_MAX ? NULL : locals[action->here_index];

    switch (action->deed) {
    case HD_DEED_LAUNCH:
        launch(agent, desired->attempts[action->wanted_index], l);
        break;
    case HD_DEED_STOP:
        hd_log(HD_LOG_INFO, "job %" PRId64 " attempt %" PRId64 ": stopping", l->job, l->attempt);
        local_stop(l);
        break;
    case HD_DEED_KILL:
        hd_log(HD_LOG_INFO, "job %" PRId64 " attempt %" PRId64 ": ending at once", l->job,
               l->attempt);
        local_kill(l);
        break;
    case HD_DEED_FORGET:
        local_forget(l);
        break;
    }
    agent->observed_dirty = true;
}

static void reconcile(struct agent *agent)
{
    const Heddle__V1__DesiredState *desired = agent->desired->desired;
    struct hd_action *actions;
    struct hd_wanted *wanted;
    struct local **locals;
    struct hd_here *here;
    struct hd_arena arena;
    size_t count = 0, n;

    for (struct local *l = agent->locals.first; l; l = l->next)
        count++;
    hd_arena_init(&arena, 0);
    wanted = hd_arena_array(&arena, desired->n_attempts + 1, sizeof *wanted);
    here = hd_arena_array(&arena, count + 1, sizeof *here);
    locals = hd_arena_array(&arena, count + 1, sizeof *locals);
    actions = hd_arena_array(&arena, desired->n_attempts + count + 1, sizeof *actions);
    if (!hd_arena_failed(&arena)) {
        for (size_t i = 0; i < desired->n_attempts; i++)
            wanted[i] =
                (struct hd_wanted){(int64_t)desired->attempts[i]->job,
                                   desired->attempts[i]->attempt, wish_of(desired->attempts[i])};
        n = 0;
        for (struct local *l = agent->locals.first; l; l = l->next, n++) {
            here[n] = (struct hd_here){l->job, l->attempt, here_of(l)};
            locals[n] = l;
        }
        n = hd_reconcile(wanted, desired->n_attempts, here, count, actions);
        for (size_t i = 0; i < n; i++)
            carry_out(agent, &actions[i], locals, desired);
        agent->reconcile_dirty = false;
    }
    hd_arena_done(&arena);
}

void agent_take_desired(struct agent *agent, Heddle__V1__ControllerMessage *message)
{
    if (!message)
        return;
    if (agent->desired)
        hd_rpc_message_free(&agent->desired->base);
    agent->desired = message;
    deletion_take(agent, message->desired);
    reconcile(agent);
    agent->generation = message->desired->generation;
    agent->observed_dirty = true;
    agent_soon(agent);
}

void agent_forget_desired(struct agent *agent)
{
    if (agent->desired)
        hd_rpc_message_free(&agent->desired->base);
    agent->desired = NULL;
    agent->generation = 0; /* of the next stream nothing is applied yet */
}

/* ---- turns of the loop ---- */

static void on_soon(uv_timer_t *timer)
{
    struct agent *agent = timer->data;

    if (agent->desired && agent->reconcile_dirty && !agent->stopping)
        reconcile(agent);
    stream_flush(agent);
}

void agent_soon(struct agent *agent)
{
    if (!uv_is_active((uv_handle_t *)&agent->soon) && !uv_is_closing((uv_handle_t *)&agent->soon))
        (void)uv_timer_start(&agent->soon, on_soon, 0, 0);
}

static void local_changed(void *user, struct local *local)
{
    struct agent *agent = user;

    if (local->state == LOCAL_ENDED)
        offer_attempt_ended(agent, local);
    agent->reconcile_dirty = agent->observed_dirty = true;
    agent_soon(agent);
}

static void local_puts(void *user, struct local *local, const struct local_put *put)
{
    stream_put(user, local, put);
}

static void on_closed(void *user)
{
    struct agent *agent = user;

    uv_close((uv_handle_t *)&agent->tick, NULL);
    uv_close((uv_handle_t *)&agent->soon, NULL);
    uv_close((uv_handle_t *)&agent->retry, NULL);
    uv_close((uv_handle_t *)&agent->sigterm, NULL);
    uv_close((uv_handle_t *)&agent->sigint, NULL);
    uv_close((uv_handle_t *)&agent->sighup, NULL);
    locals_close(&agent->locals);
}

static void leave(struct agent *agent)
{
    (void)uv_timer_stop(&agent->tick);
    (void)uv_timer_stop(&agent->retry);
    agent->stream = agent->logs = NULL;
    hd_rpc_close(agent->rpc, on_closed, agent);
}

static void on_tick(uv_timer_t *timer)
{
    struct agent *agent = timer->data;

    locals_look_after(&agent->locals);
    if (agent->stopping) {
        if (!agent->options.ephemeral || !locals_any_alive(&agent->locals) ||
            hd_clock_now_ms() >= agent->stop_deadline_ms)
            leave(agent);
        return;
    }
    if (agent->try_again_ms && hd_clock_now_ms() >= agent->try_again_ms) {
        agent->try_again_ms = 0;
        agent->reconcile_dirty = true;
    }
    offer_tick(agent);
    stream_tick(agent);
    logs_tick(agent);
    deletion_tick(agent);
    agent_soon(agent); /* a spool may have grown without a word */
}

void agent_end(struct agent *agent, int exit_code)
{
    if (agent->stopping)
        return;
    agent->stopping = true;
    agent->exit_code = exit_code;
    agent->stop_deadline_ms = hd_clock_now_ms() + EPHEMERAL_END_MS;
    hd_notify_stopping();
    if (locals_any_alive(&agent->locals))
        hd_log(HD_LOG_INFO, "leaving; %s",
               agent->options.ephemeral ? "ending all ranks first (--ephemeral)"
                                        : "ranks go on with their supervisors");
    for (struct local *l = agent->locals.first; l && agent->options.ephemeral; l = l->next)
        if (l->state == LOCAL_ALIVE)
            local_kill(l);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct agent *agent = handle->data;

    hd_log(HD_LOG_INFO, "signal %d", number);
    agent_end(agent, EXIT_SUCCESS);
}

static void on_reload(uv_signal_t *handle, int number)
{
    (void)number;
    offer_ask_now(handle->data);
}

/* ---- opening ---- */

static enum hd_status find_self(struct agent *agent)
{
    char self[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    if (n < 0)
        return hd_err(HD_IO, "cannot find this program's own file: %s", strerror(errno));
    self[n] = '\0';
    (void)snprintf(agent->locals.supervisor, sizeof agent->locals.supervisor,
                   "%s/heddle-supervisor", dirname(self));
    if (agent->options.worker && !realpath(agent->options.worker, agent->locals.worker))
        return hd_err(HD_INVALID, "--worker %s: %s", agent->options.worker, strerror(errno));
    return HD_OK;
}

static enum hd_status find_programs(struct agent *agent)
{
    enum hd_status st = find_self(agent);

    if (st)
        return st;
    if (access(agent->locals.supervisor, X_OK) < 0)
        return hd_err(HD_NOT_FOUND, "%s: %s; it belongs beside heddled", agent->locals.supervisor,
                      strerror(errno));
    return HD_OK;
}

/* The heddle-worker that computes: --worker, or the one beside heddled. */
static void worker_path(const struct agent *agent, char *ret_path, size_t size)
{
    const char *supervisor = agent->locals.supervisor;

    if (agent->locals.worker[0])
        (void)snprintf(ret_path, size, "%s", agent->locals.worker);
    else
        (void)snprintf(ret_path, size, "%.*s/heddle-worker",
                       (int)(strrchr(supervisor, '/') - supervisor), supervisor);
}

static enum hd_status find_controller(struct agent *agent)
{
    struct hd_text address = {0};
    enum hd_status st = hd_rpc_find_controller(agent->options.controller, &address);

    if (!st && address.len_bytes >= sizeof agent->address)
        st = hd_err(HD_INVALID, "the controller's address is too long");
    if (!st)
        (void)snprintf(agent->address, sizeof agent->address, "%s", address.data);
    hd_text_free(&address);
    if (!st && agent->options.token_file)
        st = hd_rpc_read_token(agent->options.token_file, agent->token);
    return st;
}

static enum hd_status open_client(struct agent *agent)
{
    const struct hd_rpc_client_options options = {
        .token = agent->options.token_file ? agent->token : NULL,
        .tls = agent->options.has_tls ? &agent->options.tls : NULL,
    };
    enum hd_status st = hd_rpc_raise_file_limit(FILES_NEEDED);

    if (!st)
        st = hd_rpc_new(agent->loop, &agent->rpc);
    return st ? st : hd_rpc_client_new(agent->rpc, agent->address, &options, &agent->client);
}

/* A SIGHUP while GPUs are asked for at the start waits until there is somebody to hear it. */
static void hold_reload(int how)
{
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGHUP);
    (void)pthread_sigmask(how, &set, NULL);
}

static void open_handles(struct agent *agent)
{
    (void)uv_timer_init(agent->loop, &agent->tick);
    (void)uv_timer_init(agent->loop, &agent->soon);
    (void)uv_timer_init(agent->loop, &agent->retry);
    (void)uv_signal_init(agent->loop, &agent->sigterm);
    (void)uv_signal_init(agent->loop, &agent->sigint);
    (void)uv_signal_init(agent->loop, &agent->sighup);
    agent->tick.data = agent->soon.data = agent->retry.data = agent;
    agent->sigterm.data = agent->sigint.data = agent->sighup.data = agent;
    (void)uv_signal_start(&agent->sigterm, on_signal, SIGTERM);
    (void)uv_signal_start(&agent->sigint, on_signal, SIGINT);
    (void)uv_signal_start(&agent->sighup, on_reload, SIGHUP);
    hold_reload(SIG_UNBLOCK);
    (void)signal(SIGPIPE, SIG_IGN);
}

/* Takes everything down with it, and itself down with who started it. */
static enum hd_status tie_to_parent(pid_t parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid() != parent)
        return hd_err(HD_ABORTED, "the process that started this one is gone");
    return HD_OK;
}

enum hd_status agent_open(struct agent *agent)
{
    const pid_t parent = getppid();
    enum hd_status st;

    hold_reload(SIG_BLOCK);
    agent->loop = uv_default_loop();
    st = agent->options.ephemeral ? tie_to_parent(parent) : HD_OK;
    if (!st)
        st = agent_devices_parse(agent->options.devices, &agent->offer.wish);
    if (!st)
        st = find_programs(agent);
    if (!st)
        st = find_controller(agent);
    if (!st)
        st = agent_identity_open(agent->options.state_dir, agent->options.node_name,
                                 &agent->identity);
    if (!st) {
        worker_path(agent, agent->offer.worker, sizeof agent->offer.worker);
        st = offer_open(agent);
    }
    if (st)
        return st;
    agent->locals.loop = agent->loop;
    agent->locals.tied = agent->options.ephemeral;
    agent->locals.data_address = agent->identity.data_address;
    agent->locals.on_change = local_changed;
    agent->locals.on_put = local_puts;
    agent->locals.user = agent;
    agent->heartbeat_ms = 3000;
    (void)snprintf(agent->locals.state_dir, sizeof agent->locals.state_dir, "%s",
                   agent->identity.state_dir);
    (void)snprintf(agent->locals.node, sizeof agent->locals.node, "%s", agent->identity.node_name);
    open_handles(agent);
    st = locals_open(&agent->locals);
    if (!st)
        offer_attempts_known(agent);
    return st ? st : open_client(agent);
}

enum hd_status agent_doctor(struct agent *agent, int *ret_exit_code)
{
    struct doctor_options options = {.controller = agent->options.controller,
                                     .supervisor = agent->locals.supervisor,
                                     .state_dir = agent->options.state_dir,
                                     .jobs_dir = agent->options.jobs_dir,
                                     .data_address = agent->options.data_address};
    struct doctor *doctor = doctor_new();
    struct hd_text text = {0};
    char worker[PATH_MAX + 16];
    enum hd_status st =
        doctor ? find_self(agent) : hd_err(HD_NO_MEMORY, "no memory to look around");

    if (!st) {
        worker_path(agent, worker, sizeof worker);
        options.worker = worker;
        doctor_look(doctor, &options);
        doctor_print(doctor, agent->options.json, &text);
        *ret_exit_code = doctor->problems ? EXIT_FAILURE : EXIT_SUCCESS;
        if (text.failed)
            st = hd_err(HD_NO_MEMORY, "no memory for what was found");
        else if (fputs(text.data, stdout) < 0 || fflush(stdout) < 0)
            st = hd_err(HD_IO, "cannot write what was found: %s", strerror(errno));
    }
    hd_text_free(&text);
    free(doctor);
    return st;
}

int agent_run(struct agent *agent)
{
    locals_look_after(&agent->locals);
    (void)uv_timer_start(&agent->tick, on_tick, AGENT_TICK_MS, AGENT_TICK_MS);
    stream_open(agent);
    hd_notify_ready();
    (void)uv_run(agent->loop, UV_RUN_DEFAULT);
    agent_forget_desired(agent);
    deletion_free_all(agent);
    offer_close(agent);
    (void)uv_loop_close(agent->loop);
    agent_identity_close(&agent->identity);
    return agent->exit_code;
}
