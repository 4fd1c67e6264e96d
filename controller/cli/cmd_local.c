/* local: runs one job on this machine, with a controller and a daemon of its own.
 *
 * Two folders: a short private one for sockets and the programs' state, removed at the end; and the
 * run's folder, with checkpoints and logs, which is kept. The controller and the daemon run with
 * --ephemeral: they and all processes that they started end when this command ends, also by
 * SIGKILL.
 *
 *     Ctrl-C once    cancel: the ranks write a checkpoint and stop
 *     Ctrl-C twice   kill
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"
#include "controller/cli/data_look.h"
#include "controller/cli/process.h"
#include "controller/cli/submit.h"
#include "controller/cli/watch.h"
#include "spec/spec.h"

enum {
    START_MS = 30000, /* until the controller must answer */
    STOP_MS = 10000,
    PATH_MAX_BYTES = 4096,
    TEMP_DIR_MAX = 40,   /* a longer $TMPDIR is not used */
    HOLD_MS = 3000,      /* the own daemon connects sooner; a job that still waits says for what */
    PRIVATE_DIR_MAX = 64 /* leaves room for socket names: such a path has at most 107 bytes */
};

struct local {
    struct cli *cli;
    struct hd_job *spec; /* in the arena */
    struct hd_arena arena;
    char private_dir[PRIVATE_DIR_MAX];
    char run_dir[PATH_MAX_BYTES];
    char controller_log[PATH_MAX_BYTES + 32], daemon_log[PATH_MAX_BYTES + 32];
    char address[PRIVATE_DIR_MAX + 32];
    struct process controller, daemon;
    uint64_t job;
    char job_dir[PATH_MAX_BYTES];
    bool times; /* --times */
    int64_t log_every;
    bool interrupted, killed;
};

static volatile sig_atomic_t early_signal; /* before the event loop watches signals */

static void on_early_signal(int number)
{
    early_signal = number;
}

static void catch_early_signals(void)
{
    const struct sigaction action = {.sa_handler = on_early_signal};

    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGHUP, &action, NULL);
}

/* ---- folders ---- */

/* In the private folder: no other folder has a file of this name. */
#define LOCK_NAME "heddle-local.lock"

/* Removes folders of commands that were killed: their lock is free. */
static void remove_abandoned_dirs(const char *base)
{
    DIR *dir = opendir(base);
    const struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        char path[PRIVATE_DIR_MAX], lock[PRIVATE_DIR_MAX + 32];
        struct stat info;
        int fd;

        if (!hd_text_starts(entry->d_name, "heddle-") || strlen(entry->d_name) != 13)
            continue;
        (void)snprintf(path, sizeof path, "%.*s/%.13s", TEMP_DIR_MAX, base, entry->d_name);
        (void)snprintf(lock, sizeof lock, "%s/" LOCK_NAME, path);
        if (lstat(path, &info) < 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid() ||
            !hd_file_exists(lock) || hd_file_lock(lock, &fd))
            continue;
        (void)hd_file_remove_tree(path); /* best effort: the next run tries again */
        (void)close(fd);
    }
    if (dir)
        (void)closedir(dir);
}

/* The process holds the lock until it ends. Another `heddle local` that removes abandoned folders
 * may hold it for a moment: it then removes this folder, and another one is made here. */
static enum hd_status make_private_dir(struct local *l)
{
    const char *base = getenv("TMPDIR");
    char lock[PRIVATE_DIR_MAX + 32];
    enum hd_status st;
    int fd;

    if (!base || base[0] != '/' || strlen(base) > TEMP_DIR_MAX)
        base = "/tmp";
    remove_abandoned_dirs(base);
    do {
        (void)snprintf(l->private_dir, sizeof l->private_dir, "%.*s/heddle-XXXXXX", TEMP_DIR_MAX,
                       base);
        if (!mkdtemp(l->private_dir)) {
            st = hd_err(HD_IO, "cannot make a folder in %s: %s", base, strerror(errno));
            l->private_dir[0] = '\0';
            return st;
        }
        (void)snprintf(lock, sizeof lock, "%s/" LOCK_NAME, l->private_dir);
        st = hd_file_lock(lock, &fd);
    } while (st == HD_CONFLICT);
    (void)snprintf(l->address, sizeof l->address, "unix:%s/c.sock", l->private_dir);
    return st;
}

/* The folder in which runs are kept: --state-dir, or heddle-runs beside the job file. */
static enum hd_status runs_folder(const char *job_path, const char *state_dir,
                                  struct hd_text *ret_folder)
{
    const char *slash = strcmp(job_path, "-") == 0 ? NULL : strrchr(job_path, '/');
    char *cwd = getcwd(NULL, 0);
    struct hd_text beside = {0};

    if (!cwd)
        return hd_err(HD_IO, "cannot tell the working directory: %s", strerror(errno));
    hd_text_add(&beside, "%.*sheddle-runs", slash ? (int)(slash - job_path) + 1 : 0, job_path);
    if (!beside.failed)
        hd_file_join(ret_folder, cwd, state_dir ? state_dir : beside.data);
    free(cwd);
    if (beside.failed || ret_folder->failed)
        ret_folder->failed = true;
    hd_text_free(&beside);
    return ret_folder->failed ? hd_err(HD_NO_MEMORY, "no memory for a path") : HD_OK;
}

/* NAME-20260301-120000-a1b2c3, so that two runs of one job file have different folders. */
static enum hd_status make_run_dir(struct local *l, const char *job_path, const char *state_dir)
{
    struct hd_text folder = {0};
    unsigned char tail[3];
    char when[32] = "";
    struct tm tm;
    time_t now = (time_t)(hd_clock_wall_ms() / 1000);
    enum hd_status st;

    st = hd_random_bytes(tail, sizeof tail);
    if (!st)
        st = runs_folder(job_path, state_dir, &folder);
    if (!st) {
        if (gmtime_r(&now, &tm))
            (void)strftime(when, sizeof when, "%Y%m%d-%H%M%S", &tm);
        if (snprintf(l->run_dir, sizeof l->run_dir, "%s/%s-%s-%02x%02x%02x", folder.data,
                     l->spec->name, when, tail[0], tail[1],
                     tail[2]) >= (int)sizeof l->run_dir - 200)
            st = hd_err(
                HD_INVALID,
                "the path of the run's folder is too long; choose a shorter one with --state-dir");
    }
    if (!st)
        st = hd_file_make_dirs(l->run_dir, 0750);
    if (st == HD_IO)
        st = hd_err_prefix(
            st, "cannot make a folder for the run; choose another place with --state-dir");
    (void)snprintf(l->controller_log, sizeof l->controller_log, "%s/controller.log", l->run_dir);
    (void)snprintf(l->daemon_log, sizeof l->daemon_log, "%s/heddled.log", l->run_dir);
    hd_text_free(&folder);
    return st;
}

/* ---- programs ---- */

static enum hd_status start_controller(struct local *l)
{
    struct hd_text program = {0};
    char state[PRIVATE_DIR_MAX + 32];
    enum hd_status st = process_find("heddle-controller", &program);

    (void)snprintf(state, sizeof state, "%s/controller", l->private_dir);
    if (!st) {
        char *const argv[] = {program.data, "--ephemeral", "--state-dir", state, "--listen",
                              l->address,   "--jobs-dir",  l->run_dir,    NULL};

        l->controller = (struct process){.name = "heddle-controller", .log = l->controller_log};
        st = process_start(&l->controller, argv);
    }
    hd_text_free(&program);
    return st;
}

/* The value of heddled's --devices for this job. A job of `auto` that needs more devices than this
 * machine has GPUs runs on CPU devices. */
static void name_devices(const struct hd_job *spec, char *ret_text, size_t size)
{
    const int32_t most = hd_spec_most_devices(spec);
    char threads[24] = "";

    if (spec->threads)
        (void)snprintf(threads, sizeof threads, ":%lld", (long long)spec->threads);

    if (strcmp(spec->device, "cuda") == 0)
        (void)snprintf(ret_text, size, "cuda");
    else
        (void)snprintf(ret_text, size, "%scpu:%d%s",
                       strcmp(spec->device, "cpu") == 0 ? "" : "auto+", most, threads);
}

static enum hd_status start_daemon(struct local *l)
{
    struct hd_text program = {0};
    char state[PRIVATE_DIR_MAX + 32], devices[32];
    enum hd_status st = process_find("heddled", &program);

    (void)snprintf(state, sizeof state, "%s/node", l->private_dir);
    name_devices(l->spec, devices, sizeof devices);
    if (!st) {
        char *const argv[] = {
            program.data,  "--ephemeral", "--controller", l->address, "--state-dir", state,
            "--node-name", "local",       "--devices",    devices,    NULL};

        l->daemon = (struct process){.name = "heddled", .log = l->daemon_log};
        st = process_start(&l->daemon, argv);
    }
    hd_text_free(&program);
    return st;
}

static bool answers(const char *socket_path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool yes;

    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
    yes = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0)
        (void)close(fd);
    return yes;
}

static enum hd_status await_controller(struct local *l)
{
    int64_t end_ms = hd_clock_now_ms() + START_MS;

    while (!answers(l->address + strlen("unix:"))) {
        if (process_has_ended(&l->controller))
            return process_explain(&l->controller);
        if (early_signal)
            return hd_err(HD_ABORTED, "interrupted before the job was submitted");
        if (hd_clock_now_ms() > end_ms)
            return hd_err(HD_TIMEOUT, "heddle-controller did not answer within %d s; see %s",
                          START_MS / 1000, l->controller_log);
        (void)usleep(10000);
    }
    return HD_OK;
}

static enum hd_status start_cluster(struct local *l, const char *job_path, const char *state_dir)
{
    enum hd_status st = make_run_dir(l, job_path, state_dir);

    if (!st)
        st = make_private_dir(l);
    if (!st)
        st = process_adopt_orphans();
    if (!st)
        st = start_controller(l);
    if (!st)
        st = await_controller(l);
    if (!st)
        st = start_daemon(l);
    return st;
}

/* Ends all processes and removes the private folder. */
static void stop_cluster(struct local *l, bool kill_now)
{
    int grace_ms = kill_now ? 0 : STOP_MS;

    process_stop(&l->daemon, grace_ms); /* first: its last words go to the controller */
    process_stop(&l->controller, grace_ms);
    process_stop_all(kill_now ? 0 : 1000);
    if (l->private_dir[0] && hd_file_remove_tree(l->private_dir))
        cli_note("heddle: %s", hd_err_message());
}

/* ---- the job ---- */

static void on_cancelled(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    (void)call;
    if (status)
        cli_note("heddle: cannot stop the job: %s; Ctrl-C again kills it", message);
}

/* The first signal cancels the job, the second one gives up waiting for its end. */
static bool on_interrupt(void *user, int number, int count)
{
    Heddle__V1__CancelJobRequest request = HEDDLE__V1__CANCEL_JOB_REQUEST__INIT;
    struct local *l = user;
    char path[64];
    const struct hd_rpc_call_options options = {
        .path = cli_method_path("CancelJob", path),
        .kind = HD_RPC_UNARY,
        .response = &heddle__v1__cancel_job_response__descriptor,
        .handler = {.on_done = on_cancelled},
    };

    l->interrupted = true;
    l->killed = count > 1 || number == SIGHUP;
    if (l->killed)
        return false;
    cli_note(
        "heddle: stopping the job; the ranks write a checkpoint first (Ctrl-C again kills them)");
    request.job = l->job;
    if (hd_rpc_client_call(l->cli->client, &options, &request.base, NULL))
        cli_note("heddle: cannot stop the job: %s; Ctrl-C again kills it", hd_err_message());
    return true;
}

/* A controller or daemon that has ended is not started again: the command fails. */
static int on_tick(void *user)
{
    struct local *l = user;

    if (process_has_ended(&l->controller))
        return cli_fail(process_explain(&l->controller));
    if (process_has_ended(&l->daemon))
        return cli_fail(process_explain(&l->daemon));
    return CLI_CONTINUE;
}

/* How long it took, and what to do next. */
static void say_end(const struct local *l, int code, int64_t begin_ms)
{
    char span[HD_CLOCK_TEXT_MAX];

    hd_clock_format_span(hd_clock_now_ms() - begin_ms, span);
    if (code == CLI_JOB_FAILED && !l->interrupted) {
        cli_note("heddle: took %s; logs and checkpoints are in %s", span, l->job_dir);
    } else if (code == CLI_OK && strcmp(l->spec->tokenizer, "none") != 0) {
        cli_note("heddle: took %s; text from the trained model:", span);
        cli_note("  heddle generate %s --prompt 'Once upon'", l->run_dir);
    } else if (code == CLI_OK || l->interrupted) {
        cli_note("heddle: took %s; the checkpoints are listed by", span);
        cli_note("  heddle checkpoint ls %s", l->run_dir);
    }
}

/* Submits the job and watches it to its end. */
static int run_job(struct local *l)
{
    struct watch_options options = {.on_interrupt = on_interrupt,
                                    .on_tick = on_tick,
                                    .user = l,
                                    .times = l->times,
                                    .log_every = l->log_every,
                                    .one_machine = true,
                                    .hold_ms = HOLD_MS,
                                    .directory = l->run_dir};
    const int64_t begin_ms = hd_clock_now_ms();
    Heddle__V1__SubmitJobResponse *response = NULL;
    char history[PATH_MAX_BYTES + 32];
    int code;

    l->cli->controller = l->address;
    code = cli_connect(l->cli);
    if (code == CLI_CONTINUE)
        code = cli_submit_spec(l->cli, l->spec, NULL, &response);
    if (code != CLI_CONTINUE)
        return code;
    options.job = l->job = response->job->job;
    (void)snprintf(l->job_dir, sizeof l->job_dir, "%s", response->job->directory);
    hd_rpc_message_free(&response->base);
    cli_note("heddle: job %s; its logs and checkpoints go to %s", l->spec->name, l->run_dir);
    if (early_signal)
        return CLI_INTERRUPTED;
    (void)snprintf(history, sizeof history, "%s/history.jsonl", l->run_dir);
    options.history = fopen(history, "wex");
    if (!options.history)
        cli_note("heddle: cannot write %s: %s; the job runs, but its history is not kept", history,
                 strerror(errno));
    code = cli_watch_job(l->cli, &options);
    if (options.history)
        (void)fclose(options.history);
    say_end(l, code, begin_ms);
    return l->interrupted ? CLI_INTERRUPTED : code;
}

int cli_local(struct cli *cli, int argc, char **argv)
{
    struct cli_list overrides = {.count = 0};
    const char *state_dir = NULL;
    int64_t log_every = 0;
    bool times = false;
    struct local *l = calloc(1, sizeof *l);
    const struct cli_flag flags[] = {
        {"set", 0, CLI_FLAG_LIST, &overrides, 0, 0},
        {"state-dir", 0, CLI_FLAG_TEXT, &state_dir, 0, 0},
        {"times", 0, CLI_FLAG_BOOL, &times, 0, 0},
        {"log-every", 0, CLI_FLAG_INT, &log_every, 0, INT32_MAX},
    };
    enum hd_status st;
    int code;

    if (!l)
        return cli_fail(hd_err(HD_NO_MEMORY, "no memory to start a job"));
    l->cli = cli;
    hd_arena_init(&l->arena, 0);
    code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);
    l->times = times;
    l->log_every = log_every;
    if (code == CLI_CONTINUE)
        code = cli_read_spec(cli->args[0], &overrides, &l->arena, &l->spec);
    if (code == CLI_CONTINUE)
        code = data_look_at_tokenizer(l->spec);
    if (code == CLI_CONTINUE) {
        catch_early_signals();
        st = start_cluster(l, cli->args[0], state_dir);
        code = st == HD_OK        ? run_job(l)
               : st == HD_ABORTED ? CLI_INTERRUPTED
                                  : (cli_fail(st), CLI_FAILED);
        catch_early_signals(); /* the loop's watchers are gone; the end is not to be cut short */
        cli_disconnect(cli);
        stop_cluster(l, l->killed);
    }
    hd_arena_done(&l->arena);
    free(l);
    return code;
}
