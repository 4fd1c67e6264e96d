/* Goal: a step sends the predicted bytes: bytes counted where they are moved, against a closed form
 * worked out by hand and against the prediction of the dry fold; and when reductions start.
 */
#include <stdio.h>
#include <string.h>

#include "tests/program/test.h"
#include "traffic.h"

enum { MICRO_BATCHES = 2, LAUNCHES_MAX = 4096 };

enum { UNIT_EMBEDDING, UNIT_FIRST_BLOCK, UNIT_LAST_BLOCK, UNIT_HEAD };

/* Returns the bytes that all members moved together; all must have taken part equally often. */
static int64_t moved(const struct counted *ranks, int dp, enum hd_group_name group,
                     enum hd_comm_kind kind, int64_t calls)
{
    int64_t bytes = 0;

    for (int r = 0; r < dp; r++) {
        assert_int_equal(ranks[r].of[group][kind].calls, calls);
        bytes += (int64_t)ranks[r].of[group][kind].moved_bytes;
    }
    return bytes;
}

/* Elements of every part, all trainable and with no padding: each tensor is a multiple of 16.
 *   llama: embedding 256*32;  block: 2 norms 32, q and out 32*32, k and v 16*32 (2 heads of 8),
 *          gate, up, down 48*32;  head: norm 32, matrix 256*32
 *   gpt2:  embedding 256*32 + positions 16*32;  block: 2 norms 2*32, q k v out 32*32 + 32,
 *          up 48*32 + 48, down 48*32 + 32;  head: norm 2*32, its matrix is the embedding */
enum {
    LLAMA_BLOCK = 2 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32,
    LLAMA_ALL = 256 * 32 + 2 * LLAMA_BLOCK + 32 + 256 * 32,
    GPT2_BLOCK = 2 * 2 * 32 + 4 * (32 * 32 + 32) + 48 * 32 + 48 + 48 * 32 + 32,
    GPT2_ALL = 256 * 32 + 16 * 32 + 2 * GPT2_BLOCK + 2 * 32,
    BUCKETS =
        5 /* embedding, two blocks, the head's norm, its matrix; gpt2: positions, the tied one */
};

/* Checks a step. Every part is all-reduced once in fp32, whatever the number of micro-batches: each
 * element is read from P-1 members and written to P-1, 2(P-1) * 4 bytes. The exchange is gathered
 * once: 24 doubles from each of P members to each of the other P-1. Nothing else is sent. Of a
 * validation: one exchange between hosts of 1024 bytes per rank. */
static void check_traffic(const struct traffic *t, int P, int64_t elements)
{
    const struct counted *s = t->step, *v = t->validation;

    assert_int_equal(moved(s, P, HD_GROUP_DP_CP, HD_COMM_ALL_REDUCE, BUCKETS),
                     2 * (P - 1) * 4 * elements);
    assert_int_equal(moved(s, P, HD_GROUP_WORLD, HD_COMM_ALL_GATHER, 1), P * (P - 1) * 24 * 8);
    assert_int_equal(moved(v, P, HD_GROUP_WORLD, HD_COMM_ALL_GATHER, 1), P * (P - 1) * 1024);
    for (int g = 0; g < HD_GROUP_COUNT; g++)
        for (int k = 0; k < HD_COMM_KIND_COUNT; k++) {
            bool sends = (g == HD_GROUP_DP_CP && k == HD_COMM_ALL_REDUCE) ||
                         (g == HD_GROUP_WORLD && k == HD_COMM_ALL_GATHER);

            if (!sends)
                (void)moved(s, P, (enum hd_group_name)g, (enum hd_comm_kind)k, 0);
            if (g != HD_GROUP_WORLD || k != HD_COMM_ALL_GATHER)
                (void)moved(v, P, (enum hd_group_name)g, (enum hd_comm_kind)k, 0);
        }
}

static void traffic_case(const char *family, int dp, const char *precision,
                         struct hd_rank_program_options layout, int64_t elements)
{
    struct traffic traffic = {.layout = layout};
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = harness_job(&h, family, dp);
    job.precision = hd_job_find_word(hd_job_precision_words, precision);
    job.micro_batch = job.global_batch / (dp * MICRO_BATCHES);
    traffic_count(&job, &traffic);
    check_traffic(&traffic, dp, elements);
    traffic_check_dry(&traffic, &job);
    harness_teardown(&h);
}

static void a_step_sends_each_gradient_and_one_exchange_once(void **state)
{
    for (int dp = 2; dp <= 4; dp += 2) {
        traffic_case("llama", dp, "fp32", (struct hd_rank_program_options){0}, LLAMA_ALL);
        traffic_case("gpt2", dp, "fp32", (struct hd_rank_program_options){0}, GPT2_ALL);
    }
}

static void bf16_and_schedules_send_the_same(void **state)
{
    traffic_case("llama", 2, "bf16", (struct hd_rank_program_options){0}, LLAMA_ALL);
    traffic_case(
        "llama", 2, "fp32",
        (struct hd_rank_program_options){.schedule = HD_SCHEDULE_GPIPE, .split_backward = true},
        LLAMA_ALL);
}

/* Muon: gradients are reduced as AdamW's are (a block's norms in a bucket of their own); then the owner
 * of each matrix sends it in fp32 to the P-1 others that have it, once a block. With shards and tp,
 * where owners gather first, and with ep the fold predicts it. */
static void muon_sends_each_matrix_from_its_owner(void **state)
{
    enum { MATRICES = LLAMA_BLOCK - 2 * 32 };
    static const struct {
        const char *family;
        int tp, ep, dp, zero;
    } cases[] = {{"llama", 1, 1, 2, 0}, {"llama", 2, 1, 2, 1}, {"mixtral", 1, 2, 4, 2}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct traffic traffic = {0};
        const struct counted *ranks = traffic.step;
        struct harness h;
        struct hd_job job;

        harness_setup(&h, 20000);
        job = harness_job(&h, cases[i].family, cases[i].dp);
        job.optimizer = HD_JOB_OPTIMIZER_MUON;
        job.tp = cases[i].tp;
        job.ep = cases[i].ep;
        job.zero = cases[i].zero;
        job.micro_batch = 1;
        traffic_count(&job, &traffic);
        traffic_check_dry(&traffic, &job);
        if (!job.zero) {
            assert_int_equal(moved(ranks, job.dp, HD_GROUP_DP_CP, HD_COMM_ALL_REDUCE, BUCKETS + 2),
                             2 * (job.dp - 1) * 4 * LLAMA_ALL);
            assert_int_equal(moved(ranks, job.dp, HD_GROUP_STAGE, HD_COMM_ALL_TO_ALL_V, 2),
                             (job.dp - 1) * 4 * 2 * MATRICES);
        }
        harness_teardown(&h);
    }
}

/* ---- when reductions start ---- */

struct launch {
    enum hd_call call;
    bool is_comm;
    enum hd_comm_kind comm;
    int unit;
};

struct order {
    struct hd_rank_program_options layout;
    struct launch launches[LAUNCHES_MAX]; /* of rank 0, in one step */
    int count;
};

static void note_launch(void *context, const struct hd_launch_event *event)
{
    struct order *order = context;

    if (order->count < LAUNCHES_MAX)
        order->launches[order->count] = (struct launch){event->call, event->node->is_comm,
                                                        event->node->comm, event->node->unit};
    order->count++;
}

static enum hd_status watch_step(struct harness_rank *r)
{
    struct order *order = r->context;
    const struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                               .backend = harness_backend(),
                                               .instance = r->instance,
                                               .comm = r->comm,
                                               .rank = r->rank,
                                               .layout = order->layout};
    struct hd_step_result result;
    struct hd_trainer *t;
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (st)
        return st;
    st = hd_trainer_init(t);
    if (!st && r->rank == 0)
        hd_runner_observe(hd_trainer_runner(t), note_launch, order);
    if (!st)
        st = hd_trainer_step(t, 0, &result);
    hd_trainer_free(t);
    return st;
}

static struct order *order_new(const char *family, struct hd_rank_program_options layout)
{
    struct order *order = harness_shared(sizeof *order);
    struct harness h;
    struct hd_job job;

    order->layout = layout;
    harness_setup(&h, 20000);
    job = harness_job(&h, family, 2);
    if (harness_threads(&job, 2, order, watch_step))
        fail_msg("%s", hd_err_message());
    assert_in_range(order->count, 1, LAUNCHES_MAX);
    harness_teardown(&h);
    return order;
}

/* Returns the launch that reduces the gradient of `unit` last; once a step per part, or the test
 * fails. */
static int reduction_of(const struct order *order, int unit, int buckets)
{
    int found = -1, count = 0;

    for (int i = 0; i < order->count; i++) {
        const struct launch *l = &order->launches[i];

        if (!l->is_comm || l->comm != HD_COMM_ALL_REDUCE || l->unit != unit)
            continue;
        found = i;
        count++;
    }
    assert_int_equal(count, buckets);
    return found;
}

/* The last kernel of a call for a unit; next_kernel: the first one behind `from`. */
static int last_kernel(const struct order *order, enum hd_call call, int unit)
{
    int found = -1;

    for (int i = 0; i < order->count; i++)
        if (order->launches[i].call == call && !order->launches[i].is_comm &&
            order->launches[i].unit == unit)
            found = i;
    assert_true(found >= 0);
    return found;
}

static int next_kernel(const struct order *order, int from, enum hd_call call, int unit)
{
    for (int i = from; i < order->count; i++)
        if (order->launches[i].call == call && !order->launches[i].is_comm &&
            order->launches[i].unit == unit)
            return i;
    fail_msg("no kernel of unit %d behind launch %d", unit, from);
    return -1;
}

/* `call`: the program that makes the last contribution. In the last micro-batch the block's sum is
 * under way before the block below it begins, and every sum before the update. */
static void check_order(const struct order *order, enum hd_call call, bool tied)
{
    const int last_block = reduction_of(order, UNIT_LAST_BLOCK, 1);
    const int first_block = reduction_of(order, UNIT_FIRST_BLOCK, 1);
    const int embedding = reduction_of(order, UNIT_EMBEDDING, tied ? 2 : 1);

    assert_true(last_block > last_kernel(order, HD_CALL_F, UNIT_LAST_BLOCK));
    assert_true(last_block < next_kernel(order, last_block, call, UNIT_FIRST_BLOCK));
    assert_true(first_block > last_kernel(order, call, UNIT_FIRST_BLOCK));
    assert_true(first_block < next_kernel(order, first_block, call, UNIT_EMBEDDING));
    assert_true(embedding > last_kernel(order, call, UNIT_EMBEDDING));
    assert_true(reduction_of(order, UNIT_HEAD, tied ? 1 : 2) < last_block);
    assert_true(embedding < next_kernel(order, embedding, HD_CALL_U, UNIT_EMBEDDING));
}

static void a_blocks_gradient_is_reduced_while_the_blocks_below_run_backward(void **state)
{
    static const char *const families[] = {"llama", "gpt2"};

    for (int f = 0; f < 2; f++) {
        struct order *order = order_new(families[f], (struct hd_rank_program_options){0});

        check_order(order, HD_CALL_B, f == 1);
        harness_shared_free(order, sizeof *order);
    }
}

static void with_postponed_weight_gradients_the_reductions_follow_them(void **state)
{
    struct order *order =
        order_new("llama", (struct hd_rank_program_options){.schedule = HD_SCHEDULE_GPIPE,
                                                            .split_backward = true});

    check_order(order, HD_CALL_W, false);
    harness_shared_free(order, sizeof *order);
}

RUN_CASES()
