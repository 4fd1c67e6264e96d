/* wrapper: folders of models of text and images whose text model is one of ours. Their config.json
 * has that of the text model as its member text_config, and the names of the text model's tensors
 * begin differently. Only the text model is read and trained; export_wrapped.c copies the rest. */
#include <stdio.h>
#include <string.h>

#include "base/words.h"
#include "hf/config_internal.h"

/* To add a wrapper whose tensors have the names of `forms`: a row here. */
static const struct hd_hf_wrapper wrappers[] = {
    {"gemma3", "Gemma3ForConditionalGeneration", "gemma3_text",
     "vision_config mm_tokens_per_image image_token_index boi_token_index eoi_token_index "
     "image_token_id boi_token_id eoi_token_id",
     true, HD_HF_WRAPPED_MODULES},
    {"qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5_text",
     "vision_config image_token_id video_token_id vision_start_token_id vision_end_token_id", false,
     HD_HF_WRAPPED_MODULES},
    {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text",
     "vision_config image_token_id video_token_id vision_start_token_id vision_end_token_id", false,
     HD_HF_WRAPPED_MODULES},
    {"llama4", "Llama4ForConditionalGeneration", "llama4_text",
     "vision_config boi_token_index eoi_token_index image_token_index boi_token_id eoi_token_id "
     "image_token_id",
     false, "language_model.model."},
    {"mistral3", "Mistral3ForConditionalGeneration", "mistral ministral3",
     "vision_config image_token_index image_token_id projector_hidden_act vision_feature_layer "
     "multimodal_projector_bias spatial_merge_size",
     true, HD_HF_WRAPPED_MODULES},
};

/* Beginnings of names in a wrapped model: those that published folders have and that transformers
 * writes, and those of the modules, as some versions saved them and as PEFT names them. */
static const struct hd_hf_prefixes forms[] = {
    {"language_model.model.", "language_model.", true},
    {HD_HF_WRAPPED_MODULES, "", true},
};
enum { FORM_COUNT = sizeof forms / sizeof forms[0] };

const struct hd_hf_wrapper *hd_hf_find_wrapper(const struct hd_json *root)
{
    const struct hd_json *type = hd_json_member(root, "model_type");

    for (size_t i = 0; type && i < sizeof wrappers / sizeof wrappers[0]; i++)
        if (type->kind == HD_JSON_STRING && strcmp(type->text, wrappers[i].type) == 0)
            return &wrappers[i];
    return NULL;
}

/* ---- config.json ---- */

static enum hd_status check_class(const struct hd_hf_wrapper *w, const struct hd_json *value)
{
    for (const struct hd_json *v = value->first; v; v = v->next)
        if (v->kind != HD_JSON_STRING || strcmp(v->text, w->head) != 0)
            return hd_hf_unsupported("architectures", v,
                                     "only language models are supported of this model_type");
    return HD_OK;
}

/* Reads one key beside text_config. */
static enum hd_status read_outer_key(struct hd_hf_reading *r, const struct hd_json *v)
{
    static const char read_later[] =
        "model_type text_config tie_word_embeddings dtype torch_dtype heddle_tokenizer";
    char text[HD_HF_QUOTE_MAX];

    if (v->kind == HD_JSON_NULL || hd_words_have(read_later, v->key) ||
        hd_words_have(r->wrapper->ignores, v->key) || hd_hf_is_harmless(v->key, r->family))
        return HD_OK;
    if (strcmp(v->key, "architectures") == 0)
        return check_class(r->wrapper, v);
    if (strcmp(v->key, "quantization_config") == 0)
        return hd_hf_read_quantization(v, r->job);
    return hd_err(HD_UNSUPPORTED,
                  "key %s of a %s model is not known to this build; if it does not matter for "
                  "training, remove it from the file",
                  hd_hf_quote(&(struct hd_json){.kind = HD_JSON_STRING, .text = v->key}, text),
                  r->wrapper->type);
}

enum hd_status hd_hf_unwrap(struct hd_hf_reading *r)
{
    const struct hd_json *text;

    r->wrapper = hd_hf_find_wrapper(r->root);
    if (!r->wrapper)
        return HD_OK;
    text = hd_json_member(r->root, "text_config");
    if (!text || text->kind != HD_JSON_OBJECT)
        return hd_err(HD_INVALID, "text_config of a %s model is missing, or no object",
                      r->wrapper->type);
    r->outer = r->root;
    r->root = text;
    return HD_OK;
}

/* Reads the head's tie: transformers 5 takes that of the wrapper. */
static enum hd_status read_outer_tie(struct hd_hf_reading *r)
{
    const struct hd_json *v = hd_json_member(r->outer, "tie_word_embeddings");

    if (v && v->kind != HD_JSON_NULL && v->kind != HD_JSON_TRUE && v->kind != HD_JSON_FALSE)
        return hd_hf_unsupported(v->key, v, "it must be true or false");
    r->job->tie_embeddings =
        v && v->kind != HD_JSON_NULL ? v->kind == HD_JSON_TRUE : r->wrapper->tied;
    return HD_OK;
}

enum hd_status hd_hf_read_outer(struct hd_hf_reading *r)
{
    enum hd_status st = HD_OK;

    for (const struct hd_json *v = r->outer->first; v && !st; v = v->next)
        st = read_outer_key(r, v);
    return st ? st : read_outer_tie(r);
}

/* ---- names of tensors ---- */

struct hd_hf_prefixes hd_hf_find_prefixes(const struct hd_weights *weights, const char *prefix,
                                          const char *embedding)
{
    const struct hd_hf_prefixes plain = {prefix, "", false}, bare = {"", "", false};
    char name[HD_WEIGHTS_NAME_MAX];

    (void)snprintf(name, sizeof name, "%s%s", prefix, embedding);
    if (hd_weights_find(weights, name))
        return plain;
    for (int i = 0; i < FORM_COUNT; i++) {
        (void)snprintf(name, sizeof name, "%s%s", forms[i].base, embedding);
        if (hd_weights_find(weights, name))
            return forms[i];
    }
    return hd_weights_find(weights, embedding) ? bare : plain;
}

bool hd_hf_is_of_text(const struct hd_hf_prefixes *p, const char *name)
{
    return !p->wrapped || hd_text_starts(name, *p->top ? p->top : p->base) ||
           strcmp(name, HD_HF_HEAD_NAME) == 0;
}

bool hd_hf_is_head(const struct hd_hf_prefixes *p, const char *name)
{
    return strcmp(name, HD_HF_NEOX_HEAD) == 0 || strcmp(name, HD_HF_HEAD_BIAS) == 0 ||
           (hd_text_starts(name, p->top) && strcmp(name + strlen(p->top), HD_HF_HEAD_NAME) == 0);
}

bool hd_hf_is_any_head(const char *name)
{
    bool is = strcmp(name, HD_HF_HEAD_NAME) == 0;

    for (int i = 0; i < FORM_COUNT && !is; i++)
        is = hd_hf_is_head(&forms[i], name);
    return is;
}

const char *hd_hf_find_adapter_prefix(const struct hd_weights *weights, const char *prefix,
                                      struct hd_arena *arena)
{
    const char *found = prefix;

    for (int i = 0; i < FORM_COUNT; i++) {
        const char *one = hd_arena_printf(arena, HD_HF_PEFT_PREFIX "%s", forms[i].base);

        for (size_t k = 0; one && k < hd_weights_count(weights); k++)
            if (hd_text_starts(hd_weights_at(weights, k)->name, one))
                found = one;
    }
    return found;
}
