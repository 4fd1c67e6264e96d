/* quantization: reads quantization_config of config.json, as bitsandbytes' integration in
 * transformers writes it. The weights tell which of them are quantized and how; this key tells
 * whether the kind can be read at all. */
#include <string.h>

#include "hf/hf_internal.h"

/* Keys of quantization_config without an effect in Heddle: how a product computes, and what
 * transformers' loader would do. */
static const char *const harmless[] = {"bnb_4bit_compute_dtype", "llm_int8_threshold",
                                       "llm_int8_enable_fp32_cpu_offload", "quant_method",
                                       "modules_to_not_convert"};
/* Keys of quantization_config that tell the kind of quantization. */
static const char *const kinds[] = {"load_in_4bit", "_load_in_4bit", "load_in_8bit",
                                    "_load_in_8bit"};

static bool is_one_of(const char *key, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(key, names[i]) == 0)
            return true;
    return false;
}

#define IS_ONE_OF(key, names) is_one_of(key, names, sizeof(names) / sizeof(names)[0])

static bool is_true(const struct hd_json *config, const char *key)
{
    const struct hd_json *v = hd_json_member(config, key);

    return v && v->kind == HD_JSON_TRUE;
}

static bool has_word(const struct hd_json *v, const char *word)
{
    return v->kind == HD_JSON_STRING && strcmp(v->text, word) == 0;
}

/* Returns whether a list of unquantized modules has modules of blocks; those outside of blocks are
 * plain in any case. */
static bool skips_blocks(const struct hd_json *v)
{
    for (const struct hd_json *m = v->first; m; m = m->next)
        if (m->kind != HD_JSON_STRING ||
            (strcmp(m->text, "lm_head") != 0 && strcmp(m->text, "embed_tokens") != 0 &&
             strcmp(m->text, "wte") != 0 && strcmp(m->text, "wpe") != 0))
            return true;
    return false;
}

static enum hd_status check_member(const struct hd_json *v, bool nf4)
{
    const char *key = v->key;

    if (IS_ONE_OF(key, harmless) || IS_ONE_OF(key, kinds))
        return HD_OK;
    if (strcmp(key, "bnb_4bit_quant_type") == 0)
        return !nf4 || has_word(v, "nf4")
                   ? HD_OK
                   : hd_err(HD_UNSUPPORTED, "%s: only nf4 is supported", key);
    if (strcmp(key, "bnb_4bit_use_double_quant") == 0)
        return !nf4 || v->kind == HD_JSON_TRUE
                   ? HD_OK
                   : hd_err(HD_UNSUPPORTED, "%s: only true is supported", key);
    if (strcmp(key, "bnb_4bit_quant_storage") == 0)
        return !nf4 || has_word(v, "uint8")
                   ? HD_OK
                   : hd_err(HD_UNSUPPORTED, "%s: only uint8 is supported", key);
    if (strcmp(key, "llm_int8_has_fp16_weight") == 0)
        return v->kind == HD_JSON_FALSE
                   ? HD_OK
                   : hd_err(HD_UNSUPPORTED, "%s: only false is supported", key);
    if (strcmp(key, "llm_int8_skip_modules") == 0)
        return !skips_blocks(v)
                   ? HD_OK
                   : hd_err(HD_UNSUPPORTED,
                            "%s: names modules of blocks; only lm_head and embeddings may stay "
                            "plain",
                            key);
    return hd_err(HD_UNSUPPORTED, "%s: this key is not known", key);
}

/* Checks the quantization_config of weights in fp8 with a scale for each block. Its other keys tell
 * how products are computed, and which matrices are plain, as the tensors show. */
static enum hd_status read_fp8(const struct hd_json *config)
{
    const struct hd_json *format = hd_json_member(config, "fmt");
    const struct hd_json *block = hd_json_member(config, "weight_block_size");
    bool square = block && block->kind == HD_JSON_ARRAY && block->count == 2;

    for (const struct hd_json *v = square ? block->first : NULL; v; v = v->next) {
        int64_t size = 0;

        square = square && !hd_json_to_int64(v, 1, 1 << 20, &size) && size == HD_HF_FP8_BLOCK;
    }
    if ((format && !has_word(format, "e4m3")) || !square)
        return hd_err(
            HD_UNSUPPORTED,
            "quantization_config: of fp8 only e4m3 with weight_block_size [%d, %d] is read",
            HD_HF_FP8_BLOCK, HD_HF_FP8_BLOCK);
    return HD_OK;
}

enum hd_status hd_hf_read_quantization(const struct hd_json *config, struct hd_job *job)
{
    const struct hd_json *method = hd_json_member(config, "quant_method");
    const bool nf4 = is_true(config, "load_in_4bit") || is_true(config, "_load_in_4bit");
    const bool int8 = is_true(config, "load_in_8bit") || is_true(config, "_load_in_8bit");
    enum hd_status st = HD_OK;

    if (config->kind == HD_JSON_OBJECT && method && has_word(method, "fp8"))
        return read_fp8(config);
    if (method && has_word(method, "mxfp4")) /* experts, which are decoded (quantized.c) */
        return HD_OK;
    if (config->kind != HD_JSON_OBJECT || (method && !has_word(method, "bitsandbytes")) ||
        nf4 == int8)
        return hd_err(HD_UNSUPPORTED,
                      "quantization_config: only weights of bitsandbytes are read, of 4 bits (nf4) "
                      "or of 8; use a folder with those, or with plain weights");
    for (const struct hd_json *v = config->first; !st && v; v = v->next)
        st = check_member(v, nf4);
    if (st)
        return hd_err_prefix(st, "quantization_config");
    job->model_weights = nf4 ? HD_JOB_MODEL_WEIGHTS_NF4 : HD_JOB_MODEL_WEIGHTS_INT8;
    return HD_OK;
}
