/* train.grad_reduce_dtype: bf16: the bits of every gradient from those of each rank, what is sent,
 * what memory it takes, and what a checkpoint says of it. tests/parity/grid pairs it with the axes
 of a layout. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "compare.h"
#include "program/operands.h"
#include "tests/program/test.h"
#include "traffic.h"

enum { STEPS = 2, WORLD = 3 };

static struct hd_job job_of(const struct harness *h, const char *family, int dp, int zero)
{
    struct hd_job job = harness_job(h, family, dp);

    job.zero = zero;
    job.global_batch = 2 * dp;
    job.micro_batch = 2;
    job.reduce = HD_JOB_REDUCE_BF16;
    return job;
}

/* ---- bits ---- */

/* The gradients of each rank, of all parameters, just before a part of them is rounded. */
static struct watched {
    struct hd_trainer *trainer;
    int step, buckets;
    float grad[RUN_ELEMENTS_MAX];
} watched[WORLD];

static const struct hd_store *rounded_bucket(const struct hd_node *node)
{
    const struct hd_cast_operands *o;

    if (node->is_comm || node->kernel != HD_K_cast)
        return NULL;
    o = hd_cast_operands_of(node);
    return o->out.store->kind == HD_STORE_WIRE ? o->inp.store : NULL;
}

static void take_bucket(void *context, const struct hd_launch_event *event)
{
    struct watched *w = context;
    const struct hd_registry *r = &hd_trainer_rank_program(w->trainer)->registry;
    const struct hd_store *bucket = rounded_bucket(event->node);
    int64_t at = 0;

    if (!bucket || w->step > 0)
        return;
    w->buckets++;
    for (int i = 0; i < r->param_count; at += r->params[i++].count)
        if (r->params[i].bucket == bucket->bucket &&
            hd_trainer_read_state(w->trainer, i, HD_STATE_GRAD, w->grad + at))
            abort();
}

static void watch(struct hd_trainer *t, int step, void *context)
{
    struct watched *w = &watched[hd_trainer_rank_program(t)->rank];

    w->trainer = t;
    w->step = step;
    hd_runner_observe(hd_trainer_runner(t), take_bucket, w);
}

static float rounded(float x)
{
    return hd_bf16_to_f32(hd_f32_to_bf16(x));
}

/* Goal: each way is rounded once, sums are made in fp32 in rank order. Method: three ranks, whose
 * order shows; the sums worked out here from the gradient of each. With ZeRO 1 a sum stays where it
 * is made; without, it travels back. Both start at the same weights. */
static void each_way_is_rounded_once(void **state)
{
    struct run *plain = run_new(STEPS), *cut = run_new(STEPS);
    int64_t exact = 0;
    struct hd_job job;
    struct harness h;

    harness_setup(&h, 20000);
    job = job_of(&h, "llama", WORLD, 0);
    plain->before_step = watch;
    run_threads(job, WORLD, plain);
    job.zero = 1;
    run_threads(job, WORLD, cut);
    assert_int_equal(watched[0].buckets, 1 + 2 + 2); /* embedding, blocks; the head has two */
    for (int64_t i = 0; i < plain->count; i++) {
        float sum = rounded(watched[0].grad[i]);

        for (int r = 1; r < WORLD; r++)
            sum += rounded(watched[r].grad[i]);
        assert_true(cut->first_grad[i] == sum);
        assert_true(plain->first_grad[i] == rounded(sum));
        exact += sum == rounded(sum);
    }
    assert_true(exact < plain->count / 2); /* a second rounding would show */
    run_free(plain);
    run_free(cut);
    harness_teardown(&h);
}

/* Buckets of one micro-batch are rounded as the gradient of stage 1 is. */
static void the_stages_of_zero_have_the_same_bits(void **state)
{
    struct run *one = run_new(STEPS);
    struct hd_job job;
    struct harness h;

    harness_setup(&h, 20000);
    job = job_of(&h, "gpt2", 2, 1);
    job.tie_embeddings = false;
    run_threads(job, 2, one);
    for (int zero = 2; zero <= 3; zero++) {
        struct run *more = run_new(STEPS);

        job.zero = zero;
        run_threads(job, 2, more);
        assert_memory_equal(more->first_grad, one->first_grad, sizeof one->first_grad);
        assert_memory_equal(more->weights, one->weights, sizeof one->weights);
        assert_memory_equal(more->grad_norm, one->grad_norm, sizeof one->grad_norm);
        run_free(more);
    }
    run_free(one);
    harness_teardown(&h);
}

/* Threads and processes, which meet in other orders. */
static void a_run_repeats_bit_for_bit(void **state)
{
    for (int zero = 0; zero <= 2; zero += 2) {
        struct run *threads = run_new(STEPS), *processes = run_new(STEPS);
        struct hd_job job;
        struct harness h;

        harness_setup(&h, 20000);
        job = job_of(&h, "llama", 4, zero);
        job.micro_batch = 1;
        job.zero_shard = zero ? 2 : 0;
        run_threads(job, 4, threads);
        run_processes(job, 4, processes);
        assert_memory_equal(processes->state_hash, threads->state_hash, sizeof threads->state_hash);
        assert_memory_equal(processes->loss, threads->loss, sizeof threads->loss);
        run_free(threads);
        run_free(processes);
        harness_teardown(&h);
    }
}

/* ---- bytes ---- */

static int64_t up(int64_t count, int64_t to)
{
    return (count + to - 1) / to * to;
}

/* Elements of all parts: as they are, and as whole shards on P ranks. */
struct sizes {
    int64_t real, shards;
};

static struct sizes sizes_of(const struct hd_job *job, int P)
{
    struct sizes sizes = {0};
    struct hd_rank_program l;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    run_layout(job, &(struct hd_rank_program_options){0}, &arena, &l);
    for (int i = 0; i < l.registry.bucket_count; i++) {
        const int64_t n = l.registry.buckets[i].count;

        sizes.real += n;
        sizes.shards += up((n + P - 1) / P, HD_GRAD_CHUNK) * P;
    }
    hd_arena_done(&arena);
    return sizes;
}

/* Two bytes an element. Of n elements each of P ranks gets P - 1 terms of its n / P sums: 2 (P - 1)
 * n bytes in all; an all-reduce sends as many sums back. In blocks of two of four ranks, two blocks
 * scatter, and two pairs all-reduce a half each in the update. */
static void a_step_sends_two_bytes_for_an_element(void **state)
{
    enum { M = 2 };
    struct harness h;

    harness_setup(&h, 20000);
    for (int zero = 0; zero <= 3; zero++)
        for (int P = 4; P >= 2; P -= 2) { /* a block */
            struct hd_job job = job_of(&h, "llama", 4, zero);
            struct traffic traffic = {0};
            struct sizes n;
            int64_t scattered, summed;

            if (!zero && P < 4)
                continue;
            job.zero_shard = P < 4 ? P : 0;
            job.micro_batch = 1;
            job.tie_embeddings = false;
            n = sizes_of(&job, P);
            scattered = zero ? 2 * (P - 1) * n.shards * (4 / P) * (zero > 1 ? M : 1) : 0;
            summed = zero ? 0 : 2 * 2 * (4 - 1) * n.real;
            traffic_count(&job, &traffic);
            assert_int_equal(
                traffic_moved(&traffic, 4, HD_GROUP_ZERO_SHARD, HD_COMM_REDUCE_SCATTER), scattered);
            assert_int_equal(traffic_moved(&traffic, 4, HD_GROUP_DP_CP, HD_COMM_ALL_REDUCE),
                             summed);
            assert_int_equal(
                traffic_moved(&traffic, 4, HD_GROUP_ZERO_REPLICATE, HD_COMM_ALL_REDUCE),
                P < 4 ? 2 * 2 * n.real : 0);
            traffic_check_dry(&traffic, &job);
        }
    harness_teardown(&h);
}

/* ---- memory ---- */

static int unit_of_wire(const struct hd_rank_program *l, const struct hd_node *node)
{
    for (int k = 0; k < hd_node_operand_count(node); k++)
        if (node->operands[k].store && node->operands[k].store->kind == HD_STORE_WIRE)
            return l->registry.buckets[node->operands[k].store->bucket].unit;
    return -1;
}

/* One unit's gradient is under way at a time, and has the backward of the next unit to arrive: the
 * next one to be rounded comes after nodes of that unit, but that the embedding has one alone. */
static void one_unit_is_under_way_beside_the_next_ones_backward(void **state)
{
    struct harness h;

    harness_setup(&h, 20000);
    for (int zero = 0; zero <= 3; zero++) {
        struct hd_job job = job_of(&h, "llama", 2, zero);
        const struct hd_program *p;
        struct hd_arena arena;
        struct hd_rank_program l;
        int under_way = -1, changes = 0, since = 0;

        job.layers = 4;
        hd_arena_init(&arena, 0);
        run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &l);
        p = &l.train[0]->program[HD_CALL_B];
        for (int i = 0; i < p->count; i++) {
            const int unit = unit_of_wire(&l, p->nodes[i]);

            since += !p->nodes[i]->is_comm;
            if (unit < 0 || unit == under_way)
                continue;
            assert_true(unit < under_way || under_way < 0); /* backward, and never back to one */
            assert_true(changes == 0 || unit == l.model.unit_embedding || since > 5);
            under_way = unit;
            changes++;
            since = 0;
        }
        assert_true(changes >= 4 + 1); /* blocks and embedding */
        hd_arena_done(&arena);
    }
    harness_teardown(&h);
}

/* ---- what is not finite ---- */

/* 3.4e38 is finite in fp32, and rounds to infinity in bf16, whose largest number is 3.39e38. */
static void make_large(void *context, const struct hd_launch_event *event)
{
    struct watched *w = context;
    const struct hd_registry *r = &hd_trainer_rank_program(w->trainer)->registry;
    const struct hd_store *bucket = rounded_bucket(event->node);

    for (int i = 0; bucket && i < r->param_count; i++)
        if (r->params[i].bucket == bucket->bucket && strstr(r->params[i].name, "blocks.1.mlp.up")) {
            float *grad = harness_take(w->trainer, i, HD_STATE_GRAD);

            grad[0] = 3.4e38f;
            harness_put(w->trainer, i, HD_STATE_GRAD, grad);
        }
}

struct overflow {
    bool skipped;
    char text[HD_NONFINITE_TEXT];
};

static enum hd_status overflow(struct harness_rank *r)
{
    struct overflow *found = r->context;
    struct watched *w = &watched[r->rank];
    struct hd_step_result result = {0};
    char text[HD_NONFINITE_TEXT];
    enum hd_status st = harness_trainer(r, &w->trainer);

    if (st)
        return st;
    if (r->rank == 1)
        hd_runner_observe(hd_trainer_runner(w->trainer), make_large, w);
    st = hd_trainer_step(w->trainer, 0, &result);
    if (!st)
        st = hd_trainer_find_nonfinite(w->trainer, text);
    if (!st && r->rank == 0) {
        found->skipped = result.skipped;
        memcpy(found->text, text, sizeof text);
    }
    hd_trainer_free(w->trainer);
    return st;
}

static void a_gradient_beyond_bf16_is_named(void **state)
{
    struct overflow found = {0};
    struct hd_job job;
    struct harness h;

    harness_setup(&h, 20000);
    job = job_of(&h, "llama", 2, 0);
    if (harness_threads(&job, 2, &found, overflow))
        fail_msg("%s", hd_err_message());
    assert_true(found.skipped);
    assert_string_equal(found.text, "blocks.1.mlp.up.weight[0, 0] is infinite on rank 0");
    harness_teardown(&h);
}

RUN_CASES()
