/* Hostile files beside a tokenizer.json. The input is the four files, separated by bytes of 0xFF,
 * and at its end a tokenizer.json. What is accepted makes a tokenizer whose added tokens have ids
 * of their own, or a story; each name is one of its tokens. */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/driver.h"
#include "tokenizer/companions.h"
#include "tokenizer/tokenizer_internal.h"

enum { SEPARATOR = 0xFF };

/* The next file of the input; an absent one has no bytes. */
static struct hd_text take(const uint8_t **bytes, size_t *left)
{
    const uint8_t *end = *left ? memchr(*bytes, SEPARATOR, *left) : NULL;
    const size_t n = end ? (size_t)(end - *bytes) : *left;
    struct hd_text text = {0};

    if (n)
        hd_text_add_bytes(&text, *bytes, n);
    *bytes += n + (end != NULL);
    *left -= n + (end != NULL);
    return text;
}

static bool is_added(const struct hd_bpe *bpe, const char *content)
{
    for (int i = 0; i < bpe->token_count; i++)
        if (strcmp(bpe->texts[bpe->tokens[i].id].content, content) == 0)
            return true;
    return false;
}

static void check(const struct hd_bpe *bpe, const struct hd_companions *c)
{
    for (int i = 0; i < bpe->token_count; i++) {
        require(bpe->tokens[i].id >= 0 && bpe->tokens[i].id < bpe->vocab);
        for (int j = 0; j < i; j++)
            require(bpe->tokens[i].id != bpe->tokens[j].id);
    }
    for (int i = 0; i < c->name_count; i++)
        require(*c->names[i].token.content && is_added(bpe, c->names[i].token.content));
    for (int i = 0; i < c->extra_count; i++)
        require(is_added(bpe, c->extras[i].content));
    for (int i = 1; i < c->listed_count; i++)
        require(c->listed[i - 1].id <= c->listed[i].id);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    struct hd_companion_texts texts = {.is_byte_level = size_bytes % 2 == 0};
    struct hd_companions companions;
    struct hd_bpe bpe = {0};
    struct hd_text json;
    enum hd_status st;

    for (int i = 0; i < HD_COMPANION_FILES; i++)
        texts.files[i] = take(&bytes, &size_bytes);
    json = take(&bytes, &size_bytes);
    st = hd_companions_parse(&texts, &companions);
    if (!st) {
        st = hd_bpe_read(json.data ? json.data : "", json.len_bytes, &companions, &bpe);
        if (!st && bpe.vocab < 1 << 16 && bpe.token_count < 1 << 8)
            check(&bpe, &companions);
        (void)hd_companions_hash(&companions);
        hd_bpe_done(&bpe);
    }
    if (st)
        require(hd_err_message()[0] != '\0');
    hd_companions_done(&companions);
    for (int i = 0; i < HD_COMPANION_FILES; i++)
        hd_text_free(&texts.files[i]);
    hd_text_free(&json);
    return 0;
}

#define TOKENIZER                                                                                \
    "{\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true},{\"id\":1,\"content\":"  \
    "\"b\"}],\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":" \
    "{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[3]}" \
    "}},\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\"" \
    ":2},\"merges\":[\"a b\"]}}"

static const char *const seeds[] = {
    "{\"eos_token\":\"<e>\",\"bos_token\":{\"__type\":\"AddedToken\",\"content\":\"<s>\","
    "\"lstrip\":true,\"normalized\":false},\"pad_token\":null,\"tool_token\":\"<t>\","
    "\"added_tokens_decoder\":{\"3\":{\"content\":\"<s>\",\"special\":true},\"9\":{\"content\":"
    "\"<x>\",\"rstrip\":true}},\"extra_special_tokens\":[\"<y>\",{\"content\":\"b\"}],"
    "\"tokenizer_class\":\"Qwen2TokenizerFast\"}\xFF\xFF\xFF{\"model_type\":\"qwen2\"}"
    "\xFF" TOKENIZER,
    "{\"additional_special_tokens\":[\"<y>\"],\"tokenizer_class\":\"LlamaTokenizer\"}\xFF"
    "{\"eos_token\":{\"content\":\"<e>\",\"single_word\":true},\"unk_token\":\"a\","
    "\"extra_special_tokens\":{\"image_token\":\"<i>\"}}\xFF{\"<z>\":7,\"<s>\":4}\xFF"
    "{\"model_type\":\"gpt2\",\"tokenizer_class\":\"GPT2Tokenizer\"}\xFF" TOKENIZER,
    "\xFF\xFF{\"<z>\":0}\xFF\xFF" TOKENIZER,
};

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    size_t n;

    if (index >= sizeof seeds / sizeof seeds[0])
        return 0;
    n = strlen(seeds[index]);
    if (n > max_bytes)
        return 0;
    memcpy(ret_bytes, seeds[index], n);
    return n;
}
