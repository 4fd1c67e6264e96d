/* test: cmocka, after the headers that it wants to be read before itself, and statuses that must be HD_OK.
 *
 * Used by: tests.   Uses: cmocka, or tests/shim where it is absent.
 */
#ifndef HD_TESTS_PROGRAM_TEST_H
#define HD_TESTS_PROGRAM_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/status.h"

/* Fails the test with the story of a status that is not HD_OK. */
static inline void must(enum hd_status st)
{
    if (st)
        fail_msg("%s", hd_err_message());
}

#endif
