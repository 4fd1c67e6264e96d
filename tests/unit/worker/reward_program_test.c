/* reward_program: whatever a program does, each answer has a reward or none, and the rank goes on. */
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/program/cases.h"
#include "tests/program/test.h"
#include "tests/temporary.h"
#include "worker/reward_keeper.h"
#include "worker/reward_program.h"

enum { COUNT = 6 };

static struct reward_bounds bounds = {.group = {-1, -1, -1, -1}};

/* Makes a program of the shell, whose loop has the line in $l and its id in $id. */
static struct reward_program *shell_of(const char *loop, double timeout_s, double first_s)
{
    /* one for each program of a case: a program starts with its first rating */
    static char scripts[4][1024];
    static struct hd_reward rewards[4];
    static int made;
    char *const script = scripts[made % 4];
    struct hd_reward *const reward = &rewards[made++ % 4];
    struct reward_program *p = NULL;

    *reward = (struct hd_reward){.name = "test",
                                 .argv = {"/bin/sh", "-c", script},
                                 .timeout_s = timeout_s,
                                 .memory_bytes = 1 << 26};
    (void)signal(SIGPIPE, SIG_IGN); /* as a keeper does: a program may have ended */

    (void)snprintf(script, sizeof scripts[0],
                   "say() { printf '{\"id\":%%s,\"reward\":%%s}\\n' \"$1\" \"$2\"; }\n"
                   "while read -r l; do id=${l#*:}; id=${id%%%%,*}\n%s\ndone",
                   loop);
    must(reward_program_new(reward, first_s, &bounds, &p));
    return p;
}

static struct reward_program *shell(const char *loop, double timeout_s)
{
    return shell_of(loop, timeout_s, 20);
}

static const char *const lines[COUNT] = {"{\"completion\":\"a\"}",   "{\"completion\":\"b\"}",
                                         "{\"completion\":\"bad\"}", "{\"completion\":\"c\"}",
                                         "{\"completion\":\"d\"}",   "{\"completion\":\"e\"}"};

/* Rates all lines, and expects a reward of 1 for each but line 2, whose reward is `second`. */
static void assert_rates(struct reward_program *p, double second)
{
    double rewards[COUNT];

    must(reward_program_rate(p, lines, COUNT, -1, rewards));
    for (int i = 0; i < COUNT; i++)
        if (i != 2)
            assert_true(rewards[i] == 1);
        else
            assert_true(isnan(second) ? isnan(rewards[i]) : rewards[i] == second);
}

static void answers_may_come_in_any_order(void **state)
{
    /* waits for all six, and answers backwards; ids go on in the second call */
    struct reward_program *p = shell(
        "all=\"$id $all\"; n=$((n + 1))\n"
        "[ $((n % 6)) = 0 ] && { for i in $all; do say $i $((i % 6 == 2 ? 0 : 1)); done; all=; }",
        20);

    (void)state;
    assert_rates(p, 0);
    assert_rates(p, 0);
    reward_program_free(p);
}

static void one_that_hangs_or_ends_costs_one_answer(void **state)
{
    struct reward_program *hangs = shell("case $l in *bad*) sleep 1000;; esac; say $id 1", 4);
    struct reward_program *ends = shell("case $l in *bad*) exit 3;; esac; say $id 1", 20);

    (void)state;
    assert_rates(hangs, NAN);
    assert_rates(ends, NAN);
    assert_rates(ends, NAN); /* it was started again, and rates later answers */
    reward_program_free(hangs);
    reward_program_free(ends);
}

/* Answers that a program wrote before it ended count, also if it has closed its input; a program that
 * ended between two calls costs none. */
static void an_end_takes_no_answer_with_it(void **state)
{
    struct reward_program *p =
        shell("case $l in *bad*) exec 0<&-; sleep 0.1; exit 3;; esac; say $id 1", 20);
    double rewards[COUNT];

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_rates(p, NAN);
    reward_program_free(p);
    p = shell("say $id 1; n=$((n + 1)); [ $n = 6 ] && exit 0", 20);
    for (int call = 0; call < 3; call++) {
        must(reward_program_rate(p, lines, COUNT, -1, rewards));
        (void)poll(NULL, 0, 50); /* it ends */
        for (int i = 0; i < COUNT; i++)
            assert_true(rewards[i] == 1);
    }
    reward_program_free(p);
}

static void what_is_no_answer_is_left_out(void **state)
{
    struct reward_program *p =
        shell("echo rubbish; echo '{\"id\":99999,\"reward\":7}'; echo '{\"id\":0}'; say -1 5\n"
              "case $l in *bad*) say $id NaN; say $id 5;; *) say $id 1;; esac",
              20);
    struct reward_program *large =
        shell("case $l in *bad*) say $id -1e10;; *) say $id 1;; esac", 20);

    (void)state;
    assert_rates(p, NAN); /* NaN is the answer; a second one to the same id does not count */
    assert_rates(large, NAN);
    reward_program_free(p);
    reward_program_free(large);
}

static void a_program_that_never_answers_is_an_error(void **state)
{
    struct reward_program *p = shell("exit 1", 20);
    double rewards[COUNT];

    (void)state;
    assert_int_equal(reward_program_rate(p, lines, COUNT, -1, rewards), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "the program of reward test (/bin/sh) was started 5 "
                                             "times in a row without an answer (exit status 1)"));
    reward_program_free(p);
    p = shell_of("sleep 1000", 0.05, 0);
    assert_int_equal(reward_program_rate(p, lines, COUNT, -1, rewards), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "(it gave no answer for too long; it was killed)"));
    reward_program_free(p);
}

/* Both pipes fill: 1.2 MB to the program, and 200 KB from it before it reads on. */
static void full_pipes_do_not_block(void **state)
{
    enum { MANY = 300, LINE = 4000 };
    struct reward_program *p = shell("printf '%700s\\n' ''; say $id 1", 20);
    static char text[LINE];
    const char *many[MANY];
    double rewards[MANY];

    (void)state;
    memset(text, 'x', sizeof text - 1);
    memcpy(text, "{\"c\":\"", 6);
    memcpy(text + LINE - 3, "\"}", 3);
    for (int i = 0; i < MANY; i++)
        many[i] = text;
    must(reward_program_rate(p, many, MANY, -1, rewards));
    for (int i = 0; i < MANY; i++)
        assert_true(rewards[i] == 1);
    reward_program_free(p);
}

static void one_that_writes_without_end_and_no_answer_is_given_up(void **state)
{
    struct reward_program *p = shell("case $l in *bad*) exec yes;; esac; say $id 1", 1.5);

    (void)state;
    assert_rates(p, NAN);
    reward_program_free(p);
}

static int open_in(const char *dir, const char *name, const char *text, int flags)
{
    char path[TEMPORARY_BYTES + 32];
    FILE *file;
    int fd;

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0 && fclose(file) == 0);
    fd = open(path, flags | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

/* Files stand in for a control group; the program itself says there what the kernel would. */
static void a_program_over_a_limit_is_told_which(void **state)
{
    static const char *const loops[][2] = {{"echo oom_kill 1", "memory.events; kill -9 $$"},
                                           {"echo max 1", "pids.events; exit 3"}};
    static const char *const told[] = {
        "signal 9; the kernel killed for lack of memory, over its limit (memory: 64.0 MiB)",
        "exit status 3; a process was refused to it, over its limit (processes: 0)"};
    double rewards[COUNT];

    (void)state;
    for (int i = 0; i < 2; i++) {
        char dir[TEMPORARY_BYTES], loop[256], path[TEMPORARY_BYTES + 16];
        struct reward_program *p;
        struct hd_text text = {0};

        temporary_dir(dir, "rewards");
        (void)snprintf(loop, sizeof loop, "%s >%s/%s", loops[i][0], dir, loops[i][1]);
        bounds.group = (struct hd_cgroup_files){
            .procs = open_in(dir, "cgroup.procs", "", O_WRONLY),
            .kill = open_in(dir, "cgroup.kill", "", O_WRONLY),
            .memory_events = open_in(dir, "memory.events", "oom_kill 0\n", O_RDONLY),
            .pids_events = open_in(dir, "pids.events", "max 0\n", O_RDONLY)};
        p = shell(loop, 5);
        assert_int_equal(reward_program_rate(p, lines, 1, -1, rewards), HD_OK);
        assert_true(isnan(rewards[0]));
        if (strcmp(reward_program_ended(p), told[i]) != 0)
            fail_msg("%s", reward_program_ended(p));
        reward_program_free(p);
        (void)snprintf(path, sizeof path, "%s/cgroup.procs", dir);
        must(hd_file_read(path, 64, &text));
        assert_string_equal(text.data, "0"); /* the program moved itself */
        (void)snprintf(path, sizeof path, "%s/cgroup.kill", dir);
        hd_text_clear(&text);
        must(hd_file_read(path, 64, &text));
        assert_string_equal(text.data, "1");
        hd_text_free(&text);
        for (int k = 0; k < 4; k++)
            (void)close((int[]){bounds.group.procs, bounds.group.kill, bounds.group.memory_events,
                                bounds.group.pids_events}[k]);
        bounds.group = (struct hd_cgroup_files){-1, -1, -1, -1};
        must(hd_file_remove_tree(dir));
    }
}

/* Without a group each process has the limit: 64 MiB are 65,536 KiB. */
static void without_a_group_memory_bounds_each_process(void **state)
{
    struct reward_program *p;

    (void)state;
    bounds.data_bytes = 1 << 26;
    p = shell("ulimit -d | grep -q 65536 && say $id 1", 5);
    bounds.data_bytes = 0;
    assert_rates(p, 1);
    reward_program_free(p);
}

static struct reward_keeper *keeper_of(struct hd_rewards *rewards, const char *script)
{
    struct reward_keeper *k = NULL;

    *rewards = (struct hd_rewards){
        .list = {{.kind = HD_REWARD_PROGRAM, .name = "test", .timeout_s = 1000}}, .count = 1};
    rewards->list[0].argv[0] = "/bin/sh";
    rewards->list[0].argv[1] = "-c";
    rewards->list[0].argv[2] = script;
    must(reward_keeper_start(rewards, 0, NULL, NULL, &k));
    return k;
}

/* Waits for the number that a program writes into a file. */
static pid_t read_pid(const char *path)
{
    int pid = 0;

    for (int i = 0; i < 1000 && !pid; i++) {
        FILE *file = fopen(path, "re");

        if (!file || fscanf(file, "%d\n", &pid) != 1)
            (void)poll(NULL, 0, 10);
        if (file)
            (void)fclose(file);
    }
    assert_true(pid > 0);
    return pid;
}

/* The rank may end while a program rates: the end of the socket must be enough, since a signal of the
 * dying rank does not reach the keeper through Landlock. */
static void a_keeper_that_is_stopped_in_a_rating_ends_with_its_program(void **state)
{
    char dir[TEMPORARY_BYTES], path[TEMPORARY_BYTES + 8], script[160];
    struct hd_rewards rewards;
    struct reward_keeper *k;
    pid_t program;

    (void)state;
    temporary_dir(dir, "rewards");
    (void)snprintf(path, sizeof path, "%s/pid", dir);
    (void)snprintf(script, sizeof script, "echo $$ >%s; sleep 1000; true", path);
    k = keeper_of(&rewards, script);
    must(reward_keeper_rate(k, 0, lines, 1));
    program = read_pid(path);
    assert_int_equal(kill(program, 0), 0);
    reward_keeper_stop(k);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* it has ended, and was waited for */
    assert_int_equal(kill(program, 0), -1);           /* gone: the keeper has reaped it */
    (void)unlink(path);
    (void)rmdir(dir);
}

static void a_keeper_that_was_killed_is_an_error_and_no_signal(void **state)
{
    struct hd_rewards rewards;
    struct reward_keeper *k = keeper_of(&rewards, "kill -9 $PPID; sleep 1");
    double reward;
    bool done;

    (void)state;
    must(reward_keeper_rate(k, 0, lines, 1));
    assert_int_equal(reward_keeper_wait(k, 10000, &done, &reward), HD_UNAVAILABLE);
    assert_int_equal(reward_keeper_rate(k, 0, lines, 1), HD_UNAVAILABLE);
    reward_keeper_stop(k);
}

RUN_CASES()
