/* family: the families of models that can be trained, one row each in families.def.
 *
 * A row holds the switches of a block that a family fixes, the defaults of the keys that a job file
 * may set, and what transformers' configuration class says of its config.json. Model, spec and hf
 * read the row; none of them compares the name of a family.
 *
 * Used by: spec, model, plan, hf, tokenizer.   Uses: base.   Threads: any; rows are constant.
 */
#ifndef HD_JOB_FAMILY_H
#define HD_JOB_FAMILY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "job/job.h"

/* Kinds of norm. */
enum hd_norm_kind {
    HD_NORM_RMS,            /* RMSNorm times w (Zhang & Sennrich 2019) */
    HD_NORM_RMS_ONE_PLUS,   /* RMSNorm times 1 + w, so that w begins at 0 (Gemma) */
    HD_NORM_LAYER,          /* LayerNorm with weight and bias (Ba et al. 2016) */
    HD_NORM_LAYER_PLAIN,    /* LayerNorm with weight alone (Cohere) */
    HD_NORM_LAYER_ONE_PLUS, /* LayerNorm times 1 + w, with a bias (Nemotron) */
    HD_NORM_LAYER_BARE      /* LayerNorm without parameters (OLMo) */
};

/* Places of the norms around attention a and around the feed-forward layer m; f is either. The
 * parallel ones are chosen by model.parallel_residual. */
enum hd_norm_place {
    HD_NORM_BEFORE, /* x + f(N x) */
    HD_NORM_AFTER,  /* x + N f(x) (OLMo 2) */
    HD_NORM_BOTH,   /* x + N2 f(N1 x) (Gemma 2) */
    HD_NORM_ONE,    /* x + a(N x) + m(N x) (Wang & Komatsuzaki 2021, GPT-J) */
    HD_NORM_TWO     /* x + a(N1 x) + m(N2 x) (Black et al. 2022, GPT-NeoX) */
};

/* Activations of the feed-forward layer. */
enum hd_ffn_activation {
    HD_FFN_SILU,
    HD_FFN_GELU_TANH, /* tanh form of GELU (Hendrycks & Gimpel 2016) */
    HD_FFN_GELU_ERF,  /* exact GELU */
    HD_FFN_RELU2,     /* max(x, 0)^2 */
    HD_FFN_RELU,      /* max(x, 0) */
    HD_FFN_OSS        /* gated by clamped values (GPT-OSS): HD_ACT_OSS of kernels/ops.h */
};

/* Forms of the norm of queries and keys (model.qk_norm). */
enum hd_qk_norm_form {
    HD_QK_NORM_HEAD,  /* RMSNorm of each head, with one weight for all heads */
    HD_QK_NORM_WHOLE, /* RMSNorm of the whole projection, with a weight per channel (OLMo 2) */
    HD_QK_NORM_LAYER, /* LayerNorm of each head, with weights of its own and no bias (Command R+) */
    HD_QK_NORM_PLAIN, /* RMSNorm of each head without a weight, after the rotation and only in
                            blocks with rotary positions (Llama 4) */
    HD_QK_NORM_HEAD_LAST /* as HD_QK_NORM_HEAD, after the rotation (Hunyuan) */
};

/* Tables of tensor names in transformers' files (hf/name_tables.c). */
enum hd_family_names {
    HD_NAMES_GPT2,
    HD_NAMES_LLAMA,
    HD_NAMES_MIXTRAL,
    HD_NAMES_QWEN_MOE,
    HD_NAMES_GEMMA,
    HD_NAMES_OLMO2,
    HD_NAMES_PHI3,
    HD_NAMES_GLM,
    HD_NAMES_GLM4,
    HD_NAMES_GRANITE_MOE,
    HD_NAMES_GRANITE_MOE_SWA,
    HD_NAMES_STARCODER2,
    HD_NAMES_QWEN_NEXT,
    HD_NAMES_QWEN3_5,
    HD_NAMES_LFM2,
    HD_NAMES_DEEPSEEK,
    HD_NAMES_GLM4_MOE,
    HD_NAMES_MINIMAX_M2,
    HD_NAMES_ERNIE4_5_MOE,
    HD_NAMES_GRANITE_HYBRID,
    HD_NAMES_PHI,
    HD_NAMES_OPT,
    HD_NAMES_BLOOM,
    HD_NAMES_MPT,
    HD_NAMES_GPT_NEOX,
    HD_NAMES_GPT_OSS,
    HD_NAMES_STABLELM,
    HD_NAMES_FALCON,
    HD_NAMES_LLAMA4,
    HD_NAMES_HUNYUAN,
    HD_NAMES_HYPERCLOVAX,
    HD_NAMES_COUNT
};

/* How a config.json says which layers have a sliding window. */
enum hd_window_rule {
    HD_WINDOW_NEVER,  /* the class has none */
    HD_WINDOW_ALL,    /* sliding_window, in all layers; null: none */
    HD_WINDOW_SWITCH, /* use_sliding_window, from layer max_window_layers on, or by layer_types */
    HD_WINDOW_TYPES,  /* layer_types; absent: window_layers of the row */
    HD_WINDOW_CHUNKS /* attention_chunk_size, by layer_types; absent: in layers with rotary positions;
                         null: none */
};

struct hd_family {
    const char *name; /* word of model.family, and model_type in transformers */

    /* ---- switches of a block ---- */
    enum hd_norm_kind norm;
    enum hd_norm_place place;
    enum hd_ffn_activation activation;
    bool gated;        /* feed-forward layer: down(act(gate x) * up x); false: down(act(up x)) */
    bool learned;      /* positions are a learned table; false: rotary. ALiBi is possible in both */
    bool interleaved;  /* rotary pairs are adjacent channels; false: channels of the two halves */
    bool experts;      /* feed-forward layers may be mixtures of experts */
    bool shared_gated; /* the shared expert's output is multiplied by the sigmoid of a linear gate
                          (Qwen2-MoE) */
    bool router_sigmoid; /* scores of experts are sigmoids of their logits; false: a softmax */
    bool router_pairs;   /* a group of experts counts as the sum of its two best; false: its best */
    bool router_bias;    /* the router's logits have a bias, which trains (GPT-OSS) */
    bool select_bias;    /* experts are chosen by score plus a bias without gradient, which the
                              load moves (DeepSeek-V3) */
    bool router_groups;  /* model.router.groups, groups_kept and scale are possible */
    bool
        gate_input; /* a token's gate multiplies the input of an expert, not its output (Llama 4) */
    bool sinks; /* a learned score of each head, without a value, joins the softmax of attention */
    bool scaled_alibi; /* ALiBi is added to q.k before the factor of scores, not after (Falcon) */
    bool
        query_factor_unrotated; /* model.query_factor is that of blocks without rotary positions, and
                                    counts positions from 1 (Llama 4) */
    bool scales_embedding;      /* embeddings are multiplied by sqrt(hidden) (Gemma) */
    bool embedding_norm;        /* embeddings have a norm of their own (Bloom) */
    bool head_bias;             /* logits have a bias (Phi) */
    bool alibi;                 /* model.positions is alibi unless the job says otherwise (Bloom) */
    int64_t first_position; /* row of the table of positions that is the first token's (OPT: 2) */
    enum hd_qk_norm_form qk_norm_form;
    /* multi-head latent attention (DeepSeek-V2). kv_rank: 0: the family has none, else, as the next
     * four, the default of a key model.mla; eps: of the norms of latents, whatever model.norm_eps
     * is */
    struct {
        int64_t q_rank, kv_rank, nope, rope, value;
        double eps;
    } latent;
    const char *parallel; /* model.parallel_residual of blocks with parallel branches; NULL: such
                             blocks are not possible */
    bool sequential;      /* the key's default is none nevertheless; else `parallel` */

    /* gated delta layers (Yang et al. 2024). layers NULL: the family has none, else, as the others,
     * the default of a key model.delta */
    struct {
        const char *layers;
        int64_t key_heads, value_heads, key_width, value_width, conv_width;
    } delta;
    /* gated short convolutions (LFM2). layers NULL: the family has none, else, as width, the default
     * of a key model.conv */
    struct {
        const char *layers;
        int64_t width;
    } conv;
    bool output_gate; /* attention's output is multiplied by the sigmoid of a projection of its
                         input (Qwen3-Next) */

    /* ---- defaults of keys of the job file ---- */
    bool qkv_bias, out_bias, mlp_bias, qk_norm, tied;
    bool renormalize;
    const char *window_layers; /* model.window_layers; NULL: all */
    const char *rope_layers;   /* model.rope_layers; NULL: all */
    double rope_fraction;      /* model.rope_fraction; 0 means 1 */
    double local_theta;        /* model.rope_local_theta; 0: none */
    double attention_cap, logit_cap;
    double glu_limit; /* model.glu_limit; 0: the activation has none */
    /* defaults for a new model; 0: the key is required */
    int64_t new_experts, new_experts_per_token;

    const char *models; /* models that people use, for docs/models.md */

    /* ---- transformers' class ---- */
    const char *also; /* other words of model_type for models of this family, separated by blanks;
                         NULL: none */
    const char *stem; /* beginning of the names of its classes: "Qwen3" for Qwen3ForCausalLM */
    const char *head; /* class with a language model head; NULL: stem + "ForCausalLM" */
    const char *runs_as; /* stem of the class of transformers that runs its models, which files may
                            name as well; NULL: the same */
    bool no_classifier;  /* transformers has no class for its reward models */
    enum hd_family_names names;
    enum hd_window_rule window;
    bool extra_layers;    /* files have layers after the last, for the prediction of further tokens
                             (num_nextn_predict_layers, or mtp_num_hidden_layers), which the class
                             does not use, and training only with model.mtp */
    bool no_out_bias;     /* attention_bias does not mean the output projection */
    bool no_head_width;   /* the class does not read head_dim: heads have hidden / heads channels */
    bool rope_in_windows; /* a layer has rotary positions iff it has a window (Cohere 2) */
    bool rope_without_windows; /* with rope_in_windows: in a model without a window every layer has
                                  (EXAONE 4) */
    bool ntk_alpha; /* rope_scaling of the type dynamic with alpha: theta grows by a power of it */
    bool dynamic;   /* the type dynamic is read: up to max_position_embeddings its angles are plain
                       (InternLM3) */
    bool logits_multiplied; /* logits_scaling multiplies the logits, and attention_multiplier is
                               1 / sqrt(head_dim) if absent (HyperCLOVA X); false: it divides them,
                               and the other is 1 */
    bool longrope; /* longrope is its only type of scaled angles, by the names su and yarn, too */
    const char *reads; /* keys of config.json that the class reads, besides those of every class */
    const char *must;  /* keys that would make another model: "KEY=VALUE ..", the one value
                              that is supported */
    const char *ignores; /* keys of published files that have no effect on training */
    struct {
        /* sizes that files of the class may leave out; 0: a file must have them */
        int64_t vocab, layers, hidden, heads, ffn, context;
        int64_t kv_heads;   /* num_key_value_heads; 0: as many as query heads */
        int64_t head_width; /* head_dim; 0: hidden / heads */
        double eps, theta;
        double yarn; /* factor of yarn, not truncated, from a context of 4096, if no key scales the
                        angles; 0: they are not scaled */
        double llama3;            /* factor of llama3, from a context of 8192, likewise */
        int64_t window;           /* sliding_window when absent; 0: none */
        int64_t chunk;            /* attention_chunk_size when absent; 0: none */
        int64_t original_context; /* original_max_position_embeddings when not beside rope_scaling;
                                     0: that in it, else max_position_embeddings */
        int64_t experts, experts_per_token;
        double balance;                /* router_aux_loss_coef */
        double logit_divisor;          /* inverse of logit_scale; 0: 1 */
        double dropout;                /* attention_dropout and residual_dropout */
        double residual_dropout;       /* dropout of OPT, which is not attention's */
        int64_t dense_ffn;             /* intermediate_size_mlp */
        int64_t shared, ffn_of_expert; /* shared_expert_intermediate_size; moe_intermediate_size */
        int64_t shared_experts; /* n_shared_experts, moe_num_shared_experts: width of the shared
                                   expert in widths of an expert */
        int64_t dense_layers;   /* first_k_dense_replace, moe_layer_start_index: blocks without
                                   experts before the first that has them */
        int64_t groups, groups_kept; /* n_group, topk_group */
        double router_scale;         /* routed_scaling_factor */
        bool renormalize;            /* norm_topk_prob */
    } absent;                        /* values of absent keys */
};

/* Returns whether the norms are LayerNorms. */
static inline bool hd_family_has_layernorm(const struct hd_family *family)
{
    return family->norm >= HD_NORM_LAYER;
}

/* Returns the family's own value of model.positions. */
static inline enum hd_job_positions hd_family_positions(const struct hd_family *family)
{
    return family->alibi     ? HD_JOB_POSITIONS_ALIBI
           : family->learned ? HD_JOB_POSITIONS_LEARNED
                             : HD_JOB_POSITIONS_ROPE;
}

/* Returns whether the factor of the norms is 1 + weight. */
static inline bool hd_family_adds_one(const struct hd_family *family)
{
    return family->norm == HD_NORM_RMS_ONE_PLUS || family->norm == HD_NORM_LAYER_ONE_PLUS;
}

extern const struct hd_family hd_families[];
extern const size_t hd_family_count;

/* Returns the row with this name; NULL: there is none. */
const struct hd_family *hd_family_named(const char *name);

/* Returns the row of a model_type: the name of a family, or a word of its `also`; NULL: none. */
const struct hd_family *hd_family_of_type(const char *type);

/* Returns the name of a family that is nearest to a mistyped one; NULL: none is near. */
const char *hd_family_nearest(const char *name);

/* Writes the names of all families into ret_text, "a, b or c". */
enum { HD_FAMILY_LIST_MAX = 896 };
void hd_family_list(char ret_text[HD_FAMILY_LIST_MAX]);

/* A rule that picks layers: counts of layers, alternately picked and not, beginning with picked
 * ones and repeated up to the last layer. "5:1" picks five, leaves one, and so on; "0:4:1000" all
 * from layer 4 on; "all" every layer, "none" no layer. */
struct hd_layers {
    int count, period; /* number of runs, 0: every layer is picked; their sum */
    int16_t runs[32];
};
enum { HD_LAYERS_TEXT_MAX = 64 };

/* Parses a rule; "" means all. HD_INVALID: the text is no rule; the message shows the form. */
enum hd_status hd_layers_parse(const char *text, struct hd_layers *ret_layers);
bool hd_layers_has(const struct hd_layers *layers, int64_t layer);
/* Returns the number of layers below `count` that the rule does not pick; 0: the text is no rule. */
int64_t hd_layers_left(const char *text, int64_t count);
/* Returns how many of the layers 0 to layer_count - 1 a rule picks; the rule must be one. */
int64_t hd_layers_count(const char *text, int64_t layer_count);
/* Writes the shortest rule that picks layer i iff picked[i], for i < count. HD_LIMIT: the list is
 * too irregular for a rule of HD_LAYERS_TEXT_MAX bytes. */
enum hd_status hd_layers_format(const bool *picked, int64_t count,
                                char ret_text[HD_LAYERS_TEXT_MAX]);

#endif
