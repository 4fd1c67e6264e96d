#include "worker/reward_program.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"

enum {
    LINE_BYTES_MAX = 1 << 20, /* of one line of the program's output */
    WARNINGS_MAX = 20,        /* about lines that are no answer; later ones are not reported */
    POLL_MS_MAX = 1000,
    READS_MAX = 64, /* buffers of output that are read before the clock is looked at */
    CLOSED_TRIES = 40,
    CLOSED_MS = 5, /* waits for the end of a program that has closed its output */
};

/* sums of squares of larger rewards would lose their digits, or overflow */
static const double reward_max = 1e9;
static const char silent[] = "it gave no answer for too long"; /* why a program must end */

struct reward_program {
    const struct hd_reward *reward;
    struct reward_bounds bounds;
    int64_t kills, refused; /* of the group when the program was started */
    int64_t timeout_ms, first_ms;
    pid_t pid;         /* 0: it does not run */
    int input, output; /* pipes to and from it */
    bool has_answered; /* since its start */
    int starts;        /* in a row without an answer */
    int warnings;
    char ended[200];     /* how it ended last */
    bool was_silent;     /* then it was ended because it gave no answer for too long */
    struct hd_text read; /* bytes of its output behind the last whole line */
    int64_t next_id;
};

/* Answers that are being rated. */
struct rating {
    const char *const *lines;
    int64_t count, left;
    int64_t first_id;
    double *rewards;
    bool *done;
    int64_t given; /* lines that the program has got whole */
    bool began;    /* since the program's start, or since this call, it has got a part of one */
    struct hd_text write; /* the line that it is getting */
    size_t written;       /* bytes of it */
    int64_t moved_ms;     /* time of the last answer, or of the start */
    int asker;            /* descriptor of who asks; -1: none */
};

enum hd_status reward_program_new(const struct hd_reward *reward, double first_s,
                                  const struct reward_bounds *bounds,
                                  struct reward_program **ret_program)
{
    struct reward_program *p = calloc(1, sizeof *p);

    if (!p)
        return hd_err(HD_NO_MEMORY, "no memory for a reward");
    *p = (struct reward_program){.reward = reward,
                                 .bounds = *bounds,
                                 .timeout_ms = (int64_t)(reward->timeout_s * 1e3),
                                 .first_ms = (int64_t)(first_s * 1e3),
                                 .input = -1,
                                 .output = -1};
    *ret_program = p;
    return HD_OK;
}

/* ---- start and end ---- */

/* Runs in the child: enters what bounds the program. Returns false on failure; errno says why. */
static bool enter_bounds(const struct reward_bounds *b)
{
    const rlim_t bytes = (rlim_t)b->data_bytes;
    const struct rlimit data = {.rlim_cur = bytes, .rlim_max = bytes};

    return (b->group.procs < 0 || hd_cgroup_enter(&b->group)) &&
           (!b->data_bytes || setrlimit(RLIMIT_DATA, &data) == 0);
}

/* Runs in the child: becomes the program, in a process group of its own, and ends with its parent. */
static _Noreturn void become_program(const struct reward_program *p, int from, int to, pid_t parent)
{
    sigset_t none;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || setpgid(0, 0) < 0 || dup2(from, 0) < 0 || dup2(to, 1) < 0)
        _exit(127);
    if (!enter_bounds(&p->bounds)) {
        hd_log(HD_LOG_ERROR, "reward %s: cannot bound its program: %s", p->reward->name,
               strerror(errno));
        _exit(127);
    }
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGINT, SIG_DFL);
    (void)execvp(p->reward->argv[0], (char *const *)(uintptr_t)p->reward->argv);
    hd_log(HD_LOG_ERROR, "reward %s: cannot start %s: %s", p->reward->name, p->reward->argv[0],
           strerror(errno));
    _exit(127);
}

static void close_pipes(int pipes[4])
{
    for (int i = 0; i < 4; i++)
        if (pipes[i] >= 0)
            (void)close(pipes[i]);
}

static enum hd_status start_program(struct reward_program *p)
{
    int pipes[4] = {-1, -1, -1, -1}; /* in: reading, writing end; out: the same */
    const pid_t parent = getpid();
    pid_t pid;

    if (pipe2(pipes, O_CLOEXEC) < 0 || pipe2(pipes + 2, O_CLOEXEC) < 0 ||
        fcntl(pipes[1], F_SETFL, O_NONBLOCK) < 0 || fcntl(pipes[2], F_SETFL, O_NONBLOCK) < 0) {
        close_pipes(pipes);
        return hd_err(HD_IO, "reward %s: cannot make pipes: %s", p->reward->name, strerror(errno));
    }
    p->kills = hd_cgroup_count_kills(&p->bounds.group);
    p->refused = hd_cgroup_count_refused(&p->bounds.group);
    pid = fork();
    if (pid == 0)
        become_program(p, pipes[0], pipes[3], parent);
    if (pid < 0) {
        close_pipes(pipes);
        return hd_err(HD_IO, "reward %s: cannot start a process: %s", p->reward->name,
                      strerror(errno));
    }
    (void)setpgid(pid, pid); /* also here, so that a kill right now reaches it */
    (void)close(pipes[0]);
    (void)close(pipes[3]);
    p->pid = pid;
    p->input = pipes[1];
    p->output = pipes[2];
    p->has_answered = false;
    p->starts++;
    hd_text_clear(&p->read);
    return HD_OK;
}

/* Adds to how the program ended which of its limits it met. */
static void note_limits(struct reward_program *p)
{
    const size_t len = strlen(p->ended);
    char bytes[32], limit[64] = "that of the job's ranks";

    if (hd_cgroup_count_kills(&p->bounds.group) > p->kills) {
        hd_text_format_bytes(p->reward->memory_bytes, bytes);
        if (p->reward->memory_bytes)
            (void)snprintf(limit, sizeof limit, "memory: %s", bytes);
        (void)snprintf(p->ended + len, sizeof p->ended - len,
                       "; the kernel killed for lack of memory, over its limit (%s)", limit);
    } else if (hd_cgroup_count_refused(&p->bounds.group) > p->refused) {
        (void)snprintf(p->ended + len, sizeof p->ended - len,
                       "; a process was refused to it, over its limit (processes: %lld)",
                       (long long)p->reward->processes);
    } else if (p->bounds.data_bytes) {
        hd_text_format_bytes(p->bounds.data_bytes, bytes);
        (void)snprintf(p->ended + len, sizeof p->ended - len,
                       "; each of its processes gets %s (memory)", bytes);
    }
}

/* Kills the program, what it has started and its process group, and notes how it had ended. closed: it has closed a
 * pipe, and so has probably ended. */
static void end_program(struct reward_program *p, bool closed)
{
    int status = 0;
    pid_t ended;

    if (!p->pid)
        return;
    ended = waitpid(p->pid, &status, WNOHANG);
    for (int i = 0; closed && ended == 0 && i < CLOSED_TRIES; i++) {
        (void)poll(NULL, 0, CLOSED_MS); /* its pipes close before it can be waited for */
        ended = waitpid(p->pid, &status, WNOHANG);
    }
    hd_cgroup_kill_all(&p->bounds.group);
    (void)kill(-p->pid, SIGKILL);
    if (ended != p->pid) {
        (void)kill(p->pid, SIGKILL);
        while (waitpid(p->pid, NULL, 0) < 0 && errno == EINTR)
            continue;
        (void)snprintf(p->ended, sizeof p->ended, "it was killed");
    } else if (WIFSIGNALED(status)) {
        (void)snprintf(p->ended, sizeof p->ended, "signal %d", WTERMSIG(status));
    } else {
        (void)snprintf(p->ended, sizeof p->ended, "exit status %d", WEXITSTATUS(status));
    }
    note_limits(p);
    (void)close(p->input);
    (void)close(p->output);
    p->pid = 0;
    p->input = p->output = -1;
}

const char *reward_program_ended(const struct reward_program *p)
{
    return p->ended;
}

void reward_program_free(struct reward_program *p)
{
    if (!p)
        return;
    end_program(p, false);
    hd_text_free(&p->read);
    free(p);
}

/* ---- its answers ---- */

static void warn_about_line(struct reward_program *p, const char *what, const char *line)
{
    if (p->warnings++ < WARNINGS_MAX)
        hd_log(HD_LOG_WARN, "reward %s: %s: %.200s%s", p->reward->name, what, line,
               p->warnings == WARNINGS_MAX ? " (no more such lines are shown)" : "");
}

/* Appends a line with null in place of NaN and infinities, which Python writes and JSON lacks. */
static void add_strict_json(const char *line, struct hd_text *out)
{
    static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
    bool quoted = false;

    while (*line) {
        size_t skipped = 0;

        for (size_t i = 0; !quoted && i < sizeof words / sizeof words[0] && !skipped; i++)
            if (strncmp(line, words[i], strlen(words[i])) == 0)
                skipped = strlen(words[i]);
        if (skipped) {
            hd_text_add(out, "null");
            line += skipped;
            continue;
        }
        if (*line == '"')
            quoted = !quoted;
        if (*line == '\\' && quoted && line[1])
            hd_text_add_bytes(out, line++, 1);
        hd_text_add_bytes(out, line++, 1);
    }
}

/* Takes a line of the program's output. */
static void take_line(struct reward_program *p, struct rating *r, const char *text)
{
    static const struct hd_json_limits limits = {.values_max = 10000, .depth_max = 16};
    const struct hd_json *root = NULL, *reward;
    struct hd_text line = {0};
    struct hd_arena arena;
    double value;
    int64_t id;

    hd_arena_init(&arena, 0);
    add_strict_json(text, &line);
    if (line.failed || hd_json_parse(&arena, line.data, line.len_bytes, &limits, &root) ||
        hd_json_need_int64(root, "id", INT64_MIN, INT64_MAX, &id) ||
        !(reward = hd_json_member(root, "reward"))) {
        warn_about_line(p, "a line of its output is no {\"id\": .., \"reward\": ..}", text);
    } else if (id < r->first_id) {
        /* a late answer, of an earlier call, or to a line that was given up */
    } else if (id >= r->first_id + r->count) {
        warn_about_line(p, "an answer has an id that nothing has", text);
    } else if (reward->kind != HD_JSON_NUMBER && reward->kind != HD_JSON_NULL &&
               reward->kind != HD_JSON_TRUE && reward->kind != HD_JSON_FALSE) {
        warn_about_line(p, "a reward is no number and not null", text);
    } else if (!r->done[id - r->first_id]) {
        value = reward->kind == HD_JSON_NUMBER  ? strtod(reward->text, NULL)
                : reward->kind == HD_JSON_TRUE  ? 1
                : reward->kind == HD_JSON_FALSE ? 0
                                                : NAN;
        if (fabs(value) > reward_max)
            warn_about_line(p, "a reward beyond 1e9 counts as none", text);
        r->rewards[id - r->first_id] = fabs(value) <= reward_max ? value : NAN;
        r->done[id - r->first_id] = true;
        r->left--;
        r->moved_ms = hd_clock_now_ns() / 1000000;
        p->has_answered = true;
        p->starts = 0;
    }
    hd_text_free(&line);
    hd_arena_done(&arena);
}

/* Reads what the program has written, or a part of it: a program that writes without end must not
 * keep its caller from the clock. Returns false if it has closed its output. */
static bool read_output(struct reward_program *p, struct rating *r)
{
    char bytes[4096];
    ssize_t n = 1;

    for (int reads = 0; reads < READS_MAX && (n = read(p->output, bytes, sizeof bytes)) > 0;
         reads++) {
        const char *at = bytes, *end = bytes + n, *line;

        while ((line = memchr(at, '\n', (size_t)(end - at)))) {
            hd_text_add_bytes(&p->read, at, (size_t)(line - at));
            if (p->read.len_bytes && !p->read.failed && p->read.data[strspn(p->read.data, " \t\r")])
                take_line(p, r, p->read.data);
            hd_text_clear(&p->read);
            at = line + 1;
        }
        hd_text_add_bytes(&p->read, at, (size_t)(end - at));
        if (p->read.len_bytes > LINE_BYTES_MAX) {
            warn_about_line(p, "a line of its output is too long", "");
            hd_text_clear(&p->read);
        }
    }
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/* ---- what it gets ---- */

/* Makes the next line that the program is to get; returns false if there is none. */
static bool next_line(struct rating *r)
{
    while (r->given < r->count && r->done[r->given])
        r->given++;
    if (r->given == r->count)
        return false;
    if (!r->write.len_bytes) {
        hd_text_add(&r->write, "{\"id\":%lld,%s\n", (long long)(r->first_id + r->given),
                    r->lines[r->given] + 1);
        r->written = 0;
    }
    return !r->write.failed;
}

/* Writes as much as the pipe takes. Returns false if the program has closed its input. */
static bool write_input(struct reward_program *p, struct rating *r)
{
    while (next_line(r)) {
        const ssize_t n =
            write(p->input, r->write.data + r->written, r->write.len_bytes - r->written);

        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        r->began = true;
        r->written += (size_t)n;
        if (r->written == r->write.len_bytes) {
            hd_text_clear(&r->write);
            r->given++;
        }
    }
    return true;
}

/* Gives up the oldest answer that the program has got, or was getting, and not rated; none if the
 * program had ended before it got any. */
static void give_up_oldest(struct reward_program *p, struct rating *r, const char *why)
{
    for (int64_t i = 0; r->began && i < r->count && i <= r->given; i++)
        if (!r->done[i]) {
            r->done[i] = true;
            r->left--;
            hd_log(HD_LOG_WARN, "reward %s: %s (%s); an answer cannot be rated: %.200s",
                   p->reward->name, why, p->ended, r->lines[i]);
            break;
        }
    r->given = 0; /* the next program gets the others again */
    r->began = false;
    hd_text_clear(&r->write);
}

/* ---- rating ---- */

static int64_t deadline_of(const struct reward_program *p, const struct rating *r)
{
    return r->moved_ms + p->timeout_ms + (p->has_answered ? 0 : p->first_ms);
}

/* Reads what a program that has closed its input wrote before it did. */
static void read_last_output(struct reward_program *p, struct rating *r)
{
    struct pollfd end = {p->output, POLLIN, 0};

    for (int i = 0; i < CLOSED_TRIES && poll(&end, 1, CLOSED_MS) > 0; i++)
        if (!read_output(p, r))
            break;
}

/* Waits for the program, and exchanges lines with it. Sets *ret_why to why it must end; NULL: it
 * goes on. HD_ABORTED: who asked is gone. */
static enum hd_status exchange_lines(struct reward_program *p, struct rating *r,
                                     const char **ret_why)
{
    const int64_t left_ms = deadline_of(p, r) - hd_clock_now_ns() / 1000000;
    const bool writes = next_line(r);
    struct pollfd ends[3] = {
        {p->output, POLLIN, 0}, {r->asker, POLLIN, 0}, {writes ? p->input : -1, POLLOUT, 0}};

    *ret_why = NULL;
    if (left_ms <= 0) {
        *ret_why = silent;
        return HD_OK;
    }
    (void)poll(ends, 3, left_ms < POLL_MS_MAX ? (int)left_ms : POLL_MS_MAX);
    if (ends[1].revents)
        return hd_err(HD_ABORTED, "reward %s: the rank that asked has ended", p->reward->name);
    if (ends[0].revents && !read_output(p, r))
        *ret_why = "it has ended, or closed its output";
    else if (ends[2].revents && !write_input(p, r)) {
        *ret_why = "it has closed its input";
        read_last_output(p, r);
    }
    return HD_OK;
}

static enum hd_status rate_all(struct reward_program *p, struct rating *r)
{
    const char *why;
    enum hd_status st;

    while (r->left > 0) {
        if (!p->pid) {
            if (p->starts >= REWARD_PROGRAM_STARTS_MAX)
                return hd_err(HD_INVALID,
                              "the program of reward %s (%s) was started %d times in a row without "
                              "an answer (%s%s%s); its output is in the log of the rank",
                              p->reward->name, p->reward->argv[0], p->starts,
                              p->was_silent ? silent : "", p->was_silent ? "; " : "", p->ended);
            st = start_program(p);
            if (st)
                return st;
            r->moved_ms = hd_clock_now_ns() / 1000000;
        }
        st = exchange_lines(p, r, &why);
        if (st)
            return st;
        if (why && r->left > 0) {
            p->was_silent = why == silent;
            end_program(p, !p->was_silent);
            give_up_oldest(p, r, why);
        }
    }
    return HD_OK;
}

enum hd_status reward_program_rate(struct reward_program *p, const char *const *lines,
                                   int64_t count, int asker, double *ret_rewards)
{
    struct rating r = {.lines = lines,
                       .count = count,
                       .left = count,
                       .first_id = p->next_id,
                       .rewards = ret_rewards,
                       .asker = asker,
                       .done = calloc((size_t)count + 1, sizeof *r.done),
                       .moved_ms = hd_clock_now_ns() / 1000000};
    enum hd_status st;

    if (!r.done)
        return hd_err(HD_NO_MEMORY, "no memory for rewards");
    for (int64_t i = 0; i < count; i++)
        ret_rewards[i] = NAN;
    p->next_id += count;
    st = rate_all(p, &r);
    hd_text_free(&r.write);
    free(r.done);
    return st;
}
