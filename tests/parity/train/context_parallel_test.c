/* Goal: context parallelism sends and keeps bytes, against closed forms worked out by hand; that
 * documents and windows hold across ranks; and that a sequence which one rank has no room for
 * trains on four.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare.h"
#include "tests/program/test.h"
#include "tests/sanitized.h"
#include "traffic.h"

/* The sizes of harness_job. */
enum { L = 2, C = 32, H = 4, G = 2, D = 8, F = 48, S = 16, B = 2 };

static struct hd_job job_of(const struct harness *h, const char *family, int cp,
                            const char *exchange)
{
    struct hd_job job = harness_job(h, family, 1);

    job.cp = cp;
    job.micro_batch = B;
    job.cp_exchange = hd_job_find_word(hd_job_cp_exchange_words, exchange);
    return job;
}

/* ---- bytes sent ---- */

/* Checks the bytes of one layer and micro-batch, P ranks together, with n bytes of keys and values
 * on each, fp32 as are their gradients:
 *   ring    F passes every block on P - 1 times, B again, and their gradients P times, until they
 *           are home; each time every one of P ranks receives n
 *   gather  F and B gather, P (P-1) n each, and B scatters sums of gradients, as much again */
static void check_bytes(int P, const char *exchange)
{
    const int64_t n = B * S / P * 2 * G * D * 4;
    const bool ring = strcmp(exchange, "ring") == 0;
    struct traffic traffic = {0};
    struct harness h;
    struct hd_job job;
    int64_t times; /* layers and micro-batches of the step */

    harness_setup(&h, 20000);
    job = job_of(&h, "llama", P, exchange);
    times = L * job.global_batch / B;
    traffic_count(&job, &traffic);
    assert_int_equal(traffic_moved(&traffic, P, HD_GROUP_CP, HD_COMM_SHIFT),
                     ring ? times * P * (2 * (P - 1) + P) * n : 0);
    assert_int_equal(traffic_moved(&traffic, P, HD_GROUP_CP, HD_COMM_ALL_GATHER),
                     ring ? 0 : times * 2 * P * (P - 1) * n);
    assert_int_equal(traffic_moved(&traffic, P, HD_GROUP_CP, HD_COMM_REDUCE_SCATTER),
                     ring ? 0 : times * P * (P - 1) * n);
    traffic_check_dry(&traffic, &job);
    harness_teardown(&h);
}

static void a_ring_passes_blocks_and_their_gradients_on(void **state)
{
    check_bytes(2, "ring");
    check_bytes(4, "ring");
}

static void a_gather_moves_each_block_to_each_rank(void **state)
{
    check_bytes(2, "all_gather");
    check_bytes(4, "all_gather");
}

/* Goal: what gated delta layers send does not grow with the context. Method: the bytes of the one
 * delta layer of two, of P ranks together, fp32. In F and in B each rank gathers, of 2 B segments of
 * P - 1 others, the inputs before the next segment, or their gradients, and two matrices of each of 8
 * value heads of 16 channels, whose keys have 8: T of 8 x 8 and another of 8 x 16. A convolution of 3
 * taps needs 2 inputs before a row; it has 2 x 4 key heads of 8 channels and the values. */
static void delta_layers_exchange_ends_and_matrices_of_segments(void **state)
{
    static const int contexts[] = {S, 2 * S};
    const int64_t ends = (int64_t)2 * (2 * 4 * 8 + 8 * 16), matrices = (int64_t)8 * 8 * (8 + 16);

    for (int c = 0; c < 2; c++) {
        const int P = c ? 4 : 2;
        struct traffic traffic = {0};
        struct harness h;
        struct hd_job job;

        harness_setup(&h, 20000);
        job = job_of(&h, "qwen3_5_text", P, "ring");
        job.context = contexts[c];
        traffic_count(&job, &traffic);
        assert_int_equal(traffic_moved(&traffic, P, HD_GROUP_CP, HD_COMM_ALL_GATHER),
                         job.global_batch / B * P * (P - 1) * 2 * 2 * B * (ends + matrices) * 4);
        traffic_check_dry(&traffic, &job);
        harness_teardown(&h);
    }
}

/* ---- bytes kept ---- */

/* Goal: F leaves, for B, per rank and micro-batch: that of one rank (tensor_parallel_test.c counts
 * it) for 1/P of the rows, and nothing of other ranks' keys. Every tensor is a multiple of 64
 * bytes. */
static void a_rank_keeps_its_own_rows_alone(void **state)
{
    struct harness h;

    harness_setup(&h, 20000);
    for (int v = 0; v < 3; v++) {
        const int P = v ? 2 : 1;
        const int64_t R = B * S / P, block = 4 * C + 2 + (2 * H + 2 * G) * D + H + 3 * F;
        const struct hd_job job = job_of(&h, "llama", P, v == 2 ? "all_gather" : "ring");
        struct hd_rank_program layout;
        struct hd_arena arena;

        hd_arena_init(&arena, 0);
        run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &layout);
        assert_int_equal(layout.memory.kept, 4 * R * (L * block + 2 * C + 1) + 4 * 4 * R);
        hd_arena_done(&arena);
    }
    harness_teardown(&h);
}

/* ---- what rows see ---- */

/* Documents of one or two lines, so that most end inside a sample and inside a chunk; mistral's
 * window of 5 leaves chunks of 2 that see nothing of others; states and convolutions go through chunks
 * and end with documents. */
static void documents_and_windows_hold_across_ranks(void **state)
{
    static const char *const families[] = {"llama", "mistral", "qwen3_5_text", "lfm2"};
    static const char *const exchanges[] = {"ring", "all_gather"};

    for (int f = 0; f < 4; f++) {
        struct run *one = run_new(HD_TEST_SANITIZED ? 4 : 20);
        struct harness h;
        struct hd_job job;

        harness_setup(&h, 20000);
        job = job_of(&h, families[f], 1, "ring");
        job.documents = HD_JOB_DOCUMENTS_BOUNDED;
        job.end_of_text = '.';
        one->noise = 0.2f;
        if (run_on_threads(&job, one))
            fail_msg("%s", hd_err_message());
        for (int x = 0; x < (f < 2 ? 2 : 1);
             x++) { /* gated delta layers have no exchange to choose */
            job.cp = 4;
            job.cp_exchange = hd_job_find_word(hd_job_cp_exchange_words, exchanges[x]);
            if (compare_with(&job, one, NULL))
                fail_msg("%s, %s: %s", families[f], exchanges[x], hd_err_message());
        }
        run_free(one);
        harness_teardown(&h);
    }
}

/* ---- a long sequence ---- */

enum { LONG = HD_TEST_SANITIZED ? 8192 : 32768 };

struct attempt {
    int64_t private_bytes;
    enum hd_status status[HARNESS_WORLD_MAX];
    double loss;
};

static enum hd_status one_step(struct harness_rank *r)
{
    struct attempt *a = r->context;
    const struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                               .backend = harness_backend(),
                                               .instance = r->instance,
                                               .comm = r->comm,
                                               .rank = r->rank,
                                               .private_bytes = a->private_bytes};
    struct hd_step_result result = {0};
    struct hd_trainer *t;
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    a->status[r->rank] = st;
    if (st)
        return HD_OK;
    st = hd_trainer_init(t);
    if (!st)
        st = hd_trainer_step(t, 0, &result);
    if (r->rank == 0)
        a->loss = result.loss;
    hd_trainer_free(t);
    return st;
}

/* Goal: a sequence that one device has no room for trains on four. Method: devices of what one of
 * four ranks needs, less than half of what one alone would; one is refused, four take a step. The
 * weights know nothing yet, so the loss is ln 256. */
static void a_sequence_too_long_for_one_rank_trains_on_four(void **state)
{
    struct attempt alone = {0}, four = {0};
    struct hd_rank_program layout;
    struct hd_arena arena;
    struct harness h;
    struct hd_job job;
    int64_t whole;

    harness_setup(&h, 800000);
    job = job_of(&h, "llama", 1, "ring");
    job.layers = 1;
    job.heads = job.kv_heads = 1;
    job.context = LONG;
    job.global_batch = job.micro_batch = 1;
    job.validate_batches = 1;
    hd_arena_init(&arena, 0);
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &layout);
    whole = layout.memory.private_bytes;
    job.cp = 4;
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &layout);
    alone.private_bytes = four.private_bytes = layout.memory.private_bytes;
    assert_true(2 * four.private_bytes < whole);
    hd_arena_done(&arena);

    job.cp = 1;
    assert_int_equal(harness_threads(&job, 1, &alone, one_step), HD_OK);
    assert_int_equal(alone.status[0], HD_NO_MEMORY);
    job.cp = 4;
    if (harness_threads(&job, 4, &four, one_step))
        fail_msg("%s", hd_err_message());
    for (int r = 0; r < 4; r++)
        assert_int_equal(four.status[r], HD_OK);
    assert_true(fabs(four.loss - log(256)) < 0.2);
    harness_teardown(&h);
}

RUN_CASES()
