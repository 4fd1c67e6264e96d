#include "controller/cli/run_control.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/file.h"
#include "controller/cli/local_controller.h"
#include "controller/cli/runs.h"

enum {
    LINK_MS = 5000, /* wait for the link of a run that has just begun, ms */
    LINK_PAUSE_MS = 50,
};

struct run_control {
    struct local_controller own; /* controller of an ended run; process.pid 0: none */
    char address[LOCAL_DIR_MAX + 64];
    int lock; /* descriptor of the marker of an ended run, with a shared lock; -1: none */
};

bool run_control_is_run(const char *path)
{
    char marker[PATH_MAX];
    const bool fits = snprintf(marker, sizeof marker, "%s/" RUN_MARKER, path) < (int)sizeof marker;

    if (fits && hd_file_exists(marker))
        return true;
    /* the job's folder in it */
    return snprintf(marker, sizeof marker, "%s/../" RUN_MARKER, path) < (int)sizeof marker &&
           hd_file_is_dir(path) && hd_file_exists(marker);
}

/* ---- a run that is under way ---- */

/* Sets the address of the run's own controller, to which the link in its folder leads. */
static enum hd_status read_link(const char *run, struct run_control *control)
{
    const int64_t end_ms = hd_clock_now_ms() + LINK_MS;
    char link[RUN_PATH_MAX + 32], socket[LOCAL_DIR_MAX + 32];
    ssize_t n;

    (void)snprintf(link, sizeof link, "%s/" RUN_CONTROL_LINK, run);
    while ((n = readlink(link, socket, sizeof socket - 1)) <= 0 && hd_clock_now_ms() < end_ms)
        (void)nanosleep(&(struct timespec){.tv_nsec = LINK_PAUSE_MS * 1000000L}, NULL);
    if (n <= 0)
        return hd_err(
            HD_UNAVAILABLE,
            "%s is in use, and has no link %s to its controller; try again when its heddle "
            "local has ended",
            run, RUN_CONTROL_LINK);
    socket[n] = '\0';
    (void)snprintf(control->address, sizeof control->address, "unix:%s", socket);
    return HD_OK;
}

/* ---- a run that has ended ---- */

/* Copies a file of the run's records to the private folder. HD_NOT_FOUND: the run has none. */
static enum hd_status copy_record(const char *run, const char *dir, const char *name)
{
    char from[RUN_PATH_MAX + 64], to[LOCAL_DIR_MAX + 64];

    (void)snprintf(from, sizeof from, "%s/state/%s", run, name);
    (void)snprintf(to, sizeof to, "%s/state/%s", dir, name);
    return hd_file_copy(from, to, 0600);
}

/* Copies the records, with what the database had not taken in when its controller was killed. */
static enum hd_status copy_records(const char *run, const char *dir)
{
    static const char *const others[] = {"state.db-wal", "epoch"};
    char state[LOCAL_DIR_MAX + 32];
    enum hd_status st;

    (void)snprintf(state, sizeof state, "%s/state", dir);
    if (mkdir(state, 0700) < 0)
        return hd_err(HD_IO, "cannot create %s: %s", state, strerror(errno));
    st = copy_record(run, dir, "state.db");
    if (st == HD_NOT_FOUND)
        st = hd_err(HD_NOT_FOUND,
                    "%s has no records of its job (state/state.db): it ended before its job had "
                    "begun, or they were removed; its logs are in %s/1/attempt-*/logs",
                    run, run);
    for (size_t i = 0; !st && i < sizeof others / sizeof others[0]; i++) {
        st = copy_record(run, dir, others[i]);
        if (st == HD_NOT_FOUND)
            st = HD_OK;
    }
    return st;
}

static enum hd_status start_own(const char *run, struct run_control *control)
{
    static const volatile sig_atomic_t never; /* Ctrl-C ends this process, and with it the child */
    char state[LOCAL_DIR_MAX + 32], log[LOCAL_DIR_MAX + 32];
    const struct local_controller_options options = {
        .state_dir = state, .jobs_dir = run, .log = log};
    enum hd_status st = local_controller_make_dir(&control->own);

    (void)snprintf(state, sizeof state, "%s/state", control->own.dir);
    (void)snprintf(log, sizeof log, "%s/controller.log", control->own.dir);
    if (!st)
        st = copy_records(run, control->own.dir);
    if (!st)
        st = local_controller_start(&control->own, &options);
    if (!st)
        st = local_controller_await(&control->own, &never);
    if (!st)
        (void)snprintf(control->address, sizeof control->address, "%s", control->own.address);
    return st;
}

/* ---- both ---- */

/* Takes a shared lock of the run's marker, so that several commands may look at a run that has ended
 * while none can resume or remove it. Returns false if the run is under way; without a lock, on an
 * error, it counts as ended. */
static bool lock_ended(const char *run, int *ret_lock)
{
    char marker[RUN_PATH_MAX + 32];
    int fd;

    (void)snprintf(marker, sizeof marker, "%s/" RUN_MARKER, run);
    fd = open(marker, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return true;
    if (flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
        (void)close(fd);
        return false;
    }
    *ret_lock = fd;
    return true;
}

static enum hd_status reach_run(const char *target, struct run_control *control)
{
    char path[RUN_PATH_MAX];
    enum hd_status st = run_find(target, path);

    if (st)
        return st;
    return lock_ended(path, &control->lock) ? start_own(path, control) : read_link(path, control);
}

int run_control_connect(struct cli *cli, const char *target)
{
    enum hd_status st;

    if (cli->client)
        return cli_usage("%s: %s is a run of heddle local, which has a controller of its own: give "
                         "it alone",
                         cli->command->name, target);
    if (cli->controller)
        return cli_usage(
            "%s: %s is a run of heddle local, which has a controller of its own: leave "
            "--controller out",
            cli->command->name, target);
    cli->run = calloc(1, sizeof *cli->run);
    if (!cli->run)
        return cli_fail(hd_err(HD_NO_MEMORY, "no memory for a run"));
    cli->run->lock = -1;
    st = reach_run(target, cli->run);
    if (st)
        return cli_fail(st);
    cli->controller = cli->run->address;
    return cli_connect(cli);
}

void run_control_end(struct cli *cli)
{
    struct run_control *control = cli->run;

    if (!control)
        return;
    process_stop(&control->own.process, 0); /* it works on a copy: no need to let it finish */
    if (*control->own.dir)
        (void)hd_file_remove_tree(control->own.dir); /* the next command that makes one retries */
    if (control->lock >= 0)
        (void)close(control->lock);
    free(control);
    cli->run = NULL;
}
