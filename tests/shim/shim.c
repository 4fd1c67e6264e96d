#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka.h"

enum outcome { RAN = 0, FAILED, SKIPPED };

/* The one case that runs, and where a failed assertion in it goes. A test program's main has no
 * other way to hand this to assert_true(), so here, alone in Heddle, state is global. */
static jmp_buf leave;
static bool running;
static const char *filter;

void cmocka_set_test_filter(const char *pattern)
{
    filter = pattern;
}

void print_message(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    (void)fflush(stdout); /* a crash must not take the line with it */
}

void print_error(const char *format, ...)
{
    va_list args;

    (void)fflush(stdout);
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
}

static _Noreturn void leave_with(enum outcome outcome)
{
    if (running)
        longjmp(leave, (int)outcome);
    exit(EXIT_FAILURE); /* an assertion in a group fixture or after the last case */
}

void hd_shim_fail(const char *file, int line)
{
    print_error("[   LINE   ] --- %s:%d: error: Failure!\n", file, line);
    leave_with(FAILED);
}

void hd_shim_skip(const char *file, int line)
{
    (void)file;
    (void)line;
    leave_with(SKIPPED);
}

void hd_shim_true(int holds, const char *what, const char *file, int line)
{
    if (holds)
        return;
    print_error("[  ERROR   ] --- does not hold: %s\n", what);
    hd_shim_fail(file, line);
}

void hd_shim_return_code(intmax_t rc, int error, const char *what, const char *file, int line)
{
    if (rc >= 0)
        return;
    print_error("[  ERROR   ] --- %s is %jd: %s\n", what, rc, strerror(error));
    hd_shim_fail(file, line);
}

void hd_shim_int(uintmax_t a, uintmax_t b, bool equal, const char *file, int line)
{
    if ((a == b) == equal)
        return;
    print_error("[  ERROR   ] --- %#jx %s %#jx\n", a, equal ? "!=" : "==", b);
    hd_shim_fail(file, line);
}

void hd_shim_range(uintmax_t value, uintmax_t min, uintmax_t max, bool inside, const char *file,
                   int line)
{
    if ((value >= min && value <= max) == inside)
        return;
    print_error("[  ERROR   ] --- %ju is %s the range %ju-%ju\n", value,
                inside ? "not within" : "within", min, max);
    hd_shim_fail(file, line);
}

void hd_shim_float(double a, double b, double epsilon, bool equal, const char *file, int line)
{
    const double distance = a > b ? a - b : b - a;

    if ((a == b || distance <= epsilon) == equal) /* a == b: also two equal infinities */
        return;
    print_error("[  ERROR   ] --- %.17g %s %.17g\n", a, equal ? "!=" : "==", b);
    hd_shim_fail(file, line);
}

void hd_shim_string(const char *a, const char *b, bool equal, const char *file, int line)
{
    if (a && b && (strcmp(a, b) == 0) == equal)
        return;
    print_error("[  ERROR   ] --- \"%s\" %s \"%s\"\n", a ? a : "(null)",
                equal ? "!=" : "==", b ? b : "(null)");
    hd_shim_fail(file, line);
}

void hd_shim_memory(const void *a, const void *b, size_t size_bytes, bool equal, const char *file,
                    int line)
{
    const unsigned char *x = a, *y = b;
    size_t first = 0;

    while (first < size_bytes && x[first] == y[first])
        first++;
    if ((first == size_bytes) == equal)
        return;
    if (equal)
        print_error("[  ERROR   ] --- at offset %zu of %zu: 0x%02x != 0x%02x\n", first, size_bytes,
                    x[first], y[first]);
    else
        print_error("[  ERROR   ] --- all %zu bytes are equal\n", size_bytes);
    hd_shim_fail(file, line);
}

/* A fixture's result: it fails by its value or by an assertion in it. */
static bool fixture_holds(CMFixtureFunction fixture, void **state)
{
    volatile bool holds = false;

    if (!fixture)
        return true;
    running = true;
    if (setjmp(leave) == RAN)
        holds = fixture(state) == 0;
    running = false;
    return holds;
}

static enum outcome run_body(CMUnitTestFunction body, void **state)
{
    volatile enum outcome outcome = FAILED;

    running = true;
    switch (setjmp(leave)) {
    case RAN:
        body(state);
        outcome = RAN;
        break;
    case SKIPPED:
        outcome = SKIPPED;
        break;
    default:
        break;
    }
    running = false;
    return outcome;
}

static enum outcome run_case(const struct CMUnitTest *test, void **state)
{
    enum outcome outcome;

    if (!fixture_holds(test->setup_func, state)) {
        print_error("[  ERROR   ] --- the setup of %s failed\n", test->name);
        return FAILED;
    }
    outcome = run_body(test->test_func, state);
    if (!fixture_holds(test->teardown_func, state)) {
        print_error("[  ERROR   ] --- the teardown of %s failed\n", test->name);
        return FAILED;
    }
    return outcome;
}

static bool chosen(const struct CMUnitTest *test)
{
    return test->test_func && (!filter || fnmatch(filter, test->name, 0) == 0);
}

int hd_shim_run(const char *name, const struct CMUnitTest *tests, size_t count,
                CMFixtureFunction setup, CMFixtureFunction teardown)
{
    static const char *const words[] = {
        [RAN] = "      OK", [FAILED] = " FAILED ", [SKIPPED] = " SKIPPED"};
    size_t ran[3] = {0}, wanted = 0;
    void *group_state = NULL;
    bool group_holds;

    for (size_t i = 0; i < count; i++)
        wanted += chosen(&tests[i]);
    print_message("[==========] %s: Running %zu test(s).\n", name, wanted);
    group_holds = fixture_holds(setup, &group_state);
    if (!group_holds)
        print_error("[  ERROR   ] %s: group setup failed\n", name);
    for (size_t i = 0; i < count; i++) {
        void *state = tests[i].initial_state ? tests[i].initial_state : group_state;
        enum outcome outcome;

        if (!chosen(&tests[i]))
            continue;
        print_message("[ RUN      ] %s\n", tests[i].name);
        outcome = group_holds ? run_case(&tests[i], &state) : FAILED;
        print_message("[ %s ] %s\n", words[outcome], tests[i].name);
        ran[outcome]++;
    }
    if (group_holds && !fixture_holds(teardown, &group_state)) {
        print_error("[  ERROR   ] %s: group teardown failed\n", name);
        ran[FAILED]++;
    }
    print_message("[==========] %s: %zu test(s) run.\n", name, wanted);
    print_message("[  PASSED  ] %zu test(s).\n", ran[RAN]);
    if (ran[FAILED])
        print_error("\n %zu FAILED TEST(S)\n", ran[FAILED]);
    return (int)ran[FAILED];
}
