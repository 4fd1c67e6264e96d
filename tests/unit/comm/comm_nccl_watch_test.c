/* comm: how the engine nccl aborts beside an owner that stands in a call, and beside a driver that
 * does not answer. Over the stand-in of tests/cudasim. In each case the ranks meet once more, on
 * endpoints of which that of rank 0 makes its calls through the functions below; then rank 2 is
 * said to have died, and all must hear it. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/nccl_internal.h"
#include "device.h"
#include "ranks.h"
#include "tests/cudasim/nccl_stand_in.h"
#include "tests/program/test.h"

static const int32_t everybody[] = {0, 1, 2};

enum { WORLD = 3, LAST = WORLD - 1, PATIENCE_MS = 30000, SHORT_MS = 500 };

enum trap {
    NOWHERE,
    IN_INIT,       /* until this rank has aborted something */
    BEFORE_INIT,   /* likewise, and it takes no part in the making of the communicator */
    IN_A_GROUP,    /* for a while that is too short to abort beside it */
    IN_A_BUNDLE,   /* in its first send, until somebody wants to abort */
    AT_THE_DRIVER, /* asked for events it answers when this rank has aborted something; its owner
                      is BLOCKED in a call */
};

/* State of rank 0. */
static struct {
    const struct hd_nccl_table *real;
    struct hd_nccl_table calls;
    struct hd_comm *comm;
    _Atomic enum trap trap; /* it is set */
    _Atomic int aborts;
    _Atomic bool caught;                     /* somebody is in it */
    _Atomic bool gave_up, was_aborted_early; /* what went wrong */
} first;

static struct hd_shm_control *second_control;

static bool steps_into(enum trap trap)
{
    if (atomic_load(&first.trap) != trap)
        return false;
    atomic_store(&first.caught, true);
    return true;
}

static void wait_for_an_abort(void)
{
    const int64_t begin_ms = hd_clock_now_ms();

    while (!atomic_load(&first.aborts) && !atomic_load(&first.gave_up)) {
        (void)usleep(500);
        if (hd_clock_now_ms() - begin_ms >= PATIENCE_MS)
            atomic_store(&first.gave_up, true);
    }
}

static void count_abort(struct hd_nccl_comm *comm)
{
    atomic_fetch_add(&first.aborts, 1);
    first.real->abort(comm);
}

static enum hd_status init(const struct hd_nccl_id *id, int world, int rank,
                           struct hd_nccl_comm **ret_comm)
{
    enum hd_status st;

    if (steps_into(BEFORE_INIT)) {
        wait_for_an_abort();
        return hd_err(HD_ABORTED, "the driver does not answer");
    }
    st = first.real->init(id, world, rank, ret_comm);
    if (steps_into(IN_INIT))
        wait_for_an_abort();
    return st;
}

static enum hd_status group_end(void)
{
    const enum hd_status st = first.real->group_end();
    int64_t since_ms;

    if (!steps_into(IN_A_GROUP))
        return st;
    since_ms = atomic_load(&nccl_of(first.comm)->calling_since_ms);
    while (hd_clock_now_ms() - since_ms < NCCL_BLOCKED_MS / 2)
        (void)usleep(500);
    /* in this order: who was kept from the processor for long may be aborted beside */
    if (atomic_load(&first.aborts) && hd_clock_now_ms() - since_ms < NCCL_BLOCKED_MS)
        atomic_store(&first.was_aborted_early, true);
    return st;
}

static enum hd_status send_in_a_bundle(struct hd_nccl_comm *comm, struct hd_stream *stream,
                                       const void *buf, int64_t bytes, int peer)
{
    const int64_t begin_ms = hd_clock_now_ms();

    if (steps_into(IN_A_BUNDLE)) {
        while (!atomic_load(&nccl_of(first.comm)->aborted) &&
               hd_clock_now_ms() - begin_ms < PATIENCE_MS)
            (void)usleep(500);
    }
    return first.real->send(comm, stream, buf, bytes, peer);
}

static enum hd_status event_done(struct hd_event *event, bool *ret_done)
{
    if (steps_into(AT_THE_DRIVER))
        wait_for_an_abort();
    return ranks_device()->device->event_done(event, ret_done);
}

static enum hd_status take_calls(const struct hd_nccl_table **ret_calls)
{
    const enum hd_status st = ranks_device()->device->nccl(&first.real);

    if (st)
        return st;
    first.calls = *first.real;
    first.calls.init = init;
    first.calls.abort = count_abort;
    first.calls.group_end = group_end;
    first.calls.send = send_in_a_bundle;
    *ret_calls = &first.calls;
    return HD_OK;
}

/* ---- the ranks ---- */

static enum hd_status sum(struct rank *self, struct hd_comm_group *group)
{
    struct hd_comm_stream *stream = hd_comm_get_stream(self->comm, HD_COMM_STREAM_REDUCE);
    int32_t *x = (int32_t *)self->base;
    const enum hd_status st = hd_comm_launch(group, stream, HD_COMM_ALL_REDUCE,
                                             HD_COLLECTIVE(x, x, 1, HD_I32, .reduce = HD_COMM_SUM));

    return st ? st : hd_comm_wait(stream, hd_comm_record(stream));
}

static enum hd_status send_twice(struct rank *self, struct hd_comm_group *group)
{
    struct hd_comm_stream *stream = hd_comm_get_stream(self->comm, HD_COMM_STREAM_REDUCE);
    const struct hd_comm_send_args args = {self->base, 4, HD_I32, 1};
    enum hd_status st;

    hd_comm_begin(stream);
    st = hd_comm_send(group, stream, &args);
    if (!st)
        st = hd_comm_send(group, stream, &args);
    hd_comm_end(stream);
    return st ? st : hd_comm_wait(stream, hd_comm_record(stream));
}

/* Acts as rank 0 when the trap is set. */
static enum hd_status step_in(struct rank *self, struct hd_comm_group *world)
{
    struct hd_comm_group *pair;
    enum hd_status st;

    if (atomic_load(&first.trap) == IN_A_BUNDLE)
        return send_twice(self, world);
    if (atomic_load(&first.trap) != IN_INIT && atomic_load(&first.trap) != BEFORE_INIT)
        return sum(self, world);
    st = hd_comm_open_group(self->comm, "pair", everybody, 2, &pair);
    return st ? st : sum(self, pair);
}

/* All have come so far. */
static void meet(struct rank *self)
{
    struct report *reports = self->report - self->rank;

    atomic_store(&self->report->mark, 1);
    for (int r = 0; r < WORLD; r++)
        while (!atomic_load(&reports[r].mark))
            (void)usleep(500);
}

static void meet_once_more(struct rank *self)
{
    const enum trap trap = *(const enum trap *)self->arg;
    struct hd_device_table calls = *self->table->device;
    struct hd_backend_table table = *self->table;
    struct hd_comm_device device = {&table, self->backend, true};
    struct hd_comm *host, *outer = self->comm;
    char *outer_base = self->base;
    struct hd_comm_group *group;
    enum hd_status st = HD_OK;
    void *base;

    if (self->rank == 0) {
        calls.nccl = take_calls;
        calls.event_done = event_done;
    }
    table.device = &calls;
    CHECK_OK(self, hd_comm_open_shm(hd_shm_control_fd(second_control),
                                    hd_shm_control_rank_fds(second_control), self->rank, WORLD,
                                    2 * PATIENCE_MS, &host));
    CHECK_OK(self, hd_comm_open_nccl(host, &device,
                                     &(struct hd_comm_nccl_options){.deadline_ms = 2 * PATIENCE_MS},
                                     &self->comm));
    CHECK_OK(self, hd_comm_alloc_registered(self->comm, 4096, &base));
    self->base = base;
    CHECK_OK(self, hd_comm_open_group(self->comm, "world", everybody, WORLD, &group));
    CHECK_OK(self, sum(self, group));
    meet(self);
    if (self->rank == 0) {
        first.comm = self->comm;
        atomic_store(&first.trap, trap);
        if (trap == AT_THE_DRIVER)
            hd_nccl_stand_in_defect(0, HD_NCCL_BLOCKED);
        st = step_in(self, group);
        self->report->numbers[0] = nccl_of(self->comm)->grouping;
    } else if (self->rank == 1 && (trap == IN_INIT || trap == BEFORE_INIT)) {
        if (trap == BEFORE_INIT)
            hd_comm_set_deadline(self->comm, SHORT_MS);
        st = hd_comm_open_group(self->comm, "pair", everybody, 2, &group);
        st = st ? st : sum(self, group);
    }
    while (!st)
        st = hd_comm_failure(self->comm);
    self->report->status = st;
    (void)snprintf(self->report->message, HD_ERR_MAX, "%s", hd_err_message());
    hd_comm_free(self->comm);
    self->comm = outer;
    self->base = outer_base;
}

static void the_last_dies_when_the_first_is_caught(struct hd_shm_control *ctl, const pid_t *pids,
                                                   struct report *reports)
{
    const int64_t begin_ms = hd_clock_now_ms();

    while (!atomic_load(&first.caught) && hd_clock_now_ms() - begin_ms < PATIENCE_MS)
        (void)usleep(500);
    hd_shm_control_mark_dead(second_control, LAST, "killed by signal 9");
}

/* In `says` the failure that all hear of. */
static void all_hear(enum trap trap, enum hd_status st, const char *says)
{
    const struct ranks ranks = {
        .world = WORLD,
        .body = meet_once_more,
        .arg = &trap,
        .parent = trap == BEFORE_INIT ? NULL : the_last_dies_when_the_first_is_caught};
    struct report *reports;

    memset(&first, 0, sizeof first);
    assert_int_equal(hd_shm_control_new(WORLD, &second_control), HD_OK);
    reports = ranks_run(&ranks, false);
    hd_nccl_stand_in_defect(0, HD_NCCL_WELL);
    assert_true(first.caught);
    assert_false(first.gave_up);
    assert_false(first.was_aborted_early);
    for (int r = 0; r < WORLD; r++) {
        assert_int_equal(reports[r].status, st);
        if (!strstr(reports[r].message, says))
            fail_msg("%s", reports[r].message);
    }
    assert_int_equal(reports[0].numbers[0], false); /* no group of calls counts as open */
    assert_int_equal(hd_nccl_stand_in_open(), 0);
    ranks_free(reports);
    hd_shm_control_free(second_control);
}

static void all_hear_of_the_death(enum trap trap)
{
    all_hear(trap, HD_ABORTED, "rank 2 died first: killed by signal 9");
}

/* ---- the cases ---- */

/* Rank 1 waits in vain for rank 0 to take part. */
static void the_making_of_a_communicator_has_a_deadline(void **state)
{
    all_hear(BEFORE_INIT, HD_TIMEOUT, "ncclCommInitRankConfig: NCCL did not finish for ");
}

static void an_owner_that_stands_in_the_making_of_a_communicator_is_aborted_beside(void **state)
{
    all_hear_of_the_death(IN_INIT);
}

static void a_call_that_returns_after_a_while_is_waited_for(void **state)
{
    all_hear_of_the_death(IN_A_GROUP);
}

static void an_abort_in_the_middle_of_a_bundle_leaves_no_group_of_calls(void **state)
{
    all_hear_of_the_death(IN_A_BUNDLE);
}

static void an_abort_waits_for_no_driver(void **state)
{
    all_hear_of_the_death(AT_THE_DRIVER);
}

static void a_call_is_blocked_when_nothing_moved_while_it_lasted(void **state)
{
    static struct nccl_state nccl;

    assert_false(nccl_is_blocked(&nccl, 1000 + NCCL_BLOCKED_MS)); /* there is no call */
    atomic_store(&nccl.calling_since_ms, 1000);
    assert_false(nccl_is_blocked(&nccl, 1000 + NCCL_BLOCKED_MS - 1));
    assert_true(nccl_is_blocked(&nccl, 1000 + NCCL_BLOCKED_MS));
    atomic_store(&nccl.moved_ms, 1001);
    assert_false(nccl_is_blocked(&nccl, 1000 + NCCL_BLOCKED_MS));
    assert_true(nccl_is_blocked(&nccl, 1001 + NCCL_BLOCKED_MS));
    atomic_store(&nccl.calling_since_ms, 5000); /* another call */
    assert_false(nccl_is_blocked(&nccl, 1001 + NCCL_BLOCKED_MS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    ranks_engine = ENGINE_NCCL;
    ranks_device_seed(42);
    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
