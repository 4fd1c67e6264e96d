/* cost_experts: the planner may trust the counts of routers and experts, by hand as in cost_test.c. */
#include "tests/unit/kernels/cost.h"

/* R 6 rows, E 4 experts, K 2 choices, two sequences of 3 rows. */
static void routing_moves_a_value_per_row_and_expert(void **state)
{
    const struct hd_route_noise_args n = {.R = 6, .E = 4};
    struct hd_route_forward_args f = {.R = 6, .E = 4, .K = 2};
    struct hd_route_counts_args c = {.at = {.Q = 2, .runs = 1, .P = 3}, .R = 6, .E = 4, .K = 2};
    struct hd_route_record_args r = {.at = {.Q = 2, .runs = 1, .P = 1}, .R = 6, .E = 4, .K = 2};
    struct hd_traits traits = {.threads = 2};
    struct hd_route_backward_args b = {.at = {.Q = 2, .runs = 1, .P = 1}, .R = 6, .E = 4, .K = 2};
    int32_t counts, fields;
    float noise, dnoise;

    /* sample and index in */
    check(cost_of(HD_K_route_noise, &n), 33 * 24, 4 * 12, 4 * 24);
    /* logits in; probabilities, lse, choices and gates out */
    check(cost_of(HD_K_route_forward, &f), 6 * 24, 4 * 24, 4 * (24 + 6 + 2 * 12));
    f.renormalize = true;
    f.noise = f.noise_logits = &noise; /* two more inputs */
    check(cost_of(HD_K_route_forward, &f), 13 * 24 + 4 * 12, 4 * 72, 4 * (24 + 6 + 2 * 12));
    f.lengths = &fields; /* one number a row */
    check(cost_of(HD_K_route_forward, &f), 13 * 24 + 4 * 12, 4 * (72 + 6), 4 * (24 + 6 + 2 * 12));
    /* the choices of 3 ranks; 2 sequences' counts out */
    check(cost_of(HD_K_route_counts, &c), 36, 4 * 36, 4 * 8);
    c.lengths = c.begins = &fields;
    check(cost_of(HD_K_route_counts, &c), 36, 4 * (36 + 12), 4 * 8);
    /* probabilities, lse, choices and slots, 2 sequences' counts, and a record of 4 + 4 doubles in
     * and out */
    check(cost_of(HD_K_route_record, &r), 2 * (24 + 6 + 12), 4 * (24 + 6 + 24 + 8) + 64, 64);
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_route_record, &r, &traits), 0);
    traits.multiprocessors = 132; /* a GPU: a record for each of 64 blocks */
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_route_record, &r, &traits), 64 * 64);
    r.lengths = r.begins = &fields;
    check(cost_of(HD_K_route_record, &r), 2 * (24 + 6 + 12), 4 * (24 + 6 + 24 + 8 + 12) + 64, 64);
    /* probabilities, lse; dgate, choices and gates */
    check(cost_of(HD_K_route_backward, &b), 6 * 24 + 5 * 12, 4 * (24 + 6 + 36), 4 * 24);
    b.counts = &counts; /* of 2 sequences */
    b.dnoise_logits = &dnoise;
    b.noise = b.noise_logits = &noise;
    check(cost_of(HD_K_route_backward, &b), 11 * 24 + 5 * 12, 4 * (24 + 6 + 36 + 8 + 48), 4 * 48);
}

/* The sizes are those above, with sigmoids, a select bias, 2 groups and a scale. */
static void routing_by_scores_costs_a_little_more(void **state)
{
    const float bias = 0;
    struct hd_route_form form = {.score = HD_ROUTE_SIGMOID, .groups = 2, .kept = 1, .scale = 2};
    struct hd_route_forward_args f = {.R = 6, .E = 4, .K = 2, .select_bias = &bias, .form = form};
    struct hd_route_record_args r = {
        .at = {.Q = 2, .runs = 1, .P = 1}, .R = 6, .E = 4, .K = 2, .score = HD_ROUTE_SIGMOID};
    struct hd_route_backward_args b = {
        .at = {.Q = 2, .runs = 1, .P = 1}, .form = form, .R = 6, .E = 4, .K = 2};
    struct hd_route_bias_args u = {.E = 4};

    check(cost_of(HD_K_route_forward, &f), (6 + 1 + 3) * 24 + 12, 4 * (24 + 4),
          4 * (24 + 6 + 2 * 12));
    check(cost_of(HD_K_route_record, &r), 2 * (24 + 6 + 12 + 6), 4 * (24 + 6 + 24 + 8) + 64, 64);
    check(cost_of(HD_K_route_backward, &b), (6 + 3) * 24 + 5 * 12, 4 * (24 + 6 + 36), 4 * 24);
    check(cost_of(HD_K_route_bias, &u), 12, 4 * (8 + 4), 4 * 4);
}

/* R 6 rows of C 5, K 2 choices, room for T 9 of the 12. */
static void rows_of_experts_are_moved_up_to_the_bound(void **state)
{
    const struct hd_assign_args a = {
        .at = {.Q = 2, .runs = 1, .P = 3}, .R = 6, .E = 4, .K = 2, .T = 9, .P = 2};
    const struct hd_permute_forward_args pf = {.R = 6, .K = 2, .C = 5, .T = 9, .dtype = HD_BF16};
    const struct hd_permute_backward_args pb = {.R = 6, .K = 2, .C = 5, .T = 9, .dtype = HD_F32};
    const struct hd_combine_forward_args cf = {.R = 6, .K = 2, .C = 5, .T = 9, .dtype = HD_BF16};
    float dgate[12], dinp[45];
    struct hd_combine_backward_args cb = {
        .dinp = dinp, .dgate = dgate, .R = 6, .K = 2, .C = 5, .T = 9, .dtype = HD_BF16};
    const struct hd_regroup_args g = {.P = 3, .E = 4, .T = 9, .C = 5, .dtype = HD_BF16};
    const struct hd_traits traits = {.threads = 2};

    /* the choices of 3 ranks in; slots, counts and what goes to 2 ranks out */
    check(cost_of(HD_K_assign, &a), 12, 4 * 36, 4 * (12 + 4 + 2));
    check(cost_of(HD_K_permute_forward, &pf), 0, 2 * 30 + 4 * 12, 2 * 45);
    check(cost_of(HD_K_permute_backward, &pb), 45, 4 * 45 + 4 * 12, 4 * 30);
    check(cost_of(HD_K_combine_forward, &cf), 90, 2 * 45 + 8 * 12, 2 * 30);
    check(cost_of(HD_K_combine_backward, &cb), 3 * 45, 2 * (45 + 30) + 8 * 12, 2 * 45 + 4 * 12);
    cb.T = 100; /* more room than choices costs nothing */
    check(cost_of(HD_K_combine_backward, &cb), 3 * 60, 2 * (60 + 30) + 8 * 12, 2 * 60 + 4 * 12);
    cb.dinp = NULL; /* the gates' gradients alone, then the products with the gates alone */
    check(cost_of(HD_K_combine_backward, &cb), 2 * 60, 2 * (60 + 30) + 8 * 12, 4 * 12);
    cb.dinp = dinp;
    cb.dgate = NULL;
    check(cost_of(HD_K_combine_backward, &cb), 60, 2 * 30 + 8 * 12, 2 * 60);
    check(cost_of(HD_K_regroup, &g), 0, 2 * 45 + 4 * 12, 2 * 45);
    /* where the rows of each run or rank and expert are, in words of 8 bytes */
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_assign, &a, &traits), 2 * 4 * 2 * 8);
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_regroup, &g, &traits), 3 * 4 * 8);
}

/* Room for T 9 rows: that many are priced, and so is any other number. */
static void experts_products_are_priced_at_the_bound(void **state)
{
    struct hd_grouped_gemm_args a = {
        .E = 4, .T = 9, .N = 3, .K = 5, .trans_b = true, .ab_dtype = HD_BF16, .c_dtype = HD_F32};
    struct hd_grouped_gemm_weight_args w = {.E = 4, .T = 9, .M = 3, .N = 5, .ab_dtype = HD_BF16};

    check(cost_of(HD_K_grouped_gemm, &a), 2 * 9 * 15, 2 * (9 * 5 + 4 * 15) + 4 * 4, 4 * 9 * 3);
    a.T = 2; /* two rows have two experts at most */
    check(cost_of(HD_K_grouped_gemm, &a), 2 * 2 * 15, 2 * (2 * 5 + 2 * 15) + 4 * 4, 4 * 2 * 3);
    a.accumulate = true; /* c is read too */
    check(cost_of(HD_K_grouped_gemm, &a), 2 * 2 * 15, 2 * (2 * 5 + 2 * 15) + 4 * 4 + 4 * 2 * 3,
          4 * 2 * 3);
    check(cost_of(HD_K_grouped_gemm_weight, &w), 2 * 9 * 15, 2 * 9 * 8 + 4 * 4, 4 * 4 * 15);
    w.accumulate = true;
    check(cost_of(HD_K_grouped_gemm_weight, &w), 2 * 9 * 15, 2 * 9 * 8 + 4 * 4 + 4 * 4 * 15,
          4 * 4 * 15);
    w.T = 2;
    check(cost_of(HD_K_grouped_gemm_weight, &w), 2 * 2 * 15, 2 * 2 * 8 + 4 * 4 + 4 * 2 * 15,
          4 * 2 * 15);
}

/* The biases of two experts at most have two rows. */
static void experts_biases_are_priced_at_the_bound(void **state)
{
    struct hd_expert_bias_forward_args f = {.E = 4, .T = 9, .N = 3, .dtype = HD_BF16};
    struct hd_expert_bias_backward_args b = {.E = 4, .T = 9, .N = 3, .dtype = HD_BF16};

    check(cost_of(HD_K_expert_bias_forward, &f), 27, 2 * (27 + 12) + 4 * 4, 2 * 27);
    f.T = 2;
    check(cost_of(HD_K_expert_bias_forward, &f), 6, 2 * (6 + 6) + 4 * 4, 2 * 6);
    check(cost_of(HD_K_expert_bias_backward, &b), 27, 2 * 27 + 4 * 4, 4 * 12);
    b.accumulate = true;
    b.T = 2;
    check(cost_of(HD_K_expert_bias_backward, &b), 6, 2 * 6 + 4 * 4 + 4 * 6, 4 * 6);
}

/* Panels of 32 more rows and columns and of a slice of the depth; where rows begin, 5 words of 8
 * bytes, takes a line of 64. */
static void experts_products_share_scratch_or_have_their_own(void **state)
{
    struct hd_traits traits = {.threads = 1};
    struct hd_grouped_gemm_args a = {
        .E = 4, .T = 1000, .N = 64, .K = 512, .ab_dtype = HD_F32, .c_dtype = HD_F32};
    struct hd_grouped_gemm_weight_args w = {.E = 4, .T = 300, .M = 64, .N = 96};

    assert_int_equal(hd_kernel_scratch_bytes(HD_K_grouped_gemm, &a, &traits),
                     64 + 4 * 512 * (704 + 96));
    traits.threads = 2; /* 2 times 512 rows and the columns: more than a slab of 672 rows */
    a.N = 1024;
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_grouped_gemm, &a, &traits),
                     64 + 2 * 4 * 512 * (544 + 1056));
    traits.threads = 3; /* never two small experts for each thread */
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_grouped_gemm, &a, &traits),
                     64 + 4 * 512 * (704 + 1056));
    a.T = 8; /* decoding reads weights as they lie */
    a.trans_b = true;
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_grouped_gemm, &a, &traits), 64);
    /* the depth is a count: 300 rows are 304 words; of 1200 the deepest slice is 1024 */
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_grouped_gemm_weight, &w, &traits),
                     4 * 304 * (96 + 128));
    w.T = 1200;
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_grouped_gemm_weight, &w, &traits),
                     4 * 1024 * (96 + 128));
    /* as pairs these are 512 words; those of all 1200, in two slices, would be 304 */
    w.ab_dtype = HD_BF16;
    traits.bf16_products = HD_BF16_PAIRS;
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_grouped_gemm_weight, &w, &traits),
                     4 * 512 * (96 + 128));
}

RUN_CASES()
