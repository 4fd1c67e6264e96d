/* merge: the config.json of an export, merged from the base's file and the description of the model
 * as it is now (describe.c). One table lists the keys that a run can change, and the members of the
 * job that tell whether it did. An unchanged key keeps the base's text, or stays absent because its
 * class has the default; so does every key that no row lists. A changed row is written as
 * described, and the base's other names for it are left out.
 *
 * In the file of a wrapped model (wrapper.c) this is so for its text_config; of the keys beside it
 * a run can change the dtype and the tie. */
#include <string.h>

#include "base/words.h"
#include "hf/config_internal.h"

enum { VALUES_MAX = 1 << 16, DEPTH_MAX = 16 };

struct config_merge {
    const struct hd_hf_description *now;
    const struct hd_json *base, *described; /* parsed: the base's file; the description */
    struct hd_job was; /* the model that the base's config.json describes, as a job */
    int64_t positions; /* number of rows of the exported table of learned positions */
    /* keys that are always written as described; that are never added to those of the base */
    const char *always, *never;
    bool whole; /* true: the export has all tensors of a wrapped base beside the text model */
};

/* ---- rows whose change is not a difference of members ---- */

static const struct hd_json *member_of(const struct hd_json *object, const char *key)
{
    const struct hd_json *found = hd_json_member(object, key);

    return found && found->kind != HD_JSON_NULL ? found : NULL;
}

/* Returns whether the exported model has as many positions as the base. A shorter context of the
 * run changes nothing: the export still has all positions. */
static bool same_context(const struct config_merge *m)
{
    if (m->was.positions == HD_JOB_POSITIONS_LEARNED)
        return m->positions == hd_job_first_position(&m->was) + m->was.context;
    return hd_job_prefix(m->now->job) + m->now->job->context <= m->was.context;
}

static bool same_class(const struct config_merge *m)
{
    const struct hd_json *is = member_of(m->base, "architectures");
    const struct hd_json *must = member_of(m->described, "architectures");

    for (const struct hd_json *v = is ? is->first : NULL; v; v = v->next)
        if (hd_hf_same_value(v, must->first))
            return true;
    return false;
}

/* Returns whether the exported weights have the dtype of the base's; its key is dtype or, before
 * version 5, torch_dtype. */
static bool same_dtype(const struct config_merge *m)
{
    const struct hd_json *newer = member_of(m->base, "dtype"),
                         *older = member_of(m->base, "torch_dtype");
    const struct hd_json *must = member_of(m->described, "torch_dtype");

    return (newer || older) && (!newer || hd_hf_same_value(newer, must)) &&
           (!older || hd_hf_same_value(older, must));
}

/* Returns whether the base's weights were plain: the export writes weights dequantized. */
static bool same_encoding(const struct config_merge *m)
{
    return !member_of(m->base, "quantization_config") && !member_of(m->base, "compression_config");
}

/* Returns whether the labels are unchanged: a reward model has one label; labels of other models
 * stay. */
static bool same_labels(const struct config_merge *m)
{
    const struct hd_json *names = member_of(m->base, "id2label");
    const struct hd_json *count = member_of(m->base, "num_labels");
    const struct hd_json *kind = member_of(m->base, "problem_type");

    if (!hd_job_is_reward(m->now->job))
        return true;
    return hd_job_is_reward(&m->was) && names && names->count == 1 &&
           (!count || strcmp(count->text ? count->text : "", "1") == 0) &&
           (!kind || strcmp(kind->text ? kind->text : "", "single_label_classification") != 0);
}

/* Returns whether the padding token is unchanged. Only a reward model needs one that ends no
 * answer. */
static bool same_padding(const struct config_merge *m)
{
    const struct hd_json *is = hd_json_member(m->base, "pad_token_id");
    const struct hd_json *must = hd_json_member(m->described, "pad_token_id");

    return !hd_job_is_reward(m->now->job) || (is && must && hd_hf_same_value(is, must));
}

static bool same_tokenizer(const struct config_merge *m)
{
    const char *now = m->now->job->tokenizer;

    return strcmp(now, "none") == 0 ||
           (strcmp(now, "bytes") == 0) == (strcmp(m->was.tokenizer, "bytes") == 0);
}

/* Returns true: ids of begin and end tokens stay as in the base's file, or stay absent. */
static bool always_same(const struct config_merge *m)
{
    (void)m;
    return true;
}

/* Returns whether the export has as many layers that predict further tokens as the base. */
static bool same_extra_layers(const struct config_merge *m)
{
    const struct hd_json *key = member_of(m->base, "num_nextn_predict_layers");
    const struct hd_json *count = key ? key : member_of(m->base, "mtp_num_hidden_layers");

    if (m->now->further)
        return !member_of(m->base, "num_mtp_layers") && m->was.mtp_layers == m->now->further;
    return m->now->extra_layers || m->whole ||
           (!member_of(m->base, "num_mtp_layers") && count && count->text &&
            strcmp(count->text, "0") == 0);
}

/* ---- the table ---- */

/* One thing that config.json describes. keys: all its names. members: the job's keys for it; a
 * difference means that the run changed it. same: decides instead of members. */
static const struct merge_row {
    const char *keys, *members;
    bool (*same)(const struct config_merge *m);
} rows[] = {
    {"model_type", "model.family", NULL},
    {"architectures", NULL, same_class},
    {"dtype torch_dtype", NULL, same_dtype},
    {"vocab_size", "model.vocab", NULL},
    {"tie_word_embeddings tie_embedding", "model.tie_embeddings", NULL},
    {"heddle_tokenizer", NULL, same_tokenizer},
    {"quantization_config compression_config", NULL, same_encoding},
    {"id2label label2id num_labels _num_labels problem_type", NULL, same_labels},
    {"pad_token_id", NULL, same_padding},
    {"bos_token_id eos_token_id", NULL, always_same},
    {"n_positions max_position_embeddings n_ctx seq_length max_seq_len", NULL, same_context},
    {"n_layer n_layers num_hidden_layers", "model.layers", NULL},
    {"n_embd n_embed d_model hidden_size word_embed_proj_dim", "model.hidden", NULL},
    {"n_head n_heads num_attention_heads", "model.heads", NULL},
    {"num_key_value_heads", "model.kv_heads", NULL},
    {"new_decoder_architecture multi_query num_kv_heads parallel_attn num_ln_in_parallel_attn",
     "model.kv_heads model.parallel_residual", NULL},
    {"alibi", "model.positions", NULL},
    {"head_dim", "model.head_width", NULL},
    {"n_inner intermediate_size ffn_dim ffn_hidden_size intermediate_size_mlp block_ff_dim "
     "block_auto_adjust_ff_dim block_ffn_dim_multiplier block_multiple_of",
     "model.ffn_hidden model.dense_ffn_hidden", NULL},
    {"activation_function hidden_act hidden_activation activation", NULL, always_same},
    {"layer_norm_epsilon rms_norm_eps norm_epsilon layer_norm_eps norm_eps", "model.norm_eps",
     NULL},
    {"attn_pdrop attention_dropout", "train.dropout.attention", NULL},
    {"embd_pdrop embedding_dropout", "train.dropout.embedding", NULL},
    {"resid_pdrop residual_dropout hidden_dropout dropout", "train.dropout.residual", NULL},
    {"clip_qkv", "model.qkv_clip", NULL},
    {"attn_config",
     "model.qkv_clip model.attention_scale train.dropout.attention train.dropout.residual", NULL},
    {"use_parallel_residual", "model.parallel_residual", NULL},
    {"rope_theta rotary_emb_base rope_local_base_freq partial_rotary_factor rotary_pct rotary_dim "
     "rope_scaling "
     "rope_parameters "
     "original_max_position_embeddings",
     "model.rope_theta model.rope_local_theta model.rope_fraction model.rope_scaling.type "
     "model.rope_scaling.factor "
     "model.rope_scaling.original_context model.rope_scaling.low_freq_factor "
     "model.rope_scaling.high_freq_factor model.rope_scaling.beta_fast "
     "model.rope_scaling.beta_slow model.rope_scaling.attention_factor "
     "model.rope_scaling.short_factor model.rope_scaling.long_factor "
     "model.rope_scaling.mscale_all_dim model.query_factor "
     "model.rope_scaling.untruncated",
     NULL},
    {"layer_rope_theta", "model.rope_theta model.rope_local_theta model.rope_layers", NULL},
    {"swiglu_limit", "model.glu_limit", NULL},
    {"sliding_window use_sliding_window max_window_layers layer_types sliding_window_pattern "
     "_sliding_window_pattern layers_block_type "
     "full_attention_interval attention_chunk_size full_attn_idxs",
     "model.window model.attention_chunk model.window_from model.window_layers model.delta.layers "
     "model.conv.layers",
     NULL},
    {"attn_temperature_tuning attn_scale floor_scale", "model.query_factor model.query_factor_step",
     NULL},
    {"position_embedding_type", "model.rope_layers", NULL},
    {"mamba_n_heads", NULL, always_same},
    {"shared_intermediate_size", "model.shared_ffn_hidden model.ffn_hidden", NULL},
    {"linear_num_key_heads", "model.delta.key_heads", NULL},
    {"linear_num_value_heads", "model.delta.value_heads", NULL},
    {"linear_key_head_dim", "model.delta.key_width", NULL},
    {"linear_value_head_dim", "model.delta.value_width", NULL},
    {"linear_conv_kernel_dim", "model.delta.conv_width", NULL},
    {"conv_L_cache", "model.conv.width", NULL},
    {"conv_bias", "model.conv.biases", NULL},
    {"no_rope_layers no_rope_layer_interval", "model.rope_layers", NULL},
    {"query_pre_attn_scalar attention_multiplier", "model.attention_scale", NULL},
    {"attn_logit_softcapping", "model.attention_cap", NULL},
    {"final_logit_softcapping", "model.logit_cap", NULL},
    {"embedding_multiplier", "model.embedding_scale", NULL},
    {"residual_multiplier", "model.residual_scale", NULL},
    {"logits_scaling logit_scale", "model.logit_divisor", NULL},
    {"attention_bias qkv_bias use_bias use_qkv_bias attention_out_bias bias",
     "model.qkv_bias model.out_bias", NULL},
    {"moe_intermediate_size", "model.ffn_hidden", NULL},
    {"shared_expert_intermediate_size", "model.shared_ffn_hidden", NULL},
    {"n_shared_experts moe_num_shared_experts", "model.shared_ffn_hidden model.ffn_hidden", NULL},
    {"decoder_sparse_step mlp_only_layers first_k_dense_replace mlp_layer_types "
     "moe_layer_start_index moe_layer_end_index moe_layer_interval moe_layers "
     "interleave_moe_layer_step",
     "model.experts_layers", NULL},
    {"n_group topk_group topk_method", "model.router.groups model.router.groups_kept", NULL},
    {"routed_scaling_factor", "model.router.scale", NULL},
    {"num_nextn_predict_layers num_mtp_layers mtp_num_hidden_layers", NULL, same_extra_layers},
    {"use_qk_norm qk_layernorm", "model.qk_norm", NULL},
    {"q_lora_rank", "model.mla.q_rank", NULL},
    {"kv_lora_rank", "model.mla.kv_rank", NULL},
    {"qk_nope_head_dim", "model.mla.nope_width", NULL},
    {"qk_rope_head_dim", "model.mla.rope_width", NULL},
    {"v_head_dim", "model.mla.value_width", NULL},
    {"norm_topk_prob", "model.router.renormalize", NULL},
    {"mlp_bias", "model.mlp_bias", NULL},
    {"num_local_experts num_experts n_routed_experts moe_num_experts", "model.experts", NULL},
    {"num_experts_per_tok moe_k", "model.experts_per_token", NULL},
    {"router_aux_loss_coef", "model.router.balance", NULL},
    {"output_router_logits router_jitter_noise", NULL, always_same},
};
enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

static const struct merge_row *find_row(const char *key)
{
    for (int i = 0; i < ROW_COUNT; i++)
        if (hd_words_have(rows[i].keys, key))
            return &rows[i];
    return NULL;
}

static bool is_unchanged(const struct config_merge *m, const struct merge_row *row)
{
    if (row->same)
        return row->same(m);
    for (size_t i = 0; i < hd_job_key_count; i++)
        if (hd_words_have(row->members, hd_job_keys[i].path) &&
            !hd_job_members_equal(&hd_job_keys[i], &m->was, m->now->job))
            return false;
    return true;
}

/* ---- writing ---- */

/* Adds the members of the merged config.json: the base's keys in their order, then new ones. */
static void add_merged(const struct config_merge *m, struct hd_json_writer *w)
{
    for (const struct hd_json *v = m->base->first; v; v = v->next) {
        const struct merge_row *row = find_row(v->key);
        const struct hd_json *now = v;

        if (hd_words_have(m->always, v->key) || (row && !is_unchanged(m, row)))
            now = hd_json_member(m->described, v->key);
        if (now)
            hd_json_add_value(w, v->key, now);
    }
    for (const struct hd_json *v = m->described->first; v; v = v->next) {
        const struct merge_row *row = find_row(v->key);

        if (!hd_json_member(m->base, v->key) && !hd_words_have(m->never, v->key) &&
            (hd_words_have(m->always, v->key) || !(row && is_unchanged(m, row))))
            hd_json_add_value(w, v->key, v);
    }
}

static void write_merged(const struct config_merge *m, struct hd_json_writer *w)
{
    hd_json_begin(w, NULL, '{');
    add_merged(m, w);
    hd_json_end(w, '}');
    hd_text_add(w->out, "\n");
}

/* Writes the file of a wrapped model, whose text_config is merged. */
static void write_wrapped(struct config_merge *m, struct hd_json_writer *w)
{
    static const char dtypes[] = "dtype torch_dtype";
    const struct hd_json *outer = m->base, *dtype = member_of(m->described, "torch_dtype");
    const bool keeps_dtype = same_dtype(m);
    const bool keeps_tie = m->was.tie_embeddings == m->now->job->tie_embeddings;
    const char *const tie = "tie_word_embeddings";

    m->never = "architectures torch_dtype";
    m->whole = true;
    hd_json_begin(w, NULL, '{');
    for (const struct hd_json *v = outer->first; v; v = v->next)
        if (strcmp(v->key, "text_config") == 0) {
            m->base = v;
            hd_json_begin(w, v->key, '{');
            add_merged(m, w);
            hd_json_end(w, '}');
        } else if (hd_words_have(dtypes, v->key) ? keeps_dtype
                                                 : strcmp(v->key, tie) != 0 || keeps_tie) {
            hd_json_add_value(w, v->key, v);
        }
    if (!keeps_dtype)
        hd_json_add_value(w, dtype->key, dtype);
    if (!keeps_tie)
        hd_json_add_bool(w, tie, m->now->job->tie_embeddings);
    hd_json_end(w, '}');
    hd_text_add(w->out, "\n");
}

/* Returns the family of a model_type, which may have several; NULL: it is none. */
static const struct hd_family *family_of(const struct hd_json *type)
{
    return type && type->kind == HD_JSON_STRING ? hd_family_of_type(type->text) : NULL;
}

/* Returns whether the description is of the family of the base's file. */
static bool same_type(const struct hd_json *text, const struct hd_hf_wrapper *wrapper,
                      const struct hd_json *described)
{
    const struct hd_json *is = member_of(text, "model_type");

    return (!is && wrapper) ||
           (is && family_of(is) == family_of(member_of(described, "model_type")));
}

static enum hd_status merge(struct config_merge *m, struct hd_json_writer *w,
                            const struct hd_text *described)
{
    const struct hd_hf_wrapper *wrapper = hd_hf_find_wrapper(m->base);
    const struct hd_json *text = wrapper ? hd_json_member(m->base, "text_config") : m->base;

    if (!same_type(text, wrapper, m->described)) { /* nothing of the base's file applies */
        if (wrapper && !m->now->text_only)
            return hd_err(HD_UNSUPPORTED,
                          "the text model is no longer one that a %s model has; export it alone, "
                          "with --text-only",
                          wrapper->type);
        hd_text_add_bytes(w->out, described->data, described->len_bytes);
        return HD_OK;
    }
    if (wrapper && !m->now->text_only) {
        write_wrapped(m, w);
        return HD_OK;
    }
    if (wrapper)
        m->always = "model_type tie_word_embeddings torch_dtype";
    m->base = text;
    write_merged(m, w);
    return HD_OK;
}

enum hd_status hd_hf_merge(const struct hd_hf_description *now, const char *base, size_t base_bytes,
                           struct hd_text *ret_text)
{
    const struct hd_json_limits limits = {.values_max = VALUES_MAX, .depth_max = DEPTH_MAX};
    struct hd_json_writer w = {.out = ret_text};
    struct config_merge m = {.now = now, .positions = now->positions, .always = "", .never = ""};
    struct hd_text described = {0};
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    hd_job_init(&m.was, &arena);
    st = hd_hf_parse_config(base, base_bytes, &m.was, NULL);
    if (!st)
        st = hd_json_parse_repeated(&arena, base, base_bytes, &limits, &m.base);
    if (st)
        st = hd_err_prefix(st, "config.json of the base");
    if (!st)
        st = hd_hf_describe(now, &described);
    if (!st)
        st = hd_json_parse_repeated(&arena, described.data, described.len_bytes, &limits,
                                    &m.described);
    if (!st)
        st = merge(&m, &w, &described);
    if (!st && ret_text->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for config.json");
    hd_text_free(&described);
    hd_arena_done(&arena);
    return st;
}
