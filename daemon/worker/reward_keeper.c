#include "worker/reward_keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "worker/reward_program.h"

enum { MESSAGE_MAX = 512, KEEPER_FD = 3, STOP_TRIES = 1000, STOP_MS = 10 };
static const double first_s = 60; /* a program's first answer may take this much longer */

struct reward_keeper {
    pid_t pid;
    int socket;
    int64_t count; /* lines of the rating under way; 0: none */
};

/* A rating, as it travels: this, then the lines, each with its NUL. */
struct rating_head {
    int64_t index, count, size_bytes;
};

/* Its result: this, then `count` rewards. */
struct result_head {
    int32_t status, reserved;
    int64_t count;
    char message[MESSAGE_MAX];
};

/* Sends all of it; returns false if the keeper is gone, which then raises no SIGPIPE. */
static bool send_all(int socket, const void *bytes, size_t size_bytes)
{
    const char *at = bytes;

    while (size_bytes) {
        const ssize_t n = send(socket, at, size_bytes, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        at += n;
        size_bytes -= (size_t)n;
    }
    return true;
}

/* Reads all of it. Returns false at the end of the stream. */
static bool read_all(int fd, void *ret_bytes, size_t size_bytes)
{
    char *at = ret_bytes;

    while (size_bytes) {
        const ssize_t n = read(fd, at, size_bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        size_bytes -= (size_t)n;
    }
    return true;
}

/* ---- in the keeper ---- */

struct kept_programs {
    const struct hd_rewards *rewards;
    struct reward_bounds bounds[HD_REWARDS_MAX];
    struct reward_program *programs[HD_REWARDS_MAX];
};

/* Makes the control group of a program, with its limits; without one, what else bounds it. Before the keeper is
 * in its sandbox, which keeps it from groups. */
static void bound_program(struct kept_programs *k, int64_t rank, int64_t index)
{
    const struct hd_reward *reward = &k->rewards->list[index];
    struct reward_bounds *b = &k->bounds[index];
    struct hd_cgroup group;
    char name[64];
    enum hd_status st;

    /* a rank may have a keeper for each of several lists: ending a program ends its whole group */
    (void)snprintf(name, sizeof name, "rewards-%lld-%lld-%lld", (long long)rank, (long long)index,
                   (long long)getpid());
    st = hd_cgroup_open_beside(name, &group);
    if (!st)
        st = hd_cgroup_limit(&group, reward->memory_bytes, reward->processes, NULL);
    if (!st && reward->cpus > 0)
        st = hd_cgroup_limit_cpu(&group, reward->cpus);
    *b = (struct reward_bounds){.group = {-1, -1, -1, -1}};
    if (group.dir_fd >= 0)
        b->group = hd_cgroup_open_files(&group);
    if (b->group.procs < 0 || !(group.has & HD_CGROUP_MEMORY))
        b->data_bytes = reward->memory_bytes;
    if (st && (reward->memory_bytes || reward->processes || reward->cpus > 0))
        hd_log(HD_LOG_WARN,
               "reward %s: %s; so `memory` bounds each process of the program alone (RLIMIT_DATA), "
               "and `processes` and `cpus` may bound nothing",
               reward->name, hd_err_message());
    hd_cgroup_close(&group);
}

static enum hd_status rate_lines(struct kept_programs *k, const struct rating_head *head,
                                 char *bytes, double *ret_rewards)
{
    const struct hd_reward *reward = &k->rewards->list[head->index];
    const char **lines = calloc((size_t)head->count + 1, sizeof *lines);
    enum hd_status st = HD_OK;

    if (!lines)
        return hd_err(HD_NO_MEMORY, "no memory for answers");
    for (int64_t i = 0; i < head->count; i++) {
        lines[i] = bytes;
        bytes += strlen(bytes) + 1;
    }
    if (!k->programs[head->index])
        st =
            reward_program_new(reward, first_s, &k->bounds[head->index], &k->programs[head->index]);
    if (!st)
        st = reward_program_rate(k->programs[head->index], lines, head->count, KEEPER_FD,
                                 ret_rewards);
    free(lines);
    return st;
}

/* Answers one request; returns false when the rank is gone. */
static bool answer_rank(struct kept_programs *k, int socket, enum hd_status entered,
                        const char *why)
{
    struct rating_head head;
    struct result_head result = {0};
    double *rewards;
    char *bytes;
    bool ok;
    enum hd_status st = entered;

    if (!read_all(socket, &head, sizeof head))
        return false;
    bytes = malloc((size_t)head.size_bytes + 1);
    rewards = calloc((size_t)head.count + 1, sizeof *rewards);
    ok = bytes && rewards && read_all(socket, bytes, (size_t)head.size_bytes);
    if (ok && !st)
        st = rate_lines(k, &head, bytes, rewards);
    if (ok) {
        result.status = (int32_t)st;
        result.count = head.count;
        if (st)
            (void)snprintf(result.message, sizeof result.message, "%s",
                           entered ? why : hd_err_message());
        ok = !hd_file_write_all(socket, &result, sizeof result) &&
             !hd_file_write_all(socket, rewards, (size_t)head.count * sizeof *rewards);
    }
    free(bytes);
    free(rewards);
    return ok;
}

static _Noreturn void keep(const struct hd_rewards *rewards, int64_t rank, int socket, pid_t parent,
                           enum hd_status (*enter)(const void *of), const void *of)
{
    struct kept_programs k = {.rewards = rewards};
    char why[MESSAGE_MAX] = "";
    enum hd_status entered;

    /* Landlock from version 6 on keeps this signal from the keeper, whose sandbox is another one than
     * the rank's: then the closed socket tells it that the rank has ended. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(0);
    (void)signal(SIGPIPE, SIG_IGN);
    /* signals for the rank's group must not end the keeper before the rank */
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGTERM, SIG_IGN);
    if (socket != KEEPER_FD)
        (void)dup2(socket, KEEPER_FD);
    (void)fcntl(KEEPER_FD, F_SETFD, FD_CLOEXEC);
    (void)syscall(SYS_close_range, KEEPER_FD + 1, ~0U, 0);
    for (int64_t i = 0; i < rewards->count; i++)
        if (rewards->list[i].kind == HD_REWARD_PROGRAM)
            bound_program(&k, rank, i);
    entered = enter ? enter(of) : HD_OK;
    if (entered)
        (void)snprintf(why, sizeof why, "%s", hd_err_message());
    while (answer_rank(&k, KEEPER_FD, entered, why))
        continue;
    for (int i = 0; i < HD_REWARDS_MAX; i++)
        reward_program_free(k.programs[i]);
    _exit(0);
}

/* ---- in the rank ---- */

enum hd_status reward_keeper_start(const struct hd_rewards *rewards, int64_t rank,
                                   enum hd_status (*enter)(const void *of), const void *of,
                                   struct reward_keeper **ret_keeper)
{
    struct reward_keeper *k = calloc(1, sizeof *k);
    const pid_t parent = getpid();
    int ends[2];

    if (!k)
        return hd_err(HD_NO_MEMORY, "no memory for the keeper of rewards");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) {
        free(k);
        return hd_err(HD_IO, "cannot make a socket for rewards: %s", strerror(errno));
    }
    k->pid = fork();
    if (k->pid == 0)
        keep(rewards, rank, ends[1], parent, enter, of);
    (void)close(ends[1]);
    k->socket = ends[0];
    if (k->pid < 0) {
        (void)close(ends[0]);
        free(k);
        return hd_err(HD_IO, "cannot make a process for rewards: %s", strerror(errno));
    }
    *ret_keeper = k;
    return HD_OK;
}

void reward_keeper_stop(struct reward_keeper *k)
{
    if (!k)
        return;
    (void)close(k->socket); /* the keeper then kills its programs and ends, also in a rating */
    for (int i = 0; i < STOP_TRIES; i++) {
        if (waitpid(k->pid, NULL, WNOHANG) != 0) {
            free(k);
            return;
        }
        (void)poll(NULL, 0, STOP_MS);
    }
    hd_log(HD_LOG_WARN,
           "the process that runs reward programs has not ended for %d s; it is killed",
           STOP_TRIES * STOP_MS / 1000);
    if (kill(k->pid, SIGKILL) == 0)
        (void)waitpid(k->pid, NULL, 0);
    free(k);
}

static enum hd_status keeper_is_gone(void)
{
    return hd_err(HD_UNAVAILABLE, "the process that runs reward programs has ended; was it killed "
                                  "for its memory?");
}

enum hd_status reward_keeper_rate(struct reward_keeper *k, int64_t index, const char *const *lines,
                                  int64_t count)
{
    struct rating_head head = {.index = index, .count = count};
    bool sent;

    for (int64_t i = 0; i < count; i++)
        head.size_bytes += (int64_t)strlen(lines[i]) + 1;
    sent = send_all(k->socket, &head, sizeof head);
    for (int64_t i = 0; sent && i < count; i++)
        sent = send_all(k->socket, lines[i], strlen(lines[i]) + 1);
    k->count = count;
    return sent ? HD_OK : keeper_is_gone();
}

enum hd_status reward_keeper_wait(struct reward_keeper *k, int timeout_ms, bool *ret_done,
                                  double *ret_rewards)
{
    struct pollfd end = {k->socket, POLLIN, 0};
    struct result_head result;

    *ret_done = false;
    if (poll(&end, 1, timeout_ms) <= 0)
        return HD_OK;
    if (!read_all(k->socket, &result, sizeof result) || result.count != k->count ||
        !read_all(k->socket, ret_rewards, (size_t)result.count * sizeof *ret_rewards))
        return keeper_is_gone();
    *ret_done = true;
    return result.status ? hd_err((enum hd_status)result.status, "%s", result.message) : HD_OK;
}
