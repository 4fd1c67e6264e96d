/* A token that a draft decides on has the model's distribution, whatever the draft's is. */
#include <string.h>

#include "generate/speculate.h"
#include "tests/program/test.h"

enum { V = 4, SIXTEEN = 16 };

/* Counts the tokens for every combination of the three uniform numbers, on grids on whose cells the
 * outcome is constant: so counts are exact probabilities. Weights need not add up to 1. */
static void count_tokens(const int *p, const int *q, int rests, int64_t *ret_counts)
{
    double model[V];
    float layer[V];

    memset(ret_counts, 0, V * sizeof *ret_counts);
    for (int v = 0; v < V; v++) {
        model[v] = 3 * p[v];
        layer[v] = (float)q[v] / 2;
    }
    for (int d = 0; d < SIXTEEN; d++) {
        const int32_t draft = hd_speculate_draw(layer, V, (d + 0.5) / SIXTEEN);

        for (int a = 0; a < SIXTEEN; a++)
            for (int r = 0; r < rests; r++)
                ret_counts[hd_speculate_token(model, layer, V, draft, (a + 0.5) / SIXTEEN,
                                              (r + 0.5) / rests)]++;
    }
}

/* p and q in 1/16. A draft d is kept with probability min(1, p[d] / q[d]), a multiple of 1/16 in every
 * case; the rest is max(0, p - q), in parts of `rests`. */
static void tokens_have_the_distribution_of_the_model(void **state)
{
    static const struct {
        int p[V], q[V], rests;
    } all[] = {
        {{8, 4, 2, 2}, {1, 3, 4, 8}, 8},   /* kept: 1, 1, 1/2, 1/4; the rest (7, 1, 0, 0) / 8 */
        {{3, 5, 6, 2}, {6, 5, 3, 2}, 1},   /* kept: 1/2, 1, 1, 1; the rest (0, 0, 1, 0) */
        {{4, 4, 4, 4}, {4, 4, 4, 4}, 1},   /* equal: every draft is kept */
        {{16, 0, 0, 0}, {0, 8, 8, 0}, 1},  /* disjoint: none is */
        {{7, 4, 5, 0}, {0, 0, 0, 16}, 16}, /* a certain draft that the model never gives */
        {{2, 10, 3, 1}, {0, 16, 0, 0}, 6}, /* one kept at 10/16; the rest (2, 0, 3, 1) / 6 */
    };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        int64_t counts[V];

        count_tokens(all[i].p, all[i].q, all[i].rests, counts);
        for (int v = 0; v < V; v++)
            assert_int_equal(counts[v], (int64_t)all[i].p[v] * SIXTEEN * all[i].rests);
    }
}

/* Draws behind sums of weights, of which the first and the third are 0. */
static void a_draw_is_the_id_at_which_the_sum_passes(void **state)
{
    static const float weights[V] = {0, 3, 0, 1};

    assert_int_equal(hd_speculate_draw(weights, V, 0), 1);
    assert_int_equal(hd_speculate_draw(weights, V, 0.74), 1);
    assert_int_equal(hd_speculate_draw(weights, V, 0.75), 3);
    assert_int_equal(hd_speculate_draw(weights, V, 1), 3); /* beyond rounding errors */
}

RUN_CASES()
