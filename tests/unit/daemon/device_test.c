/* What heddled learns from `heddle-worker device`, and what it makes of a worker that answers
 * badly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "daemon/agent/device.h"

/* Asks a worker that is a shell script with this body. */
static enum hd_status ask(const char *body, struct agent_device *ret_device)
{
    const char *tmp = getenv("TMPDIR");
    char dir[256], path[288], script[512];
    enum hd_status st;

    (void)snprintf(dir, sizeof dir, "%s/device-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/worker", dir);
    (void)snprintf(script, sizeof script, "#!/bin/sh\n%s\n", body);
    assert_int_equal(hd_file_write_atomic(path, script, strlen(script), 0700), HD_OK);
    st = agent_device_ask(path, 3, ret_device);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
    return st;
}

static void an_answer_is_understood_whatever_else_it_says(void **state)
{
    struct agent_device d;

    (void)state;
    assert_int_equal(ask("[ \"$*\" = 'device --threads 3' ] || exit 9\n"
                         "printf 'colour green\\nisa avx9\\nlibrary own\\nbf16_fast 1\\n'",
                         &d),
                     HD_OK);
    assert_string_equal(d.isa, "avx9");
    assert_string_equal(d.library, "own");
    assert_true(d.bf16);
    assert_int_equal(ask("printf 'isa sse\\nbf16_fast 0\\n'", &d), HD_OK);
    assert_false(d.bf16);
}

static void a_worker_that_answers_badly_is_named(void **state)
{
    struct agent_device d;

    (void)state;
    assert_int_equal(ask("echo hello", &d), HD_CORRUPT);
    assert_non_null(strstr(hd_err_message(), "/worker device: "));
    assert_int_equal(ask("printf 'isa sse\\nbf16_fast 0\\n'; exit 3", &d), HD_IO);
    assert_non_null(strstr(hd_err_message(), "status 3"));
    assert_int_equal(ask("head -c 5000 /dev/zero", &d), HD_CORRUPT);
    assert_int_equal(agent_device_ask("/nowhere/worker", 1, &d), HD_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_understood_whatever_else_it_says),
        cmocka_unit_test(a_worker_that_answers_badly_is_named),
    };
    return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}
