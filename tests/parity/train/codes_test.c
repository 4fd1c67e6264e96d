/* codes: training beside matrices that are kept as codes (model.quantization). The adapter trains
 * and the codes keep every bit; the loss is near that of plain weights; what cannot be is refused
 * by name. (Every layout, with the same bits: the tuned models of the grid. Bytes and values:
 * unit/base/quant_test. Products: unit/kernels/encoded_test. Derivatives: gradient_test.)
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "compare.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

enum { STEPS = 4 };

struct coded {
    const char *family, *weights, *precision;
    int dp, tp, pp, cp, ep, zero;
    const char *recompute;
};

/* Heads of 32 and a feed-forward layer of 128, so that tp = 2 leaves whole blocks of 64. */
static struct hd_job job_of(const struct harness *h, const struct coded *c)
{
    struct hd_job job = harness_job(h, c->family, c->dp);
    const bool experts = strcmp(c->family, "mixtral") == 0;

    job.head_width = 32;
    job.ffn_hidden = experts ? 64 : 128; /* of each expert */
    job.model_weights = hd_job_find_word(hd_job_model_weights_words, c->weights);
    job.precision = hd_job_find_word(hd_job_precision_words, c->precision);
    job.adapter = HD_JOB_ADAPTER_LORA;
    job.adapter_targets = job_text("%s", experts ? "q_proj,v_proj,o_proj" : "all-linear");
    job.adapter_also = "norms";
    job.adapter_rank = 4;
    job.adapter_alpha = 6;
    job.adapter_b_lr = 4;
    job.tp = c->tp ? c->tp : 1;
    job.pp = c->pp ? c->pp : 1;
    job.cp = c->cp ? c->cp : 1;
    job.ep = c->ep ? c->ep : 1;
    job.zero = c->zero;
    (void)snprintf(job.schedule, sizeof job.schedule, "%s", c->pp < 2 ? "none" : "1f1b");
    if (c->recompute)
        (void)snprintf(job.recompute, sizeof job.recompute, "%s", c->recompute);
    job.micro_batch = job.global_batch / c->dp / 2;
    return job;
}

struct compared {
    const struct run *run;
    int codes; /* parameters in codes, found */
};

static void check_moved(const struct hd_param *p, int64_t first, void *context)
{
    struct compared *c = context;
    const size_t bytes = (size_t)param_elements(p) * sizeof(float);

    if ((memcmp(c->run->initial + first, c->run->weights + first, bytes) == 0) == p->trainable)
        fail_msg("%s, which %s", p->name,
                 p->trainable ? "trains, is as it was" : "is frozen, moved");
    c->codes += p->quant != HD_QUANT_NONE;
}

/* Goal: what is in codes is what should be, keeps its bits, and is near the plain weights. Method:
 * counts by hand: two layers of seven matrices, of six for gpt2; those of the experts are one each.
 * The loss is a log of 256 at first: 3% of it is far more than codes of 8 bits move it. */
static void the_adapter_trains_beside_codes(void **state)
{
    static const struct {
        struct coded c;
        int codes;
    } cases[] = {
        {{"llama", "nf4", "fp32", .dp = 1}, 14},   {{"llama", "nf4", "bf16", .dp = 1}, 14},
        {{"llama", "int8", "bf16", .dp = 1}, 14},  {{"llama", "fp8", "fp16", .dp = 1}, 14},
        {{"gpt2", "nf4", "bf16", .dp = 1}, 12},    {{"qwen3", "nf4", "fp32", .dp = 1}, 14},
        {{"mixtral", "nf4", "bf16", .dp = 1}, 14}, {{"mixtral", "int8", "fp32", .dp = 1}, 14}};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct coded plain = cases[i].c;
        const struct hd_job job = job_of(&h, &cases[i].c);
        struct run *run = run_new(STEPS), *other = run_new(STEPS);
        struct compared c = {run, 0};

        plain.weights = "plain";
        run_threads(job, 1, run);
        run_threads(job_of(&h, &plain), 1, other);
        (void)printf("%s %s %s: loss %.5f, plain %.5f\n", cases[i].c.family, cases[i].c.weights,
                     cases[i].c.precision, run->loss[STEPS - 1], other->loss[STEPS - 1]);
        run_for_params(&job, check_moved, &c);
        assert_int_equal(c.codes, cases[i].codes);
        for (int s = 0; s < STEPS; s++)
            assert_true(fabs(run->loss[s] - other->loss[s]) < 0.03 * other->loss[s]);
        assert_true(run->loss[0] != other->loss[0]); /* they are other weights */
        run_free(run);
        run_free(other);
    }
    harness_teardown(&h);
}

/* Goal: codes are made again as they were, and are not in a checkpoint; layouts read each other's.
 */
static void a_checkpoint_without_codes_is_resumed_bit_for_bit(void **state)
{
    static const struct coded one = {"llama", "nf4", "bf16", .dp = 1};
    static const struct coded two = {"llama", "nf4", "bf16", .dp = 1, .tp = 2};
    struct run *saving = run_new(2), *loading = run_new(2), *crossing = run_new(0);
    struct hd_ckpt *ckpt = NULL;
    struct hd_saved saved;
    struct harness h;
    struct hd_job job, other;

    harness_setup(&h, 20000);
    job = job_of(&h, &one);
    other = job_of(&h, &two);
    run_save(&job, 2, saving, &saved);
    run_load(&job, &saved, loading);
    run_load(&other, &saved, crossing);
    run_compare_state(saving, loading);
    run_compare_state(saving, crossing);
    for (int i = 0; i < 2; i++)
        assert_true(saving->loss[i] == loading->loss[i] && saving->loss[i] > 0);
    assert_int_equal(hd_ckpt_open(saved.path, &ckpt), HD_OK);
    assert_null(hd_ckpt_find_tensor(ckpt, "blocks.0.attention.q.weight"));
    assert_non_null(hd_ckpt_find_tensor(ckpt, "blocks.0.attention.q.lora_b"));
    assert_non_null(hd_ckpt_find_tensor(ckpt, "embedding.weight"));
    hd_ckpt_close(ckpt);
    run_free(saving);
    run_free(loading);
    run_free(crossing);
    harness_teardown(&h);
}

static enum hd_status lay_out(const struct hd_job *job, struct hd_arena *arena,
                              struct hd_registry *registry)
{
    struct hd_mesh mesh;
    struct hd_model_config config;
    struct hd_model model;
    enum hd_status st = hd_model_config_from_job(job, &config);

    if (!st)
        st = hd_mesh_init(
            &mesh, &(struct hd_mesh_sizes){.tp = (int32_t)job->tp,
                                           .kv_replica = hd_model_kv_replica(&config, job->tp)});
    if (st)
        return st;
    hd_registry_init(registry, arena, &mesh, 0);
    registry->quant = hd_rank_program_quant(job);
    st = hd_model_declare(&config, registry, arena, &model);
    return st ? st : hd_registry_finish(registry, HD_BF16, true);
}

/* Goal: an impossible choice is refused with the choices that exist. */
static void what_cannot_be_is_refused_by_name(void **state)
{
    static const struct {
        struct coded c;
        const char *only, *message;
    } wrong[] = {
        {{"llama", "nf4", "bf16", .dp = 1},
         "all",
         "model.quantization: nf4 does not go with blocks.0.attention.q.weight, which trains"},
        {{"llama", "int8", "bf16", .dp = 1},
         "last:1",
         "model.quantization: int8 does not go with blocks.1.attention.q.weight, which trains"},
        /* attention.out is [32, 128]: a half of its columns is a block, a quarter half of one */
        {{"llama", "nf4", "bf16", .dp = 1, .tp = 4},
         "norms",
         "parallel.tp: 4 cuts through a block of 64 weights of blocks.0.attention.out.weight; with "
         "model.quantization: nf4 its 128 columns can be shared by 1, 2 ranks: use such a tp, or "
         "int8"},
    };
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct hd_job job = job_of(&h, &wrong[i].c);
        struct hd_registry r;
        struct hd_arena arena;

        job.adapter = HD_JOB_ADAPTER_NONE;
        job.only = job_text("%s", wrong[i].only);
        hd_arena_init(&arena, 0);
        assert_int_not_equal(lay_out(&job, &arena, &r), HD_OK);
        if (!strstr(hd_err_message(), wrong[i].message))
            fail_msg("%s", hd_err_message());
        hd_arena_done(&arena);
    }
    harness_teardown(&h);
}

/* Goal: a frozen matrix has its codes and nothing else. Method: the state of a block's coded part
 * by hand, at tp = 1 and 2: codes of 4 bits, a byte for 64 weights, and 1 + 256 + 1 floats, 1,032
 * bytes, each rounded up to 64. q [128, 32]: 2,048 + 64 + 1,088; k and v [64, 32]: 1,024 + 64 (32
 * scales) + 1,088; out, gate, up and down have as many as q. A half of them has half the codes, and
 * 32, 16 and 32 scales. */
static void codes_are_all_that_is_kept(void **state)
{
    static const int64_t want[] = {5 * (2048 + 64 + 1088) + 2 * (1024 + 64 + 1088),
                                   5 * (1024 + 64 + 1088) + 2 * (512 + 64 + 1088)};
    struct harness h;

    harness_setup(&h, 20000);
    for (int tp = 1; tp <= 2; tp++) {
        const struct coded c = {"llama", "nf4", "bf16", .dp = 1, .tp = tp};
        struct hd_job job = job_of(&h, &c);
        struct hd_registry r;
        struct hd_arena arena;
        int found = 0;

        hd_arena_init(&arena, 0);
        assert_int_equal(lay_out(&job, &arena, &r), HD_OK);
        for (int i = 0; i < r.bucket_count; i++) {
            const struct hd_bucket *p = &r.buckets[i];

            if (!p->quant)
                continue;
            found++;
            assert_int_equal(hd_bucket_state_bytes(&r, p, HD_STATE_WEIGHT), want[tp - 1]);
            assert_true(p->offset[HD_STATE_GRAD] < 0 && p->offset[HD_STATE_MOMENT1] < 0);
            assert_int_equal(p->offset[HD_STATE_COPY], p->offset[HD_STATE_WEIGHT]);
        }
        assert_int_equal(found, 2);
        hd_arena_done(&arena);
    }
    harness_teardown(&h);
}

RUN_CASES()
