/* alibi: the slopes against the paper's recipe, step by step. */
#include <math.h>

#include "program/program.h"
#include "tests/program/test.h"

enum { HEADS_MAX = 128 };

/* Section 3 of the paper: a geometric sequence that starts at 2^(-8/n), whose ratio is the same
 * value, multiplied out in double. */
static void geometric(int n, double ret_slope[HEADS_MAX])
{
    const double ratio = pow(2, -8.0 / n);

    ret_slope[0] = ratio;
    for (int i = 1; i < n; i++)
        ret_slope[i] = ret_slope[i - 1] * ratio;
}

static void slopes_are_those_of_the_paper(void **state)
{
    static const struct {
        int heads, lower; /* the closest power of two that is not more */
    } cases[] = {{1, 1}, {4, 4}, {6, 4}, {8, 8}, {12, 8}, {71, 64}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int heads = cases[i].heads, lower = cases[i].lower;
        double first[HEADS_MAX], next[HEADS_MAX];
        float got[HEADS_MAX] = {0};

        geometric(lower, first);
        geometric(2 * lower, next);
        hd_alibi_slopes(heads, 0, heads, got);
        for (int h = 0; h < heads; h++) {
            const double want = h < lower ? first[h] : next[2 * (h - lower)];

            /* one rounding to float; the products in double are far closer */
            assert_true(fabs((double)got[h] - want) <= want * 1.01 * 0x1p-24);
        }
        assert_true(got[heads] == 0); /* and no more than H */
    }
}

/* By hand: 8 heads have 1/2, 1/4 .. 1/256; 4 heads 1/4, 1/16 .. 1/256; the two that 6 heads have
 * more than 4 are the first and the third of 8. */
static void powers_of_two_are_exact(void **state)
{
    static const float six[] = {0x1p-2f, 0x1p-4f, 0x1p-6f, 0x1p-8f, 0x1p-1f, 0x1p-3f};
    float got[8];

    hd_alibi_slopes(1, 0, 1, got);
    assert_true(got[0] == 0x1p-8f);
    hd_alibi_slopes(8, 0, 8, got);
    for (int h = 0; h < 8; h++)
        assert_true(got[h] == ldexpf(1, -1 - h));
    hd_alibi_slopes(6, 0, 6, got);
    for (int h = 0; h < 6; h++)
        assert_true(got[h] == six[h]);
    hd_alibi_slopes(6, 3, 2, got); /* a share of the heads: across the power of two */
    assert_true(got[0] == six[3] && got[1] == six[4] && got[2] == six[2]);
}

RUN_CASES()
