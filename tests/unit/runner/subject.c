/* subject: what runner.sh runs to learn what a framework makes of each outcome: every assertion
 * once where it holds and once where it does not, skips, and fixtures that fail.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define HOLDS_AND_FAILS(name, good, bad)   \
    static void name##_holds(void **state) \
    {                                      \
        (void)state;                       \
        good;                              \
    }                                      \
    static void name##_fails(void **state) \
    {                                      \
        (void)state;                       \
        bad;                               \
    }

#define OUTCOMES(X)                                                                             \
    X(true_, assert_true(1), assert_true(0))                                                    \
    X(false_, assert_false(0), assert_false(1))                                                 \
    X(null, assert_null(NULL), assert_null(&here))                                              \
    X(non_null, assert_non_null(&here), assert_non_null(NULL))                                  \
    X(return_code, assert_return_code(0, 0), assert_return_code(-1, EINVAL))                    \
    X(int_equal, assert_int_equal(-1, (int32_t)-1), assert_int_equal(1, 2))                     \
    X(int_not_equal, assert_int_not_equal(1, 2), assert_int_not_equal(1, 1))                    \
    X(ptr_equal, assert_ptr_equal(&here, &here), assert_ptr_equal(&here, &there))               \
    X(ptr_not_equal, assert_ptr_not_equal(&here, &there), assert_ptr_not_equal(&here, &here))   \
    X(in_range, assert_in_range(3, 3, 5), assert_in_range(6, 3, 5))                             \
    X(not_in_range, assert_not_in_range(6, 3, 5), assert_not_in_range(5, 3, 5))                 \
    X(float_equal, assert_float_equal(1.0f, 1.25f, 0.5f), assert_float_equal(1.0f, 2.0f, 0.5f)) \
    X(float_not_equal, assert_float_not_equal(1.0f, 2.0f, 0.5f),                                \
      assert_float_not_equal(1.0f, 1.25f, 0.5f))                                                \
    X(string_equal, assert_string_equal("a", "a"), assert_string_equal("a", "b"))               \
    X(string_not_equal, assert_string_not_equal("a", "b"), assert_string_not_equal("a", "a"))   \
    X(memory_equal, assert_memory_equal("ab", "ac", 1), assert_memory_equal("ab", "ac", 2))     \
    X(memory_not_equal, assert_memory_not_equal("ab", "ac", 2),                                 \
      assert_memory_not_equal("ab", "ac", 1))                                                   \
    X(skip_, skip(), skip())                                                                    \
    X(fail_, (void)0, fail())                                                                   \
    X(fail_msg_, (void)0, fail_msg("%d is the answer", 42))

static const int here, there;

OUTCOMES(HOLDS_AND_FAILS)

static int fixture_that_fails(void **state)
{
    return -1;
}

static int fixture_that_gives_a_state(void **state)
{
    static int answer = 42;

    *state = &answer;
    return 0;
}

static void case_gets_the_state_of_its_setup(void **state)
{
    assert_int_equal(*(int *)*state, 42);
}

static void case_runs_between_its_fixtures(void **state)
{
}

int main(void)
{
#define BOTH(name, good, bad) cmocka_unit_test(name##_holds), cmocka_unit_test(name##_fails),
    const struct CMUnitTest tests[] = {
        OUTCOMES(BOTH)
            cmocka_unit_test_setup(case_gets_the_state_of_its_setup, fixture_that_gives_a_state),
        cmocka_unit_test_teardown(case_runs_between_its_fixtures, fixture_that_fails),
    };

    return cmocka_run_group_tests_name("subject", tests, NULL, NULL);
}
