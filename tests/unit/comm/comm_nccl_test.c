/* comm: what the engine nccl does around NCCL, over the stand-in of tests/cudasim: communicators of
 * a mesh, sums in NCCL's own order, and every way in which a call does not come through. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/nccl.h"
#include "device.h"
#include "ranks.h"
#include "tests/cudasim/cudasim.h"
#include "tests/cudasim/nccl_stand_in.h"
#include "tests/program/test.h"

static const int32_t everybody[] = {0, 1, 2, 3};

enum { SOON_MS = 30000 }; /* half the deadline */

static enum hd_status sum_once(struct rank *self, struct hd_comm_group *group, int32_t value,
                               int32_t *ret_sum)
{
    struct hd_comm_stream *stream = hd_comm_get_stream(self->comm, HD_COMM_STREAM_REDUCE);
    int32_t *x = (int32_t *)self->base;
    enum hd_status st;

    x[0] = value;
    st = hd_comm_launch(group, stream, HD_COMM_ALL_REDUCE,
                        HD_COLLECTIVE(x, x, 1, HD_I32, .reduce = HD_COMM_SUM));
    if (!st)
        st = hd_comm_wait(stream, hd_comm_record(stream));
    *ret_sum = x[0];
    return st;
}

/* ---- the groups of a mesh ---- */

/* In a mesh of dp 2 x tp 2 each rank sums over both of its groups and over all. */
static void sum_over_the_mesh(struct rank *self, struct hd_comm *comm, const struct hd_mesh *mesh)
{
    static const enum hd_group_name names[] = {HD_GROUP_TP, HD_GROUP_DP, HD_GROUP_DP_CP,
                                               HD_GROUP_WORLD};
    /* ranks 2 d + t hold 2 d + t + 1: rows have 3 or 7, columns 4 or 6, all 10 */
    const int32_t row = self->rank / 2 ? 3 + 4 : 1 + 2, column = self->rank % 2 ? 2 + 4 : 1 + 3;
    const int32_t wanted[] = {row, column, column, 1 + 2 + 3 + 4};

    for (int n = 0; n < 4; n++) {
        struct hd_comm_group *group;
        int32_t sum;

        CHECK_OK(self, hd_comm_mesh_group(comm, mesh, names[n], &group));
        CHECK_OK(self, sum_once(self, group, self->rank + 1, &sum));
        CHECK(self, sum == wanted[n]);
    }
}

/* Its own endpoint, beside the one of ranks.c, over a second set of shared memory. */
static struct hd_shm_control *second_control;

static void open_with_a_mesh(struct rank *self)
{
    const struct hd_mesh_sizes sizes = {.dp = 2, .tp = 2};
    /* not reachable by the host, as in a job; on the emulator the host reaches it all the same */
    const struct hd_comm_device device = {self->table, self->backend, false};
    struct hd_device_memory memory;
    struct hd_comm *host, *comm, *outer = self->comm;
    char *outer_base = self->base;
    struct hd_mesh mesh;
    void *base;

    CHECK_OK(self, hd_mesh_init(&mesh, &sizes));
    CHECK_OK(self, hd_comm_open_shm(hd_shm_control_fd(second_control),
                                    hd_shm_control_rank_fds(second_control), self->rank, 4, 60000,
                                    &host));
    CHECK_OK(self, hd_comm_open_nccl(
                       host, &device,
                       &(struct hd_comm_nccl_options){.mesh = &mesh, .deadline_ms = 60000}, &comm));
    CHECK_OK(self, hd_comm_alloc_registered(comm, 4096, &base));
    CHECK_OK(self, self->table->device->memory(self->backend, &memory));
    self->report->numbers[1] = (uint64_t)memory.reserved_bytes;
    self->comm = comm;
    self->base = base;
    sum_over_the_mesh(self, comm, &mesh);
    self->report->numbers[0] = (uint64_t)hd_nccl_stand_in_splits();
    self->report->numbers[2] = (uint64_t)hd_nccl_stand_in_registered();
    hd_comm_free(comm);
    self->comm = outer;
    self->base = outer_base;
}

enum { PAGE = 2 << 20 };

static uint64_t whole_pages(int64_t bytes)
{
    return ((uint64_t)bytes + PAGE - 1) / PAGE * PAGE;
}

/* Also: the memory that NCCL moves is NCCL's, takes the pages that a plan counts, and is registered
 * with every communicator, once; the stand-in ends the program if something stays registered. */
static void groups_of_a_mesh_are_split_off_once(void **state)
{
    const struct ranks ranks = {.world = 4, .body = open_with_a_mesh};
    const int before = hd_nccl_stand_in_splits(), aborted = hd_nccl_stand_in_aborts();
    const int registered = hd_nccl_stand_in_registered();
    struct report *reports;

    assert_int_equal(hd_shm_control_new(4, &second_control), HD_OK);
    reports = ranks_run(&ranks, false);
    /* rows are tp; columns are dp and whatever else divides the ranks like dp: two splits, and one
     * for the world of each of the two endpoints */
    for (int r = 0; r < 4; r++)
        assert_int_equal(reports[r].numbers[0] - (uint64_t)before, 2 + 2);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(reports[r].numbers[1],
                         whole_pages(4096) + whole_pages(hd_comm_nccl_bytes(4)));
        /* of each rank the staging buffers and the registered memory, with the world, its row and
         * its
         * column; the endpoint of ranks.c has memory of the host, which is not NCCL's */
        assert_int_equal(reports[r].numbers[2] - (uint64_t)registered, 4 * 3 * 2);
    }
    assert_int_equal(hd_nccl_stand_in_open(), 0);
    assert_int_equal(hd_nccl_stand_in_aborts(), aborted);
    ranks_free(reports);
    hd_shm_control_free(second_control);
}

/* ---- NCCL's own sums ---- */

static void sum_and_scatter(struct rank *self)
{
    struct hd_comm_stream *stream = hd_comm_get_stream(self->comm, HD_COMM_STREAM_REDUCE);
    int32_t *x = (int32_t *)self->base, *y = x + 64;
    struct hd_comm_group *group;
    int32_t sum;

    CHECK_OK(self, hd_comm_open_group(self->comm, "world", everybody, 3, &group));
    CHECK_OK(self, sum_once(self, group, self->rank + 1, &sum));
    CHECK(self, sum == 1 + 2 + 3);
    for (int i = 0; i < 3; i++)
        x[i] = 10 * self->rank + i;
    CHECK_OK(self, hd_comm_launch(
                       group, stream, HD_COMM_REDUCE_SCATTER,
                       HD_COLLECTIVE(x, y, 1, HD_I32, .reduce = HD_COMM_SUM, .keep_fp32 = false)));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    CHECK(self, y[0] == 10 * (0 + 1 + 2) + 3 * self->rank);
}

static void sums_may_be_left_to_nccl(void **state)
{
    const struct ranks ranks = {.world = 3, .native = true, .body = sum_and_scatter};

    ranks_free(ranks_run(&ranks, false));
}

/* ---- sums in pieces ---- */

enum {
    PIECE = 16 << 10,
    SUMMED = 10000,
    SCATTERED = 3000,
    TWO_SUMMED = 6000,
    TWO_SCATTERED = 2000
};

/* Values whose sums are exact, so that any order gives the same. */
static float value_of(int rank, int64_t i)
{
    return (float)((i * 7 + rank * 131) % 2048 - 1024);
}

static float sum_of(int world, int64_t i)
{
    float sum = 0;

    for (int r = 0; r < world; r++)
        sum += value_of(r, i);
    return sum;
}

static uint64_t moved_bytes(struct hd_comm_group *group, enum hd_comm_kind kind)
{
    struct hd_comm_count count;

    hd_comm_count_get(group, kind, &count);
    return count.moved_bytes;
}

/* In place, so that a piece that is written too early, or read too late, is a wrong number. */
static void sum_in_pieces(struct rank *self, int64_t count)
{
    struct hd_comm_stream *stream = hd_comm_get_stream(self->comm, HD_COMM_STREAM_REDUCE);
    float *x = (float *)self->base;
    struct hd_comm_group *group;

    CHECK_OK(self, hd_comm_open_group(self->comm, "world", everybody, self->world, &group));
    for (int64_t i = 0; i < count; i++)
        x[i] = value_of(self->rank, i);
    CHECK_OK(self, hd_comm_launch(group, stream, HD_COMM_ALL_REDUCE,
                                  HD_COLLECTIVE(x, x, count, HD_F32, .reduce = HD_COMM_SUM)));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    for (int64_t i = 0; i < count; i++)
        CHECK(self, x[i] == sum_of(self->world, i));
    self->report->numbers[0] = moved_bytes(group, HD_COMM_ALL_REDUCE);
}

static void scatter_in_pieces(struct rank *self, int64_t count)
{
    struct hd_comm_stream *stream = hd_comm_get_stream(self->comm, HD_COMM_STREAM_REDUCE);
    float *x = (float *)self->base, *mine = x + self->rank * count;
    struct hd_comm_group *group;

    CHECK_OK(self, hd_comm_open_group(self->comm, "world", everybody, self->world, &group));
    for (int64_t i = 0; i < (int64_t)self->world * count; i++)
        x[i] = value_of(self->rank, i);
    CHECK_OK(self, hd_comm_launch(group, stream, HD_COMM_REDUCE_SCATTER,
                                  HD_COLLECTIVE(x, mine, count, HD_F32, .reduce = HD_COMM_SUM,
                                                .keep_fp32 = false)));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    for (int64_t i = 0; i < count; i++)
        CHECK(self, mine[i] == sum_of(self->world, self->rank * count + i));
    self->report->numbers[0] = moved_bytes(group, HD_COMM_REDUCE_SCATTER);
}

static void sum_three(struct rank *self)
{
    sum_in_pieces(self, SUMMED);
}

static void sum_two(struct rank *self)
{
    sum_in_pieces(self, TWO_SUMMED);
}

static void scatter_three(struct rank *self)
{
    scatter_in_pieces(self, SCATTERED);
}

static void scatter_two(struct rank *self)
{
    scatter_in_pieces(self, TWO_SCATTERED);
}

/* Three members stage 16 KiB: 85 lines of 64 bytes each, of which one is spare. So a piece has
 * 3 x 84 x 16 = 4,032 elements of an all-reduce, and 84 x 16 = 1,344 of a shard: three pieces or
 * two. An all-reduce is two groups a piece, of parts p and of sums s, on two streams A and B: p0 A,
 * p1 B, s0 A, p2 A, s1 B, s2 A takes four turns. A reduce-scatter is p0 A, p1 B, p2 A: two turns.
 * Of two pieces the last group is on B, which A must wait for. Bytes: each member receives 2 of 3
 * parts of its sums, and of an all-reduce the sums of 2 of 3. */
static void a_sum_goes_in_pieces_two_at_a_time(void **state)
{
    static const struct {
        void (*body)(struct rank *self);
        int groups, turns;
        uint64_t bytes; /* of all members */
    } sums[] = {
        {sum_three, 6, 4, 2 * 2 * 4 * SUMMED},
        {scatter_three, 3, 2, 3 * 2 * 4 * SCATTERED},
        {sum_two, 4, 3, 2 * 2 * 4 * TWO_SUMMED},
        {scatter_two, 2, 1, 3 * 2 * 4 * TWO_SCATTERED},
    };

    for (int k = 0; k < 4; k++)
        for (int repeat = 0; repeat < 5; repeat++) {
            const struct ranks ranks = {.world = 3, .body = sums[k].body, .piece_bytes = PIECE};
            const int groups = hd_nccl_stand_in_groups(), turns = hd_nccl_stand_in_turns();
            struct report *reports = ranks_run(&ranks, false);
            uint64_t bytes = 0;

            for (int r = 0; r < 3; r++)
                bytes += reports[r].numbers[0];
            assert_int_equal(hd_nccl_stand_in_groups() - groups, 3 * sums[k].groups);
            assert_int_equal(hd_nccl_stand_in_turns() - turns, 3 * sums[k].turns);
            assert_int_equal(bytes, sums[k].bytes);
            ranks_free(reports);
        }
}

/* ---- threads ---- */

/* NCCL starts a thread at the end of each group of calls on a non-blocking communicator. */
static void groups_of_calls_cost_no_thread(void **state)
{
    const struct ranks ranks = {.world = 3, .body = sum_and_scatter};
    const int groups = hd_nccl_stand_in_groups(), threads = hd_nccl_stand_in_threads();

    ranks_free(ranks_run(&ranks, false));
    /* each rank: an all-reduce in two groups of calls, a reduce-scatter in one */
    assert_int_equal(hd_nccl_stand_in_groups() - groups, 3 * 3);
    assert_int_equal(hd_nccl_stand_in_threads(), threads);
}

/* ---- what does not come through ---- */

enum { VICTIM = 1 };

static void sum_until_failure(struct rank *self)
{
    struct hd_comm_group *group;
    enum hd_status st = HD_OK;
    int64_t begin_ms = hd_clock_now_ms();
    int32_t sum;

    CHECK_OK(self, hd_comm_open_group(self->comm, "world", everybody, self->world, &group));
    while (!st) {
        begin_ms = hd_clock_now_ms();
        st = sum_once(self, group, 1, &sum);
        atomic_store(&self->report->mark, 1);
    }
    note_end(self, st, begin_ms);
    CHECK(self, sum_once(self, group, 1, &sum) == st); /* it sticks */
}

static void break_the_victim(struct hd_shm_control *ctl, const pid_t *pids, struct report *reports)
{
    wait_for_marks(reports, 3);
    hd_nccl_stand_in_defect(VICTIM, HD_NCCL_BROKEN);
}

static void a_broken_communicator_ends_all_ranks(void **state)
{
    const struct ranks ranks = {.world = 3, .body = sum_until_failure, .parent = break_the_victim};
    const int aborted = hd_nccl_stand_in_aborts();
    struct report *reports = ranks_run(&ranks, false);

    hd_nccl_stand_in_defect(VICTIM, HD_NCCL_WELL);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(reports[r].status, HD_ABORTED);
        assert_true(reports[r].took_ms < SOON_MS);
        assert_says(&reports[r], "rank 1 failed first: ");
        assert_says(&reports[r], "remote process exited or there was a network error");
    }
    /* each rank had the communicator of the world alone, and aborted it */
    assert_int_equal(hd_nccl_stand_in_aborts() - aborted, 3);
    assert_int_equal(hd_nccl_stand_in_open(), 0);
    ranks_free(reports);
}

static void mark_the_victim_dead(struct hd_shm_control *ctl, const pid_t *pids,
                                 struct report *reports)
{
    wait_for_marks(reports, 3);
    hd_nccl_stand_in_defect(VICTIM, HD_NCCL_STUCK); /* what the dead post nobody gets */
    (void)usleep(20000);
    hd_shm_control_mark_dead(ctl, VICTIM, "killed by signal 9");
}

static void the_death_of_a_rank_ends_the_others(void **state)
{
    const struct ranks ranks = {
        .world = 3, .body = sum_until_failure, .parent = mark_the_victim_dead};
    struct report *reports = ranks_run(&ranks, false);

    hd_nccl_stand_in_defect(VICTIM, HD_NCCL_WELL);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(reports[r].status, HD_ABORTED);
        assert_true(reports[r].took_ms < SOON_MS);
        assert_says(&reports[r], "rank 1 died first: killed by signal 9");
    }
    assert_int_equal(hd_nccl_stand_in_open(), 0);
    ranks_free(reports);
}

static void all_but_the_last_sum(struct rank *self)
{
    struct hd_comm_group *group;
    int32_t sum;

    CHECK_OK(self, hd_comm_open_group(self->comm, "world", everybody, 3, &group));
    CHECK_OK(self, sum_once(self, group, 1, &sum));
    set_deadline_together(self, 300);
    if (self->rank < 2) {
        note_end(self, sum_once(self, group, 1, &sum), hd_clock_now_ms());
        return;
    }
    while (hd_comm_failure(self->comm) == HD_OK)
        (void)usleep(1000);
}

static void a_rank_that_never_launches_is_behind_at_the_deadline(void **state)
{
    const struct ranks ranks = {.world = 3, .body = all_but_the_last_sum};
    struct report *reports = ranks_run(&ranks, false);

    for (int r = 0; r < 2; r++) {
        assert_int_equal(reports[r].status, HD_TIMEOUT);
        assert_says(&reports[r], " has run nothing for ");
        assert_says(&reports[r], "all_reduce #2 of group world (4 B), moving on stream reduce");
    }
    /* who fails first may be alone in the second sum; both know who has not launched it */
    assert_true(strstr(reports[0].message, "2 is behind: entered 1 operations") ||
                strstr(reports[1].message, "2 is behind: entered 1 operations") ||
                strstr(reports[0].message, "2 are behind: entered 1 operations") ||
                strstr(reports[1].message, "2 are behind: entered 1 operations"));
    assert_int_equal(hd_nccl_stand_in_open(), 0);
    ranks_free(reports);
}

static void sum_while_the_last_is_away(struct rank *self)
{
    struct hd_comm_group *group;
    int32_t sum;

    CHECK_OK(self, hd_comm_open_group(self->comm, "world", everybody, 3, &group));
    CHECK_OK(self, sum_once(self, group, 1, &sum));
    atomic_store(&self->report->mark, 1);
    if (self->rank < 2) {
        note_end(self, sum_once(self, group, 1, &sum), hd_clock_now_ms());
        return;
    }
    while (hd_comm_failure(self->comm) == HD_OK)
        (void)usleep(1000);
    note_end(self, hd_comm_failure(self->comm), hd_clock_now_ms());
}

static void the_last_dies_while_others_call(struct hd_shm_control *ctl, const pid_t *pids,
                                            struct report *reports)
{
    wait_for_marks(reports, 3);
    (void)usleep(100000); /* the others are in their calls by now, or will be */
    hd_shm_control_mark_dead(ctl, 2, "killed by signal 9");
}

enum { BOUND_MS = 5000 }; /* from a death to the end of all ranks */

/* Goal: a rank that is blocked in a call, as while NCCL connects, ends when a peer has died.
 * Method: calls wait on the host; the peer never calls. */
static void a_death_ends_calls_that_wait_for_the_dead(void **state)
{
    const struct ranks ranks = {
        .world = 3, .body = sum_while_the_last_is_away, .parent = the_last_dies_while_others_call};
    struct report *reports;

    hd_nccl_stand_in_wait_on_host(true);
    reports = ranks_run(&ranks, false);
    hd_nccl_stand_in_wait_on_host(false);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(reports[r].status, HD_ABORTED);
        assert_true(reports[r].took_ms < BOUND_MS);
        assert_says(&reports[r], "rank 2 died first: killed by signal 9");
    }
    assert_int_equal(hd_nccl_stand_in_open(), 0);
    ranks_free(reports);
}

static void all_but_the_last_sum_after_much_else(struct rank *self)
{
    struct hd_comm_group *group;
    int32_t sum;

    CHECK_OK(self, hd_comm_open_group(self->comm, "world", everybody, 3, &group));
    CHECK_OK(self, sum_once(self, group, 1, &sum));
    CHECK_OK(self, sum_once(self, group, 1, &sum));
    meet_elsewhere(self);
    set_deadline_together(self, 300);
    if (self->rank < 2) {
        note_end(self, sum_once(self, group, 1, &sum), hd_clock_now_ms());
        return;
    }
    while (hd_comm_failure(self->comm) == HD_OK)
        (void)usleep(1000);
}

static void who_is_behind_is_known_when_its_records_are_overwritten(void **state)
{
    const struct ranks ranks = {.world = 3, .body = all_but_the_last_sum_after_much_else};
    struct report *reports = ranks_run(&ranks, false);
    const char *one = reports[0].message, *other = reports[1].message;

    for (int r = 0; r < 2; r++)
        assert_int_equal(reports[r].status, HD_TIMEOUT);
    /* whoever failed first may have been alone in the third sum */
    if (!strstr(one, "rank 2 is behind: entered 2 operations of group world, the others 3") &&
        !strstr(one, "ranks 1, 2 are behind: entered 2 operations of group world, the others 3") &&
        !strstr(other, "ranks 0, 2 are behind: entered 2 operations of group world, the others 3"))
        fail_msg("neither \"%s\" nor \"%s\" says who is behind", one, other);
    ranks_free(reports);
}

/* ---- the flight record ---- */

/* The group of two brings its identity over the host's endpoint, within its first operation. */
static void meet_in_two_groups(struct rank *self)
{
    struct hd_comm_stream *stream = hd_comm_get_stream(self->comm, HD_COMM_STREAM_REDUCE);
    struct hd_comm_group *world, *pair;
    int32_t sum;

    CHECK_OK(self, hd_comm_open_group(self->comm, "world", everybody, self->world, &world));
    CHECK_OK(self, sum_once(self, world, 1, &sum));
    if (self->rank < 2) {
        CHECK_OK(self, hd_comm_open_group(self->comm, "pair", everybody, 2, &pair));
        CHECK_OK(self, hd_comm_barrier(pair, stream));
    }
    CHECK_OK(self, sum_once(self, world, 1, &sum));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    atomic_store(&self->report->mark, 1);
}

/* Reads the record as the supervisor does. */
static void read_the_record(struct hd_shm_control *ctl, const pid_t *pids, struct report *reports)
{
    static const struct {
        const char *kind, *group;
        uint64_t seq;
    } wanted[] = {{"broadcast", "nccl", 1},
                  {"all_reduce", "world", 1},
                  {"barrier", "pair", 1},
                  {"all_reduce", "world", 2}};
    struct hd_flight_record flight[HD_FLIGHT_MAX];

    wait_for_marks(reports, 1);
    assert_int_equal(hd_shm_control_flight(ctl, 0, flight), 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(flight[i].launch, i + 1);
        assert_string_equal(flight[i].kind, wanted[i].kind);
        assert_string_equal(flight[i].group, wanted[i].group);
        assert_int_equal(flight[i].seq, wanted[i].seq);
        assert_string_equal(hd_flight_state_name(flight[i].state), "complete");
    }
}

static void the_record_goes_on_where_the_meeting_on_the_host_ended(void **state)
{
    const struct ranks ranks = {.world = 3, .body = meet_in_two_groups, .parent = read_the_record};

    ranks_free(ranks_run(&ranks, false));
}

/* ---- memory and multiprocessors ---- */

enum { MULTIPROCESSORS = 24, SEND_BYTES = 1 << 16, RECEIVE_BYTES = 3 << 16, BASE_BYTES = 5 << 16 };

/* Ranks 0 and 3 post a receive, whose kernel starts, before they gather with 2 and 1. Those send
 * after the gather, as a stage sends what it computed from gathered weights. If the receives held
 * all multiprocessors, no gather could start, and nothing would ever be sent. */
static void gather_behind_receives(struct rank *self)
{
    const bool receives = self->rank == 0 || self->rank == 3;
    const int32_t low = self->rank % 2, pair[] = {low, low + 2};
    const int32_t from = self->rank < 2 ? 1 : 2, to = self->rank < 2 ? 0 : 3;
    struct hd_comm_stream *gather = hd_comm_get_stream(self->comm, HD_COMM_STREAM_GATHER);
    struct hd_comm_stream *transfer = hd_comm_get_stream(
        self->comm, receives ? HD_COMM_STREAM_RECEIVE_NEXT : HD_COMM_STREAM_SEND_NEXT);
    int32_t *x = (int32_t *)self->base;
    struct hd_comm_group *channel, *both;

    CHECK_OK(self, hd_comm_open_channel(self->comm, "pp", from, to, &channel));
    CHECK_OK(self,
             hd_comm_connect(channel, gather, receives ? HD_COMM_USE_RECEIVE : HD_COMM_USE_SEND));
    CHECK_OK(self, hd_comm_open_group(self->comm, "both", pair, 2, &both));
    CHECK_OK(self, hd_comm_connect(both, gather, HD_COMM_USE_GATHER));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    x[self->rank / 2] = self->rank;
    x[2] = 7 + self->rank;
    if (receives) {
        CHECK_OK(self,
                 hd_comm_recv(channel, transfer,
                              &(struct hd_comm_recv_args){x + 2, 1, HD_I32, self->rank ? 0 : 1}));
        while (!hd_nccl_stand_in_held(self->rank) && !hd_comm_failure(self->comm) &&
               !hd_comm_done(transfer, hd_comm_record(transfer))) /* runs the streams */
            (void)usleep(1000);
    }
    CHECK_OK(self, hd_comm_launch(both, gather, HD_COMM_ALL_GATHER,
                                  HD_COLLECTIVE(x + self->rank / 2, x, 1, HD_I32)));
    if (!receives) {
        CHECK_OK(self, hd_comm_after(transfer, gather, hd_comm_record(gather)));
        CHECK_OK(self, hd_comm_send(
                           channel, transfer,
                           &(struct hd_comm_send_args){x + 2, 1, HD_I32, self->rank == 1 ? 0 : 1}));
    }
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    CHECK(self, x[0] == low && x[1] == low + 2);
    CHECK(self, x[2] == 7 + (receives ? (self->rank ? 2 : 1) : self->rank));
}

static void receives_leave_multiprocessors_for_gathers(void **state)
{
    const struct ranks ranks = {.world = 4, .deadline_ms = 20000, .body = gather_behind_receives};

    hd_cudasim_kind(MULTIPROCESSORS, 90);
    hd_nccl_stand_in_multiprocessors(MULTIPROCESSORS);
    ranks_free(ranks_run(&ranks, false));
    for (int r = 0; r < 4; r++)
        assert_int_equal(hd_nccl_stand_in_held(r), 0);
    hd_nccl_stand_in_multiprocessors(0);
    hd_cudasim_kind(2, 90);
}

static void connect_and_work(struct rank *self)
{
    struct hd_comm_stream *stream = hd_comm_get_stream(self->comm, HD_COMM_STREAM_REDUCE);
    const unsigned uses[] = {HD_COMM_USE_GATHER, HD_COMM_USE_SHIFT, HD_COMM_USE_SUM};
    float *x = (float *)self->base;
    struct hd_comm_group *group;

    CHECK_OK(self, hd_comm_open_group(self->comm, "world", everybody, self->world, &group));
    for (int u = 0; u < 3; u++) {
        CHECK_OK(self, hd_comm_connect(group, stream, uses[u]));
        CHECK_OK(self, hd_comm_wait_all(self->comm));
        CHECK_OK(self, hd_comm_barrier(
                           group, stream)); /* no rank connects more until every rank has looked */
        CHECK_OK(self, hd_comm_wait_all(self->comm));
        if (self->rank == 0)
            self->report->numbers[u] = hd_cudasim_allocated();
        CHECK_OK(self, hd_comm_barrier(group, stream));
        CHECK_OK(self, hd_comm_wait_all(self->comm));
    }
    for (int i = 0; i < SUMMED; i++)
        x[i] = value_of(self->rank, i);
    CHECK_OK(self, hd_comm_launch(group, stream, HD_COMM_ALL_REDUCE,
                                  HD_COLLECTIVE(x, x, SUMMED, HD_F32, .reduce = HD_COMM_SUM)));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    CHECK(self, x[1] == sum_of(self->world, 1));
    self->report->numbers[3] = hd_cudasim_allocated();
    CHECK_OK(self, hd_comm_barrier(group, stream)); /* no rank closes until every rank has looked */
    CHECK_OK(self, hd_comm_wait_all(self->comm));
}

/* The stand-in takes memory by NCCL's rule, in its own words; here a device of 24 multiprocessors:
 * 4 blocks, so 4 channels. A ring has a connection a channel; a shift one more; sums one with each
 * of the two other ranks, of which the shift made the sending end to one and the receiving end from
 * the other. */
static void nothing_connects_after_connect(void **state)
{
    const struct ranks ranks = {.world = 3, .body = connect_and_work};
    const uint64_t both = SEND_BYTES + RECEIVE_BYTES;
    struct report *reports;
    uint64_t before;

    hd_cudasim_kind(MULTIPROCESSORS, 90);
    hd_nccl_stand_in_charge((struct hd_nccl_charges){SEND_BYTES, RECEIVE_BYTES, BASE_BYTES});
    reports = ranks_run(&ranks, false);
    before = reports[0].numbers[0] - 3 * (BASE_BYTES + 4 * both);
    assert_int_equal(reports[0].numbers[1], before + 3 * (BASE_BYTES + 4 * both + 4 * both));
    assert_int_equal(reports[0].numbers[2], before + 3 * (BASE_BYTES + 4 * both + 2 * 4 * both));
    for (int r = 0; r < 3; r++)
        assert_int_equal(reports[r].numbers[3], reports[0].numbers[2]);
    hd_nccl_stand_in_charge((struct hd_nccl_charges){0});
    hd_cudasim_kind(2, 90);
    ranks_free(reports);
}

/* Rank 0 of two opens; rank 1 never comes. */
static void a_communicator_that_never_comes_up_is_given_up(void **state)
{
    const struct hd_backend_options options = {.threads = 1};
    struct hd_comm_device device = {.table = ranks_device(), .host_reachable = true};
    struct hd_shm_control *ctl;
    struct hd_comm *host, *comm;

    assert_int_equal(hd_shm_control_new(2, &ctl), HD_OK);
    assert_int_equal(device.table->open(&options, &device.backend), HD_OK);
    assert_int_equal(
        hd_comm_open_shm(hd_shm_control_fd(ctl), hd_shm_control_rank_fds(ctl), 0, 2, 60000, &host),
        HD_OK);
    assert_int_equal(
        hd_comm_open_nccl(host, &device, &(struct hd_comm_nccl_options){.deadline_ms = 300}, &comm),
        HD_TIMEOUT);
    assert_non_null(strstr(hd_err_message(), "rank 1 has not entered"));
    device.table->close(device.backend);
    hd_shm_control_free(ctl);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    ranks_engine = ENGINE_NCCL;
    ranks_device_seed(40);
    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
