/* A process that has locked itself in, tries what it must not do and does what it must. Each try is
 * a process of its own. What this machine's kernel lacks is skipped. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "daemon/isolation/probe.h"
#include "daemon/isolation/sandbox.h"
#include "tests/program/test.h"
#include "tests/sanitized.h"
#include "tests/temporary.h"

static char dir[TEMPORARY_BYTES]; /* in/ may be written, read/ read, out/ neither */
static int listening = -1, port;

/* ---- tries: 0, or the errno of the refusal ---- */

static int try_open(const char *path, int flags)
{
    const int fd = open(path, flags | O_CLOEXEC, 0600);

    if (fd < 0)
        return errno;
    (void)close(fd);
    return 0;
}

static int open_in(const char *name, int flags)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return try_open(path, flags);
}

static int reads_shadow(void)
{
    return try_open("/etc/shadow", O_RDONLY);
}
static int reads_what_is_allowed(void)
{
    return open_in("read/a", O_RDONLY);
}
static int writes_what_may_be_read(void)
{
    return open_in("read/a", O_WRONLY);
}
static int makes_a_file(void)
{
    return open_in("in/new", O_WRONLY | O_CREAT);
}
static int makes_a_file_elsewhere(void)
{
    return open_in("out/new", O_WRONLY | O_CREAT);
}
static int reads_by_a_link(void) /* in/link leads to out/secret */
{
    return open_in("in/link", O_RDONLY);
}

static int renames(const char *from, const char *to)
{
    char a[128], b[128];

    (void)snprintf(a, sizeof a, "%s/%s", dir, from);
    (void)snprintf(b, sizeof b, "%s/%s", dir, to);
    return rename(a, b) < 0 ? errno : 0;
}
static int takes_a_file_out(void)
{
    return renames("in/mine", "out/mine");
}
static int renames_inside(void)
{
    return renames("in/kept", "in/sub/kept");
}

static int executes(void)
{
    char *const argv[] = {(char *)"true", NULL};

    (void)execv("/bin/true", argv);
    return errno;
}

static int forks(void)
{
    const pid_t pid = fork();

    if (pid == 0)
        _exit(0);
    return pid < 0 ? errno : 0;
}

static int traces(void)
{
    return ptrace(PTRACE_ATTACH, getppid(), NULL, NULL) < 0 ? errno : 0;
}

static int reads_memory_of_another(void)
{
    char byte = 0;
    const struct iovec mine = {&byte, 1}, theirs = {&listening, 1};

    return process_vm_readv(getppid(), &mine, 1, &theirs, 1, 0) < 0 ? errno : 0;
}

static int signals_another(void)
{
    return kill(getppid(), 0) < 0 ? errno : 0;
}

static int limits_another(void)
{
    const struct rlimit none = {0, 0};

    return prlimit(getppid(), RLIMIT_CORE, &none, NULL) < 0 ? errno : 0;
}

static int knows_its_limits(void)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_NOFILE, &limit) || setrlimit(RLIMIT_NOFILE, &limit);
}

static int reads_environment_of_another(void)
{
    char path[64];

    char byte;
    int fd;

    (void)snprintf(path, sizeof path, "/proc/%d/environ", (int)getppid());
    fd = open(path, O_RDONLY);
    return fd < 0 ? errno : read(fd, &byte, 1) < 0 ? errno : read(fd, &byte, 1) == 1 ? 0 : 249;
}

static int changes_rights(void)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s/out/secret", dir);
    return chmod(path, 0) < 0 ? errno : 0;
}

/* Opens a socket like those of heddle-launcher and supervisors. */
static int opens_a_stream_to_daemons(void)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    return fd < 0 ? errno : 0;
}

static int signals_itself(void)
{
    (void)signal(SIGUSR1, SIG_IGN);
    return raise(SIGUSR1) ? errno : 0;
}

static int dials_out(void)
{
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons((uint16_t)port),
                                        .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (fd < 0)
        return errno;
    return connect(fd, (const struct sockaddr *)&address, sizeof address) < 0 ? errno : 0;
}

/* 0: what was connected before goes on, and nothing is connected any more. */
static int dials_after_it_has_met(void)
{
    const int before = dials_out();

    if (before || hd_sandbox_close_network())
        return 251;
    return dials_out();
}

static int sends_packets_of_its_own(void)
{
    const int fd = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);

    return fd < 0 ? errno : 0;
}

static int makes_a_socket_of_whole_packets(void)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

    return fd < 0 ? errno : close(fd);
}

static void *run_thread(void *argument)
{
    *(int *)argument = reads_shadow();
    return NULL;
}

/* A later thread is as locked in; 0: it could be made, and was refused. */
static int a_thread_reads_shadow(void)
{
    pthread_t thread;
    int answer = -1;

    if (pthread_create(&thread, NULL, run_thread, &answer) || pthread_join(thread, NULL))
        return -2;
    return answer;
}

static int maps_memory(void)
{
    void *at = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return at == MAP_FAILED ? errno : munmap(at, 1 << 20);
}

static int uses_devices(void)
{
    char byte;
    const int null = open("/dev/null", O_RDWR), random = open("/dev/urandom", O_RDONLY);

    return null < 0 || random < 0 || read(random, &byte, 1) != 1 || write(null, &byte, 1) != 1;
}

static int has_new_privileges(void)
{
    return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? 0 : EPERM;
}

/* ---- a locked-in process ---- */

static bool allow(struct hd_sandbox *s, const char *name, enum hd_sandbox_access access)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return hd_sandbox_allow(s, path, access) == HD_OK;
}

static bool lock_in(unsigned flags)
{
    struct hd_text has = {0}, lacks = {0};
    struct hd_sandbox *s;
    bool done;

    if (hd_sandbox_begin(flags, &s))
        return false;
    done = allow(s, "in", HD_SANDBOX_WRITE) && allow(s, "read", HD_SANDBOX_READ) &&
           hd_sandbox_allow(s, "/dev/null", HD_SANDBOX_DEVICE) == HD_OK &&
           hd_sandbox_allow(s, "/dev/urandom", HD_SANDBOX_DEVICE) == HD_OK &&
           hd_sandbox_allow(s, "/usr", HD_SANDBOX_READ) == HD_OK &&
           hd_sandbox_allow(s, "/lib", HD_SANDBOX_READ) == HD_OK &&
           hd_sandbox_allow(s, "/proc", HD_SANDBOX_READ) == HD_OK &&
           hd_sandbox_enter(s, &has, &lacks) == HD_OK;
    hd_sandbox_free(s);
    hd_text_free(&has);
    hd_text_free(&lacks);
    return done;
}

/* Returns the result of a try in a process that has locked itself in with these flags. */
static int answer_of(int (*try_it)(void), unsigned flags)
{
    const pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0)
        _exit(lock_in(flags) ? try_it() & 0xff : 250);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status))
        fail_msg("ended by signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

static void expect_refused(const char *name, int (*try_it)(void), int error)
{
    const int answer = answer_of(try_it, 0);

    if (answer != error)
        fail_msg("%s: %d (%s), not %s", name, answer, strerror(answer), strerror(error));
}
#define REFUSED(try_it, error) expect_refused(#try_it, try_it, error)

/* ---- tests ---- */

static void files_that_no_job_names_cannot_be_opened(void **state)
{
    if (!hd_locks_find().landlock) {
        print_message("skip: this kernel has no Landlock\n");
        skip();
    }
    assert_int_equal(try_open("/etc/shadow", O_RDONLY) == 0 || geteuid() != 0, 1); /* else vain */
    REFUSED(reads_shadow, EACCES);
    REFUSED(a_thread_reads_shadow, EACCES);
    REFUSED(writes_what_may_be_read, EACCES);
    REFUSED(makes_a_file_elsewhere, EACCES);
    REFUSED(reads_by_a_link, EACCES);
    REFUSED(reads_environment_of_another, EACCES);
    REFUSED(takes_a_file_out, EACCES);
}

static void what_a_job_names_can_be_used(void **state)
{
    REFUSED(reads_what_is_allowed, 0);
    REFUSED(makes_a_file, 0);
    REFUSED(renames_inside, 0);
    REFUSED(maps_memory, 0);
    REFUSED(uses_devices, 0);
    REFUSED(signals_itself, 0);
    REFUSED(knows_its_limits, 0);
    REFUSED(has_new_privileges, 0);
}

static void nothing_is_started_traced_or_reached(void **state)
{
    if (!hd_locks_find().seccomp) {
        print_message("skip: this kernel has no seccomp\n");
        skip();
    }
    REFUSED(executes, EPERM);
    REFUSED(reads_memory_of_another, EPERM);
    REFUSED(dials_out, EPERM);
    REFUSED(limits_another, EPERM);
    REFUSED(changes_rights, EPERM);
    if (HD_TEST_SANITIZED) { /* its leak checker starts a process that traces */
        print_message("skip the rest: a sanitizer needs them\n");
        return;
    }
    REFUSED(forks, EPERM);
    REFUSED(traces, EPERM);
    REFUSED(signals_another, EPERM);
}

static void with_a_network_peers_are_reached_but_not_by_raw_sockets(void **state)
{
    if (!hd_locks_find().seccomp)
        skip();
    assert_int_equal(answer_of(dials_out, HD_SANDBOX_NETWORK), 0);
    assert_int_equal(answer_of(dials_after_it_has_met, HD_SANDBOX_NETWORK), EPERM);
    assert_int_equal(answer_of(sends_packets_of_its_own, HD_SANDBOX_NETWORK), EPERM);
    assert_int_equal(answer_of(opens_a_stream_to_daemons, HD_SANDBOX_NETWORK), EPERM);
    assert_int_equal(answer_of(makes_a_socket_of_whole_packets, HD_SANDBOX_NETWORK), EPERM);
    assert_int_equal(answer_of(executes, HD_SANDBOX_NETWORK), EPERM);
}

/* CUDA makes one when it starts. */
static void with_a_gpu_sockets_of_whole_packets_can_be_made(void **state)
{
    const unsigned flags = HD_SANDBOX_NETWORK | HD_SANDBOX_GPU;

    if (!hd_locks_find().seccomp)
        skip();
    assert_int_equal(answer_of(makes_a_socket_of_whole_packets, flags), 0);
    assert_int_equal(answer_of(opens_a_stream_to_daemons, flags), EPERM);
}

static int set_up(void **state)
{
    static const char *const folders[] = {"in/sub", "read", "out"};
    static const char *const files[] = {"in/kept", "in/mine", "read/a", "out/secret"};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    char path[128], target[128];

    temporary_dir(dir, "heddle-sandbox");
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, folders[i]);
        assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    }
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        assert_int_equal(hd_file_write_atomic(path, "x", 1, 0644), HD_OK);
    }
    (void)snprintf(path, sizeof path, "%s/in/link", dir);
    (void)snprintf(target, sizeof target, "%s/out/secret", dir);
    assert_int_equal(symlink(target, path), 0);
    listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listening, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listening, 8), 0);
    assert_int_equal(getsockname(listening, (struct sockaddr *)&address, &size), 0);
    port = ntohs(address.sin_port);
    return 0;
}

static int tear_down(void **state)
{
    (void)close(listening);
    return hd_file_remove_tree(dir) != HD_OK;
}

RUN_CASES_BETWEEN(set_up, tear_down)
