#include "base/digits.h"

#include <string.h>

#include "base/random.h"

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void hd_hex_format(const void *bytes, size_t count, char *ret_text)
{
    const unsigned char *in = bytes;

    for (size_t i = 0; i < count; i++) {
        ret_text[2 * i] = HD_HEX_DIGITS[in[i] >> 4];
        ret_text[2 * i + 1] = HD_HEX_DIGITS[in[i] & 15];
    }
    ret_text[2 * count] = '\0';
}

enum hd_status hd_hex_make_id(char ret_id[HD_HEX_ID_MAX])
{
    unsigned char bytes[HD_HEX_ID_MAX / 2];
    const enum hd_status st = hd_random_bytes(bytes, sizeof bytes);

    if (!st)
        hd_hex_format(bytes, sizeof bytes, ret_id);
    return st;
}

void hd_base64_format(const void *bytes, size_t count, char *ret_text)
{
    for (const unsigned char *in = bytes; count; in += 3) {
        const size_t n = count < 3 ? count : 3;
        const unsigned bits = (unsigned)in[0] << 16 | (n > 1 ? (unsigned)in[1] << 8 : 0) |
                              (n > 2 ? (unsigned)in[2] : 0);

        *ret_text++ = letters[bits >> 18];
        *ret_text++ = letters[bits >> 12 & 63];
        *ret_text++ = n > 1 ? letters[bits >> 6 & 63] : '=';
        *ret_text++ = n > 2 ? letters[bits & 63] : '=';
        count -= n;
    }
    *ret_text = '\0';
}

int64_t hd_base64_parse(const char *text, unsigned char *ret_bytes)
{
    const size_t n = strlen(text);
    int64_t count = 0;

    if (n % 4)
        return -1;
    for (size_t at = 0; at < n; at += 4) {
        const size_t pads = at + 4 < n ? 0 : (text[n - 1] == '=') + (size_t)(text[n - 2] == '=');
        uint32_t bits = 0;

        for (size_t i = 0; i < 4; i++) {
            const char *letter = i < 4 - pads ? strchr(letters, text[at + i]) : letters;

            if (!letter)
                return -1;
            bits = bits << 6 | (uint32_t)(letter - letters);
        }
        for (size_t i = 0; i < 3 - pads; i++)
            ret_bytes[count++] = (unsigned char)(bits >> (16 - 8 * i));
    }
    return count;
}
