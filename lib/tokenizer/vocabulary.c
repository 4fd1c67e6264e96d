/* vocabulary: finds the tokens of a model by the bytes that they spell. */
#include <string.h>

#include "base/hash.h"
#include "tokenizer/tokenizer_internal.h"

int hd_vocabulary_byte(const char *content)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *high, *low;

    if (strlen(content) != 6 || memcmp(content, "<0x", 3) != 0 || content[5] != '>')
        return -1;
    high = strchr(digits, content[3]);
    low = strchr(digits, content[4]);
    return high && low ? (int)(high - digits) * 16 + (int)(low - digits) : -1;
}

uint64_t hd_table_mask(size_t count)
{
    uint64_t size = 64;

    while (size < 2 * (uint64_t)count)
        size *= 2;
    return size - 1;
}

int32_t hd_bpe_word(const struct hd_bpe *bpe, const unsigned char *bytes, size_t len_bytes)
{
    for (uint64_t i = hd_mix64(hd_hash_bytes(bytes, len_bytes)) & bpe->word_mask;;
         i = (i + 1) & bpe->word_mask) {
        const int32_t id = bpe->words[i];

        if (id < 0)
            return -1;
        if (bpe->texts[id].len_bytes == len_bytes &&
            memcmp(bpe->texts[id].bytes, bytes, len_bytes) == 0)
            return id;
    }
}

/* Returns whether U+2581 follows another character in the token. */
static bool has_space_behind(const struct hd_token_text *t)
{
    static const char space[] = "\xE2\x96\x81";

    for (const char *p = t->content; (p = strstr(p, space)); p += 3)
        if (p != t->content && !(p - t->content >= 3 && memcmp(p - 3, space, 3) == 0))
            return true;
    return false;
}

/* Returns whether words may end before U+2581 (hd_bpe.parts_at_spaces). Words may not if they are
 * looked up whole, if their ends are marked by a prefix or suffix, or if adjacent unknown
 * characters are fused. */
static bool parts_at_spaces(const struct hd_bpe *bpe)
{
    if (bpe->is_byte_level || bpe->ignores_merges || bpe->prefix[0] || bpe->suffix[0] ||
        hd_bpe_word(bpe, (const unsigned char *)"\xE2\x96\x81", 3) < 0)
        return false;
    for (int32_t id = 0; id < bpe->vocab; id++)
        if (bpe->texts[id].content && has_space_behind(&bpe->texts[id]))
            return false;
    return true;
}

/* Sets bpe->byte_ids to the ids of the tokens <0x..>. */
static void index_bytes(struct hd_bpe *bpe)
{
    for (int32_t id = 0; bpe->falls_back && id < bpe->vocab; id++) {
        const int byte = bpe->texts[id].content ? hd_vocabulary_byte(bpe->texts[id].content) : -1;

        if (byte >= 0)
            bpe->byte_ids[byte] = id;
    }
}

enum hd_status hd_bpe_index_words(struct hd_bpe *bpe, size_t count)
{
    bpe->word_mask = hd_table_mask(count);
    bpe->words = hd_arena_array(&bpe->arena, bpe->word_mask + 1, sizeof *bpe->words);
    if (!bpe->words)
        return hd_bpe_no_memory();
    memset(bpe->words, 0xFF, (bpe->word_mask + 1) * sizeof *bpe->words);
    for (int32_t id = 0; id < bpe->vocab; id++) {
        const struct hd_token_text *t = &bpe->texts[id];
        uint64_t i;

        if (!t->len_bytes)
            continue;
        i = hd_mix64(hd_hash_bytes(t->bytes, t->len_bytes)) & bpe->word_mask;
        while (bpe->words[i] >= 0)
            i = (i + 1) & bpe->word_mask;
        bpe->words[i] = id;
    }
    for (int b = 0; b < 256; b++) {
        const unsigned char byte = (unsigned char)b;

        bpe->byte_ids[b] = bpe->is_byte_level ? hd_bpe_word(bpe, &byte, 1) : -1;
    }
    index_bytes(bpe);
    bpe->parts_at_spaces = parts_at_spaces(bpe);
    return HD_OK;
}
