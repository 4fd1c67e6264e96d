/* byte_tokenizer: writes the tokenizer of a byte model as a tokenizer.json, so that transformers
 * makes the same ids: token b is byte b. It is a byte-level BPE without merges, whose vocabulary
 * spells each byte by the one character that such tokenizers use for it. */
#include "hf/hf_internal.h"

enum { BYTES = 256 };

/* Returns whether a byte-level BPE spells a byte by the Latin-1 character with the same number, as
 * it does if that is printable. */
static bool spells_itself(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/* Sets ret_text to the character that spells a byte: the Latin-1 character of its number, or the
 * next unused one from U+0100 on. At most two bytes of UTF-8. */
static void spell(int byte, char ret_text[3])
{
    int code = byte;

    if (!spells_itself(byte)) {
        code = BYTES;
        for (int b = 0; b < byte; b++)
            code += !spells_itself(b);
    }
    ret_text[0] = (char)code;
    ret_text[1] = '\0';
    if (code >= 0x80) {
        ret_text[0] = (char)(0xC0 | code >> 6);
        ret_text[1] = (char)(0x80 | (code & 0x3F));
        ret_text[2] = '\0';
    }
}

static void add_byte_level(struct hd_json_writer *w, const char *key)
{
    hd_json_begin(w, key, '{');
    hd_json_add_string(w, "type", "ByteLevel");
    hd_json_add_bool(w, "add_prefix_space", false);
    hd_json_add_bool(w, "trim_offsets", false);
    hd_json_add_bool(w, "use_regex", false);
    hd_json_end(w, '}');
}

void hd_hf_write_byte_tokenizer(struct hd_text *ret_text)
{
    struct hd_json_writer w = {.out = ret_text};
    char text[3];

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "version", "1.0");
    hd_json_add_null(&w, "truncation");
    hd_json_add_null(&w, "padding");
    hd_json_begin(&w, "added_tokens", '[');
    hd_json_end(&w, ']');
    hd_json_add_null(&w, "normalizer");
    add_byte_level(&w, "pre_tokenizer");
    hd_json_add_null(&w, "post_processor");
    add_byte_level(&w, "decoder");
    hd_json_begin(&w, "model", '{');
    hd_json_add_string(&w, "type", "BPE");
    hd_json_add_null(&w, "dropout");
    hd_json_add_null(&w, "unk_token");
    hd_json_add_null(&w, "continuing_subword_prefix");
    hd_json_add_null(&w, "end_of_word_suffix");
    hd_json_add_bool(&w, "fuse_unk", false);
    hd_json_add_bool(&w, "byte_fallback", false);
    hd_json_begin(&w, "vocab", '{');
    for (int b = 0; b < BYTES; b++) {
        spell(b, text);
        hd_json_add_int64(&w, text, b);
    }
    hd_json_end(&w, '}');
    hd_json_begin(&w, "merges", '[');
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
    hd_json_end(&w, '}');
    hd_text_add(ret_text, "\n");
}

/* Writes the tokenizer_config.json of a byte model. It has no special tokens; tokenizer_class is
 * one that adds none. */
void hd_hf_write_byte_tokenizer_config(struct hd_text *ret_text)
{
    struct hd_json_writer w = {.out = ret_text};

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    hd_json_add_bool(&w, "clean_up_tokenization_spaces", false);
    hd_json_end(&w, '}');
    hd_text_add(ret_text, "\n");
}
