/* cmocka: the part of that test framework which Heddle's tests use, for machines without it.
 *
 * Same names, same meaning, same output lines (tests/run reads those), so the same test sources
 * build with either; tests/CMakeLists.txt chooses. Not here: mocks, expectations, allocation
 * tracking. A failed assertion leaves the case by longjmp, so what the case holds is not freed.
 *
 * Used by: tests.   Uses: libc.
 * Threads: assertions only on the thread that runs the case.
 */
#ifndef HEDDLE_TEST_SHIM_CMOCKA_H
#define HEDDLE_TEST_SHIM_CMOCKA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int (*CMFixtureFunction)(void **state);
typedef void (*CMUnitTestFunction)(void **state);

struct CMUnitTest {
    const char *name;
    CMUnitTestFunction test_func;
    CMFixtureFunction setup_func;
    CMFixtureFunction teardown_func;
    void *initial_state;
};

#define cmocka_unit_test(f)     \
    {                           \
#f, f, NULL, NULL, NULL \
    }
#define cmocka_unit_test_setup(f, setup) \
    {                                    \
#f, f, setup, NULL, NULL         \
    }
#define cmocka_unit_test_teardown(f, teardown) \
    {                                          \
#f, f, NULL, teardown, NULL            \
    }
#define cmocka_unit_test_setup_teardown(f, setup, teardown) \
    {                                                       \
#f, f, setup, teardown, NULL                        \
    }
#define cmocka_unit_test_prestate(f, state) \
    {                                       \
#f, f, NULL, NULL, state            \
    }
#define cmocka_unit_test_prestate_setup_teardown(f, setup, teardown, state) \
    {                                                                       \
#f, f, setup, teardown, state                                       \
    }

/* Runs the cases in order and returns how many failed; a failed group_setup fails them all. */
#define cmocka_run_group_tests_name(name, tests, setup, teardown) \
    hd_shim_run(name, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)
#define cmocka_run_group_tests(tests, setup, teardown) \
    cmocka_run_group_tests_name(#tests, tests, setup, teardown)
int hd_shim_run(const char *name, const struct CMUnitTest *tests, size_t count,
                CMFixtureFunction setup, CMFixtureFunction teardown);
/* Runs only the cases whose name matches this shell pattern. */
void cmocka_set_test_filter(const char *pattern);

void print_message(const char *format, ...) __attribute__((format(printf, 1, 2)));
void print_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define skip()        hd_shim_skip(__FILE__, __LINE__)
#define fail()        hd_shim_fail(__FILE__, __LINE__)
#define fail_msg(...) (print_error("ERROR: " __VA_ARGS__), print_error("\n"), fail())
_Noreturn void hd_shim_skip(const char *file, int line);
_Noreturn void hd_shim_fail(const char *file, int line);

/* Integers and pointers are compared as cmocka does, in the widest unsigned type. */
#define HD_SHIM_WIDE(x)         ((uintmax_t)(x))
#define HD_SHIM_WIDE_POINTER(x) ((uintmax_t)(uintptr_t)(x))

#define assert_true(c)                hd_shim_true((c) ? 1 : 0, #c, __FILE__, __LINE__)
#define assert_false(c)               hd_shim_true((c) ? 0 : 1, "!(" #c ")", __FILE__, __LINE__)
#define assert_null(p)                hd_shim_true((p) == NULL, #p " == NULL", __FILE__, __LINE__)
#define assert_non_null(p)            hd_shim_true((p) != NULL, #p " != NULL", __FILE__, __LINE__)
#define assert_return_code(rc, error) hd_shim_return_code((rc), (error), #rc, __FILE__, __LINE__)
#define assert_int_equal(a, b) \
    hd_shim_int(HD_SHIM_WIDE(a), HD_SHIM_WIDE(b), true, __FILE__, __LINE__)
#define assert_int_not_equal(a, b) \
    hd_shim_int(HD_SHIM_WIDE(a), HD_SHIM_WIDE(b), false, __FILE__, __LINE__)
#define assert_ptr_equal(a, b) \
    hd_shim_int(HD_SHIM_WIDE_POINTER(a), HD_SHIM_WIDE_POINTER(b), true, __FILE__, __LINE__)
#define assert_ptr_not_equal(a, b) \
    hd_shim_int(HD_SHIM_WIDE_POINTER(a), HD_SHIM_WIDE_POINTER(b), false, __FILE__, __LINE__)
#define assert_in_range(value, min, max)                                                     \
    hd_shim_range(HD_SHIM_WIDE(value), HD_SHIM_WIDE(min), HD_SHIM_WIDE(max), true, __FILE__, \
                  __LINE__)
#define assert_not_in_range(value, min, max)                                                  \
    hd_shim_range(HD_SHIM_WIDE(value), HD_SHIM_WIDE(min), HD_SHIM_WIDE(max), false, __FILE__, \
                  __LINE__)
#define assert_float_equal(a, b, epsilon) \
    hd_shim_float((a), (b), (epsilon), true, __FILE__, __LINE__)
#define assert_float_not_equal(a, b, epsilon) \
    hd_shim_float((a), (b), (epsilon), false, __FILE__, __LINE__)
#define assert_string_equal(a, b)       hd_shim_string((a), (b), true, __FILE__, __LINE__)
#define assert_string_not_equal(a, b)   hd_shim_string((a), (b), false, __FILE__, __LINE__)
#define assert_memory_equal(a, b, size) hd_shim_memory((a), (b), (size), true, __FILE__, __LINE__)
#define assert_memory_not_equal(a, b, size) \
    hd_shim_memory((a), (b), (size), false, __FILE__, __LINE__)

void hd_shim_true(int holds, const char *what, const char *file, int line);
void hd_shim_return_code(intmax_t rc, int error, const char *what, const char *file, int line);
void hd_shim_int(uintmax_t a, uintmax_t b, bool equal, const char *file, int line);
void hd_shim_range(uintmax_t value, uintmax_t min, uintmax_t max, bool inside, const char *file,
                   int line);
void hd_shim_float(double a, double b, double epsilon, bool equal, const char *file, int line);
void hd_shim_string(const char *a, const char *b, bool equal, const char *file, int line);
void hd_shim_memory(const void *a, const void *b, size_t size_bytes, bool equal, const char *file,
                    int line);

#endif
