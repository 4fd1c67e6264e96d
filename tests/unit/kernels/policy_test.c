/* policy: losses of sampled completions, their numbers, and the entropies of rows. */
#include <math.h>
#include <string.h>

#include "kernels/policy.h"
#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

enum { TOKENS = 7, COMPLETIONS = 3 };

/* By tests/golden/policy.py: TRL's formulas in fp64, weights by torch.autograd. */
static const struct golden {
    int level, clip, mean, kl, correction, old_is_sampled;
    double dual_clip, loss;
    int low, high;
    double kl_sum, weight[TOKENS];
} golden[] = {
#include "policy.inc"
};
enum { GOLDEN = sizeof golden / sizeof golden[0] };

/* The numbers of policy.py; all are exact in fp32. */
static const int lengths[COMPLETIONS] = {3, 2, 2};
static const double advantages[COMPLETIONS] = {0.75, -1.25, 0.5};
static const double logps[TOKENS] = {-0.5, -2.25, -0.125, -3.5, -1.0, -0.75, -4.0};
static const double less[TOKENS] = {1.25, -0.625, 0.5, -1.5, 0.75, -0.03125, 0.0625};
static const double references[TOKENS] = {0.25, -1.5, 3.0, -0.125, 0.5, 0.75, -2.0};

static int completion_of(int token)
{
    return token < 3 ? 0 : token < 5 ? 1 : 2;
}

static struct hd_policy_factors factors_of(const struct golden *g)
{
    return (struct hd_policy_factors){.level = (enum hd_policy_level)g->level,
                                      .clip = (enum hd_policy_clip)g->clip,
                                      .mean = (enum hd_policy_mean)g->mean,
                                      .kl = (enum hd_policy_kl)g->kl,
                                      .correction = (enum hd_policy_correction)g->correction,
                                      .clip_low = 0.25f,
                                      .clip_high = 0.375f,
                                      .dual_clip = (float)g->dual_clip,
                                      .cispo_max = 1.25f,
                                      .kl_beta = 0.125f,
                                      .correction_max = 1.125f,
                                      .max_tokens = 4,
                                      .old_is_sampled = g->old_is_sampled != 0};
}

static struct hd_policy_token token_at(int i)
{
    struct hd_policy_token t = {.logp = logps[i],
                                .sampled = logps[i] - less[i],
                                .reference = logps[i] + references[i],
                                .advantage = advantages[completion_of(i)],
                                .count = lengths[completion_of(i)]};

    for (int k = 0; k < TOKENS; k++)
        t.difference_sum += completion_of(k) == completion_of(i) ? less[k] : 0;
    return t;
}

static void everywhere(void (*check)(struct device *device))
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        check(&device);
        tensors_free();
        device_close(&device);
    }
}

/* ---- the formulas ---- */

/* Goal: every combination is TRL's. Method: the function of all backends, in double. */
static void formulas_are_the_golden_values(void **state)
{
    for (int c = 0; c < GOLDEN; c++) {
        const struct golden *g = &golden[c];
        const struct hd_policy_factors f = factors_of(g);
        double loss = 0, words[HD_POLICY_WORDS] = {0};

        for (int i = 0; i < TOKENS; i++) {
            const struct hd_policy_token t = token_at(i);
            const struct hd_policy_row row = hd_policy_of(&f, &t);

            if (!(fabs(row.weight - g->weight[i]) <= 1e-12))
                fail_msg("combination %d: weight %d is %.15g, not %.15g", c, i, row.weight,
                         g->weight[i]);
            loss += row.loss;
            hd_policy_add(words, row.words);
        }
        if (!(fabs(loss - g->loss) <= 1e-12))
            fail_msg("combination %d: the loss is %.15g, not %.15g", c, loss, g->loss);
        assert_true(words[HD_POLICY_CLIPPED_LOW] == g->low);
        assert_true(words[HD_POLICY_CLIPPED_HIGH] == g->high);
        assert_true(fabs(words[HD_POLICY_KL_SUM] - g->kl_sum) <= 1e-12);
    }
    assert_int_equal(GOLDEN, 2 * 2 * 3 * 4 * 3 * 2);
}

/* Beyond |10| a ratio has no gradient, and K3 goes on as a line: at y = 12 it is e^10 (1 + 2) - 12 - 1
 * with the slope e^10 - 1. A number that is not finite gets through to loss and weight. */
static void ratios_end_and_nothing_is_hidden(void **state)
{
    struct hd_policy_factors f = {.clip_low = 0.2f, .clip_high = 0.2f, .old_is_sampled = true};
    struct hd_policy_token t = {.logp = -1, .sampled = -31, .advantage = -1, .count = 1};
    struct hd_policy_row row = hd_policy_of(&f, &t);

    assert_true(fabs(row.loss - exp(10)) < 1e-8 && row.weight == 0);
    assert_true(fabs(row.words[HD_POLICY_RATIO_MAX] - exp(10)) < 1e-8);
    t = (struct hd_policy_token){.logp = -13, .sampled = -13, .reference = -1, .count = 1};
    f.kl = HD_POLICY_K3;
    f.kl_beta = 1;
    row = hd_policy_of(&f, &t);
    assert_true(fabs(row.loss - (3 * exp(10) - 13)) < 1e-8);
    assert_true(fabs(row.weight - (exp(10) - 1)) < 1e-8);
    for (int clip = 0; clip < 2; clip++) {
        f.clip = (enum hd_policy_clip)clip;
        f.kl = HD_POLICY_KL_NONE;
        t = (struct hd_policy_token){.logp = NAN, .sampled = -1, .advantage = 1, .count = 1};
        row = hd_policy_of(&f, &t);
        assert_true(isnan(row.loss) && isnan(row.weight));
    }
}

/* ---- the kernel ---- */

/* Two samples of 6 rows: the first completion behind a row of prompt in the first one, the others in
 * the second one as answers 0 and 2. */
static const int row_token[12] = {-1, 0, 1, 2, -1, -1, 3, 4, -1, 5, 6, -1};
static const int row_answer[12] = {1, 1, 1, 1, -1, -1, 0, 0, 2, 2, 2, -1};

static void check_case(struct device *device, const struct golden *g)
{
    enum { S = 6, R = 12, A = 4, P = 2 };
    struct tensor *logp = tensor_new(R, HD_F32), *sampled = tensor_new(R, HD_F32);
    struct tensor *reference = tensor_new(R, HD_F32), *advantage = tensor_new(R, HD_F32);
    struct tensor *sums = tensor_new(2 * A * 2, HD_F64), *weight = tensor_new(R, HD_F32);
    struct tensor *answer = tensor_random_int32(R, 0, 1, 1),
                  *target = tensor_random_int32(R, 0, 1, 2);
    struct tensor *spread = tensor_new(P * R * HD_ENTROPY_WORDS, HD_F32);
    struct hd_step_state block = {.loss_sum = 2, .target_count = 3};
    struct hd_policy_args a = {.block = &block,
                               .logp = logp->data,
                               .sampled = sampled->data,
                               .reference = g->kl ? reference->data : NULL,
                               .advantage = advantage->data,
                               .sums = sums->data,
                               .answer = answer->data,
                               .target = target->data,
                               .R = R,
                               .S = S,
                               .A = A,
                               .P = P,
                               .factors = factors_of(g)};
    const double near = 1e-12 * (1 + fabs(g->loss));

    for (int i = 0; i < 2 * A * 2; i++)
        tensor_put(sums, i, 0);
    for (int r = 0; r < R; r++) {
        const int i = row_token[r];

        tensor_put(answer, r, row_answer[r]);
        tensor_put(target, r, i < 0 ? -1 : 5);
        tensor_put(logp, r, i < 0 ? 0 : logps[i]);
        tensor_put(sampled, r, i < 0 ? 0 : logps[i] - less[i]);
        tensor_put(reference, r, i < 0 ? 0 : logps[i] + references[i]);
        tensor_put(advantage, r, i < 0 ? 9 : advantages[completion_of(i)]);
        for (int p = 0; p < P; p++) { /* two columns of logit 1 here, one of logit 1 there */
            tensor_put(spread, (p * R + r) * HD_ENTROPY_WORDS, 1);
            tensor_put(spread, (p * R + r) * HD_ENTROPY_WORDS + 1, p ? 1 : 2);
            tensor_put(spread, (p * R + r) * HD_ENTROPY_WORDS + 2, 0);
        }
    }
    for (int i = 0; i < TOKENS; i++) {
        static const int place[COMPLETIONS] = {1, A, A + 2};
        const int at = 2 * place[completion_of(i)];
        const struct hd_policy_token t = token_at(i);

        tensor_put(sums, at, t.difference_sum);
        tensor_put(sums, at + 1, t.count);
    }
    a.spread = spread->data;
    device_launch(device, HD_K_policy, &a); /* the completions are another rank's to count */
    assert_true(block.policy[HD_POLICY_COMPLETIONS] == 0);
    assert_int_equal(block.target_count, 3 + (g->mean == HD_POLICY_MEAN_TOKENS ? TOKENS : 0));
    memset(block.policy, 0, sizeof block.policy);
    block.loss_sum = 2;
    block.target_count = 3;
    a.counts_answers = true;
    a.weight = weight->data;
    device_launch(device, HD_K_policy, &a);
    assert_close_at("loss", 0, block.loss_sum, 2 + g->loss, near);
    assert_int_equal(block.target_count,
                     3 + (g->mean == HD_POLICY_MEAN_TOKENS        ? TOKENS
                          : g->mean == HD_POLICY_MEAN_COMPLETIONS ? COMPLETIONS
                                                                  : 4 * COMPLETIONS));
    assert_true(block.policy[HD_POLICY_TOKENS] == TOKENS);
    assert_true(block.policy[HD_POLICY_COMPLETIONS] == COMPLETIONS);
    assert_true(block.policy[HD_POLICY_CLIPPED_LOW] == g->low);
    assert_true(block.policy[HD_POLICY_CLIPPED_HIGH] == g->high);
    assert_close_at("kl", 0, block.policy[HD_POLICY_KL_SUM], g->kl_sum, 1e-11);
    /* 1.25 + 0.625 + 0.5 + 1.5 + 0.75 + 0.03125 + 0.0625; three equal columns have log 3 */
    assert_close_at("difference", 0, block.policy[HD_POLICY_DIFFERENCE_SUM], 4.71875, 1e-12);
    assert_true(block.policy[HD_POLICY_DIFFERENCE_MAX] == 1.5);
    assert_close_at("ratio", 0, block.policy[HD_POLICY_RATIO_MAX], exp(1.25), 1e-6);
    assert_close_at("entropy", 0, block.policy[HD_POLICY_ENTROPY_SUM], TOKENS * log(3), 1e-12);
    for (int r = 0; r < R; r++) {
        const double want = row_token[r] < 0 ? 0 : g->weight[row_token[r]];

        assert_close_at("weight", r, tensor_get(weight, r), want, 0x1p-24 * fabs(want) + 1e-12);
    }
    tensors_free();
}

static void check_cases(struct device *device)
{
    for (int i = 0; i < GOLDEN; i += 1 + setting_count)
        check_case(device, &golden[i]);
}

static void losses_of_completions_are_the_golden_values(void **state)
{
    everywhere(check_cases);
}

/* ---- entropy ---- */

/* Goal: the entropy of a row, whatever the split of its columns. Method: columns of one rank, and of two
 * with a third and two thirds of them, against sums in double. Row 3 has no target. */
static void check_entropy(struct device *device, enum hd_dtype dtype, struct hd_logit_map map)
{
    enum { ROWS = 5, V = 307, CUT = 101, VP = 320 };
    struct tensor *logits = tensor_random(ROWS * VP, dtype, 4, 1);
    struct tensor *target = tensor_random_int32(ROWS, 0, V, 2);
    struct tensor *one = tensor_new(ROWS * HD_ENTROPY_WORDS, HD_F32);
    struct tensor *two = tensor_new(2 * ROWS * HD_ENTROPY_WORDS, HD_F32);
    struct hd_entropy_args whole = {.spread = one->data,
                                    .logits = logits->data,
                                    .target = target->data,
                                    .R = ROWS,
                                    .V = V,
                                    .Vp = VP,
                                    .map = map,
                                    .dtype = dtype};
    struct hd_entropy_args part;
    float values[2 * ROWS * HD_ENTROPY_WORDS], alone[ROWS * HD_ENTROPY_WORDS];

    tensor_put(target, 3, -1);
    device_launch(device, HD_K_entropy, &whole);
    part = whole;
    part.spread = two->data;
    part.V = CUT;
    device_launch(device, HD_K_entropy, &part);
    part.spread = (float *)two->data + ROWS * HD_ENTROPY_WORDS;
    part.logits = (const char *)logits->data + CUT * hd_dtype_size(dtype);
    part.V = V - CUT;
    part.R = ROWS - 1; /* the columns behind the last row are not there */
    device_launch(device, HD_K_entropy, &part);
    for (int i = 0; i < 2 * ROWS * HD_ENTROPY_WORDS; i++)
        values[i] = (float)tensor_get(two, i);
    for (int i = 0; i < ROWS * HD_ENTROPY_WORDS; i++)
        alone[i] = (float)tensor_get(one, i);
    for (int r = 0; r < ROWS - 1; r++) {
        double sum = 0, mean = 0, want;

        for (int v = 0; v < V; v++) {
            const double z = logits->values[r * VP + v] * (double)hd_factor_of(map.scale);
            const double y = map.cap > 0 ? (double)map.cap * tanh(z / (double)map.cap) : z;

            sum += exp(y);
            mean += exp(y) * y;
        }
        want = log(sum) - mean / sum;
        if (r == 3) {
            assert_true(alone[3 * r] == 0 && alone[3 * r + 1] == 0 && alone[3 * r + 2] == 0);
            continue;
        }
        assert_close_at("entropy", r, hd_policy_entropy(alone, 1, ROWS, r), want, 2e-5);
        assert_close_at("entropy of two", r, hd_policy_entropy(values, 2, ROWS, r), want, 2e-5);
    }
    tensors_free();
}

static void check_entropies(struct device *device)
{
    for (int i = 0; i < float_type_count; i++) {
        check_entropy(device, float_types[i], (struct hd_logit_map){0});
        check_entropy(device, float_types[i], (struct hd_logit_map){.scale = 0.5f});
        check_entropy(device, float_types[i], (struct hd_logit_map){.scale = 2, .cap = 3});
    }
}

static void entropies_are_those_of_the_rows(void **state)
{
    everywhere(check_entropies);
}

RUN_CASES()
