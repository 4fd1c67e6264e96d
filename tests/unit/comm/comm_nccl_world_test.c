/* comm: the engine nccl in a world of more ranks than the sum's kernel has addresses for. Ranks are
 * threads on the GPU's emulator. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "comm/comm_internal.h"
#include "comm/nccl.h"
#include "comm/nccl_internal.h"
#include "comm/shm_control.h"
#include "device.h"
#include "tests/program/test.h"

/* More than HD_COMBINE_MAX = 64. COUNT: not a multiple of what 16 bytes hold. */
enum { WORLD = 66, COUNT = 37, DEADLINE_MS = 300000, ROWS_MAX = 2 * WORLD, MEMORY = 1 << 16 };

struct rank {
    const struct hd_shm_control *ctl;
    int rank;
    enum hd_status st;
    char story[256];
    uint16_t narrow[COUNT];
    float keep_fp32[COUNT], apart[COUNT];
    int32_t came[WORLD], rows[ROWS_MAX];
};

/* Other sizes for other ranks, so that another order of additions rounds to other bits. */
static float number(int rank, int i)
{
    return (float)(rank * 7 % 11 - 5) * (rank % 3 ? 1.0f : 257.0f) + (float)i * 0.37f;
}

static int32_t rows_from(int from, int to)
{
    return (from + 2 * to) % 3;
}

/* The emulator's device memory is the host's. */
static void fill(const struct rank *self, char *base)
{
    uint16_t *narrow = (uint16_t *)base;
    float *keep_fp32 = (float *)(base + 4096), *parts = (float *)(base + 8192);
    int32_t *counts = (int32_t *)(base + 32768), *rows = (int32_t *)(base + 36864);

    for (int i = 0; i < COUNT; i++) {
        narrow[i] = hd_f32_to_bf16(number(self->rank, i));
        keep_fp32[i] = number(self->rank, i);
    }
    for (int i = 0; i < WORLD * COUNT; i++)
        parts[i] = number(self->rank, i % COUNT) + (float)(i / COUNT);
    for (int m = 0; m < WORLD; m++)
        counts[m] = rows_from(self->rank, m);
    for (int i = 0; i < ROWS_MAX; i++)
        rows[i] = self->rank;
}

static enum hd_status exchange(struct rank *self, struct hd_comm_group *group,
                               struct hd_comm_stream *stream, char *base)
{
    char *out = base + 49152;
    int32_t *overflow = (int32_t *)(base + 32768) + 2 * WORLD;
    enum hd_status st;

    fill(self, base);
    *overflow = 0;
    st = hd_comm_launch(group, stream, HD_COMM_ALL_REDUCE,
                        HD_COLLECTIVE(base, base, COUNT, HD_BF16, .reduce = HD_COMM_SUM));
    if (!st)
        st = hd_comm_launch(
            group, stream, HD_COMM_ALL_REDUCE,
            HD_COLLECTIVE(base + 4096, base + 4096, COUNT, HD_F32, .reduce = HD_COMM_SUM));
    if (!st)
        st = hd_comm_launch(group, stream, HD_COMM_REDUCE_SCATTER,
                            HD_COLLECTIVE(base + 8192, out, COUNT, HD_F32, .reduce = HD_COMM_SUM,
                                          .keep_fp32 = false));
    if (!st)
        st = hd_comm_launch(
            group, stream, HD_COMM_ALL_TO_ALL_V,
            &(struct hd_collective_args){.send = base + 36864,
                                         .recv = out + 4096,
                                         .send_counts = (int32_t *)(base + 32768),
                                         .recv_counts = (int32_t *)(base + 32768) + WORLD,
                                         .overflow = overflow,
                                         .send_rows_max = ROWS_MAX,
                                         .recv_rows_max = ROWS_MAX,
                                         .count = 1,
                                         .dtype = HD_I32});
    if (!st)
        st = hd_comm_barrier(group, stream);
    if (!st)
        st = hd_comm_wait_device(stream, hd_comm_record(stream));
    memcpy(self->narrow, base, sizeof self->narrow);
    memcpy(self->keep_fp32, base + 4096, sizeof self->keep_fp32);
    memcpy(self->apart, out, sizeof self->apart);
    memcpy(self->came, (int32_t *)(base + 32768) + WORLD, sizeof self->came);
    memcpy(self->rows, out + 4096, sizeof self->rows);
    return st;
}

static void *run_rank(void *arg)
{
    const struct hd_backend_options options = {.threads = 1};
    struct hd_comm_device device = {.table = ranks_device(), .host_reachable = true};
    struct rank *self = arg;
    struct hd_comm *host = NULL, *comm = NULL;
    struct hd_comm_group *group;
    int32_t members[WORLD];
    void *base;

    for (int m = 0; m < WORLD; m++)
        members[m] = m;
    self->st = device.table->open(&options, &device.backend);
    if (!self->st)
        self->st =
            hd_comm_open_shm(hd_shm_control_fd(self->ctl), hd_shm_control_rank_fds(self->ctl),
                             self->rank, WORLD, DEADLINE_MS, &host);
    if (!self->st)
        self->st = hd_comm_open_nccl(
            host, &device,
            &(struct hd_comm_nccl_options){.deadline_ms = DEADLINE_MS, .piece_bytes = 128 << 10},
            &comm);
    if (!self->st)
        self->st = hd_comm_alloc_registered(comm, MEMORY, &base);
    if (!self->st)
        self->st = hd_comm_open_group(comm, "all", members, WORLD, &group);
    if (!self->st)
        self->st = exchange(self, group, hd_comm_get_stream(comm, HD_COMM_STREAM_REDUCE), base);
    if (self->st)
        (void)snprintf(self->story, sizeof self->story, "%s", hd_err_message());
    hd_comm_free(comm);
    device.table->close(device.backend);
    return NULL;
}

/* The sums by hand: from rank 0 to the last, in fp32, rounded once. */
static void check_sums(const struct rank *self)
{
    for (int i = 0; i < COUNT; i++) {
        float narrow = hd_bf16_to_f32(hd_f32_to_bf16(number(0, i))), keep_fp32 = number(0, i);
        float apart = number(0, i) + (float)self->rank;

        for (int r = 1; r < WORLD; r++) {
            narrow += hd_bf16_to_f32(hd_f32_to_bf16(number(r, i)));
            keep_fp32 += number(r, i);
            apart += number(r, i) + (float)self->rank;
        }
        assert_int_equal(self->narrow[i], hd_f32_to_bf16(narrow));
        assert_memory_equal(&self->keep_fp32[i], &keep_fp32, sizeof keep_fp32);
        assert_memory_equal(&self->apart[i], &apart, sizeof apart);
    }
}

static void sixty_six_gpus_sum_in_the_order_of_ranks(void **state)
{
    static struct rank ranks[WORLD];
    struct hd_shm_control *ctl;
    pthread_t threads[WORLD];

    assert_int_equal(hd_shm_control_new(WORLD, &ctl), HD_OK);
    for (int r = 0; r < WORLD; r++) {
        ranks[r] = (struct rank){.ctl = ctl, .rank = r};
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < WORLD; r++)
        (void)pthread_join(threads[r], NULL);
    for (int r = 0; r < WORLD; r++) {
        const int32_t *row = ranks[r].rows;

        if (ranks[r].st)
            fail_msg("rank %d: %s", r, ranks[r].story);
        check_sums(&ranks[r]);
        for (int m = 0; m < WORLD; m++) {
            assert_int_equal(ranks[r].came[m], rows_from(m, r));
            for (int i = 0; i < ranks[r].came[m]; i++)
                assert_int_equal(*row++, m);
        }
    }
    hd_shm_control_free(ctl);
}

/* Device memory of the engine. Two pieces in flight of 32 MiB on two streams, and of 4 MiB on the
 * other two: 144 MiB. Up to 64 ranks a unit of scratch on each, bounded by groups of rows above. */
static void memory_follows_the_world(void **state)
{
    const int64_t stages = INT64_C(144) << 20, unit = 64 << 10;

    for (int world = 2; world <= 64; world *= 2)
        assert_int_equal(hd_comm_nccl_bytes(world), stages + HD_COMM_COLLECTIVE_STREAMS * unit);
    /* 256 members, each with two bounds of 8 bytes and 256 counts of 4: 266,240, so 5 units */
    assert_int_equal(hd_comm_nccl_bytes(256), stages + HD_COMM_COLLECTIVE_STREAMS * 5 * unit);
    assert_int_equal(hd_comm_nccl_bytes(HD_COMM_NCCL_RANKS_MAX), hd_comm_nccl_bytes(256));
    assert_int_equal(HD_COMM_NCCL_RANKS_MAX, 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    ranks_device_seed(42);
    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
