/* bpe_write: writes a byte-level BPE as a tokenizer.json. */
#include <string.h>

#include "base/json.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/tokenizer_internal.h"

const char *const hd_word_pattern_names[HD_WORD_PATTERNS] = {
    [HD_WORDS_CL100K] = "cl100k", [HD_WORDS_GPT2] = "gpt2"};

static const char cl100k_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static void add_byte_level(struct hd_json_writer *w, const char *key, bool use_regex)
{
    hd_json_begin(w, key, '{');
    hd_json_add_string(w, "type", "ByteLevel");
    hd_json_add_bool(w, "add_prefix_space", false);
    hd_json_add_bool(w, "trim_offsets", false);
    hd_json_add_bool(w, "use_regex", use_regex);
    hd_json_end(w, '}');
}

static void add_pre_tokenizer(struct hd_json_writer *w, enum hd_word_pattern pattern)
{
    if (pattern == HD_WORDS_GPT2) { /* the pattern that ByteLevel has itself */
        add_byte_level(w, "pre_tokenizer", true);
        return;
    }
    hd_json_begin(w, "pre_tokenizer", '{');
    hd_json_add_string(w, "type", "Sequence");
    hd_json_begin(w, "pretokenizers", '[');
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "type", "Split");
    hd_json_begin(w, "pattern", '{');
    hd_json_add_string(w, "Regex", cl100k_pattern);
    hd_json_end(w, '}');
    hd_json_add_string(w, "behavior", "Isolated");
    hd_json_add_bool(w, "invert", false);
    hd_json_end(w, '}');
    add_byte_level(w, NULL, false);
    hd_json_end(w, ']');
    hd_json_end(w, '}');
}

static void add_special(struct hd_json_writer *w, const struct hd_bpe_token *token, int32_t id)
{
    hd_json_begin(w, NULL, '{');
    hd_json_add_int64(w, "id", id);
    hd_json_add_string(w, "content", (const char *)token->bytes);
    hd_json_add_bool(w, "single_word", false);
    hd_json_add_bool(w, "lstrip", false);
    hd_json_add_bool(w, "rstrip", false);
    hd_json_add_bool(w, "normalized", false);
    hd_json_add_bool(w, "special", true);
    hd_json_end(w, '}');
}

/* Sets ret_text to the token as tokenizer.json spells it: a letter for each byte. */
static void spell_token(const struct hd_bpe_token *token, struct hd_text *ret_text)
{
    hd_text_clear(ret_text);
    if (token->is_special) {
        hd_text_add(ret_text, "%s", (const char *)token->bytes);
        return;
    }
    for (uint32_t i = 0; i < token->len_bytes; i++) {
        unsigned char letter[4];
        const size_t n = hd_character_spell(hd_letter_of_byte(token->bytes[i]), letter);

        hd_text_add_bytes(ret_text, (const char *)letter, n);
    }
}

static void add_model(struct hd_json_writer *w, const struct hd_bpe_token *tokens, int32_t count,
                      const struct hd_bpe_rule *merges, int32_t merge_count)
{
    struct hd_text text = {0};

    hd_json_begin(w, "model", '{');
    hd_json_add_string(w, "type", "BPE");
    hd_json_add_null(w, "dropout");
    hd_json_add_null(w, "unk_token");
    hd_json_add_null(w, "continuing_subword_prefix");
    hd_json_add_null(w, "end_of_word_suffix");
    hd_json_add_bool(w, "fuse_unk", false);
    hd_json_add_bool(w, "byte_fallback", false);
    hd_json_add_bool(w, "ignore_merges", false);
    hd_json_begin(w, "vocab", '{');
    for (int32_t id = 0; id < count; id++) {
        spell_token(&tokens[id], &text);
        hd_json_add_line(w);
        hd_json_add_int64(w, text.data ? text.data : "", id);
    }
    hd_json_end(w, '}');
    hd_json_begin(w, "merges", '[');
    for (int32_t i = 0; i < merge_count; i++) {
        hd_json_add_line(w);
        hd_json_begin(w, NULL, '[');
        spell_token(&tokens[merges[i].left], &text);
        hd_json_add_string(w, NULL, text.data ? text.data : "");
        spell_token(&tokens[merges[i].right], &text);
        hd_json_add_string(w, NULL, text.data ? text.data : "");
        hd_json_end(w, ']');
    }
    hd_json_end(w, ']');
    hd_json_end(w, '}');
    w->out->failed |= text.failed;
    hd_text_free(&text);
}

void hd_bpe_write(enum hd_word_pattern pattern, const struct hd_bpe_token *tokens, int32_t count,
                  const struct hd_bpe_rule *merges, int32_t merge_count, struct hd_text *ret_json)
{
    struct hd_json_writer w = {.out = ret_json};

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "version", "1.0");
    hd_json_add_null(&w, "truncation");
    hd_json_add_null(&w, "padding");
    hd_json_begin(&w, "added_tokens", '[');
    for (int32_t id = 0; id < count; id++)
        if (tokens[id].is_special)
            add_special(&w, &tokens[id], id);
    hd_json_end(&w, ']');
    hd_json_add_null(&w, "normalizer");
    add_pre_tokenizer(&w, pattern);
    hd_json_add_null(&w, "post_processor");
    add_byte_level(&w, "decoder", true);
    add_model(&w, tokens, count, merges, merge_count);
    hd_json_end(&w, '}');
    hd_text_add(ret_json, "\n");
}

void hd_bpe_write_config(const char *bos, const char *eos, const char *pad,
                         struct hd_text *ret_json)
{
    struct hd_json_writer w = {.out = ret_json};

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    if (bos)
        hd_json_add_string(&w, "bos_token", bos);
    if (eos)
        hd_json_add_string(&w, "eos_token", eos);
    if (pad)
        hd_json_add_string(&w, "pad_token", pad);
    hd_json_add_bool(&w, "clean_up_tokenization_spaces", false);
    hd_json_end(&w, '}');
    hd_text_add(ret_json, "\n");
}
