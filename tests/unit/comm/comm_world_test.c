/* comm: a world larger than any table that was ever fixed. Ranks are threads on shared memory. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "comm/shm_control.h"
#include "tests/program/tells.h"
#include "tests/program/test.h"

enum { WORLD = 80, COUNT = 100, DEADLINE_MS = 120000, ROWS_MAX = 2 * WORLD };

struct rank {
    const struct hd_shm_control *ctl;
    int rank;
    enum hd_status st;
    char story[256];
    bool wrong; /* an operation gave another result than it should */
};

/* Rows that rank `from` sends to rank `to`. */
static int32_t rows_from(int from, int to)
{
    return (from + 2 * to) % 3;
}

/* Each rank's number summed over all; a block from the left; rows, as their senders' numbers. */
static enum hd_status exchange(struct rank *self, struct hd_comm_group *group,
                               struct hd_comm_stream *stream, int32_t *base)
{
    int32_t *in = base, *out = base + ROWS_MAX, *sum = out + ROWS_MAX, *left = sum + COUNT;
    int32_t counts[WORLD], came[WORLD] = {0}, overflow = 0;
    const int32_t *row = out;
    enum hd_status st;

    for (int i = 0; i < ROWS_MAX; i++)
        in[i] = self->rank;
    for (int m = 0; m < WORLD; m++)
        counts[m] = rows_from(self->rank, m);
    st = hd_comm_launch(group, stream, HD_COMM_ALL_REDUCE,
                        HD_COLLECTIVE(in, sum, COUNT, HD_I32, .reduce = HD_COMM_SUM));
    if (!st)
        st = hd_comm_launch(group, stream, HD_COMM_SHIFT, HD_COLLECTIVE(in, left, COUNT, HD_I32));
    if (!st)
        st = hd_comm_launch(group, stream, HD_COMM_ALL_TO_ALL_V,
                            &(struct hd_collective_args){.send = in,
                                                         .recv = out,
                                                         .send_counts = counts,
                                                         .recv_counts = came,
                                                         .overflow = &overflow,
                                                         .send_rows_max = ROWS_MAX,
                                                         .recv_rows_max = ROWS_MAX,
                                                         .count = 1,
                                                         .dtype = HD_I32});
    if (!st)
        st = hd_comm_wait(stream, hd_comm_record(stream));
    if (st)
        return st;
    self->wrong = overflow != 0;
    for (int i = 0; i < COUNT; i++)
        self->wrong = self->wrong || sum[i] != WORLD * (WORLD - 1) / 2 ||
                      left[i] != (self->rank + WORLD - 1) % WORLD;
    for (int m = 0; m < WORLD; m++) {
        self->wrong = self->wrong || came[m] != rows_from(m, self->rank);
        for (int i = 0; i < came[m]; i++)
            self->wrong = self->wrong || *row++ != m;
    }
    return HD_OK;
}

static void *run_rank(void *arg)
{
    struct rank *self = arg;
    struct hd_comm *comm = NULL;
    struct hd_comm_group *group;
    int32_t members[WORLD];
    void *base;

    for (int m = 0; m < WORLD; m++)
        members[m] = m;
    self->st = hd_comm_open_shm(hd_shm_control_fd(self->ctl), hd_shm_control_rank_fds(self->ctl),
                                self->rank, WORLD, DEADLINE_MS, &comm);
    if (!self->st)
        self->st = hd_comm_alloc_registered(comm, 1 << 16, &base);
    if (!self->st)
        self->st = hd_comm_open_group(comm, "all", members, WORLD, &group);
    if (!self->st)
        self->st = exchange(self, group, hd_comm_get_stream(comm, HD_COMM_STREAM_REDUCE), base);
    if (self->st)
        (void)snprintf(self->story, sizeof self->story, "%s", hd_err_message());
    hd_comm_free(comm);
    return NULL;
}

static void eighty_ranks_of_one_node_meet(void **state)
{
    struct hd_shm_control *ctl;
    pthread_t threads[WORLD];
    struct rank ranks[WORLD];

    assert_int_equal(hd_shm_control_new(WORLD, &ctl), HD_OK);
    for (int r = 0; r < WORLD; r++) {
        ranks[r] = (struct rank){.ctl = ctl, .rank = r};
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < WORLD; r++)
        (void)pthread_join(threads[r], NULL);
    for (int r = 0; r < WORLD; r++) {
        if (ranks[r].st)
            fail_msg("rank %d: %s", r, ranks[r].story);
        assert_false(ranks[r].wrong);
    }
    hd_shm_control_free(ctl);
}

/* The death of a rank behind the 64th is told with its number and its story. */
static void the_last_of_eighty_dies_by_name(void **state)
{
    struct hd_shm_control *ctl;
    enum hd_status st = HD_OK;
    char reason[HD_SHM_REASON_MAX];
    int rank = -2;

    assert_int_equal(hd_shm_control_new(WORLD, &ctl), HD_OK);
    hd_shm_control_mark_dead(ctl, WORLD - 1, "killed");
    assert_true(hd_shm_control_failure(ctl, &rank, &st, reason));
    assert_int_equal(rank, WORLD - 1);
    assert_string_equal(reason, "killed");
    hd_shm_control_free(ctl);
}

static void every_engine_names_itself_and_its_limit(void **state)
{
    assert_int_equal(hd_comm_check_world(HD_COMM_BY_SHM, 255, 256), HD_OK);
    assert_int_equal(hd_comm_check_world(HD_COMM_BY_SHM, 0, 257), HD_INVALID);
    assert_tells(hd_err_message(), "shm", "0 of 257", "256");
    assert_int_equal(hd_comm_check_world(HD_COMM_BY_LOCAL, 0, 65), HD_INVALID);
    assert_int_equal(hd_comm_check_world(HD_COMM_BY_NCCL, 0, 4097), HD_INVALID);
    assert_int_equal(hd_comm_check_world(HD_COMM_BY_GLOO, 4095, 4096), HD_OK);
    assert_int_equal(hd_comm_check_world(HD_COMM_BY_GLOO, 0, 4097), HD_INVALID);
    assert_int_equal(hd_comm_check_world(HD_COMM_BY_GLOO, 2, 2), HD_INVALID);
}

RUN_CASES()
