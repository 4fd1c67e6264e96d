/* Goal: an export's config.json repeats its base's file for an untouched model, key by key; for a
 * changed one it says what the run changed, and nothing else. What two names or places say of one
 * thing is decided as in transformers 5, whatever the order in the file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "hf/export_internal.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

enum { TEXT_MAX = 2048 };

static const struct hd_json *parsed(struct hd_arena *arena, const char *text)
{
    const struct hd_json_limits limits = {.values_max = 4096, .depth_max = 16};
    const struct hd_json *root = NULL;

    must(hd_json_parse_repeated(arena, text, strlen(text), &limits, &root));
    return root;
}

/* ---- comparing files ---- */

/* Two values as one text each, so that the comparison does not use the code under test. */
static void flatten(const struct hd_json *v, struct hd_text *ret_text)
{
    hd_text_add(ret_text, "<%d:%s", (int)v->kind, v->text ? v->text : "");
    for (const struct hd_json *m = v->first; m; m = m->next) {
        hd_text_add(ret_text, "%s=", m->key ? m->key : "");
        flatten(m, ret_text);
    }
    hd_text_add(ret_text, ">");
}

static bool same(const struct hd_json *a, const struct hd_json *b)
{
    struct hd_text of_a = {0}, of_b = {0};
    bool equal;

    flatten(a, &of_a);
    flatten(b, &of_b);
    equal = strcmp(of_a.data, of_b.data) == 0;
    hd_text_free(&of_a);
    hd_text_free(&of_b);
    return equal;
}

/* The keys in which two files differ, or that one of them lacks, separated by blanks. */
static void differences(const char *before, const char *after, char ret_keys[TEXT_MAX])
{
    struct hd_arena arena;
    const struct hd_json *a, *b;
    size_t n = 0;

    hd_arena_init(&arena, 0);
    a = parsed(&arena, before);
    b = parsed(&arena, after);
    ret_keys[0] = '\0';
    for (const struct hd_json *v = a->first; v; v = v->next)
        if (!hd_json_member(b, v->key) || !same(v, hd_json_member(b, v->key)))
            n += (size_t)snprintf(ret_keys + n, TEXT_MAX - n, "%s%s", n ? " " : "", v->key);
    for (const struct hd_json *v = b->first; v; v = v->next)
        if (!hd_json_member(a, v->key))
            n += (size_t)snprintf(ret_keys + n, TEXT_MAX - n, "%s+%s", n ? " " : "", v->key);
    hd_arena_done(&arena);
}

/* ---- folders of all families ---- */

#define SAYS ",\"torch_dtype\":\"float32\""
#define GPT2                                                                                  \
    "\"model_type\":\"gpt2\",\"vocab_size\":97,\"n_embd\":48,\"n_layer\":2,\"n_head\":3,\"n_" \
    "positions\":40"
#define SIZES                                                                                \
    "\"vocab_size\":97,\"hidden_size\":48,\"intermediate_size\":80,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":6,\"max_position_embeddings\":64"
#define LLAMA   "\"model_type\":\"llama\"," SIZES
#define MISTRAL "\"model_type\":\"mistral\",\"num_key_value_heads\":2," SIZES
#define QWEN2   "\"model_type\":\"qwen2\",\"num_key_value_heads\":2," SIZES
#define QWEN3   "\"model_type\":\"qwen3\",\"num_key_value_heads\":2,\"head_dim\":8," SIZES
#define MIXTRAL "\"model_type\":\"mixtral\",\"num_key_value_heads\":2," SIZES
#define PHI3    "\"model_type\":\"phi3\",\"num_key_value_heads\":2," SIZES

static const char *const folders[] = {
    /* what is absent stays absent: the classes have defaults, for ids, too */
    "{" GPT2 SAYS "}",
    "{" LLAMA SAYS "}",
    "{" MISTRAL SAYS "}",
    "{" QWEN2 SAYS "}",
    "{" QWEN3 SAYS "}",
    "{" MIXTRAL SAYS "}",
    /* ids: one, several, null, beyond the vocabulary */
    "{" LLAMA SAYS ",\"bos_token_id\":1,\"eos_token_id\":[2,5,9],\"pad_token_id\":null}",
    "{" LLAMA SAYS ",\"bos_token_id\":null,\"eos_token_id\":2,\"pad_token_id\":-1}",
    "{" QWEN2 SAYS ",\"bos_token_id\":7,\"eos_token_id\":7,\"pad_token_id\":7,\"sep_token_id\":3}",
    /* what a run does not know of */
    "{" GPT2 SAYS
    ",\"initializer_range\":0.07,\"summary_type\":\"mean\",\"summary_use_proj\":false,"
    "\"summary_activation\":\"tanh\",\"summary_first_dropout\":0.3,\"n_ctx\":40,\"use_cache\":"
    "false}",
    "{" GPT2 SAYS
    ",\"task_specific_params\":{\"text-generation\":{\"do_sample\":true,\"max_length\":"
    "50}},\"reorder_and_upcast_attn\":true,\"_name_or_path\":\"a/b\",\"_num_labels\":1}",
    "{" LLAMA SAYS ",\"initializer_range\":1e-02,\"pretraining_tp\":2,\"transformers_version\":"
    "\"4.31.0\",\"some_future_key\":null,\"temperature\":0.6,\"architectures\":["
    "\"LlamaForCausalLM\"]"
    "}",
    "{" MIXTRAL SAYS ",\"output_router_logits\":true,\"router_jitter_noise\":0.25,"
    "\"router_aux_loss_coef\":0.5,\"num_local_experts\":4,\"num_experts_per_tok\":1}",
    "{" MIXTRAL SAYS ",\"router_aux_loss_coef\":0.02,\"sliding_window\":null,\"rope_theta\":1e6}",
    /* labels of a classifier that the model is not */
    "{" LLAMA SAYS ",\"id2label\":{\"0\":\"A\",\"1\":\"B\"},\"label2id\":{\"A\":0,\"B\":1},"
    "\"problem_type\":\"single_label_classification\",\"classifier_dropout\":null}",
    /* a reward model */
    "{" QWEN2 SAYS ",\"architectures\":[\"Qwen2ForSequenceClassification\"],\"id2label\":{\"0\":"
    "\"reward\"},\"label2id\":{\"reward\":0},\"problem_type\":\"regression\",\"pad_token_id\":3,"
    "\"eos_token_id\":4}",
    /* names */
    "{" GPT2 SAYS ",\"hidden_size\":48,\"num_attention_heads\":3}",
    "{\"model_type\":\"gpt2\",\"vocab_size\":97,\"hidden_size\":48,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":3,\"max_position_embeddings\":40" SAYS "}",
    "{" MIXTRAL SAYS ",\"num_experts\":6}",
    "{" MIXTRAL SAYS ",\"num_experts\":6,\"num_local_experts\":4}",
    "{" LLAMA ",\"dtype\":\"float32\"}",
    "{" LLAMA ",\"dtype\":\"float32\",\"torch_dtype\":null}",
    /* absent, null and what is the default anyway */
    "{" LLAMA SAYS ",\"num_key_value_heads\":null,\"head_dim\":null,\"rope_scaling\":null}",
    "{" LLAMA SAYS ",\"num_key_value_heads\":3,\"head_dim\":16,\"tie_word_embeddings\":true}",
    "{" LLAMA SAYS ",\"attention_bias\":true,\"mlp_bias\":true,\"attention_dropout\":0.1}",
    "{" QWEN3 SAYS ",\"attention_bias\":false,\"attention_dropout\":0.0,\"rms_norm_eps\":1e-06}",
    "{\"model_type\":\"mistral\",\"num_key_value_heads\":null," SIZES SAYS "}",
    "{" GPT2 SAYS ",\"n_inner\":null,\"attn_pdrop\":0.0,\"embd_pdrop\":0.2,\"resid_pdrop\":0}",
    "{" GPT2 SAYS ",\"n_inner\":192,\"activation_function\":\"gelu_pytorch_tanh\",\"tie_word_"
    "embeddings\":false}",
    /* windows */
    "{" MISTRAL SAYS ",\"sliding_window\":16}",
    "{" MISTRAL SAYS ",\"sliding_window\":null}",
    "{" QWEN2 SAYS ",\"use_sliding_window\":false,\"sliding_window\":32,\"max_window_layers\":1}",
    "{" QWEN2 SAYS ",\"use_sliding_window\":true,\"sliding_window\":32,\"max_window_layers\":1}",
    "{" QWEN3 SAYS ",\"use_sliding_window\":true,\"sliding_window\":32,\"layer_types\":[\"full_"
    "attention\",\"sliding_attention\"],\"max_window_layers\":28}",
    "{" QWEN3 SAYS
    ",\"layer_types\":[\"full_attention\",\"full_attention\"],\"sliding_window\":null}",
    /* rotary positions in their spellings */
    "{" LLAMA SAYS
    ",\"rope_theta\":500000.0,\"rope_scaling\":{\"factor\":8.0,\"low_freq_factor\":1.0,"
    "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":32,\"rope_type\":\"llama3\"}}",
    "{" LLAMA SAYS ",\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"default\"}}",
    "{" LLAMA SAYS ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}",
    "{" LLAMA SAYS
    ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"type\":\"yarn\",\"factor\":4.0,\"mscale\":"
    "1.0,\"mscale_all_dim\":0.8,\"beta_fast\":24}}",
    "{" QWEN2 SAYS ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":null,\"original_max_position_"
    "embeddings\":16},\"rope_theta\":1000000.0}",
    "{" LLAMA SAYS ",\"partial_rotary_factor\":1.0,\"original_max_position_embeddings\":32,"
    "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}}",
    "{" PHI3 SAYS ",\"original_max_position_embeddings\":16,\"rope_scaling\":{\"type\":\"su\","
    "\"short_factor\":[1,1.0,1.10,1.3],\"long_factor\":[1,2.5e0,4,9]}}",
    /* what switches a feature off */
    "{" LLAMA SAYS
    ",\"quantization_config\":null,\"auto_map\":{},\"pruned_heads\":{},\"is_decoder\":"
    "true,\"use_mrope\":false,\"sliding_window\":null}",
    "{" LLAMA SAYS ",\"heddle_tokenizer\":\"bytes\"}",
};

static void merged(const char *base, const struct hd_job *job, enum hd_dtype dtype,
                   int64_t positions, struct hd_text *ret_text)
{
    const struct hd_hf_description now = {.job = job,
                                          .dtype = dtype,
                                          .positions = positions,
                                          .bos = -1,
                                          .eos = -1,
                                          .pad = hd_hf_pad_token(base, strlen(base))};

    must(hd_hf_merge(&now, base, strlen(base), ret_text));
}

static void an_untouched_export_says_what_its_base_said(void **state)
{
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        struct hd_job job = HD_JOB(.arena = job_arena());
        struct hd_text text = {0};
        char keys[TEXT_MAX];

        if (hd_hf_parse_config(folders[i], strlen(folders[i]), &job, NULL))
            fail_msg("%s: %s", folders[i], hd_err_message());
        merged(folders[i], &job, HD_F32, job.context, &text);
        differences(folders[i], text.data, keys);
        /* num_local_experts and num_experts, n_embd and hidden_size stay both */
        if (*keys && strcmp(keys, "+architectures") != 0)
            fail_msg("%s\n%s\ndiffer in: %s", folders[i], text.data, keys);
        hd_text_free(&text);
    }
}

/* Goal: the order of keys decides nothing. Method: each file with its members the other way round,
 * also those of groups. */
static void reversed(const struct hd_json *v, const char *key, struct hd_json_writer *w)
{
    const struct hd_json *members[64];
    size_t n = 0;

    if (v->kind != HD_JSON_OBJECT) {
        hd_json_add_value(w, key, v);
        return;
    }
    for (const struct hd_json *m = v->first; m; m = m->next)
        members[n++] = m;
    hd_json_begin(w, key, '{');
    while (n--)
        reversed(members[n], members[n]->key, w);
    hd_json_end(w, '}');
}

static void reverse(const char *text, struct hd_text *ret_text)
{
    struct hd_json_writer w = {.out = ret_text};
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    reversed(parsed(&arena, text), NULL, &w);
    hd_arena_done(&arena);
}

static void the_order_of_keys_decides_nothing(void **state)
{
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        struct hd_job one = HD_JOB(.arena = job_arena()), other = HD_JOB(.arena = job_arena());
        struct hd_text text = {0};

        reverse(folders[i], &text);
        must(hd_hf_parse_config(folders[i], strlen(folders[i]), &one, NULL));
        must(hd_hf_parse_config(text.data, text.len_bytes, &other, NULL));
        if (job_difference(&one, &other))
            fail_msg("%s and its reverse are two models", folders[i]);
        hd_text_free(&text);
    }
}

/* ---- what a run changes ---- */

static void shorten(struct hd_job *job)
{
    job->context /= 2;
}
/* A checkpoint of an older build, whose base is gone, has no rows behind its context. */
static void lose_positions(struct hd_job *job)
{
    job->context /= 2;
}
static void drop_out(struct hd_job *job)
{
    job->dropout_attention = 0.25;
}
static void balance(struct hd_job *job)
{
    job->balance *= 2;
}
static void untie(struct hd_job *job)
{
    job->tie_embeddings = false;
}
static void reward(struct hd_job *job)
{
    job->objective = HD_JOB_OBJECTIVE_REWARD;
}
static void turn(struct hd_job *job)
{
    job->rope_theta = 123;
}
static void narrow(struct hd_job *job)
{
    job->window = 4;
}
static void nothing(struct hd_job *job)
{
}

static void a_changed_export_differs_in_what_the_run_changed(void **state)
{
    static const struct {
        const char *base;
        void (*change)(struct hd_job *job);
        enum hd_dtype dtype;
        const char *keys; /* "+": new in the export */
    } cases[] = {
        {"{" GPT2 SAYS ",\"n_ctx\":40}", shorten, HD_F32, "+architectures"},
        {"{" LLAMA SAYS "}", shorten, HD_F32, "+architectures"},
        {"{" GPT2 SAYS ",\"n_ctx\":40}", lose_positions, HD_F32,
         "n_positions n_ctx +architectures"},
        {"{" GPT2 SAYS ",\"attn_pdrop\":0.1}", drop_out, HD_F32, "attn_pdrop +architectures"},
        {"{" MIXTRAL SAYS ",\"router_jitter_noise\":0.1}", balance, HD_F32,
         "+architectures +router_aux_loss_coef"},
        {"{" LLAMA SAYS ",\"tie_word_embeddings\":true}", untie, HD_F32,
         "tie_word_embeddings +architectures"},
        {"{" LLAMA SAYS "}", nothing, HD_BF16, "torch_dtype +architectures"},
        /* a newer name would be read first, and be wrong */
        {"{" LLAMA SAYS ",\"dtype\":\"float32\"}", nothing, HD_BF16,
         "torch_dtype dtype +architectures"},
        {"{" LLAMA ",\"dtype\":\"bfloat16\"}", nothing, HD_BF16, "+architectures"},
        {"{" LLAMA "}", nothing, HD_F32, "+architectures +torch_dtype"},
        {"{" LLAMA SAYS ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"rope_theta\":7}}",
         turn, HD_F32, "rope_scaling +architectures +rope_theta"},
        {"{" QWEN2 SAYS ",\"use_sliding_window\":true,\"layer_types\":[\"sliding_attention\","
         "\"sliding_attention\"]}",
         narrow, HD_F32, "layer_types +architectures +max_window_layers +sliding_window"},
        {"{" LLAMA SAYS
         ",\"quantization_config\":{\"quant_method\":\"bitsandbytes\",\"load_in_8bit\":"
         "true}}",
         nothing, HD_F32, "quantization_config +architectures"},
        /* a reward model has one label, and a token of padding that ends no answer */
        {"{" LLAMA SAYS
         ",\"architectures\":[\"LlamaForCausalLM\"],\"num_labels\":3,\"problem_type\":"
         "\"single_label_classification\",\"pad_token_id\":2,\"eos_token_id\":2,\"bos_token_id\":"
         "1}",
         reward, HD_F32, "architectures num_labels problem_type pad_token_id +id2label +label2id"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_job job = HD_JOB(.arena = job_arena());
        struct hd_text text = {0};
        char keys[TEXT_MAX];
        int64_t positions;

        must(hd_hf_parse_config(cases[i].base, strlen(cases[i].base), &job, NULL));
        positions = job.context;
        cases[i].change(&job);
        if (cases[i].change == lose_positions)
            positions = job.context;
        merged(cases[i].base, &job, cases[i].dtype, positions, &text);
        differences(cases[i].base, text.data, keys);
        if (strcmp(keys, cases[i].keys) != 0)
            fail_msg("%s\n%s\ndiffer in: %s\nnot in: %s", cases[i].base, text.data, keys,
                     cases[i].keys);
        hd_text_free(&text);
    }
}

/* An adapter that a run went on from: what the run did not change is in its file's words. */
static void an_adapter_keeps_the_keys_of_the_one_before(void **state)
{
    struct hd_text before = {0}, now = {0}, text = {0};
    char keys[TEXT_MAX];

    hd_text_add(&before, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8.0,\"target_modules\":"
                         "\".*q_proj\",\"layers_pattern\":null,\"lora_dropout\":0.1,"
                         "\"init_lora_weights\":\"gaussian\",\"revision\":\"main\","
                         "\"base_model_name_or_path\":\"a/b\"}");
    hd_text_add(&now, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8,\"target_modules\":"
                      "[\"self_attn.q_proj\"],\"lora_dropout\":0.25,\"bias\":\"none\","
                      "\"base_model_name_or_path\":\"/models/b\"}");
    must(hd_export_merge_adapter(&before, &now, &text));
    differences(before.data, text.data, keys);
    assert_string_equal(keys, "lora_dropout revision base_model_name_or_path +bias");
    hd_text_free(&before);
    hd_text_free(&now);
    hd_text_free(&text);
}

/* ---- two names for one thing ---- */

/* Right: transformers 5.24 (LlamaConfig(...).rope_parameters and, of yarn, attention_scaling; of
 * Mixtral default_theta = 1e6). Each is also read with its keys the other way round. */
static void rotary_keys_count_as_in_transformers(void **state)
{
    static const struct {
        const char *text, *type;
        double theta, factor;
        int64_t original;
        double attention; /* 0: of the factor */
        const char *note; /* NULL: nothing contradicts */
    } cases[] = {
        {LLAMA, "none", 1e4, 1, 0, 0, NULL},
        {MIXTRAL, "none", 1e6, 1, 0, 0, NULL},
        {LLAMA ",\"rope_theta\":7000", "none", 7000, 1, 0, 0, NULL},
        {LLAMA
         ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"type\":\"linear\",\"factor\":8,\"low_freq_"
         "factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":32}",
         "llama3", 1e4, 8, 32, 0, "rope_type counts"},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\",\"type\":\"llama3\",\"factor\":3}",
         "linear", 1e4, 3, 0, 0, "rope_type counts"},
        {LLAMA
         ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":3,\"rope_theta\":300},\"rope_theta\":"
         "7000",
         "linear", 300, 3, 0, 0, "300 counts"},
        {LLAMA
         ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":300},\"rope_theta\":7000",
         "none", 300, 1, 0, 0, "300 counts"},
        {LLAMA
         ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":7000.0},\"rope_theta\":"
         "7e3",
         "none", 7000, 1, 0, 0, NULL},
        /* the older group replaces the newer one, whole, unless it is empty */
        {LLAMA
         ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2,\"rope_theta\":300},\"rope_"
         "scaling\":{\"type\":\"linear\",\"factor\":4}",
         "linear", 1e4, 4, 0, 0, "rope_scaling counts"},
        {MIXTRAL ",\"rope_parameters\":{\"rope_theta\":300},\"rope_scaling\":{\"type\":\"linear\","
                 "\"factor\":4},\"rope_theta\":9",
         "linear", 9, 4, 0, 0, "rope_scaling counts"},
        {LLAMA
         ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2,\"rope_theta\":300},\"rope_"
         "scaling\":{}",
         "linear", 300, 2, 0, 0, NULL},
        {LLAMA
         ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2,\"rope_theta\":300},\"rope_"
         "scaling\":null,\"rope_theta\":null",
         "linear", 300, 2, 0, 0, NULL},
        /* a type is named, or the group is the default's and its factor is not used */
        {LLAMA ",\"rope_scaling\":{\"factor\":2}", "none", 1e4, 1, 0, 0,
         "factor of config.json is not"},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"default\",\"factor\":2}", "none", 1e4, 1, 0, 0,
         "is not used: its type is default"},
        {LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"beta_fast\":9}", "linear",
         1e4, 2, 0, 0, "beta_fast of config.json is not used"},
        /* the original context: beside the group, in it, else max_position_embeddings = 64 */
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}", "yarn", 1e4, 4, 64, 0,
         NULL},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4},\"original_max_position_"
               "embeddings\":32",
         "yarn", 1e4, 4, 32, 0, NULL},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_"
               "embeddings\":16},\"original_max_position_embeddings\":32",
         "yarn", 1e4, 4, 32, 0, "two values of original_max_position_embeddings"},
        {LLAMA
         ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_"
         "freq_factor\":4}",
         "llama3", 1e4, 8, 64, 0, NULL},
        {LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4},\"original_max_position_"
               "embeddings\":32",
         "linear", 1e4, 4, 0, 0, NULL},
        /* factor null: 64 / 16 */
        {LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":null,\"original_max_position_"
               "embeddings\":16}",
         "yarn", 1e4, 4, 16, 0, NULL},
        /* (0.1 ln 4 + 1) / (0.05 ln 4 + 1) = 1.0648216253 */
        {LLAMA
         ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"mscale\":1,\"mscale_all_dim\":0.5}",
         "yarn", 1e4, 4, 64, 1.0648216253, NULL},
        {LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"mscale\":1}", "yarn", 1e4, 4,
         64, 0, NULL},
        {LLAMA
         ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"mscale\":1,\"mscale_all_dim\":0.5,"
         "\"attention_factor\":1.25}",
         "yarn", 1e4, 4, 64, 1.25, NULL},
        {LLAMA
         ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2,\"partial_rotary_factor\":1},"
         "\"partial_rotary_factor\":0.5",
         "linear", 1e4, 2, 0, 0, "partial_rotary_factor"},
    };

    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        struct hd_job job = HD_JOB(.arena = job_arena());
        struct hd_text notes = {0}, text = {0}, turned = {0};

        hd_text_add(&text, "{%s}", cases[i / 2].text);
        reverse(text.data, &turned);
        if (hd_hf_parse_config(i % 2 ? turned.data : text.data,
                               i % 2 ? turned.len_bytes : text.len_bytes, &job, &notes))
            fail_msg("%s: %s", text.data, hd_err_message());
        if (strcmp(hd_job_rope_scaling_words[job.rope_scaling], cases[i / 2].type) != 0 ||
            job.rope_theta != cases[i / 2].theta || job.rope_factor != cases[i / 2].factor ||
            job.rope_original_context != cases[i / 2].original ||
            job.rope_attention_factor - cases[i / 2].attention > 1e-9 ||
            cases[i / 2].attention - job.rope_attention_factor > 1e-9)
            fail_msg("%s: %s %g %g %d %.12g", i % 2 ? turned.data : text.data,
                     hd_job_rope_scaling_words[job.rope_scaling], job.rope_theta, job.rope_factor,
                     (int)job.rope_original_context, job.rope_attention_factor);
        if (cases[i / 2].note ? !notes.data || !strstr(notes.data, cases[i / 2].note)
                              : notes.len_bytes > 0)
            fail_msg("%s: notes '%s'", text.data, notes.data ? notes.data : "");
        hd_text_free(&text);
        hd_text_free(&turned);
        hd_text_free(&notes);
    }
}

/* transformers 5 ends with a KeyError or a TypeError, or computes nonsense. */
static void a_rotary_type_without_its_keys_is_refused(void **state)
{
    static const char *const refused[][2] = {
        {LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}", "rope_scaling.factor is missing"},
        {LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":null}", "factor is missing"},
        {LLAMA
         ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8,\"high_freq_factor\":4}",
         "rope_parameters.low_freq_factor is missing"},
        {LLAMA ",\"rope_scaling\":{\"type\":\"yarn\"}", "rope_scaling.factor is missing"},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":null,\"type\":\"linear\",\"factor\":2}",
         "rope_scaling.rope_type: null is not supported"},
        {LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":\"2\"}", "is not a number"},
        {LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"odd_key\":1}", "odd_key"},
        {LLAMA ",\"rope_scaling\":[1]", "it must be an object or null"},
        {LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"truncate\":0}",
         "rope_scaling.truncate: 0"},
        {LLAMA ",\"partial_rotary_factor\":0.5", "partial_rotary_factor: 0.5"},
    };

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct hd_job job = HD_JOB(.arena = job_arena());
        char text[TEXT_MAX];

        (void)snprintf(text, sizeof text, "{%s}", refused[i][0]);
        if (!hd_hf_parse_config(text, strlen(text), &job, NULL) ||
            !strstr(hd_err_message(), refused[i][1]))
            fail_msg("%s: %s", text, hd_err_message());
    }
}

/* Right: transformers 5.24: attribute_map's names are set last; Python's json takes the last of two
 * members; null and absent are what the class's __post_init__ makes of them. */
static void other_names_count_as_in_transformers(void **state)
{
    static const struct {
        const char *text, *key;
        int64_t value;
        const char *note;
    } cases[] = {
        {GPT2 ",\"max_position_embeddings\":16", "model.context", 16,
         "max_position_embeddings counts"},
        {GPT2 ",\"hidden_size\":24", "model.hidden", 24, "hidden_size counts"},
        {GPT2 ",\"hidden_size\":48", "model.hidden", 48, NULL},
        {GPT2 ",\"hidden_size\":null", "model.hidden", 48, NULL},
        {GPT2 ",\"n_ctx\":7", "model.context", 40, NULL},
        {GPT2 ",\"num_hidden_layers\":5", "model.layers", 5, "num_hidden_layers counts"},
        {GPT2 ",\"num_attention_heads\":6", "model.heads", 6, "num_attention_heads counts"},
        {GPT2 ",\"num_attention_heads\":6", "model.kv_heads", 6, "num_attention_heads counts"},
        {MIXTRAL ",\"num_experts\":6,\"num_local_experts\":4", "model.experts", 6,
         "num_experts counts"},
        {MIXTRAL ",\"num_experts\":6", "model.experts", 6, NULL},
        {MIXTRAL, "model.experts", 8, NULL},
        {LLAMA ",\"num_key_value_heads\":null", "model.kv_heads", 6, NULL},
        {"\"model_type\":\"mistral\",\"num_key_value_heads\":null," SIZES, "model.kv_heads", 6,
         NULL},
        {"\"model_type\":\"mistral\"," SIZES, "model.kv_heads", 8, NULL},
        {"\"model_type\":\"mixtral\"," SIZES, "model.kv_heads", 8, NULL},
        {"\"model_type\":\"qwen2\"," SIZES, "model.kv_heads", 32, NULL},
        {"\"model_type\":\"qwen3\",\"num_key_value_heads\":2," SIZES, "model.head_width", 128,
         NULL},
        {"\"model_type\":\"qwen2\",\"num_key_value_heads\":2," SIZES, "model.head_width", 8, NULL},
        {QWEN2 ",\"head_dim\":16", "model.head_width", 16, NULL},
        {LLAMA ",\"head_dim\":null", "model.head_width", 8, NULL},
        {LLAMA ",\"vocab_size\":31", "model.vocab", 31, "vocab_size twice; the last, 31, counts"},
        /* a window: of two keys and a list the list says which layers, the switch whether at all */
        {QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":9,\"max_window_layers\":0,\"layer_"
               "types\":[\"full_attention\",\"sliding_attention\"]",
         "model.window_from", 1, NULL},
        {QWEN2 ",\"use_sliding_window\":false,\"sliding_window\":9,\"max_window_layers\":0",
         "model.window", 0, NULL},
        {QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":null", "model.window", 0, NULL},
        {MISTRAL, "model.window", 4096, NULL},
        {MISTRAL ",\"sliding_window\":null", "model.window", 0, NULL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_job job = HD_JOB(.arena = job_arena());
        struct hd_text notes = {0}, value = {0};
        char text[TEXT_MAX], expected[32];

        (void)snprintf(text, sizeof text, "{%s}", cases[i].text);
        (void)snprintf(expected, sizeof expected, "%lld", (long long)cases[i].value);
        must(hd_hf_parse_config(text, strlen(text), &job, &notes));
        must(hd_job_format(hd_job_find_key(cases[i].key), &job, &value));
        if (strcmp(value.data, expected) != 0)
            fail_msg("%s: %s is %s, not %s", text, cases[i].key, value.data, expected);
        if (cases[i].note ? !notes.data || !strstr(notes.data, cases[i].note) : notes.len_bytes > 0)
            fail_msg("%s: notes '%s'", text, notes.data ? notes.data : "");
        hd_text_free(&value);
        hd_text_free(&notes);
    }
}

/* ---- weights that config.json does not expect ---- */

struct folder {
    char path[64];
};

/* A folder with this config.json, and tensors [97, 48] of fp32 under these names, each filled with
 * its value. */
static void make_folder(struct folder *f, const char *config, const char *const *names,
                        const float *values, size_t count)
{
    enum { ELEMENTS = 97 * 48 };
    struct hd_text text = {0}, head = {0};
    char path[128];

    (void)snprintf(f->path, sizeof f->path, "%s/tied-XXXXXX",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(f->path));
    (void)snprintf(path, sizeof path, "%s/config.json", f->path);
    must(hd_file_write_atomic(path, config, strlen(config), 0644));
    hd_text_add(&head, "{");
    for (size_t i = 0; i < count; i++)
        hd_text_add(&head,
                    "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[97,48],\"data_offsets\":[%zu,%zu]}",
                    i ? "," : "", names[i], i * ELEMENTS * 4, (i + 1) * ELEMENTS * 4);
    hd_text_add(&head, "}");
    for (int i = 0; i < 8; i++) {
        const char byte = (char)((uint64_t)head.len_bytes >> (8 * i));

        hd_text_add_bytes(&text, &byte, 1);
    }
    hd_text_add_bytes(&text, head.data, head.len_bytes);
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < ELEMENTS; k++) {
            const float value = k == ELEMENTS - 1 ? values[i] : (float)k;

            hd_text_add_bytes(&text, &value, sizeof value);
        }
    (void)snprintf(path, sizeof path, "%s/model.safetensors", f->path);
    must(hd_file_write_atomic(path, text.data, text.len_bytes, 0644));
    hd_text_free(&text);
    hd_text_free(&head);
}

/* transformers 5 unties what differs in one value, and warns; what is equal stays tied. */
static void a_tied_head_that_differs_is_a_weight_of_its_own(void **state)
{
    static const struct {
        const char *names[2];
        float values[2];
        size_t count;
        bool tied;
    } cases[] = {
        {{"model.embed_tokens.weight", "lm_head.weight"}, {1, 1}, 2, true},
        {{"model.embed_tokens.weight", "lm_head.weight"}, {0.0F, -0.0F}, 2, true},
        {{"model.embed_tokens.weight", "lm_head.weight"}, {1, 2}, 2, false},
        {{"embed_tokens.weight", "lm_head.weight"}, {1, 2}, 2, false},
        {{"model.embed_tokens.weight", ""}, {1, 0}, 1, true},
        {{"lm_head.weight", ""}, {1, 0}, 1, true},
        {{"gpt_neox.embed_in.weight", "embed_out.weight"}, {1, 2}, 2, false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_job job = HD_JOB(.arena = job_arena());
        struct hd_text notes = {0};
        struct folder f;

        make_folder(&f,
                    strstr(cases[i].names[0], "neox") ? "{\"model_type\":\"gpt_neox\"," SIZES
                                                        ",\"tie_word_embeddings\":true}"
                                                      : "{" LLAMA ",\"tie_word_embeddings\":true}",
                    cases[i].names, cases[i].values, cases[i].count);
        must(hd_hf_read_config(f.path, &job, &notes));
        assert_int_equal(job.tie_embeddings, cases[i].tied);
        if (cases[i].tied)
            assert_int_equal(notes.len_bytes, 0);
        else
            assert_non_null(strstr(notes.data, " differs from "));
        hd_text_free(&notes);
        must(hd_file_remove_tree(f.path));
    }
}

RUN_CASES()
