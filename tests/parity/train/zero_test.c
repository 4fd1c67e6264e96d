/* ZeRO: the bits of plain data parallelism, what it sends and keeps against closed forms, and
 * checkpoints that cross from one number of shards to another. tests/parity/grid pairs it with
 * every other axis.
 */
#include <stdio.h>
#include <string.h>

#include "compare.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "traffic.h"

enum { STEPS = 5 };

struct layout {
    const char *family, *precision;
    int dp, tp, pp, cp, zero, zero_shard;
};

static struct hd_job job_of(const struct harness *h, const struct layout *l, int zero)
{
    struct hd_job job = harness_job(h, l->family, l->dp);

    job.tp = l->tp ? l->tp : 1;
    job.pp = l->pp ? l->pp : 1;
    job.cp = l->cp ? l->cp : 1;
    job.zero = zero;
    job.zero_shard = l->zero_shard;
    job.micro_batch = 1;
    job.precision = hd_job_find_word(hd_job_precision_words, l->precision);
    if (job.pp > 1)
        (void)snprintf(job.schedule, sizeof job.schedule, "1f1b");
    return job;
}

static void compare_bits(const struct run *cut, const struct run *plain)
{
    assert_memory_equal(cut->loss, plain->loss, sizeof plain->loss);
    assert_memory_equal(cut->grad_norm, plain->grad_norm, sizeof plain->grad_norm);
    assert_memory_equal(cut->last_grad, plain->last_grad, sizeof plain->last_grad);
    assert_memory_equal(cut->weights, plain->weights, sizeof plain->weights);
    assert_memory_equal(cut->moments, plain->moments, sizeof plain->moments);
    assert_memory_equal(&cut->validation_loss, &plain->validation_loss, sizeof(double));
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
        {.family = "gpt2", .precision = "fp16", .dp = 2, .pp = 2},
        {.family = "mixtral", .precision = "bf16", .dp = 2, .cp = 2},
    };

    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct run *plain = run_new(STEPS), *cut = run_new(STEPS);
        struct harness h;

        harness_setup(&h, 20000);
        run_threads(job_of(&h, &layouts[i], 0), layouts[i].dp, plain);
        run_threads(job_of(&h, &layouts[i], 1), layouts[i].dp, cut);
        compare_bits(cut, plain);
        run_free(plain);
        run_free(cut);
        harness_teardown(&h);
    }
}

/* With one micro-batch, stages 2 and 3 add to nothing what stage 1 sums, and compute on weights
 * that were cut and put together again. */
static void stages_2_and_3_have_these_bits_with_one_micro_batch(void **state)
{
    static const struct layout layouts[] = {
        {.family = "llama", .precision = "fp32", .dp = 2},
        {.family = "gpt2", .precision = "bf16", .dp = 4},
        {.family = "llama", .precision = "bf16", .dp = 2, .tp = 2},
        {.family = "gpt2", .precision = "bf16", .dp = 2, .pp = 2},
        {.family = "mixtral", .precision = "bf16", .dp = 2, .cp = 2},
    };

    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct run *plain = run_new(STEPS);
        struct harness h;
        struct hd_job job;

        harness_setup(&h, 20000);
        job = job_of(&h, &layouts[i], 0);
        job.micro_batch = job.global_batch / layouts[i].dp;
        job.tie_embeddings = false;
        run_threads(job, layouts[i].dp, plain);
        for (int zero = 2; zero <= 3; zero++) {
            struct run *cut = run_new(STEPS);

            job.zero = zero;
            run_threads(job, layouts[i].dp, cut);
            compare_bits(cut, plain);
            run_free(cut);
        }
        run_free(plain);
        harness_teardown(&h);
    }
}

/* With several, the sums are added in another order than without ZeRO, but in one order by both. */
static void stages_2_and_3_have_the_same_bits(void **state)
{
    static const struct layout layouts[] = {
        {.family = "llama", .precision = "bf16", .dp = 2, .tp = 2},
        {.family = "mixtral", .precision = "fp32", .dp = 4},
    };

    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct run *two = run_new(STEPS), *three = run_new(STEPS);
        struct harness h;

        harness_setup(&h, 20000);
        run_threads(job_of(&h, &layouts[i], 2), layouts[i].dp, two);
        run_threads(job_of(&h, &layouts[i], 3), layouts[i].dp, three);
        compare_bits(three, two);
        run_free(two);
        run_free(three);
        harness_teardown(&h);
    }
}

static int64_t up(int64_t count, int64_t to)
{
    return (count + to - 1) / to * to;
}

/* Bytes per element of the rank's shard (mine), of a whole shard (each), and of all shards (all).
 */
struct rule {
    int mine, each, all;
};

static int64_t bytes_by(struct rule rule, int64_t mine, int64_t each, int64_t all)
{
    return rule.mine * mine + rule.each * each + rule.all * all;
}

/* Sizes: a bucket of n elements on P ranks makes a shard of up(n / P) elements, a multiple of
 * 4,096; a rank's own ends with the part. What is gathered has room for a whole shard. */
static void state_takes_what_the_closed_form_says(void **state)
{
    static const struct {
        const char *precision;
        int zero;
        struct rule masters, copies, gradients;
    } forms[] = {
        {"bf16", 1, {.mine = 4}, {.all = 2}, {.all = 4}},
        {"bf16", 2, {.mine = 4}, {.all = 2}, {.mine = 4}},
        {"bf16", 3, {.mine = 4}, {.each = 2}, {.mine = 4}},
        {"fp32", 1, {.all = 4}, {0}, {.all = 4}},
        {"fp32", 2, {.all = 4}, {0}, {.mine = 4}},
        {"fp32", 3, {.each = 4}, {0}, {.mine = 4}},
    };
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        for (int rank = 0; rank < 4; rank++) {
            const struct layout layout = {
                .family = "llama", .precision = forms[i].precision, .dp = 4};
            const struct hd_job job = job_of(&h, &layout, forms[i].zero);
            int64_t mine = 0, each = 0, all = 0;
            struct hd_rank_program l;
            struct hd_arena arena;

            hd_arena_init(&arena, 0);
            run_layout_of(&job, rank, &(struct hd_rank_program_options){0}, &arena, &l);
            for (int p = 0; p < l.registry.bucket_count; p++) {
                const int64_t n = l.registry.buckets[p].count;
                const int64_t shard = up((n + job.dp - 1) / job.dp, HD_GRAD_CHUNK);
                int64_t left = n - shard * rank;

                left = left < 0 ? 0 : left;
                mine += left < shard ? left : shard;
                each += shard;
                all += shard * job.dp;
            }
            assert_int_equal(l.memory.moments, 8 * mine);
            assert_int_equal(l.memory.weights, bytes_by(forms[i].masters, mine, each, all));
            assert_int_equal(l.memory.copies, bytes_by(forms[i].copies, mine, each, all));
            assert_int_equal(l.memory.gradients, bytes_by(forms[i].gradients, mine, each, all));
            hd_arena_done(&arena);
        }
    harness_teardown(&h);
}

/* In blocks of two, each of four ranks has what it has in a job of two. */
static void a_block_has_what_as_many_ranks_have(void **state)
{
    struct harness h;

    harness_setup(&h, 20000);
    for (int zero = 1; zero <= 3; zero++)
        for (int rank = 0; rank < 4; rank++) {
            const struct layout two = {.family = "llama", .precision = "bf16", .dp = 2};
            const struct layout four = {.family = "llama", .precision = "bf16", .dp = 4};
            struct hd_job job = job_of(&h, &two, zero);
            struct hd_rank_program alone, blocks;
            struct hd_arena arena;

            hd_arena_init(&arena, 0);
            run_layout_of(&job, rank % 2, &(struct hd_rank_program_options){0}, &arena, &alone);
            job = job_of(&h, &four, zero);
            job.zero_shard = 2;
            run_layout_of(&job, rank, &(struct hd_rank_program_options){0}, &arena, &blocks);
            assert_int_equal(blocks.memory.weights, alone.memory.weights);
            assert_int_equal(blocks.memory.copies, alone.memory.copies);
            assert_int_equal(blocks.memory.gradients, alone.memory.gradients);
            assert_int_equal(blocks.memory.moments, alone.memory.moments);
            hd_arena_done(&arena);
        }
    harness_teardown(&h);
}

/* Elements of all shards of the parts of blocks, of the head's norm, and of what is used once: the
 * table of the embedding and the head's weight. */
struct sizes {
    int64_t blocks, norm, tables;
};

static struct sizes sizes_of(const struct hd_job *job)
{
    struct sizes sizes = {0};
    struct hd_rank_program l;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    run_layout(job, &(struct hd_rank_program_options){0}, &arena, &l);
    for (int i = 0; i < l.registry.bucket_count; i++) {
        const struct hd_bucket *p = &l.registry.buckets[i];
        const int64_t all = up((p->count + job->dp - 1) / job->dp, HD_GRAD_CHUNK) * job->dp;

        if (p->unit == l.model.unit_embedding || p->head)
            sizes.tables += all;
        else if (p->unit == l.model.unit_head)
            sizes.norm += all;
        else
            sizes.blocks += all;
    }
    hd_arena_done(&arena);
    return sizes;
}

/* Counts by hand: for n elements each rank reads the terms of n / P sums from P - 1 others: 4 (P -
 * 1) n bytes; and n / P weights of each of them, 2 (P - 1) n in bf16. Stage 1 does both once a
 * step; stage 2 sums in each of the M micro-batches; stage 3 also gathers there, for F and again
 * for B, where only the tables are not needed, and no more in the update. */
static void a_step_scatters_sums_and_gathers_weights(void **state)
{
    enum { P = 4, M = 2 };
    struct harness h;

    harness_setup(&h, 20000);
    for (int zero = 1; zero <= 3; zero++) {
        const struct layout layout = {.family = "llama", .precision = "bf16", .dp = P};
        struct hd_job job = job_of(&h, &layout, zero);
        struct traffic traffic = {0};
        struct sizes n;
        int64_t all, gathered;

        job.tie_embeddings = false;
        n = sizes_of(&job);
        all = n.blocks + n.norm + n.tables;
        gathered = zero == 3 ? M * (2 * n.blocks + 2 * n.norm + n.tables) : all;
        traffic_count(&job, &traffic);
        assert_int_equal(traffic_moved(&traffic, P, HD_GROUP_ZERO_SHARD, HD_COMM_REDUCE_SCATTER),
                         (P - 1) * 4 * all * (zero == 1 ? 1 : M));
        assert_int_equal(traffic_moved(&traffic, P, HD_GROUP_ZERO_SHARD, HD_COMM_ALL_GATHER),
                         (P - 1) * 2 * gathered);
        traffic_check_dry(&traffic, &job);
    }
    harness_teardown(&h);
}

/* ---- overlap, by the order of the nodes ---- */

/* The unit whose weights, or gradient, the node uses; -1: none. */
static int unit_of(const struct hd_rank_program *l, const struct hd_node *node,
                   enum hd_store_kind kind)
{
    for (int k = 0; k < hd_node_operand_count(node); k++)
        if (node->operands[k].store && node->operands[k].store->kind == kind)
            return l->registry.buckets[node->operands[k].store->bucket].unit;
    return -1;
}

/* In the list, each unit's store of this kind lives from its first to its last use: returns the
 * most units that are alive at a time. */
static int most_alive(const struct hd_rank_program *l, const struct hd_program *p,
                      enum hd_store_kind kind)
{
    int most = 0;

    for (int i = 0; i < p->count; i++) {
        int alive = 0;

        for (int unit = 0; unit < l->registry.unit_count; unit++) {
            bool before = false, after = false;

            for (int k = 0; k < p->count; k++)
                if (unit_of(l, p->nodes[k], kind) == unit) {
                    before |= k <= i;
                    after |= k >= i;
                }
            alive += before && after;
        }
        most = alive > most ? alive : most;
    }
    return most;
}

/* The gather of each unit but the first is launched before the unit ahead of it uses its weights,
 * and a gradient is added only when the next unit's is complete. */
static void collectives_run_beside_the_unit_next_to_theirs(void **state)
{
    static const enum hd_call calls[] = {HD_CALL_F, HD_CALL_B};
    static const struct layout layout = {.family = "llama", .precision = "bf16", .dp = 2};
    struct harness h;
    struct hd_rank_program l;
    struct hd_arena arena;
    struct hd_job job;
    int gathers = 0, beside = 0;

    harness_setup(&h, 20000);
    hd_arena_init(&arena, 0);
    job = job_of(&h, &layout, 3);
    job.layers = 4;
    job.tie_embeddings = false;
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &l);
    for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
        const struct hd_program *p = &l.train[0]->program[calls[c]];

        assert_int_equal(most_alive(&l, p, HD_STORE_GATHERED), 2);
        for (int i = 0; i < p->count; i++) {
            const int unit = unit_of(&l, p->nodes[i], HD_STORE_GATHERED);
            int k = i + 1;

            if (p->nodes[i]->stream != HD_STREAM_PREFETCH)
                continue;
            gathers++;
            while (k < p->count &&
                   (p->nodes[k]->is_comm || unit_of(&l, p->nodes[k], HD_STORE_GATHERED) < 0))
                k++; /* the next node that uses weights */
            beside += unit_of(&l, p->nodes[k], HD_STORE_GATHERED) != unit;
        }
    }
    assert_true(gathers - beside == 2); /* one in each program: the first */
    assert_int_equal(most_alive(&l, &l.train[0]->program[HD_CALL_B], HD_STORE_GRAD_BUCKET), 2);
    hd_arena_done(&arena);
    harness_teardown(&h);
}

/* ---- checkpoints ---- */

static void a_checkpoint_crosses_from_one_number_of_shards_to_another(void **state)
{
    static const struct layout crossed[] = {
        {.family = "gpt2", .precision = "bf16", .dp = 1, .zero = 0},
        {.family = "gpt2", .precision = "bf16", .dp = 4, .zero = 1, .zero_shard = 2},
        {.family = "gpt2", .precision = "bf16", .dp = 2, .tp = 2, .zero = 1},
        {.family = "gpt2", .precision = "bf16", .dp = 2, .pp = 2, .zero = 3},
    };
    enum { COUNT = sizeof crossed / sizeof crossed[0] };
    struct harness h;

    harness_setup(&h, 20000);
    for (int from = 0; from < COUNT; from++) {
        struct run *save = run_new(1);
        struct hd_saved saved;
        struct hd_job job = job_of(&h, &crossed[from], crossed[from].zero);

        job.vocab = 258;
        job.attempt_dir = job_text("%s/attempt-%d", h.dir, from + 1);
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

/* Goal: a rank whose shard of a part is empty, as the part is smaller than the shards before, has
 * no more in work than the others: its buckets end with their scatter, too. Method: parts of 1 and
 * 2 chunks of the norm, on 8 ranks. */
static void a_rank_without_a_shard_keeps_no_bucket(void **state)
{
    struct harness h;

    harness_setup(&h, 20000);
    for (int zero = 2; zero <= 3; zero++) {
        struct hd_job job = harness_job(&h, "llama", 8);
        int64_t first = 0, empty = 0;

        job.layers = 12;
        job.zero = zero;
        job.micro_batch = 1;
        for (int rank = 0; rank < 8; rank++) {
            struct hd_arena arena;
            struct hd_rank_program l;

            hd_arena_init(&arena, 0);
            run_layout_of(&job, rank, &(struct hd_rank_program_options){0}, &arena, &l);
            if (rank == 0)
                first = l.memory.work;
            for (int p = 0; p < l.registry.bucket_count; p++)
                empty += l.registry.buckets[p].shard_begin == l.registry.buckets[p].shard_end;
            /* work begins at such a multiple in each half: a gap of less than that behind the state
             */
            assert_true(l.memory.work < first + 2 * HD_SCRATCH_ALIGN);
            hd_arena_done(&arena);
        }
        assert_true(empty > 12);
    }
    harness_teardown(&h);
}

RUN_CASES()
