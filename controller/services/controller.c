/* controller: start, loading of the core, timers and stop. */
#include "controller/services/controller.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/notify.h"
#include "controller/services/internal.h"
#include "rpc/standard.h"

enum {
    ROOM_BELOW = 64,       /* bytes kept free in path buffers for names of files below a folder */
    FILES_NEEDED = 256,    /* file descriptors needed besides those of calls */
    STOP_WRITE_MS = 5000,  /* timeout of the last commits when the controller stops, ms */
    SELF_CHECK_MS = 10000, /* period of test connections to the controller's own address, ms */
    SELF_CHECK_WAIT_MS = 10000,
    SELF_CHECK_FAILURES = 3, /* failed test connections in a row after which the controller exits */
};

/* ---- the core from the store ------------------------------------------------------------------*/

struct loading {
    struct controller *c;
    uint64_t last_dir; /* highest job number that has a folder in jobs_dir */
    bool is_new_dir;   /* no controller has used jobs_dir before */
    /* number of checkpoints that jobs_dir should have; counting ends when one is found */
    size_t shared_count;
    bool shared_found;
};

static enum hd_status load_node(void *user, const struct hd_node_record *node)
{
    return hd_core_restore_node(((struct loading *)user)->c->core, node);
}

static enum hd_status load_probe(void *user, const struct hd_probe_record *probe)
{
    return probe_load(((struct loading *)user)->c, probe);
}

static enum hd_status load_queue(void *user, const struct hd_queue_record *queue)
{
    return hd_core_restore_queue(((struct loading *)user)->c->core, queue);
}

static enum hd_status load_request(void *user, const char *request_id, const char *owner,
                                   uint64_t job, uint64_t hash, enum hd_job_state state)
{
    return hd_core_restore_request(((struct loading *)user)->c->core, request_id, owner, job, hash,
                                   state);
}

static enum hd_status load_job(void *user, const struct hd_job_record *job, uint64_t sequence)
{
    struct loading *loading = user;
    struct hd_arena arena;
    struct hd_job spec;
    struct hd_job_needs needs;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = convert_unpack_spec(job->spec, job->spec_bytes, &arena, &spec);
    if (!st) {
        needs = convert_needs(&spec);
        st = hd_core_restore_job(loading->c->core, job, &needs, sequence);
        hd_usages_see_job(loading->c->usages, job);
    } else {
        st = hd_err_prefix(st, "job %" PRIu64, job->job);
    }
    hd_arena_done(&arena);
    if (!st)
        stats_restore_job(&loading->c->stats, job);
    return st;
}

static enum hd_status load_attempt(void *user, const struct hd_attempt_record *attempt)
{
    stats_restore_attempt(&((struct loading *)user)->c->stats, attempt);
    return hd_core_restore_attempt(((struct loading *)user)->c->core, attempt);
}

static enum hd_status load_checkpoint(void *user, const struct hd_checkpoint_record *checkpoint)
{
    stats_restore_checkpoint(&((struct loading *)user)->c->stats, checkpoint);
    return hd_core_restore_checkpoint(((struct loading *)user)->c->core, checkpoint);
}

static enum hd_status load_position(void *user, const struct hd_position_record *position)
{
    return hd_core_restore_position(((struct loading *)user)->c->core, position);
}

static enum hd_status load_step(void *user, const struct hd_step_record *step)
{
    stats_restore_step(&((struct loading *)user)->c->stats, step);
    return hd_core_restore_step(((struct loading *)user)->c->core, step);
}

static enum hd_status load_credential(void *user, const struct hd_credential_record *credential)
{
    struct hd_credentials *all = ((struct loading *)user)->c->credentials;

    if (!credential->ended_ms)
        return hd_credentials_restore(all, credential);
    hd_credentials_keep_ended(all, credential);
    return HD_OK;
}

/* Counts a checkpoint that the database expects in the jobs directory, and checks whether it
 * exists. Checkpoints of an earlier jobs directory do not count. */
static void load_shared_checkpoint(void *user, const char *path)
{
    struct loading *loading = user;
    const size_t n = strlen(loading->c->jobs_dir);

    if (loading->shared_found || strncmp(path, loading->c->jobs_dir, n) != 0 || path[n] != '/')
        return;
    loading->shared_count++;
    loading->shared_found = hd_file_exists(path);
}

static void load_credentials_end(void *user, uint64_t last)
{
    hd_credentials_restored(((struct loading *)user)->c->credentials, last);
}

static enum hd_status load_end(void *user, uint64_t last_job, uint64_t cluster_sequence)
{
    struct loading *loading = user;

    loading->c->lacks_jobs = loading->is_new_dir && last_job && !loading->last_dir;
    if (loading->shared_count && !loading->shared_found)
        loading->c->lacks_jobs = true;
    if (loading->last_dir > last_job)
        last_job = loading->last_dir;
    return hd_core_restored(loading->c->core, last_job, cluster_sequence, controller_now());
}

/* Finds the highest job number with a folder in jobs_dir: new jobs get higher numbers, so that a
 * folder of another cluster is never reused. *ret_is_new: no controller has used jobs_dir before
 * (jobs_dir.c). */
static enum hd_status find_last_dir(const char *jobs_dir, uint64_t *ret_last, bool *ret_is_new)
{
    const struct dirent *entry;
    DIR *dir = opendir(jobs_dir);
    int64_t number;

    *ret_last = 0;
    *ret_is_new = true;
    if (!dir)
        return hd_err(HD_IO, "cannot read %s: %s", jobs_dir, strerror(errno));
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
            hd_text_to_int64(entry->d_name, 1, INT64_MAX / 2, &number) == HD_OK &&
            (uint64_t)number > *ret_last)
            *ret_last = (uint64_t)number;
        if (strcmp(entry->d_name, JOBS_DIR_MARK) == 0)
            *ret_is_new = false;
    }
    (void)closedir(dir);
    return HD_OK;
}

/* Returns the system user of an attempt that begins; HD_RUN_AS_NONE if the policy has no system
 * user for the job's owner: fleet_send.c then reports why the attempt cannot run. */
static const char *run_as(void *user, const char *owner)
{
    struct controller *c = user;

    return hd_policy_user(c->policy, owner, c->run_as) ? HD_RUN_AS_NONE : c->run_as;
}

static enum hd_status load_core(struct controller *c)
{
    struct loading loading = {.c = c};
    const struct hd_store_loader loader = {.node = load_node,
                                           .probe = load_probe,
                                           .queue = load_queue,
                                           .request = load_request,
                                           .job = load_job,
                                           .attempt = load_attempt,
                                           .checkpoint = load_checkpoint,
                                           .position = load_position,
                                           .step = load_step,
                                           .credential = load_credential,
                                           .credentials_end = load_credentials_end,
                                           .shared_checkpoint = load_shared_checkpoint,
                                           .end = load_end,
                                           .user = &loading};
    struct hd_core_config config =
        c->options.core_config ? *c->options.core_config : hd_core_config_default;
    enum hd_status st = find_last_dir(c->jobs_dir, &loading.last_dir, &loading.is_new_dir);

    config.asks_layouts = true;
    config.run_as = run_as;
    config.run_as_user = c;
    config.tree = c->tree;
    c->core = hd_core_new(&config);
    if (!c->core)
        return hd_err(HD_NO_MEMORY, "no memory for the controller's state");
    return st ? st : hd_store_load(c->store, &loader);
}

/* ---- folders ----------------------------------------------------------------------------------*/

static enum hd_status make_absolute(const char *path, char *ret_path, size_t size)
{
    char *cwd = getcwd(NULL, 0);
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    if (!cwd)
        return hd_err(HD_IO, "cannot get the working directory: %s", strerror(errno));
    hd_file_join(&text, cwd, path);
    if (text.failed || text.len_bytes + 64 > size)
        st = hd_err(HD_INVALID, "the path %s is too long", path);
    else
        (void)snprintf(ret_path, size, "%s", text.data);
    hd_text_free(&text);
    free(cwd);
    return st;
}

static enum hd_status make_folder(char *path, size_t size, mode_t mode)
{
    enum hd_status st = hd_file_make_dirs(path, mode);

    return st ? st : hd_file_make_plain(path, size - ROOM_BELOW);
}

static enum hd_status make_folders(struct controller *c)
{
    char in_state[HD_CTL_PATH_BYTES_MAX + 8];
    enum hd_status st = make_absolute(c->options.state_dir, c->state_dir, sizeof c->state_dir);

    if (!st)
        st = make_folder(c->state_dir, sizeof c->state_dir, 0700);
    if (st)
        return st;
    (void)snprintf(in_state, sizeof in_state, "%s/jobs", c->state_dir);
    st = make_absolute(c->options.jobs_dir ? c->options.jobs_dir : in_state, c->jobs_dir,
                       sizeof c->jobs_dir);
    if (!st)
        st = make_folder(c->jobs_dir, sizeof c->jobs_dir, 0755);
    return st;
}

/* Descriptors of all .proto files, for server reflection (proto/CMakeLists.txt). */
extern const unsigned char hd_proto_descriptors[];
extern const size_t hd_proto_descriptors_bytes;

/* ---- the server -------------------------------------------------------------------------------*/

static void report_health(struct controller *c)
{
    if (c->server)
        hd_rpc_server_set_serving(c->server, !c->self_check_failed && !c->unwritable);
}

static void on_self_check(void *user, int in_a_row, const char *message)
{
    struct controller *c = user;

    c->self_check_failed = in_a_row > 0;
    report_health(c);
    if (!message) {
        hd_log(HD_LOG_INFO, "the controller's own door opens again");
        return;
    }
    hd_log(HD_LOG_ERROR, "the controller's own door does not open: %s", message);
    if (in_a_row >= SELF_CHECK_FAILURES)
        controller_fail(c, hd_err(HD_UNAVAILABLE, "self-check failed repeatedly: %s", message));
}

/* Loads the certificate authority; its certificate is used if the options name none. */
static enum hd_status open_authority(struct controller *c)
{
    enum hd_status st;

    if (!hd_authority_exists(c->state_dir))
        return HD_OK;
    st = hd_authority_open(c->state_dir, hd_clock_wall_ms(), &c->authority);
    if (st || c->options.tls)
        return st;
    c->tls = (struct hd_rpc_tls){.cert_path = c->authority->server_path,
                                 .key_path = c->authority->server_path,
                                 .ca_path = c->authority->ca_path,
                                 .cert_optional = true};
    c->options.tls = &c->tls;
    c->own_tls = true;
    return HD_OK;
}

static bool takes_nodes(const struct hd_rpc_tokens *tokens)
{
    for (size_t i = 0; tokens && i < tokens->count; i++)
        if (tokens->items[i].party == HD_RPC_PARTY_NODE)
            return true;
    return false;
}

static enum hd_status listen_on_all(struct controller *c)
{
    int port = 0;
    enum hd_status st = hd_rpc_server_listen(c->server, c->options.listen, &c->port);

    for (size_t i = 0; !st && i < CONTROLLER_LISTENS_MAX && c->options.listens[i]; i++) {
        st = hd_rpc_server_listen(c->server, c->options.listens[i], &port);
        if (!st && !hd_rpc_address_is_unix(c->options.listens[i]))
            c->port = port;
    }
    return st;
}

static enum hd_status start_server(struct controller *c, const struct hd_rpc_tokens *tokens)
{
    const struct hd_rpc_server_options options = {
        .tokens = tokens,
        .tls = c->options.tls,
        .identify = guard_identify,
        .identify_has_tokens = c->authority || hd_credentials_count(c->credentials),
        .authorize = guard_authorize,
        .on_answer = guard_answered,
        .authorize_user = c,
        .unix_mode = c->options.socket_mode,
        .unix_group = c->options.socket_group};
    enum hd_status st = hd_rpc_new(c->loop, &c->rpc);

    if (!st)
        st = hd_rpc_server_new(c->rpc, &options, &c->server);
    if (!st)
        st = control_register(c);
    if (!st)
        st = fleet_register(c);
    if (!st)
        st = credential_register(c);
    if (!st)
        st =
            hd_rpc_server_add_standard(c->server, hd_proto_descriptors, hd_proto_descriptors_bytes);
    if (!st)
        st = listen_on_all(c);
    if (!st)
        st = hd_rpc_server_start(c->server);
    if (!st)
        st = hd_rpc_server_self_check(
            c->server, c->options.self_check_ms ? c->options.self_check_ms : SELF_CHECK_MS,
            SELF_CHECK_WAIT_MS, on_self_check, c);
    return st;
}

/* ---- time -------------------------------------------------------------------------------------*/

/* Sends STATUS= to systemd when the text has changed. */
static void report_status(struct controller *c)
{
    const char *trouble = hd_store_trouble(c->store);
    const size_t nodes = hd_core_node_count(c->core), jobs = hd_core_live_jobs(c->core);
    char text[sizeof c->status];
    struct hd_node_view view;
    size_t here = 0;

    for (size_t i = 0; i < nodes; i++) {
        hd_core_node_at(c->core, i, &view);
        here += view.record->state != HD_NODE_STATE_UNREACHABLE &&
                view.record->state != HD_NODE_STATE_LOST;
    }
    if (trouble)
        (void)snprintf(text, sizeof text, "%s", trouble);
    else
        (void)snprintf(text, sizeof text, "%zu job%s queued or running, %zu of %zu nodes connected",
                       jobs, jobs == 1 ? "" : "s", here, nodes);
    if (strcmp(text, c->status) == 0)
        return;
    memcpy(c->status, text, sizeof text);
    hd_notify_status(text);
}

/* Records how late the timer's tick is: for that time the event loop was busy with other work. */
static void watch_delay(struct controller *c)
{
    const int64_t now_ms = hd_clock_now_ms();

    if (c->tick_due_ms)
        hd_prom_observe(&c->stats.delays,
                        now_ms > c->tick_due_ms ? 1e-3 * (double)(now_ms - c->tick_due_ms) : 0);
    c->tick_due_ms = now_ms + TICK_MS;
}

/* Sends systemd's keep-alive while the loop runs (this is one of its timers), the self-check can
 * connect, and the store's thread responds. A disk that takes no writes does not count as a
 * failure: a restart would not help. */
static void feed_watchdog(struct controller *c)
{
    const int64_t now = hd_clock_now_ms();

    if (!c->watchdog_ms || now < c->fed_ms + c->watchdog_ms / 4)
        return;
    c->fed_ms = now;
    if (!c->self_check_failed && hd_store_silent_ms(c->store) < c->watchdog_ms / 2)
        hd_notify_watchdog();
}

static void on_tick(uv_timer_t *timer)
{
    const struct hd_core_event event = {.kind = HD_CORE_TICK};
    struct controller *c = timer->data;

    if (c->stopping)
        return;
    watch_delay(c);
    hd_credentials_settle(c->credentials,
                          hd_clock_settle(&c->settled, hd_clock_wall_ms(), hd_clock_now_ms()));
    transaction_begin(c);
    (void)transaction_step(c, &event);
    transaction_end(c);
    jobs_dir_tick(c);
    rendezvous_tick(c);
    credential_tick(c);
    retention_tick(c);
    guard_tick(c, false);
    watch_tick(c);
    read_log_tick(c);
    fleet_tick(c);
    web_tick(c);
    report_status(c);
    feed_watchdog(c);
}

static void on_trouble(void *user, const char *message)
{
    struct controller *c = user;

    c->unwritable = message != NULL;
    report_health(c);
    if (message) {
        hd_log(HD_LOG_ERROR, "%s (running jobs go on)", message);
        if (hd_store_disk_state(c->store) == HD_STORE_STUCK)
            control_fail_waiting(c, message);
    } else {
        hd_log(HD_LOG_INFO, "the state can be written again");
    }
}

static void on_store_fatal(void *user, const struct hd_error *error)
{
    controller_fail(user, hd_err_restore(error));
}

/* ---- start and stop ---------------------------------------------------------------------------*/

static void free_controller(struct controller *c)
{
    void (*on_stopped)(void *user) = c->on_stopped;
    void *user = c->stopped_user;

    rendezvous_free_all(c);
    search_forget_all(c);
    planner_forget_all(c);
    control_forget_validations(c);
    plan_job_forget_all(c);
    read_log_forget_all(c);
    hd_core_free(c->core);
    probe_free_all(c);
    guard_close(c);
    jobs_dir_close(c);
    hd_authority_free(c->authority);
    topology_free_all(c); /* after hd_core_free: the core used this switch tree */
    hd_core_out_done(&c->out);
    stats_done(&c->stats);
    free(c);
    if (on_stopped)
        on_stopped(user);
}

static void on_store_closed(void *user)
{
    free_controller(user);
}

/* Closes the store. The timer was the last libuv handle that the controller closes itself. */
static void on_tick_closed(uv_handle_t *handle)
{
    struct controller *c = handle->data;

    if (c->store)
        hd_store_close(c->store, STOP_WRITE_MS, on_store_closed, c);
    else
        free_controller(c);
}

static void on_web_closed(void *user)
{
    struct controller *c = user;

    uv_close((uv_handle_t *)&c->tick, on_tick_closed);
}

static void on_rpc_closed(void *user)
{
    web_close(user, on_web_closed, user);
}

static void on_server_closed(void *user)
{
    struct controller *c = user;

    c->server = NULL;
    hd_rpc_close(c->rpc, on_rpc_closed, c);
}

void controller_stop(struct controller *c, void (*on_stopped)(void *user), void *user)
{
    if (c->store && c->refusals && !c->stopping)
        guard_tick(c, true);
    c->stopping = true;
    c->on_stopped = on_stopped;
    c->stopped_user = user;
    (void)uv_timer_stop(&c->tick);
    if (c->server)
        hd_rpc_server_close(c->server, 0, on_server_closed, c);
    else if (c->rpc)
        hd_rpc_close(c->rpc, on_rpc_closed, c);
    else
        on_rpc_closed(c);
}

/* ---- what transactions start ------------------------------------------------------------------*/

static void begin_searches(struct controller *c, const struct hd_core_out *out)
{
    for (size_t i = 0; i < out->search_count; i++)
        search_begin(c, &out->searches[i]);
}

static void begin_planning(struct controller *c, const struct hd_core_out *out)
{
    if (out->asked_count)
        planner_ask(c, out);
}

static void send_desired_sets(struct controller *c, const struct hd_core_out *out)
{
    for (size_t i = 0; i < out->node_count; i++)
        fleet_send_desired(c, out->nodes[i]);
}

static void count_batch(struct controller *c, struct transaction *transaction)
{
    stats_take(&c->stats, transaction->batch);
}

static const struct transaction_sink sinks[] = {
    {.stepped = begin_searches}, {.stepped = begin_planning}, {.stepped = send_desired_sets},
    {.ending = fence_count},     {.ending = count_batch},     {.committed = watch_announce},
    {.committed = web_announce},
};

enum hd_status controller_new(uv_loop_t *loop, const struct controller_options *options,
                              struct controller **ret_controller)
{
    struct controller *c = calloc(1, sizeof *c);
    struct hd_error error;
    enum hd_status st;

    if (!c)
        return hd_err(HD_NO_MEMORY, "no memory for the controller");
    c->loop = loop;
    c->sinks = sinks;
    c->sink_count = sizeof sinks / sizeof sinks[0];
    c->options = *options;
    stats_init(&c->stats);
    c->options.tokens = NULL; /* the server has a copy */
    c->takes_nodes = takes_nodes(options->tokens);
    c->watchdog_ms = hd_notify_watchdog_ms();
    (void)uv_timer_init(loop, &c->tick);
    c->tick.data = c;
    st = hd_rpc_raise_file_limit(FILES_NEEDED);
    if (!st)
        st = make_folders(c);
    if (!st) {
        const struct hd_store_options store = {.dir = c->state_dir,
                                               .vfs = options->vfs,
                                               .reserve_bytes = options->reserve_bytes,
                                               .take_over = options->end_jobs != NULL,
                                               .on_trouble = on_trouble,
                                               .on_fatal = on_store_fatal,
                                               .user = c};

        st = hd_store_open(loop, &store, &c->store);
    }
    if (!st)
        fence_open(c);
    if (!st)
        hd_clock_settled_begin(&c->settled, hd_store_own_epoch(c->store)->settled_ms,
                               hd_clock_wall_ms(), hd_clock_now_ms());
    if (!st)
        st = guard_open(c);
    if (!st)
        st = open_authority(c);
    if (!st)
        st = topology_read_file(c);
    if (!st)
        st = load_core(c);
    if (!st) /* jobs_dir_acquire needs what load_core found out about jobs_dir */
        st = jobs_dir_acquire(c);
    if (!st)
        st = start_server(c, options->tokens);
    if (!st)
        st = web_open(c);
    if (st) {
        hd_err_save(st, &error);
        controller_stop(c, NULL, NULL); /* the caller runs the loop until it is empty */
        return hd_err_restore(&error);
    }
    jobs_dir_report(c);
    if (options->end_jobs) {
        const struct hd_core_event event = {.kind = HD_CORE_END_ALL,
                                            .end_all = {.reason = options->end_jobs}};

        transaction_begin(c);
        (void)transaction_step(c, &event);
        transaction_end(c);
    }
    (void)uv_timer_start(&c->tick, on_tick, TICK_MS, TICK_MS);
    *ret_controller = c;
    return HD_OK;
}

enum hd_status controller_reload(struct controller *c, const struct controller_options *options)
{
    struct hd_policy *policy = options->policy_file ? NULL : hd_policy_new();
    enum hd_status st = HD_OK;

    if (options->policy_file)
        st = hd_policy_read(options->policy_file, options->state_dir, &policy);
    if (!st && !policy)
        st = hd_err(HD_NO_MEMORY, "no memory for a policy");
    if (!st)
        st = web_check_policy(c, options->policy_file != NULL);
    if (!st && options->tls && c->options.tls && !c->own_tls)
        st = hd_rpc_server_set_tls(c->server, options->tls);
    if (!st && options->tls && c->options.tls && !c->own_tls)
        st = web_set_tls(c, options->tls);
    if (!st)
        st = hd_rpc_server_set_tokens(c->server, options->tokens);
    if (st) {
        hd_policy_free(policy);
        return st;
    }
    hd_policy_free(c->policy);
    c->policy = policy;
    c->takes_nodes = takes_nodes(options->tokens);
    return HD_OK;
}

int controller_port(const struct controller *c)
{
    return c->port;
}

const char *controller_jobs_dir(const struct controller *c)
{
    return c->jobs_dir;
}
