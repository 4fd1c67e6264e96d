/* Goal: config.json is read as transformers' class reads it, or refused by name, and an export writes
 * it so that it says the same. From the hands of strangers, as weights_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hf/hf.h"
#include "tests/job_text.h"
#include "tests/program/tells.h"
#include "tests/program/test.h"

/* Qwen's windows begin behind full layers; Mistral's are its class's own where the file is silent.
 */
static void windows_are_found_in_each_spelling(void **state)
{
    static const struct {
        const char *type, *extra;
        int64_t window, from;
    } rows[] = {
        {"mistral", "", 4096, 0},
        {"mistral", ",\"sliding_window\":null", 0, 0},
        {"mistral", ",\"sliding_window\":9", 9, 0},
        {"qwen2", ",\"sliding_window\":9", 0, 0},                             /* not switched on */
        {"qwen2", ",\"sliding_window\":9,\"use_sliding_window\":true", 0, 0}, /* from layer 28 */
        {"qwen3", ",\"sliding_window\":9,\"use_sliding_window\":true,\"max_window_layers\":1", 9,
         1},
        {"qwen3",
         ",\"sliding_window\":9,\"use_sliding_window\":true,\"max_window_layers\":0,"
         "\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
         9, 1}, /* the list is the word that counts */
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_job job = HD_JOB(.arena = job_arena());
        char text[512];

        (void)snprintf(text, sizeof text,
                       "{\"model_type\":\"%s\",\"vocab_size\":97,\"hidden_size\":48,"
                       "\"intermediate_size\":80,\"num_hidden_layers\":2,"
                       "\"num_attention_heads\":6,\"num_key_value_heads\":6,"
                       "\"max_position_embeddings\":64%s}",
                       rows[i].type, rows[i].extra);
        must(hd_hf_parse_config(text, strlen(text), &job, NULL));
        assert_int_equal(job.window, rows[i].window);
        assert_int_equal(job.window_from, rows[i].from);
    }
}

#define LLAMA                                                                                 \
    "\"model_type\":\"llama\",\"vocab_size\":97,\"hidden_size\":48,\"intermediate_size\":80," \
    "\"num_hidden_layers\":2,\"num_attention_heads\":6,\"max_position_embeddings\":64"

static void config_refused(const char *text, enum hd_status expected, const char *story)
{
    struct hd_job job = HD_JOB(.arena = job_arena());
    struct hd_text notes = {0};

    assert_int_equal(hd_hf_parse_config(text, strlen(text), &job, &notes), expected);
    if (!strstr(hd_err_message(), story))
        fail_msg("'%s' does not say '%s'", hd_err_message(), story);
    hd_text_free(&notes);
}

static void a_config_is_translated(void **state)
{
    static const char text[] =
        "{" LLAMA ",\"num_key_value_heads\":2,\"rope_parameters\":{\"rope_type\":\"default\","
        "\"rope_theta\":5e5},\"rms_norm_eps\":1e-06,\"tie_word_embeddings\":true,"
        "\"hidden_act\":\"silu\",\"architectures\":[\"LlamaForCausalLM\"],\"use_cache\":true}";
    struct hd_job job = HD_JOB(.arena = job_arena());
    struct hd_text notes = {0};

    must(hd_hf_parse_config(text, strlen(text), &job, &notes));
    assert_string_equal(job.family, "llama");
    assert_int_equal(job.vocab, 97);
    assert_int_equal(job.hidden, 48);
    assert_int_equal(job.ffn_hidden, 80);
    assert_int_equal(job.layers, 2);
    assert_int_equal(job.heads, 6);
    assert_int_equal(job.kv_heads, 2);
    assert_int_equal(job.context, 64);
    assert_true(job.rope_theta == 5e5);
    assert_true(job.norm_eps == 1e-6);
    assert_true(job.tie_embeddings);
    assert_int_equal(notes.len_bytes, 0);
    hd_text_free(&notes);
}

static void defaults_are_those_of_the_class(void **state)
{
    static const char llama[] = "{" LLAMA "}";
    static const char gpt2[] = "{\"model_type\":\"gpt2\",\"vocab_size\":97,\"n_embd\":48,"
                               "\"n_layer\":2,\"n_head\":3,\"n_positions\":40,\"n_inner\":null,"
                               "\"attn_pdrop\":0.2,\"resid_pdrop\":0}";
    struct hd_job job = HD_JOB(.arena = job_arena());
    struct hd_text notes = {0};

    must(hd_hf_parse_config(llama, strlen(llama), &job, &notes));
    assert_int_equal(job.kv_heads, 6);
    assert_false(job.tie_embeddings);
    assert_true(job.rope_theta == 10000 && job.norm_eps == 1e-6);
    assert_int_equal(job.positions, HD_JOB_POSITIONS_ROPE);
    assert_true(job.dropout_attention == 0 && job.dropout_embedding == 0);
    must(hd_hf_parse_config(gpt2, strlen(gpt2), &job, &notes));
    assert_int_equal(job.ffn_hidden, 4 * 48);
    assert_true(job.tie_embeddings);
    assert_true(job.norm_eps == 1e-5);
    assert_int_equal(job.positions, HD_JOB_POSITIONS_LEARNED);
    assert_true(job.dropout_attention == 0.2 && job.dropout_residual == 0);
    assert_true(job.dropout_embedding == 0.1); /* GPT2Config's */
    assert_int_equal(notes.len_bytes, 0);
    hd_text_free(&notes);
}

/* Keys of published files, and of transformers' classes, with values that change nothing. */
static void keys_that_do_not_matter_are_passed_over(void **state)
{
    static const char *const harmless[] = {
        /* SmolLM, Llama-1, Qwen2.5, distilgpt2's like, unsloth's */
        "\"is_llama_config\":true,\"rope_interleaved\":false,\"transformers.js_config\":{\"a\":1}",
        "\"max_sequence_length\":2048,\"use_mrope\":false,\"_num_labels\":1",
        "\"unsloth_version\":\"2024.9\",\"tokenizer_class\":\"LlamaTokenizer\",\"prefix\":null",
        /* PretrainedConfig */
        "\"is_decoder\":true,\"torchscript\":false,\"pruned_heads\":{},\"tie_encoder_decoder\":"
        "false",
        "\"max_length\":20,\"do_sample\":false,\"temperature\":1.0,\"top_k\":50,\"bad_words_ids\":"
        "null",
        "\"cross_attention_hidden_size\":null,\"add_cross_attention\":false,\"finetuning_task\":"
        "null",
        "\"quantization_config\":null,\"auto_map\":{},\"partial_rotary_factor\":1.0",
        "\"sliding_window\":null,\"use_sliding_window\":false,\"use_qk_norm\":false",
        /* null says that it is absent, whatever it is, and that a known key has its default */
        "\"logit_softcap\":null,\"some_future_key\":null",
        "\"rope_theta\":null,\"rms_norm_eps\":null,\"attention_bias\":null,\"head_dim\":null",
    };
    struct hd_job plain = HD_JOB(.arena = job_arena()), job = HD_JOB(.arena = job_arena());

    must(hd_hf_parse_config("{" LLAMA "}", strlen("{" LLAMA "}"), &plain, NULL));
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++) {
        char text[1024];

        (void)snprintf(text, sizeof text, "{" LLAMA ",%s}", harmless[i]);
        if (hd_hf_parse_config(text, strlen(text), &job, NULL))
            fail_msg("%s: %s", harmless[i], hd_err_message());
        assert_null(job_difference(&job, &plain));
    }
}

/* Keys of the case above with values that change the model. */
static void values_that_matter_are_refused_by_name(void **state)
{
    config_refused("{" LLAMA ",\"use_mrope\":true}", HD_UNSUPPORTED,
                   "use_mrope: true is not supported; only false is supported");
    config_refused("{" LLAMA ",\"rope_interleaved\":true}", HD_UNSUPPORTED, "rope_interleaved");
    config_refused("{" LLAMA ",\"pruned_heads\":{\"0\":[1]}}", HD_UNSUPPORTED,
                   "pruned_heads: an object is not supported; only null is, or an empty value");
    config_refused("{" LLAMA ",\"sliding_window\":4096}", HD_UNSUPPORTED,
                   "sliding_window: 4096 is not supported; only null is supported");
    config_refused("{" LLAMA ",\"partial_rotary_factor\":0.5}", HD_UNSUPPORTED,
                   "partial_rotary_factor: 0.5 is not supported");
    config_refused("{" LLAMA ",\"rope_parameters\":{\"partial_rotary_factor\":0.5}}",
                   HD_UNSUPPORTED, "partial_rotary_factor");
    config_refused("{" LLAMA ",\"quantization_config\":{\"bits\":4}}", HD_UNSUPPORTED,
                   "quantization_config: only weights of bitsandbytes are read");
    config_refused("{" LLAMA ",\"auto_map\":{\"AutoModel\":\"m.M\"}}", HD_UNSUPPORTED,
                   "auto_map: an object is not supported; the model may have code of its own");
    config_refused("{" LLAMA ",\"is_encoder_decoder\":true}", HD_UNSUPPORTED, "is_encoder_decoder");
    config_refused("{" LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}",
                   HD_UNSUPPORTED,
                   "\"dynamic\" is not supported; its angles depend on the length of the sequence");
    config_refused("{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"su\"}}", HD_UNSUPPORTED,
                   "\"su\" is not supported; use default, linear, llama3, yarn or longrope");
}

static void all_unknown_keys_are_named_at_once(void **state)
{
    char text[4096];
    size_t len;

    config_refused(
        "{" LLAMA ",\"logit_softcap\":30,\"use_cache\":true,\"alpha\":[1],\"beta\":{}}",
        HD_UNSUPPORTED,
        "keys \"logit_softcap\", \"alpha\", \"beta\" of a llama model are not known to this "
        "build; those that do not matter for training you can remove from the file");
    len = (size_t)snprintf(text, sizeof text, "{" LLAMA);
    for (int i = 0; i < 100; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, ",\"unknown_key_%02d\":1", i);
    (void)snprintf(text + len, sizeof text - len, "}");
    /* 18 bytes each with ", ": the first 700 bytes hold 39 */
    config_refused(text, HD_UNSUPPORTED, "\"unknown_key_38\" and 61 more of a llama model are");
}

static void what_is_not_built_or_not_known_is_named(void **state)
{
    config_refused("{" LLAMA ",\"logit_softcap\":30}", HD_UNSUPPORTED,
                   "key \"logit_softcap\" of a llama model is not known");
    config_refused("{" LLAMA ",\"n_embd\":48}", HD_UNSUPPORTED, "key \"n_embd\" of a llama model");
    config_refused("{" LLAMA ",\"quantization_config\":{}}", HD_UNSUPPORTED, "quantization_config");
    config_refused("{" LLAMA ",\"hidden_act\":\"gelu\"}", HD_UNSUPPORTED,
                   "hidden_act: \"gelu\" is not supported");
    config_refused("{" LLAMA ",\"architectures\":[\"LlamaForTokenClassification\"]}",
                   HD_UNSUPPORTED, "LlamaForTokenClassification");
    config_refused("{\"model_type\":\"bert\"}", HD_UNSUPPORTED, "\"bert\" is not supported");
    config_refused("{}", HD_INVALID, "model_type is missing");
    config_refused("{\"model_type\":\"llama\",\"vocab_size\":97}", HD_INVALID,
                   "num_hidden_layers is missing");
    config_refused("{" LLAMA ",\"rms_norm_eps\":\"x\"}", HD_INVALID, "rms_norm_eps");
    config_refused("{" LLAMA ",\"num_key_value_heads\":0}", HD_INVALID, "num_key_value_heads");
    config_refused("{" LLAMA ",\"attention_dropout\":-1}", HD_INVALID, "attention_dropout");
    config_refused("{" LLAMA ",\"attention_dropout\":1}", HD_INVALID, "attention_dropout");
    config_refused("{" LLAMA ",\"rope_theta\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}",
                   HD_INVALID, "rope_theta: 1 is not more than 1, which yarn needs");
    config_refused("[1]", HD_INVALID, "not a JSON object");
    config_refused("{" LLAMA ",\"_name_or_path\":[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}", HD_LIMIT,
                   "");
}

/* A config that is written reads back to the same model. */
static void a_written_config_reads_back(void **state)
{
    static const char text[] = "{" LLAMA ",\"num_key_value_heads\":3,\"rms_norm_eps\":1.5e-06}";
    struct hd_job job = HD_JOB(.arena = job_arena()), again = HD_JOB(.arena = job_arena());
    struct hd_text out = {0};

    must(hd_hf_parse_config(text, strlen(text), &job, NULL));
    must(hd_hf_write_config(&job, HD_F32, &out));
    must(hd_hf_parse_config(out.data, out.len_bytes, &again, NULL));
    assert_null(job_difference(&job, &again));
    hd_text_free(&out);
}

#define MIXTRAL                                                                                 \
    "\"model_type\":\"mixtral\",\"vocab_size\":97,\"hidden_size\":48,\"intermediate_size\":80," \
    "\"num_hidden_layers\":2,\"num_attention_heads\":6,\"num_key_value_heads\":2,"              \
    "\"max_position_embeddings\":64"

/* Goal: experts and their router are what the class of transformers makes of the file. Its
 * balancing loss is experts_per_token at balance, once for all layers; ours is 1 in each of the two
 * layers. */
static void experts_are_translated_both_ways(void **state)
{
    static const char silent[] = "{" MIXTRAL "}";
    static const char told[] =
        "{" MIXTRAL ",\"num_local_experts\":6,\"num_experts_per_tok\":3,"
        "\"router_aux_loss_coef\":0.25,\"output_router_logits\":true,\"sliding_window\":9,"
        "\"router_jitter_noise\":0.125,\"rope_theta\":1e4}";
    struct hd_job job = HD_JOB(.arena = job_arena()), again = HD_JOB(.arena = job_arena());
    struct hd_text notes = {0}, out = {0};

    must(hd_hf_parse_config(silent, strlen(silent), &job, &notes));
    assert_string_equal(job.family, "mixtral");
    assert_int_equal(job.experts, 8);
    assert_int_equal(job.experts_per_token, 2);
    assert_true(job.renormalize && !job.noisy && job.balance == 0.001); /* x 2 / 2 */
    assert_true(job.rope_theta == 1e6 && job.norm_eps == 1e-5 && job.window == 0);
    assert_int_equal(notes.len_bytes, 0);

    must(hd_hf_parse_config(told, strlen(told), &job, &notes));
    assert_int_equal(job.experts, 6);
    assert_int_equal(job.experts_per_token, 3);
    assert_int_equal(job.window, 9);
    assert_true(job.balance == 0.375); /* 0.25 x 3 / 2 */
    assert_tells(notes.data, "config.json", "router_jitter_noise = 0.125", "not supported");
    must(hd_hf_write_config(&job, HD_F32, &out));
    must(hd_hf_parse_config(out.data, out.len_bytes, &again, NULL));
    assert_null(job_difference(&job, &again));
    assert_non_null(strstr(out.data, "\"router_jitter_noise\":0.0"));
    assert_non_null(strstr(out.data, "\"router_aux_loss_coef\":0.25"));

    job.shared_ffn_hidden = 8;
    assert_int_equal(hd_hf_write_config(&job, HD_F32, &out), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "model.shared_ffn_hidden"));
    job.shared_ffn_hidden = 0;
    job.renormalize = false;
    assert_int_equal(hd_hf_write_config(&job, HD_F32, &out), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "model.router.renormalize: false"));
    hd_text_free(&notes);
    hd_text_free(&out);
    config_refused("{" MIXTRAL ",\"num_local_experts\":2,\"num_experts_per_tok\":3}", HD_INVALID,
                   "num_experts_per_tok: 3 is more than num_local_experts = 2");
    config_refused("{" LLAMA ",\"num_local_experts\":2}", HD_UNSUPPORTED,
                   "key \"num_local_experts\" of a llama model");
    config_refused("{" MIXTRAL ",\"n_shared_experts\":2}", HD_UNSUPPORTED, "n_shared_experts");
}

/* Goal: a coefficient that comes in goes out as the same text, whatever the numbers of layers and
 * choices. Mixtral-8x7B: 0.02 for 32 layers of 2 choices is 0.00125 in each. */
static void a_balancing_weight_is_the_same_after_both_ways(void **state)
{
    static const char *const texts[] = {"0.001", "0.02", "0.01", "0.003", "0.1", "0.007"};
    struct hd_job job = HD_JOB(.arena = job_arena());

    for (int layers = 1; layers <= 64; layers++)
        for (int choices = 1; choices <= 8; choices++)
            for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
                struct hd_text out = {0};
                char text[600], member[64];

                (void)snprintf(text, sizeof text,
                               "{\"model_type\":\"mixtral\",\"vocab_size\":97,\"hidden_size\":48,"
                               "\"intermediate_size\":80,\"num_hidden_layers\":%d,"
                               "\"num_attention_heads\":6,\"num_key_value_heads\":2,"
                               "\"max_position_embeddings\":64,\"num_experts_per_tok\":%d,"
                               "\"router_aux_loss_coef\":%s}",
                               layers, choices, texts[i]);
                must(hd_hf_parse_config(text, strlen(text), &job, NULL));
                if (layers == 32 && choices == 2 && i == 1)
                    assert_true(job.balance == 0.00125);
                must(hd_hf_write_config(&job, HD_F32, &out));
                (void)snprintf(member, sizeof member, "\"router_aux_loss_coef\":%s,", texts[i]);
                if (!strstr(out.data, member))
                    fail_msg("no %s for %d layers of %d choices: %s", member, layers, choices,
                             out.data);
                hd_text_free(&out);
            }
}

static struct hd_job some_llama(void)
{
    static const char text[] = "{" LLAMA "}";
    struct hd_job job = HD_JOB(.arena = job_arena());

    must(hd_hf_parse_config(text, strlen(text), &job, NULL));
    return job;
}

static void described_as(const struct hd_job *job, const char *type)
{
    struct hd_text out = {0};
    struct hd_job again = HD_JOB(.arena = job_arena());
    char member[64];

    must(hd_hf_write_config(job, HD_F32, &out));
    (void)snprintf(member, sizeof member, "\"model_type\":\"%s\"", type);
    if (!strstr(out.data, member))
        fail_msg("no %s in %s", member, out.data);
    must(hd_hf_parse_config(out.data, out.len_bytes, &again, NULL));
    assert_int_equal(again.qkv_bias, job->qkv_bias);
    assert_int_equal(again.out_bias, job->out_bias);
    assert_int_equal(again.mlp_bias, job->mlp_bias);
    assert_int_equal(again.qk_norm, job->qk_norm);
    assert_int_equal(again.window, job->window);
    assert_int_equal(again.window_from, job->window_from);
    assert_int_equal(again.head_width, job->head_width);
    assert_int_equal(again.rope_scaling, job->rope_scaling);
    assert_string_equal(again.rope_short_factor, job->rope_short_factor);
    assert_string_equal(again.rope_long_factor, job->rope_long_factor);
    assert_true(again.rope_factor == job->rope_factor &&
                again.rope_attention_factor == job->rope_attention_factor &&
                again.rope_original_context == job->rope_original_context &&
                again.rope_low_freq_factor == job->rope_low_freq_factor &&
                again.rope_beta_fast == job->rope_beta_fast);
    hd_text_free(&out);
}

static void a_model_gets_the_type_that_has_words_for_it(void **state)
{
    struct hd_text out = {0};
    struct hd_job job;

    job = some_llama();
    described_as(&job, "llama");
    job.qkv_bias = true; /* alone: as Qwen2 */
    described_as(&job, "qwen2");
    job.window = 9;
    job.window_from = 1;
    described_as(&job, "qwen2");
    job = some_llama();
    job.qk_norm = true;
    described_as(&job, "qwen3");
    job = some_llama();
    job.window = 9;
    described_as(&job, "mistral");
    job.window_from = 1; /* full layers before a window: types of layers */
    described_as(&job, "ministral");
    job.qkv_bias = job.out_bias = true; /* no type has both biases, a window and no norms of q */
    assert_int_equal(hd_hf_write_config(&job, HD_F32, &out), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "llama cannot express model.window"));
    hd_text_free(&out);
    job = some_llama();
    job.qkv_bias = job.out_bias = job.mlp_bias = true;
    job.head_width = 16;
    described_as(&job, "llama");
}

static void no_type_has_words_for_alibi(void **state)
{
    struct hd_text out = {0};
    struct hd_job job = some_llama();

    job.positions = HD_JOB_POSITIONS_ALIBI;
    assert_int_equal(hd_hf_write_config(&job, HD_F32, &out), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "llama cannot express model.positions: alibi"));
    hd_text_free(&out);
}

/* Dropout has no key in Llama's config.json for two of its three rates; it changes training, not what
 * the model computes. */
static void shares_that_are_dropped_survive_both_ways(void **state)
{
    struct hd_text out = {0};
    struct hd_job job = some_llama(), again = HD_JOB(.arena = job_arena());
    static const char gpt2[] = "{\"model_type\":\"gpt2\",\"vocab_size\":97,\"n_embd\":48,"
                               "\"n_layer\":2,\"n_head\":3,\"n_positions\":40,"
                               "\"attn_pdrop\":0.1,\"embd_pdrop\":0.2,\"resid_pdrop\":0.3}";

    job.dropout_attention = 0.25;
    must(hd_hf_write_config(&job, HD_F32, &out));
    must(hd_hf_parse_config(out.data, out.len_bytes, &again, NULL));
    assert_true(again.dropout_attention == 0.25 && again.dropout_residual == 0);
    hd_text_free(&out);
    must(hd_hf_parse_config(gpt2, strlen(gpt2), &job, NULL));
    must(hd_hf_write_config(&job, HD_F32, &out));
    must(hd_hf_parse_config(out.data, out.len_bytes, &again, NULL));
    assert_true(again.dropout_attention == 0.1 && again.dropout_embedding == 0.2 &&
                again.dropout_residual == 0.3);
    hd_text_free(&out);
}

static void scaled_angles_survive_both_ways(void **state)
{
    struct hd_job job = some_llama();

    job.rope_scaling = HD_JOB_ROPE_SCALING_LLAMA3;
    job.rope_factor = 8;
    job.rope_low_freq_factor = 1.5;
    job.rope_original_context = 32;
    described_as(&job, "llama");
    job = some_llama();
    job.rope_scaling = HD_JOB_ROPE_SCALING_YARN;
    job.rope_factor = 4;
    job.rope_beta_fast = 16;
    job.rope_attention_factor = 1.25;
    job.rope_original_context = 16;
    described_as(&job, "llama");
}

#define PHI3                                                                                 \
    "\"model_type\":\"phi3\",\"vocab_size\":97,\"hidden_size\":48,\"intermediate_size\":80," \
    "\"num_hidden_layers\":2,\"num_attention_heads\":3,\"max_position_embeddings\":64"
#define LISTS "\"short_factor\":[1,1.05],\"long_factor\":[1.5,3e1]"

/* Right: Phi3Config of transformers 5.24, which has class defaults, reads yarn and su as longrope,
 * and takes the original context beside the group, else 4096. A head has 16 channels, and a quarter
 * of them, 2 pairs, rotates. */
static void longrope_is_read_and_written(void **state)
{
    static const struct {
        const char *text;
        double factor, attention;
        int64_t original;
        const char *note;
    } cases[] = {
        /* 64 / 16 */
        {",\"original_max_position_embeddings\":16,\"rope_scaling\":{\"type\":\"su\"," LISTS "}", 4,
         0, 16, NULL},
        {",\"original_max_position_embeddings\":16,\"rope_scaling\":{\"type\":\"yarn\"," LISTS
         ",\"original_max_position_embeddings\":32}",
         4, 0, 16, "two values of original_max_position_embeddings"},
        {",\"original_max_position_embeddings\":16,\"rope_scaling\":{\"type\":\"longrope\"," LISTS
         ",\"factor\":8,\"attention_factor\":1.25}",
         8, 1.25, 16, NULL},
        /* 64 / 4096 is less than 1 */
        {",\"rope_scaling\":{\"rope_type\":\"longrope\"," LISTS
         ",\"original_max_position_embeddings\":32}",
         1, 0, 4096, "transformers' class takes 4096"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_text text = {0}, notes = {0};
        struct hd_job job = HD_JOB(.arena = job_arena());

        hd_text_add(&text, "{" PHI3 ",\"partial_rotary_factor\":0.25%s}", cases[i].text);
        must(hd_hf_parse_config(text.data, text.len_bytes, &job, &notes));
        assert_int_equal(job.rope_scaling, HD_JOB_ROPE_SCALING_LONGROPE);
        assert_string_equal(job.rope_short_factor, "1 1.05");
        assert_string_equal(job.rope_long_factor, "1.5 3e1");
        assert_true(job.rope_factor == cases[i].factor &&
                    job.rope_attention_factor == cases[i].attention &&
                    job.rope_original_context == cases[i].original);
        assert_true(cases[i].note ? strstr(notes.data, cases[i].note) != NULL : !notes.len_bytes);
        job.rope_long_factor = "1.5 30";
        described_as(&job, "phi3");
        hd_text_free(&text);
        hd_text_free(&notes);
    }
}

static void longrope_needs_both_lists_and_phi3_has_no_other_type(void **state)
{
    struct hd_job job = HD_JOB(.arena = job_arena());
    struct hd_text out = {0};

    config_refused("{" PHI3 ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}", HD_INVALID,
                   "rope_scaling.short_factor is missing, which the type longrope needs");
    config_refused("{" LLAMA ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1]}}",
                   HD_INVALID, "rope_scaling.long_factor is missing");
    config_refused("{" LLAMA ",\"rope_scaling\":{\"type\":\"longrope\",\"long_factor\":[1],"
                   "\"short_factor\":[\"1\"]}}",
                   HD_UNSUPPORTED, "rope_scaling.short_factor: \"1\" is not supported; it must be");
    config_refused("{" PHI3 ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", HD_UNSUPPORTED,
                   "\"linear\" is not supported; transformers' class has default and longrope");
    must(hd_hf_parse_config("{" PHI3 "}", strlen("{" PHI3 "}"), &job, NULL));
    job.rope_scaling = HD_JOB_ROPE_SCALING_LINEAR;
    must(hd_hf_write_config(&job, HD_F32, &out)); /* equal blocks, and its class has linear */
    assert_non_null(strstr(out.data, "\"model_type\":\"llama\""));
    hd_text_free(&out);
}

/* A class for sequence classification is a reward model, in and out. */
static void a_reward_model_survives_both_ways(void **state)
{
    static const char text[] = "{" LLAMA ",\"architectures\":[\"LlamaForSequenceClassification\"]}";
    struct hd_job job = HD_JOB(.arena = job_arena()), again = HD_JOB(.arena = job_arena());
    struct hd_text out = {0};

    must(hd_hf_parse_config(text, strlen(text), &job, NULL));
    assert_int_equal(job.objective, HD_JOB_OBJECTIVE_REWARD);
    must(hd_hf_write_config(&job, HD_F32, &out));
    assert_non_null(strstr(out.data, "\"architectures\":[\"LlamaForSequenceClassification\"]"));
    /* without it transformers would make two labels */
    assert_non_null(strstr(out.data, "\"id2label\":{\"0\":\"LABEL_0\"}"));
    must(hd_hf_parse_config(out.data, out.len_bytes, &again, NULL));
    assert_int_equal(again.objective, HD_JOB_OBJECTIVE_REWARD);
    hd_text_free(&out);
}

RUN_CASES()
