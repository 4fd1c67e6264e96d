/* How a client finds its controller: what was said, the environment, then the sockets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/file.h"
#include "rpc/find.h"
#include "tests/program/test.h"

static char runtime_dir[64];

static int make_runtime_dir(void **state)
{
    (void)snprintf(runtime_dir, sizeof runtime_dir, "%.40s/find-XXXXXX",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(runtime_dir))
        return -1;
    (void)setenv("XDG_RUNTIME_DIR", runtime_dir, 1);
    (void)unsetenv(HD_RPC_CONTROLLER_ENV);
    return 0;
}

static int drop_runtime_dir(void **state)
{
    return hd_file_remove_tree(runtime_dir) ? -1 : 0;
}

static void expect_address(const char *given, const char *expected)
{
    struct hd_text address = {0};

    assert_int_equal(hd_rpc_find_controller(given, &address), HD_OK);
    assert_string_equal(address.data, expected);
    hd_text_free(&address);
}

static void put_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%.100s", path);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(close(fd), 0); /* the name stays */
}

static void what_was_said_wins_over_the_environment_over_sockets(void **state)
{
    char path[128], address[160];

    (void)snprintf(path, sizeof path, "%s/heddle", runtime_dir);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof path, "%s/heddle/controller.sock", runtime_dir);
    (void)snprintf(address, sizeof address, "unix:%s", path);
    put_socket(path);
    expect_address(NULL, address);
    (void)setenv(HD_RPC_CONTROLLER_ENV, "there:1", 1);
    expect_address(NULL, "there:1");
    expect_address("", "there:1");
    expect_address("here:2", "here:2");
    (void)unsetenv(HD_RPC_CONTROLLER_ENV);
    assert_int_equal(unlink(path), 0);
}

static void nothing_anywhere_names_the_places(void **state)
{
    struct hd_text address = {0};
    char expected[256];

    if (access("/run/heddle/controller.sock", F_OK) == 0) { /* this machine has a controller */
        expect_address(NULL, "unix:/run/heddle/controller.sock");
        return;
    }
    assert_int_equal(hd_rpc_find_controller(NULL, &address), HD_UNAVAILABLE);
    (void)snprintf(expected, sizeof expected,
                   "there is no controller at unix:%s/heddle/controller.sock or "
                   "unix:/run/heddle/controller.sock; start heddle-controller, or give "
                   "--controller ADDR or HEDDLE_CONTROLLER",
                   runtime_dir);
    assert_string_equal(hd_err_message(), expected);
    hd_text_free(&address);
}

static void a_controller_listens_where_clients_look(void **state)
{
    struct hd_text address = {0};
    char expected[128];

    (void)snprintf(expected, sizeof expected, "unix:%s/heddle/controller.sock", runtime_dir);
    assert_int_equal(hd_rpc_default_listen(&address), HD_OK);
    assert_string_equal(address.data,
                        geteuid() == 0 ? "unix:/run/heddle/controller.sock" : expected);
    hd_text_free(&address);
}

RUN_CASES_BETWEEN(make_runtime_dir, drop_runtime_dir)
