/* The heddle program on a terminal: a bar that fits, what is said while it waits, colours. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "rpc/find.h"
#include "tests/program/test.h"
#include "tests/unit/cli/fake_controller.h"

/* Reads what the program writes to the terminal until it says `text` (or, NULL, nothing more
 * comes). Adds it to ret_seen. */
static void read_terminal(int terminal, const char *text, char *ret_seen, size_t size_bytes)
{
    int64_t end_ms = hd_clock_now_ms() + 10000;
    size_t len = strlen(ret_seen);

    while (hd_clock_now_ms() < end_ms && len + 1 < size_bytes &&
           !(text && strstr(ret_seen, text))) {
        struct pollfd ready = {.fd = terminal, .events = POLLIN};
        ssize_t n =
            poll(&ready, 1, 100) > 0 ? read(terminal, ret_seen + len, size_bytes - len - 1) : 0;

        if (n < 0) /* EIO: the program has ended */
            break;
        len += (size_t)n;
        ret_seen[len] = '\0';
    }
}

/* The longest run of printable text between control sequences, in columns. */
static int longest_line(const char *seen)
{
    int longest = 0, width = 0;

    for (const char *p = seen; *p; p++) {
        if (*p == '\033') {
            p += strcspn(p, "JmA"); /* the ends of the sequences that are used */
            continue;
        }
        width = *p == '\r' || *p == '\n' ? 0 : width + (((unsigned char)*p & 0xC0) != 0x80);
        longest = width > longest ? width : longest;
    }
    return longest;
}

/* Reads until the bar has been drawn for `columns`: longer than before, if there is more room now.
 * A redraw for the old width may come first. Returns where the last one begins. */
static const char *read_redraw(int terminal, int columns, int before, char *ret_seen,
                               size_t size_bytes)
{
    const int64_t end_ms = hd_clock_now_ms() + 10000;
    const char *last = ret_seen;

    do {
        char more[4096] = "";
        const size_t len = strlen(ret_seen);
        int longest;

        read_terminal(terminal, "\r", more, sizeof more);
        (void)snprintf(ret_seen + len, size_bytes - len, "%s", more);
        for (const char *p = ret_seen; (p = strchr(p, '\r')) != NULL; p++)
            if (strstr(p, "1/2"))
                last = p;
        longest = longest_line(last);
        if (strstr(last, "1/2") && longest < columns && (columns < before || longest >= before))
            return last;
    } while (hd_clock_now_ms() < end_ms);
    return last;
}

/* Starts `heddle WORDS` on a terminal of its own. */
static pid_t start_on_terminal(const char *words, int columns, int *ret_terminal)
{
    const struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    pid_t pid = forkpty(ret_terminal, NULL, NULL, &size);

    if (pid < 0) {
        print_message("no terminal can be made here: %s\n", strerror(errno));
        skip();
    }
    if (pid == 0) {
        (void)setenv("TERM", "xterm", 1);
        (void)setenv("LC_ALL", "C", 1);
        (void)unsetenv("NO_COLOR");
        exec_heddle(words, STDOUT_FILENO, STDERR_FILENO);
    }
    return pid;
}

/* Goal: the bar never wraps, follows changes of the terminal's size, and is gone at the end.
 * Method: a terminal that becomes wider and narrower; each time the line must be drawn anew, with
 * fewer columns than the terminal has. What it has at a width is in cli_test. */
static void on_a_terminal_there_is_a_bar_that_fits(void **state)
{
    static const int widths[] = {300, 40, 160, 20, 80, 21};
    static char seen[65536];
    size_t before;
    int terminal, status, columns = 60;
    pid_t pid;

    fake.hold = true;
    meet();
    seen[0] = '\0';
    pid = start_on_terminal("watch 7", 60, &terminal);
    read_terminal(terminal, "1/2", seen, sizeof seen);
    assert_non_null(strstr(seen, " 50% \033[32m#"));
    assert_in_range(longest_line(seen), 40, 59);

    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        const struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)widths[i]};
        const char *last;

        before = strlen(seen);
        assert_int_equal(ioctl(terminal, TIOCSWINSZ, &size), 0); /* sends SIGWINCH */
        last = read_redraw(terminal, widths[i], columns, seen + before, sizeof seen - before);
        assert_non_null(strstr(last, "1/2"));
        assert_in_range(longest_line(last), 7, widths[i] - 1);
        columns = widths[i];
        if (widths[i] == 40) { /* the old bar of 299 columns now covers eight rows */
            read_terminal(terminal, "\033[7A", seen + before, sizeof seen - before);
            assert_non_null(strstr(seen + before, "\033[7A"));
        }
    }

    before = strlen(seen);
    assert_int_equal(kill(pid, SIGINT), 0);
    read_terminal(terminal, NULL, seen + before, sizeof seen - before);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 130);
    assert_true(hd_text_starts(seen + before, "\r\033[J"));
    assert_null(strstr(seen + before, "1/2")); /* not drawn again */
    (void)close(terminal);
}

/* A port at which nobody answers: the kernel completes the connection, and that is all. */
static int open_silent_port(int *ret_port)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t own_bytes = sizeof own;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &own_bytes), 0);
    *ret_port = ntohs(own.sin_port);
    return fd;
}

CASE_WITH(start_far, stop_fake)
static void on_a_terminal_a_wait_is_told_after_a_second(void **state)
{
    static const char *const verbs[] = {"show 7", "wait 7", "logs 7"};
    static char seen[4096];
    char words[256], expected[96];
    int terminal, status, port, fd = open_silent_port(&port);
    int64_t begin_ms;
    pid_t pid;

    (void)snprintf(expected, sizeof expected, "no answer from 127.0.0.1:%d yet", port);
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        (void)snprintf(words, sizeof words, "%s --controller 127.0.0.1:%d --token-file %s/token",
                       verbs[i], port, fake.dir);
        meet();
        seen[0] = '\0';
        begin_ms = hd_clock_now_ms();
        pid = start_on_terminal(words, 80, &terminal);
        read_terminal(terminal, expected, seen, sizeof seen);
        assert_non_null(strstr(seen, expected));
        assert_true(hd_clock_now_ms() - begin_ms >= 990);
        assert_int_equal(kill(pid, SIGINT), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        (void)close(terminal);
    }
    (void)close(fd);
}

static void on_a_terminal_errors_are_red(void **state)
{
    static char seen[4096];
    int terminal, status;
    pid_t pid;

    meet();
    seen[0] = '\0';
    pid = start_on_terminal("show 4", 80, &terminal);
    read_terminal(terminal, NULL, seen, sizeof seen);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_string_equal(seen, "\033[31mheddle:\033[0m there is no job 4\r\n");
    (void)close(terminal);

    seen[0] = '\0';
    pid = start_on_terminal("show 4 --color never", 80, &terminal);
    read_terminal(terminal, NULL, seen, sizeof seen);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_string_equal(seen, "heddle: there is no job 4\r\n");
    (void)close(terminal);
}

RUN_EACH_CASE_WITH(start_fake, stop_fake)
