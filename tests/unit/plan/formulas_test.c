/* The planner beside published formulas: state of ZeRO, activations of a block, bubble of a
 * pipeline. Where the engine keeps something else, the term is named here. */
#include <math.h>
#include <stdio.h>

#include "fixture.h"
#include "tests/program/test.h"

enum { L = 4, HIDDEN = 1024, HEADS = 16, CONTEXT = 1024 };

/* A GPT with all layout members set. */
static struct hd_job gpt(void)
{
    struct hd_job job = priced_job(L, HIDDEN, 8);

    job.heads = job.kv_heads = HEADS;
    job.head_width = HIDDEN / HEADS;
    job.ffn_hidden = 4 * HIDDEN;
    job.context = CONTEXT;
    job.vocab = 2048;
    job.tie_embeddings = job.qkv_bias = job.out_bias = job.mlp_bias = true;
    job.dropout_attention = job.dropout_residual = 0.1;
    job.pp = job.cp = job.ep = job.dp = job.tp = job.micro_batch = job.virtual_stages = 1;
    job.zero = job.sequence = 0;
    job.family = "gpt2";
    job.positions = HD_JOB_POSITIONS_LEARNED;
    priced_set(job.recompute, "none");
    priced_set(job.schedule, "none");
    job.cp_exchange = HD_JOB_CP_EXCHANGE_RING;
    return job;
}

/* ---- state ---- */

/* Rajbhandari et al. 2020: of each parameter 2 bytes of weights, 2 of gradients and K = 12 of the
 * optimizer; stage 1 shares K among N ranks, stage 2 the gradients, too, stage 3 all. Here
 * gradients are fp32 sums: 4 bytes. In fp32 weights are the optimizer's own: 4, 4 and K = 8.
 * Buckets of ZeRO 2 and 3 are work, no state. */
static double published_state(bool keep_fp32, int64_t zero, double ranks)
{
    const double weights = keep_fp32 ? 4 : 2, gradients = 2 + 2, K = keep_fp32 ? 8 : 12;

    return weights / (zero >= 3 ? ranks : 1) + gradients / (zero >= 2 ? ranks : 1) +
           K / (zero >= 1 ? ranks : 1);
}

static void compare_state(bool keep_fp32, int64_t zero, int64_t ranks)
{
    const struct hd_cluster c = priced_cluster(1, ranks, 4e11, 1e9);
    const double wanted = published_state(keep_fp32, zero, (double)ranks);
    struct hd_job job = gpt();
    double most = 0, mean = 0;
    struct hd_arena arena;
    struct hd_plan plan;

    job.dp = ranks;
    job.zero = zero;
    job.precision = keep_fp32 ? HD_JOB_PRECISION_FP32 : HD_JOB_PRECISION_BF16;
    hd_arena_init(&arena, 0);
    if (hd_plan_build(&job, &c.traits, &arena, &plan))
        fail_msg("%s", hd_err_message());
    for (int32_t i = 0; i < plan.class_count; i++) {
        const struct hd_memory *m = &plan.classes[i].memory;
        const double bytes =
            (double)(m->weights + m->copies + m->gradients + m->moments) / (double)plan.parameters;

        most = bytes > most ? bytes : most;
        mean += bytes * plan.classes[i].ranks / (double)ranks;
    }
    /* shards are rounded up, so the last rank may have less */
    if (fabs(most - wanted) > 0.005 * wanted || fabs(mean - wanted) > 0.005 * wanted)
        fail_msg("%s, zero %d of %d ranks: at most %g, on average %g bytes per parameter, not %g",
                 keep_fp32 ? "fp32" : "bf16", (int)zero, (int)ranks, most, mean, wanted);
    hd_arena_done(&arena);
}

static void state_is_that_of_zero(void **state)
{
    for (int keep_fp32 = 0; keep_fp32 < 2; keep_fp32++)
        for (int64_t zero = 0; zero <= 3; zero++)
            for (int64_t ranks = 2; ranks <= 8; ranks *= 2)
                compare_state(keep_fp32, zero, ranks);
}

/* Dettmers et al. 2023: nf4 with double quantisation takes 4 + 8/64 + 32/(64 * 256) bits a weight.
 * Llama-3.1-8B has in 32 layers matrices of 4096 x (4096 + 1024 + 1024 + 4096 + 3 * 14336) weights,
 * embedding and head of 128256 x 4096 in bf16, and with rank 16 beside every matrix 16 (in + out)
 * factors of 18 bytes each: in + out of q and out are 8192, of k and v 5120, of the others 18432.
 * Norms are next to nothing, and so is what a record has beside: less than 0.1%. Magnitudes of rows
 * (DoRA) are in fp32, with gradient and two moments, one for each output. */
static void a_base_of_nf4_takes_its_bits(void **state)
{
    const double weights = 32.0 * 4096 * (4096 + 1024 + 1024 + 4096 + 3 * 14336.0);
    const double matrices = weights * (4 + 8.0 / 64 + 32.0 / (64 * 256)) / 8;
    const double tables = 2 * 128256.0 * 4096 * 2;
    const double adapter = 18 * 32 * 16 * (2 * 8192 + 2 * 5120 + 3 * 18432.0);
    const double wanted = matrices + tables + adapter;
    const double magnitudes = 16 * 32 * (2 * 4096 + 2 * 1024 + 2 * 14336 + 4096.0);
    const struct hd_cluster c = priced_cluster(1, 1, 4e11, 1e9);
    struct hd_job job = priced_job(32, 4096, 1);
    const struct hd_memory *m;
    struct hd_arena arena;
    struct hd_plan plan;
    double bytes;

    job.heads = 32;
    job.kv_heads = 8;
    job.head_width = 128;
    job.ffn_hidden = 14336;
    job.context = 128;
    job.vocab = 128256;
    job.global_batch = 1;
    job.pp = job.cp = job.ep = job.dp = job.tp = job.micro_batch = job.virtual_stages = 1;
    job.zero = job.sequence = 0;
    job.adapter_rank = 16;
    job.adapter_alpha = 32;
    job.adapter_b_lr = 1;
    job.precision = HD_JOB_PRECISION_BF16;
    priced_set(job.recompute, "none");
    priced_set(job.schedule, "none");
    job.cp_exchange = HD_JOB_CP_EXCHANGE_RING;
    job.adapter = HD_JOB_ADAPTER_LORA;
    job.adapter_targets = "all-linear";
    job.model_weights = HD_JOB_MODEL_WEIGHTS_NF4;
    hd_arena_init(&arena, 0);
    if (hd_plan_build(&job, &c.traits, &arena, &plan))
        fail_msg("%s", hd_err_message());
    m = &plan.classes[0].memory;
    bytes = (double)(m->weights + m->copies + m->gradients + m->moments);
    assert_true(fabs(matrices - 3.60e9) < 0.005e9 && fabs(tables - 2.10e9) < 0.005e9 &&
                fabs(adapter - 0.755e9) < 0.005e9);
    if (fabs(bytes - wanted) > 0.001 * wanted)
        fail_msg("%.4f GB, not %.4f", bytes / 1e9, wanted / 1e9);
    hd_arena_done(&arena);
    bytes = -bytes;
    job.adapter_dora = true;
    hd_arena_init(&arena, 0);
    if (hd_plan_build(&job, &c.traits, &arena, &plan))
        fail_msg("%s", hd_err_message());
    m = &plan.classes[0].memory;
    bytes += (double)(m->weights + m->copies + m->gradients + m->moments);
    if (fabs(bytes - magnitudes) > 0.001 * magnitudes)
        fail_msg("%.0f bytes of magnitudes, not %.0f", bytes, magnitudes);
    hd_arena_done(&arena);
}

/* ---- activations ---- */

/* Korthikanti et al. 2022, table 2 and section 4: what a block keeps, in bytes per s b h and per
 * a s^2 b, and what tp splits even without sequence parallelism. Here `none` and `selective` are
 * those of lib/program/recompute.c; neither keeps what is of s^2: the attention kernels hold a tile
 * of scores at a time. */
static const struct term {
    const char *name;
    double sbh, as2b;
    bool tp;              /* split without sequence parallelism */
    bool none, selective; /* kept here */
} terms[] = {{"input of the first norm", 2, 0, false, true, true},
             {"input of q, k and v", 2, 0, false, true, false}, /* selective: the norm again */
             {"q and k", 4, 0, true, true, true},
             {"softmax", 0, 2, true, false, false},
             {"mask of attention's dropout", 0, 1, true, false, false},
             {"attention's dropout", 0, 2, true, false, false},
             {"v", 2, 0, true, true, true},
             {"input of the projection", 2, 0, true, true, true},
             {"mask of the first dropout", 1, 0, false, false, false}, /* drawn again by place */
             {"input of the second norm", 2, 0, false, true, true},
             {"input of the first product", 2, 0, false, true, false}, /* selective: the norm */
             {"input of GELU", 8, 0, true, true, true},
             {"input of the second product", 8, 0, true, true, true}, /* GELU is an epilogue */
             {"mask of the second dropout", 1, 0, false, false, false}};

enum kept { PUBLISHED, NONE, SELECTIVE };

/* Bytes of the terms, in s b h. */
static double terms_of(enum kept kept, double tp, bool sequence, double scores_per_sbh)
{
    double sum = 0;

    for (size_t i = 0; i < sizeof terms / sizeof terms[0]; i++) {
        const struct term *t = &terms[i];

        if (kept == PUBLISHED || (kept == NONE ? t->none : t->selective))
            sum += (t->sbh + t->as2b * scores_per_sbh) / (t->tp || sequence ? tp : 1);
    }
    return sum;
}

/* The table says what the paper's formulas say. */
static void the_terms_add_up_to_the_formulas(void **state)
{
    for (double t = 1; t <= 8; t *= 2)
        for (double r = 0; r <= 80; r += 16) { /* r = a s / h */
            assert_true(fabs(terms_of(PUBLISHED, t, false, r) - (10 + 24 / t + 5 * r / t)) < 1e-9);
            assert_true(fabs(terms_of(PUBLISHED, t, true, r) - (34 + 5 * r) / t) < 1e-9);
        }
}

/* Returns the bytes that the paper leaves out: two fp32 numbers per row of a norm (not with
 * `selective`, which computes them again), one per head and row of attention. In s b h. */
static double statistics(enum kept kept, double tp, bool sequence)
{
    const double norms = kept == NONE ? 2 * 2 * 4.0 / HIDDEN / (sequence ? tp : 1) : 0;

    return norms + 4.0 * HEADS / HIDDEN / tp;
}

static void compare_kept(const char *recompute, int64_t tp, bool sequence, int64_t micro_batch,
                         double wanted)
{
    const struct hd_cluster c = priced_cluster(1, 8, 4e11, 1e9);
    struct hd_job job = gpt();
    struct hd_layer_profiles profiles;
    double kept;

    job.tp = tp;
    job.sequence = sequence;
    job.micro_batch = micro_batch;
    priced_set(job.recompute, recompute);
    if (hd_layer_profiles_blocks(&job, &c, NULL, &profiles))
        fail_msg("%s", hd_err_message());
    kept = (double)profiles.kind[0].block.saved_bytes /
           ((double)CONTEXT * (double)micro_batch * HIDDEN);
    if (fabs(kept - wanted) > 0.002 * wanted)
        fail_msg("%s, tp %d%s, micro-batch %d: a block keeps %g s b h, not %g", recompute, (int)tp,
                 sequence ? ", sequence" : "", (int)micro_batch, kept, wanted);
}

static void a_block_keeps_the_terms_of_its_policy(void **state)
{
    for (int64_t tp = 1; tp <= 8; tp *= 2)
        for (int sequence = 0; sequence <= (tp > 1); sequence++)
            for (int64_t b = 1; b <= 2; b++) {
                const double t = (double)tp;

                compare_kept("none", tp, sequence, b,
                             terms_of(NONE, t, sequence, 0) + statistics(NONE, t, sequence));
                compare_kept("selective", tp, sequence, b,
                             terms_of(SELECTIVE, t, sequence, 0) +
                                 statistics(SELECTIVE, t, sequence));
                /* the input alone, 2 s b h; split with the sequence */
                compare_kept("full", tp, sequence, b, 2 / (sequence ? t : 1));
            }
}

/* ---- the bubble ---- */

enum { F_TIME = 1, B_TIME = 2 }; /* of a chunk */

/* Stages that run their lists of instructions; transfers take no time. */
struct lists {
    const struct hd_schedule *order;
    struct hd_step_plan *plans;
    struct stage_at {
        double clock;
        int32_t next;
        double **slot; /* [stage_io_slots] the time in `sent` of what arrives there; NULL: own */
    } * stages;
    double *sent[2]; /* [chunk, micro-batch] when hidden rows, a gradient for it were sent; -1 */
};

static double *sent_for(struct lists *w, enum hd_call call, int32_t chunk, int32_t micro_batch)
{
    return &w->sent[call == HD_CALL_B][chunk * w->order->micro_batches + micro_batch];
}

/* False: waits for a value that was not sent yet. */
static bool run(struct stage_at *s, const struct hd_instruction *i)
{
    const bool back = i->call == HD_CALL_B;
    const int32_t in = i->slot[back ? HD_SLOT_OUT_GRAD : HD_SLOT_IN];
    const int32_t out = i->slot[back ? HD_SLOT_IN_GRAD : HD_SLOT_OUT];

    if (in >= 0 && s->slot[in]) {
        if (*s->slot[in] < 0)
            return false;
        s->clock = *s->slot[in] > s->clock ? *s->slot[in] : s->clock;
    }
    s->clock += back ? B_TIME : F_TIME;
    if (out >= 0)
        s->slot[out] = NULL;
    return true;
}

static bool step(struct lists *w, int32_t stage)
{
    struct stage_at *s = &w->stages[stage];
    const struct hd_instruction *i = &w->plans[stage].list[s->next];
    const bool back = i->call == HD_CALL_B;

    if (i->kind == HD_DO_RUN && !run(s, i))
        return false;
    if (i->kind == HD_DO_SEND)
        *sent_for(w, i->call, i->chunk + (back ? -1 : 1), i->micro_batch) = s->clock;
    if (i->kind == HD_DO_RECEIVE)
        s->slot[i->slot[back ? HD_SLOT_OUT_GRAD : HD_SLOT_IN]] =
            sent_for(w, i->call, i->chunk, i->micro_batch);
    s->next++;
    return true;
}

/* When the last stage ends. */
static double walk_lists(const struct hd_schedule *order, struct hd_arena *arena)
{
    const int32_t stages = order->pipeline.stages;
    const int32_t values = order->pipeline.chunks * order->micro_batches;
    struct lists w = {.order = order};
    bool moved = true;
    double end = 0;

    assert_int_equal(hd_schedule_check(order, arena, &w.plans), HD_OK);
    w.stages = hd_arena_array(arena, (size_t)stages, sizeof *w.stages);
    for (int back = 0; back < 2; back++) {
        w.sent[back] = hd_arena_array(arena, (size_t)values, sizeof(double));
        for (int32_t i = 0; i < values; i++)
            w.sent[back][i] = -1;
    }
    for (int32_t s = 0; s < stages; s++)
        w.stages[s].slot =
            hd_arena_array(arena, (size_t)w.plans[s].stage_io_slots + 1, sizeof *w.stages[s].slot);
    while (moved) {
        moved = false;
        for (int32_t s = 0; s < stages; s++)
            while (w.stages[s].next < w.plans[s].count && step(&w, s))
                moved = true;
    }
    for (int32_t s = 0; s < stages; s++) {
        assert_int_equal(w.stages[s].next, w.plans[s].count);
        end = w.stages[s].clock > end ? w.stages[s].clock : end;
    }
    return end;
}

/* The planner's own walk of the same order: one block in each chunk, ends and links are free. */
static double walk_prices(const struct hd_schedule *order, struct hd_arena *arena)
{
    struct hd_units *units = hd_arena_array(arena, (size_t)order->pipeline.chunks, sizeof *units);
    struct hd_cluster c = priced_cluster(1, order->pipeline.stages, 1e18, 1e18);
    struct hd_job job = gpt();
    struct hd_layer_profiles profiles = {.stage_io_bytes = 0};
    struct hd_model_config config;
    struct hd_step_cost price;

    for (int i = 0; i < c.level_count; i++)
        c.levels[i].latency_s = 0;
    job.layers = order->pipeline.chunks;
    assert_int_equal(hd_model_config_from_job(&job, &config), HD_OK);
    for (int32_t i = 0; i < order->pipeline.chunks; i++)
        units[i] = (struct hd_units){HD_UNIT_FIRST_BLOCK + i, HD_UNIT_FIRST_BLOCK + i + 1};
    for (int last = 0; last < 2; last++) {
        profiles.kind[0].block.time[HD_LAYER_PROFILE_F][last].run = F_TIME;
        profiles.kind[0].block.time[HD_LAYER_PROFILE_B][last].run = B_TIME;
    }
    assert_int_equal(hd_step_cost_of_layout(&profiles,
                                            &(struct hd_step_cost_layout){
                                                order->pipeline, units, order, &config, 1, 0, NULL},
                                            &c, arena, &price),
                     HD_OK);
    return price.step_s;
}

/* Narayanan et al. 2021: idle beside ideal time is (p - 1) / (v m), if p divides m. */
static void compare_bubble(int32_t p, int32_t v, int32_t m)
{
    const struct hd_pipeline pipeline = {.stages = p, .chunks = p * v};
    const double ideal = (double)m * v * (F_TIME + B_TIME);
    const double wanted = ideal * (1 + (double)(p - 1) / (v * m));
    struct hd_arena arena;
    struct hd_schedule order;
    double lists, prices;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_schedule_build(v > 1 ? HD_SCHEDULE_INTERLEAVED : HD_SCHEDULE_1F1B,
                                       &pipeline, m, false, &arena, &order),
                     HD_OK);
    lists = walk_lists(&order, &arena);
    prices = walk_prices(&order, &arena);
    if (fabs(lists - wanted) > 1e-9 * wanted || fabs(prices - wanted) > 1e-9 * wanted)
        fail_msg("%d stages of %d chunks, %d micro-batches: %g by the formula, %g by the lists, %g "
                 "by the planner",
                 (int)p, (int)v, (int)m, wanted, lists, prices);
    hd_arena_done(&arena);
}

static void the_bubble_is_that_of_the_formula(void **state)
{
    for (int32_t p = 2; p <= 8; p++)
        for (int32_t v = 1; v <= 4; v++)
            for (int32_t rounds = 1; rounds <= 4; rounds++)
                compare_bubble(p, v, p * rounds);
}

RUN_CASES()
