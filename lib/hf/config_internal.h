/* config_internal: messages and notes that the files which read config.json share.
 *
 * Used by: config.c, rope.c, tied.c, wrapper.c.   Threads: any.
 */
#ifndef HD_HF_CONFIG_INTERNAL_H
#define HD_HF_CONFIG_INTERNAL_H

#include "hf/hf_internal.h"

enum { HD_HF_QUOTE_MAX = 80, HD_HF_BALANCE_MAX = 1000 /* largest weight of the balance loss */ };

/* Formats a JSON value as short text without control characters, for messages; returns ret_text. */
const char *hd_hf_quote(const struct hd_json *value, char ret_text[HD_HF_QUOTE_MAX]);

/* Returns HD_UNSUPPORTED with the error message "KEY: VALUE is not supported; INSTEAD". */
enum hd_status hd_hf_unsupported(const char *key, const struct hd_json *value, const char *instead);

/* Reads a number from min to max. HD_INVALID: the value is none; the message names the key. */
enum hd_status hd_hf_to_real(const struct hd_json *value, const char *key, double min, double max,
                             double *ret_value);

/* Appends a sentence to the notes for the user about a model folder; does nothing if notes is
 * NULL. */
void hd_hf_note(struct hd_text *notes, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Returns whether two JSON values are equal: numbers by value, objects by their members in any
 * order. */
bool hd_hf_same_value(const struct hd_json *a, const struct hd_json *b);

/* A config.json that is being read into a job. */
struct hd_hf_reading {
    const struct hd_json *root;          /* the text model's object */
    const struct hd_json *outer;         /* the whole file of a wrapped model; NULL: not wrapped */
    const struct hd_hf_wrapper *wrapper; /* NULL: not wrapped */
    const struct hd_family *family;
    struct hd_job *job;
    struct hd_text *notes;        /* sentences about settings that are not applied; may be NULL */
    int64_t window;               /* tokens; 0: no window; -1: the key is absent */
    int64_t full_layers;          /* max_window_layers; -1: the key is absent */
    bool out_bias;                /* attention_out_bias */
    const struct hd_json *blocks; /* layer_types or layers_block_type of Granite 4; NULL: absent */
    bool has_no_experts;          /* num_local_experts is 0 */
    bool has_positions;           /* position_embedding_type is rope */
    bool use_window, has_tied, attention_bias, qkv_bias;
    bool one_kv_head_each; /* num_key_value_heads is null: as many as query heads, in every class */
    const struct hd_json *layer_types;  /* type of each layer; NULL: absent */
    const struct hd_json *rope_layers;  /* no_rope_layers: 1 for each layer that rotates */
    const struct hd_json *layer_thetas; /* layer_rope_theta: theta of each layer, 0: no positions */
    const struct hd_json *dense_layers; /* mlp_only_layers: indices of layers without experts */
    int64_t window_period;              /* layers per layer without a window; 0: absent */
    const struct hd_json *attention_layers; /* full_attn_idxs: indices of layers with attention */
    /* LFM2: whether intermediate_size is adjusted, and how; factor 0: by two thirds alone */
    struct {
        bool adjusted;
        double factor;
        int64_t multiple;
    } ffn;
    int64_t full_interval; /* layers per layer of full attention; 0: absent */
    int64_t rope_interval; /* layers per layer without positions; 0: absent */
    int64_t sparse_step;   /* layers per layer with experts */
    int64_t expert_ffn;    /* moe_intermediate_size; 0: absent */
    int64_t expert_layers; /* number of layers with experts */
    int64_t first_sparse; /* first_k_dense_replace: first layer that may have experts; -1: absent */
    int64_t shared_experts;          /* n_shared_experts; -1: absent */
    const struct hd_json *ffn_types; /* mlp_layer_types: "dense" or "sparse" for each layer */
    bool no_q_latent;                /* q_lora_rank is null */
    int64_t
        last_sparse; /* moe_layer_end_index: last layer that may have experts; -1: that of the model */
    int64_t extra_layers;                    /* num_nextn_predict_layers, or
                                                mtp_num_hidden_layers */
    bool grouped;                            /* topk_method is group_limited_greedy */
    bool qk_norm;                            /* use_qk_norm, qk_layernorm */
    bool no_tuning;                          /* attn_temperature_tuning is false */
    int64_t chunk;                           /* attention_chunk_size; 0: null; -1: absent */
    const struct hd_json *expert_layer_list; /* moe_layers: indices of layers with experts */
    struct {
        bool grouped, multi_query, parallel, alibi; /* new_decoder_architecture, multi_query,
                                                       parallel_attn, alibi */
        int64_t kv_heads, norms; /* num_kv_heads, num_ln_in_parallel_attn; 0: absent */
    } falcon;
    int64_t embedding_width; /* word_embed_proj_dim; 0: absent */
    double balance;          /* router_aux_loss_coef; below 0: absent */
    double jitter; /* router_jitter_noise: noise on a router's input, not applied; 0: none */
};

/* Reads every key of config.json but those of rotary positions. HD_UNSUPPORTED: a key is unknown, or
 * its value would make another model; the message names it. */
enum hd_status hd_hf_read_members(struct hd_hf_reading *r);

/* Writes the keys in `names`, separated by blanks, that the family's class reads, from the job's members.
 * as_float: a number without a fraction gets one. */
void hd_hf_write_keys(struct hd_json_writer *w, const struct hd_job *job,
                      const struct hd_family *family, bool as_float, const char *names);

/* Sets r->wrapper, r->outer and r->root if the file is that of a wrapped model (wrapper.c). */
enum hd_status hd_hf_unwrap(struct hd_hf_reading *r);
/* Reads the keys beside text_config, after those in it. HD_UNSUPPORTED: the message names the
 * key. */
enum hd_status hd_hf_read_outer(struct hd_hf_reading *r);

/* ---- keys of Granite 4 (config_granite.c) ---- */

/* Reads layer_types, which must be attention in every layer. */
enum hd_status hd_hf_read_block_types(struct hd_hf_reading *r, const struct hd_json *value);
/* Reads num_local_experts, which must be 0. */
enum hd_status hd_hf_read_no_experts(struct hd_hf_reading *r, const struct hd_json *value);
/* Reads position_embedding_type: rope or none. */
enum hd_status hd_hf_read_position_type(struct hd_hf_reading *r, const struct hd_json *value);
/* Reads the width of the shared expert, or of the MLP of a class that calls it so. */
enum hd_status hd_hf_read_shared_width(struct hd_hf_reading *r, const struct hd_json *value);
/* Checks the keys without which the class has layers that are not supported. */
enum hd_status hd_hf_check_blocks(const struct hd_hf_reading *r);

/* ---- keys of experts (config_experts.c) ---- */

enum hd_status hd_hf_read_topk_method(struct hd_hf_reading *r, const struct hd_json *value);

/* ---- keys of Falcon (config_falcon.c) ---- */

void hd_hf_set_falcon_defaults(struct hd_hf_reading *r);
/* Sets branches, key/value heads and positions of the job from these keys, after all keys are read
 * and absent ones have their defaults. Does nothing for other families. */
enum hd_status hd_hf_take_falcon(struct hd_hf_reading *r);

/* ---- keys of MPT (config_mpt.c) ---- */

/* Reads attn_config: the bound and the factor of scores, dropout; refuses other forms of attention. */
enum hd_status hd_hf_read_attn_config(struct hd_hf_reading *r, const struct hd_json *value);

/* ---- keys of Llama 4 (config_llama4.c) ---- */

void hd_hf_set_llama4_defaults(struct hd_hf_reading *r);
/* Reads attn_temperature_tuning. */
enum hd_status hd_hf_read_tuning(struct hd_hf_reading *r, const struct hd_json *value);
/* Removes the factor of queries if attn_temperature_tuning is false. */
void hd_hf_take_tuning(struct hd_hf_reading *r);

/* Sets the rules that pick layers (model.window_layers, rope_layers, experts_layers) and the window
 * of the job. HD_INVALID, HD_UNSUPPORTED: the message names the key. */
enum hd_status hd_hf_take_layers(struct hd_hf_reading *r);

/* Takes the theta of each layer (layer_rope_theta) into model.rope_layers, rope_theta and
 * rope_local_theta, after hd_hf_take_layers and hd_hf_read_rope. */
enum hd_status hd_hf_take_layer_thetas(struct hd_hf_reading *r);

/* Resolves the rotary positions of a config.json into the members rope_* of the job, by the order
 * of precedence of transformers 5 (described in rope.c). job->context must be that of config.json.
 * HD_INVALID, HD_UNSUPPORTED: the message names the key. Contradictions become notes. */
enum hd_status hd_hf_read_rope(struct hd_hf_reading *r);

/* Sets the job's head to untied if the folder's head tensor differs from its embedding, as
 * transformers 5 does, and adds a note. Leaves the job unchanged if the folder has no weights, or
 * damaged ones. */
void hd_hf_resolve_tied(const char *dir, struct hd_job *job, struct hd_text *notes);

#endif
