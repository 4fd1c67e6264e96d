/* ZeRO: the bits of plain data parallelism, what it sends and keeps against closed forms, and
 * checkpoints that cross from one number of shards to another. tests/parity/grid pairs it with
 * every other axis.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "compare.h"
#include "traffic.h"

enum { STEPS = 5 };

struct layout {
    const char *family, *precision;
    int dp, tp, pp, cp, zero;
};

static struct hd_job job_of(const struct harness *h, const struct layout *l, int zero)
{
    struct hd_job job = harness_job(h, l->family, l->dp);

    job.tp = l->tp ? l->tp : 1;
    job.pp = l->pp ? l->pp : 1;
    job.cp = l->cp ? l->cp : 1;
    job.zero = zero;
    job.micro_batch = 1;
    (void)snprintf(job.precision, sizeof job.precision, "%s", l->precision);
    if (job.pp > 1)
        (void)snprintf(job.schedule, sizeof job.schedule, "1f1b");
    return job;
}

/* The sums are the same, cut in another place; the norm adds the same numbers in the same order.
 * Cuts fall inside tensors: blocks of harness_job have 7,744 elements and more, shards are
 * multiples of 4,096. */
static void stage_1_has_the_bits_of_plain_data_parallelism(void **state)
{
    static const struct layout layouts[] = {
        {.family = "llama", .precision = "fp32", .dp = 2},
        {.family = "gpt2", .precision = "bf16", .dp = 4},
        {.family = "llama", .precision = "bf16", .dp = 2, .tp = 2},
        {.family = "gpt2", .precision = "bf16", .dp = 2, .pp = 2},
        {.family = "mixtral", .precision = "bf16", .dp = 2, .cp = 2},
    };

    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct run *plain = run_new(STEPS), *cut = run_new(STEPS);
        struct harness h;

        harness_setup(&h, 20000);
        run_threads(job_of(&h, &layouts[i], 0), layouts[i].dp, plain);
        run_threads(job_of(&h, &layouts[i], 1), layouts[i].dp, cut);
        assert_memory_equal(cut->loss, plain->loss, sizeof plain->loss);
        assert_memory_equal(cut->grad_norm, plain->grad_norm, sizeof plain->grad_norm);
        assert_memory_equal(cut->last_grad, plain->last_grad, sizeof plain->last_grad);
        assert_memory_equal(cut->weights, plain->weights, sizeof plain->weights);
        assert_memory_equal(cut->moments, plain->moments, sizeof plain->moments);
        assert_memory_equal(&cut->validation_loss, &plain->validation_loss, sizeof(double));
        run_free(plain);
        run_free(cut);
        harness_teardown(&h);
    }
}

static int64_t up(int64_t count, int64_t to)
{
    return (count + to - 1) / to * to;
}

/* Of a part of n elements on P ranks a shard is up(n / P) elements, a multiple of 4,096. Per
 * element of the shard in bf16: 4 bytes of master and 8 of moments; per element of all shards 2
 * bytes of copy and 4 of gradient. In fp32 the masters are what computes: 8 per element of the
 * shard, 4 + 4 of all. */
static void state_takes_what_the_closed_form_says(void **state)
{
    static const struct layout layouts[] = {{.family = "llama", .precision = "bf16", .dp = 2},
                                            {.family = "llama", .precision = "fp32", .dp = 4}};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const bool bf16 = strcmp(layouts[i].precision, "bf16") == 0;
        struct harness h;

        harness_setup(&h, 20000);
        for (int rank = 0; rank < layouts[i].dp; rank++) {
            const struct hd_job job = job_of(&h, &layouts[i], 1);
            int64_t mine = 0, all = 0;
            struct hd_layout l;
            struct hd_arena arena;

            hd_arena_init(&arena, 0);
            run_layout_of(&job, rank, &(struct hd_layout_options){0}, &arena, &l);
            for (int p = 0; p < l.registry.part_count; p++) {
                const int64_t n = l.registry.parts[p].count;
                const int64_t shard = up((n + job.dp - 1) / job.dp, HD_GRAD_CHUNK);
                int64_t left = n - shard * rank;

                left = left < 0 ? 0 : left;
                mine += left < shard ? left : shard;
                all += shard * job.dp;
            }
            assert_int_equal(l.memory.moments, 8 * mine);
            assert_int_equal(l.memory.weights, 4 * (bf16 ? mine : all));
            assert_int_equal(l.memory.copies, bf16 ? 2 * all : 0);
            assert_int_equal(l.memory.gradients, 4 * all);
            hd_arena_done(&arena);
        }
        harness_teardown(&h);
    }
}

/* Once a step, for all shards together (n elements, padding included): each rank reads n / P sums'
 * terms from P - 1 others, 4 (P - 1) n bytes, and then their n / P new weights, 2 (P - 1) n in
 * bf16. */
static void a_step_scatters_sums_and_gathers_weights(void **state)
{
    const struct layout layout = {.family = "llama", .precision = "bf16", .dp = 4};
    struct traffic traffic = {0};
    int64_t all = 0;
    struct hd_layout l;
    struct hd_arena arena;
    struct harness h;
    struct hd_job job;

    (void)state;
    harness_setup(&h, 20000);
    job = job_of(&h, &layout, 1);
    hd_arena_init(&arena, 0);
    run_layout(&job, &(struct hd_layout_options){0}, &arena, &l);
    for (int p = 0; p < l.registry.part_count; p++)
        all += up((l.registry.parts[p].count + 3) / 4, HD_GRAD_CHUNK) * 4;
    hd_arena_done(&arena);
    traffic_count(&job, &traffic);
    assert_int_equal(traffic_moved(&traffic, 4, HD_GROUP_DP_CP, HD_COMM_REDUCE_SCATTER),
                     3 * 4 * all);
    assert_int_equal(traffic_moved(&traffic, 4, HD_GROUP_DP_CP, HD_COMM_ALL_GATHER), 3 * 2 * all);
    traffic_check_dry(&traffic, &job);
    harness_teardown(&h);
}

/* ---- checkpoints ---- */

static void a_checkpoint_crosses_from_one_number_of_shards_to_another(void **state)
{
    static const struct layout crossed[] = {
        {.family = "gpt2", .precision = "bf16", .dp = 1, .zero = 0},
        {.family = "gpt2", .precision = "bf16", .dp = 4, .zero = 1},
        {.family = "gpt2", .precision = "bf16", .dp = 2, .tp = 2, .zero = 1},
        {.family = "gpt2", .precision = "bf16", .dp = 2, .pp = 2, .zero = 1},
    };
    enum { COUNT = sizeof crossed / sizeof crossed[0] };
    struct harness h;

    (void)state;
    harness_setup(&h, 20000);
    for (int from = 0; from < COUNT; from++) {
        struct run *save = run_new(1);
        struct hd_saved saved;
        struct hd_job job = job_of(&h, &crossed[from], crossed[from].zero);

        job.vocab = 258;
        (void)snprintf(job.attempt_dir, sizeof job.attempt_dir, "%s/attempt-%d", h.dir, from + 1);
        run_save(&job, 2, save, &saved);
        for (int to = 0; to < COUNT; to++) {
            struct run *load = run_new(1);

            job = job_of(&h, &crossed[to], crossed[to].zero);
            job.vocab = 258;
            run_load(&job, &saved, load);
            run_compare_state(load, save);
            assert_float_equal(load->loss[0], save->loss[0], 0.02);
            run_free(load);
        }
        run_free(save);
    }
    harness_teardown(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stage_1_has_the_bits_of_plain_data_parallelism),
        cmocka_unit_test(state_takes_what_the_closed_form_says),
        cmocka_unit_test(a_step_scatters_sums_and_gathers_weights),
        cmocka_unit_test(a_checkpoint_crosses_from_one_number_of_shards_to_another),
    };
    return cmocka_run_group_tests_name("ZeRO", tests, NULL, NULL);
}
