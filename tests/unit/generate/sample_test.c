/* The next token is drawn from exactly the odds of the settings. */
#include <math.h>

#include "tests/program/test.h"
#include "train/sample.h"

enum { V = 12, DRAWS = 120000 };

static const float some_logits[V] = {0.5f, 2.0f,  -1.0f, 1.5f, 0.0f, 2.0f,
                                     1.0f, -0.5f, -3.0f, 0.7f, 1.9f, -2.0f};

/* How many ids are more likely; of equals the smaller id goes first. */
static int rank_of(int id)
{
    int before = 0;

    for (int v = 0; v < V; v++)
        before += some_logits[v] > some_logits[id] || (some_logits[v] == some_logits[id] && v < id);
    return before;
}

/* The odds that the settings define, worked out without sorting. */
static void expected_odds(const struct hd_sampling *s, double *ret_odds)
{
    double weight[V], total = 0, kept = 0;

    for (int v = 0; v < V; v++) {
        weight[v] = exp((double)some_logits[v] / s->temperature);
        if (s->top_k && rank_of(v) >= s->top_k)
            weight[v] = 0;
        total += weight[v];
    }
    for (int v = 0; v < V; v++) {
        double before = 0; /* probability of everything more likely: v is needed while below p */

        for (int u = 0; u < V; u++)
            before += rank_of(u) < rank_of(v) ? weight[u] : 0;
        ret_odds[v] = before < s->top_p * total ? weight[v] : 0;
    }
    for (int v = 0; v < V; v++)
        kept += ret_odds[v];
    for (int v = 0; v < V; v++)
        ret_odds[v] /= kept;
}

/* The chi-square value that chance exceeds once in a million (Wilson and Hilferty 1931; 4.75 is
 * that quantile of a normal variable). Seeds are fixed: a pass stays a pass. */
static double chi_square_limit(int freedom)
{
    const double k = 2.0 / (9.0 * freedom);

    return freedom * pow(1 - k + 4.75 * sqrt(k), 3);
}

static void check_counts(const int64_t *counts, const double *odds, int cells, int64_t draws)
{
    double chi_square = 0;
    int freedom = -1;

    for (int i = 0; i < cells; i++) {
        const double expected = odds[i] * (double)draws;

        if (odds[i] == 0) {
            assert_int_equal(counts[i], 0);
            continue;
        }
        chi_square += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
        freedom++;
    }
    if (freedom > 0 && chi_square > chi_square_limit(freedom))
        fail_msg("chi-square %g with %d degrees of freedom, limit %g", chi_square, freedom,
                 chi_square_limit(freedom));
}

/* The weights are in proportion to the odds. */
static void check_weights(const struct hd_sampling *s, const double *odds)
{
    double weights[V], total = 0;
    int32_t order[V];

    hd_sample_weights(some_logits, V, s, order, weights);
    for (int v = 0; v < V; v++)
        total += weights[v];
    for (int v = 0; v < V; v++)
        assert_true(fabs(weights[v] / total - odds[v]) < 1e-12);
}

static void draws_follow_the_odds_of_the_settings(void **state)
{
    static const struct hd_sampling settings[] = {
        {.temperature = 1, .top_p = 1, .seed = 1},
        {.temperature = 0.5, .top_p = 1, .seed = 2},
        {.temperature = 2, .top_p = 1, .seed = 3},
        {.temperature = 1, .top_k = 4, .top_p = 1, .seed = 4},
        {.temperature = 1, .top_p = 0.7, .seed = 5},
        {.temperature = 0.8, .top_k = 6, .top_p = 0.9, .seed = 6},
        {.temperature = 1, .top_k = 100, .top_p = 1, .seed = 7}, /* more than there are: all */
    };
    int32_t order[V];

    for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++) {
        int64_t counts[V] = {0};
        double odds[V];

        for (uint64_t i = 0; i < DRAWS; i++)
            counts[hd_sample_token(some_logits, V, &settings[s], i, order)]++;
        expected_odds(&settings[s], odds);
        check_counts(counts, odds, V, DRAWS);
        check_weights(&settings[s], odds);
    }
}

/* One token says nothing about the next. */
static void draws_are_independent(void **state)
{
    const struct hd_sampling s = {.temperature = 1, .top_p = 1, .seed = 11};
    int64_t counts[V * V] = {0};
    double odds[V], pairs[V * V];
    int32_t order[V];

    for (uint64_t i = 0; i < DRAWS; i += 2)
        counts[hd_sample_token(some_logits, V, &s, i, order) * V +
               hd_sample_token(some_logits, V, &s, i + 1, order)]++;
    expected_odds(&s, odds);
    for (int i = 0; i < V * V; i++)
        pairs[i] = odds[i / V] * odds[i % V];
    check_counts(counts, pairs, V * V, DRAWS / 2);
}

/* Ids 1 and 5 have the largest logit, 2.0. */
static void greedy_takes_the_most_likely_and_the_smaller_id(void **state)
{
    static const struct hd_sampling settings[] = {
        {.temperature = 0, .top_p = 1, .seed = 1},
        {.temperature = 1, .top_k = 1, .top_p = 1, .seed = 2},
        {.temperature = 1, .top_p = 1e-9, .seed = 3},
        {.temperature = 1, .top_p = 0, .seed = 4},
    };
    int32_t order[V];

    for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++)
        for (uint64_t i = 0; i < 200; i++)
            assert_int_equal(hd_sample_token(some_logits, V, &settings[s], i, order), 1);
}

/* A draw depends on seed and index alone. Two seeds agree only by chance: less than half the time,
 * as no id has odds of more than a quarter. */
static void a_seed_repeats_its_draws(void **state)
{
    const struct hd_sampling a = {.temperature = 1, .top_p = 1, .seed = 21};
    struct hd_sampling b = a;
    int32_t order[V], first[1000];
    int same = 0;

    for (uint64_t i = 0; i < 1000; i++)
        first[i] = hd_sample_token(some_logits, V, &a, i, order);
    b.seed = 22;
    for (uint64_t i = 1000; i-- > 0;) {
        assert_int_equal(hd_sample_token(some_logits, V, &a, i, order), first[i]);
        same += hd_sample_token(some_logits, V, &b, i, order) == first[i];
    }
    assert_in_range(same, 1, 500);
}

/* Goal: log-probabilities and the list of the most likely. Method: by definition, in double;
 * some_logits has two equal ones, ids 1 and 5. */
static void the_most_likely_are_listed_with_their_odds(void **state)
{
    int32_t top[V];
    double sum = 0;

    for (int v = 0; v < V; v++)
        sum += exp((double)some_logits[v]);
    assert_true(fabs(hd_sample_norm(some_logits, V) - log(sum)) < 1e-12);
    for (int count = 0; count <= V; count++) {
        hd_sample_top(some_logits, V, count, top);
        for (int i = 0; i < count; i++)
            assert_int_equal(rank_of(top[i]), i);
    }
}

RUN_CASES()
