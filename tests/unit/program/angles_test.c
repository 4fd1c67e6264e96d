/* angles: frequencies of RoPE where a part of a head rotates, and the factors of queries. */
#include <math.h>

#include "program/program.h"
#include "tests/program/test.h"

enum { D = 16, PAIRS = 6 };

/* Heads of 16 channels of which 12 rotate, theta 500. Values: tests/golden/angles.py, that is
 * transformers 5.24, in fp32. */
static const struct {
    const char *name;
    struct hd_rope rope;
    double frequency[PAIRS], factor;
} cases[] = {
    {"partial",
     {.kind = HD_ROPE_NONE},
     {1, 0.354953676, 0.125992104, 0.0447213612, 0.0158740096, 0.00563453929},
     1},
    {"linear",
     {.kind = HD_ROPE_LINEAR, .factor = 3},
     {0.333333343, 0.118317895, 0.0419973694, 0.0149071207, 0.00529133668, 0.00187817973},
     1},
    {"llama3",
     {.kind = HD_ROPE_LLAMA3,
      .factor = 8,
      .low_freq_factor = 1,
      .high_freq_factor = 4,
      .original_context = 64},
     {1, 0.315150023, 0.026161287, 0.00559017016, 0.0019842512, 0.000704317412},
     1},
    {"yarn",
     {.kind = HD_ROPE_YARN, .factor = 4, .beta_fast = 4, .beta_slow = 1, .original_context = 64},
     {1, 0.266215265, 0.0629960522, 0.0111803403, 0.00396850239, 0.00140863482},
     1.13862944},
    {"yarn_no_truncate",
     {.kind = HD_ROPE_YARN,
      .factor = 4,
      .beta_fast = 4,
      .beta_slow = 1,
      .original_context = 64,
      .yarn_no_truncate = true},
     {1, 0.335547447, 0.0485026687, 0.0111803403, 0.00396850239, 0.00140863482},
     1.13862944},
    {"yarn_mscale",
     {.kind = HD_ROPE_YARN,
      .factor = 40,
      .beta_fast = 32,
      .beta_slow = 1,
      .original_context = 64,
      .mscale = 0.707,
      .mscale_all_dim = 0.5},
     {1, 0.239593714, 0.0440972336, 0.00111803401, 0.000396850228, 0.000140863471},
     1.0644689},
    {"longrope",
     {.kind = HD_ROPE_LONGROPE,
      .factor = 32,
      .original_context = 64,
      .pair_factor = {1, 1.25f, 2, 3.5f, 5, 8}},
     {1, 0.283962935, 0.0629960522, 0.0127775325, 0.00317480182, 0.000704317412},
     1.3540064},
};

static struct hd_rope of_case(size_t i)
{
    struct hd_rope rope = cases[i].rope;

    rope.theta = 500;
    rope.rotated = 2 * PAIRS;
    return rope;
}

static void frequencies_are_those_of_transformers(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct hd_rope rope = of_case(i);
        double frequency[D / 2] = {0};
        const double factor = hd_rope_frequencies(&rope, D, frequency);

        for (int p = 0; p < PAIRS; p++)
            if (!(fabs(frequency[p] - cases[i].frequency[p]) < 1e-6 * cases[i].frequency[p]))
                fail_msg("%s: pair %d: %.9g", cases[i].name, p, frequency[p]);
        if (!(fabs(factor - cases[i].factor) < 1e-6))
            fail_msg("%s: factor %.9g", cases[i].name, factor);
        for (int p = PAIRS; p < D / 2; p++) /* channels that do not rotate have none */
            assert_true(frequency[p] == 0);
    }
}

/* attention_factor takes the place of the formulas of yarn and longrope, and of no other. */
static void a_given_attention_factor_counts(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_rope rope = of_case(i);
        double frequency[D / 2];

        rope.attention_factor = 1.75;
        assert_true(hd_rope_frequencies(&rope, D, frequency) ==
                    (rope.kind == HD_ROPE_YARN || rope.kind == HD_ROPE_LONGROPE ? 1.75 : 1));
    }
}

/* A row of the table is as long as the channels that rotate; values by hand. */
static void a_table_has_the_width_that_rotates(void **state)
{
    const struct hd_rope rope = {.theta = 500, .rotated = 2 * PAIRS, .first = 2};
    float table[3 * 2 * PAIRS + 1];

    table[3 * 2 * PAIRS] = -1;
    hd_rope_fill(&rope, 3, D, table);
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < PAIRS; i++) {
            const double angle = p * pow(500, -i / 6.0);

            assert_true(fabs((double)table[p * 12 + 2 * i] - cos(angle)) < 1e-7);
            assert_true(fabs((double)table[p * 12 + 2 * i + 1] - sin(angle)) < 1e-7);
        }
    assert_true(table[3 * 2 * PAIRS] == -1);
}

/* Two programs' tables are one only if every member is equal. */
static void ropes_that_differ_in_any_member_are_different(void **state)
{
    const struct hd_rope same = of_case(6);
    struct hd_rope other[] = {same, same, same, same, same, same, same, same};

    other[0].rotated = 14;
    other[1].first = 1;
    other[2].interleaved = true;
    other[3].yarn_no_truncate = true;
    other[4].mscale = 1;
    other[5].mscale_all_dim = 1;
    other[6].pair_factor[5] = 7;
    assert_true(hd_rope_equal(&same, &other[7]));
    for (int i = 0; i < 7; i++)
        assert_false(hd_rope_equal(&same, &other[i]));
}

/* Llama 4: beta 0.1, steps of 8192, offset 1, so that position 8191 is the first of the second step:
 * 1 + 0.1 ln 2. Ministral 3 has no offset. */
static void queries_grow_by_steps_of_positions(void **state)
{
    const struct hd_query_factor llama4 = {0.1, 8192, 1}, ministral = {0.5, 4, 0};
    float long_table[3 * 8192], table[9];

    hd_query_factor_fill(&llama4, 3 * 8192, long_table);
    assert_true(long_table[0] == 1 && long_table[8190] == 1);
    assert_true(fabs((double)long_table[8191] - (1 + 0.1 * log(2))) < 1e-7);
    assert_true(fabs((double)long_table[2 * 8192] - (1 + 0.1 * log(3))) < 1e-7);
    hd_query_factor_fill(&ministral, 9, table);
    assert_true(table[3] == 1);
    assert_true(fabs((double)table[4] - (1 + 0.5 * log(2))) < 1e-7 && table[7] == table[4]);
    assert_true(fabs((double)table[8] - (1 + 0.5 * log(3))) < 1e-7);
}

RUN_CASES()
