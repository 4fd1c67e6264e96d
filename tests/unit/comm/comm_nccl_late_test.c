/* comm: what a rank sees on the engine nccl when the device waits for peers that do not come. Over
 * the stand-in of tests/cudasim, whose calls are through at once: then streams stand until the
 * communicator is aborted, and what they leave behind is garbage. The owner must see a failure that
 * says what it stood in and who is behind, never a result. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/device_streams.h"
#include "comm/nccl.h"
#include "device.h"
#include "kernels/cuda/cuda.h"
#include "ranks.h"
#include "tests/cudasim/internal.h"
#include "tests/cudasim/nccl_stand_in.h"
#include "tests/program/test.h"

static const int32_t everybody[] = {0, 1, 2};

enum {
    WORLD = 3,
    LAST = WORLD - 1,
    SOON_MS = 30000, /* half the deadline that holds where none is set */
    SHORT_MS = 300,
};

static struct hd_comm_stream *reduce_stream(const struct rank *self)
{
    return hd_comm_get_stream(self->comm, HD_COMM_STREAM_REDUCE);
}

static enum hd_status launch_sum(struct rank *self, struct hd_comm_group *group)
{
    int32_t *x = (int32_t *)self->base;

    return hd_comm_launch(group, reduce_stream(self), HD_COMM_ALL_REDUCE,
                          HD_COLLECTIVE(x, x, 1, HD_I32, .reduce = HD_COMM_SUM));
}

static enum hd_status wait_for_it(struct rank *self)
{
    return hd_comm_wait(reduce_stream(self), hd_comm_record(reduce_stream(self)));
}

static enum hd_status sum_once(struct rank *self, struct hd_comm_group *group)
{
    const enum hd_status st = launch_sum(self, group);

    return st ? st : wait_for_it(self);
}

/* The group of all, in which everybody has summed once. */
static enum hd_status open_world(struct rank *self, struct hd_comm_group **ret_group)
{
    enum hd_status st = hd_comm_open_group(self->comm, "world", everybody, self->world, ret_group);

    if (st)
        return st;
    *(int32_t *)self->base = self->rank + 1;
    return sum_once(self, *ret_group);
}

static void wait_for_a_failure(struct rank *self)
{
    const int64_t begin_ms = hd_clock_now_ms();

    while (hd_comm_failure(self->comm) == HD_OK)
        (void)usleep(1000);
    note_end(self, hd_comm_failure(self->comm), begin_ms);
}

/* Everybody ended with this, and nothing of the stand-in is left. */
static void assert_all_ended(const struct report *reports, enum hd_status st)
{
    for (int r = 0; r < WORLD; r++) {
        assert_int_equal(reports[r].status, st);
        assert_true(reports[r].took_ms < SOON_MS);
    }
    assert_int_equal(hd_nccl_stand_in_open(), 0);
}

/* ---- who never launches ---- */

static void all_but_the_last_sum(struct rank *self)
{
    struct hd_comm_group *group;

    CHECK_OK(self, open_world(self, &group));
    CHECK(self, *(int32_t *)self->base == 1 + 2 + 3);
    if (self->rank < LAST)
        CHECK_OK(self, launch_sum(self, group)); /* which NCCL takes at once */
    set_deadline_together(self, SHORT_MS);
    if (self->rank == LAST) {
        wait_for_a_failure(self);
        return;
    }
    note_end(self, wait_for_it(self), hd_clock_now_ms());
}

static void who_stands_on_the_device_names_what_it_stands_in_and_who_is_behind(void **state)
{
    const struct ranks ranks = {.world = WORLD, .body = all_but_the_last_sum};
    struct report *reports = ranks_run(&ranks, false);

    assert_all_ended(reports, HD_TIMEOUT);
    for (int r = 0; r < WORLD; r++) {
        assert_says(&reports[r], " has run nothing for ");
        assert_says(&reports[r], "all_reduce #2 of group world (4 B), moving on stream reduce; ");
        assert_says(&reports[r], " behind: entered 1 operations of group world, the others 2");
        assert_says(&reports[r],
                    r == LAST ? "first: the device of rank " : "2 has not launched it");
    }
    ranks_free(reports);
}

/* Another stream waits for the sum, and its owner for that. */
static void all_but_the_last_wait_for_who_waits_for_a_sum(struct rank *self)
{
    struct hd_comm_stream *pipeline = hd_comm_get_stream(self->comm, HD_COMM_STREAM_PIPELINE);
    struct hd_comm_group *group;

    CHECK_OK(self, open_world(self, &group));
    if (self->rank < LAST) {
        CHECK_OK(self, launch_sum(self, group));
        CHECK_OK(self,
                 hd_comm_after(pipeline, reduce_stream(self), hd_comm_record(reduce_stream(self))));
    }
    set_deadline_together(self, SHORT_MS);
    if (self->rank == LAST) {
        wait_for_a_failure(self);
        return;
    }
    note_end(self, hd_comm_wait(pipeline, hd_comm_record(pipeline)), hd_clock_now_ms());
}

static void a_stream_that_waits_for_another_stands_where_that_does(void **state)
{
    const struct ranks ranks = {.world = WORLD,
                                .body = all_but_the_last_wait_for_who_waits_for_a_sum};
    struct report *reports = ranks_run(&ranks, false);

    assert_all_ended(reports, HD_TIMEOUT);
    for (int r = 0; r < WORLD; r++)
        assert_says(&reports[r], "it is in all_reduce #2 of group world (4 B), moving on stream "
                                 "reduce; ");
    ranks_free(reports);
}

/* The sum stands on the device while the first two meet elsewhere, until no record has it. */
static void all_but_the_last_sum_and_go_on(struct rank *self)
{
    struct hd_comm_stream *pipeline = hd_comm_get_stream(self->comm, HD_COMM_STREAM_PIPELINE);
    struct hd_comm_group *group, *pair;

    CHECK_OK(self, open_world(self, &group));
    if (self->rank < LAST) {
        CHECK_OK(self, launch_sum(self, group));
        CHECK_OK(self, hd_comm_open_group(self->comm, "pair", everybody, 2, &pair));
        for (int i = 0; i < HD_FLIGHT_MAX + 10; i++) {
            CHECK_OK(self, hd_comm_barrier(pair, pipeline));
            CHECK_OK(self, hd_comm_wait(pipeline, hd_comm_record(pipeline)));
        }
    }
    set_deadline_together(self, SHORT_MS);
    if (self->rank == LAST) {
        wait_for_a_failure(self);
        return;
    }
    note_end(self, wait_for_it(self), hd_clock_now_ms());
}

static void who_is_behind_is_known_when_the_records_of_the_others_are_overwritten(void **state)
{
    const struct ranks ranks = {.world = WORLD, .body = all_but_the_last_sum_and_go_on};
    struct report *reports = ranks_run(&ranks, false);

    assert_all_ended(reports, HD_TIMEOUT);
    for (int r = 0; r < WORLD; r++)
        assert_says(&reports[r],
                    "rank 2 is behind: entered 1 operations of group world, the others 2");
    ranks_free(reports);
}

static void the_first_sends_and_the_second_leaves_it(struct rank *self)
{
    struct hd_comm_group *group;

    CHECK_OK(self, open_world(self, &group));
    hd_comm_set_deadline(self->comm, SHORT_MS);
    if (self->rank > 0) {
        wait_for_a_failure(self);
        return;
    }
    CHECK_OK(self, hd_comm_send(group, reduce_stream(self),
                                &(struct hd_comm_send_args){self->base, 4, HD_I32, 1}));
    note_end(self, wait_for_it(self), hd_clock_now_ms());
}

static void a_send_that_nobody_receives_names_its_peer(void **state)
{
    const struct ranks ranks = {.world = WORLD, .body = the_first_sends_and_the_second_leaves_it};
    struct report *reports = ranks_run(&ranks, false);

    assert_all_ended(reports, HD_TIMEOUT);
    for (int r = 0; r < WORLD; r++) {
        assert_says(&reports[r], "send #1 of group world (16 B), moving on stream reduce; its peer "
                                 "is rank 1; the latest of rank 1 is all_reduce #1");
    }
    ranks_free(reports);
}

/* ---- who launches something else ---- */

static void the_last_gathers_where_others_sum(struct rank *self)
{
    struct hd_comm_group *group;
    char *x = self->base;

    CHECK_OK(self, open_world(self, &group));
    if (self->rank < LAST)
        CHECK_OK(self, launch_sum(self, group));
    else
        CHECK_OK(self, hd_comm_launch(group, reduce_stream(self), HD_COMM_ALL_GATHER,
                                      HD_COLLECTIVE(x, x + 4096, 8, HD_I32)));
    set_deadline_together(self, SHORT_MS);
    note_end(self, wait_for_it(self), hd_clock_now_ms());
}

static void who_launched_something_else_is_named(void **state)
{
    const struct ranks ranks = {.world = WORLD, .body = the_last_gathers_where_others_sum};
    struct report *reports = ranks_run(&ranks, false);

    assert_all_ended(reports, HD_TIMEOUT);
    for (int r = 0; r < WORLD; r++) /* whoever was first told all what it saw of another */
        assert_true(strstr(reports[r].message, "rank 2 has launched all_gather #2 of group world "
                                               "(32 B), moving instead") ||
                    strstr(reports[r].message, "rank 0 has launched all_reduce #2 of group world "
                                               "(4 B), moving instead"));
    ranks_free(reports);
}

/* ---- what an abort leaves behind ---- */

static void the_last_aborts_and_others_look_late(struct rank *self)
{
    const int aborted = hd_nccl_stand_in_aborts();
    struct hd_comm_group *group;
    uint64_t ticket;

    CHECK_OK(self, open_world(self, &group));
    if (self->rank == LAST) {
        wait_for_marks(self->report - LAST, LAST);
        hd_comm_abort(self->comm, "the loss is not a number");
        wait_for_a_failure(self);
        return;
    }
    CHECK_OK(self, launch_sum(self, group));
    ticket = hd_comm_record(reduce_stream(self));
    atomic_store(&self->report->mark, 1);
    while (hd_nccl_stand_in_aborts() < aborted + WORLD) /* by the watchdogs */
        (void)usleep(500);
    while (hd_cudasim_pending()) /* streams go on, whenever somebody looks */
        CHECK(self, !hd_comm_done(reduce_stream(self), ticket));
    CHECK(self, !hd_comm_done(reduce_stream(self), ticket));
    CHECK(self, *(int32_t *)self->base != 3 * (1 + 2 + 3)); /* garbage */
    note_end(self, hd_comm_wait(reduce_stream(self), ticket), hd_clock_now_ms());
}

static void what_an_abort_leaves_behind_is_no_result(void **state)
{
    const struct ranks ranks = {.world = WORLD, .body = the_last_aborts_and_others_look_late};
    struct report *reports = ranks_run(&ranks, false);

    assert_all_ended(reports, HD_ABORTED);
    for (int r = 0; r < WORLD; r++)
        assert_says(&reports[r], "rank 2 failed first: the loss is not a number");
    for (int r = 0; r < LAST; r++)
        assert_says(&reports[r], "was in all_reduce #2 of group world");
    ranks_free(reports);
}

/* ---- an owner that does not come back from a call ---- */

/* The launch of the first rank blocks in a call of NCCL, until the communicator is aborted. */
static void the_first_is_blocked(struct rank *self)
{
    const int64_t deadline_ms = *(const int64_t *)self->arg;
    struct hd_comm_group *group;
    int64_t begin_ms;

    CHECK_OK(self, open_world(self, &group));
    set_deadline_together(self, deadline_ms);
    if (self->rank > 0) {
        wait_for_a_failure(self);
        return;
    }
    hd_nccl_stand_in_defect(0, HD_NCCL_BLOCKED);
    atomic_store(&self->report->mark, 2);
    begin_ms = hd_clock_now_ms();
    note_end(self, sum_once(self, group), begin_ms);
}

static void the_last_dies_meanwhile(struct hd_shm_control *ctl, const pid_t *pids,
                                    struct report *reports)
{
    while (atomic_load(&reports[0].mark) < 2)
        (void)usleep(500);
    (void)usleep(20000); /* rank 0 is in its call by now, or will be */
    hd_shm_control_mark_dead(ctl, LAST, "killed by signal 9");
}

static void a_death_ends_an_owner_that_is_blocked_in_a_call(void **state)
{
    const int64_t deadline_ms = 60000;
    const struct ranks ranks = {.world = WORLD,
                                .body = the_first_is_blocked,
                                .arg = &deadline_ms,
                                .parent = the_last_dies_meanwhile};
    struct report *reports = ranks_run(&ranks, false);

    hd_nccl_stand_in_defect(0, HD_NCCL_WELL);
    assert_all_ended(reports, HD_ABORTED);
    for (int r = 0; r < WORLD; r++)
        assert_says(&reports[r], "rank 2 died first: killed by signal 9");
    ranks_free(reports);
}

static void the_deadline_ends_an_owner_that_is_blocked_in_a_call(void **state)
{
    const int64_t deadline_ms = SHORT_MS;
    const struct ranks ranks = {.world = WORLD, .body = the_first_is_blocked, .arg = &deadline_ms};
    struct report *reports = ranks_run(&ranks, false);

    hd_nccl_stand_in_defect(0, HD_NCCL_WELL);
    assert_all_ended(reports, HD_TIMEOUT);
    for (int r = 0; r < WORLD; r++) {
        assert_says(&reports[r], "rank 0 failed first: the device of rank 0 has run nothing for ");
        assert_says(&reports[r], "all_reduce #2 of group world (4 B), entered on stream reduce; ");
        assert_says(&reports[r], "ranks 1, 2 are behind");
    }
    ranks_free(reports);
}

/* ---- counts that the host waits for ---- */

static void all_but_the_last_exchange_rows(struct rank *self)
{
    struct hd_comm_stream *stream = reduce_stream(self);
    const int64_t deadline_ms = *(const int64_t *)self->arg;
    int32_t *rows = (int32_t *)self->base, *overflow = self->counts + 2 * WORLD;
    struct hd_comm_group *group;
    int64_t begin_ms;
    enum hd_status st;

    CHECK_OK(self, open_world(self, &group));
    for (int r = 0; r < WORLD; r++)
        self->counts[r] = 1;
    set_deadline_together(self, deadline_ms);
    if (self->rank == LAST) {
        wait_for_a_failure(self);
        return;
    }
    begin_ms = hd_clock_now_ms();
    st = hd_comm_launch(group, stream, HD_COMM_ALL_TO_ALL_V,
                        &(struct hd_collective_args){.send = rows,
                                                     .recv = rows + 64,
                                                     .send_counts = self->counts,
                                                     .recv_counts = self->counts + WORLD,
                                                     .overflow = overflow,
                                                     .send_rows_max = WORLD,
                                                     .recv_rows_max = WORLD,
                                                     .count = 1,
                                                     .dtype = HD_I32});
    note_end(self, st ? st : wait_for_it(self), begin_ms);
}

static void the_wait_for_counts_has_a_deadline(void **state)
{
    const int64_t deadline_ms = SHORT_MS;
    const struct ranks ranks = {
        .world = WORLD, .body = all_but_the_last_exchange_rows, .arg = &deadline_ms};
    struct report *reports = ranks_run(&ranks, false);

    assert_all_ended(reports, HD_TIMEOUT);
    for (int r = 0; r < WORLD; r++) {
        assert_says(&reports[r],
                    "all_to_all_v #2 of group world (4 B), entered on stream reduce; ");
        assert_says(&reports[r], " behind: entered 1 operations of group world, the others 2");
    }
    ranks_free(reports);
}

static void the_last_dies(struct hd_shm_control *ctl, const pid_t *pids, struct report *reports)
{
    wait_for_marks(reports, WORLD);
    (void)usleep(20000);
    hd_shm_control_mark_dead(ctl, LAST, "killed by signal 9");
}

static void a_death_ends_the_wait_for_counts(void **state)
{
    const int64_t deadline_ms = 60000;
    const struct ranks ranks = {.world = WORLD,
                                .body = all_but_the_last_exchange_rows,
                                .arg = &deadline_ms,
                                .parent = the_last_dies};
    struct report *reports = ranks_run(&ranks, false);

    assert_all_ended(reports, HD_ABORTED);
    for (int r = 0; r < WORLD; r++)
        assert_says(&reports[r], "rank 2 died first: killed by signal 9");
    ranks_free(reports);
}

/* ---- compute before a collective ---- */

static struct compute {
    struct hd_comm *comm;
    struct hd_sim_record *gate; /* what is computed ends when it opens */
} computes[WORLD];

static void a_sum_waits_for_long_compute(struct rank *self)
{
    struct compute *compute = &computes[self->rank];
    struct hd_comm_group *group;
    struct hd_stream *stream;

    CHECK_OK(self, open_world(self, &group));
    CHECK_OK(self, self->table->stream_open(self->backend, HD_STREAM_FOR_COMPUTE, &stream));
    compute->gate = hd_sim_gate_new();
    compute->comm = self->comm;
    hd_sim_streams_lock();
    CHECK(self, hd_sim_enqueue_behind(((struct hd_cuda_stream *)stream)->handle, compute->gate,
                                      NULL, NULL, NULL) == cudaSuccess);
    hd_sim_streams_unlock();
    CHECK_OK(self, hd_comm_follow(reduce_stream(self), stream));
    CHECK_OK(self, launch_sum(self, group));
    if (self->arg) { /* so does another stream, for the sum */
        CHECK_OK(self, hd_comm_after(hd_comm_get_stream(self->comm, HD_COMM_STREAM_PIPELINE),
                                     reduce_stream(self), hd_comm_record(reduce_stream(self))));
        CHECK_OK(self, hd_comm_poll(self->comm));
    }
    hd_comm_set_deadline(self->comm, SHORT_MS);
    atomic_store(&self->report->mark, 1);
    CHECK_OK(self, wait_for_it(self));
    CHECK(self, *(int32_t *)self->base == 3 * (1 + 2 + 3));
    self->table->stream_close(stream);
    hd_sim_streams_lock();
    hd_sim_gate_release(compute->gate);
    hd_sim_streams_unlock();
}

static void compute_takes_longer_than_the_deadline(struct hd_shm_control *ctl, const pid_t *pids,
                                                   struct report *reports)
{
    wait_for_marks(reports, WORLD);
    (void)usleep(4 * SHORT_MS * 1000);
    for (int r = 0; r < WORLD; r++)
        hd_comm_set_deadline(computes[r].comm, 60000);
    hd_sim_streams_lock();
    for (int r = 0; r < WORLD; r++)
        hd_sim_gate_set(computes[r].gate, true);
    hd_sim_streams_unlock();
}

static void the_deadline_does_not_count_compute_before_a_collective(void **state)
{
    const struct ranks ranks = {.world = WORLD,
                                .body = a_sum_waits_for_long_compute,
                                .parent = compute_takes_longer_than_the_deadline};

    ranks_free(ranks_run(&ranks, false));
}

static void nor_for_a_stream_that_waits_for_that_collective(void **state)
{
    const struct ranks ranks = {.world = WORLD,
                                .body = a_sum_waits_for_long_compute,
                                .arg = "another stream",
                                .parent = compute_takes_longer_than_the_deadline};

    ranks_free(ranks_run(&ranks, false));
}

/* ---- many collectives ahead of the device ---- */

enum { AHEAD = 2 * EVENT_RING + 3 };

/* Each sum follows compute that waits for the one before, as in a layer; the device stands in the
 * first of them, whose end is long not remembered. */
static void all_but_the_last_sum_far_ahead(struct rank *self)
{
    struct hd_comm_stream *sums = reduce_stream(self);
    struct hd_comm_group *group;
    struct hd_stream *compute;

    CHECK_OK(self, open_world(self, &group));
    CHECK_OK(self, self->table->stream_open(self->backend, HD_STREAM_FOR_COMPUTE, &compute));
    for (int i = 0; self->rank < LAST && i < AHEAD; i++) {
        CHECK_OK(self, hd_comm_follow(sums, compute));
        CHECK_OK(self, launch_sum(self, group));
        CHECK_OK(self, hd_comm_wait_on(sums, hd_comm_record(sums), compute));
    }
    set_deadline_together(self, SHORT_MS);
    if (self->rank == LAST)
        wait_for_a_failure(self);
    else
        note_end(self, wait_for_it(self), hd_clock_now_ms());
    self->table->stream_close(compute);
}

static void a_hang_has_its_deadline_however_far_the_host_is_ahead(void **state)
{
    const struct ranks ranks = {.world = WORLD, .body = all_but_the_last_sum_far_ahead};
    struct report *reports = ranks_run(&ranks, false);

    assert_all_ended(reports, HD_TIMEOUT);
    assert_says(&reports[LAST], "it is in or before launch ");
    assert_says(&reports[LAST], "of group world; rank 2 is behind: entered 1 operations of group "
                                "world, the others 516;"); /* AHEAD and the first */
    ranks_free(reports);
}

static _Thread_local struct rank *runs_ahead; /* at the next look; NULL: nobody */
static struct hd_comm_group *alone;
static struct hd_stream *gated;

/* While a watcher looks at the first ends the owner gives their places to others. */
static enum hd_status event_done_and_run_ahead(struct hd_event *event, bool *ret_done)
{
    const enum hd_status st = ranks_device()->device->event_done(event, ret_done);
    struct rank *self = runs_ahead;
    struct hd_comm_stream *stream;

    if (st || !self)
        return st;
    runs_ahead = NULL;
    stream = reduce_stream(self);
    if (hd_comm_follow(stream, gated))
        return hd_err(HD_INTERNAL, "%s", hd_err_message());
    for (int i = 0; i < EVENT_RING; i++) {
        if (hd_comm_barrier(alone, stream))
            return hd_err(HD_INTERNAL, "%s", hd_err_message());
    }
    return HD_OK;
}

static void the_first_runs_ahead_of_a_look(struct rank *self)
{
    struct hd_device_table calls = *self->table->device;
    struct hd_backend_table table = *self->table;
    struct hd_comm_device device = {&table, self->backend, true};
    struct hd_comm_stream_clock clock = {0};
    struct hd_flight_record records[HD_FLIGHT_MAX];
    struct hd_comm *host, *outer = self->comm;
    struct hd_sim_record *gate;
    struct hd_shm_control *control;
    uint64_t seen;
    int count, ran = 0;

    CHECK_OK(self, hd_shm_control_new(1, &control));
    calls.event_done = event_done_and_run_ahead;
    table.device = &calls;
    CHECK_OK(self, hd_comm_open_shm(hd_shm_control_fd(control), hd_shm_control_rank_fds(control), 0,
                                    1, 60000, &host));
    CHECK_OK(self,
             hd_comm_open_nccl(host, &device, &(struct hd_comm_nccl_options){.deadline_ms = 60000},
                               &self->comm));
    CHECK_OK(self, hd_comm_open_group(self->comm, "alone", everybody, 1, &alone));
    CHECK_OK(self, self->table->stream_open(self->backend, HD_STREAM_FOR_COMPUTE, &gated));
    gate = hd_sim_gate_new();
    hd_sim_streams_lock();
    CHECK(self, hd_sim_enqueue_behind(((struct hd_cuda_stream *)gated)->handle, gate, NULL, NULL,
                                      NULL) == cudaSuccess);
    hd_sim_streams_unlock();
    for (int i = 0; i < 3; i++)
        CHECK_OK(self, hd_comm_barrier(alone, reduce_stream(self)));
    CHECK_OK(self, wait_for_it(self));
    seen = self->comm->launches;
    runs_ahead = self;
    CHECK_OK(self, hd_comm_streams_query(self->comm, HD_COMM_STREAM_REDUCE, &clock, 1000));
    count = hd_comm_flight_read(self->comm->flight, records);
    for (int i = 0; i < count; i++)
        ran += records[i].launch > seen && records[i].state == HD_FLIGHT_COMPLETE;
    hd_sim_streams_lock();
    hd_sim_gate_set(gate, true);
    hd_sim_streams_unlock();
    CHECK(self, self->comm->launches == seen + EVENT_RING);
    CHECK(self, count == HD_FLIGHT_MAX);
    CHECK(self, ran == 0);
    CHECK_OK(self, wait_for_it(self));
    hd_comm_free(self->comm);
    self->comm = outer;
    self->table->stream_close(gated);
    hd_sim_streams_lock();
    hd_sim_gate_release(gate);
    hd_sim_streams_unlock();
    hd_shm_control_free(control);
}

static void a_launch_is_not_told_as_run_for_another_that_had_its_place(void **state)
{
    const struct ranks ranks = {.world = 1, .body = the_first_runs_ahead_of_a_look};

    ranks_free(ranks_run(&ranks, false));
}

/* ---- the end of an endpoint ---- */

/* The sum is complete for the host; then it is freed (ranks.c). */
static void all_but_the_last_leave_a_sum_behind(struct rank *self)
{
    struct hd_comm_group *group;

    CHECK_OK(self, open_world(self, &group));
    if (self->rank < LAST)
        CHECK_OK(self, launch_sum(self, group));
    set_deadline_together(self, SHORT_MS);
    if (self->rank == LAST)
        wait_for_a_failure(self);
}

static void the_end_of_an_endpoint_waits_for_peers_with_a_deadline(void **state)
{
    const struct ranks ranks = {.world = WORLD, .body = all_but_the_last_leave_a_sum_behind};
    struct report *reports = ranks_run(&ranks, false);

    assert_int_equal(reports[LAST].status, HD_TIMEOUT);
    assert_says(&reports[LAST], "all_reduce #2 of group world (4 B), moving on stream reduce; ");
    assert_int_equal(hd_nccl_stand_in_open(), 0);
    ranks_free(reports);
}

/* ---- a device that fails ---- */

static _Atomic bool device_is_broken;

static enum hd_status event_done_or_broken(struct hd_event *event, bool *ret_done)
{
    return atomic_load(&device_is_broken) ? hd_err(HD_IO, "an uncorrectable error of memory")
                                          : ranks_device()->device->event_done(event, ret_done);
}

static struct hd_shm_control *second_control;

/* On an endpoint of its own, whose device fails at a word. */
static void the_first_has_a_device_that_fails(struct rank *self)
{
    struct hd_device_table calls = *self->table->device;
    struct hd_backend_table table = *self->table;
    struct hd_comm_device device = {&table, self->backend, true};
    struct hd_comm *host, *outer = self->comm;
    char *outer_base = self->base;
    struct hd_comm_group *group;
    void *base;

    if (self->rank == 0)
        calls.event_done = event_done_or_broken;
    table.device = &calls;
    CHECK_OK(self, hd_comm_open_shm(hd_shm_control_fd(second_control),
                                    hd_shm_control_rank_fds(second_control), self->rank, WORLD,
                                    60000, &host));
    CHECK_OK(self,
             hd_comm_open_nccl(host, &device, &(struct hd_comm_nccl_options){.deadline_ms = 60000},
                               &self->comm));
    CHECK_OK(self, hd_comm_alloc_registered(self->comm, 4096, &base));
    self->base = base;
    CHECK_OK(self, open_world(self, &group));
    set_deadline_together(self, 60000); /* before anybody hears of a failure */
    if (self->rank == 0) {
        CHECK_OK(self, launch_sum(self, group));
        atomic_store(&device_is_broken, true);
    }
    wait_for_a_failure(self);
    hd_comm_free(self->comm);
    self->comm = outer;
    self->base = outer_base;
}

static void a_failing_device_is_told_at_once_with_its_story(void **state)
{
    const struct ranks ranks = {.world = WORLD, .body = the_first_has_a_device_that_fails};
    struct report *reports;

    assert_int_equal(hd_shm_control_new(WORLD, &second_control), HD_OK);
    reports = ranks_run(&ranks, false);
    atomic_store(&device_is_broken, false);
    assert_all_ended(reports, HD_IO);
    for (int r = 0; r < WORLD; r++)
        assert_says(&reports[r], "rank 0 failed first: an uncorrectable error of memory");
    ranks_free(reports);
    hd_shm_control_free(second_control);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    ranks_engine = ENGINE_NCCL;
    ranks_device_seed(41);
    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
