/* train.qk_clip: after a step whose scores exceed the threshold, those of the next step are at it, for
 * every form of attention, optimizer and layout.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runs.h"
#include "tests/program/test.h"

#define THRESHOLD 1e-3 /* far below the scores of harness_trained */
#define RATE      1e-12

struct layout {
    const char *text, *family, *precision, *recompute;
    enum hd_job_optimizer optimizer;
    int dp, tp, pp, cp, zero, micro_batch;
    bool offload, gathers; /* offload: changes something on a device alone */
};

/* Groups of two heads in layouts in which ranks share a group, or a shard ends within a head; heads
 * without groups, with biases; latents with and without a latent of queries; sums of many
 * micro-batches; weights whose copies are bf16, on the device and on the host. */
static const struct layout layouts[] = {
    {.text = "one rank", .family = "llama"},
    {.text = "tp=4 dp=2 zero=1", .family = "llama", .tp = 4, .dp = 2, .zero = 1},
    {.text = "micro_batch=1 recompute", .family = "llama", .micro_batch = 1, .recompute = "full"},
    {.text = "cp=2 zero=3", .family = "llama", .cp = 2, .dp = 2, .zero = 3},
    {.text = "cp=2 all_gather", .family = "qwen2", .cp = 2, .gathers = true},
    {.text = "pp=2 dp=2 zero=2", .family = "gpt2", .pp = 2, .dp = 2, .zero = 2},
    {.text = "tp=2", .family = "gpt2", .tp = 2},
    {.text = "one rank", .family = "deepseek_v2"},
    {.text = "tp=2 dp=2 zero=1", .family = "deepseek_v3", .tp = 2, .dp = 2, .zero = 1},
    {.text = "bf16 zero=2", .family = "llama", .precision = "bf16", .dp = 2, .zero = 2},
    {.text = "bf16 zero=1",
     .family = "gpt2",
     .precision = "bf16",
     .dp = 2,
     .zero = 1,
     .offload = true},
    {.text = "lion", .family = "qwen2", .optimizer = HD_JOB_OPTIMIZER_LION},
};

static struct hd_job job_of(const struct harness *h, const struct layout *l)
{
    struct hd_job job = harness_job(h, l->family, l->dp ? l->dp : 1);

    job.val_split = 0;
    job.lr_peak = job.lr_min = RATE;
    job.qk_clip_threshold = THRESHOLD;
    job.qk_clip_alpha = 0.3;
    job.optimizer = l->optimizer ? l->optimizer : HD_JOB_OPTIMIZER_MUON;
    job.tp = l->tp ? l->tp : 1;
    job.pp = l->pp ? l->pp : 1;
    job.cp = l->cp ? l->cp : 1;
    job.zero = l->zero;
    job.micro_batch = l->micro_batch ? l->micro_batch : 2;
    if (l->precision)
        job.precision = hd_job_find_word(hd_job_precision_words, l->precision);
    if (l->recompute)
        (void)snprintf(job.recompute, sizeof job.recompute, "%s", l->recompute);
    if (l->offload)
        job.offload = HD_JOB_OFFLOAD_OPTIMIZER;
    if (l->offload)
        job.optimizer = HD_JOB_OPTIMIZER_ADAMW;
    if (l->gathers)
        job.cp_exchange = HD_JOB_CP_EXCHANGE_ALL_GATHER;
    if (job.pp > 1)
        (void)snprintf(job.schedule, sizeof job.schedule, "1f1b");
    return job;
}

/* Makes what attention adds to rows zero: then the queries and keys of later blocks do not depend on
 * the scores of earlier ones. */
static void disconnect_attention(struct hd_trainer *t)
{
    const struct hd_registry *r = &hd_trainer_rank_program(t)->registry;

    for (int i = 0; i < r->param_count; i++)
        if (strstr(r->params[i].name, "attention.out.weight"))
            harness_put(t, i, HD_STATE_WEIGHT, calloc((size_t)r->params[i].count, sizeof(float)));
}

/* Returns HD_INTERNAL unless both steps are as the test below says. */
static enum hd_status check_steps(struct harness_rank *r)
{
    const bool bf16 = r->job->precision == HD_JOB_PRECISION_BF16;
    const double bound = bf16 ? 0.03 : 1e-5;
    struct hd_step_result first, next;
    struct hd_trainer *t;
    enum hd_status st = harness_trained(r, &t);

    if (!st) {
        disconnect_attention(t);
        if (bf16) /* the copies get the noise, too */
            st = hd_trainer_step(t, 0, &first);
    }
    if (!st)
        st = hd_trainer_step(t, 0, &first);
    if (!st)
        st = hd_trainer_step(t, 0, &next);
    if (!st && (first.max_attention_logit < 5 * THRESHOLD ||
                first.clipped_heads != r->job->layers * r->job->heads ||
                !(fabs(next.max_attention_logit / THRESHOLD - 1) < bound)))
        st = hd_err(HD_INTERNAL, "%lld heads clipped at %g, then %.9g",
                    (long long)first.clipped_heads, first.max_attention_logit,
                    next.max_attention_logit);
    hd_trainer_free(t);
    return st;
}

/* Goal: the factor of each head is that of the largest score of all tokens, and reaches masters,
 * copies and biases of its queries and keys, and nothing else of them. Method: all steps have one
 * batch, and a rate that changes no weight. The trained weights have noise, so all heads are far above
 * the threshold, and a score is linear in the product of the two factors: the largest one of the next
 * step is the threshold itself. */
static void the_next_scores_are_at_the_threshold(void **state)
{
    struct harness h;

    harness_setup(&h, 8 * 16 + 1);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct hd_job job = job_of(&h, &layouts[i]);

        if (harness_threads(&job, run_world(&job), NULL, check_steps))
            fail_msg("%s %s: %s", layouts[i].family, layouts[i].text, hd_err_message());
    }
    harness_teardown(&h);
}

static int64_t planned_bytes(const struct hd_job *job)
{
    struct hd_rank_program layout;
    struct hd_arena arena;
    int64_t bytes;

    hd_arena_init(&arena, 0);
    run_layout(job, &(struct hd_rank_program_options){0}, &arena, &layout);
    bytes = layout.memory.step_state;
    hd_arena_done(&arena);
    return bytes;
}

/* One number for each of 4 heads of 4 units: embedding, two blocks, head. */
static void scores_take_four_bytes_a_head(void **state)
{
    struct harness h;
    struct hd_job job;
    int64_t with;

    harness_setup(&h, 20000);
    job = job_of(&h, &layouts[0]);
    with = planned_bytes(&job);
    job.qk_clip_threshold = 0;
    assert_int_equal(with - planned_bytes(&job), hd_tensor_align(4 * 4 * 4));
    harness_teardown(&h);
}

RUN_CASES()
