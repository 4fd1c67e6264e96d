/* local: runs one job on this machine, with its own controller and daemon.
 *
 * It uses two folders. A private one with a short path holds the socket and the daemon's state and
 * is removed at the end. The run's folder (runs.h) holds checkpoints, logs and the controller's
 * state; it is kept for a later --resume. Controller and daemon run with --ephemeral: they and all
 * processes that they started end when this command ends, even by SIGKILL.
 *
 *     Ctrl-C once    cancel: the ranks write a checkpoint and stop
 *     Ctrl-C twice   kill
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "controller/cli/data_check.h"
#include "controller/cli/local_controller.h"
#include "controller/cli/plot.h"
#include "controller/cli/run_control.h"
#include "controller/cli/submit.h"
#include "controller/cli/watch.h"
#include "spec/spec.h"

enum {
    STOP_MS = 10000,
    COPIES_PAUSE_MS = 100, /* pause between looks whether copies of checkpoints are done */
    /* time for which the state "waiting" is not shown, ms: the daemon connects sooner */
    HOLD_MS = 3000,
};

struct local {
    struct cli *cli;
    struct hd_job *spec; /* job to run; lives in the arena */
    struct hd_arena arena;
    struct cli_list overrides;
    /* values of flags; NULL: not given */
    const char *state_dir, *dir, *resume, *isolation, *http;
    int64_t keep;
    bool clean, yes;

    struct run_folder run;
    struct local_controller controller;
    char daemon_log[RUN_PATH_MAX + 32];
    struct process daemon;
    uint64_t job;
    int32_t resumed_attempt; /* newest attempt of the job before the resume; used with `resume` */
    bool times;              /* --times */
    int64_t log_every;
    int interrupted; /* first signal that the command received; 0: none */
    bool killed;
    /* why the controller refused to cancel the job; HD_OK: it did not refuse */
    struct hd_error unstoppable;
};

/* Catches signals while the event loop does not watch them. */
static void catch_early_signals(void)
{
    cli_catch_stop(SIGINT, NULL);
    cli_catch_stop(SIGTERM, NULL);
    if (!cli_ignores_hangup())
        cli_catch_stop(SIGHUP, NULL);
}

/* ---- programs ---- */

static enum hd_status start_controller(struct local *l)
{
    char state[RUN_PATH_MAX + 32], log[RUN_PATH_MAX + 32], link[RUN_PATH_MAX + 32];
    const struct local_controller_options options = {
        .state_dir = state, .jobs_dir = l->run.path, .log = log, .http = l->http};
    enum hd_status st;

    (void)snprintf(state, sizeof state, "%s/state", l->run.path);
    (void)snprintf(log, sizeof log, "%s/controller.log", l->run.path);
    st = local_controller_start(&l->controller, &options);
    if (!st)
        st = local_controller_await(&l->controller, &cli_stopped_by);
    (void)snprintf(link, sizeof link, "%s/" RUN_CONTROL_LINK, l->run.path);
    (void)unlink(link); /* left by a killed command */
    if (!st && symlink(l->controller.address + strlen("unix:"), link) < 0)
        cli_note("heddle: cannot make the link %s: %s; other commands cannot ask the run", link,
                 strerror(errno));
    return st;
}

/* Writes the value of heddled's --devices for this job. A job with device `auto` that needs more
 * devices than this machine has GPUs runs on CPU devices. */
static void name_devices(const struct hd_job *spec, char *ret_text, size_t size)
{
    const int32_t most = hd_spec_most_devices(spec);
    char threads[24] = "";

    if (spec->threads)
        (void)snprintf(threads, sizeof threads, ":%lld", (long long)spec->threads);

    if (spec->device == HD_JOB_DEVICE_CUDA)
        (void)snprintf(ret_text, size, "cuda");
    else
        (void)snprintf(ret_text, size, "%scpu:%d%s",
                       spec->device == HD_JOB_DEVICE_CPU ? "" : "auto+", most, threads);
}

/* Writes the folder in which the choices among a GPU's algorithms are kept. All runs of a user on this
 * machine share one, so that they choose alike and only the first one measures; a run that has a folder
 * of its own keeps it, as another choice would change its bits under --resume. */
static void name_choices(const struct local *l, char *ret_path, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = -1;
    struct stat info;

    (void)snprintf(ret_path, size, "%s/choices", l->run.path);
    if (stat(ret_path, &info) == 0)
        return;
    if (cache && cache[0] == '/')
        length = snprintf(ret_path, size, "%s/heddle/gpu-choices", cache);
    else if (home && home[0] == '/')
        length = snprintf(ret_path, size, "%s/.cache/heddle/gpu-choices", home);
    if (length < 0 || (size_t)length >= size)
        (void)snprintf(ret_path, size, "%s/choices", l->run.path);
}

static enum hd_status start_daemon(struct local *l)
{
    char state[LOCAL_DIR_MAX + 32], choices[RUN_PATH_MAX + 32], devices[32];
    const char *argv[] = {"heddled",
                          "--ephemeral",
                          "--controller",
                          l->controller.address,
                          "--state-dir",
                          state,
                          "--node-name",
                          "local",
                          "--devices",
                          devices,
                          "--choices-dir",
                          choices,
                          "--isolation",
                          l->isolation ? l->isolation : "try",
                          NULL};

    (void)snprintf(state, sizeof state, "%s/node", l->controller.dir);
    name_choices(l, choices, sizeof choices);
    (void)snprintf(l->daemon_log, sizeof l->daemon_log, "%s/heddled.log", l->run.path);
    name_devices(l->spec, devices, sizeof devices);
    return process_start(argv, l->daemon_log, &l->daemon);
}

/* Fails if the run's records and its job folder do not match. job NULL: the records have no job. */
static enum hd_status check_job_folder(const char *run, const Heddle__V1__JobStatus *job)
{
    char folder[PATH_MAX];
    struct stat info;
    bool is_there;

    (void)snprintf(folder, sizeof folder, "%s/1", run);
    is_there = stat(folder, &info) == 0 && S_ISDIR(info.st_mode);
    if (job && job->checkpoint_step && !is_there)
        return hd_err(
            HD_NOT_FOUND,
            "%s cannot be resumed: the folder of its job, %s, is gone, with its checkpoints; "
            "put it back, or start a new run",
            run, folder);
    if (job)
        return HD_OK;
    if (is_there)
        return hd_err(
            HD_NOT_FOUND,
            "%s cannot be resumed: its records, %s/state/state.db, are gone or empty. Its "
            "checkpoints are in %s/attempt-*/checkpoints: begin a new run with one by "
            "train.init_from, or give it to heddle generate",
            run, run, folder);
    return hd_err(HD_NOT_FOUND,
                  "%s holds no job: it ended before its job had begun; start a new run", run);
}

/* Fails if the run's records are gone, before a controller makes new ones, or refuses to. */
static enum hd_status check_records(const char *run)
{
    char path[PATH_MAX];
    struct stat info;

    (void)snprintf(path, sizeof path, "%s/state/state.db", run);
    return stat(path, &info) == 0 && info.st_size > 0 ? HD_OK : check_job_folder(run, NULL);
}

/* Opens the run's folder and starts a controller for it. */
static enum hd_status start_run(struct local *l)
{
    enum hd_status st =
        l->resume ? run_open(l->resume, l->state_dir, &l->run)
                  : run_make(l->cli->args[0], l->state_dir, l->dir, l->spec->name, &l->run);

    if (!st && l->resume) {
        st = check_records(l->run.path);
        if (st)
            run_close(&l->run); /* nothing was started: the exit code is that of st */
    }
    if (!st)
        st = local_controller_make_dir(&l->controller);
    if (!st)
        st = process_adopt_orphans();
    return st ? st : start_controller(l);
}

/* Ends all processes and removes the private folder. */
static void stop_cluster(struct local *l, bool kill_now)
{
    int grace_ms = kill_now ? 0 : STOP_MS;
    char link[RUN_PATH_MAX + 32];

    (void)snprintf(link, sizeof link, "%s/" RUN_CONTROL_LINK, l->run.path);
    if (l->run.lock >= 0)
        (void)unlink(link);
    process_stop(&l->daemon, grace_ms); /* daemon first: its final reports go to the controller */
    process_stop(&l->controller.process, grace_ms);
    process_stop_all(kill_now ? 0 : 1000);
    if (l->controller.dir[0] && hd_file_remove_tree(l->controller.dir))
        cli_note("heddle: %s", hd_err_message());
}

/* ---- the job ---- */

/* Returns whether this command has started an attempt, which may have trained. */
static bool has_begun(const struct local *l)
{
    char path[RUN_PATH_MAX + 32];

    (void)snprintf(path, sizeof path, "%s/1/attempt-%d", l->run.path, l->resumed_attempt + 1);
    return hd_file_exists(path);
}

/* Handles the controller's answer to a cancel request. If it was refused while an attempt runs,
 * keeps watching, because ranks may still write a checkpoint; otherwise the command ends
 * (on_local_tick). */
static void on_cancelled(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct local *l = hd_rpc_call_user(call);

    if (status && has_begun(l))
        cli_note("heddle: cannot stop the job: %s; Ctrl-C again kills it", message);
    else if (status)
        hd_err_save(hd_err(status, "%s", message), &l->unstoppable);
}

/* Cancels the job at the first signal; at the second one stops waiting for its end. SIGHUP (the
 * terminal hung up) is handled alike, so that trained steps are saved. */
static bool on_local_interrupt(void *user, int number, int count)
{
    Heddle__V1__CancelJobRequest request = HEDDLE__V1__CANCEL_JOB_REQUEST__INIT;
    struct local *l = user;
    static const struct hd_rpc_handler handler = {.on_done = on_cancelled};

    l->interrupted = l->interrupted ? l->interrupted : number;
    l->killed = count > 1;
    if (l->killed)
        return false;
    cli_note(
        "heddle: stopping the job; the ranks write a checkpoint first (Ctrl-C again kills them)");
    request.job = l->job;
    if (cli_begin_call(l->cli, "CancelJob", HD_RPC_UNARY, &request.base, &handler, l, NULL))
        cli_note("heddle: cannot stop the job: %s; Ctrl-C again kills it", hd_err_message());
    return true;
}

/* Fails the command if controller or daemon has ended; they are not restarted. */
static int on_local_tick(void *user)
{
    struct local *l = user;

    if (process_has_ended(&l->controller.process))
        return cli_fail(process_explain(&l->controller.process));
    if (process_has_ended(&l->daemon))
        return cli_fail(process_explain(&l->daemon));
    if (l->unstoppable.status)
        return cli_fail(hd_err_restore(&l->unstoppable));
    return CLI_CONTINUE;
}

/* Appends a command with the run's folder, such as "heddle local --resume DIR", followed by
 * `after`. */
static void add_command_line(const struct local *l, const char *verb, const char *after,
                             struct hd_text *out)
{
    hd_text_add(out, "%s ", verb);
    cli_add_quoted(out, l->run.path);
    hd_text_add(out, "%s", after);
}

static void note_command(const struct local *l, const char *verb, const char *after)
{
    struct hd_text line = {0};

    hd_text_add(&line, "  ");
    add_command_line(l, verb, after, &line);
    cli_note_text(&line);
}

/* Sets *ret_step to the step of the run's best checkpoint, and ret_loss to its validation loss; false:
 * the job keeps none, or it is the newest one. */
static bool find_best(const struct local *l, int64_t *ret_step, double *ret_loss)
{
    Heddle__V1__ListCheckpointsRequest request = HEDDLE__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    Heddle__V1__ListCheckpointsResponse *response = NULL;
    int64_t newest = 0;

    *ret_step = 0;
    request.job = l->job;
    if (!l->spec->checkpoint_best ||
        cli_try_call(l->cli, "ListCheckpoints", &request.base, &response))
        return false;
    for (size_t i = 0; i < response->n_checkpoints; i++) {
        const Heddle__V1__CheckpointInfo *c = response->checkpoints[i];

        newest = c->step > newest ? c->step : newest;
        if (c->best && c->_val_loss_case) {
            *ret_step = c->step;
            *ret_loss = c->val_loss;
        }
    }
    hd_rpc_message_free(&response->base);
    return *ret_step && *ret_step != newest;
}

/* Prints the duration, the commands to run next and, as the last line, the best checkpoint. */
static void print_end(struct local *l, int code, int64_t begin_ms)
{
    char span[HD_CLOCK_TEXT_MAX], more[64];
    struct hd_text resume = {0};
    int64_t best;
    double loss;

    hd_clock_format_span(hd_clock_now_ms() - begin_ms, span);
    if (code == CLI_OK && l->spec->distill_write) { /* it has no checkpoint */
        cli_note("heddle: took %s; a student reads the file with train.distill.teacher: %s/%llu",
                 span, l->run.path, (unsigned long long)l->job);
        return;
    }
    if (code == CLI_OK) {
        const bool has_best = find_best(l, &best, &loss);
        const bool writes = strcmp(l->spec->tokenizer, "none") != 0 && !hd_job_is_reward(l->spec);
        const bool chats = writes && *l->spec->template && hd_spec_has_conversations(l->spec);

        (void)snprintf(more, sizeof more, " --set train.steps=%lld", (long long)l->spec->steps * 2);
        cli_note("heddle: took %s; to train on%s:", span,
                 chats    ? ", or to talk to the model"
                 : writes ? ", or to see text from the model"
                          : "");
        note_command(l, "heddle local --resume", more);
        if (chats)
            note_command(l, "heddle chat", has_best ? " --step best" : "");
        else if (writes)
            note_command(l, "heddle generate",
                         has_best ? " --step best --prompt 'Once upon'" : " --prompt 'Once upon'");
        if (has_best)
            cli_note("heddle: the best checkpoint is that of step %lld, with a validation of %.4g; "
                     "--step best names it",
                     (long long)best, loss);
        return;
    }
    add_command_line(l, "heddle local --resume", "", &resume);
    cli_note("heddle: took %s; logs and checkpoints are in %s", span, l->run.path);
    if (!resume.failed)
        cli_print_next_commands_by(
            l->cli, code == CLI_JOB_FAILED || cli_is_interrupted(code) ? l->job : 0, resume.data);
    hd_text_free(&resume);
}

/* Submits the new job to the controller. */
static int submit_local(struct local *l)
{
    Heddle__V1__SubmitJobResponse *response = NULL;
    int code = cli_find_after(l->cli, l->spec);

    if (code == CLI_CONTINUE)
        code = cli_submit_spec(l->cli, l->spec, NULL, &response);
    if (code != CLI_CONTINUE)
        return code;
    l->job = response->job->job;
    hd_rpc_message_free(&response->base);
    return CLI_CONTINUE;
}

/* Fetches the job file of the run's only job, number 1, and applies the changes of --set. */
static int fetch_spec(struct local *l)
{
    Heddle__V1__GetJobRequest request = HEDDLE__V1__GET_JOB_REQUEST__INIT;
    Heddle__V1__GetJobResponse *response = NULL;
    enum hd_status st;

    l->job = request.job = 1;
    l->spec = hd_arena_alloc(&l->arena, sizeof *l->spec);
    st = l->spec ? cli_try_call(l->cli, "GetJob", &request.base, &response)
                 : hd_err(HD_NO_MEMORY, "no memory for a job");
    if (st == HD_NOT_FOUND || !st)
        st = check_job_folder(l->run.path, st ? NULL : response->job);
    if (!st) {
        l->resumed_attempt = response->job->attempt;
        st = cli_change_spec(response->job, &l->overrides, &l->arena, l->spec);
    }
    if (response)
        hd_rpc_message_free(&response->base);
    return st ? cli_fail(st) : CLI_CONTINUE;
}

static int resume(struct local *l)
{
    Heddle__V1__ResumeJobRequest request = HEDDLE__V1__RESUME_JOB_REQUEST__INIT;
    Heddle__V1__ResumeJobResponse *response = NULL;
    int code = fetch_spec(l);

    request.job = l->job;
    if (code == CLI_CONTINUE && l->overrides.count)
        code = cli_pack_spec(l->spec, &l->arena, &request.spec);
    if (code == CLI_CONTINUE)
        code = cli_call(l->cli, "ResumeJob", &request.base, &response);
    if (code == CLI_CONTINUE)
        hd_rpc_message_free(&response->base);
    return code;
}

/* Watches the job until it ends. */
static int watch(struct local *l)
{
    struct watch_options options = {.on_interrupt = on_local_interrupt,
                                    .on_tick = on_local_tick,
                                    .user = l,
                                    .job = l->job,
                                    .times = l->times,
                                    .log_every = l->log_every,
                                    .one_machine = true,
                                    .hold_ms = HOLD_MS,
                                    .directory = l->run.path,
                                    .resumed = l->resume != NULL,
                                    .resumed_attempt = l->resumed_attempt};
    char history[RUN_PATH_MAX + 32];
    int code;

    /* a resumed run rewrites the whole file: a killed run lacks its last lines */
    (void)snprintf(history, sizeof history, "%s/history.jsonl", l->run.path);
    options.history = fopen(history, l->resume ? "we" : "wex");
    if (!options.history)
        cli_note("heddle: cannot write %s: %s; the job runs, but its history is not kept", history,
                 strerror(errno));
    code = cli_watch_job(l->cli, &options);
    if (options.history)
        (void)fclose(options.history);
    return code;
}

/* Sets ret_text to the first record of a job whose checkpoints heddled copies, or if `problems` is
 * set to the first problem of such a job (daemon/agent/copies.h); false: there is none. */
static bool find_copies(const struct local *l, bool problems, struct hd_text *ret_text)
{
    char path[LOCAL_DIR_MAX + 300];
    const struct dirent *entry;
    bool found = false;
    DIR *dir;

    (void)snprintf(path, sizeof path, "%s/node/copies", l->controller.dir);
    dir = opendir(path);
    while (dir && !found && (entry = readdir(dir)))
        found = entry->d_name[0] != '.' && (strchr(entry->d_name, '.') != NULL) == problems &&
                snprintf(path, sizeof path, "%s/node/copies/%.200s", l->controller.dir,
                         entry->d_name) < (int)sizeof path;
    if (dir)
        (void)closedir(dir);
    hd_text_clear(ret_text);
    return found && !hd_file_read(path, HD_ERR_MAX + 8192, ret_text) && ret_text->data;
}

/* Waits until heddled has copied the last checkpoints (checkpoint.copy_to), which it does behind the
 * job. Ends at a failure, and at Ctrl-C. Returns whether all are copied. */
static bool await_copies(struct local *l)
{
    struct hd_text text = {0};
    bool told = false;
    bool left = find_copies(l, false, &text);

    catch_early_signals();
    cli_stopped_by = 0;
    for (; left && !cli_stopped_by; left = find_copies(l, false, &text)) {
        if (!told)
            cli_note("heddle: waits for the copies of checkpoints; Ctrl-C leaves them as they are");
        told = true;
        if (find_copies(l, true, &text))
            break;
        (void)nanosleep(&(struct timespec){.tv_nsec = COPIES_PAUSE_MS * 1000000L}, NULL);
    }
    if (left && find_copies(l, true, &text))
        cli_note("heddle: a checkpoint has no copy: %s", text.data);
    else if (left)
        cli_note("heddle: interrupted; checkpoints without a copy are copied when the run is "
                 "trained on (heddle local --resume %s --set train.steps=N)",
                 l->run.path);
    hd_text_free(&text);
    return !left;
}

static int run_job(struct local *l)
{
    const int64_t begin_ms = hd_clock_now_ms();
    enum hd_status st;
    int code;

    l->cli->controller = l->controller.address;
    code = cli_connect(l->cli);
    if (code == CLI_CONTINUE)
        code = l->resume ? resume(l) : submit_local(l);
    if (code != CLI_CONTINUE)
        return code;
    run_is_newest(&l->run, !l->resume);
    cli_note("heddle: job %s; its logs and checkpoints go to %s", l->spec->name, l->run.path);
    if (l->http)
        cli_note("heddle: dashboard at http://%s/", l->http);
    if (cli_stopped_by) {
        l->interrupted = cli_stopped_by;
        code = cli_exit_of_signal(l->interrupted);
    } else {
        st = start_daemon(l);
        code = st ? (cli_fail(st), CLI_FAILED) : watch(l);
        plot_write_loss(l->run.path, l->spec->name);
    }
    if (!l->killed && !await_copies(l) && code == CLI_OK)
        code = CLI_UNREACHABLE;
    if (l->interrupted && code != CLI_OK)
        code = cli_exit_of_signal(l->interrupted);
    print_end(l, code, begin_ms);
    return code;
}

static int run_local(struct local *l)
{
    enum hd_status st;
    int code = CLI_CONTINUE;

    if (!l->resume)
        code = cli_read_spec(l->cli->args[0], &l->overrides, &l->arena, &l->spec);
    if (code == CLI_CONTINUE && !l->resume)
        code = data_check_tokenizer(l->spec);
    if (code != CLI_CONTINUE)
        return code;
    catch_early_signals();
    st = start_run(l);
    if (!st)
        code = run_job(l);
    else if (st == HD_ABORTED && cli_stopped_by)
        code = cli_exit_of_signal(cli_stopped_by);
    else
        code = (cli_fail(st), l->run.lock < 0 ? cli_exit_of(st) : CLI_FAILED);
    /* the event loop's signal watchers are closed; keep signals from ending the cleanup */
    catch_early_signals();
    cli_disconnect(l->cli);
    stop_cluster(l, l->killed);
    /* no job was made: the folder holds only the controller's files */
    if (st == HD_ABORTED && !l->resume)
        run_discard(&l->run);
    if (st == HD_ABORTED)
        cli_note("heddle: interrupted before the job was submitted; nothing was trained");
    run_close(&l->run);
    return code;
}

static int check_local_flags(const struct local *l)
{
    const int files = l->cli->arg_count;

    if (l->clean && l->resume)
        return cli_usage("local: --clean and --resume: give one of them");
    if (!l->clean && (l->keep >= 0 || l->yes))
        return cli_usage("local: --keep and --yes are flags of local --clean");
    if (l->http && (hd_rpc_address_is_unix(l->http) || hd_rpc_check_address(l->http) ||
                    !hd_rpc_address_is_loopback(l->http)))
        return cli_usage(
            "local: --http: %s is no HOST:PORT of this machine alone; without tokens "
            "the dashboard is for 127.0.0.1 or localhost only, such as 127.0.0.1:9460; "
            "from elsewhere: ssh -L 9460:127.0.0.1:9460 MACHINE",
            l->http);
    if (l->clean &&
        (l->dir || l->http || l->overrides.count || l->times || l->log_every || l->isolation))
        return cli_usage("local: --clean takes a folder of runs or a job file, --state-dir, --keep "
                         "and --yes only");
    if (l->resume && l->dir)
        return cli_usage("local: --dir names the folder of a new run; leave it out with --resume");
    if (l->resume && files)
        return cli_usage("local: --resume goes on with the job file as it was; leave %s out, or "
                         "change keys with --set",
                         l->cli->args[0]);
    if (!l->resume && !l->clean && !files)
        return cli_usage("local: the job file is missing; see heddle local --help");
    return CLI_CONTINUE;
}

static int cli_local(struct cli *cli, int argc, char **argv)
{
    struct local *l = calloc(1, sizeof *l);
    int code;

    if (!l)
        return cli_fail(hd_err(HD_NO_MEMORY, "no memory to start a job"));
    l->cli = cli;
    l->run.lock = -1;
    l->keep = -1;
    hd_arena_init(&l->arena, 0);
    {
        const struct cli_flag flags[] = {
            {"set", 0, CLI_FLAG_LIST, &l->overrides, "KEY=VALUE",
             .help = "in place of what the file says, such as train.steps=100;\n"
                     "with --resume as in heddle resume"},
            {"dir", 0, CLI_FLAG_TEXT, &l->dir, "NAME",
             .help = "the run's folder, or its path; else a new name"},
            {"state-dir", 0, CLI_FLAG_TEXT, &l->state_dir, "DIR",
             .help = "where run folders are; else heddle-runs beside FILE"},
            {"keep", 0, CLI_FLAG_INT, &l->keep, "N", .min = 0, .max = INT32_MAX,
             .help = "--clean keeps the newest N; else 1"},
            {"yes", 'y', CLI_FLAG_BOOL, &l->yes, .help = "--clean does not ask"},
            {"isolation", 0, CLI_FLAG_TEXT, &l->isolation, "WORD", .choices = "try|require|off",
             .help = "of the ranks, as of heddled: try, require or off"},
            {"http", 0, CLI_FLAG_TEXT, &l->http, "HOST:PORT",
             .help = "a dashboard there while it runs, such as 127.0.0.1:9460"},
            {"log-every", 0, CLI_FLAG_INT, &l->log_every, "N", .min = 0, .max = INT32_MAX,
             .joins = true},
            {"times", 0, CLI_FLAG_BOOL, &l->times, .joins = true},
            {"-o jsonl", .kind = CLI_FLAG_NOTE, .help = "as of heddle watch"},
            {"resume", 0, CLI_FLAG_TEXT, &l->resume, "RUN|FILE", .help = NULL},
            {"clean", 0, CLI_FLAG_BOOL, &l->clean, .help = NULL},
        };

        code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 0, 1);
    }
    if (code == CLI_CONTINUE)
        code = check_local_flags(l);
    if (code == CLI_CONTINUE && l->clean)
        code =
            runs_clean(cli, &(struct clean_options){.where = cli->arg_count ? cli->args[0] : NULL,
                                                    .state_dir = l->state_dir,
                                                    .keep = l->keep < 0 ? 1 : l->keep,
                                                    .yes = l->yes});
    else if (code == CLI_CONTINUE)
        code = run_local(l);
    hd_arena_done(&l->arena);
    free(l);
    return code;
}

const struct cli_body cli_body_local = {
    .usage = "Usage: heddle local FILE [--set KEY=VALUE]... [--dir NAME] [--state-dir DIR]\n"
             "                    [--log-every N] [--times] [-o FORMAT]\n"
             "       heddle local --resume RUN|FILE [--set KEY=VALUE]... [...]\n"
             "       heddle local --clean [DIR|FILE] [--keep N] [--yes] [-o FORMAT]\n",
    .about = "Runs a job on this machine, with a controller and a daemon of its own. Ends with\n"
             "the job's exit code and leaves no process. Ctrl-C writes a checkpoint and stops\n"
             "the job, a second Ctrl-C kills it. The run's folder keeps logs, checkpoints and\n"
             "history.jsonl. --resume goes on from its newest sound checkpoint (FILE: of its\n"
             "newest run). --clean removes runs that are not in use, and asks first.\n",
    .examples = "heddle local --resume heddle-runs/latest --set train.steps=2000",
    .run = cli_local,
};
