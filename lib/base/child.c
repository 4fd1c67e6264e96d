#include "base/child.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum {
    CHECK_MS = 20,    /* milliseconds between two checks of a child that writes nothing */
    KILLED_MS = 1000, /* milliseconds that a child gets to end after SIGKILL; one that hangs in a
                         driver does not end */
};

static bool has_ended(pid_t pid, int *ret_status)
{
    pid_t ended;

    do
        ended = waitpid(pid, ret_status, WNOHANG);
    while (ended < 0 && errno == EINTR);
    return ended != 0;
}

/* Waits up to wait_ms for output of the child and appends up to 4 KiB of it. Returns false if none
 * came in this time, or at the end of the output (*open is then false). */
static bool take_piece(int fd, int wait_ms, size_t max_bytes, struct hd_text *output, bool *open)
{
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    char piece[4096];
    size_t capacity;
    ssize_t n;

    if (!*open) {
        (void)poll(NULL, 0, wait_ms);
        return false;
    }
    if (poll(&poller, 1, wait_ms) <= 0)
        return false;
    n = read(fd, piece, sizeof piece);
    *open = n > 0 || (n < 0 && errno == EINTR);
    if (n <= 0)
        return false;
    capacity = output->len_bytes < max_bytes ? max_bytes - output->len_bytes : 0;
    hd_text_add_bytes(output, piece, (size_t)n < capacity ? (size_t)n : capacity);
    return true;
}

static void end_now(pid_t pid, int *ret_status)
{
    const int64_t end_ms = hd_clock_now_ms() + KILLED_MS;

    (void)kill(pid, SIGKILL);
    while (!has_ended(pid, ret_status) && hd_clock_now_ms() < end_ms)
        (void)poll(NULL, 0, CHECK_MS);
}

enum hd_status hd_child_wait(pid_t pid, int fd, int64_t timeout_ms, size_t max_bytes,
                             struct hd_text *ret_output, int *ret_status)
{
    const int64_t end_ms = timeout_ms ? hd_clock_now_ms() + timeout_ms : INT64_MAX;
    bool open = true;

    *ret_status = 0;
    while (!has_ended(pid, ret_status)) {
        if (hd_clock_now_ms() >= end_ms) {
            end_now(pid, ret_status);
            return hd_err(HD_TIMEOUT, "it did not end within %.3g s", (double)timeout_ms / 1e3);
        }
        (void)take_piece(fd, CHECK_MS, max_bytes, ret_output, &open);
    }
    while (ret_output->len_bytes < max_bytes && hd_clock_now_ms() < end_ms &&
           take_piece(fd, 0, max_bytes, ret_output, &open))
        ; /* output that the child wrote before it ended, up to max_bytes */
    return HD_OK;
}
