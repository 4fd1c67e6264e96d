/* heddle-launcher: starts supervisors in systemd units of their own, for heddled.
 *
 * Why: the processes of a service share its control group and sandbox, and systemd ends them with
 * the service. Ranks must outlive heddled, and need what heddled's sandbox forbids. So this small
 * program, the only one that may request units from the system's systemd, has systemd start each
 * supervisor as a transient service `heddle-job-JOB-attempt-ATTEMPT` in heddle.slice, with
 * systemd-run.
 *
 * What it does not do: it starts no program but heddle-supervisor from its own folder, as no user
 * but the one that it serves and those of --job-users (users.h); it opens no file that a request
 * names, and keeps no state. Without --job-users a request gives heddled's user nothing but the
 * unit that it could not do by itself.
 *
 * It serves one request at a time: a start takes some ten milliseconds. Used by: heddled.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/process.h"
#include "daemon/launcher/request.h"
#include "daemon/launcher/users.h"
#include "flags/flags.h"
#include "version/version.h"

extern char **environ;

enum {
    EXIT_USAGE = 2,
    EXIT_CANNOT = 6,
    NETWORKS_MAX = 32,
    REQUEST_MS = 2000, /* time until a request is complete */
    START_MS = 10000,  /* timeout of systemd-run */
    TEXTS_MAX = REQUEST_GPUS_MAX + 8,
    WORDS_MAX = REQUEST_ARGS_MAX + 2 * REQUEST_ENV_MAX + REQUEST_GPUS_MAX + NETWORKS_MAX + 48,
};

static const char usage[] =
    "Usage: heddle-launcher [--for USER] [--listen PATH] [OPTION]...\n"
    "\n"
    "heddle-launcher: starts heddle-supervisor in a unit of its own, for heddled\n"
    "\n"
    "  --for USER          user who may send requests, and as which supervisors run; not\n"
    "                      root (default: heddle)\n"
    "  --job-users LIST    further users as which jobs may run, where the policy of the\n"
    "                      controller says so: names, @GROUP, or all (except system users),\n"
    "                      separated by commas (default: no other user)\n"
    "  --listen PATH       Unix socket to create (default: the one that systemd passes)\n"
    "  --data-networks LIST addresses that jobs may reach besides this machine, such as\n"
    "                      10.0.0.0/8,fd00::/8: those of the other nodes (default: all)\n"
    "  --systemd-run PATH  program that starts units (default: /usr/bin/systemd-run)\n"
    "  --systemctl PATH    program that ends units (default: /usr/bin/systemctl)\n"
    "  --help, --version\n"
    "\n"
    "heddle-launcher.socket starts it; there is no need to call it by hand.\n"
    "\n"
    "Example:\n"
    "  heddle-launcher --for heddle --listen /run/heddle-launcher.sock\n";

struct launcher {
    const char *user, *listen, *systemd_run, *systemctl;
    struct launch_users users; /* users as which jobs may run, besides `user` */
    uid_t uid;
    gid_t gid;
    char networks[NETWORKS_MAX][96]; /* arguments such as "--property=IPAddressAllow=10.0.0.0/8" */
    int network_count;
    char supervisor[PATH_MAX];
    int listen_fd;
    char request[REQUEST_BYTES_MAX + 1];
};

/* ---- one request ------------------------------------------------------------------------------*/

static enum hd_status check_caller(const struct launcher *l, int fd)
{
    struct ucred who;
    socklen_t size = sizeof who;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0)
        return hd_err(HD_IO, "cannot identify the caller: %s", strerror(errno));
    if (who.uid != l->uid)
        return hd_err(HD_DENIED, "only %s may ask, not uid %u", l->user, (unsigned)who.uid);
    return HD_OK;
}

static enum hd_status read_request(struct launcher *l, int fd, size_t *ret_count)
{
    const int64_t end_ms = hd_clock_now_ms() + REQUEST_MS;
    size_t count = 0;

    for (;;) {
        struct pollfd poller = {.fd = fd, .events = POLLIN};
        const int64_t left_ms = end_ms - hd_clock_now_ms();
        ssize_t n;

        if (left_ms <= 0 || poll(&poller, 1, (int)left_ms) <= 0)
            return hd_err(HD_TIMEOUT, "the request did not arrive in time");
        n = read(fd, l->request + count, sizeof l->request - count);
        if (n == 0)
            break;
        if (n < 0 && errno != EINTR)
            return hd_err(HD_IO, "cannot read the request: %s", strerror(errno));
        count += n > 0 ? (size_t)n : 0;
        if (count == sizeof l->request)
            return hd_err(HD_LIMIT, "the request is too large");
    }
    l->request[count] = '\0';
    *ret_count = count;
    return HD_OK;
}

/* Adds the devices of a unit, which has /dev/null and similar ones by default: for a job on GPUs
 * its GPUs, those of the driver, and RDMA adapters. */
static int add_devices(const struct launch_request *r, char (*texts)[128], char **words, int n)
{
    static const char *const shared[] = {"--property=DeviceAllow=/dev/nvidiactl rw",
                                         "--property=DeviceAllow=char-nvidia-uvm rw",
                                         "--property=DeviceAllow=char-nvidia-caps* rw",
                                         "--property=DeviceAllow=char-infiniband_verbs rw"};

    for (int i = 0; i < r->gpu_count; i++) {
        const bool all = strcmp(r->gpus[i], "all") == 0;

        (void)snprintf(texts[i], sizeof texts[i], "--property=DeviceAllow=%s rw",
                       all ? "char-nvidia*" : r->gpus[i]);
        words[n++] = texts[i];
    }
    for (size_t i = 0; r->gpu_count && i < sizeof shared / sizeof shared[0]; i++)
        words[n++] = (char *)shared[i];
    return n;
}

/* Limits the addresses that a unit can reach to --data-networks and this machine, if that is given.
 */
static int add_networks(const struct launcher *l, char **words, int n)
{
    if (!l->network_count)
        return n;
    words[n++] = (char *)"--property=IPAddressDeny=any";
    words[n++] = (char *)"--property=IPAddressAllow=localhost";
    for (int i = 0; i < l->network_count; i++)
        words[n++] = (char *)l->networks[i];
    return n;
}

/* Fills in the arguments of systemd-run. texts: memory for arguments that are made here. */
static void fill_words(const struct launcher *l, const struct launch_request *r,
                       const struct launch_user *as, char texts[TEXTS_MAX][128],
                       char *words[WORDS_MAX])
{
    static const char *const fixed[] = {
        "--quiet", "--collect", "--service-type=exec", "--slice=heddle.slice",
        /* KillMode=mixed: only the supervisor gets SIGTERM, and ends its ranks in order */
        "--property=KillMode=mixed", "--property=TimeoutStopSec=90",
        "--property=OOMPolicy=continue", "--property=LimitNOFILE=65536",
        "--property=LimitMEMLOCK=infinity", "--property=TasksMax=infinity",
        "--property=NoNewPrivileges=yes", "--property=StandardOutput=null",
        "--property=StandardError=journal",
        /* After=: at shutdown ranks end before the jobs directory and the network are stopped */
        "--property=After=remote-fs.target", "--property=After=network.target",
        /* the supervisor limits its ranks in a subgroup of the unit's group */
        "--property=Delegate=memory pids cpuset", "--property=DevicePolicy=closed"};
    int n = 0;

    words[n++] = (char *)l->systemd_run;
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        words[n++] = (char *)fixed[i];
    (void)snprintf(texts[0], sizeof texts[0], "--unit=heddle-job-%" PRId64 "-attempt-%" PRId64,
                   r->job, r->attempt);
    (void)snprintf(texts[1], sizeof texts[1], "--uid=%u", (unsigned)as->uid);
    (void)snprintf(texts[2], sizeof texts[2], "--gid=%u", (unsigned)as->gid);
    (void)snprintf(texts[3], sizeof texts[3], "--property=UMask=%s", r->umask);
    for (int i = 0; i < 4; i++)
        words[n++] = texts[i];
    n = add_devices(r, texts + 4, words, n);
    n = add_networks(l, words, n);
    for (int i = 0; i < r->env_count; i++) {
        words[n++] = (char *)"--setenv";
        words[n++] = (char *)r->env[i];
    }
    words[n++] = (char *)"--";
    words[n++] = (char *)l->supervisor;
    for (int i = 0; i < r->arg_count; i++)
        words[n++] = (char *)r->args[i];
    words[n] = NULL;
}

/* Refuses arguments that systemd would change: it replaces $NAME and %x in commands. */
static enum hd_status check_words(const struct launch_request *r)
{
    for (int i = 0; i < r->arg_count; i++)
        if (strpbrk(r->args[i], "$%"))
            return hd_err(HD_INVALID,
                          "systemd would change the argument %.200s; use no $ and %% in "
                          "paths",
                          r->args[i]);
    return HD_OK;
}

/* Waits until a program ends, and copies the first line of its output. Kills it after START_MS. */
static enum hd_status wait_for(pid_t pid, int fd, const char *name, char *ret_output, size_t size)
{
    struct hd_text text = {0};
    int status;
    enum hd_status st = hd_child_wait(pid, fd, START_MS, size - 1, &text, &status);

    (void)snprintf(ret_output, size, "%.*s", (int)strcspn(text.data ? text.data : "", "\n"),
                   text.data ? text.data : "");
    hd_text_free(&text);
    if (st)
        return hd_err_prefix(st, "%s", name);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return HD_OK;
    return hd_err(HD_IO, "%s: %s", name,
                  *ret_output ? ret_output : "it failed and did not say why");
}

/* Runs systemd-run or systemctl; *ret_output: the first line of its output. */
static enum hd_status run(char **words, char *ret_output, size_t size)
{
    posix_spawn_file_actions_t actions;
    enum hd_status st;
    int fds[2], error;
    pid_t pid;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return hd_err(HD_IO, "cannot make a pipe: %s", strerror(errno));
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_adddup2(&actions, fds[1], 1);
    (void)posix_spawn_file_actions_adddup2(&actions, fds[1], 2);
    error = posix_spawn(&pid, words[0], &actions, NULL, words, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(fds[1]);
    if (error)
        st = hd_err(HD_IO, "cannot run %s: %s", words[0], strerror(error));
    else
        st = wait_for(pid, fds[0], words[0], ret_output, size);
    (void)close(fds[0]);
    return st;
}

/* Finds the user of a request; without one: heddled's own. */
static enum hd_status find_as(const struct launcher *l, const struct launch_request *r,
                              struct launch_user *ret_as)
{
    *ret_as = (struct launch_user){.uid = l->uid, .gid = l->gid};
    return r->user ? users_find(&l->users, r->user, ret_as) : HD_OK;
}

static enum hd_status start(const struct launcher *l, const struct launch_request *r)
{
    char texts[TEXTS_MAX][128], output[512] = "", *words[WORDS_MAX];
    struct launch_user as;
    enum hd_status st = check_words(r);

    if (!st)
        st = find_as(l, r, &as);
    if (st)
        return st;
    fill_words(l, r, &as, texts, words);
    return run(words, output, sizeof output);
}

/* Sends the signal to the attempt's unit if it has processes. A unit of a supervisor is unloaded
 * when its last process ends (--collect), and is then inactive. */
static enum hd_status end_unit(const struct launcher *l, const struct launch_request *r,
                               bool *ret_gone)
{
    char unit[96], signal[24], output[512] = "";
    char *show[] = {(char *)l->systemctl, (char *)"show", (char *)"--property=ActiveState",
                    (char *)"--value",    unit,           NULL};
    char *end[] = {(char *)l->systemctl, (char *)"kill", signal, unit, NULL};
    enum hd_status st;

    (void)snprintf(unit, sizeof unit, "heddle-job-%" PRId64 "-attempt-%" PRId64 ".service", r->job,
                   r->attempt);
    (void)snprintf(signal, sizeof signal, "--signal=SIG%s", r->signal);
    st = run(show, output, sizeof output);
    *ret_gone = !st && (strcmp(output, "inactive") == 0 || strcmp(output, "failed") == 0);
    return st || *ret_gone || strcmp(r->signal, "0") == 0 ? st : run(end, output, sizeof output);
}

/* Executes the request; *ret_words: text of the reply after "ok". */
static enum hd_status carry_out(const struct launcher *l, const struct launch_request *r,
                                char *ret_words, size_t size)
{
    struct launch_user as;
    bool gone = false;
    enum hd_status st;

    switch (r->deed) {
    case REQUEST_FIND:
        st = find_as(l, r, &as);
        if (!st)
            (void)snprintf(ret_words, size, " %u", (unsigned)as.uid);
        return st;
    case REQUEST_KILL:
        st = end_unit(l, r, &gone);
        (void)snprintf(ret_words, size, "%s", gone ? " gone" : "");
        return st;
    case REQUEST_ABOUT:
        (void)snprintf(ret_words, size, " %.512s", *l->users.list ? l->users.list : "own");
        return HD_OK;
    default:
        return start(l, r);
    }
}

static void log_done(const struct launch_request *r)
{
    if (r->deed == REQUEST_START)
        hd_log(HD_LOG_INFO, "job %" PRId64 " attempt %" PRId64 ": started as %s", r->job,
               r->attempt, r->user ? r->user : "the user of heddled");
    else if (r->deed == REQUEST_KILL && strcmp(r->signal, "0") != 0)
        hd_log(HD_LOG_INFO, "job %" PRId64 " attempt %" PRId64 ": SIG%s", r->job, r->attempt,
               r->signal);
}

static void serve_one(struct launcher *l, int fd)
{
    struct launch_request r = {0};
    char answer[REQUEST_ANSWER_MAX], words[640] = "";
    size_t count = 0;
    /* read before all checks: closing a socket with unread bytes would discard the reply */
    enum hd_status st = read_request(l, fd, &count);

    if (!st)
        st = check_caller(l, fd);
    if (!st)
        st = request_read(l->request, count, &r);
    if (!st)
        st = carry_out(l, &r, words, sizeof words);
    if (st)
        hd_log(HD_LOG_WARN, "refused or failed: %s", hd_err_message());
    else
        log_done(&r);
    if (st)
        (void)snprintf(answer, sizeof answer, "%s %.900s\n",
                       st == HD_DENIED || st == HD_NOT_FOUND ? "refused" : "error",
                       hd_err_message());
    else
        (void)snprintf(answer, sizeof answer, "ok%s\n", words);
    for (char *c = answer; *c && c[1]; c++)
        *c = *c == '\n' ? ' ' : *c;
    (void)send(fd, answer, strlen(answer), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---- start ------------------------------------------------------------------------------------*/

/* Takes the socket that systemd passes (LISTEN_FDS), or opens one at `listen` for the user alone.
 */
static enum hd_status open_socket(struct launcher *l)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *fds = getenv("LISTEN_FDS"), *pid = getenv("LISTEN_PID");
    mode_t old;

    if (!l->listen) {
        if (!fds || strcmp(fds, "1") != 0 || !pid || atoi(pid) != getpid())
            return hd_err(HD_INVALID, "systemd has passed no socket; give --listen PATH");
        l->listen_fd = 3;
        (void)fcntl(l->listen_fd, F_SETFD, FD_CLOEXEC);
        return HD_OK;
    }
    if (strlen(l->listen) >= sizeof address.sun_path)
        return hd_err(HD_INVALID, "--listen: the path is too long");
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", l->listen);
    l->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)unlink(l->listen);
    old = umask(0177);
    if (l->listen_fd < 0 ||
        bind(l->listen_fd, (const struct sockaddr *)&address, sizeof address) < 0 ||
        chown(l->listen, l->uid, (gid_t)-1) < 0 || listen(l->listen_fd, 16) < 0)
        return hd_err(HD_IO, "cannot listen at %s: %s", l->listen, strerror(errno));
    (void)umask(old);
    return HD_OK;
}

static enum hd_status find_user(struct launcher *l)
{
    const struct passwd *entry = getpwnam(l->user);

    if (!entry)
        return hd_err(HD_NOT_FOUND, "--for: there is no user %s", l->user);
    if (entry->pw_uid == 0)
        return hd_err(HD_INVALID, "--for: ranks never run as root");
    l->uid = l->users.own = entry->pw_uid;
    l->gid = entry->pw_gid;
    return HD_OK;
}

static enum hd_status read_networks(const char *list, void *into)
{
    struct launcher *l = into;

    while (*list) {
        const size_t n = strcspn(list, ",");

        if (!n || n > 64 || strspn(list, "0123456789abcdefABCDEF.:/") != n)
            return hd_err(HD_INVALID, "%.64s is no list such as 10.0.0.0/8", list);
        if (l->network_count == NETWORKS_MAX)
            return hd_err(HD_LIMIT, "more than %d", NETWORKS_MAX);
        (void)snprintf(l->networks[l->network_count++], sizeof l->networks[0],
                       "--property=IPAddressAllow=%.*s", (int)n, list);
        list += n + (list[n] == ',');
    }
    return HD_OK;
}

/* The unit has --for, and an administrator's arguments follow it. */
static enum hd_status read_options(int argc, char **argv, struct launcher *l)
{
    struct hd_flag f[] = {HD_FLAG_TEXT("--for", l->user),
                          HD_FLAG_TEXT("--listen", l->listen),
                          HD_FLAG_TEXT("--systemd-run", l->systemd_run),
                          HD_FLAG_TEXT("--systemctl", l->systemctl),
                          HD_FLAG_TEXT("--job-users", l->users.list),
                          HD_FLAG_READ("--data-networks", read_networks, *l)};
    enum hd_status st;

    *l = (struct launcher){.user = "heddle",
                           .systemd_run = "/usr/bin/systemd-run",
                           .systemctl = "/usr/bin/systemctl",
                           .users = {.list = ""}};
    st = HD_FLAGS_READ_LAST(argc, argv, f);
    return st ? st : users_check_list(l->users.list);
}

static volatile sig_atomic_t stopped;

static void on_stop(int number)
{
    (void)number;
    stopped = 1;
}

static void serve(struct launcher *l)
{
    /* no SA_RESTART: so that accept returns */
    const struct sigaction action = {.sa_handler = on_stop};

    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
    hd_notify_ready();
    while (!stopped) {
        const int fd = accept4(l->listen_fd, NULL, NULL, SOCK_CLOEXEC);

        if (fd < 0) {
            if (errno != EINTR)
                (void)usleep(100000);
            continue;
        }
        serve_one(l, fd);
        (void)close(fd);
    }
    hd_notify_stopping();
}

int main(int argc, char **argv)
{
    static struct launcher l;
    enum hd_status st;
    int answered;

    if (!hd_process_prepare_or_tell("heddle-launcher",
                                    &(struct hd_process_needs){.files = 24, .threads = 0}))
        return EXIT_FAILURE;
    hd_log_init("heddle-launcher", HD_LOG_INFO);
    hd_file_ignore_size_signal();
    answered = hd_flags_answer(argc, argv, usage, "heddle-launcher", hd_version_text);
    if (answered)
        return answered < 0 ? EXIT_CANNOT : EXIT_SUCCESS;
    st = read_options(argc - 1, argv + 1, &l);
    if (!st)
        st = find_user(&l);
    if (!st)
        st = hd_process_find_beside("heddle-supervisor", l.supervisor);
    if (!st)
        st = open_socket(&l);
    if (st) {
        hd_log(HD_LOG_ERROR, "%s", hd_err_message());
        return st == HD_IO ? EXIT_CANNOT : EXIT_USAGE;
    }
    serve(&l);
    return EXIT_SUCCESS;
}
