/* comm: the engine nccl between processes of two nodes (tests/cudasim/nccl_wire.h), without the
 * control plane, which would end the ranks of one node when it hears of the other. */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/comm_internal.h"
#include "device.h"
#include "ranks.h"
#include "tests/program/test.h"

enum { WORLD = 4, VICTIM = 3, STEPS = 1000000, SOON_MS = 5000, NUMBERS = 4096 };

static const int32_t everybody[] = {0, 1, 2, 3};

static enum hd_status sum(struct rank *self, struct hd_comm_group *world)
{
    struct hd_comm_stream *stream = hd_comm_get_stream(self->comm, HD_COMM_STREAM_REDUCE);
    const enum hd_status st = hd_comm_launch(
        world, stream, HD_COMM_ALL_REDUCE,
        HD_COLLECTIVE(self->base, self->base, NUMBERS, HD_I32, .reduce = HD_COMM_SUM));

    return st ? st : hd_comm_wait_device(stream, hd_comm_record(stream));
}

/* Sums on and on; marks itself after the first, by which time all have connected. */
static void sum_until_it_fails(struct rank *self)
{
    struct hd_comm_group *world;
    enum hd_status st = HD_OK;

    CHECK_OK(self, hd_comm_open_group(self->comm, "world", everybody, WORLD, &world));
    memset(self->base, 0, NUMBERS * sizeof(int32_t));
    for (int i = 0; i < STEPS && !st; i++) {
        st = sum(self, world);
        if (!st)
            atomic_store(&self->report->mark, 1);
    }
    self->report->status = st;
    (void)strncpy(self->report->message, st ? hd_err_message() : "", HD_ERR_MAX - 1);
    self->report->took_ms = hd_clock_now_ms(); /* the clock is the machine's */
}

static int64_t killed_ms;

static void kill_the_victim(struct hd_shm_control *ctl, const pid_t *pids, struct report *reports)
{
    wait_for_marks(reports, WORLD);
    killed_ms = hd_clock_now_ms();
    assert_int_equal(kill(pids[VICTIM], SIGKILL), 0);
}

static void stop_the_victim(struct hd_shm_control *ctl, const pid_t *pids, struct report *reports)
{
    wait_for_marks(reports, WORLD);
    assert_int_equal(kill(pids[VICTIM], SIGSTOP), 0);
    for (int r = 0; r < VICTIM; r++)
        while (!reports[r].finished)
            (void)usleep(1000);
    assert_int_equal(kill(pids[VICTIM], SIGKILL), 0);
}

/* A rank of the other node dies: all hear of it within seconds, also those whose streams wait. */
static void a_killed_process_is_named_on_every_node(void **state)
{
    const struct ranks ranks = {
        .world = WORLD, .body = sum_until_it_fails, .parent = kill_the_victim};
    struct report *reports = ranks_run_on(ENGINE_NODES, &ranks, true);

    for (int r = 0; r < VICTIM; r++) {
        assert_int_equal(reports[r].status, HD_ABORTED);
        assert_says(&reports[r], "rank 3");
        assert_true(reports[r].took_ms - killed_ms < SOON_MS);
    }
    ranks_free(reports);
}

/* A stopped process (SIGSTOP) closes no connection. The other ranks notice it when their deadline
 * has passed. */
static void a_process_that_stands_still_meets_the_deadline(void **state)
{
    const struct ranks ranks = {
        .world = WORLD, .body = sum_until_it_fails, .parent = stop_the_victim, .deadline_ms = 3000};
    struct report *reports = ranks_run_on(ENGINE_NODES, &ranks, true);

    for (int r = 0; r < VICTIM; r++)
        assert_true(reports[r].status == HD_TIMEOUT || reports[r].status == HD_ABORTED);
    ranks_free(reports);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    ranks_device_seed(42);
    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
