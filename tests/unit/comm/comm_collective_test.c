/* comm: each collective alone, on 2, 3 and 4 ranks, as threads and as processes, over the world and
 * over rows and columns, compared bit for bit with what this file computes by itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "ranks.h"
#include "tests/program/test.h"
#include "tests/sanitized.h"

/* ---- inputs and expectations, from nothing but (rank, index) ---- */

static uint64_t scramble(uint64_t x) /* the finisher of splitmix64 */
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Element `i` of rank `rank`: any bits for integers; for floats both signs and magnitudes from
 * 2^-18 to 2^13, wider than the 24 bits of an fp32 sum. Every fifth element of ranks 0 and 1 is
 * large and cancels: added first they leave the third exact, added last they have eaten its low
 * bits. */
static void compute(void *to, int rank, int64_t count, enum hd_dtype dtype)
{
    for (int64_t i = 0; i < count; i++) {
        const bool cancels = i % 5 == 0 && rank < 2;
        const uint64_t bits = scramble((uint64_t)i * 64 + (cancels ? 1 : (uint64_t)rank + 1));
        const bool negative = cancels ? rank == 1 : bits & 1;
        const int exponent = cancels ? 12 : (int)(bits >> 1 & 0x7ff) % 31 - 18;
        /* the fields of a binary64: sign, exponent + 1023, mantissa */
        const uint64_t fields =
            (uint64_t)negative << 63 | (uint64_t)(exponent + 1023) << 52 | bits >> 12;
        double value;

        memcpy(&value, &fields, sizeof value);
        switch (dtype) {
        case HD_F32:
            ((float *)to)[i] = (float)value;
            break;
        case HD_BF16:
            ((uint16_t *)to)[i] = hd_f32_to_bf16((float)value);
            break;
        case HD_F16:
            ((uint16_t *)to)[i] = hd_f32_to_f16((float)value);
            break;
        case HD_F64:
            ((double *)to)[i] = value;
            break;
        default:
            memcpy((char *)to + (size_t)i * hd_dtype_size(dtype), &bits, hd_dtype_size(dtype));
            break;
        }
    }
}

/* Elements: more than fits in what an engine stages, of the widest type. With a sanitizer still
 * many of its steps. */
enum { LARGE = HD_TEST_SANITIZED ? 40001 : 500001, WORLD_MAX = 4 };

/* The elements of each rank and type, computed once, before there are threads. */
static void *prepared[WORLD_MAX][HD_DTYPE_COUNT];

/* A block of LARGE for each rank of the types of which there are such blocks (try_all_sizes). */
static int64_t prepared_count(enum hd_dtype dtype)
{
    return dtype == HD_F32 || dtype == HD_BF16 ? WORLD_MAX * LARGE : LARGE;
}

static void prepare(void)
{
    for (int r = 0; r < WORLD_MAX; r++)
        for (int t = 0; t < HD_DTYPE_COUNT; t++) {
            const int64_t count = prepared_count((enum hd_dtype)t);

            prepared[r][t] = malloc((size_t)count * hd_dtype_size((enum hd_dtype)t));
            if (!prepared[r][t])
                abort();
            compute(prepared[r][t], r, count, (enum hd_dtype)t);
        }
}

/* The first `count` elements of a rank. */
static const char *elements_of(int rank, int64_t count, enum hd_dtype dtype)
{
    if (count > prepared_count(dtype))
        abort();
    return prepared[rank][dtype];
}

static void fill(void *to, int rank, int64_t count, enum hd_dtype dtype)
{
    memcpy(to, elements_of(rank, count, dtype), (size_t)count * hd_dtype_size(dtype));
}

/* out[i] = the sum of in[order[k]][first + i] over k, or the maximum: one after the other in
 * `keep_fp32`, which holds a `type`; maxima are compared as `ordered`. */
#define REDUCE(type, keep_fp32, ordered, widen, narrow)                         \
    for (int64_t i = 0; i < count; i++) {                                       \
        keep_fp32 sum = widen(((const type *)in[order[0]])[first + i]);         \
                                                                                \
        for (int k = 1; k < members; k++) {                                     \
            const keep_fp32 x = widen(((const type *)in[order[k]])[first + i]); \
                                                                                \
            sum = !max ? sum + x : (ordered)x > (ordered)sum ? x : sum;         \
        }                                                                       \
        ((type *)out)[i] = narrow(sum);                                         \
    }

static void reduce(void *out, const void *const *in, const int *order, int members, int64_t first,
                   int64_t count, enum hd_dtype dtype, bool max)
{
    switch (dtype) {
    case HD_F32:
        REDUCE(float, float, float, , );
        break;
    case HD_BF16:
        REDUCE(uint16_t, float, float, hd_bf16_to_f32, hd_f32_to_bf16);
        break;
    case HD_F16:
        REDUCE(uint16_t, float, float, hd_f16_to_f32, hd_f32_to_f16);
        break;
    case HD_F64:
        REDUCE(double, double, double, , );
        break;
    case HD_U8:
        REDUCE(uint8_t, uint64_t, uint64_t, , (uint8_t));
        break;
    case HD_I32:
        REDUCE(int32_t, uint64_t, int64_t, (uint64_t), (int32_t)(uint32_t));
        break;
    default:
        REDUCE(int64_t, uint64_t, int64_t, (uint64_t), (int64_t));
        break;
    }
}

/* ---- one rank's bodies ---- */

struct sizes {
    int64_t count;
    enum hd_dtype dtype;
    enum hd_comm_reduce reduce;
};

struct desk { /* where one rank works; private memory for what it expects */
    struct rank *self;
    struct hd_comm_group *group;
    struct hd_comm_stream *stream;
    int size, index;
    uint64_t hash;
};

static enum hd_status finish(const struct desk *desk, enum hd_status launched)
{
    return launched ? launched : hd_comm_wait(desk->stream, hd_comm_record(desk->stream));
}

/* Input of a member: rank-dependent, `blocks` blocks of count elements. */
static const char *input_of(const struct desk *desk, int member, int64_t blocks,
                            const struct sizes *sizes)
{
    return elements_of(hd_comm_group_member(desk->group, member), blocks * sizes->count,
                       sizes->dtype);
}

/* Block number `block` of what the members' blocks come to. */
static void *expect_reduced(const struct desk *desk, int64_t block, const struct sizes *sizes)
{
    static const int order[] = {0, 1, 2, 3, 4, 5, 6, 7};
    void *out = malloc((size_t)sizes->count * hd_dtype_size(sizes->dtype) + 1);
    const void *in[RANKS_MAX];

    if (!out)
        abort();
    for (int m = 0; m < desk->size; m++)
        in[m] = input_of(desk, m, block + 1, sizes);
    reduce(out, in, order, desk->size, block * sizes->count, sizes->count, sizes->dtype,
           sizes->reduce == HD_COMM_MAX);
    return out;
}

static void try_all_reduce(struct desk *desk, const struct sizes *sizes, bool in_place)
{
    const size_t bytes = (size_t)sizes->count * hd_dtype_size(sizes->dtype);
    char *recv = desk->self->base, *send = in_place ? recv : recv + (bytes + 63) / 64 * 64;
    const struct hd_collective_args args = {.send = send,
                                            .recv = recv,
                                            .count = sizes->count,
                                            .dtype = sizes->dtype,
                                            .reduce = sizes->reduce};
    void *expected = expect_reduced(desk, 0, sizes);

    memset(recv, 0x5a, bytes);
    fill(send, desk->self->rank, sizes->count, sizes->dtype);
    CHECK_OK(desk->self,
             finish(desk, hd_comm_launch(desk->group, desk->stream, HD_COMM_ALL_REDUCE, &args)));
    CHECK(desk->self, memcmp(recv, expected, bytes) == 0);
    desk->hash = hash_bytes(desk->hash, recv, bytes);
    free(expected);
}

static void try_reduce_scatter(struct desk *desk, const struct sizes *sizes, bool in_place)
{
    const size_t bytes = (size_t)sizes->count * hd_dtype_size(sizes->dtype);
    char *send = desk->self->base;
    char *recv = in_place ? send + (size_t)desk->index * bytes
                          : send + ((size_t)desk->size * bytes + 63) / 64 * 64;
    const struct hd_collective_args args = {.send = send,
                                            .recv = recv,
                                            .count = sizes->count,
                                            .dtype = sizes->dtype,
                                            .reduce = sizes->reduce,
                                            .keep_fp32 = false};
    void *expected = expect_reduced(desk, desk->index, sizes);

    fill(send, desk->self->rank, desk->size * sizes->count, sizes->dtype);
    CHECK_OK(desk->self, finish(desk, hd_comm_launch(desk->group, desk->stream,
                                                     HD_COMM_REDUCE_SCATTER, &args)));
    CHECK(desk->self, memcmp(recv, expected, bytes) == 0);
    desk->hash = hash_bytes(desk->hash, recv, bytes);
    free(expected);
}

/* The sum of bf16 as the fp32 that it is: each addition is rounded to fp32, nothing to bf16. */
static void try_wide_scatter(struct desk *desk, const struct sizes *sizes)
{
    const size_t bytes = (size_t)sizes->count * sizeof(float);
    char *send = desk->self->base;
    float *recv = (float *)(send + ((size_t)desk->size * bytes / 2 + 63) / 64 * 64);
    const struct hd_collective_args args = {
        .send = send, .recv = recv, .count = sizes->count, .dtype = HD_BF16, .keep_fp32 = true};
    float *expected = calloc((size_t)sizes->count + 1, sizeof *expected);

    for (int m = 0; m < desk->size; m++) {
        const uint16_t *theirs = (const uint16_t *)input_of(desk, m, desk->size, sizes);

        for (int64_t i = 0; i < sizes->count; i++) {
            const float x = hd_bf16_to_f32(theirs[desk->index * sizes->count + i]);

            expected[i] = m ? expected[i] + x : x;
        }
    }
    fill(send, desk->self->rank, desk->size * sizes->count, HD_BF16);
    CHECK_OK(desk->self, finish(desk, hd_comm_launch(desk->group, desk->stream,
                                                     HD_COMM_REDUCE_SCATTER, &args)));
    CHECK(desk->self, memcmp(recv, expected, bytes) == 0);
    desk->hash = hash_bytes(desk->hash, recv, bytes);
    free(expected);
}

static void try_all_gather(struct desk *desk, const struct sizes *sizes, bool in_place)
{
    const size_t bytes = (size_t)sizes->count * hd_dtype_size(sizes->dtype);
    char *recv = desk->self->base;
    char *send = in_place ? recv + (size_t)desk->index * bytes
                          : recv + ((size_t)desk->size * bytes + 63) / 64 * 64;
    const struct hd_collective_args args = {
        .send = send, .recv = recv, .count = sizes->count, .dtype = sizes->dtype};

    memset(recv, 0x5a, (size_t)desk->size * bytes);
    fill(send, desk->self->rank, sizes->count, sizes->dtype);
    CHECK_OK(desk->self,
             finish(desk, hd_comm_launch(desk->group, desk->stream, HD_COMM_ALL_GATHER, &args)));
    for (int m = 0; m < desk->size; m++)
        CHECK(desk->self,
              memcmp(recv + (size_t)m * bytes, input_of(desk, m, 1, sizes), bytes) == 0);
    desk->hash = hash_bytes(desk->hash, recv, (size_t)desk->size * bytes);
}

static void try_all_to_all(struct desk *desk, const struct sizes *sizes)
{
    const size_t bytes = (size_t)sizes->count * hd_dtype_size(sizes->dtype);
    char *recv = desk->self->base;
    char *send = recv + ((size_t)desk->size * bytes + 63) / 64 * 64;
    const struct hd_collective_args args = {
        .send = send, .recv = recv, .count = sizes->count, .dtype = sizes->dtype};

    fill(send, desk->self->rank, desk->size * sizes->count, sizes->dtype);
    CHECK_OK(desk->self,
             finish(desk, hd_comm_launch(desk->group, desk->stream, HD_COMM_ALL_TO_ALL, &args)));
    for (int m = 0; m < desk->size; m++) {
        const char *theirs = input_of(desk, m, desk->size, sizes);

        CHECK(desk->self,
              memcmp(recv + (size_t)m * bytes, theirs + (size_t)desk->index * bytes, bytes) == 0);
    }
    desk->hash = hash_bytes(desk->hash, recv, (size_t)desk->size * bytes);
}

static void try_broadcasts(struct desk *desk, const struct sizes *sizes)
{
    const size_t bytes = (size_t)sizes->count * hd_dtype_size(sizes->dtype);

    for (int root = 0; root < desk->size; root++) {
        const struct hd_collective_args args = {
            .recv = desk->self->base, .count = sizes->count, .dtype = sizes->dtype, .root = root};
        const void *expected = input_of(desk, root, 1, sizes);

        fill(desk->self->base, desk->self->rank, sizes->count, sizes->dtype);
        CHECK_OK(desk->self,
                 finish(desk, hd_comm_launch(desk->group, desk->stream, HD_COMM_BROADCAST, &args)));
        CHECK(desk->self, memcmp(desk->self->base, expected, bytes) == 0);
        desk->hash = hash_bytes(desk->hash, desk->self->base, bytes);
    }
}

/* Every member's block goes to its right neighbour: by a shift, and by a send and a receive in one
 * launch. */
static void try_ring(struct desk *desk, const struct sizes *sizes)
{
    const size_t bytes = (size_t)sizes->count * hd_dtype_size(sizes->dtype);
    const int right = (desk->index + 1) % desk->size,
              left = (desk->index + desk->size - 1) % desk->size;
    char *recv = desk->self->base, *send = recv + (bytes + 63) / 64 * 64;
    const struct hd_comm_send_args send_args = {send, sizes->count, sizes->dtype, right};
    const struct hd_comm_recv_args recv_args = {recv, sizes->count, sizes->dtype, left};
    const struct hd_collective_args shift_args = {
        .send = send, .recv = recv, .count = sizes->count, .dtype = sizes->dtype};
    const void *expected = input_of(desk, left, 1, sizes);

    fill(send, desk->self->rank, sizes->count, sizes->dtype);
    CHECK_OK(desk->self, hd_comm_begin(desk->stream));
    CHECK_OK(desk->self, hd_comm_recv(desk->group, desk->stream, &recv_args));
    CHECK_OK(desk->self, hd_comm_send(desk->group, desk->stream, &send_args));
    CHECK_OK(desk->self, finish(desk, hd_comm_end(desk->stream)));
    CHECK(desk->self, memcmp(recv, expected, bytes) == 0);
    desk->hash = hash_bytes(desk->hash, recv, bytes);
    memset(recv, 0xee, bytes);
    CHECK_OK(desk->self,
             finish(desk, hd_comm_launch(desk->group, desk->stream, HD_COMM_SHIFT, &shift_args)));
    CHECK(desk->self, memcmp(recv, expected, bytes) == 0);
    desk->hash = hash_bytes(desk->hash, recv, bytes);
}

/* Member i sends (3 i + 5 j) % 7 * scale rows of `count` elements to member j; some send nothing.
 */
static int32_t rows_from(int i, int j, int32_t scale)
{
    return (3 * i + 5 * j) % 7 * scale;
}

static void try_all_to_all_v(struct desk *desk, const struct sizes *sizes, int32_t scale)
{
    const size_t row = (size_t)sizes->count * hd_dtype_size(sizes->dtype);
    const int64_t rows_max = (int64_t)6 * scale * desk->size; /* 6: the largest of (...) % 7 */
    char *recv = desk->self->base, *send = recv + ((size_t)rows_max * row + 63) / 64 * 64,
         *at = recv;
    int32_t *send_counts = desk->self->counts, *recv_counts = send_counts + RANKS_MAX,
            *overflow = recv_counts + RANKS_MAX;
    const struct hd_collective_args args = {.send = send,
                                            .recv = recv,
                                            .send_counts = send_counts,
                                            .recv_counts = recv_counts,
                                            .overflow = overflow,
                                            .send_rows_max = rows_max,
                                            .recv_rows_max = rows_max,
                                            .count = sizes->count,
                                            .dtype = sizes->dtype};

    for (int m = 0; m < desk->size; m++)
        send_counts[m] = rows_from(desk->index, m, scale);
    *overflow = 0;
    fill(send, desk->self->rank, rows_max * sizes->count, sizes->dtype);
    CHECK_OK(desk->self,
             finish(desk, hd_comm_launch(desk->group, desk->stream, HD_COMM_ALL_TO_ALL_V, &args)));
    CHECK(desk->self, *overflow == 0);
    for (int m = 0; m < desk->size; m++) {
        const char *theirs = input_of(desk, m, rows_max, sizes);
        const size_t bytes = (size_t)rows_from(m, desk->index, scale) * row;
        size_t before = 0; /* what member m sends to members before this one */

        for (int j = 0; j < desk->index; j++)
            before += (size_t)rows_from(m, j, scale) * row;
        CHECK(desk->self, recv_counts[m] == rows_from(m, desk->index, scale));
        CHECK(desk->self, memcmp(at, theirs + before, bytes) == 0);
        at += bytes;
    }
    desk->hash = hash_bytes(desk->hash, recv, (size_t)(at - recv));
}

static void try_everything(struct desk *desk, const struct sizes *sizes)
{
    struct report *report = desk->self->report;

    for (int in_place = 0; in_place <= 1 && !report->failed[0]; in_place++) {
        try_all_reduce(desk, sizes, in_place);
        if (!report->failed[0])
            try_reduce_scatter(desk, sizes, in_place);
        if (!report->failed[0])
            try_all_gather(desk, sizes, in_place);
    }
    if (!report->failed[0] && sizes->dtype == HD_BF16 && sizes->reduce == HD_COMM_SUM)
        try_wide_scatter(desk, sizes);
    if (!report->failed[0])
        try_all_to_all(desk, sizes);
    if (!report->failed[0])
        try_broadcasts(desk, sizes);
    if (!report->failed[0])
        try_ring(desk, sizes);
    if (!report->failed[0] && sizes->count <= 17)
        try_all_to_all_v(desk, sizes, 11);
    if (report->failed[0]) {
        const size_t len = strlen(report->failed);

        (void)snprintf(report->failed + len, sizeof report->failed - len,
                       " (group of %d, %lld x %s)", desk->size, (long long)sizes->count,
                       hd_dtype_name(sizes->dtype));
    }
}

/* All types, sums and maxima, over counts that are odd against lines, blocks and steps. */
static void try_all_sizes(struct desk *desk, bool large)
{
    static const int64_t counts[] = {0, 1, 17, 4099};

    for (int t = 0; t < HD_DTYPE_COUNT; t++) {
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            for (int reduce = HD_COMM_SUM; reduce <= HD_COMM_MAX; reduce++) {
                const struct sizes sizes = {counts[c], (enum hd_dtype)t,
                                            (enum hd_comm_reduce)reduce};

                try_everything(desk, &sizes);
                if (desk->self->report->failed[0])
                    return;
            }
        }
        if (large) {
            const struct sizes sizes = {LARGE, (enum hd_dtype)t, HD_COMM_SUM};

            try_all_reduce(desk, &sizes, false);
            CHECK(desk->self, !desk->self->report->failed[0]);
        }
    }
    if (large) {
        const struct sizes sizes = {LARGE, HD_F32, HD_COMM_SUM};

        try_everything(desk, &sizes);
        CHECK(desk->self, !desk->self->report->failed[0]);
        try_wide_scatter(desk, &(struct sizes){LARGE, HD_BF16, HD_COMM_SUM});
    }
}

static void open_desk(struct desk *desk, struct rank *self, const struct hd_mesh *mesh,
                      enum hd_group_name name)
{
    *desk = (struct desk){.self = self, .hash = UINT64_C(14695981039346656037)};
    CHECK_OK(self, hd_comm_mesh_group(self->comm, mesh, name, &desk->group));
    desk->stream = hd_comm_get_stream(self->comm, HD_COMM_STREAM_REDUCE);
    desk->size = hd_comm_group_size(desk->group);
    desk->index = hd_comm_group_index(desk->group);
}

static void over_the_world(struct rank *self)
{
    const struct hd_mesh_sizes sizes = {.dp = self->world};
    struct hd_mesh mesh;
    struct desk desk;

    CHECK_OK(self, hd_mesh_init(&mesh, &sizes));
    open_desk(&desk, self, &mesh, HD_GROUP_WORLD);
    CHECK(self, !self->report->failed[0]);
    try_all_sizes(&desk, true);
    self->report->hash = desk.hash;
}

/* Rows and columns of 2 x 2, whose groups run at the same time and share nothing. */
static void over_rows_and_columns(struct rank *self)
{
    const struct hd_mesh_sizes sizes = {.dp = 2, .tp = 2};
    static const enum hd_group_name names[] = {HD_GROUP_TP, HD_GROUP_DP, HD_GROUP_TP};
    struct hd_mesh mesh;
    struct desk desk;

    CHECK_OK(self, hd_mesh_init(&mesh, &sizes));
    for (int n = 0; n < 3; n++) {
        open_desk(&desk, self, &mesh, names[n]);
        CHECK(self, !self->report->failed[0]);
        try_all_sizes(&desk, false);
        CHECK(self, !self->report->failed[0]);
        self->report->hash = self->report->hash * 31 + desk.hash;
    }
}

static void in_groups_of_one(struct rank *self)
{
    const struct hd_mesh_sizes sizes = {.dp = self->world};
    struct hd_mesh mesh;
    struct desk desk;

    CHECK_OK(self, hd_mesh_init(&mesh, &sizes));
    open_desk(&desk, self, &mesh, HD_GROUP_TP);
    CHECK(self, !self->report->failed[0]);
    try_all_sizes(&desk, false);
}

/* ---- the tests ---- */

enum { REGISTERED = 48 << 20 }; /* two times 4 x LARGE doubles */

static void check_threads_and_processes(int world, void (*body)(struct rank *self))
{
    struct ranks ranks = {.world = world, .registered_bytes = REGISTERED, .body = body};
    struct report *threads, *processes;

    ranks.as = AS_THREADS;
    threads = ranks_run(&ranks, false);
    ranks.as = AS_PROCESSES;
    processes = ranks_run(&ranks, false);
    for (int r = 0; r < world; r++)
        assert_int_equal(threads[r].hash, processes[r].hash); /* and both equal this file's own */
    ranks_free(threads);
    ranks_free(processes);
}

static void two_ranks_do_every_collective(void **state)
{
    check_threads_and_processes(2, over_the_world);
}

static void three_ranks_do_every_collective(void **state)
{
    check_threads_and_processes(3, over_the_world);
}

static void four_ranks_do_every_collective(void **state)
{
    check_threads_and_processes(4, over_the_world);
}

static void rows_and_columns_do_every_collective(void **state)
{
    check_threads_and_processes(4, over_rows_and_columns);
}

static void groups_of_one_copy(void **state)
{
    check_threads_and_processes(2, in_groups_of_one);
}

/* A world of one without any shared memory gives what a group of one gives. */
static void the_engine_self_copies(void **state)
{
    static const int32_t members[] = {0};
    struct report report = {0};
    struct rank self = {.world = 1, .report = &report};
    struct desk desk = {.self = &self, .size = 1};
    void *base;

    assert_int_equal(hd_comm_open_self(&self.comm), HD_OK);
    assert_string_equal(hd_comm_engine_name(self.comm), "self");
    assert_int_equal(hd_comm_alloc_registered(self.comm, 16 << 20, &base), HD_OK);
    self.base = base;
    self.counts = (int32_t *)(self.base + (16 << 20)) - 64;
    assert_int_equal(hd_comm_open_group(self.comm, "world", members, 1, &desk.group), HD_OK);
    desk.stream = hd_comm_get_stream(self.comm, HD_COMM_STREAM_GATHER);
    try_all_sizes(&desk, true);
    assert_string_equal(report.failed, "");
    hd_comm_free(self.comm);
}

/* Goal: the inputs can tell a wrong order. Method: the sum of three ranks in two orders, by this
 * file's own arithmetic, differs somewhere for every float; two ranks commute. */
static void the_order_of_three_ranks_shows(void **state)
{
    static const enum hd_dtype floats[] = {HD_F32, HD_BF16, HD_F16, HD_F64};
    static const int forward[] = {0, 1, 2}, backward[] = {2, 1, 0};
    enum { COUNT = 4099 };

    for (int t = 0; t < 4; t++) {
        const size_t bytes = COUNT * hd_dtype_size(floats[t]);
        void *a = malloc(bytes), *b = malloc(bytes);
        const void *in[3];

        for (int r = 0; r < 3; r++)
            in[r] = elements_of(r, COUNT, floats[t]);
        reduce(a, in, forward, 3, 0, COUNT, floats[t], false);
        reduce(b, in, backward, 3, 0, COUNT, floats[t], false);
        assert_memory_not_equal(a, b, bytes);
        free(a);
        free(b);
    }
}

/* Goal: shares of a reduction cover everything once, start at lines, and differ by at most a line.
 */
static void slices_cover_everything_once(void **state)
{
    static const int64_t counts[] = {0, 1, 15, 16, 17, 31, 1000, 500001};

    for (int t = 0; t < HD_DTYPE_COUNT; t++)
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
            for (int parts = 1; parts <= 7; parts++) {
                const int64_t size = (int64_t)hd_dtype_size((enum hd_dtype)t);
                const int64_t lines = (counts[c] * size + 63) / 64;
                int64_t begin, end, at = 0;

                for (int p = 0; p < parts; p++) {
                    hd_comm_slice(counts[c], (enum hd_dtype)t, parts, p, &begin, &end);
                    assert_int_equal(begin, at);
                    assert_true(begin * size % 64 == 0 || begin == counts[c]);
                    assert_true(end >= begin);
                    assert_true((end - begin) * size <= (lines + parts - 1) / parts * 64);
                    at = end;
                }
                assert_int_equal(at, counts[c]);
            }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    prepare();
    ranks_read_engine(argc, argv);
    if (RANKS_ON_DEVICE)
        ranks_device_seed(20);

    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
