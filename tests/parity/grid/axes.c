#include "axes.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pairs.h"
#include "tests/job_text.h"

/* ---- the table ---- */

static void set_tp(struct hd_job *job, struct hd_rank_program_options *options, int number)
{
    job->tp = number;
}

static void set_sequence(struct hd_job *job, struct hd_rank_program_options *options, int number)
{
    job->sequence = number != 0;
}

static void set_cp(struct hd_job *job, struct hd_rank_program_options *options, int number)
{
    job->cp = number;
}

static void set_exchange(struct hd_job *job, struct hd_rank_program_options *options, int number)
{
    job->cp_exchange = number ? HD_JOB_CP_EXCHANGE_ALL_GATHER : HD_JOB_CP_EXCHANGE_RING;
}

static void set_dp(struct hd_job *job, struct hd_rank_program_options *options, int number)
{
    job->dp = number;
}

static void set_ep(struct hd_job *job, struct hd_rank_program_options *options, int number)
{
    job->ep = number;
}

static void set_pp(struct hd_job *job, struct hd_rank_program_options *options, int number)
{
    job->pp = number;
}

static void set_micro_batches(struct hd_job *job, struct hd_rank_program_options *options,
                              int number)
{
    job->micro_batch = job->global_batch / job->dp / number; /* dp stands before in the table */
}

/* On one stage: all forwards first, and the weight gradients behind all backwards. */
static void set_schedule(struct hd_job *job, struct hd_rank_program_options *options, int number)
{
    const enum hd_schedule_kind schedule = (enum hd_schedule_kind)number;

    options->schedule = schedule;
    options->split_backward = schedule == HD_SCHEDULE_GPIPE;
    if (job->pp == 1)
        return;
    (void)snprintf(job->schedule, sizeof job->schedule, "%s", hd_schedule_name(schedule));
    if (schedule == HD_SCHEDULE_INTERLEAVED || schedule == HD_SCHEDULE_ZB_V)
        job->virtual_stages = 2;
}

static void set_zero(struct hd_job *job, struct hd_rank_program_options *options, int number)
{
    job->zero = number;
}

static void set_shard(struct hd_job *job, struct hd_rank_program_options *options, int number)
{
    job->zero_shard = number;
}

static void set_recompute(struct hd_job *job, struct hd_rank_program_options *options, int number)
{
    static const char *const words[] = {"none", "selective", "full", "full:2"};

    (void)snprintf(job->recompute, sizeof job->recompute, "%s", words[number]);
}

static void set_reduce(struct hd_job *job, struct hd_rank_program_options *options, int number)
{
    job->reduce = number ? HD_JOB_REDUCE_BF16 : HD_JOB_REDUCE_FP32;
}

static void set_offload(struct hd_job *job, struct hd_rank_program_options *options, int number)
{
    job->offload = number ? HD_JOB_OFFLOAD_OPTIMIZER : HD_JOB_OFFLOAD_NONE;
}

/* An adapter trains more than one HD_GRAD_CHUNK in each block, so that ZeRO has shards to share
 * out: of llama 13,000 elements, 8,300 and 8,400. Nothing trains in embedding and head, nor below
 * the first adapter: there backward ends. */
static void set_adapter(struct hd_job *job, struct hd_rank_program_options *options, int number)
{
    enum { LORA = 1, DORA, BOTTLENECK, PREFIX };
    static const char *const words[] = {"none", "lora", "lora", "bottleneck", "prefix"};

    if (!number)
        return;
    if (number == PREFIX && (job->mla_kv_rank || job->conv_width)) /* refused in such models */
        number = BOTTLENECK;
    job->adapter = hd_job_find_word(hd_job_adapter_words, words[number]);
    job->adapter_rank = job->experts ? 4 : 8;
    job->adapter_alpha = 6;
    job->adapter_b_lr = 4;
    job->adapter_width = 130;
    job->adapter_tokens = 33;
    job->adapter_dropout = number == PREFIX ? 0 : 0.2;
    job->adapter_dora = number == DORA;
    if (number == DORA && job->experts) /* experts have no magnitudes */
        job->adapter_targets =
            job_text(job->mla_kv_rank ? "q_a_proj,q_b_proj,kv_a_proj_with_mqa,kv_b_proj,o_proj"
                                      : "q_proj,k_proj,v_proj,o_proj");
    if (number == LORA && strcmp(job->family, "gpt_oss") == 0) /* all-linear leaves stacks out */
        job->adapter_targets = "all-linear,experts.gate_up_proj,experts.down_proj";
}

/* Leaves out keys that the job file refuses beside an objective (lib/spec/objective.c): losses of
 * routers; for DPO, which compares with a reference, and for completions, whose windows depend on the
 * layout, dropout and noise. The loss of completions is one with sums over them. */
static void set_objective(struct hd_job *job, struct hd_rank_program_options *options, int number)
{
    static const char *const words[] = {"next_token", "dpo", "grpo", "reward"};

    if (!number)
        return;
    job->objective = hd_job_find_word(hd_job_objective_words, words[number]);
    job->preference_beta = 0.3;
    job->preference_center = strcmp(words[number], "reward") == 0 ? 0.1 : 0;
    job->balance = job->z_loss = 0;
    job->policy_loss = HD_JOB_POLICY_LOSS_GSPO;
    job->policy_kl = HD_JOB_POLICY_KL_K3;
    job->policy_correction = HD_JOB_POLICY_CORRECTION_MASK_SEQUENCE;
    job->policy_clip_low = job->policy_clip_high = 0.9;
    job->policy_kl_beta = 0.1;
    job->policy_correction_max = 20;
    job->rollout_temperature = 1;
    job->rollout_updates = 2;
    if (strcmp(words[number], "reward") != 0)
        job->dropout_embedding = job->dropout_attention = job->dropout_residual =
            job->adapter_dropout = job->neftune_alpha = 0;
}

static void set_weights(struct hd_job *job, struct hd_rank_program_options *options, int number)
{
    static const char *const words[] = {"plain", "nf4", "int8", "fp8"};

    job->model_weights = hd_job_find_word(hd_job_model_weights_words, words[number]);
}

const struct grid_axis grid_axes[GRID_AXES] = {
    [GRID_TP] = {"tp", 3, {{"1", 1}, {"2", 2}, {"4", 4}}, set_tp, false},
    [GRID_SEQUENCE] = {"sequence", 2, {{"off", 0}, {"on", 1}}, set_sequence, false},
    [GRID_CP] = {"cp", 3, {{"1", 1}, {"2", 2}, {"4", 4}}, set_cp, false},
    [GRID_EXCHANGE] = {"cp_exchange", 2, {{"ring", 0}, {"all_gather", 1}}, set_exchange, false},
    [GRID_DP] = {"dp", 3, {{"1", 1}, {"2", 2}, {"4", 4}}, set_dp, false},
    [GRID_EP] = {"ep", 3, {{"1", 1}, {"2", 2}, {"4", 4}}, set_ep, false},
    [GRID_PP] = {"pp", 3, {{"1", 1}, {"2", 2}, {"4", 4}}, set_pp, false},
    /* of a rank and step */
    [GRID_MICRO_BATCHES] = {"micro_batches", 2, {{"2", 2}, {"1", 1}}, set_micro_batches, false},
    [GRID_SCHEDULE] = {"schedule",
                       5,
                       {{"1f1b", HD_SCHEDULE_1F1B},
                        {"gpipe", HD_SCHEDULE_GPIPE},
                        {"interleaved", HD_SCHEDULE_INTERLEAVED},
                        {"zb-h1", HD_SCHEDULE_ZB_H1},
                        {"zb-v", HD_SCHEDULE_ZB_V}},
                       set_schedule,
                       false},
    [GRID_ZERO] = {"zero", 4, {{"0", 0}, {"1", 1}, {"2", 2}, {"3", 3}}, set_zero, false},
    [GRID_SHARD] = {"zero_shard", 2, {{"all", 0}, {"2", 2}}, set_shard, false},
    [GRID_RECOMPUTE] = {"recompute",
                        4,
                        {{"none", 0}, {"selective", 1}, {"full", 2}, {"full:2", 3}},
                        set_recompute,
                        false},
    [GRID_REDUCE] = {"reduce", 2, {{"fp32", 0}, {"bf16", 1}}, set_reduce, false},
    [GRID_OFFLOAD] = {"offload", 2, {{"none", 0}, {"optimizer", 1}}, set_offload, false},
    [GRID_ADAPTER] = {"adapter",
                      5,
                      {{"none", 0}, {"lora", 1}, {"dora", 2}, {"bottleneck", 3}, {"prefix", 4}},
                      set_adapter,
                      false},
    [GRID_OBJECTIVE] =
        {"objective",
         4,
         {{"next_token", 0}, {"dpo", 1}, {"grpo", 2}, {"reward", 3}},
         set_objective,
         false},
    [GRID_WEIGHTS] =
        {"weights", 4, {{"plain", 0}, {"nf4", 1}, {"int8", 2}, {"fp8", 3}}, set_weights, false},
};

enum {
    OFFLOAD = 1 << GRID_OFFLOAD,
    TUNING = 1 << GRID_ADAPTER | 1 << GRID_OBJECTIVE | 1 << GRID_WEIGHTS,
    ALL_AXES = ((1 << GRID_AXES) - 1) & ~(OFFLOAD | 1 << GRID_REDUCE | TUNING),
    REDUCE = 1 << GRID_REDUCE,          /* one dense model and one with experts have it */
    DENSE = ALL_AXES & ~(1 << GRID_EP), /* without experts */
    /* what orders and sharding do to a part does not depend on the family: gpt2 has those pairs */
    ROTARY = DENSE & ~(1 << GRID_MICRO_BATCHES | 1 << GRID_SCHEDULE | 1 << GRID_SHARD),
    MASKS = DENSE & ~(1 << GRID_PP | 1 << GRID_SCHEDULE),
    EXPERTS = 1 << GRID_TP | 1 << GRID_CP | 1 << GRID_DP | 1 << GRID_EP | 1 << GRID_ZERO |
              1 << GRID_SHARD | 1 << GRID_RECOMPUTE,
    DELTA = EXPERTS | 1 << GRID_SEQUENCE | 1 << GRID_PP | 1 << GRID_SCHEDULE,
    GROUPS = 1 << GRID_TP | 1 << GRID_SEQUENCE | 1 << GRID_CP | 1 << GRID_DP | 1 << GRID_PP,
};

static void drop(struct hd_job *job)
{
    job->dropout_embedding = 0.1;
    job->dropout_attention = 0.3;
    job->dropout_residual = 0.2;
    job->neftune_alpha = 5;
    job->head_z_loss = 0.02;
}

/* Everything that a router may be asked beside what Mixtral asks; many choices are dropped. */
static void crowd(struct hd_job *job)
{
    job->renormalize = false;
    job->noisy = true;
    job->capacity = 1;
    job->shared_ffn_hidden = 32;
}

/* Two of four groups of two experts, by sigmoids whose select bias moves far in a step; the first
 * block is dense. */
static void choose_in_groups(struct hd_job *job)
{
    job->experts = 8;
    job->experts_per_token = 3;
    job->router_groups = 4;
    job->router_groups_kept = 2;
    job->router_scale = 2.5;
    job->router_bias_rate = 0.02;
    job->z_loss = 0;
    job->shared_ffn_hidden = 32;
    job->dense_ffn_hidden = 64;
    job->experts_layers = "0:1:1000";
}

/* A further token, whose block has experts in groups, in documents of a few tokens. */
static void predict_further(struct hd_job *job)
{
    choose_in_groups(job);
    job->mtp_layers = 1;
    job->mtp_weight = 0.5;
}

static void predict_two_further(struct hd_job *job)
{
    job->mtp_layers = 2;
    job->mtp_weight = 0.5;
}

/* Makes blocks of four kinds: dense with a window, experts, experts with a window, experts without
 * positions. Each of two stages has two kinds. */
static void mix_kinds(struct hd_job *job)
{
    job->layers = 4;
    job->window = 5;
    job->dense_ffn_hidden = 64;
    job->window_layers = "1:1";
    job->rope_layers = "3:1";
    job->experts_layers = "0:1:3";
}

/* Factors of Granite, which scale every place that has one. */
static void multiply(struct hd_job *job)
{
    job->attention_scale = 0.2;
    job->embedding_scale = 3;
    job->residual_scale = 0.7;
    job->logit_divisor = 2.5;
}

/* Windows in every second layer, and positions in these alone. */
static void rotate_in_windows(struct hd_job *job)
{
    job->rope_layers = "1:1";
}

static void grow_by_position(struct hd_job *job)
{
    job->query_factor = 0.5;
    job->rope_original_context = 4;
}

/* Both kinds of blocks: chunks and positions; factors of queries by position. Sigmoids have no loss
 * of their logits. */
static void cut_in_chunks(struct hd_job *job)
{
    job->z_loss = 0;
    job->dense_ffn_hidden = 64;
    job->experts_layers = "0:1:1000";
}

static void weigh_logits(struct hd_job *job)
{
    job->head_z_loss = 0.02;
}

/* Some values are beyond the bound. */
static void bound_heads(struct hd_job *job)
{
    job->qkv_clip = 0.1;
}

static void norm_heads(struct hd_job *job)
{
    job->qk_norm = true;
}

/* Some values of the experts' gates are beyond the limit. */
static void clamp(struct hd_job *job)
{
    job->window = 5;
    job->glu_limit = 0.1;
}

/* Twelve heads: no power of two, but four tp ranks share them. */
static void weigh_by_distance(struct hd_job *job)
{
    job->heads = 12;
    job->kv_heads = 4;
    job->positions = HD_JOB_POSITIONS_ALIBI;
}

/* A share of four tp ranks is whole blocks of nf4, 64 weights: of the columns of attention.out, 4 x
 * 64, and of those of mlp.down, 256. Windows hold one or two pairs. */
static void tune(struct hd_job *job)
{
    job->hidden = 16;
    job->head_width = 64;
    job->ffn_hidden = 256;
    job->context = PAIRS_WINDOW;
    job->val_split = 0;
    job->val = job->train;
    job->val_count = 1;
    job->validate_batches = 1;
    job->documents = HD_JOB_DOCUMENTS_BOUNDED;
    drop(job);
    if (job->mla_kv_rank) { /* the share of two tp ranks is whole blocks */
        job->mla_q_rank = job->mla_kv_rank = 16;
        job->mla_nope = 24;
        job->mla_value = 32;
        job->head_width = 32;
    }
}

static void tune_kinds(struct hd_job *job)
{
    tune(job);
    mix_kinds(job);
    job->ffn_hidden = 64;
    job->dense_ffn_hidden = 128;
}

static void tune_clamped(struct hd_job *job)
{
    tune(job);
    clamp(job);
    job->ffn_hidden = 64;
}

/* harness_job says the sizes; vocabularies that no tp divides. */
static const struct grid_model models[] = {
    {"gpt2", "gpt2", 257, false, false, DENSE | REDUCE,
     "tied head, learned positions, biases, layer norms", NULL},
    {"llama", "llama", 258, false, false, ROTARY, "grouped queries: 4 heads, 2 key/value heads",
     NULL},
    {"qwen2", "qwen2", 257, true, false, GROUPS,
     "biases of q, k, v on grouped queries, bounded documents", NULL},
    {"qwen3", "qwen3", 258, false, false, GROUPS, "norms of heads on grouped queries", NULL},
    {"mistral", "mistral", 258, false, false, GROUPS | 1 << GRID_EXCHANGE,
     "a window of 5 on grouped queries", NULL},
    {"mixtral", "mixtral", 258, false, false, ALL_AXES | REDUCE,
     "2 of 4 experts on grouped queries", NULL},
    {"mixtral_capacity", "mixtral", 257, true, false, EXPERTS,
     "noisy gates as they are, an even share for each expert, a shared one, bounded documents",
     crowd},
    {"mixtral_kinds", "mixtral", 258, false, false, ALL_AXES,
     "four kinds of blocks: a window, no positions, experts or not", mix_kinds},
    {"gemma2", "gemma2", 258, false, false, GROUPS,
     "norms with 1 + weight before and after, caps, every second window, a gate of GELU", NULL},
    {"olmo3", "olmo3", 257, false, false, GROUPS,
     "norms after, and over all channels of q and k, other angles in a window", NULL},
    {"glm4", "glm4", 258, false, false, GROUPS,
     "half of the channels of a head rotated in adjacent pairs, norms before and after", NULL},
    {"qwen2_moe", "qwen2_moe", 258, false, false, EXPERTS, "a gated shared expert", NULL},
    {"granitemoe", "granitemoe", 257, false, false, EXPERTS, "factors in all places", multiply},
    {"qwen3_next", "qwen3_next", 257, true, false, DELTA,
     "a gated delta layer, a gate of attention's output, bounded documents", NULL},
    {"lfm2", "lfm2", 257, true, false, DELTA & ~(1 << GRID_EP),
     "a short convolution with biases, bounded documents", NULL},
    {"deepseek_v2", "deepseek_v2", 258, false, false, EXPERTS,
     "latents of queries, and of keys and values", NULL},
    {"deepseek_v2_tuned", "deepseek_v2", 257, true, true, EXPERTS | TUNING,
     "fine-tuning of latents and of their norms, dropout", tune},
    {"glm4_moe", "glm4_moe", 258, false, false, ALL_AXES,
     "sigmoids in groups with a select bias and a scale, a shared expert, a dense block first",
     choose_in_groups},
    {"glm4_moe_further", "glm4_moe", 257, true, false, ALL_AXES,
     "a further token, bounded documents", predict_further},
    {"qwen2_further", "qwen2", 258, false, false, ALL_AXES,
     "two further tokens, a tied head, biases of q, k, v", predict_two_further},
    {"gpt_neox", "gpt_neox", 257, true, false, GROUPS | 1 << GRID_EXCHANGE,
     "parallel branches with two norms and biases, bounded documents", NULL},
    {"cohere2", "cohere2", 258, false, false, GROUPS,
     "parallel branches with one norm, positions in windows alone", rotate_in_windows},
    {"phi", "phi", 257, true, false, GROUPS,
     "a bias of the logits, whose z-loss has it too, one norm of both branches, bounded documents",
     weigh_logits},
    {"bloom", "bloom", 258, true, false, GROUPS | 1 << GRID_EXCHANGE,
     "a norm of the embedding, ALiBi, bounded documents", NULL},
    {"opt", "opt", 257, false, false, GROUPS, "learned positions from row 2 on, ReLU", NULL},
    {"olmo", "olmo", 258, false, false, GROUPS,
     "norms without parameters, bounded queries, keys and values", bound_heads},
    {"ministral3", "ministral3", 258, true, false, GROUPS | 1 << GRID_EXCHANGE,
     "queries with a factor by position, bounded documents", grow_by_position},
    {"cohere", "cohere", 257, false, false, GROUPS,
     "LayerNorm of each head of q and k with weights of its own", norm_heads},
    {"llama4", "llama4_text", 258, true, false, GROUPS | EXPERTS,
     "chunks, gates on the inputs of experts, norms behind positions, bounded documents",
     cut_in_chunks},
    {"gpt_oss", "gpt_oss", 257, true, false, GROUPS | EXPERTS,
     "sinks, biases of experts, clamped gates, every second window, bounded documents", clamp},
    {"gpt2_dropout", "gpt2", 257, false, false, MASKS,
     "dropout of embedding, attention and residual, noise on embeddings, z-loss", drop},
    {"llama_alibi", "llama", 258, true, false, GROUPS | 1 << GRID_EXCHANGE,
     "ALiBi with 12 heads, bounded documents", weigh_by_distance},
    {"gpt2_tuned", "gpt2", 257, true, true, DENSE | REDUCE | OFFLOAD | TUNING,
     "fine-tuning of a tied head, biases and layer norms, dropout", tune},
    {"llama_tuned", "llama", 258, true, true, DENSE | OFFLOAD | TUNING,
     "fine-tuning of grouped queries, dropout", tune},
    {"mistral_tuned", "mistral", 257, true, true, GROUPS | 1 << GRID_EXCHANGE | TUNING,
     "fine-tuning within a window of 5, dropout", tune},
    {"qwen3_tuned", "qwen3", 258, true, true, GROUPS | TUNING,
     "fine-tuning of norms of heads on grouped queries, dropout", tune},
    {"mixtral_tuned", "mixtral", 257, true, true, ALL_AXES | OFFLOAD | TUNING,
     "fine-tuning of 2 of 4 experts on grouped queries, dropout", tune},
    {"gemma2_tuned", "gemma2", 258, true, true, GROUPS | TUNING,
     "fine-tuning of norms with 1 + weight and caps, dropout", tune},
    {"lfm2_tuned", "lfm2", 257, true, true, GROUPS | TUNING,
     "fine-tuning beside a short convolution, dropout", tune},
    {"gpt_neox_tuned", "gpt_neox", 258, true, true, GROUPS | TUNING,
     "fine-tuning of parallel branches, dropout of each", tune},
    {"gpt_oss_tuned", "gpt_oss", 257, true, true, GROUPS | TUNING,
     "fine-tuning with sinks and biases of experts, dropout", tune_clamped},
    {"mixtral_kinds_tuned", "mixtral", 257, true, true, ALL_AXES | TUNING,
     "fine-tuning of four kinds of blocks, dropout", tune_kinds},
};

const struct grid_model *grid_model_find(const char *name)
{
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (strcmp(models[i].name, name) == 0)
            return &models[i];
    (void)fprintf(stderr, "no model of the grid is called %s\n", name);
    abort();
}

unsigned grid_axes_of(const struct grid_model *model)
{
    return harness_backend()->device ? model->axes : model->axes & ~(unsigned)OFFLOAD;
}

struct hd_job grid_reference(const struct grid_model *model, const struct harness *harness)
{
    struct hd_job job = harness_job(harness, model->family, 1);

    job.vocab = model->vocab;
    if (model->bounded) {
        job.documents = HD_JOB_DOCUMENTS_BOUNDED;
        job.end_of_text = '\n'; /* no pair has one */
    }
    if (model->change)
        model->change(&job);
    return job;
}

struct hd_job grid_reference_of(const struct grid_model *model, const struct harness *harness,
                                const struct grid_layout *layout)
{
    struct hd_job job = grid_reference(model, harness);
    struct hd_rank_program_options none = {0};

    for (int a = GRID_FIRST_OF_TUNING; a < GRID_AXES; a++)
        grid_axes[a].set(&job, &none, grid_axes[a].values[layout->value[a]].number);
    return job;
}

bool grid_same_reference(const struct grid_layout *a, const struct grid_layout *b)
{
    return memcmp(a->value + GRID_FIRST_OF_TUNING, b->value + GRID_FIRST_OF_TUNING,
                  GRID_AXES - GRID_FIRST_OF_TUNING) == 0;
}

struct hd_job grid_job(const struct grid_model *model, const struct harness *harness,
                       const struct grid_layout *layout,
                       struct hd_rank_program_options *ret_options)
{
    struct hd_job job = grid_reference(model, harness);

    *ret_options = (struct hd_rank_program_options){0};
    for (int a = 0; a < GRID_AXES; a++)
        grid_axes[a].set(&job, ret_options, grid_axes[a].values[layout->value[a]].number);
    return job;
}

/* ---- which there are ---- */

static int number(const struct grid_layout *l, enum grid_axis_name axis)
{
    return grid_axes[axis].values[l->value[axis]].number;
}

static bool too_many_ranks(const struct grid_layout *l)
{
    return number(l, GRID_TP) * number(l, GRID_CP) * number(l, GRID_DP) * number(l, GRID_PP) >
           HARNESS_WORLD_MAX;
}

static bool sequence_alone(const struct grid_layout *l)
{
    return number(l, GRID_SEQUENCE) && number(l, GRID_TP) == 1;
}

static bool exchange_of_one(const struct grid_layout *l)
{
    return number(l, GRID_EXCHANGE) && number(l, GRID_CP) == 1;
}

static bool experts_left_over(const struct grid_layout *l)
{
    return number(l, GRID_DP) * number(l, GRID_CP) % number(l, GRID_EP) != 0;
}

static bool stages_of_one(const struct grid_layout *l)
{
    return number(l, GRID_PP) == 1 && number(l, GRID_SCHEDULE) > HD_SCHEDULE_GPIPE;
}

static bool shards_of_one(const struct grid_layout *l)
{
    return number(l, GRID_ZERO) && number(l, GRID_DP) * number(l, GRID_CP) == 1;
}

static bool travels_nowhere(const struct grid_layout *l)
{
    return number(l, GRID_REDUCE) && number(l, GRID_DP) * number(l, GRID_CP) == 1;
}

static bool blocks_of_all(const struct grid_layout *l)
{
    return number(l, GRID_SHARD) && (!number(l, GRID_ZERO) || number(l, GRID_EP) > 2 ||
                                     number(l, GRID_DP) * number(l, GRID_CP) < 4);
}

static bool few_units(const struct grid_layout *l)
{
    return number(l, GRID_PP) == 4 && (number(l, GRID_SCHEDULE) == HD_SCHEDULE_INTERLEAVED ||
                                       number(l, GRID_SCHEDULE) == HD_SCHEDULE_ZB_V);
}

static bool codes_alone(const struct grid_layout *l)
{
    return number(l, GRID_WEIGHTS) && !number(l, GRID_ADAPTER);
}

static const struct {
    bool (*excludes)(const struct grid_layout *l);
    const char *reason;
} rules[] = {
    {sequence_alone, "sequence=on shares rows among the ranks of tp, and tp=1 has one"},
    {exchange_of_one, "cp_exchange=all_gather is a way to exchange keys, and cp=1 has nobody"},
    {experts_left_over, "ep shares out experts over dp x cp ranks, and divides their number"},
    {shards_of_one, "zero shares the optimizer among dp x cp ranks, and here is one"},
    {travels_nowhere, "reduce is how gradients travel among dp x cp ranks, and here is one"},
    {blocks_of_all,
     "zero_shard is blocks of 2 among 4 dp x cp ranks or more, of whole blocks of ep"},
    {stages_of_one, "an order of pipeline stages, and pp=1 has one"},
    {few_units, "eight chunks, and the models here have four units; pipeline_test has deeper ones"},
    {codes_alone, "weights in codes do not train: they need an adapter"},
    {too_many_ranks, "more than 8 ranks, as many as the harness runs"},
};

enum { LEGAL_MAX = 65536 };

/* The engine's words about each value that it does not support; "": supported. */
static char missing[GRID_AXES][GRID_VALUES_MAX][HD_ERR_MAX];

static const char *broken_rule(const struct grid_layout *layout)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (rules[i].excludes(layout))
            return rules[i].reason;
    return NULL;
}

const char *grid_exclusion(const struct grid_layout *layout)
{
    for (int a = 0; a < GRID_AXES; a++)
        if (missing[a][layout->value[a]][0])
            return missing[a][layout->value[a]];
    return broken_rule(layout);
}

bool grid_next(const struct grid_model *model, struct grid_layout *layout)
{
    for (int a = GRID_FIRST_OF_TUNING - 1; a >= 0; a--) {
        if (!(grid_axes_of(model) >> a & 1))
            continue;
        if (++layout->value[a] < grid_axes[a].count)
            return true;
        layout->value[a] = 0;
    }
    return false;
}

static int off_rest(const struct grid_layout *layout)
{
    int count = 0;

    for (int a = 0; a < GRID_AXES; a++)
        count += layout->value[a] != 0;
    return count;
}

/* The model's layouts that no rule excludes, those with most axes at rest first; among equals in
 * grid_next's order. What is trained has a list of its own, and the two are crossed when asked: no
 * rule needs both to find fault. */
struct grid_legal {
    struct grid_layout list[LEGAL_MAX];
    int count;
};
static struct {
    const struct grid_model *model;
    struct grid_legal ranks, tunings;
} legal;

static void take_legal(struct grid_legal *l, const struct grid_layout *layout, int off)
{
    if (off_rest(layout) != off || broken_rule(layout))
        return;
    assert(l->count < LEGAL_MAX);
    l->list[l->count++] = *layout;
}

/* The next values of the axes of tuning; false: these were the last. */
static bool next_tuning(const struct grid_model *model, struct grid_layout *layout)
{
    for (int a = GRID_AXES - 1; a >= GRID_FIRST_OF_TUNING; a--) {
        if (!(grid_axes_of(model) >> a & 1))
            continue;
        if (++layout->value[a] < grid_axes[a].count)
            return true;
        layout->value[a] = 0;
    }
    return false;
}

static void list_legal(const struct grid_model *model)
{
    legal.model = model;
    legal.ranks.count = legal.tunings.count = 0;
    for (int off = 0; off <= GRID_AXES; off++) {
        struct grid_layout layout = {{0}}, tuning = {{0}};

        do
            take_legal(&legal.ranks, &layout, off);
        while (grid_next(model, &layout));
        do
            take_legal(&legal.tunings, &tuning, off);
        while (next_tuning(model, &tuning));
    }
}

static bool grants(const struct grid_layout *layout, const struct grid_layout *wish, int from,
                   int to)
{
    for (int a = from; a < to; a++)
        if (wish->value[a] >= 0 && wish->value[a] != layout->value[a])
            return false;
    return true;
}

bool grid_least(const struct grid_model *model, const struct grid_layout *wish,
                struct grid_layout *ret_layout)
{
    int t = 0;

    if (legal.model != model)
        list_legal(model);
    while (t < legal.tunings.count &&
           !grants(&legal.tunings.list[t], wish, GRID_FIRST_OF_TUNING, GRID_AXES))
        t++;
    for (int i = 0; t < legal.tunings.count && i < legal.ranks.count; i++) {
        struct grid_layout layout = legal.ranks.list[i];

        if (!grants(&layout, wish, 0, GRID_FIRST_OF_TUNING))
            continue;
        memcpy(layout.value + GRID_FIRST_OF_TUNING,
               legal.tunings.list[t].value + GRID_FIRST_OF_TUNING,
               GRID_AXES - GRID_FIRST_OF_TUNING);
        if (grid_exclusion(&layout))
            continue;
        *ret_layout = layout;
        return true;
    }
    return false;
}

enum hd_status grid_ask(const struct hd_job *job, const struct hd_rank_program_options *options)
{
    struct hd_rank_program built;
    struct hd_traits traits;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    harness_backend()->describe(&(struct hd_backend_options){.threads = 1}, &traits);
    st = hd_rank_program_build(job, 0, &traits, options, &arena, &built);
    hd_arena_done(&arena);
    return st;
}

enum hd_status grid_ask_engine(const struct grid_model *model, const struct harness *harness)
{
    memset(missing, 0, sizeof missing);
    for (int a = 0; a < GRID_AXES; a++)
        for (int v = 0; v < grid_axes[a].count && (grid_axes_of(model) >> a & 1); v++) {
            struct hd_rank_program_options options;
            struct grid_layout wish, layout;
            struct hd_job job;
            enum hd_status st;

            memset(wish.value, -1, sizeof wish.value);
            wish.value[a] = (signed char)v;
            if (!grid_least(model, &wish, &layout))
                continue; /* it takes what is missing */
            job = grid_job(model, harness, &layout, &options);
            st = grid_ask(&job, &options);
            if (st && !(st == HD_UNSUPPORTED && grid_axes[a].may_be_missing))
                return st;
            if (st)
                (void)snprintf(missing[a][v], sizeof missing[a][v],
                               "%s=%s is not built yet: %.200s", grid_axes[a].name,
                               grid_axes[a].values[v].text, hd_err_message());
        }
    return HD_OK;
}

/* ---- in words ---- */

void grid_write(const struct grid_layout *layout, char ret_text[GRID_TEXT_MAX])
{
    int end = 0;

    for (int a = 0; a < GRID_AXES; a++)
        if (layout->value[a] || a == GRID_TP || a == GRID_DP)
            end +=
                snprintf(ret_text + end, (size_t)(GRID_TEXT_MAX - end), "%s%s=%s", end ? " " : "",
                         grid_axes[a].name, grid_axes[a].values[layout->value[a]].text);
}

static bool word_is(const char *word, size_t length, int axis, int value)
{
    char text[GRID_TEXT_MAX];

    (void)snprintf(text, sizeof text, "%s=%s", grid_axes[axis].name,
                   grid_axes[axis].values[value].text);
    return strlen(text) == length && memcmp(text, word, length) == 0;
}

enum hd_status grid_read(const char *words, struct grid_layout *ret_wish)
{
    memset(ret_wish->value, -1, sizeof ret_wish->value);
    for (const char *at = words; at && *at; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        bool known = false;

        for (int a = 0; a < GRID_AXES; a++)
            for (int v = 0; v < grid_axes[a].count; v++)
                if (word_is(at, length, a, v)) {
                    ret_wish->value[a] = (signed char)v;
                    known = true;
                }
        if (!known)
            return hd_err(HD_INVALID, "'%.*s' is no AXIS=VALUE of the grid", (int)length, at);
        at += length;
    }
    return HD_OK;
}

bool grid_grants(const struct grid_layout *layout, const struct grid_layout *wish)
{
    return grants(layout, wish, 0, GRID_AXES);
}
