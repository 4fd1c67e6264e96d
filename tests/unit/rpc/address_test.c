/* rpc: addresses that people write. */
#include <stdio.h>
#include <string.h>

#include "rpc/address.h"
#include "rpc/rpc.h"
#include "tests/program/test.h"

static void both_forms_are_taken_apart(void **state)
{
    char text[HD_RPC_ADDRESS_MAX + 1], target[HD_RPC_TARGET_MAX];
    struct hd_rpc_address address;

    assert_int_equal(hd_rpc_parse_address("unix:/run/heddle/a b%.sock", &address), HD_OK);
    assert_true(address.is_unix);
    assert_string_equal(address.path, "/run/heddle/a b%.sock");
    hd_rpc_format_target(&address, target); /* ' ' is 0x20, '%' is 0x25 */
    assert_string_equal(target, "unix:/run/heddle/a%20b%25.sock");

    assert_int_equal(hd_rpc_parse_address("controller.example:7400", &address), HD_OK);
    assert_false(address.is_unix);
    assert_string_equal(address.host, "controller.example");
    assert_int_equal(address.port, 7400);

    assert_int_equal(hd_rpc_parse_address("[fe80::1]:1", &address), HD_OK);
    assert_string_equal(address.host, "fe80::1");
    hd_rpc_format_host_port(&address, text);
    assert_string_equal(text, "[fe80::1]:1");
}

static void only_this_machine_is_loopback(void **state)
{
    static const char *const near[] = {"unix:/x", "localhost:1", "127.0.0.1:1", "127.9.8.7:1",
                                       "[::1]:1"};
    static const char *const far[] = {
        "0.0.0.0:1",           "[::]:1", "10.0.0.1:1", "128.0.0.1:1", "localhost.example:1",
        "127.0.0.1.example:1", "[::2]:1"};

    for (size_t i = 0; i < sizeof near / sizeof near[0]; i++)
        assert_true(hd_rpc_address_is_loopback(near[i]));
    for (size_t i = 0; i < sizeof far / sizeof far[0]; i++)
        assert_false(hd_rpc_address_is_loopback(far[i]));
}

static void wrong_addresses_are_explained(void **state)
{
    static const char *const wrong[][2] = {
        {"", "neither"},        {"controller", "neither"},   {":7400", "neither"},
        {"host:", "port"},      {"host:port", "port"},       {"host:65536", "port"},
        {"host:-1", "port"},    {"::1:7400", "[HOST]:PORT"}, {"[]:1", "host"},
        {"ho st:1", "invalid"}, {"http://host:1", "URL"},    {"unix:", "no path"},
    };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(hd_rpc_check_address(wrong[i][0]), HD_INVALID);
        assert_non_null(strstr(hd_err_message(), wrong[i][1]));
    }
}

static void socket_path_has_the_kernels_limit(void **state)
{
    char address[256];

    memset(address, 'x', sizeof address);
    memcpy(address, "unix:/", 6);
    address[5 + 107] = '\0'; /* sun_path has 108 bytes, one of them for the NUL */
    assert_int_equal(hd_rpc_check_address(address), HD_OK);
    address[5 + 107] = 'x';
    address[5 + 108] = '\0';
    assert_int_equal(hd_rpc_check_address(address), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "108 bytes"));
    assert_non_null(strstr(hd_err_message(), "107"));
}

RUN_CASES()
