/* local: a running attempt: starts its supervisor, exchanges state, stop and kill with it, and
 * reads or derives its end. */
#include "daemon/agent/local.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "daemon/agent/folders.h"
#include "daemon/agent/job_user.h"
#include "daemon/agent/owner.h"
#include "daemon/devices/gpu_file.h"
#include "daemon/launcher/request.h"
#include "link/hello.h"

extern char **environ;

enum {
    LAUNCHER_MS = 15000, /* timeout of a request to heddle-launcher, ms */
    STOP_GRACE_MS = 0,   /* no limit: the controller decides when a stop has taken too long */
    /* time for a supervisor that an earlier heddled has just started to open its socket, ms */
    ADOPT_GRACE_MS = 3000,
    SEND_MS = 1000,
    /* free disk space needed for a supervisor's files and the first lines of logs, bytes */
    LAUNCH_BYTES = 1 << 20,
    /* pause between two tries to derive an end while the disk is not writable, ms */
    CONCLUDE_MS = 2000,
    REPORT_AGAIN_MS = 60 * 1000,
};

/* ---- trouble: why an attempt waits ---- */

/* Sets the attempt's `trouble`. A text that differs from the last one only in numbers is not
 * reported at each try. */
static void set_trouble(struct agent_attempt *l, bool waits, const char *text)
{
    const int64_t now_ms = hd_clock_now_ms();
    const bool same_kind = waits && l->waits && l->trouble[0] && *text;

    if (strcmp(text, l->trouble) == 0 || (same_kind && now_ms - l->trouble_ms < REPORT_AGAIN_MS))
        return;
    l->waits = waits;
    l->trouble_ms = now_ms;
    (void)snprintf(l->trouble, sizeof l->trouble, "%s", text);
    if (*text)
        hd_log(HD_LOG_WARN, "job %" PRId64 " attempt %" PRId64 ": %s", l->job, l->attempt, text);
    l->all->on_change(l->all->user, l);
}

static void wait_for_storage(struct agent_attempt *l, const char *what)
{
    char text[HD_LINK_TEXT_MAX];

    (void)snprintf(text, sizeof text, "%s: %.900s", what, hd_err_message());
    set_trouble(l, true, text);
}

/* ---- the connection to a supervisor ---- */

static void free_handle(uv_handle_t *handle)
{
    free(handle);
}

static void disconnect(struct agent_attempt *l)
{
    if (l->poll) {
        (void)uv_poll_stop(l->poll);
        l->poll->data = NULL;
        uv_close((uv_handle_t *)l->poll, free_handle);
    }
    l->poll = NULL;
    if (l->fd >= 0)
        (void)close(l->fd);
    l->fd = -1;
    l->greeted = l->commands_sent = false;
}

static void send_command(struct agent_attempt *l, enum hd_link_message type, int64_t number)
{
    uint8_t bytes[64];
    struct hd_pack pack;

    hd_pack_begin(&pack, bytes, sizeof bytes);
    if (type == HD_LINK_MSG_STOP)
        hd_pack_int(&pack, number);
    if (hd_frame_send(l->fd, bytes, hd_pack_end(&pack, (uint16_t)type), SEND_MS))
        disconnect(l); /* locals_tick reconnects and sends the command again */
}

/* Sends the supervisor a PING; drops it if the socket is full: a stopped supervisor reads nothing.
 */
static void send_ping(struct agent_attempt *l)
{
    uint8_t bytes[64];
    struct hd_pack pack;
    enum hd_status st;

    hd_pack_begin(&pack, bytes, sizeof bytes);
    st = hd_frame_send(l->fd, bytes, hd_pack_end(&pack, HD_LINK_MSG_PING), 0);
    if (st && st != HD_UNAVAILABLE)
        disconnect(l);
}

/* Sends the supervisor the commands that came while none was connected. */
static void send_commands(struct agent_attempt *l)
{
    l->commands_sent = true;
    if (l->kill_wanted)
        send_command(l, HD_LINK_MSG_KILL, 0);
    else if (l->stop_wanted)
        send_command(l, HD_LINK_MSG_STOP, STOP_GRACE_MS);
    else if (l->save_wanted)
        send_command(l, HD_LINK_MSG_CHECKPOINT, 0);
    l->save_wanted &= l->fd < 0; /* keep the request if the connection broke before it was sent */
}

static void take_put(struct agent_attempt *l, const struct hd_frame *frame)
{
    struct hd_unpack unpack;
    struct local_put *put = NULL;
    const uint8_t *value;
    int64_t rank, round;
    size_t count;

    hd_unpack_begin(&unpack, frame);
    rank = hd_unpack_int(&unpack);
    round = hd_unpack_int(&unpack);
    value = hd_unpack_bytes(&unpack, HD_LINK_VALUE_MAX, &count);
    if (hd_unpack_end(&unpack) || rank < 0 || round < 0 || round > UINT32_MAX)
        return;
    for (int i = 0; i < l->put_count && !put; i++)
        if (l->puts[i].rank == rank)
            put = &l->puts[i];
    if (!put && l->put_count < HD_ATTEMPT_RANKS_MAX)
        put = &l->puts[l->put_count++];
    if (!put)
        return;
    put->rank = rank;
    put->round = round;
    put->value_bytes = count;
    if (count)
        memcpy(put->value, value, count);
    l->all->on_put(l->all->user, l, put);
}

static void take_status(struct agent_attempt *l, const struct hd_frame *frame)
{
    struct hd_unpack unpack;
    int64_t alloc;

    hd_unpack_begin(&unpack, frame);
    alloc = hd_unpack_int(&unpack);
    if (hd_unpack_end(&unpack) || alloc < HD_ALLOC_STARTING || alloc > HD_ALLOC_ENDED)
        return;
    l->alloc = (enum hd_alloc_state)alloc;
    l->all->on_change(l->all->user, l);
}

static void take_problem(struct agent_attempt *l, const struct hd_frame *frame)
{
    char text[HD_LINK_TEXT_MAX];
    struct hd_unpack unpack;

    hd_unpack_begin(&unpack, frame);
    hd_unpack_text(&unpack, text, sizeof text);
    if (hd_unpack_end(&unpack) == HD_OK)
        set_trouble(l, false, text);
}

static enum hd_status take_message(struct agent_attempt *l, const struct hd_frame *frame)
{
    struct hd_hello hello;
    enum hd_status st;

    if (!l->greeted) {
        st = hd_hello_decode(frame, &hello);
        if (!st)
            st = hd_hello_check(&hello, "heddle-supervisor");
        l->greeted = !st;
        l->answers_pings = !st && hello.protocol_max >= HD_LINK_PROTOCOL_PING;
        if (!st) {
            watchdog_received(l, hd_clock_now_ms());
            send_commands(l);
        }
        return st;
    }
    watchdog_received(l, hd_clock_now_ms());
    if (frame->type == HD_LINK_MSG_STATUS)
        take_status(l, frame);
    else if (frame->type == HD_LINK_MSG_PUT)
        take_put(l, frame);
    else if (frame->type == HD_LINK_MSG_PROBLEM)
        take_problem(l, frame);
    return HD_OK;
}

static void supervisor_speaks(uv_poll_t *poll, int status, int events)
{
    struct agent_attempt *l = poll->data;
    struct hd_frame frame;
    enum hd_status st = HD_OK;

    (void)status, (void)events;
    while (l && l->fd >= 0 && !st) {
        st = hd_frame_receive(l->fd, l->all->received, 0, &frame);
        if (!st)
            st = take_message(l, &frame);
    }
    if (!l || l->fd < 0 || st == HD_UNAVAILABLE)
        return;
    if (st != HD_ABORTED)
        hd_log(HD_LOG_WARN, "job %" PRId64 " attempt %" PRId64 ": %s", l->job, l->attempt,
               hd_err_message());
    disconnect(l);
    locals_tick(l->all);
}

static enum hd_status connect_to(struct agent_attempt *l)
{
    enum hd_status st = hd_frame_connect(l->run_dir, HD_ATTEMPT_SOCKET, &l->fd);

    if (st)
        return st;
    l->poll = calloc(1, sizeof *l->poll);
    if (!l->poll || uv_poll_init(l->all->loop, l->poll, l->fd) < 0) {
        free(l->poll);
        l->poll = NULL;
        st = hd_err(HD_NO_MEMORY, "cannot watch a supervisor's socket");
    } else {
        l->poll->data = l;
        (void)uv_poll_start(l->poll, UV_READABLE, supervisor_speaks);
        st = hd_hello_send(l->fd, -1, SEND_MS);
    }
    if (st)
        disconnect(l);
    return st;
}

/* ---- ends ---- */

static void became_ended(struct agent_attempt *l, const struct hd_link_report *end)
{
    disconnect(l);
    l->problem[0] = l->trouble[0] = '\0';
    l->waits = false;
    l->state = LOCAL_ENDED;
    l->alloc = HD_ALLOC_ENDED;
    l->end = *end;
    hd_log(HD_LOG_INFO, "job %" PRId64 " attempt %" PRId64 " ended here: %s %s", l->job, l->attempt,
           hd_link_cause_name((enum hd_link_cause)end->end.cause), end->end.message);
    l->all->on_change(l->all->user, l);
}

/* Creates the attempt's folders. may_make_base: a missing jobs directory is created, too
 * (folders_make). */
static enum hd_status make_folders(struct agent_attempt *l, bool may_make_base)
{
    char job_dir[PATH_MAX];
    enum hd_status st;

    local_job_dir(l, job_dir);
    if (l->all->jobs_dir_away)
        return hd_err(HD_STORAGE, "the jobs directory of %s is not the cluster's any more",
                      l->attempt_dir);
    /* The owner is checked before folders_make, which would create folders in another cluster's
     * job. */
    st = owner_check(job_dir, l->all->cluster, l->job);
    if (!st)
        st = folders_make(l->attempt_dir, l->run_dir, may_make_base);
    if (!st)
        st = owner_acquire(job_dir, l->all->cluster, l->job);
    l->refused_run_dir = st == HD_CONFLICT;
    return st;
}

/* Creates the run directory of an attempt that has not started, or whose folder is missing. */
static enum hd_status make_run_dir(struct agent_attempt *l)
{
    return make_folders(l, false);
}

static void end_here(struct agent_attempt *local, enum hd_link_cause cause, bool bad_input,
                     const char *message)
{
    struct hd_link_report end = {.kind = HD_LINK_END, .rank = -1};

    end.job = local->job;
    end.attempt = local->attempt;
    end.wall_ms = hd_clock_wall_ms();
    end.end.cause = cause;
    end.end.first_rank = -1;
    end.end.bad_input = bad_input;
    (void)snprintf(end.end.message, sizeof end.end.message, "%s", message);
    /* Without the file `end` a restarted heddled derives the end again. */
    if (!local->refused_run_dir &&
        (make_run_dir(local) || hd_attempt_write_end(local->run_dir, &end)))
        hd_log(HD_LOG_WARN, "%s", hd_err_message());
    became_ended(local, &end);
}

void local_fail_launch(struct agent_attempt *local, bool bad_input, const char *message)
{
    end_here(local, HD_LINK_CAUSE_LAUNCH_FAILED, bad_input, message);
}

/* Ends an attempt whose folder is missing: the supervisor cannot record an end, and ranks cannot
 * write a checkpoint. */
static void end_without_folder(struct agent_attempt *l)
{
    char job_dir[PATH_MAX], message[HD_LINK_TEXT_MAX];

    local_job_dir(l, job_dir);
    (void)snprintf(message, sizeof message,
                   "the folder %.700s was removed while the attempt ran, or its file system is not "
                   "mounted: no checkpoint could be written since%s",
                   hd_file_exists(job_dir) ? l->attempt_dir : job_dir,
                   hd_file_exists(job_dir) ? "" : ", and those of the job are gone with it");
    end_here(l, HD_LINK_CAUSE_STORAGE, false, message);
}

/* Derives the end of an attempt whose supervisor died without writing `end`. */
static void conclude(struct agent_attempt *l)
{
    struct hd_link_report end;
    enum hd_status st;

    if (hd_clock_now_ms() < l->conclude_ms && !l->stop_wanted && !l->kill_wanted)
        return;
    st = hd_attempt_conclude(l->run_dir, l->job, l->attempt, l->run_as != NULL, &end);
    if (st == HD_OK) {
        became_ended(l, &end);
    } else if (st == HD_STORAGE && !l->stop_wanted && !l->kill_wanted) {
        l->conclude_ms = hd_clock_now_ms() + CONCLUDE_MS;
        wait_for_storage(l, "waits to record how the attempt ended");
    } else if (st == HD_STORAGE) {
        end_here(l, HD_LINK_CAUSE_STORAGE, false, hd_err_message());
    } else if (!hd_file_exists(l->run_dir)) { /* the folder was created before the supervisor
                                               * started */
        end_without_folder(l);
    } else if (st != HD_TIMEOUT && st != HD_CONFLICT) {
        local_fail_launch(l, false, hd_err_message());
    }
}

/* Finds out whether a supervisor that refuses connections is still starting, or dead. */
static void examine(struct agent_attempt *l)
{
    struct hd_attempt_process process;

    if (l->child)
        return; /* supervisor_exited handles its end */
    if (l->run_as) {
        if (hd_clock_now_ms() - l->alive_ms >= ADOPT_GRACE_MS &&
            job_user_is_gone(l, hd_clock_now_ms()))
            conclude(l);
        return;
    }
    if (hd_attempt_process_read(l->run_dir, &process) == HD_OK) {
        if (hd_attempt_process_alive(&process))
            return;
    } else if (hd_clock_now_ms() - l->alive_ms < ADOPT_GRACE_MS) {
        return;
    }
    conclude(l);
}

static void tick(struct agent_attempt *l)
{
    const int64_t now_ms = hd_clock_now_ms();
    struct hd_link_report end;

    if (l->state != LOCAL_ALIVE)
        return;
    watch_supervisor(l, now_ms);
    if (l->fd >= 0) {
        if (l->greeted && !l->commands_sent)
            send_commands(l);
        if (l->greeted && watch_wants_ping(l, now_ms))
            send_ping(l);
        return;
    }
    if (hd_attempt_read_end(l->run_dir, &end) == HD_OK) {
        if (local_check_owner(l)) {
            l->refused_run_dir = true;
            local_fail_launch(l, true, hd_err_message());
            return;
        }
        end.job = l->job; /* another user may have written these fields, so they are overwritten */
        end.attempt = l->attempt;
        if (job_user_may_end(l, now_ms))
            became_ended(l, &end);
        return;
    }
    if (connect_to(l))
        examine(l);
}

void locals_tick(struct locals *locals)
{
    for (struct agent_attempt *l = locals->first, *next; l; l = next) {
        next = l->next;
        tick(l);
    }
}

bool locals_any_alive(const struct locals *locals)
{
    for (const struct agent_attempt *l = locals->first; l; l = l->next)
        if (l->state == LOCAL_ALIVE)
            return true;
    return false;
}

/* ---- launching ---- */

static void supervisor_exited(uv_process_t *child, int64_t status, int signal)
{
    struct agent_attempt *l = child->data;

    uv_close((uv_handle_t *)child, free_handle);
    if (!l)
        return;
    l->child = NULL;
    if (status || signal)
        hd_log(HD_LOG_WARN,
               "job %" PRId64 " attempt %" PRId64 ": heddle-supervisor ended with status %" PRId64
               ", signal %d",
               l->job, l->attempt, status, signal);
    l->alive_ms = 0; /* no supervisor is starting */
    disconnect(l);
    tick(l);
}

struct supervisor_launch {
    char job_path[PATH_MAX + 16], world[24], parent[24], ranks[HD_ATTEMPT_RANKS_MAX * 12];
    char gpus[HD_ATTEMPT_RANKS_MAX * 64], log_limit[24], memory[24];
    char daemon_uid[24], choices[PATH_MAX];
    char *argv[48];
};

/* Returns the memory limit of an attempt's ranks on this node until their plan is known, bytes:
 * their devices' share of the machine's memory, plus the slack; 0: unknown. */
static int64_t first_limit(const struct locals *all, int ranks)
{
    const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const int count = all->devices ? all->devices->count : 0;
    int64_t slack = 0;

    if (!count || pages <= 0 || page <= 0 ||
        hd_text_to_int64(all->memory_slack, 0, INT64_MAX, &slack))
        return 0;
    return ranks * (pages * page / count + slack);
}

/* Appends to the supervisor's command line the arguments for isolation (docs/isolation.md). */
static int add_isolation(const struct locals *all, int ranks, struct supervisor_launch *launch,
                         int n)
{
    const int64_t bytes = first_limit(all, ranks);

    (void)snprintf(launch->memory, sizeof launch->memory, "%" PRId64, bytes);
    if (all->isolation) {
        launch->argv[n++] = (char *)"--isolation";
        launch->argv[n++] = (char *)all->isolation;
    }
    if (all->data_roots) {
        launch->argv[n++] = (char *)"--data-roots";
        launch->argv[n++] = (char *)all->data_roots;
    }
    if (all->group) {
        launch->argv[n++] = (char *)"--group";
        launch->argv[n++] = (char *)all->group;
    }
    if (all->job_cpus) {
        launch->argv[n++] = (char *)"--cpus";
        launch->argv[n++] = (char *)all->job_cpus;
    }
    if (all->memory_slack[0]) {
        launch->argv[n++] = (char *)"--memory-slack";
        launch->argv[n++] = (char *)all->memory_slack;
    }
    if (bytes) {
        launch->argv[n++] = (char *)"--memory";
        launch->argv[n++] = launch->memory;
    }
    return n;
}

static void fill_launch(const struct agent_attempt *l, const struct local_ranks *ranks,
                        struct supervisor_launch *launch)
{
    const struct locals *all = l->all;
    size_t at = 0, gpus_at = 0;
    int n = 0;

    for (int i = 0; i < ranks->count; i++) {
        at += (size_t)snprintf(launch->ranks + at, sizeof launch->ranks - at, "%s%" PRId64,
                               i ? "," : "", ranks->rank[i]);
        if (ranks->gpu[i])
            gpus_at += (size_t)snprintf(launch->gpus + gpus_at, sizeof launch->gpus - gpus_at,
                                        "%s%.60s", i ? "," : "", ranks->gpu[i]);
    }
    (void)snprintf(launch->job_path, sizeof launch->job_path, "%s/" HD_ATTEMPT_JOB_FILE,
                   l->run_dir);
    (void)snprintf(launch->world, sizeof launch->world, "%" PRId64, ranks->world);
    (void)snprintf(launch->log_limit, sizeof launch->log_limit, "%" PRId64, all->log_limit_bytes);
    (void)snprintf(launch->parent, sizeof launch->parent, "%d", (int)getpid());
    (void)snprintf(launch->daemon_uid, sizeof launch->daemon_uid, "%u", (unsigned)geteuid());
    /* beside the attempt: users must not share a folder that influences other users' GPUs */
    (void)snprintf(launch->choices, sizeof launch->choices, "%.*s/choices",
                   (int)(strrchr(l->attempt_dir, '/') - l->attempt_dir), l->attempt_dir);
    launch->argv[n++] = (char *)all->supervisor;
    launch->argv[n++] = (char *)"--job";
    launch->argv[n++] = launch->job_path;
    launch->argv[n++] = (char *)"--run-dir";
    launch->argv[n++] = l->run_dir;
    launch->argv[n++] = (char *)"--ranks";
    launch->argv[n++] = launch->ranks;
    launch->argv[n++] = (char *)"--world";
    launch->argv[n++] = launch->world;
    launch->argv[n++] = (char *)"--node";
    launch->argv[n++] = (char *)all->node;
    launch->argv[n++] = (char *)"--log-limit";
    launch->argv[n++] = launch->log_limit;
    if (gpus_at) {
        launch->argv[n++] = (char *)"--gpus";
        launch->argv[n++] = launch->gpus;
        launch->argv[n++] = (char *)"--choices-dir";
        launch->argv[n++] = l->run_as ? launch->choices : (char *)all->choices_dir;
    }
    if (l->run_as) {
        launch->argv[n++] = (char *)"--daemon-uid";
        launch->argv[n++] = launch->daemon_uid;
    }
    if (ranks->world > ranks->count) {
        launch->argv[n++] = (char *)"--data-address";
        launch->argv[n++] = (char *)all->data_address;
    }
    n = add_isolation(all, ranks->count, launch, n);
    if (all->worker[0]) {
        launch->argv[n++] = (char *)"--worker";
        launch->argv[n++] = (char *)all->worker;
    }
    if (all->tied) {
        launch->argv[n++] = (char *)"--parent";
        launch->argv[n++] = launch->parent;
    }
    launch->argv[n] = NULL;
}

/* Starts the supervisor through heddle-launcher: as a child of systemd, in its own unit. Later
 * heddled finds it by its record, like a supervisor that an earlier heddled started. The supervisor
 * opens its log itself. */
static enum hd_status ask_launcher(struct agent_attempt *l, const struct local_ranks *ranks,
                                   struct supervisor_launch *launch)
{
    char files[HD_ATTEMPT_RANKS_MAX][HD_GPU_FILE_MAX];
    const char *gpus[HD_ATTEMPT_RANKS_MAX + 1] = {NULL};
    const mode_t mask = umask(0);
    char path[PATH_MAX + 16];
    int n = 0;

    (void)umask(mask);
    while (launch->argv[n])
        n++;
    (void)snprintf(path, sizeof path, "%s/" HD_ATTEMPT_LOG_FILE, l->run_dir);
    launch->argv[n++] = (char *)"--log";
    launch->argv[n++] = path;
    launch->argv[n] = NULL;
    for (int i = 0; i < ranks->count && ranks->gpu[i]; i++) {
        const bool known = hd_gpu_device_file("/proc", ranks->gpu[i], files[i]) == HD_OK;

        gpus[i] = known ? files[i] : "all";
    }
    return request_start(l->all->launcher, l->job, l->attempt, l->run_as, (unsigned)mask, gpus,
                         launch->argv + 1, environ, LAUNCHER_MS);
}

static enum hd_status spawn(struct agent_attempt *l, struct supervisor_launch *launch)
{
    uv_stdio_container_t stdio[3] = {
        {.flags = UV_IGNORE}, {.flags = UV_INHERIT_FD}, {.flags = UV_INHERIT_FD}};
    uv_process_options_t options = {.exit_cb = supervisor_exited,
                                    .file = l->all->supervisor,
                                    .args = launch->argv,
                                    .flags = UV_PROCESS_DETACHED, /* in its own session */
                                    .stdio = stdio,
                                    .stdio_count = 3};
    char path[PATH_MAX + 16], why[HD_FILE_WHY_MAX];
    int log_fd, error;

    (void)snprintf(path, sizeof path, "%s/" HD_ATTEMPT_LOG_FILE, l->run_dir);
    log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0)
        return hd_err(hd_file_write_status(errno), "cannot open %s: %s", path,
                      hd_file_explain(errno, path, why));
    stdio[1].data.fd = stdio[2].data.fd = log_fd;
    l->child = calloc(1, sizeof *l->child);
    if (!l->child) {
        (void)close(log_fd);
        return hd_err(HD_NO_MEMORY, "no memory to start a supervisor");
    }
    l->child->data = l;
    error = uv_spawn(l->all->loop, l->child, &options);
    (void)close(log_fd);
    if (error < 0) {
        uv_close((uv_handle_t *)l->child, free_handle);
        l->child = NULL;
        return hd_err(HD_IO, "cannot run %s: %s", l->all->supervisor, uv_strerror(error));
    }
    uv_unref((uv_handle_t *)l->child); /* heddled may end before the supervisor */
    return HD_OK;
}

void local_wait_to_start(struct agent_attempt *local)
{
    wait_for_storage(local, "waits to start");
}

static enum hd_status write_job_file(const struct agent_attempt *l, const char *text, size_t count)
{
    char path[PATH_MAX + 16];

    (void)snprintf(path, sizeof path, "%s/" HD_ATTEMPT_JOB_FILE, l->run_dir);
    return hd_file_write_atomic(path, text, count, 0644);
}

/* Prepares the user as whom the attempt runs. If that is heddled's own user, run_as is dropped,
 * whatever name the policy used. */
static enum hd_status prepare_user(struct agent_attempt *l)
{
    bool own;
    enum hd_status st = job_user_prepare(l, &own);

    if (!st && own) {
        free(l->run_as);
        l->run_as = NULL;
        st = local_record(l);
    }
    return st;
}

bool local_take_up(struct agent_attempt *local, bool ran)
{
    if (local->all->jobs_dir_away)
        return false; /* local_launch reports it and waits */
    /* the attempt's files have reappeared: locals_tick finds its state */
    if (local_was_started(local)) {
        local->state = LOCAL_ALIVE;
        local->alive_ms = hd_clock_now_ms();
        set_trouble(local, false, "");
        local->all->on_change(local->all->user, local);
    } else if (ran) {
        end_without_folder(local);
    }
    return local->state != LOCAL_PLANNED;
}

void local_launch(struct agent_attempt *local, const char *job_text, size_t job_bytes,
                  const struct local_ranks *ranks)
{
    struct supervisor_launch launch;
    bool refused = false;
    enum hd_status st = make_folders(local, !local->all->jobs_dir_seen);

    if (!st)
        st = hd_file_check_space(local->run_dir, LAUNCH_BYTES);
    if (!st)
        st = write_job_file(local, job_text, job_bytes);
    if (!st && local->run_as) {
        st = prepare_user(local);
        refused = st == HD_DENIED || st == HD_UNSUPPORTED || st == HD_INVALID;
    }
    fill_launch(local, ranks, &launch);
    if (!st)
        st = local->all->launcher[0] ? ask_launcher(local, ranks, &launch) : spawn(local, &launch);
    if (st == HD_STORAGE) {
        local_wait_to_start(local);
        return;
    }
    if (st) {
        local_fail_launch(local, refused || local->refused_run_dir, hd_err_message());
        return;
    }
    set_trouble(local, false, "");
    local->state = LOCAL_ALIVE;
    local->alloc = HD_ALLOC_STARTING;
    local->alive_ms = hd_clock_now_ms();
    hd_log(HD_LOG_INFO, "job %" PRId64 " attempt %" PRId64 ": started ranks %s of %" PRId64,
           local->job, local->attempt, launch.ranks, ranks->world);
    local->all->on_change(local->all->user, local);
}

/* ---- commands of the controller ---- */

void local_stop(struct agent_attempt *local)
{
    local->stop_wanted = true;
    if (local->fd >= 0 && local->greeted)
        send_commands(local);
}

void local_save(struct agent_attempt *local)
{
    local->save_wanted = true;
    if (local->fd >= 0 && local->greeted)
        send_commands(local);
}

void local_kill(struct agent_attempt *local)
{
    local->kill_wanted = true;
    if (local->fd >= 0 && local->greeted)
        send_commands(local);
}

void local_values(struct agent_attempt *local, int64_t rank, int64_t round, const void *value,
                  size_t value_bytes)
{
    uint8_t bytes[HD_LINK_VALUE_MAX + 64];
    struct hd_pack pack;
    size_t n;

    hd_pack_begin(&pack, bytes, sizeof bytes);
    hd_pack_int(&pack, rank);
    hd_pack_int(&pack, round);
    hd_pack_bytes(&pack, value, value_bytes);
    n = hd_pack_end(&pack, HD_LINK_MSG_VALUE);
    if (n && local->fd >= 0 && hd_frame_send(local->fd, bytes, n, SEND_MS))
        disconnect(local); /* after reconnecting, the rank's value and the answer are sent again */
}

static void let_go(struct agent_attempt *l)
{
    disconnect(l);
    if (l->child)
        l->child->data = NULL;
    local_free(l);
}

void local_forget(struct agent_attempt *local)
{
    struct hd_link_report end;

    /* a supervisor started by an earlier heddled may be starting: writing `end` makes it refuse */
    if (local->state == LOCAL_PLANNED && local_check_owner(local) == HD_OK &&
        hd_attempt_conclude(local->run_dir, local->job, local->attempt, false, &end) ==
            HD_CONFLICT) {
        local->state = LOCAL_ALIVE;
        local->all->on_change(local->all->user, local);
        return;
    }
    local_unrecord(local);
    let_go(local);
}

void locals_close(struct locals *locals)
{
    while (locals->first) {
        struct agent_attempt *l = locals->first;

        locals->first = l->next;
        if (l->child) { /* the supervisor keeps running; only the handle is closed */
            uv_close((uv_handle_t *)l->child, free_handle);
            l->child = NULL;
        }
        let_go(l);
    }
}
