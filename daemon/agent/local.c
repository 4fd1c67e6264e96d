#include "daemon/agent/local.h"

#include <dirent.h>
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
#include "link/hello.h"

enum {
    RECORD_BYTES_MAX = 4 * PATH_MAX,
    STOP_GRACE_MS = 0,     /* the controller decides when a stop has taken too long */
    ADOPT_GRACE_MS = 3000, /* for a supervisor that an earlier heddled has just started */
    SEND_MS = 1000,
};

/* ---- records ---- */

static enum hd_status record_path(const struct locals *all, int64_t job, int64_t attempt,
                                  struct hd_text *ret_path)
{
    hd_text_add(ret_path, "%s/attempts/%" PRId64 "-%" PRId64, all->state_dir, job, attempt);
    return ret_path->failed ? hd_err(HD_NO_MEMORY, "no memory for a path") : HD_OK;
}

static enum hd_status write_record(const struct local *l)
{
    struct hd_text path = {0}, text = {0};
    enum hd_status st = record_path(l->all, l->job, l->attempt, &path);

    hd_text_add(&text, "attempt_dir %s\ncheckpoint_dir %s\nrun_dir %s\nend\n", l->attempt_dir,
                l->checkpoint_dir, l->run_dir);
    if (!st && text.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a record");
    if (!st)
        st = hd_file_write_atomic(path.data, text.data, text.len_bytes, 0600);
    hd_text_free(&text);
    hd_text_free(&path);
    return st;
}

static void local_free(struct local *l)
{
    agent_outbox_close(l->outbox);
    free(l->attempt_dir);
    free(l->checkpoint_dir);
    free(l->run_dir);
    free(l->puts);
    free(l);
}

static enum hd_status local_new(struct locals *all, int64_t job, int64_t attempt,
                                const char *attempt_dir, const char *checkpoint_dir,
                                const char *run_dir, struct local **ret_local)
{
    struct local *l = calloc(1, sizeof *l);
    enum hd_status st;

    if (!l)
        return hd_err(HD_NO_MEMORY, "no memory for an attempt");
    *l = (struct local){.all = all, .job = job, .attempt = attempt, .fd = -1};
    l->attempt_dir = strdup(attempt_dir);
    l->checkpoint_dir = strdup(checkpoint_dir);
    l->run_dir = strdup(run_dir);
    l->puts = calloc(HD_ATTEMPT_RANKS_MAX, sizeof *l->puts);
    if (!l->attempt_dir || !l->checkpoint_dir || !l->run_dir || !l->puts)
        st = hd_err(HD_NO_MEMORY, "no memory for an attempt");
    else
        st = agent_outbox_open(run_dir, &l->outbox);
    if (st) {
        local_free(l);
        return st;
    }
    *ret_local = l;
    return HD_OK;
}

static void link_in(struct local *l)
{
    l->next = l->all->first;
    l->all->first = l;
}

/* "KEY VALUE\n" at *at; moves on. */
static char *take_value(char **at, const char *key)
{
    const size_t n = strlen(key);
    char *value, *end;

    if (strncmp(*at, key, n) != 0 || (*at)[n] != ' ')
        return NULL;
    value = *at + n + 1;
    end = strchr(value, '\n');
    if (!end)
        return NULL;
    *end = '\0';
    *at = end + 1;
    return value;
}

/* Whether a supervisor has ever come up. One that is still coming is no harm: of two, one gets the
 * run directory, and what it does is seen by all. */
static bool was_started(const struct local *l)
{
    struct hd_attempt_process process;
    struct hd_link_report end;

    return hd_attempt_process_read(l->run_dir, &process) != HD_NOT_FOUND ||
           hd_attempt_read_end(l->run_dir, &end) != HD_NOT_FOUND;
}

static enum hd_status read_record(struct locals *all, int64_t job, int64_t attempt)
{
    struct hd_text path = {0}, text = {0};
    char *at, *attempt_dir, *checkpoint_dir, *run_dir;
    struct local *l;
    enum hd_status st = record_path(all, job, attempt, &path);

    if (!st)
        st = hd_file_read(path.data, RECORD_BYTES_MAX, &text);
    if (!st) {
        at = text.data;
        attempt_dir = take_value(&at, "attempt_dir");
        checkpoint_dir = attempt_dir ? take_value(&at, "checkpoint_dir") : NULL;
        run_dir = checkpoint_dir ? take_value(&at, "run_dir") : NULL;
        st = run_dir && strcmp(at, "end\n") == 0
                 ? local_new(all, job, attempt, attempt_dir, checkpoint_dir, run_dir, &l)
                 : hd_err(HD_CORRUPT, "%s is not an attempt's record", path.data);
    }
    if (!st) {
        l->state = was_started(l) ? LOCAL_ALIVE : LOCAL_PLANNED;
        l->inherited = l->on_gpus = true;
        l->alive_ms = hd_clock_now_ms();
        link_in(l);
    }
    hd_text_free(&text);
    hd_text_free(&path);
    return st;
}

enum hd_status locals_open(struct locals *locals)
{
    struct hd_text dir = {0};
    const struct dirent *entry;
    int64_t job, attempt;
    enum hd_status st;
    DIR *d = NULL;

    hd_text_add(&dir, "%s/attempts", locals->state_dir);
    st = dir.failed ? hd_err(HD_NO_MEMORY, "no memory for a path")
                    : hd_file_make_dirs(dir.data, 0700);
    if (!st && !(d = opendir(dir.data)))
        st = hd_err(HD_IO, "cannot read %s: %s", dir.data, strerror(errno));
    while (!st && (entry = readdir(d))) {
        char tail;

        if (sscanf(entry->d_name, "%" SCNd64 "-%" SCNd64 "%c", &job, &attempt, &tail) == 2)
            st = read_record(locals, job, attempt);
    }
    if (d)
        (void)closedir(d);
    hd_text_free(&dir);
    return st;
}

struct local *locals_find(const struct locals *locals, int64_t job, int64_t attempt)
{
    for (struct local *l = locals->first; l; l = l->next)
        if (l->job == job && l->attempt == attempt)
            return l;
    return NULL;
}

enum hd_status locals_add(struct locals *locals, int64_t job, int64_t attempt,
                          const char *attempt_dir, const char *checkpoint_dir,
                          struct local **ret_local)
{
    struct hd_text run_dir = {0};
    struct local *l;
    enum hd_status st;

    if (attempt_dir[0] != '/' || strchr(attempt_dir, '\n') || strchr(checkpoint_dir, '\n'))
        return hd_err(HD_INVALID, "the directory %s cannot be an attempt's", attempt_dir);
    hd_attempt_run_dir(&run_dir, attempt_dir, locals->node);
    st = run_dir.failed
             ? hd_err(HD_NO_MEMORY, "no memory for a path")
             : local_new(locals, job, attempt, attempt_dir, checkpoint_dir, run_dir.data, &l);
    hd_text_free(&run_dir);
    if (st)
        return st;
    l->state = LOCAL_PLANNED;
    st = write_record(l);
    if (st) {
        local_free(l);
        return st;
    }
    link_in(l);
    *ret_local = l;
    return HD_OK;
}

/* ---- the connection to a supervisor ---- */

static void free_handle(uv_handle_t *handle)
{
    free(handle);
}

static void disconnect(struct local *l)
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

static void send_command(struct local *l, enum hd_link_message type, int64_t number)
{
    uint8_t bytes[64];
    struct hd_pack pack;

    hd_pack_begin(&pack, bytes, sizeof bytes);
    if (type == HD_LINK_MSG_STOP)
        hd_pack_int(&pack, number);
    if (hd_frame_send(l->fd, bytes, hd_pack_end(&pack, (uint16_t)type), SEND_MS))
        disconnect(l); /* and connect again, and say it again */
}

/* What was wanted while there was nobody to tell. */
static void send_commands(struct local *l)
{
    l->commands_sent = true;
    if (l->kill_wanted)
        send_command(l, HD_LINK_MSG_KILL, 0);
    else if (l->stop_wanted)
        send_command(l, HD_LINK_MSG_STOP, STOP_GRACE_MS);
}

static void take_put(struct local *l, const struct hd_frame *frame)
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

static void take_status(struct local *l, const struct hd_frame *frame)
{
    struct hd_unpack unpack;
    int64_t share;

    hd_unpack_begin(&unpack, frame);
    share = hd_unpack_int(&unpack);
    if (hd_unpack_end(&unpack) || share < HD_ATTEMPT_STARTING || share > HD_ATTEMPT_ENDED)
        return;
    l->share = (enum hd_attempt_state)share;
    l->all->on_change(l->all->user, l);
}

static enum hd_status take_message(struct local *l, const struct hd_frame *frame)
{
    struct hd_hello hello;
    enum hd_status st;

    if (!l->greeted) {
        st = hd_hello_decode(frame, &hello);
        if (!st)
            st = hd_hello_check(&hello, "heddle-supervisor");
        l->greeted = !st;
        if (!st)
            send_commands(l);
        return st;
    }
    if (frame->type == HD_LINK_MSG_STATUS)
        take_status(l, frame);
    else if (frame->type == HD_LINK_MSG_PUT)
        take_put(l, frame);
    return HD_OK;
}

static void look_after(struct local *l);

static void supervisor_speaks(uv_poll_t *poll, int status, int events)
{
    struct local *l = poll->data;
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
    look_after(l);
}

static enum hd_status connect_to(struct local *l)
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

static void became_ended(struct local *l, const struct hd_link_report *end)
{
    disconnect(l);
    l->state = LOCAL_ENDED;
    l->share = HD_ATTEMPT_ENDED;
    l->end = *end;
    hd_log(HD_LOG_INFO, "job %" PRId64 " attempt %" PRId64 " ended here: %s %s", l->job, l->attempt,
           hd_link_cause_name((enum hd_link_cause)end->end.cause), end->end.message);
    l->all->on_change(l->all->user, l);
}

void local_fail_launch(struct local *local, bool bad_input, const char *message)
{
    struct hd_link_report end = {.kind = HD_LINK_END, .rank = -1};

    end.job = local->job;
    end.attempt = local->attempt;
    end.wall_ms = hd_clock_wall_ms();
    end.end.cause = HD_LINK_CAUSE_LAUNCH_FAILED;
    end.end.first_rank = -1;
    end.end.bad_input = bad_input;
    (void)snprintf(end.end.message, sizeof end.end.message, "%s", message);
    if (hd_attempt_write_end(local->run_dir, &end)) /* then a restart will conclude the same */
        hd_log(HD_LOG_WARN, "%s", hd_err_message());
    became_ended(local, &end);
}

/* A supervisor that does not answer: it is coming up, or dead. */
static void examine(struct local *l)
{
    struct hd_attempt_process process;
    struct hd_link_report end;
    enum hd_status st;

    if (l->child)
        return; /* its exit will be told */
    if (hd_attempt_process_read(l->run_dir, &process) == HD_OK) {
        if (hd_attempt_process_alive(&process))
            return;
    } else if (hd_clock_now_ms() - l->alive_ms < ADOPT_GRACE_MS) {
        return;
    }
    st = hd_attempt_conclude(l->run_dir, l->job, l->attempt, &end);
    if (st == HD_OK)
        became_ended(l, &end);
    else if (st != HD_TIMEOUT && st != HD_CONFLICT)
        local_fail_launch(l, false, hd_err_message()); /* the directory itself is gone */
}

static void look_after(struct local *l)
{
    struct hd_link_report end;

    if (l->state != LOCAL_ALIVE)
        return;
    if (l->fd >= 0) {
        if (l->greeted && !l->commands_sent)
            send_commands(l);
        return;
    }
    if (hd_attempt_read_end(l->run_dir, &end) == HD_OK) {
        became_ended(l, &end);
        return;
    }
    if (connect_to(l))
        examine(l);
}

void locals_look_after(struct locals *locals)
{
    for (struct local *l = locals->first, *next; l; l = next) {
        next = l->next;
        look_after(l);
    }
}

bool locals_any_alive(const struct locals *locals)
{
    for (const struct local *l = locals->first; l; l = l->next)
        if (l->state == LOCAL_ALIVE)
            return true;
    return false;
}

/* ---- launching ---- */

static void supervisor_exited(uv_process_t *child, int64_t status, int signal)
{
    struct local *l = child->data;

    uv_close((uv_handle_t *)child, free_handle);
    if (!l)
        return;
    l->child = NULL;
    if (status || signal)
        hd_log(HD_LOG_WARN,
               "job %" PRId64 " attempt %" PRId64 ": heddle-supervisor ended with status %" PRId64
               ", signal %d",
               l->job, l->attempt, status, signal);
    l->alive_ms = 0; /* nothing is coming up any more */
    disconnect(l);
    look_after(l);
}

struct launch {
    char job_path[PATH_MAX + 16], world[24], parent[24], ranks[HD_ATTEMPT_RANKS_MAX * 12];
    char gpus[HD_ATTEMPT_RANKS_MAX * 64];
    char *argv[24];
};

static void fill_launch(const struct local *l, const struct local_ranks *ranks,
                        struct launch *launch)
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
    (void)snprintf(launch->parent, sizeof launch->parent, "%d", (int)getpid());
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
    if (gpus_at) {
        launch->argv[n++] = (char *)"--gpus";
        launch->argv[n++] = launch->gpus;
    }
    if (ranks->world > ranks->count) {
        launch->argv[n++] = (char *)"--data-address";
        launch->argv[n++] = (char *)all->data_address;
    }
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

static enum hd_status spawn(struct local *l, struct launch *launch)
{
    uv_stdio_container_t stdio[3] = {
        {.flags = UV_IGNORE}, {.flags = UV_INHERIT_FD}, {.flags = UV_INHERIT_FD}};
    uv_process_options_t options = {.exit_cb = supervisor_exited,
                                    .file = l->all->supervisor,
                                    .args = launch->argv,
                                    .flags = UV_PROCESS_DETACHED, /* a session of its own */
                                    .stdio = stdio,
                                    .stdio_count = 3};
    char path[PATH_MAX + 16];
    int log_fd, error;

    (void)snprintf(path, sizeof path, "%s/" HD_ATTEMPT_LOG_FILE, l->run_dir);
    log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0)
        return hd_err(HD_IO, "cannot open %s: %s", path, strerror(errno));
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
    uv_unref((uv_handle_t *)l->child); /* it does not keep heddled */
    return HD_OK;
}

void local_launch(struct local *local, const char *job_text, size_t job_bytes,
                  const struct local_ranks *ranks)
{
    struct launch launch;
    enum hd_status st = hd_file_make_dirs(local->run_dir, 0755);

    local->on_gpus = ranks->count && ranks->gpu[0];
    fill_launch(local, ranks, &launch);
    if (!st)
        st = hd_file_write_atomic(launch.job_path, job_text, job_bytes, 0644);
    if (!st)
        st = spawn(local, &launch);
    if (st) {
        local_fail_launch(local, false, hd_err_message());
        return;
    }
    local->state = LOCAL_ALIVE;
    local->share = HD_ATTEMPT_STARTING;
    local->alive_ms = hd_clock_now_ms();
    hd_log(HD_LOG_INFO, "job %" PRId64 " attempt %" PRId64 ": started ranks %s of %" PRId64,
           local->job, local->attempt, launch.ranks, ranks->world);
    local->all->on_change(local->all->user, local);
}

/* ---- what the controller wants ---- */

void local_stop(struct local *local)
{
    local->stop_wanted = true;
    if (local->fd >= 0 && local->greeted)
        send_commands(local);
}

void local_kill(struct local *local)
{
    local->kill_wanted = true;
    if (local->fd >= 0 && local->greeted)
        send_commands(local);
}

void local_values(struct local *local, int64_t rank, int64_t round, const void *value,
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
        disconnect(local); /* after a new connection it is put, and answered, again */
}

static void unlink_local(struct local *l)
{
    struct local **at = &l->all->first;

    while (*at && *at != l)
        at = &(*at)->next;
    if (*at)
        *at = l->next;
}

static void let_go(struct local *l)
{
    disconnect(l);
    if (l->child)
        l->child->data = NULL;
    local_free(l);
}

void local_forget(struct local *local)
{
    struct hd_text path = {0};
    struct hd_link_report end;

    /* a supervisor that an earlier heddled started may be on its way: it must find that it is over
     */
    if (local->state == LOCAL_PLANNED &&
        hd_attempt_conclude(local->run_dir, local->job, local->attempt, &end) == HD_CONFLICT) {
        local->state = LOCAL_ALIVE;
        local->all->on_change(local->all->user, local);
        return;
    }
    if (record_path(local->all, local->job, local->attempt, &path) == HD_OK &&
        unlink(path.data) < 0 && errno != ENOENT)
        hd_log(HD_LOG_WARN, "cannot remove %s: %s", path.data, strerror(errno));
    hd_text_free(&path);
    unlink_local(local);
    let_go(local);
}

void locals_close(struct locals *locals)
{
    while (locals->first) {
        struct local *l = locals->first;

        locals->first = l->next;
        if (l->child) { /* it goes on; only the handle ends here */
            uv_close((uv_handle_t *)l->child, free_handle);
            l->child = NULL;
        }
        let_go(l);
    }
}
