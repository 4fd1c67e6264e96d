/* agent: heddled from start to exit: initialization and the main loop. */
#include "daemon/agent/agent.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/process.h"
#include "daemon/agent/doctor.h"
#include "daemon/agent/web.h"
#include "rpc/find.h"

enum {
    FILES_NEEDED = 512,
    /* smallest step of the wall clock that counts, ms; a smaller one delays timers by no more */
    CLOCK_STEP_MS = 10 * 1000,
    /* time without a connection after which the clock is checked, ms; longer than the longest pause
     * between two tries to connect */
    CLOCK_AWAY_MS = 15 * 1000,
};

/* ---- notifications to systemd ---- */

/* Sends systemd the line that `systemctl status` shows, if it has changed. */
static void report_status(struct agent *agent)
{
    char text[sizeof agent->status];
    int running = 0;

    for (const struct agent_attempt *l = agent->locals.first; l; l = l->next)
        running += l->state == LOCAL_ALIVE;
    (void)snprintf(text, sizeof text, "%s %.120s as node %s; %d attempt%s running here",
                   agent->stopping   ? "leaving"
                   : agent->welcomed ? "connected to"
                                     : "not connected to",
                   agent->address, agent->identity.node_name, running, running == 1 ? "" : "s");
    if (strcmp(text, agent->status) == 0)
        return;
    memcpy(agent->status, text, sizeof text);
    hd_notify_status(text);
}

/* Tells systemd that a reload is done when the GPU check that it started has ended. */
static void report_reloaded(struct agent *agent)
{
    if (!agent->reload || !hd_health_has_checked(&agent->health, agent->reload))
        return;
    agent->reload = 0;
    hd_notify_ready();
}

/* ---- turns of the loop ---- */

static void on_soon(uv_timer_t *timer)
{
    struct agent *agent = timer->data;

    if (agent->desired && agent->reconcile_dirty && !agent->stopping)
        desired_apply(agent);
    send_changes(agent);
}

/* Returns whether a broken GPU may be the cause of an attempt's end. */
static bool may_break_gpu(const struct hd_link_end *end)
{
    return !end->bad_input &&
           (end->cause == HD_LINK_CAUSE_RANK_EXIT || end->cause == HD_LINK_CAUSE_HANG ||
            end->cause == HD_LINK_CAUSE_LAUNCH_FAILED);
}

static void local_changed(void *user, struct agent_attempt *local)
{
    struct agent *agent = user;

    if (local->state == LOCAL_ENDED && may_break_gpu(&local->end.end))
        local->check = hd_health_check_soon(&agent->health);
    agent->reconcile_dirty = agent->observed_dirty = true;
    agent_soon(agent);
}

static void local_puts(void *user, struct agent_attempt *local, const struct local_put *put)
{
    send_put(user, local, put);
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
    web_close(agent);
    locals_close(&agent->locals);
}

static void leave(struct agent *agent)
{
    (void)uv_timer_stop(&agent->tick);
    (void)uv_timer_stop(&agent->retry);
    agent->stream = agent->logs = NULL;
    hd_rpc_close(agent->rpc, on_closed, agent);
}

/* Notifies systemd's watchdog. Being called shows that the loop runs; heddled depends on no other
 * thread. */
static void feed_watchdog(struct agent *agent)
{
    const int64_t now = hd_clock_now_ms();

    if (!agent->watchdog_ms || now < agent->fed_ms + agent->watchdog_ms / 4)
        return;
    agent->fed_ms = now;
    hd_notify_watchdog();
}

/* Restarts this process in place, as after an upgrade (ranks keep running), if the wall clock was
 * set back and the controller cannot be reached. gRPC before 1.53 has timers on the wall clock:
 * after a step back by days they sleep for days, and it never reconnects. */
static void check_clock(struct agent *agent)
{
    const int64_t now_ms = hd_clock_now_ms(), ahead_ms = hd_clock_wall_ms() - now_ms;

    if (agent->ahead_ms && ahead_ms < agent->ahead_ms - CLOCK_STEP_MS)
        agent->clock_back_until_ms = now_ms + agent->ahead_ms - ahead_ms;
    agent->ahead_ms = ahead_ms;
    if (agent->welcomed || !agent->away_ms)
        agent->away_ms = agent->welcomed ? 0 : now_ms;
    if (now_ms >= agent->clock_back_until_ms || !agent->away_ms ||
        now_ms < agent->away_ms + CLOCK_AWAY_MS || agent_ends_ranks(agent) || agent->stopping)
        return;
    hd_log(HD_LOG_WARN,
           "the clock was set back, and %s has not been reached for %d s since: heddled starts "
           "anew, ranks go on",
           agent->address, CLOCK_AWAY_MS / 1000);
    agent->start_again = true;
    agent_end(agent, EXIT_FAILURE);
}

static bool has_attempt(const void *user, int64_t job)
{
    const struct agent *agent = user;

    for (const struct agent_attempt *l = agent->locals.first; l; l = l->next)
        if (l->job == job)
            return true;
    return false;
}

static void on_tick(uv_timer_t *timer)
{
    struct agent *agent = timer->data;

    check_clock(agent);
    web_tick(agent);
    locals_tick(&agent->locals);
    report_status(agent);
    feed_watchdog(agent);
    agent_leave_tick(agent);
    if (agent->stopping) {
        if (!agent_ends_ranks(agent) || !locals_any_alive(&agent->locals) ||
            hd_clock_now_ms() >= agent->stop_deadline_ms)
            leave(agent);
        return;
    }
    if (agent->try_again_ms && hd_clock_now_ms() >= agent->try_again_ms) {
        agent->try_again_ms = 0;
        agent->reconcile_dirty = true;
    }
    if (hd_health_step(&agent->health)) {
        probing_choose(agent);
        stream_introduce(agent);
    }
    report_reloaded(agent);
    probing_tick(agent);
    agent_joined_tick(agent);
    stream_tick(agent);
    logs_tick(agent);
    deletion_tick(agent);
    if (agent->desired) /* else it is not known yet which attempts run */
        copies_set_alive(agent->copies, has_attempt, agent);
    if (copies_newest_ms(agent->copies) != agent->copied_ms) {
        agent->copied_ms = copies_newest_ms(agent->copies);
        agent->observed_dirty = true;
    }
    agent_soon(agent); /* a spool may have grown without a message */
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct agent *agent = handle->data;

    if (agent->options.leave_within_ms && agent->locals.first && !agent->leave_deadline_ms) {
        hd_log(HD_LOG_INFO, "leaving on %s", strsignal(number));
        agent_leave(agent);
    } else {
        hd_log(HD_LOG_INFO, "stopping on %s%s", strsignal(number),
               agent->options.ephemeral ? "" : "; running jobs go on");
        agent_end(agent, EXIT_SUCCESS);
    }
}

static void on_reload(uv_signal_t *handle, int number)
{
    struct agent *agent = handle->data;

    (void)number;
    if (agent->stopping)
        return;
    hd_notify_reloading();
    agent->on_reload(agent);
    web_use_certificate(agent);
    hd_health_repaired(&agent->health);
    agent->reload = hd_health_check_soon(&agent->health);
}

/* ---- opening ---- */

static enum hd_status find_self(struct agent *agent)
{
    const enum hd_status st = hd_process_find_beside("heddle-supervisor", agent->locals.supervisor);

    if (!st && agent->options.worker && !realpath(agent->options.worker, agent->locals.worker))
        return hd_err(HD_INVALID, "--worker %s: %s", agent->options.worker, strerror(errno));
    return st;
}

static enum hd_status find_programs(struct agent *agent)
{
    enum hd_status st = find_self(agent);

    if (st)
        return st;
    if (access(agent->locals.supervisor, X_OK) < 0)
        return hd_err(HD_NOT_FOUND, "%s: %s; install it in the folder of heddled",
                      agent->locals.supervisor, strerror(errno));
    return HD_OK;
}

/* Sets the path of heddle-worker: --worker, or the one beside heddled. */
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
        st = hd_rpc_read_token(agent->options.token_file, 0, agent->token);
    return st;
}

static enum hd_status make_client(struct agent *agent, struct hd_rpc_client **ret_client)
{
    const struct hd_rpc_client_options options = {
        .token = agent->options.token_file ? agent->token : NULL,
        .tls = agent->options.has_tls ? &agent->options.tls : NULL,
        .tls_server_name = agent->options.tls_server_name,
    };

    return hd_rpc_client_new(agent->rpc, agent->address, &options, ret_client);
}

static enum hd_status open_client(struct agent *agent)
{
    enum hd_status st = hd_rpc_raise_file_limit(FILES_NEEDED);

    if (!st)
        st = hd_rpc_new(agent->loop, &agent->rpc);
    return st ? st : make_client(agent, &agent->client);
}

void agent_use_new_certificate(struct agent *agent)
{
    struct hd_rpc_client *client;

    if (agent_check_joined(&agent->joined))
        web_use_certificate(agent);
    if (!agent->joined.renewed || agent->logs || agent->joined.asking)
        return;
    if (make_client(agent, &client)) {
        hd_log(HD_LOG_ERROR, "cannot use the new certificate: %s", hd_err_message());
        return;
    }
    hd_rpc_client_close(agent->client);
    agent->client = client;
    agent->joined.renewed = false;
}

static void open_handles(struct agent *agent)
{
    (void)uv_timer_init(agent->loop, &agent->tick);
    (void)uv_timer_init(agent->loop, &agent->soon);
    agent->on_soon = on_soon;
    (void)uv_timer_init(agent->loop, &agent->retry);
    (void)uv_signal_init(agent->loop, &agent->sigterm);
    (void)uv_signal_init(agent->loop, &agent->sigint);
    (void)uv_signal_init(agent->loop, &agent->sighup);
    agent->tick.data = agent->soon.data = agent->retry.data = agent;
    agent->sigterm.data = agent->sigint.data = agent->sighup.data = agent;
    (void)uv_signal_start(&agent->sigterm, on_signal, SIGTERM);
    (void)uv_signal_start(&agent->sigint, on_signal, SIGINT);
    (void)uv_signal_start(&agent->sighup, on_reload, SIGHUP);
    (void)signal(SIGPIPE, SIG_IGN);
}

/* Makes the kernel send this process SIGTERM when its parent ends (--ephemeral). */
static enum hd_status tie_to_parent(pid_t parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid() != parent)
        return hd_err(HD_ABORTED, "the parent process has ended");
    return HD_OK;
}

/* Sets the path of the choices folder, which is created when the first choice is stored. */
static enum hd_status name_choices_dir(struct agent *agent)
{
    char here[PATH_MAX];
    struct hd_text path = {0};
    bool fits;

    if (agent->options.choices_dir && !getcwd(here, sizeof here))
        return hd_err(HD_IO, "--choices-dir: cannot find the current folder: %s", strerror(errno));
    if (agent->options.choices_dir)
        hd_file_join(&path, here, agent->options.choices_dir);
    else
        hd_text_add(&path, "%s/choices", agent->identity.state_dir);
    fits = !path.failed && path.len_bytes < sizeof agent->locals.choices_dir;
    if (fits)
        memcpy(agent->locals.choices_dir, path.data, path.len_bytes + 1);
    hd_text_free(&path);
    return fits ? HD_OK : hd_err(HD_INVALID, "--choices-dir: the path is too long");
}

enum hd_status agent_open(struct agent *agent)
{
    const struct hd_processor *cpu = &agent->health.cpu;
    const pid_t parent = getppid();
    char cluster[AGENT_NAME_MAX];
    enum hd_status st;

    /* until open_handles handles it: a reload would check the GPUs, which happens now anyway */
    (void)signal(SIGHUP, SIG_IGN);
    agent->loop = uv_default_loop();
    st = agent->options.ephemeral ? tie_to_parent(parent) : HD_OK;
    if (!st) /* supervisors and ranks inherit the umask */
        st = hd_file_set_umask(agent->options.umask);
    if (!st)
        st = isolate_open(agent); /* first, because it may restrict this process's processors */
    if (!st)
        st = hd_device_selection_parse(agent->options.devices, &agent->health.selection);
    agent->health.selection.memory_bytes = agent->options.device_memory_bytes;
    if (!st)
        st = find_programs(agent);
    if (!st)
        st = agent_joined_open(&agent->joined, &agent->options);
    if (!st)
        st = find_controller(agent);
    if (!st)
        st = agent_identity_open(agent->options.state_dir, agent->options.node_name,
                                 &agent->identity);
    if (!st) {
        worker_path(agent, agent->health.worker, sizeof agent->health.worker);
        st = hd_health_open(&agent->health, agent->identity.state_dir, agent->identity.boot_id);
    }
    if (st)
        return st;
    agent->identity.devices = &agent->health.devices;
    agent->identity.inventory = &agent->health.inventory;
    agent->identity.isolation = &agent->isolation;
    agent->identity.spans = cpu->gloo;
    agent->identity.traits = cpu->traits;
    (void)snprintf(agent->identity.compute, sizeof agent->identity.compute, "%s%s%s", cpu->isa,
                   cpu->library[0] ? " and " : "", cpu->library);
    agent->locals.loop = agent->loop;
    agent->locals.tied = agent->options.ephemeral;
    agent->locals.devices = &agent->health.devices;
    if (agent->options.launcher)
        (void)snprintf(agent->locals.launcher, sizeof agent->locals.launcher, "%s",
                       agent->options.launcher);
    agent->locals.log_limit_bytes = agent->options.log_limit_bytes;
    agent->locals.supervisor_lost_ms = agent->options.supervisor_lost_ms
                                           ? agent->options.supervisor_lost_ms
                                           : AGENT_SUPERVISOR_LOST_MS;
    agent->locals.data_address = agent->identity.data_address;
    agent->locals.cluster = agent->identity.cluster;
    agent->locals.on_change = local_changed;
    agent->locals.on_put = local_puts;
    agent->locals.user = agent;
    agent->heartbeat_ms = 3000;
    (void)snprintf(agent->locals.state_dir, sizeof agent->locals.state_dir, "%s",
                   agent->identity.state_dir);
    st = name_choices_dir(agent);
    if (!st)
        st = copies_open(agent->identity.state_dir, agent->identity.cluster, &agent->copies);
    if (st)
        return st;
    (void)snprintf(agent->locals.node, sizeof agent->locals.node, "%s", agent->identity.node_name);
    probing_open(agent);
    open_handles(agent);
    /* a failure is reported when the controller's welcome is checked */
    (void)agent_identity_read_cluster(&agent->identity, cluster);
    st = locals_open(&agent->locals);
    if (!st)
        st = web_open(agent);
    return st ? st : open_client(agent);
}

/* Adds the doctor's finding about the certificate of a node that has joined; options that are not
 * set get the values that the join stored. */
static void check_joined(struct agent *agent, struct doctor_findings *doctor)
{
    struct agent_joined *joined = &agent->joined;
    enum hd_status st = agent_joined_open(joined, &agent->options);

    if (!st && joined->joined)
        st = agent_joined_check(joined);
    if (st)
        doctor_add(doctor, DOCTOR_PROBLEM, "certificate", "", "%s", hd_err_message());
    else if (joined->joined)
        doctor_add(doctor, DOCTOR_OK, "certificate", "", "%s is the one of %s, and is valid",
                   joined->cert_path, joined->node);
}

enum hd_status agent_doctor(struct agent *agent, int *ret_exit_code)
{
    struct doctor_options options = {.supervisor = agent->locals.supervisor,
                                     .state_dir = agent->options.state_dir,
                                     .jobs_dir = agent->options.jobs_dir,
                                     .data_address = agent->options.data_address};
    struct doctor_findings *doctor = doctor_new();
    struct hd_text text = {0};
    char worker[PATH_MAX + 16];
    enum hd_status st =
        doctor ? find_self(agent) : hd_err(HD_NO_MEMORY, "no memory for the findings");

    if (!st) {
        check_joined(agent, doctor);
        options.controller = agent->options.controller;
        worker_path(agent, worker, sizeof worker);
        options.worker = worker;
        doctor_check(doctor, &options);
        doctor_print(doctor, agent->options.json, &text);
        *ret_exit_code = doctor->problems ? EXIT_FAILURE : EXIT_SUCCESS;
        if (text.failed)
            st = hd_err(HD_NO_MEMORY, "no memory for the findings");
        else
            st = hd_file_print(text.data);
    }
    agent_joined_close(&agent->joined);
    hd_text_free(&text);
    free(doctor);
    return st;
}

int agent_run(struct agent *agent)
{
    locals_tick(&agent->locals);
    (void)uv_timer_start(&agent->tick, on_tick, AGENT_TICK_MS, AGENT_TICK_MS);
    stream_open(agent);
    agent->watchdog_ms = hd_notify_watchdog_ms();
    hd_notify_ready();
    (void)uv_run(agent->loop, UV_RUN_DEFAULT);
    desired_forget(agent);
    deletion_free_all(agent);
    copies_close(agent->copies);
    hd_health_close(&agent->health);
    hd_prober_close(&agent->prober);
    (void)uv_loop_close(agent->loop);
    agent_identity_close(&agent->identity);
    agent_joined_close(&agent->joined);
    return agent->exit_code;
}
