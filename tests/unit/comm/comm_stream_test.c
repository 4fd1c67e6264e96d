/* comm: streams. Several operations under way, in any interleaving; sends and receives; order
 * between streams; what is counted. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "base/text.h"
#include "device.h"
#include "ranks.h"
#include "tests/program/test.h"

static const int32_t everybody[] = {0, 1, 2, 3};

static struct hd_comm_group *open_world(struct rank *self)
{
    struct hd_comm_group *group = NULL;

    if (hd_comm_open_group(self->comm, "world", everybody, self->world, &group) != HD_OK)
        rank_failed(self, __FILE__, __LINE__, "the group world");
    return group;
}

static struct hd_comm_stream *stream_of(struct rank *self, enum hd_comm_stream_name name)
{
    return hd_comm_get_stream(self->comm, name);
}

/* ---- a random program ----
 * All ranks launch the same operations in the same order, on random groups and streams; each rank
 * polls, sleeps and waits as it likes. A place in memory is used again as soon as its operation is
 * complete, and its results are checked then: a peer that still read or wrote it would show. */

enum {
    PLACES = 40,      /* operations in memory at once; more than a group's ring of entries */
    ELEMS_MAX = 3000, /* per member; more than one block of a sum */
    MEMBERS = 4,
    PLACE_BYTES = 2 * MEMBERS * ELEMS_MAX * 4 + 128,
    OPERATIONS = 1500,
};

enum what { SUM, SCATTER, GATHER, EXCHANGE, BROADCAST, RING, BARRIER, WHAT_COUNT };

struct planned {
    enum what what;
    struct hd_comm_group *group;
    struct hd_comm_stream *stream;
    int64_t count;
    uint64_t ticket;
    uint64_t number;
};

static float input(uint64_t number, int rank, int64_t i) /* exact in a sum of four: integers */
{
    return (float)(int64_t)(hd_random_u64(number, (uint64_t)(i * 8 + rank)) % 100003) - 50000.0f;
}

static float *send_of(struct rank *self, const struct planned *op)
{
    return (float *)(self->base + op->number % PLACES * PLACE_BYTES);
}

static float *recv_of(struct rank *self, const struct planned *op)
{
    return send_of(self, op) + MEMBERS * ELEMS_MAX;
}

static float sum_of(const struct planned *op, int64_t i)
{
    float sum = 0.0f;

    for (int m = 0; m < hd_comm_group_size(op->group); m++)
        sum += input(op->number, hd_comm_group_member(op->group, m), i);
    return sum;
}

/* Returns the expected element i of recv. */
static float expected(const struct planned *op, int64_t i)
{
    const struct hd_comm_group *g = op->group;
    const int size = hd_comm_group_size(g), me = hd_comm_group_index(g);
    const int64_t n = op->count;

    switch (op->what) {
    case SUM:
        return sum_of(op, i);
    case SCATTER:
        return sum_of(op, me * n + i);
    case GATHER:
        return input(op->number, hd_comm_group_member(g, (int)(i / n)), i % n);
    case EXCHANGE:
        return input(op->number, hd_comm_group_member(g, (int)(i / n)), me * n + i % n);
    case BROADCAST:
        return input(op->number, hd_comm_group_member(g, (int)(op->number % (uint64_t)size)), i);
    default:
        return input(op->number, hd_comm_group_member(g, (me + size - 1) % size), i);
    }
}

static void check_result(struct rank *self, const struct planned *op)
{
    const bool per_member = op->what == GATHER || op->what == EXCHANGE;
    const int64_t count = op->what == BARRIER ? 0
                          : per_member        ? op->count * hd_comm_group_size(op->group)
                                              : op->count;

    CHECK_OK(self, hd_comm_wait(op->stream, op->ticket));
    for (int64_t i = 0; i < count; i++)
        CHECK(self, recv_of(self, op)[i] == expected(op, i));
}

static enum hd_status launch(struct rank *self, const struct planned *op)
{
    struct hd_comm_group *g = op->group;
    struct hd_comm_stream *s = op->stream;
    const int size = hd_comm_group_size(g), me = hd_comm_group_index(g);
    float *send = send_of(self, op), *recv = recv_of(self, op);
    const int64_t n = op->count;
    enum hd_status st;

    switch (op->what) {
    case SUM:
        return hd_comm_launch(g, s, HD_COMM_ALL_REDUCE,
                              HD_COLLECTIVE(send, recv, n, HD_F32, .reduce = HD_COMM_SUM));
    case SCATTER:
        return hd_comm_launch(
            g, s, HD_COMM_REDUCE_SCATTER,
            HD_COLLECTIVE(send, recv, n, HD_F32, .reduce = HD_COMM_SUM, .keep_fp32 = false));
    case GATHER:
        return hd_comm_launch(g, s, HD_COMM_ALL_GATHER, HD_COLLECTIVE(send, recv, n, HD_F32));
    case EXCHANGE:
        return hd_comm_launch(g, s, HD_COMM_ALL_TO_ALL, HD_COLLECTIVE(send, recv, n, HD_F32));
    case BROADCAST:
        memcpy(recv, send, (size_t)n * 4);
        return hd_comm_launch(
            g, s, HD_COMM_BROADCAST,
            &(struct hd_collective_args){.recv = recv,
                                         .count = n,
                                         .dtype = HD_F32,
                                         .root = (int)(op->number % (uint64_t)size)});
    case RING:
        st = hd_comm_begin(s);
        if (!st)
            st = hd_comm_send(g, s, &(struct hd_comm_send_args){send, n, HD_F32, (me + 1) % size});
        if (!st)
            st = hd_comm_recv(g, s,
                              &(struct hd_comm_recv_args){recv, n, HD_F32, (me + size - 1) % size});
        return st ? st : hd_comm_end(s);
    default:
        return hd_comm_barrier(g, s);
    }
}

static void dawdle(struct rank *self, uint64_t key, uint64_t number)
{
    const uint64_t dice = hd_random_u64(key + (uint64_t)self->rank + 1, number) % 100;

    if (dice < 2)
        (void)usleep(300);
    for (uint64_t n = 0; dice > 60 && n < dice - 60; n++)
        CHECK_OK(self, hd_comm_poll(self->comm));
}

static void random_program(struct rank *self)
{
    static const enum hd_group_name names[] = {HD_GROUP_WORLD, HD_GROUP_TP, HD_GROUP_DP,
                                               HD_GROUP_DP_CP, HD_GROUP_PP};
    const uint64_t key = *(const uint64_t *)self->arg;
    const struct hd_mesh_sizes sizes = {.dp = 2, .tp = 2};
    struct planned places[PLACES] = {0};
    struct hd_comm_group *groups[5];
    struct hd_mesh mesh;

    CHECK_OK(self, hd_mesh_init(&mesh, &sizes));
    for (int g = 0; g < 5; g++)
        CHECK_OK(self, hd_comm_mesh_group(self->comm, &mesh, names[g], &groups[g]));
    for (uint64_t number = 0; number < OPERATIONS; number++) {
        struct planned *op = &places[number % PLACES];
        const uint64_t dice = hd_random_u64(key, number);

        if (number >= PLACES)
            check_result(self, op);
        CHECK(self, !self->report->failed[0]);
        *op = (struct planned){
            .what = (enum what)(dice % WHAT_COUNT),
            .group = groups[(dice >> 8) % 5],
            .stream = stream_of(
                self, (enum hd_comm_stream_name)((dice >> 16) % HD_COMM_COLLECTIVE_STREAMS)),
            .count = (int64_t)((dice >> 24) % 10 ? (dice >> 32) % 100 : (dice >> 32) % ELEMS_MAX),
            .number = number};
        for (int64_t i = 0; i < op->count * hd_comm_group_size(op->group); i++)
            send_of(self, op)[i] = input(number, self->rank, i);
        CHECK_OK(self, launch(self, op));
        op->ticket = hd_comm_record(op->stream);
        dawdle(self, key, number);
        CHECK(self, !self->report->failed[0]);
    }
    for (int p = 0; p < PLACES; p++) {
        check_result(self, &places[p]);
        CHECK(self, !self->report->failed[0]);
    }
}

static void any_interleaving_gives_the_same_results(void **state)
{
    struct ranks ranks = {
        .world = MEMBERS, .registered_bytes = PLACES * PLACE_BYTES, .body = random_program};
    uint64_t key;

    ranks.arg = &key;
    for (key = 1; key <= 6; key++) {
        ranks.as = key % 2 ? AS_THREADS : AS_PROCESSES;
        ranks_free(ranks_run(&ranks, false));
    }
}

/* ---- overlap ---- */

static void poll_alone(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    struct hd_comm_stream *gather = stream_of(self, HD_COMM_STREAM_GATHER),
                          *reduce = stream_of(self, HD_COMM_STREAM_REDUCE);
    enum { N = 200000 };
    float *sums = (float *)self->base, *mine = sums + N, *all = mine + N;
    const struct hd_collective_args sum = {
        .send = sums, .recv = sums, .count = N, .dtype = HD_F32, .reduce = HD_COMM_SUM};
    const struct hd_collective_args take = {.send = mine, .recv = all, .count = N, .dtype = HD_F32};
    bool both_open = false;

    CHECK(self, group);
    for (int i = 0; i < N; i++) {
        sums[i] = 1.0f;
        mine[i] = (float)self->rank;
    }
    CHECK_OK(self, hd_comm_launch(group, reduce, HD_COMM_ALL_REDUCE, &sum));
    CHECK_OK(self, hd_comm_launch(group, gather, HD_COMM_ALL_GATHER, &take));
    both_open = !hd_comm_done(reduce, 1) && !hd_comm_done(gather, 1);
    while (!hd_comm_done(reduce, hd_comm_record(reduce)) ||
           !hd_comm_done(gather, hd_comm_record(gather)))
        CHECK_OK(self, hd_comm_poll(self->comm));
    for (int i = 0; i < N; i++) {
        CHECK(self, sums[i] == (float)self->world);
        for (int r = 0; r < self->world; r++)
            CHECK(self, all[r * N + i] == (float)r);
    }
    self->report->numbers[0] = both_open;
}

static void two_streams_move_by_polling_alone(void **state)
{
    const struct ranks ranks = {.world = 2, .registered_bytes = 4 << 20, .body = poll_alone};
    struct report *reports = ranks_run(&ranks, false);

    /* 800 KB are more steps than the two launches make, so both streams were open after them; a
     * device may have run everything by then */
    if (!RANKS_ON_DEVICE)
        assert_true(reports[0].numbers[0] && reports[1].numbers[0]);
    ranks_free(reports);
}

/* ---- order between streams ---- */

static enum hd_status poll_for_20_ms(struct rank *self)
{
    enum hd_status st = HD_OK;

    for (int n = 0; n < 40 && !st; n++) {
        (void)usleep(500);
        st = hd_comm_poll(self->comm);
    }
    return st;
}

/* Rank 0 receives x on one stream and sends it on another; rank 1 is ready to receive long before
 * it sends, so a send that did not wait would bring the old value. */
static void pass_on(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    struct hd_comm_stream *first = stream_of(self, HD_COMM_STREAM_PIPELINE),
                          *second = stream_of(self, HD_COMM_STREAM_GATHER);
    float *x = (float *)self->base, *y = x + 16;
    const struct hd_comm_send_args send = {x, 1, HD_F32, 1 - self->rank};
    const struct hd_comm_recv_args recv = {self->rank ? y : x, 1, HD_F32, 1 - self->rank};

    CHECK(self, group);
    *x = self->rank ? 42.0f : -1.0f;
    if (self->rank == 0) {
        CHECK_OK(self, hd_comm_recv(group, first, &recv));
        CHECK_OK(self, hd_comm_after(second, first, hd_comm_record(first)));
        CHECK_OK(self, hd_comm_send(group, second, &send));
    } else {
        CHECK_OK(self, hd_comm_recv(group, second, &recv));
        CHECK_OK(self, poll_for_20_ms(self));
        CHECK_OK(self, hd_comm_send(group, first, &send));
    }
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    CHECK(self, *x == 42.0f);
    CHECK(self, self->rank == 0 || *y == 42.0f);
}

static void a_stream_waits_for_the_ticket_of_another(void **state)
{
    const struct ranks ranks = {.world = 2, .body = pass_on};

    ranks_free(ranks_run(&ranks, false));
}

/* Goal: operations of one group on two streams may run far apart. Method: rank 0's first sum is
 * held back on its stream by a receive; forty later sums of the same group, more than a group has
 * entries for, go by on the other stream as far as they can. */
static void hold_one_back(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    struct hd_comm_stream *held = stream_of(self, HD_COMM_STREAM_REDUCE),
                          *free_one = stream_of(self, HD_COMM_STREAM_GATHER),
                          *pipeline = stream_of(self, HD_COMM_STREAM_PIPELINE);
    enum { LATER = 40, N = 64 };
    int64_t *first = (int64_t *)self->base, *later = first + N, *message = later + LATER * N;
    const struct hd_collective_args sum = {
        .send = first, .recv = first, .count = N, .dtype = HD_I64, .reduce = HD_COMM_SUM};

    CHECK(self, group);
    for (int64_t i = 0; i < N * (LATER + 1); i++)
        first[i] = i * (self->rank + 1);
    if (self->rank == 0)
        CHECK_OK(self,
                 hd_comm_recv(group, held, &(struct hd_comm_recv_args){message, 1, HD_I64, 1}));
    CHECK_OK(self, hd_comm_launch(group, held, HD_COMM_ALL_REDUCE, &sum));
    for (int n = 0; n < LATER; n++)
        CHECK_OK(self, hd_comm_launch(group, free_one, HD_COMM_ALL_REDUCE,
                                      HD_COLLECTIVE(later + n * N, later + n * N, N, HD_I64,
                                                    .reduce = HD_COMM_SUM)));
    CHECK_OK(self, poll_for_20_ms(self));
    if (self->rank == 1)
        CHECK_OK(self,
                 hd_comm_send(group, pipeline, &(struct hd_comm_send_args){message, 1, HD_I64, 0}));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    for (int64_t i = 0; i < N * (LATER + 1); i++)
        CHECK(self, first[i] == i * 3); /* i * 1 + i * 2 */
}

static void streams_of_one_group_may_run_far_apart(void **state)
{
    const struct ranks ranks = {.world = 2, .deadline_ms = 60000, .body = hold_one_back};

    ranks_free(ranks_run(&ranks, false));
}

/* ---- sends and receives ---- */

static void send_before_anybody_receives(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    struct hd_comm_stream *pipeline = stream_of(self, HD_COMM_STREAM_PIPELINE);
    float *x = (float *)self->base;

    CHECK(self, group);
    if (self->rank == 0) {
        x[0] = 7.0f;
        CHECK_OK(self, hd_comm_send(group, pipeline, &(struct hd_comm_send_args){x, 1, HD_F32, 1}));
        CHECK(self, !hd_comm_done(pipeline, hd_comm_record(pipeline))); /* still offered */
        atomic_store(&self->report->mark, 1);
    } else {
        while (!atomic_load(&(self->report - 1)->mark)) /* rank 0 has launched and returned */
            (void)usleep(500);
        CHECK_OK(self, hd_comm_recv(group, pipeline, &(struct hd_comm_recv_args){x, 1, HD_F32, 0}));
    }
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    CHECK(self, x[0] == 7.0f);
}

static void a_send_returns_before_it_is_received(void **state)
{
    struct ranks ranks = {.world = 2, .body = send_before_anybody_receives};

    for (int as = AS_THREADS; as <= AS_PROCESSES; as++) {
        ranks.as = (enum ranks_as)as;
        ranks_free(ranks_run(&ranks, false));
    }
}

/* Both send first and receive then, three messages ahead, without bundles: as a pipeline's stages
 * do when the forward of one crosses the backward of the other. */
static void cross(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    struct hd_comm_stream *pipeline = stream_of(self, HD_COMM_STREAM_PIPELINE);
    enum { MESSAGES = 12, N = 20000 };
    float *out = (float *)self->base, *in = out + MESSAGES * N;
    const int peer = 1 - self->rank;

    CHECK(self, group);
    for (int64_t i = 0; i < MESSAGES * N; i++)
        out[i] = (float)(i * 2 + self->rank);
    for (int m = 0; m < MESSAGES + 3; m++) {
        if (m < MESSAGES)
            CHECK_OK(self, hd_comm_send(group, pipeline,
                                        &(struct hd_comm_send_args){out + m * N, N, HD_F32, peer}));
        if (m >= 3)
            CHECK_OK(self,
                     hd_comm_recv(group, pipeline,
                                  &(struct hd_comm_recv_args){in + (m - 3) * N, N, HD_F32, peer}));
    }
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    for (int64_t i = 0; i < MESSAGES * N; i++)
        CHECK(self, in[i] == (float)(i * 2 + peer));
}

static void sends_that_cross_do_not_wait_for_each_other(void **state)
{
    struct ranks ranks = {
        .world = 2, .registered_bytes = 4 << 20, .deadline_ms = 3000, .body = cross};

    for (int as = AS_THREADS; as <= AS_PROCESSES; as++) {
        ranks.as = (enum ranks_as)as;
        ranks_free(ranks_run(&ranks, false));
    }
}

/* Rank 0 sends x and then receives into x: the send must have been read by then. Rank 1 signatures
 * its
 * message at once and reads late. */
static void send_then_receive_into_it(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    struct hd_comm_stream *pipeline = stream_of(self, HD_COMM_STREAM_PIPELINE),
                          *other = stream_of(self, HD_COMM_STREAM_GATHER);
    float *x = (float *)self->base, *y = x + 16;

    CHECK(self, group);
    x[0] = self->rank ? 2.0f : 1.0f;
    if (self->rank == 0) {
        CHECK_OK(self, hd_comm_send(group, pipeline, &(struct hd_comm_send_args){x, 1, HD_F32, 1}));
        CHECK_OK(self, hd_comm_recv(group, pipeline, &(struct hd_comm_recv_args){x, 1, HD_F32, 1}));
        CHECK_OK(self, hd_comm_wait_all(self->comm));
        CHECK(self, x[0] == 2.0f);
        return;
    }
    CHECK_OK(self, hd_comm_send(group, other, &(struct hd_comm_send_args){x, 1, HD_F32, 0}));
    (void)usleep(20000);
    CHECK_OK(self, hd_comm_recv(group, pipeline, &(struct hd_comm_recv_args){y, 1, HD_F32, 0}));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    CHECK(self, y[0] == 1.0f);
}

static void a_receive_does_not_overtake_a_send_of_the_same_memory(void **state)
{
    const struct ranks ranks = {.world = 2, .body = send_then_receive_into_it};

    ranks_free(ranks_run(&ranks, false));
}

/* More messages in one launch than an outbox has slots, received in the other order of peers. */
static void send_many(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    struct hd_comm_stream *pipeline = stream_of(self, HD_COMM_STREAM_PIPELINE);
    enum { MESSAGES = 100 };
    int32_t *out = (int32_t *)self->base, *in = out + 3 * MESSAGES;

    CHECK(self, group);
    CHECK_OK(self, hd_comm_begin(pipeline));
    for (int m = 0; m < MESSAGES; m++) {
        for (int p = 0; p < 3; p++) {
            out[p * MESSAGES + m] = m * 16 + self->rank * 4 + p;
            CHECK_OK(self, hd_comm_send(
                               group, pipeline,
                               &(struct hd_comm_send_args){out + p * MESSAGES + m, 1, HD_I32, p}));
            CHECK_OK(self, hd_comm_recv(group, pipeline,
                                        &(struct hd_comm_recv_args){in + (2 - p) * MESSAGES + m, 1,
                                                                    HD_I32, 2 - p}));
        }
    }
    CHECK_OK(self, hd_comm_end(pipeline));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    for (int m = 0; m < MESSAGES; m++)
        for (int p = 0; p < 3; p++) /* also from this rank itself */
            CHECK(self, in[p * MESSAGES + m] == m * 16 + p * 4 + self->rank);
}

static void many_messages_in_one_launch_arrive_in_order(void **state)
{
    const struct ranks ranks = {.world = 3, .body = send_many};

    ranks_free(ranks_run(&ranks, false));
}

static void launch_far_ahead(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    int64_t *x = (int64_t *)self->base;
    const struct hd_collective_args sum = {
        .send = x, .recv = x, .count = 1, .dtype = HD_I64, .reduce = HD_COMM_SUM};
    struct hd_comm_count count;

    CHECK(self, group);
    *x = self->rank == 0; /* 1 and 0; each sum doubles what both hold */
    for (int n = 0; n < 3 * HD_COMM_QUEUE_MAX; n++) {
        CHECK_OK(self, hd_comm_launch(group, stream_of(self, HD_COMM_STREAM_REDUCE),
                                      HD_COMM_ALL_REDUCE, &sum));
        if (self->rank == 1 && n == 0)
            (void)usleep(20000);
    }
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    CHECK(self, *x == 0); /* 2^3071 modulo 2^64 */
    hd_comm_count_get(group, HD_COMM_ALL_REDUCE, &count);
    CHECK(self, count.calls == 3 * HD_COMM_QUEUE_MAX);
}

static void launching_beyond_the_queue_waits(void **state)
{
    const struct ranks ranks = {.world = 2, .body = launch_far_ahead};

    ranks_free(ranks_run(&ranks, false));
}

/* ---- what is counted ---- */

enum { COUNTED = 1001 }; /* elements; not a multiple of anything */

static void count_each_kind(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    struct hd_comm_stream *s = stream_of(self, HD_COMM_STREAM_REDUCE);
    const int p = self->world;
    float *a = (float *)self->base, *b = a + 4 * COUNTED;
    int32_t *rows = self->counts, *overflow = rows + RANKS_MAX;
    struct hd_comm_count count;

    CHECK(self, group);
    for (int m = 0; m < p; m++)
        rows[m] = self->rank + 1;
    *overflow = 0;
    CHECK_OK(self, hd_comm_launch(group, s, HD_COMM_ALL_REDUCE,
                                  HD_COLLECTIVE(a, b, COUNTED, HD_F32, .reduce = HD_COMM_SUM)));
    CHECK_OK(self,
             hd_comm_launch(group, s, HD_COMM_ALL_GATHER, HD_COLLECTIVE(a, b, COUNTED, HD_F32)));
    CHECK_OK(self, hd_comm_launch(group, s, HD_COMM_REDUCE_SCATTER,
                                  HD_COLLECTIVE(a, b, COUNTED, HD_F32, .reduce = HD_COMM_SUM,
                                                .keep_fp32 = false)));
    CHECK_OK(self,
             hd_comm_launch(group, s, HD_COMM_ALL_TO_ALL, HD_COLLECTIVE(a, b, COUNTED, HD_F32)));
    CHECK_OK(self, hd_comm_launch(group, s, HD_COMM_ALL_TO_ALL_V,
                                  &(struct hd_collective_args){.send = a,
                                                               .recv = b,
                                                               .send_counts = rows,
                                                               .recv_counts = NULL,
                                                               .overflow = overflow,
                                                               .send_rows_max = 100,
                                                               .recv_rows_max = 100,
                                                               .count = 7,
                                                               .dtype = HD_F32}));
    CHECK_OK(self, hd_comm_launch(group, s, HD_COMM_BROADCAST,
                                  &(struct hd_collective_args){
                                      .recv = a, .count = COUNTED, .dtype = HD_F32, .root = 1}));
    CHECK_OK(self, hd_comm_launch(group, s, HD_COMM_SHIFT, HD_COLLECTIVE(a, b, COUNTED, HD_F32)));
    CHECK_OK(self, hd_comm_begin(s));
    CHECK_OK(self,
             hd_comm_send(group, s,
                          &(struct hd_comm_send_args){a, COUNTED, HD_F32, (self->rank + 1) % p}));
    CHECK_OK(self, hd_comm_recv(
                       group, s,
                       &(struct hd_comm_recv_args){b, COUNTED, HD_F32, (self->rank + p - 1) % p}));
    CHECK_OK(self, hd_comm_end(s));
    CHECK_OK(self, hd_comm_barrier(group, s));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    for (int k = 0; k < HD_COMM_KIND_COUNT; k++) {
        hd_comm_count_get(group, (enum hd_comm_kind)k, &count);
        CHECK(self, count.calls == 1);
        self->report->numbers[k] = count.moved_bytes;
    }
    hd_comm_count_reset(self->comm);
    hd_comm_count_get(group, HD_COMM_ALL_GATHER, &count);
    CHECK(self, count.calls == 0 && count.moved_bytes == 0);
}

static void moved_bytes_are_the_closed_forms(void **state)
{
    for (int p = 2; p <= 4; p++) {
        const struct ranks ranks = {.world = p, .body = count_each_kind};
        struct report *reports = ranks_run(&ranks, false);
        const uint64_t n = COUNTED * 4, pairs = (uint64_t)(p * (p - 1));
        uint64_t total[HD_COMM_KIND_COUNT] = {0};

        for (int r = 0; r < p; r++)
            for (int k = 0; k < HD_COMM_KIND_COUNT; k++)
                total[k] += reports[r].numbers[k];
        /* each element is read from p-1 peers by whoever sums it, and written to p-1 peers */
        assert_int_equal(total[HD_COMM_ALL_REDUCE], 2 * (uint64_t)(p - 1) * n);
        assert_int_equal(total[HD_COMM_ALL_GATHER], pairs * n);
        assert_int_equal(total[HD_COMM_REDUCE_SCATTER], pairs * n);
        assert_int_equal(total[HD_COMM_ALL_TO_ALL], pairs * n);
        /* rank r sends r+1 rows of 7 floats to each of p-1 others: the sum of 1..p times p-1;
         * nobody sees the counts of a device,
         * except where NCCL has to be told them */
        assert_int_equal(total[HD_COMM_ALL_TO_ALL_V],
                         ranks_engine == ENGINE_LOCAL ? 0
                                                      : (uint64_t)(p * (p + 1) / 2 * (p - 1) * 28));
        assert_int_equal(total[HD_COMM_BROADCAST], (uint64_t)(p - 1) * n);
        assert_int_equal(total[HD_COMM_SHIFT], (uint64_t)p * n); /* each receives one block */
        assert_int_equal(total[HD_COMM_SEND], 0);                /* the receiver moves */
        assert_int_equal(total[HD_COMM_RECV], (uint64_t)p * n);
        assert_int_equal(total[HD_COMM_BARRIER], 0);
        for (int r = 0; r < p; r++)
            assert_int_equal(reports[r].numbers[HD_COMM_ALL_GATHER], (uint64_t)(p - 1) * n);
        ranks_free(reports);
    }
}

/* ---- the flight record ---- */

static void launch_seventy(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);

    CHECK(self, group);
    for (int n = 0; n < 70; n++)
        CHECK_OK(self,
                 hd_comm_launch(group, stream_of(self, HD_COMM_STREAM_GATHER), HD_COMM_BROADCAST,
                                &(struct hd_collective_args){
                                    .recv = self->base, .count = n, .dtype = HD_F64, .root = 1}));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    atomic_store(&self->report->mark, 1);
}

static void read_flight(struct hd_shm_control *ctl, const pid_t *pids, struct report *reports)
{
    struct hd_flight_record flight[HD_FLIGHT_MAX];

    while (!atomic_load(&reports[0].mark))
        (void)usleep(500);
    assert_int_equal(hd_shm_control_flight(ctl, 0, flight), HD_FLIGHT_MAX);
    for (int i = 0; i < HD_FLIGHT_MAX; i++) { /* launches 7..70, the n-th of n - 1 doubles */
        assert_int_equal(flight[i].launch, 7 + i);
        assert_int_equal(flight[i].seq, 7 + i);
        assert_int_equal(flight[i].bytes, (6 + i) * 8);
        assert_int_equal(flight[i].peer, 1);
        assert_string_equal(flight[i].kind, "broadcast");
        assert_string_equal(flight[i].stream, "gather");
        assert_string_equal(hd_flight_state_name(flight[i].state), "complete");
    }
}

static void the_last_64_launches_are_on_record(void **state)
{
    const struct ranks ranks = {
        .world = 2, .as = AS_PROCESSES, .body = launch_seventy, .parent = read_flight};

    ranks_free(ranks_run(&ranks, false));
}

/* Goal: the log has, on every engine: of 70 broadcasts the last 64, the 7th (of 48 bytes) first. On
 * nccl one launch was before them, of the ranks' meeting on the host. */
static void seventy_and_their_text(struct rank *self)
{
    const int before = ranks_engine == ENGINE_NCCL;
    char head[64], first_line[80], last_line[80];
    struct hd_text text = {0};
    const char *last;

    (void)snprintf(head, sizeof head, "the last 64 of %d collectives of rank ", 70 + before);
    (void)snprintf(first_line, sizeof first_line,
                   "\n%8d  broadcast #7 of group world (48 B), complete ", 7 + before);
    (void)snprintf(last_line, sizeof last_line,
                   "\n%8d  broadcast #70 of group world (552 B), complete ", 70 + before);
    launch_seventy(self);
    hd_comm_flight_text(self->comm, &text);
    CHECK(self, text.data);
    CHECK(self, hd_text_starts(text.data, head));
    CHECK(self, hd_text_starts(strchr(text.data, '\n'), first_line));
    CHECK(self, hd_text_ends(text.data, "s (stream gather, rank 1)\n"));
    last = strstr(text.data, last_line);
    CHECK(self, last && strchr(last + 1, '\n')[1] == '\0');
    hd_text_free(&text);
}

static void the_flight_record_is_told_oldest_first(void **state)
{
    const struct ranks ranks = {.world = 2, .body = seventy_and_their_text};

    ranks_free(ranks_run(&ranks, false));
}

/* ---- system calls ---- */

static int count_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    int lines = 0, c;

    while (maps && (c = getc(maps)) != EOF)
        lines += c == '\n';
    if (maps)
        (void)fclose(maps);
    return lines;
}

static void meet_then_move(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    struct hd_comm_stream *s = stream_of(self, HD_COMM_STREAM_GATHER);
    float *a = (float *)self->base, *b = a + 1024;
    int before;

    CHECK(self, group);
    CHECK_OK(self, hd_comm_barrier(group, s));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    before = count_mappings(); /* its own buffer comes and goes with it */
    CHECK_OK(self, hd_comm_launch(group, s, HD_COMM_ALL_GATHER, HD_COLLECTIVE(a, b, 9, HD_F32)));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    CHECK(self, before > self->world && count_mappings() == before);
}

static void after_a_barrier_nothing_is_mapped_any_more(void **state)
{
    const struct ranks ranks = {.world = 3, .as = AS_PROCESSES, .body = meet_then_move};

    ranks_free(ranks_run(&ranks, false));
}

/* ---- order with compute streams ---- */

/* A frequent sequence of a step: a compute stream writes x, the sum of x follows it, and a copy of
 * the sum waits for that. On a device all three run late, in the order of these two calls alone. */
static void sum_behind_compute(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    struct hd_comm_stream *stream = stream_of(self, HD_COMM_STREAM_REDUCE);
    const struct hd_device_table *device = self->table ? self->table->device : NULL;
    int32_t *x = (int32_t *)self->base, *y = x + 64;
    struct hd_stream *compute = NULL;

    CHECK(self, group);
    if (device)
        CHECK_OK(self, self->table->stream_open(self->backend, HD_STREAM_FOR_COMPUTE, &compute));
    for (int32_t n = 0; n < 200; n++) {
        const int32_t input = n + self->rank;
        int32_t sum = 0;

        if (device)
            CHECK_OK(self, device->write(compute, x, &input, sizeof input));
        else
            x[0] = input;
        CHECK_OK(self, hd_comm_follow(stream, compute));
        CHECK_OK(self, hd_comm_launch(group, stream, HD_COMM_ALL_REDUCE,
                                      HD_COLLECTIVE(x, x, 1, HD_I32, .reduce = HD_COMM_SUM)));
        CHECK(self, hd_comm_wait_on(stream, hd_comm_record(stream) + 1, compute) == HD_CONFLICT);
        CHECK_OK(self, hd_comm_wait_on(stream, hd_comm_record(stream), compute));
        if (device) {
            CHECK_OK(self, device->copy(compute, y, x, sizeof input));
            if (n % 10 == 9)
                CHECK_OK(self, device->read(compute, &sum, y, sizeof sum));
        } else {
            sum = x[0];
        }
        CHECK(self, (device && n % 10 != 9) || sum == 3 * n + 0 + 1 + 2);
    }
    if (device)
        self->table->stream_close(compute);
}

static void compute_may_be_followed_and_made_to_wait(void **state)
{
    const struct ranks ranks = {.world = 3, .body = sum_behind_compute};

    ranks_free(ranks_run(&ranks, false));
}

/* ---- a maximum of what is not a number ---- */

static void max_with_nan(struct rank *self)
{
    struct hd_comm_group *group = open_world(self);
    float *x = (float *)self->base;

    CHECK(self, group);
    for (int i = 0; i < 3; i++) /* element i is NaN on rank i alone */
        x[i] = i == self->rank ? NAN : (float)self->rank;
    CHECK_OK(self, hd_comm_launch(group, stream_of(self, HD_COMM_STREAM_REDUCE), HD_COMM_ALL_REDUCE,
                                  HD_COLLECTIVE(x, x, 3, HD_F32, .reduce = HD_COMM_MAX)));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    for (int i = 0; i < 3; i++)
        CHECK(self, isnan(x[i]));
}

static void a_maximum_is_nan_when_any_element_is(void **state)
{
    const struct ranks ranks = {.world = 3, .body = max_with_nan};

    ranks_free(ranks_run(&ranks, false));
}

#define ON_ANY_ENGINE                                                            \
    cmocka_unit_test(any_interleaving_gives_the_same_results),                   \
        cmocka_unit_test(two_streams_move_by_polling_alone),                     \
        cmocka_unit_test(a_stream_waits_for_the_ticket_of_another),              \
        cmocka_unit_test(streams_of_one_group_may_run_far_apart),                \
        cmocka_unit_test(a_send_returns_before_it_is_received),                  \
        cmocka_unit_test(sends_that_cross_do_not_wait_for_each_other),           \
        cmocka_unit_test(a_receive_does_not_overtake_a_send_of_the_same_memory), \
        cmocka_unit_test(many_messages_in_one_launch_arrive_in_order),           \
        cmocka_unit_test(launching_beyond_the_queue_waits),                      \
        cmocka_unit_test(moved_bytes_are_the_closed_forms),                      \
        cmocka_unit_test(the_flight_record_is_told_oldest_first),                \
        cmocka_unit_test(compute_may_be_followed_and_made_to_wait),              \
        cmocka_unit_test(a_maximum_is_nan_when_any_element_is)

int main(int argc, char **argv)
{
    const struct CMUnitTest on_any[] = {ON_ANY_ENGINE};
    const struct CMUnitTest on_shm[] = {
        ON_ANY_ENGINE,
        cmocka_unit_test(the_last_64_launches_are_on_record),
        cmocka_unit_test(after_a_barrier_nothing_is_mapped_any_more),
    };

    /* members come together at launch there, and sends and receives that cross are one launch */
    const struct CMUnitTest on_nccl[] = {
        cmocka_unit_test(any_interleaving_gives_the_same_results),
        cmocka_unit_test(two_streams_move_by_polling_alone),
        cmocka_unit_test(many_messages_in_one_launch_arrive_in_order),
        cmocka_unit_test(moved_bytes_are_the_closed_forms),
        cmocka_unit_test(the_flight_record_is_told_oldest_first),
        cmocka_unit_test(compute_may_be_followed_and_made_to_wait),
        cmocka_unit_test(a_maximum_is_nan_when_any_element_is),
    };

    ranks_read_engine(argc, argv);
    if (RANKS_ON_DEVICE)
        ranks_device_seed(30);
    if (ranks_engine == ENGINE_NCCL)
        return cmocka_run_group_tests(on_nccl, NULL, NULL);
    if (ranks_engine != ENGINE_SHM)
        return cmocka_run_group_tests(on_any, NULL, NULL);
    return cmocka_run_group_tests(on_shm, NULL, NULL);
}
