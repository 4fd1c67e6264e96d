/* Promises, of what comes from strangers in a model directory (the first byte says which file): a
 * head of safetensors that is accepted covers its data, tensor by tensor, within the bytes given;
 * an index names only plain files of its folder; a config.json that is accepted has every number in
 * the range of a job, and what is written from it reads back to the same model; an
 * adapter_config.json that is accepted has numbers of a job, too. */
#include <stdlib.h>
#include <string.h>

#include "hf/hf_internal.h"
#include "tests/fuzz/driver.h"

#define ARENA_MAX (64u << 20)

static void promise(bool kept)
{
    if (!kept)
        abort();
}

static void try_head(const uint8_t *bytes, size_t size)
{
    struct hd_weight *weights = NULL;
    struct hd_arena arena;
    int64_t covered = 0;
    size_t count = 0;

    hd_arena_init(&arena, ARENA_MAX);
    if (!hd_weights_parse(&arena, bytes, (int64_t)size, &weights, &count)) {
        for (size_t i = 0; i < count; i++) {
            const uint8_t *data = weights[i].data;

            promise(data >= bytes + 8 && weights[i].size_bytes >= 0);
            promise(weights[i].size_bytes <= bytes + size - data);
            promise(strlen(weights[i].name) < HD_WEIGHTS_NAME_MAX);
            covered += weights[i].size_bytes;
        }
        promise(count == 0 || (const uint8_t *)weights[0].data + covered == bytes + size);
    }
    hd_arena_done(&arena);
}

static void try_index(const char *text, size_t size)
{
    const struct hd_json *map = NULL;
    const char **names = NULL;
    struct hd_arena arena;
    size_t count = 0;

    hd_arena_init(&arena, ARENA_MAX);
    if (!hd_hf_parse_index(&arena, text, size, &map, &names, &count)) {
        promise(count >= 1 && count <= map->count);
        for (size_t i = 0; i < count; i++)
            promise(!strchr(names[i], '/') && names[i][0] != '.' &&
                    (i == 0 || strcmp(names[i - 1], names[i]) < 0));
    }
    hd_arena_done(&arena);
}

/* Checks that an export of an untouched model reads back to the same model. */
static void try_merge(const char *text, size_t size, const struct hd_job *job)
{
    const struct hd_hf_description now = {.job = job,
                                          .dtype = HD_F32,
                                          .positions = job->context,
                                          .bos = -1,
                                          .eos = -1,
                                          .pad = hd_hf_pad_token(text, size)};
    struct hd_job again = HD_JOB(.arena = job->arena);
    struct hd_text out = {0};

    if (!hd_hf_merge(&now, text, size, &out)) {
        promise(!hd_hf_parse_config(out.data, out.len_bytes, &again, NULL));
        promise(again.layers == job->layers && again.hidden == job->hidden &&
                again.heads == job->heads && again.kv_heads == job->kv_heads &&
                again.context == job->context && again.experts == job->experts &&
                again.window == job->window && again.window_from == job->window_from &&
                again.rope_theta == job->rope_theta && again.rope_factor == job->rope_factor &&
                again.rope_original_context == job->rope_original_context &&
                again.balance == job->balance && again.tie_embeddings == job->tie_embeddings &&
                again.objective == job->objective);
    }
    hd_text_free(&out);
}

static void try_config(const char *text, size_t size)
{
    struct hd_arena arena;
    struct hd_job job, again;
    struct hd_text notes = {0}, out = {0};

    hd_arena_init(&arena, 0);
    hd_job_init(&job, &arena);
    hd_job_init(&again, &arena);
    if (!hd_hf_parse_config(text, size, &job, &notes)) {
        promise(job.layers >= 1 && job.layers <= 1024 && job.hidden >= 1 && job.heads >= 1);
        promise(job.kv_heads >= 1 && job.vocab >= 2 && job.context >= 1 && job.ffn_hidden >= 1);
        promise(job.window >= 0 && job.window_from >= 0 && job.window_from <= job.layers);
        promise(job.rope_theta >= 1 && job.norm_eps > 0);
        promise(job.dropout_attention >= 0 && job.dropout_attention <= 0.99);
        try_merge(text, size, &job);
        if (!hd_hf_write_config(&job, HD_F32, &out)) {
            promise(!hd_hf_parse_config(out.data, out.len_bytes, &again, NULL));
            promise(again.hidden == job.hidden && again.head_width == job.head_width &&
                    again.dropout_attention == job.dropout_attention &&
                    again.dropout_residual == job.dropout_residual && again.window == job.window &&
                    again.window_from == job.window_from && again.qkv_bias == job.qkv_bias &&
                    again.rope_factor == job.rope_factor &&
                    again.tie_embeddings == job.tie_embeddings);
        }
    }
    hd_text_free(&notes);
    hd_text_free(&out);
    hd_arena_done(&arena);
}

static void try_adapter(const char *text, size_t size)
{
    struct hd_arena arena;
    struct hd_job job;

    hd_arena_init(&arena, 0);
    hd_job_init(&job, &arena);
    if (!hd_hf_parse_adapter_config(text, size, &job))
        promise(job.adapter == HD_JOB_ADAPTER_PREFIX
                    ? job.adapter_tokens >= 1 && job.adapter_tokens <= 4096
                    : job.adapter == HD_JOB_ADAPTER_LORA && job.adapter_rank >= 1 &&
                          job.adapter_rank <= 1024 && job.adapter_alpha >= 1e-6 &&
                          job.adapter_alpha <= 1e6);
    hd_arena_done(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    if (size_bytes < 1)
        return 0;
    switch (bytes[0] % 4) {
    case 0:
        try_head(bytes + 1, size_bytes - 1);
        break;
    case 1:
        try_index((const char *)bytes + 1, size_bytes - 1);
        break;
    case 2:
        try_config((const char *)bytes + 1, size_bytes - 1);
        break;
    default:
        try_adapter((const char *)bytes + 1, size_bytes - 1);
    }
    return 0;
}

static size_t put_head(uint8_t *ret_bytes, const char *json, size_t data_bytes)
{
    const size_t n = strlen(json);

    memset(ret_bytes, 0, 9 + n + data_bytes);
    ret_bytes[1] = (uint8_t)n;
    ret_bytes[2] = (uint8_t)(n >> 8);
    memcpy(ret_bytes + 9, json, n);
    return 9 + n + data_bytes;
}

static size_t put_text(uint8_t *ret_bytes, uint8_t kind, const char *text)
{
    ret_bytes[0] = kind;
    memcpy(ret_bytes + 1, text, strlen(text));
    return 1 + strlen(text);
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    static const char *const configs[] = {
        "{\"model_type\":\"gpt2\",\"vocab_size\":97,\"n_embd\":48,\"n_layer\":2,\"n_head\":3,"
        "\"n_positions\":40,\"n_inner\":null,\"attn_pdrop\":0.1,\"scale_attn_weights\":true}",
        "{\"model_type\":\"llama\",\"vocab_size\":97,\"hidden_size\":48,\"intermediate_size\":80,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":6,\"max_position_embeddings\":64,"
        "\"attention_bias\":true,\"mlp_bias\":true,\"rope_scaling\":{\"type\":\"llama3\","
        "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
        "\"original_max_position_embeddings\":32}}",
        "{\"model_type\":\"mistral\",\"vocab_size\":97,\"hidden_size\":48,"
        "\"intermediate_size\":80,\"num_hidden_layers\":2,\"num_attention_heads\":6,"
        "\"num_key_value_heads\":2,\"head_dim\":16,\"max_position_embeddings\":64,"
        "\"sliding_window\":9,\"tie_word_embeddings\":true}",
        "{\"model_type\":\"qwen3\",\"vocab_size\":97,\"hidden_size\":48,\"intermediate_size\":80,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":6,\"num_key_value_heads\":2,"
        "\"max_position_embeddings\":64,\"use_sliding_window\":true,\"sliding_window\":7,"
        "\"layer_types\":[\"full_attention\",\"sliding_attention\"],\"rope_parameters\":"
        "{\"rope_type\":\"yarn\",\"rope_theta\":1e4,\"factor\":4.0,\"beta_fast\":32}}",
    };

    if (max_bytes < 1024)
        return 0;
    if (index == 0)
        return put_head(ret_bytes,
                        "{\"__metadata__\":{\"format\":\"pt\"},"
                        "\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[16,22]},"
                        "\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}",
                        22);
    if (index == 1)
        return put_text(ret_bytes, 1,
                        "{\"metadata\":{\"total_size\":16},\"weight_map\":{\"a\":"
                        "\"one.safetensors\",\"b\":\"two.safetensors\"}}");
    if (index == 6)
        return put_text(ret_bytes, 3,
                        "{\"peft_type\":\"LORA\",\"r\":8,\"lora_alpha\":16.0,\"bias\":\"none\","
                        "\"use_rslora\":true,\"use_dora\":false,\"rank_pattern\":{},"
                        "\"target_modules\":[\"q_proj\",\"v_proj\"],\"task_type\":\"CAUSAL_LM\"}");
    if (index == 7)
        return put_text(ret_bytes, 3,
                        "{\"peft_type\":\"PREFIX_TUNING\",\"num_virtual_tokens\":20,"
                        "\"num_layers\":2,\"num_attention_heads\":2,\"token_dim\":32,"
                        "\"encoder_hidden_size\":32,\"num_transformer_submodules\":1,"
                        "\"prefix_projection\":false,\"task_type\":\"CAUSAL_LM\"}");
    return index < 6 ? put_text(ret_bytes, 2, configs[index - 2]) : 0;
}
