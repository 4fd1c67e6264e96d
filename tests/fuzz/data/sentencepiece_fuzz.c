/* Hostile tokenizer.model files. What the reader accepts encodes texts, or refuses them with a
 * reason; each id is a token, all decode, and places of the text are followed in order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/driver.h"
#include "tokenizer/sentencepiece.h"

static void encode_text(const struct hd_bpe *bpe, struct hd_bpe_encoder *encoder, const char *text,
                        size_t n)
{
    struct hd_encoder_mark marks[] = {{.at = 0}, {.at = n / 2, .is_end = true}, {.at = n - 1}};
    struct hd_encoder_places places = {NULL, 0, marks, 3};
    struct hd_id_list list = {0}, plain = {0};
    struct hd_text back = {0};

    if (hd_bpe_encode(encoder, (const unsigned char *)text, n, &places, &list)) {
        require(hd_err_message()[0] != '\0');
    } else {
        require(hd_bpe_encode(encoder, (const unsigned char *)text, n, NULL, &plain) == HD_OK);
        require(plain.count == list.count);
        for (size_t i = 0; i < list.count; i++)
            require(list.ids[i] == plain.ids[i] && list.ids[i] >= 0 && list.ids[i] < bpe->vocab);
        for (size_t i = 0; i < 3; i++)
            require(marks[i].token <= list.count);
        require(hd_bpe_decode(bpe, list.ids, list.count, &back) == HD_OK);
    }
    hd_id_list_free(&list);
    hd_id_list_free(&plain);
    hd_text_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    static const char text[] =
        "the  re \xE2\x96\x81\xC3\xA9 \xEF\xAC\x81 ab c <tool>\xF0\x9F\x99\x82 ";
    struct hd_bpe bpe = {0};
    struct hd_bpe_encoder *encoder = NULL;

    if (hd_sp_read(bytes, size_bytes, NULL, &bpe)) {
        require(hd_err_message()[0] != '\0');
    } else if (!hd_bpe_encoder_new(&bpe, &encoder)) {
        encode_text(&bpe, encoder, text, sizeof text - 1);
        encode_text(&bpe, encoder, "a", 1);
    }
    hd_bpe_encoder_free(encoder);
    hd_bpe_done(&bpe);
    return 0;
}

/* ---- seeds ---- */

static void add_byte(struct hd_text *out, unsigned value)
{
    hd_text_add_bytes(out, &(char){(char)value}, 1);
}

static void add_varint(struct hd_text *out, unsigned value)
{
    for (; value >= 0x80; value >>= 7)
        add_byte(out, (value & 0x7F) | 0x80);
    add_byte(out, value);
}

static void add_bytes(struct hd_text *out, unsigned number, const struct hd_text *bytes)
{
    add_varint(out, number << 3 | 2);
    add_varint(out, (unsigned)bytes->len_bytes);
    hd_text_add_bytes(out, bytes->data ? bytes->data : "", bytes->len_bytes);
}

static void add_number(struct hd_text *out, unsigned number, unsigned value)
{
    add_varint(out, number << 3);
    add_varint(out, value);
}

static void add_piece(struct hd_text *out, const char *text, float score, enum hd_sp_type type)
{
    struct hd_text piece = {0}, name = {0};

    hd_text_add(&name, "%s", text);
    add_bytes(&piece, 1, &name);
    add_byte(&piece, 2 << 3 | 5);
    hd_text_add_bytes(&piece, (const char *)&score, sizeof score);
    add_number(&piece, 3, type);
    add_bytes(out, 1, &piece);
    hd_text_free(&piece);
    hd_text_free(&name);
}

/* Appends rules that replace A by a: the root's offset is 1, so that A is unit 0x41 ^ 1 = 0x40,
 * whose offset 0x10 makes 0x50 its leaf, with the value 0. */
static void add_rules(struct hd_text *normalizer)
{
    uint32_t units[129] = {sizeof units - 4, 1U << 10};
    struct hd_text map = {0};

    units[1 + 0x40] = 0x41 | 1U << 8 | 0x10U << 10;
    units[1 + 0x50] = 1U << 31;
    hd_text_add_bytes(&map, (const char *)units, sizeof units);
    hd_text_add_bytes(&map, "a", 2);
    add_bytes(normalizer, 2, &map);
    hd_text_free(&map);
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    const bool bytes = index & 1, bpe = index & 2, rules = index & 4;
    struct hd_text model = {0}, trainer = {0}, normalizer = {0};
    size_t size;

    if (index >= 8)
        return 0;
    add_piece(&model, "<unk>", 0, HD_SP_UNKNOWN);
    add_piece(&model, "</s>", 0, HD_SP_CONTROL);
    add_piece(&model, "\xE2\x96\x81", -1, HD_SP_NORMAL);
    add_piece(&model, "t", -4, HD_SP_NORMAL);
    add_piece(&model, "h", -5, HD_SP_NORMAL);
    add_piece(&model, "e", -3, HD_SP_NORMAL);
    add_piece(&model, "th", -2, HD_SP_UNUSED);
    add_piece(&model, "the", -1.5F, HD_SP_NORMAL);
    add_piece(&model, "<tool>", 0, HD_SP_USER_DEFINED);
    for (unsigned b = 0; bytes && b < 256; b++) {
        char name[8];

        (void)snprintf(name, sizeof name, "<0x%02X>", b);
        add_piece(&model, name, 0, HD_SP_BYTE);
    }
    add_number(&trainer, 3, bpe ? HD_SP_BPE : HD_SP_UNIGRAM);
    add_number(&trainer, 35, bytes);
    add_number(&trainer, 24, index == 3);
    add_bytes(&model, 2, &trainer);
    if (rules)
        add_rules(&normalizer);
    add_number(&normalizer, 4, index != 1);
    add_bytes(&model, 3, &normalizer);
    size = model.len_bytes < max_bytes ? model.len_bytes : max_bytes;
    memcpy(ret_bytes, model.data, size);
    hd_text_free(&model);
    hd_text_free(&trainer);
    hd_text_free(&normalizer);
    return size;
}
