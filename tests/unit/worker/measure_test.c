/* Goal: the memory that a process takes of a device, as another one shows it: this program, which
 * is started again as the other and does what $MEASURE_TEST says. The device is two numbers. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/program/test.h"
#include "worker/measure.h"

enum { ASSUMED = 77 };

static int asked; /* how often memory was */

static enum hd_status open_device(const struct hd_backend_options *options,
                                  struct hd_backend **ret_backend)
{
    *ret_backend = NULL;
    return HD_OK;
}

static void close_device(struct hd_backend *backend)
{
}

/* 1000 bytes are free before, 400 behind. */
static enum hd_status tell_memory(struct hd_backend *backend, struct hd_device_memory *ret_memory)
{
    *ret_memory = (struct hd_device_memory){.total_bytes = 2000, .free_bytes = asked ? 400 : 1000};
    asked++;
    return HD_OK;
}

static const struct hd_device_table device = {.memory = tell_memory};
static const struct hd_backend_table table = {
    .device = &device, .open = open_device, .close = close_device};

static struct hd_traits measure(const char *other, int timeout_ms)
{
    struct hd_traits traits = {.process_bytes = ASSUMED};

    asked = 0;
    assert_int_equal(setenv("MEASURE_TEST", other, 1), 0);
    hd_measure_process(&table, timeout_ms, &traits);
    return traits;
}

/* Ends when every other process has ended; what hangs does so only when it is killed. */
static void assert_alone(void)
{
    while (waitpid(-1, NULL, 0) > 0)
        ;
    assert_int_equal(errno, ECHILD);
}

static void what_is_missing_is_what_the_other_takes(void **state)
{
    const struct hd_traits traits = measure("hold", HD_MEASURE_MS);

    assert_true(traits.process_measured);
    assert_int_equal(traits.process_bytes, 1000 - 400);
    assert_alone();
}

/* The driver does not answer, or not any more. */
static void one_that_hangs_is_not_waited_for(void **state)
{
    struct hd_traits traits = measure("hang", 200);

    assert_false(traits.process_measured);
    assert_int_equal(traits.process_bytes, ASSUMED);
    assert_alone();
    traits = measure("stay", HD_MEASURE_MS);
    assert_true(traits.process_measured); /* it has held what it takes */
    assert_alone();
}

static void one_that_fails_leaves_what_is_assumed(void **state)
{
    const struct hd_traits traits = measure("fail", HD_MEASURE_MS);

    assert_false(traits.process_measured);
    assert_int_equal(traits.process_bytes, ASSUMED);
    assert_alone();
}

static int be_the_other(const char *what)
{
    if (strcmp(what, "fail") == 0)
        return 1;
    while (strcmp(what, "hang") == 0)
        (void)pause();
    (void)puts("held");
    (void)fflush(stdout);
    while (getchar() != EOF)
        ;
    while (strcmp(what, "stay") == 0)
        (void)pause();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    if (argc > 1 && strcmp(argv[1], "device") == 0)
        return be_the_other(getenv("MEASURE_TEST"));
    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
