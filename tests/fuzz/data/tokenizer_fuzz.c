/* Hostile tokenizer.json files. What the reader accepts encodes a text, or refuses it with a story,
 * and where it encodes, each id is a token, all decode, together and one by one, and places of the
 * text are followed in order. */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/driver.h"
#include "tokenizer/tokenizer_internal.h"

static void decode(const struct hd_bpe *bpe, const struct hd_id_list *list)
{
    struct hd_text text = {0};

    if (hd_bpe_decode(bpe, list->ids, list->count, &text))
        require(hd_err_message()[0] != '\0'); /* a pattern may reach its limit */
    for (size_t i = 0; i < list->count; i++)
        if (hd_bpe_decode_next(bpe, list->ids[i], &text))
            require(hd_err_message()[0] != '\0');
    hd_text_free(&text);
}

static void encode(const struct hd_bpe *bpe)
{
    static const char text[] = "aab <s> ab  a<s>b\n\xC3\xA9 e\xCC\x81 12";
    static const size_t guards[] = {4, 13}; /* of both <s> */
    struct hd_encoder_mark marks[] = {{.at = 0}, {.at = 4, .is_end = true}, {.at = 12}, {.at = 24}};
    struct hd_encoder_places places = {guards, 2, marks, sizeof marks / sizeof marks[0]};
    struct hd_bpe_encoder *encoder = NULL;
    struct hd_id_list list = {0};
    size_t at = 0;

    while (hd_added_find_special(bpe, (const unsigned char *)text, sizeof text - 1, &at))
        require(at++ < sizeof text - 1);
    require(hd_bpe_encoder_new(bpe, &encoder) == HD_OK);
    if (hd_bpe_encode(encoder, (const unsigned char *)text, sizeof text - 1, &places, &list)) {
        require(hd_err_message()[0] != '\0');
    } else {
        for (size_t i = 0; i < list.count; i++)
            require(list.ids[i] >= 0 && list.ids[i] < bpe->vocab &&
                    bpe->texts[list.ids[i]].content);
        for (size_t i = 0; i < places.mark_count; i++)
            require(marks[i].token <= list.count && (!i || marks[i].token >= marks[i - 1].token));
        decode(bpe, &list);
    }
    hd_id_list_free(&list);
    hd_bpe_encoder_free(encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    struct hd_bpe bpe = {0};
    enum hd_status st = hd_bpe_read((const char *)bytes, size_bytes, NULL, &bpe);

    if (st)
        require(hd_err_message()[0] != '\0');
    else if (bpe.vocab < 1 << 16) /* larger ones only repeat */
        encode(&bpe);
    hd_bpe_done(&bpe);
    return 0;
}

#define VOCAB                                                       \
    "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xC4\xA0\":3,\"\xC4\xA0" \
    "a\":4,\"<\":5,\"s\":6,"                                        \
    "\">\":7,\"\xC3\x83\":8,\"\xC2\xA9\":9,\"1\":10,\"2\":11,\"\xC4\x8A\":12}"

#define CHARSMAP                                                                       \
    "iAEAAAAEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" \
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" \
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" \
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" \
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" \
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" \
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAGEFAAAAAACAYgA="

static const char *const seeds[] = {
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{\"id\":13,"
    "\"content\":\"<s>\",\"single_word\":false,\"lstrip\":true,\"rstrip\":false,\"normalized\":"
    "false,\"special\":true}],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":"
    "\"NFC\"}]},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
    "\"pattern\":{\"Regex\":\"\\\\p{L}+|\\\\s+(?!\\\\S)|[^\\\\s\\\\p{L}]\"},\"behavior\":"
    "\"MergedWithNext\",\"invert\":false},{\"type\":\"Digits\",\"individual_digits\":true},{"
    "\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}]},\"post_processor\":"
    "null,\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
    "\"ignore_merges\":true," VOCAB ",\"merges\":[\"a b\",\"\xC4\xA0 a\"]}}",
    "{\"added_tokens\":[{\"id\":0,\"content\":\"a\",\"single_word\":true,\"normalized\":true}],"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{" VOCAB
    ",\"merges\":[[\"a\",\"b\"],[\"\xC4\xA0\",\"a\"]]}}",
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKD\"},{\"type\":"
    "\"StripAccents\"},{\"type\":\"Lowercase\"},{\"type\":\"Strip\",\"strip_left\":true,"
    "\"strip_right\":true},{\"type\":\"Replace\",\"pattern\":{\"Regex\":"
    "\"[\\\\w&&[^a-c]]{,2}|(?i:x)\"},\"content\":\"a\"}]},\"pre_tokenizer\":{\"type\":\"Sequence\","
    "\"pretokenizers\":[{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\","
    "\"split\":true},{\"type\":\"Punctuation\"},{\"type\":\"Whitespace\"},{\"type\":"
    "\"FixedLength\","
    "\"length\":3},{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?<=a)\\\\b|x*\"},\"behavior\":"
    "\"Contiguous\",\"invert\":true}]},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":"
    "\"ByteFallback\"},{\"type\":\"BPEDecoder\",\"suffix\":\"b\"},{\"type\":\"Fuse\"},{\"type\":"
    "\"Strip\",\"content\":\" \",\"start\":1,\"stop\":1}]},\"model\":{\"unk_token\":\"a\","
    "\"fuse_unk\":true,\"end_of_word_suffix\":\"b\"," VOCAB ",\"merges\":[\"a b\"]}}",
    /* a Unigram model behind a rule that replaces "a" by "b": units 0 (offset 1), 0x60 (label "a",
     * leaf at 0x61) and 0x61 */
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Precompiled\","
    "\"precompiled_charsmap\":\"" CHARSMAP "\"}]},\"pre_tokenizer\":{\"type\":\"Sequence\","
    "\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},{\"type\":\"Metaspace\",\"replacement\":"
    "\"_\",\"prepend_scheme\":\"always\",\"split\":true}]},\"model\":{\"type\":\"Unigram\","
    "\"unk_id\":0,\"byte_fallback\":true,\"vocab\":[[\"<unk>\",0],[\"_\",-2.5],[\"_b\",-3.0625],["
    "\"b\",-3],[\"bb\",-4e0],[\"<0x31>\",0.0],[\"<s>\",-1],[\"b\",-0.2598547935485839843]]}}",
};

/* A BPE with byte fallback, as of Llama-2. */
static size_t fallback_seed(uint8_t *ret_bytes, size_t max_bytes)
{
    struct hd_text text = {0};
    size_t n;

    hd_text_add(&text, "{\"added_tokens\":[{\"id\":262,\"content\":\"<s>\",\"special\":true}],"
                       "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":"
                       "\"Prepend\",\"prepend\":\"\xE2\x96\x81\"},{\"type\":\"Replace\","
                       "\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}]},"
                       "\"model\":{\"byte_fallback\":true,\"merges\":[\"\xE2\x96\x81 a\"],"
                       "\"vocab\":{\"\xE2\x96\x81\":256,\"a\":257,\"\xE2\x96\x81"
                       "a\":258");
    for (int b = 0; b < 256; b++)
        hd_text_add(&text, ",\"<0x%02X>\":%d", b, b);
    hd_text_add(&text, "}}}");
    n = text.len_bytes <= max_bytes ? text.len_bytes : 0;
    memcpy(ret_bytes, text.data, n);
    hd_text_free(&text);
    return n;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    size_t n;

    if (index == sizeof seeds / sizeof seeds[0])
        return fallback_seed(ret_bytes, max_bytes);
    if (index >= sizeof seeds / sizeof seeds[0])
        return 0;
    n = strlen(seeds[index]);
    if (n > max_bytes)
        return 0;
    memcpy(ret_bytes, seeds[index], n);
    return n;
}
