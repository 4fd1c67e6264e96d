#include <stdbool.h>
#include <string.h>

#include "tokenizer/tokenizer.h"

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD, printed for invalid bytes */

/* State of the bytes not printed yet: a whole character, an incomplete one, or invalid. */
enum utf8_progress { WHOLE, OPEN, BROKEN };

static enum utf8_progress progress_of(const unsigned char *p, size_t count)
{
    static const unsigned char tails[] = {0x80, 0xBF};
    unsigned char probe[4];
    size_t need;

    if (p[0] < 0x80)
        return WHOLE;
    need = p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;
    if (p[0] < 0xC2 || p[0] > 0xF4)
        return BROKEN;
    if (count >= need)
        return hd_text_is_utf8(p, need) ? WHOLE : BROKEN;
    /* The bytes are an incomplete character if some ending makes them a whole one. It is enough to
     * try endings of 0x80 and of 0xBF: only the second byte can have a narrower range, which
     * contains one of the two. */
    memcpy(probe, p, count);
    for (size_t t = 0; t < 2; t++) {
        memset(probe + count, tails[t], need - count);
        if (hd_text_is_utf8(probe, need))
            return OPEN;
    }
    return BROKEN;
}

static bool is_safe(const unsigned char *p, size_t count)
{
    if (count == 1)
        return (p[0] >= 0x20 && p[0] != 0x7F) || p[0] == '\n' || p[0] == '\t';
    return !(count == 2 && p[0] == 0xC2 && p[1] < 0xA0); /* C1 controls, U+0080 .. U+009F */
}

static void add_byte(struct hd_utf8_printer *printer, unsigned char byte, struct hd_text *ret_text)
{
    enum utf8_progress progress;

    printer->pending[printer->pending_count++] = byte;
    progress = progress_of(printer->pending, printer->pending_count);
    if (progress == OPEN)
        return;
    if (progress == WHOLE && is_safe(printer->pending, printer->pending_count))
        hd_text_add_bytes(ret_text, printer->pending, printer->pending_count);
    else
        hd_text_add_bytes(ret_text, replacement, 3);
    if (progress == BROKEN && printer->pending_count > 1) {
        printer->pending_count =
            0; /* the pending bytes are invalid, but this byte may begin a character */
        add_byte(printer, byte, ret_text);
        return;
    }
    printer->pending_count = 0;
}

void hd_utf8_printer_add(struct hd_utf8_printer *printer, const void *bytes, size_t count,
                         struct hd_text *ret_text)
{
    const unsigned char *p = bytes;

    for (size_t i = 0; i < count; i++)
        add_byte(printer, p[i], ret_text);
}

void hd_utf8_printer_end(struct hd_utf8_printer *printer, struct hd_text *ret_text)
{
    if (printer->pending_count)
        hd_text_add_bytes(ret_text, replacement, 3);
    printer->pending_count = 0;
}
