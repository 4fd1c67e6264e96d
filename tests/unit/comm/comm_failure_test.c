/* comm: what the living learn when a rank dies, aborts, is late, leaves, or asks for something else
 * than its peers. The parent plays the supervisor. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "device.h"
#include "ranks.h"
#include "tests/program/test.h"

static const int32_t everybody[] = {0, 1, 2, 3};

enum { SOON_MS = 30000 }; /* half the deadline: told, not timed out, however busy the machine is */

static struct hd_comm_group *open_world(struct rank *self)
{
    struct hd_comm_group *group = NULL;

    if (hd_comm_open_group(self->comm, "world", everybody, self->world, &group) != HD_OK)
        rank_failed(self, __FILE__, __LINE__, "the group world");
    return group;
}

static struct hd_comm_stream *reduce_of(struct rank *self)
{
    return hd_comm_get_stream(self->comm, HD_COMM_STREAM_REDUCE);
}

static enum hd_status sum_once(struct rank *self, struct hd_comm_group *group, int64_t count)
{
    const struct hd_collective_args args = {.send = self->base,
                                            .recv = self->base,
                                            .count = count,
                                            .dtype = HD_F32,
                                            .reduce = HD_COMM_SUM};
    const enum hd_status st = hd_comm_launch(group, reduce_of(self), HD_COMM_ALL_REDUCE, &args);

    return st ? st : hd_comm_wait(reduce_of(self), hd_comm_record(reduce_of(self)));
}

static void wait_for_mark(struct report *report, int mark)
{
    while (atomic_load(&report->mark) < mark)
        (void)usleep(500);
}

/* ---- a killed process ---- */

enum { VICTIM = 1 };

static void sum_until_failure(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    enum hd_status st = HD_OK;

    CHECK(self, group);
    for (int64_t n = 0; !st; n++) {
        st = sum_once(self, group, 100000);
        atomic_store(&self->report->mark, 1);
    }
    note_end(self, st, (int64_t)self->report->numbers[0]);
    /* it sticks: everything from now on returns the same at once */
    CHECK(self, sum_once(self, group, 1) == st);
    CHECK(self, hd_comm_poll(self->comm) == st);
    CHECK(self, hd_comm_failure(self->comm) == st);
    CHECK(self, strcmp(hd_err_message(), self->report->message) == 0);
}

static void kill_the_victim(struct hd_shm_control *ctl, const pid_t *pids, struct report *reports)
{
    struct hd_flight_record flight[HD_FLIGHT_MAX];
    char reason[HD_SHM_REASON_MAX];
    enum hd_status st;
    int how, rank, count;

    for (int r = 0; r < hd_shm_control_world(ctl); r++)
        wait_for_mark(&reports[r], 1);
    (void)usleep(20000); /* somewhere in the middle of the sums */
    assert_int_equal(kill(pids[VICTIM], SIGKILL), 0);
    assert_int_equal(waitpid(pids[VICTIM], &how, 0), pids[VICTIM]);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    (void)usleep(20000); /* the others can only wait now */
    for (int r = 0; r < hd_shm_control_world(ctl); r++)
        reports[r].numbers[0] = (uint64_t)hd_clock_now_ms();
    hd_shm_control_mark_dead(ctl, VICTIM, "killed by signal 9");

    assert_true(hd_shm_control_failure(ctl, &rank, &st, reason));
    assert_int_equal(rank, VICTIM);
    assert_string_equal(reason, "killed by signal 9");
    /* the record of the dead is readable: what it did last was a sum of 400000 bytes */
    count = hd_shm_control_flight(ctl, VICTIM, flight);
    assert_true(count >= 1);
    assert_string_equal(flight[count - 1].kind, "all_reduce");
    assert_string_equal(flight[count - 1].group, "world");
    assert_string_equal(flight[count - 1].stream, "reduce");
    assert_int_equal(flight[count - 1].bytes, 400000);
}

static void survivors_of_a_killed_process_return_and_name_it(void **state)
{
    const struct ranks ranks = {.world = 3,
                                .as = AS_PROCESSES,
                                .deadline_ms = 60000,
                                .body = sum_until_failure,
                                .parent = kill_the_victim};
    int waited = 0;

    for (int n = 0; n < 5; n++) { /* at different moments of the sum */
        struct report *reports = ranks_run(&ranks, true);

        for (int r = 0; r < 3; r++) {
            if (r == VICTIM)
                continue;
            assert_true(reports[r].finished);
            assert_int_equal(reports[r].status, HD_ABORTED);
            assert_true(reports[r].took_ms < SOON_MS);
            assert_says(&reports[r], "rank 1 died first: killed by signal 9");
            assert_says(&reports[r], "was in all_reduce #");
            assert_says(&reports[r], "of group world (100000 x f32, stream reduce)");
            waited += strstr(reports[r].message, "stream reduce): rank 1 has not ") != NULL;
        }
        ranks_free(reports);
    }
    assert_true(waited > 0); /* one may just have moved its own part, but not each in each run */
}

/* ---- a rank that never enters ---- */

static void all_but_the_last_sum(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    int64_t begin_ms;

    CHECK(self, group);
    CHECK_OK(self, sum_once(self, group, 10)); /* #1 is fine, however long it takes to meet */
    begin_ms = hd_clock_now_ms();
    hd_comm_set_deadline(self->comm, 300);
    if (self->rank < self->world - 1) {
        note_end(self, sum_once(self, group, 10), begin_ms);
        return;
    }
    while (hd_comm_failure(self->comm) == HD_OK) /* computes for ever, and learns of the abort */
        (void)usleep(1000);
}

static void a_rank_that_never_enters_is_named_at_the_deadline(void **state)
{
    struct ranks ranks = {.world = 3, .body = all_but_the_last_sum};

    for (int as = AS_THREADS; as <= AS_PROCESSES; as++) {
        struct report *reports;

        ranks.as = (enum ranks_as)as;
        reports = ranks_run(&ranks, false);
        /* whoever waits first reaches the deadline; the other is told, however late it came */
        assert_true(reports[0].took_ms >= 300 || reports[1].took_ms >= 300);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(reports[r].status, HD_TIMEOUT);
            assert_true(reports[r].took_ms < SOON_MS);
            assert_says(&reports[r], "no progress for ");
            assert_says(&reports[r], "all_reduce #2 of group world");
            assert_says(&reports[r], "rank 2 has not entered");
            assert_says(
                &reports[r],
                ranks_engine == ENGINE_SHM
                    ? "the latest of rank 2 is all_reduce #1 of group world (40 B), complete"
                    : "the latest of rank 2 is all_reduce #1 of group world (40 B)");
            assert_says(&reports[r], "rank 2 is behind: entered 1 operations of group world");
        }
        ranks_free(reports);
    }
}

/* Ranks 0 and 1 launch on two streams, so they enter #2 and #3 before they wait. A barrier of the
 * two behind that makes sure that each knows it of the other, on every engine. */
static void all_but_the_last_enter_two_more(struct rank *self)
{
    static const int32_t first_two[] = {0, 1};
    const struct hd_collective_args args = {.send = self->base,
                                            .recv = self->base,
                                            .count = 10,
                                            .dtype = HD_F32,
                                            .reduce = HD_COMM_SUM};
    struct hd_comm_group *group = open_world(self), *pair;
    struct hd_comm_stream *pipeline = hd_comm_get_stream(self->comm, HD_COMM_STREAM_PIPELINE);
    enum hd_status st;

    CHECK(self, group);
    CHECK_OK(self, sum_once(self, group, 10));
    if (self->rank == 2) {
        while (hd_comm_failure(self->comm) == HD_OK)
            (void)usleep(1000);
        return;
    }
    CHECK_OK(self, hd_comm_open_group(self->comm, "pair", first_two, 2, &pair));
    CHECK_OK(self, hd_comm_launch(group, reduce_of(self), HD_COMM_ALL_REDUCE, &args));
    CHECK_OK(self, hd_comm_launch(group, hd_comm_get_stream(self->comm, HD_COMM_STREAM_GATHER),
                                  HD_COMM_ALL_REDUCE, &args));
    CHECK_OK(self, hd_comm_barrier(pair, pipeline));
    CHECK_OK(self, hd_comm_wait(pipeline, hd_comm_record(pipeline)));
    CHECK_OK(self, hd_comm_barrier(pair, pipeline)); /* nobody fails before both have seen that */
    st = hd_comm_wait(pipeline, hd_comm_record(pipeline));
    hd_comm_set_deadline(self->comm, 300);
    note_end(self, st ? st : hd_comm_wait_all(self->comm), hd_clock_now_ms());
}

static void the_rank_that_stopped_launching_is_behind(void **state)
{
    const struct ranks ranks = {.world = 3, .body = all_but_the_last_enter_two_more};
    struct report *reports = ranks_run(&ranks, false);

    for (int r = 0; r < 2; r++) { /* of three sums rank 2 has entered the first alone */
        assert_int_equal(reports[r].status, HD_TIMEOUT);
        assert_says(&reports[r], "rank 2 is behind: entered 1 operations of group world, the "
                                 "others 3; the latest of rank 2 is all_reduce #1 of group world");
    }
    ranks_free(reports);
}

/* The first two launch the third sum of all long before they wait for it. */
static void all_but_the_last_sum_after_much_else(struct rank *self)
{
    const struct hd_collective_args args = {.send = self->base,
                                            .recv = self->base,
                                            .count = 10,
                                            .dtype = HD_F32,
                                            .reduce = HD_COMM_SUM};
    struct hd_comm_group *group = open_world(self);

    CHECK(self, group);
    CHECK_OK(self, sum_once(self, group, 10));
    CHECK_OK(self, sum_once(self, group, 10));
    meet_elsewhere(self);
    if (self->rank == 2) {
        while (hd_comm_failure(self->comm) == HD_OK)
            (void)usleep(1000);
        return;
    }
    CHECK_OK(self, hd_comm_launch(group, reduce_of(self), HD_COMM_ALL_REDUCE, &args));
    meet_elsewhere(self);
    hd_comm_set_deadline(self->comm, 300);
    note_end(self, hd_comm_wait_all(self->comm), hd_clock_now_ms());
}

static void who_is_behind_is_known_when_its_records_are_overwritten(void **state)
{
    const struct ranks ranks = {.world = 3, .body = all_but_the_last_sum_after_much_else};
    struct report *reports = ranks_run(&ranks, false);

    for (int r = 0; r < 2; r++) {
        assert_int_equal(reports[r].status, HD_TIMEOUT);
        assert_says(&reports[r],
                    "rank 2 is behind: entered 2 operations of group world, the others 3");
    }
    ranks_free(reports);
}

/* ---- an abort ---- */

static void the_last_aborts(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    int64_t begin_ms;

    CHECK(self, group);
    CHECK_OK(self, sum_once(self, group, 10));
    begin_ms = hd_clock_now_ms();
    if (self->rank == self->world - 1) {
        for (int r = 0; r < self->rank; r++)
            wait_for_mark(self->report - self->rank + r, 1);
        (void)usleep(100000); /* the others sleep by now */
        hd_comm_abort(self->comm, "the loss is not a number");
        hd_comm_abort(self->comm, "a second reason, which nobody reports");
        note_end(self, hd_comm_failure(self->comm), begin_ms);
        return;
    }
    atomic_store(&self->report->mark, 1);
    note_end(self, sum_once(self, group, 10), begin_ms);
}

static void an_abort_wakes_everybody_with_its_reason(void **state)
{
    struct ranks ranks = {.world = 4, .deadline_ms = 60000, .body = the_last_aborts};

    for (int as = AS_THREADS; as <= AS_PROCESSES; as++) {
        struct report *reports;

        ranks.as = (enum ranks_as)as;
        reports = ranks_run(&ranks, false);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(reports[r].status, HD_ABORTED);
            assert_true(reports[r].took_ms < SOON_MS);
            assert_says(&reports[r], "rank 3 failed first: the loss is not a number");
            if (r < 3)
                assert_says(&reports[r], "all_reduce #2 of group world");
        }
        ranks_free(reports);
    }
}

static void wait_for_ever(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);

    CHECK(self, group);
    if (self->rank == 0) {
        while (hd_comm_failure(self->comm) == HD_OK)
            (void)usleep(1000);
        return;
    }
    atomic_store(&self->report->mark, 1);
    note_end(self, sum_once(self, group, 10), hd_clock_now_ms());
}

static void stop_from_outside(struct hd_shm_control *ctl, const pid_t *pids, struct report *reports)
{
    char reason[HD_SHM_REASON_MAX];
    enum hd_status st;
    int rank = 0;

    assert_false(hd_shm_control_failure(ctl, &rank, &st, reason));
    wait_for_mark(&reports[1], 1);
    (void)usleep(50000);
    hd_shm_control_abort(ctl, "the user cancelled the job");
    assert_true(hd_shm_control_failure(ctl, &rank, &st, reason));
    assert_int_equal(rank, -1);
}

static void the_parent_can_stop_everybody(void **state)
{
    const struct ranks ranks = {
        .world = 2, .deadline_ms = 60000, .body = wait_for_ever, .parent = stop_from_outside};
    struct report *reports = ranks_run(&ranks, false);

    assert_int_equal(reports[1].status, HD_ABORTED);
    assert_true(reports[1].took_ms < SOON_MS);
    assert_says(&reports[1], "stopped by the supervisor: the user cancelled the job");
    ranks_free(reports);
}

/* ---- a rank that leaves ---- */

/* One sum together, then rank 0 goes. The failure may reach rank 1 or 2 before it has seen that the
 * first sum is complete. */
static void the_first_leaves(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    const int64_t begin_ms = hd_clock_now_ms();
    enum hd_status st;

    CHECK(self, group);
    st = sum_once(self, group, 10);
    CHECK(self, !st || self->rank > 0);
    if (self->rank > 0)
        note_end(self, st ? st : sum_once(self, group, 10), begin_ms);
}

static void a_peer_that_left_is_not_waited_for(void **state)
{
    const struct ranks ranks = {.world = 3, .deadline_ms = 60000, .body = the_first_leaves};
    struct report *reports = ranks_run(&ranks, false);

    for (int r = 1; r < 3; r++) {
        assert_int_equal(reports[r].status, HD_ABORTED);
        assert_true(reports[r].took_ms < SOON_MS);
        assert_says(&reports[r], "rank 0 has not entered and has left");
    }
    ranks_free(reports);
}

/* Rank 2 never enters, so the sum cannot be complete when rank 0 leaves. */
static void the_first_leaves_in_flight(struct rank *self)
{
    const struct hd_collective_args args = {.send = self->base,
                                            .recv = self->base,
                                            .count = 10,
                                            .dtype = HD_F32,
                                            .reduce = HD_COMM_SUM};
    struct hd_comm_group *group = open_world(self);

    CHECK(self, group);
    if (self->rank == 0)
        CHECK_OK(self, hd_comm_launch(group, reduce_of(self), HD_COMM_ALL_REDUCE, &args));
    else if (self->rank == 1)
        note_end(self, sum_once(self, group, 10), hd_clock_now_ms());
    else
        while (hd_comm_failure(self->comm) == HD_OK)
            (void)usleep(1000);
}

static void leaving_in_flight_is_a_failure(void **state)
{
    const struct ranks ranks = {
        .world = 3, .deadline_ms = 60000, .body = the_first_leaves_in_flight};
    struct report *reports = ranks_run(&ranks, false);

    assert_int_equal(reports[1].status, HD_ABORTED);
    assert_says(&reports[1],
                "rank 0 failed first: it closed its endpoint with operations in flight");
    ranks_free(reports);
}

/* ---- ranks that disagree ---- */

static void sum_different_sizes(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);

    CHECK(self, group);
    CHECK_OK(self, sum_once(self, group, 10));
    note_end(self, sum_once(self, group, self->rank == 2 ? 18 : 17), hd_clock_now_ms());
}

static void different_sizes_are_named_on_all_ranks(void **state)
{
    struct ranks ranks = {.world = 3, .deadline_ms = 60000, .body = sum_different_sizes};

    for (int as = AS_THREADS; as <= AS_PROCESSES; as++) {
        struct report *reports;

        ranks.as = (enum ranks_as)as;
        reports = ranks_run(&ranks, false);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(reports[r].status, HD_INVALID);
            assert_says(&reports[r], "operation #2 of group world differs");
            assert_says(&reports[r], "all_reduce of 17 x f32");
            assert_says(&reports[r], "all_reduce of 18 x f32");
        }
        ranks_free(reports);
    }
}

static void do_different_things(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    const struct hd_collective_args args = {
        .recv = self->base, .count = 5, .dtype = HD_BF16, .root = 1};
    enum hd_status st;

    CHECK(self, group);
    if (self->rank == 0)
        st = hd_comm_launch(group, reduce_of(self), HD_COMM_BROADCAST, &args);
    else
        st = hd_comm_barrier(group, reduce_of(self));
    if (!st)
        st = hd_comm_wait_all(self->comm);
    note_end(self, st, hd_clock_now_ms());
}

static void different_kinds_are_named_on_all_ranks(void **state)
{
    const struct ranks ranks = {.world = 2, .deadline_ms = 60000, .body = do_different_things};
    struct report *reports = ranks_run(&ranks, false);

    for (int r = 0; r < 2; r++) {
        assert_int_equal(reports[r].status, HD_INVALID);
        assert_says(&reports[r], "rank 0 has broadcast of 5 x bf16 from member 1");
        assert_says(&reports[r], "rank 1 has barrier");
    }
    ranks_free(reports);
}

static void send_more_than_expected(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    const struct hd_comm_send_args send = {self->base, 9, HD_F32, 1};
    const struct hd_comm_recv_args recv = {self->base, 8, HD_F32, 0};
    enum hd_status st;

    CHECK(self, group);
    st = self->rank == 0 ? hd_comm_send(group, reduce_of(self), &send)
                         : hd_comm_recv(group, reduce_of(self), &recv);
    if (!st)
        st = hd_comm_wait_all(self->comm);
    note_end(self, st, hd_clock_now_ms());
}

static void different_message_sizes_are_named_on_both_ranks(void **state)
{
    const struct ranks ranks = {.world = 2, .deadline_ms = 60000, .body = send_more_than_expected};
    struct report *reports = ranks_run(&ranks, false);

    for (int r = 0; r < 2; r++) {
        assert_int_equal(reports[r].status, HD_INVALID);
        assert_says(&reports[r], "rank 0 sends 9 x f32, rank 1 receives 8 x f32");
    }
    ranks_free(reports);
}

/* ---- bounds of all_to_all_v ---- */

/* Rank 1 is sent 3 rows by each of 3 ranks; its bound is 8. */
static enum hd_status send_too_much(struct rank *self, int32_t *overflow, int32_t recv_counts[3])
{
    int32_t *send_counts = self->counts;
    struct hd_comm_group *group = open_world(self);
    const struct hd_collective_args args = {.send = self->base,
                                            .recv = self->base + 4096,
                                            .send_counts = send_counts,
                                            .recv_counts = recv_counts,
                                            .overflow = overflow,
                                            .send_rows_max = 5,
                                            .recv_rows_max = 8,
                                            .count = 4,
                                            .dtype = HD_F32};
    enum hd_status st;

    send_counts[0] = 1, send_counts[1] = 3, send_counts[2] = 1;
    memset(self->base + 4096, 0x5a, 8 * 16);
    st = hd_comm_launch(group, reduce_of(self), HD_COMM_ALL_TO_ALL_V, &args);
    return st ? st : hd_comm_wait_all(self->comm);
}

static void overflow_without_a_flag(struct rank *self)
{
    note_end(self, send_too_much(self, NULL, self->counts + 8), hd_clock_now_ms());
}

static void overflow_with_a_flag(struct rank *self)
{
    int32_t *recv_counts = self->counts + 8, *overflow = self->counts + 16;

    recv_counts[0] = recv_counts[1] = recv_counts[2] = 7;
    *overflow = 0;
    CHECK_OK(self, send_too_much(self, overflow, recv_counts));
    CHECK(self, *overflow == 1);
    CHECK(self, recv_counts[0] == 0 && recv_counts[1] == 0 && recv_counts[2] == 0);
    for (int i = 0; i < 8 * 16; i++)
        CHECK(self, self->base[4096 + i] == 0x5a);
    CHECK_OK(self, sum_once(self, open_world(self), 3)); /* nothing else is disturbed */
}

/* On a device nobody could tell, so it is refused. */
static void a_bound_exceeded_fails_with_the_bound(void **state)
{
    const struct ranks ranks = {.world = 3, .deadline_ms = 60000, .body = overflow_without_a_flag};
    struct report *reports = ranks_run(&ranks, false);

    for (int r = 0; r < 3; r++) {
        if (RANKS_ON_DEVICE) {
            assert_int_equal(reports[r].status, HD_INVALID);
            assert_says(&reports[r], "give an overflow flag");
            continue;
        }
        assert_int_equal(reports[r].status, HD_LIMIT);
        assert_says(&reports[r], "rank 1 would send 5 rows (bound send_rows_max = 5)");
        assert_says(&reports[r], "receive 9 (bound recv_rows_max = 8)");
    }
    ranks_free(reports);
}

static void a_bound_exceeded_raises_the_flag_and_moves_nothing(void **state)
{
    const struct ranks ranks = {.world = 3, .deadline_ms = 60000, .body = overflow_with_a_flag};

    ranks_free(ranks_run(&ranks, false));
}

/* ---- mistakes that one rank makes alone ---- */

static void wrong_arguments_are_refused_at_launch(void **state)
{
    static const int32_t one[] = {0}, other[] = {1}, twice[] = {0, 0};
    struct hd_comm_group *group;
    struct hd_comm *comm;
    struct hd_comm_stream *stream;
    float elsewhere[4] = {0};
    void *base, *again;
    float *inside;

    assert_int_equal(hd_comm_open_self(&comm), HD_OK);
    stream = hd_comm_get_stream(comm, HD_COMM_STREAM_GATHER);
    assert_int_equal(hd_comm_open_group(comm, "tp", other, 1, &group), HD_INVALID);
    assert_int_equal(hd_comm_open_group(comm, "tp", twice, 2, &group), HD_INVALID);
    assert_int_equal(hd_comm_open_group(comm, "a name that is too long", one, 1, &group),
                     HD_INVALID);
    assert_int_equal(hd_comm_open_group(comm, "tp", one, 1, &group), HD_OK);
    assert_int_equal(hd_comm_alloc_registered(comm, 4096, &base), HD_OK);
    assert_int_equal(hd_comm_alloc_registered(comm, 4096, &again), HD_CONFLICT);
    inside = base;

    const struct hd_collective_args outside = {
        .send = elsewhere, .recv = inside, .count = 4, .dtype = HD_F32, .reduce = HD_COMM_SUM};
    assert_int_equal(hd_comm_launch(group, stream, HD_COMM_ALL_REDUCE, &outside), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "send (16 bytes at "));
    assert_non_null(strstr(hd_err_message(), "is not inside the registered memory of rank 0"));
    const struct hd_collective_args beyond = {
        .send = inside, .recv = inside, .count = 1025, .dtype = HD_F32, .reduce = HD_COMM_SUM};
    assert_int_equal(hd_comm_launch(group, stream, HD_COMM_ALL_REDUCE, &beyond), HD_INVALID);
    const struct hd_collective_args crossing = {
        .send = inside, .recv = inside + 2, .count = 4, .dtype = HD_F32, .reduce = HD_COMM_SUM};
    assert_int_equal(hd_comm_launch(group, stream, HD_COMM_ALL_REDUCE, &crossing), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "overlap"));
    const struct hd_collective_args negative = {
        .send = inside, .recv = inside, .count = -1, .dtype = HD_F32, .reduce = HD_COMM_SUM};
    assert_int_equal(hd_comm_launch(group, stream, HD_COMM_ALL_REDUCE, &negative), HD_INVALID);
    const struct hd_collective_args huge = {
        .send = inside, .recv = inside, .count = INT64_MAX / 2, .dtype = HD_F64};
    assert_int_equal(hd_comm_launch(group, stream, HD_COMM_ALL_GATHER, &huge), HD_INVALID);
    const struct hd_collective_args crooked = {.send = (char *)base + 1,
                                               .recv = (char *)base + 1,
                                               .count = 4,
                                               .dtype = HD_F32,
                                               .reduce = HD_COMM_SUM};
    assert_int_equal(hd_comm_launch(group, stream, HD_COMM_ALL_REDUCE, &crooked), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "not aligned for f32"));
    assert_int_equal(hd_comm_launch(group, stream, HD_COMM_SEND, &crooked), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "is no collective"));
    const struct hd_comm_send_args nobody = {inside, 4, HD_F32, 1};
    assert_int_equal(hd_comm_send(group, stream, &nobody), HD_INVALID);

    assert_int_equal(hd_comm_end(stream), HD_CONFLICT);
    assert_int_equal(hd_comm_begin(stream), HD_OK);
    assert_int_equal(hd_comm_begin(stream), HD_CONFLICT);
    assert_int_equal(hd_comm_barrier(group, stream), HD_CONFLICT);
    assert_int_equal(hd_comm_end(stream), HD_OK);
    assert_int_equal(hd_comm_wait(stream, hd_comm_record(stream) + 1), HD_CONFLICT);
    assert_int_equal(hd_comm_failure(comm), HD_OK); /* none of these is a failure of the job */
    hd_comm_free(comm);
}

static void a_rank_attaches_once_and_to_the_right_block(void **state)
{
    struct hd_shm_control *ctl;
    struct hd_shm_fds fds;
    struct hd_comm *comm, *second;
    char text[HD_SHM_FDS_TEXT_MAX];

    assert_int_equal(hd_shm_control_new(0, &ctl), HD_INVALID);
    assert_int_equal(hd_shm_control_new(HD_COMM_SHM_RANKS_MAX + 1, &ctl), HD_INVALID);
    assert_non_null(
        strstr(hd_err_message(), "world <= 256, which is what the engine shm connects"));
    assert_int_equal(hd_shm_control_new(2, &ctl), HD_OK);
    assert_int_equal(hd_shm_control_format(ctl, text, sizeof text), HD_OK);
    assert_int_equal(hd_shm_control_parse(text, &fds), HD_OK);
    assert_int_equal(fds.world, 2);
    assert_int_equal(fds.control_fd, hd_shm_control_fd(ctl));
    assert_int_equal(fds.rank_fds[1], hd_shm_control_rank_fds(ctl)[1]);
    assert_int_equal(hd_shm_control_parse("5", &fds), HD_INVALID);
    assert_int_equal(hd_shm_control_parse("5,x", &fds), HD_INVALID);
    assert_int_equal(hd_shm_control_parse("5,6,", &fds), HD_INVALID);
    assert_int_equal(hd_shm_control_parse("", &fds), HD_INVALID);

    assert_int_equal(hd_shm_control_parse(text, &fds), HD_OK);
    assert_int_equal(hd_comm_open_shm(fds.rank_fds[0], fds.rank_fds, 0, 2, 1000, &comm),
                     HD_INVALID);
    assert_int_equal(hd_comm_open_shm(fds.control_fd, fds.rank_fds, 0, 3, 1000, &comm), HD_INVALID);
    assert_int_equal(hd_comm_open_shm(fds.control_fd, fds.rank_fds, 2, 2, 1000, &comm), HD_INVALID);
    assert_int_equal(hd_comm_open_shm(fds.control_fd, fds.rank_fds, 0, 2, 1000, &comm), HD_OK);
    assert_int_equal(hd_comm_open_shm(fds.control_fd, fds.rank_fds, 0, 2, 1000, &second),
                     HD_CONFLICT);
    hd_comm_free(comm);
    hd_shm_control_free(ctl);
}

/* ---- workers that are started with exec ---- */

/* Does as a worker with the descriptors that its parent left in the environment: sums its rank + 1
 * with its peers'. The exit status is the sum, 100 and more for a failure. */
static int be_a_worker(int rank)
{
    struct hd_comm_group *group;
    struct hd_shm_fds fds;
    struct hd_comm *comm;
    void *base;
    int sum;

    if (hd_shm_control_parse(getenv("COMM_TEST_FDS"), &fds) ||
        hd_comm_open_shm(fds.control_fd, fds.rank_fds, rank, fds.world, 20000, &comm) ||
        hd_comm_alloc_registered(comm, 4096, &base) ||
        hd_comm_open_group(comm, "world", everybody, fds.world, &group))
        return 100;
    *(int32_t *)base = rank + 1;
    if (hd_comm_launch(group, hd_comm_get_stream(comm, HD_COMM_STREAM_REDUCE), HD_COMM_ALL_REDUCE,
                       HD_COLLECTIVE(base, base, 1, HD_I32, .reduce = HD_COMM_SUM)) ||
        hd_comm_wait_all(comm))
        return 101;
    sum = *(int32_t *)base;
    hd_comm_free(comm);
    return sum;
}

static void workers_started_with_exec_attach_from_the_environment(void **state)
{
    char fds[HD_SHM_FDS_TEXT_MAX], rank[8];
    struct hd_shm_control *ctl;
    pid_t pids[3];
    int how;

    assert_int_equal(hd_shm_control_new(3, &ctl), HD_OK);
    assert_int_equal(hd_shm_control_format(ctl, fds, sizeof fds), HD_OK);
    assert_int_equal(setenv("COMM_TEST_FDS", fds, 1), 0);
    for (int r = 0; r < 3; r++) {
        (void)snprintf(rank, sizeof rank, "%d", r);
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            hd_shm_control_keep_over_exec(ctl);
            (void)execl("/proc/self/exe", "worker", "--rank", rank, (char *)NULL);
            _exit(127);
        }
    }
    for (int r = 0; r < 3; r++) {
        assert_int_equal(waitpid(pids[r], &how, 0), pids[r]);
        assert_true(WIFEXITED(how));
        assert_int_equal(WEXITSTATUS(how), 1 + 2 + 3);
    }
    hd_shm_control_free(ctl);
}

#define ON_ANY_ENGINE                                                              \
    cmocka_unit_test(a_rank_that_never_enters_is_named_at_the_deadline),           \
        cmocka_unit_test(the_rank_that_stopped_launching_is_behind),               \
        cmocka_unit_test(who_is_behind_is_known_when_its_records_are_overwritten), \
        cmocka_unit_test(an_abort_wakes_everybody_with_its_reason),                \
        cmocka_unit_test(a_peer_that_left_is_not_waited_for),                      \
        cmocka_unit_test(leaving_in_flight_is_a_failure),                          \
        cmocka_unit_test(different_sizes_are_named_on_all_ranks),                  \
        cmocka_unit_test(different_kinds_are_named_on_all_ranks),                  \
        cmocka_unit_test(different_message_sizes_are_named_on_both_ranks),         \
        cmocka_unit_test(a_bound_exceeded_fails_with_the_bound),                   \
        cmocka_unit_test(a_bound_exceeded_raises_the_flag_and_moves_nothing)

int main(int argc, char **argv)
{
    const struct CMUnitTest on_any[] = {ON_ANY_ENGINE};
    const struct CMUnitTest on_shm[] = {
        ON_ANY_ENGINE,
        cmocka_unit_test(survivors_of_a_killed_process_return_and_name_it),
        cmocka_unit_test(the_parent_can_stop_everybody),
        cmocka_unit_test(wrong_arguments_are_refused_at_launch),
        cmocka_unit_test(a_rank_attaches_once_and_to_the_right_block),
        cmocka_unit_test(workers_started_with_exec_attach_from_the_environment),
    };

    if (argc == 3 && strcmp(argv[1], "--rank") == 0)
        return be_a_worker(argv[2][0] - '0');
    const struct CMUnitTest on_nccl[] = {
        /* whose own failures are in comm_nccl_test.c */
        cmocka_unit_test(an_abort_wakes_everybody_with_its_reason),
        cmocka_unit_test(a_bound_exceeded_fails_with_the_bound),
        cmocka_unit_test(a_bound_exceeded_raises_the_flag_and_moves_nothing),
    };

    ranks_read_engine(argc, argv);
    if (RANKS_ON_DEVICE)
        ranks_device_seed(10);
    if (ranks_engine == ENGINE_NCCL)
        return cmocka_run_group_tests(on_nccl, NULL, NULL);
    if (ranks_engine != ENGINE_SHM)
        return cmocka_run_group_tests(on_any, NULL, NULL);
    return cmocka_run_group_tests(on_shm, NULL, NULL);
}
