/* Goal: the address at which ranks of other nodes reach those of this one. */
#include <string.h>

#include "daemon/agent/address.h"
#include "tests/program/test.h"

static void only_a_numeric_address_of_this_machine_will_do(void **state)
{
    static const char *const bad[] = {
        "localhost", "10.0.0.3:80", "0.0.0.0",      "::",
        "",          "1.2.3",       "203.0.113.199"}; /* the last one is nobody's (RFC 5737) */

    assert_int_equal(agent_address_check("127.0.0.1"), HD_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(agent_address_check(bad[i]), HD_INVALID);
        assert_true(strstr(hd_err_message(), "numeric address of this machine") ||
                    strstr(hd_err_message(), "cannot listen there"));
    }
}

static void beside_the_controller_it_is_loopback(void **state)
{
    static const char *const local[] = {"unix:/run/heddle/controller.sock", "localhost:7433",
                                        "127.0.0.1:7433"};
    char address[AGENT_ADDRESS_MAX];

    for (size_t i = 0; i < sizeof local / sizeof local[0]; i++) {
        assert_int_equal(agent_address_find(local[i], address), HD_OK);
        assert_string_equal(address, "127.0.0.1");
    }
    assert_int_equal(agent_address_find("no port", address), HD_INVALID);
}

/* Without a network there is none; else it is one on which ranks can listen. */
static void towards_another_machine_it_is_an_own_address(void **state)
{
    char address[AGENT_ADDRESS_MAX];
    enum hd_status st = agent_address_find("203.0.113.199:7433", address);

    if (st)
        assert_int_equal(st, HD_UNAVAILABLE);
    else
        assert_int_equal(agent_address_check(address), HD_OK);
}

RUN_CASES()
