/* ends: writes the tokens with which a run's texts begin, end and are filled into config.json,
 * generation_config.json and tokenizer_config.json of its export; transformers stops generation only
 * at the ids of the first two. */
#include <string.h>

#include "base/json.h"
#include "hf/hf_internal.h"

enum { VALUES_MAX = 1 << 16, DEPTH_MAX = 64 };

bool hd_hf_has_id(const struct hd_json *v, int64_t id)
{
    int64_t one;

    if (v && v->kind == HD_JSON_ARRAY) {
        for (const struct hd_json *c = v->first; c; c = c->next)
            if (!hd_json_to_int64(c, 0, INT32_MAX, &one) && one == id)
                return true;
        return false;
    }
    return v && !hd_json_to_int64(v, 0, INT32_MAX, &one) && one == id;
}

static bool is_none(const struct hd_json *v)
{
    return !v || v->kind == HD_JSON_NULL || (v->kind == HD_JSON_ARRAY && !v->count);
}

/* Writes eos_token_id: the ids that the file has, then the run's end token. */
static void put_eos(struct hd_json_writer *w, const struct hd_json *have, int64_t end)
{
    if (is_none(have)) {
        hd_json_add_int64(w, "eos_token_id", end);
        return;
    }
    hd_json_begin(w, "eos_token_id", '[');
    for (const struct hd_json *c = have->kind == HD_JSON_ARRAY ? have->first : have; c;
         c = have->kind == HD_JSON_ARRAY ? c->next : NULL)
        hd_json_add_value(w, NULL, c);
    hd_json_add_int64(w, NULL, end);
    hd_json_end(w, ']');
}

static enum hd_status rewrite(const struct hd_json *root, const struct hd_hf_ends *ends,
                              bool puts_eos, bool puts_bos, bool puts_pad, struct hd_text *text)
{
    const struct hd_json *eos = hd_json_member(root, "eos_token_id");
    struct hd_json_writer w = {.out = text};

    hd_text_clear(text);
    hd_json_begin(&w, NULL, '{');
    for (const struct hd_json *m = root->first; m; m = m->next)
        if ((puts_eos && m == eos) || (puts_bos && strcmp(m->key, "bos_token_id") == 0) ||
            (puts_pad && strcmp(m->key, "pad_token_id") == 0))
            continue;
        else
            hd_json_add_value(&w, m->key, m);
    if (puts_bos)
        hd_json_add_int64(&w, "bos_token_id", ends->bos);
    if (puts_pad)
        hd_json_add_int64(&w, "pad_token_id", ends->pad);
    if (puts_eos)
        put_eos(&w, eos, ends->end);
    hd_json_end(&w, '}');
    hd_text_add(text, "\n");
    return text->failed ? hd_err(HD_NO_MEMORY, "no memory for the ids of a config") : HD_OK;
}

enum hd_status hd_hf_put_ends(const struct hd_hf_ends *ends, struct hd_text *text)
{
    const struct hd_json_limits limits = {.values_max = VALUES_MAX, .depth_max = DEPTH_MAX};
    const struct hd_json *root = NULL;
    struct hd_arena arena;
    bool puts_eos, puts_bos, puts_pad;
    enum hd_status st;

    if (!ends || !text->data)
        return HD_OK;
    hd_arena_init(&arena, 0);
    st = hd_json_parse_repeated(&arena, text->data, text->len_bytes, &limits, &root);
    if (!st) {
        puts_eos = ends->end >= 0 && !hd_hf_has_id(hd_json_member(root, "eos_token_id"), ends->end);
        puts_bos = ends->bos >= 0 && is_none(hd_json_member(root, "bos_token_id"));
        puts_pad = ends->pad >= 0 && is_none(hd_json_member(root, "pad_token_id"));
        if (root->kind == HD_JSON_OBJECT && (puts_eos || puts_bos || puts_pad))
            st = rewrite(root, ends, puts_eos, puts_bos, puts_pad, text);
    }
    hd_arena_done(&arena);
    return st;
}

static void add_name(struct hd_json_writer *w, const char *name, const char *token)
{
    if (token)
        hd_json_add_string(w, name, token);
}

void hd_hf_write_names(const struct hd_hf_ends *ends, bool has_pieces, struct hd_text *ret_text)
{
    struct hd_json_writer w = {.out = ret_text};

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "tokenizer_class",
                       has_pieces ? "LlamaTokenizer" : "PreTrainedTokenizerFast");
    add_name(&w, "bos_token", ends->bos_token);
    add_name(&w, "eos_token", ends->end_token);
    add_name(&w, "pad_token", ends->pad_token);
    add_name(&w, "unk_token", ends->unk_token);
    if (has_pieces) { /* texts were trained on as the model encodes them */
        hd_json_add_bool(&w, "add_bos_token", false);
        hd_json_add_bool(&w, "legacy", false);
    }
    hd_json_add_bool(&w, "clean_up_tokenization_spaces", false);
    hd_json_end(&w, '}');
    hd_text_add(ret_text, "\n");
}
