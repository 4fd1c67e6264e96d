/* Families of models in config.json: keys that transformers' classes do not use, keys of published
 * files without an effect, and the family that an export has. */
#include <string.h>

#include "hf/hf_internal.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

#define SIZES                                                                                 \
    "\"vocab_size\":97,\"num_hidden_layers\":4,\"hidden_size\":48,\"num_attention_heads\":3," \
    "\"num_key_value_heads\":1,\"intermediate_size\":64,\"max_position_embeddings\":64"
#define OF(type) "{\"model_type\":\"" type "\"," SIZES
#define KINDS(full, local)                                           \
    ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":" full \
    ",\"rope_type\":\"default\"},"                                   \
    "\"sliding_attention\":{\"rope_theta\":" local ",\"rope_type\":\"default\"}}"

static struct hd_job read_text(const char *text)
{
    struct hd_job job = HD_JOB(.arena = job_arena());

    if (hd_hf_parse_config(text, strlen(text), &job, NULL))
        fail_msg("%s: %s", text, hd_err_message());
    return job;
}

static void is_refused(const char *text, const char *part)
{
    struct hd_job job = HD_JOB(.arena = job_arena());

    assert_int_not_equal(hd_hf_parse_config(text, strlen(text), &job, NULL), HD_OK);
    if (!strstr(hd_err_message(), part))
        fail_msg("%s: no \"%s\" in %s", text, part, hd_err_message());
}

/* transformers 5.24 leaves these groups unread: gemma3_text and olmo3 look for one object per kind
 * of layer, and for rope_type in rope_scaling. */
static void a_rope_group_that_transformers_does_not_use_is_refused(void **state)
{
    is_refused(OF("gemma3_text") ",\"rope_parameters\":{\"rope_theta\":70.0}}",
               "one object each for full_attention and sliding_attention");
    is_refused(OF("olmo3") ",\"rope_parameters\":{\"rope_theta\":70.0}}",
               "one object each for full_attention and sliding_attention");
    is_refused(OF("gemma3_text") ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":8.0}}",
               "write rope_type");
    assert_true(read_text(OF("gemma3_text") KINDS("500.0", "50.0") "}").rope_local_theta == 50);
    assert_int_equal(
        read_text(OF("gemma3_text") ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}}")
            .rope_scaling,
        HD_JOB_ROPE_SCALING_LINEAR);
}

/* Olmo3Config has no key for the theta of layers with a window, and takes 5e5 when its file has one
 * theta: another value must be written per kind of layer. */
static void the_theta_of_layers_with_a_window_survives_an_export(void **state)
{
    static const char *const texts[] = {OF("olmo3") KINDS("500.0", "50.0") "}",
                                        OF("olmo3") ",\"rope_theta\":500000}",
                                        OF("gemma3_text") KINDS("500.0", "50.0") "}"};

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const struct hd_job job = read_text(texts[i]);
        struct hd_text out = {0};
        struct hd_job again;

        assert_int_equal(hd_hf_write_config(&job, HD_F32, &out), HD_OK);
        again = read_text(out.data);
        assert_true(again.rope_theta == job.rope_theta);
        assert_true(again.rope_local_theta == job.rope_local_theta);
        assert_true(again.rope_local_theta == (i == 1 ? 5e5 : 50));
        hd_text_free(&out);
    }
}

#define GLM4_MOE OF("glm4_moe") ",\"n_routed_experts\":8,\"moe_intermediate_size\":16"
#define ERNIE    OF("ernie4_5_moe") ",\"moe_num_experts\":6,\"moe_k\":2,\"moe_intermediate_size\":16"

/* The keys by which deep models say which layers have experts, and how routers choose. */
static void keys_of_routers_survive_an_export(void **state)
{
    static const struct {
        const char *text, *layers;
        int64_t shared, groups, kept;
        double scale;
        bool renormalize, qk_norm;
    } rows[] = {
        /* absent keys: the first layer is dense, one shared expert, one group */
        {GLM4_MOE "}", "0:1:1000", 16, 1, 1, 1, true, false},
        {GLM4_MOE ",\"n_shared_experts\":3,\"n_group\":4,\"topk_group\":4,\"norm_topk_prob\":false,"
                  "\"routed_scaling_factor\":2.5,\"first_k_dense_replace\":0,\"use_qk_norm\":true}",
         "all", 48, 4, 4, 2.5, false, true},
        {GLM4_MOE ",\"first_k_dense_replace\":3}", "0:3:1000", 16, 1, 1, 1, true, false},
        {ERNIE "}", "0:1:1000", 32, 1, 1, 1, true, false},
        {ERNIE ",\"moe_layer_interval\":2,\"moe_num_shared_experts\":0}", "0:1:1", 0, 1, 1, 1, true,
         false},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_job job = read_text(rows[i].text);
        struct hd_layers want, got;

        for (int pass = 0; pass < 2; pass++) {
            struct hd_text out = {0};

            assert_int_equal(hd_layers_parse(rows[i].layers, &want), HD_OK);
            assert_int_equal(hd_layers_parse(job.experts_layers, &got), HD_OK);
            for (int64_t layer = 0; layer < job.layers; layer++)
                assert_int_equal(hd_layers_has(&got, layer), hd_layers_has(&want, layer));
            assert_int_equal(job.shared_ffn_hidden, rows[i].shared);
            assert_int_equal(job.router_groups, rows[i].groups);
            assert_int_equal(job.router_groups_kept, rows[i].kept);
            assert_true(job.router_scale == rows[i].scale);
            assert_int_equal(job.renormalize, rows[i].renormalize);
            assert_int_equal(job.qk_norm, rows[i].qk_norm);
            assert_true(job.router_bias_rate == 0);
            assert_int_equal(hd_hf_write_config(&job, HD_F32, &out), HD_OK);
            job = read_text(out.data);
            hd_text_free(&out);
        }
    }
    is_refused(OF("minimax_m2") ",\"use_routing_bias\":false}", "use_routing_bias");
    is_refused(ERNIE ",\"moe_norm_min\":0.1}", "moe_norm_min");
}

/* A bias that a class has by default goes if its key says so: the folder then has no such tensor. */
static void a_bias_of_the_class_can_be_switched_off(void **state)
{
    static const struct {
        const char *text;
        bool qkv, out, mlp;
    } rows[] = {{OF("glm") "}", true, false, false},
                {OF("glm4") ",\"attention_bias\":false}", false, false, false},
                {OF("glm") ",\"attention_bias\":true}", true, false, false},
                {OF("qwen2_moe") "}", true, false, false},
                {OF("qwen2_moe") ",\"qkv_bias\":false}", false, false, false},
                {OF("qwen2") "}", true, false, false},
                {OF("starcoder2") "}", true, true, true},
                {OF("starcoder2") ",\"use_bias\":false}", false, false, false},
                {OF("ernie4_5") "}", false, false, false},
                {OF("ernie4_5") ",\"use_bias\":true}", true, true, true},
                {OF("helium") ",\"attention_bias\":true}", true, false, false},
                {OF("granite") ",\"attention_bias\":true,\"mlp_bias\":true}", true, true, true}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct hd_job job = read_text(rows[i].text);

        if (job.qkv_bias != rows[i].qkv || job.out_bias != rows[i].out ||
            job.mlp_bias != rows[i].mlp)
            fail_msg("%s: biases %d %d %d", rows[i].text, job.qkv_bias, job.out_bias, job.mlp_bias);
    }
}

/* In transformers layers of sliding_attention keep their own angles without a window; here the angles
 * follow the window. */
static void other_angles_without_a_window_are_refused(void **state)
{
    is_refused(OF("gemma3_text") ",\"sliding_window\":null}", "whose rotary angles differ");
    assert_int_equal(read_text(OF("gemma3_text") ",\"sliding_window\":null,\"layer_types\":["
                                                 "\"full_attention\",\"full_attention\","
                                                 "\"full_attention\",\"full_attention\"]}")
                         .window,
                     0);
    assert_int_equal(read_text(OF("gemma2") ",\"sliding_window\":null}").window, 0);
}

/* transformers writes _sliding_window_pattern beside layer_types, and never reads it: without
 * layer_types the class's 5:1 counts, or sliding_window_pattern. */
static void a_pattern_that_transformers_only_writes_does_not_count(void **state)
{
    assert_string_equal(
        read_text(OF("gemma3_text") ",\"_sliding_window_pattern\":2}").window_layers,
        read_text(OF("gemma3_text") "}").window_layers);
    assert_string_equal(
        read_text(OF("gemma3_text") ",\"sliding_window_pattern\":2,"
                                    "\"_sliding_window_pattern\":3}")
            .window_layers,
        read_text(OF("gemma3_text") ",\"sliding_window_pattern\":2}").window_layers);
}

/* The file of starcoder2-3b has keys of its older code; the epsilon of its class is norm_epsilon. */
static void published_files_have_keys_without_an_effect(void **state)
{
    const struct hd_job job = read_text(OF(
        "starcoder2") ",\"activation_function\":\"gelu\",\"attention_softmax_in_fp32\":true,"
                      "\"layer_norm_epsilon\":0.1,\"norm_epsilon\":1e-05,\"mlp_type\":\"default\","
                      "\"norm_type\":\"layer_norm\",\"scale_attention_softmax_in_fp32\":true,"
                      "\"scale_attn_weights\":true,\"hidden_act\":\"gelu_pytorch_tanh\"}");

    assert_true(job.norm_eps == 1e-5);
    is_refused(OF("starcoder2") ",\"rms_norm_eps\":0.1}", "rms_norm_eps");
    is_refused(OF("starcoder2") ",\"mlp_type\":\"gated\"}", "mlp_type");
    is_refused(OF("starcoder2") ",\"norm_type\":\"rms_norm\"}", "norm_type");
    (void)read_text(OF("gemma2") ",\"sliding_window_size\":4096}");
}

/* Gemma's query_pre_attn_scalar is an int: 0.3^-2 is none, 24^-1/2 has 24. */
static void a_scale_that_gemma_cannot_have_is_refused_by_an_export(void **state)
{
    struct hd_job job = read_text(OF("gemma2") ",\"query_pre_attn_scalar\":24}");
    struct hd_text out = {0};

    assert_int_equal(hd_hf_write_config(&job, HD_F32, &out), HD_OK);
    assert_non_null(strstr(out.data, "\"query_pre_attn_scalar\":24,"));
    job.attention_scale = 0.3;
    assert_int_equal(hd_hf_write_config(&job, HD_F32, &out), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "model.attention_scale"));
    hd_text_free(&out);
}

/* phi3 is the first family that has a share of rotary channels and the blocks of llama. */
static void the_tensors_of_an_export_have_the_names_of_its_type(void **state)
{
    struct hd_job job = read_text(OF("llama") "}");
    const struct hd_family *type = NULL;

    assert_int_equal(hd_hf_type_of(&job, &type), HD_OK);
    assert_string_equal(type->name, "llama");
    job.rope_fraction = 0.5;
    assert_int_equal(hd_hf_type_of(&job, &type), HD_OK);
    assert_string_equal(type->name, "phi3");
    job.rope_scaling = HD_JOB_ROPE_SCALING_YARN; /* which Phi3Config reads as longrope */
    assert_int_equal(hd_hf_type_of(&job, &type), HD_UNSUPPORTED);
}

/* ---- blocks with parallel branches, queries by position, Granite 4 ---- */

/* Two groups of two query heads and one key/value head, of two channels: rows q0 q0 q1 q1 k0 k0 v0 v0
 * q2 q2 q3 q3 k1 k1 v1 v1. */
static void rows_of_a_tensor_joined_by_heads(void **state)
{
    static const int64_t rows[3][8] = {{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}};
    const struct hd_job job = HD_JOB(.heads = 4, .kv_heads = 2, .head_width = 2);

    for (int place = 0; place < 3; place++)
        for (int64_t r = 0; r < (place ? 4 : 8); r++)
            assert_int_equal(hd_hf_row_by_heads(&job, place, r), rows[place][r]);
}

/* Writes the job's config.json and reads it again: the keys of the model that tell blocks apart. */
static void survives_an_export(const struct hd_job *job)
{
    struct hd_text out = {0};
    struct hd_job again;

    if (hd_hf_write_config(job, HD_F32, &out))
        fail_msg("%s: %s", job->family, hd_err_message());
    again = read_text(out.data);
    assert_string_equal(again.family, job->family);
    assert_string_equal(again.parallel_residual, job->parallel_residual);
    assert_string_equal(again.rope_layers, job->rope_layers);
    assert_true(again.rope_fraction == job->rope_fraction && again.rope_theta == job->rope_theta);
    assert_true(again.query_factor == job->query_factor &&
                again.query_factor_step == job->query_factor_step);
    assert_int_equal(again.positions, job->positions);
    assert_string_equal(again.experts_layers, job->experts_layers);
    assert_string_equal(again.window_layers, job->window_layers);
    assert_int_equal(again.attention_chunk, job->attention_chunk);
    assert_int_equal(again.window_from, job->window_from);
    assert_int_equal(again.kv_heads, job->kv_heads);
    assert_true(again.qk_norm == job->qk_norm);
    assert_true(again.logit_divisor == job->logit_divisor);
    assert_true(again.dropout_residual == job->dropout_residual);
    assert_true(again.qkv_bias == job->qkv_bias && again.out_bias == job->out_bias &&
                again.mlp_bias == job->mlp_bias);
    assert_int_equal(again.ffn_hidden, job->ffn_hidden);
    hd_text_free(&out);
}

/* Pythia's files have the older names of theta and share; true is also what an absent key means. */
static void branches_of_a_block_are_read_and_written(void **state)
{
    struct hd_job job = read_text(
        "{\"model_type\":\"gpt_neox\",\"vocab_size\":97,\"num_hidden_layers\":4,\"hidden_size\":64,"
        "\"num_attention_heads\":4,\"intermediate_size\":64,\"max_position_embeddings\":64,"
        "\"rotary_pct\":0.5,\"rotary_emb_base\":5000,\"layer_norm_eps\":1e-05,\"hidden_act\":"
        "\"gelu\",\"use_parallel_residual\":true,\"tie_word_embeddings\":false}");

    assert_string_equal(job.parallel_residual, "two_norms");
    assert_true(job.rope_fraction == 0.5 && job.rope_theta == 5000);
    assert_int_equal(job.kv_heads, 4);
    assert_true(job.qkv_bias && job.out_bias && job.mlp_bias);
    survives_an_export(&job);
    job.parallel_residual = "none";
    survives_an_export(&job);
    job = read_text(OF("stablelm") "}");
    assert_string_equal(job.parallel_residual, "none");
    assert_true(job.rope_fraction == 0.25);
    survives_an_export(&job);
    job = read_text(OF("stablelm") ",\"qk_layernorm\":true}");
    assert_true(job.qk_norm);
    survives_an_export(&job);
    job = read_text(OF("cohere") ",\"logit_scale\":0.125}");
    assert_string_equal(job.parallel_residual, "one_norm");
    assert_true(job.logit_divisor == 8);
    survives_an_export(&job);
    assert_string_equal(read_text(OF("llama") "}").parallel_residual, "none");
}

#define FALCON(more)                                                                           \
    "{\"model_type\":\"falcon\",\"vocab_size\":97,\"num_hidden_layers\":4,\"hidden_size\":48," \
    "\"num_attention_heads\":6,\"max_position_embeddings\":64" more "}"

/* 7B: one key head, one norm; 40B: groups and two norms, 11B: one; Falcon-RW: ALiBi, a head for each,
 * one branch after the other. Absent keys are those of 7B, and of 40B with its first key. */
static void blocks_of_falcon_are_read_and_written(void **state)
{
    static const struct {
        const char *text, *branches, *positions;
        int64_t kv_heads;
    } rows[] = {
        {FALCON(""), "one_norm", "rope", 1},
        {FALCON(",\"num_kv_heads\":6"), "one_norm", "rope", 1},
        {FALCON(",\"new_decoder_architecture\":true,\"num_kv_heads\":2"), "two_norms", "rope", 2},
        {FALCON(",\"new_decoder_architecture\":true,\"num_kv_heads\":2,"
                "\"num_ln_in_parallel_attn\":1"),
         "one_norm", "rope", 2},
        {FALCON(",\"multi_query\":false,\"parallel_attn\":false,\"alibi\":true,\"bias\":true"),
         "none", "alibi", 6},
        {FALCON(",\"parallel_attn\":false"), "none", "rope", 1},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct hd_job job = read_text(rows[i].text);

        assert_string_equal(job.parallel_residual, rows[i].branches);
        assert_string_equal(hd_job_positions_words[job.positions], rows[i].positions);
        assert_int_equal(job.kv_heads, rows[i].kv_heads);
        assert_int_equal(job.ffn_hidden, 4 * 48);
        assert_true(job.tie_embeddings);
        survives_an_export(&job);
    }
    is_refused(FALCON(",\"num_ln_in_parallel_attn\":2"), "num_ln_in_parallel_attn");
    is_refused(FALCON(",\"new_decoder_architecture\":true,\"parallel_attn\":false"),
               "parallel_attn");
    is_refused(FALCON(",\"multi_query\":false,\"num_kv_heads\":2"), "num_kv_heads");
    is_refused(FALCON(",\"hidden_dropout\":0.1"), "hidden_dropout");
}

/* Positions in three of four layers, and in these chunks; null turns both off where it can. */
static void chunks_of_llama4_are_read_and_written(void **state)
{
    struct hd_job job = read_text(OF("llama4_text") ",\"interleave_moe_layer_step\":2}");

    assert_int_equal(job.attention_chunk, 8192);
    assert_string_equal(job.window_layers, "3:1");
    assert_string_equal(job.rope_layers, "3:1");
    assert_string_equal(job.experts_layers, "0:1:1");
    assert_int_equal(job.dense_ffn_hidden, 16384);
    assert_int_equal(job.shared_ffn_hidden, job.ffn_hidden);
    assert_true(job.query_factor == 0.1 && job.query_factor_step == 8192 && job.qk_norm);
    survives_an_export(&job);
    job =
        read_text(OF("llama4_text") ",\"moe_layers\":[1,2],\"no_rope_layers\":[1,0,1,1],"
                                    "\"attention_chunk_size\":7,\"use_qk_norm\":false,"
                                    "\"layer_types\":[\"full_attention\",\"full_attention\","
                                    "\"full_attention\",\"chunked_attention\"],"
                                    "\"attn_temperature_tuning\":0,\"intermediate_size_mlp\":80}");
    assert_int_equal(job.window_from, 3);
    assert_string_equal(job.rope_layers, "1:1:1");
    assert_string_equal(job.experts_layers, "0:1:2");
    assert_true(job.query_factor == 0 && job.query_factor_step == 0 && !job.qk_norm);
    survives_an_export(&job);
    job = read_text(OF("llama4_text") ",\"attention_chunk_size\":null}");
    assert_int_equal(job.attention_chunk, 0);
    survives_an_export(&job);
    is_refused(OF("llama4_text") ",\"layer_types\":[\"sliding_attention\",\"full_attention\","
                                 "\"full_attention\",\"full_attention\"]}",
               "chunked_attention");
}

static void layers_without_a_window_have_no_positions_in_cohere2(void **state)
{
    struct hd_job job = read_text(OF("cohere2") ",\"sliding_window\":8}");

    assert_string_equal(job.window_layers, "3:1");
    assert_string_equal(job.rope_layers, "3:1");
    survives_an_export(&job);
    job.rope_layers = "all";
    {
        const struct hd_family *type = NULL;

        assert_int_equal(hd_hf_type_of(&job, &type), HD_UNSUPPORTED);
    }
}

/* EXAONE 4 likewise, but its models without a window have positions in all layers; a pattern may be
 * written in letters. */
static void layers_of_exaone4_are_read_and_written(void **state)
{
    struct hd_job job = read_text(OF("exaone4") ",\"sliding_window\":8,"
                                                "\"sliding_window_pattern\":\"LLLG\"}");

    assert_string_equal(job.rope_layers, "3:1");
    assert_string_equal(job.window_layers, "3:1");
    survives_an_export(&job);
    job = read_text(OF("exaone4") ",\"sliding_window\":null}");
    assert_string_equal(job.rope_layers, "all");
    assert_int_equal(job.window, 0);
    survives_an_export(&job);
    is_refused(OF("exaone4") ",\"sliding_window_pattern\":\"LGLG\"}", "sliding_window_pattern");
}

/* theta grows by alpha to the power D / (D - 2): 16 / 14 of heads of 48 / 3 channels. dynamic angles
 * without alpha stay refused, and other families do not read alpha. */
static void a_fixed_alpha_makes_dynamic_angles_plain(void **state)
{
    const struct hd_job job = read_text(
        OF("hunyuan_v1_dense") ",\"rope_scaling\":{\"type\":\"dynamic\",\"alpha\":1000.0}}");

    assert_true(fabs(job.rope_theta / (1e4 * pow(1000, 16.0 / 14)) - 1) < 1e-12);
    assert_int_equal(job.rope_scaling, HD_JOB_ROPE_SCALING_NONE);
    survives_an_export(&job);
    is_refused(OF("hunyuan_v1_dense") ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0}}",
               "dynamic");
    is_refused(OF("llama") ",\"rope_scaling\":{\"type\":\"dynamic\",\"alpha\":1000.0}}", "dynamic");
}

/* InternLM3's class is that of Llama; its dynamic angles are plain ones within the context. */
static void internlm3_is_read_with_either_class_and_dynamic_angles(void **state)
{
    static const char text[] = OF("internlm3") ",\"rope_scaling\":{\"rope_type\":\"dynamic\","
                                               "\"factor\":6.0},\"rope_theta\":50000000}";
    struct hd_text notes = {0};
    struct hd_job job = HD_JOB(.arena = job_arena());

    assert_int_equal(hd_hf_parse_config(text, strlen(text), &job, &notes), HD_OK);
    assert_int_equal(job.rope_scaling, HD_JOB_ROPE_SCALING_NONE);
    assert_true(job.rope_theta == 5e7);
    assert_non_null(strstr(notes.data, "up to max_position_embeddings = 64"));
    assert_null(strstr(notes.data, "factor")); /* which is that of longer sequences */
    hd_text_free(&notes);
    survives_an_export(&job);
    (void)read_text(OF("internlm3") ",\"architectures\":[\"LlamaForCausalLM\"]}");
    (void)read_text(OF("internlm3") ",\"architectures\":[\"InternLM3ForCausalLM\"]}");
    is_refused(OF("internlm3") ",\"architectures\":[\"Qwen2ForCausalLM\"]}", "architectures");
    is_refused(OF("llama") ",\"architectures\":[\"InternLM3ForCausalLM\"]}", "architectures");
    is_refused(OF("internlm3") ",\"bias\":true}", "bias: true is not supported");
    is_refused(OF("internlm3") ",\"qkv_bias\":true}", "qkv_bias: true is not supported");
}

/* The class scales all angles as Llama 3.1 does if the file does not say how; three of four layers
 * have the window, the first does not. */
static void cwm_scales_its_angles_unless_the_file_says_how(void **state)
{
    struct hd_job job = read_text(OF("cwm") "}");

    assert_int_equal(job.rope_scaling, HD_JOB_ROPE_SCALING_LLAMA3);
    assert_true(job.rope_factor == 16 && job.rope_low_freq_factor == 1 &&
                job.rope_high_freq_factor == 4 && job.rope_theta == 1e6);
    assert_int_equal(job.rope_original_context, 8192);
    assert_true(job.window == 8192 && job.window_from == 1); /* of four layers the last three */
    survives_an_export(&job);
    job = read_text(OF("cwm") ",\"rope_parameters\":{\"rope_type\":\"default\","
                              "\"rope_theta\":50.0}}");
    assert_int_equal(job.rope_scaling, HD_JOB_ROPE_SCALING_NONE);
    survives_an_export(&job);
}

/* Classes of 2025 and 2026 share keys with granite, deepseek_v3, glm4_moe and gemma2, or give them
 * another meaning. */
static void keys_of_newer_classes_are_read_written_or_refused(void **state)
{
    struct hd_job job = read_text(OF("hyperclovax") ",\"logits_scaling\":0.125}");

    assert_true(job.logit_divisor == 8 && job.attention_scale == 0); /* 1 / sqrt(head_dim) */
    survives_an_export(&job);
    is_refused(OF("hyperclovax") ",\"use_post_norm\":false}", "use_post_norm");
    job = read_text(OF("youtu") ",\"q_lora_rank\":null,\"embedding_initializer_range\":0.1}");
    assert_true(job.mla_q_rank == 0 && job.mla_kv_rank == 512 && job.tie_embeddings);
    survives_an_export(&job);
    is_refused(OF("youtu") ",\"rope_interleave\":false}", "rope_interleave");
    job = read_text(OF("solar_open") ",\"moe_intermediate_size\":24,\"n_shared_experts\":2}");
    assert_true(job.ffn_hidden == 24 && job.shared_ffn_hidden == 48 && job.experts == 128);
    assert_int_equal(job.dense_ffn_hidden, 0);
    survives_an_export(&job);
    is_refused(OF("solar_open") ",\"use_qk_norm\":true}", "use_qk_norm");
    is_refused(OF("solar_open") ",\"first_k_dense_replace\":1}", "first_k_dense_replace");
    job = read_text(OF("vaultgemma") ",\"query_pre_attn_scalar\":64}");
    assert_true(job.attention_scale == 0.125 && job.attention_cap == 50);
    survives_an_export(&job);
    is_refused(OF("iquestcoder") ",\"clip_qkv\":8.0}", "clip_qkv");
}

/* Classes of 2022 and 2023, whose keys have names of their own. */
static void keys_of_older_classes_are_read_written_or_refused(void **state)
{
#define NAMED(type, hidden, heads, layers, more)                                                 \
    "{\"model_type\":\"" type "\",\"vocab_size\":97,\"" hidden "\":64,\"" heads "\":4,\"" layers \
    "\":4," more "}"
#define OPT(more) NAMED("opt", "hidden_size", "num_attention_heads", "num_hidden_layers", more)
#define MPT(more) NAMED("mpt", "d_model", "n_heads", "n_layers", more)
    struct hd_job job = read_text(OPT("\"ffn_dim\":80,\"word_embed_proj_dim\":64"));

    assert_int_equal(job.positions, HD_JOB_POSITIONS_LEARNED);
    assert_int_equal(hd_job_first_position(&job), 2);
    assert_true(job.ffn_hidden == 80 && job.out_bias && job.context == 2048);
    assert_true(job.dropout_residual == 0.1 && job.dropout_attention == 0);
    survives_an_export(&job);
    is_refused(OPT("\"ffn_dim\":80,\"word_embed_proj_dim\":32"), "word_embed_proj_dim");
    is_refused(OPT("\"do_layer_norm_before\":false"), "do_layer_norm_before");
    job = read_text(NAMED("bloom", "hidden_size", "n_head", "n_layer", "\"seq_length\":64"));
    assert_int_equal(job.positions, HD_JOB_POSITIONS_ALIBI);
    assert_true(job.ffn_hidden == 256 && job.context == 64 && job.mlp_bias);
    survives_an_export(&job);
    job.ffn_hidden = 80; /* which its class cannot have */
    assert_int_equal(hd_hf_write_config(&job, HD_F32, &(struct hd_text){0}), HD_UNSUPPORTED);
    job = read_text(MPT("\"architectures\":[\"MPTForCausalLM\"],\"attn_config\":{\"alibi\":true,"
                        "\"attn_impl\":\"triton\",\"attn_pdrop\":0.1,\"clip_qkv\":6,"
                        "\"softmax_scale\":0.5}"));
    assert_true(job.qkv_clip == 6 && job.attention_scale == 0.5 && job.ffn_hidden == 256);
    assert_true(job.dropout_attention == 0.1 && job.dropout_residual == 0.1);
    survives_an_export(&job);
    is_refused(MPT("\"attn_config\":{\"alibi\":false}"), "attn_config.alibi");
    is_refused(MPT("\"attn_config\":{\"qk_ln\":true}"), "attn_config.qk_ln");
    is_refused(MPT("\"attn_config\":{\"alibi_bias_max\":16}"), "attn_config.alibi_bias_max");
    is_refused(MPT("\"attn_config\":{\"sliding\":4}"), "attn_config.sliding");
    is_refused(MPT("\"expansion_ratio\":2"), "expansion_ratio");
    is_refused(NAMED("mpt", "d_model", "n_layers", "n_heads", "\"n_heads\":3"), "n_heads");
    job = read_text(OF("olmo") ",\"clip_qkv\":8.0}");
    assert_true(job.qkv_clip == 8 && job.norm_eps == 1e-5);
    survives_an_export(&job);
    job = read_text(OF("nemotron") ",\"norm_eps\":1e-4}");
    assert_true(job.norm_eps == 1e-4 && job.rope_fraction == 0.5);
    survives_an_export(&job);
    is_refused(OF("phi") ",\"qk_layernorm\":true}", "qk_layernorm");
#undef NAMED
#undef OPT
#undef MPT
}

/* A known type without a row is refused with what is missing; a mistyped one with the name that is
 * near. */
static void a_type_without_a_row_is_refused_with_what_it_lacks(void **state)
{
    is_refused(OF("apertus") "}", "\"apertus\" is not supported; its blocks have the activation "
                                  "xIELU; the nearest family is arcee; known are gpt2");
    is_refused(OF("lfm2_moe") "}", "experts behind short convolutions");
    is_refused(OF("gema2") "}", "the nearest family is gemma2; known are");
}

/* Keys of the published files among them: block_ff_dim, which counts before intermediate_size, of
 * which two thirds, rounded up, are the width, and indices of the layers with attention. */
static void short_convolutions_are_read_and_written(void **state)
{
    struct hd_job job = read_text(OF("lfm2") ",\"block_ff_dim\":300,\"block_multiple_of\":64,"
                                             "\"conv_L_cache\":4,\"full_attn_idxs\":[1,3],"
                                             "\"conv_dim\":48,\"num_heads\":4,"
                                             "\"tie_embedding\":false}");

    assert_int_equal(job.ffn_hidden, 256); /* 200, up to 4 times 64 */
    assert_string_equal(job.conv_layers, "1:1");
    assert_true(job.conv_width == 4 && !job.conv_bias && !job.tie_embeddings);
    survives_an_export(&job);
    job = read_text(OF("lfm2") ",\"block_auto_adjust_ff_dim\":false,\"conv_bias\":true,"
                               "\"layer_types\":[\"conv\",\"conv\",\"full_attention\","
                               "\"full_attention\"]}");
    assert_string_equal(job.conv_layers, "2:2");
    assert_true(job.conv_width == 3 && job.conv_bias && job.tie_embeddings);
    survives_an_export(&job);
    job = read_text(OF("lfm2") ",\"block_ff_dim\":301,\"block_ffn_dim_multiplier\":null}");
    assert_int_equal(job.ffn_hidden, 200);
    assert_string_equal(job.conv_layers, "none"); /* without both lists all layers have attention */
    survives_an_export(&job);
    is_refused(OF("lfm2") ",\"layer_types\":[\"conv\",\"conv\",\"conv\",\"mamba\"]}",
               "layer_types");
    is_refused(OF("lfm2") ",\"conv_L_cache\":1}", "conv_L_cache");
}

/* An export reads the rows of one tensor behind one another: parts 0, 1 .. of the same name. */
static void the_parts_of_a_tensor_are_adjacent_rows(void **state)
{
    const struct hd_hf_names *names;

    for (size_t n = 0; (names = hd_hf_names_at(n)); n++)
        for (size_t i = 0; i < names->count; i++) {
            const struct hd_hf_row *row = &names->rows[i];
            const size_t last = i + (size_t)(row->parts - 1 - row->place);

            if (last >= names->count || strcmp(names->rows[last].theirs, row->theirs) != 0 ||
                names->rows[last].place != row->parts - 1)
                fail_msg("%s: its last part is not behind it", row->ours);
        }
}

static void granite_4_is_read_without_mamba_layers_and_experts(void **state)
{
#define BLOCKS(last) ",\"layer_types\":[\"attention\",\"attention\",\"attention\",\"" last "\"]"
#define DENSE        OF("granitemoehybrid") ",\"shared_intermediate_size\":80,\"mamba_n_heads\":48"
    struct hd_job job = read_text(DENSE BLOCKS("attention") ",\"num_local_experts\":0}");

    assert_string_equal(job.rope_layers, "none");
    assert_int_equal(job.ffn_hidden, 80);
    survives_an_export(&job);
    job =
        read_text(DENSE BLOCKS("attention") ",\"num_local_experts\":0,\"position_embedding_type\":"
                                            "\"rope\"}");
    assert_string_equal(job.rope_layers, "all");
    survives_an_export(&job);
    is_refused(DENSE BLOCKS("mamba") ",\"num_local_experts\":0}", "Mamba");
    is_refused(DENSE ",\"num_local_experts\":0}", "Mamba");
    is_refused(DENSE BLOCKS("attention") "}", "num_local_experts");
    is_refused(DENSE BLOCKS("attention") ",\"num_local_experts\":4}", "num_local_experts");
}

static void queries_by_position_are_read_inside_a_wrapper(void **state)
{
#define MINISTRAL3(more)                                                                           \
    "{\"model_type\":\"mistral3\",\"tie_word_embeddings\":false,\"text_config\":" OF(              \
        "ministral3") ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"type\":\"yarn\",\"factor\":" \
                      "16.0,"                                                                      \
                      "\"rope_theta\":1000000.0,\"original_max_position_embeddings\":16384,"       \
                      "\"mscale\":1.0,"                                                            \
                      "\"mscale_all_dim\":1.0" more "}},\"vision_config\":{}}"
    const struct hd_job job = read_text(MINISTRAL3(",\"llama_4_scaling_beta\":0.1"));

    assert_string_equal(job.family, "ministral3");
    assert_true(job.query_factor == 0.1 && job.rope_original_context == 16384);
    assert_true(job.rope_attention_factor == 1);
    survives_an_export(&job);
    is_refused(MINISTRAL3(""), "llama_4_scaling_beta");
    is_refused(OF("mistral") ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,"
                             "\"llama_4_scaling_beta\":0.1}}",
               "llama_4_scaling_beta");
}

#define LATENTS                                                                               \
    "\"vocab_size\":97,\"num_hidden_layers\":4,\"hidden_size\":48,\"num_attention_heads\":3," \
    "\"intermediate_size\":64,\"max_position_embeddings\":64,\"num_experts_per_tok\":2,"      \
    "\"kv_lora_rank\":24,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":16,"   \
    "\"head_dim\":8,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,\"mscale\":0.8,"       \
    "\"mscale_all_dim\":1.3,\"original_max_position_embeddings\":16}"

/* Method: head_dim of these files is the width that is rotated, a null rank is none, kimi_k2 is a
 * deepseek_v3; what the classes have for absent keys, and the factor of scores, survive an export. */
static void latents_of_a_file_survive_an_export(void **state)
{
    static const struct {
        const char *text;
        const char *family, *layers;
        int64_t q_rank, shared;
    } rows[] = {{"{\"model_type\":\"deepseek_v2\",\"q_lora_rank\":null," LATENTS "}", "deepseek_v2",
                 "all", 0, 2 * 1407},
                {"{\"model_type\":\"kimi_k2\",\"q_lora_rank\":12," LATENTS "}", "deepseek_v3",
                 "0:3:1", 12, 2048},
                {"{\"model_type\":\"glm4_moe_lite\",\"mlp_layer_types\":[\"dense\",\"sparse\","
                 "\"dense\",\"sparse\"]," LATENTS "}",
                 "glm4_moe_lite", "0:1:1", 768, 1536}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct hd_job job = read_text(rows[i].text);
        struct hd_text out = {0};
        struct hd_job again;

        assert_string_equal(job.family, rows[i].family);
        assert_int_equal(job.head_width, 16 + 8);
        assert_int_equal(job.mla_q_rank, rows[i].q_rank);
        assert_int_equal(job.shared_ffn_hidden, rows[i].shared);
        assert_string_equal(job.experts_layers, rows[i].layers);
        assert_true(job.rope_mscale_all_dim == 1.3);
        assert_int_equal(hd_hf_write_config(&job, HD_F32, &out), HD_OK);
        again = read_text(out.data);
        for (size_t k = 0; k < hd_job_key_count; k++)
            if (strncmp(hd_job_keys[k].path, "model.", 6) == 0 &&
                !hd_job_members_equal(&hd_job_keys[k], &job, &again))
                fail_msg("%s: %s changed in %s", rows[i].family, hd_job_keys[k].path, out.data);
        hd_text_free(&out);
    }
    is_refused("{\"model_type\":\"deepseek_v3\",\"topk_method\":\"greedy\"," LATENTS "}",
               "topk_method");
}

RUN_CASES()
