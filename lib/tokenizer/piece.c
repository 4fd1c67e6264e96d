/* piece: pieces of a text with origins (the bytes of the text that each byte was made from), and
 * ByteLevel's letters. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

/* ---- characters ---- */

uint32_t hd_character_code(const unsigned char *character, size_t *ret_bytes)
{
    const size_t n = hd_character_bytes(character[0]);
    uint32_t code = n == 1 ? character[0] : character[0] & (0x7Fu >> n);

    for (size_t i = 1; i < n; i++)
        code = code << 6 | (character[i] & 0x3Fu);
    *ret_bytes = n;
    return code;
}

size_t hd_character_spell(uint32_t code, unsigned char ret_bytes[4])
{
    const size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char leads[] = {0, 0, 0xC0, 0xE0, 0xF0};

    for (size_t i = n - 1; i > 0; i--, code >>= 6)
        ret_bytes[i] = (unsigned char)(0x80 | (code & 0x3F));
    ret_bytes[0] = (unsigned char)(leads[n] | code);
    return n;
}

static bool is_own_letter(unsigned byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* Bytes whose ByteLevel letter is not the character of the same number, ascending; their letters
 * are U+0100 and following. */
static const unsigned char shifted[] = {
    0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,  14,  15,  16,
    17,  18,  19,  20,  21,  22,  23,  24,  25,  26,  27,  28,  29,  30,  31,  32,  127,
    128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139, 140, 141, 142, 143, 144,
    145, 146, 147, 148, 149, 150, 151, 152, 153, 154, 155, 156, 157, 158, 159, 160, 173};

uint32_t hd_letter_of_byte(unsigned char byte)
{
    if (is_own_letter(byte))
        return byte;
    return byte <= 32 ? 256u + byte : byte == 173 ? 256u + 67 : 256u + 33 + (byte - 127u);
}

int hd_byte_of_letter(uint32_t code)
{
    if (code < 256)
        return is_own_letter(code) ? (int)code : -1;
    return code < 256 + sizeof shifted ? shifted[code - 256] : -1;
}

/* ---- pieces ---- */

struct hd_origin hd_text_piece_origin(const struct hd_text_piece *piece, size_t from, size_t to)
{
    if (piece->origins)
        return (struct hd_origin){piece->origins[from].from, piece->origins[to - 1].to};
    return (struct hd_origin){(uint32_t)(piece->from + from), (uint32_t)(piece->from + to)};
}

struct hd_text_piece hd_text_piece_part(const struct hd_text_piece *piece, size_t from, size_t to)
{
    return (struct hd_text_piece){
        .text = piece->text + from,
        .len_bytes = to - from,
        .origins = piece->origins ? piece->origins + from : NULL,
        .from = piece->origins && from < to ? piece->origins[from].from : piece->from + from,
    };
}

/* ---- writing ---- */

void hd_rewrite_begin(struct hd_rewrite *rewrite, bool tracks)
{
    hd_text_clear(&rewrite->text);
    rewrite->tracks = tracks;
}

void hd_rewrite_free(struct hd_rewrite *rewrite)
{
    hd_text_free(&rewrite->text);
    free(rewrite->origins);
    *rewrite = (struct hd_rewrite){0};
}

/* Reserves space for the origins of `more` bytes; false: origins are not stored, or no memory
 * (text.failed is then set). */
static bool reserve(struct hd_rewrite *r, size_t more)
{
    const size_t need = r->text.len_bytes + more;
    size_t capacity = r->capacity ? r->capacity : 1024;
    struct hd_origin *origins;

    if (!r->tracks || r->text.failed)
        return false;
    if (need <= r->capacity)
        return true;
    while (capacity < need)
        capacity *= 2;
    origins = realloc(r->origins, capacity * sizeof *origins);
    if (!origins) {
        r->text.failed = true;
        return false;
    }
    r->origins = origins;
    r->capacity = capacity;
    return true;
}

void hd_rewrite_add(struct hd_rewrite *rewrite, const void *bytes, size_t count,
                    struct hd_origin origin)
{
    if (reserve(rewrite, count))
        for (size_t i = 0; i < count; i++)
            rewrite->origins[rewrite->text.len_bytes + i] = origin;
    hd_text_add_bytes(&rewrite->text, bytes, count);
}

void hd_rewrite_copy(struct hd_rewrite *rewrite, const struct hd_text_piece *piece, size_t from,
                     size_t to)
{
    if (reserve(rewrite, to - from))
        for (size_t i = from; i < to; i++)
            rewrite->origins[rewrite->text.len_bytes + i - from] =
                hd_text_piece_origin(piece, i, i + 1);
    hd_text_add_bytes(&rewrite->text, piece->text + from, to - from);
}

enum hd_status hd_rewrite_take(struct hd_rewrite *rewrite, struct hd_text_piece *piece)
{
    if (rewrite->text.failed)
        return hd_err(HD_NO_MEMORY, "no memory for a piece of %zu bytes", piece->len_bytes);
    piece->text = (const unsigned char *)rewrite->text.data;
    piece->len_bytes = rewrite->text.len_bytes;
    piece->origins = rewrite->tracks ? rewrite->origins : NULL;
    return HD_OK;
}

void hd_rewrite_letters(struct hd_rewrite *rewrite, const struct hd_text_piece *piece)
{
    size_t n = 0;

    for (size_t at = 0; at < piece->len_bytes; at += n) {
        const struct hd_origin origin =
            hd_text_piece_origin(piece, at, at + hd_character_bytes(piece->text[at]));

        n = hd_character_bytes(piece->text[at]);
        for (size_t i = 0; i < n; i++) {
            unsigned char letter[4];

            hd_rewrite_add(rewrite, letter,
                           hd_character_spell(hd_letter_of_byte(piece->text[at + i]), letter),
                           origin);
        }
    }
}
