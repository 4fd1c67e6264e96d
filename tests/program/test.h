/* test: cmocka, after the headers that it wants to be read before itself.
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

#endif
