/* advantage, builtin_reward: answers are compared with their group alone, and rated as documented. */
#include <math.h>

#include "tests/program/cases.h"
#include "tests/program/test.h"
#include "train/advantage.h"
#include "train/builtin_reward.h"
#include "train/pass_at.h"

static void assert_near(double is, double wanted)
{
    if (!(fabs(is - wanted) < 1e-6))
        fail_msg("%.9g is not %.9g", is, wanted);
}

/* Group 0: mean 1/2, squares 4 x 1/4 over 3, std 0.5773503. Group 1: all 2, nothing to learn. */
static void a_group_has_mean_0_and_std_1(void **state)
{
    const double rewards[8] = {1, 0, 0, 1, 2, 2, 2, 2};
    struct hd_reward_numbers n;
    float a[8];

    (void)state;
    hd_advantages(rewards, 8, 4, HD_ADVANTAGE_GROUP, false, a, &n);
    assert_near(a[0], 0.5 / (0.5773502692 + 1e-4));
    assert_near(a[1], -a[0]);
    for (int i = 4; i < 8; i++)
        assert_true(a[i] == 0);
    assert_near(n.mean, 10.0 / 8);
    assert_near(n.std, 0.5773502692 / 2);
    assert_near(n.zero_std, 0.5);
    hd_advantages(rewards, 8, 4, HD_ADVANTAGE_NONE, false, a, &n);
    assert_near(a[0], 0.5);
    /* all eight: mean 1.25; squares 2 x 0.0625 + 2 x 1.5625 + 4 x 0.5625 = 5.5, over 7 */
    hd_advantages(rewards, 8, 4, HD_ADVANTAGE_BATCH, false, a, &n);
    assert_near(a[0], 0.5 / (sqrt(5.5 / 7) + 1e-4));
}

/* The others of the first have the mean 1/3, those of the second 2/3. */
static void leaving_one_out_compares_with_the_others(void **state)
{
    const double rewards[4] = {1, 0, 0, 1};
    struct hd_reward_numbers n;
    float a[4];

    (void)state;
    hd_advantages(rewards, 4, 4, HD_ADVANTAGE_NONE, true, a, &n);
    assert_near(a[0], 1 - 1.0 / 3);
    assert_near(a[1], 0 - 2.0 / 3);
}

/* Without the NaN: mean 1/3, squares 4/9 + 1/9 + 1/9 = 2/3 over 2. */
static void an_answer_without_a_reward_is_in_no_mean(void **state)
{
    const double rewards[4] = {1, NAN, 0, 0}, none[2] = {NAN, NAN};
    struct hd_reward_numbers n;
    float a[4];

    (void)state;
    hd_advantages(rewards, 4, 4, HD_ADVANTAGE_GROUP, false, a, &n);
    assert_near(a[0], 2.0 / 3 / (sqrt(1.0 / 3) + 1e-4));
    assert_true(a[1] == 0);
    assert_near(n.mean, 1.0 / 3);
    assert_int_equal(n.missing, 1);
    assert_false(hd_advantage_is_flat(rewards, 4));
    hd_advantages(none, 2, 2, HD_ADVANTAGE_GROUP, false, a, &n);
    assert_true(a[0] == 0 && a[1] == 0 && n.mean == 0);
    assert_true(hd_advantage_is_flat(none, 2));
}

/* d = 0.5, -1, and none: k1 -0.5; k2 0.125 + 0.5; k3 e^-0.5 + 0.5 - 1 + e^1 - 1 - 1. The further an answer is
 * from the reference, the less it gets. */
static void the_divergence_is_taken_from_the_reward(void **state)
{
    const float sampled[3] = {-1, -3, -1}, reference[3] = {-1.5f, -2, -INFINITY};
    const double own[2] = {0, hd_advantage_divergence(HD_POLICY_K2, sampled, reference, 3)};
    double rewards[2] = {1, 1};

    (void)state;
    assert_near(hd_advantage_divergence(HD_POLICY_K1, sampled, reference, 3), -0.5);
    assert_near(own[1], 0.625);
    assert_near(hd_advantage_divergence(HD_POLICY_K3, sampled, reference, 3),
                exp(-0.5) - 0.5 + exp(1) - 2);
    assert_near(hd_advantage_divergence(HD_POLICY_KL_NONE, sampled, reference, 3), 0);
    hd_advantage_take(own, 2, 0.4, rewards);
    assert_near(rewards[0], 1);
    assert_near(rewards[1], 0.75);
}

/* pass@k is the share of the k-subsets of the answers that have a right one: all subsets of 6 answers are
 * counted, of which the first `right` are right. */
static void pass_at_k_is_a_share_of_subsets(void **state)
{
    (void)state;
    for (unsigned right = 0; right <= 6; right++)
        for (int k = 1; k <= 6; k++) {
            double subsets = 0, with = 0;

            for (unsigned set = 0; set < 1 << 6; set++)
                if (__builtin_popcount(set) == k) {
                    subsets++;
                    with += (set & ((1U << right) - 1)) != 0;
                }
            assert_near(hd_pass_at(6, right, k), with / subsets);
        }
}

/* ---- builtins ---- */

static double rate(const char *job_text, const char *row_text, const char *text, int64_t tokens)
{
    static const struct hd_json_limits limits = {.values_max = 100, .depth_max = 4};
    struct hd_builtin_reward *reward = NULL;
    struct hd_rewards rewards;
    const struct hd_json *row;
    struct hd_arena arena;
    double value;

    hd_arena_init(&arena, 0);
    must(hd_rewards_read("train.rewards", job_text, &arena, &rewards));
    must(hd_json_parse(&arena, row_text, strlen(row_text), &limits, &row));
    must(hd_builtin_reward_new(&rewards.list[0], &reward));
    value = hd_builtin_reward_rate(reward, &(struct hd_rated_answer){text, tokens, 100, row});
    hd_builtin_reward_free(reward);
    hd_arena_done(&arena);
    return value;
}

static void the_last_number_of_an_answer_counts(void **state)
{
    static const char number[] = "[{\"name\":\"n\",\"builtin\":\"number\",\"field\":\"answer\"}]";
    static const struct {
        const char *row, *text;
        double reward;
    } cases[] = {
        {"{\"answer\":42}", "3 x 14 = 42.", 1},
        {"{\"answer\":42}", "42 or 43", 0},
        {"{\"answer\":\"so it is\\n#### 1,234\"}", "the sum is $1234", 1},
        {"{\"answer\":-7}", "x = -7", 1},
        {"{\"answer\":7}", "17-7", 1}, /* a minus behind a number is no sign */
        {"{\"answer\":0.5}", "\\boxed{0.50} as 2 x 3 = 6 shows", 1},
        {"{\"answer\":5}", "five", 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (!(rate(number, cases[i].row, cases[i].text, 1) == cases[i].reward))
            fail_msg("%s with %s is not %g", cases[i].text, cases[i].row, cases[i].reward);
    assert_true(isnan(rate(number, "{\"other\":1}", "1", 1)));
}

static void each_other_builtin_rates_as_documented(void **state)
{
    static const char exact[] = "[{\"name\":\"n\",\"builtin\":\"exact\",\"field\":\"a\"}]";
    static const char regex[] = "[{\"name\":\"n\",\"builtin\":\"regex\",\"pattern\":\"^[ab]+$\"}]";
    static const char format[] = "[{\"name\":\"n\",\"builtin\":\"format\"}]";
    static const char length[] = "[{\"name\":\"n\",\"builtin\":\"length\"}]";
    static const char overlong[] = "[{\"name\":\"n\",\"builtin\":\"overlong\",\"buffer\":20}]";

    (void)state;
    assert_true(rate(exact, "{\"a\":\" yes\"}", "yes\n", 1) == 1);
    assert_true(rate(exact, "{\"a\":\"yes\"}", "yes!", 1) == 0);
    assert_true(rate(regex, "{}", "abba", 1) == 1 && rate(regex, "{}", "abc", 1) == 0);
    assert_true(rate(format, "{}", "<think>a</think> b", 1) == 1);
    assert_true(rate(format, "{}", "<think>a</think> ", 1) == 0);
    assert_true(rate(format, "{}", "b <think>a</think> b", 1) == 0);
    assert_true(rate(format, "{}", "<think>a</think></think> b", 1) == 0);
    assert_near(rate(length, "{}", "", 25), 0.25);
    /* 100 tokens, a buffer of 20: 0 up to 80, -1/2 at 90, -1 at 100 */
    assert_near(rate(overlong, "{}", "", 80), 0);
    assert_near(rate(overlong, "{}", "", 90), -0.5);
    assert_near(rate(overlong, "{}", "", 100), -1);
}

static void rewards_are_added_with_their_weights(void **state)
{
    static const char text[] = "[{\"name\":\"a\",\"builtin\":\"format\",\"weight\":2},"
                               "{\"name\":\"b\",\"model\":true,\"weight\":-0.5}]";
    struct hd_rewards rewards;
    struct hd_arena arena;

    (void)state;
    hd_arena_init(&arena, 0);
    assert_int_equal(hd_rewards_read("train.rewards", text, &arena, &rewards), HD_OK);
    assert_int_equal(hd_rewards_find(&rewards, HD_REWARD_MODEL), 1);
    /* 2 x 1 - 0.5 x 3 = 0.5 */
    assert_near(hd_rewards_sum(&rewards, (double[]){1, 3}), 0.5);
    assert_true(isnan(hd_rewards_sum(&rewards, (double[]){NAN, 3})));
    hd_arena_done(&arena);
}

RUN_CASES()
