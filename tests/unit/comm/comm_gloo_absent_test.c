/* A build without the library gloo says so, and nothing more happens. */
#include <string.h>

#include "comm/gloo.h"
#include "tests/program/test.h"

/* Goal: who asks for several nodes learns what to install. Method: every listener to the engine. */
static void a_build_without_gloo_says_what_to_install(void **state)
{
    const struct hd_gloo_endpoint endpoints[2] = {0};
    struct hd_gloo_listener *listener = NULL;
    struct hd_comm *comm = NULL;

    assert_false(hd_gloo_built_in());
    assert_int_equal(hd_gloo_listener_open("127.0.0.1", "here", &listener), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "libgloo-dev"));
    assert_null(listener);
    assert_int_equal(hd_comm_open_gloo(NULL, endpoints, 0, 2, 1000, &comm), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "libgloo-dev"));
    assert_null(comm);
}

RUN_CASES()
