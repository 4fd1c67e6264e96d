/* Mixtures of experts: what they send, counted and by hand; what their routers report; bounds that
 * are exceeded; capacity. That layouts train alike is the grid's business.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare.h"
#include "tests/program/test.h"
#include "traffic.h"

/* The sizes of harness_job. */
enum { L = 2, C = 32, F = 48, E = 4, K = 2, S = 16, B = 2 };

static struct hd_job job_of(const struct harness *h, int dp, int ep)
{
    struct hd_job job = harness_job(h, "mixtral", dp);

    job.ep = ep;
    job.micro_batch = B;
    return job;
}

/* ---- what a step says ---- */

struct steps {
    int count;
    struct hd_step_result last;
    int64_t load[E];
    int skipped;
    enum hd_status validated; /* rank 0's */
    float before[RUN_ELEMENTS_MAX], after[RUN_ELEMENTS_MAX];
};

static enum hd_status take_steps(struct harness_rank *r)
{
    struct steps *s = r->context;
    const struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                               .backend = harness_backend(),
                                               .instance = r->instance,
                                               .comm = r->comm,
                                               .rank = r->rank};
    struct hd_step_result result = {0};
    struct hd_trainer *t;
    double loss;
    int64_t targets;
    enum hd_status st = hd_trainer_new(r->job, &options, &t), validated;

    if (st)
        return st;
    st = hd_trainer_init(t);
    (void)run_copy_state(t, HD_STATE_WEIGHT, s->before);
    for (int i = 0; !st && i < s->count; i++) {
        st = hd_trainer_step(t, 0, &result);
        if (!st && r->rank == 0)
            s->skipped += result.skipped;
    }
    (void)run_copy_state(t, HD_STATE_WEIGHT, s->after);
    validated = st ? st : hd_trainer_validate(t, &loss, &targets);
    if (!st && r->rank == 0) {
        s->last = result;
        s->validated = validated;
        for (int64_t e = 0; e < result.router.experts && e < E; e++) /* of the first E */
            s->load[e] = result.router.load[e];
    }
    hd_trainer_free(t);
    return st;
}

static struct steps *steps_of(const struct hd_job *job, int count)
{
    struct steps *s = harness_shared(sizeof *s);

    s->count = count;
    if (harness_threads(job, run_world(job), s, take_steps))
        fail_msg("%s", hd_err_message());
    return s;
}

static void steps_free(struct steps *s)
{
    harness_shared_free(s, sizeof *s);
}

/* Every row of the step chooses K experts in each of L routers, and nothing is dropped. At the
 * beginning routers know nothing: probabilities are near 1/E, so the balancing loss is near 1 and
 * its log-sum-exp near log E. The figures are the same on however many ranks. */
static void routers_report_their_loads(void **state)
{
    static const struct {
        int dp, cp, ep;
    } layouts[] = {{1, 1, 1}, {2, 1, 2}, {1, 2, 2}, {2, 2, 4}};
    struct steps *first = NULL;
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct hd_job job = job_of(&h, layouts[i].dp, layouts[i].ep);
        struct steps *s;
        int64_t choices = 0;

        job.cp = layouts[i].cp;
        s = steps_of(&job, 1);
        for (int e = 0; e < E; e++)
            choices += s->load[e];
        assert_true(s->last.router.present);
        assert_int_equal(s->last.router.experts, E);
        assert_int_equal(choices, L * job.global_batch * S * K);
        assert_int_equal(s->last.router.dropped, 0);
        assert_true(fabs(s->last.router.balance - 1) < 0.1);
        assert_true(fabs(sqrt(s->last.router.z) - log(E)) < 0.1);
        if (!first) {
            first = s;
            continue;
        }
        assert_memory_equal(s->load, first->load, sizeof s->load);
        assert_true(fabs(s->last.router.balance / first->last.router.balance - 1) < 1e-5);
        assert_true(fabs(s->last.router.z / first->last.router.z - 1) < 1e-5);
        steps_free(s);
    }
    steps_free(first);
    harness_teardown(&h);
}

/* Two of four blocks have experts: every row chooses 2 K experts, and the means are over two
 * routers. Were the others counted, the balancing loss would be near 1/2. */
static void only_routers_that_exist_are_counted(void **state)
{
    struct harness h;
    struct hd_job job;
    struct steps *s;
    int64_t choices = 0;

    harness_setup(&h, 20000);
    job = job_of(&h, 1, 1);
    job.layers = 4;
    job.dense_ffn_hidden = F;
    job.experts_layers = "1:1";
    s = steps_of(&job, 1);
    for (int e = 0; e < E; e++)
        choices += s->load[e];
    assert_int_equal(choices, 2 * job.global_batch * S * K);
    assert_true(fabs(s->last.router.balance - 1) < 0.1);
    assert_true(fabs(sqrt(s->last.router.z) - log(E)) < 0.1);
    steps_free(s);
    harness_teardown(&h);
}

/* With room for half an even share a sequence's capacity is ceil(0.5 S K / E) = 4 rows for each of
 * E = 4 experts, 16 of its 32 choices: at least half are dropped, and no load falls below. */
static void a_capacity_drops_what_is_beyond_it(void **state)
{
    struct harness h;
    struct hd_job job;
    struct steps *s;

    harness_setup(&h, 20000);
    job = job_of(&h, 2, 2);
    job.capacity = 0.5;
    s = steps_of(&job, 1);
    assert_true(s->last.router.dropped >= L * job.global_batch * S * K / 2);
    assert_true(s->last.router.dropped < L * job.global_batch * S * K);
    assert_int_equal(s->skipped, 0);
    steps_free(s);
    harness_teardown(&h);
}

/* Three ranks share experts, two share a sequence: a block of three has parts of two dp indices'
 * sequences. The bound of rows that may come counts both, and the losses are those of one rank. */
static void blocks_of_experts_and_of_sequences_may_overlap(void **state)
{
    struct harness h;
    struct hd_job job;
    struct steps *one, *six;

    harness_setup(&h, 20000);
    job = job_of(&h, 1, 1);
    job.experts = 6;
    job.capacity = 0.8;
    job.global_batch = 12;
    one = steps_of(&job, 3);
    job.dp = 3;
    job.cp = 2;
    job.ep = 3;
    six = steps_of(&job, 3);
    assert_int_equal(six->skipped, 0);
    assert_true(one->last.router.dropped > 0);
    assert_int_equal(six->last.router.dropped, one->last.router.dropped);
    assert_true(fabs(six->last.loss - one->last.loss) < 1e-4);
    steps_free(one);
    steps_free(six);
    harness_teardown(&h);
}

/* Room for a quarter of an even share cannot be enough: four experts on two ranks, so one of them
 * gets at least half of all rows. The step says why and changes no weight; with room for all rows
 * the same job learns. */
static void too_many_rows_change_no_weight_and_are_named(void **state)
{
    struct harness h;
    struct hd_job job;
    struct steps *s;

    harness_setup(&h, 20000);
    job = job_of(&h, 2, 2);
    job.expert_rows = 0.25;
    s = steps_of(&job, 2);
    assert_int_equal(s->skipped, 2);
    assert_true(s->last.skipped && s->last.too_many_rows);
    assert_memory_equal(s->before, s->after, sizeof s->before);
    assert_int_equal(s->validated, HD_LIMIT);
    steps_free(s);
    job.expert_rows = 0;
    s = steps_of(&job, 2);
    assert_int_equal(s->skipped, 0);
    assert_false(s->last.too_many_rows);
    assert_int_equal(s->validated, HD_OK);
    assert_memory_not_equal(s->before, s->after, sizeof s->before);
    steps_free(s);
    harness_teardown(&h);
}

/* Six windows on two ranks that take two at a time: the last call of one of them is all padding,
 * and still the other's rows go through its experts. */
static enum hd_status validate(struct harness_rank *r)
{
    double *loss = r->context;
    const struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                               .backend = harness_backend(),
                                               .instance = r->instance,
                                               .comm = r->comm,
                                               .rank = r->rank};
    struct hd_trainer *t;
    double mine = 0;
    int64_t targets = 0;
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (st)
        return st;
    st = hd_trainer_init(t);
    if (!st)
        st = hd_trainer_validate(t, &mine, &targets);
    if (!st && targets % S)
        st = hd_err(HD_INVALID, "%lld targets are no whole windows", (long long)targets);
    if (!st && (targets / S % (2 * B) == 0 || targets / S % (2 * B) > B))
        st = hd_err(HD_INVALID, "%lld windows, of which every rank has some to the end",
                    (long long)(targets / S));
    loss[r->rank] = mine;
    hd_trainer_free(t);
    return st;
}

static void a_rank_without_windows_serves_its_experts(void **state)
{
    double one[1] = {0}, two[2] = {0};
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 1120); /* a tenth of it: 6 windows of 16, and a target */
    job = job_of(&h, 1, 1);
    if (harness_threads(&job, 1, one, validate))
        fail_msg("%s", hd_err_message());
    job = job_of(&h, 2, 2);
    if (harness_threads(&job, 2, two, validate))
        fail_msg("%s", hd_err_message());
    assert_true(two[0] == two[1]);
    assert_true(fabs(two[0] - one[0]) < 1e-5);
    harness_teardown(&h);
}

/* ---- bytes sent ---- */

/* Over ep = 2, both ranks together, by hand:
 *   all_to_all    of the counts, once per layer and micro-batch: E/2 numbers of 4 bytes from each
 *                 rank to the other
 *   all_to_all_v  rows of C fp32 numbers there and back in F, and again in B: four times the rows
 *                 whose expert is on the other rank. How many those are is data: at most all that
 *                 are chosen. The fold, fed with what the routers did, says it to the byte.
 * Gradients: the experts' are whole on each rank (expert_dp has one member), all others are summed
 * over both. */
static void experts_send_counts_and_rows(void **state)
{
    struct traffic traffic = {0};
    struct harness h;
    struct hd_job job;
    int64_t times, rows;

    harness_setup(&h, 20000);
    job = job_of(&h, 2, 2);
    times = L * job.global_batch / (2 * B);
    rows = L * job.global_batch * S * K; /* that are chosen, of both ranks */
    traffic_count(&job, &traffic);
    assert_int_equal(traffic_moved(&traffic, 2, HD_GROUP_EP, HD_COMM_ALL_TO_ALL),
                     times * 2 * (E / 2) * 4);
    assert_true(traffic_moved(&traffic, 2, HD_GROUP_EP, HD_COMM_ALL_TO_ALL_V) <= 4 * rows * C * 4);
    assert_true(traffic_moved(&traffic, 2, HD_GROUP_EP, HD_COMM_ALL_TO_ALL_V) > 0);
    traffic_check_dry(&traffic, &job);
    assert_int_equal(traffic_moved(&traffic, 2, HD_GROUP_EXPERT_DP, HD_COMM_ALL_REDUCE), 0);
    /* all but the experts, and the routers' records: L x (HD_ROUTE_WORDS + E) doubles */
    assert_int_equal(traffic_moved(&traffic, 2, HD_GROUP_DP_CP, HD_COMM_ALL_REDUCE),
                     2 * 4 * (2 * 256 * C + C + L * (2 * C + 2 * 32 * C + 2 * 16 * C + E * C)) +
                         2 * 8 * L * (HD_ROUTE_WORDS + E));
    harness_teardown(&h);
}

/* Shared out or not, a rank's experts multiply as many rows at even loads: what is reckoned for it
 * does not grow with the room that there is for more. */
static void work_is_priced_at_even_loads(void **state)
{
    struct harness h;
    double alone = 0;

    harness_setup(&h, 20000);
    for (int ep = 1; ep <= 4; ep *= 2) {
        const struct hd_job job = job_of(&h, 4, ep);
        struct hd_rank_program layout;
        struct hd_dry dry = {0};
        struct hd_arena arena;

        hd_arena_init(&arena, 0);
        run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &layout);
        hd_dry_add(&dry, layout.train[0], HD_CALL_F, true);
        hd_dry_add(&dry, layout.train[0], HD_CALL_B, true);
        if (ep == 1)
            alone = dry.gemm_flops;
        /* gate, up and down of K rows for each, forward and twice backward, are part of it */
        assert_true(alone > 3 * 2.0 * L * B * S * K * 3 * C * F);
        assert_true(dry.gemm_flops == alone);
        hd_arena_done(&arena);
    }
    harness_teardown(&h);
}

RUN_CASES()
